/* layers.c - what differs between the layers of a model: which attend through a window and are rotated how, which have experts, and the sizes
 * of these, as config.json has it. What a family may say there is its row of arch.c; a list that says something else is refused.
 *
 * Source: transformers' configuration_*.py, whose __post_init__ fills in lists that a file leaves out. */
#include <string.h>

#include "engine/model/hf_config.h"
#include "engine/model/model_priv.h"
#include "engine/model/rope.h"

/* The window of each layer. Mistral, Mixtral: the same in all. Qwen: only with use_sliding_window, and in the layers that layer_types
 * names, or from max_window_layers on (Qwen2-MoE: in every other one before; dots.llm1: always); Qwen3-MoE in all; gpt-oss in those
 * that layer_types names. A list that says something else than what the family does is refused. */
static xd_status read_windows(model *m, const model_arch *a, const json_t *c, const char *file, xd_err *err)
{
    uint32_t window = 0, first = 0, pattern = 0, n_layers = m->params.n_layers;
    bool use = a->window != MODEL_WINDOW_NONE;
    xd_status st = XD_OK;
    const bool switched_first = a->window == MODEL_WINDOW_LISTED || a->window == MODEL_WINDOW_TURNS;
    const bool listed_first = switched_first || a->window == MODEL_WINDOW_FROM,
               listed = listed_first || a->window == MODEL_WINDOW_EVEN || a->window == MODEL_WINDOW_TYPES ||
                        a->window == MODEL_WINDOW_FOURTHS || a->window == MODEL_WINDOW_PATTERN ||
                        a->window == MODEL_WINDOW_SIXTHS;
    if (a->window == MODEL_WINDOW_SWITCHED || switched_first)
        st = hf_bool(c, file, "use_sliding_window", false, &use, err);
    if (!st && use)
        st = hf_u32(c, file, "sliding_window", 0, 1, INT32_MAX, &window, err);
    if (!st && listed_first)
        st = hf_u32(c, file, "max_window_layers", 0, 0, INT32_MAX, &first, err);
    const json_t *types = hf_has(c, "layer_types") ? json_object_get(c, "layer_types") : NULL;
    if (!st && a->window == MODEL_WINDOW_PATTERN && window && !types)
        st = hf_u32(c, file, "sliding_window_pattern", 0, 1, INT32_MAX, &pattern, err);
    if (st)
        return st;
    if (a->window == MODEL_WINDOW_EVEN && !window)
        return xd_fail(err, XD_UNSUPPORTED, 0, "%s: %s is needed for a %s model", file, hf_name(c, "sliding_window"),
                       a->model_type);
    const char *full = a->index ? "indexed_attention" : "full_attention";
    if (types && json_array_size(types) != n_layers)
        return xd_fail(err, XD_BAD_MODEL, 0, "%s: layer_types must list num_hidden_layers = %u layers", file, n_layers);
    for (uint32_t l = 0; l < n_layers; l++) {
        bool sliding = window && (a->window == MODEL_WINDOW_TURNS     ? l < first && l % 2 == 0
                                  : a->window == MODEL_WINDOW_EVEN    ? l % 2 == 0
                                  : a->window == MODEL_WINDOW_TYPES   ? false
                                  : a->window == MODEL_WINDOW_FOURTHS ? l % 4 != 0
                                  : a->window == MODEL_WINDOW_PATTERN ? pattern && (l + 1) % pattern
                                  : a->window == MODEL_WINDOW_SIXTHS  ? (l + 1) % 6 && l + 1 < n_layers
                                                                      : l >= first);
        const char *type = json_string_value(json_array_get(types, l));
        bool slides = type && !strcmp(type, "sliding_attention");
        if (types && listed)
            sliding = slides && window && !(a->window == MODEL_WINDOW_SIXTHS && l + 1 == n_layers);
        if (types && (!type || slides != sliding || (!slides && strcmp(type, full))))
            return xd_fail(
                err, XD_UNSUPPORTED, 0,
                "%s: layer_types has '%s' for layer %u, whose attention is %s in a %s model of this configuration",
                file, type ? type : "(no text)", l, sliding ? "sliding_attention" : full, a->model_type);
        m->layers[l].window = sliding ? window : 0;
    }
    return XD_OK;
}

/* Is the layer rotated where some are not? An empty list is none. */
static bool layer_turns(const json_t *c, uint32_t layer, uint32_t interval)
{
    const json_t *list = json_object_get(c, "no_rope_layers");
    return json_array_size(list) ? json_integer_value(json_array_get(list, layer)) != 0 : (layer + 1) % interval != 0;
}

