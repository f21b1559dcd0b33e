/* gguf_latent.c - `deepseek2`, `deepseek32`, `glm-dsa` and `mistral4` in GGUF: their metadata as DeepSeek's config.json would say them. Names and meanings as llama.cpp's converter
 * (conversion/deepseek.py) writes them.
 *
 * Newer files describe the one KV head that latent attention keeps, and the expanded heads in keys ending in _mla; older ones only
 * the latter, in the plain keys. V2 and V3 share the name: the gating function tells them apart, and where that is not told (GLM-4.7-Flash, which
 * has V3's) the bias on the router's choice, which only V3 has. A dense model is Youtu-LLM. Of YaRN's two magnitudes only
 * mscale_all_dim is told; published models have both alike. Older files do not tell the groups of experts either: then there are none,
 * as in llama.cpp. */
#include <string.h>

#include "engine/model/hf_config.h"
#include "engine/model/model_priv.h"

enum { GATING_SOFTMAX = 1, GATING_SIGMOID = 2 };

static const char *key_of(const gguf *g, char *out, size_t cap, const char *key)
{
    snprintf(out, cap, "%s.%s", gguf_string(g, "general.architecture"), key);
    return out;
}

static bool has(const gguf *g, const char *key)
{
    char full[96];
    return gguf_has(g, key_of(g, full, sizeof full, key));
}

static xd_status get(const gguf *g, const char *key, int64_t fallback, int64_t max, int64_t *ret, xd_err *err)
{
    char full[96];
    return gguf_int(g, key_of(g, full, sizeof full, key), fallback, 0, max, ret, err);
}

static bool has_choice_bias(const model *m)
{
    for (uint32_t i = 0; i < m->n_ggufs; i++)
        for (uint32_t k = 0; k < gguf_tensor_count(m->ggufs[i]); k++)
            if (strstr(gguf_tensor_at(m->ggufs[i], k)->name, ".exp_probs_b."))
                return true;
    return false;
}

/* Of architectures that are one family each, all with V3's router; NULL: of another. */
static const char *type_of_its_own(const gguf *g)
{
    static const char *const types[][2] = {
        {"kimi-linear", "kimi_linear"}, {"deepseek32", "deepseek_v32"}, {"glm-dsa", "glm_moe_dsa"}};
    for (size_t i = 0; i < XD_ARRAY_LEN(types); i++)
        if (!strcmp(gguf_string(g, "general.architecture"), types[i][0]))
            return types[i][1];
    return NULL;
}

xd_status model_gguf_latent_type(const model *m, const char **ret, xd_err *err)
{
    const gguf *g = m->ggufs[0];
    int64_t gating, experts;
    char name[96];
    xd_status st;
    if ((st = get(g, "expert_gating_func", 0, INT32_MAX, &gating, err)) ||
        (st = get(g, "expert_count", 0, UINT32_MAX, &experts, err)))
        return st;
    const bool mistral = !strcmp(gguf_string(g, "general.architecture"), "mistral4");
    const char *own = type_of_its_own(g);
    if (own && !gating)
        gating = GATING_SIGMOID;
    if (gating > (mistral ? GATING_SOFTMAX : GATING_SIGMOID))
        return xd_fail(err, XD_UNSUPPORTED, 0, "%s: '%s' = %d; 1 (softmax)%s known", gguf_path(g),
                       key_of(g, name, sizeof name, "expert_gating_func"), (int)gating,
                       mistral ? " is" : " and 2 (sigmoid) are");
    if (mistral || (!experts && !own)) {
        *ret = mistral ? "mistral4" : "youtu";
        return XD_OK;
    }
    if (!gating)
        gating = has_choice_bias(m) ? GATING_SIGMOID : GATING_SOFTMAX;
    *ret = own ? own : gating == GATING_SIGMOID ? "deepseek_v3" : "deepseek_v2";
    if (own && gating != GATING_SIGMOID)
        return xd_fail(err, XD_UNSUPPORTED, 0, "%s: '%s' = %d; 2 (sigmoid) is known", gguf_path(g),
                       key_of(g, name, sizeof name, "expert_gating_func"), (int)gating);
    return XD_OK;
}

