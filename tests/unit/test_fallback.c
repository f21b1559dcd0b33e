#include <criterion/criterion.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/fallback/fallback.h"
#include "engine/memory/link_sim.h"
#include "in_time.h"

/* A device behind a link that its reads and its background copies share, and on which copies never succeed: a fallback that loads all
 * experts goes on copying for ever. Each reader gets less than half of what the test says. */
static struct {
    const kern_ops *real;
    kern_ops ops;
    _Atomic double gbps;
    _Atomic bool copying;
    _Atomic uint32_t n_batches;
    uint32_t n_disturbed;
    uint64_t probe_bytes; /* in all */
    uint32_t n_together;  /* copies of the batch that is being handed over */
    _Atomic uint32_t most_together;
} shared;

static void shared_info(kern_dev *d, kern_dev_info *ret)
{
    shared.real->info(d, ret);
    ret->unified = false;
    ret->memory_free_bytes = 1ull << 30;
}

static kern_status shared_copy(kern_dev *d, void *dst, const void *src, uint64_t bytes)
{
    (void)d, (void)dst, (void)src, (void)bytes;
    shared.copying = true;
    shared.n_together++;
    return KERN_OK;
}

static kern_status shared_copy_wait(kern_dev *d)
{
    (void)d;
    struct timespec ts = {.tv_nsec = 2000000};
    nanosleep(&ts, NULL);
    shared.copying = false;
    if (shared.n_together > shared.most_together)
        shared.most_together = shared.n_together;
    shared.n_together = 0;
    shared.n_batches++;
    return KERN_DEVICE;
}

static kern_status shared_probe(kern_dev *d, uint64_t addr, uint64_t bytes, double *ret_gbps)
{
    (void)d, (void)addr;
    struct timespec ts = {.tv_nsec = 1000000};
    shared.probe_bytes += bytes;
    bool disturbed = shared.copying;
    nanosleep(&ts, NULL);
    disturbed = disturbed || shared.copying;
    shared.n_disturbed += disturbed;
    *ret_gbps = shared.gbps * (disturbed ? 0.4 : 1);
    return KERN_OK;
}

static void share_link(kern_dev *d, double gbps)
{
    shared.real = d->ops;
    shared.ops = *d->ops;
    shared.ops.info = shared_info;
    shared.ops.copy_async = shared_copy;
    shared.ops.copy_wait = shared_copy_wait;
    shared.ops.probe_read = shared_probe;
    shared.gbps = gbps;
    shared.copying = false;
    shared.n_batches = shared.n_disturbed = shared.n_together = shared.most_together = 0;
    d->ops = &shared.ops;
}

typedef struct rig {
    kern_dev *dev;
    model *m;
    config *cfg;
    pager *p;
    fallback *f;
    bool cpu, shares_link;
    char states[64], path[1024];
} rig;

static void on_change(void *user, const controller_change *c)
{
    rig *r = user;
    size_t n = strlen(r->states);
    r->states[n] = "DSFR"[c->to];
    r->states[n + 1] = 0;
}

static void on_path(void *user, const char *text)
{
    rig *r = user;
    size_t n = strlen(r->path);
    snprintf(r->path + n, sizeof r->path - n, "%s\n", text);
}

