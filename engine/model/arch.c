/* arch.c - the architecture table and the reader of hyper-parameters. Adding a family of this shape is one row.
 *
 * Tensor names and defaults are those of Hugging Face transformers (modeling_*.py, configuration_*.py). */
#include <math.h>
#include <string.h>
#include <strings.h>

#include "engine/model/hf_config.h"
#include "engine/model/model_priv.h"
#include "engine/model/rope.h"

#define QWEN_EXPERT(m)    "model.layers.%u.mlp.experts.%u." m "_proj.weight"
#define MIXTRAL_EXPERT(m) "model.layers.%u.block_sparse_moe.experts.%u." m ".weight"

static const model_arch archs[] = {
    {.model_type = "llama",
     .class_name = "LlamaForCausalLM",
     .defaults = "{\"vocab_size\":32000,\"hidden_size\":4096,\"intermediate_size\":11008,\"num_hidden_layers\":32,"
                 "\"num_attention_heads\":32,\"max_position_embeddings\":2048}",
     .default_theta = 10000,
     .bias = MODEL_BIAS_ASKED},
    {.model_type = "mistral",
     .class_name = "MistralForCausalLM",
     .defaults = "{\"vocab_size\":32000,\"hidden_size\":4096,\"intermediate_size\":14336,\"num_hidden_layers\":32,"
                 "\"num_attention_heads\":32,\"num_key_value_heads\":8,\"max_position_embeddings\":131072,"
                 "\"sliding_window\":4096}",
     .default_theta = 10000,
     .window = MODEL_WINDOW_ALL},
    {.model_type = "mixtral",
     .class_name = "MixtralForCausalLM",
     .defaults = "{\"vocab_size\":32000,\"hidden_size\":4096,\"intermediate_size\":14336,\"num_hidden_layers\":32,"
                 "\"num_attention_heads\":32,\"num_key_value_heads\":8,\"max_position_embeddings\":131072,"
                 "\"rms_norm_eps\":1e-5,\"num_local_experts\":8,\"num_experts_per_tok\":2}",
     .default_theta = 1e6,
     .experts = {MIXTRAL_EXPERT("w1"), MIXTRAL_EXPERT("w3"), MIXTRAL_EXPERT("w2")},
     .router = "model.layers.%u.block_sparse_moe.gate.weight",
     .moe_size_key = "intermediate_size",
     .norm_topk_always = true,
     .window = MODEL_WINDOW_ALL},
    {.model_type = "qwen2",
     .class_name = "Qwen2ForCausalLM",
     .defaults = "{\"vocab_size\":151936,\"hidden_size\":4096,\"intermediate_size\":22016,\"num_hidden_layers\":32,"
                 "\"num_attention_heads\":32,\"num_key_value_heads\":32,\"max_position_embeddings\":32768,"
                 "\"sliding_window\":4096,\"max_window_layers\":28}",
     .default_theta = 10000,
     .bias = MODEL_BIAS_QKV,
     .window = MODEL_WINDOW_LISTED},
    {.model_type = "qwen3",
     .class_name = "Qwen3ForCausalLM",
     .defaults = "{\"vocab_size\":151936,\"hidden_size\":4096,\"intermediate_size\":22016,\"num_hidden_layers\":32,"
                 "\"num_attention_heads\":32,\"num_key_value_heads\":32,\"head_dim\":128,"
                 "\"max_position_embeddings\":32768,\"sliding_window\":4096,\"max_window_layers\":28}",
     .default_theta = 10000,
     .qk_norm = true,
     .bias = MODEL_BIAS_ASKED,
     .window = MODEL_WINDOW_LISTED},
    {.model_type = "qwen3_moe",
     .class_name = "Qwen3MoeForCausalLM",
     .defaults = "{\"vocab_size\":151936,\"hidden_size\":2048,\"intermediate_size\":6144,\"num_hidden_layers\":24,"
                 "\"num_attention_heads\":32,\"num_key_value_heads\":4,\"max_position_embeddings\":32768,"
                 "\"sliding_window\":4096,\"moe_intermediate_size\":768,\"num_experts_per_tok\":8,"
                 "\"num_local_experts\":128}",
     .default_theta = 10000,
     .experts = {QWEN_EXPERT("gate"), QWEN_EXPERT("up"), QWEN_EXPERT("down")},
     .router = "model.layers.%u.mlp.gate.weight",
     .moe_size_key = "moe_intermediate_size",
     .qk_norm = true,
     .bias = MODEL_BIAS_ASKED,
     .window = MODEL_WINDOW_SWITCHED},
    {.model_type = "gpt_oss",
     .class_name = "GptOssForCausalLM",
     .defaults = "{\"vocab_size\":201088,\"hidden_size\":2880,\"intermediate_size\":2880,\"num_hidden_layers\":36,"
                 "\"num_attention_heads\":64,\"num_key_value_heads\":8,\"head_dim\":64,"
                 "\"max_position_embeddings\":131072,\"rms_norm_eps\":1e-5,\"sliding_window\":128,"
                 "\"num_local_experts\":128,\"num_experts_per_tok\":4,\"attention_bias\":true,"
                 "\"rope_parameters\":{\"rope_type\":\"yarn\",\"factor\":32.0,\"beta_fast\":32.0,\"beta_slow\":1.0,"
                 "\"truncate\":false,\"original_max_position_embeddings\":4096}}",
     .default_theta = 150000,
     .experts = {"model.layers.%u.mlp.experts.gate_up_proj", "model.layers.%u.mlp.experts.gate_up_proj",
                 "model.layers.%u.mlp.experts.down_proj"},
     .router = "model.layers.%u.mlp.router.weight",
     .moe_size_key = "intermediate_size",
     .norm_topk_always = true,
     .gpt_oss = true,
     .bias = MODEL_BIAS_ASKED,
     .window = MODEL_WINDOW_EVEN},
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
    return "gpt_oss, llama, mistral, mixtral, qwen2, qwen3, qwen3_moe";
}

