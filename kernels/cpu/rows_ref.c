/* rows_ref.c - the scalar version of every row: the definition that wider versions and the CUDA backend are checked against.
 *
 * Written to be read, not to be fast; it is also what runs where nothing better is known (other architectures). Dot products
 * are summed in double so that a difference found by kerncheck is the other side's rounding. */
#include "kernels/cpu/cpu_priv.h"

static float weight_f32(const uint8_t *w, uint32_t i)
{
    float f;
    memcpy(&f, w + (size_t)i * 4, sizeof f);
    return f;
}

static float weight_f16(const uint8_t *w, uint32_t i)
{
    return f32_of_f16(load_u16(w + (size_t)i * 2));
}

static float weight_bf16(const uint8_t *w, uint32_t i)
{
    return f32_of_bf16(load_u16(w + (size_t)i * 2));
}

/* Exact in float32: 8 bits of quant times 11 bits of scale. */
static float weight_q8_0(const uint8_t *w, uint32_t i)
{
    const uint8_t *block = w + (size_t)(i / 32) * sizeof(kern_q8_0_block);
    return f32_of_f16(load_u16(block)) * (float)(int8_t)block[2 + i % 32];
}

/* Of 16 bytes with weights i and i + 16 in each. */
static uint32_t nibble(const uint8_t *qs, uint32_t i)
{
    return qs[i % 16] >> i / 16 * 4 & 15u;
}

static uint32_t fifth_bit(const uint8_t *qh, uint32_t i)
{
    return (qh[i / 8] >> i % 8 & 1u) << 4;
}

/* Products of a scale and a quant are exact in float32 here and below, so that one rounding is left where a minimum is added. */
static float weight_mxfp4(const uint8_t *w, uint32_t i)
{
    const uint8_t *block = w + (size_t)(i / 32) * sizeof(kern_mxfp4_block);
    return f32_of_e8m0_half(block[0]) * kern_e2m1_twice[nibble(block + 1, i % 32)];
}

static float weight_q4_0(const uint8_t *w, uint32_t i)
{
    const uint8_t *block = w + (size_t)(i / 32) * sizeof(kern_q4_0_block);
    return f32_of_f16(load_u16(block)) * ((float)nibble(block + 2, i % 32) - 8);
}

static float weight_iq4_nl(const uint8_t *w, uint32_t i)
{
    const uint8_t *block = w + (size_t)(i / 32) * sizeof(kern_q4_0_block);
    return f32_of_f16(load_u16(block)) * kern_iq4_nl[nibble(block + 2, i % 32)];
}

static float weight_q4_1(const uint8_t *w, uint32_t i)
{
    const uint8_t *block = w + (size_t)(i / 32) * sizeof(kern_q4_1_block);
    return f32_of_f16(load_u16(block)) * (float)nibble(block + 4, i % 32) + f32_of_f16(load_u16(block + 2));
}

static float weight_q5_0(const uint8_t *w, uint32_t i)
{
    const uint8_t *block = w + (size_t)(i / 32) * sizeof(kern_q5_0_block);
    uint32_t q = nibble(block + 6, i % 32) | fifth_bit(block + 2, i % 32);
    return f32_of_f16(load_u16(block)) * ((float)q - 16);
}

static float weight_q5_1(const uint8_t *w, uint32_t i)
{
    const uint8_t *block = w + (size_t)(i / 32) * sizeof(kern_q5_1_block);
    uint32_t q = nibble(block + 8, i % 32) | fifth_bit(block + 4, i % 32);
    return f32_of_f16(load_u16(block)) * (float)q + f32_of_f16(load_u16(block + 2));
}

static float weight_k(const uint8_t *block, uint32_t group, uint32_t q)
{
    float d = f32_of_f16(load_u16(block)), dmin = f32_of_f16(load_u16(block + 2));
    return d * (float)k_scale(block + 4, group, false) * (float)q - dmin * (float)k_scale(block + 4, group, true);
}

static float weight_q4_k(const uint8_t *w, uint32_t i)
{
    const uint8_t *block = w + (size_t)(i / 256) * sizeof(kern_q4_k_block);
    uint32_t g = i % 256 / 32;
    return weight_k(block, g, block[16 + g / 2 * 32 + i % 32] >> g % 2 * 4 & 15u);
}

