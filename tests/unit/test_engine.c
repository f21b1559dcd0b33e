/* test_engine.c - requests against a whole engine on a tiny model: what a client of the engine may rely on. The expected tokens are
 * those of transformers (golden.json of the model). */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/engine_priv.h"

/* For what ends by itself: longer than it takes on any machine. */
#define LONG_NS 600000000000u

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
static uint64_t n_notified;

static void on_event(void *user)
{
    (void)user;
    pthread_mutex_lock(&lock);
    n_notified++;
    pthread_cond_broadcast(&cond);
    pthread_mutex_unlock(&lock);
}

static const char *model_path(char out[4096])
{
    const char *root = getenv("EXPERTD_SOURCE_ROOT");
    snprintf(out, 4096, "%s/tests/data/golden/qwen3_moe", root ? root : ".");
    return out;
}

typedef struct world {
    config *cfg;
    engine *e;
    uint32_t prompt[512], n_prompt, greedy[64], n_greedy;
    double logprob_scale;
} world;

static engine *start(config *cfg)
{
    engine *e = NULL;
    xd_err err = {0};
    cr_assert_eq(engine_start(cfg, &e, &err), XD_OK, "%s", err.msg);
    cr_assert_eq(engine_wait_ready(e, NULL, NULL, &err), XD_OK, "%s", err.msg);
    return e;
}

/* settings: key, value, key, value, ..., NULL */
static config *settings(const char *path, const char *const *more)
{
    config *cfg = NULL;
    xd_err err = {0};
    const char *const base[] = {"engine.backend",
                                "cpu",
                                "engine.threads",
                                "2",
                                "engine.max_num_seqs",
                                "4",
                                "kv.kv_dtype",
                                "f32",
                                "pager.warm_start",
                                "no",
                                "model.tokenizer",
                                "no",
                                NULL};
    cr_assert_eq(conf_defaults(&cfg, &err), XD_OK, "%s", err.msg);
    cr_assert_eq(conf_set(cfg, "model.path", path, &err), XD_OK, "%s", err.msg);
    for (const char *const *p = base; *p; p += 2)
        cr_assert_eq(conf_set(cfg, p[0], p[1], &err), XD_OK, "%s", err.msg);
    for (const char *const *p = more; p && *p; p += 2)
        cr_assert_eq(conf_set(cfg, p[0], p[1], &err), XD_OK, "%s", err.msg);
    return cfg;
}

static world *make(const char *const *more)
{
    world *w = calloc(1, sizeof *w);
    char path[4096], golden[4200];
    w->cfg = settings(model_path(path), more);
    w->e = start(w->cfg);
    snprintf(golden, sizeof golden, "%s/golden.json", path);
    json_t *g = json_load_file(golden, 0, NULL), *c = json_array_get(json_object_get(g, "cases"), 1), *v;
    cr_assert(c);
    size_t i;
    json_array_foreach (json_object_get(c, "prompt_ids"), i, v)
        w->prompt[w->n_prompt++] = (uint32_t)json_integer_value(v);
    json_array_foreach (json_object_get(c, "greedy_ids"), i, v)
        w->greedy[w->n_greedy++] = (uint32_t)json_integer_value(v);
    json_decref(g);
    return w;
}

static void done(world *w)
{
    engine_free(w->e);
    conf_free(w->cfg);
    free(w);
}

static engine_request_options options(const world *w)
{
    return (engine_request_options){
        .prompt_ids = w->prompt,
        .n_prompt = w->n_prompt,
        .n = 1,
        .max_tokens = 10,
        .sampling = {.temperature = 0, .top_p = NAN, .min_p = NAN, .top_k = -1, .repetition_penalty = NAN},
        .ignore_eos = true,
        .logprobs = -1,
        .prompt_logprobs = -1,
        .notify = on_event};
}

typedef struct answer {
    uint32_t n_tokens[8], ids[8][300], n_prompt, n_done, n_error;
    float prompt_logprob[300], logprob[300];
    engine_finish finish[8];
    int64_t stop_id[8];
    xd_err error;
    engine_usage usage;
} answer;

