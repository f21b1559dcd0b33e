/* generate.c - one completion request: submitted to the engine, its events turned into a response or an event stream.
 *
 * A request of several prompts becomes several engine requests; each may have n choices. Events are taken by the thread of the
 * connection, never while the socket is full: what a slow client does not read stays with the engine, which bounds it by the
 * tokens of the request. Headers of a stream are sent with the first event (or the first heartbeat), so that an error that comes
 * before any token still has its HTTP status. The text of a stream's chunks is the text of the whole response, piece by piece,
 * because both are made from the same events: generate_choice.c. */
#include "api/generate_priv.h"

#include <string.h>
#include <time.h>

#include "config/log.h"

enum { OUT_HIGH_WATER_BYTES = 16 << 10 };

gen_context gen_context_of(exchange *x)
{
    gen_context ctx = {.info = engine_get_info(x->a->e),
                       .max_n = x->settings->max_n,
                       .max_logprobs = x->settings->max_logprobs,
                       .max_stop = x->settings->max_stop,
                       .notes = &x->a->notes,
                       .parse_special = x->settings->completions_parse_special,
                       .keep_thoughts = x->settings->keep_thoughts,
                       .template_kwargs = x->settings->template_kwargs};
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
    return !p->grammar ? API_FORM_NONE : p->must_call ? API_FORM_TOOL : p->may_call ? API_FORM_TOOL_OR_JSON : p->form;
}

void gen_free(gen *g)
{
    if (!g)
        return;
    cancel(g);
    free(g->reqs);
    for (size_t i = 0; g->choices && i < g->n_choices; i++)
        gen_choice_clear(&g->choices[i]);
    free(g->choices);
    if (g->replying)
        atomic_fetch_sub(&g->x->a->metrics.streams, 1);
    gen_params_free(&g->p);
    json_decref(g->body);
    messages_free(g->messages);
    responses_free(g->responses);
    xd_buf_free(&g->out);
    free(g);
}

void gen_fail(gen *g, xd_status status, const char *text)
{
    if (g->error.status == XD_OK)
        xd_fail(&g->error, status, 0, "%s", text);
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
        if (u.first_token_ns) {
            g->queued_ns = g->last_first_ns ? XD_MIN(g->queued_ns, u.queued_ns) : u.queued_ns;
            g->first_token_ns = g->last_first_ns ? XD_MIN(g->first_token_ns, u.first_token_ns) : u.first_token_ns;
            g->last_first_ns = XD_MAX(g->last_first_ns, u.first_token_ns);
        }
        g->total_ns = XD_MAX(g->total_ns, u.total_ns);
    }
}

/* Of the prompts, from the first step on until all have a token; of the answers, from the first token on. */
static void times_of(const gen *g, double *ret_prompt_ms, double *ret_predicted_ms)
{
    bool any = g->last_first_ns > 0;
    *ret_prompt_ms = any ? (double)(g->last_first_ns - XD_MIN(g->queued_ns, g->last_first_ns)) / 1e6 : 0;
    *ret_predicted_ms = any ? (double)(g->total_ns - XD_MIN(g->first_token_ns, g->total_ns)) / 1e6 : 0;
}

static double per_second(uint64_t n, double ms)
{
    return ms > 0 ? (double)n * 1e3 / ms : 0;
}

json_t *gen_timings(const gen *g)
{
    double prompt_ms, predicted_ms;
    uint64_t prompt_n = g->prompt_tokens - g->cached_tokens, predicted_n = g->completion_tokens;
    times_of(g, &prompt_ms, &predicted_ms);
    return json_pack("{s:I, s:I, s:f, s:f, s:f, s:I, s:f, s:f, s:f}", "cache_n", (json_int_t)g->cached_tokens,
                     "prompt_n", (json_int_t)prompt_n, "prompt_ms", prompt_ms, "prompt_per_token_ms",
                     prompt_n ? prompt_ms / (double)prompt_n : 0.0, "prompt_per_second",
                     per_second(prompt_n, prompt_ms), "predicted_n", (json_int_t)predicted_n, "predicted_ms",
                     predicted_ms, "predicted_per_token_ms", predicted_n ? predicted_ms / (double)predicted_n : 0.0,
                     "predicted_per_second", per_second(predicted_n, predicted_ms));
}

