/* fuzz_tokenizer.c - a tokenizer and a text, both hostile. An input that begins with '{' is "tokenizer.json \0 text"; any other is
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
    if (size && data[0] == '{') {
        const uint8_t *nul = memchr(data, 0, size);
        size_t json = nul ? (size_t)(nul - data) : size;
        if (nul) {
            text = (const char *)nul + 1;
            len = size - json - 1;
        }
        if (tok_from_json((const char *)data, json, &t, &err))
            return 0;
    } else if (!(t = tok_parts_load((const char *)data, size, &text, &len))) {
        return 0;
    }
    tok_parts_check(t, text, len);
    tok_free(t);
    return 0;
}
