/* arch_read.c - hyper-parameters of config.json, by the row of its family in arch.c. What differs between layers is read in layers.c. */
#include <math.h>
#include <string.h>

#include "engine/model/hf_config.h"
#include "engine/model/model_priv.h"
#include "engine/model/rope.h"

/* One thing has several names: of families, and of versions of transformers. */
static xd_status unify_names(json_t *config, xd_err *err)
{
    static const struct {
        const char *name, *other;
    } names[] = {
        {"num_local_experts", "num_experts"},
        {"num_local_experts", "n_routed_experts"},
        {"num_local_experts", "moe_num_experts"},
        {"num_experts_per_tok", "moe_k"},
        {"num_experts_per_tok", "top_k_experts"},
        {"num_experts_per_tok", "moe_topk"},
        {"head_dim", "attention_head_dim"},
        {"n_shared_experts", "num_shared_experts"},
        {"attention_bias", "use_qkv_bias"},
        {"first_k_dense_replace", "num_dense_layers"},
        {"sliding_window_pattern", "global_attn_every_n_layers"},
        {"num_nextn_predict_layers", "num_mtp_layers"},
        {"tie_word_embeddings", "tie_embedding"},
        {"layer_types", "layers_block_type"},
        {"num_experts_per_tok", "num_experts_per_token"},
        {"norm_topk_prob", "moe_renormalize"},
        {"n_group", "num_expert_group"},
        {"max_position_embeddings", "model_max_length"},
        {"mamba_n_heads", "mamba_num_heads"},
        {"mamba_n_groups", "n_groups"},
        {"mamba_d_head", "mamba_head_dim"},
        {"mamba_d_state", "ssm_state_size"},
        {"mamba_d_conv", "conv_kernel"},
        {"mamba_conv_bias", "use_conv_bias"},
        {"routed_scaling_factor", "router_scaling_factor"},
        {"routed_scaling_factor", "route_scale"},
        {"routed_scaling_factor", "moe_router_scaling_factor"},
        {"routed_scaling_factor", "moe_routed_scaling_factor"},
        {"num_key_value_heads", "num_attention_groups"},
        {"num_experts_per_tok", "moe_top_k"},
        {"share_expert_dim", "share_expert_dims"},
    };
    for (size_t i = 0; i < XD_ARRAY_LEN(names); i++) {
        json_t *n = json_object_get(config, names[i].other);
        if (!n || json_is_null(n) || hf_has(config, names[i].name))
            continue;
        if (json_object_set(config, names[i].name, n))
            return xd_fail(err, XD_NOMEM, 0, "configuration");
        xd_status st = hf_call(config, names[i].name, names[i].other, err);
        if (st)
            return st;
    }
    return XD_OK;
}

/* What Hunyuan's files list by layers is known where it is the same in all. */
static xd_status level_lists(json_t *config, const char *file, xd_err *err)
{
    static const char *const keys[] = {"num_local_experts", "num_experts_per_tok", "moe_intermediate_size",
                                       "num_shared_expert"};
    for (size_t i = 0; i < XD_ARRAY_LEN(keys); i++) {
        const json_t *list = json_object_get(config, keys[i]);
        json_t *first = json_array_get(list, 0), *v;
        size_t l;
        json_array_foreach (list, l, v)
            if (!json_equal(v, first))
                return xd_fail(err, XD_UNSUPPORTED, 0, "%s: '%s' is not the same in all layers, which is not known",
                               file, hf_name(config, keys[i]));
        if (first && json_object_set(config, keys[i], first))
            return xd_fail(err, XD_NOMEM, 0, "configuration");
    }
    return XD_OK;
}