static xd_status read_interval(const json_t *c, const char *file, uint32_t n_layers, uint32_t *ret, xd_err *err)
{
    static const char key[] = "no_rope_layers";
    const json_t *list = json_object_get(c, key);
    if (hf_has(c, key) && !json_is_array(list))
        return xd_fail(err, XD_BAD_MODEL, 0, "%s: '%s' must be a list", file, key);
    if (json_array_size(list) && json_array_size(list) < n_layers)
        return xd_fail(err, XD_BAD_MODEL, 0, "%s: %s must list num_hidden_layers = %u layers", file, key, n_layers);
    for (uint32_t l = 0; json_array_size(list) && l < n_layers; l++)
        if (!json_is_integer(json_array_get(list, l)))
            return xd_fail(err, XD_BAD_MODEL, 0, "%s: %s must hold whole numbers; not so for layer %u", file, key, l);
    return hf_u32(c, file, "no_rope_layer_interval", 4, 1, MODEL_MAX_LAYERS, ret, err);
}

/* Llama 4's chunks. */
static xd_status read_chunks(model *m, const json_t *c, const char *file, xd_err *err)
{
    const json_t *types = hf_has(c, "layer_types") ? json_object_get(c, "layer_types") : NULL;
    const uint32_t n_layers = m->params.n_layers;
    uint32_t chunk, interval;
    xd_status st;
    if ((st = hf_u32(c, file, "attention_chunk_size", 0, 1, INT32_MAX, &chunk, err)) ||
        (st = read_interval(c, file, n_layers, &interval, err)))
        return st;
    if (types && json_array_size(types) != n_layers)
        return xd_fail(err, XD_BAD_MODEL, 0, "%s: layer_types must list num_hidden_layers = %u layers", file, n_layers);
    for (uint32_t l = 0; l < n_layers; l++) {
        const char *type = json_string_value(json_array_get(types, l));
        const bool chunked = types ? type && !strcmp(type, "chunked_attention") : chunk && layer_turns(c, l, interval);
        if (types && !chunked && (!type || strcmp(type, "full_attention")))
            return xd_fail(err, XD_UNSUPPORTED, 0,
                           "%s: layer_types has '%s' for layer %u; chunked_attention and full_attention are known",
                           file, type ? type : "(no text)", l);
        if (chunked && !chunk)
            return xd_fail(err, XD_BAD_MODEL, 0, "%s: layer %u is chunked_attention, which needs %s", file, l,
                           hf_name(c, "attention_chunk_size"));
        m->layers[l].window = chunked ? chunk : 0;
    }
    m->params.chunked = true;
    return XD_OK;
}

static const char per_layer[] = "per_layer_config";

/* Heads of a layer by per_layer_config, which lists some layers by their numbers; of others they are as usual. */
static xd_status read_listed_heads(const json_t *c, const char *file, const char *layer, const model_params *p,
                                   uint32_t *ret_kv_heads, uint32_t *ret_dim, xd_err *err)
{
    const json_t *of = json_object_get(json_object_get(c, per_layer), layer);
    const char *key;
    json_t *value;
    json_object_foreach ((json_t *)of, key, value)
        if (strcmp(key, "head_dim") && strcmp(key, "num_key_value_heads"))
            return xd_fail(err, XD_UNSUPPORTED, 0,
                           "%s: %s has '%s' for layer %s; head_dim and num_key_value_heads are known there", file,
                           per_layer, key, layer);
    if (of && !json_is_object(of))
        return xd_fail(err, XD_BAD_MODEL, 0, "%s: %s must hold objects; not so for layer %s", file, per_layer, layer);
    xd_status st = hf_u32(of, file, "head_dim", p->head_dim, 2, MODEL_MAX_HEAD, ret_dim, err);
    return st ? st : hf_u32(of, file, "num_key_value_heads", p->n_kv_heads, 1, 1024, ret_kv_heads, err);
}

