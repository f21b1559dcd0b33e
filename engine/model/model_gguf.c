/* model_gguf.c - a model from GGUF files: metadata become the hyper-parameters that config.json would give (so that one reader
 * serves both), tensors are taken where they lie. The vocabulary: gguf_words.c. Names: gguf-py/gguf/constants.py.
 *
 * llama.cpp's converter permutes the rows of Q and K of the `llama` family for its interleaved rotary order; such a model is read
 * as it is, with rope_interleaved set. */
#include <math.h>
#include <string.h>

#include "engine/model/gguf.h"
#include "engine/model/hf_config.h"
#include "engine/model/model_priv.h"

#define MAX_SPLITS 512

static xd_status open_split(model *m, const char *path, xd_err *err)
{
    gguf **grown = realloc(m->ggufs, (m->n_ggufs + 1) * sizeof *grown);
    if (!grown)
        return xd_fail(err, XD_NOMEM, 0, "list of files");
    m->ggufs = grown;
    xd_status st = gguf_open(path, &m->ggufs[m->n_ggufs], err);
    if (!st)
        m->n_ggufs++;
    return st;
}

/* NAME-00001-of-00003.gguf: the other parts lie beside it. */
static xd_status open_splits(model *m, const char *path, xd_err *err)
{
    int64_t count, number;
    xd_status st = open_split(m, path, err);
    if (st || (st = gguf_int(m->ggufs[0], "split.count", 1, 0, MAX_SPLITS, &count, err)) ||
        (st = gguf_int(m->ggufs[0], "split.no", 0, 0, MAX_SPLITS, &number, err)))
        return st;
    if (count <= 1)
        return XD_OK;
    char suffix[32], name[4200];
    snprintf(suffix, sizeof suffix, "-%05d-of-%05d.gguf", (int)number + 1, (int)count);
    size_t stem = strlen(path), tail = strlen(suffix);
    if (stem <= tail || strcmp(path + stem - tail, suffix))
        return xd_fail(err, XD_BAD_MODEL, 0, "'%s' is part %d of %d: its name must end in %s", path, (int)number + 1,
                       (int)count, suffix);
    if (number != 0)
        return xd_fail(err, XD_BAD_CONFIG, 0, "'%s' is not the first part: give ...-00001-of-%05d.gguf", path,
                       (int)count);
    for (int i = 1; i < count && !st; i++) {
        snprintf(name, sizeof name, "%.*s-%05d-of-%05d.gguf", (int)(stem - tail), path, i + 1, (int)count);
        st = open_split(m, name, err);
    }
    return st;
}

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
    {"deepseek2", NULL},
    {"dots1", "dots1"},
    {"ernie4_5-moe", "ernie4_5_moe"},
    {"gemma4", "gemma4_text"},
    {"glm4moe", "glm4_moe"},
    {"gpt-oss", "gpt_oss"},
    {"granitemoe", NULL},
    {"llama", NULL},
    {"minimax-m2", "minimax_m2"},
    {"mistral4", NULL},
    {"olmoe", "olmoe"},
    {"qwen2", "qwen2"},
    {"qwen2moe", "qwen2_moe"},
    {"qwen3", "qwen3"},
    {"qwen3moe", "qwen3_moe"},
    {"qwen3vlmoe", "qwen3_vl_moe"},
    {"qwen3next", "qwen3_next"},
    {"qwen35moe", "qwen3_5_moe_text"},
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

static const struct {
    const char *arch, *gguf, *hf;
    bool counts; /* a file that does not say means 0; else 0 says nothing */
} family_keys[] = {
    {"qwen2moe", "expert_shared_feed_forward_length", "shared_expert_intermediate_size", false},
    {"olmoe", "attention.clamp_kqv", "clip_qkv", false},
    {"granitemoe", "attention.scale", "attention_multiplier", false},
    {"granitemoe", "embedding_scale", "embedding_multiplier", false},
    {"granitemoe", "residual_scale", "residual_multiplier", false},
    {"granitemoe", "logit_scale", "logits_scaling", false},
    {"granitemoe", "expert_shared_feed_forward_length", "shared_intermediate_size", false},
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
    {"ernie4_5-moe", "expert_shared_count", "moe_num_shared_experts", true},
    {"ernie4_5-moe", "leading_dense_block_count", "moe_layer_start_index", true},
    {"ernie4_5-moe", "interleave_moe_layer_step", "moe_layer_interval", false},
    {"minimax-m2", "rope.dimension_count", NULL, false},
    {"gemma4", "embedding_length_per_layer_input", "hidden_size_per_layer_input", false},
    {"gemma4", "attention.shared_kv_layers", "num_kv_shared_layers", false},
    {"gemma4", "final_logit_softcapping", "final_logit_softcapping", false},
    {"gemma4", "attention.head_count_kv", NULL, false}, /* gguf_heads.c */
    {"gemma4", "attention.value_length", NULL, false},
    {"gemma4", "rope.dimension_count", NULL, false},
    DELTA_KEYS("qwen3next"),
    DELTA_KEYS("qwen35moe"),
    {"qwen35moe", "nextn_predict_layers", "num_nextn_predict_layers", true},
};

