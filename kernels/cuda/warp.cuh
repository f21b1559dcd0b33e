/* warp.cuh - matrix products for few tokens where there are many rows: every warp takes 16 weight rows of its own.
 *
 * A warp walks over its items (16 rows of one matrix, or 8 of gate and the same 8 of up, so that SwiGLU needs no memory) with a ring of
 * stages of its own in shared memory, asks for the next pieces itself, and adds the blocks of K in ascending order in
 * registers. Nothing is shared between warps while they work: there is no barrier, and a warp that waits holds up nobody.
 *
 * A MoE layer of few tokens is one launch. Items of down follow those of gate and up in the same walk, so that rows of down are already
 * on their way while the activations that they need are still being computed: the link has no gap between the two. `ready` counts
 * the items of gate and up of each expert; a warp looks at it only when its rows have arrived. Whoever ends the last expert of 16
 * rows of the result adds the picks there. Nobody waits for an item that comes later in the order than his own, so it cannot lock
 * up while all blocks of the grid are on the chip, one on each multiprocessor.
 *
 * Layers that lie in VRAM go through team.cuh where the chip has bulk copies.
 * Where pages lie on both sides, a few blocks read the host's and the others those in VRAM. From VRAM, rows are fetched in chunks of
 * 0.5 KiB and laid out against bank conflicts. Over the link, whole rows are fetched as one run of memory that lands at the same
 * place of a 128-byte line as it came from: a line that crosses a line of shared memory becomes two requests. Those items are dealt
 * on demand, so that the end of the work is even.
 * Fill-through: what a stage holds of a missed page is also stored to the page's slot.
 * Reading ahead (ahead.cuh): a unit that the reader has taken tiles of is in both lists. Those tiles are items of the VRAM side, and its
 * first ones, since rows of down that came over the link wait for them; the others are the host's. Towards the end of the host's, the
 * link is left to the reader. */
#ifndef KERNELS_CUDA_WARP_CUH
#define KERNELS_CUDA_WARP_CUH

#include "kernels/cuda/experts.h"
#include "kernels/cuda/frag.cuh"
#include "kernels/cuda/load.cuh"
#include "kernels/cuda/mm.cuh"
#include "kernels/cuda/overlap.cuh"

#define WARP_GROUPS (MM_STREAM_TOKENS / 8) /* of 8 tokens that share a pass over the weights */

#if __CUDA_ARCH__ >= 900
#define WARP_FULL_COUNT 1 /* the lane that asks; bytes count themselves */
#else
#define WARP_FULL_COUNT 32
#endif

struct warp_item {
    uint64_t base[2], fill[2]; /* first byte of row 0 of each half; where the page is kept, or 0 */
    uint32_t valid[2];         /* rows of each half, 0..8 */
    uint32_t row0;             /* output row of half 0 */
    uint32_t first, n;         /* tokens: of the bucket, or all */
    uint32_t expert, phase;
};

/* What a stage holds: the item whose rows begin there, and which 32 of its tokens they are for. */
struct warp_note {
    warp_item it;
    uint32_t group;
};

/* The layer's list of what was read ahead, in shared memory. A unit in the lists of units has its place in this one, counted from 1, in its
 * upper 8 bits. */
struct warp_ahead {
    uint32_t step, n, unit[AHEAD_UNITS], taken[2][AHEAD_READERS];
    bool wanted[AHEAD_UNITS];
};

/* A warp's walk. Items of phase 0 come before those of phase 1. */
struct warp_walk {
    uint32_t i, step, end[2]; /* end of each phase's items, in one numbering */
    bool begun;               /* item i has been taken */
    uint32_t tiles[2];        /* items of a unit */
    const uint32_t *units[2];
    uint32_t tier;
    const warp_ahead *ahead;
};

/* Entries of the list of units of phase 0. */
static __device__ __forceinline__ uint32_t warp_cap0(const mm_params &p)
{
    return p.n_experts * p.unit_pages + AHEAD_UNITS;
}

