/* tile_wgmma.cuh - the work of tile.cuh by the matrix instructions of compute capability 9.0.
 *
 * Two warpgroups compute, 64 weight rows and all tokens of the tile each: while one adds up, the matrix units work for the other. Of the
 * third warpgroup two warps fetch rows of weights, a *chunk* of some steps of K at a time, one fetches panels of activations, a step at a
 * time, and one pages of the host. They do so by bulk copies into two rings, which go on from item to item. */
#ifndef KERNELS_CUDA_TILE_WGMMA_CUH
#define KERNELS_CUDA_TILE_WGMMA_CUH

#include "kernels/cuda/wgmma.cuh"

#define TILE_CHUNKS    2 /* stages of the ring of rows */
#define TILE_ROW_WARPS 2 /* that fetch them: a warp's bulk copies are asked for one after another */

/* Lanes of a warp that say that it has done with a stage: one, behind a barrier of all, which racecheck does not follow (STREAM_TELLERS). */
#ifdef XD_RACECHECK
#define TILE_TELLERS 32
#else
#define TILE_TELLERS 1
#endif

/* A row of a chunk: bytes, as stored, at any place of the first 16 of PITCH, which keeps lanes that read 8 rows apart. */
template <int FMT> struct tile_chunk {
    static constexpr uint32_t STEPS = FMT == FMT_F32 ? 1 : FMT == FMT_F16 || FMT == FMT_BF16 ? 2 : 4;
    static constexpr uint32_t BYTES = fmt_block<FMT>::GRAIN == 1
                                          ? STEPS * 2 * fmt_block<FMT>::BYTES
                                          : STEPS * 2 / fmt_block<FMT>::GRAIN * fmt_block<FMT>::SUPER;
    static constexpr uint32_t PITCH = FMT == FMT_F16 || FMT == FMT_BF16 ? 320 : (BYTES + 15 + 15) / 16 * 16;
    static_assert(STEPS * 2 % fmt_block<FMT>::GRAIN == 0 && BYTES + 15 <= PITCH && PITCH % 16 == 0, "");
};

