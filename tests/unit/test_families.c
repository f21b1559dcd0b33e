/* What a family of models takes from its configuration, and what it refuses rather than compute wrongly. The defaults are those of
 * transformers 5.24 (configuration_*.py). Configurations without weights are opened as synthetic models. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "config/config.h"
#include "engine/core.h"
#include "engine/model/model.h"
#include "tests/unit/family_config.h"

TestSuite(families, .init = make_dir, .fini = remove_dir);

#define SIZES \
    "\"hidden_size\":64,\"num_hidden_layers\":3,\"num_attention_heads\":32,\"vocab_size\":16,\"intermediate_size\":32"
#define WINDOW "\"use_sliding_window\":true,\"sliding_window\":12"

#define DEEPSEEK_V2 "\"model_type\":\"deepseek_v2\",\"num_experts_per_tok\":2"

Test(families, have_the_defaults_of_their_classes)
{
    static const struct {
        const char *config;
        uint32_t kv_heads, head_dim, max_positions, window[3], n_experts, top_k, d_ff;
        float eps;
        bool norm_topk;
    } cases[] = {
        {"{\"model_type\":\"llama\"," SIZES "}", 32, 2, 2048, {0}, 1, 1, 32, 1e-6f, false},
        {"{\"model_type\":\"llama\",\"head_dim\":null,\"num_key_value_heads\":null,\"hidden_act\":\"swish\"," SIZES "}",
         32,
         2,
         2048,
         {0},
         1,
         1,
         32,
         1e-6f,
         false},
        {"{\"model_type\":\"mistral\"," SIZES "}", 8, 2, 131072, {4096, 4096, 4096}, 1, 1, 32, 1e-6f, false},
        {"{\"model_type\":\"mistral\",\"sliding_window\":null," SIZES "}", 8, 2, 131072, {0}, 1, 1, 32, 1e-6f, false},
        {"{\"model_type\":\"mixtral\",\"moe_intermediate_size\":7," SIZES "}",
         8,
         2,
         131072,
         {0},
         8,
         2,
         32,
         1e-5f,
         true},
        {"{\"model_type\":\"qwen2\",\"sliding_window\":12,\"max_window_layers\":0," SIZES "}",
         32,
         2,
         32768,
         {0},
         1,
         1,
         32,
         1e-6f,
         false},
        {"{\"model_type\":\"qwen2\"," WINDOW "," SIZES "}", 32, 2, 32768, {0}, 1, 1, 32, 1e-6f, false},
        {"{\"model_type\":\"qwen2\",\"use_sliding_window\":true,\"max_window_layers\":2," SIZES "}",
         32,
         2,
         32768,
         {0, 0, 4096},
         1,
         1,
         32,
         1e-6f,
         false},
        {"{\"model_type\":\"qwen3\"," WINDOW ",\"max_window_layers\":3,\"layer_types\":"
         "[\"sliding_attention\",\"full_attention\",\"sliding_attention\"]," SIZES "}",
         32,
         128,
         32768,
         {12, 0, 12},
         1,
         1,
         32,
         1e-6f,
         false},
        {"{\"model_type\":\"qwen3_moe\"," WINDOW "," SIZES "}", 4, 2, 32768, {12, 12, 12}, 128, 8, 768, 1e-6f, false},
        {"{\"model_type\":\"qwen3_moe\",\"num_experts\":5,\"num_experts_per_tok\":5," SIZES "}",
         4,
         2,
         32768,
         {0},
         5,
         5,
         768,
         1e-6f,
         false},
        {"{\"model_type\":\"gpt_oss\"," SIZES "}", 8, 64, 131072, {128, 0, 128}, 128, 4, 32, 1e-5f, true},
        {"{\"model_type\":\"gpt_oss\",\"sliding_window\":9,\"num_local_experts\":6,\"layer_types\":"
         "[\"full_attention\",\"full_attention\",\"sliding_attention\"]," SIZES "}",
         8,
         64,
         131072,
         {0, 0, 9},
         6,
         4,
         32,
         1e-5f,
         true},
        {"{\"model_type\":\"dots1\",\"n_routed_experts\":8,\"num_experts_per_tok\":2,\"max_window_layers\":2," SIZES
         "}",
         32,
         2,
         2048,
         {0, 0, 4096},
         8,
         2,
         1408,
         1e-6f,
         false},
        {"{\"model_type\":\"exaone_moe\",\"first_k_dense_replace\":0,\"sliding_window_pattern\":2," SIZES "}",
         32,
         2,
         2048,
         {4096, 0, 4096},
         64,
         8,
         1024,
         1e-5f,
         true},
        {"{\"model_type\":\"mellum\"," SIZES "}", 4, 128, 131072, {0}, 64, 8, 896, 1e-6f, true},
        {"{\"model_type\":\"mellum\",\"layer_types\":[\"full_attention\",\"sliding_attention\",\"full_attention\"]," SIZES
         "}",
         4,
         128,
         131072,
         {0, 1024, 0},
         64,
         8,
         896,
         1e-6f,
         true},
        {"{\"model_type\":\"qwen3_vl_moe\",\"text_config\":{\"model_type\":\"qwen3_vl_moe_text\"," SIZES "}}",
         16,
         2,
         128000,
         {0},
         60,
         4,
         1408,
         1e-6f,
         true},
        {"{\"model_type\":\"qwen3_omni_moe\",\"thinker_config\":{\"text_config\":{" SIZES "}}}",
         4,
         2,
         32768,
         {0},
         128,
         8,
         768,
         1e-6f,
         true},
        {"{\"model_type\":\"glm4v_moe\",\"text_config\":{\"head_dim\":8,\"first_k_dense_replace\":0," SIZES "}}",
         8,
         8,
         65536,
         {0},
         128,
         8,
         1408,
         1e-5f,
         true},
        {"{\"model_type\":\"internvl_chat\",\"llm_config\":{\"model_type\":\"qwen3_moe\"," SIZES "}}",
         4,
         2,
         32768,
         {0},
         128,
         8,
         768,
         1e-6f,
         false},
        {"{\"model_type\":\"mistral3\",\"text_config\":{" SIZES "}}",
         8,
         2,
         131072,
         {4096, 4096, 4096},
         1,
         1,
         32,
         1e-6f,
         false},
        {"{\"model_type\":\"granitemoe_swa\"," SIZES "}", 32, 2, 2048, {0, 128, 128}, 8, 2, 32, 1e-6f, false},
        {"{\"model_type\":\"solar_open\"," SIZES "}", 8, 128, 131072, {0}, 128, 8, 1280, 1e-5f, true},
        {"{\"model_type\":\"granitemoeshared\"," SIZES "}", 32, 2, 2048, {0}, 8, 2, 32, 1e-6f, false},
        {"{\"model_type\":\"hy_v3\",\"mlp_layer_types\":[\"sparse\",\"sparse\",\"sparse\"]," SIZES "}",
         8,
         128,
         131072,
         {0},
         192,
         8,
         1536,
         1e-5f,
         true},
    };
    for (size_t i = 0; i < XD_ARRAY_LEN(cases); i++) {
        XD_CLEANUP(model_freep) model *m = NULL;
        xd_err err;
        cr_assert_eq(open_config(cases[i].config, &m, &err), XD_OK, "%s -> %s", cases[i].config, err.msg);
        const model_params *p = model_get_params(m);
        cr_assert_eq(p->n_kv_heads, cases[i].kv_heads, "%s: %u", cases[i].config, p->n_kv_heads);
        cr_assert_eq(p->head_dim, cases[i].head_dim, "%s: %u", cases[i].config, p->head_dim);
        cr_assert_eq(p->max_positions, cases[i].max_positions, "%s: %u", cases[i].config, p->max_positions);
        cr_assert(p->rms_eps == cases[i].eps && p->router.norm_topk == cases[i].norm_topk, "%s", cases[i].config);
        for (uint32_t l = 0; l < 3; l++) {
            const model_layer *y = model_get_layer(m, l);
            cr_assert_eq(y->window, cases[i].window[l], "%s: %u", cases[i].config, y->window);
            cr_assert(y->n_experts == cases[i].n_experts && y->top_k == cases[i].top_k && y->d_ff == cases[i].d_ff,
                      "%s", cases[i].config);
        }
    }
}

/* Which layers are dense, what picks are scaled by, and how large the shared expert is. */
Test(families, have_dense_layers_and_shared_experts_as_their_classes)
{
    static const struct {
        const char *config;
        bool moe[3];
        float scale;
        uint32_t shared;
    } cases[] = {
        {"{\"model_type\":\"hy_v3\"," SIZES "}", {false, true, true}, 2.826f, 1536},
        {"{\"model_type\":\"hy_v3\",\"router_scaling_factor\":1.5,\"num_shared_experts\":2,\"mlp_layer_types\":"
         "[\"sparse\",\"dense\",\"sparse\"]," SIZES "}",
         {true, false, true},
         1.5f,
         3072},
        {"{\"model_type\":\"dots1\",\"n_routed_experts\":8,\"num_experts_per_tok\":2," SIZES "}",
         {true, true, true},
         1,
         0},
        {"{\"model_type\":\"dots1\",\"n_routed_experts\":8,\"num_experts_per_tok\":2,\"n_shared_experts\":2,"
         "\"first_k_dense_replace\":1," SIZES "}",
         {false, true, true},
         1,
         2816},
        {"{\"model_type\":\"solar_open\"," SIZES "}", {true, true, true}, 1, 1280},
        {"{\"model_type\":\"exaone_moe\",\"sliding_window_pattern\":2," SIZES "}", {0, 1, 1}, 2.5f, 1024},
        {"{\"model_type\":\"granitemoeshared\",\"shared_intermediate_size\":24," SIZES "}", {true, true, true}, 0, 24},
    };
    for (size_t i = 0; i < XD_ARRAY_LEN(cases); i++) {
        XD_CLEANUP(model_freep) model *m = NULL;
        xd_err err;
        cr_assert_eq(open_config(cases[i].config, &m, &err), XD_OK, "%s -> %s", cases[i].config, err.msg);
        cr_assert(model_get_params(m)->router.scale == cases[i].scale, "%s", cases[i].config);
        for (uint32_t l = 0; l < 3; l++) {
            const model_layer *y = model_get_layer(m, l);
            cr_assert(y->moe == cases[i].moe[l] && y->d_ff_shared == (y->moe ? cases[i].shared : 0), "%s: %u",
                      cases[i].config, l);
        }
    }
}

