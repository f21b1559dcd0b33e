/* mm_iq2_xs.cu - the matrix products with IQ2_XS weights. */
#include "kernels/cuda/launch.cuh"

cudaError_t mm_launch_iq2_xs(cuda_dev *d, const mm_params &p)
{
    return launch_mm<FMT_IQ2_XS>(d, p);
}

cudaError_t warp_launch_iq2_xs(cuda_dev *d, const warp_params &p, uint32_t smem)
{
    return launch_warp<FMT_IQ2_XS>(d, p, smem);
}
