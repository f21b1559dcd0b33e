/* grammar_nfa.h - trees of parts, and the automata that they become: grammar_nfa.c. */
#ifndef ENGINE_GRAMMAR_NFA_H
#define ENGINE_GRAMMAR_NFA_H

#include "engine/text/grammar_build.h"

enum { NFA_LAST_CHAR = 0x10FFFF };

typedef struct nfa_range {
    uint32_t lo, hi;
} nfa_range;

typedef enum nfa_part_kind {
    PART_EMPTY,
    PART_SET,
    PART_BEGIN,
    PART_END,
    PART_CAT,
    PART_ALT,
    PART_REPEAT,
    PART_RULE
} nfa_part_kind;
typedef struct nfa_part {
    nfa_part_kind kind;
    uint32_t a, b;     /* CAT, ALT: parts, made before it; REPEAT: a; SET: ranges [a, b); RULE: rule a */
    uint32_t min, max; /* REPEAT; max UINT32_MAX: no limit */
} nfa_part;

typedef enum nfa_place_kind { PLACE_SPLIT, PLACE_SET, PLACE_BEGIN, PLACE_END, PLACE_MATCH } nfa_place_kind;
typedef struct nfa_place {
    nfa_place_kind kind;
    uint32_t a, b, to, other; /* SET: ranges [a, b); SPLIT: to and other (GRAM_NONE: none) */
} nfa_place;

typedef struct nfa_rule { /* a part with a name */
    uint32_t part, net;   /* GRAM_NONE: its places stand wherever it is named */
    uint32_t call;        /* the range of its symbol in `set` */
    bool nullable, productive;
} nfa_rule;

typedef struct nfa {
    const char *p, *end;
    bool raw;             /* a text of its own, not one within JSON */
    const nfa_rule *rule; /* of PART_RULE */
    nfa_part *part;
    nfa_range *set;
    nfa_place *place;
    size_t n_parts, part_cap, n_sets, set_cap, n_places, place_cap;
    /* states: sets of places, flat */
    uint32_t *member, *first, *slot;
    size_t n_members, member_cap, n_states, first_cap, n_slots;
    gram_edge *edge;
    size_t n_edges, edge_cap;
    uint32_t *edge_first; /* [n_states + 1], as first */
    size_t edge_first_cap;
    bool *accepts;
    size_t accepts_cap;
    uint32_t *mark, stamp, *todo; /* [n_places] */
    int nesting;
    uint64_t *left; /* of what it may cost, see BUILD_WORK */
    bool nomem;
    const char *why; /* NULL: all is well */
    const char *at;  /* of `p`'s text, where that is; NULL: nowhere in it */
} nfa;

/* Each of these does nothing but say why once something is wrong. */
bool nfa_spend(nfa *r, uint64_t n); /* units of work; false: it is spent, or something was wrong before */
/* As tok_grow(): array is the address of one of r's, with elements of `bytes`. False: no memory. */
bool nfa_room(nfa *r, void *array, size_t *cap, size_t need, size_t bytes);
uint32_t nfa_add_part(nfa *r, nfa_part p);            /* its index */
void nfa_add_range(nfa *r, uint32_t lo, uint32_t hi); /* characters, both included; none where lo > hi */
/* Makes the ranges from `from` on sorted and apart, and turns them round where asked. */
void nfa_tidy(nfa *r, size_t from, bool negate);
uint32_t nfa_add_place(nfa *r, nfa_place p); /* its index */
/* The places of a part that goes on at `to`; the first of them. */
uint32_t nfa_emit(nfa *r, uint32_t part, uint32_t to);
/* The automaton of the places from `start` on, which are none after that. raw: `match` is a SPLIT behind which the end is, and what begins
 * with a call of `own`, the network that this is, is read as a repetition of what follows that call: a left recursion. */
void nfa_determinise(nfa *r, uint32_t start, uint32_t match, uint32_t own, gram_dfa *ret);
void nfa_free(nfa *r);

/* ---- grammar_regex.c ---- */
/* The part that the regular expression from r->p on is: Python's if r->raw, else ECMA-262's. */
uint32_t gram_regex_parse(nfa *r);

#endif
