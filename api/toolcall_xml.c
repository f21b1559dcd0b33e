/* toolcall_xml.c - tool calls whose arguments are written one by one between tags, as plain text: Qwen3-Coder's <function=NAME>
 * <parameter=KEY>VALUE</parameter>, GLM's NAME <arg_key>KEY</arg_key><arg_value>VALUE</arg_value>, and others like these.
 *
 * Whether 3 is a number or a text only the tool's schema can tell: a value takes the type that its parameter allows. Where nothing
 * is said, what reads as JSON is JSON. A value may hold anything but its own closing tag. */
#include <string.h>

#include "api/toolcall.h"
#include "config/util.h"

enum { ALLOW_STRING = 1, ALLOW_NUMBER = 2, ALLOW_BOOL = 4, ALLOW_NULL = 8, ALLOW_OBJECT = 16, ALLOW_ARRAY = 32 };
enum { MAX_SCHEMA_DEPTH = 8 };

static unsigned allow_of(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_STRING: return ALLOW_STRING;
    case JSON_INTEGER:
    case JSON_REAL: return ALLOW_NUMBER;
    case JSON_TRUE:
    case JSON_FALSE: return ALLOW_BOOL;
    case JSON_NULL: return ALLOW_NULL;
    case JSON_OBJECT: return ALLOW_OBJECT;
    default: return ALLOW_ARRAY;
    }
}

static unsigned allow_of_name(const char *type)
{
    static const struct {
        const char *name;
        unsigned allow;
    } rows[] = {{"string", ALLOW_STRING}, {"integer", ALLOW_NUMBER}, {"number", ALLOW_NUMBER}, {"boolean", ALLOW_BOOL},
                {"null", ALLOW_NULL},     {"object", ALLOW_OBJECT},  {"array", ALLOW_ARRAY}};
    for (size_t i = 0; type && i < XD_ARRAY_LEN(rows); i++)
        if (!strcmp(type, rows[i].name))
            return rows[i].allow;
    return 0;
}

/* The kinds of values that a schema allows; 0: it does not say. */
static unsigned allowed(const json_t *schema, int depth)
{
    unsigned allow = 0;
    size_t i;
    json_t *v, *type = json_object_get(schema, "type");
    if (json_is_string(type))
        return allow_of_name(json_string_value(type));
    json_array_foreach (type, i, v)
        allow |= allow_of_name(json_string_value(v));
    if (allow || depth == MAX_SCHEMA_DEPTH)
        return allow;
    json_array_foreach (json_object_get(schema, "enum"), i, v)
        allow |= allow_of(v);
    static const char *const lists[] = {"anyOf", "oneOf"};
    for (size_t k = 0; k < XD_ARRAY_LEN(lists); k++)
        json_array_foreach (json_object_get(schema, lists[k]), i, v) {
            unsigned one = allowed(v, depth + 1);
            if (!one)
                return 0;
            allow |= one;
        }
    return allow;
}

const json_t *toolcall_function_n(const json_t *tools, const char *name, size_t len)
{
    size_t i;
    const json_t *tool;
    json_array_foreach ((json_t *)(uintptr_t)tools, i, tool) {
        const json_t *f = json_object_get(tool, "function"), *n = json_object_get(f, "name");
        if (json_is_string(n) && json_string_length(n) == len && !memcmp(json_string_value(n), name, len))
            return f;
    }
    return NULL;
}

const json_t *toolcall_function(const json_t *tools, const char *name)
{
    return name ? toolcall_function_n(tools, name, strlen(name)) : NULL;
}

static unsigned allowed_for(const json_t *function, const char *key)
{
    const json_t *properties = json_object_get(json_object_get(function, "parameters"), "properties");
    return allowed(json_object_get(properties, key), 0);
}

static bool append_json(xd_buf *out, const json_t *value)
{
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    bool ok = text && xd_buf_puts(out, text);
    free(text);
    return ok;
}

static bool append_string(xd_buf *out, const char *s, size_t len)
{
    json_t *v = json_stringn(s, len);
    bool ok = v && append_json(out, v);
    json_decref(v);
    return ok;
}

/* Python's words for what JSON writes in lower case: templates that print a value show models these. */
static const char *python_word(const char *s, size_t len)
{
    static const char *const words[][2] = {{"True", "true"}, {"False", "false"}, {"None", "null"}};
    for (size_t i = 0; i < XD_ARRAY_LEN(words); i++)
        if (len == strlen(words[i][0]) && !memcmp(s, words[i][0], len))
            return words[i][1];
    return NULL;
}

