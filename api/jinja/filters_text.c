/* filters_text.c - the filters wordwrap (Python's textwrap) and urlize, whose rules are regular expressions: the reference's own, run by
 * pcre2.
 *
 * pcre2 takes all its memory from the rendering's arena. So a longjmp out of it leaks nothing, and matching is bounded by the
 * arena and by pcre2's match limit. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <string.h>

#include "api/jinja/jinja_priv.h"

#define FILTER(name) jx_value jx_filter_##name(jx *c, jx_value v, jx_args *a)

/* ---- regular expressions ---- */

typedef struct regex {
    jx *c;
    pcre2_code *code;
    pcre2_match_data *match;
} regex;

static void *take_memory(size_t bytes, void *c)
{
    return jx_alloc(c, bytes);
}

static void keep_memory(void *p, void *c)
{
    (void)p;
    (void)c;
}

static regex compile(jx *c, const char *pattern, uint32_t options)
{
    int error;
    size_t at;
    regex r = {.c = c};
    pcre2_general_context *g = pcre2_general_context_create(take_memory, keep_memory, c);
    pcre2_compile_context *how = g ? pcre2_compile_context_create(g) : NULL;
    r.code =
        pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
                      options | PCRE2_UTF | PCRE2_UCP | PCRE2_NO_UTF_CHECK | PCRE2_DOLLAR_ENDONLY, &error, &at, how);
    r.match = r.code ? pcre2_match_data_create_from_pattern(r.code, g) : NULL;
    if (!r.match)
        jx_throw(c, XD_NOMEM, "", "out of memory");
    return r;
}

/* The first match at or behind `start`: true and its bytes [*from, *to). */
static bool find(const regex *r, const jx_str *s, size_t start, size_t *from, size_t *to)
{
    int n = pcre2_match(r->code, (PCRE2_SPTR)s->data, s->len, start, PCRE2_NO_UTF_CHECK, r->match, NULL);
    const size_t *v = pcre2_get_ovector_pointer(r->match);
    jx_charge(r->c, 4 + 2 * ((n > 0 ? v[1] : s->len) - start)); /* up to 70 ns a byte */
    if (n == PCRE2_ERROR_NOMATCH)
        return false;
    if (n < 0)
        jx_error(r->c, "the text is too long for this filter");
    *from = v[0];
    *to = v[1];
    return true;
}

static bool matches(const regex *r, const jx_str *s)
{
    size_t from, to;
    return find(r, s, 0, &from, &to);
}

/* ---- wordwrap ---- */

/* textwrap's wordsep_re: white space, em-dashes, words and the parts of hyphenated words. */
static const char word_pattern[] = "[\\t\\n\\x0b\\f\\r ]+"
                                   "|(?<=[\\w!\"'&.,?])-{2,}(?=\\w)"
                                   "|[^\\t\\n\\x0b\\f\\r ]+?(?:"
                                   "-(?:(?<=[^\\d\\W]{2}-)|(?<=[^\\d\\W]-[^\\d\\W]-))(?=[^\\d\\W]-?[^\\d\\W])"
                                   "|(?=[\\t\\n\\x0b\\f\\r ]|\\z)"
                                   "|(?<=[\\w!\"'&.,?])(?=-{2,}\\w))";

typedef struct wrapper {
    jx *c;
    const regex *words;
    jx_sb *b;
    const jx_str *separator;
    int64_t width;
    bool break_long, at_hyphens, first; /* first: nothing is written yet */
    bool real;                          /* the width is a float, which Python cannot cut a word at */
} wrapper;

static jx_vec split_words(wrapper *w, const jx_str *s)
{
    jx_vec l = {0};
    size_t at = 0, from, to;
    while (at < s->len && find(w->words, s, at, &from, &to) && to > at) {
        if (from > at)
            jx_push(w->c, &l, JX_STRV(jx_str_sub(w->c, s, at, from)));
        jx_push(w->c, &l, JX_STRV(jx_str_sub(w->c, s, from, to)));
        at = to;
    }
    if (at < s->len)
        jx_push(w->c, &l, JX_STRV(jx_str_sub(w->c, s, at, s->len)));
    return l;
}

static bool is_blank(jx *c, const jx_str *s)
{
    return !jx_strip(c, s, JX_ABSENT, 1)->len;
}

