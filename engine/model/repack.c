/* repack.c - experts that a checkpoint stores in another order than kernels read them: how rows are made of what is there.
 *
 * It is done once, when the host tier is filled, by as many threads as fill it; a row at a time would go over the file in steps of
 * a whole row of the transposed matrix, so rows are made in tiles that use whole cache lines on both sides. Nothing is computed: every
 * weight keeps its bits. Sources of the layouts: transformers, models/gpt_oss/modeling_gpt_oss.py, integrations/mxfp4.py and conversion_mapping.py (qwen3_vl_moe);
 * inference/kernel.py (weight_dequant) of DeepSeek-V3. Matrices of the trunk in FP8 are made here too, when they are loaded. */
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

/* The file has two neighbours in a byte, the first in the low bits; kernels want weight i beside weight i + 16 (kern_mxfp4_block). */
static void copy_mxfp4(const model_tensor *t, uint32_t matrix, uint32_t first, uint32_t n, kern_mxfp4_block *to)
{
    const size_t blocks = t->cols / 32, step = (matrix == MODEL_DOWN ? 1 : 2) * blocks; /* from row to row */
    for (uint32_t r = 0; r < n; r++) {
        const uint8_t *from = (const uint8_t *)t->data + (first + r) * step * sizeof to->qs;
        const uint8_t *scale = (const uint8_t *)t->scales + (first + r) * step;
        for (size_t b = 0; b < blocks; b++, from += sizeof to->qs, to++) {
            to->e = scale[b];
            for (uint32_t i = 0; i < 8; i++) {
                to->qs[2 * i] = (uint8_t)((from[i] & 15) | from[i + 8] << 4);
                to->qs[2 * i + 1] = (uint8_t)(from[i] >> 4 | (from[i + 8] & 0xf0));
            }
        }
    }
}

static float scale_at(const model_tensor *t, size_t i)
{
    uint32_t bits = 0;
    float d;
    if (t->scale.fmt == FMT_BF16)
        memcpy((char *)&bits + 2, (const char *)t->scales + i * 2, 2);
    else
        memcpy(&bits, (const char *)t->scales + i * 4, 4);
    memcpy(&d, &bits, sizeof d);
    return d;
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
            to->d = has_nan(from + c, some) ? NAN : scale_at(t, r / t->scale.rows * scales + c / t->scale.cols);
            memcpy(to->q, from + c, some);
            memset(to->q + some, 0, sizeof to->q - some);
        }
    }
}

uint64_t model_n_scales(const model_tensor *t)
{
    return t->scale.rows ? (uint64_t)((t->rows + t->scale.rows - 1) / t->scale.rows) *
                               ((t->cols + t->scale.cols - 1) / t->scale.cols)
                         : 0;
}

bool model_scales_are_sound(const model_tensor *t)
{
    for (uint64_t i = 0; i < model_n_scales(t); i++)
        if (!isfinite(scale_at(t, i)))
            return false;
    return true;
}

void model_copy_matrix(const model_tensor *t, uint32_t first, uint32_t n, void *to)
{
    const uint64_t row_bytes = kern_row_bytes(t->fmt, t->cols);
    if (t->scales)
        copy_fp8(t, first, n, to);
    else
        memcpy(to, (const char *)t->data + first * row_bytes, n * row_bytes);
}

void model_copy_rows(const model_layer *l, uint32_t expert, uint32_t matrix, uint32_t first, uint32_t n, void *to)
{
    const model_tensor *t = &l->experts[(size_t)expert * MODEL_MATRICES + matrix];
    switch (l->layout) {
    case MODEL_ROWS:
    case MODEL_FP8: model_copy_matrix(t, first, n, to); break;
    case MODEL_PAIRED: copy_transposed(t, matrix, matrix == MODEL_DOWN ? 1 : 2, first, n, to); break;
    case MODEL_TURNED: copy_transposed(t, matrix, 1, first, n, to); break;
    case MODEL_PAIRED_MXFP4: copy_mxfp4(t, matrix, first, n, to); break;
    }
}

uint64_t model_data_bytes(const model_tensor *t)
{
    if (t->scales && t->fmt == FMT_FP8)
        return (uint64_t)t->rows * t->cols;
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
