/* responses_request.c - a request of OpenAI's Responses API, in the words of chat.
 *
 * /v1/responses has names of its own for what chat has too: `input` is a list of items where chat has messages, tools and their choice are
 * flat, the form of the answer is `text.format`. A body becomes the chat body that means the same, and everything behind it (limits,
 * templates, grammars) is chat's; fields that both have go through as they are. What needs a server that stores answers or runs tools is
 * refused here, with what to do instead. Faults that are found further down get this API's names at the end: responses_name_fault().
 *
 * An answer of a model is several items (a thought, text, calls) and one message of chat: items of the assistant that stand together
 * become one message again. */
#include <string.h>

#include "api/generate.h"
#include "api/responses_priv.h"

typedef struct request {
    const json_t *input, *text, *include, *metadata, *tools, *tool_choice, *reasoning, *stream_options;
    const char *instructions, *truncation, *safety_identifier, *prompt_cache_key, *service_tier;
    int64_t max_output_tokens, max_tool_calls, top_logprobs;
    bool store;
} request;

enum { RESPONSES = 1, MAX_TOP_LOGPROBS = 20 };
#define AT(f)          offsetof(request, f)
#define INT_MAX_TOKENS 2147483647.0

/* What chat does not have, has in another form, or has under another name; the rest is chat's table. */
/* clang-format off */
static const field fields[] = {
    /* name                     kind               where      destination            min max             why refused */
    {"background",              FIELD_REFUSED,     RESPONSES, 0,                     0,  0,              "nothing is stored here for later; use stream"},
    {"context_management",      FIELD_OFF,         RESPONSES, 0,                     0,  0,              "a conversation is taken as it is sent"},
    {"conversation",            FIELD_OFF,         RESPONSES, 0,                     0,  0,              "nothing is stored here; send the whole conversation in input"},
    {"echo",                    FIELD_REFUSED,     RESPONSES, 0,                     0,  0,              "only /v1/completions echoes"},
    {"function_call",           FIELD_REFUSED,     RESPONSES, 0,                     0,  0,              "use tool_choice"},
    {"functions",               FIELD_REFUSED,     RESPONSES, 0,                     0,  0,              "use tools"},
    {"include",                 FIELD_ARRAY,       RESPONSES, AT(include),           0,  0,              NULL},
    {"input",                   FIELD_ANY,         RESPONSES, AT(input),             0,  0,              NULL},
    {"instructions",            FIELD_STRING,      RESPONSES, AT(instructions),      0,  0,              NULL},
    {"logprobs",                FIELD_REFUSED,     RESPONSES, 0,                     0,  0,              "use include with \"message.output_text.logprobs\", and top_logprobs"},
    {"max_completion_tokens",   FIELD_OTHER,       RESPONSES, 0,                     -1, -1,             "max_output_tokens"},
    {"max_output_tokens",       FIELD_INT,         RESPONSES, AT(max_output_tokens), -1, INT_MAX_TOKENS, NULL},
    {"max_tokens",              FIELD_OTHER,       RESPONSES, 0,                     -1, -1,             "max_output_tokens"},
    {"max_tool_calls",          FIELD_INT,         RESPONSES, AT(max_tool_calls),    1,  INT_MAX_TOKENS, NULL},
    {"messages",                FIELD_REFUSED,     RESPONSES, 0,                     0,  0,              "use input"},
    {"metadata",                FIELD_OBJECT,      RESPONSES, AT(metadata),          0,  0,              NULL},
    {"n",                       FIELD_OFF,         RESPONSES, 0,                     1,  1,              "a response is one answer; /v1/chat/completions has n"},
    {"previous_response_id",    FIELD_REFUSED,     RESPONSES, 0,                     0,  0,              "nothing is stored here; send the whole conversation in input, with the output of earlier responses"},
    {"prompt",                  FIELD_OFF,         RESPONSES, 0,                     0,  0,              "there are no stored prompts here; use instructions and input"},
    {"prompt_cache_key",        FIELD_STRING,      RESPONSES, AT(prompt_cache_key),  0,  0,              NULL},
    {"reasoning",               FIELD_OBJECT,      RESPONSES, AT(reasoning),         0,  0,              NULL},
    {"reasoning_effort",        FIELD_REFUSED,     RESPONSES, 0,                     0,  0,              "use reasoning.effort"},
    {"response_format",         FIELD_OFF,         RESPONSES, 0,                     0,  0,              "use text.format"},
    {"return_token_ids",        FIELD_REFUSED,     RESPONSES, 0,                     0,  0,              "use /v1/chat/completions"},
    {"safety_identifier",       FIELD_STRING,      RESPONSES, AT(safety_identifier), 0,  0,              NULL},
    {"service_tier",            FIELD_STRING,      RESPONSES, AT(service_tier),      0,  0,              NULL},
    {"store",                   FIELD_BOOL,        RESPONSES, AT(store),             0,  0,              NULL},
    {"stream_options",          FIELD_OBJECT,      RESPONSES, AT(stream_options),    0,  0,              NULL},
    {"text",                    FIELD_OBJECT,      RESPONSES, AT(text),              0,  0,              NULL},
    {"tool_choice",             FIELD_ANY,         RESPONSES, AT(tool_choice),       0,  0,              NULL},
    {"tools",                   FIELD_EXACT_ARRAY, RESPONSES, AT(tools),             0,  0,              NULL},
    {"top_logprobs",            FIELD_INT,         RESPONSES, AT(top_logprobs),      0,  MAX_TOP_LOGPROBS, NULL},
    {"truncation",              FIELD_STRING,      RESPONSES, AT(truncation),        0,  0,              NULL},
};
/* clang-format on */

