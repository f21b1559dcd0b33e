/* tok_tiktoken.c - Kimi's tokenizer, which is no tokenizer.json: the ranks of OpenAI's tiktoken and a pattern in Python.
 *
 * `tiktoken.model` has a line for each token, `BASE64 RANK`. Two tokens are merged if together they are a token, the lowest rank first;
 * a piece of the text that is a token is taken as it is. The other tokens stand in tokenizer_config.json. The pattern is code of
 * the model's folder, which is not run: its name says that it is Kimi's, and any other is refused. What Kimi's code does beyond
 * that is left out: it cuts texts of 400,000 characters, and 25,000 without white space, before anything else. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/tok_priv.h"

enum { MAX_LINE = 4096, TYPE_NORMAL = 1, TYPE_CONTROL = 3, TYPE_USER = 4 };

typedef struct tokens {
    char **text;    /* [n], in the byte-level alphabet */
    int32_t *types; /* [n] */
    float *scores;  /* [n] a token of a lower rank is merged first */
    uint32_t n, n_ranks;
} tokens;

static void tokens_clear(tokens *t)
{
    for (uint32_t i = 0; t->text && i < t->n; i++)
        free(t->text[i]);
    free((void *)t->text);
    free(t->types);
    free(t->scores);
}

static bool is_kimi(const json_t *config)
{
    const json_t *v = json_object_get(json_object_get(config, "auto_map"), "AutoTokenizer");
    const char *name = json_string_value(json_is_array(v) ? json_array_get(v, 0) : v);
    return name && (strstr(name, "tokenization_kimi.TikTokenTokenizer") ||
                    strstr(name, "tokenization_moonshot.TikTokenTokenizer"));
}

/* -1: the key is no id. */
static int64_t id_of(const char *key)
{
    char *end;
    unsigned long id = strtoul(key, &end, 10);
    return *key >= '0' && *key <= '9' && !*end && id < TOK_MAX_ID ? (int64_t)id : -1;
}

static xd_status make_room(tokens *t, const char *ranks, size_t len, const json_t *added, xd_err *err)
{
    for (const char *s = ranks, *end = ranks + len; s < end && t->n_ranks < TOK_MAX_ID; t->n_ranks++) {
        const char *line = memchr(s, '\n', (size_t)(end - s));
        s = line ? line + 1 : end;
    }
    t->n = t->n_ranks;
    const char *key;
    json_t *v;
    json_object_foreach ((json_t *)(uintptr_t)added, key, v) {
        int64_t id = id_of(key);
        if (id < 0 || !json_is_string(json_object_get(v, "content")))
            return xd_fail(err, XD_BAD_MODEL, 0, "tokenizer_config.json: added_tokens_decoder has no token at '%.20s'",
                           key);
        t->n = XD_MAX(t->n, (uint32_t)id + 1);
    }
    if (t->n >= TOK_MAX_ID)
        return xd_fail(err, XD_BAD_MODEL, 0, "tiktoken.model: more than %d tokens", TOK_MAX_ID - 1);
    t->text = (char **)calloc(t->n + 1, sizeof *t->text);
    t->types = calloc(t->n + 1, sizeof *t->types);
    t->scores = calloc(t->n + 1, sizeof *t->scores);
    return t->text && t->types && t->scores ? XD_OK : tok_no_memory(err);
}

static xd_status read_ranks(tokens *t, const char *ranks, size_t len, xd_err *err)
{
    XD_CLEANUP(xd_buf_free) xd_buf bytes = {0};
    XD_CLEANUP(xd_buf_free) xd_buf text = {0};
    const char *s = ranks, *end = ranks + len;
    for (uint32_t i = 0; i < t->n_ranks; i++) {
        const char *line = memchr(s, '\n', (size_t)(end - s)), *stop = line ? line : end;
        const char *space = memchr(s, ' ', (size_t)(stop - s));
        char want[16];
        int n = snprintf(want, sizeof want, "%u", i);
        size_t rank_len = space ? (size_t)(stop - space) - 1 : 0;
        rank_len -= rank_len && stop[-1] == '\r';
        xd_buf_clear(&bytes);
        xd_buf_clear(&text);
        bool ok = space && space > s && stop - s < MAX_LINE && rank_len == (size_t)n &&
                  !memcmp(space + 1, want, (size_t)n) && tok_base64_decode(s, (size_t)(space - s), &bytes) && bytes.len;
        if (bytes.failed || (ok && !tok_byte_level_append(&text, bytes.data, bytes.len)))
            return tok_no_memory(err);
        if (!ok)
            return xd_fail(err, XD_BAD_MODEL, 0,
                           "tiktoken.model, line %u: a token in base64 and its rank %u are expected", i + 1, i);
        if (!(t->text[i] = strdup(text.data)))
            return tok_no_memory(err);
        t->types[i] = TYPE_NORMAL;
        t->scores[i] = -(float)i;
        s = line ? line + 1 : end;
    }
    return XD_OK;
}

static xd_status read_added(tokens *t, const json_t *added, xd_err *err)
{
    const char *key;
    json_t *v;
    json_object_foreach ((json_t *)(uintptr_t)added, key, v) {
        uint32_t id = (uint32_t)id_of(key);
        if (id < t->n_ranks || t->text[id])
            return xd_fail(err, XD_BAD_MODEL, 0,
                           "tokenizer_config.json: added_tokens_decoder has '%.20s', which is a token already", key);
        if (!(t->text[id] = strdup(json_string_value(json_object_get(v, "content")))))
            return tok_no_memory(err);
        t->types[id] = json_is_true(json_object_get(v, "special")) ? TYPE_CONTROL : TYPE_USER;
    }
    for (uint32_t i = t->n_ranks; i < t->n; i++) {
        if (t->text[i])
            continue;
        char name[40];
        snprintf(name, sizeof name, "<|reserved_token_%u|>", i);
        if (!(t->text[i] = strdup(name)))
            return tok_no_memory(err);
        t->types[i] = TYPE_CONTROL;
    }
    return XD_OK;
}

xd_status tok_from_tiktoken(const char *ranks, size_t len, const char *config, size_t config_len, tokenizer **ret,
                            xd_err *err)
{
    json_error_t e;
    json_t *root = json_loadb(config, config_len, 0, &e);
    if (!root)
        return xd_fail(err, XD_BAD_MODEL, 0, "tokenizer_config.json, line %d: %s", e.line, e.text);
    const json_t *added = json_object_get(root, "added_tokens_decoder");
    tokens t = {0};
    xd_status st = XD_OK;
    if (!is_kimi(root))
        st = xd_fail(
            err, XD_UNSUPPORTED, 0,
            "tiktoken.model: of such tokenizers only Kimi's is known, and tokenizer_config.json does not say that it is that");
    if (!st)
        st = make_room(&t, ranks, len, added, err);
    if (!st)
        st = read_ranks(&t, ranks, len, err);
    if (!st)
        st = read_added(&t, added, err);
    tok_gguf g = {.model = "gpt2",
                  .pre = "kimi-k2",
                  .tokens = (const char *const *)t.text,
                  .scores = t.scores,
                  .types = t.types,
                  .n_tokens = t.n,
                  .by_rank = true,
                  .bos_id = -1,
                  .eos_id = -1,
                  .unk_id = -1};
    if (!st)
        st = tok_from_gguf(&g, ret, err);
    tokens_clear(&t);
    json_decref(root);
    return st;
}
