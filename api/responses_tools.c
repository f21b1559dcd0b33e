/* responses_tools.c - the tools of a request of OpenAI's Responses API, in the words of chat, and their names back.
 *
 * Tools are flat here, and may stand in groups with a name of their own (`namespace`: Codex' agents and MCP servers), which chat does not
 * have and no template shows. A function of a group is given to the model as GROUP__NAME, as vLLM does; what it calls by such a name is told
 * with both names apart, since clients look for the pair. What the server itself would have to run is refused. */
#include "api/responses_priv.h"

#include <stdlib.h>

enum { MAX_NAME = 64 }; /* as tools.c */
#define BETWEEN "__"

json_t *responses_flat_name(const json_t *namespace_, const json_t *name)
{
    if (!json_string_length(namespace_))
        return json_incref((json_t *)(uintptr_t)name);
    return json_sprintf("%s" BETWEEN "%s", json_string_value(namespace_), json_string_value(name));
}

static bool is_key(const char *key)
{
    return !strcmp(key, "name") || !strcmp(key, "description") || !strcmp(key, "parameters") || !strcmp(key, "strict");
}

/* Appends a tool to list. group: the name of its namespace, NULL: it is in none. */
static xd_status read_function(const json_t *tool, const json_t *group, const char *where, json_t *list, xd_err *err)
{
    if (json_is_object(json_object_get(tool, "function")))
        return xd_fail_field(err, XD_BAD_REQUEST, where, "invalid_value",
                             "'%s' has the form of /v1/chat/completions: here name, description, parameters and strict "
                             "stand beside type",
                             where);
    const json_t *name = json_object_get(tool, "name");
    XD_CLEANUP(json_decrefp) json_t *function = json_object();
    const char *key;
    json_t *v;
    json_object_foreach ((json_t *)(uintptr_t)tool, key, v) /* templates show them in the client's order */
        if (is_key(key) && !json_is_null(v) && json_object_set(function, key, v))
            return translate_no_memory(err);
    if (group && json_is_string(name)) {
        if (json_string_length(group) + strlen(BETWEEN) + json_string_length(name) > MAX_NAME)
            return xd_fail_field(err, XD_BAD_REQUEST, where, "invalid_value",
                                 "'%s': the names of the namespace and the function have more than %zu characters "
                                 "together",
                                 where, MAX_NAME - strlen(BETWEEN));
        if (json_object_set_new(function, "name", responses_flat_name(group, name)))
            return translate_no_memory(err);
    }
    json_t *made = json_pack("{s:s, s:O}", "type", "function", "function", function);
    return json_array_append_new(list, made) ? translate_no_memory(err) : XD_OK;
}

static xd_status read_tool(const json_t *tool, const json_t *group, const char *where, json_t *list, xd_err *err);

static xd_status read_namespace(const json_t *tool, const char *where, json_t *list, xd_err *err)
{
    char param[TOOL_PLACE_CHARS + 32];
    const json_t *name, *tools = json_object_get(tool, "tools");
    xd_status st = translate_need_string(tool, where, "name", &name, err);
    if (st)
        return st;
    snprintf(param, sizeof param, "%s.name", where);
    if (!json_string_length(name))
        return xd_fail_field(err, XD_BAD_REQUEST, param, "invalid_value", "'%s' is empty", param);
    snprintf(param, sizeof param, "%s.tools", where);
    if (!json_is_array(tools))
        return fields_wrong_type(err, param, "an array", tools);
    for (size_t i = 0; !st && i < json_array_size(tools); i++) {
        snprintf(param, sizeof param, "%s.tools[%zu]", where, i);
        st = read_tool(json_array_get(tools, i), name, param, list, err);
    }
    return st;
}

