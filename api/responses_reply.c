/* responses_reply.c - an answer in the shape of OpenAI's Responses API: output items, and the typed events of a stream.
 *
 * What answer.c tells of a text becomes items: a thought is `reasoning`, text a `message`, a call a `function_call`, in the order in
 * which the model wrote them; one is open at a time. The events of a stream and the items of a whole answer are made at the same places,
 * so that the last event holds what the whole answer would be. An event repeats the text of an item up to three times, as OpenAI's do;
 * the largest, the last, is written where it holds up nobody (generate.c). Does not know what a request may say: responses_request.c. */
#include <string.h>
#include <time.h>

#include "api/generate_priv.h"
#include "api/responses.h"

struct responses {
    json_t *fixed;  /* what of a response does not change */
    xd_buf opening; /* the first events of a stream, which repeat the request: written before anybody waits for them */
    json_t *output; /* the items that are whole */
    json_t *item;   /* the open one, without its content; NULL: none */
    answer_kind kind;
    xd_buf text;      /* of it */
    json_t *logprobs; /* of its text, an array */
    uint64_t id_state;
    json_int_t n_events;
    bool begun, answered; /* answered: text or a call was told */
};

void responses_free(responses *r)
{
    if (!r)
        return;
    json_decref(r->fixed);
    json_decref(r->output);
    json_decref(r->item);
    json_decref(r->logprobs);
    xd_buf_free(&r->opening);
    xd_buf_free(&r->text);
    free(r);
}

/* --- the response object -------------------------------------------------------------------------------------------- */

/* What a request said, or what holds where it said nothing. */
static const struct {
    const char *name, *absent;
} echoed[] = {{"instructions", "null"},
              {"max_output_tokens", "null"},
              {"max_tool_calls", "null"},
              {"metadata", "{}"},
              {"model", NULL},
              {"parallel_tool_calls", "true"},
              {"prompt_cache_key", "null"},
              {"reasoning", NULL},
              {"safety_identifier", "null"},
              {"temperature", "null"},
              {"text", NULL},
              {"tool_choice", "\"auto\""},
              {"tools", "[]"},
              {"top_logprobs", "0"},
              {"top_p", "null"},
              {"user", "null"}};

/* A copy for the answer: integers that only text can hold (fields.h) become numbers again. */
static json_t *shown(const json_t *v)
{
    const char *key;
    size_t i;
    json_t *item, *copy;
    if (json_is_string(v) && json_string_length(v) && !json_string_value(v)[0])
        return json_real(strtod(json_string_value(v) + 1, NULL));
    if (json_is_array(v)) {
        copy = json_array();
        json_array_foreach ((json_t *)(uintptr_t)v, i, item)
            if (json_array_append_new(copy, shown(item)))
                goto failed;
        return copy;
    }
    if (!json_is_object(v))
        return json_incref((json_t *)(uintptr_t)v);
    copy = json_object();
    json_object_foreach ((json_t *)(uintptr_t)v, key, item)
        if (json_object_set_new(copy, key, shown(item)))
            goto failed;
    return copy;
failed:
    json_decref(copy);
    return NULL;
}

static json_t *or_null(const json_t *v)
{
    return v ? json_incref((json_t *)(uintptr_t)v) : json_null();
}

static json_t *echo_of(const gen *g, const json_t *body, size_t i)
{
    const json_t *v = json_object_get(body, echoed[i].name), *format = json_object_get(v, "format");
    if (!strcmp(echoed[i].name, "model"))
        return json_string(g->ctx.info->model_id);
    if (!strcmp(echoed[i].name, "reasoning"))
        return json_pack("{s:o, s:n}", "effort", or_null(json_object_get(v, "effort")), "summary");
    if (!strcmp(echoed[i].name, "text"))
        return json_pack("{s:o, s:s}", "format",
                         json_is_object(format) ? json_incref((json_t *)(uintptr_t)format)
                                                : json_pack("{s:s}", "type", "text"),
                         "verbosity", "medium");
    return v && !json_is_null(v) ? shown(v) : json_loads(echoed[i].absent, JSON_DECODE_ANY, NULL);
}

