/* trace_replay.c - what a policy would have hit, beside what anybody could have.
 *
 * The policies are the pager's own objects, used as the pager uses them: slots are freed before a step, without knowing what it will
 * touch; what it misses fills them, some experts a layer and only those that the policy admits; a hit is what lay in VRAM when the
 * step began. Here every expert is one unit.
 *
 * Whom they are compared with knows the future. Belady (1966): of everything at hand after a step - the residents and what the step
 * has just streamed in - keep what is used again soonest. With fill-through a miss may be kept or not at no cost, so this is the
 * true optimum for experts of equal size. Two more are bound further: one must keep what it touches, as a cache does that cannot read
 * past itself; one may keep only as many a layer and step as the policies may. The best choice that never changes: where uses
 * are independent of the past, nobody who does not see the future does better. Where they are independent but the traffic
 * changes, the most that counts of uses can tell: see "nearby". Last, what somebody hits who sees no further than the next step. */
#include <string.h>

#include "config/config.h"
#include "engine/memory/policy.h"
#include "engine/memory/trace.h"

static void count_hits(const trace *t, uint32_t s, uint32_t hits, uint32_t *step_hits, uint32_t *step_touched,
                       trace_result *res)
{
    uint32_t n = (uint32_t)(t->starts[s + 1] - t->starts[s]);
    res->hits += hits;
    res->touched += n;
    if (step_hits)
        step_hits[s] = hits;
    if (step_touched)
        step_touched[s] = n;
}

/* --- policies ---------------------------------------------------------------------------------------------------- */

typedef struct cache {
    const trace *t;
    const trace_options *opt;
    policy *pol;
    bool *resident; /* [n_experts] */
    uint8_t *admit; /* [n_experts] */
    uint32_t *fill; /* [n_experts] what a step brings in */
    uint32_t n_resident;
} cache;

static void set_resident(cache *c, uint32_t x, bool on)
{
    c->resident[x] = on;
    c->n_resident += on ? 1 : -1;
    policy_set_units(c->pol, x, on);
}

/* As pager_step_begin(). Returns the slots that the step may fill. */
static uint32_t begin(cache *c)
{
    uint32_t want = XD_MIN(policy_want(c->pol), c->opt->capacity);
    while (c->opt->capacity - c->n_resident < want) {
        uint32_t v = policy_victim(c->pol);
        if (v == POLICY_NONE)
            break;
        set_resident(c, v, false);
    }
    uint32_t n_free = c->opt->capacity - c->n_resident;
    policy_plan(c->pol, n_free, c->admit);
    policy_settle(c->pol); /* as pager_settle() */
    policy_prepare(c->pol);
    return n_free;
}

/* As pager_step_end(): ids ascend, so a layer's come together. */
static uint32_t end(cache *c, const uint32_t *ids, uint32_t n, uint32_t slots)
{
    const trace *t = c->t;
    uint32_t hits = 0, wanted = 0, filled = 0, i = 0, layer_end = 0;
    for (uint32_t l = 0; l < t->n_layers; l++) {
        uint32_t left = c->opt->max_inserts;
        layer_end += t->layer_experts[l];
        for (; i < n && ids[i] < layer_end; i++) {
            uint32_t x = ids[i];
            policy_touch(c->pol, x);
            hits += c->resident[x];
            if (c->resident[x] || !c->admit[x] || !left)
                continue;
            left--;
            wanted += c->admit[x] == POLICY_WORTH_IT;
            if (filled < slots)
                c->fill[filled++] = x;
        }
    }
    for (uint32_t k = 0; k < filled; k++)
        set_resident(c, c->fill[k], true);
    policy_missed(c->pol, wanted);
    policy_advance(c->pol);
    return hits;
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
    XD_CLEANUP(xd_freep) uint8_t *admit = malloc(t->n_experts + 1u);
    XD_CLEANUP(xd_freep) uint32_t *fill = malloc((t->n_experts + 1u) * sizeof *fill);
    if (!pol || !resident || !admit || !fill)
        return xd_fail(err, XD_NOMEM, 0, "replaying a trace of %u experts", t->n_experts);
    memset(admit, 1, t->n_experts);
    cache c = {.t = t, .opt = opt, .pol = pol, .resident = resident, .admit = admit, .fill = fill};
    for (uint32_t s = 0; s < t->n_steps; s++) {
        if (t->flags[s] & TRACE_PREFILL) /* streams past the cache */
            continue;
        uint32_t n = (uint32_t)(t->starts[s + 1] - t->starts[s]);
        uint32_t hits = end(&c, t->ids + t->starts[s], n, begin(&c));
        count_hits(t, s, hits, step_hits, step_touched, res);
    }
    return XD_OK;
}

