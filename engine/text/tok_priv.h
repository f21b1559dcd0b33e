/* tok_priv.h - the parts of a tokenizer, shared by the tok_*.c files only.
 *
 * Encoding: added tokens are cut out of the text (tok_added.c), the stretches between them are normalized (tok_norm.c), cut
 * into pieces (tok_pretok.c), and each piece becomes ids by the model (tok_bpe.c, tok_unigram.c). Decoding is a chain of
 * stages that takes tokens one by one (tok_decode.c), so that a stream and a whole text share one implementation. */
#ifndef ENGINE_TOK_PRIV_H
#define ENGINE_TOK_PRIV_H

#include "engine/text/tokenizer.h"

#define TOK_NONE UINT32_MAX

#ifdef FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION /* the same code within limits that a fuzzer reaches in microseconds */
enum { TOK_MAX_ID = 1 << 11, TOK_GROWTH_FREE_BYTES = 1 << 12, TOK_WORK_FREE = 1 << 20 };
#else
enum {
    TOK_MAX_ID = 1 << 22,            /* a vocabulary is indexed by id: a larger id in a file is refused */
    TOK_GROWTH_FREE_BYTES = 1 << 16, /* up to this, any growth is fine */
    TOK_WORK_FREE = 32 << 20,
};
#endif

enum {
    TOK_MAX_TEXT_BYTES = 1 << 30, /* offsets are 32-bit */
    TOK_MAX_GROWTH = 32,          /* a text's steps may make it this many times longer: no real tokenizer comes near */
    TOK_GROWTH_LARGE_BYTES = 8 << 20, /* nor may it grow by more than three times and this: memory stays in bounds */
    TOK_WORK_PER_BYTE = 128,    /* what a text may cost, see tok_work_left: ten times what tokenizers in use need */
    TOK_MAX_MATCH_BYTES = 1024, /* longest added or Unigram token: bounds the work at each byte of the text */
    TOK_MAX_NESTING = 32,       /* Sequence within Sequence */
};

/* ---- work ----
 * Files and texts can be made so that a step takes quadratic time or more. What a call may cost is therefore counted, in units of
 * very roughly a nanosecond, and a call that spends more than its text's share fails. Counting, unlike timing, gives the
 * same answer everywhere. */
typedef uint64_t tok_work_left;
static inline tok_work_left tok_work_for(size_t bytes)
{
    return TOK_WORK_FREE + (uint64_t)bytes * TOK_WORK_PER_BYTE;
}
static inline bool tok_spend(tok_work_left *left, uint64_t units)
{
    if (units > *left)
        return false;
    *left -= units;
    return true;
}
xd_status tok_too_long(xd_err *err, const char *what);

/* ---- small growable arrays ---- */
/* Makes room for `need` elements; false: out of memory (the array is untouched). */
bool tok_grow(void *array_ptr, size_t *cap, size_t need, size_t elem_bytes);
uint64_t tok_hash_seed(void);

/* ---- tok_vocab.c: strings <-> ids ---- */
typedef struct tok_vocab_slot {
    uint32_t id1; /* id + 1; 0: empty */
    uint32_t tag;
} tok_vocab_slot;
typedef struct tok_vocab {
    xd_buf text;         /* every string, NUL-terminated */
    uint32_t *off, *len; /* [n_ids]; off TOK_NONE: the id has no string */
    uint32_t n_ids, n_entries;
    size_t ids_cap, len_cap;
    tok_vocab_slot *slots;
    uint32_t mask;
    uint64_t seed; /* of the hash: nobody can choose strings that collide */
} tok_vocab;
void tok_vocab_clear(tok_vocab *v);
bool tok_vocab_reserve(tok_vocab *v, size_t n_entries);                   /* before the first put */
bool tok_vocab_put(tok_vocab *v, const char *s, size_t len, uint32_t id); /* id < TOK_MAX_ID; false: out of memory */
uint32_t tok_vocab_get(const tok_vocab *v, const char *s, size_t len);    /* TOK_NONE when absent */
static inline const char *tok_vocab_text(const tok_vocab *v, uint32_t id)
{
    return id < v->n_ids && v->off[id] != TOK_NONE ? v->text.data + v->off[id] : NULL;
}

