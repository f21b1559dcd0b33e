/* format.c - Python's two ways to format: "..." % args and "...".format(args), with format specifications.
 *
 * Literal parts of the format keep their provenance, inserted values bring their own. */
#include <math.h>
#include <string.h>

#include "api/jinja/jinja_priv.h"

typedef struct spec {
    const jx_str *fill; /* one character */
    char align;         /* '<' '>' '^' '=' or 0 */
    char sign;          /* '+' ' ' or '-' */
    bool alternate, zero, no_minus_zero;
    char group;               /* ',' '_' or 0 */
    int64_t width, precision; /* -1: none */
    char type;                /* 0: none */
} spec;

enum { MAX_PRECISION = 1000 };

/* ---- numbers as digits ---- */

static void add_grouped(jx *c, jx_sb *b, const char *digits, size_t n, char group, size_t every)
{
    if (!group || !n) {
        jx_sb_add(c, b, digits, n, true);
        return;
    }
    for (size_t i = 0, run = (n - 1) % every + 1; i < n; i += run, run = every) {
        if (i)
            jx_sb_add(c, b, &group, 1, true);
        jx_sb_add(c, b, digits + i, run, true);
    }
}

static size_t int_digits(char out[136], jx_int i, unsigned base, bool upper)
{
    char tmp[136];
    size_t n = 0;
    jx_uint u = i < 0 ? -(jx_uint)i : (jx_uint)i;
    do
        tmp[n++] = (upper ? "0123456789ABCDEF" : "0123456789abcdef")[(int)(u % base)];
    while (u /= base);
    for (size_t k = 0; k < n; k++)
        out[k] = tmp[n - 1 - k];
    return n;
}

/* The magnitude of f as %e, %f or %g print it. */
static size_t float_digits(jx *c, char *out, size_t cap, double f, char type, int64_t precision, bool alternate)
{
    f = fabs(f);
    if (isnan(f) || isinf(f))
        return (size_t)snprintf(out, cap, "%s", type < 'a' ? (isnan(f) ? "NAN" : "INF") : (isnan(f) ? "nan" : "inf"));
    if (precision > MAX_PRECISION)
        jx_error(c, "precision too big");
    int p = precision < 0 ? 6 : (int)precision;
    int n;
    switch (type) {
    case 'e': n = snprintf(out, cap, alternate ? "%#.*e" : "%.*e", p, f); break;
    case 'E': n = snprintf(out, cap, alternate ? "%#.*E" : "%.*E", p, f); break;
    case 'f':
    case 'F': n = snprintf(out, cap, alternate ? "%#.*f" : "%.*f", p, f); break;
    case 'G': n = snprintf(out, cap, alternate ? "%#.*G" : "%.*G", p, f); break;
    default: n = snprintf(out, cap, alternate ? "%#.*g" : "%.*g", p, f); break;
    }
    return n < 0 ? 0 : XD_MIN((size_t)n, cap - 1);
}

