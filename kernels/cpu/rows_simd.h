/* rows_simd.h - the vector rows, written once over a few primitives that rows_avx2.c and rows_avx512.c define before they include this:
 *
 *   ROW(name)                    name of a function of this machine
 *   LANES, VF                    lanes and type of a float vector
 *   TILE_TOKENS                  tokens of the register tile (with TILE_ROWS rows they fill the registers)
 *   v_zero v_set1 v_load v_store v_fma v_mul v_add v_sub v_div v_max v_min v_round v_sum v_pow2 v_gt_mask
 *   v_load_n(p, n) v_store_n(p, v, n)   the first n < LANES lanes; the others load as 0 and are not stored
 *   v_f16(p) v_bf16(p) v_i8(p)   LANES stored numbers as floats; v_scale(p) a half in every lane
 *   v_e4m3(p)                    LANES numbers of FP8, 256 times smaller
 *   v_to_f16(p, v)               stores LANES halves
 *   VB b_load(p) v_b(b)          LANES bytes, and they as signed numbers; the rest of what is done with bytes is in rows_bytes.h
 *
 * Order of additions (rule 2 of kernels.h): a dot product has one vector accumulator to which columns are added LANES at a time from
 * left to right, the last ones padded with zeros, and whose lanes are then summed by v_sum. Tiles run many such accumulators side
 * by side to hide the latency of the additions; no tile changes the order within one.
 *
 * Streaming: while a tile works on TILE_ROWS rows it asks for the lines of the rows 2 * TILE_ROWS further on (or of `next`), because
 * the hardware's own prefetch stops at each 4 KiB page, that is at about each row; and into the second-level cache, because in the
 * first they would push out the activations. What each step gained is in docs/kernels-measured.md. */
#include "kernels/cpu/cpu_priv.h"

#define TILE_ROWS 4
#define INLINE    static inline __attribute__((always_inline))
#ifdef __clang__
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 8")
#endif

/* ---- weights of one chunk of LANES columns -------------------------------------------------------------------------- */

INLINE VF chunk_f32(const uint8_t *w, uint32_t i)
{
    return v_load((const float *)(const void *)(w + (size_t)i * 4));
}

INLINE VF chunk_f16(const uint8_t *w, uint32_t i)
{
    return v_f16(w + (size_t)i * 2);
}

INLINE VF chunk_bf16(const uint8_t *w, uint32_t i)
{
    return v_bf16(w + (size_t)i * 2);
}

INLINE VF chunk_q8_0(const uint8_t *w, uint32_t i)
{
    const uint8_t *block = w + (size_t)(i / 32) * sizeof(kern_q8_0_block);
    return v_mul(v_scale(block), v_i8(block + 2 + i % 32));
}

/* Quants of 4 to 6 bits are put together as bytes, LANES of them, and widened then. Values are exact but for the sum with a minimum, which
 * is rounded once: those of rows_ref.c. */
INLINE VB quants4(const uint8_t *qs, uint32_t i)
{
    return b_and(b_shr(b_load(qs + i % 16), i / 16 * 4), 15);
}

INLINE VB quants5(const uint8_t *qh, const uint8_t *qs, uint32_t i)
{
    return b_or(quants4(qs, i), b_and(b_spread(qh + i / 8), 16));
}

INLINE VF chunk_mxfp4(const uint8_t *w, uint32_t i)
{
    const uint8_t *block = w + (size_t)(i / 32) * sizeof(kern_mxfp4_block);
    return v_mul(v_set1(f32_of_e8m0_half(block[0])), v_b(b_of(kern_e2m1_twice, quants4(block + 1, i % 32))));
}

INLINE VF chunk_q4_0(const uint8_t *w, uint32_t i)
{
    const uint8_t *block = w + (size_t)(i / 32) * sizeof(kern_q4_0_block);
    return v_mul(v_scale(block), v_b(b_sub(quants4(block + 2, i % 32), 8)));
}

INLINE VF chunk_iq4_nl(const uint8_t *w, uint32_t i)
{
    const uint8_t *block = w + (size_t)(i / 32) * sizeof(kern_q4_0_block);
    return v_mul(v_scale(block), v_b(b_of(kern_iq4_nl, quants4(block + 2, i % 32))));
}