Test(families, rotate_the_part_of_a_head_that_the_file_says)
{
    static const struct {
        const char *config;
        uint32_t rotated;
    } cases[] = {
        {"{\"model_type\":\"minimax_m2\",\"head_dim\":32,\"rotary_dim\":16," SIZES "}", 16},
        /* as transformers 5.17 wrote and read it */
        {"{\"model_type\":\"minimax_m2\",\"head_dim\":32,\"rotary_dim\":16,\"rope_parameters\":{\"rope_theta\":1e4}," SIZES
         "}",
         32},
        {"{\"model_type\":\"minimax_m2\",\"head_dim\":32,\"rotary_dim\":16,\"rope_parameters\":"
         "{\"rope_theta\":1e4,\"partial_rotary_factor\":0.25}," SIZES "}",
         8},
        {"{\"model_type\":\"minimax_m2\"," SIZES "}", 128},
        {"{\"model_type\":\"glm4_moe\",\"head_dim\":32," SIZES "}", 16},
        {"{\"model_type\":\"glm4v_moe\",\"text_config\":{\"head_dim\":32," SIZES "}}", 16},
        {"{\"model_type\":\"glm4_moe\",\"head_dim\":32,\"partial_rotary_factor\":1.0," SIZES "}", 32},
    };
    for (size_t i = 0; i < XD_ARRAY_LEN(cases); i++) {
        XD_CLEANUP(model_freep) model *m = NULL;
        xd_err err;
        cr_assert_eq(open_config(cases[i].config, &m, &err), XD_OK, "%s -> %s", cases[i].config, err.msg);
        cr_assert_eq(model_get_params(m)->ropes[0].rot_dim, cases[i].rotated, "%s: %u", cases[i].config,
                     model_get_params(m)->ropes[0].rot_dim);
    }
}