static float weight_q5_k(const uint8_t *w, uint32_t i)
{
    const uint8_t *block = w + (size_t)(i / 256) * sizeof(kern_q5_k_block);
    uint32_t g = i % 256 / 32, low = block[48 + g / 2 * 32 + i % 32] >> g % 2 * 4 & 15u;
    return weight_k(block, g, low | (block[16 + i % 32] >> g & 1u) << 4);
}

static float weight_q6_k(const uint8_t *w, uint32_t i)
{
    const uint8_t *block = w + (size_t)(i / 256) * sizeof(kern_q6_k_block);
    uint32_t half = i % 256 / 128, j = i % 128;
    uint32_t low = block[64 * half + j % 64] >> j / 64 * 4 & 15u,
             high = block[128 + 32 * half + j % 32] >> j / 32 * 2 & 3u;
    return f32_of_f16(load_u16(block + 208)) * (float)(int8_t)block[192 + i % 256 / 16] *
           ((float)(low | high << 4) - 32);
}

/* Two bits of weight i of the 64 bytes that Q2_K and Q3_K have in common. */
static uint32_t crumb(const uint8_t *qs, uint32_t i)
{
    return qs[i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3u;
}

static float weight_q2_k(const uint8_t *w, uint32_t i)
{
    const uint8_t *block = w + (size_t)(i / 256) * sizeof(kern_q2_k_block);
    uint32_t k = i % 256, scale = block[k / 16];
    float d = f32_of_f16(load_u16(block + 80)), dmin = f32_of_f16(load_u16(block + 82));
    return d * (float)(scale & 15) * (float)crumb(block + 16, k) - dmin * (float)(scale >> 4);
}

static float weight_q3_k(const uint8_t *w, uint32_t i)
{
    const uint8_t *block = w + (size_t)(i / 256) * sizeof(kern_q3_k_block);
    uint32_t k = i % 256, q = crumb(block + 32, k) | (block[k % 32] >> k / 32 & 1u) << 2;
    return f32_of_f16(load_u16(block + 108)) * (float)q3_k_scale(block + 96, k / 16) * ((float)q - 4);
}

static float weight_iq4_xs(const uint8_t *w, uint32_t i)
{
    const uint8_t *block = w + (size_t)(i / 256) * sizeof(kern_iq4_xs_block);
    uint32_t g = i % 256 / 32;
    return f32_of_f16(load_u16(block)) * (float)iq4_xs_scale(block, g) *
           kern_iq4_nl[nibble(block + 8 + 16 * g, i % 32)];
}

/* Rounded once: 24 bits of scale times 4. */
static float weight_fp8(const uint8_t *w, uint32_t i)
{
    const uint8_t *block = w + (size_t)(i / 128) * sizeof(kern_fp8_block);
    return weight_f32(block, 0) * f32_of_e4m3(block[4 + i % 128]);
}

static float weight_int4_g32(const uint8_t *w, uint32_t i)
{
    const uint8_t *block = w + (size_t)(i / 128) * sizeof(kern_int4_g32_block);
    uint32_t g = i % 128 / 32, head = int4_g32_head(block, g);
    return int4_scale(head) * ((float)nibble(block + 12 + 16 * g, i % 32) - (float)int4_zero(head));
}

static float weight_int4_g128(const uint8_t *w, uint32_t i)
{
    const uint8_t *block = w + (size_t)(i / 128) * sizeof(kern_int4_g128_block);
    uint32_t g = i % 128 / 32, head = load_u32(block);
    return int4_scale(head) * ((float)nibble(block + 4 + 16 * g, i % 32) - (float)int4_zero(head));
}

static float weight_nvfp4(const uint8_t *w, uint32_t i)
{
    const uint8_t *block = w + (size_t)(i / 128) * sizeof(kern_nvfp4_block);
    const uint32_t j = i % 128;
    const float of_16 =
        f32_of_e4m3(block[4 + j / 16]) * 0.5f * kern_e2m1_twice[nibble(block + 12 + j / 32 * 16, j % 32)];
    return weight_f32(block, 0) * of_16;
}

/* Of IQ1, IQ2 and IQ3 as well all products are exact. */
static float iq_magnitude(const kern_iq *v, uint32_t i, const uint8_t *bytes, uint32_t bits)
{
    float q = bytes[v->codes >> i % 8 * bits & ((1u << bits) - 1)];
    return v->negatives >> i % 8 & 1 ? -q : q;
}

static float iq_shifted(const kern_iq *v, uint32_t i)
{
    return 8 * ((float)(v->codes >> i % 8 * 2 & 3) - 1) + (v->negatives ? -1.0f : 1.0f);
}

#define IQ_WEIGHT(fmt, bytes, d, q, by)                         \
    static float weight_##fmt(const uint8_t *w, uint32_t i)     \
    {                                                           \
        const uint8_t *block = w + (size_t)(i / 256) * (bytes); \
        const kern_iq v = kern_##fmt(block, i % 256 / 8);       \
        return f32_of_f16(d) * (float)v.scale * (q) * (by);     \
    }
static const uint8_t iq2_bytes[] = {KERN_IQ2_BYTES, 0}, iq3_xxs_bytes[] = {KERN_IQ3_XXS_BYTES},
                     iq3_s_bytes[] = {KERN_IQ3_S_BYTES};
IQ_WEIGHT(iq2_xxs, 66, load_u16(block), iq_magnitude(&v, i, iq2_bytes, 2), 0.125f)
IQ_WEIGHT(iq2_xs, 74, load_u16(block), iq_magnitude(&v, i, iq2_bytes, 2), 0.125f)
IQ_WEIGHT(iq2_s, 82, load_u16(block), iq_magnitude(&v, i, iq2_bytes, 2), 0.125f)
IQ_WEIGHT(iq3_xxs, 98, load_u16(block), iq_magnitude(&v, i, iq3_xxs_bytes, 3), 0.25f)
IQ_WEIGHT(iq3_s, 110, load_u16(block), iq_magnitude(&v, i, iq3_s_bytes, 3), 1)
IQ_WEIGHT(iq1_s, 50, load_u16(block), iq_shifted(&v, i), 0.125f)
IQ_WEIGHT(iq1_m, 56, kern_iq1_m_d(block), iq_shifted(&v, i), 0.125f)

#define DEFINE_FORMAT(fmt)                                                                                        \
    static void decode_##fmt##_ref(float *y, const uint8_t *w, uint32_t cols)                                     \
    {                                                                                                             \
        for (uint32_t i = 0; i < cols; i++)                                                                       \
            y[i] = weight_##fmt(w, i);                                                                            \
    }                                                                                                             \
    static void dot_##fmt##_ref(float *y, size_t y_stride, const uint8_t *w, uint64_t row_bytes, uint32_t n_rows, \
                                const float *const *x, uint32_t n_tokens, uint32_t cols, const uint8_t *next)     \
    {                                                                                                             \
        (void)next;                                                                                               \
        for (uint32_t r = 0; r < n_rows; r++)                                                                     \
            for (uint32_t t = 0; t < n_tokens; t++) {                                                             \
                double sum = 0;                                                                                   \
                for (uint32_t i = 0; i < cols; i++)                                                               \
                    sum += (double)weight_##fmt(w + r * row_bytes, i) * (double)x[t][i];                          \
                y[t * y_stride + r] = (float)sum;                                                                 \
            }                                                                                                     \
    }
