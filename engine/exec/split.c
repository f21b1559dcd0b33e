/* split.c - layers of which the CPU computes some experts (PAGER_CPU: the link is so bad that this is the quicker way).
 *
 * Between a layer's router and its experts the step waits for the host anyway, since the pager has to see the picks. In that pause the
 * experts' input and the residual stream come along. The experts that the pager leaves to the CPU add their weighed results to the
 * stream here, by the CPU's kernels and from host memory; the stream goes back, and the device's kernels add the others. Both sides run
 * the same operation, each with a plan that leaves out the other's picks. All is in order in the device's stream, with the one wait a
 * layer that was there before; the two sides do not run side by side, for what lies in VRAM takes next to no time.
 *
 * A token's picks are thus added in two sums instead of one, and the CPU rounds in its own way: the results are as exact, but not
 * the same bits. So this runs only where engine.deterministic = no. */
#include <string.h>

#include "engine/exec/exec_priv.h"

xd_status exec_split_open(exec *x, xd_err *err)
{
    exec_split *p = &x->split;
    const model_params *hp = x->hp;
    uint64_t t = x->opt.max_seqs, n_picks = t * hp->top_k_max, scratch = 0;
    if (!x->opt.cpu)
        return XD_OK;
    xd_status st = exec_moe_scratch_bytes(x, x->opt.cpu, x->opt.max_seqs, &scratch, err);
    if (st)
        return st;
    uint64_t words = 2 * t * hp->d_model + 3 * n_picks + hp->n_experts_max + 1;
    kern_status ks = x->dev->ops->alloc_host(x->dev, words * 4, &p->host_owned);
    if (ks)
        return exec_kern_fail(x, ks, err, "allocation of pinned host memory for experts on the CPU");
    p->x = p->host_owned;
    p->h = p->x + t * hp->d_model;
    p->weights = p->h + t * hp->d_model;
    p->ids = (uint32_t *)(void *)(p->weights + n_picks);
    p->device.pairs = p->ids + n_picks;
    p->device.start = p->device.pairs + n_picks;
    p->host.pairs = malloc(n_picks * sizeof *p->host.pairs);
    p->host.start = malloc((hp->n_experts_max + 1ull) * sizeof *p->host.start);
    if (!p->host.pairs || !p->host.start ||
        x->opt.cpu->ops->alloc(x->opt.cpu, XD_MAX(scratch, 256), &p->scratch) != KERN_OK)
        return xd_fail(err, XD_NOMEM, 0, "scratch for experts on the CPU");
    p->cpu = x->opt.cpu;
    return XD_OK;
}

void exec_split_close(exec *x)
{
    exec_split *p = &x->split;
    if (p->host_owned)
        x->dev->ops->free_host(x->dev, p->host_owned);
    free(p->host.pairs);
    free(p->host.start);
    if (p->scratch)
        x->opt.cpu->ops->free(x->opt.cpu, p->scratch);
}

bool exec_split_wanted(const exec *x, const exec_shape *s)
{
    return x->split.cpu && s->n_tokens <= x->opt.max_seqs && pager_wants_cpu(x->pg);
}

xd_status exec_split_fetch(exec *x, const exec_shape *s, uint32_t top_k, const uint32_t *ids, const float *weights,
                           xd_err *err)
{
    exec_split *p = &x->split;
    uint64_t rows = (uint64_t)s->n_tokens * x->hp->d_model * sizeof(float), picks = (uint64_t)s->n_tokens * top_k * 4;
    const struct {
        void *to;
        const void *from;
        uint64_t bytes;
    } copy[] = {{p->x, x->x, rows}, {p->h, x->h, rows}, {p->ids, ids, picks}, {p->weights, weights, picks}};
    kern_status ks = KERN_OK;
    for (size_t i = 0; i < XD_ARRAY_LEN(copy) && !ks; i++)
        ks = x->dev->ops->download(x->dev, copy[i].to, copy[i].from, copy[i].bytes);
    return ks ? exec_kern_fail(x, ks, err, "fetching a layer for the CPU") : XD_OK;
}

