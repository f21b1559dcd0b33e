/* latent.c - the hyper-parameters of latent attention (DeepSeek-V2 and V3), as config.json has them.
 *
 * What is kept of a token is one KV head (see model_params.latent); that num_key_value_heads names as many heads as Q has is what the
 * expanded form would need. Source: modeling_deepseek_v2.py and _v3.py of Hugging Face transformers. */
#include <math.h>

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
