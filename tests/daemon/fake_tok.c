/* fake_tok.c - no tokenizer. */
#include "engine/text/tokenizer.h"

xd_status tok_from_dir(const char *dir, tokenizer **ret, xd_err *err)
{
    (void)ret;
    return xd_fail(err, XD_NOT_FOUND, 0, "%s: no tokenizer", dir);
}

xd_status tok_from_gguf(const tok_gguf *g, tokenizer **ret, xd_err *err)
{
    (void)g, (void)ret;
    return xd_fail(err, XD_NOT_FOUND, 0, "no tokenizer");
}

xd_status tok_encode(const tokenizer *t, const char *text, size_t len, unsigned flags, tok_ids *ret, xd_err *err)
{
    (void)t, (void)text, (void)len, (void)flags, (void)ret;
    return xd_fail(err, XD_NOT_FOUND, 0, "no tokenizer");
}

void tok_free(tokenizer *t)
{
    (void)t;
}

void tok_ids_free(tok_ids *ids)
{
    free(ids->data);
}

const char *tok_token_text(const tokenizer *t, uint32_t id)
{
    (void)t, (void)id;
    return NULL;
}

const char *tok_kind(const tokenizer *t)
{
    (void)t;
    return "none";
}