/* Lists the units of both phases as list_units() does, in one pass. counts: host and VRAM units of phase 0, then of phase 1. */
static __device__ void warp_list(const warp_params &P, uint32_t *units, uint64_t *scratch, uint32_t (&counts)[4])
{
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, n_warps = blockDim.x / 32;
    const mm_params &p0 = P.p[0];
    const uint32_t cap0 = warp_cap0(p0), cap1 = p0.n_experts * P.p[1].unit_pages;
    uint64_t done = 0; /* four counts of 16 bits */
    for (uint32_t at = 0; at < max(cap0 - AHEAD_UNITS, cap1); at += blockDim.x) {
        const uint32_t i = at + threadIdx.x;
        uint32_t unit[2] = {0, 0}, n[2] = {0, 0};
        uint64_t a[2][2] = {};
#pragma unroll
        for (int ph = 0; ph < 2; ph++) {
            const mm_params &p = P.p[ph];
            if (i < p.n_experts * p.unit_pages) {
                const uint32_t e = i / p.unit_pages, page = i % p.unit_pages;
                unit[ph] = e << 12 | page;
                n[ph] = p.expert_start[e + 1] - p.expert_start[e];
                a[ph][0] = p.page_addr[(size_t)e * p.pages + p.first_page0 + page];
                a[ph][1] = p.page_addr[(size_t)e * p.pages + p.first_page1 + page];
            }
        }
        uint32_t mask[4];
#pragma unroll
        for (int ph = 0; ph < 2; ph++) {
            const bool on = n[ph] >= p0.min_bucket && n[ph] <= p0.max_bucket && n[ph] > 0;
            const bool vram = mm_in_arena(p0, a[ph][0]) && mm_in_arena(p0, a[ph][1]);
            mask[2 * ph] = __ballot_sync(~0u, on && !vram);
            mask[2 * ph + 1] = __ballot_sync(~0u, on && vram);
        }
        __syncthreads(); /* the counts of the pass before have been read */
        if (lane == 0)
            scratch[warp] = (uint64_t)__popc(mask[0]) | (uint64_t)__popc(mask[1]) << 16 |
                            (uint64_t)__popc(mask[2]) << 32 | (uint64_t)__popc(mask[3]) << 48;
        __syncthreads();
        uint64_t before = done;
        for (uint32_t w = 0; w < n_warps; w++) {
            if (w < warp)
                before += scratch[w];
            done += scratch[w];
        }
#pragma unroll
        for (int k = 0; k < 4; k++)
            if (mask[k] >> lane & 1) {
                const uint32_t rank = ((uint32_t)(before >> 16 * k) & 0xffff) + __popc(mask[k] & ((1u << lane) - 1));
                const uint32_t first = k < 2 ? 0 : cap0, cap = k < 2 ? cap0 : cap1;
                units[first + (k % 2 ? cap - 1 - rank : rank)] = unit[k / 2];
            }
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < 4; k++)
        counts[k] = (uint32_t)(done >> 16 * k) & 0xffff;
}

static __device__ __forceinline__ void warp_load_ahead(const warp_params &P, warp_ahead &a)
{
    const ahead_list *q = ahead_list_of(P.ahead, P.layer);
    if (threadIdx.x < 2 * AHEAD_READERS)
        a.taken[0][threadIdx.x] = __ldcg(q->taken[0] + threadIdx.x);
    if (threadIdx.x < AHEAD_UNITS) {
        a.unit[threadIdx.x] = __ldcg(&q->unit[threadIdx.x]);
        a.wanted[threadIdx.x] = false;
    }
    if (threadIdx.x == 0) {
        a.n = __ldcg(&q->n_units);
        a.step = *P.ahead.step;
    }
}

/* Behind warp_list(), by all threads: units that the reader has tiles of are marked, and listed on the VRAM side too. */
static __device__ void warp_list_ahead(const warp_params &P, uint32_t *units, uint32_t (&counts)[4], warp_ahead &a)
{
    const uint32_t cap0 = warp_cap0(P.p[0]);
    for (uint32_t i = threadIdx.x; i < counts[0]; i += blockDim.x)
        for (uint32_t k = 0; k < a.n; k++) {
            if (units[i] != a.unit[k])
                continue;
            uint32_t tiles = 0;
            for (uint32_t r = 0; r < 1u << P.ahead.readers_log2; r++)
                tiles += ahead_taken_of(P.ahead, k, r, a.taken[k > 0][r]);
            if (tiles) {
                units[i] |= (k + 1) << 24;
                a.wanted[k] = true;
            }
            break;
        }
    __syncthreads();
    for (uint32_t k = 0; k < a.n; k++)
        if (a.wanted[k]) {
            if (threadIdx.x == 0)
                units[cap0 - 1 - counts[1]] = a.unit[k] | (k + 1) << 24;
            counts[1]++;
        }
    __syncthreads();
}

/* Whether a reader has taken a tile: number `dealt` of the list's first unit (k 0), or of all its others. */
static __device__ __forceinline__ bool warp_was_taken(const ahead_mem &m, const warp_ahead &a, uint32_t k,
                                                      uint32_t dealt)
{
    return dealt >> m.readers_log2 < a.taken[k > 0][dealt & ((1u << m.readers_log2) - 1)];
}

