/* tok_gguf.c - the tokenizer that a GGUF file carries in its metadata.
 *
 * "gpt2" is byte-level BPE whose pattern goes by name (tokenizer.ggml.pre, the names of llama.cpp); an unknown name is
 * refused, because a wrong pattern gives a plausible but different tokenization. Where the model's own tokenizer.json is known to
 * normalize to NFC, so does this. "llama" is SentencePiece BPE: the pair whose joined token scores best is merged first, so a
 * rank per distinct score says the same as a list of merges. */
#include <stdlib.h>
#include <string.h>

#include "engine/text/tok_priv.h"

enum { TYPE_UNKNOWN = 2, TYPE_CONTROL = 3, TYPE_USER = 4, TYPE_BYTE = 6 };

#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define LLAMA3                                                                                                             \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|" \
    "\\s+(?!\\S)|\\s+"
#define QWEN2                                                                                                         \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|" \
    "\\s+(?!\\S)|\\s+"
#define GPT4O                                                                                                                 \
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|" \
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|" \
    "\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define TEKKEN                                                                                           \
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+|"         \
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*|\\p{N}| " \
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define DEEPSEEK_V3                                                                                     \
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| " \
    "?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"

#define QWEN35                                                                                                        \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" \
    "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define BAILING \
    "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+"
#define SEED_CODER \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1}| ?[^\\s\\p{L}\\p{N}\\r\\n]+|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define EXAONE_MOE                                                                                                                     \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?(?:\\p{L}\\p{M}*(?: \\p{L}\\p{M}*)*)+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]?|" \
    "\\s*[\\r\\n]|\\s+(?!\\S)|\\s+"
#define MINICPM5 \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}+| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define KIMI_UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]"
#define KIMI_LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]"
#define KIMI                                                                          \
    "[\\p{Han}]+|[^\\r\\n\\p{L}\\p{N}]?" KIMI_UPPER "*" KIMI_LOWER                    \
    "+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\\r\\n\\p{L}\\p{N}]?" KIMI_UPPER "+" KIMI_LOWER \
    "*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define JAIS2                                                                                                                   \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|"      \
    "\\s{512}(?!\\S)|\\s{256}(?!\\S)|\\s{128}(?!\\S)|\\s{64}(?!\\S)|\\s{32}(?!\\S)|\\s{16}(?!\\S)|\\s{8}(?!\\S)|\\s{4}(?!\\S)|" \
    "\\s{1,2}(?!\\S)|\\s{1}"
#define K2_HORIZON                                                                                            \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?(?:\\p{L}|\\p{M}|\\x{200c}|\\x{200d})+|\\p{N}{1,3}| " \
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define UFAKZEKA "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define SPARK                                                                                           \
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| " \
    "?[\\p{P}\\p{S}]+|[\r\n]|\\s+(?!\\S)|\\s+"
#define YOUTU_CJK \
    "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+"
#define YOUTU                                                                                                                 \
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|" \
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|" \
    "\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
/* Digits in threes from the right, all that is written without spaces, the rest. */
#define AFMOE_DIGITS "\\p{N}{1,3}(?=(?:\\p{N}{3})*(?!\\p{N}))"
#define AFMOE_CJK                                                                                                         \
    "[\\x{4e00}-\\x{9fff}\\x{3400}-\\x{4dbf}\\x{f900}-\\x{faff}\\x{3040}-\\x{30ff}\\x{ff65}-\\x{ff9f}\\x{2f00}-\\x{2fdf}" \
    "\\x{e00}-\\x{eff}\\x{1780}-\\x{17ff}\\x{1000}-\\x{109f}\\x{aa60}-\\x{aa7f}\\x{a9e0}-\\x{a9ff}\\x{ac00}-\\x{d7af}"    \
    "\\x{1100}-\\x{11ff}]+"
