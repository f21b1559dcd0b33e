/* generate.c - one completion request: submitted to the engine, its events turned into a response or an event stream.
 *
 * A request of several prompts becomes several engine requests; each may have n choices. Events are taken by the thread of the
 * connection, never while the socket is full: what a slow client does not read stays with the engine, which bounds it by the
 * tokens of the request. Headers of a stream are sent with the first event (or the first heartbeat), so that an error that comes
 * before any token still has its HTTP status. The text of a stream's chunks is the text of the whole response, piece by piece,
 * because both are made from the same events by on_event(). */
#include "api/generate.h"

#include <math.h>
#include <string.h>
#include <time.h>

#include "config/log.h"

enum { OUT_HIGH_WATER_BYTES = 16 << 10 };

typedef struct choice {
    gen *g;
    answer_reader *parts;  /* tells text, thoughts and calls apart; NULL: all is text */
    const uint32_t *token; /* of a stream: what has still to go with a chunk */
    xd_buf text, thought;
    xd_buf said;   /* all of it, for the log */
    json_t *calls; /* an array, or NULL */
    bool called;
    tok_ids ids;
    json_t *logprobs; /* collected: an array (chat) or an object of arrays */
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
    size_t turn;
    uint64_t prompt_tokens, completion_tokens, cached_tokens, engine_ns;
    char id[96], fingerprint[96];
    json_int_t created;
    bool submitted, counted;
    bool replying; /* a stream whose headers are on their way */
    bool ended;    /* nothing more will be added to out */
    xd_buf out;    /* event stream, not yet taken */
    size_t out_taken;
    xd_err error; /* status != XD_OK: the request has failed */
};

gen_context gen_context_of(exchange *x)
{
    gen_context ctx = {.info = engine_get_info(x->a->e),
                       .max_n = x->settings->max_n,
                       .max_logprobs = x->settings->max_logprobs,
                       .max_stop = x->settings->max_stop,
                       .parse_special = x->settings->completions_parse_special,
                       .keep_thoughts = x->settings->keep_thoughts};
    ctx.tok = engine_get_tokenizer(x->a->e, &ctx.tok_why);
    /* Set once before the server is ready, and constant from then on. */
    ctx.chat = x->a->chat;
    ctx.chat_why = x->a->chat_why;
    return ctx;
}

static void cancel(gen *g)
{
    for (size_t i = 0; g->reqs && i < g->p.n_prompts; i++) {
        engine_request_free(g->reqs[i]);
        g->reqs[i] = NULL;
    }
}

uint64_t gen_engine_ns(const gen *g)
{
    return g->engine_ns;
}

api_form gen_form(const gen *g)
{
    const gen_params *p = &g->p;
    return !p->grammar    ? API_FORM_NONE
           : p->must_call ? API_FORM_TOOL
           : p->may_call  ? API_FORM_TOOL_OR_JSON
           : p->schema    ? API_FORM_JSON_SCHEMA
                          : API_FORM_JSON_OBJECT;
}

void gen_free(gen *g)
{
    if (!g)
        return;
    cancel(g);
    free(g->reqs);
    for (size_t i = 0; g->choices && i < g->n_choices; i++) {
        choice *c = &g->choices[i];
        answer_free(c->parts);
        xd_buf_free(&c->text);
        xd_buf_free(&c->thought);
        xd_buf_free(&c->said);
        json_decref(c->calls);
        tok_ids_free(&c->ids);
        json_decref(c->logprobs);
        free(c->stop_text);
    }
    free(g->choices);
    if (g->replying)
        atomic_fetch_sub(&g->x->a->metrics.streams, 1);
    gen_params_free(&g->p);
    json_decref(g->body);
    xd_buf_free(&g->out);
    free(g);
}

static void fail(gen *g, xd_status status, const char *text)
{
    if (g->error.status == XD_OK)
        xd_fail(&g->error, status, 0, "%s", text);
}

/* --- JSON of choices ------------------------------------------------------------------------------------------------ */

