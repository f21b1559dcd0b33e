/* Phi-3.5-MoE: layer norms and biases that must be there, its router, and longrope. Values are those of transformers 5.24
 * (configuration_phimoe.py, modeling_rope_utils.py). */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "config/util.h"
#include "tests/unit/family_config.h"

TestSuite(families_phi, .init = make_dir, .fini = remove_dir);

#define PHI                                                                                           \
    "\"model_type\":\"phimoe\",\"hidden_size\":64,\"num_hidden_layers\":2,\"num_attention_heads\":8," \
    "\"num_key_value_heads\":4,\"vocab_size\":16,\"intermediate_size\":32,\"num_local_experts\":4"
#define LONG(more)                                                                                                  \
    PHI ",\"rope_theta\":10000.0,\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":[1.0,1.05,1.5,2.0]," more \
        "\"original_max_position_embeddings\":4096}"
#define LONG_FACTOR "\"long_factor\":[1.0,2.0,10.5,61.25],"
#define MSCALES     "\"short_mscale\":1.1,\"long_mscale\":1.243163121016122,"

Test(families_phi, has_the_defaults_of_its_class)
{
    XD_CLEANUP(model_freep) model *m = NULL;
    xd_err err;
    cr_assert_eq(open_config("{\"model_type\":\"phimoe\"}", &m, &err), XD_OK, "%s", err.msg);
    const model_params *p = model_get_params(m);
    cr_assert(p->n_layers == 32 && p->d_model == 4096 && p->n_heads == 32 && p->n_kv_heads == 8 && p->vocab == 32064);
    cr_assert(p->layer_norms && p->rms_eps == 1e-5f && p->max_positions == 131072 && !p->long_rope.beyond);
    cr_assert(p->router.scoring == KERN_SPARSEMIXER && p->router.spread == 0.02f && !p->router.norm_topk);
    cr_assert_float_eq(p->ropes[0].inv_freq[1] / 0.80584219, 1, 1e-6); /* 1e6 ** (-2 / 128) */
    for (uint32_t l = 0; l < 32; l++) {
        const model_layer *y = model_get_layer(m, l);
        cr_assert(y->moe && y->n_experts == 16 && y->top_k == 2 && y->d_ff == 6400 && !y->window);
        cr_assert(y->attn_norm_bias.cols == 4096 && y->ffn_norm_bias.cols == 4096 && !y->o_bias.cols);
    }
    cr_assert(model_final_norm_bias(m)->cols == 4096 && !model_lm_head_bias(m)->cols);
}

Test(families_phi, is_rotated_by_how_long_sequences_may_become)
{
    static const struct {
        uint32_t positions;
        double scale, freq[4];
    } cases[] = {
        {1, 1.1, {1, 0.095238097, 0.00666666683, 0.000500000024}},
        {4096, 1.1, {1, 0.095238097, 0.00666666683, 0.000500000024}},
        {4097, 1.243163121016122, {1, 0.0500000007, 0.000952380942, 1.63265304e-05}},
        {131072, 1.243163121016122, {1, 0.0500000007, 0.000952380942, 1.63265304e-05}},
    };
    XD_CLEANUP(model_freep) model *m = NULL;
    xd_err err;
    cr_assert_eq(open_config("{" LONG(LONG_FACTOR MSCALES) "}", &m, &err), XD_OK, "%s", err.msg);
    for (size_t i = 0; i < XD_ARRAY_LEN(cases); i++) {
        const model_rope *r = model_rope_for(model_get_params(m), 0, cases[i].positions);
        cr_assert(r->rot_dim == 8 && r->scale == (float)cases[i].scale, "%u: %g", cases[i].positions, (double)r->scale);
        for (int k = 0; k < 4; k++)
            cr_assert_float_eq(r->inv_freq[k] / cases[i].freq[k], 1, 1e-6, "%u [%d]: %g", cases[i].positions, k,
                               (double)r->inv_freq[k]);
    }
}

/* What stands beside rope_scaling comes first, and the context where neither says anything. */
Test(families_phi, knows_where_its_original_length_is_told)
{
    static const struct {
        const char *config;
        uint32_t beyond;
    } cases[] = {
        {"{" LONG(LONG_FACTOR MSCALES) "}", 4096},
        {"{" LONG(LONG_FACTOR MSCALES) ",\"original_max_position_embeddings\":2048}", 2048},
        {"{" PHI ",\"max_position_embeddings\":777,\"rope_parameters\":{\"rope_type\":\"longrope\"," LONG_FACTOR MSCALES
         "\"short_factor\":[1,1,1,1]}}",
         777},
        {"{" PHI ",\"rope_scaling\":{\"type\":\"default\"}}", 0},
    };
    for (size_t i = 0; i < XD_ARRAY_LEN(cases); i++) {
        XD_CLEANUP(model_freep) model *m = NULL;
        xd_err err;
        cr_assert_eq(open_config(cases[i].config, &m, &err), XD_OK, "%s -> %s", cases[i].config, err.msg);
        cr_assert_eq(model_get_params(m)->long_rope.beyond, cases[i].beyond, "%s", cases[i].config);
    }
}

