/* exec.c - workspaces, the upload of a step's inputs, recorded graphs, and the way of the results back.
 *
 * DESIGN. A step is: adopt the page table (pager_step_begin), pack all small inputs into one pinned buffer, run the operations (graph.c:
 * one upload, the layers, what the caller wants to know of the logits, downloads) or replay a recorded graph of the same shape,
 * wait, hand the counters to the pager (pager_step_end). The device is idle from the end of a step to the launch of the next: what can
 * wait is done between launch and wait (meanwhile).
 *
 * Recorded steps are decode steps only. Their batch size and context are rounded up to a bucket; padding rows have token_seq
 * UINT32_MAX and lie beyond n_live, so that no live row sees them. The kernels' rule that a row depends on nothing but its inputs
 * makes a replayed step equal a launched one bit by bit.
 *
 * Workspaces are sized at the start for max_tokens; a step allocates nothing. */
#include "engine/exec/exec.h"

#include <string.h>

#include "engine/exec/exec_priv.h"

/* Many times any cache: less would tell the cache's rate. */
#define MEMORY_PROBE_MIN (512ull << 20)

xd_status exec_kern_fail(exec *x, kern_status ks, xd_err *err, const char *what)
{
    const char *text = ks == KERN_ARG ? "bad arguments" : x->dev->ops->error(x->dev);
    char copy[256];
    snprintf(copy, sizeof copy, "%s", text && text[0] ? text : "no reason given");
    /* A device that cannot even be waited for is lost; after any other fault the next step may go on. */
    if (ks == KERN_DEVICE && x->dev->ops->sync(x->dev) == KERN_DEVICE)
        x->lost = true;
    xd_status st = ks == KERN_NOMEM ? XD_NOMEM : ks == KERN_UNSUPPORTED ? XD_UNSUPPORTED : XD_INTERNAL;
    return xd_fail(err, st, 0, "%s on %s: %s", what, x->info.name, copy);
}

xd_status exec_alloc(exec *x, uint64_t bytes, void *ret_pointer, const char *what, xd_err *err)
{
    void *p = NULL;
    if (x->n_owned == EXEC_MAX_OWNED)
        return xd_fail(err, XD_INTERNAL, 0, "more device buffers than planned");
    kern_status ks = x->dev->ops->alloc(x->dev, XD_MAX(bytes, 256), &p);
    if (ks) {
        char size[32];
        exec_kern_fail(x, ks, err, "allocation");
        return xd_wrap(err, "%s for %s", xd_format_bytes(size, sizeof size, bytes), what);
    }
    x->owned[x->n_owned++] = p;
    memcpy(ret_pointer, &p, sizeof p);
    return XD_OK;
}

xd_status exec_moe_scratch_bytes(exec *x, kern_dev *dev, uint32_t n_tokens, uint64_t *ret, xd_err *err)
{
    uint64_t most = 0;
    for (uint32_t i = 0; i < x->hp->n_layers; i++) {
        const model_layer *l = model_get_layer(x->m, i);
        kern_expert_geom g;
        xd_status st = pager_geometry(l, x->hp->d_model, x->opt.page_size, &g, err);
        if (st)
            return st;
        if (!l->n_experts)
            continue;
        uint64_t n = dev->ops->moe_scratch_bytes(dev, n_tokens, l->top_k, l->n_experts, &g);
        most = XD_MAX(most, n);
    }
    *ret = most;
    return XD_OK;
}

/* Of the products of a step, of which attention does `ta` tokens at a time, linear layers td, and shared experts `shared`. */
static uint64_t product_scratch(exec *x, uint64_t ta, uint64_t td, uint64_t shared)
{
    const kern_ops *ops = x->dev->ops;
    const uint32_t most = XD_MAX(x->opt.max_tokens, x->opt.max_rows);
    uint64_t bytes = ops->linear_scratch_bytes(x->dev, most, x->hp->d_model), n;
    for (uint32_t i = 0; i < x->hp->n_layers; i++) {
        const exec_layer *l = &x->layers[i];
        n = ops->linear_scratch_bytes(x->dev, (uint32_t)(model_get_layer(x->m, i)->linear ? td : ta), l->o.cols);
        bytes = XD_MAX(bytes, n);
        n = ops->linear_scratch_bytes(x->dev, (uint32_t)shared, l->n_shared ? l->shared_down.cols : 0);
        bytes = XD_MAX(bytes, n);
    }
    n = ops->linear_scratch_bytes(x->dev, (uint32_t)ta, x->hp->latent.q_rank);
    return XD_MAX(bytes, n);
}

