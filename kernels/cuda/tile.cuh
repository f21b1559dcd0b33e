/* tile.cuh - matrix products for many tokens: 128 weight rows by up to 128 tokens a block, the same additions as stream.cuh.
 *
 * Eight warps compute, four along the rows and two along the tokens, from a ring of stages of 64 positions of K in shared memory.
 * Weights are staged as stored and turned into bf16 when a warp picks them up; activations are split into bf16 hi and lo in place, by
 * the thread that fetched them, so that it happens once a block and needs no barrier of its own.
 * In the gate and up phase a block takes 64 rows of each, dealt in eights, so that SwiGLU happens in registers.
 *
 * MoE with pages on the host: a ninth warp of every block fetches, all of them together each page once, in the order in which the
 * blocks will want them: into the page's fill slot where it has one, else into a ring of slots in the scratch. A page is
 * announced by a counter in device memory (`ready`), and a ring slot is refilled when the unit that used it has been computed
 * by all blocks (`done`). Nobody waits for anything later in the order than what he holds, so it cannot lock up while all
 * blocks of the grid are on the chip, one on each multiprocessor. */
#ifndef KERNELS_CUDA_TILE_CUH
#define KERNELS_CUDA_TILE_CUH

#include "kernels/cuda/frag.cuh"
#include "kernels/cuda/mm.cuh"
#include "kernels/cuda/overlap.cuh"
#include "kernels/cuda/wgmma.cuh"

#define TILE_ROWS    128
#define TILE_THREADS 256 /* computing */
#define TILE_BLOCK   384 /* and a warpgroup of which one warp fetches: registers are dealt by warpgroup */
#define TILE_B_PITCH 272 /* 64 positions of hi and lo, and 16 bytes that move the next row to other banks */
#define FETCH_PIECE  16384

template <int FMT> struct tile_a { /* a row of a stage: 64 weights, at any alignment */
    static constexpr uint32_t BYTES = 2 * fmt_block<FMT>::BYTES;
    /* Of a super-block come the pieces that the 64 weights need: see tile_piece_of(). */
    static constexpr uint32_t UNITS = FMT == FMT_Q4_K                      ? 3
                                      : FMT == FMT_Q5_K                    ? 5
                                      : FMT == FMT_Q6_K                    ? 10
                                      : FMT == FMT_IQ4_XS                  ? 5
                                      : FMT == FMT_FP8                     ? 6
                                      : FMT == FMT_Q2_K || FMT == FMT_Q3_K ? (fmt_block<FMT>::SUPER + 14 + 15) / 16
                                                                           : (BYTES + 14 + 15) / 16;
    static constexpr uint32_t PITCH = FMT == FMT_Q4_K                     ? 48
                                      : FMT == FMT_Q6_K                   ? 176
                                      : FMT == FMT_Q2_K || FMT == FMT_FP8 ? 112
                                      : FMT == FMT_Q3_K                   ? 144
                                      : fmt_block<FMT>::FINISHED          ? 80
                                      : FMT == FMT_Q8_0                   ? 96
                                      : FMT == FMT_F32                    ? 272
                                                       : 192; /* quads of neighbouring rows do not collide */
    static_assert(UNITS * 16 <= PITCH, "room for a row");
    static constexpr uint32_t MAX_TOKENS = fmt_block<FMT>::MIN ? 64 : 128; /* sums of x take registers too */
};

/* Unit u of 16 bytes of a row's stage: which piece of the row's bytes it is of, and which unit of that. */
struct tile_piece {
    uint32_t off, len, unit;
};

template <int FMT> static __device__ __forceinline__ tile_piece tile_piece_of(uint32_t step, uint32_t u)
{
    constexpr uint32_t STEPS = fmt_block<FMT>::GRAIN / 2; /* of a super-block */
    const uint32_t block = step / STEPS * fmt_block<FMT>::SUPER, quarter = step % STEPS;
    if (FMT == FMT_Q6_K) {
        if (u < 5)
            return {block + quarter / 2 * 64, 64, u};
        return u < 8 ? tile_piece{block + 128 + quarter / 2 * 32, 32, u - 5} : tile_piece{block + 192, 18, u - 8};
    }
    if (FMT == FMT_Q2_K || FMT == FMT_Q3_K) /* the pieces are no fewer units than all of it */
        return {block, fmt_block<FMT>::SUPER, u};
    if (FMT == FMT_IQ4_XS)
        return u < 2 ? tile_piece{block, 8, u} : tile_piece{block + 8 + quarter * 32, 32, u - 2};
    if (FMT == FMT_FP8)
        return u < 1 ? tile_piece{block, 4, u} : tile_piece{block + 4 + quarter * 64, 64, u - 1};
    if (u == 0)
        return {block, 16, 0};
    if (FMT == FMT_Q5_K && u < 3)
        return {block + 16, 32, u - 1};
    return {block + (FMT == FMT_Q4_K ? 16 : 48) + quarter * 32, 32, u - (FMT == FMT_Q4_K ? 1 : 3)};
}