/* Mellum has two bases, EXAONE none in layers without a window. Others have one rope in all layers. */
Test(families, rotate_layers_with_a_window_otherwise)
{
    static const struct {
        const char *config;
        double theta[3]; /* of each layer; 0: it is not rotated */
    } cases[] = {
        {"{\"model_type\":\"mellum\",\"layer_types\":[\"full_attention\",\"sliding_attention\",\"full_attention\"]," SIZES
         "}",
         {500000, 10000, 500000}},
        {"{\"model_type\":\"mellum\",\"rope_parameters\":{\"full_attention\":{\"rope_theta\":777}}," SIZES "}",
         {777, 777, 777}},
        {"{\"model_type\":\"exaone_moe\",\"sliding_window_pattern\":2,\"head_dim\":128," SIZES "}", {10000, 0, 10000}},
        {"{\"model_type\":\"exaone_moe\",\"head_dim\":128,\"layer_types\":[\"full_attention\",\"full_attention\","
         "\"full_attention\"]," SIZES "}",
         {0, 0, 0}},
        {"{\"model_type\":\"granitemoe_swa\",\"head_dim\":128,\"rope_theta\":500," SIZES "}", {500, 500, 500}},
        {"{\"model_type\":\"granitemoe_swa\",\"head_dim\":128,\"layer_rope_theta\":[0,1e4,700]," SIZES "}",
         {0, 10000, 700}},
        {"{\"model_type\":\"gpt_oss\",\"head_dim\":128,\"rope_parameters\":{\"rope_theta\":500}," SIZES "}",
         {500, 500, 500}},
    };
    for (size_t i = 0; i < XD_ARRAY_LEN(cases); i++) {
        XD_CLEANUP(model_freep) model *m = NULL;
        xd_err err;
        cr_assert_eq(open_config(cases[i].config, &m, &err), XD_OK, "%s -> %s", cases[i].config, err.msg);
        for (uint32_t l = 0; l < 3; l++) {
            const model_rope *r = &model_get_params(m)->ropes[model_get_layer(m, l)->rope];
            const double theta = cases[i].theta[l], f = theta > 0 ? pow(theta, -2.0 / 128) : 0;
            cr_assert(r->rot_dim == 128 && r->scale == 1, "%s: %u", cases[i].config, r->rot_dim);
            cr_assert_float_eq(r->inv_freq[0], theta > 0, 1e-6);
            cr_assert_float_eq(r->inv_freq[1], f, 1e-6, "%s, layer %u: %g", cases[i].config, l, (double)r->inv_freq[1]);
        }
    }
}

Test(families, keep_granites_stream_divided_by_its_multiplier)
{
    XD_CLEANUP(model_freep) model *m = NULL;
    xd_err err;
    cr_assert_eq(open_config("{\"model_type\":\"granitemoe\",\"embedding_multiplier\":12,\"residual_multiplier\":0.5,"
                             "\"attention_multiplier\":0.25,\"logits_scaling\":8,\"rms_norm_eps\":1e-5," SIZES "}",
                             &m, &err),
                 XD_OK, "%s", err.msg);
    const model_params *p = model_get_params(m);
    cr_assert(p->embed_scale == 24 && p->rms_eps == 4e-5f && p->attn_scale == 0.25f && p->logit_scale == 0.125f);
}

/* Nine: of the embedding, of Q's and KV's low ranks and what goes into and comes out of them, of O, the bias on the choice, and FFNs of
 * three sizes. */
Test(families, may_have_weights_of_many_deviations_when_they_are_synthetic)
{
    XD_CLEANUP(model_freep) model *m = NULL;
    xd_err err;
    cr_assert_eq(
        open_synthetic("{\"model_type\":\"deepseek_v3\",\"q_lora_rank\":24,\"kv_lora_rank\":16,\"v_head_dim\":8,"
                       "\"n_shared_experts\":2,\"moe_intermediate_size\":48,\"n_routed_experts\":16,"
                       "\"first_k_dense_replace\":1," SIZES "}",
                       false, &m, &err),
        XD_OK, "%s", err.msg);
    cr_assert_eq(model_get_layer(m, 1)->d_ff_shared, 96);
}

