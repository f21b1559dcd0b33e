/* cpu_priv.h - what the files of the CPU backend share: the device, the rows (hot inner functions with one version a machine),
 * number conversions. Private to kernels/cpu. */
#ifndef KERNELS_CPU_CPU_PRIV_H
#define KERNELS_CPU_CPU_PRIV_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "kernels/cpu/pool.h"
#include "kernels/kernels.h"
#include "kernels/quant_iq.h"

#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))

#define CPU_MAX_GROUP    256  /* query heads that share a KV head */
#define CPU_MAX_HEAD_DIM 1024 /* columns of a K head, rotated or not */

/* ---- rows ------------------------------------------------------------------------------------------------------
 * Each has a scalar version in rows_ref.c, which is its definition, and may have wider ones. Whatever version runs, the bits
 * of one result depend only on its own inputs: a version has one order of additions for every shape of call. */

/* y[t * y_stride + r] = dot(row r of w, x[t]); rows lie row_bytes apart. `next` (or NULL) is where the caller reads on. */
typedef void cpu_dot_fn(float *y, size_t y_stride, const uint8_t *w, uint64_t row_bytes, uint32_t n_rows,
                        const float *const *x, uint32_t n_tokens, uint32_t cols, const uint8_t *next);
/* y[i] = value of weight i of a row */
typedef void cpu_decode_fn(float *y, const uint8_t *w, uint32_t cols);
/* y[i] = x[i] rounded to IEEE half */
typedef void cpu_to_f16_fn(uint16_t *y, const float *x, uint32_t n);
/* acc[q][d] += sum over i = 0, 1, .. n_pos - 1 of p[q][i] * V[i][d]; V rows lie row_bytes apart, acc rows dim apart,
 * p rows p_stride apart */
typedef void cpu_attn_pv_fn(float *acc, const float *p, size_t p_stride, const uint8_t *v, uint64_t row_bytes,
                            uint32_t n_pos, uint32_t n_q, uint32_t dim);
/* max of x, skipping NaN; -inf when none */
typedef float cpu_max_fn(const float *x, uint32_t n);
/* y[i] = exp(x[i] * scale - max), returns their sum; y may be x, and NULL when only the sum is wanted */
typedef float cpu_exp_fn(float *y, const float *x, uint32_t n, float scale, float max);
/* y = x * (1 / sqrt(mean(x^2) + eps)) * weight */
typedef void cpu_rmsnorm_fn(float *y, const float *x, const float *weight, uint32_t dim, float eps);
/* y = silu(gate) * up, or gelu(gate) * up by tanh */
typedef void cpu_swiglu_fn(float *y, const float *gate, const float *up, uint32_t n);
/* y = g * sigmoid(alpha * g) * (u + 1) with g = min(gate, limit), u = up within +-limit; NaN stays NaN */
typedef void cpu_clamped_fn(float *y, const float *gate, const float *up, uint32_t n, float alpha, float limit);
/* y = min(silu(gate), limit) * u with u = up within +-limit; NaN stays NaN */
typedef void cpu_limited_fn(float *y, const float *gate, const float *up, uint32_t n, float limit);
/* A step of Gated DeltaNet: s [k_dim][v_dim] becomes decay s + k u^T with u = beta (v - (decay s)^T k), and o = s^T q. Sums over k_dim in order. */
typedef void cpu_delta_fn(float *o, float *s, const float *q, const float *k, const float *v, const float *decay,
                          float beta, uint32_t k_dim, uint32_t v_dim);
/* First i >= from with x[i] > limit; n when none. */
typedef uint32_t cpu_find_fn(const float *x, uint32_t from, uint32_t n, float limit);
/* Reads every byte once by the widest loads; the return value only keeps the loads alive. */
typedef uint64_t cpu_read_fn(const uint8_t *p, size_t bytes);

typedef struct cpu_rows {
    cpu_dot_fn *dot[FMT_COUNT];
    cpu_decode_fn *decode[FMT_COUNT];
    cpu_attn_pv_fn *attn_pv[FMT_COUNT]; /* those of a KV cache */
    cpu_to_f16_fn *to_f16;
    cpu_max_fn *max;
    cpu_exp_fn *exp;
    cpu_rmsnorm_fn *rmsnorm;
    cpu_swiglu_fn *swiglu, *geglu;
    cpu_clamped_fn *clamped;
    cpu_limited_fn *limited;
    cpu_delta_fn *delta;
    cpu_find_fn *find;
    cpu_read_fn *read;
} cpu_rows;

static inline void cpu_relu2(float *y, const float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] = x[i] < 0 ? 0 : x[i] * x[i]; /* NaN stays */
}

enum { CPU_CAP_AVX2 = 1, CPU_CAP_AVX512 = 2 };

typedef struct cpu_row {
    uint32_t offset; /* of the pointer in cpu_rows */
    uint32_t needs;  /* CPU_CAP_* */
    const char *name;
    void (*fn)(void);
} cpu_row;