/* --- with a view of the future ----------------------------------------------------------------------------------- */

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

typedef struct future {
    const trace *t;
    uint32_t *next;     /* [uses] step of the same expert's next use, UINT32_MAX: none */
    uint32_t *now_next; /* [n_experts] the same as of now for residents; 0: not resident */
    uint64_t *come;     /* [n_experts] uses of this step that bring their expert in */
    heap h;
    uint32_t n_resident;
} future;

/* Of what the step missed, up to `cap` of each layer that are used again soonest: ascending within a layer. */
static uint32_t choose_newcomers(future *f, uint32_t s, uint32_t cap)
{
    const trace *t = f->t;
    uint32_t n = 0, layer_end = 0;
    uint64_t i = t->starts[s];
    for (uint32_t l = 0; l < t->n_layers; l++) {
        uint32_t first = n;
        layer_end += t->layer_experts[l];
        for (; i < t->starts[s + 1] && t->ids[i] < layer_end; i++) {
            if (f->now_next[t->ids[i]])
                continue;
            uint32_t k = n;
            for (; k > first && f->next[f->come[k - 1]] > f->next[i]; k--)
                if (k < first + cap)
                    f->come[k] = f->come[k - 1];
            if (k < first + cap)
                f->come[k] = i;
            n = XD_MIN(n + 1, first + cap);
        }
    }
    return n;
}

static void push_touched(future *f, uint32_t s)
{
    for (uint64_t i = f->t->starts[s]; i < f->t->starts[s + 1]; i++)
        if (f->now_next[f->t->ids[i]])
            heap_push(&f->h, (heap_entry){f->next[i], f->t->ids[i]});
}

static void push_out(future *f, uint32_t capacity)
{
    while (f->n_resident > capacity && f->h.n) {
        heap_entry e = heap_pop(&f->h);
        if (f->now_next[e.x] == e.next_use) { /* else an entry from before its last use */
            f->now_next[e.x] = 0;
            f->n_resident--;
        }
    }
}

static uint32_t future_step(future *f, const trace_options *opt, uint32_t s)
{
    const trace *t = f->t;
    const bool must_keep = opt->policy == TRACE_BELADY_STRICT;
    uint32_t hits = 0, cap = opt->policy == TRACE_BELADY_CAPPED ? XD_MIN(opt->max_inserts, t->n_experts) : t->n_experts;
    uint32_t n_come = choose_newcomers(f, s, cap);
    for (uint64_t i = t->starts[s]; i < t->starts[s + 1]; i++)
        if (f->now_next[t->ids[i]]) {
            hits++;
            f->now_next[t->ids[i]] = f->next[i];
        }
    for (uint32_t k = 0; k < n_come; k++)
        f->now_next[t->ids[f->come[k]]] = f->next[f->come[k]];
    f->n_resident += n_come;
    if (must_keep) /* the others go first */
        push_out(f, opt->capacity);
    push_touched(f, s);
    push_out(f, opt->capacity);
    return hits;
}

