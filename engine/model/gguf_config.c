/* gguf_config.c - the config.json that a GGUF file would have had: which family it is of, its metadata under config.json's keys, and which metadata would
 * change the result and are not known. Families whose metadata need more than a table: gguf_latent.c, gguf_heads.c. */
#include <math.h>
#include <string.h>

#include "engine/model/gguf.h"
#include "engine/model/hf_config.h"
#include "engine/model/model_priv.h"

/* A key of this architecture: "qwen3moe.block_count". */
static const char *arch_key(char *out, size_t cap, const char *arch, const char *key)
{
    snprintf(out, cap, "%s.%s", arch, key);
    return out;
}

/* Puts a value (owned) under config.json's key; `name` is what the file calls it. */
static xd_status put(json_t *config, const char *hf, json_t *value, const char *name, xd_err *err)
{
    return json_object_set_new(config, hf, value) ? xd_fail(err, XD_NOMEM, 0, "'%s'", name)
                                                  : hf_call(config, hf, name, err);
}

static const struct {
    const char *gguf, *hf;
} int_keys[] = {
    {"block_count", "num_hidden_layers"},
    {"embedding_length", "hidden_size"},
    {"attention.head_count", "num_attention_heads"},
    {"attention.head_count_kv", "num_key_value_heads"},
    {"attention.key_length", "head_dim"},
    {"feed_forward_length", "intermediate_size"},
    {"expert_count", "num_local_experts"},
    {"expert_used_count", "num_experts_per_tok"},
    {"expert_feed_forward_length", "moe_intermediate_size"},
    {"context_length", "max_position_embeddings"},
    {"attention.sliding_window", "sliding_window"},
};

/* What families are called in GGUF and in config.json. NULL: that depends on what the file holds. */
static const struct {
    const char *gguf, *model_type;
} families[] = {
    {"afmoe", "afmoe"},
    {"bailingmoe2", "bailing_moe"},
    {"deepseek2", NULL},
    {"deepseek32", "deepseek_v32"},
    {"dots1", "dots1"},
    {"ernie4_5-moe", "ernie4_5_moe"},
    {"gemma4", "gemma4_text"},
    {"glm-dsa", "glm_moe_dsa"},
    {"glm4moe", "glm4_moe"},
    {"gpt-oss", "gpt_oss"},
    {"granitehybrid", "granitemoehybrid"},
    {"granitemoe", NULL},
    {"hunyuan-moe", "hunyuan_v1_moe"},
    {"kimi-linear", "kimi_linear"},
    {"lfm2moe", "lfm2_moe"},
    {"llama", NULL},
    {"llama4", "llama4_text"},
    {"minimax-m2", "minimax_m2"},
    {"mistral4", NULL},
    {"nemotron_h", "nemotron_h"},
    {"nemotron_h_moe", "nemotron_h"},
    {"olmoe", "olmoe"},
    {"phimoe", "phimoe"},
    {"qwen2", "qwen2"},
    {"qwen2moe", "qwen2_moe"},
    {"qwen3", "qwen3"},
    {"qwen3moe", "qwen3_moe"},
    {"qwen3vlmoe", "qwen3_vl_moe"},
    {"qwen3next", "qwen3_next"},
    {"qwen35moe", "qwen3_5_moe_text"},
    {"step35", "step3p5"},
};

/* Keys that only some families have: what these say is read, not refused. */
#define DELTA_KEYS(arch)                                                                       \
    {arch, "ssm.conv_kernel", "linear_conv_kernel_dim", false},                                \
        {arch, "ssm.state_size", "linear_key_head_dim", false},                                \
        {arch, "ssm.group_count", "linear_num_key_heads", false},                              \
        {arch, "ssm.time_step_rank", "linear_num_value_heads", false},                         \
        {arch, "full_attention_interval", "full_attention_interval", false},                   \
        {arch, "expert_shared_feed_forward_length", "shared_expert_intermediate_size", false}, \
    {                                                                                          \
        arch, "rope.dimension_count", NULL, false                                              \
    }

#define GRANITE_KEYS(arch)                                                                                      \
    {arch, "attention.scale", "attention_multiplier", false},                                                   \
        {arch, "embedding_scale", "embedding_multiplier", false},                                               \
        {arch, "residual_scale", "residual_multiplier", false}, {arch, "logit_scale", "logits_scaling", false}, \
    {                                                                                                           \
        arch, "expert_shared_feed_forward_length", "shared_intermediate_size", false                            \
    }

#define INDEX_KEYS(arch)                                                 \
    {arch, "attention.indexer.head_count", "index_n_heads", false},      \
        {arch, "attention.indexer.key_length", "index_head_dim", false}, \
        {arch, "attention.indexer.top_k", "index_topk", false},          \
    {                                                                    \
        arch, "nextn_predict_layers", "num_nextn_predict_layers", true   \
    }

