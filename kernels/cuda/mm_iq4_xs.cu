/* mm_iq4_xs.cu - the matrix products with IQ4_XS weights. */
#include "kernels/cuda/launch.cuh"

cudaError_t mm_launch_iq4_xs(cuda_dev *d, const mm_params &p)
{
    return launch_mm<FMT_IQ4_XS>(d, p);
}

cudaError_t warp_launch_iq4_xs(cuda_dev *d, const warp_params &p, uint32_t smem)
{
    return launch_warp<FMT_IQ4_XS>(d, p, smem);
}