static json_t *envelope(const gen *g, const char *object)
{
    return json_pack("{s:s, s:s, s:I, s:s, s:s}", "id", g->id, "object", object, "created", g->created, "model",
                     g->ctx.info->model_id, "system_fingerprint", g->fingerprint);
}

static json_t *finish_reason(const choice *c)
{
    return json_string(c->finish == ENGINE_FINISH_LENGTH ? "length" : c->called ? "tool_calls" : "stop");
}

/* vLLM's: which of the client's stop strings and stop token ids it was; the model's own end is none of them. */
static json_t *stop_reason(const gen *g, const choice *c)
{
    if (c->stop_text)
        return json_string(c->stop_text);
    for (uint32_t i = 0; i < g->p.n_stop_ids && c->finish == ENGINE_FINISH_STOP; i++)
        if (g->p.stop_ids[i] == c->stop_id)
            return json_integer(c->stop_id);
    return json_null();
}

static void send_json(gen *g, json_t *json)
{
    char *text = json ? json_dumps(json, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    json_decref(json);
    xd_buf_puts(&g->out, "data: ");
    if (!text || !xd_buf_puts(&g->out, text) || !xd_buf_puts(&g->out, "\n\n"))
        g->out.failed = true;
    free(text);
}

/* Sends one chunk of one choice. delta (chat) or text is what is new; takes delta and logprobs. */
static void send_chunk(gen *g, size_t index, json_t *delta_or_text, json_t *logprobs, const choice *finished,
                       const uint32_t *ids, size_t n_ids, bool first)
{
    bool chat = g->p.kind == GEN_CHAT;
    json_t *root = envelope(g, chat ? "chat.completion.chunk" : "text_completion");
    json_t *c =
        json_pack("{s:i, s:o, s:o, s:o}", "index", (int)index, chat ? "delta" : "text", delta_or_text, "logprobs",
                  logprobs ? logprobs : json_null(), "finish_reason", finished ? finish_reason(finished) : json_null());
    bool ok = root && c;
    if (ok && finished)
        ok = !json_object_set_new(c, "stop_reason", stop_reason(g, finished));
    if (ok && g->p.return_token_ids) {
        if (first) {
            const tok_ids *prompt = &g->p.prompts[index / (size_t)g->p.n].ids;
            ok = !json_object_set_new(chat ? root : c, "prompt_token_ids", format_ids(prompt->data, prompt->len));
        }
        ok = ok && !json_object_set_new(c, "token_ids", format_ids(ids, n_ids));
    }
    if (ok && g->p.include_usage)
        ok = !json_object_set_new(root, "usage", json_null());
    if (ok)
        ok = !json_object_set_new(root, "choices", json_pack("[O]", c));
    json_decref(c);
    if (!ok) {
        json_decref(root);
        root = NULL;
    }
    send_json(g, root);
}

static json_t *text_or_delta(const gen *g, const char *text, size_t len)
{
    json_t *s = json_stringn(text ? text : "", len);
    return g->p.kind == GEN_CHAT ? json_pack("{s:o}", "content", s) : s;
}

/* --- events --------------------------------------------------------------------------------------------------------- */

static bool add_logprob(gen *g, choice *c, const engine_event *ev)
{
    if (g->p.kind == GEN_CHAT) {
        if (!c->logprobs)
            c->logprobs = json_array();
        return c->logprobs && !json_array_append_new(c->logprobs, format_chat_logprob(g->ctx.tok, ev));
    }
    if (!c->logprobs)
        c->logprobs = format_completion_logprobs_new();
    return c->logprobs && format_completion_logprob_add(c->logprobs, g->ctx.tok, ev, &c->text_offset);
}

static json_t *take_logprobs(const gen *g, choice *c)
{
    json_t *lp = XD_TAKE(c->logprobs);
    if (!lp)
        return NULL;
    return g->p.kind == GEN_CHAT ? json_pack("{s:o, s:n}", "content", lp, "refusal") : lp;
}

/* Before a choice's first token: the role (chat), the echoed prompt. */
static void begin_choice(gen *g, size_t index)
{
    choice *c = &g->choices[index];
    const gen_prompt *prompt = &g->p.prompts[index / (size_t)g->p.n];
    c->begun = true;
    const char *text = g->p.echo && prompt->text ? prompt->text : "";
    if (!g->p.stream) {
        xd_buf_puts(&c->text, text);
    } else if (g->p.kind == GEN_CHAT) {
        send_chunk(g, index, json_pack("{s:s, s:s}", "role", "assistant", "content", ""), NULL, NULL, NULL, 0, true);
    } else if (g->p.echo || g->p.return_token_ids) {
        send_chunk(g, index, json_string(text), take_logprobs(g, c), NULL, NULL, 0, true);
    }
    if (!g->p.echo)
        c->text_offset = 0;
}

static void on_prompt(gen *g, size_t req, const engine_event *ev)
{
    /* The engine reports a prompt once; each of its choices echoes it. */
    for (size_t k = 0; k < (size_t)g->p.n; k++)
        if (!add_logprob(g, &g->choices[req * (size_t)g->p.n + k], ev))
            fail(g, XD_NOMEM, "out of memory for logprobs");
}

/* What is new of a choice, with what came with the token. Takes delta_or_text. */
static void send_new(choice *c, json_t *delta_or_text)
{
    gen *g = c->g;
    send_chunk(g, (size_t)(c - g->choices), delta_or_text, take_logprobs(g, c), NULL, c->token, c->token != NULL,
               false);
    c->token = NULL;
}

static void take_content(choice *c, const char *text, size_t len)
{
    if (c->g->p.stream)
        send_new(c, text_or_delta(c->g, text, len));
    else
        xd_buf_append(&c->text, text, len);
}

/* Under both names that are in use: clients of DeepSeek, llama.cpp and SGLang know the first, those of vLLM and OpenRouter the other. */
static bool add_thought(json_t *message, json_t *text)
{
    bool ok =
        text && !json_object_set(message, "reasoning_content", text) && !json_object_set(message, "reasoning", text);
    json_decref(text);
    return ok;
}

static void take_thought(choice *c, const char *text, size_t len)
{
    if (c->g->p.drop_thoughts)
        return;
    if (!c->g->p.stream) {
        xd_buf_append(&c->thought, text, len);
        return;
    }
    json_t *delta = json_object();
    if (!add_thought(delta, json_stringn(text, len))) {
        json_decref(delta);
        delta = NULL;
    }
    send_new(c, delta);
}

/* As OpenAI's: the name first, then the arguments. */
static void take_call(choice *c, const json_t *call, size_t call_idx)
{
    c->called = true;
    atomic_fetch_add(&c->g->x->a->metrics.tool_calls, 1);
    json_t *function = json_object_get(call, "function"), *arguments = json_object_get(function, "arguments");
    if (c->g->p.stream) {
        send_new(c, json_pack("{s:[{s:I, s:O, s:s, s:{s:O, s:s}}]}", "tool_calls", "index", (json_int_t)call_idx, "id",
                              json_object_get(call, "id"), "type", "function", "function", "name",
                              json_object_get(function, "name"), "arguments", ""));
        if (json_string_length(arguments)) /* none where the call was cut before */
            send_new(c, json_pack("{s:[{s:I, s:{s:O}}]}", "tool_calls", "index", (json_int_t)call_idx, "function",
                                  "arguments", arguments));
        return;
    }
    if (!c->calls)
        c->calls = json_array();
    if (json_array_append(c->calls, (json_t *)(uintptr_t)call))
        fail(c->g, XD_NOMEM, "out of memory for the response");
}

static void take_piece(void *choice_, const answer_piece *p)
{
    choice *c = choice_;
    if (p->kind == ANSWER_CONTENT)
        take_content(c, p->text, p->len);
    else if (p->kind == ANSWER_THOUGHT)
        take_thought(c, p->text, p->len);
    else
        take_call(c, p->call, p->call_idx);
}

static void take_text(gen *g, choice *c, const engine_event *ev, bool end)
{
    if (g->x->settings->log_prompts)
        xd_buf_append(&c->said, ev->text, ev->text_len);
    if (!c->parts) {
        if (ev->text_len)
            take_content(c, ev->text, ev->text_len);
        return;
    }
    if ((ev->text_len && !answer_feed(c->parts, ev->text, ev->text_len)) || (end && !answer_end(c->parts)))
        fail(g, XD_NOMEM, "out of memory for the response");
}

static void on_token(gen *g, size_t index, const engine_event *ev)
{
    choice *c = &g->choices[index];
    bool with_logprob = g->p.n_logprobs >= 0;
    if (with_logprob && !add_logprob(g, c, ev))
        fail(g, XD_NOMEM, "out of memory for logprobs");
    if (!g->p.stream && g->p.return_token_ids && !tok_ids_push(&c->ids, ev->token_id))
        fail(g, XD_NOMEM, "out of memory for token ids");
    c->token = g->p.stream ? &ev->token_id : NULL;
    take_text(g, c, ev, false);
    if (c->token && (with_logprob || g->p.return_token_ids))
        send_new(c, c->parts ? json_object() : text_or_delta(g, "", 0));
    c->token = NULL;
}

static void on_done(gen *g, size_t index, const engine_event *ev)
{
    choice *c = &g->choices[index];
    if (ev->finish == ENGINE_FINISH_ABORT)
        xd_fail_field(&g->error, XD_UNAVAILABLE, NULL, "aborted",
                      "the server is shutting down; the request was not finished");
    c->done = true;
    c->finish = ev->finish;
    c->stop_id = ev->stop_id;
    if (ev->stop_text && !(c->stop_text = strdup(ev->stop_text)))
        fail(g, XD_NOMEM, "out of memory for the response");
    take_text(g, c, ev, true);
    if (g->p.stream)
        send_chunk(g, index, g->p.kind == GEN_CHAT ? json_object() : json_string(""), NULL, c, NULL, 0, false);
    g->n_done++;
    if (g->x->settings->log_prompts)
        xd_log_info("output %s[%zu]: %s", g->id, index, c->said.data ? c->said.data : "");
}

static void on_event(gen *g, size_t req, const engine_event *ev)
{
    if (ev->kind == ENGINE_EV_ERROR) {
        g->error = *ev->error;
        if (!g->error.status)
            xd_fail(&g->error, XD_INTERNAL, 0, "the request failed");
        return;
    }
    if (ev->kind == ENGINE_EV_PROMPT) {
        on_prompt(g, req, ev);
        return;
    }
    size_t index = req * (size_t)g->p.n + ev->choice;
    if (ev->choice >= g->p.n || g->choices[index].done)
        return;
    if (!g->choices[index].begun)
        begin_choice(g, index);
    if (ev->kind == ENGINE_EV_TOKEN)
        on_token(g, index, ev);
    else
        on_done(g, index, ev);
}

static void count_usage(gen *g)
{
    g->counted = true;
    for (size_t i = 0; i < g->p.n_prompts; i++) {
        engine_usage u = {0};
        if (g->reqs[i])
            engine_request_usage(g->reqs[i], &u);
        g->prompt_tokens += u.prompt_tokens;
        g->completion_tokens += u.completion_tokens;
        g->cached_tokens += u.cached_tokens;
        g->engine_ns = XD_MAX(g->engine_ns, u.total_ns);
    }
}

bool gen_count_tokens(gen *g, gen_tokens *ret)
{
    if (!g->submitted || !g->reqs)
        return false;
    if (!g->counted)
        count_usage(g);
    *ret = (gen_tokens){g->prompt_tokens, g->cached_tokens, g->completion_tokens};
    return g->prompt_tokens > 0;
}

static void end_stream(gen *g)
{
    if (g->error.status) {
        unsigned status;
        reply_note_fault(g->x, &g->error);
        send_json(g, reply_error_json(&g->error, &status));
    } else if (g->p.include_usage) {
        json_t *root = envelope(g, g->p.kind == GEN_CHAT ? "chat.completion.chunk" : "text_completion");
        json_t *usage = format_usage(g->prompt_tokens, g->completion_tokens, g->cached_tokens);
        if (!root || json_object_set_new(root, "choices", json_array()) || json_object_set_new(root, "usage", usage)) {
            json_decref(root);
            root = NULL;
        }
        send_json(g, root);
    }
    xd_buf_puts(&g->out, "data: [DONE]\n\n");
}

/* Takes what the engine has, one event of each request in turn, until `out` is full enough. */
static void pump(gen *g)
{
    size_t idle = 0;
    while (!g->ended && !g->error.status && idle < g->p.n_prompts && g->out.len - g->out_taken < OUT_HIGH_WATER_BYTES) {
        size_t i = g->turn;
        g->turn = (g->turn + 1) % g->p.n_prompts;
        engine_event ev;
        if (engine_request_next(g->reqs[i], &ev)) {
            idle = 0;
            on_event(g, i, &ev);
        } else
            idle++;
    }
    if (g->out.failed)
        fail(g, XD_NOMEM, "out of memory for the response");
    if (g->ended || (!g->error.status && g->n_done < g->n_choices))
        return;
    g->ended = true;
    count_usage(g);
    if (g->error.status)
        g->engine_ns = 0; /* it was not answered */
    cancel(g);
    conn_set_engine_busy(g->x->c, false, false); /* who leaves now stops nothing */
    if (g->p.stream && g->replying)
        end_stream(g);
}

/* --- responses ------------------------------------------------------------------------------------------------------ */

static json_t *whole_message(const choice *c)
{
    /* As OpenAI's: null beside calls, and only there. */
    json_t *text = c->text.len || !c->calls ? json_stringn(c->text.data ? c->text.data : "", c->text.len) : json_null();
    json_t *m = json_pack("{s:s, s:o, s:n}", "role", "assistant", "content", text, "refusal");
    bool ok = m && !c->thought.failed;
    if (ok && c->thought.len)
        ok = add_thought(m, json_stringn(c->thought.data, c->thought.len));
    if (ok && c->calls)
        ok = !json_object_set(m, "tool_calls", c->calls);
    if (ok)
        return m;
    json_decref(m);
    return NULL;
}

static json_t *whole_choice(gen *g, size_t index)
{
    choice *c = &g->choices[index];
    bool chat = g->p.kind == GEN_CHAT;
    json_t *lp = take_logprobs(g, c);
    json_t *json =
        json_pack("{s:i, s:o, s:o, s:o, s:o}", "index", (int)index, chat ? "message" : "text",
                  chat ? whole_message(c) : json_stringn(c->text.data ? c->text.data : "", c->text.len), "logprobs",
                  lp ? lp : json_null(), "finish_reason", finish_reason(c), "stop_reason", stop_reason(g, c));
    bool ok = json && !c->text.failed;
    if (ok && g->p.return_token_ids) {
        const tok_ids *prompt = &g->p.prompts[index / (size_t)g->p.n].ids;
        ok = !json_object_set_new(json, "token_ids", format_ids(c->ids.data, c->ids.len)) &&
             (chat || !json_object_set_new(json, "prompt_token_ids", format_ids(prompt->data, prompt->len)));
    }
    if (!ok) {
        json_decref(json);
        return NULL;
    }
    return json;
}

static xd_status write_whole(exchange *x, xd_err *err)
{
    gen *g = x->gen;
    bool chat = g->p.kind == GEN_CHAT;
    json_t *root = envelope(g, chat ? "chat.completion" : "text_completion"), *list = json_array();
    bool ok = root && list;
    for (size_t i = 0; ok && i < g->n_choices; i++)
        ok = !json_array_append_new(list, whole_choice(g, i));
    ok = ok && !json_object_set(root, "choices", list) &&
         !json_object_set_new(root, "usage", format_usage(g->prompt_tokens, g->completion_tokens, g->cached_tokens));
    if (ok && chat && g->p.return_token_ids)
        ok = !json_object_set_new(root, "prompt_token_ids",
                                  format_ids(g->p.prompts[0].ids.data, g->p.prompts[0].ids.len));
    json_decref(list);
    if (!ok) {
        json_decref(root);
        root = NULL;
    }
    reply_dump(root, &x->answer);
    return x->answer.failed ? xd_fail(err, XD_NOMEM, 0, "out of memory for the response") : XD_OK;
}

/* Log-probabilities make an answer many times longer than its text: 40 bytes each, about. */
static size_t whole_bytes(const gen *g)
{
    uint64_t tokens = g->completion_tokens + (g->p.echo ? g->prompt_tokens * (uint64_t)g->p.n : 0);
    return tokens * (g->p.n_logprobs >= 0 ? 40u * (unsigned)(g->p.n_logprobs + 1) : 4u);
}

static enum MHD_Result reply_whole(gen *g)
{
    exchange *x = g->x;
    enum MHD_Result ret;
    if (!work_run(x->a->work, x, write_whole, whole_bytes(g), &ret))
        return ret;
    return x->early.status ? reply_error(x, &x->early) : handle_answer(x);
}

static ssize_t read_stream(void *cls, uint64_t pos, char *buf, size_t max)
{
    (void)pos;
    gen *g = cls;
    conn *c = g->x->c;
    for (;;) {
        size_t have = g->out.len - g->out_taken;
        /* Clients leave once they have read [DONE]: libmicrohttpd asks for more when it has sent what it had. */
        bool told_all = !have && g->ended && !g->out.failed;
        if (conn_peer_gone(c) && !told_all)
            return MHD_CONTENT_READER_END_WITH_ERROR;
        if (have) {
            size_t n = XD_MIN(have, max);
            memcpy(buf, g->out.data + g->out_taken, n);
            g->out_taken += n;
            if (g->out_taken == g->out.len) {
                xd_buf_clear(&g->out);
                g->out_taken = 0;
            }
            conn_touch(c);
            atomic_fetch_add(&g->x->a->metrics.tx_stream_bytes, n);
            return (ssize_t)n;
        }
        if (g->ended) {
            if (g->out.failed) /* not even the error could be written */
                return MHD_CONTENT_READER_END_WITH_ERROR;
            return MHD_CONTENT_READER_END_OF_STREAM;
        }
        pump(g);
        if (g->out.len || g->ended)
            continue;
        if (conn_take_ping(c)) {
            xd_buf_puts(&g->out, ": ping\n\n");
            atomic_fetch_add(&g->x->a->metrics.heartbeats, 1);
        } else if (conn_sleep(c))
            return 0;
    }
}

/* Goes on with a request until it has to wait or is answered. */
static enum MHD_Result proceed(gen *g)
{
    exchange *x = g->x;
    for (;;) {
        if (conn_peer_gone(x->c))
            return MHD_NO; /* closes the connection; exchange_completed() frees all */
        pump(g);
        if (g->error.status)
            return reply_error(x, &g->error);
        if (!g->p.stream && g->ended)
            return reply_whole(g);
        if (g->p.stream) {
            bool ping = !g->out.len && !g->ended && conn_take_ping(x->c);
            if (ping) {
                xd_buf_puts(&g->out, ": ping\n\n");
                atomic_fetch_add(&x->a->metrics.heartbeats, 1);
            }
            if (g->out.len || g->ended) {
                g->replying = true;
                atomic_fetch_add(&x->a->metrics.streams, 1);
                if (g->ended)
                    end_stream(g);
                return reply_stream(x, read_stream, g);
            }
        }
        if (conn_sleep(x->c))
            return MHD_YES;
    }
}

static void wake(void *conn_)
{
    conn_wake(conn_);
}

/* The engine has one name for what clients may give under two. */
static void name_field(const gen_params *p, xd_err *err)
{
    const char *name = NULL;
    if (p->kind == GEN_CHAT && !strcmp(err->param, "prompt"))
        name = "messages";
    if (p->max_completion_tokens != FIELD_UNSET_INT && !strcmp(err->param, "max_tokens"))
        name = "max_completion_tokens";
    if (name)
        snprintf(err->param, sizeof err->param, "%s", name);
}

enum { MAX_SHOWN = 8 };

/* The marks that tell thoughts and calls from text may be special tokens. */
static uint32_t shown_marks(const gen *g, uint32_t ret[static MAX_SHOWN])
{
    const answer_marks *m = &g->p.marks;
    const char *words[MAX_SHOWN] = {m->thoughts.open, m->thoughts.close};
    size_t n_words = m->thoughts.open ? 2 : 0;
    for (const char *const *w = toolcall_marks_of(m->calls)->specials; *w && n_words < MAX_SHOWN; w++)
        words[n_words++] = *w;
    uint32_t n = 0;
    for (size_t i = 0; g->ctx.tok && i < n_words; i++) {
        int64_t id = tok_token_id(g->ctx.tok, words[i]);
        if (id >= 0 && tok_token_is_special(g->ctx.tok, (uint32_t)id))
            ret[n++] = (uint32_t)id;
    }
    return n;
}

static xd_status submit_all(gen *g, xd_err *err)
{
    const gen_params *p = &g->p;
    uint32_t shown[MAX_SHOWN];
    const uint32_t timeout_s = g->x->settings->request_timeout_s;
    engine_request_options o = {
        .n = (uint32_t)p->n,
        .max_tokens = (uint32_t)p->max_tokens,
        .min_tokens = (uint32_t)p->min_tokens,
        .sampling = {.temperature = (float)p->temperature,
                     .top_p = (float)p->top_p,
                     .min_p = (float)p->min_p,
                     .top_k = p->top_k == FIELD_UNSET_INT ? -1
                              : p->top_k <= 0             ? 0
                                                          : (int32_t)p->top_k,
                     .repetition_penalty = (float)p->repetition_penalty,
                     .presence_penalty = (float)p->presence_penalty,
                     .frequency_penalty = (float)p->frequency_penalty,
                     .has_seed = p->seed != FIELD_UNSET_INT,
                     .seed = (uint64_t)p->seed,
                     .bias_ids = p->bias_ids,
                     .bias = p->bias,
                     .n_bias = p->n_bias},
        .stop = p->stops,
        .stop_ids = p->stop_ids,
        .n_stop = p->n_stops,
        .n_stop_ids = p->n_stop_ids,
        .grammar = p->grammar,
        .ignore_eos = p->ignore_eos,
        .include_stop_str = p->include_stop_str,
        .skip_special = p->skip_special,
        .shown_ids = shown,
        .n_shown_ids = shown_marks(g, shown),
        .detokenize = g->ctx.tok != NULL,
        .logprobs = p->n_logprobs,
        .prompt_logprobs = p->echo ? p->n_logprobs : -1,
        .priority = (int32_t)p->priority,
        .deadline_ns = timeout_s ? g->x->started_ns + timeout_s * (uint64_t)1000000000u : 0,
        .notify = wake,
        .user = g->x->c,
    };
    for (size_t i = 0; i < p->n_prompts; i++) {
        o.prompt_ids = p->prompts[i].ids.data;
        o.n_prompt = (uint32_t)p->prompts[i].ids.len;
        uint32_t len = g->ctx.info->max_model_len, room = o.n_prompt < len ? len - o.n_prompt : 1;
        o.max_tokens =
            p->is_usual_length ? XD_MIN((uint32_t)p->max_tokens, XD_MAX(room, o.min_tokens)) : (uint32_t)p->max_tokens;
        xd_status st = engine_submit(g->x->a->e, &o, &g->reqs[i], err);
        if (st) {
            name_field(p, err);
            return st;
        }
    }
    return XD_OK;
}

/* Only where there may be something to tell apart. */
static xd_status begin_parts(gen *g, xd_err *err)
{
    const answer_marks *m = &g->p.marks;
    answer_options o = {.marks = *m,
                        .keep_thoughts = g->p.keep_thoughts,
                        .tools = g->p.tools,
                        .one_call = !g->p.parallel_tool_calls,
                        .whole_call = g->p.must_call || g->p.may_call,
                        .or_json = g->p.may_call,
                        .tell = take_piece};
    for (size_t i = 0; i < g->n_choices; i++) {
        choice *c = &g->choices[i];
        c->g = g;
        /* An answer that is held to a form has neither thoughts nor marks. */
        bool plain = g->p.grammar || (m->calls == TOOLCALL_NONE && (!m->thoughts.open || g->p.keep_thoughts));
        if (plain && !o.whole_call)
            continue;
        o.user = c;
        o.seed = xd_mix64(g->x->a->id_salt + atomic_fetch_add(&g->x->a->next_id, 1) * XD_MIX64_STEP);
        c->parts = answer_new(&o);
        if (!c->parts)
            return xd_fail(err, XD_NOMEM, 0, "out of memory for the request");
    }
    return XD_OK;
}

static xd_status prepare(exchange *x, unsigned kind, xd_err *err)
{
    gen *g = x->gen = calloc(1, sizeof *g);
    if (!g)
        return xd_fail(err, XD_NOMEM, 0, "out of memory for the request");
    g->x = x;
    g->ctx = gen_context_of(x);
    xd_status st = body_parse(x->body.data, x->body.len, &g->body, err);
    xd_buf_free(&x->body);
    if (!st)
        st = gen_params_read(&g->ctx, kind, g->body, &g->p, err);
    if (!st)
        st = gen_params_tokenize(&g->ctx, &g->p, err);
    /* Nobody needs the text any more; to free millions of values takes time too. */
    g->p.messages = g->p.prompt = NULL;
    json_object_del(g->body, "messages");
    json_object_del(g->body, "prompt");
    if (st)
        return st;
    snprintf(g->id, sizeof g->id, "%s-%s", kind == GEN_CHAT ? "chatcmpl" : "cmpl", x->id);
    snprintf(g->fingerprint, sizeof g->fingerprint, "fp_expertd_%s_%.16s_%.40s", XD_VERSION, g->ctx.info->dtype,
             g->ctx.info->backend);
    g->created = (json_int_t)time(NULL);
    size_t n_choices = g->p.n_prompts * (size_t)g->p.n; /* both are bounded: request.c */
    g->choices = calloc(n_choices, sizeof *g->choices);
    g->reqs = calloc(g->p.n_prompts, sizeof(engine_request *));
    if (!g->choices || !g->reqs)
        return xd_fail(err, XD_NOMEM, 0, "out of memory for the request");
    g->n_choices = n_choices;
    if ((st = begin_parts(g, err)))
        return st;
    if (g->p.grammar) {
        atomic_fetch_add(&x->a->metrics.constrained[gen_form(g)], 1);
        atomic_fetch_add(&x->a->metrics.grammar_ns, g->p.grammar_ns);
    }
    for (size_t i = 0; x->settings->log_prompts && g->ctx.tok && i < g->p.n_prompts; i++) {
        XD_CLEANUP(xd_buf_free) xd_buf text = {0};
        xd_err ignored;
        if (!tok_decode(g->ctx.tok, g->p.prompts[i].ids.data, g->p.prompts[i].ids.len, false, &text, &ignored))
            xd_log_info("prompt %s[%zu]: %s", g->id, i, text.data ? text.data : "");
    }
    return XD_OK;
}

xd_status prepare_chat(exchange *x, xd_err *err)
{
    return prepare(x, GEN_CHAT, err);
}

xd_status prepare_completions(exchange *x, xd_err *err)
{
    return prepare(x, GEN_COMPLETION, err);
}

enum MHD_Result handle_generate(exchange *x)
{
    gen *g = x->gen;
    if (!g->submitted) {
        g->submitted = true;
        conn_set_engine_busy(x->c, true, g->p.stream); /* before the first notify can come */
        if (conn_peer_gone(x->c))
            return MHD_NO;
        xd_err err;
        if (submit_all(g, &err)) {
            cancel(g);
            return reply_error(x, &err);
        }
    }
    return proceed(g);
}
