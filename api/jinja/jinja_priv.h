/* jinja_priv.h - what the files of this folder share: values, syntax tree, rendering context.
 *
 * Everything made while compiling lives in the template's arena, everything made while rendering in the rendering's arena, and
 * is freed with it as a whole. So no function here frees anything, and a failure leaves by one longjmp to the setjmp in
 * jinja_compile() or jinja_render(): jx_throw() never returns. Values are immutable but for namespaces and iterators.
 *
 * Depth: every recursion over data or syntax goes through JX_ENTER/JX_LEAVE, which bound the C stack. */
#ifndef API_JINJA_PRIV_H
#define API_JINJA_PRIV_H

#include <setjmp.h>

#include "api/jinja/jinja.h"

/* Wide enough for any integer that a template or JSON can sensibly hold; beyond it is an error, not a wrong number. */
__extension__ typedef __int128 jx_int;
__extension__ typedef unsigned __int128 jx_uint;

enum {
    JX_MAX_DEPTH = 1200,     /* nested evaluations: about 0.5 KiB of stack each */
    JX_MAX_EXPR_DEPTH = 350, /* height of one expression's tree; CPython's own limit is near 200 */
    JX_MAX_NESTING = 100,    /* brackets or blocks inside each other in the source */
    JX_MAX_RANGE = 100000,   /* as jinja2's sandbox */
};

typedef struct jx jx;
typedef struct jx_node jx_node;
typedef struct jx_scope jx_scope;
typedef struct jx_frame jx_frame;
typedef struct jx_value jx_value;

/* ---- values ---- */

typedef struct jx_grow jx_grow;
typedef struct jx_str {
    const char *data;  /* well-formed UTF-8, not NUL-terminated */
    size_t len, chars; /* bytes, code points */
    const uint8_t
        *map; /* [len] 1: template, 0: client, where both occur; else NULL and `trusted` speaks for all bytes */
    bool trusted;
    bool markup;   /* markupsafe.Markup: + and % escape the other side */
    jx_grow *grow; /* spare room behind the last byte, or NULL: makes repeated appending linear */
} jx_str;

typedef enum jx_kind {
    JX_MISSING, /* never seen by a template: an absent argument, an unset slot */
    JX_UNDEFINED,
    JX_NONE,
    JX_BOOL,
    JX_INT,
    JX_FLOAT,
    JX_STR,
    JX_LIST,
    JX_TUPLE,
    JX_DICT,
    JX_RANGE,
    JX_VIEW, /* dict.keys(), .values(), .items() */
    JX_ITER, /* a generator: can be walked once */
    JX_NAMESPACE,
    JX_LOOP,
    JX_MACRO,
    JX_FUNC,   /* global function or bound method */
    JX_CYCLER, /* cycler() */
    JX_JOINER, /* joiner() */
    JX_SET,    /* made from dict views; .d, of which only the keys matter */
    JX_SELF,   /* the variable `self` */
    JX_BLOCK,  /* self.name: a call renders the block again */
} jx_kind;

typedef struct jx_list {
    jx_value *v;
    size_t n;
    bool group; /* a groupby() pair: .grouper and .list */
} jx_list;
typedef struct jx_dict jx_dict;
typedef struct jx_undef {
    const char *hint;   /* the whole message, or NULL */
    const char *of;     /* "'dict object'", or NULL for a plain name */
    const jx_str *name; /* attribute or variable, or NULL */
    bool security;
} jx_undef;
typedef struct jx_range {
    jx_int start, stop, step, n;
} jx_range;
typedef struct jx_iter jx_iter;
typedef struct jx_loop jx_loop;
typedef struct jx_view {
    const jx_dict *d;
    enum { JX_KEYS, JX_VALUES, JX_ITEMS } what;
} jx_view;
typedef struct jx_macro jx_macro;
typedef struct jx_bound jx_bound;
typedef struct jx_cycle {
    jx_value *v;
    size_t n, pos;
} jx_cycle;

struct jx_value {
    uint8_t kind;
    bool client; /* not a string, but taken from the client's JSON: its printed form is client text */
    union {
        bool b;
        jx_int i;
        double f;
        const jx_str *s;
        const jx_list *l;
        jx_dict *d;
        const jx_undef *u;
        const jx_range *r;
        const jx_view *view;
        jx_iter *it;
        jx_loop *loop;
        const jx_macro *macro;
        const jx_bound *fn;
        const jx_node *block;
        jx_cycle *cycle; /* also JX_JOINER: v[0] is the separator, pos != 0 after the first use */
    };
};

