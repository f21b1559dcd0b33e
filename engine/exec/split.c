/* split.c - decode steps whose missing experts the device and the CPU compute side by side (PAGER_SHARED).
 *
 * Between a layer's router and its experts the host has its say: it waits for the picks, and lets the pager divide the experts that are
 * not whole in VRAM (pager_share_layer). The device is given a plan of its own part and starts at once; the CPU computes the others by its
 * own kernels, from host memory, into a buffer of its own; the next segment of the step begins with adding that to the residual
 * stream. Both sides run the same operation, each with a plan that leaves out the other's picks.
 *
 *     device   ... router | -> picks, x      experts: VRAM, link | + y, attention, router | -> picks, x
 *     host                 wait  divide  launch   CPU: experts -> y  launch             wait
 *
 * So there is one wait a layer. What lies between two waits is recorded where the device can, as two segments a layer: a launch of each,
 * instead of one of every operation. A token's row, picks and weights go to the host; a plan and the CPU's sum come back.
 *
 * Order. The host writes plan and y only after it has waited for the segment behind the one that read them before. The CPU reads what the
 * segment that was waited for has left. Pages do not move within a step, for either side.
 *
 * A token's picks are thus added in two sums instead of one, and the CPU rounds in its own way: the results are as exact, but not the same
 * bits, and depend on what the clock said. So this runs only where engine.deterministic = no. Not where KV blocks come from host memory by way of
 * the staging areas: their copies run beside a whole step. */
#include <string.h>

#include "engine/exec/exec_priv.h"

/* Slots of time marks, a layer: begin, behind attention, behind the router; the device's experts from, to. The end has two. */
enum { MARK_BEGIN, MARK_ATTENTION, MARK_ROUTER, MARK_EXPERTS, MARK_EXPERTS_END, N_MARKS };

typedef xd_status segment_fn(exec *x, uint32_t layer, const exec_shape *s, const uint32_t *seq_start,
                             const pager_view *view, xd_err *err);

/* The device's plan as one piece. */
typedef struct plan_layout {
    uint32_t pairs, fill, words; /* start is at 0 */
} plan_layout;

static plan_layout layout_of(uint32_t n_experts, uint32_t pages, uint32_t n_picks, bool fill)
{
    plan_layout l = {.pairs = n_experts + 1};
    l.fill = (l.pairs + n_picks + 1) & ~1u;
    l.words = l.fill + (fill ? 2 * n_experts * pages : 0);
    return l;
}

static plan_layout layer_layout(const exec_shape *s, const pager_layer_view *pl, uint32_t top_k)
{
    return layout_of(pl->n_experts, pl->geom.pages, s->n_tokens * top_k, s->fill);
}

static xd_status most_plan_words(exec *x, uint64_t *ret, xd_err *err)
{
    for (uint32_t i = 0; i < x->hp->n_layers; i++) {
        const model_layer *l = model_get_layer(x->m, i);
        kern_expert_geom g;
        xd_status st = pager_geometry(l, x->hp->d_model, x->opt.page_size, &g, err);
        if (st)
            return st;
        uint64_t words = layout_of(l->n_experts, g.pages, x->opt.max_seqs * l->top_k, true).words;
        *ret = XD_MAX(*ret, words);
    }
    return XD_OK;
}

/* The CPU adds the biases of its part itself. */
static xd_status copy_biases(exec *x, xd_err *err)
{
    for (uint32_t i = 0; i < x->hp->n_layers; i++)
        for (int k = 0; k < MODEL_MATRICES; k++) {
            const model_tensor *t = &model_get_layer(x->m, i)->expert_bias[k];
            if (!t->data)
                continue;
            float *to = malloc((size_t)t->rows * t->cols * sizeof *to);
            if (!to)
                return xd_fail(err, XD_NOMEM, 0, "biases of experts on the CPU");
            exec_to_float(to, t, t->rows * t->cols);
            x->split.layers[i].bias[k] = to;
        }
    return XD_OK;
}

