/* model_gguf.c - a model from GGUF files: metadata become the hyper-parameters that config.json would give (gguf_config.c, so that one reader serves
 * both), tensors are taken where they lie. The vocabulary: gguf_words.c. Names: gguf-py/gguf/constants.py.
 *
 * llama.cpp's converter permutes the rows of Q and K of the `llama` family for its interleaved rotary order; such a model is read
 * as it is, with rope_interleaved set. */
#include <string.h>

#include "engine/model/gguf.h"
#include "engine/model/model_priv.h"

#define MAX_SPLITS 512

static xd_status open_split(model *m, const char *path, xd_err *err)
{
    gguf **grown = realloc(m->ggufs, (m->n_ggufs + 1) * sizeof *grown);
    if (!grown)
        return xd_fail(err, XD_NOMEM, 0, "list of files");
    m->ggufs = grown;
    xd_status st = gguf_open(path, &m->ggufs[m->n_ggufs], err);
    if (!st)
        m->n_ggufs++;
    return st;
}

/* NAME-00001-of-00003.gguf: the other parts lie beside it. */
static xd_status open_splits(model *m, const char *path, xd_err *err)
{
    int64_t count, number;
    xd_status st = open_split(m, path, err);
    if (st || (st = gguf_int(m->ggufs[0], "split.count", 1, 0, MAX_SPLITS, &count, err)) ||
        (st = gguf_int(m->ggufs[0], "split.no", 0, 0, MAX_SPLITS, &number, err)))
        return st;
    if (count <= 1)
        return XD_OK;
    char suffix[32], name[4200];
    snprintf(suffix, sizeof suffix, "-%05d-of-%05d.gguf", (int)number + 1, (int)count);
    size_t stem = strlen(path), tail = strlen(suffix);
    if (stem <= tail || strcmp(path + stem - tail, suffix))
        return xd_fail(err, XD_BAD_MODEL, 0, "'%s' is part %d of %d: its name must end in %s", path, (int)number + 1,
                       (int)count, suffix);
    if (number != 0)
        return xd_fail(err, XD_BAD_CONFIG, 0, "'%s' is not the first part: give ...-00001-of-%05d.gguf", path,
                       (int)count);
    for (int i = 1; i < count && !st; i++) {
        snprintf(name, sizeof name, "%.*s-%05d-of-%05d.gguf", (int)(stem - tail), path, i + 1, (int)count);
        st = open_split(m, name, err);
    }
    return st;
}

const gguf_tensor *model_gguf_find(const model *m, const char *name)
{
    const gguf_tensor *t = NULL;
    for (uint32_t i = 0; i < m->n_ggufs && !t; i++)
        t = gguf_tensor_find(m->ggufs[i], name);
    return t;
}

/* Takes a tensor of `count` matrices [rows][cols]; ret[0..count) are the matrices, `stride` entries apart. */
static xd_status take(const model *m, const char *name, uint32_t count, uint32_t rows, uint32_t cols, bool optional,
                      model_tensor *ret, uint32_t stride, xd_err *err)
{
    const gguf_tensor *t = NULL;
    for (uint32_t i = 0; i < m->n_ggufs && !t; i++)
        t = gguf_tensor_take(m->ggufs[i], name);
    if (!t)
        return optional ? XD_OK
                        : xd_fail(err, XD_BAD_MODEL, 0, "%s: tensor '%s' is missing", gguf_path(m->ggufs[0]), name);
    char known[160];
    if (t->fmt == FMT_COUNT)
        return xd_fail(err, XD_UNSUPPORTED, 0, "%s: tensor '%s' has ggml type %u (%s); what can be read: %s",
                       gguf_path(m->ggufs[0]), name, t->ggml_type, gguf_type_name(t->ggml_type),
                       gguf_known_types(known, sizeof known));
    if (t->dims[0] != cols || t->dims[1] != rows || t->dims[2] != count || t->dims[3] != 1)
        return xd_fail(err, XD_BAD_MODEL, 0, "%s: tensor '%s' is [%llu, %llu, %llu], the metadata need [%u, %u, %u]",
                       gguf_path(m->ggufs[0]), name, (unsigned long long)t->dims[2], (unsigned long long)t->dims[1],
                       (unsigned long long)t->dims[0], count, rows, cols);
    uint64_t bytes = t->bytes / count;
    for (uint32_t i = 0; i < count; i++)
        ret[(size_t)i * stride] = (model_tensor){
            .data = (const char *)t->data + i * bytes, .bytes = bytes, .rows = rows, .cols = cols, .fmt = t->fmt};
    return XD_OK;
}

