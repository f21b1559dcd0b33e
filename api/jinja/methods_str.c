/* methods_str.c - Python's str methods as templates use them, and what filters share with them. */
#include <string.h>

#include "api/jinja/jinja_priv.h"

/* ---- shared with filters ---- */

const jx_str *jx_strip(jx *c, const jx_str *s, jx_value chars, int sides)
{
    const jx_str *set = jx_given_not_none(chars) ? jx_need_str(c, chars, "strip arg") : NULL;
    const char *from = s->data, *to = s->data + s->len;
    for (int side = 1; side <= 2; side++) {
        while ((sides & side) && from < to) {
            const char *p = side == 1 ? from : to;
            int32_t ch = side == 1 ? jx_char(&p, to) : jx_char_back(from, &p);
            jx_str one = {.data = side == 1 ? from : p, .len = (size_t)(side == 1 ? p - from : to - p)};
            if (set ? jx_str_find(set, &one, 0) == SIZE_MAX : !jx_is_space(ch))
                break;
            jx_charge(c, set ? 1 + set->len / 64 : 0);
            if (side == 1)
                from = p;
            else
                to = p;
        }
    }
    return jx_str_sub(c, s, (size_t)(from - s->data), (size_t)(to - s->data));
}

jx_value jx_splitlines(jx *c, const jx_str *s, bool keep)
{
    jx_vec l = {0};
    const char *end = s->data + s->len, *line = s->data;
    jx_charge(c, s->len / 16);
    for (const char *at = s->data; at < end;) {
        size_t n = jx_line_break(at, end);
        if (!n) {
            at++;
            continue;
        }
        size_t stop = (size_t)(at - s->data) + (keep ? n : 0);
        jx_push(c, &l, JX_STRV(jx_str_sub(c, s, (size_t)(line - s->data), stop)));
        at += n;
        line = at;
    }
    if (line < end)
        jx_push(c, &l, JX_STRV(jx_str_sub(c, s, (size_t)(line - s->data), s->len)));
    return jx_vec_list(c, &l, JX_LIST);
}

const jx_str *jx_replace(jx *c, const jx_str *s, const jx_str *old, const jx_str *with, int64_t max)
{
    jx_sb b = {0};
    size_t from = 0;
    jx_charge(c, s->len / 32);
    if (!old->len) { /* between all characters */
        for (; max != 0 && from <= s->len; max--) {
            jx_charge(c, 1);
            jx_sb_str(c, &b, with);
            if (from == s->len)
                return jx_sb_done(c, &b);
            const char *next = s->data + from;
            jx_char(&next, s->data + s->len);
            size_t to = (size_t)(next - s->data);
            jx_sb_sub(c, &b, s, from, to);
            from = to;
        }
    } else {
        for (size_t hit; max != 0 && (hit = jx_str_find(s, old, from)) != SIZE_MAX; max--) {
            jx_charge(c, 1);
            jx_sb_sub(c, &b, s, from, hit);
            jx_sb_str(c, &b, with);
            from = hit + old->len;
        }
        if (!from)
            return s;
    }
    jx_sb_sub(c, &b, s, from, s->len);
    return jx_sb_done(c, &b);
}

const jx_str *jx_pad(jx *c, const jx_str *s, int64_t width, const jx_str *fill, int how)
{
    if (fill->chars != 1)
        jx_error(c, "The fill character must be exactly one character long");
    if (width <= 0 || (uint64_t)width <= s->chars)
        return s;
    size_t pad = (size_t)width - s->chars, left = how < 0 ? 0 : how > 0 ? pad : pad / 2 + (pad & (size_t)width & 1);
    char text[8] = {0};
    memcpy(text, fill->data, fill->len);
    jx_sb b = {0};
    jx_sb_fill(c, &b, text, left, jx_str_trusted(fill));
    jx_sb_str(c, &b, s);
    jx_sb_fill(c, &b, text, pad - left, jx_str_trusted(fill));
    return jx_sb_done(c, &b);
}

/* ---- str ---- */

static jx_value result(jx *c, jx_value self, const jx_str *s)
{
    return JX_STRV(jx_str_markup(c, s, self.s->markup));
}

static jx_value str_strip(jx *c, jx_value self, jx_args *a)
{
    return JX_STRV(jx_strip(c, self.s, a->v[0], 3));
}
static jx_value str_lstrip(jx *c, jx_value self, jx_args *a)
{
    return JX_STRV(jx_strip(c, self.s, a->v[0], 1));
}
static jx_value str_rstrip(jx *c, jx_value self, jx_args *a)
{
    return JX_STRV(jx_strip(c, self.s, a->v[0], 2));
}