Test(families, refuse_by_name_what_they_do_not_compute)
{
    static const refused cases[] = {
        {"{\"model_type\":\"llama\",\"architectures\":[\"LlamaForSequenceClassification\"]," SIZES "}",
         "'LlamaForSequenceClassification'"},
        {"{\"model_type\":\"llama\",\"partial_rotary_factor\":0.5," SIZES "}", "partial_rotary_factor 0.5"},
        {"{\"model_type\":\"llama\",\"rope_parameters\":{\"rope_type\":\"default\",\"partial_rotary_factor\":0.25}," SIZES
         "}",
         "partial_rotary_factor 0.25"},
        {"{\"model_type\":\"qwen3\",\"rope_parameters\":{\"full_attention\":{\"rope_theta\":5e5}}," SIZES "}",
         "by layer types ('full_attention')"},
        {"{\"model_type\":\"llama\",\"rope_scaling\":{\"type\":\"linear\"}," SIZES "}", "'linear' needs a factor"},
        {"{\"model_type\":\"llama\",\"rope_scaling\":{\"rope_type\":\"longrope\",\"factor\":2}," SIZES "}",
         "'longrope'"},
        {"{\"model_type\":\"llama\",\"rope_scaling\":\"yarn\"," SIZES "}", "'rope_scaling' must be an object"},
        {"{\"model_type\":\"llama\",\"rope_parameters\":{\"rope_type\":[\"yarn\"],\"factor\":2}," SIZES "}",
         "'rope_type' of the rotary embedding must be a text"},
        {"{\"model_type\":\"llama\",\"hidden_act\":[\"gelu\"]," SIZES "}", "hidden_act '(no text)'"},
        {"{\"model_type\":\"llama\",\"mlp_bias\":\"true\"," SIZES "}", "'mlp_bias' must be true or false"},
        {"{\"model_type\":\"qwen3_moe\",\"mlp_only_layers\":2," SIZES "}", "'mlp_only_layers' must be a list"},
        {"{\"model_type\":\"mistral\",\"sliding_window\":\"16\"," SIZES "}", "'sliding_window' must be a number"},
        {"{\"model_type\":\"mistral\",\"layer_types\":[\"full_attention\",\"sliding_attention\",\"sliding_attention\"]," SIZES
         "}",
         "layer_types has 'full_attention' for layer 0"},
        {"{\"model_type\":\"qwen2\",\"layer_types\":[\"full_attention\",\"sliding_attention\",\"full_attention\"]," SIZES
         "}",
         "layer_types has 'sliding_attention' for layer 1"},
        {"{\"model_type\":\"qwen3\",\"layer_types\":[\"chunked_attention\",\"full_attention\",\"full_attention\"]," SIZES
         "}",
         "layer_types has 'chunked_attention' for layer 0"},
        {"{\"model_type\":\"qwen3\",\"layer_types\":[\"full_attention\"]," SIZES "}", "layer_types must list"},
        {"{\"model_type\":\"gpt_oss\",\"sliding_window\":null," SIZES "}", "sliding_window is needed"},
        {"{\"model_type\":\"qwen2_moe\",\"use_sliding_window\":true,\"layer_types\":[\"full_attention\"]," SIZES "}",
         "layer_types must list"},
        {"{\"model_type\":\"olmoe\",\"clip_qkv\":\"8\"," SIZES "}", "'clip_qkv'"},
        {"{\"model_type\":\"granitemoe\",\"residual_multiplier\":0," SIZES "}", "'residual_multiplier'"},
        {"{\"model_type\":\"glm4_moe\",\"head_dim\":8,\"n_group\":3," SIZES "}", "128 experts in n_group = 3 groups"},
        {"{\"model_type\":\"glm4_moe\",\"head_dim\":8,\"n_group\":64," SIZES "}", "'n_group'"},
        {"{\"model_type\":\"glm4_moe\",\"head_dim\":8,\"n_group\":32,\"topk_group\":1,\"num_experts_per_tok\":5," SIZES
         "}",
         "do not give the 5"},
        {"{\"model_type\":\"glm4_moe\",\"head_dim\":8,\"scoring_func\":\"softmax\"," SIZES "}",
         "'scoring_func' is 'softmax'"},
        {"{\"model_type\":\"glm4_moe\",\"head_dim\":8,\"partial_rotary_factor\":2," SIZES "}",
         "'partial_rotary_factor'"},
        {"{\"model_type\":\"ernie4_5_moe\",\"use_bias\":true," SIZES "}", "use_bias"},
        {"{\"model_type\":\"ernie4_5_moe\",\"moe_num_experts\":[64,64]," SIZES "}",
         "'moe_num_experts' must be a number"},
        {"{\"model_type\":\"minimax_m2\",\"attn_type_list\":[1,0,1]," SIZES "}", "attn_type_list"},
        {"{\"model_type\":\"minimax_m2\",\"shared_intermediate_size\":8," SIZES "}", "shared_intermediate_size"},
        {"{\"model_type\":\"minimax_m2\",\"qk_norm_type\":\"per_head\"," SIZES "}", "'qk_norm_type' is 'per_head'"},
        {"{\"model_type\":\"gpt_oss\",\"hidden_act\":\"gelu\"," SIZES "}", "hidden_act 'gelu'"},
        {"{\"model_type\":\"gpt_oss\",\"swiglu_limit\":0," SIZES "}", "'swiglu_limit'"},
        {"{\"model_type\":\"gpt_oss\",\"swiglu_alpha\":\"1.7\"," SIZES "}", "'swiglu_alpha'"},
        {"{\"model_type\":\"gpt_oss\",\"layer_types\":[\"linear_attention\",\"full_attention\",\"full_attention\"]," SIZES
         "}",
         "layer_types has 'linear_attention' for layer 0"},
        {"{\"model_type\":\"dots1\",\"n_routed_experts\":8," SIZES "}", "num_experts_per_tok"},
        {"{\"model_type\":\"dots1\",\"n_routed_experts\":8,\"num_experts_per_tok\":2,\"scoring_func\":\"softmax\"," SIZES
         "}",
         "'scoring_func' is 'softmax'"},
        {"{\"model_type\":\"qwen3_vl_moe\"," SIZES "}", "'text_config' must be an object"},
        {"{\"model_type\":\"qwen3_vl_moe\",\"text_config\":{\"num_experts\":\"8\"," SIZES "}}",
         "'num_experts' must be a number"},
        {"{\"model_type\":\"qwen3_vl_moe\",\"architectures\":[\"Qwen3VLMoeModel\"],\"text_config\":{" SIZES "}}",
         "'Qwen3VLMoeModel'"},
        {"{\"model_type\":\"qwen3_omni_moe\"," SIZES "}", "'thinker_config' must be an object"},
        {"{\"model_type\":\"qwen3_omni_moe\",\"thinker_config\":{\"text_config\":7}}",
         "'text_config' must be an object"},
        {"{\"model_type\":\"qwen3_omni_moe\",\"thinker_config\":{\"text_config\":{\"rope_scaling\":{\"type\":\"longrope\"}," SIZES
         "}}}",
         "'longrope'"},
        {"{\"model_type\":\"glm4v_moe\",\"text_config\":{\"head_dim\":8,\"scoring_func\":\"softmax\"," SIZES "}}",
         "'scoring_func' is 'softmax'"},
        {"{\"model_type\":\"kimi_k25\"," SIZES "}", "'text_config' must be an object"},
        {"{\"model_type\":\"kimi_k25\",\"text_config\":{\"model_type\":\"kimi_k3\"," SIZES "}}",
         "text_config: model_type 'kimi_k3' is not known"},
        {"{\"model_type\":\"kimi_k25\",\"text_config\":{\"model_type\":\"kimi_k25\"," SIZES "}}",
         "text_config: model_type 'kimi_k25' is not known"},
        {"{\"model_type\":\"kimi_k25\",\"text_config\":{\"model_type\":\"glm4v_moe\"," SIZES "}}",
         "text_config: model_type 'glm4v_moe' is not known"},
        {"{\"model_type\":\"kimi_k25\",\"architectures\":[\"KimiK3ForConditionalGeneration\"],\"text_config\":{" SIZES
         "}}",
         "'KimiK3ForConditionalGeneration'; of model_type 'kimi_k25' KimiK25ForConditionalGeneration is known"},
        {"{\"model_type\":\"internvl_chat\",\"llm_config\":{" SIZES "}}",
         "llm_config: model_type '(none)' is not known"},
        {"{\"model_type\":\"exaone_moe\",\"sliding_window_pattern\":\"LLLG\"," SIZES "}",
         "'sliding_window_pattern' must be"},
        {"{\"model_type\":\"exaone_moe\",\"sliding_window_pattern\":0," SIZES "}", "'sliding_window_pattern' must be"},
        {"{\"model_type\":\"exaone_moe\",\"layer_types\":[\"full_attention\",\"linear_attention\",\"full_attention\"]," SIZES
         "}",
         "layer_types has 'linear_attention' for layer 1"},
        {"{\"model_type\":\"mellum\",\"sliding_window\":null,\"layer_types\":[\"full_attention\",\"sliding_attention\","
         "\"full_attention\"]," SIZES "}",
         "layer_types has 'sliding_attention' for layer 1"},
        {"{\"model_type\":\"mellum\",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":2}," SIZES "}",
         "rope_parameters need 'full_attention'"},
        {"{\"model_type\":\"mellum\",\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"default\"}}," SIZES "}",
         "'full_attention' of the rotary embedding needs a rope_theta"},
        {"{\"model_type\":\"mellum\",\"rope_parameters\":{\"full_attention\":7}," SIZES "}",
         "'full_attention' of the rotary embedding must be an object"},
        {"{\"model_type\":\"mellum\",\"rope_parameters\":{\"full_attention\":{\"rope_theta\":1e4,"
         "\"partial_rotary_factor\":0.5}}," SIZES "}",
         "partial_rotary_factor 0.5"},
        {"{\"model_type\":\"granitemoe_swa\",\"layer_rope_theta\":[1e4,1e4]," SIZES "}", "layer_rope_theta must list"},
        {"{\"model_type\":\"granitemoe_swa\",\"layer_rope_theta\":[1e4,-1,0]," SIZES "}", "not so for layer 1"},
        {"{\"model_type\":\"granitemoe_swa\",\"layer_rope_theta\":[1e4,0,\"0\"]," SIZES "}", "not so for layer 2"},
        {"{\"model_type\":\"solar_open\",\"partial_rotary_factor\":0.5," SIZES "}", "partial_rotary_factor 0.5"},
        {"{\"model_type\":\"solar_open\",\"first_k_dense_replace\":1," SIZES "}", "first_k_dense_replace above 0"},
        {"{\"model_type\":\"solar_open\",\"use_qk_norm\":true," SIZES "}", "use_qk_norm true"},
        {"{\"model_type\":\"hy_v3\",\"mlp_layer_types\":[\"dense\"]," SIZES "}", "mlp_layer_types must list"},
        {"{\"model_type\":\"hy_v3\",\"mlp_layer_types\":[\"dense\",\"sparse\",\"conv\"]," SIZES "}",
         "mlp_layer_types has 'conv' for layer 2"},
        {"{\"model_type\":\"hy_v3\",\"router_scaling_factor\":0," SIZES "}", "'router_scaling_factor'"},
        {"{" DEEPSEEK_V2 ",\"norm_topk_prob\":true," SIZES "}", "norm_topk_prob true"},
        {"{" DEEPSEEK_V2 ",\"topk_method\":\"noaux_tc\"," SIZES "}", "topk_method is 'noaux_tc'"},
        {"{" DEEPSEEK_V2 ",\"num_key_value_heads\":8," SIZES "}", "num_key_value_heads = 8"},
        {"{" DEEPSEEK_V2 ",\"qk_rope_head_dim\":7," SIZES "}", "qk_rope_head_dim must be even"},
        {"{" DEEPSEEK_V2 ",\"kv_lora_rank\":4096," SIZES "}", "'kv_lora_rank' must be a number"},
        {"{" DEEPSEEK_V2 ",\"v_head_dim\":null," SIZES "}", "v_head_dim are needed"},
        {"{" DEEPSEEK_V2 ",\"rope_scaling\":{\"type\":\"yarn\",\"mscale_all_dim\":1}," SIZES "}",
         "mscale_all_dim needs a factor"},
        {"{\"model_type\":\"deepseek_v3\",\"scoring_func\":\"softmax\"," SIZES "}", "'scoring_func' is 'softmax'"},
        {"{\"model_type\":\"deepseek_v3\",\"moe_layer_freq\":2," SIZES "}", "moe_layer_freq = 2"},
        {"{\"model_type\":\"deepseek_v3\",\"first_k_dense_replace\":0,\"n_group\":3,\"topk_group\":1," SIZES "}",
         "n_group = 3"},
    };
    refuse(cases, XD_ARRAY_LEN(cases));
}

