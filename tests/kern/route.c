/* route.c - kerncheck's cases of the router: by itself, and route: a layer's norm, router, choice and plan in one operation give the bits of the
 * operations one by one (linear.c, this file, experts.c). */
#include "tests/kern/kc.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- router ------------------------------------------------------------------------------------------------------------------ */
typedef struct router_case {
    float *logits;
    kern_router_args a; /* pointers are the host's */
} router_case;

static void run_router(kc *k, kern_dev *d, const void *cv, const uint32_t *tokens, uint32_t n, float *out)
{
    const router_case *c = cv;
    kc_run r = kc_begin(k, d);
    kern_router_args a = c->a;
    uint32_t *ids = KC_NEW(k, n * a.top_k, uint32_t);
    float *weights = KC_NEW(k, n * a.top_k, float);
    size_t row = a.n_experts * sizeof(float), bytes = (size_t)n * a.top_k * 4;
    a.n_tokens = n;
    a.logits = kc_put(&r, kc_gather(k, c->logits, row, tokens, n), n * row);
    a.bias = a.bias ? kc_put(&r, a.bias, row) : NULL;
    a.expert_scale = a.expert_scale ? kc_put(&r, a.expert_scale, row) : NULL;
    a.ids = kc_room(&r, bytes);
    a.weights = kc_room(&r, bytes);
    kc_status(&r, d->ops->router(d, &a));
    kc_get(&r, ids, a.ids, bytes);
    kc_get(&r, weights, a.weights, bytes);
    for (uint32_t t = 0; t < n; t++)
        for (uint32_t i = 0; i < a.top_k; i++) {
            out[t * 2 * a.top_k + i] = weights[t * a.top_k + i];
            /* a wrong id is worth a thousand: beyond any tolerance */
            out[(t * 2 + 1) * a.top_k + i] = 1000.0f * (float)ids[t * a.top_k + i];
        }
    kc_end(&r);
}

static int descending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

/* Sorted values of which the first n are taken: two that differ by no more than rounding, so that either may be. Not ties, whose inputs are
 * the same. */
static bool is_close(double *by, uint32_t n, uint32_t of)
{
    qsort(by, of, sizeof *by, descending);
    for (uint32_t i = 1; i < of && i <= n; i++)
        if (by[i - 1] - by[i] < 2e-6 && by[i - 1] != by[i])
            return true;
    return false;
}

static bool router_is_close(kc *k, const kern_router_args *a, const float *logits)
{
    double *by = KC_NEW(k, a->n_experts, double), sum = 0, of[KERN_MAX_GROUPS], sorted[KERN_MAX_GROUPS];
    for (uint32_t e = 0; e < a->n_experts; e++)
        sum += exp(logits[e]);
    for (uint32_t e = 0; e < a->n_experts; e++)
        by[e] = (a->scoring == KERN_SIGMOID ? 1 / (1 + exp(-logits[e])) : exp(logits[e]) / sum) +
                (a->bias ? a->bias[e] : 0);
    if (!a->n_groups)
        return is_close(by, a->top_k, a->n_experts);
    uint32_t size = a->n_experts / a->n_groups, n = 0;
    for (uint32_t g = 0; g < a->n_groups; g++) {
        double best = -INFINITY, second = -INFINITY;
        for (uint32_t e = g * size; e < (g + 1) * size; e++) {
            second = fmax(second, fmin(best, by[e]));
            best = fmax(best, by[e]);
        }
        of[g] = sorted[g] = a->group_rank == KERN_GROUP_MAX ? best : best + second;
    }
    if (is_close(sorted, a->top_groups, a->n_groups))
        return true;
    for (uint32_t g = 0; g < a->n_groups; g++) {
        bool kept = of[g] >= sorted[a->top_groups - 1]; /* of tied groups it does not matter here which */
        for (uint32_t e = g * size; kept && e < (g + 1) * size; e++)
            by[n++] = by[e];
    }
    return is_close(by, a->top_k, n);
}

