#include <string.h>

#include "engine/text/grammar.h"
#include "engine/text/lead.h"
#include "tok_file.h"

/* What may come is known by hand; the vocabularies are real. */

typedef struct words {
    tokenizer *tok;
    grammar_vocab *v;
    uint32_t n;
} words;

static words open_words(const char *name)
{
    words w = {.tok = open_tok(name)};
    xd_err err = {0};
    w.n = tok_vocab_size(w.tok);
    cr_assert_eq(grammar_vocab_new(w.tok, w.n, &w.v, &err), XD_OK, "%s", err.msg);
    return w;
}

static void close_words(words *w)
{
    grammar_vocab_free(w->v);
    tok_free(w->tok);
}

static tok_ids encode(const words *w, const char *text)
{
    tok_ids ids = {0};
    xd_err err;
    cr_assert_eq(tok_encode(w->tok, text, strlen(text), 0, &ids, &err), XD_OK);
    return ids;
}

static lead_limits limits(lead_run *r)
{
    lead_limits l;
    xd_err err;
    cr_assert_eq(lead_run_limits(r, &l, &err), XD_OK);
    return l;
}

static bool has(const uint32_t *ids, uint32_t n, uint32_t id)
{
    for (uint32_t i = 0; i < n; i++)
        if (ids[i] == id)
            return true;
    return false;
}

/* Takes the token with its text; was it the grammar's? */
static bool push(const words *w, lead_run *r, uint32_t id)
{
    XD_CLEANUP(xd_buf_free) xd_buf text = {0};
    bool is_grammars;
    cr_assert(tok_token_bytes(w->tok, id, &text));
    lead_run_push(r, id, text.data, text.len, &is_grammars);
    return is_grammars;
}

static void push_all(const words *w, lead_run *r, const tok_ids *ids)
{
    for (size_t i = 0; i < ids->len; i++)
        cr_assert(!push(w, r, ids->data[i]));
}

typedef struct lists {
    tok_ids open, plain, after;
} lists;

static lead make_lead(const words *w, lists *l, const char *plain, const char *after, bool in_thought)
{
    static const uint32_t ends[] = {2};
    l->open = encode(w, "<think>");
    l->plain = encode(w, plain);
    l->after = encode(w, after);
    return (lead){.close = "</think>",
                  .in_thought = in_thought,
                  .open_ids = l->open.data,
                  .plain_ids = l->plain.data,
                  .after_ids = l->after.data,
                  .n_open = (uint32_t)l->open.len,
                  .n_plain = (uint32_t)l->plain.len,
                  .n_after = (uint32_t)l->after.len,
                  .end_ids = ends,
                  .n_end = 1};
}

static void free_lists(lists *l)
{
    tok_ids_free(&l->open);
    tok_ids_free(&l->plain);
    tok_ids_free(&l->after);
}

/* The mark has no token of its own: it is found in the text however it is cut, and ends the thought with nothing behind it. */
Test(lead, a_thought_ends_with_its_mark_however_it_is_written)
{
    words w = open_words("config/demo/tokenizer.json");
    lists ids;
    lead l = make_lead(&w, &ids, "", "\n\n", true);
    static const char *const texts[] = {"Hm </think>", "<</think>", "</thi </think </think>", "<//</think>"};
    for (size_t i = 0; i < XD_ARRAY_LEN(texts); i++) {
        XD_CLEANUP(lead_run_freep) lead_run *r = lead_run_new(&l, w.v);
        XD_CLEANUP(tok_ids_free) tok_ids text = {0}; /* byte by byte, so that no token goes beyond the mark */
        for (const char *c = texts[i]; *c; c++) {
            XD_CLEANUP(tok_ids_free) tok_ids one = encode(&w, (char[]){*c, 0});
            cr_assert_eq(one.len, 1);
            tok_ids_push(&text, one.data[0]);
        }
        for (size_t k = 0; k < text.len; k++) {
            lead_limits x = limits(r);
            cr_assert(!x.only && has(x.banned, x.n_banned, 2) && !has(x.banned, x.n_banned, text.data[k]), "%s",
                      texts[i]);
            cr_assert(!lead_run_over(r));
            cr_assert(!push(&w, r, text.data[k]));
        }
        /* then the words that must follow, and nothing else */
        for (size_t k = 0; k < ids.after.len; k++) {
            lead_limits x = limits(r);
            cr_assert(x.only && !x.or_grammar && x.n_also == 1 && x.also[0] == ids.after.data[k]);
            cr_assert(!lead_run_over(r) && !push(&w, r, x.also[0]));
        }
        cr_assert(lead_run_over(r));
    }
    free_lists(&ids);
    close_words(&w);
}

