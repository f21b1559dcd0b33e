/* repack.c - experts that a checkpoint stores in another order than kernels read them: how rows are made of what is there.
 *
 * It is done once, when the host tier is filled, by as many threads as fill it; a row at a time would go over the file in steps of
 * a whole row of the transposed matrix, so rows are made in tiles that use whole cache lines on both sides. Nothing is computed: every
 * weight keeps its bits. Sources of the layouts: transformers, models/gpt_oss/modeling_gpt_oss.py, integrations/mxfp4.py and conversion_mapping.py (qwen3_vl_moe);
 * inference/kernel.py (weight_dequant) of DeepSeek-V3; fourbit.c's. Matrices of the trunk in FP8, INT4 and NVFP4 are made here too, when they are loaded. */
#include <math.h>
#include <string.h>

#include "engine/model/model_priv.h"

#define TILE 32 /* columns: 64 bytes of a row of 16-bit numbers */

/* to[r][c] = from[c * stride + r * step], in numbers of `bytes` bytes. Called with constants, so that the copies become moves. */
static inline __attribute__((always_inline)) void transpose(char *to, const char *from, uint32_t rows, uint32_t cols,
                                                            size_t stride, size_t step, size_t bytes)
{
    for (uint32_t c0 = 0; c0 < cols; c0 += TILE)
        for (uint32_t r = 0; r < rows; r++)
            for (uint32_t c = c0; c < XD_MIN(c0 + TILE, cols); c++)
                memcpy(to + ((size_t)r * cols + c) * bytes, from + (c * stride + r * step) * bytes, bytes);
}

/* Gate and up share the rows of one transposed matrix, each value beside that of the other (step 2), or one behind the other. */
static void copy_transposed(const model_tensor *t, uint32_t matrix, uint32_t step, uint32_t first, uint32_t n, void *to)
{
    const size_t stride = (size_t)t->rows * (matrix == MODEL_DOWN ? 1 : 2);
    if (t->fmt == FMT_F32)
        transpose(to, (const char *)t->data + (size_t)first * step * 4, n, t->cols, stride, step, 4);
    else
        transpose(to, (const char *)t->data + (size_t)first * step * 2, n, t->cols, stride, step, 2);
}

/* The file has two neighbours in a byte, the first in the low bits; kernels want weight i beside weight i + 16. */
static inline void pair_nibbles(const uint8_t *from, uint8_t *to)
{
    for (uint32_t i = 0; i < 8; i++) {
        to[2 * i] = (uint8_t)((from[i] & 15) | from[i + 8] << 4);
        to[2 * i + 1] = (uint8_t)(from[i] >> 4 | (from[i + 8] & 0xf0));
    }
}

static void copy_mxfp4(const model_tensor *t, uint32_t matrix, uint32_t first, uint32_t n, kern_mxfp4_block *to)
{
    const size_t blocks = t->cols / 32, step = (matrix == MODEL_DOWN ? 1 : 2) * blocks; /* from row to row */
    for (uint32_t r = 0; r < n; r++) {
        const uint8_t *from = (const uint8_t *)t->data + (first + r) * step * sizeof to->qs;
        const uint8_t *scale = (const uint8_t *)t->scales + (first + r) * step;
        for (size_t b = 0; b < blocks; b++, from += sizeof to->qs, to++) {
            to->e = scale[b];
            pair_nibbles(from, to->qs);
        }
    }
}

static float half_to_float(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exp = (h >> 10) & 31, man = h & 0x3ffu;
    float f;
    uint32_t bits;
    if (exp == 0) {
        f = ldexpf((float)man, -24);
        return sign ? -f : f;
    }
    bits = exp == 31 ? sign | 0x7f800000u | man << 13 : sign | (exp + 112) << 23 | man << 13;
    memcpy(&f, &bits, sizeof f);
    return f;
}

