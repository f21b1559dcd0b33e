/* attn_latent.cu - latent attention by matrix units, for the one shape that is published: 576 columns of K, of which V is the first 512.
 *
 * All heads share the one KV head, so a block takes 16 heads of a token, and a position is read once for all of them. Tiles of 64
 * positions come to shared memory by asynchronous copies, two of them at a time, and serve as K and as V. Of a tile's scores each warp
 * computes 8 positions; all warps take the softmax, and each then computes 64 columns of the result.
 * Few tokens: splits of the context go to blocks of their own, and a second launch merges them; many: a block walks the splits. One order
 * of additions in both, so a chunk of a prompt and a token alone give the same bits.
 * Chips with less shared memory, and other shapes, have attn_simple.cu. */
#include "kernels/cuda/attn.h"
#include "kernels/cuda/attn_tile.cuh"
#include "kernels/cuda/frag.cuh"
#include "kernels/cuda/kv_q8_0.cuh"
#include "kernels/cuda/overlap.cuh"

#define LATENT_HD    576
#define LATENT_VD    512
#define LATENT_WARPS (LATENT_VD / 64)
#define SCORE_PITCH  72 /* floats: rows g of a fragment use different banks */

template <kern_fmt FMT> struct latent_smem {
    static constexpr uint32_t BUFFERS = 2;
    uint4 k[2][ATTN_TILE * LATENT_HD / 8]; /* latent_at */
    uint4 q_hi[16 * LATENT_HD / 8], q_lo[16 * LATENT_HD / 8];
    float scores[16][SCORE_PITCH];
    const unsigned char *row[2][ATTN_TILE];
};

/* The next tile comes as it is kept, while one is computed with that was taken apart. Of rows, only the first of each group. */
template <> struct latent_smem<FMT_Q8_0> {
    static constexpr uint32_t BUFFERS = 1;
    uint4 k[1][ATTN_TILE * LATENT_HD / 8];
    uint4 q_hi[16 * LATENT_HD / 8], q_lo[16 * LATENT_HD / 8];
    unsigned char raw[q8_raw_bytes(LATENT_HD, ATTN_TILE)];
    float scores[16][SCORE_PITCH];
    const unsigned char *row[2][ATTN_TILE]; /* with chosen positions, of each */
};
static_assert(LATENT_WARPS == ATTN_TILE / 8, "a warp 8 positions, and 64 columns");

/* Piece c of 16 bytes of position r: the lanes of a product use different banks, for K and for V. */
static __device__ __forceinline__ uint32_t latent_at(uint32_t r, uint32_t c)
{
    return r * (LATENT_HD / 8) + (c ^ (r >> 1 & 3) << 1 ^ (r & 1) << 2);
}

/* The tile whose rows are known into buffer `buf`; rows that are NULL become zero, since 0 * garbage may be NaN. */
static __device__ __forceinline__ void latent_load(latent_smem<FMT_F16> &sm, uint32_t buf, bool)
{
    for (uint32_t i = threadIdx.x; i < ATTN_TILE * LATENT_HD / 8; i += LATENT_WARPS * 32) {
        const uint32_t r = i / (LATENT_HD / 8), c = i % (LATENT_HD / 8);
        const unsigned char *src = sm.row[buf][r];
        uint4 *to = &sm.k[buf][latent_at(r, c)];
        if (src)
            cp_async16(smem_of(to), (uint64_t)(uintptr_t)(src + c * 16));
        else
            *to = make_uint4(0, 0, 0, 0);
    }
    cp_commit();
}

static __device__ __forceinline__ void latent_load(latent_smem<FMT_Q8_0> &sm, uint32_t buf, bool apart)
{
    constexpr uint32_t ROW_BYTES = LATENT_HD / 32 * (uint32_t)sizeof(kern_q8_0_block);
    static_assert(ROW_BYTES % 4 == 0, "rows are aligned to 4 bytes");
    if (apart) { /* chosen: nothing tells that eight lie side by side */
#pragma unroll 1
        for (uint32_t r = threadIdx.x / 32; r < ATTN_TILE; r += LATENT_WARPS)
            if (const unsigned char *from = sm.row[buf][r])
                for (uint32_t i = threadIdx.x % 32 * 4; i < ROW_BYTES; i += 32 * 4)
                    cp_async4(smem_of(sm.raw + r * ROW_BYTES + i), (uint64_t)(uintptr_t)(from + i));
        cp_commit();
        return;
    }
    q8_fetch_rows<ATTN_TILE>(sm.raw, q8_group_pieces(LATENT_HD), threadIdx.x / 32, LATENT_WARPS,
                             [&](uint32_t i) { return sm.row[buf][i]; });
    cp_commit();
}