/* transformers calls the experts by one name and reads another too. */
static xd_status name_experts(json_t *config, xd_err *err)
{
    json_t *n = json_object_get(config, "num_experts");
    if (!n || hf_has(config, "num_local_experts"))
        return XD_OK;
    return json_object_set(config, "num_local_experts", n) ? xd_fail(err, XD_NOMEM, 0, "configuration") : XD_OK;
}

static xd_status check_class(const model_arch *a, const json_t *config, const char *file, xd_err *err)
{
    const char *name = json_string_value(json_array_get(json_object_get(config, "architectures"), 0));
    for (size_t i = 0; name && i < XD_ARRAY_LEN(archs); i++)
        if (!strcasecmp(name, archs[i].class_name)) /* early checkpoints say LLaMAForCausalLM */
            return XD_OK;
    return name ? xd_fail(err, XD_UNSUPPORTED, 0, "%s: architectures names '%s'; of model_type '%s' %s is known", file,
                          name, a->model_type, a->class_name)
                : XD_OK;
}

xd_status model_arch_complete(const model_arch *a, json_t *config, const char *file, xd_err *err)
{
    xd_status st = check_class(a, config, file, err);
    if (st || (st = name_experts(config, err)))
        return st;
    XD_CLEANUP(json_decrefp) json_t *defaults = json_loads(a->defaults, 0, NULL);
    return !defaults || json_object_update_missing(config, defaults) ? xd_fail(err, XD_NOMEM, 0, "configuration")
                                                                     : XD_OK;
}

/* The window of each layer. Mistral, Mixtral: the same in all. Qwen: only with use_sliding_window, and in the layers that layer_types
 * names, or from max_window_layers on; Qwen3-MoE in all; gpt-oss in those that layer_types names. A list that says something else than what the family does is refused. */
