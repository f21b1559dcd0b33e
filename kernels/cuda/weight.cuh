/* weight.cuh - the value of a single weight of any format, where no more than a few are wanted at a time. Where many are: blocks.cuh. */
#ifndef KERNELS_CUDA_WEIGHT_CUH
#define KERNELS_CUDA_WEIGHT_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/cuda/iq.cuh"
#include "kernels/quant.h"

static __device__ float half_of(uint16_t h)
{
    return __half2float(__ushort_as_half(h));
}

static __device__ uint32_t nibble_at(const uint8_t *qs, uint32_t i)
{
    return qs[i % 16] >> i / 16 * 4 & 15;
}

static __device__ uint32_t fifth_bit_at(const uint8_t *qh, uint32_t i)
{
    return (qh[i / 8] >> i % 8 & 1) << 4;
}

/* Two bits of weight k of a block of 256, of Q2_K and Q3_K. */
static __device__ uint32_t crumb_at(const uint8_t *qs, uint32_t k)
{
    return qs[k / 128 * 32 + k % 32] >> k % 128 / 32 * 2 & 3;
}

/* Six bits of the scale (m 0) or minimum (m 1) of a group: see k_scale() of the CPU backend. */
static __device__ float group_scale(const uint8_t *scales, uint32_t g, uint32_t m)
{
    return (float)(g < 4 ? scales[g + 4 * m] & 63u
                         : (scales[g + 4] >> 4 * m & 15u) | (uint32_t)(scales[g - 4 + 4 * m] >> 6) << 4);
}

