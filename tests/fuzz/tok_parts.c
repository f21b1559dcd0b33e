/* tok_parts.c - see tok_parts.h. */
#include "tests/fuzz/tok_parts.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_IDS = 512 };

typedef struct part {
    const char *s, *end; /* what is left of it */
} part;

/* The leaks of a run show by themselves; a long quarantine and deep stacks only cost time. */
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "quarantine_size_mb=2:thread_local_quarantine_size_kb=64:malloc_context_size=2:max_malloc_fill_size=256";
}

static unsigned take_byte(part *p)
{
    return p->s < p->end ? (unsigned char)*p->s++ : 0;
}

/* The next field as a JSON string. */
static void put_field(xd_buf *out, part *p)
{
    const char *end = memchr(p->s, PART_FIELD, (size_t)(p->end - p->s));
    xd_buf clean = {0};
    if (!end)
        end = p->end;
    xd_utf8_sanitize(&clean, p->s, (size_t)(end - p->s));
    xd_buf_putc(out, '"');
    for (size_t i = 0, n; i < clean.len; i += n) {
        unsigned char c = (unsigned char)clean.data[i];
        if (c < 0x20 || c == '"' || c == '\\') {
            xd_buf_printf(out, "\\u%04x", c);
            n = 1;
        } else {
            for (n = 1; i + n < clean.len && (c = (unsigned char)clean.data[i + n]) >= 0x20 && c != '"' && c != '\\';)
                n++;
            xd_buf_append(out, clean.data + i, n);
        }
    }
    xd_buf_putc(out, '"');
    xd_buf_free(&clean);
    p->s = end + (end < p->end);
}

static void put_pattern(xd_buf *out, part *p, bool regex)
{
    xd_buf_printf(out, ", \"pattern\": {\"%s\": ", regex ? "Regex" : "String");
    put_field(out, p);
    xd_buf_puts(out, "}");
}

static void put_content(xd_buf *out, part *p, const char *key)
{
    xd_buf_printf(out, ", \"%s\": ", key);
    put_field(out, p);
}

static const char *flag(unsigned bits, unsigned bit)
{
    return bits >> bit & 1 ? "true" : "false";
}

static void put_norm(xd_buf *out, part *p)
{
    static const char *const kinds[] = {"NFC",          "NFD", "NFKC",      "NFKD",    "Lowercase", "Strip",
                                        "StripAccents", "Nmt", "ByteLevel", "Replace", "Replace",   "Prepend"};
    unsigned kind = take_byte(p) % XD_ARRAY_LEN(kinds);
    xd_buf_printf(out, "%s{\"type\": \"%s\"", out->len ? "," : "", kinds[kind]);
    if (kind == 5) {
        unsigned bits = take_byte(p);
        xd_buf_printf(out, ", \"strip_left\": %s, \"strip_right\": %s", flag(bits, 0), flag(bits, 1));
    } else if (kind == 9 || kind == 10) {
        put_pattern(out, p, kind == 10);
        put_content(out, p, "content");
    } else if (kind == 11) {
        put_content(out, p, "prepend");
    }
    xd_buf_puts(out, "}");
}

static void put_metaspace(xd_buf *out, part *p)
{
    static const char *const schemes[] = {"first", "never", "always"};
    unsigned bits = take_byte(p);
    xd_buf_printf(out, ", \"prepend_scheme\": \"%s\", \"split\": %s", schemes[(bits >> 1) % 3], flag(bits, 0));
    put_content(out, p, "replacement");
}

static void put_pretok(xd_buf *out, part *p)
{
    static const char *const kinds[] = {"Split",       "Split",      "ByteLevel",       "Digits",
                                        "Punctuation", "Whitespace", "WhitespaceSplit", "Metaspace"};
    static const char *const behaviors[] = {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext",
                                            "Contiguous"};
    unsigned kind = take_byte(p) % XD_ARRAY_LEN(kinds);
    xd_buf_printf(out, "%s{\"type\": \"%s\"", out->len ? "," : "", kinds[kind]);
    if (kind < 2 || kind == 4) {
        unsigned bits = take_byte(p);
        xd_buf_printf(out, ", \"behavior\": \"%s\", \"invert\": %s", behaviors[(bits >> 1) % 5], flag(bits, 0));
        if (kind < 2)
            put_pattern(out, p, kind);
    } else if (kind == 2) {
        unsigned bits = take_byte(p);
        xd_buf_printf(out, ", \"add_prefix_space\": %s, \"use_regex\": %s", flag(bits, 0), flag(bits, 1));
    } else if (kind == 3) {
        xd_buf_printf(out, ", \"individual_digits\": %s", flag(take_byte(p), 0));
    } else if (kind == 7) {
        put_metaspace(out, p);
    }
    xd_buf_puts(out, "}");
}

