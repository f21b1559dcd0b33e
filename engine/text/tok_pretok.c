/* tok_pretok.c - pre-tokenizers: the text is cut into pieces that the model treats one by one.
 *
 * Pieces are ranges of one buffer. Steps that only cut replace the list of ranges; steps that change bytes (Metaspace,
 * ByteLevel) write a new buffer. Each piece is matched on its own: a lookahead does not see its neighbours. */
#include <stdlib.h>
#include <string.h>

#include "engine/text/tok_priv.h"

void tok_pretok_clear(tok_pretok *p)
{
    tok_regex_free(p->re);
    *p = (tok_pretok){0};
}

void tok_work_clear(tok_work *w)
{
    tok_regex_run_free(w->run);
    tok_text_free(&w->text);
    tok_text_free(&w->tmp);
    free(w->pieces.data);
    free(w->pieces2.data);
    free(w->spans.data);
    free(w->spans2.data);
    if (w->model_mem_free)
        w->model_mem_free(w->model_mem);
    *w = (tok_work){0};
}

static bool push_piece(tok_pieces *p, size_t off, size_t len)
{
    if (!len)
        return true;
    if (p->n == p->cap && !tok_grow(&p->data, &p->cap, p->n + 1, sizeof *p->data))
        return false;
    p->data[p->n++] = (tok_piece){(uint32_t)off, (uint32_t)len};
    return true;
}

bool tok_byte_level_append(xd_buf *out, const char *s, size_t len)
{
    if (len > SIZE_MAX / 4 || !xd_buf_reserve(out, len * 2))
        return false;
    char *d = out->data + out->len;
    for (size_t i = 0; i < len; i++) {
        uint32_t cp = tok_byte_to_cp((unsigned char)s[i]);
        if (cp < 0x80) {
            *d++ = (char)cp;
        } else {
            *d++ = (char)(0xC0 | cp >> 6);
            *d++ = (char)(0x80 | (cp & 0x3F));
        }
    }
    out->len = (size_t)(d - out->data);
    *d = 0;
    return true;
}

typedef bool (*char_test)(uint32_t cp);

/* Every character that passes is a match of its own. */
static bool find_chars(char_test test, const char *s, size_t len, tok_spans *ret)
{
    size_t prev = 0;
    for (size_t i = 0, n; i < len; i += n) {
        if (!test(tok_cp(s + i, &n)))
            continue;
        if ((prev < i && !tok_spans_push(ret, prev, i, false)) || !tok_spans_push(ret, i, i + n, true))
            return false;
        prev = i + n;
    }
    return prev == len || tok_spans_push(ret, prev, len, false);
}

/* \w+|[^\w\s]+ with Rust's classes. */
static bool find_words(const char *s, size_t len, tok_spans *ret)
{
    size_t start = 0;
    int kind = -1;
    for (size_t i = 0, n; i <= len; i += n) {
        int k = -1;
        n = 1;
        if (i < len) {
            uint32_t cp = tok_cp(s + i, &n);
            k = tok_cp_is_word(cp) ? 1 : tok_cp_is_space(cp) ? 0 : 2;
        }
        if (k != kind) {
            if (kind >= 0 && !tok_spans_push(ret, start, i, kind != 0))
                return false;
            start = i;
            kind = k;
        }
    }
    return true;
}

