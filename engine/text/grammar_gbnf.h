/* grammar_gbnf.h - rules of GBNF, or a regular expression, as they are read, for grammar_net.c. */
#ifndef ENGINE_GRAMMAR_GBNF_H
#define ENGINE_GRAMMAR_GBNF_H

#include "engine/text/grammar_nfa.h"

typedef struct gbnf_rule {
    const char *name; /* in the text; a group's without a name: that of the rule in which it stands */
    uint32_t name_len;
    uint32_t first, end; /* its parts, with those of groups in it */
} gbnf_rule;

typedef struct gbnf {
    nfa n; /* the parts of all rules */
    const char *text;
    gbnf_rule *rule; /* 0 is root */
    nfa_rule *of;    /* the same ones, for n.rule */
    size_t n_rules, rule_cap, of_cap;
    bool is_regex; /* a grammar of one rule, which is a regular expression: faults say so */
    xd_err *err;
} gbnf;

/* Reads all rules, or a regular expression if g->is_regex. XD_BAD_REQUEST says where the text is wrong and what should stand there. */
xd_status gbnf_read(gbnf *g, const char *text, size_t len, xd_err *err) XD_MUST_CHECK;
void gbnf_free(gbnf *g);
/* A fault at a place of the text; NULL: of the whole. */
xd_status gbnf_fault(gbnf *g, const char *at, const char *fmt, ...) XD_PRINTF(3, 4);
/* What the parts have met: too much work, or no memory. */
xd_status gbnf_why(gbnf *g, const char *name, size_t name_len);

#endif
