/* kv_reuse.c - what a sequence takes over from others: blocks of a prefix that was computed before (kv_prefix.c says which those are), the state behind
 * it where layers are linear, and blocks of the sequence it is forked from. And what it leaves for others: full blocks, copies of states, and what lies
 * before its windows. */
#include "engine/memory/kv_priv.h"

static void set_tail(kv_cache *kv, kv_seq *s, uint32_t node, uint32_t n_committed)
{
    kv_prefix_hold(kv->prefix, node);
    kv_prefix_drop(kv->prefix, s->tail_node);
    s->tail_node = node;
    s->n_committed = n_committed;
}

/* Moves block i of a group from the swap space, where kernels cannot read it, to the device. False: there is no room. */
static bool bring_in(kv_cache *kv, kv_seq *s, uint32_t group, uint32_t i)
{
    uint32_t *at = kv_seq_block(s, group, i), b = *at;
    const uint32_t node = kv->places[b].node;
    const uint32_t dev_b = kv_place_take_dev(kv, group);
    if (dev_b == KV_NONE || kv_place_copy_in(kv, dev_b, b) != KERN_OK) {
        if (dev_b != KV_NONE)
            kv_place_release(kv, dev_b);
        return false;
    }
    kv_place_forget_node(kv, b); /* the sequence's tail keeps the node alive */
    kv_place_release(kv, b);
    kv_place_set_node(kv, dev_b, node);
    *at = dev_b;
    kv->stats.swapped_in++;
    return true;
}

/* The copy of the state behind the prefix that ends with `node`. */
static uint32_t copy_of(const kv_cache *kv, uint32_t node)
{
    const uint32_t c = kv_prefix_state(kv->prefix, node);
    return c != KV_NONE && kv_states_node_of(kv->states, c) == node ? c : KV_NONE;
}

/* How many of the first n_max units of ids can be taken over: the most behind which there is all that the next token sees, and a copy of the state
 * where there are states. */
static uint32_t find_prefix(kv_cache *kv, kv_seq *s, const uint32_t *ids, uint32_t n_max, uint32_t *ret_copy)
{
    const uint32_t bs = kv->opt.block_size;
    uint32_t node = KV_NONE, best = 0, run[KV_MAX_GROUPS] = {0}; /* run: blocks of a group up to here without a gap */
    bool goes_on = true;
    *ret_copy = KV_NONE;
    s->n_known = 0;
    for (uint32_t i = 0; i < n_max && goes_on; i++) {
        node = kv_prefix_find(kv->prefix, node, ids + (size_t)i * bs);
        if (node == KV_NONE)
            break;
        bool there = (i + 1) % kv->whole == 0;
        for (uint32_t g = 0; g < kv->opt.n_groups; g++) {
            if (!kv_ends_block(kv, g, i))
                continue;
            run[g] = kv_prefix_place(kv->prefix, node, g) == KV_NONE ? 0 : run[g] + 1;
            there = there && run[g] >= kv_blocks_in(kv, g, i + 1) - kv_first_seen(kv, g, (i + 1) * bs);
            goes_on = goes_on && (run[g] || kv->opt.window[g]);
        }
        if (!there)
            continue;
        s->n_known = (i + 1) * bs;
        const uint32_t c = kv->states ? copy_of(kv, node) : KV_NONE;
        if (kv->states && c == KV_NONE)
            continue;
        *ret_copy = c;
        best = i + 1;
    }
    return best;
}

/* The sequence becomes an owner of the first n units of ids: first of all of them, so that making room for one cannot take another. */
static bool take_prefix(kv_cache *kv, kv_seq *s, const uint32_t *ids, uint32_t n)
{
    if (!kv_seq_room(kv, s, n))
        return false;
    for (uint32_t g = 0; g < kv->opt.n_groups; g++)
        s->first[g] = kv_first_seen(kv, g, n * kv->opt.block_size);
    for (; s->n < n; s->n++) {
        const uint32_t node = kv_prefix_find(kv->prefix, s->tail_node, ids + (size_t)s->n * kv->opt.block_size);
        for (uint32_t g = 0; g < kv->opt.n_groups; g++) {
            if (!kv_ends_block(kv, g, s->n))
                continue;
            const uint32_t b = kv_block_of(kv, g, s->n);
            uint32_t *at = kv_seq_block(s, g, b);
            *at = b < s->first[g] ? KV_NONE : kv_prefix_place(kv->prefix, node, g);
            if (*at != KV_NONE)
                kv_place_ref(kv, *at);
        }
        set_tail(kv, s, node, s->n + 1);
    }
    return true;
}

