/* test_tokenizer.c - properties that hold for every tokenizer in tests/data/tokenizers, whatever the text: streamed pieces are the
 * whole text and whole characters, special tokens only where the text is trusted. (Equality with the reference: test_tok_vectors.c; GGUF:
 * test_tok_gguf.c.) */
#include <jansson.h>
#include <string.h>

#include "engine/text/stop.h"
#include "tok_file.h"

#define DIR "tests/data/tokenizers/"

static tokenizer *load(const char *name)
{
    char path[256];
    snprintf(path, sizeof path, DIR "%s", name);
    return open_tok(path);
}

static tokenizer *from_text(const char *json)
{
    tokenizer *t = NULL;
    xd_err err = {0};
    cr_assert_eq(tok_from_json(json, strlen(json), &t, &err), XD_OK, "%s", err.msg);
    return t;
}

static uint32_t next(uint64_t *s)
{
    *s = *s * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*s >> 33);
}

static void assert_whole_characters(const char *s, size_t len)
{
    for (size_t i = 0; i < len;) {
        int n = xd_utf8_seq(s + i, len - i);
        cr_assert_gt(n, 0, "a broken character in a piece");
        i += (size_t)n;
    }
}

/* The pieces of a stream, put together; each is checked. */
static void stream_all(const tokenizer *t, const tok_ids *ids, bool skip, xd_buf *ret)
{
    tok_stream *s = tok_stream_new(t, skip);
    cr_assert(s);
    for (size_t i = 0; i <= ids->len; i++) {
        xd_buf piece = {0};
        xd_status st =
            i < ids->len ? tok_stream_push(s, ids->data[i], &piece, NULL) : tok_stream_flush(s, &piece, NULL);
        cr_assert_eq(st, XD_OK);
        assert_whole_characters(piece.data, piece.len);
        xd_buf_append(ret, piece.data ? piece.data : "", piece.len);
        xd_buf_free(&piece);
    }
    tok_stream_free(s);
}

static void assert_stream_is_decode(const tokenizer *t, const tok_ids *ids)
{
    for (int skip = 0; skip < 2; skip++) {
        xd_buf whole = {0}, pieces = {0};
        cr_assert_eq(tok_decode(t, ids->data, ids->len, skip, &whole, NULL), XD_OK);
        stream_all(t, ids, skip, &pieces);
        cr_assert_eq(whole.len, pieces.len);
        cr_assert(!whole.len || !memcmp(whole.data, pieces.data, whole.len));
        xd_buf_free(&whole);
        xd_buf_free(&pieces);
    }
}

/* A character of any length in UTF-8, with many of the awkward ones. */
static void put_character(xd_buf *b, uint64_t *seed)
{
    static const uint32_t awkward[] = {' ',     '\n',   0x2581, 0x200D, 0x301, 0x1F468,
                                       0x1F3FD, 0xFE0F, 0xFFFD, 0xAC00, 0,     '<'};
    uint32_t cp;
    switch (next(seed) % 5) {
    case 0: cp = 0x20 + next(seed) % 0x5F; break;
    case 1: cp = awkward[next(seed) % XD_ARRAY_LEN(awkward)]; break;
    case 2: cp = 0x80 + next(seed) % 0x780; break;
    case 3: cp = 0x800 + next(seed) % 0xC800; break;
    default: cp = 0x10000 + next(seed) % 0x100000;
    }
    char u[4];
    size_t n = 0;
    if (cp < 0x80) {
        u[n++] = (char)cp;
    } else if (cp < 0x800) {
        u[n++] = (char)(0xC0 | cp >> 6);
    } else {
        if (cp < 0x10000) {
            u[n++] = (char)(0xE0 | cp >> 12);
        } else {
            u[n++] = (char)(0xF0 | cp >> 18);
            u[n++] = (char)(0x80 | (cp >> 12 & 0x3F));
        }
        u[n++] = (char)(0x80 | (cp >> 6 & 0x3F));
    }
    if (cp >= 0x80)
        u[n++] = (char)(0x80 | (cp & 0x3F));
    xd_buf_append(b, u, n);
}

