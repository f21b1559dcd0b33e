/* Nemotron-H, whose layers have one part each: which, defaults, which are those of transformers 5.24 (configuration_nemotron_h.py), and what is
 * refused. Configurations without weights are opened as synthetic models of no weight. */
#include <criterion/criterion.h>
#include <string.h>

#include "config/util.h"
#include "engine/model/model.h"
#include "tests/unit/family_config.h"

TestSuite(families_apart, .init = make_dir, .fini = remove_dir);

#define NEMOTRON                                                                                                              \
    "\"model_type\":\"nemotron_h\",\"hidden_size\":64,\"num_attention_heads\":4,\"num_key_value_heads\":2,\"vocab_size\":16," \
    "\"intermediate_size\":24,\"n_routed_experts\":4,\"moe_intermediate_size\":20,"                                           \
    "\"moe_shared_expert_intermediate_size\":40,\"mamba_num_heads\":8"
#define PATTERN ",\"hybrid_override_pattern\":\"ME*-M\""

Test(families_apart, have_the_defaults_of_their_class)
{
    XD_CLEANUP(model_freep) model *m = NULL;
    xd_err err;
    cr_assert_eq(open_config("{\"model_type\":\"nemotron_h\",\"hybrid_override_pattern\":\"ME*-\"}", &m, &err), XD_OK,
                 "%s", err.msg);
    const model_params *p = model_get_params(m);
    const kern_ssm_geom *g = &p->ssm;
    cr_assert(p->vocab == 131072 && p->d_model == 4096 && p->n_heads == 32 && p->n_kv_heads == 8 && p->head_dim == 128);
    cr_assert(p->max_positions == 4096 && p->rms_eps == 1e-5f && p->ssm_eps == 1e-5f && p->act == KERN_RELU2);
    cr_assert(g->n_heads == 128 && g->n_groups == 8 && g->d_state == 128 && g->head_dim == 64 && g->conv == 4);
    cr_assert(p->router.scoring == KERN_SIGMOID && p->router.norm_topk && p->ropes[0].inv_freq[0] == 0);
    const model_layer *moe = model_get_layer(m, 1), *dense = model_get_layer(m, 3);
    cr_assert(moe->n_experts == 8 && moe->top_k == 2 && moe->d_ff == 7688 && moe->d_ff_shared == 7688);
    cr_assert(dense->n_experts == 1 && !dense->moe && dense->d_ff == 21504 && !dense->d_ff_shared);
}

Test(families_apart, have_one_part_in_each_layer)
{
    static const char *const configs[] = {
        "{" NEMOTRON PATTERN "}",
        "{" NEMOTRON ",\"layers_block_type\":[\"mamba\",\"moe\",\"attention\",\"mlp\",\"linear_attention\"]}",
    };
    for (size_t i = 0; i < XD_ARRAY_LEN(configs); i++) {
        XD_CLEANUP(model_freep) model *m = NULL;
        xd_err err;
        cr_assert_eq(open_config(configs[i], &m, &err), XD_OK, "%s -> %s", configs[i], err.msg);
        const model_params *p = model_get_params(m);
        uint32_t windows[MODEL_MAX_LAYERS];
        cr_assert(p->n_layers == 5 && p->n_linear == 2 && p->n_attention == 1);
        cr_assert_eq(model_get_windows(m, windows), 1);
        for (uint32_t l = 0; l < 5; l++) {
            const model_layer *y = model_get_layer(m, l);
            const bool ffn = l == 1 || l == 3;
            cr_assert(y->ffn_alone == ffn && (y->n_experts > 0) == ffn && y->linear == (l == 0 || l == 4), "%u", l);
            cr_assert((y->attn_norm.cols > 0) == !ffn && (y->ffn_norm.cols > 0) == ffn, "%u", l);
            cr_assert_eq(y->ordinal, l == 4, "%u", l);
        }
        /* The halves of a matrix of 20 rows. */
        const model_tensor *e = model_get_layer(m, 1)->experts;
        cr_assert(e[MODEL_GATE].rows == 10 && e[MODEL_UP].rows == 10 && e[MODEL_DOWN].cols == 20);
        cr_assert_eq(model_get_layer(m, 1)->shared[MODEL_UP].rows, 20);
    }
}