/* Nemotron-H's layers as a list, where they are letters; and how many they are, which files need not tell. */
static xd_status list_layers(json_t *config, const char *file, xd_err *err)
{
    static const char key[] = "hybrid_override_pattern";
    const char *pattern = hf_string(config, key);
    if (pattern && !hf_has(config, "layer_types")) {
        json_t *types = json_array();
        if (json_object_set_new(config, "layer_types", types))
            return xd_fail(err, XD_NOMEM, 0, "configuration");
        for (; *pattern; pattern++) {
            const char *type = *pattern == 'M'   ? "linear_attention"
                               : *pattern == '*' ? "full_attention"
                               : *pattern == 'E' ? "moe"
                               : *pattern == '-' ? "mlp"
                                                 : NULL;
            if (!type)
                return xd_fail(err, XD_UNSUPPORTED, 0, "%s: %s has '%c'; M, *, E and - are known", file, key, *pattern);
            json_array_append_new(types, json_string(type));
        }
        xd_status st = hf_call(config, "layer_types", key, err);
        if (st)
            return st;
    }
    const size_t n = json_array_size(json_object_get(config, "layer_types"));
    return n && !hf_has(config, "num_hidden_layers") &&
                   json_object_set_new(config, "num_hidden_layers", json_integer((json_int_t)n))
               ? xd_fail(err, XD_NOMEM, 0, "configuration")
               : XD_OK;
}

/* Kimi-Linear's layers, which count from 1, and heads, where all have them. */
static xd_status spread_kda(json_t *config, const char *file, xd_err *err)
{
    static const struct {
        const char *key, *to, *plain;
    } sizes[] = {{"num_heads", "linear_num_key_heads", "linear_num_heads"},
                 {"num_heads", "linear_num_value_heads", "linear_num_heads"},
                 {"head_dim", "linear_key_head_dim", "linear_head_dim"},
                 {"head_dim", "linear_value_head_dim", "linear_head_dim"},
                 {"short_conv_kernel_size", "linear_conv_kernel_dim", "linear_conv_kernel_dim"}};
    static const char *const lists[] = {"full_attn_layers", "kda_layers"}, *const types[] = {"full_attention",
                                                                                             "linear_attention"};
    json_t *of = json_object_get(config, "linear_attn_config"), *v;
    const json_int_t n = json_integer_value(json_object_get(config, "num_hidden_layers"));
    bool ok = true;
    for (size_t i = 0; i < XD_ARRAY_LEN(sizes); i++) {
        json_t *size = json_object_get(of, sizes[i].key);
        size = size ? size : json_object_get(config, sizes[i].plain);
        ok &= !size || !json_object_set(config, sizes[i].to, size);
    }
    ok &= hf_has(config, "linear_num_key_heads") ||
          (!json_object_set_new(config, "linear_num_key_heads", json_integer(32)) &&
           !json_object_set_new(config, "linear_num_value_heads", json_integer(32)));
    if (!ok)
        return xd_fail(err, XD_NOMEM, 0, "configuration");
    if (hf_has(config, "layer_types") || !json_object_get(of, lists[0]) || n < 1 || n > MODEL_MAX_LAYERS)
        return XD_OK;
    XD_CLEANUP(json_decrefp) json_t *all = json_array();
    for (json_int_t l = 0; l < n; l++)
        ok &= !json_array_append_new(all, json_null());
    for (size_t k = 0; k < XD_ARRAY_LEN(lists); k++) {
        size_t i;
        json_array_foreach (json_object_get(of, lists[k]), i, v) {
            const json_int_t l = json_integer_value(v);
            if (l < 1 || l > n)
                return xd_fail(err, XD_BAD_MODEL, 0, "%s: linear_attn_config: %s has layers beyond num_hidden_layers",
                               file, lists[k]);
            ok &= !json_array_set_new(all, (size_t)l - 1, json_string(types[k]));
        }
    }
    return ok && !json_object_set(config, "layer_types", all) ? XD_OK : xd_fail(err, XD_NOMEM, 0, "configuration");
}

static const char *named_class(const json_t *config)
{
    return json_string_value(json_array_get(json_object_get(config, "architectures"), 0));
}

