/* mm_q4_1.cu - the matrix products with Q4_1 weights. */
#include "kernels/cuda/launch.cuh"

cudaError_t mm_launch_q4_1(cuda_dev *d, const mm_params &p)
{
    return launch_mm<FMT_Q4_1>(d, p);
}

cudaError_t warp_launch_q4_1(cuda_dev *d, const warp_params &p, uint32_t smem)
{
    return launch_warp<FMT_Q4_1>(d, p, smem);
}
