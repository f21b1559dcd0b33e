/* ahead.cu - the reader of a recorded step: copies tiles of likely experts to device memory while the link would idle (ahead.cuh).
 *
 * One small kernel beside the whole step, on a few multiprocessors of its own. A reader is two lanes of two warps: one asks for tiles, one
 * stores them, both by bulk copies: nothing goes through registers. To tell that a tile is there takes a fence, which waits for all
 * copies of the multiprocessor that are under way: so it is done for several tiles at a time, and does not keep others from being asked for.
 * The step never waits for the kernel to begin. It waits for the step, but not for
 * long: where kernels do not run side by side (under a sanitizer, for one) it leaves, and is not started again by who sees that it
 * was given up. */
#include "kernels/cuda/ahead.cuh"
#include "kernels/cuda/cuda_priv.h"
#include "kernels/cuda/frag.cuh"
#include "kernels/cuda/overlap.cuh"

#define AHEAD_STAGES   3
#define AHEAD_LATER    30 /* bits from here on: how many layers later the tile is wanted */
#define NO_TILE        UINT32_MAX
#define AHEAD_WARPS    (AHEAD_READERS / AHEAD_BLOCKS)
#define AHEAD_BYTES    (6ull << 20)   /* of a list: more than the link brings between two layers' experts */
#define AHEAD_MIN_SMS  32             /* on fewer, AHEAD_BLOCKS would be missed */
#define AHEAD_PATIENCE (100ull << 20) /* ns; a layer takes some milliseconds at most */

struct ahead_shape {
    ahead_mem m;
    uint32_t warps, stages; /* readers of a block, each of two warps; tiles of a reader */
    uint64_t bytes;         /* of the memory */
};

static uint64_t up256(uint64_t n)
{
    return (n + 255) & ~255ull;
}

static bool shape_of(const cuda_dev *d, uint32_t n_layers, const kern_expert_geom *g, void *memory, ahead_shape *ret)
{
    ahead_shape s = {};
    const uint32_t all = kern_expert_rows(g, 0), rows = g->page_rows[0] < all ? g->page_rows[0] : all;
    const uint64_t room = (uint64_t)d->smem_max - 1024; /* beside barriers */
    const uint64_t unit = 2ull * rows * g->row_bytes[0];
    const uint64_t half = (8 * g->row_bytes[0] + 127 + 15 + 127) & ~127ull;
    if (!d->has_bulk || d->n_sm < AHEAD_MIN_SMS || !rows || g->page_rows[0] != g->page_rows[1] ||
        g->row_bytes[0] != g->row_bytes[1] || (all + rows - 1) / rows > 4095 || 2 * half > room)
        return false;
    s.m.units = (uint32_t)((AHEAD_BYTES + unit - 1) / unit);
    s.m.units = s.m.units < AHEAD_UNITS ? s.m.units + 1 : AHEAD_UNITS; /* and the early one */
    s.m.tiles = (rows + 7) / 8;
    s.m.half_bytes = (uint32_t)half;
    s.m.row_bytes = (uint32_t)g->row_bytes[0];
    s.warps = AHEAD_WARPS * 2 * half <= room ? AHEAD_WARPS : 1;
    s.stages = (uint32_t)(room / (s.warps * 2 * half));
    s.stages = s.stages < AHEAD_STAGES ? s.stages : AHEAD_STAGES;
    while (1u << s.m.readers_log2 < s.warps * AHEAD_BLOCKS)
        s.m.readers_log2++;
    unsigned char *at = static_cast<unsigned char *>(memory);
    const uint64_t n_tiles = (uint64_t)s.m.units * s.m.tiles;
    auto take = [&](uint64_t bytes) {
        unsigned char *p = memory ? at + s.bytes : nullptr;
        s.bytes += up256(bytes);
        return p;
    };
    s.m.counts = reinterpret_cast<kern_ahead_counts *>(take(sizeof(kern_ahead_counts)));
    s.m.lists = reinterpret_cast<ahead_list *>(take((n_layers + AHEAD_LAYERS - 1ull) * sizeof(ahead_list)));
    s.m.done = reinterpret_cast<uint32_t *>(take(n_layers * n_tiles * sizeof(uint32_t)));
    s.m.logits = reinterpret_cast<uint64_t *>(take(AHEAD_LAYERS * MM_MAX_EXPERTS * sizeof(uint64_t)));
    s.m.area = take(AHEAD_AREAS * n_tiles * 2 * half);
    *ret = s;
    return true;
}

