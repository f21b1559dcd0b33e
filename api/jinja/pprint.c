/* pprint.c - the pprint filter: Python's pprint.pformat() with its defaults: 80 columns, indent 1, dicts sorted by key. */
#include <string.h>

#include "api/jinja/jinja_priv.h"

enum { PP_WIDTH = 80 };

typedef struct printer {
    jx *c;
    jx_sb *b;
} printer;

static void format(printer *p, jx_value v, int64_t indent, int64_t allowance, unsigned level);

static bool comparable(jx_value a, jx_value b)
{
    return (jx_is_number(a) && jx_is_number(b)) || (a.kind == JX_STR && b.kind == JX_STR) ||
           (a.kind == JX_TUPLE && b.kind == JX_TUPLE);
}

/* pprint's _safe_key: what cannot be compared is ordered by the name of its type. */
static bool key_less(jx *c, jx_value a, jx_value b)
{
    return comparable(a, b) ? jx_compare(c, a, b, "<") < 0 : strcmp(jx_type_name(a), jx_type_name(b)) < 0;
}

/* groupby()'s pairs have a repr of their own in jinja2 and so are printed as they are. */
static bool is_list(jx_value v)
{
    return v.kind == JX_LIST || (v.kind == JX_TUPLE && !v.l->group);
}

static const jx_pair *sorted(jx *c, const jx_dict *d)
{
    jx_pair *v = jx_alloc_array(c, d->n, 2 * sizeof *v);
    if (d->n)
        memcpy(v, d->v, d->n * sizeof *v);
    jx_sort_pairs(c, v, d->n, key_less);
    return v;
}

static void add(printer *p, const char *text, bool trusted)
{
    jx_sb_add(p->c, p->b, text, strlen(text), trusted);
}

/* repr() on one line with sorted dicts. */
static void one_line(printer *p, jx_value v)
{
    bool trusted = !v.client;
    JX_ENTER(p->c);
    jx_charge(p->c, 1);
    if (v.kind == JX_DICT) {
        const jx_pair *pairs = sorted(p->c, v.d);
        add(p, "{", trusted);
        for (size_t i = 0; i < v.d->n; i++) {
            if (i)
                add(p, ", ", trusted);
            one_line(p, pairs[i].key);
            add(p, ": ", trusted);
            one_line(p, pairs[i].value);
        }
        add(p, "}", trusted);
    } else if (is_list(v)) {
        bool list = v.kind == JX_LIST;
        add(p, list ? "[" : "(", trusted);
        for (size_t i = 0; i < v.l->n; i++) {
            if (i)
                add(p, ", ", trusted);
            one_line(p, v.l->v[i]);
        }
        add(p, list ? "]" : v.l->n == 1 ? ",)" : ")", trusted);
    } else {
        jx_repr(p->c, p->b, v);
    }
    JX_LEAVE(p->c);
}

static const jx_str *line_of(jx *c, jx_value v)
{
    jx_sb b = {0};
    one_line(&(printer){c, &b}, v);
    return jx_sb_done(c, &b);
}

static void new_line(printer *p, const char *comma, int64_t indent, bool trusted)
{
    add(p, comma, trusted);
    add(p, "\n", trusted);
    jx_sb_fill(p->c, p->b, " ", indent > 0 ? (size_t)indent : 0, trusted);
}

static void format_dict(printer *p, jx_value v, int64_t indent, int64_t allowance, unsigned level)
{
    const jx_pair *pairs = sorted(p->c, v.d);
    indent++;
    add(p, "{", !v.client);
    for (size_t i = 0; i < v.d->n; i++) {
        bool last = i + 1 == v.d->n;
        const jx_str *key = line_of(p->c, pairs[i].key);
        jx_sb_str(p->c, p->b, key);
        add(p, ": ", !v.client);
        format(p, pairs[i].value, indent + (int64_t)key->chars + 2, last ? allowance + 1 : 1, level);
        if (!last)
            new_line(p, ",", indent, !v.client);
    }
    add(p, "}", !v.client);
}