float model_number(const void *values, kern_fmt fmt, size_t i)
{
    uint32_t bits;
    uint16_t half;
    float f;
    if (fmt == FMT_F32) {
        memcpy(&f, (const char *)values + i * 4, 4);
        return f;
    }
    memcpy(&half, (const char *)values + i * 2, 2);
    if (fmt == FMT_F16)
        return half_to_float(half);
    bits = (uint32_t)half << 16;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* Where in its word of eight AWQ has the number of a row. */
static inline uint32_t awq_place(uint32_t row)
{
    return row % 8 / 2 + row % 2 * 4;
}

/* Kernels need not know NaN: one makes one of its block's scale, and of whatever is multiplied by it. */
static bool has_nan(const uint8_t *q, uint32_t n)
{
    unsigned any = 0;
    for (uint32_t i = 0; i < n; i++)
        any |= (q[i] & 0x7f) == 0x7f;
    return any;
}

static void copy_fp8(const model_tensor *t, uint32_t first, uint32_t n, kern_fp8_block *to)
{
    const size_t scales = (t->cols + t->scale.cols - 1) / t->scale.cols; /* of a row */
    for (uint32_t r = first; r < first + n; r++) {
        const uint8_t *from = (const uint8_t *)t->data + (size_t)r * t->cols;
        for (uint32_t c = 0; c < t->cols; c += sizeof to->q, to++) {
            const uint32_t some = XD_MIN((uint32_t)sizeof to->q, t->cols - c);
            to->d = has_nan(from + c, some)
                        ? NAN
                        : model_number(t->scales, t->scale.fmt, r / t->scale.rows * scales + c / t->scale.cols);
            memcpy(to->q, from + c, some);
            memset(to->q + some, 0, sizeof to->q - some);
        }
    }
}

static uint32_t stored_rows(const model_tensor *t)
{
    return t->stored_rows ? t->stored_rows : t->rows;
}

/* --- INT4 ---------------------------------------------------------------------------------------------------------- */

enum { INT4_ROWS = 16, INT4_COLS = 128 }; /* of a piece: what is read of a line of the file is used at once */

/* Word `word`, of eight numbers, one to a byte. */
static inline uint64_t int4_word(const model_tensor *t, size_t word)
{
    uint32_t bits;
    memcpy(&bits, (const char *)t->data + word * sizeof bits, sizeof bits);
    uint64_t v = bits;
    v = (v | v << 16) & 0x0000ffff0000ffff;
    v = (v | v << 8) & 0x00ff00ff00ff00ff;
    return (v | v << 4) & 0x0f0f0f0f0f0f0f0f;
}

/* 32 columns from `col` on of rows first .. first + n (up to INT4_ROWS), as 16 bytes of qs each; what is behind the row is 0. Words are of
 * columns. */
static void int4_along(const model_tensor *t, uint32_t first, uint32_t n, uint32_t col, uint8_t *qs, size_t stride)
{
    const bool by_rows = t->four.order == MODEL_INT4_ROWS;
    const size_t row_step = by_rows ? t->cols / 8 : 1, col_step = by_rows ? 1 : stored_rows(t);
    for (uint32_t r = 0; r < n; r++, qs += stride) {
        uint64_t v[4];
        for (uint32_t i = 0; i < 4; i++)
            v[i] = col + 8 * i < t->cols ? int4_word(t, (first + r) * row_step + (col / 8 + i) * col_step) : 0;
        const uint64_t out[2] = {v[0] | v[2] << 4, v[1] | v[3] << 4};
        memcpy(qs, out, sizeof out);
    }
}

/* The same where words are of rows. */
static void int4_across(const model_tensor *t, uint32_t first, uint32_t n, uint32_t col, uint8_t *qs, size_t stride)
{
    const size_t words = stored_rows(t) / 8; /* of a column */
    for (uint32_t r = 0, end; r < n; r = end) {
        const size_t word = (first + r) / 8;
        end = XD_MIN(n, (uint32_t)(8 * (word + 1)) - first);
        for (uint32_t i = 0; i < 16; i++) {
            const uint64_t low = col + i < t->cols ? int4_word(t, (col + i) * words + word) : 0;
            const uint64_t high = col + 16 + i < t->cols ? int4_word(t, (col + 16 + i) * words + word) : 0;
            for (uint32_t k = r; k < end; k++)
                qs[k * stride + i] = (uint8_t)((low | high << 4) >> 8 * awq_place(first + k));
        }
    }
}

static uint32_t int4_zero(const model_tensor *t, uint32_t row, uint32_t group, uint32_t groups)
{
    const uint8_t *from = t->four.zeros;
    const uint32_t at = t->four.order == MODEL_INT4_AWQ ? awq_place(row) : row % 8;
    const size_t word = t->four.order == MODEL_INT4_ROWS ? (size_t)(row / 8) * groups + group
                                                         : (size_t)group * (stored_rows(t) / 8) + row / 8;
    return from ? (from[word * 4 + at / 2] >> at % 2 * 4 & 15u) + t->four.zeros_less_1 : 8;
}

/* Scale and zero as kern_int4_g32_block has them. */
static uint32_t int4_head(const model_tensor *t, uint32_t row, uint32_t group)
{
    const uint32_t groups = (t->cols + t->scale.cols - 1) / t->scale.cols;
    const bool by_rows = t->four.order == MODEL_INT4_ROWS;
    const float d = model_number(t->scales, t->scale.fmt,
                                 by_rows ? (size_t)row * groups + group : (size_t)group * stored_rows(t) + row);
    uint32_t bits;
    memcpy(&bits, &d, sizeof bits);
    return bits | int4_zero(t, row, group, groups) << 8;
}

/* Of the block that begins at column col; groups behind the row have none. */
static void put_int4_heads(const model_tensor *t, uint32_t row, uint32_t col, void *block)
{
    kern_int4_g32_block *b = block;
    if (t->fmt == FMT_INT4_G128) {
        ((kern_int4_g128_block *)block)->head = int4_head(t, row, col / t->scale.cols);
        return;
    }
    for (uint32_t g = 0; g < XD_ARRAY_LEN(b->d); g++) {
        const uint32_t c = col + 32 * g, head = c < t->cols ? int4_head(t, row, c / t->scale.cols) : 0;
        b->d[g] = (uint16_t)(head >> 16);
        b->more[g] = (uint8_t)(head >> 8);
    }
}

static void copy_int4(const model_tensor *t, uint32_t first, uint32_t n, uint8_t *to)
{
    const uint64_t row_bytes = kern_row_bytes(t->fmt, t->cols);
    const bool by_32 = t->fmt == FMT_INT4_G32;
    const uint32_t head = by_32 ? offsetof(kern_int4_g32_block, qs) : offsetof(kern_int4_g128_block, qs);
    for (; n; first += INT4_ROWS) {
        const uint32_t some = XD_MIN((uint32_t)INT4_ROWS, n);
        uint8_t *block = to;
        for (uint32_t c = 0; c < t->cols; c += INT4_COLS, block += kern_fmt_get(t->fmt).block_bytes) {
            for (uint32_t g = 0; g < INT4_COLS / 32; g++)
                (t->four.order == MODEL_INT4_AWQ ? int4_across : int4_along)(t, first, some, c + 32 * g,
                                                                             block + head + 16 * g, row_bytes);
            for (uint32_t r = 0; r < some; r++)
                put_int4_heads(t, first + r, c, block + r * row_bytes);
        }
        to += some * row_bytes;
        n -= some;
    }
}

/* --- NVFP4 --------------------------------------------------------------------------------------------------------- */

static float nvfp4_factor(const model_tensor *t)
{
    const float f = model_number(t->four.factor, FMT_F32, 0);
    return t->four.order == MODEL_NVFP4_DIVIDED ? 1 / f : f;
}

static void copy_nvfp4(const model_tensor *t, uint32_t first, uint32_t n, kern_nvfp4_block *to)
{
    const float factor = nvfp4_factor(t);
    for (uint32_t r = first; r < first + n; r++) {
        const uint8_t *from = (const uint8_t *)t->data + (size_t)r * (t->cols / 2),
                      *scales = (const uint8_t *)t->scales + (size_t)r * (t->cols / 16);
        for (uint32_t c = 0; c < t->cols; c += 2 * sizeof to->qs, to++) {
            const uint32_t sixteens = XD_MIN((uint32_t)sizeof to->scales, (t->cols - c) / 16);
            uint8_t some[sizeof to->qs] = {0};
            memcpy(some, from + c / 2, sixteens * 8);
            for (uint32_t g = 0; g < sizeof some; g += 16)
                pair_nibbles(some + g, to->qs + g);
            memcpy(to->scales, scales + c / 16, sixteens);
            memset(to->scales + sixteens, 0, sizeof to->scales - sixteens);
            to->d = has_nan(to->scales, sixteens) ? NAN : factor;
        }
    }
}

/* --- what is elsewhere --------------------------------------------------------------------------------------------- */

static uint64_t n_scales(const model_tensor *t)
{
    return t->scale.rows ? (uint64_t)((stored_rows(t) + t->scale.rows - 1) / t->scale.rows) *
                               ((t->cols + t->scale.cols - 1) / t->scale.cols)
                         : 0;
}

uint64_t model_scale_bytes(const model_tensor *t)
{
    return n_scales(t) * (t->fmt == FMT_NVFP4 ? 1 : kern_fmt_get(t->scale.fmt).block_bytes);
}

uint64_t model_zero_bytes(const model_tensor *t)
{
    const uint32_t rows = stored_rows(t);
    return t->four.zeros ? n_scales(t) / rows * ((rows + 7) / 8) * 4 : 0;
}

/* Columns in groups as they come. */
static bool int4_in_order(const model_tensor *t)
{
    for (uint32_t c = 0; t->four.columns && c < t->cols; c++) {
        int32_t group;
        memcpy(&group, t->four.columns + c, sizeof group);
        if (group < 0 || (uint32_t)group != c / t->scale.cols)
            return false;
    }
    return true;
}

/* A zero of 0, less 1, is stored as 15, as one of 16 is; readers differ in which they take it for. */
static bool int4_zeros_are_clear(const model_tensor *t)
{
    const uint8_t *zeros = t->four.zeros;
    const uint64_t n = t->four.zeros_may_wrap ? model_zero_bytes(t) : 0;
    for (uint64_t i = 0; i < n; i++)
        if (zeros[i] >> 4 == 15 || (zeros[i] & 15) == 15)
            return false;
    return true;
}

/* Scales of INT4 and NVFP4 are a tenth of a model: whether they are numbers shows in what comes of them, as with any weight. */
model_fault model_find_fault(const model_tensor *t)
{
    for (uint64_t i = 0; t->fmt == FMT_FP8 && i < n_scales(t); i++)
        if (!isfinite(model_number(t->scales, t->scale.fmt, i)))
            return (model_fault){XD_BAD_MODEL, t->scales, "has a scale that is not a finite number"};
    if (t->four.factor && !isfinite(nvfp4_factor(t)))
        return (model_fault){XD_BAD_MODEL, t->four.factor, "does not give a finite scale"};
    if (!int4_in_order(t))
        return (model_fault){XD_UNSUPPORTED, t->four.columns,
                             "has columns in another order than that of their groups (desc_act): not known"};
    if (!int4_zeros_are_clear(t))
        return (model_fault){XD_UNSUPPORTED, t->four.zeros,
                             "has zeros stored as 15, which are 0 to some and 16 to others: convert it to gptq_v2"};
    return (model_fault){0};
}

model_tensor model_some_rows(const model_tensor *t, uint32_t first, uint32_t n)
{
    const uint64_t row_bytes = t->bytes / t->rows;
    model_tensor some = *t;
    some.rows = n;
    some.bytes = n * row_bytes;
    if (t->scales) {
        some.first_row += first;
        some.stored_rows = stored_rows(t);
    } else {
        some.data = (const char *)t->data + first * row_bytes;
    }
    return some;
}

void model_copy_matrix(const model_tensor *t, uint32_t first, uint32_t n, void *to)
{
    const uint64_t row_bytes = kern_row_bytes(t->fmt, t->cols);
    first += t->first_row;
    if (t->fmt == FMT_NVFP4)
        copy_nvfp4(t, first, n, to);
    else if (t->four.order)
        copy_int4(t, first, n, to);
    else if (t->scales)
        copy_fp8(t, first, n, to);
    else
        memcpy(to, (const char *)t->data + first * row_bytes, n * row_bytes);
}

void model_copy_rows(const model_layer *l, uint32_t expert, uint32_t matrix, uint32_t first, uint32_t n, void *to)
{
    const model_tensor *t = &l->experts[(size_t)expert * MODEL_MATRICES + matrix];
    switch (l->layout) {
    case MODEL_ROWS:
    case MODEL_APART: model_copy_matrix(t, first, n, to); break;
    case MODEL_PAIRED: copy_transposed(t, matrix, matrix == MODEL_DOWN ? 1 : 2, first, n, to); break;
    case MODEL_TURNED: copy_transposed(t, matrix, 1, first, n, to); break;
    case MODEL_PAIRED_MXFP4: copy_mxfp4(t, matrix, first, n, to); break;
    }
}

uint64_t model_data_bytes(const model_tensor *t)
{
    if (t->scales && t->fmt == FMT_FP8)
        return (uint64_t)stored_rows(t) * t->cols;
    if (t->four.order)
        return (uint64_t)stored_rows(t) * t->cols / 2;
    return t->scales ? t->bytes / sizeof(kern_mxfp4_block) * sizeof(((kern_mxfp4_block *)0)->qs) : t->bytes;
}

uint64_t model_stored_bytes(const model_layer *l, uint32_t matrix)
{
    const bool paired = l->layout == MODEL_PAIRED || l->layout == MODEL_PAIRED_MXFP4 ||
                        l->layout == MODEL_TURNED; /* gate and up lie among each other */
    const uint64_t bytes = model_data_bytes(&l->experts[matrix]);
    return paired && matrix == MODEL_GATE ? 2 * bytes : bytes;
}

bool model_repacks(const model *m)
{
    for (uint32_t l = 0; l < m->params.n_layers; l++)
        if (m->layers[l].layout != MODEL_ROWS)
            return true;
    return false;
}