/* A tile that was taken comes: its reader runs. */
static __device__ __forceinline__ void warp_wait_tile(const warp_params &P, const warp_ahead &a, uint32_t tile)
{
    if (threadIdx.x % 32 == 0) {
        const uint32_t *done = ahead_done(P.ahead, P.layer, tile);
        while (load_acquire(done) != a.step) {
        }
    }
    __syncwarp();
}

/* Item number i of the walk; false for the empty places behind a short last page, and for what belongs to the other side. */
static __device__ __forceinline__ bool warp_find(const warp_params &P, const warp_walk &w, uint32_t i, warp_item &it)
{
    const uint32_t phase = i >= w.end[0];
    const mm_params &p = P.p[phase];
    it.phase = phase;
    it.fill[0] = it.fill[1] = 0;
    if (phase)
        i -= w.end[0];
    const uint32_t tiles = phase ? w.tiles[1] : w.tiles[0];
    const uint32_t unit = (phase ? w.units[1] : w.units[0])[i / tiles];
    const uint32_t e = unit >> 12 & 4095, page = unit & 4095, ahead = unit >> 24;
    const uint32_t in_page = min(p.page_rows, p.rows - page * p.page_rows);
    const uint32_t r = (i % tiles) * (phase ? 16 : 8);
    if (r >= in_page)
        return false;
    /* Of the list's tiles: of the first unit, or of the others. */
    const uint32_t dealt = ahead > 1 ? (ahead - 2) * tiles + i % tiles : i % tiles;
    const uint32_t tile = ahead > 1 ? tiles + dealt : dealt;
    const bool there = ahead && warp_was_taken(P.ahead, *w.ahead, ahead - 1, dealt); /* read ahead */
    if (ahead && there == (w.tier == WARP_HOST))
        return false;
    const uint64_t *addr = p.page_addr + (size_t)e * p.pages;
    const uint64_t off = r * p.row_bytes, off1 = phase ? off + 8 * p.row_bytes : off;
    it.base[0] = addr[p.first_page0 + page] + off;
    it.base[1] = addr[p.first_page1 + page] + off1;
    if (there) {
        const uint64_t place = (uint64_t)(uintptr_t)ahead_place(P.ahead, P.layer, tile);
        it.base[0] = place + (it.base[0] & 127);
        it.base[1] = place + P.ahead.half_bytes + (it.base[1] & 127);
        warp_wait_tile(P, *w.ahead, tile);
#if __CUDA_ARCH__ >= 900
        asm volatile("fence.proxy.async.global;" ::: "memory"); /* it is fetched by bulk copies */
#endif
    }
    if (p.fill_addr && !there) { /* warp_keep_ahead() */
        const uint64_t *fill = p.fill_addr + (size_t)e * p.pages;
        const uint64_t f0 = fill[p.first_page0 + page], f1 = fill[p.first_page1 + page];
        it.fill[0] = f0 ? f0 + off : 0;
        it.fill[1] = f1 ? f1 + off1 : 0;
    }
    const uint32_t left = in_page - r;
    it.valid[0] = min(left, 8u);
    it.valid[1] = phase ? (left > 8 ? min(left - 8, 8u) : 0) : it.valid[0];
    it.row0 = page * p.page_rows + r;
    it.first = p.expert_start[e];
    it.n = p.expert_start[e + 1] - it.first;
    it.expert = e;
    return true;
}

/* Another item over the link has been asked for, or is the other side's. Shortly before the last one the link is left to the reader, who
 * needs about as long to begin. */
static __device__ __noinline__ void warp_count_item(const warp_params &P, const warp_walk &w)
{
    if (!P.ahead.lists || threadIdx.x % 32 != 0)
        return;
    const uint32_t counted = atomicAdd(P.counters + WARP_ASKED, 1u) + 1, all = w.end[1];
    if (counted == all - min(P.host_blocks, all - 1))
        store_relaxed(&ahead_list_of(P.ahead, P.layer + 1)->go, *P.ahead.step);
}

static __device__ __forceinline__ bool warp_next(const warp_params &P, warp_walk &w, warp_item &it)
{
    for (;;) {
        if (w.begun && w.tier == WARP_HOST) {
            uint32_t turn = 0;
            if (threadIdx.x % 32 == 0)
                turn = atomicAdd(P.counters + WARP_QUEUE, 1u);
            w.i = w.step + __shfl_sync(~0u, turn, 0);
        } else if (w.begun) {
            w.i += w.step;
        }
        w.begun = true;
        if (w.i >= w.end[1])
            return false;
        if (warp_find(P, w, w.i, it))
            return true;
        if (w.tier == WARP_HOST)
            warp_count_item(P, w);
    }
}