/* spare_share: of the experts' bytes, what is free beyond the arena */
static void rig_open_spare(rig *r, double gbps, double arena_share, double spare_share)
{
    xd_err err = {0};
    kern_options ko = {.n_threads = 1, .numa_node = -1};
    cr_assert_eq(kern_cpu_open(&ko, &r->dev), KERN_OK);
    if (r->shares_link)
        share_link(r->dev, gbps);
    model_options mo = {.path = "synthetic:tiny", .dtype = "bf16", .seed = 1};
    cr_assert_eq(model_open(&mo, &r->m, &err), XD_OK, "%s", err.msg);
    cr_assert_eq(conf_defaults(&r->cfg, &err), XD_OK, "%s", err.msg);
    r->cfg->pager.warm_start = false;
    r->cfg->memory.page_size = 65536;
    r->cfg->fallback.window_s = 0.2;
    r->cfg->fallback.cooldown_s = 0.4;
    r->cfg->fallback.probe_interval_s = 0.05;
    r->cfg->test.allow = true;
    r->cfg->test.link_gbps = r->shares_link ? 0 : gbps;
    r->cfg->test.vram_free = (uint64_t)(spare_share * (double)model_expert_bytes(r->m));
    pager_options po = {.dev = r->dev,
                        .m = r->m,
                        .cfg = r->cfg,
                        .arena_bytes = (uint64_t)(arena_share * (double)model_expert_bytes(r->m))};
    cr_assert_eq(pager_open(&po, &r->p, &err), XD_OK, "%s", err.msg);
    fallback_options fo = {.dev = r->dev,
                           .pages = r->p,
                           .cpu = r->cpu,
                           .cfg = r->cfg,
                           .on_change = on_change,
                           .on_path = on_path,
                           .user = r};
    cr_assert_eq(fallback_open(&fo, &r->f, &err), XD_OK, "%s", err.msg);
}

static void rig_open(rig *r, double gbps, double arena_share)
{
    rig_open_spare(r, gbps, arena_share, 0);
}

static void rig_close(rig *r)
{
    fallback_free(r->f);
    pager_free(r->p);
    model_free(r->m);
    conf_free(r->cfg);
    r->dev->ops->close(r->dev);
}

static void set_link(rig *r, double gbps)
{
    r->cfg->test.link_gbps = gbps;
    cr_assert_eq(pager_reload(r->p, r->cfg, NULL), XD_OK);
}

/* The loop of an engine without work: ticks until the states are as wanted. */
static void tick_until(rig *r, const char *states)
{
    for (uint64_t begin = xd_now_ns(); strcmp(r->states, states) != 0; in_time(begin, states)) {
        cr_assert(!strncmp(r->states, states, strlen(r->states)), "states %s, wanted %s", r->states, states);
        fallback_tick(r->f);
        struct timespec ts = {.tv_nsec = 5000000};
        nanosleep(&ts, NULL);
    }
}

Test(fallback, a_simulated_drop_moves_the_pager_to_the_staged_path_and_back)
{
    rig r = {0};
    rig_open(&r, 50, 0.5);
    fallback_status st;
    fallback_get_status(r.f, &st);
    cr_assert(st.watching);
    cr_assert_float_eq(st.healthy_gbps, 50, 1e-6);
    set_link(&r, 5);
    tick_until(&r, "SF");
    cr_assert_eq(pager_get_mode(r.p), PAGER_STAGED);
    set_link(&r, 50);
    tick_until(&r, "SFRD");
    cr_assert_eq(pager_get_mode(r.p), PAGER_DIRECT);
    fallback_get_status(r.f, &st);
    cr_assert_eq(st.transitions, 4);
    cr_assert_eq(st.entered[FALLBACK_FALLBACK], 1);
    cr_assert_str_eq(st.problem, "");
    rig_close(&r);
}

static void decode(rig *r, uint32_t steps, double ms)
{
    fallback_step_info s = {.step_ns = (uint64_t)(ms * 1e6), .n_decode = 1, .decode_only = true};
    for (uint32_t i = 0; i < steps; i++)
        fallback_step(r->f, &s);
}

/* Until what falling back copies into VRAM lies there: the end is a line. */
static void wait_filled(rig *r)
{
    for (uint64_t begin = xd_now_ns(); !strstr(r->path, "lie in VRAM after"); in_time(begin, "the end of the fill")) {
        pager_idle(r->p);
        fallback_tick(r->f);
    }
}

/* On a bad link; tokens took 50 ms before. */
static void fall_back(rig *r)
{
    set_link(r, 5);
    tick_until(r, "S");
    decode(r, 8, 50);
    tick_until(r, "SF");
}

/* Falls back, and then tokens take so long when staged. */
static int mode_after_staging(double staged_ms)
{
    rig r = {0};
    rig_open(&r, 50, 0.5);
    fall_back(&r);
    cr_assert_eq(pager_get_mode(r.p), PAGER_STAGED);
    decode(&r, 8, staged_ms);
    int mode = pager_get_mode(r.p);
    cr_assert_str_eq(r.states, "SF");
    rig_close(&r);
    return mode;
}