/* The folder of tests/data/golden with another file beside its weights, both named by an index. */
static xd_status open_with(const char *golden, const char *header, size_t bytes, model **ret, xd_err *err)
{
    static const char *const links[] = {"config.json", "first.safetensors"};
    const char *root = getenv("EXPERTD_SOURCE_ROOT");
    char from[4096], to[128];
    for (size_t i = 0; i < 2; i++) {
        snprintf(from, sizeof from, "%s/tests/data/golden/%s/%s", root ? root : ".", golden,
                 i ? "model.safetensors" : links[i]);
        snprintf(to, sizeof to, "%s/%s", dir, links[i]);
        unlink(to);
        cr_assert_eq(symlink(from, to), 0);
    }
    static const char index[] = "{\"weight_map\":{\"a\":\"first.safetensors\",\"b\":\"second.safetensors\"}}";
    put("model.safetensors.index.json", index, sizeof index - 1);
    xd_buf b = {0};
    uint64_t n = strlen(header);
    xd_buf_append(&b, &n, 8);
    xd_buf_puts(&b, header);
    for (size_t i = 0; i < bytes; i++)
        xd_buf_putc(&b, 0);
    put("second.safetensors", b.data, b.len);
    xd_buf_free(&b);
    return model_open(&(model_options){.path = dir}, ret, err);
}

/* The numbers of DeepSeek-V3's own inference code: softmax_scale = 192 ** -0.5 * (0.1 * ln 40 + 1) ** 2. */
Test(families, keep_the_latent_vector_of_deepseek)
{
    model *m = NULL;
    xd_err err = {0};
    cr_assert_eq(open_config("{\"model_type\":\"deepseek_v3\",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":40,"
                             "\"original_max_position_embeddings\":4096,\"mscale\":1.0,\"mscale_all_dim\":1.0}," SIZES
                             "}",
                             &m, &err),
                 XD_OK, "%s", err.msg);
    const model_params *p = model_get_params(m);
    cr_assert_eq(p->n_kv_heads, 1);
    cr_assert_eq(p->head_dim, 576);
    cr_assert_eq(p->latent.kv_rank, 512);
    cr_assert_eq(p->latent.q_rank, 1536);
    cr_assert_eq(p->ropes[0].rot_dim, 64);
    cr_assert_eq(p->n_nextn, 1);
    cr_assert(p->rope_interleaved);
    cr_assert_float_eq(p->attn_scale, 0.135234f, 1e-5);
    cr_assert_float_eq(p->ropes[0].scale, 1, 1e-6);
    model_free(m);
}