Test(families_apart, refuse_by_name_what_they_do_not_compute)
{
    static const refused cases[] = {
        {"{" NEMOTRON ",\"num_hidden_layers\":3}", "layer_types is needed"},
        {"{" NEMOTRON PATTERN ",\"num_hidden_layers\":4}", "must list num_hidden_layers = 4 layers"},
        {"{" NEMOTRON ",\"hybrid_override_pattern\":\"MEM\"}", "one with full attention is needed"},
        {"{" NEMOTRON ",\"hybrid_override_pattern\":\"M+*\"}", "hybrid_override_pattern has '+'"},
        {"{" NEMOTRON ",\"layers_block_type\":[\"mamba\",\"attention\",\"ffn\"]}", "'ffn' for layer 2"},
        {"{" NEMOTRON PATTERN ",\"n_groups\":3}", "must be a multiple of n_groups (3)"},
        {"{" NEMOTRON PATTERN ",\"moe_latent_size\":32}", "moe_latent_size = 32"},
        {"{" NEMOTRON PATTERN ",\"use_bias\":true}", "use_bias true"},
        {"{" NEMOTRON PATTERN ",\"mamba_proj_bias\":true}", "mamba_proj_bias true"},
        {"{" NEMOTRON PATTERN ",\"mlp_hidden_act\":\"silu\"}", "'mlp_hidden_act' is 'silu'"},
        {"{" NEMOTRON PATTERN ",\"time_step_limit\":[0.001,0.1]}", "time_step_limit other than"},
        {"{" NEMOTRON PATTERN ",\"moe_intermediate_size\":21}", "of an odd size"},
    };
    refuse(cases, XD_ARRAY_LEN(cases));
}

/* Makes the size `from` of a GGUF file's matrix, its dimension number `dim`, another one. */
static void resize(xd_buf *file, const char *name, int dim, uint64_t from, uint64_t to)
{
    char *at = memmem(file->data, file->len, name, strlen(name));
    cr_assert(at, "%s", name);
    at += strlen(name) + sizeof(uint32_t) + (size_t)dim * sizeof from;
    cr_assert_eq(memcmp(at, &from, sizeof from), 0, "%s", name);
    memcpy(at, &to, sizeof to);
}

/* The tensors of a GGUF file tell the size of a shared expert, whatever its metadata say: one that has no halves is no model. */
Test(families_apart, have_no_odd_shared_expert_in_a_gguf_file_either)
{
    const char *root = getenv("EXPERTD_SOURCE_ROOT");
    char path[4096];
    snprintf(path, sizeof path, "%s/tests/data/golden/nemotron_h-gguf/model.gguf", root ? root : ".");
    FILE *f = fopen(path, "rb");
    cr_assert(f, "%s", path);
    xd_buf file = {0};
    char some[4096];
    for (size_t n; (n = fread(some, 1, sizeof some, f));)
        xd_buf_append(&file, some, n);
    fclose(f);
    for (uint32_t size = 38; size < 40; size++) { /* of 40 */
        for (int l = 1; l < 8; l++) {
            char name[64];
            snprintf(name, sizeof name, "blk.%d.ffn_up_shexp.weight", l);
            if (!memmem(file.data, file.len, name, strlen(name)))
                continue;
            resize(&file, name, 1, size == 38 ? 40 : 38, size);
            snprintf(name, sizeof name, "blk.%d.ffn_down_shexp.weight", l);
            resize(&file, name, 0, size == 38 ? 40 : 38, size);
        }
        XD_CLEANUP(model_freep) model *m = NULL;
        xd_err err;
        xd_status st = model_open(&(model_options){.path = put("m.gguf", file.data, file.len)}, &m, &err);
        cr_assert_eq(st, size % 2 ? XD_UNSUPPORTED : XD_OK, "%u -> %d: %s", size, st, st ? err.msg : "");
        cr_assert(!st || strstr(err.msg, "has 39 rows: an FFN of an odd size"), "%s", err.msg);
        cr_assert(st || model_get_layer(m, 1)->shared[MODEL_UP].rows == 19);
    }
    xd_buf_free(&file);
}
