/* late_graph.h - the CPU backend as a device that can record: what is launched is only done when it is waited for, from the arguments as
 * they were when it was recorded. So whoever counts on work being done sooner, or keeps a step's changing values in arguments instead of
 * memory, comes to wrong results. */
#ifndef TESTS_UNIT_LATE_GRAPH_H
#define TESTS_UNIT_LATE_GRAPH_H

#include <criterion/criterion.h>
#include <string.h>

#include "kernels/cpu/cpu_priv.h"

#define LATE_OPS(X)               \
    X(embed, kern_embed_args)     \
    X(rmsnorm, kern_rmsnorm_args) \
    X(linear, kern_linear_args)   \
    X(rope_kv, kern_rope_kv_args) \
    X(moe, kern_moe_args) X(argmax, kern_argmax_args) X(top_logits, kern_top_logits_args) X(add, kern_add_args)

typedef struct late_call {
    enum {
#define X(name, args) LATE_##name,
        LATE_OPS(X)
#undef X
            LATE_attention,
        LATE_route,
        LATE_copy,
        LATE_clear,
        LATE_mark
    } kind;
    union {
#define X(name, args) args name;
        LATE_OPS(X)
#undef X
        struct {
            kern_attn_args a;
            kern_rope_kv_args rope;
        } attention;
        struct {
            kern_linear_args logits;
            kern_router_args pick;
            kern_plan_args plan;
            bool planned;
        } route;
        struct {
            void *dst;
            const void *src;
            uint64_t bytes;
            bool last; /* a download: behind all else */
        } copy;
        uint32_t slot;
    } u;
} late_call;

enum { LATE_MAX_CALLS = 64, LATE_MAX_QUEUE = 8 };

struct kern_graph {
    late_call calls[LATE_MAX_CALLS];
    uint32_t n;
};

static struct {
    cpu_dev dev; /* the real one with other operations */
    const kern_ops *real;
    kern_ops ops;
    kern_graph *recording, *queue[LATE_MAX_QUEUE];
    uint32_t n_queue, n_recorded, n_replayed;
} late;

static kern_status late_do(late_call *c)
{
    kern_dev *d = &late.dev.base;
    switch (c->kind) {
#define X(name, args) \
    case LATE_##name: return late.real->name(d, &c->u.name);
        LATE_OPS(X)
#undef X
    case LATE_attention:
        if (c->u.attention.a.rope)
            c->u.attention.a.rope = &c->u.attention.rope;
        return late.real->attention(d, &c->u.attention.a);
    case LATE_route:
        return late.real->route(d, &c->u.route.logits, &c->u.route.pick, c->u.route.planned ? &c->u.route.plan : NULL,
                                NULL);
    case LATE_copy: memmove(c->u.copy.dst, c->u.copy.src, c->u.copy.bytes); return KERN_OK;
    case LATE_clear: memset(c->u.copy.dst, 0, c->u.copy.bytes); return KERN_OK;
    case LATE_mark: return late.real->mark(d, c->u.slot);
    }
    return KERN_ARG;
}

static kern_status late_run(void)
{
    kern_status ks = KERN_OK;
    for (uint32_t i = 0; i < late.n_queue; i++)
        for (int last = 0; last < 2; last++)
            for (uint32_t k = 0; k < late.queue[i]->n && !ks; k++) {
                late_call *c = &late.queue[i]->calls[k];
                if ((c->kind == LATE_copy && c->u.copy.last) == last)
                    ks = late_do(c);
            }
    late.n_queue = 0;
    return ks;
}

/* Notes the call, or makes it behind all that waits. */
static kern_status late_note(late_call c)
{
    if (late.recording) {
        cr_assert_lt(late.recording->n, LATE_MAX_CALLS);
        late.recording->calls[late.recording->n++] = c;
        return KERN_OK;
    }
    kern_status ks = late_run();
    return ks ? ks : late_do(&c);
}

