/* toolcall.c - reading tool calls that models wrote as JSON, in the wrappings of several families. See toolcall.h.
 *
 * Arguments are handed on in the model's own words (a slice of what it wrote), so that numbers and the order of keys stay as they
 * are; but only after jansson has found them to be a JSON object. What is not exactly a call is none: the caller shows it as text.
 * Where calls begin and end is not decided here: answer.c. Notations other than JSON: toolcall_xml.c; calls of
 * which the arguments are still being written: toolcall_head.c. */
#include "api/toolcall.h"

#include <string.h>

#include "api/json_scan.h"
#include "config/util.h"

#define DS(x)         "<\xEF\xBD\x9C" x "\xEF\xBD\x9C>" /* fullwidth bars */
#define DS_BEGIN      DS("tool\u2581calls\u2581begin")
#define DS_END        DS("tool\u2581calls\u2581end")
#define DS_CALL_BEGIN DS("tool\u2581call\u2581begin")
#define DS_CALL_END   DS("tool\u2581call\u2581end")
#define DS_SEP        DS("tool\u2581sep")
#define DSML       \
    "\xEF\xBD\x9C" \
    "DSML\xEF\xBD\x9C"
#define HY(x) "<" x ":opensource>"

static const char *const tag_specials[] = {"<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>",
                                           "<arg_value>", "</arg_value>", NULL};
static const char *const mistral_specials[] = {"[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", NULL};
static const char *const deepseek_specials[] = {DS_BEGIN, DS_END, DS_CALL_BEGIN, DS_CALL_END, DS_SEP, NULL};
static const char *const kimi_specials[] = {
    "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>", "<|tool_call_end|>",          NULL};
static const char *const solar_specials[] = {"<|tool_calls|>",
                                             "<|tool_call:begin|>",
                                             "<|tool_call:name|>",
                                             "<|tool_call:args|>",
                                             "<|tool_call:end|>",
                                             "<|calls|>",
                                             NULL};
static const char *const seed_specials[] = {"<seed:tool_call>", "</seed:tool_call>", NULL};
static const char *const minimax_specials[] = {"<minimax:tool_call>", "</minimax:tool_call>", NULL};
static const char *const dsml_specials[] = {DSML, NULL};
static const char *const hunyuan_specials[] = {
    HY("tool_calls"), HY("/tool_calls"), HY("tool_call"), HY("/tool_call"), HY("tool_sep"),
    HY("arg_key"),    HY("/arg_key"),    HY("arg_value"), HY("/arg_value"), NULL};
static const char *const list_specials[] = {"<|tool_call|>", "<|/tool_call|>", NULL};
static const char *const calls_specials[] = {"<tool_calls>", "</tool_calls>", NULL};
static const char *const nemotron_specials[] = {"<TOOLCALL>", "</TOOLCALL>", NULL};
static const char *const gigachat_specials[] = {"<|function_call|>", NULL};
static const char *const gigachat3_specials[] = {"<|role_sep|>", NULL};
static const char *const gemma_specials[] = {"<|tool_call>", "<tool_call|>", "<|\"|>", NULL};
static const char *const bare_specials[] = {"<|python_tag|>", NULL};
static const char *const no_specials[] = {NULL};