static void put_dec(xd_buf *out, part *p)
{
    static const char *const kinds[] = {"ByteLevel", "Metaspace", "ByteFallback", "Fuse",
                                        "Strip",     "Replace",   "Replace",      "BPEDecoder"};
    unsigned kind = take_byte(p) % XD_ARRAY_LEN(kinds);
    xd_buf_printf(out, "%s{\"type\": \"%s\"", out->len ? "," : "", kinds[kind]);
    if (kind == 1) {
        put_metaspace(out, p);
    } else if (kind == 4) {
        unsigned n = take_byte(p);
        xd_buf_printf(out, ", \"start\": %u, \"stop\": %u", n & 15, n >> 4);
        put_content(out, p, "content");
    } else if (kind == 5 || kind == 6) {
        put_pattern(out, p, kind == 6);
        put_content(out, p, "content");
    } else if (kind == 7) {
        put_content(out, p, "suffix");
    }
    xd_buf_puts(out, "}");
}

static void put_added(xd_buf *out, part *p, unsigned id)
{
    unsigned bits = take_byte(p);
    xd_buf_printf(
        out, "%s{\"id\": %u, \"single_word\": %s, \"lstrip\": %s, \"rstrip\": %s, \"normalized\": %s, \"special\": %s",
        out->len ? "," : "", id, flag(bits, 0), flag(bits, 1), flag(bits, 2), flag(bits, 3), flag(bits, 4));
    put_content(out, p, "content");
    xd_buf_puts(out, "}");
}

/* What every tokenizer here knows: enough to see merges, bytes and spaces at work. */
static const char *const base[] = {"a",
                                   "b",
                                   "c",
                                   "d",
                                   "e",
                                   "s",
                                   "1",
                                   "2",
                                   " ",
                                   ".",
                                   "\xE2\x96\x81",
                                   "\xC4\xA0",
                                   "ab",
                                   "abc",
                                   "aa",
                                   "aaaa",
                                   "\xE2\x96\x81"
                                   "a",
                                   "\xC4\xA0"
                                   "a",
                                   "<0x41>",
                                   "<0xC3>",
                                   "<0xA9>",
                                   "<0xE2>",
                                   "\xC3\x83",
                                   "\xC2\xA9",
                                   "\xC3\xA9",
                                   "<unk>"};
static const char base_merges[] = "[\"a\",\"b\"],[\"ab\",\"c\"],[\"a\",\"a\"],[\"aa\",\"aa\"],[\"\xE2\x96\x81\",\"a\"],"
                                  "[\"\xC4\xA0\",\"a\"]";

typedef struct parts {
    xd_buf norms, pretoks, decs, added, merges, vocab, names;
    unsigned n_ids, options, post;
    bool unigram;
} parts;

static void put_entry(parts *a, part *p)
{
    if (a->unigram) {
        int score = (int)take_byte(p) - 128;
        xd_buf_puts(&a->vocab, ",[");
        put_field(&a->vocab, p);
        xd_buf_printf(&a->vocab, ", %d.5]", score);
    } else {
        xd_buf_puts(&a->vocab, ",");
        put_field(&a->vocab, p);
        xd_buf_printf(&a->vocab, ": %u", a->n_ids);
    }
    a->n_ids++;
}

static void put_part(parts *a, part p)
{
    switch (take_byte(&p)) {
    case 'n': put_norm(&a->norms, &p); break;
    case 'p': put_pretok(&a->pretoks, &p); break;
    case 'd': put_dec(&a->decs, &p); break;
    case 'a': put_added(&a->added, &p, a->n_ids); break;
    case 'v': put_entry(a, &p); break;
    case 'm':
        xd_buf_puts(&a->merges, ",[");
        put_field(&a->merges, &p);
        xd_buf_puts(&a->merges, ",");
        put_field(&a->merges, &p);
        xd_buf_puts(&a->merges, "]");
        break;
    case 'o': a->options = take_byte(&p); break;
    case 'c':
        xd_buf_clear(&a->names);
        put_content(&a->names, &p, "continuing_subword_prefix");
        put_content(&a->names, &p, "end_of_word_suffix");
        if (p.s < p.end)
            put_content(&a->names, &p, "unk_token");
        break;
    case 't': a->post = take_byte(&p); break;
    default: break;
    }
}

static const char *text_of(const xd_buf *b)
{
    return b->data ? b->data : "";
}

static void put_list(xd_buf *out, const char *key, const char *list_key, const xd_buf *list)
{
    if (list->len)
        xd_buf_printf(out, ", \"%s\": {\"type\": \"Sequence\", \"%s\": [%s]}", key, list_key, list->data);
}

static void put_base(parts *a)
{
    for (; a->n_ids < XD_ARRAY_LEN(base); a->n_ids++)
        xd_buf_printf(&a->vocab, a->unigram ? "%s[\"%s\",-%u.5]" : "%s\"%s\":%u", a->n_ids ? "," : "", base[a->n_ids],
                      a->n_ids);
}