/* Turns the matches of one piece at `base` into pieces. */
static bool apply_behavior(tok_spans *m, tok_behavior behavior, size_t base, tok_pieces *out)
{
    bool ok = true, prev = false;
    size_t n = 0; /* kept spans, folded in place */
    switch (behavior) {
    case TOK_REMOVED:
    case TOK_ISOLATED:
        for (size_t i = 0; ok && i < m->n; i++)
            if (behavior == TOK_ISOLATED || !m->data[i].match)
                ok = push_piece(out, base + m->data[i].start, m->data[i].end - m->data[i].start);
        return ok;
    case TOK_CONTIGUOUS:
    case TOK_MERGED_WITH_PREVIOUS:
        for (size_t i = 0; i < m->n; i++) {
            bool is = m->data[i].match, join = behavior == TOK_CONTIGUOUS ? is == prev : is && !prev;
            if (join && n)
                m->data[n - 1].end = m->data[i].end;
            else
                m->data[n++] = m->data[i];
            prev = is;
        }
        for (size_t i = 0; ok && i < n; i++)
            ok = push_piece(out, base + m->data[i].start, m->data[i].end - m->data[i].start);
        return ok;
    case TOK_MERGED_WITH_NEXT: {
        size_t k = m->n; /* folded from the end, kept spans end up in [k, m->n) */
        for (size_t i = m->n; i-- > 0;) {
            bool is = m->data[i].match;
            if (is && !prev && k < m->n)
                m->data[k].start = m->data[i].start;
            else
                m->data[--k] = m->data[i];
            prev = is;
        }
        for (; ok && k < m->n; k++)
            ok = push_piece(out, base + m->data[k].start, m->data[k].end - m->data[k].start);
        return ok;
    }
    }
    return ok;
}

static xd_status find(const tok_pretok *p, tok_work *w, const char *s, size_t len, xd_err *err)
{
    bool ok = true;
    w->spans.n = 0;
    switch (p->kind) {
    case TOK_PRE_SPLIT:
    case TOK_PRE_BYTE_LEVEL: {
        xd_status st = tok_regex_find(p->re, &w->run, &w->left, s, len, &w->spans, err);
        if (st)
            return st;
        break;
    }
    case TOK_PRE_DIGITS: ok = find_chars(tok_cp_is_numeric, s, len, &w->spans); break;
    case TOK_PRE_PUNCTUATION: ok = find_chars(tok_cp_is_punct, s, len, &w->spans); break;
    case TOK_PRE_WHITESPACE_SPLIT: ok = find_chars(tok_cp_is_space, s, len, &w->spans); break;
    case TOK_PRE_WHITESPACE: ok = find_words(s, len, &w->spans); break;
    case TOK_PRE_METASPACE: break;
    }
    if (p->invert)
        for (size_t i = 0; i < w->spans.n; i++)
            w->spans.data[i].match = !w->spans.data[i].match;
    return ok ? XD_OK : xd_fail(err, XD_NOMEM, 0, "tokenizing");
}

static void swap_pieces(tok_work *w)
{
    tok_pieces p = w->pieces;
    w->pieces = w->pieces2;
    w->pieces2 = p;
}

static void swap_text(tok_work *w)
{
    xd_buf s = w->text.s;
    w->text.s = w->tmp.s;
    w->tmp.s = s;
}

static xd_status cut(const tok_pretok *p, tok_work *w, xd_err *err)
{
    w->pieces2.n = 0;
    for (size_t i = 0; i < w->pieces.n; i++) {
        tok_piece piece = w->pieces.data[i];
        xd_status st = find(p, w, w->text.s.data + piece.off, piece.len, err);
        if (st)
            return st;
        if (!apply_behavior(&w->spans, p->behavior, piece.off, &w->pieces2))
            return xd_fail(err, XD_NOMEM, 0, "tokenizing");
    }
    swap_pieces(w);
    return XD_OK;
}

/* Before a step writes the pieces anew: the first of them no longer tells by its offset whether the text begins with it. */
static void keep_start(tok_work *w)
{
    w->text.at_start = w->text.at_start && w->pieces.n && w->pieces.data[0].off == 0;
}