/* Those pieces of a row that begins at a place `low` of a 16-byte unit, in its stage. */
template <int FMT>
static __device__ __forceinline__ k_parts tile_parts(const unsigned char *row, uint32_t low, uint32_t step)
{
    const uint32_t at = low + step / (fmt_block<FMT>::GRAIN / 2) * fmt_block<FMT>::SUPER;
    if (FMT == FMT_Q2_K || FMT == FMT_Q3_K)
        return k_pieces<FMT>(row + (at & 15), step % 4 * 2);
    if (FMT == FMT_IQ4_XS)
        return {row + (at & 15), row, row + 32 + ((at + 8) & 15)};
    if (FMT == FMT_FP8)
        return {row + (at & 15), row, row + 16 + ((at + 4) & 15)};
    if (FMT == FMT_Q6_K) { /* pieces are whole units apart */
        return {row + 128 + (at & 15), row + 80 + (at & 15), row + (at & 15)};
    }
    return {row, row + 16, row + (FMT == FMT_Q4_K ? 16 : 48)};
}

/* Lane t's share of block kb of a row's stage. */
template <int FMT>
static __device__ __forceinline__ void tile_load_row(const unsigned char *row, uint32_t low, uint32_t step, uint32_t kb,
                                                     uint32_t t, uint32_t (&r)[a_frag<FMT>::PARTS][4], float *d,
                                                     fmt_min *m)
{
    constexpr uint32_t GRAIN = fmt_block<FMT>::GRAIN;
    if constexpr (GRAIN > 1)
        load_k_lane<FMT>(tile_parts<FMT>(row, low, step), step % (GRAIN / 2) * 2 + kb, t, r, d, m);
    else
        load_a_block<FMT>(row + kb * fmt_block<FMT>::BYTES + ((low + step * tile_a<FMT>::BYTES) & 15), 0, t, r, d, m);
}

struct tile_item {
    uint32_t row0, n_rows; /* output rows; gate and up: of each */
    uint32_t first, n;     /* tokens */
    uint32_t expert;
};

static __device__ __forceinline__ void tile_barrier()
{
    asm volatile("bar.sync 1, 256;" ::: "memory");
}

static __device__ __forceinline__ void wait_until(const uint32_t *p, uint32_t want)
{
    while (load_acquire(p) < want)
        __nanosleep(200);
}

static __device__ __forceinline__ void tile_wait(uint32_t stages)
{
    if (stages == 2)
        cp_wait<0>();
    else if (stages == 3)
        cp_wait<1>();
    else
        cp_wait<2>();
}

/* A stage: rows of weights as stored, then tokens. */
template <int FMT> static constexpr __host__ __device__ uint32_t tile_stage_bytes(uint32_t tokens)
{
    return (TILE_ROWS * tile_a<FMT>::PITCH + tokens * TILE_B_PITCH + 1023) & ~1023u;
}

/* Where positions 4q .. 4q + 3 of token r lie before they are split. */
static __device__ __forceinline__ unsigned char *tile_token_at(const mm_params &p, unsigned char *b, uint32_t r,
                                                               uint32_t q)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    return b + q / 8 * p.tile_tokens * 128 + r * 128 + ((q ^ r) & 7) * 16;
#else
    (void)p;
    return b + r * TILE_B_PITCH + q * 16;
#endif
}

/* The thread's number, asked for anew: addresses that follow from it are not kept over the loop in registers that the sums need. */
static __device__ __forceinline__ uint32_t tile_thread()
{
    uint32_t t;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(t));
    return t;
}

/* Shared memory of a block after the stages. */
struct tile_rows {
    uint64_t a[TILE_ROWS]; /* first byte of each weight row */
    const float *x[128];   /* first value of each token's row */
};