static void router_not_plain(kc *k, kern_router_args *a)
{
    a->scoring = kc_below(k, 2) ? KERN_SIGMOID : KERN_SOFTMAX_TOPK;
    if (kc_below(k, 2) && a->n_experts >= 8) {
        a->n_groups = 2u << kc_below(k, 2);
        a->top_groups = kc_between(k, 1, a->n_groups);
        a->group_rank = (kern_group_rank)kc_below(k, 2);
        a->top_k = KC_MIN(a->top_k, a->n_experts / a->n_groups * a->top_groups);
    }
    a->norm_min = kc_below(k, 2) ? 0.5f : 0;
    a->norm_eps = kc_below(k, 2) ? 1e-20f : 0;
    a->scale = kc_below(k, 2) ? 2.5f : 0;
}

static void router_mixer(kc *k, kern_router_args *a)
{
    static const float spreads[] = {0, 0.02f, 0.3f, 1.5f};
    a->scoring = KERN_SPARSEMIXER;
    a->norm_topk = false;
    a->spread = spreads[kc_below(k, 4)];
}

void case_router(kc *k)
{
    static const uint32_t sizes[] = {2, 8, 60, 64, 128, 256, 512};
    router_case c = {.a = {.n_experts = sizes[kc_below(k, 7)],
                           .scoring = (kern_scoring)kc_below(k, 2),
                           .norm_topk = kc_below(k, 2)}};
    kern_router_args *a = &c.a;
    a->top_k = kc_between(k, 1, KC_MIN(a->n_experts, 10u));
    const bool mixer = kc_below(k, 4) == 0, plain = mixer || kc_below(k, 2), biased = !plain && kc_below(k, 2),
               scaled = !plain && kc_below(k, 2);
    if (mixer)
        router_mixer(k, a);
    else if (!plain)
        router_not_plain(k, a);
    uint32_t n = kc_any_tokens(k);
    kc_case(k,
            "router %u of %u scoring %d spread %g norm %d (%g %g) bias %d groups %u of %u by %d scale %g%s tokens %u",
            a->top_k, a->n_experts, (int)a->scoring, (double)a->spread, a->norm_topk, (double)a->norm_min,
            (double)a->norm_eps, biased, a->top_groups, a->n_groups, (int)a->group_rank, (double)a->scale,
            scaled ? " and each" : "", n);
    c.logits = KC_NEW(k, n * a->n_experts, float);
    float *bias = KC_NEW(k, a->n_experts, float);
    for (uint32_t e = 0; e < a->n_experts; e++)
        bias[e] = ((float)kc_below(k, 41) - 20) / 64;
    a->bias = biased ? bias : NULL;
    float *scales = KC_NEW(k, a->n_experts, float);
    for (uint32_t e = 0; e < a->n_experts; e++)
        scales[e] = 0.5f + kc_uniform(k) / 2;
    a->expert_scale = scaled ? scales : NULL;
    bool ties = kc_below(k, 2);
    for (uint32_t t = 0; t < n; t++) {
        float *row = c.logits + (size_t)t * a->n_experts;
        do {
            kc_fill_scaled(k, row, a->n_experts, 3);
            for (uint32_t i = 0; ties && i < a->n_experts; i++)
                row[i] = roundf(row[i]);
        } while (!plain && router_is_close(k, a, row));
    }
    float *magnitude = KC_NEW(k, n * 2 * a->top_k, float);
    for (uint32_t i = 0; i < n * 2 * a->top_k; i++)
        magnitude[i] = 1;
    kc_check_op(k, run_router, &c, n, 2 * a->top_k, magnitude, kc_tol(k, "router"));
}

/* ---- route ------------------------------------------------------------------------------------------------------------------- */
typedef struct route_case {
    kern_mat w; /* the host's, as all that follows */
    kern_router_args pick;
    float *x, *norm, *bias;
    uint32_t n, n_live, free_slots;
    uint64_t *page_addr, *slots;
    uint8_t *admit;
} route_case;

enum { PAGES = 3, ARENA = 1 << 20 };

