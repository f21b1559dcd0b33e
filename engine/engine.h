/* engine.h - a loaded model that answers requests. What the API and the daemon see of it: no tensor, no page, no sequence.
 *
 * One engine thread owns scheduler, KV cache and steps. Requests are handed to it and report back by events; all functions here
 * may be called from any thread unless they say otherwise. */
#ifndef ENGINE_ENGINE_H
#define ENGINE_ENGINE_H

#include <stdbool.h>
#include <stdint.h>

#include "config/config.h"
#include "config/error.h"
#include "config/util.h"

typedef struct engine engine;
typedef struct engine_request engine_request;
struct grammar;
struct lead;
struct tokenizer;

typedef enum engine_phase { ENGINE_LOADING, ENGINE_READY, ENGINE_DRAINING, ENGINE_FAILED } engine_phase;

/* Starts loading in the background; returns at once. cfg is borrowed until engine_free(). Poll or wait with engine_wait_ready(). */
xd_status engine_start(const config *cfg, engine **ret, xd_err *err) XD_MUST_CHECK;
/* Blocks until READY or FAILED (then the reason), calling progress(user, fraction, what) about twice a second; NULL is fine. */
xd_status engine_wait_ready(engine *e, void (*progress)(void *user, double fraction, const char *what), void *user,
                            xd_err *err) XD_MUST_CHECK;
/* No new requests (they get XD_UNAVAILABLE); returns when the running ones are done or at the deadline, then cancels the rest. */
void engine_drain(engine *e, uint64_t deadline_ns);
void engine_free(engine *e); /* cancels everything, joins threads; NULL is fine */
XD_DEFINE_CLEANUP(engine, engine_free)

/* Any thread. *ret_fraction: of loading, from 0 to 1; ret_what: what is being loaded or, when FAILED, why. Both may be NULL. */
engine_phase engine_get_phase(const engine *e, double *ret_fraction, char *ret_what, size_t what_cap);
/* Counts steps (and idle turns) of the engine loop: a watchdog sees that it moves. */
uint64_t engine_heartbeat(const engine *e);

/* Facts of the loaded model; valid once READY. */
typedef struct engine_info {
    char model_id[CONF_MAX_NAME + 1]; /* the first of served_model_name */
    const char *const *aliases;       /* [n_aliases] the others; borrowed from the engine */
    uint32_t n_aliases;
    char arch[48], dtype[16], backend[64], backend_why[256]; /* dtype: of most of the experts' bytes */
    char expert_formats[96], trunk_formats[96];              /* as model_formats() writes them */
    char model_dir[4096];                                    /* "" when there is none: no template, no tokenizer */
    /* What a GGUF file carries; NULL when it does not, or the model is a directory. Borrowed from the engine. */
    const char *chat_template, *bos_token, *eos_token;
    uint64_t created_unix_s;
    uint32_t max_model_len, vocab;
    uint32_t n_layers, n_experts, top_k;
    bool is_demo;
    /* For bounds: what a step must move and multiply. Rates are of the device: read from its memory as measured at the start, and of
     * 16-bit matrix products as its data sheet says; 0: unknown. */
    char pci_bus_id[32];       /* "" on the CPU */
    uint64_t trunk_step_bytes; /* of trunk weights that every step reads: all but the embedding's table */
    uint64_t token_weights;    /* weights that one token is multiplied with, without the LM head */
    uint64_t head_weights;
    double memory_gbps, matrix_tflops;
} engine_info;
const engine_info *engine_get_info(const engine *e); /* borrowed until engine_free() */
/* NULL when the model has no tokenizer; *why then says so in words (borrowed). */
const struct tokenizer *engine_get_tokenizer(const engine *e, const char **why);

/* --- requests ---------------------------------------------------------------------------------------------------- */

#define ENGINE_MAX_TOP_LOGPROBS 20
#define ENGINE_MAX_STOP_IDS     128

#define ENGINE_MAX_DRY_BREAKERS      64
#define ENGINE_MAX_DRY_BREAKER_BYTES 64

