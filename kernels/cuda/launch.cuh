/* launch.cuh - shapes and starts the kernels of one format; included once by each mm_*.cu. */
#ifndef KERNELS_CUDA_LAUNCH_CUH
#define KERNELS_CUDA_LAUNCH_CUH

#include "kernels/cuda/matmul.h"
#include "kernels/cuda/stream.cuh"
#include "kernels/cuda/tile.cuh"

template <int FMT> static cudaError_t launch_stream(cuda_dev *d, mm_params p)
{
    uint32_t smem = 0;
    if (!stream_shape(&p, d->smem_max, &smem))
        return cudaErrorInvalidValue;
    uint32_t grid = (uint32_t)d->n_sm;
    if (p.mode == MM_LINEAR)
        grid = min(grid, (p.rows + 15) / 16);
    cudaError_t e = cudaFuncSetAttribute(stream_kernel<FMT>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem);
    if (e != cudaSuccess)
        return e;
    stream_kernel<FMT><<<grid, STREAM_WARPS * 32 + 32, smem, d->stream>>>(p);
    return cudaGetLastError();
}

template <int FMT> static cudaError_t launch_tile(cuda_dev *d, mm_params p)
{
    uint32_t smem = 0;
    if (!tile_shape<FMT>(&p, d->smem_max, &smem))
        return cudaErrorInvalidValue;
    uint32_t grid = (uint32_t)d->n_sm;
    if (p.mode == MM_LINEAR) {
        /* Narrower tiles where there would be fewer of them than multiprocessors. */
        const uint32_t row_tiles = (p.rows + TILE_ROWS - 1) / TILE_ROWS;
        while (p.tile_tokens > 32 && row_tiles * ((p.n_tokens + p.tile_tokens - 1) / p.tile_tokens) < grid)
            p.tile_tokens /= 2;
        grid = row_tiles * ((p.n_tokens + p.tile_tokens - 1) / p.tile_tokens);
    }
    cudaError_t e = cudaFuncSetAttribute(tile_kernel<FMT>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem);
    if (e != cudaSuccess)
        return e;
    tile_kernel<FMT><<<grid, p.mode == MM_LINEAR ? TILE_THREADS : TILE_THREADS + 32, smem, d->stream>>>(p);
    return cudaGetLastError();
}

template <int FMT> static cudaError_t launch_mm(cuda_dev *d, mm_params p)
{
    const bool tile = !d->no_tile && p.n_tokens > STREAM_MAX_TOKENS;
    if (tile && p.mode == MM_LINEAR)
        return launch_tile<FMT>(d, p);
    p.min_bucket = 1;
    p.max_bucket = tile ? STREAM_MAX_TOKENS : UINT32_MAX;
    cudaError_t e = launch_stream<FMT>(d, p);
    if (e != cudaSuccess || !tile)
        return e;
    p.min_bucket = STREAM_MAX_TOKENS + 1;
    p.max_bucket = UINT32_MAX;
    return launch_tile<FMT>(d, p);
}

#endif
