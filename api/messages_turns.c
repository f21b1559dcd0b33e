/* messages_turns.c - the conversation of a request of Anthropic's Messages API, in the words of chat.
 *
 * A turn of /v1/messages holds blocks where chat has a message with members of its own: a thought, text and calls of the assistant become one
 * message, results of calls each one of the role `tool`. Turns of one role that stand together are one, as Anthropic says, and an
 * answer goes on with a last turn of the assistant. What is no text is refused here, by name. */
#include <strings.h>

#include "api/messages.h"
#include "api/translate.h"

enum { WHERE_CHARS = 96 };

/* --- turns ---------------------------------------------------------------------------------------------------------- */

typedef struct turns {
    json_t *messages;
    json_t *last;    /* of them, while more may come to it; borrowed, NULL: none */
    json_t *content; /* its text parts; borrowed */
    xd_buf thought;
    json_t *calls; /* under the ids of all calls so far: true */
} turns;

static void turns_clear(turns *t)
{
    xd_buf_free(&t->thought);
    json_decref(t->calls);
}

/* One part is as chat's clients send it, a text; a message of calls alone has none. */
static bool settle_content(json_t *message, json_t *parts)
{
    size_t n = json_array_size(parts);
    if (n > 1)
        return true;
    if (!n && json_object_get(message, "tool_calls"))
        return !json_object_del(message, "content");
    json_t *text = n ? json_incref(json_object_get(json_array_get(parts, 0), "text")) : json_string("");
    return !json_object_set_new(message, "content", text);
}

static bool finish(turns *t)
{
    json_t *m = XD_TAKE(t->last);
    bool ok = !m || settle_content(m, t->content);
    if (t->thought.len)
        ok = ok && !json_object_set_new(m, "reasoning_content", json_stringn(t->thought.data, t->thought.len));
    ok = ok && !t->thought.failed;
    xd_buf_clear(&t->thought);
    return ok;
}

/* The message to which a block of this role belongs; NULL: out of memory. */
static json_t *turn(turns *t, const char *role)
{
    if (t->last && is_text(json_object_get(t->last, "role"), role))
        return t->last;
    json_t *m = json_pack("{s:s, s:[]}", "role", role, "content");
    if (!finish(t) || json_array_append_new(t->messages, m))
        return NULL;
    t->content = json_object_get(m, "content");
    return t->last = m;
}

/* --- blocks --------------------------------------------------------------------------------------------------------- */

static xd_status unsupported(const json_t *block, const char *where, const char *known, xd_err *err)
{
    char param[WHERE_CHARS + 8];
    snprintf(param, sizeof param, "%s.type", where);
    return xd_fail_field(err, XD_BAD_REQUEST, param, "unsupported_content",
                         "'%s' '%.64s' is not supported: the model reads and writes text, in blocks of type %s", param,
                         json_string_value(json_object_get(block, "type")), known);
}

static xd_status add_text(json_t *parts, const json_t *block, const char *where, xd_err *err)
{
    const json_t *text = NULL;
    xd_status st = translate_need_string(block, where, "text", &text, err);
    if (st)
        return st;
    json_t *part = json_pack("{s:s, s:O}", "type", "text", "text", text);
    return json_array_append_new(parts, part) ? translate_no_memory(err) : XD_OK;
}

/* A block of content, and what kind it is; v need not be one. */
static xd_status read_type(const json_t *v, const char *where, const json_t **ret, xd_err *err)
{
    return json_is_object(v) ? translate_need_string(v, where, "type", ret, err)
                             : fields_wrong_type(err, where, "an object", v);
}

/* Appends what is a string or a list of text blocks to parts. */
static xd_status read_texts(const json_t *v, const char *where, json_t *parts, xd_err *err)
{
    if (json_is_string(v)) {
        json_t *part = json_pack("{s:s, s:O}", "type", "text", "text", v);
        return json_array_append_new(parts, part) ? translate_no_memory(err) : XD_OK;
    }
    if (!json_is_array(v))
        return fields_wrong_type(err, where, "a string or a list of blocks", v);
    xd_status st = XD_OK;
    for (size_t i = 0; !st && i < json_array_size(v); i++) {
        char at[WHERE_CHARS];
        const json_t *block = json_array_get(v, i), *type = NULL;
        snprintf(at, sizeof at, "%s[%zu]", where, i);
        st = read_type(block, at, &type, err);
        if (!st)
            st = is_text(type, "text") ? add_text(parts, block, at, err) : unsupported(block, at, "text", err);
    }
    return st;
}