/* Matrices [rows][cols] of n heads, as one with the rows of all. */
static xd_status take_heads(const model *m, const char *name, uint32_t n, uint32_t rows, uint32_t cols,
                            model_tensor *ret, xd_err *err)
{
    XD_CLEANUP(xd_freep) model_tensor *heads = calloc(n, sizeof *heads);
    if (!heads)
        return xd_fail(err, XD_NOMEM, 0, "heads of '%s'", name);
    xd_status st = take(m, name, n, rows, cols, true, heads, 1, err);
    *ret = heads[0];
    ret->bytes *= n;
    ret->rows *= n;
    return st;
}

/* K's and V's parts of the matrix behind the latent vector, together or apart. Some files have both: then the parts are taken. */
static xd_status take_latent(const model *m, model_layer *y, uint32_t l, xd_err *err)
{
    const model_params *p = &m->params;
    const uint32_t rank = p->latent.kv_rank;
    char joined[64], name[64];
    xd_status st;
    snprintf(name, sizeof name, "blk.%u.attn_k_b.weight", l);
    if ((st = take_heads(m, name, y->n_heads, rank, p->latent.nope_dim, &y->latent.k_b, err)))
        return st;
    snprintf(name, sizeof name, "blk.%u.attn_v_b.weight", l);
    if ((st = take_heads(m, name, y->n_heads, p->latent.v_dim, rank, &y->latent.v_b, err)))
        return st;
    const bool apart = y->latent.k_b.data && y->latent.v_b.data;
    snprintf(joined, sizeof joined, "blk.%u.attn_kv_b.weight", l);
    if ((st = take(m, joined, 1, y->n_heads * (p->latent.nope_dim + p->latent.v_dim), rank, apart, &y->latent.kv_b, 1,
                   err)))
        return st;
    if (apart)
        y->latent.kv_b = (model_tensor){0};
    else
        y->latent.k_b = y->latent.v_b = (model_tensor){0};
    return XD_OK;
}

/* One tensor has gate and up of all experts, gate first. */
static xd_status take_gate_up(const model *m, uint32_t l, const model_layer *y, model_tensor *experts, xd_err *err)
{
    char name[96];
    snprintf(name, sizeof name, "blk.%u.ffn_gate_up_exps.weight", l);
    xd_status st = take(m, name, y->n_experts, 2 * y->d_ff, m->params.d_model, false, experts, MODEL_MATRICES, err);
    for (uint32_t e = 0; !st && e < y->n_experts; e++) {
        model_tensor *t = &experts[e * MODEL_MATRICES];
        t[MODEL_GATE].rows = y->d_ff;
        t[MODEL_GATE].bytes /= 2;
        t[MODEL_UP] = t[MODEL_GATE];
        t[MODEL_UP].data = (const char *)t[MODEL_GATE].data + t[MODEL_GATE].bytes;
    }
    return st;
}

