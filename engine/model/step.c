/* step.c - Step-3.5, Step-3.7 and Laguna: what their configurations list by layers, or say of the kinds of layers, under the keys that all are read
 * by; the same of GGUF files of Step-3.5; and what the reader of hyper-parameters then finds that no other family says.
 *
 * Sources: transformers' configuration_step3p7.py, configuration_laguna.py and modeling_*.py; names and meanings in GGUF as llama.cpp's converter
 * (conversion/step3.py) writes them. */
#include <math.h>
#include <string.h>

#include "engine/model/hf_config.h"
#include "engine/model/model_priv.h"

static const char heads_key[] = "num_attention_heads_per_layer", types_key[] = "layer_types",
                  mlp_key[] = "mlp_layer_types";
/* Of the FFN, and of the shared expert: of a dense layer, too. */
static const char *const limit_keys[] = {"swiglu_limits", "swiglu_limits_shared"};
static const char *const kinds[] = {"full_attention", "sliding_attention"};

static bool slides(const json_t *config, size_t layer)
{
    const char *type = json_string_value(json_array_get(json_object_get(config, types_key), layer));
    return type && !strcmp(type, kinds[1]);
}

/* Lists go on with the layers that guess further tokens. */
static void cut_lists(json_t *config, size_t n_layers, size_t n_nextn)
{
    const char *const lists[] = {
        types_key, mlp_key, limit_keys[0], limit_keys[1], "rope_theta", "partial_rotary_factors", "use_rope_layers"};
    for (size_t i = 0; i < XD_ARRAY_LEN(lists); i++) {
        json_t *list = json_object_get(config, lists[i]);
        for (size_t k = json_array_size(list); k == n_layers + n_nextn && k > n_layers; k = n_layers)
            while (json_array_size(list) > n_layers)
                json_array_remove(list, json_array_size(list) - 1);
    }
}

/* Which layers have experts, as a text of numbers with commas, or as a list of numbers. */
static xd_status spread_moe_layers(json_t *config, const char *file, size_t n_layers, xd_err *err)
{
    static const char key[] = "moe_layers_enum";
    const json_t *told = json_object_get(config, key);
    if (!hf_has(config, key) || hf_has(config, mlp_key))
        return XD_OK;
    const char *text = json_string_value(told);
    if (!text && !json_is_array(told))
        return xd_fail(err, XD_BAD_MODEL, 0, "%s: '%s' must be a list of layers", file, key);
    json_t *types = json_array();
    if (json_object_set_new(config, mlp_key, types))
        return xd_fail(err, XD_NOMEM, 0, "configuration");
    for (size_t l = 0; l < n_layers; l++)
        json_array_append_new(types, json_string("dense"));
    for (size_t i = 0; text ? *text != '\0' : i < json_array_size(told); i++) {
        char *end = NULL;
        const json_t *item = json_array_get(told, i);
        const long long l = text ? strtoll(text, &end, 10) : json_integer_value(item);
        if (text ? end == text || (*end && *end != ',') : !json_is_integer(item))
            return xd_fail(err, XD_BAD_MODEL, 0, "%s: '%s' must hold numbers of layers", file, key);
        if (l >= 0 && (size_t)l < n_layers) /* others guess further tokens */
            json_array_set_new(types, (size_t)l, json_string("sparse"));
        text = !text ? NULL : *end ? end + 1 : end;
    }
    return json_array_size(types) == n_layers ? XD_OK : xd_fail(err, XD_NOMEM, 0, "configuration");
}

/* What attention_other_setting says of layers with a window, beside their number of heads, must be as in others. */
static xd_status check_other(const json_t *config, const char *file, const json_t *other, xd_err *err)
{
    static const struct {
        const char *key, *as;
    } same[] = {{"num_attention_groups", "num_key_value_heads"}, {"head_dim", "head_dim"}};
    const char *type = hf_string(other, "attention_type");
    if (other && !json_is_object(other))
        return xd_fail(err, XD_BAD_MODEL, 0, "%s: 'attention_other_setting' must be an object", file);
    if (type && strcmp(type, kinds[1]))
        return xd_fail(err, XD_UNSUPPORTED, 0, "%s: attention_other_setting is of '%s'; '%s' is known", file, type,
                       kinds[1]);
    for (size_t i = 0; i < XD_ARRAY_LEN(same); i++)
        if (hf_has(other, same[i].key) &&
            !json_equal(json_object_get(other, same[i].key), json_object_get(config, same[i].as)))
            return xd_fail(err, XD_UNSUPPORTED, 0,
                           "%s: attention_other_setting has another %s than other layers, which is not known", file,
                           same[i].key);
    return XD_OK;
}