/* The tile that has come; positions that are not in `seen` become zero. */
static __device__ __forceinline__ void latent_unpack(latent_smem<FMT_Q8_0> &sm, int base, attn_span seen)
{
#pragma unroll 2
    for (uint32_t i = threadIdx.x; i < ATTN_TILE * LATENT_HD / 8; i += LATENT_WARPS * 32) {
        const uint32_t r = i / (LATENT_HD / 8), c = i % (LATENT_HD / 8);
        const bool on = base + (int)r >= seen.first && base + (int)r <= seen.last;
        sm.k[0][latent_at(r, c)] =
            q8_eight(sm.raw + (r * (LATENT_HD / 32) + c / 4) * (uint32_t)sizeof(kern_q8_0_block), c % 4, on);
    }
}

/* Scores of the 16 rows and this warp's 8 positions of the tile. Four sums that do not wait for each other. */
template <kern_fmt FMT> static __device__ __forceinline__ void latent_scores(latent_smem<FMT> &sm, uint32_t buf)
{
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    float s[4][4] = {};
#pragma unroll 6
    for (uint32_t b = 0; b < LATENT_HD / 32; b++) {
        const uint32_t q0 = attn_swizzle<LATENT_HD>(g, 4 * b + t), q1 = attn_swizzle<LATENT_HD>(g + 8, 4 * b + t);
        const uint4 h0 = sm.q_hi[q0], h1 = sm.q_hi[q1], l0 = sm.q_lo[q0], l1 = sm.q_lo[q1];
        const uint4 k = sm.k[buf][latent_at(8 * warp + g, 4 * b + t)];
        mma_f16(s[0], l0.x, l1.x, l0.y, l1.y, k.x, k.y);
        mma_f16(s[1], l0.z, l1.z, l0.w, l1.w, k.z, k.w);
        mma_f16(s[2], h0.x, h1.x, h0.y, h1.y, k.x, k.y);
        mma_f16(s[3], h0.z, h1.z, h0.w, h1.w, k.z, k.w);
    }
    float v[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        v[i] = (s[0][i] + s[1][i]) + (s[2][i] + s[3][i]);
    *reinterpret_cast<float2 *>(&sm.scores[g][8 * warp + 2 * t]) = make_float2(v[0], v[1]);
    *reinterpret_cast<float2 *>(&sm.scores[g + 8][8 * warp + 2 * t]) = make_float2(v[2], v[3]);
}

/* blockIdx: split (or 0: all of them), KV head and group of 16 of its heads, token. */
template <kern_fmt FMT>
__global__ void __launch_bounds__(LATENT_WARPS * 32, 1)
    attn_latent_kernel(const __grid_constant__ kern_attn_args a, uint32_t row_groups)
{
    extern __shared__ __align__(16) unsigned char smem[];
    latent_smem<FMT> &sm = *reinterpret_cast<latent_smem<FMT> *>(smem);
    const uint32_t token = blockIdx.z, kvh = blockIdx.y / row_groups, heads = a.n_heads / a.kv.n_kv_heads;
    const uint32_t group = blockIdx.y % row_groups, head0 = kvh * heads + group * 16,
                   n_rows = min(16u, heads - group * 16);
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    overlap_begin();
    const uint32_t seq = a.token_seq[token];
    if (seq == UINT32_MAX)
        return;
    const attn_span span = latent_span_of(a, token);
    const attn_span both[2] = {span, span};
    const bool alone = gridDim.x == 1;
    const int first_split = span.first / KERN_ATTN_SPLIT, last_split = span.last / KERN_ATTN_SPLIT;
    const int begin = alone ? first_split : (int)blockIdx.x, end = alone ? last_split : (int)blockIdx.x;
    if (begin < first_split || end > last_split)
        return;

    const uint32_t *table = a.kv.block_table + (size_t)seq * a.kv.max_blocks;
    const int tile0 = max(span.first, begin * KERN_ATTN_SPLIT) / ATTN_TILE;
    const int tile1 = min(span.last, end * KERN_ATTN_SPLIT + KERN_ATTN_SPLIT - 1) / ATTN_TILE;
    auto find_rows = [&](int tile) {
        const uint32_t step = FMT == FMT_Q8_0 && !a.chosen ? Q8_GROUP : 1;
        if (threadIdx.x < ATTN_TILE / step) {
            const int at = tile * ATTN_TILE + (int)(threadIdx.x * step);
            const bool on = at + (int)(step - 1) >= span.first && at <= span.last;
            sm.row[tile & 1][threadIdx.x] =
                on ? kv_row<FMT>(a, table, kvh, latent_pos(a, token, (uint32_t)at)) : nullptr;
        }
    };
    find_rows(tile0);
    __syncthreads();
    latent_load(sm, (uint32_t)tile0 & 1, a.chosen);
    find_rows(tile0 + 1);
    for (uint32_t i = threadIdx.x; i < 16 * LATENT_HD / 8; i += blockDim.x) {
        const uint32_t r = i / (LATENT_HD / 8), c = i % (LATENT_HD / 8);
        const float *q = a.qkv + (size_t)token * a.qkv_stride + (size_t)(head0 + r) * LATENT_HD + c * 8;
        put_q<LATENT_HD>(sm.q_hi, sm.q_lo, r, c, r < n_rows ? q : nullptr, a.scale * LOG2E);
    }

    float m[2] = {-INFINITY, -INFINITY}, l[2] = {0, 0}, o[8][4];           /* of the split */
    float all_m[2] = {-INFINITY, -INFINITY}, all_l[2] = {0, 0}, all[8][4]; /* of the splits so far */
#pragma unroll
    for (int i = 0; i < 8; i++)
#pragma unroll
        for (int c = 0; c < 4; c++)
            o[i][c] = all[i][c] = 0;
#pragma unroll 1
    for (int tile = tile0; tile <= tile1; tile++) {
        const uint32_t buf = (uint32_t)tile & 1, at = buf % latent_smem<FMT>::BUFFERS;
        cp_wait<0>();
        __syncthreads(); /* the tile and the next one's rows are there; all are done with the other buffer and the scores */
        if constexpr (FMT == FMT_Q8_0) { /* with the only one */
            latent_unpack(sm, tile * ATTN_TILE, span);
            __syncthreads();
        }
        if (tile < tile1)
            latent_load(sm, buf ^ 1, a.chosen);
        latent_scores(sm, at);
        __syncthreads();
        float s[8][4];
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const float2 upper = *reinterpret_cast<const float2 *>(&sm.scores[g][8 * j + 2 * t]);
            const float2 lower = *reinterpret_cast<const float2 *>(&sm.scores[g + 8][8 * j + 2 * t]);
            s[j][0] = upper.x, s[j][1] = upper.y, s[j][2] = lower.x, s[j][3] = lower.y;
        }
        attn_probs p;
        attn_mask(s, tile * ATTN_TILE, both);
        attn_softmax(p, s);
        attn_split(p, s);
        attn_weight w[2];
#pragma unroll
        for (int r = 0; r < 2; r++)
            w[r] = attn_merge(m[r], l[r], p.m[r], p.l[r]);
        float fresh[8][4];
        attn_values(fresh, p, [&](int step, int which) {
            return sm.k[at][latent_at(16 * step + 2 * t + which % 2 + which / 2 * 8, 8 * warp + g)];
        });
#pragma unroll
        for (int i = 0; i < 8; i++)
#pragma unroll
            for (int c = 0; c < 4; c++)
                o[i][c] = attn_mix(o[i][c], fresh[i][c], w[c / 2]);
        if (tile + 2 <= tile1) /* the last reader of the rows was the load of this tile, before the barrier */
            find_rows(tile + 2);
        if (!alone || (tile != tile1 && (tile + 1) % (KERN_ATTN_SPLIT / ATTN_TILE) != 0))
            continue;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const attn_weight k = attn_merge(all_m[r], all_l[r], m[r], l[r]);
#pragma unroll
            for (int i = 0; i < 8; i++)
#pragma unroll
                for (int c = 2 * r; c < 2 * r + 2; c++) {
                    all[i][c] = attn_mix(all[i][c], o[i][c], k);
                    o[i][c] = 0;
                }
            m[r] = -INFINITY;
            l[r] = 0;
        }
    }

    /* Row g + 8r: columns 64 * warp + 16t + 8c + i. */
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const uint32_t row = g + 8 * r, head = head0 + row;
        if (row >= n_rows)
            continue;
        if (!alone) {
            float *part = part_of(a, LATENT_VD, token, head, blockIdx.x, gridDim.x);
            if (warp == 0 && t == 0) {
                part[0] = m[r];
                part[1] = l[r];
            }
#pragma unroll
            for (int c = 0; c < 2; c++)
#pragma unroll
                for (int i = 0; i < 8; i += 2) /* two floats ahead of them: not aligned to more */
                    *reinterpret_cast<float2 *>(part + 2 + 64 * warp + 16 * t + 8 * c + i) =
                        make_float2(o[i][2 * r + c], o[i + 1][2 * r + c]);
            continue;
        }
        attn_weight sink = {1.0f, 0.0f};
        if (a.sinks)
            sink = attn_merge(all_m[r], all_l[r], a.sinks[head] * LOG2E, 1.0f);
        float *out = a.o + ((size_t)token * a.n_heads + head) * LATENT_VD + 64 * warp + 16 * t;
