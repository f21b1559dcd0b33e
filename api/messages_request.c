/* messages_request.c - a request of Anthropic's Messages API, in the words of chat.
 *
 * A body becomes the chat body that means the same, and everything behind it (limits, templates, grammars) is chat's; fields that both have
 * go through as they are. Tools that the server would have to run are refused here. Faults that are found further down get this API's names
 * at the end: messages_name_fault(). The conversation itself: messages_turns.c. */
#include "api/messages.h"

#include "api/generate.h"
#include "api/translate.h"

typedef struct request {
    const json_t *messages, *metadata, *output_config, *stop_sequences, *system, *thinking, *thread, *tool_choice,
        *tools, *context_management, *cache_control;
    const char *service_tier, *speed, *inference_geo;
    int64_t max_tokens;
} request;

enum { MESSAGES = 1 };
#define AT(f)          offsetof(request, f)
#define INT_MAX_TOKENS 2147483647.0

/* What chat does not have, has in another form, or has under another name; the rest is chat's table. */
/* clang-format off */
static const field fields[] = {
    /* name                     kind               where     destination             min max             why refused */
    {"cache_control",           FIELD_OBJECT,      MESSAGES, AT(cache_control),      0,  0,              NULL},
    {"compaction",              FIELD_REFUSED,     MESSAGES, 0,                      0,  0,              "ask for a summary in messages"},
    {"container",               FIELD_REFUSED,     MESSAGES, 0,                      0,  0,              "the server runs no tools"},
    {"context_management",      FIELD_OBJECT,      MESSAGES, AT(context_management), 0,  0,              NULL},
    {"echo",                    FIELD_REFUSED,     MESSAGES, 0,                      0,  0,              "only /v1/completions echoes"},
    {"function_call",           FIELD_REFUSED,     MESSAGES, 0,                      0,  0,              "use tool_choice"},
    {"functions",               FIELD_REFUSED,     MESSAGES, 0,                      0,  0,              "use tools"},
    {"inference_geo",           FIELD_STRING,      MESSAGES, AT(inference_geo),      0,  0,              NULL},
    {"logprobs",                FIELD_REFUSED,     MESSAGES, 0,                      0,  0,              "use /v1/chat/completions"},
    {"max_completion_tokens",   FIELD_OTHER,       MESSAGES, 0,                      -1, -1,             "max_tokens"},
    {"max_tokens",              FIELD_INT,         MESSAGES, AT(max_tokens),         1,  INT_MAX_TOKENS, NULL},
    {"mcp_servers",             FIELD_REFUSED,     MESSAGES, 0,                      0,  0,              "the server runs no tools"},
    {"messages",                FIELD_ARRAY,       MESSAGES, AT(messages),           0,  0,              NULL},
    {"metadata",                FIELD_OBJECT,      MESSAGES, AT(metadata),           0,  0,              NULL},
    {"n",                       FIELD_OFF,         MESSAGES, 0,                      1,  1,              "a message is one answer; /v1/chat/completions has n"},
    {"output_config",           FIELD_OBJECT,      MESSAGES, AT(output_config),      0,  0,              NULL},
    {"parallel_tool_calls",     FIELD_REFUSED,     MESSAGES, 0,                      0,  0,              "use tool_choice.disable_parallel_tool_use"},
    {"reasoning_effort",        FIELD_REFUSED,     MESSAGES, 0,                      0,  0,              "use output_config.effort"},
    {"response_format",         FIELD_OFF,         MESSAGES, 0,                      0,  0,              "use output_config.format"},
    {"return_token_ids",        FIELD_REFUSED,     MESSAGES, 0,                      0,  0,              "use /v1/chat/completions"},
    {"service_tier",            FIELD_STRING,      MESSAGES, AT(service_tier),       0,  0,              NULL},
    {"speed",                   FIELD_STRING,      MESSAGES, AT(speed),              0,  0,              NULL},
    {"stop",                    FIELD_OTHER,       MESSAGES, 0,                      0,  0,              "stop_sequences"},
    {"stop_sequences",          FIELD_ARRAY,       MESSAGES, AT(stop_sequences),     0,  0,              NULL},
    {"stream_options",          FIELD_OFF,         MESSAGES, 0,                      0,  0,              "a stream always tells its usage"},
    {"system",                  FIELD_ANY,         MESSAGES, AT(system),             0,  0,              NULL},
    {"thinking",                FIELD_OBJECT,      MESSAGES, AT(thinking),           0,  0,              NULL},
    {"thread",                  FIELD_ANY,         MESSAGES, AT(thread),             0,  0,              NULL},
    {"timings",                 FIELD_REFUSED,     MESSAGES, 0,                      0,  0,              "use /v1/chat/completions"},
    {"timings_per_token",       FIELD_REFUSED,     MESSAGES, 0,                      0,  0,              "use /v1/chat/completions"},
    {"tool_choice",             FIELD_OBJECT,      MESSAGES, AT(tool_choice),        0,  0,              NULL},
    {"tools",                   FIELD_EXACT_ARRAY, MESSAGES, AT(tools),              0,  0,              NULL},
    {"top_logprobs",            FIELD_REFUSED,     MESSAGES, 0,                      0,  0,              "use /v1/chat/completions"},
};
/* clang-format on */