static xd_status add_magnitudes(const gguf *g, json_t *config, xd_err *err)
{
    json_t *rope = json_object_get(config, "rope_parameters");
    char key[96];
    double log_multiplier;
    xd_status st =
        gguf_real(g, key_of(g, key, sizeof key, "rope.scaling.yarn_log_multiplier"), 0, 0, 100, &log_multiplier, err);
    if (st)
        return st;
    const char *type = json_string_value(json_object_get(rope, "rope_type"));
    if (type && !strcmp(type, "yarn") && !gguf_has(g, key))
        return xd_fail(err, XD_UNSUPPORTED, 0,
                       "%s: rope scaling type yarn without '%s': its attention factor is not told", gguf_path(g), key);
    if (log_multiplier > 0) {
        json_object_set_new(rope, "mscale", json_real(log_multiplier / 0.1));
        json_object_set_new(rope, "mscale_all_dim", json_real(log_multiplier / 0.1));
    }
    return XD_OK;
}

/* Queries of Mistral Small 4 grow from the original context on. Not all converters tell how much, which makes no difference: contexts end there. */
static xd_status add_growth(const gguf *g, json_t *config, xd_err *err)
{
    json_t *rope = json_object_get(config, "rope_parameters");
    char key[96];
    double beta, from;
    const double original = json_number_value(json_object_get(rope, "original_max_position_embeddings"));
    xd_status st;
    if ((st = gguf_real(g, key_of(g, key, sizeof key, "attention.temperature_scale"), 0.1, 0, 1e3, &beta, err)) ||
        (st = gguf_real(g, key_of(g, key, sizeof key, "attention.temperature_length"), original, 0, 1e9, &from, err)))
        return st;
    if (original < 1)
        return xd_fail(err, XD_BAD_MODEL, 0, "%s: '%s' is needed", gguf_path(g),
                       key_of(g, key, sizeof key, "rope.scaling.original_context_length"));
    if (from != original)
        return xd_fail(err, XD_UNSUPPORTED, 0,
                       "%s: '%s' = %g is known only as rope.scaling.original_context_length (%g)", gguf_path(g), key,
                       from, original);
    json_object_set_new(rope, "llama_4_scaling_beta", json_real(beta));
    return XD_OK;
}

/* Which layers of GLM-5 have an indexer: files tell since GLM-5.2, whose own pattern stands for older ones of its context; before, all had. */
static xd_status add_indexer_types(const gguf *g, json_t *config, xd_err *err)
{
    static const char list[] = "attention.indexer.types";
    const json_int_t n_layers = json_integer_value(json_object_get(config, "num_hidden_layers"));
    const bool newer = json_integer_value(json_object_get(config, "max_position_embeddings")) >= 1048576;
    const int32_t *numbers;
    const uint8_t *bools;
    char key[96];
    const uint64_t n_numbers = gguf_i32s(g, key_of(g, key, sizeof key, list), &numbers),
                   n = n_numbers ? n_numbers : gguf_bools(g, key, &bools);
    if (!gguf_has(g, key))
        return json_object_set_new(config, "index_topk_freq", json_integer(newer ? 4 : 1)) ||
                       json_object_set_new(config, "index_skip_topk_offset", json_integer(3))
                   ? xd_fail(err, XD_NOMEM, 0, "configuration of '%s'", gguf_path(g))
                   : XD_OK;
    if (n_layers < 1 || n < (uint64_t)n_layers) /* there may be those of layers that only guess further tokens */
        return xd_fail(err, XD_BAD_MODEL, 0, "%s: '%s' must list, as I32 or BOOL, all of %d layers", gguf_path(g), key,
                       (int)n_layers);
    json_t *types = json_array();
    bool ok = types;
    for (json_int_t l = 0; ok && l < n_layers; l++)
        ok = !json_array_append_new(types,
                                    json_string((n_numbers ? numbers[l] : (int32_t)bools[l]) ? "full" : "shared"));
    return !json_object_set_new(config, "indexer_types", types) && ok
               ? hf_call(config, "indexer_types", key, err)
               : xd_fail(err, XD_NOMEM, 0, "configuration of '%s'", gguf_path(g));
}

