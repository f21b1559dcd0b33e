/* rows_super.h - rows of formats whose blocks have 256 weights: included by rows_simd.h, whose terms it uses.
 *
 * Such a block is taken apart as a whole: what its sixteens or groups of 32 are multiplied by is worked out once, and its weights become floats, which
 * one function for all these formats then multiplies with, in the same order as rows_simd.h. Code that did both at once, for each format and
 * each number of tokens, took the compiler minutes. */

/* Of a super-block of 256 weights what its sixteens or groups of 32 are multiplied by, and what is added: worked out once for all of them. */
typedef struct k_scales {
    float d[16], m[16];
} k_scales;

INLINE void scales_of_bytes(k_scales *k, const uint8_t *block, const uint8_t scales[8], const uint8_t minima[8])
{
    const float d = f32_of_f16(load_u16(block)), dmin = -f32_of_f16(load_u16(block + 2));
    for (uint32_t g = 0; g < 8; g++)
        k->d[g] = d * (float)scales[g];
    for (uint32_t g = 0; g < 8; g++)
        k->m[g] = dmin * (float)minima[g];
}

/* Of Q4_K and Q5_K: see k_scale(), here for four groups at a time. */
INLINE void scales_q4_k(k_scales *k, const uint8_t *block)
{
    const uint32_t low = load_u32(block + 4), mid = load_u32(block + 8), high = load_u32(block + 12);
    const uint32_t of[4] = {low & 0x3f3f3f3fu, (high & 0x0f0f0f0fu) | (low >> 6 & 0x03030303u) << 4, mid & 0x3f3f3f3fu,
                            (high >> 4 & 0x0f0f0f0fu) | (mid >> 6 & 0x03030303u) << 4};
    uint8_t bytes[16];
    memcpy(bytes, of, sizeof bytes);
    scales_of_bytes(k, block, bytes, bytes + 8);
}
INLINE void scales_q5_k(k_scales *k, const uint8_t *block)
{
    scales_q4_k(k, block);
}

INLINE void scales_q6_k(k_scales *k, const uint8_t *block)
{
    const float d = f32_of_f16(load_u16(block + 208));
    for (uint32_t s = 0; s < 16; s++)
        k->d[s] = d * (float)(int8_t)block[192 + s];
}

INLINE void scales_q2_k(k_scales *k, const uint8_t *block)
{
    const float d = f32_of_f16(load_u16(block + 80)), dmin = -f32_of_f16(load_u16(block + 82));
    for (uint32_t s = 0; s < 16; s++)
        k->d[s] = d * (float)(block[s] & 15);
    for (uint32_t s = 0; s < 16; s++)
        k->m[s] = dmin * (float)(block[s] >> 4);
}

INLINE void scales_q3_k(k_scales *k, const uint8_t *block)
{
    const float d = f32_of_f16(load_u16(block + 108));
    for (uint32_t s = 0; s < 16; s++)
        k->d[s] = d * (float)q3_k_scale(block + 96, s);
}

INLINE void scales_iq4_xs(k_scales *k, const uint8_t *block)
{
    const float d = f32_of_f16(load_u16(block));
    for (uint32_t g = 0; g < 8; g++)
        k->d[g] = d * (float)iq4_xs_scale(block, g);
}

/* Weights i and on of the super-block, i a multiple of LANES. */
INLINE VF part_q4_k(const k_scales *k, const uint8_t *block, uint32_t i)
{
    const uint32_t g = i / 32;
    VB q = b_and(b_shr(b_load(block + 16 + g / 2 * 32 + i % 32), g % 2 * 4), 15);
    return v_fma(v_set1(k->d[g]), v_b(q), v_set1(k->m[g]));
}

INLINE VF part_q5_k(const k_scales *k, const uint8_t *block, uint32_t i)
{
    const uint32_t g = i / 32;
    VB low = b_and(b_shr(b_load(block + 48 + g / 2 * 32 + i % 32), g % 2 * 4), 15);
    VB q = b_or(low, b_shl4(b_and(b_shr(b_load(block + 16 + i % 32), g), 1)));
    return v_fma(v_set1(k->d[g]), v_b(q), v_set1(k->m[g]));
}

INLINE VF part_q6_k(const k_scales *k, const uint8_t *block, uint32_t i)
{
    const uint32_t half = i / 128, j = i % 128;
    VB low = b_and(b_shr(b_load(block + 64 * half + j % 64), j / 64 * 4), 15);
    VB high = b_and(b_shr(b_load(block + 128 + 32 * half + j % 32), j / 32 * 2), 3);
    return v_mul(v_set1(k->d[i / 16]), v_b(b_sub(b_or(low, b_shl4(high)), 32)));
}