static json_t *fixed_of(const gen *g, const json_t *body)
{
    json_t *fixed = json_pack("{s:s, s:s, s:I, s:b, s:n, s:s, s:b, s:s}", "id", g->id, "object", "response",
                              "created_at", g->created, "background", 0, "previous_response_id", "service_tier",
                              "default", "store", 0, "truncation", "disabled");
    for (size_t i = 0; i < XD_ARRAY_LEN(echoed); i++)
        if (json_object_set_new(fixed, echoed[i].name, echo_of(g, body, i))) {
            json_decref(fixed);
            return NULL;
        }
    return fixed;
}

static json_t *usage_of(const gen *g)
{
    return json_pack("{s:I, s:{s:I, s:I}, s:I, s:{s:I}, s:I}", "input_tokens", (json_int_t)g->prompt_tokens,
                     "input_tokens_details", "cached_tokens", (json_int_t)g->cached_tokens, "cache_write_tokens",
                     (json_int_t)0, "output_tokens", (json_int_t)g->completion_tokens, "output_tokens_details",
                     "reasoning_tokens", (json_int_t)g->thought_tokens, "total_tokens",
                     (json_int_t)(g->prompt_tokens + g->completion_tokens));
}

/* Owned; NULL: out of memory. error, why and usage are taken; NULL: there is none. */
static json_t *response_json(const gen *g, const char *status, json_t *error, json_t *why, json_t *usage)
{
    const responses *r = g->responses;
    json_t *root = json_copy(r->fixed);
    bool done = !strcmp(status, "completed");
    bool failed = json_object_set_new(root, "status", json_string(status)) |
                  json_object_set_new(root, "completed_at", done ? json_integer(time(NULL)) : json_null()) |
                  json_object_set_new(root, "error", error ? error : json_null()) |
                  json_object_set_new(root, "incomplete_details", why ? why : json_null()) |
                  json_object_set(root, "output", r->output) |
                  json_object_set_new(root, "usage", usage ? usage : json_null());
    if (!failed)
        return root;
    json_decref(root);
    return NULL;
}

/* --- events --------------------------------------------------------------------------------------------------------- */

/* Writes an event with these members, which it takes; NULL: out of memory. */
static void write_event(gen *g, xd_buf *out, const char *type, json_t *members)
{
    json_t *event = json_pack("{s:s, s:I}", "type", type, "sequence_number", g->responses->n_events++);
    if (!members || json_object_update(event, members)) {
        json_decref(event);
        event = NULL;
    }
    json_decref(members);
    xd_buf_printf(out, "event: %s\ndata: ", type);
    reply_dump(event, out);
    xd_buf_puts(out, "\n\n");
}

/* An event about the open item. Members as above. */
static void send_event(gen *g, const char *type, json_t *members)
{
    const responses *r = g->responses;
    bool ok = members && !json_object_set(members, "item_id", json_object_get(r->item, "id")) &&
              !json_object_set_new(members, "output_index", json_integer((json_int_t)json_array_size(r->output)));
    if (!ok) {
        json_decref(members);
        members = NULL;
    }
    write_event(g, &g->out, type, members);
}

static json_t *text_json(const responses *r)
{
    return r->text.failed ? NULL : json_stringn(r->text.data ? r->text.data : "", r->text.len);
}

static json_t *logprobs_json(const responses *r)
{
    return r->logprobs ? json_incref(r->logprobs) : json_array();
}

/* The content part of the open item, with the text that it has. */
static json_t *part_json(const responses *r)
{
    if (r->kind == ANSWER_THOUGHT)
        return json_pack("{s:s, s:o}", "type", "reasoning_text", "text", text_json(r));
    return json_pack("{s:s, s:o, s:[], s:o}", "type", "output_text", "text", text_json(r), "annotations", "logprobs",
                     logprobs_json(r));
}

