/* latent.c - the hyper-parameters of latent attention (DeepSeek-V2 and V3), and of the indexer beside it (DeepSeek-V3.2, GLM-5), as config.json has them.
 *
 * What is kept of a token is one KV head (see model_params.latent); that num_key_value_heads names as many heads as Q has is what the
 * expanded form would need. Source: modeling_deepseek_v2.py and _v3.py of Hugging Face transformers, configuration_glm_moe_dsa.py for which layers have an indexer. */
#include <math.h>
#include <string.h>

#include "engine/model/hf_config.h"
#include "engine/model/model_priv.h"
#include "engine/model/rope.h"

xd_status model_read_latent(const json_t *c, const char *file, model_params *p, xd_err *err)
{
    uint32_t kv_heads;
    bool interleaved;
    xd_status st;
    if ((st = hf_u32(c, file, "kv_lora_rank", 0, 1, MODEL_MAX_LATENT, &p->latent.kv_rank, err)) ||
        (st = hf_u32(c, file, "q_lora_rank", 0, 1, 1u << 16, &p->latent.q_rank, err)) ||
        (st = hf_u32(c, file, "qk_nope_head_dim", 0, 1, MODEL_MAX_LATENT, &p->latent.nope_dim, err)) ||
        (st = hf_u32(c, file, "qk_rope_head_dim", 0, 2, MODEL_MAX_LATENT, &p->latent.rope_dim, err)) ||
        (st = hf_u32(c, file, "v_head_dim", 0, 1, MODEL_MAX_LATENT, &p->latent.v_dim, err)) ||
        (st = hf_u32(c, file, "num_key_value_heads", p->n_heads, 1, 1024, &kv_heads, err)) ||
        (st = hf_bool(c, file, "rope_interleave", true, &interleaved, err)))
        return st;
    if (!p->latent.kv_rank || !p->latent.nope_dim || !p->latent.rope_dim || !p->latent.v_dim)
        return xd_fail(err, XD_BAD_MODEL, 0, "%s: %s, %s, %s and %s are needed", file, hf_name(c, "kv_lora_rank"),
                       hf_name(c, "qk_nope_head_dim"), hf_name(c, "qk_rope_head_dim"), hf_name(c, "v_head_dim"));
    if (p->latent.rope_dim % 2)
        return xd_fail(err, XD_BAD_MODEL, 0, "%s: %s must be even, not %u", file, hf_name(c, "qk_rope_head_dim"),
                       p->latent.rope_dim);
    if (kv_heads != p->n_heads)
        return xd_fail(err, XD_UNSUPPORTED, 0,
                       "%s: num_key_value_heads = %u; with latent attention it is known only as num_attention_heads "
                       "(%u)",
                       file, kv_heads, p->n_heads);
    p->latent.norm_eps = 1e-6f; /* of these norms, whatever rms_norm_eps says */
    p->n_kv_heads = 1;
    p->head_dim = p->latent.kv_rank + p->latent.rope_dim;
    p->rope_interleaved = interleaved;
    return XD_OK;
}

/* With scaled frequencies scores grow by the square of what mscale_all_dim says. */
xd_status model_scale_latent(const json_t *c, const char *file, model_params *p, xd_err *err)
{
    double factor;
    xd_status st = rope_latent_factor(c, file, &factor, err);
    p->attn_scale = (float)(factor * factor / sqrt(p->latent.nope_dim + p->latent.rope_dim));
    return st;
}

/* Layers by a list of "full" and "shared", or by letters. */
static xd_status list_indexers(model *m, const json_t *c, const char *file, const char *key, xd_err *err)
{
    const json_t *list = json_object_get(c, key);
    const char *letters = json_string_value(list);
    const size_t n = letters ? strlen(letters) : json_array_size(list);
    if (n != m->params.n_layers)
        return xd_fail(err, XD_BAD_MODEL, 0, "%s: %s must list num_hidden_layers = %u layers", file, hf_name(c, key),
                       m->params.n_layers);
    for (uint32_t l = 0; l < n; l++) {
        const char letter[2] = {letters ? letters[l] : 0, 0};
        const char *type = letters ? letter : json_string_value(json_array_get(list, l));
        m->layers[l].index.own = type && !strcmp(type, letters ? "F" : "full");
        if (!m->layers[l].index.own && (!type || strcmp(type, letters ? "S" : "shared")))
            return xd_fail(err, XD_UNSUPPORTED, 0, "%s: %s has '%s' for layer %u; %s are known", file, hf_name(c, key),
                           type ? type : "(no text)", l, letters ? "F and S" : "'full' and 'shared'");
    }
    return XD_OK;
}

static xd_status read_indexer_types(model *m, const json_t *c, const char *file, xd_err *err)
{
    static const char types[] = "indexer_types", pattern[] = "index_topk_pattern";
    const char *told = hf_has(c, types) ? types : hf_has(c, pattern) ? pattern : NULL;
    uint32_t step, offset;
    xd_status st;
    if (told)
        return list_indexers(m, c, file, told, err);
    if ((st = hf_u32(c, file, "index_topk_freq", 1, 0, MODEL_MAX_LAYERS, &step, err)) ||
        (st = hf_u32(c, file, "index_skip_topk_offset", 2, 0, MODEL_MAX_LAYERS, &offset, err)))
        return st;
    for (uint32_t l = 0; l < m->params.n_layers; l++)
        m->layers[l].index.own = l + 1 <= offset || (l + 1 - offset) % XD_MAX(step, 1u) == 0;
    return XD_OK;
}

xd_status model_read_index(model *m, const model_arch *a, const json_t *c, const char *file, xd_err *err)
{
    model_params *p = &m->params;
    const bool pairs = a->index == MODEL_INDEX_TYPES;
    bool told;
    xd_status st;
    if ((st = hf_u32(c, file, "index_topk", 0, 1, UINT32_MAX, &p->index.top_k, err)) ||
        (st = hf_u32(c, file, "index_head_dim", 0, 1, MODEL_MAX_LATENT, &p->index.dim, err)) ||
        (st = hf_u32(c, file, "index_n_heads", 0, 1, 1024, &p->index.n_heads, err)) ||
        (st = hf_bool(c, file, "indexer_rope_interleave", pairs, &told, err)))
        return st;
    if (!p->index.top_k || !p->index.n_heads || p->index.dim < p->latent.rope_dim || !p->latent.q_rank)
        return xd_fail(
            err, XD_BAD_MODEL, 0,
            "%s: %s, %s, %s and %s are needed, and an indexer of no fewer columns (%u) than are rotated (%u)", file,
            hf_name(c, "index_topk"), hf_name(c, "index_n_heads"), hf_name(c, "index_head_dim"),
            hf_name(c, "q_lora_rank"), p->index.dim, p->latent.rope_dim);
    if (told != pairs || !p->rope_interleaved)
        return xd_fail(err, XD_UNSUPPORTED, 0, "%s: %s %s is not known for %s", file,
                       told != pairs ? "indexer_rope_interleave" : "rope_interleave",
                       told != pairs && told ? "true" : "false", a->model_type);
    p->index.interleaved = pairs;
    p->index.norm_eps = 1e-6f;
    for (uint32_t l = 0; l < p->n_layers; l++)
        m->layers[l].index.own = true;
    if (pairs && (st = read_indexer_types(m, c, file, err)))
        return st;
    return m->layers[0].index.own
               ? XD_OK
               : xd_fail(err, XD_BAD_MODEL, 0, "%s: layer 0 must have an indexer of its own: there is none before it",
                         file);
}
