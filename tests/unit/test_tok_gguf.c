/* test_tok_gguf.c - a GGUF vocabulary gives the ids of the tokenizer.json that it was made from. */
#include <jansson.h>
#include <string.h>

#include "tok_file.h"

#define DIR "tests/data/tokenizers/"

/* A vocabulary of merges over bytes; no types, no special tokens. */
static tok_gguf vocabulary_of(const char *pre, const char *const *tokens, size_t n_tokens, const char *const *merges,
                              size_t n_merges)
{
    return (tok_gguf){.model = "gpt2",
                      .pre = pre,
                      .tokens = tokens,
                      .n_tokens = (uint32_t)n_tokens,
                      .merges = merges,
                      .n_merges = (uint32_t)n_merges,
                      .bos_id = -1,
                      .eos_id = -1,
                      .unk_id = -1};
}

/* The vocabulary of a tokenizer.json as a GGUF file has it. Strings are those of `root`, `made` or literals. */
typedef struct vocabulary {
    const char **tokens, **merges;
    int32_t *types;
    tok_gguf g;
    char **made;
    size_t n_made;
} vocabulary;

static void make_vocabulary(json_t *root, const char *pre, vocabulary *v)
{
    json_t *model = json_object_get(root, "model"), *vocab = json_object_get(model, "vocab"),
           *merges = json_object_get(model, "merges"), *added = json_object_get(root, "added_tokens"), *id;
    size_t n = 0, n_merges = json_array_size(merges), i;
    const char *key;
    json_t *o;
    json_object_foreach (vocab, key, id)
        n = XD_MAX(n, (size_t)json_integer_value(id) + 1);
    json_array_foreach (added, i, o)
        n = XD_MAX(n, (size_t)json_integer_value(json_object_get(o, "id")) + 1);
    *v = (vocabulary){calloc(n, sizeof *v->tokens),          calloc(n_merges, sizeof *v->merges),
                      calloc(n, sizeof *v->types),           {0},
                      calloc(n + n_merges, sizeof *v->made), 0};
    json_object_foreach (vocab, key, id) {
        v->tokens[json_integer_value(id)] = key;
        v->types[json_integer_value(id)] = 1;
    }
    json_array_foreach (added, i, o) {
        json_int_t at = json_integer_value(json_object_get(o, "id"));
        v->tokens[at] = json_string_value(json_object_get(o, "content"));
        v->types[at] = json_is_true(json_object_get(o, "special")) ? 3 : 4;
    }
    for (i = 0; i < n; i++) /* gaps, as the converter fills them */
        if (!v->tokens[i]) {
            v->made[v->n_made] = malloc(32);
            snprintf(v->made[v->n_made], 32, "[PAD%zu]", i);
            v->tokens[i] = v->made[v->n_made++];
            v->types[i] = 5;
        }
    json_array_foreach (merges, i, o) {
        if (json_is_string(o)) {
            v->merges[i] = json_string_value(o);
            continue;
        }
        xd_buf b = {0};
        xd_buf_printf(&b, "%s %s", json_string_value(json_array_get(o, 0)), json_string_value(json_array_get(o, 1)));
        v->merges[i] = v->made[v->n_made++] = xd_buf_steal(&b, NULL);
    }
    v->g = vocabulary_of(pre, v->tokens, n, v->merges, n_merges);
    v->g.types = v->types;
}

static void free_vocabulary(vocabulary *v)
{
    for (size_t i = 0; i < v->n_made; i++)
        free(v->made[i]);
    free(v->made);
    free(v->tokens);
    free(v->merges);
    free(v->types);
}

