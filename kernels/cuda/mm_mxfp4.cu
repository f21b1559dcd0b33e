/* mm_mxfp4.cu - the matrix products with MXFP4 weights. */
#include "kernels/cuda/launch.cuh"

cudaError_t mm_launch_mxfp4(cuda_dev *d, const mm_params &p)
{
    return launch_mm<FMT_MXFP4>(d, p);
}

cudaError_t warp_launch_mxfp4(cuda_dev *d, const warp_params &p, uint32_t smem)
{
    return launch_warp<FMT_MXFP4>(d, p, smem);
}