static void take(engine_request *r, answer *a)
{
    engine_event ev;
    while (engine_request_next(r, &ev)) {
        switch (ev.kind) {
        case ENGINE_EV_PROMPT:
            cr_assert_eq(ev.token_idx, a->n_prompt);
            a->prompt_logprob[a->n_prompt++] = ev.logprob.logprob;
            break;
        case ENGINE_EV_TOKEN:
            cr_assert_eq(ev.token_idx, a->n_tokens[ev.choice]);
            if (ev.choice == 0)
                a->logprob[ev.token_idx] = ev.logprob.logprob;
            a->ids[ev.choice][a->n_tokens[ev.choice]++] = ev.token_id;
            break;
        case ENGINE_EV_DONE:
            a->finish[ev.choice] = ev.finish;
            a->stop_id[ev.choice] = ev.stop_id;
            a->n_done++;
            break;
        case ENGINE_EV_ERROR:
            a->error = *ev.error;
            a->n_error++;
            break;
        }
    }
}

/* `until_tokens` of choice 0, or the end. */
static void wait_for(engine_request *r, answer *a, uint32_t until_tokens)
{
    for (;;) {
        pthread_mutex_lock(&lock);
        uint64_t seen = n_notified;
        pthread_mutex_unlock(&lock);
        take(r, a);
        if (engine_request_finished(r) || a->n_tokens[0] >= until_tokens)
            break;
        pthread_mutex_lock(&lock);
        while (n_notified == seen)
            pthread_cond_wait(&cond, &lock);
        pthread_mutex_unlock(&lock);
    }
    engine_request_usage(r, &a->usage);
}

static engine_request *submit(world *w, const engine_request_options *o)
{
    engine_request *r = NULL;
    xd_err err = {0};
    cr_assert_eq(engine_submit(w->e, o, &r, &err), XD_OK, "%s", err.msg);
    return r;
}

static answer ask(world *w, const engine_request_options *o)
{
    answer a = {0};
    engine_request *r = submit(w, o);
    wait_for(r, &a, UINT32_MAX);
    engine_request_free(r);
    return a;
}

static json_int_t status_number(engine *e, const char *group, const char *name)
{
    xd_buf b = {0};
    cr_assert_eq(engine_status_json(e, true, &b, NULL), XD_OK);
    json_t *o = json_loads(b.data, 0, NULL);
    cr_assert(o, "not JSON: %s", b.data);
    json_int_t v = json_integer_value(json_object_get(group ? json_object_get(o, group) : o, name));
    json_decref(o);
    xd_buf_free(&b);
    return v;
}

Test(engine, greedy_tokens_are_those_of_transformers)
{
    world *w = make(NULL);
    engine_request_options o = options(w);
    o.max_tokens = w->n_greedy;
    answer a = ask(w, &o);
    cr_assert_eq(a.n_tokens[0], w->n_greedy);
    cr_assert_arr_eq(a.ids[0], w->greedy, w->n_greedy * sizeof(uint32_t));
    cr_assert_eq(a.finish[0], ENGINE_FINISH_LENGTH);
    cr_assert_eq(a.usage.prompt_tokens, w->n_prompt);
    cr_assert_eq(a.usage.completion_tokens, w->n_greedy);
    cr_assert_gt(a.usage.first_token_ns, 0);
    cr_assert_geq(a.usage.total_ns, a.usage.first_token_ns);
    done(w);
}

Test(engine, a_stop_id_ends_the_answer_and_is_named)
{
    world *w = make(NULL);
    engine_request_options o = options(w);
    o.stop_ids = &w->greedy[4];
    o.n_stop_ids = 1;
    uint32_t first = 0;
    while (w->greedy[first] != w->greedy[4])
        first++;
    answer a = ask(w, &o);
    cr_assert_eq(a.n_tokens[0], first + 1);
    cr_assert_eq(a.finish[0], ENGINE_FINISH_STOP);
    cr_assert_eq(a.stop_id[0], w->greedy[4]);
    done(w);
}

Test(engine, min_tokens_keeps_a_stop_id_from_being_chosen)
{
    world *w = make(NULL);
    engine_request_options o = options(w);
    o.stop_ids = &w->greedy[0];
    o.n_stop_ids = 1;
    o.min_tokens = 6;
    answer a = ask(w, &o);
    cr_assert_geq(a.n_tokens[0], 6);
    for (uint32_t i = 0; i < 6; i++)
        cr_assert_neq(a.ids[0][i], w->greedy[0]);
    done(w);
}

