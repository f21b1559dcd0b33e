/* test_sample.c - sampling against distributions computed with numpy (tests/data/sample/make.py). */
#include <criterion/criterion.h>
#include <jansson.h>
#include <math.h>
#include <string.h>

#include "engine/text/sample.h"

enum { DRAWS = 4000, MAX_VOCAB = 1024 };

static json_t *vectors(void)
{
    char path[4096];
    const char *root = getenv("EXPERTD_SOURCE_ROOT");
    snprintf(path, sizeof path, "%s/tests/data/sample/vectors.json", root ? root : ".");
    json_error_t e;
    json_t *o = json_load_file(path, 0, &e);
    cr_assert(o, "%s: %s", path, e.text);
    return o;
}

typedef struct sample_case {
    sampler_params p;
    float logits[MAX_VOCAB];
    double want[MAX_VOCAB], logprob[MAX_VOCAB];
    uint32_t vocab, top5[5], bias_ids[8], banned[64], n_banned;
    float bias[8];
    sample_history *h;
    sample_dry *dry;
} sample_case;

static float real(const json_t *o, const char *key)
{
    return (float)json_number_value(json_object_get(o, key));
}

static void load(const json_t *o, sample_case *c)
{
    const json_t *p = json_object_get(o, "params"), *bias = json_object_get(p, "bias"), *v;
    size_t i;
    *c = (sample_case){0};
    c->p = (sampler_params){.temperature = real(p, "temperature"),
                            .top_p = real(p, "top_p"),
                            .min_p = real(p, "min_p"),
                            .top_k = (uint32_t)real(p, "top_k"),
                            .repetition_penalty = real(p, "repetition_penalty"),
                            .presence_penalty = real(p, "presence_penalty"),
                            .frequency_penalty = real(p, "frequency_penalty"),
                            .bias_ids = c->bias_ids,
                            .bias = c->bias,
                            .seed = 99,
                            .top_n_sigma = real(p, "top_n_sigma"),
                            .typical_p = real(p, "typical_p"),
                            .xtc_probability = real(p, "xtc_probability"),
                            .xtc_threshold = real(p, "xtc_threshold"),
                            .dynatemp_range = real(p, "dynatemp_range"),
                            .dynatemp_exponent = real(p, "dynatemp_exponent")};
    json_array_foreach (bias, i, v) {
        c->bias_ids[i] = (uint32_t)json_integer_value(json_array_get(v, 0));
        c->bias[i] = (float)json_number_value(json_array_get(v, 1));
        c->p.n_bias++;
    }
    json_array_foreach (json_object_get(p, "banned"), i, v)
        c->banned[c->n_banned++] = (uint32_t)json_integer_value(v);
    json_array_foreach (json_object_get(o, "logits"), i, v)
        c->logits[c->vocab++] = (float)json_number_value(v);
    json_array_foreach (json_object_get(o, "p"), i, v)
        c->want[i] = json_number_value(v);
    json_array_foreach (json_object_get(o, "logprobs"), i, v)
        c->logprob[i] = json_number_value(v);
    json_array_foreach (json_object_get(o, "top5"), i, v)
        c->top5[i] = (uint32_t)json_integer_value(v);
    if (real(p, "dry_multiplier") > 0) {
        const json_int_t last_n = json_integer_value(json_object_get(p, "dry_last_n"));
        c->p.dry = true;
        c->dry = sample_dry_new(&(engine_sampling){.dry_multiplier = real(p, "dry_multiplier"),
                                                   .dry_base = real(p, "dry_base"),
                                                   .dry_allowed_length = (uint32_t)real(p, "dry_allowed_length"),
                                                   .dry_last_n = last_n < 0 ? UINT32_MAX : (uint32_t)last_n},
                                NULL, c->vocab, NULL);
    }
    c->h = sample_history_new(c->dry);
    json_array_foreach (json_object_get(o, "prompt"), i, v)
        cr_assert(sample_history_add(c->h, (uint32_t)json_integer_value(v), false));
    json_array_foreach (json_object_get(o, "output"), i, v)
        cr_assert(sample_history_add(c->h, (uint32_t)json_integer_value(v), true));
}

