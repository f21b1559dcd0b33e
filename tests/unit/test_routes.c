/* Picks from a trace: what was written is what is picked, for any timeline, and a trace of another model is refused. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/exec/routes.h"
#include "engine/memory/trace.h"

enum { LAYERS = 4, EXPERTS = 16, TOP_K = 4, STEPS = 7 }; /* synthetic:tiny */

static model *tiny(void)
{
    xd_err err;
    model *m = NULL;
    model_options o = {.path = "synthetic:tiny", .dtype = "bf16", .geometry_only = true};
    cr_assert_eq(model_open(&o, &m, &err), XD_OK, "%s", err.msg);
    return m;
}

/* Expert k of step s in layer l, k < per_step: all different within a step and layer. */
static uint32_t expert_of(uint32_t s, uint32_t l, uint32_t k)
{
    return (s * 5 + l * 3 + k * 2 + (k >= 8)) % EXPERTS;
}

static const char *write_trace(uint32_t n_layers, uint32_t n_experts, uint32_t per_step, bool prefill)
{
    static char path[64];
    strcpy(path, "/tmp/xd-routes-XXXXXX");
    int fd = mkstemp(path);
    cr_assert_geq(fd, 0);
    close(fd);
    uint32_t layers[LAYERS], counts[LAYERS * EXPERTS];
    for (uint32_t l = 0; l < n_layers; l++)
        layers[l] = n_experts;
    trace_writer *w;
    xd_err err;
    cr_assert_eq(trace_writer_open(path, 1, n_layers, layers, 1 << 20, &w, &err), XD_OK, "%s", err.msg);
    for (uint32_t s = 0; s < STEPS; s++) {
        memset(counts, 0, sizeof counts);
        for (uint32_t l = 0; l < n_layers; l++)
            for (uint32_t k = 0; k < per_step; k++)
                counts[l * n_experts + expert_of(s, l, k) % n_experts] = 1;
        trace_writer_step(w, counts, prefill || s == 3); /* step 3 is never picked from */
    }
    trace_writer_close(w);
    return path;
}

static routes *open_routes(const char *path, const model *m)
{
    routes *r = NULL;
    xd_err err;
    cr_assert_eq(routes_open(path, m, &r, &err), XD_OK, "%s", err.msg);
    return r;
}

static bool in_step(uint32_t s, uint32_t l, uint32_t per_step, uint32_t e)
{
    for (uint32_t k = 0; k < per_step; k++)
        if (expert_of(s, l, k) == e)
            return true;
    return false;
}

static void assert_different(const uint32_t *out)
{
    for (uint32_t i = 0; i < TOP_K; i++) {
        cr_assert_lt(out[i], EXPERTS);
        for (uint32_t j = 0; j < i; j++)
            cr_assert_neq(out[i], out[j]);
    }
}

/* The step that a timeline is at, from its picks in layer 0; its picks in all layers are of that step. */
static int step_at(const routes *r, uint64_t salt, uint32_t pos, uint32_t per_step)
{
    int found = -1;
    for (int s = 0; s < STEPS; s++) {
        bool all = true;
        for (uint32_t l = 0; l < LAYERS; l++) {
            uint32_t out[TOP_K], inside = 0;
            routes_pick(r, salt, pos, l, out);
            assert_different(out);
            for (uint32_t k = 0; k < TOP_K; k++)
                inside += in_step((uint32_t)s, l, per_step, out[k]);
            all = all && inside == (per_step < TOP_K ? per_step : TOP_K);
        }
        if (all)
            found = s;
    }
    return found;
}

Test(routes, a_timeline_follows_the_decode_steps)
{
    static const int next[STEPS] = {1, 2, 4, -1, 5, 6, 0}; /* 3 was a prompt */
    static const uint32_t counts[] = {TOP_K, 6, 2};        /* as many as a token picks, more, fewer */
    model *m = tiny();
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        routes *r = open_routes(write_trace(LAYERS, EXPERTS, counts[i], false), m);
        bool begins[STEPS] = {false};
        for (uint64_t salt = 0; salt < 40; salt++) {
            int s = step_at(r, salt, 0, counts[i]);
            cr_assert(s >= 0 && s != 3);
            begins[s] = true;
            for (uint32_t pos = 1; pos < 20; pos++) {
                int now = step_at(r, salt, pos, counts[i]);
                cr_assert_eq(now, next[s]);
                s = now;
            }
        }
        for (int s = 0; s < STEPS; s++)
            cr_assert(begins[s] == (s != 3), "timelines begin everywhere");
        routes_free(r);
    }
    model_free(m);
}

static void refused(const char *path, const model *m, const char *text)
{
    routes *r = NULL;
    xd_err err;
    cr_assert_neq(routes_open(path, m, &r, &err), XD_OK);
    cr_assert(strstr(err.msg, text), "%s", err.msg);
}

Test(routes, a_trace_of_something_else_is_refused)
{
    model *m = tiny();
    refused("/nonexistent", m, "model.skew_trace");
    refused(write_trace(LAYERS - 1, EXPERTS, TOP_K, false), m, "3 layers, the model has 4");
    refused(write_trace(LAYERS, EXPERTS / 2, TOP_K, false), m, "layer 0");
    refused(write_trace(LAYERS, EXPERTS, TOP_K, true), m, "no decode step");
    model_free(m);
}
