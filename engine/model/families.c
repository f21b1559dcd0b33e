/* families.c - what single families say in config.json beyond what all have: routers that are not plain, multipliers, clips. What they ask
 * for and is not computed here is refused by name. Sources: transformers' modeling_*.py and configuration_*.py. */
#include <math.h>
#include <string.h>

#include "engine/model/hf_config.h"
#include "engine/model/model_priv.h"
#include "engine/model/rope.h"

/* A key that may be left out, or say what is known. */
static xd_status only(const json_t *c, const char *file, const char *key, const char *known, xd_err *err)
{
    const char *says = hf_string(c, key);
    if (!hf_has(c, key) || (says && !strcmp(says, known)))
        return XD_OK;
    return xd_fail(err, XD_UNSUPPORTED, 0, "%s: '%s' is '%s'; '%s' is known", file, key, says ? says : "(no text)",
                   known);
}

static xd_status only_switch(const model *m, const json_t *c, const char *file, const char *key, bool known,
                             xd_err *err)
{
    bool says;
    xd_status st = hf_bool(c, file, key, known, &says, err);
    if (!st && says != known)
        return xd_fail(err, XD_UNSUPPORTED, 0, "%s: %s %s is not known for %s", file, hf_name(c, key),
                       says ? "true" : "false", m->params.arch);
    return st;
}

static xd_status only_number(const model *m, const json_t *c, const char *file, const char *key, uint32_t known,
                             xd_err *err)
{
    uint32_t says;
    xd_status st = hf_u32(c, file, key, known, 0, UINT32_MAX, &says, err);
    if (!st && says != known)
        return xd_fail(err, XD_UNSUPPORTED, 0, "%s: %s = %u is not known for %s, only %u", file, hf_name(c, key), says,
                       m->params.arch, known);
    return st;
}

/* OLMoE */
xd_status model_read_olmoe(model *m, const json_t *c, const char *file, xd_err *err)
{
    double clip;
    xd_status st = hf_real(c, file, "clip_qkv", 0, 1e-3, 1e6, &clip, err);
    if (!st)
        m->params.clip_qkv = (float)clip;
    return st;
}

/* Granite multiplies what its layers add. The same comes of a stream divided by that multiplier, since every reader of the stream is a
 * norm: with another epsilon it sees the same. */
xd_status model_read_granite(model *m, const json_t *c, const char *file, xd_err *err)
{
    model_params *p = &m->params;
    double embedding, attention, residual, logits;
    xd_status st;
    if ((st = hf_real(c, file, "embedding_multiplier", 1, 1e-6, 1e6, &embedding, err)) ||
        (st = hf_real(c, file, "attention_multiplier", 1, 1e-6, 1e3, &attention, err)) ||
        (st = hf_real(c, file, "residual_multiplier", 1, 1e-3, 1e3, &residual, err)) ||
        (st = hf_real(c, file, "logits_scaling", 1, 1e-6, 1e6, &logits, err)))
        return st;
    p->embed_scale = (float)(embedding / residual);
    p->rms_eps = (float)((double)p->rms_eps / (residual * residual));
    p->attn_scale = (float)attention;
    p->logit_scale = (float)(1 / logits);
    p->router.scoring = KERN_TOPK_SOFTMAX;
    return XD_OK;
}

/* Its few layers with attention are rotated only where the file says so. */
xd_status model_read_granite_hybrid(model *m, const json_t *c, const char *file, xd_err *err)
{
    const char *positions = hf_string(c, "position_embedding_type");
    if (!positions || strcmp(positions, "rope"))
        rope_make_still(&m->params, 0);
    return model_read_granite(m, c, file, err);
}

static xd_status read_sigmoid(model *m, const json_t *c, const char *file, xd_err *err);

/* Nemotron-H. What bounds its time steps is not read by its makers' code but for time_step_limit (linear.c). */
xd_status model_read_nemotron_h(model *m, const json_t *c, const char *file, xd_err *err)
{
    double eps;
    xd_status st;
    rope_make_still(&m->params, 0);
    if ((st = hf_real(c, file, "layer_norm_epsilon", 1e-5, 0, 1, &eps, err)) ||
        (st = only(c, file, "mlp_hidden_act", "relu2", err)) || (st = only(c, file, "mamba_hidden_act", "silu", err)) ||
        (st = only_switch(m, c, file, "use_bias", false, err)) ||
        (st = only_number(m, c, file, "moe_latent_size", 0, err)))
        return st;
    m->params.rms_eps = m->params.ssm_eps = (float)eps;
    for (uint32_t l = 0; l < m->params.n_layers; l++) {
        const model_layer *y = &m->layers[l];
        if (y->d_ff % 2 || y->d_ff_shared % 2)
            return xd_fail(err, XD_UNSUPPORTED, 0, "%s: layer %u has an FFN of an odd size, which is not known", file,
                           l);
    }
    return read_sigmoid(m, c, file, err);
}