Test(engine, no_tokens_asked_for_gives_the_prompt_only)
{
    world *w = make(NULL);
    engine_request_options o = options(w);
    o.max_tokens = 0;
    o.prompt_logprobs = 2;
    answer a = ask(w, &o);
    cr_assert_eq(a.n_tokens[0], 0);
    cr_assert_eq(a.n_done, 1);
    cr_assert_eq(a.n_prompt, w->n_prompt);
    cr_assert(isnan(a.prompt_logprob[0]), "nothing comes before the first token");
    for (uint32_t i = 1; i < a.n_prompt; i++)
        cr_assert(a.prompt_logprob[i] < 0 && isfinite(a.prompt_logprob[i]));
    done(w);
}

/* What the model says of a continuation must be the same whether it generated it or read it. */
Test(engine, prompt_logprobs_equal_those_of_generation)
{
    const char *const chunks[] = {"engine.max_num_batched_tokens", "16", NULL};
    world *w = make(chunks);
    engine_request_options o = options(w);
    o.logprobs = 1;
    answer gen = ask(w, &o);
    uint32_t n = w->n_prompt;
    memcpy(w->prompt + n, gen.ids[0], 10 * sizeof(uint32_t));
    o.n_prompt = n + 10;
    o.max_tokens = 0;
    o.prompt_logprobs = 0;
    answer echo = ask(w, &o);
    for (uint32_t i = 0; i < 10; i++)
        cr_assert_float_eq(gen.logprob[i], echo.prompt_logprob[n + i], 1e-5);
    done(w);
}

Test(engine, choices_have_their_own_seeds_and_share_the_prompt)
{
    const char *const no_cache[] = {"engine.enable_prefix_caching", "no", NULL};
    world *w = make(no_cache);
    engine_request_options o = options(w);
    o.n = 4;
    o.sampling.temperature = 1;
    o.sampling.has_seed = true;
    o.sampling.seed = 40;
    answer all = ask(w, &o);
    cr_assert_eq(all.n_done, 4);
    for (uint32_t i = 0; i < 4; i++) {
        engine_request_options one = o;
        one.n = 1;
        one.sampling.seed = 40 + i;
        answer a = ask(w, &one);
        cr_assert_arr_eq(a.ids[0], all.ids[i], 10 * sizeof(uint32_t), "choice %u", i);
    }
    cr_assert_eq(all.usage.completion_tokens, 40);
    done(w);
}

Test(engine, bad_requests_name_the_field)
{
    world *w = make(NULL);
    const uint32_t bad_id[] = {100000};
    const char *const stops[] = {"x"};
    struct {
        engine_request_options o;
        const char *param, *code;
    } rows[18];
    size_t n = 0;
#define ROW(field, value, name, c) \
    do {                           \
        rows[n].o = options(w);    \
        rows[n].o.field = value;   \
        rows[n].param = name;      \
        rows[n++].code = c;        \
    } while (0)
    ROW(n_prompt, 0, "prompt", "invalid_value");
    ROW(prompt_ids, bad_id, "prompt", "invalid_value");
    rows[n - 1].o.n_prompt = 1;
    ROW(n, 0, "n", "invalid_value");
    ROW(n, 1000000, "n", "invalid_value");
    ROW(max_tokens, 100000, "max_tokens", "context_length_exceeded");
    ROW(sampling.temperature, -1, "temperature", "invalid_value");
    ROW(sampling.top_p, 1.5f, "top_p", "invalid_value");
    ROW(sampling.top_n_sigma, INFINITY, "top_n_sigma", "invalid_value");
    ROW(sampling.typical_p, 1.5f, "typical_p", "invalid_value");
    ROW(sampling.xtc_probability, 1.5f, "xtc_probability", "invalid_value");
    ROW(sampling.xtc_threshold, -1, "xtc_threshold", "invalid_value");
    ROW(sampling.dynatemp_range, NAN, "dynatemp_range", "invalid_value");
    ROW(sampling.dry_multiplier, -INFINITY, "dry_multiplier", "invalid_value");
    ROW(sampling.dry_multiplier, 1, "dry_base", "invalid_value");
    ROW(sampling.dry_breakers, stops, "dry_sequence_breakers", "invalid_value");
    rows[n - 1].o.sampling.n_dry_breakers = ENGINE_MAX_DRY_BREAKERS + 1;
    rows[n - 1].o.sampling.dry_multiplier = rows[n - 1].o.sampling.dry_base = 1;
    rows[n - 1].o.sampling.dry_last_n = 1;
    ROW(logprobs, 1000, "logprobs", "invalid_value");
    ROW(min_tokens, 11, "min_tokens", "invalid_value");
    ROW(stop, stops, "stop", "invalid_value");
    rows[n - 1].o.n_stop = 1;
#undef ROW
    for (size_t i = 0; i < n; i++) {
        engine_request *r = NULL;
        xd_err err = {0};
        cr_assert_eq(engine_submit(w->e, &rows[i].o, &r, &err), XD_BAD_REQUEST, "row %zu", i);
        cr_assert_str_eq(err.param, rows[i].param, "row %zu: %s", i, err.msg);
        cr_assert_str_eq(err.code, rows[i].code, "row %zu", i);
        cr_assert_null(r);
    }
    done(w);
}