/* Lists of layers: add_linear_layers() */
#define NEMOTRON_KEYS(arch)                                                                                     \
    {arch, "attention.head_count_kv", NULL, false}, {arch, "feed_forward_length", NULL, false},                 \
        {arch, "attention.layer_norm_rms_epsilon", "layer_norm_epsilon", false},                                \
        {arch, "ssm.conv_kernel", "mamba_d_conv", false}, {arch, "ssm.group_count", "mamba_n_groups", false},   \
        {arch, "ssm.state_size", "mamba_d_state", false}, {arch, "ssm.time_step_rank", "mamba_n_heads", false}, \
        {arch, "expert_weights_scale", "routed_scaling_factor", false},                                         \
        {arch, "expert_group_count", "n_group", false}, {arch, "expert_group_used_count", "topk_group", false}, \
        {arch, "expert_shared_count", NULL, false}, {arch, "moe_latent_size", "moe_latent_size", false},        \
    {                                                                                                           \
        arch, "expert_shared_feed_forward_length", "moe_shared_expert_intermediate_size", false                 \
    }

static const struct {
    const char *arch, *gguf, *hf;
    bool counts; /* a file that does not say means 0; else 0 says nothing */
} family_keys[] = {
    {"qwen2moe", "expert_shared_feed_forward_length", "shared_expert_intermediate_size", false},
    {"olmoe", "attention.clamp_kqv", "clip_qkv", false},
    GRANITE_KEYS("granitemoe"),
    GRANITE_KEYS("granitehybrid"),
    {"granitehybrid", "attention.head_count_kv", NULL, false}, /* add_linear_layers() */
    {"granitehybrid", "ssm.conv_kernel", "mamba_d_conv", false},
    {"granitehybrid", "ssm.group_count", "mamba_n_groups", false},
    {"granitehybrid", "ssm.state_size", "mamba_d_state", false},
    {"granitehybrid", "ssm.time_step_rank", "mamba_n_heads", false},
    {"llama4", "interleave_moe_layer_step", "interleave_moe_layer_step", false},
    {"dots1", "expert_weights_scale", "routed_scaling_factor", false},
    {"dots1", "expert_shared_count", "n_shared_experts", true},
    {"dots1", "leading_dense_block_count", "first_k_dense_replace", true},
    {"glm4moe", "expert_weights_scale", "routed_scaling_factor", false},
    {"glm4moe", "expert_group_count", "n_group", false},
    {"glm4moe", "expert_group_used_count", "topk_group", false},
    {"glm4moe", "expert_shared_count", "n_shared_experts", true},
    {"glm4moe", "leading_dense_block_count", "first_k_dense_replace", true},
    {"glm4moe", "nextn_predict_layers", "num_nextn_predict_layers", true},
    {"glm4moe", "rope.dimension_count", NULL, false},         /* add_rope() */
    {"mistral4", "attention.temperature_scale", NULL, false}, /* gguf_latent.c */
    {"deepseek2", "nextn_predict_layers", "num_nextn_predict_layers", true},
    INDEX_KEYS("deepseek32"),
    INDEX_KEYS("glm-dsa"),
    {"ernie4_5-moe", "expert_shared_count", "moe_num_shared_experts", true},
    {"ernie4_5-moe", "leading_dense_block_count", "moe_layer_start_index", true},
    {"ernie4_5-moe", "interleave_moe_layer_step", "moe_layer_interval", false},
    {"minimax-m2", "rope.dimension_count", NULL, false},
    {"bailingmoe2", "expert_weights_scale", "routed_scaling_factor", false},
    {"bailingmoe2", "expert_group_count", "n_group", false},
    {"bailingmoe2", "expert_group_used_count", "topk_group", false},
    {"bailingmoe2", "expert_shared_count", "n_shared_experts", true},
    {"bailingmoe2", "leading_dense_block_count", "first_k_dense_replace", true},
    {"bailingmoe2", "nextn_predict_layers", "num_nextn_predict_layers", true},
    {"bailingmoe2", "rope.dimension_count", NULL, false}, /* add_rope() */
    {"afmoe", "expert_weights_scale", "routed_scaling_factor", false},
    {"afmoe", "expert_shared_count", "num_shared_experts", true},
    {"afmoe", "leading_dense_block_count", "first_k_dense_replace", true},
    {"afmoe", "attention.sliding_window_pattern", "sliding_window_pattern", false},
    {"hunyuan-moe", "expert_shared_count", "num_shared_expert", false},
    {"phimoe", "rope.scaling.attn_factor", NULL, false}, /* add_long_rope() */
    {"gemma4", "embedding_length_per_layer_input", "hidden_size_per_layer_input", false},
    {"gemma4", "attention.shared_kv_layers", "num_kv_shared_layers", false},
    {"gemma4", "final_logit_softcapping", "final_logit_softcapping", false},
    {"gemma4", "attention.head_count_kv", NULL, false}, /* gguf_heads.c */
    {"gemma4", "attention.value_length", NULL, false},
    {"gemma4", "rope.dimension_count", NULL, false},
    {"lfm2moe", "attention.head_count_kv", NULL, false}, /* add_linear_layers() */
    {"lfm2moe", "attention.layer_norm_rms_epsilon", "norm_eps", false},
    {"lfm2moe", "expert_weights_scale", "routed_scaling_factor", false},
    {"lfm2moe", "leading_dense_block_count", "first_k_dense_replace", true},
    {"lfm2moe", "shortconv.l_cache", "conv_L_cache", false},
    {"kimi-linear", "attention.head_count_kv", NULL, false}, /* add_linear_layers() */
    {"kimi-linear", "ssm.conv_kernel", "linear_conv_kernel_dim", false},
    {"kimi-linear", "kda.head_dim", "linear_key_head_dim", false},
    NEMOTRON_KEYS("nemotron_h"),
    NEMOTRON_KEYS("nemotron_h_moe"),
    DELTA_KEYS("qwen3next"),
    DELTA_KEYS("qwen35moe"),
    {"qwen35moe", "nextn_predict_layers", "num_nextn_predict_layers", true},
    {"step35", "attention.head_count", NULL, false}, /* step.c */
    {"step35", "attention.head_count_kv", NULL, false},
    {"step35", "rope.dimension_count", NULL, false},
    {"step35", "expert_shared_feed_forward_length", "share_expert_dim", false},
    {"step35", "expert_weights_scale", "routed_scaling_factor", false},
    {"step35", "leading_dense_block_count", "first_k_dense_replace", true},
    {"step35", "moe_every_n_layers", "moe_every_n_layer", false},
    {"step35", "nextn_predict_layers", "num_nextn_predict_layers", true},
};