static xd_status read_windows(model *m, const model_arch *a, const json_t *c, const char *file, xd_err *err)
{
    uint32_t window = 0, first = 0, n_layers = m->params.n_layers;
    bool use = a->window != MODEL_WINDOW_NONE;
    xd_status st = XD_OK;
    if (a->window == MODEL_WINDOW_SWITCHED || a->window == MODEL_WINDOW_LISTED)
        st = hf_bool(c, file, "use_sliding_window", false, &use, err);
    if (!st && use)
        st = hf_u32(c, file, "sliding_window", 0, 1, INT32_MAX, &window, err);
    if (!st && a->window == MODEL_WINDOW_LISTED)
        st = hf_u32(c, file, "max_window_layers", 0, 0, INT32_MAX, &first, err);
    if (st)
        return st;
    const json_t *types = hf_has(c, "layer_types") ? json_object_get(c, "layer_types") : NULL;
    if (a->window == MODEL_WINDOW_EVEN && !window)
        return xd_fail(err, XD_UNSUPPORTED, 0, "%s: sliding_window is needed for a %s model", file, a->model_type);
    if (types && json_array_size(types) != n_layers)
        return xd_fail(err, XD_BAD_MODEL, 0, "%s: layer_types must list num_hidden_layers = %u layers", file, n_layers);
    for (uint32_t l = 0; l < n_layers; l++) {
        bool sliding = window && l >= first && (a->window != MODEL_WINDOW_EVEN || l % 2 == 0);
        const char *type = json_string_value(json_array_get(types, l));
        bool listed = type && !strcmp(type, "sliding_attention");
        if (types && (a->window == MODEL_WINDOW_LISTED || a->window == MODEL_WINDOW_EVEN))
            sliding = listed && window;
        if (types && (!type || listed != sliding || (!listed && strcmp(type, "full_attention"))))
            return xd_fail(
                err, XD_UNSUPPORTED, 0,
                "%s: layer_types has '%s' for layer %u, whose attention is %s in a %s model of this configuration",
                file, type ? type : "(no text)", l, sliding ? "sliding_attention" : "full_attention", a->model_type);
        m->layers[l].window = sliding ? window : 0;
    }
    return XD_OK;
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

static xd_status read_activation(model_params *p, const model_arch *a, const json_t *c, const char *file, xd_err *err)
{
    double alpha, limit;
    xd_status st;
    p->act = a->gpt_oss ? KERN_SWIGLU_CLAMPED : KERN_SWIGLU;
    if (!a->gpt_oss)
        return XD_OK;
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
    return xd_fail(
        err, XD_UNSUPPORTED, 0,
        "%s: quantized checkpoints (quantization_config, quant_method '%s') cannot be read, but for gpt_oss in "
        "mxfp4; use a BF16, F16 or F32 one",
        file, method ? method : "(none)");
}

static xd_status read_layers(model *m, const model_arch *a, const json_t *c, const char *file, xd_err *err)
{
    model_params *p = &m->params;
    uint32_t n_experts = 0, top_k = 0, d_ff_moe = 0, d_ff = 0, sparse_step;
    xd_status st;
    if ((st = hf_u32(c, file, "decoder_sparse_step", 1, 1, MODEL_MAX_LAYERS, &sparse_step, err)) ||
        (st = hf_u32(c, file, "intermediate_size", 0, 1, 1u << 20, &d_ff, err)))
        return st;
    if (a->experts[0] && ((st = hf_u32(c, file, "num_local_experts", 0, 1, MODEL_MAX_EXPERTS, &n_experts, err)) ||
                          (st = hf_u32(c, file, "num_experts_per_tok", 0, 1, MODEL_MAX_TOP_K, &top_k, err)) ||
                          (st = hf_u32(c, file, a->moe_size_key, 0, 1, 1u << 20, &d_ff_moe, err))))
        return st;
    if (a->experts[0] && (!n_experts || !top_k || top_k > n_experts || !d_ff_moe))
        return xd_fail(err, XD_BAD_MODEL, 0,
                       "%s: num_local_experts, num_experts_per_tok (at most as many) and %s are needed", file,
                       a->moe_size_key);

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
        if (!m->layers[l].d_ff)
            return xd_fail(err, XD_BAD_MODEL, 0, "%s: intermediate_size is needed for the dense layer %u", file, l);
        p->n_experts_max = XD_MAX(p->n_experts_max, m->layers[l].n_experts);
        p->top_k_max = XD_MAX(p->top_k_max, m->layers[l].top_k);
        p->d_ff_max = XD_MAX(p->d_ff_max, m->layers[l].d_ff);
        n_tensors += (size_t)m->layers[l].n_experts * MODEL_MATRICES;
    }
    if ((st = read_windows(m, a, c, file, err)))
        return st;
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
    bool norm_topk, biased;
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
        (st = hf_u32(c, file, "num_nextn_predict_layers", 0, 0, 64, &p->n_nextn, err)) ||
        (st = hf_real(c, file, "rms_norm_eps", 1e-6, 0, 1, &eps, err)) ||
        (st = hf_bool(c, file, "norm_topk_prob", false, &norm_topk, err)) ||
        (st = hf_bool(c, file, "attention_bias", false, &biased, err)))
        return st;
    if (!p->n_layers || !p->d_model || !p->n_heads || !p->vocab || !p->max_positions)
        return xd_fail(
            err, XD_BAD_MODEL, 0,
            "%s: num_hidden_layers, hidden_size, num_attention_heads, vocab_size and max_position_embeddings are needed",
            file);
    if (a->latent && (st = model_read_latent(c, file, p, err)))
        return st;
    if (!a->latent && (p->n_heads % p->n_kv_heads || p->head_dim % 2))
        return xd_fail(err, XD_BAD_MODEL, 0, "%s: %u heads cannot share %u key/value heads of even size (%u)", file,
                       p->n_heads, p->n_kv_heads, p->head_dim);
    const char *act = hf_string(c, "hidden_act");
    if (act && strcmp(act, "silu") && strcmp(act, "swish")) /* two names of one function */
        return xd_fail(err, XD_UNSUPPORTED, 0, "%s: hidden_act '%s'; %s models use silu here", file, act,
                       a->model_type);
    if ((st = read_quantization(m, a, c, file, err)))
        return st;
    if (json_is_true(json_object_get(c, "mlp_bias")))
        return xd_fail(err, XD_UNSUPPORTED, 0, "%s: mlp_bias is not known for %s", file, a->model_type);

    p->rms_eps = (float)eps;
    p->attn_scale = (float)(1.0 / sqrt(p->head_dim));
    p->embed_scale = 1;
    p->scoring = KERN_SOFTMAX_TOPK;
    p->norm_topk = a->norm_topk_always || norm_topk;
    p->bos_id = -1;
    m->attention_bias = biased && a->bias == MODEL_BIAS_ASKED;
    if ((st = read_activation(p, a, c, file, err)) || (st = rope_read(c, file, a->default_theta, p, err)) ||
        (a->latent && (st = model_scale_latent(c, file, p, err))))
        return st;
    return read_layers(m, a, c, file, err);
}
