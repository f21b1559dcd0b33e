/* tokworst.c - the worst that a megabyte can do to a tokenizer: hostile tokenizer.json files and hostile texts, each at most 1 MB,
 * every file with every text. Each pair runs in a process of its own under limits of CPU time and memory that only
 * something quadratic reaches: a case that meets them fails. Prints the CPU times.
 *
 *   tokworst [NAME ...]     files whose names hold one of these; none: all (ten minutes)
 *   tokworst quick          an eighth of the size and a third of the texts: the test */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "engine/text/tokenizer.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SLOWER = 20, IS_SANITIZED = 1 };
#else
enum { SLOWER = 1, IS_SANITIZED = 0 };
#endif

enum {
    MB = 1000000,
    QUICK_TEXTS = 9,
    QUICK_SHARE = 8,
    MAX_CPU_S = 6 * SLOWER, /* against seconds on a slow machine; what is quadratic takes minutes */
    MAX_MEMORY_BYTES = 256 << 20,
};

/* ---- texts ---- */

static size_t text_bytes = MB;
typedef void (*text_fn)(xd_buf *out);

static void repeat(xd_buf *out, const char *s)
{
    while (out->len + strlen(s) <= text_bytes)
        xd_buf_puts(out, s);
}

#define REPEATED(name, s)              \
    static void text_##name(xd_buf *o) \
    {                                  \
        repeat(o, s);                  \
    }
REPEATED(letter, "a")
REPEATED(ab, "ab")
REPEATED(aabb, "aAbB")
REPEATED(spaces, " ")
REPEATED(lines, "\n")
REPEATED(crlf_spaces, " \r\n")
REPEATED(words, "a ")
REPEATED(english, "The quick brown fox jumps over the lazy dog's back, and then it doesn't stop. ")
REPEATED(digits, "7")
REPEATED(dots, ".")
REPEATED(contractions, "'S'll")
REPEATED(cjk, "\xE4\xBD\xA0\xE5\xA5\xBD")
REPEATED(expands, "\xEF\xB7\xBA") /* U+FDFA: 18 characters in NFKC */
REPEATED(hangul, "\xE1\x84\x80\xE1\x85\xA1\xE1\x86\xA8")
REPEATED(syllables, "\xEA\xB0\x81")
REPEATED(marks, "\xCC\x81\xCC\xA7")
REPEATED(tibetan, "\xE0\xBD\xB1\xE0\xBD\xB2")
REPEATED(family, "\xF0\x9F\x91\xA9\xE2\x80\x8D")
REPEATED(flags, "\xF0\x9F\x87\xA9")
REPEATED(dotted_i, "\xC4\xB0")
REPEATED(bad_bytes, "\xFF")
REPEATED(cut_off, "\xF0\x9F\x91")
REPEATED(meta, "\xE2\x96\x81")
REPEATED(almost_special, "<|im_start|")
REPEATED(special, "<|im_start|> ")
REPEATED(private_use, "\xF3\xB0\x80\x80")

static void text_letters_then_b(xd_buf *o)
{
    repeat(o, "a");
    o->data[o->len - 1] = 'b';
}

static void text_random(xd_buf *o)
{
    uint64_t x = 88172645463325252u;
    while (o->len < text_bytes) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        xd_buf_append(o, &x, 8);
    }
}

static void text_descending_marks(xd_buf *o) /* never in canonical order */
{
    static const char *const marks[] = {"\xCD\x85", "\xCC\x81", "\xCC\xA7", "\xD6\xB0"};
    for (size_t i = 0; i < 4; i++)
        while (o->len < text_bytes / 4 * (i + 1))
            xd_buf_puts(o, marks[i]);
}

#define TEXT(n)      \
    {                \
#n, text_##n \
    }
static const struct {
    const char *name;
    text_fn make;
} texts[] = {
    /* the first QUICK_TEXTS are the worst */
    TEXT(letter),      TEXT(letters_then_b), TEXT(spaces),
    TEXT(digits),      TEXT(expands),        TEXT(descending_marks),
    TEXT(dotted_i),    TEXT(random),         TEXT(bad_bytes),
    TEXT(ab),          TEXT(aabb),           TEXT(lines),
    TEXT(crlf_spaces), TEXT(words),          TEXT(english),
    TEXT(dots),        TEXT(contractions),   TEXT(cjk),
    TEXT(hangul),      TEXT(syllables),      TEXT(marks),
    TEXT(tibetan),     TEXT(family),         TEXT(flags),
    TEXT(cut_off),     TEXT(meta),           TEXT(almost_special),
    TEXT(special),     TEXT(private_use),
};