static bool is_family_key(const char *arch, const char *key)
{
    for (size_t i = 0; i < XD_ARRAY_LEN(family_keys); i++)
        if (!strcmp(family_keys[i].arch, arch) && !strcmp(family_keys[i].gguf, key))
            return true;
    return false;
}

static xd_status add_family_keys(const model *m, const char *arch, json_t *config, xd_err *err)
{
    const gguf *g = m->ggufs[0];
    char key[96];
    double v;
    for (size_t i = 0; i < XD_ARRAY_LEN(family_keys); i++) {
        if (strcmp(family_keys[i].arch, arch) || !family_keys[i].hf)
            continue;
        /* JSON has no infinity; what is in range is for the readers of config.json. */
        xd_status st = gguf_real(g, arch_key(key, sizeof key, arch, family_keys[i].gguf), 0, -1e12, 1e12, &v, err);
        if (st)
            return st;
        if ((v != 0 || family_keys[i].counts) && (st = put(config, family_keys[i].hf, json_real(v), key, err)))
            return st;
    }
    /* Of what is text all have the same position. */
    if (gguf_has(g, arch_key(key, sizeof key, arch, "rope.dimension_sections")) && strcmp(arch, "qwen3vlmoe") &&
        strcmp(arch, "qwen35moe"))
        return xd_fail(err, XD_UNSUPPORTED, 0, "%s: '%s', positions of several dimensions, is not known", gguf_path(g),
                       key);
    /* These are among the layers. */
    const json_int_t nextn = (json_int_t)json_number_value(json_object_get(config, "num_nextn_predict_layers")),
                     layers = json_integer_value(json_object_get(config, "num_hidden_layers"));
    if (nextn > 0 && nextn < layers)
        json_object_set_new(config, "num_hidden_layers", json_integer(layers - nextn));
    json_object_set_new(config, "use_qk_norm", json_boolean(model_gguf_find(m, "blk.0.attn_q_norm.weight") != NULL));
    return XD_OK;
}

/* The size of all value heads is told, and which layers are linear otherwise than by an interval in a list that no converter has written so
 * far. */
static xd_status add_delta(const gguf *g, const char *arch, json_t *config, xd_err *err)
{
    char key[96];
    int64_t inner;
    const double heads = json_number_value(json_object_get(config, "linear_num_value_heads"));
    xd_status st = gguf_int(g, arch_key(key, sizeof key, arch, "ssm.inner_size"), 0, 1, UINT32_MAX, &inner, err);
    if (st)
        return st;
    if (heads < 1 || inner < 1 || fmod((double)inner, heads) != 0)
        return xd_fail(err, XD_BAD_MODEL, 0,
                       "%s: '%s' = %lld must be a multiple of ssm.time_step_rank = %g, the number of value heads",
                       gguf_path(g), key, (long long)inner, heads);
    if ((st = put(config, "linear_value_head_dim", json_real((double)inner / heads), key, err)))
        return st;
    if (gguf_has(g, arch_key(key, sizeof key, arch, "attention.recurrent_layers")))
        return xd_fail(err, XD_UNSUPPORTED, 0, "%s: '%s', a list of the linear layers, is not known", gguf_path(g),
                       key);
    return XD_OK;
}

