/* tok_json.c - reads a tokenizer.json (huggingface/tokenizers, version "1.0") into a tokenizer.
 *
 * The file is untrusted: every type and range is checked. A part that is not implemented exactly is XD_UNSUPPORTED with its
 * name; a part that the reference would refuse is XD_BAD_MODEL. Keys that do not change ids or text are ignored
 * (trim_offsets, truncation, padding). */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/text/tok_priv.h"

enum { MAX_FILE_BYTES = 256 << 20 };

#define GPT2_PATTERN "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

static xd_status bad(xd_err *err, const char *what)
{
    return xd_fail(err, XD_BAD_MODEL, 0, "%s is missing or of the wrong type", what);
}

/* An optional boolean; false: of another type. */
static bool get_bool(const json_t *o, const char *key, bool fallback, bool *ret)
{
    const json_t *v = json_object_get(o, key);
    *ret = v && !json_is_null(v) ? json_is_true(v) : fallback;
    return !v || json_is_null(v) || json_is_boolean(v);
}

static bool get_size(const json_t *o, const char *key, size_t *ret)
{
    const json_t *v = json_object_get(o, key);
    if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > TOK_MAX_TEXT_BYTES)
        return false;
    *ret = (size_t)json_integer_value(v);
    return true;
}

static const char *get_text(const json_t *o, const char *key, size_t *ret_len)
{
    const json_t *v = json_object_get(o, key);
    *ret_len = json_is_string(v) ? json_string_length(v) : 0;
    return json_string_value(v);
}

static const char *type_of(const json_t *o)
{
    const char *s = json_string_value(json_object_get(o, "type"));
    return s ? s : "";
}

static char *copy_text(const char *s, size_t len)
{
    char *d = malloc(len + 1);
    if (d) {
        memcpy(d, s, len);
        d[len] = 0;
    }
    return d;
}

/* {"String": s} or {"Regex": s}. */
static xd_status get_pattern(const json_t *o, tok_regex **ret, bool *ret_literal, const char **ret_text,
                             size_t *ret_len, xd_err *err)
{
    const json_t *p = json_object_get(o, "pattern");
    const char *s = get_text(p, "String", ret_len);
    *ret_literal = s != NULL;
    if (!s)
        s = get_text(p, "Regex", ret_len);
    if (!s)
        return bad(err, "pattern");
    *ret_text = s;
    return *ret_literal ? tok_regex_new_literal(s, *ret_len, ret, err) : tok_regex_new(s, *ret_len, ret, err);
}

/* One character in `key`. */
static bool get_char(const json_t *o, const char *key, char ret[4], size_t *ret_len)
{
    size_t len;
    const char *s = get_text(o, key, &len);
    if (!s || !len || len > 4 || xd_utf8_seq(s, len) != (int)len)
        return false;
    memcpy(ret, s, len);
    *ret_len = len;
    return true;
}

/* ---- normalizer ---- */

