/* kv.h - paged KV cache: blocks of block_size tokens or a few times as many, shared by sequences with a common prefix.
 *
 * Layers come in groups, in each of which all have the same window or none, as in vLLM's hybrid cache. A block holds K and V of a group's layers
 * (layout: kern_kv in kernels.h), and blocks of all groups come from one pool. They have one size in bytes, that of block_size tokens of the widest
 * layers; where a group's layers are at most half as wide, its blocks hold 2 or 4 times as many tokens (span). A sequence has a table of blocks for
 * each group; blocks that lie before its groups' windows are given back while it goes on. Models whose layers are all of a kind have one group.
 *
 * Full blocks are known by their tokens and all before them (kv_prefix_priv.h), so a later prompt with the same beginning reuses them, as vLLM's
 * automatic prefix caching. Blocks without an owner stay cached until they are needed, evicted last-used-first. Owned by the engine thread; stats
 * by any thread.
 *
 * A model with linear layers (kern_delta_args, kern_shortconv_args) has, beside the blocks, a state for each sequence: of all its tokens. It lies in a slot in
 * device memory while the sequence has room for tokens. Copies of states lie in host memory: of a sequence that is swapped out, and of
 * the end of some prefixes. Such a prefix is found only as far as there is a copy. */
#ifndef ENGINE_KV_H
#define ENGINE_KV_H

#include <stdbool.h>
#include <stdint.h>

#include "config/error.h"
#include "config/util.h"
#include "kernels/kernels.h"

#define KV_NONE UINT32_MAX

typedef struct kv_cache kv_cache;
typedef struct kv_seq kv_seq; /* the blocks of one sequence */

enum { KV_MAX_GROUPS = 16 };

typedef struct kv_options {
    kern_dev *dev;
    uint32_t n_layers; /* of a group: a block has room for so many */
    uint32_t n_groups; /* 0: one */
    /* Of a group's layers, in tokens; 0: none. Groups of one window lie one behind another. */
    uint32_t window[KV_MAX_GROUPS];
    uint32_t span[KV_MAX_GROUPS];              /* a group's blocks hold span * block_size tokens: 1, 2 or 4; 0: 1 */
    uint32_t step_tokens;                      /* most tokens of a step; where a group has a window */
    uint32_t n_kv_heads, head_dim, block_size; /* heads: of the widest layers */
    uint32_t v_dim;                            /* as in kern_kv: not 0 where V is a part of K */
    uint32_t index_dim;                        /* the same: columns of an indexer's keys */
    uint32_t index_top_k;                      /* positions that it chooses, of which K and V are looked at */
    kern_fmt fmt;                              /* FMT_F16, FMT_F32 or FMT_Q8_0 */
    uint32_t n_blocks;                         /* in device memory */
    uint64_t swap_bytes;                       /* host memory for blocks of preempted and idle sequences; 0: none */
    bool prefix_caching;
    bool allow_cold; /* blocks beyond n_blocks lie in mapped host memory (swap space): cold */
    uint32_t
        stage_blocks; /* cold blocks that a step can bring to device memory, a layer at a time; 0: all are read in place */
    uint32_t n_states;         /* slots; 0: no linear layers */
    uint64_t state_bytes;      /* of all linear layers, one behind another: kv_state_layer_bytes() each */
    uint64_t state_host_bytes; /* for copies */
} kv_options;

uint64_t kv_block_bytes(const kv_options *opt); /* of any group's */
uint32_t kv_block_tokens(const kv_options *opt, uint32_t group);
uint32_t kv_whole_tokens(const kv_options *opt); /* where prefixes and forks end: whole blocks in every group */
uint64_t kv_token_bytes(const kv_options *opt);  /* of all layers, where no window leaves any out */
uint64_t kv_copies_bytes(const kv_options *opt); /* of the copies of states that are kept at most */

/* Deals layers into groups: window[i] is layer i's and width[i] the columns of K of all its heads, of n that have KV. Fills n_layers, n_groups,
 * opt->window and opt->span. Groups are as large as they can be with no place left empty; where that would take more than KV_MAX_GROUPS, all layers are
 * one group without a window. */