static xd_status check_class(const model_arch *a, const json_t *config, const char *file, xd_err *err)
{
    const char *name = named_class(config);
    if (name && model_arch_of_class(name))
        return XD_OK;
    return name ? xd_fail(err, XD_UNSUPPORTED, 0, "%s: architectures names '%s'; of model_type '%s' %s is known", file,
                          name, a->model_type, a->class_name)
                : XD_OK;
}

/* Of a model that sees or hears, what its language model is like is an object of its own, or one in that: brings its keys where all other
 * families have them. */
static xd_status unnest(const char *const nested[2], json_t *config, const char *file, xd_err *err)
{
    bool tied = json_is_true(json_object_get(config, "tie_word_embeddings"));
    json_t *text = config;
    for (size_t i = 0; i < 2 && nested[i]; i++) {
        text = json_object_get(text, nested[i]);
        if (!json_is_object(text))
            return xd_fail(err, XD_BAD_MODEL, 0, "%s: '%s' must be an object", file, nested[i]);
        tied |= json_is_true(json_object_get(text, "tie_word_embeddings"));
    }
    const char *key;
    json_t *value;
    json_object_foreach (text, key, value)
        if (strcmp(key, "model_type") && strcmp(key, "architectures") && json_object_set(config, key, value))
            return xd_fail(err, XD_NOMEM, 0, "configuration");
    return json_object_set_new(config, "tie_word_embeddings", json_boolean(tied))
               ? xd_fail(err, XD_NOMEM, 0, "configuration")
               : XD_OK;
}

/* Makes config that of the language model which w is around; *ret_type is its model_type. */
static xd_status unwrap(const model_wrapper *w, json_t *config, const char *file, const char **ret_type, xd_err *err)
{
    const char *const nested[2] = {w->text}, *name = named_class(config);
    for (size_t i = 0; name && i < XD_ARRAY_LEN(w->class_names) && w->class_names[i]; i++)
        if (!strcmp(name, w->class_names[i]))
            name = NULL;
    if (name)
        return xd_fail(err, XD_UNSUPPORTED, 0, "%s: architectures names '%s'; of model_type '%s' %s is known", file,
                       name, w->model_type, w->class_names[0]);
    xd_status st = unnest(nested, config, file, err);
    if (st)
        return st;
    json_object_del(config, "architectures");
    const char *type = hf_string(json_object_get(config, w->text), "model_type");
    *ret_type = type ? type : w->text_type;
    return XD_OK;
}

static xd_status complete(const model_arch *a, json_t *config, const char *file, xd_err *err)
{
    xd_status st = check_class(a, config, file, err);
    if (st || (a->nested[0] && (st = unnest(a->nested, config, file, err))) || (st = unify_names(config, err)) ||
        (a->lists && (st = level_lists(config, file, err))) || (a->apart && (st = list_layers(config, file, err))))
        return st;
    XD_CLEANUP(json_decrefp) json_t *defaults = json_loads(a->defaults, 0, NULL);
    if (!defaults || json_object_update_missing(config, defaults))
        return xd_fail(err, XD_NOMEM, 0, "configuration");
    return a->delta == MODEL_DELTA_KIMI ? spread_kda(config, file, err)
           : a->spread                  ? a->spread(config, file, err)
                                        : XD_OK;
}

xd_status model_arch_of(model *m, json_t *config, const char *file, const model_arch **ret, xd_err *err)
{
    const char *type = hf_string(config, "model_type");
    const model_wrapper *w = type ? model_wrapper_find(type) : NULL;
    xd_status st;
    if (w && (st = unwrap(w, config, file, &type, err)))
        return st;
    const model_arch *a = type ? model_arch_find(type) : NULL;
    char known[800];
    if (!a || (w && a->nested[0]))
        return xd_fail(err, XD_UNSUPPORTED, 0, "%s: %s%smodel_type '%s' is not known; known are %s", file,
                       w ? w->text : "", w ? ": " : "", type ? type : "(none)", model_known_archs(known, sizeof known));
    m->prefix = w ? "language_model.model." : a->prefix;
    m->head = w ? "language_model.lm_head.weight" : a->head;
    m->names = a->names;
    *ret = a;
    return complete(a, config, file, err);
}