static xd_status load_norm(tokenizer *t, const json_t *o, unsigned depth, xd_err *err)
{
    static const struct {
        const char *name;
        tok_norm_kind kind;
    } kinds[] = {
        {"NFC", TOK_NORM_NFC},
        {"NFD", TOK_NORM_NFD},
        {"NFKC", TOK_NORM_NFKC},
        {"NFKD", TOK_NORM_NFKD},
        {"Lowercase", TOK_NORM_LOWERCASE},
        {"Strip", TOK_NORM_STRIP},
        {"StripAccents", TOK_NORM_STRIP_ACCENTS},
        {"Replace", TOK_NORM_REPLACE},
        {"Prepend", TOK_NORM_PREPEND},
        {"Nmt", TOK_NORM_NMT},
        {"ByteLevel", TOK_NORM_BYTE_LEVEL},
        {"Precompiled", TOK_NORM_PRECOMPILED},
    };
    const char *type = type_of(o), *s;
    xd_status st = XD_OK;
    size_t len;
    if (!strcmp(type, "Sequence")) {
        const json_t *list = json_object_get(o, "normalizers");
        if (!json_is_array(list) || depth >= TOK_MAX_NESTING)
            return bad(err, "normalizer: Sequence");
        for (size_t i = 0; i < json_array_size(list) && !st; i++)
            st = load_norm(t, json_array_get(list, i), depth + 1, err);
        return st;
    }
    size_t k = 0;
    while (k < XD_ARRAY_LEN(kinds) && strcmp(kinds[k].name, type))
        k++;
    if (k == XD_ARRAY_LEN(kinds))
        return xd_fail(err, XD_UNSUPPORTED, 0, "the normalizer '%s' is not known", type);
    if (!tok_grow(&t->norms, &t->norms_cap, t->n_norms + 1, sizeof *t->norms))
        return tok_no_memory(err);
    tok_norm *n = &t->norms[t->n_norms++];
    *n = (tok_norm){.kind = kinds[k].kind};
    switch (n->kind) {
    case TOK_NORM_STRIP:
        if (!get_bool(o, "strip_left", false, &n->left) || !get_bool(o, "strip_right", false, &n->right))
            return bad(err, "normalizer: Strip");
        break;
    case TOK_NORM_REPLACE: {
        bool literal;
        const char *p;
        size_t plen;
        if ((st = get_pattern(o, &n->re, &literal, &p, &plen, err)))
            return st;
        if (!(s = get_text(o, "content", &n->text_len)))
            return bad(err, "normalizer: Replace");
        n->text = copy_text(s, n->text_len);
        break;
    }
    case TOK_NORM_PREPEND:
        if (!(s = get_text(o, "prepend", &n->text_len)))
            return bad(err, "normalizer: Prepend");
        n->text = copy_text(s, n->text_len);
        break;
    case TOK_NORM_PRECOMPILED:
        if (!(s = get_text(o, "precompiled_charsmap", &len)))
            return bad(err, "normalizer: precompiled_charsmap");
        return tok_charsmap_new(s, len, &n->map, err);
    default: return XD_OK;
    }
    return n->kind == TOK_NORM_STRIP || n->text ? XD_OK : tok_no_memory(err);
}

/* ---- pre-tokenizer ---- */

