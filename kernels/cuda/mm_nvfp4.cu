/* mm_nvfp4.cu - the matrix products with NVFP4 weights. */
#include "kernels/cuda/launch.cuh"

cudaError_t mm_launch_nvfp4(cuda_dev *d, const mm_params &p)
{
    return launch_mm<FMT_NVFP4>(d, p);
}

cudaError_t warp_launch_nvfp4(cuda_dev *d, const warp_params &p, uint32_t smem)
{
    return launch_warp<FMT_NVFP4>(d, p, smem);
}