/* ---- tokenizers ---- */

typedef struct spec {
    const char *name;
    const char *norm, *pre, *dec; /* JSON, or NULL */
    void (*model)(xd_buf *out);
    void (*added)(xd_buf *out);
    void (*more)(xd_buf *out); /* further keys; NULL: none */
} spec;

static void put_bytes_vocab(xd_buf *o) /* the byte-level alphabet, ids 0..255 */
{
    for (unsigned b = 0, extra = 0; b < 256; b++) {
        unsigned cp = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE ? b : 0x100 + extra++;
        xd_buf_printf(o, "%s\"\\u%04x\":%u", b ? "," : "", cp, b);
    }
}

static void model_bytes(xd_buf *o) /* doubling merges of a few letters */
{
    xd_buf_puts(o, "{\"type\":\"BPE\",\"vocab\":{");
    put_bytes_vocab(o);
    xd_buf_puts(
        o,
        ",\"aa\":256,\"aaaa\":257,\"aaaaaaaa\":258,\"ab\":259,\"abab\":260,\"\\u0120a\":261,\"th\":262,\"the\":263,"
        "\"\\u0120\\u0120\":264,\"\\u0120\\u0120\\u0120\\u0120\":265,\"..\":266,\"77\":267,\"\\u00cc\\u0123\":268},"
        "\"merges\":[\"a a\",\"aa aa\",\"aaaa aaaa\",\"a b\",\"ab ab\",\"\\u0120 a\",\"t h\",\"th e\",\"\\u0120 \\u0120\","
        "\"\\u0120\\u0120 \\u0120\\u0120\",\". .\",\"7 7\",\"\\u00cc \\u0123\"]}");
}

static void model_bytes_ignore(xd_buf *o) /* the same with ignore_merges */
{
    model_bytes(o);
    o->data[--o->len] = 0;
    xd_buf_puts(o, ",\"ignore_merges\":true}");
}

static void model_spm(xd_buf *o) /* characters, byte fallback */
{
    xd_buf_puts(
        o, "{\"type\":\"BPE\",\"byte_fallback\":true,\"fuse_unk\":true,\"unk_token\":\"<unk>\",\"vocab\":{\"<unk>\":0");
    for (unsigned b = 0; b < 256; b++)
        xd_buf_printf(o, ",\"<0x%02X>\":%u", b, b + 1);
    xd_buf_puts(
        o,
        ",\"a\":300,\"b\":301,\"\xE2\x96\x81\":302,\"aa\":303,\"\xE2\x96\x81"
        "a\":304,\"t\":305,\"h\":306,\"th\":307,\"\xE2\x96\x81\xE2\x96\x81\":308,\"aaaa\":309},\"merges\":[\"a a\",\"\xE2\x96\x81 a\","
        "\"t h\",\"\xE2\x96\x81 \xE2\x96\x81\",\"aa aa\"]}");
}

static void model_many_merges(xd_buf *o) /* every pair of 160 strings of two letters */
{
    enum { N = 160 };
#define TWO_LETTERS(i) 'a' + (i) % 26, 'A' + (i) / 26
    xd_buf_puts(o, "{\"type\":\"BPE\",\"vocab\":{\"a\":300,\"b\":301,\"A\":302,\"B\":303");
    for (unsigned i = 0; i < N; i++)
        xd_buf_printf(o, ",\"%c%c\":%u", TWO_LETTERS(i), i);
    for (unsigned i = 0; i < N * N; i++)
        xd_buf_printf(o, ",\"%c%c%c%c\":%u", TWO_LETTERS(i / N), TWO_LETTERS(i % N), 400 + i);
    xd_buf_puts(o, "},\"merges\":[\"a A\",\"b A\",\"b B\"");
    for (unsigned i = 0; i < N * N; i++)
        xd_buf_printf(o, ",\"%c%c %c%c\"", TWO_LETTERS(i / N), TWO_LETTERS(i % N));
    xd_buf_puts(o, "]}");
#undef TWO_LETTERS
}