Test(engine, cancelling_one_frees_its_blocks_and_leaves_others_alone)
{
    world *w = make(NULL);
    engine_request_options o = options(w);
    o.max_tokens = 200;
    engine_request *victim = submit(w, &o), *queued[6];
    o.max_tokens = w->n_greedy;
    engine_request *other = submit(w, &o);
    for (size_t i = 0; i < XD_ARRAY_LEN(queued); i++)
        queued[i] = submit(w, &o);
    answer v = {0}, a = {0};
    wait_for(victim, &v, 2);
    engine_request_free(victim);
    engine_request_free(queued[5]); /* never ran */
    wait_for(other, &a, UINT32_MAX);
    cr_assert_arr_eq(a.ids[0], w->greedy, w->n_greedy * sizeof(uint32_t));
    engine_request_free(other);
    for (size_t i = 0; i < 5; i++) {
        answer q = {0};
        wait_for(queued[i], &q, UINT32_MAX);
        cr_assert_arr_eq(q.ids[0], w->greedy, w->n_greedy * sizeof(uint32_t));
        engine_request_free(queued[i]);
    }
    engine_drain(w->e, xd_now_ns() + LONG_NS);
    cr_assert_eq(status_number(w->e, "kv", "blocks_used"), 0);
    done(w);
}

Test(engine, a_deadline_ends_a_request_with_a_timeout)
{
    world *w = make(NULL);
    engine_request_options o = options(w);
    o.max_tokens = 300;
    o.deadline_ns = xd_now_ns() + 1;
    answer a = ask(w, &o);
    cr_assert_eq(a.n_error, 1);
    cr_assert_eq(a.error.status, XD_TIMEOUT);
    done(w);
}

Test(engine, a_full_queue_answers_busy)
{
    const char *const small[] = {"server.max_queue", "2", "engine.max_num_seqs", "1", NULL};
    world *w = make(small);
    engine_request_options o = options(w);
    engine_request *r[2] = {0}, *late = NULL;
    xd_err err = {0};
    engine_hold(w->e, true); /* else it might be quicker than this thread */
    for (size_t i = 0; i < XD_ARRAY_LEN(r); i++)
        r[i] = submit(w, &o);
    cr_assert_eq(engine_submit(w->e, &o, &late, &err), XD_BUSY);
    cr_assert_str_eq(err.code, "queue_full");
    engine_hold(w->e, false);
    for (size_t i = 0; i < XD_ARRAY_LEN(r); i++) {
        answer a = {0};
        wait_for(r[i], &a, UINT32_MAX);
        cr_assert_eq(a.n_tokens[0], 10);
        engine_request_free(r[i]);
    }
    late = submit(w, &o);
    engine_request_free(late);
    done(w);
}

Test(engine, the_queue_counts_calls_not_their_prompts)
{
    const char *const small[] = {"server.max_queue", "2", "engine.max_num_seqs", "1", NULL};
    world *w = make(small);
    engine_request_options o = options(w);
    engine_request *r[40] = {0}, *late = NULL;
    o.max_tokens = 3;
    engine_hold(w->e, true);
    for (size_t i = 0; i < XD_ARRAY_LEN(r); i++) { /* two calls of 20 */
        o.with = i % 20 ? r[i - i % 20] : NULL;
        cr_assert_eq(engine_submit(w->e, &o, &r[i], NULL), XD_OK);
    }
    xd_err err = {0};
    o.with = NULL;
    cr_assert_eq(engine_submit(w->e, &o, &late, &err), XD_BUSY);
    cr_assert(strstr(err.msg, "2 requests (of 40 prompts)"), "%s", err.msg);
    engine_request_free(r[0]); /* the handle: its call lives on in the others */
    r[0] = NULL;
    engine_hold(w->e, false);
    for (size_t i = 1; i < XD_ARRAY_LEN(r); i++) {
        answer a = {0};
        wait_for(r[i], &a, UINT32_MAX);
        cr_assert_eq(a.n_tokens[0], 3);
        engine_request_free(r[i]);
    }
    cr_assert_eq(engine_submit(w->e, &o, &late, NULL), XD_OK, "nobody waits any more");
    engine_request_free(late);
    done(w);
}

