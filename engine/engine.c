/* engine.c - the engine thread: loads (load.c), serves, drains, ends.
 *
 * DESIGN. All state of scheduler, KV cache, pager and device belongs to the engine thread. Others talk to it by the inbox (a list
 * under `lock`, bounded by max_queue calls), by atomic flags in requests (cancelled) and by one job at a time (engine_call). It answers by
 * events in the requests' own queues. It sleeps on `wake` while nothing is to be done, turning once a second so that a watchdog
 * sees it alive and the link monitor gets its tick.
 *
 * States: LOADING -> READY -> DRAINING, and FAILED from any of them (load error, lost device). */
#include "engine/engine_priv.h"

#include <string.h>

#include "config/log.h"

void engine_set_progress(void *user, double fraction, const char *what)
{
    engine *e = user;
    pthread_mutex_lock(&e->lock);
    e->fraction = fraction;
    snprintf(e->what, sizeof e->what, "%s", what);
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
    atomic_fetch_add(&e->heartbeat, 1); /* loading counts as being alive */
}

void engine_set_failed(engine *e, const xd_err *error)
{
    pthread_mutex_lock(&e->lock);
    e->phase = ENGINE_FAILED;
    e->failure = *error;
    e->failed = true;
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
}

static void take_limits(engine *e, const config *cfg)
{
    e->max_queue = cfg->server.max_queue;
    e->max_decode_stall_ms = cfg->engine.max_decode_stall_ms;
    e->max_n = cfg->server.max_n;
    e->max_logprobs = cfg->server.max_logprobs;
    e->max_stop = cfg->server.max_stop;
}

/* An idle engine turns once a second: for the watchdog, and so that the link is looked at. In doubt, and while pages are brought into
 * VRAM, it looks more often. */
static uint64_t idle_ns(const engine *e)
{
    fallback_status s = {0};
    if (e->fallback)
        fallback_get_status(e->fallback, &s);
    return s.state != FALLBACK_DIRECT ? 100000000u : 1000000000u;
}

static struct timespec in_ns(uint64_t ns)
{
    uint64_t t = xd_now_ns() + ns;
    return (struct timespec){.tv_sec = (time_t)(t / 1000000000u), .tv_nsec = (long)(t % 1000000000u)};
}

/* Requests that come together should run together: where a prompt's step reads experts for a long time however short it is, a step that
 * would begin with nothing else running waits a hundredth of that time, counted from the arrival of the first, for those that come
 * behind it. 0: no waiting. */
static uint64_t gather_until(const engine *e)
{
    enum { MOST_NS = 5000000, LEAST_NS = 500000 };
    double ns = pace_fixed_ns(&e->pace) / 100;
    sched_stats ss;
    sched_get_stats(e->sched, &ss);
    if (!e->live || e->failed || ss.n_running || ns < LEAST_NS)
        return 0;
    uint64_t first = UINT64_MAX;
    for (const engine_request *r = e->live; r; r = r->next)
        first = XD_MIN(first, r->started ? 0 : r->submit_ns);
    return first + (uint64_t)XD_MIN(ns, (double)MOST_NS);
}

/* Takes what others left; sleeps while there is nothing, or until `until_ns` if only more requests could change anything. False: the
 * engine ends. */
static bool take_inbox(engine *e, uint64_t until_ns)
{
    uint64_t now = xd_now_ns(), idle = idle_ns(e);
    pthread_mutex_lock(&e->lock);
    if ((!e->live || until_ns > now) && (!e->inbox || e->held) && !e->stop && !e->job) {
        struct timespec until = in_ns(e->live ? until_ns - now : idle);
        pthread_cond_timedwait(&e->wake, &e->lock, &until);
        e->paused = true;
    }
    engine_job *job = e->job;
    bool go_on = !e->stop;
    if (!e->held || e->cancel_all || e->stop) {
        engine_request **end = &e->live;
        while (*end)
            end = &(*end)->next;
        *end = e->inbox;
        e->inbox = NULL;
        e->inbox_tail = &e->inbox;
    }
    pthread_mutex_unlock(&e->lock);
    if (job) {
        engine_notify(e); /* it may take its time */
        job->run(e, job->user);
        e->paused = true;
        pthread_mutex_lock(&e->lock);
        job->done = true;
        e->job = NULL;
        pthread_cond_broadcast(&e->changed);
        pthread_mutex_unlock(&e->lock);
    }
    return go_on;
}

