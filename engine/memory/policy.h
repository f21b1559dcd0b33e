/* policy.h - which experts deserve VRAM: what each is worth, who goes first, who may come in. The pager and the offline replay of
 * traces use the same object. Ids run over all layers: layer 0's experts, layer 1's, ... A unit is a page in the pager and an expert
 * in a replay. Thread: one at a time. */
#ifndef ENGINE_POLICY_H
#define ENGINE_POLICY_H

#include <stdbool.h>
#include <stdint.h>

#include "config/util.h"

#define POLICY_NONE UINT32_MAX
typedef struct policy policy;

typedef struct policy_options {
    int kind; /* CONF_EVICT_* */
    uint32_t n_layers;
    const uint32_t *layer_experts; /* [n_layers] */
    uint64_t capacity_units;
    double layer_floor;       /* share of the capacity below which no layer is pushed, divided evenly among layers */
    uint32_t advances_a_step; /* policy_advance() calls a step; 0: one */
} policy_options;

policy *policy_new(const policy_options *opt); /* NULL: no memory */
void policy_free(policy *p);
XD_DEFINE_CLEANUP(policy, policy_free)
const char *policy_name(int kind);                   /* CONF_EVICT_*: "lru", ... */
void policy_set_capacity(policy *p, uint64_t units); /* a fallback changes it */

/* The expert was used in the current step. */
void policy_touch(policy *p, uint32_t id);
void policy_advance(policy *p); /* the next step begins */
/* Now is a good time for what uses and advance left to be done before the next use; otherwise that will do it. Changes nothing else. */
void policy_settle(policy *p);
/* Now is a good time for what the next step's victims and plan need, as far as it is known: the uses that this step still has to tell do
 * not count. Otherwise they will make it. Behind policy_settle() it changes nothing that policy_heat() reads. */
void policy_prepare(policy *p);
/* Units of the expert that are in VRAM now. */
void policy_set_units(policy *p, uint32_t id, uint32_t units);
/* The resident expert that is worth least, of a layer that can give up all its units; not one touched in the current step.
 * POLICY_NONE: none (always so for `static`). */
uint32_t policy_victim(policy *p);

/* What a step misses is kept in slots that were freed before it began: how many should be. It follows what steps could have filled
 * with what is worth it, which policy_missed() tells at their end. */
uint32_t policy_want(const policy *p);
void policy_missed(policy *p, uint32_t units);
/* Between steps, after room was made, with `n_free` units free. admit[id], all 1 at the beginning, becomes: may the expert come in, once
 * used? It is worth it where it would then be worth more than what has to go for it. What is there in part, or better than the worst
 * that is there, may only take what is free anyway. False: nothing changed. */
enum { POLICY_WORTH_IT = 1, POLICY_IF_FREE = 2 };
bool policy_plan(policy *p, uint32_t n_free, uint8_t *admit);

/* Uses, each counting half after the longest of the half-lives: for the status page, and for saved statistics. */
float policy_heat(const policy *p, uint32_t id);
void policy_set_heat(policy *p, uint32_t id, float heat); /* warm start: as if last used before the current step */

#endif
