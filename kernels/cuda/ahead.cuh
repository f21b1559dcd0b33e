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
 * The first unit of a list may be there two layers before: the *early* one, which a reader goes on to when nothing is left of the list
 * before. So this unit has words `head` of its own, which the router of the layer before closes where it does not expect the expert.
 *
 * Nobody but the experts' kernel waits for a reader, and only for a copy that has begun. Nothing is cleared between steps: a list, the link and a
 * tile count as ready when their words hold the number of the step. Areas are used by every third layer: a list is begun when the
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
#define AHEAD_LAYERS  2 /* that are looked ahead for at a time */
#define AHEAD_AREAS   (AHEAD_LAYERS + 1)

struct ahead_list {
    /* Tiles that each reader has taken of unit 0, and of the others; a line of its own: everybody looks at the rest. */
    uint32_t head[2][AHEAD_READERS];
    uint32_t pad[32 - 2 * AHEAD_READERS];
    uint32_t ready; /* step number: the rest is there */
    uint32_t go;    /* step number: the experts of the layer before leave the link */
    uint32_t early; /* step number: unit 0 is there */
    uint32_t n_units;
    uint32_t unit[AHEAD_UNITS];       /* expert << 12 | page */
    uint32_t rows[AHEAD_UNITS];       /* of the page */
    uint64_t src[AHEAD_UNITS][2];     /* where gate and up lie */
    uint32_t taken[2][AHEAD_READERS]; /* for good: `head` when it was closed */
};

/* Offsets are from `memory`. */
struct ahead_mem {
    ahead_list *lists; /* [n_layers + 1] */
    uint32_t *done;    /* [n_layers][units * tiles] step number: the tile is there */
    unsigned char *area;
    float *logits; /* [AHEAD_LAYERS][MM_MAX_EXPERTS] of the next layers' routers */
    kern_ahead_counts *counts;
    const uint32_t *step;
    uint32_t units, tiles; /* of a list; of a unit */
    uint32_t half_bytes;   /* room for 8 rows that keep their place in a 128-byte line */
    uint32_t row_bytes;
    uint32_t readers_log2;
};

/* A layer to come, as the router of one before sees it. */
struct ahead_next {
    const unsigned char *w;
    const float *norm, *bias;
    const uint64_t *page_addr;
    uint32_t *ticket; /* blocks of its product that are done; zero between launches */
    uint32_t top_k;
};

/* The router's part. */
struct ahead_route {
    ahead_mem m;
    uint32_t layer; /* its own */
    bool own;       /* it has a list of its own */
    ahead_next next[AHEAD_LAYERS];
    uint32_t n_next;
    uint64_t arena_begin, arena_end;
    uint32_t n_experts;
    uint32_t pages, unit_pages, first_page0, first_page1, page_rows, rows; /* as in mm_params */
    uint32_t grid; /* blocks of each product, after those of the own one */
};