xd_status model_read_full_heads(const model_arch *a, const json_t *c, const char *file, model_params *p, xd_err *err)
{
    bool k_is_v;
    xd_status st;
    p->full_kv_heads = p->n_kv_heads;
    p->full_head_dim = p->head_dim;
    if (!a->full_heads)
        return XD_OK;
    if (hf_has(c, per_layer)) {
        if (!json_is_object(json_object_get(c, per_layer)))
            return xd_fail(err, XD_BAD_MODEL, 0, "%s: '%s' must be an object", file, per_layer);
        const char *layer;
        json_t *of;
        json_object_foreach (json_object_get(c, per_layer), layer, of)
            if (p->full_kv_heads == p->n_kv_heads && p->full_head_dim == p->head_dim &&
                (st = read_listed_heads(c, file, layer, p, &p->full_kv_heads, &p->full_head_dim, err)))
                return st;
        st = XD_OK; /* the first that differ; whether all do, choose_heads() looks */
    } else if (!(st = hf_bool(c, file, "attention_k_eq_v", false, &k_is_v, err)) &&
               !(st = hf_u32(c, file, "global_head_dim", 512, 2, MODEL_MAX_HEAD, &p->full_head_dim, err)) && k_is_v)
        st = hf_u32(c, file, "num_global_key_value_heads", p->n_kv_heads, 1, 1024, &p->full_kv_heads, err);
    if (!st && (p->n_heads % p->full_kv_heads || p->full_head_dim % 2))
        return xd_fail(err, XD_BAD_MODEL, 0,
                       "%s: %u heads over %u of K and V, of %u dimensions: the first must be a multiple of the second, "
                       "and the third even",
                       file, p->n_heads, p->full_kv_heads, p->full_head_dim);
    return st;
}

/* The windows being known. */
static xd_status choose_heads(model *m, const json_t *c, const char *file, xd_err *err)
{
    const model_params *p = &m->params;
    for (uint32_t l = 0; l < p->n_layers; l++) {
        model_layer *y = &m->layers[l];
        y->n_kv_heads = y->window ? p->n_kv_heads : p->full_kv_heads;
        y->head_dim = y->window ? p->head_dim : p->full_head_dim;
        if (!hf_has(c, per_layer))
            continue;
        char number[16];
        uint32_t kv_heads, dim;
        snprintf(number, sizeof number, "%u", l);
        xd_status st = read_listed_heads(c, file, number, p, &kv_heads, &dim, err);
        if (st)
            return st;
        if (kv_heads != y->n_kv_heads || dim != y->head_dim)
            return xd_fail(err, XD_UNSUPPORTED, 0,
                           "%s: %s gives layer %u %u heads of K and V of %u dimensions, and %s layers have %u of %u: "
                           "heads that differ otherwise than by the window are not known",
                           file, per_layer, l, kv_heads, dim, y->window ? "sliding_attention" : "full_attention",
                           y->n_kv_heads, y->head_dim);
    }
    return XD_OK;
}

/* Heads of Q; p->n_heads becomes the most. */
static xd_status choose_query_heads(model *m, const model_arch *a, const json_t *c, const char *file, xd_err *err)
{
    static const char key[] = "num_attention_heads_per_layer";
    model_params *p = &m->params;
    const json_t *list = a->own_heads && hf_has(c, key) ? json_object_get(c, key) : NULL;
    const uint32_t usual = p->n_heads;
    if (list && json_array_size(list) != p->n_layers)
        return xd_fail(err, XD_BAD_MODEL, 0, "%s: %s must list num_hidden_layers = %u layers", file, hf_name(c, key),
                       p->n_layers);
    p->n_heads = list ? 1 : usual;
    for (uint32_t l = 0; l < p->n_layers; l++) {
        const json_int_t n = list ? json_integer_value(json_array_get(list, l)) : (json_int_t)usual;
        if (list && (n < 1 || n > 1024 || n % p->n_kv_heads))
            return xd_fail(err, XD_BAD_MODEL, 0,
                           "%s: %s has %lld heads for layer %u; a multiple of %s = %u, at most 1024, is possible", file,
                           hf_name(c, key), (long long)n, l, hf_name(c, "num_key_value_heads"), p->n_kv_heads);
        m->layers[l].n_heads = (uint32_t)n;
        p->n_heads = XD_MAX(p->n_heads, m->layers[l].n_heads);
    }
    return XD_OK;
}

