/* sample_dry.h - DRY, "don't repeat yourself": which tokens would go on a repetition, and how long that is.
 *
 * p-e-w's penalty (oobabooga/textgen#5677) with llama.cpp's rules: where the end of a sequence has stood before, the token that followed
 * there then is penalised by multiplier * base^(length - allowed_length), the longest such length counting. A repetition does not
 * reach back over a breaker, and a token that holds a whole breaker is not penalised. */
#ifndef ENGINE_SAMPLE_DRY_H
#define ENGINE_SAMPLE_DRY_H

#include "engine/engine.h"
#include "engine/text/tokenizer.h"

/* What a request asks for; the sequences of one request share it. One thread at a time. */
typedef struct sample_dry sample_dry;
/* From s's fields dry_*, which are copied. tok may be NULL where there are no breakers; borrowed. like has the same breakers, and lives
 * longer; NULL: none has. NULL: out of memory. */
sample_dry *sample_dry_new(const engine_sampling *s, const tokenizer *tok, uint32_t vocab, const sample_dry *like);
void sample_dry_free(sample_dry *d);
XD_DEFINE_CLEANUP(sample_dry, sample_dry_free)

/* A sequence so far. {0} is empty. */
typedef struct dry_run {
    uint32_t *ids, n, cap;
    uint32_t n_unbroken; /* tokens since one in which a breaker ended */
    uint16_t state;      /* how far breakers have come in the text */
} dry_run;
bool dry_push(sample_dry *d, dry_run *r, uint32_t id); /* false: out of memory */
void dry_run_clear(dry_run *r);                        /* frees; it is empty then */

/* Scratch, and what was found: each token once. {0} at first. */
typedef struct dry_found {
    uint32_t n, *ids, *lengths;
    uint32_t *common, common_cap, *longest;
} dry_found;
/* Linear in the tokens looked at. false: out of memory. */
bool dry_find(sample_dry *d, const dry_run *r, dry_found *ret);
void dry_found_clear(dry_found *f); /* frees */
/* What is taken off the logit of a token that goes on a repetition of so many tokens. */
double dry_penalty(const sample_dry *d, uint32_t length);

#endif