Test(fallback, staging_that_makes_tokens_slower_is_given_up)
{
    cr_assert_eq(mode_after_staging(40), PAGER_STAGED);
    cr_assert_eq(mode_after_staging(52), PAGER_STAGED);
    cr_assert_eq(mode_after_staging(80), PAGER_DIRECT);
}

/* Scripted times: what a token takes on each path. */
static void decode_on(rig *r, uint32_t steps, uint32_t n_seqs, double staged_ms, double cpu_ms)
{
    for (uint32_t i = 0; i < steps; i++) {
        double ms = pager_get_mode(r->p) == PAGER_SHARED ? cpu_ms : staged_ms;
        fallback_step_info s = {.step_ns = (uint64_t)(ms * 1e6), .n_decode = n_seqs, .decode_only = true};
        fallback_step(r->f, &s);
    }
}

Test(fallback, the_cpu_computes_what_is_missing_where_tokens_are_quicker)
{
    rig r = {0};
    fallback_status st;
    r.cpu = true;
    rig_open(&r, 50, 0.5);
    fall_back(&r);
    cr_assert_eq(pager_get_mode(r.p), PAGER_STAGED, "tried first");
    decode_on(&r, 12, 1, 45, 20);
    cr_assert_eq(pager_get_mode(r.p), PAGER_SHARED);
    cr_assert(strstr(r.path,
                     "while one sequence runs, missing experts are shared by link and CPU: a token took 20.0 ms, "
                     "with bulk copies 45.0 ms\n"),
              "%s", r.path);
    fallback_get_status(r.f, &st);
    cr_assert_eq(st.pager_mode, PAGER_SHARED);
    cr_assert_float_eq(st.token_ms[PATH_IN_PLACE], 50, 1e-6);
    cr_assert_float_eq(st.token_ms[PATH_STAGED], 45, 1e-6);
    cr_assert_float_eq(st.token_ms[PATH_SHARED], 20, 1e-6);
    cr_assert_eq(st.state, FALLBACK_FALLBACK);
    set_link(&r, 50);
    tick_until(&r, "SFRD");
    cr_assert_eq(pager_get_mode(r.p), PAGER_DIRECT);
    rig_close(&r);
}

Test(fallback, a_slower_cpu_is_given_up_and_so_is_all_that_is_slower_than_in_place)
{
    rig r = {0};
    r.cpu = true;
    rig_open(&r, 50, 0.5);
    fall_back(&r);
    decode_on(&r, 6, 1, 45, 400);
    cr_assert_eq(pager_get_mode(r.p), PAGER_SHARED, "on trial");
    decode_on(&r, 1, 1, 45, 400); /* more than six steps of the other: no need to see the rest */
    cr_assert_eq(pager_get_mode(r.p), PAGER_STAGED);
    cr_assert(strstr(r.path, "copied in bulk: a token took 45.0 ms, shared 400.0 ms"), "%s", r.path);
    decode_on(&r, 500, 1, 45, 400);
    cr_assert_eq(pager_get_mode(r.p), PAGER_STAGED);
    rig_close(&r);

    r = (rig){0};
    r.cpu = true;
    rig_open(&r, 50, 0.5);
    fall_back(&r);
    decode_on(&r, 14, 1, 80, 60);
    cr_assert_eq(pager_get_mode(r.p), PAGER_DIRECT);
    cr_assert(strstr(r.path, "missing experts are read in place after all: a token took 50.0 ms, shared 60.0 ms"), "%s",
              r.path);
    cr_assert_str_eq(r.states, "SF");
    rig_close(&r);
}

Test(fallback, without_a_cache_there_is_still_the_cpu)
{
    rig r = {0};
    r.cpu = true;
    rig_open(&r, 50, 0);
    fall_back(&r);
    fallback_status st;
    fallback_get_status(r.f, &st);
    cr_assert_str_eq(st.problem, "");
    cr_assert_eq(pager_get_mode(r.p), PAGER_SHARED);
    cr_assert(strstr(r.path, "shared by link and CPU (staging needs"), "%s", r.path);
    decode_on(&r, 8, 1, 0, 40);
    cr_assert_eq(pager_get_mode(r.p), PAGER_SHARED);
    decode_on(&r, 8, 1, 0, 90);
    cr_assert_eq(pager_get_mode(r.p), PAGER_DIRECT);
    rig_close(&r);
}