xd_status exec_split_open(exec *x, xd_err *err)
{
    exec_split *p = &x->split;
    const model_params *hp = x->hp;
    uint64_t t = x->opt.max_seqs, n_picks = t * hp->top_k_max, scratch = 0, plan = 2;
    if (!x->opt.cpu)
        return XD_OK;
    xd_status st;
    if ((st = exec_moe_scratch_bytes(x, x->opt.cpu, x->opt.max_seqs, &scratch, err)) ||
        (st = most_plan_words(x, &plan, err)) ||
        (st = exec_alloc(x, plan * 4, &p->plan_dev, "plans of the experts", err)))
        return st;
    x->workspace_bytes += plan * 4;
    plan = xd_align_up(plan, 4);
    uint64_t words = plan + 2 * t * hp->d_model + 2 * n_picks;
    kern_status ks = x->dev->ops->alloc_host(x->dev, words * 4, &p->host_owned);
    if (ks)
        return exec_kern_fail(x, ks, err, "allocation of pinned host memory for experts on the CPU");
    memset(p->host_owned, 0, words * 4); /* padding rows are added, too: they must be finite */
    p->plan = p->host_owned;
    p->x = (float *)(void *)(p->plan + plan);
    p->y = p->x + t * hp->d_model;
    p->weights = p->y + t * hp->d_model;
    p->ids = (uint32_t *)(void *)(p->weights + n_picks);
    p->host.pairs = malloc(n_picks * sizeof *p->host.pairs);
    p->host.start = malloc((hp->n_experts_max + 1ull) * sizeof *p->host.start);
    p->layers = calloc(hp->n_layers, sizeof *p->layers);
    if (!p->host.pairs || !p->host.start || !p->layers ||
        x->opt.cpu->ops->alloc(x->opt.cpu, XD_MAX(scratch, 256), &p->scratch) != KERN_OK)
        return xd_fail(err, XD_NOMEM, 0, "scratch for experts on the CPU");
    p->cpu = x->opt.cpu;
    return copy_biases(x, err);
}

static void free_recordings(exec *x, exec_split_graphs *r)
{
    for (uint32_t i = 0; r->g && i <= 2 * x->hp->n_layers; i++)
        x->dev->ops->graph_free(x->dev, r->g[i]);
    free(r->g);
    *r = (exec_split_graphs){.g = NULL};
}

void exec_split_forget(exec *x)
{
    while (x->split.n_graphs)
        free_recordings(x, &x->split.graphs[--x->split.n_graphs]);
}

void exec_split_close(exec *x)
{
    exec_split *p = &x->split;
    if (p->host_owned)
        x->dev->ops->free_host(x->dev, p->host_owned);
    free(p->host.pairs);
    free(p->host.start);
    for (uint32_t i = 0; p->layers && i < x->hp->n_layers; i++)
        for (int k = 0; k < MODEL_MATRICES; k++)
            free(p->layers[i].bias[k]);
    free(p->layers);
    if (p->scratch)
        x->opt.cpu->ops->free(x->opt.cpu, p->scratch);
}

bool exec_split_wanted(const exec *x, const exec_shape *s, bool prefill)
{
    return x->split.cpu && !x->stage.slots && s->n_tokens <= x->opt.max_seqs && pager_shares(x->pg, prefill);
}

/* --- segments ---------------------------------------------------------------------------------------------------- */

static xd_status add_cpu_part(exec *x, uint32_t layer, const exec_shape *s, xd_err *err)
{
    RUN(x->dev->ops->add(
        x->dev,
        &(kern_add_args){.y = exec_ffn_sum(x, layer), .x = x->split.y, .n = (uint64_t)s->n_tokens * x->hp->d_model}));
    return exec_build_ffn_end(x, layer, s, err);
}

/* Up to the router, and what the CPU needs. */
static xd_status build_front(exec *x, uint32_t layer, const exec_shape *s, const uint32_t *seq_start,
                             const pager_view *view, xd_err *err)
{
    const kern_ops *ops = x->dev->ops;
    const exec_split *p = &x->split;
    kern_moe_args moe = exec_moe_args(x, layer, s, view);
    uint64_t picks = (uint64_t)s->n_tokens * moe.top_k * 4;
    xd_status st;
    if (layer) {
        exec_mark(x, layer * N_MARKS + MARK_BEGIN);
        st = exec_has_ffn(x, layer - 1) ? add_cpu_part(x, layer - 1, s, err) : XD_OK;
    } else {
        uint32_t n_marks = x->n_marks; /* of whole steps */
        st = exec_build_begin(x, s, err);
        x->n_marks = n_marks;
    }
    if (st || (st = exec_build_attention(x, layer, s, seq_start, err)))
        return st;
    exec_mark(x, layer * N_MARKS + MARK_ATTENTION);
    if ((st = exec_build_router(x, layer, s, view, err)))
        return st;
    exec_mark(x, layer * N_MARKS + MARK_ROUTER);
    if (!exec_has_ffn(x, layer))
        return XD_OK;
    RUN(ops->download(x->dev, p->x, exec_ffn_input(x, layer), (uint64_t)s->n_tokens * x->hp->d_model * sizeof(float)));
    RUN(ops->download(x->dev, p->ids, moe.ids, picks));
    RUN(ops->download(x->dev, p->weights, moe.weights, picks));
    return XD_OK;
}

