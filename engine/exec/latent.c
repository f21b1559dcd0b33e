/* latent.c - latent attention (DeepSeek): what stands on both sides of a cache that holds, instead of K and V of every head, the
 * one vector that they are made of, and the rotated part of K that all heads share.
 *
 * K of a head is W_K c and V is W_V c, for the cached c. So a query q meets W_K c as W_K^T q meets c, and the weighted sum of V is W_V
 * times that of c: heads are never expanded, and attention sees one KV head, whose first columns are V too. W_K^T is made once when
 * the trunk is loaded, except where the file has it; both matrices are small. The same form serves prompts and single tokens, so that
 * a chunk of a prompt has the bits of its tokens alone. */
#include <string.h>

#include "engine/exec/exec_priv.h"

/* Formats of blocks cannot be transposed as they are: their values are exact in float32. */
static kern_fmt transposed_fmt(const model_tensor *t)
{
    return kern_fmt_get(t->fmt).block_len == 1 ? t->fmt : FMT_F32;
}

static uint64_t k_bytes(const model_params *hp, const model_tensor *kv_b)
{
    return (uint64_t)hp->n_heads * hp->latent.kv_rank * kern_row_bytes(transposed_fmt(kv_b), hp->latent.nope_dim);
}

static uint64_t v_bytes(const model_params *hp, const model_tensor *kv_b)
{
    return (uint64_t)hp->n_heads * hp->latent.v_dim * kern_row_bytes(kv_b->fmt, hp->latent.kv_rank);
}

uint64_t exec_latent_trunk_bytes(const exec *x, const model_layer *ml)
{
    const model_tensor *kv_b = &ml->latent.kv_b;
    if (!kv_b->data)
        return 0;
    return xd_align_up(k_bytes(x->hp, kv_b), 256) + (x->info.unified ? 0 : xd_align_up(v_bytes(x->hp, kv_b), 256));
}

/* The values of a matrix in float32, by the device's embedding. */
static xd_status decode(exec *x, const model_tensor *t, float *out, xd_err *err)
{
    const kern_ops *ops = x->dev->ops;
    XD_CLEANUP(xd_freep) uint32_t *ids = malloc(t->rows * sizeof *ids);
    const uint64_t bytes = (uint64_t)t->rows * t->cols * sizeof *out;
    void *raw = NULL, *ids_dev = NULL, *values = NULL;
    if (!ids)
        return xd_fail(err, XD_NOMEM, 0, "rows of a matrix");
    for (uint32_t i = 0; i < t->rows; i++)
        ids[i] = i;
    kern_status ks = ops->alloc(x->dev, t->bytes, &raw);
    if (!ks)
        ks = ops->alloc(x->dev, t->rows * sizeof *ids, &ids_dev);
    if (!ks)
        ks = ops->alloc(x->dev, bytes, &values);
    if (!ks)
        ks = ops->upload(x->dev, raw, t->data, t->bytes);
    if (!ks)
        ks = ops->upload(x->dev, ids_dev, ids, t->rows * sizeof *ids);
    const kern_mat table = {raw, kern_row_bytes(t->fmt, t->cols), t->rows, t->cols, t->fmt};
    if (!ks)
        ks = ops->embed(
            x->dev, &(kern_embed_args){.y = values, .table = table, .ids = ids_dev, .n_tokens = t->rows, .scale = 1});
    if (!ks)
        ks = ops->download(x->dev, out, values, bytes);
    if (!ks)
        ks = ops->sync(x->dev);
    xd_status st = ks ? exec_kern_fail(x, ks, err, "decoding a matrix") : XD_OK;
    void *const owned[] = {raw, ids_dev, values};
    for (size_t i = 0; i < XD_ARRAY_LEN(owned); i++)
        if (owned[i])
            ops->free(x->dev, owned[i]);
    return st;
}

/* Rows first .. first + n of `from`, [][cols], become the columns of `to`. */
static void transpose(uint8_t *to, const uint8_t *from, uint32_t n, uint32_t cols, size_t size)
{
    for (uint32_t r = 0; r < n; r++)
        for (uint32_t c = 0; c < cols; c++)
            memcpy(to + ((size_t)c * n + r) * size, from + ((size_t)r * cols + c) * size, size);
}

