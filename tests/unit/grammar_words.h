/* grammar_words.h - for tests of grammars: a tokenizer's tokens, and what a grammar says of texts that are given to it byte by byte. */
#ifndef TESTS_UNIT_GRAMMAR_WORDS_H
#define TESTS_UNIT_GRAMMAR_WORDS_H

#include <jansson.h>
#include <string.h>

#include "engine/text/grammar.h"
#include "tok_file.h"

#define SMALL "config/demo/tokenizer.json"
#define LARGE "tests/data/tokenizers/qwen3.tokenizer.json.gz"

typedef struct words {
    tokenizer *tok;
    grammar_vocab *v;
    uint32_t n, byte_id[256]; /* ids that stand for one byte; UINT32_MAX: none */
} words;

static inline words open_words(const char *name)
{
    words w = {.tok = open_tok(name)};
    xd_err err = {0};
    w.n = tok_vocab_size(w.tok) + 70; /* models have rows beyond their tokenizer's */
    cr_assert_eq(grammar_vocab_new(w.tok, w.n, &w.v, &err), XD_OK, "%s", err.msg);
    memset(w.byte_id, 0xFF, sizeof w.byte_id);
    for (uint32_t id = 0; id < w.n; id++) {
        XD_CLEANUP(xd_buf_free) xd_buf t = {0};
        if (grammar_vocab_has(w.v, id) && tok_token_bytes(w.tok, id, &t) && t.len == 1)
            w.byte_id[(unsigned char)t.data[0]] = id;
    }
    return w;
}

static inline void close_words(words *w)
{
    grammar_vocab_free(w->v);
    tok_free(w->tok);
}

/* The run after the text, byte by byte; NULL: it may not be. masks: they are asked for at each, and say the same. */
static inline grammar_run *run_at(const words *w, grammar *g, const char *text, size_t len, bool masks)
{
    grammar_run *r = grammar_run_new(g, w->v);
    for (size_t i = 0; i < len; i++) {
        uint32_t id = w->byte_id[(unsigned char)text[i]];
        cr_assert_neq(id, UINT32_MAX, "no token for byte %d", (unsigned char)text[i]);
        const uint64_t *mask = masks ? grammar_run_mask(r) : NULL;
        cr_assert(mask || !masks);
        bool allowed = !masks || mask[id / 64] >> id % 64 & 1;
        xd_err err;
        bool taken = grammar_run_push(r, id, &err) == XD_OK;
        cr_assert(!masks || taken == allowed, "mask and push differ after %.*s", (int)i, text);
        if (!taken) {
            grammar_run_free(r);
            return NULL;
        }
    }
    return r;
}

static inline bool is_whole(const words *w, grammar *g, const char *text, size_t len)
{
    grammar_run *r = run_at(w, g, text, len, true);
    bool ret = r && grammar_run_may_end(r);
    grammar_run_free(r);
    return ret;
}

/* Every token: it is in the mask after the text if and only if its bytes are taken one by one. At least one is. */
static inline void check_mask(const words *w, grammar *g, const char *what, const char *text)
{
    grammar_run *at = run_at(w, g, text, strlen(text), false);
    cr_assert(at, "%s", what);
    const uint64_t *mask = grammar_run_mask(at);
    uint32_t n = 0;
    for (uint32_t id = 0; id < w->n; id++) {
        if (!grammar_vocab_has(w->v, id))
            continue;
        XD_CLEANUP(xd_buf_free) xd_buf t = {0};
        xd_buf_puts(&t, text);
        cr_assert(tok_token_bytes(w->tok, id, &t));
        grammar_run *r = run_at(w, g, t.data, t.len, false);
        bool in = mask[id / 64] >> id % 64 & 1;
        cr_assert_eq(r != NULL, in, "%s: %s%s", what, t.data, in ? " is in the mask" : "");
        n += in;
        grammar_run_free(r);
    }
    cr_assert_gt(n, 0u, "%s", what);
    grammar_run_free(at);
}

static inline json_t *read_vectors(const char *name)
{
    size_t len;
    char *text = read_source_gz(name, &len);
    json_t *all = json_loadb(text, len, 0, NULL);
    free(text);
    cr_assert(all, "%s", name);
    return all;
}

#endif