/* Shared memory of the two rings. */
template <int FMT> static constexpr __host__ __device__ uint32_t tile_wgmma_bytes(uint32_t tokens, uint32_t stages)
{
    return stages * (tokens / PANEL_TOKENS * PANEL_BYTES) + TILE_CHUNKS * TILE_ROWS * tile_chunk<FMT>::PITCH;
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

struct tile_bars {
    uint64_t panels_full[TILE_STAGES], panels_empty[TILE_STAGES], rows_full[TILE_CHUNKS], rows_empty[TILE_CHUNKS];
};

static __device__ __forceinline__ tile_bars &tile_barriers()
{
    __shared__ tile_bars b;
    return b;
}

/* Before the barrier of the whole block that comes before tile_work(). */
static __device__ __forceinline__ void tile_begin(const mm_params &p)
{
    tile_bars &b = tile_barriers();
    if (threadIdx.x)
        return;
    for (uint32_t i = 0; i < p.stages; i++) {
        bar_init(&b.panels_full[i], 1);
        bar_init(&b.panels_empty[i], TILE_THREADS / 32 * TILE_TELLERS);
    }
    for (uint32_t i = 0; i < TILE_CHUNKS; i++) {
        bar_init(&b.rows_full[i], TILE_ROW_WARPS * 32);
        bar_init(&b.rows_empty[i], TILE_THREADS / 32 * TILE_TELLERS);
    }
    bar_init_done();
}

/* A place in a ring of n stages. */
struct tile_at {
    uint32_t slot, phase;
};

static __device__ __forceinline__ void tile_advance(tile_at &at, uint32_t n)
{
    if (++at.slot == n) {
        at.slot = 0;
        at.phase ^= 1;
    }
}

struct tile_rings {
    unsigned char *panels, *rows;
    uint32_t panel_bytes; /* of a stage */
    tile_at panels_at, rows_at;
};

template <int FMT> static __device__ __forceinline__ unsigned char *tile_chunk_at(const tile_rings &r)
{
    return r.rows + r.rows_at.slot * (TILE_ROWS * tile_chunk<FMT>::PITCH);
}

/* What was written by stores is there for bulk copies. */
static __device__ __forceinline__ void tile_see_stores()
{
    asm volatile("fence.proxy.async.global;" ::: "memory");
}

/* --- fetching ------------------------------------------------------------------------------------------------------------ */

/* Warp `warp` of TILE_ROW_WARPS. */
template <int FMT>
static __device__ __forceinline__ void tile_fetch_rows(const mm_params &p, const tile_item &it, tile_rings &ring,
                                                       uint32_t warp)
{
    constexpr uint32_t AT_ONCE = TILE_ROW_WARPS * 32, EACH = TILE_ROWS / AT_ONCE, BYTES = tile_chunk<FMT>::BYTES;
    tile_bars &bars = tile_barriers();
    const uint32_t first = warp * 32 + threadIdx.x % 32;
    if (threadIdx.x % 32 == 0)
        tile_wait_pages(p, it);
    __syncwarp();
    if (it.host != UINT32_MAX)
        tile_see_stores();
    uint64_t addr[EACH];
#pragma unroll
    for (uint32_t j = 0; j < EACH; j++)
        addr[j] = tile_row_addr(p, it, first + j * AT_ONCE);
#pragma unroll 1
    for (uint32_t k = 0, off = 0; k < p.cols; k += tile_chunk<FMT>::STEPS * PANEL_COLS, off += BYTES) {
        const uint32_t len = min(BYTES, (uint32_t)p.row_bytes - off);
        uint64_t *full = &bars.rows_full[ring.rows_at.slot];
        const uint32_t to = smem_of(tile_chunk_at<FMT>(ring)) + first * tile_chunk<FMT>::PITCH;
        uint32_t bytes[EACH], all = 0;
#pragma unroll
        for (uint32_t j = 0; j < EACH; j++) {
            bytes[j] = (((uint32_t)addr[j] & 15) + len + 15) & ~15u;
            all += bytes[j];
        }
        bar_wait(&bars.rows_empty[ring.rows_at.slot], ring.rows_at.phase ^ 1);
        bar_expect(full, all);
#pragma unroll
        for (uint32_t j = 0; j < EACH; j++) {
            bulk_copy(to + j * AT_ONCE * tile_chunk<FMT>::PITCH, addr[j] & ~15ull, bytes[j], full);
            addr[j] += BYTES;
        }
        tile_advance(ring.rows_at, TILE_CHUNKS);
    }
}

/* A thread. */
static __device__ __forceinline__ void tile_fetch_panels(const mm_params &p, const tile_item &it, tile_rings &ring)
{
    tile_bars &bars = tile_barriers();
    const uint32_t steps = (p.cols + PANEL_COLS - 1) / PANEL_COLS;
    const uint32_t bytes = (it.n + PANEL_TOKENS - 1) / PANEL_TOKENS * PANEL_BYTES;
    uint64_t src = (uint64_t)(uintptr_t)p.panels + (uint64_t)it.panel * PANEL_BYTES;
#pragma unroll 1
    for (uint32_t step = 0; step < steps; step++, src += p.panel_step) {
        const tile_at at = ring.panels_at;
        bar_wait(&bars.panels_empty[at.slot], at.phase ^ 1);
        bar_expect(&bars.panels_full[at.slot], bytes);
        bulk_copy(smem_of(ring.panels + at.slot * ring.panel_bytes), src, bytes, &bars.panels_full[at.slot]);
        tile_advance(ring.panels_at, p.stages);
    }
}

/* --- computing ----------------------------------------------------------------------------------------------------------- */

/* Which rows a lane has, and where they begin in the chunk. */
struct tile_lane {
    uint32_t addr[2]; /* of the rows in memory, the low bits that matter */
    uint32_t at, t;
};

/* This warp's 16 rows of block kb of a step, from the chunk that `ring` is at. */
template <int FMT>
static __device__ __forceinline__ void tile_load_a(a_frag<FMT> &a, const mm_params &p, const tile_rings &ring,
                                                   const tile_lane &l, uint32_t step, uint32_t kb)
{
    constexpr uint32_t STEPS = tile_chunk<FMT>::STEPS, PITCH = tile_chunk<FMT>::PITCH;
    const uint32_t off = step / STEPS * tile_chunk<FMT>::BYTES, block = step % STEPS * 2 + kb;
    const unsigned char *row = tile_chunk_at<FMT>(ring) + l.at;
    const uint32_t k = step * PANEL_COLS + kb * 32 + 8 * l.t;
    load_a_block<FMT>(row + ((l.addr[0] + off) & 15), block, l.t, a.r0, &a.d0, &a.m0);
    load_a_block<FMT>(row + 8 * PITCH + ((l.addr[1] + off) & 15), block, l.t, a.r1, &a.d1, &a.m1);
    if (FMT != FMT_Q8_0 && k + 4 >= p.cols)
        zero_a<FMT>(a, k < p.cols ? 2 : 0);
}

/* Registers for the sums of x, of which formats without a minimum have none. */
template <int FMT, int N> struct tile_sums {
    float x[fmt_block<FMT>::MIN ? N / 2 : 1];
};

/* block_product() for 64 rows and N tokens; tile_add() finishes it. */
template <int FMT, int N>
static __device__ __forceinline__ void tile_multiply(float (&c)[N / 2], tile_sums<FMT, N> &sums, const a_frag<FMT> &a,
                                                     uint32_t hi)
{
    const uint32_t lo = hi + PANEL_LO;
    const uint32_t m0 = min_operand<FMT>(a.m0), m1 = min_operand<FMT>(a.m1);
    wgmma_begin();
#pragma unroll
    for (int s = 0; s < 2; s++)
#pragma unroll
        for (int q = a_frag<FMT>::PARTS - 1; q >= 0; q--) {
            const int i = 2 * s;
            wgmma<N>::run(c, a.r0[q][i], a.r1[q][i], a.r0[q][i + 1], a.r1[q][i + 1], wgmma_tokens(lo + s * 32),
                          s || q < a_frag<FMT>::PARTS - 1);
            wgmma<N>::run(c, a.r0[q][i], a.r1[q][i], a.r0[q][i + 1], a.r1[q][i + 1], wgmma_tokens(hi + s * 32), 1);
        }
    if constexpr (fmt_block<FMT>::MIN) { /* in braces: see block_products() */
#pragma unroll
        for (int s = 0; s < 2; s++) {
            wgmma<N>::run(sums.x, m0, m1, m0, m1, wgmma_tokens(lo + s * 32), s);
            wgmma<N>::run(sums.x, m0, m1, m0, m1, wgmma_tokens(hi + s * 32), 1);
        }
    }
    wgmma_commit();
}

template <int FMT, int N>
static __device__ __forceinline__ void tile_add(float (&acc)[N / 2], const float (&c)[N / 2],
                                                const tile_sums<FMT, N> &sums, const a_frag<FMT> &a)
{
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        if constexpr (fmt_block<FMT>::FINISHED)
            acc[i] += block_finish<FMT>(c[i], sums.x[fmt_block<FMT>::MIN ? i : 0], i % 4 < 2 ? a.d0 : a.d1,
                                        i % 4 < 2 ? a.m0.by : a.m1.by);
        else if (FMT == FMT_Q8_0)
            acc[i] = fmaf(i % 4 < 2 ? a.d0 : a.d1, c[i], acc[i]);
        else
            acc[i] += c[i];
}

template <int FMT, int N>
static __device__ __forceinline__ void tile_wait_products(float (&c)[N / 2], tile_sums<FMT, N> &sums)
{
    wgmma_wait(c);
    if constexpr (fmt_block<FMT>::MIN)
        wgmma_wait(sums.x);
}

static __device__ __forceinline__ void tile_leave(uint64_t *bar)
{
    __syncwarp();
    if (threadIdx.x % 32 < TILE_TELLERS)
        bar_arrive(bar);
}

/* Waits for the panels of a step: where they lie. */
static __device__ __forceinline__ uint32_t tile_next_panels(tile_bars &bars, const tile_rings &ring)
{
    bar_wait(&bars.panels_full[ring.panels_at.slot], ring.panels_at.phase);
    return smem_of(ring.panels + ring.panels_at.slot * ring.panel_bytes);
}

/* The chunk has been read; waits for the next one, if there is `more`. */
static __device__ __forceinline__ void tile_next_chunk(tile_bars &bars, tile_rings &ring, bool more)
{
    tile_leave(&bars.rows_empty[ring.rows_at.slot]);
    tile_advance(ring.rows_at, TILE_CHUNKS);
    if (more)
        bar_wait(&bars.rows_full[ring.rows_at.slot], ring.rows_at.phase);
}

/* The weights of a block are taken apart while the matrix units work on the one before it. (A second block under way at a time, in sums of
 * its own, made it no faster.) */
template <int FMT, int N>
static __device__ __forceinline__ void tile_run_n(const mm_params &p, const tile_item &it, tile_rings &ring)
{
    constexpr uint32_t STEPS = tile_chunk<FMT>::STEPS;
    tile_bars &bars = tile_barriers();
    const uint32_t warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const uint32_t blocks = (p.cols + 31) / 32;
    const tile_lane lane = {
        {(uint32_t)tile_row_addr(p, it, warp * 16 + g), (uint32_t)tile_row_addr(p, it, warp * 16 + 8 + g)},
        (warp * 16 + g) * tile_chunk<FMT>::PITCH,
        t};
    float acc[N / 2], c[N / 2];
    tile_sums<FMT, N> sums = {};
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        acc[i] = c[i] = 0;

    a_frag<FMT> a0, a1;
    bar_wait(&bars.rows_full[ring.rows_at.slot], ring.rows_at.phase);
    tile_load_a<FMT>(a0, p, ring, lane, 0, 0);
#pragma unroll 1
    for (uint32_t step = 0; step < blocks / 2; step++) {
        const uint32_t stage = tile_next_panels(bars, ring);
        tile_multiply<FMT, N>(c, sums, a0, stage);
        tile_load_a<FMT>(a1, p, ring, lane, step, 1);
        tile_wait_products<FMT, N>(c, sums);
        tile_add<FMT, N>(acc, c, sums, a0);
        tile_multiply<FMT, N>(c, sums, a1, stage + 64);
        if ((step + 1) % STEPS == 0)
            tile_next_chunk(bars, ring, step * 2 + 2 < blocks);
        if (step * 2 + 2 < blocks)
            tile_load_a<FMT>(a0, p, ring, lane, step + 1, 0);
        tile_wait_products<FMT, N>(c, sums);
        tile_leave(&bars.panels_empty[ring.panels_at.slot]);
        tile_advance(ring.panels_at, p.stages);
        tile_add<FMT, N>(acc, c, sums, a1);
    }
    if (blocks % 2) {
        tile_multiply<FMT, N>(c, sums, a0, tile_next_panels(bars, ring));
        tile_wait_products<FMT, N>(c, sums);
        tile_leave(&bars.panels_empty[ring.panels_at.slot]);
        tile_advance(ring.panels_at, p.stages);
        tile_add<FMT, N>(acc, c, sums, a0);
    }
    if (((blocks + 1) / 2) % STEPS || blocks % 2)
        tile_next_chunk(bars, ring, false);

#pragma unroll
    for (int j = 0; j < N / 8; j++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t k = j * 8 + 2 * t + i;
            if (k >= it.n)
                continue;
            if (p.mode == MM_GATE_UP) {
                tile_store_pair(p, it, k, panel_row(warp, g), acc[4 * j + i], acc[4 * j + 2 + i]);
                continue;
            }
            float *y = tile_y(p, it, k);
            tile_store_one(p, it, y, warp * 16 + g, acc[4 * j + i]);
            tile_store_one(p, it, y, warp * 16 + 8 + g, acc[4 * j + 2 + i]);
        }
}

template <int FMT>
static __device__ __forceinline__ void tile_run(const mm_params &p, const tile_item &it, tile_rings &ring)
{
    if constexpr (tile_tokens<FMT>() == 64) {
        tile_run_n<FMT, 64>(p, it, ring);
    } else if constexpr (FMT != FMT_Q8_0 && FMT != FMT_BF16) { /* rare: two widths are code enough */
        if (it.n <= 64)
            tile_run_n<FMT, 64>(p, it, ring);
        else
            tile_run_n<FMT, 128>(p, it, ring);
    } else {
        if (it.n <= 32)
            tile_run_n<FMT, 32>(p, it, ring);
        else if (it.n <= 64)
            tile_run_n<FMT, 64>(p, it, ring);
        else if (it.n <= 80)
            tile_run_n<FMT, 80>(p, it, ring);
        else if (it.n <= 96)
            tile_run_n<FMT, 96>(p, it, ring);
        else if (it.n <= 112)
            tile_run_n<FMT, 112>(p, it, ring);
        else
            tile_run_n<FMT, 128>(p, it, ring);
    }
}

/* All threads of the block. Some lend their registers to those that compute. */
template <int FMT>
static __device__ __forceinline__ void tile_work(const mm_params &p, unsigned char *smem, const uint32_t *units,
                                                 uint32_t n_host, uint32_t n_vram)
{
    tile_rings ring = {};
    ring.panel_bytes = p.tile_tokens / PANEL_TOKENS * PANEL_BYTES;
    ring.panels = smem;
    ring.rows = smem + p.stages * ring.panel_bytes;
    if (threadIdx.x < TILE_THREADS) {
        wgmma_registers<208, true>();
        tile_each(p, units, n_host, n_vram, [&](const tile_item &it) TILE_INLINE {
            if (it.n)
                tile_run<FMT>(p, it, ring);
            tile_item_done(p, it);
        });
        return;
    }
    wgmma_registers<88, false>();
    const uint32_t warp = (threadIdx.x - TILE_THREADS) / 32;
    if (warp < TILE_ROW_WARPS) {
        tile_each(p, units, n_host, n_vram, [&](const tile_item &it) TILE_INLINE {
            if (it.n)
                tile_fetch_rows<FMT>(p, it, ring, warp);
        });
    } else if (warp == TILE_ROW_WARPS && threadIdx.x % 32 == 0) {
        tile_see_stores();
        tile_each(p, units, n_host, n_vram, [&](const tile_item &it) TILE_INLINE {
            if (it.n)
                tile_fetch_panels(p, it, ring);
        });
    } else if (warp == TILE_ROW_WARPS + 1) {
        fetch_all(p, units, n_host);
    }
}

#endif
#endif