static void compare_gguf(const char *name, const char *pre)
{
    char file[128];
    size_t len;
    snprintf(file, sizeof file, DIR "%s.tokenizer.json.gz", name);
    char *text = read_source_gz(file, &len);
    json_t *root = json_loadb(text, len, JSON_ALLOW_NUL, NULL);
    free(text);
    tokenizer *json = open_tok(file), *gguf = NULL;
    vocabulary v;
    xd_err err = {0};
    make_vocabulary(root, pre, &v);
    cr_assert_eq(tok_from_gguf(&v.g, &gguf, &err), XD_OK, "%s: %s", name, err.msg);
    snprintf(file, sizeof file, DIR "%s.vectors.json.gz", name);
    text = read_source_gz(file, &len);
    json_t *vectors = json_loadb(text, len, JSON_ALLOW_NUL, NULL), *o;
    free(text);
    size_t i;
    json_array_foreach (json_object_get(vectors, "encode"), i, o) {
        const char *s = json_string_value(json_object_get(o, "text"));
        size_t n = json_string_length(json_object_get(o, "text"));
        tok_ids a = {0}, b = {0};
        xd_buf da = {0}, db = {0};
        cr_assert_eq(tok_encode(json, s, n, TOK_PARSE_SPECIAL, &a, NULL), XD_OK);
        cr_assert_eq(tok_encode(gguf, s, n, TOK_PARSE_SPECIAL, &b, NULL), XD_OK);
        cr_assert_eq(a.len, b.len, "%s: text %zu: %zu ids, %zu from GGUF", name, i, a.len, b.len);
        cr_assert(!a.len || !memcmp(a.data, b.data, a.len * sizeof *a.data), "%s: text %zu", name, i);
        cr_assert_eq(tok_decode(json, a.data, a.len, false, &da, NULL), XD_OK);
        cr_assert_eq(tok_decode(gguf, a.data, a.len, false, &db, NULL), XD_OK);
        cr_assert(da.len == db.len && (!da.len || !memcmp(da.data, db.data, da.len)), "%s: text %zu decoded", name, i);
        tok_ids_free(&a);
        tok_ids_free(&b);
        xd_buf_free(&da);
        xd_buf_free(&db);
    }
    cr_assert_gt(i, 20u);
    tok_free(json);
    tok_free(gguf);
    free_vocabulary(&v);
    json_decref(vectors);
    json_decref(root);
}

Test(tok_gguf, a_gguf_vocabulary_gives_the_ids_of_its_tokenizer_json)
{
    compare_gguf("qwen3", "qwen2");
    compare_gguf("deepseek_v3", "deepseek-v3");
    compare_gguf("gptoss", "gpt-4o");
    compare_gguf("edge_gguf_llama3", "llama-bpe");
    compare_gguf("edge_gguf_gpt2", "gpt-2");
    compare_gguf("edge_gguf_starcoder", "starcoder");
    compare_gguf("edge_gguf_deepseek_v2", "deepseek-llm");
    compare_gguf("edge_gguf_falcon", "falcon");
    compare_gguf("edge_gguf_bloom", "bloom");
    compare_gguf("edge_gguf_kimi", "kimi-k2");
    compare_gguf("edge_gguf_tekken", "tekken");
}

/* No merge makes "abc" here. A tokenizer.json with "ignore_merges", and tiktoken, take a word that is a token as it is. */
Test(tok_gguf, a_gguf_names_whether_words_are_looked_up_first)
{
    static const struct {
        const char *pre;
        bool whole;
    } rows[] = {{"llama-bpe", true}, {"gpt-4o", true},     {"tekken", true},      {"glm4", true},
                {"glm5", true},      {"kimi-k2", true},    {"chatglm-bpe", true}, {"qwen2", false},
                {"dbrx", false},     {"starcoder", false}, {"deepseek-v3", false}};
    static const char *const tokens[] = {"a", "b", "c", "ab", "abc"}, *const merges[] = {"a b"};
    for (size_t i = 0; i < XD_ARRAY_LEN(rows); i++) {
        tok_gguf g = vocabulary_of(rows[i].pre, tokens, XD_ARRAY_LEN(tokens), merges, 1);
        tokenizer *t = NULL;
        tok_ids ids = {0};
        cr_assert_eq(tok_from_gguf(&g, &t, NULL), XD_OK);
        cr_assert_eq(tok_encode(t, "abc", 3, 0, &ids, NULL), XD_OK);
        cr_assert_eq(ids.len, rows[i].whole ? 1 : 2, "%s", rows[i].pre);
        cr_assert_eq(ids.data[0], rows[i].whole ? 4 : 3, "%s", rows[i].pre);
        tok_ids_free(&ids);
        tok_free(t);
    }
}