/* Experts in groups, as DeepSeek-V3 and GLM-4.5 have them. */
static xd_status read_groups(model *m, const json_t *c, const char *file, xd_err *err)
{
    kern_router_args *r = &m->params.router;
    double scale;
    xd_status st;
    if ((st = hf_u32(c, file, "n_group", 1, 1, KERN_MAX_GROUPS, &r->n_groups, err)) ||
        (st = hf_u32(c, file, "topk_group", 1, 1, r->n_groups, &r->top_groups, err)) ||
        (st = hf_real(c, file, "routed_scaling_factor", 1, 1e-6, 1e6, &scale, err)))
        return st;
    r->scale = (float)scale;
    for (uint32_t l = 0; l < m->params.n_layers; l++) {
        const model_layer *y = &m->layers[l];
        const uint32_t size = y->n_experts / r->n_groups;
        if (y->moe && (y->n_experts % r->n_groups || size < 2 || (uint64_t)size * r->top_groups < y->top_k))
            return xd_fail(err, XD_BAD_MODEL, 0,
                           "%s: %u experts in %s = %u groups, of which %s = %u are left, do not give the %u that a "
                           "token picks",
                           file, y->n_experts, hf_name(c, "n_group"), r->n_groups, hf_name(c, "topk_group"),
                           r->top_groups, y->top_k);
    }
    return XD_OK;
}

/* What they and others are chosen by. */
static xd_status read_sigmoid(model *m, const json_t *c, const char *file, xd_err *err)
{
    kern_router_args *r = &m->params.router;
    r->scoring = KERN_SIGMOID;
    r->norm_eps = 1e-20f;
    xd_status st = only(c, file, "topk_method", "noaux_tc", err);
    return st ? st : read_groups(m, c, file, err);
}

xd_status model_read_glm4(model *m, const json_t *c, const char *file, xd_err *err)
{
    xd_status st = only(c, file, "scoring_func", "sigmoid", err);
    return st ? st : read_sigmoid(m, c, file, err);
}

/* dots.llm1 calls the scoring by what picks. */
xd_status model_read_dots1(model *m, const json_t *c, const char *file, xd_err *err)
{
    const char *scoring = hf_string(c, "scoring_func");
    if (hf_has(c, "scoring_func") && (!scoring || (strcmp(scoring, "noaux_tc") && strcmp(scoring, "sigmoid"))))
        return xd_fail(err, XD_UNSUPPORTED, 0, "%s: 'scoring_func' is '%s'; dots1 has 'noaux_tc' and 'sigmoid'", file,
                       scoring ? scoring : "(no text)");
    return read_sigmoid(m, c, file, err);
}

/* GLM-4.5 without what it may have. */
xd_status model_read_solar(model *m, const json_t *c, const char *file, xd_err *err)
{
    uint32_t dense;
    bool norms;
    xd_status st;
    if ((st = hf_u32(c, file, "first_k_dense_replace", 0, 0, MODEL_MAX_LAYERS, &dense, err)) ||
        (st = hf_bool(c, file, "use_qk_norm", false, &norms, err)))
        return st;
    if (dense || norms)
        return xd_fail(err, XD_UNSUPPORTED, 0, "%s: %s is not known for solar_open", file,
                       dense ? "first_k_dense_replace above 0" : "use_qk_norm true");
    return model_read_glm4(m, c, file, err);
}

/* Every layer behind the dense ones has experts in all that is published. */
static xd_status every_layer(const json_t *c, const char *file, xd_err *err)
{
    uint32_t step;
    xd_status st = hf_u32(c, file, "moe_layer_freq", 1, 1, MODEL_MAX_LAYERS, &step, err);
    if (!st && step != 1)
        return xd_fail(err, XD_UNSUPPORTED, 0, "%s: moe_layer_freq = %u is not known, only 1", file, step);
    return st;
}

