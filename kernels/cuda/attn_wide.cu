/* attn_wide.cu - attention of heads of up to 512 columns by matrix units: decode and prefill in one kernel, for which 99 KiB of shared memory
 * are enough.
 *
 * A block takes 16 or 32 rows (tokens times the heads of a group) and walks the context, or one split of it. A warp has 16 rows of Q in
 * registers, 128 columns of them: it computes these columns' part of all scores, and the same columns of the result. With 16 rows two
 * warps share that. The parts of a tile's scores meet in shared memory and are added there, and every warp takes the softmax for itself.
 * K and V come in pieces of 16 positions, through a ring that runs on from tile to tile.
 *
 * The order of additions is not that of attn_tile.cuh. Within a split of KERN_ATTN_SPLIT positions tiles follow each other under one running
 * maximum; splits are merged by attn_merge(). Decode and prefill agree in it, so they give the same bits. */
#include "kernels/cuda/attn.h"
#include "kernels/cuda/attn_tile.cuh"
#include "kernels/cuda/frag.cuh"
#include "kernels/cuda/kv_q8_0.cuh"
#include "kernels/cuda/load.cuh"
#include "kernels/cuda/overlap.cuh"

#define WIDE_HD      ATTN_MAX_HEAD
#define WIDE_WARPS   8
#define WIDE_STRIPES 4
#define WIDE_STRIPE  (WIDE_HD / WIDE_STRIPES)
#define WIDE_PIECE   16 /* positions */
#define WIDE_PIECES  (2 * ATTN_TILE / WIDE_PIECE)
#define WIDE_GROUP   8 /* rows that lie side by side in a block of KV */
#define WIDE_GROUPS  (KERN_ATTN_SPLIT / WIDE_GROUP)
static_assert(WIDE_GROUP == Q8_GROUP, "one table of addresses for all formats");

/* ROWS16: rows of the block, in units of 16. STAGES: slots of the ring. */
template <int ROWS16, kern_fmt FMT, int STAGES> struct wide_smem {
    static constexpr uint32_t SLOT = FMT == FMT_Q8_0 ? q8_raw_bytes(WIDE_HD, WIDE_PIECE) : WIDE_PIECE * WIDE_HD * 2;
    unsigned char ring[STAGES][SLOT]; /* F16: wide_at; Q8_0: as it is kept */
    float4 part[ROWS16][WIDE_STRIPES][ATTN_TILE / 8][32];
    const unsigned char *group[2 * WIDE_GROUPS]; /* first rows, of this split and the next */
    const float *q[ROWS16 * 16];                 /* NULL: no row */
    uint32_t place[ROWS16 * 16];                 /* token * n_heads + head */
    attn_span span[ROWS16 * 16];
    float2 all[WIDE_WARPS][16]; /* maximum and sum of the splits so far, for each warp its own */
};
static_assert(sizeof(wide_smem<2, FMT_F16, 4>) <= CUDA_LEAST_SMEM &&
                  sizeof(wide_smem<2, FMT_Q8_0, 4>) <= CUDA_LEAST_SMEM &&
                  sizeof(wide_smem<1, FMT_F16, 4>) <= CUDA_LEAST_SMEM &&
                  sizeof(wide_smem<1, FMT_Q8_0, 8>) <= CUDA_LEAST_SMEM,
              "for every chip");

/* Place in a slot of the 16 bytes of columns 8c and on of position r: the lanes of a product use different banks, for K and for V. */
static __device__ __forceinline__ uint32_t wide_at(uint32_t r, uint32_t c)
{
    return (r * (WIDE_HD / 8) + (c ^ (r >> 1 & 3) << 1 ^ (r & 1) << 2)) * 16;
}

static __device__ __forceinline__ void cp_async16_or_zero(uint32_t to, const void *from, bool on)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(on ? 16 : 0) : "memory");
}

/* Scores of a tile become probabilities under the maximum so far, in place; m and l go on. What was summed before is to be multiplied
 * by `scale`. */