static bool is_family_key(const char *arch, const char *key)
{
    for (size_t i = 0; i < XD_ARRAY_LEN(family_keys); i++)
        if (!strcmp(family_keys[i].arch, arch) && !strcmp(family_keys[i].gguf, key))
            return true;
    return false;
}

static const gguf_tensor *find(const model *m, const char *name)
{
    const gguf_tensor *t = NULL;
    for (uint32_t i = 0; i < m->n_ggufs && !t; i++)
        t = gguf_tensor_find(m->ggufs[i], name);
    return t;
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
    json_object_set_new(config, "use_qk_norm", json_boolean(find(m, "blk.0.attn_q_norm.weight") != NULL));
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
    char known[320];
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
    return json_object_set_new(config, "attention_k_eq_v", json_boolean(*name && !find(m, name))) ||
                   json_object_set_new(config, "enable_moe_block", json_boolean(moe))
               ? xd_fail(err, XD_NOMEM, 0, "configuration")
               : XD_OK;
}

/* The config.json that this file would have had. */
static xd_status make_config(model *m, const model_arch **ret_arch, json_t *config, xd_err *err)
{
    const gguf *g = m->ggufs[0];
    const char *arch = gguf_string(g, "general.architecture");
    if (!arch)
        return xd_fail(err, XD_BAD_MODEL, 0, "%s: no general.architecture", gguf_path(g));
    char key[96];
    int64_t v;
    double eps;
    xd_status st;
    for (size_t i = 0; i < XD_ARRAY_LEN(int_keys); i++) {
        arch_key(key, sizeof key, arch, int_keys[i].gguf);
        if ((st = hf_call(config, int_keys[i].hf, key, err))) /* what is missing has a name, too */
            return st;
        if (!gguf_has(g, key) || is_family_key(arch, int_keys[i].gguf))
            continue;
        if ((st = gguf_int(g, key, 0, 0, UINT32_MAX, &v, err)) ||
            (st = put(config, int_keys[i].hf, json_integer(v), key, err)))
            return st;
    }
    bool moe = json_integer_value(json_object_get(config, "num_local_experts")) > 0;
    if (!moe)
        json_object_del(config, "num_local_experts");
    bool window = json_integer_value(json_object_get(config, "sliding_window")) > 0;
    if (!window)
        json_object_del(config, "sliding_window");
    if ((st = find_family(m, arch, moe, window, ret_arch, err)))
        return st;
    if (window && (*ret_arch)->window != MODEL_WINDOW_ALL && (*ret_arch)->window != MODEL_WINDOW_EVEN &&
        !(*ret_arch)->full_heads)
        return xd_fail(err, XD_UNSUPPORTED, 0,
                       "%s: a sliding window (%s.attention.sliding_window): its layers are not told", gguf_path(g),
                       arch);
    /* Mixtral's config.json has one key for what may be two here. */
    static const char own_size[] = "moe_intermediate_size";
    json_t *expert_size = json_object_get(config, own_size);
    if (expert_size && (*ret_arch)->experts[0] &&
        (st = put(config, (*ret_arch)->moe_size_key, json_incref(expert_size), hf_name(config, own_size), err)))
        return st;
    m->params.rope_interleaved = !strcmp(arch, "llama") || !strcmp(arch, "granitemoe");
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
    if (((*ret_arch)->latent && (st = model_gguf_latent(m, config, err))) ||
        ((*ret_arch)->full_heads && (st = add_heads(m, moe, config, err))) ||
        ((*ret_arch)->delta && (st = add_delta(g, arch, config, err))))
        return st;
    const gguf_tensor *embed = find(m, "token_embd.weight");
    if (!embed)
        return xd_fail(err, XD_BAD_MODEL, 0, "%s: tensor 'token_embd.weight' is missing", gguf_path(g));
    return put(config, "vocab_size", json_integer((json_int_t)XD_MIN(embed->dims[1], (uint64_t)INT64_MAX)),
               "rows of token_embd.weight", err);
}