static const char *const files[] = {
    "edge_llama3.tokenizer.json.gz",       "edge_qwen2.tokenizer.json.gz",  "edge_gpt2_prefix.tokenizer.json.gz",
    "edge_csp.tokenizer.json.gz",          "edge_clip.tokenizer.json.gz",   "edge_t5.tokenizer.json.gz",
    "edge_uni_bf.tokenizer.json.gz",       "edge_gemma.tokenizer.json.gz",  "edge_ms_first_dec.tokenizer.json.gz",
    "edge_nbytelevel.tokenizer.json.gz",   "edge_albert.tokenizer.json.gz", "mini_spm_legacy.tokenizer.json",
    "mini_spm_nobyte.tokenizer.json",      "mini_spm_first.tokenizer.json", "mini_bytelevel.tokenizer.json",
    "mini_bytelevel_prefix.tokenizer.json"};

Test(tokenizer, streams_of_random_text_and_of_random_ids_are_their_decoding)
{
    uint64_t seed = 12;
    for (size_t f = 0; f < XD_ARRAY_LEN(files); f++) {
        tokenizer *t = load(files[f]);
        for (int round = 0; round < 200; round++) {
            xd_buf text = {0};
            tok_ids ids = {0};
            for (uint32_t n = next(&seed) % 40; n > 0; n--)
                put_character(&text, &seed);
            cr_assert_eq(tok_encode(t, text.data ? text.data : "", text.len, round & 3, &ids, NULL), XD_OK);
            assert_stream_is_decode(t, &ids);
            ids.len = 0;
            for (uint32_t n = next(&seed) % 12; n > 0; n--) /* some ids outside the vocabulary */
                cr_assert(tok_ids_push(&ids, next(&seed) % (tok_vocab_size(t) + 4)));
            assert_stream_is_decode(t, &ids);
            xd_buf_free(&text);
            tok_ids_free(&ids);
        }
        tok_free(t);
    }
}

/* One token a byte: any cut of a text into tokens is a cut between bytes. "é", "€" and "😀" also have tokens for their first bytes. */
static const char byte_tokens[] =
    "{\"version\":\"1.0\",\"added_tokens\":[{\"id\":900,\"content\":\"<end>\",\"special\":true}],\"normalizer\":null,"
    "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false},\"post_processor\":null,"
    "\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"vocab\":{%s},\"merges\":[]}}";

/* The byte-level alphabet (every byte as one printable character), longer tokens after it. */
static tokenizer *byte_tokenizer(void)
{
    xd_buf vocab = {0}, json = {0};
    unsigned other = 0;
    for (unsigned b = 0; b < 256; b++) {
        bool shown = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
        xd_buf_printf(&vocab, "%s\"\\u%04x\":%u", b ? "," : "", shown ? b : 0x100 + other++, b);
    }
    /* F0 9F, 98 80, E2 82, C3: parts of characters as tokens of their own */
    xd_buf_puts(&vocab, ",\"\\u00f0\\u0141\":256,\"\\u013a\\u0122\":257,\"\\u00e2\\u0124\":258,\"a\\u00c3\":259");
    xd_buf_printf(&json, byte_tokens, vocab.data);
    tokenizer *t = from_text(json.data);
    xd_buf_free(&vocab);
    xd_buf_free(&json);
    return t;
}

Test(tokenizer, every_cut_of_a_text_into_tokens_streams_the_same_text)
{
    static const struct {
        uint8_t bytes[2];
        size_t n;
        uint32_t id;
    } parts[] = {{{0xF0, 0x9F}, 2, 256}, {{0x98, 0x80}, 2, 257}, {{0xE2, 0x82}, 2, 258}, {{'a', 0xC3}, 2, 259}};
    static const char text[] = "a\xC3\xA9\xF0\x9F\x98\x80 \xE2\x82\xAC\xF0\x9F\x98\x80"
                               "a\xC3\xA9";
    size_t len = sizeof text - 1;
    tokenizer *t = byte_tokenizer();
    /* Each place where a longer token fits is a choice: one bit of `cut`. */
    for (unsigned cut = 0; cut < 1u << 9; cut++) {
        tok_ids ids = {0};
        unsigned choice = 0;
        for (size_t i = 0; i < len;) {
            size_t k = 0;
            while (k < XD_ARRAY_LEN(parts) && (i + 2 > len || memcmp(text + i, parts[k].bytes, 2) != 0))
                k++;
            bool take = k < XD_ARRAY_LEN(parts) && (cut >> choice++ & 1);
            cr_assert(tok_ids_push(&ids, take ? parts[k].id : (uint8_t)text[i]));
            i += take ? 2 : 1;
        }
        xd_buf all = {0};
        stream_all(t, &ids, true, &all);
        cr_assert_eq(all.len, len);
        cr_assert(!memcmp(all.data, text, len));
        xd_buf_free(&all);
        tok_ids_free(&ids);
    }
    tok_free(t);
}