Test(fallback, an_operators_fallback_chooses_but_does_not_read_in_place)
{
    rig r = {0};
    r.cpu = true;
    rig_open(&r, 50, 0.5);
    fallback_force(r.f, CONF_FORCE_FALLBACK);
    tick_until(&r, "F");
    decode_on(&r, 12, 1, 45, 20);
    cr_assert_eq(pager_get_mode(r.p), PAGER_SHARED);
    decode_on(&r, 50, 1, 45, 2000);
    cr_assert_eq(pager_get_mode(r.p), PAGER_SHARED, "chosen for a while");
    decode_on(&r, 50, 1, 45, 2000);
    cr_assert_eq(pager_get_mode(r.p), PAGER_STAGED);
    rig_close(&r);
}

/* A decode step that reads all of the first layer's experts, and what the controller is told of it. */
static void read_experts(rig *r, bool any, double ms)
{
    xd_err err = {0};
    const pager_view *v;
    cr_assert_eq(pager_step_begin(r->p, false, &v, &err), XD_OK, "%s", err.msg);
    for (uint32_t l = 0; l < model_get_params(r->m)->n_layers; l++)
        for (uint32_t e = 0; e < v->layers[l].n_experts; e++) {
            v->layers[l].expert_count[e] = any && !l;
            if (v->layers[l].fill_addr) /* nothing is kept */
                memset(v->layers[l].fill_addr, 0, v->layers[l].geom.pages * sizeof *v->layers[l].fill_addr);
        }
    cr_assert_eq(pager_step_fetch(r->p, &err), XD_OK, "%s", err.msg);
    cr_assert_eq(pager_step_end(r->p, &err), XD_OK, "%s", err.msg);
    fallback_step_info s = {.step_ns = (uint64_t)(ms * 1e6),
                            .n_decode = 1,
                            .decode_only = true,
                            .shared = pager_get_mode(r->p) == PAGER_SHARED};
    fallback_step(r->f, &s);
}

/* Over a good link: what a token takes either way. */
static int read_either_way(rig *r, uint32_t steps, bool any, double in_place_ms, double shared_ms)
{
    for (uint32_t i = 0; i < steps; i++)
        read_experts(r, any, pager_get_mode(r->p) == PAGER_SHARED ? shared_ms : in_place_ms);
    return pager_get_mode(r->p);
}

Test(fallback, over_a_good_link_the_cpu_shares_where_tokens_are_quicker)
{
    for (int enabled = 0; enabled < 2; enabled++) {
        rig r = {.cpu = true};
        fallback_status st;
        rig_open(&r, 50, 0);
        r.cfg->fallback.enabled = enabled;
        r.cfg->fallback.max_token_latency_ms = 1;
        fallback_reload(r.f, r.cfg);
        cr_assert_eq(read_either_way(&r, 40, true, 0.4, 0.2), PAGER_SHARED);
        cr_assert(strstr(r.path,
                         "while one sequence runs, missing experts are shared by link and CPU: a token took 0.2 ms, "
                         "in place 0.4 ms\n"),
                  "%s", r.path);
        fallback_tick(r.f);
        fallback_get_status(r.f, &st);
        cr_assert_eq(st.state, FALLBACK_DIRECT);
        cr_assert_eq(st.pager_mode, PAGER_SHARED);
        cr_assert_float_eq(st.token_ms[PATH_IN_PLACE], 0.4, 1e-6);
        cr_assert_float_eq(st.token_ms[PATH_SHARED], 0.2, 1e-6);
        /* Somebody else works on the CPU now: no fault of the link's, whatever such a token takes. */
        cr_assert_eq(read_either_way(&r, 1100, true, 0.4, 5), PAGER_DIRECT);
        cr_assert(
            strstr(r.path, "while one sequence runs, missing experts are read in place: a token took 0.4 ms, shared"),
            "%s", r.path);
        cr_assert_eq(read_either_way(&r, 1100, true, 0.4, 0.2), PAGER_SHARED);
        cr_assert_eq(read_either_way(&r, 200, false, 0.4, 0.2), PAGER_DIRECT, "nothing is missing any more");
        cr_assert_str_eq(r.states, "");
        rig_close(&r);
    }
}

