/* kv_prefix.c - which tokens each cached KV block stands for.
 *
 * The idea is vLLM's automatic prefix caching (a full block is known by all tokens before it and its own), but a hash alone would
 * let a collision hand one user's KV to another. Here the blocks form a trie: a node is (parent node, its block_size tokens). A hash
 * finds candidates, and the parent's identity and every token are compared, so by induction over the chain a match is exact. The salt
 * only keeps outsiders from building long buckets.
 *
 * Invariants
 *  1. A node lives while it has a place of any group, a holder, or a child; otherwise it is pruned, and then its parent is looked at.
 *  2. `refs` counts holders (sequences whose last committed block it is) and children.
 *  3. All memory is taken at the start; a full index only means that a block is not findable later. */
#include "engine/memory/kv_prefix_priv.h"

#include <string.h>
#include <xxhash.h>

typedef struct kv_node {
    uint32_t parent, n_places, refs, state;
    uint32_t next; /* in its hash bucket, or in the free list */
} kv_node;

struct kv_prefix {
    kv_node *nodes;
    uint32_t *tokens; /* [max_nodes][block_size] */
    uint32_t *places; /* [max_nodes][n_groups] */
    uint32_t *buckets;
    uint32_t n_buckets_mask, block_size, n_groups, free_head;
    uint64_t salt;
};

kv_prefix *kv_prefix_new(uint32_t max_nodes, uint32_t block_size, uint32_t n_groups, uint64_t salt)
{
    XD_CLEANUP(kv_prefix_freep) kv_prefix *t = calloc(1, sizeof *t);
    size_t token_bytes, place_bytes, n_buckets = 16;
    if (!t || !xd_mul_size(&token_bytes, (size_t)max_nodes * sizeof(uint32_t), block_size) ||
        !xd_mul_size(&place_bytes, (size_t)max_nodes * sizeof(uint32_t), n_groups))
        return NULL;
    while (n_buckets < max_nodes)
        n_buckets *= 2;
    t->block_size = block_size;
    t->n_groups = n_groups;
    t->salt = salt;
    t->n_buckets_mask = (uint32_t)(n_buckets - 1);
    t->nodes = calloc(max_nodes ? max_nodes : 1, sizeof *t->nodes);
    t->tokens = malloc(token_bytes ? token_bytes : 1);
    t->places = malloc(place_bytes ? place_bytes : 1);
    t->buckets = malloc(n_buckets * sizeof *t->buckets);
    if (!t->nodes || !t->tokens || !t->places || !t->buckets)
        return NULL;
    for (size_t i = 0; i < n_buckets; i++)
        t->buckets[i] = KV_NONE;
    t->free_head = KV_NONE;
    for (uint32_t i = max_nodes; i-- > 0;) {
        t->nodes[i].next = t->free_head;
        t->free_head = i;
    }
    return XD_TAKE(t);
}

void kv_prefix_free(kv_prefix *t)
{
    if (!t)
        return;
    free(t->nodes);
    free(t->tokens);
    free(t->places);
    free(t->buckets);
    free(t);
}

static uint32_t *place_of(const kv_prefix *t, uint32_t node, uint32_t group)
{
    return &t->places[(size_t)node * t->n_groups + group];
}

static uint32_t *bucket_of(const kv_prefix *t, uint32_t parent, const uint32_t *ids)
{
    uint64_t seed = t->salt ^ ((uint64_t)parent * 0x9E3779B97F4A7C15u);
    uint64_t h = XXH3_64bits_withSeed(ids, (size_t)t->block_size * sizeof *ids, seed);
    return &t->buckets[h & t->n_buckets_mask];
}

static uint32_t find_in(const kv_prefix *t, uint32_t bucket, uint32_t parent, const uint32_t *ids)
{
    for (uint32_t i = bucket; i != KV_NONE; i = t->nodes[i].next)
        if (t->nodes[i].parent == parent &&
            !memcmp(t->tokens + (size_t)i * t->block_size, ids, (size_t)t->block_size * sizeof *ids))
            return i;
    return KV_NONE;
}

uint32_t kv_prefix_find(const kv_prefix *t, uint32_t parent, const uint32_t *ids)
{
    return find_in(t, *bucket_of(t, parent, ids), parent, ids);
}

uint32_t kv_prefix_intern(kv_prefix *t, uint32_t parent, const uint32_t *ids)
{
    uint32_t *bucket = bucket_of(t, parent, ids);
    uint32_t i = find_in(t, *bucket, parent, ids);
    if (i != KV_NONE || t->free_head == KV_NONE)
        return i;
    i = t->free_head;
    t->free_head = t->nodes[i].next;
    t->nodes[i] = (kv_node){.parent = parent, .state = KV_NONE, .next = *bucket};
    for (uint32_t g = 0; g < t->n_groups; g++)
        *place_of(t, i, g) = KV_NONE;
    *bucket = i;
    memcpy(t->tokens + (size_t)i * t->block_size, ids, (size_t)t->block_size * sizeof *ids);
    if (parent != KV_NONE)
        t->nodes[parent].refs++;
    return i;
}

uint32_t kv_prefix_parent(const kv_prefix *t, uint32_t node)
{
    return t->nodes[node].parent;
}

uint32_t kv_prefix_place(const kv_prefix *t, uint32_t node, uint32_t group)
{
    return *place_of(t, node, group);
}

uint32_t kv_prefix_state(const kv_prefix *t, uint32_t node)
{
    return t->nodes[node].state;
}

void kv_prefix_set_state(kv_prefix *t, uint32_t node, uint32_t copy)
{
    t->nodes[node].state = copy;
}

/* Forgets the node, and those before it, that nobody needs any more. */
static void prune(kv_prefix *t, uint32_t node)
{
    while (node != KV_NONE && !t->nodes[node].refs && !t->nodes[node].n_places) {
        uint32_t parent = t->nodes[node].parent;
        uint32_t *link = bucket_of(t, parent, t->tokens + (size_t)node * t->block_size);
        while (*link != node)
            link = &t->nodes[*link].next;
        *link = t->nodes[node].next;
        t->nodes[node].next = t->free_head;
        t->free_head = node;
        if (parent != KV_NONE)
            t->nodes[parent].refs--;
        node = parent;
    }
}

void kv_prefix_set_place(kv_prefix *t, uint32_t node, uint32_t group, uint32_t place)
{
    uint32_t *at = place_of(t, node, group);
    t->nodes[node].n_places += (place != KV_NONE) - (*at != KV_NONE);
    *at = place;
    prune(t, node);
}

void kv_prefix_hold(kv_prefix *t, uint32_t node)
{
    if (node != KV_NONE)
        t->nodes[node].refs++;
}

void kv_prefix_drop(kv_prefix *t, uint32_t node)
{
    if (node == KV_NONE)
        return;
    t->nodes[node].refs--;
    prune(t, node);
}
