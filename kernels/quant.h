/* quant.h - stored number formats of weights and KV, their block layouts and sizes.
 * Sources: OCP/IEEE for the floats; ggml-common.h and ggml-quants.c (GGUF) for the blocks: values are those of dequantize_row_*. */
#ifndef KERNELS_QUANT_H
#define KERNELS_QUANT_H

#include <stdbool.h>
#include <stdint.h>

/* X(id, name, weights a block, bytes a block). The ids are saved with a model's fingerprint: new ones go to the end. */
#define KERN_FORMATS(X)                  \
    X(FMT_F32, f32, 1, 4)                \
    X(FMT_F16, f16, 1, 2)                \
    X(FMT_BF16, bf16, 1, 2)              \
    X(FMT_Q8_0, q8_0, 32, 34)            \
    X(FMT_MXFP4, mxfp4, 32, 17)          \
    X(FMT_Q4_0, q4_0, 32, 18)            \
    X(FMT_Q4_1, q4_1, 32, 20)            \
    X(FMT_Q5_0, q5_0, 32, 22)            \
    X(FMT_Q5_1, q5_1, 32, 24)            \
    X(FMT_IQ4_NL, iq4_nl, 32, 18)        \
    X(FMT_Q4_K, q4_k, 256, 144)          \
    X(FMT_Q5_K, q5_k, 256, 176)          \
    X(FMT_Q6_K, q6_k, 256, 210)          \
    X(FMT_Q2_K, q2_k, 256, 84)           \
    X(FMT_Q3_K, q3_k, 256, 110)          \
    X(FMT_IQ4_XS, iq4_xs, 256, 136)      \
    X(FMT_FP8, fp8, 128, 132)            \
    X(FMT_INT4_G32, int4_g32, 128, 76)   \
    X(FMT_INT4_G128, int4_g128, 128, 68) \
    X(FMT_NVFP4, nvfp4, 128, 76)         \
    X(FMT_IQ2_XXS, iq2_xxs, 256, 66)     \
    X(FMT_IQ2_XS, iq2_xs, 256, 74)       \
    X(FMT_IQ2_S, iq2_s, 256, 82)         \
    X(FMT_IQ3_XXS, iq3_xxs, 256, 98)     \
    X(FMT_IQ3_S, iq3_s, 256, 110)        \
    X(FMT_IQ1_S, iq1_s, 256, 50)         \
    X(FMT_IQ1_M, iq1_m, 256, 56)

#define KERN_FMT_ID(id, name, len, bytes) id,
typedef enum kern_fmt { KERN_FORMATS(KERN_FMT_ID) FMT_COUNT } kern_fmt;
#undef KERN_FMT_ID

#ifdef __cplusplus
#define KERN_LAYOUT(type, bytes) static_assert(sizeof(type) == (bytes), "layout of a file")
#else
#define KERN_LAYOUT(type, bytes) _Static_assert(sizeof(type) == (bytes), "layout of a file")
#endif

/* Scales d, dmin and m are IEEE halves. A byte of `qs` of 16 bytes has weight i in its low four bits, i + 16 in the others; a byte of
 * `qh` has the fifth bits of eight weights in ascending order. */

/* 32 weights: w[i] = d * qs[i] */
typedef struct kern_q8_0_block {
    uint16_t d;
    int8_t qs[32];
} kern_q8_0_block;
KERN_LAYOUT(kern_q8_0_block, 34);

/* w[i] = 2^(e - 127) * E2M1(q[i]): 0, .5, 1, 1.5, 2, 3, 4, 6 and the same negative (OCP Microscaling 1.0) */
typedef struct kern_mxfp4_block {
    uint8_t e;
    uint8_t qs[16];
} kern_mxfp4_block;
KERN_LAYOUT(kern_mxfp4_block, 17);

/* Q4_0: w[i] = d * (q[i] - 8); IQ4_NL: w[i] = d * (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)[q[i]] */
typedef struct kern_q4_0_block {
    uint16_t d;
    uint8_t qs[16];
} kern_q4_0_block;
KERN_LAYOUT(kern_q4_0_block, 18);

/* w[i] = d * q[i] + m */
typedef struct kern_q4_1_block {
    uint16_t d, m;
    uint8_t qs[16];
} kern_q4_1_block;
KERN_LAYOUT(kern_q4_1_block, 20);

/* w[i] = d * (q[i] - 16) */
typedef struct kern_q5_0_block {
    uint16_t d;
    uint8_t qh[4], qs[16];
} kern_q5_0_block;
KERN_LAYOUT(kern_q5_0_block, 22);

/* w[i] = d * q[i] + m */
typedef struct kern_q5_1_block {
    uint16_t d, m;
    uint8_t qh[4], qs[16];
} kern_q5_1_block;
KERN_LAYOUT(kern_q5_1_block, 24);

/* 256 weights in groups g of 32: w[i] = d * sc[g] * q[i] - dmin * m[g]. Group g has the low (g even) or high halves of
 * qs[g / 2 * 32 ..+ 32). sc and m have six bits. Q5_K: the fifth bit is bit g of qh[i % 32]. */
typedef struct kern_q4_k_block {
    uint16_t d, dmin;
    uint8_t scales[12], qs[128];
} kern_q4_k_block;
KERN_LAYOUT(kern_q4_k_block, 144);

