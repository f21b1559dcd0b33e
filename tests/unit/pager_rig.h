/* pager_rig.h - a small model, a CPU device and a pager, and steps over it, for the tests of the pager's parts. */
#ifndef TESTS_PAGER_RIG_H
#define TESTS_PAGER_RIG_H

#include <criterion/criterion.h>
#include <string.h>

#include "engine/memory/pager.h"

/* The tests play the kernels: on the CPU device addresses are host pointers. A "step" runs the real plan operation on random picks,
 * compares every byte of every page it would read with the model's file, and fills the slots it was told to fill. */
typedef struct rig {
    kern_dev *dev;
    model *m;
    config *cfg;
    pager *p;
    uint64_t rng;
    uint32_t n_tokens, top_k;
    uint32_t *ids, *starts, *pairs;
    uint64_t cpu_bytes,
        link_bytes;    /* of experts that steps left to the CPU; that kernels read in place in divided layers */
    share_costs costs; /* zeroed: all is left to the CPU */
} rig;

static uint32_t rnd(rig *r, uint32_t n)
{
    r->rng = r->rng * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(r->rng >> 33) % n;
}

static void rig_open_model(rig *r, uint64_t page_size)
{
    xd_err err = {0};
    kern_options ko = {.n_threads = 1, .numa_node = -1};
    cr_assert_eq(kern_cpu_open(&ko, &r->dev), KERN_OK);
    model_options mo = {.path = "synthetic:tiny", .dtype = "bf16", .seed = 1};
    cr_assert_eq(model_open(&mo, &r->m, &err), XD_OK, "%s", err.msg);
    cr_assert_eq(conf_defaults(&r->cfg, &err), XD_OK, "%s", err.msg);
    r->cfg->memory.page_size = page_size;
    r->cfg->pager.warm_start = false;
    r->rng = 1;
    r->n_tokens = 3;
    r->top_k = model_get_params(r->m)->top_k_max;
    uint32_t n = 64 * r->top_k;
    r->ids = malloc(n * sizeof *r->ids);
    r->pairs = malloc(n * sizeof *r->pairs);
    r->starts = malloc((model_get_params(r->m)->n_experts_max + 1) * sizeof *r->starts);
}

static void rig_open(rig *r, uint64_t arena_bytes)
{
    xd_err err = {0};
    pager_options po = {.dev = r->dev, .m = r->m, .cfg = r->cfg, .arena_bytes = arena_bytes};
    cr_assert_eq(pager_open(&po, &r->p, &err), XD_OK, "%s", err.msg);
}

static void rig_close(rig *r)
{
    pager_free(r->p);
    model_free(r->m);
    conf_free(r->cfg);
    r->dev->ops->close(r->dev);
    free(r->ids), free(r->pairs), free(r->starts);
}

static inline pager_stats stats(rig *r)
{
    pager_stats st;
    pager_get_stats(r->p, &st);
    return st;
}

/* The file's bytes of a page, from the tensor alone. */
static const char *page_of_file(const rig *r, uint32_t l, uint32_t e, uint32_t pg, uint64_t *ret_bytes)
{
    kern_expert_geom g;
    const model_layer *y = model_get_layer(r->m, l);
    cr_assert_eq(pager_geometry(y, model_get_params(r->m)->d_model, r->cfg->memory.page_size, &g, NULL), XD_OK);
    uint32_t m = 0;
    while (m < 2 && pg >= g.first_page[m + 1])
        m++;
    const model_tensor *t = &y->experts[e * MODEL_MATRICES + m];
    uint32_t row = (pg - g.first_page[m]) * g.page_rows[m];
    *ret_bytes = XD_MIN(g.page_rows[m], t->rows - row) * g.row_bytes[m];
    return (const char *)t->data + row * g.row_bytes[m];
}

static void plan(rig *r, const pager_view *v, uint32_t l)
{
    const pager_layer_view *y = &v->layers[l];
    kern_plan_args a = {.ids = r->ids,
                        .n_tokens = r->n_tokens,
                        .top_k = r->top_k,
                        .n_experts = y->n_experts,
                        .expert_start = r->starts,
                        .pairs = r->pairs,
                        .expert_count = y->expert_count};
    if (y->fill_addr) {
        a.page_addr = y->page_addr, a.arena_begin = v->arena_begin, a.arena_end = v->arena_end;
        a.pages = y->geom.pages, a.free_slots = v->free_slots, a.n_free = v->n_free, a.max_inserts = v->max_inserts;
        a.free_used = v->free_used, a.admit = y->admit, a.fill_addr = y->fill_addr, a.fill_log = v->fill_log;
        a.fill_log_base = y->fill_log_base;
    }
    cr_assert_eq(r->dev->ops->plan(r->dev, &a), KERN_OK);
}

