/* trace_replay.c - what a policy would have hit, beside what anybody could have.
 *
 * The policies are the pager's own objects; here every expert is one unit. Belady (1966): of everything at hand after a step - the
 * residents and what the step has just streamed in - keep what is used again soonest. With fill-through a miss may be kept or not
 * at no cost, so this bound is the true optimum for experts of equal size. */
#include <math.h>
#include <string.h>

#include "config/config.h"
#include "engine/memory/policy.h"
#include "engine/memory/trace.h"

/* --- policies ---------------------------------------------------------------------------------------------------- */

typedef struct cache {
    const trace *t;
    const trace_options *opt;
    policy *pol;
    bool *resident;
    uint32_t n_resident;
    uint32_t *layer;      /* [n_experts] */
    uint32_t *layer_left; /* insertions left in this step */
    trace_result *res;
} cache;

static void keep(cache *c, uint32_t x)
{
    if (c->resident[x] || !c->layer_left[c->layer[x]])
        return;
    if (c->n_resident == c->opt->capacity) {
        uint32_t v = policy_victim(c->pol);
        if (v == POLICY_NONE)
            return;
        c->resident[v] = false;
        policy_set_units(c->pol, v, 0);
        c->n_resident--;
        c->res->evictions++;
    }
    c->layer_left[c->layer[x]]--;
    c->resident[x] = true;
    policy_set_units(c->pol, x, 1);
    c->n_resident++;
    c->res->inserts++;
}

static xd_status replay_policy(const trace *t, const trace_options *opt, uint32_t *step_hits, uint32_t *step_touched,
                               trace_result *res, xd_err *err)
{
    policy_options po = {.kind = opt->policy,
                         .n_layers = t->n_layers,
                         .layer_experts = t->layer_experts,
                         .capacity_units = opt->capacity,
                         .layer_floor = opt->layer_floor};
    XD_CLEANUP(policy_freep) policy *pol = policy_new(&po);
    XD_CLEANUP(xd_freep) bool *resident = calloc(t->n_experts + 1u, sizeof *resident);
    XD_CLEANUP(xd_freep) uint32_t *layer = calloc(t->n_experts + 1u, sizeof *layer);
    XD_CLEANUP(xd_freep) uint32_t *left = calloc(t->n_layers + 1u, sizeof *left);
    if (!pol || !resident || !layer || !left)
        return xd_fail(err, XD_NOMEM, 0, "replaying a trace of %u experts", t->n_experts);
    for (uint32_t l = 0, x = 0; l < t->n_layers; l++)
        for (uint32_t e = 0; e < t->layer_experts[l]; e++)
            layer[x++] = l;
    cache c = {.t = t, .opt = opt, .pol = pol, .resident = resident, .layer = layer, .layer_left = left, .res = res};
    for (uint32_t s = 0; s < t->n_steps; s++) {
        if (t->flags[s] & TRACE_PREFILL) /* streams past the cache */
            continue;
        uint32_t hits = 0;
        const uint32_t *ids = t->ids + t->starts[s];
        uint32_t n = (uint32_t)(t->starts[s + 1] - t->starts[s]);
        for (uint32_t i = 0; i < n; i++) {
            hits += resident[ids[i]];
            policy_touch(pol, ids[i]);
        }
        for (uint32_t l = 0; l < t->n_layers; l++)
            left[l] = opt->max_inserts;
        if (opt->capacity)
            for (uint32_t i = 0; i < n; i++)
                keep(&c, ids[i]);
        policy_advance(pol);
        res->hits += hits;
        res->touched += n;
        if (step_hits)
            step_hits[s] = hits;
        if (step_touched)
            step_touched[s] = n;
    }
    return XD_OK;
}

/* --- the optimum ------------------------------------------------------------------------------------------------- */

typedef struct heap_entry {
    uint32_t next_use, x;
} heap_entry;

typedef struct heap { /* largest next_use first */
    heap_entry *v;
    uint64_t n;
} heap;

static void heap_push(heap *h, heap_entry e)
{
    uint64_t i = h->n++;
    for (; i && h->v[(i - 1) / 2].next_use < e.next_use; i = (i - 1) / 2)
        h->v[i] = h->v[(i - 1) / 2];
    h->v[i] = e;
}

static heap_entry heap_pop(heap *h)
{
    heap_entry top = h->v[0], last = h->v[--h->n];
    uint64_t i = 0, k;
    while ((k = 2 * i + 1) < h->n) {
        if (k + 1 < h->n && h->v[k + 1].next_use > h->v[k].next_use)
            k++;
        if (h->v[k].next_use <= last.next_use)
            break;
        h->v[i] = h->v[k];
        i = k;
    }
    h->v[i] = last;
    return top;
}