static bool append_value(xd_buf *out, const char *s, size_t len, unsigned allow)
{
    if (allow == ALLOW_STRING)
        return append_string(out, s, len);
    const char *word = allow ? python_word(s, len) : NULL;
    const char *json = word ? word : s;
    size_t json_len = word ? strlen(word) : len;
    json_t *v = json_loadb(json, json_len, JSON_DECODE_ANY | JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, NULL);
    unsigned kind = v ? allow_of(v) : 0;
    json_decref(v);
    bool take = kind && kind != ALLOW_STRING && (!allow || (allow & kind) || !(allow & ALLOW_STRING));
    return take ? xd_buf_append(out, json, json_len) : append_string(out, s, len);
}

typedef struct reader {
    const char *s, *end;
} reader;

static void skip_space(reader *r)
{
    while (r->s < r->end && strchr(" \t\r\n", *r->s) && *r->s)
        r->s++;
}

static bool eat(reader *r, const char *what)
{
    size_t n = strlen(what);
    if ((size_t)(r->end - r->s) < n || memcmp(r->s, what, n))
        return false;
    r->s += n;
    return true;
}

/* The same, where more of the text may come: MORE if all that is there fits. */
static toolcall_found look(reader *r, const char *what)
{
    skip_space(r);
    size_t n = strlen(what), have = (size_t)(r->end - r->s);
    if (memcmp(r->s, what, XD_MIN(n, have)))
        return TOOLCALL_NOT;
    if (have < n)
        return TOOLCALL_MORE;
    r->s += n;
    return TOOLCALL_FOUND;
}

/* A name or a key: owned; NULL: it is none, or there is no memory. */
static char *plain(const char *s, size_t len)
{
    while (len && strchr(" \t\r\n", s[len - 1]) && s[len - 1])
        len--;
    while (len && strchr(" \t\r\n", *s) && *s)
        s++, len--;
    bool ok = len && !memchr(s, '<', len) && !memchr(s, '\n', len) && !memchr(s, 0, len) && xd_utf8_valid(s, len);
    return ok ? strndup(s, len) : NULL;
}

static xd_status add(json_t *list, const char *name, xd_buf *args)
{
    xd_buf_putc(args, '}');
    if (args->failed)
        return XD_NOMEM;
    /* Also the check that a value was one: bytes that are not UTF-8 are no string. */
    json_t *check = json_loadb(args->data, args->len, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, NULL);
    json_t *call =
        check ? json_pack("{s:s, s:o}", "name", name, "arguments", json_stringn(args->data, args->len)) : NULL;
    bool is_json = check != NULL;
    json_decref(check);
    if (!is_json)
        return XD_BAD_REQUEST;
    return json_array_append_new(list, call) ? XD_NOMEM : XD_OK;
}

static bool add_argument(xd_buf *args, bool first, const char *key, const char *value, size_t len, unsigned allow)
{
    return xd_utf8_valid(value, len) && xd_buf_puts(args, first ? "{" : ", ") &&
           append_string(args, key, strlen(key)) && xd_buf_puts(args, ": ") && append_value(args, value, len, allow);
}

enum { MAX_KEY = 512 };

#define DSML       \
    "\xEF\xBD\x9C" \
    "DSML\xEF\xBD\x9C"
#define HY(x) "<" x ":opensource>"