static __device__ __forceinline__ void store_release(uint32_t *p, uint32_t v)
{
    asm volatile("st.release.gpu.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

/* Of a word that tells nothing about other memory, or of one of several behind one fence. A release would wait for all bulk copies of the
 * multiprocessor, also those over the link. */
static __device__ __forceinline__ void store_relaxed(uint32_t *p, uint32_t v)
{
    asm volatile("st.relaxed.gpu.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

static __device__ __forceinline__ ahead_list *ahead_list_of(const ahead_mem &m, uint32_t layer)
{
    return m.lists + layer;
}

/* Place of a tile: gate, then up. */
static __device__ __forceinline__ unsigned char *ahead_place(const ahead_mem &m, uint32_t layer, uint32_t tile)
{
    return m.area + ((size_t)(layer % AHEAD_AREAS) * m.units * m.tiles + tile) * 2 * m.half_bytes;
}

static __device__ __forceinline__ uint32_t *ahead_done(const ahead_mem &m, uint32_t layer, uint32_t tile)
{
    return m.done + (size_t)layer * m.units * m.tiles + tile;
}

/* Tiles of unit k among those that reader r took of the first unit, or of all others: `taken` of them. */
static __device__ __forceinline__ uint32_t ahead_taken_of(const ahead_mem &m, uint32_t k, uint32_t r, uint32_t taken)
{
    /* Number i of the reader is tile i * readers + r. */
    const uint32_t readers = 1u << m.readers_log2, begin = k ? (k - 1) * m.tiles : 0, end = begin + m.tiles;
    const uint32_t lo = begin > r ? (begin - r + readers - 1) >> m.readers_log2 : 0;
    const uint32_t hi = end > r ? (end - r + readers - 1) >> m.readers_log2 : 0;
    const uint32_t to = min(hi, taken);
    return to > lo ? to - lo : 0;
}

/* Which of the experts of its lane, in steps of 32, have gate or up on the host. A warp; experts: at most 1024. */
static __device__ __forceinline__ uint32_t ahead_missing(const ahead_route &a, const ahead_next &to)
{
    uint32_t mask = 0;
    for (uint32_t e = threadIdx.x % 32, i = 0; e < a.n_experts; e += 32, i++) {
        const uint64_t *addr = to.page_addr + (size_t)e * a.pages;
        bool host = false;
        for (uint32_t p = 0; p < a.unit_pages; p++) {
            const uint64_t g = __ldcg(addr + a.first_page0 + p), u = __ldcg(addr + a.first_page1 + p);
            host = host || g < a.arena_begin || g >= a.arena_end || u < a.arena_begin || u >= a.arena_end;
        }
        mask |= (uint32_t)host << i;
    }
    return mask;
}

static __device__ __forceinline__ float *ahead_logits(const ahead_route &a, uint32_t which)
{
    return a.m.logits + which * MM_MAX_EXPERTS;
}

/* A warp writes the list of the next layer from its logits, or the early unit of the layer after it (which: 0, 1); `missing` of
 * ahead_missing(). `v` has room for n_experts floats; choice(v) makes of the logits what experts are chosen by. Not `live`: it goes
 * through the code on nothing. */
template <typename C>
static __device__ __forceinline__ void ahead_write_list(const ahead_route &a, uint32_t which, bool live,
                                                        uint32_t missing, float *v, C choice)
{
    const uint32_t lane = threadIdx.x % 32, step = *a.m.step;
    const ahead_next &to = a.next[which];
    ahead_list *q = ahead_list_of(a.m, a.layer + 1 + which);
#pragma unroll 4
    for (uint32_t e = lane; e < a.n_experts; e += 32)
        v[e] = live ? __ldcg(ahead_logits(a, which) + e) : 0.0f;
    choice(v);
    const bool early = !which && live && __ldcg(&q->early) == step;
    const uint32_t room = which ? 1 : a.m.units, first = early ? __ldcg(&q->unit[0]) : UINT32_MAX;
    bool expected = !early; /* the early unit, if there is one */
    uint32_t n = early;
#pragma unroll 1
    for (uint32_t k = 0; k < to.top_k && (n < room || !expected); k++) {
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
        const uint64_t *addr = to.page_addr + (size_t)e * a.pages;
#pragma unroll 1
        for (uint32_t p = 0; p < a.unit_pages; p++) {
            const uint64_t g = __ldcg(addr + a.first_page0 + p), u = __ldcg(addr + a.first_page1 + p);
            if (g >= a.arena_begin && g < a.arena_end && u >= a.arena_begin && u < a.arena_end)
                continue;
            if ((e << 12 | p) == first) {
                expected = true;
                continue;
            }
            if (n == room)
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
    if (lane < AHEAD_READERS) {
        if (!early)
            q->head[0][lane] = 0;
        else if (!expected)
            q->taken[0][lane] = atomicOr(&q->head[0][lane], AHEAD_CLOSED);
        if (!which)
            q->head[1][lane] = 0;
    }
    if (lane == 0 && !which)
        q->n_units = n;
    __threadfence();
    __syncwarp();
    if (lane == 0 && !(which && n == 0))
        store_release(which ? &q->early : &q->ready, step);
}

/* The choice is made: from here on no reader takes another tile of the layer. Each of the first 2 * AHEAD_READERS threads closes a word;
 * what it held. */
static __device__ __forceinline__ uint32_t ahead_close(const ahead_route &a)
{
    uint32_t *head = ahead_list_of(a.m, a.layer)->head[0];
    return threadIdx.x < 2 * AHEAD_READERS ? atomicOr(head + threadIdx.x, AHEAD_CLOSED) : 0;
}

/* Notes what ahead_close() gave, and counts. All threads of the block; ids: the experts of all pairs, in shared memory; s: 2 * AHEAD_READERS
 * words of it. */
static __device__ __forceinline__ void ahead_settle(const ahead_route &a, bool live, uint32_t closed,
                                                    const uint32_t *ids, uint32_t pairs, uint32_t *s)
{
    ahead_list *q = ahead_list_of(a.m, a.layer);
    const uint32_t readers = 1u << a.m.readers_log2, n = live ? __ldcg(&q->n_units) : 1;
    __syncthreads();
    if (threadIdx.x < 2 * AHEAD_READERS) {
        /* Words count on when a reader finds nothing more. */
        const uint32_t r = threadIdx.x % AHEAD_READERS;
        const uint32_t all = (threadIdx.x < AHEAD_READERS ? min(n, 1u) : n - min(n, 1u)) * a.m.tiles;
        const uint32_t mine = r < readers ? (all - min(all, r) + readers - 1) >> a.m.readers_log2 : 0;
        uint32_t *taken = q->taken[0] + threadIdx.x;
        s[threadIdx.x] = min(closed & AHEAD_CLOSED ? __ldcg(taken) : closed, mine);
        if (live)
            *taken = s[threadIdx.x];
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
        tiles += ahead_taken_of(a.m, threadIdx.x, r, s[threadIdx.x ? AHEAD_READERS + r : r]);
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
