/* str.c - strings: UTF-8 bytes that know their length in code points and, byte by byte, who wrote them.
 *
 * Provenance: a string is wholly the template's, wholly the client's, or has a map of one byte a byte. Slices share memory;
 * appending to the newest end of a string is done in place, so that building a text piece by piece takes linear time. */
#include <string.h>

#include "api/jinja/jinja_priv.h"

struct jx_grow {
    char *data;
    uint8_t *map;
    size_t used, cap;
};

const jx_str *jx_str_view(jx *c, const char *data, size_t len, size_t chars, bool trusted)
{
    jx_str *s = jx_alloc(c, sizeof *s);
    *s = (jx_str){.data = data, .len = len, .chars = chars, .trusted = trusted};
    return s;
}

const jx_str *jx_str_copy(jx *c, const char *data, size_t len, bool trusted)
{
    char *copy = jx_alloc(c, len + 1);
    if (len)
        memcpy(copy, data, len);
    jx_charge(c, len / 64);
    return jx_str_view(c, copy, len, xd_utf8_count(copy, len), trusted);
}

const jx_str *jx_str_lit(jx *c, const char *literal)
{
    size_t len = strlen(literal);
    return jx_str_view(c, literal, len, xd_utf8_count(literal, len), true);
}

const jx_str *jx_str_sub(jx *c, const jx_str *s, size_t from, size_t to)
{
    if (from >= to)
        from = to = 0;
    if (from == 0 && to == s->len)
        return s;
    size_t len = to - from;
    size_t chars = s->chars == s->len ? len : xd_utf8_count(s->data + from, len);
    if (s->chars != s->len)
        jx_charge(c, len / 64);
    jx_str *sub = jx_alloc(c, sizeof *sub);
    *sub = (jx_str){.data = s->data + from,
                    .len = len,
                    .chars = chars,
                    .map = s->map ? s->map + from : NULL,
                    .trusted = s->trusted,
                    .markup = s->markup};
    return sub;
}

/* Templates walk over the characters of long texts (looking for images in what may be a list): each ASCII character is made once. */
const jx_str *jx_str_char(jx *c, const jx_str *s, size_t from, size_t to)
{
    unsigned char ch = (unsigned char)s->data[from];
    if (to != from + 1 || ch >= 128)
        return jx_str_markup(c, jx_str_sub(c, s, from, to), false);
    const jx_str **known = &c->ascii[s->map ? s->map[from] : s->trusted][ch];
    if (!*known) {
        char *data = jx_alloc(c, 1);
        *data = (char)ch;
        *known = jx_str_view(c, data, 1, 1, s->map ? s->map[from] : s->trusted);
    }
    return *known;
}

const jx_str *jx_str_markup(jx *c, const jx_str *s, bool markup)
{
    if (s->markup == markup)
        return s;
    jx_str *copy = jx_alloc(c, sizeof *copy);
    *copy = *s;
    copy->markup = markup;
    return copy;
}

bool jx_str_trusted(const jx_str *s)
{
    return s->map ? !memchr(s->map, 0, s->len) : s->trusted;
}

bool jx_str_eq(const jx_str *a, const jx_str *b)
{
    return a->len == b->len && (a->data == b->data || !a->len || !memcmp(a->data, b->data, a->len));
}

bool jx_str_is(const jx_str *s, const char *text)
{
    return s->len == strlen(text) && (!s->len || !memcmp(s->data, text, s->len));
}

int jx_str_cmp(const jx_str *a, const jx_str *b)
{
    /* The order of UTF-8 bytes is the order of code points. */
    size_t n = XD_MIN(a->len, b->len);
    int r = n ? memcmp(a->data, b->data, n) : 0;
    return r ? (r > 0) - (r < 0) : (a->len > b->len) - (a->len < b->len);
}

size_t jx_str_offset(const jx_str *s, size_t chars)
{
    if (chars >= s->chars)
        return s->len;
    if (s->chars == s->len)
        return chars;
    size_t at = 0;
    for (; chars && at < s->len; chars--)
        do
            at++;
        while (at < s->len && ((unsigned char)s->data[at] & 0xC0) == 0x80);
    return at;
}

size_t jx_str_find(const jx_str *s, const jx_str *needle, size_t from)
{
    if (from > s->len)
        return SIZE_MAX;
    if (!needle->len)
        return from;
    const char *hit = memmem(s->data + from, s->len - from, needle->data, needle->len);
    return hit ? (size_t)(hit - s->data) : SIZE_MAX;
}

