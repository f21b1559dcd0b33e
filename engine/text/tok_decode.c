/* tok_decode.c - ids to text: the decoder of the file as a chain of stages, each fed one token at a time.
 *
 * A stage works on a list of tokens, or, after a stage that fuses them (ByteLevel, Fuse), on the pieces of one long token.
 * tok_decode() is a stream that is pushed everything and flushed, so the two can not differ. What a stage can not decide yet
 * it holds: the cut-off end of a character, a run of byte tokens (one bad byte spoils the whole run), spaces that Strip may
 * have to drop at the end. */
#include <stdlib.h>
#include <string.h>

#include "engine/text/tok_priv.h"

#define REPLACEMENT "\xEF\xBF\xBD"

typedef struct stage {
    const tok_dec *d;
    bool fused;   /* the input is one token in pieces */
    bool any;     /* something came in before */
    size_t count; /* STRIP fused: characters already dropped at the front */
    bool open;    /* STRIP fused: still dropping; BYTE_FALLBACK fused: may still be one byte */
    xd_buf held;
    xd_buf text; /* what goes to the next stage: reused, a push should not allocate */
} stage;

struct tok_stream {
    const tokenizer *t;
    bool skip_special;
    const uint32_t *shown; /* [n_shown] although skip_special */
    size_t n_shown;
    tok_regex_run *run;
    tok_work_left left;
    size_t n;
    stage *st;
    xd_buf *out;
    xd_buf scratch;
    xd_status status;
    xd_err *err;
    size_t in_bytes, out_bytes; /* how far replacements may make the text longer: TOK_MAX_GROWTH */
};

void tok_dec_clear(tok_dec *d)
{
    tok_regex_free(d->re);
    free(d->pattern);
    free(d->text);
    *d = (tok_dec){0};
}

static void feed(tok_stream *s, size_t i, const char *p, size_t len);

static bool is_too_large(const tok_stream *s, size_t bytes)
{
    return bytes / TOK_MAX_GROWTH > s->in_bytes + TOK_GROWTH_FREE_BYTES / TOK_MAX_GROWTH;
}

/* ---- ByteLevel ---- */

/* The bytes of a token of the byte-level alphabet; a token with any other character is taken as it is. */
static void byte_level_bytes(xd_buf *out, const char *p, size_t len)
{
    size_t had = out->len;
    for (size_t k = 0, n; k < len; k += n) {
        uint32_t cp = tok_cp(p + k, &n);
        int b = tok_cp_to_byte(cp);
        if (b < 0) {
            out->len = had;
            xd_buf_append(out, p, len);
            return;
        }
        xd_buf_putc(out, (char)b);
    }
}

/* Passes on what of `held` is certain: all but a cut-off character. */
static void pass_characters(tok_stream *s, size_t i, bool all)
{
    stage *g = &s->st[i];
    size_t tail = all ? 0 : xd_utf8_incomplete_tail(g->held.data ? g->held.data : "", g->held.len),
           n = g->held.len - tail;
    if (!n)
        return;
    xd_buf_clear(&g->text);
    xd_utf8_sanitize(&g->text, g->held.data, n);
    if (g->text.failed)
        s->status = XD_NOMEM;
    else
        feed(s, i + 1, g->text.data, g->text.len);
    memmove(g->held.data, g->held.data + n, tail);
    g->held.len = tail;
}

/* ---- ByteFallback ---- */

static int hex_digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* "<0x41>" -> 0x41, else -1. */
static int byte_token(const char *p, size_t len)
{
    if (len != 6 || memcmp(p, "<0x", 3) || p[5] != '>')
        return -1;
    int hi = hex_digit(p[3]), lo = hex_digit(p[4]);
    if (p[3] == '+' && lo >= 0) /* Rust's number parser takes a plus sign */
        return lo;
    return hi < 0 || lo < 0 ? -1 : hi * 16 + lo;
}