static bool get_behavior(const json_t *o, tok_behavior *ret)
{
    static const char *const names[] = {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"};
    const char *s = json_string_value(json_object_get(o, "behavior"));
    for (size_t i = 0; s && i < XD_ARRAY_LEN(names); i++)
        if (!strcmp(s, names[i])) {
            *ret = (tok_behavior)i;
            return true;
        }
    return false;
}

/* Metaspace's shared keys, of a pre-tokenizer and of a decoder. */
static bool get_metaspace(const json_t *o, char meta[4], size_t *meta_len, tok_scheme *scheme, bool *split)
{
    const json_t *p = json_object_get(o, "prepend_scheme");
    const char *s = p ? json_string_value(p) : "always";
    bool prefix;
    if (!s || !get_char(o, "replacement", meta, meta_len) || !get_bool(o, "split", true, split) ||
        !get_bool(o, "add_prefix_space", true, &prefix))
        return false;
    if (!strcmp(s, "first"))
        *scheme = TOK_FIRST;
    else if (!strcmp(s, "never"))
        *scheme = TOK_NEVER;
    else if (!strcmp(s, "always"))
        *scheme = TOK_ALWAYS;
    else
        return false;
    if (!prefix && p && *scheme != TOK_NEVER)
        return false;
    if (!prefix)
        *scheme = TOK_NEVER;
    return true;
}

static xd_status load_pretok(tokenizer *t, const json_t *o, unsigned depth, xd_err *err)
{
    const char *type = type_of(o);
    xd_status st = XD_OK;
    if (!strcmp(type, "Sequence")) {
        const json_t *list = json_object_get(o, "pretokenizers");
        if (!json_is_array(list) || depth >= TOK_MAX_NESTING)
            return bad(err, "pre_tokenizer: Sequence");
        for (size_t i = 0; i < json_array_size(list) && !st; i++)
            st = load_pretok(t, json_array_get(list, i), depth + 1, err);
        return st;
    }
    if (!tok_grow(&t->pretoks, &t->pretoks_cap, t->n_pretoks + 1, sizeof *t->pretoks))
        return tok_no_memory(err);
    tok_pretok *p = &t->pretoks[t->n_pretoks++];
    *p = (tok_pretok){0};
    if (!strcmp(type, "Split")) {
        bool literal;
        const char *text;
        size_t len;
        p->kind = TOK_PRE_SPLIT;
        if (!get_behavior(o, &p->behavior) || !get_bool(o, "invert", false, &p->invert))
            return bad(err, "pre_tokenizer: Split");
        return get_pattern(o, &p->re, &literal, &text, &len, err);
    }
    if (!strcmp(type, "CharDelimiterSplit")) {
        char c[4];
        size_t len;
        p->kind = TOK_PRE_SPLIT;
        p->behavior = TOK_REMOVED;
        return get_char(o, "delimiter", c, &len) ? tok_regex_new_literal(c, len, &p->re, err)
                                                 : bad(err, "pre_tokenizer: CharDelimiterSplit");
    }
    if (!strcmp(type, "BertPreTokenizer")) { /* without spaces, punctuation apart */
        *p = (tok_pretok){.kind = TOK_PRE_WHITESPACE_SPLIT, .behavior = TOK_REMOVED};
        if (!tok_grow(&t->pretoks, &t->pretoks_cap, t->n_pretoks + 1, sizeof *t->pretoks))
            return tok_no_memory(err);
        t->pretoks[t->n_pretoks++] = (tok_pretok){.kind = TOK_PRE_PUNCTUATION, .behavior = TOK_ISOLATED};
        return XD_OK;
    }
    if (!strcmp(type, "ByteLevel")) {
        bool regex;
        p->kind = TOK_PRE_BYTE_LEVEL;
        p->behavior = TOK_ISOLATED;
        if (!get_bool(o, "add_prefix_space", true, &p->add_prefix_space) || !get_bool(o, "use_regex", true, &regex))
            return bad(err, "pre_tokenizer: ByteLevel");
        return regex ? tok_regex_new(GPT2_PATTERN, strlen(GPT2_PATTERN), &p->re, err) : XD_OK;
    }
    if (!strcmp(type, "Digits")) {
        p->kind = TOK_PRE_DIGITS;
        if (!get_bool(o, "individual_digits", false, &p->individual))
            return bad(err, "pre_tokenizer: Digits");
        p->behavior = p->individual ? TOK_ISOLATED : TOK_CONTIGUOUS;
        return XD_OK;
    }
    if (!strcmp(type, "Punctuation")) {
        p->kind = TOK_PRE_PUNCTUATION;
        p->behavior = TOK_ISOLATED;
        return !json_object_get(o, "behavior") || get_behavior(o, &p->behavior)
                   ? XD_OK
                   : bad(err, "pre_tokenizer: Punctuation");
    }
    if (!strcmp(type, "Metaspace")) {
        p->kind = TOK_PRE_METASPACE;
        return get_metaspace(o, p->meta, &p->meta_len, &p->scheme, &p->split) ? XD_OK
                                                                              : bad(err, "pre_tokenizer: Metaspace");
    }
    p->behavior = TOK_REMOVED;
    p->kind = TOK_PRE_WHITESPACE;
    if (!strcmp(type, "Whitespace")) {
        p->invert = true;
        return XD_OK;
    }
    p->kind = TOK_PRE_WHITESPACE_SPLIT;
    if (!strcmp(type, "WhitespaceSplit"))
        return XD_OK;
    return xd_fail(err, XD_UNSUPPORTED, 0, "the pre-tokenizer '%s' is not known", type);
}

/* ---- decoder ---- */

static xd_status load_dec(tokenizer *t, const json_t *o, unsigned depth, xd_err *err)
{
    const char *type = type_of(o), *s;
    xd_status st = XD_OK;
    if (!strcmp(type, "Sequence")) {
        const json_t *list = json_object_get(o, "decoders");
        if (!json_is_array(list) || depth >= TOK_MAX_NESTING || json_array_size(list) > 64)
            return bad(err, "decoder: Sequence");
        for (size_t i = 0; i < json_array_size(list) && !st; i++)
            st = load_dec(t, json_array_get(list, i), depth + 1, err);
        return st;
    }
    if (t->n_decs >= 64 || !tok_grow(&t->decs, &t->decs_cap, t->n_decs + 1, sizeof *t->decs))
        return t->n_decs >= 64 ? bad(err, "decoder: a list so long") : tok_no_memory(err);
    tok_dec *d = &t->decs[t->n_decs++];
    *d = (tok_dec){0};
    if (!strcmp(type, "ByteLevel")) {
        d->kind = TOK_DEC_BYTE_LEVEL;
    } else if (!strcmp(type, "ByteFallback")) {
        d->kind = TOK_DEC_BYTE_FALLBACK;
    } else if (!strcmp(type, "Fuse")) {
        d->kind = TOK_DEC_FUSE;
    } else if (!strcmp(type, "Metaspace")) {
        tok_scheme scheme;
        bool split;
        d->kind = TOK_DEC_METASPACE;
        if (!get_metaspace(o, d->ch, &d->ch_len, &scheme, &split))
            return bad(err, "decoder: Metaspace");
        d->keep_first = scheme == TOK_NEVER;
    } else if (!strcmp(type, "Strip")) {
        d->kind = TOK_DEC_STRIP;
        if (!get_char(o, "content", d->ch, &d->ch_len) || !get_size(o, "start", &d->start) ||
            !get_size(o, "stop", &d->stop))
            return bad(err, "decoder: Strip");
    } else if (!strcmp(type, "Replace")) {
        d->kind = TOK_DEC_REPLACE;
        if ((st = get_pattern(o, &d->re, &d->literal, &s, &d->pattern_len, err)))
            return st;
        d->pattern = copy_text(s, d->pattern_len);
        if (!(s = get_text(o, "content", &d->text_len)))
            return bad(err, "decoder: Replace");
        d->text = copy_text(s, d->text_len);
        d->literal = d->literal && d->pattern_len <= 64; /* a long one is searched at the end, not at each token */
        return d->pattern && d->text ? XD_OK : tok_no_memory(err);
    } else if (!strcmp(type, "BPEDecoder")) {
        d->kind = TOK_DEC_BPE;
        if (!(s = get_text(o, "suffix", &d->text_len)))
            return bad(err, "decoder: BPEDecoder");
        d->text = copy_text(s, d->text_len);
        return d->text ? XD_OK : tok_no_memory(err);
    } else {
        return xd_fail(err, XD_UNSUPPORTED, 0, "the decoder '%s' is not known", type);
    }
    return XD_OK;
}

/* ---- post-processor ---- */

static xd_status push_id(tok_ids *ids, const json_t *v, xd_err *err)
{
    if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) >= TOK_MAX_ID)
        return bad(err, "post_processor: a token id");
    return tok_ids_push(ids, (uint32_t)json_integer_value(v)) ? XD_OK : tok_no_memory(err);
}