/* A base for each layer, of few different ones. */
static xd_status read_bases(model *m, const model_arch *a, const json_t *c, const char *file, xd_err *err)
{
    static const char key[] = "layer_rope_theta";
    model_params *p = &m->params;
    const json_t *list = json_object_get(c, key);
    double bases[MODEL_MAX_ROPES];
    uint32_t n = 0;
    if (!hf_has(c, key))
        return XD_OK;
    if (json_array_size(list) != p->n_layers)
        return xd_fail(err, XD_BAD_MODEL, 0, "%s: %s must list num_hidden_layers = %u layers", file, key, p->n_layers);
    for (uint32_t l = 0; l < p->n_layers; l++) {
        const json_t *v = json_array_get(list, l);
        const double base = json_number_value(v);
        uint32_t i = 0;
        if (!json_is_number(v) || (base != 0 && !(base >= 1 && base <= 1e12)))
            return xd_fail(err, XD_BAD_MODEL, 0, "%s: %s must hold numbers from 1 to 1e12, or 0; not so for layer %u",
                           file, key, l);
        while (i < n && bases[i] != base)
            i++;
        m->layers[l].rope = i;
        if (i < n)
            continue;
        if (n == MODEL_MAX_ROPES)
            return xd_fail(err, XD_UNSUPPORTED, 0, "%s: %s has more than %d different bases", file, key,
                           MODEL_MAX_ROPES);
        bases[n++] = base;
        xd_status st = base != 0 ? rope_read_based(c, file, base, a->partial_rotary, p, i, err) : XD_OK;
        if (st)
            return st;
        if (base == 0)
            rope_make_still(p, i);
    }
    return XD_OK;
}

/* Which rope each layer has, the windows being known. */
static xd_status choose_ropes(model *m, const model_arch *a, const json_t *c, const char *file, xd_err *err)
{
    model_params *p = &m->params;
    const bool some_still = a->rope == MODEL_ROPE_SLIDING && hf_has(c, "sliding_window");
    if (a->rope == MODEL_ROPE_BASES)
        return read_bases(m, a, c, file, err);
    uint32_t interval = 1;
    if (some_still || a->rope == MODEL_ROPE_NOPE)
        rope_make_still(p, 1);
    xd_status st = a->rope == MODEL_ROPE_NOPE ? read_interval(c, file, p->n_layers, &interval, err) : XD_OK;
    if (st)
        return st;
    for (uint32_t l = 0; l < p->n_layers; l++) {
        model_layer *y = &m->layers[l];
        y->rope = a->rope == MODEL_ROPE_TYPES  ? y->window != 0
                  : a->rope == MODEL_ROPE_NOPE ? !layer_turns(c, l, interval)
                                               : some_still && !y->window;
        if (!p->ropes[y->rope].rot_dim)
            return xd_fail(err, XD_BAD_MODEL, 0, "%s: rope_parameters need '%s', which layer %u of this %s model has",
                           file, y->rope ? "sliding_attention" : "full_attention", l, a->model_type);
    }
    return XD_OK;
}

/* Which layers of a MoE family are dense all the same. */
typedef struct moe_layers {
    uint32_t step, first, start, end, interval;
} moe_layers;

/* One "dense" or "sparse" a layer. */
static xd_status check_mlp_types(const json_t *c, const char *file, uint32_t n_layers, xd_err *err)
{
    const json_t *types = json_object_get(c, "mlp_layer_types");
    if (!hf_has(c, "mlp_layer_types"))
        return XD_OK;
    if (json_array_size(types) != n_layers)
        return xd_fail(err, XD_BAD_MODEL, 0, "%s: mlp_layer_types must list num_hidden_layers = %u layers", file,
                       n_layers);
    for (uint32_t l = 0; l < n_layers; l++) {
        const char *type = json_string_value(json_array_get(types, l));
        if (!type || (strcmp(type, "dense") && strcmp(type, "sparse")))
            return xd_fail(err, XD_UNSUPPORTED, 0,
                           "%s: mlp_layer_types has '%s' for layer %u; 'dense' and 'sparse' are known", file,
                           type ? type : "(no text)", l);
    }
    return XD_OK;
}

/* moe_layers, which names layers in any order. */
static xd_status check_named(const json_t *c, const char *file, uint32_t n_layers, xd_err *err)
{
    const json_t *list = json_object_get(c, "moe_layers");
    size_t i;
    json_t *v;
    if (hf_has(c, "moe_layers") && !json_is_array(list))
        return xd_fail(err, XD_BAD_MODEL, 0, "%s: 'moe_layers' must be a list of layers", file);
    json_array_foreach (list, i, v)
        if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) >= (json_int_t)n_layers)
            return xd_fail(err, XD_BAD_MODEL, 0, "%s: moe_layers must hold layers below num_hidden_layers = %u", file,
                           n_layers);
    return XD_OK;
}

