/* tok_encode.c - text to ids: cuts out added tokens, normalizes what lies between them, and hands it on; and the small
 * questions about a tokenizer's vocabulary. */
#include <stdlib.h>
#include <string.h>

#include "engine/text/tok_priv.h"

static xd_status encode_section(const tokenizer *t, tok_work *w, tok_ids *ret, xd_err *err)
{
    if (!w->text.s.len)
        return XD_OK;
    xd_status st = tok_pretok_run(t->pretoks, t->n_pretoks, w, err);
    if (st)
        return st;
    return t->model == TOK_MODEL_BPE ? tok_bpe_encode(&t->bpe, &t->vocab, w, ret, err)
                                     : tok_unigram_encode(&t->unigram, &t->vocab, w, ret, err);
}

/* Fills w->text with s; trust NULL when nobody needs it. */
static xd_status set_text(tok_work *w, const char *s, const uint8_t *trust, size_t len, bool at_start, xd_err *err)
{
    xd_buf_clear(&w->text.s);
    xd_buf_clear(&w->text.trust);
    w->text.track_trust = trust != NULL;
    w->text.at_start = at_start;
    w->text.max_bytes =
        XD_MIN(XD_MIN(len * TOK_MAX_GROWTH + TOK_GROWTH_FREE_BYTES, w->bytes * 3 + TOK_GROWTH_LARGE_BYTES),
               (size_t)TOK_MAX_TEXT_BYTES);
    if (!xd_buf_append(&w->text.s, s, len) || (trust && !xd_buf_append(&w->text.trust, trust, len)))
        return xd_fail(err, XD_NOMEM, 0, "tokenizing");
    return XD_OK;
}

/* A stretch without raw added tokens: normalized, then searched for the tokens that match after normalizing. */
static xd_status encode_stretch(const tokenizer *t, tok_work *w, const char *s, size_t len, tok_trust trust,
                                bool at_start, tok_ids *ret, xd_err *err)
{
    const uint8_t *map = t->norm_set.n && !trust.all ? trust.map : NULL;
    xd_status st = set_text(w, s, map, len, at_start, err);
    if (!st)
        st = tok_norm_run(t->norms, t->n_norms, &w->run, &w->left, &w->text, &w->tmp, err);
    if (st || !t->norm_set.n)
        return st ? st : encode_section(t, w, ret, err);

    tok_cuts cuts = {0};
    trust.map = map ? (const uint8_t *)w->text.trust.data : NULL;
    xd_buf whole = w->text.s; /* the sections are copied out of it one by one */
    at_start = w->text.at_start;
    w->text.s = (xd_buf){0};
    if (!tok_added_cut(t->added, &t->norm_set, whole.data, whole.len, trust, &cuts))
        st = xd_fail(err, XD_NOMEM, 0, "tokenizing");
    for (size_t i = 0; !st && i < cuts.n; i++) {
        tok_cut c = cuts.data[i];
        if (c.added != TOK_NONE) {
            if (!tok_ids_push(ret, t->added[c.added].id))
                st = xd_fail(err, XD_NOMEM, 0, "tokenizing");
            continue;
        }
        if (cuts.n == 1) {
            w->text.s = whole;
            whole = (xd_buf){0};
        } else {
            st = set_text(w, whole.data + c.off, NULL, c.len, at_start && c.off == 0, err);
        }
        if (!st)
            st = encode_section(t, w, ret, err);
    }
    free(cuts.data);
    xd_buf_free(&whole);
    return st;
}

/* Puts the post-processor's ids around those from `base` on. */
static xd_status post_process(const tokenizer *t, size_t base, tok_ids *ret, xd_err *err)
{
    for (size_t i = 0; i < t->n_posts; i++) {
        const tok_post *p = &t->posts[i];
        if (!tok_grow(&ret->data, &ret->cap, ret->len + p->before.len + p->after.len, sizeof *ret->data))
            return xd_fail(err, XD_NOMEM, 0, "tokenizing");
        if (p->before.len) {
            memmove(ret->data + base + p->before.len, ret->data + base, (ret->len - base) * sizeof *ret->data);
            memcpy(ret->data + base, p->before.data, p->before.len * sizeof *ret->data);
        }
        ret->len += p->before.len;
        if (p->after.len)
            memcpy(ret->data + ret->len, p->after.data, p->after.len * sizeof *ret->data);
        ret->len += p->after.len;
    }
    return XD_OK;
}

/* s is UTF-8; it was given_bytes long before it became that. */
static xd_status encode_valid(const tokenizer *t, const char *s, size_t len, size_t given_bytes, tok_trust trust,
                              unsigned flags, tok_ids *ret, xd_err *err)
{
    tok_work w = {.left = tok_work_for(given_bytes), .bytes = given_bytes};
    tok_cuts cuts = {0};
    size_t base = ret->len;
    xd_status st = XD_OK;
    if (!tok_added_cut(t->added, &t->raw_set, s, len, trust, &cuts))
        st = xd_fail(err, XD_NOMEM, 0, "tokenizing");
    for (size_t i = 0; !st && i < cuts.n; i++) {
        tok_cut c = cuts.data[i];
        tok_trust part = trust;
        if (part.map)
            part.map += c.off;
        if (c.added == TOK_NONE)
            st = encode_stretch(t, &w, s + c.off, c.len, part, c.off == 0, ret, err);
        else if (!tok_ids_push(ret, t->added[c.added].id))
            st = xd_fail(err, XD_NOMEM, 0, "tokenizing");
    }
    if (!st && flags & TOK_ADD_SPECIAL)
        st = post_process(t, base, ret, err);
    if (!st)
        st = tok_ids_check(ret, err); /* added tokens count too */
    if (st)
        ret->len = base;
    free(cuts.data);
    tok_work_clear(&w);
    return st;
}

