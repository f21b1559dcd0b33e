/* Step-3.5, Step-3.7 and Laguna: what they take from their configurations, and what is refused by name. Values are those of transformers 5.24
 * (configuration_step3p7.py, configuration_laguna.py) and of published files. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "engine/core.h"
#include "tests/unit/family_config.h"

TestSuite(families_step, .init = make_dir, .fini = remove_dir);

#define SIZES                                                                                            \
    "\"hidden_size\":64,\"num_hidden_layers\":4,\"num_attention_heads\":8,\"num_attention_groups\":4,"   \
    "\"head_dim\":32,\"vocab_size\":16,\"intermediate_size\":48,\"moe_num_experts\":16,\"moe_top_k\":3," \
    "\"moe_intermediate_size\":24,\"share_expert_dim\":40,\"sliding_window\":512,\"moe_router_scaling_factor\":3.0"
/* Lists go on with a layer that guesses further tokens, as in Step-3.5-Flash. */
#define LISTS                                                                                                         \
    "\"num_nextn_predict_layers\":1,\"layer_types\":[\"full_attention\",\"sliding_attention\",\"sliding_attention\"," \
    "\"full_attention\",\"sliding_attention\"],\"rope_theta\":[5000000.0,10000.0,10000.0,5000000.0,10000.0],"         \
    "\"partial_rotary_factors\":[0.5,1.0,1.0,0.5,1.0],\"swiglu_limits\":[0.0,0.0,7,0.0,5],"                           \
    "\"swiglu_limits_shared\":[9,0.0,0.0,16,5],\"moe_layers_enum\":\"1,2,3\""
#define REST                                                                                                       \
    "\"attention_other_setting\":{\"attention_type\":\"sliding_attention\",\"num_attention_heads\":12,"            \
    "\"num_attention_groups\":4,\"head_dim\":32},\"yarn_only_types\":[\"full_attention\"],\"use_rope_layers\":[]," \
    "\"moe_router_activation\":\"sigmoid\",\"use_moe_router_bias\":true,\"use_head_wise_attn_gate\":true,"         \
    "\"norm_expert_weight\":true,\"need_fp32_gate\":true,\"zero_centered\":true,\"sink\":false,"                   \
    "\"att_impl_type\":\"GQA\",\"moe_every_n_layer\":1,\"moe_layer_offset\":0"
#define STEP  "\"model_type\":\"step3p5\"," SIZES
#define THREE "\"layer_types\":[\"full_attention\",\"sliding_attention\",\"full_attention\",\"sliding_attention\"]"

static void check_step(const model *m)
{
    const model_params *p = model_get_params(m);
    cr_assert(p->n_heads == 12 && p->n_kv_heads == 4 && p->n_nextn == 1 && !p->gate_softplus && !p->gated);
    cr_assert(p->router.scoring == KERN_SIGMOID && p->router.norm_topk && p->router.scale == 3);
    cr_assert_float_eq(p->attn_scale, 1 / sqrt(32), 1e-6);
    cr_assert_float_eq(p->rms_eps, 1e-5, 1e-12);
    cr_assert(p->ropes[0].rot_dim == 16 && p->ropes[1].rot_dim == 32);
    cr_assert_float_eq(p->ropes[0].inv_freq[1], pow(5e6, -2.0 / 16), 1e-6);
    cr_assert_float_eq(p->ropes[1].inv_freq[1], pow(1e4, -2.0 / 32), 1e-6);
    for (uint32_t l = 0; l < 4; l++) {
        const model_layer *y = model_get_layer(m, l);
        const bool slides = l == 1 || l == 2, moe = l > 0;
        const uint32_t heads = slides ? 12 : 8;
        cr_assert(y->n_heads == heads && y->window == (slides ? 512 : 0) && y->rope == slides, "layer %u", l);
        cr_assert(y->q.rows == heads * 32 && y->k.rows == 4 * 32 && y->o.cols == heads * 32, "layer %u", l);
        cr_assert(y->gate.rows == heads && y->gate.cols == 64, "layer %u", l);
        cr_assert(y->moe == moe && y->n_experts == (moe ? 16 : 1) && y->d_ff == (moe ? 24 : 48) &&
                      y->d_ff_shared == (moe ? 40 : 0),
                  "layer %u", l);
        /* A dense FFN has the shared experts' limit. */
        cr_assert(y->act_limit == (l == 0 ? 9 : l == 2 ? 7 : 0) && y->shared_limit == (l == 3 ? 16 : 0), "layer %u", l);
    }
}

Test(families_step, reads_what_is_listed_by_layers)
{
    static const char *const texts[] = {
        "{\"architectures\":[\"Step3p5ForCausalLM\"]," STEP "," LISTS "," REST "}",
        "{\"architectures\":[\"Step3p7ForConditionalGeneration\"],\"model_type\":\"step3p7\",\"text_config\":"
        "{\"architectures\":[\"Step3p5ForCausalLM\"]," STEP "," LISTS "," REST "},\"vision_config\":{\"layers\":47}}"};
    for (size_t i = 0; i < XD_ARRAY_LEN(texts); i++) {
        XD_CLEANUP(model_freep) model *m = NULL;
        xd_err err;
        cr_assert_eq(open_config(texts[i], &m, &err), XD_OK, "%s", err.msg);
        check_step(m);
    }
}

