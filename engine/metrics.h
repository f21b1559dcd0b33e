/* metrics.h - the engine's counters: one table makes the enum, the slots and the Prometheus text.
 *
 * Written by the engine thread (and submit), read by any: relaxed atomics, for no reader needs two of them to agree. */
#ifndef ENGINE_METRICS_H
#define ENGINE_METRICS_H

#include <stdint.h>

#include "config/util.h"

/*     id                 name                                      label                help */
#define METRICS_COUNTERS(X)                                                                                          \
    X(REQUESTS_STOP, "requests_total", "finish=\"stop\"", "Requests ended, by how.")                                 \
    X(REQUESTS_LENGTH, "requests_total", "finish=\"length\"", "")                                                    \
    X(REQUESTS_ABORT, "requests_total", "finish=\"abort\"", "")                                                      \
    X(REQUESTS_TIMEOUT, "requests_total", "finish=\"timeout\"", "")                                                  \
    X(REQUESTS_ERROR, "requests_total", "finish=\"error\"", "")                                                      \
    X(REJECTED_BUSY, "requests_rejected_total", "reason=\"queue_full\"", "Requests that the engine itself refused.") \
    X(REJECTED_INVALID, "requests_rejected_total", "reason=\"invalid\"", "")                                         \
    X(REJECTED_NOMEM, "requests_rejected_total", "reason=\"out_of_memory\"", "")                                     \
    X(REJECTED_UNAVAILABLE, "requests_rejected_total", "reason=\"unavailable\"", "")                                 \
    X(PROMPT_TOKENS, "prompt_tokens_total", "", "Prompt tokens of started requests.")                                \
    X(CACHED_TOKENS, "prompt_cached_tokens_total", "", "Prompt tokens taken from the prefix cache.")                 \
    X(GENERATED_TOKENS, "generated_tokens_total", "", "Tokens generated.")                                           \
    X(COMPUTED_TOKENS, "computed_tokens_total", "", "Tokens that went through the model, recomputed ones included.") \
    X(STEPS_LAUNCHED, "steps_total", "mode=\"launched\"", "Steps of the model.")                                     \
    X(STEPS_RECORDED, "steps_total", "mode=\"recorded\"", "")                                                        \
    X(STEPS_FAILED, "steps_failed_total", "", "Steps that ended with an error.")                                     \
    X(TIME_SCHEDULE, "step_seconds_total", "phase=\"schedule\"", "Time of steps by phase.")                          \
    X(TIME_PAGER, "step_seconds_total", "phase=\"pager\"", "")                                                       \
    X(TIME_LAUNCH, "step_seconds_total", "phase=\"launch\"", "")                                                     \
    X(TIME_ATTENTION, "step_seconds_total", "phase=\"attention\"", "")                                               \
    X(TIME_ROUTER, "step_seconds_total", "phase=\"router\"", "")                                                     \
    X(TIME_EXPERTS_VRAM, "step_seconds_total", "phase=\"experts_vram\"", "")                                         \
    X(TIME_EXPERTS_HOST, "step_seconds_total", "phase=\"experts_host\"", "")                                         \
    X(TIME_EXPERTS_DISK, "step_seconds_total", "phase=\"experts_disk\"", "")                                         \
    X(TIME_EXPERTS_STAGED, "step_seconds_total", "phase=\"experts_staged\"", "")                                     \
    X(TIME_EXPERTS_CPU, "step_seconds_total", "phase=\"experts_cpu\"", "")                                           \
    X(TIME_KV, "step_seconds_total", "phase=\"kv\"", "")                                                             \
    X(TIME_HEAD, "step_seconds_total", "phase=\"head\"", "")                                                         \
    X(TIME_SAMPLE, "step_seconds_total", "phase=\"sample\"", "")                                                     \
    X(TIME_STEP, "step_busy_seconds_total", "", "Time spent in steps, everything included.")                         \
    X(KV_HOST_BYTES, "kv_host_read_bytes_total", "", "Bytes of KV blocks that steps read from host memory.")         \
    X(AHEAD_USEFUL, "read_ahead_useful_bytes_total", "", "Expert bytes read ahead for a later layer and then used.") \
    X(AHEAD_WASTED, "read_ahead_wasted_bytes_total", "", "Expert bytes read ahead for a later layer and not used.")  \
    X(AHEAD_PREDICTIONS, "read_ahead_predictions_total", "", "Experts in host memory that were predicted.")          \
    X(AHEAD_RIGHT, "read_ahead_predictions_right_total", "", "Predicted experts in host memory that were picked.")   \
    X(AHEAD_GIVEN_UP, "read_ahead_given_up_total", "", "Steps without reading ahead since kernels ran one by one.")

#define METRICS_HISTOGRAMS(X)                                                                 \
    X(TTFT, "time_to_first_token_seconds", "From submission to the first token.")             \
    X(TPOT, "time_per_output_token_seconds", "Between tokens of one choice.")                 \
    X(E2E, "request_duration_seconds", "From submission to the end of a request.")            \
    X(QUEUE_TIME, "request_queue_seconds", "From submission to the first step of a request.") \
    X(STEP_SECONDS, "step_duration_seconds", "One step of the model.")

typedef enum metric_counter {
#define X(id, name, label, help) METRIC_##id,
    METRICS_COUNTERS(X)
#undef X
        METRIC_COUNTERS
} metric_counter;

typedef enum metric_histogram {
#define X(id, name, help) METRIC_##id,
    METRICS_HISTOGRAMS(X)
#undef X
        METRIC_HISTOGRAMS
} metric_histogram;

typedef struct metrics metrics;

metrics *metrics_new(void); /* NULL: out of memory */
void metrics_free(metrics *m);
XD_DEFINE_CLEANUP(metrics, metrics_free)
void metrics_add(metrics *m, metric_counter c, uint64_t n); /* nanoseconds for the seconds of TIME_* */
/* One more value of a histogram. */
void metrics_observe_ns(metrics *m, metric_histogram h, uint64_t ns);
uint64_t metrics_get(const metrics *m, metric_counter c);
void metrics_print(const metrics *m, xd_buf *out); /* Prometheus text of all of them */
/* One metric of its own: kind "gauge" or "counter"; samples follow by metrics_sample(). */
void metrics_head(xd_buf *out, const char *name, const char *kind, const char *help);
void metrics_sample(xd_buf *out, const char *name, const char *label, double value);

#endif
