/* tile_mma.cuh - the work of tile.cuh by mma.sync: eight warps, four along the rows and two along the tokens, each of 32 rows by half of
 * the tokens. They fetch for themselves, by cp.async, stages ahead. */
#ifndef KERNELS_CUDA_TILE_MMA_CUH
#define KERNELS_CUDA_TILE_MMA_CUH

template <int FMT> struct tile_a { /* a row of a stage: 64 weights, at any alignment */
    static constexpr uint32_t BYTES = 2 * fmt_block<FMT>::BYTES;
    /* Of a super-block come the pieces that the 64 weights need: see tile_piece_of(). */
    static constexpr uint32_t UNITS = FMT == FMT_Q4_K         ? 3
                                      : FMT == FMT_Q5_K       ? 5
                                      : FMT == FMT_Q6_K       ? 10
                                      : FMT == FMT_IQ4_XS     ? 5
                                      : FMT == FMT_FP8        ? 6
                                      : FMT == FMT_INT4_G32   ? 5
                                      : FMT == FMT_NVFP4      ? 5
                                      : FMT == FMT_INT4_G128  ? 4
                                      : fmt_block<FMT>::WHOLE ? (fmt_block<FMT>::SUPER + 14 + 15) / 16
                                                              : (BYTES + 14 + 15) / 16;
    static constexpr uint32_t PITCH = FMT == FMT_Q4_K            ? 48
                                      : FMT == FMT_Q6_K          ? 176
                                      : FMT == FMT_FP8           ? 112
                                      : fmt_block<FMT>::WHOLE    ? (UNITS | 1) * 16
                                      : fmt_block<FMT>::FINISHED ? 80
                                      : FMT == FMT_Q8_0          ? 96
                                      : FMT == FMT_F32           ? 272
                                                                 : 192; /* quads of neighbouring rows do not collide */
    static_assert(UNITS * 16 <= PITCH, "room for a row");
};

/* A stage: panels of the tokens, then rows of weights as stored. */
template <int FMT> static constexpr __host__ __device__ uint32_t tile_stage_bytes(uint32_t tokens)
{
    return (tokens / PANEL_TOKENS * PANEL_BYTES + TILE_ROWS * tile_a<FMT>::PITCH + 1023) & ~1023u;
}

/* Shared memory of the ring and of the addresses of rows. */
template <int FMT> static constexpr __host__ __device__ uint32_t tile_mma_bytes(uint32_t tokens, uint32_t stages)
{
    return stages * tile_stage_bytes<FMT>(tokens) + TILE_ROWS * (uint32_t)sizeof(uint64_t);
}

#ifndef __CUDA_ARCH_FEAT_SM90_ALL

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
    if (fmt_block<FMT>::WHOLE) /* the pieces are no fewer units than all of it */
        return {block, fmt_block<FMT>::SUPER, u};
    if (FMT == FMT_IQ4_XS)
        return u < 2 ? tile_piece{block, 8, u} : tile_piece{block + 8 + quarter * 32, 32, u - 2};
    if (FMT == FMT_FP8)
        return u < 1 ? tile_piece{block, 4, u} : tile_piece{block + 4 + quarter * 64, 64, u - 1};
    if (FMT == FMT_INT4_G32 || FMT == FMT_NVFP4)
        return u < 2 ? tile_piece{block, 12, u} : tile_piece{block + 12 + quarter * 32, 32, u - 2};
    if (FMT == FMT_INT4_G128)
        return u < 1 ? tile_piece{block, 4, u} : tile_piece{block + 4 + quarter * 32, 32, u - 1};
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
    if (fmt_block<FMT>::WHOLE)
        return k_pieces<FMT>(row + (at & 15), step % 4 * 2);
    if (FMT == FMT_IQ4_XS)
        return {row + (at & 15), row, row + 32 + ((at + 8) & 15)};
    if (FMT == FMT_INT4_G32 || FMT == FMT_NVFP4)
        return {row + (at & 15), row, row + 32 + ((at + 12) & 15)};
    if (FMT == FMT_FP8 || FMT == FMT_INT4_G128)
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
/* Asks for step `step` of the rows of weights whose first bytes are in `rows`. */
template <int FMT>
static __device__ __forceinline__ void tile_ask_rows(const mm_params &p, const uint64_t *rows, uint32_t step,
                                                     unsigned char *stage)
{
    constexpr uint32_t UNITS = tile_a<FMT>::UNITS, BYTES = tile_a<FMT>::BYTES;
    const uint32_t off = step * BYTES;
    const uint32_t len = min(BYTES, (uint32_t)p.row_bytes - off);
    const uint32_t to = smem_of(stage);
#pragma unroll
    for (uint32_t j = 0; j < (TILE_ROWS * UNITS + TILE_THREADS - 1) / TILE_THREADS; j++) {
        const uint32_t i = threadIdx.x + j * TILE_THREADS, r = i / UNITS, u = i % UNITS;
        if (i >= TILE_ROWS * UNITS)
            break;
        if constexpr (fmt_block<FMT>::GRAIN > 1) {
            const tile_piece q = tile_piece_of<FMT>(step, u);
            const uint64_t at = rows[r] + q.off;
            const uint32_t end = ((uint32_t)at & 15) + q.len;
            if (q.unit * 16 < end)
                cp_async_part(to + r * tile_a<FMT>::PITCH + u * 16, (at & ~15ull) + q.unit * 16,
                              min(end - q.unit * 16, 16u));
            continue;
        }
        const uint64_t src = rows[r] + off;
        const uint32_t end = ((uint32_t)src & 15) + len;
        if (u * 16 < end)
            cp_async_part(to + r * tile_a<FMT>::PITCH + u * 16, (src & ~15ull) + u * 16, min(end - u * 16, 16u));
    }
}

