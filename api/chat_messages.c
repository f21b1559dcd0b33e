/* chat_messages.c - a request's messages in the form that a template takes, as chat.h says.
 *
 * What a client may send is checked here; what the template can take was learned by chat.c. The request's own JSON is not changed. */
#include <string.h>
#include <xxhash.h>

#include "api/chat_priv.h"
#include "api/fields.h"

enum { SHORT_ID_CHARS = 9 };

const char *const chat_role_names[N_ROLES] = {"user", "system", "assistant", "tool"};

/* What an assistant's message says beside plain text, in the forms that clients send back: parts that hold a thought become
 * reasoning_content, a refusal and the text parts of OpenAI's newer API become text. */
static xd_status plain_parts(json_t *message, const json_t *parts, xd_err *err)
{
    XD_CLEANUP(xd_buf_free) xd_buf thought = {0};
    json_t *kept = json_array(), *part;
    bool ok = kept != NULL;
    size_t i;
    json_array_foreach ((json_t *)(uintptr_t)parts, i, part) {
        json_t *type = json_object_get(part, "type");
        const char *name = json_is_string(type) ? json_string_value(type) : "";
        const json_t *thinking = !strcmp(name, "thinking") ? json_object_get(part, "thinking") : NULL;
        if (json_is_string(thinking)) {
            xd_buf_puts(&thought, thought.len ? "\n" : "");
            xd_buf_append(&thought, json_string_value(thinking), json_string_length(thinking));
            continue;
        }
        json_t *text = !strcmp(name, "refusal")       ? json_object_get(part, "refusal")
                       : !strcmp(name, "output_text") ? json_object_get(part, "text")
                                                      : NULL;
        bool is_text = json_is_string(text);
        ok = ok && !json_array_append_new(kept, is_text ? json_pack("{s:s, s:O}", "type", "text", "text", text)
                                                        : json_incref(part));
    }
    if (thought.len && !json_object_get(message, "reasoning_content"))
        ok = ok && !json_object_set_new(message, "reasoning_content", json_stringn(thought.data, thought.len));
    if (!ok || thought.failed) {
        json_decref(kept);
        return no_memory(err);
    }
    return json_object_set_new(message, "content", kept) ? no_memory(err) : XD_OK; /* frees parts */
}

/* Checks a list of content parts; joins their texts by newlines into *ret_text (owned) unless it is NULL. */
static xd_status check_parts(const json_t *parts, size_t m, json_t **ret_text, xd_err *err)
{
    XD_CLEANUP(xd_buf_free) xd_buf text = {0};
    char param[96];
    size_t i;
    json_t *part;
    json_array_foreach ((json_t *)(uintptr_t)parts, i, part) {
        const char *type = json_string_value(json_object_get(part, "type"));
        const json_t *value = json_object_get(part, "text");
        snprintf(param, sizeof param, "messages[%zu].content[%zu]", m, i);
        if (!json_is_object(part))
            return fields_wrong_type(err, param, "an object", part);
        snprintf(param, sizeof param, "messages[%zu].content[%zu].%s", m, i,
                 type && !strcmp(type, "text") ? "text" : "type");
        if (!type)
            return fields_wrong_type(err, param, "a string", json_object_get(part, "type"));
        if (strcmp(type, "text"))
            return xd_fail_field(err, XD_BAD_REQUEST, param, "unsupported_content",
                                 "%s '%.64s' is not supported: only 'text' is", param, type);
        if (!json_is_string(value))
            return fields_wrong_type(err, param, "a string", value);
        if (i)
            xd_buf_putc(&text, '\n');
        xd_buf_append(&text, json_string_value(value), json_string_length(value));
    }
    if (text.failed)
        return no_memory(err);
    if (ret_text) {
        *ret_text = json_stringn(text.data ? text.data : "", text.len);
        if (!*ret_text)
            return no_memory(err);
    }
    return XD_OK;
}

static bool takes_list(const chat_template *t, const json_t *message)
{
    const char *role = json_string_value(json_object_get(message, "role"));
    for (int i = 0; i < N_ROLES; i++)
        if (!strcmp(role, chat_role_names[i]))
            return t->list_works[i];
    return t->list_works[ROLE_SYSTEM] && t->list_works[ROLE_USER]; /* a role that only some templates know */
}