#define BLOOM " ?[^(\\s|.,!?…。，、।۔،)]+"
#define CJK   "[一-龥ࠀ-一가-퟿]+"
#define KANA  "[一-龥぀-ゟ゠-ヿ]+"
/* Latin, Greek, Cyrillic, Armenian, Georgian, Cherokee ... letters that have case. */
#define CASED                                                                                              \
    "\\s?["                                                                                                \
    "\\x{41}-\\x{5a}\\x{61}-\\x{7a}\\x{b5}\\x{c0}-\\x{d6}\\x{d8}-\\x{f6}\\x{f8}-\\x{1ba}\\x{1bc}-\\x{1bf}" \
    "\\x{1c4}-\\x{293}\\x{295}-\\x{2af}\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37b}-\\x{37d}\\x{37f}\\x{386}" \
    "\\x{388}-\\x{38a}\\x{38c}\\x{38e}-\\x{3a1}\\x{3a3}-\\x{3f5}\\x{3f7}-\\x{481}\\x{48a}-\\x{52f}"        \
    "\\x{531}-\\x{556}\\x{10a0}-\\x{10c5}\\x{13a0}-\\x{13f5}\\x{13f8}-\\x{13fd}\\x{1c90}-\\x{1cba}"        \
    "\\x{1cbd}-\\x{1cbf}\\x{1d00}-\\x{1d2b}\\x{1d6b}-\\x{1d77}\\x{1d79}-\\x{1d9a}\\x{1e00}-\\x{1f15}"      \
    "\\x{1f18}-\\x{1f1d}\\x{1f20}-\\x{1f45}\\x{1f48}-\\x{1f4d}\\x{1f50}-\\x{1f57}\\x{1f59}\\x{1f5b}"       \
    "\\x{1f5d}\\x{1f5f}-\\x{1f7d}\\x{1f80}-\\x{1fb4}\\x{1fb6}-\\x{1fbc}\\x{1fbe}\\x{1fc2}-\\x{1fc4}"       \
    "\\x{1fc6}-\\x{1fcc}\\x{1fd0}-\\x{1fd3}\\x{1fd6}-\\x{1fdb}\\x{1fe0}-\\x{1fec}\\x{1ff2}-\\x{1ff4}"      \
    "\\x{1ff6}-\\x{1ffc}\\x{2102}\\x{2107}\\x{210a}-\\x{2113}\\x{2115}\\x{2119}-\\x{211d}\\x{2124}"        \
    "\\x{2126}\\x{2128}\\x{212a}-\\x{212d}\\x{212f}-\\x{2134}\\x{2139}\\x{213c}-\\x{213f}"                 \
    "\\x{2145}-\\x{2149}\\x{214e}\\x{2183}\\x{2184}\\x{2c00}-\\x{2c7b}\\x{2c7e}-\\x{2ce4}"                 \
    "\\x{2ceb}-\\x{2cee}\\x{2cf2}\\x{2cf3}\\x{a640}-\\x{a66d}\\x{a680}-\\x{a69b}\\x{a722}-\\x{a76f}"       \
    "\\x{a771}-\\x{a787}\\x{a78b}-\\x{a78e}\\x{ab70}-\\x{abbf}\\x{fb00}-\\x{fb06}\\x{fb13}-\\x{fb17}"      \
    "\\x{ff21}-\\x{ff3a}\\x{ff41}-\\x{ff5a}\\x{10400}-\\x{1044f}\\x{104b0}-\\x{104d3}"                     \
    "\\x{104d8}-\\x{104fb}\\x{10c80}-\\x{10cb2}\\x{10cc0}-\\x{10cf2}\\x{118a0}-\\x{118df}"                 \
    "\\x{1e900}-\\x{1e943}"                                                                                \
    "]+"

enum { MAX_PATTERNS = 6 };