/* ffn_gate_exps.weight holds the matrices of all experts. Conversions older than 2024-04 have a tensor for each: ffn_gate.7.weight. */
static xd_status take_experts(const model *m, uint32_t l, const model_layer *y, const char *part, uint32_t rows,
                              uint32_t cols, model_tensor *ret, xd_err *err)
{
    char name[96];
    snprintf(name, sizeof name, "blk.%u.ffn_%s.0.weight", l, part);
    const bool apart = y->moe && model_gguf_find(m, name);
    if (!apart) {
        snprintf(name, sizeof name, "blk.%u.ffn_%s%s.weight", l, part, y->moe ? "_exps" : "");
        return take(m, name, y->n_experts, rows, cols, false, ret, MODEL_MATRICES, err);
    }
    for (uint32_t e = 0; e < y->n_experts; e++) {
        snprintf(name, sizeof name, "blk.%u.ffn_%s.%u.weight", l, part, e);
        xd_status st = take(m, name, 1, rows, cols, false, &ret[e * MODEL_MATRICES], 1, err);
        if (st)
            return st;
        if (ret[e * MODEL_MATRICES].fmt != ret->fmt)
            return xd_fail(err, XD_UNSUPPORTED, 0,
                           "%s: tensor '%s' is of another type than those of the layer's other experts: get a newer "
                           "conversion of the model",
                           gguf_path(m->ggufs[0]), name);
    }
    return XD_OK;
}

/* Of Qwen3-Next b and a lie by key heads in one matrix; in older files q, k, v and z do, too. */
static xd_status take_parts(const model *m, uint32_t l, const model_part *parts, size_t n, xd_err *err)
{
    xd_status st = XD_OK;
    char name[96];
    for (size_t i = 0; i < n && !st; i++) {
        if (!parts[i].name)
            continue;
        snprintf(name, sizeof name, "blk.%u.%s", l, parts[i].name);
        st = take(m, name, 1, parts[i].rows, parts[i].cols, false, parts[i].to, 1, err);
    }
    return st;
}

static xd_status take_delta(const model *m, const model_arch *a, uint32_t l, model_layer *y, xd_err *err)
{
    const kern_delta_geom *g = &m->params.delta;
    const uint32_t d = m->params.d_model, nv = g->n_v_heads, v = nv * g->v_dim, channels = kern_delta_channels(g);
    char name[96];
    snprintf(name, sizeof name, "blk.%u.ssm_in.weight", l);
    const bool next = a->delta == MODEL_DELTA_GROUPED, grouped = next && model_gguf_find(m, name);
    const model_part parts[] = {
        {grouped ? "ssm_in.weight" : NULL, channels + v, d, &y->delta.in[MODEL_DELTA_QKVZ]},
        {grouped ? NULL : "attn_qkv.weight", channels, d, &y->delta.in[MODEL_DELTA_QKV]},
        {grouped ? NULL : "attn_gate.weight", v, d, &y->delta.in[MODEL_DELTA_Z]},
        {next ? "ssm_ba.weight" : NULL, 2 * nv, d, &y->delta.in[MODEL_DELTA_BA]},
        {next ? NULL : "ssm_beta.weight", nv, d, &y->delta.in[MODEL_DELTA_B]},
        {next ? NULL : "ssm_alpha.weight", nv, d, &y->delta.in[MODEL_DELTA_A]},
        {"ssm_conv1d.weight", channels, g->conv, &y->delta.conv},
        {"ssm_a", 1, nv, &y->delta.neg_exp_a},
        {"ssm_dt.bias", 1, nv, &y->delta.dt_bias},
        {"ssm_norm.weight", 1, g->v_dim, &y->delta.norm},
        {"ssm_out.weight", d, v, &y->o},
    };
    return take_parts(m, l, parts, XD_ARRAY_LEN(parts), err);
}