static __device__ __forceinline__ void wide_softmax(float (&s)[8][4], int base, const attn_span (&span)[2],
                                                    float (&m)[2], float (&l)[2], float (&scale)[2])
{
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float top = m[r];
#pragma unroll
        for (int j = 0; j < 8; j++)
#pragma unroll
            for (int c = 0; c < 2; c++) {
                const int pos = base + 8 * j + 2 * t + c;
                float &v = s[j][2 * r + c];
                if (pos < span[r].first || pos > span[r].last)
                    v = -INFINITY;
                top = fmaxf(top, v);
            }
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
        const float off = top == -INFINITY ? 0.0f : top;
        float sum = 0;
#pragma unroll
        for (int j = 0; j < 8; j++)
#pragma unroll
            for (int c = 0; c < 2; c++) {
                s[j][2 * r + c] = exp2f(s[j][2 * r + c] - off);
                sum += s[j][2 * r + c];
            }
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        scale[r] = exp2f(m[r] - off);
        l[r] = fmaf(l[r], scale[r], sum);
        m[r] = top;
    }
}

/* blockIdx: split (or 0: all of them), KV head and group of its heads, group of `per_block` tokens. */
template <int ROWS16, kern_fmt FMT, int STAGES>
__global__ void __launch_bounds__(WIDE_WARPS * 32, 1)
    attn_wide_kernel(const __grid_constant__ kern_attn_args a, uint32_t head_groups, uint32_t per_block)
{
    constexpr uint32_t ROWS = ROWS16 * 16, THREADS = WIDE_WARPS * 32;
    constexpr uint32_t SHARE = WIDE_WARPS / WIDE_STRIPES / ROWS16; /* warps that share rows and stripe */
    extern __shared__ __align__(16) unsigned char smem[];
    wide_smem<ROWS16, FMT, STAGES> &sm = *reinterpret_cast<wide_smem<ROWS16, FMT, STAGES> *>(smem);
    const uint32_t kvh = blockIdx.y / head_groups, of_group = a.n_heads / a.kv.n_kv_heads, hd = a.kv.head_dim;
    const uint32_t first_head = blockIdx.y % head_groups * ROWS, head0 = kvh * of_group + first_head,
                   heads = min(ROWS, of_group - first_head);
    /* The last tokens have the longest context: they start first. */
    const uint32_t token0 = (gridDim.z - 1 - blockIdx.z) * per_block, n_tokens = min(per_block, a.n_tokens - token0);
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const uint32_t stripe = warp % WIDE_STRIPES, column0 = stripe * WIDE_STRIPE;
    /* Of warps that share, each takes 8 of the 16 positions of a piece of K, and 64 of the columns of V. */
    const uint32_t part = SHARE == 1 ? warp / WIDE_STRIPES : 0, share = SHARE == 1 ? 0 : warp / WIDE_STRIPES;
    const uint32_t row_bytes = (uint32_t)kv_bytes<FMT>(a, 1);
    const size_t v_off = kv_bytes<FMT>(a, (size_t)a.kv.n_kv_heads * a.kv.block_size);
    const bool alone = gridDim.x == 1, busy = column0 < hd;
    overlap_begin();

    if (threadIdx.x < ROWS) {
        const uint32_t token = token0 + threadIdx.x / heads, head = head0 + threadIdx.x % heads;
        sm.place[threadIdx.x] = token * a.n_heads + head;
        sm.q[threadIdx.x] = threadIdx.x < n_tokens * heads ? a.qkv + (size_t)token * a.qkv_stride + head * hd : nullptr;
    }
    const uint32_t row[2] = {part * 16 + g, part * 16 + g + 8};
    for (uint32_t run = token0, next; run < token0 + n_tokens; run = next) { /* tokens of one sequence */
        const uint32_t seq = a.token_seq[run];
        attn_span whole = {INT32_MAX, -1};
        for (next = run; next < token0 + n_tokens && a.token_seq[next] == seq; next++) {
            const attn_span s = span_of(a, next);
            whole.first = min(whole.first, s.first);
            whole.last = max(whole.last, s.last);
        }
        if (seq == UINT32_MAX)
            continue;
        constexpr int TILES = KERN_ATTN_SPLIT / ATTN_TILE;
        int tile0 = whole.first / ATTN_TILE, tile1 = whole.last / ATTN_TILE;
        if (!alone) {
            tile0 = max(tile0, (int)blockIdx.x * TILES);
            tile1 = min(tile1, (int)blockIdx.x * TILES + TILES - 1);
        }
        if (tile0 > tile1)
            continue;

        auto find_groups = [&](int split) {
            if (threadIdx.x < WIDE_GROUPS) {
                const uint32_t *table = a.kv.block_table + (size_t)seq * a.kv.max_blocks;
                const int pos = split * KERN_ATTN_SPLIT + (int)threadIdx.x * WIDE_GROUP;
                const bool on = pos + WIDE_GROUP > whole.first && pos <= whole.last;
                sm.group[(split & 1) * WIDE_GROUPS + threadIdx.x] =
                    on ? kv_row<FMT>(a, table, kvh, (uint32_t)pos) : nullptr;
            }
        };
        auto seen = [&](int pos) { return (uint32_t)(pos - whole.first) <= (uint32_t)(whole.last - whole.first); };
        /* Piece i of a tile into its slot of the ring: four of K, then four of V. What nobody sees is zero, since 0 * garbage may be NaN. */
        auto load = [&](int tile, uint32_t i) {
            const uint32_t pos = (uint32_t)tile * ATTN_TILE + i % (WIDE_PIECES / 2) * WIDE_PIECE;
            const uint32_t at = (pos / KERN_ATTN_SPLIT & 1) * WIDE_GROUPS + pos % KERN_ATTN_SPLIT / WIDE_GROUP;
            const size_t off = i < WIDE_PIECES / 2 ? 0 : v_off;
            unsigned char *const slot = sm.ring[i % STAGES];
            if (tile > tile1) {
                cp_commit();
                return;
            }
            const unsigned char *const first = sm.group[at], *const second = sm.group[at + 1];
            if constexpr (FMT == FMT_Q8_0) {
                const uint32_t pieces = q8_group_pieces(hd);
                for (uint32_t p = threadIdx.x; p < 2 * pieces; p += THREADS) {
                    const unsigned char *const group = p < pieces ? first : second;
                    if (group)
                        cp_async16(smem_of(slot + p * 16),
                                   (uint64_t)(uintptr_t)(group + off + (p < pieces ? p : p - pieces) * 16));
                }
            } else {
                constexpr uint32_t AT_ONCE = THREADS / (WIDE_HD / 8); /* rows */
                const uint32_t c = threadIdx.x % (WIDE_HD / 8), r0 = threadIdx.x / (WIDE_HD / 8);
                const unsigned char *const from[2] = {first + off + r0 * row_bytes + c * 16,
                                                      second + off + r0 * row_bytes + c * 16};
                const uint32_t to = wide_at(r0, c);
#pragma unroll
                for (uint32_t r = 0; r < WIDE_PIECE; r += AT_ONCE)
                    cp_async16_or_zero(smem_of(slot + (to ^ (r >> 1 & 3) << 5) + r * WIDE_HD * 2),
                                       from[r / WIDE_GROUP] + r % WIDE_GROUP * row_bytes,
                                       seen((int)(pos + r0 + r)) && c * 8 < hd);
            }
            cp_commit();
        };
        /* Sixteen bytes as halves from the piece in slot i: of K, columns 32b + 8t and on of the stripe, position 8j + g; of V, columns 64h + 8g
         * and on, position 2t + (0, 1, 8, 9)[p]. */
        auto k_at = [&](uint32_t i, uint32_t b, uint32_t j) {
            const unsigned char *const slot = sm.ring[i % STAGES];
            if constexpr (FMT == FMT_Q8_0)
                return q8_eight(slot + (8 * j + g) * row_bytes + (column0 / 32 + b) * (uint32_t)sizeof(kern_q8_0_block),
                                t, column0 + 32 * b < hd);
            else
                return *reinterpret_cast<const uint4 *>(slot + (wide_at(g, column0 / 8 + t) ^ (b & 1) << 6) +
                                                        b / 2 * 128 + j * 8 * WIDE_HD * 2);
        };
        auto v_at = [&](uint32_t i, uint32_t h, uint32_t p, bool on) {
            const unsigned char *const slot = sm.ring[i % STAGES];
            if constexpr (FMT == FMT_Q8_0) {
                const uint32_t block = column0 / 32 + 2 * h + g / 4;
                return q8_eight(slot + (2 * t + p % 2 + p / 2 * 8) * row_bytes +
                                    block * (uint32_t)sizeof(kern_q8_0_block),
                                g % 4, on && block * 32 < hd);
            } else {
                return *reinterpret_cast<const uint4 *>(slot + (wide_at(2 * t, column0 / 8 + g) ^ (p & 1) << 6) +
                                                        h * 128 + (p % 2 + p / 2 * 8) * WIDE_HD * 2);
            }
        };
        /* Piece i of the tile is there, and all are done with the one before, whose slot gets the next. */
        auto step = [&](int tile, uint32_t i) {
            cp_wait<STAGES - 2>();
            __syncthreads();
            const uint32_t ahead = i + STAGES - 1;
            load(tile + (int)(ahead / WIDE_PIECES), ahead % WIDE_PIECES);
        };
        /* f(h, i, c, column): four columns of a row that this lane has in o[h][i .. i + 3], entry c of the row's two. */
        auto each_four = [&](auto f) {
#pragma unroll
            for (int h = 0; h < 2 / SHARE; h++)
#pragma unroll
                for (int c = 0; c < 2; c++)
#pragma unroll
                    for (int i = 0; i < 8; i += 4) {
                        const uint32_t at = column0 + 64 * (h + share) + 16 * t + 8 * c + i;
                        if (at < hd)
                            f(h, i, c, at);
                    }
        };
        __syncthreads(); /* the buffers of the run before are free */
        if (threadIdx.x < ROWS) {
            const uint32_t token = token0 + threadIdx.x / heads; /* of no row: behind the last */
            sm.span[threadIdx.x] = token >= run && token < next ? span_of(a, token) : attn_span{0, -1};
        }
#pragma unroll
        for (int r = 0; r < 2; r++)
            if (t == 0)
                sm.all[warp][g + 8 * r] = make_float2(-INFINITY, 0);
        find_groups(tile0 / TILES);
        __syncthreads();
        for (uint32_t i = 0; i < STAGES - 1; i++)
            load(tile0, i);
        uint4 q_hi[WIDE_STRIPE / 32][2], q_lo[WIDE_STRIPE / 32][2]; /* rows g and g + 8, columns 8t .. of 32 */
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float *q = sm.q[row[r]];
            const float scale = a.scale * LOG2E;
#pragma unroll
            for (uint32_t b = 0; b < WIDE_STRIPE / 32; b++) {
                const uint32_t at = column0 + 32 * b + 8 * t;
                const float4 u = load_floats(q + at, q && at < hd), v = load_floats(q + at + 4, q && at < hd);
                split_half(u.x * scale, u.y * scale, &q_hi[b][r].x, &q_lo[b][r].x);
                split_half(u.z * scale, u.w * scale, &q_hi[b][r].y, &q_lo[b][r].y);
                split_half(v.x * scale, v.y * scale, &q_hi[b][r].z, &q_lo[b][r].z);
                split_half(v.z * scale, v.w * scale, &q_hi[b][r].w, &q_lo[b][r].w);
            }
        }

        float m[2] = {-INFINITY, -INFINITY}, l[2] = {0, 0}, o[2 / SHARE][8][4] = {};
#pragma unroll 1
        for (int tile = tile0; tile <= tile1; tile++) {
#pragma unroll 2
            for (uint32_t i = 0; i < WIDE_PIECES / 2; i++) {
                step(tile, i);
                if (i == 0 && (tile == tile0 || tile % TILES == 0) && tile / TILES < tile1 / TILES)
                    find_groups(tile / TILES + 1);
                float hi[2 / SHARE][4] = {}, lo[2 / SHARE][4] = {};
#pragma unroll
                for (uint32_t b = 0; b < WIDE_STRIPE / 32 && busy; b++)
#pragma unroll
                    for (uint32_t j = 0; j < 2 / SHARE; j++) {
                        const uint4 k = k_at(i, b, j + share);
                        mma_f16(lo[j], q_lo[b][0].x, q_lo[b][1].x, q_lo[b][0].y, q_lo[b][1].y, k.x, k.y);
                        mma_f16(hi[j], q_hi[b][0].x, q_hi[b][1].x, q_hi[b][0].y, q_hi[b][1].y, k.x, k.y);
                        mma_f16(lo[j], q_lo[b][0].z, q_lo[b][1].z, q_lo[b][0].w, q_lo[b][1].w, k.z, k.w);
                        mma_f16(hi[j], q_hi[b][0].z, q_hi[b][1].z, q_hi[b][0].w, q_hi[b][1].w, k.z, k.w);
                    }
#pragma unroll
                for (uint32_t j = 0; j < 2 / SHARE; j++)
                    sm.part[part][stripe][2 * i + j + share][lane] =
                        make_float4(hi[j][0] + lo[j][0], hi[j][1] + lo[j][1], hi[j][2] + lo[j][2], hi[j][3] + lo[j][3]);
            }
            __syncthreads(); /* all parts of the scores are there */
#pragma unroll
            for (uint32_t j = 0; j < 2 / SHARE; j++) {
                float4(*const p)[ATTN_TILE / 8][32] = sm.part[part];
                const uint32_t own = 2 * stripe + j + share;
                const float4 p0 = p[0][own][lane], p1 = p[1][own][lane], p2 = p[2][own][lane], p3 = p[3][own][lane];
                p[0][own][lane] = make_float4((p0.x + p1.x) + (p2.x + p3.x), (p0.y + p1.y) + (p2.y + p3.y),
                                              (p0.z + p1.z) + (p2.z + p3.z), (p0.w + p1.w) + (p2.w + p3.w));
            }
            step(tile, WIDE_PIECES / 2); /* so are their sums */
            float s[8][4];
#pragma unroll
            for (int j = 0; j < 8; j++) {
                const float4 p = sm.part[part][0][j][lane];
                s[j][0] = p.x, s[j][1] = p.y, s[j][2] = p.z, s[j][3] = p.w;
            }
            float scale[2];
            const attn_span span[2] = {sm.span[row[0]], sm.span[row[1]]};
            wide_softmax(s, tile * ATTN_TILE, span, m, l, scale);
#pragma unroll
            for (int h = 0; h < 2 / SHARE; h++)
#pragma unroll
                for (int i = 0; i < 8; i++)
#pragma unroll
                    for (int c = 0; c < 4; c++)
                        o[h][i][c] *= scale[c / 2];
#pragma unroll
            for (uint32_t k = 0; k < WIDE_PIECES / 2; k++) {
                const uint32_t slot = WIDE_PIECES / 2 + k;
                if (k)
                    step(tile, slot);
                uint32_t hi[4], lo[4];
#pragma unroll
                for (int i = 0; i < 4; i++)
                    split_half(s[2 * k + i / 2][i % 2 * 2], s[2 * k + i / 2][i % 2 * 2 + 1], &hi[i], &lo[i]);
#pragma unroll
                for (uint32_t h = 0; h < 2 / SHARE && busy; h++) {
                    uint32_t w[4][4]; /* of positions 2t + (0, 1, 8, 9) */
#pragma unroll
                    for (uint32_t i = 0; i < 4; i++) {
                        const int pos = tile * ATTN_TILE + (int)(WIDE_PIECE * k + 2 * t + i % 2 + i / 2 * 8);
                        const uint4 v = v_at(slot, h + share, i, seen(pos));
                        w[i][0] = v.x, w[i][1] = v.y, w[i][2] = v.z, w[i][3] = v.w;
                    }
#pragma unroll
                    for (int i = 0; i < 8; i++) { /* column 8g + i of the 64 */
                        const uint32_t sel = i & 1 ? 0x7632 : 0x5410;
                        const uint32_t b0 = __byte_perm(w[0][i / 2], w[1][i / 2], sel),
                                       b1 = __byte_perm(w[2][i / 2], w[3][i / 2], sel);
                        mma_f16(o[h][i], lo[0], lo[1], lo[2], lo[3], b0, b1);
                        mma_f16(o[h][i], hi[0], hi[1], hi[2], hi[3], b0, b1);
                    }
                }
            }
            if (!alone || (tile != tile1 && (tile + 1) % TILES != 0))
                continue;
            /* End of a split. What is merged so far waits in the result itself. */
            const float2 all[2] = {sm.all[warp][g], sm.all[warp][g + 8]};
            __syncwarp(); /* all lanes have read it */
#pragma unroll
            for (int r = 0; r < 2; r++) {
                if (m[r] == -INFINITY)
                    continue;
                float all_m = all[r].x, all_l = all[r].y;
                const bool had = all_m != -INFINITY;
                const attn_weight w = attn_merge(all_m, all_l, m[r], l[r]);
                if (t == 0)
                    sm.all[warp][g + 8 * r] = make_float2(all_m, all_l);
                float *const to = a.o + (size_t)sm.place[row[r]] * hd;
                each_four([&](int h, int i, int c, uint32_t at) {
                    float4 *const p = reinterpret_cast<float4 *>(to + at);
                    const float4 v = had ? *p : make_float4(0, 0, 0, 0);
                    *p =
                        make_float4(attn_mix(v.x, o[h][i][2 * r + c], w), attn_mix(v.y, o[h][i + 1][2 * r + c], w),
                                    attn_mix(v.z, o[h][i + 2][2 * r + c], w), attn_mix(v.w, o[h][i + 3][2 * r + c], w));
                    o[h][i][2 * r + c] = o[h][i + 1][2 * r + c] = o[h][i + 2][2 * r + c] = o[h][i + 3][2 * r + c] = 0;
                });
                m[r] = -INFINITY;
                l[r] = 0;
            }
        }
        __syncwarp(); /* the sums are there */
#pragma unroll
        for (int r = 0; r < 2; r++) {
            if (sm.span[row[r]].last < 0)
                continue;
            const uint32_t place = sm.place[row[r]];
            if (alone) {
                float all_m = sm.all[warp][g + 8 * r].x, all_l = sm.all[warp][g + 8 * r].y;
                attn_weight sink = {1.0f, 0.0f};
                if (a.sinks)
                    sink = attn_merge(all_m, all_l, a.sinks[place % a.n_heads] * LOG2E, 1.0f);
                float *const to = a.o + (size_t)place * hd;
#pragma unroll 1
                for (uint32_t i = 0; i < 32 / SHARE; i++) {
                    const uint32_t at = column0 + (i / 16 + share) * 64 + 16 * t + i % 16;
                    if (at < hd)
                        to[at] = (a.sinks ? attn_mix(to[at], 0.0f, sink) : to[at]) / all_l;
                }
                continue;
            }
            float *const to = part_of(a, hd, 0, place, blockIdx.x, gridDim.x);
            if (stripe == 0 && share == 0 && t == 0) {
                to[0] = m[r];
                to[1] = l[r];
            }
            each_four([&](int h, int i, int c,
                          uint32_t at) { /* two floats ahead of them: not aligned to more */
                                         float2 *const p = reinterpret_cast<float2 *>(to + 2 + at);
                                         p[0] = make_float2(o[h][i][2 * r + c], o[h][i + 1][2 * r + c]);
                                         p[1] = make_float2(o[h][i + 2][2 * r + c], o[h][i + 3][2 * r + c]);
            });
        }
    }
}

