/* Checkpoints in INT4 (GPTQ, AWQ, compressed-tensors) and NVFP4 (ModelOpt, compressed-tensors): which configurations and tensors are taken and which refused by name, and where
 * numbers, scales and zeros end up. That the values are right, the golden models tell (tests/data/golden/ *-int4-*, *-nvfp4-*). */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "config/util.h"
#include "engine/model/model.h"
#include "tests/unit/damaged.h"
#include "tests/unit/family_config.h"

TestSuite(fourbit, .init = make_dir, .fini = remove_dir);

#define SIZES                                                                                                         \
    "\"model_type\":\"llama\",\"hidden_size\":64,\"num_hidden_layers\":1,\"num_attention_heads\":2,\"vocab_size\":8," \
    "\"intermediate_size\":32"
#define QUANT(text) "{" SIZES ",\"quantization_config\":{" text "}}"
#define GPTQ(text)  QUANT("\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":128" text)
#define AWQ(text)   QUANT("\"quant_method\":\"awq\"," text)
#define PACKED(text) \
    QUANT("\"quant_method\":\"compressed-tensors\",\"format\":\"pack-quantized\",\"config_groups\":{" text "}")
#define GROUP(name, text) "\"" name "\":{\"weights\":{\"num_bits\":4,\"type\":\"int\"," text "}}"
#define MODELOPT(text)    QUANT("\"quant_method\":\"modelopt\"," text)
#define NVFP4(text) \
    QUANT("\"quant_method\":\"compressed-tensors\",\"format\":\"nvfp4-pack-quantized\",\"config_groups\":{" text "}")
#define FLOAT(text) "\"a\":{\"weights\":{\"num_bits\":4,\"type\":\"float\"," text "}}"
#define ROUND(text) QUANT("\"quant_method\":\"auto-round\",\"bits\":4,\"group_size\":128," text)
#define BY_32       "\"strategy\":\"group\",\"group_size\":32"

Test(fourbit, takes_what_is_published)
{
    static const char *const good[] = {
        /* Qwen's */
        GPTQ(",\"sym\":true,\"desc_act\":false,\"static_groups\":false,\"true_sequential\":true,\"damp_percent\":0.01"),
        GPTQ(",\"sym\":false,\"desc_act\":true,\"checkpoint_format\":\"gptq_v2\",\"dynamic\":{\"-:.*gate\":{}}"),
        GPTQ(",\"sym\":true,\"format\":\"gptq\""),
        QUANT("\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":-1,\"sym\":true"),
        AWQ("\"bits\":4,\"group_size\":128,\"version\":\"gemm\",\"zero_point\":true,\"modules_to_not_convert\":null"),
        AWQ("\"w_bit\":4,\"q_group_size\":64,\"version\":\"GEMM\""),
        /* Intel's */
        ROUND("\"packing_format\":\"auto_round:auto_gptq\",\"data_type\":\"int\",\"sym\":true,\"extra_config\":{}"),
        ROUND("\"packing_format\":\"auto_round:auto_awq\""),
        /* Kimi-K2-Thinking's */
        PACKED(GROUP("group_0", BY_32 ",\"symmetric\":true,\"dynamic\":false,\"actorder\":null")),
        PACKED(GROUP("a", BY_32 ",\"symmetric\":false") "," GROUP("b", BY_32 ",\"symmetric\":false")),
        PACKED(GROUP("a", "\"strategy\":\"channel\",\"group_size\":null")),
        /* NVIDIA's and RedHat's */
        MODELOPT("\"quant_algo\":\"NVFP4\",\"group_size\":16,\"kv_cache_quant_algo\":\"FP8\""),
        MODELOPT("\"quant_algo\":\"NVFP4\",\"config_groups\":{},\"ignore\":[\"lm_head\"]"),
        MODELOPT("\"quant_algo\":\"FP8\""),
        NVFP4(FLOAT("\"group_size\":16,\"strategy\":\"tensor_group\"")),
    };
    for (size_t i = 0; i < XD_ARRAY_LEN(good); i++) {
        model *m = NULL;
        xd_err err;
        cr_assert_eq(open_config(good[i], &m, &err), XD_OK, "%s -> %s", good[i], err.msg);
        model_free(m);
    }
}