/* All results in one run of words. */
static uint32_t *run_route(kc *k, const route_case *c, bool whole, size_t *ret_bytes)
{
    kc_run r = kc_begin(k, k->dev);
    const uint32_t experts = c->pick.n_experts, picks = c->n * c->pick.top_k, entries = experts * PAGES;
    const size_t x_bytes = (size_t)c->n * c->w.cols * sizeof(float);
    uint32_t used = 1, log[64] = {0};
    kern_linear_args logits = {.x = kc_put(&r, c->x, x_bytes),
                               .w = c->w,
                               .n_tokens = c->n,
                               .x_stride = c->w.cols,
                               .y_stride = experts,
                               .norm = c->norm ? kc_put(&r, c->norm, c->w.cols * sizeof(float)) : NULL,
                               .norm_eps = 1e-6f};
    logits.w.data = kc_put(&r, c->w.data, c->w.rows * c->w.row_bytes);
    logits.bias = c->bias ? kc_put(&r, c->bias, experts * sizeof(float)) : NULL;
    logits.y = kc_room(&r, (size_t)c->n * experts * sizeof(float));
    logits.normed = kc_put(&r, KC_NEW(k, c->n * c->w.cols, float), x_bytes);
    kern_router_args pick = c->pick;
    pick.logits = logits.y;
    pick.n_tokens = c->n;
    pick.bias = pick.bias ? kc_put(&r, pick.bias, experts * sizeof(float)) : NULL;
    pick.expert_scale = pick.expert_scale ? kc_put(&r, pick.expert_scale, experts * sizeof(float)) : NULL;
    pick.ids = kc_room(&r, picks * 4);
    pick.weights = kc_room(&r, picks * 4);
    kern_plan_args plan = {.ids = pick.ids,
                           .n_live = kc_put(&r, &c->n_live, 4),
                           .n_tokens = c->n,
                           .top_k = pick.top_k,
                           .n_experts = experts,
                           .expert_start = kc_put(&r, KC_NEW(k, experts + 1, uint32_t), (experts + 1) * 4),
                           .pairs = kc_put(&r, KC_NEW(k, picks, uint32_t), picks * 4),
                           .expert_count = kc_put(&r, KC_NEW(k, experts, uint32_t), experts * 4)};
    if (c->free_slots) {
        plan.page_addr = kc_put(&r, c->page_addr, entries * sizeof(uint64_t));
        plan.arena_begin = ARENA;
        plan.arena_end = 2 * ARENA;
        plan.pages = PAGES;
        plan.free_slots = kc_put(&r, c->slots, c->free_slots * sizeof(uint64_t));
        plan.n_free = c->free_slots;
        plan.max_inserts = c->free_slots / 2 + 1;
        plan.free_used = kc_put(&r, &used, 4);
        plan.admit = c->admit ? kc_put(&r, c->admit, experts) : NULL;
        plan.fill_addr = kc_room(&r, entries * sizeof(uint64_t));
        plan.fill_log = kc_put(&r, log, sizeof log);
    }
    const kern_ops *ops = k->dev->ops;
    if (whole) {
        kc_status(&r, ops->route(k->dev, &logits, &pick, &plan, NULL));
    } else {
        kc_status(&r, ops->linear(k->dev, &logits));
        kc_status(&r, ops->router(k->dev, &pick));
        kc_status(&r, ops->plan(k->dev, &plan));
    }
    const struct {
        const void *p;
        size_t bytes;
    } out[] = {{logits.y, (size_t)c->n * experts * 4},
               {logits.normed, x_bytes},
               {pick.ids, picks * 4},
               {pick.weights, picks * 4},
               {plan.expert_start, (experts + 1) * 4},
               {plan.expert_count, experts * 4},
               {plan.pairs, picks * 4},
               {plan.fill_addr, entries * sizeof(uint64_t)},
               {plan.fill_log, sizeof log},
               {plan.free_used, 4}};
    const size_t n_out = sizeof out / sizeof *out - (c->free_slots ? 0 : 3);
    size_t at = 0;
    for (size_t i = 0; i < n_out; i++)
        at += out[i].bytes;
    char *all = kc_alloc(k, at);
    *ret_bytes = at;
    at = 0;
    for (size_t i = 0; i < n_out; at += out[i++].bytes)
        kc_get(&r, all + at, out[i].p, out[i].bytes);
    kc_end(&r);
    return (uint32_t *)(void *)all;
}

