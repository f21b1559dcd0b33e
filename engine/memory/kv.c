/* kv.c - the paged KV cache: its memory, its sequences and their room, statistics. Who owns which place: kv_place.c; what sequences take over from
 * others: kv_reuse.c; swapping: kv_swap.c.
 *
 * DESIGN
 * A place is a block-sized piece of memory, for any group of layers: device places 0..n_dev-1, host places n_dev..n_dev+n_host-1 (the swap space). With
 * allow_cold the host places are mapped into the device and are ordinary block ids, which steps stage or read directly; otherwise they
 * only hold swapped blocks and evicted prefix blocks, and are copied back before use.
 *
 *   free --reserve--> owned (refs > 0) --release--> cached (a prefix node knows it, refs 0) --evict--> free
 *                                        \--release, unknown--> free        cached device --evict--> cached host, if there is room
 *
 * Invariants
 *  1. A place is in exactly one of: the free list of its kind, the LRU list of its kind (refs 0, node set), or owned (refs > 0).
 *  2. node.place[g] == b exactly when place b has .node == that node and .group == g; a node has at most one place for each group. A node is of
 *     block_size tokens. A block of several times as many is at the node of its last ones.
 *  3. Only blocks that lie wholly before a sequence's committed length are shared, and those are never written again.
 *  4. The LRU lists are oldest first; a sequence is released from its end, so a prefix outlives what follows it.
 *  5. Every copy is made in stream order on the compute stream; a host place whose download may still be running is read by us only
 *     after a sync.
 *  6. A sequence has a slot while it has room for tokens, and no slot while it has none or is swapped: then it has a copy.
 *  7. Of a group with a window, a sequence has the blocks from first[g] to its end, and what its next token sees is among them. Two groups with the
 *     same window have the same first. So a sequence whose tokens all fit without a window needs no more with one.
 *  8. A copy is a prefix's when the node names it and it names the node (kv_state.c).
 * The mutex exists for the statistics, which any thread reads; the engine thread is the only writer. */
#include "engine/memory/kv_priv.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>

enum { MOST_COPIES = 4096 };

/* Of a token in a layer: K and V, without an indexer's key. */
static uint64_t row_bytes_of(const kv_options *o)
{
    return (o->v_dim ? 1ull : 2ull) * o->n_kv_heads * kern_row_bytes(o->fmt, o->head_dim);
}

static uint64_t layer_bytes_of(const kv_options *o)
{
    return o->block_size * (row_bytes_of(o) + kern_row_bytes(o->fmt, o->index_dim));
}

static uint64_t copy_bytes(const kv_options *opt)
{
    return xd_align_up(opt->state_bytes, 4096);
}

uint64_t kv_copies_bytes(const kv_options *opt)
{
    return opt->n_states ? XD_MIN(opt->state_host_bytes / copy_bytes(opt), (uint64_t)MOST_COPIES) * copy_bytes(opt) : 0;
}

uint64_t kv_block_bytes(const kv_options *opt)
{
    return xd_align_up(layer_bytes_of(opt) * opt->n_layers, 256);
}

uint32_t kv_block_tokens(const kv_options *opt, uint32_t group)
{
    return XD_MAX(opt->span[group], 1u) * opt->block_size;
}

static uint32_t n_groups_of(const kv_options *o)
{
    return XD_MAX(o->n_groups, 1u);
}

uint32_t kv_whole_tokens(const kv_options *opt)
{
    uint32_t most = 0;
    for (uint32_t g = 0; g < n_groups_of(opt); g++) /* powers of two: the largest is a multiple of all */
        most = XD_MAX(most, kv_block_tokens(opt, g));
    return most;
}

uint64_t kv_token_bytes(const kv_options *opt)
{
    uint64_t sum = 0;
    for (uint32_t g = 0; g < n_groups_of(opt); g++)
        sum += kv_block_bytes(opt) / kv_block_tokens(opt, g);
    return sum;
}

/* Kernels find layer l of a block at its address + l * layer_bytes. So that one table serves all layers of an area, layer l lies
 * that far from the area's begin: hence n_layers more than there are blocks. */
static uint64_t stage_area_bytes(const kv_options *o, uint32_t blocks)
{
    return ((uint64_t)blocks + o->n_layers) * layer_bytes_of(o);
}

uint64_t kv_stage_bytes(const kv_options *opt, uint32_t blocks)
{
    return blocks ? 2 * stage_area_bytes(opt, blocks) : 0;
}