#define DEFINE(id, fmt, ...) DEFINE_FORMAT(fmt)
KERN_FORMATS(DEFINE)

static void to_f16_ref(uint16_t *y, const float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] = f16_of_f32(x[i]);
}

#define DEFINE_ATTN_PV(fmt)                                                                                            \
    static void attn_pv_##fmt##_ref(float *acc, const float *p, size_t p_stride, const uint8_t *v, uint64_t row_bytes, \
                                    uint32_t n_pos, uint32_t n_q, uint32_t dim)                                        \
    {                                                                                                                  \
        for (uint32_t q = 0; q < n_q; q++)                                                                             \
            for (uint32_t i = 0; i < n_pos; i++)                                                                       \
                for (uint32_t d = 0; d < dim; d++)                                                                     \
                    acc[(size_t)q * dim + d] += p[q * p_stride + i] * weight_##fmt(v + i * row_bytes, d);              \
    }
DEFINE_ATTN_PV(f32)
DEFINE_ATTN_PV(f16)
DEFINE_ATTN_PV(q8_0)

static float max_ref(const float *x, uint32_t n)
{
    float max = -INFINITY;
    for (uint32_t i = 0; i < n; i++)
        if (x[i] > max)
            max = x[i];
    return max;
}

static float exp_ref(float *y, const float *x, uint32_t n, float scale, float max)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        float e = expf((float)((double)x[i] * (double)scale - (double)max));
        if (y)
            y[i] = e;
        sum += (double)e;
    }
    return (float)sum;
}