static void end_byte_run(tok_stream *s, size_t i)
{
    stage *g = &s->st[i];
    size_t n = g->held.len, k = 0;
    if (!n)
        return;
    int m;
    while (k < n && (m = xd_utf8_seq(g->held.data + k, n - k)) > 0)
        k += (size_t)m;
    if (k == n)
        feed(s, i + 1, g->held.data, n);
    else
        for (k = 0; k < n; k++)
            feed(s, i + 1, REPLACEMENT, 3);
    xd_buf_clear(&g->held);
}

/* ---- Replace ---- */

static void replace_whole(tok_stream *s, size_t i, const char *p, size_t len)
{
    const tok_dec *d = s->st[i].d;
    tok_spans spans = {0};
    xd_buf *text = &s->st[i].text;
    xd_buf_clear(text);
    if (d->literal && d->pattern_len) {
        for (size_t a = 0; a <= len && !is_too_large(s, text->len);) {
            const char *hit = a < len ? memmem(p + a, len - a, d->pattern, d->pattern_len) : NULL;
            size_t b = hit ? (size_t)(hit - p) : len;
            xd_buf_append(text, p + a, b - a);
            if (!hit)
                break;
            xd_buf_append(text, d->text, d->text_len);
            a = b + d->pattern_len;
        }
    } else {
        s->status = tok_regex_find(d->re, &s->run, &s->left, p, len, &spans, s->err);
        for (size_t k = 0; !s->status && k < spans.n && !is_too_large(s, text->len); k++)
            if (spans.data[k].match)
                xd_buf_append(text, d->text, d->text_len);
            else
                xd_buf_append(text, p + spans.data[k].start, spans.data[k].end - spans.data[k].start);
    }
    if (text->failed)
        s->status = XD_NOMEM;
    if (!s->status)
        feed(s, i + 1, text->data ? text->data : "", text->len);
    free(spans.data);
}

/* A literal over a fused stream: holds only an end that may be the pattern's beginning. */
static void replace_fused(tok_stream *s, size_t i, bool all)
{
    stage *g = &s->st[i];
    const tok_dec *d = g->d;
    size_t a = 0, n = g->held.len, m = d->pattern_len;
    const char *p = g->held.data;
    while (a < n) {
        const char *hit = memmem(p + a, n - a, d->pattern, m);
        size_t b = hit ? (size_t)(hit - p) : n;
        if (!hit && !all) {
            size_t keep = XD_MIN(m - 1, n - a);
            while (keep && memcmp(p + n - keep, d->pattern, keep))
                keep--;
            b = n - keep;
        }
        if (b > a)
            feed(s, i + 1, p + a, b - a);
        a = b;
        if (!hit)
            break;
        feed(s, i + 1, d->text, d->text_len);
        a += m;
    }
    memmove(g->held.data, g->held.data + a, n - a);
    g->held.len = n - a;
}

/* ---- Strip ---- */

static bool is_char(const tok_dec *d, const char *p, size_t len)
{
    return len >= d->ch_len && !memcmp(p, d->ch, d->ch_len);
}

static void strip_token(tok_stream *s, size_t i, const char *p, size_t len)
{
    const tok_dec *d = s->st[i].d;
    for (size_t k = 0; k < d->start && is_char(d, p, len); k++) {
        p += d->ch_len;
        len -= d->ch_len;
    }
    for (size_t k = 0; k < d->stop && len >= d->ch_len && is_char(d, p + len - d->ch_len, d->ch_len); k++)
        len -= d->ch_len;
    feed(s, i + 1, p, len);
}

static void strip_fused(tok_stream *s, size_t i, const char *p, size_t len)
{
    stage *g = &s->st[i];
    const tok_dec *d = g->d;
    for (; g->open && len; p += d->ch_len, len -= d->ch_len)
        if (g->count == d->start || !is_char(d, p, len)) {
            g->open = false;
            break;
        } else {
            g->count++;
        }
    if (!len)
        return;
    if (!d->stop) {
        feed(s, i + 1, p, len);
        return;
    }
    /* The last `stop` characters wait for the end. What is held is nothing but such characters: only what came is looked at. */
    size_t keep = 0, most = d->stop > SIZE_MAX / d->ch_len ? SIZE_MAX : d->stop * d->ch_len, had = g->held.len;
    while (keep < most && len - keep >= d->ch_len && is_char(d, p + len - keep - d->ch_len, d->ch_len))
        keep += d->ch_len;
    if (keep == len)
        keep = XD_MIN(most, keep + had);
    xd_buf_append(&g->held, p, len);
    size_t n = g->held.len - keep;
    if (n)
        feed(s, i + 1, g->held.data, n);
    memmove(g->held.data, g->held.data + n, keep);
    g->held.len = keep;
}