static xd_status alloc_workspaces(exec *x, xd_err *err)
{
    const model_params *hp = x->hp;
    const exec_options *o = &x->opt;
    uint64_t t = o->max_tokens, f = sizeof(float), moe = 0;
    xd_status st = exec_moe_scratch_bytes(x, x->dev, o->max_tokens, &moe, err);
    if (st)
        return st;
    const uint32_t latent = hp->latent.kv_rank, q_head = hp->latent.nope_dim + hp->latent.rope_dim;
    const uint32_t head_dim = XD_MAX(hp->head_dim, hp->full_head_dim), kv_parts = latent ? 1 : 2;
    x->qkv_width = XD_MAX((hp->n_heads + kv_parts * hp->n_kv_heads) * hp->head_dim,
                          (hp->n_heads + kv_parts * hp->full_kv_heads) * hp->full_head_dim);
    const uint64_t ta = latent ? XD_MIN(t, (uint64_t)EXEC_LATENT_TOKENS) : t;
    const uint32_t o_width = hp->n_heads * (latent ? latent : head_dim);
    const uint64_t ti = hp->index.n_heads ? ta : 0;
    const bool chooses = ti && o->max_context > hp->index.top_k;
    uint64_t t_add = 0, t_add_shared = 0;
    for (uint32_t i = 0; i < hp->n_layers; i++) {
        t_add = x->layers[i].ffn_post_norm ? t : t_add;
        t_add_shared = x->layers[i].shared_post_norm ? t : t_add_shared;
    }
    const uint64_t td = hp->n_linear ? XD_MIN(t, (uint64_t)EXEC_STATE_TOKENS) : 0;
    uint64_t attn = x->dev->ops->attn_scratch_bytes(x->dev, o->max_tokens, hp->n_heads, head_dim, o->max_context);
    uint32_t max_blocks = (o->max_context + o->block_size - 1) / o->block_size;
    uint64_t shared = hp->d_ff_shared_max ? XD_MIN(t, (uint64_t)EXEC_SHARED_TOKENS) : 0;
    uint64_t picks = o->routes ? (uint64_t)o->max_seqs * hp->n_layers * hp->top_k_max : 0;
    uint64_t in_words =
        8 + 4 * t + o->max_rows + picks + (uint64_t)o->max_seqs * max_blocks * exec_kv_groups(x) + exec_state_words(x);
    if (in_words > UINT32_MAX)
        return xd_fail(err, XD_BAD_CONFIG, 0, "max_num_seqs times max_model_len is too large for a step's block table");
    x->in_cap_words = (uint32_t)in_words;
    const struct {
        uint64_t bytes;
        void *ret;
        const char *what;
    } rows[] = {
        {t * hp->d_model * f, &x->x, "activations"},
        {t * hp->d_model * f, &x->h, "activations"},
        {t_add * hp->d_model * f, &x->add, "activations"},
        {t_add_shared * hp->d_model * f, &x->add_shared, "activations"},
        {XD_MAX(ta * x->qkv_width, td * exec_state_width(hp)) * f, &x->qkv, "Q, K and V"},
        {XD_MAX(ta * o_width, td * exec_state_out_width(hp)) * f, &x->attn, "attention output"},
        {ta * hp->latent.q_rank * f, &x->q_low, "Q"},
        {ta * hp->latent.q_rank * f, &x->q_low_normed, "Q"},
        {ti * hp->index.n_heads * hp->index.dim * f, &x->index_q, "the indexer"},
        {ti * hp->index.dim * f, &x->index_k, "the indexer"},
        {ti * hp->index.dim * f, &x->index_k_normed, "the indexer"},
        {ti * hp->index.n_heads * f, &x->index_weights, "the indexer"},
        {chooses ? t * hp->index.top_k * f : 0, &x->chosen, "chosen positions"},
        {chooses ? x->dev->ops->index_scratch_bytes(x->dev, (uint32_t)ta, hp->index.n_heads, o->max_context) : 0,
         &x->index_scratch, "the indexer's scratch"},
        {ta * hp->n_heads * XD_MAX(q_head, hp->latent.v_dim) * f, &x->heads, "heads of latent attention"},
        {t * hp->n_experts_max * f, &x->router_logits, "router logits"},
        {t * hp->top_k_max * f, &x->router_weights, "router weights"},
        {t * hp->top_k_max * f, &x->router_ids, "router picks"},
        {t * f, &x->one_weights, "weights of dense layers"},
        {t * f, &x->one_ids, "picks of dense layers"},
        {(hp->n_experts_max + 1) * f, &x->expert_start, "expert buckets"},
        {t * hp->top_k_max * f, &x->pairs, "expert buckets"},
        {(uint64_t)o->max_rows * hp->vocab * f, &x->logits, "logits"},
        {o->max_rows * f, &x->argmax_dev, "sampled tokens"},
        {(uint64_t)o->max_rows * KERN_TOP_LOGITS * f, &x->top_ids_dev, "sampled tokens"},
        {(uint64_t)o->max_rows * KERN_TOP_LOGITS * f, &x->top_values_dev, "sampled tokens"},
        {o->max_rows * f, &x->top_lse_dev, "sampled tokens"},
        {in_words * f, &x->in_dev, "step inputs"},
        {EXEC_PREDICT_TOKENS * hp->top_k_max * f, &x->likely_ids, "router picks"},
        {shared * 2 * hp->d_ff_shared_max * f, &x->shared_gate_up, "shared experts"},
        {shared * hp->d_ff_shared_max * f, &x->shared_act, "shared experts"},
        {shared * f, &x->shared_gate, "shared experts"},
        {attn, &x->attn_scratch, "attention scratch"},
        {td ? exec_state_scratch_bytes(x, (uint32_t)td) : 0, &x->state.scratch, "linear layers' scratch"},
        {XD_MAX(moe, product_scratch(x, ta, td, shared)), &x->scratch, "scratch of experts and products"},
    };
    for (size_t i = 0; i < XD_ARRAY_LEN(rows); i++) {
        if (!rows[i].bytes)
            continue;
        if ((st = exec_alloc(x, rows[i].bytes, rows[i].ret, rows[i].what, err)))
            return xd_wrap(err, "workspace for max_num_batched_tokens = %u", o->max_tokens);
        x->workspace_bytes += rows[i].bytes;
    }
    return XD_OK;
}