static xd_status load_template(tok_post *p, const json_t *o, xd_err *err)
{
    const json_t *single = json_object_get(o, "single"), *specials = json_object_get(o, "special_tokens");
    bool seen = false;
    if (!json_is_array(single))
        return bad(err, "post_processor: single");
    for (size_t i = 0; i < json_array_size(single); i++) {
        const json_t *piece = json_array_get(single, i), *seq = json_object_get(piece, "Sequence");
        if (seq) {
            const char *id = json_string_value(json_object_get(seq, "id"));
            if (!id || strcmp(id, "A") || seen)
                return xd_fail(err, XD_UNSUPPORTED, 0,
                               "post_processor: its template has the text ($A) more than once, or another one");
            seen = true;
            continue;
        }
        const char *id = json_string_value(json_object_get(json_object_get(piece, "SpecialToken"), "id"));
        const json_t *ids = id ? json_object_get(json_object_get(specials, id), "ids") : NULL;
        if (!json_is_array(ids))
            return bad(err, "post_processor: a special token");
        for (size_t k = 0; k < json_array_size(ids); k++) {
            xd_status st = push_id(seen ? &p->after : &p->before, json_array_get(ids, k), err);
            if (st)
                return st;
        }
    }
    return seen ? XD_OK : xd_fail(err, XD_UNSUPPORTED, 0, "post_processor: its template has no text ($A)");
}

