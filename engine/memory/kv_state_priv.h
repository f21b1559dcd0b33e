/* kv_state_priv.h - states of linear layers: slots in device memory, one a running sequence, and copies of states in host memory. A copy
 * belongs to a sequence that waits, or to a prefix that prompts may begin with; the oldest of the latter give way. Private to the KV cache. */
#ifndef ENGINE_KV_STATE_PRIV_H
#define ENGINE_KV_STATE_PRIV_H

#include <stdbool.h>
#include <stdint.h>

#include "config/error.h"
#include "config/util.h"
#include "kernels/kernels.h"

typedef struct kv_states kv_states;

typedef struct kv_states_options {
    kern_dev *dev;
    uint32_t n_slots, n_copies;
    uint64_t bytes; /* of a state */
} kv_states_options;

xd_status kv_states_open(const kv_states_options *opt, kv_states **ret, xd_err *err) XD_MUST_CHECK;
void kv_states_free(kv_states *t);
XD_DEFINE_CLEANUP(kv_states, kv_states_free)

void *kv_states_base(const kv_states *t); /* device: of slot 0; the others follow */
/* KV_NONE: all are taken. */
uint32_t kv_states_take(kv_states *t);
void kv_states_give(kv_states *t, uint32_t slot);

/* A copy of nobody, to be filled; where none is free, that of the node that was asked for least lately goes. KV_NONE: all wait for their
 * sequences. */
uint32_t kv_states_copy_take(kv_states *t);
void kv_states_copy_give(kv_states *t, uint32_t copy);
void *kv_states_copy_ptr(const kv_states *t, uint32_t copy);
/* The copy becomes that of the prefix that ends with `node`, or is asked for once more. */
void kv_states_copy_of(kv_states *t, uint32_t copy, uint32_t node);
/* The node that it is of, as far as anybody has told: a node that is forgotten leaves its copy to age. KV_NONE: of none. */
uint32_t kv_states_node_of(const kv_states *t, uint32_t copy);
/* In stream order; the copy is there after a sync. */
kern_status kv_states_save(kv_states *t, uint32_t copy, uint32_t slot);
kern_status kv_states_restore(kv_states *t, uint32_t slot, uint32_t copy);

void kv_states_count(const kv_states *t, uint32_t *ret_slots_used, uint32_t *ret_copies_used);

#endif