/* The single request is through before most of the others have begun: by the engine's own clock, since its consumers come when they come. */
Test(engine, a_single_request_does_not_wait_for_a_call_of_many)
{
    const char *const small[] = {"engine.max_num_seqs", "2", NULL};
    world *w = make(small);
    engine_request_options o = options(w);
    engine_request *many[24] = {0};
    o.max_tokens = 40;
    engine_hold(w->e, true);
    for (size_t i = 0; i < XD_ARRAY_LEN(many); i++) {
        o.with = many[0];
        cr_assert_eq(engine_submit(w->e, &o, &many[i], NULL), XD_OK);
    }
    o.with = NULL;
    o.max_tokens = 5;
    engine_request *one = submit(w, &o);
    engine_hold(w->e, false);
    answer a = {0};
    wait_for(one, &a, UINT32_MAX);
    cr_assert_eq(a.n_tokens[0], 5);
    uint64_t one_ended_ns = a.usage.submitted_ns + a.usage.total_ns;
    engine_request_free(one);
    answer first = {0};
    uint32_t n_later = 0;
    for (size_t i = 0; i < XD_ARRAY_LEN(many); i++) { /* the same prompt, greedily: whoever gave way says the same */
        answer b = {0};
        wait_for(many[i], &b, UINT32_MAX);
        cr_assert_eq(b.n_tokens[0], 40);
        n_later += b.usage.submitted_ns + b.usage.first_token_ns > one_ended_ns;
        if (!i)
            first = b;
        cr_assert_eq(memcmp(first.ids[0], b.ids[0], 40 * sizeof b.ids[0][0]), 0, "request %zu", i);
        engine_request_free(many[i]);
    }
    cr_assert_gt(n_later, XD_ARRAY_LEN(many) / 2);
    done(w);
}

Test(engine, draining_lets_requests_end_and_takes_no_more)
{
    world *w = make(NULL);
    engine_request_options o = options(w);
    engine_request *r = submit(w, &o), *late = NULL;
    engine_drain(w->e, xd_now_ns() + LONG_NS);
    answer a = {0};
    wait_for(r, &a, UINT32_MAX);
    cr_assert_eq(a.n_tokens[0], 10);
    engine_request_free(r);
    xd_err err = {0};
    cr_assert_eq(engine_submit(w->e, &o, &late, &err), XD_UNAVAILABLE);
    done(w);
}

/* Holds the engine at its first token until it drains, so that the answer cannot be complete by then. */
static void hold_until_draining(void *user)
{
    while (engine_get_phase(((world *)user)->e, NULL, NULL, 0) == ENGINE_READY)
        sched_yield();
    on_event(NULL);
}

Test(engine, draining_past_the_deadline_cancels)
{
    world *w = make(NULL);
    engine_request_options o = options(w);
    o.max_tokens = 400;
    o.notify = hold_until_draining;
    o.user = w;
    engine_request *r = submit(w, &o);
    engine_drain(w->e, xd_now_ns());
    answer a = {0};
    wait_for(r, &a, UINT32_MAX);
    cr_assert_eq(a.n_error, 1);
    cr_assert_eq(a.error.status, XD_UNAVAILABLE);
    engine_request_free(r);
    done(w);
}

/* The same until it is to end. */
static void hold_until_stopping(void *user)
{
    engine *e = ((world *)user)->e;
    on_event(NULL);
    for (bool stop = false; !stop; sched_yield()) {
        pthread_mutex_lock(&e->lock);
        stop = e->stop;
        pthread_mutex_unlock(&e->lock);
    }
}

Test(engine, freeing_it_with_requests_running_is_fine)
{
    world *w = make(NULL);
    engine_request_options o = options(w);
    o.max_tokens = 400;
    o.notify = hold_until_stopping;
    o.user = w;
    engine_request *r = submit(w, &o);
    answer a = {0};
    wait_for(r, &a, 1);
    engine_free(w->e);
    w->e = NULL;
    take(r, &a);
    cr_assert_eq(a.n_error, 1);
    engine_request_free(r);
    done(w);
}