static xd_status take_thought(turns *t, const json_t *block, const char *where, xd_err *err)
{
    const json_t *text = NULL;
    xd_status st = translate_need_string(block, where, "thinking", &text, err);
    if (st)
        return st;
    if (!turn(t, "assistant"))
        return translate_no_memory(err);
    if (t->thought.len)
        xd_buf_putc(&t->thought, '\n');
    xd_buf_append(&t->thought, json_string_value(text), json_string_length(text));
    return XD_OK;
}

static xd_status take_call(turns *t, const json_t *block, const char *where, xd_err *err)
{
    char param[WHERE_CHARS + 8];
    const json_t *id = NULL, *name = NULL, *input = json_object_get(block, "input");
    xd_status st = translate_need_string(block, where, "id", &id, err);
    if (!st)
        st = translate_need_string(block, where, "name", &name, err);
    if (st)
        return st;
    snprintf(param, sizeof param, "%s.name", where);
    if (!json_string_length(name))
        return xd_fail_field(err, XD_BAD_REQUEST, param, "invalid_value", "'%s' is empty", param);
    snprintf(param, sizeof param, "%s.input", where);
    if (!json_is_object(input))
        return fields_wrong_type(err, param, "an object", input);
    json_t *m = turn(t, "assistant");
    if (!m || (!json_object_get(m, "tool_calls") && json_object_set_new(m, "tool_calls", json_array())))
        return translate_no_memory(err);
    json_t *call = json_pack("{s:O, s:s, s:{s:O, s:O}}", "id", id, "type", "function", "function", "name", name,
                             "arguments", input);
    bool ok = !json_array_append_new(json_object_get(m, "tool_calls"), call) &&
              !json_object_set_new(t->calls, json_string_value(id), json_true());
    return ok ? XD_OK : translate_no_memory(err);
}

/* Templates have no place for "this failed", and chat's clients say it in the text: so it stands in front, unless the text begins with it. */
static bool say_failed(json_t *parts)
{
    static const char word[] = "Error";
    json_t *first = json_array_get(parts, 0), *text = json_object_get(first, "text");
    if (!first)
        return !json_array_append_new(parts, json_pack("{s:s, s:s}", "type", "text", "text", word));
    const char *s = json_string_value(text);
    if (!strncasecmp(s, word, strlen(word)) || strlen(s) != json_string_length(text)) /* a NUL is refused later */
        return true;
    return !json_object_set_new(first, "text", json_sprintf("%s: %s", word, s));
}

static xd_status take_result(turns *t, const json_t *block, const char *where, xd_err *err)
{
    char param[WHERE_CHARS + 16];
    const json_t *id = NULL, *content = json_object_get(block, "content"), *failed = json_object_get(block, "is_error");
    xd_status st = translate_need_string(block, where, "tool_use_id", &id, err);
    if (st)
        return st;
    snprintf(param, sizeof param, "%s.is_error", where);
    if (!is_absent(failed) && !json_is_boolean(failed))
        return fields_wrong_type(err, param, "a boolean", failed);
    snprintf(param, sizeof param, "%s.tool_use_id", where);
    if (!json_object_get(t->calls, json_string_value(id)))
        return xd_fail_field(err, XD_BAD_REQUEST, param, "invalid_value",
                             "'%s' is '%.200s': no tool_use block before it has this id", param, json_string_value(id));
    json_t *m = json_pack("{s:s, s:O, s:[]}", "role", "tool", "tool_call_id", id, "content");
    if (!finish(t) || json_array_append_new(t->messages, m))
        return translate_no_memory(err);
    json_t *parts = json_object_get(m, "content");
    snprintf(param, sizeof param, "%s.content", where);
    if (!is_absent(content) && (st = read_texts(content, param, parts, err)))
        return st;
    bool ok = (!json_is_true(failed) || say_failed(parts)) && settle_content(m, parts);
    return ok ? XD_OK : translate_no_memory(err);
}

