/* sched_rig.h - a small KV cache with a scheduler over it, and sequences, for the tests of both. Included by one .c file of a test program. */
#ifndef TESTS_SCHED_RIG_H
#define TESTS_SCHED_RIG_H

#include <criterion/criterion.h>
#include <string.h>

#include "engine/schedule/sched.h"

enum { RIG_BLOCK = 4, RIG_SEQS = 64, RIG_IDS = 256 }; /* tokens a block; sequences; tokens of one, at most */

typedef struct world {
    kern_dev *dev;
    kv_cache *kv;
    sched *s;
    char *states; /* of linear layers: on the CPU a device address is a host pointer; NULL: none */
    uint64_t state_bytes;
    sched_seq q[RIG_SEQS];
    uint32_t ids[RIG_SEQS][RIG_IDS];
} world;

/* What the options leave open: a device, the shape of the cache (a block takes a page of swap space), and that of a state. */
static world *world_open(kv_options ko, sched_options so)
{
    world *w = calloc(1, sizeof *w);
    kern_options o = {.n_threads = 1, .numa_node = -1};
    xd_err err = {0};
    cr_assert_eq(kern_cpu_open(&o, &w->dev), KERN_OK);
    ko.dev = w->dev;
    ko.n_layers = ko.n_kv_heads = 1;
    ko.head_dim = 8;
    ko.block_size = RIG_BLOCK;
    ko.fmt = FMT_F32;
    ko.state_bytes = 256;
    cr_assert_eq(kv_open(&ko, &w->kv, &err), XD_OK, "%s", err.msg);
    void *base;
    kv_describe_state(w->kv, &base, &w->state_bytes);
    w->states = base;
    if (base)
        memset(base, 0xff, ko.n_states * w->state_bytes);
    so.kv = w->kv;
    so.block_size = RIG_BLOCK;
    cr_assert_eq(sched_new(&so, &w->s, NULL), XD_OK);
    return w;
}

static inline kv_stats stats(world *w)
{
    kv_stats k;
    kv_get_stats(w->kv, &k);
    return k;
}

/* Everybody goes, and nothing is left behind. */
static void done(world *w)
{
    for (uint32_t i = 0; i < RIG_SEQS; i++)
        sched_remove(w->s, &w->q[i]);
    kv_stats k = stats(w);
    cr_assert_eq(k.blocks_used, 0, "%llu blocks leaked", (unsigned long long)k.blocks_used);
    cr_assert_eq(k.states_used, 0, "%u slots leaked", k.states_used);
    sched_free(w->s);
    kv_free(w->kv);
    w->dev->ops->close(w->dev);
    free(w);
}

/* The first n_shared tokens of all sequences with the same `family` are the same. */
static sched_seq *add_shared(world *w, uint32_t i, uint32_t n_prompt, uint32_t n_shared, uint32_t family,
                             uint64_t group)
{
    sched_seq *q = &w->q[i];
    for (uint32_t j = 0; j < RIG_IDS; j++)
        w->ids[i][j] = (j < n_shared ? 1000000 * (family + 1) : 1000 * i) + j;
    *q = (sched_seq){.order = i, .group = group, .ids = w->ids[i], .n_ids = n_prompt, .n_prompt = n_prompt};
    cr_assert_eq(sched_add(w->s, q, NULL), XD_OK);
    return q;
}

#endif
