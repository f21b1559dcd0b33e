/* fuzz_tokenizer.c - a tokenizer and a text, both hostile. An input that begins with '{' is "tokenizer.json \0 text", one that begins
 * with '}' is that byte and "tiktoken.model \0 text"; any other is
 * a list of parts from which a tokenizer.json is built (tok_parts.h): mutations of it reach deeper than those of raw JSON.
 * Loads, encodes, decodes, streams. */
#include <string.h>

#include "tests/fuzz/tok_parts.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    tokenizer *t = NULL;
    const char *text = "";
    size_t len = 0;
    xd_err err;
    if (size && (data[0] == '{' || data[0] == '}')) {
        static const char kimi[] = "{\"auto_map\":{\"AutoTokenizer\":\"tokenization_kimi.TikTokenTokenizer\"},"
                                   "\"added_tokens_decoder\":{\"300\":{\"content\":\"<|im_end|>\",\"special\":true}}}";
        const uint8_t *nul = memchr(data, 0, size);
        size_t file = nul ? (size_t)(nul - data) : size;
        if (nul) {
            text = (const char *)nul + 1;
            len = size - file - 1;
        }
        if (data[0] == '{' ? tok_from_json((const char *)data, file, &t, &err)
                           : tok_from_tiktoken((const char *)data + 1, file - 1, kimi, strlen(kimi), &t, &err))
            return 0;
    } else if (!(t = tok_parts_load((const char *)data, size, &text, &len))) {
        return 0;
    }
    tok_parts_check(t, text, len);
    tok_free(t);
    return 0;
}