/* Writes sign, prefix and digits padded to the width: the part that all number formats share. */
static void add_number(jx *c, jx_sb *b, const spec *s, bool negative, const char *prefix, const char *digits, size_t n,
                       size_t every, bool trusted)
{
    jx_sb number = {0}, all = {0};
    size_t whole = 0;
    while (whole < n && ((digits[whole] >= '0' && digits[whole] <= '9') || (every == 4 && digits[whole] != '.')))
        whole++;
    add_grouped(c, &number, digits, whole, s->group, every);
    jx_sb_add(c, &number, digits + whole, n - whole, true);
    char sign[2] = {negative ? '-' : s->sign == '+' || s->sign == ' ' ? s->sign : 0, 0};
    size_t len = strlen(sign) + strlen(prefix) + number.len;
    size_t width = s->width > 0 ? (size_t)s->width : 0, fill = width > len ? width - len : 0;
    char align = s->align ? s->align : s->zero ? '=' : '>';
    const char *pad = s->zero && !s->fill ? "0" : " ";
    char own[8] = {0};
    if (s->fill) {
        memcpy(own, s->fill->data, s->fill->len);
        pad = own;
    }
    size_t left = align == '<' ? 0 : align == '^' ? fill / 2 : fill;
    if (align != '=')
        jx_sb_fill(c, &all, pad, left, true);
    jx_sb_add(c, &all, sign, strlen(sign), true);
    jx_sb_add(c, &all, prefix, strlen(prefix), true);
    if (align == '=' && s->zero && s->group &&
        fill) { /* zeros are grouped too; one more than fits if a separator would be first */
        size_t target = number.len - (n - whole) + fill, want = whole + (whole == 0);
        if (target > want)
            want = XD_MAX(want, (target - 1) / (every + 1) * every);
        while (want + (want - 1) / every < target)
            want++;
        jx_sb padded = {0};
        jx_sb_fill(c, &padded, "0", want - whole, true);
        jx_sb_add(c, &padded, digits, whole, true);
        number = (jx_sb){0};
        add_grouped(c, &number, padded.data, padded.len, s->group, every);
        jx_sb_add(c, &number, digits + whole, n - whole, true);
    } else if (align == '=') {
        jx_sb_fill(c, &all, pad, fill, true);
    }
    jx_sb_add(c, &all, number.data, number.len, true);
    if (align != '=')
        jx_sb_fill(c, &all, pad, fill - left, true);
    jx_sb_add(c, b, all.data, all.len, trusted);
}

static void add_int(jx *c, jx_sb *b, const spec *s, jx_int i, bool trusted)
{
    char digits[136];
    unsigned base = s->type == 'x' || s->type == 'X' ? 16 : s->type == 'o' ? 8 : s->type == 'b' ? 2 : 10;
    size_t n = int_digits(digits, i, base, s->type == 'X');
    char prefix[3] = {0};
    if (s->alternate && base != 10) {
        prefix[0] = '0';
        prefix[1] = s->type;
    }
    add_number(c, b, s, i < 0, prefix, digits, n, base == 10 ? 3 : 4, trusted);
}

static void add_float(jx *c, jx_sb *b, const spec *s, double f, bool trusted)
{
    char digits[1500];
    size_t n;
    char type = s->type;
    if (!type && s->precision < 0) {
        n = jx_float_repr(digits, fabs(f));
        char *e = s->alternate && !memchr(digits, '.', n) ? memchr(digits, 'e', n) : NULL;
        if (e) { /* "#": there is always a point */
            memmove(e + 1, e, (size_t)(digits + n++ - e));
            *e = '.';
        }
    } else if (!type) { /* like g, but with at least one digit after the point */
        n = float_digits(c, digits, sizeof digits, f, 'g', s->precision ? s->precision : 1, s->alternate);
        if (!memchr(digits, '.', n) && !memchr(digits, 'e', n) && !memchr(digits, 'n', n)) {
            memcpy(digits + n, ".0", 3);
            n += 2;
        }
    } else {
        bool percent = type == '%';
        n = float_digits(c, digits, sizeof digits - 2, percent ? f * 100 : f,
                         percent       ? 'f'
                         : type == 'n' ? 'g'
                                       : type,
                         s->precision, s->alternate);
        if (percent)
            digits[n++] = '%';
    }
    bool zero = s->no_minus_zero && !memchr(digits, 'n', n) && strspn(digits, "0.e+-%") >= n;
    add_number(c, b, s, signbit(f) && !isnan(f) && !zero, "", digits, n, 3, trusted);
}

/* ---- format(value, spec) ---- */

static bool is_align(char ch)
{
    return ch == '<' || ch == '>' || ch == '^' || ch == '=';
}

static int64_t parse_number(jx *c, const char **at, const char *end)
{
    int64_t n = -1;
    for (; *at < end && **at >= '0' && **at <= '9'; (*at)++) {
        n = (n < 0 ? 0 : n) * 10 + (**at - '0');
        if (n > 1 << 24)
            jx_error(c, "Too many decimal digits in format string");
    }
    return n;
}