static xd_status replay_future(const trace *t, const trace_options *opt, uint32_t *step_hits, uint32_t *step_touched,
                               trace_result *res, xd_err *err)
{
    const uint64_t n_ids = t->starts[t->n_steps];
    XD_CLEANUP(xd_freep) uint32_t *next = malloc((n_ids + 1) * sizeof *next);
    XD_CLEANUP(xd_freep) uint32_t *seen = malloc((t->n_experts + 1u) * sizeof *seen);
    XD_CLEANUP(xd_freep) uint32_t *now_next = calloc(t->n_experts + 1u, sizeof *now_next);
    XD_CLEANUP(xd_freep) uint64_t *come = malloc((t->n_experts + 1u) * sizeof *come);
    XD_CLEANUP(xd_freep) heap_entry *mem = malloc((n_ids + 1) * sizeof *mem);
    if (!next || !seen || !now_next || !come || !mem)
        return xd_fail(err, XD_NOMEM, 0, "replaying a trace of %llu uses", (unsigned long long)n_ids);
    memset(seen, 0xff, (t->n_experts + 1u) * sizeof *seen);
    for (uint32_t s = t->n_steps; s-- > 0;)
        if (!(t->flags[s] & TRACE_PREFILL))
            for (uint64_t i = t->starts[s]; i < t->starts[s + 1]; i++) {
                next[i] = seen[t->ids[i]];
                seen[t->ids[i]] = s;
            }
    future f = {.t = t, .next = next, .now_next = now_next, .come = come, .h = {.v = mem}};
    for (uint32_t s = 0; s < t->n_steps; s++)
        if (!(t->flags[s] & TRACE_PREFILL))
            count_hits(t, s, future_step(&f, opt, s), step_hits, step_touched, res);
    return XD_OK;
}

typedef struct use_count {
    uint32_t x, n;
} use_count;

static int most_used_first(const void *a, const void *b)
{
    const use_count *x = a, *y = b;
    return x->n != y->n ? (x->n < y->n ? 1 : -1) : (x->x > y->x) - (x->x < y->x);
}

/* order [n_experts + 1] becomes the experts by their uses in all decode steps. */
static xd_status order_by_uses(const trace *t, uint32_t *order, xd_err *err)
{
    XD_CLEANUP(xd_freep) use_count *count = calloc(t->n_experts + 1u, sizeof *count);
    if (!count)
        return xd_fail(err, XD_NOMEM, 0, "replaying a trace of %u experts", t->n_experts);
    for (uint32_t x = 0; x < t->n_experts; x++)
        count[x].x = x;
    for (uint32_t s = 0; s < t->n_steps; s++)
        for (uint64_t i = t->starts[s]; !(t->flags[s] & TRACE_PREFILL) && i < t->starts[s + 1]; i++)
            count[t->ids[i]].n++;
    qsort(count, t->n_experts, sizeof *count, most_used_first);
    for (uint32_t i = 0; i < t->n_experts; i++)
        order[i] = count[i].x;
    return XD_OK;
}

static uint32_t hits_of(const trace *t, uint32_t s, const bool *resident)
{
    uint32_t hits = 0;
    for (uint64_t i = t->starts[s]; i < t->starts[s + 1]; i++)
        hits += resident[t->ids[i]];
    return hits;
}

static xd_status replay_fixed(const trace *t, const trace_options *opt, uint32_t *step_hits, uint32_t *step_touched,
                              trace_result *res, xd_err *err)
{
    XD_CLEANUP(xd_freep) uint32_t *order = malloc((t->n_experts + 1u) * sizeof *order);
    XD_CLEANUP(xd_freep) bool *resident = calloc(t->n_experts + 1u, sizeof *resident);
    if (!order || !resident)
        return xd_fail(err, XD_NOMEM, 0, "replaying a trace of %u experts", t->n_experts);
    xd_status st = order_by_uses(t, order, err);
    for (uint32_t i = 0; !st && i < XD_MIN(opt->capacity, t->n_experts); i++)
        resident[order[i]] = true;
    for (uint32_t s = 0; !st && s < t->n_steps; s++)
        if (!(t->flags[s] & TRACE_PREFILL))
            count_hits(t, s, hits_of(t, s, resident), step_hits, step_touched, res);
    return st;
}

