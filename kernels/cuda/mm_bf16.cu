/* mm_bf16.cu - the matrix products with BF16 weights. */
#include "kernels/cuda/launch.cuh"

cudaError_t mm_launch_bf16(cuda_dev *d, const mm_params &p)
{
    return launch_mm<FMT_BF16>(d, p);
}