typedef struct jx_pair {
    jx_value key, value;
} jx_pair;
struct jx_dict { /* insertion-ordered, open addressing */
    jx_pair *v;
    size_t n, cap;
    uint32_t *index; /* [mask + 1] position + 1, 0 empty; NULL for tiny ones */
    uint32_t mask;
};

#define JX_NIL       ((jx_value){.kind = JX_NONE})
#define JX_ABSENT    ((jx_value){.kind = JX_MISSING})
#define JX_BOOLV(x)  ((jx_value){.kind = JX_BOOL, .b = (x)})
#define JX_INTV(x)   ((jx_value){.kind = JX_INT, .i = (x)})
#define JX_FLOATV(x) ((jx_value){.kind = JX_FLOAT, .f = (x)})
#define JX_STRV(x)   ((jx_value){.kind = JX_STR, .s = (x)})
#define JX_LISTV(x)  ((jx_value){.kind = JX_LIST, .l = (x)})

/* ---- context of one compilation or rendering ---- */

typedef struct jx_chunk jx_chunk;
typedef struct jx_arena {
    jx_chunk *chunks;
    char *at, *end;
    size_t used_bytes, max_bytes;
} jx_arena;
void jx_arena_free(jx_arena *a);

/* A string under construction. */
typedef struct jx_sb {
    char *data;
    uint8_t *map; /* [cap] once bytes of both origins were added */
    size_t len, cap, max_len;
    bool any_trusted, any_client;
} jx_sb;

struct jx {
    jmp_buf jump;
    jx_arena arena;
    xd_status status; /* of the failure that jumped */
    xd_err *err;
    const char *name;
    uint32_t line; /* of the node being worked on */
    unsigned depth;
    bool compiling;
    bool track; /* provenance is wanted */
    uint64_t steps, max_steps, deadline_ns, next_clock_step;
    jx_sb *out;
    jx_dict *vars;
    const jinja_template *t;
    jx_frame *root;
    jx_value filter_input; /* what the innermost filter of a {% filter %} or {% set x | f %} works on */
    time_t now;
    const jx_str *ascii[2][128]; /* the one-character strings made so far, [trusted] */
    uint64_t randoms;            /* items that the filter `random` has picked so far */
};

_Noreturn void jx_throw(jx *c, xd_status status, const char *code, const char *fmt, ...) XD_PRINTF(4, 5);
/* A Python exception: XD_BAD_REQUEST when rendering, XD_BAD_MODEL when compiling, with name and line in front. */
#define jx_error(c, ...) jx_throw(c, (c)->compiling ? XD_BAD_MODEL : XD_BAD_REQUEST, "template_error", __VA_ARGS__)
uint64_t jx_cpu_ns(void); /* of this thread */
void jx_charge_slow(jx *c);
/* Counts work: n is about the number of nodes evaluated, or bytes / 64. */
static inline void jx_charge(jx *c, uint64_t n)
{
    c->steps += n;
    if (c->steps >= c->next_clock_step)
        jx_charge_slow(c);
}
_Noreturn void jx_too_deep(jx *c);
#define JX_ENTER(c)                      \
    do {                                 \
        if (++(c)->depth > JX_MAX_DEPTH) \
            jx_too_deep(c);              \
    } while (0)
#define JX_LEAVE(c) ((void)(c)->depth--)

void *jx_alloc(jx *c, size_t bytes) __attribute__((malloc, alloc_size(2), returns_nonnull));
void *jx_alloc_array(jx *c, size_t n, size_t size) __attribute__((malloc, returns_nonnull)); /* zeroed */
/* Only for the sole owner of p. */
void *jx_realloc(jx *c, void *p, size_t old_bytes, size_t new_bytes) __attribute__((returns_nonnull));
#define JX_NEW(c, T) ((T *)jx_alloc_array(c, 1, sizeof(T)))

/* ---- strings (str.c) ---- */

