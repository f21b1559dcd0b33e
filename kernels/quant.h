/* quant.h - stored number formats of weights and KV, their block layouts and sizes.
 * Sources: OCP/IEEE for the floats; ggml-common.h (GGUF) for Q8_0. */
#ifndef KERNELS_QUANT_H
#define KERNELS_QUANT_H

#include <stdint.h>

typedef enum kern_fmt {
    FMT_F32,
    FMT_F16,
    FMT_BF16,
    FMT_Q8_0,
    FMT_COUNT,
} kern_fmt;

/* 32 weights: w[i] = d * qs[i] */
typedef struct kern_q8_0_block {
    uint16_t d; /* IEEE half */
    int8_t qs[32];
} kern_q8_0_block;
#ifdef __cplusplus
static_assert(sizeof(kern_q8_0_block) == 34, "GGUF layout");
#else
_Static_assert(sizeof(kern_q8_0_block) == 34, "GGUF layout");
#endif

typedef struct kern_fmt_info {
    const char *name;
    uint32_t block_len; /* weights a block */
    uint32_t block_bytes;
} kern_fmt_info;

static inline kern_fmt_info kern_fmt_get(kern_fmt f)
{
    static const kern_fmt_info infos[] = {{"f32", 1, 4}, {"f16", 1, 2}, {"bf16", 1, 2}, {"q8_0", 32, 34}, {"?", 1, 0}};
    return infos[(unsigned)f < FMT_COUNT ? f : FMT_COUNT];
}

/* Bytes of a row of `cols` weights; cols is a multiple of block_len (checked when a model is loaded). */
static inline uint64_t kern_row_bytes(kern_fmt f, uint32_t cols)
{
    kern_fmt_info i = kern_fmt_get(f);
    return (uint64_t)(cols / i.block_len) * i.block_bytes;
}

#endif
