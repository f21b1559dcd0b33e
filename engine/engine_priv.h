/* engine_priv.h - what the files of the engine's root share: the engine thread's state and the requests. */
#ifndef ENGINE_PRIV_H
#define ENGINE_PRIV_H

#include <pthread.h>
#include <stdatomic.h>

#include "engine/core.h"
#include "engine/engine.h"
#include "engine/fallback/fallback.h"
#include "engine/files.h"
#include "engine/metrics.h"
#include "engine/schedule/pace.h"
#include "engine/schedule/sched.h"
#include "engine/text/grammar.h"
#include "engine/text/lead.h"
#include "engine/text/sample.h"
#include "engine/text/stop.h"
#include "engine/text/tokenizer.h"
#include "engine/words.h"

typedef struct event_node {
    struct event_node *next;
    engine_event ev; /* its pointers lead into this node or the request */
    engine_logprob top[ENGINE_MAX_TOP_LOGPROBS];
    char text[];
} event_node;

/* One choice of a request: a timeline and what turns its tokens into text. Engine thread only. */
typedef struct choice {
    engine_request *r;
    uint32_t idx, n_out, ids_cap, n_prompt_sent;
    uint64_t salt; /* exec_run_seq.salt: a hash of the prompt and idx; 0 where nobody asks */
    bool done;
    sched_seq seq;
    sampler_params params;
    sample_history *history; /* NULL: no penalty asks for it */
    grammar_run *grammar;    /* NULL: any answer will do */
    lead_run *lead;          /* NULL: the grammar holds from the start */
    tok_stream *stream;      /* NULL: no text */
    stop_matcher stop;
    xd_buf piece, out;
} choice;

/* Lock order: engine.lock, then request.notify_lock, then request.lock. */
struct engine_request {
    engine *e;
    atomic_uint refs; /* the consumer's handle and the engine */
    atomic_bool cancelled;
    engine_request_options opt; /* pointers lead to the copies below */
    sampler_params params;
    uint32_t *prompt, *stop_ids, *shown_ids, *bias_ids, *banned;
    uint32_t n_banned;
    uint32_t *enders; /* of banned those that are no text: what a grammar lets through where the answer may end */
    uint32_t n_enders;
    lead lead; /* opt.lead's copy */
    char *lead_close;
    uint32_t *lead_ids;
    float *bias;
    char **stops;
    sample_dry *dry; /* NULL: nobody asks for it */
    choice *choices;
    uint64_t order, submit_ns;
    engine_request *first;  /* of its call, a reference; itself: none */
    uint32_t n_call_queued; /* of the first: the call's requests that are not started; engine.lock */

    pthread_mutex_t lock; /* events, usage, state seen by the consumer */
    event_node *head, *tail, *current;
    engine_usage usage;
    bool ended;   /* the last event is queued */
    xd_err error; /* status 0: none */
    bool error_taken;

    pthread_mutex_t notify_lock;
    bool notify_off;

    /* engine thread */
    engine_request *next;
    uint32_t n_open; /* choices that run */
    bool admitted, started, dirty, out_of_memory, in_step;
    engine_finish last_finish;
    xd_err failed; /* met in this step; status 0: none */
    uint64_t last_token_ns;
};

typedef struct engine_job { /* something to be run on the engine thread between steps */
    void (*run)(engine *e, void *user);
    void *user;
    bool done;
} engine_job;

struct engine {
    const config *cfg;
    pthread_t thread;
    bool thread_started;
    core c;
    engine_info info;
    char **aliases; /* info.aliases */
    tokenizer *tok;
    char no_tok_why[64];
    grammar_vocab *words; /* NULL: no grammars, for no_words_why */
    char no_words_why[128];
    sched *sched;
    sampler *sampler;
    fallback *fallback;
    exec_run_seq *run; /* [max_seqs] */
    metrics *metrics;
    files_watch *files; /* NULL: none is watched */

    pthread_mutex_t lock; /* all down to the next comment */
    pthread_cond_t wake, changed;
    engine_phase phase;
    double fraction;
    char what[64];
    xd_err failure;
    engine_request *inbox, **inbox_tail;
    uint32_t n_live, n_queued; /* submitted and not ended; of these, not started */
    uint32_t n_calls_queued;   /* calls that have such */
    bool stop, cancel_all, held;
    engine_job *job;
    uint32_t max_queue; /* may be reloaded */
    uint64_t next_order;

    atomic_uint max_decode_stall_ms, max_n, max_logprobs, max_stop; /* may be reloaded */
    atomic_uint_fast64_t n_allocs;                                  /* counts for test.alloc_error_rate */
    atomic_uint_fast64_t heartbeat, preemptions;

    /* engine thread */
    engine_request *live;
    bool failed; /* phase is FAILED: what the thread may read without the lock */
    bool
        step_failed; /* the last one: the next goes without newcomers, who might need the same lost page, again and again */
    bool paused;     /* there was something to wait for since the last step */
    pace pace;       /* of steps with prompt pieces */
    pager_stats seen_pager; /* after the last step */
    uint64_t seen_swap_ns;
    void (*observe)(void *user, const engine_step_facts *facts); /* NULL: nobody */
    void *observe_user;
};

/* request.c */
xd_status request_new(engine *e, const engine_request_options *opt, engine_request **ret, xd_err *err) XD_MUST_CHECK;
void request_unref(engine_request *r);
/* text may be NULL. Out of memory is kept in r->out_of_memory: the request then ends with an error. */
void request_push(engine_request *r, const engine_event *ev, const char *text, size_t len);
void request_push_error(engine_request *r, const xd_err *error);
void request_notify(engine_request *r); /* when something was pushed since the last call */

/* choice.c: tokens to events. *ret_ended: the choice's DONE is queued. */
xd_status choice_start(choice *c, xd_err *err) XD_MUST_CHECK;
void choice_clear(choice *c);
xd_status choice_token(choice *c, const sample_result *s, bool *ret_ended, xd_err *err) XD_MUST_CHECK;
void choice_finish(choice *c, engine_finish why);
bool choice_is_limited(const choice *c); /* some tokens may not be chosen now */
/* Which they are. May take up to milliseconds the first time in a state of a grammar. */
xd_status choice_limits(choice *c, sample_limits *ret, xd_err *err) XD_MUST_CHECK;

/* self_test.c: before the first request */
xd_status engine_self_test(engine *e, xd_err *err) XD_MUST_CHECK;

/* load.c */
xd_status engine_load(engine *e, xd_err *err) XD_MUST_CHECK;

/* engine.c */
void engine_set_progress(void *e, double fraction, const char *what); /* of loading */
/* With engine.lock held: the request is one of those that wait; no more. */
void engine_count_queued(engine *e, engine_request *r);
void engine_uncount_queued(engine *e, engine_request *r);

/* step.c */
void engine_step(engine *e);
void engine_reap(engine *e);                                                /* cancelled and expired requests */
void engine_end_request(engine *e, engine_request *r, const xd_err *error); /* error NULL: all choices are done */
void engine_fail_all(engine *e, const xd_err *error);
void engine_notify(engine *e); /* consumers of the tokens of the step before */
void engine_set_failed(engine *e, const xd_err *error);
/* Runs f on the engine thread between steps and waits for it. */
void engine_call(engine *e, void (*f)(engine *e, void *user), void *user);

#endif
