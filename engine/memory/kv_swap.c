/* kv_swap.c - preemption by swapping: the blocks of a sequence, and its state, go to host memory and come back. Not where steps use that memory, too
 * (allow_cold): what is swapped would stay among the blocks that are short. So all that a sequence has here lies on the device. */
#include "engine/memory/kv_priv.h"

#include <string.h>

static xd_status save_state(kv_cache *kv, kv_seq *s)
{
    if (s->slot == KV_NONE)
        return XD_OK;
    s->copy = kv_states_copy_take(kv->states);
    if (s->copy == KV_NONE)
        return XD_BUSY;
    kv->download_pending = true;
    return kv_states_save(kv->states, s->copy, s->slot) ? XD_INTERNAL : XD_OK;
}

xd_status kv_seq_bring_state(kv_cache *kv, kv_seq *s, uint32_t c)
{
    const kern_ops *ops = kv->opt.dev->ops;
    s->slot = kv_states_take(kv->states);
    if (s->slot == KV_NONE)
        return XD_BUSY;
    if (kv->download_pending && ops->sync(kv->opt.dev) != KERN_OK)
        return XD_INTERNAL;
    kv->download_pending = false;
    return kv_states_restore(kv->states, s->slot, c) ? XD_INTERNAL : XD_OK;
}

/* The state and every block get copies of their own in host memory; moved takes the places of the blocks. All copies before anything is
 * given up: after a failure the sequence is as it was. */
static xd_status copy_all_out(kv_cache *kv, kv_seq *s, uint32_t *moved)
{
    uint32_t k = 0;
    xd_status st = save_state(kv, s);
    for (uint32_t i = 0; i < s->n; i++)
        for (uint32_t g = 0; !st && g < kv->opt.n_groups; g++) {
            if (!kv_begins_block(kv, g, i))
                continue;
            const uint32_t b = *kv_seq_block(s, g, kv_block_of(kv, g, i));
            if (b == KV_NONE)
                continue;
            moved[k] = kv_place_take_host(kv, g);
            if (kv_place_copy_out(kv, moved[k++], b) != KERN_OK)
                st = XD_INTERNAL;
        }
    if (!st)
        return XD_OK;
    while (k)
        kv_place_release(kv, moved[--k]);
    if (s->copy != KV_NONE)
        kv_states_copy_give(kv->states, s->copy);
    s->copy = KV_NONE;
    return st;
}

/* A device block that is shared or known as a prefix simply stays where it is, so nothing that waits in the swap space holds device memory. */
static void give_up_device(kv_cache *kv, kv_seq *s, const uint32_t *moved, uint32_t n)
{
    if (s->slot != KV_NONE)
        kv_states_give(kv->states, s->slot);
    s->slot = KV_NONE;
    for (uint32_t i = s->n, k = n; i-- > 0;) /* from its end, as kv_seq_cut() */
        for (uint32_t g = kv->opt.n_groups; g-- > 0;) {
            if (!kv_begins_block(kv, g, i))
                continue;
            uint32_t *b = kv_seq_block(s, g, kv_block_of(kv, g, i));
            if (*b == KV_NONE)
                continue;
            kv_place_release(kv, *b);
            *b = moved[--k];
        }
    kv->stats.swapped_out += n;
    s->swapped = true;
}

static xd_status swap_out_locked(kv_cache *kv, kv_seq *s)
{
    uint32_t n = 0;
    for (uint32_t g = 0; g < kv->opt.n_groups; g++)
        n += kv_blocks_in(kv, g, s->n) - s->first[g];
    if (kv->opt.allow_cold || n > kv_places_available(kv, 1))
        return XD_BUSY;
    XD_CLEANUP(xd_freep) uint32_t *moved = malloc(XD_MAX(n, 1u) * sizeof *moved);
    if (!moved)
        return XD_NOMEM;
    xd_status st = copy_all_out(kv, s, moved);
    if (!st)
        give_up_device(kv, s, moved, n);
    return st;
}

xd_status kv_seq_swap_out(kv_cache *kv, kv_seq *s)
{
    if (s->swapped)
        return XD_OK;
    pthread_mutex_lock(&kv->lock);
    xd_status st = swap_out_locked(kv, s);
    pthread_mutex_unlock(&kv->lock);
    return st;
}

/* Where a sequence's blocks will be: [n_groups][n], KV_NONE for those that were given back. Its units are gone through from the end, and a block is met
 * at the last one of it that is there: if the block is whole, that is where its prefix's node is. */
static bool meets_block(const kv_cache *kv, const kv_seq *s, uint32_t g, uint32_t i)
{
    return i + 1 == s->n || kv_ends_block(kv, g, i);
}

static uint32_t node_of(const kv_cache *kv, const kv_seq *s, uint32_t g, uint32_t i, uint32_t node)
{
    return i < s->n_committed && kv_ends_block(kv, g, i) ? node : KV_NONE;
}

