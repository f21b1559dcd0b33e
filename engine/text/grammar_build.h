/* grammar_build.h - what the files of the compiler share: grammar_schema.c reads a schema's keywords, grammar_merge.c brings schemas that
 * must both hold into one, grammar_build.c makes nodes and proves that they can end. */
#ifndef ENGINE_GRAMMAR_BUILD_H
#define ENGINE_GRAMMAR_BUILD_H

#include <jansson.h>
#include <string.h>

#include "engine/text/grammar_priv.h"

#ifdef FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION
enum { BUILD_WORK = 500000 };
#else
enum { BUILD_WORK = 20000000 }; /* what a schema's patterns and joins may cost, in steps of some nanoseconds ... */
#endif

enum {
    BUILD_MAX_VALUES = 50000,           /* of JSON in a schema */
    BUILD_MAX_CHOICES = 10000,          /* texts of which an answer is one */
    BUILD_MAX_CHOICE_BYTES = 128 << 10, /* of them all */
    BUILD_MAX_MERGES = 500,
    BUILD_MAX_HOPS = 32,           /* from $ref to $ref */
    BUILD_MAX_ALTERNATIVES = 1000, /* properties of an object, entries of a tuple, schemas of an anyOf */
    BUILD_WORK_OF_EDGE = 64,       /* ... and what a state's way out costs, for its memory: 4 MB in all */
    BUILD_WORK_OF_LOOK = 16,       /* a comparison of two values of a schema */
    BUILD_WORK_OF_COPY = 64,       /* a value of a schema that joins others */
};

/* v is this string. */
static inline bool build_is_text(const json_t *v, const char *text)
{
    return json_is_string(v) && !strcmp(json_string_value(v), text);
}

typedef enum json_types {
    TYPE_NULL = 1,
    TYPE_BOOLEAN = 2,
    TYPE_INTEGER = 4,
    TYPE_NUMBER = 8, /* all numbers, integers too */
    TYPE_STRING = 16,
    TYPE_ARRAY = 32,
    TYPE_OBJECT = 64,
} json_types;

typedef struct build_place { /* where a schema stands, for messages */
    uint32_t parent;
    const char *key; /* NULL: index */
    size_t index;
} build_place;

typedef struct build_job { /* a schema that waits to become its node */
    const json_t *schema;
    uint32_t node, place;
} build_job;

typedef struct build_memo {
    const json_t *schema;
    uint32_t node;
} build_memo;

typedef struct build {
    grammar *g;
    const json_t *root;
    json_t *made; /* array: schemas that merging has made */
    build_place *place;
    build_job *job;
    build_memo *memo; /* open addressing */
    size_t n_places, place_cap, n_jobs, job_cap, job_done, n_memo, memo_cap;
    uint32_t any; /* the node of any value, GRAM_NONE: not needed yet */
    unsigned merges;
    uint64_t work_left;
    xd_err *err;
} build;

/* ---- grammar_build.c ---- */
xd_status build_nomem(build *b); /* the fault that there is no memory, which it returns */
/* A fault at `place`, of its keyword `key` (NULL: of the place itself). */
xd_status build_fault(build *b, uint32_t place, const char *key, const char *fmt, ...) XD_PRINTF(4, 5);
/* Takes n units of what compiling may cost, BUILD_WORK in all. False: that is spent, a fault of this place. */
bool build_spend(build *b, uint32_t place, uint64_t n);
/* Values in v, itself included; counts to `limit`. */
size_t build_count(const json_t *v, size_t limit);
/* Each: GRAM_NONE after a fault, which is in b->err. */
/* The place of member `key` (borrowed), or of entry `index`, of the one at `parent`; of that behind a keyword: build_place_in(). */
uint32_t build_place_at(build *b, uint32_t parent, const char *key, size_t index);
uint32_t build_node(build *b, gram_node n); /* a new one, a copy of n */
uint32_t build_any(build *b);               /* the node of any value; the same every time */
uint32_t build_text(build *b, uint32_t letters, const char *text,
                    size_t len); /* adds a text to a trie, 0: a new one; its root */
