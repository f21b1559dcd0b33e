/* response_format.c - what an answer must look like, as clients ask for it, made a grammar.
 *
 * Rules in GBNF, regular expressions and choices come under the names that llama.cpp, vLLM, SGLang and text-generation-webui have for them. `response_format` has two
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

/* ---- rules, regular expressions, choices ---- */

typedef enum form_kind { FORM_RULES, FORM_REGEX, FORM_CHOICE } form_kind;
typedef struct wanted { /* one name under which a client may send it */
    const char *name;
    form_kind kind;
    const char *text;   /* RULES, REGEX; "": none */
    const json_t *list; /* CHOICE */
} wanted;

/* vLLM's object with one of several constraints: becomes those of ret. */
static xd_status read_structured(const json_t *outputs, wanted ret[3], xd_err *err)
{
    static const struct {
        const char *key, *instead;
    } keys[] = {{"json", "use response_format"},
                {"json_object", "use response_format"},
                {"structural_tag", "use tools, or response_format"}};
    for (size_t i = 0; i < XD_ARRAY_LEN(keys); i++) {
        const json_t *v = json_object_get(outputs, keys[i].key);
        char name[64];
        snprintf(name, sizeof name, "structured_outputs.%s", keys[i].key);
        if (v && !json_is_null(v) && !json_is_false(v))
            return xd_fail_field(err, XD_BAD_REQUEST, name, "unsupported_parameter", "'%s' is not supported: %s", name,
                                 keys[i].instead);
    }
    for (size_t i = 0; i < 3; i++) {
        const bool is_list = ret[i].kind == FORM_CHOICE;
        const json_t *v = json_object_get(outputs, strchr(ret[i].name, '.') + 1);
        if (!v || json_is_null(v))
            continue;
        if (is_list ? !json_is_array(v) : !json_is_string(v))
            return fields_wrong_type(err, ret[i].name, is_list ? "an array" : "a string", v);
        ret[i].text = json_string_value(v);
        ret[i].list = is_list ? v : NULL;
    }
    return XD_OK;
}

/* What the answer must be, under one of the names that it has. ret->name NULL: nothing is said of it. */
static xd_status find_form(const gen_params *p, wanted *ret, xd_err *err)
{
    wanted forms[] = {{"grammar", FORM_RULES, p->rules, NULL},
                      {"guided_grammar", FORM_RULES, p->guided_grammar, NULL},
                      {"ebnf", FORM_RULES, p->ebnf, NULL},
                      {"grammar_string", FORM_RULES, p->grammar_string, NULL},
                      {"guided_regex", FORM_REGEX, p->guided_regex, NULL},
                      {"regex", FORM_REGEX, p->regex, NULL},
                      {"guided_choice", FORM_CHOICE, NULL, p->guided_choice},
                      {"structured_outputs.grammar", FORM_RULES, NULL, NULL},
                      {"structured_outputs.regex", FORM_REGEX, NULL, NULL},
                      {"structured_outputs.choice", FORM_CHOICE, NULL, NULL}};
    xd_status st = read_structured(p->structured_outputs, &forms[XD_ARRAY_LEN(forms) - 3], err);
    *ret = (wanted){0};
    for (size_t i = 0; i < XD_ARRAY_LEN(forms) && !st; i++) {
        const wanted *f = &forms[i];
        if (!f->list && (!f->text || !f->text[0]))
            continue;
        if (ret->name && ret->kind != f->kind)
            st = gen_bad_value(err, f->name, "'%s' and '%s' both say what the answer is: send one of them", f->name,
                               ret->name);
        else if (ret->name && (f->list ? !json_equal(f->list, ret->list) : strcmp(f->text, ret->text) != 0))
            st = gen_bad_value(err, f->name, "'%s' and '%s' are not the same", f->name, ret->name);
        else if (!ret->name)
            *ret = *f;
    }
    return st;
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
    if (p->tools)
        return gen_bad_value(err, name,
                             "'%s' says what the whole answer is, which leaves no room for calls: send no 'tools' with "
                             "it, or \"tool_choice\": \"none\"",
                             name);
    size_t i;
    const json_t *v;
    json_array_foreach ((json_t *)(uintptr_t)f->list, i, v) {
        char item[64];
        snprintf(item, sizeof item, "%s[%zu]", name, i);
        if (!json_is_string(v))
            return fields_wrong_type(err, item, "a string", v);
    }
    p->grammar_field = name;
    xd_err why = {0};
    st = f->kind == FORM_CHOICE  ? grammar_new_choice(f->list, &p->grammar, &why)
         : f->kind == FORM_REGEX ? grammar_new_regex(f->text, strlen(f->text), &p->grammar, &why)
                                 : grammar_new_gbnf(f->text, strlen(f->text), &p->grammar, &why);
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
    const json_t *schema = json_object_get(format, "schema");
    if (schema && !json_is_null(schema) && !json_is_object(schema))
        return fields_wrong_type(err, "response_format.schema", "an object", schema);
    return compile(json_is_object(schema) ? schema : NULL, "response_format.schema", p, err);
}