static xd_status take_kda(const model *m, uint32_t l, model_layer *y, xd_err *err)
{
    const kern_delta_geom *g = &m->params.delta;
    const uint32_t d = m->params.d_model, n = g->n_v_heads, all = n * g->k_dim;
    const model_part parts[] = {
        {"attn_q.weight", all, d, &y->delta.in[MODEL_DELTA_QKV]},
        {"attn_k.weight", all, d, &y->delta.in[MODEL_DELTA_K]},
        {"attn_v.weight", all, d, &y->delta.in[MODEL_DELTA_V]},
        {"ssm_g_a.weight", g->v_dim, d, &y->delta.in[MODEL_DELTA_Z_LOW]},
        {"ssm_g_b.weight", all, g->v_dim, &y->delta.in[MODEL_DELTA_Z]},
        {"ssm_beta.weight", n, d, &y->delta.in[MODEL_DELTA_B]},
        {"ssm_f_a.weight", g->k_dim, d, &y->delta.in[MODEL_DELTA_A_LOW]},
        {"ssm_f_b.weight", all, g->k_dim, &y->delta.in[MODEL_DELTA_A]},
        {"ssm_a", n, 1, &y->delta.neg_exp_a},
        {"ssm_dt.bias", 1, all, &y->delta.dt_bias},
        {"ssm_norm.weight", 1, g->v_dim, &y->delta.norm},
        {"attn_output.weight", d, all, &y->o},
    };
    const struct { /* a matrix for each channel */
        char part;
        model_tensor *to;
    } convs[] = {{'q', &y->delta.conv}, {'k', &y->delta.conv_k}, {'v', &y->delta.conv_v}};
    xd_status st = take_parts(m, l, parts, XD_ARRAY_LEN(parts), err);
    char name[96];
    for (size_t i = 0; i < XD_ARRAY_LEN(convs) && !st; i++) {
        snprintf(name, sizeof name, "blk.%u.ssm_conv1d_%c.weight", l, convs[i].part);
        st = take_heads(m, name, all, 1, g->conv, convs[i].to, err);
        if (!st && !convs[i].to->data)
            st = xd_fail(err, XD_BAD_MODEL, 0, "%s: tensor '%s' is missing", gguf_path(m->ggufs[0]), name);
    }
    return st;
}

static xd_status take_shortconv(const model *m, uint32_t l, model_layer *y, xd_err *err)
{
    const uint32_t d = m->params.d_model;
    const model_part parts[] = {
        {"shortconv.in_proj.weight", 3 * d, d, &y->shortconv.in},
        {"shortconv.conv.weight", d, m->params.shortconv.conv, &y->shortconv.conv},
        {"shortconv.out_proj.weight", d, d, &y->o},
    };
    return take_parts(m, l, parts, XD_ARRAY_LEN(parts), err);
}

static xd_status take_ssm(model *m, uint32_t l, model_layer *y, xd_err *err)
{
    const kern_ssm_geom *g = &m->params.ssm;
    const uint32_t d = m->params.d_model, inner = kern_ssm_inner(g), channels = kern_ssm_channels(g);
    const model_part parts[] = {
        {"ssm_in.weight", kern_ssm_width(g), d, &y->ssm.in},
        {"ssm_conv1d.weight", channels, g->conv, &y->ssm.conv},
        {"ssm_a", g->n_heads, 1, &y->ssm.neg_exp_a},
        {"ssm_d", g->n_heads, 1, &y->ssm.skip},
        {"ssm_dt.bias", 1, g->n_heads, &y->ssm.dt_bias},
        {"ssm_norm.weight", g->n_groups, inner / g->n_groups, &y->ssm.norm},
        {"ssm_out.weight", d, inner, &y->o},
    };
    char name[96];
    snprintf(name, sizeof name, "blk.%u.ssm_conv1d.bias", l);
    xd_status st = take(m, name, 1, 1, channels, true, &y->ssm.conv_bias, 1, err);
    return st ? st : take_parts(m, l, parts, XD_ARRAY_LEN(parts), err);
}

