/* Gemma 4: layers of two kinds, by whether they have a window, and what is refused by name. Values are those of transformers 5.24
 * (configuration_gemma4.py) and of the published 26B-A4B's config.json. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/core.h"
#include "tests/unit/family_config.h"

TestSuite(families_gemma, .init = make_dir, .fini = remove_dir);

#define SIZES                                                                                              \
    "\"model_type\":\"gemma4_text\",\"hidden_size\":64,\"num_hidden_layers\":3,\"num_attention_heads\":8," \
    "\"num_key_value_heads\":4,\"head_dim\":32,\"vocab_size\":16,\"intermediate_size\":32"
#define GEMMA SIZES ",\"hidden_size_per_layer_input\":0"
#define MOE   GEMMA ",\"enable_moe_block\":true,\"num_experts\":8,\"top_k_experts\":2,\"moe_intermediate_size\":32"

Test(families_gemma, has_wide_heads_where_there_is_no_window)
{
    XD_CLEANUP(model_freep) model *m = NULL;
    xd_err err;
    cr_assert_eq(model_open(&(model_options){.path = "synthetic:gemma-4-26b-a4b", .geometry_only = true}, &m, &err),
                 XD_OK, "%s", err.msg);
    const model_params *p = model_get_params(m);
    cr_assert(p->act == KERN_GEGLU && p->attn_scale == 1 && p->logit_softcap == 30 && p->v_normed);
    cr_assert_float_eq(p->embed_scale, 53.0659966f, 1e-5);
    cr_assert_float_eq(p->router_scale, 1 / 53.0659966f, 1e-7);
    cr_assert(p->router.scoring == KERN_SOFTMAX_TOPK && p->router.norm_topk && p->n_experts_max == 128);
    for (uint32_t l = 0; l < 30; l++) {
        const model_layer *y = model_get_layer(m, l);
        const bool full = l % 6 == 5;
        const model_rope *r = &p->ropes[y->rope];
        cr_assert(y->window == (full ? 0 : 1024) && y->n_kv_heads == (full ? 2 : 8) &&
                      y->head_dim == (full ? 512 : 256),
                  "layer %u", l);
        cr_assert(y->moe && y->n_experts == 128 && y->top_k == 8 && y->d_ff == 704 && y->d_ff_shared == 2112);
        cr_assert_eq(y->v.data == y->k.data, full, "layer %u", l);
        /* A quarter of a wide head is rotated, its pairs as far apart as those of a whole one. */
        cr_assert_eq(r->rot_dim, full ? 512 : 256);
        cr_assert_float_eq(r->inv_freq[1], full ? pow(1e6, -2.0 / 512) : pow(1e4, -2.0 / 256), 1e-6);
        cr_assert_eq(r->inv_freq[63] > 0, true);
        cr_assert_eq(r->inv_freq[64] > 0, !full);
    }
}

/* A block of the KV cache has the same room for every layer: that of the widest. */
Test(families_gemma, keeps_kv_of_both_kinds_of_layers)
{
    static const struct {
        const char *config;
        uint32_t heads, head_dim;
    } cases[] = {
        {"{" GEMMA ",\"global_head_dim\":64,\"attention_k_eq_v\":true,\"num_global_key_value_heads\":1}", 4, 32},
        {"{" GEMMA ",\"global_head_dim\":64,\"num_global_key_value_heads\":1}", 4, 64}, /* only with attention_k_eq_v */
        {"{" GEMMA "}", 4, 512},
    };
    for (size_t i = 0; i < XD_ARRAY_LEN(cases); i++) {
        XD_CLEANUP(model_freep) model *m = NULL;
        xd_err err;
        cr_assert_eq(open_config(cases[i].config, &m, &err), XD_OK, "%s -> %s", cases[i].config, err.msg);
        config cfg = {0};
        const kv_options o = core_kv_options(&cfg, m, 512);
        cr_assert(o.n_kv_heads == cases[i].heads && o.head_dim == cases[i].head_dim, "%s: %u of %u", cases[i].config,
                  o.n_kv_heads, o.head_dim);
    }
}