static void put_as(xd_buf *o, size_t n)
{
    while (n--)
        xd_buf_putc(o, 'a');
}

static void model_chain_bpe(xd_buf *o) /* a, aa, aaa ...: each merge adds one letter */
{
    xd_buf_puts(o, "{\"type\":\"BPE\",\"vocab\":{\"a\":0");
    for (unsigned i = 2; i < 1000; i++) {
        xd_buf_puts(o, ",\"");
        put_as(o, i);
        xd_buf_printf(o, "\":%u", i - 1);
    }
    xd_buf_puts(o, "},\"merges\":[[\"a\",\"a\"]");
    for (unsigned i = 2; i < 999; i++) {
        xd_buf_puts(o, ",[\"");
        put_as(o, i);
        xd_buf_puts(o, "\",\"a\"]");
    }
    xd_buf_puts(o, "]}");
}

static void unigram(xd_buf *o, unsigned longest, unsigned step)
{
    xd_buf_puts(
        o,
        "{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[[\"<unk>\",0],[\"a\",-1.5],[\"b\",-2],[\"\xE2\x96\x81\",-2],[\"\xE2\x96\x81"
        "a\",-2],[\"\xE2\x96\x81the\",-3]");
    for (unsigned i = 2; i <= longest; i += step) {
        xd_buf_puts(o, ",[\"");
        put_as(o, i);
        xd_buf_printf(o, "\",-%u.25]", i);
    }
    xd_buf_puts(o, "]}");
}

static void model_unigram(xd_buf *o)
{
    unigram(o, 16, 1);
}

static void model_unigram_chain(xd_buf *o) /* a thousand pieces end at every letter */
{
    unigram(o, 1000, 1);
}

static void model_unigram_near(xd_buf *o) /* pieces of a thousand letters that all but match */
{
    xd_buf_puts(o, "{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[[\"<unk>\",0],[\"a\",-1.5]");
    for (unsigned i = 0; i < 900; i++) {
        xd_buf_puts(o, ",[\"");
        put_as(o, 1000);
        xd_buf_printf(o, "%c%c\",-9]", 'b' + i % 25, 'b' + i / 25 % 25);
    }
    xd_buf_puts(o, "]}");
}

static void model_large_ids(xd_buf *o)
{
    xd_buf_puts(o, "{\"type\":\"BPE\",\"vocab\":{\"a\":4194303,\"b\":4194302},\"merges\":[]}");
}

static void added_im(xd_buf *o)
{
    xd_buf_puts(o, "{\"id\":900,\"content\":\"<|im_start|>\",\"special\":true,\"normalized\":false},"
                   "{\"id\":901,\"content\":\"<|im_end|>\",\"special\":true,\"normalized\":false}");
}

static void added_prefixed(xd_buf *o) /* as many as fit, all of one long prefix */
{
    for (unsigned i = 0; i < 900; i++) {
        xd_buf_puts(o, i ? ",{\"content\":\"" : "{\"content\":\"");
        put_as(o, 1000);
        xd_buf_printf(o, "%u\"}", i);
    }
}

static void added_lengths(xd_buf *o) /* a^50, a^51 ... a^1000, each then one letter */
{
    for (unsigned i = 50; i < 1000; i++) {
        xd_buf_puts(o, i > 50 ? ",{\"content\":\"" : "{\"content\":\"");
        put_as(o, i);
        xd_buf_puts(o, "c\",\"special\":false}");
    }
}

static void added_ladder(xd_buf *o) /* b, ab, aab ...: every end of a long stretch */
{
    for (unsigned i = 0; i < 1000; i++) {
        xd_buf_puts(o, i ? ",{\"content\":\"" : "{\"content\":\"");
        put_as(o, i);
        xd_buf_puts(o, "\xC3\xA9\",\"normalized\":true}");
    }
}