static xd_status take_block(turns *t, const json_t *block, const char *role, const char *where, xd_err *err)
{
    const json_t *type = NULL;
    bool assistant = !strcmp(role, "assistant"), user = !strcmp(role, "user");
    xd_status st = read_type(block, where, &type, err);
    if (st)
        return st;
    if (is_text(type, "text"))
        return turn(t, role) ? add_text(t->content, block, where, err) : translate_no_memory(err);
    if (assistant && is_text(type, "thinking"))
        return take_thought(t, block, where, err);
    if (assistant && is_text(type, "tool_use"))
        return take_call(t, block, where, err);
    if (user && is_text(type, "tool_result"))
        return take_result(t, block, where, err);
    if (is_text(type, "redacted_thinking")) {
        char param[WHERE_CHARS + 8];
        snprintf(param, sizeof param, "%s.type", where);
        return xd_fail_field(err, XD_BAD_REQUEST, param, "unsupported_content",
                             "'%s' is a thought that another server has encrypted: leave the block out", param);
    }
    return unsupported(block, where,
                       assistant ? "text, thinking and tool_use"
                       : user    ? "text and tool_result"
                                 : "text",
                       err);
}

static xd_status take_message(turns *t, const json_t *message, size_t m, xd_err *err)
{
    static const char *const roles[] = {"user", "assistant", "system"};
    char where[WHERE_CHARS];
    const json_t *role, *content = json_object_get(message, "content");
    snprintf(where, sizeof where, "messages[%zu]", m);
    if (!json_is_object(message))
        return fields_wrong_type(err, where, "an object", message);
    xd_status st = translate_need_string(message, where, "role", &role, err);
    if (st)
        return st;
    size_t r = 0;
    while (r < XD_ARRAY_LEN(roles) && !is_text(role, roles[r]))
        r++;
    snprintf(where, sizeof where, "messages[%zu].role", m);
    if (r == XD_ARRAY_LEN(roles))
        return xd_fail_field(err, XD_BAD_REQUEST, where, "invalid_value",
                             "'%s' must be \"user\", \"assistant\" or \"system\"", where);
    snprintf(where, sizeof where, "messages[%zu].content", m);
    bool list = json_is_array(content);
    if (!list || !json_array_size(content))
        return !turn(t, roles[r]) ? translate_no_memory(err)
               : list             ? XD_OK
                                  : read_texts(content, where, t->content, err);
    for (size_t i = 0; !st && i < json_array_size(content); i++) {
        char at[WHERE_CHARS];
        snprintf(at, sizeof at, "messages[%zu].content[%zu]", m, i);
        st = take_block(t, json_array_get(content, i), roles[r], at, err);
    }
    return st;
}

/* As Anthropic says, an answer goes on with what stands last. */
static bool goes_on(const json_t *last)
{
    const json_t *content = json_object_get(last, "content");
    return is_text(json_object_get(last, "role"), "assistant") && !json_object_get(last, "tool_calls") &&
           (json_is_array(content) || json_string_length(content));
}

/* Claude Code's first block is not for the model. It is another in each request, so no prefix would ever be found in the cache. */
static bool is_for_the_server(const json_t *part)
{
    static const char mark[] = "x-anthropic-billing-header:";
    const char *text = json_string_value(json_object_get(part, "text"));
    return text && !strncmp(text, mark, strlen(mark));
}

xd_status messages_read_turns(const json_t *system, const json_t *messages, json_t *chat, xd_err *err)
{
    XD_CLEANUP(turns_clear) turns t = {.messages = json_array(), .calls = json_object()};
    if (json_object_set_new(chat, "messages", t.messages) || !t.calls)
        return translate_no_memory(err);
    if (system && !turn(&t, "system"))
        return translate_no_memory(err);
    xd_status st = system ? read_texts(system, "system", t.content, err) : XD_OK;
    if (!st && json_is_array(system) && is_for_the_server(json_array_get(t.content, 0)))
        json_array_remove(t.content, 0);
    if (!st && !json_array_size(t.content)) { /* "system": [] */
        t.last = NULL;
        json_array_clear(t.messages);
    }
    if (!st && !messages)
        st = fields_wrong_type(err, "messages", "an array", NULL);
    if (!st && !json_array_size(messages))
        st = xd_fail_field(err, XD_BAD_REQUEST, "messages", "invalid_value", "'messages' is empty");
    for (size_t i = 0; !st && i < json_array_size(messages); i++)
        st = take_message(&t, json_array_get(messages, i), i, err);
    if (st)
        return st;
    if (!finish(&t))
        return translate_no_memory(err);
    bool asked = json_object_get(chat, "continue_final_message") || json_object_get(chat, "add_generation_prompt");
    if (asked || !goes_on(json_array_get(t.messages, json_array_size(t.messages) - 1)))
        return XD_OK;
    return json_object_set_new(chat, "continue_final_message", json_true()) ? translate_no_memory(err) : XD_OK;
}
