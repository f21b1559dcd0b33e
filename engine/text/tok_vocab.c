/* tok_vocab.c - strings and their ids, and the few facts about characters that tokenizers ask for.
 *
 * The vocabulary is one arena of NUL-terminated strings with an open-addressing table (xxhash) over it. */
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include <utf8proc.h>
#include <xxhash.h>

#include "engine/text/tok_priv.h"

bool tok_grow(void *array_ptr, size_t *cap, size_t need, size_t elem_bytes)
{
    if (need <= *cap)
        return true;
    size_t n = XD_MAX(need, *cap + *cap / 2 + 16), bytes;
    if (!xd_mul_size(&bytes, n, elem_bytes))
        return false;
    void *p = realloc(*(void **)array_ptr, bytes);
    if (!p)
        return false;
    *(void **)array_ptr = p;
    *cap = n;
    return true;
}

uint64_t tok_hash_seed(void)
{
    uint64_t seed = 0;
    if (getrandom(&seed, sizeof seed, GRND_NONBLOCK) != sizeof seed)
        seed = xd_now_ns();
    return seed;
}

xd_status tok_too_long(xd_err *err, const char *what)
{
    return xd_fail_field(err, XD_UNSUPPORTED, NULL, TOK_TOO_COSTLY, "%s would take too long on this text", what);
}

bool tok_ids_push(tok_ids *ids, uint32_t id)
{
    if (ids->len == ids->cap && !tok_grow(&ids->data, &ids->cap, ids->len + 1, sizeof *ids->data))
        return false;
    ids->data[ids->len++] = id;
    return true;
}

xd_status tok_ids_check(const tok_ids *ids, xd_err *err)
{
    if (!ids->max || ids->len <= ids->max)
        return XD_OK;
    return xd_fail_field(err, XD_TOO_LARGE, NULL, TOK_TOO_MANY, "the text has more than %zu tokens", ids->max);
}

void tok_ids_free(tok_ids *ids)
{
    free(ids->data);
    *ids = (tok_ids){0};
}

void tok_vocab_clear(tok_vocab *v)
{
    xd_buf_free(&v->text);
    free(v->off);
    free(v->len);
    free(v->slots);
    *v = (tok_vocab){0};
}

bool tok_vocab_reserve(tok_vocab *v, size_t n_entries)
{
    size_t slots = 16;
    while (slots < n_entries * 2)
        slots *= 2;
    v->slots = calloc(slots, sizeof *v->slots);
    v->seed = tok_hash_seed();
    v->mask = (uint32_t)(slots - 1);
    return v->slots != NULL;
}

/* The slot of s: its own, or the empty one where it would go. */
static tok_vocab_slot *vocab_slot(const tok_vocab *v, const char *s, size_t len)
{
    uint64_t h = XXH3_64bits_withSeed(s, len, v->seed);
    uint32_t tag = (uint32_t)(h >> 32);
    for (uint32_t i = (uint32_t)h & v->mask;; i = (i + 1) & v->mask) {
        tok_vocab_slot *slot = &v->slots[i];
        if (!slot->id1)
            return slot;
        uint32_t id = slot->id1 - 1;
        if (slot->tag == tag && v->len[id] == len && !memcmp(v->text.data + v->off[id], s, len))
            return slot;
    }
}

bool tok_vocab_put(tok_vocab *v, const char *s, size_t len, uint32_t id)
{
    if (id >= v->n_ids) {
        if (!tok_grow(&v->off, &v->ids_cap, (size_t)id + 1, sizeof *v->off) ||
            !tok_grow(&v->len, &v->len_cap, (size_t)id + 1, sizeof *v->len))
            return false;
        for (uint32_t i = v->n_ids; i <= id; i++) {
            v->off[i] = TOK_NONE;
            v->len[i] = 0;
        }
        v->n_ids = id + 1;
    }
    tok_vocab_slot *slot = vocab_slot(v, s, len);
    if (!slot->id1)
        v->n_entries++;
    size_t off = v->text.len;
    if (off + len >= UINT32_MAX || !xd_buf_append(&v->text, s, len) || !xd_buf_putc(&v->text, 0))
        return false;
    v->off[id] = (uint32_t)off;
    v->len[id] = (uint32_t)len;
    *slot = (tok_vocab_slot){id + 1, (uint32_t)(XXH3_64bits_withSeed(s, len, v->seed) >> 32)};
    return true;
}