/* ---- tok_trie.c: many strings found in one pass ---- */
typedef struct tok_trie_entry {
    const char *s; /* borrowed until the trie is built */
    uint32_t len, value;
} tok_trie_entry;
typedef struct tok_trie_node {
    uint32_t child; /* first of its children; they end where those of the next node begin */
    uint32_t value; /* of the string that ends here, or TOK_NONE */
    uint32_t fail;  /* the longest proper end of this one that begins a string */
    uint32_t out;   /* the nearest one along `fail` that is a string; 0: none */
    uint16_t depth;
    unsigned char byte;
} tok_trie_node;
typedef struct tok_trie {
    tok_trie_entry *entry;
    size_t n, entry_cap; /* strings added */
    tok_trie_node *node; /* [n_nodes + 1]; 0 is the root */
    size_t node_cap;
    uint32_t n_nodes;
    uint32_t first[256]; /* the root's children, 0: none */
} tok_trie;
bool tok_trie_add(tok_trie *t, const char *s, size_t len, uint32_t value); /* 0 < len <= TOK_MAX_MATCH_BYTES */
bool tok_trie_build(tok_trie *t, bool backwards); /* `backwards`: the text will be read from its end */
void tok_trie_clear(tok_trie *t);
uint32_t tok_trie_step(const tok_trie *t, uint32_t state, unsigned char byte);

/* ---- UTF-8 ---- */
/* The code point of the well-formed sequence at s; *ret_len its bytes. */
static inline uint32_t tok_cp(const char *s, size_t *ret_len)
{
    const unsigned char *u = (const unsigned char *)s;
    if (u[0] < 0x80) {
        *ret_len = 1;
        return u[0];
    }
    if (u[0] < 0xE0) {
        *ret_len = 2;
        return (uint32_t)(u[0] & 0x1F) << 6 | (u[1] & 0x3F);
    }
    if (u[0] < 0xF0) {
        *ret_len = 3;
        return (uint32_t)(u[0] & 0x0F) << 12 | (uint32_t)(u[1] & 0x3F) << 6 | (u[2] & 0x3F);
    }
    *ret_len = 4;
    return (uint32_t)(u[0] & 0x07) << 18 | (uint32_t)(u[1] & 0x3F) << 12 | (uint32_t)(u[2] & 0x3F) << 6 | (u[3] & 0x3F);
}
size_t tok_cp_put(uint32_t cp, char out[4]);
bool tok_cp_in(const uint32_t (*ranges)[2], size_t n, uint32_t cp); /* sorted ranges, both ends within */
bool tok_cp_is_space(uint32_t cp);                                  /* White_Space */
bool tok_cp_is_numeric(uint32_t cp);                                /* N* */
bool tok_cp_is_punct(uint32_t cp);                                  /* ASCII punctuation or P* of Unicode 8 */
bool tok_cp_is_word(uint32_t cp); /* \w of Rust's regex: Alphabetic, M*, Nd, Pc, Join_Control */
/* GPT-2's printable alphabet: byte -> code point, code point (< 0x180) -> byte or -1. */
uint32_t tok_byte_to_cp(unsigned char byte);
int tok_cp_to_byte(uint32_t cp);
/* Appends the alphabet's spelling of s: tok_pretok.c. false: out of memory. */
bool tok_byte_level_append(xd_buf *out, const char *s, size_t len);
/* Appends the bytes: tok_charsmap.c. false: it is no base64, or out of memory (out->failed). */
bool tok_base64_decode(const char *s, size_t len, xd_buf *out);

/* ---- tok_json.c, tok_gguf.c, tok_tiktoken.c ---- */
static inline xd_status tok_no_memory(xd_err *err)
{
    return xd_fail(err, XD_NOMEM, 0, "loading the tokenizer");
}

