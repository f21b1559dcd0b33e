/* panels.cu - makes the panels of activations (panels.cuh) from rows of float32. */
#include "kernels/cuda/cuda_priv.h"
#include "kernels/cuda/frag.cuh"
#include "kernels/cuda/mm.cuh"
#include "kernels/cuda/overlap.cuh"
#include "kernels/cuda/panels.cuh"

#define PANEL_THREADS 256

/* The expert that has a panel, or would, if its bucket were that large. */
static __device__ uint32_t expert_of_panel(const mm_params &p, uint32_t panel)
{
    uint32_t at = 0, end = p.n_experts;
    while (end - at > 1) {
        const uint32_t mid = (at + end) / 2;
        if (panel_of_expert(p.expert_start[mid], mid) <= panel)
            at = mid;
        else
            end = mid;
    }
    return at;
}

/* Four pairs of positions, 8 apart for tile_wgmma.cuh, side by side for tile_mma.cuh: 16 bytes of hi and as many of lo. Piece i of 8 of a
 * token's 64 positions. */
static __device__ __forceinline__ void make_piece(const float *x, uint32_t k0, uint32_t cols, uint32_t r, uint32_t i,
                                                  unsigned char *panel)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    const uint32_t first = i / 4 * 32 + i % 4 * 2, apart = 8;
#else
    const uint32_t first = i * 8, apart = 2;
#endif
    uint32_t hi[4], lo[4];
#pragma unroll
    for (uint32_t t = 0; t < 4; t++) {
        const uint32_t k = k0 + first + t * apart;
        const float2 v = k < cols ? *reinterpret_cast<const float2 *>(x + k) : make_float2(0, 0);
        split_pair(v.x, v.y, &hi[t], &lo[t]);
    }
    unsigned char *to = panel + panel_at(r, first);
    *reinterpret_cast<uint4 *>(to) = make_uint4(hi[0], hi[1], hi[2], hi[3]);
    *reinterpret_cast<uint4 *>(to + PANEL_LO) = make_uint4(lo[0], lo[1], lo[2], lo[3]);
}

/* A block a panel of all of K; 8 threads a token and step. */
__global__ void __launch_bounds__(PANEL_THREADS) panels_kernel(const __grid_constant__ mm_params p)
{
    overlap_begin(p.mark);
    const uint32_t panel = blockIdx.x, i = threadIdx.x % 8, r = threadIdx.x / 8 % PANEL_TOKENS;
    uint32_t row = panel * PANEL_TOKENS + r;
    if (p.mode == MM_LINEAR) {
        if (row >= p.n_tokens)
            return;
        if (p.row_idx)
            row = p.row_idx[row];
    } else {
        const uint32_t e = expert_of_panel(p, panel), start = p.expert_start[e], n = p.expert_start[e + 1] - start;
        const uint32_t k = (panel - panel_of_expert(start, e)) * PANEL_TOKENS + r;
        if (n < p.min_bucket || n > p.max_bucket || k >= n)
            return;
        row = p.pairs[start + k] / p.top_k;
    }
    const float *x = p.x + (size_t)row * p.x_stride;
    for (uint32_t k0 = threadIdx.x / 64 * PANEL_COLS; k0 < p.cols; k0 += PANEL_THREADS)
        make_piece(x, k0, p.cols, r, i, p.panels + k0 / PANEL_COLS * p.panel_step + (size_t)panel * PANEL_BYTES);
}

static __device__ const bool for_wgmma = PANELS_FOR_WGMMA;

cudaError_t panels_for_wgmma(bool *ret)
{
    return cudaMemcpyFromSymbol(ret, for_wgmma, sizeof *ret);
}

cudaError_t panels_make(cuda_dev *d, const mm_params &p, uint32_t n_panels)
{
    mm_params marked = p;
    marked.mark = cuda_take_mark(d);
    return cuda_start(d, panels_kernel, n_panels, PANEL_THREADS, 0, marked);
}