static xd_status prepare_content(const chat_template *t, json_t *message, size_t m, xd_err *err)
{
    json_t *content = json_object_get(message, "content");
    char param[96];
    snprintf(param, sizeof param, "messages[%zu].content", m);
    bool calls_alone = json_is_string(content) && !json_string_length(content) &&
                       json_array_size(json_object_get(message, "tool_calls"));
    if (!content || json_is_null(content) || (calls_alone && !t->null_fails)) {
        bool calls = json_array_size(json_object_get(message, "tool_calls"));
        json_t *v = t->null_fails || !calls ? json_string("") : json_null();
        return json_object_set_new(message, "content", v) ? no_memory(err) : XD_OK;
    }
    if (json_is_array(content)) {
        json_t *text = NULL;
        xd_status st = check_parts(content, m, takes_list(t, message) ? NULL : &text, err);
        if (st)
            return st;
        return text && json_object_set_new(message, "content", text) ? no_memory(err) : XD_OK;
    }
    if (!json_is_string(content)) {
        bool may_be_null = !strcmp(json_string_value(json_object_get(message, "role")), "assistant");
        return fields_wrong_type(
            err, param, may_be_null ? "a string, a list of parts or null" : "a string or a list of parts", content);
    }
    if (!t->text_fails)
        return XD_OK;
    json_t *parts = json_pack("[{s:s, s:O}]", "type", "text", "text", content);
    return json_object_set_new(message, "content", parts) ? no_memory(err) : XD_OK;
}

/* As the template's own tojson would: jansson writes 0.1 with 17 digits. */
static void put_json(xd_buf *out, const json_t *v)
{
    const char *key;
    size_t i;
    json_t *member;
    if (json_is_object(v)) {
        const char *before = "{";
        json_object_foreach ((json_t *)(uintptr_t)v, key, member) {
            XD_CLEANUP(json_decrefp) json_t *name = json_string(key);
            xd_buf_puts(out, before);
            put_json(out, name);
            xd_buf_puts(out, ": ");
            put_json(out, member);
            before = ", ";
        }
        xd_buf_puts(out, *before == '{' ? "{}" : "}");
    } else if (json_is_array(v)) {
        json_array_foreach ((json_t *)(uintptr_t)v, i, member) {
            xd_buf_puts(out, i ? ", " : "[");
            put_json(out, member);
        }
        xd_buf_puts(out, json_array_size(v) ? "]" : "[]");
    } else if (json_is_real(v)) {
        char text[32];
        xd_buf_append(out, text, jx_float_repr(text, json_real_value(v)));
    } else {
        char *text = json_dumps(v, JSON_ENCODE_ANY);
        out->failed |= !text;
        xd_buf_puts(out, text ? text : "");
        free(text);
    }
}

static xd_status check_name(const json_t *v, const char *param, xd_err *err)
{
    if (!json_is_string(v))
        return fields_wrong_type(err, param, "a string", v);
    return json_string_length(v) ? XD_OK
                                 : xd_fail_field(err, XD_BAD_REQUEST, param, "invalid_value", "'%s' is empty", param);
}

static xd_status prepare_tool_calls(const chat_template *t, json_t *message, size_t m, xd_err *err)
{
    json_t *calls = json_object_get(message, "tool_calls"), *call;
    char param[96];
    snprintf(param, sizeof param, "messages[%zu].tool_calls", m);
    if (!calls || json_is_null(calls))
        return XD_OK;
    if (!json_is_array(calls))
        return fields_wrong_type(err, param, "an array", calls);
    size_t i;
    json_array_foreach (calls, i, call) {
        json_t *function = json_object_get(call, "function");
        snprintf(param, sizeof param, "messages[%zu].tool_calls[%zu]", m, i);
        if (!json_is_object(call))
            return fields_wrong_type(err, param, "an object", call);
        snprintf(param, sizeof param, "messages[%zu].tool_calls[%zu].function", m, i);
        if (!json_is_object(function))
            return fields_wrong_type(err, param, "an object", function);
        snprintf(param, sizeof param, "messages[%zu].tool_calls[%zu].function.name", m, i);
        xd_status st = check_name(json_object_get(function, "name"), param, err);
        if (st)
            return st;
        json_t *arguments = json_object_get(function, "arguments"), *parsed = NULL;
        if (!arguments || json_is_null(arguments)) {
            /* Some servers leave out what is empty; templates fail on it, or print a word. */
            parsed = t->args_as_text ? json_string("{}") : json_object();
            if (!parsed)
                return no_memory(err);
        } else if (t->args_as_text && json_is_object(arguments)) {
            XD_CLEANUP(xd_buf_free) xd_buf text = {0};
            put_json(&text, arguments);
            parsed = text.failed ? NULL : json_stringn(text.data, text.len);
            if (!parsed)
                return no_memory(err);
        } else if (!t->args_as_text && json_is_string(arguments)) {
            /* What is not JSON stays as it is: models write such things, and the conversation should go on. */
            size_t len = json_string_length(arguments);
            parsed = len ? json_loadb(json_string_value(arguments), len, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL)
                         : json_object();
        }
        if (parsed && json_object_set_new(function, "arguments", parsed))
            return no_memory(err);
    }
    return XD_OK;
}