const jx_str *jx_str_view(jx *c, const char *data, size_t len, size_t chars, bool trusted); /* borrows data */
const jx_str *jx_str_copy(jx *c, const char *data, size_t len, bool trusted);
const jx_str *jx_str_lit(jx *c, const char *literal);                     /* of the program: trusted */
const jx_str *jx_str_sub(jx *c, const jx_str *s, size_t from, size_t to); /* bytes; shares the memory */
const jx_str *jx_str_char(jx *c, const jx_str *s, size_t from,
                          size_t to); /* the same of one character, as a plain str */
const jx_str *jx_str_concat(jx *c, const jx_str *a, const jx_str *b);
const jx_str *jx_str_markup(jx *c, const jx_str *s, bool markup);
const jx_str *jx_str_escape(jx *c, const jx_str *s); /* HTML; the result is markup */
bool jx_str_trusted(const jx_str *s);                /* all of it */
bool jx_str_eq(const jx_str *a, const jx_str *b);
bool jx_str_is(const jx_str *s, const char *text);
int jx_str_cmp(const jx_str *a, const jx_str *b);
size_t jx_str_offset(const jx_str *s, size_t chars);                    /* byte offset of a code point, clamped */
size_t jx_str_find(const jx_str *s, const jx_str *needle, size_t from); /* byte offset or SIZE_MAX */
size_t jx_str_rfind(jx *c, const jx_str *s, const jx_str *needle, size_t end);

void jx_sb_add(jx *c, jx_sb *b, const char *data, size_t len, bool trusted);
void jx_sb_str(jx *c, jx_sb *b, const jx_str *s);
void jx_sb_sub(jx *c, jx_sb *b, const jx_str *s, size_t from, size_t to);
void jx_sb_char(jx *c, jx_sb *b, int32_t ch, bool trusted);
void jx_sb_fill(jx *c, jx_sb *b, const char *piece, size_t n, bool trusted); /* n times */
const jx_str *jx_sb_done(jx *c, jx_sb *b);
#define jx_sb_lit(c, b, text) jx_sb_add(c, b, text, sizeof(text) - 1, true)

/* Unicode as Python's str sees it (unicode.c) */
int32_t jx_char(const char **at, const char *end); /* next code point */
int32_t jx_char_back(const char *start, const char **at);
bool jx_is_space(int32_t ch);
bool jx_is_printable(int32_t ch);
bool jx_is_word(int32_t ch);        /* \w */
int32_t jx_digit_value(int32_t ch); /* of a decimal digit of any script, else -1 */
typedef enum jx_case { JX_UPPER, JX_LOWER, JX_TITLE, JX_CAPITALIZE, JX_SWAPCASE, JX_FOLD } jx_case;
const jx_str *jx_str_case(jx *c, const jx_str *s, jx_case how);
bool jx_str_class(const jx_str *s, const char *method,
                  bool *ret);                          /* isalpha, isdigit, ...: false if there is no such method */
size_t jx_line_break(const char *at, const char *end); /* length of the line break at `at`, 0 if none */

/* ---- values (value.c, repr.c) ---- */

bool jx_truth(jx *c, jx_value v);

/* Arguments: passed at all; passed, and not None; passed, and true. */
static inline bool jx_given(jx_value v)
{
    return v.kind != JX_MISSING;
}
static inline bool jx_given_not_none(jx_value v)
{
    return v.kind != JX_MISSING && v.kind != JX_NONE;
}
static inline bool jx_given_true(jx *c, jx_value v)
{
    return v.kind != JX_MISSING && jx_truth(c, v);
}

bool jx_equal(jx *c, jx_value a, jx_value b);
int jx_compare(jx *c, jx_value a, jx_value b, const char *op); /* ordering; throws where Python would */
bool jx_less(jx *c, jx_value a, jx_value b);
/* Sorts v[0..n) by key, what is equal stays in its order; there is room for 2 n pairs. */
void jx_sort_pairs(jx *c, jx_pair *v, size_t n, bool (*before)(jx *c, jx_value a, jx_value b));
bool jx_contains(jx *c, jx_value container, jx_value item);
bool jx_is_number(jx_value v); /* bool, int, float */
jx_int jx_as_int(jx_value v);  /* of a bool or int */
double jx_as_float(jx_value v);
jx_int jx_need_int(jx *c, jx_value v);    /* operator.index() */
int64_t jx_need_index(jx *c, jx_value v); /* the same, clamped to 64 bits */
const jx_str *jx_need_str(jx *c, jx_value v, const char *what);
const char *jx_type_name(jx_value v); /* "str", "NoneType" */
jx_value jx_undefined(jx *c, const char *hint);
jx_value jx_undefined_name(jx *c, const jx_str *name);
jx_value jx_undefined_attr(jx *c, jx_value of, jx_value name);
_Noreturn void jx_throw_undefined(jx *c, jx_value v);