/* The open item as it is; begin: before anything of it is told. */
static json_t *item_json(const responses *r, const char *status, bool begin)
{
    json_t *item = json_copy(r->item);
    bool ok = item && !json_object_set_new(item, "status", json_string(status));
    if (r->kind == ANSWER_CALL)
        ok = ok && !json_object_set_new(item, "arguments", text_json(r));
    else
        ok = ok && !json_object_set_new(item, "content", begin ? json_array() : json_pack("[o]", part_json(r)));
    if (ok)
        return item;
    json_decref(item);
    return NULL;
}

/* An item's event has no item_id. */
static void send_item(gen *g, const char *type, json_t *item)
{
    write_event(g, &g->out, type,
                json_pack("{s:i, s:o}", "output_index", (int)json_array_size(g->responses->output), "item", item));
}

/* --- items ---------------------------------------------------------------------------------------------------------- */

static void send_whole_part(gen *g)
{
    const responses *r = g->responses;
    if (r->kind == ANSWER_CALL) {
        send_event(g, "response.function_call_arguments.done",
                   json_pack("{s:O, s:o}", "name", json_object_get(r->item, "name"), "arguments", text_json(r)));
        return;
    }
    if (r->kind == ANSWER_THOUGHT)
        send_event(g, "response.reasoning_text.done",
                   json_pack("{s:i, s:o}", "content_index", 0, "text", text_json(r)));
    else
        send_event(
            g, "response.output_text.done",
            json_pack("{s:i, s:o, s:o}", "content_index", 0, "text", text_json(r), "logprobs", logprobs_json(r)));
    send_event(g, "response.content_part.done", json_pack("{s:i, s:o}", "content_index", 0, "part", part_json(r)));
}

static void send_text(gen *g, const char *text, size_t len, json_t *logprobs)
{
    send_event(g, "response.output_text.delta",
               json_pack("{s:i, s:s%, s:o}", "content_index", 0, "delta", text, len, "logprobs",
                         logprobs ? json_incref(logprobs) : json_array()));
}

/* The tokens since the last text become part of the open message's. They stay held: the events at its end have all of them. */
static void take_logprobs(gen *g, const char *text, size_t len)
{
    responses *r = g->responses;
    choice *c = &g->choices[0];
    json_t *fresh = XD_TAKE(c->logprobs);
    c->n_held = 0;
    if (g->p.stream && (len || fresh))
        send_text(g, text, len, fresh);
    if (fresh && !r->logprobs)
        r->logprobs = json_array();
    if (fresh && json_array_extend(r->logprobs, fresh))
        gen_fail(g, XD_NOMEM, "out of memory for logprobs");
    json_decref(fresh);
}

void responses_drop_logprobs(gen *g)
{
    choice *c = &g->choices[0];
    json_decref(c->logprobs);
    c->logprobs = NULL;
    g->n_held -= c->n_held;
    c->n_held = 0;
}

static void close_item(gen *g, const char *status)
{
    responses *r = g->responses;
    if (!r->item)
        return;
    if (r->kind == ANSWER_CONTENT)
        take_logprobs(g, "", 0);
    json_t *item = item_json(r, status, false);
    if (g->p.stream) {
        send_whole_part(g);
        send_item(g, "response.output_item.done", item ? json_incref(item) : NULL);
    }
    if (json_array_append_new(r->output, item))
        gen_fail(g, XD_NOMEM, "out of memory for the response");
    json_decref(r->item);
    json_decref(r->logprobs);
    r->item = r->logprobs = NULL;
    xd_buf_clear(&r->text);
}

