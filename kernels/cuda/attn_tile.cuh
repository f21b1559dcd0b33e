/* attn_tile.cuh - the one arithmetic of attention: 16 query rows against a tile of 64 cached positions.
 *
 * Tiles begin at multiples of 64 positions, splits at multiples of KERN_ATTN_SPLIT. Each tile gives a fresh maximum m, sum l and vector o
 * for every row; they are merged into their split in order of position, and splits into the result the same way, by one formula
 * (attn_merge). A tile in which a row sees nothing is not merged into that row. So it does not matter which warp, block or launch
 * computed a tile, nor which other rows it carried: decode and prefill give the same bits.
 *
 * Scores are in units of log2. Q and P are split in f16 hi + lo, the cache is F16, sums are float32.
 * Operand layout as in frag.cuh: a lane holds 8 consecutive dimensions of its row or position for each block of 32. For P V the
 * columns of a 64-wide group of dimensions are dealt so that a lane loads 16 bytes of a row of V: column g of product i is
 * dimension 8g + i of the group. */
#ifndef KERNELS_CUDA_ATTN_TILE_CUH
#define KERNELS_CUDA_ATTN_TILE_CUH

#include "kernels/cuda/attn.h"
#include "kernels/kernels.h"

#include <cuda_fp16.h>

#define ATTN_TILE 64
#define LOG2E     1.44269504088896340736f