/* Flattens alternatives, finds what each node needs at least, refuses what can never end. */
xd_status build_finish(build *b) XD_MUST_CHECK;

uint32_t build_place_in(build *b, uint32_t place, const char *keyword, const char *key, size_t index);
/* The node's children are these nodes, in this order. */
xd_status build_set_kids(build *b, uint32_t node, const uint32_t *kids, uint32_t n);

/* ---- grammar_schema.c ---- */
/* The node that the schema has or will have; GRAM_NONE after a fault. */
uint32_t schema_node(build *b, const json_t *schema, uint32_t place);
/* Joins what must hold together (allOf, what stands beside $ref) until the job's schema is one. */
xd_status schema_join(build *b, build_job *j) XD_MUST_CHECK;
/* What the keyword is about: some json_types, 0 for none of these. */
unsigned schema_types_of_keyword(const char *key);

/* ---- grammar_types.c ---- */
/* Fills the job's node by its schema's types, which nothing else has to hold with. */
xd_status schema_of_types(build *b, const build_job *j);

/* How many of something: from the keyword `least` to `most`. */
xd_status schema_read_counts(build *b, const build_job *j, const char *least, const char *most, gram_node *n);

/* ---- grammar_string.c ---- */
/* The job's node becomes a text of which its schema's pattern, format and lengths hold. */
xd_status string_node(build *b, const build_job *j, uint32_t node);
/* An automaton of the pattern, and of the format; not finished. *ret_any: the schema says something. */
xd_status string_pattern(build *b, const build_job *j, bool with_format, gram_dfa *ret, bool *ret_any);
/* Does the automaton take the text from s to end, well-formed UTF-8? */
bool string_pattern_has(const gram_dfa *d, const char *s, const char *end);
uint32_t string_next_char(const char **s); /* of well-formed UTF-8 */

/* ---- grammar_regex.c, grammar_dfa.c ---- */
#define GRAM_REGEX_NOMEM "out of memory"
/* An automaton of the texts in which the pattern (ECMA-262, well-formed UTF-8) is found. NULL, or what is wrong with it. */
const char *gram_regex_compile(const char *pattern, size_t len, uint64_t *work_left, gram_dfa *ret);
/* x becomes that of the texts that both take. On failure it is as before. */
const char *gram_dfa_both(gram_dfa *x, const gram_dfa *y, uint64_t *work_left);
/* Limits it to min to max characters, and drops what has no end. On failure it is good for gram_dfa_clear() only. */
const char *gram_dfa_finish(gram_dfa *d, uint64_t min, uint64_t max, uint64_t *work_left);
void gram_dfa_clear(gram_dfa *d); /* frees what it holds */

/* ---- grammar_merge.c ---- */
/* Does the keyword say something about what is valid? Annotations and unknown words do not. */
bool schema_constrains(const json_t *schema);
bool schema_is_annotation(const char *key); /* a keyword that says nothing about what is valid */
/* Follows $ref to a schema without one, as long as nothing stands beside it. NULL after a fault. */
const json_t *schema_resolve(build *b, const json_t *ref, uint32_t place);
/* Is this list one that merging has made of two values of a keyword? */
bool schema_is_made(const build *b, const json_t *list);
/* A schema (owned by b->made) for which both hold. NULL after a fault. */
const json_t *schema_merge(build *b, const json_t *x, const json_t *y, uint32_t place);
/* schema without the keyword `key`; owned by b->made. */
const json_t *schema_without(build *b, const json_t *schema, const char *key);
/* Types that `type` names; all when it is absent; 0 after a fault. */
unsigned schema_types(build *b, const json_t *schema, uint32_t place);
bool schema_same_value(const json_t *x, const json_t *y); /* 1 and 1.0 are */
/* Can no value match both? Where objects are told apart by a property, its name goes to *ret_tag: it must be there. */
bool schema_disjoint(build *b, const json_t *x, const json_t *y, uint32_t place, const char **ret_tag);

#endif