xd_status model_read_deepseek_v2(model *m, const json_t *c, const char *file, xd_err *err)
{
    kern_router_args *r = &m->params.router;
    const char *method = hf_string(c, "topk_method");
    const bool groups = method && !strcmp(method, "group_limited_greedy");
    double scale;
    xd_status st;
    if ((st = only(c, file, "scoring_func", "softmax", err)) || (st = every_layer(c, file, err)) ||
        (st = hf_real(c, file, "routed_scaling_factor", 1, 1e-6, 1e6, &scale, err)))
        return st;
    if (!method || (!groups && strcmp(method, "greedy")))
        return xd_fail(err, XD_UNSUPPORTED, 0,
                       "%s: topk_method is '%s'; deepseek_v2 has 'greedy' and 'group_limited_greedy'", file,
                       method ? method : "(no text)");
    if (r->norm_topk) /* what became of it differs between DeepSeek's own code and transformers */
        return xd_fail(err, XD_UNSUPPORTED, 0, "%s: %s true is not known for deepseek_v2", file,
                       hf_name(c, "norm_topk_prob"));
    r->scale = (float)scale;
    r->group_rank = KERN_GROUP_MAX;
    return groups ? read_groups(m, c, file, err) : XD_OK;
}

xd_status model_read_deepseek_v3(model *m, const json_t *c, const char *file, xd_err *err)
{
    xd_status st = every_layer(c, file, err);
    return st ? st : model_read_glm4(m, c, file, err);
}

/* Kimi-Linear: V3 whose layers with attention are not rotated, beside others. */
xd_status model_read_kimi_linear(model *m, const json_t *c, const char *file, xd_err *err)
{
    xd_status st;
    rope_make_still(&m->params, 0);
    if ((st = only(c, file, "moe_router_activation_func", "sigmoid", err)) ||
        (st = only_switch(m, c, file, "mla_use_nope", true, err)))
        return st;
    return model_read_deepseek_v3(m, c, file, err);
}

/* From some position on its queries grow, which no operation here does: shorter contexts never get there. */
xd_status model_read_mistral4(model *m, const json_t *c, const char *file, xd_err *err)
{
    model_params *p = &m->params;
    uint32_t plain;
    xd_status st;
    p->router.norm_eps = 1e-20f;
    if ((st = only(c, file, "scoring_func", "softmax", err)) || (st = every_layer(c, file, err)) ||
        (st = read_groups(m, c, file, err)) || (st = rope_plain_queries(c, file, &plain, err)))
        return st;
    if (plain && plain < p->max_positions) {
        p->max_positions = plain;
        p->rope_grows = true;
    }
    return XD_OK;
}

/* Llama 4. Its experts are given what their scores multiply, which is right for one pick alone: with more, each would be given something else. */
xd_status model_read_llama4(model *m, const json_t *c, const char *file, xd_err *err)
{
    model_params *p = &m->params;
    double grow, every;
    bool normed, grows;
    xd_status st;
    if ((st = hf_bool(c, file, "use_qk_norm", true, &normed, err)) ||
        (st = hf_bool(c, file, "attn_temperature_tuning", true, &grows, err)) ||
        (st = hf_real(c, file, "attn_scale", 0.1, 0, 1e3, &grow, err)) ||
        (st = hf_real(c, file, "floor_scale", 8192, 1, 1e9, &every, err)))
        return st;
    if (p->top_k_max > 1)
        return xd_fail(err, XD_UNSUPPORTED, 0, "%s: %s = %u is not known for %s, only 1", file,
                       hf_name(c, "num_experts_per_tok"), p->top_k_max, p->arch);
    p->rope_interleaved = true;
    p->ropes[0].normed = normed;
    p->ropes[1].grow = grows ? (float)grow : 0;
    p->ropes[1].grow_every = (float)every;
    p->router.scoring = KERN_TOPK_SOFTMAX; /* the largest logit, with a weight of 1 */
    p->picks_scale_input = true;
    return XD_OK;
}