uint32_t kv_stage_fit(const kv_options *opt, uint64_t bytes)
{
    uint64_t n = bytes / 2 / layer_bytes_of(opt);
    if (layer_bytes_of(opt) % 16 || n <= opt->n_layers)
        return 0;
    return (uint32_t)XD_MIN(n - opt->n_layers, (uint64_t)KV_NONE / 4);
}

static uint32_t greatest_divisor(uint32_t a, uint32_t b)
{
    return b ? greatest_divisor(b, a % b) : a;
}

/* How many of the layers have that window. */
static uint32_t count_window(const uint32_t *window, uint32_t n, uint32_t w)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < n; i++)
        count += window[i] == w;
    return count;
}

/* Of layers with window w, in a block that has room for layers of `widest` columns. Not more than 4, since prefixes end with whole blocks. */
static uint32_t span_of(const uint32_t *window, const uint32_t *width, uint32_t n, uint32_t w, uint32_t widest)
{
    uint32_t own = 1;
    for (uint32_t i = 0; i < n; i++)
        own = window[i] == w ? XD_MAX(own, width[i]) : own;
    return widest / own >= 4 ? 4 : widest / own >= 2 ? 2 : 1;
}

void kv_set_groups(kv_options *opt, const uint32_t *window, const uint32_t *width, uint32_t n)
{
    const uint32_t n_full = count_window(window, n, 0);
    uint32_t size = n_full;
    for (uint32_t i = 0; i < n; i++)
        size = greatest_divisor(size, count_window(window, n, window[i]));
    opt->n_layers = size;
    opt->n_groups = n / XD_MAX(size, 1u);
    memset(opt->window, 0, sizeof opt->window);
    memset(opt->span, 0, sizeof opt->span);
    if (opt->n_groups > KV_MAX_GROUPS) {
        opt->n_layers = n;
        opt->n_groups = 1;
        return;
    }
    uint32_t widest = 0;
    for (uint32_t i = 0; i < n; i++)
        widest = XD_MAX(widest, width[i]);
    uint32_t g = n_full / XD_MAX(size, 1u); /* groups without a window come first */
    for (uint32_t i = 0; i < n; i++) {
        if (!window[i] || count_window(window, i, window[i]))
            continue;
        for (uint32_t k = count_window(window, n, window[i]); k; k -= size)
            opt->window[g++] = window[i];
    }
    for (g = 0; g < opt->n_groups; g++)
        opt->span[g] = span_of(window, width, n, opt->window[g], widest);
}

void kv_deal_layers(const kv_options *opt, const uint32_t *window, uint32_t n, kv_layer *ret)
{
    uint32_t taken[KV_MAX_GROUPS] = {0};
    for (uint32_t i = 0; i < n; i++) {
        uint32_t g = 0;
        while (n_groups_of(opt) > 1 && (opt->window[g] != window[i] || taken[g] == opt->n_layers))
            g++;
        ret[i] = (kv_layer){.group = g, .idx = taken[g]++};
    }
}

static uint64_t blocks_for(const kv_options *o, uint32_t group, uint64_t tokens)
{
    const uint32_t each = kv_block_tokens(o, group);
    return (tokens + each - 1) / each;
}

/* A sequence keeps what the first of its last kv_whole_tokens() sees (release_unseen() in kv_reuse.c), and in a step has all new tokens beside
 * that. */
uint64_t kv_blocks_of(const kv_options *opt, uint64_t n_seqs, uint64_t tokens, uint64_t step_tokens)
{
    uint64_t sum = 0;
    for (uint32_t g = 0; g < n_groups_of(opt); g++) {
        const uint64_t whole = n_seqs * blocks_for(opt, g, tokens);
        const uint64_t seen = opt->window[g] ? blocks_for(opt, g, opt->window[g] - 1) : whole;
        const uint64_t last = blocks_for(opt, g, kv_whole_tokens(opt));
        sum += XD_MIN(whole, n_seqs * (seen + last + 1) - 1 + blocks_for(opt, g, step_tokens));
    }
    return sum;
}