/* Knuth, Morris and Pratt from the right: linear whatever the needle, as glibc's memmem() is from the left. */
static size_t rfind_long(jx *c, const jx_str *s, const jx_str *needle, size_t end)
{
    size_t m = needle->len, matched = 0;
    const char *last = needle->data + m - 1;
    if (m > UINT32_MAX)
        return SIZE_MAX;
    jx_charge(c, m / 16);
    uint32_t *back = jx_alloc_array(c, m, sizeof *back);
    for (size_t i = 1, k = 0; i < m; i++) {
        while (k && last[-(ptrdiff_t)i] != last[-(ptrdiff_t)k])
            k = back[k - 1];
        k += last[-(ptrdiff_t)i] == last[-(ptrdiff_t)k];
        back[i] = (uint32_t)k;
    }
    for (size_t at = end; at-- > 0;) {
        jx_charge(c, at % 64 == 0);
        while (matched && s->data[at] != last[-(ptrdiff_t)matched])
            matched = back[matched - 1];
        matched += s->data[at] == last[-(ptrdiff_t)matched];
        if (matched == m)
            return at;
    }
    return SIZE_MAX;
}

size_t jx_str_rfind(jx *c, const jx_str *s, const jx_str *needle, size_t end)
{
    if (needle->len > end)
        return SIZE_MAX;
    if (needle->len > 16)
        return rfind_long(c, s, needle, end);
    for (size_t at = end - needle->len + 1; at-- > 0;)
        if (!needle->len || !memcmp(s->data + at, needle->data, needle->len))
            return at;
    return SIZE_MAX;
}

/* ---- concatenation ---- */

static void fill_map(uint8_t *to, const jx_str *s)
{
    if (s->map)
        memcpy(to, s->map, s->len);
    else
        memset(to, s->trusted, s->len);
}

static bool same_origin(const jx_str *a, const jx_str *b)
{
    return !a->map && !b->map && a->trusted == b->trusted;
}

const jx_str *jx_str_concat(jx *c, const jx_str *a, const jx_str *b)
{
    if (a->markup != b->markup) { /* Markup + str: the str is escaped */
        if (a->markup)
            b = jx_str_escape(c, b);
        else
            a = jx_str_escape(c, a);
    }
    if (!b->len)
        return a;
    if (!a->len)
        return b;
    size_t len = a->len + b->len;
    jx_charge(c, 1 + b->len / 64);
    jx_grow *g = a->grow;
    if (!g || a->data + a->len != g->data + g->used || g->cap - g->used < b->len) {
        jx_charge(c, a->len / 64);
        g = JX_NEW(c, jx_grow);
        g->cap = len < 256 ? len : 2 * len;
        g->data = jx_alloc(c, g->cap);
        memcpy(g->data, a->data, a->len);
        g->used = a->len;
    }
    size_t start = g->used - a->len; /* a lies at the end of g */
    if (c->track && !g->map && !same_origin(a, b)) {
        g->map = jx_alloc(c, g->cap);
        memset(g->map, 0, start);
    }
    if (g->map && !a->map)
        fill_map(g->map + start, a);
    else if (g->map && a->map != g->map + start)
        memcpy(g->map + start, a->map, a->len);
    memcpy(g->data + g->used, b->data, b->len);
    if (g->map)
        fill_map(g->map + g->used, b);
    g->used += b->len;
    jx_str *s = jx_alloc(c, sizeof *s);
    *s = (jx_str){.data = g->data + start,
                  .len = len,
                  .chars = a->chars + b->chars,
                  .map = g->map ? g->map + start : NULL,
                  .trusted = a->trusted,
                  .markup = a->markup,
                  .grow = g};
    return s;
}

/* ---- building ---- */

static void reserve(jx *c, jx_sb *b, size_t extra)
{
    if (b->max_len && extra > b->max_len - b->len)
        jx_throw(c, XD_TOO_LARGE, "template_error", "makes more than %zu bytes of output", b->max_len);
    if (extra <= b->cap - b->len)
        return;
    size_t cap;
    if (!xd_add_size(&cap, b->len, extra) || cap > SIZE_MAX / 4)
        jx_throw(c, XD_TOO_LARGE, "template_error", "needs too much memory");
    cap = XD_MAX(cap, XD_MAX(b->cap + b->cap / 2, (size_t)48));
    b->data = jx_realloc(c, b->data, b->cap, cap);
    if (b->map)
        b->map = jx_realloc(c, b->map, b->cap, cap);
    b->cap = cap;
}

