/* mm_q2_k.cu - the matrix products with Q2_K weights. */
#include "kernels/cuda/launch.cuh"

cudaError_t mm_launch_q2_k(cuda_dev *d, const mm_params &p)
{
    return launch_mm<FMT_Q2_K>(d, p);
}

cudaError_t warp_launch_q2_k(cuda_dev *d, const warp_params &p, uint32_t smem)
{
    return launch_warp<FMT_Q2_K>(d, p, smem);
}