/* By its names; NULL ends them. */
static xd_status check_activation(const model_arch *a, const json_t *c, const char *file, xd_err *err)
{
    static const char *const of_silu[] = {"silu", "swish", NULL}, *const of_gelu[] = {"gelu_pytorch_tanh", NULL};
    const char *key = a->geglu ? "hidden_activation" : "hidden_act", *act = hf_string(c, key);
    const char *const *known = a->geglu ? of_gelu : of_silu;
    if (!hf_has(c, key))
        return XD_OK;
    for (size_t i = 0; act && known[i]; i++)
        if (!strcmp(act, known[i]))
            return XD_OK;
    return xd_fail(err, XD_UNSUPPORTED, 0, "%s: %s '%s'; %s models use %s here", file, key, act ? act : "(no text)",
                   a->model_type, known[0]);
}

static xd_status read_activation(model_params *p, const model_arch *a, const json_t *c, const char *file, xd_err *err)
{
    double alpha, limit;
    xd_status st;
    p->act = a->gpt_oss ? KERN_SWIGLU_CLAMPED : a->geglu ? KERN_GEGLU : a->apart ? KERN_RELU2 : KERN_SWIGLU;
    if ((st = check_activation(a, c, file, err)) || !a->gpt_oss)
        return st;
    if ((st = hf_real(c, file, "swiglu_alpha", 1.702, 0, 1e3, &alpha, err)) ||
        (st = hf_real(c, file, "swiglu_limit", 7, 1e-3, 1e6, &limit, err)))
        return st;
    p->act_alpha = (float)alpha;
    p->act_limit = (float)limit;
    return XD_OK;
}

/* What is left in bf16 (modules_to_not_convert) the tensors' names and types tell. */
static xd_status read_quantization(model *m, const model_arch *a, const json_t *c, const char *file, xd_err *err)
{
    if (!hf_has(c, "quantization_config"))
        return XD_OK;
    const char *method = hf_string(json_object_get(c, "quantization_config"), "quant_method");
    m->mxfp4 = a->gpt_oss && method && !strcmp(method, "mxfp4");
    if (m->mxfp4)
        return XD_OK;
    if (a->gpt_oss)
        return xd_fail(err, XD_UNSUPPORTED, 0,
                       "%s: gpt_oss with quantization_config, quant_method '%s', cannot be read; mxfp4 can", file,
                       method ? method : "(none)");
    const json_t *q = json_object_get(c, "quantization_config");
    return model_is_four_bits(q) ? model_read_four_bits(q, file, &m->four, err) : model_read_fp8(q, file, &m->fp8, err);
}

static unsigned known_ropes(const model_arch *a)
{
    return (a->partial_rotary ? ROPE_PARTIAL : 0) | (a->rope == MODEL_ROPE_TYPES  ? ROPE_BY_TYPE
                                                     : a->rope == MODEL_ROPE_LONG ? ROPE_LONG
                                                                                  : 0);
}

