/* graph.c - the model as a sequence of operations: one builder for every backend, for launched and for recorded steps.
 *
 * It reads all that changes between steps from the packed inputs in device memory, so that what is recorded once can be replayed
 * with other tokens. It does no arithmetic of its own and never looks at where an expert page lies. */
#include <string.h>

#include "engine/exec/exec_priv.h"

exec_layout exec_layout_of(const exec *x, const exec_shape *s)
{
    exec_layout l = {.n_live = 0, .ids = 4};
    l.token_seq = l.ids + s->n_tokens;
    /* Padding rows store no K and V, but attend to the first token of the first sequence: so all they compute is finite, and no
     * kernel has to tell them apart. */
    l.attn_seq = s->recorded ? l.token_seq + s->n_tokens : l.token_seq;
    l.token_pos = l.attn_seq + s->n_tokens;
    l.row_idx = l.token_pos + s->n_tokens;
    l.picks = l.row_idx + s->n_rows;
    l.block_table = l.picks + s->n_tokens * s->token_picks;
    l.seq_slot = l.block_table + exec_kv_groups(x) * s->n_seqs * s->max_blocks;
    l.runs = l.seq_slot + (x->hp->n_linear ? s->n_seqs : 0);
    l.words = l.runs + s->run_words;
    return l;
}

void exec_mark(exec *x, uint32_t slot)
{
    if (!x->marks_on || slot >= KERN_MARKS || x->dev->ops->mark(x->dev, slot) != KERN_OK)
        x->marks_on = false;
}

static void mark(exec *x)
{
    exec_mark(x, x->n_marks);
    x->n_marks += x->marks_on;
}

/* y = norm of y; and to = (to + y) * scale, unless it is NULL. */
static xd_status norm_onto(exec *x, float *y, const float *weight, float *to, float scale, const exec_shape *s,
                           xd_err *err)
{
    RUN(x->dev->ops->rmsnorm(x->dev, &(kern_rmsnorm_args){.y = y,
                                                          .x = y,
                                                          .weight = weight,
                                                          .n_tokens = s->n_tokens,
                                                          .dim = x->hp->d_model,
                                                          .eps = x->hp->rms_eps,
                                                          .add_to = to,
                                                          .scale = scale}));
    return XD_OK;
}

/* A layer norm of the stream, or of some of its rows, into x->h. The operations that norm what they multiply know the other norm: they are
 * given the rows that it leaves. */
static xd_status layer_norm(exec *x, const float *weight, const float *bias, const uint32_t *row_idx, uint32_t n_rows,
                            xd_err *err)
{
    RUN(x->dev->ops->layernorm(x->dev, &(kern_layernorm_args){.y = x->h,
                                                              .x = x->x,
                                                              .weight = weight,
                                                              .bias = bias,
                                                              .row_idx = row_idx,
                                                              .n_tokens = n_rows,
                                                              .dim = x->hp->d_model,
                                                              .eps = x->hp->rms_eps}));
    return XD_OK;
}

/* What an FFN gets of the stream. */
static xd_status norm_input(exec *x, const float *weight, const exec_shape *s, xd_err *err)
{
    if (!weight)
        return XD_OK;
    RUN(x->dev->ops->rmsnorm(x->dev, &(kern_rmsnorm_args){.y = x->h,
                                                          .x = x->x,
                                                          .weight = weight,
                                                          .n_tokens = s->n_tokens,
                                                          .dim = x->hp->d_model,
                                                          .eps = x->hp->rms_eps}));
    return XD_OK;
}