INLINE VF chunk_q4_1(const uint8_t *w, uint32_t i)
{
    const uint8_t *block = w + (size_t)(i / 32) * sizeof(kern_q4_1_block);
    return v_fma(v_scale(block), v_b(quants4(block + 4, i % 32)), v_scale(block + 2));
}

INLINE VF chunk_q5_0(const uint8_t *w, uint32_t i)
{
    const uint8_t *block = w + (size_t)(i / 32) * sizeof(kern_q5_0_block);
    return v_mul(v_scale(block), v_b(b_sub(quants5(block + 2, block + 6, i % 32), 16)));
}

INLINE VF chunk_q5_1(const uint8_t *w, uint32_t i)
{
    const uint8_t *block = w + (size_t)(i / 32) * sizeof(kern_q5_1_block);
    return v_fma(v_scale(block), v_b(quants5(block + 4, block + 8, i % 32)), v_scale(block + 2));
}

INLINE VF chunk_fp8(const uint8_t *w, uint32_t i)
{
    const uint8_t *block = w + (size_t)(i / 128) * sizeof(kern_fp8_block);
    float d;
    memcpy(&d, block, sizeof d);
    return v_mul(v_set1(d), v_mul(v_set1(256.0f), v_e4m3(block + 4 + i % 128)));
}

INLINE VF chunk_int4(uint32_t head, const uint8_t *qs, uint32_t i)
{
    return v_mul(v_set1(int4_scale(head)), v_b(b_sub(quants4(qs, i), (int8_t)int4_zero(head))));
}

INLINE VF chunk_int4_g32(const uint8_t *w, uint32_t i)
{
    const uint8_t *block = w + (size_t)(i / 128) * sizeof(kern_int4_g32_block);
    uint32_t g = i % 128 / 32;
    return chunk_int4(int4_g32_head(block, g), block + 12 + 16 * g, i % 32);
}

INLINE VF chunk_int4_g128(const uint8_t *w, uint32_t i)
{
    const uint8_t *block = w + (size_t)(i / 128) * sizeof(kern_int4_g128_block);
    return chunk_int4(load_u32(block), block + 4 + i % 128 / 32 * 16, i % 32);
}

INLINE VF chunk_nvfp4(const uint8_t *w, uint32_t i)
{
    const uint8_t *block = w + (size_t)(i / 128) * sizeof(kern_nvfp4_block);
    uint32_t j = i % 128;
    float d;
    memcpy(&d, block, sizeof d);
    VF of_16 = v_set1(f32_of_e4m3(block[4 + j / 16]) * 0.5f);
    VF q = v_b(b_of(kern_e2m1_twice, quants4(block + 12 + j / 32 * 16, j % 32)));
    return v_mul(v_set1(d), v_mul(of_16, q));
}

/* The first n < LANES of a chunk: a copy of what is there, so that nothing behind the row is touched. */
INLINE VF last_f32(const uint8_t *w, uint32_t i, uint32_t n)
{
    float part[LANES] = {0};
    memcpy(part, w + (size_t)i * 4, n * sizeof *part);
    return v_load(part);
}

INLINE VF last_f16(const uint8_t *w, uint32_t i, uint32_t n)
{
    uint16_t part[LANES] = {0};
    memcpy(part, w + (size_t)i * 2, n * sizeof *part);
    return v_f16(part);
}

INLINE VF last_bf16(const uint8_t *w, uint32_t i, uint32_t n)
{
    uint16_t part[LANES] = {0};
    memcpy(part, w + (size_t)i * 2, n * sizeof *part);
    return v_bf16(part);
}

/* A block has no odd chunks: never called with columns left. */
#define DEFINE_NO_LAST(fmt)                                        \
    INLINE VF last_##fmt(const uint8_t *w, uint32_t i, uint32_t n) \
    {                                                              \
        (void)n;                                                   \
        return chunk_##fmt(w, i);                                  \
    }
DEFINE_NO_LAST(q8_0)
DEFINE_NO_LAST(mxfp4)
DEFINE_NO_LAST(q4_0)
DEFINE_NO_LAST(q4_1)
DEFINE_NO_LAST(q5_0)
DEFINE_NO_LAST(q5_1)
DEFINE_NO_LAST(iq4_nl)
/* The block is there to its end, whatever of it counts. */
DEFINE_NO_LAST(fp8)
DEFINE_NO_LAST(int4_g32)
DEFINE_NO_LAST(int4_g128)
DEFINE_NO_LAST(nvfp4)