/* How many code points of a word that fits on no line go on this one. */
static int64_t long_word_part(wrapper *w, const jx_str *word, int64_t room)
{
    if (!w->at_hyphens || (int64_t)word->chars <= room)
        return room;
    const jx_str *head = jx_str_sub(w->c, word, 0, jx_str_offset(word, (size_t)room));
    size_t hyphen = jx_str_rfind(w->c, head, jx_str_lit(w->c, "-"), head->len);
    if (hyphen == SIZE_MAX || !hyphen)
        return room;
    for (size_t i = 0; i < hyphen; i++)
        if (head->data[i] != '-')
            return (int64_t)xd_utf8_count(head->data, hyphen) + 1;
    return room;
}

static void end_item(wrapper *w)
{
    if (!w->first)
        jx_sb_str(w->c, w->b, w->separator);
    w->first = false;
}

/* textwrap's _wrap_chunks() on one paragraph. */
static void wrap_paragraph(wrapper *w, const jx_str *text)
{
    jx_vec words = split_words(w, text);
    bool wrote = false;
    for (size_t at = 0; at < words.n;) {
        if (wrote && is_blank(w->c, words.v[at].s))
            at++;
        int64_t len = 0;
        jx_vec line = {0};
        while (at < words.n && len + (int64_t)words.v[at].s->chars <= w->width) {
            len += (int64_t)words.v[at].s->chars;
            jx_push(w->c, &line, words.v[at++]);
        }
        if (at < words.n && (int64_t)words.v[at].s->chars > w->width) {
            const jx_str *word = words.v[at].s;
            if (w->break_long) {
                if (w->real && w->width)
                    jx_error(w->c, "slice indices must be integers or None or have an __index__ method");
                size_t cut = jx_str_offset(word, (size_t)long_word_part(w, word, w->width ? w->width - len : 1));
                jx_push(w->c, &line, JX_STRV(jx_str_sub(w->c, word, 0, cut)));
                words.v[at] = JX_STRV(jx_str_sub(w->c, word, cut, word->len));
                at += cut == word->len;
            } else if (!line.n) {
                jx_push(w->c, &line, words.v[at++]);
            }
        }
        if (line.n && is_blank(w->c, line.v[line.n - 1].s))
            line.n--;
        if (!line.n)
            continue;
        end_item(w);
        wrote = true;
        for (size_t i = 0; i < line.n; i++)
            jx_sb_str(w->c, w->b, line.v[i].s);
    }
    if (!wrote)
        end_item(w); /* an empty paragraph is an empty line */
}

FILTER(wordwrap)
{
    bool hyphens = a->v[3].kind == JX_MISSING || jx_truth(c, a->v[3]);
    if (v.kind == JX_UNDEFINED)
        jx_throw_undefined(c, v);
    const jx_str *s = jx_need_str(c, v, "wordwrap's value");
    regex words = compile(
        c, a->v[3].kind == JX_MISSING || (a->v[3].kind == JX_BOOL && hyphens) ? word_pattern : "[\\t\\n\\x0b\\f\\r ]+",
        0);
    jx_sb b = {0};
    wrapper w = {.c = c,
                 .words = &words,
                 .b = &b,
                 .break_long = a->v[1].kind == JX_MISSING || jx_truth(c, a->v[1]),
                 .separator = jx_given_not_none(a->v[2]) ? jx_need_str(c, a->v[2], "wrapstring") : jx_str_lit(c, "\n"),
                 .at_hyphens = hyphens,
                 .first = true};
    jx_value lines = jx_splitlines(c, s, false);
    bool fits_all = a->v[0].kind == JX_MISSING || !lines.l->n;
    w.real = !fits_all && a->v[0].kind == JX_FLOAT;
    bool positive = w.real && a->v[0].f > 0; /* may still be less than one */
    w.width = fits_all ? 79 : !w.real ? jx_need_index(c, a->v[0]) : positive ? (int64_t)XD_MIN(a->v[0].f, 1e15) : 0;
    if (!positive && w.width <= 0)
        jx_error(c, "invalid width %s (must be > 0)", jx_repr_text(c, a->v[0]));
    for (size_t i = 0; i < lines.l->n; i++)
        wrap_paragraph(&w, lines.l->v[i].s);
    return JX_STRV(jx_sb_done(c, &b));
}

/* ---- urlize ---- */

typedef struct linker {
    jx *c;
    jx_sb *b;
    regex http, email;
    const jx_str *attributes; /* rel and target, written out */
    jx_value schemes;
    jx_value limit; /* characters of a link that are shown; negative: all but so many; None: all */
} linker;

