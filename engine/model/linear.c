/* linear.c - the hyper-parameters of linear layers (Gated DeltaNet, short convolutions), as config.json has them, and which layers these are.
 * Source: configuration_qwen3_next.py, configuration_qwen3_5_moe.py and configuration_lfm2_moe.py of Hugging Face transformers. */
#include <string.h>

#include "engine/model/hf_config.h"
#include "engine/model/model_priv.h"

uint64_t model_state_floats(const model_params *p)
{
    return p->shortconv.channels ? kern_shortconv_state_floats(&p->shortconv) : kern_delta_state_floats(&p->delta);
}

/* layer_types names them `name`; where a file has no such list, all but every interval-th are linear (0: it must have one). */
static xd_status choose_layers(model *m, const json_t *c, const char *file, const char *name, uint32_t interval,
                               xd_err *err)
{
    const uint32_t n = m->params.n_layers;
    const json_t *types = hf_has(c, "layer_types") ? json_object_get(c, "layer_types") : NULL;
    uint32_t n_linear = 0;
    if (!types && !interval)
        return xd_fail(err, XD_BAD_MODEL, 0, "%s: %s is needed for a %s model", file, hf_name(c, "layer_types"),
                       m->params.arch);
    if (types && json_array_size(types) != n)
        return xd_fail(err, XD_BAD_MODEL, 0, "%s: layer_types must list num_hidden_layers = %u layers", file, n);
    for (uint32_t l = 0; l < n; l++) {
        const char *type = json_string_value(json_array_get(types, l));
        if (types && (!type || (strcmp(type, name) && strcmp(type, "full_attention"))))
            return xd_fail(err, XD_UNSUPPORTED, 0,
                           "%s: layer_types has '%s' for layer %u; '%s' and 'full_attention' are known in a %s model",
                           file, type ? type : "(no text)", l, name, m->params.arch);
        m->layers[l].linear = types ? !strcmp(type, name) : (l + 1) % interval != 0;
        n_linear += m->layers[l].linear;
    }
    if (n_linear == n)
        return xd_fail(err, XD_UNSUPPORTED, 0, "%s: all layers have %s; one with full attention is needed", file,
                       strcmp(name, "conv") ? "linear attention" : "a convolution");
    if (!n_linear) {
        m->params.delta = (kern_delta_geom){0};
        m->params.shortconv = (kern_shortconv_geom){0};
    }
    return XD_OK;
}

xd_status model_read_delta(model *m, const json_t *c, const char *file, xd_err *err)
{
    kern_delta_geom *g = &m->params.delta;
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
    return choose_layers(m, c, file, "linear_attention", interval, err);
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
    return choose_layers(m, c, file, "conv", 0, err);
}
