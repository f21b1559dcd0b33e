/* experts.c - random cases of the plan and the experts of a MoE layer, with pages on both sides, fill-through and halves of a layer. */
#include "tests/kern/kc.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct moe_case {
    kern_expert_geom g;
    uint32_t n_experts, top_k, n_tokens;
    uint8_t **pages; /* [n_experts * pages] */
    size_t *page_bytes;
    float *x, *y0, *weights;
    uint32_t *ids;
    kern_act act;
    float act_alpha, act_limit;
    float *bias[3]; /* of gate, up and down: [n_experts][rows]; or NULL */
    bool fill;
    uint32_t padded; /* rows beyond n_live */
    uint32_t split;  /* not 0: every so many-th expert is computed by a call of its own */
} moe_case;

/* The pairs of the experts that are every split-th, or of all others, as a plan of their own. */
static void plan_part(kc *k, kc_run *r, const moe_case *c, kern_moe_args *a, bool every)
{
    uint32_t n_picks = a->n_tokens * c->top_k, n = 0;
    uint32_t *start = KC_NEW(k, c->n_experts + 1, uint32_t), *pairs = KC_NEW(k, n_picks, uint32_t);
    uint32_t *all_start = KC_NEW(k, c->n_experts + 1, uint32_t), *all = KC_NEW(k, n_picks, uint32_t);
    kc_get(r, all_start, a->expert_start, (c->n_experts + 1) * 4);
    kc_get(r, all, a->pairs, all_start[c->n_experts] * 4);
    for (uint32_t e = 0; e < c->n_experts; e++) {
        for (uint32_t i = all_start[e]; i < all_start[e + 1] && (e % c->split == 0) == every; i++)
            pairs[n++] = all[i];
        start[e + 1] = n;
    }
    a->expert_start = kc_put(r, start, (c->n_experts + 1) * 4);
    a->pairs = kc_put(r, pairs, n_picks * 4);
}