/* What is at hand when a step has ended is its residents and all that it touched: those that the next step uses stay, then those that
 * the trace uses most. */
static xd_status replay_next(const trace *t, const trace_options *opt, uint32_t *step_hits, uint32_t *step_touched,
                             trace_result *res, xd_err *err)
{
    XD_CLEANUP(xd_freep) uint32_t *order = malloc((t->n_experts + 1u) * sizeof *order);
    XD_CLEANUP(xd_freep) bool *at_hand = calloc(t->n_experts + 1u, sizeof *at_hand);
    XD_CLEANUP(xd_freep) bool *used = calloc(t->n_experts + 1u, sizeof *used);
    if (!order || !at_hand || !used)
        return xd_fail(err, XD_NOMEM, 0, "replaying a trace of %u experts", t->n_experts);
    xd_status st = order_by_uses(t, order, err);
    for (uint32_t s = 0; !st && s < t->n_steps; s++) {
        if (t->flags[s] & TRACE_PREFILL)
            continue;
        uint32_t kept = 0;
        memset(used, 0, t->n_experts * sizeof *used);
        for (uint64_t i = t->starts[s]; i < t->starts[s + 1]; i++)
            used[t->ids[i]] = true;
        for (int rest = 0; rest < 2; rest++)
            for (uint32_t i = 0; i < t->n_experts; i++) {
                uint32_t x = order[i];
                if (at_hand[x] && used[x] != rest)
                    at_hand[x] = kept++ < opt->capacity;
            }
        count_hits(t, s, hits_of(t, s, at_hand), step_hits, step_touched, res);
        for (uint64_t i = t->starts[s]; i < t->starts[s + 1]; i++)
            at_hand[t->ids[i]] = true;
    }
    return st;
}

/* --- nearby ------------------------------------------------------------------------------------------------------ */

/* For each step the best set by the uses of the `reach` steps before it and as many after it, of the step itself excepted. A policy can
 * count the former alone, so that it has to be longer in error about what is common now; and a set pays nothing here for changing.
 * That is why a policy which judges by counts will hardly do better, and how far below the optimum it has to end up. */
typedef struct window {
    uint32_t *count; /* [n_experts] uses in the window */
    uint32_t *with;  /* [2 * reach + 1] experts by count */
    uint32_t bar, above,
        capacity; /* `above` experts have a count above the bar, fewer than fit; those at the bar fit in part */
} window;

static void window_move(window *w, uint32_t x, bool in)
{
    uint32_t from = w->count[x], to = in ? from + 1 : from - 1;
    w->with[from]--;
    w->with[to]++;
    w->count[x] = to;
    w->above += (to > w->bar) - (from > w->bar);
}

static void window_move_step(window *w, const trace *t, uint32_t s, bool in)
{
    for (uint64_t i = t->starts[s]; i < t->starts[s + 1]; i++)
        window_move(w, t->ids[i], in);
}

static void window_set_bar(window *w)
{
    while (w->above >= w->capacity && w->above)
        w->above -= w->with[++w->bar];
    while (w->bar && w->above + w->with[w->bar] < w->capacity)
        w->above += w->with[w->bar--];
}

/* Which of the experts at the bar are in the set is left to chance. */
static double window_hits(const window *w, const trace *t, uint32_t s)
{
    double hits = 0, share = w->with[w->bar] ? (double)(w->capacity - w->above) / w->with[w->bar] : 0;
    for (uint64_t i = t->starts[s]; i < t->starts[s + 1]; i++)
        hits += w->count[t->ids[i]] > w->bar ? 1 : w->count[t->ids[i]] == w->bar ? XD_MIN(share, 1.0) : 0;
    return hits;
}