/* Layers without heads of K and V are linear ones, which config.json calls `name`; or, in a family whose layers have one part each and where a
 * list says how large their FFNs are, FFNs. */
static xd_status add_linear_layers(const model *m, const char *arch, const char *name, bool apart, json_t *config,
                                   xd_err *err)
{
    const gguf *g = m->ggufs[0];
    const json_int_t n_layers = json_integer_value(json_object_get(config, "num_hidden_layers"));
    char key[96], router[64];
    const int32_t *heads, *sizes = NULL;
    json_int_t kv_heads = 0, size = 0;
    if (apart && (json_int_t)gguf_i32s(g, arch_key(key, sizeof key, arch, "feed_forward_length"), &sizes) != n_layers)
        return xd_fail(err, XD_BAD_MODEL, 0, "%s: '%s' must list %lld layers", gguf_path(g), key, (long long)n_layers);
    if ((json_int_t)gguf_i32s(g, arch_key(key, sizeof key, arch, "attention.head_count_kv"), &heads) != n_layers)
        return xd_fail(err, XD_BAD_MODEL, 0, "%s: '%s' must list %lld layers", gguf_path(g), key, (long long)n_layers);
    json_t *types = json_array();
    if (json_object_set_new(config, "layer_types", types))
        return xd_fail(err, XD_NOMEM, 0, "layers of '%s'", gguf_path(g));
    for (json_int_t l = 0; l < n_layers; l++) {
        if (heads[l] && kv_heads && heads[l] != kv_heads)
            return xd_fail(err, XD_UNSUPPORTED, 0, "%s: '%s' has layers of %lld and of %d heads", gguf_path(g), key,
                           (long long)kv_heads, heads[l]);
        kv_heads = heads[l] ? heads[l] : kv_heads;
        snprintf(router, sizeof router, "blk.%lld.ffn_gate_inp.weight", (long long)l);
        const bool alone = sizes && sizes[l], moe = alone && model_gguf_find(m, router);
        if (alone && (heads[l] || (!moe && size && sizes[l] != size)))
            return xd_fail(err, XD_UNSUPPORTED, 0,
                           "%s: feed_forward_length has %d for layer %lld, which is not known where there is "
                           "attention, or another size in other layers",
                           gguf_path(g), sizes[l], (long long)l);
        size = alone && !moe ? sizes[l] : size;
        if (json_array_append_new(types, json_string(moe ? "moe" : alone ? "mlp" : heads[l] ? "full_attention" : name)))
            return xd_fail(err, XD_NOMEM, 0, "layers of '%s'", gguf_path(g));
    }
    if (size && json_object_set_new(config, "intermediate_size", json_integer(size)))
        return xd_fail(err, XD_NOMEM, 0, "layers of '%s'", gguf_path(g));
    return put(config, "num_key_value_heads", json_integer(kv_heads), key, err);
}

/* Its linear layers have as many heads as those with attention, of one size; the KV heads of these are not counted (gguf_latent.c). */
static xd_status add_kda(const model *m, const char *arch, json_t *config, xd_err *err)
{
    static const char *const heads[] = {"linear_num_key_heads", "linear_num_value_heads"};
    xd_status st = add_linear_layers(m, arch, "linear_attention", false, config, err);
    for (size_t i = 0; i < XD_ARRAY_LEN(heads) && !st; i++)
        if (json_object_set(config, heads[i], json_object_get(config, "num_attention_heads")))
            st = xd_fail(err, XD_NOMEM, 0, "configuration");
    if (!st && (json_object_set(config, "linear_value_head_dim", json_object_get(config, "linear_key_head_dim")) ||
                json_object_set_new(config, "num_key_value_heads", json_null())))
        st = xd_fail(err, XD_NOMEM, 0, "configuration");
    return st;
}

