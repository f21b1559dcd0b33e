/* bench.h - one measurement of `expertd bench`, for its files. */
#ifndef DAEMON_BENCH_H
#define DAEMON_BENCH_H

#include <stdint.h>

#include "config/error.h"
#include "engine/engine.h"

#define BENCH_MAX_SEQS 1024

/* What the machine could do: rates in bytes a second, 0 unknown. */
typedef struct bench_limits {
    double link, memory; /* memory: what kernels compute from, VRAM or DRAM */
    double flops;
} bench_limits;

/* engine_step_facts.border_*: in all, then the parts. */
enum { BENCH_BORDER, BENCH_BORDER_RESULTS, BENCH_BORDER_PAGER, BENCH_BORDER_FORM, BENCH_BORDER_LAUNCH, BENCH_BORDERS };

typedef struct bench_bound {
    double seconds; /* NAN: unknown */
    const char *by; /* "link", "memory", "compute" */
} bench_bound;

typedef struct bench_point {
    uint32_t prompt, seqs, tokens; /* asked for: prompt tokens, requests at once, answer tokens */
    double ttft_ms;                /* mean over the requests */
    double total_s;                /* until the last answer was whole */
    double prefill_tps;
    bench_bound prefill_bound; /* seconds for all prompts */
    /* Of the steps in which all requests decode; NAN where there was none, and not_measured says why. Bytes and times are of one step. */
    uint64_t decode_steps;
    const char *not_measured; /* "" */
    double decode_tps, step_ms, experts_ms;
    double host_bytes, vram_bytes;    /* of experts, read by tier */
    double cpu_ms, gpu_ms;            /* that each side computed, where experts were shared; a mean over all steps */
    double cpu_bytes;                 /* of experts, read by the CPU beside the GPU; not of host_bytes */
    double early_bytes, wasted_bytes; /* of experts, read ahead of their layer: those of host_bytes; others */
    double right;                     /* share of the experts predicted for that which were picked; NAN: none were */
    double kv_host_bytes;             /* of the KV cache, read from host memory */
    double border_ns[BENCH_BORDERS];  /* of the host before a step, by part */
    uint64_t answers;                 /* a hash of all tokens, equal where the answers are */
    bench_bound step_bound;
} bench_point;

/* Runs pt->seqs requests that start together and fills pt. seed: of the random prompts, moved on. */
xd_status bench_measure(engine *e, const bench_limits *lim, bench_point *pt, uint64_t *seed, xd_err *err) XD_MUST_CHECK;
/* One sequence: the share of pages that was found in VRAM for every `every` of `tokens` answer tokens into rates[0..*ret_n), which has
 * room for tokens / every. */
xd_status bench_hits(engine *e, uint32_t prompt, uint32_t tokens, uint32_t every, double *rates, uint32_t *ret_n,
                     uint64_t *ret_answers, xd_err *err) XD_MUST_CHECK;
/* The limits that the running engine knows; `dram`: bytes a second, what a CPU computes from. */
bench_limits bench_get_limits(engine *e, double dram);
/* Bytes a second at which all CPUs together read DRAM: the best of three passes; 0 when memory is short. */
double bench_dram_rate(void);

#endif