void kv_set_groups(kv_options *opt, const uint32_t *window, const uint32_t *width, uint32_t n);
/* Of each of those layers: its group, and its index there (kern_attn_args.layer). */
typedef struct kv_layer {
    uint32_t group, idx;
} kv_layer;
void kv_deal_layers(const kv_options *opt, const uint32_t *window, uint32_t n, kv_layer *ret);

/* What contexts cost, in blocks of all groups together: n_seqs sequences of `tokens` each, while steps compute up to step_tokens of them. */
uint64_t kv_blocks_of(const kv_options *opt, uint64_t n_seqs, uint64_t tokens, uint64_t step_tokens);
/* So many tokens of a sequence can always be computed in a step where contexts may have `tokens`, if it is alone. Blocks of windows are needed for
 * all of a step's tokens at once, so this is what contexts leave to prompts: an eighth, but not less than 512 tokens. */
uint32_t kv_chunk(const kv_options *opt, uint64_t tokens);
/* Blocks without which a sequence of `tokens` is refused: with steps of kv_chunk(). And the longest that so many blocks suffice for. */
uint64_t kv_context_blocks(const kv_options *opt, uint64_t tokens);
uint64_t kv_context_tokens(const kv_options *opt, uint64_t blocks);
/* What attention must read of K and V, of all layers, for the tokens [pos, pos + n) of a sequence together. */
uint64_t kv_seen_bytes(const kv_options *opt, uint64_t pos, uint64_t n);

/* Device memory that stage_blocks of so many blocks need; and how many fit into so much. Two layers of them are there at a time. */
uint64_t kv_stage_bytes(const kv_options *opt, uint32_t stage_blocks);
uint32_t kv_stage_fit(const kv_options *opt, uint64_t bytes);
/* Takes the memory of all blocks and states. opt->dev is borrowed until kv_free(). XD_BAD_CONFIG: room for no block, or
 * for too many; XD_NOMEM with the sizes. */
xd_status kv_open(const kv_options *opt, kv_cache **ret, xd_err *err) XD_MUST_CHECK;
void kv_free(kv_cache *kv);
XD_DEFINE_CLEANUP(kv_cache, kv_free)
const kv_options *kv_get_options(const kv_cache *kv); /* n_groups is 1 or more there */
/* The part of a group's kern_kv that is constant: block_addr (device), block_size, layer_bytes, fmt; heads of the widest layers. */
void kv_describe(const kv_cache *kv, uint32_t group, kern_kv *ret);

uint64_t kv_state_layer_bytes(uint64_t floats); /* of one sequence; a multiple of 256 */
bool kv_has_state(const kv_cache *kv);          /* the model has linear layers */
/* Where slot 0 lies on the device, and how far from one to the next; NULL, 0: there are none. */
void kv_describe_state(const kv_cache *kv, void **ret_base, uint64_t *ret_slot_bytes);

/* Staging. Cold blocks have ids from kv_cold_begin() on. Staged block i has the id kv_stage_begin() + i in the table that
 * kv_describe_stage() gives for the layer-th of all (others have their own ids there), of `group`: layers take turns with two areas. */
uint32_t kv_cold_begin(const kv_cache *kv);
uint32_t kv_stage_begin(const kv_cache *kv);
uint32_t kv_stage_blocks(const kv_cache *kv); /* 0: no staging */
void kv_describe_stage(const kv_cache *kv, uint32_t group, uint32_t layer, kern_kv *ret);

/* One without blocks; owned. XD_NOMEM. */
xd_status kv_seq_new(kv_cache *kv, kv_seq **ret, xd_err *err) XD_MUST_CHECK;
void kv_seq_free(kv_cache *kv, kv_seq *s); /* releases its blocks (full ones stay cached) */
/* Takes the longest cached prefix of ids[0..n) in kv_whole_tokens(), at most n - 1 tokens (the last one must be computed). The sequence
 * must be empty. Returns the number of tokens whose KV (and state) is already there. */