static __device__ __forceinline__ void tile_begin(const mm_params &) {}

static __device__ __forceinline__ void tile_wait(uint32_t stages)
{
    if (stages == 2)
        cp_wait<0>();
    else if (stages == 3)
        cp_wait<1>();
    else
        cp_wait<2>();
}

template <int FMT>
static __device__ __forceinline__ void tile_ask(const mm_params &p, const uint64_t *rows, const tile_item &it,
                                                uint32_t step, unsigned char *stage)
{
    const uint32_t units = (it.n + PANEL_TOKENS - 1) / PANEL_TOKENS * (PANEL_BYTES / 16), to = smem_of(stage);
    const uint64_t from = (uint64_t)(uintptr_t)p.panels + step * p.panel_step + (uint64_t)it.panel * PANEL_BYTES;
    tile_ask_rows<FMT>(p, rows, step, stage + p.tile_tokens / PANEL_TOKENS * PANEL_BYTES);
#pragma unroll 4
    for (uint32_t i = threadIdx.x; i < units; i += TILE_THREADS)
        cp_async16(to + i * 16, from + i * 16);
}

template <int FMT>
static __device__ __forceinline__ void tile_run(const mm_params &p, const uint64_t *rows, const tile_item &it,
                                                unsigned char *ring, uint32_t stage_bytes)
{
    const uint32_t tid = threadIdx.x, warp = tid / 32, lane = tid % 32, g = lane / 4, t = lane % 4;
    const uint32_t wm = warp / 2, wn = warp % 2;
    const uint32_t steps = (p.cols + PANEL_COLS - 1) / PANEL_COLS, blocks = (p.cols + 31) / 32;
    const uint32_t rows_at = p.tile_tokens / PANEL_TOKENS * PANEL_BYTES;

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
            low[m][h] = (uint32_t)rows[wm * 32 + m * 16 + h * 8 + g] & 15;

    for (uint32_t s = 0; s + 1 < p.stages; s++) {
        if (s < steps)
            tile_ask<FMT>(p, rows, it, s, ring + s * stage_bytes);
        cp_commit();
    }
    uint32_t slot = 0;
    for (uint32_t step = 0; step < steps; step++) {
        unsigned char *stage = ring + slot * stage_bytes;
        tile_wait(p.stages);
        tile_barrier(); /* the stage is whole, and everyone is done with the one before it, which is refilled now */
        const uint32_t ahead = step + p.stages - 1;
        if (ahead < steps)
            tile_ask<FMT>(p, rows, it, ahead, ring + (slot ? slot - 1 : p.stages - 1) * stage_bytes);
        cp_commit();
        slot = slot + 1 == p.stages ? 0 : slot + 1;

#pragma unroll
        for (int kb = 0; kb < 2; kb++) {
            if (step * 2 + kb >= blocks)
                break;
            a_frag<FMT> a[2];
#pragma unroll
            for (int m = 0; m < 2; m++) {
                const unsigned char *row = stage + rows_at + (wm * 32 + m * 16 + g) * tile_a<FMT>::PITCH;
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
                const unsigned char *at = stage + nt * PANEL_BYTES + panel_at(g, kb * 32 + t * 8);
                const uint4 h = *reinterpret_cast<const uint4 *>(at);
                const uint4 l = *reinterpret_cast<const uint4 *>(at + PANEL_LO);
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
#pragma unroll
            for (int m = 0; m < 2; m++) {
                if (p.mode == MM_GATE_UP) {
                    tile_store_pair(p, it, k, panel_row(wm * 2 + m, g), acc[m][j][c], acc[m][j][2 + c]);
                    continue;
                }
                float *y = tile_y(p, it, k);
#pragma unroll
                for (int h = 0; h < 2; h++)
                    tile_store_one(p, it, y, wm * 32 + m * 16 + h * 8 + g, acc[m][j][2 * h + c]);
            }
        }
}

template <int FMT>
static __device__ __forceinline__ void tile_work(const mm_params &p, unsigned char *ring, const uint32_t *units,
                                                 uint32_t n_host, uint32_t n_vram)
{
    const uint32_t tid = threadIdx.x, stage_bytes = tile_stage_bytes<FMT>(p.tile_tokens);
    uint64_t *rows = reinterpret_cast<uint64_t *>(ring + p.stages * stage_bytes);
    if (tid >= TILE_THREADS) {
        if (tid < TILE_THREADS + 32)
            fetch_all(p, units, n_host);
        return;
    }
    tile_each(p, units, n_host, n_vram, [&](const tile_item &it) TILE_INLINE {
        if (tid == 0)
            tile_wait_pages(p, it);
        tile_barrier(); /* the pages are there for all; the rows of the item before are no longer read */
        if (tid < TILE_ROWS)
            rows[tid] = tile_row_addr(p, it, tid);
        tile_barrier();
        if (it.n)
            tile_run<FMT>(p, rows, it, ring, stage_bytes);
        tile_item_done(p, it);
    });
}

#endif
#endif