INLINE VB quants2(const uint8_t *qs, uint32_t i)
{
    return b_and(b_shr(b_load(qs + i / 128 * 32 + i % 32), i % 128 / 32 * 2), 3);
}

INLINE VF part_q2_k(const k_scales *k, const uint8_t *block, uint32_t i)
{
    return v_fma(v_set1(k->d[i / 16]), v_b(quants2(block + 16, i)), v_set1(k->m[i / 16]));
}

INLINE VF part_q3_k(const k_scales *k, const uint8_t *block, uint32_t i)
{
    VB high = b_and(b_shr(b_load(block + i % 32), i / 32), 1);
    return v_mul(v_set1(k->d[i / 16]), v_b(b_sub(b_or(quants2(block + 32, i), b_shl2(high)), 4)));
}

INLINE VF part_iq4_xs(const k_scales *k, const uint8_t *block, uint32_t i)
{
    const uint32_t g = i / 32;
    return v_mul(v_set1(k->d[g]), v_b(b_of(kern_iq4_nl, quants4(block + 8 + 16 * g, i % 32))));
}

/* IQ1, IQ2, IQ3: LANES weights have one scale and are one eight or two. `q` makes their bytes. */
#define DEFINE_PART_IQ(fmt, half, q, by)                                                              \
    INLINE void scales_##fmt(k_scales *k, const uint8_t *block)                                       \
    {                                                                                                 \
        k->d[0] = f32_of_f16(half) * (by);                                                            \
    }                                                                                                 \
    INLINE VF part_##fmt(const k_scales *k, const uint8_t *block, uint32_t i)                         \
    {                                                                                                 \
        const kern_iq a = kern_##fmt(block, i / 8), b = LANES > 8 ? kern_##fmt(block, i / 8 + 1) : a; \
        const VB signs = b_bits(a.negatives | b.negatives << 8);                                      \
        return v_mul(v_set1(k->d[0] * (float)a.scale), v_b(q));                                       \
    }
static const int8_t iq2_bytes[16] = {KERN_IQ2_BYTES}, iq3_xxs_bytes[16] = {KERN_IQ3_XXS_BYTES},
                    iq3_s_bytes[16] = {KERN_IQ3_S_BYTES}, iq1_bytes[16] = {-8, 0, 8};
#define IQ1          b_shift(b_of(iq1_bytes, b_codes2(a.codes, b.codes)), signs)
#define IQ2          b_negate(b_of(iq2_bytes, b_codes2(a.codes, b.codes)), signs)
#define IQ3(of_code) b_negate(b_of(of_code, b_codes3(a.codes, b.codes)), signs)
DEFINE_PART_IQ(iq2_xxs, load_u16(block), IQ2, 0.125f)
DEFINE_PART_IQ(iq2_xs, load_u16(block), IQ2, 0.125f)
DEFINE_PART_IQ(iq2_s, load_u16(block), IQ2, 0.125f)
DEFINE_PART_IQ(iq3_xxs, load_u16(block), IQ3(iq3_xxs_bytes), 0.25f)
DEFINE_PART_IQ(iq3_s, load_u16(block), IQ3(iq3_s_bytes), 1)
DEFINE_PART_IQ(iq1_s, load_u16(block), IQ1, 0.125f)
DEFINE_PART_IQ(iq1_m, kern_iq1_m_d(block), IQ1, 0.125f)
#undef IQ1
#undef IQ2
#undef IQ3

/* ---- dot products ------------------------------------------------------------------------------------------------------ */

typedef void super_fn(float *y, const uint8_t *block); /* y[256]: its weights */

/* To the end, so that all places and shifts in a block are constants. */
#ifdef __clang__
#define UNROLL_BLOCK _Pragma("unroll")
#else
#define UNROLL_BLOCK _Pragma("GCC unroll 32")
#endif

