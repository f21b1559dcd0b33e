/* grammar_priv.h - what the files of the grammar share: the nodes that a schema becomes, and the frames that walk over them.
 *
 * grammar_schema.c compiles schemas, grammar_net.c GBNF, grammar_number.c knows digits, grammar_step.c takes bytes, grammar_vocab.c holds the tokens, grammar_run.c
 * makes masks. */
#ifndef ENGINE_GRAMMAR_PRIV_H
#define ENGINE_GRAMMAR_PRIV_H

#include <stdatomic.h>

#include "engine/text/grammar.h"

#define GRAM_NONE UINT32_MAX
#define GRAM_INF  UINT64_MAX

enum {
    GRAM_MAX_DEPTH = 96,        /* frames: objects and arrays within each other; readers of JSON stop at 100 to 1000 */
    GRAM_MAX_NODES = 20000,     /* of a compiled schema */
    GRAM_MAX_KIDS = 100000,     /* alternatives and properties in all */
    GRAM_MAX_BYTES = 256 << 10, /* of keys and constants in all */
    GRAM_MAX_THREADS = 1024,    /* of a run: an object's properties may all begin at once */
    GRAM_MAX_NETS = 1000,       /* of a GBNF grammar: rules that are called, see grammar_net.c */
    GRAM_MAX_CALLS = 400,       /* frames there */
    GRAM_CALL = 0x200000        /* an edge over GRAM_CALL + i is a call of network i, beyond all characters */
};

__extension__ typedef __int128 gram_int; /* a decimal number in units of 10^-digits */

typedef enum gram_kind {
    GRAM_ROOT,
    GRAM_STRING,
    GRAM_NUMBER,
    GRAM_LITERALS, /* one of some texts: enum, const, true, false, null */
    GRAM_ARRAY,
    GRAM_OBJECT,
    GRAM_ALT, /* one of some nodes; never a frame: its leaves are */
    GRAM_NET, /* a rule of GBNF: a text that a pattern takes which may call networks, itself too */
} gram_kind;

typedef struct gram_number {
    gram_int lo, hi, multiple; /* in units of 10^-frac_digits; multiple >= 1 */
    uint32_t int_digits, frac_digits;
    bool exponent; /* allowed: only where there are no bounds */
} gram_number;
/* 15 digits: as many as a double tells apart. */
#define GRAM_ANY_NUMBER \
    ((gram_number){     \
        .lo = -GRAM_ALL, .hi = GRAM_ALL, .multiple = 1, .int_digits = 15, .frac_digits = 15, .exponent = true})
#define GRAM_ALL ((gram_int)1 << 120)

typedef struct gram_node {
    gram_kind kind;
    uint32_t height;   /* frames that it needs at least, its own included; GRAM_NONE: it can never end */
    uint64_t min, max; /* STRING: characters; ARRAY: items; OBJECT: properties; max GRAM_INF: no limit */
    uint32_t first,
        n; /* OBJECT: props; ARRAY: kids of prefixItems; ALT: kids; LITERALS: first is the root of its letters */
    uint32_t
        rest; /* ARRAY: items after the first n; OBJECT: values of other keys; GRAM_NONE: there are none. NUMBER: index */
    uint32_t names; /* OBJECT with others: the letters of its own keys' names ... */
    uint32_t name;  /* ... or the STRING that others' names are; 0: any */
    uint32_t dfa;   /* STRING: index of its pattern, GRAM_NONE: none; NET: index of it and of its gram_net */
    uint8_t begins; /* gram_begins() of the bytes that it can begin with */
    bool unique;    /* ARRAY: its items are the kids, at most 64, each once at most */
} gram_node;

/* What a value that begins with this byte may be, as a bit: alternatives that are none of that need not be tried. */
static inline uint8_t gram_begins(unsigned char byte)
{
    return byte == '{' ? 1 : byte == '[' ? 2 : byte == '"' ? 4 : byte == '-' || (byte >= '0' && byte <= '9') ? 8 : 16;
}

typedef struct gram_prop {
    uint32_t key, key_len; /* in text: the quoted name and a colon */
    uint32_t node;
    uint32_t required_from; /* how many required ones there are from this one on */
    bool required;
} gram_prop;

typedef struct gram_letter { /* of a trie of texts */
    uint32_t child, next;    /* 0: none */
    unsigned char byte;
    bool end;
} gram_letter;

/* A pattern over characters: state s goes to `to` on lo..hi; what leads nowhere is not there. */
typedef struct gram_edge {
    uint32_t lo, hi, to;
} gram_edge;
typedef struct gram_dfa {
    uint32_t n_states;
    uint32_t *first; /* [n_states + 1] into edge */
    gram_edge *edge; /* sorted by lo within a state */
    bool *end;
    uint64_t
        *free; /* how many plain characters (grammar_vocab.plain) it takes at most, whatever they are; 0: it depends */
} gram_dfa;
/* What is known of a network: its pattern's edges over GRAM_CALL + i are calls. */
typedef struct gram_net {
    uint32_t *height;  /* [states] frames that the rest needs at least beyond its own */
    uint32_t most;     /* of these */
    bool *ways_out;    /* [states] it may call or end there */
    uint64_t first[4]; /* a bit a byte that a text of it may begin with */
} gram_net;
static inline bool gram_net_begins(const gram_net *n, unsigned char byte)
{
    return n->first[byte / 64] >> byte % 64 & 1;
}