/* Takes a tensor of `count` matrices [rows][cols]; ret[0..count) are the matrices, `stride` entries apart. */
static xd_status take(const model *m, const char *name, uint32_t count, uint32_t rows, uint32_t cols, bool optional,
                      model_tensor *ret, uint32_t stride, xd_err *err)
{
    const gguf_tensor *t = NULL;
    for (uint32_t i = 0; i < m->n_ggufs && !t; i++)
        t = gguf_tensor_take(m->ggufs[i], name);
    if (!t)
        return optional ? XD_OK
                        : xd_fail(err, XD_BAD_MODEL, 0, "%s: tensor '%s' is missing", gguf_path(m->ggufs[0]), name);
    char known[160];
    if (t->fmt == FMT_COUNT)
        return xd_fail(err, XD_UNSUPPORTED, 0, "%s: tensor '%s' has ggml type %u (%s); what can be read: %s",
                       gguf_path(m->ggufs[0]), name, t->ggml_type, gguf_type_name(t->ggml_type),
                       gguf_known_types(known, sizeof known));
    if (t->dims[0] != cols || t->dims[1] != rows || t->dims[2] != count || t->dims[3] != 1)
        return xd_fail(err, XD_BAD_MODEL, 0, "%s: tensor '%s' is [%llu, %llu, %llu], the metadata need [%u, %u, %u]",
                       gguf_path(m->ggufs[0]), name, (unsigned long long)t->dims[2], (unsigned long long)t->dims[1],
                       (unsigned long long)t->dims[0], count, rows, cols);
    uint64_t bytes = t->bytes / count;
    for (uint32_t i = 0; i < count; i++)
        ret[(size_t)i * stride] = (model_tensor){
            .data = (const char *)t->data + i * bytes, .bytes = bytes, .rows = rows, .cols = cols, .fmt = t->fmt};
    return XD_OK;
}

/* Matrices [rows][cols] of all heads, as one with the rows of all. */
static xd_status take_heads(const model *m, const char *name, uint32_t rows, uint32_t cols, model_tensor *ret,
                            xd_err *err)
{
    const uint32_t n = m->params.n_heads;
    XD_CLEANUP(xd_freep) model_tensor *heads = calloc(n, sizeof *heads);
    if (!heads)
        return xd_fail(err, XD_NOMEM, 0, "heads of '%s'", name);
    xd_status st = take(m, name, n, rows, cols, true, heads, 1, err);
    *ret = heads[0];
    ret->bytes *= n;
    ret->rows *= n;
    return st;
}

/* K's and V's parts of the matrix behind the latent vector, together or apart. Some files have both: then the parts are taken. */
static xd_status take_latent(const model *m, model_layer *y, uint32_t l, xd_err *err)
{
    const model_params *p = &m->params;
    const uint32_t rank = p->latent.kv_rank;
    char joined[64], name[64];
    xd_status st;
    snprintf(name, sizeof name, "blk.%u.attn_k_b.weight", l);
    if ((st = take_heads(m, name, rank, p->latent.nope_dim, &y->latent.k_b, err)))
        return st;
    snprintf(name, sizeof name, "blk.%u.attn_v_b.weight", l);
    if ((st = take_heads(m, name, p->latent.v_dim, rank, &y->latent.v_b, err)))
        return st;
    const bool apart = y->latent.k_b.data && y->latent.v_b.data;
    snprintf(joined, sizeof joined, "blk.%u.attn_kv_b.weight", l);
    if ((st = take(m, joined, 1, p->n_heads * (p->latent.nope_dim + p->latent.v_dim), rank, apart, &y->latent.kv_b, 1,
                   err)))
        return st;
    if (apart)
        y->latent.kv_b = (model_tensor){0};
    else
        y->latent.k_b = y->latent.v_b = (model_tensor){0};
    return XD_OK;
}

