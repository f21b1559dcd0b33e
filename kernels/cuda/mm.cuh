/* mm.cuh - what a matrix product of any kernel (stream.cuh, warp.cuh, tile.cuh) is asked to do, and how it finds its work.
 *
 * One parameter block for three jobs: a plain linear, gate and up with SwiGLU between, and down. For the two of a MoE layer the work is
 * a list of units, (expert, page) pairs, that every block builds for itself in shared memory from the bucket sizes: pages on the
 * host from the front, pages in VRAM from the back. The list is the same in every block, so work is dealt by index without counters. */
#ifndef KERNELS_CUDA_MM_CUH
#define KERNELS_CUDA_MM_CUH

#include <cstdint>

#include "kernels/cuda/reduce.cuh"
#include "kernels/kernels.h"

#define MM_STREAM_TOKENS 32   /* buckets up to this size stream, larger ones are tiled */
#define MM_MAX_EXPERTS   1024 /* of a layer */

enum mm_mode { MM_LINEAR, MM_GATE_UP, MM_DOWN };

struct mm_params {
    const float *x; /* linear: x; gate and up: x; down: the activations [pairs sorted by expert][d_ff] */
    float *y;       /* linear: y; gate and up: the activations; down: [token * top_k + pick][d_model] */
    uint64_t *mark; /* gets the time at which the kernel begins, or NULL */
    uint64_t row_bytes;
    uint32_t mode, fmt;
    uint32_t cols, rows; /* of a matrix: K and the rows of gate (= up), or of down */
    uint32_t x_stride, y_stride;

    /* linear */
    const unsigned char *w;
    const float *bias, *norm; /* or NULL; norm: rows of x are normalised first, and stored to `normed` */
    float *normed, eps;
    const uint32_t *row_idx;
    uint32_t n_tokens;
    uint32_t accumulate;

    /* MoE */
    const uint64_t *page_addr, *fill_addr;
    const uint32_t *expert_start, *pairs;
    uint64_t arena_begin, arena_end;
    uint32_t first_page0, first_page1; /* gate and up, or down twice */
    uint32_t page_rows, pages;         /* rows a full page; pages of the whole expert */
    uint32_t unit_pages;               /* pages of one matrix */
    uint32_t n_experts, top_k;
    uint32_t min_bucket, max_bucket; /* buckets of other sizes belong to the other kernel */
    uint32_t plain;                  /* SwiGLU, and no biases: the next five are not looked at */
    uint32_t half; /* of KERN_RELU2, else 0: what a row of "up" gives stands so far behind what one of "gate" does */
    kern_act act;
    float act_alpha, act_limit;
    const float *bias0, *bias1; /* [n_experts][rows] of gate and up, or of down twice; or NULL */

    /* stream.cuh */
    uint32_t chunk_blocks, n_chunks; /* blocks of 32 a chunk of K */
    uint32_t half_bytes;             /* shared memory of 8 rows of one chunk */
    uint32_t pitch;                  /* of a row in it when n_chunks > 1 */
    uint32_t skew;                   /* between rows that lie in VRAM */
    /* tile.cuh (panels.cuh): x of a linear of many tokens, or of the buckets, and from one step of 64 columns to the next; activations of
     * gate and up in the same form */
    unsigned char *panels, *act_panels;
    uint64_t panel_step, act_step;
    uint32_t stages, tile_tokens;
    uint64_t ring_addr, slot_bytes; /* slots for fetched pages */
    uint32_t ring_slots;
    uint32_t *ready, *done; /* zero at the start of the launch */
};

/* Bytes of n blocks of 32; blocks that cannot be parted. */
static inline uint32_t mm_bytes(kern_fmt fmt, uint32_t n)
{
    return (uint32_t)kern_row_bytes(fmt, n * 32);
}
static inline uint32_t mm_grain(kern_fmt fmt)
{
    const uint32_t n = kern_fmt_get(fmt).block_len / 32;
    return n ? n : 1;
}
/* Of a row, with all of one that the row ends in. */
static inline uint32_t mm_blocks(kern_fmt fmt, uint32_t cols)
{
    const uint32_t grain = mm_grain(fmt);
    return ((cols + 31) / 32 + grain - 1) / grain * grain;
}

