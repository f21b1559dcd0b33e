/* kv_prefix_priv.h - the prefix index of the KV cache: a trie of full blocks, found by hash, verified token by token. */
#ifndef ENGINE_KV_PREFIX_PRIV_H
#define ENGINE_KV_PREFIX_PRIV_H

#include <stdint.h>

#include "config/util.h"
#include "engine/memory/kv.h"

typedef struct kv_prefix kv_prefix;

/* max_nodes is all it will ever hold; block_size tokens a node, and a place for each group. NULL: no memory. */
kv_prefix *kv_prefix_new(uint32_t max_nodes, uint32_t block_size, uint32_t n_groups, uint64_t salt);
void kv_prefix_free(kv_prefix *t);
XD_DEFINE_CLEANUP(kv_prefix, kv_prefix_free)

/* The node of block `ids` after `parent` (KV_NONE: the first block), or KV_NONE. */
uint32_t kv_prefix_find(const kv_prefix *t, uint32_t parent, const uint32_t *ids);
/* Finds or makes it; KV_NONE when the index is full. The caller then holds or places it. */
uint32_t kv_prefix_intern(kv_prefix *t, uint32_t parent, const uint32_t *ids);

uint32_t kv_prefix_parent(const kv_prefix *t, uint32_t node);
/* Block id that holds its KV of a group's layers, or KV_NONE. */
uint32_t kv_prefix_place(const kv_prefix *t, uint32_t node, uint32_t group);
void kv_prefix_set_place(kv_prefix *t, uint32_t node, uint32_t group, uint32_t place);
/* A copy of the state of linear layers behind its tokens (kv_state_priv.h), or KV_NONE. Forgotten with the node. */
uint32_t kv_prefix_state(const kv_prefix *t, uint32_t node);
void kv_prefix_set_state(kv_prefix *t, uint32_t node, uint32_t copy);
void kv_prefix_hold(kv_prefix *t, uint32_t node); /* KV_NONE is fine */
void kv_prefix_drop(kv_prefix *t, uint32_t node); /* gives a hold back, prunes; KV_NONE is fine */

#endif