/* Clients send null or an empty list for what is not there ("tool_calls": null, []); templates ask whether a key is defined. */
static void drop_nulls(json_t *message)
{
    const char *key;
    json_t *value;
    void *next;
    json_object_foreach_safe(message, next, key, value)
    {
        bool no_calls = json_is_array(value) && !json_array_size(value) && !strcmp(key, "tool_calls");
        if (no_calls || (json_is_null(value) && strcmp(key, "content")))
            json_object_del(message, key);
    }
}

/* What a model thought has three names, and each is the one that some template reads. */
static xd_status alias_reasoning(json_t *message, xd_err *err)
{
    static const char *const names[] = {"reasoning_content", "thinking", "reasoning"};
    json_t *found = NULL;
    for (size_t i = 0; i < XD_ARRAY_LEN(names) && !found; i++)
        found = json_object_get(message, names[i]);
    for (size_t i = 0; i < XD_ARRAY_LEN(names) && found; i++)
        if (!json_object_get(message, names[i]) && json_object_set(message, names[i], found))
            return no_memory(err);
    return XD_OK;
}

/* gpt-oss's template has one message for what comes before a call, a thought, and refuses two texts for it: an answer of ours may have both. */
static xd_status join_before_call(json_t *message, xd_err *err)
{
    const json_t *thought = json_object_get(message, "thinking"), *content = json_object_get(message, "content");
    if (!json_array_size(json_object_get(message, "tool_calls")) || !json_string_length(thought) ||
        !json_string_length(content))
        return XD_OK;
    json_t *both = json_sprintf("%s\n%s", json_string_value(thought), json_string_value(content));
    if (!both || json_object_set_new(message, "thinking", both) ||
        json_object_set_new(message, "content", json_string("")))
        return no_memory(err);
    return XD_OK;
}

/* OpenAI's first form of tool calls: templates know the second only, and would leave such a message out without a word. */
static xd_status refuse_function_form(const json_t *message, const char *role, size_t m, xd_err *err)
{
    bool is_result = !strcmp(role, "function");
    if (!is_result && !json_object_get(message, "function_call"))
        return XD_OK;
    char param[96];
    snprintf(param, sizeof param, "messages[%zu].%s", m, is_result ? "role" : "function_call");
    return xd_fail_field(err, XD_BAD_REQUEST, param, "unsupported_value",
                         "%s is of the older form of tool calls: use tool_calls, and role 'tool' for results", param);
}

static xd_status prepare_assistant(json_t *message, xd_err *err)
{
    json_t *content = json_object_get(message, "content"), *refusal = json_object_get(message, "refusal");
    if (json_is_array(content))
        return plain_parts(message, content, err);
    if ((!content || json_is_null(content)) && json_is_string(refusal))
        return json_object_set(message, "content", refusal) ? no_memory(err) : XD_OK;
    return XD_OK;
}