static void unload(sample_case *c)
{
    sample_history_free(c->h);
    sample_dry_free(c->dry);
}

/* Pearson's statistic over ids with enough expectation; what may never come must not come. */
static void check_counts(const sample_case *c, const uint32_t *count, size_t at)
{
    double chi2 = 0;
    uint32_t cells = 0, rest = 0;
    double rest_want = 0;
    for (uint32_t i = 0; i < c->vocab; i++) {
        if (c->want[i] == 0)
            cr_assert_eq(count[i], 0, "case %zu: id %u has no probability and came %u times", at, i, count[i]);
        double e = c->want[i] * DRAWS;
        if (e >= 8) {
            chi2 += (count[i] - e) * (count[i] - e) / e;
            cells++;
        } else {
            rest += count[i];
            rest_want += e;
        }
    }
    if (rest_want >= 8) {
        chi2 += (rest - rest_want) * (rest - rest_want) / rest_want;
        cells++;
    }
    /* Six standard deviations above the mean; seeds are fixed, so this is no lottery. */
    double df = cells > 1 ? cells - 1 : 1;
    cr_assert_lt(chi2, df + 6 * sqrt(2 * df) + 4, "case %zu: chi2 %.1f over %u cells", at, chi2, cells);
}

Test(sample, follows_the_distribution_of_the_reference)
{
    json_t *o = vectors(), *jc;
    size_t at;
    json_array_foreach (json_object_get(o, "cases"), at, jc) {
        static sample_case c;
        uint32_t count[MAX_VOCAB] = {0};
        load(jc, &c);
        sampler *s = sampler_new(c.vocab);
        for (uint32_t i = 0; i < DRAWS; i++) {
            sample_result r;
            cr_assert_eq(sample_row(s, &c.p, c.h, c.logits, i,
                                    &(sample_limits){.banned = c.banned, .n_banned = c.n_banned}, -1, &r, NULL),
                         XD_OK);
            count[r.id]++;
        }
        check_counts(&c, count, at);
        sampler_free(s);
        unload(&c);
    }
    json_decref(o);
}

Test(sample, logprobs_are_of_the_raw_distribution)
{
    json_t *o = vectors(), *jc;
    size_t at;
    json_array_foreach (json_object_get(o, "cases"), at, jc) {
        static sample_case c;
        load(jc, &c);
        sampler *s = sampler_new(c.vocab);
        sample_result r;
        cr_assert_eq(sample_row(s, &c.p, c.h, c.logits, 0, &(sample_limits){.banned = c.banned, .n_banned = c.n_banned},
                                5, &r, NULL),
                     XD_OK);
        cr_assert_float_eq(r.chosen.logprob, c.logprob[r.id], 2e-5);
        cr_assert_eq(r.n_top, 5);
        for (uint32_t i = 0; i < 5; i++) {
            cr_assert_eq(r.top[i].id, c.top5[i], "case %zu: place %u", at, i);
            cr_assert_float_eq(r.top[i].logprob, c.logprob[c.top5[i]], 2e-5);
        }
        sampler_free(s);
        unload(&c);
    }
    json_decref(o);
}