uint64_t cuda_ahead_bytes(kern_dev *kd, uint32_t n_layers, const kern_expert_geom *geom)
{
    if (geom->fmt[0] != geom->fmt[2]) /* two launches: nobody knows when the link falls idle */
        return 0;
    ahead_shape s;
    return shape_of(cuda_of(kd), n_layers, geom, nullptr, &s) ? s.bytes : 0;
}

bool cuda_ahead_mem(const cuda_dev *d, const kern_ahead *a, ahead_mem *ret)
{
    ahead_shape s;
    if (!shape_of(d, a->n_layers, &a->geom, a->memory, &s))
        return false;
    *ret = s.m;
    ret->step = a->step;
    return true;
}

#if __CUDA_ARCH__ >= 900
static __device__ bool wait_for(const uint32_t *word, uint32_t step)
{
    for (uint64_t begin = global_ns(); load_acquire(word) != step; __nanosleep(100))
        if (global_ns() - begin > AHEAD_PATIENCE)
            return false;
    return true;
}

static __device__ __forceinline__ bool bar_test(uint64_t *bar, uint32_t phase)
{
    uint32_t done;
    asm volatile(
        "{\n\t.reg .pred p;\n\tmbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n\tselp.u32 %0, 1, 0, p;\n\t}"
        : "=r"(done)
        : "r"(smem_of(bar)), "r"(phase)
        : "memory");
    return done;
}

static __device__ __forceinline__ void bulk_store(uint64_t dst, uint32_t src, uint32_t bytes)
{
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(dst), "r"(src), "r"(bytes)
                 : "memory");
}

/* A stage between the two lanes: what is in it, and where that goes. done NULL: nothing, and nothing will follow. */
struct ahead_stage {
    uint64_t place;
    uint32_t at[2], bytes[2];
    uint32_t *done;
};

/* A unit, as a reader needs it. */
struct ahead_unit {
    uint64_t src[2];
    uint32_t rows;
};

/* 8 rows of one half: where they begin, and how many whole 16-byte units cover them. */
struct ahead_half {
    uint64_t src; /* of the first unit */
    uint32_t at, bytes;
};

static __device__ __forceinline__ ahead_unit unit_of(const ahead_list *q, uint32_t k)
{
    return {{__ldcg(&q->src[k][0]), __ldcg(&q->src[k][1])}, __ldcg(&q->rows[k])};
}

/* From row r on. No bytes: there is no such row. */
static __device__ __forceinline__ ahead_half half_of(const ahead_mem &m, const ahead_unit &u, uint32_t r, uint32_t h)
{
    const uint64_t src = u.src[h] + (uint64_t)r * m.row_bytes;
    const uint32_t n = r < u.rows ? min(8u, u.rows - r) : 0, shift = (uint32_t)src & 15;
    return {src - shift, h * m.half_bytes + ((uint32_t)src & 112), n ? (shift + n * m.row_bytes + 15) & ~15u : 0};
}

/* A reader's ring: stages of 2 * half_bytes from `at` on in shared memory. Tiles are counted on and on. */
struct ahead_ring {
    uint32_t at, stages;
    uint64_t *full, *empty;
    ahead_stage *stage;
};

static __device__ __forceinline__ void ring_wait_empty(const ahead_ring &ring, uint32_t asked)
{
    if (asked >= ring.stages)
        bar_wait(&ring.empty[asked % ring.stages], asked / ring.stages - 1 & 1);
}