/* Spaces become the replacement character, which may also be put in front; then a cut before each of them. */
static bool metaspace(const tok_pretok *p, tok_work *w)
{
    xd_buf *out = &w->tmp.s;
    keep_start(w);
    xd_buf_clear(out);
    w->pieces2.n = 0;
    bool ok = true;
    for (size_t i = 0; ok && i < w->pieces.n; i++) {
        tok_piece piece = w->pieces.data[i];
        const char *s = w->text.s.data + piece.off;
        size_t base = out->len;
        bool has = s[0] == ' ' || (piece.len >= p->meta_len && !memcmp(s, p->meta, p->meta_len));
        bool first = piece.off == 0 && w->text.at_start;
        if (!has && (p->scheme == TOK_ALWAYS || (p->scheme == TOK_FIRST && first)))
            xd_buf_append(out, p->meta, p->meta_len);
        for (size_t a = 0; a < piece.len;) {
            const char *sp = memchr(s + a, ' ', piece.len - a);
            size_t b = sp ? (size_t)(sp - s) : piece.len;
            xd_buf_append(out, s + a, b - a);
            if (sp)
                xd_buf_append(out, p->meta, p->meta_len);
            a = b + (sp != NULL);
        }
        if (out->failed)
            return false;
        size_t len = out->len - base;
        if (!p->split) {
            ok = push_piece(&w->pieces2, base, len);
            continue;
        }
        const char *d = out->data + base;
        w->spans.n = 0;
        size_t prev = 0;
        for (size_t a = 0, n; ok && a < len; a += n) {
            tok_cp(d + a, &n);
            if (n != p->meta_len || memcmp(d + a, p->meta, n))
                continue;
            ok = (prev == a || tok_spans_push(&w->spans, prev, a, false)) && tok_spans_push(&w->spans, a, a + n, true);
            prev = a + n;
        }
        ok = ok && (prev == len || tok_spans_push(&w->spans, prev, len, false)) &&
             apply_behavior(&w->spans, TOK_MERGED_WITH_NEXT, base, &w->pieces2);
    }
    swap_pieces(w);
    swap_text(w);
    return ok;
}

/* Puts a space in front of each piece that lacks one. */
static bool prefix_spaces(tok_work *w)
{
    xd_buf *out = &w->tmp.s;
    keep_start(w);
    xd_buf_clear(out);
    for (size_t i = 0; i < w->pieces.n; i++) {
        tok_piece *piece = &w->pieces.data[i];
        size_t base = out->len;
        if (w->text.s.data[piece->off] != ' ')
            xd_buf_putc(out, ' ');
        xd_buf_append(out, w->text.s.data + piece->off, piece->len);
        *piece = (tok_piece){(uint32_t)base, (uint32_t)(out->len - base)};
    }
    swap_text(w);
    return !w->text.s.failed;
}

static bool to_byte_level(tok_work *w)
{
    xd_buf *out = &w->tmp.s;
    keep_start(w);
    xd_buf_clear(out);
    for (size_t i = 0; i < w->pieces.n; i++) {
        tok_piece *piece = &w->pieces.data[i];
        size_t base = out->len;
        if (!tok_byte_level_append(out, w->text.s.data + piece->off, piece->len))
            return false;
        *piece = (tok_piece){(uint32_t)base, (uint32_t)(out->len - base)};
    }
    swap_text(w);
    return true;
}

xd_status tok_pretok_run(const tok_pretok *steps, size_t n, tok_work *w, xd_err *err)
{
    bool ok;
    w->pieces.n = 0;
    ok = push_piece(&w->pieces, 0, w->text.s.len);
    for (size_t i = 0; ok && i < n; i++) {
        const tok_pretok *p = &steps[i];
        xd_status st = XD_OK;
        if (!tok_spend(&w->left, 16 + 2 * w->text.s.len + 40 * w->pieces.n))
            return tok_too_long(err, "the pre-tokenizer");
        switch (p->kind) {
        case TOK_PRE_METASPACE: ok = metaspace(p, w); break;
        case TOK_PRE_BYTE_LEVEL:
            if (p->add_prefix_space)
                ok = prefix_spaces(w);
            if (ok && p->re)
                st = cut(p, w, err);
            if (ok && !st)
                ok = to_byte_level(w);
            break;
        default: st = cut(p, w, err);
        }
        if (st)
            return st;
        if (w->text.s.len > 2 * w->text.max_bytes) /* the byte-level alphabet alone doubles it */
            return xd_fail(err, XD_TOO_LARGE, 0, "the text grows to more than %zu bytes", 2 * w->text.max_bytes);
    }
    return ok ? XD_OK : xd_fail(err, XD_NOMEM, 0, "tokenizing");
}
