/* Families with latent attention: defaults, which are those of transformers 5.17 (configuration_*.py), and what is refused. Configurations
 * without weights are opened as synthetic models of no weight. */
#include <criterion/criterion.h>
#include <string.h>
#include <unistd.h>

#include "config/config.h"
#include "engine/core.h"
#include "engine/model/model.h"
#include "tests/unit/family_config.h"

TestSuite(families_latent, .init = make_dir, .fini = remove_dir);

Test(families_latent, have_the_defaults_of_their_classes)
{
    static const struct {
        const char *config;
        uint32_t layers, d, heads, vocab, positions, q_rank, kv_rank, nope, rope, v;
        uint32_t dense, d_ff, experts, top_k, d_expert, shared, groups, top_groups;
        float eps, scale;
        bool norm;
    } cases[] = {
        {"{\"model_type\":\"glm4_moe_lite\"}",
         47,
         2048,
         20,
         154880,
         202752,
         768,
         512,
         192,
         64,
         256,
         1,
         10240,
         64,
         4,
         1536,
         1536,
         1,
         1,
         1e-5f,
         1.8f,
         true},
        {"{\"model_type\":\"deepseek_v3\"}",
         61,
         7168,
         128,
         129280,
         4096,
         1536,
         512,
         128,
         64,
         128,
         3,
         18432,
         256,
         8,
         2048,
         2048,
         8,
         4,
         1e-6f,
         2.5f,
         true},
        {"{\"model_type\":\"deepseek_v32\"}",
         61,
         7168,
         128,
         129280,
         163840,
         1536,
         512,
         128,
         64,
         128,
         3,
         18432,
         256,
         8,
         2048,
         2048,
         8,
         4,
         1e-6f,
         2.5f,
         true},
        {"{\"model_type\":\"glm_moe_dsa\"}",
         78,
         6144,
         64,
         154880,
         202752,
         2048,
         512,
         192,
         64,
         256,
         3,
         12288,
         256,
         8,
         2048,
         2048,
         1,
         1,
         1e-5f,
         2.5f,
         true},
        {"{\"model_type\":\"youtu\"}",
         32,
         2048,
         16,
         128256,
         131072,
         1536,
         512,
         128,
         64,
         128,
         32,
         6144,
         0,
         0,
         0,
         0,
         0,
         0,
         1e-6f,
         0,
         false},
        /* as far as its queries do not grow */
        {"{\"model_type\":\"mistral4\"}",
         36,
         4096,
         32,
         131072,
         8192,
         1024,
         256,
         64,
         64,
         128,
         0,
         12288,
         128,
         4,
         2048,
         2048,
         1,
         1,
         1e-6f,
         1,
         true},
        {"{\"model_type\":\"joyai_llm_flash\",\"architectures\":[\"DeepseekV3ForCausalLM\"],\"n_group\":1,\"topk_group\":1,"
         "\"num_hidden_layers\":40,\"num_attention_heads\":32,\"hidden_size\":2048,\"moe_intermediate_size\":768,"
         "\"first_k_dense_replace\":1}",
         40,
         2048,
         32,
         129280,
         4096,
         1536,
         512,
         128,
         64,
         128,
         1,
         18432,
         256,
         8,
         768,
         768,
         1,
         1,
         1e-6f,
         2.5f,
         true},
        {"{\"model_type\":\"kimi_k2\",\"architectures\":[\"DeepseekV3ForCausalLM\"],\"n_group\":1,\"topk_group\":1,"
         "\"num_attention_heads\":64,\"n_routed_experts\":384,\"vocab_size\":163840,\"first_k_dense_replace\":1,"
         "\"routed_scaling_factor\":2.827,\"scoring_func\":\"sigmoid\",\"topk_method\":\"noaux_tc\",\"moe_layer_freq\":1,"
         "\"num_nextn_predict_layers\":0,\"max_position_embeddings\":131072,\"rope_theta\":50000.0,\"rope_scaling\":"
         "{\"beta_fast\":1.0,\"beta_slow\":1.0,\"factor\":32.0,\"mscale\":1.0,\"mscale_all_dim\":1.0,"
         "\"original_max_position_embeddings\":4096,\"type\":\"yarn\"}}",
         61,
         7168,
         64,
         163840,
         131072,
         1536,
         512,
         128,
         64,
         128,
         1,
         18432,
         384,
         8,
         2048,
         2048,
         1,
         1,
         1e-6f,
         2.827f,
         true},
    };
    for (size_t i = 0; i < XD_ARRAY_LEN(cases); i++) {
        XD_CLEANUP(model_freep) model *m = NULL;
        xd_err err;
        cr_assert_eq(open_config(cases[i].config, &m, &err), XD_OK, "%s -> %s", cases[i].config, err.msg);
        const model_params *p = model_get_params(m);
        cr_assert(p->n_layers == cases[i].layers && p->d_model == cases[i].d && p->n_heads == cases[i].heads, "%s",
                  cases[i].config);
        cr_assert(p->vocab == cases[i].vocab && p->max_positions == cases[i].positions, "%s", cases[i].config);
        cr_assert(p->latent.q_rank == cases[i].q_rank && p->latent.kv_rank == cases[i].kv_rank, "%s", cases[i].config);
        cr_assert(p->latent.nope_dim == cases[i].nope && p->latent.rope_dim == cases[i].rope, "%s", cases[i].config);
        cr_assert(p->latent.v_dim == cases[i].v && p->ropes[0].rot_dim == cases[i].rope && p->n_kv_heads == 1, "%s",
                  cases[i].config);
        cr_assert(p->rms_eps == cases[i].eps && p->latent.norm_eps == 1e-6f && p->rope_interleaved, "%s",
                  cases[i].config);
        for (uint32_t l = 0; l < p->n_layers; l++) {
            const model_layer *y = model_get_layer(m, l);
            const bool moe = l >= cases[i].dense;
            cr_assert(y->moe == moe && y->n_experts == (moe ? cases[i].experts : 1), "%s: %u", cases[i].config, l);
            cr_assert(y->top_k == (moe ? cases[i].top_k : 1) && y->d_ff_shared == (moe ? cases[i].shared : 0), "%s: %u",
                      cases[i].config, l);
            cr_assert_eq(y->d_ff, moe ? cases[i].d_expert : cases[i].d_ff, "%s: %u", cases[i].config, l);
        }
        if (!cases[i].experts)
            continue;
        cr_assert(p->router.scale == cases[i].scale && p->router.norm_topk == cases[i].norm, "%s", cases[i].config);
        cr_assert(p->router.n_groups == cases[i].groups && p->router.top_groups == cases[i].top_groups, "%s",
                  cases[i].config);
    }
}