/* ---- tok_regex.c: the reference's (Oniguruma's) regular expressions on pcre2 ---- */
typedef struct tok_regex tok_regex;
xd_status tok_regex_new(const char *pattern, size_t len, tok_regex **ret, xd_err *err) XD_MUST_CHECK;
/* The same with every character of the pattern literal. */
xd_status tok_regex_new_literal(const char *text, size_t len, tok_regex **ret, xd_err *err) XD_MUST_CHECK;
void tok_regex_free(tok_regex *r);
typedef struct tok_regex_run tok_regex_run; /* scratch memory of matching: one a thread at a time */
void tok_regex_run_free(tok_regex_run *run);
typedef struct tok_span {
    uint32_t start, end;
    bool match;
} tok_span;
typedef struct tok_spans {
    tok_span *data;
    size_t n, cap;
} tok_spans;
bool tok_spans_push(tok_spans *s, size_t start, size_t end, bool match);
/* All matches in s[0..len) and the stretches between them, in order, covering s; an empty s is one empty stretch. *run is
 * made on first use. Fails with XD_NOMEM, or XD_UNSUPPORTED when the pattern would take too long on this text. */
xd_status tok_regex_find(const tok_regex *r, tok_regex_run **run, tok_work_left *left, const char *s, size_t len,
                         tok_spans *ret, xd_err *err) XD_MUST_CHECK;

/* ---- tok_norm.c ---- */
typedef enum tok_norm_kind {
    TOK_NORM_NFC,
    TOK_NORM_NFD,
    TOK_NORM_NFKC,
    TOK_NORM_NFKD,
    TOK_NORM_LOWERCASE,
    TOK_NORM_STRIP,
    TOK_NORM_STRIP_ACCENTS,
    TOK_NORM_REPLACE,
    TOK_NORM_PREPEND,
    TOK_NORM_NMT,
    TOK_NORM_BYTE_LEVEL,
    TOK_NORM_PRECOMPILED,
} tok_norm_kind;
typedef struct tok_charsmap tok_charsmap; /* tok_charsmap.c */
typedef struct tok_norm {
    tok_norm_kind kind;
    tok_regex *re; /* REPLACE */
    char *text;    /* REPLACE: the content; PREPEND */
    size_t text_len;
    bool left, right;  /* STRIP */
    tok_charsmap *map; /* PRECOMPILED */
} tok_norm;
/* A text under way: `trust` has one entry a byte, or is empty when nobody asks. `at_start`: the first byte of the text still
 * comes from the first byte of the whole input (Metaspace's prepend_scheme "first" asks). */
typedef struct tok_text {
    xd_buf s, trust;
    size_t max_bytes; /* more than this is refused */
    bool track_trust, at_start, too_large;
} tok_text;
void tok_text_free(tok_text *t);
/* Runs the normalizers over *t, using *tmp as the second buffer. */
xd_status tok_norm_run(const tok_norm *steps, size_t n, tok_regex_run **run, tok_work_left *left, tok_text *t,
                       tok_text *tmp, xd_err *err) XD_MUST_CHECK;
void tok_norm_clear(tok_norm *n);

xd_status tok_charsmap_new(const char *base64, size_t len, tok_charsmap **ret, xd_err *err) XD_MUST_CHECK;
void tok_charsmap_free(tok_charsmap *m);
/* The replacement of s, or NULL: none. */
const char *tok_charsmap_get(const tok_charsmap *m, const char *s, size_t len, size_t *ret_len);