xd_status exec_build_attention(exec *x, uint32_t layer, const exec_shape *s, const uint32_t *seq_start, xd_err *err)
{
    const kern_ops *ops = x->dev->ops;
    const model_params *hp = x->hp;
    const model_layer *ml = model_get_layer(x->m, layer);
    if (ml->ffn_alone)
        return XD_OK;
    if (ml->linear)
        return exec_state_layer(x, layer, s, err);
    if (hp->latent.kv_rank)
        return exec_latent_attention(x, layer, s, seq_start, err);
    const exec_layer *l = &x->layers[layer];
    exec_layout in = exec_layout_of(x, s);
    const uint32_t o_width = ml->n_heads * ml->head_dim, kv_width = ml->n_kv_heads * ml->head_dim,
                   qkv_width = o_width + 2 * kv_width;
    kern_kv kv = {0};
    kv_describe(x->kv, l->kv.group, &kv);
    kv.n_kv_heads = ml->n_kv_heads; /* what the cache is told is of the layers with the most */
    kv.head_dim = ml->head_dim;
    kv.block_table = x->in_dev + in.block_table + exec_table_of(s, l->kv.group);
    kv.max_blocks = s->max_blocks;

    xd_status st = hp->layer_norms ? layer_norm(x, l->attn_norm, l->attn_norm_bias, NULL, s->n_tokens, err) : XD_OK;
    if (st)
        return st;
    float *y = x->qkv;
    const float *input = l->attn_norm ? x->h : x->x;
    for (uint32_t i = 0; i < l->n_qkv; i++) {
        const bool normed = i || hp->layer_norms;
        RUN(ops->linear(x->dev, &(kern_linear_args){.y = y,
                                                    .x = normed ? input : x->x,
                                                    .w = l->qkv[i],
                                                    .bias = l->qkv_bias[i],
                                                    .n_tokens = s->n_tokens,
                                                    .x_stride = hp->d_model,
                                                    .y_stride = qkv_width,
                                                    .norm = normed ? NULL : l->attn_norm,
                                                    .normed = x->h,
                                                    .norm_eps = hp->rms_eps,
                                                    .scratch = x->scratch}));
        y += l->qkv[i].rows;
    }
    if (hp->wide_qk_norm || hp->clip_qkv > 0)
        RUN(ops->qkv_norm(x->dev, &(kern_qkv_norm_args){.qkv = x->qkv,
                                                        .q_norm = hp->wide_qk_norm ? l->q_norm : NULL,
                                                        .k_norm = hp->wide_qk_norm ? l->k_norm : NULL,
                                                        .n_tokens = s->n_tokens,
                                                        .q_width = o_width,
                                                        .kv_width = kv_width,
                                                        .eps = hp->rms_eps,
                                                        .clip = hp->clip_qkv}));
    const model_rope *turn = model_rope_for(hp, ml->rope, x->opt.max_context);
    const kern_rope_kv_args rope = {.qkv = x->qkv,
                                    .q_norm = turn->normed       ? x->ones
                                              : hp->wide_qk_norm ? NULL
                                                                 : l->q_norm,
                                    .k_norm = turn->normed       ? x->ones
                                              : hp->wide_qk_norm ? NULL
                                                                 : l->k_norm,
                                    .v_norm = hp->v_normed ? x->ones : NULL,
                                    .norm_eps = hp->rms_eps,
                                    .norm_last = hp->norm_last || turn->normed,
                                    .inv_freq = x->inv_freq[ml->rope],
                                    .rope_scale = turn->scale,
                                    .rot_dim = turn->rot_dim,
                                    .interleaved = hp->rope_interleaved,
                                    .grow = turn->grow,
                                    .grow_every = turn->grow_every,
                                    .token_seq = x->in_dev + in.token_seq,
                                    .token_pos = x->in_dev + in.token_pos,
                                    .n_tokens = s->n_tokens,
                                    .n_heads = ml->n_heads,
                                    .layer = l->kv.idx,
                                    .kv = kv};
    kern_kv read_kv = kv;
    if (s->staged) /* what this step stores is staged behind it */
        RUN(ops->rope_kv(x->dev, &rope));
    if ((st = exec_stage_ready(x, ml->ordinal, s, &read_kv, err)))
        return st;
    read_kv.n_kv_heads = kv.n_kv_heads;
    read_kv.head_dim = kv.head_dim;
    RUN(ops->attention(x->dev, &(kern_attn_args){.o = x->attn,
                                                 .qkv = x->qkv,
                                                 .qkv_stride = qkv_width,
                                                 .token_seq = x->in_dev + in.attn_seq,
                                                 .token_pos = x->in_dev + in.token_pos,
                                                 .n_tokens = s->n_tokens,
                                                 .n_heads = ml->n_heads,
                                                 .layer = l->kv.idx,
                                                 .max_context = s->max_context,
                                                 .window = ml->window,
                                                 .chunked = hp->chunked,
                                                 .scale = hp->attn_scale,
                                                 .sinks = l->sinks,
                                                 .kv = read_kv,
                                                 .scratch = x->attn_scratch,
                                                 .seq_start = s->recorded ? NULL : seq_start,
                                                 .n_seqs = s->recorded ? 0 : s->n_seqs,
                                                 .rope = s->staged ? NULL : &rope,
                                                 .one_each = s->recorded || s->n_tokens == s->n_seqs}));
    if ((st = exec_stage_ahead(x, ml->ordinal + 2, s, err)))
        return st;
    if (l->gate.data) { /* its place is Q's, which nobody needs any more */
        RUN(ops->linear(x->dev, &(kern_linear_args){.y = x->qkv,
                                                    .x = input,
                                                    .w = l->gate,
                                                    .bias = l->gate_bias,
                                                    .n_tokens = s->n_tokens,
                                                    .x_stride = hp->d_model,
                                                    .y_stride = l->gate.rows,
                                                    .scratch = x->scratch}));
        const bool per_head = l->gate.rows != o_width;
        RUN(ops->gate(x->dev, &(kern_gate_args){.y = x->attn,
                                                .gate = x->qkv,
                                                .n_tokens = s->n_tokens,
                                                .n_heads = ml->n_heads,
                                                .head_dim = ml->head_dim,
                                                .y_stride = o_width,
                                                .gate_stride = l->gate.rows,
                                                .gate_head_stride = per_head ? 1 : ml->head_dim,
                                                .per_head = per_head,
                                                .softplus = hp->gate_softplus}));
    }
    RUN(ops->linear(x->dev, &(kern_linear_args){.y = l->attn_post_norm ? x->add : x->x,
                                                .x = x->attn,
                                                .w = l->o,
                                                .bias = l->o_bias,
                                                .n_tokens = s->n_tokens,
                                                .x_stride = o_width,
                                                .y_stride = hp->d_model,
                                                .accumulate = !l->attn_post_norm,
                                                .scratch = x->scratch}));
    return l->attn_post_norm ? norm_onto(x, x->add, l->attn_post_norm, x->x, 1, s, err) : XD_OK;
}