#define GLM                                                                                                  \
    "\"model_type\":\"glm4_moe_lite\",\"hidden_size\":64,\"num_hidden_layers\":3,\"num_attention_heads\":4," \
    "\"vocab_size\":16,\"intermediate_size\":32"

#define MISTRAL                                                                                                                \
    "\"model_type\":\"mistral4\",\"hidden_size\":64,\"num_hidden_layers\":2,\"num_attention_heads\":2,\"n_routed_experts\":4," \
    "\"vocab_size\":16,\"intermediate_size\":32,\"moe_intermediate_size\":32"

/* YaRN's attention factor is that of two equal magnitudes; scores have the square of one: 128 ** -0.5 * (0.1 * ln 128 + 1) ** 2. */
Test(families_latent, scale_what_transformers_scales)
{
    XD_CLEANUP(model_freep) model *m = NULL;
    xd_err err;
    cr_assert_eq(open_config("{" MISTRAL "}", &m, &err), XD_OK, "%s", err.msg);
    const model_params *p = model_get_params(m);
    cr_assert_float_eq(p->attn_scale, 0.1949693f, 1e-6, "%g", (double)p->attn_scale);
    cr_assert(p->router.scoring == KERN_SOFTMAX_TOPK && p->router.norm_eps == 1e-20f && p->rope_grows);
}