typedef struct kern_q5_k_block {
    uint16_t d, dmin;
    uint8_t scales[12], qh[32], qs[128];
} kern_q5_k_block;
KERN_LAYOUT(kern_q5_k_block, 176);

/* 256 weights, w[i] = d * scales[i / 16] * (q[i] - 32). Half h of 128 weights, j = i % 128: four bits are the low (j < 64) or high ones
 * of ql[64 * h + j % 64], two are bits 2 * (j / 32) and up of qh[32 * h + j % 32]. */
typedef struct kern_q6_k_block {
    uint8_t ql[128], qh[64];
    int8_t scales[16];
    uint16_t d;
} kern_q6_k_block;
KERN_LAYOUT(kern_q6_k_block, 210);

/* 256 weights, w[i] = d * (scales[i / 16] & 15) * q[i] - dmin * (scales[i / 16] >> 4). q[i]: bits 2 * (i % 128 / 32) and up of
 * qs[32 * (i / 128) + i % 32]. */
typedef struct kern_q2_k_block {
    uint8_t scales[16], qs[64];
    uint16_t d, dmin;
} kern_q2_k_block;
KERN_LAYOUT(kern_q2_k_block, 84);

/* 256 weights in sixteens s, w[i] = d * (sc[s] - 32) * (q[i] - 4). q[i] has two low bits as in Q2_K and, above them, bit i / 32 of
 * hmask[i % 32]. sc[s]: four bits are the low (s < 8) or high ones of scales[s % 8], two are bits 2 * (s / 4) and up of scales[8 + s % 4]. */
typedef struct kern_q3_k_block {
    uint8_t hmask[32], qs[64], scales[12];
    uint16_t d;
} kern_q3_k_block;
KERN_LAYOUT(kern_q3_k_block, 110);

/* 256 weights in groups g of 32, with the quants of IQ4_NL in qs[16 * g ..+ 16): w[i] = d * (sc[g] - 32) * (its table)[q[i]]. sc[g]: four bits
 * are the low (g even) or high ones of scales_l[g / 2], two are bits 2 * g and up of scales_h. */
typedef struct kern_iq4_xs_block {
    uint16_t d, scales_h;
    uint8_t scales_l[4], qs[128];
} kern_iq4_xs_block;
KERN_LAYOUT(kern_iq4_xs_block, 136);

/* 128 weights of checkpoints in FP8 (engine/model/repack.c): w[i] = d * E4M3(q[i]), of OCP's FP8; NaN (127, 255) does not occur. Of the last
 * block of a row only the first weights may count. */
typedef struct kern_fp8_block {
    float d;
    uint8_t q[128];
} kern_fp8_block;
KERN_LAYOUT(kern_fp8_block, 132);

/* 128 weights of checkpoints in INT4 (engine/model/fourbit.c): w[i] = scale * (q[i] - zero), exact. Scale and zero are a head of 32 bits: a float32
 * whose mantissa ends after 10 bits, as those of all BF16 and F16 do; in its last 13 bits a zero of five, and eight that are 0. Each 32 weights
 * g have a head, its upper half d[g] and the next byte more[g], or all have one; their quants are qs[16 * g ..+ 16). Of the last block of a row
 * only the first weights may count. */
typedef struct kern_int4_g32_block {
    uint16_t d[4];
    uint8_t more[4], qs[64];
} kern_int4_g32_block;
KERN_LAYOUT(kern_int4_g32_block, 76);

typedef struct kern_int4_g128_block {
    uint32_t head;
    uint8_t qs[64];
} kern_int4_g128_block;
KERN_LAYOUT(kern_int4_g128_block, 68);

/* 128 weights of checkpoints in NVFP4: w[i] = d * (E4M3(scales[i / 16]) * E2M1(q[i])), the product in brackets exact. Quants lie as in INT4. Of
 * the last block of a row only the first weights may count. */
typedef struct kern_nvfp4_block {
    float d;
    uint8_t scales[8], qs[64];
} kern_nvfp4_block;
KERN_LAYOUT(kern_nvfp4_block, 76);

/* IQ1, IQ2, IQ3: kernels/quant_iq.h. */

typedef struct kern_fmt_info {
    const char *name;
    uint32_t block_len; /* weights a block */
    uint32_t block_bytes;
} kern_fmt_info;

static inline kern_fmt_info kern_fmt_get(kern_fmt f)
{
#define KERN_FMT_INFO(id, name, len, bytes) {#name, len, bytes},
    static const kern_fmt_info infos[] = {KERN_FORMATS(KERN_FMT_INFO){"?", 1, 0}};
#undef KERN_FMT_INFO
    return infos[(unsigned)f < FMT_COUNT ? f : FMT_COUNT];
}

/* May a row's last block be a part of one? Such blocks begin at multiples of 4 bytes. */
static inline bool kern_cuts_blocks(kern_fmt f)
{
    return kern_fmt_get(f).block_len == 128;
}

/* Can a row have so many weights? Checked when a model is loaded. */
static inline bool kern_cols_fit(kern_fmt f, uint32_t cols)
{
    return kern_cuts_blocks(f) || cols % kern_fmt_get(f).block_len == 0;
}

/* Bytes of a row of `cols` weights. */
static inline uint64_t kern_row_bytes(kern_fmt f, uint32_t cols)
{
    kern_fmt_info i = kern_fmt_get(f);
    return ((uint64_t)cols + i.block_len - 1) / i.block_len * i.block_bytes;
}

#endif
