/* rows_bytes.h - what the vector rows do with bytes before they are numbers, the same for all machines: vectors of 16, of which the
 * first LANES count. */
#ifndef KERNELS_CPU_ROWS_BYTES_H
#define KERNELS_CPU_ROWS_BYTES_H

#include <immintrin.h>
#include <stdint.h>

#define B_INLINE static inline __attribute__((always_inline))

typedef __m128i VB;

B_INLINE VB b_and(VB v, uint8_t mask)
{
    return _mm_and_si128(v, _mm_set1_epi8((char)mask));
}
B_INLINE VB b_or(VB a, VB b)
{
    return _mm_or_si128(a, b);
}
B_INLINE VB b_sub(VB v, int8_t n)
{
    return _mm_sub_epi8(v, _mm_set1_epi8(n));
}
/* Pairs of bytes are shifted: the upper `bits` of a byte hold bits of its neighbour, to be masked away. */
B_INLINE VB b_shr(VB v, uint32_t bits)
{
    return _mm_srli_epi16(v, (int)bits);
}
/* Of bytes below 16. */
B_INLINE VB b_shl4(VB v)
{
    return _mm_slli_epi16(v, 4);
}
/* Of bytes below 64. */
B_INLINE VB b_shl2(VB v)
{
    return _mm_slli_epi16(v, 2);
}
/* table[v[i]], v[i] < 16 */
B_INLINE VB b_of(const int8_t table[16], VB v)
{
    return _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(const void *)table), v);
}
/* Bit i of 16 as a byte of ones or zeros. */
B_INLINE VB b_bits(uint32_t bits)
{
    const VB bytes = _mm_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    const VB each = _mm_set1_epi64x((long long)0x8040201008040201u);
    VB v = _mm_shuffle_epi8(_mm_cvtsi32_si128((int)bits), bytes);
    return _mm_cmpeq_epi8(_mm_and_si128(v, each), each);
}
/* Of the 16 bits at p. */
B_INLINE VB b_spread(const uint8_t *p)
{
    uint16_t bits;
    __builtin_memcpy(&bits, p, sizeof bits);
    return b_bits(bits);
}
/* Each two (three) bits of a number as a byte, the lowest first: eight of a, then of b. */
B_INLINE VB b_codes2(uint32_t a, uint32_t b)
{
    VB v = _mm_set_epi64x(b, a);
    v = _mm_and_si128(_mm_or_si128(v, _mm_slli_epi64(v, 24)), _mm_set1_epi32(0xff));
    v = _mm_and_si128(_mm_or_si128(v, _mm_slli_epi32(v, 12)), _mm_set1_epi16(0x0f));
    return _mm_and_si128(_mm_or_si128(v, _mm_slli_epi16(v, 6)), _mm_set1_epi8(3));
}
B_INLINE VB b_codes3(uint32_t a, uint32_t b)
{
    VB v = _mm_set_epi64x(b, a);
    v = _mm_and_si128(_mm_or_si128(v, _mm_slli_epi64(v, 20)), _mm_set1_epi32(0xfff));
    v = _mm_and_si128(_mm_or_si128(v, _mm_slli_epi32(v, 10)), _mm_set1_epi16(0x3f));
    return _mm_and_si128(_mm_or_si128(v, _mm_slli_epi16(v, 5)), _mm_set1_epi8(7));
}
/* -v where m has ones, v where it has zeros. */
B_INLINE VB b_negate(VB v, VB m)
{
    return _mm_sub_epi8(_mm_xor_si128(v, m), m);
}
/* v - 1 where m has ones, v + 1 where it has zeros. */
B_INLINE VB b_shift(VB v, VB m)
{
    return _mm_add_epi8(v, _mm_or_si128(m, _mm_set1_epi8(1)));
}

#endif