Test(tok_gguf, every_gguf_pre_tokenizer_name_compiles)
{
    static const char *const names[] = {
        "default",    "falcon", "qwen35",         "bailingmoe2", "seed-coder", "exaone-moe", "minicpm5", "laguna",
        "cohere2moe", "viking", "deepseek-coder", "hunyuan",     "grok-2",     "minimax-m2", "glm4",     "llama4",
        "jais-2",     "youtu",  "k2-horizon",     "ufakzeka",    "spark2_5",   "afmoe",      "superbpe", "chameleon"};
    static const char *const tokens[] = {"a", "b", "ab"}, *const merges[] = {"a b"};
    for (size_t i = 0; i < XD_ARRAY_LEN(names); i++) {
        tok_gguf g = vocabulary_of(names[i], tokens, XD_ARRAY_LEN(tokens), merges, 1);
        tokenizer *t = NULL;
        xd_err err = {0};
        tok_ids ids = {0};
        cr_assert_eq(tok_from_gguf(&g, &t, &err), XD_OK, "%s: %s", names[i], err.msg);
        cr_assert_eq(tok_encode(t, "ab", 2, 0, &ids, NULL), XD_OK);
        cr_assert(ids.len == 1 && ids.data[0] == 2);
        tok_ids_free(&ids);
        tok_free(t);
    }
    tok_gguf g = vocabulary_of("no-such-pattern", tokens, XD_ARRAY_LEN(tokens), merges, 1);
    tokenizer *t = NULL;
    xd_err err = {0};
    cr_assert_eq(tok_from_gguf(&g, &t, &err), XD_UNSUPPORTED);
    cr_assert(strstr(err.msg, "no-such-pattern"));
    cr_assert(tok_gguf_adds_bos("llama", NULL) && tok_gguf_adds_bos("gpt2", "llama-bpe") &&
              tok_gguf_adds_bos("gpt2", "tekken"));
    cr_assert(!tok_gguf_adds_bos("gpt2", "qwen2") && !tok_gguf_adds_bos("gpt2", NULL));
}

Test(tok_gguf, a_gguf_of_merges_over_characters)
{
    static const char *const tokens[] = {"<unk>",
                                         "<bos>",
                                         "\xE2\x96\x81",
                                         "a",
                                         "b",
                                         "ab",
                                         "\xE2\x96\x81"
                                         "ab",
                                         "\n",
                                         "\n\n",
                                         "<0xC3>",
                                         "<0xA9>"};
    static const char *const merges[] = {"a b", "\xE2\x96\x81 ab", "\n \n"};
    static const int32_t types[] = {2, 3, 1, 1, 1, 1, 1, 1, 1, 6, 6};
    static const uint32_t want[] = {1, 5, 6, 8, 2, 9, 10};
    static const char text[] = "ab ab\n\n \xC3\xA9";
    tok_gguf g = {.model = "gemma4",
                  .tokens = tokens,
                  .types = types,
                  .n_tokens = XD_ARRAY_LEN(tokens),
                  .merges = merges,
                  .n_merges = XD_ARRAY_LEN(merges),
                  .bos_id = 1,
                  .eos_id = -1,
                  .unk_id = 0,
                  .add_bos = tok_gguf_adds_bos("gemma4", NULL)};
    for (int i = 0; i < 2; i++) {
        tokenizer *t = NULL;
        tok_ids ids = {0};
        xd_buf back = {0};
        xd_err err = {0};
        cr_assert_eq(tok_from_gguf(&g, &t, &err), XD_OK, "%s", err.msg);
        cr_assert_eq(tok_encode(t, text, sizeof text - 1, TOK_ADD_SPECIAL, &ids, &err), XD_OK);
        cr_assert(ids.len == 7 && !memcmp(ids.data, want, sizeof want));
        cr_assert_eq(tok_decode(t, ids.data, ids.len, true, &back, &err), XD_OK);
        cr_assert_str_eq(back.data, text);
        xd_buf_free(&back);
        tok_ids_free(&ids);
        tok_free(t);
        g.model = "gpt2";
        g.pre = "sarvam-moe";
    }
}
