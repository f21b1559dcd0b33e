/* kv_priv.h - the KV cache's state, shared by its files: kv.c (memory, sequences, room), kv_place.c (places: who has them, copies between them),
 * kv_reuse.c (what sequences take over from others), kv_swap.c (preemption by swapping). Invariants: kv.c. */
#ifndef ENGINE_KV_PRIV_H
#define ENGINE_KV_PRIV_H

#include <pthread.h>

#include "engine/memory/hostmem_priv.h"
#include "engine/memory/kv.h"
#include "engine/memory/kv_prefix_priv.h"
#include "engine/memory/kv_state_priv.h"

#define KV_MAX_KEPT 2

typedef struct kv_place {
    uint32_t refs, node, group;
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
    bool windows;      /* some group has one */
    uint32_t whole;    /* the largest span: so many units are whole blocks in every group */
    bool download_pending;
    pthread_mutex_t lock;
    kv_stats stats;
};

/* What a sequence has is counted in units of block_size tokens, of which a group's block is `span`; the last one may be begun. */
struct kv_seq {
    uint32_t *blocks;                /* [n_groups][cap]; KV_NONE: given back */
    uint32_t n, cap;                 /* units */
    uint32_t first[KV_MAX_GROUPS];   /* block of a group that has not been given back */
    uint32_t n_committed, tail_node; /* units that prefix nodes know; the node of the last one (held) */
    uint32_t n_known;                /* tokens */
    uint32_t slot, copy;             /* of its state; copy: while it is swapped */
    struct {                         /* copies that the next step fills */
        uint32_t pos, copy;
    } kept[KV_MAX_KEPT];
    uint32_t n_kept;
    bool swapped, commit_stopped;
};

/* Everything below is for the engine thread, which holds the lock once the cache is open (kv_seq_room() alone needs none). */

/* kv.c */
static inline uint32_t *kv_seq_block(const kv_seq *s, uint32_t group, uint32_t i)
{
    return &s->blocks[(size_t)group * s->cap + i];
}
/* How many blocks of a group n units are. */
static inline uint32_t kv_blocks_in(const kv_cache *kv, uint32_t group, uint32_t n)
{
    return (n + kv->opt.span[group] - 1) / kv->opt.span[group];
}
static inline uint32_t kv_block_of(const kv_cache *kv, uint32_t group, uint32_t i) /* that unit i is in */
{
    return i / kv->opt.span[group];
}
/* Unit i is the first one, or the last one, of a block. */
static inline bool kv_begins_block(const kv_cache *kv, uint32_t group, uint32_t i)
{
    return i % kv->opt.span[group] == 0;
}
static inline bool kv_ends_block(const kv_cache *kv, uint32_t group, uint32_t i)
{
    return kv_begins_block(kv, group, i + 1);
}
/* The first block of a group that a token at `pos` sees. */
static inline uint32_t kv_first_seen(const kv_cache *kv, uint32_t group, uint32_t pos)
{
    const uint32_t window = kv->opt.window[group];
    return window && pos >= window ? (pos + 1 - window) / kv_block_tokens(&kv->opt, group) : 0;
}
bool kv_seq_room(const kv_cache *kv, kv_seq *s, uint32_t n); /* for n units' ids; false: no memory */
/* Units [n, s->n) are given back, n of whole blocks, from the end on, so that a prefix outlives what follows it. */
void kv_seq_cut(kv_cache *kv, kv_seq *s, uint32_t n);
void kv_seq_drop_locked(kv_cache *kv, kv_seq *s);

/* kv_place.c */
static inline bool kv_place_is_host(const kv_cache *kv, uint32_t b)
{
    return b >= kv->n_dev;
}
bool kv_places_open(kv_cache *kv);                               /* all are free; false: no memory */
uint32_t kv_places_available(const kv_cache *kv, int tier);      /* free, or cached for nobody */
uint64_t kv_place_addr(const kv_cache *kv, uint32_t b);          /* for kernels */
void kv_place_ref(kv_cache *kv, uint32_t b);                     /* one owner more */
void kv_place_release(kv_cache *kv, uint32_t b);                 /* one less: the last one leaves it cached, or free */
void kv_place_set_node(kv_cache *kv, uint32_t b, uint32_t node); /* it holds the KV of that prefix */
void kv_place_forget_node(kv_cache *kv, uint32_t b);             /* may prune the node */
/* A place for a group's layers with refs 1 and no node, or KV_NONE. The oldest cached block makes room; from the device it moves to the swap space if
 * there is any. */
uint32_t kv_place_take_host(kv_cache *kv, uint32_t group);
uint32_t kv_place_take_dev(kv_cache *kv, uint32_t group);
/* In stream order; time goes to swap_ns. */
kern_status kv_place_copy_out(kv_cache *kv, uint32_t host_b, uint32_t dev_b);
kern_status kv_place_copy_in(kv_cache *kv, uint32_t dev_b, uint32_t host_b);

/* kv_swap.c: the sequence gets a slot, with the state of copy c. XD_BUSY: no slot is free. After a failure the caller gives back what it has. */
xd_status kv_seq_bring_state(kv_cache *kv, kv_seq *s, uint32_t c) XD_MUST_CHECK;

#endif
