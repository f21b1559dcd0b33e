/* LFM2-MoE: defaults, which are those of transformers 5.24 (configuration_lfm2_moe.py), what its layers are, and what is refused. Configurations
 * without weights are opened as synthetic models of no weight. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "engine/model/model.h"
#include "tests/unit/family_config.h"

TestSuite(families_shortconv, .init = make_dir, .fini = remove_dir);

#define LFM2                                                                                            \
    "\"model_type\":\"lfm2_moe\",\"hidden_size\":64,\"num_hidden_layers\":4,\"num_attention_heads\":4," \
    "\"num_key_value_heads\":2,\"vocab_size\":16,\"intermediate_size\":32,\"num_experts\":4,"           \
    "\"num_experts_per_tok\":2,\"moe_intermediate_size\":24"
#define TYPES ",\"layer_types\":[\"conv\",\"conv\",\"full_attention\",\"conv\"]"

Test(families_shortconv, have_the_defaults_of_their_class)
{
    XD_CLEANUP(model_freep) model *m = NULL;
    xd_err err;
    cr_assert_eq(open_config("{\"model_type\":\"lfm2_moe\",\"num_hidden_layers\":3,"
                             "\"layer_types\":[\"conv\",\"full_attention\",\"conv\"]}",
                             &m, &err),
                 XD_OK, "%s", err.msg);
    const model_params *p = model_get_params(m);
    cr_assert(p->vocab == 65536 && p->d_model == 2048 && p->n_heads == 32 && p->n_kv_heads == 8 && p->head_dim == 64);
    cr_assert(p->max_positions == 128000 && p->rms_eps == 1e-5f && p->ropes[0].rot_dim == 64);
    cr_assert_float_eq(p->ropes[0].inv_freq[1], powf(1e6f, -1.0f / 32), 1e-6f);
    cr_assert(p->shortconv.channels == 2048 && p->shortconv.conv == 3 && p->delta.n_v_heads == 0);
    cr_assert(p->router.scoring == KERN_SIGMOID && p->router.norm_topk && p->router.norm_eps == 1e-6f &&
              p->router.scale == 1);
    for (uint32_t l = 0; l < 3; l++) {
        const model_layer *y = model_get_layer(m, l);
        cr_assert(y->linear == (l != 1) && y->ordinal == l / 2, "%u", l);
        cr_assert(y->moe == (l == 2) && y->d_ff == (l == 2 ? 1792 : 7168), "%u", l);
    }
    const model_layer *last = model_get_layer(m, 2);
    cr_assert(last->n_experts == 32 && last->top_k == 4 && last->choice_bias.cols == 32);
    cr_assert(model_lm_head(m)->rows == 65536);
}

Test(families_shortconv, keep_the_inputs_of_convolutions_and_no_more)
{
    static const struct {
        const char *config;
        uint32_t linear;
        uint64_t floats;
    } cases[] = {
        {"{" LFM2 TYPES "}", 3, 2 * 64},
        {"{" LFM2 TYPES ",\"conv_L_cache\":4}", 3, 3 * 64},
        {"{" LFM2 ",\"layer_types\":[\"full_attention\",\"full_attention\",\"full_attention\",\"full_attention\"]}", 0,
         0},
    };
    for (size_t i = 0; i < XD_ARRAY_LEN(cases); i++) {
        XD_CLEANUP(model_freep) model *m = NULL;
        xd_err err;
        cr_assert_eq(open_config(cases[i].config, &m, &err), XD_OK, "%s -> %s", cases[i].config, err.msg);
        const model_params *p = model_get_params(m);
        cr_assert(p->n_linear == cases[i].linear && model_state_floats(p) == cases[i].floats, "%s", cases[i].config);
    }
}

Test(families_shortconv, read_what_the_router_is_told)
{
    XD_CLEANUP(model_freep) model *m = NULL;
    xd_err err;
    cr_assert_eq(open_config("{" LFM2 TYPES ",\"use_expert_bias\":false,\"norm_topk_prob\":false,\"norm_eps\":1e-3,"
                             "\"routed_scaling_factor\":2.5,\"num_dense_layers\":0}",
                             &m, &err),
                 XD_OK, "%s", err.msg);
    const model_params *p = model_get_params(m);
    cr_assert(!p->router.norm_topk && p->router.scale == 2.5f && p->rms_eps == 1e-3f);
    for (uint32_t l = 0; l < 4; l++)
        cr_assert(model_get_layer(m, l)->moe && !model_get_layer(m, l)->choice_bias.cols, "%u", l);
}

Test(families_shortconv, refuse_by_name_what_they_do_not_compute)
{
    static const refused cases[] = {
        {"{" LFM2 "}", "layer_types is needed"},
        {"{" LFM2 ",\"layer_types\":[\"conv\",\"conv\",\"conv\",\"conv\"]}", "all layers have a convolution"},
        {"{" LFM2 ",\"layer_types\":[\"conv\"]}", "layer_types must list num_hidden_layers = 4"},
        {"{" LFM2 ",\"layer_types\":[\"conv\",\"full_attention\",\"linear_attention\",\"conv\"]}",
         "layer_types has 'linear_attention' for layer 2"},
        {"{" LFM2 TYPES ",\"conv_bias\":true}", "conv_bias true"},
        {"{" LFM2 TYPES ",\"conv_L_cache\":1}", "'conv_L_cache'"},
        {"{" LFM2 TYPES ",\"tie_embedding\":false,\"tie_word_embeddings\":true}",
         "tie_embedding and tie_word_embeddings differ"},
        {"{" LFM2 TYPES ",\"partial_rotary_factor\":0.5}", "partial_rotary_factor"},
        {"{" LFM2 TYPES ",\"architectures\":[\"Lfm2MoeModel\"]}", "'Lfm2MoeModel'"},
    };
    refuse(cases, XD_ARRAY_LEN(cases));
}