/* New requests enter the scheduler here, on its own thread. */
static void admit_new(engine *e)
{
    for (engine_request *r = e->live, *next; r; r = next) {
        next = r->next;
        xd_err error = {0};
        for (uint32_t i = 0; !r->admitted && i < r->opt.n && !error.status; i++) {
            r->choices[i].seq.order = r->order + i;
            r->choices[i].seq.group = r->first->order + 1;
            if (sched_add(e->sched, &r->choices[i].seq, &error))
                break;
        }
        r->admitted = true;
        if (error.status)
            engine_end_request(e, r, &error);
    }
}

static void *engine_main(void *arg)
{
    engine *e = arg;
    xd_err error = {0};
    if (engine_load(e, &error)) {
        engine_set_failed(e, &error);
    } else {
        pthread_mutex_lock(&e->lock);
        e->phase = e->phase == ENGINE_LOADING ? ENGINE_READY : e->phase;
        e->fraction = 1;
        snprintf(e->what, sizeof e->what, "ready");
        pthread_cond_broadcast(&e->changed);
        pthread_mutex_unlock(&e->lock);
    }
    uint64_t until = 0;
    while (take_inbox(e, until)) {
        atomic_fetch_add(&e->heartbeat, 1);
        if (e->failed) {
            engine_fail_all(e, &e->failure);
            continue;
        }
        admit_new(e);
        engine_reap(e);
        until = gather_until(e);
        if (until > xd_now_ns()) {
            engine_notify(e);
            continue;
        }
        if (e->live)
            engine_step(e);
        else
            pager_idle(e->c.pg);
        if (e->fallback)
            fallback_tick(e->fallback);
    }
    xd_err ending = {0};
    xd_fail(&ending, XD_UNAVAILABLE, 0, "the server is shutting down");
    engine_fail_all(e, &ending);
    return NULL;
}

xd_status engine_start(const config *cfg, engine **ret, xd_err *err)
{
    engine *e = calloc(1, sizeof *e);
    if (!e)
        return xd_fail(err, XD_NOMEM, 0, "the engine");
    e->cfg = cfg;
    e->inbox_tail = &e->inbox;
    take_limits(e, cfg);
    snprintf(e->what, sizeof e->what, "starting");
    pthread_mutex_init(&e->lock, NULL);
    xd_cond_init(&e->wake);
    xd_cond_init(&e->changed);
    e->metrics = metrics_new();
    int rc = e->metrics ? pthread_create(&e->thread, NULL, engine_main, e) : 0;
    if (!e->metrics || rc) {
        engine_free(e);
        return xd_fail(err, XD_NOMEM, rc, "starting the engine thread");
    }
    e->thread_started = true;
    *ret = e;
    return XD_OK;
}

xd_status engine_wait_ready(engine *e, void (*progress)(void *user, double fraction, const char *what), void *user,
                            xd_err *err)
{
    pthread_mutex_lock(&e->lock);
    while (e->phase == ENGINE_LOADING) {
        struct timespec until = in_ns(500000000);
        while (e->phase == ENGINE_LOADING && pthread_cond_timedwait(&e->changed, &e->lock, &until) == 0)
            ;
        double fraction = e->fraction;
        char what[sizeof e->what];
        memcpy(what, e->what, sizeof what);
        pthread_mutex_unlock(&e->lock);
        if (progress)
            progress(user, fraction, what);
        pthread_mutex_lock(&e->lock);
    }
    xd_status st = e->phase == ENGINE_FAILED ? e->failure.status : XD_OK;
    if (st && err)
        *err = e->failure;
    pthread_mutex_unlock(&e->lock);
    return st;
}

