/* trunk.c - brings the weights that every token needs (embedding, attention, norms, routers, head) to where kernels read them.
 *
 * Where device memory is host memory, matrices are used in place from the file's mapping (in FP8, INT4 and NVFP4 they are put together with their
 * scales); elsewhere all of them are copied once into one allocation, Q, K and V of a layer below one another so that they are one product. Vectors (norms, biases) are always
 * float32. The experts are the pager's. */
#include <math.h>
#include <string.h>

#include "engine/exec/exec_priv.h"

void exec_to_float(float *out, const model_tensor *t, uint32_t n)
{
    const size_t step = t->step ? t->step : 1;
    for (uint32_t i = 0; i < n; i++)
        out[i] = model_number(t->data, t->fmt, i * step);
}

static uint64_t vector_bytes(const model_tensor *t)
{
    return t->data ? xd_align_up((uint64_t)t->cols * t->rows * sizeof(float), 256) : 0;
}

bool exec_copies(const exec *x, const model_tensor *t)
{
    return !x->info.unified || t->scales;
}

static uint64_t copied_bytes(const exec *x, const model_tensor *t)
{
    return t->data && exec_copies(x, t) ? xd_align_up(t->bytes, 256) : 0;
}

uint8_t *exec_trunk_take(exec *x, uint64_t bytes)
{
    uint8_t *p = x->trunk + x->trunk_used;
    x->trunk_used += xd_align_up(bytes, 256);
    return p;
}

/* Can exec_to_float() read it into tmp? */
static xd_status check_vector(const model_tensor *t, uint32_t tmp_cap, const char *what, xd_err *err)
{
    uint64_t n = (uint64_t)t->rows * t->cols;
    if (t->fmt != FMT_F32 && t->fmt != FMT_F16 && t->fmt != FMT_BF16)
        return xd_fail(err, XD_UNSUPPORTED, 0, "%s is stored as %s: only f32, f16 and bf16 are read as vectors", what,
                       kern_fmt_get(t->fmt).name);
    return n > tmp_cap ? xd_fail(err, XD_BAD_MODEL, 0, "%s has %llu values; at most %u are possible", what,
                                 (unsigned long long)n, tmp_cap)
                       : XD_OK;
}

xd_status exec_upload_values(exec *x, const float *values, uint64_t n, float **ret, const char *what, xd_err *err)
{
    float *p = (float *)exec_trunk_take(x, n * sizeof(float));
    kern_status ks = x->dev->ops->upload(x->dev, p, values, n * sizeof(float));
    if (!ks)
        ks = x->dev->ops->sync(x->dev); /* in stream order it may still read the values */
    if (ks)
        return exec_kern_fail(x, ks, err, what);
    *ret = p;
    return XD_OK;
}

/* (values + offset) * scale */
static xd_status load_scaled(exec *x, const model_tensor *t, float offset, float scale, float *tmp, uint32_t tmp_cap,
                             float **ret, const char *what, xd_err *err)
{
    uint64_t n = (uint64_t)t->rows * t->cols;
    if (!t->data) {
        *ret = NULL;
        return XD_OK;
    }
    xd_status st = check_vector(t, tmp_cap, what, err);
    if (st)
        return st;
    exec_to_float(tmp, t, (uint32_t)n);
    for (uint64_t i = 0; (offset != 0 || scale != 1) && i < n; i++)
        tmp[i] = (tmp[i] + offset) * scale;
    return exec_upload_values(x, tmp, n, ret, what, err);
}

xd_status exec_load_vector(exec *x, const model_tensor *t, float *tmp, uint32_t tmp_cap, float **ret, const char *what,
                           xd_err *err)
{
    return load_scaled(x, t, 0, 1, tmp, tmp_cap, ret, what, err);
}

static xd_status load_norm(exec *x, const model_tensor *t, float *tmp, uint32_t tmp_cap, float **ret, const char *what,
                           xd_err *err)
{
    return load_scaled(x, t, x->hp->norm_offset, 1, tmp, tmp_cap, ret, what, err);
}

