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

/* Softmax of the logits, picks by logits. */
static void router_plain(const router_job *j, const float *logits, uint32_t *ids, float *weights)
{
    const kern_router_args *a = j->a;
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

static bool is_among(const uint32_t *ids, uint32_t n, uint32_t id)
{
    for (uint32_t i = 0; i < n; i++)
        if (ids[i] == id)
            return true;
    return false;
}

static void router_mixer(const kern_router_args *a, const float *logits, uint32_t *ids, float *weights)
{
    router_pick(a, logits, ids);
    for (uint32_t k = 0; k < a->top_k; k++) {
        const float max = logits[ids[k]];
        float sum = 0;
        for (uint32_t e = 0; e < a->n_experts; e++) {
            const bool far = (max - logits[e]) / fmaxf(fabsf(logits[e]), max) > a->spread;
            if (!far && !is_among(ids, k, e))
                sum += expf(logits[e] - max);
        }
        weights[k] = 1.0f / sum;
    }
}

/* A token's experts by score. */
typedef struct scores {
    const kern_router_args *a;
    const float *logits;
    float max, sum;  /* of softmax */
    uint32_t groups; /* bit g: experts of group g may be chosen */
} scores;

static float score(const scores *s, uint32_t e)
{
    return s->a->scoring == KERN_SIGMOID ? 1.0f / (1.0f + expf(-s->logits[e])) : expf(s->logits[e] - s->max) / s->sum;
}

/* What expert e is chosen by; NaN where it may not be. */
static float choice(const scores *s, uint32_t e)
{
    const kern_router_args *a = s->a;
    if (a->n_groups > 1 && !(s->groups >> e / (a->n_experts / a->n_groups) & 1))
        return NAN;
    return score(s, e) + (a->bias ? a->bias[e] : 0.0f);
}

static uint32_t best_groups(const scores *s)
{
    const kern_router_args *a = s->a;
    const uint32_t size = a->n_experts / a->n_groups;
    float of[KERN_MAX_GROUPS];
    uint32_t ret = 0;
    for (uint32_t g = 0; g < a->n_groups; g++) {
        float best = -INFINITY, second = -INFINITY;
        for (uint32_t e = g * size; e < (g + 1) * size; e++) {
            float v = choice(s, e);
            if (v > best) {
                second = best;
                best = v;
            } else if (v > second) {
                second = v;
            }
        }
        of[g] = a->group_rank == KERN_GROUP_MAX ? best : best + second;
    }
    for (uint32_t g = 0; g < a->n_groups; g++) {
        uint32_t before = 0;
        for (uint32_t h = 0; h < a->n_groups; h++)
            before += of[h] > of[g] || (of[h] == of[g] && h < g);
        ret |= (uint32_t)(before < a->top_groups) << g;
    }
    return ret;
}

/* As router_pick(), by choice(); that of pick k is kept in by[k]. */
static void scores_pick(const scores *s, uint32_t *ids, float *by)
{
    const uint32_t top_k = s->a->top_k;
    uint32_t n = 0;
    for (uint32_t e = 0; e < s->a->n_experts; e++) {
        float v = choice(s, e);
        uint32_t at = n;
        while (at > 0 && (v > by[at - 1] || (by[at - 1] != by[at - 1] && v == v)))
            at--;
        if (at == top_k)
            continue;
        if (n < top_k)
            n++;
        memmove(ids + at + 1, ids + at, (n - 1 - at) * sizeof *ids);
        memmove(by + at + 1, by + at, (n - 1 - at) * sizeof *by);
        ids[at] = e;
        by[at] = v;
    }
}

static void router_scores(const router_job *j, const float *logits, uint32_t *ids, float *weights)
{
    const kern_router_args *a = j->a;
    scores s = {.a = a, .logits = logits, .groups = UINT32_MAX};
    if (a->scoring == KERN_SOFTMAX_TOPK) {
        s.max = j->rows->max(logits, a->n_experts);
        s.sum = j->rows->exp(NULL, logits, a->n_experts, 1.0f, s.max);
    }
    if (a->n_groups > 1)
        s.groups = best_groups(&s);
    scores_pick(&s, ids, weights);
    float sum = 0;
    for (uint32_t k = 0; k < a->top_k; k++) {
        weights[k] = score(&s, ids[k]);
        sum += weights[k];
    }
    const float by = a->norm_topk ? (sum < a->norm_min ? a->norm_min : sum) + a->norm_eps : 1.0f; /* NaN stays */
    for (uint32_t k = 0; k < a->top_k; k++)
        weights[k] =
            weights[k] / by * (a->scale != 0 ? a->scale : 1.0f) * (a->expert_scale ? a->expert_scale[ids[k]] : 1.0f);
}

static void router_token(const router_job *j, uint32_t t)
{
    const kern_router_args *a = j->a;
    const float *logits = a->logits + (size_t)t * a->n_experts;
    uint32_t *ids = a->ids + (size_t)t * a->top_k;
    float *weights = a->weights + (size_t)t * a->top_k;
    if (kern_router_is_plain(a))
        router_plain(j, logits, ids, weights);
    else if (a->scoring == KERN_SPARSEMIXER)
        router_mixer(a, logits, ids, weights);
    else
        router_scores(j, logits, ids, weights);
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
    if (!kern_router_is_known(a))
        return cpu_fail(d, KERN_UNSUPPORTED, "router: %u experts in %u groups, scoring %d", a->n_experts, a->n_groups,
                        (int)a->scoring);
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