xd_status model_read_params(model *m, const model_arch *a, const json_t *c, const char *file, xd_err *err)
{
    model_params *p = &m->params;
    double eps;
    bool norm_topk, biased, mlp_biased, normed = a->qk_norm != MODEL_NORM_NONE;
    xd_status st;
    snprintf(p->arch, sizeof p->arch, "%s", a->model_type);
    if ((st = hf_u32(c, file, "num_hidden_layers", 0, 1, MODEL_MAX_LAYERS, &p->n_layers, err)) ||
        (st = hf_u32(c, file, "hidden_size", 0, 1, 1u << 16, &p->d_model, err)) ||
        (st = hf_u32(c, file, "num_attention_heads", 0, 1, 1024, &p->n_heads, err)) ||
        (st = hf_u32(c, file, "num_key_value_heads", p->n_heads, 1, 1024, &p->n_kv_heads, err)) ||
        (st = hf_u32(c, file, "head_dim", p->n_heads ? p->d_model / p->n_heads : 0, 1,
                     a->latent ? UINT32_MAX : MODEL_MAX_HEAD, &p->head_dim, err)) ||
        (st = hf_u32(c, file, "vocab_size", 0, 1, 1u << 24, &p->vocab, err)) ||
        (st = hf_u32(c, file, "max_position_embeddings", 0, 1, 1u << 30, &p->max_positions, err)) ||
        (st = hf_u32(c, file, "num_nextn_predict_layers", 0, 0, 64, &p->n_nextn, err)) ||
        (st = hf_real(c, file, "rms_norm_eps", 1e-6, 0, 1, &eps, err)) ||
        (st = hf_bool(c, file, "norm_topk_prob", false, &norm_topk, err)) ||
        (st = hf_bool(c, file, "mlp_bias", false, &mlp_biased, err)) ||
        (st = hf_bool(c, file, a->bias_key ? a->bias_key : "attention_bias", false, &biased, err)) ||
        (a->qk_norm == MODEL_NORM_ASKED && (st = hf_bool(c, file, "use_qk_norm", false, &normed, err))))
        return st;
    if (!p->n_layers || !p->d_model || !p->n_heads || !p->vocab || !p->max_positions)
        return xd_fail(err, XD_BAD_MODEL, 0, "%s: %s, %s, %s, %s and %s are needed", file,
                       hf_name(c, "num_hidden_layers"), hf_name(c, "hidden_size"), hf_name(c, "num_attention_heads"),
                       hf_name(c, "vocab_size"), hf_name(c, "max_position_embeddings"));
    if (a->latent && (st = model_read_latent(c, file, p, err)))
        return st;
    if (!a->latent && (p->n_heads % p->n_kv_heads || p->head_dim % 2))
        return xd_fail(err, XD_BAD_MODEL, 0, "%s: %s (%u) must be a multiple of %s (%u), and %s (%u) even", file,
                       hf_name(c, "num_attention_heads"), p->n_heads, hf_name(c, "num_key_value_heads"), p->n_kv_heads,
                       hf_name(c, "head_dim"), p->head_dim);
    if ((st = read_quantization(m, a, c, file, err)))
        return st;
    if (mlp_biased)
        return xd_fail(err, XD_UNSUPPORTED, 0, "%s: mlp_bias is not known for %s", file, a->model_type);

    p->rms_eps = (float)eps;
    p->attn_scale = (float)(1.0 / sqrt(p->head_dim));
    p->embed_scale = p->logit_scale = 1;
    p->gated = a->gated;
    p->v_normed = a->v_normed;
    p->norm_last = a->norm_last;
    p->layer_norms = a->layer_norms;
    p->router = (kern_router_args){.scoring = KERN_SOFTMAX_TOPK, .norm_topk = a->norm_topk_always || norm_topk};
    p->bos_id = -1;
    p->wide_qk_norm = a->qk_norm == MODEL_NORM_WIDE;
    m->qk_norm = normed;
    m->choice_bias = a->choice_bias;
    m->attention_bias = biased && (a->bias == MODEL_BIAS_ASKED || a->bias == MODEL_BIAS_QKV_ASKED);
    if ((st = read_activation(p, a, c, file, err)) || (st = model_read_full_heads(a, c, file, p, err)) ||
        (st = rope_read(c, file, a->default_theta, known_ropes(a), p, err)) ||
        (a->latent && (st = model_scale_latent(c, file, p, err))) || (st = model_read_layers(m, a, c, file, err)) ||
        (a->index && (st = model_read_index(m, a, c, file, err))))
        return st;
    return a->read ? a->read(m, c, file, err) : XD_OK;
}
