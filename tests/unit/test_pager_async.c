/* The pager on a device whose stream is as late as it may be: copies and kernels happen when the stream is waited for, and not before, copies
 * of the copy thread when that waits for them. (On the CPU device all happens at once; a GPU lies between the two.) So whatever is changed,
 * given away or freed between a call and the wait shows in the bytes that kernels read. */
#include <criterion/criterion.h>
#include <string.h>
#include <unistd.h>

#include "pager_rig.h"

enum { MANY = 64, MAX_OPS = 8192, MAX_LAYERS = 8, MAX_EXPERTS = 256, MAX_PAGES = 16 };

typedef struct work { /* a copy, a clearing (src NULL), or a kernel */
    void (*kernel)(rig *r, const pager_view *v, uint32_t layer);
    rig *r;
    const pager_view *v;
    uint32_t layer;
    void *dst;
    const void *src;
    uint64_t bytes;
} work;

typedef struct stream {
    work ops[MAX_OPS];
    uint32_t n;
} stream;

static struct {
    const kern_ops *real;
    kern_ops ops;
    stream main, copies;
    _Atomic uint32_t n_copied; /* by the copy thread */
} dev;

static uint32_t *layer_ids[MAX_LAYERS];
static pager_share shares[MAX_LAYERS];
static uint64_t fills[MAX_LAYERS][MAX_EXPERTS * MAX_PAGES];

static kern_status later(stream *s, work w)
{
    cr_assert_lt(s->n, MAX_OPS);
    s->ops[s->n++] = w;
    return KERN_OK;
}

static void run(stream *s)
{
    for (uint32_t i = 0; i < s->n; i++) {
        const work *w = &s->ops[i];
        if (w->kernel)
            w->kernel(w->r, w->v, w->layer);
        else if (w->src)
            memcpy(w->dst, w->src, w->bytes);
        else
            memset(w->dst, 0, w->bytes);
    }
    s->n = 0;
}

static kern_status copy_later(kern_dev *d, void *dst, const void *src, uint64_t bytes)
{
    (void)d;
    return later(&dev.main, (work){.dst = dst, .src = src, .bytes = bytes});
}

static kern_status clear_later(kern_dev *d, void *dst, uint64_t bytes)
{
    (void)d;
    return later(&dev.main, (work){.dst = dst, .bytes = bytes});
}

static kern_status sync_now(kern_dev *d)
{
    (void)d;
    run(&dev.main);
    return KERN_OK;
}

/* The slot holds rubbish until the copy is done. */
static kern_status background_copy(kern_dev *d, void *dst, const void *src, uint64_t bytes)
{
    (void)d;
    memset(dst, 0xa5, bytes);
    return later(&dev.copies, (work){.dst = dst, .src = src, .bytes = bytes});
}

static kern_status background_wait(kern_dev *d)
{
    (void)d;
    dev.n_copied += dev.copies.n;
    run(&dev.copies);
    return KERN_OK;
}

/* As a GPU's: nothing is freed that work in a stream may use. */
static void free_behind_all(kern_dev *d, void *p)
{
    run(&dev.main);
    dev.real->free(d, p);
}

static void open_late(rig *r, double arena, const char *page_file)
{
    *r = (rig){0};
    rig_open_model(r, 20000);
    cr_assert_leq(model_get_params(r->m)->n_layers, MAX_LAYERS);
    r->n_tokens = MANY;
    r->cfg->test.allow = true;
    if (page_file) {
        free(r->cfg->memory.nvme_path);
        r->cfg->memory.nvme_path = strdup(page_file);
        r->cfg->memory.host_budget = model_expert_bytes(r->m) * 2 / 5;
    }
    dev.real = r->dev->ops;
    dev.ops = *dev.real;
    dev.ops.upload = dev.ops.download = copy_later;
    dev.ops.clear = clear_later;
    dev.ops.sync = sync_now;
    dev.ops.copy_async = background_copy;
    dev.ops.copy_wait = background_wait;
    dev.ops.free = free_behind_all;
    dev.main.n = dev.copies.n = dev.n_copied = 0;
    r->dev->ops = &dev.ops;
    for (uint32_t l = 0; l < MAX_LAYERS; l++)
        layer_ids[l] = malloc(MANY * r->top_k * sizeof **layer_ids);
    rig_open(r, (uint64_t)(arena * (double)model_expert_bytes(r->m)));
}

static void close_late(rig *r)
{
    rig_close(r);
    for (uint32_t l = 0; l < MAX_LAYERS; l++)
        free(layer_ids[l]);
}

static void plan_kernel(rig *r, const pager_view *v, uint32_t l)
{
    uint32_t *ids = r->ids;
    r->ids = layer_ids[l];
    plan(r, v, l);
    r->ids = ids;
}

static void experts_kernel(rig *r, const pager_view *v, uint32_t l)
{
    const pager_layer_view *y = &v->layers[l];
    uint32_t counts[MAX_EXPERTS];
    memcpy(counts, y->expert_count, y->n_experts * sizeof *counts);
    for (uint32_t e = 0; e < y->n_experts; e++)
        if (shares[l].on_cpu && shares[l].on_cpu[e])
            y->expert_count[e] = 0;
    read_layer(r, v, l);
    for (uint32_t i = 0; i < y->n_experts * y->geom.pages; i++)
        if (fills[l][i]) {
            uint64_t bytes;
            const char *want = page_of_file(r, l, i / y->geom.pages, i % y->geom.pages, &bytes);
            memcpy((void *)(uintptr_t)fills[l][i], want, bytes);
        }
    memcpy(y->expert_count, counts, y->n_experts * sizeof *counts);
}

