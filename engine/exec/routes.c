/* routes.c - see routes.h. What a layer's router would have picked is a function of (timeline, position, layer) alone, so that a request has
 * the same picks alone and among others. */
#include "engine/exec/routes.h"

#include "engine/memory/trace.h"

struct routes {
    const model *m;
    trace *t;
    uint32_t *steps; /* [n_steps] those of the trace that decoded */
    uint32_t n_steps;
    uint32_t *first; /* [n_layers] number of the layer's expert 0 over all layers */
};

static uint64_t mix(uint64_t x)
{
    return xd_mix64(x + XD_MIX64_STEP); /* 0 too is mixed */
}

xd_status routes_open(const char *path, const model *m, routes **ret, xd_err *err)
{
    XD_CLEANUP(routes_freep) routes *r = calloc(1, sizeof *r);
    if (!r)
        return xd_fail(err, XD_NOMEM, 0, "trace '%s'", path);
    r->m = m;
    xd_status st = trace_load(path, &r->t, err);
    if (st)
        return xd_wrap(err, "model.skew_trace");
    uint32_t n_layers = model_get_params(m)->n_layers, at = 0;
    if (r->t->n_layers != n_layers)
        return xd_fail(err, XD_BAD_CONFIG, 0, "model.skew_trace: '%s' is of %u layers, the model has %u", path,
                       r->t->n_layers, n_layers);
    r->first = malloc(n_layers * sizeof *r->first);
    r->steps = malloc((r->t->n_steps + 1ull) * sizeof *r->steps);
    if (!r->first || !r->steps)
        return xd_fail(err, XD_NOMEM, 0, "trace '%s'", path);
    for (uint32_t l = 0; l < n_layers; l++) {
        uint32_t want = model_get_layer(m, l)->n_experts;
        if (r->t->layer_experts[l] != want)
            return xd_fail(err, XD_BAD_CONFIG, 0, "model.skew_trace: layer %u of '%s' has %u experts, of the model %u",
                           l, path, r->t->layer_experts[l], want);
        r->first[l] = at;
        at += want;
    }
    for (uint32_t s = 0; s < r->t->n_steps; s++)
        if (!(r->t->flags[s] & TRACE_PREFILL))
            r->steps[r->n_steps++] = s;
    if (!r->n_steps)
        return xd_fail(err, XD_BAD_CONFIG, 0, "model.skew_trace: '%s' holds no decode step", path);
    *ret = XD_TAKE(r);
    return XD_OK;
}

void routes_free(routes *r)
{
    if (!r)
        return;
    trace_free(r->t);
    free(r->first);
    free(r->steps);
    free(r);
}

/* Index of the first of ids[lo..hi) that is not below x. */
static uint64_t lower_bound(const uint32_t *ids, uint64_t lo, uint64_t hi, uint32_t x)
{
    while (lo < hi) {
        uint64_t mid = lo + (hi - lo) / 2;
        if (ids[mid] < x)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static bool has(const uint32_t *out, uint32_t n, uint32_t e)
{
    for (uint32_t i = 0; i < n; i++)
        if (out[i] == e)
            return true;
    return false;
}

void routes_pick(const routes *r, uint64_t salt, uint32_t pos, uint32_t layer, uint32_t *out)
{
    const trace *t = r->t;
    const model_layer *y = model_get_layer(r->m, layer);
    uint32_t step = r->steps[(mix(salt) % r->n_steps + pos) % r->n_steps], first = r->first[layer];
    uint64_t lo = lower_bound(t->ids, t->starts[step], t->starts[step + 1], first),
             hi = lower_bound(t->ids, lo, t->starts[step + 1], first + y->n_experts), n = hi - lo;
    uint64_t begin = n > y->top_k ? mix(salt ^ layer) % n : 0;
    uint32_t got = 0;
    for (; got < y->top_k && got < n; got++)
        out[got] = t->ids[lo + (begin + got) % n] - first;
    for (uint32_t e = (uint32_t)(mix(salt + pos) % y->n_experts); got < y->top_k; e = (e + 1) % y->n_experts)
        if (!has(out, got, e))
            out[got++] = e;
}
