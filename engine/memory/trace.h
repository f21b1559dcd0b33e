/* trace.h - which experts each step touched: recorded while serving, replayed offline against every policy and against the optimum.
 *
 * File: header (magic, version, fingerprint, layers and their numbers of experts), then one record a step: a byte of flags and one
 * bit for each expert of all layers. Little-endian; ends where the last whole record ends. */
#ifndef ENGINE_TRACE_H
#define ENGINE_TRACE_H

#include <stdbool.h>
#include <stdint.h>

#include "config/error.h"
#include "config/util.h"

/* --- recording ----------------------------------------------------------------------------------------------------- */

typedef struct trace_writer trace_writer;

/* Whether a trace could be created at `path`; changes nothing. XD_BAD_CONFIG: something else is there. */
xd_status trace_check_path(const char *path, xd_err *err) XD_MUST_CHECK;
/* Creates `path` (an older trace is replaced; anything else, and one that is being recorded, is not). Stops recording at max_bytes, or when
 * the disk fails or cannot follow; the log is told then, and at the end how much was recorded. */
xd_status trace_writer_open(const char *path, uint64_t fingerprint, uint32_t n_layers, const uint32_t *layer_experts,
                            uint64_t max_bytes, trace_writer **ret, xd_err *err) XD_MUST_CHECK;
/* counts[x] != 0: expert x (over all layers) was touched. No I/O: a thread of the writer's own does that. */
void trace_writer_step(trace_writer *w, const uint32_t *counts, bool prefill);
void trace_writer_why_cut(trace_writer *w, char *out, size_t cap); /* in words, any thread; "": it goes on */
void trace_writer_close(trace_writer *w);                          /* writes what is left; NULL is fine */
XD_DEFINE_CLEANUP(trace_writer, trace_writer_close)

/* --- replay -------------------------------------------------------------------------------------------------------- */

enum { TRACE_PREFILL = 1 };

typedef struct trace {
    uint64_t fingerprint;
    uint32_t n_layers, n_experts; /* over all layers */
    uint32_t *layer_experts;      /* [n_layers] */
    uint32_t n_steps;
    uint8_t *flags;   /* [n_steps] */
    uint64_t *starts; /* [n_steps + 1] into ids */
    uint32_t *ids;    /* experts over all layers, ascending within a step */
} trace;

/* Reads a whole trace, every bound checked; owned. XD_NOT_FOUND, XD_IO, XD_NOMEM, or XD_BAD_REQUEST: it is none. */
xd_status trace_load(const char *path, trace **ret, xd_err *err) XD_MUST_CHECK;
void trace_free(trace *t);
XD_DEFINE_CLEANUP(trace, trace_free)

typedef struct trace_options {
    int policy;           /* CONF_EVICT_*, or one of those below */
    uint32_t capacity;    /* experts that fit into VRAM */
    uint32_t max_inserts; /* experts a layer and step; for the policies and TRACE_BELADY_CAPPED */
    double layer_floor;
} trace_options;

/* Who knows the future. */
enum {
    TRACE_BELADY = -1,        /* the optimum: may decline to keep a miss, and is bound by the capacity alone */
    TRACE_BELADY_STRICT = -2, /* must keep what it touches */
    TRACE_BELADY_CAPPED =
        -3,           /* may keep max_inserts misses a layer and step, takes those that are used again soonest */
    TRACE_FIXED = -4, /* the experts that the trace uses most, from beginning to end */
    /* For each step those that the N steps before it and the N after it use most, without the step itself; of the N = 4, 16, 64, 256,
     * 1024 the one that hits most. Fills neither step_hits nor step_touched. */
    TRACE_NEARBY = -5,
    /* After each step whatever the next one uses, then what the whole trace uses most, at no cost and from all that is at hand. */
    TRACE_NEXT = -6,
};

typedef struct trace_result {
    uint64_t touched, hits; /* decode steps only */
    double hit_rate;
} trace_result;

/* Plays all steps from an empty cache. `step_hits` and `step_touched` [n_steps] may be NULL. A hit is an expert that was resident
 * when its step began. */
xd_status trace_replay(const trace *t, const trace_options *opt, uint32_t *step_hits, uint32_t *step_touched,
                       trace_result *ret, xd_err *err) XD_MUST_CHECK;
/* Text table: hit rate of every policy, and of those who know the future, at 10, 25, 40, 50 and 75 % capacity. */
xd_status trace_report(const trace *t, uint32_t max_inserts, double layer_floor, xd_buf *out,
                       xd_err *err) XD_MUST_CHECK;

#endif
