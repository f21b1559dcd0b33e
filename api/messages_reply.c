/* messages_reply.c - an answer in the shape of Anthropic's Messages API: content blocks, and the events of a stream.
 *
 * What answer.c tells of a text becomes blocks: a thought is `thinking`, text `text`, a call `tool_use`, in the order in which the model
 * wrote them; one is open at a time. The events of a stream and the blocks of a whole answer are made at the same places. Does not know
 * what a request may say: messages_request.c. */
#include <string.h>

#include "api/generate_priv.h"
#include "api/json_scan.h"
#include "api/messages.h"

struct messages {
    json_t *block; /* the open one, without its text; NULL: none */
    answer_kind kind;
    xd_buf text, content; /* of it, and the blocks that are whole, where the answer is no stream */
    json_int_t n_blocks;
    bool begun;
};

void messages_free(messages *m)
{
    if (!m)
        return;
    xd_buf_free(&m->content);
    json_decref(m->block);
    xd_buf_free(&m->text);
    free(m);
}

static xd_status begin(gen *g, const json_t *body, xd_err *err)
{
    (void)body;
    messages *m = g->messages = calloc(1, sizeof *m);
    if (!m)
        return xd_fail(err, XD_NOMEM, 0, "out of memory for the request");
    /* max_tokens must be said and often is the most that a model can: as Anthropic's newer models do, it ends at the context. */
    g->p.is_usual_length = true;
    return XD_OK;
}

/* What was read from the cache is not in input_tokens. Owned; NULL: out of memory. */
static json_t *usage_of(const gen *g, uint64_t prompt, uint64_t cached, uint64_t output)
{
    return json_pack("{s:I, s:I, s:I, s:I, s:{s:I}}", "input_tokens", (json_int_t)(prompt - XD_MIN(cached, prompt)),
                     "cache_creation_input_tokens", (json_int_t)0, "cache_read_input_tokens", (json_int_t)cached,
                     "output_tokens", (json_int_t)output, "output_tokens_details", "thinking_tokens",
                     (json_int_t)g->thought_tokens);
}

static json_t *whole_usage(const gen *g)
{
    return usage_of(g, g->prompt_tokens, g->cached_tokens, g->completion_tokens);
}

/* Takes what it is given; content may be NULL: it has none yet. */
static json_t *message_json(const gen *g, json_t *content, json_t *stop_reason, json_t *stop_sequence, json_t *usage)
{
    return json_pack("{s:s, s:s, s:s, s:s, s:o, s:o, s:o, s:o*}", "id", g->id, "type", "message", "role", "assistant",
                     "model", g->ctx.info->model_id, "stop_reason", stop_reason, "stop_sequence", stop_sequence,
                     "usage", usage, "content", content);
}

static json_t *stop_reason(const gen *g)
{
    const choice *c = &g->choices[0];
    if (c->finish == ENGINE_FINISH_LENGTH) {
        bool asked = g->completion_tokens >= (uint64_t)g->p.max_tokens;
        return json_string(asked ? "max_tokens" : "model_context_window_exceeded");
    }
    bool calls = !strcmp(gen_choice_finish(g, c), "tool_calls");
    return json_string(calls ? "tool_use" : c->stop_text ? "stop_sequence" : "end_turn");
}

static json_t *stop_sequence(const gen *g)
{
    const char *text = g->choices[0].stop_text;
    return text ? json_string(text) : json_null();
}

/* --- events --------------------------------------------------------------------------------------------------------- */

/* Takes event, which has a type; NULL: out of memory. */
static void send_event(gen *g, json_t *event)
{
    xd_buf_printf(&g->out, "event: %s\ndata: ", event ? json_string_value(json_object_get(event, "type")) : "error");
    reply_dump(event, &g->out);
    xd_buf_puts(&g->out, "\n\n");
}

static bool send_opening(gen *g)
{
    messages *m = g->messages;
    if (m->begun)
        return false;
    m->begun = true;
    engine_usage u = {0};
    engine_request_usage(g->reqs[0], &u);
    json_t *usage = usage_of(g, g->p.prompts[0].ids.len, u.cached_tokens, 0);
    send_event(g, json_pack("{s:s, s:o}", "type", "message_start", "message",
                            message_json(g, json_array(), json_null(), json_null(), usage)));
    return true;
}

static void send_delta(gen *g, const char *type, const char *key, const char *text, size_t len)
{
    send_event(g, json_pack("{s:s, s:I, s:{s:s, s:s%}}", "type", "content_block_delta", "index", g->messages->n_blocks,
                            "delta", "type", type, key, text, len));
}

/* --- blocks --------------------------------------------------------------------------------------------------------- */

/* Gives the object at the end of out one more member, as the text that its value is. */
static void add_member(xd_buf *out, const char *key, const char *begin, const xd_buf *value, const char *end)
{
    if (out->failed || !out->len)
        return;
    out->len--;
    xd_buf_printf(out, ",\"%s\":%s", key, begin);
    xd_buf_append(out, value->data, value->len);
    xd_buf_printf(out, "%s}", end);
    out->failed |= value->failed;
}