static void run_moe(kc *k, kern_dev *d, const void *cv, const uint32_t *tokens, uint32_t n, float *out)
{
    const moe_case *c = cv;
    kc_run r = kc_begin(k, d);
    uint32_t rows = n + c->padded, n_pages = c->n_experts * c->g.pages, dm = c->g.d_model, top_k = c->top_k;
    uint32_t *padded_tokens = KC_NEW(k, rows, uint32_t);
    memcpy(padded_tokens, tokens, n * sizeof *tokens);

    kern_moe_args a = {.geom = c->g, .n_tokens = rows, .top_k = top_k, .n_experts = c->n_experts};
    a.act = c->act;
    a.act_alpha = c->act_alpha;
    a.act_limit = c->act_limit;
    const float **bias[] = {&a.gate_bias, &a.up_bias, &a.down_bias};
    for (uint32_t m = 0; m < 3; m++)
        if (c->bias[m])
            *bias[m] = kc_put(&r, c->bias[m], (size_t)c->n_experts * (m == 2 ? dm : c->g.d_ff) * 4);
    uint64_t *page_addr = KC_NEW(k, n_pages, uint64_t);
    for (uint32_t p = 0; p < n_pages; p++)
        page_addr[p] = (uint64_t)(uintptr_t)kc_put(&r, c->pages[p], c->page_bytes[p]);
    a.page_addr = kc_put(&r, page_addr, n_pages * sizeof *page_addr);
    a.x = kc_put(&r, kc_gather(k, c->x, dm * 4, padded_tokens, rows), (size_t)rows * dm * 4);
    a.y = kc_put(&r, kc_gather(k, c->y0, dm * 4, padded_tokens, rows), (size_t)rows * dm * 4);
    a.ids = kc_put(&r, kc_gather(k, c->ids, top_k * 4, padded_tokens, rows), (size_t)rows * top_k * 4);
    a.weights = kc_put(&r, kc_gather(k, c->weights, top_k * 4, padded_tokens, rows), (size_t)rows * top_k * 4);
    a.n_live = c->padded ? kc_put(&r, &n, sizeof n) : NULL;
    a.scratch = kc_room(&r, d->ops->moe_scratch_bytes(d, rows, top_k, c->n_experts, &c->g));

    kern_plan_args p = {.ids = a.ids,
                        .n_live = a.n_live,
                        .n_tokens = rows,
                        .top_k = top_k,
                        .n_experts = c->n_experts,
                        .pages = c->g.pages};
    p.expert_start = kc_room(&r, (c->n_experts + 1) * 4);
    p.pairs = kc_room(&r, (size_t)rows * top_k * 4);
    p.expert_count = kc_room(&r, c->n_experts * 4);
    uint32_t n_free = c->fill ? 4 : 0, used = 1; /* one slot was taken by an earlier layer */
    uint64_t slots[4] = {0};
    uint8_t *admit = NULL;
    size_t slot_bytes = 0;
    for (uint32_t i = 0; i < n_pages; i++)
        slot_bytes = KC_MAX(slot_bytes, c->page_bytes[i]);
    if (c->fill) {
        for (uint32_t i = 0; i < n_free; i++)
            slots[i] = (uint64_t)(uintptr_t)kc_room(&r, slot_bytes);
        p.free_slots = kc_put(&r, slots, sizeof slots);
        p.free_used = kc_put(&r, &used, sizeof used);
        p.fill_addr = kc_room(&r, n_pages * 8);
        p.fill_log = kc_room(&r, n_free * 4);
        p.page_addr = a.page_addr;
        p.fill_log_base = 1000;
        p.n_free = n_free;
        p.max_inserts = 2;
        /* every third expert is not worth a slot */
        admit = KC_NEW(k, c->n_experts, uint8_t);
        for (uint32_t e = 0; e < c->n_experts; e++)
            admit[e] = e % 3 != 2;
        p.admit = kc_put(&r, admit, c->n_experts);
        /* page 0 of expert 0 counts as VRAM */
        p.arena_begin = page_addr[0];
        p.arena_end = page_addr[0] + 1;
        a.fill_addr = p.fill_addr;
        a.arena_begin = p.arena_begin;
        a.arena_end = p.arena_end;
    } else if (c->n_experts % 2) {
        a.arena_end = UINT64_MAX; /* all of it is VRAM */
    }
    a.expert_start = p.expert_start;
    a.pairs = p.pairs;
    kc_status(&r, d->ops->plan(d, &p));
    for (int part = 0; part < 2 && c->split && d != k->ref; part++) {
        kern_moe_args half = a;
        half.partial = true;
        plan_part(k, &r, c, &half, part);
        kc_status(&r, d->ops->moe(d, &half));
    }
    if (!c->split || d == k->ref)
        kc_status(&r, d->ops->moe(d, &a));
    kc_get(&r, out, a.y, (size_t)n * dm * 4);

    uint32_t *start = KC_NEW(k, c->n_experts + 1, uint32_t), *pairs = KC_NEW(k, rows * top_k, uint32_t);
    uint32_t *count = KC_NEW(k, c->n_experts, uint32_t);
    kc_get(&r, start, p.expert_start, (c->n_experts + 1) * 4);
    kc_get(&r, pairs, p.pairs, (size_t)n * top_k * 4);
    kc_get(&r, count, p.expert_count, c->n_experts * 4);
    if (!k->case_unsupported) {
        if (start[0] != 0 || start[c->n_experts] != n * top_k)
            kc_fail(k, "plan: %u pairs instead of %u", start[c->n_experts], n * top_k);
        for (uint32_t e = 0; e < c->n_experts && !k->case_failed; e++) {
            if (count[e] != start[e + 1] - start[e])
                kc_fail(k, "plan: expert %u counted %u, holds %u", e, count[e], start[e + 1] - start[e]);
            for (uint32_t i = start[e]; i < start[e + 1]; i++)
                if (pairs[i] >= n * top_k || c->ids[tokens[pairs[i] / top_k] * top_k + pairs[i] % top_k] != e ||
                    (i > start[e] && pairs[i] <= pairs[i - 1]))
                    kc_fail(k, "plan: pair %u of expert %u is %u", i, e, pairs[i]);
        }
    }
    if (c->fill && !k->case_unsupported) {
        uint32_t now, log[4], expect[4], n_expect = 0;
        uint8_t *page = KC_NEW(k, slot_bytes, uint8_t);
        kc_get(&r, &now, p.free_used, 4);
        kc_get(&r, log, p.fill_log, sizeof log);
        for (uint32_t i = 1; i < n_pages && n_expect < 2; i++)
            if (count[i / c->g.pages] && admit[i / c->g.pages])
                expect[n_expect++] = i;
        if (now != used + n_expect)
            kc_fail(k, "fill: %u slots used instead of %u", now - used, n_expect);
        for (uint32_t i = 0; i < n_expect && !k->case_failed; i++) {
            if (log[used + i] != 1000 + expect[i])
                kc_fail(k, "fill: slot %u logged as %u instead of %u", i, log[used + i], 1000 + expect[i]);
            kc_get(&r, page, (const void *)(uintptr_t)slots[used + i], c->page_bytes[expect[i]]);
            if (memcmp(page, c->pages[expect[i]], c->page_bytes[expect[i]]) != 0)
                kc_fail(k, "fill: page %u did not arrive whole", expect[i]);
        }
    }
    kc_end(&r);
}