/* --- items ---------------------------------------------------------------------------------------------------------- */

typedef struct turns {
    json_t *messages;
    json_t *lead; /* what begins the conversation, while what comes may still belong to it; borrowed */
    json_t *open; /* the assistant's message that goes on; borrowed, NULL: none */
    bool said;    /* its last item was text */
    /* What several items say of the last message. It gets them when it is whole: there may be as many items as a body has room for. */
    xd_buf content, thought;
    json_t *calls; /* under the ids of all calls so far: true */
} turns;

static void turns_clear(turns *t)
{
    xd_buf_free(&t->content);
    xd_buf_free(&t->thought);
    json_decref(t->calls);
}

static bool put_text(json_t *message, const char *key, xd_buf *text)
{
    bool ok = !text->len || !json_object_set_new(message, key, json_stringn(text->data, text->len));
    xd_buf_clear(text);
    return ok;
}

static bool finish_message(turns *t)
{
    json_t *last = json_array_get(t->messages, json_array_size(t->messages) - 1);
    return put_text(last, "content", &t->content) && put_text(last, "reasoning_content", &t->thought);
}

/* Takes message; NULL: out of memory. */
static bool add_message(turns *t, json_t *message)
{
    t->lead = t->open = NULL;
    if (finish_message(t))
        return !json_array_append_new(t->messages, message);
    json_decref(message);
    return false;
}

static json_t *assistant(turns *t)
{
    if (!t->open && add_message(t, json_pack("{s:s}", "role", "assistant"))) {
        t->open = json_array_get(t->messages, json_array_size(t->messages) - 1);
        t->said = false;
    }
    return t->open;
}

/* The text of a content part, whose kinds say the same in this API: borrowed. */
static xd_status part_text(const json_t *part, const char *where, const json_t **ret, xd_err *err)
{
    static const char *const kinds[] = {"input_text", "output_text", "text", "summary_text", "reasoning_text"};
    if (!json_is_object(part))
        return fields_wrong_type(err, where, "an object", part);
    const json_t *type;
    xd_status st = translate_need_string(part, where, "type", &type, err);
    if (st)
        return st;
    if (is_text(type, "refusal"))
        return translate_need_string(part, where, "refusal", ret, err);
    for (size_t i = 0; i < XD_ARRAY_LEN(kinds); i++)
        if (is_text(type, kinds[i]))
            return translate_need_string(part, where, "text", ret, err);
    char param[128];
    snprintf(param, sizeof param, "%s.type", where);
    return xd_fail_field(err, XD_BAD_REQUEST, param, "unsupported_content",
                         "'%s' is '%.64s': the model reads and writes text, as input_text, output_text and refusal",
                         param, json_string_value(type));
}

