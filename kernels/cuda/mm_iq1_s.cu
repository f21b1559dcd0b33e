/* mm_iq1_s.cu - the matrix products with IQ1_S weights. */
#include "kernels/cuda/launch.cuh"

cudaError_t mm_launch_iq1_s(cuda_dev *d, const mm_params &p)
{
    return launch_mm<FMT_IQ1_S>(d, p);
}

cudaError_t warp_launch_iq1_s(cuda_dev *d, const warp_params &p, uint32_t smem)
{
    return launch_warp<FMT_IQ1_S>(d, p, smem);
}
