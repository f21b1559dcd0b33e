/* tokenizer.h - text <-> token ids, exactly as the model's own tokenizer file says.
 *
 * A `tokenizer` is immutable once loaded: any thread may use it without a lock. Sources: Hugging Face `tokenizer.json`
 * (github.com/huggingface/tokenizers, version "1.0"), GGUF metadata (`tokenizer.ggml.*`), and Kimi's `tiktoken.model`. */
#ifndef ENGINE_TOKENIZER_H
#define ENGINE_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "config/error.h"
#include "config/util.h"

typedef struct tokenizer tokenizer;

/* Parses a tokenizer.json of `len` bytes (borrowed, not needed afterwards). Anything that could not be tokenized exactly is
 * refused with XD_UNSUPPORTED naming the part; malformed input is XD_BAD_MODEL. */
xd_status tok_from_json(const char *json, size_t len, tokenizer **ret, xd_err *err) XD_MUST_CHECK;
/* Parses a tiktoken.model and the tokenizer_config.json beside it (both borrowed): Kimi's. Other models' are XD_UNSUPPORTED. */
xd_status tok_from_tiktoken(const char *ranks, size_t len, const char *config, size_t config_len, tokenizer **ret,
                            xd_err *err) XD_MUST_CHECK;
/* Reads DIR/tokenizer.json, or else DIR/tiktoken.model. XD_NOT_FOUND when neither file exists. */
xd_status tok_from_dir(const char *dir, tokenizer **ret, xd_err *err) XD_MUST_CHECK;

/* A vocabulary as GGUF stores it. All arrays are borrowed for the call. */
typedef struct tok_gguf {
    const char *model;         /* "gpt2" (byte-level BPE) or "llama" (SentencePiece BPE with scores) */
    const char *pre;           /* tokenizer.ggml.pre, or NULL; an unknown value is XD_UNSUPPORTED */
    const char *const *tokens; /* [n_tokens] NUL-terminated UTF-8 */
    const float *scores;       /* [n_tokens] or NULL */
    const int32_t *types;      /* [n_tokens] 1 normal 2 unknown 3 control 4 user-defined 5 unused 6 byte, or NULL */
    uint32_t n_tokens;
    const char *const *merges; /* [n_merges] "left right" */
    uint32_t n_merges;
    int64_t bos_id, eos_id, unk_id; /* -1 when absent */
    bool add_bos, add_eos, add_space_prefix;
    bool
        by_rank; /* not of a file: "gpt2" without merges, where two tokens that together are one are merged, by scores */
} tok_gguf;
/* Whether a BOS is put in front when the file has no tokenizer.ggml.add_bos_token: so llama.cpp reads such files. */
bool tok_gguf_adds_bos(const char *model, const char *pre);
/* *ret is owned and borrows nothing. XD_UNSUPPORTED names what could not be tokenized exactly, XD_BAD_MODEL what is malformed. */
xd_status tok_from_gguf(const tok_gguf *g, tokenizer **ret, xd_err *err) XD_MUST_CHECK;

void tok_free(tokenizer *t); /* NULL is fine */
XD_DEFINE_CLEANUP(tokenizer, tok_free)

/* Growable list of ids. {0} is empty; free(ids->data) or tok_ids_free(). */
typedef struct tok_ids {
    uint32_t *data;
    size_t len, cap;
    size_t max; /* tok_encode() gives up as soon as there are more: XD_TOO_LARGE, code TOK_TOO_MANY; 0: no limit */
} tok_ids;
#define TOK_TOO_MANY   "too_many_tokens"
#define TOK_TOO_COSTLY "text_too_costly"      /* XD_UNSUPPORTED: the tokenizer takes too long on this text */
bool tok_ids_push(tok_ids *ids, uint32_t id); /* false: out of memory */
void tok_ids_free(tok_ids *ids);

enum {
    TOK_ADD_SPECIAL = 1, /* run the post-processor (BOS/EOS of the file) */
    TOK_PARSE_SPECIAL =
        2, /* special tokens (added tokens with special=true) written in the text become their ids; without
                              it they are encoded as plain text. Added tokens with special=false are always recognised. */
};

/* Appends the ids of text[0..len); on failure ret is as it was. Ill-formed UTF-8 is treated as its U+FFFD replacement. Fails with
 * XD_NOMEM; XD_TOO_LARGE when there are more ids than ret->max, the text has more than 1 GiB, or the file's steps make it 32 times (a large one: 3 times and 8 MiB)
 * longer; XD_UNSUPPORTED when the file's own pattern or steps would take too long on this text, or when the text has a character that
 * neither the vocabulary nor its unknown token covers. */
xd_status tok_encode(const tokenizer *t, const char *text, size_t len, unsigned flags, tok_ids *ret,
                     xd_err *err) XD_MUST_CHECK;

/* The encoding of a rendered chat template: like tok_encode() but special tokens are recognised only at bytes whose entry in
 * `trusted` is non-zero for the token's whole length (bytes that the template wrote, not the user). trusted NULL: everywhere. */
xd_status tok_encode_trusted(const tokenizer *t, const char *text, const uint8_t *trusted, size_t len, unsigned flags,
                             tok_ids *ret, xd_err *err) XD_MUST_CHECK;

/* Appends the text of ids as the reference's decode() gives it. Ids outside the vocabulary decode to nothing. */
xd_status tok_decode(const tokenizer *t, const uint32_t *ids, size_t n, bool skip_special, xd_buf *ret,
                     xd_err *err) XD_MUST_CHECK;

/* Streaming decode: one state a sequence, used by one thread. Each push appends the text that became certain; no piece ever
 * holds part of a character; all pieces plus the flush give tok_decode() of all ids. Cost per push is bounded. */
typedef struct tok_stream tok_stream;
tok_stream *tok_stream_new(const tokenizer *t, bool skip_special); /* borrows t; NULL: out of memory */
void tok_stream_free(tok_stream *s);
XD_DEFINE_CLEANUP(tok_stream, tok_stream_free)
/* Primes the stream with the end of the prompt, without emitting it, so that the first generated piece is decoded in context. */
xd_status tok_stream_prime(tok_stream *s, const uint32_t *ids, size_t n, xd_err *err) XD_MUST_CHECK;
/* Special tokens that are shown all the same; borrowed until the stream is freed. */
void tok_stream_show(tok_stream *s, const uint32_t *ids, size_t n);
/* Fails as tok_decode() does. */
xd_status tok_stream_push(tok_stream *s, uint32_t id, xd_buf *ret, xd_err *err) XD_MUST_CHECK;
xd_status tok_stream_flush(tok_stream *s, xd_buf *ret, xd_err *err) XD_MUST_CHECK; /* incomplete bytes become U+FFFD */

uint32_t tok_vocab_size(const tokenizer *t); /* largest id + 1, added tokens included */
/* The raw vocabulary string of an id (byte-level alphabet, "<0x0A>", ...), NULL if there is none. Borrowed. */
const char *tok_token_text(const tokenizer *t, uint32_t id);
bool tok_token_is_special(const tokenizer *t, uint32_t id); /* an added token with special=true */
int64_t tok_token_id(const tokenizer *t,
                     const char *token); /* vocabulary or added token by its exact content; -1: none */
/* The bytes an id stands for on its own ("bytes" of logprobs); may be part of a character. Appends to ret. */
bool tok_token_bytes(const tokenizer *t, uint32_t id, xd_buf *ret);
const char *tok_kind(const tokenizer *t); /* "byte-level BPE", "SentencePiece BPE", "Unigram": for the log */

#endif