static xd_status observe(exec *x, uint32_t layer, const uint32_t *ids, const float *weights, const exec_shape *s,
                         uint32_t top_k, xd_err *err)
{
    uint64_t n = (uint64_t)s->n_tokens * top_k;
    RUN(x->dev->ops->download(x->dev, x->observed_ids, ids, n * sizeof *ids));
    RUN(x->dev->ops->download(x->dev, x->observed_weights, weights, n * sizeof *weights));
    RUN(x->dev->ops->sync(x->dev));
    x->observer(x->observer_user, layer, x->observed_ids, x->observed_weights, s->n_tokens, top_k);
    return XD_OK;
}

static bool predicts(const exec *x, uint32_t layer, const exec_shape *s)
{
    return s->predict && !s->token_picks && layer + 1 < x->hp->n_layers && x->layers[layer + 1].router.data &&
           s->n_tokens <= EXEC_PREDICT_TOKENS;
}

void exec_router_args(const exec *x, uint32_t layer, uint32_t n_tokens, kern_linear_args *logits,
                      kern_router_args *pick)
{
    const model_params *hp = x->hp;
    const exec_layer *l = &x->layers[layer];
    const model_layer *ml = model_get_layer(x->m, layer);
    *logits = (kern_linear_args){.y = x->router_logits,
                                 .x = hp->layer_norms ? x->h : x->x,
                                 .w = l->router,
                                 .bias = l->router_bias,
                                 .n_tokens = n_tokens,
                                 .x_stride = hp->d_model,
                                 .y_stride = ml->n_experts,
                                 .norm = hp->layer_norms ? NULL : l->router_norm,
                                 .normed = x->h,
                                 .norm_eps = hp->rms_eps,
                                 .scratch = x->scratch};
    *pick = hp->router;
    pick->logits = x->router_logits;
    pick->weights = x->router_weights;
    pick->n_tokens = n_tokens;
    pick->n_experts = ml->n_experts;
    pick->top_k = ml->top_k;
    pick->bias = l->choice_bias;
    pick->expert_scale = l->expert_scale;
}