/* What begins behind its original context: larger queries. */
Test(families_latent, end_where_their_queries_would_grow)
{
    static const char rope[] =
        "\"max_position_embeddings\":256,\"rope_parameters\":{\"rope_type\":\"yarn\",\"factor\":4,"
        "\"original_max_position_embeddings\":64,\"llama_4_scaling_beta\":";
    static const struct {
        const char *beta, *context;
        xd_status st;
    } cases[] = {{"0.1", "64", XD_OK}, {"0.1", "65", XD_UNSUPPORTED}, {"0", "256", XD_OK}};
    for (size_t i = 0; i < XD_ARRAY_LEN(cases); i++) {
        char text[768], path[160];
        snprintf(text, sizeof text, "{" MISTRAL ",%s%s}}", rope, cases[i].beta);
        snprintf(path, sizeof path, "synthetic:%s", put("config.json", text, strlen(text)));
        config *cfg = NULL;
        xd_err err;
        core c;
        cr_assert(!conf_defaults(&cfg, &err) && !conf_set(cfg, "engine.backend", "cpu", &err) &&
                  !conf_set(cfg, "pager.warm_start", "no", &err) &&
                  !conf_set(cfg, "model.max_model_len", cases[i].context, &err));
        const xd_status st = core_open(&c, cfg, path, NULL, NULL, &err);
        cr_assert_eq(st, cases[i].st, "%s %s: %s", cases[i].beta, cases[i].context, st ? err.msg : "");
        cr_assert(!st || strstr(err.msg, "(llama_4_scaling_beta) would change beyond 64 tokens"), "%s", err.msg);
        if (!st)
            core_close(&c);
        conf_free(cfg);
    }
}

Test(families_latent, are_dense_in_the_layers_that_a_list_says)
{
    static const struct {
        const char *config;
        bool moe[3];
    } cases[] = {
        {"{" GLM "}", {false, true, true}},
        {"{" GLM ",\"first_k_dense_replace\":2}", {false, false, true}},
        {"{" GLM ",\"first_k_dense_replace\":2,\"mlp_layer_types\":[\"sparse\",\"dense\",\"sparse\"]}",
         {true, false, true}},
        {"{" GLM ",\"mlp_layer_types\":null}", {false, true, true}},
        /* of families that do not read it */
        {"{" GLM ",\"model_type\":\"deepseek_v3\",\"mlp_layer_types\":[\"sparse\",\"dense\",\"sparse\"]}",
         {false, false, false}},
    };
    for (size_t i = 0; i < XD_ARRAY_LEN(cases); i++) {
        XD_CLEANUP(model_freep) model *m = NULL;
        xd_err err;
        cr_assert_eq(open_config(cases[i].config, &m, &err), XD_OK, "%s -> %s", cases[i].config, err.msg);
        for (uint32_t l = 0; l < 3; l++)
            cr_assert_eq(model_get_layer(m, l)->moe, cases[i].moe[l], "%s: %u", cases[i].config, l);
    }
}

#define GLM5                                                                                               \
    "\"model_type\":\"glm_moe_dsa\",\"hidden_size\":64,\"num_hidden_layers\":6,\"num_attention_heads\":4," \
    "\"vocab_size\":16,\"intermediate_size\":32"
#define V32                                                                                                 \
    "\"model_type\":\"deepseek_v32\",\"hidden_size\":64,\"num_hidden_layers\":6,\"num_attention_heads\":4," \
    "\"vocab_size\":16,\"intermediate_size\":32"