static xd_status alloc_host(exec *x, xd_err *err)
{
    const exec_options *o = &x->opt;
    x->fetch_max = x->info.unified ? o->max_rows : XD_MIN(o->max_rows, 32);
    uint64_t fetch = x->info.unified ? 0 : (uint64_t)x->fetch_max * x->hp->vocab;
    uint64_t likely = EXEC_PREDICT_TOKENS * (uint64_t)x->hp->top_k_max + x->hp->n_experts_max;
    uint64_t words = sizeof *x->ahead.counts / 4 + x->in_cap_words + (uint64_t)o->max_rows * (2 + 2 * KERN_TOP_LOGITS) +
                     x->hp->n_experts_max + likely + fetch;
    kern_status ks = x->dev->ops->alloc_host(x->dev, words * 4, &x->host_owned);
    if (ks)
        return exec_kern_fail(x, ks, err, "allocation of pinned host memory for a step's results");
    x->ahead.counts = x->host_owned;
    *x->ahead.counts = (kern_ahead_counts){0};
    uint32_t *p = (uint32_t *)(x->ahead.counts + 1);
    x->in_host = p;
    p += x->in_cap_words;
    x->argmax_host = p;
    p += o->max_rows;
    x->top_lse_host = (float *)p;
    p += o->max_rows;
    x->top_ids_host = p;
    p += (uint64_t)o->max_rows * KERN_TOP_LOGITS;
    x->top_values_host = (float *)p;
    p += (uint64_t)o->max_rows * KERN_TOP_LOGITS;
    x->counts_host = p;
    p += x->hp->n_experts_max;
    x->likely_host = p;
    p += likely;
    x->fetch_host = fetch ? (float *)p : NULL;
    return XD_OK;
}

/* Picks of a dense layer never change: every token goes to expert 0 with weight 1. */
static xd_status fill_dense_picks(exec *x, xd_err *err)
{
    XD_CLEANUP(xd_freep) float *ones = malloc(x->opt.max_tokens * sizeof *ones);
    if (!ones)
        return xd_fail(err, XD_NOMEM, 0, "constants");
    for (uint32_t i = 0; i < x->opt.max_tokens; i++)
        ones[i] = 1;
    kern_status ks = x->dev->ops->upload(x->dev, x->one_weights, ones, x->opt.max_tokens * sizeof *ones);
    if (!ks)
        ks = x->dev->ops->clear(x->dev, x->one_ids, x->opt.max_tokens * sizeof *x->one_ids);
    if (!ks)
        ks = x->dev->ops->sync(x->dev);
    return ks ? exec_kern_fail(x, ks, err, "upload of constants") : XD_OK;
}