/* Where row r of a half lies in its part of the stage. */
static __device__ __forceinline__ uint32_t warp_row_at(const warp_cut &cut, const warp_item &it, uint32_t h, uint32_t r,
                                                       uint64_t row_bytes, uint32_t off)
{
    const uint64_t base = h ? it.base[1] : it.base[0];
    if (cut.pitch == 0)
        return ((uint32_t)base & cut.mask) + r * (uint32_t)row_bytes;
    return r * cut.pitch + ((uint32_t)(base + r * row_bytes + off) & cut.mask);
}

/* Asks for one chunk of an item. Lane l asks for row l of the 16, or lanes 0 and 8 for all rows of a half. */
template <int FMT>
static __device__ __forceinline__ void warp_issue(const warp_cut &cut, const warp_item &it, uint64_t row_bytes,
                                                  uint32_t chunk, uint32_t stage, uint64_t *full)
{
    const uint32_t lane = threadIdx.x % 32, off = fmt_bytes<FMT>(chunk * cut.chunk_blocks);
    uint32_t len = min(fmt_bytes<FMT>(cut.chunk_blocks), (uint32_t)row_bytes - off);
    const uint32_t h = lane / 8 & 1, r = lane % 8;
    const uint32_t valid = h ? it.valid[1] : it.valid[0];
    const uint64_t src = (h ? it.base[1] : it.base[0]) + r * row_bytes + off;
    bool on = lane < 16 && r < valid;
    if (cut.pitch == 0) {
        on = on && r == 0;
        len = valid * (uint32_t)row_bytes;
    }
    const uint32_t dst = stage + h * cut.half_bytes + r * cut.pitch + ((uint32_t)src & cut.mask & ~15u);
    const uint32_t shift = (uint32_t)src & 15, bytes = on ? (shift + len + 15) & ~15u : 0;
#if __CUDA_ARCH__ >= 900
    const uint32_t all = __reduce_add_sync(~0u, bytes);
    if (lane == 0)
        bar_expect(full, all);
    __syncwarp();
    if (bytes)
        bulk_copy_once(dst, src - shift, bytes, full, once_policy());
#else
    for (uint32_t l = 0; l < 16; l++) { /* the whole warp copies what lane l would have asked for */
        const uint32_t n = __shfl_sync(~0u, bytes, l), to = __shfl_sync(~0u, dst, l);
        const uint64_t from = __shfl_sync(~0u, src - shift, l);
        for (uint32_t u = lane * 16; u < n; u += 512)
            cp_async16(to + u, from + u);
    }
    bar_arrive_copies(full);
    __syncwarp();
#endif
}

/* n bytes to the slot, in the widest pieces that both sides allow: from shared memory or, L2, from device memory that others wrote. */
template <bool L2> static __device__ __forceinline__ void warp_store(uint64_t dst, const unsigned char *src, uint32_t n)
{
    const uint32_t low = (uint32_t)dst | (uint32_t)(uintptr_t)src | n;
    auto copy = [&](auto *to, const auto *from) {
#pragma unroll 4
        for (uint32_t i = threadIdx.x % 32; i < n / sizeof *to; i += 32)
            to[i] = L2 ? __ldcg(from + i) : from[i];
    };
    if ((low & 15) == 0)
        copy(reinterpret_cast<uint4 *>(dst), reinterpret_cast<const uint4 *>(src));
    else if ((low & 7) == 0)
        copy(reinterpret_cast<uint2 *>(dst), reinterpret_cast<const uint2 *>(src));
    else
        copy(reinterpret_cast<uint16_t *>(dst), reinterpret_cast<const uint16_t *>(src));
}

/* Activations of a token, split: each block of 32 as 64 bytes of hi and 64 of lo, 16 bytes of each a lane (of quad t: positions
 * 8t .. 8t + 7). */
enum warp_x { X_GLOBAL, X_SHARED };

static __device__ __forceinline__ uint4 load_global16(uint64_t at)
{
    uint4 v;
    asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(at));
    return v;
}

static __device__ __forceinline__ uint4 load_shared16(uint32_t at)
{
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at));
    return v;
}

/* One lane's operand of block b; positions at and beyond `cols` are zero. */
template <int X>
static __device__ __forceinline__ b_frag warp_load_x(uint64_t row, uint32_t b, uint32_t t, bool in0, bool in1)
{
    b_frag f;
    uint4 hi, lo;
    if (X == X_SHARED) {
        hi = load_shared16((uint32_t)row + b * 128 + t * 16);
        lo = load_shared16((uint32_t)row + b * 128 + 64 + t * 16);
    } else {
        hi = load_global16(row + b * 128 + t * 16);
        lo = load_global16(row + b * 128 + 64 + t * 16);
    }
    f.hi[0] = in0 ? hi.x : 0, f.hi[1] = in0 ? hi.y : 0, f.hi[2] = in1 ? hi.z : 0, f.hi[3] = in1 ? hi.w : 0;
    f.lo[0] = in0 ? lo.x : 0, f.lo[1] = in0 ? lo.y : 0, f.lo[2] = in1 ? lo.z : 0, f.lo[3] = in1 ? lo.w : 0;
    return f;
}