static jx_value str_upper(jx *c, jx_value self, jx_args *a)
{
    (void)a;
    return JX_STRV(jx_str_case(c, self.s, JX_UPPER));
}
static jx_value str_lower(jx *c, jx_value self, jx_args *a)
{
    (void)a;
    return JX_STRV(jx_str_case(c, self.s, JX_LOWER));
}
static jx_value str_casefold(jx *c, jx_value self, jx_args *a)
{
    (void)a;
    return JX_STRV(jx_str_case(c, self.s, JX_FOLD));
}
static jx_value str_title(jx *c, jx_value self, jx_args *a)
{
    (void)a;
    return JX_STRV(jx_str_case(c, self.s, JX_TITLE));
}
static jx_value str_capitalize(jx *c, jx_value self, jx_args *a)
{
    (void)a;
    return JX_STRV(jx_str_case(c, self.s, JX_CAPITALIZE));
}
static jx_value str_swapcase(jx *c, jx_value self, jx_args *a)
{
    (void)a;
    return JX_STRV(jx_str_case(c, self.s, JX_SWAPCASE));
}

static jx_value str_replace(jx *c, jx_value self, jx_args *a)
{
    int64_t max = jx_given(a->v[2]) ? jx_need_index(c, a->v[2]) : -1;
    const jx_str *old = jx_need_str(c, a->v[0], "replace() argument 1"),
                 *with = jx_need_str(c, a->v[1], "replace() argument 2");
    return result(c, self, jx_replace(c, self.s, old, with, max));
}

/* The part [start:end] of s that find, count, startswith ... look at, as byte offsets; false when start lies beyond the end. */
static bool window(jx *c, const jx_str *s, jx_value start, jx_value end, size_t *from, size_t *to)
{
    int64_t n = (int64_t)s->chars, a = jx_given_not_none(start) ? jx_need_index(c, start) : 0,
            b = jx_given_not_none(end) ? jx_need_index(c, end) : n;
    if (a < 0)
        a = XD_MAX(a + n, 0);
    if (b < 0)
        b = XD_MAX(b + n, 0);
    if (a > n)
        return false;
    b = XD_MIN(b, n);
    *from = jx_str_offset(s, (size_t)a);
    *to = jx_str_offset(s, (size_t)b);
    return *from <= *to;
}

static bool affix(jx *c, const jx_str *s, jx_value fix, size_t from, size_t to, bool suffix)
{
    if (fix.kind == JX_TUPLE) {
        for (size_t i = 0; i < fix.l->n; i++) {
            jx_need_str(c, fix.l->v[i], "each prefix or suffix");
            if (affix(c, s, fix.l->v[i], from, to, suffix))
                return true;
        }
        return false;
    }
    if (fix.kind != JX_STR)
        jx_error(c, "%s first arg must be str or a tuple of str, not %s", suffix ? "endswith" : "startswith",
                 jx_type_name(fix));
    if (fix.s->len > to - from)
        return false;
    const char *at = s->data + (suffix ? to - fix.s->len : from);
    return !fix.s->len || !memcmp(at, fix.s->data, fix.s->len);
}

static jx_value str_affix(jx *c, jx_value self, jx_args *a, bool suffix)
{
    size_t from, to;
    if (!window(c, self.s, a->v[1], a->v[2], &from, &to))
        return JX_BOOLV(false);
    return JX_BOOLV(affix(c, self.s, a->v[0], from, to, suffix));
}
static jx_value str_startswith(jx *c, jx_value self, jx_args *a)
{
    return str_affix(c, self, a, false);
}
static jx_value str_endswith(jx *c, jx_value self, jx_args *a)
{
    return str_affix(c, self, a, true);
}

static jx_value str_removeprefix(jx *c, jx_value self, jx_args *a)
{
    const jx_str *s = self.s, *fix = jx_need_str(c, a->v[0], "removeprefix() argument");
    return JX_STRV(affix(c, s, a->v[0], 0, s->len, false) ? jx_str_sub(c, s, fix->len, s->len) : s);
}
static jx_value str_removesuffix(jx *c, jx_value self, jx_args *a)
{
    const jx_str *s = self.s, *fix = jx_need_str(c, a->v[0], "removesuffix() argument");
    return JX_STRV(affix(c, s, a->v[0], 0, s->len, true) ? jx_str_sub(c, s, 0, s->len - fix->len) : s);
}

