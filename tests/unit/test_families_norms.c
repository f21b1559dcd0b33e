/* Families whose norms stand elsewhere than in front of attention and FFN, and Ling's: what they take from their configurations, and what is
 * refused by name. Values are those of transformers 5.24 (configuration_*.py) and of published files. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "engine/core.h"
#include "tests/unit/family_config.h"

TestSuite(families_norms, .init = make_dir, .fini = remove_dir);

#define SIZES                                                                                                 \
    "\"hidden_size\":64,\"num_hidden_layers\":3,\"num_attention_heads\":4,\"head_dim\":32,\"vocab_size\":16," \
    "\"intermediate_size\":32"
#define HUNYUAN "\"model_type\":\"hunyuan_v1_moe\",\"num_experts\":8,\"moe_topk\":2," SIZES

/* As Hunyuan-A13B's config.json has them: lists of what is the same in all layers, and false for what there is not. */
Test(families_norms, reads_hunyuans_lists)
{
    XD_CLEANUP(model_freep) model *m = NULL;
    xd_err err;
    cr_assert_eq(open_config("{\"model_type\":\"hunyuan_v1_moe\",\"architectures\":[\"HunYuanMoEV1ForCausalLM\"],"
                             "\"attention_head_dim\":128,\"hidden_size\":256,\"num_hidden_layers\":3,"
                             "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"vocab_size\":16,"
                             "\"intermediate_size\":96,\"moe_intermediate_size\":[96,96,96],\"num_experts\":8,"
                             "\"moe_topk\":[3,3,3],\"num_shared_expert\":[1,1,1],\"moe_layer_num_skipped\":0,"
                             "\"n_group\":false,\"topk_group\":false,\"routed_scaling_factor\":false,\"use_cla\":false,"
                             "\"use_mla\":false,\"use_qk_norm\":true,\"use_mixed_mlp_moe\":true,\"norm_type\":\"rms\","
                             "\"max_position_embeddings\":32768,\"rope_theta\":10000.0,\"rope_scaling\":"
                             "{\"alpha\":1000.0,\"beta_fast\":32,\"factor\":1.0,\"type\":\"dynamic\"}}",
                             &m, &err),
                 XD_OK, "%s", err.msg);
    const model_params *p = model_get_params(m);
    cr_assert(p->head_dim == 128 && p->norm_last && p->router.norm_topk && p->router.scoring == KERN_SOFTMAX_TOPK);
    cr_assert_float_eq(p->rms_eps, 1e-5, 1e-12);
    for (uint32_t l = 0; l < 3; l++) {
        const model_layer *y = model_get_layer(m, l);
        cr_assert(y->moe && y->n_experts == 8 && y->top_k == 3 && y->d_ff == 96 && y->d_ff_shared == 96, "layer %u", l);
    }
    /* The base that llama.cpp's converter writes for the published file. */
    cr_assert_float_eq(p->ropes[0].inv_freq[1], pow(11158839.9251, -2.0 / 128), 1e-7);
    cr_assert(!p->rope_grows && p->max_positions == 32768);
}

Test(families_norms, stretches_hunyuans_rotation_by_an_alpha_alone)
{
    static const struct {
        const char *rope;
        double theta;
        bool grows;
    } cases[] = {
        {"\"rope_theta\":500", 500, false},
        {"\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":4.0}", 10000, true},
        {"\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":4.0,\"alpha\":0}", 10000, true},
        {"\"rope_scaling\":{\"type\":\"default\",\"alpha\":50.0}", 10000, false},
        {"\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":1.0,\"alpha\":1.0}", 10000, false},
        {"\"rope_theta\":500,\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":1.0,\"alpha\":50.0}",
         500 * 64.8985018 /* 50 ^ (32 / 30) */, false},
    };
    for (size_t i = 0; i < XD_ARRAY_LEN(cases); i++) {
        XD_CLEANUP(model_freep) model *m = NULL;
        xd_err err;
        char text[512];
        snprintf(text, sizeof text, "{" HUNYUAN ",%s}", cases[i].rope);
        cr_assert_eq(open_config(text, &m, &err), XD_OK, "%s -> %s", text, err.msg);
        const model_params *p = model_get_params(m);
        cr_assert_float_eq(p->ropes[0].inv_freq[1], pow(cases[i].theta, -2.0 / 32), 1e-6, "%s", text);
        cr_assert_eq(p->rope_grows, cases[i].grows, "%s", text);
    }
}

#define AFMOE "\"model_type\":\"afmoe\"," SIZES

