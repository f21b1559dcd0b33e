/* stage.c - a step's KV blocks that lie in host memory, brought to device memory layer by layer.
 *
 * There are two staging areas, which the layers take in turn. A layer's *old* blocks, whole before the step, are fetched while the
 * layer before computes: from the end of the attention two layers earlier, which read the area last. *Fresh* ones, which a prompt's
 * chunk writes in this very step, follow in stream order once K and V have been stored. What a decode step writes is one
 * block a sequence: attention reads that in place.
 *
 * Attention sees none of this: it is given another block table, in which staged blocks have ids of their own, and a table of
 * addresses for the layer's area. Blocks that find no place in the area are read in place as well.
 *
 * One list has the blocks of all groups of layers, first what is old of each, then what is fresh; a layer asks for its group's part of it. */
#include <string.h>

#include "engine/exec/exec_priv.h"

/* Fewer new tokens than this in a sequence are not worth another kernel in the layer's path. */
#define FRESH_TOKENS 16u
enum { OLD_BEGIN, OLD_END, FRESH_BEGIN, FRESH_END, RANGE_WORDS }; /* of a group */
#define ENTRY_WORDS (sizeof(kern_kv_stage_entry) / sizeof(uint32_t))
_Static_assert(sizeof(kern_kv_stage_entry) == 12, "packed as words");

xd_status exec_stage_open(exec *x, xd_err *err)
{
    exec_stage *g = &x->stage;
    const exec_options *o = &x->opt;
    uint32_t slots = kv_stage_blocks(x->kv), n_cold = kv_n_ids(x->kv) - kv_cold_begin(x->kv);
    if (!slots || !n_cold)
        return XD_OK;
    uint64_t max_blocks = (o->max_context + o->block_size - 1) / o->block_size;
    uint64_t words = exec_kv_groups(x) * (RANGE_WORDS + o->max_seqs * max_blocks) + slots * ENTRY_WORDS;
    g->seen_step = calloc(n_cold, sizeof *g->seen_step);
    g->seen_slot = calloc(n_cold, sizeof *g->seen_slot);
    if (!g->seen_step || !g->seen_slot)
        return xd_fail(err, XD_NOMEM, 0, "tables of %u cold KV blocks", n_cold);
    kern_status ks = x->dev->ops->alloc_host(x->dev, words * sizeof(uint32_t), &g->host_owned);
    if (ks)
        return exec_kern_fail(x, ks, err, "allocation of pinned host memory for the list of cold KV blocks");
    g->host = g->host_owned;
    xd_status st = exec_alloc(x, words * sizeof(uint32_t), &g->dev, "the list of cold KV blocks", err);
    if (st)
        return st;
    g->cold_begin = kv_cold_begin(x->kv);
    g->slots = slots;
    return XD_OK;
}

void exec_stage_close(exec *x)
{
    if (x->stage.host_owned)
        x->dev->ops->free_host(x->dev, x->stage.host_owned);
    free(x->stage.seen_step);
    free(x->stage.seen_slot);
}

static uint32_t *table_of(const exec *x, uint32_t *base)
{
    return base + exec_kv_groups(x) * RANGE_WORDS;
}

static kern_kv_stage_entry *list_of(const exec *x, uint32_t *base, const exec_shape *s)
{
    return (kern_kv_stage_entry *)(void *)(table_of(x, base) + exec_table_of(s, exec_kv_groups(x)));
}

/* Puts a group's blocks of one sequence that are old, or those that are fresh, into the list and their ids into its row of the table. */
static void list_seq(exec *x, const exec_shape *s, const exec_run_seq *q, uint32_t group, uint32_t row, bool old)
{
    exec_stage *g = &x->stage;
    const uint32_t bs = kv_block_tokens(kv_get_options(x->kv), group), n = exec_n_blocks(x, q, group);
    const uint32_t *blocks = q->blocks + (size_t)group * q->stride;
    uint32_t n_old = XD_MIN(q->pos / bs, n), begin = old ? 0 : n_old;
    uint32_t end = old ? n_old : XD_MIN((q->pos + q->n_tokens + bs - 1) / bs, n);
    uint32_t *table = table_of(x, g->host) + exec_table_of(s, group) + (size_t)row * s->max_blocks;
    kern_kv_stage_entry *list = list_of(x, g->host, s);
    for (uint32_t i = begin; i < end; i++) {
        if (blocks[i] < g->cold_begin || blocks[i] == KV_NONE)
            continue;
        uint32_t cold = blocks[i] - g->cold_begin;
        if (g->seen_step[cold] == g->step) { /* shared with another sequence */
            kern_kv_stage_entry *e = &list[g->seen_slot[cold]];
            e->query_pos = XD_MIN(e->query_pos, q->pos);
        } else if (g->n_all == g->slots || (!old && q->n_tokens < FRESH_TOKENS)) {
            g->n_direct++;
            continue;
        } else {
            g->seen_step[cold] = g->step;
            g->seen_slot[cold] = g->n_all;
            list[g->n_all++] = (kern_kv_stage_entry){.block = blocks[i], .first_pos = i * bs, .query_pos = q->pos};
        }
        table[i] = kv_stage_begin(x->kv) + g->seen_slot[cold];
    }
}