static xd_status spread_heads(json_t *config, const char *file, size_t n_layers, xd_err *err)
{
    const json_t *usual = json_object_get(config, "num_attention_heads"),
                 *of = json_object_get(config, "per_layer_config"),
                 *other = hf_has(config, "attention_other_setting") ? json_object_get(config, "attention_other_setting")
                                                                    : NULL;
    const json_t *sliding = hf_has(config, "num_sliding_attention_heads")
                                ? json_object_get(config, "num_sliding_attention_heads")
                                : json_object_get(other, "num_attention_heads");
    const char *layer, *key;
    json_t *said, *value;
    xd_status st = check_other(config, file, other, err);
    if (st)
        return st;
    json_object_foreach ((json_t *)of, layer, said)
        json_object_foreach (said, key, value)
            if (strcmp(key, "num_attention_heads"))
                return xd_fail(err, XD_UNSUPPORTED, 0,
                               "%s: per_layer_config has '%s' for layer %s; num_attention_heads is known there", file,
                               key, layer);
    json_t *heads = json_array();
    if (json_object_set_new(config, heads_key, heads))
        return xd_fail(err, XD_NOMEM, 0, "configuration");
    for (size_t l = 0; l < n_layers; l++) {
        char number[24];
        snprintf(number, sizeof number, "%zu", l);
        const json_t *own = json_object_get(json_object_get(of, number), "num_attention_heads");
        if (!own && !json_is_object(of) && slides(config, l))
            own = sliding;
        if (json_array_append(heads, (json_t *)(own ? own : usual)))
            return xd_fail(err, XD_NOMEM, 0, "configuration");
    }
    return XD_OK;
}

/* What a kind of layers has under key, where it lists all layers; *ret NULL: it does not say. */
static xd_status of_kind(const json_t *config, const char *file, const char *key, size_t n_layers, bool sliding,
                         json_t **ret, xd_err *err)
{
    json_t *told = json_object_get(config, key);
    *ret = json_is_array(told) || json_is_null(told) ? NULL : told;
    if (!json_is_array(told))
        return XD_OK;
    if (json_array_size(told) < n_layers)
        return xd_fail(err, XD_BAD_MODEL, 0, "%s: %s must list num_hidden_layers = %zu layers", file, key, n_layers);
    for (size_t l = 0; l < n_layers; l++) {
        json_t *v = json_array_get(told, l);
        if (slides(config, l) != sliding)
            continue;
        if (*ret && json_number_value(*ret) != json_number_value(v))
            return xd_fail(err, XD_UNSUPPORTED, 0, "%s: %s is not the same in all layers of %s, which is not known",
                           file, key, kinds[sliding]);
        *ret = v;
    }
    return XD_OK;
}