static xd_status load_post(tokenizer *t, const json_t *o, unsigned depth, xd_err *err)
{
    const char *type = type_of(o);
    xd_status st = XD_OK;
    if (!strcmp(type, "Sequence")) {
        const json_t *list = json_object_get(o, "processors");
        if (!json_is_array(list) || depth >= TOK_MAX_NESTING)
            return bad(err, "post_processor: Sequence");
        for (size_t i = 0; i < json_array_size(list) && !st; i++)
            st = load_post(t, json_array_get(list, i), depth + 1, err);
        return st;
    }
    if (!strcmp(type, "ByteLevel")) /* only moves offsets */
        return XD_OK;
    bool is_template = !strcmp(type, "TemplateProcessing");
    if (!is_template && strcmp(type, "RobertaProcessing") && strcmp(type, "BertProcessing"))
        return xd_fail(err, XD_UNSUPPORTED, 0, "the post-processor '%s' is not known", type);
    if (t->n_posts)
        return xd_fail(err, XD_UNSUPPORTED, 0, "more than one post-processor adds tokens");
    if (!tok_grow(&t->posts, &t->posts_cap, t->n_posts + 1, sizeof *t->posts))
        return tok_no_memory(err);
    tok_post *p = &t->posts[t->n_posts++];
    *p = (tok_post){0};
    if (is_template)
        return load_template(p, o, err);
    st = push_id(&p->before, json_array_get(json_object_get(o, "cls"), 1), err);
    return st ? st : push_id(&p->after, json_array_get(json_object_get(o, "sep"), 1), err);
}

/* ---- models ---- */

static xd_status load_vocab(tokenizer *t, const json_t *o, xd_err *err)
{
    const char *key;
    json_t *v;
    if (!json_is_object(o))
        return bad(err, "model: vocab");
    if (!tok_vocab_reserve(&t->vocab, json_object_size(o)))
        return tok_no_memory(err);
    json_object_foreach ((json_t *)o, key, v) {
        if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) >= TOK_MAX_ID)
            return xd_fail(err, XD_BAD_MODEL, 0, "model: vocab: the id of '%.60s' is not in 0..%d", key,
                           TOK_MAX_ID - 1);
        if (!tok_vocab_put(&t->vocab, key, strlen(key), (uint32_t)json_integer_value(v)))
            return tok_no_memory(err);
    }
    return XD_OK;
}

static xd_status put_merge(tokenizer *t, const char *a, size_t a_len, const char *b, size_t b_len, uint32_t rank,
                           xd_buf *joined, xd_err *err)
{
    size_t skip = t->bpe.prefix_len;
    uint32_t left = tok_vocab_get(&t->vocab, a, a_len), right = tok_vocab_get(&t->vocab, b, b_len), id = TOK_NONE;
    xd_buf_clear(joined);
    if (skip <= b_len) {
        xd_buf_append(joined, a, a_len);
        if (!xd_buf_append(joined, b + skip, b_len - skip))
            return tok_no_memory(err);
        id = tok_vocab_get(&t->vocab, joined->data, joined->len);
    }
    if (left == TOK_NONE || right == TOK_NONE || id == TOK_NONE)
        return xd_fail(err, XD_BAD_MODEL, 0, "model: merge %u ('%.40s' '%.40s') is not of the vocabulary", rank, a, b);
    tok_bpe_put(&t->bpe, left, right, rank, id);
    return XD_OK;
}