/* The CPU's part is computed at once. */
static void on_cpu(rig *r, const pager_view *v, uint32_t l, const uint32_t *counts)
{
    const pager_layer_view *y = &v->layers[l];
    share_costs costs = {.ns = {rnd(r, 3), 1}};
    cr_assert_leq(y->n_experts * y->geom.pages, MAX_EXPERTS * MAX_PAGES);
    bool any = pager_share_layer(r->p, l, counts, &costs, &shares[l]);
    if (any && shares[l].fill_addr)
        memcpy(fills[l], shares[l].fill_addr, y->n_experts * y->geom.pages * sizeof **fills);
    for (uint32_t e = 0; any && e < y->n_experts; e++)
        for (uint32_t i = 0; shares[l].on_cpu[e] && i < y->geom.pages; i++) {
            uint64_t bytes;
            const char *want = page_of_file(r, l, e, i, &bytes);
            const void *at = (const void *)(uintptr_t)shares[l].host_addr[e * y->geom.pages + i];
            cr_assert_eq(memcmp(at, want, bytes), 0, "layer %u expert %u page %u", l, e, i);
        }
}

/* In the order of calls of engine/exec. `n_layers`: it is given up behind so many. */
static void late_step(rig *r, bool prefill, uint32_t n_layers)
{
    const pager_view *v;
    xd_err err = {0};
    cr_assert_eq(pager_step_begin(r->p, prefill, &v, &err), XD_OK, "%s", err.msg);
    memset(shares, 0, sizeof shares);
    memset(fills, 0, sizeof fills);
    uint32_t all = model_get_params(r->m)->n_layers;
    for (uint32_t l = 0; l < XD_MIN(n_layers, all); l++) {
        pick(r, l);
        memcpy(layer_ids[l], r->ids, (size_t)r->n_tokens * r->top_k * sizeof *r->ids);
        later(&dev.main, (work){.kernel = plan_kernel, .r = r, .v = v, .layer = l});
        if (pager_needs_require(r->p, prefill)) {
            uint32_t counts[MAX_EXPERTS], likely[MAX_EXPERTS];
            copy_later(r->dev, counts, v->layers[l].expert_count, v->layers[l].n_experts * sizeof *counts);
            sync_now(r->dev);
            cr_assert_eq(pager_require(r->p, l, counts, &err), XD_OK, "%s", err.msg);
            for (uint32_t e = 0; l + 1 < all && e < v->layers[l + 1].n_experts; e++)
                likely[e] = rnd(r, 3) == 0;
            if (l + 1 < all)
                pager_predict(r->p, l + 1, likely);
            if (pager_shares(r->p, prefill))
                on_cpu(r, v, l, counts);
        }
        later(&dev.main, (work){.kernel = experts_kernel, .r = r, .v = v, .layer = l});
    }
    if (n_layers < all) {
        sync_now(r->dev);
        pager_step_abort(r->p);
        return;
    }
    cr_assert_eq(pager_step_fetch(r->p, &err), XD_OK, "%s", err.msg);
    sync_now(r->dev);
    cr_assert_eq(pager_step_end(r->p, &err), XD_OK, "%s", err.msg);
}

static void change_path(rig *r)
{
    static const int modes[] = {PAGER_DIRECT, PAGER_STAGED, PAGER_SHARED, PAGER_FULL};
    xd_err err;
    r->cfg->test.vram_free = rnd(r, 3) * stats(r).slot_bytes * 80;
    if (rnd(r, 2))
        pager_give_back_spare(r->p);
    else
        pager_take_spare(r->p, &err);
    (void)!pager_set_mode(r->p, modes[rnd(r, 4)], &err); /* FULL where it can be had */
}

static void many_steps(double arena, const char *page_file)
{
    rig r;
    open_late(&r, arena, page_file);
    uint32_t n_layers = model_get_params(r.m)->n_layers;
    for (uint32_t s = 0; s < 250; s++) {
        if (s % 10 == 0)
            change_path(&r);
        r.n_tokens = rnd(&r, 3) ? MANY : 2;
        late_step(&r, rnd(&r, 2), rnd(&r, 8) ? n_layers : rnd(&r, n_layers));
        if (rnd(&r, 2))
            pager_idle(r.p);
    }
    pager_stats st = stats(&r);
    cr_assert_gt(dev.n_copied, 0);
    cr_assert_gt(st.bytes_cpu, 0);
    cr_assert_gt(st.bytes_vram, 0);
    cr_assert(page_file || st.staged_ahead_useful_bytes || arena < 0.5);
    close_late(&r);
}

Test(pager_async, bytes_are_right_however_late_a_stream_is)
{
    many_steps(0.05, NULL);
    many_steps(0.4, NULL);
    many_steps(0.8, NULL);
}

Test(pager_async, and_over_a_disk)
{
    char dir[] = "/tmp/xd-async-XXXXXX", path[64];
    cr_assert(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/pages", dir);
    many_steps(0.1, path);
    many_steps(0.5, path);
    unlink(path);
    rmdir(dir);
}
