/* kv.c - the paged KV cache: who owns which block, what lies where.
 *
 * DESIGN
 * A place is a block-sized piece of memory: device places 0..n_dev-1, host places n_dev..n_dev+n_host-1 (the swap space). With
 * allow_cold the host places are mapped into the device and are ordinary block ids, which steps stage or read directly; otherwise they
 * only hold swapped blocks and evicted prefix blocks, and are copied back before use.
 *
 *   free --reserve--> owned (refs > 0) --release--> cached (a prefix node knows it, refs 0) --evict--> free
 *                                        \--release, unknown--> free        cached device --evict--> cached host, if there is room
 *
 * Invariants
 *  1. A place is in exactly one of: the free list of its kind, the LRU list of its kind (refs 0, node set), or owned (refs > 0).
 *  2. node.place == b exactly when place b has .node == that node; a node has at most one place.
 *  3. Only blocks that lie wholly before a sequence's committed length are shared, and those are never written again.
 *  4. The LRU lists are oldest first; a sequence is released from its end, so a prefix outlives what follows it.
 *  5. Every copy is made in stream order on the compute stream; a host place whose download may still be running is read by us only
 *     after a sync.
 *  6. A sequence has a slot while it has room for tokens, and no slot while it has none or is swapped: then it has a copy.
 *  7. A copy is a prefix's when the node names it and it names the node (kv_state.c).
 * The mutex exists for the statistics, which any thread reads; the engine thread is the only writer. */
#include "engine/memory/kv.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/random.h>

#include "engine/memory/hostmem_priv.h"
#include "engine/memory/kv_prefix_priv.h"
#include "engine/memory/kv_state_priv.h"

enum { MAX_KEPT = 2, MOST_COPIES = 4096 };

typedef struct kv_place {
    uint32_t refs, node;
    uint32_t prev, next; /* in the LRU list or (next only) the free list */
} kv_place;

typedef struct kv_list { /* of places: LRU, oldest first */
    uint32_t head, tail, count;
} kv_list;

typedef struct kv_tier {
    kv_list lru;
    uint32_t free_head, n_free;
} kv_tier;

struct kv_cache {
    kv_options opt;
    uint64_t block_bytes, layer_bytes;
    uint32_t n_dev, n_host;
    char *dev_base;
    hostmem *host;
    uint64_t *addr_dev;      /* device [n_dev + n_host if allow_cold] */
    char *stage;             /* two areas of stage_blocks + n_layers layers */
    uint64_t *stage_addr[2]; /* device: addr_dev, then the staged blocks of an area */
    kv_place *places;
    kv_tier tier[2]; /* device, host */
    kv_prefix *prefix;
    kv_states *states; /* NULL: no linear layers */
    bool download_pending;
    pthread_mutex_t lock;
    kv_stats stats;
};

struct kv_seq {
    uint32_t *blocks;
    uint32_t n, cap;
    uint32_t n_committed, tail_node; /* blocks that prefix nodes know; the node of the last one (held) */
    uint32_t n_known;                /* tokens */
    uint32_t slot, copy;             /* of its state; copy: while it is swapped */
    struct {                         /* copies that the next step fills */
        uint32_t pos, copy;
    } kept[MAX_KEPT];
    uint32_t n_kept;
    bool swapped, commit_stopped;
};

static uint64_t layer_bytes_of(const kv_options *o)
{
    return (o->v_dim ? 1ull : 2ull) * o->n_kv_heads * o->block_size * kern_row_bytes(o->fmt, o->head_dim);
}