static const toolcall_marks marks[] = {
    [TOOLCALL_NONE] = {"stay text", NULL, NULL, "", no_specials, TOOLCALL_JSON},
    [TOOLCALL_TAG] = {"<tool_call>", "<tool_call>", "</tool_call>", "<tool_call>\n", tag_specials, TOOLCALL_JSON},
    [TOOLCALL_FUNCTION] = {"<tool_call> <function=>", "<tool_call>", "</tool_call>", "<tool_call>\n", tag_specials,
                           TOOLCALL_JSON},
    [TOOLCALL_MISTRAL] = {"[TOOL_CALLS]", "[TOOL_CALLS]", NULL, "[TOOL_CALLS][", mistral_specials, TOOLCALL_JSON},
    [TOOLCALL_DEEPSEEK] = {"DeepSeek's tool_calls", DS_BEGIN, DS_END, "", deepseek_specials, TOOLCALL_JSON},
    [TOOLCALL_KIMI] = {"Kimi's sections", "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "",
                       kimi_specials, TOOLCALL_JSON},
    [TOOLCALL_SOLAR] = {"<|tool_calls|>", "<|tool_calls|>", "<|calls|>", "", solar_specials, TOOLCALL_JSON},
    [TOOLCALL_SEED] = {"<seed:tool_call>", "<seed:tool_call>", "</seed:tool_call>", "", seed_specials,
                       TOOLCALL_PARAMETERS},
    [TOOLCALL_MINIMAX] = {"<minimax:tool_call>", "<minimax:tool_call>", "</minimax:tool_call>", "", minimax_specials,
                          TOOLCALL_INVOKE},
    [TOOLCALL_DSML] = {"DSML's function_calls", "<" DSML "function_calls>", "</" DSML "function_calls>", "",
                       dsml_specials, TOOLCALL_DSML_INVOKE},
    [TOOLCALL_DSML_V4] = {"DSML's tool_calls", "<" DSML "tool_calls>", "</" DSML "tool_calls>", "", dsml_specials,
                          TOOLCALL_DSML_INVOKE},
    [TOOLCALL_HUNYUAN] = {"Hunyuan's tool_calls", HY("tool_calls"), HY("/tool_calls"), "", hunyuan_specials,
                          TOOLCALL_HUNYUAN_KEYS},
    [TOOLCALL_LIST] = {"<|tool_call|>", "<|tool_call|>", "<|/tool_call|>", "<|tool_call|>[", list_specials,
                       TOOLCALL_JSON},
    [TOOLCALL_CALLS] = {"<tool_calls>", "<tool_calls>", "</tool_calls>", "", calls_specials, TOOLCALL_JSON},
    [TOOLCALL_NEMOTRON] = {"<TOOLCALL>", "<TOOLCALL>", "</TOOLCALL>", "<TOOLCALL>[", nemotron_specials, TOOLCALL_JSON},
    [TOOLCALL_GIGACHAT] = {"<|function_call|>", "<|function_call|>", NULL, "<|function_call|>", gigachat_specials,
                           TOOLCALL_JSON},
    [TOOLCALL_GIGACHAT3] = {"function call<|role_sep|>", "function call<|role_sep|>", NULL, "", gigachat3_specials,
                            TOOLCALL_JSON},
    [TOOLCALL_GEMMA] = {"Gemma's <|tool_call>", "<|tool_call>", "<tool_call|>", "", gemma_specials, TOOLCALL_JSON},
    [TOOLCALL_BARE] = {"bare JSON", "<|python_tag|>", NULL, "", bare_specials, TOOLCALL_JSON},
};

static const toolcall_section sections[] = {
    [TOOLCALL_DEEPSEEK] = {DS_CALL_BEGIN, NULL, DS_SEP, DS_CALL_END},
    [TOOLCALL_KIMI] = {"<|tool_call_begin|>", NULL, "<|tool_call_argument_begin|>", "<|tool_call_end|>"},
    [TOOLCALL_SOLAR] = {"<|tool_call:begin|>", "<|tool_call:name|>", "<|tool_call:args|>", "<|tool_call:end|>"},
};

const toolcall_section *toolcall_section_of(toolcall_form form)
{
    return (size_t)form < XD_ARRAY_LEN(sections) && sections[form].begin ? &sections[form] : NULL;
}

const toolcall_marks *toolcall_marks_of(toolcall_form form)
{
    return &marks[form];
}