Test(families, refuse_a_layers_tensor_that_nobody_asked_for)
{
    static const char *const strange[] = {
        "model.layers.1.self_attn.o_proj.bias",            /* attention_bias is false */
        "model.layers.0.self_attn.q_norm.weight",          /* of qwen3 */
        "model.layers.0.mlp.shared_expert.up_proj.weight", /* of qwen2_moe */
    };
    static const char *const harmless[] = {"model.layers.0.self_attn.rotary_emb.inv_freq", "visual.patch.weight"};
    char header[256];
    xd_err err;
    for (size_t i = 0; i < XD_ARRAY_LEN(strange); i++) {
        model *m = NULL;
        snprintf(header, sizeof header, "{\"%s\":{\"dtype\":\"F32\",\"shape\":[64],\"data_offsets\":[0,256]}}",
                 strange[i]);
        cr_assert_eq(open_with("llama", header, 256, &m, &err), XD_UNSUPPORTED, "%s", strange[i]);
        cr_assert(strstr(err.msg, strange[i]), "%s -> %s", strange[i], err.msg);
        model_free(m);
    }
    for (size_t i = 0; i < XD_ARRAY_LEN(harmless); i++) {
        XD_CLEANUP(model_freep) model *m = NULL;
        snprintf(header, sizeof header, "{\"%s\":{\"dtype\":\"F32\",\"shape\":[64],\"data_offsets\":[0,256]}}",
                 harmless[i]);
        cr_assert_eq(open_with("llama", header, 256, &m, &err), XD_OK, "%s -> %s", harmless[i], err.msg);
    }
}

/* The tensors of a model that sees have other names; those that make it see have no role. */
Test(families, refuse_tensors_of_a_model_that_sees_by_their_own_names)
{
    static const char *const harmless =
                                 "{\"model.visual.x\":{\"dtype\":\"F32\",\"shape\":[64],\"data_offsets\":[0,256]}}",
                             *const strange =
                                 "{\"model.language_model.layers.1.self_attn.o_proj.bias\":{\"dtype\":\"F32\","
                                 "\"shape\":[64],\"data_offsets\":[0,256]}}",
                             *const beyond =
                                 "{\"model.language_model.layers.3.input_layernorm.weight\":{\"dtype\":\"F32\","
                                 "\"shape\":[64],\"data_offsets\":[0,256]}}";
    model *m = NULL;
    xd_err err;
    cr_assert_eq(open_with("qwen3_vl_moe", harmless, 256, &m, &err), XD_OK, "%s", err.msg);
    model_free(m);
    cr_assert_eq(open_with("qwen3_vl_moe", strange, 256, &m, &err), XD_UNSUPPORTED);
    cr_assert(strstr(err.msg, "model.language_model.layers.1.self_attn.o_proj.bias"), "%s", err.msg);
    cr_assert_eq(open_with("qwen3_vl_moe", beyond, 256, &m, &err), XD_BAD_MODEL);
    cr_assert(strstr(err.msg, "has layer 3"), "%s", err.msg);
}

/* qwen3's fixture is tied and has no head. One that differs is used (transformers 5: config.json is wrong then). */
Test(families, use_a_head_of_its_own_where_the_file_has_one)
{
    XD_CLEANUP(model_freep) model *m = NULL;
    xd_err err;
    cr_assert_eq(open_with("qwen3",
                           "{\"lm_head.weight\":{\"dtype\":\"BF16\",\"shape\":[384,64],\"data_offsets\":[0,49152]}}",
                           49152, &m, &err),
                 XD_OK, "%s", err.msg);
    cr_assert_neq(model_lm_head(m)->data, model_embed(m)->data);
    XD_CLEANUP(model_freep) model *plain = NULL;
    cr_assert_eq(open_with("qwen3", "{}", 0, &plain, &err), XD_OK, "%s", err.msg);
    cr_assert_eq(model_lm_head(plain)->data, model_embed(plain)->data);
}

/* As transformers: the index beside it may be of another age. */
Test(families, read_a_single_file_before_an_index)
{
    model *m = NULL;
    xd_err err;
    cr_assert_eq(open_with("llama", "{}", 0, &m, &err), XD_OK, "%s", err.msg);
    model_free(m);
    put("model.safetensors", "broken", 6);
    cr_assert_eq(model_open(&(model_options){.path = dir}, &m, &err), XD_BAD_MODEL);
    cr_assert(strstr(err.msg, "model.safetensors: too short"), "%s", err.msg);
}

Test(families, never_stop_at_ids_outside_the_vocabulary)
{
    XD_CLEANUP(model_freep) model *m = NULL;
    xd_err err;
    cr_assert_eq(
        open_config("{\"model_type\":\"llama\",\"eos_token_id\":[3,-1,16,5],\"bos_token_id\":16," SIZES "}", &m, &err),
        XD_OK, "%s", err.msg);
    const model_params *p = model_get_params(m);
    cr_assert(p->n_eos == 2 && p->eos_ids[0] == 3 && p->eos_ids[1] == 5 && p->bos_id == -1);
}

/* At load, not at the first request. */
Test(families, are_shown_to_the_device_before_anything_is_loaded)
{
    kern_dev *dev = NULL;
    cr_assert_eq(kern_cpu_open(&(kern_options){.n_threads = 1, .numa_node = -1}, &dev), KERN_OK);
    const kern_mat whole = {.row_bytes = 68, .rows = 3, .cols = 64, .fmt = FMT_Q8_0},
                   part = {.row_bytes = 68, .rows = 3, .cols = 80, .fmt = FMT_Q8_0};
    kern_shape s = {.n_heads = 256, .n_kv_heads = 1, .head_dim = 64, .n_experts = 8, .mats = &whole, .n_mats = 1};
    cr_assert_eq(dev->ops->takes(dev, &s), KERN_OK);
    s.n_heads = 512;
    cr_assert_eq(dev->ops->takes(dev, &s), KERN_UNSUPPORTED);
    cr_assert(strstr(dev->ops->error(dev), "512 heads over 1"), "%s", dev->ops->error(dev));
    s.n_heads = 8;
    s.mats = &part;
    cr_assert_eq(dev->ops->takes(dev, &s), KERN_UNSUPPORTED);
    cr_assert(strstr(dev->ops->error(dev), "80 columns"), "%s", dev->ops->error(dev));
    dev->ops->close(dev);
}