uint32_t kv_chunk(const kv_options *opt, uint64_t tokens)
{
    enum { LEAST = 512, SHARE = 8 };
    uint64_t full = 0, windowed = 0; /* blocks of kv_whole_tokens() */
    for (uint32_t g = 0; g < n_groups_of(opt); g++)
        *(opt->window[g] ? &windowed : &full) += kv_whole_tokens(opt) / kv_block_tokens(opt, g);
    if (!windowed)
        return UINT32_MAX;
    const uint64_t part = tokens * XD_MAX(full, 1u) / (SHARE * windowed);
    return (uint32_t)XD_MIN(XD_MAX(part, (uint64_t)LEAST), (uint64_t)opt->step_tokens);
}

uint64_t kv_context_blocks(const kv_options *opt, uint64_t tokens)
{
    return kv_blocks_of(opt, 1, tokens, kv_chunk(opt, tokens));
}

uint64_t kv_context_tokens(const kv_options *opt, uint64_t blocks)
{
    uint64_t least = 0, most = UINT32_MAX / opt->block_size; /* blocks in a row */
    while (least < most) {
        const uint64_t mid = least + (most - least + 1) / 2;
        if (kv_context_blocks(opt, mid * opt->block_size) <= blocks)
            least = mid;
        else
            most = mid - 1;
    }
    return least * opt->block_size;
}

uint64_t kv_seen_bytes(const kv_options *opt, uint64_t pos, uint64_t n)
{
    uint64_t sum = 0;
    for (uint32_t g = 0; g < n_groups_of(opt); g++) {
        const uint64_t positions = opt->window[g] ? XD_MIN(pos, opt->window[g] - 1ull) + n : pos + n;
        const uint64_t unseen =
            opt->index_dim && positions > n * opt->index_top_k ? positions - n * opt->index_top_k : 0;
        sum += positions * opt->n_layers * (layer_bytes_of(opt) / kv_block_tokens(opt, g)) -
               unseen * opt->n_layers * row_bytes_of(opt);
    }
    return sum;
}

uint64_t kv_state_layer_bytes(uint64_t floats)
{
    return xd_align_up(floats * sizeof(float), 256);
}

/* --- life -------------------------------------------------------------------------------------------------------- */

static xd_status open_stage(kv_cache *kv, const uint64_t *addr, uint32_t n_ids, xd_err *err)
{
    const kern_ops *ops = kv->opt.dev->ops;
    const uint32_t n = kv->opt.stage_blocks;
    const uint64_t bytes = ((uint64_t)n_ids + n) * sizeof *addr;
    XD_CLEANUP(xd_freep) uint64_t *table = malloc(bytes);
    if (!table)
        return xd_fail(err, XD_NOMEM, 0, "KV cache: staging table");
    memcpy(table, addr, n_ids * sizeof *addr);
    kern_status ks = ops->alloc(kv->opt.dev, kv_stage_bytes(&kv->opt, n), (void **)&kv->stage);
    for (uint32_t a = 0; a < 2 && !ks; a++) {
        uint64_t base = (uint64_t)(uintptr_t)kv->stage + a * stage_area_bytes(&kv->opt, n);
        for (uint32_t i = 0; i < n; i++)
            table[n_ids + i] = base + i * kv->layer_bytes;
        if (!(ks = ops->alloc(kv->opt.dev, bytes, (void **)&kv->stage_addr[a])) &&
            !(ks = ops->upload(kv->opt.dev, kv->stage_addr[a], table, bytes)))
            ks = ops->sync(kv->opt.dev);
    }
    return ks ? xd_fail(err, XD_NOMEM, 0, "KV cache: staging of %u blocks (%s)", n, ops->error(kv->opt.dev)) : XD_OK;
}

