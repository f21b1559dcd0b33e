/* tok_unigram.c - the Unigram model: the cut of a piece into vocabulary strings with the best sum of scores (Viterbi).
 *
 * As the reference: a character that no string of its own covers costs the lowest score less 10; unknown characters side by
 * side become one token, or their bytes. */
#include <stdlib.h>
#include <string.h>

#include "engine/text/tok_priv.h"

#define UNK_PENALTY 10.0

typedef struct node {
    double score;
    uint32_t id, start; /* start TOK_NONE: not reached */
} node;

typedef struct uni_mem {
    node *node;
    size_t cap;
    tok_spans path; /* `match`: unknown */
} uni_mem;

static void uni_mem_free(void *p)
{
    uni_mem *m = p;
    free(m->node);
    free(m->path.data);
    free(m);
}

void tok_unigram_clear(tok_unigram *u)
{
    tok_trie_clear(&u->pieces);
    free(u->score);
    *u = (tok_unigram){0};
}

static void offer(node *to, double score, uint32_t id, size_t start)
{
    if (to->start == TOK_NONE || score > to->score)
        *to = (node){score, id, (uint32_t)start};
}

static bool push_string(const tok_unigram *u, const tok_vocab *v, const char *s, size_t len, tok_ids *out)
{
    uint32_t id = tok_vocab_get(v, s, len);
    if (id != TOK_NONE)
        return tok_ids_push(out, id);
    if (u->byte_fallback) {
        size_t k = 0;
        while (k < len && u->byte_id[(unsigned char)s[k]] != TOK_NONE)
            k++;
        for (size_t i = 0; k == len && i < len; i++)
            if (!tok_ids_push(out, u->byte_id[(unsigned char)s[i]]))
                return false;
        if (k == len)
            return true;
    }
    return tok_ids_push(out, u->unk_id);
}

/* The best way to each end of a character, by what ends there: longest first, as the reference meets them, so that of equal
 * scores the same one stays. */
static xd_status find_ways(const tok_unigram *u, uni_mem *m, tok_work_left *left, const char *s, size_t len,
                           xd_err *err)
{
    uint32_t state = 0;
    m->node[0] = (node){0, 0, TOK_NONE};
    for (size_t i = 0, n; i < len; i += n) {
        tok_cp(s + i, &n);
        size_t end = i + n;
        bool single = false;
        uint64_t met = 0;
        node best = {0, 0, TOK_NONE};
        for (size_t k = i; k < end; k++)
            state = tok_trie_step(&u->pieces, state, (unsigned char)s[k]);
        const tok_trie_node *all = u->pieces.node;
        for (uint32_t at = all[state].value != TOK_NONE ? state : all[state].out; at; at = all[at].out, met++) {
            size_t start = end - all[at].depth;
            offer(&best, m->node[start].score + u->score[all[at].value], all[at].value, start);
            single |= start == i;
        }
        if (!tok_spend(left, 4 + met * 2))
            return tok_too_long(err, "the Unigram vocabulary");
        if (!single) {
            if (u->unk_id == TOK_NONE)
                return xd_fail(err, XD_UNSUPPORTED, 0,
                               "the text has an unknown character and the tokenizer has no unk_id");
            offer(&best, m->node[i].score + (u->min_score - UNK_PENALTY), u->unk_id, i);
        }
        m->node[end] = best;
    }
    return XD_OK;
}

static xd_status encode_piece(const tok_unigram *u, const tok_vocab *v, uni_mem *m, tok_work_left *left, const char *s,
                              size_t len, tok_ids *out, xd_err *err)
{
    if (!tok_grow(&m->node, &m->cap, len + 1, sizeof *m->node))
        return xd_fail(err, XD_NOMEM, 0, "tokenizing");
    xd_status st = find_ways(u, m, left, s, len, err);
    if (st)
        return st;
    m->path.n = 0;
    size_t end = len, fused_end = 0;
    bool ok = true;
    while (ok && end > 0) {
        const node *nd = &m->node[end];
        bool unk = nd->id == u->unk_id;
        if (unk && !fused_end)
            fused_end = end;
        if (!unk && fused_end) {
            ok = tok_spans_push(&m->path, end, fused_end, true);
            fused_end = 0;
        }
        if (!unk)
            ok = ok && tok_spans_push(&m->path, nd->start, end, false);
        end = nd->start;
    }
    if (ok && fused_end)
        ok = tok_spans_push(&m->path, 0, fused_end, true);
    for (size_t i = m->path.n; ok && i-- > 0;)
        ok = push_string(u, v, s + m->path.data[i].start, m->path.data[i].end - m->path.data[i].start, out);
    return ok ? XD_OK : xd_fail(err, XD_NOMEM, 0, "tokenizing");
}

xd_status tok_unigram_encode(const tok_unigram *u, const tok_vocab *v, tok_work *w, tok_ids *out, xd_err *err)
{
    if (!w->model_mem) {
        w->model_mem = calloc(1, sizeof(uni_mem));
        if (!w->model_mem)
            return xd_fail(err, XD_NOMEM, 0, "tokenizing");
        w->model_mem_free = uni_mem_free;
    }
    for (size_t i = 0; i < w->pieces.n; i++) {
        tok_piece p = w->pieces.data[i];
        xd_status st = encode_piece(u, v, w->model_mem, &w->left, w->text.s.data + p.off, p.len, out, err);
        if (!st)
            st = tok_ids_check(out, err);
        if (st)
            return st;
    }
    return XD_OK;
}