void engine_drain(engine *e, uint64_t deadline_ns)
{
    pthread_mutex_lock(&e->lock);
    if (e->phase == ENGINE_READY)
        e->phase = ENGINE_DRAINING;
    while (e->n_live && xd_now_ns() < deadline_ns) {
        struct timespec until = {.tv_sec = (time_t)(deadline_ns / 1000000000u),
                                 .tv_nsec = (long)(deadline_ns % 1000000000u)};
        pthread_cond_timedwait(&e->changed, &e->lock, &until);
    }
    e->cancel_all = true;
    while (e->n_live)
        pthread_cond_wait(&e->changed, &e->lock);
    pthread_mutex_unlock(&e->lock);
}

void engine_free(engine *e)
{
    if (!e)
        return;
    pthread_mutex_lock(&e->lock);
    e->stop = true;
    pthread_cond_broadcast(&e->wake);
    pthread_mutex_unlock(&e->lock);
    if (e->thread_started)
        pthread_join(e->thread, NULL);
    files_watch_free(e->files);
    fallback_free(e->fallback);
    sched_free(e->sched);
    sampler_free(e->sampler);
    free(e->run);
    grammar_vocab_free(e->words);
    tok_free(e->tok);
    core_close(&e->c);
    for (uint32_t i = 0; i < e->info.n_aliases; i++)
        free(e->aliases[i]);
    free(e->aliases);
    metrics_free(e->metrics);
    pthread_cond_destroy(&e->wake);
    pthread_cond_destroy(&e->changed);
    pthread_mutex_destroy(&e->lock);
    free(e);
}

engine_phase engine_get_phase(const engine *ce, double *ret_fraction, char *ret_what, size_t what_cap)
{
    engine *e = (engine *)ce; /* for its lock */
    pthread_mutex_lock(&e->lock);
    engine_phase p = e->phase;
    if (ret_fraction)
        *ret_fraction = e->fraction;
    if (ret_what && what_cap)
        snprintf(ret_what, what_cap, "%s", p == ENGINE_FAILED ? e->failure.msg : e->what);
    pthread_mutex_unlock(&e->lock);
    return p;
}

uint64_t engine_heartbeat(const engine *e)
{
    return atomic_load(&e->heartbeat);
}

const engine_info *engine_get_info(const engine *e)
{
    return &e->info;
}

const struct tokenizer *engine_get_tokenizer(const engine *e, const char **why)
{
    if (!e->tok && why)
        *why = e->no_tok_why;
    return e->tok;
}

void engine_count_queued(engine *e, engine_request *r)
{
    e->n_queued++;
    e->n_calls_queued += !r->first->n_call_queued++;
}

void engine_uncount_queued(engine *e, engine_request *r)
{
    e->n_queued--;
    e->n_calls_queued -= !--r->first->n_call_queued;
}