/* Before anything is loaded: an operation that refuses would do so at the first request. */
static xd_status check_layers(exec *x, xd_err *err)
{
    for (uint32_t i = 0; i < x->hp->n_layers; i++) {
        const model_layer *l = model_get_layer(x->m, i);
        const model_tensor *tensors[] = {
            &l->q,         &l->k,         &l->v,           &l->o,    &l->router,        &l->shared[0],
            &l->shared[1], &l->shared[2], &l->shared_gate, &l->gate, model_embed(x->m), model_lm_head(x->m)};
        kern_mat mats[XD_ARRAY_LEN(tensors) + MODEL_MATRICES + EXEC_LATENT_MATS + EXEC_STATE_MATS];
        kern_shape shape = {.n_heads = l->n_heads,
                            .n_kv_heads = l->n_kv_heads,
                            .head_dim = l->head_dim,
                            .v_dim = x->hp->latent.kv_rank,
                            .n_experts = l->n_experts,
                            .mats = mats,
                            .index_heads = x->hp->index.n_heads,
                            .index_dim = x->hp->index.dim,
                            .gated = (x->hp->gated && !l->linear) || l->gate.data};
        if (l->linear) {
            shape.delta = x->hp->delta;
            shape.shortconv = x->hp->shortconv;
            shape.ssm = x->hp->ssm;
        }
        for (size_t k = 0; k < XD_ARRAY_LEN(tensors) + (l->n_experts ? MODEL_MATRICES : 0); k++) {
            const model_tensor *t = k < XD_ARRAY_LEN(tensors) ? tensors[k] : &l->experts[k - XD_ARRAY_LEN(tensors)];
            if (t->data)
                mats[shape.n_mats++] = (kern_mat){NULL, kern_row_bytes(t->fmt, t->cols), t->rows, t->cols, t->fmt};
        }
        shape.n_mats += exec_latent_mats(x, l, mats + shape.n_mats);
        shape.n_mats += exec_state_mats(l, mats + shape.n_mats);
        memcpy(shape.expert_fmt, l->expert_fmt, sizeof shape.expert_fmt);
        kern_status ks = x->dev->ops->takes(x->dev, &shape);
        if (ks) {
            exec_kern_fail(x, ks, err, "this model cannot be computed");
            return xd_wrap(err, "layer %u", i);
        }
    }
    return XD_OK;
}

xd_status exec_open(const exec_options *opt, exec **ret, xd_err *err)
{
    XD_CLEANUP(exec_freep) exec *x = calloc(1, sizeof *x);
    if (!x)
        return xd_fail(err, XD_NOMEM, 0, "the step executor");
    x->opt = *opt;
    x->dev = opt->dev;
    x->m = opt->m;
    x->hp = model_get_params(opt->m);
    x->dev->ops->info(x->dev, &x->info);
    x->marks_on = true;
    x->needs_lost = calloc(opt->max_seqs, sizeof *x->needs_lost);
    if (!x->needs_lost)
        return xd_fail(err, XD_NOMEM, 0, "the step executor");
    xd_status st;
    if ((st = check_layers(x, err)) || (st = exec_load_trunk(x, err)) || (st = alloc_workspaces(x, err)) ||
        (st = alloc_host(x, err)) || (st = exec_state_open(x, err)) || (st = fill_dense_picks(x, err)) ||
        (st = exec_split_open(x, err)) || (st = exec_ahead_open(x, err)))
        return st;
    *ret = XD_TAKE(x);
    return XD_OK;
}

static void free_graphs(exec *x)
{
    for (uint32_t i = 0; i < x->n_graphs; i++)
        x->dev->ops->graph_free(x->dev, x->graphs[i].g);
    x->n_graphs = 0;
}

void exec_free(exec *x)
{
    if (!x)
        return;
    free_graphs(x);
    for (uint32_t i = 0; i < x->n_owned; i++)
        x->dev->ops->free(x->dev, x->owned[i]);
    if (x->host_owned)
        x->dev->ops->free_host(x->dev, x->host_owned);
    free(x->needs_lost);
    exec_split_forget(x);
    exec_stage_close(x);
    exec_state_close(x);
    exec_split_close(x);
    free(x->observed_ids);
    free(x->observed_weights);
    free(x->layers);
    free(x);
}