toolcall_form toolcall_form_of(const char *source, size_t len)
{
    /* The order decides where a template shows more than one mark: what is rarer as plain text comes first. */
    static const struct {
        const char *mark, *also;
        toolcall_form form;
    } rows[] = {
        {DSML, "function_calls>", TOOLCALL_DSML},
        {DSML, NULL, TOOLCALL_DSML_V4},
        {DS_BEGIN, NULL, TOOLCALL_DEEPSEEK},
        {"<|tool_calls_section_begin|>", NULL, TOOLCALL_KIMI},
        {"<|tool_call:begin|>", NULL, TOOLCALL_SOLAR},
        {"<seed:tool_call>", NULL, TOOLCALL_SEED},
        {"<minimax:tool_call>", NULL, TOOLCALL_MINIMAX},
        {"<tool_sep", ":opensource", TOOLCALL_HUNYUAN},
        {"<|function_call|>", NULL, TOOLCALL_GIGACHAT},
        {"<|tool_call>", "<tool_call|>", TOOLCALL_GEMMA},
        {"function call", "<|role_sep|>", TOOLCALL_GIGACHAT3},
        {"<TOOLCALL>", NULL, TOOLCALL_NEMOTRON},
        {"[TOOL_CALLS]", NULL, TOOLCALL_MISTRAL},
        {"<tool_call>", "<function=", TOOLCALL_FUNCTION},
        {"<tool_call>", NULL, TOOLCALL_TAG},
        {"<|tool_call|>", NULL, TOOLCALL_LIST},
        {"<tool_calls>", NULL, TOOLCALL_CALLS},
        {"<|python_tag|>", "\"parameters\"", TOOLCALL_BARE},
        {"ipython", "\"parameters\"", TOOLCALL_BARE},
    };
    for (size_t i = 0; i < XD_ARRAY_LEN(rows); i++)
        if (memmem(source, len, rows[i].mark, strlen(rows[i].mark)) &&
            (!rows[i].also || memmem(source, len, rows[i].also, strlen(rows[i].also))))
            return rows[i].form;
    return TOOLCALL_NONE;
}

static bool begins(const char *text, size_t len, const char *what)
{
    return !memcmp(text, what, XD_MIN(len, strlen(what)));
}

