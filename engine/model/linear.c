/* linear.c - the hyper-parameters of linear layers (Gated DeltaNet, Mamba2, short convolutions), as config.json has them, and which layers these are.
 * Source: configuration_qwen3_next.py, configuration_qwen3_5_moe.py, configuration_lfm2_moe.py,
 * configuration_granitemoehybrid.py and configuration_nemotron_h.py of Hugging Face transformers. */
#include <string.h>

#include "engine/model/hf_config.h"
#include "engine/model/model_priv.h"

uint64_t model_state_floats(const model_params *p)
{
    return p->shortconv.channels ? kern_shortconv_state_floats(&p->shortconv)
           : p->ssm.n_heads      ? kern_ssm_state_floats(&p->ssm)
                                 : kern_delta_state_floats(&p->delta);
}

/* layer_types names them `name`; where a file has no such list, all but every interval-th are linear (0: it must have one). `apart`: some
 * have an FFN and nothing else, which layers.c knows by then. */
static xd_status choose_layers(model *m, const json_t *c, const char *file, const char *name, uint32_t interval,
                               bool apart, xd_err *err)
{
    const uint32_t n = m->params.n_layers;
    const json_t *types = hf_has(c, "layer_types") ? json_object_get(c, "layer_types") : NULL;
    uint32_t n_linear = 0, n_attention = 0;
    if (!types && !interval)
        return xd_fail(err, XD_BAD_MODEL, 0, "%s: %s is needed for a %s model", file, hf_name(c, "layer_types"),
                       m->params.arch);
    if (types && json_array_size(types) != n)
        return xd_fail(err, XD_BAD_MODEL, 0, "%s: layer_types must list num_hidden_layers = %u layers", file, n);
    for (uint32_t l = 0; l < n; l++) {
        const char *type = json_string_value(json_array_get(types, l));
        m->layers[l].ffn_alone = apart && m->layers[l].n_experts;
        if (m->layers[l].ffn_alone)
            continue;
        if (m->params.ssm.n_heads && type) /* older names of the same */
            type = !strcmp(type, "mamba") ? name : !strcmp(type, "attention") ? "full_attention" : type;
        if (types && (!type || (strcmp(type, name) && strcmp(type, "full_attention"))))
            return xd_fail(err, XD_UNSUPPORTED, 0,
                           "%s: layer_types has '%s' for layer %u; '%s'%s and 'full_attention' are known in a %s model",
                           file, type ? type : "(no text)", l, name, apart ? ", 'moe', 'mlp'" : "", m->params.arch);
        m->layers[l].linear = types ? !strcmp(type, name) : (l + 1) % interval != 0;
        *(m->layers[l].linear ? &n_linear : &n_attention) += 1;
    }
    if (!n_attention)
        return xd_fail(err, XD_UNSUPPORTED, 0, "%s: all layers have %s; one with full attention is needed", file,
                       strcmp(name, "conv") ? "linear attention" : "a convolution");
    if (!n_linear) {
        m->params.delta = (kern_delta_geom){0};
        m->params.shortconv = (kern_shortconv_geom){0};
        m->params.ssm = (kern_ssm_geom){0};
    }
    return XD_OK;
}

xd_status model_read_delta(model *m, const model_arch *a, const json_t *c, const char *file, xd_err *err)
{
    kern_delta_geom *g = &m->params.delta;
    g->by_channel = a->delta == MODEL_DELTA_KIMI;
    uint32_t interval;
    xd_status st;
    if ((st = hf_u32(c, file, "linear_num_key_heads", 16, 1, 1024, &g->n_k_heads, err)) ||
        (st = hf_u32(c, file, "linear_num_value_heads", 32, 1, 1024, &g->n_v_heads, err)) ||
        (st = hf_u32(c, file, "linear_key_head_dim", 128, 1, MODEL_MAX_HEAD, &g->k_dim, err)) ||
        (st = hf_u32(c, file, "linear_value_head_dim", 128, 1, MODEL_MAX_HEAD, &g->v_dim, err)) ||
        (st = hf_u32(c, file, "linear_conv_kernel_dim", 4, 1, 64, &g->conv, err)) ||
        (st = hf_u32(c, file, "full_attention_interval", 4, 1, MODEL_MAX_LAYERS, &interval, err)))
        return st;
    if (g->n_v_heads % g->n_k_heads)
        return xd_fail(err, XD_BAD_MODEL, 0, "%s: %s (%u) must be a multiple of %s (%u)", file,
                       hf_name(c, "linear_num_value_heads"), g->n_v_heads, hf_name(c, "linear_num_key_heads"),
                       g->n_k_heads);
    if (g->by_channel) /* Kimi-Linear's are listed */
        interval = 0;
    return choose_layers(m, c, file, "linear_attention", interval, false, err);
}

