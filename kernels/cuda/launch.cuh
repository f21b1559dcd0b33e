/* launch.cuh - shapes and starts the kernels of one format; included once by each mm_*.cu. */
#ifndef KERNELS_CUDA_LAUNCH_CUH
#define KERNELS_CUDA_LAUNCH_CUH

#include "kernels/cuda/matmul.h"
#include "kernels/cuda/stream.cuh"

template <int FMT> static cudaError_t launch_stream(cuda_dev *d, mm_params p)
{
    uint32_t warps = 0, smem = 0;
    if (!stream_shape(&p, d->smem_max, &warps, &smem))
        return cudaErrorInvalidValue;
    uint32_t grid = (uint32_t)d->n_sm;
    if (p.mode == MM_LINEAR)
        grid = min(grid, (p.rows + 15) / 16);
    cudaError_t e = cudaFuncSetAttribute(stream_kernel<FMT>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem);
    if (e != cudaSuccess)
        return e;
    stream_kernel<FMT><<<grid, warps * 32, smem, d->stream>>>(p);
    return cudaGetLastError();
}

template <int FMT> static cudaError_t launch_mm(cuda_dev *d, mm_params p)
{
    p.min_bucket = 1;
    p.max_bucket = UINT32_MAX;
    return launch_stream<FMT>(d, p);
}

#endif