static xd_status build_experts(exec *x, uint32_t layer, const exec_shape *s, const uint32_t *seq_start,
                               const pager_view *view, xd_err *err)
{
    (void)seq_start;
    const kern_ops *ops = x->dev->ops;
    const exec_split *p = &x->split;
    kern_moe_args moe = exec_moe_args(x, layer, s, view);
    plan_layout l = layer_layout(s, &view->layers[layer], moe.top_k);
    moe.expert_start = p->plan_dev;
    moe.pairs = p->plan_dev + l.pairs;
    moe.partial = true;
    moe.fill_addr = s->fill ? (uint64_t *)(void *)(p->plan_dev + l.fill) : NULL;
    RUN(ops->upload(x->dev, p->plan_dev, p->plan, l.words * 4ull));
    exec_mark(x, layer * N_MARKS + MARK_EXPERTS);
    RUN(ops->moe(x->dev, &moe));
    exec_mark(x, layer * N_MARKS + MARK_EXPERTS_END);
    return XD_OK;
}

static xd_status build_end(exec *x, uint32_t layer, const exec_shape *s, const uint32_t *seq_start,
                           const pager_view *view, xd_err *err)
{
    (void)seq_start, (void)view;
    xd_status st;
    exec_mark(x, layer * N_MARKS + MARK_BEGIN);
    if ((exec_has_ffn(x, layer - 1) && (st = add_cpu_part(x, layer - 1, s, err))) || (st = exec_build_head(x, s, err)))
        return st;
    exec_mark(x, layer * N_MARKS + MARK_ATTENTION);
    return exec_build_results(x, s, err);
}

static xd_status recordings_of(exec *x, const exec_shape *s, exec_split_graphs **ret, xd_err *err)
{
    exec_split *p = &x->split;
    for (uint32_t i = 0; i < p->n_graphs; i++)
        if (exec_same_shape(&p->graphs[i].shape, s)) {
            *ret = &p->graphs[i];
            return XD_OK;
        }
    if (p->n_graphs == EXEC_SPLIT_SHAPES) { /* the oldest goes */
        free_recordings(x, &p->graphs[0]);
        memmove(p->graphs, p->graphs + 1, --p->n_graphs * sizeof *p->graphs);
    }
    kern_graph **g = calloc(2ull * x->hp->n_layers + 1, sizeof *g);
    if (!g)
        return xd_fail(err, XD_NOMEM, 0, "recordings of a step's segments");
    p->graphs[p->n_graphs] = (exec_split_graphs){.shape = *s, .g = g};
    *ret = &p->graphs[p->n_graphs++];
    return XD_OK;
}

/* Launches the segment, or records and replays it. */
static xd_status run_segment(exec *x, kern_graph **g, segment_fn *build, uint32_t layer, const exec_shape *s,
                             const uint32_t *seq_start, const pager_view *view, xd_err *err)
{
    const kern_ops *ops = x->dev->ops;
    if (!s->recorded)
        return build(x, layer, s, seq_start, view, err);
    kern_status ks;
    if (!*g) {
        kern_graph *made = NULL;
        x->recording = true;
        if ((ks = ops->graph_begin(x->dev)))
            return exec_kern_fail(x, ks, err, "recording a segment of a step");
        xd_status st = build(x, layer, s, NULL, view, err);
        ks = ops->graph_end(x->dev, &made);
        if (st || ks) {
            if (!ks)
                ops->graph_free(x->dev, made);
            return st ? st : exec_kern_fail(x, ks, err, "recording a segment of a step");
        }
        *g = made;
    }
    ks = ops->graph_launch(x->dev, *g);
    return ks ? exec_kern_fail(x, ks, err, "replaying a segment of a step") : XD_OK;
}

