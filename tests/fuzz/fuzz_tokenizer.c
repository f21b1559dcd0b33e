/* fuzz_tokenizer.c - a tokenizer.json and a text, both hostile: "JSON \0 text". Loads, encodes, decodes, streams.
 * Checks that a stream gives the same text as the whole and never a broken character. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_stream(const tokenizer *t, const tok_ids *ids, bool skip)
{
    xd_buf whole = {0}, pieces = {0};
    tok_stream *s = tok_stream_new(t, skip);
    xd_err err;
    if (s && !tok_decode(t, ids->data, ids->len, skip, &whole, &err)) {
        xd_status st = XD_OK;
        for (size_t i = 0; i < ids->len && !st; i++)
            st = tok_stream_push(s, ids->data[i], &pieces, &err);
        if (!st && !tok_stream_flush(s, &pieces, &err)) {
            if (pieces.len != whole.len || (whole.len && memcmp(pieces.data, whole.data, whole.len)))
                abort();
            for (size_t i = 0; i < pieces.len;) {
                int n = xd_utf8_seq(pieces.data + i, pieces.len - i);
                if (n <= 0)
                    abort();
                i += (size_t)n;
            }
        }
    }
    tok_stream_free(s);
    xd_buf_free(&whole);
    xd_buf_free(&pieces);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *nul = size ? memchr(data, 0, size) : NULL;
    size_t json = nul ? (size_t)(nul - data) : size;
    const char *text = nul ? (const char *)nul + 1 : "";
    size_t len = nul ? size - json - 1 : 0;
    tokenizer *t = NULL;
    xd_err err;
    if (tok_from_json((const char *)data, json, &t, &err))
        return 0;
    tok_ids ids = {0};
    xd_buf bytes = {0};
    for (unsigned flags = 0; flags < 4; flags++)
        if (tok_encode(t, text, len, flags, &ids, &err))
            break;
    if (tok_encode_trusted(t, text, (const uint8_t *)text, len, 0, &ids, &err) == XD_OK)
        for (size_t i = 0; i < len && i < 64; i++)
            if (!tok_ids_push(&ids, (uint8_t)text[i]))
                break;
    check_stream(t, &ids, true);
    check_stream(t, &ids, false);
    for (size_t i = 0; i < ids.len && i < 16; i++)
        (void)tok_token_bytes(t, ids.data[i], &bytes);
    xd_buf_free(&bytes);
    tok_ids_free(&ids);
    tok_free(t);
    return 0;
}
