/* client.h - a client of the engine within the process: fixed requests, their answers, and what the engine says of itself. Requests 0
 * to N_PROBES - 1 tell log probabilities. */
#ifndef TESTS_GOLDEN_CLIENT_H
#define TESTS_GOLDEN_CLIENT_H

#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"

enum { N_PROBES = 4, PROMPT = 90, LONG_PROMPT = 700, OUTPUT = 40, MAX_LEN = 256 };

typedef struct answer {
    uint32_t n, ids[OUTPUT], cached, preemptions;
    float logprob[OUTPUT];
    bool failed;
} answer;

typedef struct waiter {
    pthread_mutex_t lock;
    pthread_cond_t cond;
    uint64_t n;
} waiter;

static uint32_t common; /* tokens that all prompts begin with */
static waiter w = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0};

static void on_event(void *user)
{
    (void)user;
    pthread_mutex_lock(&w.lock);
    w.n++;
    pthread_cond_broadcast(&w.cond);
    pthread_mutex_unlock(&w.lock);
}

static uint32_t random_id(uint64_t *state, uint32_t vocab)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return 3 + (uint32_t)(*state >> 33) % (vocab - 3);
}

static engine_request *submit(engine *e, uint32_t which, uint32_t n, uint32_t n_prompt)
{
    uint32_t prompt[LONG_PROMPT], len = XD_MIN(n_prompt, (uint32_t)LONG_PROMPT) - which % 7,
                                  vocab = engine_get_info(e)->vocab;
    uint64_t own = which * 977 + 5, shared = 1;
    for (uint32_t i = 0; i < len; i++)
        prompt[i] = random_id(i < common ? &shared : &own, vocab);
    engine_request_options o = {
        .prompt_ids = prompt,
        .n_prompt = len,
        .n = n,
        .max_tokens = OUTPUT,
        .sampling = {.temperature = 0, .top_p = 1, .min_p = 0, .top_k = 0, .repetition_penalty = 1},
        .ignore_eos = true,
        .logprobs = which < N_PROBES ? 5 : -1,
        .prompt_logprobs = -1,
        .notify = on_event};
    if (which == 1 || which % 4 == 3)
        o.sampling = (engine_sampling){.temperature = 0.8f,
                                       .top_p = 0.9f,
                                       .min_p = 0,
                                       .top_k = 40,
                                       .repetition_penalty = 1,
                                       .has_seed = true,
                                       .seed = which};
    if (which == 2)
        o.sampling = (engine_sampling){.temperature = 1.1f,
                                       .top_p = 0.95f,
                                       .min_p = 0.01f,
                                       .top_k = 0,
                                       .repetition_penalty = 1.1f,
                                       .frequency_penalty = 0.3f,
                                       .has_seed = true,
                                       .seed = 7};
    if (which == 3) /* a history that counts, and every filter that has a number or a state of its own */
        o.sampling = (engine_sampling){.temperature = 0.9f,
                                       .top_p = 0.95f,
                                       .repetition_penalty = 1,
                                       .has_seed = true,
                                       .seed = 21,
                                       .top_n_sigma = 2,
                                       .typical_p = 0.95f,
                                       .xtc_probability = 0.5f,
                                       .xtc_threshold = 0.02f,
                                       .dynatemp_range = 0.4f,
                                       .dynatemp_exponent = 1,
                                       .dry_multiplier = 0.8f,
                                       .dry_base = 1.75f,
                                       .dry_last_n = UINT32_MAX};
    engine_request *r = NULL;
    xd_err err = {0};
    if (engine_submit(e, &o, &r, &err))
        printf("    submit: %s\n", err.msg);
    return r;
}

/* Takes what is there; a holds the answer of `choice`. */
static void take(engine_request *r, answer *a, uint32_t choice)
{
    engine_event ev;
    while (engine_request_next(r, &ev)) {
        if (ev.kind == ENGINE_EV_ERROR) {
            printf("    error: %s\n", ev.error->msg);
            a->failed = true;
        } else if (ev.kind == ENGINE_EV_TOKEN && ev.choice == choice && a->n < OUTPUT) {
            a->ids[a->n] = ev.token_id;
            a->logprob[a->n++] = ev.logprob.logprob;
        }
    }
}

static void finish(engine_request *r, answer *a, uint32_t choice)
{
    if (!r) {
        a->failed = true;
        return;
    }
    for (;;) {
        pthread_mutex_lock(&w.lock);
        uint64_t seen = w.n;
        pthread_mutex_unlock(&w.lock);
        take(r, a, choice);
        if (engine_request_finished(r))
            break;
        pthread_mutex_lock(&w.lock);
        while (w.n == seen)
            pthread_cond_wait(&w.cond, &w.lock);
        pthread_mutex_unlock(&w.lock);
    }
    engine_usage u;
    engine_request_usage(r, &u);
    a->cached = u.cached_tokens;
    a->preemptions = u.preemptions;
    engine_request_free(r);
}

static json_int_t number(engine *e, const char *group, const char *name)
{
    XD_CLEANUP(xd_buf_free) xd_buf b = {0};
    xd_err err = {0};
    if (engine_status_json(e, false, &b, &err))
        return -1;
    json_t *o = json_loads(b.data, 0, NULL), *g = json_object_get(o, group);
    json_t *found = json_is_object(g) ? json_object_get(g, name) : json_object_get(o, name);
    json_int_t v = json_is_true(found) ? 1 : json_integer_value(found);
    size_t i;
    json_t *row;
    json_array_foreach (g, i, row) {
        if (strcmp(json_string_value(json_object_get(row, "what")), name) == 0)
            v = json_integer_value(json_object_get(row, "bytes"));
    }
    json_decref(o);
    return v;
}

/* One value of the metrics page, labels included in the name; -1: not there. */
static double metric(engine *e, const char *name)
{
    XD_CLEANUP(xd_buf_free) xd_buf b = {0};
    engine_metrics(e, &b);
    char line[128];
    snprintf(line, sizeof line, "\nexpertd_%s ", name);
    const char *at = b.data ? strstr(b.data, line) : NULL;
    return at ? strtod(at + strlen(line), NULL) : -1;
}

static bool same(const answer *a, const answer *b, const char *what)
{
    if (a->failed || b->failed || a->n != b->n) {
        printf("    %s: %u tokens against %u%s\n", what, b->n, a->n, b->failed ? ", failed" : "");
        return false;
    }
    for (uint32_t i = 0; i < a->n; i++) {
        if (a->ids[i] != b->ids[i] || memcmp(&a->logprob[i], &b->logprob[i], sizeof(float)) != 0) {
            printf("    %s: token %u is %u (%.9g), alone it was %u (%.9g)\n", what, i, b->ids[i], (double)b->logprob[i],
                   a->ids[i], (double)a->logprob[i]);
            return false;
        }
    }
    return true;
}

#endif
