/* mm_f32.cu - the matrix products with F32 weights. */
#include "kernels/cuda/launch.cuh"

cudaError_t mm_launch_f32(cuda_dev *d, const mm_params &p)
{
    return launch_mm<FMT_F32>(d, p);
}
