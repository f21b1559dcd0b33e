/* mm_fp8.cu - the matrix products with FP8 weights. */
#include "kernels/cuda/launch.cuh"

cudaError_t mm_launch_fp8(cuda_dev *d, const mm_params &p)
{
    return launch_mm<FMT_FP8>(d, p);
}

cudaError_t warp_launch_fp8(cuda_dev *d, const warp_params &p, uint32_t smem)
{
    return launch_warp<FMT_FP8>(d, p, smem);
}