#define CPU_ROW(member, needs, function)                                                  \
    {                                                                                     \
        (uint32_t) offsetof(cpu_rows, member), needs, #function, (void (*)(void))function \
    }

extern const cpu_row cpu_rows_ref[];
extern const uint32_t cpu_rows_ref_count;
#ifdef KERN_X86_ROWS
extern const cpu_row cpu_rows_avx2[];
extern const uint32_t cpu_rows_avx2_count;
extern const cpu_row cpu_rows_avx512[];
extern const uint32_t cpu_rows_avx512_count;
#endif

/* Fills `rows` with the best version of each that the machine runs and `disable` allows; writes the names chosen. */
void rows_choose(cpu_rows *rows, const char *disable, char *ret_names, size_t cap);

/* ---- device ----------------------------------------------------------------------------------------------------- */

typedef struct cpu_dev {
    kern_dev base; /* first: callers see a kern_dev */
    cpu_pool *pool;
    cpu_rows rows;
    int32_t numa_node; /* -1: not bound */
    char row_names[512];
    char error[256];
    uint64_t marks[KERN_MARKS];
} cpu_dev;

static inline cpu_dev *cpu_of(kern_dev *d)
{
    return (cpu_dev *)(void *)d;
}

/* Notes the text for kern_ops.error and returns `status`. */
kern_status cpu_fail(cpu_dev *d, kern_status status, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

uint64_t cpu_now_ns(void);

/* linear.c */
kern_status cpu_embed(kern_dev *dev, const kern_embed_args *a);
kern_status cpu_rmsnorm(kern_dev *dev, const kern_rmsnorm_args *a);
kern_status cpu_layernorm(kern_dev *dev, const kern_layernorm_args *a);
kern_status cpu_linear(kern_dev *dev, const kern_linear_args *a);
kern_status cpu_linear_heads(kern_dev *dev, const kern_linear_heads_args *a);
kern_status cpu_swiglu(kern_dev *dev, const kern_swiglu_args *a);
kern_status cpu_qkv_norm(kern_dev *dev, const kern_qkv_norm_args *a);
kern_status cpu_softcap(kern_dev *dev, const kern_softcap_args *a);
/* attention.c, rope.c */
kern_status cpu_rope_kv(kern_dev *dev, const kern_rope_kv_args *a);
kern_status cpu_attention(kern_dev *dev, const kern_attn_args *a);
kern_status cpu_kv_stage(kern_dev *dev, const kern_kv_stage_args *a);
uint64_t cpu_attn_scratch_bytes(kern_dev *dev, uint32_t max_tokens, uint32_t n_heads, uint32_t head_dim,
                                uint32_t max_context);
kern_status cpu_index_rope(kern_dev *dev, const kern_index_rope_args *a);
/* index.c */
bool cpu_index_takes(uint32_t n_heads, uint32_t dim);
kern_status cpu_index(kern_dev *dev, const kern_index_args *a);
uint64_t cpu_index_scratch_bytes(kern_dev *dev, uint32_t max_tokens, uint32_t n_heads, uint32_t max_context);
/* delta.c */
bool cpu_delta_takes(const kern_delta_geom *g);
kern_status cpu_delta(kern_dev *dev, const kern_delta_args *a);
uint64_t cpu_delta_scratch_bytes(kern_dev *dev, uint32_t max_tokens, const kern_delta_geom *geom);
kern_status cpu_gate(kern_dev *dev, const kern_gate_args *a);

/* shortconv.c */
bool cpu_shortconv_takes(const kern_shortconv_geom *g);
kern_status cpu_shortconv(kern_dev *dev, const kern_shortconv_args *a);
/* Convolutions over time of some channels: y is the sum over the last inputs, and the bias. An input is x, or x times `factor`. Tokens and states as
 * in kern_delta_args; y of padding is 0. */
#define CPU_CONV_CHANNELS 64
typedef struct cpu_conv {
    const float *x, *factor; /* rows x_stride floats apart; factor may be NULL */
    const float *w, *bias;   /* [channels][conv]; [channels] or NULL */
    float *y;                /* [n_tokens][channels] */
    uint32_t n_tokens, x_stride, channels, conv;
    const uint32_t *token_seq, *token_pos, *seq_slot;
    void *state;
    uint64_t slot_bytes;
} cpu_conv;
void cpu_conv_channels(const cpu_conv *c, uint32_t first, uint32_t n); /* n: at most CPU_CONV_CHANNELS */

/* ssm.c */
#define CPU_SSM_MAX_HEAD 512
bool cpu_ssm_takes(const kern_ssm_geom *g);
kern_status cpu_ssm(kern_dev *dev, const kern_ssm_args *a);
uint64_t cpu_ssm_scratch_bytes(kern_dev *dev, uint32_t max_tokens, const kern_ssm_geom *geom);
/* moe.c */
kern_status cpu_plan(kern_dev *dev, const kern_plan_args *a);
kern_status cpu_moe(kern_dev *dev, const kern_moe_args *a);
uint64_t cpu_moe_scratch_bytes(kern_dev *dev, uint32_t max_tokens, uint32_t top_k, uint32_t n_experts,
                               const kern_expert_geom *geom);
/* choose.c */
kern_status cpu_router(kern_dev *dev, const kern_router_args *a);
kern_status cpu_route(kern_dev *dev, const kern_linear_args *logits, const kern_router_args *pick,
                      const kern_plan_args *plan, const kern_route_ahead *ahead);
kern_status cpu_argmax(kern_dev *dev, const kern_argmax_args *a);
kern_status cpu_top_logits(kern_dev *dev, const kern_top_logits_args *a);

/* Rows a task of a matrix product takes: small enough to spread over the threads, large enough to stream. */
#define CPU_ROW_BLOCK 32

/* ---- number conversions ----------------------------------------------------------------------------------------- */

static inline float f32_of_bits(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static inline uint32_t bits_of_f32(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

static inline uint32_t load_u32(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline uint16_t load_u16(const uint8_t *p)
{
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline float f32_of_bf16(uint16_t h)
{
    return f32_of_bits((uint32_t)h << 16);
}

/* E4M3: exponent and mantissa where binary32 has its own, times 2^120 since the exponent is 7 off and not 127. */
static inline float f32_of_e4m3(uint8_t b)
{
    return f32_of_bits((b & 0x80u) << 24 | (b & 0x7fu) << 20) * 0x1p120f;
}

/* 2^(e - 128): half of what E8M0 stands for, so that the values of E2M1 are whole numbers when doubled (kern_e2m1_twice). */
static inline float f32_of_e8m0_half(uint8_t e)
{
    return f32_of_bits(e < 2 ? 0x00200000u << e : (uint32_t)(e - 1) << 23);
}

static const int8_t kern_e2m1_twice[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
static const int8_t kern_iq4_nl[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

/* Scale (m false) or minimum of group g of a Q4_K or Q5_K block: the first four are the low six bits of a byte; of the others four bits lie
 * in the last four bytes, two above those of the first ones. */
static inline uint32_t k_scale(const uint8_t scales[12], uint32_t g, bool m)
{
    if (g < 4)
        return scales[g + 4 * m] & 63u;
    return (scales[g + 4] >> 4 * m & 15u) | (uint32_t)(scales[g - 4 + 4 * m] >> 6) << 4;
}

/* Scale of the sixteen s of a Q3_K block, and of group g of an IQ4_XS block. */
static inline int32_t q3_k_scale(const uint8_t scales[12], uint32_t s)
{
    return (int32_t)((scales[s % 8] >> s / 8 * 4 & 15u) | (scales[8 + s % 4] >> s / 4 * 2 & 3u) << 4) - 32;
}

static inline int32_t iq4_xs_scale(const uint8_t *block, uint32_t g)
{
    return (int32_t)((block[4 + g / 2] >> g % 2 * 4 & 15u) | (load_u16(block + 2) >> 2 * g & 3u) << 4) - 32;
}

/* Of the head of a group of INT4: see kern_int4_g32_block. */
static inline float int4_scale(uint32_t head)
{
    return f32_of_bits(head & 0xffffe000u);
}

static inline uint32_t int4_zero(uint32_t head)
{
    return head >> 8 & 31u;
}

static inline uint32_t int4_g32_head(const uint8_t *block, uint32_t g)
{
    return (uint32_t)load_u16(block + 2 * g) << 16 | (uint32_t)block[8 + g] << 8;
}

/* IEEE 754 binary16, subnormals included */
static inline float f32_of_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = (h >> 10) & 31u, mantissa = h & 0x3ffu;
    if (exponent == 0)
        return f32_of_bits(bits_of_f32((float)mantissa * 0x1p-24f) | sign);
    if (exponent == 31)
        return f32_of_bits(sign | 0x7f800000u | mantissa << 13 | (mantissa ? 0x400000u : 0));
    return f32_of_bits(sign | (exponent + 112) << 23 | mantissa << 13);
}

/* Rounds to nearest, ties to even; too large becomes infinite, as the conversion instructions of CPUs and GPUs do. */
static inline uint16_t f16_of_f32(float f)
{
    uint32_t bits = bits_of_f32(f), sign = bits >> 16 & 0x8000u, mag = bits & 0x7fffffffu;
    if (mag > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | (mag >> 13 & 0x3ffu));
    if (mag >= 0x477ff000u) /* 65520: halfway between the largest half and the next power */
        return (uint16_t)(sign | 0x7c00u);
    if (mag < 0x38800000u) /* below 2^-14: a multiple of 2^-24; rint rounds ties to even */
        return (uint16_t)(sign | (uint32_t)rintf(f32_of_bits(mag) * 0x1p24f));
    return (uint16_t)(sign | (((mag + 0xfffu + (mag >> 13 & 1u)) >> 13) - (112u << 10)));
}

#endif