template <int FMT>
static __device__ __forceinline__ void tile_issue(const mm_params &p, const tile_rows &rows, const tile_item &it,
                                                  uint32_t step, unsigned char *stage)
{
    constexpr uint32_t UNITS = tile_a<FMT>::UNITS, BYTES = tile_a<FMT>::BYTES;
    const uint32_t off = step * BYTES;
    const uint32_t len = min(BYTES, (uint32_t)p.row_bytes - off);
    const uint32_t a = smem_of(stage), tid = tile_thread();
#pragma unroll
    for (uint32_t j = 0; j < (TILE_ROWS * UNITS + TILE_THREADS - 1) / TILE_THREADS; j++) {
        const uint32_t i = tid + j * TILE_THREADS, r = i / UNITS, u = i % UNITS;
        if (i >= TILE_ROWS * UNITS)
            break;
        if constexpr (fmt_block<FMT>::GRAIN > 1) {
            const tile_piece q = tile_piece_of<FMT>(step, u);
            const uint64_t at = rows.a[r] + q.off;
            const uint32_t end = ((uint32_t)at & 15) + q.len;
            if (q.unit * 16 < end)
                cp_async_part(a + r * tile_a<FMT>::PITCH + u * 16, (at & ~15ull) + q.unit * 16,
                              min(end - q.unit * 16, 16u));
            continue;
        }
        const uint64_t src = rows.a[r] + off;
        const uint32_t end = ((uint32_t)src & 15) + len;
        if (u * 16 < end)
            cp_async_part(a + r * tile_a<FMT>::PITCH + u * 16, (src & ~15ull) + u * 16, min(end - u * 16, 16u));
    }
    /* 16 threads ask for 256 bytes in a row. */
    unsigned char *b = stage + TILE_ROWS * tile_a<FMT>::PITCH;
    const uint32_t q = tid % 16, k = step * 64 + q * 4;
#pragma unroll 4
    for (uint32_t r = tid / 16; r < it.n; r += TILE_THREADS / 16) {
        unsigned char *dst = tile_token_at(p, b, r, q);
        if (k < p.cols)
            cp_async16(smem_of(dst), (uint64_t)(uintptr_t)(rows.x[r] + k));
        else
            *reinterpret_cast<uint4 *>(dst) = make_uint4(0, 0, 0, 0);
    }
}

/* Each thread splits what it fetched itself: its own copies are visible to it without a barrier. Positions 4q .. 4q + 3 are half of what
 * one lane of the matrix instructions takes from a block of 32: for mma.sync, 8 bytes of its 16 of hi and of lo; for wgmma,
 * word t of two 16-byte pieces. The 16 threads of a row read before any of them writes. */
static __device__ __forceinline__ void tile_split(const mm_params &p, const tile_item &it, unsigned char *b)
{
    const uint32_t tid = tile_thread(), q = tid % 16;
#pragma unroll 1
    for (uint32_t at = tid / 16; at < it.n + tid / 16; at += TILE_THREADS / 4) {
        float4 v[4];
#pragma unroll
        for (uint32_t j = 0; j < 4; j++)
            if (at + j * 16 < it.n)
                v[j] = *reinterpret_cast<const float4 *>(tile_token_at(p, b, at + j * 16, q));
        __syncwarp();
#pragma unroll
        for (uint32_t j = 0; j < 4; j++) {
            const uint32_t r = at + j * 16;
            if (r >= it.n)
                continue;
            uint32_t hi[2], lo[2];
            split_pair(v[j].x, v[j].y, &hi[0], &lo[0]);
            split_pair(v[j].z, v[j].w, &hi[1], &lo[1]);
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#pragma unroll
            for (uint32_t h = 0; h < 2; h++) {
                unsigned char *to = b + r * 128 + (((q / 8 * 4 + q % 2 * 2 + h) ^ r) & 7) * 16 + q % 8 / 2 * 4;
                *reinterpret_cast<uint32_t *>(to) = hi[h];
                *reinterpret_cast<uint32_t *>(to + p.tile_tokens * 128) = lo[h];
            }
#else
            unsigned char *to = b + r * TILE_B_PITCH + q / 2 * 32 + q % 2 * 8;
            *reinterpret_cast<uint2 *>(to) = make_uint2(hi[0], hi[1]);
            *reinterpret_cast<uint2 *>(to + 16) = make_uint2(lo[0], lo[1]);
#endif
        }
    }
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    wgmma_publish();
#endif
}

/* One result of row r. */
static __device__ __forceinline__ void tile_store(const mm_params &p, const tile_item &it, float *y, uint32_t r,
                                                  float v)
{
    if (p.bias)
        v += p.bias[it.row0 + r];
    if (p.accumulate)
        v += y[it.row0 + r];
    y[it.row0 + r] = v;
}

/* What few models have stays out of the loops over a tile's results. */
static __device__ __noinline__ float tile_activate(const mm_params &p, uint32_t expert, uint32_t row, float gate,
                                                   float up)
{
    return mm_activate<false>(p, expert, row, gate, up);
}

/* The same of gate and up, and of down. */
static __device__ __forceinline__ void tile_store_pair(const mm_params &p, const tile_item &it, float *y, uint32_t r,
                                                       float gate, float up)
{
    if (r < it.n_rows)
        tile_store(p, it, y, r, p.plain ? swiglu_of(gate, up) : tile_activate(p, it.expert, it.row0 + r, gate, up));
}