static xd_status take_layer(model *m, const model_arch *a, uint32_t l, xd_err *err)
{
    const model_params *p = &m->params;
    model_layer *y = &m->layers[l];
    model_tensor *experts = m->experts + (y->experts - m->experts);
    const bool latent = a->latent, low = p->latent.q_rank, linear = y->linear || y->ffn_alone,
               plain = !latent && !linear;
    const uint32_t d = p->d_model, kv = y->n_kv_heads * y->head_dim, n = y->n_experts, q_rank = p->latent.q_rank;
    const uint32_t q = y->n_heads * (latent     ? p->latent.nope_dim + p->latent.rope_dim
                                     : p->gated ? 2 * y->head_dim
                                                : y->head_dim);
    const uint32_t o = y->n_heads * (latent ? p->latent.v_dim : y->head_dim);
    const uint32_t index_q = p->index.n_heads * p->index.dim;
    const bool index = y->index.own;
    const bool norm_bias = a->layer_norms, o_bias = a->gpt_oss || a->layer_norms,
               qkv_bias = a->bias == MODEL_BIAS_QKV || o_bias;
    const bool post_norm =
        a->gpt_oss || (a->delta && a->delta != MODEL_DELTA_KIMI) || !strcmp(a->model_type, "glm4_moe");
    const uint32_t q_norm = p->wide_qk_norm ? q : y->head_dim, k_norm = p->wide_qk_norm ? kv : y->head_dim;
    const bool k_is_v = model_k_is_v(m, y), own = a->norms == MODEL_NORMS_OWN, of_experts = own && y->moe;
    const bool behind = a->norms != MODEL_NORMS_BEFORE, one_qkv = a->joined_qkv;
    model_tensor all = {0};
    /* Where router and experts have norms of their own, the shared one goes by the names of a dense FFN. */
    const uint32_t ff_shared = y->d_ff_shared;
    const struct {
        const char *name;
        uint32_t count, rows, cols;
        bool optional;
        model_tensor *to;
    } parts[] = {
        {"attn_norm.weight", 1, 1, d, false, y->ffn_alone ? &y->ffn_norm : &y->attn_norm},
        {norm_bias ? "attn_norm.bias" : NULL, 1, 1, d, false, &y->attn_norm_bias},
        {one_qkv ? "attn_qkv.weight" : NULL, 1, q + 2 * kv, d, false, &all},
        {low || linear || one_qkv ? NULL : "attn_q.weight", 1, q, d, false, &y->q},
        {plain && !one_qkv ? "attn_k.weight" : NULL, 1, kv, d, false, &y->k},
        {plain && !one_qkv && !k_is_v ? "attn_v.weight" : NULL, 1, kv, d, false, &y->v},
        {linear ? NULL : "attn_output.weight", 1, d, o, false, &y->o},
        {plain ? "attn_q.bias" : NULL, 1, 1, q, !qkv_bias, &y->q_bias},
        {plain ? "attn_k.bias" : NULL, 1, 1, kv, !qkv_bias, &y->k_bias},
        {plain ? "attn_v.bias" : NULL, 1, 1, kv, !qkv_bias, &y->v_bias},
        {low && !linear ? "attn_q_a.weight" : NULL, 1, q_rank, d, false, &y->latent.q_a},
        {low && !linear ? "attn_q_a_norm.weight" : NULL, 1, 1, q_rank, false, &y->latent.q_a_norm},
        {low && !linear ? "attn_q_b.weight" : NULL, 1, q, q_rank, false, &y->q},
        {latent && !linear ? "attn_kv_a_mqa.weight" : NULL, 1, p->head_dim, d, false, &y->latent.kv_a},
        {latent && !linear ? "attn_kv_a_norm.weight" : NULL, 1, 1, p->latent.kv_rank, false, &y->latent.kv_a_norm},
        {index ? "indexer.attn_q_b.weight" : NULL, 1, index_q, q_rank, false, &y->index.q},
        {index ? "indexer.attn_k.weight" : NULL, 1, p->index.dim, d, false, &y->index.k},
        {index ? "indexer.k_norm.weight" : NULL, 1, 1, p->index.dim, false, &y->index.k_norm},
        {index ? "indexer.k_norm.bias" : NULL, 1, 1, p->index.dim, false, &y->index.k_norm_bias},
        {index ? "indexer.proj.weight" : NULL, 1, p->index.n_heads, d, false, &y->index.weights},
        {linear ? NULL : "attn_output.bias", 1, 1, d, !o_bias, &y->o_bias},
        {a->apart    ? NULL
         : post_norm ? "post_attention_norm.weight"
                     : "ffn_norm.weight",
         1, 1, d, false, &y->ffn_norm},
        {norm_bias ? "ffn_norm.bias" : NULL, 1, 1, d, false, &y->ffn_norm_bias},
        {a->gpt_oss ? "attn_sinks.weight" : NULL, 1, 1, y->n_heads, false, &y->sinks},
        {a->gpt_oss ? "ffn_gate_inp.bias" : NULL, 1, 1, n, false, &y->router_bias},
        {a->gpt_oss ? "ffn_gate_exps.bias" : NULL, 1, n, y->d_ff, false, &y->expert_bias[MODEL_GATE]},
        {a->gpt_oss ? "ffn_up_exps.bias" : NULL, 1, n, y->d_ff, false, &y->expert_bias[MODEL_UP]},
        {a->gpt_oss ? "ffn_down_exps.bias" : NULL, 1, n, d, false, &y->expert_bias[MODEL_DOWN]},
        {m->qk_norm && !linear ? "attn_q_norm.weight" : NULL, 1, 1, q_norm, false, &y->q_norm},
        {m->qk_norm && !linear ? "attn_k_norm.weight" : NULL, 1, 1, k_norm, false, &y->k_norm},
        {y->d_ff_shared && a->shared_gate ? "ffn_gate_inp_shexp.weight" : NULL, 1, 1, d, false, &y->shared_gate},
        {"ffn_gate_inp.weight", 1, n, d, !y->moe, &y->router},
        {m->choice_bias && y->moe ? "exp_probs_b.bias" : NULL, 1, 1, n, false, &y->choice_bias},
        {!ff_shared || y->halves ? NULL
         : own                   ? "ffn_gate.weight"
                                 : "ffn_gate_shexp.weight",
         1, ff_shared, d, false, &y->shared[MODEL_GATE]},
        {!ff_shared ? NULL
         : own      ? "ffn_up.weight"
                    : "ffn_up_shexp.weight",
         1, ff_shared, d, false, &y->shared[MODEL_UP]},
        {!ff_shared ? NULL
         : own      ? "ffn_down.weight"
                    : "ffn_down_shexp.weight",
         1, d, ff_shared, false, &y->shared[MODEL_DOWN]},
        {a->gate ? "attn_gate.weight" : NULL, 1, model_gate_rows(m, y), d, false, &y->gate},
        {behind ? "post_attention_norm.weight" : NULL, 1, 1, d, false, &y->attn_post_norm},
        {behind ? "post_ffw_norm.weight" : NULL, 1, 1, d, false, &y->ffn_post_norm},
        {own ? "layer_output_scale.weight" : NULL, 1, 1, 1, true, &y->out_scale},
        {of_experts ? "ffn_gate_inp.scale" : NULL, 1, 1, d, false, &y->router_norm},
        {of_experts ? "ffn_down_exps.scale" : NULL, 1, 1, n, false, &y->expert_scale},
        {of_experts ? "pre_ffw_norm_2.weight" : NULL, 1, 1, d, false, &y->expert_norm},
        {of_experts ? "post_ffw_norm_1.weight" : NULL, 1, 1, d, false, &y->shared_post_norm},
        {of_experts ? "post_ffw_norm_2.weight" : NULL, 1, 1, d, false, &y->expert_post_norm},
    };
    xd_status st;
    char name[96];
    for (size_t i = 0; i < XD_ARRAY_LEN(parts); i++) {
        if (!parts[i].name)
            continue;
        snprintf(name, sizeof name, "blk.%u.%s", l, parts[i].name);
        if ((st = take(m, name, parts[i].count, parts[i].rows, parts[i].cols, parts[i].optional, parts[i].to,
                       MODEL_MATRICES, err)))
            return st;
    }
    if (one_qkv)
        model_cut_qkv(y, &all, false, q, kv);
    if (y->halves && ff_shared)
        model_halve(&y->shared[MODEL_GATE], &y->shared[MODEL_UP]);
    if (k_is_v) {
        y->v = y->k;
        y->v_bias = y->k_bias;
    }
    snprintf(name, sizeof name, "blk.%u.ffn_gate_up_exps.weight", l);
    const bool joined = y->moe && model_gguf_find(m, name), some = y->n_experts;
    if ((joined && (st = take_gate_up(m, l, y, experts, err))) ||
        (some && !joined && !y->halves &&
         (st = take_experts(m, l, y, "gate", y->d_ff, d, &experts[MODEL_GATE], err))) ||
        (some && !joined && (st = take_experts(m, l, y, "up", y->d_ff, d, &experts[MODEL_UP], err))) ||
        (some && (st = take_experts(m, l, y, "down", d, y->d_ff, &experts[MODEL_DOWN], err))))
        return st;
    for (uint32_t e = 0; y->halves && e < n; e++)
        model_halve(&experts[e * MODEL_MATRICES], &experts[e * MODEL_MATRICES + MODEL_UP]);
    for (int k = 0; k < MODEL_MATRICES && some; k++)
        y->expert_fmt[k] = experts[k].fmt;
    return y->ffn_alone                             ? XD_OK
           : linear && a->shortconv                 ? take_shortconv(m, l, y, err)
           : linear && a->ssm                       ? take_ssm(m, l, y, err)
           : linear && a->delta == MODEL_DELTA_KIMI ? take_kda(m, l, y, err)
           : linear                                 ? take_delta(m, a, l, y, err)
           : latent                                 ? take_latent(m, y, l, err)
                                                    : XD_OK;
}