Test(families_phi, refuses_by_name_what_it_does_not_compute)
{
    static const refused cases[] = {
        {"{" PHI ",\"num_experts_per_tok\":1}", "num_experts_per_tok = 1 is not known for phimoe, only 2"},
        {"{" PHI ",\"num_experts_per_tok\":3}", "num_experts_per_tok = 3"},
        {"{" PHI ",\"mlp_bias\":true}", "mlp_bias is not known for phimoe"},
        {"{" PHI ",\"hidden_act\":\"gelu\"}", "hidden_act 'gelu'"},
        {"{" PHI ",\"router_jitter_noise\":-0.01}", "'router_jitter_noise' must be a number"},
        {"{" PHI ",\"router_jitter_noise\":\"0.01\"}", "'router_jitter_noise' must be a number"},
        {"{" PHI ",\"lm_head_bias\":1}", "'lm_head_bias' must be true or false"},
        {"{" PHI ",\"attention_bias\":\"yes\"}", "'attention_bias' must be true or false"},
        {"{" PHI ",\"partial_rotary_factor\":0.5}", "partial_rotary_factor 0.5"},
        {"{" PHI ",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4}}", "rope type 'yarn' is not known here"},
        {"{" PHI ",\"rope_scaling\":{\"type\":\"su\",\"factor\":4}}", "rope type 'su' is not known here"},
        {"{" PHI ",\"rope_scaling\":{\"type\":\"proportional\",\"factor\":4}}", "rope type 'proportional'"},
        {"{" LONG(MSCALES) "}", "'long_factor' must list 4 numbers"},
        {"{" LONG("\"long_factor\":[1,2,3]," MSCALES) "}", "'long_factor' must list 4 numbers"},
        {"{" LONG("\"long_factor\":7," MSCALES) "}", "'long_factor' must list 4 numbers"},
        {"{" LONG("\"long_factor\":[1,2,0,4]," MSCALES) "}", "'long_factor' must hold numbers from 0.001"},
        {"{" LONG("\"long_factor\":[1,2,-3,4]," MSCALES) "}", "not so at 2"},
        {"{" LONG("\"long_factor\":[1,2,3,\"4\"]," MSCALES) "}", "not so at 3"},
        {"{" LONG(LONG_FACTOR) "}", "rope type 'longrope' needs a 'short_mscale'"},
        {"{" LONG(LONG_FACTOR "\"short_mscale\":1,\"long_mscale\":null,") "}", "needs a 'long_mscale'"},
        {"{" LONG(LONG_FACTOR "\"short_mscale\":1,\"long_mscale\":0,") "}", "'long_mscale' must be a number"},
        {"{" LONG(LONG_FACTOR MSCALES) ",\"original_max_position_embeddings\":0.5}",
         "'original_max_position_embeddings' must be a number"},
    };
    refuse(cases, XD_ARRAY_LEN(cases));
}

static char *read_golden(const char *name, size_t *ret_bytes)
{
    const char *root = getenv("EXPERTD_SOURCE_ROOT");
    char path[4096];
    snprintf(path, sizeof path, "%s/tests/data/golden/%s", root ? root : ".", name);
    FILE *f = fopen(path, "rb");
    cr_assert(f && !fseek(f, 0, SEEK_END), "%s", path);
    *ret_bytes = (size_t)ftell(f);
    rewind(f);
    char *data = malloc(*ret_bytes);
    cr_assert(data && fread(data, 1, *ret_bytes, f) == *ret_bytes);
    (void)fclose(f);
    return data;
}

/* A golden model in which a tensor has another name. */
static xd_status open_without(const char *golden, const char *file, const char *tensor, model **ret, xd_err *err)
{
    size_t bytes;
    char *config = read_golden("phimoe/config.json", &bytes);
    put("config.json", config, bytes);
    free(config);
    char from[256];
    snprintf(from, sizeof from, "%s/%s", golden, file);
    char *data = read_golden(from, &bytes), *at = memmem(data, bytes, tensor, strlen(tensor));
    cr_assert(at, "%s", tensor);
    at[strlen(tensor) - 1] = 'X';
    const char *path = put(file, data, bytes);
    free(data);
    return model_open(&(model_options){.path = strstr(file, ".gguf") ? path : dir}, ret, err);
}

