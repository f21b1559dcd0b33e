/* launch.cuh - shapes and starts the kernels of one format; included once by each mm_*.cu. */
#ifndef KERNELS_CUDA_LAUNCH_CUH
#define KERNELS_CUDA_LAUNCH_CUH

#include "kernels/cuda/experts.cuh"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/stream.cuh"
#include "kernels/cuda/tile.cuh"

template <int FMT> static cudaError_t launch_stream(cuda_dev *d, mm_params p)
{
    uint32_t smem = 0;
    if (!stream_shape(&p, d->smem_max, &smem))
        return cudaErrorInvalidValue;
    uint32_t grid = (uint32_t)cuda_sms(d);
    if (p.mode == MM_LINEAR)
        grid = min(grid, (p.rows + 15) / 16);
    cudaError_t e = cudaFuncSetAttribute(stream_kernel<FMT>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem);
    if (e != cudaSuccess)
        return e;
    p.mark = cuda_take_mark(d);
    return cuda_start(d, stream_kernel<FMT>, grid, STREAM_WARPS * 32 + 32, smem, p);
}

template <int FMT> static cudaError_t launch_tile(cuda_dev *d, mm_params p)
{
    uint32_t smem = 0;
    if (!tile_shape<FMT>(&p, d->wgmma, d->smem_max, &smem))
        return cudaErrorInvalidValue;
    uint32_t grid = (uint32_t)d->n_sm;
    if (p.mode == MM_LINEAR) {
        /* Narrower tiles where there would be fewer of them than multiprocessors. */
        const uint32_t row_tiles = (p.rows + TILE_ROWS - 1) / TILE_ROWS;
        while (p.tile_tokens > 32 && row_tiles * ((p.n_tokens + p.tile_tokens - 1) / p.tile_tokens) < grid)
            p.tile_tokens /= 2;
        grid = min(grid, row_tiles * ((p.n_tokens + p.tile_tokens - 1) / p.tile_tokens));
    }
    cudaError_t e = cudaFuncSetAttribute(tile_kernel<FMT>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem);
    if (e != cudaSuccess)
        return e;
    p.mark = cuda_take_mark(d);
    return cuda_start(d, tile_kernel<FMT>, grid, TILE_BLOCK, smem, p);
}

/* A block on every multiprocessor, all of them at once: they wait for each other. */
template <int FMT> static cudaError_t launch_warp(cuda_dev *d, const warp_params &P, uint32_t smem)
{
    bool team = false;
    void (*kernel)(warp_params) = warp_kernel<FMT, false, false>;
    if constexpr (!fmt_block<FMT>::FINISHED)
        if (P.phases == 3 && P.p[0].plain) {
            team = P.team.stages && d->has_bulk;
            kernel = team ? warp_kernel<FMT, true, true> : warp_kernel<FMT, false, true>;
        }
    cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem);
    if (e != cudaSuccess)
        return e;
    warp_params marked = P;
    marked.p[0].mark = cuda_take_mark(d);
    return cuda_start(d, kernel, (uint32_t)cuda_sms(d), team ? TEAM_THREADS : WARP_COUNT * 32, smem, marked);
}

/* A linear, or buckets of a MoE layer that are large enough for tiles. */
template <int FMT> static cudaError_t launch_mm(cuda_dev *d, const mm_params &p)
{
    return p.panels ? launch_tile<FMT>(d, p) : launch_stream<FMT>(d, p);
}

#endif
