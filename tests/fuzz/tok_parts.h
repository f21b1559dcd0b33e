/* tok_parts.h - a tokenizer.json from a list of parts, and the checks of a text against a tokenizer: shared by the two
 * tokenizer targets. */
#ifndef FUZZ_TOK_PARTS_H
#define FUZZ_TOK_PARTS_H

#include "engine/text/tokenizer.h"

/* A spec is a list of parts, each ended by PART_END (or the end). A part's first byte says what it is; its fields are
 * parted by PART_FIELD:
 *   n, p, d   one more normalizer, pre-tokenizer, decoder: the next byte picks its kind, then its fields
 *   a         an added token: a byte of flags, then its content
 *   v         a vocabulary entry (of a Unigram model: a byte of score, then the entry)
 *   m         a merge: left, right
 *   o         the model's options: a byte of flags
 *   c         continuing_subword_prefix, end_of_word_suffix, unk_token
 *   t         the post-processor: a byte of flags
 *   x         the rest of the spec is the text
 * Whatever is not UTF-8 becomes U+FFFD, so that most mutations load. */
#define PART_END   '\xFF'
#define PART_FIELD '\xFE'

/* Builds and loads; *ret_text points into spec. NULL: the tokenizer was refused. */
tokenizer *tok_parts_load(const char *spec, size_t len, const char **ret_text, size_t *ret_text_len);

/* Encodes and decodes the text, in a way that its length picks; aborts when a stream differs from the whole or breaks a character. */
void tok_parts_check(const tokenizer *t, const char *text, size_t len);

#endif