static json_t *call_json(const responses *r, const char *id, const answer_piece *p)
{
    const json_t *group, *name;
    responses_find_name(json_object_get(r->fixed, "tools"), p->text, p->len, &group, &name);
    json_t *call = json_pack("{s:s, s:s, s:s}", "id", id, "type", "function_call", "call_id", p->id);
    bool ok = call && (!group || !json_object_set(call, "namespace", (json_t *)(uintptr_t)group)) &&
              !json_object_set_new(call, "name",
                                   name ? json_incref((json_t *)(uintptr_t)name) : json_stringn(p->text, p->len));
    if (ok)
        return call;
    json_decref(call);
    return NULL;
}

static void open_item(gen *g, const answer_piece *p)
{
    static const char *const prefixes[] = {[ANSWER_CONTENT] = "msg", [ANSWER_THOUGHT] = "rs", [ANSWER_CALL] = "fc"};
    responses *r = g->responses;
    if (p->kind != ANSWER_CONTENT) /* tokens of the mark between them */
        responses_drop_logprobs(g);
    close_item(g, "completed");
    r->kind = p->kind;
    r->answered |= p->kind != ANSWER_THOUGHT;
    char id[32];
    snprintf(id, sizeof id, "%s_%016llx", prefixes[p->kind],
             (unsigned long long)xd_mix64(r->id_state += XD_MIX64_STEP));
    r->item = p->kind == ANSWER_CALL ? call_json(r, id, p)
              : p->kind == ANSWER_THOUGHT
                  ? json_pack("{s:s, s:s, s:[]}", "id", id, "type", "reasoning", "summary")
                  : json_pack("{s:s, s:s, s:s}", "id", id, "type", "message", "role", "assistant");
    if (!r->item)
        gen_fail(g, XD_NOMEM, "out of memory for the response");
    if (!r->item || !g->p.stream)
        return;
    send_item(g, "response.output_item.added", item_json(r, "in_progress", true));
    if (p->kind != ANSWER_CALL)
        send_event(g, "response.content_part.added", json_pack("{s:i, s:o}", "content_index", 0, "part", part_json(r)));
}

static void take_piece(gen *g, const answer_piece *p)
{
    responses *r = g->responses;
    if (p->kind == ANSWER_ARGUMENTS && !r->item)
        return;
    bool goes_on = r->item && (p->kind == ANSWER_ARGUMENTS || (p->kind == r->kind && p->kind != ANSWER_CALL));
    if (!goes_on)
        open_item(g, p);
    if (!r->item || p->kind == ANSWER_CALL)
        return;
    xd_buf_append(&r->text, p->text, p->len);
    if (p->kind == ANSWER_CONTENT)
        take_logprobs(g, p->text, p->len);
    else if (g->p.stream && p->kind == ANSWER_THOUGHT)
        send_event(g, "response.reasoning_text.delta",
                   json_pack("{s:i, s:s%}", "content_index", 0, "delta", p->text, p->len));
    else if (g->p.stream)
        send_event(g, "response.function_call_arguments.delta", json_pack("{s:s%}", "delta", p->text, p->len));
}

/* --- begin and end -------------------------------------------------------------------------------------------------- */

static xd_status begin(gen *g, const json_t *body, xd_err *err)
{
    responses *r = g->responses = calloc(1, sizeof *r);
    if (!r)
        return xd_fail(err, XD_NOMEM, 0, "out of memory for the request");
    r->id_state = xd_mix64(g->x->a->id_salt + atomic_fetch_add(&g->x->a->next_id, 1) * XD_MIX64_STEP);
    r->output = json_array();
    r->fixed = fixed_of(g, body);
    static const char *const first[] = {"response.created", "response.in_progress"};
    for (size_t i = 0; g->p.stream && i < XD_ARRAY_LEN(first); i++)
        write_event(g, &r->opening, first[i],
                    json_pack("{s:o}", "response", response_json(g, "in_progress", NULL, NULL, NULL)));
    return r->output && r->fixed && !r->opening.failed ? XD_OK
                                                       : xd_fail(err, XD_NOMEM, 0, "out of memory for the request");
}