static const struct {
    toolcall_tag_marks call;
    const char *begin, *key_end, *value_begin, *value_end;
    bool lines; /* the value has lines of its own */
    bool typed; /* behind the key stands whether the value is a string */
} tags[] = {
    [TOOLCALL_PARAMETERS] = {{"<function=", ">", "</function>"}, "<parameter=", ">", "", "</parameter>", true, false},
    [TOOLCALL_INVOKE] =
        {{"<invoke name=\"", "\">", "</invoke>"}, "<parameter name=\"", "\">", "", "</parameter>", true, false},
    [TOOLCALL_DSML_INVOKE] = {{"<" DSML "invoke name=\"", "\">", "</" DSML "invoke>"},
                              "<" DSML "parameter name=\"",
                              "\"",
                              "",
                              "</" DSML "parameter>",
                              false,
                              true},
    [TOOLCALL_HUNYUAN_KEYS] = {{HY("tool_call"), HY("tool_sep"), HY("/tool_call")},
                               HY("arg_key"),
                               HY("/arg_key"),
                               HY("arg_value"),
                               HY("/arg_value"),
                               false,
                               false},
    [TOOLCALL_ARG_KEYS] = {{"", "", ""}, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", false, false},
};

const toolcall_tag_marks *toolcall_tag_marks_of(toolcall_tags kind)
{
    return &tags[kind].call;
}

const char *toolcall_parameter_mark(toolcall_tags kind)
{
    return tags[kind].begin;
}

/* ` string="true">`, ` string="false">` or `>`. */
static toolcall_found look_for_type(reader *r, unsigned *allow)
{
    toolcall_found found = look(r, "string=\"true\">");
    if (found == TOOLCALL_FOUND)
        *allow = ALLOW_STRING;
    if (found != TOOLCALL_NOT)
        return found;
    found = look(r, "string=\"false\">");
    if (found == TOOLCALL_FOUND)
        *allow = 0;
    return found == TOOLCALL_NOT ? look(r, ">") : found;
}

toolcall_found toolcall_read_parameter(toolcall_tags kind, const json_t *function, const char *text, size_t len,
                                       bool first, size_t *scanned, xd_buf *args, size_t *ret_used)
{
    reader r = {text, text + len};
    toolcall_found found = look(&r, tags[kind].begin);
    if (found != TOOLCALL_FOUND)
        return found;
    const char *s = r.s, *end = memmem(s, (size_t)(r.end - s), tags[kind].key_end, strlen(tags[kind].key_end));
    size_t longest = MAX_KEY + strlen(tags[kind].key_end);
    if (!end || end - s > MAX_KEY)
        return !end && (size_t)(r.end - s) < longest ? TOOLCALL_MORE : TOOLCALL_NOT;
    XD_CLEANUP(xd_freep) char *key = plain(s, (size_t)(end - s));
    r.s = end + strlen(tags[kind].key_end);
    if (!key)
        return TOOLCALL_NOT;
    unsigned allow = allowed_for(function, key);
    if (tags[kind].typed && (found = look_for_type(&r, &allow)) != TOOLCALL_FOUND)
        return found;
    if (*tags[kind].value_begin && (found = look(&r, tags[kind].value_begin)) != TOOLCALL_FOUND)
        return found;
    s = r.s;
    size_t from = XD_MAX(*scanned, (size_t)(s - text)), mark = strlen(tags[kind].value_end);
    end = from < len ? memmem(text + from, len - from, tags[kind].value_end, mark) : NULL;
    if (!end) {
        *scanned = len > from + mark ? len - mark : from; /* it may have begun */
        return TOOLCALL_MORE;
    }
    *ret_used = (size_t)(end - text) + mark;
    if (tags[kind].lines && s < end && *s == '\n')
        s++;
    if (tags[kind].lines && s < end && end[-1] == '\n')
        end--;
    return add_argument(args, first, key, s, (size_t)(end - s), allow) ? TOOLCALL_FOUND : TOOLCALL_NOT;
}

/* All of them: moves *r behind the last. */
static xd_status read_parameters(toolcall_tags kind, const json_t *function, reader *r, xd_buf *args)
{
    toolcall_found found;
    for (size_t scanned = 0, used = 0;; scanned = 0, r->s += used) {
        found =
            toolcall_read_parameter(kind, function, r->s, (size_t)(r->end - r->s), !args->len, &scanned, args, &used);
        if (found != TOOLCALL_FOUND)
            break;
    }
    if (!args->len)
        xd_buf_putc(args, '{');
    skip_space(r);
    return args->failed ? XD_NOMEM : XD_OK;
}

xd_status toolcall_read_function(toolcall_tags kind, const char *text, size_t len, const json_t *tools, json_t *list,
                                 size_t *ret_end)
{
    const toolcall_tag_marks *m = toolcall_tag_marks_of(kind);
    reader r = {text, text + len};
    XD_CLEANUP(xd_buf_free) xd_buf args = {0};
    skip_space(&r);
    const char *s = r.s + strlen(m->begin), *end;
    if (!eat(&r, m->begin) || !(end = memmem(s, (size_t)(r.end - s), m->name_end, strlen(m->name_end))))
        return XD_BAD_REQUEST;
    XD_CLEANUP(xd_freep) char *name = plain(s, (size_t)(end - s));
    if (!name)
        return XD_BAD_REQUEST;
    r.s = end + strlen(m->name_end);
    xd_status st = read_parameters(kind, toolcall_function(tools, name), &r, &args);
    if (st || !eat(&r, m->end))
        return st ? st : XD_BAD_REQUEST;
    *ret_end = (size_t)(r.s - text);
    return add(list, name, &args);
}

xd_status toolcall_read_arg_keys(const char *text, size_t len, const json_t *tools, json_t *list)
{
    const char *s = memchr(text, '<', len);
    size_t n = s ? (size_t)(s - text) : len;
    reader r = {text + n, text + len};
    XD_CLEANUP(xd_buf_free) xd_buf args = {0};
    XD_CLEANUP(xd_freep) char *name = plain(text, n);
    /* A word alone is a call only if there is such a tool. */
    const json_t *function = name ? toolcall_function(tools, name) : NULL;
    if (!name || strpbrk(name, " {}\"'`") || (!s && !function))
        return XD_BAD_REQUEST;
    xd_status st = read_parameters(TOOLCALL_ARG_KEYS, function, &r, &args);
    if (st || r.s < r.end)
        return st ? st : XD_BAD_REQUEST;
    return add(list, name, &args);
}
