/* generate_choice.c - the choices of a request: the engine's events become chunks of a stream, or one whole response.
 *
 * Both are made from the same events, so the chunks of a choice in sum are its whole answer. Which part of a text is thought, content
 * or a call, answer.c tells; here each part becomes JSON. Does not know sockets, and does not wait. */
#include <math.h>
#include <string.h>

#include "api/generate_priv.h"
#include "config/log.h"

void gen_choice_clear(choice *c)
{
    answer_free(c->parts);
    xd_buf_free(&c->text);
    xd_buf_free(&c->thought);
    xd_buf_free(&c->said);
    xd_buf_free(&c->arguments);
    json_decref(c->calls);
    tok_ids_free(&c->ids);
    json_decref(c->logprobs);
    free(c->stop_text);
}

/* --- JSON of choices ------------------------------------------------------------------------------------------------ */

json_t *gen_choice_envelope(const gen *g, const char *object)
{
    return json_pack("{s:s, s:s, s:I, s:s, s:s}", "id", g->id, "object", object, "created", g->created, "model",
                     g->ctx.info->model_id, "system_fingerprint", g->fingerprint);
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

/* A call that the client's own stop has cut is not to be made. */
const char *gen_choice_finish(const gen *g, const choice *c)
{
    json_t *stop = stop_reason(g, c);
    bool cut = !json_is_null(stop) && c->parts && answer_in_arguments(c->parts);
    json_decref(stop);
    return c->finish == ENGINE_FINISH_LENGTH ? "length" : c->called && !cut ? "tool_calls" : "stop";
}

void gen_choice_send_json(gen *g, json_t *json)
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
    json_t *root = gen_choice_envelope(g, chat ? "chat.completion.chunk" : "text_completion");
    json_t *c = json_pack("{s:i, s:o, s:o, s:o}", "index", (int)index, chat ? "delta" : "text", delta_or_text,
                          "logprobs", logprobs ? logprobs : json_null(), "finish_reason",
                          finished ? json_string(gen_choice_finish(g, finished)) : json_null());
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
    gen_choice_send_json(g, root);
}

static json_t *text_or_delta(const gen *g, const char *text, size_t len)
{
    json_t *s = json_stringn(text ? text : "", len);
    return g->p.kind == GEN_CHAT ? json_pack("{s:o}", "content", s) : s;
}

/* --- events --------------------------------------------------------------------------------------------------------- */

/* The most that a response may hold: a request is bounded by its tokens, but each brings twenty alternatives, in each of n choices. */
static bool add_logprob(gen *g, choice *c, const engine_event *ev, bool shown)
{
    c->n_held += ev->n_top + 1;
    g->n_held += ev->n_top + 1;
    g->most_held = XD_MAX(g->most_held, g->n_held);
    if (g->n_held > GEN_MAX_HELD_LOGPROBS) {
        gen_fail_held(&g->error);
        return true;
    }
    if (g->p.kind == GEN_CHAT) {
        if (!c->logprobs)
            c->logprobs = json_array();
        return c->logprobs && !json_array_append_new(c->logprobs, format_chat_logprob(g->ctx.tok, ev));
    }
    if (!c->logprobs)
        c->logprobs = format_completion_logprobs_new();
    return c->logprobs && format_completion_logprob_add(c->logprobs, g->ctx.tok, ev, shown, &c->text_offset);
}

static json_t *take_logprobs(gen *g, choice *c)
{
    json_t *lp = XD_TAKE(c->logprobs);
    g->n_held -= c->n_held;
    c->n_held = 0;
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
    } else if (g->shape) {
        g->shape->send_opening(g);
    } else if (g->p.kind == GEN_CHAT) {
        send_chunk(g, index, json_pack("{s:s, s:s}", "role", "assistant", "content", ""), NULL, NULL, NULL, 0, true);
    } else if (g->p.echo || g->p.return_token_ids) {
        send_chunk(g, index, json_string(text), take_logprobs(g, c), NULL, NULL, 0, true);
    }
    c->text_offset =
        xd_utf8_count(text, strlen(text)); /* the tokenizer may know the prompt in another form: normalized */
}

static bool is_special(const gen *g, uint32_t id)
{
    return g->ctx.tok && tok_token_is_special(g->ctx.tok, id);
}

