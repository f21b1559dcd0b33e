/* generate_priv.h - one completion request and its choices, for generate.c (its life) and generate_choice.c (its answers as JSON). */
#ifndef API_GENERATE_PRIV_H
#define API_GENERATE_PRIV_H

#include "api/generate.h"

typedef struct responses responses;
typedef struct messages messages;

/* An API that tells the answer of a chat, which has one choice, in a shape of its own. */
typedef struct gen_shape {
    const char *id_prefix;
    /* Makes of a parsed body that of the chat request which means the same: *ret is owned, and shares values with body. */
    xd_status (*to_chat)(const json_t *body, json_t **ret, xd_err *err);
    /* A fault of the chat request, in the names that the client has used in body (NULL: it is not there any more). */
    void (*name_fault)(const json_t *body, xd_err *err);
    /* Once all is read; body is the client's. */
    xd_status (*begin)(gen *g, const json_t *body, xd_err *err);
    /* Of a stream: writes the events that come before everything else; false: that was done before. */
    bool (*send_opening)(gen *g);
    const char *ping; /* of a stream in which nothing happens */
    void (*take_piece)(gen *g, const answer_piece *p);
    /* Each an api_prepare, once the answer has ended: a stream's last events, to g->out; the whole answer, to x->answer. */
    xd_status (*end_stream)(exchange *x, xd_err *err);
    xd_status (*write_whole)(exchange *x, xd_err *err);
} gen_shape;
extern const gen_shape messages_shape, responses_shape; /* messages_reply.c, responses_reply.c */

typedef struct choice {
    gen *g;
    answer_reader *parts;  /* tells text, thoughts and calls apart; NULL: all is text */
    const uint32_t *token; /* of a stream: what has still to go with a chunk */
    xd_buf text, thought;
    xd_buf said;      /* all of it, for the log */
    json_t *calls;    /* an array, or NULL */
    xd_buf arguments; /* of the last of them */
    bool called;
    tok_ids ids;
    json_t *logprobs; /* collected: an array (chat) or an object of arrays ... */
    size_t n_held;    /* ... of so many log-probabilities */
    size_t text_offset;
    engine_finish finish;
    char *stop_text;
    int64_t stop_id;
    bool begun, done;
} choice;

struct gen {
    exchange *x;
    gen_context ctx;
    json_t *body;
    gen_params p;
    engine_request **reqs; /* [p.n_prompts] */
    choice *choices;       /* [p.n_prompts * p.n] */
    size_t n_choices, n_done;
    size_t turn, n_held, most_held; /* log-probabilities of all choices that wait to be sent, and the most there were */
    uint64_t prompt_tokens, completion_tokens, cached_tokens, engine_ns;
    uint64_t submitted_ns; /* the first of reqs was */
    uint64_t queued_ns, first_token_ns, last_first_ns,
        total_ns; /* since then: begun, the first token, all have one, the end */
    char id[96], fingerprint[96];
    json_int_t created;
    bool submitted, counted;
    bool replying; /* a stream whose headers are on their way */
    bool ended;    /* nothing more will be added to out */
    xd_buf out;    /* event stream, not yet taken */
    size_t out_taken;
    xd_err error;            /* status != XD_OK: the request has failed */
    uint64_t thought_tokens; /* of a request with a shape */
    const gen_shape *shape;  /* NULL: chat's own, or completions' */
    responses *responses;    /* of /v1/responses, NULL: another endpoint */
    messages *messages;      /* so of /v1/messages */
    bool told_end;           /* of a stream: its last event is in out */
};

/* The first fault of a request is the one that is told. */
void gen_fail(gen *g, xd_status status, const char *text);

/* --- generate_choice.c --- */

/* Makes the readers of choices whose text has parts to tell apart. */
xd_status gen_choice_begin_parts(gen *g, xd_err *err) XD_MUST_CHECK;
void gen_choice_clear(choice *c);
/* Takes an event of the req-th engine request: a stream's chunks go to g->out. */
void gen_choice_take_event(gen *g, size_t req, const engine_event *ev);
/* Why a choice ended, in OpenAI's words. */
const char *gen_choice_finish(const gen *g, const choice *c);
/* llama.cpp's timings; after count_usage(). Owned, NULL: out of memory. */
json_t *gen_timings(const gen *g);
/* What stands around the choices of a response or chunk; owned, NULL: out of memory. */
json_t *gen_choice_envelope(const gen *g, const char *object);
void gen_choice_send_json(gen *g, json_t *json); /* takes json; NULL: out of memory */
/* An api_prepare: the whole response, to x->answer. */
xd_status gen_choice_write_whole(exchange *x, xd_err *err) XD_MUST_CHECK;

/* --- messages_reply.c, responses_reply.c --- */

void messages_free(messages *m);   /* NULL is fine */
void responses_free(responses *r); /* NULL is fine */
/* A token was part of a thought: what is known of it beside its text goes nowhere. */
void responses_drop_logprobs(gen *g);

#endif
