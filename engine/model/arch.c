/* arch.c - the architecture table and the reader of hyper-parameters. Adding a family of this shape is one row.
 *
 * Tensor names and defaults are those of Hugging Face transformers (modeling_*.py, configuration_*.py). */
#include <math.h>
#include <string.h>

#include "engine/model/hf_config.h"
#include "engine/model/model_priv.h"
#include "engine/model/rope.h"

static uint32_t json_u32(const json_t *o, const char *key)
{
    json_int_t v = json_integer_value(json_object_get(o, key));
    return v > 0 && v < UINT32_MAX ? (uint32_t)v : 0;
}

/* Mixtral, Mistral: the same window in every layer. */
static uint32_t window_always(const json_t *config, uint32_t layer)
{
    (void)layer;
    return json_u32(config, "sliding_window");
}

/* Qwen: only with use_sliding_window, in the layers that layer_types names, or from max_window_layers on. */
static uint32_t window_qwen(const json_t *config, uint32_t layer)
{
    if (!json_is_true(json_object_get(config, "use_sliding_window")))
        return 0;
    const char *type = json_string_value(json_array_get(json_object_get(config, "layer_types"), layer));
    bool sliding = type ? !strcmp(type, "sliding_attention") : layer >= json_u32(config, "max_window_layers");
    return sliding ? json_u32(config, "sliding_window") : 0;
}

/* Qwen3-MoE's attention slides, once switched on, in every layer (modeling_qwen3_moe.py). */
static uint32_t window_qwen_moe(const json_t *config, uint32_t layer)
{
    return json_is_true(json_object_get(config, "use_sliding_window")) ? window_always(config, layer) : 0;
}

#define QWEN_EXPERT(m)    "model.layers.%u.mlp.experts.%u." m "_proj.weight"
#define MIXTRAL_EXPERT(m) "model.layers.%u.block_sparse_moe.experts.%u." m ".weight"

static const model_arch archs[] = {
    {"llama", "LlamaForCausalLM", 10000, {NULL}, NULL, false, false, false, NULL},
    {"mistral", "MistralForCausalLM", 10000, {NULL}, NULL, false, false, false, window_always},
    {"mixtral",
     "MixtralForCausalLM",
     1e6,
     {MIXTRAL_EXPERT("w1"), MIXTRAL_EXPERT("w3"), MIXTRAL_EXPERT("w2")},
     "model.layers.%u.block_sparse_moe.gate.weight",
     true,
     false,
     false,
     window_always},
    {"qwen2", "Qwen2ForCausalLM", 10000, {NULL}, NULL, false, false, true, window_qwen},
    {"qwen3", "Qwen3ForCausalLM", 10000, {NULL}, NULL, false, true, false, window_qwen},
    {"qwen3_moe",
     "Qwen3MoeForCausalLM",
     10000,
     {QWEN_EXPERT("gate"), QWEN_EXPERT("up"), QWEN_EXPERT("down")},
     "model.layers.%u.mlp.gate.weight",
     false,
     true,
     false,
     window_qwen_moe},
};

const model_arch *model_arch_find(const char *model_type)
{
    for (size_t i = 0; i < XD_ARRAY_LEN(archs); i++)
        if (!strcmp(archs[i].model_type, model_type))
            return &archs[i];
    return NULL;
}

const char *model_known_archs(void)
{
    return "llama, mistral, mixtral, qwen2, qwen3, qwen3_moe";
}

/* A layer of a MoE family may still be dense: mlp_only_layers, decoder_sparse_step (Qwen). */
static bool layer_is_moe(const model_arch *a, const json_t *config, uint32_t layer, uint32_t sparse_step)
{
    if (!a->experts[0])
        return false;
    size_t i;
    json_t *v;
    json_array_foreach (json_object_get(config, "mlp_only_layers"), i, v)
        if (json_integer_value(v) == (json_int_t)layer)
            return false;
    return (layer + 1) % sparse_step == 0;
}

