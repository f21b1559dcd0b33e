/* delta.c - the hyper-parameters of linear layers (Gated DeltaNet), as config.json has them. Source: configuration_qwen3_next.py and
 * configuration_qwen3_5_moe.py of Hugging Face transformers. */
#include <string.h>

#include "engine/model/hf_config.h"
#include "engine/model/model_priv.h"

static xd_status choose_layers(model *m, const json_t *c, const char *file, xd_err *err)
{
    const uint32_t n = m->params.n_layers;
    const json_t *types = hf_has(c, "layer_types") ? json_object_get(c, "layer_types") : NULL;
    uint32_t interval, n_linear = 0;
    xd_status st = hf_u32(c, file, "full_attention_interval", 4, 1, MODEL_MAX_LAYERS, &interval, err);
    if (st)
        return st;
    if (types && json_array_size(types) != n)
        return xd_fail(err, XD_BAD_MODEL, 0, "%s: layer_types must list num_hidden_layers = %u layers", file, n);
    for (uint32_t l = 0; l < n; l++) {
        const char *type = json_string_value(json_array_get(types, l));
        if (types && (!type || (strcmp(type, "linear_attention") && strcmp(type, "full_attention"))))
            return xd_fail(
                err, XD_UNSUPPORTED, 0,
                "%s: layer_types has '%s' for layer %u; 'linear_attention' and 'full_attention' are known in "
                "a %s model",
                file, type ? type : "(no text)", l, m->params.arch);
        m->layers[l].linear = types ? !strcmp(type, "linear_attention") : (l + 1) % interval != 0;
        n_linear += m->layers[l].linear;
    }
    if (n_linear == n)
        return xd_fail(err, XD_UNSUPPORTED, 0,
                       "%s: all layers have linear attention; one with full attention is needed", file);
    if (!n_linear)
        m->params.delta = (kern_delta_geom){0};
    return XD_OK;
}

xd_status model_read_delta(model *m, const json_t *c, const char *file, xd_err *err)
{
    kern_delta_geom *g = &m->params.delta;
    xd_status st;
    if ((st = hf_u32(c, file, "linear_num_key_heads", 16, 1, 1024, &g->n_k_heads, err)) ||
        (st = hf_u32(c, file, "linear_num_value_heads", 32, 1, 1024, &g->n_v_heads, err)) ||
        (st = hf_u32(c, file, "linear_key_head_dim", 128, 1, MODEL_MAX_HEAD, &g->k_dim, err)) ||
        (st = hf_u32(c, file, "linear_value_head_dim", 128, 1, MODEL_MAX_HEAD, &g->v_dim, err)) ||
        (st = hf_u32(c, file, "linear_conv_kernel_dim", 4, 1, 64, &g->conv, err)))
        return st;
    if (g->n_v_heads % g->n_k_heads)
        return xd_fail(err, XD_BAD_MODEL, 0, "%s: %s (%u) must be a multiple of %s (%u)", file,
                       hf_name(c, "linear_num_value_heads"), g->n_v_heads, hf_name(c, "linear_num_key_heads"),
                       g->n_k_heads);
    return choose_layers(m, c, file, err);
}