/* Sorts the picks of one side by expert, in the order of tokens, as the plan operation does. Returns their number. */
static uint32_t plan_side(const exec_split *p, exec_side *to, uint32_t n_picks, uint32_t n_experts, const uint8_t *left,
                          bool cpu)
{
    memset(to->start, 0, (n_experts + 1ull) * sizeof *to->start);
    for (uint32_t i = 0; i < n_picks; i++)
        to->start[p->ids[i] + 1] += (left[p->ids[i]] != 0) == cpu;
    for (uint32_t e = 0; e < n_experts; e++)
        to->start[e + 1] += to->start[e];
    /* start[e] serves as the cursor of e and ends where e + 1 begins: shift it back. */
    for (uint32_t i = 0; i < n_picks; i++)
        if ((left[p->ids[i]] != 0) == cpu)
            to->pairs[to->start[p->ids[i]]++] = i;
    memmove(to->start + 1, to->start, n_experts * sizeof *to->start);
    to->start[0] = 0;
    return to->start[n_experts];
}

static kern_status give_back(exec *x, const exec_shape *s, const pager_layer_view *pl, uint32_t top_k, bool device)
{
    const kern_ops *ops = x->dev->ops;
    const exec_split *p = &x->split;
    kern_status ks = ops->upload(x->dev, x->x, p->x, (uint64_t)s->n_tokens * x->hp->d_model * sizeof(float));
    if (ks || !device)
        return ks;
    ks = ops->upload(x->dev, x->expert_start, p->device.start, (pl->n_experts + 1ull) * sizeof *p->device.start);
    if (!ks)
        ks = ops->upload(x->dev, x->pairs, p->device.pairs, (uint64_t)s->n_tokens * top_k * sizeof *p->device.pairs);
    if (!ks) /* so that picks of the other side count as nothing */
        ks = ops->clear(x->dev, x->moe_scratch, ops->moe_scratch_bytes(x->dev, s->n_tokens, top_k, &pl->geom));
    return ks;
}

xd_status exec_split_run(exec *x, uint32_t layer, const exec_shape *s, const pager_layer_view *pl, uint32_t top_k,
                         bool *ret_device, xd_err *err)
{
    exec_split *p = &x->split;
    uint32_t n_picks = s->n_tokens * top_k;
    pager_cpu_share share;
    if (!pager_leave_to_cpu(x->pg, layer, x->counts_host, &share))
        return XD_OK; /* all of it lies in VRAM, and the device's own plan holds */
    uint64_t begin_ns = xd_now_ns();
    for (uint32_t i = 0; i < n_picks; i++)
        if (p->ids[i] >= pl->n_experts)
            return xd_fail(err, XD_INTERNAL, 0, "layer %u: the device picked expert %u of %u", layer, p->ids[i],
                           pl->n_experts);
    plan_side(p, &p->host, n_picks, pl->n_experts, share.left, true);
    *ret_device = plan_side(p, &p->device, n_picks, pl->n_experts, share.left, false) > 0;
    const kern_moe_args a = {.x = p->h,
                             .y = p->x,
                             .ids = p->ids,
                             .weights = p->weights,
                             .expert_start = p->host.start,
                             .pairs = p->host.pairs,
                             .page_addr = share.host_addr,
                             .geom = pl->geom,
                             .n_tokens = s->n_tokens,
                             .top_k = top_k,
                             .n_experts = pl->n_experts,
                             .scratch = p->scratch};
    kern_status ks =
        p->cpu->ops->clear(p->cpu, p->scratch, p->cpu->ops->moe_scratch_bytes(p->cpu, s->n_tokens, top_k, &pl->geom));
    if (!ks)
        ks = p->cpu->ops->moe(p->cpu, &a);
    if (ks)
        return xd_fail(err, ks == KERN_NOMEM ? XD_NOMEM : XD_INTERNAL, 0, "layer %u: experts on the CPU: %s", layer,
                       p->cpu->ops->error(p->cpu));
    p->ns += xd_now_ns() - begin_ns;
    ks = give_back(x, s, pl, top_k, *ret_device);
    return ks ? exec_kern_fail(x, ks, err, "giving a layer back from the CPU") : XD_OK;
}