/* ---- tok_pretok.c ---- */
typedef enum tok_behavior {
    TOK_REMOVED,
    TOK_ISOLATED,
    TOK_MERGED_WITH_PREVIOUS,
    TOK_MERGED_WITH_NEXT,
    TOK_CONTIGUOUS,
} tok_behavior;
typedef enum tok_scheme { TOK_FIRST, TOK_NEVER, TOK_ALWAYS } tok_scheme;
typedef enum tok_pretok_kind {
    TOK_PRE_SPLIT,
    TOK_PRE_DIGITS,
    TOK_PRE_PUNCTUATION,
    TOK_PRE_WHITESPACE,
    TOK_PRE_WHITESPACE_SPLIT,
    TOK_PRE_METASPACE,
    TOK_PRE_BYTE_LEVEL,
} tok_pretok_kind;
typedef struct tok_pretok {
    tok_pretok_kind kind;
    tok_regex *re; /* SPLIT; BYTE_LEVEL with use_regex */
    tok_behavior behavior;
    bool invert;
    bool individual;       /* DIGITS */
    bool add_prefix_space; /* BYTE_LEVEL */
    char meta[4];          /* METASPACE */
    size_t meta_len;
    tok_scheme scheme;
    bool split;
} tok_pretok;
void tok_pretok_clear(tok_pretok *p);

typedef struct tok_piece {
    uint32_t off, len;
} tok_piece;
typedef struct tok_pieces {
    tok_piece *data;
    size_t n, cap;
} tok_pieces;
/* All that one encode call needs, reused between its stretches of text. */
typedef struct tok_work {
    tok_regex_run *run;
    tok_work_left left;
    size_t bytes; /* of the whole text, as it was given */
    tok_text text, tmp;
    tok_pieces pieces, pieces2;
    tok_spans spans, spans2;
    void *model_mem; /* owned by the model's file */
    void (*model_mem_free)(void *);
} tok_work;
void tok_work_clear(tok_work *w);
/* Cuts w->text.s into w->pieces (none of them empty), rewriting the text where a step does. */
xd_status tok_pretok_run(const tok_pretok *steps, size_t n, tok_work *w, xd_err *err) XD_MUST_CHECK;

/* ---- tok_bpe.c ---- */
typedef struct tok_merge_slot {
    uint64_t pair; /* left << 32 | right */
    uint32_t rank; /* TOK_NONE: empty */
    uint32_t id;
} tok_merge_slot;
typedef struct tok_bpe {
    tok_merge_slot *merges;
    unsigned shift; /* 64 - log2(slots) */
    uint64_t seed;
    size_t n_merges;
    uint32_t char_id[0x180]; /* initial id of low code points */
    uint32_t byte_id[256];   /* ids of "<0xNN>" */
    bool byte_fallback, fuse_unk, ignore_merges, has_unk;
    uint32_t unk_id;       /* TOK_NONE: named but not in the vocabulary */
    char *prefix, *suffix; /* continuing_subword_prefix, end_of_word_suffix; NULL when absent */
    size_t prefix_len, suffix_len;
} tok_bpe;
bool tok_bpe_reserve(tok_bpe *b, size_t n_merges);
void tok_bpe_put(tok_bpe *b, uint32_t left, uint32_t right, uint32_t rank, uint32_t id); /* a later one replaces */
void tok_bpe_finish(tok_bpe *b, const tok_vocab *v); /* fills the tables of initial ids */
void tok_bpe_clear(tok_bpe *b);
/* XD_TOO_LARGE when there are more than ids->max. */
xd_status tok_ids_check(const tok_ids *ids, xd_err *err) XD_MUST_CHECK;
/* Appends the ids of w->pieces. */
xd_status tok_bpe_encode(const tok_bpe *b, const tok_vocab *v, tok_work *w, tok_ids *out, xd_err *err) XD_MUST_CHECK;

/* ---- tok_unigram.c ---- */
typedef struct tok_unigram {
    tok_trie pieces;
    double *score; /* [n] */
    uint32_t n;
    double min_score;
    uint32_t unk_id; /* TOK_NONE: none */
    bool byte_fallback;
    uint32_t byte_id[256];
} tok_unigram;
void tok_unigram_clear(tok_unigram *u);
xd_status tok_unigram_encode(const tok_unigram *u, const tok_vocab *v, tok_work *w, tok_ids *out,
                             xd_err *err) XD_MUST_CHECK;
void tok_byte_tokens(const tok_vocab *v,
                     uint32_t ret_ids[256]); /* ids of "<0x00>" .. "<0xFF>", TOK_NONE where absent */

