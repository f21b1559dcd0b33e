/* grammar.h - answers that must be JSON of a given shape, or texts of a grammar: which tokens may come next.
 *
 * A grammar is a JSON schema, rules in llama.cpp's GBNF, a regular expression or some texts, compiled to an automaton over bytes; a
 * vocabulary is a tokenizer's tokens as bytes in a trie; a run is one answer's place in the automaton. Every state that can be reached can
 * be brought to an end, so a mask is never empty as long as the vocabulary can spell every byte. */
#ifndef ENGINE_GRAMMAR_H
#define ENGINE_GRAMMAR_H

#include <stdbool.h>
#include <stdint.h>

#include "config/error.h"
#include "config/util.h"

struct json_t;
struct tokenizer;

typedef struct grammar grammar;
/* schema: a jansson value, borrowed for the call; NULL: any JSON object. XD_BAD_REQUEST names in err->param the place within the schema
 * ("properties.age.not", "" for the root) that cannot be had. Bounded in time and memory whatever the schema. Any thread. */
xd_status grammar_new(const struct json_t *schema, grammar **ret, xd_err *err) XD_MUST_CHECK;
/* text: rules in GBNF, well-formed UTF-8, borrowed for the call. XD_BAD_REQUEST says line, column and what is wrong. Bounded as above. Any
 * thread. */
xd_status grammar_new_gbnf(const char *text, size_t len, grammar **ret, xd_err *err) XD_MUST_CHECK;
/* text: a regular expression in Python's notation that the whole answer matches (fullmatch); the rest as above, but for "character N". */
xd_status grammar_new_regex(const char *text, size_t len, grammar **ret, xd_err *err) XD_MUST_CHECK;
/* choices: a jansson array of strings, of which the answer is one, borrowed for the call. XD_BAD_REQUEST: none, or too many. Any thread. */
xd_status grammar_new_choice(const struct json_t *choices, grammar **ret, xd_err *err) XD_MUST_CHECK;
grammar *grammar_ref(grammar *g); /* any thread, as is unref; returns g */
void grammar_unref(grammar *g);   /* NULL is fine */
XD_DEFINE_CLEANUP(grammar, grammar_unref)

/* Can a text of this grammar begin so? True also where there is no memory to tell. Any thread. */
bool grammar_may_begin(const grammar *g, const char *text, size_t len);

typedef struct grammar_vocab grammar_vocab; /* immutable */
/* The tokens of `tok` with ids below n_ids that spell text of their own: no special and no added ones. XD_UNSUPPORTED: the decoder does
 * not simply join what tokens stand for. */
xd_status grammar_vocab_new(const struct tokenizer *tok, uint32_t n_ids, grammar_vocab **ret,
                            xd_err *err) XD_MUST_CHECK;
void grammar_vocab_free(grammar_vocab *v);
XD_DEFINE_CLEANUP(grammar_vocab, grammar_vocab_free)
const uint64_t *grammar_vocab_none(const grammar_vocab *v);  /* the mask of no token */
bool grammar_vocab_has(const grammar_vocab *v, uint32_t id); /* the token spells text */

/* One answer. All runs of a grammar belong to one thread: they share masks that were computed before. */
typedef struct grammar_run grammar_run;
grammar_run *grammar_run_new(grammar *g,
                             const grammar_vocab *v); /* takes a reference of g, borrows v; NULL: out of memory */
void grammar_run_free(grammar_run *r);
XD_DEFINE_CLEANUP(grammar_run, grammar_run_free)
/* One bit a token id, (n_ids + 63) / 64 words, valid until the next call with this grammar. NULL: out of memory. */
const uint64_t *grammar_run_mask(grammar_run *r);
/* Takes a token. XD_INTERNAL: it does not fit, the run is as before. */
xd_status grammar_run_push(grammar_run *r, uint32_t id, xd_err *err) XD_MUST_CHECK;
bool grammar_run_may_end(const grammar_run *r); /* what there is is whole */
bool grammar_run_must_end(grammar_run *r);      /* and nothing can follow */

#endif