static __device__ __forceinline__ void tile_store_one(const mm_params &p, const tile_item &it, float *y, uint32_t r,
                                                      float v)
{
    if (r < it.n_rows)
        tile_store(p, it, y, r, mm_result<false>(p, it.expert, it.row0 + r, v));
}

static __device__ __forceinline__ float *tile_y(const mm_params &p, const tile_item &it, uint32_t token)
{
    const uint32_t k = it.first + token;
    return p.y + (size_t)(p.mode == MM_DOWN ? p.pairs[k] : k) * p.y_stride;
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* This warp's 16 rows of one block of K. */
template <int FMT>
static __device__ __forceinline__ void tile_load_a(a_frag<FMT> &a, const mm_params &p, const unsigned char *stage,
                                                   const uint32_t (&low)[2], uint32_t step, uint32_t kb)
{
    const uint32_t warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const unsigned char *row = stage + (warp * 16 + g) * tile_a<FMT>::PITCH;
    const uint32_t k = step * 64 + kb * 32 + 8 * t;
    tile_load_row<FMT>(row, low[0], step, kb, t, a.r0, &a.d0, &a.m0);
    tile_load_row<FMT>(row + 8 * tile_a<FMT>::PITCH, low[1], step, kb, t, a.r1, &a.d1, &a.m1);
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
                                                     uint32_t hi, uint32_t lo)
{
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

/* Two warpgroups of 64 rows: while one adds up, the matrix units work for the other. The stage after the present one is split while the
 * last products of this one run. */
template <int FMT, int N>
static __device__ __forceinline__ void tile_run_n(const mm_params &p, const tile_rows &rows, const tile_item &it,
                                                  unsigned char *ring, uint32_t stage_bytes)
{
    constexpr uint32_t A_BYTES = TILE_ROWS * tile_a<FMT>::PITCH;
    const uint32_t warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const uint32_t steps = (p.cols + 63) / 64, blocks = (p.cols + 31) / 32;
    const uint32_t low[2] = {(uint32_t)rows.a[warp * 16 + g] & 15, (uint32_t)rows.a[warp * 16 + 8 + g] & 15};
    float acc[N / 2], c[N / 2];
    tile_sums<FMT, N> sums = {};
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        acc[i] = c[i] = 0;

    for (uint32_t s = 0; s + 1 < p.stages; s++) {
        if (s < steps)
            tile_issue<FMT>(p, rows, it, s, ring + s * stage_bytes);
        cp_commit();
    }
    tile_wait(p.stages);
    tile_split(p, it, ring + A_BYTES);
    tile_barrier();
    uint32_t slot = 0;
    for (uint32_t step = 0; step < steps; step++) {
        unsigned char *stage = ring + slot * stage_bytes;
        const uint32_t ahead = step + p.stages - 1, hi = smem_of(stage) + A_BYTES, lo = hi + p.tile_tokens * 128;
        if (ahead < steps)
            tile_issue<FMT>(p, rows, it, ahead, ring + (slot ? slot - 1 : p.stages - 1) * stage_bytes);
        cp_commit();
        slot = slot + 1 == p.stages ? 0 : slot + 1;

#pragma unroll 1
        for (uint32_t kb = 0; kb < 2 && step * 2 + kb < blocks; kb++) {
            a_frag<FMT> a;
            tile_load_a<FMT>(a, p, stage, low, step, kb);
            tile_multiply<FMT, N>(c, sums, a, hi + kb * 64, lo + kb * 64);
            if (kb == 0) {
                tile_wait(p.stages);
                if (step + 1 < steps)
                    tile_split(p, it, ring + slot * stage_bytes + A_BYTES);
            }
            wgmma_wait(c);
            if constexpr (fmt_block<FMT>::MIN)
                wgmma_wait(sums.x);
            tile_add<FMT, N>(acc, c, sums, a);
        }
        tile_barrier(); /* the next stage is whole, and this one is refilled */
    }
    cp_wait<0>();

#pragma unroll
    for (int j = 0; j < N / 8; j++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t k = j * 8 + 2 * t + i;
            if (k >= it.n)
                continue;
            float *y = tile_y(p, it, k);
            if (p.mode == MM_GATE_UP) {
                tile_store_pair(p, it, y, warp * 8 + g, acc[4 * j + i], acc[4 * j + 2 + i]);
            } else {
                tile_store_one(p, it, y, warp * 16 + g, acc[4 * j + i]);
                tile_store_one(p, it, y, warp * 16 + 8 + g, acc[4 * j + 2 + i]);
            }
        }
}

template <int FMT>
static __device__ __forceinline__ void tile_run(const mm_params &p, const tile_rows &rows, const tile_item &it,
                                                unsigned char *ring, uint32_t stage_bytes)
{
    if constexpr (fmt_block<FMT>::MIN) {
        tile_run_n<FMT, tile_a<FMT>::MAX_TOKENS>(p, rows, it, ring, stage_bytes);
    } else if constexpr (FMT != FMT_Q8_0 && FMT != FMT_BF16) { /* rare: two widths are code enough */
        if (it.n <= 64)
            tile_run_n<FMT, 64>(p, rows, it, ring, stage_bytes);
        else
            tile_run_n<FMT, 128>(p, rows, it, ring, stage_bytes);
    } else {
        if (it.n <= 32)
            tile_run_n<FMT, 32>(p, rows, it, ring, stage_bytes);
        else if (it.n <= 64)
            tile_run_n<FMT, 64>(p, rows, it, ring, stage_bytes);
        else if (it.n <= 80)
            tile_run_n<FMT, 80>(p, rows, it, ring, stage_bytes);
        else if (it.n <= 96)
            tile_run_n<FMT, 96>(p, rows, it, ring, stage_bytes);
        else if (it.n <= 112)
            tile_run_n<FMT, 112>(p, rows, it, ring, stage_bytes);
        else
            tile_run_n<FMT, 128>(p, rows, it, ring, stage_bytes);
    }
}

#else

template <int FMT>
static __device__ __forceinline__ void tile_run(const mm_params &p, const tile_rows &rows, const tile_item &it,
                                                unsigned char *ring, uint32_t stage_bytes)
{
    const uint32_t tid = threadIdx.x, warp = tid / 32, lane = tid % 32, g = lane / 4, t = lane % 4;
    const uint32_t wm = warp / 2, wn = warp % 2;
    const uint32_t steps = (p.cols + 63) / 64, blocks = (p.cols + 31) / 32;

    /* Token rows that complete the last group of eight are zero in all stages. */
    for (uint32_t s = 0; s < p.stages; s++) {
        unsigned char *b = ring + s * stage_bytes + TILE_ROWS * tile_a<FMT>::PITCH;
        for (uint32_t i = it.n * 16 + tid; i < ((it.n + 7) & ~7u) * 16; i += TILE_THREADS)
            *reinterpret_cast<uint4 *>(b + i / 16 * TILE_B_PITCH + i % 16 * 16) = make_uint4(0, 0, 0, 0);
    }
    float acc[2][8][4];
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int j = 0; j < 8; j++)
            acc[m][j][0] = acc[m][j][1] = acc[m][j][2] = acc[m][j][3] = 0;
    uint32_t low[2][2]; /* alignment of the four rows of this lane */
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int h = 0; h < 2; h++)
            low[m][h] = (uint32_t)rows.a[wm * 32 + m * 16 + h * 8 + g] & 15;

    for (uint32_t s = 0; s + 1 < p.stages; s++) {
        if (s < steps)
            tile_issue<FMT>(p, rows, it, s, ring + s * stage_bytes);
        cp_commit();
    }
    uint32_t slot = 0;
    for (uint32_t step = 0; step < steps; step++) {
        unsigned char *stage = ring + slot * stage_bytes;
        tile_wait(p.stages);
        tile_split(p, it, stage + TILE_ROWS * tile_a<FMT>::PITCH);
        tile_barrier(); /* the stage is whole, and everyone is done with the one before it, which is refilled now */
        const uint32_t ahead = step + p.stages - 1;
        if (ahead < steps)
            tile_issue<FMT>(p, rows, it, ahead, ring + (slot ? slot - 1 : p.stages - 1) * stage_bytes);
        cp_commit();
        slot = slot + 1 == p.stages ? 0 : slot + 1;

        const unsigned char *b_at = stage + TILE_ROWS * tile_a<FMT>::PITCH + g * TILE_B_PITCH + t * 32;
#pragma unroll
        for (int kb = 0; kb < 2; kb++) {
            if (step * 2 + kb >= blocks)
                break;
            a_frag<FMT> a[2];
#pragma unroll
            for (int m = 0; m < 2; m++) {
                const unsigned char *row = stage + (wm * 32 + m * 16 + g) * tile_a<FMT>::PITCH;
                tile_load_row<FMT>(row, low[m][0], step, kb, t, a[m].r0, &a[m].d0, &a[m].m0);
                tile_load_row<FMT>(row + 8 * tile_a<FMT>::PITCH, low[m][1], step, kb, t, a[m].r1, &a[m].d1, &a[m].m1);
                const uint32_t k = step * 64 + kb * 32 + 8 * t;
                if (FMT != FMT_Q8_0 && k + 4 >= p.cols)
                    zero_a<FMT>(a[m], k < p.cols ? 2 : 0);
            }
#pragma unroll
            for (int j = 0; j < 8; j++) {
                const uint32_t nt = 2 * j + wn;
                if (nt * 8 >= it.n)
                    break;
                const uint4 *at = reinterpret_cast<const uint4 *>(b_at + nt * 8 * TILE_B_PITCH + kb * 128);
                const uint4 h = at[0], l = at[1];
                const b_frag b = {{h.x, h.y, h.z, h.w}, {l.x, l.y, l.z, l.w}};
                block_mma<FMT>(acc[0][j], a[0], b);
                block_mma<FMT>(acc[1][j], a[1], b);
            }
        }
    }
    cp_wait<0>();

#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
        for (int c = 0; c < 2; c++) {
            const uint32_t k = (2 * j + wn) * 8 + 2 * t + c;
            if (k >= it.n)
                continue;
            float *y = tile_y(p, it, k);
#pragma unroll
            for (int m = 0; m < 2; m++) {
                if (p.mode == MM_GATE_UP) {
                    tile_store_pair(p, it, y, (wm * 2 + m) * 8 + g, acc[m][j][c], acc[m][j][2 + c]);
                    continue;
                }
#pragma unroll
                for (int h = 0; h < 2; h++)
                    tile_store_one(p, it, y, wm * 32 + m * 16 + h * 8 + g, acc[m][j][2 * h + c]);
            }
        }
}