static bool send_opening(gen *g)
{
    responses *r = g->responses;
    if (r->begun)
        return false;
    r->begun = true;
    xd_buf_append(&g->out, r->opening.data, r->opening.len);
    xd_buf_free(&r->opening);
    return true;
}

/* A call may be whole where the limit came behind it, and half where the client's own stop cut it. */
static bool is_whole_call(const responses *r)
{
    json_t *arguments = r->text.len ? json_loadb(r->text.data, r->text.len, JSON_ALLOW_NUL, NULL) : NULL;
    json_decref(arguments);
    return arguments != NULL;
}

/* Closes what is open, and says how the response ended. */
static json_t *end_json(gen *g, const char **ret_status)
{
    responses *r = g->responses;
    bool cut = g->choices[0].finish == ENGINE_FINISH_LENGTH;
    /* An answer of no text at all is one all the same. */
    if (!r->answered && !cut)
        open_item(g, &(answer_piece){.kind = ANSWER_CONTENT, .text = ""});
    bool whole = r->item && r->kind == ANSWER_CALL ? is_whole_call(r) : !cut;
    close_item(g, whole ? "completed" : "incomplete");
    *ret_status = cut ? "incomplete" : "completed";
    json_t *why = cut ? json_pack("{s:s}", "reason", "max_output_tokens") : NULL;
    json_t *root = response_json(g, *ret_status, NULL, why, usage_of(g));
    if (g->p.timings && json_object_set_new(root, "timings", gen_timings(g))) {
        json_decref(root);
        return NULL;
    }
    return root;
}

static void end_failed_stream(gen *g)
{
    const xd_err *e = &g->error;
    unsigned status;
    json_t *said = reply_error_json(e, g->x->anthropic, &status), *inner = json_object_get(said, "error");
    reply_note_fault(g->x, e);
    close_item(g, "incomplete");
    /* OpenAI's codes of a failed response are few; the exact one is in the event before. */
    json_t *error = json_pack("{s:s, s:O}", "code", status < 500 && status != 408 ? "invalid_prompt" : "server_error",
                              "message", json_object_get(inner, "message"));
    write_event(g, &g->out, "error",
                json_pack("{s:O, s:O, s:O}", "code", json_object_get(inner, "code"), "message",
                          json_object_get(inner, "message"), "param", json_object_get(inner, "param")));
    write_event(g, &g->out, "response.failed",
                json_pack("{s:o}", "response", response_json(g, "failed", error, NULL, usage_of(g))));
    json_decref(said);
}

static xd_status end_stream(exchange *x, xd_err *err)
{
    (void)err;
    gen *g = x->gen;
    send_opening(g);
    if (!g->error.status) {
        const char *status;
        json_t *root = end_json(g, &status);
        if (!g->error.status) {
            char type[32];
            snprintf(type, sizeof type, "response.%s", status);
            write_event(g, &g->out, type, json_pack("{s:o}", "response", root));
            return XD_OK;
        }
        json_decref(root);
    }
    end_failed_stream(g);
    return XD_OK;
}

static xd_status write_whole(exchange *x, xd_err *err)
{
    gen *g = x->gen;
    const char *status;
    json_t *root = end_json(g, &status);
    if (g->error.status) {
        json_decref(root);
        *err = g->error;
        return err->status;
    }
    reply_dump(root, &x->answer);
    return x->answer.failed ? xd_fail(err, XD_NOMEM, 0, "out of memory for the response") : XD_OK;
}

const gen_shape responses_shape = {.id_prefix = "resp_",
                                   .to_chat = responses_to_chat,
                                   .name_fault = responses_name_fault,
                                   .begin = begin,
                                   .send_opening = send_opening,
                                   .ping = ": ping\n\n",
                                   .take_piece = take_piece,
                                   .end_stream = end_stream,
                                   .write_whole = write_whole};
