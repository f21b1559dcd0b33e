/* words.c - see words.h. Serving, `check` and `tokenize` must see the same tokenizer, and the same fault of it. */
#include "engine/words.h"

xd_status words_open(const model *m, tokenizer **ret, xd_err *err)
{
    XD_CLEANUP(tok_freep) tokenizer *t = NULL;
    tok_gguf g;
    xd_status st;
    if (model_get_vocabulary(m, &g))
        st = tok_from_gguf(&g, &t, err);
    else if (*model_dir(m))
        st = tok_from_dir(model_dir(m), &t, err);
    else
        st = xd_fail(err, XD_NOT_FOUND, 0, "the model carries no tokenizer");
    if (!st && tok_vocab_size(t) > model_get_params(m)->vocab)
        st =
            xd_fail(err, XD_BAD_MODEL, 0, "the tokenizer has %u tokens, the model only %u: they do not belong together",
                    tok_vocab_size(t), model_get_params(m)->vocab);
    if (!st)
        *ret = XD_TAKE(t);
    return st;
}