bool toolcall_may_begin(toolcall_form form, const char *text, size_t len)
{
    if (!len)
        return true;
    const toolcall_section *section = toolcall_section_of(form);
    if (section)
        return begins(text, len, section->begin);
    if (marks[form].tags)
        return begins(text, len, toolcall_tag_marks_of(marks[form].tags)->begin);
    unsigned char c = (unsigned char)text[0];
    if (c ==
        '{') { /* a name comes first, or something else in quotes; not after pages of blanks, which would be read at each token */
        size_t i = 1;
        while (i < XD_MIN(len, (size_t)TOOLCALL_MAX_SPACE) &&
               (text[i] == ' ' || text[i] == '\t' || text[i] == '\r' || text[i] == '\n'))
            i++;
        return i == len || text[i] == '"';
    }
    bool name = c == '_' || (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c >= 0x80;
    switch (form) {
    case TOOLCALL_TAG:
    case TOOLCALL_FUNCTION: return c == '[' || name || begins(text, len, "<function=");
    case TOOLCALL_MISTRAL: return c == '[' || name;
    case TOOLCALL_GEMMA: return begins(text, len, "call:");
    default: return c == '[';
    }
}

/* ---- slices of JSON ---- */

typedef struct slice {
    const char *s;
    size_t len;
} slice;

static slice trim(slice v)
{
    while (v.len && json_scan_is_space(v.s[0]))
        v.s++, v.len--;
    while (v.len && json_scan_is_space(v.s[v.len - 1]))
        v.len--;
    return v;
}

static bool eat(slice *v, const char *what)
{
    size_t n = strlen(what);
    if (v->len < n || memcmp(v->s, what, n))
        return false;
    v->s += n;
    v->len -= n;
    return true;
}

/* Bytes of the first string, list, object or word of a text: all of it if it does not end. */
static size_t value_len(slice v)
{
    size_t depth = 0;
    bool in_string = false;
    for (size_t i = 0; i < v.len; i++) {
        char c = v.s[i];
        if (in_string) {
            if (c == '\\')
                i++;
            else if (c == '"') {
                in_string = false;
                if (!depth)
                    return i + 1;
            }
        } else if (c == '"') {
            in_string = true;
        } else if (c == '{' || c == '[') {
            depth++;
        } else if (c == '}' || c == ']' || c == ',') {
            if (!depth)
                return i;
            if (c != ',' && !--depth)
                return i + 1;
        }
    }
    return v.len;
}

/* The next `key: value` of an object's inside, or the next value of a list's; *v moves behind it and its comma. The text is JSON
 * already known to be well-formed. */
static bool next_member(slice *v, slice *ret_key, slice *ret_value)
{
    *v = trim(*v);
    if (!v->len)
        return false;
    for (slice *part = ret_key ? ret_key : ret_value;; part = ret_value) {
        size_t n = value_len(*v);
        *part = trim((slice){v->s, n});
        *v = trim((slice){v->s + n, v->len - n});
        if (part == ret_value)
            break;
        (void)eat(v, ":");
        *v = trim(*v);
    }
    (void)eat(v, ",");
    return true;
}

static slice inside(slice v)
{
    return (slice){v.s + 1, v.len - 2};
}

/* Numbers of any size are JSON, though jansson could not hold them as integers. */
static json_t *load(slice v)
{
    return json_loadb(v.s, v.len, JSON_DECODE_ANY | JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, NULL);
}

static xd_status add_call(json_t *list, const json_t *name, slice arguments)
{
    json_t *call = json_pack("{s:O, s:o}", "name", name, "arguments", json_stringn(arguments.s, arguments.len));
    return json_array_append_new(list, call) ? XD_NOMEM : XD_OK;
}

/* The text of a JSON object: the value itself, or what a string holds, or {} for none. false: it is none. */
static bool object_text(slice value, const json_t *decoded, slice *ret)
{
    if (!decoded || json_is_null(decoded)) {
        *ret = (slice){"{}", 2};
        return true;
    }
    if (json_is_object(decoded)) {
        *ret = value;
        return true;
    }
    if (!json_is_string(decoded))
        return false;
    *ret = trim((slice){json_string_value(decoded), json_string_length(decoded)});
    if (!ret->len)
        *ret = (slice){"{}", 2};
    json_t *inner = load(*ret);
    bool ok = json_is_object(inner);
    json_decref(inner);
    return ok;
}

/* {"name": ..., "arguments": ...}; Llama and some others write "parameters". `known` NULL: any name will do. */
static xd_status read_object(slice text, const json_t *decoded, const json_t *known, json_t *list)
{
    const json_t *name = json_object_get(decoded, "name");
    if (!json_string_length(name))
        return XD_BAD_REQUEST;
    if (known && !toolcall_function(known, json_string_value(name)))
        return XD_BAD_REQUEST;
    slice rest = inside(text), key, value, arguments = {NULL, 0};
    const json_t *args = json_object_get(decoded, "arguments");
    const char *args_key = args ? "\"arguments\"" : "\"parameters\"";
    args = args ? args : json_object_get(decoded, "parameters");
    while (next_member(&rest, &key, &value)) {
        if (eat(&key, args_key) && !key.len)
            arguments = value;
    }
    /* A key that is written with escapes is found by jansson only. */
    if ((args && !arguments.len) || !object_text(arguments, args, &arguments))
        return XD_BAD_REQUEST;
    return add_call(list, name, arguments);
}

/* One call or a list of them. */
static xd_status read_json(slice text, const json_t *known, json_t *list)
{
    text = trim(text);
    json_t *decoded = load(text);
    xd_status st = XD_BAD_REQUEST;
    if (json_is_object(decoded)) {
        st = read_object(text, decoded, known, list);
    } else if (json_array_size(decoded)) {
        slice rest = inside(text), value;
        st = XD_OK;
        for (size_t i = 0; !st && next_member(&rest, NULL, &value); i++)
            st = json_is_object(json_array_get(decoded, i))
                     ? read_object(value, json_array_get(decoded, i), known, list)
                     : XD_BAD_REQUEST;
    }
    json_decref(decoded);
    return st;
}

static bool is_name(slice v)
{
    for (size_t i = 0; i < v.len; i++)
        if ((unsigned char)v.s[i] <= ' ' || strchr("<>[]{}\"'`", v.s[i]))
            return false;
    return v.len && xd_utf8_valid(v.s, v.len);
}

/* A name and the text of its arguments. */
static xd_status add_named(slice name, slice arguments, json_t *list)
{
    name = trim(name);
    arguments = trim(arguments);
    if (!is_name(name))
        return XD_BAD_REQUEST;
    json_t *decoded = load(arguments), *n = json_stringn(name.s, name.len);
    xd_status st = !n ? XD_NOMEM : json_is_object(decoded) ? add_call(list, n, arguments) : XD_BAD_REQUEST;
    json_decref(decoded);
    json_decref(n);
    return st;
}

void toolcall_name_of_id(const char **name, size_t *len)
{
    slice v = {*name, *len};
    size_t n = v.len;
    while (n && v.s[n - 1] >= '0' && v.s[n - 1] <= '9')
        n--;
    if (n && n < v.len && v.s[n - 1] == ':')
        v.len = n - 1;
    (void)eat(&v, "functions.");
    *name = v.s;
    *len = v.len;
}

static size_t find(slice v, const char *what)
{
    const char *at = v.len ? memmem(v.s, v.len, what, strlen(what)) : NULL;
    return at ? (size_t)(at - v.s) : v.len;
}

/* [{...}] or name[ARGS]{...}, name[CALL_ID]id[ARGS]{...}, name{...} */
static xd_status read_mistral(slice text, json_t *list)
{
    text = trim(text);
    if (text.len && (text.s[0] == '[' || text.s[0] == '{'))
        return read_json(text, NULL, list);
    size_t brace = find(text, "{");
    slice head = {text.s, brace};
    size_t args = find(head, "[ARGS]"), call_id = find(head, "[CALL_ID]");
    if (args < head.len && trim((slice){head.s + args + 6, head.len - args - 6}).len)
        return XD_BAD_REQUEST;
    head.len = XD_MIN(args, call_id); /* the model's own id may be anything: it gets a new one */
    return add_named(head, (slice){text.s + brace, text.len - brace}, list);
}

/* DeepSeek V3 and R1: type, separator, name, newline, a fence around the arguments. All others, V3.1 too, as the table says. */
static xd_status read_section(toolcall_form form, slice text, json_t *list)
{
    const toolcall_section *m = toolcall_section_of(form);
    xd_status st = XD_OK;
    text = trim(text);
    while (!st && text.len) {
        if (!eat(&text, m->begin))
            return XD_BAD_REQUEST;
        /* The marks are tokens: they do not occur inside of arguments. */
        size_t end = find(text, m->end);
        slice one = {text.s, end};
        text = (slice){text.s + end, text.len - end};
        (void)eat(&text, m->end);
        text = trim(text);
        if (m->name) {
            size_t id = find(one, m->name);
            one = (slice){one.s + id, one.len - id};
            if (!eat(&one, m->name))
                return XD_BAD_REQUEST;
        }
        size_t sep = find(one, m->args);
        slice name = {one.s, sep}, args = {one.s + sep, one.len - sep}, id = trim(name);
        if (!eat(&args, m->args))
            return XD_BAD_REQUEST;
        if (form == TOOLCALL_KIMI) {
            name = id;
            toolcall_name_of_id(&name.s, &name.len);
        } else if (form == TOOLCALL_DEEPSEEK && trim(args).len && trim(args).s[0] != '{') {
            args = trim(args);
            size_t line = find(args, "\n");
            name = (slice){args.s, line};
            args = trim((slice){args.s + line, args.len - line});
            if (!eat(&args, "```json") || args.len < 3 || memcmp(args.s + args.len - 3, "```", 3))
                return XD_BAD_REQUEST;
            args.len -= 3;
        }
        st = add_named(name, args, list);
        if (!st && form == TOOLCALL_KIMI)
            st = json_object_set_new(json_array_get(list, json_array_size(list) - 1), "id", json_stringn(id.s, id.len))
                     ? XD_NOMEM
                     : XD_OK;
    }
    return st;
}

/* One or more objects or lists, with this between them. */
static xd_status read_several(slice text, const char *between, const json_t *known, json_t *list)
{
    xd_status st = XD_OK;
    for (text = trim(text); !st && text.len; text = trim(text)) {
        size_t n = value_len(text);
        st = read_json((slice){text.s, n}, known, list);
        text = trim((slice){text.s + n, text.len - n});
        if (!st && text.len && !eat(&text, between))
            return XD_BAD_REQUEST;
    }
    return st;
}

static xd_status read_functions(toolcall_tags kind, slice text, const json_t *tools, json_t *list)
{
    xd_status st = XD_OK;
    for (size_t n; !st && text.len; text = trim((slice){text.s + n, text.len - n}))
        if ((st = toolcall_read_function(kind, text.s, text.len, tools, list, &n)))
            break;
    return st;
}

static xd_status read_tag(slice text, const json_t *tools, json_t *list)
{
    text = trim(text);
    if (text.len && (text.s[0] == '{' || text.s[0] == '['))
        return read_json(text, NULL, list);
    if (!text.len || text.s[0] != '<')
        return toolcall_read_arg_keys(text.s, text.len, tools, list);
    return read_functions(TOOLCALL_PARAMETERS, text, tools, list);
}

xd_status toolcall_read(toolcall_form form, const char *text, size_t len, const json_t *tools, json_t **ret)
{
    json_t *list = json_array();
    if (!list)
        return XD_NOMEM;
    slice v = {text, len};
    xd_status st;
    if (marks[form].tags)
        st = read_functions(marks[form].tags, trim(v), tools, list);
    else if (toolcall_section_of(form))
        st = read_section(form, v, list);
    else if (form == TOOLCALL_MISTRAL)
        st = read_mistral(v, list);
    else if (form == TOOLCALL_GEMMA)
        st = toolcall_read_gemma(text, len, list);
    else if (form == TOOLCALL_BARE) /* since no mark says that this is a call, the names must be the request's */
        st = read_several(v, ";", tools, list);
    else if (form == TOOLCALL_TAG || form == TOOLCALL_FUNCTION)
        st = read_tag(v, tools, list);
    else
        st = read_several(v, "", NULL, list);
    if (!st && !json_array_size(list))
        st = XD_BAD_REQUEST;
    if (st) {
        json_decref(list);
        return st;
    }
    *ret = list;
    return XD_OK;
}

static bool same(slice v, const char *text)
{
    return v.len == strlen(text) && !memcmp(v.s, text, v.len);
}

static bool names_tool(slice value, const json_t *tools)
{
    json_t *name = load(value);
    bool known = json_is_string(name) && toolcall_function(tools, json_string_value(name));
    json_decref(name);
    return known;
}

xd_status toolcall_read_held(const char *text, size_t len, const json_t *tools, json_t **ret)
{
    slice v = trim((slice){text, len}), key, value = {text, 0}, arguments = {text, 0};
    if (!eat(&v, "{") || !next_member(&v, &key, &value) || !same(key, "\"name\""))
        return XD_BAD_REQUEST;
    bool has_arguments = next_member(&v, &key, &arguments) && same(key, "\"arguments\"");
    if (!has_arguments)
        arguments.len = 0;
    bool ends = !v.len || (arguments.len && same(v, "}"));
    if (!ends || (arguments.len && arguments.s[0] != '{') || !xd_utf8_valid(arguments.s, arguments.len) ||
        !names_tool(value, tools))
        return XD_BAD_REQUEST;
    json_t *name = load(value), *list = json_array();
    xd_status st = list ? add_call(list, name, arguments) : XD_NOMEM;
    json_decref(name);
    if (st)
        json_decref(list);
    else
        *ret = list;
    return st;
}