/* ---- dot products ------------------------------------------------------------------------------------------------------ */

/* Columns after which lines are asked for, about as many as make one; the bytes of their weights. WHOLE: rows are a whole number of them. */
#define STRIDE_f32    (LANES > 16 ? LANES : 16)
#define STRIDE_f16    32
#define STRIDE_bf16   32
#define BYTES_f32     64
#define BYTES_f16     64
#define BYTES_bf16    64
#define WHOLE_f32     0
#define WHOLE_f16     0
#define WHOLE_bf16    0
#define STRIDE_q8_0   32
#define BYTES_q8_0    34
#define WHOLE_q8_0    1
#define STRIDE_mxfp4  32
#define BYTES_mxfp4   17
#define WHOLE_mxfp4   1
#define STRIDE_q4_0   32
#define BYTES_q4_0    18
#define WHOLE_q4_0    1
#define STRIDE_q4_1   32
#define BYTES_q4_1    20
#define WHOLE_q4_1    1
#define STRIDE_q5_0   32
#define BYTES_q5_0    22
#define WHOLE_q5_0    1
#define STRIDE_q5_1   32
#define BYTES_q5_1    24
#define WHOLE_q5_1    1
#define STRIDE_iq4_nl 32
#define BYTES_iq4_nl  18
#define WHOLE_iq4_nl  1
#define STRIDE_fp8    64
#define BYTES_fp8     66
#define WHOLE_fp8     0

#define STRIDE_int4_g32  64
#define BYTES_int4_g32   38
#define WHOLE_int4_g32   0
#define STRIDE_int4_g128 64
#define BYTES_int4_g128  34
#define WHOLE_int4_g128  0
#define STRIDE_nvfp4     64
#define BYTES_nvfp4      38
#define WHOLE_nvfp4      0

/* What is asked for while a tile of n_rows at w is computed. */
INLINE const uint8_t *rows_ahead(const uint8_t *w, uint64_t row_bytes, uint32_t n_rows, const uint8_t *next)
{
    if (n_rows >= 3 * TILE_ROWS)
        return w + 2 * TILE_ROWS * row_bytes;
    return !next ? NULL : n_rows >= 2 * TILE_ROWS ? next : next + TILE_ROWS * row_bytes;
}

