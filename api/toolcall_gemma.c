/* toolcall_gemma.c - tool calls as Gemma 4 writes them: call:NAME{key:VALUE,...}. Keys stand without quotes, texts between the token <|"|> on both
 * sides, without escapes; numbers, true, false, null, {...} and [...] as in JSON. The notation is that of its chat template
 * (format_argument). */
#include <string.h>

#include "api/json_scan.h"
#include "api/toolcall.h"
#include "config/util.h"

#define QUOTE "<|\"|>"
enum { MAX_DEPTH = 64 };

typedef struct reader {
    const char *s, *end;
    xd_buf *out;
} reader;

static void skip_space(reader *r)
{
    while (r->s < r->end && json_scan_is_space(*r->s))
        r->s++;
}

static bool eat(reader *r, const char *what)
{
    skip_space(r);
    const size_t n = strlen(what);
    if ((size_t)(r->end - r->s) < n || memcmp(r->s, what, n))
        return false;
    r->s += n;
    return true;
}

static bool put_string(reader *r, const char *s, size_t len)
{
    json_t *v = json_stringn(s, len);
    char *text = v ? json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    const bool ok = text && xd_buf_puts(r->out, text);
    free(text);
    json_decref(v);
    return ok;
}

/* Behind its first mark. */
static bool read_text(reader *r)
{
    const char *close = memmem(r->s, (size_t)(r->end - r->s), QUOTE, strlen(QUOTE));
    if (!close || !put_string(r, r->s, (size_t)(close - r->s)))
        return false;
    r->s = close + strlen(QUOTE);
    return true;
}

/* A number, a word, or a text as JSON has it: what jansson reads as one value. Python's words for the first three of these come from templates
 * that write them. */
static bool read_plain(reader *r)
{
    static const char *const words[][2] = {{"None", "null"}, {"True", "true"}, {"False", "false"}};
    const char *begin = r->s;
    bool quoted = begin < r->end && *begin == '"', escaped = false;
    for (r->s += quoted; r->s < r->end && (quoted ? escaped || *r->s != '"' : !strchr(",]}", *r->s)); r->s++)
        escaped = quoted && !escaped && *r->s == '\\';
    r->s += quoted && r->s < r->end;
    size_t len = (size_t)(r->s - begin);
    while (len && json_scan_is_space(begin[len - 1]))
        len--;
    for (size_t i = 0; i < XD_ARRAY_LEN(words); i++)
        if (len == strlen(words[i][0]) && !memcmp(begin, words[i][0], len))
            return xd_buf_puts(r->out, words[i][1]);
    json_t *v = json_loadb(begin, len, JSON_DECODE_ANY | JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, NULL);
    const bool ok = v && !json_is_object(v) && !json_is_array(v) && xd_buf_append(r->out, begin, len);
    json_decref(v);
    return ok;
}

static bool read_value(reader *r, int depth);

static bool read_key(reader *r)
{
    if (eat(r, QUOTE))
        return read_text(r);
    if (r->s < r->end && *r->s == '"')
        return read_plain(r);
    const char *colon = memchr(r->s, ':', (size_t)(r->end - r->s));
    if (!colon || colon == r->s)
        return false;
    const char *begin = r->s;
    for (r->s = colon; colon > begin && json_scan_is_space(colon[-1]);)
        colon--;
    return put_string(r, begin, (size_t)(colon - begin));
}

/* Behind its brace or bracket, up to and with the other one. */
static bool read_inside(reader *r, bool object, int depth)
{
    const char *close = object ? "}" : "]";
    if (!xd_buf_putc(r->out, object ? '{' : '['))
        return false;
    for (bool first = true; !eat(r, close); first = false) {
        if (!first && (!eat(r, ",") || !xd_buf_putc(r->out, ',')))
            return false;
        if (object && (!read_key(r) || !eat(r, ":") || !xd_buf_putc(r->out, ':')))
            return false;
        if (!read_value(r, depth))
            return false;
    }
    return xd_buf_puts(r->out, close);
}

static bool read_value(reader *r, int depth)
{
    if (depth == MAX_DEPTH)
        return false;
    if (eat(r, QUOTE))
        return read_text(r);
    if (eat(r, "{"))
        return read_inside(r, true, depth + 1);
    if (eat(r, "["))
        return read_inside(r, false, depth + 1);
    return read_plain(r);
}

xd_status toolcall_read_gemma(const char *text, size_t len, json_t *list)
{
    XD_CLEANUP(xd_buf_free) xd_buf args = {0};
    reader r = {.s = text, .end = text + len, .out = &args};
    if (!eat(&r, "call:"))
        return XD_BAD_REQUEST;
    const char *name = r.s, *brace = memchr(r.s, '{', (size_t)(r.end - r.s));
    if (!brace || brace == name || !xd_utf8_valid(name, (size_t)(brace - name)))
        return XD_BAD_REQUEST;
    for (const char *c = name; c < brace; c++)
        if ((unsigned char)*c <= ' ' || strchr("<>[]\"'`", *c))
            return XD_BAD_REQUEST;
    r.s = brace + 1;
    const bool ok = read_inside(&r, true, 0);
    skip_space(&r);
    if (args.failed)
        return XD_NOMEM;
    if (!ok || r.s < r.end)
        return XD_BAD_REQUEST;
    json_t *call = json_pack("{s:s%, s:s%}", "name", name, (size_t)(brace - name), "arguments", args.data, args.len);
    return json_array_append_new(list, call) ? XD_NOMEM : XD_OK;
}
