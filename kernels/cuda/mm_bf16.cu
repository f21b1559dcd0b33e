/* mm_bf16.cu - the matrix products with BF16 weights. */
#include "kernels/cuda/launch.cuh"

cudaError_t mm_launch_bf16(cuda_dev *d, const mm_params &p)
{
    return launch_mm<FMT_BF16>(d, p);
}

cudaError_t warp_launch_bf16(cuda_dev *d, const warp_params &p, uint32_t smem)
{
    return launch_warp<FMT_BF16>(d, p, smem);
}