static xd_status read_moe_layers(const model_arch *a, const json_t *c, const char *file, uint32_t n_layers,
                                 moe_layers *ret, xd_err *err)
{
    *ret = (moe_layers){.step = 1, .end = n_layers - 1, .interval = 1};
    const json_t *end = json_object_get(c, "moe_layer_end_index");
    const bool to_the_end = json_is_integer(end) && json_integer_value(end) == -1;
    xd_status st = XD_OK;
    if (a->moe_layers == MODEL_MOE_STEP && hf_has(c, "mlp_only_layers") &&
        !json_is_array(json_object_get(c, "mlp_only_layers")))
        return xd_fail(err, XD_BAD_MODEL, 0, "%s: 'mlp_only_layers' must be a list of layers", file);
    if (a->moe_layers == MODEL_MOE_STEP)
        st = hf_u32(c, file, "decoder_sparse_step", 1, 1, MODEL_MAX_LAYERS, &ret->step, err);
    if (a->moe_layers == MODEL_MOE_NAMED && !(st = check_named(c, file, n_layers, err)))
        st = hf_u32(c, file, "interleave_moe_layer_step", 1, 1, MODEL_MAX_LAYERS, &ret->step, err);
    if (a->moe_layers == MODEL_MOE_LISTED && (st = check_mlp_types(c, file, n_layers, err)))
        return st;
    if (a->moe_layers == MODEL_MOE_FIRST || (a->moe_layers == MODEL_MOE_LISTED && !hf_has(c, "mlp_layer_types")))
        st = hf_u32(c, file, "first_k_dense_replace", 0, 0, MODEL_MAX_LAYERS, &ret->first, err);
    if (a->moe_layers == MODEL_MOE_RANGE &&
        !(st = hf_u32(c, file, "moe_layer_start_index", 0, 0, MODEL_MAX_LAYERS, &ret->start, err)) &&
        !(st = hf_u32(c, file, "moe_layer_interval", 1, 1, MODEL_MAX_LAYERS, &ret->interval, err)) && !to_the_end)
        st = hf_u32(c, file, "moe_layer_end_index", n_layers - 1, 0, MODEL_MAX_LAYERS, &ret->end, err);
    return st;
}

static bool layer_is_moe(const model_arch *a, const json_t *config, uint32_t layer, const moe_layers *which)
{
    size_t i;
    json_t *v;
    if (a->moe_layers == MODEL_MOE_STEP)
        json_array_foreach (json_object_get(config, "mlp_only_layers"), i, v)
            if (json_integer_value(v) == (json_int_t)layer)
                return false;
    if (a->moe_layers == MODEL_MOE_NAMED && hf_has(config, "moe_layers")) {
        json_array_foreach (json_object_get(config, "moe_layers"), i, v)
            if (json_integer_value(v) == (json_int_t)layer)
                return true;
        return false;
    }
    const char *type = json_string_value(json_array_get(json_object_get(config, "mlp_layer_types"), layer));
    if (a->moe_layers == MODEL_MOE_LISTED && type)
        return !strcmp(type, "sparse");
    return (layer + 1) % which->step == 0 && layer >= which->first && layer >= which->start && layer <= which->end &&
           (layer + 1) % which->interval == 0;
}

static bool layer_is(const json_t *config, uint32_t layer, const char *type)
{
    const char *says = json_string_value(json_array_get(json_object_get(config, "layer_types"), layer));
    return says && !strcmp(says, type);
}

static xd_status read_shared(const model_arch *a, const json_t *c, const char *file, uint32_t *ret, xd_err *err)
{
    uint32_t size = 0, count = 1;
    xd_status st = XD_OK;
    if (a->shared)
        st = hf_u32(c, file, a->shared_size_key, 0, 0, 1u << 20, &size, err);
    if (!st && a->shared_count_key)
        st = hf_u32(c, file, a->shared_count_key, 0, 0, 64, &count, err);
    *ret = size * count;
    return st;
}

