/* grammar_gen.c - answers that a grammar allows, chosen at random: grammar_gen TOKENIZER_DIR COUNT SEED < SCHEMAS
 *
 * Each line of the input is a JSON schema, "json_object", {"gbnf": rules}, {"regex": text} or {"choice": [...]}. Each gives a line of JSON:
 * {"answers": [...], "cut": n, "ms": slowest mask} or {"error": text, "param": place}. With COUNT 0 a line is {"schema": ..., "texts": [...]} and gives a list of booleans: is each a whole answer?
 * Answers are texts; those that came to no end within MAX_TOKENS are counted as cut. The choice
 * among the allowed tokens leans to what brings an answer to its end, else strings would never. test_schema.py checks the answers. */
#include <jansson.h>
#include <string.h>
#include <time.h>

#include "engine/text/grammar.h"
#include "engine/text/tokenizer.h"

enum { MAX_TOKENS = 600 };

static uint64_t state;

/* What a mask costs does not depend on what else this machine does. */
static uint64_t cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static uint64_t draw(uint64_t n)
{
    return xd_mix64(state += XD_MIX64_STEP) % n;
}

static bool ends_something(const tokenizer *tok, uint32_t id)
{
    static int8_t known[1 << 18]; /* 0: not yet */
    int8_t *k = id < sizeof known ? &known[id] : NULL;
    if (k && *k)
        return *k > 0;
    XD_CLEANUP(xd_buf_free) xd_buf b = {0};
    bool ends = tok_token_bytes(tok, id, &b) && b.len && b.len < 4 && strpbrk(b.data, "\"]}") != NULL;
    if (k)
        *k = ends ? 1 : -1;
    return ends;
}

static uint32_t choose(const tokenizer *tok, const uint64_t *mask, uint32_t n_ids, uint32_t n_before, uint32_t *list)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_ids; i++)
        if (mask[i / 64] >> i % 64 & 1)
            list[n++] = i;
    if (!n)
        return UINT32_MAX;
    if (draw(100) < (n_before > 60 ? 85 : 30)) {
        uint32_t k = 0;
        for (uint32_t i = 0; i < n; i++)
            if (ends_something(tok, list[i]))
                list[k++] = list[i];
        n = k ? k : n;
    }
    return list[draw(n)];
}

static bool one_answer(const tokenizer *tok, grammar *g, const grammar_vocab *v, xd_buf *text, uint64_t *slowest_ns)
{
    const uint32_t n_ids = tok_vocab_size(tok);
    XD_CLEANUP(grammar_run_freep) grammar_run *r = grammar_run_new(g, v);
    XD_CLEANUP(xd_freep) uint32_t *list = calloc(n_ids, sizeof *list);
    for (uint32_t i = 0; i < MAX_TOKENS; i++) {
        if (grammar_run_must_end(r) || (grammar_run_may_end(r) && draw(2)))
            return true;
        uint64_t t0 = cpu_ns();
        const uint64_t *mask = grammar_run_mask(r);
        *slowest_ns = XD_MAX(*slowest_ns, cpu_ns() - t0);
        uint32_t id = mask ? choose(tok, mask, n_ids, i, list) : UINT32_MAX;
        xd_err err;
        if (id == UINT32_MAX || grammar_run_push(r, id, &err)) {
            fprintf(stderr, "stuck after: %s\n", text->data);
            exit(1);
        }
        tok_token_bytes(tok, id, text);
    }
    return false;
}

/* Of a line, or of a job's schema. */
static xd_status compile(const json_t *schema, grammar **ret, xd_err *err)
{
    const json_t *rules = json_object_get(schema, "gbnf"), *regex = json_object_get(schema, "regex"),
                 *choice = json_object_get(schema, "choice");
    return rules    ? grammar_new_gbnf(json_string_value(rules), json_string_length(rules), ret, err)
           : regex  ? grammar_new_regex(json_string_value(regex), json_string_length(regex), ret, err)
           : choice ? grammar_new_choice(choice, ret, err)
                    : grammar_new(schema, ret, err);
}