Test(tokenizer, bytes_that_are_no_text_become_replacement_characters_in_any_stream)
{
    uint64_t seed = 5;
    tokenizer *t = byte_tokenizer();
    for (int round = 0; round < 20000; round++) {
        static const uint8_t hard[] = {0x41, 0x80, 0xBF, 0xC2, 0xC3, 0xE0, 0xA0, 0xED,
                                       0x9F, 0xEF, 0xF0, 0x90, 0xF4, 0x8F, 0xFF, 0xC0};
        char bytes[8];
        tok_ids ids = {0};
        size_t n = 1 + next(&seed) % sizeof bytes;
        for (size_t i = 0; i < n; i++) {
            bytes[i] = (char)hard[next(&seed) % sizeof hard];
            cr_assert(tok_ids_push(&ids, (uint8_t)bytes[i]));
        }
        xd_buf want = {0}, got = {0};
        cr_assert(xd_utf8_sanitize(&want, bytes, n));
        stream_all(t, &ids, true, &got);
        cr_assert_eq(got.len, want.len);
        cr_assert(!memcmp(got.data, want.data, want.len));
        xd_buf_free(&want);
        xd_buf_free(&got);
        tok_ids_free(&ids);
    }
    tok_free(t);
}

Test(tokenizer, a_stop_string_never_leaks_however_the_tokens_cut_it)
{
    static const char *const stops[] = {"\xC3\xA9 \xF0\x9F\x98\x80", "</s>", "\xE2\x82\xAC\xE2\x82\xAC"};
    uint64_t seed = 9;
    tokenizer *t = byte_tokenizer();
    for (int round = 0; round < 5000; round++) {
        static const char *const bits[] = {"\xC3\xA9", " ", "\xF0\x9F\x98\x80", "</", "s>", "\xE2\x82\xAC", "a", "<"};
        xd_buf text = {0}, out = {0};
        for (uint32_t n = 1 + next(&seed) % 12; n > 0; n--)
            xd_buf_puts(&text, bits[next(&seed) % XD_ARRAY_LEN(bits)]);
        size_t cut = text.len; /* where the match that ends first begins */
        for (size_t end = 1, found = 0; end <= text.len && !found; end++)
            for (size_t k = 0; k < XD_ARRAY_LEN(stops); k++) {
                size_t n = strlen(stops[k]);
                if (n <= end && !memcmp(text.data + end - n, stops[k], n)) {
                    found = 1;
                    cut = XD_MIN(cut, end - n);
                }
            }
        stop_matcher m;
        stop_init(&m, stops, XD_ARRAY_LEN(stops), false);
        tok_stream *s = tok_stream_new(t, true);
        int hit = -1;
        for (size_t i = 0; i <= text.len && hit < 0; i++) {
            xd_buf piece = {0};
            xd_status st = i < text.len ? tok_stream_push(s, (uint8_t)text.data[i], &piece, NULL)
                                        : tok_stream_flush(s, &piece, NULL);
            cr_assert_eq(st, XD_OK);
            hit = stop_feed(&m, piece.data ? piece.data : "", piece.len, true, &out);
            assert_whole_characters(out.data, out.len);
            cr_assert_leq(out.len, cut);
            xd_buf_free(&piece);
        }
        if (hit < 0)
            stop_flush(&m, &out);
        cr_assert_eq(hit < 0, cut == text.len);
        cr_assert_eq(out.len, cut);
        cr_assert(!cut || !memcmp(out.data, text.data, cut));
        stop_clear(&m);
        tok_stream_free(s);
        xd_buf_free(&text);
        xd_buf_free(&out);
    }
    tok_free(t);
}

/* ---- trusted bytes ---- */

