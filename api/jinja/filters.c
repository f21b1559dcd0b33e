/* filters.c - the table of filters, and those that work on one value. Filters over sequences are in filters_seq.c, tojson,
 * pprint, urlize and wordwrap in files of their own. */
#include <math.h>
#include <string.h>

#include "api/jinja/jinja_priv.h"

#define FILTER(name) static jx_value filter_##name(jx *c, jx_value v, jx_args *a)

FILTER(abs)
{
    (void)a;
    if (v.kind == JX_FLOAT)
        return JX_FLOATV(fabs(v.f));
    if (v.kind != JX_INT && v.kind != JX_BOOL)
        jx_error(c, "bad operand type for abs(): '%s'", jx_type_name(v));
    return jx_as_int(v) < 0 ? jx_negate(c, v, true) : JX_INTV(jx_as_int(v));
}

FILTER(attr)
{
    return jx_attr_only(c, v, jx_need_str(c, a->v[0], "attribute name"));
}

FILTER(capitalize)
{
    (void)a;
    return JX_STRV(jx_str_case(c, jx_to_str(c, v), JX_CAPITALIZE));
}

FILTER(center)
{
    int64_t width = a->v[0].kind == JX_MISSING ? 80 : jx_need_index(c, a->v[0]);
    return JX_STRV(jx_pad(c, jx_to_str(c, v), width, jx_str_lit(c, " "), 0));
}

FILTER(default)
{
    if (v.kind != JX_UNDEFINED && !(jx_given_true(c, a->v[1]) && !jx_truth(c, v)))
        return v;
    return a->v[0].kind == JX_MISSING ? JX_STRV(jx_str_lit(c, "")) : a->v[0];
}

FILTER(escape)
{
    (void)a;
    return JX_STRV(jx_str_escape(c, jx_to_str(c, v)));
}

FILTER(forceescape)
{
    (void)a;
    return JX_STRV(jx_str_escape(c, jx_str_markup(c, jx_to_str(c, v), false)));
}