bool gen_count_tokens(gen *g, gen_tokens *ret)
{
    if (!g->submitted || !g->reqs)
        return false;
    if (!g->counted)
        count_usage(g);
    double prompt_ms, predicted_ms;
    times_of(g, &prompt_ms, &predicted_ms);
    *ret = (gen_tokens){.prompt = g->prompt_tokens,
                        .cached = g->cached_tokens,
                        .completion = g->completion_tokens,
                        .prompt_per_s = per_second(g->prompt_tokens - g->cached_tokens, prompt_ms),
                        .completion_per_s = per_second(g->completion_tokens, predicted_ms),
                        .finish = g->choices[0].done ? gen_choice_finish(g, &g->choices[0]) : NULL};
    if (g->first_token_ns)
        ret->first_token_ns = g->submitted_ns - g->x->started_ns + g->first_token_ns;
    return g->prompt_tokens > 0;
}

/* An api_prepare: the last events. */
static xd_status end_stream(exchange *x, xd_err *err)
{
    (void)err;
    gen *g = x->gen;
    if (g->error.status) {
        unsigned status;
        reply_note_fault(g->x, &g->error);
        gen_choice_send_json(g, reply_error_json(&g->error, g->x->anthropic, &status));
    } else if (g->p.include_usage || g->p.timings) {
        json_t *root = gen_choice_envelope(g, g->p.kind == GEN_CHAT ? "chat.completion.chunk" : "text_completion");
        bool ok = root && !json_object_set_new(root, "choices", json_array());
        if (g->p.include_usage)
            ok = ok && !json_object_set_new(root, "usage",
                                            format_usage(g->prompt_tokens, g->completion_tokens, g->cached_tokens));
        if (g->p.timings)
            ok = ok && !json_object_set_new(root, "timings", gen_timings(g));
        if (!ok) {
            json_decref(root);
            root = NULL;
        }
        gen_choice_send_json(g, root);
    }
    xd_buf_puts(&g->out, "data: [DONE]\n\n");
    return XD_OK;
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
            gen_choice_take_event(g, i, &ev);
        } else
            idle++;
    }
    if (g->out.failed)
        gen_fail(g, XD_NOMEM, "out of memory for the response");
    if (g->ended || (!g->error.status && g->n_done < g->n_choices))
        return;
    g->ended = true;
    count_usage(g);
    if (g->error.status)
        g->engine_ns = 0; /* it was not answered */
    cancel(g);
    conn_set_engine_busy(g->x->c, false, false); /* who leaves now stops nothing */
}

/* Log-probabilities make an answer many times longer than its text: 40 bytes each, about. */
size_t gen_whole_bytes(const gen *g)
{
    uint64_t tokens = g->completion_tokens + (g->p.echo ? g->prompt_tokens * (uint64_t)g->p.n : 0);
    size_t request = g->responses ? g->x->body_seen : 0; /* it is repeated */
    return request + tokens * (g->p.n_logprobs >= 0 ? 40u * (unsigned)(g->p.n_logprobs + 1) : 4u);
}

/* A chat's are objects: 800 bytes each, as measured. */
size_t gen_held_bytes(const gen *g)
{
    return g->most_held * 800;
}

static enum MHD_Result reply_whole(gen *g)
{
    exchange *x = g->x;
    enum MHD_Result ret;
    api_prepare write = g->shape ? g->shape->write_whole : gen_choice_write_whole;
    if (!work_run(x->a->work, x, write, gen_whole_bytes(g), &ret))
        return ret;
    return x->early.status ? reply_error(x, &x->early) : handle_answer(x);
}

/* While nothing is generated: first what begins every stream, where a shape has that. */
static void send_sign_of_life(gen *g)
{
    if (!g->shape || !g->shape->send_opening(g))
        xd_buf_puts(&g->out, g->shape ? g->shape->ping : ": ping\n\n");
    atomic_fetch_add(&g->x->a->metrics.heartbeats, 1);
}

/* Writes the last events, once. False: read_stream() must return *ret; until the next call out is another thread's. */
static bool tell_end(gen *g, ssize_t *ret)
{
    enum MHD_Result wait;
    api_prepare end = g->shape ? g->shape->end_stream : end_stream;
    size_t bytes = g->responses ? gen_whole_bytes(g) : 0; /* its last events hold the whole response */
    g->told_end = work_run(g->x->a->work, g->x, end, bytes, &wait);
    *ret = wait == MHD_YES ? 0 : MHD_CONTENT_READER_END_WITH_ERROR;
    return g->told_end;
}

