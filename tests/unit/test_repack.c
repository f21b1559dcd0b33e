/* Experts in another order than kernels read them: every weight is found where the layout's definition says. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "engine/model/model.h"

/* Of one expert: numbers that tell their place. */
static void check_paired(kern_fmt fmt, uint32_t d_model, uint32_t d_ff)
{
    const uint32_t size = kern_fmt_get(fmt).block_bytes, n = 2 * d_ff * d_model;
    uint8_t *gate_up = malloc((size_t)n * size), *down = malloc((size_t)n / 2 * size), *out = malloc((size_t)n * size);
    cr_assert(gate_up && down && out);
    for (uint32_t i = 0; i < n; i++)
        memcpy(gate_up + (size_t)i * size, &i, size);
    for (uint32_t i = 0; i < n / 2; i++)
        memcpy(down + (size_t)i * size, &i, size);
    const uint64_t bytes = (uint64_t)d_ff * d_model * size;
    const model_tensor t[MODEL_MATRICES] = {
        {.data = gate_up, .bytes = bytes, .rows = d_ff, .cols = d_model, .fmt = fmt},
        {.data = gate_up + size, .bytes = bytes, .rows = d_ff, .cols = d_model, .fmt = fmt},
        {.data = down, .bytes = bytes, .rows = d_model, .cols = d_ff, .fmt = fmt},
    };
    const model_layer y = {.layout = MODEL_PAIRED, .n_experts = 1, .d_ff = d_ff, .experts = t};
    for (uint32_t m = 0; m < MODEL_MATRICES; m++)
        for (uint32_t first = 0; first < t[m].rows; first += 7) {
            uint32_t rows = XD_MIN(t[m].rows - first, 7u);
            model_copy_rows(&y, 0, m, first, rows, out);
            for (uint32_t r = 0; r < rows; r++)
                for (uint32_t c = 0; c < t[m].cols; c++) {
                    uint32_t want = m == MODEL_DOWN ? c * d_model + first + r : c * 2 * d_ff + 2 * (first + r) + m;
                    cr_assert(!memcmp(out + (size_t)(r * t[m].cols + c) * size, &want, size),
                              "matrix %u row %u column %u", m, first + r, c);
                }
        }
    cr_assert_eq(model_stored_bytes(&y, MODEL_GATE), 2 * bytes);
    cr_assert_eq(model_stored_bytes(&y, MODEL_DOWN), bytes);
    free(gate_up);
    free(down);
    free(out);
}

/* Weight c of a row of blocks, as transformers' _convert_moe_packed_tensors has it. */
static uint8_t nibble_at(const uint8_t *row, uint32_t c)
{
    return row[c / 2] >> c % 2 * 4 & 15;
}

Test(repack, pairs_the_nibbles_of_mxfp4_as_kernels_read_them)
{
    enum { D = 96, FF = 64 };
    static uint8_t gate_up[2 * FF * D / 2], gate_up_scales[2 * FF * D / 32], down[D * FF / 2], down_scales[D * FF / 32];
    static kern_mxfp4_block out[D * FF / 32];
    for (uint32_t i = 0; i < sizeof gate_up; i++)
        gate_up[i] = (uint8_t)(i * 2654435761u >> 13);
    for (uint32_t i = 0; i < sizeof down; i++)
        down[i] = (uint8_t)(i * 2246822519u >> 11);
    for (uint32_t i = 0; i < sizeof gate_up_scales; i++)
        gate_up_scales[i] = (uint8_t)(i * 7);
    for (uint32_t i = 0; i < sizeof down_scales; i++)
        down_scales[i] = (uint8_t)(i * 5 + 1);
    const model_tensor t[MODEL_MATRICES] = {
        {.data = gate_up, .scales = gate_up_scales, .bytes = FF * D / 32 * 17, .rows = FF, .cols = D, .fmt = FMT_MXFP4},
        {.data = gate_up + D / 2, .scales = gate_up_scales + D / 32, .rows = FF, .cols = D, .fmt = FMT_MXFP4},
        {.data = down, .scales = down_scales, .rows = D, .cols = FF, .fmt = FMT_MXFP4},
    };
    const model_layer y = {.layout = MODEL_PAIRED_MXFP4, .n_experts = 1, .d_ff = FF, .experts = t};
    for (uint32_t m = 0; m < MODEL_MATRICES; m++) {
        const uint32_t rows = t[m].rows - 3, cols = t[m].cols;
        model_copy_rows(&y, 0, m, 3, rows, out);
        for (uint32_t r = 0; r < rows; r++)
            for (uint32_t c = 0; c < cols; c++) {
                uint32_t row = m == MODEL_DOWN ? r + 3 : 2 * (r + 3) + m;
                const uint8_t *blocks = m == MODEL_DOWN ? down : gate_up;
                const uint8_t *scales = m == MODEL_DOWN ? down_scales : gate_up_scales;
                const kern_mxfp4_block *b = &out[(r * cols + c) / 32];
                cr_assert_eq(b->e, scales[row * (cols / 32) + c / 32], "matrix %u row %u column %u", m, r, c);
                cr_assert_eq(b->qs[c % 16] >> (c % 32 / 16 * 4) & 15, nibble_at(blocks + row * (cols / 2), c),
                             "matrix %u row %u column %u", m, r, c);
            }
    }
    cr_assert_eq(model_stored_bytes(&y, MODEL_GATE), sizeof gate_up);
}

Test(repack, finds_gate_and_up_in_alternate_columns)
{
    check_paired(FMT_BF16, 64, 48);
    check_paired(FMT_BF16, 33, 5);
    check_paired(FMT_F16, 1, 1);
    check_paired(FMT_F32, 40, 70);
}