uint64_t kv_block_bytes(const kv_options *opt)
{
    return xd_align_up(layer_bytes_of(opt) * opt->n_layers, 256);
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

uint64_t kv_state_layer_bytes(const kern_delta_geom *g)
{
    return xd_align_up(kern_delta_state_floats(g) * sizeof(float), 256);
}

/* --- lists ------------------------------------------------------------------------------------------------------- */

static bool is_host(const kv_cache *kv, uint32_t b)
{
    return b >= kv->n_dev;
}

static void lru_unlink(kv_cache *kv, uint32_t b)
{
    kv_list *l = &kv->tier[is_host(kv, b)].lru;
    kv_place *p = &kv->places[b];
    *(p->prev == KV_NONE ? &l->head : &kv->places[p->prev].next) = p->next;
    *(p->next == KV_NONE ? &l->tail : &kv->places[p->next].prev) = p->prev;
    l->count--;
}

static void lru_append(kv_cache *kv, uint32_t b)
{
    kv_list *l = &kv->tier[is_host(kv, b)].lru;
    kv->places[b].prev = l->tail;
    kv->places[b].next = KV_NONE;
    *(l->tail == KV_NONE ? &l->head : &kv->places[l->tail].next) = b;
    l->tail = b;
    l->count++;
}

static void put_free(kv_cache *kv, uint32_t b)
{
    kv_tier *t = &kv->tier[is_host(kv, b)];
    kv->places[b].next = t->free_head;
    t->free_head = b;
    t->n_free++;
}

static void forget_node(kv_cache *kv, uint32_t b)
{
    uint32_t node = kv->places[b].node;
    kv->places[b].node = KV_NONE;
    kv_prefix_set_place(kv->prefix, node, KV_NONE);
}

static void attach_node(kv_cache *kv, uint32_t b, uint32_t node)
{
    kv->places[b].node = node;
    kv_prefix_set_place(kv->prefix, node, b);
}

static void take_ref(kv_cache *kv, uint32_t b)
{
    if (!kv->places[b].refs++)
        lru_unlink(kv, b);
}

static void release(kv_cache *kv, uint32_t b)
{
    if (--kv->places[b].refs)
        return;
    if (kv->places[b].node == KV_NONE)
        put_free(kv, b);
    else
        lru_append(kv, b);
}

static uint32_t available(const kv_cache *kv, int tier)
{
    return kv->tier[tier].n_free + kv->tier[tier].lru.count;
}

/* --- copies ------------------------------------------------------------------------------------------------------ */

static char *dev_ptr(const kv_cache *kv, uint32_t b)
{
    return kv->dev_base + b * kv->block_bytes;
}

static void *host_ptr(const kv_cache *kv, uint32_t b)
{
    return hostmem_ptr(kv->host, b - kv->n_dev);
}

static kern_status copy_out(kv_cache *kv, uint32_t host_b, uint32_t dev_b)
{
    uint64_t begin_ns = xd_now_ns();
    kv->download_pending = true;
    kern_status st = kv->opt.dev->ops->download(kv->opt.dev, host_ptr(kv, host_b), dev_ptr(kv, dev_b), kv->block_bytes);
    kv->stats.swap_ns += xd_now_ns() - begin_ns;
    return st;
}

static kern_status copy_in(kv_cache *kv, uint32_t dev_b, uint32_t host_b)
{
    const kern_ops *ops = kv->opt.dev->ops;
    uint64_t begin_ns = xd_now_ns();
    /* Kernels may have written a cold block, and a download may be running: both are in the stream. */
    if (kv->download_pending || kv->opt.allow_cold) {
        kern_status st = ops->sync(kv->opt.dev);
        if (st)
            return st;
        kv->download_pending = false;
    }
    kern_status st = ops->upload(kv->opt.dev, dev_ptr(kv, dev_b), host_ptr(kv, host_b), kv->block_bytes);
    kv->stats.swap_ns += xd_now_ns() - begin_ns;
    return st;
}

/* --- taking places ----------------------------------------------------------------------------------------------- */

static uint32_t pop_free(kv_cache *kv, int tier)
{
    kv_tier *t = &kv->tier[tier];
    uint32_t b = t->free_head;
    if (b != KV_NONE) {
        t->free_head = kv->places[b].next;
        t->n_free--;
    }
    return b;
}

static uint32_t take_host(kv_cache *kv)
{
    uint32_t b = pop_free(kv, 1);
    if (b == KV_NONE && (b = kv->tier[1].lru.head) != KV_NONE) {
        lru_unlink(kv, b);
        forget_node(kv, b);
        kv->stats.evictions++;
    }
    if (b != KV_NONE) {
        kv->places[b].refs = 1;
        kv->places[b].node = KV_NONE;
    }
    return b;
}

/* A device place with refs 1, or KV_NONE. The oldest cached block makes room and moves to the swap space if there is any. */
static uint32_t take_dev(kv_cache *kv)
{
    uint32_t b = pop_free(kv, 0);
    if (b == KV_NONE && (b = kv->tier[0].lru.head) != KV_NONE) {
        uint32_t node = kv->places[b].node;
        kv_prefix_hold(kv->prefix, node); /* evicting a host block must not prune it */
        lru_unlink(kv, b);
        forget_node(kv, b);
        uint32_t host_b = take_host(kv);
        if (host_b != KV_NONE && copy_out(kv, host_b, b) == KERN_OK) {
            attach_node(kv, host_b, node);
            release(kv, host_b);
            kv->stats.swapped_out++;
        } else {
            if (host_b != KV_NONE)
                release(kv, host_b);
            kv->stats.evictions++;
        }
        kv_prefix_drop(kv->prefix, node);
    }
    if (b != KV_NONE) {
        kv->places[b].refs = 1;
        kv->places[b].node = KV_NONE;
    }
    return b;
}

static bool seq_room(kv_seq *s, uint32_t n)
{
    if (n <= s->cap)
        return true;
    uint32_t cap = XD_MAX(n, s->cap + s->cap / 2 + 8);
    uint32_t *blocks = realloc(s->blocks, cap * sizeof *blocks);
    if (!blocks)
        return false;
    s->blocks = blocks;
    s->cap = cap;
    return true;
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
    if (kv->n_host) {
        kern_dev_info info;
        ops->info(kv->opt.dev, &info);
        hostmem_options ho = {.dev = kv->opt.dev,
                              .n_units = kv->n_host,
                              .unit_bytes = kv->block_bytes,
                              .numa_node = info.numa_node,
                              .huge_pages = true,
                              .what = "KV swap space",
                              .key = "kv.swap_space"};
        xd_status st = hostmem_open(&ho, &kv->host, err);
        if (st || (st = hostmem_register(kv->host, err)))
            return st;
    }
    uint32_t n_ids = kv_max_seq_blocks(kv);
    XD_CLEANUP(xd_freep) uint64_t *addr = malloc(n_ids * sizeof *addr);
    if (!addr)
        return xd_fail(err, XD_NOMEM, 0, "KV cache: address table");
    for (uint32_t b = 0; b < n_ids; b++)
        addr[b] = is_host(kv, b) ? hostmem_addr(kv->host, b - kv->n_dev) : (uint64_t)(uintptr_t)dev_ptr(kv, b);
    if (ops->alloc(kv->opt.dev, n_ids * sizeof *addr, (void **)&kv->addr_dev) != KERN_OK ||
        ops->upload(kv->opt.dev, kv->addr_dev, addr, n_ids * sizeof *addr) != KERN_OK ||
        ops->sync(kv->opt.dev) != KERN_OK)
        return xd_fail(err, XD_NOMEM, 0, "KV cache: address table on the device (%s)", ops->error(kv->opt.dev));
    return kv->opt.stage_blocks ? open_stage(kv, addr, n_ids, err) : XD_OK;
}

xd_status kv_open(const kv_options *opt, kv_cache **ret, xd_err *err)
{
    uint64_t block_bytes = kv_block_bytes(opt);
    if (!opt->n_blocks || !opt->block_size || block_bytes == 0)
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
    kv->block_bytes = block_bytes;
    kv->layer_bytes = layer_bytes_of(opt);
    kv->n_dev = opt->n_blocks;
    kv->n_host = (uint32_t)n_host;
    uint32_t n = kv->n_dev + kv->n_host;
    uint64_t salt = 0;
    if (getrandom(&salt, sizeof salt, 0) != sizeof salt)
        return xd_fail(err, XD_INTERNAL, errno, "KV cache: random salt");
    kv->places = calloc(n, sizeof *kv->places);
    /* Twice the places: room for inner nodes whose own block is gone while a later one is still cached. */
    kv->prefix = kv_prefix_new(opt->prefix_caching ? 2 * n : 0, opt->block_size, salt);
    if (!kv->places || !kv->prefix)
        return xd_fail(err, XD_NOMEM, 0, "KV cache: tables of %u blocks", n);
    for (int t = 0; t < 2; t++)
        kv->tier[t] = (kv_tier){.lru = {KV_NONE, KV_NONE, 0}, .free_head = KV_NONE};
    for (uint32_t b = n; b-- > 0;) {
        kv->places[b].node = KV_NONE;
        put_free(kv, b);
    }
    xd_status st = open_memory(kv, err);
    if (!st && opt->n_states) {
        const uint64_t n_copies = opt->state_host_bytes / xd_align_up(opt->state_bytes, 4096);
        const kv_states_options so = {.dev = opt->dev,
                                      .n_slots = opt->n_states,
                                      .n_copies = (uint32_t)XD_MIN(n_copies, (uint64_t)MOST_COPIES),
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

void kv_describe(const kv_cache *kv, kern_kv *ret)
{
    *ret = (kern_kv){.block_addr = kv->addr_dev,
                     .block_size = kv->opt.block_size,
                     .layer_bytes = kv->layer_bytes,
                     .n_kv_heads = kv->opt.n_kv_heads,
                     .head_dim = kv->opt.head_dim,
                     .v_dim = kv->opt.v_dim,
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

uint32_t kv_seq_state(const kv_seq *s)
{
    return s->slot;
}

uint32_t kv_seq_known(const kv_seq *s)
{
    return s->n_known;
}

uint32_t kv_cold_begin(const kv_cache *kv)
{
    return kv->n_dev;
}

uint32_t kv_stage_begin(const kv_cache *kv)
{
    return kv_max_seq_blocks(kv);
}

uint32_t kv_stage_blocks(const kv_cache *kv)
{
    return kv->opt.stage_blocks;
}

void kv_describe_stage(const kv_cache *kv, uint32_t layer, kern_kv *ret)
{
    kv_describe(kv, ret);
    ret->block_addr = kv->stage_addr[layer % 2];
}

uint32_t kv_max_seq_blocks(const kv_cache *kv)
{
    return kv->n_dev + (kv->opt.allow_cold ? kv->n_host : 0);
}

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

static void drop_locked(kv_cache *kv, kv_seq *s)
{
    drop_state(kv, s);
    while (s->n)
        release(kv, s->blocks[--s->n]);
    kv_prefix_drop(kv->prefix, s->tail_node);
    s->tail_node = KV_NONE;
    s->n_committed = 0;
    s->swapped = s->commit_stopped = false;
}

void kv_seq_drop(kv_cache *kv, kv_seq *s)
{
    pthread_mutex_lock(&kv->lock);
    drop_locked(kv, s);
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

/* --- prefixes ---------------------------------------------------------------------------------------------------- */

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
    take_ref(kv, b);
    if (!is_host(kv, b) || kv->opt.allow_cold)
        return b;
    uint32_t dev_b = take_dev(kv);
    if (dev_b == KV_NONE || copy_in(kv, dev_b, b) != KERN_OK) {
        if (dev_b != KV_NONE)
            release(kv, dev_b);
        release(kv, b);
        return KV_NONE;
    }
    kv_prefix_hold(kv->prefix, node);
    forget_node(kv, b);
    release(kv, b);
    attach_node(kv, dev_b, node);
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

/* XD_BUSY: no slot is free. After a failure the caller gives back what it has. */
static xd_status bring_state(kv_cache *kv, kv_seq *s, uint32_t c)
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

/* What was matched is of use only with its state: all of it, or nothing. */
static bool take_state(kv_cache *kv, kv_seq *s, uint32_t c)
{
    if (bring_state(kv, s, c))
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
        uint32_t b = node != KV_NONE && seq_room(s, s->n + 1) ? ref_node(kv, node) : KV_NONE;
        if (b == KV_NONE)
            break;
        s->blocks[s->n++] = b;
        set_tail(kv, s, node, s->n);
    }
    if (kv->states && s->n && (s->n < n_max || !take_state(kv, s, c)))
        drop_locked(kv, s);
    kv->stats.prefix_hits_tokens += (uint64_t)s->n * bs;
    pthread_mutex_unlock(&kv->lock);
    return s->n * bs;
}

void *kv_seq_keep(kv_cache *kv, kv_seq *s, uint32_t pos)
{
    if (!kv->states || !kv->opt.prefix_caching || !pos || pos % kv->opt.block_size || s->commit_stopped)
        return NULL;
    for (uint32_t i = 0; i < s->n_kept; i++) /* the step that should have filled it failed */
        if (s->kept[i].pos == pos)
            return kv_states_copy_ptr(kv->states, s->kept[i].copy);
    if (s->n_kept == MAX_KEPT)
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
        if (at != KV_NONE && is_host(kv, at) && !is_host(kv, b) && !kv->places[at].refs) {
            lru_unlink(kv, at);
            kv->places[at].node = KV_NONE;
            put_free(kv, at);
            at = KV_NONE;
        }
        if (at == KV_NONE && kv->places[b].node == KV_NONE)
            attach_node(kv, b, node);
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
    if (to->n || from->swapped || !k || kv->states || !seq_room(to, k))
        return 0;
    pthread_mutex_lock(&kv->lock);
    for (uint32_t i = 0; i < k; i++) {
        take_ref(kv, from->blocks[i]);
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

/* --- room -------------------------------------------------------------------------------------------------------- */

static uint32_t take_usable(kv_cache *kv)
{
    uint32_t b = take_dev(kv);
    return b == KV_NONE && kv->opt.allow_cold ? take_host(kv) : b;
}

static uint32_t usable(const kv_cache *kv)
{
    return available(kv, 0) + (kv->opt.allow_cold ? available(kv, 1) : 0);
}

xd_status kv_seq_reserve(kv_cache *kv, kv_seq *s, uint32_t n_tokens)
{
    uint32_t need = n_tokens / kv->opt.block_size + (n_tokens % kv->opt.block_size != 0);
    const bool wants_slot = kv->states && s->slot == KV_NONE;
    if (s->swapped)
        return XD_INTERNAL;
    if (need <= s->n && !wants_slot)
        return XD_OK;
    if (!seq_room(s, need))
        return XD_NOMEM;
    pthread_mutex_lock(&kv->lock);
    xd_status st = XD_BUSY;
    if (need <= s->n + usable(kv) && (!wants_slot || (s->slot = kv_states_take(kv->states)) != KV_NONE)) {
        while (s->n < need)
            s->blocks[s->n++] = take_usable(kv);
        st = XD_OK;
    }
    pthread_mutex_unlock(&kv->lock);
    return st;
}

/* --- swapping ---------------------------------------------------------------------------------------------------- */

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

/* Every device block gets a host copy of its own and is released: one that is shared or known as a prefix simply stays where it is,
 * so nothing that waits in the swap space holds device memory. */
xd_status kv_seq_swap_out(kv_cache *kv, kv_seq *s)
{
    if (s->swapped)
        return XD_OK;
    pthread_mutex_lock(&kv->lock);
    uint32_t n_dev = 0;
    for (uint32_t i = 0; i < s->n; i++)
        n_dev += !is_host(kv, s->blocks[i]);
    xd_status st = n_dev <= available(kv, 1) ? XD_OK : XD_BUSY;
    /* All copies first: a failure in the middle leaves the sequence as it was. */
    uint32_t *moved = NULL;
    if (!st && n_dev && !(moved = malloc(n_dev * sizeof *moved)))
        st = XD_NOMEM;
    uint32_t k = 0;
    if (!st)
        st = save_state(kv, s);
    for (uint32_t i = 0; !st && i < s->n; i++) {
        if (is_host(kv, s->blocks[i]))
            continue;
        moved[k] = take_host(kv);
        if (copy_out(kv, moved[k++], s->blocks[i]) != KERN_OK)
            st = XD_INTERNAL;
    }
    if (st) {
        while (k)
            release(kv, moved[--k]);
        if (s->copy != KV_NONE)
            kv_states_copy_give(kv->states, s->copy);
        s->copy = KV_NONE;
    } else {
        if (s->slot != KV_NONE)
            kv_states_give(kv->states, s->slot);
        s->slot = KV_NONE;
        for (uint32_t i = s->n; i-- > 0;)
            if (!is_host(kv, s->blocks[i])) {
                release(kv, s->blocks[i]);
                s->blocks[i] = moved[--k];
            }
        kv->stats.swapped_out += n_dev;
        s->swapped = true;
    }
    free(moved);
    pthread_mutex_unlock(&kv->lock);
    return st;
}

static xd_status swap_in_locked(kv_cache *kv, kv_seq *s, uint32_t *in)
{
    /* What is still cached on the device is taken first, so that it cannot be evicted while we make room for the rest. */
    uint32_t need = 0, node = s->tail_node;
    for (uint32_t i = s->n; i-- > 0;) {
        in[i] = KV_NONE;
        if (i < s->n_committed) {
            uint32_t b = kv_prefix_place(kv->prefix, node);
            if (b != KV_NONE && !is_host(kv, b)) {
                take_ref(kv, b);
                in[i] = b;
            }
            node = kv_prefix_parent(kv->prefix, node);
        }
        need += in[i] == KV_NONE;
    }
    xd_status st = need <= available(kv, 0) || kv->opt.allow_cold ? XD_OK : XD_BUSY;
    for (uint32_t i = 0; !st && i < s->n; i++) {
        /* A cold block that others share stays where it is: two copies of one prefix help nobody. */
        if (in[i] != KV_NONE || (kv->opt.allow_cold && (kv->places[s->blocks[i]].refs > 1 || !available(kv, 0))))
            continue;
        in[i] = take_dev(kv);
        if (copy_in(kv, in[i], s->blocks[i]) != KERN_OK)
            st = XD_INTERNAL;
    }
    if (st) {
        for (uint32_t i = s->n; i-- > 0;)
            if (in[i] != KV_NONE)
                release(kv, in[i]);
        return st;
    }
    node = s->tail_node;
    for (uint32_t i = s->n; i-- > 0;) {
        uint32_t next = i < s->n_committed ? kv_prefix_parent(kv->prefix, node) : node;
        if (in[i] != KV_NONE) {
            uint32_t old = s->blocks[i];
            if (i < s->n_committed && kv->places[in[i]].node == KV_NONE) {
                uint32_t at = kv_prefix_place(kv->prefix, node);
                if (at == old)
                    kv->places[old].node = KV_NONE;
                if (at == old || at == KV_NONE)
                    attach_node(kv, in[i], node);
            }
            release(kv, old);
            s->blocks[i] = in[i];
            kv->stats.swapped_in++;
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
    XD_CLEANUP(xd_freep) uint32_t *in = malloc((s->n ? s->n : 1) * sizeof *in);
    if (!in)
        return XD_NOMEM;
    pthread_mutex_lock(&kv->lock);
    /* The state first: then blocks are moved or stay where they are, and nothing is half done. */
    xd_status st = s->copy == KV_NONE ? XD_OK : bring_state(kv, s, s->copy);
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

const uint32_t *kv_seq_blocks(const kv_seq *s, uint32_t *ret_n)
{
    *ret_n = s->swapped ? 0 : s->n;
    return s->blocks;
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
        ret->tier[t].used = ret->tier[t].total - available(kv, t);
        ret->blocks_cached += ret->tier[t].cached;
        ret->blocks_used += ret->tier[t].used;
    }
    if (kv->states)
        kv_states_count(kv->states, &ret->states_used, &ret->state_copies_used);
    ret->blocks_total = kv_max_seq_blocks(kv);
    ret->swap_blocks_total = kv->n_host;
    ret->swap_blocks_used = kv->n_host - kv->tier[1].n_free;
    pthread_mutex_unlock(&kv->lock);
}

void kv_drop_cached(kv_cache *kv)
{
    pthread_mutex_lock(&kv->lock);
    for (int t = 0; t < 2; t++)
        while (kv->tier[t].lru.count) {
            uint32_t b = kv->tier[t].lru.head;
            lru_unlink(kv, b);
            forget_node(kv, b);
            put_free(kv, b);
        }
    pthread_mutex_unlock(&kv->lock);
}