xd_status model_read_shortconv(model *m, const json_t *c, const char *file, xd_err *err)
{
    bool biased;
    xd_status st;
    m->params.shortconv.channels = m->params.d_model;
    if ((st = hf_u32(c, file, "conv_L_cache", 3, 2, 64, &m->params.shortconv.conv, err)) ||
        (st = hf_bool(c, file, "conv_bias", false, &biased, err)))
        return st;
    if (biased)
        return xd_fail(err, XD_UNSUPPORTED, 0, "%s: conv_bias true is not known for %s", file, m->params.arch);
    return choose_layers(m, c, file, "conv", 0, false, err);
}

/* The convolution's size by the heads', or told; Nemotron-H makes no use of mamba_expand. */
xd_status model_read_ssm(model *m, const model_arch *a, const json_t *c, const char *file, xd_err *err)
{
    const json_t *limits = json_object_get(c, "time_step_limit"), *most = json_array_get(limits, 1);
    const char *d_head = hf_string(c, "mamba_d_head"), *tag = hf_string(most, "__float__");
    kern_ssm_geom *g = &m->params.ssm;
    uint32_t expand;
    bool biased;
    xd_status st;
    if ((st = hf_u32(c, file, "mamba_n_heads", 128, 1, 1024, &g->n_heads, err)) ||
        (st = hf_u32(c, file, "mamba_n_groups", 1, 1, 1024, &g->n_groups, err)) ||
        (st = hf_u32(c, file, "mamba_d_state", 256, 1, 4096, &g->d_state, err)) ||
        (st = hf_u32(c, file, "mamba_d_conv", 4, 2, 64, &g->conv, err)) ||
        (st = hf_u32(c, file, "mamba_expand", 2, 1, 64, &expand, err)) ||
        (st = hf_bool(c, file, "mamba_conv_bias", true, &m->conv_bias, err)) ||
        (st = hf_bool(c, file, "mamba_proj_bias", false, &biased, err)))
        return st;
    const uint32_t inner = expand * m->params.d_model;
    g->head_dim = inner / g->n_heads;
    if (!(d_head && !strcmp(d_head, "auto")) &&
        (st = hf_u32(c, file, "mamba_d_head", g->head_dim, 1, MODEL_MAX_HEAD, &g->head_dim, err)))
        return st;
    if (a->apart && (g->n_heads % g->n_groups || g->head_dim > MODEL_MAX_HEAD))
        return xd_fail(err, XD_BAD_MODEL, 0, "%s: %s (%u) must be a multiple of %s (%u), and %s (%u) at most %d", file,
                       hf_name(c, "mamba_n_heads"), g->n_heads, hf_name(c, "mamba_n_groups"), g->n_groups,
                       hf_name(c, "mamba_d_head"), g->head_dim, MODEL_MAX_HEAD);
    if (!a->apart && (g->n_heads * g->head_dim != inner || g->n_heads % g->n_groups || g->head_dim > MODEL_MAX_HEAD))
        return xd_fail(err, XD_BAD_MODEL, 0,
                       "%s: mamba_n_heads (%u) times mamba_d_head (%u) must be mamba_expand times hidden_size (%u), "
                       "and a multiple of mamba_n_groups (%u)",
                       file, g->n_heads, g->head_dim, inner, g->n_groups);
    if (biased)
        return xd_fail(err, XD_UNSUPPORTED, 0, "%s: mamba_proj_bias true is not known for %s", file, m->params.arch);
    if (hf_has(c, "time_step_limit") &&
        (json_array_size(limits) != 2 || json_number_value(json_array_get(limits, 0)) > 0 || !tag ||
         strcmp(tag, "Infinity")))
        return xd_fail(err, XD_UNSUPPORTED, 0, "%s: time_step_limit other than from 0 to infinity is not known for %s",
                       file, m->params.arch);
    m->params.ssm_eps = m->params.rms_eps;
    return choose_layers(m, c, file, "linear_attention", 0, a->apart, err);
}
