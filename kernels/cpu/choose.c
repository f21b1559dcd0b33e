/* choose.c - choices among logits: experts of a token, greedy token, candidates of the sampler.
 *
 * NaN never wins: it compares as smaller than everything, so ids stay valid whatever a model computes. */
#include "kernels/cpu/cpu_priv.h"

#define ROUTER_TOKENS_A_TASK 16

typedef struct router_job {
    const kern_router_args *a;
    const cpu_rows *rows;
} router_job;

/* The k largest in descending order by insertion; equal ones keep the order of ids. By logits rather than probabilities: softmax is
 * monotonous, but rounding may make neighbours equal that were not. */
static void router_pick(const kern_router_args *a, const float *logits, uint32_t *ids)
{
    uint32_t n = 0;
    for (uint32_t e = 0; e < a->n_experts; e++) {
        float v = logits[e];
        uint32_t at = n;
        while (at > 0 && (v > logits[ids[at - 1]] || (logits[ids[at - 1]] != logits[ids[at - 1]] && v == v)))
            at--;
        if (at == a->top_k)
            continue;
        if (n < a->top_k)
            n++;
        memmove(ids + at + 1, ids + at, (n - 1 - at) * sizeof *ids);
        ids[at] = e;
    }
}

static void router_token(const router_job *j, uint32_t t)
{
    const kern_router_args *a = j->a;
    const float *logits = a->logits + (size_t)t * a->n_experts;
    uint32_t *ids = a->ids + (size_t)t * a->top_k;
    float *weights = a->weights + (size_t)t * a->top_k;
    router_pick(a, logits, ids);

    float max = logits[ids[0]], chosen = 0;
    for (uint32_t k = 0; k < a->top_k; k++) {
        weights[k] = expf(logits[ids[k]] - max);
        chosen += weights[k];
    }
    /* Dividing by the sum of all and then by the share of the chosen is dividing by the sum of the chosen. */
    float sum = chosen;
    if (a->scoring == KERN_SOFTMAX_TOPK && !a->norm_topk)
        sum = j->rows->exp(NULL, logits, a->n_experts, 1.0f, max);
    for (uint32_t k = 0; k < a->top_k; k++)
        weights[k] /= sum;
}

static void router_task(void *ctx, uint32_t task, uint32_t worker)
{
    (void)worker;
    const router_job *j = ctx;
    uint32_t first = task * ROUTER_TOKENS_A_TASK;
    for (uint32_t t = first; t < MIN(first + ROUTER_TOKENS_A_TASK, j->a->n_tokens); t++)
        router_token(j, t);
}

kern_status cpu_router(kern_dev *dev, const kern_router_args *a)
{
    cpu_dev *d = cpu_of(dev);
    if (a->top_k == 0 || a->top_k > a->n_experts)
        return cpu_fail(d, KERN_ARG, "router: %u of %u experts", a->top_k, a->n_experts);
    router_job j = {.a = a, .rows = &d->rows};
    pool_run(d->pool, (a->n_tokens + ROUTER_TOKENS_A_TASK - 1) / ROUTER_TOKENS_A_TASK, router_task, &j);
    return KERN_OK;
}

kern_status cpu_route(kern_dev *dev, const kern_linear_args *logits, const kern_router_args *pick,
                      const kern_plan_args *plan, const kern_route_ahead *ahead)
{
    (void)ahead; /* ahead_bytes is 0 */
    kern_status st = cpu_linear(dev, logits);
    if (!st)
        st = cpu_router(dev, pick);
    return st || !plan ? st : cpu_plan(dev, plan);
}

typedef struct argmax_job {
    const kern_argmax_args *a;
    const cpu_rows *rows;
} argmax_job;

static void argmax_task(void *ctx, uint32_t t, uint32_t worker)
{
    (void)worker;
    const argmax_job *j = ctx;
    const float *logits = j->a->logits + (size_t)t * j->a->vocab;
    float max = j->rows->max(logits, j->a->vocab);
    uint32_t id = 0;
    while (id < j->a->vocab && logits[id] != max)
        id++;
    j->a->ids[t] = isfinite(max) && id < j->a->vocab ? id : UINT32_MAX; /* a row of NaN has no largest */
}

kern_status cpu_argmax(kern_dev *dev, const kern_argmax_args *a)
{
    cpu_dev *d = cpu_of(dev);
    argmax_job j = {.a = a, .rows = &d->rows};
    pool_run(d->pool, a->n_tokens, argmax_task, &j);
    return KERN_OK;
}

typedef struct top_job {
    const kern_top_logits_args *a;
    const cpu_rows *rows;
} top_job;

static void top_task(void *ctx, uint32_t t, uint32_t worker)
{
    (void)worker;
    const top_job *j = ctx;
    const kern_top_logits_args *a = j->a;
    const float *logits = a->logits + (size_t)t * a->vocab;
    uint32_t *ids = a->ids + (size_t)t * KERN_TOP_LOGITS;
    float *values = a->values + (size_t)t * KERN_TOP_LOGITS;

    /* A candidate must be larger than the last of the list, so among equals the lower id stays. -inf stands for a free place: tokens
     * that are ruled out never become candidates. */
    for (uint32_t k = 0; k < KERN_TOP_LOGITS; k++) {
        ids[k] = UINT32_MAX;
        values[k] = -INFINITY;
    }
    for (uint32_t i = 0;; i++) {
        i = j->rows->find(logits, i, a->vocab, values[KERN_TOP_LOGITS - 1]);
        if (i >= a->vocab)
            break;
        uint32_t at = KERN_TOP_LOGITS - 1;
        for (; at > 0 && logits[i] > values[at - 1]; at--) {
            values[at] = values[at - 1];
            ids[at] = ids[at - 1];
        }
        values[at] = logits[i];
        ids[at] = i;
    }
    float max = values[0];
    a->logsumexp[t] = max > -INFINITY ? max + logf(j->rows->exp(NULL, logits, a->vocab, 1.0f, max)) : -INFINITY;
}

kern_status cpu_top_logits(kern_dev *dev, const kern_top_logits_args *a)
{
    cpu_dev *d = cpu_of(dev);
    top_job j = {.a = a, .rows = &d->rows};
    pool_run(d->pool, a->n_tokens, top_task, &j);
    return KERN_OK;
}
