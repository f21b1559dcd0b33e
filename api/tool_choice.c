/* tool_choice.c - what a client says of the calls that an answer must make, made a grammar.
 *
 * "required" and a named function force one call: the prompt ends with the mark that the model itself would write before it, and the
 * answer is held to {"name", "arguments"} with the arguments' own schema. "auto" beside a schema of the answer gives the model the choice between
 * such a call and what the schema says, both of them as JSON alone. A schema that cannot be held to is loosened to any JSON
 * object, as OpenAI promises no more without `strict`; with `strict` the request is refused. */
#include <string.h>

#include "api/generate.h"
#include "config/log.h"

enum { MAX_TOOLS = 128 }; /* OpenAI's; each is an alternative of the grammar */

static void jsonp(json_t **j)
{
    json_decref(*j);
}

static xd_status wrong(xd_err *err, const char *text)
{
    return xd_fail_field(err, XD_BAD_REQUEST, "tool_choice", "invalid_value", "%s", text);
}

/* Sets p->must_call, and *ret_name where one function is named. */
static xd_status read_choice(gen_params *p, const char **ret_name, bool *ret_none, xd_err *err)
{
    const json_t *c = p->tool_choice, *type = json_object_get(c, "type");
    if (!c)
        return XD_OK;
    if (json_is_string(c)) {
        const char *word = json_string_value(c);
        *ret_none = !strcmp(word, "none");
        p->must_call = !strcmp(word, "required");
        return *ret_none || p->must_call || !strcmp(word, "auto")
                   ? XD_OK
                   : wrong(err, "'tool_choice' must be \"none\", \"auto\", \"required\" or name a function");
    }
    if (!json_is_object(c))
        return xd_fail_field(err, XD_BAD_REQUEST, "tool_choice", "invalid_type",
                             "'tool_choice' must be a string or an object, not %s", json_kind_name(c));
    const char *kind = json_string_value(type);
    if (kind && strcmp(kind, "function"))
        return xd_fail_field(
            err, XD_BAD_REQUEST, "tool_choice.type", "unsupported_value",
            "'tool_choice.type' '%.64s' is not supported: there are \"none\", \"auto\", \"required\" and "
            "{\"type\": \"function\", \"function\": {\"name\": ...}}",
            kind);
    *ret_name = json_string_value(json_object_get(json_object_get(c, "function"), "name"));
    p->must_call = true;
    return kind && *ret_name
               ? XD_OK
               : wrong(err,
                       "'tool_choice' as an object must be {\"type\": \"function\", \"function\": {\"name\": ...}}");
}

xd_status gen_check_tool_choice(const gen_context *ctx, gen_params *p, xd_err *err)
{
    bool none = false, found = false;
    if (p->function_call && !(json_is_string(p->function_call) && !strcmp(json_string_value(p->function_call), "none")))
        return xd_fail_field(err, XD_BAD_REQUEST, "function_call", "unsupported_parameter",
                             "'function_call' is not supported: use tool_choice");
    xd_status st = read_choice(p, &p->call_name, &none, err);
    if (!st)
        st = gen_check_tools(p->tools, err);
    if (st)
        return st;
    if (!json_array_size(p->tools) || none)
        p->tools = NULL;
    if (p->must_call && !p->tools)
        return wrong(err, "'tool_choice' forces a call, but there are no 'tools'");
    size_t i;
    json_t *tool;
    json_array_foreach ((json_t *)(uintptr_t)p->tools, i, tool)
        found |= !p->call_name ||
                 !strcmp(json_string_value(json_object_get(json_object_get(tool, "function"), "name")), p->call_name);
    if (p->must_call && !found)
        return xd_fail_field(err, XD_BAD_REQUEST, "tool_choice", "invalid_value",
                             "'tool_choice' names '%.64s', which is none of the 'tools'", p->call_name);
    if (p->tools && ctx->chat && !chat_set_uses(ctx->chat, "tools"))
        return xd_fail_field(err, XD_BAD_REQUEST, "tools", "unsupported_parameter", GEN_NO_TOOLS);
    return XD_OK;
}

/* ---- the grammar ---- */

static bool is_one_of(const char *key, const char *const *words, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!strcmp(key, words[i]))
            return true;
    return false;
}

/* A schema becomes part of a larger one: what its references call the root is at `to` there. named: v's keys are names that the schema
 * gives, not keywords. */
static bool move_refs(json_t *v, const char *to, bool named)
{
    static const char *const data[] = {"enum", "const", "default", "examples"};
    static const char *const maps[] = {"properties", "$defs", "definitions", "patternProperties", "dependentSchemas"};
    size_t i;
    json_t *item;
    bool ok = true;
    json_array_foreach (v, i, item)
        ok = ok && move_refs(item, to, false);
    const char *key;
    void *next;
    json_object_foreach_safe(v, next, key, item)
    {
        const char *ref = json_string_value(item);
        if (!named && ref && !strcmp(key, "$ref") && ref[0] == '#')
            ok = ok && !json_object_set_new(v, "$ref", json_sprintf("%s%s", to, ref + 1));
        else if (named || !is_one_of(key, data, XD_ARRAY_LEN(data)))
            ok = ok && move_refs(item, to, !named && is_one_of(key, maps, XD_ARRAY_LEN(maps)));
    }
    return ok;
}