/* Code point index of the first or last occurrence, -1: none. */
static int64_t search(jx *c, jx_value self, jx_args *a, bool last)
{
    const jx_str *s = self.s, *needle = jx_need_str(c, a->v[0], "argument 1");
    size_t from, to;
    if (!window(c, s, a->v[1], a->v[2], &from, &to))
        return -1;
    jx_charge(c, s->len / 32);
    jx_str part = {.data = s->data + from, .len = to - from};
    size_t hit = last ? jx_str_rfind(c, &part, needle, part.len) : jx_str_find(&part, needle, 0);
    return hit == SIZE_MAX ? -1 : (int64_t)xd_utf8_count(s->data, from + hit);
}
static jx_value str_find(jx *c, jx_value self, jx_args *a)
{
    return JX_INTV(search(c, self, a, false));
}
static jx_value str_rfind(jx *c, jx_value self, jx_args *a)
{
    return JX_INTV(search(c, self, a, true));
}
static jx_value str_index(jx *c, jx_value self, jx_args *a)
{
    int64_t at = search(c, self, a, false);
    if (at < 0)
        jx_error(c, "substring not found");
    return JX_INTV(at);
}
static jx_value str_rindex(jx *c, jx_value self, jx_args *a)
{
    int64_t at = search(c, self, a, true);
    if (at < 0)
        jx_error(c, "substring not found");
    return JX_INTV(at);
}

static jx_value str_count(jx *c, jx_value self, jx_args *a)
{
    const jx_str *needle = jx_need_str(c, a->v[0], "argument 1");
    size_t from, to, n = 0;
    if (!window(c, self.s, a->v[1], a->v[2], &from, &to))
        return JX_INTV(0);
    jx_str part = {.data = self.s->data + from, .len = to - from};
    jx_charge(c, part.len / 32);
    if (!needle->len)
        return JX_INTV((jx_int)xd_utf8_count(part.data, part.len) + 1);
    for (size_t at = 0; (at = jx_str_find(&part, needle, at)) != SIZE_MAX; at += needle->len) {
        jx_charge(c, 1);
        n++;
    }
    return JX_INTV((jx_int)n);
}

static jx_value split_space(jx *c, const jx_str *s, int64_t max)
{
    jx_vec l = {0};
    const char *end = s->data + s->len, *at = s->data;
    while (at < end) {
        const char *next = at;
        if (jx_is_space(jx_char(&next, end))) {
            at = next;
            continue;
        }
        size_t from = (size_t)(at - s->data), to;
        if (max == 0) {
            to = s->len;
            at = end;
        } else {
            while (next < end) {
                const char *p = next;
                if (jx_is_space(jx_char(&p, end)))
                    break;
                next = p;
            }
            to = (size_t)(next - s->data);
            at = next;
            max--;
        }
        jx_push(c, &l, JX_STRV(jx_str_sub(c, s, from, to)));
    }
    return jx_vec_list(c, &l, JX_LIST);
}

static void reverse(jx_vec *l)
{
    for (size_t i = 0; i < l->n / 2; i++) {
        jx_value v = l->v[i];
        l->v[i] = l->v[l->n - 1 - i];
        l->v[l->n - 1 - i] = v;
    }
}

static jx_value rsplit_space(jx *c, const jx_str *s, int64_t max)
{
    jx_vec l = {0};
    const char *at = s->data + s->len;
    while (at > s->data) {
        const char *prev = at;
        if (jx_is_space(jx_char_back(s->data, &prev))) {
            at = prev;
            continue;
        }
        size_t to = (size_t)(at - s->data), from;
        if (max == 0) {
            from = 0;
            at = s->data;
        } else {
            while (prev > s->data) {
                const char *p = prev;
                if (jx_is_space(jx_char_back(s->data, &p)))
                    break;
                prev = p;
            }
            from = (size_t)(prev - s->data);
            at = prev;
            max--;
        }
        jx_push(c, &l, JX_STRV(jx_str_sub(c, s, from, to)));
    }
    reverse(&l);
    return jx_vec_list(c, &l, JX_LIST);
}

static const jx_str *separator(jx *c, jx_value v)
{
    const jx_str *sep = jx_need_str(c, v, "the separator");
    if (!sep->len)
        jx_error(c, "empty separator");
    return sep;
}

