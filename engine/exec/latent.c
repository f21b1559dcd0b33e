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
    return xd_align_up(k_bytes(x->hp, kv_b), 256) + (exec_copies(x, kv_b) ? xd_align_up(v_bytes(x->hp, kv_b), 256) : 0);
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

/* kv_b is, for each head, the rows of W_K and then those of W_V. `copy`: it does not stay where it is. */
static xd_status split_kv_b(exec *x, const model_tensor *kv_b, bool copy, exec_layer *l, xd_err *err)
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
    if (copy) {
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

static xd_status load_kv_b(exec *x, const model_tensor *kv_b, exec_layer *l, xd_err *err)
{
    const bool copy = exec_copies(x, kv_b);
    model_tensor whole = *kv_b; /* rows as kernels read them */
    XD_CLEANUP(xd_freep) void *rows = NULL;
    if (kv_b->scales) {
        rows = malloc(kv_b->bytes);
        if (!rows)
            return xd_fail(err, XD_NOMEM, 0, "a matrix of latent attention");
        model_copy_matrix(kv_b, 0, kv_b->rows, rows);
        whole.data = rows;
        whole.scales = NULL;
    }
    return split_kv_b(x, &whole, copy, l, err);
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
    if (ml->index.own &&
        ((st = exec_load_matrix(x, &ml->index.q, &l->index.q, "an indexer's Q matrix", err)) ||
         (st = exec_load_matrix(x, &ml->index.k, &l->index.k, "an indexer's K matrix", err)) ||
         (st = exec_load_matrix(x, &ml->index.weights, &l->index.weights, "an indexer's weights", err)) ||
         (st = exec_load_vector(x, &ml->index.k_norm, tmp, tmp_cap, &l->index.k_norm, "an indexer's norm", err)) ||
         (st = exec_load_vector(x, &ml->index.k_norm_bias, tmp, tmp_cap, &l->index.k_norm_bias, "an indexer's norm",
                                err))))
        return st;
    if (ml->latent.kv_b.data)
        return load_kv_b(x, &ml->latent.kv_b, l, err);
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
    const model_tensor *tensors[] = {&ml->latent.q_a, &ml->latent.kv_a, &ml->latent.k_b,   &ml->latent.v_b,
                                     &ml->index.q,    &ml->index.k,     &ml->index.weights};
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

/* --- a step ------------------------------------------------------------------------------------------------------- */

/* Rows [first, first + n) of a step. */
typedef struct piece {
    const exec_layer *l;
    const exec_shape *s;
    uint32_t layer, first, n;
    kern_kv kv;
} piece;

static kern_rope_kv_args rope_of(const exec *x, const piece *p)
{
    const model_params *hp = x->hp;
    const exec_layout in = exec_layout_of(x, p->s);
    return (kern_rope_kv_args){.qkv = x->qkv,
                               .k_norm = p->l->latent.kv_a_norm,
                               .norm_eps = hp->latent.norm_eps,
                               .inv_freq = x->inv_freq[0],
                               .rope_scale = hp->ropes[0].scale,
                               .rot_dim = hp->ropes[0].rot_dim,
                               .interleaved = hp->rope_interleaved,
                               .token_seq = x->in_dev + in.token_seq + p->first,
                               .token_pos = x->in_dev + in.token_pos + p->first,
                               .n_tokens = p->n,
                               .n_heads = hp->n_heads,
                               .layer = p->l->kv.idx,
                               .kv = p->kv};
}

/* What is kept of K and V, from rows that are normed, into y. */
static kern_linear_args kept(const exec *x, const piece *p, float *y, uint32_t y_stride)
{
    const uint32_t d = x->hp->d_model;
    return (kern_linear_args){.y = y,
                              .x = x->h + (size_t)p->first * d,
                              .w = p->l->latent.kv_a,
                              .bias = p->l->latent.kv_a_bias,
                              .n_tokens = p->n,
                              .x_stride = d,
                              .y_stride = y_stride,
                              .scratch = x->scratch};
}

static xd_status multiply(exec *x, const piece *p, const kern_mat *w, const float *from, uint32_t from_stride, float *y,
                          xd_err *err)
{
    RUN(x->dev->ops->linear(x->dev, &(kern_linear_args){.y = y,
                                                        .x = from,
                                                        .w = *w,
                                                        .n_tokens = p->n,
                                                        .x_stride = from_stride,
                                                        .y_stride = w->rows,
                                                        .scratch = x->scratch}));
    return XD_OK;
}

/* Keys of the indexer, from rows that are normed, into the cache; its rotated Q too, unless there is nothing to choose from. */
static xd_status keep_index(exec *x, const piece *p, bool choose, xd_err *err)
{
    const model_params *hp = x->hp;
    const kern_ops *ops = x->dev->ops;
    const exec_layer *l = p->l;
    const exec_layout in = exec_layout_of(x, p->s);
    const float *h = x->h + (size_t)p->first * hp->d_model;
    xd_status st;
    if ((st = multiply(x, p, &l->index.k, h, hp->d_model, x->index_k, err)) ||
        (choose && ((st = multiply(x, p, &l->index.q, x->q_low_normed, hp->latent.q_rank, x->index_q, err)) ||
                    (st = multiply(x, p, &l->index.weights, h, hp->d_model, x->index_weights, err)))))
        return st;
    RUN(ops->layernorm(x->dev, &(kern_layernorm_args){.y = x->index_k_normed,
                                                      .x = x->index_k,
                                                      .weight = l->index.k_norm,
                                                      .bias = l->index.k_norm_bias,
                                                      .n_tokens = p->n,
                                                      .dim = hp->index.dim,
                                                      .eps = hp->index.norm_eps}));
    RUN(ops->index_rope(x->dev, &(kern_index_rope_args){.q = x->index_q,
                                                        .k = x->index_k_normed,
                                                        .inv_freq = x->inv_freq[0],
                                                        .rope_scale = hp->ropes[0].scale,
                                                        .rot_dim = hp->ropes[0].rot_dim,
                                                        .interleaved = hp->index.interleaved,
                                                        .token_seq = x->in_dev + in.token_seq + p->first,
                                                        .token_pos = x->in_dev + in.token_pos + p->first,
                                                        .n_tokens = p->n,
                                                        .n_heads = choose ? hp->index.n_heads : 0,
                                                        .layer = l->kv.idx,
                                                        .kv = p->kv}));
    return XD_OK;
}

/* Where the positions that a piece's tokens have chosen stand; NULL: all are seen. */
static uint32_t *chosen_by(const exec *x, const piece *p)
{
    const bool all = !x->hp->index.n_heads || p->s->max_context <= x->hp->index.top_k;
    return all ? NULL : x->chosen + (size_t)p->first * x->hp->index.top_k;
}

/* What the layer's own indexer has to do behind project(). */
static xd_status choose(exec *x, const piece *p, const kern_kv *read_kv, xd_err *err)
{
    const model_params *hp = x->hp;
    const exec_layout in = exec_layout_of(x, p->s);
    uint32_t *chosen = chosen_by(x, p);
    if (!p->l->index.q.data)
        return XD_OK;
    xd_status st = keep_index(x, p, chosen, err);
    if (st || !chosen)
        return st;
    RUN(x->dev->ops->index(x->dev, &(kern_index_args){.chosen = chosen,
                                                      .q = x->index_q,
                                                      .weights = x->index_weights,
                                                      .token_seq = x->in_dev + in.attn_seq + p->first,
                                                      .token_pos = x->in_dev + in.token_pos + p->first,
                                                      .n_tokens = p->n,
                                                      .n_heads = hp->index.n_heads,
                                                      .top_k = hp->index.top_k,
                                                      .layer = p->l->kv.idx,
                                                      .max_context = p->s->max_context,
                                                      .kv = *read_kv,
                                                      .scratch = x->index_scratch}));
    return XD_OK;
}

/* From x->x to x->qkv: the norm, Q and what is kept. */
static xd_status project(exec *x, const piece *p, xd_err *err)
{
    const kern_ops *ops = x->dev->ops;
    const model_params *hp = x->hp;
    const exec_layer *l = p->l;
    const uint32_t d = hp->d_model, q_head = hp->latent.nope_dim + hp->latent.rope_dim;
    const bool low = l->latent.q_a.data;
    RUN(ops->linear(x->dev, &(kern_linear_args){.y = low ? x->q_low : x->heads,
                                                .x = x->x + (size_t)p->first * d,
                                                .w = low ? l->latent.q_a : l->qkv[0],
                                                .bias = l->latent.q_a_bias,
                                                .n_tokens = p->n,
                                                .x_stride = d,
                                                .y_stride = low ? hp->latent.q_rank : hp->n_heads * q_head,
                                                .norm = l->attn_norm,
                                                .normed = x->h + (size_t)p->first * d,
                                                .norm_eps = hp->rms_eps,
                                                .scratch = x->scratch}));
    if (low)
        RUN(ops->linear(x->dev, &(kern_linear_args){.y = x->heads,
                                                    .x = x->q_low,
                                                    .w = l->qkv[0],
                                                    .n_tokens = p->n,
                                                    .x_stride = hp->latent.q_rank,
                                                    .y_stride = hp->n_heads * q_head,
                                                    .norm = l->latent.q_a_norm,
                                                    .normed = x->q_low_normed,
                                                    .norm_eps = hp->latent.norm_eps,
                                                    .scratch = x->scratch}));
    const kern_linear_args keep = kept(x, p, x->qkv + hp->n_heads * hp->head_dim, x->qkv_width);
    RUN(ops->linear(x->dev, &keep));
    RUN(ops->linear_heads(x->dev, &(kern_linear_heads_args){.y = x->qkv,
                                                            .x = x->heads,
                                                            .w = l->latent.k_b,
                                                            .head_bytes = l->latent.k_head_bytes,
                                                            .n_tokens = p->n,
                                                            .n_heads = hp->n_heads,
                                                            .tail = hp->latent.rope_dim,
                                                            .x_stride = hp->n_heads * q_head,
                                                            .y_stride = x->qkv_width,
                                                            .x_head_stride = q_head,
                                                            .y_head_stride = hp->head_dim}));
    return XD_OK;
}

/* Only what is kept: it must all be there before a step's cold blocks are staged. */
static xd_status keep_only(exec *x, const piece *p, xd_err *err)
{
    const kern_ops *ops = x->dev->ops;
    const model_params *hp = x->hp;
    const size_t at = (size_t)p->first * hp->d_model;
    RUN(ops->rmsnorm(x->dev, &(kern_rmsnorm_args){.y = x->h + at,
                                                  .x = x->x + at,
                                                  .weight = p->l->attn_norm,
                                                  .n_tokens = p->n,
                                                  .dim = hp->d_model,
                                                  .eps = hp->rms_eps}));
    const kern_linear_args keep = kept(x, p, x->qkv, hp->head_dim);
    RUN(ops->linear(x->dev, &keep));
    kern_rope_kv_args rope = rope_of(x, p);
    rope.n_heads = 0;
    RUN(ops->rope_kv(x->dev, &rope));
    return p->l->index.q.data ? keep_index(x, p, false, err) : XD_OK;
}

/* From x->qkv to what attention adds to x->x. */
static xd_status attend(exec *x, const piece *p, const kern_kv *read_kv, const kern_rope_kv_args *rope,
                        const uint32_t *seq_start, xd_err *err)
{
    const kern_ops *ops = x->dev->ops;
    const model_params *hp = x->hp;
    const exec_layer *l = p->l;
    const exec_shape *s = p->s;
    const exec_layout in = exec_layout_of(x, s);
    const uint32_t rank = hp->latent.kv_rank, vd = hp->latent.v_dim;
    RUN(ops->attention(x->dev, &(kern_attn_args){.o = x->attn,
                                                 .qkv = x->qkv,
                                                 .qkv_stride = x->qkv_width,
                                                 .token_seq = x->in_dev + in.attn_seq + p->first,
                                                 .token_pos = x->in_dev + in.token_pos + p->first,
                                                 .n_tokens = p->n,
                                                 .n_heads = hp->n_heads,
                                                 .layer = l->kv.idx,
                                                 .max_context = s->max_context,
                                                 .window = model_get_layer(x->m, p->layer)->window,
                                                 .scale = hp->attn_scale,
                                                 .chosen = chosen_by(x, p),
                                                 .top_k = hp->index.top_k,
                                                 .kv = *read_kv,
                                                 .scratch = x->attn_scratch,
                                                 .seq_start = seq_start,
                                                 .n_seqs = seq_start ? s->n_seqs : 0,
                                                 .rope = rope,
                                                 .one_each = s->recorded || s->n_tokens == s->n_seqs}));
    RUN(ops->linear_heads(x->dev, &(kern_linear_heads_args){.y = x->heads,
                                                            .x = x->attn,
                                                            .w = l->latent.v_b,
                                                            .head_bytes = l->latent.v_head_bytes,
                                                            .n_tokens = p->n,
                                                            .n_heads = hp->n_heads,
                                                            .x_stride = hp->n_heads * rank,
                                                            .y_stride = hp->n_heads * vd,
                                                            .x_head_stride = rank,
                                                            .y_head_stride = vd}));
    RUN(ops->linear(x->dev, &(kern_linear_args){.y = x->x + (size_t)p->first * hp->d_model,
                                                .x = x->heads,
                                                .w = l->o,
                                                .bias = l->o_bias,
                                                .n_tokens = p->n,
                                                .x_stride = hp->n_heads * vd,
                                                .y_stride = hp->d_model,
                                                .accumulate = true,
                                                .scratch = x->scratch}));
    return XD_OK;
}

/* A long step goes in pieces, each of which finds what the ones before it have stored. */
xd_status exec_latent_attention(exec *x, uint32_t layer, const exec_shape *s, const uint32_t *seq_start, xd_err *err)
{
    const uint32_t n = s->n_tokens;
    const bool whole = n <= EXEC_LATENT_TOKENS;
    const uint32_t ordinal = model_get_layer(x->m, layer)->ordinal;
    piece p = {.l = &x->layers[layer], .s = s, .layer = layer};
    kv_describe(x->kv, p.l->kv.group, &p.kv);
    p.kv.block_table = x->in_dev + exec_layout_of(x, s).block_table + exec_table_of(s, p.l->kv.group);
    p.kv.max_blocks = s->max_blocks;
    kern_kv read_kv = p.kv;
    xd_status st;
    for (p.first = 0; s->staged && p.first < n; p.first += p.n) {
        p.n = XD_MIN(n - p.first, (uint32_t)EXEC_LATENT_TOKENS);
        if ((st = keep_only(x, &p, err)))
            return st;
    }
    if ((st = exec_stage_ready(x, ordinal, s, &read_kv, err)))
        return st;
    for (p.first = 0; p.first < n; p.first += p.n) {
        p.n = XD_MIN(n - p.first, (uint32_t)EXEC_LATENT_TOKENS);
        const kern_rope_kv_args rope = rope_of(x, &p);
        if ((st = project(x, &p, err)))
            return st;
        if (s->staged) /* Q is rotated; what is kept is stored once more, the same */
            RUN(x->dev->ops->rope_kv(x->dev, &rope));
        if ((st = choose(x, &p, &read_kv, err)) ||
            (st = attend(x, &p, &read_kv, s->staged ? NULL : &rope, whole && !s->recorded ? seq_start : NULL, err)))
            return st;
    }
    return exec_stage_ahead(x, ordinal + 2, s, err);
}