bool attn_wide_takes(const cuda_dev *d, const kern_attn_args *a)
{
    return !d->no_attn_mma && attn_kv_in_pieces(a) && a->kv.head_dim > WIDE_STRIPE &&
           a->kv.block_size % WIDE_GROUP == 0;
}

template <int ROWS16, kern_fmt FMT, int STAGES>
static cudaError_t launch_wide(cuda_dev *d, const kern_attn_args *a, bool many)
{
    constexpr size_t smem = sizeof(wide_smem<ROWS16, FMT, STAGES>);
    const auto kernel = attn_wide_kernel<ROWS16, FMT, STAGES>;
    const uint32_t heads = a->n_heads / a->kv.n_kv_heads, rows = ROWS16 * 16, head_groups = (heads + rows - 1) / rows,
                   per_block = many && heads < rows ? rows / heads : 1, splits = attn_decode_splits(a);
    cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem);
    if (e != cudaSuccess)
        return e;
    /* gridDim.z is at most 65535: longer batches go in pieces. */
    const uint32_t most = 65535 * per_block;
    for (uint32_t at = 0; at < a->n_tokens; at += most) {
        kern_attn_args b = *a;
        b.n_tokens = a->n_tokens - at < most ? a->n_tokens - at : most;
        b.qkv += (size_t)at * a->qkv_stride;
        b.o += (size_t)at * a->n_heads * a->kv.head_dim;
        b.token_seq += at;
        b.token_pos += at;
        (void)cuda_start(d, kernel,
                         dim3(splits, a->kv.n_kv_heads * head_groups, (b.n_tokens + per_block - 1) / per_block),
                         WIDE_WARPS * 32, smem, b, head_groups, per_block);
    }
    if (splits > 1)
        attn_merge_launch(d, a, a->kv.head_dim, splits);
    return cudaSuccess;
}

cudaError_t attn_wide_launch(cuda_dev *d, const kern_attn_args *a, bool many)
{
    const bool q8 = a->kv.fmt == FMT_Q8_0;
    if (many || a->n_heads / a->kv.n_kv_heads > 16)
        return q8 ? launch_wide<2, FMT_Q8_0, 4>(d, a, many) : launch_wide<2, FMT_F16, 4>(d, a, many);
    if (q8)
        return launch_wide<1, FMT_Q8_0, 8>(d, a, many);
    return sizeof(wide_smem<1, FMT_F16, 8>) <= (size_t)d->smem_max ? launch_wide<1, FMT_F16, 8>(d, a, many)
                                                                   : launch_wide<1, FMT_F16, 4>(d, a, many);
}