static xd_status wait_for(exec *x, const exec_shape *s, xd_err *err)
{
    kern_status ks = s->recorded ? x->dev->ops->graph_wait(x->dev) : x->dev->ops->sync(x->dev);
    return ks ? exec_kern_fail(x, ks, err, "running a segment of a step") : XD_OK;
}

/* --- both sides -------------------------------------------------------------------------------------------------- */

/* Sorts the picks of one side by expert, in the order of tokens, as the plan operation does. Returns their number. */
static uint32_t plan_side(const exec_split *p, exec_side to, uint32_t n_picks, uint32_t n_experts,
                          const uint8_t *on_cpu, bool cpu)
{
    memset(to.start, 0, (n_experts + 1ull) * sizeof *to.start);
    for (uint32_t i = 0; i < n_picks; i++)
        to.start[p->ids[i] + 1] += (on_cpu && on_cpu[p->ids[i]]) == cpu;
    for (uint32_t e = 0; e < n_experts; e++)
        to.start[e + 1] += to.start[e];
    /* start[e] serves as the cursor of e and ends where e + 1 begins: shift it back. */
    for (uint32_t i = 0; i < n_picks; i++)
        if ((on_cpu && on_cpu[p->ids[i]]) == cpu)
            to.pairs[to.start[p->ids[i]]++] = i;
    memmove(to.start + 1, to.start, n_experts * sizeof *to.start);
    to.start[0] = 0;
    return to.start[n_experts];
}

/* Divides the layer and writes the device's plan. */
static xd_status divide(exec *x, uint32_t layer, const exec_shape *s, const pager_layer_view *pl, uint32_t top_k,
                        pager_share *share, xd_err *err)
{
    exec_split *p = &x->split;
    uint32_t n_picks = p->n_live * top_k;
    plan_layout l = layer_layout(s, pl, top_k);
    for (uint32_t i = 0; i < n_picks; i++)
        if (p->ids[i] >= pl->n_experts)
            return xd_fail(err, XD_INTERNAL, 0, "layer %u: the device picked expert %u of %u", layer, p->ids[i],
                           pl->n_experts);
    if (!pager_share_layer(x->pg, layer, x->counts_host, &p->costs, share))
        *share = (pager_share){0};
    exec_side device = {.start = p->plan, .pairs = p->plan + l.pairs};
    p->layers[layer].device = plan_side(p, device, n_picks, pl->n_experts, share->on_cpu, false) > 0;
    p->layers[layer].link_bytes = share->link_bytes;
    if (s->fill && share->fill_addr)
        memcpy(p->plan + l.fill, share->fill_addr, (l.words - l.fill) * sizeof *p->plan);
    else if (s->fill)
        memset(p->plan + l.fill, 0, (l.words - l.fill) * sizeof *p->plan);
    return XD_OK;
}

/* The CPU's part, beside the device's. */
static xd_status compute(exec *x, uint32_t layer, const pager_layer_view *pl, uint32_t top_k, const pager_share *share,
                         xd_err *err)
{
    exec_split *p = &x->split;
    const kern_ops *ops = p->cpu->ops;
    const float limit = model_get_layer(x->m, layer)->act_limit;
    const kern_moe_args a = {.x = p->x,
                             .y = p->y,
                             .ids = p->ids,
                             .weights = p->weights,
                             .expert_start = p->host.start,
                             .pairs = p->host.pairs,
                             .page_addr = share->host_addr,
                             .geom = pl->geom,
                             .n_tokens = p->n_live,
                             .top_k = top_k,
                             .n_experts = pl->n_experts,
                             .scratch = p->scratch,
                             .gate_bias = p->layers[layer].bias[MODEL_GATE],
                             .up_bias = p->layers[layer].bias[MODEL_UP],
                             .down_bias = p->layers[layer].bias[MODEL_DOWN],
                             .act = exec_act(x, limit),
                             .act_alpha = x->hp->act_alpha,
                             .act_limit = limit > 0 ? limit : x->hp->act_limit};
    uint64_t begin_ns = xd_now_ns();
    memset(p->y, 0, (size_t)p->n_live * x->hp->d_model * sizeof *p->y);
    if (!share->cpu_bytes)
        return XD_OK;
    plan_side(p, p->host, p->n_live * top_k, pl->n_experts, share->on_cpu, true);
    kern_status ks = ops->moe(p->cpu, &a);
    if (ks)
        return xd_fail(err, ks == KERN_NOMEM ? XD_NOMEM : XD_INTERNAL, 0, "layer %u: experts on the CPU: %s", layer,
                       ops->error(p->cpu));
    p->cpu_ns += xd_now_ns() - begin_ns;
    p->cpu_bytes += share->cpu_bytes;
    return XD_OK;
}