/* As Trinity-Mini's config.json has them. */
Test(families_norms, rotates_trinitys_layers_with_a_window_alone)
{
    XD_CLEANUP(model_freep) model *m = NULL;
    xd_err err;
    cr_assert_eq(
        open_config("{\"architectures\":[\"AfmoeForCausalLM\"],\"global_attn_every_n_layers\":2,\"mup_enabled\":true,"
                    "\"moe_intermediate_size\":24,\"n_group\":1,\"num_dense_layers\":2,"
                    "\"num_expert_groups\":1,\"num_experts\":16,\"num_experts_per_tok\":8,"
                    "\"num_key_value_heads\":4,\"num_limited_groups\":1,\"num_shared_experts\":1,"
                    "\"route_norm\":true,\"route_scale\":2.826,\"score_func\":\"sigmoid\","
                    "\"sliding_window\":2048,\"topk_group\":1,\"load_balance_coeff\":0.001," AFMOE "}",
                    &m, &err),
        XD_OK, "%s", err.msg);
    const model_params *p = model_get_params(m);
    cr_assert(p->embed_scale == 8 && !p->gated && p->router.scoring == KERN_SIGMOID && p->router.norm_topk);
    cr_assert(p->router.scale == 2.826f && p->router.norm_eps == 1e-20f);
    for (uint32_t l = 0; l < 3; l++) {
        const model_layer *y = model_get_layer(m, l);
        const bool full = l == 1, moe = l == 2;
        cr_assert_eq(y->window, full ? 0 : 2048, "layer %u", l);
        cr_assert_eq(p->ropes[y->rope].inv_freq[0], !full, "layer %u", l);
        cr_assert(y->moe == moe && y->n_experts == (moe ? 16 : 1) && y->d_ff == (moe ? 24 : 32) &&
                      y->d_ff_shared == (moe ? 24 : 0) && y->top_k == (moe ? 8 : 1),
                  "layer %u", l);
        cr_assert(y->gate.rows == 128 && y->gate.cols == 64 && y->q.rows == 128, "layer %u", l);
        cr_assert(y->attn_norm.cols == 64 && y->attn_post_norm.cols == 64 && y->ffn_norm.cols == 64 &&
                      y->ffn_post_norm.cols == 64,
                  "layer %u", l);
        cr_assert(!y->out_scale.bytes && !y->shared_post_norm.bytes && y->choice_bias.cols == (moe ? 16 : 0),
                  "layer %u", l);
    }
}

Test(families_norms, has_the_defaults_of_trinitys_class)
{
    XD_CLEANUP(model_freep) model *m = NULL;
    xd_err err;
    cr_assert_eq(open_config("{\"model_type\":\"afmoe\",\"hidden_size\":64,\"num_hidden_layers\":4,\"vocab_size\":16}",
                             &m, &err),
                 XD_OK, "%s", err.msg);
    const model_params *p = model_get_params(m);
    cr_assert(p->n_heads == 16 && p->n_kv_heads == 16 && p->head_dim == 128 && p->max_positions == 16384);
    cr_assert(p->embed_scale == 1 && p->router.scale == 1);
    cr_assert_float_eq(p->rms_eps, 1e-5, 1e-12);
    const model_layer *first = model_get_layer(m, 0), *last = model_get_layer(m, 3);
    cr_assert(!first->moe && first->window == 1024 && first->d_ff == 6144);
    cr_assert(last->moe && last->window == 0 && last->n_experts == 64 && last->top_k == 6 && last->d_ff == 1408);
    cr_assert_eq(last->d_ff_shared, 2 * 1408);
}

/* What is published (FlexOlmo-7x7B) leaves much to its class. */
Test(families_norms, has_norms_behind_flex_olmos_layers_alone)
{
    XD_CLEANUP(model_freep) model *m = NULL;
    xd_err err;
    cr_assert_eq(
        open_config("{\"model_type\":\"flex_olmo\",\"hidden_size\":64,\"num_hidden_layers\":2,\"vocab_size\":16,"
                    "\"num_attention_heads\":4,\"intermediate_size\":32}",
                    &m, &err),
        XD_OK, "%s", err.msg);
    const model_params *p = model_get_params(m);
    cr_assert(p->n_kv_heads == 4 && p->head_dim == 16 && p->max_positions == 4096 && p->wide_qk_norm);
    cr_assert(p->router.scoring == KERN_SOFTMAX_TOPK && !p->router.norm_topk);
    cr_assert_float_eq(p->rms_eps, 1e-6, 1e-12);
    cr_assert_float_eq(p->ropes[0].inv_freq[1], pow(500000, -2.0 / 16), 1e-6);
    for (uint32_t l = 0; l < 2; l++) {
        const model_layer *y = model_get_layer(m, l);
        cr_assert(!y->attn_norm.bytes && !y->ffn_norm.bytes, "layer %u", l);
        cr_assert(y->attn_post_norm.cols == 64 && y->ffn_post_norm.cols == 64 && y->q_norm.cols == 64, "layer %u", l);
        cr_assert(y->moe && y->n_experts == 7 && y->top_k == 5 && y->d_ff == 32 && !y->d_ff_shared, "layer %u", l);
    }
}