xd_status engine_submit(engine *e, const engine_request_options *opt, engine_request **ret, xd_err *err)
{
    static const char *const why_not[] = {
        [ENGINE_LOADING] = "the model is still loading", [ENGINE_DRAINING] = "the server is shutting down"};
    pthread_mutex_lock(&e->lock);
    engine_phase phase = e->phase;
    xd_err failure = e->failure;
    pthread_mutex_unlock(&e->lock);
    if (phase != ENGINE_READY) {
        metrics_add(e->metrics, METRIC_REJECTED_UNAVAILABLE, 1);
        return xd_fail(err, XD_UNAVAILABLE, 0, "%s", phase == ENGINE_FAILED ? failure.msg : why_not[phase]);
    }
    engine_request *r;
    xd_status st = request_new(e, opt, &r, err);
    if (st) {
        metrics_add(e->metrics, st == XD_NOMEM ? METRIC_REJECTED_NOMEM : METRIC_REJECTED_INVALID, 1);
        return st;
    }
    pthread_mutex_lock(&e->lock);
    if (e->phase != ENGINE_READY)
        st = xd_fail(err, XD_UNAVAILABLE, 0, "the server is shutting down");
    else if (!opt->with && e->n_calls_queued >= e->max_queue)
        st = xd_fail_field(
            err, XD_BUSY, NULL, "queue_full",
            "%u requests (of %u prompts) are waiting, as many as server.max_queue allows: try again later",
            e->n_calls_queued, e->n_queued);
    if (!st) {
        r->refs = 2;
        r->order = e->next_order;
        e->next_order += r->opt.n;
        *e->inbox_tail = r;
        e->inbox_tail = &r->next;
        e->n_live++;
        engine_count_queued(e, r);
        pthread_cond_signal(&e->wake);
    }
    pthread_mutex_unlock(&e->lock);
    if (st) {
        metrics_add(e->metrics, st == XD_BUSY ? METRIC_REJECTED_BUSY : METRIC_REJECTED_UNAVAILABLE, 1);
        request_unref(r);
        return st;
    }
    *ret = r;
    return XD_OK;
}

void engine_call(engine *e, void (*f)(engine *e, void *user), void *user)
{
    engine_job job = {.run = f, .user = user};
    pthread_mutex_lock(&e->lock);
    while (e->job)
        pthread_cond_wait(&e->changed, &e->lock);
    e->job = &job;
    pthread_cond_signal(&e->wake);
    while (!job.done)
        pthread_cond_wait(&e->changed, &e->lock);
    pthread_mutex_unlock(&e->lock);
}

typedef struct observer {
    void (*note)(void *user, const engine_step_facts *facts);
    void *user;
} observer;

static void set_observer(engine *e, void *user)
{
    const observer *o = user;
    e->observe = o->note;
    e->observe_user = o->user;
}

void engine_observe(engine *e, void (*note)(void *user, const engine_step_facts *facts), void *user)
{
    engine_call(e, set_observer, &(observer){note, user});
}

void engine_hold(engine *e, bool hold)
{
    pthread_mutex_lock(&e->lock);
    e->held = hold;
    pthread_cond_signal(&e->wake);
    pthread_mutex_unlock(&e->lock);
}

static void reload_fallback(engine *e, void *user)
{
    const config *cfg = user;
    fallback_status s;
    fallback_get_status(e->fallback, &s);
    if (s.force != cfg->fallback.force) /* by a signal, say: the file's word is the last one */
        xd_log_warn("reload: fallback.force = %s takes the place of '%s', which was forced",
                    conf_force_names[cfg->fallback.force], conf_force_names[s.force]);
    fallback_reload(e->fallback, cfg);
}

void engine_reload(engine *e, const config *cfg)
{
    pthread_mutex_lock(&e->lock);
    take_limits(e, cfg);
    bool ready = e->phase == ENGINE_READY || e->phase == ENGINE_DRAINING;
    pthread_mutex_unlock(&e->lock);
    if (ready && e->fallback)
        engine_call(e, reload_fallback, (void *)cfg);
}

xd_status engine_force_fallback(engine *e, int force, xd_err *err)
{
    if (engine_get_phase(e, NULL, NULL, 0) != ENGINE_READY || !e->fallback)
        return xd_fail(err, XD_UNAVAILABLE, 0, "the engine is not ready");
    if (force == CONF_FORCE_FALLBACK && !pager_has_link(e->c.pg))
        return xd_fail(err, XD_UNSUPPORTED, 0,
                       "there is no link that could be avoided: the CPU reads the experts itself");
    fallback_force(e->fallback, force);
    return XD_OK;
}