static ssize_t read_stream(void *cls, uint64_t pos, char *buf, size_t max)
{
    (void)pos;
    gen *g = cls;
    conn *c = g->x->c;
    for (;;) {
        ssize_t ret;
        if (g->ended && !g->told_end && !tell_end(g, &ret))
            return ret;
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
        if (conn_take_ping(c))
            send_sign_of_life(g);
        else if (conn_sleep(c))
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
            if (!g->out.len && !g->ended && conn_take_ping(x->c))
                send_sign_of_life(g);
            if (g->out.len || g->ended) {
                g->replying = true;
                atomic_fetch_add(&x->a->metrics.streams, 1);
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
static void name_field(const gen *g, xd_err *err)
{
    const gen_params *p = &g->p;
    const char *name = NULL;
    if (p->kind == GEN_CHAT && !strcmp(err->param, "prompt"))
        name = "messages";
    if (p->kind == GEN_CHAT && !strcmp(err->code, "context_length_exceeded"))
        gen_replace_words(err, "length of the prompt", "length of the " GEN_CHAT_TEXTS);
    if (p->max_completion_tokens != FIELD_UNSET_INT && !strcmp(err->param, "max_tokens"))
        name = "max_completion_tokens";
    if (name)
        snprintf(err->param, sizeof err->param, "%s", name);
    if (g->shape)
        g->shape->name_fault(NULL, err);
}

enum { MAX_SHOWN = 16 };

/* The marks that tell thoughts and calls from text may be special tokens. */
static uint32_t shown_marks(const gen *g, uint32_t ret[static MAX_SHOWN])
{
    const answer_marks *m = &g->p.marks;
    const char *words[MAX_SHOWN] = {answer_thoughts_token(&m->thoughts), m->thoughts.close};
    size_t n_words = m->thoughts.open ? 2 : 0;
    const char *const *more = m->channels ? answer_channel_marks : toolcall_marks_of(m->calls)->specials;
    for (; *more && n_words < MAX_SHOWN; more++)
        words[n_words++] = *more;
    uint32_t n = 0;
    for (size_t i = 0; g->ctx.tok && i < n_words; i++) {
        int64_t id = tok_token_id(g->ctx.tok, words[i]);
        if (id >= 0 && tok_token_is_special(g->ctx.tok, (uint32_t)id))
            ret[n++] = (uint32_t)id;
    }
    return n;
}

/* What all prompts of the request have in common; borrows from g and `shown`. */
static engine_request_options options_of(const gen *g, uint32_t shown[static MAX_SHOWN])
{
    const gen_params *p = &g->p;
    const uint32_t timeout_s = g->x->settings->request_timeout_s;
    return (engine_request_options){
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
                     .n_bias = p->n_bias,
                     .top_n_sigma = (float)p->top_n_sigma,
                     .typical_p = (float)p->typical_p,
                     .xtc_probability = (float)p->xtc_probability,
                     .xtc_threshold = (float)p->xtc_threshold,
                     .dynatemp_range = (float)p->dynatemp_range,
                     .dynatemp_exponent = (float)p->dynatemp_exponent,
                     .dry_multiplier = (float)p->dry_multiplier,
                     .dry_base = (float)p->dry_base,
                     .dry_allowed_length = (uint32_t)p->dry_allowed_length,
                     .dry_last_n = p->dry_last_n < 0 ? UINT32_MAX : (uint32_t)p->dry_last_n,
                     .dry_breakers = p->dry_breakers,
                     .n_dry_breakers = p->n_dry_breakers},
        .stop = p->stops,
        .stop_ids = p->stop_ids,
        .n_stop = p->n_stops,
        .n_stop_ids = p->n_stop_ids,
        .grammar_field = p->grammar_field,
        .grammar = p->grammar,
        .lead = p->marks.may_think ? &p->lead : NULL,
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
}

static xd_status submit_all(gen *g, xd_err *err)
{
    const gen_params *p = &g->p;
    uint32_t shown[MAX_SHOWN];
    engine_request_options o = options_of(g, shown);
    for (size_t i = 0; i < p->n_prompts; i++) {
        o.prompt_ids = p->prompts[i].ids.data;
        o.n_prompt = (uint32_t)p->prompts[i].ids.len;
        uint32_t len = g->ctx.info->max_model_len, room = o.n_prompt < len ? len - o.n_prompt : 1;
        o.max_tokens =
            p->is_usual_length ? XD_MIN((uint32_t)p->max_tokens, XD_MAX(room, o.min_tokens)) : (uint32_t)p->max_tokens;
        xd_status st = engine_submit(g->x->a->e, &o, &g->reqs[i], err);
        if (st) {
            name_field(g, err);
            return st;
        }
        o.with = g->reqs[0];
    }
    return XD_OK;
}

static xd_status parse_body(exchange *x, gen **ret, xd_err *err)
{
    gen *g = *ret = x->gen = calloc(1, sizeof *g);
    if (!g)
        return xd_fail(err, XD_NOMEM, 0, "out of memory for the request");
    g->x = x;
    g->ctx = gen_context_of(x);
    xd_status st = body_parse(x->body.data, x->body.len, &g->body, err);
    xd_buf_free(&x->body);
    return st;
}

/* What g->body says. */
static xd_status read_params(gen *g, unsigned kind, xd_err *err)
{
    xd_status st = gen_params_read(&g->ctx, kind, g->body, &g->p, err);
    if (!st)
        st = gen_params_tokenize(&g->ctx, &g->p, err);
    /* Nobody needs the text any more; to free millions of values takes time too. */
    g->p.messages = g->p.prompt = NULL;
    json_object_del(g->body, "messages");
    json_object_del(g->body, "prompt");
    return st;
}

/* Everything that the answer needs before the engine may begin. */
static xd_status make_ready(gen *g, const char *id_prefix, xd_err *err)
{
    exchange *x = g->x;
    xd_status st;
    snprintf(g->id, sizeof g->id, "%s%s", id_prefix, x->id);
    snprintf(g->fingerprint, sizeof g->fingerprint, "fp_expertd_%s_%.16s_%.40s", XD_VERSION, g->ctx.info->dtype,
             g->ctx.info->backend);
    g->created = (json_int_t)time(NULL);
    size_t n_choices = g->p.n_prompts * (size_t)g->p.n; /* both are bounded: prompt.c */
    g->choices = calloc(n_choices, sizeof *g->choices);
    g->reqs = calloc(g->p.n_prompts, sizeof(engine_request *));
    if (!g->choices || !g->reqs)
        return xd_fail(err, XD_NOMEM, 0, "out of memory for the request");
    g->n_choices = n_choices;
    if ((st = gen_choice_begin_parts(g, err)))
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
    gen *g;
    xd_status st = parse_body(x, &g, err);
    if (!st)
        st = read_params(g, GEN_CHAT, err);
    return st ? st : make_ready(g, "chatcmpl-", err);
}

xd_status prepare_completions(exchange *x, xd_err *err)
{
    gen *g;
    xd_status st = parse_body(x, &g, err);
    if (!st)
        st = read_params(g, GEN_COMPLETION, err);
    return st ? st : make_ready(g, "cmpl-", err);
}

/* *ret_asked: the body as it came, without its conversation; owned, also after a fault. */
static xd_status read_shaped(exchange *x, const gen_shape *shape, gen **ret, json_t **ret_asked, xd_err *err)
{
    json_t *chat = NULL;
    xd_status st = parse_body(x, ret, err);
    if (st)
        return st;
    gen *g = *ret;
    g->shape = shape;
    *ret_asked = XD_TAKE(g->body);
    if ((st = shape->to_chat(*ret_asked, &chat, err)))
        return st;
    g->body = chat;
    json_object_del(*ret_asked, "input");
    json_object_del(*ret_asked, "messages");
    st = read_params(g, GEN_CHAT, err);
    if (st)
        shape->name_fault(*ret_asked, err);
    return st;
}

static xd_status prepare_shaped(exchange *x, const gen_shape *shape, xd_err *err)
{
    gen *g;
    XD_CLEANUP(json_decrefp) json_t *asked = NULL;
    xd_status st = read_shaped(x, shape, &g, &asked, err);
    if (st)
        return st;
    st = make_ready(g, shape->id_prefix, err);
    if (!st)
        st = shape->begin(g, asked, err);
    if (st)
        shape->name_fault(asked, err);
    return st;
}

xd_status prepare_responses(exchange *x, xd_err *err)
{
    return prepare_shaped(x, &responses_shape, err);
}

xd_status prepare_input_tokens(exchange *x, xd_err *err)
{
    gen *g;
    XD_CLEANUP(json_decrefp) json_t *asked = NULL;
    xd_status st = read_shaped(x, &responses_shape, &g, &asked, err);
    if (!st)
        reply_dump(json_pack("{s:s, s:I}", "object", "response.input_tokens", "input_tokens",
                             (json_int_t)g->p.prompts[0].ids.len),
                   &x->answer);
    return st;
}

xd_status prepare_messages(exchange *x, xd_err *err)
{
    xd_status st = prepare_shaped(x, &messages_shape, err);
    if (!st && x->gen->p.max_tokens == UINT32_MAX)
        st = fields_wrong_type(err, "max_tokens", "an integer", NULL);
    return st;
}

xd_status prepare_count_tokens(exchange *x, xd_err *err)
{
    gen *g;
    XD_CLEANUP(json_decrefp) json_t *asked = NULL;
    xd_status st = read_shaped(x, &messages_shape, &g, &asked, err);
    if (!st)
        reply_dump(json_pack("{s:I}", "input_tokens", (json_int_t)g->p.prompts[0].ids.len), &x->answer);
    return st;
}

enum MHD_Result handle_generate(exchange *x)
{
    gen *g = x->gen;
    if (!g->submitted) {
        g->submitted = true;
        g->submitted_ns = xd_now_ns();
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