static void rmsnorm_ref(float *y, const float *x, const float *weight, uint32_t dim, float eps)
{
    /* In one chain of float32 a row of thousands would be off by more than what is compared with it. */
    double squares = 0;
    for (uint32_t i = 0; i < dim; i++)
        squares += (double)x[i] * (double)x[i];
    float inv = 1.0f / sqrtf((float)(squares / dim) + eps);
    for (uint32_t i = 0; i < dim; i++)
        y[i] = x[i] * inv * weight[i];
}

static void swiglu_ref(float *y, const float *gate, const float *up, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] = gate[i] / (1.0f + expf(-gate[i])) * up[i];
}

static void geglu_ref(float *y, const float *gate, const float *up, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        const float g = gate[i];
        y[i] = g / (1.0f + expf(-g * (KERN_GELU_A + KERN_GELU_B * g * g))) * up[i];
    }
}

static void clamped_ref(float *y, const float *gate, const float *up, uint32_t n, float alpha, float limit)
{
    for (uint32_t i = 0; i < n; i++) {
        float g = gate[i] > limit ? limit : gate[i];
        float u = up[i] > limit ? limit : up[i] < -limit ? -limit : up[i];
        y[i] = g / (1.0f + expf(-alpha * g)) * (u + 1.0f);
    }
}

static void limited_ref(float *y, const float *gate, const float *up, uint32_t n, float limit)
{
    for (uint32_t i = 0; i < n; i++) {
        float g = gate[i] / (1.0f + expf(-gate[i]));
        float u = up[i] > limit ? limit : up[i] < -limit ? -limit : up[i];
        y[i] = (g > limit ? limit : g) * u;
    }
}

static void delta_ref(float *o, float *s, const float *q, const float *k, const float *v, const float *decay,
                      float beta, uint32_t k_dim, uint32_t v_dim)
{
    for (uint32_t d = 0; d < v_dim; d++) {
        float known = 0, out = 0;
        for (uint32_t i = 0; i < k_dim; i++)
            known += k[i] * (decay[i] * s[(size_t)i * v_dim + d]);
        const float u = beta * (v[d] - known);
        for (uint32_t i = 0; i < k_dim; i++) {
            float *at = &s[(size_t)i * v_dim + d];
            *at = decay[i] * *at + k[i] * u;
            out += q[i] * *at;
        }
        o[d] = out;
    }
}

static uint32_t find_ref(const float *x, uint32_t from, uint32_t n, float limit)
{
    while (from < n && !(x[from] > limit))
        from++;
    return from;
}

static uint64_t read_ref(const uint8_t *p, size_t bytes)
{
    uint64_t sum = 0, word;
    size_t i = 0;
    for (; i + sizeof word <= bytes; i += sizeof word) {
        memcpy(&word, p + i, sizeof word);
        sum ^= word;
    }
    for (; i < bytes; i++)
        sum ^= p[i];
    return sum;
}

#define FORMAT_ROWS(id, fmt, ...) CPU_ROW(dot[id], 0, dot_##fmt##_ref), CPU_ROW(decode[id], 0, decode_##fmt##_ref),
const cpu_row cpu_rows_ref[] = {
    KERN_FORMATS(FORMAT_ROWS) CPU_ROW(attn_pv[FMT_F32], 0, attn_pv_f32_ref),
    CPU_ROW(attn_pv[FMT_F16], 0, attn_pv_f16_ref),
    CPU_ROW(attn_pv[FMT_Q8_0], 0, attn_pv_q8_0_ref),
    CPU_ROW(to_f16, 0, to_f16_ref),
    CPU_ROW(max, 0, max_ref),
    CPU_ROW(exp, 0, exp_ref),
    CPU_ROW(rmsnorm, 0, rmsnorm_ref),
    CPU_ROW(swiglu, 0, swiglu_ref),
    CPU_ROW(geglu, 0, geglu_ref),
    CPU_ROW(clamped, 0, clamped_ref),
    CPU_ROW(limited, 0, limited_ref),
    CPU_ROW(delta, 0, delta_ref),
    CPU_ROW(find, 0, find_ref),
    CPU_ROW(read, 0, read_ref),
};
const uint32_t cpu_rows_ref_count = sizeof cpu_rows_ref / sizeof *cpu_rows_ref;