#define DEFINE_DOT(fmt)                                                                                            \
    INLINE void tile_##fmt(float *y, size_t y_stride, const uint8_t *w, uint64_t row_bytes, const float *const *x, \
                           uint32_t cols, const uint8_t *ahead, const uint32_t R, const uint32_t T)                \
    {                                                                                                              \
        VF acc[TILE_ROWS][TILE_TOKENS];                                                                            \
        UNROLL for (uint32_t r = 0; r < R; r++) UNROLL for (uint32_t t = 0; t < T; t++) acc[r][t] = v_zero();      \
        uint32_t i = 0;                                                                                            \
        for (uint32_t line = 0; i + STRIDE_##fmt <= cols; line += BYTES_##fmt) {                                   \
            if (ahead)                                                                                             \
                UNROLL for (uint32_t r = 0; r < R; r++) __builtin_prefetch(ahead + r * row_bytes + line, 0, 2);    \
            UNROLL for (uint32_t part = 0; part < STRIDE_##fmt; part += LANES)                                     \
            {                                                                                                      \
                VF xv[TILE_TOKENS];                                                                                \
                UNROLL for (uint32_t t = 0; t < T; t++) xv[t] = v_load(x[t] + i + part);                           \
                UNROLL for (uint32_t r = 0; r < R; r++)                                                            \
                {                                                                                                  \
                    VF wv = chunk_##fmt(w + r * row_bytes, i + part);                                              \
                    UNROLL for (uint32_t t = 0; t < T; t++) acc[r][t] = v_fma(wv, xv[t], acc[r][t]);               \
                }                                                                                                  \
            }                                                                                                      \
            i += STRIDE_##fmt;                                                                                     \
        }                                                                                                          \
        for (; !WHOLE_##fmt && i + LANES <= cols; i += LANES)                                                      \
            UNROLL for (uint32_t r = 0; r < R; r++)                                                                \
            {                                                                                                      \
                VF wv = chunk_##fmt(w + r * row_bytes, i);                                                         \
                UNROLL for (uint32_t t = 0; t < T; t++) acc[r][t] = v_fma(wv, v_load(x[t] + i), acc[r][t]);        \
            }                                                                                                      \
        if (!WHOLE_##fmt && i < cols)                                                                              \
            UNROLL for (uint32_t r = 0; r < R; r++)                                                                \
            {                                                                                                      \
                VF wv = last_##fmt(w + r * row_bytes, i, cols - i);                                                \
                UNROLL for (uint32_t t = 0; t < T; t++) acc[r][t] =                                                \
                    v_fma(wv, v_load_n(x[t] + i, cols - i), acc[r][t]);                                            \
            }                                                                                                      \
        UNROLL for (uint32_t r = 0; r < R; r++) UNROLL for (uint32_t t = 0; t < T; t++) y[t * y_stride + r] =      \
            v_sum(acc[r][t]);                                                                                      \
    }                                                                                                              \
    /* All tokens over R rows. Only the first tile meets rows that are not in the cache. */                        \
    INLINE void rows_##fmt(float *y, size_t y_stride, const uint8_t *w, uint64_t row_bytes, const float *const *x, \
                           uint32_t n_tokens, uint32_t cols, const uint8_t *ahead, const uint32_t R)               \
    {                                                                                                              \
        uint32_t t = 0;                                                                                            \
        for (; t + TILE_TOKENS <= n_tokens; t += TILE_TOKENS, ahead = NULL)                                        \
            tile_##fmt(y + t * y_stride, y_stride, w, row_bytes, x + t, cols, ahead, R, TILE_TOKENS);              \
        y += t * y_stride;                                                                                         \
        x += t;                                                                                                    \
        switch (n_tokens - t) {                                                                                    \
        case 1: tile_##fmt(y, y_stride, w, row_bytes, x, cols, ahead, R, 1); break;                                \
        case 2: tile_##fmt(y, y_stride, w, row_bytes, x, cols, ahead, R, 2); break;                                \
        case 3: tile_##fmt(y, y_stride, w, row_bytes, x, cols, ahead, R, MIN(3, TILE_TOKENS)); break;              \
        case 4: tile_##fmt(y, y_stride, w, row_bytes, x, cols, ahead, R, MIN(4, TILE_TOKENS)); break;              \
        case 5: tile_##fmt(y, y_stride, w, row_bytes, x, cols, ahead, R, MIN(5, TILE_TOKENS)); break;              \
        default: break;                                                                                            \
        }                                                                                                          \
    }                                                                                                              \
    static void ROW(dot_##fmt)(float *y, size_t y_stride, const uint8_t *w, uint64_t row_bytes, uint32_t n_rows,   \
                               const float *const *x, uint32_t n_tokens, uint32_t cols, const uint8_t *next)       \
    {                                                                                                              \
        for (; n_rows >= TILE_ROWS; n_rows -= TILE_ROWS, y += TILE_ROWS, w += TILE_ROWS * row_bytes)               \
            rows_##fmt(y, y_stride, w, row_bytes, x, n_tokens, cols, rows_ahead(w, row_bytes, n_rows, next),       \
                       TILE_ROWS);                                                                                 \
        for (; n_rows; n_rows--, y++, w += row_bytes)                                                              \
            rows_##fmt(y, y_stride, w, row_bytes, x, n_tokens, cols, NULL, 1);                                     \
    }                                                                                                              \
    static void ROW(decode_##fmt)(float *y, const uint8_t *w, uint32_t cols)                                       \
    {                                                                                                              \
        uint32_t i = 0;                                                                                            \
        for (; i + LANES <= cols; i += LANES)                                                                      \
            v_store(y + i, chunk_##fmt(w, i));                                                                     \
        if (i < cols)                                                                                              \
            v_store_n(y + i, last_##fmt(w, i, cols - i), cols - i);                                                \
    }
#include "kernels/cpu/rows_super.h"

#define DEFINE_DOT_1(fmt, bytes)    DEFINE_DOT(fmt)
#define DEFINE_DOT_32(fmt, bytes)   DEFINE_DOT(fmt)
#define DEFINE_DOT_128(fmt, bytes)  DEFINE_DOT(fmt)
#define DEFINE_DOT_256(fmt, bytes)  DEFINE_SUPER_DOT(fmt, bytes)
#define DEFINE(id, fmt, len, bytes) DEFINE_DOT_##len(fmt, bytes)
KERN_FORMATS(DEFINE)

/* ---- weighted sum of V --------------------------------------------------------------------------------------------------- */

/* Queries and vectors of dimensions that are summed in registers. */
#define PV_QUERIES 4
#define PV_VECTORS (LANES == 16 ? 4 : 2)

#define DEFINE_ATTN_PV(fmt)                                                                                            \
    INLINE void pv_tile_##fmt(float *acc, const float *p, size_t p_stride, const uint8_t *v, uint32_t col,             \
                              uint64_t row_bytes, uint32_t n_pos, uint32_t dim, const uint32_t Q, const uint32_t D)    \
    {                                                                                                                  \
        VF sum[PV_QUERIES][PV_VECTORS];                                                                                \
        UNROLL for (uint32_t q = 0; q < Q; q++) UNROLL for (uint32_t d = 0; d < D; d++) sum[q][d] =                    \
            v_load(acc + (size_t)q * dim + d * LANES);                                                                 \
        for (uint32_t i = 0; i < n_pos; i++) {                                                                         \
            VF vv[PV_VECTORS];                                                                                         \
            UNROLL for (uint32_t d = 0; d < D; d++) vv[d] = chunk_##fmt(v + i * row_bytes, col + d * LANES);           \
            UNROLL for (uint32_t q = 0; q < Q; q++)                                                                    \
            {                                                                                                          \
                VF pq = v_set1(p[q * p_stride + i]);                                                                   \
                UNROLL for (uint32_t d = 0; d < D; d++) sum[q][d] = v_fma(pq, vv[d], sum[q][d]);                       \
            }                                                                                                          \
        }                                                                                                              \
        UNROLL for (uint32_t q = 0; q < Q; q++) UNROLL for (uint32_t d = 0; d < D; d++)                                \
            v_store(acc + (size_t)q * dim + d * LANES, sum[q][d]);                                                     \
    }                                                                                                                  \
    INLINE void pv_queries_##fmt(float *acc, const float *p, size_t p_stride, const uint8_t *v, uint64_t row_bytes,    \
                                 uint32_t n_pos, uint32_t dim, const uint32_t Q)                                       \
    {                                                                                                                  \
        uint32_t d = 0;                                                                                                \
        for (; d + PV_VECTORS * LANES <= dim; d += PV_VECTORS * LANES)                                                 \
            pv_tile_##fmt(acc + d, p, p_stride, v, d, row_bytes, n_pos, dim, Q, PV_VECTORS);                           \
        for (; d + LANES <= dim; d += LANES)                                                                           \
            pv_tile_##fmt(acc + d, p, p_stride, v, d, row_bytes, n_pos, dim, Q, 1);                                    \
        for (uint32_t q = 0; d < dim && q < Q; q++) {                                                                  \
            VF sum = v_load_n(acc + (size_t)q * dim + d, dim - d);                                                     \
            for (uint32_t i = 0; i < n_pos; i++)                                                                       \
                sum = v_fma(v_set1(p[q * p_stride + i]), last_##fmt(v + i * row_bytes, d, dim - d), sum);              \
            v_store_n(acc + (size_t)q * dim + d, sum, dim - d);                                                        \
        }                                                                                                              \
    }                                                                                                                  \
    static void ROW(attn_pv_##fmt)(float *acc, const float *p, size_t p_stride, const uint8_t *v, uint64_t row_bytes,  \
                                   uint32_t n_pos, uint32_t n_q, uint32_t dim)                                         \
    {                                                                                                                  \
        uint32_t q = 0;                                                                                                \
        for (; q + PV_QUERIES <= n_q; q += PV_QUERIES)                                                                 \
            pv_queries_##fmt(acc + (size_t)q * dim, p + q * p_stride, p_stride, v, row_bytes, n_pos, dim, PV_QUERIES); \
        for (; q < n_q; q++)                                                                                           \
            pv_queries_##fmt(acc + (size_t)q * dim, p + q * p_stride, p_stride, v, row_bytes, n_pos, dim, 1);          \
    }
DEFINE_ATTN_PV(f32)
DEFINE_ATTN_PV(f16)
DEFINE_ATTN_PV(q8_0)

/* ---- elementwise ---------------------------------------------------------------------------------------------------------- */

static void ROW(to_f16)(uint16_t *y, const float *x, uint32_t n)
{
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES)
        v_to_f16(y + i, v_load(x + i));
    if (i < n) {
        uint16_t part[LANES];
        v_to_f16(part, v_load_n(x + i, n - i));
        memcpy(y + i, part, (n - i) * sizeof *part);
    }
}

static float ROW(max)(const float *x, uint32_t n)
{
    /* v_max yields its second argument when one is NaN. */
    float lanes[LANES], max = -INFINITY;
    VF best = v_set1(-INFINITY);
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES)
        best = v_max(v_load(x + i), best);
    v_store(lanes, best);
    for (uint32_t l = 0; l < LANES; l++)
        max = lanes[l] > max ? lanes[l] : max;
    for (; i < n; i++)
        max = x[i] > max ? x[i] : max;
    return max;
}

/* exp by 2^n * exp(r), |r| <= ln2 / 2, with the polynomial of Cephes expf; below 2 ulp. NaN stays NaN: v_min and v_max yield their
 * second argument then. */
INLINE VF v_exp(VF x)
{
    x = v_max(v_set1(-104.0f), v_min(v_set1(89.0f), x));
    VF n = v_round(v_mul(x, v_set1(1.44269504088896341f)));
    VF r = v_fma(n, v_set1(-0.693359375f), x);
    r = v_fma(n, v_set1(2.12194440e-4f), r);
    VF p = v_set1(1.9875691500e-4f);
    p = v_fma(p, r, v_set1(1.3981999507e-3f));
    p = v_fma(p, r, v_set1(8.3334519073e-3f));
    p = v_fma(p, r, v_set1(4.1665795894e-2f));
    p = v_fma(p, r, v_set1(1.6666665459e-1f));
    p = v_fma(p, r, v_set1(5.0000001201e-1f));
    p = v_add(v_fma(v_mul(p, r), r, r), v_set1(1.0f));
    return v_pow2(p, n);
}

static float ROW(exp)(float *y, const float *x, uint32_t n, float scale, float max)
{
    /* The product is not rounded: of large scores near the maximum that would be most of the error. */
    VF sum = v_zero(), s = v_set1(scale), below = v_set1(-max);
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        VF e = v_exp(v_fma(v_load(x + i), s, below));
        if (y)
            v_store(y + i, e);
        sum = v_add(sum, e);
    }
    if (i < n) {
        float part[LANES] = {0};
        v_store_n(part, v_exp(v_fma(v_load_n(x + i, n - i), s, below)), n - i);
        if (y)
            memcpy(y + i, part, (n - i) * sizeof *part);
        sum = v_add(sum, v_load(part));
    }
    return v_sum(sum);
}