static __device__ __forceinline__ void mma_f16(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                               uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

static __device__ __forceinline__ void split_half(float p, float q, uint32_t *hi, uint32_t *lo)
{
    const __half2 h = __floats2half2_rn(p, q);
    const float2 f = __half22float2(h);
    const __half2 l = __floats2half2_rn(p - f.x, q - f.y);
    *hi = *reinterpret_cast<const uint32_t *>(&h);
    *lo = *reinterpret_cast<const uint32_t *>(&l);
}

/* Sixteen-byte piece c of row r in an array of rows of HD halves; neighbours in r use different banks. */
template <int HD> static __device__ __forceinline__ uint32_t attn_swizzle(uint32_t r, uint32_t c)
{
    return r * (HD / 8) + (c ^ (r & 1) << 2);
}

template <kern_fmt FMT> static __device__ __forceinline__ size_t kv_bytes(const kern_attn_args &a, size_t rows)
{
    return FMT == FMT_Q8_0 ? rows * (a.kv.head_dim / 32 * (uint32_t)sizeof(kern_q8_0_block)) : rows * a.kv.head_dim * 2;
}

/* What a row may see: positions first <= p <= last. last = -1: nothing. */
struct attn_span {
    int first, last;
};

/* FMT: of the cache, as everywhere in these files. A row in block `id`, which holds it. */
template <kern_fmt FMT>
static __device__ __forceinline__ const unsigned char *kv_row_in(const kern_attn_args &a, uint32_t id, uint32_t kvh,
                                                                 uint32_t pos)
{
    return reinterpret_cast<const unsigned char *>(a.kv.block_addr[id] + a.layer * a.kv.layer_bytes) +
           kv_bytes<FMT>(a, (size_t)kvh * a.kv.block_size + pos % a.kv.block_size);
}

template <kern_fmt FMT>
static __device__ __forceinline__ const unsigned char *kv_row(const kern_attn_args &a, const uint32_t *table,
                                                              uint32_t kvh, uint32_t pos)
{
    return kv_row_in<FMT>(a, table[pos / a.kv.block_size], kvh, pos);
}

/* Partial results of a split: [(token * n_heads + head) * n_splits + split] of {m, l, o[dim]}. */
static __device__ __forceinline__ float *part_of(const kern_attn_args &a, uint32_t dim, uint32_t token, uint32_t head,
                                                 uint32_t split, uint32_t n_splits)
{
    return static_cast<float *>(a.scratch) + (((size_t)token * a.n_heads + head) * n_splits + split) * (dim + 2);
}

/* Eight values of Q, scaled, as f16 hi and lo. */
static __device__ __forceinline__ void split_q(float4 v, float4 w, float scale, uint4 *hi, uint4 *lo)
{
    split_half(v.x * scale, v.y * scale, &hi->x, &lo->x);
    split_half(v.z * scale, v.w * scale, &hi->y, &lo->y);
    split_half(w.x * scale, w.y * scale, &hi->z, &lo->z);
    split_half(w.z * scale, w.w * scale, &hi->w, &lo->w);
}

/* The same into the swizzled rows; zeros of NULL. */
template <int HD>
static __device__ __forceinline__ void put_q(uint4 *q_hi, uint4 *q_lo, uint32_t row, uint32_t c, const float *src,
                                             float scale)
{
    uint4 h = make_uint4(0, 0, 0, 0), l = h;
    if (src)
        split_q(make_float4(src[0], src[1], src[2], src[3]), make_float4(src[4], src[5], src[6], src[7]), scale, &h,
                &l);
    q_hi[attn_swizzle<HD>(row, c)] = h;
    q_lo[attn_swizzle<HD>(row, c)] = l;
}

static __device__ __forceinline__ attn_span span_of(const kern_attn_args &a, uint32_t token)
{
    const int pos = (int)a.token_pos[token];
    return attn_span{attn_first(a, (uint32_t)pos), pos};
}

/* The same of latent attention, in whose kernels these are not positions but entries of what the token has chosen, where it has. */
static __device__ __forceinline__ attn_span latent_span_of(const kern_attn_args &a, uint32_t token)
{
    attn_span s = span_of(a, token);
    if (a.chosen)
        s.last = min(s.last, (int)a.top_k - 1);
    return s;
}

/* The position of such an entry. */
static __device__ __forceinline__ uint32_t latent_pos(const kern_attn_args &a, uint32_t token, uint32_t entry)
{
    return a.chosen ? a.chosen[(size_t)token * a.top_k + entry] : entry;
}

/* What tokens from .. to - 1 may see, together. By a warp. */
static __device__ __forceinline__ attn_span span_of_all(const kern_attn_args &a, uint32_t from, uint32_t to)
{
    attn_span all = {INT32_MAX, -1};
    for (uint32_t i = from + threadIdx.x % 32; i < to; i += 32) {
        const attn_span s = span_of(a, i);
        all.first = min(all.first, s.first);
        all.last = max(all.last, s.last);
    }
    return attn_span{__reduce_min_sync(~0u, all.first), __reduce_max_sync(~0u, all.last)};
}

/* The first of tokens from .. to - 1 that is of another sequence than `from`, or `to`. By a warp. */
static __device__ __forceinline__ uint32_t end_of_run(const kern_attn_args &a, uint32_t from, uint32_t to)
{
    const uint32_t seq = a.token_seq[from];
    for (uint32_t at = from; at < to; at += 32) {
        const uint32_t i = at + threadIdx.x % 32;
        if (const uint32_t others = __ballot_sync(~0u, i < to && a.token_seq[i] != seq))
            return at + __ffs(others) - 1;
    }
    return to;
}

/* (m, l) with weights for the values: m2 = max, a and b scale the old and the new. */
struct attn_weight {
    float a, b;
};

static __device__ __forceinline__ attn_weight attn_merge(float &m, float &l, float m_new, float l_new)
{
    const bool some = m_new != -INFINITY;
    const float top = fmaxf(m, m_new), a = exp2f(m - top), b = exp2f(m_new - top);
    l = some ? fmaf(l_new, b, __fmul_rn(l, a)) : l;
    m = top;
    return attn_weight{some ? a : 1.0f, some ? b : 0.0f};
}

static __device__ __forceinline__ float attn_mix(float o, float o_new, attn_weight w)
{
    return fmaf(o_new, w.b, __fmul_rn(o, w.a));
}

/* Block b of 32 dimensions: s += Q K. Q rows g and g + 8 from shared memory (`q_hi`, `q_lo`: swizzled rows), K by k(j): the lane's 16
 * bytes of position 8j + g. */
template <int HD, typename K>
static __device__ __forceinline__ void attn_scores_block(float (&s)[8][4], const uint4 *q_hi, const uint4 *q_lo, int b,
                                                         K k)
{
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const uint4 h0 = q_hi[attn_swizzle<HD>(g, 4 * b + t)], h1 = q_hi[attn_swizzle<HD>(g + 8, 4 * b + t)];
    const uint4 l0 = q_lo[attn_swizzle<HD>(g, 4 * b + t)], l1 = q_lo[attn_swizzle<HD>(g + 8, 4 * b + t)];
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const uint4 v = k(j);
        mma_f16(s[j], l0.x, l1.x, l0.y, l1.y, v.x, v.y);
        mma_f16(s[j], h0.x, h1.x, h0.y, h1.y, v.x, v.y);
        mma_f16(s[j], l0.z, l1.z, l0.w, l1.w, v.z, v.w);
        mma_f16(s[j], h0.z, h1.z, h0.w, h1.w, v.z, v.w);
    }
}

/* All blocks in order; k(j, b). */
template <int HD, typename K>
static __device__ __forceinline__ void attn_scores(float (&s)[8][4], const uint4 *q_hi, const uint4 *q_lo, K k)
{
#pragma unroll
    for (int j = 0; j < 8; j++)
        s[j][0] = s[j][1] = s[j][2] = s[j][3] = 0;
#pragma unroll
    for (int b = 0; b < HD / 32; b++)
        attn_scores_block<HD>(s, q_hi, q_lo, b, [&](int j) { return k(j, b); });
}