/* Content as chat takes it: one text as it is, several as parts. *ret is owned. */
static xd_status read_content(const json_t *v, const char *where, json_t **ret, xd_err *err)
{
    if (json_is_string(v)) {
        *ret = json_incref((json_t *)(uintptr_t)v);
        return XD_OK;
    }
    if (!json_is_array(v))
        return fields_wrong_type(err, where, "a string or a list of parts", v);
    XD_CLEANUP(json_decrefp) json_t *parts = json_array();
    const json_t *text = NULL;
    for (size_t i = 0; i < json_array_size(v); i++) {
        char param[96];
        snprintf(param, sizeof param, "%s[%zu]", where, i);
        xd_status st = part_text(json_array_get(v, i), param, &text, err);
        if (st)
            return st;
        if (json_array_append_new(parts, json_pack("{s:s, s:O}", "type", "text", "text", text)))
            return translate_no_memory(err);
    }
    *ret = json_array_size(v) > 1 ? json_incref(parts)
           : text                 ? json_incref((json_t *)(uintptr_t)text)
                                  : json_string("");
    return *ret ? XD_OK : translate_no_memory(err);
}

/* Appends the texts of a content, the parts of one by line ends, behind `between` where there is something before. */
static bool append_text(xd_buf *to, const json_t *content, const char *between)
{
    bool parts = json_is_array(content);
    size_t n = parts ? json_array_size(content) : 1;
    for (size_t i = 0; i < n; i++) {
        const json_t *text = parts ? json_object_get(json_array_get(content, i), "text") : content;
        if (to->len || i)
            xd_buf_puts(to, i ? "\n" : between);
        xd_buf_append(to, json_string_value(text), json_string_length(text));
    }
    return !to->failed;
}

/* What is new comes behind what the message began with. */
static bool extend(xd_buf *to, const json_t *first, const json_t *more, const char *between)
{
    return (to->len || append_text(to, first, "")) && append_text(to, more, between);
}

static xd_status take_message(turns *t, const json_t *item, const char *where, xd_err *err)
{
    static const char *const roles[] = {"system", "developer", "user", "assistant"};
    char param[96];
    const json_t *role;
    XD_CLEANUP(json_decrefp) json_t *content = NULL;
    xd_status st = translate_need_string(item, where, "role", &role, err);
    if (st)
        return st;
    size_t r = 0;
    while (r < XD_ARRAY_LEN(roles) && !is_text(role, roles[r]))
        r++;
    snprintf(param, sizeof param, "%s.role", where);
    if (r == XD_ARRAY_LEN(roles))
        return xd_fail_field(err, XD_BAD_REQUEST, param, "invalid_value",
                             "'%s' must be \"system\", \"developer\", \"user\" or \"assistant\"", param);
    snprintf(param, sizeof param, "%s.content", where);
    if ((st = read_content(json_object_get(item, "content"), param, &content, err)))
        return st;
    bool ok = true;
    if (r == 3) {
        if (t->said)
            t->open = NULL; /* two answers */
        json_t *m = assistant(t);
        const json_t *first = json_object_get(m, "content");
        ok = m && (first ? extend(&t->content, first, content, "") : !json_object_set(m, "content", content));
        t->said = true;
    } else if (t->lead && r < 2) {
        /* Many templates have one place for what comes before the conversation, and leave a second message out, or raise. */
        ok = extend(&t->content, json_object_get(t->lead, "content"), content, "\n\n");
    } else {
        ok = add_message(t, json_pack("{s:O, s:O}", "role", role, "content", content));
    }
    return ok ? XD_OK : translate_no_memory(err);
}

static xd_status take_call(turns *t, const json_t *item, const char *where, xd_err *err)
{
    const json_t *id, *name, *arguments;
    xd_status st = translate_need_string(item, where, "call_id", &id, err);
    if (!st)
        st = translate_need_string(item, where, "name", &name, err);
    if (!st)
        st = translate_need_string(item, where, "arguments", &arguments, err);
    if (st)
        return st;
    if (!json_string_length(name)) {
        char param[96];
        snprintf(param, sizeof param, "%s.name", where);
        return xd_fail_field(err, XD_BAD_REQUEST, param, "invalid_value", "'%s' is empty", param);
    }
    json_t *m = assistant(t);
    t->said = false;
    if (m && !json_object_get(m, "tool_calls") && json_object_set_new(m, "tool_calls", json_array()))
        m = NULL;
    json_t *call = json_pack("{s:O, s:s, s:{s:o, s:O}}", "id", id, "type", "function", "function", "name",
                             responses_flat_name(json_object_get(item, "namespace"), name), "arguments", arguments);
    bool ok = !json_array_append_new(json_object_get(m, "tool_calls"), call) &&
              !json_object_set_new(t->calls, json_string_value(id), json_true());
    return ok ? XD_OK : translate_no_memory(err);
}