static spec parse_spec(jx *c, const jx_str *text)
{
    spec s = {.width = -1, .precision = -1};
    const char *at = text->data, *end = at + text->len, *second = at;
    if (at < end)
        jx_char(&second, end);
    if (second < end && is_align(*second)) {
        s.fill = jx_str_sub(c, text, 0, (size_t)(second - at));
        s.align = *second;
        at = second + 1;
    } else if (at < end && is_align(*at)) {
        s.align = *at++;
    }
    if (at < end && (*at == '+' || *at == '-' || *at == ' '))
        s.sign = *at++;
    if (at < end && *at == 'z') {
        s.no_minus_zero = true;
        at++;
    }
    if (at < end && *at == '#') {
        s.alternate = true;
        at++;
    }
    if (at < end && *at == '0') {
        s.zero = true;
        at++;
    }
    s.width = parse_number(c, &at, end);
    if (at < end && (*at == ',' || *at == '_'))
        s.group = *at++;
    if (at < end && *at == '.') {
        at++;
        s.precision = parse_number(c, &at, end);
        if (s.precision < 0)
            jx_error(c, "Format specifier missing precision");
    }
    if (at < end)
        s.type = *at++;
    if (at < end)
        jx_error(c, "Invalid format specifier");
    return s;
}

static void add_padded(jx *c, jx_sb *b, const jx_str *text, const spec *s)
{
    if (s->precision >= 0)
        text = jx_str_sub(c, text, 0, jx_str_offset(text, (size_t)s->precision));
    size_t width = s->width > 0 ? (size_t)s->width : 0, fill = width > text->chars ? width - text->chars : 0;
    char pad[8] = {s->zero ? '0' : ' '};
    if (s->fill) {
        memset(pad, 0, sizeof pad);
        memcpy(pad, s->fill->data, s->fill->len);
    }
    size_t left = s->align == '>' ? fill : s->align == '^' ? fill / 2 : 0;
    jx_sb_fill(c, b, pad, left, true);
    jx_sb_str(c, b, text);
    jx_sb_fill(c, b, pad, fill - left, true);
}

/* format(v, text) */
static void format_value(jx *c, jx_sb *b, jx_value v, const jx_str *text)
{
    if (!text->len) {
        jx_print(c, b, v);
        return;
    }
    spec s = parse_spec(c, text);
    bool is_int = v.kind == JX_INT || v.kind == JX_BOOL;
    if ((is_int || v.kind == JX_FLOAT) && s.type && strchr("eEfFgGn%", s.type) &&
        (v.kind == JX_FLOAT || s.type != 'n')) {
        add_float(c, b, &s, jx_as_float(v), !v.client);
    } else if (v.kind == JX_FLOAT && !s.type) {
        add_float(c, b, &s, v.f, !v.client);
    } else if (is_int && (!s.type || strchr("bdoxXn", s.type))) {
        if (s.precision >= 0 || s.no_minus_zero)
            jx_error(c, "Precision and z are not allowed in an integer format specifier");
        add_int(c, b, &s, jx_as_int(v), !v.client);
    } else if (is_int && s.type == 'c') {
        jx_int ch = jx_as_int(v);
        if (ch < 0 || ch > 0x10FFFF || (ch >= 0xD800 && ch < 0xE000))
            jx_error(c, "%%c arg not in range(0x110000)");
        jx_sb_char(c, b, (int32_t)ch, !v.client);
    } else if (v.kind == JX_STR && (!s.type || s.type == 's')) {
        if (s.sign || s.alternate || s.group || s.no_minus_zero || s.align == '=')
            jx_error(c, "this format specifier is not allowed with strings");
        add_padded(c, b, v.s, &s);
    } else if (v.kind == JX_STR || is_int || v.kind == JX_FLOAT) {
        jx_error(c, "Unknown format code '%c' for object of type '%s'", s.type, jx_type_name(v));
    } else {
        jx_error(c, "unsupported format string passed to %s.__format__", jx_type_name(v));
    }
}

/* ---- "...".format() ---- */