static xd_status load_merges(tokenizer *t, const json_t *list, xd_err *err)
{
    if (!json_is_array(list))
        return bad(err, "model: merges");
    size_t n = json_array_size(list);
    xd_buf joined = {0};
    xd_status st = XD_OK;
    uint32_t rank = 0;
    if (!tok_bpe_reserve(&t->bpe, n))
        return tok_no_memory(err);
    for (size_t i = 0; i < n && !st; i++) {
        const json_t *m = json_array_get(list, i);
        if (json_is_string(m)) {
            const char *s = json_string_value(m);
            size_t len = json_string_length(m);
            if (len >= 8 && !memcmp(s, "#version", 8))
                continue;
            const char *sp = memchr(s, ' ', len);
            size_t a = sp ? (size_t)(sp - s) : 0;
            if (!sp || memchr(sp + 1, ' ', len - a - 1))
                st = xd_fail(err, XD_BAD_MODEL, 0, "model: merge %zu is not two tokens", i);
            else
                st = put_merge(t, s, a, sp + 1, len - a - 1, rank++, &joined, err);
        } else {
            const json_t *a = json_array_get(m, 0), *b = json_array_get(m, 1);
            if (json_array_size(m) != 2 || !json_is_string(a) || !json_is_string(b))
                st = xd_fail(err, XD_BAD_MODEL, 0, "model: merge %zu is not two tokens", i);
            else
                st = put_merge(t, json_string_value(a), json_string_length(a), json_string_value(b),
                               json_string_length(b), rank++, &joined, err);
        }
    }
    xd_buf_free(&joined);
    return st;
}

static xd_status load_bpe(tokenizer *t, const json_t *m, xd_err *err)
{
    tok_bpe *b = &t->bpe;
    const char *s;
    size_t len;
    const json_t *dropout = json_object_get(m, "dropout");
    if (dropout && !json_is_null(dropout) && json_number_value(dropout) != 0)
        return xd_fail(err, XD_UNSUPPORTED, 0, "BPE dropout, which makes tokens random, is not possible");
    if (!get_bool(m, "fuse_unk", false, &b->fuse_unk) || !get_bool(m, "byte_fallback", false, &b->byte_fallback) ||
        !get_bool(m, "ignore_merges", false, &b->ignore_merges))
        return bad(err, "model: an option");
    if ((s = get_text(m, "continuing_subword_prefix", &len)) && len) {
        b->prefix = copy_text(s, b->prefix_len = len);
        if (!b->prefix)
            return tok_no_memory(err);
    }
    if ((s = get_text(m, "end_of_word_suffix", &len)) && len) {
        b->suffix = copy_text(s, b->suffix_len = len);
        if (!b->suffix)
            return tok_no_memory(err);
    }
    xd_status st = load_vocab(t, json_object_get(m, "vocab"), err);
    if (!st)
        st = load_merges(t, json_object_get(m, "merges"), err);
    if (st)
        return st;
    if ((s = get_text(m, "unk_token", &len))) {
        b->has_unk = true;
        b->unk_id = tok_vocab_get(&t->vocab, s, len);
    }
    tok_bpe_finish(b, &t->vocab);
    t->model = TOK_MODEL_BPE;
    return XD_OK;
}

static xd_status load_unigram(tokenizer *t, const json_t *m, xd_err *err)
{
    tok_unigram *u = &t->unigram;
    const json_t *list = json_object_get(m, "vocab"), *unk = json_object_get(m, "unk_id");
    size_t n = json_array_size(list);
    if (!json_is_array(list) || n >= TOK_MAX_ID || !get_bool(m, "byte_fallback", false, &u->byte_fallback))
        return bad(err, "model: vocab");
    u->unk_id = TOK_NONE;
    if (unk && !json_is_null(unk)) {
        if (!json_is_integer(unk) || json_integer_value(unk) < 0 || (size_t)json_integer_value(unk) >= n)
            return bad(err, "model: unk_id");
        u->unk_id = (uint32_t)json_integer_value(unk);
    }
    u->score = malloc((n + 1) * sizeof *u->score);
    if (!u->score || !tok_vocab_reserve(&t->vocab, n))
        return tok_no_memory(err);
    u->min_score = INFINITY;
    for (size_t i = 0; i < n; i++) {
        const json_t *e = json_array_get(list, i), *s = json_array_get(e, 0), *score = json_array_get(e, 1);
        if (!json_is_string(s) || !json_is_number(score))
            return bad(err, "model: vocab: an entry");
        if (json_string_length(s) > TOK_MAX_MATCH_BYTES)
            return xd_fail(err, XD_UNSUPPORTED, 0,
                           "model: vocab: a Unigram token of %zu bytes; at most %d are possible", json_string_length(s),
                           TOK_MAX_MATCH_BYTES);
        u->score[i] = json_number_value(score);
        u->min_score = XD_MIN(u->min_score, u->score[i]);
        if (!tok_vocab_put(&t->vocab, json_string_value(s), json_string_length(s), (uint32_t)i))
            return tok_no_memory(err);
    }
    u->n = (uint32_t)n;
    for (uint32_t i = 0; i < u->n; i++)
        if (t->vocab.len[i] && !tok_trie_add(&u->pieces, t->vocab.text.data + t->vocab.off[i], t->vocab.len[i], i))
            return tok_no_memory(err);
    if (!tok_trie_build(&u->pieces, false))
        return tok_no_memory(err);
    tok_byte_tokens(&t->vocab, u->byte_id);
    t->model = TOK_MODEL_UNIGRAM;
    t->kind = "Unigram";
    return XD_OK;
}

