/* rows_avx512.c - the primitives of rows_simd.h for AVX-512 (F, BW, DQ, VL): 32 registers of 16 floats, masked tails. */
#include <immintrin.h>
#include <stdint.h>

#include "kernels/cpu/rows_bytes.h"

#define ROW(name)   name##_avx512
#define LANES       16
#define TILE_TOKENS 6 /* 24 sums, 6 activations, 1 weight */
#define V_INLINE    static inline __attribute__((always_inline))

typedef __m512 VF;

V_INLINE VF v_zero(void)
{
    return _mm512_setzero_ps();
}
V_INLINE VF v_set1(float f)
{
    return _mm512_set1_ps(f);
}
V_INLINE VF v_load(const float *p)
{
    return _mm512_loadu_ps(p);
}
V_INLINE void v_store(float *p, VF v)
{
    _mm512_storeu_ps(p, v);
}
V_INLINE __mmask16 first_lanes(uint32_t n)
{
    return (__mmask16)((1u << n) - 1);
}
V_INLINE VF v_load_n(const float *p, uint32_t n)
{
    return _mm512_maskz_loadu_ps(first_lanes(n), p);
}
V_INLINE void v_store_n(float *p, VF v, uint32_t n)
{
    _mm512_mask_storeu_ps(p, first_lanes(n), v);
}
V_INLINE VF v_fma(VF a, VF b, VF c)
{
    return _mm512_fmadd_ps(a, b, c);
}
V_INLINE VF v_mul(VF a, VF b)
{
    return _mm512_mul_ps(a, b);
}
V_INLINE VF v_add(VF a, VF b)
{
    return _mm512_add_ps(a, b);
}
V_INLINE VF v_sub(VF a, VF b)
{
    return _mm512_sub_ps(a, b);
}
V_INLINE VF v_div(VF a, VF b)
{
    return _mm512_div_ps(a, b);
}
V_INLINE VF v_max(VF a, VF b)
{
    return _mm512_max_ps(a, b);
}
V_INLINE VF v_min(VF a, VF b)
{
    return _mm512_min_ps(a, b);
}
V_INLINE VF v_or(VF a, VF b)
{
    return _mm512_or_ps(a, b);
}
V_INLINE VF v_round(VF a)
{
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
V_INLINE VF v_pow2(VF v, VF n)
{
    return _mm512_scalef_ps(v, n);
}
V_INLINE uint32_t v_gt_mask(VF a, VF b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ);
}
/* Halves are added to halves: 16, 8, 4, 2, 1. */
V_INLINE float v_sum(VF v)
{
    __m256 h = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_shuffle_ps(q, q, 1)));
}
V_INLINE VF v_f16(const void *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256(p));
}
V_INLINE VF v_bf16(const void *p)
{
    /* Moves word i to the upper half of lane i: one instruction where widening and shifting are two. */
    const __m512i from = _mm512_slli_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), 16);
    __m512i words = _mm512_castsi256_si512(_mm256_loadu_si256(p));
    return _mm512_castsi512_ps(_mm512_maskz_permutexvar_epi16(0xaaaaaaaau, from, words));
}
V_INLINE VF v_i8(const void *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p)));
}
/* E4M3 by way of binary16, which has one exponent bit more and its bias 8 off. */
V_INLINE VF v_e4m3(const void *p)
{
    __m256i b = _mm256_cvtepu8_epi16(_mm_loadu_si128(p));
    __m256i sign = _mm256_slli_epi16(_mm256_and_si256(b, _mm256_set1_epi16(0x80)), 8);
    return _mm512_cvtph_ps(_mm256_or_si256(sign, _mm256_slli_epi16(_mm256_and_si256(b, _mm256_set1_epi16(0x7f)), 7)));
}
V_INLINE VB b_load(const void *p)
{
    return _mm_loadu_si128(p);
}
V_INLINE VF v_b(VB b)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(b));
}
V_INLINE VF v_scale(const void *p)
{
    short h;
    __builtin_memcpy(&h, p, sizeof h);
    return _mm512_broadcastss_ps(_mm_cvtph_ps(_mm_cvtsi32_si128(h)));
}
V_INLINE void v_to_f16(void *p, VF v)
{
    _mm256_storeu_si256(p, _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

#include "kernels/cpu/rows_simd.h"

#define FORMAT_ROWS(id, fmt, ...) \
    CPU_ROW(dot[id], CPU_CAP_AVX512, dot_##fmt##_avx512), CPU_ROW(decode[id], CPU_CAP_AVX512, decode_##fmt##_avx512),
ROW_TABLE(cpu_rows_avx512, CPU_CAP_AVX512, avx512);