/* The operands of block `b` of a chunk that begins with block `first` of K: of 16 rows, and whether the lane's positions are within the row. */
template <int FMT>
static __device__ __forceinline__ a_frag<FMT> warp_load_a(const row_reader<FMT> &a0, const row_reader<FMT> &a1,
                                                          uint32_t first, uint32_t b, bool odd, uint32_t cols,
                                                          bool *in0, bool *in1)
{
    const uint32_t t = threadIdx.x % 4, k = (first + b) * 32 + 8 * t;
    /* Q8_0 has whole blocks only, and its rows of x end with one. */
    *in0 = FMT == FMT_Q8_0 || k < cols, *in1 = FMT == FMT_Q8_0 || k + 4 < cols;
    a_frag<FMT> a;
    const uint32_t ta = *in0 ? t : 0; /* beyond the row's end may be beyond shared memory */
    a0.load(b, odd, ta, a.r0, &a.d0, &a.m0);
    a1.load(b, odd, ta, a.r1, &a.d1, &a.m1);
    if (!*in1)
        zero_a<FMT>(a, *in0 ? 2 : 0);
    return a;
}

/* Adds N blocks from block `b` on, an even one where N is more than one, to NT groups of 8 tokens. */
template <int FMT, int NT, int X, int N>
static __device__ __forceinline__ void warp_blocks(float (&acc)[WARP_GROUPS][4], const row_reader<FMT> &a0,
                                                   const row_reader<FMT> &a1, uint32_t first, uint32_t b, uint32_t cols,
                                                   const uint64_t (&x)[WARP_GROUPS])
{
    a_frag<FMT> a[N];
    bool in0[N], in1[N];
#pragma unroll
    for (int i = 0; i < N; i++)
        a[i] = warp_load_a<FMT>(a0, a1, first, b + i, i % 2, cols, &in0[i], &in1[i]);
#pragma unroll
    for (int j = 0; j < NT; j++) {
        b_frag f[N];
        float c[N][4];
#pragma unroll
        for (int i = 0; i < N; i++)
            f[i] = warp_load_x<X>(x[j], first + b + i, threadIdx.x % 4, in0[i], in1[i]);
        block_products<FMT, N>(c, a, f);
#pragma unroll
        for (int i = 0; i < N; i++)
            block_add<FMT>(acc[j], c[i], a[i].d0, a[i].d1);
    }
}

/* Adds n blocks of K, from block `first` on, to NT groups of 8 tokens: AT_ONCE of them side by side. */
template <int FMT, int NT, int X, int AT_ONCE>
static __device__ __forceinline__ void warp_chunk(float (&acc)[WARP_GROUPS][4], const unsigned char *row0,
                                                  const unsigned char *row1, uint32_t first, uint32_t n, uint32_t cols,
                                                  const uint64_t (&x)[WARP_GROUPS])
{
    const row_reader<FMT> a0(row0, threadIdx.x % 4), a1(row1, threadIdx.x % 4);
    uint32_t b = 0;
#pragma unroll 1
    for (; b + AT_ONCE <= n; b += AT_ONCE)
        warp_blocks<FMT, NT, X, AT_ONCE>(acc, a0, a1, first, b, cols, x);
#pragma unroll 1
    for (; AT_ONCE > 2 && b + 2 <= n; b += 2)
        warp_blocks<FMT, NT, X, 2>(acc, a0, a1, first, b, cols, x);
    if (b < n)
        warp_blocks<FMT, NT, X, 1>(acc, a0, a1, first, b, cols, x);
}

/* hi and lo of position r of a split row. */
static __device__ __forceinline__ void store_split(unsigned char *row, uint32_t r, float v)
{
    __nv_bfloat16 *at = reinterpret_cast<__nv_bfloat16 *>(row + r / 32 * 128) + r % 32;
    const __nv_bfloat16 hi = __float2bfloat16_rn(v);
    at[0] = hi;
    at[32] = __float2bfloat16_rn(v - __bfloat162float(hi));
}

/* What becomes of row `row` of gate and up of an expert, for a pair. */
template <bool PLAIN>
static __device__ __forceinline__ void store_activation(const mm_params &p, uint32_t expert, uint32_t pair,
                                                        uint32_t row, float g, float u)
{
    unsigned char *to = reinterpret_cast<unsigned char *>(p.y) + (size_t)pair * p.y_stride * 4;
    if (!PLAIN && p.half) {
        store_split(to, row, relu2(g));
        store_split(to, row + p.half, relu2(u));
    } else {
        store_split(to, row, mm_activate<PLAIN>(p, expert, row, g, u));
    }
}