/* ---- Metaspace ---- */

static void metaspace(tok_stream *s, size_t i, const char *p, size_t len, bool first)
{
    const tok_dec *d = s->st[i].d;
    xd_buf *text = &s->st[i].text;
    xd_buf_clear(text);
    for (size_t k = 0, n; k < len; k += n) {
        tok_cp(p + k, &n);
        if (n != d->ch_len || memcmp(p + k, d->ch, n))
            xd_buf_append(text, p + k, n);
        else if (!first || d->keep_first)
            xd_buf_putc(text, ' ');
    }
    if (text->failed)
        s->status = XD_NOMEM;
    else
        feed(s, i + 1, text->data ? text->data : "", text->len);
}

/* ---- BPEDecoder: the suffix is a space, but nothing in the last token ---- */

static void bpe_token(tok_stream *s, size_t i, bool last)
{
    stage *g = &s->st[i];
    const tok_dec *d = g->d;
    xd_buf *text = &s->st[i].text;
    xd_buf_clear(text);
    const char *p = g->held.data ? g->held.data : "";
    for (size_t a = 0, n = g->held.len; a < n;) {
        const char *hit = d->text_len ? memmem(p + a, n - a, d->text, d->text_len) : NULL;
        size_t b = hit ? (size_t)(hit - p) : n;
        xd_buf_append(text, p + a, b - a);
        if (hit && !last)
            xd_buf_putc(text, ' ');
        a = hit ? b + d->text_len : n;
    }
    if (text->failed)
        s->status = XD_NOMEM;
    else
        feed(s, i + 1, text->data ? text->data : "", text->len);
    xd_buf_clear(&g->held);
}

/* Gives stage i a token, or a piece of its fused token. */
static void feed(tok_stream *s, size_t i, const char *p, size_t len)
{
    if (s->status)
        return;
    if (!tok_spend(&s->left, 8 + len)) {
        s->status = tok_too_long(s->err, "the decoder");
        return;
    }
    if (is_too_large(s, s->out_bytes + len)) {
        s->status =
            xd_fail(s->err, XD_TOO_LARGE, 0, "the decoder makes the text more than %d times longer", TOK_MAX_GROWTH);
        return;
    }
    if (i == s->n) {
        s->out_bytes += len;
        if (!xd_buf_append(s->out, p, len))
            s->status = XD_NOMEM;
        return;
    }
    stage *g = &s->st[i];
    bool first = !g->any;
    g->any = true;
    switch (g->d->kind) {
    case TOK_DEC_JOIN:
        if (!first)
            feed(s, i + 1, " ", 1);
        feed(s, i + 1, p, len);
        break;
    case TOK_DEC_BYTE_LEVEL:
        if (g->fused) { /* one odd character anywhere makes the whole token literal */
            xd_buf_append(&g->held, p, len);
        } else {
            byte_level_bytes(&g->held, p, len);
            pass_characters(s, i, false);
        }
        break;
    case TOK_DEC_METASPACE: metaspace(s, i, p, len, first || g->fused); break;
    case TOK_DEC_BYTE_FALLBACK: {
        int b = g->fused ? -1 : byte_token(p, len);
        if (g->fused && !g->open) {
            feed(s, i + 1, p, len);
        } else if (g->fused) { /* one token: a byte only if there is nothing else */
            xd_buf_append(&g->held, p, len);
            if (g->held.len > 6) {
                g->open = false;
                feed(s, i + 1, g->held.data, g->held.len);
                xd_buf_clear(&g->held);
            }
        } else if (b >= 0) {
            xd_buf_putc(&g->held, (char)b);
        } else {
            end_byte_run(s, i);
            feed(s, i + 1, p, len);
        }
        break;
    }
    case TOK_DEC_FUSE: feed(s, i + 1, p, len); break;
    case TOK_DEC_STRIP:
        if (g->fused)
            strip_fused(s, i, p, len);
        else
            strip_token(s, i, p, len);
        break;
    case TOK_DEC_REPLACE:
        if (!g->fused) {
            replace_whole(s, i, p, len);
        } else {
            xd_buf_append(&g->held, p, len);
            if (g->d->literal && g->d->pattern_len && !g->held.failed)
                replace_fused(s, i, false);
        }
        break;
    case TOK_DEC_BPE:
        if (!first && !g->fused)
            bpe_token(s, i, false);
        xd_buf_append(&g->held, p, len);
        break;
    }
    if (g->held.failed)
        s->status = XD_NOMEM;
}