xd_status exec_load_values(exec *x, const exec_rows *values, uint32_t n, float *tmp, uint32_t tmp_cap, float **ret,
                           const char *what, xd_err *err)
{
    uint32_t at = 0;
    xd_status st;
    if (!values->t->data) {
        *ret = NULL;
        return XD_OK;
    }
    for (uint32_t i = 0; i < n; at += values[i++].n) {
        model_tensor t = *values[i].t;
        t.data = (const uint8_t *)t.data + (size_t)values[i].first * kern_fmt_get(t.fmt).block_bytes;
        t.rows = 1;
        t.cols = values[i].n;
        if ((st = check_vector(&t, tmp_cap - at, what, err)))
            return st;
        exec_to_float(tmp + at, &t, t.cols);
    }
    return exec_upload_values(x, tmp, at, ret, what, err);
}

static kern_mat mat_of(const model_tensor *t, const void *data)
{
    return (kern_mat){
        .data = data, .row_bytes = kern_row_bytes(t->fmt, t->cols), .rows = t->rows, .cols = t->cols, .fmt = t->fmt};
}

/* Rows are put together with their scales a few MiB at a time. */
static xd_status upload_scaled(exec *x, const exec_rows *r, uint8_t *dst, const char *what, xd_err *err)
{
    const uint64_t row_bytes = kern_row_bytes(r->t->fmt, r->t->cols);
    const uint32_t piece = (uint32_t)XD_MIN((uint64_t)r->n, (16ull << 20) / row_bytes + 1);
    XD_CLEANUP(xd_freep) uint8_t *rows = malloc(piece * row_bytes);
    if (!rows)
        return xd_fail(err, XD_NOMEM, 0, "rows of %s", what);
    for (uint32_t at = 0; at < r->n; at += piece) {
        const uint32_t n = XD_MIN(piece, r->n - at);
        model_copy_matrix(r->t, r->first + at, n, rows);
        kern_status ks = x->dev->ops->upload(x->dev, dst + at * row_bytes, rows, n * row_bytes);
        if (!ks)
            ks = x->dev->ops->sync(x->dev); /* `rows` is written again */
        if (ks)
            return exec_kern_fail(x, ks, err, what);
    }
    return XD_OK;
}

static xd_status upload_rows(exec *x, const exec_rows *r, uint8_t *dst, const char *what, xd_err *err)
{
    if (r->t->scales)
        return upload_scaled(x, r, dst, what, err);
    /* In pieces, so that a page-locked bounce buffer of the driver stays small. */
    const uint64_t piece = 64ull << 20, row_bytes = kern_row_bytes(r->t->fmt, r->t->cols), bytes = row_bytes * r->n;
    const uint8_t *from = (const uint8_t *)r->t->data + row_bytes * r->first;
    for (uint64_t at = 0; at < bytes; at += piece) {
        kern_status ks = x->dev->ops->upload(x->dev, dst + at, from + at, XD_MIN(piece, bytes - at));
        if (ks)
            return exec_kern_fail(x, ks, err, what);
    }
    return XD_OK;
}

xd_status exec_load_rows(exec *x, const exec_rows *rows, uint32_t n, kern_mat *ret, const char *what, xd_err *err)
{
    const uint64_t row_bytes = kern_row_bytes(rows->t->fmt, rows->t->cols);
    uint32_t all = 0;
    xd_status st;
    for (uint32_t i = 0; i < n; i++)
        all += rows[i].n;
    uint8_t *dst = exec_trunk_take(x, row_bytes * all);
    *ret = mat_of(rows->t, dst);
    ret->rows = all;
    for (uint32_t i = 0; i < n; dst += row_bytes * rows[i++].n)
        if ((st = upload_rows(x, &rows[i], dst, what, err)))
            return st;
    return XD_OK;
}

xd_status exec_load_matrix(exec *x, const model_tensor *t, kern_mat *ret, const char *what, xd_err *err)
{
    if (!t->data) {
        *ret = (kern_mat){0};
        return XD_OK;
    }
    if (!exec_copies(x, t)) {
        *ret = mat_of(t, t->data);
        return XD_OK;
    }
    return exec_load_rows(x, &(exec_rows){t, 0, t->rows}, 1, ret, what, err);
}

bool exec_same_kind(const model_tensor *a, const model_tensor *b)
{
    return a->fmt == b->fmt && a->cols == b->cols;
}

static bool has_all_or_none(const void *a, const void *b, const void *c)
{
    return (a && b && c) || (!a && !b && !c);
}

