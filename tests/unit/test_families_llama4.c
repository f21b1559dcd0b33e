/* Llama 4: chunks, layers that are not rotated, which layers have experts, and what is refused. Values are those of transformers 5.24
 * (configuration_llama4.py, modeling_rope_utils.py). */
#include <criterion/criterion.h>
#include <string.h>

#include "config/util.h"
#include "tests/unit/family_config.h"

TestSuite(families_llama4, .init = make_dir, .fini = remove_dir);

#define LLAMA4                                                                                             \
    "\"model_type\":\"llama4_text\",\"hidden_size\":64,\"num_hidden_layers\":4,\"num_attention_heads\":4," \
    "\"num_key_value_heads\":2,\"head_dim\":8,\"vocab_size\":16,\"intermediate_size\":32,"                 \
    "\"intermediate_size_mlp\":48,\"num_local_experts\":4"

Test(families_llama4, has_the_defaults_of_its_class)
{
    XD_CLEANUP(model_freep) model *m = NULL;
    xd_err err;
    cr_assert_eq(open_config("{\"model_type\":\"llama4\",\"text_config\":{\"model_type\":\"llama4_text\"}}", &m, &err),
                 XD_OK, "%s", err.msg);
    const model_params *p = model_get_params(m);
    cr_assert(p->n_layers == 48 && p->d_model == 5120 && p->n_heads == 40 && p->n_kv_heads == 8 && p->vocab == 202048);
    cr_assert(p->rms_eps == 1e-5f && p->max_positions == 131072 && p->rope_interleaved && p->chunked);
    cr_assert(p->picks_scale_input && p->router.scoring == KERN_TOPK_SOFTMAX);
    cr_assert(p->ropes[0].normed && p->ropes[0].grow == 0 && p->ropes[0].inv_freq[0] == 1);
    cr_assert(!p->ropes[1].normed && p->ropes[1].grow == 0.1f && p->ropes[1].grow_every == 8192 &&
              p->ropes[1].inv_freq[0] == 0);
    for (uint32_t l = 0; l < 48; l++) {
        const model_layer *y = model_get_layer(m, l);
        const bool still = l % 4 == 3;
        cr_assert(y->moe && y->n_experts == 16 && y->top_k == 1 && y->d_ff == 8192 && y->d_ff_shared == 8192);
        cr_assert(y->rope == still && y->window == (still ? 0u : 8192u), "layer %u", l);
    }
}

Test(families_llama4, has_the_layers_that_lists_name)
{
    XD_CLEANUP(model_freep) model *m = NULL;
    xd_err err;
    cr_assert_eq(open_config("{" LLAMA4 ",\"no_rope_layers\":[0,1,1,0],\"moe_layers\":[3,0],\"use_qk_norm\":false,"
                             "\"attention_chunk_size\":7,\"attn_temperature_tuning\":false}",
                             &m, &err),
                 XD_OK, "%s", err.msg);
    const model_params *p = model_get_params(m);
    cr_assert(!p->ropes[0].normed && p->ropes[1].grow == 0);
    for (uint32_t l = 0; l < 4; l++) {
        const model_layer *y = model_get_layer(m, l);
        const bool end = l == 0 || l == 3;
        cr_assert(y->rope == end && y->window == (end ? 0u : 7u) && y->moe == end && y->d_ff == (end ? 32u : 48u),
                  "layer %u", l);
    }
}

/* Scout's: no band lies between the two factors. */
Test(families_llama4, scales_frequencies_below_a_bound)
{
    static const float freq[] = {1, 0.1f, 0.00125f, 0.000125f}; /* 10000 ** (-i / 4), by 8 from a wavelength of 64 on */
    XD_CLEANUP(model_freep) model *m = NULL;
    xd_err err;
    cr_assert_eq(open_config("{" LLAMA4
                             ",\"rope_theta\":10000.0,\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8.0,"
                             "\"low_freq_factor\":1.0,\"high_freq_factor\":1.0,"
                             "\"original_max_position_embeddings\":64}}",
                             &m, &err),
                 XD_OK, "%s", err.msg);
    for (int i = 0; i < 4; i++)
        cr_assert_float_eq(model_get_params(m)->ropes[0].inv_freq[i] / freq[i], 1, 1e-6, "%d", i);
}

Test(families_llama4, refuses_what_is_not_computed_and_what_is_wrong)
{
    static const refused cases[] = {
        {"{" LLAMA4 ",\"num_experts_per_tok\":2}", "num_experts_per_tok = 2 is not known for llama4_text, only 1"},
        {"{" LLAMA4 ",\"no_rope_layers\":[1,1]}", "no_rope_layers must list num_hidden_layers = 4"},
        {"{" LLAMA4 ",\"no_rope_layers\":3}", "'no_rope_layers' must be a list"},
        {"{" LLAMA4 ",\"no_rope_layers\":[1,1,\"x\",0]}", "not so for layer 2"},
        {"{" LLAMA4 ",\"no_rope_layer_interval\":0}", "no_rope_layer_interval"},
        {"{" LLAMA4 ",\"moe_layers\":[4]}", "moe_layers must hold layers below num_hidden_layers = 4"},
        {"{" LLAMA4 ",\"moe_layers\":1}", "'moe_layers' must be a list"},
        {"{" LLAMA4 ",\"interleave_moe_layer_step\":0}", "interleave_moe_layer_step"},
        {"{" LLAMA4 ",\"layer_types\":[\"full_attention\"]}", "layer_types must list num_hidden_layers = 4"},
        {"{" LLAMA4
         ",\"layer_types\":[\"full_attention\",\"sliding_attention\",\"full_attention\",\"full_attention\"]}",
         "'sliding_attention' for layer 1"},
        {"{" LLAMA4 ",\"attention_chunk_size\":null,\"layer_types\":[\"full_attention\",\"full_attention\","
         "\"full_attention\",\"chunked_attention\"]}",
         "layer 3 is chunked_attention, which needs attention_chunk_size"},
        {"{" LLAMA4 ",\"floor_scale\":0}", "floor_scale"},
        {"{" LLAMA4 ",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8.0,\"low_freq_factor\":2.0,"
         "\"high_freq_factor\":1.0,\"original_max_position_embeddings\":64}}",
         "high_freq_factor must not be below low_freq_factor"},
    };
    refuse(cases, XD_ARRAY_LEN(cases));
}
