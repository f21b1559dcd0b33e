/* Families with linear layers (Gated DeltaNet): defaults, which are those of transformers 5.24 (configuration_*.py), and what is refused.
 * Configurations without weights are opened as synthetic models of no weight. */
#include <criterion/criterion.h>
#include <string.h>

#include "engine/model/model.h"
#include "tests/unit/family_config.h"

TestSuite(families_delta, .init = make_dir, .fini = remove_dir);

Test(families_delta, have_the_defaults_of_their_classes)
{
    static const struct {
        const char *config;
        uint32_t layers, linear, vocab, experts, top_k;
    } cases[] = {
        {"{\"model_type\":\"qwen3_next\"}", 48, 36, 151936, 512, 10},
        {"{\"model_type\":\"qwen3_5_moe_text\"}", 40, 30, 248320, 256, 8},
        {"{\"model_type\":\"qwen3_5_moe\",\"text_config\":{\"model_type\":\"qwen3_5_moe_text\"}}", 40, 30, 248320, 256,
         8},
    };
    for (size_t i = 0; i < XD_ARRAY_LEN(cases); i++) {
        XD_CLEANUP(model_freep) model *m = NULL;
        xd_err err;
        cr_assert_eq(open_config(cases[i].config, &m, &err), XD_OK, "%s -> %s", cases[i].config, err.msg);
        const model_params *p = model_get_params(m);
        const kern_delta_geom *g = &p->delta;
        cr_assert(p->n_layers == cases[i].layers && p->n_linear == cases[i].linear && p->vocab == cases[i].vocab, "%s",
                  cases[i].config);
        cr_assert(p->d_model == 2048 && p->n_heads == 16 && p->n_kv_heads == 2 && p->head_dim == 256, "%s",
                  cases[i].config);
        cr_assert(g->n_k_heads == 16 && g->n_v_heads == 32 && g->k_dim == 128 && g->v_dim == 128 && g->conv == 4, "%s",
                  cases[i].config);
        cr_assert(p->ropes[0].rot_dim == 64 && p->max_positions == 32768 && p->rms_eps == 1e-6f, "%s", cases[i].config);
        cr_assert(p->gated && p->router.norm_topk && !g->tiled, "%s", cases[i].config);
        uint32_t n[2] = {0};
        for (uint32_t l = 0; l < p->n_layers; l++) {
            const model_layer *y = model_get_layer(m, l);
            cr_assert(y->linear == (l % 4 != 3) && y->ordinal == n[y->linear]++, "%s: %u", cases[i].config, l);
            cr_assert(y->moe && y->n_experts == cases[i].experts && y->top_k == cases[i].top_k && y->d_ff == 512, "%s",
                      cases[i].config);
            cr_assert(y->d_ff_shared == 512, "%s", cases[i].config);
        }
    }
}

#define NEXT                                                                                                  \
    "\"model_type\":\"qwen3_next\",\"hidden_size\":64,\"num_hidden_layers\":3,\"num_attention_heads\":2,"     \
    "\"num_key_value_heads\":1,\"head_dim\":32,\"vocab_size\":16,\"intermediate_size\":32,\"num_experts\":4," \
    "\"num_experts_per_tok\":2,\"moe_intermediate_size\":32,\"shared_expert_intermediate_size\":32,"          \
    "\"linear_num_key_heads\":2,\"linear_num_value_heads\":4,\"linear_key_head_dim\":16,\"linear_value_head_dim\":8"
#define QWEN35                                                                                                  \
    "\"model_type\":\"qwen3_5_moe_text\",\"hidden_size\":64,\"num_hidden_layers\":3,\"num_attention_heads\":2," \
    "\"num_key_value_heads\":1,\"head_dim\":32,\"vocab_size\":16,\"num_experts\":4,\"num_experts_per_tok\":2,"  \
    "\"moe_intermediate_size\":32,\"shared_expert_intermediate_size\":32,\"full_attention_interval\":3"