static void format_list(printer *p, jx_value v, int64_t indent, int64_t allowance, unsigned level)
{
    const char *end = v.kind == JX_LIST ? "]" : v.l->n == 1 ? ",)" : ")";
    add(p, v.kind == JX_LIST ? "[" : "(", !v.client);
    for (size_t i = 0; i < v.l->n; i++) {
        if (i)
            new_line(p, ",", indent + 1, !v.client);
        format(p, v.l->v[i], indent + 1, i + 1 == v.l->n ? allowance + (int64_t)strlen(end) : 1, level);
    }
    add(p, end, !v.client);
}

/* Pieces of one line of a string, cut behind white space so that each fits. */
static void cut_line(jx *c, jx_vec *chunks, const jx_str *line, int64_t width, int64_t last_allowance)
{
    const char *end = line->data + line->len;
    size_t from = 0, to = 0;
    while (to < line->len) {
        const char *at = line->data + to, *next = at;
        bool in_space = false;
        for (; at < end; at = next) { /* one \S*\s* */
            bool space = jx_is_space(jx_char(&next, end));
            if (in_space && !space)
                break;
            in_space = space;
        }
        size_t part = to;
        to = (size_t)(at - line->data);
        if (to == line->len)
            width -= last_allowance;
        const jx_str *candidate = line_of(c, JX_STRV(jx_str_sub(c, line, from, to)));
        jx_charge(c, 1 + candidate->len / 64);
        if ((int64_t)candidate->chars > width && part > from) {
            jx_push(c, chunks, JX_STRV(line_of(c, JX_STRV(jx_str_sub(c, line, from, part)))));
            from = part;
        }
    }
    jx_push(c, chunks, JX_STRV(line_of(c, JX_STRV(jx_str_sub(c, line, from, to)))));
}

static void format_str(printer *p, jx_value v, int64_t indent, int64_t allowance, unsigned level)
{
    jx *c = p->c;
    jx_vec chunks = {0};
    jx_value lines = jx_splitlines(c, v.s, true);
    bool outermost = level == 1;
    indent += outermost;
    allowance += outermost;
    int64_t width = PP_WIDTH - indent;
    for (size_t i = 0; i < lines.l->n; i++) {
        int64_t less = i + 1 == lines.l->n ? allowance : 0;
        const jx_str *rep = line_of(c, lines.l->v[i]);
        if ((int64_t)rep->chars <= width - less)
            jx_push(c, &chunks, JX_STRV(rep));
        else
            cut_line(c, &chunks, lines.l->v[i].s, width, less);
    }
    if (chunks.n == 1) { /* as it is on one line, however long */
        jx_sb_str(c, p->b, line_of(c, lines.l->v[lines.l->n - 1]));
        return;
    }
    bool trusted = jx_str_trusted(v.s);
    if (outermost)
        add(p, "(", trusted);
    for (size_t i = 0; i < chunks.n; i++) {
        if (i)
            new_line(p, "", indent, trusted);
        jx_sb_str(c, p->b, chunks.v[i].s);
    }
    if (outermost)
        add(p, ")", trusted);
}

static void format(printer *p, jx_value v, int64_t indent, int64_t allowance, unsigned level)
{
    const jx_str *rep = line_of(p->c, v);
    JX_ENTER(p->c);
    bool fits = (int64_t)rep->chars <= PP_WIDTH - indent - allowance;
    if (!fits && v.kind == JX_DICT)
        format_dict(p, v, indent, allowance, level + 1);
    else if (!fits && is_list(v))
        format_list(p, v, indent, allowance, level + 1);
    else if (!fits && v.kind == JX_STR && !v.s->markup && v.s->len)
        format_str(p, v, indent, allowance, level + 1);
    else
        jx_sb_str(p->c, p->b, rep);
    JX_LEAVE(p->c);
}

jx_value jx_filter_pprint(jx *c, jx_value v, jx_args *a)
{
    (void)a;
    jx_sb b = {0};
    format(&(printer){c, &b}, v, 0, 0, 0);
    return JX_STRV(jx_sb_done(c, &b));
}