xd_status exec_attach(exec *x, const kv_cache *kv, pager *p, xd_err *err)
{
    x->kv = kv;
    x->pg = p;
    kv_describe_state(kv, &x->state.base, &x->state.slot_bytes);
    uint32_t window[MODEL_MAX_LAYERS];
    kv_layer at[MODEL_MAX_LAYERS];
    kv_deal_layers(kv_get_options(kv), window, model_get_windows(x->m, window), at);
    for (uint32_t l = 0; l < x->hp->n_layers; l++)
        if (model_keeps_kv(model_get_layer(x->m, l)))
            x->layers[l].kv = at[model_get_layer(x->m, l)->ordinal];
    return exec_stage_open(x, err);
}

void exec_memory(const exec *x, uint64_t *ret_trunk_bytes, uint64_t *ret_workspace_bytes)
{
    *ret_trunk_bytes = x->trunk_bytes;
    *ret_workspace_bytes = x->workspace_bytes;
}

double exec_probe_memory(exec *x)
{
    double gbps = 0;
    if (x->info.unified || x->trunk_bytes < MEMORY_PROBE_MIN ||
        x->dev->ops->probe_read(x->dev, (uint64_t)(uintptr_t)x->trunk, x->trunk_bytes, &gbps))
        return 0;
    return gbps;
}

/* --- one step ---------------------------------------------------------------------------------------------------- */

/* 1, 2, 4, 8, 16, 24, 32, ...: at most 7 padding rows, and few graphs. */
static uint32_t batch_bucket(uint32_t n, uint32_t cap)
{
    uint32_t b = 1;
    while (b < n && b < 16)
        b *= 2;
    if (b < n)
        b = (uint32_t)xd_align_up(n, 8);
    return XD_MIN(b, cap);
}

static uint32_t context_bucket(uint32_t n, uint32_t cap)
{
    uint32_t c = KERN_ATTN_SPLIT;
    while (c < n && c < cap)
        c *= 2;
    return XD_MIN(c, cap);
}

static xd_status shape_of(const exec *x, const exec_batch *b, exec_shape *ret, xd_err *err)
{
    exec_shape s = {
        .n_seqs = b->n_seqs, .recorded = x->info.can_record && x->opt.record && !b->prefill, .want = EXEC_WANT_ARGMAX};
    for (uint32_t i = 0; i < b->n_seqs; i++) {
        const exec_run_seq *q = &b->seqs[i];
        s.n_tokens += q->n_tokens;
        s.n_rows += q->n_rows;
        s.max_blocks = XD_MAX(s.max_blocks, q->n_blocks);
        s.max_context = XD_MAX(s.max_context, q->pos + q->n_tokens);
        s.recorded = s.recorded && q->n_tokens == 1 && q->n_rows == 1;
        if (q->n_rows && q->want == EXEC_WANT_TOP)
            s.want = EXEC_WANT_TOP;
    }
    if (!s.n_tokens || s.n_tokens > x->opt.max_tokens || s.n_rows > x->opt.max_rows || s.n_seqs > x->opt.max_seqs ||
        s.max_context > x->opt.max_context)
        return xd_fail(err, XD_INTERNAL, 0, "a step of %u tokens, %u rows, %u sequences, context %u is out of bounds",
                       s.n_tokens, s.n_rows, s.n_seqs, s.max_context);
    s.shared = exec_split_wanted(x, &s, b->prefill);
    s.predict = pager_wants_prediction(x->pg);
    if (x->observer || (pager_needs_require(x->pg, b->prefill) && !s.shared))
        s.recorded = false;
    if (x->opt.routes && !b->prefill && s.n_tokens <= x->opt.max_seqs)
        s.token_picks = x->hp->n_layers * x->hp->top_k_max;
    if (s.recorded) {
        s.max_context = context_bucket(s.max_context, x->opt.max_context);
        s.max_blocks = (s.max_context + x->opt.block_size - 1) / x->opt.block_size;
        s.n_tokens = s.n_rows = s.n_seqs = batch_bucket(b->n_seqs, XD_MIN(x->opt.max_seqs, x->opt.max_tokens));
    }
    *ret = s;
    return XD_OK;
}

