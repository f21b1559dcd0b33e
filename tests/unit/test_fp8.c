/* Checkpoints in FP8: which configurations and tensors are taken and which refused by name, and where weights and scales end up. That the
 * values are right, the golden models tell (tests/data/golden/ *-fp8-*). */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "config/util.h"
#include "engine/model/model.h"
#include "tests/unit/damaged.h"
#include "tests/unit/family_config.h"

TestSuite(fp8, .init = make_dir, .fini = remove_dir);

#define SIZES                                                                                                         \
    "\"model_type\":\"llama\",\"hidden_size\":64,\"num_hidden_layers\":1,\"num_attention_heads\":2,\"vocab_size\":8," \
    "\"intermediate_size\":32"
#define QUANT(text)      "{" SIZES ",\"quantization_config\":{" text "}}"
#define COMPRESSED(text) QUANT("\"quant_method\":\"compressed-tensors\",\"format\":\"float-quantized\"" text)
#define GROUP(text)      "\"weights\":{\"type\":\"float\",\"num_bits\":8," text "}"

Test(fp8, takes_what_is_published)
{
    static const char *const good[] = {
        QUANT(
            "\"quant_method\":\"fp8\",\"fmt\":\"e4m3\",\"activation_scheme\":\"dynamic\",\"weight_block_size\":[128,128]"),
        QUANT("\"quant_method\":\"fp8\",\"fmt\":\"float8_e4m3fn\",\"weight_block_size\":[128,128],"
              "\"modules_to_not_convert\":[\"gate\",\"lm_head\"],\"scale_fmt\":\"ue8m0\""),
        QUANT("\"quant_method\":\"fp8\",\"weight_block_size\":[1,256]"),
        QUANT("\"quant_method\":\"fp8\",\"activation_scheme\":\"static\",\"weight_block_size\":null"),
        COMPRESSED(",\"config_groups\":{\"group_0\":{" GROUP("\"strategy\":\"channel\",\"dynamic\":false") "}}"),
        COMPRESSED(",\"transform_config\":{},\"sparsity_config\":{\"format\":\"dense\"},\"config_groups\":{"
                   "\"a\":{" GROUP("\"strategy\":\"tensor\"") "},\"b\":{" GROUP("\"strategy\":\"channel\"") "}}"),
        COMPRESSED(
            ",\"config_groups\":{\"group_0\":{" GROUP("\"strategy\":\"block\",\"block_structure\":[128,128]") "}}"),
    };
    for (size_t i = 0; i < XD_ARRAY_LEN(good); i++) {
        model *m = NULL;
        xd_err err;
        cr_assert_eq(open_config(good[i], &m, &err), XD_OK, "%s -> %s", good[i], err.msg);
        model_free(m);
    }
}

Test(fp8, names_what_cannot_be_read)
{
    static const refused bad[] = {
        {QUANT("\"quant_method\":\"bitsandbytes\""), "quant_method 'bitsandbytes'"},
        {QUANT("\"bits\":4"), "quant_method '(none)'"},
        {QUANT("\"quant_method\":\"fp8\",\"fmt\":\"e5m2\""), "fmt 'e5m2'"},
        {QUANT("\"quant_method\":\"fp8\",\"weight_block_size\":[128]"), "weight_block_size of quantization_config"},
        {QUANT("\"quant_method\":\"fp8\",\"weight_block_size\":[128,\"128\"]"), "needs two sizes"},
        {QUANT("\"quant_method\":\"fp8\",\"weight_block_size\":[0,128]"), "needs two sizes"},
        {QUANT("\"quant_method\":\"fp8\",\"weight_block_size\":[128,1099511627776]"), "needs two sizes"},
        {QUANT("\"quant_method\":\"fp8\",\"weight_block_size\":[64,64]"), "[64, 64]"},
        {QUANT("\"quant_method\":\"compressed-tensors\",\"format\":\"mxfp4-pack-quantized\""),
         "format 'mxfp4-pack-quantized'"},
        {QUANT("\"quant_method\":\"compressed-tensors\""), "format '(none)'"},
        {COMPRESSED(""), "no config_groups"},
        {COMPRESSED(",\"config_groups\":{\"a\":{}}"), "type '(none)'"},
        {COMPRESSED(
             ",\"config_groups\":{\"a\":{\"weights\":{\"type\":\"int\",\"num_bits\":8,\"strategy\":\"channel\"}}}"),
         "type 'int'"},
        {COMPRESSED(",\"config_groups\":{\"a\":{" GROUP("\"strategy\":\"group\"") "}}"), "strategy 'group'"},
        {COMPRESSED(",\"config_groups\":{\"a\":{" GROUP("\"strategy\":\"block\",\"block_structure\":[128,32]") "}}"),
         "[128, 32]"},
        {COMPRESSED(",\"config_groups\":{\"a\":{" GROUP("\"strategy\":\"channel\"") "},\"b\":{" GROUP(
             "\"strategy\":\"block\",\"block_structure\":[128,128]") "}}"),
         "with and without blocks"},
        {COMPRESSED(",\"sparsity_config\":{\"format\":\"sparse-24-bitmask\"}"), "sparse-24-bitmask"},
        {COMPRESSED(",\"transform_config\":{\"config_groups\":{}}"), "transform_config"},
        {"{\"model_type\":\"gpt_oss\",\"hidden_size\":64,\"num_hidden_layers\":1,\"num_attention_heads\":8,\"vocab_size\":8,"
         "\"intermediate_size\":32,\"quantization_config\":{\"quant_method\":\"fp8\"}}",
         "mxfp4 can"},
    };
    refuse(bad, XD_ARRAY_LEN(bad));
}

