/* tojson.c - transformers' tojson filter: json.dumps(ensure_ascii=False) with indent, separators and sort_keys, no HTML escaping. */
#include <math.h>
#include <string.h>

#include "api/jinja/jinja_priv.h"

typedef struct writer {
    jx *c;
    jx_sb *b;
    const jx_str *item, *key; /* separators */
    const jx_str *indent;     /* of one level, NULL: everything on one line */
    bool ascii, sort;
    size_t level;
} writer;

static void write_value(writer *w, jx_value v);

static void write_string(writer *w, const jx_str *s)
{
    bool trusted = jx_str_trusted(s);
    const char *end = s->data + s->len, *plain = s->data;
    jx_sb_add(w->c, w->b, "\"", 1, trusted);
    jx_charge(w->c, s->len / 8);
    for (const char *at = s->data; at < end;) {
        const char *start = at;
        int32_t ch = jx_char(&at, end);
        char text[16];
        int n = 0;
        static const char from[] = "\"\\\n\r\t\f\b", to[] = "\"\\nrtfb";
        const char *simple = ch && ch < 0x80 ? strchr(from, ch) : NULL;
        if (simple)
            n = snprintf(text, sizeof text, "\\%c", to[simple - from]);
        else if (ch < 0x20 || (w->ascii && ch >= 0x7F && ch < 0x10000))
            n = snprintf(text, sizeof text, "\\u%04x", (unsigned)ch);
        else if (w->ascii && ch >= 0x10000)
            n = snprintf(text, sizeof text, "\\u%04x\\u%04x", 0xD800u + ((unsigned)(ch - 0x10000) >> 10),
                         0xDC00u + ((unsigned)(ch - 0x10000) & 0x3FF));
        if (!n)
            continue;
        jx_sb_sub(w->c, w->b, s, (size_t)(plain - s->data), (size_t)(start - s->data));
        jx_sb_add(w->c, w->b, text, (size_t)n, trusted);
        plain = at;
    }
    jx_sb_sub(w->c, w->b, s, (size_t)(plain - s->data), s->len);
    jx_sb_add(w->c, w->b, "\"", 1, trusted);
}

static void write_float(writer *w, jx_value v)
{
    char text[32];
    size_t n;
    if (isnan(v.f) || isinf(v.f))
        n = (size_t)snprintf(text, sizeof text, "%s", isnan(v.f) ? "NaN" : v.f < 0 ? "-Infinity" : "Infinity");
    else
        n = jx_float_repr(text, v.f);
    jx_sb_add(w->c, w->b, text, n, !v.client);
}

static void new_line(writer *w)
{
    if (!w->indent)
        return;
    jx_sb_lit(w->c, w->b, "\n");
    for (size_t i = 0; i < w->level; i++)
        jx_sb_str(w->c, w->b, w->indent);
}

static void open_or_next(writer *w, bool first, char bracket, bool trusted)
{
    if (first) {
        jx_sb_add(w->c, w->b, &bracket, 1, trusted);
        w->level++;
    } else {
        jx_sb_str(w->c, w->b, w->item);
    }
    new_line(w);
}

static void close_bracket(writer *w, bool empty, const char *brackets, bool trusted)
{
    if (empty) {
        jx_sb_add(w->c, w->b, brackets, 2, trusted);
        return;
    }
    w->level--;
    new_line(w);
    jx_sb_add(w->c, w->b, brackets + 1, 1, trusted);
}

static void write_key(writer *w, jx_value key)
{
    if (key.kind == JX_STR) {
        write_string(w, key.s);
        return;
    }
    if (key.kind != JX_NONE && !jx_is_number(key))
        jx_error(w->c, "keys must be str, int, float, bool or None, not %s", jx_type_name(key));
    jx_sb_lit(w->c, w->b, "\"");
    write_value(w, key);
    jx_sb_lit(w->c, w->b, "\"");
}

static void write_dict(writer *w, jx_value v)
{
    const jx_pair *pairs = v.d->v;
    size_t n = v.d->n;
    if (w->sort && n > 1) {
        jx_pair *sorted = jx_alloc_array(w->c, n, 2 * sizeof *sorted);
        memcpy(sorted, pairs, n * sizeof *sorted);
        jx_sort_pairs(w->c, sorted, n, jx_less);
        pairs = sorted;
    }
    for (size_t i = 0; i < n; i++) {
        open_or_next(w, i == 0, '{', !v.client);
        write_key(w, pairs[i].key);
        jx_sb_str(w->c, w->b, w->key);
        write_value(w, pairs[i].value);
    }
    close_bracket(w, n == 0, "{}", !v.client);
}

static void write_list(writer *w, jx_value v)
{
    for (size_t i = 0; i < v.l->n; i++) {
        open_or_next(w, i == 0, '[', !v.client);
        write_value(w, v.l->v[i]);
    }
    close_bracket(w, v.l->n == 0, "[]", !v.client);
}

static void write_value(writer *w, jx_value v)
{
    JX_ENTER(w->c);
    jx_charge(w->c, 1);
    char text[48];
    switch ((jx_kind)v.kind) {
    case JX_NONE: jx_sb_add(w->c, w->b, "null", 4, !v.client); break;
    case JX_BOOL: jx_sb_add(w->c, w->b, v.b ? "true" : "false", v.b ? 4 : 5, !v.client); break;
    case JX_INT: jx_sb_add(w->c, w->b, text, jx_int_repr(text, v.i), !v.client); break;
    case JX_FLOAT: write_float(w, v); break;
    case JX_STR: write_string(w, v.s); break;
    case JX_LIST:
    case JX_TUPLE: write_list(w, v); break;
    case JX_DICT: write_dict(w, v); break;
    default: jx_error(w->c, "Object of type %s is not JSON serializable", jx_type_name(v));
    }
    JX_LEAVE(w->c);
}

jx_value jx_filter_tojson(jx *c, jx_value v, jx_args *a)
{
    jx_value ascii = a->v[0], indent = a->v[1], separators = a->v[2], sort = a->v[3];
    jx_sb b = {0};
    writer w = {.c = c, .b = &b, .ascii = jx_truth(c, ascii), .sort = jx_truth(c, sort)};
    w.item = jx_str_lit(c, ", ");
    w.key = jx_str_lit(c, ": ");
    bool no_indent = v.kind == JX_STR || indent.kind == JX_MISSING || indent.kind == JX_NONE;
    if (!no_indent && indent.kind == JX_STR) {
        w.indent = indent.s;
    } else if (!no_indent) { /* Python does not even look at it when the value is a str */
        int64_t n = jx_need_index(c, indent);
        jx_sb spaces = {0};
        jx_sb_fill(c, &spaces, " ", n > 0 ? (size_t)n : 0, true);
        w.indent = jx_sb_done(c, &spaces);
    }
    if (w.indent)
        w.item = jx_str_lit(c, ",");
    if (jx_given_not_none(separators)) {
        jx_value pair = jx_to_list(c, separators, JX_LIST);
        if (pair.l->n != 2)
            jx_error(c, "separators must be a pair of strings");
        w.item = jx_need_str(c, pair.l->v[0], "a separator");
        w.key = jx_need_str(c, pair.l->v[1], "a separator");
    }
    write_value(&w, v);
    return JX_STRV(jx_sb_done(c, &b));
}
