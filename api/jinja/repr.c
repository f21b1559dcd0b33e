/* repr.c - values as text, the way Python's str() and repr() write them, and text as numbers. */
#include <math.h>
#include <string.h>

#include "api/jinja/jinja_priv.h"

size_t jx_int_repr(char out[48], jx_int i)
{
    char digits[48];
    size_t n = 0, len = 0;
    jx_uint u = i < 0 ? -(jx_uint)i : (jx_uint)i;
    do
        digits[n++] = (char)('0' + (int)(u % 10));
    while (u /= 10);
    if (i < 0)
        out[len++] = '-';
    while (n)
        out[len++] = digits[--n];
    out[len] = 0;
    return len;
}

/* The shortest digits that read back as the same number, in Python's choice of notation. */
size_t jx_float_repr(char out[32], double f)
{
    if (isnan(f) || isinf(f))
        return (size_t)snprintf(out, 32, "%s", isnan(f) ? "nan" : f < 0 ? "-inf" : "inf");
    char e[40];
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(e, sizeof e, "%.*e", digits - 1, f);
        if (strtod(e, NULL) == f)
            break;
    }
    char *exponent_at = strchr(e, 'e');
    int exponent = atoi(exponent_at + 1);
    char digits[24];
    size_t n = 0, len = 0;
    for (const char *p = e; p < exponent_at; p++)
        if (*p >= '0' && *p <= '9')
            digits[n++] = *p;
    while (n > 1 && digits[n - 1] == '0')
        n--;
    if (signbit(f))
        out[len++] = '-';
    if (exponent < -4 || exponent >= 16) {
        out[len++] = digits[0];
        if (n > 1) {
            out[len++] = '.';
            memcpy(out + len, digits + 1, n - 1);
            len += n - 1;
        }
        return len + (size_t)snprintf(out + len, 32 - len, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
    }
    if (exponent < 0) {
        out[len++] = '0';
        out[len++] = '.';
        for (int i = -1; i > exponent; i--)
            out[len++] = '0';
        memcpy(out + len, digits, n);
        len += n;
    } else {
        for (size_t i = 0; i <= (size_t)exponent; i++)
            out[len++] = i < n ? digits[i] : '0';
        out[len++] = '.';
        if (n > (size_t)exponent + 1) {
            memcpy(out + len, digits + exponent + 1, n - (size_t)exponent - 1);
            len += n - (size_t)exponent - 1;
        } else {
            out[len++] = '0';
        }
    }
    out[len] = 0;
    return len;
}

static int escape_char(char ret[16], int32_t ch)
{
    return snprintf(ret, 16, ch < 0x100 ? "\\x%02x" : ch < 0x10000 ? "\\u%04x" : "\\U%08x", (unsigned)ch);
}

static void repr_str(jx *c, jx_sb *b, const jx_str *s)
{
    bool trusted = jx_str_trusted(s);
    char quote = s->len && memchr(s->data, '\'', s->len) && !memchr(s->data, '"', s->len) ? '"' : '\'';
    if (s->markup)
        jx_sb_lit(c, b, "Markup(");
    jx_sb_add(c, b, &quote, 1, trusted);
    const char *end = s->data + s->len, *plain = s->data;
    jx_charge(c, s->len / 8);
    for (const char *at = s->data; at < end;) {
        const char *start = at;
        int32_t ch = jx_char(&at, end);
        char escape[16];
        int n = 0;
        if (ch == quote || ch == '\\')
            n = snprintf(escape, sizeof escape, "\\%c", (char)ch);
        else if (ch == '\n' || ch == '\r' || ch == '\t')
            n = snprintf(escape, sizeof escape, "\\%c", ch == '\n' ? 'n' : ch == '\r' ? 'r' : 't');
        else if (!jx_is_printable(ch))
            n = escape_char(escape, ch);
        if (!n)
            continue;
        jx_sb_sub(c, b, s, (size_t)(plain - s->data), (size_t)(start - s->data));
        jx_sb_add(c, b, escape, (size_t)n, trusted);
        plain = at;
    }
    jx_sb_sub(c, b, s, (size_t)(plain - s->data), s->len);
    jx_sb_add(c, b, &quote, 1, trusted);
    if (s->markup)
        jx_sb_lit(c, b, ")");
}

static void repr_items(jx *c, jx_sb *b, const jx_list *l, bool trusted)
{
    for (size_t i = 0; i < l->n; i++) {
        if (i)
            jx_sb_add(c, b, ", ", 2, trusted);
        jx_repr(c, b, l->v[i]);
    }
}