typedef struct formatter {
    jx *c;
    const jx_args *args;
    size_t next; /* automatic numbering */
    bool automatic, manual;
} formatter;

static void format_text(formatter *f, jx_sb *b, const jx_str *s, unsigned depth);

static jx_value first_value(formatter *f, const jx_str *name)
{
    jx_int index;
    bool number = name->len && strspn(name->data, "0123456789") >= name->len;
    if (!name->len) {
        f->automatic = true;
        index = (jx_int)f->next++;
    } else if (number && jx_parse_int(name, 10, &index)) {
        f->manual = true;
    } else {
        for (size_t i = 0; i < f->args->n_kw; i++)
            if (jx_str_eq(f->args->kw[i].key.s, name))
                return f->args->kw[i].value;
        jx_error(f->c, "KeyError: %s", jx_repr_text(f->c, JX_STRV(name)));
    }
    if (f->automatic && f->manual)
        jx_error(f->c, "cannot switch between manual field specification and automatic field numbering");
    if (index >= (jx_int)f->args->n)
        jx_error(f->c, "Replacement index %zu out of range for positional args tuple", (size_t)index);
    return f->args->v[index];
}

/* "name.attr[key]" */
static jx_value field_value(formatter *f, const jx_str *field)
{
    jx *c = f->c;
    size_t at = 0;
    while (at < field->len && field->data[at] != '.' && field->data[at] != '[')
        at++;
    jx_value v = first_value(f, jx_str_copy(c, field->data, at, true));
    while (at < field->len) {
        size_t from = at + 1, to = from;
        if (field->data[at] == '.') {
            while (to < field->len && field->data[to] != '.' && field->data[to] != '[')
                to++;
            at = to;
            v = jx_getattr(c, v, jx_str_sub(c, field, from, to));
        } else if (field->data[at] == '[') {
            while (to < field->len && field->data[to] != ']')
                to++;
            if (to == field->len)
                jx_error(c, "expected '}' before end of string");
            at = to + 1;
            const jx_str *key = jx_str_copy(c, field->data + from, to - from, true);
            jx_int index;
            bool number = key->len && strspn(key->data, "0123456789") >= key->len && jx_parse_int(key, 10, &index);
            v = jx_getitem(c, v, number ? JX_INTV(index) : JX_STRV(key));
        } else {
            jx_error(c, "Only '.' or '[' may follow ']' in format field specifier");
        }
        if (from == to)
            jx_error(c, "Empty attribute in format string");
    }
    return v;
}

/* The replacement field inside {...}. */
static void format_field(formatter *f, jx_sb *b, const jx_str *s, size_t from, size_t to, unsigned depth)
{
    jx *c = f->c;
    size_t name_end = from, brackets = 0;
    for (; name_end < to; name_end++) {
        char ch = s->data[name_end];
        if (ch == '[')
            brackets++;
        else if (ch == ']' && brackets)
            brackets--;
        else if (!brackets && (ch == '!' || ch == ':'))
            break;
    }
    jx_value v = field_value(f, jx_str_sub(c, s, from, name_end));
    size_t at = name_end;
    if (at < to && s->data[at] == '!') {
        char how = at + 1 < to ? s->data[at + 1] : 0;
        if ((how != 's' && how != 'r' && how != 'a') || (at + 2 < to && s->data[at + 2] != ':'))
            jx_error(c, "Unknown conversion specifier");
        if (how == 's') {
            v = JX_STRV(jx_to_str(c, v));
        } else {
            jx_sb repr = {0};
            (how == 'a' ? jx_ascii : jx_repr)(c, &repr, v);
            v = JX_STRV(jx_sb_done(c, &repr));
        }
        at += 2;
    }
    jx_sb spec_text = {0};
    if (at < to)
        format_text(f, &spec_text, jx_str_sub(c, s, at + 1, to), depth + 1);
    format_value(c, b, v, jx_sb_done(c, &spec_text));
}