/* 2^x of scores below their maximum. What is less than 2^-126 becomes 0: as a half it is 0 anyway, and beside a sum of 1 and more it is
 * nothing. exp2f() takes four instructions for that. */
static __device__ __forceinline__ float attn_exp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

struct attn_probs {
    uint32_t hi[4][4], lo[4][4]; /* A operand of the four steps of 16 positions */
    float m[2], l[2];            /* rows g and g + 8 */
};

/* Scores of positions that the rows may not see, of a tile that begins at `base`, become -INFINITY. */
static __device__ __forceinline__ void attn_mask(float (&s)[8][4], int base, const attn_span (&span)[2])
{
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        if (base >= span[r].first && base + ATTN_TILE - 1 <= span[r].last)
            continue;
#pragma unroll
        for (int j = 0; j < 8; j++)
#pragma unroll
            for (int c = 0; c < 2; c++) {
                const int pos = base + 8 * j + 2 * t + c;
                if (pos < span[r].first || pos > span[r].last)
                    s[j][2 * r + c] = -INFINITY;
            }
    }
}

/* Of masked scores: p.m and p.l, and 2^(s - m) in s. */
static __device__ __forceinline__ void attn_softmax(attn_probs &p, float (&s)[8][4])
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        p.m[r] = -INFINITY;
#pragma unroll
        for (int j = 0; j < 8; j++)
#pragma unroll
            for (int c = 0; c < 2; c++)
                p.m[r] = fmaxf(p.m[r], s[j][2 * r + c]);
    }
#pragma unroll
    for (int x = 1; x <= 2; x++)
#pragma unroll
        for (int r = 0; r < 2; r++)
            p.m[r] = fmaxf(p.m[r], __shfl_xor_sync(~0u, p.m[r], x));
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float off = p.m[r] == -INFINITY ? 0.0f : p.m[r];
        p.l[r] = 0;
#pragma unroll
        for (int j = 0; j < 8; j++)
#pragma unroll
            for (int c = 0; c < 2; c++) {
                s[j][2 * r + c] = attn_exp2(s[j][2 * r + c] - off);
                p.l[r] += s[j][2 * r + c];
            }
    }
#pragma unroll
    for (int x = 1; x <= 2; x++)
#pragma unroll
        for (int r = 0; r < 2; r++)
            p.l[r] += __shfl_xor_sync(~0u, p.l[r], x);
}

/* The operand of attn_values(). */
static __device__ __forceinline__ void attn_split(attn_probs &p, const float (&s)[8][4])
{
#pragma unroll
    for (int k = 0; k < 4; k++)
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int r = 0; r < 2; r++)
                split_half(s[2 * k + h][2 * r], s[2 * k + h][2 * r + 1], &p.hi[k][2 * h + r], &p.lo[k][2 * h + r]);
}

/* Values of 64 dimensions: o[i] row g: dimensions 16t + i (c0) and 16t + 8 + i (c1) of the group; row g + 8: c2, c3.
 * v(k, i): the lane's 16 bytes, dimensions 8g .. of the group, of position 16k + 2t + (0, 1, 8, 9)[i] of the tile. */
template <typename V> static __device__ __forceinline__ void attn_values(float (&o)[8][4], const attn_probs &p, V v)
{
#pragma unroll
    for (int i = 0; i < 8; i++)
        o[i][0] = o[i][1] = o[i][2] = o[i][3] = 0;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        const uint4 v0 = v(k, 0), v1 = v(k, 1), v2 = v(k, 2), v3 = v(k, 3);
        const uint32_t w0[4] = {v0.x, v0.y, v0.z, v0.w}, w1[4] = {v1.x, v1.y, v1.z, v1.w};
        const uint32_t w2[4] = {v2.x, v2.y, v2.z, v2.w}, w3[4] = {v3.x, v3.y, v3.z, v3.w};
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const uint32_t sel = i & 1 ? 0x7632 : 0x5410;
            const uint32_t b0 = __byte_perm(w0[i / 2], w1[i / 2], sel), b1 = __byte_perm(w2[i / 2], w3[i / 2], sel);
            mma_f16(o[i], p.lo[k][0], p.lo[k][1], p.lo[k][2], p.lo[k][3], b0, b1);
            mma_f16(o[i], p.hi[k][0], p.hi[k][1], p.hi[k][2], p.hi[k][3], b0, b1);
        }
    }
}

#endif
