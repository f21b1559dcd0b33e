/* response_format.c - what an answer must look like, as clients ask for it, made a grammar.
 *
 * Rules in GBNF, regular expressions, choices and schemas come under the names that llama.cpp, vLLM, SGLang and text-generation-webui have
 * for them. `response_format` has two forms: any JSON object, and JSON that matches a schema. The second has OpenAI's shape; a schema beside
 * the type (llama.cpp, Together) means the same. `strict` has no effect: an answer always matches, or the request is refused. The compiler says where in the
 * schema something cannot be had; here the place gets its name within the request. */
#include <string.h>

#include "api/fields.h"
#include "api/generate.h"

#define FORMAT "response_format"
#define BESIDE FORMAT ".schema"
#define SCHEMA FORMAT ".json_schema.schema"

/* asks: the field that asks for it; name: where the schema is. */
static xd_status compile(const json_t *schema, const char *asks, const char *name, gen_params *p, xd_err *err)
{
    p->schema = schema;
    p->form = schema ? API_FORM_JSON_SCHEMA : API_FORM_JSON_OBJECT;
    p->grammar_field = asks;
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
    const json_t *named = json_object_get(format, "json_schema"), *beside = json_object_get(format, "schema");
    if ((!named || json_is_null(named)) && json_is_object(beside))
        return compile(beside, FORMAT, BESIDE, p, err);
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
    return compile(schema, FORMAT, SCHEMA, p, err);
}

/* ---- the other fields ---- */

typedef enum form_kind { FORM_RULES, FORM_REGEX, FORM_CHOICE, FORM_SCHEMA, FORM_OBJECT } form_kind;
typedef struct wanted { /* one name under which a client may send it */
    const char *name;
    form_kind kind;
    const char *text;    /* RULES, REGEX; "": none */
    const json_t *value; /* CHOICE: an array; SCHEMA: an object or its text; OBJECT: true */
} wanted;

enum { N_STRUCTURED = 5 };

/* What a client sends that does not use the field. */
static bool says_nothing(const json_t *v)
{
    return !v || json_is_null(v) || json_is_false(v) || (json_is_string(v) && !json_string_length(v));
}

/* vLLM's object with one of several constraints: becomes those of ret. */
static xd_status read_structured(const json_t *outputs, wanted ret[N_STRUCTURED], xd_err *err)
{
    static const char *const types[] = {[FORM_RULES] = "a string",
                                        [FORM_REGEX] = "a string",
                                        [FORM_CHOICE] = "an array",
                                        [FORM_SCHEMA] = "an object or a string",
                                        [FORM_OBJECT] = "a boolean"};
    if (!says_nothing(json_object_get(outputs, "structural_tag")))
        return xd_fail_field(err, XD_BAD_REQUEST, "structured_outputs.structural_tag", "unsupported_parameter",
                             "'structured_outputs.structural_tag' is not supported: use tools, or response_format");
    bool any = false;
    for (size_t i = 0; i < N_STRUCTURED; i++) {
        const json_t *v = json_object_get(outputs, strchr(ret[i].name, '.') + 1);
        if (!v || json_is_null(v))
            continue;
        const form_kind kind = ret[i].kind;
        const bool fits = kind == FORM_CHOICE   ? json_is_array(v)
                          : kind == FORM_SCHEMA ? json_is_object(v) || json_is_string(v)
                          : kind == FORM_OBJECT ? json_is_boolean(v)
                                                : json_is_string(v);
        if (!fits)
            return fields_wrong_type(err, ret[i].name, types[kind], v);
        if (kind == FORM_RULES || kind == FORM_REGEX)
            ret[i].text = json_string_value(v);
        else if (!says_nothing(v))
            ret[i].value = v;
        any = any || !says_nothing(v);
    }
    const char *key;
    const json_t *v;
    json_object_foreach ((json_t *)(uintptr_t)outputs, key, v)
        if (!any && !says_nothing(v)) /* misspelt, or only how and not what: a free answer is not what was meant */
            return gen_bad_value(err, "structured_outputs",
                                 "'structured_outputs' has none of json, json_object, regex, choice and grammar, which "
                                 "say what the answer is");
    return XD_OK;
}

/* A schema at the top of the body. SillyTavern sends {} where the user has none. */
static xd_status read_schema(const json_t *v, const char *name, const json_t **ret, xd_err *err)
{
    if (v && !json_is_object(v) && !json_is_string(v))
        return fields_wrong_type(err, name, "an object or a string", v);
    *ret = says_nothing(v) || (json_is_object(v) && !json_object_size(v)) ? NULL : v;
    return XD_OK;
}

