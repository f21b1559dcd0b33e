/* ahead.c - reading ahead: whether a step does, what the kernels are told, and what came of it.
 *
 * In a recorded step of one token the link is used only while experts compute. Where all goes well, a reader beside the step brings
 * rows of the next layer's likely experts to device memory in between (kern_ahead). It is left out where there is nothing to gain
 * (nearly all is found in VRAM, or the experts of several tokens take so long that the rest hardly counts) or where others need the
 * link (KV blocks, copies of the pager). A device that does not run kernels side by side makes the reader give up; after a few such
 * steps none is started any more. */

#include "engine/exec/exec_priv.h"

#define GIVEN_UP_MAX 3u /* steps in a row */
/* The reader takes 3 us of a layer's other work (H200): it must have at least this to read, a layer. Once on, it stays on down to half. */
#define WORTH_BYTES (384ull << 10)

static bool same_cut(const kern_expert_geom *a, const kern_expert_geom *b)
{
    for (int m = 0; m < 3; m++)
        if (a->page_rows[m] != b->page_rows[m] || a->first_page[m] != b->first_page[m] ||
            a->row_bytes[m] != b->row_bytes[m] || a->fmt[m] != b->fmt[m])
            return false;
    return a->d_model == b->d_model && a->d_ff == b->d_ff && a->pages == b->pages;
}

static bool fits(const exec *x, uint32_t layer)
{
    kern_linear_args logits;
    kern_router_args pick;
    if (!x->layers[layer].router.data || x->hp->layer_norms) /* the reader's guess is of the other norm */
        return false;
    exec_router_args(x, layer, EXEC_AHEAD_TOKENS, &logits, &pick);
    return x->dev->ops->ahead_fits(x->dev, &logits, &pick);
}

/* Whether the layer can be read ahead for, and the one after it from there: both routers have one shape. */
static bool alike(const exec *x, uint32_t layer)
{
    const kern_mat *a = &x->layers[layer].router, *b = &x->layers[layer + 1].router;
    return fits(x, layer) && a->fmt == b->fmt && a->rows == b->rows && a->row_bytes == b->row_bytes;
}

xd_status exec_ahead_open(exec *x, xd_err *err)
{
    exec_ahead *h = &x->ahead;
    const uint32_t n = x->hp->n_layers;
    kern_expert_geom last, g;
    if (!x->opt.read_ahead || !x->opt.record || !x->info.can_record || x->opt.routes || n < 2)
        return XD_OK;
    xd_status st = pager_geometry(model_get_layer(x->m, n - 1), x->hp->d_model, x->opt.page_size, &last, err);
    if (st)
        return st;
    uint64_t bytes = x->dev->ops->ahead_bytes(x->dev, n, &last);
    if (!bytes || !fits(x, n - 1))
        return XD_OK;
    uint32_t first = n;
    for (; first > 1; first--) { /* layers alike, from the last one backwards */
        if ((st = pager_geometry(model_get_layer(x->m, first - 2), x->hp->d_model, x->opt.page_size, &g, err)))
            return st;
        if (!same_cut(&g, &last) || !alike(x, first - 2))
            break;
    }
    if (first == n)
        return XD_OK;
    h->k = (kern_ahead){.step = x->in_dev + EXEC_STEP_WORD, .geom = last, .first = first, .n_layers = n};
    if ((st = exec_alloc(x, bytes, &h->k.memory, "experts that are read ahead", err)))
        return st;
    x->workspace_bytes += bytes;
    kern_status ks = x->dev->ops->clear(x->dev, h->k.memory, bytes);
    h->on = !ks;
    return ks ? exec_kern_fail(x, ks, err, "clearing the memory for reading ahead") : XD_OK;
}

bool exec_ahead_wanted(exec *x, const exec_shape *s)
{
    exec_ahead *h = &x->ahead;
    if (!h->on || !s->recorded || s->n_tokens > EXEC_AHEAD_TOKENS || s->staged)
        return false;
    uint64_t bytes = pager_read_in_place(x->pg), worth = WORTH_BYTES * x->hp->n_layers;
    h->pays = bytes && (x->opt.always_ahead || bytes >= (h->pays ? worth / 2 : worth));
    return h->pays;
}

const kern_ahead *exec_ahead_of(const exec *x, uint32_t layer, const exec_shape *s)
{
    return s->ahead && layer + 1 >= x->ahead.k.first ? &x->ahead.k : NULL;
}

void exec_ahead_take(exec *x, const exec_shape *s, exec_times *t)
{
    exec_ahead *h = &x->ahead;
    if (!s->ahead)
        return;
    kern_ahead_counts now = *h->counts;
    t->ahead = (kern_ahead_counts){.useful_bytes = now.useful_bytes - h->seen.useful_bytes,
                                   .wasted_bytes = now.wasted_bytes - h->seen.wasted_bytes,
                                   .predictions = now.predictions - h->seen.predictions,
                                   .right = now.right - h->seen.right,
                                   .given_up = now.given_up - h->seen.given_up};
    h->seen = now;
    h->given_up = t->ahead.given_up ? h->given_up + 1 : 0;
    if (h->given_up == GIVEN_UP_MAX)
        h->on = false;
}