static __device__ __forceinline__ bool mm_in_arena(const mm_params &p, uint64_t a)
{
    return a >= p.arena_begin && a < p.arena_end;
}

static __device__ __forceinline__ uint32_t load_acquire(const uint32_t *p)
{
    uint32_t v;
    asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}

/* Lists the units of the buckets that this launch takes. `units` has room for n_experts * unit_pages entries, `scratch` for 36 words;
 * all threads of the block call it. */
static __device__ void list_units(const mm_params &p, uint32_t *units, uint32_t *scratch, uint32_t *n_host,
                                  uint32_t *n_vram)
{
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, n_warps = blockDim.x / 32;
    const uint32_t cap = p.n_experts * p.unit_pages;
    uint32_t host = 0, vram = 0;
    for (uint32_t at = 0; at < cap; at += blockDim.x) {
        const uint32_t i = at + threadIdx.x;
        uint32_t unit = 0;
        bool on = false, is_host = false;
        if (i < cap) {
            const uint32_t e = i / p.unit_pages, page = i % p.unit_pages;
            const uint32_t n = p.expert_start[e + 1] - p.expert_start[e];
            on = n >= p.min_bucket && n <= p.max_bucket;
            if (on) {
                unit = e << 12 | page;
                const uint64_t a0 = p.page_addr[(size_t)e * p.pages + p.first_page0 + page];
                const uint64_t a1 = p.page_addr[(size_t)e * p.pages + p.first_page1 + page];
                is_host = !(mm_in_arena(p, a0) && mm_in_arena(p, a1));
            }
        }
        const uint32_t mh = __ballot_sync(~0u, on && is_host), mv = __ballot_sync(~0u, on && !is_host);
        __syncthreads(); /* the counts of the pass before have been read */
        if (lane == 0)
            scratch[warp] = __popc(mh) | __popc(mv) << 16;
        __syncthreads();
        uint32_t before = 0, all = 0;
        for (uint32_t w = 0; w < n_warps; w++) {
            if (w < warp)
                before += scratch[w];
            all += scratch[w];
        }
        const uint32_t lower = (1u << lane) - 1;
        if (on && is_host)
            units[host + (before & 0xffff) + __popc(mh & lower)] = unit;
        if (on && !is_host)
            units[cap - 1 - (vram + (before >> 16) + __popc(mv & lower))] = unit;
        host += all & 0xffff;
        vram += all >> 16;
    }
    __syncthreads();
    *n_host = host;
    *n_vram = vram;
}

static __device__ __forceinline__ float swiglu_of(float g, float u)
{
    return g / (1.0f + expf(-g)) * u;
}

/* Row `row` (< p.rows) of gate and up of an expert as activations. PLAIN, as p.plain: SwiGLU without biases, which most models have, and whose
 * kernels shall not carry the rest: their code is cold when a layer begins. */
template <bool PLAIN>
static __device__ __forceinline__ float mm_activate(const mm_params &p, uint32_t expert, uint32_t row, float g, float u)
{
    if (PLAIN)
        return swiglu_of(g, u);
    if (p.bias0)
        g += p.bias0[(size_t)expert * p.rows + row];
    if (p.bias1)
        u += p.bias1[(size_t)expert * p.rows + row];
    if (p.act == KERN_GEGLU)
        return geglu(g, u);
    if (p.act == KERN_SWIGLU)
        return swiglu_of(g, u);
    if (p.act == KERN_SWIGLU_LIMITED)
        return swiglu_limited(g, u, p.act_limit);
    /* fminf and fmaxf would make a number of NaN */
    g = g > p.act_limit ? p.act_limit : g;
    u = u > p.act_limit ? p.act_limit : u < -p.act_limit ? -p.act_limit : u;
    return g / (1.0f + expf(-p.act_alpha * g)) * (u + 1.0f);
}

/* Row `row` (< p.rows) of down of an expert, or of a linear. */
template <bool PLAIN>
static __device__ __forceinline__ float mm_result(const mm_params &p, uint32_t expert, uint32_t row, float v)
{
    return PLAIN || !p.bias0 ? v : v + p.bias0[(size_t)expert * p.rows + row];
}

#endif