Test(fallback, what_gains_nothing_is_not_tried)
{
    rig r = {.cpu = true};
    rig_open(&r, 50, 0);
    for (int i = 0; i < 100; i++)
        cr_assert_eq(read_either_way(&r, 1, false, 0.4, 0.2), PAGER_DIRECT);
    for (int i = 0; i < 100; i++)
        cr_assert_eq(read_either_way(&r, 1, true, 60, 0.2), PAGER_DIRECT, "the link is the least of it");
    cr_assert_str_eq(r.path, "");
    rig_close(&r);
    r = (rig){0};
    rig_open(&r, 50, 0);
    for (int i = 0; i < 100; i++)
        cr_assert_eq(read_either_way(&r, 1, true, 0.4, 0.2), PAGER_DIRECT, "engine.deterministic = yes");
    rig_close(&r);
}

static uint64_t probes(rig *r)
{
    fallback_status st;
    fallback_get_status(r->f, &st);
    return st.probes;
}

/* A probe takes the link from everybody for a while: steps that read nothing over it are no reason for one. */
Test(fallback, steps_that_do_not_use_the_link_call_for_no_probes)
{
    for (int forced = 0; forced < 2; forced++) {
        rig r = {.cpu = true};
        rig_open(&r, 50, 0);
        r.cfg->fallback.probe_interval_s = r.cfg->fallback.cooldown_s = 3600;
        fallback_reload(r.f, r.cfg);
        for (int i = 0; i < 20; i++)
            read_experts(&r, true, 60);
        fallback_force(r.f, forced ? CONF_FORCE_FALLBACK : CONF_FORCE_NONE);
        fallback_tick(r.f);
        cr_assert_eq(pager_get_mode(r.p), forced ? PAGER_SHARED : PAGER_DIRECT);
        uint64_t before = probes(&r);
        for (int i = 0; i < 100; i++) {
            read_experts(&r, false, 60);
            fallback_tick(r.f);
        }
        cr_assert_eq(probes(&r), before, "%llu more", (unsigned long long)(probes(&r) - before));
        rig_close(&r);
    }
}

/* What a step took belongs to the way it went, also when it is the one that brings the change. */
Test(fallback, the_step_that_leads_to_a_fallback_is_no_trial_of_it)
{
    rig r = {.cpu = true};
    fallback_status st = {0};
    rig_open(&r, 50, 0.5);
    set_link(&r, 5);
    for (uint64_t begin = xd_now_ns(); strcmp(r.states, "SF") != 0;
         in_time(begin, "SF")) { /* by the steps' own rates: nobody ticks */
        read_experts(&r, true, 900);
        struct timespec ts = {.tv_nsec = 5000000};
        nanosleep(&ts, NULL);
    }
    fallback_get_status(r.f, &st);
    cr_assert_eq(pager_get_mode(r.p), PAGER_STAGED);
    cr_assert_float_eq(st.token_ms[PATH_IN_PLACE], 900, 1e-6);
    cr_assert_eq(st.token_ms[PATH_STAGED], 0);
    rig_close(&r);
}

/* In place is measured under the suspicion that leads to a fallback; one that passed long ago was about another link. */
Test(fallback, an_old_suspicion_tells_nothing_of_a_forced_fallback)
{
    rig r = {0};
    fallback_status st;
    rig_open(&r, 50, 0.5);
    r.cfg->fallback.window_s = 1;
    fallback_reload(r.f, r.cfg);
    set_link(&r, 5);
    tick_until(&r, "S");
    decode(&r, 8, 50);
    set_link(&r, 50);
    tick_until(&r, "SD");
    fallback_force(r.f, CONF_FORCE_FALLBACK);
    tick_until(&r, "SDF");
    decode(&r, 1, 60);
    fallback_get_status(r.f, &st);
    cr_assert_eq(st.token_ms[PATH_IN_PLACE], 0);
    cr_assert_float_eq(st.token_ms[PATH_STAGED], 60, 1e-6);
    rig_close(&r);
}