static xd_status take_result(turns *t, const json_t *item, const char *where, xd_err *err)
{
    char param[96];
    const json_t *id;
    XD_CLEANUP(json_decrefp) json_t *content = NULL;
    xd_status st = translate_need_string(item, where, "call_id", &id, err);
    snprintf(param, sizeof param, "%s.output", where);
    if (!st)
        st = read_content(json_object_get(item, "output"), param, &content, err);
    if (st)
        return st;
    if (!json_object_get(t->calls,
                         json_string_value(id))) /* OpenAI's words; many templates would show it as anything */
        return xd_fail_field(err, XD_BAD_REQUEST, "input", "invalid_value",
                             "No tool call found for function call output with call_id %.200s.", json_string_value(id));
    json_t *m = json_pack("{s:s, s:O, s:O}", "role", "tool", "tool_call_id", id, "content", content);
    return add_message(t, m) ? XD_OK : translate_no_memory(err);
}

/* Our thoughts are in `content`; some clients (the AI SDK) keep and send the summary alone. */
static xd_status take_thought(turns *t, const json_t *item, const char *where, xd_err *err)
{
    static const char *const keys[] = {"content", "summary"};
    char param[96];
    for (size_t i = 0; i < XD_ARRAY_LEN(keys); i++) {
        const json_t *v = json_object_get(item, keys[i]);
        XD_CLEANUP(json_decrefp) json_t *text = NULL;
        snprintf(param, sizeof param, "%s.%s", where, keys[i]);
        if (is_absent(v) || (json_is_array(v) && !json_array_size(v)))
            continue;
        xd_status st = read_content(v, param, &text, err);
        if (st)
            return st;
        json_t *m = assistant(t);
        t->said = false;
        bool ok = m && (json_object_get(m, "reasoning_content") ||
                        !json_object_set_new(m, "reasoning_content", json_string("")));
        return ok && append_text(&t->thought, text, "\n") ? XD_OK : translate_no_memory(err);
    }
    snprintf(param, sizeof param, "%s.encrypted_content", where);
    if (!is_absent(json_object_get(item, "encrypted_content")))
        return xd_fail_field(err, XD_BAD_REQUEST, param, "unsupported_content",
                             "'%s' holds a thought that another server has encrypted: leave the item out", param);
    return XD_OK;
}

static xd_status take_item(turns *t, const json_t *item, const char *where, xd_err *err)
{
    if (!json_is_object(item))
        return fields_wrong_type(err, where, "an object", item);
    const json_t *type = json_object_get(item, "type");
    if (is_absent(type) || is_text(type, "message"))
        return take_message(t, item, where, err);
    if (is_text(type, "function_call"))
        return take_call(t, item, where, err);
    if (is_text(type, "function_call_output"))
        return take_result(t, item, where, err);
    if (is_text(type, "reasoning"))
        return take_thought(t, item, where, err);
    char param[96];
    snprintf(param, sizeof param, "%s.type", where);
    if (!json_is_string(type))
        return fields_wrong_type(err, param, "a string", type);
    if (is_text(type, "item_reference"))
        return xd_fail_field(err, XD_BAD_REQUEST, param, "unsupported_value",
                             "'%s' is 'item_reference': nothing is stored here; send the item itself", param);
    return xd_fail_field(err, XD_BAD_REQUEST, param, "unsupported_value",
                         "'%s' '%.64s' is not supported: there are message, function_call, function_call_output and "
                         "reasoning",
                         param, json_string_value(type));
}

static xd_status read_input(const request *r, json_t *chat, xd_err *err)
{
    XD_CLEANUP(turns_clear) turns t = {.messages = json_array(), .calls = json_object()};
    if (json_object_set_new(chat, "messages", t.messages) || !t.calls)
        return translate_no_memory(err);
    if (r->instructions && *r->instructions) {
        if (!add_message(&t, json_pack("{s:s, s:s}", "role", "system", "content", r->instructions)))
            return translate_no_memory(err);
        t.lead = json_array_get(t.messages, 0);
    }
    if (!r->input)
        return fields_wrong_type(err, "input", "a string or a list of items", NULL);
    if (json_is_string(r->input))
        return add_message(&t, json_pack("{s:s, s:O}", "role", "user", "content", r->input)) ? XD_OK
                                                                                             : translate_no_memory(err);
    if (!json_is_array(r->input))
        return fields_wrong_type(err, "input", "a string or a list of items", r->input);
    size_t i;
    json_t *v;
    json_array_foreach ((json_t *)(uintptr_t)r->input, i, v) {
        char where[40];
        snprintf(where, sizeof where, "input[%zu]", i);
        xd_status st = take_item(&t, v, where, err);
        if (st)
            return st;
    }
    if (!finish_message(&t))
        return translate_no_memory(err);
    if (!json_array_size(t.messages))
        return xd_fail_field(err, XD_BAD_REQUEST, "input", "invalid_value", "'input' is empty");
    json_array_foreach (t.messages, i, v) { /* a thought alone */
        bool bare = !json_object_get(v, "content") && !json_object_get(v, "tool_calls");
        if (bare && json_object_set_new(v, "content", json_string("")))
            return translate_no_memory(err);
    }
    return XD_OK;
}