xd_status exec_split_step(exec *x, const exec_shape *s, const uint32_t *seq_start, const pager_view *view, xd_err *err)
{
    exec_split *p = &x->split;
    exec_split_graphs *r = NULL;
    kern_graph *none = NULL;
    uint32_t n = x->hp->n_layers;
    xd_status st = s->recorded ? recordings_of(x, s, &r, err) : XD_OK;
    p->n_live = x->in_host[exec_layout_of(x, s).n_live];
    p->costs = share_get(&p->rates, p->n_live);
    p->cpu_ns = p->cpu_bytes = 0;
    for (uint32_t i = 0; i < n && !st; i++) {
        const pager_layer_view *pl = &view->layers[i];
        uint32_t top_k = model_get_layer(x->m, i)->top_k;
        pager_share share;
        if ((st = run_segment(x, r ? &r->g[2 * i] : &none, build_front, i, s, seq_start, view, err)))
            return st;
        p->layers[i].device = false;
        if (!exec_has_ffn(x, i))
            continue;
        if ((st = wait_for(x, s, err)) || (st = exec_require(x, i, s, err)) ||
            (st = divide(x, i, s, pl, top_k, &share, err)))
            return st;
        if (p->layers[i].device)
            st = run_segment(x, r ? &r->g[2 * i + 1] : &none, build_experts, i, s, seq_start, view, err);
        if (!st)
            st = compute(x, i, pl, top_k, &share, err);
    }
    if (!st)
        st = run_segment(x, r ? &r->g[2 * n] : &none, build_end, n, s, seq_start, view, err);
    return st;
}

/* --- what it took ------------------------------------------------------------------------------------------------ */

static uint64_t between(const exec *x, uint32_t layer_a, int a, uint32_t layer_b, int b)
{
    uint64_t ns = 0;
    return x->dev->ops->mark_ns(x->dev, layer_a * N_MARKS + (uint32_t)a, layer_b * N_MARKS + (uint32_t)b, &ns) ? 0 : ns;
}

void exec_split_take(exec *x, const exec_shape *s, exec_times *t)
{
    exec_split *p = &x->split;
    uint64_t link_ns = 0, link_bytes = 0;
    uint32_t n = x->hp->n_layers;
    t->shared = true;
    t->cpu_ns = p->cpu_ns;
    for (uint32_t i = 0; i < n && x->marks_on; i++) {
        t->attention_ns += between(x, i, MARK_BEGIN, i, MARK_ATTENTION);
        t->router_ns += between(x, i, MARK_ATTENTION, i, MARK_ROUTER);
        t->experts_ns += between(x, i, MARK_ROUTER, i + 1, MARK_BEGIN);
        if (!p->layers[i].device)
            continue;
        uint64_t ns = between(x, i, MARK_EXPERTS, i, MARK_EXPERTS_END);
        t->device_ns += ns;
        link_ns += p->layers[i].link_bytes ? ns : 0;
        link_bytes += p->layers[i].link_bytes;
    }
    if (x->marks_on)
        t->head_ns = between(x, n, MARK_BEGIN, n, MARK_ATTENTION);
    /* Of steps that are neither recorded nor run while the host waits, the device's times include the CPU's. */
    if (!s->recorded && !x->info.unified)
        link_bytes = 0;
    share_note(&p->rates, SHARE_DEVICE, p->n_live, link_bytes, XD_MAX(link_ns, pager_step_link_ns(x->pg)));
    share_note(&p->rates, SHARE_CPU, p->n_live, p->cpu_bytes, p->cpu_ns);
}