Test(families_phi, has_all_of_its_biases)
{
    static const char *const tensors[] = {"model.layers.1.input_layernorm.bias",
                                          "model.layers.0.post_attention_layernorm.bias",
                                          "model.norm.bias",
                                          "lm_head.bias",
                                          "model.layers.2.self_attn.o_proj.bias",
                                          "model.layers.0.self_attn.k_proj.bias"},
                             *const in_gguf[] = {"blk.1.attn_norm.bias", "blk.0.ffn_norm.bias",    "output_norm.bias",
                                                 "output.bias",          "blk.1.attn_output.bias", "blk.0.attn_q.bias"};
    for (size_t i = 0; i < XD_ARRAY_LEN(tensors) + XD_ARRAY_LEN(in_gguf); i++) {
        const bool gguf = i >= XD_ARRAY_LEN(tensors);
        const char *tensor = gguf ? in_gguf[i - XD_ARRAY_LEN(tensors)] : tensors[i];
        char says[96];
        model *m = NULL;
        xd_err err = {0};
        snprintf(says, sizeof says, "tensor '%s' is missing", tensor);
        cr_assert_eq(open_without(gguf ? "phimoe-long-gguf" : "phimoe", gguf ? "model.gguf" : "model.safetensors",
                                  tensor, &m, &err),
                     XD_BAD_MODEL, "%s", tensor);
        cr_assert(strstr(err.msg, says), "%s", err.msg);
    }
}

/* The factors are tensors, and one scale goes with both; how near logits must be has no key. */
Test(families_phi, means_the_same_in_a_gguf_file)
{
    const char *root = getenv("EXPERTD_SOURCE_ROOT");
    char path[4096];
    xd_err err;
    model *m[2] = {0};
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/tests/data/golden/%s", root ? root : ".",
                 i ? "phimoe-long-gguf" : "phimoe-long");
        cr_assert_eq(model_open(&(model_options){.path = path}, &m[i], &err), XD_OK, "%s", err.msg);
    }
    const model_params *a = model_get_params(m[0]), *b = model_get_params(m[1]);
    cr_assert(a->long_rope.beyond == 32 && b->long_rope.beyond == 32);
    cr_assert_float_eq(a->long_rope.rope.scale, b->long_rope.rope.scale, 1e-6);
    cr_assert_eq(b->ropes[0].scale, b->long_rope.rope.scale);
    for (int k = 0; k < 8; k++) {
        cr_assert_float_eq(a->ropes[0].inv_freq[k] / b->ropes[0].inv_freq[k], 1, 1e-6);
        cr_assert_float_eq(a->long_rope.rope.inv_freq[k] / b->long_rope.rope.inv_freq[k], 1, 1e-6);
    }
    cr_assert(b->router.scoring == KERN_SPARSEMIXER && b->router.spread == 0.02f && !b->router.norm_topk);
    cr_assert(model_get_layer(m[1], 0)->window == 40 && !b->rope_interleaved);
    model_free(m[0]);
    model_free(m[1]);
    model *without = NULL;
    cr_assert_eq(open_without("phimoe-long-gguf", "model.gguf", "rope_factors_long.weight", &without, &err),
                 XD_BAD_MODEL);
    cr_assert(strstr(err.msg, "'rope_factors_long.weight' must list 8 numbers"), "%s", err.msg);
}

/* A file names the end of a text alone; generation_config.json has these three. */
Test(families_phi, ends_turns_where_a_gguf_file_does_not_say_so)
{
    XD_CLEANUP(model_freep) model *m = NULL;
    xd_err err;
    const char *root = getenv("EXPERTD_SOURCE_ROOT");
    char path[4096];
    snprintf(path, sizeof path, "%s/tests/data/golden/phimoe-long-gguf/model.gguf", root ? root : ".");
    cr_assert_eq(model_open(&(model_options){.path = path}, &m, &err), XD_OK, "%s", err.msg);
    const model_params *p = model_get_params(m);
    tok_gguf words;
    cr_assert(model_get_vocabulary(m, &words));
    cr_assert_eq(p->n_eos, 3);
    cr_assert_str_eq(words.tokens[p->eos_ids[0]], "<|endoftext|>");
    cr_assert_str_eq(words.tokens[p->eos_ids[1]], "<|assistant|>");
    cr_assert_str_eq(words.tokens[p->eos_ids[2]], "<|end|>");
    cr_assert_eq(p->bos_id, 1);
}