static json_t *answers(const tokenizer *tok, const grammar_vocab *v, const char *line, long count)
{
    XD_CLEANUP(grammar_unrefp) grammar *g = NULL;
    json_t *schema = strcmp(line, "json_object\n") ? json_loads(line, JSON_DECODE_ANY, NULL) : NULL;
    xd_err err;
    uint64_t t0 = cpu_ns(), slowest_ns = 0, cut = 0;
    xd_status st = compile(schema, &g, &err);
    double compile_ms = (double)(cpu_ns() - t0) / 1e6;
    json_decref(schema);
    if (st)
        return json_pack("{s:s, s:s, s:f}", "error", err.msg, "param", err.param, "compile_ms", compile_ms);
    json_t *list = json_array();
    for (long i = 0; i < count; i++) {
        XD_CLEANUP(xd_buf_free) xd_buf text = {0};
        if (one_answer(tok, g, v, &text, &slowest_ns))
            json_array_append_new(list, json_stringn(text.len ? text.data : "", text.len));
        else
            cut++;
    }
    return json_pack("{s:o, s:I, s:f, s:f}", "answers", list, "cut", (json_int_t)cut, "ms", (double)slowest_ns / 1e6,
                     "compile_ms", compile_ms);
}

/* Whether each of the texts is an answer, byte by byte. */
static json_t *judge(const tokenizer *tok, const grammar_vocab *v, const char *line)
{
    uint32_t byte_id[256] = {0};
    for (uint32_t i = 0; i < tok_vocab_size(tok); i++) {
        XD_CLEANUP(xd_buf_free) xd_buf b = {0};
        if (grammar_vocab_has(v, i) && tok_token_bytes(tok, i, &b) && b.len == 1)
            byte_id[(unsigned char)b.data[0]] = i;
    }
    json_t *job = json_loads(line, JSON_DECODE_ANY, NULL), *ret = json_array(), *text;
    const json_t *schema = json_object_get(job, "schema");
    XD_CLEANUP(grammar_unrefp) grammar *g = NULL;
    xd_err err;
    size_t at;
    if (compile(json_is_null(schema) ? NULL : schema, &g, &err)) {
        fprintf(stderr, "%s\n", err.msg);
        exit(1);
    }
    json_array_foreach (json_object_get(job, "texts"), at, text) {
        XD_CLEANUP(grammar_run_freep) grammar_run *r = grammar_run_new(g, v);
        const char *s = json_string_value(text);
        bool ok = true;
        for (size_t i = 0; i < json_string_length(text) && ok; i++)
            ok = !grammar_run_push(r, byte_id[(unsigned char)s[i]], &err);
        json_array_append_new(ret, json_boolean(ok && grammar_run_may_end(r)));
    }
    json_decref(job);
    return ret;
}

int main(int argc, char **argv)
{
    if (argc != 4)
        return 2;
    XD_CLEANUP(tok_freep) tokenizer *tok = NULL;
    XD_CLEANUP(grammar_vocab_freep) grammar_vocab *v = NULL;
    xd_err err;
    if (tok_from_dir(argv[1], &tok, &err) || grammar_vocab_new(tok, tok_vocab_size(tok), &v, &err)) {
        fprintf(stderr, "%s\n", err.msg);
        return 1;
    }
    state = strtoull(argv[3], NULL, 10);
    XD_CLEANUP(xd_freep) char *line = NULL;
    size_t cap = 0;
    while (getline(&line, &cap, stdin) > 0) {
        long count = strtol(argv[2], NULL, 10);
        json_t *out = count ? answers(tok, v, line, count) : judge(tok, v, line);
        json_dumpf(out, stdout, JSON_COMPACT);
        putchar('\n');
        json_decref(out);
    }
    return 0;
}