/* Every token of the vocabulary at every place within the mark: banned if and only if it ends the mark and says more. */
Test(lead, no_token_says_more_than_the_end_of_a_thought)
{
    words w = open_words("tests/data/tokenizers/qwen3.tokenizer.json.gz");
    lists ids;
    lead l = make_lead(&w, &ids, "", "", true);
    size_t n_banned = 0;
    for (size_t n = 1; n < strlen(l.close); n++) {
        XD_CLEANUP(lead_run_freep) lead_run *r = lead_run_new(&l, w.v);
        bool ignored;
        lead_run_push(r, 0, l.close, n, &ignored);
        lead_limits x = limits(r);
        for (uint32_t id = 3; id < w.n; id++) {
            XD_CLEANUP(xd_buf_free) xd_buf text = {0};
            cr_assert(tok_token_bytes(w.tok, id, &text));
            size_t rest = strlen(l.close) - n;
            bool longer = text.len > rest && !memcmp(text.data, l.close + n, rest);
            cr_assert_eq(has(x.banned, x.n_banned, id), longer, "%u after %zu bytes", id, n);
            n_banned += longer;
        }
    }
    cr_assert_gt(n_banned, 0);
    free_lists(&ids);
    close_words(&w);
}

/* Marks that begin alike are told apart where they differ. */
Test(lead, the_first_tokens_choose_between_a_thought_and_none)
{
    words w = open_words("config/demo/tokenizer.json");
    lists ids;
    lead l = make_lead(&w, &ids, "<tool_call>\n", "\n\n<tool_call>\n", false);
    cr_assert_eq(ids.open.data[0], ids.plain.data[0]);
    XD_CLEANUP(lead_run_freep) lead_run *r = lead_run_new(&l, w.v);
    lead_limits x = limits(r);
    cr_assert(x.only && !x.or_grammar && has(x.also, x.n_also, ids.open.data[0]));
    push_all(&w, r, &ids.plain);
    cr_assert(lead_run_over(r));

    XD_CLEANUP(lead_run_freep) lead_run *thinks = lead_run_new(&l, w.v);
    push(&w, thinks, ids.open.data[0]);
    x = limits(thinks);
    cr_assert(x.n_also == 2 && has(x.also, 2, ids.open.data[1]) && has(x.also, 2, ids.plain.data[1]));
    for (size_t i = 1; i < ids.open.len; i++)
        push(&w, thinks, ids.open.data[i]);
    cr_assert(!limits(thinks).only);
    free_lists(&ids);

    /* no words before the grammar's text: its first token chooses */
    l = make_lead(&w, &ids, "", "", false);
    XD_CLEANUP(lead_run_freep) lead_run *plain = lead_run_new(&l, w.v);
    x = limits(plain);
    cr_assert(x.only && x.or_grammar && x.n_also == 1 && x.also[0] == ids.open.data[0]);
    XD_CLEANUP(tok_ids_free) tok_ids brace = encode(&w, "{");
    cr_assert(push(&w, plain, brace.data[0]) && lead_run_over(plain));
    free_lists(&ids);
    close_words(&w);
}