uint32_t tok_vocab_get(const tok_vocab *v, const char *s, size_t len)
{
    return v->slots ? vocab_slot(v, s, len)->id1 - 1 : TOK_NONE;
}

void tok_byte_tokens(const tok_vocab *v, uint32_t ret_ids[256])
{
    for (int i = 0; i < 256; i++) {
        static const char hex[] = "0123456789ABCDEF";
        const char name[] = {'<', '0', 'x', hex[i >> 4], hex[i & 15], '>'};
        ret_ids[i] = tok_vocab_get(v, name, 6);
    }
}

size_t tok_cp_put(uint32_t cp, char out[4])
{
    return (size_t)utf8proc_encode_char((utf8proc_int32_t)cp, (utf8proc_uint8_t *)out);
}

bool tok_cp_is_space(uint32_t cp)
{
    if (cp < 0x80)
        return cp == ' ' || (cp >= 9 && cp <= 13);
    return cp == 0x85 || cp == 0xA0 || cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200A) || cp == 0x2028 || cp == 0x2029 ||
           cp == 0x202F || cp == 0x205F || cp == 0x3000;
}

static utf8proc_category_t category(uint32_t cp)
{
    return utf8proc_category((utf8proc_int32_t)cp);
}

bool tok_cp_in(const uint32_t (*ranges)[2], size_t n, uint32_t cp)
{
    size_t lo = 0, hi = n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (ranges[mid][1] < cp)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < n && ranges[lo][0] <= cp;
}

/* Where the reference's tables and those of utf8proc 2.8 (Unicode 15) differ: \w of its regular expressions is Unicode 16,
 * numbers are Unicode 17, and its punctuation is that of Unicode 8 with two characters that are symbols today. */
static const uint32_t newer_words[][2] = {
    {0x897, 0x897},     {0x1C89, 0x1C8A},   {0xA7CB, 0xA7CD},   {0xA7DA, 0xA7DC},   {0x105C0, 0x105F3},
    {0x10D40, 0x10D65}, {0x10D69, 0x10D6D}, {0x10D6F, 0x10D85}, {0x10EC2, 0x10EC4}, {0x10EFC, 0x10EFC},
    {0x11380, 0x11389}, {0x1138B, 0x1138B}, {0x1138E, 0x1138E}, {0x11390, 0x113B5}, {0x113B7, 0x113C0},
    {0x113C2, 0x113C2}, {0x113C5, 0x113C5}, {0x113C7, 0x113CA}, {0x113CC, 0x113D3}, {0x113E1, 0x113E2},
    {0x116D0, 0x116E3}, {0x11BC0, 0x11BE0}, {0x11BF0, 0x11BF9}, {0x11F5A, 0x11F5A}, {0x13460, 0x143FA},
    {0x16100, 0x16139}, {0x16D40, 0x16D6C}, {0x16D70, 0x16D79}, {0x18CFF, 0x18CFF}, {0x1CCF0, 0x1CCF9},
    {0x1E5D0, 0x1E5FA}, {0x2EBF0, 0x2EE5D}};
static const uint32_t newer_numbers[][2] = {{0x10D40, 0x10D49}, {0x116D0, 0x116E3}, {0x11BF0, 0x11BF9},
                                            {0x11DE0, 0x11DE9}, {0x16130, 0x16139}, {0x16D70, 0x16D79},
                                            {0x16FF4, 0x16FF6}, {0x1CCF0, 0x1CCF9}, {0x1E5F1, 0x1E5FA}};