/* One tensor has gate and up of all experts, gate first. */
static xd_status take_gate_up(const model *m, uint32_t l, const model_layer *y, model_tensor *experts, xd_err *err)
{
    char name[96];
    snprintf(name, sizeof name, "blk.%u.ffn_gate_up_exps.weight", l);
    xd_status st = take(m, name, y->n_experts, 2 * y->d_ff, m->params.d_model, false, experts, MODEL_MATRICES, err);
    for (uint32_t e = 0; !st && e < y->n_experts; e++) {
        model_tensor *t = &experts[e * MODEL_MATRICES];
        t[MODEL_GATE].rows = y->d_ff;
        t[MODEL_GATE].bytes /= 2;
        t[MODEL_UP] = t[MODEL_GATE];
        t[MODEL_UP].data = (const char *)t[MODEL_GATE].data + t[MODEL_GATE].bytes;
    }
    return st;
}

/* ffn_gate_exps.weight holds the matrices of all experts. Conversions older than 2024-04 have a tensor for each: ffn_gate.7.weight. */
static xd_status take_experts(const model *m, uint32_t l, const model_layer *y, const char *part, uint32_t rows,
                              uint32_t cols, model_tensor *ret, xd_err *err)
{
    char name[96];
    snprintf(name, sizeof name, "blk.%u.ffn_%s.0.weight", l, part);
    const bool apart = y->moe && find(m, name);
    if (!apart) {
        snprintf(name, sizeof name, "blk.%u.ffn_%s%s.weight", l, part, y->moe ? "_exps" : "");
        return take(m, name, y->n_experts, rows, cols, false, ret, MODEL_MATRICES, err);
    }
    for (uint32_t e = 0; e < y->n_experts; e++) {
        snprintf(name, sizeof name, "blk.%u.ffn_%s.%u.weight", l, part, e);
        xd_status st = take(m, name, 1, rows, cols, false, &ret[e * MODEL_MATRICES], 1, err);
        if (st)
            return st;
        if (ret[e * MODEL_MATRICES].fmt != ret->fmt)
            return xd_fail(err, XD_UNSUPPORTED, 0,
                           "%s: tensor '%s' is of another type than those of the layer's other experts: get a newer "
                           "conversion of the model",
                           gguf_path(m->ggufs[0]), name);
    }
    return XD_OK;
}

/* Of Qwen3-Next b and a lie by key heads in one matrix; in older files q, k, v and z do, too. */
static xd_status take_delta(const model *m, const model_arch *a, uint32_t l, model_layer *y, xd_err *err)
{
    const kern_delta_geom *g = &m->params.delta;
    const uint32_t d = m->params.d_model, nv = g->n_v_heads, v = nv * g->v_dim, channels = kern_delta_channels(g);
    char name[96];
    snprintf(name, sizeof name, "blk.%u.ssm_in.weight", l);
    const bool next = a->delta == MODEL_DELTA_GROUPED, grouped = next && find(m, name);
    const struct {
        const char *name;
        uint32_t rows, cols;
        model_tensor *to;
    } parts[] = {
        {grouped ? "ssm_in.weight" : NULL, channels + v, d, &y->delta.in[MODEL_DELTA_QKVZ]},
        {grouped ? NULL : "attn_qkv.weight", channels, d, &y->delta.in[MODEL_DELTA_QKV]},
        {grouped ? NULL : "attn_gate.weight", v, d, &y->delta.in[MODEL_DELTA_Z]},
        {next ? "ssm_ba.weight" : NULL, 2 * nv, d, &y->delta.in[MODEL_DELTA_BA]},
        {next ? NULL : "ssm_beta.weight", nv, d, &y->delta.in[MODEL_DELTA_B]},
        {next ? NULL : "ssm_alpha.weight", nv, d, &y->delta.in[MODEL_DELTA_A]},
        {"ssm_conv1d.weight", channels, g->conv, &y->delta.conv},
        {"ssm_a", 1, nv, &y->delta.neg_exp_a},
        {"ssm_dt.bias", 1, nv, &y->delta.dt_bias},
        {"ssm_norm.weight", 1, g->v_dim, &y->delta.norm},
        {"ssm_out.weight", d, v, &y->o},
    };
    xd_status st = XD_OK;
    for (size_t i = 0; i < XD_ARRAY_LEN(parts) && !st; i++) {
        snprintf(name, sizeof name, "blk.%u.%s", l, parts[i].name ? parts[i].name : "");
        if (parts[i].name)
            st = take(m, name, 1, parts[i].rows, parts[i].cols, false, parts[i].to, 1, err);
    }
    return st;
}