__constant__ int8_t e2m1_twice[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
__constant__ int8_t iq4_nl_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

template <typename B> static __device__ const B *block_of(const unsigned char *row, uint32_t i, uint32_t len)
{
    return reinterpret_cast<const B *>(row) + i / len;
}

/* Of IQ1, IQ2 and IQ3. */
template <int FMT> static __device__ float iq_weight_at(const unsigned char *row, uint32_t i)
{
    const unsigned char *block = row + i / 256 * iq<FMT>::BYTES;
    const kern_iq v = iq_eight<FMT>(block, i % 256 / 8);
    const uint32_t j = i % 8, bits = iq<FMT>::THREE ? 3 : 2;
    const float q = (float)(iq_bytes<FMT>(v.codes >> j / 4 * 4 * bits) >> j % 4 * 8 & 255);
    const float signed_q = iq<FMT>::SHIFTED ? q - (v.negatives ? 17 : 15) : v.negatives >> j & 1 ? -q : q;
    return half_of(iq_d<FMT>(block)) * iq<FMT>::BY * (float)v.scale * signed_q;
}

/* Value of weight i of a row: the definition is kernels/cpu/rows_ref.c. */
static __device__ float weight_at(const unsigned char *row, uint32_t i, kern_fmt fmt)
{
    const uint32_t j = i % 32, k = i % 256, g = k / 32;
    switch (fmt) {
    case FMT_F32: return reinterpret_cast<const float *>(row)[i];
    case FMT_F16: return __half2float(reinterpret_cast<const __half *>(row)[i]);
    case FMT_BF16: return __bfloat162float(reinterpret_cast<const __nv_bfloat16 *>(row)[i]);
    case FMT_Q8_0: {
        const kern_q8_0_block *b = block_of<kern_q8_0_block>(row, i, 32);
        return half_of(b->d) * (float)b->qs[j];
    }
    case FMT_MXFP4: {
        const kern_mxfp4_block *b = block_of<kern_mxfp4_block>(row, i, 32);
        const uint32_t e = b->e;
        return __uint_as_float(e < 2 ? 0x00200000u << e : (e - 1) << 23) * (float)e2m1_twice[nibble_at(b->qs, j)];
    }
    case FMT_Q4_0: {
        const kern_q4_0_block *b = block_of<kern_q4_0_block>(row, i, 32);
        return half_of(b->d) * ((float)nibble_at(b->qs, j) - 8);
    }
    case FMT_IQ4_NL: {
        const kern_q4_0_block *b = block_of<kern_q4_0_block>(row, i, 32);
        return half_of(b->d) * (float)iq4_nl_values[nibble_at(b->qs, j)];
    }
    case FMT_Q4_1: {
        const kern_q4_1_block *b = block_of<kern_q4_1_block>(row, i, 32);
        return fmaf(half_of(b->d), (float)nibble_at(b->qs, j), half_of(b->m));
    }
    case FMT_Q5_0: {
        const kern_q5_0_block *b = block_of<kern_q5_0_block>(row, i, 32);
        return half_of(b->d) * ((float)(nibble_at(b->qs, j) | fifth_bit_at(b->qh, j)) - 16);
    }
    case FMT_Q5_1: {
        const kern_q5_1_block *b = block_of<kern_q5_1_block>(row, i, 32);
        return fmaf(half_of(b->d), (float)(nibble_at(b->qs, j) | fifth_bit_at(b->qh, j)), half_of(b->m));
    }
    case FMT_Q4_K: {
        const kern_q4_k_block *b = block_of<kern_q4_k_block>(row, i, 256);
        const uint32_t q = b->qs[g / 2 * 32 + j] >> g % 2 * 4 & 15;
        return fmaf(half_of(b->d) * group_scale(b->scales, g, 0), (float)q,
                    -half_of(b->dmin) * group_scale(b->scales, g, 1));
    }
    case FMT_Q5_K: {
        const kern_q5_k_block *b = block_of<kern_q5_k_block>(row, i, 256);
        const uint32_t q = (b->qs[g / 2 * 32 + j] >> g % 2 * 4 & 15) | (b->qh[j] >> g & 1) << 4;
        return fmaf(half_of(b->d) * group_scale(b->scales, g, 0), (float)q,
                    -half_of(b->dmin) * group_scale(b->scales, g, 1));
    }
    case FMT_FP8: {
        const kern_fp8_block *b = block_of<kern_fp8_block>(row, i, 128);
        const uint32_t q = b->q[i % 128];
        return b->d * (__uint_as_float((q & 0x80) << 24 | (q & 0x7f) << 20) * 0x1p120f);
    }
    case FMT_INT4_G32: {
        const kern_int4_g32_block *b = block_of<kern_int4_g32_block>(row, i, 128);
        const uint32_t of = i % 128 / 32, more = b->more[of];
        return __uint_as_float((uint32_t)b->d[of] << 16 | (more & 0xe0) << 8) *
               ((float)nibble_at(b->qs + 16 * of, j) - (float)(more & 31));
    }
    case FMT_INT4_G128: {
        const kern_int4_g128_block *b = block_of<kern_int4_g128_block>(row, i, 128);
        return __uint_as_float(b->head & 0xffffe000u) *
               ((float)nibble_at(b->qs + i % 128 / 32 * 16, j) - (float)(b->head >> 8 & 31));
    }
    case FMT_NVFP4: {
        const kern_nvfp4_block *b = block_of<kern_nvfp4_block>(row, i, 128);
        const uint32_t s = b->scales[i % 128 / 16];
        const float scale = __uint_as_float((s & 0x80) << 24 | (s & 0x7f) << 20) * 0x1p120f;
        return b->d * (scale * 0.5f * (float)e2m1_twice[nibble_at(b->qs + i % 128 / 32 * 16, j)]);
    }
    case FMT_Q2_K: {
        const kern_q2_k_block *b = block_of<kern_q2_k_block>(row, i, 256);
        const uint32_t scale = b->scales[k / 16];
        return fmaf(half_of(b->d) * (float)(scale & 15), (float)crumb_at(b->qs, k),
                    -half_of(b->dmin) * (float)(scale >> 4));
    }
    case FMT_Q3_K: {
        const kern_q3_k_block *b = block_of<kern_q3_k_block>(row, i, 256);
        const uint32_t s = k / 16, q = crumb_at(b->qs, k) | (b->hmask[j] >> g & 1) << 2;
        const uint32_t scale = (b->scales[s % 8] >> s / 8 * 4 & 15) | (b->scales[8 + s % 4] >> s / 4 * 2 & 3) << 4;
        return half_of(b->d) * ((float)scale - 32) * ((float)q - 4);
    }
    case FMT_IQ4_XS: {
        const kern_iq4_xs_block *b = block_of<kern_iq4_xs_block>(row, i, 256);
        const uint32_t scale = (b->scales_l[g / 2] >> g % 2 * 4 & 15) | (b->scales_h >> 2 * g & 3) << 4;
        return half_of(b->d) * ((float)scale - 32) * (float)iq4_nl_values[nibble_at(b->qs + 16 * g, j)];
    }
    case FMT_IQ2_XXS: return iq_weight_at<FMT_IQ2_XXS>(row, i);
    case FMT_IQ2_XS: return iq_weight_at<FMT_IQ2_XS>(row, i);
    case FMT_IQ2_S: return iq_weight_at<FMT_IQ2_S>(row, i);
    case FMT_IQ3_XXS: return iq_weight_at<FMT_IQ3_XXS>(row, i);
    case FMT_IQ3_S: return iq_weight_at<FMT_IQ3_S>(row, i);
    case FMT_IQ1_S: return iq_weight_at<FMT_IQ1_S>(row, i);
    case FMT_IQ1_M: return iq_weight_at<FMT_IQ1_M>(row, i);
    default: {
        const kern_q6_k_block *b = block_of<kern_q6_k_block>(row, i, 256);
        const uint32_t half = k / 128, at = k % 128;
        const uint32_t q = (b->ql[64 * half + at % 64] >> at / 64 * 4 & 15) | (b->qh[32 * half + j] >> at / 32 * 2 & 3)
                                                                                  << 4;
        return half_of(b->d) * (float)b->scales[k / 16] * ((float)q - 32);
    }
    }
}

#endif
