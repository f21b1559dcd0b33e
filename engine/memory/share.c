/* share.c - see share.h.
 *
 * Rates of memories and links, measured one by one, do not tell what both sides get beside each other: they share the memory, and the CPU
 * pays for each layer's beginning. So what counts is what a byte took lately, all that included, in steps of about the same number of
 * sequences (which decides how many tokens an expert has). A side that is given more or less than before has another mean; the division
 * then settles where both take equally long, since a fixed cost a layer weighs the less the more that side is given.
 *
 * A rate that jumps is believed at once, up or down: a link that breaks down must not be given another layer for the sake of a smooth
 * mean. A side that has had nothing for a while is given one expert of one layer, to see whether it has recovered: over a link of
 * 0.1 GB/s that costs 50 ms in 256 steps. */
#include "engine/memory/share.h"

#include <stdlib.h>

#define GAIN       0.125
#define JUMP       2.0
#define IDLE_STEPS 256u
#define FIRST      4u /* a single expert may have been unlucky */

void share_note(share_rates *r, int side, uint32_t batch, uint64_t bytes, uint64_t ns)
{
    struct share_rate *s = &r->side[side];
    uint32_t i = batch_slot(batch);
    if (!bytes || !ns) {
        s->idle += s->idle < IDLE_STEPS;
        return;
    }
    double now = (double)ns / (double)bytes, *mean = &s->ns[i];
    bool jumped = !(*mean > 0) || now > JUMP * *mean || JUMP * now < *mean;
    *mean = jumped ? now : *mean + GAIN * (now - *mean);
    s->last = i;
    s->idle = 0;
    s->noted += s->noted < FIRST;
}

share_costs share_get(const share_rates *r, uint32_t batch)
{
    share_costs c = {.ns = {0}};
    uint32_t i = batch_slot(batch);
    for (int side = 0; side < SHARE_SIDES; side++) {
        const struct share_rate *s = &r->side[side];
        c.ns[side] = s->ns[i] > 0 ? s->ns[i] : s->ns[s->last];
        c.explore = c.explore || s->idle >= IDLE_STEPS || s->noted < FIRST;
    }
    return c;
}

static int device_first(const void *a, const void *b)
{
    const share_item *x = a, *y = b;
    if (x->worth != y->worth)
        return x->worth ? -1 : 1;
    /* A part of it is there already: x->link_bytes / x->bytes against y's */
    double p = (double)x->link_bytes * (double)y->bytes, q = (double)y->link_bytes * (double)x->bytes;
    if (p < q || p > q)
        return p < q ? -1 : 1;
    if (x->tokens != y->tokens)
        return x->tokens > y->tokens ? -1 : 1;
    return x->expert < y->expert ? -1 : 1;
}

bool share_divide(const share_costs *c, share_item *items, uint32_t n, uint32_t *ret_device)
{
    qsort(items, n, sizeof *items, device_first);
    double device = 0, cpu = 0;
    for (uint32_t i = 0; i < n; i++)
        cpu += c->ns[SHARE_CPU] * (double)items[i].bytes;
    uint32_t k = 0;
    bool known = c->ns[SHARE_DEVICE] > 0 && c->ns[SHARE_CPU] > 0;
    for (; known && k < n; k++) {
        double more = device + c->ns[SHARE_DEVICE] * (double)items[k].link_bytes;
        if (more >= cpu) /* the longer side would not get shorter */
            break;
        device = more;
        cpu -= c->ns[SHARE_CPU] * (double)items[k].bytes;
    }
    bool explores = c->explore && n && (k == 0 || k == n);
    if (explores)
        k = k ? n - 1 : 1;
    *ret_device = k;
    return explores;
}