/* Rows of Q's matrix, or values of its bias: Q's, or the gate's. */
static uint32_t q_rows(const model_params *hp, const model_layer *ml, const model_tensor *t, bool gate, exec_rows *ret)
{
    const uint32_t hd = ml->head_dim;
    if (!hp->gated) {
        *ret = (exec_rows){t, 0, ml->n_heads * hd};
        return 1;
    }
    for (uint32_t h = 0; h < ml->n_heads; h++)
        ret[h] = (exec_rows){t, hd * (2 * h + gate), hd};
    return ml->n_heads;
}

static xd_status load_gate(exec *x, const model_layer *ml, exec_layer *l, exec_rows *rows, float *tmp, uint32_t tmp_cap,
                           xd_err *err)
{
    xd_status st = exec_load_rows(x, rows, q_rows(x->hp, ml, &ml->q, true, rows), &l->gate, "a gate's matrix", err);
    return st ? st
              : exec_load_values(x, rows, q_rows(x->hp, ml, &ml->q_bias, true, rows), tmp, tmp_cap, &l->gate_bias,
                                 "a gate's bias", err);
}

/* One product for Q, K and V where they can lie below one another. */
static xd_status load_qkv(exec *x, const model_layer *ml, exec_layer *l, float *tmp, uint32_t tmp_cap, xd_err *err)
{
    const char *what = "a Q, K or V matrix", *of_bias = "a Q, K or V bias";
    const model_tensor *w[3] = {&ml->q, &ml->k, &ml->v}, *b[3] = {&ml->q_bias, &ml->k_bias, &ml->v_bias};
    bool joined =
        exec_same_kind(w[0], w[1]) && exec_same_kind(w[0], w[2]) && has_all_or_none(b[0]->data, b[1]->data, b[2]->data);
    const bool copies = exec_copies(x, w[0]); /* joined, all three are of one kind */
    if (!copies)
        joined = joined && !x->hp->gated && (const uint8_t *)w[0]->data + w[0]->bytes == w[1]->data &&
                 (const uint8_t *)w[1]->data + w[1]->bytes == w[2]->data;
    XD_CLEANUP(xd_freep) exec_rows *rows = malloc((ml->n_heads + 2ull) * sizeof *rows);
    xd_status st;
    if (!rows)
        return xd_fail(err, XD_NOMEM, 0, "rows of %s", what);
    if (x->hp->gated && (st = load_gate(x, ml, l, rows, tmp, tmp_cap, err)))
        return st;
    uint32_t n = q_rows(x->hp, ml, w[0], false, rows);
    if (!joined) {
        l->n_qkv = 3;
        st = x->hp->gated ? exec_load_rows(x, rows, n, &l->qkv[0], what, err)
                          : exec_load_matrix(x, w[0], &l->qkv[0], what, err);
        if (!st)
            st = exec_load_values(x, rows, q_rows(x->hp, ml, b[0], false, rows), tmp, tmp_cap, &l->qkv_bias[0], of_bias,
                                  err);
        for (int i = 1; i < 3 && !st; i++) {
            if (!(st = exec_load_matrix(x, w[i], &l->qkv[i], what, err)))
                st = exec_load_vector(x, b[i], tmp, tmp_cap, &l->qkv_bias[i], of_bias, err);
        }
        return st;
    }
    l->n_qkv = 1;
    rows[n++] = (exec_rows){w[1], 0, w[1]->rows};
    rows[n++] = (exec_rows){w[2], 0, w[2]->rows};
    if (copies) {
        if ((st = exec_load_rows(x, rows, n, &l->qkv[0], what, err)))
            return st;
    } else {
        l->qkv[0] = mat_of(w[0], w[0]->data);
        l->qkv[0].rows += w[1]->rows + w[2]->rows;
    }
    n = q_rows(x->hp, ml, b[0], false, rows);
    rows[n++] = (exec_rows){b[1], 0, w[1]->rows};
    rows[n++] = (exec_rows){b[2], 0, w[2]->rows};
    return exec_load_values(x, rows, n, tmp, tmp_cap, &l->qkv_bias[0], of_bias, err);
}