static xd_status encode(const tokenizer *t, const char *s, size_t len, tok_trust trust, unsigned flags, tok_ids *ret,
                        xd_err *err)
{
    if (len > TOK_MAX_TEXT_BYTES)
        return xd_fail(err, XD_TOO_LARGE, 0, "a text of %zu bytes; at most %d can be tokenized at once", len,
                       TOK_MAX_TEXT_BYTES);
    if (xd_utf8_valid(s, len))
        return encode_valid(t, s, len, len, trust, flags, ret, err);
    xd_buf clean = {0}, map = {0};
    xd_status st = XD_OK;
    for (size_t i = 0; i < len;) { /* bad bytes become U+FFFD, untrusted */
        int n = xd_utf8_seq(s + i, len - i);
        size_t take = n > 0 ? (size_t)n : 1, had = clean.len;
        if (n > 0) {
            xd_buf_append(&clean, s + i, take);
            if (trust.map)
                xd_buf_append(&map, trust.map + i, take);
        } else {
            size_t bad = i;
            while (bad < len && xd_utf8_seq(s + bad, len - bad) <= 0) {
                bad++;
                while (bad < len && ((unsigned char)s[bad] & 0xC0) == 0x80)
                    bad++;
            }
            take = bad - i;
            xd_utf8_sanitize(&clean, s + i, take);
            for (size_t k = had; trust.map && k < clean.len; k++)
                xd_buf_putc(&map, 0);
        }
        i += take;
    }
    if (clean.failed || map.failed)
        st = xd_fail(err, XD_NOMEM, 0, "tokenizing");
    if (trust.map)
        trust.map = (const uint8_t *)map.data;
    if (!st)
        st = clean.len > TOK_MAX_TEXT_BYTES
                 ? xd_fail(err, XD_TOO_LARGE, 0, "a text of more than %d bytes", TOK_MAX_TEXT_BYTES)
                 : encode_valid(t, clean.data, clean.len, len, trust, flags, ret, err);
    xd_buf_free(&clean);
    xd_buf_free(&map);
    return st;
}

xd_status tok_encode(const tokenizer *t, const char *text, size_t len, unsigned flags, tok_ids *ret, xd_err *err)
{
    return encode(t, text, len, (tok_trust){.all = flags & TOK_PARSE_SPECIAL}, flags, ret, err);
}

xd_status tok_encode_trusted(const tokenizer *t, const char *text, const uint8_t *trusted, size_t len, unsigned flags,
                             tok_ids *ret, xd_err *err)
{
    return encode(t, text, len, (tok_trust){.all = !trusted, .map = trusted}, flags, ret, err);
}

void tok_free(tokenizer *t)
{
    if (!t)
        return;
    tok_vocab_clear(&t->vocab);
    tok_bpe_clear(&t->bpe);
    tok_unigram_clear(&t->unigram);
    for (size_t i = 0; i < t->n_added; i++) {
        free(t->added[i].content);
        free(t->added[i].norm);
    }
    free(t->added);
    free(t->added_of_id);
    tok_vocab_clear(&t->added_names);
    tok_trie_clear(&t->raw_set);
    tok_trie_clear(&t->norm_set);
    for (size_t i = 0; i < t->n_norms; i++)
        tok_norm_clear(&t->norms[i]);
    free(t->norms);
    for (size_t i = 0; i < t->n_pretoks; i++)
        tok_pretok_clear(&t->pretoks[i]);
    free(t->pretoks);
    for (size_t i = 0; i < t->n_decs; i++)
        tok_dec_clear(&t->decs[i]);
    free(t->decs);
    for (size_t i = 0; i < t->n_posts; i++) {
        tok_ids_free(&t->posts[i].before);
        tok_ids_free(&t->posts[i].after);
    }
    free(t->posts);
    free(t);
}

const char *tok_decode_text(const tokenizer *t, uint32_t id, size_t *ret_len, const tok_added **ret_added)
{
    *ret_added = NULL;
    if (id >= t->n_ids)
        return NULL;
    if (t->added_of_id[id] != TOK_NONE) {
        const tok_added *a = *ret_added = &t->added[t->added_of_id[id]];
        *ret_len = a->norm ? a->norm_len : a->content_len;
        return a->norm ? a->norm : a->content;
    }
    const char *s = tok_vocab_text(&t->vocab, id);
    if (s)
        *ret_len = t->vocab.len[id];
    return s;
}

uint32_t tok_vocab_size(const tokenizer *t)
{
    return t->n_ids;
}

const char *tok_token_text(const tokenizer *t, uint32_t id)
{
    if (id >= t->n_ids)
        return NULL;
    return t->added_of_id[id] != TOK_NONE ? t->added[t->added_of_id[id]].content : tok_vocab_text(&t->vocab, id);
}

bool tok_token_is_special(const tokenizer *t, uint32_t id)
{
    return id < t->n_ids && t->added_of_id[id] != TOK_NONE && t->added[t->added_of_id[id]].special;
}

int64_t tok_token_id(const tokenizer *t, const char *token)
{
    size_t len = strlen(token);
    uint32_t at = tok_vocab_get(&t->added_names, token, len);
    uint32_t id = at != TOK_NONE ? t->added[at].id : tok_vocab_get(&t->vocab, token, len);
    return id == TOK_NONE ? -1 : (int64_t)id;
}

const char *tok_kind(const tokenizer *t)
{
    return t->kind;
}