static const char http_pattern[] =
    "^((https?://|www\\.)(([\\w%-]+\\.)+)?([a-z]{2,63}|xn--[\\w%]{2,59})"
    "|([\\w%-]{2,63}\\.)+(com|net|int|edu|gov|org|info|mil)"
    "|(https?://)((([\\d]{1,3})(\\.[\\d]{1,3}){3})|(\\[([\\da-f]{0,4}:){2}([\\da-f]{0,4}:?){1,6}])))"
    "(?::[\\d]{1,5})?(?:[/?#]\\S*)?$";

static bool has_prefix(const jx_str *s, const char *text)
{
    size_t n = strlen(text);
    return s->len >= n && !memcmp(s->data, text, n);
}

static size_t count(const jx_str *s, const char *text)
{
    size_t n = 0, len = strlen(text);
    for (const char *at = s->data, *end = s->data + s->len; (at = memmem(at, (size_t)(end - at), text, len)); at += len)
        n++;
    return n;
}

/* <a href="scheme + url" attributes>shown</a> */
static void add_link(linker *l, const char *scheme, const jx_str *url, const jx_str *attributes, const jx_str *shown)
{
    jx_sb_lit(l->c, l->b, "<a href=\"");
    jx_sb_add(l->c, l->b, scheme, strlen(scheme), true);
    jx_sb_str(l->c, l->b, url);
    jx_sb_lit(l->c, l->b, "\"");
    jx_sb_str(l->c, l->b, attributes);
    jx_sb_lit(l->c, l->b, ">");
    jx_sb_str(l->c, l->b, shown);
    jx_sb_lit(l->c, l->b, "</a>");
}

static const jx_str *trimmed(linker *l, const jx_str *url)
{
    if (!jx_given_not_none(l->limit))
        return url;
    int64_t chars = (int64_t)url->chars, limit = XD_MAX(jx_need_index(l->c, l->limit), -chars);
    int64_t shown = limit < 0 ? chars + limit : limit;
    if (chars <= limit)
        return url;
    return jx_str_concat(l->c, jx_str_sub(l->c, url, 0, jx_str_offset(url, (size_t)shown)), jx_str_lit(l->c, "..."));
}

/* A word without the brackets and stops around it. */
static void link_middle(linker *l, const jx_str *s)
{
    jx *c = l->c;
    const jx_str *none = jx_str_lit(c, ""), *rest = has_prefix(s, "mailto:") ? jx_str_sub(c, s, 7, s->len) : none;
    if (matches(&l->http, s)) {
        bool whole = has_prefix(s, "https://") || has_prefix(s, "http://");
        add_link(l, whole ? "" : "https://", s, l->attributes, trimmed(l, s));
    } else if (rest->len && matches(&l->email, rest)) {
        add_link(l, "", s, none, rest);
    } else if (s->len && memchr(s->data, '@', s->len) && !has_prefix(s, "www.") && *s->data != '@' &&
               !memchr(s->data, ':', s->len) && matches(&l->email, s)) {
        add_link(l, "mailto:", s, none, s);
    } else {
        jx_iter it = jx_iter_open(c, l->schemes);
        jx_value scheme;
        while (s->len && jx_iter_next(c, &it, &scheme))
            if (scheme.s->len < s->len && !memcmp(s->data, scheme.s->data, scheme.s->len)) {
                add_link(l, "", s, l->attributes, s);
                return;
            }
        jx_sb_str(c, l->b, s);
    }
}

/* Bytes of the bracket or stop that begins (or ends) at s[at], 0: none. */
static size_t opening(const jx_str *s, size_t at)
{
    if (at < s->len && (s->data[at] == '(' || s->data[at] == '<'))
        return 1;
    return s->len - at >= 4 && !memcmp(s->data + at, "&lt;", 4) ? 4 : 0;
}

static size_t closing(const jx_str *s, size_t end)
{
    if (end && strchr(")>.,", s->data[end - 1]) && s->data[end - 1])
        return 1;
    return end >= 4 && !memcmp(s->data + end - 4, "&gt;", 4) ? 4 : 0;
}