static void ROW(rmsnorm)(float *y, const float *x, const float *weight, uint32_t dim, float eps)
{
    /* Four accumulators in turn: one would wait for each addition. */
    VF sum[4] = {v_zero(), v_zero(), v_zero(), v_zero()};
    uint32_t i = 0, turn = 0;
    for (; i + 4 * LANES <= dim; i += 4 * LANES)
        UNROLL for (uint32_t a = 0; a < 4; a++)
        {
            VF v = v_load(x + i + a * LANES);
            sum[a] = v_fma(v, v, sum[a]);
        }
    for (; i < dim; i += LANES, turn++) {
        VF v = dim - i < LANES ? v_load_n(x + i, dim - i) : v_load(x + i);
        sum[turn] = v_fma(v, v, sum[turn]);
    }
    float squares = v_sum(v_add(v_add(sum[0], sum[1]), v_add(sum[2], sum[3])));
    VF inv = v_set1(1.0f / sqrtf(squares / (float)dim + eps));
    for (i = 0; i + LANES <= dim; i += LANES)
        v_store(y + i, v_mul(v_mul(v_load(x + i), inv), v_load(weight + i)));
    if (i < dim)
        v_store_n(y + i, v_mul(v_mul(v_load_n(x + i, dim - i), inv), v_load_n(weight + i, dim - i)), dim - i);
}