static void added_many(xd_buf *o) /* 20 thousand short ones that are normalized */
{
    for (unsigned i = 0; i < 20000; i++)
        xd_buf_printf(o, "%s{\"content\":\"\xC5\xBF%u\",\"normalized\":true}", i ? "," : "", i);
}

static void added_strip(xd_buf *o) /* tokens that take the spaces around them */
{
    xd_buf_puts(
        o,
        "{\"content\":\" \",\"lstrip\":true,\"rstrip\":true},{\"content\":\"\\n\",\"lstrip\":true,\"rstrip\":true,\"single_word\":true},"
        "{\"content\":\"a\",\"rstrip\":true,\"lstrip\":true},{\"content\":\"<|im_start|>\",\"lstrip\":true,\"rstrip\":true}");
}

/* A megabyte of steps of a Sequence. */
static void put_steps(xd_buf *o, const char *key, const char *list, const char *step)
{
    xd_buf_printf(o, ",\"%s\":{\"type\":\"Sequence\",\"%s\":[%s", key, list, step);
    while (o->len + strlen(step) < MB - 8)
        xd_buf_printf(o, ",%s", step);
    xd_buf_puts(o, "]}");
}

static void more_norms(xd_buf *o)
{
    put_steps(o, "normalizer", "normalizers", "{\"type\":\"NFKC\"}");
}

static void more_patterns(xd_buf *o)
{
    put_steps(
        o, "pre_tokenizer", "pretokenizers",
        "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[\\\\p{L}\\\\p{N}]+\"},\"behavior\":\"Isolated\",\"invert\":false}");
}

static void more_large_patterns(xd_buf *o) /* each as large as pcre2 takes it */
{
    put_steps(
        o, "pre_tokenizer", "pretokenizers",
        "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(?:(?:(?:[^\\\\p{L}a]?b|c){12}d|e){12}f|g){3}\"},\"behavior\":\"Isolated\"}");
}

static void more_decoders(xd_buf *o)
{
    put_steps(o, "decoder", "decoders", "{\"type\":\"Fuse\"}");
}

static void more_literal(xd_buf *o) /* half a megabyte that all but occurs */
{
    xd_buf_puts(o, ",\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\"");
    put_as(o, MB / 2);
    xd_buf_puts(o, "b\"},\"content\":\"x\"}");
}

static void more_literal_decoder(xd_buf *o)
{
    xd_buf_puts(
        o,
        ",\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Fuse\"},{\"type\":\"Replace\",\"pattern\":{\"String\":\"");
    put_as(o, MB / 2);
    xd_buf_puts(o, "b\"},\"content\":\"x\"}]}");
}

static void more_nesting(xd_buf *o)
{
    size_t n = 0;
    xd_buf_puts(o, ",\"normalizer\":");
    for (; o->len < MB / 2; n++)
        xd_buf_puts(o, "{\"type\":\"Sequence\",\"normalizers\":[");
    while (n--)
        xd_buf_puts(o, "]}");
}

#define BYTE_LEVEL      "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}"
#define DEC_BYTES       "{\"type\":\"ByteLevel\"}"
#define SPLIT(re)       "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" re "\"},\"behavior\":\"Isolated\",\"invert\":false}"
#define SEQ(key, list)  "{\"type\":\"Sequence\",\"" key "\":[" list "]}"
#define SPLIT_BYTES(re) SEQ("pretokenizers", SPLIT(re) "," BYTE_LEVEL)
#define TWICE(x)        x "," x
#define X8(x)           TWICE(TWICE(TWICE(x)))
#define X64(x)          X8(X8(x))
#define DEC_SPM                                                                                                           \
    SEQ("decoders",                                                                                                       \
        "{\"type\":\"Replace\",\"pattern\":{\"String\":\"\xE2\x96\x81\"},\"content\":\" \"},{\"type\":\"ByteFallback\"}," \
        "{\"type\":\"Fuse\"},{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}")
#define REPLACE(a, b)    "{\"type\":\"Replace\",\"pattern\":{\"String\":\"" a "\"},\"content\":\"" b "\"}"
#define REPLACE_RE(a, b) "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"" a "\"},\"content\":\"" b "\"}"
#define NORM(n)          "{\"type\":\"" n "\"}"
#define A32              "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"