/* A field that the client left out has its "unset" value; the engine then takes the model's default (sampling_defaults). */
typedef struct engine_sampling {
    float temperature;                         /* NAN unset; 0: greedy */
    float top_p, min_p;                        /* NAN unset */
    float typical_p;                           /* NAN unset; 0 and 1: off */
    int32_t top_k;                             /* -1 unset; 0: all */
    float repetition_penalty;                  /* NAN unset; 1: none; over prompt and output */
    float presence_penalty, frequency_penalty; /* 0: none; over output */
    bool has_seed;
    uint64_t seed;
    const uint32_t *bias_ids; /* logit_bias */
    const float *bias;
    uint32_t n_bias;
    /* What the checkpoint has no default for. sample.h says what they do. */
    float top_n_sigma;                       /* 0: off */
    float xtc_probability, xtc_threshold;    /* probability 0: off */
    float dynatemp_range, dynatemp_exponent; /* range 0: off */
    float dry_multiplier, dry_base;          /* multiplier 0: off */
    uint32_t dry_allowed_length;
    uint32_t dry_last_n; /* tokens looked at; UINT32_MAX: all; 0: off */
    const char *const *dry_breakers;
    uint32_t n_dry_breakers;
} engine_sampling;

typedef struct engine_request_options {
    const uint32_t *prompt_ids;
    uint32_t n_prompt;
    uint32_t n;          /* choices */
    uint32_t max_tokens; /* UINT32_MAX: up to the context's end; 0: only the prompt (echo) */
    uint32_t min_tokens;
    engine_sampling sampling;
    const char *const *stop; /* stop strings */
    const uint32_t *stop_ids;
    uint32_t n_stop, n_stop_ids;
    const char *grammar_field; /* the field that asked for `grammar`, a literal, for messages */
    struct grammar *grammar;   /* what the answer must be, which then ends where the grammar does; NULL: anything */
    const struct lead *lead;   /* what comes before that; NULL: nothing */
    bool ignore_eos;
    bool include_stop_str; /* emit the stop string */
    bool skip_special;     /* special tokens are not shown in text, but for these: */
    const uint32_t *shown_ids;
    uint32_t n_shown_ids;
    bool detokenize;         /* false: token ids only (also when there is no tokenizer) */
    int32_t logprobs;        /* -1 none; else number of alternatives */
    int32_t prompt_logprobs; /* -1 none; else number of alternatives: PROMPT events come first */
    int32_t priority;        /* lower goes first */
    /* One that belongs to the same call, submitted before and not freed; NULL: this is the call's first. Calls take turns, and
     * max_queue counts them. Where both ask for DRY, its breakers are the first's. */
    engine_request *with;
    uint64_t deadline_ns; /* monotonic; 0 none: XD_TIMEOUT */
    /* Called on the engine thread whenever events wait; must not block or call the engine. */
    void (*notify)(void *user);
    void *user;
} engine_request_options;

typedef struct engine_logprob {
    uint32_t id;
    float logprob;
    uint32_t rank; /* 1: most likely */
} engine_logprob;

typedef enum engine_event_kind { ENGINE_EV_PROMPT, ENGINE_EV_TOKEN, ENGINE_EV_DONE, ENGINE_EV_ERROR } engine_event_kind;
typedef enum engine_finish {
    ENGINE_FINISH_NONE,
    ENGINE_FINISH_STOP,
    ENGINE_FINISH_LENGTH,
    ENGINE_FINISH_ABORT
} engine_finish;

typedef struct engine_event {
    engine_event_kind kind;
    uint32_t choice;
    /* TOKEN: one generated token and the text that became certain with it (may be empty; text of a possible stop string is held
     * back; the text of all events of a choice, DONE's included, is the whole answer). PROMPT: one prompt token. */
    uint32_t token_id, token_idx;
    const char *text; /* text_len bytes of whole UTF-8 characters; valid until the next engine_request_next() */
    size_t text_len;
    engine_logprob logprob;    /* when asked for; logprob is NAN for the first prompt token */
    const engine_logprob *top; /* [n_top], most likely first */
    uint32_t n_top;
    /* DONE (one a choice): why; which stop matched. */
    engine_finish finish;
    const char *stop_text; /* the stop string that matched, or NULL */
    int64_t stop_id;       /* the stop token id that matched, or -1 */
    /* ERROR (ends the request). */
    const xd_err *error;
} engine_event;