Test(families_delta, are_linear_in_the_layers_that_a_list_says)
{
    static const struct {
        const char *config;
        bool linear[3];
    } cases[] = {
        {"{" NEXT ",\"full_attention_interval\":3}", {true, true, false}},
        {"{" NEXT ",\"full_attention_interval\":2}", {true, false, true}},
        {"{" NEXT ",\"full_attention_interval\":1}", {false, false, false}},
        {"{" NEXT ",\"full_attention_interval\":2,\"layer_types\":[\"full_attention\",\"linear_attention\","
         "\"linear_attention\"]}",
         {false, true, true}},
        {"{" NEXT ",\"full_attention_interval\":2,\"layer_types\":null}", {true, false, true}},
    };
    for (size_t i = 0; i < XD_ARRAY_LEN(cases); i++) {
        XD_CLEANUP(model_freep) model *m = NULL;
        xd_err err;
        cr_assert_eq(open_config(cases[i].config, &m, &err), XD_OK, "%s -> %s", cases[i].config, err.msg);
        uint32_t n = 0;
        for (uint32_t l = 0; l < 3; l++) {
            cr_assert_eq(model_get_layer(m, l)->linear, cases[i].linear[l], "%s: %u", cases[i].config, l);
            n += cases[i].linear[l];
        }
        /* A model without one needs no room for states. */
        const model_params *p = model_get_params(m);
        cr_assert(p->n_linear == n && p->delta.n_v_heads == (n ? 4 : 0), "%s", cases[i].config);
    }
}

Test(families_delta, are_dense_in_the_layers_that_a_list_says)
{
    XD_CLEANUP(model_freep) model *m = NULL;
    xd_err err;
    cr_assert_eq(open_config("{" NEXT ",\"full_attention_interval\":3,\"mlp_only_layers\":[1]}", &m, &err), XD_OK, "%s",
                 err.msg);
    for (uint32_t l = 0; l < 3; l++)
        cr_assert_eq(model_get_layer(m, l)->moe, l != 1, "%u", l);
}

Test(families_delta, refuse_by_name_what_they_do_not_compute)
{
    static const refused cases[] = {
        {"{" NEXT "}", "all layers have linear attention"},
        {"{" NEXT ",\"full_attention_interval\":0}", "'full_attention_interval'"},
        {"{" NEXT ",\"layer_types\":[\"full_attention\"]}", "layer_types must list num_hidden_layers = 3"},
        {"{" NEXT ",\"layer_types\":[\"full_attention\",\"linear_attention\",\"sliding_attention\"]}",
         "layer_types has 'sliding_attention' for layer 2"},
        {"{" NEXT ",\"layer_types\":[\"full_attention\",7,\"linear_attention\"]}",
         "layer_types has '(no text)' for layer 1"},
        {"{" QWEN35 ",\"linear_num_key_heads\":3,\"linear_num_value_heads\":4}",
         "linear_num_value_heads (4) must be a multiple of linear_num_key_heads (3)"},
        {"{" QWEN35 ",\"linear_num_key_heads\":0}", "'linear_num_key_heads'"},
        {"{" QWEN35 ",\"linear_value_head_dim\":\"128\"}", "'linear_value_head_dim'"},
        {"{" QWEN35 ",\"linear_conv_kernel_dim\":65}", "'linear_conv_kernel_dim'"},
        {"{" QWEN35 ",\"attn_output_gate\":false}", "attn_output_gate false"},
        {"{" QWEN35 ",\"hidden_act\":\"gelu\"}", "hidden_act 'gelu'"},
        {"{" QWEN35 ",\"architectures\":[\"Qwen3_5MoeModel\"]}", "'Qwen3_5MoeModel'"},
        {"{" NEXT ",\"full_attention_interval\":3,\"mlp_only_layers\":1}", "'mlp_only_layers' must be a list"},
    };
    refuse(cases, XD_ARRAY_LEN(cases));
}

