/* grammar_vocab.c - a tokenizer's tokens as bytes, in two tries.
 *
 * What a token adds to a text must be the same wherever it stands; where the decoder does more than join (words with blanks between them)
 * no grammar is offered. Only the very first blank of a text may be dropped by some decoders: one blank may stand before the JSON, so
 * that it does not matter. Added tokens are left out, also those that are not special: <think> is no part of an answer's JSON.
 * A trie's nodes stand in the order of a walk, so that passing over a subtree is one jump. */
#include <string.h>

#include "engine/text/grammar_priv.h"
#include "engine/text/tok_priv.h"

static bool joins(const tokenizer *t)
{
    bool ret = t->n_decs > 0;
    for (size_t i = 0; i < t->n_decs; i++) {
        const tok_dec *d = &t->decs[i];
        ret = ret && d->kind != TOK_DEC_JOIN && d->kind != TOK_DEC_BPE && (d->kind != TOK_DEC_REPLACE || d->literal) &&
              (d->kind != TOK_DEC_STRIP || !d->stop);
    }
    return ret;
}

/* Characters of a text that is whole and has nothing that means something within a JSON string, and no control character; 0: it is not so. */
static uint32_t plain_chars(const char *s, size_t len)
{
    uint32_t n = 0;
    for (size_t i = 0; i < len; n++) {
        int m = xd_utf8_seq(s + i, len - i);
        if (m <= 0 || (unsigned char)s[i] < 0x20 || s[i] == '"' || s[i] == '\\')
            return 0;
        if (m == 3 && (!memcmp(s + i, "\u2028", 3) || !memcmp(s + i, "\u2029", 3)))
            return 0;
        if (s[i] == 0x7F || (m == 2 && (unsigned char)s[i] == 0xC2 && (unsigned char)s[i + 1] < 0xA0))
            return 0;
        i += (size_t)m;
    }
    return n <= GRAM_MAX_CHARS ? n : 0;
}

static int compare(const void *pa, const void *pb, void *v_)
{
    const grammar_vocab *v = v_;
    uint32_t a = *(const uint32_t *)pa, b = *(const uint32_t *)pb;
    uint32_t na = v->off[a + 1] - v->off[a], nb = v->off[b + 1] - v->off[b];
    int c = memcmp(v->bytes.data + v->off[a], v->bytes.data + v->off[b], XD_MIN(na, nb));
    return c ? c : na != nb ? (na < nb ? -1 : 1) : a < b ? -1 : a > b;
}

/* t->id holds the ids. */
static bool build_trie(const grammar_vocab *v, gram_vtrie *t)
{
    qsort_r(t->id, t->n_ids, sizeof *t->id, compare, (void *)(uintptr_t)v);
    size_t cap = 0;
    uint32_t open[GRAM_MAX_TOKEN_BYTES + 1] = {0}, depth = 0; /* the nodes on the way to the last token */
    const char *last = "";
    uint32_t last_len = 0;
    if (!tok_grow(&t->node, &cap, 2, sizeof *t->node))
        return false;
    t->node[0] = (gram_vnode){0};
    t->n = 1;
    for (uint32_t i = 0; i < t->n_ids; i++) {
        uint32_t id = t->id[i], len = v->off[id + 1] - v->off[id], same = 0;
        const char *s = v->bytes.data + v->off[id];
        while (same < len && same < last_len && s[same] == last[same])
            same++;
        for (; depth > same; depth--)
            t->node[open[depth]].skip = t->n;
        if (!tok_grow(&t->node, &cap, t->n + len + 1, sizeof *t->node))
            return false;
        for (; depth < len; t->n++) {
            depth++;
            open[depth] = t->n;
            t->node[t->n] = (gram_vnode){.token = i, .byte = (uint8_t)s[depth - 1], .depth = (uint8_t)depth};
        }
        last = s;
        last_len = len;
    }
    for (; depth > 0; depth--)
        t->node[open[depth]].skip = t->n;
    t->node[0].skip = t->n;
    t->node[t->n] = (gram_vnode){.token = t->n_ids}; /* where the last one's tokens end */
    return true;
}