#endif

/* --- fetching pages of the host ------------------------------------------------------------------------------------------ */

/* Unit number i of the order of work: host and VRAM units dealt evenly, so that the link and the matrix units are busy together. */
static __device__ __forceinline__ uint32_t tile_unit(const mm_params &p, const uint32_t *units, uint32_t n_host,
                                                     uint32_t n_vram, uint32_t i, bool *is_host, uint32_t *host_idx)
{
    const uint32_t n = n_host + n_vram;
    const uint32_t h0 = (uint32_t)((uint64_t)i * n_host / n), h1 = (uint32_t)((uint64_t)(i + 1) * n_host / n);
    *is_host = h1 > h0;
    *host_idx = h0;
    return h1 > h0 ? units[h0] : units[p.n_experts * p.unit_pages - 1 - (i - h0)];
}

/* Where the computing warps find matrix m of host unit `idx`. Ring slots keep the page's place in its 128-byte line. */
static __device__ uint64_t fetched_at(const mm_params &p, uint32_t unit, uint32_t idx, uint32_t m)
{
    const size_t entry = (size_t)(unit >> 12) * p.pages + (m ? p.first_page1 : p.first_page0) + (unit & 4095);
    const uint64_t addr = p.page_addr[entry];
    if (mm_in_arena(p, addr))
        return addr;
    if (p.fill_addr && p.fill_addr[entry])
        return p.fill_addr[entry];
    const uint32_t per_unit = p.mode == MM_GATE_UP ? 2 : 1;
    return p.ring_addr + (uint64_t)((idx * per_unit + m) % p.ring_slots) * p.slot_bytes + (addr & 127);
}