/* Asks for the reader's tiles of all layers from `first` on. False: given up. */
static __device__ bool ask_tiles(const ahead_mem &m, uint32_t first, uint32_t n_layers, uint32_t reader,
                                 const ahead_ring &ring, ahead_unit *unit, uint32_t *ret_asked)
{
    const uint32_t step = *m.step;
    uint32_t &asked = *ret_asked;
    for (uint32_t layer = first; layer < n_layers; layer++) {
        ahead_list *q = ahead_list_of(m, layer);
        if (!wait_for(&q->ready, step) || !wait_for(&q->go, step))
            return false;
        for (uint32_t k = 0; k < m.units; k++) /* beyond n_units they are not looked at */
            unit[k] = unit_of(q, k);
        /* The first unit, the others, early units of later layers: listed together with this list at the latest, so before `go`. */
        const uint32_t n = __ldcg(&q->n_units);
        uint32_t tiles[AHEAD_LAYERS + 1] = {min(n, 1u) * m.tiles, (n - min(n, 1u)) * m.tiles}, part = 0;
        for (uint32_t i = 1; i < AHEAD_LAYERS; i++) {
            tiles[i + 1] = layer + i < n_layers && load_acquire(&q[i].early) == step ? m.tiles : 0;
            unit[AHEAD_UNITS + i - 1] = unit_of(q + i, 0);
        }
        auto take = [&] {
            for (; part <= AHEAD_LAYERS; part++) {
                if (!tiles[part])
                    continue;
                /* Not when this layer is about to need the link. */
                if (part > 1 && load_acquire(&q->head[1][reader]) & AHEAD_CLOSED)
                    break;
                const uint32_t later = part > 1 ? part - 1 : 0;
                const uint32_t i = atomicAdd(&q[later].head[part == 1][reader], 1u);
                const uint32_t tile = (i << m.readers_log2) + reader;
                if (!(i & AHEAD_CLOSED) && tile < tiles[part])
                    return (part == 1 ? tile + m.tiles : tile) | later << AHEAD_LATER;
            }
            return NO_TILE;
        };
        for (;;) {
            ring_wait_empty(ring, asked); /* whoever has taken a tile asks for it at once */
            const uint32_t tile = take();
            if (tile == NO_TILE)
                break;
            const uint32_t later = tile >> AHEAD_LATER, in_list = tile & ~(~0u << AHEAD_LATER), of = layer + later;
            const ahead_unit &u = unit[later ? AHEAD_UNITS + later - 1 : in_list / m.tiles];
            const ahead_half a[2] = {half_of(m, u, in_list % m.tiles * 8, 0), half_of(m, u, in_list % m.tiles * 8, 1)};
            if (!a[0].bytes) /* behind a short last page */
                continue;
            const uint32_t st = asked++ % ring.stages, to = ring.at + st * 2 * m.half_bytes;
            ring.stage[st] = {(uint64_t)(uintptr_t)ahead_place(m, of, in_list),
                              {a[0].at, a[1].at},
                              {a[0].bytes, a[1].bytes},
                              ahead_done(m, of, in_list)};
            bar_expect(&ring.full[st], a[0].bytes + a[1].bytes);
            bulk_copy(to + a[0].at, a[0].src, a[0].bytes, &ring.full[st]);
            bulk_copy(to + a[1].at, a[1].src, a[1].bytes, &ring.full[st]);
        }
    }
    return true;
}

/* Stores what has come, until a stage says that nothing follows. */
static __device__ void store_tiles(const ahead_mem &m, const ahead_ring &ring)
{
    const uint32_t step = *m.step;
    uint32_t *done[AHEAD_STAGES];
    uint64_t place[AHEAD_STAGES];
    bool more = true;
    for (uint32_t k = 0; more;) {
        uint32_t n = 0;
        /* A tile of AHEAD_AREAS layers later goes to the same place: not before this one's bytes are there. */
        auto again = [&](uint64_t to) {
            bool found = false;
            for (uint32_t i = 0; i < n; i++)
                found = found || place[i] == to;
            return found;
        };
        do {
            const uint32_t st = k % ring.stages, from = ring.at + st * 2 * m.half_bytes;
            bar_wait(&ring.full[st], k / ring.stages & 1);
            const ahead_stage s = ring.stage[st];
            more = s.done;
            if (!more)
                break;
            /* Who read this place last did so by bulk copies too, but what is known of it came by words. */
            asm volatile("fence.proxy.async.global;" ::: "memory");
            bulk_store(s.place + s.at[0], from + s.at[0], s.bytes[0]);
            bulk_store(s.place + s.at[1], from + s.at[1], s.bytes[1]);
            asm volatile("cp.async.bulk.commit_group;\n\tcp.async.bulk.wait_group.read 0;" ::: "memory");
            bar_arrive(&ring.empty[st]);
            place[n] = s.place;
            done[n++] = s.done;
            k++;
        } while (n < AHEAD_STAGES && bar_test(&ring.full[k % ring.stages], k / ring.stages & 1) &&
                 !again(ring.stage[k % ring.stages].place));
        asm volatile("cp.async.bulk.wait_group 0;\n\tfence.proxy.async;" ::: "memory");
        __threadfence();
        for (uint32_t i = 0; i < n; i++)
            store_relaxed(done[i], step);
    }
}
#endif