static xd_status prepare_message(const chat_template *t, json_t *message, size_t m, xd_err *err)
{
    char param[96];
    snprintf(param, sizeof param, "messages[%zu]", m);
    if (!json_is_object(message))
        return fields_wrong_type(err, param, "an object", message);
    const char *role = json_string_value(json_object_get(message, "role"));
    snprintf(param, sizeof param, "messages[%zu].role", m);
    xd_status st = check_name(json_object_get(message, "role"), param, err);
    if (st)
        return st;
    const json_t *content = json_object_get(message, "content");
    if (strcmp(role, "assistant") && (!content || json_is_null(content))) {
        snprintf(param, sizeof param, "messages[%zu].content", m);
        return xd_fail_field(err, XD_BAD_REQUEST, param, "missing_required_parameter",
                             "'%s' is missing: only an assistant's message may have none", param);
    }
    drop_nulls(message);
    st = refuse_function_form(message, role, m, err);
    if (!st && !strcmp(role, "assistant"))
        st = prepare_assistant(message, err);
    bool rename = !strcmp(role, "developer") && !t->developer; /* frees `role` */
    if (!st && rename && json_object_set_new(message, "role", json_string("system")))
        return no_memory(err);
    if (!st)
        st = alias_reasoning(message, err);
    if (!st)
        st = prepare_content(t, message, m, err);
    if (!st && t->channels)
        st = join_before_call(message, err);
    return st ? st : prepare_tool_calls(t, message, m, err);
}

/* Ids that another server made: what names a call and its result goes on naming both. */
static xd_status shorten_id(json_t *holder, const char *key, xd_err *err)
{
    static const char chars[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    const json_t *id = json_object_get(holder, key);
    size_t len = json_string_length(id), plain = id && len ? strspn(json_string_value(id), chars) : 0;
    if (!json_is_string(id) || (len == SHORT_ID_CHARS && plain == len))
        return XD_OK;
    uint64_t z = XXH3_64bits(json_string_value(id), len);
    char made[SHORT_ID_CHARS];
    for (size_t i = 0; i < SHORT_ID_CHARS; i++, z /= sizeof chars - 1)
        made[i] = chars[z % (sizeof chars - 1)];
    return json_object_set_new(holder, key, json_stringn(made, sizeof made)) ? no_memory(err) : XD_OK;
}

static xd_status shorten_ids(json_t *message, xd_err *err)
{
    xd_status st = shorten_id(message, "tool_call_id", err);
    size_t i;
    json_t *call;
    json_array_foreach (json_object_get(message, "tool_calls"), i, call)
        st = st ? st : shorten_id(call, "id", err);
    return st;
}

enum { MAX_LOOK_BACK = 64 }; /* messages: results follow their call */

/* Gives a tool's result the name of the function that was called. */
static xd_status name_result(json_t *messages, size_t m, xd_err *err)
{
    json_t *result = json_array_get(messages, m), *id = json_object_get(result, "tool_call_id");
    const char *role = json_string_value(json_object_get(result, "role"));
    if (strcmp(role, "tool") || json_object_get(result, "name") || !id)
        return XD_OK;
    for (size_t back = 1; back <= m && back <= MAX_LOOK_BACK; back++) {
        json_t *calls = json_object_get(json_array_get(messages, m - back), "tool_calls"), *call;
        size_t i;
        json_array_foreach (calls, i, call) {
            if (!json_equal(json_object_get(call, "id"), id))
                continue;
            json_t *name = json_object_get(json_object_get(call, "function"), "name");
            return name && json_object_set(result, "name", name) ? no_memory(err) : XD_OK;
        }
    }
    return XD_OK;
}

xd_status chat_prepare_messages(const chat_template *t, const json_t *messages, json_t **ret, xd_err *err)
{
    if (!json_is_array(messages) || !json_array_size(messages))
        return xd_fail_field(err, XD_BAD_REQUEST, "messages", "invalid_type",
                             "'messages' must be an array that is not empty");
    XD_CLEANUP(jsonp) json_t *copy = json_deep_copy(messages);
    if (!copy)
        return no_memory(err);
    for (size_t i = 0; i < json_array_size(copy); i++) {
        xd_status st = prepare_message(t, json_array_get(copy, i), i, err);
        if (!st && t->short_ids)
            st = shorten_ids(json_array_get(copy, i), err);
        if (!st && t->names_results)
            st = name_result(copy, i, err);
        if (st)
            return st;
    }
    *ret = XD_TAKE(copy);
    return XD_OK;
}