/* As configuration_glm_moe_dsa.py of transformers 5.24 lists them: F has an indexer of its own. */
Test(families_latent, have_indexers_in_the_layers_that_say_so)
{
    static const struct {
        const char *config, *own;
        uint32_t heads, dim, top_k;
        bool pairs;
    } cases[] = {
        {"{" V32 "}", "FFFFFF", 64, 128, 2048, false},
        {"{" V32 ",\"indexer_types\":[\"shared\"],\"index_topk_freq\":3,\"index_topk\":7}", "FFFFFF", 64, 128, 7,
         false},
        {"{" V32 ",\"layer_types\":[\"indexed_attention\",\"indexed_attention\",\"indexed_attention\","
         "\"indexed_attention\",\"indexed_attention\",\"indexed_attention\"]}",
         "FFFFFF", 64, 128, 2048, false},
        {"{" GLM5 "}", "FFFFFF", 32, 128, 2048, true},
        {"{" GLM5 ",\"index_topk_freq\":4}", "FFSSSF", 32, 128, 2048, true},
        {"{" GLM5 ",\"index_topk_freq\":4,\"index_skip_topk_offset\":3}", "FFFSSS", 32, 128, 2048, true},
        {"{" GLM5 ",\"index_topk_freq\":2,\"index_skip_topk_offset\":1}", "FSFSFS", 32, 128, 2048, true},
        {"{" GLM5 ",\"index_topk_freq\":2,\"index_skip_topk_offset\":0}", "SFSFSF", 32, 128, 2048, true},
        {"{" GLM5 ",\"index_topk_freq\":0}", "FFFFFF", 32, 128, 2048, true},
        {"{" GLM5 ",\"index_topk_freq\":4,\"index_topk_pattern\":\"FSSFFS\"}", "FSSFFS", 32, 128, 2048, true},
        {"{" GLM5 ",\"index_topk_pattern\":[\"full\",\"full\",\"full\",\"full\",\"full\",\"shared\"]}", "FFFFFS", 32,
         128, 2048, true},
        {"{" GLM5 ",\"index_topk_pattern\":\"FFFFFF\",\"index_head_dim\":64,\"index_n_heads\":5,\"indexer_types\":"
         "[\"full\",\"shared\",\"full\",\"full\",\"shared\",\"full\"]}",
         "FSFFSF", 5, 64, 2048, true},
    };
    for (size_t i = 0; i < XD_ARRAY_LEN(cases); i++) {
        XD_CLEANUP(model_freep) model *m = NULL;
        xd_err err;
        const xd_status st = open_config(cases[i].config, &m, &err);
        if (cases[i].own[0] == 'S') { /* transformers fails at the first token */
            cr_assert(st == XD_BAD_MODEL && strstr(err.msg, "layer 0 must have an indexer of its own"), "%s", err.msg);
            continue;
        }
        cr_assert_eq(st, XD_OK, "%s -> %s", cases[i].config, err.msg);
        const model_params *p = model_get_params(m);
        cr_assert(p->index.n_heads == cases[i].heads && p->index.dim == cases[i].dim &&
                      p->index.top_k == cases[i].top_k,
                  "%s", cases[i].config);
        cr_assert(p->index.interleaved == cases[i].pairs && p->index.norm_eps == 1e-6f, "%s", cases[i].config);
        for (uint32_t l = 0; l < 6; l++) {
            const model_layer *y = model_get_layer(m, l);
            const bool own = cases[i].own[l] == 'F';
            cr_assert_eq(y->index.own, own, "%s: %u", cases[i].config, l);
            cr_assert_eq(y->index.q.rows, own ? cases[i].heads * cases[i].dim : 0, "%s: %u", cases[i].config, l);
        }
    }
}

