/* Granite 4.0-H: defaults, which are those of transformers 5.24 (configuration_granitemoehybrid.py), what its layers are, and what is refused.
 * Configurations without weights are opened as synthetic models of no weight. */
#include <criterion/criterion.h>
#include <string.h>

#include "engine/model/model.h"
#include "tests/unit/family_config.h"

TestSuite(families_ssm, .init = make_dir, .fini = remove_dir);

#define GRANITE                                                                                                 \
    "\"model_type\":\"granitemoehybrid\",\"hidden_size\":64,\"num_hidden_layers\":3,\"num_attention_heads\":4," \
    "\"vocab_size\":16,\"intermediate_size\":24,\"num_local_experts\":4,\"shared_intermediate_size\":40"
#define HEADS ",\"mamba_n_heads\":8"
#define TYPES ",\"layer_types\":[\"mamba\",\"attention\",\"mamba\"]"

Test(families_ssm, have_the_defaults_of_their_class)
{
    XD_CLEANUP(model_freep) model *m = NULL;
    xd_err err;
    cr_assert_eq(open_config("{\"model_type\":\"granitemoehybrid\",\"num_hidden_layers\":3" TYPES "}", &m, &err), XD_OK,
                 "%s", err.msg);
    const model_params *p = model_get_params(m);
    const kern_ssm_geom *g = &p->ssm;
    cr_assert(p->vocab == 32000 && p->d_model == 4096 && p->n_heads == 32 && p->n_kv_heads == 32 && p->head_dim == 128);
    cr_assert(p->max_positions == 2048 && p->rms_eps == 1e-6f && p->ssm_eps == 1e-6f && p->attn_scale == 1);
    cr_assert(g->n_heads == 128 && g->n_groups == 1 && g->d_state == 256 && g->head_dim == 64 && g->conv == 4);
    cr_assert(p->router.scoring == KERN_TOPK_SOFTMAX);
    cr_assert_eq(model_state_floats(p), 3 * (8192 + 512) + 128 * 64 * 256);
    for (uint32_t l = 0; l < 3; l++) {
        const model_layer *y = model_get_layer(m, l);
        cr_assert(y->linear == (l != 1) && y->ordinal == l / 2 && y->moe && y->n_experts == 8 && y->top_k == 2, "%u",
                  l);
        cr_assert(y->d_ff == 11008 && y->d_ff_shared == 1024, "%u", l);
        cr_assert_eq(y->ssm.conv_bias.cols, l == 1 ? 0 : 8192 + 512, "%u", l);
    }
}

Test(families_ssm, are_rotated_only_where_the_file_says_so)
{
    static const struct {
        const char *config;
        bool rotated;
    } cases[] = {
        {"{" GRANITE HEADS TYPES "}", false},
        {"{" GRANITE HEADS TYPES ",\"position_embedding_type\":\"nope\"}", false},
        {"{" GRANITE HEADS TYPES ",\"position_embedding_type\":\"rope\"}", true},
    };
    for (size_t i = 0; i < XD_ARRAY_LEN(cases); i++) {
        XD_CLEANUP(model_freep) model *m = NULL;
        xd_err err;
        cr_assert_eq(open_config(cases[i].config, &m, &err), XD_OK, "%s -> %s", cases[i].config, err.msg);
        cr_assert_eq(model_get_params(m)->ropes[0].inv_freq[0] != 0, cases[i].rotated, "%s", cases[i].config);
    }
}

/* What multiplies the stream has another epsilon for norms of the stream alone. */
Test(families_ssm, have_a_norm_behind_the_state_that_no_multiplier_touches)
{
    XD_CLEANUP(model_freep) model *m = NULL;
    xd_err err;
    cr_assert_eq(open_config("{" GRANITE HEADS TYPES ",\"residual_multiplier\":0.5,\"rms_norm_eps\":1e-5,"
                             "\"mamba_conv_bias\":false,\"layers_block_type\":null}",
                             &m, &err),
                 XD_OK, "%s", err.msg);
    const model_params *p = model_get_params(m);
    cr_assert(p->ssm_eps == 1e-5f && p->rms_eps == 4e-5f);
    cr_assert_eq(model_get_layer(m, 0)->ssm.conv_bias.cols, 0);
}

/* As Python writes it, and as transformers does now. In strings the word is a word. */
Test(families_ssm, know_infinity)
{
    static const char *const configs[] = {
        "{" GRANITE HEADS TYPES ",\"time_step_limit\":[0.0, Infinity]}",
        "{" GRANITE HEADS TYPES ",\"time_step_limit\":[-Infinity,Infinity],\"note\":\"\\\"NaN, Infinity\\\\\"}",
        "{" GRANITE HEADS TYPES ",\"time_step_limit\":[0.0, {\"__float__\": \"Infinity\"}]}",
    };
    for (size_t i = 0; i < XD_ARRAY_LEN(configs); i++) {
        XD_CLEANUP(model_freep) model *m = NULL;
        xd_err err;
        cr_assert_eq(open_config(configs[i], &m, &err), XD_OK, "%s -> %s", configs[i], err.msg);
    }
}

Test(families_ssm, refuse_by_name_what_they_do_not_compute)
{
    static const refused cases[] = {
        {"{" GRANITE HEADS "}", "layer_types is needed"},
        {"{" GRANITE HEADS ",\"layer_types\":[\"mamba\",\"mamba\",\"mamba\"]}", "all layers have linear attention"},
        {"{" GRANITE HEADS ",\"layer_types\":[\"mamba\",\"sliding_attention\",\"mamba\"]}",
         "layer_types has 'sliding_attention' for layer 1"},
        {"{" GRANITE HEADS TYPES ",\"time_step_limit\":[0.0,NaN]}", "time_step_limit other than"},
        {"{" GRANITE HEADS TYPES ",\"hidden_size\":Infinity}", "hidden_size"},
        {"{" GRANITE HEADS TYPES ",\"hidden_size\":Infinit}", "not valid JSON"},
        {"{" GRANITE TYPES ",\"mamba_n_heads\":7}", "must be mamba_expand times hidden_size"},
        {"{" GRANITE TYPES HEADS ",\"mamba_d_head\":8}", "must be mamba_expand times hidden_size"},
        {"{" GRANITE TYPES HEADS ",\"mamba_n_groups\":3}", "a multiple of mamba_n_groups"},
        {"{" GRANITE TYPES HEADS ",\"mamba_d_conv\":1}", "'mamba_d_conv'"},
        {"{" GRANITE TYPES HEADS ",\"mamba_proj_bias\":true}", "mamba_proj_bias true"},
        {"{" GRANITE TYPES HEADS ",\"time_step_limit\":[0.001,0.1]}", "time_step_limit other than"},
        {"{" GRANITE TYPES HEADS ",\"num_local_experts\":0}", "'num_local_experts'"},
    };
    refuse(cases, XD_ARRAY_LEN(cases));
}
