/* mm_f16.cu - the matrix products with F16 weights. */
#include "kernels/cuda/launch.cuh"

cudaError_t mm_launch_f16(cuda_dev *d, const mm_params &p)
{
    return launch_mm<FMT_F16>(d, p);
}

cudaError_t warp_launch_f16(cuda_dev *d, const warp_params &p, uint32_t smem)
{
    return launch_warp<FMT_F16>(d, p, smem);
}