/* [layer][token][top_k], as the layers' routers would leave them. */
static void pack_picks(const exec *x, const exec_batch *b, const exec_shape *s, uint32_t *w)
{
    for (uint32_t l = 0; l < x->hp->n_layers; l++) {
        uint32_t top_k = model_get_layer(x->m, l)->top_k, *to = w + (size_t)l * s->n_tokens * x->hp->top_k_max, t = 0;
        for (uint32_t i = 0; i < b->n_seqs && top_k; i++)
            for (uint32_t j = 0; j < b->seqs[i].n_tokens; j++, t++)
                routes_pick(x->opt.routes, b->seqs[i].salt, b->seqs[i].pos + j, l, to + (size_t)t * top_k);
        for (; t < s->n_tokens; t++)
            for (uint32_t k = 0; k < top_k; k++)
                to[(size_t)t * top_k + k] = k;
    }
}

uint32_t exec_kv_groups(const exec *x)
{
    return XD_MAX(x->opt.kv_groups, 1u);
}

uint32_t exec_n_blocks(const exec *x, const exec_run_seq *q, uint32_t group)
{
    const uint32_t span = kv_block_tokens(kv_get_options(x->kv), group) / x->opt.block_size;
    return (q->n_blocks + span - 1) / span;
}

void exec_put_blocks(const exec *x, uint32_t *table, uint32_t row, const exec_run_seq *q, uint32_t group,
                     uint32_t max_blocks)
{
    uint32_t *to = table + (size_t)row * max_blocks, n = XD_MIN(exec_n_blocks(x, q, group), max_blocks), first = 0;
    memcpy(to, q->blocks + (size_t)group * q->stride, n * sizeof *to);
    memset(to + n, 0, (max_blocks - n) * sizeof *to);
    while (first < n && to[first] == KV_NONE)
        first++;
    for (uint32_t i = 0; i < first; i++)
        to[i] = first < n ? to[first] : 0;
}

static void pack(exec *x, const exec_batch *b, const exec_shape *s, const exec_layout *in)
{
    uint32_t *w = x->in_host, t = 0, r = 0;
    for (uint32_t i = 0; i < b->n_seqs; i++) {
        const exec_run_seq *q = &b->seqs[i];
        for (uint32_t j = 0; j < q->n_tokens; j++, t++) {
            w[in->ids + t] = q->ids[j];
            w[in->token_seq + t] = w[in->attn_seq + t] = i;
            w[in->token_pos + t] = q->pos + j;
        }
        for (uint32_t j = 0; j < q->n_rows; j++)
            w[in->row_idx + r++] = t - q->n_rows + j;
        for (uint32_t g = 0; g < exec_kv_groups(x); g++)
            exec_put_blocks(x, w + in->block_table + exec_table_of(s, g), i, q, g, s->max_blocks);
    }
    if (x->hp->n_linear)
        exec_state_pack(x, b, s, in);
    if (s->token_picks)
        pack_picks(x, b, s, w + in->picks);
    memset(w, 0, in->ids * sizeof *w);
    w[in->n_live] = t;
    if (!++x->ahead.step) /* 0 is no step's number */
        x->ahead.step = 1;
    w[EXEC_STEP_WORD] = x->ahead.step;
    for (; t < s->n_tokens; t++) {
        w[in->ids + t] = 0;
        w[in->token_seq + t] = UINT32_MAX;
        w[in->attn_seq + t] = 0;
        w[in->token_pos + t] = 0;
    }
    for (; r < s->n_rows; r++)
        w[in->row_idx + r] = 0;
}

bool exec_same_shape(const exec_shape *a, const exec_shape *b)
{
    return a->n_tokens == b->n_tokens && a->max_context == b->max_context && a->fill == b->fill &&
           a->staged == b->staged && a->want == b->want && a->ahead == b->ahead && a->predict == b->predict;
}

/* What was recorded for another arena is stale. */
static void check_graphs(exec *x, const pager_view *view)
{
    const pager_view *v = &x->graphs_view;
    if (v->arena_begin == view->arena_begin && v->arena_end == view->arena_end && v->max_inserts == view->max_inserts)
        return;
    free_graphs(x);
    exec_split_forget(x);
    x->graphs_view = *view;
}

