/* sched.h - which sequences run in the next step, and how many tokens of each.
 *
 * Pure logic over the KV cache: no device work, no clock, no requests. Continuous batching: decoding sequences first, then chunks
 * of prompts, then newcomers in order of priority, turn and arrival. When KV blocks run out the last one in that order is preempted:
 * swapped out where swap space is left (and is not among the blocks that steps use), else dropped and computed again later. Where layers have
 * windows, a chunk needs blocks that it gives back behind the step: it is made smaller, down to what is certain to fit in the end, before anybody
 * gives way for it. Owned by the engine thread.
 *
 * Where sequences have states (linear layers), a prompt's state is kept behind some of its blocks, so that later prompts can begin there: behind
 * the last block that stands SCHED_TAIL tokens or more before the end, since a chat's next turn has all of a prompt but the
 * last tokens, by which the template asks for an answer; and where this prompt parts from an earlier one whose blocks are still there.
 *
 * Turns are what makes it fair: the sequences of one group (one HTTP request) have turns one after another, counted from the lowest that
 * runs, so a group of 128 does not stand before a group of one that came a moment later; and where all places are taken, a newcomer
 * takes the place of a group that is two turns or more ahead of it. Sequences of groups of one go in order of arrival. */
#ifndef ENGINE_SCHED_H
#define ENGINE_SCHED_H

#include <stdbool.h>
#include <stdint.h>

#include "config/error.h"
#include "config/util.h"
#include "engine/memory/kv.h"

typedef struct sched sched;

enum { SCHED_KEEP = 2, SCHED_TAIL = 16 };

/* One timeline. The owner fills the first part and keeps the struct in place until sched_remove(); the rest is the scheduler's. */
typedef struct sched_seq {
    uint64_t order; /* of arrival, unique */
    int32_t priority;
    uint64_t group; /* takes turns with other groups; 0: a group of its own */
    uint32_t *ids;  /* prompt and output so far */
    uint32_t n_ids, n_prompt;
    bool want_prompt_rows; /* logits of every prompt token: no prefix is taken from the cache */
    bool held;             /* not to be admitted yet: waits for sched_fork() */
    void *owner;

    uint32_t n_computed; /* tokens whose KV is there */
    uint32_t n_cached, n_preempted;
    bool is_cached_known; /* n_cached is of the first admission */
    uint64_t turn;
    kv_seq *kv;
    uint32_t keep
        [SCHED_KEEP]; /* a model with states: positions in the prompt behind which the state is worth a copy, ascending; 0: none */
    enum { SCHED_NEW, SCHED_WAITING, SCHED_RUNNING } state;
} sched_seq;

typedef struct sched_options {
    kv_cache *kv;        /* borrowed */
    uint32_t block_size; /* kv_whole_tokens() */
    uint32_t max_seqs, max_tokens, max_rows;
    uint32_t chunk; /* tokens of a sequence that a step can take at least, if it is alone (kv_chunk()); 0: all */
} sched_options;

typedef struct sched_entry {
    sched_seq *seq;
    uint32_t pos, n_tokens;
    uint32_t n_rows; /* logits of the last n_rows tokens are needed */
    uint32_t n_keep,
        keep[SCHED_KEEP]; /* positions up to which the state is to be kept: within pos + 1 .. pos + n_tokens */
} sched_entry;

/* *opt is copied, what it points to borrowed. XD_NOMEM. */
xd_status sched_new(const sched_options *opt, sched **ret, xd_err *err) XD_MUST_CHECK;
void sched_free(sched *s);
XD_DEFINE_CLEANUP(sched, sched_free)
/* Puts it among those that wait, by priority, turn and arrival. XD_NOMEM. */
xd_status sched_add(sched *s, sched_seq *seq, xd_err *err) XD_MUST_CHECK;
/* Takes it out wherever it is and gives its blocks back. Safe for one that was never added. */
void sched_remove(sched *s, sched_seq *seq);
/* Forms a step; entries point into the scheduler and stay true until the next call. max_prefill_tokens bounds the prompt tokens
 * while sequences decode (0: no bound). *ret_n 0: nothing can run. newcomers false: as long as any runs, nobody joins
 * them. */
const sched_entry *sched_form(sched *s, uint32_t max_prefill_tokens, bool newcomers, uint32_t *ret_n);
/* The step has run: its tokens' KV is there. Its entries can be read until the next sched_form(), whatever is removed. */
void sched_commit(sched *s);
/* The step failed, and nothing of it counts. But states may know a part of its tokens by now: those who have one wait, and are computed again. */
void sched_fail(sched *s);
/* Lets a held sibling of the same prompt go, with the full blocks that `from` has computed. */
void sched_fork(sched *s, const sched_seq *from, sched_seq *to);

typedef struct sched_stats {
    uint32_t n_running, n_waiting;
    uint64_t preempted_swap, preempted_recompute, paused; /* monotonic; paused: gave its place to another group's */
} sched_stats;
void sched_get_stats(const sched *s, sched_stats *ret);
/* The first of those that wait and could run, or NULL: when nothing runs and nothing can be formed, it will never fit. */
sched_seq *sched_first_waiting(const sched *s);

#endif