/* Gate and up are one product where they can lie below one another. */
static xd_status load_shared(exec *x, const model_layer *ml, exec_layer *l, xd_err *err)
{
    const model_tensor *gate = &ml->shared[MODEL_GATE], *up = &ml->shared[MODEL_UP];
    const char *what = "a shared expert";
    xd_status st;
    if (!gate->data)
        return XD_OK;
    if ((st = exec_load_matrix(x, gate, &l->shared[0], what, err)) ||
        (st = exec_load_matrix(x, up, &l->shared[1], what, err)) ||
        (st = exec_load_matrix(x, &ml->shared[MODEL_DOWN], &l->shared_down, what, err)) ||
        (st = exec_load_matrix(x, &ml->shared_gate, &l->shared_gate, what, err)))
        return st;
    const kern_mat *a = &l->shared[0], *b = &l->shared[1];
    l->n_shared = 2;
    if (exec_same_kind(gate, up) && (const uint8_t *)a->data + a->rows * a->row_bytes == b->data) {
        l->shared[0].rows += b->rows;
        l->n_shared = 1;
    }
    return XD_OK;
}

/* What Q's rows take that are divided into Q and gate, beyond where they lie. */
static uint64_t gate_bytes(const exec *x, const model_layer *l)
{
    if (!x->hp->gated || l->linear)
        return 0;
    const uint64_t ends = 4 * 256; /* of four parts instead of two */
    return ends + (exec_copies(x, &l->q) ? 0 : l->q.bytes);
}

static uint32_t most_head_dim(const model_params *hp)
{
    return XD_MAX(hp->head_dim, hp->full_head_dim);
}

/* Heads that are normed by no weights. */
static bool needs_ones(const model_params *hp)
{
    bool any = hp->v_normed;
    for (uint32_t i = 0; i < MODEL_MAX_ROPES; i++)
        any |= hp->ropes[i].normed;
    return any;
}

static uint64_t trunk_size(const exec *x)
{
    const model_tensor *embed = model_embed(x->m), *head = model_lm_head(x->m);
    uint64_t n = vector_bytes(model_final_norm(x->m)) + vector_bytes(model_final_norm_bias(x->m)) +
                 vector_bytes(model_lm_head_bias(x->m));
    for (uint32_t i = 0; i < MODEL_MAX_ROPES; i++)
        n += x->hp->ropes[i].rot_dim ? xd_align_up(sizeof x->hp->ropes[i].inv_freq, 256) : 0;
    n += needs_ones(x->hp) ? xd_align_up(most_head_dim(x->hp) * sizeof(float), 256) : 0;
    n += copied_bytes(x, embed) + (head->data != embed->data ? copied_bytes(x, head) : 0);
    for (uint32_t i = 0; i < x->hp->n_layers; i++) {
        const model_layer *l = model_get_layer(x->m, i);
        const model_tensor *vec[] = {&l->attn_norm,
                                     &l->ffn_norm,
                                     &l->attn_norm_bias,
                                     &l->ffn_norm_bias,
                                     &l->q_norm,
                                     &l->k_norm,
                                     &l->q_bias,
                                     &l->k_bias,
                                     &l->v_bias,
                                     &l->o_bias,
                                     &l->sinks,
                                     &l->router_bias,
                                     &l->choice_bias,
                                     &l->expert_bias[MODEL_GATE],
                                     &l->expert_bias[MODEL_UP],
                                     &l->expert_bias[MODEL_DOWN],
                                     &l->latent.q_a_norm,
                                     &l->latent.q_a_bias,
                                     &l->latent.kv_a_norm,
                                     &l->latent.kv_a_bias,
                                     &l->index.k_norm,
                                     &l->index.k_norm_bias,
                                     &l->attn_post_norm,
                                     &l->ffn_post_norm,
                                     &l->router_norm,
                                     &l->expert_norm,
                                     &l->expert_post_norm,
                                     &l->shared_post_norm,
                                     &l->expert_scale};
        const model_tensor *mat[] = {&l->q,
                                     &l->k,
                                     &l->v,
                                     &l->o,
                                     &l->router,
                                     &l->shared[MODEL_GATE],
                                     &l->shared[MODEL_UP],
                                     &l->shared[MODEL_DOWN],
                                     &l->shared_gate,
                                     &l->gate,
                                     &l->latent.q_a,
                                     &l->latent.kv_a,
                                     &l->latent.k_b,
                                     &l->latent.v_b,
                                     &l->index.q,
                                     &l->index.k,
                                     &l->index.weights};
        n += exec_latent_trunk_bytes(x, l) + exec_state_trunk_bytes(x, l) + gate_bytes(x, l);
        for (size_t j = 0; j < XD_ARRAY_LEN(vec); j++)
            n += vector_bytes(vec[j]);
        for (size_t j = 0; j < XD_ARRAY_LEN(mat); j++)
            n += copied_bytes(x, mat[j]);
    }
    return n;
}

