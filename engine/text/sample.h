/* sample.h - the next token from a row of logits.
 *
 * Pure: the result depends on the parameters, the history and the row alone, and the random number is a function of seed and
 * token index (counter-based), so a request gives the same tokens whatever runs beside it and after any preemption.
 * Order: repetition, frequency and presence penalty, DRY, logit_bias, limits, top_n_sigma, temperature, top_k, typical_p, top_p, min_p,
 * XTC; as in vLLM and transformers where they have it, and llama.cpp's among the rest. With dynatemp_range the temperature is the last of all,
 * as in llama.cpp, for it depends on what the others leave. Temperature 0 takes the likeliest after the limits. */
#ifndef ENGINE_SAMPLE_H
#define ENGINE_SAMPLE_H

#include <stdbool.h>
#include <stdint.h>

#include "config/error.h"
#include "config/util.h"
#include "engine/engine.h"
#include "engine/text/sample_dry.h"

typedef struct sampler_params {
    float temperature, top_p, min_p; /* temperature 0: greedy; top_p 1, min_p 0: off */
    uint32_t top_k;                  /* 0: all */
    float repetition_penalty, presence_penalty, frequency_penalty;
    const uint32_t *bias_ids; /* borrowed */
    const float *bias;
    uint32_t n_bias;
    uint64_t seed;
    float
        top_n_sigma; /* keeps logits of at least the largest - top_n_sigma * the standard deviation of the row; 0: off */
    float typical_p; /* Meister et al., arXiv:2202.00666, as transformers' TypicalLogitsWarper; 0 and 1: off */
    /* p-e-w's "exclude top choices" (oobabooga/textgen#6335): with this probability all but the least likely of the tokens that have
     * at least the threshold go. What is compared are probabilities at temperature 1 among the tokens that are left. 0: off */
    float xtc_probability, xtc_threshold;
    /* From temperature - range to temperature + range, by (entropy / largest possible)^exponent of what is left; 0: off */
    float dynatemp_range, dynatemp_exponent;
    bool dry; /* the history has one */
} sampler_params;

/* The cheapest form of a row that gives the exact result. Depends on the parameters only, never on the batch. */
typedef enum sample_need { SAMPLE_NEED_ARGMAX, SAMPLE_NEED_TOP, SAMPLE_NEED_ROW } sample_need;
/* n_logprobs: alternatives wanted, -1 none. limited: some ids must not be chosen (sample_limits). */
sample_need sample_need_of(const sampler_params *p, int32_t n_logprobs, bool limited);

/* Tokens seen so far, kept only where a penalty asks for it. */
typedef struct sample_history sample_history;
bool sample_wants_history(const sampler_params *p);  /* some penalty does */
sample_history *sample_history_new(sample_dry *dry); /* dry: borrowed, NULL: none. NULL: out of memory */
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
 * is left to choose. XD_NOMEM. h may be NULL. */
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