INLINE VF v_swiglu(VF gate, VF up)
{
    VF e = v_exp(v_sub(v_zero(), gate));
    return v_mul(v_div(gate, v_add(v_set1(1.0f), e)), up);
}

static void ROW(swiglu)(float *y, const float *gate, const float *up, uint32_t n)
{
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES)
        v_store(y + i, v_swiglu(v_load(gate + i), v_load(up + i)));
    if (i < n)
        v_store_n(y + i, v_swiglu(v_load_n(gate + i, n - i), v_load_n(up + i, n - i)), n - i);
}

INLINE VF v_geglu(VF gate, VF up)
{
    VF by = v_add(v_set1(KERN_GELU_A), v_mul(v_set1(KERN_GELU_B), v_mul(gate, gate)));
    VF e = v_exp(v_mul(v_sub(v_zero(), gate), by));
    return v_mul(v_div(gate, v_add(v_set1(1.0f), e)), up);
}

static void ROW(geglu)(float *y, const float *gate, const float *up, uint32_t n)
{
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES)
        v_store(y + i, v_geglu(v_load(gate + i), v_load(up + i)));
    if (i < n)
        v_store_n(y + i, v_geglu(v_load_n(gate + i, n - i), v_load_n(up + i, n - i)), n - i);
}