/* rope_parameters of both kinds of layers, unless the file has them. */
static xd_status spread_ropes(json_t *config, const char *file, size_t n_layers, xd_err *err)
{
    const json_t *told = json_object_get(config, "rope_parameters");
    json_t *scaling = json_object_get(config, "rope_scaling"), *theta, *part;
    XD_CLEANUP(json_decrefp) json_t *ropes = json_object();
    bool used[2] = {false, false}, known = true;
    xd_status st;
    for (size_t l = 0; l < n_layers; l++)
        used[slides(config, l)] = true;
    for (size_t i = 0; i < 2; i++)
        known &= !used[i] || json_is_object(json_object_get(told, kinds[i]));
    if (hf_has(config, "rope_scaling") && !json_is_object(scaling))
        return xd_fail(err, XD_BAD_MODEL, 0, "%s: 'rope_scaling' must be an object or null", file);
    for (size_t i = 0; i < 2 && !known; i++) {
        if (!used[i])
            continue;
        json_t *rope = json_pack("{s:s, s:f}", "rope_type", "default", "rope_theta", 1e4);
        if (json_object_set_new(ropes, kinds[i], rope))
            return xd_fail(err, XD_NOMEM, 0, "rope parameters");
        if ((st = of_kind(config, file, "rope_theta", n_layers, i, &theta, err)) ||
            (st = of_kind(config, file, "partial_rotary_factors", n_layers, i, &part, err)))
            return st;
        if ((theta && json_object_set(rope, "rope_theta", theta)) ||
            (part && json_object_set(rope, "partial_rotary_factor", part)) ||
            (!i && json_is_object(scaling) && json_object_update(rope, scaling)))
            return xd_fail(err, XD_NOMEM, 0, "rope parameters");
    }
    if (!known && json_object_set(config, "rope_parameters", ropes))
        return xd_fail(err, XD_NOMEM, 0, "rope parameters");
    json_object_del(config, "rope_scaling");
    json_object_del(config, "rope_theta");
    json_object_del(config, "partial_rotary_factor");
    return XD_OK;
}

xd_status model_spread_step(json_t *config, const char *file, xd_err *err)
{
    uint32_t n_layers, n_nextn;
    xd_status st;
    if ((st = hf_u32(config, file, "num_hidden_layers", 0, 1, MODEL_MAX_LAYERS, &n_layers, err)) ||
        (st = hf_u32(config, file, "num_nextn_predict_layers", 0, 0, 64, &n_nextn, err)))
        return st;
    cut_lists(config, n_layers, n_nextn);
    if ((st = spread_moe_layers(config, file, n_layers, err)) || (st = spread_heads(config, file, n_layers, err)))
        return st;
    return spread_ropes(config, file, n_layers, err);
}

/* Laguna's files tell the part that is rotated beside rope_parameters, too, where nobody reads it. */
xd_status model_spread_laguna(json_t *config, const char *file, xd_err *err)
{
    (void)file;
    (void)err;
    json_object_del(config, "partial_rotary_factor");
    return XD_OK;
}

/* Limits of a layer's gate and up; none and 0: it has none. */
static xd_status read_limits(model *m, const json_t *c, const char *file, xd_err *err)
{
    for (size_t i = 0; i < XD_ARRAY_LEN(limit_keys); i++) {
        const json_t *list = json_object_get(c, limit_keys[i]);
        if (!hf_has(c, limit_keys[i]))
            continue;
        if (json_array_size(list) != m->params.n_layers)
            return xd_fail(err, XD_BAD_MODEL, 0, "%s: %s must list num_hidden_layers = %u layers", file,
                           hf_name(c, limit_keys[i]), m->params.n_layers);
        for (uint32_t l = 0; l < m->params.n_layers; l++) {
            model_layer *y = &m->layers[l];
            const json_t *v = json_array_get(list, l);
            const double limit = json_number_value(v);
            if ((!json_is_number(v) && !json_is_null(v)) || (limit != 0 && !(limit >= 1e-3 && limit <= 1e6)))
                return xd_fail(err, XD_BAD_MODEL, 0,
                               "%s: %s must hold numbers from 0.001 to 1e+06, or 0; not so for layer %u", file,
                               hf_name(c, limit_keys[i]), l);
            if (i && y->moe)
                y->shared_limit = (float)limit;
            else if (i || y->moe)
                y->act_limit = (float)limit;
        }
    }
    return XD_OK;
}

/* "per-head", "per-element" or true; true is the first. */
static xd_status read_gating(model *m, const json_t *c, const char *file, bool elements, xd_err *err)
{
    const json_t *gating = json_object_get(c, "gating");
    const char *how = json_string_value(gating);
    m->head_gates = !hf_has(c, "gating") || json_is_true(gating) || (how && !strcmp(how, "per-head"));
    if (m->head_gates || (elements && how && !strcmp(how, "per-element")))
        return XD_OK;
    return xd_fail(err, XD_UNSUPPORTED, 0, "%s: gating is %s; true%s 'per-head' %s known for %s", file,
                   how ? how : "no text", elements ? ", 'per-element' and" : " and", "are", m->params.arch);
}