#define LLAMA3 \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}{1,3}| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"
#define O200K \
    "[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?[\\\\p{Lu}\\\\p{Lt}\\\\p{Lm}\\\\p{Lo}\\\\p{M}]*[\\\\p{Ll}\\\\p{Lm}\\\\p{Lo}\\\\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?[\\\\p{Lu}\\\\p{Lt}\\\\p{Lm}\\\\p{Lo}\\\\p{M}]+[\\\\p{Ll}\\\\p{Lm}\\\\p{Lo}\\\\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\\\\p{N}{1,3}| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n/]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"
#define KIMI \
    "[\\\\p{Han}]+|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?[\\\\p{Lu}\\\\p{Lt}\\\\p{Lm}\\\\p{Lo}\\\\p{M}&&[^\\\\p{Han}]]*[\\\\p{Ll}\\\\p{Lm}\\\\p{Lo}\\\\p{M}&&[^\\\\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\\\\p{N}{1,3}| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"

static const spec specs[] = {
    /* as models have them */
    {"gpt2", NULL, "{\"type\":\"ByteLevel\",\"add_prefix_space\":true}", DEC_BYTES, model_bytes, added_im, NULL},
    {"llama3", NULL, SPLIT_BYTES(LLAMA3), DEC_BYTES, model_bytes_ignore, added_im, NULL},
    {"qwen", NORM("NFC"), SPLIT_BYTES(LLAMA3), DEC_BYTES, model_bytes, added_im, NULL},
    {"o200k", NULL, SPLIT_BYTES(O200K), DEC_BYTES, model_bytes_ignore, added_im, NULL},
    {"kimi", NULL, SPLIT_BYTES(KIMI), DEC_BYTES, model_bytes, added_im, NULL},
    {"spm_legacy",
     SEQ("normalizers", "{\"type\":\"Prepend\",\"prepend\":\"\xE2\x96\x81\"}," REPLACE(" ", "\xE2\x96\x81")), NULL,
     DEC_SPM, model_spm, added_im, NULL},
    {"spm_metaspace", NULL,
     "{\"type\":\"Metaspace\",\"replacement\":\"\xE2\x96\x81\",\"prepend_scheme\":\"first\",\"split\":false}", DEC_SPM,
     model_spm, added_im, NULL},
    {"gemma", REPLACE(" ", "\xE2\x96\x81"),
     "{\"type\":\"Split\",\"pattern\":{\"String\":\" \"},\"behavior\":\"MergedWithPrevious\",\"invert\":false}",
     DEC_SPM, model_spm, added_im, NULL},
    {"unigram", SEQ("normalizers", NORM("NFKC") "," REPLACE_RE(" {2,}", " ")),
     "{\"type\":\"Metaspace\",\"replacement\":\"\xE2\x96\x81\"}",
     "{\"type\":\"Metaspace\",\"replacement\":\"\xE2\x96\x81\"}", model_unigram, added_im, NULL},
    {"starcoder", NULL,
     SEQ("pretokenizers", "{\"type\":\"Digits\",\"individual_digits\":true},{\"type\":\"ByteLevel\"}"), DEC_BYTES,
     model_bytes, added_im, NULL},
    /* hostile: models */
    {"whole_text_bytes", NULL, BYTE_LEVEL, DEC_BYTES, model_bytes, NULL, NULL},
    {"many_merges", NULL, NULL, NULL, model_many_merges, NULL, NULL},
    {"chain_bpe", NULL, NULL, NULL, model_chain_bpe, NULL, NULL},
    {"unigram_chain", NULL, NULL, "{\"type\":\"Fuse\"}", model_unigram_chain, NULL, NULL},
    {"unigram_near", NULL, NULL, "{\"type\":\"Fuse\"}", model_unigram_near, NULL, NULL},
    {"large_ids", NULL, NULL, NULL, model_large_ids, NULL, NULL},
    /* hostile: added tokens */
    {"added_prefixed", NULL, BYTE_LEVEL, DEC_BYTES, model_bytes, added_prefixed, NULL},
    {"added_lengths", NULL, BYTE_LEVEL, DEC_BYTES, model_bytes, added_lengths, NULL},
    {"added_ladder", NORM("NFD"), BYTE_LEVEL, DEC_BYTES, model_bytes, added_ladder, NULL},
    {"added_many", NORM("NFKC"), BYTE_LEVEL, DEC_BYTES, model_bytes, added_many, NULL},
    {"added_strip", NULL, BYTE_LEVEL, DEC_BYTES, model_bytes, added_strip, NULL},
    /* hostile: patterns */
    {"re_nested", NULL, SPLIT("(a+)+$"), NULL, model_bytes, NULL, NULL},
    {"re_alternate", NULL, SPLIT("(a|aa)+[cd]"), NULL, model_bytes, NULL, NULL},
    {"re_empty_star", NULL, SPLIT("(?:a*)*[cd]"), NULL, model_bytes, NULL, NULL},
    {"re_stars", NULL, SPLIT(".*.*.*[cd]"), NULL, model_bytes, NULL, NULL},
    {"re_lookahead", NULL, SPLIT("a(?=.*[cd])"), NULL, model_bytes, NULL, NULL},
    {"re_lookahead_ok", NULL, SPLIT("a(?=.*b)"), NULL, model_bytes, NULL, NULL},
    {"re_negative", NULL, SPLIT("a(?!.*b)"), NULL, model_bytes, NULL, NULL},
    {"re_backreference", NULL, SPLIT("(a+)\\\\1[cd]"), NULL, model_bytes, NULL, NULL},
    {"re_lazy", NULL, SPLIT("a.*?[cd]"), NULL, model_bytes, NULL, NULL},
    {"re_class", NULL, SPLIT("[\\\\p{L}\\\\s]*[\\\\p{L}\\\\s]*[\\\\p{N}]"), NULL, model_bytes, NULL, NULL},
    {"re_groups", NULL, SPLIT("((((((((a*)*)*)*)*)*)*)*)[cd]"), NULL, model_bytes, NULL, NULL},
    {"re_repeat", NULL, SPLIT("(?:a{1,50}){1,50}[cd]"), NULL, model_bytes, NULL, NULL},
    {"re_behind", NULL, SPLIT("(?<=a)(?<!b)a?"), NULL, model_bytes, NULL, NULL},
    {"re_many", NULL, SEQ("pretokenizers", X8(SPLIT("."))), NULL, model_bytes, NULL, NULL},
    {"digits_pattern", NULL, SPLIT("\\\\d{1,3}(?=(?:\\\\d{3})*\\\\b)"), NULL, model_bytes, NULL, NULL},
    /* hostile: many or growing steps */
    {"norm_64", SEQ("normalizers", X8(X8("{\"type\":\"NFKC\"}"))), NULL, NULL, model_bytes, NULL, NULL},
    {"norm_mixed",
     SEQ("normalizers",
         X8("{\"type\":\"NFKD\"},{\"type\":\"NFKC\"},{\"type\":\"Lowercase\"},{\"type\":\"StripAccents\"}")),
     NULL, NULL, model_bytes, NULL, NULL},
    {"norm_grow", SEQ("normalizers", REPLACE("a", A32) "," REPLACE(" ", A32)), BYTE_LEVEL, DEC_BYTES, model_bytes, NULL,
     NULL},
    {"norm_grow_12", REPLACE_RE(".", "aaaaaaaaaaaa"), BYTE_LEVEL, DEC_BYTES, model_bytes, NULL, NULL},
    {"norm_grow_many", SEQ("normalizers", X8(REPLACE("a", "aa"))), NULL, NULL, model_bytes, NULL, NULL},
    {"norm_prepend", SEQ("normalizers", X8("{\"type\":\"Prepend\",\"prepend\":\"" A32 "\"}")), NULL, NULL, model_bytes,
     NULL, NULL},
    {"norm_empty", REPLACE_RE("", "xyz"), NULL, NULL, model_bytes, NULL, NULL},
    {"norm_regex", REPLACE_RE("(a|b)*[cd]", "x"), NULL, NULL, model_bytes, NULL, NULL},
    {"pre_grow", NULL, SEQ("pretokenizers", X8("{\"type\":\"ByteLevel\",\"use_regex\":false}")), DEC_BYTES, model_bytes,
     NULL, NULL},
    {"pre_prefix", NULL, SEQ("pretokenizers", SPLIT(".") "," X8("{\"type\":\"ByteLevel\",\"add_prefix_space\":true}")),
     DEC_BYTES, model_bytes, NULL, NULL},
    {"norms_1mb", NULL, NULL, NULL, model_bytes, NULL, more_norms},
    {"patterns_1mb", NULL, NULL, NULL, model_bytes, NULL, more_patterns},
    {"large_patterns_1mb", NULL, NULL, NULL, model_bytes, NULL, more_large_patterns},
    {"decoders_1mb", NULL, NULL, NULL, model_bytes, NULL, more_decoders},
    {"literal_1mb", NULL, NULL, NULL, model_bytes, NULL, more_literal},
    {"dec_literal_1mb", NULL, NULL, NULL, model_bytes, NULL, more_literal_decoder},
    {"nesting_1mb", NULL, NULL, NULL, model_bytes, NULL, more_nesting},
    {"re_long_literal", NULL, SPLIT("a{2000}b"), NULL, model_bytes, NULL, NULL},
    /* hostile: decoders */
    {"dec_many", NULL, BYTE_LEVEL, SEQ("decoders", X8(X8(REPLACE("a", "a")))), model_bytes, NULL, NULL},
    {"dec_strip", NULL, NULL,
     SEQ("decoders", "{\"type\":\"Fuse\"},{\"type\":\"Strip\",\"content\":\"a\",\"start\":0,\"stop\":1000000000}"),
     model_bytes, NULL, NULL},
    {"dec_grow", NULL, BYTE_LEVEL, SEQ("decoders", "{\"type\":\"ByteLevel\"}," REPLACE("a", A32)), model_bytes, NULL,
     NULL},
    {"dec_regex", NULL, BYTE_LEVEL, SEQ("decoders", REPLACE_RE("(a+)+[cd]", "b") "," REPLACE_RE("a", "b")), model_bytes,
     NULL, NULL},
    {"dec_regex_fused", NULL, BYTE_LEVEL, SEQ("decoders", "{\"type\":\"Fuse\"}," REPLACE_RE("a(?=.*[cd])", "b")),
     model_bytes, NULL, NULL},
    {"dec_bytes", NULL, NULL,
     SEQ("decoders", "{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},{\"type\":\"ByteFallback\"}"), model_spm, NULL,
     NULL},
};