static const char marked[] =
    "{\"version\":\"1.0\",\"added_tokens\":["
    "{\"id\":10,\"content\":\"<s>\",\"special\":true,\"normalized\":false},"
    "{\"id\":11,\"content\":\"<l>\",\"special\":true,\"normalized\":false,\"lstrip\":true},"
    "{\"id\":12,\"content\":\"<r>\",\"special\":true,\"normalized\":false,\"rstrip\":true},"
    "{\"id\":13,\"content\":\"<n>\",\"special\":true,\"normalized\":true},"
    "{\"id\":14,\"content\":\"<t>\",\"special\":false,\"normalized\":false}],"
    "\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\"_\"},\"content\":\"--\"},\"pre_tokenizer\":null,"
    "\"post_processor\":null,\"decoder\":null,\"model\":{\"type\":\"BPE\",\"vocab\":{\"<\":0,\">\":1,\"s\":2,\"l\":3,"
    "\"r\":4,\"n\":5,\"t\":6,\" \":7,\"a\":8,\"-\":9},\"merges\":[]}}";

/* The ids of text with the bytes marked 'T' in map trusted, as words: "s" for <s>, other ids as their character. */
static void assert_trusted(const tokenizer *t, const char *text, const char *map, const char *want)
{
    uint8_t trust[64];
    tok_ids ids = {0};
    char got[64];
    size_t n = strlen(text);
    cr_assert_eq(n, strlen(map));
    for (size_t i = 0; i < n; i++)
        trust[i] = map[i] == 'T';
    cr_assert_eq(tok_encode_trusted(t, text, trust, n, 0, &ids, NULL), XD_OK);
    for (size_t i = 0; i < ids.len; i++)
        got[i] = ids.data[i] >= 10 ? "SLRNT"[ids.data[i] - 10] : "<>slrnt a-"[ids.data[i]];
    got[ids.len] = 0;
    cr_assert_str_eq(got, want, "'%s' with '%s': '%s', not '%s'", text, map, got, want);
    tok_ids_free(&ids);
}

Test(tokenizer, special_tokens_stand_only_in_trusted_bytes)
{
    tokenizer *t = from_text(marked);
    assert_trusted(t, "<s>a<s>", "TTT____", "Sa<s>");
    assert_trusted(t, "<s>a<s>", "____TTT", "<s>aS");
    assert_trusted(t, "<s><s>", "TTTTTT", "SS");
    assert_trusted(t, "<s><s>", "TTT___", "S<s>");
    assert_trusted(t, "<s><s>", "___TTT", "<s>S");
    assert_trusted(t, "<s>", "TT_", "<s>"); /* in part is not at all */
    assert_trusted(t, "<s>", "_TT", "<s>");
    assert_trusted(t, "<s>", "T_T", "<s>");
    assert_trusted(t, "<t><t>", "______", "TT"); /* tokens that are not special: always */
    /* a token takes the spaces at its side whoever wrote them, as it does without trust */
    assert_trusted(t, "a <l>", "__TTT", "aL");
    assert_trusted(t, "<r> a", "TTT__", "Ra");
    assert_trusted(t, "a <l>", "TT___", "a <l>");
    assert_trusted(t, "<r> a", "___TT", "<r> a");
    assert_trusted(t, "<r> <l>", "TTTTTTT", "RL");
    assert_trusted(t, "<r> <l>", "TTT____", "R<l>");
    /* found after normalizing, which moves bytes */
    assert_trusted(t, "_<n>_", "_TTT_", "--N--");
    assert_trusted(t, "_<n>_", "T_TTT", "--<n>--");
    assert_trusted(t, "<n><n>", "___TTT", "<n>N");
    tok_free(t);
}