/* Picks by the sigmoid with a bias, their weights over their sum. */
static xd_status read_router(model *m, const json_t *c, const char *file, xd_err *err)
{
    double scale;
    xd_status st = hf_real(c, file, "routed_scaling_factor", 1, 1e-6, 1e6, &scale, err);
    m->params.router.scoring = KERN_SIGMOID;
    m->params.router.scale = (float)scale;
    return st;
}

/* A key that may be left out, or say what is known. */
static xd_status check_known(const model *m, const json_t *c, const char *file, const char *key, const json_t *known,
                             xd_err *err)
{
    const json_t *v = json_object_get(c, key);
    if (!hf_has(c, key) || json_equal(v, known) ||
        (json_is_number(v) && json_is_number(known) && json_number_value(v) == json_number_value(known)))
        return XD_OK;
    XD_CLEANUP(xd_freep) char *is = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT);
    XD_CLEANUP(xd_freep) char *must = json_dumps(known, JSON_ENCODE_ANY | JSON_COMPACT);
    return xd_fail(err, XD_UNSUPPORTED, 0, "%s: %s = %.80s is not known for %s, only %s", file, hf_name(c, key),
                   is ? is : "?", m->params.arch, must ? must : "?");
}

static xd_status check_all_known(const model *m, const json_t *c, const char *file, const char *text, xd_err *err)
{
    XD_CLEANUP(json_decrefp) json_t *known = json_loads(text, 0, NULL);
    const char *key;
    json_t *value;
    xd_status st = known ? XD_OK : xd_fail(err, XD_NOMEM, 0, "configuration");
    json_object_foreach (known, key, value)
        if (!st)
            st = check_known(m, c, file, key, value, err);
    return st;
}

/* Its makers' code can do more than transformers' class, and more than what is published uses. */
xd_status model_read_step(model *m, const json_t *c, const char *file, xd_err *err)
{
    static const char known[] =
        "{\"moe_router_activation\":\"sigmoid\",\"use_moe_router_bias\":true,\"use_qk_norm\":true,"
        "\"norm_expert_weight\":true,\"norm_topk_prob\":true,\"use_head_wise_attn_gate\":true,\"use_moe\":true,"
        "\"zero_centered\":true,\"use_bidirectional_attention\":false,\"sink\":false,\"att_impl_type\":\"GQA\","
        "\"moe_layer_offset\":0,\"moe_every_n_layer\":1,\"yarn_only_types\":[\"full_attention\"],\"use_rope_layers\":[]}";
    model_params *p = &m->params;
    double scalar;
    xd_status st;
    if ((st = check_all_known(m, c, file, known, err)) || (st = read_gating(m, c, file, false, err)) ||
        (st = hf_real(c, file, "query_pre_attn_scalar", p->head_dim, 1e-6, 1e6, &scalar, err)) ||
        (st = read_limits(m, c, file, err)))
        return st;
    p->attn_scale = (float)(1 / sqrt(scalar));
    return read_router(m, c, file, err);
}

xd_status model_read_laguna(model *m, const json_t *c, const char *file, xd_err *err)
{
    static const char known[] =
        "{\"moe_apply_router_weight_on_input\":false,\"moe_router_logit_softcapping\":0,\"norm_topk_prob\":true}";
    xd_status st;
    m->params.gate_softplus = true;
    if ((st = check_all_known(m, c, file, known, err)) || (st = read_gating(m, c, file, true, err)))
        return st;
    return read_router(m, c, file, err);
}

/* ---- GGUF ------------------------------------------------------------------------------------------------------- */

/* The first n_layers of a list of numbers, which may be of more layers; absent: nothing. */
static xd_status put_list(const gguf *g, const char *key, const char *name, size_t n_layers, json_t *config,
                          xd_err *err)
{
    const float *values;
    const uint64_t n = gguf_f32s(g, key, &values);
    if (!gguf_has(g, key))
        return XD_OK;
    if (n < n_layers)
        return xd_fail(err, XD_BAD_MODEL, 0, "%s: '%s' must list %zu layers", gguf_path(g), key, n_layers);
    json_t *list = json_array();
    if (json_object_set_new(config, name, list))
        return xd_fail(err, XD_NOMEM, 0, "'%s'", key);
    for (size_t l = 0; l < n_layers; l++)
        if (json_array_append_new(list, json_real((double)values[l])))
            return xd_fail(err, XD_BAD_MODEL, 0, "%s: '%s' has no number for layer %zu", gguf_path(g), key, l);
    return hf_call(config, name, key, err);
}