/* A copy of the model whose weights are all NaN. */
static void damage(char out[64])
{
    char from[4096], cmd[9000];
    strcpy(out, "/tmp/xd_engine_XXXXXX");
    cr_assert(mkdtemp(out));
    snprintf(cmd, sizeof cmd, "cp '%s'/* %s/ && chmod u+w %s/*", model_path(from), out, out);
    cr_assert_eq(system(cmd), 0);
    char file[128];
    snprintf(file, sizeof file, "%s/model.safetensors", out);
    int fd = open(file, O_RDWR | O_CLOEXEC);
    uint64_t header = 0;
    struct stat sb;
    cr_assert(fd >= 0 && pread(fd, &header, 8, 0) == 8 && fstat(fd, &sb) == 0);
    uint8_t nan[4096];
    for (size_t i = 0; i < sizeof nan; i++)
        nan[i] = i % 2 ? 0x7f : 0xc0; /* bf16 0x7fc0 */
    cr_assert_eq(header % 2, 0);
    for (off_t at = (off_t)header + 8; at < sb.st_size; at += sizeof nan) {
        size_t n = XD_MIN(sizeof nan, (size_t)(sb.st_size - at));
        cr_assert_eq(pwrite(fd, nan, n, at), (ssize_t)n);
    }
    close(fd);
}

static void clean(const char *dir)
{
    char cmd[128];
    snprintf(cmd, sizeof cmd, "rm -r %s", dir);
    cr_assert_eq(system(cmd), 0);
}

Test(engine, damaged_weights_are_refused_at_the_start)
{
    char dir[64];
    damage(dir);
    config *cfg = settings(dir, NULL);
    engine *e = NULL;
    xd_err err = {0};
    cr_assert_eq(engine_start(cfg, &e, &err), XD_OK);
    cr_assert_neq(engine_wait_ready(e, NULL, NULL, &err), XD_OK);
    cr_assert(strstr(err.msg, "self-test"), "%s", err.msg);
    cr_assert_eq(engine_get_phase(e, NULL, NULL, 0), ENGINE_FAILED);
    engine_free(e);
    conf_free(cfg);
    clean(dir);
}

Test(engine, logits_that_are_not_numbers_fail_the_request_not_the_engine)
{
    char dir[64];
    damage(dir);
    const char *const off[] = {"engine.self_test", "no", NULL};
    world w = {.cfg = settings(dir, off), .prompt = {5, 6, 7}, .n_prompt = 3};
    w.e = start(w.cfg);
    for (int i = 0; i < 3; i++) { /* argmax, the largest logits, whole rows */
        engine_request_options o = options(&w);
        o.logprobs = i == 1 ? 3 : -1;
        o.sampling.temperature = i == 2 ? 1 : 0;
        answer a = ask(&w, &o);
        cr_assert_eq(a.n_tokens[0], 0, "way %d gave token %u", i, a.ids[0][0]);
        cr_assert_eq(a.error.status, XD_INTERNAL);
        cr_assert(strstr(a.error.msg, "finite"), "%s", a.error.msg);
    }
    cr_assert_eq(engine_get_phase(w.e, NULL, NULL, 0), ENGINE_READY);
    engine_free(w.e);
    conf_free(w.cfg);
    clean(dir);
}

Test(engine, metrics_count_and_status_is_json)
{
    world *w = make(NULL);
    engine_request_options o = options(w);
    ask(w, &o);
    xd_buf b = {0};
    engine_metrics(w->e, &b);
    cr_assert(!b.failed);
    cr_assert(strstr(b.data, "expertd_generated_tokens_total 10\n"), "%s", b.data);
    cr_assert(strstr(b.data, "expertd_requests_total{finish=\"length\"} 1\n"));
    cr_assert(strstr(b.data, "expertd_time_to_first_token_seconds_count 1\n"));
    cr_assert_eq(status_number(w->e, NULL, "generated_tokens"), 10);
    cr_assert_eq(status_number(w->e, "pager", "hits_vram"), 0);
    cr_assert_gt(status_number(w->e, "pager", "hits_host"), 0);
    xd_buf_free(&b);
    done(w);
}

