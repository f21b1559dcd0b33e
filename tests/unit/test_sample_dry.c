/* test_sample_dry.c - DRY against penalties found by comparing everything with everything (tests/data/sample/make_dry.py). */
#include <criterion/criterion.h>
#include <jansson.h>
#include <math.h>
#include <string.h>

#include "engine/text/sample.h"

static json_t *vectors(void)
{
    char path[4096];
    const char *root = getenv("EXPERTD_SOURCE_ROOT");
    snprintf(path, sizeof path, "%s/tests/data/sample/dry.json", root ? root : ".");
    json_error_t e;
    json_t *o = json_load_file(path, 0, &e);
    cr_assert(o, "%s: %s", path, e.text);
    return o;
}

static tokenizer *words_of(const json_t *o)
{
    tokenizer *t = NULL;
    xd_err err = {0};
    char *text = json_dumps(json_object_get(o, "tokenizer"), JSON_COMPACT);
    cr_assert_eq(tok_from_json(text, strlen(text), &t, &err), XD_OK, "%s", err.msg);
    free(text);
    return t;
}

static double number(const json_t *o, const char *key)
{
    return json_number_value(json_object_get(o, key));
}

static sample_dry *rules_of(const json_t *jc, const tokenizer *t, const sample_dry *like)
{
    const char *breakers[ENGINE_MAX_DRY_BREAKERS];
    const json_t *list = json_object_get(jc, "breakers"), *v;
    engine_sampling o = {.dry_multiplier = (float)number(jc, "multiplier"),
                         .dry_base = (float)number(jc, "base"),
                         .dry_allowed_length = (uint32_t)number(jc, "allowed_length"),
                         .dry_last_n = number(jc, "last_n") < 0 ? UINT32_MAX : (uint32_t)number(jc, "last_n"),
                         .dry_breakers = breakers};
    size_t i;
    json_array_foreach (list, i, v)
        breakers[o.n_dry_breakers++] = json_string_value(v);
    sample_dry *d = sample_dry_new(&o, t, tok_vocab_size(t), like);
    cr_assert(d);
    return d;
}

static void check(const json_t *jc, size_t at, sample_dry *d, const dry_run *run, dry_found *found)
{
    const json_t *want = json_object_get(jc, "want"), *pair;
    size_t i;
    cr_assert(dry_find(d, run, found));
    cr_assert_eq(found->n, json_array_size(want), "case %zu: %u tokens, not %zu", at, found->n, json_array_size(want));
    json_array_foreach (want, i, pair) {
        uint32_t id = (uint32_t)json_integer_value(json_array_get(pair, 0)), k = 0;
        double penalty = json_number_value(json_array_get(pair, 1));
        while (k < found->n && found->ids[k] != id)
            k++;
        cr_assert_lt(k, found->n, "case %zu: token %u is not penalised", at, id);
        double got = dry_penalty(d, found->lengths[k]);
        cr_assert(fabs(got - penalty) <= 1e-9 * penalty, "case %zu: token %u loses %g, not %g", at, id, got, penalty);
    }
}

Test(sample_dry, penalties_are_those_of_the_plain_search)
{
    json_t *o = vectors(), *jc, *id;
    tokenizer *t = words_of(o);
    dry_found found = {0};
    size_t at, i;
    json_array_foreach (json_object_get(o, "cases"), at, jc) {
        sample_dry *d = rules_of(jc, t, NULL);
        dry_run run = {0};
        json_array_foreach (json_object_get(jc, "ids"), i, id)
            cr_assert(dry_push(d, &run, (uint32_t)json_integer_value(id)));
        check(jc, at, d, &run, &found);
        check(jc, at, d, &run, &found); /* asking changes nothing */
        dry_run_clear(&run);
        sample_dry_free(d);
    }
    cr_assert_gt(at, 300);
    dry_found_clear(&found);
    tok_free(t);
    json_decref(o);
}