/* v_min and v_max yield their second argument when one is NaN. */
INLINE VF v_clamped(VF gate, VF up, VF alpha, VF limit)
{
    VF g = v_min(limit, gate), u = v_max(v_sub(v_zero(), limit), v_min(limit, up)), one = v_set1(1.0f);
    VF e = v_exp(v_mul(v_sub(v_zero(), alpha), g));
    return v_mul(v_div(g, v_add(one, e)), v_add(u, one));
}

static void ROW(clamped)(float *y, const float *gate, const float *up, uint32_t n, float alpha, float limit)
{
    VF a = v_set1(alpha), l = v_set1(limit);
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES)
        v_store(y + i, v_clamped(v_load(gate + i), v_load(up + i), a, l));
    if (i < n)
        v_store_n(y + i, v_clamped(v_load_n(gate + i, n - i), v_load_n(up + i, n - i), a, l), n - i);
}

INLINE VF v_limited(VF gate, VF up, VF limit)
{
    VF e = v_exp(v_sub(v_zero(), gate));
    VF g = v_min(limit, v_div(gate, v_add(v_set1(1.0f), e)));
    return v_mul(g, v_max(v_sub(v_zero(), limit), v_min(limit, up)));
}

static void ROW(limited)(float *y, const float *gate, const float *up, uint32_t n, float limit)
{
    VF l = v_set1(limit);
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES)
        v_store(y + i, v_limited(v_load(gate + i), v_load(up + i), l));
    if (i < n)
        v_store_n(y + i, v_limited(v_load_n(gate + i, n - i), v_load_n(up + i, n - i), l), n - i);
}

/* Columns that are summed in registers. The state is read twice, from memory and from the cache. */
#define DELTA_VECTORS (LANES == 16 ? 8 : 4)

INLINE void delta_cols(float *o, float *s, const float *q, const float *k, const float *v, const float *decay,
                       float beta, uint32_t k_dim, uint32_t v_dim, const uint32_t D)
{
    VF known[DELTA_VECTORS], u[DELTA_VECTORS], out[DELTA_VECTORS];
    UNROLL for (uint32_t d = 0; d < D; d++) known[d] = out[d] = v_zero();
    for (uint32_t i = 0; i < k_dim; i++) {
        VF ki = v_set1(k[i]), by = v_set1(decay[i]);
        UNROLL for (uint32_t d = 0; d < D; d++) known[d] =
            v_fma(ki, v_mul(by, v_load(s + (size_t)i * v_dim + d * LANES)), known[d]);
    }
    UNROLL for (uint32_t d = 0; d < D; d++) u[d] = v_mul(v_set1(beta), v_sub(v_load(v + d * LANES), known[d]));
    for (uint32_t i = 0; i < k_dim; i++) {
        VF ki = v_set1(k[i]), qi = v_set1(q[i]), by = v_set1(decay[i]);
        UNROLL for (uint32_t d = 0; d < D; d++)
        {
            float *at = s + (size_t)i * v_dim + d * LANES;
            VF now = v_fma(ki, u[d], v_mul(by, v_load(at)));
            v_store(at, now);
            out[d] = v_fma(qi, now, out[d]);
        }
    }
    UNROLL for (uint32_t d = 0; d < D; d++) v_store(o + d * LANES, out[d]);
}