/* The short list and the whole row must agree wherever the list is allowed. */
Test(sample, the_largest_logits_alone_give_the_same_token)
{
    json_t *o = vectors(), *jc;
    size_t at;
    uint32_t n_checked = 0;
    json_array_foreach (json_object_get(o, "cases"), at, jc) {
        static sample_case c;
        load(jc, &c);
        if (sample_need_of(&c.p, 3, c.n_banned > 0) != SAMPLE_NEED_TOP) {
            unload(&c);
            continue;
        }
        uint32_t ids[64], n = 0;
        float values[64];
        double sum = 0;
        for (uint32_t i = 0; i < c.vocab; i++)
            sum += exp(c.logits[i]);
        for (; n < 64 && n < c.vocab; n++) {
            uint32_t best = UINT32_MAX;
            for (uint32_t i = 0; i < c.vocab; i++) {
                bool taken = false;
                for (uint32_t j = 0; j < n; j++)
                    taken = taken || ids[j] == i;
                if (!taken && (best == UINT32_MAX || c.logits[i] > c.logits[best]))
                    best = i;
            }
            ids[n] = best;
            values[n] = c.logits[best];
        }
        for (; n < 64; n++)
            ids[n] = UINT32_MAX;
        sampler *s = sampler_new(XD_MAX(c.vocab, 64u));
        sampler *whole = sampler_new(c.vocab);
        for (uint32_t i = 0; i < 500; i++) {
            sample_result a, b;
            cr_assert_eq(sample_row(whole, &c.p, NULL, c.logits, i, &(sample_limits){0}, 3, &a, NULL), XD_OK);
            cr_assert_eq(sample_top(s, &c.p, ids, values, 64, (float)log(sum), i, 3, &b, NULL), XD_OK);
            cr_assert_eq(a.id, b.id, "case %zu draw %u", at, i);
            cr_assert_eq(a.chosen.rank, b.chosen.rank);
            cr_assert_float_eq(a.chosen.logprob, b.chosen.logprob, 2e-5);
        }
        n_checked++;
        sampler_free(s);
        sampler_free(whole);
        unload(&c);
    }
    cr_assert_gt(n_checked, 3);
    json_decref(o);
}

/* What depends on more than the largest logits is never taken from a short list; what is off changes nothing. */
Test(sample, rare_filters_need_the_whole_row)
{
    const sampler_params off = {.temperature = 1, .top_p = 1, .repetition_penalty = 1, .top_k = 20};
    sampler_params on[5] = {off, off, off, off, off};
    cr_assert_eq(sample_need_of(&off, -1, false), SAMPLE_NEED_TOP);
    on[0].typical_p = 0.5f;
    on[1].top_n_sigma = 1;
    on[2].xtc_probability = 0.1f;
    on[3].dynatemp_range = 0.1f;
    on[4].dry = true;
    for (size_t i = 0; i < XD_ARRAY_LEN(on); i++) {
        cr_assert_eq(sample_need_of(&on[i], -1, false), SAMPLE_NEED_ROW);
        on[i].temperature = 0;
        cr_assert_eq(sample_need_of(&on[i], -1, false), i < 4 ? SAMPLE_NEED_ARGMAX : SAMPLE_NEED_ROW);
    }
}

static uint32_t draw_one(sampler *s, const sampler_params *p, const float *logits, uint32_t token_idx)
{
    sample_result r;
    cr_assert_eq(sample_row(s, p, NULL, logits, token_idx, &(sample_limits){0}, -1, &r, NULL), XD_OK);
    return r.id;
}

/* Its chance has a number of its own, so a request whose XTC never cuts anything has the tokens of one without. */
Test(sample, xtc_takes_no_number_from_the_draw)
{
    sampler *s = sampler_new(50);
    float logits[50];
    uint32_t n_same = 0;
    for (int i = 0; i < 50; i++)
        logits[i] = (float)(i * 37 % 50) / 10;
    sampler_params without = {.temperature = 1, .top_p = 1, .repetition_penalty = 1, .seed = 5}, with = without, half;
    with.xtc_probability = 1;
    with.xtc_threshold = 0.75f;
    half = with;
    half.xtc_probability = 0.5f;
    half.xtc_threshold = 0.01f;
    for (uint32_t i = 0; i < 400; i++) {
        uint32_t want = draw_one(s, &without, logits, i);
        cr_assert_eq(draw_one(s, &with, logits, i), want);
        cr_assert_eq(draw_one(s, &half, logits, i), draw_one(s, &half, logits, i));
        n_same += draw_one(s, &half, logits, i) == want;
    }
    cr_assert(n_same > 200 && n_same < 300, "%u", n_same);
    sampler_free(s);
}