static xd_status open_memory(kv_cache *kv, xd_err *err)
{
    const kern_ops *ops = kv->opt.dev->ops;
    char a[32];
    uint64_t bytes;
    kern_dev_info dev;
    ops->info(kv->opt.dev, &dev);
    if (!xd_mul_u64(&bytes, kv->n_dev, kv->block_bytes) ||
        ops->alloc(kv->opt.dev, bytes, (void **)&kv->dev_base) != KERN_OK)
        return xd_fail(err, XD_NOMEM, 0, "KV cache: %u blocks of %s do not fit into %s (%s): lower kv.kv_budget",
                       kv->n_dev, xd_format_bytes(a, sizeof a, kv->block_bytes),
                       dev.unified ? "memory" : "device memory", ops->error(kv->opt.dev));
    xd_status st = kv->n_host ? hostmem_open_near(kv->opt.dev, kv->n_host, kv->block_bytes, "KV swap space",
                                                  "kv.swap_space", &kv->host, err)
                              : XD_OK;
    if (st)
        return st;
    uint32_t n_ids = kv_n_ids(kv);
    XD_CLEANUP(xd_freep) uint64_t *addr = malloc(n_ids * sizeof *addr);
    if (!addr)
        return xd_fail(err, XD_NOMEM, 0, "KV cache: address table");
    for (uint32_t b = 0; b < n_ids; b++)
        addr[b] = kv_place_addr(kv, b);
    if (ops->alloc(kv->opt.dev, n_ids * sizeof *addr, (void **)&kv->addr_dev) != KERN_OK ||
        ops->upload(kv->opt.dev, kv->addr_dev, addr, n_ids * sizeof *addr) != KERN_OK ||
        ops->sync(kv->opt.dev) != KERN_OK)
        return xd_fail(err, XD_NOMEM, 0, "KV cache: address table on the device (%s)", ops->error(kv->opt.dev));
    return kv->opt.stage_blocks ? open_stage(kv, addr, n_ids, err) : XD_OK;
}

xd_status kv_open(const kv_options *opt, kv_cache **ret, xd_err *err)
{
    uint64_t block_bytes = kv_block_bytes(opt);
    if (opt->n_blocks < n_groups_of(opt) || !opt->block_size || block_bytes == 0)
        return xd_fail(err, XD_BAD_CONFIG, 0, "KV cache: no room for a single block of %u tokens: raise kv.kv_budget",
                       opt->block_size);
    uint64_t n_host = opt->swap_bytes / xd_align_up(block_bytes, 4096);
    if (opt->n_blocks + n_host >= KV_NONE / 2)
        return xd_fail(err, XD_BAD_CONFIG, 0, "KV cache: more than 2^31 blocks: raise kv.block_size");

    XD_CLEANUP(kv_freep) kv_cache *kv = calloc(1, sizeof *kv);
    if (!kv)
        return xd_fail(err, XD_NOMEM, 0, "KV cache handle");
    pthread_mutex_init(&kv->lock, NULL);
    kv->opt = *opt;
    kv->opt.n_groups = n_groups_of(opt);
    for (uint32_t g = 0; g < kv->opt.n_groups; g++) {
        kv->windows = kv->windows || opt->window[g];
        kv->opt.span[g] = XD_MAX(opt->span[g], 1u);
    }
    kv->whole = kv_whole_tokens(opt) / opt->block_size;
    kv->block_bytes = block_bytes;
    kv->layer_bytes = layer_bytes_of(opt);
    kv->n_dev = opt->n_blocks;
    kv->n_host = (uint32_t)n_host;
    uint32_t n = kv->n_dev + kv->n_host;
    uint64_t salt = 0;
    if (getrandom(&salt, sizeof salt, 0) != sizeof salt)
        return xd_fail(err, XD_INTERNAL, errno, "KV cache: random salt");
    /* Twice the places: room for inner nodes whose own block is gone while a later one is still cached. */
    kv->prefix = kv_prefix_new(opt->prefix_caching ? 2 * n : 0, opt->block_size, kv->opt.n_groups, salt);
    if (!kv->prefix || !kv_places_open(kv))
        return xd_fail(err, XD_NOMEM, 0, "KV cache: tables of %u blocks", n);
    xd_status st = open_memory(kv, err);
    if (!st && opt->n_states) {
        const kv_states_options so = {.dev = opt->dev,
                                      .n_slots = opt->n_states,
                                      .n_copies = (uint32_t)(kv_copies_bytes(opt) / copy_bytes(opt)),
                                      .bytes = opt->state_bytes};
        st = kv_states_open(&so, &kv->states, err);
        kv->stats.states_total = so.n_slots;
        kv->stats.state_copies_total = so.n_copies;
    }
    if (st)
        return st;
    *ret = XD_TAKE(kv);
    return XD_OK;
}

void kv_free(kv_cache *kv)
{
    if (!kv)
        return;
    const kern_ops *ops = kv->opt.dev->ops;
    if (kv->dev_base)
        ops->free(kv->opt.dev, kv->dev_base);
    void *dev_mem[] = {kv->addr_dev, kv->stage, kv->stage_addr[0], kv->stage_addr[1]};
    for (size_t i = 0; i < XD_ARRAY_LEN(dev_mem); i++)
        if (dev_mem[i])
            ops->free(kv->opt.dev, dev_mem[i]);
    hostmem_free(kv->host);
    kv_states_free(kv->states);
    kv_prefix_free(kv->prefix);
    free(kv->places);
    pthread_mutex_destroy(&kv->lock);
    free(kv);
}