static xd_status replay_belady(const trace *t, const trace_options *opt, uint32_t *step_hits, uint32_t *step_touched,
                               trace_result *res, xd_err *err)
{
    const uint64_t n_ids = t->starts[t->n_steps];
    XD_CLEANUP(xd_freep) uint32_t *next = malloc((n_ids + 1) * sizeof *next); /* step of the same expert's next use */
    XD_CLEANUP(xd_freep) uint32_t *seen = malloc((t->n_experts + 1u) * sizeof *seen);
    XD_CLEANUP(xd_freep) uint32_t *now_next = calloc(t->n_experts + 1u, sizeof *now_next); /* 0: not resident */
    XD_CLEANUP(xd_freep) heap_entry *mem = malloc((n_ids + 1) * sizeof *mem);
    if (!next || !seen || !now_next || !mem)
        return xd_fail(err, XD_NOMEM, 0, "replaying a trace of %llu uses", (unsigned long long)n_ids);
    memset(seen, 0xff, (t->n_experts + 1u) * sizeof *seen);
    for (uint32_t s = t->n_steps; s-- > 0;)
        if (!(t->flags[s] & TRACE_PREFILL))
            for (uint64_t i = t->starts[s]; i < t->starts[s + 1]; i++) {
                next[i] = seen[t->ids[i]];
                seen[t->ids[i]] = s;
            }
    heap h = {.v = mem};
    uint32_t n_resident = 0;
    for (uint32_t s = 0; s < t->n_steps; s++) {
        if (t->flags[s] & TRACE_PREFILL)
            continue;
        uint32_t hits = 0;
        for (uint64_t i = t->starts[s]; i < t->starts[s + 1]; i++) {
            uint32_t x = t->ids[i];
            hits += now_next[x] != 0;
            n_resident += now_next[x] == 0;
            now_next[x] = next[i];
            heap_push(&h, (heap_entry){next[i], x});
        }
        while (n_resident > opt->capacity) {
            heap_entry e = heap_pop(&h);
            if (now_next[e.x] == e.next_use) { /* else an entry from before its last use */
                now_next[e.x] = 0;
                n_resident--;
            }
        }
        res->hits += hits;
        res->touched += t->starts[s + 1] - t->starts[s];
        if (step_hits)
            step_hits[s] = hits;
        if (step_touched)
            step_touched[s] = (uint32_t)(t->starts[s + 1] - t->starts[s]);
    }
    return XD_OK;
}

xd_status trace_replay(const trace *t, const trace_options *opt, uint32_t *step_hits, uint32_t *step_touched,
                       trace_result *ret, xd_err *err)
{
    trace_result res = {0};
    if (step_hits)
        memset(step_hits, 0, t->n_steps * sizeof *step_hits);
    if (step_touched)
        memset(step_touched, 0, t->n_steps * sizeof *step_touched);
    xd_status st = opt->policy == TRACE_BELADY ? replay_belady(t, opt, step_hits, step_touched, &res, err)
                                               : replay_policy(t, opt, step_hits, step_touched, &res, err);
    if (st)
        return st;
    res.hit_rate = res.touched ? (double)res.hits / (double)res.touched : 0;
    *ret = res;
    return XD_OK;
}

xd_status trace_report(const trace *t, uint32_t max_inserts, double layer_floor, xd_buf *out, xd_err *err)
{
    static const int percents[] = {10, 25, 40, 50, 75};
    static const int kinds[] = {CONF_EVICT_LRU, CONF_EVICT_LFU, CONF_EVICT_LFRU, CONF_EVICT_STATIC, TRACE_BELADY};
    xd_buf_printf(out, "%u steps, %u layers, %u experts; hit rate in %%\n%-10s", t->n_steps, t->n_layers, t->n_experts,
                  "capacity");
    for (size_t k = 0; k < XD_ARRAY_LEN(kinds); k++)
        xd_buf_printf(out, " %8s", kinds[k] == TRACE_BELADY ? "optimum" : policy_name(kinds[k]));
    xd_buf_putc(out, '\n');
    for (size_t i = 0; i < XD_ARRAY_LEN(percents); i++) {
        xd_buf_printf(out, "%7d %% ", percents[i]);
        for (size_t k = 0; k < XD_ARRAY_LEN(kinds); k++) {
            trace_options o = {.policy = kinds[k],
                               .capacity = (uint32_t)((uint64_t)t->n_experts * (uint32_t)percents[i] / 100),
                               .max_inserts = max_inserts,
                               .layer_floor = layer_floor};
            trace_result r;
            xd_status st = trace_replay(t, &o, NULL, NULL, &r, err);
            if (st)
                return st;
            xd_buf_printf(out, " %8.1f", r.hit_rate * 100);
        }
        xd_buf_putc(out, '\n');
    }
    return out->failed ? xd_fail(err, XD_NOMEM, 0, "trace report") : XD_OK;
}