/* However hard the filters are and however far apart the logits, there is a token. */
Test(sample, no_filter_leaves_nothing)
{
    static const float rows[][4] = {{0, 0, 0, 0},
                                    {3e38f, -3e38f, 3e38f, -3e38f},
                                    {-3e38f, -3e38f, -3e38f, 0},
                                    {1e-40f, 0, 0, 0},
                                    {0, 800, -800, 1}};
    static const float hard[] = {1e-9f, 1e-3f, 0.5f, 1};
    sampler *s = sampler_new(4);
    for (size_t r = 0; r < XD_ARRAY_LEN(rows); r++)
        for (uint32_t i = 0; i < 1024; i++) {
            sampler_params p = {.temperature = i & 1 ? 1e-5f : 100,
                                .top_p = hard[i / 2 % 4],
                                .min_p = i & 8 ? 1 : 0,
                                .repetition_penalty = 1,
                                .typical_p = hard[i / 16 % 4],
                                .top_n_sigma = i & 64 ? 1e-9f : 0,
                                .xtc_probability = 1,
                                .xtc_threshold = i & 128 ? 1e-30f : 0,
                                .dynatemp_range = i & 256 ? 100 : 0,
                                .dynatemp_exponent = i & 512 ? 100 : 0,
                                .seed = i};
            cr_assert_lt(draw_one(s, &p, rows[r], i), 4);
        }
    sampler_free(s);
}

/* Known answers of Random123 (philox4x32, 10 rounds): counter and key all zero and all ones. */
Test(sample, random_numbers_are_philox)
{
    uint64_t zero = ((uint64_t)0x6627e8d5 << 32 | 0xe169c58d) >> 11;
    cr_assert_eq(sample_uniform(0, 0), (double)zero * 0x1p-53);
}

Test(sample, refuses_logits_that_are_not_finite)
{
    sampler *s = sampler_new(4);
    sampler_params p = {.temperature = 1, .top_p = 1, .repetition_penalty = 1};
    const float bad[][4] = {{0, NAN, 1, 2}, {INFINITY, 0, 0, 0}, {0, 0, -INFINITY, 0}};
    for (size_t i = 0; i < XD_ARRAY_LEN(bad); i++) {
        sample_result r;
        xd_err err = {0};
        cr_assert_eq(sample_row(s, &p, NULL, bad[i], 0, &(sample_limits){0}, -1, &r, &err), XD_INTERNAL);
        cr_assert(strstr(err.msg, "not finite"));
    }
    sampler_free(s);
}

Test(sample, nothing_left_to_choose_is_an_error)
{
    sampler *s = sampler_new(2);
    sampler_params p = {.temperature = 0, .top_p = 1, .repetition_penalty = 1};
    const float logits[2] = {1, 2};
    const uint32_t banned[2] = {0, 1};
    sample_result r;
    cr_assert_neq(sample_row(s, &p, NULL, logits, 0, &(sample_limits){.banned = banned, .n_banned = 2}, -1, &r, NULL),
                  XD_OK);
    sampler_free(s);
}

Test(sample, allowed_tokens_are_chosen_from_as_if_there_were_no_others)
{
    sampler *s = sampler_new(70), *few = sampler_new(4);
    sampler_params p = {.temperature = 0.8f, .top_p = 0.9f, .repetition_penalty = 1, .seed = 3};
    float logits[70], four[4];
    for (int i = 0; i < 70; i++)
        logits[i] = (float)(i * 37 % 70) / 10;
    static const uint32_t ids[4] = {2, 33, 64, 69}, also[1] = {33};
    const uint64_t allowed[2] = {1u << 2, 1u << 0 | 1u << 5};
    for (int i = 0; i < 4; i++)
        four[i] = logits[ids[i]];
    for (uint32_t i = 0; i < 500; i++) {
        sample_result a, b;
        sample_limits l = {.allowed = allowed, .also = also, .n_also = 1};
        p.temperature = i ? 0.8f : 0;
        cr_assert_eq(sample_row(s, &p, NULL, logits, i, &l, 2, &a, NULL), XD_OK);
        cr_assert_eq(sample_row(few, &p, NULL, four, i, &(sample_limits){0}, 2, &b, NULL), XD_OK);
        cr_assert_eq(a.id, ids[b.id]);
        cr_assert_gt(a.chosen.rank, 0);
    }
    sampler_free(s);
    sampler_free(few);
}
