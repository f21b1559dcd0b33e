/* fuzz_encode.c - a hostile text for tokenizers of the kinds in use: the first byte picks one, the rest is the text. They are loaded
 * once, so that this runs ten times as often as the tokenizer target. */
#include <stdlib.h>

#include "tests/fuzz/tok_parts.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define E  "\xFF"
#define F  "\xFE"
#define MS "\xE2\x96\x81"
/* kinds as tok_parts.c numbers them */
#define BYTE_LEVEL     "p\x02\x00"
#define BYTE_LEVEL_GPT "p\x02\x03"
#define SPLIT          "p\x01\x02"
#define DECODE_BYTES   "d\x00"
#define SPECIALS                                       \
    "a\x10<s>" E "a\x10</s>" E "a\x1e<mask>" E "a\x00" \
    "ab" E "a\x09"                                     \
    "c d" E "a\x0c"                                    \
    "e" E

static const struct {
    const char *spec;
    size_t len;
} specs[] = {
#define SPEC(s)          \
    {                    \
        s, sizeof(s) - 1 \
    }
    /* GPT-2, with a space in front; Llama-3; Qwen 2; o200k; DeepSeek V3 */
    SPEC("\x02" BYTE_LEVEL_GPT E DECODE_BYTES E SPECIALS "t\x01"),
    SPEC("\x02"
         "o\x02" E SPLIT "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
         "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+" E BYTE_LEVEL E DECODE_BYTES E SPECIALS),
    SPEC("\x02"
         "n\x00" E SPLIT "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "
         "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+" E BYTE_LEVEL E DECODE_BYTES E SPECIALS),
    SPEC(
        "\x02"
        "o\x02" E SPLIT
        "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+(?i:'s|'t|'re|'ve|'m|'"
        "ll|'d)?|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*(?i:'s|'t|'re|'"
        "ve|'m|'ll|'d)?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+" E BYTE_LEVEL E
            DECODE_BYTES E SPECIALS),
    SPEC("\x02" SPLIT "\\p{N}{1,3}" E SPLIT
         "[\xE4\xB8\x80-\xE9\xBE\xA5\xE3\x81\x80-\xE3\x82\x9F\xE3\x82\xA0-\xE3\x83\xBF]+" E SPLIT
         "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| "
         "?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+" E BYTE_LEVEL E DECODE_BYTES E SPECIALS),
    /* Llama-2: legacy and new Metaspace; Gemma; StarCoder; a CLIP-like one; T5-like Unigram */
    SPEC("\x02"
         "o\x0d" E "n\x0b" MS E "n\x09"
         " " F MS E "d\x05" MS F " " E "d\x02" E "d\x03" E "d\x04\x01 " E SPECIALS),
    SPEC("\x02"
         "o\x0d" E "p\x07\x00" MS E "d\x05" MS F " " E "d\x02" E "d\x03" E "d\x04\x01 " E SPECIALS "t\x01"),
    SPEC("\x02"
         "o\x05" E "n\x09"
         " " F MS E "p\x00\x04 " E "d\x05" MS F " " E "d\x02" E "d\x03" E SPECIALS),
    SPEC("\x02"
         "p\x03\x01" E BYTE_LEVEL_GPT E DECODE_BYTES E SPECIALS),
    SPEC("\x02"
         "o\x04" E "c" F "</w>" F "<unk>" E "v"
         "a</w>" E "v"
         "b</w>" E "n\x00" E "n\x0a\\s+" F " " E "n\x04" E "p\x01\x01's|'t|[\\p{L}]+|[\\p{N}]|[^\\s\\p{L}\\p{N}]+" E
         "d\x07</w>" E SPECIALS),
    SPEC("\x03"
         "o\x04" E "n\x02" E "n\x0a {2,}" F " " E "p\x06" E "p\x07\x05" MS E "d\x01\x05" MS E SPECIALS "t\x01"),
    SPEC("\x03"
         "o\x05" E "n\x03" E "n\x06" E "n\x07" E "n\x05\x03" E "p\x07\x04" MS E "d\x02" E "d\x01\x04" MS E SPECIALS),
    SPEC("\x02"
         "n\x08" E "p\x04\x04" E "p\x05" E "d\x00" E "d\x06"
         "a+" F "b" E SPECIALS),
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static tokenizer *loaded[XD_ARRAY_LEN(specs)];
    if (!size)
        return 0;
    size_t k = data[0] % XD_ARRAY_LEN(specs), none_len;
    const char *none;
    if (!loaded[k])
        loaded[k] = tok_parts_load(specs[k].spec, specs[k].len, &none, &none_len);
    if (!loaded[k])
        abort();
    tok_parts_check(loaded[k], (const char *)data + 1, size - 1);
    return 0;
}