static __device__ __forceinline__ uint4 load_stream(uint64_t a)
{
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(a));
    return v;
}

/* One warp copies n bytes; whole lines where source and destination are 16-byte aligned alike. */
static __device__ void fetch_copy(uint64_t dst, uint64_t src, uint32_t n)
{
    const uint32_t lane = threadIdx.x % 32;
    if (((src ^ dst) & 15) == 0) { /* the covering units; what is copied before and after belongs to no one else */
        const uint32_t skip = (uint32_t)src & 15;
        src -= skip;
        dst -= skip;
        const uint32_t units = (n + skip + 15) / 16;
        for (uint32_t i = lane; i < units; i += 32 * 8) {
            uint4 v[8];
#pragma unroll
            for (int j = 0; j < 8; j++)
                if (i + j * 32 < units)
                    v[j] = load_stream(src + (i + j * 32) * 16);
#pragma unroll
            for (int j = 0; j < 8; j++)
                if (i + j * 32 < units)
                    *reinterpret_cast<uint4 *>(dst + (i + j * 32) * 16) = v[j];
        }
    } else if (((src | dst | n) & 7) == 0) {
#pragma unroll 8
        for (uint32_t i = lane; i < n / 8; i += 32)
            *reinterpret_cast<uint2 *>(dst + i * 8) = *reinterpret_cast<const uint2 *>(src + i * 8);
    } else {
#pragma unroll 8
        for (uint32_t i = lane; i < n / 2; i += 32)
            *reinterpret_cast<uint16_t *>(dst + i * 2) = *reinterpret_cast<const uint16_t *>(src + i * 2);
    }
}