static jx_value str_split(jx *c, jx_value self, jx_args *a)
{
    const jx_str *s = self.s;
    int64_t max = jx_given(a->v[1]) ? jx_need_index(c, a->v[1]) : -1;
    jx_charge(c, s->len / 32);
    if (!jx_given_not_none(a->v[0]))
        return split_space(c, s, max);
    const jx_str *sep = separator(c, a->v[0]);
    jx_vec l = {0};
    size_t from = 0;
    for (size_t hit; max != 0 && (hit = jx_str_find(s, sep, from)) != SIZE_MAX; max--) {
        jx_push(c, &l, JX_STRV(jx_str_sub(c, s, from, hit)));
        from = hit + sep->len;
    }
    jx_push(c, &l, JX_STRV(jx_str_sub(c, s, from, s->len)));
    return jx_vec_list(c, &l, JX_LIST);
}

static jx_value str_rsplit(jx *c, jx_value self, jx_args *a)
{
    const jx_str *s = self.s;
    int64_t max = jx_given(a->v[1]) ? jx_need_index(c, a->v[1]) : -1;
    jx_charge(c, s->len / 16);
    if (!jx_given_not_none(a->v[0]))
        return rsplit_space(c, s, max);
    const jx_str *sep = separator(c, a->v[0]);
    jx_vec l = {0};
    size_t to = s->len;
    for (size_t hit; max != 0 && (hit = jx_str_rfind(c, s, sep, to)) != SIZE_MAX; max--) {
        jx_push(c, &l, JX_STRV(jx_str_sub(c, s, hit + sep->len, to)));
        to = hit;
    }
    jx_push(c, &l, JX_STRV(jx_str_sub(c, s, 0, to)));
    reverse(&l);
    return jx_vec_list(c, &l, JX_LIST);
}

static jx_value str_splitlines(jx *c, jx_value self, jx_args *a)
{
    return jx_splitlines(c, self.s, jx_given(a->v[0]) && jx_truth(c, a->v[0]));
}

static jx_value partition(jx *c, const jx_str *s, jx_value sep_value, bool last)
{
    const jx_str *sep = separator(c, sep_value);
    jx_charge(c, s->len / 32);
    size_t hit = last ? jx_str_rfind(c, s, sep, s->len) : jx_str_find(s, sep, 0);
    jx_value empty = JX_STRV(jx_str_lit(c, ""));
    if (hit == SIZE_MAX)
        return last ? jx_tuple(c, 3, empty, empty, JX_STRV(s)) : jx_tuple(c, 3, JX_STRV(s), empty, empty);
    return jx_tuple(c, 3, JX_STRV(jx_str_sub(c, s, 0, hit)), JX_STRV(sep),
                    JX_STRV(jx_str_sub(c, s, hit + sep->len, s->len)));
}
static jx_value str_partition(jx *c, jx_value self, jx_args *a)
{
    return partition(c, self.s, a->v[0], false);
}
static jx_value str_rpartition(jx *c, jx_value self, jx_args *a)
{
    return partition(c, self.s, a->v[0], true);
}

static jx_value str_join(jx *c, jx_value self, jx_args *a)
{
    jx_sb b = {0};
    jx_iter it = jx_iter_open(c, a->v[0]);
    jx_value item;
    for (size_t i = 0; jx_iter_next(c, &it, &item); i++) {
        if (item.kind != JX_STR)
            jx_error(c, "sequence item %zu: expected str instance, %s found", i, jx_type_name(item));
        if (i)
            jx_sb_str(c, &b, self.s);
        jx_sb_str(c, &b, self.s->markup ? jx_str_escape(c, item.s) : item.s);
    }
    return result(c, self, jx_sb_done(c, &b));
}

static jx_value pad(jx *c, jx_value self, jx_args *a, int how)
{
    const jx_str *fill = jx_given(a->v[1]) ? jx_need_str(c, a->v[1], "the fill character") : jx_str_lit(c, " ");
    return result(c, self, jx_pad(c, self.s, jx_need_index(c, a->v[0]), fill, how));
}
static jx_value str_ljust(jx *c, jx_value self, jx_args *a)
{
    return pad(c, self, a, -1);
}
static jx_value str_rjust(jx *c, jx_value self, jx_args *a)
{
    return pad(c, self, a, 1);
}
static jx_value str_center(jx *c, jx_value self, jx_args *a)
{
    return pad(c, self, a, 0);
}