/* The converters do not agree on how the size of shared experts is told: the tensors have it. */
static xd_status size_shared(model *m, xd_err *err)
{
    model_params *p = &m->params;
    char name[64];
    p->d_ff_shared_max = 0;
    for (uint32_t l = 0; l < p->n_layers; l++) {
        model_layer *y = &m->layers[l];
        snprintf(name, sizeof name, "blk.%u.ffn_%s_shexp.weight", l, y->halves ? "up" : "gate");
        const gguf_tensor *t = y->d_ff_shared ? model_gguf_find(m, name) : NULL;
        if (t && (t->dims[1] < 1 || t->dims[1] > 1u << 20))
            return xd_fail(err, XD_BAD_MODEL, 0, "%s: tensor '%s' has %llu rows", gguf_path(m->ggufs[0]), name,
                           (unsigned long long)t->dims[1]);
        if (t && y->halves && t->dims[1] % 2)
            return xd_fail(err, XD_UNSUPPORTED, 0,
                           "%s: tensor '%s' has %llu rows: an FFN of an odd size, which is not known",
                           gguf_path(m->ggufs[0]), name, (unsigned long long)t->dims[1]);
        if (t)
            y->d_ff_shared = (uint32_t)t->dims[1];
        p->d_ff_shared_max = XD_MAX(p->d_ff_shared_max, y->d_ff_shared);
    }
    return XD_OK;
}

