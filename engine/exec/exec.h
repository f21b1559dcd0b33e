/* exec.h - runs one step of the model on a device: the tokens of several sequences through all layers, logits out.
 *
 * Owns the trunk weights on the device, the workspaces and the recorded graphs. Knows rows, positions and block tables; no
 * requests, no sampling. The order of calls is exec_open (trunk and workspaces) -> exec_attach (KV and pager, which share what
 * memory is left) -> exec_run, ... Everything by the engine thread. Nothing is allocated in a step. */
#ifndef ENGINE_EXEC_H
#define ENGINE_EXEC_H

#include <stdbool.h>
#include <stdint.h>

#include "config/error.h"
#include "config/util.h"
#include "engine/exec/routes.h"
#include "engine/memory/kv.h"
#include "engine/memory/pager.h"
#include "engine/model/model.h"
#include "kernels/kernels.h"

typedef struct exec exec;

typedef struct exec_options {
    kern_dev *dev;
    kern_dev *cpu; /* for a part of missing experts; NULL: none. May be dev */
    const model *m;
    uint64_t page_size; /* how experts will be cut: sizes the scratch */
    uint32_t max_tokens, max_seqs, max_rows, max_context, block_size;
    uint32_t kv_groups;   /* of the cache that will be attached; 0: one */
    bool record;          /* decode steps as recorded graphs, where the device can */
    bool read_ahead;      /* of the next layer's likely experts, where it pays */
    bool always_ahead;    /* with read_ahead: wherever it is possible */
    const routes *routes; /* decode steps take their picks from a trace; NULL: from the router. Borrowed */
    void (*progress)(void *user, double fraction);
    void *progress_user;
} exec_options;

/* Takes the device memory of trunk and workspaces, and loads the trunk. dev and m are borrowed until exec_free(). XD_UNSUPPORTED or
 * XD_BAD_MODEL: what the device does not compute, by layer; XD_NOMEM with the sizes. */
xd_status exec_open(const exec_options *opt, exec **ret, xd_err *err) XD_MUST_CHECK;
void exec_free(exec *x);
XD_DEFINE_CLEANUP(exec, exec_free)
/* Both are borrowed until exec_free(). p may be NULL only in tests of shapes without experts. */
xd_status exec_attach(exec *x, const kv_cache *kv, pager *p, xd_err *err) XD_MUST_CHECK;
/* Bytes of device memory taken by trunk and workspaces; the trunk counts 0 where it is read in place. */
void exec_memory(const exec *x, uint64_t *ret_trunk_bytes, uint64_t *ret_workspace_bytes);
/* Rate at which kernels read device memory (GB/s), by one pass over the trunk that runs alone, between steps. 0: the trunk is too
 * small to tell, or device memory is host memory. */
double exec_probe_memory(exec *x);

/* How much of the logits' rows the caller wants; the cheapest that serves every row of the step is run. */
typedef enum exec_want { EXEC_WANT_ARGMAX, EXEC_WANT_TOP, EXEC_WANT_LOGITS } exec_want;

/* A run of tokens of one sequence, adjacent in the batch. */
typedef struct exec_keep { /* what linear layers know after the run's first `after` tokens is to be kept */
    uint32_t after;
    void *to; /* host memory, as large as a state */
} exec_keep;
enum { EXEC_MAX_KEEP = 2 };

typedef struct exec_run_seq {
    const uint32_t *ids;                      /* [n_tokens] */
    const uint32_t *blocks;                   /* block tables of the whole sequence, and n_blocks, as kv_seq_blocks() */
    uint32_t n_blocks, stride, pos, n_tokens; /* stride: kv_seq_stride(), where there are several groups */
    uint32_t state;                           /* slot of kv_describe_state(), where the model has linear layers */
    uint32_t n_keep;
    exec_keep keep[EXEC_MAX_KEEP]; /* ascending */
    uint32_t n_rows;               /* logits wanted for the last n_rows tokens */
    exec_want want;
    uint64_t salt; /* of the sequence's timeline in the routes */
} exec_run_seq;