/* Norm before the FFN, the router's picks of this layer on the present hidden state, into ids and x->router_weights, and the plan. */
static xd_status route(exec *x, uint32_t layer, const exec_shape *s, const pager_view *view, uint32_t *ids,
                       const kern_plan_args *plan, xd_err *err)
{
    const kern_ops *ops = x->dev->ops;
    const model_params *hp = x->hp;
    const exec_layer *l = &x->layers[layer];
    xd_status st = hp->layer_norms   ? layer_norm(x, l->ffn_norm, l->ffn_norm_bias, NULL, s->n_tokens, err)
                   : !l->router.data ? norm_input(x, l->ffn_norm, s, err)
                                     : XD_OK;
    if (st)
        return st;
    if (!l->router.data) {
        if (plan)
            RUN(ops->plan(x->dev, plan));
        return XD_OK;
    }
    kern_linear_args logits;
    kern_router_args pick;
    exec_router_args(x, layer, s->n_tokens, &logits, &pick);
    pick.ids = ids;
    const kern_ahead *ahead = plan ? exec_ahead_of(x, layer, s) : NULL;
    kern_route_ahead next = {.ahead = ahead, .layer = layer};
    for (uint32_t i = 0, to; ahead && i < XD_ARRAY_LEN(next.next) && (to = layer + 1 + i) < hp->n_layers; i++) {
        next.next[i].w = x->layers[to].router;
        next.next[i].norm = x->layers[to].router_norm;
        next.next[i].bias = x->layers[to].router_bias;
        next.next[i].choice_bias = x->layers[to].choice_bias;
        next.next[i].top_k = model_get_layer(x->m, to)->top_k;
        next.next[i].page_addr = view->layers[to].page_addr;
    }
    RUN(ops->route(x->dev, &logits, &pick, plan, ahead ? &next : NULL));
    return XD_OK;
}

/* What the next layer would pick if this layer's experts changed nothing: its norm and router on the present hidden state. Uses the
 * buffers of this layer's own router, before it does. */
static xd_status predict(exec *x, uint32_t layer, const exec_shape *s, xd_err *err)
{
    const kern_ops *ops = x->dev->ops;
    xd_status st = route(x, layer + 1, s, NULL, x->likely_ids, NULL, err);
    if (st)
        return st;
    uint32_t top_k = model_get_layer(x->m, layer + 1)->top_k;
    RUN(ops->download(x->dev, x->likely_host, x->likely_ids, (uint64_t)s->n_tokens * top_k * sizeof(uint32_t)));
    return XD_OK;
}

/* The picks have been waited for. */
static void tell_prediction(exec *x, uint32_t layer, const exec_shape *s)
{
    const model_layer *ml = model_get_layer(x->m, layer + 1);
    uint32_t *flags = x->likely_host + EXEC_PREDICT_TOKENS * x->hp->top_k_max;
    memset(flags, 0, ml->n_experts * sizeof *flags);
    for (uint32_t i = 0; i < s->n_tokens * ml->top_k; i++)
        if (x->likely_host[i] < ml->n_experts)
            flags[x->likely_host[i]] = 1;
    pager_predict(x->pg, layer + 1, flags);
}

/* counts_host says which experts could not be read: whose tokens picked one of them? */
static void note_lost_pages(exec *x, const uint32_t *ids, const exec_shape *s, uint32_t top_k)
{
    const uint32_t *token_seq = x->in_host + exec_layout_of(x, s).token_seq;
    uint64_t n = (uint64_t)s->n_tokens * top_k;
    XD_CLEANUP(xd_freep) uint32_t *picks = malloc(n * sizeof *picks);
    bool known = picks && x->dev->ops->download(x->dev, picks, ids, n * sizeof *picks) == KERN_OK &&
                 x->dev->ops->sync(x->dev) == KERN_OK;
    for (uint64_t i = 0; i < n; i++)
        if (token_seq[i / top_k] < s->n_seqs && (!known || x->counts_host[picks[i]]))
            x->needs_lost[token_seq[i / top_k]] = true;
}