/* The sizes of heads follow from that of all, and whether any are rotated is told by what llama.cpp takes for it. */
static xd_status add_ssm(const gguf *g, const char *arch, bool apart, json_t *config, xd_err *err)
{
    char key[96];
    int64_t inner, rotated;
    const double heads = json_number_value(json_object_get(config, "mamba_n_heads")),
                 width = json_number_value(json_object_get(config, "hidden_size"));
    xd_status st;
    if ((st = gguf_int(g, arch_key(key, sizeof key, arch, "rope.scaling.finetuned"), 1, 0, 1, &rotated, err)) ||
        (st = put(config, "position_embedding_type", json_string(rotated ? "rope" : "nope"), key, err)) ||
        (st = gguf_int(g, arch_key(key, sizeof key, arch, "ssm.inner_size"), 0, 1, UINT32_MAX, &inner, err)))
        return st;
    if (apart && (heads < 1 || inner < 1 || fmod((double)inner, heads) != 0))
        return xd_fail(err, XD_BAD_MODEL, 0,
                       "%s: '%s' = %lld must be a multiple of ssm.time_step_rank = %g, the number of heads",
                       gguf_path(g), key, (long long)inner, heads);
    if (apart)
        return put(config, "mamba_d_head", json_real((double)inner / heads), key, err);
    if (heads < 1 || width < 1 || inner < 1 || fmod((double)inner, heads) != 0 || fmod((double)inner, width) != 0)
        return xd_fail(err, XD_BAD_MODEL, 0,
                       "%s: '%s' = %lld must be a multiple of ssm.time_step_rank = %g, the number of heads, and of "
                       "embedding_length = %g",
                       gguf_path(g), key, (long long)inner, heads, width);
    st = put(config, "mamba_expand", json_real((double)inner / width), key, err);
    return st ? st : put(config, "mamba_d_head", json_real((double)inner / heads), key, err);
}

static xd_status add_rope(const gguf *g, const char *arch, json_t *config, xd_err *err)
{
    char key[96];
    double theta, factor, original, fast, slow;
    xd_status st;
    if ((st = gguf_real(g, arch_key(key, sizeof key, arch, "rope.scaling.yarn_beta_fast"), 32, 0, 1e6, &fast, err)) ||
        (st = gguf_real(g, arch_key(key, sizeof key, arch, "rope.scaling.yarn_beta_slow"), 1, 0, 1e6, &slow, err)) ||
        (st = gguf_real(g, arch_key(key, sizeof key, arch, "rope.freq_base"), 10000, 1, 1e12, &theta, err)) ||
        (st = gguf_real(g, arch_key(key, sizeof key, arch, "rope.scaling.factor"), 1, 1e-3, 1e6, &factor, err)) ||
        (st = gguf_real(g, arch_key(key, sizeof key, arch, "rope.scaling.original_context_length"), 0, 0, 1e9,
                        &original, err)))
        return st;
    const char *type = gguf_string(g, arch_key(key, sizeof key, arch, "rope.scaling.type"));
    if (!type) /* llama.cpp's choice */
        type = "linear";
    if (!strcmp(type, "none"))
        type = "default";
    json_t *rope = json_pack("{s:s, s:f, s:f, s:f, s:f}", "rope_type", type, "rope_theta", theta, "factor", factor,
                             "beta_fast", fast, "beta_slow", slow);
    if (json_object_set_new(config, "rope_parameters", rope))
        return xd_fail(err, XD_NOMEM, 0, "rope parameters");
    arch_key(key, sizeof key, arch, "rope.scaling.original_context_length");
    if (original > 0 && (st = put(rope, "original_max_position_embeddings", json_real(original), key, err)))
        return st;
    const json_t *told = json_object_get(config, "head_dim");
    const double heads = json_number_value(json_object_get(config, "num_attention_heads")),
                 width = json_number_value(json_object_get(config, "hidden_size"));
    const double head_dim = told ? json_number_value(told) : heads > 0 ? floor(width / heads) : 0;
    double dims;
    st = gguf_real(g, arch_key(key, sizeof key, arch, "rope.dimension_count"), head_dim, 1, 1 << 20, &dims, err);
    if (st || head_dim <= 0 || dims == head_dim || !is_family_key(arch, "rope.dimension_count"))
        return st;
    char name[128];
    snprintf(name, sizeof name, "%s by the size of a head", key);
    return put(rope, "partial_rotary_factor", json_real(dims / head_dim), name, err);
}

/* A tensor of divisors, as a list under longrope's key. */
static xd_status add_factors(const model *m, const char *name, const char *key, json_t *rope, xd_err *err)
{
    const gguf_tensor *t = NULL;
    for (uint32_t i = 0; i < m->n_ggufs && !t; i++)
        t = gguf_tensor_take(m->ggufs[i], name);
    XD_CLEANUP(json_decrefp) json_t *list = json_array();
    if (!list)
        return xd_fail(err, XD_NOMEM, 0, "'%s'", name);
    if (t && (t->fmt != FMT_F32 || t->dims[0] > MODEL_MAX_ROT / 2 || t->dims[1] * t->dims[2] * t->dims[3] != 1))
        return xd_fail(err, XD_UNSUPPORTED, 0, "%s: tensor '%s' must be of F32, with at most %d numbers",
                       gguf_path(m->ggufs[0]), name, MODEL_MAX_ROT / 2);
    for (uint64_t i = 0; t && i < t->dims[0]; i++) {
        float by;
        memcpy(&by, (const char *)t->data + i * sizeof by, sizeof by);
        json_array_append_new(list, json_real((double)by)); /* what is no number becomes none, and is refused */
    }
    return put(rope, key, json_incref(list), name, err);
}