/* Gives a tensor of a GGUF file another type and place. */
static void patch(xd_buf *file, const char *name, uint32_t type, uint64_t offset)
{
    char *at = memmem(file->data, file->len, name, strlen(name));
    uint32_t dims;
    cr_assert(at, "%s", name);
    at += strlen(name);
    memcpy(&dims, at, sizeof dims);
    at += sizeof dims + 8ul * dims;
    memcpy(at, &type, sizeof type);
    memcpy(at + sizeof type, &offset, sizeof offset);
}

/* Biases in blocks, which nobody writes, where Q, K and V lie apart and where they are one matrix. */
Test(families, have_no_biases_in_blocks)
{
    enum { BF16 = 30, Q8_0 = 8 };
    const char *root = getenv("EXPERTD_SOURCE_ROOT");
    char path[4096];
    snprintf(path, sizeof path, "%s/tests/data/golden/qwen2_moe-gguf/model.gguf", root ? root : ".");
    FILE *f = fopen(path, "rb");
    cr_assert(f, "%s", path);
    xd_buf file = {0};
    char some[4096];
    for (size_t n; (n = fread(some, 1, sizeof some, f));)
        xd_buf_append(&file, some, n);
    fclose(f);
    config *cfg = NULL;
    xd_err err;
    core c;
    cr_assert(!conf_defaults(&cfg, &err) && !conf_set(cfg, "engine.backend", "cpu", &err) &&
              !conf_set(cfg, "pager.warm_start", "no", &err));
    for (int joined = 0; joined < 2; joined++) {
        if (joined) { /* [64][64], [32][64] and [32][64] */
            patch(&file, "blk.0.attn_q.weight", BF16, 0);
            patch(&file, "blk.0.attn_k.weight", BF16, 8192);
            patch(&file, "blk.0.attn_v.weight", BF16, 8192 + 4096);
        }
        patch(&file, "blk.0.attn_q.bias", Q8_0, 0);
        cr_assert_eq(core_open(&c, cfg, put("m.gguf", file.data, file.len), NULL, NULL, &err), XD_UNSUPPORTED);
        cr_assert(strstr(err.msg, "bias is stored as q8_0"), "%s", err.msg);
    }
    xd_buf_free(&file);
    conf_free(cfg);
}

/* Rope type dynamic: the plain frequencies, in contexts as long as the model's own. */
Test(families, have_no_dynamic_frequencies_beyond_their_context)
{
    static const char text[] = "{\"model_type\":\"llama\",\"max_position_embeddings\":32,"
                               "\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":2}," SIZES "}";
    char path[160];
    snprintf(path, sizeof path, "synthetic:%s", put("config.json", text, sizeof text - 1));
    config *cfg = NULL;
    xd_err err;
    core c;
    cr_assert(!conf_defaults(&cfg, &err) && !conf_set(cfg, "engine.backend", "cpu", &err) &&
              !conf_set(cfg, "pager.warm_start", "no", &err));
    cr_assert_eq(core_open(&c, cfg, path, NULL, NULL, &err), XD_OK, "%s", err.msg);
    core_close(&c);
    cr_assert_eq(conf_set(cfg, "model.max_model_len", "33", &err), XD_OK);
    cr_assert_eq(core_open(&c, cfg, path, NULL, NULL, &err), XD_UNSUPPORTED);
    cr_assert(strstr(err.msg, "rope type 'dynamic'"), "%s", err.msg);
    conf_free(cfg);
}

/* ---- GGUF: metadata alone, so that what is wrong with them must be found before a tensor is missed ---------------------------- */

typedef struct meta {
    xd_buf b;
    uint64_t n;
} meta;

static void put_key(meta *w, const char *key, uint32_t type)
{
    uint64_t n = strlen(key);
    xd_buf_append(&w->b, &n, 8);
    xd_buf_puts(&w->b, key);
    xd_buf_append(&w->b, &type, 4);
    w->n++;
}

static void put_u32(meta *w, const char *key, uint32_t v)
{
    put_key(w, key, 4);
    xd_buf_append(&w->b, &v, 4);
}

static void put_f32(meta *w, const char *key, float v)
{
    put_key(w, key, 6);
    xd_buf_append(&w->b, &v, 4);
}

static void put_text(meta *w, const char *key, const char *v)
{
    uint64_t n = strlen(v);
    put_key(w, key, 8);
    xd_buf_append(&w->b, &n, 8);
    xd_buf_puts(&w->b, v);
}

/* A model with one tensor, the embedding of 16 tokens, and the metadata of a small llama or qwen2, and `key` = `value`. */
static xd_status open_meta(const char *arch, const char *key, float value, xd_err *err)
{
    static const struct {
        const char *key;
        uint32_t value;
    } sizes[] = {{"block_count", 1},          {"embedding_length", 64},       {"attention.head_count", 4},
                 {"feed_forward_length", 32}, {"attention.head_count_kv", 2}, {"context_length", 128}};
    meta w = {0};
    char name[96];
    put_text(&w, "general.architecture", arch);
    for (size_t i = 0; i < XD_ARRAY_LEN(sizes); i++) {
        snprintf(name, sizeof name, "%s.%s", arch, sizes[i].key);
        if (strcmp(sizes[i].key, key))
            put_u32(&w, name, sizes[i].value);
    }
    snprintf(name, sizeof name, "%s.%s", arch, key);
    if (value >= 0 && value < 1e9f && value == (float)(uint32_t)value)
        put_u32(&w, name, (uint32_t)value);
    else
        put_f32(&w, name, value);

    xd_buf file = {0};
    uint32_t version = 3, dims = 2, type = 0;
    uint64_t one = 1, len = strlen("token_embd.weight"), shape[] = {64, 16}, offset = 0;
    xd_buf_puts(&file, "GGUF");
    xd_buf_append(&file, &version, 4);
    xd_buf_append(&file, &one, 8);
    xd_buf_append(&file, &w.n, 8);
    xd_buf_append(&file, w.b.data, w.b.len);
    xd_buf_append(&file, &len, 8);
    xd_buf_puts(&file, "token_embd.weight");
    xd_buf_append(&file, &dims, 4);
    xd_buf_append(&file, shape, sizeof shape);
    xd_buf_append(&file, &type, 4);
    xd_buf_append(&file, &offset, 8);
    while (file.len % 32)
        xd_buf_putc(&file, 0);
    for (int i = 0; i < 64 * 16 * 4; i++)
        xd_buf_putc(&file, 0);
    const char *path = put("m.gguf", file.data, file.len);
    xd_buf_free(&file);
    xd_buf_free(&w.b);
    model *m = NULL;
    xd_status st = model_open(&(model_options){.path = path}, &m, err);
    cr_assert_null(m);
    return st;
}

