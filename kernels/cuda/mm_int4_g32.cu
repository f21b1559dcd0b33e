/* mm_int4_g32.cu - the matrix products with INT4 weights in groups of 32. */
#include "kernels/cuda/launch.cuh"

cudaError_t mm_launch_int4_g32(cuda_dev *d, const mm_params &p)
{
    return launch_mm<FMT_INT4_G32>(d, p);
}

cudaError_t warp_launch_int4_g32(cuda_dev *d, const warp_params &p, uint32_t smem)
{
    return launch_warp<FMT_INT4_G32>(d, p, smem);
}