Test(tokenizer, nothing_is_trusted_or_everything_like_the_flag)
{
    tokenizer *t = from_text(marked);
    static const char text[] = "<s> a <l><r> <n>_<t>";
    uint8_t none[sizeof text] = {0}, every[sizeof text];
    memset(every, 1, sizeof every);
    tok_ids a = {0}, b = {0}, c = {0};
    cr_assert_eq(tok_encode(t, text, sizeof text - 1, 0, &a, NULL), XD_OK);
    cr_assert_eq(tok_encode_trusted(t, text, none, sizeof text - 1, 0, &b, NULL), XD_OK);
    cr_assert(a.len == b.len && !memcmp(a.data, b.data, a.len * sizeof *a.data));
    a.len = b.len = 0;
    cr_assert_eq(tok_encode(t, text, sizeof text - 1, TOK_PARSE_SPECIAL, &a, NULL), XD_OK);
    cr_assert_eq(tok_encode_trusted(t, text, every, sizeof text - 1, 0, &b, NULL), XD_OK);
    cr_assert_eq(tok_encode_trusted(t, text, NULL, sizeof text - 1, 0, &c, NULL), XD_OK);
    cr_assert(a.len == b.len && !memcmp(a.data, b.data, a.len * sizeof *a.data));
    cr_assert(a.len == c.len && !memcmp(a.data, c.data, a.len * sizeof *a.data));
    tok_ids_free(&a);
    tok_ids_free(&b);
    tok_ids_free(&c);
    tok_free(t);
}

Test(tokenizer, a_stream_shows_the_special_tokens_that_it_is_told_to)
{
    tokenizer *t = byte_tokenizer();
    const uint32_t end = (uint32_t)tok_token_id(t, "<end>"), ids[] = {'a', end, 'b'}, shown[] = {7, end};
    for (size_t n = 0; n <= 2; n++) {
        tok_stream *s = tok_stream_new(t, true);
        tok_stream_show(s, shown, n);
        xd_buf out = {0};
        for (size_t i = 0; i < XD_ARRAY_LEN(ids); i++)
            cr_assert_eq(tok_stream_push(s, ids[i], &out, NULL), XD_OK);
        cr_assert_str_eq(out.data, n == 2 ? "a<end>b" : "ab");
        tok_stream_free(s);
        xd_buf_free(&out);
    }
    tok_free(t);
}

/* ---- priming with the prompt ---- */

static void assert_primed(const tokenizer *t, const uint32_t *ids, size_t n_prompt, size_t n, const char *want)
{
    tok_stream *s = tok_stream_new(t, true);
    xd_buf out = {0};
    cr_assert_eq(tok_stream_prime(s, ids, n_prompt, NULL), XD_OK);
    for (size_t i = n_prompt; i < n; i++)
        cr_assert_eq(tok_stream_push(s, ids[i], &out, NULL), XD_OK);
    cr_assert_eq(tok_stream_flush(s, &out, NULL), XD_OK);
    cr_assert_str_eq(out.data ? out.data : "", want);
    tok_stream_free(s);
    xd_buf_free(&out);
}

Test(tokenizer, a_primed_stream_gives_only_what_was_generated)
{
    tokenizer *t = byte_tokenizer();
    static const uint32_t plain[] = {'a', 'b', ' ', 'c', 'd'};
    for (size_t k = 0; k <= 5; k++)
        assert_primed(t, plain, k, 5, &"ab cd"[k]);
    static const uint32_t cut[] = {'a', 0xF0, 0x9F, 0x98, 0x80, 'b'}; /* a character that the prompt began */
    assert_primed(t, cut, 3, 6,
                  "\xF0\x9F\x98\x80"
                  "b");
    assert_primed(t, cut, 1, 6,
                  "\xF0\x9F\x98\x80"
                  "b");
    tok_free(t);
    /* SentencePiece: the space of the first generated word stays, while that of the first word of a text is dropped */
    t = load("mini_spm_legacy.tokenizer.json");
    tok_ids ids = {0}, first = {0};
    xd_buf whole = {0};
    cr_assert_eq(tok_encode(t, "the cat", 7, 0, &ids, NULL), XD_OK);
    cr_assert_eq(tok_encode(t, "the", 3, 0, &first, NULL), XD_OK);
    cr_assert_lt(first.len, ids.len);
    cr_assert(!memcmp(ids.data, first.data, first.len * sizeof *ids.data));
    assert_primed(t, ids.data, 0, ids.len, "the cat");
    assert_primed(t, ids.data, first.len, ids.len, " cat");
    tok_ids_free(&ids);
    tok_ids_free(&first);
    xd_buf_free(&whole);
    tok_free(t);
}