static const uint32_t *ids_of(const exec *x, uint32_t layer, const exec_shape *s)
{
    if (!x->layers[layer].router.data)
        return x->one_ids;
    if (s->token_picks) /* the router's weights, other experts */
        return x->in_dev + exec_layout_of(x, s).picks + (size_t)layer * s->n_tokens * x->hp->top_k_max;
    return x->router_ids;
}

xd_status exec_build_router(exec *x, uint32_t layer, const exec_shape *s, const pager_view *view, xd_err *err)
{
    const model_params *hp = x->hp;
    const model_layer *ml = model_get_layer(x->m, layer);
    const pager_layer_view *pl = &view->layers[layer];
    kern_moe_args moe = exec_moe_args(x, layer, s, view);
    xd_status st;

    if (!ml->n_experts)
        return XD_OK;
    if (predicts(x, layer, s) && (st = predict(x, layer, s, err)))
        return st;
    kern_plan_args plan = {.ids = moe.ids,
                           .n_live = moe.n_live,
                           .n_tokens = s->n_tokens,
                           .top_k = ml->top_k,
                           .n_experts = ml->n_experts,
                           .expert_start = x->expert_start,
                           .pairs = x->pairs,
                           .expert_count = pl->expert_count,
                           .page_addr = pl->page_addr,
                           .arena_begin = view->arena_begin,
                           .arena_end = view->arena_end,
                           .pages = pl->geom.pages};
    if (s->fill && !s->shared) {
        plan.free_slots = view->free_slots;
        plan.n_free = view->n_free;
        plan.max_inserts = view->max_inserts;
        plan.free_used = view->free_used;
        plan.admit = pl->admit;
        plan.fill_addr = pl->fill_addr;
        plan.fill_log = view->fill_log;
        plan.fill_log_base = pl->fill_log_base;
    }
    if ((st = route(x, layer, s, view, x->router_ids, &plan, err)))
        return st;
    const exec_layer *l = &x->layers[layer];
    if (l->ffn_post_norm)
        RUN(x->dev->ops->clear(x->dev, x->add, (uint64_t)s->n_tokens * x->hp->d_model * sizeof(float)));
    if ((l->expert_norm && (st = norm_input(x, l->ffn_norm, s, err))) || (st = exec_build_shared(x, layer, s, err)) ||
        (l->expert_norm && (st = norm_input(x, l->expert_norm, s, err))))
        return st;
    if (hp->picks_scale_input && l->router.data) /* the shared expert has seen it */
        RUN(x->dev->ops->gate(x->dev, &(kern_gate_args){.y = x->h,
                                                        .gate = x->router_logits,
                                                        .n_tokens = s->n_tokens,
                                                        .n_heads = 1,
                                                        .head_dim = hp->d_model,
                                                        .y_stride = hp->d_model,
                                                        .gate_stride = ml->n_experts,
                                                        .pick = moe.ids}));
    if (x->observer && (st = observe(x, layer, moe.ids, moe.weights, s, ml->top_k, err)))
        return st;
    if (pager_needs_require(x->pg, x->prefill))
        RUN(x->dev->ops->download(x->dev, x->counts_host, pl->expert_count, ml->n_experts * sizeof(uint32_t)));
    return XD_OK;
}

xd_status exec_require(exec *x, uint32_t layer, const exec_shape *s, xd_err *err)
{
    xd_status st = pager_require(x->pg, layer, x->counts_host, err);
    if (st == XD_UNAVAILABLE)
        note_lost_pages(x, ids_of(x, layer, s), s, model_get_layer(x->m, layer)->top_k);
    /* Faults come first; what is read ahead arrives while these experts compute. */
    if (!st && predicts(x, layer, s))
        tell_prediction(x, layer, s);
    return st;
}

