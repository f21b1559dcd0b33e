/* quant_iq.h - what eight weights of an IQ1, IQ2 or IQ3 block are made of; the same for both backends. Source: ggml-common.h and
 * dequantize_row_iq* of ggml-quants.c.
 *
 * A weight is d * scale * q / 2^KERN_IQ_SHIFT, of which all but the last rounding is exact: d is a half, the scale odd and below 32, q a small whole
 * number that comes from a grid (quant_grids.h) of those eights that are worth having. */
#ifndef KERNELS_QUANT_IQ_H
#define KERNELS_QUANT_IQ_H

#include "kernels/quant.h"
#include "kernels/quant_grids.h"

#ifdef __CUDACC__
#define KERN_IQ static __device__ __forceinline__
#else
#define KERN_IQ static inline
#endif

typedef struct kern_iq {
    uint32_t codes; /* of eight weights, the first lowest: two bits each, in IQ3 three */
    uint32_t
        negatives; /* bit i: weight i is; of IQ1, whose weights are shifted by an eighth: all bits or none, the shift is */
    uint32_t scale;
} kern_iq;

/* |q| by code: of IQ2 8, 25, 43; of IQ3_XXS 4, 12, ... 52, 62; of IQ3_S 1, 3, ... 15. Of IQ1 q is 8 * (code - 1) + 1, or - 1. */
#define KERN_IQ2_BYTES     8, 25, 43
#define KERN_IQ3_XXS_BYTES 4, 12, 20, 28, 36, 44, 52, 62
#define KERN_IQ3_S_BYTES   1, 3, 5, 7, 9, 11, 13, 15

/* Blocks begin at even addresses on a GPU, where a byte takes as long to load as all of them. */
KERN_IQ uint32_t kern_iq_u16(const uint8_t *p)
{
#ifdef __CUDACC__
    return *(const uint16_t *)p;
#else
    return p[0] | (uint32_t)p[1] << 8;
#endif
}

/* Of the even number of negative ones seven bits tell. */
KERN_IQ uint32_t kern_iq_signs(uint32_t seven)
{
    uint32_t odd = seven ^ seven >> 4;
    odd ^= odd >> 2;
    return seven | ((odd ^ odd >> 1) & 1) << 7;
}

KERN_IQ uint32_t kern_iq_nibble(const uint8_t *p, uint32_t i)
{
    return p[i / 2] >> i % 2 * 4 & 15u;
}

/* Eight e (0 .. 31) of a block. Group e / 4 of 32 weights is g below. */

/* d, then for each g four bytes of indices and 32 bits: four times seven of signs, a scale. */
KERN_IQ kern_iq kern_iq2_xxs(const uint8_t *block, uint32_t e)
{
    const uint8_t *of = block + 2 + e / 4 * 8;
    const uint32_t more = kern_iq_u16(of + 4) | kern_iq_u16(of + 6) << 16;
    kern_iq r = {kern_grid_iq2_xxs[of[e % 4]], kern_iq_signs(more >> e % 4 * 7 & 127), 2 * (more >> 28) + 1};
    return r;
}

/* d, for each e nine bits of index and seven of signs, then scales of sixteens. */
KERN_IQ kern_iq kern_iq2_xs(const uint8_t *block, uint32_t e)
{
    const uint32_t v = kern_iq_u16(block + 2 + 2 * e);
    kern_iq r = {kern_grid_iq2_xs[v & 511], kern_iq_signs(v >> 9), 2 * kern_iq_nibble(block + 66, e / 2) + 1};
    return r;
}

/* d, a byte of index for each e, a byte of signs, for each g two more bits of four indices, then scales of sixteens. */
KERN_IQ kern_iq kern_iq2_s(const uint8_t *block, uint32_t e)
{
    const uint32_t high = block[66 + e / 4] >> e % 4 * 2 & 3u;
    kern_iq r = {kern_grid_iq2_s[block[2 + e] | high << 8], block[34 + e], 2 * kern_iq_nibble(block + 74, e / 2) + 1};
    return r;
}

/* d, two bytes of indices for each e, then for each g 32 bits as in IQ2_XXS. */
KERN_IQ kern_iq kern_iq3_xxs(const uint8_t *block, uint32_t e)
{
    const uint8_t *of = block + 66 + e / 4 * 4;
    const uint32_t more = kern_iq_u16(of) | kern_iq_u16(of + 2) << 16, at = kern_iq_u16(block + 2 + 2 * e);
    kern_iq r = {kern_grid_iq3_xxs[at & 255] | (uint32_t)kern_grid_iq3_xxs[at >> 8] << 12,
                 kern_iq_signs(more >> e % 4 * 7 & 127), 2 * (more >> 28) + 1};
    return r;
}

/* d, two bytes of indices for each e, for each g one more bit of eight indices, a byte of signs for each e, then scales of g. */
KERN_IQ kern_iq kern_iq3_s(const uint8_t *block, uint32_t e)
{
    const uint32_t high = block[66 + e / 4] >> e % 4 * 2, at = kern_iq_u16(block + 2 + 2 * e);
    kern_iq r = {kern_grid_iq3_s[(at & 255) | (high & 1) << 8] | (uint32_t)kern_grid_iq3_s[at >> 8 | (high & 2) << 7]
                                                                     << 12,
                 block[74 + e], 2 * kern_iq_nibble(block + 106, e / 4) + 1};
    return r;
}

/* d, a byte of index for each e, then for each g 16 bits: three more of four indices, the scale, whether the shift is negative. */
KERN_IQ kern_iq kern_iq1_s(const uint8_t *block, uint32_t e)
{
    const uint32_t of = kern_iq_u16(block + 34 + e / 4 * 2);
    kern_iq r = {kern_grid_iq1_s[block[2 + e] | (of >> e % 4 * 3 & 7) << 8], of >> 15 ? 255u : 0,
                 2 * (of >> 12 & 7) + 1};
    return r;
}

/* A byte of index for each e, four bits (three more of the index, whether the shift is negative), then 16 bits for four sixteens: their
 * scales, and a quarter of d. */
KERN_IQ kern_iq kern_iq1_m(const uint8_t *block, uint32_t e)
{
    const uint32_t more = kern_iq_nibble(block + 32, e), s = e / 2;
    const uint32_t scales = kern_iq_u16(block + 48 + s / 4 * 2);
    kern_iq r = {kern_grid_iq1_s[block[e] | (more & 7) << 8], more & 8 ? 255u : 0, 2 * (scales >> s % 4 * 3 & 7) + 1};
    return r;
}

KERN_IQ uint16_t kern_iq1_m_d(const uint8_t *block)
{
    const uint8_t *high = block + 49;
    return (uint16_t)(high[0] >> 4 | (high[2] & 0xf0u) | (high[4] & 0xf0u) << 4 | (high[6] & 0xf0u) << 8);
}

#endif