/* The end of stage i's input. */
static void finish(tok_stream *s, size_t i)
{
    stage *g = &s->st[i];
    switch (g->d->kind) {
    case TOK_DEC_BYTE_LEVEL:
        if (g->fused && g->held.len) {
            xd_buf bytes = {0};
            byte_level_bytes(&bytes, g->held.data, g->held.len);
            if (bytes.failed)
                s->status = XD_NOMEM;
            xd_buf_free(&g->held);
            g->held = bytes;
        }
        pass_characters(s, i, true);
        break;
    case TOK_DEC_BYTE_FALLBACK:
        if (g->fused && g->held.len) {
            int b = byte_token(g->held.data, g->held.len);
            if (b >= 0) {
                g->held.data[0] = (char)b;
                g->held.len = 1;
            } else {
                feed(s, i + 1, g->held.data, g->held.len);
                g->held.len = 0;
            }
        }
        end_byte_run(s, i);
        break;
    case TOK_DEC_STRIP: /* what is held are spaces that the end drops */ break;
    case TOK_DEC_REPLACE:
        if (!g->fused || !g->any)
            break;
        if (g->d->literal && g->d->pattern_len)
            replace_fused(s, i, true);
        else
            replace_whole(s, i, g->held.data ? g->held.data : "", g->held.len);
        break;
    case TOK_DEC_BPE:
        if (g->any)
            bpe_token(s, i, true);
        break;
    default: break;
    }
    xd_buf_clear(&g->held);
}

tok_stream *tok_stream_new(const tokenizer *t, bool skip_special)
{
    tok_stream *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    *s = (tok_stream){.t = t,
                      .skip_special = skip_special,
                      .left = tok_work_for(0),
                      .n = t->n_decs,
                      .st = calloc(t->n_decs + 1, sizeof *s->st)};
    if (!s->st) {
        tok_stream_free(s);
        return NULL;
    }
    bool fused = false;
    for (size_t i = 0; i < s->n; i++) {
        s->st[i] = (stage){.d = &t->decs[i], .fused = fused, .open = true};
        fused |= t->decs[i].kind == TOK_DEC_BYTE_LEVEL || t->decs[i].kind == TOK_DEC_FUSE;
    }
    return s;
}

void tok_stream_free(tok_stream *s)
{
    if (!s)
        return;
    for (size_t i = 0; s->st && i < s->n; i++) {
        xd_buf_free(&s->st[i].held);
        xd_buf_free(&s->st[i].text);
    }
    free(s->st);
    xd_buf_free(&s->scratch);
    tok_regex_run_free(s->run);
    free(s);
}

static xd_status result(tok_stream *s, xd_err *err)
{
    if (s->status == XD_NOMEM)
        return xd_fail(err, XD_NOMEM, 0, "decoding tokens");
    return s->status;
}

void tok_stream_show(tok_stream *s, const uint32_t *ids, size_t n)
{
    s->shown = ids;
    s->n_shown = n;
}

static bool is_shown(const tok_stream *s, uint32_t id)
{
    for (size_t i = 0; i < s->n_shown; i++)
        if (s->shown[i] == id)
            return true;
    return false;
}