Test(fourbit, names_what_cannot_be_read)
{
    static const refused bad[] = {
        {QUANT("\"quant_method\":\"gptq\",\"bits\":8,\"group_size\":128"), "gptq in 8 bits"},
        {QUANT("\"quant_method\":\"gptq\",\"bits\":\"4\""), "bits"},
        {QUANT("\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":48"), "group_size 48"},
        {QUANT("\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":\"128\""),
         "group_size of quantization_config is no size"},
        {QUANT("\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":-2"),
         "group_size of quantization_config is no size"},
        {GPTQ(",\"checkpoint_format\":\"marlin\""), "form 'marlin'"},
        {GPTQ(",\"is_marlin_format\":true"), "form 'marlin'"},
        {GPTQ(",\"checkpoint_format\":3"), "form '(no text)'"},
        {AWQ("\"bits\":8,\"group_size\":128"), "awq in 8 bits"},
        {AWQ("\"bits\":4,\"group_size\":128,\"version\":\"gemv\""), "version 'gemv'"},
        {AWQ("\"bits\":4,\"group_size\":128,\"zero_point\":false"), "without zeros"},
        {ROUND("\"sym\":true"), "packing_format '(none)'"},
        {ROUND("\"packing_format\":\"auto_round\""), "packing_format 'auto_round'"},
        {ROUND("\"packing_format\":\"auto_round:auto_gptq\",\"data_type\":\"mx_fp\""), "type 'mx_fp'"},
        {PACKED(""), "no config_groups"},
        {PACKED("\"a\":{}"), "type '(none)'"},
        {PACKED("\"a\":{\"weights\":{\"num_bits\":8,\"type\":\"int\",\"strategy\":\"channel\"}}"), "'int' in 8 bits"},
        {PACKED(GROUP("a", "\"strategy\":\"tensor\"")), "strategy 'tensor'"},
        {PACKED(GROUP("a", "\"strategy\":\"group\",\"group_size\":16")), "group_size 16"},
        {PACKED(GROUP("a", BY_32) "," GROUP("b", "\"strategy\":\"channel\"")), "groups of different sizes"},
        {PACKED(GROUP("a", BY_32) "," GROUP("b", BY_32 ",\"symmetric\":false")), "groups of different sizes"},
        {MODELOPT("\"quant_algo\":\"NVFP4\",\"group_size\":32"), "NVFP4 in groups of 32"},
        {MODELOPT("\"quant_algo\":\"W4A8_AWQ\""), "quant_algo 'W4A8_AWQ'"},
        {MODELOPT("\"bits\":4"), "quant_algo '(none)'"},
        {NVFP4(""), "no config_groups"},
        {NVFP4(FLOAT("\"group_size\":32")), "in groups of 32"},
        {NVFP4(FLOAT("\"symmetric\":false")), "symmetric groups of 16"},
        {NVFP4(GROUP("a", "\"group_size\":16")), "type 'int'"},
    };
    refuse(bad, XD_ARRAY_LEN(bad));
}

#define KIMI    "deepseek_v3-int4-kimi_k2"
#define OF_GPTQ "qwen3_moe-int4-gptq-128"
#define OF_AWQ  "qwen3_moe-int4-awq-128"
#define OPT     "qwen3_moe-nvfp4-modelopt-file"
#define DENSE   "qwen3-nvfp4-ct"
#define UP      "model.layers.1.mlp.experts.1.up_proj."
#define K       "model.layers.1.self_attn.k_proj."

Test(fourbit, refuses_parts_that_do_not_fit)
{
    static const damage bad[] = {
        DAMAGED(KIMI, UP "weight_packed", "packed", "PACKED", "'" UP "weight' is missing"),
        DAMAGED(KIMI, UP "weight_scale", "scale", "SCALE", "'" UP "weight_scale' is missing, a part of '"),
        DAMAGED(KIMI, UP "weight_scale", "[160,3]", "[3,160]", "'" UP "weight_scale' has the wrong shape: [3, 160]"),
        DAMAGED(KIMI, UP "weight_scale", "\"BF16\"", "\"I16\" ", "is I16; scales in F16 and BF16"),
        DAMAGED(KIMI, UP "weight_packed", "\"I32\"", "\"F32\"", "'" UP "weight_packed' is F32; I32 can be read"),
        DAMAGED(KIMI, UP "weight_packed", "[160,12]", "[ 80,24]", "needs [160, 12]"),
        /* 8 bits, or another group: the shapes are not those of what config.json says */
        MISCONFIGURED(KIMI, "group_size", "32", "64", "needs [160, 2]"),
        MISCONFIGURED(KIMI, "symmetric", ": true", ":false", "weight_zero_point' is missing"),
        DAMAGED(OF_GPTQ, K "qzeros", "qzeros", "QZEROS", "'" K "qzeros' is missing, a part of '"),
        DAMAGED(OF_GPTQ, K "qweight", "[32,64]", "[64,32]", "'" K "qweight' has the wrong shape: [64, 32]"),
        MISCONFIGURED(OF_GPTQ, "group_size", "128", " 64", "needs [4, "),
        DAMAGED(OF_AWQ, K "scales", "scales", "SCALES", "'" K "scales' is missing"),
        DAMAGED(OF_AWQ, K "qzeros", "[2,8]", "[8,2]", "'" K "qzeros' has the wrong shape"),
        DAMAGED(OPT, UP "weight_scale\"", "scale", "SCALE", "'" UP "weight_scale' is missing, a part of '"),
        DAMAGED(OPT, UP "weight_scale\"", "F8_E4M3", "F8_E5M2", "is F8_E5M2; F8_E4M3 can be read"),
        DAMAGED(OPT, UP "weight_scale\"", "[112,12]", "[12,112]", "'" UP "weight_scale' has the wrong shape"),
        DAMAGED(OPT, UP "weight_scale_2", "scale_2", "scale_3", "'" UP "weight_scale_2' is missing"),
        DAMAGED(OPT, UP "weight_scale_2", "\"F32\"", "\"I32\"", "is I32 []; one number in F32"),
        DAMAGED(DENSE, K "weight_global_scale", "global", "GLOBAL", "'" K "weight_global_scale' is missing"),
        MISCONFIGURED(OF_AWQ, "\"awq\"", "awq\"", "AWQ\"", "quant_method 'AWQ'"),
    };
    refuse_damaged(bad, XD_ARRAY_LEN(bad));
}

/* Columns that are sorted by how much they matter (desc_act), a bias that is one, and zeros that readers disagree on. */
Test(fourbit, refuses_what_would_be_something_else)
{
    static const int32_t other_group[] = {1};
    static const uint16_t one[] = {0x3c00};
    static const uint32_t zeros[] = {0x777777f7};
    static const float zero[] = {0}, infinite[] = {INFINITY};
    static const damage asymmetric = MISCONFIGURED(OF_GPTQ, "\"sym\"", ": true", ":false", NULL);
    static const damage sorted = MISCONFIGURED(OF_GPTQ, "\"desc_act\"", ": false", ":  true", NULL);
    static const damage bad[] = {
        {.golden = OF_GPTQ,
         .at = K "g_idx",
         .value = other_group,
         .value_bytes = 4,
         .says = "'" K "g_idx' has columns in another order"},
        {.golden = OF_GPTQ,
         .at = UP "g_idx",
         .value = other_group,
         .value_bytes = 4,
         .says = "'" UP "g_idx' has columns in another order"},
        {.golden = OF_GPTQ, .at = UP "bias", .value = one, .value_bytes = 2, .says = "'" UP "bias' has no place"},
        {.golden = OF_GPTQ,
         .at = UP "qzeros",
         .value = zeros,
         .value_bytes = 4,
         .says = "'" UP "qzeros' has zeros stored as 15",
         .also = &asymmetric},
        {.golden = DENSE,
         .at = K "weight_global_scale",
         .value = zero,
         .value_bytes = 4,
         .says = "'" K "weight_global_scale' does not give a finite scale"},
        {.golden = OPT,
         .at = UP "weight_scale_2",
         .value = infinite,
         .value_bytes = 4,
         .says = "'" UP "weight_scale_2' does not give a finite scale"},
    };
    refuse_damaged(bad, XD_ARRAY_LEN(bad));
    xd_err err;
    cr_assert_eq(open_damaged(&asymmetric, &err), XD_OK, "%s", err.msg);
    cr_assert_eq(open_damaged(&sorted, &err), XD_OK, "%s", err.msg);
}

/* ---- what the kernels are given ------------------------------------------------------------------------------------------ */

enum { ROWS = 24, COLS = 200, MOST_GROUPS = 7 };

static uint32_t number_at(uint32_t r, uint32_t c)
{
    return (r * 7 + c * 5 + c / 16) % 16;
}

static uint32_t zero_at(uint32_t r, uint32_t g)
{
    return (r + 3 * g) % 15 + 1;
}

static void put_nibble(uint32_t *words, size_t word, uint32_t at, uint32_t n)
{
    words[word] |= n << 4 * at;
}

/* Where in its word the number of row r is: AWQ's first is row 0, its second row 2. */
static uint32_t place_of(model_four_order order, uint32_t r)
{
    static const uint32_t awq[8] = {0, 2, 4, 6, 1, 3, 5, 7};
    uint32_t at = 0;
    while (order == MODEL_INT4_AWQ ? awq[at] != r % 8 : at != r % 8)
        at++;
    return at;
}

static void check_order(model_four_order order, uint32_t group, bool zeros, bool less, kern_fmt scales)
{
    static uint32_t words[ROWS * COLS / 8], zero_words[ROWS / 8 * MOST_GROUPS];
    static uint16_t halves[ROWS * MOST_GROUPS];
    static uint8_t out[ROWS * 2 * sizeof(kern_int4_g32_block)];
    const uint32_t groups = (COLS + group - 1) / group;
    const bool by_rows = order == MODEL_INT4_ROWS;
    memset(words, 0, sizeof words);
    memset(zero_words, 0, sizeof zero_words);
    for (uint32_t r = 0; r < ROWS; r++) {
        for (uint32_t c = 0; c < COLS; c++)
            switch (order) {
            case MODEL_INT4_GPTQ: put_nibble(words, (size_t)c / 8 * ROWS + r, c % 8, number_at(r, c)); break;
            case MODEL_INT4_AWQ:
                put_nibble(words, (size_t)c * (ROWS / 8) + r / 8, place_of(order, r), number_at(r, c));
                break;
            default: put_nibble(words, (size_t)r * (COLS / 8) + c / 8, c % 8, number_at(r, c)); break;
            }
        for (uint32_t g = 0; g < groups; g++) {
            put_nibble(zero_words, by_rows ? (size_t)(r / 8) * groups + g : (size_t)g * (ROWS / 8) + r / 8,
                       place_of(order, r), zero_at(r, g) - less);
            /* 1 + m / 2^7, or 2^-14 * m / 2^10: of subnormal halves */
            halves[by_rows ? r * groups + g : g * ROWS + r] = (uint16_t)((scales == FMT_BF16 ? 0x3f80 : 0) + (r + g));
        }
    }
    const model_tensor t = {
        .data = words,
        .scales = halves,
        .rows = ROWS,
        .cols = COLS,
        .fmt = group % 128 && group != COLS ? FMT_INT4_G32 : FMT_INT4_G128,
        .scale = {.rows = 1, .cols = group, .fmt = scales},
        .four = {.order = order, .zeros = zeros ? zero_words : NULL, .zeros_less_1 = less},
    };
    const uint64_t row_bytes = kern_row_bytes(t.fmt, COLS);
    const model_layer y = {.layout = MODEL_APART, .n_experts = 1, .experts = &t};
    cr_assert_eq(model_stored_bytes(&y, 0), sizeof words);
    for (uint32_t first = 0; first < ROWS; first += 5) /* pieces that begin and end within words */
        model_copy_rows(&y, 0, 0, first, XD_MIN(5u, ROWS - first), out + first * row_bytes);
    for (uint32_t r = 0; r < ROWS; r++)
        for (uint32_t c = 0; c < 2 * 128; c++) {
            const uint8_t *block = out + r * row_bytes + c / 128 * kern_fmt_get(t.fmt).block_bytes, *qs;
            uint32_t g = c % 128 / 32, head;
            if (t.fmt == FMT_INT4_G32) {
                const kern_int4_g32_block *b = (const kern_int4_g32_block *)block;
                head = (uint32_t)b->d[g] << 16 | (uint32_t)b->more[g] << 8;
                qs = b->qs;
            } else {
                const kern_int4_g128_block *b = (const kern_int4_g128_block *)block;
                head = b->head;
                qs = b->qs;
            }
            const uint32_t q = qs[16 * g + c % 16] >> (c % 32 / 16 * 4) & 15, of = c / group, bits = head & 0xffffe000u;
            float d;
            memcpy(&d, &bits, sizeof d);
            cr_assert_eq(q, c < COLS ? number_at(r, c) : 0, "row %u column %u", r, c);
            if (c >= COLS)
                continue;
            const float scale = scales == FMT_BF16 ? 1 + (float)(r + of) / 128 : ldexpf((float)(r + of), -24);
            cr_assert_eq(head >> 8 & 31, zeros ? zero_at(r, of) : 8, "row %u column %u: %u (order %d, groups of %u)", r,
                         c, head >> 8 & 31, (int)order, group);
            cr_assert(d == scale, "row %u column %u: %g, not %g", r, c, (double)d, (double)scale);
        }
    /* of a matrix that is one with others in the file */
    static uint8_t part_out[sizeof out];
    model_tensor part = t;
    part.first_row = 7;
    part.rows = ROWS - 7;
    part.stored_rows = ROWS;
    model_copy_matrix(&part, 0, 4, part_out);
    model_copy_matrix(&part, 4, ROWS - 11, part_out + 4 * row_bytes);
    cr_assert(!memcmp(part_out, out + 7 * row_bytes, (ROWS - 7) * row_bytes));
}

Test(fourbit, puts_scale_and_zero_beside_their_numbers)
{
    for (model_four_order order = MODEL_INT4_ROWS; order <= MODEL_INT4_AWQ; order++)
        for (uint32_t i = 0; i < 5; i++) {
            static const uint32_t groups[] = {32, 64, 96, 128, COLS};
            check_order(order, groups[i], true, false, FMT_F16);
            check_order(order, groups[i], true, true, FMT_BF16);
            check_order(order, groups[i], false, false, FMT_BF16);
        }
}

/* Rows of 208 columns, one sixteen of which has no number for a scale. */
Test(fourbit, puts_the_scales_of_nvfp4_beside_their_numbers)
{
    enum { OF = 208, BLOCKS = 2 };
    static uint8_t q[4 * OF / 2], scales[4 * OF / 16];
    static kern_nvfp4_block out[4 * BLOCKS];
    const float factor = 4;
    for (uint32_t r = 0; r < 4; r++)
        for (uint32_t c = 0; c < OF; c++) {
            q[(r * OF + c) / 2] |= (uint8_t)(number_at(r, c) << c % 2 * 4);
            scales[(r * OF + c) / 16] = (uint8_t)(r * 16 + c / 16);
        }
    scales[(2 * OF + 160) / 16] = 0xff;
    for (model_four_order order = MODEL_NVFP4; order <= MODEL_NVFP4_DIVIDED; order++) {
        const model_tensor t = {.data = q,
                                .scales = scales,
                                .rows = 4,
                                .cols = OF,
                                .fmt = FMT_NVFP4,
                                .scale = {.rows = 1, .cols = 16},
                                .four = {.order = order, .factor = &factor}};
        const model_layer y = {.layout = MODEL_APART, .n_experts = 1, .experts = &t};
        cr_assert_eq(model_stored_bytes(&y, 0), sizeof q);
        cr_assert_eq(model_scale_bytes(&t), sizeof scales);
        model_copy_rows(&y, 0, 0, 0, 1, out);
        model_copy_rows(&y, 0, 0, 1, 3, out + BLOCKS);
        for (uint32_t r = 0; r < 4; r++)
            for (uint32_t c = 0; c < BLOCKS * 128; c++) {
                const kern_nvfp4_block *b = &out[r * BLOCKS + c / 128];
                const uint32_t i = c % 128;
                if (r == 2 && c >= 128)
                    cr_assert(isnan(b->d));
                else
                    cr_assert_eq(b->d, order == MODEL_NVFP4 ? 4.0f : 0.25f);
                cr_assert_eq(b->scales[i / 16], c < OF ? scales[(r * OF + c) / 16] : 0, "row %u column %u", r, c);
                cr_assert_eq(b->qs[i / 32 * 16 + i % 16] >> i % 32 / 16 * 4 & 15, c < OF ? number_at(r, c) : 0,
                             "row %u column %u", r, c);
            }
    }
}
