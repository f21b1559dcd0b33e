/* mm_f16.cu - the matrix products with F16 weights. */
#include "kernels/cuda/launch.cuh"

cudaError_t mm_launch_f16(cuda_dev *d, const mm_params &p)
{
    return launch_mm<FMT_F16>(d, p);
}