/* Of layers without a window half of a head is rotated, where the file says no less; of others all. */
static xd_status put_ropes(const gguf *g, double head_dim, json_t *config, xd_err *err)
{
    double theta[2], dims[2];
    xd_status st;
    if ((st = gguf_real(g, "step35.rope.freq_base", 1e4, 1, 1e12, &theta[0], err)) ||
        (st = gguf_real(g, "step35.rope.freq_base_swa", 1e4, 1, 1e12, &theta[1], err)) ||
        (st = gguf_real(g, "step35.rope.dimension_count", head_dim, 2, MODEL_MAX_HEAD, &dims[0], err)) ||
        (st = gguf_real(g, "step35.rope.dimension_count_swa", head_dim, 2, MODEL_MAX_HEAD, &dims[1], err)))
        return st;
    if (dims[0] == head_dim)
        dims[0] = head_dim / 2;
    json_t *ropes =
        json_pack("{s:{s:f, s:f}, s:{s:f, s:f}}", kinds[0], "rope_theta", theta[0], "partial_rotary_factor",
                  dims[0] / head_dim, kinds[1], "rope_theta", theta[1], "partial_rotary_factor", dims[1] / head_dim);
    return json_object_set_new(config, "rope_parameters", ropes) ? xd_fail(err, XD_NOMEM, 0, "rope parameters") : XD_OK;
}

xd_status model_gguf_step(const gguf *g, json_t *config, xd_err *err)
{
    static const char heads_name[] = "step35.attention.head_count", kv_name[] = "step35.attention.head_count_kv",
                      sliding_name[] = "step35.attention.sliding_window_pattern";
    const size_t n_layers = (size_t)json_integer_value(json_object_get(config, "num_hidden_layers"));
    const double head_dim = json_number_value(json_object_get(config, "head_dim"));
    const int32_t *heads = NULL, *kv_heads = NULL;
    const uint8_t *sliding;
    if (!(head_dim > 0) || gguf_bools(g, sliding_name, &sliding) < n_layers ||
        gguf_i32s(g, heads_name, &heads) < n_layers || gguf_i32s(g, kv_name, &kv_heads) < n_layers || !n_layers)
        return xd_fail(err, XD_BAD_MODEL, 0,
                       "%s: step35.attention.key_length, and lists of %zu layers in %s, %s and %s, are needed",
                       gguf_path(g), n_layers, heads_name, kv_name, sliding_name);
    json_t *types = json_array(), *list = json_array();
    int32_t most = 1;
    if (json_object_set_new(config, types_key, types) || json_object_set_new(config, heads_key, list))
        return xd_fail(err, XD_NOMEM, 0, "layers of '%s'", gguf_path(g));
    for (size_t l = 0; l < n_layers; l++) {
        most = XD_MAX(most, heads[l]);
        if (kv_heads[l] != kv_heads[0])
            return xd_fail(err, XD_UNSUPPORTED, 0, "%s: '%s' has layers of %d and of %d heads", gguf_path(g), kv_name,
                           kv_heads[0], kv_heads[l]);
        if (json_array_append_new(types, json_string(kinds[sliding[l] != 0])) ||
            json_array_append_new(list, json_integer(heads[l])))
            return xd_fail(err, XD_NOMEM, 0, "layers of '%s'", gguf_path(g));
    }
    xd_status st;
    if (json_object_set_new(config, "num_attention_heads", json_integer(most)) ||
        json_object_set_new(config, "num_key_value_heads", json_integer(kv_heads[0])))
        return xd_fail(err, XD_NOMEM, 0, "configuration");
    if ((st = hf_call(config, heads_key, heads_name, err)) ||
        (st = put_list(g, "step35.swiglu_clamp_exp", limit_keys[0], n_layers, config, err)) ||
        (st = put_list(g, "step35.swiglu_clamp_shexp", limit_keys[1], n_layers, config, err)))
        return st;
    return put_ropes(g, head_dim, config, err);
}