xd_status model_read_ernie(model *m, const json_t *c, const char *file, xd_err *err)
{
    model_params *p = &m->params;
    double norm_min;
    bool bias;
    xd_status st;
    p->rope_interleaved = true;
    if ((st = only(c, file, "moe_gate_act", "softmax", err)) ||
        (st = hf_bool(c, file, "use_bias", false, &bias, err)) ||
        (st = hf_real(c, file, "moe_norm_min", 1e-12, 0, 1, &norm_min, err)))
        return st;
    if (bias)
        return xd_fail(err, XD_UNSUPPORTED, 0, "%s: use_bias, of all projections, is not known for ernie4_5_moe", file);
    p->router.norm_min = (float)norm_min;
    return XD_OK;
}

/* transformers never looks at it; a published model without the gate would have other tensors, too. */
xd_status model_read_qwen3_5(model *m, const json_t *c, const char *file, xd_err *err)
{
    bool gated;
    xd_status st = hf_bool(c, file, "attn_output_gate", true, &gated, err);
    if (!st && !gated)
        return xd_fail(err, XD_UNSUPPORTED, 0, "%s: attn_output_gate false is not known for %s", file, m->params.arch);
    return st;
}

/* Gemma 4's language model, but for what its small dense ones have beside. What sees lets a picture's tokens see each other, text's never. */
xd_status model_read_gemma4(model *m, const json_t *c, const char *file, xd_err *err)
{
    model_params *p = &m->params;
    uint32_t per_layer, shared;
    double cap;
    xd_status st;
    if ((st = only(c, file, "use_bidirectional_attention", "vision", err)) ||
        (st = hf_u32(c, file, "hidden_size_per_layer_input", 0, 0, 1u << 20, &per_layer, err)) ||
        (st = hf_u32(c, file, "num_kv_shared_layers", 0, 0, MODEL_MAX_LAYERS, &shared, err)) ||
        (st = hf_real(c, file, "final_logit_softcapping", 0, 1e-3, 1e6, &cap, err)) ||
        (st = hf_bool(c, file, "attention_k_eq_v", false, &m->k_is_v, err)))
        return st;
    if (per_layer || shared)
        return xd_fail(
            err, XD_UNSUPPORTED, 0,
            "%s: %s = %u, as the small dense models have it, is not known for %s; the mixture of experts and "
            "the large dense model have 0",
            file, hf_name(c, per_layer ? "hidden_size_per_layer_input" : "num_kv_shared_layers"),
            per_layer ? per_layer : shared, p->arch);
    p->attn_scale = 1; /* Q and K are normed */
    p->embed_scale = sqrtf((float)p->d_model);
    p->router_scale = 1 / p->embed_scale;
    p->logit_softcap = (float)cap;
    return XD_OK;
}

/* Ling's size of the shared expert is told as well; whether there is a bias on the choice, the file shows. */
xd_status model_read_bailing(model *m, const json_t *c, const char *file, xd_err *err)
{
    const model_layer *last = &m->layers[m->params.n_layers - 1];
    xd_status st;
    if ((st = only(c, file, "score_function", "sigmoid", err)) ||
        (st = only_switch(m, c, file, "norm_head", false, err)) ||
        (last->moe && (st = only_number(m, c, file, "moe_shared_expert_intermediate_size", last->d_ff_shared, err))))
        return st;
    return read_sigmoid(m, c, file, err);
}

/* Trinity. Its makers' code knows more than transformers' class. Whether a layer is rotated goes by its window. */
xd_status model_read_afmoe(model *m, const json_t *c, const char *file, xd_err *err)
{
    static const char *const groups[] = {"n_group", "topk_group", "num_expert_groups", "num_limited_groups"};
    bool scaled;
    xd_status st;
    for (size_t i = 0; i < XD_ARRAY_LEN(groups); i++)
        if ((st = only_number(m, c, file, groups[i], 1, err)))
            return st;
    if ((st = only(c, file, "score_func", "sigmoid", err)) || (st = only_switch(m, c, file, "route_norm", true, err)) ||
        (st = only_switch(m, c, file, "norm_topk_prob", true, err)) ||
        (st = hf_bool(c, file, "mup_enabled", false, &scaled, err)))
        return st;
    if (!hf_has(c, "sliding_window"))
        return xd_fail(err, XD_UNSUPPORTED, 0, "%s: %s is needed for an afmoe model", file,
                       hf_name(c, "sliding_window"));
    if (scaled)
        m->params.embed_scale = sqrtf((float)m->params.d_model);
    return read_sigmoid(m, c, file, err);
}