/* Rotation of long texts: divisors of the frequencies are tensors, the scale is one number for both. */
static xd_status add_long_rope(const model *m, const char *arch, json_t *config, xd_err *err)
{
    static const char short_name[] = "rope_factors_short.weight", long_name[] = "rope_factors_long.weight";
    const gguf *g = m->ggufs[0];
    json_t *rope = json_object_get(config, "rope_parameters");
    char key[96];
    double scale;
    xd_status st = gguf_real(g, arch_key(key, sizeof key, arch, "rope.scaling.attn_factor"), 1, 0, 1e3, &scale, err);
    if (st)
        return st;
    if (scale == 0)
        scale = 1;
    const bool factors = model_gguf_find(m, short_name) || model_gguf_find(m, long_name);
    if (!factors && scale != 1)
        return xd_fail(err, XD_UNSUPPORTED, 0, "%s: '%s' = %g without %s is not known for %s models", gguf_path(g), key,
                       scale, short_name, arch);
    if (!factors) /* a factor of 1, where the file says nothing */
        return json_number_value(json_object_get(rope, "factor")) == 1 &&
                       json_object_set_new(rope, "rope_type", json_string("default"))
                   ? xd_fail(err, XD_NOMEM, 0, "rope parameters")
                   : XD_OK;
    if ((st = put(rope, "short_mscale", json_real(scale), key, err)) ||
        (st = put(rope, "long_mscale", json_real(scale), key, err)) ||
        (st = add_factors(m, short_name, "short_factor", rope, err)) ||
        (st = add_factors(m, long_name, "long_factor", rope, err)))
        return st;
    return json_object_set_new(rope, "rope_type", json_string("longrope"))
               ? xd_fail(err, XD_NOMEM, 0, "rope parameters")
               : XD_OK;
}

static xd_status granite_type(const gguf *g, const char **ret, xd_err *err)
{
    int64_t shared;
    xd_status st = gguf_int(g, "granitemoe.expert_shared_feed_forward_length", 0, 0, UINT32_MAX, &shared, err);
    *ret = !st && shared ? "granitemoeshared" : "granitemoe";
    return st;
}

static xd_status find_family(const model *m, const char *arch, bool moe, bool window, const model_arch **ret,
                             xd_err *err)
{
    const gguf *g = m->ggufs[0];
    char known[400];
    size_t n = 0;
    for (size_t i = 0; i < XD_ARRAY_LEN(families); i++) {
        const char *type = families[i].model_type;
        xd_status st = XD_OK;
        if (strcmp(arch, families[i].gguf)) {
            if (n < sizeof known)
                n += (size_t)snprintf(known + n, sizeof known - n, "%s%s", i ? ", " : "", families[i].gguf);
            continue;
        }
        if (!strcmp(arch, "llama"))
            type = moe ? "mixtral" : window ? "mistral" : "llama";
        else if (!strcmp(arch, "granitemoe"))
            st = granite_type(g, &type, err);
        else if (!type)
            st = model_gguf_latent_type(m, &type, err);
        *ret = st ? NULL : model_arch_find(type);
        return st;
    }
    return xd_fail(err, XD_UNSUPPORTED, 0, "%s: architecture '%s' is not known; known in GGUF are %s", gguf_path(g),
                   arch, known);
}

/* Where K is V, a layer without a window has no matrix for V. */
static xd_status add_heads(const model *m, bool moe, json_t *config, xd_err *err)
{
    xd_status st = model_gguf_heads(m->ggufs[0], config, err);
    size_t l;
    json_t *type;
    char name[64] = "";
    if (st)
        return st;
    json_array_foreach (json_object_get(config, "layer_types"), l, type)
        if (!*name && !strcmp(json_string_value(type), "full_attention"))
            snprintf(name, sizeof name, "blk.%u.attn_v.weight", (unsigned)l);
    return json_object_set_new(config, "attention_k_eq_v", json_boolean(*name && !model_gguf_find(m, name))) ||
                   json_object_set_new(config, "enable_moe_block", json_boolean(moe))
               ? xd_fail(err, XD_NOMEM, 0, "configuration")
               : XD_OK;
}

/* Files do not tell of chunks, of queries that grow, and of layers that are not rotated: as with llama.cpp all have what the published models have,
 * the family's defaults. Norms of Q and K those with 128 experts alone do without. A window of 0 is another model's. */