/* ---- tok_added.c ---- */
typedef struct tok_added {
    char *content; /* as the file has it */
    size_t content_len;
    char *norm; /* its normalized form when that differs, else NULL */
    size_t norm_len;
    uint32_t id;
    bool single_word, lstrip, rstrip, normalized, special;
    bool skip; /* decoding with skip_special leaves it out */
} tok_added;
typedef struct tok_cut { /* a stretch of text; added TOK_NONE: ordinary text, else index of the added token */
    uint32_t off, len, added;
} tok_cut;
typedef struct tok_cuts {
    tok_cut *data;
    size_t n, cap;
} tok_cuts;
/* How special tokens in a text are treated: everywhere, nowhere, or only where `trust` is non-zero for all their bytes. */
typedef struct tok_trust {
    bool all;
    const uint8_t *map; /* NULL with all false: nowhere */
} tok_trust;
bool tok_added_cut(const tok_added *added, const tok_trie *set, const char *s, size_t len, tok_trust trust,
                   tok_cuts *ret);

/* ---- post-processor ---- */
typedef struct tok_post { /* one step: what stands before and after the text */
    tok_ids before, after;
} tok_post;

/* ---- tok_decode.c ---- */
typedef enum tok_dec_kind {
    TOK_DEC_JOIN, /* no decoder: tokens joined by a space */
    TOK_DEC_BYTE_LEVEL,
    TOK_DEC_METASPACE,
    TOK_DEC_BYTE_FALLBACK,
    TOK_DEC_FUSE,
    TOK_DEC_STRIP,
    TOK_DEC_REPLACE,
    TOK_DEC_BPE,
} tok_dec_kind;
typedef struct tok_dec {
    tok_dec_kind kind;
    tok_regex *re;        /* REPLACE */
    bool literal;         /* REPLACE: `pattern` is the text to replace */
    char *pattern, *text; /* REPLACE: pattern, content; BPE: suffix in text */
    size_t pattern_len, text_len;
    char ch[4]; /* STRIP's content, METASPACE's replacement */
    size_t ch_len;
    size_t start, stop; /* STRIP */
    bool keep_first;    /* METASPACE with prepend_scheme never */
} tok_dec;
void tok_dec_clear(tok_dec *d);

/* ---- the whole ---- */
typedef enum tok_model { TOK_MODEL_BPE, TOK_MODEL_UNIGRAM } tok_model;
struct tokenizer {
    tok_model model;
    tok_vocab vocab; /* the model's own */
    tok_bpe bpe;
    tok_unigram unigram;

    tok_added *added;
    size_t n_added, added_cap;
    uint32_t *added_of_id;      /* [n_ids]: index into added or TOK_NONE */
    uint32_t n_ids;             /* largest id + 1 */
    tok_trie raw_set, norm_set; /* added tokens matched before and after normalizing; read from the text's end */
    tok_vocab added_names;      /* content -> index into added */

    tok_norm *norms;
    size_t n_norms, norms_cap;
    tok_pretok *pretoks;
    size_t n_pretoks, pretoks_cap;
    tok_dec *decs;
    size_t n_decs, decs_cap;
    tok_post *posts;
    size_t n_posts, posts_cap;
    const char *kind;
};
/* At most `n` calls of tok_add_token() follow. */
bool tok_added_reserve(tokenizer *t, size_t n);
/* Adds one token as the reference's add_tokens() does (its id comes from the vocabulary, else *next_id). */
xd_status tok_add_token(tokenizer *t, const tok_added *a, uint32_t *next_id, tok_work *w, xd_err *err) XD_MUST_CHECK;
xd_status tok_added_finish(tokenizer *t, xd_err *err) XD_MUST_CHECK; /* builds the sets and added_of_id */
/* The string that decoding starts from, or NULL; *ret_added its added token or NULL. */
const char *tok_decode_text(const tokenizer *t, uint32_t id, size_t *ret_len, const tok_added **ret_added);

#endif