/* Llama 3's frequency bands come as a tensor of divisors, and so does what Gemma's layers without a window do not rotate. Step-3.5's are of a
 * whole head, though only a part of it is rotated. */
static xd_status divide_frequencies(model *m, const model_arch *a, xd_err *err)
{
    model_rope *rope = &m->params.ropes[0];
    model_tensor t = {0};
    const uint32_t dims = a->own_heads ? m->params.head_dim : rope->rot_dim;
    xd_status st = take(m, "rope_freqs.weight", 1, 1, dims / 2, !a->full_heads, &t, 1, err);
    if (st || !t.data)
        return st;
    if (t.fmt != FMT_F32)
        return xd_fail(err, XD_UNSUPPORTED, 0, "%s: tensor 'rope_freqs.weight' is not F32", gguf_path(m->ggufs[0]));
    for (uint32_t i = 0; i < rope->rot_dim / 2; i++) {
        float by;
        memcpy(&by, (const char *)t.data + i * sizeof by, sizeof by);
        if (!(by > 0))
            return xd_fail(err, XD_BAD_MODEL, 0, "%s: tensor 'rope_freqs.weight' divides by %g", gguf_path(m->ggufs[0]),
                           (double)by);
        rope->inv_freq[i] /= by;
    }
    return XD_OK;
}