Test(families, refuse_gguf_metadata_that_change_the_result)
{
    static const struct {
        const char *key;
        float bad, usual;
    } cases[] = {
        {"attention.value_length", 24, 16},
        {"rope.dimension_count", 8, 16},
        {"attention.scale", 0.3f, 0},
        {"attention.clamp_kqv", 8, 0},
        {"attention.causal", 0, 1},
        {"logit_scale", 0.5f, 1},
        {"embedding_scale", 12, 1},
        {"residual_scale", 0.25f, 1},
        {"attn_logit_softcapping", 50, 0},
        {"final_logit_softcapping", 30, 0},
        {"expert_shared_count", 1, 0},
        {"expert_weights_scale", 2.5f, 1},
        {"expert_gating_func", 2, 1},
        {"leading_dense_block_count", 1, 0},
        {"rope.scale_linear", 4, 1},
        {"rope.scaling.attn_factor", 0.8f, 1},
        {"rope.scaling.yarn_log_multiplier", 0.1f, 0},
    };
    for (size_t i = 0; i < XD_ARRAY_LEN(cases); i++) {
        xd_err err;
        cr_assert_eq(open_meta("llama", cases[i].key, cases[i].bad, &err), XD_UNSUPPORTED, "%s", cases[i].key);
        cr_assert(strstr(err.msg, cases[i].key), "%s -> %s", cases[i].key, err.msg);
        cr_assert_eq(open_meta("llama", cases[i].key, cases[i].usual, &err), XD_BAD_MODEL);
        cr_assert(strstr(err.msg, "tensor 'output_norm.weight' is missing"), "%s -> %s", cases[i].key, err.msg);
    }
    xd_err err;
    /* JSON, by way of which it is read, has no infinity: it must not become the default. */
    static const float numbers[] = {INFINITY, -INFINITY, NAN};
    for (size_t i = 0; i < XD_ARRAY_LEN(numbers); i++) {
        cr_assert_eq(open_meta("granitemoe", "embedding_scale", numbers[i], &err), XD_BAD_MODEL);
        cr_assert(strstr(err.msg, "'granitemoe.embedding_scale' must be a number"), "%s", err.msg);
    }
    cr_assert_eq(open_meta("qwen2", "attention.sliding_window", 64, &err), XD_UNSUPPORTED);
    cr_assert(strstr(err.msg, "qwen2.attention.sliding_window"), "%s", err.msg);
}

/* They are read by way of config.json's keys, of which the user has never heard. */
Test(families, name_the_keys_that_a_gguf_file_has)
{
    static const struct {
        const char *arch, *key;
        float value;
        const char *says;
    } cases[] = {
        {"llama", "block_count", 2000, "'llama.block_count' must be a number from 1 to 1024"},
        {"llama", "attention.head_count_kv", 3,
         "llama.attention.head_count (4) must be a multiple of llama.attention.head_count_kv (3)"},
        {"llama", "embedding_length", 0, "'llama.embedding_length' must be a number from 1"},
        {"qwen3moe", "expert_count", 5000, "'qwen3moe.expert_count' must be a number from 1 to 4096"},
        {"qwen3moe", "expert_used_count", 65, "'qwen3moe.expert_used_count' must be a number from 1 to 64"},
        {"llama", "expert_count", 1, "those that a token picks (llama.expert_used_count, 0; at most as many)"},
        {"glm4moe", "expert_used_count", 8, "a number of experts (glm4moe.expert_count, 0)"},
        {"mistral4", "expert_gating_func", 2, "'mistral4.expert_gating_func' = 2; 1 (softmax) is known"},
        {"deepseek2", "expert_gating_func", 4, "'deepseek2.expert_gating_func' = 4; 1 (softmax) and 2 (sigmoid) are"},
        {"mistral4", "expert_count", 8, "latent attention needs attention.kv_lora_rank"},
        {"glm4moe", "rope.dimension_count", 128, "'glm4moe.rope.dimension_count by the size of a head' must be"},
    };
    for (size_t i = 0; i < XD_ARRAY_LEN(cases); i++) {
        xd_err err;
        cr_assert_neq(open_meta(cases[i].arch, cases[i].key, cases[i].value, &err), XD_OK);
        cr_assert(strstr(err.msg, cases[i].says), "%s.%s -> %s", cases[i].arch, cases[i].key, err.msg);
    }
}

Test(families, of_gguf_that_are_not_known_are_refused_with_those_that_are)
{
    xd_err err;
    cr_assert_eq(open_meta("qwen3_moe", "x", 1, &err), XD_UNSUPPORTED);
    cr_assert(
        strstr(
            err.msg,
            "'qwen3_moe' is not known; known in GGUF are afmoe, bailingmoe2, deepseek2, deepseek32, dots1, ernie4_5-moe, gemma4, glm-dsa, glm4moe, "
            "gpt-oss, granitehybrid, granitemoe, hunyuan-moe, kimi-linear, lfm2moe, llama, llama4, minimax-m2, mistral4, nemotron_h, nemotron_h_moe, olmoe, phimoe, qwen2, qwen2moe, qwen3, "
            "qwen3moe, qwen3vlmoe"),
        "%s", err.msg);
    cr_assert_eq(open_meta("lla\xedma", "x", 1, &err), XD_UNSUPPORTED); /* a damaged file: no UTF-8 */
    cr_assert(strstr(err.msg, "ma' is not known; known in GGUF are afmoe, bailingmoe2, deepseek2"), "%s", err.msg);
}