Test(fallback, an_operator_takes_it_back_from_reading_in_place)
{
    for (int reload = 0; reload < 2; reload++) {
        rig r = {0};
        rig_open(&r, 50, 0.5);
        fall_back(&r);
        decode(&r, 8, 80);
        cr_assert_eq(pager_get_mode(r.p), PAGER_DIRECT);
        if (reload) {
            r.cfg->fallback.force = CONF_FORCE_FALLBACK;
            fallback_reload(r.f, r.cfg);
        } else {
            fallback_force(r.f, CONF_FORCE_FALLBACK);
            fallback_tick(r.f);
        }
        cr_assert_eq(pager_get_mode(r.p), PAGER_STAGED);
        decode(&r, 50, 80);
        cr_assert_eq(pager_get_mode(r.p), PAGER_STAGED);
        cr_assert_str_eq(r.states, "SF");
        rig_close(&r);
    }
}

Test(fallback, what_fits_is_loaded_whole)
{
    rig r = {0};
    rig_open(&r, 50, 2);
    set_link(&r, 5);
    tick_until(&r, "SF");
    cr_assert_eq(pager_get_mode(r.p), PAGER_FULL);
    rig_close(&r);
}

/* Seen on a GPU: promotions behind each step took their part of the link from the next probe, so that a healthy link looked bad. */
Test(fallback, a_probe_does_not_measure_the_pagers_own_copies)
{
    rig r = {.shares_link = true};
    rig_open(&r, 50, 2);
    shared.gbps = 5;
    tick_until(&r, "SF");
    cr_assert_eq(pager_get_mode(r.p), PAGER_FULL);
    uint64_t before = probes(&r), begin = xd_now_ns();
    for (; probes(&r) < before + 5 || shared.n_batches < 20; in_time(begin, "probes between copies")) {
        pager_idle(r.p);
        fallback_tick(r.f);
    }
    shared.gbps = 50;
    for (begin = xd_now_ns(); strcmp(r.states, "SFRD") != 0; in_time(begin, "SFRD")) {
        cr_assert(!strncmp(r.states, "SFRD", strlen(r.states)), "%s", r.states);
        pager_idle(r.p);
        fallback_tick(r.f);
    }
    cr_assert_eq(shared.n_disturbed, 0, "%u probes", shared.n_disturbed);
    rig_close(&r);
}

static uint64_t probe_once(rig *r, double gbps)
{
    double got;
    shared.gbps = gbps;
    shared.probe_bytes = 0;
    cr_assert_eq(pager_probe_link(r->p, &got, NULL), XD_OK);
    cr_assert_float_eq(got, gbps, 1e-9);
    return shared.probe_bytes;
}

/* Requests wait for it: of a link that was seen to be slow it reads less. */
Test(fallback, a_probe_of_a_slow_link_is_short)
{
    rig r = {.shares_link = true};
    rig_open(&r, 50, 0.5);
    uint64_t whole = probe_once(&r, 50), run = model_expert_bytes(r.m);
    cr_assert_gt(whole, 3 * run, "%llu of %llu", (unsigned long long)whole, (unsigned long long)run);
    cr_assert_eq(probe_once(&r, 5), whole, "not known yet");
    cr_assert_leq(probe_once(&r, 5), 5000000 + run);
    cr_assert_geq(probe_once(&r, 1), 5000000);
    cr_assert_leq(probe_once(&r, 50), (4u << 20) + run);
    cr_assert_eq(probe_once(&r, 50), whole);
    rig_close(&r);
}

static uint32_t most_copies_together(rig *r)
{
    shared.n_batches = shared.most_together = 0;
    for (uint64_t begin = xd_now_ns(); shared.n_batches < 20; in_time(begin, "20 batches"))
        pager_idle(r->p);
    return shared.most_together;
}

static void wait_for_large_batches(rig *r)
{
    for (uint64_t begin = xd_now_ns(); shared.most_together <= 3; in_time(begin, "a batch of more than three copies"))
        pager_idle(r->p);
}