static xd_status load_model(tokenizer *t, const json_t *m, xd_err *err)
{
    const char *type = type_of(m);
    if (!json_is_object(m))
        return bad(err, "model");
    if (!strcmp(type, "BPE") || (!*type && json_is_array(json_object_get(m, "merges"))))
        return load_bpe(t, m, err);
    if (!strcmp(type, "Unigram"))
        return load_unigram(t, m, err);
    return xd_fail(err, XD_UNSUPPORTED, 0, "the tokenizer model '%s' (causal language models use BPE or Unigram)",
                   type);
}

static xd_status load_added(tokenizer *t, const json_t *list, xd_err *err)
{
    tok_work w = {.left = tok_work_for(0)};
    uint32_t next_id = t->vocab.n_entries;
    xd_status st = XD_OK;
    if (list && !json_is_null(list) && !json_is_array(list))
        return bad(err, "added_tokens");
    if (!tok_added_reserve(t, json_array_size(list)))
        return tok_no_memory(err);
    for (size_t i = 0; i < json_array_size(list) && !st; i++) {
        const json_t *o = json_array_get(list, i);
        tok_added a = {0};
        a.content = (char *)get_text(o, "content", &a.content_len);
        if (!a.content || !get_bool(o, "single_word", false, &a.single_word) ||
            !get_bool(o, "lstrip", false, &a.lstrip) || !get_bool(o, "rstrip", false, &a.rstrip) ||
            !get_bool(o, "special", false, &a.special) || !get_bool(o, "normalized", !a.special, &a.normalized))
            st = bad(err, "added_tokens: an entry");
        else
            st = tok_add_token(t, &a, &next_id, &w, err);
    }
    tok_work_clear(&w);
    return st ? st : tok_added_finish(t, err);
}

static xd_status load(tokenizer *t, const json_t *root, xd_err *err)
{
    const char *version = json_string_value(json_object_get(root, "version"));
    const json_t *o;
    xd_status st;
    if (version && strcmp(version, "1.0"))
        return xd_fail(err, XD_UNSUPPORTED, 0, "version '%.20s' is not known, only 1.0", version);
    if ((st = load_model(t, json_object_get(root, "model"), err)))
        return st;
    if ((o = json_object_get(root, "normalizer")) && !json_is_null(o) && (st = load_norm(t, o, 0, err)))
        return st;
    if ((o = json_object_get(root, "pre_tokenizer")) && !json_is_null(o) && (st = load_pretok(t, o, 0, err)))
        return st;
    if ((o = json_object_get(root, "post_processor")) && !json_is_null(o) && (st = load_post(t, o, 0, err)))
        return st;
    if ((o = json_object_get(root, "decoder")) && !json_is_null(o)) {
        if ((st = load_dec(t, o, 0, err)))
            return st;
    } else {
        if (!tok_grow(&t->decs, &t->decs_cap, 1, sizeof *t->decs))
            return tok_no_memory(err);
        t->decs[t->n_decs++] = (tok_dec){.kind = TOK_DEC_JOIN};
    }
    if (t->model == TOK_MODEL_BPE) {
        t->kind = "SentencePiece BPE";
        for (size_t i = 0; i < t->n_pretoks; i++)
            if (t->pretoks[i].kind == TOK_PRE_BYTE_LEVEL)
                t->kind = "byte-level BPE";
        for (size_t i = 0; i < t->n_norms; i++)
            if (t->norms[i].kind == TOK_NORM_BYTE_LEVEL)
                t->kind = "byte-level BPE";
    }
    return load_added(t, json_object_get(root, "added_tokens"), err);
}