static double bias_of(const moe_case *c, uint32_t m, uint32_t expert, uint32_t row)
{
    return c->bias[m] ? (double)c->bias[m][(size_t)expert * (m == 2 ? c->g.d_model : c->g.d_ff) + row] : 0;
}

/* |silu(g)|, or |gelu(g)|, and |u| as they are multiplied. */
static void factors_of(const moe_case *c, double g, double u, double *ret_silu, double *ret_up)
{
    double alpha = 1, limit = (double)c->act_limit;
    if (c->act == KERN_SWIGLU_CLAMPED) {
        alpha = (double)c->act_alpha;
        g = fmin(g, limit);
        u = fmax(-limit, fmin(u, limit)) + 1;
    }
    if (c->act == KERN_SWIGLU_LIMITED)
        u = fmax(-limit, fmin(u, limit)); /* silu(g) beyond the limit is no error of its own */
    if (c->act == KERN_GEGLU)
        alpha = (double)KERN_GELU_A + (double)KERN_GELU_B * g * g;
    *ret_silu = fabs(g / (1 + exp(-alpha * g)));
    *ret_up = fabs(u);
}

/* What an error of 1 in each product (relative to its sum of magnitudes) does to y: the products of gate and up enter hidden by
 * silu' and gelu' <= 1.13 and by each other's value, those of max(v, 0)^2 by twice that, and hidden enters down. */
static float *moe_magnitude(kc *k, const moe_case *c, uint8_t *const *matrices)
{
    const uint32_t dm = c->g.d_model, ff = c->g.d_ff;
    float *out = KC_NEW(k, c->n_tokens * dm, float), **w = KC_NEW(k, c->n_experts * 3, float *);
    for (uint32_t i = 0; i < c->n_experts * 3; i++) {
        uint32_t cols = i % 3 == 2 ? ff : dm;
        w[i] = kc_decoded(k, (kern_mat){.data = matrices[i],
                                        .row_bytes = kern_row_bytes(c->g.fmt[i % 3], cols),
                                        .rows = kern_expert_rows(&c->g, (int)(i % 3)),
                                        .cols = cols,
                                        .fmt = c->g.fmt[i % 3]});
    }
    const double lost = kc_lost_when_split(k, "moe");
    double *hidden = KC_NEW(k, ff, double), *value = KC_NEW(k, ff, double);
    for (uint32_t t = 0; t < c->n_tokens; t++) {
        const float *x = c->x + (size_t)t * dm;
        for (uint32_t i = 0; i < dm; i++)
            out[(size_t)t * dm + i] = fabsf(c->y0[(size_t)t * dm + i]);
        for (uint32_t p = 0; p < c->top_k; p++) {
            uint32_t expert = c->ids[t * c->top_k + p];
            float *const *m = w + (size_t)expert * 3;
            for (uint32_t f = 0; f < ff && c->g.halves; f++) {
                double v = 0, mag = 0;
                for (uint32_t i = 0; i < dm; i++) {
                    double wi = (double)m[f >= ff / 2][(size_t)(f % (ff / 2)) * dm + i], xi = (double)x[i];
                    v += wi * xi;
                    mag += fabs(wi * xi) + lost * (fabs(wi) + fabs(xi));
                }
                value[f] = v > 0 ? v * v : 0;
                hidden[f] = 2 * fabs(v) * mag + value[f];
            }
            for (uint32_t f = 0; f < ff && !c->g.halves; f++) {
                double g = bias_of(c, 0, expert, f), u = bias_of(c, 1, expert, f), g_mag = fabs(g), u_mag = fabs(u);
                for (uint32_t i = 0; i < dm; i++) {
                    double gw = (double)m[0][(size_t)f * dm + i], uw = (double)m[1][(size_t)f * dm + i];
                    double xi = (double)x[i];
                    g += gw * xi;
                    u += uw * xi;
                    g_mag += fabs(gw * xi) + lost * (fabs(gw) + fabs(xi));
                    u_mag += fabs(uw * xi) + lost * (fabs(uw) + fabs(xi));
                }
                double silu, up;
                factors_of(c, g, u, &silu, &up);
                value[f] = silu * up;
                hidden[f] = 1.13 * g_mag * up + silu * u_mag + value[f];
            }
            double weight = fabs((double)c->weights[t * c->top_k + p]);
            for (uint32_t i = 0; i < dm; i++) {
                double sum = fabs(bias_of(c, 2, expert, i));
                for (uint32_t f = 0; f < ff; f++) {
                    double q = (double)m[2][(size_t)i * ff + f];
                    sum += fabs(q) * hidden[f] + lost * (fabs(q) + value[f]);
                }
                out[(size_t)t * dm + i] += (float)(weight * sum);
            }
        }
    }
    return out;
}