static xd_status read_tool(const json_t *tool, const char *where, json_t *list, xd_err *err)
{
    static const char *const keys[][2] = {
        {"name", "name"}, {"description", "description"}, {"input_schema", "parameters"}, {"strict", "strict"}};
    char param[48];
    if (!json_is_object(tool))
        return fields_wrong_type(err, where, "an object", tool);
    const json_t *type = json_object_get(tool, "type"), *schema = json_object_get(tool, "input_schema");
    snprintf(param, sizeof param, "%s.type", where);
    if (!is_absent(type) && !json_is_string(type))
        return fields_wrong_type(err, param, "a string", type);
    if (!is_absent(type) && !is_text(type, "custom"))
        return xd_fail_field(err, XD_BAD_REQUEST, param, "unsupported_value",
                             "'%s' '%.64s' is not supported: the server runs no tools and knows none by its type; give "
                             "name, description and input_schema of one that your program runs",
                             param, json_string_value(type));
    snprintf(param, sizeof param, "%s.input_schema", where);
    if (!json_is_object(schema))
        return fields_wrong_type(err, param, "an object", schema);
    XD_CLEANUP(json_decrefp) json_t *function = json_object();
    for (size_t i = 0; i < XD_ARRAY_LEN(keys); i++) {
        json_t *v = json_object_get(tool, keys[i][0]);
        if (!is_absent(v) && json_object_set(function, keys[i][1], v))
            return translate_no_memory(err);
    }
    json_t *made = json_pack("{s:s, s:O}", "type", "function", "function", function);
    return json_array_append_new(list, made) ? translate_no_memory(err) : XD_OK;
}

static xd_status read_tool_choice(const json_t *choice, json_t *chat, xd_err *err)
{
    static const char *const words[][2] = {{"auto", "auto"}, {"any", "required"}, {"none", "none"}};
    if (!choice)
        return XD_OK;
    const json_t *type, *name, *one = json_object_get(choice, "disable_parallel_tool_use");
    xd_status st = translate_need_string(choice, "tool_choice", "type", &type, err);
    if (st)
        return st;
    if (!is_absent(one) && !json_is_boolean(one))
        return fields_wrong_type(err, "tool_choice.disable_parallel_tool_use", "a boolean", one);
    if (json_is_true(one) && json_object_set_new(chat, "parallel_tool_calls", json_false()))
        return translate_no_memory(err);
    json_t *made = NULL;
    if (is_text(type, "tool")) {
        if ((st = translate_need_string(choice, "tool_choice", "name", &name, err)))
            return st;
        made = json_pack("{s:s, s:{s:O}}", "type", "function", "function", "name", name);
        return json_object_set_new(chat, "tool_choice", made) ? translate_no_memory(err) : XD_OK;
    }
    for (size_t i = 0; i < XD_ARRAY_LEN(words); i++)
        if (is_text(type, words[i][0]))
            return json_object_set_new(chat, "tool_choice", json_string(words[i][1])) ? translate_no_memory(err)
                                                                                      : XD_OK;
    return xd_fail_field(err, XD_BAD_REQUEST, "tool_choice.type", "invalid_value",
                         "'tool_choice.type' must be \"auto\", \"any\", \"tool\" or \"none\"");
}

/* budget_tokens is there because Anthropic's clients must say it; it is a wish there too, and a thought has no limit of its own here. */
static xd_status read_thinking(const json_t *thinking, json_t *chat, xd_err *err)
{
    if (!thinking)
        return XD_OK;
    const json_t *type, *budget = json_object_get(thinking, "budget_tokens"),
                        *display = json_object_get(thinking, "display");
    xd_status st = translate_need_string(thinking, "thinking", "type", &type, err);
    if (st)
        return st;
    if (!is_absent(budget) && !json_is_integer(budget))
        return fields_wrong_type(err, "thinking.budget_tokens", "an integer", budget);
    if (!is_absent(display) && !json_is_string(display))
        return fields_wrong_type(err, "thinking.display", "a string", display);
    if (!is_absent(display) && !is_text(display, "summarized") && !is_text(display, "omitted"))
        return xd_fail_field(err, XD_BAD_REQUEST, "thinking.display", "invalid_value",
                             "'thinking.display' must be \"summarized\" or \"omitted\"");
    if (is_text(display, "omitted") && json_object_set_new(chat, "include_reasoning", json_false()))
        return translate_no_memory(err);
    return json_object_set_new(chat, "thinking", json_pack("{s:O}", "type", type)) ? translate_no_memory(err) : XD_OK;
}