#define LING "\"model_type\":\"bailing_moe\"," SIZES

/* As Ling-mini-2.0's config.json has them. */
Test(families_norms, reads_lings_names)
{
    XD_CLEANUP(model_freep) model *m = NULL;
    xd_err err;
    cr_assert_eq(
        open_config("{\"architectures\":[\"BailingMoeV2ForCausalLM\"],\"first_k_dense_replace\":1,"
                    "\"moe_intermediate_size\":24,\"moe_shared_expert_intermediate_size\":48,"
                    "\"norm_topk_prob\":true,\"num_experts\":32,\"num_experts_per_tok\":8,"
                    "\"num_key_value_heads\":2,\"num_shared_experts\":2,\"use_bias\":false,\"use_qkv_bias\":false,"
                    "\"norm_head\":false,\"partial_rotary_factor\":0.5,\"routed_scaling_factor\":2.5,"
                    "\"n_group\":8,\"topk_group\":4,\"use_qk_norm\":true,\"score_function\":\"sigmoid\","
                    "\"rope_theta\":600000,\"rope_scaling\":null," LING "}",
                    &m, &err),
        XD_OK, "%s", err.msg);
    const model_params *p = model_get_params(m);
    cr_assert(p->router.scoring == KERN_SIGMOID && p->router.n_groups == 8 && p->router.top_groups == 4);
    cr_assert(p->router.scale == 2.5f && p->router.norm_topk && p->ropes[0].rot_dim == 16 && p->n_kv_heads == 2);
    cr_assert_float_eq(p->ropes[0].inv_freq[1], pow(600000, -2.0 / 16), 1e-6);
    const model_layer *first = model_get_layer(m, 0), *last = model_get_layer(m, 2);
    cr_assert(!first->moe && first->d_ff == 32 && !first->d_ff_shared && first->q_norm.cols == 32);
    cr_assert(last->moe && last->n_experts == 32 && last->top_k == 8 && last->d_ff == 24 && last->d_ff_shared == 48);
}

/* kv_lora_rank + qk_rope_head_dim as the size of a head, and DeepSeek's name of YaRN. */
Test(families_norms, reads_sarvams_published_keys)
{
    XD_CLEANUP(model_freep) model *m = NULL;
    xd_err err;
    cr_assert_eq(
        open_config("{\"model_type\":\"sarvam_mla\",\"architectures\":[\"SarvamMLAForCausalLM\"],"
                    "\"hidden_size\":64,\"num_hidden_layers\":2,\"vocab_size\":16,\"head_dim\":576,"
                    "\"q_head_dim\":192,\"num_experts\":16,\"num_shared_experts\":2,\"moe_intermediate_size\":24,"
                    "\"rope_scaling\":{\"type\":\"deepseek_yarn\",\"factor\":40,"
                    "\"original_max_position_embeddings\":4096,\"mscale\":1.0,\"mscale_all_dim\":1.0}}",
                    &m, &err),
        XD_OK, "%s", err.msg);
    const model_params *p = model_get_params(m);
    const model_layer *y = model_get_layer(m, 1);
    const double mscale = 0.1 * log(40) + 1;
    cr_assert(p->head_dim == 576 && p->n_kv_heads == 1 && p->latent.q_rank == 0 && p->router.n_groups == 1);
    cr_assert(p->ropes[0].scale == 1 && y->n_experts == 16 && y->d_ff_shared == 48);
    cr_assert_float_eq(p->attn_scale, mscale * mscale / sqrt(192), 1e-6);
}

Test(families_norms, has_norms_behind_the_experts_of_axk1_alone)
{
    XD_CLEANUP(model_freep) model *m = NULL;
    xd_err err;
    cr_assert_eq(open_config("{\"model_type\":\"axk1\",\"hidden_size\":64,\"num_hidden_layers\":3,\"vocab_size\":16,"
                             "\"mlp_layer_types\":[\"sparse\",\"dense\",\"sparse\"]}",
                             &m, &err),
                 XD_OK, "%s", err.msg);
    const model_params *p = model_get_params(m);
    cr_assert(p->latent.q_rank == 1536 && p->router.n_groups == 8 && p->router.top_groups == 4 && p->router.norm_topk);
    cr_assert(p->n_heads == 64 && p->router.scale == 2.5f && p->rope_interleaved);
    for (uint32_t l = 0; l < 3; l++) {
        const model_layer *y = model_get_layer(m, l);
        cr_assert(y->moe == (l != 1) && y->n_experts == (y->moe ? 192 : 1), "layer %u", l);
        cr_assert_eq(y->ffn_post_norm.cols, y->moe ? 64 : 0, "layer %u", l);
        cr_assert(y->attn_norm.cols == 64 && y->ffn_norm.cols == 64 && !y->attn_post_norm.bytes, "layer %u", l);
    }
}