/* A probe, and with it every request, waits for the copies that are under way. */
Test(fallback, few_copies_are_under_way_over_a_slow_link)
{
    rig r = {.shares_link = true};
    rig_open(&r, 50, 2);
    cr_assert_eq(pager_set_mode(r.p, PAGER_FULL, NULL), XD_OK);
    wait_for_large_batches(&r);
    probe_once(&r, 0.001);
    cr_assert_eq(most_copies_together(&r), 1, "one page of 64 KiB");
    probe_once(&r, 0.05);
    cr_assert_leq(most_copies_together(&r), 3);
    probe_once(&r, 50);
    wait_for_large_batches(&r);
    rig_close(&r);
}

Test(fallback, what_does_not_fit_is_loaded_in_part_and_given_back)
{
    rig r = {0};
    pager_stats st;
    rig_open_spare(&r, 50, 0.25, 0.3);
    for (int round = 0; round < 2; round++) {
        r.states[0] = r.path[0] = 0;
        set_link(&r, 5);
        tick_until(&r, "SF");
        cr_assert_eq(pager_get_mode(r.p), PAGER_STAGED);
        cr_assert(strstr(r.path, "of free VRAM are taken"), "%s", r.path);
        cr_assert(strstr(r.path, "are free)"), "%s", r.path);
        pager_get_stats(r.p, &st);
        cr_assert_gt(st.slots_spare, 0);
        wait_filled(&r);
        pager_get_stats(r.p, &st);
        cr_assert(!st.filling);
        cr_assert_gt(st.slots_used, st.slots_total / 2);
        set_link(&r, 50);
        tick_until(&r, "SFRD");
        pager_get_stats(r.p, &st);
        cr_assert_eq(st.slots_spare, 0);
    }
    rig_close(&r);
}

Test(fallback, a_part_stays_when_staging_is_given_up)
{
    rig r = {0};
    pager_stats st;
    rig_open_spare(&r, 50, 0.25, 0.3);
    fall_back(&r);
    decode(&r, 8, 80); /* beside the copies: it does not count */
    cr_assert_eq(pager_get_mode(r.p), PAGER_STAGED);
    wait_filled(&r);
    decode(&r, 8, 80);
    cr_assert_eq(pager_get_mode(r.p), PAGER_DIRECT);
    pager_get_stats(r.p, &st);
    cr_assert_gt(st.slots_spare, 0);
    set_link(&r, 50);
    tick_until(&r, "SFRD");
    pager_get_stats(r.p, &st);
    cr_assert_eq(st.slots_spare, 0);
    rig_close(&r);
}

Test(fallback, without_a_cache_it_says_why_it_cannot_stage)
{
    rig r = {0};
    rig_open(&r, 50, 0);
    set_link(&r, 5);
    tick_until(&r, "SF");
    fallback_status st;
    fallback_get_status(r.f, &st);
    cr_assert(strstr(st.problem, "memory.vram_budget"), "%s", st.problem);
    cr_assert_eq(pager_get_mode(r.p), PAGER_DIRECT);
    rig_close(&r);
}

Test(fallback, without_a_link_nothing_is_watched_but_the_operator_may_force)
{
    rig r = {0};
    rig_open(&r, 0, 0.5);
    fallback_status st;
    fallback_get_status(r.f, &st);
    cr_assert(!st.watching);
    for (int i = 0; i < 10; i++)
        fallback_tick(r.f);
    cr_assert_str_eq(r.states, "");
    fallback_force(r.f, CONF_FORCE_FALLBACK);
    fallback_tick(r.f);
    cr_assert_str_eq(r.states, "F");
    cr_assert_eq(pager_get_mode(r.p), PAGER_STAGED);
    fallback_force(r.f, CONF_FORCE_DIRECT);
    fallback_tick(r.f);
    cr_assert_str_eq(r.states, "FD");
    rig_close(&r);
}

static void put(const char *dir, const char *name, const char *text)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "w");
    cr_assert(f);
    fputs(text, f);
    fclose(f);
}

