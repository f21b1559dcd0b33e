/* tok_added.c - added tokens: finding them in text, and giving them ids as the reference's add_tokens() does.
 *
 * Matching is leftmost-longest and does not overlap; a match that its flags reject is passed over whole. */
#include <stdlib.h>
#include <string.h>

#include "engine/text/tok_priv.h"

static bool push_cut(tok_cuts *c, size_t off, size_t end, uint32_t added)
{
    if (off == end && added == TOK_NONE)
        return true;
    if (c->n == c->cap && !tok_grow(&c->data, &c->cap, c->n + 1, sizeof *c->data))
        return false;
    c->data[c->n++] = (tok_cut){(uint32_t)off, (uint32_t)(end - off), added};
    return true;
}

/* Start of the character that ends at b (> 0). */
static size_t char_before(const char *s, size_t b)
{
    do
        b--;
    while (b && ((unsigned char)s[b] & 0xC0) == 0x80);
    return b;
}

static bool all_trusted(tok_trust trust, size_t a, size_t b)
{
    if (trust.all)
        return true;
    if (!trust.map)
        return false;
    for (size_t i = a; i < b; i++)
        if (!trust.map[i])
            return false;
    return true;
}

enum { BLOCK = 16384 };

/* The longest token that begins at each byte of a block of the text. Read from its end, the text shows at each byte all that
 * begins there, so that one pass finds them whatever prefixes they share. */
typedef struct finder {
    const tok_trie *set;
    const char *s;
    size_t len, from, to; /* best[] is of these bytes */
    uint32_t *best;
} finder;

static uint32_t longest_at(finder *f, size_t i)
{
    if (i < f->to)
        return f->best[i - f->from];
    const tok_trie_node *node = f->set->node;
    uint32_t state = 0;
    f->from = i;
    f->to = XD_MIN(f->len, i + BLOCK);
    for (size_t k = XD_MIN(f->len, f->to + TOK_MAX_MATCH_BYTES); k-- > i;) {
        state = tok_trie_step(f->set, state, (unsigned char)f->s[k]);
        if (k < f->to)
            f->best[k - i] = node[state].value != TOK_NONE ? node[state].value : node[node[state].out].value;
    }
    return f->best[0];
}

static bool cut_at_tokens(finder *f, const tok_added *added, tok_trust trust, tok_cuts *ret)
{
    const char *s = f->s;
    size_t len = f->len, done = 0, n;
    size_t space_from = 0, space_end = 0; /* the last stretch of spaces that rstrip has walked */
    for (size_t i = 0; i < len;) {
        size_t start = i, stop;
        uint32_t best = longest_at(f, i);
        if (best == TOK_NONE) {
            i++;
            continue;
        }
        stop = i + (added[best].norm ? added[best].norm_len : added[best].content_len);
        i = stop;
        const tok_added *a = &added[best];
        if (a->special && !all_trusted(trust, start, stop))
            continue;
        if (a->single_word && ((start && tok_cp_is_word(tok_cp(s + char_before(s, start), &n))) ||
                               (stop < len && tok_cp_is_word(tok_cp(s + stop, &n)))))
            continue;
        while (a->lstrip && start > done) {
            size_t p = char_before(s, start);
            if (!tok_cp_is_space(tok_cp(s + p, &n)))
                break;
            start = p;
        }
        /* The spaces that rstrip takes may hold another token: the search goes on right after the match, and as in the
         * reference the text then goes on behind that token, spaces that were already taken included. */
        if (a->rstrip && stop >= space_from && stop <= space_end) {
            stop = space_end;
        } else if (a->rstrip) {
            space_from = stop;
            while (stop < len && tok_cp_is_space(tok_cp(s + stop, &n)))
                stop += n;
            space_end = stop;
        }
        if (start > done && !push_cut(ret, done, start, TOK_NONE))
            return false;
        if (!push_cut(ret, start, stop, best))
            return false;
        done = stop;
    }
    return done == len || push_cut(ret, done, len, TOK_NONE);
}

bool tok_added_cut(const tok_added *added, const tok_trie *set, const char *s, size_t len, tok_trust trust,
                   tok_cuts *ret)
{
    if (!set->n || !len)
        return push_cut(ret, 0, len, TOK_NONE);
    finder f = {.set = set, .s = s, .len = len, .best = malloc(XD_MIN(len, (size_t)BLOCK) * sizeof *f.best)};
    bool ok = f.best && cut_at_tokens(&f, added, trust, ret);
    free(f.best);
    return ok;
}

bool tok_added_reserve(tokenizer *t, size_t n)
{
    return tok_vocab_reserve(&t->added_names, n);
}