static jx_value str_zfill(jx *c, jx_value self, jx_args *a)
{
    const jx_str *s = self.s;
    size_t sign = s->len && (*s->data == '-' || *s->data == '+');
    int64_t width = jx_need_index(c, a->v[0]);
    const jx_str *digits =
        jx_pad(c, jx_str_sub(c, s, sign, s->len), width > 0 ? width - (int64_t)sign : 0, jx_str_lit(c, "0"), 1);
    return result(c, self,
                  sign ? jx_str_concat(c, jx_str_markup(c, jx_str_sub(c, s, 0, 1), digits->markup), digits) : digits);
}

static jx_value str_expandtabs(jx *c, jx_value self, jx_args *a)
{
    const jx_str *s = self.s;
    int64_t size = jx_given(a->v[0]) ? jx_need_index(c, a->v[0]) : 8, column = 0;
    jx_sb b = {0};
    size_t plain = 0;
    jx_charge(c, s->len / 16);
    for (size_t i = 0; i < s->len; i++) {
        if (s->data[i] == '\t') {
            jx_sb_sub(c, &b, s, plain, i);
            int64_t n = size > 0 ? size - column % size : 0;
            jx_sb_fill(c, &b, " ", (size_t)n, s->map ? s->map[i] : s->trusted);
            column += n;
            plain = i + 1;
        } else if (s->data[i] == '\n' || s->data[i] == '\r') {
            column = 0;
        } else {
            column += ((unsigned char)s->data[i] & 0xC0) != 0x80;
        }
    }
    jx_sb_sub(c, &b, s, plain, s->len);
    return result(c, self, jx_sb_done(c, &b));
}