static void read_layer(rig *r, const pager_view *v, uint32_t l)
{
    const pager_layer_view *y = &v->layers[l];
    for (uint32_t e = 0; e < y->n_experts; e++) {
        if (!y->expert_count[e])
            continue;
        for (uint32_t i = 0; i < y->geom.pages; i++) {
            uint64_t bytes, at = y->page_addr[e * y->geom.pages + i];
            const char *want = page_of_file(r, l, e, i, &bytes);
            cr_assert_eq(memcmp((const void *)(uintptr_t)at, want, bytes), 0, "layer %u expert %u page %u", l, e, i);
            uint64_t fill = y->fill_addr ? y->fill_addr[e * y->geom.pages + i] : 0;
            if (fill && !(at >= v->arena_begin && at < v->arena_end)) /* kernels fill from host memory only */
                memcpy((void *)(uintptr_t)fill, want, bytes);
        }
    }
}

/* The share of the CPU: read where it is said to lie, and then no longer the kernels' business. What these are to keep they store. */
static void read_cpu_share(rig *r, const pager_view *v, uint32_t l)
{
    const pager_layer_view *y = &v->layers[l];
    pager_share share = {0};
    share_costs costs = r->costs;
    uint64_t on_cpu = 0, over_link = 0;
    bool any = pager_share_layer(r->p, l, y->expert_count, &costs, &share), seen = false;
    for (uint32_t e = 0; any && e < y->n_experts; e++) {
        bool cpu = y->expert_count[e] && share.on_cpu[e];
        for (uint32_t i = 0; i < y->geom.pages; i++) {
            uint64_t bytes, at = y->page_addr[e * y->geom.pages + i];
            uint64_t fill = share.fill_addr ? share.fill_addr[e * y->geom.pages + i] : 0;
            const char *want = page_of_file(r, l, e, i, &bytes);
            bool in_vram = at >= v->arena_begin && at < v->arena_end;
            cr_assert(!fill || (y->expert_count[e] && !cpu && !in_vram), "layer %u expert %u page %u", l, e, i);
            if (fill)
                memcpy((void *)(uintptr_t)fill, want, bytes);
            if (cpu) {
                const void *host = (const void *)(uintptr_t)share.host_addr[e * y->geom.pages + i];
                cr_assert_eq(memcmp(host, want, bytes), 0, "layer %u expert %u page %u", l, e, i);
                on_cpu += bytes;
            } else if (y->expert_count[e] && !in_vram) {
                over_link += bytes;
            }
            seen = seen || (y->expert_count[e] && !in_vram);
        }
        if (cpu)
            y->expert_count[e] = 0; /* for read_layer(); the caller puts it back */
    }
    cr_assert_eq(any, seen || on_cpu);
    if (any) {
        cr_assert_eq(share.cpu_bytes, on_cpu);
        cr_assert_eq(share.link_bytes, over_link);
    }
    r->cpu_bytes += on_cpu;
    r->link_bytes += over_link;
}

static void pick(rig *r, uint32_t l)
{
    uint32_t n = model_get_layer(r->m, l)->n_experts;
    for (uint32_t t = 0; t < r->n_tokens; t++)
        for (uint32_t k = 0; k < r->top_k; k++) {
            uint32_t *row = r->ids + t * r->top_k;
            bool again;
            do {
                row[k] = rnd(r, 2) ? rnd(r, n) : rnd(r, n / 4);
                again = false;
                for (uint32_t j = 0; j < k; j++)
                    again = again || row[j] == row[k];
            } while (again);
        }
}

/* Returns what require said; the step is given up when it failed. */
static xd_status try_step(rig *r, bool prefill, xd_err *err)
{
    const pager_view *v;
    cr_assert_eq(pager_step_begin(r->p, prefill, &v, err), XD_OK, "%s", err->msg);
    for (uint32_t l = 0; l < model_get_params(r->m)->n_layers; l++) {
        pick(r, l);
        plan(r, v, l);
        if (pager_needs_require(r->p, prefill)) {
            xd_status st = pager_require(r->p, l, v->layers[l].expert_count, err);
            if (st) {
                pager_step_abort(r->p);
                return st;
            }
        }
        cr_assert_eq(pager_shares(r->p, prefill), pager_get_mode(r->p) == PAGER_SHARED && !prefill);
        uint32_t counts[256];
        memcpy(counts, v->layers[l].expert_count, v->layers[l].n_experts * sizeof *counts);
        if (pager_shares(r->p, prefill))
            read_cpu_share(r, v, l);
        read_layer(r, v, l);
        memcpy(v->layers[l].expert_count, counts, v->layers[l].n_experts * sizeof *counts);
    }
    cr_assert_eq(pager_step_fetch(r->p, err), XD_OK, "%s", err->msg);
    cr_assert_eq(pager_step_end(r->p, err), XD_OK, "%s", err->msg);
    return XD_OK;
}

static inline void step(rig *r, bool prefill)
{
    xd_err err = {0};
    cr_assert_eq(try_step(r, prefill, &err), XD_OK, "%s", err.msg);
}

#endif