static __device__ __forceinline__ uint32_t unit_rows(const mm_params &p, uint32_t unit)
{
    return min(p.page_rows, p.rows - (unit & 4095) * p.page_rows);
}
static __device__ __forceinline__ uint32_t tile_rows_per_item(const mm_params &p)
{
    return p.mode == MM_GATE_UP ? TILE_ROWS / 2 : TILE_ROWS;
}

/* Items (row tiles times token tiles) of a unit: what `done` counts up to. */
static __device__ __forceinline__ uint32_t unit_items(const mm_params &p, uint32_t unit)
{
    const uint32_t e = unit >> 12, n = p.expert_start[e + 1] - p.expert_start[e], per = tile_rows_per_item(p);
    return (unit_rows(p, unit) + per - 1) / per * ((n + p.tile_tokens - 1) / p.tile_tokens);
}

static __device__ __forceinline__ uint32_t pieces_of(uint64_t src, uint64_t bytes)
{
    return (uint32_t)(((src & 127) + bytes + FETCH_PIECE - 1) / FETCH_PIECE);
}

/* The ninth warp. Pieces are dealt to the blocks in turn; `ready` of a page counts pieces. */
static __device__ void fetch_all(const mm_params &p, const uint32_t *units, uint32_t n_host)
{
    const uint32_t lane = threadIdx.x % 32, per_unit = p.mode == MM_GATE_UP ? 2 : 1;
    uint32_t turn = 0;
    for (uint32_t idx = 0; idx < n_host; idx++) {
        const uint32_t unit = units[idx];
        const uint64_t bytes = unit_rows(p, unit) * p.row_bytes;
        for (uint32_t m = 0; m < per_unit; m++) {
            const size_t entry = (size_t)(unit >> 12) * p.pages + (m ? p.first_page1 : p.first_page0) + (unit & 4095);
            const uint64_t src = p.page_addr[entry];
            if (mm_in_arena(p, src))
                continue;
            const uint64_t dst = fetched_at(p, unit, idx, m);
            const uint32_t seq = idx * per_unit + m;
            bool waited = false;
            /* Pieces end where a line of the source ends. */
            const uint64_t head = src & 127;
            const uint32_t n = pieces_of(src, bytes);
            for (uint32_t q = (blockIdx.x + gridDim.x - turn % gridDim.x) % gridDim.x; q < n; q += gridDim.x) {
                const uint64_t at = (uint64_t)q * FETCH_PIECE;
                if (!waited && seq >= p.ring_slots) {
                    const uint32_t before = (seq - p.ring_slots) / per_unit;
                    if (lane == 0)
                        wait_until(p.done + before, unit_items(p, units[before]));
                    __syncwarp();
                }
                waited = true;
                const uint64_t from = at > head ? at - head : 0;
                const uint64_t to = min(at + FETCH_PIECE - head, bytes);
                fetch_copy(dst + from, src + from, (uint32_t)(to - from));
                __threadfence();
                __syncwarp();
                if (lane == 0)
                    atomicAdd(p.ready + seq, 1u);
            }
            turn += n;
        }
    }
}

/* --- the kernel ---------------------------------------------------------------------------------------------------------- */

/* All items of this block. A linear is one unit, neither on the host nor cut into pages. Inlined, as all of it must be: products of
 * the matrix units do not run on across calls. */
