/* fuzz_grammar.c - a hostile schema, or behind a letter rules in GBNF (G), a regular expression (R), or choices, one a line (C): the first
 * byte seeds the choice of tokens. What compiles is followed at random with a small vocabulary: there must be a way on until the end, masks
 * must say what fits, and what may end must be JSON if it was a schema. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/grammar.h"
#include "engine/text/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_TOKENS = 120 };

static tokenizer *tok;
static grammar_vocab *words;

/* GPT-2's alphabet: bytes that print stand for themselves, the others for characters from 256 on, in order. */
static void add_token(json_t *vocab, const char *bytes, size_t len)
{
    char name[64];
    size_t n = 0;
    for (size_t i = 0; i < len; i++) {
        unsigned b = (unsigned char)bytes[i], cp = b, others = 0;
        for (unsigned k = 0; k <= b; k++) {
            bool prints = (k >= 0x21 && k <= 0x7E) || (k >= 0xA1 && k <= 0xAC) || k >= 0xAE;
            others += !prints;
            if (k == b && !prints)
                cp = 255 + others;
        }
        if (cp < 0x80) {
            name[n++] = (char)cp;
        } else {
            name[n++] = (char)(0xC0 | cp >> 6);
            name[n++] = (char)(0x80 | (cp & 0x3F));
        }
    }
    name[n] = 0;
    json_object_set_new(vocab, name, json_integer((json_int_t)json_object_size(vocab)));
}

static void open_words(void)
{
    static const char *const more[] = {"{\"", "\":",   "\": ", "\",",  "\", \"", "\"}",      "\"]",      "}}",
                                       "]}",  "},",    "[{",   " \"",  "\n  ",   "ab",       "abc",      "the ",
                                       "12",  "100",   "0.5",  "true", "null",   "\xC3\xA9", "\xE2\x82", "\xAC\"",
                                       "\\n", "\\u00", "-1",   "e+",   "null}",  "a\",\"b"};
    json_t *vocab = json_object();
    for (int b = 0; b < 256; b++)
        add_token(vocab, (const char[]){(char)b}, 1);
    for (size_t i = 0; i < XD_ARRAY_LEN(more); i++)
        add_token(vocab, more[i], strlen(more[i]));
    json_t *j = json_pack("{s:s, s:[], s:n, s:{s:s, s:b, s:b, s:b}, s:n, s:{s:s, s:b, s:b, s:b}, s:{s:s, s:o, s:[]}}",
                          "version", "1.0", "added_tokens", "normalizer", "pre_tokenizer", "type", "ByteLevel",
                          "add_prefix_space", 0, "trim_offsets", 1, "use_regex", 1, "post_processor", "decoder", "type",
                          "ByteLevel", "add_prefix_space", 0, "trim_offsets", 1, "use_regex", 1, "model", "type", "BPE",
                          "vocab", vocab, "merges");
    char *text = json_dumps(j, 0);
    xd_err err;
    if (!text || tok_from_json(text, strlen(text), &tok, &err) ||
        grammar_vocab_new(tok, tok_vocab_size(tok), &words, &err))
        abort();
    free(text);
    json_decref(j);
}

static void follow(grammar *g, uint64_t seed, bool is_json)
{
    const uint32_t n_ids = tok_vocab_size(tok);
    XD_CLEANUP(xd_buf_free) xd_buf text = {0};
    grammar_run *r = grammar_run_new(g, words);
    for (int i = 0; i < MAX_TOKENS && !grammar_run_must_end(r); i++) {
        uint32_t fits[1024], n = 0;
        const uint64_t *mask = grammar_run_mask(r);
        xd_err err;
        for (uint32_t id = 0; id < n_ids; id++)
            if (mask[id / 64] >> id % 64 & 1)
                fits[n++] = id;
        if (!n)
            abort();
        uint64_t draw = xd_mix64(seed += XD_MIX64_STEP);
        uint32_t id = fits[draw % n], other = (uint32_t)(draw >> 32) % n_ids;
        if (i > 30 && n > 1) { /* to the end: what closes something first */
            for (uint32_t k = 0; k < n; k++)
                if (strchr("\"]}", (int)fits[k]) && fits[k])
                    id = fits[k];
        }
        bool allowed = mask[other / 64] >> other % 64 & 1;
        if (!allowed && grammar_run_push(r, other, &err) == XD_OK)
            abort();
        if (grammar_run_push(r, id, &err))
            abort();
        tok_token_bytes(tok, id, &text);
        json_t *v =
            is_json && grammar_run_may_end(r) ? json_loadb(text.data, text.len, JSON_DECODE_ANY, NULL) : json_null();
        if (!v)
            abort();
        json_decref(v);
    }
    grammar_run_free(r);
}

static xd_status compile(char kind, const json_t *text, grammar **ret)
{
    const char *s = json_string_value(text);
    size_t len = json_string_length(text), n;
    if (kind != 'C')
        return kind == 'G' ? grammar_new_gbnf(s, len, ret, NULL) : grammar_new_regex(s, len, ret, NULL);
    json_t *lines = json_array();
    for (const char *end = s + len; s <= end; s += n + 1) {
        const char *line = memchr(s, '\n', (size_t)(end - s));
        n = (size_t)((line ? line : end) - s);
        json_array_append_new(lines, json_stringn(s, n));
    }
    xd_status st = grammar_new_choice(lines, ret, NULL);
    json_decref(lines);
    return st;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!tok)
        open_words();
    if (!size)
        return 0;
    const char kind = size > 1 ? (char)data[1] : 0;
    if (kind == 'G' || kind == 'R' || kind == 'C') {
        json_t *text = json_stringn((const char *)data + 2, size - 2); /* NULL: no UTF-8 */
        grammar *made = NULL;
        if (text && !compile(kind, text, &made))
            follow(made, data[0], false);
        grammar_unref(made);
        json_decref(text);
        return 0;
    }
    json_t *schema = json_loadb((const char *)data + 1, size - 1, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, NULL);
    grammar *g = NULL;
    xd_err err;
    if (schema && !grammar_new(schema, &g, &err))
        for (uint64_t i = 0; i < 2; i++)
            follow(g, data[0] + i * 256, true);
    grammar_unref(g);
    json_decref(schema);
    return 0;
}