jx_list *jx_list_new(jx *c, size_t n);
jx_value jx_tuple(jx *c, size_t n, ...);
/* A growing list. */
typedef struct jx_vec {
    jx_value *v;
    size_t n, cap;
} jx_vec;
void jx_push(jx *c, jx_vec *l, jx_value v);
jx_value jx_vec_list(jx *c, const jx_vec *l, jx_kind kind);
jx_dict *jx_dict_new(jx *c, size_t cap);
void jx_dict_set(jx *c, jx_dict *d, jx_value key, jx_value value);
const jx_value *jx_dict_get(jx *c, const jx_dict *d, jx_value key); /* NULL: absent */
jx_value jx_from_json(jx *c, const json_t *j, bool client);
jx_range *jx_range_new(jx *c, jx_int start, jx_int stop, jx_int step);

/* Walking anything iterable. jx_iter_open throws for what is not. */
typedef bool (*jx_step)(jx *c, void *state, jx_value *ret); /* false: there are no more */
struct jx_iter {
    jx_value of;
    jx_step step; /* of a generator that computes its items when they are asked for, else NULL */
    void *state;
    bool ended;
    size_t pos;       /* items done; bytes of a string */
    jx_iter *inner;   /* when `of` is a JX_ITER: its state, shared by all who walk it */
    const char *type; /* of a JX_ITER value: what Python calls it */
};
bool jx_iterable(jx_value v);
jx_iter jx_iter_open(jx *c, jx_value v);
bool jx_iter_next(jx *c, jx_iter *it, jx_value *ret);
jx_value jx_generator(jx *c, jx_value list, const char *type); /* a value that is walked once */
jx_value jx_lazy(jx *c, jx_step step, void *state);            /* a generator; its state lives in the arena */
jx_value jx_to_list(jx *c, jx_value v, jx_kind kind);
bool jx_len(jx_value v, size_t *ret); /* false: has no len() */

void jx_print(jx *c, jx_sb *b, jx_value v);  /* str(v) */
void jx_repr(jx *c, jx_sb *b, jx_value v);   /* repr(v) */
void jx_ascii(jx *c, jx_sb *b, jx_value v);  /* ascii(v) */
const jx_str *jx_to_str(jx *c, jx_value v);  /* str(v) */
const char *jx_repr_text(jx *c, jx_value v); /* repr(v) for a message, cut short */
size_t jx_int_repr(char out[48], jx_int i);
/* int(text, base): false for ValueError */
bool jx_parse_int(const jx_str *s, unsigned base, jx_int *ret);
bool jx_parse_float(const jx_str *s, double *ret);
jx_int jx_float_to_int(jx *c, double f); /* throws on NaN, infinities and beyond 127 bits */

/* ---- sets and set-like dict views (sets.c) ---- */

bool jx_is_setlike(jx_value v);
jx_value jx_set_minus(jx *c, jx_value a, jx_value b);
int jx_set_compare(jx *c, jx_value a, jx_value b);

/* ---- operators (ops.c) ---- */

typedef enum jx_op {
    JX_ADD,
    JX_SUB,
    JX_MUL,
    JX_DIV,
    JX_FLOORDIV,
    JX_MOD,
    JX_POW,
    JX_EQ,
    JX_NE,
    JX_LT,
    JX_LE,
    JX_GT,
    JX_GE,
    JX_IN,
    JX_NOTIN,
} jx_op;
jx_value jx_binary(jx *c, jx_op op, jx_value a, jx_value b);
bool jx_compare_op(jx *c, jx_op op, jx_value a, jx_value b);
jx_value jx_negate(jx *c, jx_value v, bool minus);
jx_value jx_slice(jx *c, jx_value of, jx_value first, jx_value last, jx_value by);
jx_value jx_getattr(jx *c, jx_value of, const jx_str *name);
jx_value jx_getitem(jx *c, jx_value of, jx_value key);
jx_value jx_attr_only(jx *c, jx_value of, const jx_str *name); /* never an item */
const jx_str *jx_format_percent(jx *c, const jx_str *format, jx_value args);