/* What the answer must be, under one of the names that it has. ret->name NULL: nothing is said of it. */
static xd_status find_form(const gen_params *p, wanted *ret, xd_err *err)
{
    const json_t *guided_json = NULL, *json_schema = NULL;
    xd_status st = read_schema(p->guided_json, "guided_json", &guided_json, err);
    if (!st)
        st = read_schema(p->json_schema, "json_schema", &json_schema, err);
    wanted forms[] = {{"grammar", FORM_RULES, p->rules, NULL},
                      {"guided_grammar", FORM_RULES, p->guided_grammar, NULL},
                      {"ebnf", FORM_RULES, p->ebnf, NULL},
                      {"grammar_string", FORM_RULES, p->grammar_string, NULL},
                      {"guided_regex", FORM_REGEX, p->guided_regex, NULL},
                      {"regex", FORM_REGEX, p->regex, NULL},
                      {"guided_choice", FORM_CHOICE, NULL, p->guided_choice},
                      {"guided_json", FORM_SCHEMA, NULL, guided_json},
                      {"json_schema", FORM_SCHEMA, NULL, json_schema},
                      {"structured_outputs.grammar", FORM_RULES, NULL, NULL},
                      {"structured_outputs.regex", FORM_REGEX, NULL, NULL},
                      {"structured_outputs.choice", FORM_CHOICE, NULL, NULL},
                      {"structured_outputs.json", FORM_SCHEMA, NULL, NULL},
                      {"structured_outputs.json_object", FORM_OBJECT, NULL, NULL}};
    if (!st)
        st = read_structured(p->structured_outputs, &forms[XD_ARRAY_LEN(forms) - N_STRUCTURED], err);
    *ret = (wanted){0};
    for (size_t i = 0; i < XD_ARRAY_LEN(forms) && !st; i++) {
        const wanted *f = &forms[i];
        if (!f->value && (!f->text || !f->text[0]))
            continue;
        if (ret->name && ret->kind != f->kind)
            st = gen_bad_value(err, f->name, "'%s' and '%s' both say what the answer is: send one of them", f->name,
                               ret->name);
        else if (ret->name && (f->value ? !json_equal(f->value, ret->value) : strcmp(f->text, ret->text) != 0))
            st = gen_bad_value(err, f->name, "'%s' and '%s' are not the same", f->name, ret->name);
        else if (!ret->name)
            *ret = *f;
    }
    return st;
}

static xd_status compile_schema(gen_params *p, const wanted *f, xd_err *err)
{
    const json_t *schema = f->value;
    if (json_is_string(schema)) {
        xd_status st = fields_parse_text(f->name, json_string_value(schema), &p->schema_text, err);
        if (st)
            return st;
        schema = p->schema_text;
    }
    return compile(f->kind == FORM_OBJECT ? NULL : schema, f->name, f->name, p, err);
}

static xd_status compile_form(const gen_context *ctx, gen_params *p, const wanted *f, xd_err *err)
{
    const char *name = f->name, *type = json_string_value(json_object_get(p->response_format, "type"));
    xd_status st = gen_need_tokenizer(ctx, name, err);
    if (st)
        return st;
    if (p->response_format && !(type && !strcmp(type, "text")))
        return gen_bad_value(err, name, "'%s' and 'response_format' both say what the answer is: send one of them",
                             name);
    if (f->kind == FORM_SCHEMA || f->kind == FORM_OBJECT)
        return compile_schema(p, f, err);
    if (p->tools)
        return gen_bad_value(err, name,
                             "'%s' says what the whole answer is, which leaves no room for calls: send no 'tools' with "
                             "it, or \"tool_choice\": \"none\"",
                             name);
    size_t i;
    const json_t *v;
    json_array_foreach ((json_t *)(uintptr_t)f->value, i, v) {
        char item[64];
        snprintf(item, sizeof item, "%s[%zu]", name, i);
        if (!json_is_string(v))
            return fields_wrong_type(err, item, "a string", v);
    }
    p->grammar_field = name;
    p->form = API_FORM_GRAMMAR;
    xd_err why = {0};
    st = f->kind == FORM_CHOICE  ? grammar_new_choice(f->value, &p->grammar, &why)
         : f->kind == FORM_REGEX ? grammar_new_regex(f->text, strlen(f->text), &p->grammar, &why)
                                 : grammar_new_gbnf(f->text, strlen(f->text), &p->grammar, &why);
    if (st == XD_BAD_REQUEST)
        return xd_fail_field(err, st, name, why.code, "'%s': %s", name, why.msg);
    if (st)
        *err = why;
    return st;
}

/* ---- response_format ---- */

xd_status gen_read_response_format(const gen_context *ctx, gen_params *p, xd_err *err)
{
    const json_t *format = p->response_format, *type = json_object_get(format, "type");
    wanted form;
    xd_status st = find_form(p, &form, err);
    if (st || form.name)
        return st ? st : compile_form(ctx, p, &form, err);
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
    const json_t *schema = json_object_get(format, "schema"), *named = json_object_get(format, "json_schema");
    if (named && !json_is_null(named))
        return gen_bad_value(err, FORMAT ".json_schema",
                             "'" FORMAT ".json_schema' says what the answer is, but the type is \"json_object\": send "
                             "\"type\": \"json_schema\" with it");
    if (schema && !json_is_null(schema) && !json_is_object(schema))
        return fields_wrong_type(err, BESIDE, "an object", schema);
    return compile(json_object_size(schema) ? schema : NULL, FORMAT, BESIDE, p, err);
}