kern_moe_args exec_moe_args(const exec *x, uint32_t layer, const exec_shape *s, const pager_view *view)
{
    const model_layer *ml = model_get_layer(x->m, layer);
    const pager_layer_view *pl = &view->layers[layer];
    return (kern_moe_args){.x = exec_ffn_input(x, layer),
                           .y = exec_ffn_sum(x, layer),
                           .ids = ids_of(x, layer, s),
                           .weights = x->layers[layer].router.data ? x->router_weights : x->one_weights,
                           .expert_start = x->expert_start,
                           .pairs = x->pairs,
                           .page_addr = pl->page_addr,
                           .fill_addr = s->fill ? pl->fill_addr : NULL,
                           .arena_begin = view->arena_begin,
                           .arena_end = view->arena_end,
                           .geom = pl->geom,
                           .n_tokens = s->n_tokens,
                           .top_k = ml->top_k,
                           .n_experts = ml->n_experts,
                           .n_live = x->in_dev + exec_layout_of(x, s).n_live,
                           .scratch = x->scratch,
                           .ahead = exec_ahead_of(x, layer, s),
                           .layer = layer,
                           .gate_bias = x->layers[layer].expert_bias[MODEL_GATE],
                           .up_bias = x->layers[layer].expert_bias[MODEL_UP],
                           .down_bias = x->layers[layer].expert_bias[MODEL_DOWN],
                           .act = exec_act(x, ml->act_limit),
                           .act_alpha = x->hp->act_alpha,
                           .act_limit = ml->act_limit > 0 ? ml->act_limit : x->hp->act_limit};
}

const float *exec_ffn_input(const exec *x, uint32_t layer)
{
    return x->layers[layer].ffn_norm ? x->h : x->x;
}

float *exec_ffn_sum(const exec *x, uint32_t layer)
{
    return x->layers[layer].ffn_post_norm ? x->add : x->x;
}

xd_status exec_build_ffn_end(exec *x, uint32_t layer, const exec_shape *s, xd_err *err)
{
    const exec_layer *l = &x->layers[layer];
    float *sum = x->add;
    xd_status st;
    if (!l->ffn_post_norm)
        return XD_OK;
    if (l->expert_post_norm) {
        if ((st = norm_onto(x, x->add_shared, l->shared_post_norm, NULL, 1, s, err)) ||
            (st = norm_onto(x, x->add, l->expert_post_norm, x->add_shared, 1, s, err)))
            return st;
        sum = x->add_shared;
    }
    return norm_onto(x, sum, l->ffn_post_norm, x->x, l->out_scale, s, err);
}

static xd_status build_experts(exec *x, uint32_t layer, const exec_shape *s, const pager_view *view, xd_err *err)
{
    kern_moe_args moe = exec_moe_args(x, layer, s, view);
    xd_status st;
    if (exec_has_ffn(x, layer) && pager_needs_require(x->pg, x->prefill)) {
        RUN(x->dev->ops->sync(x->dev));
        if ((st = exec_require(x, layer, s, err)))
            return st;
    }
    mark(x);
    if (!exec_has_ffn(x, layer))
        return XD_OK;
    RUN(x->dev->ops->moe(x->dev, &moe));
    return exec_build_ffn_end(x, layer, s, err);
}

static xd_status reduce(exec *x, exec_want want, uint32_t n_rows, xd_err *err)
{
    const kern_ops *ops = x->dev->ops;
    uint32_t vocab = x->hp->vocab;
    uint64_t n = (uint64_t)n_rows * KERN_TOP_LOGITS * 4;
    if (want == EXEC_WANT_TOP) {
        RUN(ops->top_logits(x->dev, &(kern_top_logits_args){.logits = x->logits,
                                                            .ids = x->top_ids_dev,
                                                            .values = x->top_values_dev,
                                                            .logsumexp = x->top_lse_dev,
                                                            .n_tokens = n_rows,
                                                            .vocab = vocab}));
        RUN(ops->download(x->dev, x->top_ids_host, x->top_ids_dev, n));
        RUN(ops->download(x->dev, x->top_values_host, x->top_values_dev, n));
        RUN(ops->download(x->dev, x->top_lse_host, x->top_lse_dev, n_rows * 4ull));
    } else {
        RUN(ops->argmax(x->dev, &(kern_argmax_args){
                                    .logits = x->logits, .ids = x->argmax_dev, .n_tokens = n_rows, .vocab = vocab}));
        RUN(ops->download(x->dev, x->argmax_host, x->argmax_dev, n_rows * 4ull));
    }
    return XD_OK;
}

