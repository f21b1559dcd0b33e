/* kv_reuse.c - what a sequence takes over from others: blocks of a prefix that was computed before (kv_prefix.c says which those are), the state behind
 * it where layers are linear, and blocks of the sequence it is forked from. And what it leaves for others: full blocks, and copies of states. */
#include "engine/memory/kv_priv.h"

static void set_tail(kv_cache *kv, kv_seq *s, uint32_t node, uint32_t n_committed)
{
    kv_prefix_hold(kv->prefix, node);
    kv_prefix_drop(kv->prefix, s->tail_node);
    s->tail_node = node;
    s->n_committed = n_committed;
}

/* Makes the KV of `node` usable by kernels and takes a reference; KV_NONE when there is no room. */
static uint32_t ref_node(kv_cache *kv, uint32_t node)
{
    uint32_t b = kv_prefix_place(kv->prefix, node);
    if (b == KV_NONE)
        return KV_NONE;
    kv_place_ref(kv, b);
    if (!kv_place_is_host(kv, b) || kv->opt.allow_cold)
        return b;
    uint32_t dev_b = kv_place_take_dev(kv);
    if (dev_b == KV_NONE || kv_place_copy_in(kv, dev_b, b) != KERN_OK) {
        if (dev_b != KV_NONE)
            kv_place_release(kv, dev_b);
        kv_place_release(kv, b);
        return KV_NONE;
    }
    kv_prefix_hold(kv->prefix, node);
    kv_place_forget_node(kv, b);
    kv_place_release(kv, b);
    kv_place_set_node(kv, dev_b, node);
    kv_prefix_drop(kv->prefix, node);
    kv->stats.swapped_in++;
    return dev_b;
}

/* The copy of the state behind the prefix that ends with `node`. */
static uint32_t copy_of(const kv_cache *kv, uint32_t node)
{
    const uint32_t c = kv_prefix_state(kv->prefix, node);
    return c != KV_NONE && kv_states_node_of(kv->states, c) == node ? c : KV_NONE;
}

/* How many of the first n_max blocks of ids are there up to the last one with a copy of the state. */
static uint32_t find_state(kv_cache *kv, kv_seq *s, const uint32_t *ids, uint32_t n_max, uint32_t *ret_copy)
{
    const uint32_t bs = kv->opt.block_size;
    uint32_t node = KV_NONE, i = 0, best = 0;
    *ret_copy = KV_NONE;
    while (i < n_max && (node = kv_prefix_find(kv->prefix, node, ids + (size_t)i * bs)) != KV_NONE &&
           kv_prefix_place(kv->prefix, node) != KV_NONE) {
        i++;
        if (copy_of(kv, node) != KV_NONE) {
            *ret_copy = copy_of(kv, node);
            best = i;
        }
    }
    s->n_known = i * bs;
    return best;
}

/* What was matched is of use only with its state: all of it, or nothing. */
static bool take_state(kv_cache *kv, kv_seq *s, uint32_t c)
{
    if (kv_seq_bring_state(kv, s, c))
        return false;
    kv_states_copy_of(kv->states, c, s->tail_node);
    kv->stats.states_found++;
    return true;
}

uint32_t kv_seq_match(kv_cache *kv, kv_seq *s, const uint32_t *ids, uint32_t n)
{
    const uint32_t bs = kv->opt.block_size;
    if (!kv->opt.prefix_caching || s->n || !n)
        return 0;
    pthread_mutex_lock(&kv->lock);
    kv->stats.prefix_queries_tokens += n;
    uint32_t n_max = (n - 1) / bs, c = KV_NONE;
    if (kv->states)
        n_max = find_state(kv, s, ids, n_max, &c);
    while (s->n < n_max) {
        uint32_t node = kv_prefix_find(kv->prefix, s->tail_node, ids + (size_t)s->n * bs);
        uint32_t b = node != KV_NONE && kv_seq_room(s, s->n + 1) ? ref_node(kv, node) : KV_NONE;
        if (b == KV_NONE)
            break;
        s->blocks[s->n++] = b;
        set_tail(kv, s, node, s->n);
    }
    if (kv->states && s->n && (s->n < n_max || !take_state(kv, s, c)))
        kv_seq_drop_locked(kv, s);
    kv->stats.prefix_hits_tokens += (uint64_t)s->n * bs;
    pthread_mutex_unlock(&kv->lock);
    return s->n * bs;
}

uint32_t kv_seq_known(const kv_seq *s)
{
    return s->n_known;
}