static xd_status add_llama4(const gguf *g, json_t *config, xd_err *err)
{
    static const char window[] = "llama4.attention.sliding_window";
    const bool normed = json_integer_value(json_object_get(config, "num_local_experts")) != 128;
    if (gguf_has(g, window))
        return xd_fail(err, XD_UNSUPPORTED, 0, "%s: '%s' is not known for llama4, whose chunks files do not tell",
                       gguf_path(g), window);
    return json_object_set_new(config, "use_qk_norm", json_boolean(normed)) ? xd_fail(err, XD_NOMEM, 0, "configuration")
                                                                            : XD_OK;
}

static xd_status add_int_keys(const gguf *g, const char *arch, json_t *config, xd_err *err)
{
    for (size_t i = 0; i < XD_ARRAY_LEN(int_keys); i++) {
        char key[96];
        int64_t v;
        xd_status st = hf_call(config, int_keys[i].hf, arch_key(key, sizeof key, arch, int_keys[i].gguf), err);
        if (st) /* what is missing has a name, too */
            return st;
        if (!gguf_has(g, key) || is_family_key(arch, int_keys[i].gguf))
            continue;
        if ((st = gguf_int(g, key, 0, 0, UINT32_MAX, &v, err)) ||
            (st = put(config, int_keys[i].hf, json_integer(v), key, err)))
            return st;
    }
    return XD_OK;
}

xd_status model_gguf_config(model *m, const model_arch **ret_arch, json_t *config, xd_err *err)
{
    const gguf *g = m->ggufs[0];
    const char *arch = gguf_string(g, "general.architecture");
    if (!arch)
        return xd_fail(err, XD_BAD_MODEL, 0, "%s: no general.architecture", gguf_path(g));
    char key[96];
    double eps;
    xd_status st = add_int_keys(g, arch, config, err);
    if (st)
        return st;
    bool moe = json_integer_value(json_object_get(config, "num_local_experts")) > 0;
    if (!moe)
        json_object_del(config, "num_local_experts");
    bool window = json_integer_value(json_object_get(config, "sliding_window")) > 0;
    if (!window)
        json_object_del(config, "sliding_window");
    if ((st = find_family(m, arch, moe, window, ret_arch, err)))
        return st;
    if (window && (*ret_arch)->window != MODEL_WINDOW_ALL && (*ret_arch)->window != MODEL_WINDOW_EVEN &&
        (*ret_arch)->window != MODEL_WINDOW_PATTERN && !(*ret_arch)->full_heads && !(*ret_arch)->own_heads)
        return xd_fail(err, XD_UNSUPPORTED, 0,
                       "%s: a sliding window (%s.attention.sliding_window): its layers are not told", gguf_path(g),
                       arch);
    /* What config.json calls intermediate_size is the size of experts here. */
    json_t *dense_size = json_object_get(config, "intermediate_size");
    if (dense_size && (*ret_arch)->dense_size_key &&
        (st = put(config, (*ret_arch)->dense_size_key, json_incref(dense_size), hf_name(config, "intermediate_size"),
                  err)))
        return st;
    /* Mixtral's config.json has one key for what may be two here. */
    static const char own_size[] = "moe_intermediate_size";
    json_t *expert_size = json_object_get(config, own_size);
    if (expert_size && (*ret_arch)->experts[0] &&
        (st = put(config, (*ret_arch)->moe_size_key, json_incref(expert_size), hf_name(config, own_size), err)))
        return st;
    /* What llama.cpp does with Trinity's files, which do not say so. */
    if (!strcmp(arch, "afmoe") && (json_object_set_new(config, "mup_enabled", json_true()) ||
                                   json_object_set_new(config, "sliding_window_pattern", json_integer(4))))
        return xd_fail(err, XD_NOMEM, 0, "configuration");
    m->params.rope_interleaved =
        !strcmp(arch, "llama") || !strcmp(arch, "granitemoe") || !strcmp(arch, "granitehybrid");
    int64_t norm;
    /* Where the file does not say llama.cpp normalises the chosen weights, but for some families. */
    const bool norms =
        strcmp(arch, "qwen2moe") && strcmp(arch, "olmoe") && strcmp(arch, "glm4moe") && strcmp(arch, "dots1");
    if ((st = gguf_int(g, arch_key(key, sizeof key, arch, "expert_weights_norm"), norms, 0, 1, &norm, err)) ||
        (st = put(config, "norm_topk_prob", json_boolean(norm), key, err)) ||
        (st = add_family_keys(m, arch, config, err)) ||
        (st = gguf_real(g, arch_key(key, sizeof key, arch, "attention.layer_norm_rms_epsilon"), 1e-6, 0, 1, &eps,
                        err)) ||
        (st = put(config, "rms_norm_eps", json_real(eps), key, err)) || (st = add_rope(g, arch, config, err)))
        return st;
    /* Its frequencies are not rounded to whole dimensions, which a file has no word for. */
    if ((*ret_arch)->gpt_oss)
        json_object_set_new(json_object_get(config, "rope_parameters"), "truncate", json_false());
    if ((!strcmp(arch, "llama4") && (st = add_llama4(g, config, err))) ||
        ((*ret_arch)->rope == MODEL_ROPE_LONG && (st = add_long_rope(m, arch, config, err))) ||
        ((*ret_arch)->latent && (st = model_gguf_latent(m, config, err))) ||
        ((*ret_arch)->full_heads && (st = add_heads(m, moe, config, err))) ||
        ((*ret_arch)->own_heads && (st = model_gguf_step(g, config, err))) ||
        ((*ret_arch)->delta && (*ret_arch)->delta != MODEL_DELTA_KIMI && (st = add_delta(g, arch, config, err))) ||
        ((*ret_arch)->delta == MODEL_DELTA_KIMI && (st = add_kda(m, arch, config, err))) ||
        ((*ret_arch)->shortconv && (st = add_linear_layers(m, arch, "conv", false, config, err))) ||
        ((*ret_arch)->ssm && ((st = add_linear_layers(m, arch, "linear_attention", (*ret_arch)->apart, config, err)) ||
                              (st = add_ssm(g, arch, (*ret_arch)->apart, config, err)))))
        return st;
    const gguf_tensor *embed = model_gguf_find(m, "token_embd.weight");
    if (!embed)
        return xd_fail(err, XD_BAD_MODEL, 0, "%s: tensor 'token_embd.weight' is missing", gguf_path(g));
    return put(config, "vocab_size", json_integer((json_int_t)XD_MIN(embed->dims[1], (uint64_t)INT64_MAX)),
               "rows of token_embd.weight", err);
}