/* Hunyuan-A13B. Most keys are of its makers' code, which can do more than transformers' class, and more than what is published uses. */
xd_status model_read_hunyuan(model *m, const json_t *c, const char *file, xd_err *err)
{
    const struct {
        const char *key;
        bool known;
    } switches[] = {
        {"group_limited_greedy", false}, {"moe_drop_tokens", false},   {"use_cla", false},    {"use_mla", false},
        {"use_mixed_mlp_moe", true},     {"use_rotary_pos_emb", true}, {"use_qk_norm", true},
    };
    xd_status st;
    for (size_t i = 0; i < XD_ARRAY_LEN(switches); i++)
        if ((st = only_switch(m, c, file, switches[i].key, switches[i].known, err)))
            return st;
    if ((st = only(c, file, "norm_type", "rms", err)) ||
        (st = only_number(m, c, file, "moe_layer_num_skipped", 0, err)) ||
        (st = only_number(m, c, file, "num_shared_expert", 1, err)) ||
        (st = only_number(m, c, file, "moe_intermediate_size", m->layers[0].d_ff, err)))
        return st;
    return rope_read_alpha(c, file, 10000, &m->params, err);
}

/* LFM2: a router like DeepSeek-V3's without groups, whose bias need not be there. */
xd_status model_read_lfm2(model *m, const json_t *c, const char *file, xd_err *err)
{
    model_params *p = &m->params;
    double eps, scale;
    bool tied, tied_too;
    xd_status st;
    if ((st = hf_real(c, file, "norm_eps", 1e-5, 0, 1, &eps, err)) ||
        (st = hf_bool(c, file, "use_expert_bias", true, &m->choice_bias, err)) ||
        (st = hf_real(c, file, "routed_scaling_factor", 1, 1e-6, 1e6, &scale, err)) ||
        (st = hf_bool(c, file, "tie_word_embeddings", true, &tied, err)) ||
        (st = hf_bool(c, file, "tie_embedding", tied, &tied_too, err)))
        return st;
    if (tied != tied_too)
        return xd_fail(err, XD_BAD_MODEL, 0, "%s: tie_embedding and tie_word_embeddings differ", file);
    p->rms_eps = (float)eps;
    p->router.scoring = KERN_SIGMOID;
    p->router.norm_eps = 1e-6f;
    p->router.scale = (float)scale;
    return XD_OK;
}

xd_status model_read_minimax(model *m, const json_t *c, const char *file, xd_err *err)
{
    bool norms;
    uint32_t shared;
    xd_status st;
    if ((st = only(c, file, "scoring_func", "sigmoid", err)) ||
        (st = only(c, file, "qk_norm_type", "per_layer", err)) ||
        (st = hf_bool(c, file, "use_qk_norm", true, &norms, err)) ||
        (st = hf_u32(c, file, "shared_intermediate_size", 0, 0, UINT32_MAX, &shared, err)))
        return st;
    if (!norms || shared)
        return xd_fail(err, XD_UNSUPPORTED, 0, "%s: %s is not known for minimax_m2", file,
                       shared ? "a shared expert (shared_intermediate_size)" : "use_qk_norm false");
    size_t i;
    json_t *kind;
    json_array_foreach (json_object_get(c, "attn_type_list"), i, kind)
        if (json_integer_value(kind) != 1)
            return xd_fail(err, XD_UNSUPPORTED, 0, "%s: attn_type_list has layers without full attention (1)", file);
    m->params.router.scoring = KERN_SIGMOID;
    return XD_OK;
}

/* Phi-3.5-MoE: transformers picks two whatever the configuration says. What jitter is a name of is inference's, too: how near logits must come to
 * be weighed against each other. */
xd_status model_read_phimoe(model *m, const json_t *c, const char *file, xd_err *err)
{
    model_params *p = &m->params;
    double jitter;
    xd_status st;
    if ((st = hf_real(c, file, "router_jitter_noise", 0.01, 0, 1e3, &jitter, err)) ||
        (st = hf_bool(c, file, "lm_head_bias", false, &m->head_bias, err)))
        return st;
    if (p->top_k_max != 2)
        return xd_fail(err, XD_UNSUPPORTED, 0, "%s: %s = %u is not known for phimoe, only 2", file,
                       hf_name(c, "num_experts_per_tok"), p->top_k_max);
    p->router = (kern_router_args){.scoring = KERN_SPARSEMIXER, .spread = (float)(2 * jitter)};
    return XD_OK;
}