/* Arguments are an object whatever the schema says; does it allow that? */
static bool allows_object(const json_t *schema)
{
    const json_t *type = json_object_get(schema, "type"), *one;
    size_t i;
    bool found = !type || (json_is_string(type) && !strcmp(json_string_value(type), "object"));
    json_array_foreach ((json_t *)(uintptr_t)type, i, one)
        found |= json_is_string(one) && !strcmp(json_string_value(one), "object");
    return found;
}

/* What the arguments of the i-th tool must be; owned. NULL: out of memory. */
static json_t *arguments_schema(const json_t *tool, size_t i, bool loose)
{
    const json_t *given = json_object_get(json_object_get(tool, "function"), "parameters");
    if (!given || json_is_null(given))
        return json_pack("{s:s, s:{}, s:b}", "type", "object", "properties", "additionalProperties", 0);
    if (loose || !allows_object(given))
        return json_pack("{s:s}", "type", "object");
    json_t *schema = json_deep_copy(given);
    char to[40];
    snprintf(to, sizeof to, "#/$defs/%zu", i);
    if (schema && move_refs(schema, to, false) && !json_object_set_new(schema, "type", json_string("object")))
        return schema;
    json_decref(schema);
    return NULL;
}

static bool is_wanted(const gen_params *p, const json_t *tool)
{
    const char *name = json_string_value(json_object_get(json_object_get(tool, "function"), "name"));
    return !p->call_name || !strcmp(name, p->call_name);
}

/* What an answer is that is no call, as a part of a larger schema; owned. NULL: out of memory. */
static json_t *answer_schema(const gen_params *p)
{
    json_t *schema = p->schema ? json_deep_copy(p->schema) : json_pack("{s:s}", "type", "object");
    if (schema && move_refs(schema, "#/$defs/answer", false))
        return schema;
    json_decref(schema);
    return NULL;
}

/* One of the calls that are wanted, or an answer where one will do. Owned; NULL: out of memory. */
static json_t *call_schema(const gen_params *p, const bool *loose)
{
    XD_CLEANUP(jsonp) json_t *defs = json_object();
    XD_CLEANUP(jsonp) json_t *calls = json_array();
    size_t i;
    json_t *tool;
    json_array_foreach ((json_t *)(uintptr_t)p->tools, i, tool) {
        if (!is_wanted(p, tool))
            continue;
        char key[24];
        snprintf(key, sizeof key, "%zu", i);
        json_t *name = json_object_get(json_object_get(tool, "function"), "name");
        json_t *call =
            json_pack("{s:s, s:{s:{s:O}, s:{s:o}}, s:[s, s]}", "type", "object", "properties", "name", "const", name,
                      "arguments", "$ref", json_sprintf("#/$defs/%s", key), "required", "name", "arguments");
        if (json_array_append_new(calls, call) || json_object_set_new(defs, key, arguments_schema(tool, i, loose[i])))
            return NULL;
    }
    if (p->may_call && (json_array_append_new(calls, json_pack("{s:s}", "$ref", "#/$defs/answer")) ||
                        json_object_set_new(defs, "answer", answer_schema(p))))
        return NULL;
    return json_pack("{s:O, s:O}", "anyOf", calls, "$defs", defs);
}

/* The grammar has seen the schema as #/$defs/KEY. */
static xd_status not_kept(const char *name, const char *key, const xd_err *why, xd_err *err)
{
    char prefix[40], param[sizeof why->param * 2];
    snprintf(prefix, sizeof prefix, "$defs.%s", key);
    const char *place = why->param;
    if (!strncmp(place, prefix, strlen(prefix)))
        place += strlen(prefix);
    snprintf(param, sizeof param, "%s%s%s", name, *place && !strchr(".[", *place) ? "." : "", place);
    param[sizeof why->param - 1] = 0; /* a deep place is cut here, and whole in the text */
    xd_err said = *why;
    snprintf(prefix, sizeof prefix, "'#/$defs/%s", key); /* move_refs() */
    gen_replace_words(&said, prefix, "'#");
    return xd_fail_field(err, XD_BAD_REQUEST, param, why->code, "'%s' cannot be kept strictly: %s", name, said.msg);
}

enum { MAX_TRIED = 64 }; /* each may cost a tenth of a second */