static xd_status read_tool(const json_t *tool, const json_t *group, const char *where, json_t *list, xd_err *err)
{
    char param[TOOL_PLACE_CHARS + 48];
    const json_t *type;
    if (!json_is_object(tool))
        return fields_wrong_type(err, where, "an object", tool);
    xd_status st = translate_need_string(tool, where, "type", &type, err);
    if (st)
        return st;
    if (is_text(type, "function"))
        return read_function(tool, group, where, list, err);
    if (is_text(type, "namespace") && !group)
        return read_namespace(tool, where, list, err);
    snprintf(param, sizeof param, "%s.type", where);
    if (is_text(type, "custom"))
        return xd_fail_field(err, XD_BAD_REQUEST, param, "unsupported_value",
                             "'%s' 'custom' is not supported: give a function with one text parameter", param);
    return xd_fail_field(err, XD_BAD_REQUEST, param, "unsupported_value",
                         "'%s' '%.64s' is not supported: the server runs no tools; leave it out, or give a function "
                         "that your program runs",
                         param, json_string_value(type));
}

static xd_status read_own_tool(const json_t *tool, const char *where, json_t *list, xd_err *err)
{
    return read_tool(tool, NULL, where, list, err);
}

xd_status responses_read_tools(const json_t *tools, json_t *chat, xd_err *err)
{
    return translate_tools(tools, read_own_tool, chat, err);
}

xd_status responses_read_tool_choice(const json_t *choice, json_t *chat, xd_err *err)
{
    if (!choice)
        return XD_OK;
    if (!json_is_object(choice)) /* a word, or something that chat says is none */
        return json_object_set(chat, "tool_choice", (json_t *)(uintptr_t)choice) ? translate_no_memory(err) : XD_OK;
    const json_t *type, *name;
    xd_status st = translate_need_string(choice, "tool_choice", "type", &type, err);
    if (st)
        return st;
    if (!is_text(type, "function"))
        return xd_fail_field(err, XD_BAD_REQUEST, "tool_choice.type", "unsupported_value",
                             "'tool_choice.type' '%.64s' is not supported: there are \"none\", \"auto\", \"required\" "
                             "and {\"type\": \"function\", \"name\": ...}",
                             json_string_value(type));
    if ((st = translate_need_string(choice, "tool_choice", "name", &name, err)))
        return st;
    json_t *nested = json_pack("{s:s, s:{s:o}}", "type", "function", "function", "name",
                               responses_flat_name(json_object_get(choice, "namespace"), name));
    return json_object_set_new(chat, "tool_choice", nested) ? translate_no_memory(err) : XD_OK;
}

/* --- back ----------------------------------------------------------------------------------------------------------- */

bool responses_tool_place(const json_t *tools, size_t i, char ret[static TOOL_PLACE_CHARS])
{
    size_t k;
    const json_t *tool;
    json_array_foreach ((json_t *)(uintptr_t)tools, k, tool) {
        bool group = is_text(json_object_get(tool, "type"), "namespace");
        size_t n = group ? json_array_size(json_object_get(tool, "tools")) : 1;
        if (i < n && group)
            snprintf(ret, TOOL_PLACE_CHARS, "tools[%zu].tools[%zu]", k, i);
        else if (i < n)
            snprintf(ret, TOOL_PLACE_CHARS, "tools[%zu]", k);
        if (i < n)
            return true;
        i -= n;
    }
    return false;
}

void responses_find_name(const json_t *tools, const char *flat, size_t len, const json_t **ret_namespace,
                         const json_t **ret_name)
{
    size_t i, k;
    const json_t *tool, *inner;
    const size_t between = strlen(BETWEEN);
    *ret_namespace = *ret_name = NULL;
    json_array_foreach ((json_t *)(uintptr_t)tools, i, tool) {
        const json_t *group = json_object_get(tool, "name");
        size_t n = json_string_length(group);
        if (!is_text(json_object_get(tool, "type"), "namespace") || len < n + between ||
            memcmp(flat, json_string_value(group), n) || memcmp(flat + n, BETWEEN, between))
            continue;
        json_array_foreach (json_object_get(tool, "tools"), k, inner) {
            const json_t *name = json_object_get(inner, "name");
            size_t rest = len - n - between;
            if (json_string_length(name) != rest || memcmp(json_string_value(name), flat + n + between, rest))
                continue;
            *ret_namespace = group;
            *ret_name = name;
            return;
        }
    }
}