/* kv_b is, for each head, the rows of W_K and then those of W_V. */
static xd_status split_kv_b(exec *x, const model_tensor *kv_b, exec_layer *l, xd_err *err)
{
    const model_params *hp = x->hp;
    const kern_ops *ops = x->dev->ops;
    const uint32_t nope = hp->latent.nope_dim, vd = hp->latent.v_dim, rank = hp->latent.kv_rank;
    const kern_fmt fmt = transposed_fmt(kv_b);
    const size_t size = kern_fmt_get(fmt).block_bytes;
    const uint64_t head_bytes = kern_row_bytes(kv_b->fmt, rank) * (nope + vd), k_head = (uint64_t)rank * nope * size;
    const uint64_t v_head = kern_row_bytes(kv_b->fmt, rank) * vd;
    const uint8_t *from = kv_b->data;
    uint64_t from_head = head_bytes;
    XD_CLEANUP(xd_freep) float *values = NULL;
    XD_CLEANUP(xd_freep) uint8_t *turned = malloc(k_head * hp->n_heads);
    if (fmt != kv_b->fmt) {
        values = malloc((uint64_t)kv_b->rows * rank * sizeof *values);
        from = (uint8_t *)values;
        from_head = (uint64_t)(nope + vd) * rank * sizeof *values;
    }
    if (!turned || !from)
        return xd_fail(err, XD_NOMEM, 0, "a matrix of latent attention");
    xd_status st = values ? decode(x, kv_b, values, err) : XD_OK;
    if (st)
        return st;
    for (uint32_t h = 0; h < hp->n_heads; h++)
        transpose(turned + h * k_head, from + h * from_head, nope, rank, size);
    uint8_t *k = exec_trunk_take(x, k_head * hp->n_heads);
    kern_status ks = ops->upload(x->dev, k, turned, k_head * hp->n_heads);
    l->latent.k_b = (kern_mat){k, nope * size, rank, nope, fmt};
    l->latent.k_head_bytes = k_head;

    const uint8_t *v = (const uint8_t *)kv_b->data + kern_row_bytes(kv_b->fmt, rank) * nope;
    l->latent.v_head_bytes = head_bytes;
    if (!x->info.unified) {
        uint8_t *to = exec_trunk_take(x, v_head * hp->n_heads);
        for (uint32_t h = 0; h < hp->n_heads && !ks; h++)
            ks = ops->upload(x->dev, to + h * v_head, v + h * head_bytes, v_head);
        v = to;
        l->latent.v_head_bytes = v_head;
    }
    l->latent.v_b = (kern_mat){v, kern_row_bytes(kv_b->fmt, rank), vd, rank, kv_b->fmt};
    if (!ks)
        ks = ops->sync(x->dev); /* `turned` goes */
    return ks ? exec_kern_fail(x, ks, err, "upload of a matrix of latent attention") : XD_OK;
}

xd_status exec_latent_load(exec *x, const model_layer *ml, exec_layer *l, float *tmp, uint32_t tmp_cap, xd_err *err)
{
    const model_params *hp = x->hp;
    xd_status st;
    l->n_qkv = 1;
    if ((st = exec_load_matrix(x, &ml->q, &l->qkv[0], "a Q matrix", err)) ||
        (st = exec_load_matrix(x, &ml->latent.q_a, &l->latent.q_a, "a Q matrix", err)) ||
        (st = exec_load_vector(x, &ml->latent.q_a_norm, tmp, tmp_cap, &l->latent.q_a_norm, "a Q norm", err)) ||
        (st = exec_load_vector(x, &ml->latent.q_a_bias, tmp, tmp_cap, &l->latent.q_a_bias, "a Q bias", err)) ||
        (st = exec_load_matrix(x, &ml->latent.kv_a, &l->latent.kv_a, "a KV matrix", err)) ||
        (st = exec_load_vector(x, &ml->latent.kv_a_norm, tmp, tmp_cap, &l->latent.kv_a_norm, "a KV norm", err)) ||
        (st = exec_load_vector(x, &ml->latent.kv_a_bias, tmp, tmp_cap, &l->latent.kv_a_bias, "a KV bias", err)))
        return st;
    if (ml->latent.kv_b.data)
        return split_kv_b(x, &ml->latent.kv_b, l, err);
    if ((st = exec_load_matrix(x, &ml->latent.k_b, &l->latent.k_b, "a K matrix", err)) ||
        (st = exec_load_matrix(x, &ml->latent.v_b, &l->latent.v_b, "a V matrix", err)))
        return st;
    l->latent.k_b.rows = hp->latent.kv_rank;
    l->latent.v_b.rows = hp->latent.v_dim;
    l->latent.k_head_bytes = l->latent.k_b.rows * l->latent.k_b.row_bytes;
    l->latent.v_head_bytes = l->latent.v_b.rows * l->latent.v_b.row_bytes;
    return XD_OK;
}