static void list_group(exec *x, const exec_batch *b, const exec_shape *s, uint32_t group, bool old)
{
    exec_stage *g = &x->stage;
    uint32_t *range = g->host + group * RANGE_WORDS + (old ? OLD_BEGIN : FRESH_BEGIN);
    range[0] = g->n_all;
    for (uint32_t i = 0; i < b->n_seqs; i++) {
        if (old)
            exec_put_blocks(x, table_of(x, g->host) + exec_table_of(s, group), i, &b->seqs[i], group, s->max_blocks);
        list_seq(x, s, &b->seqs[i], group, i, old);
    }
    range[1] = g->n_all;
}

xd_status exec_stage_step(exec *x, const exec_batch *b, exec_shape *s, xd_err *err)
{
    exec_stage *g = &x->stage;
    g->n_all = g->n_direct = 0;
    s->staged = false;
    if (!g->slots)
        return XD_OK;
    if (!++g->step) { /* after 2^32 steps old stamps would look like new ones */
        memset(g->seen_step, 0, (kv_n_ids(x->kv) - g->cold_begin) * sizeof *g->seen_step);
        g->step = 1;
    }
    for (uint32_t k = 0; k < exec_kv_groups(x); k++)
        list_group(x, b, s, k, true);
    for (uint32_t k = 0; k < exec_kv_groups(x); k++)
        list_group(x, b, s, k, false);
    if (!g->n_all)
        return XD_OK;
    s->staged = true;
    const uint32_t *list = (const uint32_t *)(const void *)list_of(x, g->host, s);
    uint64_t words = (uint64_t)(list - g->host) + (uint64_t)g->n_all * ENTRY_WORDS;
    kern_status ks = x->dev->ops->upload(x->dev, g->dev, g->host, words * sizeof *g->host);
    return ks ? exec_kern_fail(x, ks, err, "upload of the list of cold KV blocks") : XD_OK;
}

/* The model's layer that has this KV. */
static uint32_t layer_of(const exec *x, uint32_t ordinal)
{
    uint32_t i = ordinal;
    for (const model_layer *l = model_get_layer(x->m, i); !model_keeps_kv(l) || l->ordinal != ordinal;)
        l = model_get_layer(x->m, ++i);
    return i;
}

static xd_status stage_layer(exec *x, uint32_t layer, const exec_shape *s, bool old, xd_err *err)
{
    exec_stage *g = &x->stage;
    const uint32_t of_model = layer_of(x, layer);
    const kv_layer at = x->layers[of_model].kv;
    kern_kv from, to;
    kv_describe(x->kv, at.group, &from);
    kv_describe_stage(x->kv, at.group, layer, &to);
    kern_kv_stage_args a = {.from_addr = from.block_addr,
                            .to_addr = to.block_addr,
                            .to_first = kv_stage_begin(x->kv),
                            .list = list_of(x, g->dev, s),
                            .range = g->dev + at.group * RANGE_WORDS + (old ? OLD_BEGIN : FRESH_BEGIN),
                            .layer = at.idx,
                            .block_size = from.block_size,
                            .window = model_get_layer(x->m, of_model)->window,
                            .layer_bytes = from.layer_bytes,
                            .background = old,
                            .slot = layer % 2};
    kern_status ks = x->dev->ops->kv_stage(x->dev, &a);
    return ks ? exec_kern_fail(x, ks, err, "staging KV blocks") : XD_OK;
}

xd_status exec_stage_ahead(exec *x, uint32_t layer, const exec_shape *s, xd_err *err)
{
    return s->staged && layer < x->hp->n_attention ? stage_layer(x, layer, s, true, err) : XD_OK;
}

xd_status exec_stage_ready(exec *x, uint32_t layer, const exec_shape *s, kern_kv *ret, xd_err *err)
{
    exec_stage *g = &x->stage;
    if (!s->staged)
        return XD_OK;
    const uint32_t group = x->layers[layer_of(x, layer)].kv.group;
    const uint32_t *range = g->host + group * RANGE_WORDS;
    if (!s->recorded && range[FRESH_END] > range[FRESH_BEGIN]) {
        xd_status st = stage_layer(x, layer, s, false, err);
        if (st)
            return st;
    }
    kern_status ks = x->dev->ops->kv_stage_wait(x->dev, layer % 2);
    if (ks)
        return exec_kern_fail(x, ks, err, "waiting for KV blocks");
    kv_describe_stage(x->kv, group, layer, ret);
    ret->block_table = table_of(x, g->dev) + exec_table_of(s, group);
    ret->max_blocks = s->max_blocks;
    return XD_OK;
}

/* Entries that a layer with a window leaves out are counted all the same. */
uint64_t exec_stage_host_bytes(const exec *x)
{
    kern_kv kv;
    if (!x->stage.slots)
        return 0;
    kv_describe(x->kv, 0, &kv); /* layers take the same bytes in all of them */
    return (uint64_t)(x->stage.n_all + x->stage.n_direct) * kv.layer_bytes * kv_get_options(x->kv)->n_layers;
}