static const uint32_t older_punct[][2] = {{0x166D, 0x166D}, {0x111C9, 0x111C9}};
static const uint32_t newer_punct[][2] = {
    {0x61D, 0x61D},     {0x9FD, 0x9FD},     {0xA76, 0xA76},     {0xC77, 0xC77},     {0xC84, 0xC84},
    {0x1B7D, 0x1B7E},   {0x2E43, 0x2E4F},   {0x2E52, 0x2E5D},   {0x10EAD, 0x10EAD}, {0x10F55, 0x10F59},
    {0x10F86, 0x10F89}, {0x1144B, 0x1144F}, {0x1145A, 0x1145B}, {0x1145D, 0x1145D}, {0x11660, 0x1166C},
    {0x116B9, 0x116B9}, {0x1183B, 0x1183B}, {0x11944, 0x11946}, {0x119E2, 0x119E2}, {0x11A3F, 0x11A46},
    {0x11A9A, 0x11A9C}, {0x11A9E, 0x11AA2}, {0x11B00, 0x11B09}, {0x11C41, 0x11C45}, {0x11C70, 0x11C71},
    {0x11EF7, 0x11EF8}, {0x11F43, 0x11F4F}, {0x11FFF, 0x11FFF}, {0x12FF1, 0x12FF2}, {0x16E97, 0x16E9A},
    {0x16FE2, 0x16FE2}, {0x1E95E, 0x1E95F}};

bool tok_cp_is_numeric(uint32_t cp)
{
    if (cp < 0x80)
        return cp >= '0' && cp <= '9';
    utf8proc_category_t c = category(cp);
    return c == UTF8PROC_CATEGORY_ND || c == UTF8PROC_CATEGORY_NL || c == UTF8PROC_CATEGORY_NO ||
           tok_cp_in(newer_numbers, XD_ARRAY_LEN(newer_numbers), cp);
}

bool tok_cp_is_punct(uint32_t cp)
{
    if (cp < 0x80)
        return (cp >= 33 && cp <= 47) || (cp >= 58 && cp <= 64) || (cp >= 91 && cp <= 96) || (cp >= 123 && cp <= 126);
    utf8proc_category_t c = category(cp);
    if (c >= UTF8PROC_CATEGORY_PC && c <= UTF8PROC_CATEGORY_PO)
        return !tok_cp_in(newer_punct, XD_ARRAY_LEN(newer_punct), cp);
    return tok_cp_in(older_punct, XD_ARRAY_LEN(older_punct), cp);
}

bool tok_cp_is_word(uint32_t cp)
{
    if (cp < 0x80)
        return (cp >= '0' && cp <= '9') || (cp >= 'A' && cp <= 'Z') || (cp >= 'a' && cp <= 'z') || cp == '_';
    utf8proc_category_t c = category(cp);
    return (c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO) ||
           (c >= UTF8PROC_CATEGORY_MN && c <= UTF8PROC_CATEGORY_ME) || c == UTF8PROC_CATEGORY_ND ||
           c == UTF8PROC_CATEGORY_NL || c == UTF8PROC_CATEGORY_PC || cp == 0x200C || cp == 0x200D ||
           (cp >= 0x24B6 && cp <= 0x24E9) /* Alphabetic by Other_Alphabetic: circled letters */ ||
           (cp >= 0x1F130 && cp <= 0x1F149) || (cp >= 0x1F150 && cp <= 0x1F169) || (cp >= 0x1F170 && cp <= 0x1F189) ||
           tok_cp_in(newer_words, XD_ARRAY_LEN(newer_words), cp);
}

/* Bytes that the alphabet shows as themselves. */
static bool byte_is_shown(unsigned b)
{
    return (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
}

uint32_t tok_byte_to_cp(unsigned char byte)
{
    if (byte_is_shown(byte))
        return byte;
    /* the others in order: 00-20, 7F-A0, AD */
    return byte <= 0x20 ? 0x100u + byte : byte <= 0xA0 ? 0x121u + (byte - 0x7Fu) : 0x143u;
}

int tok_cp_to_byte(uint32_t cp)
{
    if (cp < 0x100)
        return byte_is_shown(cp) ? (int)cp : -1;
    if (cp <= 0x120)
        return (int)(cp - 0x100);
    if (cp <= 0x142)
        return (int)(cp - 0x121 + 0x7F);
    return cp == 0x143 ? 0xAD : -1;
}