void case_route(kc *k)
{
    static const kern_fmt fmts[] = {FMT_F32, FMT_BF16, FMT_F16, FMT_Q8_0};
    static const uint32_t sizes[] = {6, 8, 60, 64, 128, 256, 384, 512};
    const kern_fmt fmt = fmts[kc_below(k, kc_below(k, 2) ? 2 : 4)];
    const uint32_t experts = sizes[kc_below(k, 8)], cols = 32 * kc_between(k, 1, kc_below(k, 2) ? 16 : 128);
    route_case c = {.n = kc_below(k, 2) ? 1 : kc_between(k, 2, 12)};
    c.pick =
        (kern_router_args){.n_experts = experts, .scoring = (kern_scoring)kc_below(k, 2), .norm_topk = kc_below(k, 2)};
    c.pick.top_k = kc_between(k, 1, KC_MIN(experts, 10u));
    const bool mixer = kc_below(k, 6) == 0, plain = mixer || kc_below(k, 3) == 0, biased = !plain && kc_below(k, 2);
    if (mixer)
        router_mixer(k, &c.pick);
    else if (!plain)
        router_not_plain(k, &c.pick);
    c.n_live = kc_between(k, 1, c.n);
    c.free_slots = kc_below(k, 2) ? kc_between(k, 2, 64) : 0;
    kc_case(k, "route %s %u of %u cols %u scoring %d norm %d bias %d groups %u of %u scale %g tokens %u slots %u",
            kern_fmt_get(fmt).name, c.pick.top_k, experts, cols, (int)c.pick.scoring, c.pick.norm_topk, biased,
            c.pick.top_groups, c.pick.n_groups, (double)c.pick.scale, c.n, c.free_slots);
    if (biased) {
        float *bias = KC_NEW(k, experts, float);
        kc_fill_scaled(k, bias, experts, 0.3f);
        c.pick.bias = bias;
    }
    if (!plain && kc_below(k, 2)) {
        float *scales = KC_NEW(k, experts, float);
        kc_fill_scaled(k, scales, experts, 1);
        c.pick.expert_scale = scales;
    }
    c.w = (kern_mat){.data = kc_weights(k, fmt, experts, cols),
                     .row_bytes = kern_row_bytes(fmt, cols),
                     .rows = experts,
                     .cols = cols,
                     .fmt = fmt};
    c.x = KC_NEW(k, c.n * cols, float);
    if (kc_below(k, 4)) {
        kc_fill(k, c.x, (size_t)c.n * cols);
        kc_fill_scaled(k, c.norm = KC_NEW(k, cols, float), cols, 0.1f);
    } else {
        kc_fill_scaled(k, c.x, (size_t)c.n * cols, 1);
    }
    if (kc_below(k, 2))
        kc_fill_scaled(k, c.bias = KC_NEW(k, experts, float), experts, 1);
    c.page_addr = KC_NEW(k, experts * PAGES, uint64_t);
    for (uint32_t i = 0; i < experts * PAGES; i++)
        c.page_addr[i] = kc_below(k, 2) ? ARENA + 16 * i : 4 * ARENA + 16 * i;
    c.slots = KC_NEW(k, 64, uint64_t);
    for (uint32_t i = 0; i < 64; i++)
        c.slots[i] = ARENA + 4096 * (i + 1);
    if (kc_below(k, 2)) {
        c.admit = KC_NEW(k, experts, uint8_t);
        for (uint32_t e = 0; e < experts; e++)
            c.admit[e] = (uint8_t)kc_below(k, 2);
    }
    size_t bytes, parts_bytes;
    const uint32_t *whole = run_route(k, &c, true, &bytes), *parts = run_route(k, &c, false, &parts_bytes);
    if (k->case_unsupported)
        return;
    for (size_t i = 0; i < bytes / 4; i++)
        if (whole[i] != parts[i]) {
            kc_fail(k, "word %zu of %zu is %08x, by its parts %08x", i, bytes / 4, whole[i], parts[i]);
            return;
        }
}