static uint32_t *in_of(uint32_t *in, const kv_seq *s, uint32_t group, uint32_t i)
{
    return &in[(size_t)group * s->n + i];
}

/* Blocks whose prefix is still cached on the device. Returns how many others are to be copied. They are taken first, so that making room for the rest
 * cannot evict them. */
static uint32_t take_cached(kv_cache *kv, const kv_seq *s, uint32_t *in)
{
    uint32_t need = 0, node = s->tail_node;
    for (uint32_t i = s->n; i-- > 0;) {
        for (uint32_t g = 0; g < kv->opt.n_groups; g++) {
            const uint32_t at = kv_block_of(kv, g, i), known = node_of(kv, s, g, i, node);
            if (!meets_block(kv, s, g, i) || at < s->first[g])
                continue;
            const uint32_t b = known == KV_NONE ? KV_NONE : kv_prefix_place(kv->prefix, known, g);
            if (b != KV_NONE && !kv_place_is_host(kv, b))
                kv_place_ref(kv, *in_of(in, s, g, at) = b);
            else
                need++;
        }
        if (i < s->n_committed)
            node = kv_prefix_parent(kv->prefix, node);
    }
    return need;
}

static xd_status copy_in(kv_cache *kv, const kv_seq *s, uint32_t *in, uint32_t g, uint32_t i)
{
    uint32_t *to = in_of(in, s, g, i);
    if (*to != KV_NONE)
        return XD_OK;
    *to = kv_place_take_dev(kv, g);
    return kv_place_copy_in(kv, *to, *kv_seq_block(s, g, i)) == KERN_OK ? XD_OK : XD_INTERNAL;
}

static xd_status copy_all_in(kv_cache *kv, const kv_seq *s, uint32_t *in)
{
    const uint32_t need = take_cached(kv, s, in);
    xd_status st = need <= kv_places_available(kv, 0) ? XD_OK : XD_BUSY;
    for (uint32_t g = 0; g < kv->opt.n_groups; g++)
        for (uint32_t i = s->first[g]; !st && i < kv_blocks_in(kv, g, s->n); i++)
            st = copy_in(kv, s, in, g, i);
    for (uint32_t k = st ? kv->opt.n_groups * s->n : 0; k-- > 0;)
        if (in[k] != KV_NONE)
            kv_place_release(kv, in[k]);
    return st;
}

/* Block i of a group is in place `to` from now on, and so is its prefix (KV_NONE: it is not known), if no other place has that. */
static void move_block(kv_cache *kv, kv_seq *s, uint32_t g, uint32_t i, uint32_t to, uint32_t node)
{
    uint32_t *b = kv_seq_block(s, g, i);
    if (node != KV_NONE && kv->places[to].node == KV_NONE && kv_prefix_place(kv->prefix, node, g) == KV_NONE)
        kv_place_set_node(kv, to, node);
    kv_place_release(kv, *b);
    *b = to;
    kv->stats.swapped_in++;
}

static xd_status swap_in_locked(kv_cache *kv, kv_seq *s, uint32_t *in)
{
    xd_status st = copy_all_in(kv, s, in);
    if (st)
        return st;
    uint32_t node = s->tail_node;
    for (uint32_t i = s->n; i-- > 0;) {
        uint32_t next = i < s->n_committed ? kv_prefix_parent(kv->prefix, node) : node;
        for (uint32_t g = 0; g < kv->opt.n_groups; g++) {
            const uint32_t at = kv_block_of(kv, g, i);
            if (meets_block(kv, s, g, i) && at >= s->first[g])
                move_block(kv, s, g, at, *in_of(in, s, g, at), node_of(kv, s, g, i, node));
        }
        node = next;
    }
    s->swapped = false;
    return XD_OK;
}

xd_status kv_seq_swap_in(kv_cache *kv, kv_seq *s)
{
    if (!s->swapped)
        return XD_OK;
    XD_CLEANUP(xd_freep) uint32_t *in = reallocarray(NULL, XD_MAX(s->n, 1u), kv->opt.n_groups * sizeof *in);
    if (!in)
        return XD_NOMEM;
    memset(in, 0xff, (size_t)s->n * kv->opt.n_groups * sizeof *in); /* KV_NONE */
    pthread_mutex_lock(&kv->lock);
    /* The state first: then blocks are moved or stay where they are, and nothing is half done. */
    xd_status st = s->copy == KV_NONE ? XD_OK : kv_seq_bring_state(kv, s, s->copy);
    if (!st)
        st = swap_in_locked(kv, s, in);
    uint32_t *gone = st ? &s->slot : &s->copy;
    if (*gone != KV_NONE)
        (st ? kv_states_give : kv_states_copy_give)(kv->states, *gone);
    *gone = KV_NONE;
    pthread_mutex_unlock(&kv->lock);
    return st;
}

bool kv_seq_is_swapped(const kv_seq *s)
{
    return s->swapped;
}
