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
 * The first unit of a list may be there two or three layers before: the *early* one, which a reader goes on to when nothing is left of the
 * lists before. So this unit has words `head` of its own, which the router of the layer before closes where it does not expect the expert.
 *
 * Nobody but the experts' kernel waits for a reader, and only for a copy that has begun. Nothing is cleared between steps: a list, the link and a
 * tile count as ready when their words hold the number of the step. Areas are used by every fourth layer: a list is begun when the
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
#define AHEAD_LAYERS  KERN_AHEAD_LAYERS
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
    ahead_list *lists; /* [n_layers + AHEAD_LAYERS - 1] */
    uint32_t *done;    /* [n_layers][units * tiles] step number: the tile is there */
    unsigned char *area;
    uint64_t
        *logits; /* [AHEAD_LAYERS][MM_MAX_EXPERTS] of the next layers' routers, each below ahead_tag() of its launch */
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

static __device__ __forceinline__ uint64_t *ahead_logits(const ahead_route &a, uint32_t which)
{
    return a.m.logits + which * MM_MAX_EXPERTS;
}

/* Another one than that of the launch before, which used the same words. */
static __device__ __forceinline__ uint32_t ahead_tag(const ahead_route &a)
{
    return *a.m.step * 4096 + a.layer;
}

/* A warp writes the list of the next layer (which: 0), or the early unit of one after it, unless it is there: from `ids`, what its router
 * would choose, likeliest first; `missing` of ahead_missing(). Not `live`: it goes through the code on nothing. */
static __device__ __forceinline__ void ahead_write_list(const ahead_route &a, uint32_t which, bool live,
                                                        uint32_t missing, const uint32_t *ids)
{
    const uint32_t lane = threadIdx.x % 32, step = *a.m.step;
    const ahead_next &to = a.next[which];
    ahead_list *q = ahead_list_of(a.m, a.layer + 1 + which);
    const bool early = live && __ldcg(&q->early) == step;
    if (which && early)
        return;
    const uint32_t room = which ? 1 : a.m.units, first = early ? __ldcg(&q->unit[0]) : UINT32_MAX;
    bool expected = !early; /* the early unit, if there is one */
    uint32_t n = early;
#pragma unroll 1
    for (uint32_t k0 = 0; k0 < to.top_k; k0 += 32) {
        const uint32_t id = k0 + lane < to.top_k ? ids[k0 + lane] : 0, bits = __shfl_sync(~0u, missing, id % 32);
        uint32_t host = __ballot_sync(~0u, k0 + lane < to.top_k && bits >> id / 32 & 1);
#pragma unroll 1
        for (; host && (n < room || !expected); host &= host - 1) {
            const uint32_t e = __shfl_sync(~0u, id, __ffs(host) - 1);
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

/* The list as it is when the choice is made, a lane of the first warp its words. */
struct ahead_end {
    uint32_t closed, n, unit;
};

/* From here on no reader takes another tile of the layer. All threads; ahead_settle() follows. */
static __device__ __forceinline__ ahead_end ahead_close(const ahead_route &a, bool live)
{
    ahead_list *q = ahead_list_of(a.m, a.layer);
    ahead_end end = {0, 1, 0};
    if (live && threadIdx.x < 32) {
        if (threadIdx.x < 2 * AHEAD_READERS)
            end.closed = atomicOr(q->head[0] + threadIdx.x, AHEAD_CLOSED);
        end.n = __ldcg(&q->n_units);
        end.unit = __ldcg(&q->unit[threadIdx.x % AHEAD_UNITS]);
    }
    return end;
}

/* Notes what it was, and counts; the first warp. ids: the experts of all pairs. */
static __device__ __forceinline__ void ahead_settle(const ahead_route &a, bool live, const ahead_end &end,
                                                    const uint32_t *ids, uint32_t pairs)
{
    ahead_list *q = ahead_list_of(a.m, a.layer);
    const uint32_t lane = threadIdx.x % 32, readers = 1u << a.m.readers_log2, n = end.n;
    /* Words count on when a reader finds nothing more. */
    const uint32_t r = lane % AHEAD_READERS;
    const uint32_t all = (lane < AHEAD_READERS ? min(n, 1u) : n - min(n, 1u)) * a.m.tiles;
    const uint32_t mine = r < readers ? (all - min(all, r) + readers - 1) >> a.m.readers_log2 : 0;
    uint32_t taken = 0;
    if (lane < 2 * AHEAD_READERS) {
        taken = min(end.closed & AHEAD_CLOSED ? __ldcg(q->taken[0] + lane) : end.closed, mine);
        if (live)
            q->taken[0][lane] = taken;
    }
    uint32_t tiles = 0;
#pragma unroll 1
    for (uint32_t i = 0; i < readers; i++) {
        const uint32_t of_first = __shfl_sync(~0u, taken, i), of_others = __shfl_sync(~0u, taken, AHEAD_READERS + i);
        tiles += ahead_taken_of(a.m, lane, i, lane ? of_others : of_first);
    }
    const uint32_t e = end.unit >> 12, before = __shfl_up_sync(~0u, e, 1);
    bool right = false;
#pragma unroll 1
    for (uint32_t i = 0; i < pairs; i++)
        right = right || ids[i] == e;
    if (!live || lane >= n)
        return;
    kern_ahead_counts *c = a.m.counts;
    atomicAdd(reinterpret_cast<unsigned long long *>(right ? &c->useful_bytes : &c->wasted_bytes),
              16ull * tiles * a.m.row_bytes);
    if (lane == 0 || before != e) {
        atomicAdd(reinterpret_cast<unsigned long long *>(&c->predictions), 1ull);
        atomicAdd(reinterpret_cast<unsigned long long *>(&c->right), (unsigned long long)right);
    }
}

#endif
