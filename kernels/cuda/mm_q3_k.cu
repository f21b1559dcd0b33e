/* mm_q3_k.cu - the matrix products with Q3_K weights. */
#include "kernels/cuda/launch.cuh"

cudaError_t mm_launch_q3_k(cuda_dev *d, const mm_params &p)
{
    return launch_mm<FMT_Q3_K>(d, p);
}

cudaError_t warp_launch_q3_k(cuda_dev *d, const warp_params &p, uint32_t smem)
{
    return launch_warp<FMT_Q3_K>(d, p, smem);
}