/* Where the pattern goes from `state` by some character of [lo, hi]; GRAM_NONE: nowhere. */
static inline uint32_t gram_dfa_go(const gram_dfa *d, uint32_t state, uint32_t lo, uint32_t hi)
{
    uint32_t from = d->first[state], to = d->first[state + 1];
    while (from < to) {
        uint32_t mid = from + (to - from) / 2;
        if (d->edge[mid].hi < lo)
            from = mid + 1;
        else
            to = mid;
    }
    return from < d->first[state + 1] && d->edge[from].lo <= hi ? d->edge[from].to : GRAM_NONE;
}

typedef struct gram_mask {
    uint64_t hash;
    void *key; /* NULL: unused */
    size_t key_bytes;
    uint64_t *bits;
    size_t most; /* threads that a run may follow which is given it */
} gram_mask;
enum { GRAM_N_MASKS = 24 };

struct grammar {
    atomic_uint refs;
    gram_node *node; /* 0 is the root */
    gram_prop *prop;
    gram_letter *letter; /* 0 is unused */
    gram_number *number;
    gram_dfa *dfa;
    gram_net *net; /* GBNF: of dfa[i], whose node is 1 + i */
    uint32_t *kid;
    xd_buf text;
    size_t n_nodes, n_props, n_letters, n_numbers, n_dfas, n_kids;
    size_t node_cap, prop_cap, letter_cap, number_cap, dfa_cap, kid_cap;
    /* Masks that were computed, by the state they belong to; the thread of the runs. */
    gram_mask mask[GRAM_N_MASKS];
    uint32_t next_mask;
};

/* ---- grammar_step.c ---- */
typedef struct gram_frame { /* never changed once it is in place: threads share their parents */
    uint32_t node, parent, state, depth;
    uint64_t a, b;
} gram_frame;
/* Frames and threads (each the index of its top frame) in two stacks that grow and are cut back. Frame 0 is no frame. */
typedef struct gram_stack {
    gram_frame *frame;
    uint32_t *thread;
    size_t n_frames, frame_cap, n_threads, thread_cap;
    size_t most;   /* threads that a byte may leave: those that come later are dropped */
    uint64_t work; /* steps of threads, and comparisons of them */
    bool failed;   /* out of memory */
} gram_stack;
void gram_stack_free(gram_stack *s);
bool gram_start(const grammar *g, gram_stack *s); /* s becomes the one thread that has read nothing */
/* Appends to s->thread what threads [from, to) become by this byte, the first s->most of it: schemas may be read in more ways than can be
 * followed, twice as many with each bracket. The fewer threads, the fewer answers; each that is left can still end. What the first few
 * threads become with a smaller s->most is the beginning of what all become with a larger one. */
void gram_step(const grammar *g, gram_stack *s, size_t from, size_t to, unsigned char byte);
/* The same, and before it what f becomes, a place in a network between two characters, by calls and by its end; not by its own pattern. */
void gram_step_beside(const grammar *g, gram_stack *s, const gram_frame *f, size_t from, size_t to, unsigned char byte);
bool gram_may_end(const grammar *g, const gram_stack *s, uint32_t thread);
/* How many characters, and no more, a thread takes that are neither a quote nor a backslash nor a control character, whatever they are; 0: it is
 * not at such a place. */
uint64_t gram_free_chars(const grammar *g, const gram_stack *s, uint32_t thread);
/* The pattern in which a thread is, between two characters, and its state there; NULL: it is not. */
const gram_dfa *gram_pattern_at(const grammar *g, const gram_stack *s, uint32_t thread, uint32_t *ret_state);

/* ---- grammar_number.c ---- */
bool gram_number_step(const gram_number *n, gram_frame *f, unsigned char byte); /* false: f is as before */
bool gram_number_may_end(const gram_number *n, const gram_frame *f);
/* Whether any number at all passes. */
bool gram_number_possible(const gram_number *n);
/* text, a JSON number, in units of 10^-digits, rounded down; *ret_exact: it is whole. False: it is too large. */
bool gram_number_scale(const char *text, uint32_t digits, gram_int *ret, bool *ret_exact);

/* ---- grammar_vocab.c ---- */
typedef struct gram_vnode { /* in the order of a walk from the root: a node's subtree follows it */
    uint32_t skip;          /* the node after its subtree */
    uint32_t token;         /* first in ids[]; they end where those of the next node begin */
    uint8_t byte, depth;
} gram_vnode;
typedef struct gram_vtrie {
    gram_vnode *node; /* [n + 1]; 0 is the root */
    uint32_t *id;
    uint32_t n, n_ids;
} gram_vtrie;
enum { GRAM_MAX_TOKEN_BYTES = 250, GRAM_MAX_CHARS = 64 };
struct grammar_vocab {
    uint32_t n_ids, n_words;
    uint32_t *off; /* [n_ids + 1] into bytes; an empty one is no token */
    xd_buf bytes;
    /* plain: whole characters, none of them a quote, a backslash, a control character (C1 and DEL too) or a line end of Unicode: what strings mostly are,
     * and what . stands for in patterns. odd: all others. */
    gram_vtrie plain, odd;
    uint64_t *plain_bits, *no_bits;
    uint32_t *by_chars,
        chars_end[GRAM_MAX_CHARS + 2]; /* plain ids with up to k characters: by_chars[0 .. chars_end[k]) */
    uint32_t max_chars;
};

#endif