/* ---- the run ---- */

enum { LOAD, ENCODE, DECODE, STREAM, N_TIMES };
static const char *const time_names[] = {"load", "encode", "decode", "stream"};

typedef struct outcome {
    double s[N_TIMES];
    size_t tokens;
    xd_status status;
    char error[1024];
} outcome;

static double cpu_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void put_json(xd_buf *o, const spec *s)
{
    xd_buf_puts(o, "{\"model\":");
    s->model(o);
    const char *const keys[] = {"normalizer", "pre_tokenizer", "decoder"}, *const values[] = {s->norm, s->pre, s->dec};
    for (size_t i = 0; i < XD_ARRAY_LEN(keys); i++)
        if (values[i])
            xd_buf_printf(o, ",\"%s\":%s", keys[i], values[i]);
    if (s->added) {
        xd_buf_puts(o, ",\"added_tokens\":[");
        s->added(o);
        xd_buf_puts(o, "]");
    }
    if (s->more)
        s->more(o);
    xd_buf_puts(o, "}");
}

static xd_status stream(const tokenizer *t, const tok_ids *ids, size_t *ret_bytes, xd_err *err)
{
    XD_CLEANUP(tok_stream_freep) tok_stream *s = tok_stream_new(t, true);
    xd_buf piece = {0};
    xd_status st = s ? XD_OK : xd_fail(err, XD_NOMEM, 0, "stream");
    for (size_t i = 0; i < ids->len && !st; i++) {
        xd_buf_clear(&piece);
        st = tok_stream_push(s, ids->data[i], &piece, err);
        *ret_bytes += piece.len;
    }
    xd_buf_clear(&piece);
    if (!st)
        st = tok_stream_flush(s, &piece, err);
    *ret_bytes += piece.len;
    xd_buf_free(&piece);
    return st;
}