static void repr_pairs(jx *c, jx_sb *b, const jx_dict *d, bool trusted)
{
    jx_sb_add(c, b, "{", 1, trusted);
    for (size_t i = 0; i < d->n; i++) {
        if (i)
            jx_sb_add(c, b, ", ", 2, trusted);
        jx_repr(c, b, d->v[i].key);
        jx_sb_add(c, b, ": ", 2, trusted);
        jx_repr(c, b, d->v[i].value);
    }
    jx_sb_add(c, b, "}", 1, trusted);
}

static void add_text(jx *c, jx_sb *b, const char *text, bool trusted)
{
    jx_sb_add(c, b, text, strlen(text), trusted);
}

static void repr_other(jx *c, jx_sb *b, jx_value v)
{
    char text[160];
    switch ((jx_kind)v.kind) {
    case JX_RANGE: {
        char start[48], stop[48], step[48];
        jx_int_repr(start, v.r->start);
        jx_int_repr(stop, v.r->stop);
        jx_int_repr(step, v.r->step);
        if (v.r->step == 1)
            snprintf(text, sizeof text, "range(%s, %s)", start, stop);
        else
            snprintf(text, sizeof text, "range(%s, %s, %s)", start, stop, step);
        break;
    }
    case JX_VIEW:
        add_text(c, b, jx_type_name(v), true);
        jx_sb_lit(c, b, "(");
        jx_repr(c, b, jx_to_list(c, v, JX_LIST));
        jx_sb_lit(c, b, ")");
        return;
    case JX_SET:
        if (!v.d->n) {
            jx_sb_lit(c, b, "set()");
            return;
        }
        jx_sb_lit(c, b, "{");
        for (size_t i = 0; i < v.d->n; i++) {
            if (i)
                jx_sb_lit(c, b, ", ");
            jx_repr(c, b, v.d->v[i].key);
        }
        jx_sb_lit(c, b, "}");
        return;
    case JX_SELF: jx_sb_lit(c, b, "<TemplateReference None>"); return;
    case JX_NAMESPACE:
        jx_sb_lit(c, b, "<Namespace ");
        repr_pairs(c, b, v.d, true);
        jx_sb_lit(c, b, ">");
        return;
    case JX_LOOP: {
        jx_sb_lit(c, b, "<LoopContext ");
        jx_repr(c, b, jx_loop_attr(c, v.loop, jx_str_lit(c, "index")));
        jx_sb_lit(c, b, "/");
        jx_repr(c, b, jx_loop_attr(c, v.loop, jx_str_lit(c, "length")));
        jx_sb_lit(c, b, ">");
        return;
    }
    case JX_MACRO:
        jx_sb_lit(c, b, "<Macro ");
        if (v.macro->node->kind == N_MACRO)
            repr_str(c, b, v.macro->node->text);
        else
            jx_sb_lit(c, b, "anonymous");
        jx_sb_lit(c, b, ">");
        return;
    default: snprintf(text, sizeof text, "<%s object>", jx_type_name(v)); break;
    }
    add_text(c, b, text, true);
}

void jx_repr(jx *c, jx_sb *b, jx_value v)
{
    char text[48];
    bool trusted = !v.client;
    jx_charge(c, 1);
    JX_ENTER(c);
    switch ((jx_kind)v.kind) {
    case JX_MISSING:
    case JX_UNDEFINED: jx_sb_lit(c, b, "Undefined"); break;
    case JX_NONE: jx_sb_add(c, b, "None", 4, trusted); break;
    case JX_BOOL: add_text(c, b, v.b ? "True" : "False", trusted); break;
    case JX_INT: jx_sb_add(c, b, text, jx_int_repr(text, v.i), trusted); break;
    case JX_FLOAT: {
        size_t n = jx_float_repr(text, v.f);
        jx_sb_add(c, b, text, n, trusted);
        break;
    }
    case JX_STR: repr_str(c, b, v.s); break;
    case JX_LIST:
        jx_sb_add(c, b, "[", 1, trusted);
        repr_items(c, b, v.l, trusted);
        jx_sb_add(c, b, "]", 1, trusted);
        break;
    case JX_TUPLE:
        jx_sb_add(c, b, "(", 1, trusted);
        repr_items(c, b, v.l, trusted);
        add_text(c, b, v.l->n == 1 ? ",)" : ")", trusted);
        break;
    case JX_DICT: repr_pairs(c, b, v.d, trusted); break;
    default: repr_other(c, b, v); break;
    }
    JX_LEAVE(c);
}

