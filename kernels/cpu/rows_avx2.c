/* rows_avx2.c - the primitives of rows_simd.h for AVX2 with FMA and F16C: 16 registers of 8 floats, tails by copies. */
#include <immintrin.h>
#include <stdint.h>

#include "kernels/cpu/rows_bytes.h"

#define ROW(name)   name##_avx2
#define LANES       8
#define TILE_TOKENS 3 /* 12 sums, 3 activations, 1 weight */
#define V_INLINE    static inline __attribute__((always_inline))

typedef __m256 VF;

V_INLINE VF v_zero(void)
{
    return _mm256_setzero_ps();
}
V_INLINE VF v_set1(float f)
{
    return _mm256_set1_ps(f);
}
V_INLINE VF v_load(const float *p)
{
    return _mm256_loadu_ps(p);
}
V_INLINE void v_store(float *p, VF v)
{
    _mm256_storeu_ps(p, v);
}
V_INLINE __m256i first_lanes(uint32_t n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
V_INLINE VF v_load_n(const float *p, uint32_t n)
{
    return _mm256_maskload_ps(p, first_lanes(n));
}
V_INLINE void v_store_n(float *p, VF v, uint32_t n)
{
    _mm256_maskstore_ps(p, first_lanes(n), v);
}
V_INLINE VF v_fma(VF a, VF b, VF c)
{
    return _mm256_fmadd_ps(a, b, c);
}
V_INLINE VF v_mul(VF a, VF b)
{
    return _mm256_mul_ps(a, b);
}
V_INLINE VF v_add(VF a, VF b)
{
    return _mm256_add_ps(a, b);
}
V_INLINE VF v_sub(VF a, VF b)
{
    return _mm256_sub_ps(a, b);
}
V_INLINE VF v_div(VF a, VF b)
{
    return _mm256_div_ps(a, b);
}
V_INLINE VF v_max(VF a, VF b)
{
    return _mm256_max_ps(a, b);
}
V_INLINE VF v_min(VF a, VF b)
{
    return _mm256_min_ps(a, b);
}
V_INLINE VF v_or(VF a, VF b)
{
    return _mm256_or_ps(a, b);
}
V_INLINE VF v_round(VF a)
{
    return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
/* v * 2^n in two steps, since 2^n alone may lie outside the exponents of a float (-150 .. 129). */
V_INLINE VF v_pow2(VF v, VF n)
{
    __m256i k = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(k, 1), rest = _mm256_sub_epi32(k, half);
    __m256i bias = _mm256_set1_epi32(127);
    v = _mm256_mul_ps(v, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23)));
    return _mm256_mul_ps(v, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23)));
}
V_INLINE uint32_t v_gt_mask(VF a, VF b)
{
    return (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ));
}
/* Halves are added to halves: 8, 4, 2, 1. */
V_INLINE float v_sum(VF v)
{
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_shuffle_ps(q, q, 1)));
}
V_INLINE VF v_f16(const void *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128(p));
}
V_INLINE VF v_bf16(const void *p)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(p)), 16));
}
V_INLINE VF v_i8(const void *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(p)));
}
/* E4M3 by way of binary16, which has one exponent bit more and its bias 8 off. */
V_INLINE VF v_e4m3(const void *p)
{
    __m128i b = _mm_cvtepu8_epi16(_mm_loadl_epi64(p));
    __m128i sign = _mm_slli_epi16(_mm_and_si128(b, _mm_set1_epi16(0x80)), 8);
    return _mm256_cvtph_ps(_mm_or_si128(sign, _mm_slli_epi16(_mm_and_si128(b, _mm_set1_epi16(0x7f)), 7)));
}
V_INLINE VB b_load(const void *p)
{
    return _mm_loadl_epi64(p);
}
V_INLINE VF v_b(VB b)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(b));
}
V_INLINE VF v_scale(const void *p)
{
    short h;
    __builtin_memcpy(&h, p, sizeof h);
    return _mm256_cvtph_ps(_mm_set1_epi16(h));
}
V_INLINE void v_to_f16(void *p, VF v)
{
    _mm_storeu_si128(p, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

#include "kernels/cpu/rows_simd.h"

#define FORMAT_ROWS(id, fmt, ...) \
    CPU_ROW(dot[id], CPU_CAP_AVX2, dot_##fmt##_avx2), CPU_ROW(decode[id], CPU_CAP_AVX2, decode_##fmt##_avx2),
ROW_TABLE(cpu_rows_avx2, CPU_CAP_AVX2, avx2);