/* Llama 3's bands, as published: frequencies of the first layers' kind alone. */
Test(families_step, scales_the_rotation_of_layers_without_a_window)
{
    XD_CLEANUP(model_freep) model *m = NULL;
    xd_err err;
    cr_assert_eq(open_config("{" STEP "," LISTS ",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":2.0,"
                             "\"low_freq_factor\":1.0,\"high_freq_factor\":32.0,"
                             "\"original_max_position_embeddings\":131072}}",
                             &m, &err),
                 XD_OK, "%s", err.msg);
    const model_params *p = model_get_params(m);
    cr_assert_float_eq(p->ropes[0].inv_freq[7] / pow(5e6, -14.0 / 16), 0.5, 1e-6); /* far beyond the lowest band */
    cr_assert_float_eq(p->ropes[0].inv_freq[1], pow(5e6, -2.0 / 16), 1e-6);
    cr_assert_float_eq(p->ropes[1].inv_freq[15], pow(1e4, -30.0 / 32), 1e-9);
}

Test(families_step, has_the_defaults_of_transformers_class)
{
    XD_CLEANUP(model_freep) model *m = NULL;
    xd_err err;
    cr_assert_eq(
        open_config("{\"model_type\":\"step3p5\",\"hidden_size\":64,\"num_hidden_layers\":5,\"vocab_size\":16}", &m,
                    &err),
        XD_OK, "%s", err.msg);
    const model_params *p = model_get_params(m);
    cr_assert(p->n_heads == 64 && p->n_kv_heads == 8 && p->head_dim == 128 && p->max_positions == 128000);
    cr_assert(p->router.scale == 1 && p->ropes[0].rot_dim == 128);
    const model_layer *dense = model_get_layer(m, 2), *moe = model_get_layer(m, 3);
    cr_assert(!dense->moe && dense->d_ff == 11264 && !dense->window && dense->act_limit == 0);
    cr_assert(moe->moe && moe->n_experts == 288 && moe->top_k == 8 && moe->d_ff == 1280 && moe->d_ff_shared == 1280);
}

/* Each way to say how many heads there are: by layers, of the kind, or the same. */
Test(families_step, knows_heads_by_layers_and_by_kinds)
{
    static const struct {
        const char *says;
        uint32_t heads[4];
    } cases[] = {
        {"\"x\":0", {8, 8, 8, 8}},
        {"\"num_sliding_attention_heads\":16", {8, 16, 8, 16}},
        {"\"per_layer_config\":{\"2\":{\"num_attention_heads\":4}},\"num_sliding_attention_heads\":16", {8, 8, 4, 8}},
        {"\"per_layer_config\":{}", {8, 8, 8, 8}},
    };
    for (size_t i = 0; i < XD_ARRAY_LEN(cases); i++) {
        XD_CLEANUP(model_freep) model *m = NULL;
        xd_err err;
        char text[1024];
        snprintf(text, sizeof text, "{" STEP "," THREE ",%s}", cases[i].says);
        cr_assert_eq(open_config(text, &m, &err), XD_OK, "%s -> %s", cases[i].says, err.msg);
        for (uint32_t l = 0; l < 4; l++)
            cr_assert_eq(model_get_layer(m, l)->n_heads, cases[i].heads[l], "%s, layer %u", cases[i].says, l);
    }
}

#define LAGUNA                                                                                                 \
    "\"model_type\":\"laguna\",\"hidden_size\":64,\"num_hidden_layers\":3,\"num_attention_heads\":6,"          \
    "\"num_key_value_heads\":2,\"head_dim\":32,\"vocab_size\":16,\"intermediate_size\":48,\"num_experts\":16," \
    "\"moe_intermediate_size\":24,\"shared_expert_intermediate_size\":40"

Test(families_step, reads_lagunas_heads_and_gates)
{
    static const uint32_t heads[] = {6, 8, 8};
    for (int elements = 0; elements < 2; elements++) {
        XD_CLEANUP(model_freep) model *m = NULL;
        xd_err err;
        char text[1024];
        snprintf(text, sizeof text,
                 "{" LAGUNA
                 ",\"gating\":\"%s\",\"num_attention_heads_per_layer\":[6,8,8],\"partial_rotary_factor\":0.25,"
                 "\"moe_routed_scaling_factor\":2.5,\"moe_router_logit_softcapping\":0.0,\"layer_types\":"
                 "[\"full_attention\",\"sliding_attention\",\"sliding_attention\"]}",
                 elements ? "per-element" : "per-head");
        cr_assert_eq(open_config(text, &m, &err), XD_OK, "%s", err.msg);
        const model_params *p = model_get_params(m);
        cr_assert(p->n_heads == 8 && p->gate_softplus && p->router.scoring == KERN_SIGMOID && p->router.scale == 2.5f);
        cr_assert(p->ropes[0].rot_dim == 16 && p->ropes[1].rot_dim == 32);
        for (uint32_t l = 0; l < 3; l++) {
            const model_layer *y = model_get_layer(m, l);
            cr_assert(y->n_heads == heads[l] && y->gate.rows == heads[l] * (elements ? 32 : 1), "layer %u", l);
            cr_assert(y->window == (l ? 512 : 0) && y->moe == (l > 0) && y->d_ff_shared == (l ? 40 : 0), "layer %u", l);
        }
    }
}

