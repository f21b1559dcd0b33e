/* toolcall_head.c - a call that is still being written: which tool it calls, known before its arguments are.
 *
 * Only what is certain counts: the usual order (name, then arguments that are a JSON object) and a name of the request's. Every other
 * spelling is left to toolcall.c, which reads whole calls. Arguments between tags come one by one, since they must be converted
 * (toolcall_xml.c). */
#include <string.h>

#include "api/json_scan.h"
#include "api/toolcall.h"
#include "config/util.h"

enum { MAX_HEAD = 512 }; /* names have 64 characters at most */

typedef struct reader {
    const char *s, *end, *begin;
    bool more; /* it was the text's end that a word did not fit */
} reader;

static void skip_space(reader *r)
{
    while (r->s < r->end && json_scan_is_space(*r->s))
        r->s++;
}

static bool eat(reader *r, const char *what)
{
    size_t n = strlen(what), have = (size_t)(r->end - r->s);
    if (memcmp(r->s, what, XD_MIN(n, have)))
        return false;
    if (have < n) {
        r->more = true;
        return false;
    }
    r->s += n;
    return true;
}

/* The same behind white space. */
static bool eat_next(reader *r, const char *what)
{
    skip_space(r);
    return eat(r, what);
}

/* The tool whose name is the next string, which has no escapes: names have no characters that need them. */
static bool eat_name(reader *r, const json_t *tools, toolcall_head *ret)
{
    if (!eat_next(r, "\""))
        return false;
    const char *s = r->s, *quote = memchr(s, '"', (size_t)(r->end - s));
    if (!quote) {
        r->more = true;
        return false;
    }
    r->s = quote + 1;
    return (ret->function = toolcall_function_n(tools, s, (size_t)(quote - s))) != NULL;
}

/* {"name": ..., "arguments": { */
static bool read_json(reader *r, const json_t *tools, bool held, toolcall_head *ret)
{
    ret->in_object = true;
    return eat_next(r, "{") && eat_next(r, "\"name\"") && eat_next(r, ":") && eat_name(r, tools, ret) &&
           eat_next(r, ",") && (eat_next(r, "\"arguments\"") || (!held && !r->more && eat_next(r, "\"parameters\""))) &&
           eat_next(r, ":");
}

/* NAME[ARGS]{, NAME[CALL_ID]id[ARGS]{, NAME{ */
static bool read_mistral(reader *r, const json_t *tools, toolcall_head *ret)
{
    const char *s = r->s, *brace = memchr(s, '{', (size_t)(r->end - s));
    if (!brace) {
        r->more = true;
        return false;
    }
    size_t len = (size_t)(brace - s);
    const char *args = memmem(s, len, "[ARGS]", 6), *id = memmem(s, len, "[CALL_ID]", 9);
    r->s = args ? args + 6 : brace;
    skip_space(r);
    const char *end = id && (!args || id < args) ? id : args ? args : brace;
    while (end > s && json_scan_is_space(end[-1]))
        end--;
    return r->s == brace && (ret->function = toolcall_function_n(tools, s, (size_t)(end - s)));
}

/* Moves behind the mark; NULL: it is not there yet. */
static const char *find_mark(reader *r, const char *mark)
{
    const char *at = memmem(r->s, (size_t)(r->end - r->s), mark, strlen(mark));
    r->more = !at;
    if (at)
        r->s = at + strlen(mark);
    return at;
}

/* DeepSeek V3 and R1: type, separator, name, newline, a fence. All others, V3.1 too, as the table says. */
static bool read_section(reader *r, toolcall_form form, const json_t *tools, toolcall_head *ret)
{
    const toolcall_section *m = toolcall_section_of(form);
    if (!eat(r, m->begin) || (m->name && !find_mark(r, m->name)))
        return false;
    const char *s = r->s, *end = find_mark(r, m->args);
    if (!end)
        return false;
    skip_space(r);
    r->more = r->s == r->end;
    if (r->more)
        return false;
    bool fence = form == TOOLCALL_DEEPSEEK && *r->s != '{';
    if (fence) {
        s = r->s;
        end = memchr(s, '\n', (size_t)(r->end - s));
        r->more = !end;
        if (!end)
            return false;
        r->s = end;
    }
    while (end > s && json_scan_is_space(end[-1]))
        end--;
    while (s < end && json_scan_is_space(*s))
        s++;
    size_t len = (size_t)(end - s);
    if (form == TOOLCALL_KIMI) {
        ret->id = s;
        ret->id_len = len;
        toolcall_name_of_id(&s, &len);
    }
    return (ret->function = toolcall_function_n(tools, s, len)) && (!fence || eat_next(r, "```json"));
}