Test(tokenizer, what_cannot_be_encoded_is_an_error_that_leaves_the_ids_alone)
{
    static const char json[] =
        "{\"version\":\"1.0\",\"added_tokens\":[],\"model\":{\"type\":\"BPE\",\"unk_token\":\"<unk>\","
        "\"vocab\":{\"a\":0},\"merges\":[]}}";
    tokenizer *t = from_text(json);
    tok_ids ids = {0};
    xd_err err = {0};
    cr_assert_eq(tok_encode(t, "aa", 2, 0, &ids, &err), XD_OK);
    cr_assert_eq(tok_encode(t, "aab", 3, 0, &ids, &err), XD_UNSUPPORTED);
    cr_assert_eq(ids.len, 2u);
    tok_ids_free(&ids);
    tok_free(t);
}

/* Of each model, with and without added tokens: a limit that suffices changes nothing, one less ends it and leaves the ids alone. */
Test(tokenizer, a_limit_of_ids_ends_the_encoding)
{
    static const char *const limited[] = {
        "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\" \":2},\"merges\":[]},\"pre_tokenizer\":{\"type\":\"Split\","
        "\"pattern\":{\"String\":\" \"},\"behavior\":\"Isolated\",\"invert\":false},\"added_tokens\":[{\"id\":3,\"content\":\"<x>\","
        "\"normalized\":false}]}",
        "{\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[[\"a\",-1],[\"b\",-1],[\" \",-2]]},\"pre_tokenizer\":{\"type\":\"Split\","
        "\"pattern\":{\"String\":\" \"},\"behavior\":\"Isolated\",\"invert\":false},\"added_tokens\":[{\"id\":3,\"content\":\"<x>\","
        "\"normalized\":false}]}"};
    XD_CLEANUP(xd_buf_free) xd_buf text = {0};
    for (int i = 0; i < 300; i++)
        xd_buf_puts(&text, i % 7 ? "ab " : "<x>");
    for (size_t f = 0; f < XD_ARRAY_LEN(limited); f++) {
        tokenizer *t = from_text(limited[f]);
        tok_ids whole = {0}, ids = {0};
        xd_err err = {0};
        cr_assert_eq(tok_encode(t, text.data, text.len, 0, &whole, &err), XD_OK, "%s", err.msg);
        cr_assert(whole.len > 700);
        ids.max = whole.len;
        cr_assert_eq(tok_encode(t, text.data, text.len, 0, &ids, &err), XD_OK);
        cr_assert(ids.len == whole.len && !memcmp(ids.data, whole.data, ids.len * sizeof *ids.data));
        for (size_t max = 1; max < whole.len; max += 41) {
            ids.len = 0;
            ids.max = max;
            cr_assert_eq(tok_encode(t, text.data, text.len, 0, &ids, &err), XD_TOO_LARGE);
            cr_assert(!ids.len && !strcmp(err.code, TOK_TOO_MANY));
        }
        tok_ids_free(&ids);
        tok_ids_free(&whole);
        tok_free(t);
    }
}

Test(tokenizer, overlapping_added_tokens_are_found_as_the_reference_finds_them)
{
    tokenizer *t = from_text(
        "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"c\":2,\"d\":3,\"e\":4,\"f\":5,\" \":6},\"merges\":[]},"
        "\"added_tokens\":[{\"content\":\"abcd\",\"normalized\":false},{\"content\":\"bcde\",\"normalized\":false},"
        "{\"content\":\"cdef\",\"normalized\":false},{\"content\":\"ab\",\"normalized\":false},{\"content\":\"def\","
        "\"normalized\":false},{\"content\":\"ef\",\"normalized\":false},{\"content\":\"aaaa\",\"normalized\":false},"
        "{\"content\":\"aab\",\"normalized\":false},{\"content\":\"abc ab\",\"normalized\":false}]}");
    static const struct {
        const char *text;
        uint32_t ids[10];
        size_t n;
    } cases[] = {/* from the PyPI package tokenizers 0.23.3 */
                 {"abcdef abcde bcdef", {7, 12, 6, 7, 4, 6, 8, 5}, 8},
                 {"aaaaab aaab aab", {13, 10, 6, 0, 14, 6, 14}, 7},
                 {"abc abcdef", {15, 9}, 2},
                 {"xabcabcdabc ab", {10, 2, 7, 15}, 4},
                 {"abc abcabc ab", {15, 2, 15}, 3}};
    for (size_t i = 0; i < XD_ARRAY_LEN(cases); i++) {
        tok_ids ids = {0};
        cr_assert_eq(tok_encode(t, cases[i].text, strlen(cases[i].text), 0, &ids, NULL), XD_OK);
        cr_assert(ids.len == cases[i].n && !memcmp(ids.data, cases[i].ids, ids.len * sizeof *ids.data), "%s",
                  cases[i].text);
        tok_ids_free(&ids);
    }
    tok_free(t);
}