/* Finds the tools whose schemas cannot be held to; those that are not tried are none of those that can. */
static xd_status loosen(const gen_params *p, bool *loose, xd_err *err)
{
    size_t i, tried = 0;
    json_t *tool;
    json_array_foreach ((json_t *)(uintptr_t)p->tools, i, tool) {
        bool strict = json_is_true(json_object_get(json_object_get(tool, "function"), "strict"));
        if (!is_wanted(p, tool))
            continue;
        char key[24], name[64];
        snprintf(key, sizeof key, "%zu", i);
        snprintf(name, sizeof name, "tools[%zu].function.parameters", i);
        loose[i] = true;
        if (tried++ >= MAX_TRIED) {
            if (!strict)
                continue;
            return xd_fail_field(err, XD_BAD_REQUEST, name, "invalid_json_schema",
                                 "'%s' cannot be kept strictly: the schemas together are too large, and of more than "
                                 "%d tools it is not tried which ones can be kept",
                                 name, MAX_TRIED);
        }
        XD_CLEANUP(jsonp)
        json_t *alone = json_pack("{s:o, s:{s:o}}", "$ref", json_sprintf("#/$defs/%s", key), "$defs", key,
                                  arguments_schema(tool, i, false));
        XD_CLEANUP(grammar_unrefp) grammar *g = NULL;
        xd_err why = {0};
        xd_status st = alone ? grammar_new(alone, &g, &why) : XD_NOMEM;
        if (st == XD_NOMEM)
            return xd_fail(err, XD_NOMEM, 0, "out of memory for tool_choice");
        loose[i] = st != XD_OK;
        if (st && strict)
            return not_kept(name, key, &why, err);
        if (st)
            xd_log_debug("'%s' is loosened to any JSON object: %s", name, why.msg);
    }
    return XD_OK;
}

/* May an answer that is no call begin as one does? Then only its end tells which it is. */
static bool answer_like_call(const gen_params *p)
{
    size_t i;
    json_t *tool;
    json_array_foreach ((json_t *)(uintptr_t)p->tools, i, tool) {
        char head[160]; /* blanks change nothing, and names are short: tools.c */
        int n = snprintf(head, sizeof head, "{\"name\":\"%s\",\"arguments\":{",
                         json_string_value(json_object_get(json_object_get(tool, "function"), "name")));
        if (grammar_may_begin(p->grammar, head, (size_t)n))
            return true;
    }
    return false;
}

xd_status gen_read_tool_choice(gen_params *p, xd_err *err)
{
    p->may_call = !p->must_call && p->tools && p->grammar;
    if (!p->must_call && !p->may_call)
        return XD_OK;
    p->alike = p->may_call && answer_like_call(p);
    if (p->must_call)
        p->grammar_field = "tool_choice";
    /* What stands around the arguments is ours, not the client's: a stop would cut where nobody could foresee it. */
    p->n_stops = p->n_stop_ids = 0;
    if (json_array_size(p->tools) > MAX_TOOLS)
        return xd_fail_field(err, XD_BAD_REQUEST, "tools", "invalid_value",
                             "'%s' %s, and there are %zu tools: at most %d are allowed then", p->grammar_field,
                             p->must_call ? "forces a call" : "says what an answer is that is no call",
                             json_array_size(p->tools), MAX_TOOLS);
    size_t i;
    json_t *tool;
    json_array_foreach ((json_t *)(uintptr_t)p->tools, i, tool) {
        const json_t *f = json_object_get(tool, "function");
        char name[64];
        snprintf(name, sizeof name, "tools[%zu].function.parameters.type", i);
        if (is_wanted(p, tool) && json_is_true(json_object_get(f, "strict")) &&
            !allows_object(json_object_get(f, "parameters")))
            return xd_fail_field(err, XD_BAD_REQUEST, name, "invalid_json_schema",
                                 "'%s' must be \"object\": the arguments of a call are one", name);
    }
    bool loose[MAX_TOOLS] = {false};
    XD_CLEANUP(grammar_unrefp) grammar *g = NULL;
    xd_err why = {0};
    xd_status st = XD_OK;
    for (int tries = 0; !st && tries < 2 && !g; tries++) {
        XD_CLEANUP(jsonp) json_t *schema = call_schema(p, loose);
        st = schema ? grammar_new(schema, &g, &why) : XD_NOMEM;
        if (st != XD_BAD_REQUEST || tries)
            break;
        if ((st = loosen(p, loose, err)))
            return st;
    }
    if (st == XD_NOMEM)
        return xd_fail(err, XD_NOMEM, 0, "out of memory for the tools' grammar");
    if (st)
        return p->may_call
                   ? xd_fail_field(err, st, "tools", why.code, "the tools' schemas together with that of '%s': %s",
                                   p->grammar_field, why.msg)
                   : xd_fail_field(err, st, "tools", why.code, "the tools' schemas together: %s", why.msg);
    grammar_unref(p->grammar); /* of an answer that is text: a forced call leaves no room for it */
    p->grammar = XD_TAKE(g);
    return XD_OK;
}