/* Those of its blocks that kernels cannot read where they are are moved. Returns how many units it has then: where room ends, the others are left. */
static uint32_t bring_prefix(kv_cache *kv, kv_seq *s)
{
    for (uint32_t n = 0; n < s->n; n++)
        for (uint32_t g = 0; g < kv->opt.n_groups; g++) {
            const uint32_t b = kv_block_of(kv, g, n);
            if (kv_begins_block(kv, g, n) && b >= s->first[g] && kv_place_is_host(kv, *kv_seq_block(s, g, b)) &&
                !bring_in(kv, s, g, b))
                return n / kv->whole * kv->whole;
        }
    return s->n;
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
    uint32_t c;
    const uint32_t found = find_prefix(kv, s, ids, (n - 1) / bs, &c);
    if (found && take_prefix(kv, s, ids, found)) {
        const uint32_t n_there = kv->opt.allow_cold ? found : bring_prefix(kv, s);
        for (uint32_t i = s->n; i > n_there; i--)
            set_tail(kv, s, kv_prefix_parent(kv->prefix, s->tail_node), i - 1);
        kv_seq_cut(kv, s, n_there);
        /* A beginning of what was found is of use only where neither a window nor a state belongs to its end. */
        if ((n_there < found && (kv->windows || kv->states)) || (kv->states && !take_state(kv, s, c)))
            kv_seq_drop_locked(kv, s);
    }
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
    if (!kv->states || !kv->opt.prefix_caching || !pos || pos % kv_whole_tokens(&kv->opt) || s->commit_stopped)
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

static void commit_place(kv_cache *kv, uint32_t node, uint32_t group, uint32_t b)
{
    uint32_t at = kv_prefix_place(kv->prefix, node, group);
    /* A copy in the swap space gives way to ours, which is usable at once. */
    if (at != KV_NONE && kv_place_is_host(kv, at) && !kv_place_is_host(kv, b) && !kv->places[at].refs) {
        kv_place_ref(kv, at);
        kv->places[at].node = KV_NONE;
        kv_place_release(kv, at);
        at = KV_NONE;
    }
    if (at == KV_NONE && kv->places[b].node == KV_NONE)
        kv_place_set_node(kv, b, node);
}

static void commit_blocks(kv_cache *kv, kv_seq *s, const uint32_t *ids, uint32_t n)
{
    const uint32_t bs = kv->opt.block_size;
    while (s->n_committed < n / bs && s->n_committed < s->n) {
        const uint32_t i = s->n_committed;
        uint32_t node = kv_prefix_intern(kv->prefix, s->tail_node, ids + (size_t)i * bs);
        if (node == KV_NONE) {
            s->commit_stopped = true;
            break;
        }
        for (uint32_t g = 0; g < kv->opt.n_groups; g++)
            if (kv_ends_block(kv, g, i) && kv_block_of(kv, g, i) >= s->first[g])
                commit_place(kv, node, g, *kv_seq_block(s, g, kv_block_of(kv, g, i)));
        set_tail(kv, s, node, i + 1);
    }
}

/* The first n tokens are there. What the first of the last kv_whole_tokens() sees is kept, so that a fork, which begins there, finds it. */
static void release_unseen(kv_cache *kv, kv_seq *s, uint32_t n)
{
    const uint32_t whole = kv_whole_tokens(&kv->opt), last = (n - 1) / whole * whole;
    for (uint32_t g = 0; g < kv->opt.n_groups; g++)
        for (const uint32_t end = kv_first_seen(kv, g, last); s->first[g] < end; s->first[g]++) {
            uint32_t *b = kv_seq_block(s, g, s->first[g]);
            kv_place_release(kv, *b);
            *b = KV_NONE;
            kv->stats.window_released++;
        }
}

void kv_seq_commit(kv_cache *kv, kv_seq *s, const uint32_t *ids, uint32_t n)
{
    const bool adds = kv->opt.prefix_caching && !s->commit_stopped && n / kv->opt.block_size > s->n_committed;
    if (s->swapped || !n || (!adds && !kv->windows))
        return;
    pthread_mutex_lock(&kv->lock);
    if (adds) {
        commit_blocks(kv, s, ids, n);
        give_kept(kv, s, n);
    }
    release_unseen(kv, s, n);
    pthread_mutex_unlock(&kv->lock);
}

/* All that the token behind the first k units sees is still there. */
static bool sees_all(const kv_cache *kv, const kv_seq *s, uint32_t k)
{
    for (uint32_t g = 0; g < kv->opt.n_groups; g++)
        if (s->first[g] > kv_first_seen(kv, g, k * kv->opt.block_size))
            return false;
    return true;
}

uint32_t kv_seq_fork(kv_cache *kv, const kv_seq *from, kv_seq *to, uint32_t n)
{
    const uint32_t k = XD_MIN(n / kv->opt.block_size, from->n) / kv->whole * kv->whole;
    /* Where there are states, `to` finds that of the prefix by itself. */
    if (to->n || from->swapped || !k || kv->states || !sees_all(kv, from, k) || !kv_seq_room(kv, to, k))
        return 0;
    pthread_mutex_lock(&kv->lock);
    for (uint32_t g = 0; g < kv->opt.n_groups; g++) {
        to->first[g] = kv_first_seen(kv, g, k * kv->opt.block_size);
        for (uint32_t i = 0; i < kv_blocks_in(kv, g, k); i++) {
            const uint32_t b = i < to->first[g] ? KV_NONE : *kv_seq_block(from, g, i);
            *kv_seq_block(to, g, i) = b;
            if (b != KV_NONE)
                kv_place_ref(kv, b);
        }
    }
    to->n = k;
    uint32_t node = from->tail_node, c = from->n_committed;
    for (; c > k; c--)
        node = kv_prefix_parent(kv->prefix, node);
    set_tail(kv, to, node, c);
    pthread_mutex_unlock(&kv->lock);
    return k * kv->opt.block_size;
}