__global__ void __launch_bounds__(AHEAD_WARPS * 64, 1)
    ahead_kernel(const __grid_constant__ ahead_mem m, uint32_t first, uint32_t n_layers, uint32_t stages)
{
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(128) unsigned char smem[];
    __shared__ uint64_t full[AHEAD_WARPS][AHEAD_STAGES], empty[AHEAD_WARPS][AHEAD_STAGES];
    __shared__ ahead_stage stage[AHEAD_WARPS][AHEAD_STAGES];
    __shared__ ahead_unit
        unit[AHEAD_WARPS][AHEAD_UNITS + AHEAD_LAYERS - 1]; /* the last ones: later layers' early ones */
    const uint32_t readers = blockDim.x / 64, warp = threadIdx.x / 32, r = warp % readers;
    if (threadIdx.x == 0)
        for (uint32_t i = 0; i < readers * AHEAD_STAGES; i++) {
            bar_init(full[0] + i, 1);
            bar_init(empty[0] + i, 1);
        }
    bar_init_done();
    __syncthreads();
    if (threadIdx.x % 32)
        return;
    const ahead_ring ring = {smem_of(smem) + r * stages * 2 * m.half_bytes, stages, full[r], empty[r], stage[r]};
    if (warp >= readers) {
        store_tiles(m, ring);
        return;
    }
    uint32_t asked = 0;
    const uint32_t reader = blockIdx.x * readers + r;
    if (!ask_tiles(m, first, n_layers, reader, ring, unit[r], &asked) && reader == 0)
        atomicAdd(reinterpret_cast<unsigned long long *>(&m.counts->given_up), 1ull);
    ring_wait_empty(ring, asked);
    stage[r][asked % stages].done = nullptr;
    bar_arrive(&full[r][asked % stages]);
#endif
}

kern_status cuda_ahead_begin(kern_dev *kd, const kern_ahead *a)
{
    cuda_dev *d = cuda_of(kd);
    ahead_shape s;
    if (!d->recording || !shape_of(d, a->n_layers, &a->geom, a->memory, &s))
        return cuda_unsupported(d, "reading ahead");
    s.m.step = a->step;
    const uint32_t smem = s.warps * s.stages * 2 * s.m.half_bytes;
    cudaError_t e = cudaFuncSetAttribute(ahead_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem);
    if (e == cudaSuccess)
        e = cudaEventRecord(d->ahead_begun, d->stream);
    if (e == cudaSuccess)
        e = cudaStreamWaitEvent(d->ahead, d->ahead_begun, 0);
    if (e != cudaSuccess)
        return cuda_fail(d, e, "reading ahead");
    ahead_kernel<<<AHEAD_BLOCKS, s.warps * 64, smem, d->ahead>>>(s.m, a->first, a->n_layers, s.stages);
    d->reads_ahead = true;
    d->held_sms = AHEAD_BLOCKS;
    e = cudaEventRecord(d->ahead_done, d->ahead);
    return e == cudaSuccess ? cuda_launched(d, "reading ahead") : cuda_fail(d, e, "reading ahead");
}

void cuda_ahead_end(kern_dev *kd)
{
    cuda_of(kd)->held_sms = 0;
}
