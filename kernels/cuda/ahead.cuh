/* ahead.cuh - reading ahead: what the router, the reader and the experts' kernel tell each other, and their parts of it.
 *
 * Each layer has a list of units (an expert's page of gate and the same of up) that lie on the host and will probably be wanted. The
 * router of the layer before writes it, while it chooses for its own layer, from the next router's logits on the same x. The
 * reader (ahead.cu) waits for the list and until the experts of the layer before leave the link, then copies *tiles*, 8 rows of gate
 * and the same 8 of up, to a place in device memory. Tiles are dealt to the readers in turn; a reader takes his in order, each
 * by counting up his word `head`. When the layer's own router has made the plan it sets the top bit of these words: from then on
 * it is certain who has which tile. What a reader had taken, the experts' kernel reads in device memory (a copy that is still on
 * its way is waited for: its reader runs, so it comes); all else it reads where it lies.
 *
 * Nobody but the experts' kernel waits for a reader, and only for a copy that has begun. Nothing is cleared between steps: a list, the link and a
 * tile count as ready when their words hold the number of the step. Areas are used by every second layer: a list is written when the
 * experts that read the same area have ended, and a place in it is written by one reader only, so a copy that nobody waited for
 * is followed in order by the next one. */
#ifndef KERNELS_CUDA_AHEAD_CUH
#define KERNELS_CUDA_AHEAD_CUH

#include "kernels/cuda/mm.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/kernels.h"

#define AHEAD_BLOCKS  4 /* of the reader: each takes a multiprocessor */
#define AHEAD_UNITS   4 /* of a list, at most */
#define AHEAD_READERS 8 /* at most; a power of two */
#define AHEAD_CLOSED  0x80000000u

struct ahead_list {
    uint32_t head[AHEAD_READERS]; /* tiles that each reader has taken; its own line: everybody looks at the rest */
    uint32_t pad[32 - AHEAD_READERS];
    uint32_t ready; /* step number: the rest is there */
    uint32_t go;    /* step number: the experts of the layer before leave the link */
    uint32_t n_units;
    uint32_t unit[AHEAD_UNITS];    /* expert << 12 | page */
    uint32_t rows[AHEAD_UNITS];    /* of the page */
    uint64_t src[AHEAD_UNITS][2];  /* where gate and up lie */
    uint32_t taken[AHEAD_READERS]; /* for good: tiles of each reader when the plan was made */
};

/* Offsets are from `memory`. */
struct ahead_mem {
    ahead_list *lists; /* [n_layers + 1] */
    uint32_t *done;    /* [n_layers][units * tiles] step number: the tile is there */
    unsigned char *area;
    float *logits; /* [n_experts] of the next layer's router */
    kern_ahead_counts *counts;
    const uint32_t *step;
    uint32_t units, tiles; /* of a list; of a unit */
    uint32_t half_bytes;   /* room for 8 rows that keep their place in a 128-byte line */
    uint32_t row_bytes;
    uint32_t readers_log2;
};

/* The router's part; next.w NULL: the next layer is not read ahead for. */
struct ahead_route {
    ahead_mem m;
    uint32_t layer;   /* its own */
    bool own;         /* it has a list of its own */
    uint32_t *ticket; /* blocks of the next layer's product that are done; zero between launches */
    const unsigned char *w;
    const float *norm;
    const uint64_t *page_addr;
    uint64_t arena_begin, arena_end;
    uint32_t n_experts, top_k;
    uint32_t pages, unit_pages, first_page0, first_page1, page_rows, rows; /* as in mm_params */
    uint32_t grid; /* blocks of the product, after those of the own one */
};