#define BLOCK "qwen3_moe-fp8-block"
#define Q     "model.layers.1.self_attn.q_proj.weight"
#define UP    "model.layers.0.mlp.experts.1.up_proj.weight"

Test(fp8, refuses_scales_that_do_not_fit)
{
    static const damage bad[] = {
        DAMAGED(BLOCK, Q "_scale_inv", "scale_inv", "scale_ink", "'" Q "_scale_inv' is missing: the scales of '" Q "'"),
        DAMAGED(BLOCK, UP "_scale_inv", "scale_inv", "scale_ink", "'" UP "_scale_inv' is missing"),
        DAMAGED(BLOCK, UP "_scale_inv", "[2,2]", "[4,1]", "wrong shape: [4, 1], that of '" UP "' needs [2, 2]"),
        DAMAGED(BLOCK, UP "_scale_inv", "\"shape\":[2,2]", "\"shape\":[  4]", "wrong shape: [4]"),
        DAMAGED(BLOCK, UP "_scale_inv", "\"F32\"", "\"I32\"", "is I32; scales in F32 and BF16"),
        DAMAGED("qwen3-fp8-channel", "model.layers.0.self_attn.k_proj.weight_scale", "[64,1]", "[ 8,8]",
                "wrong shape: [8, 8]"),
    };
    refuse_damaged(bad, XD_ARRAY_LEN(bad));
}

Test(fp8, refuses_scales_that_are_no_numbers)
{
    static const char *const of[] = {Q "_scale_inv", UP "_scale_inv"};
    const float values[] = {NAN, INFINITY, -INFINITY};
    for (size_t i = 0; i < XD_ARRAY_LEN(of); i++)
        for (size_t k = 0; k < XD_ARRAY_LEN(values); k++) {
            xd_err err;
            cr_assert_eq(
                open_damaged(&(damage){.golden = BLOCK, .at = of[i], .value = &values[k], .value_bytes = 4}, &err),
                XD_BAD_MODEL);
            cr_assert(strstr(err.msg, of[i]) && strstr(err.msg, "not a finite number"), "%s", err.msg);
        }
    const float sound = 0.25f;
    xd_err err;
    cr_assert_eq(open_damaged(&(damage){.golden = BLOCK, .at = of[0], .value = &sound, .value_bytes = 4}, &err), XD_OK,
                 "%s", err.msg);
}

/* Bytes without their scales' configuration are no matrix. */
Test(fp8, needs_the_configuration)
{
    size_t n, bytes;
    char *config = read_golden(BLOCK, "config.json", &n), *file = read_golden(BLOCK, "model.safetensors", &bytes);
    char *key = memmem(config, n, "quantization_config", 19);
    cr_assert(key);
    *key = 'Q';
    put("config.json", config, n);
    put("model.safetensors", file, bytes);
    free(config);
    free(file);
    model *m = NULL;
    xd_err err;
    cr_assert_eq(model_open(&(model_options){.path = dir}, &m, &err), XD_UNSUPPORTED);
    cr_assert(strstr(err.msg, "is F8_E4M3"), "%s", err.msg);
}

/* Rows of 300 columns in pieces of 5 rows by 128 columns, with one NaN. */
Test(fp8, puts_each_scale_beside_its_weights)
{
    enum { ROWS = 12, COLS = 300, BLOCKS = 3 };
    static uint8_t q[ROWS * COLS];
    static uint16_t bf16[9];
    static kern_fp8_block out[ROWS * BLOCKS];
    for (uint32_t i = 0; i < sizeof q; i++)
        q[i] = (uint8_t)(i * 7 % 127);
    q[7 * COLS + 130] = 0xff;
    for (uint32_t i = 0; i < 9; i++)
        bf16[i] = (uint16_t)(0x3f80 + i);
    const model_tensor t = {.data = q,
                            .scales = bf16,
                            .bytes = kern_row_bytes(FMT_FP8, COLS) * ROWS,
                            .rows = ROWS,
                            .cols = COLS,
                            .fmt = FMT_FP8,
                            .scale = {.rows = 5, .cols = 128, .fmt = FMT_BF16}};
    const model_layer y = {.layout = MODEL_APART, .n_experts = 1, .experts = &t};
    cr_assert_eq(t.bytes, sizeof out);
    cr_assert_eq(model_stored_bytes(&y, 0), sizeof q);
    for (uint32_t first = 0; first < ROWS; first += 4) {
        model_copy_rows(&y, 0, 0, first, 4, out);
        for (uint32_t r = 0; r < 4; r++)
            for (uint32_t b = 0; b < BLOCKS; b++) {
                const kern_fp8_block *block = &out[r * BLOCKS + b];
                const uint32_t row = first + r, bits = (uint32_t)bf16[row / 5 * BLOCKS + b] << 16;
                if (row == 7 && b == 1)
                    cr_assert(isnan(block->d));
                else
                    cr_assert(!memcmp(&block->d, &bits, 4), "row %u block %u", row, b);
                for (uint32_t i = 0; i < 128; i++) {
                    const uint32_t c = b * 128 + i;
                    cr_assert_eq(block->q[i], c < COLS ? q[row * COLS + c] : 0, "row %u column %u", row, c);
                }
            }
    }
    /* of a matrix that is one with others in the file */
    static kern_fp8_block part_out[sizeof out / sizeof *out];
    model_copy_matrix(&t, 0, ROWS, out);
    model_tensor part = t;
    part.first_row = 7;
    part.rows = ROWS - 7;
    part.stored_rows = ROWS;
    model_copy_matrix(&part, 0, ROWS - 7, part_out);
    cr_assert(!memcmp(part_out, &out[7 * BLOCKS], sizeof *out * (ROWS - 7) * BLOCKS));
}