/* Choices of one request share the rules and take turns; the requests of a call share the breakers. */
Test(sample_dry, sequences_do_not_see_each_other)
{
    json_t *o = vectors(), *id;
    tokenizer *t = words_of(o);
    const json_t *cases = json_object_get(o, "cases");
    dry_found found = {0};
    for (size_t at = 0; at < json_array_size(cases); at += 7) {
        const json_t *jc = json_array_get(cases, at), *ids = json_object_get(jc, "ids");
        sample_dry *d = rules_of(jc, t, NULL), *like = rules_of(jc, t, d);
        dry_run one = {0}, other = {0}, third = {0};
        size_t i;
        json_array_foreach (ids, i, id) {
            cr_assert(dry_push(d, &one, (uint32_t)json_integer_value(id)));
            cr_assert(dry_push(d, &other, (uint32_t)((i * 5 + at) % tok_vocab_size(t))));
            cr_assert(dry_find(d, &other, &found));
            cr_assert(dry_push(like, &third, (uint32_t)json_integer_value(id)));
        }
        check(jc, at, d, &one, &found);
        check(jc, at, like, &third, &found);
        dry_run_clear(&one);
        dry_run_clear(&other);
        dry_run_clear(&third);
        sample_dry_free(like);
        sample_dry_free(d);
    }
    dry_found_clear(&found);
    tok_free(t);
    json_decref(o);
}

enum { COST_TOKENS = 100000, COST_VOCAB = 150000 };

static void print_cost(const char *name, uint32_t period, uint32_t kinds, const tokenizer *t, uint32_t n_breakers,
                       const char *const *breakers)
{
    enum { TURNS = 20 };
    sample_dry *d = sample_dry_new(&(engine_sampling){.dry_multiplier = 1,
                                                      .dry_base = 1.75f,
                                                      .dry_last_n = UINT32_MAX,
                                                      .dry_allowed_length = 2,
                                                      .dry_breakers = breakers,
                                                      .n_dry_breakers = n_breakers},
                                   t, COST_VOCAB, NULL);
    dry_found found = {0};
    dry_run run = {0};
    uint64_t begin = xd_now_ns();
    for (uint32_t i = 0; i < COST_TOKENS; i++) {
        uint32_t j = i % period, id = kinds == COST_TOKENS ? j : (uint32_t)(xd_mix64(j * XD_MIX64_STEP) % kinds);
        cr_assert(dry_push(d, &run, id && id < 24 ? id + 24 : id)); /* of these only 0 has a text, without a breaker */
    }
    uint64_t pushed_ns = xd_now_ns() - begin;
    begin = xd_now_ns();
    for (int i = 0; i < TURNS; i++)
        cr_assert(dry_find(d, &run, &found));
    printf("%-52s %6.3f ms a token, %5.1f ms for the prompt, %u tokens penalised\n", name,
           (double)(xd_now_ns() - begin) / TURNS / 1e6, (double)pushed_ns / 1e6, found.n);
    dry_run_clear(&run);
    dry_found_clear(&found);
    sample_dry_free(d);
}

/* Nothing is asserted of times: what it costs is printed. */
Test(sample_dry, what_it_costs_at_100k_tokens)
{
    static const char *const usual[] = {"\n", ":", "\"", "*"};
    const char *most[ENGINE_MAX_DRY_BREAKERS];
    char longest[ENGINE_MAX_DRY_BREAKER_BYTES + 1];
    json_t *o = vectors();
    tokenizer *t = words_of(o);
    memset(longest, 'a', sizeof longest - 1);
    longest[0] = 'b';
    longest[sizeof longest - 1] = 0;
    for (size_t i = 0; i < XD_ARRAY_LEN(most); i++)
        most[i] = longest;
    print_cost("one token again and again", 1, 1, t, XD_ARRAY_LEN(usual), usual);
    print_cost("one token again and again, as many breakers as may be", 1, 1, t, XD_ARRAY_LEN(most), most);
    print_cost("a phrase of 7 again and again", 7, 7, t, XD_ARRAY_LEN(usual), usual);
    print_cost("a book twice, 20000 words", COST_TOKENS / 2, 20000, t, XD_ARRAY_LEN(usual), usual);
    print_cost("a random choice of 2", COST_TOKENS, 2, t, XD_ARRAY_LEN(usual), usual);
    print_cost("all different", COST_TOKENS, COST_TOKENS, t, XD_ARRAY_LEN(usual), usual);
    fflush(stdout);
    tok_free(t);
    json_decref(o);
}