static __device__ __forceinline__ void store_release(uint32_t *p, uint32_t v)
{
    asm volatile("st.release.gpu.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

static __device__ __forceinline__ ahead_list *ahead_list_of(const ahead_mem &m, uint32_t layer)
{
    return m.lists + layer;
}

/* Place of a tile: gate, then up. */
static __device__ __forceinline__ unsigned char *ahead_place(const ahead_mem &m, uint32_t layer, uint32_t tile)
{
    return m.area + ((size_t)(layer & 1) * m.units * m.tiles + tile) * 2 * m.half_bytes;
}

static __device__ __forceinline__ uint32_t *ahead_done(const ahead_mem &m, uint32_t layer, uint32_t tile)
{
    return m.done + (size_t)layer * m.units * m.tiles + tile;
}

/* Tiles of unit k among the first `taken` ones of reader r. */
static __device__ __forceinline__ uint32_t ahead_taken_of(const ahead_mem &m, uint32_t k, uint32_t r, uint32_t taken)
{
    /* Number i of the reader is tile i * readers + r. */
    const uint32_t readers = 1u << m.readers_log2, begin = k * m.tiles, end = begin + m.tiles;
    const uint32_t lo = begin > r ? (begin - r + readers - 1) >> m.readers_log2 : 0;
    const uint32_t hi = end > r ? (end - r + readers - 1) >> m.readers_log2 : 0;
    const uint32_t to = min(hi, taken);
    return to > lo ? to - lo : 0;
}

/* Which of the experts of its lane, in steps of 32, have gate or up on the host. A warp; experts: at most 1024. */
static __device__ __forceinline__ uint32_t ahead_missing(const ahead_route &a)
{
    uint32_t mask = 0;
    for (uint32_t e = threadIdx.x % 32, i = 0; e < a.n_experts; e += 32, i++) {
        const uint64_t *addr = a.page_addr + (size_t)e * a.pages;
        bool host = false;
        for (uint32_t p = 0; p < a.unit_pages; p++) {
            const uint64_t g = __ldcg(addr + a.first_page0 + p), u = __ldcg(addr + a.first_page1 + p);
            host = host || g < a.arena_begin || g >= a.arena_end || u < a.arena_begin || u >= a.arena_end;
        }
        mask |= (uint32_t)host << i;
    }
    return mask;
}

/* A warp writes the next layer's list from its logits; `missing` of ahead_missing(). `v` has room for n_experts floats. Not `live`: it
 * goes through the code on nothing. */
static __device__ __forceinline__ void ahead_write_list(const ahead_route &a, bool live, uint32_t missing, float *v)
{
    const uint32_t lane = threadIdx.x % 32;
    ahead_list *q = ahead_list_of(a.m, a.layer + 1);
#pragma unroll 4
    for (uint32_t e = lane; e < a.n_experts; e += 32)
        v[e] = live ? __ldcg(a.m.logits + e) : 0.0f;
    uint32_t n = 0;
#pragma unroll 1
    for (uint32_t k = 0; k < a.top_k && n < a.m.units; k++) {
        float best = -INFINITY;
        uint32_t id = UINT32_MAX;
#pragma unroll 4
        for (uint32_t e = lane; e < a.n_experts; e += 32)
            if (v[e] > best) {
                best = v[e];
                id = e;
            }
        const float top = warp_max(best);
        const uint32_t e = __reduce_min_sync(~0u, best == top ? id : UINT32_MAX);
        if (e == UINT32_MAX) /* nothing but NaN and what was taken */
            break;
        if (lane == e % 32)
            v[e] = -INFINITY;
        const uint32_t bits = __shfl_sync(~0u, missing, e % 32);
        if (!(bits >> e / 32 & 1))
            continue;
        const uint64_t *addr = a.page_addr + (size_t)e * a.pages;
#pragma unroll 1
        for (uint32_t p = 0; p < a.unit_pages && n < a.m.units; p++) {
            const uint64_t g = __ldcg(addr + a.first_page0 + p), u = __ldcg(addr + a.first_page1 + p);
            if (g >= a.arena_begin && g < a.arena_end && u >= a.arena_begin && u < a.arena_end)
                continue;
            if (lane == 0 && live) {
                q->unit[n] = e << 12 | p;
                q->rows[n] = min(a.page_rows, a.rows - p * a.page_rows);
                q->src[n][0] = g;
                q->src[n][1] = u;
            }
            n++;
        }
    }
    if (!live)
        return;
    if (lane < AHEAD_READERS)
        q->head[lane] = 0;
    if (lane == 0)
        q->n_units = n;
    __threadfence();
    __syncwarp();
    if (lane == 0)
        store_release(&q->ready, *a.m.step);
}

/* The choice is made: from here on no reader takes another tile of the layer. Thread r < readers closes a word; what it held. */
static __device__ __forceinline__ uint32_t ahead_close(const ahead_route &a)
{
    return threadIdx.x >> a.m.readers_log2 ? 0
                                           : atomicOr(&ahead_list_of(a.m, a.layer)->head[threadIdx.x], AHEAD_CLOSED);
}

/* Notes what ahead_close() gave, and counts. All threads of the block; ids: the experts of all pairs, in shared memory; s: AHEAD_READERS
 * words of it. */
static __device__ __forceinline__ void ahead_settle(const ahead_route &a, bool live, uint32_t closed,
                                                    const uint32_t *ids, uint32_t pairs, uint32_t *s)
{
    ahead_list *q = ahead_list_of(a.m, a.layer);
    const uint32_t readers = 1u << a.m.readers_log2, n = live ? __ldcg(&q->n_units) : 1, all = n * a.m.tiles;
    __syncthreads();
    if (threadIdx.x < readers) {
        const uint32_t mine = (all - min(all, threadIdx.x) + readers - 1) >> a.m.readers_log2;
        s[threadIdx.x] = min(closed & ~AHEAD_CLOSED, mine);
        if (live)
            q->taken[threadIdx.x] = s[threadIdx.x];
    }
    __syncthreads();
    if (threadIdx.x >= n)
        return;
    const uint32_t e = __ldcg(&q->unit[threadIdx.x]) >> 12;
    const bool first = threadIdx.x == 0 || __ldcg(&q->unit[threadIdx.x - 1]) >> 12 != e;
    bool right = false;
#pragma unroll 1
    for (uint32_t i = 0; i < pairs; i++)
        right = right || ids[i] == e;
    uint32_t tiles = 0;
#pragma unroll 1
    for (uint32_t r = 0; r < readers; r++)
        tiles += ahead_taken_of(a.m, threadIdx.x, r, s[r]);
    if (!live)
        return;
    kern_ahead_counts *c = a.m.counts;
    atomicAdd(reinterpret_cast<unsigned long long *>(right ? &c->useful_bytes : &c->wasted_bytes),
              16ull * tiles * a.m.row_bytes);
    if (first) {
        atomicAdd(reinterpret_cast<unsigned long long *>(&c->predictions), 1ull);
        atomicAdd(reinterpret_cast<unsigned long long *>(&c->right), (unsigned long long)right);
    }
}

#endif
