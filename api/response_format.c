/* response_format.c - what an answer must look like, as clients ask for it, made a grammar.
 *
 * Two forms: any JSON object, and JSON that matches a schema. The second has OpenAI's shape; a schema beside "json_object" (llama.cpp,
 * Together) means the same. `strict` has no effect: an answer always matches, or the request is refused. The compiler says
 * where in the schema something cannot be had; here the place gets its name within the request. */
#include <string.h>

#include "api/generate.h"

#define SCHEMA "response_format.json_schema.schema"

static xd_status wrong_type(xd_err *err, const char *name, const char *kind, const json_t *v)
{
    if (!v)
        return xd_fail_field(err, XD_BAD_REQUEST, name, "missing_required_parameter", "'%s' is missing", name);
    return xd_fail_field(err, XD_BAD_REQUEST, name, "invalid_type", "'%s' must be %s, not %s", name, kind,
                         json_kind_name(v));
}

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
        return wrong_type(err, "response_format.json_schema", "an object", named);
    static const char *const texts[] = {"name", "description"};
    for (size_t i = 0; i < XD_ARRAY_LEN(texts); i++) {
        const json_t *v = json_object_get(named, texts[i]);
        char name[64];
        snprintf(name, sizeof name, "response_format.json_schema.%s", texts[i]);
        if (v && !json_is_null(v) && !json_is_string(v))
            return wrong_type(err, name, "a string", v);
    }
    const json_t *strict = json_object_get(named, "strict"), *schema = json_object_get(named, "schema");
    if (strict && !json_is_null(strict) && !json_is_boolean(strict))
        return wrong_type(err, "response_format.json_schema.strict", "a boolean", strict);
    if (!json_is_object(schema) && !json_is_boolean(schema))
        return wrong_type(err, SCHEMA, "an object", schema);
    return compile(schema, SCHEMA, p, err);
}

xd_status gen_read_response_format(const gen_context *ctx, gen_params *p, xd_err *err)
{
    const json_t *format = p->response_format, *type = json_object_get(format, "type");
    if (!format)
        return XD_OK;
    if (!json_is_string(type))
        return wrong_type(err, "response_format.type", "a string", type);
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
        return wrong_type(err, "response_format.schema", "an object", schema);
    return compile(json_is_object(schema) ? schema : NULL, "response_format.schema", p, err);
}
