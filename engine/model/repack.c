/* repack.c - experts that a checkpoint stores in another order than kernels read them: how rows are made of what is there.
 *
 * It is done once, when the host tier is filled, by as many threads as fill it; a row at a time would go over the file in steps of
 * a whole row of the transposed matrix, so rows are made in tiles that use whole cache lines on both sides. Nothing is computed: every
 * weight keeps its bits. Source of the layout: transformers, models/gpt_oss/modeling_gpt_oss.py. */
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

static void copy_paired(const model_tensor *t, uint32_t matrix, uint32_t first, uint32_t n, void *to)
{
    const uint32_t step = matrix == MODEL_DOWN ? 1 : 2;
    const size_t stride = (size_t)t->rows * step;
    if (t->fmt == FMT_F32)
        transpose(to, (const char *)t->data + (size_t)first * step * 4, n, t->cols, stride, step, 4);
    else
        transpose(to, (const char *)t->data + (size_t)first * step * 2, n, t->cols, stride, step, 2);
}

void model_copy_rows(const model_layer *l, uint32_t expert, uint32_t matrix, uint32_t first, uint32_t n, void *to)
{
    const model_tensor *t = &l->experts[(size_t)expert * MODEL_MATRICES + matrix];
    const uint64_t row_bytes = kern_row_bytes(t->fmt, t->cols);
    switch (l->layout) {
    case MODEL_ROWS: memcpy(to, (const char *)t->data + first * row_bytes, n * row_bytes); break;
    case MODEL_PAIRED: copy_paired(t, matrix, first, n, to); break;
    }
}

uint64_t model_stored_bytes(const model_layer *l, uint32_t matrix)
{
    const uint64_t bytes = l->experts[matrix].bytes;
    /* gate and up lie among each other; up begins one number later */
    return l->layout == MODEL_PAIRED && matrix == MODEL_GATE ? 2 * bytes : bytes;
}
