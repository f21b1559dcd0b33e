/* tok_norm.c - normalizers: what a tokenizer file does to text before it is cut into pieces.
 *
 * Every step writes its result through emit(), which also carries the trust of the source bytes along: a byte of the result
 * is trusted when all the bytes that it stands for are. Unicode normalization is utf8proc's; stretches that can not change
 * are copied, so that plain text costs a scan. */
#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#include "engine/text/tok_priv.h"

void tok_text_free(tok_text *t)
{
    xd_buf_free(&t->s);
    xd_buf_free(&t->trust);
}

void tok_norm_clear(tok_norm *n)
{
    tok_regex_free(n->re);
    tok_charsmap_free(n->map);
    free(n->text);
    *n = (tok_norm){0};
}

/* Appends bytes that stand for in[a..b). */
static void emit(tok_text *out, const tok_text *in, size_t a, size_t b, const char *bytes, size_t n)
{
    xd_buf_append(&out->s, bytes, n);
    if (!in->track_trust)
        return;
    char trusted = 1;
    for (size_t i = a; i < b; i++)
        trusted &= in->trust.data[i];
    for (size_t i = 0; i < n; i++)
        xd_buf_putc(&out->trust, trusted);
}

static void copy(tok_text *out, const tok_text *in, size_t a, size_t b)
{
    xd_buf_append(&out->s, in->s.data + a, b - a);
    if (in->track_trust)
        xd_buf_append(&out->trust, in->trust.data + a, b - a);
}

static int normalize_options(tok_norm_kind kind)
{
    switch (kind) {
    case TOK_NORM_NFC: return UTF8PROC_COMPOSE;
    case TOK_NORM_NFD: return UTF8PROC_DECOMPOSE;
    case TOK_NORM_NFKC: return UTF8PROC_COMPOSE | UTF8PROC_COMPAT;
    default: return UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT;
    }
}

/* A character that this normalization neither changes nor joins to what stands before it. Below U+0300 that is so for NFC,
 * and for ASCII always. */
static bool is_stable(uint32_t cp, tok_norm_kind kind)
{
    if (cp < 0x80 || (kind == TOK_NORM_NFC && cp < 0x300))
        return true;
    if (cp >= 0x1100 && cp <= 0x11FF) /* Hangul letters compose */
        return false;
    if (cp >= 0xAC00 && cp <= 0xD7A3)
        return kind == TOK_NORM_NFC || kind == TOK_NORM_NFKC;
    const utf8proc_property_t *p = utf8proc_get_property((utf8proc_int32_t)cp);
    return p->combining_class == 0 && p->decomp_seqindex == UINT16_MAX &&
           (p->comb_index == UINT16_MAX || p->comb_index < 0x8000);
}

static xd_status unicode_normalize(tok_norm_kind kind, const tok_text *in, tok_text *out, xd_err *err)
{
    const char *s = in->s.data;
    size_t n = in->s.len, i = 0, done = 0, last = 0; /* `last`: start of the last stable character */
    while (i < n) {
        size_t len;
        if (is_stable(tok_cp(s + i, &len), kind)) {
            last = i;
            i += len;
            continue;
        }
        size_t a = i > done ? XD_MAX(last, done) : i, b = i;
        while (b < n && !is_stable(tok_cp(s + b, &len), kind))
            b += len;
        copy(out, in, done, a);
        utf8proc_uint8_t *res = NULL;
        utf8proc_ssize_t m = utf8proc_map((const utf8proc_uint8_t *)s + a, (utf8proc_ssize_t)(b - a), &res,
                                          UTF8PROC_STABLE | normalize_options(kind));
        if (m < 0) {
            free(res);
            return xd_fail(err, XD_NOMEM, 0, "normalizing text");
        }
        emit(out, in, a, b, (const char *)res, (size_t)m);
        free(res);
        done = i = b;
        last = b;
    }
    copy(out, in, done, n);
    return XD_OK;
}

static bool is_combining_mark(uint32_t cp)
{
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    return c == UTF8PROC_CATEGORY_MN || c == UTF8PROC_CATEGORY_MC || c == UTF8PROC_CATEGORY_ME;
}

/* Nmt's table: TOK_NONE drops the character. */
static uint32_t nmt_map(uint32_t cp)
{
    if ((cp >= 1 && cp <= 8) || cp == 0xB || (cp >= 0xE && cp <= 0x1F) || cp == 0x7F || cp == 0x8F || cp == 0x9F)
        return TOK_NONE;
    if (cp == 9 || cp == 0xA || cp == 0xC || cp == 0xD || cp == 0x1680 || (cp >= 0x200B && cp <= 0x200F) ||
        cp == 0x2028 || cp == 0x2029 || cp == 0x2581 || cp == 0xFEFF || cp == 0xFFFD)
        return ' ';
    return cp;
}

/* The steps that map each character on its own. */
static void map_chars(tok_norm_kind kind, const tok_text *in, tok_text *out)
{
    const char *s = in->s.data;
    for (size_t i = 0, len; i < in->s.len; i += len) {
        uint32_t cp = tok_cp(s + i, &len), to = cp;
        if (kind == TOK_NORM_LOWERCASE)
            to = (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp);
        else if (kind == TOK_NORM_STRIP_ACCENTS)
            to = is_combining_mark(cp) ? TOK_NONE : cp;
        else
            to = nmt_map(cp);
        if (to == TOK_NONE) {
            if (i == 0)
                out->at_start = false;
        } else if (kind == TOK_NORM_LOWERCASE && cp == 0x130) { /* the only character whose lower case is two */
            emit(out, in, i, i + len, "i\xCC\x87", 3);
        } else if (to == cp) {
            copy(out, in, i, i + len);
        } else {
            char c[4];
            emit(out, in, i, i + len, c, tok_cp_put(to, c));
        }
    }
}

