/* tools.c - are the tools of a request what OpenAI calls tools? What a client says of their use: tool_choice.c. */
#include <string.h>

#include "api/generate.h"

enum { MAX_NAME = 64 }; /* OpenAI's */

/* OpenAI's rule, and dots, which other servers' clients use: names stand in notations that have marks of their own. */
static bool is_function_name(const json_t *name)
{
    static const char chars[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.";
    size_t len = json_string_length(name);
    return len && len <= MAX_NAME && strspn(json_string_value(name), chars) == len;
}

static xd_status check_function(const json_t *function, const char *where, xd_err *err)
{
    static const struct {
        const char *name, *what;
        json_type type, other;
    } fields[] = {{"description", "a string", JSON_STRING, JSON_STRING},
                  {"parameters", "an object", JSON_OBJECT, JSON_OBJECT},
                  {"strict", "a boolean", JSON_TRUE, JSON_FALSE}};
    char param[128];
    const json_t *name = json_object_get(function, "name");
    snprintf(param, sizeof param, "%s.name", where);
    if (!json_is_string(name))
        return fields_wrong_type(err, param, "a string", name);
    if (!is_function_name(name))
        return gen_bad_value(err, param, "'%s' must be 1 to %d letters, digits, '_', '-' and '.'", param, MAX_NAME);
    for (size_t i = 0; i < XD_ARRAY_LEN(fields); i++) {
        const json_t *v = json_object_get(function, fields[i].name);
        snprintf(param, sizeof param, "%s.%s", where, fields[i].name);
        if (v && !json_is_null(v) && json_typeof(v) != fields[i].type && json_typeof(v) != fields[i].other)
            return fields_wrong_type(err, param, fields[i].what, v);
    }
    return XD_OK;
}

static xd_status check_tool(const json_t *tool, const char *where, json_t *names, xd_err *err)
{
    char param[80];
    if (!json_is_object(tool))
        return fields_wrong_type(err, where, "an object", tool);
    const json_t *type = json_object_get(tool, "type"), *function = json_object_get(tool, "function");
    if (type && !(json_is_string(type) && !strcmp(json_string_value(type), "function"))) {
        snprintf(param, sizeof param, "%s.type", where);
        return gen_bad_value(err, param, "'%s' must be \"function\": there are no other tools here", param);
    }
    snprintf(param, sizeof param, "%s.function", where);
    if (!json_is_object(function))
        return fields_wrong_type(err, param, "an object", function);
    xd_status st = check_function(function, param, err);
    if (st)
        return st;
    const char *name = json_string_value(json_object_get(function, "name"));
    snprintf(param, sizeof param, "%s.function.name", where);
    if (json_object_get(names, name))
        return gen_bad_value(err, param, "'%s' is '%s', as another tool's is", param, name);
    return json_object_set_new(names, name, json_true()) ? xd_fail(err, XD_NOMEM, 0, "out of memory for the tools")
                                                         : XD_OK;
}

xd_status gen_check_tools(const json_t *tools, xd_err *err)
{
    json_t *names = json_object(), *tool;
    xd_status st = names ? XD_OK : xd_fail(err, XD_NOMEM, 0, "out of memory for the tools");
    for (size_t i = 0; !st && (tool = json_array_get(tools, i)); i++) {
        char where[32];
        snprintf(where, sizeof where, "tools[%zu]", i);
        st = check_tool(tool, where, names, err);
    }
    json_decref(names);
    return st;
}