/* Number of the 16 rows from row0 on: rows of a page begin on a tile of their own. */
static __device__ __forceinline__ uint32_t warp_sum_tile(const mm_params &p, uint32_t row0)
{
    const uint32_t page = row0 / p.page_rows, tiles = (p.page_rows + 15) / 16;
    return page * tiles + (row0 - page * p.page_rows) / 16;
}

/* y += the picks of 16 rows, in their order; all experts' rows are there. */
static __device__ void warp_sum_picks(const warp_params &P, uint32_t row0, uint32_t valid0, uint32_t valid1)
{
    const mm_params &p = P.p[1];
    const uint32_t lane = threadIdx.x % 32, r = lane % 16, row = row0 + r;
    if (r % 8 >= (r < 8 ? valid0 : valid1))
        return;
    const uint32_t live = P.n_live ? min(*P.n_live, p.n_tokens) : p.n_tokens;
    for (uint32_t token = lane / 16; token < live; token += 2) {
        float v = P.y[(size_t)token * p.rows + row];
        const float *out = p.y + (size_t)token * p.top_k * p.y_stride + row, *w = P.weights + (size_t)token * p.top_k;
#pragma unroll 8
        for (uint32_t k = 0; k < p.top_k; k++)
            v = fmaf(w[k], __ldcg(out + (size_t)k * p.y_stride), v);
        P.y[(size_t)token * p.rows + row] = v;
    }
}

/* Results of an item: lane = row g of each half, tokens 2t and 2t + 1 of each group of 8. */
template <bool PLAIN>
static __device__ __forceinline__ void warp_finish(const warp_params &P, const warp_item &it, uint32_t group,
                                                   uint32_t n_summands, const float (&acc)[WARP_GROUPS][4])
{
    const mm_params &p = P.p[it.phase];
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const uint32_t first = group * MM_STREAM_TOKENS, n = min(it.n - first, (uint32_t)MM_STREAM_TOKENS);
#pragma unroll
    for (int j = 0; j < WARP_GROUPS; j++) {
        if (j * 8u >= n)
            break;
#pragma unroll
        for (int c = 0; c < 2; c++) {
            const uint32_t k = j * 8 + 2 * t + c;
            if (k >= n)
                continue;
            const uint32_t pair = it.first + first + k;
            if (it.phase == 0) {
                if (g < it.valid[0])
                    store_activation<PLAIN>(p, it.expert, pair, it.row0 + g, acc[j][c], acc[j][2 + c]);
                continue;
            }
            float *y = p.y + (size_t)p.pairs[pair] * p.y_stride + it.row0 + g;
#pragma unroll
            for (int h = 0; h < 2; h++)
                if (g < it.valid[h])
                    y[h * 8] = mm_result<PLAIN>(p, it.expert, it.row0 + h * 8 + g, acc[j][2 * h + c]);
        }
    }
    __threadfence();
    __syncwarp();
    if (it.phase == 0) {
        if (lane == 0 && first + n == it.n) /* all groups of tokens: this warp makes them in order */
            atomicAdd(P.counters + WARP_READY + it.expert, 1u);
        return;
    }
    if (!P.y)
        return;
    uint32_t before = 0;
    if (lane == 0)
        before = atomicAdd(P.counters + WARP_SUMS + warp_sum_tile(p, it.row0), 1u);
    if (__shfl_sync(~0u, before, 0) + 1 != n_summands)
        return;
    __threadfence();
    warp_sum_picks(P, it.row0, it.valid[0], it.valid[1]);
}

/* Items of gate and up of one expert. */
static __device__ __forceinline__ uint32_t warp_ready_count(const mm_params &p)
{
    const uint32_t last = p.rows - (p.unit_pages - 1) * p.page_rows;
    return (p.unit_pages - 1) * ((p.page_rows + 7) / 8) + (last + 7) / 8;
}

/* Bytes of a stage's worth of an item. */
template <int FMT> static __device__ __forceinline__ uint32_t warp_bytes(const warp_params &P, const warp_item &it)
{
    const uint32_t chunk = fmt_bytes<FMT>(P.cut[it.phase][WARP_HOST].chunk_blocks);
    return (it.valid[0] + it.valid[1]) * min(chunk, (uint32_t)P.p[it.phase].row_bytes);
}

/* Whether a warp may ask for as much more over the link. It waits for that only where it has nothing else to do. */
static __device__ __noinline__ bool warp_may_ask(uint32_t *in_flight, uint32_t bytes, uint32_t most, bool wait)
{
    bool may = false;
    if (threadIdx.x % 32 == 0)
        do {
            const uint32_t now = *const_cast<volatile uint32_t *>(in_flight);
            may = (now == 0 || now + bytes <= most) && atomicCAS(in_flight, now, now + bytes) == now;
        } while (!may && wait);
    return __shfl_sync(~0u, may, 0);
}