#define STR_CLASS(name)                                          \
    static jx_value str_##name(jx *c, jx_value self, jx_args *a) \
    {                                                            \
        bool yes = false;                                        \
        (void)a;                                                 \
        jx_charge(c, self.s->len / 4);                           \
        jx_str_class(self.s, #name, &yes);                       \
        return JX_BOOLV(yes);                                    \
    }
STR_CLASS(isalnum)
STR_CLASS(isalpha)
STR_CLASS(isascii)
STR_CLASS(isdecimal)
STR_CLASS(isdigit)
STR_CLASS(isidentifier)
STR_CLASS(islower)
STR_CLASS(isnumeric)
STR_CLASS(isprintable)
STR_CLASS(isspace)
STR_CLASS(istitle)
STR_CLASS(isupper)

static jx_value str_format_map(jx *c, jx_value self, jx_args *a)
{
    if (a->v[0].kind != JX_DICT)
        jx_error(c, "format_map() argument must be a mapping, not %s", jx_type_name(a->v[0]));
    jx_args kw = {.kw = a->v[0].d->v, .n_kw = a->v[0].d->n};
    return jx_str_format(c, self, &kw);
}

static jx_value char_key(const jx_str *s, size_t at, const char **next)
{
    *next = s->data + at;
    return JX_INTV(jx_char(next, s->data + s->len));
}

/* str.maketrans(): a dict from code points; one argument is a dict, two are strings of the same length, the third lists what goes. */
static jx_value str_maketrans(jx *c, jx_value self, jx_args *a)
{
    (void)self;
    jx_dict *d = jx_dict_new(c, 0);
    const char *next, *next2;
    if (!jx_given(a->v[1])) {
        if (a->v[0].kind != JX_DICT)
            jx_error(c, "if you give only one argument to maketrans it must be a dict");
        for (size_t i = 0; i < a->v[0].d->n; i++) {
            jx_pair p = a->v[0].d->v[i];
            if (p.key.kind == JX_STR && p.key.s->chars != 1)
                jx_error(c, "string keys in translate table must be of length 1");
            if (p.key.kind != JX_STR && p.key.kind != JX_INT && p.key.kind != JX_BOOL)
                jx_error(c, "keys in translate table must be strings or integers");
            jx_dict_set(c, d, p.key.kind == JX_STR ? char_key(p.key.s, 0, &next) : p.key, p.value);
        }
        return (jx_value){.kind = JX_DICT, .d = d};
    }
    const jx_str *from = jx_need_str(c, a->v[0], "maketrans() argument 1"),
                 *to = jx_need_str(c, a->v[1], "maketrans() argument 2");
    if (from->chars != to->chars)
        jx_error(c, "the first two maketrans arguments must have equal length");
    for (size_t i = 0, k = 0; i < from->len; i = (size_t)(next - from->data), k = (size_t)(next2 - to->data)) {
        jx_value key = char_key(from, i, &next);
        jx_dict_set(c, d, key, char_key(to, k, &next2));
    }
    const jx_str *gone = jx_given(a->v[2]) ? jx_need_str(c, a->v[2], "maketrans() argument 3") : NULL;
    for (size_t i = 0; gone && i < gone->len; i = (size_t)(next - gone->data)) {
        jx_value key = char_key(gone, i, &next);
        jx_dict_set(c, d, key, JX_NIL);
    }
    return (jx_value){.kind = JX_DICT, .d = d};
}

static jx_value str_translate(jx *c, jx_value self, jx_args *a)
{
    const jx_str *s = self.s;
    jx_value table = a->v[0];
    jx_sb b = {0};
    const char *next;
    for (size_t i = 0, to; i < s->len; i = to) {
        jx_value key = char_key(s, i, &next), with = JX_ABSENT;
        to = (size_t)(next - s->data);
        jx_charge(c, 1);
        if (table.kind != JX_DICT && table.kind != JX_LIST && table.kind != JX_TUPLE && table.kind != JX_STR)
            jx_error(c, "'%s' object is not subscriptable", jx_type_name(table));
        const jx_value *in_dict = table.kind == JX_DICT ? jx_dict_get(c, table.d, key) : NULL;
        if (in_dict)
            with = *in_dict;
        else if (table.kind != JX_DICT && key.i < (jx_int)(table.kind == JX_STR ? table.s->chars : table.l->n))
            with = jx_getitem(c, table, key);
        if (with.kind == JX_MISSING) {
            jx_sb_sub(c, &b, s, i, to);
        } else if (with.kind == JX_STR) {
            jx_sb_str(c, &b, with.s);
        } else if (with.kind == JX_INT || with.kind == JX_BOOL) {
            jx_int ch = jx_as_int(with);
            if (ch < 0 || ch > 0x10FFFF || (ch >= 0xD800 && ch < 0xE000))
                jx_error(c, "character mapping must be in range(0x110000)");
            jx_sb_char(c, &b, (int32_t)ch, s->map ? s->map[i] : s->trusted);
        } else if (with.kind != JX_NONE) {
            jx_error(c, "character mapping must return integer, None or str");
        }
    }
    return result(c, self, jx_sb_done(c, &b));
}

const jx_func jx_str_methods[] = {
    {"capitalize", str_capitalize, "/"},
    {"center", str_center, "/ width | fillchar"},
    {"count", str_count, "/ sub | start end"},
    {"endswith", str_endswith, "/ suffix | start end"},
    {"expandtabs", str_expandtabs, "| tabsize"},
    {"find", str_find, "/ sub | start end"},
    {"format", jx_str_format, NULL},
    {"format_map", str_format_map, "/ mapping"},
    {"index", str_index, "/ sub | start end"},
    {"isalnum", str_isalnum, "/"},
    {"isalpha", str_isalpha, "/"},
    {"isascii", str_isascii, "/"},
    {"isdecimal", str_isdecimal, "/"},
    {"isdigit", str_isdigit, "/"},
    {"isidentifier", str_isidentifier, "/"},
    {"islower", str_islower, "/"},
    {"isnumeric", str_isnumeric, "/"},
    {"isprintable", str_isprintable, "/"},
    {"isspace", str_isspace, "/"},
    {"istitle", str_istitle, "/"},
    {"isupper", str_isupper, "/"},
    {"join", str_join, "/ iterable"},
    {"ljust", str_ljust, "/ width | fillchar"},
    {"lower", str_lower, "/"},
    {"casefold", str_casefold, "/"},
    {"lstrip", str_lstrip, "/ | chars"},
    {"maketrans", str_maketrans, "/ x | y z"},
    {"partition", str_partition, "/ sep"},
    {"removeprefix", str_removeprefix, "/ prefix"},
    {"removesuffix", str_removesuffix, "/ suffix"},
    {"replace", str_replace, "/ old new | count"},
    {"rfind", str_rfind, "/ sub | start end"},
    {"rindex", str_rindex, "/ sub | start end"},
    {"rjust", str_rjust, "/ width | fillchar"},
    {"rpartition", str_rpartition, "/ sep"},
    {"rsplit", str_rsplit, "| sep maxsplit"},
    {"rstrip", str_rstrip, "/ | chars"},
    {"split", str_split, "| sep maxsplit"},
    {"splitlines", str_splitlines, "| keepends"},
    {"startswith", str_startswith, "/ prefix | start end"},
    {"strip", str_strip, "/ | chars"},
    {"swapcase", str_swapcase, "/"},
    {"title", str_title, "/"},
    {"translate", str_translate, "/ table"},
    {"upper", str_upper, "/"},
    {"zfill", str_zfill, "/ width"},
    {NULL, NULL, NULL},
};