static xd_status take_all(model *m, const model_arch *a, xd_err *err)
{
    const model_params *p = &m->params;
    xd_status st;
    if ((st = take(m, "token_embd.weight", 1, p->vocab, p->d_model, false, &m->embed, 1, err)) ||
        (st = take(m, a->shortconv ? "token_embd_norm.weight" : "output_norm.weight", 1, 1, p->d_model, false,
                   &m->final_norm, 1, err)) ||
        (st = take(m, "output.weight", 1, p->vocab, p->d_model, true, &m->lm_head, 1, err)) ||
        (a->layer_norms && ((st = take(m, "output_norm.bias", 1, 1, p->d_model, false, &m->final_norm_bias, 1, err)) ||
                            (st = take(m, "output.bias", 1, 1, p->vocab, false, &m->lm_head_bias, 1, err)))))
        return st;
    if (!m->lm_head.data)
        m->lm_head = m->embed;
    for (uint32_t l = 0; l < p->n_layers; l++)
        if ((st = take_layer(m, a, l, err)))
            return st;
    char beyond[64];
    snprintf(beyond, sizeof beyond, "blk.%u.attn_norm.weight", p->n_layers + p->n_nextn);
    for (uint32_t i = 0; i < m->n_ggufs; i++)
        if (gguf_tensor_find(m->ggufs[i], beyond))
            return xd_fail(err, XD_BAD_MODEL, 0, "%s has layer %u (from 0), its metadata say block_count = %u",
                           gguf_path(m->ggufs[i]), p->n_layers + p->n_nextn, p->n_layers + p->n_nextn);
    if ((st = divide_frequencies(m, a, err)))
        return st;
    for (uint32_t i = 0; i < m->n_ggufs; i++)
        for (uint32_t k = 0; k < gguf_tensor_count(m->ggufs[i]); k++) {
            const gguf_tensor *t = gguf_tensor_at(m->ggufs[i], k);
            unsigned layer;
            const bool nextn =
                sscanf(t->name, "blk.%u.", &layer) == 1 && layer >= p->n_layers && layer - p->n_layers < p->n_nextn;
            if (!t->taken && !nextn)
                return xd_fail(err, XD_UNSUPPORTED, 0, "%s: tensor '%s' has no place in a %s model",
                               gguf_path(m->ggufs[i]), t->name, a->model_type);
        }
    return XD_OK;
}

xd_status model_open_gguf(model *m, const char *path, xd_err *err)
{
    XD_CLEANUP(json_decrefp) json_t *config = json_object();
    const model_arch *a = NULL;
    xd_status st;
    if (!config)
        return xd_fail(err, XD_NOMEM, 0, "configuration of '%s'", path);
    if ((st = open_splits(m, path, err)) || (st = model_gguf_config(m, &a, config, err)) ||
        (st = model_read_params(m, a, config, path, err)) || (st = model_gguf_check_keys(m, err)) ||
        (st = size_shared(m, err)) || (st = take_all(m, a, err)) || (st = model_gguf_words(m, a, err)))
        return st;
    /* llama.cpp's converter lets the value heads go through the key heads in turn. */
    m->params.delta.tiled = a->delta == MODEL_DELTA_FLAT;
    m->files = calloc(m->n_ggufs, sizeof *m->files);
    if (!m->files)
        return xd_fail(err, XD_NOMEM, 0, "list of files");
    m->n_files = m->n_ggufs;
    for (uint32_t i = 0; i < m->n_ggufs; i++) {
        m->files[i] = model_file_of(gguf_path(m->ggufs[i]), gguf_map(m->ggufs[i]));
    }
    return XD_OK;
}
