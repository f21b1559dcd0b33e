/* mm_q5_0.cu - the matrix products with Q5_0 weights. */
#include "kernels/cuda/launch.cuh"

cudaError_t mm_launch_q5_0(cuda_dev *d, const mm_params &p)
{
    return launch_mm<FMT_Q5_0>(d, p);
}

cudaError_t warp_launch_q5_0(cuda_dev *d, const warp_params &p, uint32_t smem)
{
    return launch_warp<FMT_Q5_0>(d, p, smem);
}
