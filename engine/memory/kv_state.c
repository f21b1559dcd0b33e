/* kv_state.c - see kv_state_priv.h. Two free lists, and a list of the copies that belong to prefixes, oldest first. Which copy a prefix has stands in
 * its node (kv_prefix_state); a node that is pruned and made anew has none, so that a copy is a node's only where both say so.
 *
 * A slot is not cleared for the next sequence: the operation takes a state of zeros at position 0. Copies are pinned, so that they move
 * at the link's rate. */
#include "engine/memory/kv_state_priv.h"

#include <string.h>

#include "engine/memory/hostmem_priv.h"
#include "engine/memory/kv_prefix_priv.h"

typedef struct copy {
    uint32_t node;       /* KV_NONE: it is free, or a sequence's */
    uint32_t prev, next; /* among those with a node, or (next alone) the free ones */
} copy;

struct kv_states {
    kv_states_options opt;
    void *base;
    hostmem *host;
    uint32_t *free_slots, n_free_slots;
    copy *copies;
    uint32_t head, tail, free_head, n_used;
};

xd_status kv_states_open(const kv_states_options *opt, kv_states **ret, xd_err *err)
{
    const kern_ops *ops = opt->dev->ops;
    XD_CLEANUP(kv_states_freep) kv_states *t = calloc(1, sizeof *t);
    char size[32];
    uint64_t bytes;
    if (!t)
        return xd_fail(err, XD_NOMEM, 0, "states of linear layers");
    t->opt = *opt;
    t->free_slots = calloc(opt->n_slots, sizeof *t->free_slots);
    t->copies = calloc(XD_MAX(opt->n_copies, 1u), sizeof *t->copies);
    if (!t->free_slots || !t->copies)
        return xd_fail(err, XD_NOMEM, 0, "tables of %u states of linear layers", opt->n_slots);
    for (uint32_t i = opt->n_slots; i-- > 0;)
        t->free_slots[t->n_free_slots++] = i;
    t->head = t->tail = t->free_head = KV_NONE;
    for (uint32_t i = opt->n_copies; i-- > 0;) {
        t->copies[i] = (copy){.node = KV_NONE, .next = t->free_head};
        t->free_head = i;
    }
    if (!xd_mul_u64(&bytes, opt->n_slots, opt->bytes) || ops->alloc(opt->dev, bytes, &t->base) != KERN_OK)
        return xd_fail(err, XD_NOMEM, 0,
                       "states of linear layers: %u of %s each do not fit (%s): lower engine.max_num_seqs",
                       opt->n_slots, xd_format_bytes(size, sizeof size, opt->bytes), ops->error(opt->dev));
    xd_status st = opt->n_copies ? hostmem_open_near(opt->dev, opt->n_copies, opt->bytes, "copies of states",
                                                     "kv.state_space", &t->host, err)
                                 : XD_OK;
    if (st)
        return st;
    *ret = XD_TAKE(t);
    return XD_OK;
}

void kv_states_free(kv_states *t)
{
    if (!t)
        return;
    if (t->base)
        t->opt.dev->ops->free(t->opt.dev, t->base);
    hostmem_free(t->host);
    free(t->free_slots);
    free(t->copies);
    free(t);
}

void *kv_states_base(const kv_states *t)
{
    return t->base;
}

uint32_t kv_states_take(kv_states *t)
{
    return t->n_free_slots ? t->free_slots[--t->n_free_slots] : KV_NONE;
}

void kv_states_give(kv_states *t, uint32_t slot)
{
    t->free_slots[t->n_free_slots++] = slot;
}

static void unlink_copy(kv_states *t, uint32_t c)
{
    copy *p = &t->copies[c];
    *(p->prev == KV_NONE ? &t->head : &t->copies[p->prev].next) = p->next;
    *(p->next == KV_NONE ? &t->tail : &t->copies[p->next].prev) = p->prev;
    p->node = KV_NONE;
}

uint32_t kv_states_copy_take(kv_states *t)
{
    uint32_t c = t->free_head;
    if (c != KV_NONE) {
        t->free_head = t->copies[c].next;
        t->n_used++;
    } else if ((c = t->head) != KV_NONE) {
        unlink_copy(t, c);
    }
    return c;
}

void kv_states_copy_give(kv_states *t, uint32_t c)
{
    if (t->copies[c].node != KV_NONE)
        unlink_copy(t, c);
    t->copies[c].next = t->free_head;
    t->free_head = c;
    t->n_used--;
}

void *kv_states_copy_ptr(const kv_states *t, uint32_t c)
{
    return hostmem_ptr(t->host, c);
}

void kv_states_copy_of(kv_states *t, uint32_t c, uint32_t node)
{
    copy *p = &t->copies[c];
    if (p->node != KV_NONE)
        unlink_copy(t, c);
    *p = (copy){.node = node, .prev = t->tail, .next = KV_NONE};
    *(t->tail == KV_NONE ? &t->head : &t->copies[t->tail].next) = c;
    t->tail = c;
}

uint32_t kv_states_node_of(const kv_states *t, uint32_t c)
{
    return t->copies[c].node;
}

static char *slot_ptr(const kv_states *t, uint32_t slot)
{
    return (char *)t->base + slot * t->opt.bytes;
}

kern_status kv_states_save(kv_states *t, uint32_t c, uint32_t slot)
{
    return t->opt.dev->ops->download(t->opt.dev, kv_states_copy_ptr(t, c), slot_ptr(t, slot), t->opt.bytes);
}

kern_status kv_states_restore(kv_states *t, uint32_t slot, uint32_t c)
{
    return t->opt.dev->ops->upload(t->opt.dev, slot_ptr(t, slot), kv_states_copy_ptr(t, c), t->opt.bytes);
}

void kv_states_count(const kv_states *t, uint32_t *ret_slots_used, uint32_t *ret_copies_used)
{
    *ret_slots_used = t->opt.n_slots - t->n_free_slots;
    *ret_copies_used = t->n_used;
}