static void format_text(formatter *f, jx_sb *b, const jx_str *s, unsigned depth)
{
    if (depth > 2)
        jx_error(f->c, "Max string recursion exceeded");
    size_t plain = 0;
    for (size_t i = 0; i < s->len; i++) {
        char ch = s->data[i];
        if (ch != '{' && ch != '}')
            continue;
        jx_sb_sub(f->c, b, s, plain, i);
        if (i + 1 < s->len && s->data[i + 1] == ch) {
            jx_sb_sub(f->c, b, s, i, i + 1);
            plain = ++i + 1;
            continue;
        }
        if (ch == '}')
            jx_error(f->c, "Single '}' encountered in format string");
        size_t end = i + 1, open = 1;
        for (; end < s->len && open; end++)
            open += s->data[end] == '{' ? 1 : s->data[end] == '}' ? (size_t)-1 : 0;
        if (open)
            jx_error(f->c,
                     i + 1 == s->len ? "Single '{' encountered in format string" : "expected '}' before end of string");
        format_field(f, b, s, i + 1, end - 1, depth);
        i = end - 1;
        plain = end;
    }
    jx_sb_sub(f->c, b, s, plain, s->len);
}

jx_value jx_str_format(jx *c, jx_value self, jx_args *a)
{
    formatter f = {.c = c, .args = a};
    jx_sb b = {0};
    format_text(&f, &b, self.s, 0);
    return JX_STRV(jx_str_markup(c, jx_sb_done(c, &b), self.s->markup));
}

/* ---- "..." % args ---- */

static jx_value percent_arg(jx *c, jx_value args, size_t *next)
{
    if (args.kind != JX_TUPLE) {
        if ((*next)++)
            jx_error(c, "not enough arguments for format string");
        return args;
    }
    if (*next >= args.l->n)
        jx_error(c, "not enough arguments for format string");
    return args.l->v[(*next)++];
}

static void percent_value(jx *c, jx_sb *b, jx_value v, spec s, bool left)
{
    if (left) {
        s.align = '<';
        s.zero = false;
    }
    switch (s.type) {
    case 's':
    case 'r':
    case 'a': {
        jx_sb text = {0};
        s.zero = false;
        if (s.type == 's')
            jx_print(c, &text, v);
        else
            (s.type == 'a' ? jx_ascii : jx_repr)(c, &text, v);
        if (!left)
            s.align = '>';
        add_padded(c, b, jx_sb_done(c, &text), &s);
        return;
    }
    case 'd':
    case 'i':
    case 'u':
        if (v.kind == JX_UNDEFINED)
            jx_throw_undefined(c, v);
        if (!jx_is_number(v))
            jx_error(c, "%%%c format: a real number is required, not %s", s.type, jx_type_name(v));
        s.type = 'd';
        break;
    case 'x':
    case 'X':
    case 'o':
        if (v.kind != JX_INT && v.kind != JX_BOOL)
            jx_error(c, "%%%c format: an integer is required, not %s", s.type, jx_type_name(v));
        break;
    case 'e':
    case 'E':
    case 'f':
    case 'F':
    case 'g':
    case 'G':
        if (v.kind == JX_UNDEFINED)
            jx_throw_undefined(c, v);
        if (!jx_is_number(v))
            jx_error(c, "must be real number, not %s", jx_type_name(v));
        add_float(c, b, &s, jx_as_float(v), !v.client);
        return;
    case 'c':
        s.zero = false;
        if (v.kind == JX_STR && v.s->chars == 1) {
            add_padded(c, b, v.s, &s);
            return;
        }
        if (v.kind == JX_BOOL || (v.kind == JX_INT && v.i >= 0 && v.i <= 0x10FFFF && (v.i < 0xD800 || v.i >= 0xE000))) {
            jx_sb_char(c, b, (int32_t)jx_as_int(v), !v.client);
            return;
        }
        jx_error(c, "%%c requires int or char");
    default: jx_error(c, "unsupported format character '%c'", s.type);
    }
    jx_int i = v.kind == JX_FLOAT ? jx_float_to_int(c, v.f) : jx_as_int(v);
    if (s.precision >= 0) { /* at least so many digits */
        char digits[136];
        size_t n = int_digits(digits, i, s.type == 'd' ? 10 : s.type == 'o' ? 8 : 16, s.type == 'X');
        jx_sb padded = {0};
        if (s.precision > MAX_PRECISION)
            jx_error(c, "precision too big");
        jx_sb_fill(c, &padded, "0", (size_t)s.precision > n ? (size_t)s.precision - n : 0, true);
        jx_sb_add(c, &padded, digits, n, true);
        add_number(c, b, &s, i < 0, "", padded.data, padded.len, 3, !v.client);
        return;
    }
    add_int(c, b, &s, i, !v.client);
}