#define X(name, args)                                                     \
    static kern_status late_##name(kern_dev *d, const args *a)            \
    {                                                                     \
        (void)d;                                                          \
        return late_note((late_call){.kind = LATE_##name, .u.name = *a}); \
    }
LATE_OPS(X)
#undef X

static kern_status late_attention(kern_dev *d, const kern_attn_args *a)
{
    (void)d;
    late_call c = {.kind = LATE_attention};
    c.u.attention.a = *a;
    if (a->rope)
        c.u.attention.rope = *a->rope;
    return late_note(c);
}

static kern_status late_route(kern_dev *d, const kern_linear_args *logits, const kern_router_args *pick,
                              const kern_plan_args *plan, const kern_route_ahead *ahead)
{
    (void)d;
    cr_assert(!ahead);
    late_call c = {.kind = LATE_route};
    c.u.route.logits = *logits;
    c.u.route.pick = *pick;
    c.u.route.planned = plan;
    if (plan)
        c.u.route.plan = *plan;
    return late_note(c);
}

static kern_status late_upload(kern_dev *d, void *dst, const void *src, uint64_t bytes)
{
    (void)d;
    late_call c = {.kind = LATE_copy};
    c.u.copy.dst = dst, c.u.copy.src = src, c.u.copy.bytes = bytes;
    return late_note(c);
}

static kern_status late_download(kern_dev *d, void *dst, const void *src, uint64_t bytes)
{
    (void)d;
    late_call c = {.kind = LATE_copy};
    c.u.copy.dst = dst, c.u.copy.src = src, c.u.copy.bytes = bytes, c.u.copy.last = true;
    return late_note(c);
}

static kern_status late_clear(kern_dev *d, void *dst, uint64_t bytes)
{
    (void)d;
    late_call c = {.kind = LATE_clear};
    c.u.copy.dst = dst, c.u.copy.bytes = bytes;
    return late_note(c);
}

static kern_status late_mark(kern_dev *d, uint32_t slot)
{
    (void)d;
    return late_note((late_call){.kind = LATE_mark, .u.slot = slot});
}

static kern_status late_wait(kern_dev *d)
{
    (void)d;
    cr_assert(!late.recording);
    return late_run();
}

static kern_status late_graph_begin(kern_dev *d)
{
    (void)d;
    late.recording = calloc(1, sizeof *late.recording);
    late.n_recorded++;
    return late.recording ? KERN_OK : KERN_NOMEM;
}

static kern_status late_graph_end(kern_dev *d, kern_graph **ret)
{
    (void)d;
    *ret = late.recording;
    late.recording = NULL;
    return KERN_OK;
}

static kern_status late_graph_launch(kern_dev *d, kern_graph *g)
{
    (void)d;
    cr_assert_lt(late.n_queue, LATE_MAX_QUEUE);
    late.queue[late.n_queue++] = g;
    late.n_replayed++;
    return KERN_OK;
}

static void late_graph_free(kern_dev *d, kern_graph *g)
{
    (void)d;
    free(g);
}

/* The device to be used instead of `real`, with which it shares everything but the operations. */
static kern_dev *late_open(kern_dev *real)
{
    late.real = real->ops;
    late.dev = *cpu_of(real);
    late.ops = *real->ops;
#define X(name, args) late.ops.name = late_##name;
    LATE_OPS(X)
#undef X
    late.ops.attention = late_attention;
    late.ops.route = late_route;
    late.ops.upload = late_upload;
    late.ops.download = late_download;
    late.ops.clear = late_clear;
    late.ops.mark = late_mark;
    late.ops.sync = late.ops.graph_wait = late_wait;
    late.ops.graph_begin = late_graph_begin;
    late.ops.graph_end = late_graph_end;
    late.ops.graph_launch = late_graph_launch;
    late.ops.graph_free = late_graph_free;
    late.dev.base.ops = &late.ops;
    late.n_queue = late.n_recorded = late.n_replayed = 0;
    return &late.dev.base;
}

#endif