static xd_status read_layers(model *m, const model_arch *a, const json_t *c, const char *file, xd_err *err)
{
    model_params *p = &m->params;
    uint32_t n_experts = 0, top_k = 0, d_ff_moe = 0, d_ff = 0, sparse_step;
    xd_status st;
    const char *n_key = hf_has(c, "num_experts") ? "num_experts" : "num_local_experts";
    const char *moe_key = hf_has(c, "moe_intermediate_size") ? "moe_intermediate_size" : "intermediate_size";
    if ((st = hf_u32(c, file, "decoder_sparse_step", 1, 1, MODEL_MAX_LAYERS, &sparse_step, err)) ||
        (st = hf_u32(c, file, "intermediate_size", 0, 1, 1u << 20, &d_ff, err)))
        return st;
    if (a->experts[0] && ((st = hf_u32(c, file, n_key, 0, 1, MODEL_MAX_EXPERTS, &n_experts, err)) ||
                          (st = hf_u32(c, file, "num_experts_per_tok", 0, 1, MODEL_MAX_TOP_K, &top_k, err)) ||
                          (st = hf_u32(c, file, moe_key, 0, 1, 1u << 20, &d_ff_moe, err))))
        return st;
    if (a->experts[0] && (!n_experts || !top_k || top_k > n_experts || !d_ff_moe))
        return xd_fail(err, XD_BAD_MODEL, 0,
                       "%s: num_experts, num_experts_per_tok (at most num_experts) and %s are needed", file, moe_key);

    m->layers = calloc(p->n_layers, sizeof *m->layers);
    if (!m->layers)
        return xd_fail(err, XD_NOMEM, 0, "layers of the model");
    size_t n_tensors = 0;
    for (uint32_t l = 0; l < p->n_layers; l++) {
        bool moe = layer_is_moe(a, c, l, sparse_step);
        m->layers[l].moe = moe;
        m->layers[l].n_experts = moe ? n_experts : 1;
        m->layers[l].top_k = moe ? top_k : 1;
        m->layers[l].d_ff = moe ? d_ff_moe : d_ff;
        m->layers[l].window = a->window ? a->window(c, l) : 0;
        if (!m->layers[l].d_ff)
            return xd_fail(err, XD_BAD_MODEL, 0, "%s: intermediate_size is needed for the dense layer %u", file, l);
        p->n_experts_max = XD_MAX(p->n_experts_max, m->layers[l].n_experts);
        p->top_k_max = XD_MAX(p->top_k_max, m->layers[l].top_k);
        p->d_ff_max = XD_MAX(p->d_ff_max, m->layers[l].d_ff);
        n_tensors += (size_t)m->layers[l].n_experts * MODEL_MATRICES;
    }
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

xd_status model_read_params(model *m, const model_arch *a, const json_t *c, const char *file, xd_err *err)
{
    model_params *p = &m->params;
    double eps;
    bool norm_topk;
    xd_status st;
    snprintf(p->arch, sizeof p->arch, "%s", a->model_type);
    if ((st = hf_u32(c, file, "num_hidden_layers", 0, 1, MODEL_MAX_LAYERS, &p->n_layers, err)) ||
        (st = hf_u32(c, file, "hidden_size", 0, 1, 1u << 16, &p->d_model, err)) ||
        (st = hf_u32(c, file, "num_attention_heads", 0, 1, 1024, &p->n_heads, err)) ||
        (st = hf_u32(c, file, "num_key_value_heads", p->n_heads, 1, 1024, &p->n_kv_heads, err)) ||
        (st = hf_u32(c, file, "head_dim", p->n_heads ? p->d_model / p->n_heads : 0, 1, MODEL_MAX_HEAD, &p->head_dim,
                     err)) ||
        (st = hf_u32(c, file, "vocab_size", 0, 1, 1u << 24, &p->vocab, err)) ||
        (st = hf_u32(c, file, "max_position_embeddings", 0, 1, 1u << 30, &p->max_positions, err)) ||
        (st = hf_real(c, file, "rms_norm_eps", 1e-6, 0, 1, &eps, err)) ||
        (st = hf_bool(c, file, "norm_topk_prob", false, &norm_topk, err)))
        return st;
    if (!p->n_layers || !p->d_model || !p->n_heads || !p->vocab || !p->max_positions)
        return xd_fail(
            err, XD_BAD_MODEL, 0,
            "%s: num_hidden_layers, hidden_size, num_attention_heads, vocab_size and max_position_embeddings are needed",
            file);
    if (p->n_heads % p->n_kv_heads || p->head_dim % 2)
        return xd_fail(err, XD_BAD_MODEL, 0, "%s: %u heads cannot share %u key/value heads of even size (%u)", file,
                       p->n_heads, p->n_kv_heads, p->head_dim);
    const char *act = hf_string(c, "hidden_act");
    if (act && strcmp(act, "silu"))
        return xd_fail(err, XD_UNSUPPORTED, 0, "%s: hidden_act '%s'; %s models use silu here", file, act,
                       a->model_type);
    if (hf_has(c, "quantization_config"))
        return xd_fail(err, XD_UNSUPPORTED, 0,
                       "%s: quantized checkpoints (quantization_config) cannot be read; use a BF16, F16 or F32 one",
                       file);
    if (json_is_true(json_object_get(c, "mlp_bias")))
        return xd_fail(err, XD_UNSUPPORTED, 0, "%s: mlp_bias is not known for %s", file, a->model_type);

    p->rms_eps = (float)eps;
    p->attn_scale = (float)(1.0 / sqrt(p->head_dim));
    p->embed_scale = 1;
    p->scoring = KERN_SOFTMAX_TOPK;
    p->norm_topk = a->norm_topk_always || norm_topk;
    p->bos_id = -1;
    if ((st = rope_read(c, file, a->default_theta, p, err)))
        return st;
    return read_layers(m, a, c, file, err);
}