void jx_print(jx *c, jx_sb *b, jx_value v)
{
    if (v.kind == JX_STR)
        jx_sb_str(c, b, v.s);
    else if (v.kind != JX_UNDEFINED)
        jx_repr(c, b, v);
}

const jx_str *jx_to_str(jx *c, jx_value v)
{
    if (v.kind == JX_STR)
        return v.s;
    jx_sb b = {0};
    jx_print(c, &b, v);
    return jx_sb_done(c, &b);
}

void jx_ascii(jx *c, jx_sb *b, jx_value v)
{
    jx_sb text = {0};
    jx_repr(c, &text, v);
    const jx_str *s = jx_sb_done(c, &text);
    const char *end = s->data + s->len, *plain = s->data;
    for (const char *at = s->data; at < end;) {
        const char *start = at;
        int32_t ch = jx_char(&at, end);
        if (ch < 0x80)
            continue;
        char escape[16];
        size_t from = (size_t)(start - s->data);
        jx_sb_sub(c, b, s, (size_t)(plain - s->data), from);
        jx_sb_add(c, b, escape, (size_t)escape_char(escape, ch), s->map ? s->map[from] : s->trusted);
        plain = at;
    }
    jx_sb_sub(c, b, s, (size_t)(plain - s->data), s->len);
}

const char *jx_repr_text(jx *c, jx_value v)
{
    jx_sb b = {0};
    jx_repr(c, &b, v);
    if (b.len > 100)
        b.len = jx_str_offset(&(jx_str){.data = b.data, .len = b.len, .chars = b.len + 1}, 60);
    jx_sb_add(c, &b, "", 1, true);
    return b.data;
}

/* ---- text to numbers ---- */

/* Copies s without surrounding white space and without underscores between digits; false if it cannot be a number's text. Digits
 * of any script become ASCII. */
static bool number_text(const jx_str *s, char *out, size_t cap)
{
    const char *at = s->data, *end = at + s->len;
    for (const char *next = at; at < end && jx_is_space(jx_char(&next, end)); at = next)
        ;
    for (const char *prev = end; end > at && jx_is_space(jx_char_back(at, &prev)); end = prev)
        ;
    size_t n = 0;
    char last = 0;
    while (at < end) {
        int32_t ch = jx_char(&at, end), digit = jx_digit_value(ch);
        if (ch == '_') {
            if (last == '_' || !n || at == end)
                return false;
        } else {
            if (digit >= 0)
                ch = '0' + digit;
            if (ch < 0x21 || ch > 0x7E || n + 1 >= cap)
                return false;
            out[n++] = (char)ch;
        }
        last = (char)ch;
    }
    out[n] = 0;
    return n > 0;
}

bool jx_parse_int(const jx_str *s, unsigned base, jx_int *ret)
{
    char text[200];
    if (!number_text(s, text, sizeof text))
        return false;
    const char *p = text;
    bool minus = *p == '-';
    if (*p == '-' || *p == '+')
        p++;
    if (p[0] == '0' && p[1]) {
        int kind = p[1] | 0x20;
        unsigned implied = kind == 'x' ? 16 : kind == 'o' ? 8 : kind == 'b' ? 2 : 0;
        if (implied && (base == 0 || base == implied)) {
            base = implied;
            p += 2;
        }
    }
    if (base == 0) {
        if (*p == '0' && strspn(p, "0") != strlen(p))
            return false;
        base = 10;
    }
    jx_int value = 0;
    if (!*p)
        return false;
    for (; *p; p++) {
        int lower = *p | 0x20;
        unsigned d = *p >= '0' && *p <= '9'         ? (unsigned)(*p - '0')
                     : lower >= 'a' && lower <= 'z' ? (unsigned)(lower - 'a') + 10
                                                    : 99;
        if (d >= base || __builtin_mul_overflow(value, (jx_int)base, &value) ||
            __builtin_add_overflow(value, (jx_int)d, &value))
            return false;
    }
    *ret = minus ? -value : value;
    return true;
}

bool jx_parse_float(const jx_str *s, double *ret)
{
    char text[400];
    if (!number_text(s, text, sizeof text))
        return false;
    const char *p = text + (*text == '-' || *text == '+');
    if (*p != '.' && (*p < '0' || *p > '9') && strcasecmp(p, "nan") && strcasecmp(p, "inf") &&
        strcasecmp(p, "infinity"))
        return false;
    if (p[0] == '0' && (p[1] | 0x20) == 'x')
        return false;
    char *end;
    *ret = strtod(text, &end);
    return !*end && end > text;
}