FILTER(filesizeformat)
{
    double n = 0;
    if (v.kind == JX_STR ? !jx_parse_float(v.s, &n) : !jx_is_number(v))
        jx_error(c, "could not convert to float");
    if (v.kind != JX_STR)
        n = jx_as_float(v);
    bool binary = jx_given_true(c, a->v[0]);
    static const char *const units[2][8] = {{"kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB"},
                                            {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB"}};
    double base = binary ? 1024 : 1000, unit = base;
    char text[400];
    if (n == 1) {
        snprintf(text, sizeof text, "1 Byte");
    } else if (n < base) {
        char whole[48];
        jx_int_repr(whole, jx_float_to_int(c, n));
        snprintf(text, sizeof text, "%s Bytes", whole);
    } else {
        size_t i = 0;
        for (unit = base * base; i < 7 && !(n < unit); i++)
            unit *= base;
        snprintf(text, sizeof text, "%.1f %s", base * n / unit, units[binary][i]);
    }
    return JX_STRV(jx_str_copy(c, text, strlen(text), !v.client));
}

FILTER(float)
{
    double f;
    if (v.kind == JX_UNDEFINED)
        jx_throw_undefined(c, v);
    jx_charge(c, v.kind == JX_STR ? v.s->len / 4 : 0);
    if (jx_is_number(v))
        return JX_FLOATV(jx_as_float(v));
    if (v.kind == JX_STR && jx_parse_float(v.s, &f))
        return JX_FLOATV(f);
    return a->v[0].kind == JX_MISSING ? JX_FLOATV(0.0) : a->v[0];
}

FILTER(format)
{
    const jx_str *s = jx_to_str(c, v);
    if (a->n && a->n_kw)
        jx_error(c, "can't handle positional and keyword arguments at the same time");
    if (!a->n_kw) {
        jx_vec l = {.v = a->v, .n = a->n};
        return JX_STRV(jx_format_percent(c, s, jx_vec_list(c, &l, JX_TUPLE)));
    }
    jx_dict *d = jx_dict_new(c, a->n_kw);
    for (size_t i = 0; i < a->n_kw; i++)
        jx_dict_set(c, d, a->kw[i].key, a->kw[i].value);
    return JX_STRV(jx_format_percent(c, s, (jx_value){.kind = JX_DICT, .d = d}));
}

FILTER(indent)
{
    const jx_str *s, *with = jx_str_lit(c, "    ");
    if (v.kind == JX_UNDEFINED)
        jx_throw_undefined(c, v);
    if (v.kind != JX_STR)
        jx_error(c, "unsupported operand type(s) for +=: '%s' and 'str'", jx_type_name(v));
    if (a->v[0].kind == JX_STR) {
        with = a->v[0].s;
    } else if (a->v[0].kind != JX_MISSING) {
        int64_t width = jx_need_index(c, a->v[0]);
        jx_sb spaces = {0};
        jx_sb_fill(c, &spaces, " ", width > 0 ? (size_t)width : 0, true);
        with = jx_sb_done(c, &spaces);
    }
    bool blank = jx_given_true(c, a->v[2]);
    jx_sb b = {0};
    s = jx_str_concat(c, v.s, jx_str_markup(c, jx_str_lit(c, "\n"), v.s->markup));
    jx_value lines = jx_splitlines(c, s, false);
    if (jx_given_true(c, a->v[1]))
        jx_sb_str(c, &b, with);
    for (size_t i = 0; i < lines.l->n; i++) {
        const jx_str *line = lines.l->v[i].s;
        if (i)
            jx_sb_lit(c, &b, "\n");
        if (i && (blank || line->len))
            jx_sb_str(c, &b, with);
        jx_sb_str(c, &b, line);
    }
    return JX_STRV(jx_str_markup(c, jx_sb_done(c, &b), v.s->markup));
}

FILTER(int)
{
    jx_value other = a->v[0].kind == JX_MISSING ? JX_INTV(0) : a->v[0];
    jx_value b = a->v[1].kind == JX_MISSING ? JX_INTV(10) : a->v[1];
    int64_t base = b.kind == JX_INT || b.kind == JX_BOOL ? jx_need_index(c, b) : -1;
    jx_int i;
    double f;
    if (v.kind == JX_UNDEFINED)
        jx_throw_undefined(c, v);
    jx_charge(c, v.kind == JX_STR ? v.s->len / 4 : 0);
    if (v.kind == JX_INT || v.kind == JX_BOOL)
        return JX_INTV(jx_as_int(v));
    if (v.kind == JX_FLOAT)
        return isnan(v.f) ? other : JX_INTV(jx_float_to_int(c, v.f));
    if (v.kind != JX_STR)
        return other;
    if ((base == 0 || (base >= 2 && base <= 36)) && jx_parse_int(v.s, (unsigned)base, &i))
        return JX_INTV(i);
    if (!jx_parse_float(v.s, &f) || isnan(f) || isinf(f))
        return other;
    return JX_INTV(jx_float_to_int(c, f));
}

FILTER(lower)
{
    (void)a;
    return JX_STRV(jx_str_case(c, jx_to_str(c, v), JX_LOWER));
}

FILTER(replace)
{
    int64_t max = jx_given_not_none(a->v[2]) ? jx_need_index(c, a->v[2]) : -1;
    const jx_str *s = jx_str_markup(c, jx_to_str(c, v), false);
    return JX_STRV(jx_replace(c, s, jx_to_str(c, a->v[0]), jx_to_str(c, a->v[1]), max));
}

/* round(f, digits) as Python: the decimal expansion rounded half to even, which printf does exactly. */
static double round_digits(jx *c, double f, int64_t digits)
{
    char text[1500];
    if (!isfinite(f) || digits > 330)
        return f;
    if (digits >= 0) {
        snprintf(text, sizeof text, "%.*f", (int)digits, f);
        return strtod(text, NULL);
    }
    if (digits < -308)
        return copysign(0.0, f);
    double unit = pow(10, (double)-digits), r = nearbyint(f / unit) * unit;
    if (!isfinite(r))
        jx_error(c, "rounded value too large to represent");
    return r;
}

static jx_value round_int(jx *c, jx_int i, int64_t digits)
{
    if (digits >= 0)
        return JX_INTV(i);
    if (digits < -37)
        return JX_INTV(0);
    jx_int unit = 1;
    for (; digits; digits++)
        unit *= 10;
    jx_int rest = ((i % unit) + unit) % unit, low = i - rest;
    bool up = rest * 2 > unit || (rest * 2 == unit && (low / unit) % 2 != 0);
    return jx_binary(c, JX_ADD, JX_INTV(low), JX_INTV(up ? unit : 0));
}

FILTER(round)
{
    int64_t digits = a->v[0].kind == JX_MISSING ? 0 : jx_need_index(c, a->v[0]);
    const jx_str *method = a->v[1].kind == JX_MISSING ? NULL : jx_need_str(c, a->v[1], "method");
    if (method && !jx_str_is(method, "common") && !jx_str_is(method, "ceil") && !jx_str_is(method, "floor"))
        jx_error(c, "method must be common, ceil or floor");
    if (!jx_is_number(v))
        jx_error(c, "type %s doesn't define __round__ method", jx_type_name(v));
    if (!method || jx_str_is(method, "common")) {
        if (v.kind != JX_FLOAT)
            return round_int(c, jx_as_int(v), digits);
        return JX_FLOATV(round_digits(c, v.f, digits));
    }
    jx_value unit = jx_binary(c, JX_POW, JX_INTV(10), JX_INTV(digits));
    jx_value scaled = jx_binary(c, JX_MUL, v, unit);
    if (scaled.kind == JX_FLOAT)
        scaled = JX_INTV(jx_float_to_int(c, jx_str_is(method, "ceil") ? ceil(scaled.f) : floor(scaled.f)));
    return jx_binary(c, JX_DIV, scaled, unit);
}

FILTER(safe)
{
    (void)a;
    return JX_STRV(jx_str_markup(c, jx_to_str(c, v), true));
}

FILTER(string)
{
    (void)a;
    return JX_STRV(jx_to_str(c, v));
}

static bool title_separator(int32_t ch)
{
    return jx_is_space(ch) || ch == '-' || ch == '(' || ch == '{' || ch == '[' || ch == '<';
}

FILTER(title)
{
    (void)a;
    const jx_str *s = jx_to_str(c, v);
    jx_sb b = {0};
    const char *end = s->data + s->len;
    for (const char *at = s->data; at < end;) {
        const char *first = at, *next = at;
        if (title_separator(jx_char(&next, end))) {
            jx_sb_sub(c, &b, s, (size_t)(at - s->data), (size_t)(next - s->data));
            at = next;
            continue;
        }
        const char *rest = next;
        while (next < end) {
            const char *p = next;
            if (title_separator(jx_char(&p, end)))
                break;
            next = p;
        }
        at = next;
        size_t from = (size_t)(first - s->data), mid = (size_t)(rest - s->data), to = (size_t)(next - s->data);
        jx_sb_str(c, &b, jx_str_case(c, jx_str_sub(c, s, from, mid), JX_UPPER));
        jx_sb_str(c, &b, jx_str_case(c, jx_str_sub(c, s, mid, to), JX_LOWER));
    }
    return JX_STRV(jx_sb_done(c, &b));
}

FILTER(trim)
{
    return JX_STRV(jx_strip(c, jx_to_str(c, v), a->v[0], 3));
}

FILTER(truncate)
{
    const jx_str *end = a->v[2].kind == JX_MISSING ? jx_str_lit(c, "...") : jx_need_str(c, a->v[2], "end");
    int64_t length = a->v[0].kind == JX_MISSING ? 255 : jx_need_index(c, a->v[0]);
    int64_t leeway = jx_given_not_none(a->v[3]) ? jx_need_index(c, a->v[3]) : 5;
    if (length < (int64_t)end->chars || leeway < 0)
        jx_error(c, "expected length >= %zu, got %lld", end->chars, (long long)length);
    size_t len;
    if (!jx_len(v, &len))
        jx_error(c, "object of type '%s' has no len()", jx_type_name(v));
    if ((int64_t)len <= length || (int64_t)len - length <= leeway)
        return v;
    const jx_str *s = jx_need_str(c, v, "truncate's value");
    s = jx_str_sub(c, s, 0, jx_str_offset(s, (size_t)(length - (int64_t)end->chars)));
    if (!jx_given_true(c, a->v[1])) {
        size_t space = jx_str_rfind(c, s, jx_str_lit(c, " "), s->len);
        if (space != SIZE_MAX)
            s = jx_str_sub(c, s, 0, space);
    }
    return JX_STRV(jx_str_concat(c, s, end));
}

FILTER(upper)
{
    (void)a;
    return JX_STRV(jx_str_case(c, jx_to_str(c, v), JX_UPPER));
}

static void add_quoted(jx *c, jx_sb *b, jx_value v, bool query)
{
    const jx_str *s = jx_to_str(c, v);
    bool trusted = jx_str_trusted(s);
    for (size_t i = 0; i < s->len; i++) {
        unsigned char ch = (unsigned char)s->data[i];
        char text[4] = {(char)ch};
        if (query && ch == ' ')
            text[0] = '+';
        else if (!(ch < 0x80 && (jx_is_word(ch) || strchr("-.~", ch))) && !(ch == '/' && !query))
            snprintf(text, sizeof text, "%%%02X", ch);
        jx_sb_add(c, b, text, text[0] ? strlen(text) : 1, trusted);
    }
}

FILTER(urlencode)
{
    (void)a;
    jx_sb b = {0};
    if (v.kind == JX_STR || !jx_iterable(v)) {
        add_quoted(c, &b, v, false);
        return JX_STRV(jx_sb_done(c, &b));
    }
    jx_iter it = jx_iter_open(c, v);
    jx_value item;
    for (size_t i = 0; jx_iter_next(c, &it, &item); i++) {
        jx_value key = item, value;
        if (v.kind == JX_DICT) {
            value = v.d->v[i].value;
        } else {
            jx_value pair = jx_to_list(c, item, JX_LIST);
            if (pair.l->n != 2)
                jx_error(c, "expected pairs of key and value");
            key = pair.l->v[0];
            value = pair.l->v[1];
        }
        if (i)
            jx_sb_lit(c, &b, "&");
        add_quoted(c, &b, key, true);
        jx_sb_lit(c, &b, "=");
        add_quoted(c, &b, value, true);
    }
    return JX_STRV(jx_sb_done(c, &b));
}

FILTER(wordcount)
{
    (void)a;
    const jx_str *s = jx_to_str(c, v);
    const char *end = s->data + s->len;
    jx_int n = 0;
    bool inside = false;
    jx_charge(c, s->len / 16);
    for (const char *at = s->data; at < end;) {
        bool word = jx_is_word(jx_char(&at, end));
        n += word && !inside;
        inside = word;
    }
    return JX_INTV(n);
}

FILTER(striptags)
{
    (void)a;
    const jx_str *s = jx_to_str(c, v);
    jx_sb b = {0};
    size_t from = 0;
    for (size_t i = 0; i < s->len; i++) {
        if (s->data[i] != '<')
            continue;
        bool comment = s->len - i >= 4 && !memcmp(s->data + i, "<!--", 4);
        const char *close_at =
            comment ? memmem(s->data + i, s->len - i, "-->", 3) : memchr(s->data + i, '>', s->len - i);
        if (!close_at)
            break;
        jx_sb_sub(c, &b, s, from, i);
        from = (size_t)(close_at - s->data) + (comment ? 3 : 1);
        i = from - 1;
    }
    jx_sb_sub(c, &b, s, from, s->len);
    static const struct {
        const char *from, *to;
    } entities[] = {{"&lt;", "<"}, {"&gt;", ">"}, {"&#34;", "\""}, {"&quot;", "\""}, {"&#39;", "'"}, {"&amp;", "&"}};
    jx_args none = {0};
    jx_value words = jx_call_func(c, jx_find_method(JX_STRV(s), jx_str_lit(c, "split")), "function",
                                  JX_STRV(jx_sb_done(c, &b)), &none);
    jx_sb out = {0};
    for (size_t i = 0; i < words.l->n; i++) {
        if (i)
            jx_sb_lit(c, &out, " ");
        jx_sb_str(c, &out, words.l->v[i].s);
    }
    s = jx_sb_done(c, &out);
    for (size_t i = 0; i < XD_ARRAY_LEN(entities); i++)
        s = jx_replace(c, s, jx_str_lit(c, entities[i].from), jx_str_lit(c, entities[i].to), -1);
    return JX_STRV(s);
}

FILTER(xmlattr)
{
    if (v.kind != JX_DICT)
        jx_error(c, "'%s' object has no attribute 'items'", jx_type_name(v));
    bool space = a->v[0].kind == JX_MISSING || jx_truth(c, a->v[0]);
    jx_sb b = {0};
    for (size_t i = 0; i < v.d->n; i++) {
        jx_value key = v.d->v[i].key, value = v.d->v[i].value;
        if (value.kind == JX_NONE || value.kind == JX_UNDEFINED)
            continue;
        const jx_str *name = jx_need_str(c, key, "an attribute name");
        for (size_t k = 0; k < name->len; k++)
            if (name->data[k] && strchr(" \t\n\r\f\v/>=", name->data[k]))
                jx_error(c, "Invalid character in attribute name: %s", jx_repr_text(c, key));
        if (b.len || space)
            jx_sb_lit(c, &b, " ");
        jx_sb_str(c, &b, jx_str_escape(c, name));
        jx_sb_lit(c, &b, "=\"");
        jx_sb_str(c, &b, jx_str_escape(c, jx_to_str(c, value)));
        jx_sb_lit(c, &b, "\"");
    }
    return JX_STRV(jx_sb_done(c, &b));
}

static const jx_func filters[] = {
    {"abs", filter_abs, ""},
    {"attr", filter_attr, "name"},
    {"capitalize", filter_capitalize, ""},
    {"center", filter_center, "| width"},
    {"d", filter_default, "| default_value boolean"},
    {"default", filter_default, "| default_value boolean"},
    {"e", filter_escape, ""},
    {"escape", filter_escape, ""},
    {"filesizeformat", filter_filesizeformat, "| binary"},
    {"float", filter_float, "| default"},
    {"forceescape", filter_forceescape, ""},
    {"format", filter_format, NULL},
    {"indent", filter_indent, "| width first blank"},
    {"int", filter_int, "| default base"},
    {"lower", filter_lower, ""},
    {"pprint", jx_filter_pprint, ""},
    {"replace", filter_replace, "old new | count"},
    {"round", filter_round, "| precision method"},
    {"safe", filter_safe, ""},
    {"string", filter_string, ""},
    {"striptags", filter_striptags, ""},
    {"title", filter_title, ""},
    {"tojson", jx_filter_tojson, "| ensure_ascii indent separators sort_keys"},
    {"trim", filter_trim, "| chars"},
    {"truncate", filter_truncate, "| length killwords end leeway"},
    {"upper", filter_upper, ""},
    {"urlize", jx_filter_urlize, "| trim_url_limit nofollow target rel extra_schemes"},
    {"wordwrap", jx_filter_wordwrap, "| width break_long_words wrapstring break_on_hyphens"},
    {"urlencode", filter_urlencode, ""},
    {"wordcount", filter_wordcount, ""},
    {"xmlattr", filter_xmlattr, "| autospace"},
    {NULL, NULL, NULL},
};

const jx_func *jx_find_filter(const jx_str *name)
{
    const jx_func *tables[] = {filters, jx_seq_filters};
    for (size_t t = 0; t < XD_ARRAY_LEN(tables); t++)
        for (const jx_func *f = tables[t]; f->name; f++)
            if (jx_str_is(name, f->name))
                return f;
    return NULL;
}