static void on_prompt(gen *g, size_t req, const engine_event *ev)
{
    /* What the client wrote is echoed as it is. A start token that it did not write is not in it: only the first has no log-probability. */
    const gen_prompt *p = &g->p.prompts[req];
    bool special = is_special(g, ev->token_id);
    const char *word = special ? tok_token_text(g->ctx.tok, ev->token_id) : "";
    bool shown = !special || (p->is_ids ? !g->p.skip_special
                                        : !isnan(ev->logprob.logprob) || !strncmp(p->text, word, strlen(word)));
    /* The engine reports a prompt once; each of its choices echoes it. */
    for (size_t k = 0; k < (size_t)g->p.n; k++)
        if (!add_logprob(g, &g->choices[req * (size_t)g->p.n + k], ev, shown))
            gen_fail(g, XD_NOMEM, "out of memory for logprobs");
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

static json_t *call_delta(size_t call_idx, json_t *call)
{
    if (call && json_object_set_new(call, "index", json_integer((json_int_t)call_idx))) {
        json_decref(call);
        call = NULL;
    }
    return json_pack("{s:[o]}", "tool_calls", call);
}

/* The arguments of the last call, when they are all there. */
static void end_call(choice *c)
{
    json_t *last = json_array_get(c->calls, json_array_size(c->calls) - 1);
    if (!last)
        return;
    json_t *text = json_stringn(c->arguments.data ? c->arguments.data : "", c->arguments.len);
    if (c->arguments.failed || json_object_set_new(json_object_get(last, "function"), "arguments", text))
        gen_fail(c->g, XD_NOMEM, "out of memory for the response");
    xd_buf_clear(&c->arguments);
}

/* As OpenAI's: first the id and the name, then the arguments as they come. */
static void take_call(choice *c, const answer_piece *p)
{
    json_t *call = json_pack("{s:s, s:s, s:{s:s%, s:s}}", "id", p->id, "type", "function", "function", "name", p->text,
                             p->len, "arguments", "");
    if (c->g->p.stream) {
        send_new(c, call_delta(p->call_idx, call));
        return;
    }
    end_call(c);
    if (!c->calls)
        c->calls = json_array();
    if (json_array_append_new(c->calls, call))
        gen_fail(c->g, XD_NOMEM, "out of memory for the response");
}

static void take_arguments(choice *c, const answer_piece *p)
{
    if (c->g->p.stream)
        send_new(c, call_delta(p->call_idx, json_pack("{s:{s:s%}}", "function", "arguments", p->text, p->len)));
    else
        xd_buf_append(&c->arguments, p->text, p->len);
}

static void take_piece(void *choice_, const answer_piece *p)
{
    choice *c = choice_;
    if (p->kind == ANSWER_CALL) {
        c->called = true;
        atomic_fetch_add(&c->g->x->a->metrics.tool_calls, 1);
    }
    if (p->kind == ANSWER_THOUGHT && c->g->p.drop_thoughts)
        return;
    if (c->g->shape) {
        c->g->shape->take_piece(c->g, p);
        return;
    }
    switch (p->kind) {
    case ANSWER_CONTENT: take_content(c, p->text, p->len); break;
    case ANSWER_THOUGHT: take_thought(c, p->text, p->len); break;
    case ANSWER_CALL: take_call(c, p); break;
    default: take_arguments(c, p); break;
    }
}

static void take_text(gen *g, choice *c, const engine_event *ev, bool end)
{
    if (g->x->settings->log_prompts)
        xd_buf_append(&c->said, ev->text, ev->text_len);
    if (!c->parts) {
        if (ev->text_len)
            take_piece(c, &(answer_piece){.kind = ANSWER_CONTENT, .text = ev->text, .len = ev->text_len});
        return;
    }
    if ((ev->text_len && !answer_feed(c->parts, ev->text, ev->text_len)) || (end && !answer_end(c->parts)))
        gen_fail(g, XD_NOMEM, "out of memory for the response");
}

static void on_token(gen *g, size_t index, const engine_event *ev)
{
    choice *c = &g->choices[index];
    bool with_logprob = g->p.n_logprobs >= 0;
    if (with_logprob && !add_logprob(g, c, ev, !g->p.skip_special || !is_special(g, ev->token_id)))
        gen_fail(g, XD_NOMEM, "out of memory for logprobs");
    if (!g->p.stream && g->p.return_token_ids && !tok_ids_push(&c->ids, ev->token_id))
        gen_fail(g, XD_NOMEM, "out of memory for token ids");
    bool thought = c->parts && answer_in_thought(c->parts);
    c->token = g->p.stream && !g->shape ? &ev->token_id : NULL;
    take_text(g, c, ev, false);
    if (g->shape && c->parts && (thought || answer_in_thought(c->parts))) {
        g->thought_tokens++;
        responses_drop_logprobs(g);
    }
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
        gen_fail(g, XD_NOMEM, "out of memory for the response");
    take_text(g, c, ev, true);
    end_call(c);
    if (g->p.stream && !g->shape)
        send_chunk(g, index, g->p.kind == GEN_CHAT ? json_object() : json_string(""), NULL, c, NULL, 0, false);
    g->n_done++;
    if (g->x->settings->log_prompts)
        xd_log_info("output %s[%zu]: %s", g->id, index, c->said.data ? c->said.data : "");
}

void gen_choice_take_event(gen *g, size_t req, const engine_event *ev)
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
    json_t *json = json_pack("{s:i, s:o, s:o, s:o, s:o}", "index", (int)index, chat ? "message" : "text",
                             chat ? whole_message(c) : json_stringn(c->text.data ? c->text.data : "", c->text.len),
                             "logprobs", lp ? lp : json_null(), "finish_reason", json_string(gen_choice_finish(g, c)),
                             "stop_reason", stop_reason(g, c));
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

xd_status gen_choice_write_whole(exchange *x, xd_err *err)
{
    gen *g = x->gen;
    bool chat = g->p.kind == GEN_CHAT;
    json_t *root = gen_choice_envelope(g, chat ? "chat.completion" : "text_completion"), *list = json_array();
    bool ok = root && list;
    for (size_t i = 0; ok && i < g->n_choices; i++)
        ok = !json_array_append_new(list, whole_choice(g, i));
    ok = ok && !json_object_set(root, "choices", list) &&
         !json_object_set_new(root, "usage", format_usage(g->prompt_tokens, g->completion_tokens, g->cached_tokens));
    if (ok && g->p.timings)
        ok = !json_object_set_new(root, "timings", gen_timings(g));
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

/* Only where there may be something to tell apart. */
xd_status gen_choice_begin_parts(gen *g, xd_err *err)
{
    const answer_marks *m = &g->p.marks;
    answer_options o = {.marks = *m,
                        .keep_thoughts = g->p.keep_thoughts,
                        .tools = g->p.tools,
                        .one_call = !g->p.parallel_tool_calls,
                        .whole_call = g->p.must_call || g->p.may_call,
                        .or_json = g->p.may_call,
                        .hold_call = g->p.alike,
                        .lead = g->p.must_call ? toolcall_marks_of(m->calls)->lead : NULL,
                        .tell = take_piece};
    bool thoughts = (m->thoughts.open || m->channels) && !g->p.keep_thoughts;
    o.marks.channels &= thoughts;
    if (g->p.grammar) { /* an answer that is held to a form has no marks, and a thought only where one was let through */
        thoughts = m->may_think;
        o.marks.thoughts.end = NULL; /* it may be a part of a text within the form */
        if (m->channels) {
            o.marks.thoughts = answer_channel_thought;
            o.lead = NULL;
        }
        o.marks.channels = false;
        o.marks.calls = o.whole_call ? m->calls : TOOLCALL_NONE;
    }
    for (size_t i = 0; i < g->n_choices; i++) {
        choice *c = &g->choices[i];
        c->g = g;
        if (!thoughts && o.marks.calls == TOOLCALL_NONE && !o.whole_call)
            continue;
        o.user = c;
        o.seed = xd_mix64(g->x->a->id_salt + atomic_fetch_add(&g->x->a->next_id, 1) * XD_MIX64_STEP);
        c->parts = answer_new(&o);
        if (!c->parts)
            return xd_fail(err, XD_NOMEM, 0, "out of memory for the request");
    }
    return XD_OK;
}