static bool read_tokens(const tokenizer *tok, grammar_vocab *v)
{
    XD_CLEANUP(xd_buf_free) xd_buf b = {0};
    uint32_t n = XD_MIN(v->n_ids, tok->n_ids);
    for (uint32_t id = 0; id < v->n_ids; id++) {
        v->off[id] = (uint32_t)v->bytes.len;
        bool unknown = (tok->model == TOK_MODEL_BPE && tok->bpe.has_unk && tok->bpe.unk_id == id) ||
                       (tok->model == TOK_MODEL_UNIGRAM && tok->unigram.unk_id == id);
        if (id >= n || tok->added_of_id[id] != TOK_NONE || unknown)
            continue;
        xd_buf_clear(&b);
        if (tok_token_bytes(tok, id, &b) && b.len <= GRAM_MAX_TOKEN_BYTES)
            xd_buf_append(&v->bytes, b.data ? b.data : "", b.len);
    }
    v->off[v->n_ids] = (uint32_t)v->bytes.len;
    return !v->bytes.failed && !b.failed;
}

static bool sort_tokens(grammar_vocab *v)
{
    uint32_t *chars = calloc(v->n_ids + 1, sizeof *chars), n_plain = 0, n_odd = 0;
    v->plain.id = calloc(v->n_ids + 1, sizeof *v->plain.id);
    v->odd.id = calloc(v->n_ids + 1, sizeof *v->odd.id);
    v->by_chars = calloc(v->n_ids + 1, sizeof *v->by_chars);
    v->plain_bits = calloc(v->n_words + 1, sizeof *v->plain_bits);
    v->no_bits = calloc(v->n_words + 1, sizeof *v->no_bits);
    bool ok = chars && v->plain.id && v->odd.id && v->by_chars && v->plain_bits && v->no_bits;
    for (uint32_t id = 0; ok && id < v->n_ids; id++) {
        uint32_t len = v->off[id + 1] - v->off[id];
        chars[id] = len ? plain_chars(v->bytes.data + v->off[id], len) : 0;
        if (chars[id]) {
            v->plain.id[n_plain++] = id;
            v->plain_bits[id / 64] |= (uint64_t)1 << id % 64;
            v->chars_end[chars[id] + 1]++;
            v->max_chars = XD_MAX(v->max_chars, chars[id]);
        } else if (len) {
            v->odd.id[n_odd++] = id;
        }
    }
    /* chars_end[k + 1] counts those with k characters; made to say where each count begins, then moved on as ids come in. */
    for (uint32_t k = 1; k < XD_ARRAY_LEN(v->chars_end); k++)
        v->chars_end[k] += v->chars_end[k - 1];
    for (uint32_t i = 0; ok && i < n_plain; i++)
        v->by_chars[v->chars_end[chars[v->plain.id[i]]]++] = v->plain.id[i];
    free(chars);
    v->plain.n_ids = n_plain;
    v->odd.n_ids = n_odd;
    return ok && build_trie(v, &v->plain) && build_trie(v, &v->odd);
}

xd_status grammar_vocab_new(const tokenizer *tok, uint32_t n_ids, grammar_vocab **ret, xd_err *err)
{
    if (!joins(tok))
        return xd_fail(err, XD_UNSUPPORTED, 0, "the tokenizer's decoder does more than join its tokens");
    XD_CLEANUP(grammar_vocab_freep) grammar_vocab *v = calloc(1, sizeof *v);
    if (!v)
        return xd_fail(err, XD_NOMEM, 0, "the tokens' bytes");
    v->n_ids = n_ids;
    v->n_words = (n_ids + 63) / 64;
    v->off = calloc((size_t)n_ids + 1, sizeof *v->off);
    if (!v->off || !read_tokens(tok, v) || !sort_tokens(v))
        return xd_fail(err, XD_NOMEM, 0, "the tokens' bytes");
    *ret = XD_TAKE(v);
    return XD_OK;
}

void grammar_vocab_free(grammar_vocab *v)
{
    if (!v)
        return;
    free(v->off);
    free(v->plain.node);
    free(v->plain.id);
    free(v->odd.node);
    free(v->odd.id);
    free(v->plain_bits);
    free(v->no_bits);
    free(v->by_chars);
    xd_buf_free(&v->bytes);
    free(v);
}

bool grammar_vocab_has(const grammar_vocab *v, uint32_t id)
{
    return id < v->n_ids && v->off[id + 1] > v->off[id];
}

const uint64_t *grammar_vocab_none(const grammar_vocab *v)
{
    return v->no_bits;
}
