/* sample.h - the next token from a row of logits.
 *
 * Pure: the result depends on the parameters, the history and the row alone, and the random number is a function of seed and
 * token index (counter-based), so a request gives the same tokens whatever runs beside it and after any preemption.
 * Order, as in vLLM and transformers: repetition, frequency and presence penalty, logit_bias, limits, temperature, top_k, top_p, min_p. */
#ifndef ENGINE_SAMPLE_H
#define ENGINE_SAMPLE_H

#include <stdbool.h>
#include <stdint.h>

#include "config/error.h"
#include "config/util.h"
#include "engine/engine.h"

typedef struct sampler_params {
    float temperature, top_p, min_p; /* temperature 0: greedy; top_p 1, min_p 0: off */
    uint32_t top_k;                  /* 0: all */
    float repetition_penalty, presence_penalty, frequency_penalty;
    const uint32_t *bias_ids; /* borrowed */
    const float *bias;
    uint32_t n_bias;
    uint64_t seed;
} sampler_params;

/* The cheapest form of a row that gives the exact result. Depends on the parameters only, never on the batch. */
typedef enum sample_need { SAMPLE_NEED_ARGMAX, SAMPLE_NEED_TOP, SAMPLE_NEED_ROW } sample_need;
/* n_logprobs: alternatives wanted, -1 none. limited: some ids must not be chosen (sample_limits). */
sample_need sample_need_of(const sampler_params *p, int32_t n_logprobs, bool limited);

/* Tokens seen so far, kept only where a penalty asks for it. */
typedef struct sample_history sample_history;
sample_history *sample_history_new(void); /* NULL: out of memory */
void sample_history_free(sample_history *h);
XD_DEFINE_CLEANUP(sample_history, sample_history_free)
bool sample_history_add(sample_history *h, uint32_t id, bool is_output); /* false: out of memory */

typedef struct sampler sampler;       /* scratch for one row at a time */
sampler *sampler_new(uint32_t vocab); /* NULL: out of memory */
void sampler_free(sampler *s);
XD_DEFINE_CLEANUP(sampler, sampler_free)

typedef struct sample_result {
    uint32_t id;
    engine_logprob chosen; /* of the raw distribution, before penalties and temperature; when n_logprobs >= 0 */
    uint32_t n_top;
    engine_logprob top[ENGINE_MAX_TOP_LOGPROBS];
} sample_result;

/* What may be chosen; {0}: everything. All borrowed. */
typedef struct sample_limits {
    const uint32_t *banned; /* ids that may not (min_tokens) */
    uint32_t n_banned;
    const uint64_t *allowed; /* NULL, or one bit a token of the vocabulary: no other may (a grammar) ... */
    const uint32_t *also;    /* ... but these */
    uint32_t n_also;
} sample_limits;
/* From a whole row [vocab] (not changed). token_idx is the position in the output. XD_INTERNAL: the row is not finite, or nothing
 * is left to choose. h may be NULL. */
xd_status sample_row(sampler *s, const sampler_params *p, const sample_history *h, const float *logits,
                     uint32_t token_idx, const sample_limits *limits, int32_t n_logprobs, sample_result *ret,
                     xd_err *err) XD_MUST_CHECK;
/* From the n largest logits in descending order and the log of the sum of exponentials of the whole row. */
xd_status sample_top(sampler *s, const sampler_params *p, const uint32_t *ids, const float *values, uint32_t n,
                     float logsumexp, uint32_t token_idx, int32_t n_logprobs, sample_result *ret,
                     xd_err *err) XD_MUST_CHECK;
/* Log probability of a given token in a whole row, and the n_logprobs most likely. */
xd_status sample_score(sampler *s, const float *logits, uint32_t id, int32_t n_logprobs, sample_result *ret,
                       xd_err *err) XD_MUST_CHECK;
/* The uniform number in [0, 1) of (seed, index): Philox4x32-10 (Salmon et al., SC'11). */
double sample_uniform(uint64_t seed, uint64_t index);

#endif