/* Values of the largest vector. */
static uint32_t most_values(const exec *x)
{
    const model_params *hp = x->hp;
    uint32_t n = XD_MAX(hp->d_model, most_head_dim(hp) * (hp->n_heads + 2 * XD_MAX(hp->n_kv_heads, hp->full_kv_heads)));
    n = XD_MAX(n, XD_MAX(kern_delta_channels(&hp->delta) * hp->delta.conv, kern_delta_decays(&hp->delta)));
    n = XD_MAX(n, hp->shortconv.channels * hp->shortconv.conv);
    n = XD_MAX(n, kern_ssm_channels(&hp->ssm) * hp->ssm.conv);
    n = XD_MAX(n, model_lm_head_bias(x->m)->cols);
    n = XD_MAX(n, hp->index.dim);
    n = XD_MAX(n, XD_MAX(hp->latent.q_rank, XD_MAX(hp->n_experts_max, (uint32_t)MODEL_MAX_ROT)));
    for (uint32_t i = 0; i < hp->n_layers; i++)
        for (int k = 0; k < MODEL_MATRICES; k++) {
            const model_tensor *t = &model_get_layer(x->m, i)->expert_bias[k];
            n = XD_MAX(n, t->rows * t->cols); /* at most MODEL_MAX_EXPERTS of 2^20 */
        }
    return n;
}

/* Norms that few families have. */
static xd_status load_more_norms(exec *x, const model_layer *ml, exec_layer *l, float *tmp, uint32_t tmp_cap,
                                 xd_err *err)
{
    const struct {
        const model_tensor *t;
        float **to;
        const char *what;
    } parts[] = {
        {&ml->attn_post_norm, &l->attn_post_norm, "a norm behind attention"},
        {&ml->ffn_post_norm, &l->ffn_post_norm, "a norm behind an FFN"},
        {&ml->expert_norm, &l->expert_norm, "a norm of experts"},
        {&ml->expert_post_norm, &l->expert_post_norm, "a norm behind experts"},
        {&ml->shared_post_norm, &l->shared_post_norm, "a norm behind a shared expert"},
    };
    xd_status st;
    for (size_t i = 0; i < XD_ARRAY_LEN(parts); i++)
        if ((st = load_norm(x, parts[i].t, tmp, tmp_cap, parts[i].to, parts[i].what, err)))
            return st;
    l->router_norm = l->ffn_norm;
    if (ml->router_norm.data && (st = load_scaled(x, &ml->router_norm, x->hp->norm_offset, x->hp->router_scale, tmp,
                                                  tmp_cap, &l->router_norm, "a norm of a router", err)))
        return st;
    l->out_scale = 1;
    if (ml->out_scale.data && (st = check_vector(&ml->out_scale, 1, "the scale of a layer", err)))
        return st;
    if (ml->out_scale.data)
        exec_to_float(&l->out_scale, &ml->out_scale, 1);
    return XD_OK;
}

static xd_status load_ffn_biases(exec *x, const model_layer *ml, exec_layer *l, float *tmp, uint32_t tmp_cap,
                                 xd_err *err)
{
    xd_status st = exec_load_vector(x, &ml->router_bias, tmp, tmp_cap, &l->router_bias, "a router's bias", err);
    if (!st)
        st = exec_load_vector(x, &ml->choice_bias, tmp, tmp_cap, &l->choice_bias, "a bias on the choice", err);
    if (!st)
        st = exec_load_vector(x, &ml->expert_scale, tmp, tmp_cap, &l->expert_scale, "scales of experts", err);
    for (int k = 0; k < MODEL_MATRICES && !st; k++)
        st = exec_load_vector(x, &ml->expert_bias[k], tmp, tmp_cap, &l->expert_bias[k], "biases of experts", err);
    return st;
}