typedef struct known_key {
    const char *key;
    double usual, none;
} known_key;

/* Metadata that would change the result. A value that says "as usual" is fine. */
static xd_status check_list(const model *m, const known_key *keys, size_t n, xd_err *err)
{
    const gguf *g = m->ggufs[0];
    const char *arch = gguf_string(g, "general.architecture");
    char key[96];
    double v;
    for (size_t i = 0; i < n; i++) {
        if (is_family_key(arch, keys[i].key))
            continue;
        xd_status st =
            gguf_real(g, arch_key(key, sizeof key, arch, keys[i].key), keys[i].usual, -HUGE_VAL, HUGE_VAL, &v, err);
        if (st)
            return st;
        if (v != keys[i].usual && v != keys[i].none)
            return xd_fail(err, XD_UNSUPPORTED, 0, "%s: '%s' = %g is not known for %s models", gguf_path(g), key, v,
                           arch);
    }
    return XD_OK;
}

xd_status model_gguf_check_keys(const model *m, xd_err *err)
{
    const double head_dim = m->params.head_dim,
                 gating = m->params.router.scoring == KERN_SIGMOID || m->params.picks_scale_input ? 2 : 1;
    const known_key keys[] = {
        {"attention.causal", 1, 1},
        {"attention.clamp_kqv", 0, 0},
        {"attention.max_alibi_bias", 0, 0},
        {"attention.output_scale", 0, 1},
        {"attention.scale", 0, 0},
        {"attention.temperature_scale", 0, 0},
        {"attn_logit_softcapping", 0, 0},
        {"embedding_scale", 0, 1},
        {"final_logit_softcapping", 0, 0},
        {"interleave_moe_layer_step", 0, 1},
        {"logit_scale", 0, 1},
        {"nextn_predict_layers", 0, 0},
        {"residual_scale", 0, 1},
        {"rope.scale_linear", 0, 1},
        {"rope.scaling.alpha", 0, 1},
        {"rope.scaling.attn_factor", 0, 1},
        {"rope.scaling.yarn_attn_factor", 1, 1},
        {"rope.scaling.yarn_ext_factor", -1, 1},
        {"router_logit_softcapping", 0, 0},
        {"use_parallel_residual", 0, 0},
    };
    const known_key read_for_latent[] = {
        /* gguf_latent.c */
        {"attention.value_length", head_dim, head_dim},
        {"expert_gating_func", 0, gating},
        {"expert_group_count", 0, 1},
        {"expert_group_used_count", 0, 1},
        {"expert_shared_count", 0, 0},
        {"expert_weights_scale", 0, 1},
        {"leading_dense_block_count", 0, 0},
        {"rope.dimension_count", head_dim, head_dim},
        {"rope.scaling.yarn_log_multiplier", 0, 0},
    };
    xd_status st = check_list(m, keys, XD_ARRAY_LEN(keys), err);
    return st || m->params.latent.kv_rank ? st : check_list(m, read_for_latent, XD_ARRAY_LEN(read_for_latent), err);
}