/* --- the other fields ----------------------------------------------------------------------------------------------- */

static xd_status read_text(const request *r, json_t *chat, xd_err *err)
{
    static const char *const keys[] = {"name", "description", "schema", "strict"};
    const json_t *format = json_object_get(r->text, "format"), *verbosity = json_object_get(r->text, "verbosity");
    /* As OpenAI answers for models that have no such switch. */
    if (!is_absent(verbosity) && !is_text(verbosity, "medium"))
        return xd_fail_field(err, XD_BAD_REQUEST, "text.verbosity", "unsupported_value",
                             "'text.verbosity' other than \"medium\" is not supported: say in instructions how long an "
                             "answer shall be");
    if (is_absent(format))
        return XD_OK;
    if (!json_is_object(format))
        return fields_wrong_type(err, "text.format", "an object", format);
    const json_t *type;
    xd_status st = translate_need_string(format, "text.format", "type", &type, err);
    if (st)
        return st;
    XD_CLEANUP(json_decrefp) json_t *named = json_object();
    for (size_t i = 0; i < XD_ARRAY_LEN(keys); i++) {
        json_t *v = json_object_get(format, keys[i]);
        if (v && json_object_set(named, keys[i], v))
            return translate_no_memory(err);
    }
    json_t *schema = json_object_get(named, "schema"); /* beside "json_object" it says what the object is, as in chat */
    json_t *wanted = is_text(type, "json_schema") ? json_pack("{s:O, s:O}", "type", type, "json_schema", named)
                     : schema                     ? json_pack("{s:O, s:O}", "type", type, "schema", schema)
                                                  : json_pack("{s:O}", "type", type);
    return json_object_set_new(chat, "response_format", wanted) ? translate_no_memory(err) : XD_OK;
}

static xd_status read_include(const request *r, bool *ret_logprobs, xd_err *err)
{
    size_t i;
    json_t *v;
    json_array_foreach ((json_t *)(uintptr_t)r->include, i, v) {
        char param[32];
        snprintf(param, sizeof param, "include[%zu]", i);
        if (!json_is_string(v))
            return fields_wrong_type(err, param, "a string", v);
        *ret_logprobs |= is_text(v, "message.output_text.logprobs");
        /* Asked for by clients that keep the conversation themselves, for thoughts to come back: ours are in the item as they are. */
        if (!is_text(v, "message.output_text.logprobs") && !is_text(v, "reasoning.encrypted_content"))
            return xd_fail_field(err, XD_BAD_REQUEST, param, "unsupported_value",
                                 "'%s' '%.64s' is not supported: there is \"message.output_text.logprobs\"", param,
                                 json_string_value(v));
    }
    return XD_OK;
}

static xd_status read_logprobs(const request *r, json_t *chat, xd_err *err)
{
    bool wanted = false;
    xd_status st = read_include(r, &wanted, err);
    if (st)
        return st;
    if (!wanted && r->top_logprobs > 0)
        return xd_fail_field(err, XD_BAD_REQUEST, "top_logprobs", "invalid_value",
                             "'top_logprobs' needs \"include\": [\"message.output_text.logprobs\"]");
    if (!wanted)
        return XD_OK;
    bool ok = !json_object_set_new(chat, "logprobs", json_true()) &&
              (r->top_logprobs < 0 || !json_object_set_new(chat, "top_logprobs", json_integer(r->top_logprobs)));
    return ok ? XD_OK : translate_no_memory(err);
}