#define KIMI                                                                                               \
    "\"model_type\":\"kimi_linear\",\"num_hidden_layers\":3,\"hidden_size\":64,\"num_attention_heads\":4," \
    "\"vocab_size\":16,\"intermediate_size\":24,\"num_experts\":4,\"num_experts_per_token\":2"
#define KDA(linear, full)                                                                                   \
    ",\"linear_attn_config\":{\"kda_layers\":[" linear "],\"full_attn_layers\":[" full "],\"num_heads\":2," \
    "\"head_dim\":16,\"short_conv_kernel_size\":4}"

Test(families_delta, of_kimi_count_their_layers_from_one)
{
    XD_CLEANUP(model_freep) model *m = NULL;
    xd_err err;
    cr_assert_eq(open_config("{" KIMI KDA("1,3", "2") ",\"model_max_length\":4096}", &m, &err), XD_OK, "%s", err.msg);
    const model_params *p = model_get_params(m);
    const kern_delta_geom *g = &p->delta;
    cr_assert(g->n_k_heads == 2 && g->n_v_heads == 2 && g->k_dim == 16 && g->v_dim == 16 && g->conv == 4);
    cr_assert(g->by_channel && p->max_positions == 4096 && p->n_linear == 2 && p->n_attention == 1);
    cr_assert(p->latent.kv_rank == 512 && p->latent.nope_dim == 128 && p->latent.rope_dim == 64);
    cr_assert(p->ropes[0].inv_freq[0] == 0 && p->router.scoring == KERN_SIGMOID && p->router.norm_topk);
    for (uint32_t l = 0; l < 3; l++) {
        const model_layer *y = model_get_layer(m, l);
        cr_assert(y->linear == (l != 1) && y->moe == (l > 0), "%u", l);
        cr_assert_eq(y->delta.dt_bias.cols, l == 1 ? 0 : 32, "%u", l);
    }
}

Test(families_delta, of_kimi_have_the_defaults_of_their_class)
{
    XD_CLEANUP(model_freep) model *m = NULL;
    xd_err err;
    cr_assert_eq(open_config("{\"model_type\":\"kimi_linear\",\"num_hidden_layers\":2,\"layer_types\":"
                             "[\"linear_attention\",\"full_attention\"]}",
                             &m, &err),
                 XD_OK, "%s", err.msg);
    const model_params *p = model_get_params(m);
    const kern_delta_geom *g = &p->delta;
    cr_assert(p->vocab == 163840 && p->d_model == 2304 && p->n_heads == 32 && p->max_positions == 1048576);
    cr_assert(g->n_k_heads == 32 && g->n_v_heads == 32 && g->k_dim == 128 && g->v_dim == 128 && g->conv == 4);
    cr_assert(p->rms_eps == 1e-5f && p->router.scale == 2.446f && p->latent.v_dim == 128 && !p->latent.q_rank);
    const model_layer *y = model_get_layer(m, 1);
    cr_assert(y->n_experts == 256 && y->top_k == 8 && y->d_ff == 1024 && y->d_ff_shared == 1024);
}

Test(families_delta, of_kimi_refuse_by_name_what_they_do_not_compute)
{
    static const refused cases[] = {
        {"{" KIMI "}", "layer_types is needed"},
        {"{" KIMI KDA("1,2,3", "") "}", "one with full attention is needed"},
        {"{" KIMI KDA("1", "2") "}", "layer_types has '(no text)' for layer 2"},
        {"{" KIMI KDA("1,3", "0") "}", "beyond num_hidden_layers"},
        {"{" KIMI KDA("1,3", "2") ",\"mla_use_nope\":false}", "mla_use_nope false"},
        {"{" KIMI KDA("1,3", "2") ",\"moe_router_activation_func\":\"softmax\"}", "'moe_router_activation_func'"},
        {"{" KIMI KDA("1,3", "2") ",\"moe_layer_freq\":2}", "moe_layer_freq = 2"},
    };
    refuse(cases, XD_ARRAY_LEN(cases));
}