static xd_status run_recorded(exec *x, const exec_shape *s, const pager_view *view, xd_err *err)
{
    const kern_ops *ops = x->dev->ops;
    kern_status ks;
    kern_graph *g = NULL;
    for (uint32_t i = 0; i < x->n_graphs && !g; i++)
        g = exec_same_shape(&x->graphs[i].shape, s) ? x->graphs[i].g : NULL;
    if (!g) {
        x->recording = true;
        if (x->n_graphs == EXEC_MAX_GRAPHS)
            free_graphs(x);
        if ((ks = ops->graph_begin(x->dev)))
            return exec_kern_fail(x, ks, err, "recording a step");
        xd_status st = exec_build(x, s, NULL, view, err);
        ks = ops->graph_end(x->dev, &g);
        if (st || ks) {
            if (!ks)
                ops->graph_free(x->dev, g);
            return st ? st : exec_kern_fail(x, ks, err, "recording a step");
        }
        x->graphs[x->n_graphs++] = (exec_graph){.shape = *s, .g = g};
    }
    x->launch_at_ns = xd_now_ns();
    ks = ops->graph_launch(x->dev, g);
    x->launch_ns = xd_now_ns() - x->launch_at_ns;
    return ks ? exec_kern_fail(x, ks, err, "replaying a recorded step") : XD_OK;
}

static void take_times(exec *x, const exec_shape *s, const exec_times *host, uint64_t begin_ns)
{
    const kern_ops *ops = x->dev->ops;
    exec_times t = *host;
    uint32_t n = x->hp->n_layers;
    if (s->shared)
        exec_split_take(x, s, &t);
    else if (x->marks_on && x->n_marks == 2 + 3 * n) {
        uint64_t d = 0;
        for (uint32_t i = 0; i < n; i++) {
            uint32_t at = 3 * i;
            t.attention_ns += ops->mark_ns(x->dev, at, at + 1, &d) ? 0 : d;
            t.router_ns += ops->mark_ns(x->dev, at + 1, at + 2, &d) ? 0 : d;
            t.experts_ns += ops->mark_ns(x->dev, at + 2, at + 3, &d) ? 0 : d;
        }
        t.head_ns = ops->mark_ns(x->dev, 3 * n, 3 * n + 1, &d) ? 0 : d;
    }
    t.kv_host_bytes = exec_stage_host_bytes(x);
    exec_ahead_take(x, s, &t);
    t.total_ns = xd_now_ns() - begin_ns;
    x->times = t;
}

static void meanwhile(exec *x, const exec_batch *b)
{
    pager_settle(x->pg);
    if (b->meanwhile)
        b->meanwhile(b->meanwhile_user);
}

static xd_status run_on_device(exec *x, const exec_batch *b, const exec_shape *s, const pager_view *view, xd_err *err)
{
    exec_layout in = exec_layout_of(x, s);
    pack(x, b, s, &in);
    xd_status st;
    kern_status ks = KERN_OK;
    check_graphs(x, view);
    const bool by_itself = s->recorded && !s->shared;
    if (!by_itself)
        meanwhile(x, b);
    x->launch_at_ns = xd_now_ns();
    if (s->recorded && s->shared) {
        st = exec_split_step(x, s, NULL, view, err);
        if (!st)
            ks = x->dev->ops->graph_wait(x->dev);
    } else if (by_itself) {
        st = run_recorded(x, s, view, err);
        if (!st) {
            meanwhile(x, b);
            ks = x->dev->ops->graph_wait(x->dev);
        }
    } else {
        /* The hint of where each sequence's queries begin lies after the packed words, where room is left for it. */
        uint32_t *seq_start = x->in_host + x->in_cap_words - (b->n_seqs + 1), t = 0;
        bool room = in.words + b->n_seqs + 1 <= x->in_cap_words;
        for (uint32_t i = 0; room && i <= b->n_seqs; i++) {
            seq_start[i] = t;
            t += i < b->n_seqs ? b->seqs[i].n_tokens : 0;
        }
        st = s->shared ? exec_split_step(x, s, room ? seq_start : NULL, view, err)
                       : exec_build(x, s, room ? seq_start : NULL, view, err);
        if (!st)
            ks = x->dev->ops->sync(x->dev);
    }
    return st ? st : ks ? exec_kern_fail(x, ks, err, "running a step") : XD_OK;
}

/* Before this step, which began at begin_ns and had the pager's view at begun_ns; the step before had ended at ended_at_ns. */
static exec_border border_of(const exec *x, const exec_batch *b, uint64_t ended_at_ns, uint64_t begin_ns,
                             uint64_t begun_ns)
{
    exec_border t = {0};
    if (x->recording || !ended_at_ns || !b->follows_ns)
        return t;
    t.results_ns = b->follows_ns - ended_at_ns;
    t.pager_ns = x->end_ns + begun_ns - begin_ns;
    t.form_ns = begin_ns - b->follows_ns + x->launch_at_ns - begun_ns;
    t.launch_ns = x->launch_ns;
    t.ns = t.results_ns + t.pager_ns + t.form_ns + t.launch_ns;
    return t;
}