uint32_t kv_seq_match(kv_cache *kv, kv_seq *s, const uint32_t *ids, uint32_t n);
/* How many tokens of the last kv_seq_match() had their KV there, whether or not there was a state: others began like this, too. */
uint32_t kv_seq_known(const kv_seq *s);
/* Host memory for a copy of the state behind the first `pos` tokens, a multiple of kv_whole_tokens(), which the next step will fill. kv_seq_commit()
 * with at least so many makes it the prefix's. NULL: there is no room, or no prefix is kept. */
void *kv_seq_keep(kv_cache *kv, kv_seq *s, uint32_t pos);
/* The slot of its state; while it has room for tokens. */
uint32_t kv_seq_state(const kv_seq *s);
/* Makes room for tokens [0, n_tokens), and for a state. XD_BUSY: not enough blocks or slots (nothing changed): preempt somebody. XD_NOMEM; XD_INTERNAL
 * of one that is swapped. */
xd_status kv_seq_reserve(kv_cache *kv, kv_seq *s, uint32_t n_tokens) XD_MUST_CHECK;
/* How many tokens it could have with the blocks that nobody owns. */
uint64_t kv_seq_most(kv_cache *kv, const kv_seq *s);
/* Tokens [0, n) of ids have been computed: full blocks become findable, and blocks that no later token sees through its window are given back.
 * ids are the sequence's from its start. */
void kv_seq_commit(kv_cache *kv, kv_seq *s, const uint32_t *ids, uint32_t n);
/* Gives up all blocks but keeps the handle (preemption by recomputation). */
void kv_seq_drop(kv_cache *kv, kv_seq *s);
/* Preemption by swapping: moves the blocks, and the state, to host memory and back. XD_BUSY: no room there, or steps use it, too (allow_cold);
 * XD_NOMEM, or XD_INTERNAL when a copy fails. After a failure the sequence is as it was. Nothing to be done is XD_OK. */
xd_status kv_seq_swap_out(kv_cache *kv, kv_seq *s) XD_MUST_CHECK;
xd_status kv_seq_swap_in(kv_cache *kv, kv_seq *s) XD_MUST_CHECK;
bool kv_seq_is_swapped(const kv_seq *s);
/* Shares what `from` has before token n, in kv_whole_tokens(), with the empty `to` (n choices of one prompt). Returns tokens shared: 0 also where
 * `from` has given back what the next token would see through a window. */
uint32_t kv_seq_fork(kv_cache *kv, const kv_seq *from, kv_seq *to, uint32_t n);
/* Block ids of group 0 in order, and for how many times block_size tokens there is room; none while it is swapped. Those of group g begin
 * g * kv_seq_stride() further on, one for each `span` of these n. Blocks before its window that were given back are KV_NONE: the first ones of a row,
 * but not that of the next token. Borrowed until it changes. */
const uint32_t *kv_seq_blocks(const kv_seq *s, uint32_t *ret_n);
uint32_t kv_seq_stride(const kv_seq *s);
uint32_t kv_n_ids(const kv_cache *kv); /* block ids that steps may meet: below that */

typedef struct kv_stats {
    uint64_t blocks_total, blocks_used, blocks_cached; /* cached: no owner, content kept */
    struct {
        uint64_t total, used, cached;
    } tier[2]; /* the same in device memory, and in host memory that steps use too (0 without allow_cold) */
    uint64_t swap_blocks_total, swap_blocks_used;
    uint64_t window_released; /* blocks that sequences gave back while they went on; monotonic */
    uint64_t prefix_queries_tokens, prefix_hits_tokens, evictions, swapped_out, swapped_in; /* monotonic */
    uint32_t states_total, states_used;                                                     /* slots */
    uint32_t state_copies_total, state_copies_used;                                         /* in host memory */
    uint64_t states_kept, states_found; /* copies made of prefixes, and used by prompts; monotonic */
    uint64_t swap_ns;                   /* time that the engine spent on copies to and from swap space; monotonic */
} kv_stats;
void kv_get_stats(kv_cache *kv, kv_stats *ret); /* any thread */
void kv_drop_cached(kv_cache *kv);              /* forgets all blocks without an owner */

#endif