#pragma unroll
        for (int c = 0; c < 2; c++)
#pragma unroll
            for (int i = 0; i < 8; i++) {
                float v = all[i][2 * r + c];
                if (a.sinks)
                    v = attn_mix(v, 0.0f, sink);
                out[8 * c + i] = v / all_l[r];
            }
    }
}

static size_t latent_smem_bytes(const kern_attn_args *a)
{
    return a->kv.fmt == FMT_Q8_0 ? sizeof(latent_smem<FMT_Q8_0>) : sizeof(latent_smem<FMT_F16>);
}

bool attn_latent_takes(const cuda_dev *d, const kern_attn_args *a)
{
    return attn_kv_in_pieces(a) && a->kv.head_dim == LATENT_HD && a->kv.v_dim == LATENT_VD && !d->no_attn_mma &&
           latent_smem_bytes(a) <= (size_t)d->smem_max;
}

cudaError_t attn_latent_launch(cuda_dev *d, const kern_attn_args *a)
{
    const size_t smem = latent_smem_bytes(a);
    void (*const kernel)(kern_attn_args, uint32_t) =
        a->kv.fmt == FMT_Q8_0 ? attn_latent_kernel<FMT_Q8_0> : attn_latent_kernel<FMT_F16>;
    const uint32_t heads = a->n_heads / a->kv.n_kv_heads, row_groups = (heads + 15) / 16;
    cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem);
    if (e != cudaSuccess)
        return e;
    const uint32_t splits = attn_decode_splits(a);
    /* gridDim.z is at most 65535: longer batches go in pieces. */
    for (uint32_t at = 0; at < a->n_tokens; at += 65535) {
        kern_attn_args b = *a;
        b.n_tokens = a->n_tokens - at < 65535 ? a->n_tokens - at : 65535;
        b.qkv += (size_t)at * a->qkv_stride;
        b.o += (size_t)at * a->n_heads * LATENT_VD;
        b.token_seq += at;
        b.token_pos += at;
        b.chosen += a->chosen ? (size_t)at * a->top_k : 0;
        (void)cuda_start(d, kernel, dim3(splits, a->kv.n_kv_heads * row_groups, b.n_tokens), LATENT_WARPS * 32, smem, b,
                         row_groups);
    }
    if (splits > 1)
        attn_merge_launch(d, a, LATENT_VD, splits);
    return cudaSuccess;
}