static void put_model(xd_buf *out, const parts *a)
{
    if (a->unigram)
        xd_buf_printf(out,
                      "{\"model\": {\"type\": \"Unigram\", \"byte_fallback\": %s, \"unk_id\": %s, \"vocab\": [%s]}",
                      flag(a->options, 0), a->options & 4 ? "25" : "null", text_of(&a->vocab));
    else
        xd_buf_printf(
            out,
            "{\"model\": {\"type\": \"BPE\", \"byte_fallback\": %s, \"ignore_merges\": %s, \"fuse_unk\": %s%s%s, "
            "\"vocab\": {%s}, \"merges\": [%s%s]}",
            flag(a->options, 0), flag(a->options, 1), flag(a->options, 3),
            a->options & 4 && !a->names.len ? ", \"unk_token\": \"<unk>\"" : "", text_of(&a->names), text_of(&a->vocab),
            base_merges, text_of(&a->merges));
}

tokenizer *tok_parts_load(const char *spec, size_t len, const char **ret_text, size_t *ret_text_len)
{
    parts a = {0};
    const char *end = spec + len;
    a.unigram = len && (*spec & 1);
    put_base(&a);
    *ret_text = end;
    for (const char *s = spec + (len > 0), *stop; s < end; s = stop + (stop < end)) {
        if (*s == 'x') {
            *ret_text = s + 1;
            break;
        }
        stop = memchr(s, PART_END, (size_t)(end - s));
        stop = stop ? stop : end;
        put_part(&a, (part){s, stop});
    }
    *ret_text_len = (size_t)(end - *ret_text);
    xd_buf json = {0};
    put_model(&json, &a);
    put_list(&json, "normalizer", "normalizers", &a.norms);
    put_list(&json, "pre_tokenizer", "pretokenizers", &a.pretoks);
    put_list(&json, "decoder", "decoders", &a.decs);
    if (a.added.len)
        xd_buf_printf(&json, ", \"added_tokens\": [%s]", a.added.data);
    if (a.post & 1)
        xd_buf_puts(
            &json, ", \"post_processor\": {\"type\": \"RobertaProcessing\", \"cls\": [\"a\", 0], \"sep\": [\"b\", 1]}");
    xd_buf_puts(&json, "}");
    tokenizer *t = NULL;
    xd_err err;
    if (!json.failed && tok_from_json(json.data, json.len, &t, &err))
        t = NULL;
    xd_buf *const all[] = {&json, &a.norms, &a.pretoks, &a.decs, &a.added, &a.merges, &a.vocab, &a.names};
    for (size_t i = 0; i < XD_ARRAY_LEN(all); i++)
        xd_buf_free(all[i]);
    return t;
}

static void check_stream(const tokenizer *t, const tok_ids *ids, bool skip)
{
    xd_buf whole = {0}, pieces = {0};
    tok_stream *s = tok_stream_new(t, skip);
    xd_err err;
    if (s && !tok_decode(t, ids->data, ids->len, skip, &whole, &err)) {
        xd_status st = XD_OK;
        for (size_t i = 0; i < ids->len && !st; i++) {
            size_t had = pieces.len;
            st = tok_stream_push(s, ids->data[i], &pieces, &err);
            for (size_t n; had < pieces.len; had += n) /* each delta is whole characters */
                if (!(n = (size_t)XD_MAX(0, xd_utf8_seq(pieces.data + had, pieces.len - had))))
                    abort();
        }
        if (!st)
            st = tok_stream_flush(s, &pieces, &err);
        if (st || pieces.len != whole.len || (whole.len && memcmp(pieces.data, whole.data, whole.len)))
            abort();
    }
    tok_stream_free(s);
    xd_buf_free(&whole);
    xd_buf_free(&pieces);
}

void tok_parts_check(const tokenizer *t, const char *text, size_t len)
{
    tok_ids ids = {0};
    xd_buf bytes = {0};
    xd_err err;
    /* one way of each, by the text's length: twice as many inputs in the same time */
    if (len & 1)
        (void)!tok_encode(t, text, len, TOK_ADD_SPECIAL | TOK_PARSE_SPECIAL, &ids, &err);
    else
        (void)!tok_encode_trusted(t, text, (const uint8_t *)text, len, 0, &ids, &err);
    ids.len = XD_MIN(ids.len, (size_t)MAX_IDS);
    for (size_t i = 0; i < len && i < 32; i++)
        if (!tok_ids_push(&ids, (uint8_t)text[i]))
            break;
    check_stream(t, &ids, len & 2);
    for (size_t i = 0; i < ids.len && i < 8; i++)
        (void)tok_token_bytes(t, ids.data[i], &bytes);
    xd_buf_free(&bytes);
    tok_ids_free(&ids);
}