/* No summary is made: what a model thinks is given as it is. The words are checked, since a wrong one is a mistake. */
static xd_status read_reasoning(const request *r, json_t *chat, xd_err *err)
{
    static const char *const keys[] = {"summary", "generate_summary"};
    for (size_t i = 0; i < XD_ARRAY_LEN(keys); i++) {
        const json_t *v = json_object_get(r->reasoning, keys[i]);
        char param[48];
        snprintf(param, sizeof param, "reasoning.%s", keys[i]);
        if (is_absent(v))
            continue;
        if (!json_is_string(v))
            return fields_wrong_type(err, param, "a string", v);
        if (!is_text(v, "auto") && !is_text(v, "concise") && !is_text(v, "detailed") && !is_text(v, "none"))
            return xd_fail_field(err, XD_BAD_REQUEST, param, "invalid_value",
                                 "'%s' must be \"auto\", \"concise\" or \"detailed\"", param);
    }
    if (!r->reasoning)
        return XD_OK;
    return json_object_set(chat, "reasoning", (json_t *)(uintptr_t)r->reasoning) ? translate_no_memory(err) : XD_OK;
}

static xd_status check_others(const request *r, xd_err *err)
{
    const json_t *noise = json_object_get(r->stream_options, "include_obfuscation");
    if (!is_absent(noise) && !json_is_false(noise))
        return xd_fail_field(err, XD_BAD_REQUEST, "stream_options.include_obfuscation", "unsupported_value",
                             "'stream_options.include_obfuscation' is not supported");
    if (r->truncation && strcmp(r->truncation, "disabled") != 0)
        return xd_fail_field(err, XD_BAD_REQUEST, "truncation", "unsupported_value",
                             "'truncation' other than \"disabled\" is not supported: a conversation is never cut "
                             "silently; leave out its oldest items");
    const char *key;
    json_t *v;
    json_object_foreach ((json_t *)(uintptr_t)r->metadata, key, v)
        if (!json_is_string(v))
            return xd_fail_field(err, XD_BAD_REQUEST, "metadata", "invalid_type",
                                 "'metadata' holds %s under '%.64s': its values must be strings", json_kind_name(v),
                                 key);
    return XD_OK;
}

xd_status responses_to_chat(const json_t *body, json_t **ret, xd_err *err)
{
    request r = {.max_output_tokens = FIELD_UNSET_INT, .top_logprobs = -1};
    XD_CLEANUP(json_decrefp) json_t *chat = json_object();
    /* What this table does not know, chat's may: it says what nobody knows. */
    xd_status st = fields_read(body, fields, XD_ARRAY_LEN(fields), RESPONSES, NULL, &r, err);
    if (!st)
        st = translate_rest(body, fields, XD_ARRAY_LEN(fields), chat, err);
    if (!st)
        st = check_others(&r, err);
    if (!st)
        st = read_input(&r, chat, err);
    if (!st)
        st = responses_read_tools(r.tools, chat, err);
    if (!st)
        st = responses_read_tool_choice(r.tool_choice, chat, err);
    if (!st)
        st = read_text(&r, chat, err);
    if (!st)
        st = read_logprobs(&r, chat, err);
    if (!st)
        st = read_reasoning(&r, chat, err);
    if (!st && r.max_output_tokens != FIELD_UNSET_INT &&
        json_object_set_new(chat, "max_completion_tokens", json_integer(r.max_output_tokens)))
        st = translate_no_memory(err);
    if (!st)
        *ret = XD_TAKE(chat);
    return st;
}

/* --- faults --------------------------------------------------------------------------------------------------------- */

/* What chat calls it, and what it is here. */
static const char *const names[][2] = {{"response_format.json_schema", "text.format"},
                                       {"response_format", "text.format"},
                                       {"max_completion_tokens", "max_output_tokens"},
                                       {"max_tokens", "max_output_tokens"},
                                       {"reasoning_effort", "reasoning.effort"},
                                       {"messages", "input"},
                                       {"prompt", "input"}};

static size_t rename_at(const json_t *body, const char *text, xd_buf *out)
{
    static const char tools[] = "tools[", function[] = "].function";
    if (!strncmp(text, tools, strlen(tools))) {
        size_t n = strlen(tools) + strspn(text + strlen(tools), "0123456789");
        char where[TOOL_PLACE_CHARS];
        if (strncmp(text + n, function, strlen(function)) ||
            !responses_tool_place(json_object_get(body, "tools"), strtoul(text + strlen(tools), NULL, 10), where))
            return 0;
        xd_buf_puts(out, where);
        return n + strlen(function);
    }
    return translate_name_by(names, XD_ARRAY_LEN(names), text, out);
}

void responses_name_fault(const json_t *body, xd_err *err)
{
    translate_fault(rename_at, body, err);
    if (!strcmp(err->code, "context_length_exceeded"))
        gen_replace_words(err, GEN_CHAT_TEXTS, "input, instructions and tools");
}