xd_status exec_build_begin(exec *x, const exec_shape *s, xd_err *err)
{
    const kern_ops *ops = x->dev->ops;
    exec_layout in = exec_layout_of(x, s);
    xd_status st;
    RUN(ops->upload(x->dev, x->in_dev, x->in_host, in.words * sizeof(uint32_t)));
    for (uint32_t i = 0; i < 2; i++)
        if ((st = exec_stage_ahead(x, i, s, err)))
            return st;
    if (s->ahead)
        RUN(ops->ahead_begin(x->dev, &x->ahead.k));
    x->n_marks = 0;
    mark(x);
    RUN(ops->embed(x->dev, &(kern_embed_args){.y = x->x,
                                              .table = x->embed,
                                              .ids = x->in_dev + in.ids,
                                              .n_tokens = s->n_tokens,
                                              .scale = x->hp->embed_scale}));
    return XD_OK;
}

xd_status exec_build_head(exec *x, const exec_shape *s, xd_err *err)
{
    const model_params *hp = x->hp;
    const bool normed = hp->layer_norms;
    const uint32_t *row_idx = x->in_dev + exec_layout_of(x, s).row_idx;
    if (!s->n_rows)
        return XD_OK;
    xd_status st = normed ? layer_norm(x, x->final_norm, x->final_norm_bias, row_idx, s->n_rows, err) : XD_OK;
    if (st)
        return st;
    RUN(x->dev->ops->linear(x->dev, &(kern_linear_args){.y = x->logits,
                                                        .x = normed ? x->h : x->x,
                                                        .w = x->head,
                                                        .bias = x->head_bias,
                                                        .n_tokens = s->n_rows,
                                                        .x_stride = hp->d_model,
                                                        .y_stride = hp->vocab,
                                                        .row_idx = normed ? NULL : row_idx,
                                                        .norm = normed ? NULL : x->final_norm,
                                                        .normed = x->h,
                                                        .norm_eps = hp->rms_eps,
                                                        .scratch = x->scratch}));
    if (hp->logit_softcap > 0)
        RUN(x->dev->ops->softcap(
            x->dev,
            &(kern_softcap_args){.y = x->logits, .n = (uint64_t)s->n_rows * hp->vocab, .cap = hp->logit_softcap}));
    return XD_OK;
}

xd_status exec_build_results(exec *x, const exec_shape *s, xd_err *err)
{
    xd_status st;
    if (s->ahead)
        RUN(x->dev->ops->download(x->dev, x->ahead.counts, x->ahead.k.memory, sizeof *x->ahead.counts));
    if (s->n_rows && (st = reduce(x, s->want, s->n_rows, err)))
        return st;
    return pager_step_fetch(x->pg, err);
}

/* Marks: one at the start; a layer: after attention, before the experts, after them; one after the head. */
xd_status exec_build(exec *x, const exec_shape *s, const uint32_t *seq_start, const pager_view *view, xd_err *err)
{
    xd_status st;
    if ((st = exec_build_begin(x, s, err)))
        return st;
    for (uint32_t i = 0; i < x->hp->n_layers; i++) {
        if ((st = exec_build_attention(x, i, s, seq_start, err)))
            return st;
        mark(x);
        if ((st = exec_build_router(x, i, s, view, err)) || (st = build_experts(x, i, s, view, err)))
            return st;
        mark(x);
    }
    if (s->ahead)
        x->dev->ops->ahead_end(x->dev);
    if ((st = exec_build_head(x, s, err)))
        return st;
    mark(x);
    return exec_build_results(x, s, err);
}