Test(families_norms, refuse_by_name_what_they_do_not_compute)
{
    static const refused cases[] = {
        {"{" LING ",\"architectures\":[\"BailingMoeForCausalLM\"]}", "architectures names 'BailingMoeForCausalLM'"},
        {"{" LING ",\"score_function\":\"softmax\"}", "'score_function' is 'softmax'"},
        {"{" LING ",\"norm_head\":true}", "norm_head true"},
        {"{" LING ",\"moe_shared_expert_intermediate_size\":24}", "moe_shared_expert_intermediate_size = 24"},
        {"{" LING ",\"n_group\":3,\"topk_group\":1}", "n_group = 3"},
        {"{" AFMOE ",\"sliding_window\":null}", "sliding_window is needed for an afmoe model"},
        {"{" AFMOE ",\"score_func\":\"softmax\"}", "'score_func' is 'softmax'"},
        {"{" AFMOE ",\"route_norm\":false}", "route_norm false is not known for afmoe"},
        {"{" AFMOE ",\"n_group\":2}", "n_group = 2"},
        {"{" AFMOE ",\"num_expert_groups\":4}", "num_expert_groups = 4"},
        {"{" AFMOE ",\"num_limited_groups\":4}", "num_limited_groups = 4"},
        {"{" AFMOE ",\"global_attn_every_n_layers\":0}", "'global_attn_every_n_layers' must be"},
        {"{" AFMOE ",\"layer_types\":[\"full_attention\",\"full_attention\",\"chunked_attention\"]}",
         "'chunked_attention' for layer 2"},
        {"{" AFMOE ",\"rope_parameters\":{\"partial_rotary_factor\":0.5}}", "partial_rotary_factor 0.5"},
        {"{" HUNYUAN ",\"use_cla\":true}", "use_cla true is not known for hunyuan_v1_moe"},
        {"{" HUNYUAN ",\"use_mla\":true}", "use_mla true"},
        {"{" HUNYUAN ",\"use_qk_norm\":false}", "use_qk_norm false"},
        {"{" HUNYUAN ",\"use_mixed_mlp_moe\":false}", "use_mixed_mlp_moe false"},
        {"{" HUNYUAN ",\"use_rotary_pos_emb\":false}", "use_rotary_pos_emb false"},
        {"{" HUNYUAN ",\"group_limited_greedy\":true}", "group_limited_greedy true"},
        {"{" HUNYUAN ",\"moe_drop_tokens\":true}", "moe_drop_tokens true"},
        {"{" HUNYUAN ",\"norm_type\":\"layer\"}", "'norm_type' is 'layer'; 'rms' is known"},
        {"{" HUNYUAN ",\"moe_layer_num_skipped\":1}", "moe_layer_num_skipped = 1"},
        {"{" HUNYUAN ",\"num_shared_expert\":[2,2,2]}", "num_shared_expert = 2"},
        {"{" HUNYUAN ",\"num_shared_expert\":[1,1,2]}", "'num_shared_expert' is not the same in all layers"},
        {"{" HUNYUAN ",\"moe_intermediate_size\":24}", "moe_intermediate_size = 24"},
        {"{\"model_type\":\"hunyuan_v1_moe\",\"num_experts\":8,\"moe_topk\":[2,2,3]," SIZES "}",
         "'moe_topk' is not the same in all layers"},
        {"{\"model_type\":\"hunyuan_v1_moe\",\"num_experts\":8,\"moe_topk\":[]," SIZES "}",
         "'moe_topk' must be a number"},
        {"{\"model_type\":\"hunyuan_v1_moe\",\"num_experts\":8,\"moe_topk\":[9,9,9]," SIZES "}", "(moe_topk, 9;"},
        {"{" HUNYUAN ",\"rope_scaling\":{\"type\":\"dynamic\",\"alpha\":-1}}", "'alpha' must be"},
        {"{" HUNYUAN ",\"hidden_act\":\"gelu\"}", "hidden_act 'gelu'"},
        {"{" HUNYUAN ",\"mlp_bias\":true}", "mlp_bias"},
    };
    refuse(cases, XD_ARRAY_LEN(cases));
}