Test(tokenizer, an_added_token_is_found_across_the_blocks_that_a_text_is_searched_in)
{
    char *s = malloc(70000);
    cr_assert(s);
    tokenizer *t = from_text("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1},\"merges\":[]},"
                             "\"added_tokens\":[{\"content\":\"baaaaaaab\",\"normalized\":false}]}");
    for (size_t at = 16384 - 12; at < 16384 + 4; at++) {
        tok_ids ids = {0};
        memset(s, 'a', 70000);
        memcpy(s + at, "baaaaaaab", 9);
        cr_assert_eq(tok_encode(t, s, 70000, 0, &ids, NULL), XD_OK);
        cr_assert_eq(ids.len, 70000u - 8);
        cr_assert_eq(ids.data[at], 2u);
        tok_ids_free(&ids);
    }
    tok_free(t);
    free(s);
}

/* What takes too long is refused by a count of steps: the same everywhere, and at once. Each of these would take hours. */
Test(tokenizer, what_would_take_too_long_is_refused_by_name)
{
    static const char *const splits[] = {"(a+)+[cd]",     "(a|aa)+[cd]", "a(?=.*[cd])", "(?:a?){100}a{100}[cd]",
                                         "(a+)\\\\1[cd]", ".*.*.*[cd]"};
    enum { LEN = 200000 };
    char *s = malloc(LEN);
    cr_assert(s);
    memset(s, 'a', LEN);
    for (size_t i = 0; i < XD_ARRAY_LEN(splits); i++) {
        xd_buf json = {0};
        xd_buf_printf(
            &json,
            "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]},\"pre_tokenizer\":{\"type\":\"Split\","
            "\"pattern\":{\"Regex\":\"%s\"},\"behavior\":\"Isolated\",\"invert\":false}}",
            splits[i]);
        tokenizer *t = from_text(json.data);
        tok_ids ids = {0};
        xd_err err = {0};
        cr_assert_eq(tok_encode(t, s, LEN, 0, &ids, &err), XD_UNSUPPORTED, "%s", splits[i]);
        cr_assert(strstr(err.msg, "regular expression") && strstr(err.msg, "too long"), "%s: %s", splits[i], err.msg);
        cr_assert_eq(ids.len, 0u);
        cr_assert_eq(tok_encode(t, s, 20, 0, &ids, &err), XD_OK, "%s: %s", splits[i], err.msg);
        cr_assert_eq(ids.len, 20u);
        tok_ids_free(&ids);
        tok_free(t);
        xd_buf_free(&json);
    }
    free(s);
}

Test(tokenizer, a_fused_text_is_a_byte_only_when_it_is_nothing_else)
{
    tokenizer *t =
        from_text("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"<0x41>\":0,\"long text\":1},\"merges\":[]},\"decoder\":{"
                  "\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Fuse\"},{\"type\":\"ByteFallback\"}]}}");
    static const struct {
        uint32_t ids[3];
        size_t n;
        const char *text; /* as tokenizers 0.23.3 decodes it */
    } cases[] = {{{0}, 1, "A"},
                 {{0, 0}, 2, "<0x41><0x41>"},
                 {{1, 0}, 2, "long text<0x41>"},
                 {{1, 1, 0}, 3, "long textlong text<0x41>"}};
    for (size_t i = 0; i < XD_ARRAY_LEN(cases); i++) {
        xd_buf b = {0};
        cr_assert_eq(tok_decode(t, cases[i].ids, cases[i].n, false, &b, NULL), XD_OK);
        cr_assert_str_eq(b.data, cases[i].text);
        xd_buf_free(&b);
    }
    tok_free(t);
}

#define KIMI_CONFIG \
    "{\"auto_map\":{\"AutoTokenizer\":[\"tokenization_kimi.TikTokenTokenizer\",null]},\"added_tokens_decoder\":"