INLINE void super_tile(super_fn *take, uint32_t bytes, float *y, size_t y_stride, const uint8_t *w, uint64_t row_bytes,
                       const float *const *x, uint32_t cols, const uint8_t *ahead, const uint32_t R, const uint32_t T)
{
    VF acc[TILE_ROWS][TILE_TOKENS];
    float of[TILE_ROWS][256];
    UNROLL for (uint32_t r = 0; r < R; r++) UNROLL for (uint32_t t = 0; t < T; t++) acc[r][t] = v_zero();
    for (uint32_t i = 0; i < cols; i += 256, w += bytes) {
        for (uint32_t r = 0; r < R; r++) {
            for (uint32_t line = 0; ahead && line < bytes; line += 64)
                __builtin_prefetch(ahead + r * row_bytes + i / 256 * bytes + line, 0, 2);
            take(of[r], w + r * row_bytes);
        }
        for (uint32_t k = 0; k < 256; k += LANES)
            UNROLL for (uint32_t r = 0; r < R; r++)
            {
                VF wv = v_load(of[r] + k);
                UNROLL for (uint32_t t = 0; t < T; t++) acc[r][t] = v_fma(wv, v_load(x[t] + i + k), acc[r][t]);
            }
    }
    UNROLL for (uint32_t r = 0; r < R; r++) UNROLL for (uint32_t t = 0; t < T; t++) y[t * y_stride + r] =
        v_sum(acc[r][t]);
}

INLINE void super_rows(super_fn *take, uint32_t bytes, float *y, size_t y_stride, const uint8_t *w, uint64_t row_bytes,
                       const float *const *x, uint32_t n_tokens, uint32_t cols, const uint8_t *ahead, const uint32_t R)
{
    for (; n_tokens >= TILE_TOKENS;
         n_tokens -= TILE_TOKENS, x += TILE_TOKENS, y += TILE_TOKENS * y_stride, ahead = NULL)
        super_tile(take, bytes, y, y_stride, w, row_bytes, x, cols, ahead, R, TILE_TOKENS);
    switch (n_tokens) {
    case 1: super_tile(take, bytes, y, y_stride, w, row_bytes, x, cols, ahead, R, 1); break;
    case 2: super_tile(take, bytes, y, y_stride, w, row_bytes, x, cols, ahead, R, 2); break;
    case 3: super_tile(take, bytes, y, y_stride, w, row_bytes, x, cols, ahead, R, MIN(3, TILE_TOKENS)); break;
    case 4: super_tile(take, bytes, y, y_stride, w, row_bytes, x, cols, ahead, R, MIN(4, TILE_TOKENS)); break;
    case 5: super_tile(take, bytes, y, y_stride, w, row_bytes, x, cols, ahead, R, MIN(5, TILE_TOKENS)); break;
    default: break;
    }
}

static __attribute__((noinline)) void ROW(super_dot)(super_fn *take, uint32_t bytes, float *y, size_t y_stride,
                                                     const uint8_t *w, uint64_t row_bytes, uint32_t n_rows,
                                                     const float *const *x, uint32_t n_tokens, uint32_t cols,
                                                     const uint8_t *next)
{
    for (; n_rows >= TILE_ROWS; n_rows -= TILE_ROWS, y += TILE_ROWS, w += TILE_ROWS * row_bytes)
        super_rows(take, bytes, y, y_stride, w, row_bytes, x, n_tokens, cols, rows_ahead(w, row_bytes, n_rows, next),
                   TILE_ROWS);
    for (; n_rows; n_rows--, y++, w += row_bytes)
        super_rows(take, bytes, y, y_stride, w, row_bytes, x, n_tokens, cols, NULL, 1);
}

#define DEFINE_SUPER_DOT(fmt, bytes)                                                                             \
    static void ROW(take_##fmt)(float *y, const uint8_t *block)                                                  \
    {                                                                                                            \
        k_scales k;                                                                                              \
        scales_##fmt(&k, block);                                                                                 \
        UNROLL_BLOCK for (uint32_t i = 0; i < 256; i += LANES) v_store(y + i, part_##fmt(&k, block, i));         \
    }                                                                                                            \
    static void ROW(dot_##fmt)(float *y, size_t y_stride, const uint8_t *w, uint64_t row_bytes, uint32_t n_rows, \
                               const float *const *x, uint32_t n_tokens, uint32_t cols, const uint8_t *next)     \
    {                                                                                                            \
        ROW(super_dot)                                                                                           \
        (ROW(take_##fmt), bytes, y, y_stride, w, row_bytes, n_rows, x, n_tokens, cols, next);                    \
    }                                                                                                            \
    static void ROW(decode_##fmt)(float *y, const uint8_t *w, uint32_t cols)                                     \
    {                                                                                                            \
        for (uint32_t i = 0; i < cols; i += 256, w += bytes)                                                     \
            ROW(take_##fmt)(y + i, w);                                                                           \
    }