xd_status exec_run(exec *x, const exec_batch *b, exec_result *ret, xd_err *err)
{
    exec_shape s;
    xd_status st = shape_of(x, b, &s, err);
    if (st)
        return st;
    uint32_t n_rows = 0;
    for (uint32_t i = 0; i < b->n_seqs; i++)
        n_rows += b->seqs[i].n_rows;
    memset(x->needs_lost, 0, b->n_seqs * sizeof *x->needs_lost);
    x->prefill = b->prefill;
    x->recording = false;
    uint64_t ended_at_ns = x->ended_at_ns, begin_ns = xd_now_ns();
    x->ended_at_ns = x->launch_ns = 0;
    const pager_view *view = NULL;
    if ((st = pager_step_begin(x->pg, b->prefill, &view, err)))
        return st;
    uint64_t begun_ns = xd_now_ns();
    s.fill = view->n_free && view->layers[0].fill_addr;
    if (x->hp->n_linear)
        exec_state_step(x, b, &s);
    st = exec_stage_step(x, b, &s, err);
    s.ahead = exec_ahead_wanted(x, &s);
    if (!st)
        st = run_on_device(x, b, &s, view, err);
    if (st) {
        /* Whatever was launched must have left the pages before the pager may move them. */
        if (!x->lost && x->dev->ops->sync(x->dev) == KERN_OK)
            pager_step_abort(x->pg);
        return st;
    }
    exec_times host = {.recorded = s.recorded,
                       .recording = x->recording,
                       .launch_ns = x->launch_ns,
                       .border = border_of(x, b, ended_at_ns, begin_ns, begun_ns)};
    uint64_t seen_ns = xd_now_ns();
    if ((st = pager_step_end(x->pg, err)))
        return st;
    x->ended_at_ns = xd_now_ns();
    x->end_ns = x->ended_at_ns - seen_ns - pager_step_wait_ns(x->pg);
    host.pager_ns = begun_ns - begin_ns + x->end_ns;
    take_times(x, &s, &host, begin_ns);

    *ret = (exec_result){.n_rows = n_rows, .vocab = x->hp->vocab, .argmax = x->argmax_host};
    if (s.want == EXEC_WANT_TOP) {
        ret->argmax = NULL;
        ret->top_ids = x->top_ids_host;
        ret->top_values = x->top_values_host;
        ret->top_logsumexp = x->top_lse_host;
    }
    return XD_OK;
}

xd_status exec_fetch_rows(exec *x, const uint32_t *rows, uint32_t n, const float **ret, xd_err *err)
{
    uint64_t vocab = x->hp->vocab;
    kern_status ks = KERN_OK;
    for (uint32_t i = 0; i < n && !ks; i++) {
        if (x->info.unified) {
            ret[i] = x->logits + rows[i] * vocab;
            continue;
        }
        float *to = x->fetch_host + i * vocab;
        ks = x->dev->ops->download(x->dev, to, x->logits + rows[i] * vocab, vocab * sizeof(float));
        ret[i] = to;
    }
    if (!ks && !x->info.unified)
        ks = x->dev->ops->sync(x->dev);
    return ks ? exec_kern_fail(x, ks, err, "reading logits back") : XD_OK;
}

uint32_t exec_fetch_max(const exec *x)
{
    return x->fetch_max;
}

void exec_get_times(const exec *x, exec_times *ret)
{
    *ret = x->times;
}

bool exec_needs_lost_page(const exec *x, uint32_t seq)
{
    return x->needs_lost[seq];
}

bool exec_device_lost(const exec *x)
{
    return x->lost;
}

xd_status exec_observe_router(exec *x, exec_router_observer *f, void *user, xd_err *err)
{
    uint64_t n = (uint64_t)x->opt.max_tokens * x->hp->top_k_max;
    if (f && !x->observed_ids) {
        x->observed_ids = malloc(n * sizeof *x->observed_ids);
        x->observed_weights = malloc(n * sizeof *x->observed_weights);
        if (!x->observed_ids || !x->observed_weights)
            return xd_fail(err, XD_NOMEM, 0, "the router's record");
    }
    x->observer = f;
    x->observer_user = user;
    return XD_OK;
}