/* tests/data/tokenizers/kimi: what tiktoken gives (tests/tools/tiktoken_vectors.py). */
Test(tokenizer, kimis_ranks_give_the_ids_of_tiktoken)
{
    const char *root = getenv("EXPERTD_SOURCE_ROOT");
    char dir[4096];
    snprintf(dir, sizeof dir, "%s/" DIR "kimi", root ? root : ".");
    tokenizer *t = NULL;
    xd_err err = {0};
    cr_assert_eq(tok_from_dir(dir, &t, &err), XD_OK, "%s", err.msg);
    size_t len, i, k;
    char *text = read_source_gz(DIR "kimi/vectors.json", &len);
    json_t *cases = json_loadb(text, len, JSON_ALLOW_NUL, NULL), *c, *id;
    json_array_foreach (cases, i, c) {
        const json_t *s = json_object_get(c, "text");
        tok_ids ids = {0};
        xd_buf back = {0};
        cr_assert_eq(tok_encode(t, json_string_value(s), json_string_length(s), TOK_PARSE_SPECIAL, &ids, NULL), XD_OK);
        cr_assert_eq(ids.len, json_array_size(json_object_get(c, "ids")), "'%s'", json_string_value(s));
        json_array_foreach (json_object_get(c, "ids"), k, id)
            cr_assert_eq(ids.data[k], (uint32_t)json_integer_value(id), "'%s', %zu", json_string_value(s), k);
        cr_assert_eq(tok_decode(t, ids.data, ids.len, false, &back, NULL), XD_OK);
        cr_assert(back.len == json_string_length(s) &&
                  (!back.len || !memcmp(back.data, json_string_value(s), back.len)));
        tok_ids_free(&ids);
        xd_buf_free(&back);
    }
    cr_assert_gt(i, 40u);
    cr_assert(tok_token_is_special(t, (uint32_t)tok_token_id(t, "<|im_end|>")) &&
              !tok_token_is_special(t, (uint32_t)tok_token_id(t, "<think>")));
    json_decref(cases);
    free(text);
    tok_free(t);
}

Test(tokenizer, ranks_that_are_not_kimis_or_broken_are_refused)
{
    static const struct {
        const char *ranks, *config, *says;
    } rows[] = {
        {"IQ== 0\n", "{\"auto_map\":{\"AutoTokenizer\":[\"tokenization_x.TikTokenTokenizer\",null]}}", "only Kimi's"},
        {"IQ== 0\n", "{}", "only Kimi's"},
        {"IQ== 0\n", "{", "tokenizer_config.json, line 1"},
        {"IQ== 0\nIg== 2\n", KIMI_CONFIG "{}}", "line 2"},
        {"IQ== 0\n!!!! 1\n", KIMI_CONFIG "{}}", "line 2"},
        {"IQ== 0\n\n", KIMI_CONFIG "{}}", "line 2"},
        {" 0\n", KIMI_CONFIG "{}}", "line 1"},
        {"IQ==", KIMI_CONFIG "{}}", "line 1"},
        {"IQ== 0\n", KIMI_CONFIG "{\"0\":{\"content\":\"a\"}}}", "a token already"},
        {"IQ== 0\n", KIMI_CONFIG "{\"x\":{\"content\":\"a\"}}}", "no token at 'x'"},
        {"IQ== 0\n", KIMI_CONFIG "{\"99999999\":{\"content\":\"a\"}}}", "no token at"},
        {"IQ== 0\n", KIMI_CONFIG "{\"1\":{}}}", "no token at '1'"},
    };
    for (size_t i = 0; i < XD_ARRAY_LEN(rows); i++) {
        tokenizer *t = NULL;
        xd_err err = {0};
        cr_assert_neq(
            tok_from_tiktoken(rows[i].ranks, strlen(rows[i].ranks), rows[i].config, strlen(rows[i].config), &t, &err),
            XD_OK, "%s", rows[i].ranks);
        cr_assert(!t && strstr(err.msg, rows[i].says), "'%s'", err.msg);
    }
    tokenizer *t = NULL;
    static const char crlf[] = "IQ== 0\r\nIg== 1";
    cr_assert_eq(tok_from_tiktoken(crlf, strlen(crlf), KIMI_CONFIG "{}}", strlen(KIMI_CONFIG "{}}"), &t, NULL), XD_OK);
    cr_assert_eq(tok_vocab_size(t), 2u);
    tok_free(t);
}