xd_status model_gguf_latent(const model *m, json_t *config, xd_err *err)
{
    const gguf *g = m->ggufs[0];
    int64_t rank, q_rank, rope, key, value, dense, shared, groups, top_groups, norm;
    char name[96];
    double scale;
    const char *type = "";
    bool whole = has(g, "attention.key_length_mla");
    xd_status st = model_gguf_latent_type(m, &type, err);
    if (st)
        return st;
    const bool softmax = !strcmp(type, "deepseek_v2"); /* which has groups in one of its methods only */
    const bool kimi = !strcmp(type, "kimi_linear");    /* whose weights llama.cpp normalises without being told */
    if ((st = get(g, "attention.kv_lora_rank", 0, UINT16_MAX, &rank, err)) ||
        (st = get(g, "attention.q_lora_rank", 0, UINT16_MAX, &q_rank, err)) ||
        (st = get(g, "rope.dimension_count", 0, UINT16_MAX, &rope, err)) ||
        (st = get(g, whole ? "attention.key_length_mla" : "attention.key_length", 0, UINT16_MAX, &key, err)) ||
        (st = get(g, whole ? "attention.value_length_mla" : "attention.value_length", 0, UINT16_MAX, &value, err)) ||
        (st = get(g, "leading_dense_block_count", 0, MODEL_MAX_LAYERS, &dense, err)) ||
        (st = get(g, "expert_shared_count", 0, 1024, &shared, err)) ||
        (st = get(g, "expert_group_count", 1, 1024, &groups, err)) ||
        (st = get(g, "expert_group_used_count", 1, 1024, &top_groups, err)) ||
        (st = get(g, "expert_weights_norm", kimi, 1, &norm, err)) ||
        (st = gguf_real(g, key_of(g, name, sizeof name, "expert_weights_scale"), 1, 0, 1e6, &scale, err)) ||
        (st = add_magnitudes(g, config, err)))
        return st;
    if (!rank || rope < 2 || key <= rope || !value)
        return xd_fail(
            err, XD_BAD_MODEL, 0,
            "%s: latent attention needs attention.kv_lora_rank, rope.dimension_count, and a key length (%d) beyond the "
            "latter (%d)",
            gguf_path(g), (int)key, (int)rope);
    if ((!strcmp(type, "mistral4") && (st = add_growth(g, config, err))) ||
        (!strcmp(type, "glm_moe_dsa") && (st = add_indexer_types(g, config, err))))
        return st;
    const struct {
        const char *hf, *gguf; /* NULL: the file has no such key */
        json_t *value;
    } keys[] = {
        {"kv_lora_rank", "attention.kv_lora_rank", json_integer(rank)},
        {"q_lora_rank", "attention.q_lora_rank", q_rank ? json_integer(q_rank) : json_null()},
        {"qk_rope_head_dim", "rope.dimension_count", json_integer(rope)},
        {"qk_nope_head_dim",
         whole ? "attention.key_length_mla less rope.dimension_count"
               : "attention.key_length less rope.dimension_count",
         json_integer(key - rope)},
        {"v_head_dim", whole ? "attention.value_length_mla" : "attention.value_length", json_integer(value)},
        {"first_k_dense_replace", "leading_dense_block_count", json_integer(dense)},
        {"n_shared_experts", "expert_shared_count", json_integer(shared)},
        {"n_group", "expert_group_count", json_integer(groups > 1 ? groups : 1)},
        {"topk_group", "expert_group_used_count", json_integer(groups > 1 ? top_groups : 1)},
        {"topk_method", NULL, softmax ? json_string(groups > 1 ? "group_limited_greedy" : "greedy") : json_null()},
        {"norm_topk_prob", "expert_weights_norm", json_boolean(norm)},
        {"routed_scaling_factor", "expert_weights_scale", json_real(scale > 0 ? scale : 1)},
        {"num_key_value_heads", NULL, json_null()}, /* it counts the heads kept */
        {"head_dim", NULL, json_null()},
    };
    bool ok = true;
    for (size_t i = 0; i < XD_ARRAY_LEN(keys); i++) {
        ok = !json_object_set_new(config, keys[i].hf, keys[i].value) && ok;
        if (keys[i].gguf && !st)
            st = hf_call(config, keys[i].hf, key_of(g, name, sizeof name, keys[i].gguf), err);
    }
    return ok ? st : xd_fail(err, XD_NOMEM, 0, "configuration of '%s'", gguf_path(g));
}