static xd_status take_layer(model *m, const model_arch *a, uint32_t l, xd_err *err)
{
    const model_params *p = &m->params;
    model_layer *y = &m->layers[l];
    model_tensor *experts = m->experts + (y->experts - m->experts);
    const bool latent = a->latent, low = p->latent.q_rank, linear = y->linear, plain = !latent && !linear;
    const uint32_t d = p->d_model, kv = y->n_kv_heads * y->head_dim, n = y->n_experts, q_rank = p->latent.q_rank;
    const uint32_t q = p->n_heads * (latent     ? p->latent.nope_dim + p->latent.rope_dim
                                     : p->gated ? 2 * y->head_dim
                                                : y->head_dim);
    const uint32_t o = p->n_heads * (latent ? p->latent.v_dim : y->head_dim);
    const bool qkv_bias = a->bias == MODEL_BIAS_QKV || a->gpt_oss;
    const bool post_norm = a->gpt_oss || a->delta || !strcmp(a->model_type, "glm4_moe");
    const uint32_t q_norm = p->wide_qk_norm ? q : y->head_dim, k_norm = p->wide_qk_norm ? kv : y->head_dim;
    const bool k_is_v = model_k_is_v(m, y), own = a->own_norms, of_experts = own && y->moe;
    /* Where router and experts have norms of their own, the shared one goes by the names of a dense FFN. */
    const uint32_t ff_shared = y->d_ff_shared;
    const struct {
        const char *name;
        uint32_t count, rows, cols;
        bool optional;
        model_tensor *to;
    } parts[] = {
        {"attn_norm.weight", 1, 1, d, false, &y->attn_norm},
        {low || linear ? NULL : "attn_q.weight", 1, q, d, false, &y->q},
        {plain ? "attn_k.weight" : NULL, 1, kv, d, false, &y->k},
        {plain && !k_is_v ? "attn_v.weight" : NULL, 1, kv, d, false, &y->v},
        {linear ? NULL : "attn_output.weight", 1, d, o, false, &y->o},
        {plain ? "attn_q.bias" : NULL, 1, 1, q, !qkv_bias, &y->q_bias},
        {plain ? "attn_k.bias" : NULL, 1, 1, kv, !qkv_bias, &y->k_bias},
        {plain ? "attn_v.bias" : NULL, 1, 1, kv, !qkv_bias, &y->v_bias},
        {low ? "attn_q_a.weight" : NULL, 1, q_rank, d, false, &y->latent.q_a},
        {low ? "attn_q_a_norm.weight" : NULL, 1, 1, q_rank, false, &y->latent.q_a_norm},
        {low ? "attn_q_b.weight" : NULL, 1, q, q_rank, false, &y->q},
        {latent ? "attn_kv_a_mqa.weight" : NULL, 1, p->head_dim, d, false, &y->latent.kv_a},
        {latent ? "attn_kv_a_norm.weight" : NULL, 1, 1, p->latent.kv_rank, false, &y->latent.kv_a_norm},
        {linear ? NULL : "attn_output.bias", 1, 1, d, !a->gpt_oss, &y->o_bias},
        {post_norm ? "post_attention_norm.weight" : "ffn_norm.weight", 1, 1, d, false, &y->ffn_norm},
        {a->gpt_oss ? "attn_sinks.weight" : NULL, 1, 1, p->n_heads, false, &y->sinks},
        {a->gpt_oss ? "ffn_gate_inp.bias" : NULL, 1, 1, n, false, &y->router_bias},
        {a->gpt_oss ? "ffn_gate_exps.bias" : NULL, 1, n, y->d_ff, false, &y->expert_bias[MODEL_GATE]},
        {a->gpt_oss ? "ffn_up_exps.bias" : NULL, 1, n, y->d_ff, false, &y->expert_bias[MODEL_UP]},
        {a->gpt_oss ? "ffn_down_exps.bias" : NULL, 1, n, d, false, &y->expert_bias[MODEL_DOWN]},
        {m->qk_norm && !linear ? "attn_q_norm.weight" : NULL, 1, 1, q_norm, false, &y->q_norm},
        {m->qk_norm && !linear ? "attn_k_norm.weight" : NULL, 1, 1, k_norm, false, &y->k_norm},
        {y->d_ff_shared && a->shared_gate ? "ffn_gate_inp_shexp.weight" : NULL, 1, 1, d, false, &y->shared_gate},
        {"ffn_gate_inp.weight", 1, n, d, !y->moe, &y->router},
        {a->choice_bias && y->moe ? "exp_probs_b.bias" : NULL, 1, 1, n, false, &y->choice_bias},
        {!ff_shared ? NULL
         : own      ? "ffn_gate.weight"
                    : "ffn_gate_shexp.weight",
         1, ff_shared, d, false, &y->shared[MODEL_GATE]},
        {!ff_shared ? NULL
         : own      ? "ffn_up.weight"
                    : "ffn_up_shexp.weight",
         1, ff_shared, d, false, &y->shared[MODEL_UP]},
        {!ff_shared ? NULL
         : own      ? "ffn_down.weight"
                    : "ffn_down_shexp.weight",
         1, d, ff_shared, false, &y->shared[MODEL_DOWN]},
        {own ? "post_attention_norm.weight" : NULL, 1, 1, d, false, &y->attn_post_norm},
        {own ? "post_ffw_norm.weight" : NULL, 1, 1, d, false, &y->ffn_post_norm},
        {own ? "layer_output_scale.weight" : NULL, 1, 1, 1, true, &y->out_scale},
        {of_experts ? "ffn_gate_inp.scale" : NULL, 1, 1, d, false, &y->router_norm},
        {of_experts ? "ffn_down_exps.scale" : NULL, 1, 1, n, false, &y->expert_scale},
        {of_experts ? "pre_ffw_norm_2.weight" : NULL, 1, 1, d, false, &y->expert_norm},
        {of_experts ? "post_ffw_norm_1.weight" : NULL, 1, 1, d, false, &y->shared_post_norm},
        {of_experts ? "post_ffw_norm_2.weight" : NULL, 1, 1, d, false, &y->expert_post_norm},
    };
    xd_status st;
    char name[96];
    for (size_t i = 0; i < XD_ARRAY_LEN(parts); i++) {
        if (!parts[i].name)
            continue;
        snprintf(name, sizeof name, "blk.%u.%s", l, parts[i].name);
        if ((st = take(m, name, parts[i].count, parts[i].rows, parts[i].cols, parts[i].optional, parts[i].to,
                       MODEL_MATRICES, err)))
            return st;
    }
    if (k_is_v) {
        y->v = y->k;
        y->v_bias = y->k_bias;
    }
    snprintf(name, sizeof name, "blk.%u.ffn_gate_up_exps.weight", l);
    const bool joined = y->moe && find(m, name);
    if ((st = joined ? take_gate_up(m, l, y, experts, err)
                     : take_experts(m, l, y, "gate", y->d_ff, d, &experts[MODEL_GATE], err)) ||
        (!joined && (st = take_experts(m, l, y, "up", y->d_ff, d, &experts[MODEL_UP], err))) ||
        (st = take_experts(m, l, y, "down", d, y->d_ff, &experts[MODEL_DOWN], err)))
        return st;
    for (int k = 0; k < MODEL_MATRICES; k++)
        y->expert_fmt[k] = experts[k].fmt;
    return latent ? take_latent(m, y, l, err) : linear ? take_delta(m, a, l, y, err) : XD_OK;
}