/* Shapes, buckets and what else is asked for; nothing is filled in. */
static moe_case any_moe(kc *k, kern_fmt fmt, kern_fmt down)
{
    uint32_t block = KC_MAX(4u, kc_block(k, fmt)), most = kern_cuts_blocks(fmt) ? 80 : block == 256 ? 2 : 12;
    uint32_t down_block = KC_MAX(4u, kc_block(k, down)), down_most = kern_cuts_blocks(down) ? 80
                                                                     : down_block == 256    ? 2
                                                                                            : 9;
    kern_expert_geom g = {.fmt = {fmt, fmt, down},
                          .d_model = block * kc_between(k, 1, most),
                          .d_ff = down_block * kc_between(k, 1, down_most)};
    moe_case c = {.g = g, .n_experts = kc_between(k, 2, 12), .n_tokens = kc_any_tokens(k)};
    c.top_k = kc_between(k, 1, KC_MIN(c.n_experts, 5u));
    c.fill = kc_below(k, 2);
    c.padded = kc_below(k, 2) ? 0 : kc_between(k, 1, 5);
    if (kc_below(k, 3) == 0) { /* as gpt-oss has them */
        c.act = KERN_SWIGLU_CLAMPED;
        c.act_alpha = 1.702f;
        c.act_limit = (float)kc_between(k, 1, 9);
    } else if (kc_below(k, 3) == 0) {
        c.act = KERN_GEGLU;
    } else if (kc_below(k, 2) == 0) {
        c.act = KERN_RELU2;
    } else if (kc_below(k, 2) == 0) {
        c.act = KERN_SWIGLU_LIMITED;
        c.act_limit = (float)kc_between(k, 1, 3);
    }
    return c;
}

/* Weights of F32 with scales of their own for gate, up and down; NULL: any temper. */
static void check_moe(kc *k, moe_case c, const float *scales)
{
    static const char *const acts[] = {[KERN_SWIGLU] = "",
                                       [KERN_SWIGLU_CLAMPED] = " clamped",
                                       [KERN_SWIGLU_LIMITED] = " limited",
                                       [KERN_GEGLU] = " geglu",
                                       [KERN_RELU2] = " relu2"};
    kern_expert_geom g = c.g;
    g.halves = c.act == KERN_RELU2;
    g.d_ff += g.halves ? g.d_ff % 2 : 0;
    c.split = c.fill || scales ? 0 : kc_below(k, 4);
    kc_case(k, "moe %s %s d_model %u d_ff %u experts %u top_k %u tokens %u fill %d padded %u split %u%s%s",
            kern_fmt_get(g.fmt[0]).name, kern_fmt_get(g.fmt[2]).name, g.d_model, g.d_ff, c.n_experts, c.top_k,
            c.n_tokens, c.fill, c.padded, c.split, scales ? " scaled" : "", acts[c.act]);
    for (uint32_t m = 0; m < 3 && c.act == KERN_SWIGLU_CLAMPED && !scales; m++) {
        size_t n = (size_t)c.n_experts * (m == 2 ? g.d_model : g.d_ff);
        c.bias[m] = KC_NEW(k, n, float);
        kc_fill_scaled(k, c.bias[m], n, c.act_limit);
    }

    for (uint32_t m = 0; m < 3; m++) {
        uint32_t rows = kern_expert_rows(&g, (int)m);
        g.row_bytes[m] = kern_row_bytes(g.fmt[m], m == 2 ? g.d_ff : g.d_model);
        g.page_rows[m] = kc_below(k, 2) ? rows : kc_between(k, 1 + rows / 5, rows);
        if (m == 1 && kc_takes_all(k, c.n_tokens))
            g.page_rows[1] = g.page_rows[0];
        g.first_page[m] = g.pages;
        g.pages += (rows + g.page_rows[m] - 1) / g.page_rows[m];
    }
    c.g = g;
    c.pages = KC_NEW(k, c.n_experts * g.pages, uint8_t *);
    c.page_bytes = KC_NEW(k, c.n_experts * g.pages, size_t);
    uint8_t **matrices = KC_NEW(k, c.n_experts * 3, uint8_t *);
    for (uint32_t e = 0; e < c.n_experts; e++)
        for (uint32_t m = 0; m < 3; m++) {
            uint32_t rows = kern_expert_rows(&g, (int)m), cols = m == 2 ? g.d_ff : g.d_model;
            uint8_t *w = matrices[e * 3 + m] = kc_weights(k, g.fmt[m], rows, cols);
            if (scales)
                kc_fill_scaled(k, (float *)(void *)w, (size_t)rows * cols, scales[m]);
            for (uint32_t at = 0, p = e * g.pages + g.first_page[m]; at < rows; at += g.page_rows[m], p++) {
                c.pages[p] = w + at * g.row_bytes[m];
                c.page_bytes[p] = KC_MIN(rows - at, g.page_rows[m]) * g.row_bytes[m];
            }
        }
    c.x = KC_NEW(k, c.n_tokens * g.d_model, float);
    c.y0 = KC_NEW(k, c.n_tokens * g.d_model, float);
    c.weights = KC_NEW(k, c.n_tokens * c.top_k, float);
    c.ids = KC_NEW(k, c.n_tokens * c.top_k, uint32_t);
    kc_fill_scaled(k, c.x, (size_t)c.n_tokens * g.d_model, 0.2f);
    kc_fill_scaled(k, c.weights, (size_t)c.n_tokens * c.top_k, 1);
    for (uint32_t t = 0; t < c.n_tokens; t++)
        for (uint32_t i = 0; i < c.top_k; i++) {
            uint32_t e, j;
            do {
                /* lopsided, so that some buckets are large and some experts untouched */
                e = kc_below(k, 1 + kc_below(k, c.n_experts));
                for (j = 0; j < i && c.ids[t * c.top_k + j] != e; j++)
                    ;
            } while (j < i);
            c.ids[t * c.top_k + i] = e;
        }
    kc_check_op(k, run_moe, &c, c.n_tokens, g.d_model, moe_magnitude(k, &c, matrices), kc_tol(k, "moe"));
}