typedef struct exec_batch {
    const exec_run_seq *seqs;
    uint32_t n_seqs;
    bool prefill; /* some tokens belong to prompts: the pager streams past its cache */
    /* When forming the batch began, where the caller had nothing to wait for since the step before; 0: it had. */
    uint64_t follows_ns;
    /* Called once, for work that the step does not depend on: where the device runs a whole step by itself, while it does; otherwise
     * before the first operation. NULL: nothing. Not called where the step fails before. */
    void (*meanwhile)(void *user);
    void *meanwhile_user;
} exec_batch;

/* Rows come in the order of the batch. Valid until the next exec_run(). Pointers are to host memory. */
typedef struct exec_result {
    uint32_t n_rows, vocab;
    const uint32_t *argmax;     /* [n_rows], UINT32_MAX where the row is not finite; set unless top_ids is */
    const uint32_t *top_ids;    /* [n_rows][KERN_TOP_LOGITS] or NULL */
    const float *top_values;    /* same shape */
    const float *top_logsumexp; /* [n_rows] */
} exec_result;

/* What the host did from the moment it saw the results of the step before until this one was launched (where it is not one launch, until its
 * first operation): the device had nothing to do then. The parts are all of it. 0: it did not follow at once, or was recorded first. */
typedef struct exec_border {
    uint64_t ns;
    uint64_t results_ns; /* the caller, with the results */
    uint64_t pager_ns;   /* end of the step before, begin of this one */
    uint64_t form_ns;    /* the caller again, with the batch, and its inputs */
    uint64_t launch_ns;
} exec_border;

/* Split of a step's time on the device, and of the host's part around it. */
typedef struct exec_times {
    uint64_t attention_ns, router_ns, experts_ns, head_ns, total_ns;
    bool shared; /* experts were divided: these two computed at the same time, within experts_ns */
    uint64_t device_ns, cpu_ns;
    uint64_t kv_host_bytes;   /* KV that had to come from host memory */
    kern_ahead_counts ahead;  /* of this step */
    bool recorded, recording; /* recording: that is, it was recorded in this step, which takes longer */
    uint64_t pager_ns;        /* of the host: begin and end of this step */
    uint64_t launch_ns;       /* of the host, where the step was one launch */
    exec_border border;       /* before this step */
} exec_times;

/* Runs the step. Errors leave the exec usable unless exec_device_lost(). After XD_UNAVAILABLE, exec_needs_lost_page() tells which
 * sequences need a page that could not be read; the others may be run again as if the step had never begun. */
xd_status exec_run(exec *x, const exec_batch *b, exec_result *ret, xd_err *err) XD_MUST_CHECK;
bool exec_needs_lost_page(const exec *x, uint32_t seq); /* the seq-th of the batch that failed */
/* Whole rows of logits of the last step: rows[0..n) are brought to the host, n at most exec_fetch_max(). ret[i] is row i's. */
xd_status exec_fetch_rows(exec *x, const uint32_t *rows, uint32_t n, const float **ret, xd_err *err) XD_MUST_CHECK;
uint32_t exec_fetch_max(const exec *x);
void exec_get_times(const exec *x, exec_times *ret); /* of the last step */
bool exec_device_lost(const exec *x); /* the device cannot even be waited for: nothing will run any more */

/* Looks on for tests and traces: called on the engine thread after each layer's router, host pointers, [n_tokens][top_k] in the
 * order of the batch. Steps are then not replayed from graphs. NULL: off. */
typedef void exec_router_observer(void *user, uint32_t layer, const uint32_t *ids, const float *weights,
                                  uint32_t n_tokens, uint32_t top_k);
xd_status exec_observe_router(exec *x, exec_router_observer *f, void *user, xd_err *err) XD_MUST_CHECK;

#endif