/* ---- calls (call.c) ---- */

typedef struct jx_args {
    jx_value *v; /* positional; after binding exactly as many as the signature has names, absent ones JX_MISSING */
    size_t n;
    jx_pair *kw; /* keys are strings */
    size_t n_kw;
} jx_args;
typedef jx_value (*jx_fn)(jx *c, jx_value self, jx_args *a);
/* One filter, test, method or global function. `params` are the names of what follows self, those after '|' are optional, and "/" in
 * front: none may be given by name; NULL: the function takes *args and **kwargs as they come. */
typedef struct jx_func {
    const char *name;
    jx_fn fn;
    const char *params;
} jx_func;
struct jx_bound {
    const jx_func *fn;
    jx_value self;
};
struct jx_macro {
    const jx_node *node;
    jx_frame *frame;
};
jx_value jx_call(jx *c, jx_value callee, jx_args *a);
jx_value jx_call_func(jx *c, const jx_func *f, const char *what, jx_value self, jx_args *a);
jx_value jx_bind(jx *c, const jx_func *f, jx_value self);
const jx_func *jx_find_filter(const jx_str *name);
const jx_func *jx_find_test(const jx_str *name);
const jx_func *jx_find_global(const jx_str *name);
const jx_func *jx_find_method(jx_value of, const jx_str *name);
jx_value jx_macro_call(jx *c, const jx_macro *m, jx_args *a);
jx_value jx_loop_call(jx *c, jx_loop *loop, jx_value iterable);
jx_value jx_str_format(jx *c, jx_value self, jx_args *a);
jx_value jx_block_call(jx *c, const jx_node *block);
jx_value jx_filter_pprint(jx *c, jx_value v, jx_args *a);
jx_value jx_filter_tojson(jx *c, jx_value v, jx_args *a);
jx_value jx_filter_urlize(jx *c, jx_value v, jx_args *a);
jx_value jx_filter_wordwrap(jx *c, jx_value v, jx_args *a);
/* Tables of methods; they end with a NULL name */
extern const jx_func jx_str_methods[];                     /* methods_str.c */
extern const jx_func jx_set_methods[], jx_view_methods[];  /* sets.c */
extern const jx_func jx_int_methods[], jx_float_methods[]; /* methods_num.c */

extern const jx_func jx_seq_filters[]; /* filters_seq.c; ends with a NULL name */
/* Rows that filters and methods share */
const jx_str *jx_strip(jx *c, const jx_str *s, jx_value chars, int sides); /* 1 left, 2 right */
jx_value jx_splitlines(jx *c, const jx_str *s, bool keep);
const jx_str *jx_replace(jx *c, const jx_str *s, const jx_str *old, const jx_str *with, int64_t max);
const jx_str *jx_pad(jx *c, const jx_str *s, int64_t width, const jx_str *fill,
                     int how); /* -1 ljust, 1 rjust, 0 center */

/* ---- syntax tree (parser.c), names (scope.c), evaluation (eval.c) ---- */

typedef enum jx_node_kind {
    /* expressions */
    N_CONST,
    N_NAME,
    N_NSREF,
    N_TUPLE,
    N_LIST,
    N_DICT,
    N_COND,
    N_AND,
    N_OR,
    N_NOT,
    N_COMPARE,
    N_BINARY,
    N_NEG,
    N_POS,
    N_CONCAT,
    N_GETATTR,
    N_GETITEM,
    N_SLICE,
    N_CALL,
    N_FILTER,
    N_TEST,
    /* statements */
    N_DATA,
    N_OUTPUT,
    N_SET,
    N_SET_BLOCK,
    N_FOR,
    N_IF,
    N_MACRO,
    N_CALL_BLOCK,
    N_FILTER_BLOCK,
    N_WITH,
    N_SCOPE,
    N_BLOCK,
    N_BREAK,
    N_CONTINUE,
    N_OTHER_TEMPLATE, /* include, import, from, extends: .text is the tag; fails when it is reached */
} jx_node_kind;

enum { JX_BLOCK_SCOPED = 1, JX_BLOCK_REQUIRED = 2 };

typedef struct jx_body {
    jx_node **v;
    uint32_t n;
} jx_body;

