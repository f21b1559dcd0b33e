/* lead.h - what comes before the text that a grammar holds: a thought, free but for its end, and words that must follow it. */
#ifndef ENGINE_LEAD_H
#define ENGINE_LEAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "config/error.h"
#include "config/util.h"

struct grammar_vocab;

/* What may come. All borrowed. */
typedef struct lead {
    const char *close;         /* the mark that ends a thought, as text */
    bool in_thought;           /* the prompt ends within one; else the first token tells whether one comes */
    const uint32_t *open_ids;  /* the tokens of the mark that begins one */
    const uint32_t *plain_ids; /* what must come before the grammar's text where no thought comes ... */
    const uint32_t *after_ids; /* ... and behind one */
    uint32_t n_open, n_plain, n_after, n_end;
    const uint32_t *end_ids; /* tokens that no thought may have (the engine's: its users leave it) */
} lead;

/* One answer's place in it. Engine thread. */
typedef struct lead_run lead_run;
lead_run *lead_run_new(const lead *l, const struct grammar_vocab *v); /* NULL: out of memory */
void lead_run_free(lead_run *r);
XD_DEFINE_CLEANUP(lead_run, lead_run_free)
bool lead_run_over(const lead_run *r); /* from here the grammar holds */

/* What the next token may be while it is not over. Borrowed until the next call. */
typedef struct lead_limits {
    bool only;       /* the tokens of `also`, and no others ... */
    bool or_grammar; /* ... but those that the grammar begins with */
    const uint32_t *also;
    const uint32_t *banned; /* not only: these may not come */
    uint32_t n_also, n_banned;
} lead_limits;
/* XD_NOMEM. */
xd_status lead_run_limits(lead_run *r, lead_limits *ret, xd_err *err) XD_MUST_CHECK;
/* Takes a token and the text that it became, which may come with a later one. *ret_grammar: it was the grammar's first. */
void lead_run_push(lead_run *r, uint32_t id, const char *text, size_t len, bool *ret_grammar);

#endif