xd_status exec_load_trunk(exec *x, xd_err *err)
{
    const model_params *hp = x->hp;
    x->trunk_cap = trunk_size(x);
    xd_status st = exec_alloc(x, x->trunk_cap, &x->trunk, "the trunk weights", err);
    if (st)
        return st;
    x->trunk_bytes = x->trunk_cap;
    uint32_t tmp_cap = most_values(x);
    XD_CLEANUP(xd_freep) float *tmp = malloc((size_t)tmp_cap * sizeof *tmp);
    x->layers = calloc(hp->n_layers, sizeof *x->layers);
    if (!tmp || !x->layers)
        return xd_fail(err, XD_NOMEM, 0, "the layer table");

    const model_tensor *embed = model_embed(x->m), *head = model_lm_head(x->m);
    if ((st = exec_load_matrix(x, embed, &x->embed, "the embedding", err)))
        return st;
    x->head = x->embed;
    if (head->data != embed->data && (st = exec_load_matrix(x, head, &x->head, "the LM head", err)))
        return st;
    /* What the logits are scaled by is in the norm before them. */
    if ((st = load_scaled(x, model_final_norm(x->m), hp->norm_offset, hp->logit_scale, tmp, tmp_cap, &x->final_norm,
                          "the final norm", err)) ||
        (st = load_scaled(x, model_final_norm_bias(x->m), 0, hp->logit_scale, tmp, tmp_cap, &x->final_norm_bias,
                          "the final norm's bias", err)) ||
        (st = exec_load_vector(x, model_lm_head_bias(x->m), tmp, tmp_cap, &x->head_bias, "the LM head's bias", err)))
        return st;
    for (uint32_t i = 0; i < hp->n_layers; i++) {
        const model_layer *ml = model_get_layer(x->m, i);
        exec_layer *l = &x->layers[i];
        if ((st = load_norm(x, &ml->attn_norm, tmp, tmp_cap, &l->attn_norm, "an attention norm", err)) ||
            (st = load_norm(x, &ml->ffn_norm, tmp, tmp_cap, &l->ffn_norm, "an FFN norm", err)) ||
            (st = exec_load_vector(x, &ml->attn_norm_bias, tmp, tmp_cap, &l->attn_norm_bias, "a norm's bias", err)) ||
            (st = exec_load_vector(x, &ml->ffn_norm_bias, tmp, tmp_cap, &l->ffn_norm_bias, "a norm's bias", err)) ||
            (st = load_more_norms(x, ml, l, tmp, tmp_cap, err)) ||
            (st = load_norm(x, &ml->q_norm, tmp, tmp_cap, &l->q_norm, "a Q norm", err)) ||
            (st = load_norm(x, &ml->k_norm, tmp, tmp_cap, &l->k_norm, "a K norm", err)) ||
            (st = ml->ffn_alone        ? XD_OK
                  : ml->linear         ? exec_state_load(x, ml, l, tmp, tmp_cap, err)
                  : hp->latent.kv_rank ? exec_latent_load(x, ml, l, tmp, tmp_cap, err)
                                       : load_qkv(x, ml, l, tmp, tmp_cap, err)) ||
            (ml->gate.data && (st = exec_load_matrix(x, &ml->gate, &l->gate, "a gate's matrix", err))) ||
            (st = exec_load_matrix(x, &ml->o, &l->o, "an O matrix", err)) ||
            (st = exec_load_vector(x, &ml->o_bias, tmp, tmp_cap, &l->o_bias, "an O bias", err)) ||
            (st = exec_load_vector(x, &ml->sinks, tmp, tmp_cap, &l->sinks, "attention sinks", err)) ||
            (st = exec_load_matrix(x, &ml->router, &l->router, "a router", err)) ||
            (st = load_ffn_biases(x, ml, l, tmp, tmp_cap, err)) || (st = load_shared(x, ml, l, err)))
            return xd_wrap(err, "layer %u", i);
        if (x->opt.progress)
            x->opt.progress(x->opt.progress_user, (double)(i + 1) / hp->n_layers);
    }
    for (uint32_t i = 0; i < most_head_dim(hp); i++)
        tmp[i] = 1;
    if (needs_ones(hp) && (st = exec_upload_values(x, tmp, most_head_dim(hp), &x->ones, "norms of heads", err)))
        return st;
    kern_status ks = KERN_OK;
    for (uint32_t i = 0; i < MODEL_MAX_ROPES && !ks; i++) {
        const model_rope *rope = model_rope_for(hp, i, x->opt.max_context);
        if (!rope->rot_dim)
            continue;
        x->inv_freq[i] = (float *)exec_trunk_take(x, sizeof rope->inv_freq);
        ks = x->dev->ops->upload(x->dev, x->inv_freq[i], rope->inv_freq, sizeof rope->inv_freq);
    }
    if (!ks)
        ks = x->dev->ops->sync(x->dev);
    return ks ? exec_kern_fail(x, ks, err, "loading the trunk") : XD_OK;
}