static void ROW(delta)(float *o, float *s, const float *q, const float *k, const float *v, const float *decay,
                       float beta, uint32_t k_dim, uint32_t v_dim)
{
    uint32_t d = 0;
    for (; d + DELTA_VECTORS * LANES <= v_dim; d += DELTA_VECTORS * LANES)
        delta_cols(o + d, s + d, q, k, v + d, decay, beta, k_dim, v_dim, DELTA_VECTORS);
    for (; d + LANES <= v_dim; d += LANES)
        delta_cols(o + d, s + d, q, k, v + d, decay, beta, k_dim, v_dim, 1);
    if (d == v_dim)
        return;
    const uint32_t n = v_dim - d;
    VF known = v_zero(), out = v_zero();
    for (uint32_t i = 0; i < k_dim; i++)
        known = v_fma(v_set1(k[i]), v_mul(v_set1(decay[i]), v_load_n(s + (size_t)i * v_dim + d, n)), known);
    VF u = v_mul(v_set1(beta), v_sub(v_load_n(v + d, n), known));
    for (uint32_t i = 0; i < k_dim; i++) {
        float *at = s + (size_t)i * v_dim + d;
        VF now = v_fma(v_set1(k[i]), u, v_mul(v_set1(decay[i]), v_load_n(at, n)));
        v_store_n(at, now, n);
        out = v_fma(v_set1(q[i]), now, out);
    }
    v_store_n(o + d, out, n);
}

static uint32_t ROW(find)(const float *x, uint32_t from, uint32_t n, float limit)
{
    VF l = v_set1(limit);
    for (; from + LANES <= n; from += LANES) {
        uint32_t mask = v_gt_mask(v_load(x + from), l);
        if (mask)
            return from + (uint32_t)__builtin_ctz(mask);
    }
    while (from < n && !(x[from] > limit))
        from++;
    return from;
}

static uint64_t ROW(read)(const uint8_t *p, size_t bytes)
{
    /* Four streams, a quarter each, as a product reads its rows. OR, so that loads do not wait for one another. */
    size_t quarter = bytes / 4 / 64 * 64, i = 0;
    VF a = v_zero(), b = a, c = a, d = a;
    for (; i < quarter; i += sizeof(VF)) {
        a = v_or(a, v_load((const float *)(const void *)(p + i)));
        b = v_or(b, v_load((const float *)(const void *)(p + quarter + i)));
        c = v_or(c, v_load((const float *)(const void *)(p + 2 * quarter + i)));
        d = v_or(d, v_load((const float *)(const void *)(p + 3 * quarter + i)));
        if (i % 64 == 0)
            UNROLL for (uint32_t s = 0; s < 4; s++) __builtin_prefetch(p + s * quarter + i + 2048, 0, 3);
    }
    a = v_or(v_or(a, b), v_or(c, d));
    uint64_t words[sizeof(VF) / 8], all = 0;
    memcpy(words, &a, sizeof words);
    for (size_t w = 0; w < sizeof words / sizeof *words; w++)
        all |= words[w];
    for (i = 4 * quarter; i < bytes; i++)
        all |= p[i];
    return all;
}

#define ROW_TABLE(table, cap, suffix)                                                   \
    const cpu_row table[] = {                                                           \
        KERN_FORMATS(FORMAT_ROWS) CPU_ROW(attn_pv[FMT_F32], cap, attn_pv_f32_##suffix), \
        CPU_ROW(attn_pv[FMT_F16], cap, attn_pv_f16_##suffix),                           \
        CPU_ROW(attn_pv[FMT_Q8_0], cap, attn_pv_q8_0_##suffix),                         \
        CPU_ROW(to_f16, cap, to_f16_##suffix),                                          \
        CPU_ROW(max, cap, max_##suffix),                                                \
        CPU_ROW(exp, cap, exp_##suffix),                                                \
        CPU_ROW(rmsnorm, cap, rmsnorm_##suffix),                                        \
        CPU_ROW(swiglu, cap, swiglu_##suffix),                                          \
        CPU_ROW(geglu, cap, geglu_##suffix),                                            \
        CPU_ROW(clamped, cap, clamped_##suffix),                                        \
        CPU_ROW(limited, cap, limited_##suffix),                                        \
        CPU_ROW(delta, cap, delta_##suffix),                                            \
        CPU_ROW(find, cap, find_##suffix),                                              \
        CPU_ROW(read, cap, read_##suffix),                                              \
    };                                                                                  \
    const uint32_t table##_count = sizeof table / sizeof *table