/* `steps` [n]: the decode steps. */
static double hits_nearby(window *w, const trace *t, const uint32_t *steps, uint32_t n, uint32_t reach)
{
    double hits = 0;
    memset(w->count, 0, t->n_experts * sizeof *w->count);
    memset(w->with, 0, (2 * reach + 1) * sizeof *w->with);
    w->with[0] = t->n_experts;
    w->bar = w->above = 0;
    for (uint32_t i = 0; i < XD_MIN(reach, n); i++)
        window_move_step(w, t, steps[i], true);
    for (uint32_t i = 0; i < n; i++) {
        if (i > reach)
            window_move_step(w, t, steps[i - reach - 1], false);
        if (i)
            window_move_step(w, t, steps[i - 1], true);
        window_move_step(w, t, steps[i], false);
        if (n - i > reach)
            window_move_step(w, t, steps[i + reach], true);
        window_set_bar(w);
        hits += window_hits(w, t, steps[i]);
    }
    return hits;
}

static xd_status replay_nearby(const trace *t, const trace_options *opt, trace_result *res, xd_err *err)
{
    enum { MOST = 1024 };
    XD_CLEANUP(xd_freep) uint32_t *steps = malloc((t->n_steps + 1u) * sizeof *steps);
    XD_CLEANUP(xd_freep) uint32_t *count = malloc((t->n_experts + 1u) * sizeof *count);
    XD_CLEANUP(xd_freep) uint32_t *with = malloc((2 * MOST + 1) * sizeof *with);
    if (!steps || !count || !with)
        return xd_fail(err, XD_NOMEM, 0, "replaying a trace of %u experts", t->n_experts);
    uint32_t n = 0;
    for (uint32_t s = 0; s < t->n_steps; s++)
        if (!(t->flags[s] & TRACE_PREFILL)) {
            steps[n++] = s;
            res->touched += t->starts[s + 1] - t->starts[s];
        }
    window w = {.count = count, .with = with, .capacity = opt->capacity};
    for (uint32_t reach = 4; reach <= MOST; reach *= 4)
        res->hits = XD_MAX(res->hits, (uint64_t)(hits_nearby(&w, t, steps, n, reach) + 0.5));
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
    xd_status st = opt->policy == TRACE_FIXED    ? replay_fixed(t, opt, step_hits, step_touched, &res, err)
                   : opt->policy == TRACE_NEARBY ? replay_nearby(t, opt, &res, err)
                   : opt->policy == TRACE_NEXT   ? replay_next(t, opt, step_hits, step_touched, &res, err)
                   : opt->policy < 0             ? replay_future(t, opt, step_hits, step_touched, &res, err)
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
    static const struct {
        int kind;
        const char *name;
    } columns[] = {{CONF_EVICT_LRU, "lru"},       {CONF_EVICT_LFU, "lfu"},         {CONF_EVICT_LFRU, "lfru"},
                   {CONF_EVICT_STATIC, "static"}, {TRACE_FIXED, "best set"},       {TRACE_NEARBY, "nearby"},
                   {TRACE_NEXT, "next"},          {TRACE_BELADY_STRICT, "strict"}, {TRACE_BELADY_CAPPED, "capped"},
                   {TRACE_BELADY, "optimum"}};
    xd_buf_printf(out, "%u steps, %u layers, %u experts; hit rate in %%\n%-10s", t->n_steps, t->n_layers, t->n_experts,
                  "capacity");
    for (size_t k = 0; k < XD_ARRAY_LEN(columns); k++)
        xd_buf_printf(out, " %8s", columns[k].name);
    xd_buf_putc(out, '\n');
    for (size_t i = 0; i < XD_ARRAY_LEN(percents); i++) {
        xd_buf_printf(out, "%7d %% ", percents[i]);
        for (size_t k = 0; k < XD_ARRAY_LEN(columns); k++) {
            trace_options o = {.policy = columns[k].kind,
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