xd_status tok_stream_push(tok_stream *s, uint32_t id, xd_buf *ret, xd_err *err)
{
    const tok_added *added;
    size_t len;
    const char *text = tok_decode_text(s->t, id, &len, &added);
    if (!text || (added && s->skip_special && added->skip && !is_shown(s, id)))
        return XD_OK;
    s->out = ret;
    s->err = err;
    s->in_bytes += len;
    s->left += len * (TOK_WORK_PER_BYTE / 2); /* tokens are spelled longer than what they stand for */
    feed(s, 0, text, len);
    return result(s, err);
}

xd_status tok_stream_flush(tok_stream *s, xd_buf *ret, xd_err *err)
{
    s->out = ret;
    s->err = err;
    for (size_t i = 0; i < s->n && !s->status; i++)
        finish(s, i);
    return result(s, err);
}

xd_status tok_stream_prime(tok_stream *s, const uint32_t *ids, size_t n, xd_err *err)
{
    xd_status st = XD_OK;
    for (size_t i = 0; i < n && !st; i++) {
        xd_buf_clear(&s->scratch);
        st = tok_stream_push(s, ids[i], &s->scratch, err);
    }
    /* What is still held belongs to the prompt, except a cut-off character that generated tokens may complete. */
    for (size_t i = 0; i < s->n; i++) {
        xd_buf *h = &s->st[i].held;
        tok_dec_kind kind = s->st[i].d->kind;
        size_t keep =
            kind == TOK_DEC_BYTE_LEVEL || kind == TOK_DEC_BYTE_FALLBACK ? xd_utf8_incomplete_tail(h->data, h->len) : 0;
        if (h->len) {
            memmove(h->data, h->data + h->len - keep, keep);
            h->len = keep;
        }
    }
    return st;
}

xd_status tok_decode(const tokenizer *t, const uint32_t *ids, size_t n, bool skip_special, xd_buf *ret, xd_err *err)
{
    XD_CLEANUP(tok_stream_freep) tok_stream *s = tok_stream_new(t, skip_special);
    if (!s)
        return xd_fail(err, XD_NOMEM, 0, "decoding tokens");
    for (size_t i = 0; i < n; i++) {
        xd_status st = tok_stream_push(s, ids[i], ret, err);
        if (st)
            return st;
    }
    return tok_stream_flush(s, ret, err);
}

bool tok_token_bytes(const tokenizer *t, uint32_t id, xd_buf *ret)
{
    const tok_added *added;
    size_t len;
    const char *text = tok_decode_text(t, id, &len, &added);
    if (!text)
        return false;
    xd_buf b = {0}, next = {0};
    xd_buf_append(&b, text, len);
    for (size_t i = 0; i < t->n_decs && b.data; i++) {
        const tok_dec *d = &t->decs[i];
        int byte = d->kind == TOK_DEC_BYTE_FALLBACK ? byte_token(b.data, b.len) : -1;
        const char *from = d->kind == TOK_DEC_METASPACE ? d->ch : d->literal ? d->pattern : NULL;
        size_t from_len = d->kind == TOK_DEC_METASPACE ? d->ch_len : d->pattern_len;
        xd_buf_clear(&next);
        if (byte >= 0) {
            xd_buf_putc(&next, (char)byte);
        } else if (d->kind == TOK_DEC_BYTE_LEVEL) {
            byte_level_bytes(&next, b.data, b.len);
        } else if ((d->kind == TOK_DEC_METASPACE || d->kind == TOK_DEC_REPLACE) && from && from_len) {
            for (size_t a = 0; a < b.len && next.len < 65536;) {
                const char *hit = memmem(b.data + a, b.len - a, from, from_len);
                size_t e = hit ? (size_t)(hit - b.data) : b.len;
                xd_buf_append(&next, b.data + a, e - a);
                if (hit)
                    xd_buf_append(&next, d->kind == TOK_DEC_METASPACE ? " " : d->text,
                                  d->kind == TOK_DEC_METASPACE ? 1 : d->text_len);
                a = hit ? e + from_len : b.len;
            }
        } else {
            continue;
        }
        xd_buf swap = b;
        b = next;
        next = swap;
        if (byte >= 0)
            break;
    }
    bool ok = !b.failed && !next.failed && xd_buf_append(ret, b.data ? b.data : "", b.len);
    xd_buf_free(&b);
    xd_buf_free(&next);
    return ok;
}