/* transformers writes the heads of single layers in place of the two keys; what is not listed is as usual. */
Test(families_gemma, may_have_its_heads_listed_by_layers)
{
    XD_CLEANUP(model_freep) model *m = NULL;
    xd_err err;
    cr_assert_eq(
        open_config("{" MOE ",\"per_layer_config\":{\"2\":{\"head_dim\":48,\"num_key_value_heads\":2}}}", &m, &err),
        XD_OK, "%s", err.msg);
    const model_layer *first = model_get_layer(m, 0), *last = model_get_layer(m, 2);
    cr_assert(first->window == 512 && first->n_kv_heads == 4 && first->head_dim == 32);
    cr_assert(last->window == 0 && last->n_kv_heads == 2 && last->head_dim == 48);
    cr_assert(last->v.data != last->k.data);
}

/* A file names the end of a text alone; generation_config.json has these three. */
Test(families_gemma, ends_turns_and_calls_where_a_gguf_file_does_not_say_so)
{
    XD_CLEANUP(model_freep) model *m = NULL;
    xd_err err;
    const char *root = getenv("EXPERTD_SOURCE_ROOT");
    char path[4096];
    snprintf(path, sizeof path, "%s/tests/data/golden/gemma4-gguf/model.gguf", root ? root : ".");
    cr_assert_eq(model_open(&(model_options){.path = path}, &m, &err), XD_OK, "%s", err.msg);
    const model_params *p = model_get_params(m);
    tok_gguf words;
    cr_assert(model_get_vocabulary(m, &words));
    cr_assert_eq(p->n_eos, 3);
    cr_assert_str_eq(words.tokens[p->eos_ids[0]], "<eos>");
    cr_assert_str_eq(words.tokens[p->eos_ids[1]], "<turn|>");
    cr_assert_str_eq(words.tokens[p->eos_ids[2]], "<|tool_response>");
    cr_assert_eq(p->bos_id, 2);
}

Test(families_gemma, refuses_by_name_what_it_does_not_compute)
{
    static const refused cases[] = {
        /* of the small dense models; 256 is the class's default */
        {"{" SIZES "}", "hidden_size_per_layer_input = 256"},
        {"{" GEMMA ",\"num_kv_shared_layers\":1}", "num_kv_shared_layers = 1"},
        {"{" GEMMA ",\"hidden_activation\":\"gelu\"}", "hidden_activation 'gelu'"},
        {"{" GEMMA ",\"hidden_activation\":\"silu\"}", "hidden_activation 'silu'"},
        {"{" GEMMA ",\"use_bidirectional_attention\":\"all\"}", "'use_bidirectional_attention' is 'all'"},
        {"{" GEMMA ",\"final_logit_softcapping\":-1}", "'final_logit_softcapping' must be"},
        {"{" GEMMA ",\"enable_moe_block\":true}", "num_experts_per_tok"},
        {"{" GEMMA ",\"layer_types\":[\"full_attention\",\"full_attention\",\"sliding_attention\"]}",
         "layer_types has 'sliding_attention' for layer 2"},
        {"{" GEMMA ",\"global_head_dim\":33}", "even"},
        {"{" GEMMA ",\"global_head_dim\":1024}", "'global_head_dim' must be"},
        {"{" GEMMA ",\"attention_k_eq_v\":true,\"num_global_key_value_heads\":3}", "8 heads over 3"},
        {"{" GEMMA ",\"per_layer_config\":7}", "'per_layer_config' must be an object"},
        {"{" GEMMA ",\"per_layer_config\":{\"2\":7}}", "not so for layer 2"},
        {"{" GEMMA ",\"per_layer_config\":{\"1\":{\"head_dim\":16}}}", "gives layer 1 4 heads of K and V of 16"},
        {"{" GEMMA ",\"per_layer_config\":{\"2\":{\"sliding_window\":8}}}", "'sliding_window' for layer 2"},
        {"{" GEMMA ",\"rope_parameters\":{\"full_attention\":{\"rope_theta\":1e4}}}", "need 'sliding_attention'"},
        {"{" GEMMA ",\"rope_parameters\":{\"full_attention\":{\"rope_theta\":1e4},\"sliding_attention\":"
         "{\"rope_theta\":1e4,\"partial_rotary_factor\":0.5}}}",
         "partial_rotary_factor 0.5"},
        {"{\"model_type\":\"gemma4\"}", "'text_config' must be an object"},
        {"{\"model_type\":\"gemma3\"}", "model_type 'gemma3' is not known"},
    };
    refuse(cases, XD_ARRAY_LEN(cases));
}