static xd_status read_output_config(const json_t *output, json_t *chat, xd_err *err)
{
    json_t *effort = json_object_get(output, "effort"), *format = json_object_get(output, "format");
    if (!is_absent(effort) && !json_is_string(effort))
        return fields_wrong_type(err, "output_config.effort", "a string", effort);
    if (!is_absent(effort) && json_object_set(chat, "reasoning_effort", effort))
        return translate_no_memory(err);
    if (is_absent(format))
        return XD_OK;
    if (!json_is_object(format))
        return fields_wrong_type(err, "output_config.format", "an object", format);
    const json_t *type;
    xd_status st = translate_need_string(format, "output_config.format", "type", &type, err);
    if (st)
        return st;
    if (!is_text(type, "json_schema"))
        return xd_fail_field(err, XD_BAD_REQUEST, "output_config.format.type", "invalid_value",
                             "'output_config.format.type' must be \"json_schema\"");
    json_t *schema = json_object_get(format, "schema");
    if (!json_is_object(schema))
        return fields_wrong_type(err, "output_config.format.schema", "an object", schema);
    json_t *wanted = json_pack("{s:O, s:{s:s, s:O}}", "type", type, "json_schema", "name", "output", "schema", schema);
    return json_object_set_new(chat, "response_format", wanted) ? translate_no_memory(err) : XD_OK;
}

xd_status messages_to_chat(const json_t *body, json_t **ret, xd_err *err)
{
    request r = {.max_tokens = FIELD_UNSET_INT};
    XD_CLEANUP(json_decrefp) json_t *chat = json_object();
    xd_status st = fields_read(body, fields, XD_ARRAY_LEN(fields), MESSAGES, NULL, &r, err);
    if (!st &&
        r.thread) /* Anthropic's tool runner asks for one, and on this error sends the conversation with each request */
        st =
            xd_fail_field(err, XD_BAD_REQUEST, "thread", API_NO_THREADS,
                          "'thread' is not supported: nothing is stored here; send the whole conversation in messages");
    if (!st)
        st = translate_rest(body, fields, XD_ARRAY_LEN(fields), chat, err);
    if (!st)
        st = messages_read_turns(r.system, r.messages, chat, err);
    if (!st)
        st = translate_tools(r.tools, read_tool, chat, err);
    if (!st)
        st = read_tool_choice(r.tool_choice, chat, err);
    if (!st)
        st = read_thinking(r.thinking, chat, err);
    if (!st)
        st = read_output_config(r.output_config, chat, err);
    if (!st && r.stop_sequences && json_object_set(chat, "stop", (json_t *)(uintptr_t)r.stop_sequences))
        st = translate_no_memory(err);
    if (!st && r.max_tokens != FIELD_UNSET_INT && json_object_set_new(chat, "max_tokens", json_integer(r.max_tokens)))
        st = translate_no_memory(err);
    if (!st)
        *ret = XD_TAKE(chat);
    return st;
}

/* --- faults --------------------------------------------------------------------------------------------------------- */

static size_t rename_at(const json_t *body, const char *text, xd_buf *out)
{
    (void)body;
    static const char *const names[][2] = {{"response_format.json_schema", "output_config.format"},
                                           {"response_format", "output_config.format"},
                                           {"reasoning_effort", "output_config.effort"},
                                           {"include_reasoning", "thinking.display"},
                                           {"prompt", "messages"},
                                           {"continue_final_message", "messages"},
                                           {"stop", "stop_sequences"}};
    static const char *const members[][2] = {{"parameters", "input_schema"}};
    static const char tools[] = "tools[", function[] = "].function.";
    if (strncmp(text, tools, strlen(tools)))
        return translate_name_by(names, XD_ARRAY_LEN(names), text, out);
    size_t n = strlen(tools) + strspn(text + strlen(tools), "0123456789");
    if (strncmp(text + n, function, strlen(function)))
        return 0;
    xd_buf_append(out, text, n);
    xd_buf_puts(out, "].");
    n += strlen(function);
    return n + translate_name_by(members, XD_ARRAY_LEN(members), text + n, out);
}

void messages_name_fault(const json_t *body, xd_err *err)
{
    translate_fault(rename_at, body, err);
    gen_replace_words(err, "continue_final_message", "an answer that goes on with the assistant's last turn");
    if (strcmp(err->code, "context_length_exceeded") != 0)
        return;
    gen_replace_words(err, GEN_CHAT_TEXTS, "system, messages and tools");
    xd_wrap(err, "prompt is too long"); /* Anthropic's words, by which agents know what to do */
}