typedef struct engine_usage {
    uint32_t prompt_tokens, completion_tokens, cached_tokens;
    uint64_t submitted_ns;                        /* xd_now_ns() then */
    uint64_t queued_ns, first_token_ns, total_ns; /* since submission */
    uint32_t preemptions;
} engine_usage;

/* Checks and queues. Everything in opt is copied. XD_BAD_REQUEST (param and code set; code "context_length_exceeded" with both
 * numbers in the message), XD_BUSY when the queue is full (never for one `with` another), XD_UNAVAILABLE while loading or draining. */
xd_status engine_submit(engine *e, const engine_request_options *opt, engine_request **ret, xd_err *err) XD_MUST_CHECK;
/* Takes the next event; false: none now. One consumer a request. */
bool engine_request_next(engine_request *r, engine_event *ret);
bool engine_request_finished(const engine_request *r); /* all choices DONE or ERROR, and all events taken */
void engine_request_usage(const engine_request *r, engine_usage *ret); /* so far; any thread */
/* Cancels if it still runs, and gives the handle up: notify is not called after this returns. NULL is fine. */
void engine_request_free(engine_request *r);
XD_DEFINE_CLEANUP(engine_request, engine_request_free)

/* --- looking on -------------------------------------------------------------------------------------------------- */

/* Prometheus text of all engine metrics is appended to out. Readable in every phase; counters are monotonic. */
void engine_metrics(engine *e, xd_buf *out);
/* The living picture for the status page and /health: a JSON object (owned text). */
xd_status engine_status_json(engine *e, bool with_map, xd_buf *out, xd_err *err) XD_MUST_CHECK;
/* GB/s at which kernels read host memory while all is well; 0: there is no link, or it was not measured. Once READY. */
double engine_get_link_gbps(engine *e);
/* Forces a fallback state (CONF_FORCE_*). XD_UNSUPPORTED: there is no link. */
xd_status engine_force_fallback(engine *e, int force, xd_err *err) XD_MUST_CHECK;
/* Takes over the settings of `cfg` that may change while running (borrowed for the call). */
void engine_reload(engine *e, const config *cfg);

/* --- measuring --------------------------------------------------------------------------------------------------- */

/* One step as it was. Bytes and pages are of experts; what does not lie in VRAM counts as the host's. */
typedef struct engine_step_facts {
    uint32_t n_seqs, n_tokens;
    bool prefill;      /* some of the tokens belong to prompts */
    uint64_t kv_bytes; /* of K and V that attention looked at, the sum over the sequences */
    uint64_t begin_ns, end_ns, experts_ns;
    uint64_t vram_bytes, host_bytes, vram_pages, host_pages;
    uint64_t cpu_bytes;         /* of experts, read by the CPU beside the others; not of host_bytes */
    uint64_t cpu_ns, device_ns; /* where experts were shared: that each side computed them, within experts_ns */
    uint64_t kv_host_bytes;     /* of KV blocks */
    /* Experts that were read ahead of their layer: of host_bytes, and for nothing; experts that were predicted, and of those picked. */
    uint64_t early_bytes, wasted_bytes, predictions, predictions_right;
    /* The host's time from the results of the step before until this one was launched (exec_border): in all, and for tokens and their
     * consumers, the pager, the batch and its inputs, the launch itself. 0: the step did not follow at once. */
    uint64_t border_ns, border_results_ns, border_pager_ns, border_form_ns, border_launch_ns;
} engine_step_facts;

/* note(user, facts) is called on the engine thread after each step, before the step's events are told; it must not block or call
 * the engine. NULL: no more, and none is under way when this returns. Once READY. */
void engine_observe(engine *e, void (*note)(void *user, const engine_step_facts *facts), void *user);
/* While held, requests are queued and none is begun; those that run go on. So requests can be made to start together. */
void engine_hold(engine *e, bool hold);

#endif