Test(engine, a_fallback_without_a_link_is_refused)
{
    world *w = make(NULL);
    xd_err err;
    cr_assert_eq(engine_force_fallback(w->e, CONF_FORCE_FALLBACK, &err), XD_UNSUPPORTED);
    cr_assert(strstr(err.msg, "no link"), "%s", err.msg);
    cr_assert_eq(engine_force_fallback(w->e, CONF_FORCE_DIRECT, &err), XD_OK);
    cr_assert_eq(engine_force_fallback(w->e, CONF_FORCE_NONE, &err), XD_OK);
    done(w);
}

/* --- text: the demo model, whose tokenizer and greedy text are known ---------------------------------------------- */

typedef struct demo_text {
    world w;
    char want[4096];
} demo_text;

static bool open_demo(demo_text *d)
{
    char path[4096], golden[4200];
    const char *root = getenv("EXPERTD_SOURCE_ROOT");
    *d = (demo_text){0};
    snprintf(path, sizeof path, "%s/config/demo", root ? root : ".");
    snprintf(golden, sizeof golden, "%s/golden.json", path);
    json_t *g = json_load_file(golden, 0, NULL), *c = json_array_get(json_object_get(g, "cases"), 0), *v;
    if (!c)
        return false;
    size_t i;
    json_array_foreach (json_object_get(c, "prompt_ids"), i, v)
        d->w.prompt[d->w.n_prompt++] = (uint32_t)json_integer_value(v);
    json_array_foreach (json_object_get(c, "greedy_ids"), i, v)
        d->w.n_greedy++;
    snprintf(d->want, sizeof d->want, "%s", json_string_value(json_object_get(c, "greedy_text")));
    json_decref(g);
    d->w.cfg = settings(path, (const char *const[]){"model.tokenizer", "yes", NULL});
    d->w.e = start(d->w.cfg);
    return true;
}

static void read_text(demo_text *d, const char *const *stops, uint32_t n_stops, xd_buf *out, xd_buf *ret_stop)
{
    engine_request_options o = options(&d->w);
    o.max_tokens = d->w.n_greedy;
    o.detokenize = true;
    o.skip_special = true;
    o.stop = stops;
    o.n_stop = n_stops;
    engine_request *r = submit(&d->w, &o);
    engine_event ev;
    while (!engine_request_finished(r)) {
        pthread_mutex_lock(&lock);
        uint64_t seen = n_notified;
        pthread_mutex_unlock(&lock);
        while (engine_request_next(r, &ev)) {
            cr_assert_neq(ev.kind, ENGINE_EV_ERROR);
            xd_buf_append(out, ev.text, ev.text_len);
            if (ev.kind == ENGINE_EV_DONE && ev.stop_text)
                xd_buf_puts(ret_stop, ev.stop_text);
        }
        pthread_mutex_lock(&lock);
        while (n_notified == seen && !engine_request_finished(r))
            pthread_cond_wait(&cond, &lock);
        pthread_mutex_unlock(&lock);
    }
    engine_request_free(r);
}

Test(engine, the_text_of_all_events_is_the_reference_text)
{
    demo_text d;
    if (!open_demo(&d))
        cr_skip_test("config/demo is not in this tree");
    xd_buf out = {0}, stop = {0};
    read_text(&d, NULL, 0, &out, &stop);
    cr_assert_str_eq(out.data, d.want);
    xd_buf_free(&out);
    engine_free(d.w.e);
    conf_free(d.w.cfg);
}

Test(engine, every_stop_string_cuts_the_text_just_before_it)
{
    demo_text d;
    if (!open_demo(&d))
        cr_skip_test("config/demo is not in this tree");
    size_t len = strlen(d.want);
    /* Stops of seven bytes from all over the text: most of them span two or more tokens. */
    for (size_t at = 3; at + 7 < len && at < 120; at += 9) {
        char word[8];
        snprintf(word, sizeof word, "%.7s", d.want + at);
        const char *stops[] = {"never in this text", word};
        xd_buf out = {0}, stop = {0};
        read_text(&d, stops, 2, &out, &stop);
        size_t cut = (size_t)(strstr(d.want, word) - d.want);
        cr_assert_eq(out.len, cut, "stop '%s': got '%.*s'", word, (int)out.len, out.data ? out.data : "");
        cr_assert(cut == 0 || memcmp(out.data, d.want, cut) == 0);
        cr_assert_str_eq(stop.data, word);
        xd_buf_free(&out);
        xd_buf_free(&stop);
    }
    engine_free(d.w.e);
    conf_free(d.w.cfg);
}
