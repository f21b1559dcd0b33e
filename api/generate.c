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
    xd_buf text;
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
    bool submitted;
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
                       .parse_special = x->settings->completions_parse_special};
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

void gen_free(gen *g)
{
    if (!g)
        return;
    cancel(g);
    free(g->reqs);
    for (size_t i = 0; g->choices && i < g->n_choices; i++) {
        choice *c = &g->choices[i];
        xd_buf_free(&c->text);
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

static json_t *finish_reason(engine_finish f)
{
    return f == ENGINE_FINISH_NONE ? json_null() : json_string(f == ENGINE_FINISH_LENGTH ? "length" : "stop");
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
    json_t *c = json_pack("{s:i, s:o, s:o, s:o}", "index", (int)index, chat ? "delta" : "text", delta_or_text,
                          "logprobs", logprobs ? logprobs : json_null(), "finish_reason",
                          finish_reason(finished ? finished->finish : ENGINE_FINISH_NONE));
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

static void on_token(gen *g, size_t index, const engine_event *ev)
{
    choice *c = &g->choices[index];
    bool with_logprob = g->p.n_logprobs >= 0;
    if (with_logprob && !add_logprob(g, c, ev))
        fail(g, XD_NOMEM, "out of memory for logprobs");
    if (!g->p.stream || g->x->settings->log_prompts)
        xd_buf_append(&c->text, ev->text, ev->text_len);
    if (!g->p.stream && g->p.return_token_ids && !tok_ids_push(&c->ids, ev->token_id))
        fail(g, XD_NOMEM, "out of memory for token ids");
    if (g->p.stream && (ev->text_len || with_logprob || g->p.return_token_ids))
        send_chunk(g, index, text_or_delta(g, ev->text, ev->text_len), take_logprobs(g, c), NULL, &ev->token_id, 1,
                   false);
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
    if (!g->p.stream || g->x->settings->log_prompts)
        xd_buf_append(&c->text, ev->text, ev->text_len);
    if (g->p.stream && ev->text_len)
        send_chunk(g, index, text_or_delta(g, ev->text, ev->text_len), NULL, NULL, NULL, 0, false);
    if (g->p.stream)
        send_chunk(g, index, g->p.kind == GEN_CHAT ? json_object() : json_string(""), NULL, c, NULL, 0, false);
    g->n_done++;
    if (g->x->settings->log_prompts)
        xd_log_info("output %s[%zu]: %s", g->id, index, c->text.data ? c->text.data : "");
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
    for (size_t i = 0; i < g->p.n_prompts; i++) {
        engine_usage u = {0};
        engine_request_usage(g->reqs[i], &u);
        g->prompt_tokens += u.prompt_tokens;
        g->completion_tokens += u.completion_tokens;
        g->cached_tokens += u.cached_tokens;
        g->engine_ns = XD_MAX(g->engine_ns, u.total_ns);
    }
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
    if (!g->error.status)
        count_usage(g);
    cancel(g);
    conn_set_engine_busy(g->x->c, false, false); /* who leaves now stops nothing */
    if (g->p.stream && g->replying)
        end_stream(g);
}

/* --- responses ------------------------------------------------------------------------------------------------------ */

static json_t *whole_choice(gen *g, size_t index)
{
    choice *c = &g->choices[index];
    bool chat = g->p.kind == GEN_CHAT;
    json_t *text = json_stringn(c->text.data ? c->text.data : "", c->text.len);
    json_t *lp = take_logprobs(g, c);
    json_t *json = json_pack(
        "{s:i, s:o, s:o, s:o, s:o}", "index", (int)index, chat ? "message" : "text",
        chat ? json_pack("{s:s, s:o, s:n}", "role", "assistant", "content", text, "refusal") : text, "logprobs",
        lp ? lp : json_null(), "finish_reason", finish_reason(c->finish), "stop_reason", stop_reason(g, c));
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

static xd_status submit_all(gen *g, xd_err *err)
{
    const gen_params *p = &g->p;
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