static void measure(const spec *s, text_fn make, outcome *o)
{
    xd_buf json = {0}, text = {0}, whole = {0};
    put_json(&json, s);
    make(&text);
    tokenizer *t = NULL;
    tok_ids ids = {0};
    xd_err err;
    size_t streamed = 0;
    double at = cpu_s();
    xd_status st = tok_from_json(json.data, json.len, &t, &err);
    xd_buf_free(&json);
    o->s[LOAD] = cpu_s() - at;
    at = cpu_s();
    if (!st)
        st = tok_encode(t, text.data, text.len, TOK_ADD_SPECIAL | TOK_PARSE_SPECIAL, &ids, &err);
    o->s[ENCODE] = cpu_s() - at;
    o->tokens = ids.len;
    at = cpu_s();
    if (!st)
        st = tok_decode(t, ids.data, ids.len, true, &whole, &err);
    o->s[DECODE] = cpu_s() - at;
    at = cpu_s();
    if (!st)
        st = stream(t, &ids, &streamed, &err);
    o->s[STREAM] = cpu_s() - at;
    if (!st && streamed != whole.len)
        st = xd_fail(&err, XD_INTERNAL, 0, "WRONG: %zu bytes streamed, %zu decoded", streamed, whole.len);
    o->status = st;
    if (st)
        snprintf(o->error, sizeof o->error, "%s", err.msg);
    xd_buf_free(&text);
    xd_buf_free(&whole);
    tok_ids_free(&ids);
    tok_free(t);
}

