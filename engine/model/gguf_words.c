/* gguf_words.c - what GGUF files say of text: the vocabulary, which tokens end an answer, the chat template. */
#include <string.h>

#include "engine/model/gguf.h"
#include "engine/model/model_priv.h"

xd_status model_gguf_vocabulary(const gguf *g, tok_gguf *t, xd_err *err)
{
    int64_t flag;
    xd_status st;
    *t = (tok_gguf){.model = gguf_string(g, "tokenizer.ggml.model"), .pre = gguf_string(g, "tokenizer.ggml.pre")};
    t->n_tokens = (uint32_t)gguf_strings(g, "tokenizer.ggml.tokens", &t->tokens);
    t->n_merges = (uint32_t)gguf_strings(g, "tokenizer.ggml.merges", &t->merges);
    if (gguf_f32s(g, "tokenizer.ggml.scores", &t->scores) != t->n_tokens)
        t->scores = NULL;
    if (gguf_i32s(g, "tokenizer.ggml.token_type", &t->types) != t->n_tokens)
        t->types = NULL;
    const int64_t last = (int64_t)t->n_tokens - 1;
    if (!t->model || !t->n_tokens)
        return XD_OK;
    /* what llama.cpp takes when a SentencePiece file does not say */
    bool llama = !strcmp(t->model, "llama") && last >= 2;
    if ((st = gguf_int(g, "tokenizer.ggml.bos_token_id", llama ? 1 : -1, 0, last, &t->bos_id, err)) ||
        (st = gguf_int(g, "tokenizer.ggml.eos_token_id", llama ? 2 : -1, 0, last, &t->eos_id, err)) ||
        (st = gguf_int(g, "tokenizer.ggml.unknown_token_id", llama ? 0 : -1, 0, last, &t->unk_id, err)) ||
        (st = gguf_int(g, "tokenizer.ggml.add_bos_token", tok_gguf_adds_bos(t->model, t->pre), 0, 1, &flag, err)))
        return st;
    t->add_bos = flag;
    if ((st = gguf_int(g, "tokenizer.ggml.add_eos_token", 0, 0, 1, &flag, err)))
        return st;
    t->add_eos = flag;
    if ((st = gguf_int(g, "tokenizer.ggml.add_space_prefix", 1, 0, 1, &flag, err)))
        return st;
    t->add_space_prefix = flag;
    return XD_OK;
}

static void add_end(model_params *p, int64_t id)
{
    for (uint32_t i = 0; i < p->n_eos; i++)
        if (p->eos_ids[i] == (uint32_t)id)
            return;
    if (id >= 0 && id < (int64_t)p->vocab && p->n_eos < XD_ARRAY_LEN(p->eos_ids))
        p->eos_ids[p->n_eos++] = (uint32_t)id;
}

/* What its family ends answers with. */
static xd_status read_own_ends(model *m, const model_arch *a, xd_err *err)
{
    const tok_gguf *t = &m->vocabulary;
    int64_t id;
    xd_status st = gguf_int(m->ggufs[0], "tokenizer.ggml.eos_token_id", -1, 0, (int64_t)m->params.vocab - 1, &id, err);
    if (st)
        return st;
    add_end(&m->params, id);
    for (uint32_t i = 0; i < t->n_tokens; i++)
        for (const char *const *end = a->ends; *end; end++)
            if (!strcmp(t->tokens[i], *end))
                add_end(&m->params, i);
    return XD_OK;
}

xd_status model_gguf_words(model *m, const model_arch *a, xd_err *err)
{
    const gguf *g = m->ggufs[0];
    const tok_gguf *t = &m->vocabulary;
    xd_status st = model_gguf_vocabulary(g, &m->vocabulary, err);
    if (st || !t->model || !t->n_tokens)
        return st; /* no tokenizer: token-id prompts only */
    m->params.bos_id = t->bos_id < (int64_t)m->params.vocab ? t->bos_id : -1;
    m->chat_template = gguf_string(g, "tokenizer.chat_template");
    if (a->ends)
        return read_own_ends(m, a, err);
    static const char *const ends[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    for (size_t i = 0; i < XD_ARRAY_LEN(ends); i++) {
        int64_t id;
        if ((st = gguf_int(g, ends[i], -1, 0, (int64_t)m->params.vocab - 1, &id, err)))
            return st;
        if (id >= 0)
            m->params.eos_ids[m->params.n_eos++] = (uint32_t)id;
    }
    return XD_OK;
}