static void strip(const tok_norm *step, const tok_text *in, tok_text *out)
{
    const char *s = in->s.data;
    size_t a = 0, b = in->s.len, len;
    while (step->left && a < b && tok_cp_is_space(tok_cp(s + a, &len)))
        a += len;
    while (step->right && b > a) {
        size_t p = b - 1;
        while (p > a && ((unsigned char)s[p] & 0xC0) == 0x80)
            p--;
        if (!tok_cp_is_space(tok_cp(s + p, &len)))
            break;
        b = p;
    }
    if (a)
        out->at_start = false;
    copy(out, in, a, b);
}

static xd_status replace(const tok_norm *step, tok_regex_run **run, const tok_text *in, tok_text *out, xd_err *err)
{
    tok_spans spans = {0};
    xd_status st = tok_regex_find(step->re, run, in->s.data, in->s.len, &spans, err);
    for (size_t i = 0; !st && i < spans.n; i++) {
        tok_span m = spans.data[i];
        if (!m.match) {
            copy(out, in, m.start, m.end);
            continue;
        }
        size_t len = 0;
        if (m.start < in->s.len)
            tok_cp(in->s.data + m.start, &len);
        /* what replaces several characters stands where the last of them stood */
        if (m.start == 0 && m.end > 0 && (!step->text_len || m.end > len))
            out->at_start = false;
        emit(out, in, m.start, m.end, step->text, step->text_len);
    }
    free(spans.data);
    return st;
}

/* Grapheme by grapheme, then character by character, as the reference does with SentencePiece's table. */
static void precompiled(const tok_charsmap *map, const tok_text *in, tok_text *out)
{
    const char *s = in->s.data;
    size_t n = in->s.len, i = 0, len, rlen;
    while (i < n) {
        size_t b = i;
        utf8proc_int32_t state = 0;
        uint32_t prev = tok_cp(s + i, &len);
        for (b = i + len; b < n; b += len) {
            uint32_t cp = tok_cp(s + b, &len);
            if (utf8proc_grapheme_break_stateful((utf8proc_int32_t)prev, (utf8proc_int32_t)cp, &state))
                break;
            prev = cp;
        }
        const char *r = b - i < 6 ? tok_charsmap_get(map, s + i, b - i, &rlen) : NULL;
        if (r) {
            emit(out, in, i, b, r, rlen);
            i = b;
        }
        for (; i < b; i += len) {
            tok_cp(s + i, &len);
            if ((r = tok_charsmap_get(map, s + i, len, &rlen)))
                emit(out, in, i, i + len, r, rlen);
            else
                copy(out, in, i, i + len);
        }
    }
}

static void byte_level(const tok_text *in, tok_text *out)
{
    for (size_t i = 0; i < in->s.len; i++) {
        char c[4];
        emit(out, in, i, i + 1, c, tok_cp_put(tok_byte_to_cp((unsigned char)in->s.data[i]), c));
    }
}

static bool is_ascii(const xd_buf *s)
{
    for (size_t i = 0; i < s->len; i++)
        if ((unsigned char)s->data[i] >= 0x80)
            return false;
    return true;
}

xd_status tok_norm_run(const tok_norm *steps, size_t n, tok_regex_run **run, tok_text *t, tok_text *tmp, xd_err *err)
{
    for (size_t i = 0; i < n && t->s.len; i++) {
        const tok_norm *step = &steps[i];
        if (step->kind <= TOK_NORM_NFKD && is_ascii(&t->s))
            continue;
        xd_buf_clear(&tmp->s);
        xd_buf_clear(&tmp->trust);
        tmp->track_trust = t->track_trust;
        tmp->at_start = t->at_start;
        xd_status st = XD_OK;
        switch (step->kind) {
        case TOK_NORM_NFC:
        case TOK_NORM_NFD:
        case TOK_NORM_NFKC:
        case TOK_NORM_NFKD: st = unicode_normalize(step->kind, t, tmp, err); break;
        case TOK_NORM_LOWERCASE:
        case TOK_NORM_STRIP_ACCENTS:
        case TOK_NORM_NMT: map_chars(step->kind, t, tmp); break;
        case TOK_NORM_STRIP: strip(step, t, tmp); break;
        case TOK_NORM_REPLACE: st = replace(step, run, t, tmp, err); break;
        case TOK_NORM_PREPEND:
            emit(tmp, t, 0, 1, step->text, step->text_len);
            copy(tmp, t, 0, t->s.len);
            break;
        case TOK_NORM_BYTE_LEVEL: byte_level(t, tmp); break;
        case TOK_NORM_PRECOMPILED: precompiled(step->map, t, tmp); break;
        }
        if (!st && (tmp->s.failed || tmp->trust.failed))
            st = xd_fail(err, XD_NOMEM, 0, "normalizing text");
        if (!st && tmp->s.len > TOK_MAX_TEXT_BYTES)
            st = xd_fail(err, XD_TOO_LARGE, 0, "the normalized text has more than %d bytes", TOK_MAX_TEXT_BYTES);
        if (st)
            return st;
        tok_text swap = *t;
        *t = *tmp;
        *tmp = swap;
    }
    return XD_OK;
}
