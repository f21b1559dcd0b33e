/* response_format.c - what an answer must look like, as clients ask for it, made a grammar.
 *
 * Rules in GBNF come under the names that llama.cpp, vLLM, SGLang and text-generation-webui have for them. `response_format` has two
 * forms: any JSON object, and JSON that matches a schema. The second has OpenAI's shape; a schema beside "json_object" (llama.cpp,
 * Together) means the same. `strict` has no effect: an answer always matches, or the request is refused. The compiler says where in the
 * schema something cannot be had; here the place gets its name within the request. */
#include <string.h>

#include "api/fields.h"
#include "api/generate.h"

#define SCHEMA "response_format.json_schema.schema"

static xd_status compile(const json_t *schema, const char *name, gen_params *p, xd_err *err)
{
    p->schema = schema;
    xd_err why = {0};
    xd_status st = grammar_new(schema, &p->grammar, &why);
    if (st != XD_BAD_REQUEST) {
        if (st)
            *err = why;
        return st;
    }
    char param[sizeof why.param * 2];
    snprintf(param, sizeof param, "%s%s%s", name, why.param[0] && why.param[0] != '[' ? "." : "", why.param);
    param[sizeof why.param - 1] = 0; /* a deep place is cut here, and whole in the text */
    return xd_fail_field(err, st, param, why.code, "'%s': %s", name, why.msg);
}

static xd_status read_json_schema(const json_t *format, gen_params *p, xd_err *err)
{
    const json_t *named = json_object_get(format, "json_schema");
    if (!json_is_object(named))
        return fields_wrong_type(err, "response_format.json_schema", "an object", named);
    static const char *const texts[] = {"name", "description"};
    for (size_t i = 0; i < XD_ARRAY_LEN(texts); i++) {
        const json_t *v = json_object_get(named, texts[i]);
        char name[64];
        snprintf(name, sizeof name, "response_format.json_schema.%s", texts[i]);
        if (v && !json_is_null(v) && !json_is_string(v))
            return fields_wrong_type(err, name, "a string", v);
    }
    const json_t *strict = json_object_get(named, "strict"), *schema = json_object_get(named, "schema");
    if (strict && !json_is_null(strict) && !json_is_boolean(strict))
        return fields_wrong_type(err, "response_format.json_schema.strict", "a boolean", strict);
    if (!json_is_object(schema) && !json_is_boolean(schema))
        return fields_wrong_type(err, SCHEMA, "an object", schema);
    return compile(schema, SCHEMA, p, err);
}

/* ---- rules ---- */

/* vLLM's object with one of several constraints: *ret_rules is its grammar, NULL where there is none. */
static xd_status read_structured(const json_t *outputs, const char **ret_rules, xd_err *err)
{
    static const char *const others[] = {"json", "regex", "choice", "json_object", "structural_tag"};
    const json_t *rules = json_object_get(outputs, "grammar");
    for (size_t i = 0; i < XD_ARRAY_LEN(others); i++) {
        const json_t *v = json_object_get(outputs, others[i]);
        char name[64];
        snprintf(name, sizeof name, "structured_outputs.%s", others[i]);
        if (v && !json_is_null(v) && !json_is_false(v))
            return xd_fail_field(err, XD_BAD_REQUEST, name, "unsupported_parameter",
                                 "'%s' is not supported: use response_format, or structured_outputs.grammar", name);
    }
    if (rules && !json_is_null(rules) && !json_is_string(rules))
        return fields_wrong_type(err, "structured_outputs.grammar", "a string", rules);
    *ret_rules = json_string_value(rules);
    return XD_OK;
}

/* The rules in GBNF, under one of the names that they have. NULL: there are none. */
static xd_status find_rules(gen_params *p, const char **ret, xd_err *err)
{
    const char *structured = NULL;
    xd_status st = read_structured(p->structured_outputs, &structured, err);
    if (st)
        return st;
    const struct {
        const char *name, *rules;
    } fields[] = {{"grammar", p->rules},
                  {"guided_grammar", p->guided_grammar},
                  {"structured_outputs.grammar", structured},
                  {"ebnf", p->ebnf},
                  {"grammar_string", p->grammar_string}};
    *ret = NULL;
    for (size_t i = 0; i < XD_ARRAY_LEN(fields); i++) {
        if (!fields[i].rules || !fields[i].rules[0])
            continue;
        if (*ret && strcmp(*ret, fields[i].rules) != 0)
            return gen_bad_value(err, fields[i].name, "'%s' and '%s' are not the same", fields[i].name,
                                 p->grammar_field);
        if (!*ret)
            p->grammar_field = fields[i].name;
        *ret = fields[i].rules;
    }
    return XD_OK;
}

static xd_status compile_rules(const gen_context *ctx, gen_params *p, const char *rules, xd_err *err)
{
    const char *name = p->grammar_field, *type = json_string_value(json_object_get(p->response_format, "type"));
    xd_status st = gen_need_tokenizer(ctx, name, err);
    if (st)
        return st;
    if (p->response_format && !(type && !strcmp(type, "text")))
        return gen_bad_value(err, name, "'%s' and 'response_format' both say what the answer is: send one of them",
                             name);
    if (p->tools)
        return gen_bad_value(err, name,
                             "'%s' says what the whole answer is, which leaves no room for calls: send no 'tools' with "
                             "it, or \"tool_choice\": \"none\"",
                             name);
    xd_err why = {0};
    st = grammar_new_gbnf(rules, strlen(rules), &p->grammar, &why);
    if (st == XD_BAD_REQUEST)
        return xd_fail_field(err, st, name, why.code, "'%s': %s", name, why.msg);
    if (st)
        *err = why;
    return st;
}

/* ---- schemas ---- */

xd_status gen_read_response_format(const gen_context *ctx, gen_params *p, xd_err *err)
{
    const json_t *format = p->response_format, *type = json_object_get(format, "type");
    const char *rules;
    xd_status st = find_rules(p, &rules, err);
    if (st || rules)
        return st ? st : compile_rules(ctx, p, rules, err);
    if (!format)
        return XD_OK;
    if (!json_is_string(type))
        return fields_wrong_type(err, "response_format.type", "a string", type);
    const char *name = json_string_value(type);
    if (!strcmp(name, "text"))
        return XD_OK;
    bool any = !strcmp(name, "json_object");
    if (!any && strcmp(name, "json_schema") != 0)
        return xd_fail_field(
            err, XD_BAD_REQUEST, "response_format.type", "invalid_value",
            "'response_format.type' must be \"text\", \"json_object\" or \"json_schema\", not \"%.40s\"", name);
    if (!ctx->tok)
        return xd_fail_field(err, XD_BAD_REQUEST, "response_format", "no_tokenizer",
                             "'response_format' is about text, and this model has no tokenizer (%s)",
                             ctx->tok_why ? ctx->tok_why : "none was found");
    if (!any)
        return read_json_schema(format, p, err);
    const json_t *schema = json_object_get(format, "schema");
    if (schema && !json_is_null(schema) && !json_is_object(schema))
        return fields_wrong_type(err, "response_format.schema", "an object", schema);
    return compile(json_is_object(schema) ? schema : NULL, "response_format.schema", p, err);
}