void case_moe(kc *k)
{
    kern_fmt fmt = kc_any_fmt(k), down = kc_below(k, 3) ? fmt : kc_any_fmt(k);
    check_moe(k, any_moe(k, fmt, down), NULL);
}

void case_moe_tiny(kc *k)
{
    static const float scales[][3] = {{1, 1e-37f, 1e14f}, {1, 1e14f, 1e-37f}, {1e-37f, 1e14f, 1e20f}};
    const float *all = scales[kc_below(k, 3)];
    moe_case c = any_moe(k, FMT_F32, FMT_F32);
    if (c.act == KERN_RELU2) /* squares would be beyond float */
        c.act = KERN_SWIGLU;
    check_moe(k, c, all);
}

/* Several groups of 32 tokens a bucket, and the products of gate and up take many times as long as those of down: who goes on to down
 * before all of what it needs is there finds NaN. */
void case_moe_groups(kc *k)
{
    static const float ones[] = {1, 1, 1}; /* larger weights of F32 would have results beyond float */
    kern_fmt fmt = kc_any_fmt(k);
    moe_case c = any_moe(k, fmt, fmt);
    c.g.d_model = 256 * kc_between(k, 3, 4);
    c.g.d_ff = KC_MAX(8u, kc_block(k, fmt));
    c.n_experts = kc_between(k, 2, 3);
    c.top_k = kc_between(k, 1, 2);
    c.n_tokens = kc_between(k, 65, 128);
    check_moe(k, c, fmt == FMT_F32 ? ones : NULL);
}

/* Short rows, and so many that a block gets more of them than it has room for: who mistakes one round of a ring for another finds what
 * was there before. All on one side (an odd number of experts). */
void case_moe_many(kc *k)
{
    static const float ones[] = {1, 1, 1};
    static const kern_fmt fmts[] = {FMT_Q8_0, FMT_BF16, FMT_F16, FMT_F32};
    const kern_fmt fmt = fmts[kc_below(k, 4)];
    moe_case c = {
        .g = {.fmt = {fmt, fmt, fmt}, .d_model = 256 * kc_between(k, 1, 2), .d_ff = 128 * kc_between(k, 1, 4)},
        .n_experts = 25,
        .top_k = 5,
        .n_tokens = kc_between(k, 5, 8)};
    check_moe(k, c, fmt == FMT_F32 ? ones : NULL);
}