const jx_str *jx_format_percent(jx *c, const jx_str *format, jx_value args)
{
    jx_sb b = {0};
    size_t next = 0, plain = 0;
    bool used_keys = false;
    for (size_t i = 0; i < format->len; i++) {
        if (format->data[i] != '%')
            continue;
        jx_sb_sub(c, &b, format, plain, i);
        const char *at = format->data + i + 1, *end = format->data + format->len;
        jx_value v = JX_ABSENT;
        if (at < end && *at == '(') {
            const char *close_at = memchr(at, ')', (size_t)(end - at));
            if (!close_at)
                jx_error(c, "incomplete format key");
            if (args.kind != JX_DICT)
                jx_error(c, "format requires a mapping");
            const jx_str *key = jx_str_copy(c, at + 1, (size_t)(close_at - at - 1), true);
            const jx_value *found = jx_dict_get(c, args.d, JX_STRV(key));
            if (!found)
                jx_error(c, "KeyError: %s", jx_repr_text(c, JX_STRV(key)));
            v = *found;
            used_keys = true;
            at = close_at + 1;
        }
        spec s = {.width = -1, .precision = -1};
        bool left = false;
        for (; at < end && *at && strchr("-+ #0", *at); at++) {
            left |= *at == '-';
            s.zero |= *at == '0';
            s.alternate |= *at == '#';
            if (*at == '+' || (*at == ' ' && s.sign != '+'))
                s.sign = *at;
        }
        if (at < end && *at == '*') {
            s.width = jx_need_index(c, percent_arg(c, args, &next));
            if (s.width < 0) {
                left = true;
                s.width = -XD_MAX(s.width, -(1 << 24));
            }
            at++;
        } else {
            s.width = parse_number(c, &at, end);
        }
        if (s.width > 1 << 24)
            jx_error(c, "width too big");
        if (at < end && *at == '.') {
            at++;
            if (at < end && *at == '*') {
                s.precision = jx_need_index(c, percent_arg(c, args, &next));
                at++;
            } else {
                s.precision = parse_number(c, &at, end);
            }
            s.precision = XD_MAX(s.precision, 0);
        }
        while (at < end && (*at == 'h' || *at == 'l' || *at == 'L'))
            at++;
        if (at >= end)
            jx_error(c, "incomplete format");
        s.type = *at++;
        if (s.type == '%' && at == format->data + i + 2) { /* with anything between, '%' is no conversion */
            jx_sb_lit(c, &b, "%");
        } else {
            if (v.kind == JX_MISSING)
                v = percent_arg(c, args, &next);
            if (format->markup && v.kind == JX_STR)
                v = JX_STRV(jx_str_escape(c, v.s));
            percent_value(c, &b, v, s, left);
        }
        plain = (size_t)(at - format->data);
        i = plain - 1;
    }
    jx_sb_sub(c, &b, format, plain, format->len);
    bool all_used = args.kind == JX_TUPLE ? next >= args.l->n
                                          : next || used_keys || args.kind == JX_DICT || args.kind == JX_LIST ||
                                                args.kind == JX_RANGE || args.kind == JX_UNDEFINED;
    if (!all_used)
        jx_error(c, "not all arguments converted during string formatting");
    return jx_str_markup(c, jx_sb_done(c, &b), format->markup);
}
