/* kv_place.c - places of the KV cache: free, owned, or cached for whoever needs that prefix next, and copies between device and host. What a place
 * is for is not known here. Invariants 1, 2 and 5 of kv.c are kept here. */
#include "engine/memory/kv_priv.h"

static void lru_unlink(kv_cache *kv, uint32_t b)
{
    kv_list *l = &kv->tier[kv_place_is_host(kv, b)].lru;
    kv_place *p = &kv->places[b];
    *(p->prev == KV_NONE ? &l->head : &kv->places[p->prev].next) = p->next;
    *(p->next == KV_NONE ? &l->tail : &kv->places[p->next].prev) = p->prev;
    l->count--;
}

static void lru_append(kv_cache *kv, uint32_t b)
{
    kv_list *l = &kv->tier[kv_place_is_host(kv, b)].lru;
    kv->places[b].prev = l->tail;
    kv->places[b].next = KV_NONE;
    *(l->tail == KV_NONE ? &l->head : &kv->places[l->tail].next) = b;
    l->tail = b;
    l->count++;
}

static void put_free(kv_cache *kv, uint32_t b)
{
    kv_tier *t = &kv->tier[kv_place_is_host(kv, b)];
    kv->places[b].next = t->free_head;
    t->free_head = b;
    t->n_free++;
}

bool kv_places_open(kv_cache *kv)
{
    const uint32_t n = kv->n_dev + kv->n_host;
    kv->places = calloc(n, sizeof *kv->places);
    if (!kv->places)
        return false;
    for (int t = 0; t < 2; t++)
        kv->tier[t] = (kv_tier){.lru = {KV_NONE, KV_NONE, 0}, .free_head = KV_NONE};
    for (uint32_t b = n; b-- > 0;) {
        kv->places[b].node = KV_NONE;
        put_free(kv, b);
    }
    return true;
}

void kv_place_forget_node(kv_cache *kv, uint32_t b)
{
    uint32_t node = kv->places[b].node;
    kv->places[b].node = KV_NONE;
    kv_prefix_set_place(kv->prefix, node, kv->places[b].group, KV_NONE);
}

void kv_place_set_node(kv_cache *kv, uint32_t b, uint32_t node)
{
    kv->places[b].node = node;
    kv_prefix_set_place(kv->prefix, node, kv->places[b].group, b);
}

void kv_place_ref(kv_cache *kv, uint32_t b)
{
    if (!kv->places[b].refs++)
        lru_unlink(kv, b);
}

void kv_place_release(kv_cache *kv, uint32_t b)
{
    if (--kv->places[b].refs)
        return;
    if (kv->places[b].node == KV_NONE)
        put_free(kv, b);
    else
        lru_append(kv, b);
}

uint32_t kv_places_available(const kv_cache *kv, int tier)
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

uint64_t kv_place_addr(const kv_cache *kv, uint32_t b)
{
    return kv_place_is_host(kv, b) ? hostmem_addr(kv->host, b - kv->n_dev) : (uint64_t)(uintptr_t)dev_ptr(kv, b);
}

kern_status kv_place_copy_out(kv_cache *kv, uint32_t host_b, uint32_t dev_b)
{
    uint64_t begin_ns = xd_now_ns();
    kv->download_pending = true;
    kern_status st = kv->opt.dev->ops->download(kv->opt.dev, host_ptr(kv, host_b), dev_ptr(kv, dev_b), kv->block_bytes);
    kv->stats.swap_ns += xd_now_ns() - begin_ns;
    return st;
}

kern_status kv_place_copy_in(kv_cache *kv, uint32_t dev_b, uint32_t host_b)
{
    const kern_ops *ops = kv->opt.dev->ops;
    uint64_t begin_ns = xd_now_ns();
    if (kv->download_pending) { /* maybe of this very place: invariant 5 */
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

static uint32_t give_to(kv_cache *kv, uint32_t b, uint32_t group)
{
    if (b != KV_NONE) {
        kv->places[b].refs = 1;
        kv->places[b].node = KV_NONE;
        kv->places[b].group = group;
    }
    return b;
}

uint32_t kv_place_take_host(kv_cache *kv, uint32_t group)
{
    uint32_t b = pop_free(kv, 1);
    if (b == KV_NONE && (b = kv->tier[1].lru.head) != KV_NONE) {
        lru_unlink(kv, b);
        kv_place_forget_node(kv, b);
        kv->stats.evictions++;
    }
    return give_to(kv, b, group);
}

uint32_t kv_place_take_dev(kv_cache *kv, uint32_t group)
{
    uint32_t b = pop_free(kv, 0);
    if (b == KV_NONE && (b = kv->tier[0].lru.head) != KV_NONE) {
        uint32_t node = kv->places[b].node;
        kv_prefix_hold(kv->prefix, node); /* evicting a host block must not prune it */
        lru_unlink(kv, b);
        kv_place_forget_node(kv, b);
        uint32_t host_b = kv_place_take_host(kv, kv->places[b].group);
        if (host_b != KV_NONE && kv_place_copy_out(kv, host_b, b) == KERN_OK) {
            kv_place_set_node(kv, host_b, node);
            kv_place_release(kv, host_b);
            kv->stats.swapped_out++;
        } else {
            if (host_b != KV_NONE)
                kv_place_release(kv, host_b);
            kv->stats.evictions++;
        }
        kv_prefix_drop(kv->prefix, node);
    }
    return give_to(kv, b, group);
}

void kv_drop_cached(kv_cache *kv)
{
    pthread_mutex_lock(&kv->lock);
    for (int t = 0; t < 2; t++)
        while (kv->tier[t].lru.count) {
            uint32_t b = kv->tier[t].lru.head;
            lru_unlink(kv, b);
            kv_place_forget_node(kv, b);
            put_free(kv, b);
        }
    pthread_mutex_unlock(&kv->lock);
}