static void link_word(linker *l, const jx_str *word)
{
    jx *c = l->c;
    size_t head = 0;
    for (size_t n; (n = opening(word, head)); head += n)
        ;
    jx_sb_sub(c, l->b, word, 0, head);
    const jx_str *body = jx_str_sub(c, word, head, word->len);
    size_t end = body->len;
    for (size_t n; (n = closing(body, end)); end -= n)
        ;
    static const char *const pairs[][2] = {{"(", ")"}, {"<", ">"}, {"&lt;", "&gt;"}};
    for (size_t i = 0; i < XD_ARRAY_LEN(pairs); i++) {
        jx_str middle = {.data = body->data, .len = end}, tail = {.data = body->data + end, .len = body->len - end};
        size_t open = count(&middle, pairs[i][0]), n = count(&tail, pairs[i][1]);
        if (open <= count(&middle, pairs[i][1]))
            continue;
        for (n = XD_MIN(open, n); n; n--) { /* the link keeps its closing bracket */
            const char *bracket = memmem(body->data + end, body->len - end, pairs[i][1], strlen(pairs[i][1]));
            end = (size_t)(bracket - body->data) + strlen(pairs[i][1]);
        }
    }
    link_middle(l, jx_str_sub(c, body, 0, end));
    jx_sb_sub(c, l->b, body, end, body->len);
}

/* The attribute rel: its words and "nofollow", sorted, each once. */
static void add_rel(jx *c, jx_sb *b, jx_value rel, bool nofollow)
{
    jx_vec words = {0};
    jx_args none = {.v = (jx_value[]){JX_ABSENT, JX_ABSENT}, .n = 2};
    if (rel.kind != JX_MISSING && jx_truth(c, rel)) {
        const jx_func *split = jx_find_method(JX_STRV(jx_need_str(c, rel, "rel")), jx_str_lit(c, "split"));
        jx_value list = split->fn(c, rel, &none);
        for (size_t i = 0; i < list.l->n; i++)
            jx_push(c, &words, list.l->v[i]);
    }
    if (nofollow)
        jx_push(c, &words, JX_STRV(jx_str_lit(c, "nofollow")));
    jx_push(c, &words, JX_STRV(jx_str_lit(c, "noopener"))); /* a policy of every environment */
    jx_args sort = {.v = (jx_value[]){JX_ABSENT, JX_BOOLV(true), JX_ABSENT}, .n = 3};
    jx_value sorted = jx_find_filter(jx_str_lit(c, "sort"))->fn(c, jx_vec_list(c, &words, JX_LIST), &sort);
    const char *before = " rel=\"";
    for (size_t i = 0; i < sorted.l->n; i++) {
        if (i && jx_equal(c, sorted.l->v[i], sorted.l->v[i - 1]))
            continue;
        jx_sb_add(c, b, before, strlen(before), true);
        jx_sb_str(c, b, jx_str_escape(c, sorted.l->v[i].s));
        before = " ";
    }
    jx_sb_lit(c, b, "\"");
}

FILTER(urlize)
{
    jx_value schemes = jx_given_true(c, a->v[4]) ? jx_to_list(c, a->v[4], JX_LIST) : JX_LISTV(jx_list_new(c, 0));
    regex scheme = compile(c, "^([\\w.+-]{2,}:(/){0,2})$", 0);
    for (size_t i = 0; i < schemes.l->n; i++)
        if (!matches(&scheme, jx_need_str(c, schemes.l->v[i], "a URI scheme")))
            jx_error(c, "%s is not a valid URI scheme prefix.", jx_repr_text(c, schemes.l->v[i]));
    jx_sb b = {0}, attributes = {0};
    add_rel(c, &attributes, a->v[3], a->v[1].kind != JX_MISSING && jx_truth(c, a->v[1]));
    if (jx_given_true(c, a->v[2])) {
        jx_sb_lit(c, &attributes, " target=\"");
        jx_sb_str(c, &attributes, jx_str_escape(c, jx_to_str(c, a->v[2])));
        jx_sb_lit(c, &attributes, "\"");
    }
    linker l = {.c = c,
                .b = &b,
                .http = compile(c, http_pattern, PCRE2_CASELESS),
                .email = compile(c, "^\\S+@\\w[\\w.-]*\\.\\w+$", 0),
                .attributes = jx_sb_done(c, &attributes),
                .schemes = schemes,
                .limit = a->v[0]};
    const jx_str *s = jx_str_markup(c, jx_str_escape(c, jx_to_str(c, v)), false);
    const char *end = s->data + s->len;
    for (const char *at = s->data; at < end;) {
        const char *stop, *next = at;
        bool space = jx_is_space(jx_char(&next, end));
        do
            stop = next;
        while (stop < end && jx_is_space(jx_char(&next, end)) == space);
        const jx_str *word = jx_str_sub(c, s, (size_t)(at - s->data), (size_t)(stop - s->data));
        if (space)
            jx_sb_str(c, &b, word);
        else
            link_word(&l, word);
        at = stop;
    }
    return JX_STRV(jx_sb_done(c, &b));
}