static bool run_pair(const spec *s, const char *text_name, text_fn make, outcome *shared)
{
    *shared = (outcome){0};
    fflush(NULL);
    pid_t pid = fork();
    if (pid < 0) {
        perror("fork");
        return false;
    }
    if (!pid) {
        const struct rlimit cpu = {MAX_CPU_S, MAX_CPU_S + 1}, mem = {2 * MAX_MEMORY_BYTES, 2 * MAX_MEMORY_BYTES},
                            none = {0, 0};
        setrlimit(RLIMIT_CPU, &cpu);
        setrlimit(RLIMIT_CORE, &none);
        if (!IS_SANITIZED)
            setrlimit(RLIMIT_DATA, &mem);
        measure(s, make, shared);
        _exit(0);
    }
    int status = 0;
    struct rusage use;
    while (wait4(pid, &status, 0, &use) < 0 && errno == EINTR)
        ;
    bool ok = WIFEXITED(status) && WEXITSTATUS(status) == 0 && shared->status != XD_INTERNAL &&
              shared->status != XD_NOMEM && (IS_SANITIZED || use.ru_maxrss <= MAX_MEMORY_BYTES / 1024);
    printf("%s%-18s %-16s", ok ? "" : "FAILED ", s->name, text_name);
    for (size_t i = 0; i < N_TIMES; i++)
        printf(" %s %.0f", time_names[i], shared->s[i] * 1000);
    printf(" ms, %ld MiB, %zu tokens %s%s\n", use.ru_maxrss / 1024, shared->tokens, shared->error,
           WIFSIGNALED(status) ? " killed" : "");
    return ok;
}

static bool is_asked(const char *name, int argc, char **argv)
{
    bool asked = argc < 2 || !strcmp(argv[1], "quick");
    for (int i = 1; i < argc; i++)
        asked |= strstr(name, argv[i]) != NULL;
    return asked;
}

int main(int argc, char **argv)
{
    size_t n_texts = XD_ARRAY_LEN(texts);
    if (argc > 1 && !strcmp(argv[1], "quick")) {
        text_bytes = MB / QUICK_SHARE;
        n_texts = QUICK_TEXTS;
    }
    outcome *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return 1;
    unsigned n = 0, failed = 0;
    for (size_t i = 0; i < XD_ARRAY_LEN(specs); i++)
        for (size_t k = 0; k < n_texts && is_asked(specs[i].name, argc, argv); k++) {
            n++;
            failed += !run_pair(&specs[i], texts[k].name, texts[k].make, shared);
        }
    printf("%u pairs, %u failed\n", n, failed);
    munmap(shared, sizeof *shared);
    return n && !failed ? 0 : 1;
}