/* The converters do not agree on how the size of shared experts is told: the tensors have it. */
static xd_status size_shared(model *m, xd_err *err)
{
    model_params *p = &m->params;
    char name[64];
    p->d_ff_shared_max = 0;
    for (uint32_t l = 0; l < p->n_layers; l++) {
        model_layer *y = &m->layers[l];
        snprintf(name, sizeof name, "blk.%u.ffn_gate_shexp.weight", l);
        const gguf_tensor *t = y->d_ff_shared ? find(m, name) : NULL;
        if (t && (t->dims[1] < 1 || t->dims[1] > 1u << 20))
            return xd_fail(err, XD_BAD_MODEL, 0, "%s: tensor '%s' has %llu rows", gguf_path(m->ggufs[0]), name,
                           (unsigned long long)t->dims[1]);
        if (t)
            y->d_ff_shared = (uint32_t)t->dims[1];
        p->d_ff_shared_max = XD_MAX(p->d_ff_shared_max, y->d_ff_shared);
    }
    return XD_OK;
}

/* Llama 3's frequency bands come as a tensor of divisors, and so does what Gemma's layers without a window do not rotate. */
static xd_status divide_frequencies(model *m, const model_arch *a, xd_err *err)
{
    model_rope *rope = &m->params.ropes[0];
    model_tensor t = {0};
    xd_status st = take(m, "rope_freqs.weight", 1, 1, rope->rot_dim / 2, !a->full_heads, &t, 1, err);
    if (st || !t.data)
        return st;
    if (t.fmt != FMT_F32)
        return xd_fail(err, XD_UNSUPPORTED, 0, "%s: tensor 'rope_freqs.weight' is not F32", gguf_path(m->ggufs[0]));
    for (uint32_t i = 0; i < rope->rot_dim / 2; i++) {
        float by;
        memcpy(&by, (const char *)t.data + i * sizeof by, sizeof by);
        if (!(by > 0))
            return xd_fail(err, XD_BAD_MODEL, 0, "%s: tensor 'rope_freqs.weight' divides by %g", gguf_path(m->ggufs[0]),
                           (double)by);
        rope->inv_freq[i] /= by;
    }
    return XD_OK;
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

static xd_status check_keys(const model *m, xd_err *err)
{
    const double head_dim = m->params.head_dim, gating = m->params.router.scoring == KERN_SIGMOID ? 2 : 1;
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

static xd_status take_all(model *m, const model_arch *a, xd_err *err)
{
    const model_params *p = &m->params;
    xd_status st;
    if ((st = take(m, "token_embd.weight", 1, p->vocab, p->d_model, false, &m->embed, 1, err)) ||
        (st = take(m, "output_norm.weight", 1, 1, p->d_model, false, &m->final_norm, 1, err)) ||
        (st = take(m, "output.weight", 1, p->vocab, p->d_model, true, &m->lm_head, 1, err)))
        return st;
    if (!m->lm_head.data)
        m->lm_head = m->embed;
    for (uint32_t l = 0; l < p->n_layers; l++)
        if ((st = take_layer(m, a, l, err)))
            return st;
    char beyond[64];
    snprintf(beyond, sizeof beyond, "blk.%u.attn_norm.weight", p->n_layers + p->n_nextn);
    for (uint32_t i = 0; i < m->n_ggufs; i++)
        if (gguf_tensor_find(m->ggufs[i], beyond))
            return xd_fail(err, XD_BAD_MODEL, 0, "%s has layer %u (from 0), its metadata say block_count = %u",
                           gguf_path(m->ggufs[i]), p->n_layers + p->n_nextn, p->n_layers + p->n_nextn);
    if ((st = divide_frequencies(m, a, err)))
        return st;
    for (uint32_t i = 0; i < m->n_ggufs; i++)
        for (uint32_t k = 0; k < gguf_tensor_count(m->ggufs[i]); k++) {
            const gguf_tensor *t = gguf_tensor_at(m->ggufs[i], k);
            unsigned layer;
            const bool nextn =
                sscanf(t->name, "blk.%u.", &layer) == 1 && layer >= p->n_layers && layer - p->n_layers < p->n_nextn;
            if (!t->taken && !nextn)
                return xd_fail(err, XD_UNSUPPORTED, 0, "%s: tensor '%s' has no place in a %s model",
                               gguf_path(m->ggufs[i]), t->name, a->model_type);
        }
    return XD_OK;
}

xd_status model_open_gguf(model *m, const char *path, xd_err *err)
{
    XD_CLEANUP(json_decrefp) json_t *config = json_object();
    const model_arch *a = NULL;
    xd_status st;
    if (!config)
        return xd_fail(err, XD_NOMEM, 0, "configuration of '%s'", path);
    if ((st = open_splits(m, path, err)) || (st = make_config(m, &a, config, err)) ||
        (st = model_read_params(m, a, config, path, err)) || (st = check_keys(m, err)) || (st = size_shared(m, err)) ||
        (st = take_all(m, a, err)) || (st = model_gguf_words(m, a, err)))
        return st;
    /* llama.cpp's converter lets the value heads go through the key heads in turn. */
    m->params.delta.tiled = a->delta == MODEL_DELTA_FLAT;
    m->files = calloc(m->n_ggufs, sizeof *m->files);
    if (!m->files)
        return xd_fail(err, XD_NOMEM, 0, "list of files");
    m->n_files = m->n_ggufs;
    for (uint32_t i = 0; i < m->n_ggufs; i++) {
        m->files[i] = model_file_of(gguf_path(m->ggufs[i]), gguf_map(m->ggufs[i]));
    }
    return XD_OK;
}
