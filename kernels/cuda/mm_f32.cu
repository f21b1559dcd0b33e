/* mm_f32.cu - the matrix products with F32 weights. */
#include "kernels/cuda/launch.cuh"

cudaError_t mm_launch_f32(cuda_dev *d, const mm_params &p)
{
    return launch_mm<FMT_F32>(d, p);
}

cudaError_t warp_launch_f32(cuda_dev *d, const warp_params &p, uint32_t smem)
{
    return launch_warp<FMT_F32>(d, p, smem);
}