const kv_options *kv_get_options(const kv_cache *kv)
{
    return &kv->opt;
}

void kv_describe(const kv_cache *kv, uint32_t group, kern_kv *ret)
{
    *ret = (kern_kv){.block_addr = kv->addr_dev,
                     .block_size = kv_block_tokens(&kv->opt, group),
                     .layer_bytes = kv->layer_bytes,
                     .n_kv_heads = kv->opt.n_kv_heads,
                     .head_dim = kv->opt.head_dim,
                     .v_dim = kv->opt.v_dim,
                     .index_dim = kv->opt.index_dim,
                     .fmt = kv->opt.fmt};
}

bool kv_has_state(const kv_cache *kv)
{
    return kv->states;
}

void kv_describe_state(const kv_cache *kv, void **ret_base, uint64_t *ret_slot_bytes)
{
    *ret_base = kv->states ? kv_states_base(kv->states) : NULL;
    *ret_slot_bytes = kv->states ? kv->opt.state_bytes : 0;
}

uint32_t kv_cold_begin(const kv_cache *kv)
{
    return kv->n_dev;
}

uint32_t kv_stage_begin(const kv_cache *kv)
{
    return kv_n_ids(kv);
}

uint32_t kv_stage_blocks(const kv_cache *kv)
{
    return kv->opt.stage_blocks;
}

void kv_describe_stage(const kv_cache *kv, uint32_t group, uint32_t layer, kern_kv *ret)
{
    kv_describe(kv, group, ret);
    ret->block_addr = kv->stage_addr[layer % 2];
}

uint32_t kv_n_ids(const kv_cache *kv)
{
    return kv->n_dev + (kv->opt.allow_cold ? kv->n_host : 0);
}

/* --- sequences --------------------------------------------------------------------------------------------------- */

xd_status kv_seq_new(kv_cache *kv, kv_seq **ret, xd_err *err)
{
    (void)kv;
    kv_seq *s = calloc(1, sizeof *s);
    if (!s)
        return xd_fail(err, XD_NOMEM, 0, "KV sequence");
    s->tail_node = s->slot = s->copy = KV_NONE;
    *ret = s;
    return XD_OK;
}

static void drop_state(kv_cache *kv, kv_seq *s)
{
    if (s->slot != KV_NONE)
        kv_states_give(kv->states, s->slot);
    if (s->copy != KV_NONE)
        kv_states_copy_give(kv->states, s->copy);
    while (s->n_kept)
        kv_states_copy_give(kv->states, s->kept[--s->n_kept].copy);
    s->slot = s->copy = KV_NONE;
}

void kv_seq_cut(kv_cache *kv, kv_seq *s, uint32_t n)
{
    for (; s->n > n; s->n--)
        for (uint32_t g = 0; g < kv->opt.n_groups; g++)
            if (kv_begins_block(kv, g, s->n - 1) && s->first[g] <= kv_block_of(kv, g, s->n - 1))
                kv_place_release(kv, *kv_seq_block(s, g, kv_block_of(kv, g, s->n - 1)));
}

void kv_seq_drop_locked(kv_cache *kv, kv_seq *s)
{
    drop_state(kv, s);
    kv_seq_cut(kv, s, 0);
    memset(s->first, 0, sizeof s->first);
    kv_prefix_drop(kv->prefix, s->tail_node);
    s->tail_node = KV_NONE;
    s->n_committed = 0;
    s->swapped = s->commit_stopped = false;
}

void kv_seq_drop(kv_cache *kv, kv_seq *s)
{
    pthread_mutex_lock(&kv->lock);
    kv_seq_drop_locked(kv, s);
    pthread_mutex_unlock(&kv->lock);
}

void kv_seq_free(kv_cache *kv, kv_seq *s)
{
    if (!s)
        return;
    kv_seq_drop(kv, s);
    free(s->blocks);
    free(s);
}

uint32_t kv_seq_state(const kv_seq *s)
{
    return s->slot;
}

const uint32_t *kv_seq_blocks(const kv_seq *s, uint32_t *ret_n)
{
    *ret_n = s->swapped ? 0 : s->n;
    return s->blocks;
}