/* A call's input is the text that the model wrote, since no type here holds all its numbers; {} where the answer ended in it. */
static void keep_block(messages *m, json_t *block)
{
    if (m->content.len)
        xd_buf_putc(&m->content, ',');
    if (m->kind != ANSWER_CALL) {
        json_t *text = json_stringn(m->text.data ? m->text.data : "", m->text.len);
        m->content.failed |=
            m->text.failed || json_object_set_new(block, m->kind == ANSWER_CONTENT ? "text" : "thinking", text);
        reply_dump(block, &m->content);
        return;
    }
    json_scan whole;
    json_scan_begin(&whole);
    json_scan_feed(&whole, m->text.data ? m->text.data : "", m->text.len, NULL);
    if (!json_scan_done(&whole)) {
        xd_buf_clear(&m->text);
        xd_buf_puts(&m->text, "{}");
    }
    json_object_del(block, "input");
    reply_dump(block, &m->content);
    add_member(&m->content, "input", "", &m->text, "");
}

static void close_block(gen *g)
{
    messages *m = g->messages;
    json_t *block = XD_TAKE(m->block);
    if (!block)
        return;
    if (g->p.stream) {
        if (m->kind == ANSWER_THOUGHT) /* some clients send a thought back only where it has one */
            send_delta(g, "signature_delta", "signature", "", 0);
        send_event(g, json_pack("{s:s, s:I}", "type", "content_block_stop", "index", m->n_blocks));
        json_decref(block);
    } else {
        keep_block(m, block);
        xd_buf_clear(&m->text);
    }
    m->n_blocks++;
}

static void open_block(gen *g, const answer_piece *p)
{
    messages *m = g->messages;
    close_block(g);
    m->kind = p->kind;
    m->block =
        p->kind == ANSWER_CALL
            ? json_pack("{s:s, s:s, s:s%, s:{}}", "type", "tool_use", "id", p->id, "name", p->text, p->len, "input")
        : p->kind == ANSWER_THOUGHT ? json_pack("{s:s, s:s, s:s}", "type", "thinking", "thinking", "", "signature", "")
                                    : json_pack("{s:s, s:s}", "type", "text", "text", "");
    if (!m->block)
        gen_fail(g, XD_NOMEM, "out of memory for the response");
    else if (g->p.stream)
        send_event(g, json_pack("{s:s, s:I, s:O}", "type", "content_block_start", "index", m->n_blocks, "content_block",
                                m->block));
}

static void take_piece(gen *g, const answer_piece *p)
{
    messages *m = g->messages;
    if (p->kind != ANSWER_CALL && !p->len)
        return;
    if (p->kind != ANSWER_ARGUMENTS && (!m->block || p->kind != m->kind || p->kind == ANSWER_CALL))
        open_block(g, p);
    if (!m->block || p->kind == ANSWER_CALL)
        return;
    if (!g->p.stream)
        xd_buf_append(&m->text, p->text, p->len);
    else if (p->kind == ANSWER_ARGUMENTS)
        send_delta(g, "input_json_delta", "partial_json", p->text, p->len);
    else if (p->kind == ANSWER_THOUGHT)
        send_delta(g, "thinking_delta", "thinking", p->text, p->len);
    else
        send_delta(g, "text_delta", "text", p->text, p->len);
}

/* --- the end -------------------------------------------------------------------------------------------------------- */

static xd_status end_stream(exchange *x, xd_err *err)
{
    (void)err;
    gen *g = x->gen;
    if (!g->error.status) {
        close_block(g);
        send_event(g, json_pack("{s:s, s:{s:o, s:o}, s:o}", "type", "message_delta", "delta", "stop_reason",
                                stop_reason(g), "stop_sequence", stop_sequence(g), "usage", whole_usage(g)));
        send_event(g, json_pack("{s:s}", "type", "message_stop"));
        return XD_OK;
    }
    unsigned status;
    reply_note_fault(x, &g->error);
    send_event(g, reply_error_json(&g->error, x->anthropic, &status));
    return XD_OK;
}

static xd_status write_whole(exchange *x, xd_err *err)
{
    gen *g = x->gen;
    close_block(g);
    reply_dump(message_json(g, NULL, stop_reason(g), stop_sequence(g), whole_usage(g)), &x->answer);
    add_member(&x->answer, "content", "[", &g->messages->content, "]");
    return x->answer.failed ? xd_fail(err, XD_NOMEM, 0, "out of memory for the response") : XD_OK;
}

const gen_shape messages_shape = {.id_prefix = "msg_",
                                  .to_chat = messages_to_chat,
                                  .name_fault = messages_name_fault,
                                  .begin = begin,
                                  .send_opening = send_opening,
                                  .ping = "event: ping\ndata: {\"type\":\"ping\"}\n\n",
                                  .take_piece = take_piece,
                                  .end_stream = end_stream,
                                  .write_whole = write_whole};