Test(families_latent, refuse_by_name_what_they_do_not_compute)
{
    static const refused cases[] = {
        {"{" GLM ",\"architectures\":[\"Glm4MoeLiteModel\"]}", "'Glm4MoeLiteModel'"},
        {"{" GLM ",\"scoring_func\":\"softmax\"}", "'scoring_func' is 'softmax'"},
        {"{" GLM ",\"topk_method\":\"greedy\"}", "'topk_method' is 'greedy'"},
        {"{" GLM ",\"moe_layer_freq\":2}", "moe_layer_freq = 2"},
        {"{" GLM ",\"n_group\":3}", "64 experts in n_group = 3 groups"},
        {"{" GLM ",\"partial_rotary_factor\":0.5}", "partial_rotary_factor 0.5"},
        {"{" GLM ",\"num_key_value_heads\":2}", "num_key_value_heads = 2"},
        {"{" GLM ",\"hidden_act\":\"gelu\"}", "hidden_act 'gelu'"},
        {"{" GLM ",\"norm_topk_prob\":1}", "'norm_topk_prob' must be true or false"},
        {"{" GLM ",\"mlp_layer_types\":[\"dense\",\"sparse\"]}", "mlp_layer_types must list num_hidden_layers = 3"},
        {"{" GLM ",\"mlp_layer_types\":\"sparse\"}", "mlp_layer_types must list"},
        {"{" GLM ",\"mlp_layer_types\":[\"dense\",\"moe\",\"sparse\"]}", "mlp_layer_types has 'moe' for layer 1"},
        {"{" GLM ",\"mlp_layer_types\":[\"dense\",1,\"sparse\"]}", "mlp_layer_types has '(no text)' for layer 1"},
        {"{\"model_type\":\"youtu\",\"mlp_bias\":true}", "mlp_bias"},
        {"{\"model_type\":\"youtu\",\"hidden_act\":\"gelu\"}", "hidden_act 'gelu'"},
        {"{\"model_type\":\"youtu\",\"intermediate_size\":null}", "intermediate_size is needed"},
        {"{\"model_type\":\"youtu\",\"kv_lora_rank\":null}", "kv_lora_rank, qk_nope_head_dim"},
        {"{" MISTRAL
         ",\"rope_parameters\":{\"rope_type\":\"yarn\",\"factor\":2,\"original_max_position_embeddings\":64}}",
         "llama_4_scaling_beta and original_max_position_embeddings are needed"},
        {"{" MISTRAL ",\"rope_parameters\":null}", "llama_4_scaling_beta and"},
        {"{" MISTRAL
         ",\"rope_parameters\":{\"rope_type\":\"yarn\",\"factor\":2,\"original_max_position_embeddings\":64,"
         "\"llama_4_scaling_beta\":\"0.1\"}}",
         "'llama_4_scaling_beta' must be a number"},
        {"{" MISTRAL ",\"partial_rotary_factor\":0.25}", "partial_rotary_factor 0.25"},
        {"{" MISTRAL ",\"scoring_func\":\"sigmoid\"}", "'scoring_func' is 'sigmoid'"},
        {"{" MISTRAL ",\"n_group\":128}", "'n_group'"},
        {"{" V32 ",\"rope_interleave\":false}", "rope_interleave false is not known for deepseek_v32"},
        {"{" V32 ",\"indexer_rope_interleave\":true}", "indexer_rope_interleave true is not known for deepseek_v32"},
        {"{" GLM5 ",\"indexer_rope_interleave\":false}", "indexer_rope_interleave false is not known for glm_moe_dsa"},
        {"{" V32 ",\"index_head_dim\":32}", "an indexer of no fewer columns (32) than are rotated (64)"},
        {"{" V32 ",\"index_topk\":0}", "'index_topk' must be a number from 1"},
        {"{" V32 ",\"index_n_heads\":2000}", "'index_n_heads' must be a number from 1"},
        {"{" V32 ",\"q_lora_rank\":null}", "index_head_dim and q_lora_rank are needed"},
        {"{" V32 ",\"layer_types\":[\"full_attention\",\"full_attention\",\"full_attention\",\"full_attention\","
         "\"full_attention\",\"full_attention\"]}",
         "layer_types has 'full_attention' for layer 0"},
        {"{" GLM5 ",\"indexer_types\":[\"full\"]}", "indexer_types must list num_hidden_layers = 6"},
        {"{" GLM5 ",\"indexer_types\":\"FFFFFF \"}", "indexer_types must list num_hidden_layers = 6"},
        {"{" GLM5 ",\"index_topk_pattern\":\"FFXFFF\"}", "index_topk_pattern has 'X' for layer 2; F and S are known"},
        {"{" GLM5 ",\"indexer_types\":[\"full\",\"none\",\"full\",\"full\",\"full\",\"full\"]}",
         "indexer_types has 'none' for layer 1; 'full' and 'shared' are known"},
        {"{" GLM5 ",\"indexer_types\":[\"full\",1,\"full\",\"full\",\"full\",\"full\"]}",
         "indexer_types has '(no text)' for layer 1"},
        {"{" GLM ",\"model_type\":\"kimi_k3\"}", "'kimi_k3' is not known; known are "},
        {"{" GLM ",\"model_type\":\"axk2\"}", ", joyai_llm_flash, kimi_k2"},
        {"{" GLM ",\"model_type\":\"joyai_llm_flash\",\"architectures\":[\"JoyAIForCausalLM\"]}", "'JoyAIForCausalLM'"},
    };
    refuse(cases, XD_ARRAY_LEN(cases));
}