void *kv_seq_keep(kv_cache *kv, kv_seq *s, uint32_t pos)
{
    if (!kv->states || !kv->opt.prefix_caching || !pos || pos % kv->opt.block_size || s->commit_stopped)
        return NULL;
    for (uint32_t i = 0; i < s->n_kept; i++) /* the step that should have filled it failed */
        if (s->kept[i].pos == pos)
            return kv_states_copy_ptr(kv->states, s->kept[i].copy);
    if (s->n_kept == KV_MAX_KEPT)
        return NULL;
    pthread_mutex_lock(&kv->lock);
    const uint32_t c = kv_states_copy_take(kv->states);
    pthread_mutex_unlock(&kv->lock);
    if (c == KV_NONE)
        return NULL;
    s->kept[s->n_kept].pos = pos;
    s->kept[s->n_kept++].copy = c;
    return kv_states_copy_ptr(kv->states, c);
}

/* Copies that have been filled go to the nodes of their prefixes. */
static void give_kept(kv_cache *kv, kv_seq *s, uint32_t n)
{
    uint32_t left = 0;
    for (uint32_t i = 0; i < s->n_kept; i++) {
        const uint32_t depth = s->kept[i].pos / kv->opt.block_size, c = s->kept[i].copy;
        if (s->kept[i].pos > n) {
            s->kept[left++] = s->kept[i];
            continue;
        }
        uint32_t node = depth <= s->n_committed ? s->tail_node : KV_NONE;
        for (uint32_t d = s->n_committed; node != KV_NONE && d > depth; d--)
            node = kv_prefix_parent(kv->prefix, node);
        if (node == KV_NONE || copy_of(kv, node) != KV_NONE) {
            kv_states_copy_give(kv->states, c);
            continue;
        }
        kv_states_copy_of(kv->states, c, node);
        kv_prefix_set_state(kv->prefix, node, c);
        kv->stats.states_kept++;
    }
    s->n_kept = left;
}

static void commit_blocks(kv_cache *kv, kv_seq *s, const uint32_t *ids, uint32_t n)
{
    const uint32_t bs = kv->opt.block_size;
    while (s->n_committed < n / bs && s->n_committed < s->n) {
        uint32_t i = s->n_committed, b = s->blocks[i];
        uint32_t node = kv_prefix_intern(kv->prefix, s->tail_node, ids + (size_t)i * bs);
        if (node == KV_NONE) {
            s->commit_stopped = true;
            break;
        }
        uint32_t at = kv_prefix_place(kv->prefix, node);
        /* A copy in the swap space gives way to ours, which is usable at once. */
        if (at != KV_NONE && kv_place_is_host(kv, at) && !kv_place_is_host(kv, b) && !kv->places[at].refs) {
            kv_place_ref(kv, at);
            kv->places[at].node = KV_NONE;
            kv_place_release(kv, at);
            at = KV_NONE;
        }
        if (at == KV_NONE && kv->places[b].node == KV_NONE)
            kv_place_set_node(kv, b, node);
        set_tail(kv, s, node, i + 1);
    }
}

void kv_seq_commit(kv_cache *kv, kv_seq *s, const uint32_t *ids, uint32_t n)
{
    if (!kv->opt.prefix_caching || s->commit_stopped || s->swapped || n / kv->opt.block_size <= s->n_committed)
        return;
    pthread_mutex_lock(&kv->lock);
    commit_blocks(kv, s, ids, n);
    give_kept(kv, s, n);
    pthread_mutex_unlock(&kv->lock);
}

uint32_t kv_seq_fork(kv_cache *kv, const kv_seq *from, kv_seq *to, uint32_t n)
{
    uint32_t k = XD_MIN(n / kv->opt.block_size, from->n);
    /* Where there are states, `to` finds that of the prefix by itself. */
    if (to->n || from->swapped || !k || kv->states || !kv_seq_room(to, k))
        return 0;
    pthread_mutex_lock(&kv->lock);
    for (uint32_t i = 0; i < k; i++) {
        kv_place_ref(kv, from->blocks[i]);
        to->blocks[i] = from->blocks[i];
    }
    to->n = k;
    uint32_t node = from->tail_node, c = from->n_committed;
    for (; c > k; c--)
        node = kv_prefix_parent(kv->prefix, node);
    set_tail(kv, to, node, c);
    pthread_mutex_unlock(&kv->lock);
    return k * kv->opt.block_size;
}