uint32_t kv_seq_stride(const kv_seq *s)
{
    return s->cap;
}

bool kv_seq_room(const kv_cache *kv, kv_seq *s, uint32_t n)
{
    if (n <= s->cap)
        return true;
    const uint32_t cap = XD_MAX(n, s->cap + s->cap / 2 + 8);
    uint32_t *blocks = reallocarray(s->blocks, cap, kv->opt.n_groups * sizeof *blocks);
    if (!blocks)
        return false;
    for (uint32_t g = kv->opt.n_groups; g-- > 1;) /* rows move apart, the last one first */
        memmove(blocks + (size_t)g * cap, blocks + (size_t)g * s->cap, s->n * sizeof *blocks);
    s->blocks = blocks;
    s->cap = cap;
    return true;
}

static uint32_t take_usable(kv_cache *kv, uint32_t group)
{
    uint32_t b = kv_place_take_dev(kv, group);
    return b == KV_NONE && kv->opt.allow_cold ? kv_place_take_host(kv, group) : b;
}

static uint32_t usable(const kv_cache *kv)
{
    return kv_places_available(kv, 0) + (kv->opt.allow_cold ? kv_places_available(kv, 1) : 0);
}

/* Blocks of all groups that units [from, to) begin. */
static uint64_t blocks_begun(const kv_cache *kv, uint32_t from, uint32_t to)
{
    uint64_t sum = 0;
    for (uint32_t g = 0; g < kv->opt.n_groups; g++)
        sum += kv_blocks_in(kv, g, to) - kv_blocks_in(kv, g, from);
    return sum;
}

uint64_t kv_seq_most(kv_cache *kv, const kv_seq *s)
{
    pthread_mutex_lock(&kv->lock);
    const uint64_t n = usable(kv);
    pthread_mutex_unlock(&kv->lock);
    /* Wherever it stands, `whole` units more begin as many blocks. */
    const uint64_t each = blocks_begun(kv, 0, kv->whole);
    uint32_t rest = s->n;
    while (blocks_begun(kv, s->n, rest + 1) <= n % each)
        rest++;
    return (n / each * kv->whole + rest) * kv->opt.block_size;
}

xd_status kv_seq_reserve(kv_cache *kv, kv_seq *s, uint32_t n_tokens)
{
    uint32_t need = n_tokens / kv->opt.block_size + (n_tokens % kv->opt.block_size != 0);
    const bool wants_slot = kv->states && s->slot == KV_NONE;
    if (s->swapped)
        return XD_INTERNAL;
    if (need <= s->n && !wants_slot)
        return XD_OK;
    if (!kv_seq_room(kv, s, need))
        return XD_NOMEM;
    const uint64_t more = need > s->n ? blocks_begun(kv, s->n, need) : 0;
    pthread_mutex_lock(&kv->lock);
    xd_status st = XD_BUSY;
    if (more <= usable(kv) && (!wants_slot || (s->slot = kv_states_take(kv->states)) != KV_NONE)) {
        for (; s->n < need; s->n++)
            for (uint32_t g = 0; g < kv->opt.n_groups; g++)
                if (kv_begins_block(kv, g, s->n))
                    *kv_seq_block(s, g, kv_block_of(kv, g, s->n)) = take_usable(kv, g);
        st = XD_OK;
    }
    pthread_mutex_unlock(&kv->lock);
    return st;
}

/* --- statistics -------------------------------------------------------------------------------------------------- */

void kv_get_stats(kv_cache *kv, kv_stats *ret)
{
    pthread_mutex_lock(&kv->lock);
    *ret = kv->stats;
    int last = kv->opt.allow_cold ? 1 : 0;
    for (int t = 0; t <= last; t++) {
        ret->tier[t].total = t ? kv->n_host : kv->n_dev;
        ret->tier[t].cached = kv->tier[t].lru.count;
        ret->tier[t].used = ret->tier[t].total - kv_places_available(kv, t);
        ret->blocks_cached += ret->tier[t].cached;
        ret->blocks_used += ret->tier[t].used;
    }
    if (kv->states)
        kv_states_count(kv->states, &ret->states_used, &ret->state_copies_used);
    ret->blocks_total = kv_n_ids(kv);
    ret->swap_blocks_total = kv->n_host;
    ret->swap_blocks_used = kv->n_host - kv->tier[1].n_free;
    pthread_mutex_unlock(&kv->lock);
}