typedef struct jx_call_args {
    jx_node **v;
    jx_node **kw_values;
    const jx_str **kw_names;
    uint32_t n, n_kw;
    jx_node *star, *star_star;
} jx_call_args;

struct jx_node {
    uint8_t kind;
    uint8_t op;      /* N_BINARY: jx_op; N_FOR: 1 recursive; N_IF: 1 elif; N_BLOCK: JX_BLOCK_... */
    uint16_t height; /* of an expression's tree */
    uint32_t line;
    union {
        struct { /* expressions */
            jx_node *a, *b, *c;
            jx_body items;       /* N_TUPLE, N_LIST, N_CONCAT; N_DICT: key, value, ...; N_COMPARE: operands after a */
            const uint8_t *ops;  /* N_COMPARE: [items.n] jx_op */
            const jx_str *name;  /* N_NAME, N_NSREF (variable), N_GETATTR, N_FILTER, N_TEST */
            const jx_str *attr;  /* N_NSREF */
            jx_call_args *args;  /* N_CALL, N_FILTER, N_TEST */
            const jx_func *fn;   /* N_FILTER, N_TEST; NULL: unknown, an error only when reached */
            jx_value value;      /* N_CONST */
            uint32_t hops, slot; /* N_NAME, N_NSREF */
        };
        struct { /* statements */
            jx_node *target,
                *expr; /* N_SET, N_FOR; N_CALL_BLOCK: expr is the call; N_OUTPUT: expr; N_FILTER_BLOCK, N_OTHER_TEMPLATE: expr */
            jx_node *test;       /* N_FOR, N_IF */
            jx_body body, other; /* other: else */
            jx_body params;      /* N_MACRO, N_CALL_BLOCK: names; N_WITH: targets */
            jx_body defaults;    /* of the last parameters; N_WITH: values */
            const jx_str *text;  /* N_DATA; N_MACRO: name; N_OTHER_TEMPLATE: tag */
            jx_scope *scope, *test_scope, *else_scope;
            uint32_t self_slot; /* N_MACRO: where its name is stored */
            int32_t
                special[3]; /* N_MACRO, N_CALL_BLOCK: slots of caller, kwargs, varargs, -1 unused; N_FOR: [0] loop */
        };
    };
};

/* How a frame's variables start (jinja2's idtracking): the names of one scope and where each first value comes from. */
typedef struct jx_symbol {
    const jx_str *name;
    enum { JX_SYM_PARAM, JX_SYM_RESOLVE, JX_SYM_ALIAS, JX_SYM_UNDEFINED } load;
    uint32_t hops, slot; /* JX_SYM_ALIAS: of the outer variable, counted from this frame */
} jx_symbol;
struct jx_scope {
    jx_scope *parent;
    jx_symbol *v;
    uint32_t n, cap;
};
struct jx_frame {
    jx_frame *parent;
    jx_value slots[];
};

struct jinja_template {
    jx_arena arena;
    jx_body body;
    jx_scope *scope;
    jx_body blocks;       /* every {% block %}, for `self` */
    const jx_str **names; /* variables that are looked up in the render's vars, sorted */
    size_t n_names;
    char name[64];
};

typedef enum jx_token_kind {
    T_EOF,
    T_ERROR, /* the lexer failed here */
    T_DATA,
    T_VAR_BEGIN,
    T_VAR_END,
    T_BLOCK_BEGIN,
    T_BLOCK_END,
    T_NAME,
    T_STRING,
    T_INT,
    T_FLOAT,
    T_OP,
} jx_token_kind;
typedef struct jx_token {
    uint8_t kind;
    char op[3]; /* T_OP: NUL-terminated */
    uint32_t line;
    union {
        const jx_str *s; /* T_DATA, T_NAME, T_STRING */
        jx_int i;
        double f;
    };
} jx_token;
jx_token *jx_lex(jx *c, const char *source, size_t len); /* ends with T_EOF or T_ERROR */
const char *jx_token_text(jx *c, const jx_token *t);     /* for messages */

extern const char *const jx_special_names[3]; /* of jx_node.special */
void jx_parse(jx *c, const jx_token *tokens, jx_body *ret);
void jx_resolve_names(jx *c, jinja_template *t);
void jx_exec_template(jx *c, const jinja_template *t);
jx_value jx_loop_attr(jx *c, jx_loop *loop, const jx_str *name);

#endif