/* The work of one warp. `ring` holds `slots` stages of `slot_bytes`; in_flight: what the block has asked for over the link. */
template <int FMT, bool PLAIN, int AT_ONCE>
static __device__ void warp_work(const warp_params &P, warp_walk w, unsigned char *ring, uint32_t slots,
                                 uint32_t slot_bytes, warp_note *notes, uint64_t *full, uint32_t x_shared,
                                 uint32_t n_summands, uint32_t *in_flight)
{
    const bool host = w.tier == WARP_HOST;
    const uint32_t lane = threadIdx.x % 32, g = lane / 4;
    uint32_t held = 0;         /* chunks asked for and not yet used */
    uint32_t to = 0, from = 0; /* stages of the next to ask for and to use */
    uint32_t phase_bit = 0;    /* parity of the barriers in this round of the ring */
    uint32_t ask_chunk = 0, ask_group = 0, chunk = 0, group = 0;
    bool more = true, have = false;
    warp_item ask = {}, it = {};
    uint64_t x[WARP_GROUPS] = {};
    float acc[WARP_GROUPS][4] = {};
    uint32_t n_groups = 0; /* of 8 tokens */
    for (;;) {
        while (more && held < slots) {
            if (!have) {
                more = have = warp_next(P, w, ask);
                if (!more)
                    break;
                ask_chunk = ask_group = 0;
            }
            const warp_cut &cut = P.cut[ask.phase][w.tier];
            if (host && !warp_may_ask(in_flight, warp_bytes<FMT>(P, ask), P.host_in_flight, !held))
                break;
            if (ask_chunk == 0 && lane == 0) {
                notes[to].it = ask;
                notes[to].group = ask_group;
            }
            const uint64_t row_bytes = P.p[ask.phase].row_bytes;
            warp_issue<FMT>(cut, ask, row_bytes, ask_chunk, smem_of(ring) + to * slot_bytes, full + to);
            if (host && ask_chunk == 0 && ask_group == 0)
                warp_count_item(P, w); /* behind the request, which need not wait for an atomic */
            to = to + 1 == slots ? 0 : to + 1;
            held++;
            if (++ask_chunk == cut.n_chunks) {
                ask_chunk = 0;
                have = ++ask_group < (ask.n + MM_STREAM_TOKENS - 1) / MM_STREAM_TOKENS;
            }
        }
        if (!held)
            break;
        bar_wait(full + from, phase_bit);
        if (chunk == 0)
            it = notes[from].it;
        if (host && lane == 0)
            atomicSub(in_flight, warp_bytes<FMT>(P, it));
        if (chunk == 0) {
            group = notes[from].group;
            const mm_params &p = P.p[it.phase];
            const uint32_t first = group * MM_STREAM_TOKENS, n = min(it.n - first, (uint32_t)MM_STREAM_TOKENS);
            n_groups = (n + 7) / 8;
#pragma unroll
            for (int j = 0; j < WARP_GROUPS; j++) {
                acc[j][0] = acc[j][1] = acc[j][2] = acc[j][3] = 0;
                uint32_t r = it.first + first + min(j * 8 + g, n - 1); /* rows beyond the last are read, never used */
                if (it.phase == 0)
                    r = p.n_tokens == 1 ? 0 : p.pairs[r] / p.top_k;
                if (it.phase == 0 && P.x_pitch)
                    x[j] = x_shared + r * P.x_pitch;
                else
                    x[j] = (uint64_t)(uintptr_t)(p.x + (size_t)r * p.x_stride);
            }
            if (it.phase && (PLAIN || P.phases == 3)) {
                if (lane == 0) {
                    const uint32_t want = warp_ready_count(P.p[0]);
                    while (load_acquire(P.counters + WARP_READY + it.expert) < want) {
                    }
                }
                __syncwarp();
            }
        }
        const mm_params &p = P.p[it.phase];
        const warp_cut &cut = P.cut[it.phase][w.tier];
        const unsigned char *stage = ring + from * slot_bytes;
        const uint32_t off = fmt_bytes<FMT>(chunk * cut.chunk_blocks), first = chunk * cut.chunk_blocks;
        const uint32_t n = min(cut.chunk_blocks, (p.cols + 31) / 32 - first);
        const unsigned char *a0 = stage + warp_row_at(cut, it, 0, g, p.row_bytes, off);
        const unsigned char *a1 = stage + cut.half_bytes + warp_row_at(cut, it, 1, g, p.row_bytes, off);
        if (it.phase == 0 && P.x_pitch)
            warp_chunk<FMT, 1, X_SHARED, AT_ONCE>(acc, a0, a1, first, n, p.cols, x);
        else if (n_groups == 1)
            warp_chunk<FMT, 1, X_GLOBAL, AT_ONCE>(acc, a0, a1, first, n, p.cols, x);
        else if (n_groups == 2)
            warp_chunk<FMT, 2, X_GLOBAL, 2>(acc, a0, a1, first, n, p.cols, x);
        else
            warp_chunk<FMT, 4, X_GLOBAL, 2>(acc, a0, a1, first, n, p.cols, x);
        /* Others wait for results, nobody for what is kept. */
        const bool ends = chunk + 1 == cut.n_chunks;
        if (ends)
            warp_finish<PLAIN>(P, it, group, n_summands, acc);
        if (group == 0 && (it.fill[0] | it.fill[1])) {
            const uint32_t len = min(fmt_bytes<FMT>(cut.chunk_blocks), (uint32_t)p.row_bytes - off);
            for (uint32_t h = 0; h < 2; h++) {
                const uint64_t fill = h ? it.fill[1] : it.fill[0];
                const uint32_t valid = h ? it.valid[1] : it.valid[0];
                if (!fill || !valid)
                    continue;
                const unsigned char *half = stage + h * cut.half_bytes;
                if (cut.pitch == 0)
                    warp_store<false>(fill, half + warp_row_at(cut, it, h, 0, p.row_bytes, 0),
                                      valid * (uint32_t)p.row_bytes);
                else
                    for (uint32_t r = 0; r < valid; r++)
                        warp_store<false>(fill + r * p.row_bytes + off,
                                          half + warp_row_at(cut, it, h, r, p.row_bytes, off), len);
            }
        }
        __syncwarp(); /* all lanes are done with the stage, which is filled again now */
        if (++from == slots) {
            from = 0;
            phase_bit ^= 1;
        }
        held--;
        chunk = ends ? 0 : chunk + 1;
    }
}