xd_status tok_add_token(tokenizer *t, const tok_added *a, uint32_t *next_id, tok_work *w, xd_err *err)
{
    if (!a->content_len)
        return XD_OK;
    if (a->content_len > TOK_MAX_MATCH_BYTES)
        return xd_fail(err, XD_UNSUPPORTED, 0, "an added token of %zu bytes; at most %d are possible", a->content_len,
                       TOK_MAX_MATCH_BYTES);
    uint32_t found = tok_vocab_get(&t->added_names, a->content, a->content_len);
    size_t at = found != TOK_NONE ? found : t->n_added;
    uint32_t id = found != TOK_NONE ? t->added[at].id : tok_vocab_get(&t->vocab, a->content, a->content_len);
    if (id == TOK_NONE) {
        id = (*next_id)++;
        if (id >= TOK_MAX_ID)
            return xd_fail(err, XD_BAD_MODEL, 0, "more than %d tokens, those added included", TOK_MAX_ID);
    }
    tok_added add = *a;
    add.id = id;
    add.norm = NULL;
    add.content = malloc(a->content_len + 1);
    if (!add.content)
        return xd_fail(err, XD_NOMEM, 0, "added token");
    memcpy(add.content, a->content, a->content_len);
    add.content[a->content_len] = 0;
    add.skip = a->special;
    xd_status st = XD_OK;
    if (a->normalized && t->n_norms) {
        xd_buf_clear(&w->text.s);
        w->text.track_trust = false;
        w->text.max_bytes = TOK_GROWTH_FREE_BYTES;
        if (!xd_buf_append(&w->text.s, a->content, a->content_len))
            st = xd_fail(err, XD_NOMEM, 0, "added token");
        if (!st)
            st = tok_norm_run(t->norms, t->n_norms, &w->run, &w->left, &w->text, &w->tmp, err);
        size_t n = w->text.s.len;
        if (!st && !n) /* the reference then finds it between any two bytes */
            st = xd_fail(err, XD_UNSUPPORTED, 0, "an added token ('%.40s') that normalizing makes empty", a->content);
        if (!st && n > TOK_MAX_MATCH_BYTES)
            st = xd_fail(err, XD_UNSUPPORTED, 0, "an added token of %zu bytes; at most %d are possible", n,
                         TOK_MAX_MATCH_BYTES);
        if (!st && (n != a->content_len || memcmp(w->text.s.data, a->content, n))) {
            add.norm = malloc(n + 1);
            if (add.norm) {
                memcpy(add.norm, w->text.s.data, n);
                add.norm[n] = 0;
                add.norm_len = n;
                add.skip = false; /* the reference compares the normalized form with the set of special tokens */
            } else {
                st = xd_fail(err, XD_NOMEM, 0, "added token");
            }
        }
    }
    if (!st && at == t->n_added &&
        (!tok_grow(&t->added, &t->added_cap, at + 1, sizeof *t->added) ||
         !tok_vocab_put(&t->added_names, a->content, a->content_len, (uint32_t)at)))
        st = xd_fail(err, XD_NOMEM, 0, "added token");
    if (st) {
        free(add.content);
        free(add.norm);
        return st;
    }
    if (at < t->n_added) {
        free(t->added[at].content);
        free(t->added[at].norm);
    } else {
        t->n_added++;
    }
    t->added[at] = add;
    return XD_OK;
}

xd_status tok_added_finish(tokenizer *t, xd_err *err)
{
    t->n_ids = t->vocab.n_ids;
    for (size_t i = 0; i < t->n_added; i++)
        t->n_ids = XD_MAX(t->n_ids, t->added[i].id + 1);
    t->added_of_id = malloc(((size_t)t->n_ids + 1) * sizeof *t->added_of_id);
    if (!t->added_of_id)
        return xd_fail(err, XD_NOMEM, 0, "vocabulary");
    for (uint32_t i = 0; i < t->n_ids; i++)
        t->added_of_id[i] = TOK_NONE;
    bool ok = true;
    for (size_t i = 0; ok && i < t->n_added; i++) {
        const tok_added *a = &t->added[i];
        t->added_of_id[a->id] = (uint32_t)i;
        const char *s = a->norm ? a->norm : a->content;
        size_t len = a->norm ? a->norm_len : a->content_len;
        if (len)
            ok = tok_trie_add(a->normalized ? &t->norm_set : &t->raw_set, s, len, (uint32_t)i);
    }
    ok = ok && tok_trie_build(&t->raw_set, true) && tok_trie_build(&t->norm_set, true);
    return ok ? XD_OK : xd_fail(err, XD_NOMEM, 0, "vocabulary");
}
