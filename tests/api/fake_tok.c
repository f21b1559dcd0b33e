/* fake_tok.c - tokenizer.h with one id a byte, BOS, EOS and three marks: what a test sends is what the engine sees. */
#include <string.h>

#include "tests/api/fake.h"

struct tokenizer {
    bool add_bos;
};
struct tok_stream {
    xd_buf held;
    bool skip_special;
    const uint32_t *shown;
    size_t n_shown;
};

static const char *const specials[] = {"<s>", "</s>", "<|im_start|>", "<|im_end|>", "[TOOL_CALLS]"};

tokenizer *fake_tok_new(bool add_bos)
{
    tokenizer *t = calloc(1, sizeof *t);
    if (t)
        t->add_bos = add_bos;
    return t;
}
void tok_free(tokenizer *t)
{
    free(t);
}

xd_status tok_encode_trusted(const tokenizer *t, const char *text, const uint8_t *trusted, size_t len, unsigned flags,
                             tok_ids *ret, xd_err *err)
{
    bool ok = !(t->add_bos && (flags & TOK_ADD_SPECIAL)) || tok_ids_push(ret, 256);
    for (size_t i = 0; ok && i < len;) {
        size_t n = 0, s = 0;
        for (; (flags & TOK_PARSE_SPECIAL) && (!trusted || trusted[i]) && s < XD_ARRAY_LEN(specials) && !n; s++)
            if (len - i >= strlen(specials[s]) && !memcmp(text + i, specials[s], strlen(specials[s])))
                n = strlen(specials[s]);
        ok = tok_ids_push(ret, n ? (uint32_t)(255 + s) : (unsigned char)text[i]);
        i += n ? n : 1;
    }
    if (ok && ret->max && ret->len > ret->max)
        return xd_fail_field(err, XD_TOO_LARGE, NULL, TOK_TOO_MANY, "too many");
    return ok ? XD_OK : xd_fail(err, XD_NOMEM, 0, "ids");
}
xd_status tok_encode(const tokenizer *t, const char *text, size_t len, unsigned flags, tok_ids *ret, xd_err *err)
{
    return tok_encode_trusted(t, text, NULL, len, flags, ret, err);
}

bool tok_token_bytes(const tokenizer *t, uint32_t id, xd_buf *ret)
{
    (void)t;
    if (id < 256)
        return xd_buf_putc(ret, (char)id);
    return id < 256 + XD_ARRAY_LEN(specials) && xd_buf_puts(ret, specials[id - 256]);
}
const char *tok_token_text(const tokenizer *t, uint32_t id)
{
    (void)t;
    return tok_token_is_special(t, id) ? specials[id - 256] : NULL;
}
bool tok_token_is_special(const tokenizer *t, uint32_t id)
{
    (void)t;
    return id >= 256 && id < 256 + XD_ARRAY_LEN(specials);
}
int64_t tok_token_id(const tokenizer *t, const char *token)
{
    (void)t;
    for (size_t i = 0; i < XD_ARRAY_LEN(specials); i++)
        if (!strcmp(specials[i], token))
            return (int64_t)(256 + i);
    return -1;
}

xd_status tok_decode(const tokenizer *t, const uint32_t *ids, size_t n, bool skip_special, xd_buf *ret, xd_err *err)
{
    xd_buf raw = {0};
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 256 || !skip_special)
            tok_token_bytes(t, ids[i], &raw);
    bool ok = !raw.failed && xd_utf8_sanitize(ret, raw.data ? raw.data : "", raw.len);
    xd_buf_free(&raw);
    return ok ? XD_OK : xd_fail(err, XD_NOMEM, 0, "text");
}

tok_stream *tok_stream_new(const tokenizer *t, bool skip_special)
{
    (void)t;
    tok_stream *s = calloc(1, sizeof *s);
    if (s)
        s->skip_special = skip_special;
    return s;
}
void tok_stream_free(tok_stream *s)
{
    if (s)
        xd_buf_free(&s->held);
    free(s);
}
void tok_stream_show(tok_stream *s, const uint32_t *ids, size_t n)
{
    s->shown = ids;
    s->n_shown = n;
}
xd_status tok_stream_push(tok_stream *s, uint32_t id, xd_buf *ret, xd_err *err)
{
    bool shown = false;
    for (size_t i = 0; i < s->n_shown; i++)
        shown |= s->shown[i] == id;
    if (id < 256 || !s->skip_special || shown)
        tok_token_bytes(NULL, id, &s->held);
    size_t tail = s->held.len ? xd_utf8_incomplete_tail(s->held.data, s->held.len) : 0, n = s->held.len - tail;
    if (n) {
        xd_utf8_sanitize(ret, s->held.data, n);
        memmove(s->held.data, s->held.data + n, tail);
        s->held.len = tail;
    }
    return ret->failed || s->held.failed ? xd_fail(err, XD_NOMEM, 0, "text") : XD_OK;
}
xd_status tok_stream_flush(tok_stream *s, xd_buf *ret, xd_err *err)
{
    if (s->held.len)
        xd_utf8_sanitize(ret, s->held.data, s->held.len);
    xd_buf_clear(&s->held);
    return ret->failed ? xd_fail(err, XD_NOMEM, 0, "text") : XD_OK;
}