/* Keeps tiles that were read ahead, where their page has a slot, by copies within the device: what is left to do for warps that have
 * ended the other side's items, while the link still brings this side's. */
static __device__ __noinline__ void warp_keep_ahead(const warp_params &P, const warp_ahead &a, uint32_t i,
                                                    uint32_t step)
{
    const mm_params &p = P.p[0];
    const uint32_t tiles = P.ahead.tiles;
    for (; p.fill_addr && i < a.n * tiles; i += step) {
        const uint32_t k = i / tiles, e = a.unit[k] >> 12, page = a.unit[k] & 4095, r = i % tiles * 8;
        const uint32_t in_page = min(p.page_rows, p.rows - page * p.page_rows);
        if (!a.wanted[k] || r >= in_page || !warp_was_taken(P.ahead, a, k, k ? i - tiles : i))
            continue;
        const uint64_t *addr = p.page_addr + (size_t)e * p.pages, *fill = p.fill_addr + (size_t)e * p.pages;
        const unsigned char *place = ahead_place(P.ahead, P.layer, i);
        warp_wait_tile(P, a, i);
        for (uint32_t h = 0; h < 2; h++) {
            const uint32_t at = (h ? p.first_page1 : p.first_page0) + page;
            const uint64_t off = r * p.row_bytes;
            if (fill[at])
                warp_store<true>(fill[at] + off, place + h * P.ahead.half_bytes + ((addr[at] + off) & 127),
                                 min(in_page - r, 8u) * (uint32_t)p.row_bytes);
        }
    }
}

/* x of all tokens, split, in shared memory. */
static __device__ void warp_split_x(const mm_params &p, unsigned char *x, uint32_t pitch, uint32_t n_threads)
{
    const uint32_t units = (p.cols + 31) / 32 * 4;
    for (uint32_t i = threadIdx.x; i < p.n_tokens * units; i += n_threads) {
        const uint32_t row = i / units, u = i % units, k = u * 8;
        const float4 *src = reinterpret_cast<const float4 *>(p.x + (size_t)row * p.x_stride + k);
        const float4 zero = make_float4(0, 0, 0, 0);
        const b_frag f = split_x(k < p.cols ? src[0] : zero, k + 4 < p.cols ? src[1] : zero);
        unsigned char *dst = x + row * pitch + u / 4 * 128 + u % 4 * 16;
        *reinterpret_cast<uint4 *>(dst) = make_uint4(f.hi[0], f.hi[1], f.hi[2], f.hi[3]);
        *reinterpret_cast<uint4 *>(dst + 64) = make_uint4(f.lo[0], f.lo[1], f.lo[2], f.lo[3]);
    }
}

#endif