/* Each pattern cuts the pieces of the one before it (all as Split, isolated). */
static const struct {
    const char *name;
    const char *pattern[MAX_PATTERNS];
    bool ignore_merges, nfc;
} pres[] = {
    {"default", {"[\\p{P}\\$\\+<=>\\^~\\|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}, false, false},
    {"falcon", {"[\\p{P}\\$\\+<=>\\^~\\|`]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}, false, false},
    {"gpt-2", {GPT2}, false, false},
    {"olmo", {GPT2}, false, true},
    {"phi-2", {GPT2}, false, false},
    {"mpt", {GPT2}, false, true},
    {"jais", {GPT2}, false, false},
    {"gigachat", {GPT2}, false, false},
    {"a.x-4.0", {GPT2}, false, false},
    {"mellum", {GPT2}, false, false},
    {"exaone4", {GPT2}, false, false},
    {"trillion", {GPT2}, false, false},
    {"granite-docling", {GPT2}, false, false},
    {"llama3", {LLAMA3}, true, false},
    {"llama-v3", {LLAMA3}, true, false},
    {"llama-bpe", {LLAMA3}, true, false},
    {"falcon3", {LLAMA3}, true, false},
    {"falcon-h1", {LLAMA3}, true, false},
    {"pixtral", {LLAMA3}, true, false},
    {"midm-2.0", {LLAMA3}, true, false},
    {"lfm2", {LLAMA3}, true, false},
    {"smaug-bpe", {LLAMA3}, false, false},
    {"dbrx", {LLAMA3}, false, false},
    {"chatglm-bpe", {LLAMA3}, true, false},
    {"glm4", {LLAMA3}, true, false},
    {"glm5", {LLAMA3}, true, false},
    {"qwen2", {QWEN2}, false, true},
    {"deepseek-r1-qwen", {QWEN2}, false, true},
    {"megrez", {QWEN2}, false, false},
    {"stablelm2", {QWEN2}, false, false},
    {"hunyuan", {QWEN2}, false, false},
    {"solar-open", {QWEN2}, false, false},
    {"grok-2", {QWEN2}, false, false},
    {"kormo", {QWEN2}, false, false},
    {"f2llmv2", {QWEN2}, false, false},
    {"qwen35", {QWEN35}, false, true},
    {"gpt-4o", {GPT4O}, true, false},
    {"kanana2", {GPT4O}, false, false},
    {"talkie", {GPT4O}, false, false},
    {"minimax-m2", {GPT4O}, false, false},
    {"llama4", {GPT4O}, true, false},
    {"tekken", {TEKKEN}, true, false},
    {"deepseek-llm", {"[\r\n]", CASED, "\\s?[!-/:-~！-／：-～‘-‟　-。]+", "\\s+$", CJK, "\\p{N}"}, false, false},
    {"deepseek-coder", {"[\r\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", CJK, "\\p{N}"}, false, false},
    {"deepseek-v3", {"\\p{N}{1,3}", KANA, DEEPSEEK_V3}, false, false},
    {"hunyuan-dense", {"\\p{N}{1,3}", KANA, DEEPSEEK_V3}, false, false},
    {"joyai-llm", {"\\p{N}{1,3}", KANA, DEEPSEEK_V3}, false, false},
    {"hy_v4", {"\\p{N}{1,3}", KANA, DEEPSEEK_V3}, false, false},
    {"starcoder", {"\\p{N}", GPT2}, false, false},
    {"refact", {"\\p{N}", GPT2}, false, false},
    {"smollm", {"\\p{N}", GPT2}, false, false},
    {"command-r", {"\\p{N}", GPT2}, false, true},
    {"codeshell", {"\\p{N}", GPT2}, false, false},
    {"exaone", {"\\p{N}", GPT2}, false, false},
    {"minerva-7b", {"\\p{N}", GPT2}, false, false},
    {"mellum2", {"\\p{N}", GPT2}, false, false},
    {"bloom", {BLOOM}, false, false},
    {"poro-chat", {BLOOM}, false, false},
    {"gpt3-finnish", {BLOOM}, false, false},
    {"viking", {BLOOM, "\\p{N}"}, false, false},
    {"bailingmoe", {BAILING}, false, false},
    {"bailingmoe2", {BAILING}, false, false},
    {"llada-moe", {BAILING}, false, false},
    {"seed-coder", {SEED_CODER}, false, false},
    {"exaone-moe", {EXAONE_MOE}, false, false},
    {"minicpm5", {"\\p{N}{1,3}", MINICPM5}, true, false},
    {"kimi-k2", {KIMI}, true, false},
    {"laguna", {"[^\\n]+|[\\n]+", QWEN2}, false, false},
    {"tiny_aya", {"\\d{1,3}(?=(?:\\d{3})*\\b)", GPT4O}, false, false},
    {"cohere2moe", {"\\d{1,3}(?=(?:\\d{3})*\\b)", GPT4O}, false, false},
    {"jais-2", {JAIS2}, false, false},
    {"k2-horizon", {K2_HORIZON}, false, false},
    {"ufakzeka", {UFAKZEKA}, false, false},
    {"spark2_5", {"\\p{N}{1,3}", KANA, SPARK, "\\p{N}"}, false, false},
    {"youtu", {YOUTU_CJK, YOUTU}, true, false},
    {"afmoe", {AFMOE_DIGITS, AFMOE_CJK, DEEPSEEK_V3}, false, false},
    {"superbpe", {"\\p{N}+", "(?=(\\d{3})+(?!\\d))"}, false, false},
    {"chameleon",
     {"<sentinel:[0-9]+>", "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", "([\\t\\n]|    |  )", "\\p{N}",
      "[\\p{P}!-/:-@\\[-`{-~]", GPT2},
     false,
     false},
};

static int32_t type_of(const tok_gguf *g, uint32_t id)
{
    return g->types ? g->types[id] : 1;
}

static xd_status load_vocab(tokenizer *t, const tok_gguf *g, xd_err *err)
{
    if (!g->n_tokens || g->n_tokens >= TOK_MAX_ID)
        return xd_fail(err, XD_BAD_MODEL, 0, "tokenizer.ggml.tokens has %u entries; from 1 to %d are possible",
                       g->n_tokens, TOK_MAX_ID - 1);
    if (!tok_vocab_reserve(&t->vocab, g->n_tokens))
        return tok_no_memory(err);
    for (uint32_t i = 0; i < g->n_tokens; i++) {
        size_t len = g->tokens[i] ? strlen(g->tokens[i]) : 0, k = 0;
        int n;
        while (k < len && (n = xd_utf8_seq(g->tokens[i] + k, len - k)) > 0)
            k += (size_t)n;
        if (!g->tokens[i] || k < len)
            return xd_fail(err, XD_BAD_MODEL, 0, "tokenizer.ggml.tokens: entry %u is not UTF-8", i);
        if (!tok_vocab_put(&t->vocab, g->tokens[i], len, i))
            return tok_no_memory(err);
    }
    return XD_OK;
}

/* Control, user-defined and unknown tokens are matched in the text as they are. */
static xd_status load_added(tokenizer *t, const tok_gguf *g, xd_err *err)
{
    tok_work w = {.left = tok_work_for(0)};
    uint32_t next_id = g->n_tokens;
    xd_status st = XD_OK;
    if (!tok_added_reserve(t, g->n_tokens))
        return tok_no_memory(err);
    for (uint32_t i = 0; i < g->n_tokens && !st; i++) {
        int32_t type = type_of(g, i);
        if (type != TYPE_CONTROL && type != TYPE_USER && type != TYPE_UNKNOWN)
            continue;
        tok_added a = {
            .content = (char *)g->tokens[i], .content_len = strlen(g->tokens[i]), .special = type != TYPE_USER};
        if (tok_vocab_get(&t->vocab, a.content, a.content_len) == i)
            st = tok_add_token(t, &a, &next_id, &w, err);
    }
    tok_work_clear(&w);
    return st ? st : tok_added_finish(t, err);
}

static xd_status load_merges(tokenizer *t, const tok_gguf *g, xd_err *err)
{
    xd_buf joined = {0};
    xd_status st = XD_OK;
    if (!tok_bpe_reserve(&t->bpe, g->n_merges))
        return tok_no_memory(err);
    for (uint32_t i = 0; i < g->n_merges && !st; i++) {
        const char *m = g->merges[i], *sp = m && *m ? strchr(m + 1, ' ') : NULL;
        if (!sp) {
            st = xd_fail(err, XD_BAD_MODEL, 0, "tokenizer.ggml.merges: entry %u is not two tokens", i);
            break;
        }
        uint32_t left = tok_vocab_get(&t->vocab, m, (size_t)(sp - m)),
                 right = tok_vocab_get(&t->vocab, sp + 1, strlen(sp + 1));
        xd_buf_clear(&joined);
        xd_buf_append(&joined, m, (size_t)(sp - m));
        uint32_t id = xd_buf_puts(&joined, sp + 1) ? tok_vocab_get(&t->vocab, joined.data, joined.len) : TOK_NONE;
        if (joined.failed)
            st = tok_no_memory(err);
        else if (left == TOK_NONE || right == TOK_NONE || id == TOK_NONE)
            st = xd_fail(err, XD_BAD_MODEL, 0, "tokenizer.ggml.merges: entry %u is not of the vocabulary", i);
        else
            tok_bpe_put(&t->bpe, left, right, i, id);
    }
    xd_buf_free(&joined);
    return st;
}

static bool set_text(char **ret, size_t *ret_len, const char *s)
{
    *ret = strdup(s);
    *ret_len = strlen(s);
    return *ret != NULL;
}

/* Spaces are U+2581 in the vocabulary, and bytes that it lacks are tokens "<0xNN>". */
static xd_status spell_spaces(tokenizer *t, bool prefix, xd_err *err)
{
    if (!tok_grow(&t->norms, &t->norms_cap, 2, sizeof *t->norms) ||
        !tok_grow(&t->decs, &t->decs_cap, 4, sizeof *t->decs))
        return tok_no_memory(err);
    bool ok = true;
    if (prefix) {
        tok_norm *p = &t->norms[t->n_norms++];
        *p = (tok_norm){.kind = TOK_NORM_PREPEND};
        ok = set_text(&p->text, &p->text_len, "\xE2\x96\x81");
    }
    tok_norm *r = &t->norms[t->n_norms++];
    *r = (tok_norm){.kind = TOK_NORM_REPLACE};
    ok = ok && set_text(&r->text, &r->text_len, "\xE2\x96\x81");
    xd_status st = tok_regex_new_literal(" ", 1, &r->re, err);
    if (st)
        return st;
    tok_dec *d = &t->decs[t->n_decs++];
    *d = (tok_dec){.kind = TOK_DEC_REPLACE, .literal = true};
    ok = ok && set_text(&d->pattern, &d->pattern_len, "\xE2\x96\x81") && set_text(&d->text, &d->text_len, " ");
    t->decs[t->n_decs++] = (tok_dec){.kind = TOK_DEC_BYTE_FALLBACK};
    t->decs[t->n_decs++] = (tok_dec){.kind = TOK_DEC_FUSE};
    if (prefix)
        t->decs[t->n_decs++] = (tok_dec){.kind = TOK_DEC_STRIP, .ch = " ", .ch_len = 1, .start = 1};
    t->bpe.byte_fallback = true;
    t->kind = "SentencePiece BPE";
    return ok ? XD_OK : tok_no_memory(err);
}

/* Merges as a list, but over characters instead of the byte-level alphabet (Gemma 4, Sarvam). */
static xd_status load_raw(tokenizer *t, const tok_gguf *g, xd_err *err)
{
    static const char lines[] = "[^\\n]+|[\\n]+";
    if (!g->n_merges)
        return xd_fail(err, XD_UNSUPPORTED, 0, "tokenizer.ggml.merges is missing");
    xd_status st = load_merges(t, g, err);
    if (!st)
        st = spell_spaces(t, false, err);
    if (!st && !tok_grow(&t->pretoks, &t->pretoks_cap, 1, sizeof *t->pretoks))
        st = tok_no_memory(err);
    if (st)
        return st;
    tok_pretok *p = &t->pretoks[t->n_pretoks++];
    *p = (tok_pretok){.kind = TOK_PRE_SPLIT, .behavior = TOK_ISOLATED};
    return tok_regex_new(lines, strlen(lines), &p->re, err);
}

static bool is_raw(const tok_gguf *g)
{
    return !strcmp(g->model, "gemma4") || (!strcmp(g->model, "gpt2") && g->pre && !strcmp(g->pre, "sarvam-moe"));
}

typedef struct scored {
    float score;
    uint32_t id;
} scored;

static int by_score(const void *pa, const void *pb)
{
    const scored *a = pa, *b = pb;
    return a->score > b->score ? -1 : a->score < b->score ? 1 : a->id < b->id ? -1 : a->id > b->id;
}

/* Every way to cut a token in two tokens is a merge; its rank is the place of the joined token's score. */
static xd_status score_merges(tokenizer *t, const tok_gguf *g, xd_err *err)
{
    scored *order = malloc(g->n_tokens * sizeof *order);
    size_t n_pairs = 0;
    uint32_t n = 0, rank = 0;
    if (!order)
        return tok_no_memory(err);
    for (uint32_t i = 0; i < g->n_tokens; i++) {
        int32_t type = type_of(g, i);
        size_t len = t->vocab.len[i];
        if (type == TYPE_BYTE || type == TYPE_CONTROL || type == TYPE_UNKNOWN || (g->by_rank && type == TYPE_USER) ||
            len < 2 || tok_vocab_get(&t->vocab, g->tokens[i], len) != i)
            continue;
        order[n++] = (scored){g->scores[i] == g->scores[i] ? g->scores[i] : 0, i};
        n_pairs += len - 1;
    }
    qsort(order, n, sizeof *order, by_score);
    bool ok = tok_bpe_reserve(&t->bpe, n_pairs);
    for (uint32_t k = 0; ok && k < n; k++) {
        const char *s = t->vocab.text.data + t->vocab.off[order[k].id];
        size_t len = t->vocab.len[order[k].id];
        if (k && order[k].score != order[k - 1].score)
            rank++;
        for (size_t cut = 1; cut < len; cut++) {
            uint32_t left, right;
            if (((unsigned char)s[cut] & 0xC0) == 0x80 || (left = tok_vocab_get(&t->vocab, s, cut)) == TOK_NONE ||
                (right = tok_vocab_get(&t->vocab, s + cut, len - cut)) == TOK_NONE)
                continue;
            tok_bpe_put(&t->bpe, left, right, rank, order[k].id);
        }
    }
    free(order);
    return ok ? XD_OK : tok_no_memory(err);
}

static xd_status load_gpt2(tokenizer *t, const tok_gguf *g, xd_err *err)
{
    const char *name = g->pre ? g->pre : "default";
    size_t k = 0;
    while (k < XD_ARRAY_LEN(pres) && strcmp(pres[k].name, name))
        k++;
    if (k == XD_ARRAY_LEN(pres))
        return xd_fail(err, XD_UNSUPPORTED, 0, "tokenizer.ggml.pre: the pre-tokenizer '%.60s' is not known", name);
    if (!g->n_merges && !g->by_rank) /* it would cut every text into bytes */
        return xd_fail(err, XD_UNSUPPORTED, 0, "tokenizer.ggml.merges is missing");
    xd_status st = g->by_rank ? score_merges(t, g, err) : load_merges(t, g, err);
    t->bpe.ignore_merges = pres[k].ignore_merges;
    if (!st && (!tok_grow(&t->norms, &t->norms_cap, 1, sizeof *t->norms) ||
                !tok_grow(&t->pretoks, &t->pretoks_cap, MAX_PATTERNS + 1, sizeof *t->pretoks) ||
                !tok_grow(&t->decs, &t->decs_cap, 1, sizeof *t->decs)))
        st = tok_no_memory(err);
    if (st)
        return st;
    if (pres[k].nfc)
        t->norms[t->n_norms++] = (tok_norm){.kind = TOK_NORM_NFC};
    for (size_t i = 0; i < MAX_PATTERNS && pres[k].pattern[i] && !st; i++) {
        tok_pretok *p = &t->pretoks[t->n_pretoks++];
        *p = (tok_pretok){.kind = TOK_PRE_SPLIT, .behavior = TOK_ISOLATED};
        st = tok_regex_new(pres[k].pattern[i], strlen(pres[k].pattern[i]), &p->re, err);
    }
    t->pretoks[t->n_pretoks++] = (tok_pretok){.kind = TOK_PRE_BYTE_LEVEL, .add_prefix_space = false};
    t->decs[t->n_decs++] = (tok_dec){.kind = TOK_DEC_BYTE_LEVEL};
    t->kind = "byte-level BPE";
    return st;
}

static xd_status load_llama(tokenizer *t, const tok_gguf *g, xd_err *err)
{
    if (!g->scores)
        return xd_fail(err, XD_BAD_MODEL, 0, "tokenizer.ggml.scores is missing");
    xd_status st = score_merges(t, g, err);
    if (st)
        return st;
    t->bpe.fuse_unk = true;
    if (g->unk_id >= 0 && g->unk_id < g->n_tokens) {
        t->bpe.has_unk = true;
        t->bpe.unk_id = (uint32_t)g->unk_id;
    }
    return spell_spaces(t, g->add_space_prefix, err);
}

static xd_status load_ends(tokenizer *t, const tok_gguf *g, xd_err *err)
{
    bool bos = g->add_bos && g->bos_id >= 0, eos = g->add_eos && g->eos_id >= 0, ok = true;
    if ((bos && g->bos_id >= g->n_tokens) || (eos && g->eos_id >= g->n_tokens))
        return xd_fail(err, XD_BAD_MODEL, 0, "tokenizer.ggml: a BOS or EOS id outside the vocabulary");
    if (!bos && !eos)
        return XD_OK;
    if (!tok_grow(&t->posts, &t->posts_cap, 1, sizeof *t->posts))
        return tok_no_memory(err);
    tok_post *p = &t->posts[t->n_posts++];
    *p = (tok_post){0};
    if (bos)
        ok = tok_ids_push(&p->before, (uint32_t)g->bos_id);
    if (eos)
        ok = ok && tok_ids_push(&p->after, (uint32_t)g->eos_id);
    return ok ? XD_OK : tok_no_memory(err);
}

xd_status tok_from_gguf(const tok_gguf *g, tokenizer **ret, xd_err *err)
{
    bool llama = g->model && !strcmp(g->model, "llama");
    if (!llama && (!g->model || (strcmp(g->model, "gpt2") && strcmp(g->model, "gemma4"))))
        return xd_fail(err, XD_UNSUPPORTED, 0,
                       "tokenizer.ggml.model '%.60s' is not known; known are gemma4, gpt2 and llama",
                       g->model ? g->model : "");
    XD_CLEANUP(tok_freep) tokenizer *t = calloc(1, sizeof *t);
    if (!t)
        return tok_no_memory(err);
    t->model = TOK_MODEL_BPE;
    xd_status st = load_vocab(t, g, err);
    if (!st)
        st = llama ? load_llama(t, g, err) : is_raw(g) ? load_raw(t, g, err) : load_gpt2(t, g, err);
    if (!st)
        st = load_ends(t, g, err);
    if (!st)
        st = load_added(t, g, err);
    if (st)
        return st;
    tok_bpe_finish(&t->bpe, &t->vocab);
    *ret = XD_TAKE(t);
    return XD_OK;
}

bool tok_gguf_adds_bos(const char *model, const char *pre)
{
    static const char *const names[] = {"llama3",  "llama-v3", "llama-bpe", "falcon3", "falcon-h1",
                                        "pixtral", "midm-2.0", "lfm2",      "tekken",  "chameleon"};
    bool found = model && (!strcmp(model, "llama") || !strcmp(model, "gemma4"));
    for (size_t i = 0; !found && model && !strcmp(model, "gpt2") && pre && i < XD_ARRAY_LEN(names); i++)
        found = !strcmp(names[i], pre);
    return found;
}