xd_status model_read_layers(model *m, const model_arch *a, const json_t *c, const char *file, xd_err *err)
{
    model_params *p = &m->params;
    uint32_t n_experts = 0, top_k = 0, d_ff_moe = 0, d_ff = 0, d_ff_shared = 0;
    moe_layers which;
    const char *dense_key = a->dense_size_key ? a->dense_size_key : "intermediate_size";
    bool has_moe = a->experts[0] && !a->apart;
    for (uint32_t l = 0; a->apart && l < p->n_layers; l++)
        has_moe |= layer_is(c, l, "moe");
    xd_status st;
    if (a->moe_layers == MODEL_MOE_ASKED && (st = hf_bool(c, file, "enable_moe_block", false, &has_moe, err)))
        return st;
    if ((st = read_moe_layers(a, c, file, p->n_layers, &which, err)) ||
        (st = hf_u32(c, file, dense_key, 0, 1, 1u << 20, &d_ff, err)) ||
        (st = read_shared(a, c, file, &d_ff_shared, err)))
        return st;
    if (has_moe && ((st = hf_u32(c, file, "num_local_experts", 0, 1, MODEL_MAX_EXPERTS, &n_experts, err)) ||
                    (st = hf_u32(c, file, "num_experts_per_tok", 0, 1, MODEL_MAX_TOP_K, &top_k, err)) ||
                    (st = hf_u32(c, file, a->moe_size_key, 0, 1, 1u << 20, &d_ff_moe, err))))
        return st;
    if (has_moe && (!n_experts || !top_k || top_k > n_experts || !d_ff_moe))
        return xd_fail(err, XD_BAD_MODEL, 0,
                       "%s: a number of experts (%s, %u), of those that a token picks (%s, %u; at most as many) and "
                       "their size (%s, %u) are needed",
                       file, hf_name(c, "num_local_experts"), n_experts, hf_name(c, "num_experts_per_tok"), top_k,
                       hf_name(c, a->moe_size_key), d_ff_moe);

    m->layers = calloc(p->n_layers, sizeof *m->layers);
    if (!m->layers)
        return xd_fail(err, XD_NOMEM, 0, "layers of the model");
    size_t n_tensors = 0;
    for (uint32_t l = 0; l < p->n_layers; l++) {
        bool moe = has_moe && (a->apart ? layer_is(c, l, "moe") : layer_is_moe(a, c, l, &which));
        const bool ffn = moe || !a->apart || layer_is(c, l, "mlp");
        m->layers[l].moe = moe;
        m->layers[l].halves = a->apart;
        m->layers[l].n_experts = moe ? n_experts : ffn;
        m->layers[l].top_k = moe ? top_k : ffn;
        m->layers[l].d_ff = moe ? d_ff_moe : ffn ? d_ff : 0;
        m->layers[l].d_ff_shared = moe ? d_ff_shared : 0;
        if (!m->layers[l].d_ff && ffn)
            return xd_fail(err, XD_BAD_MODEL, 0, "%s: %s is needed for the dense layer %u", file, hf_name(c, dense_key),
                           l);
        p->n_experts_max = XD_MAX(p->n_experts_max, m->layers[l].n_experts);
        p->top_k_max = XD_MAX(p->top_k_max, m->layers[l].top_k);
        p->d_ff_max = XD_MAX(p->d_ff_max, m->layers[l].d_ff);
        p->d_ff_shared_max = XD_MAX(p->d_ff_shared_max, m->layers[l].d_ff_shared);
        n_tensors += (size_t)m->layers[l].n_experts * MODEL_MATRICES;
    }
    if ((st = a->delta                           ? model_read_delta(m, a, c, file, err)
              : a->shortconv                     ? model_read_shortconv(m, c, file, err)
              : a->ssm                           ? model_read_ssm(m, a, c, file, err)
              : a->window == MODEL_WINDOW_CHUNKS ? read_chunks(m, c, file, err)
                                                 : read_windows(m, a, c, file, err)) ||
        (st = choose_heads(m, a->full_heads ? c : NULL, file, err)) || (st = choose_query_heads(m, a, c, file, err)) ||
        (st = choose_ropes(m, a, c, file, err)))
        return st;
    for (uint32_t l = 0; l < p->n_layers; l++)
        if (!m->layers[l].ffn_alone)
            m->layers[l].ordinal = m->layers[l].linear ? p->n_linear++ : p->n_attention++;
    m->experts = calloc(n_tensors, sizeof *m->experts);
    if (!m->experts)
        return xd_fail(err, XD_NOMEM, 0, "expert table of the model");
    model_tensor *at = m->experts;
    for (uint32_t l = 0; l < p->n_layers; l++) {
        m->layers[l].experts = at;
        at += (size_t)m->layers[l].n_experts * MODEL_MATRICES;
    }
    return XD_OK;
}