Test(fallback, reads_the_link_from_sysfs_as_linux_writes_it)
{
    char root[] = "/tmp/xd-sysfs-XXXXXX", cmd[2048], port[300], dev[320];
    cr_assert(mkdtemp(root));
    snprintf(port, sizeof port, "%s/devices/0000:00:01.0", root);
    snprintf(dev, sizeof dev, "%s/0000:01:00.0", port);
    snprintf(cmd, sizeof cmd, "mkdir -p %s/bus/pci/devices %s && ln -s %s %s/bus/pci/devices/", root, dev, dev, root);
    cr_assert_eq(system(cmd), 0);
    put(port, "max_link_speed", "16.0 GT/s PCIe\n"), put(port, "max_link_width", "16\n");
    put(dev, "max_link_speed", "32.0 GT/s PCIe\n"), put(dev, "max_link_width", "16\n");
    put(dev, "current_link_speed", "2.5 GT/s PCIe\n"), put(dev, "current_link_width", "8\n");
    put(dev, "aer_dev_correctable", "RxErr 3\nBadTLP 4\nTOTAL_ERR_COR 7\n");
    put(dev, "aer_dev_nonfatal", "Undefined 0\nTOTAL_ERR_NONFATAL 2\n");
    link_info li;
    link_read(root, "0000:01:00.0", &li);
    cr_assert(li.known);
    cr_assert_float_eq(li.speed_gts, 2.5, 1e-9);
    cr_assert_float_eq(li.best_speed_gts, 16, 1e-9, "the slot's best counts, not the card's");
    cr_assert_eq(li.width, 8);
    cr_assert_eq(li.best_width, 16);
    cr_assert_eq(li.aer_correctable, 7);
    cr_assert_eq(li.aer_nonfatal, 2);
    cr_assert_eq(li.aer_fatal, 0);
    link_read(root, "", &li);
    cr_assert(!li.known);
    cr_assert_float_eq(link_wire_gbps(32, 16), 63.0, 0.1);
    cr_assert_float_eq(link_wire_gbps(2.5, 16), 4.0, 0.01);
    snprintf(cmd, sizeof cmd, "rm -r %s", root);
    cr_assert_eq(system(cmd), 0);
}

Test(fallback, a_profile_holds_each_rate_until_the_next_point)
{
    config *cfg;
    link_sim s;
    cr_assert_eq(conf_defaults(&cfg, NULL), XD_OK);
    cr_assert_eq(conf_set(cfg, "test.link_profile", "0:50,10:5,20.5:50", NULL), XD_OK);
    cr_assert_eq(link_sim_init(&s, cfg, 1000, NULL), XD_OK);
    cr_assert_eq(link_sim_gbps(&s, 1000), 0, "nothing is simulated unless it is allowed");
    cfg->test.allow = true;
    cr_assert_eq(link_sim_init(&s, cfg, 1000, NULL), XD_OK);
    cr_assert_eq(link_sim_gbps(&s, 1000), 50);
    cr_assert_eq(link_sim_gbps(&s, 9999999000), 50);
    cr_assert_eq(link_sim_gbps(&s, 10000001000), 5);
    cr_assert_eq(link_sim_ns(&s, 5000, 10000001000), 1000);
    cr_assert_eq(link_sim_gbps(&s, 20500001000), 50);
    conf_free(cfg);
}

Test(fallback, a_profile_that_makes_no_sense_is_refused)
{
    static const char *const bad[] = {"x", "1", "1:", "1:2,0:3", "1:0", "1:-2", "1:2;2:3", "1:nan"};
    config *cfg;
    cr_assert_eq(conf_defaults(&cfg, NULL), XD_OK);
    cfg->test.allow = true;
    for (size_t i = 0; i < XD_ARRAY_LEN(bad); i++) {
        free(cfg->test.link_profile);
        cfg->test.link_profile = strdup(bad[i]);
        link_sim s;
        xd_err err = {0};
        cr_assert_eq(link_sim_init(&s, cfg, 0, &err), XD_BAD_CONFIG, "%s", bad[i]);
        cr_assert_str_eq(err.param, "test.link_profile");
    }
    conf_free(cfg);
}