xd_status tok_from_json(const char *json, size_t len, tokenizer **ret, xd_err *err)
{
    json_error_t je;
    json_t *root = json_loadb(json, len, JSON_ALLOW_NUL, &je);
    if (!root)
        return xd_fail(err, XD_BAD_MODEL, 0, "tokenizer.json, line %d: %s", je.line, je.text);
    XD_CLEANUP(tok_freep) tokenizer *t = calloc(1, sizeof *t);
    xd_status st = t ? load(t, root, err) : tok_no_memory(err);
    json_decref(root);
    if (st) {
        xd_wrap(err, "tokenizer.json");
        return st;
    }
    *ret = XD_TAKE(t);
    return XD_OK;
}

static xd_status read_file(const char *dir, const char *name, xd_buf *text, xd_err *err)
{
    XD_CLEANUP(xd_buf_free) xd_buf path = {0};
    if (!xd_buf_printf(&path, "%s/%s", dir, name))
        return tok_no_memory(err);
    XD_CLEANUP(xd_closep) int fd = open(path.data, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO would wait */
    struct stat sb;
    if (fd < 0)
        return xd_fail(err, errno == ENOENT || errno == ENOTDIR ? XD_NOT_FOUND : XD_IO, errno, "open '%s'", path.data);
    if (fstat(fd, &sb) < 0)
        return xd_fail(err, XD_IO, errno, "stat '%s'", path.data);
    if (!S_ISREG(sb.st_mode) || sb.st_size > MAX_FILE_BYTES)
        return xd_fail(err, XD_BAD_MODEL, 0, "'%s' is not a file of at most %d bytes", path.data, MAX_FILE_BYTES);
    if (!xd_buf_reserve(text, (size_t)sb.st_size + 1))
        return tok_no_memory(err);
    while (text->len < (size_t)sb.st_size) {
        ssize_t n = read(fd, text->data + text->len, (size_t)sb.st_size - text->len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return xd_fail(err, XD_IO, n < 0 ? errno : 0, "read '%s'", path.data);
        text->len += (size_t)n;
    }
    if (xd_is_lfs_pointer(text->data, text->len))
        return xd_fail(err, XD_BAD_MODEL, 0,
                       "'%s' is a Git LFS pointer, not the file itself: run 'git lfs pull' in its folder", path.data);
    return XD_OK;
}

xd_status tok_from_dir(const char *dir, tokenizer **ret, xd_err *err)
{
    XD_CLEANUP(xd_buf_free) xd_buf text = {0};
    XD_CLEANUP(xd_buf_free) xd_buf config = {0};
    xd_status st = read_file(dir, "tokenizer.json", &text, err);
    if (!st)
        return tok_from_json(text.data, text.len, ret, err);
    xd_err other = {0};
    if (st != XD_NOT_FOUND || read_file(dir, "tiktoken.model", &text, &other) == XD_NOT_FOUND)
        return st; /* the error names tokenizer.json */
    if (other.status) {
        if (err)
            *err = other;
        return other.status;
    }
    if ((st = read_file(dir, "tokenizer_config.json", &config, err)))
        return st == XD_NOT_FOUND
                   ? xd_fail(err, XD_BAD_MODEL, 0, "'%s' has a tiktoken.model, but no tokenizer_config.json", dir)
                   : st;
    return tok_from_tiktoken(text.data, text.len, config.data, config.len, ret, err);
}