template <int FMT>
static __device__ __forceinline__ void tile_work(const mm_params &p, unsigned char *ring, uint32_t stage_bytes,
                                                 tile_rows &rows, const uint32_t *units, uint32_t n_host,
                                                 uint32_t n_vram)
{
    const uint32_t tid = threadIdx.x, per = tile_rows_per_item(p), per_unit = p.mode == MM_GATE_UP ? 2 : 1;
    const bool linear = p.mode == MM_LINEAR;
    const uint32_t n_units = linear ? 1 : n_host + n_vram;
    uint32_t before = 0; /* items of the units before unit i */
    for (uint32_t i = 0; i < n_units; i++) {
        bool is_host = false;
        uint32_t idx = 0, unit = 0, e = 0, page = 0, in_page = p.rows, start = 0, n = p.n_tokens;
        if (!linear) {
            unit = tile_unit(p, units, n_host, n_vram, i, &is_host, &idx);
            e = unit >> 12, page = unit & 4095;
            in_page = unit_rows(p, unit);
            start = p.expert_start[e];
            n = p.expert_start[e + 1] - start;
        }
        const uint32_t token_tiles = (n + p.tile_tokens - 1) / p.tile_tokens;
        const uint32_t width = ((n + token_tiles - 1) / token_tiles + 7) & ~7u; /* even tiles */
        const uint32_t row_tiles = (in_page + per - 1) / per, items = row_tiles * token_tiles;
        bool ready = !is_host;
        for (uint32_t k = (blockIdx.x + gridDim.x - before % gridDim.x) % gridDim.x; k < items; k += gridDim.x) {
            uint64_t base[2] = {(uint64_t)(uintptr_t)p.w, (uint64_t)(uintptr_t)p.w};
#pragma unroll
            for (uint32_t m = 0; m < 2; m++) {
                if (linear)
                    break;
                const uint64_t src = p.page_addr[(size_t)e * p.pages + (m ? p.first_page1 : p.first_page0) + page];
                base[m] = is_host ? fetched_at(p, unit, idx, m % per_unit) : src;
                if (!ready && m < per_unit && !mm_in_arena(p, src) && tid == 0)
                    wait_until(p.ready + idx * per_unit + m, pieces_of(src, in_page * p.row_bytes));
            }
            ready = true;
            tile_item it;
            const uint32_t r0 = k % row_tiles * per, first = k / row_tiles * width;
            it.expert = e;
            it.row0 = page * p.page_rows + r0;
            it.n_rows = min(in_page - r0, per);
            it.first = start + first;
            it.n = first < n ? min(n - first, width) : 0; /* rounding up to eights may leave the last tile empty */
            tile_barrier(); /* the pages are there for all; the rows of the item before are no longer read */
            if (tid < TILE_ROWS) {
                const uint32_t half = p.mode == MM_GATE_UP ? tid / 8 % 2 : 0;
                const uint32_t r = p.mode == MM_GATE_UP ? tid / 16 * 8 + tid % 8 : tid;
                rows.a[tid] = (half ? base[1] : base[0]) + (r0 + min(r, it.n_rows - 1)) * p.row_bytes;
            }
            if (tid < it.n) {
                uint32_t r = it.first + tid;
                if (p.mode == MM_GATE_UP)
                    r = p.pairs[r] / p.top_k;
                else if (linear && p.row_idx)
                    r = p.row_idx[r];
                rows.x[tid] = p.x + (size_t)r * p.x_stride;
            }
            tile_barrier();
            if (it.n)
                tile_run<FMT>(p, rows, it, ring, stage_bytes);
            if (is_host) {
                tile_barrier(); /* all reads of the page are over */
                if (tid == 0) {
                    __threadfence();
                    atomicAdd(p.done + idx, 1u);
                }
            }
        }
        before += items;
    }
}

template <int FMT> __global__ void __launch_bounds__(TILE_BLOCK, 1) tile_kernel(const __grid_constant__ mm_params p)
{
    extern __shared__ __align__(128) unsigned char smem[];
    __shared__ uint32_t scratch[36];
    const uint32_t stage_bytes = tile_stage_bytes<FMT>(p.tile_tokens);
    unsigned char *ring = smem + (-smem_of(smem) & 1023);
    tile_rows &rows = *reinterpret_cast<tile_rows *>(ring + p.stages * stage_bytes);
    uint32_t *units = reinterpret_cast<uint32_t *>(&rows + 1);
    uint32_t n_host = 0, n_vram = 0;
    overlap_begin(p.mark);
    if (p.mode != MM_LINEAR)
        list_units(p, units, scratch, &n_host, &n_vram);
    if (threadIdx.x < TILE_THREADS) {
        wgmma_registers<224, true>();
        tile_work<FMT>(p, ring, stage_bytes, rows, units, n_host, n_vram);
    } else {
        wgmma_registers<56, false>();
        if (threadIdx.x < TILE_THREADS + 32)
            fetch_all(p, units, n_host);
    }
}

/* Stages and tokens a tile for `smem_max` bytes of shared memory. */
template <int FMT> static inline bool tile_shape(mm_params *p, int smem_max, uint32_t *ret_smem)
{
    static_assert(2 * tile_stage_bytes<FMT>(32) + sizeof(tile_rows) + 2048 <= CUDA_LEAST_SMEM, "for every chip");
    const uint32_t fixed = sizeof(tile_rows) + 2048 + (p->mode == MM_LINEAR ? 0 : p->n_experts * p->unit_pages * 4);
    for (uint32_t tokens = tile_a<FMT>::MAX_TOKENS; tokens >= 32; tokens /= 2)
        for (uint32_t stages = tokens == 32 ? 2 : 4; stages >= (tokens == 128 ? 3 : 2); stages--) {
            const uint32_t need = stages * tile_stage_bytes<FMT>(tokens) + fixed;
            if (need > (uint32_t)smem_max)
                continue;
            p->tile_tokens = tokens;
            p->stages = stages;
            *ret_smem = need;
            return true;
        }
    return false;
}

#endif