uint32_t exec_latent_mats(const exec *x, const model_layer *ml, kern_mat *ret)
{
    const model_params *hp = x->hp;
    const model_tensor *tensors[] = {&ml->latent.q_a, &ml->latent.kv_a, &ml->latent.k_b, &ml->latent.v_b};
    uint32_t n = 0;
    for (size_t i = 0; i < XD_ARRAY_LEN(tensors); i++)
        if (tensors[i]->data)
            ret[n++] = (kern_mat){NULL, kern_row_bytes(tensors[i]->fmt, tensors[i]->cols), tensors[i]->rows,
                                  tensors[i]->cols, tensors[i]->fmt};
    const model_tensor *kv_b = &ml->latent.kv_b;
    if (!kv_b->data)
        return n;
    const kern_fmt fmt = transposed_fmt(kv_b);
    ret[n++] = (kern_mat){NULL, kern_row_bytes(fmt, hp->latent.nope_dim), hp->latent.kv_rank, hp->latent.nope_dim, fmt};
    ret[n++] = (kern_mat){NULL, kern_row_bytes(kv_b->fmt, kv_b->cols), kv_b->rows, kv_b->cols, kv_b->fmt};
    return n;
}

xd_status exec_latent_project(exec *x, const exec_layer *l, uint32_t n_tokens, xd_err *err)
{
    const kern_ops *ops = x->dev->ops;
    const model_params *hp = x->hp;
    const uint32_t q_head = hp->latent.nope_dim + hp->latent.rope_dim;
    const bool low = l->latent.q_a.data;
    RUN(ops->linear(x->dev, &(kern_linear_args){.y = low ? x->q_low : x->heads,
                                                .x = x->x,
                                                .w = low ? l->latent.q_a : l->qkv[0],
                                                .bias = l->latent.q_a_bias,
                                                .n_tokens = n_tokens,
                                                .x_stride = hp->d_model,
                                                .y_stride = low ? hp->latent.q_rank : hp->n_heads * q_head,
                                                .norm = l->attn_norm,
                                                .normed = x->h,
                                                .norm_eps = hp->rms_eps}));
    if (low)
        RUN(ops->linear(x->dev, &(kern_linear_args){.y = x->heads,
                                                    .x = x->q_low,
                                                    .w = l->qkv[0],
                                                    .n_tokens = n_tokens,
                                                    .x_stride = hp->latent.q_rank,
                                                    .y_stride = hp->n_heads * q_head,
                                                    .norm = l->latent.q_a_norm,
                                                    .normed = x->q_low_normed,
                                                    .norm_eps = hp->latent.norm_eps}));
    RUN(ops->linear(x->dev, &(kern_linear_args){.y = x->qkv + hp->n_heads * hp->head_dim,
                                                .x = x->h,
                                                .w = l->latent.kv_a,
                                                .bias = l->latent.kv_a_bias,
                                                .n_tokens = n_tokens,
                                                .x_stride = hp->d_model,
                                                .y_stride = x->qkv_width}));
    RUN(ops->linear_heads(x->dev, &(kern_linear_heads_args){.y = x->qkv,
                                                            .x = x->heads,
                                                            .w = l->latent.k_b,
                                                            .head_bytes = l->latent.k_head_bytes,
                                                            .n_tokens = n_tokens,
                                                            .n_heads = hp->n_heads,
                                                            .tail = hp->latent.rope_dim,
                                                            .x_stride = hp->n_heads * q_head,
                                                            .y_stride = x->qkv_width,
                                                            .x_head_stride = q_head,
                                                            .y_head_stride = hp->head_dim}));
    return XD_OK;
}

xd_status exec_latent_values(exec *x, const exec_layer *l, uint32_t n_tokens, xd_err *err)
{
    const model_params *hp = x->hp;
    RUN(x->dev->ops->linear_heads(x->dev, &(kern_linear_heads_args){.y = x->heads,
                                                                    .x = x->attn,
                                                                    .w = l->latent.v_b,
                                                                    .head_bytes = l->latent.v_head_bytes,
                                                                    .n_tokens = n_tokens,
                                                                    .n_heads = hp->n_heads,
                                                                    .x_stride = hp->n_heads * hp->latent.kv_rank,
                                                                    .y_stride = hp->n_heads * hp->latent.v_dim,
                                                                    .x_head_stride = hp->latent.kv_rank,
                                                                    .y_head_stride = hp->latent.v_dim}));
    return XD_OK;
}