Test(families_step, refuses_what_is_not_computed)
{
    static const refused cases[] = {
        {"{" STEP ",\"moe_router_activation\":\"softmax\"}", "moe_router_activation = \"softmax\" is not known"},
        {"{" STEP ",\"use_head_wise_attn_gate\":false}", "use_head_wise_attn_gate = false"},
        {"{" STEP ",\"use_moe_router_bias\":false}", "use_moe_router_bias = false"},
        {"{" STEP ",\"norm_expert_weight\":false}", "norm_expert_weight = false"},
        {"{" STEP ",\"use_bidirectional_attention\":true}", "use_bidirectional_attention = true"},
        {"{" STEP ",\"sink\":true}", "sink = true"},
        {"{" STEP ",\"att_impl_type\":\"MFA\"}", "att_impl_type = \"MFA\""},
        {"{" STEP ",\"moe_every_n_layer\":2}", "moe_every_n_layer = 2 is not known for step3p5, only 1"},
        {"{" STEP ",\"use_rope_layers\":[1,0]}", "use_rope_layers = [1,0]"},
        {"{" STEP ",\"yarn_only_types\":[\"sliding_attention\"]}", "yarn_only_types = [\"sliding_attention\"]"},
        {"{" STEP ",\"gating\":\"per-element\"}", "gating is per-element; true and 'per-head' are known for step3p5"},
        {"{" STEP ",\"gating\":false}", "gating is no text"},
        {"{" STEP ",\"swiglu_limits\":[1.0]}", "swiglu_limits must list num_hidden_layers = 4 layers"},
        {"{" STEP ",\"swiglu_limits\":7}", "swiglu_limits must list"},
        {"{" STEP ",\"swiglu_limits_shared\":[0,0,-1,0]}", "not so for layer 2"},
        {"{" STEP ",\"swiglu_limits\":[0,\"7\",0,0]}", "not so for layer 1"},
        {"{" STEP ",\"moe_layers_enum\":\"1,b\"}", "'moe_layers_enum' must hold numbers"},
        {"{" STEP ",\"moe_layers_enum\":[1,true]}", "'moe_layers_enum' must hold numbers"},
        {"{" STEP ",\"moe_layers_enum\":3}", "'moe_layers_enum' must be a list"},
        {"{" STEP "," THREE ",\"rope_theta\":[1e4,1e3,2e4,1e3]}",
         "rope_theta is not the same in all layers of full_attention"},
        {"{" STEP "," THREE ",\"partial_rotary_factors\":[0.5]}", "partial_rotary_factors must list"},
        {"{" STEP ",\"rope_scaling\":[]}", "'rope_scaling' must be an object"},
        {"{" STEP ",\"attention_other_setting\":[]}", "'attention_other_setting' must be an object"},
        {"{" STEP ",\"attention_other_setting\":{\"attention_type\":\"full_attention\"}}",
         "'sliding_attention' is known"},
        {"{" STEP ",\"attention_other_setting\":{\"head_dim\":64}}", "attention_other_setting has another head_dim"},
        {"{" STEP ",\"per_layer_config\":{\"1\":{\"head_dim\":64}}}", "per_layer_config has 'head_dim' for layer 1"},
        {"{" STEP "," THREE ",\"num_sliding_attention_heads\":6}", "has 6 heads for layer 1"},
        {"{" STEP "," THREE ",\"num_sliding_attention_heads\":\"8\"}", "has 0 heads for layer 1"},
        {"{" STEP "," THREE ",\"num_sliding_attention_heads\":2048}", "has 2048 heads for layer 1"},
        {"{" LAGUNA ",\"num_attention_heads_per_layer\":[6,8]}", "num_attention_heads_per_layer must list"},
        {"{" LAGUNA ",\"num_attention_heads_per_layer\":8}", "num_attention_heads_per_layer must list"},
        {"{" LAGUNA ",\"num_attention_heads_per_layer\":[6,0,8]}", "has 0 heads for layer 1"},
        {"{" LAGUNA ",\"gating\":false}", "true, 'per-element' and 'per-head' are known for laguna"},
        {"{" LAGUNA ",\"moe_router_logit_softcapping\":5.0}", "moe_router_logit_softcapping = 5.0"},
        {"{" LAGUNA ",\"moe_apply_router_weight_on_input\":true}", "moe_apply_router_weight_on_input = true"},
    };
    refuse(cases, XD_ARRAY_LEN(cases));
}