/* <function=NAME> or NAME, and the first mark of its arguments, or of their end. kind JSON: the text shows which of these two. */
static bool read_tags(reader *r, toolcall_tags kind, const json_t *tools, toolcall_head *ret)
{
    const toolcall_tag_marks *m = toolcall_tag_marks_of(kind ? kind : TOOLCALL_PARAMETERS);
    bool function = eat(r, m->begin);
    if (!function && (kind || r->more || *r->s == '<'))
        return false;
    ret->tags = kind ? kind : function ? TOOLCALL_PARAMETERS : TOOLCALL_ARG_KEYS;
    const char *s = r->s, *end = function ? find_mark(r, m->name_end) : memchr(s, '<', (size_t)(r->end - s)),
               *name_end = end;
    r->more = !end;
    if (!end)
        return false;
    while (name_end > s && json_scan_is_space(name_end[-1]))
        name_end--;
    while (s < name_end && json_scan_is_space(*s))
        s++;
    r->s = function ? r->s : end;
    ret->function = toolcall_function_n(tools, s, (size_t)(name_end - s));
    ret->arguments = (size_t)(r->s - r->begin);
    if (!ret->function)
        return false;
    if (!function)
        return eat(r, toolcall_parameter_mark(TOOLCALL_ARG_KEYS));
    return eat_next(r, toolcall_parameter_mark(ret->tags)) || (!r->more && eat_next(r, m->end));
}

toolcall_found toolcall_find_head(toolcall_form form, const char *text, size_t len, const json_t *tools,
                                  const toolcall_head *before, toolcall_head *ret)
{
    reader r = {.s = text, .end = text + XD_MIN(len, (size_t)MAX_HEAD), .begin = text};
    toolcall_head h = {.in_list = before && before->in_list};
    bool ok;
    skip_space(&r);
    const toolcall_tags kind = toolcall_marks_of(form)->tags;
    bool name = r.s < r.end && *r.s != '{' && *r.s != '[', tagged = form == TOOLCALL_TAG || form == TOOLCALL_FUNCTION;
    if (kind || (tagged && name && !h.in_list)) {
        if (!read_tags(&r, kind, tools, &h))
            return r.more && len < MAX_HEAD ? TOOLCALL_MORE : TOOLCALL_NOT;
        *ret = h;
        return TOOLCALL_FOUND;
    }
    if (toolcall_section_of(form))
        ok = read_section(&r, form, tools, &h);
    else if (form == TOOLCALL_MISTRAL && name && !h.in_list)
        ok = read_mistral(&r, tools, &h);
    else {
        bool may_list = form != TOOLCALL_NONE && form != TOOLCALL_BARE && !before;
        h.in_list |= may_list && eat(&r, "[");
        ok = read_json(&r, tools, form == TOOLCALL_NONE, &h);
    }
    /* the arguments are an object */
    ok = ok && eat_next(&r, "{");
    if (!ok)
        return r.more && len < MAX_HEAD ? TOOLCALL_MORE : TOOLCALL_NOT;
    h.arguments = (size_t)(r.s - text) - 1;
    *ret = h;
    return TOOLCALL_FOUND;
}

toolcall_found toolcall_find_next(toolcall_form form, bool in_list, const char *text, size_t len, size_t *ret_end)
{
    reader r = {.s = text, .end = text + len};
    const char *end = text; /* behind what the call needed */
    bool next = false;
    const toolcall_section *section = toolcall_section_of(form);
    const toolcall_tags kind = toolcall_marks_of(form)->tags;
    skip_space(&r);
    if (section) {
        if (form == TOOLCALL_DEEPSEEK)
            (void)eat(&r, "```");
        if (!r.more && eat_next(&r, section->end)) {
            end = r.s;
            next = eat_next(&r, section->begin);
        }
    } else if (kind) {
        next = eat(&r, toolcall_tag_marks_of(kind)->begin);
    } else if (in_list) {
        next = eat(&r, ",");
        if (next || (!r.more && eat(&r, "]")))
            end = r.s;
    } else if (form == TOOLCALL_BARE) {
        next = eat(&r, ";");
        end = next ? r.s : end;
    } else if (form == TOOLCALL_TAG || form == TOOLCALL_FUNCTION || form == TOOLCALL_CALLS) {
        next = eat(&r, "{"); /* two in one tag */
    }
    if (r.more)
        return TOOLCALL_MORE;
    *ret_end = (size_t)(end - text);
    return next ? TOOLCALL_FOUND : TOOLCALL_NOT;
}