/* Makes room for len bytes of the given origin and returns where they go. */
static char *open_space(jx *c, jx_sb *b, size_t len, bool trusted)
{
    jx_charge(c, 1 + len / 64);
    reserve(c, b, len);
    if (c->track && !b->map && (trusted ? b->any_client : b->any_trusted)) {
        b->map = jx_alloc(c, b->cap);
        memset(b->map, !trusted, b->len);
    }
    if (b->map)
        memset(b->map + b->len, trusted, len);
    if (trusted)
        b->any_trusted = true;
    else
        b->any_client = true;
    char *at = b->data + b->len;
    b->len += len;
    return at;
}

void jx_sb_add(jx *c, jx_sb *b, const char *data, size_t len, bool trusted)
{
    if (len)
        memcpy(open_space(c, b, len, trusted), data, len);
}

void jx_sb_sub(jx *c, jx_sb *b, const jx_str *s, size_t from, size_t to)
{
    if (!s->map) {
        jx_sb_add(c, b, s->data + from, to - from, s->trusted);
        return;
    }
    for (size_t end; from < to; from = end) {
        for (end = from + 1; end < to && s->map[end] == s->map[from];)
            end++;
        jx_sb_add(c, b, s->data + from, end - from, s->map[from]);
    }
}

void jx_sb_str(jx *c, jx_sb *b, const jx_str *s)
{
    jx_sb_sub(c, b, s, 0, s->len);
}

void jx_sb_fill(jx *c, jx_sb *b, const char *piece, size_t n, bool trusted)
{
    size_t len = strlen(piece), all;
    if (!n || !len)
        return;
    if (!xd_mul_size(&all, n, len) || all > SIZE_MAX / 4)
        jx_throw(c, XD_TOO_LARGE, "template_error", "needs too much memory");
    char *at = open_space(c, b, all, trusted);
    memcpy(at, piece, len);
    for (size_t done = len, more; done < all;
         done += more) { /* copies double: a filling may be millions of characters */
        more = XD_MIN(done, all - done);
        memcpy(at + done, at, more);
    }
}

void jx_sb_char(jx *c, jx_sb *b, int32_t ch, bool trusted)
{
    char u[4];
    size_t n = 0;
    if (ch < 0x80) {
        u[n++] = (char)ch;
    } else if (ch < 0x800) {
        u[n++] = (char)(0xC0 | ch >> 6);
    } else if (ch < 0x10000) {
        u[n++] = (char)(0xE0 | ch >> 12);
        u[n++] = (char)(0x80 | (ch >> 6 & 63));
    } else {
        u[n++] = (char)(0xF0 | ch >> 18);
        u[n++] = (char)(0x80 | (ch >> 12 & 63));
        u[n++] = (char)(0x80 | (ch >> 6 & 63));
    }
    if (ch >= 0x80)
        u[n++] = (char)(0x80 | (ch & 63));
    jx_sb_add(c, b, u, n, trusted);
}

const jx_str *jx_sb_done(jx *c, jx_sb *b)
{
    jx_str *s = jx_alloc(c, sizeof *s);
    *s = (jx_str){.data = b->data ? b->data : "",
                  .len = b->len,
                  .chars = xd_utf8_count(b->data, b->len),
                  .map = b->map,
                  .trusted = !b->any_client};
    return s;
}

const jx_str *jx_str_escape(jx *c, const jx_str *s)
{
    if (s->markup)
        return s;
    static const struct {
        char ch;
        const char *to;
    } entities[] = {{'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}, {'\'', "&#39;"}, {'"', "&#34;"}};
    jx_sb b = {0};
    size_t from = 0;
    for (size_t i = 0; i < s->len; i++)
        for (size_t e = 0; e < XD_ARRAY_LEN(entities); e++)
            if (s->data[i] == entities[e].ch) {
                jx_sb_sub(c, &b, s, from, i);
                jx_sb_add(c, &b, entities[e].to, strlen(entities[e].to), s->map ? s->map[i] : s->trusted);
                from = i + 1;
            }
    jx_sb_sub(c, &b, s, from, s->len);
    return jx_str_markup(c, jx_sb_done(c, &b), true);
}
