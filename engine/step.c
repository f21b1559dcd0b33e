/* step.c - one turn of the engine thread: form a step, run it, turn its rows into tokens, end what has ended.
 *
 * Everything here runs on the engine thread. A step that fails ends the requests that were in it with an error; the others go on. So
 * do those in it that need none of the pages that could not be read.
 * Only a lost device ends the engine.
 *
 * The device is idle between two steps. To wake those who wait for a token takes longer than all else here: it is done while the
 * next step runs (engine_notify), and at once where none follows. */
#include <math.h>
#include <string.h>

#include "engine/engine_priv.h"

void engine_end_request(engine *e, engine_request *r, const xd_err *error)
{
    uint64_t now = xd_now_ns(), preemptions = 0;
    for (uint32_t i = 0; i < r->opt.n; i++) {
        preemptions += r->choices[i].seq.n_preempted;
        sched_remove(e->sched, &r->choices[i].seq);
    }
    pthread_mutex_lock(&r->lock);
    r->usage.total_ns = now - r->submit_ns;
    r->usage.preemptions = (uint32_t)preemptions;
    r->ended = true;
    pthread_mutex_unlock(&r->lock);
    if (error) {
        request_push_error(r, error);
        metrics_add(e->metrics,
                    error->status == XD_CANCELLED ? METRIC_REQUESTS_ABORT
                    : error->status == XD_TIMEOUT ? METRIC_REQUESTS_TIMEOUT
                                                  : METRIC_REQUESTS_ERROR,
                    1);
    } else {
        bool length = r->last_finish == ENGINE_FINISH_LENGTH;
        metrics_add(e->metrics, length ? METRIC_REQUESTS_LENGTH : METRIC_REQUESTS_STOP, 1);
    }
    metrics_observe_ns(e->metrics, METRIC_E2E, now - r->submit_ns);
    for (engine_request **p = &e->live; *p; p = &(*p)->next) {
        if (*p == r) {
            *p = r->next;
            break;
        }
    }
    pthread_mutex_lock(&e->lock);
    e->n_live--;
    if (!r->started)
        engine_uncount_queued(e, r);
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
    request_notify(r);
    request_unref(r);
}

void engine_fail_all(engine *e, const xd_err *error)
{
    while (e->live)
        engine_end_request(e, e->live, error);
}

void engine_reap(engine *e)
{
    uint64_t now = xd_now_ns();
    pthread_mutex_lock(&e->lock);
    bool all = e->cancel_all;
    pthread_mutex_unlock(&e->lock);
    for (engine_request *r = e->live, *next; r; r = next) {
        next = r->next;
        xd_err error = {0};
        if (all)
            xd_fail(&error, XD_UNAVAILABLE, 0, "the server is shutting down");
        else if (atomic_load(&r->cancelled))
            xd_fail(&error, XD_CANCELLED, 0, "the request was cancelled");
        else if (r->opt.deadline_ns && now >= r->opt.deadline_ns)
            xd_fail(&error, XD_TIMEOUT, 0, "the request did not end within its time limit");
        else
            continue;
        engine_end_request(e, r, &error);
    }
}

void engine_notify(engine *e)
{
    for (engine_request *r = e->live; r; r = r->next)
        request_notify(r);
}

static void notify_meanwhile(void *user)
{
    engine_notify(user);
}

static void note_started(engine *e, engine_request *r, const sched_seq *seq, uint64_t now)
{
    if (r->started)
        return;
    r->started = true;
    pthread_mutex_lock(&e->lock);
    engine_uncount_queued(e, r);
    pthread_mutex_unlock(&e->lock);
    pthread_mutex_lock(&r->lock);
    r->usage.queued_ns = now - r->submit_ns;
    r->usage.cached_tokens = seq->n_cached;
    pthread_mutex_unlock(&r->lock);
    metrics_observe_ns(e->metrics, METRIC_QUEUE_TIME, now - r->submit_ns);
    metrics_add(e->metrics, METRIC_PROMPT_TOKENS, r->opt.n_prompt);
    metrics_add(e->metrics, METRIC_CACHED_TOKENS, seq->n_cached);
}

static exec_want want_of(const choice *c)
{
    switch (sample_need_of(&c->params, c->r->opt.logprobs, choice_is_limited(c))) {
    case SAMPLE_NEED_ARGMAX: return EXEC_WANT_ARGMAX;
    case SAMPLE_NEED_TOP: return EXEC_WANT_TOP;
    default: return EXEC_WANT_LOGITS;
    }
}

static void push_prompt_token(choice *c, uint32_t idx, const sample_result *s)
{
    engine_event ev = {.kind = ENGINE_EV_PROMPT, .token_id = c->seq.ids[idx], .token_idx = idx, .stop_id = -1};
    ev.logprob = (engine_logprob){.id = ev.token_id, .logprob = NAN};
    if (s) {
        ev.logprob = s->chosen;
        ev.top = s->top;
        ev.n_top = s->n_top;
    }
    request_push(c->r, &ev, NULL, 0);
    c->n_prompt_sent = idx + 1;
}

/* Rows of a prompt chunk: row j scores the token after position first + j. Recomputed rows (after a preemption) say nothing new. */
static xd_status score_prompt(engine *e, choice *c, uint32_t row, uint32_t first, uint32_t n, xd_err *err)
{
    if (!c->n_prompt_sent)
        push_prompt_token(c, 0, NULL);
    for (uint32_t j = 0; j < n; j++) {
        uint32_t idx = first + j + 1, at = row + j;
        if (idx < c->n_prompt_sent || idx >= c->seq.n_prompt)
            continue;
        const float *logits;
        sample_result s;
        xd_status st;
        if ((st = exec_fetch_rows(e->c.x, &at, 1, &logits, err)) ||
            (st = sample_score(e->sampler, logits, c->seq.ids[idx], c->r->opt.prompt_logprobs, &s, err)))
            return st;
        push_prompt_token(c, idx, &s);
    }
    return XD_OK;
}

static xd_status sample_one(engine *e, choice *c, const exec_result *res, uint32_t row, sample_result *ret, xd_err *err)
{
    int32_t n_lp = c->r->opt.logprobs;
    switch (sample_need_of(&c->params, n_lp, choice_is_limited(c))) {
    case SAMPLE_NEED_ARGMAX:
        ret->id = res->argmax ? res->argmax[row] : res->top_ids[(size_t)row * KERN_TOP_LOGITS];
        ret->n_top = 0;
        if (ret->id >= res->vocab || (!res->argmax && !isfinite(res->top_logsumexp[row])))
            return xd_fail(err, XD_INTERNAL, 0,
                           "the model produced logits that are not finite numbers: damaged weights or a device fault");
        return XD_OK;
    case SAMPLE_NEED_TOP:
        return sample_top(e->sampler, &c->params, res->top_ids + (size_t)row * KERN_TOP_LOGITS,
                          res->top_values + (size_t)row * KERN_TOP_LOGITS, KERN_TOP_LOGITS, res->top_logsumexp[row],
                          c->n_out, n_lp, ret, err);
    default: break;
    }
    const float *logits;
    sample_limits limits;
    xd_status st = exec_fetch_rows(e->c.x, &row, 1, &logits, err);
    if (!st)
        st = choice_limits(c, &limits, err);
    return st ? st : sample_row(e->sampler, &c->params, c->history, logits, c->n_out, &limits, n_lp, ret, err);
}

static void note_token(engine *e, engine_request *r, uint64_t now)
{
    pthread_mutex_lock(&r->lock);
    r->usage.completion_tokens++;
    bool first = !r->usage.first_token_ns;
    if (first)
        r->usage.first_token_ns = now - r->submit_ns;
    pthread_mutex_unlock(&r->lock);
    if (first)
        metrics_observe_ns(e->metrics, METRIC_TTFT, now - r->submit_ns);
    else if (r->opt.n == 1)
        metrics_observe_ns(e->metrics, METRIC_TPOT, now - r->last_token_ns);
    r->last_token_ns = now;
    metrics_add(e->metrics, METRIC_GENERATED_TOKENS, 1);
}

static xd_status consume(engine *e, const sched_entry *en, const exec_result *res, uint32_t row, uint64_t now,
                         xd_err *err)
{
    choice *c = en->seq->owner;
    engine_request *r = c->r;
    uint32_t end = en->pos + en->n_tokens;
    xd_status st;
    if (en->seq->want_prompt_rows && en->pos < en->seq->n_prompt &&
        (st = score_prompt(e, c, row, end - en->n_rows, en->n_rows, err)))
        return st;
    if (end >= en->seq->n_prompt) {
        for (uint32_t i = 0; i < r->opt.n; i++)
            if (r->choices[i].seq.held)
                sched_fork(e->sched, en->seq, &r->choices[i].seq);
    }
    if (!en->n_rows || end != en->seq->n_ids)
        return XD_OK;
    bool ended = false;
    if (!r->opt.max_tokens) {
        choice_finish(c, ENGINE_FINISH_LENGTH);
        ended = true;
    } else {
        sample_result s = {0};
        if ((st = sample_one(e, c, res, row + en->n_rows - 1, &s, err)) || (st = choice_token(c, &s, &ended, err)))
            return st;
        note_token(e, r, now);
    }
    if (r->out_of_memory)
        return xd_fail(err, XD_NOMEM, 0, "the events of a request");
    if (ended) {
        sched_remove(e->sched, en->seq);
        r->n_open--;
    }
    return XD_OK;
}

/* Ends each request of the step once, with the error it met or because all its choices are done. */
static void end_requests(engine *e, const xd_err *step_error)
{
    for (engine_request *r = e->live, *next; r; r = next) {
        next = r->next;
        if (step_error && r->in_step)
            engine_end_request(e, r, step_error);
        else if (r->failed.status)
            engine_end_request(e, r, &r->failed);
        else if (!r->n_open)
            engine_end_request(e, r, NULL);
    }
}

/* Where a step's time went, beside what the marks say. */
typedef struct step_parts {
    uint64_t kv_ns;             /* moving KV blocks, a part of forming the step */
    uint64_t stage_ns, disk_ns; /* waiting for pages: to be staged, and from the disk */
    uint64_t require_ns;        /* both, as far as they are within the marks */
    uint64_t cpu_ns;            /* the CPU's part of the experts' time, in a shared step */
    uint64_t link_ns;           /* the device's part of it, and waiting for a simulated link */
} step_parts;

/* Pages are waited for behind the router. In a shared step that counts as the experts' time, and so do the two sides, which compute at
 * the same time: it is divided between them as they were busy. t keeps what is left of both. */
static step_parts divide_times(const engine *e, exec_times *t, const pager_stats *ps, const kv_stats *ks,
                               uint64_t schedule_ns)
{
    const pager_stats *seen = &e->seen_pager;
    step_parts p = {.kv_ns = XD_MIN(ks->swap_ns - e->seen_swap_ns, schedule_ns),
                    .stage_ns = ps->stage_ns - seen->stage_ns};
    p.disk_ns = ps->require_ns - seen->require_ns - p.stage_ns;
    uint64_t *waits = t->shared ? &t->experts_ns : &t->router_ns;
    p.require_ns = XD_MIN(p.disk_ns + p.stage_ns, *waits);
    *waits -= p.require_ns;
    if (t->shared && t->cpu_ns + t->device_ns) {
        double part = (double)t->cpu_ns / (double)(t->cpu_ns + t->device_ns);
        p.cpu_ns = (uint64_t)((double)t->experts_ns * part);
        t->experts_ns -= p.cpu_ns;
    }
    p.link_ns = t->experts_ns + ps->link_wait_ns - seen->link_wait_ns;
    return p;
}

static void count_times(engine *e, const exec_times *t, const pager_stats *ps, const step_parts *p)
{
    const uint64_t staged_ns = XD_MIN(p->stage_ns, p->require_ns);
    /* One kernel reads both tiers: its time is divided by the bytes it read from each. */
    uint64_t bytes = ps->step_bytes_host + ps->step_bytes_vram;
    uint64_t host_ns = bytes ? (uint64_t)((double)t->experts_ns * ((double)ps->step_bytes_host / (double)bytes)) : 0;
    metrics_add(e->metrics, t->recorded ? METRIC_STEPS_RECORDED : METRIC_STEPS_LAUNCHED, 1);
    metrics_add(e->metrics, METRIC_TIME_PAGER, t->pager_ns);
    metrics_add(e->metrics, METRIC_TIME_LAUNCH, t->launch_ns);
    metrics_add(e->metrics, METRIC_TIME_KV, p->kv_ns);
    metrics_add(e->metrics, METRIC_TIME_ATTENTION, t->attention_ns);
    metrics_add(e->metrics, METRIC_TIME_ROUTER, t->router_ns);
    metrics_add(e->metrics, METRIC_TIME_EXPERTS_STAGED, staged_ns);
    metrics_add(e->metrics, METRIC_TIME_EXPERTS_DISK, p->require_ns - staged_ns);
    metrics_add(e->metrics, METRIC_TIME_EXPERTS_CPU, p->cpu_ns);
    metrics_add(e->metrics, METRIC_TIME_EXPERTS_HOST, host_ns + p->link_ns - t->experts_ns);
    metrics_add(e->metrics, METRIC_TIME_EXPERTS_VRAM, t->experts_ns - host_ns);
    metrics_add(e->metrics, METRIC_TIME_HEAD, t->head_ns);
    metrics_add(e->metrics, METRIC_KV_HOST_BYTES, t->kv_host_bytes);
    metrics_add(e->metrics, METRIC_AHEAD_USEFUL, t->ahead.useful_bytes);
    metrics_add(e->metrics, METRIC_AHEAD_WASTED, t->ahead.wasted_bytes);
    metrics_add(e->metrics, METRIC_AHEAD_PREDICTIONS, t->ahead.predictions);
    metrics_add(e->metrics, METRIC_AHEAD_RIGHT, t->ahead.right);
    metrics_add(e->metrics, METRIC_AHEAD_GIVEN_UP, t->ahead.given_up);
}

/* Waiting for the disk is no fault of the link. Neither is what the host needs to launch a step that is not replayed: the disk tier asks
 * for pages between a router and its experts, and experts may well have ended before the next kernel comes. */
static void tell_fallback(engine *e, const engine_step_facts *step, const exec_times *t, const step_parts *p)
{
    fallback_step_info fi = {.step_ns = t->total_ns - XD_MIN(p->disk_ns, t->total_ns),
                             .link_ns = t->shared ? p->link_ns - t->experts_ns + t->device_ns : p->link_ns,
                             .early_bytes = t->ahead.useful_bytes,
                             .n_decode = step->prefill ? 0 : step->n_tokens,
                             .decode_only = !step->prefill,
                             .link_mixed = t->kv_host_bytes > 0 || !t->recorded,
                             .odd = t->recording,
                             .shared = t->shared};
    if (e->fallback)
        fallback_step(e->fallback, &fi);
}

static void fill_facts(engine_step_facts *step, const exec_times *t, const pager_stats *ps, const pager_stats *seen,
                       const step_parts *p)
{
    step->experts_ns = p->link_ns + p->require_ns + p->cpu_ns;
    step->vram_bytes = ps->bytes_vram - seen->bytes_vram;
    step->cpu_ns = t->cpu_ns;
    step->device_ns = t->device_ns;
    step->cpu_bytes = ps->bytes_cpu - seen->bytes_cpu;
    step->host_bytes = ps->bytes_host + ps->bytes_disk - seen->bytes_host - seen->bytes_disk;
    step->vram_pages = ps->hits_vram - seen->hits_vram;
    step->host_pages = ps->hits_host + ps->hits_disk - seen->hits_host - seen->hits_disk;
    step->kv_host_bytes = t->kv_host_bytes;
    step->early_bytes = t->ahead.useful_bytes;
    step->wasted_bytes = t->ahead.wasted_bytes;
    step->predictions = t->ahead.predictions;
    step->predictions_right = t->ahead.right;
    step->border_ns = t->border.ns;
    step->border_results_ns = t->border.results_ns;
    step->border_pager_ns = t->border.pager_ns;
    step->border_form_ns = t->border.form_ns;
    step->border_launch_ns = t->border.launch_ns;
}

/* `step` says who was in it and when it ended; the rest is filled in here. */
static void note_step(engine *e, engine_step_facts *step, uint64_t schedule_ns, uint64_t sample_ns, uint64_t step_ns)
{
    exec_times t;
    pager_stats ps;
    sched_stats ss;
    kv_stats ks;
    sched_get_stats(e->sched, &ss);
    atomic_store(&e->preemptions, ss.preempted_swap + ss.preempted_recompute);
    exec_get_times(e->c.x, &t);
    pager_get_stats(e->c.pg, &ps);
    kv_get_stats(e->c.kv, &ks);
    const step_parts p = divide_times(e, &t, &ps, &ks, schedule_ns);
    count_times(e, &t, &ps, &p);
    metrics_add(e->metrics, METRIC_COMPUTED_TOKENS, step->n_tokens);
    metrics_add(e->metrics, METRIC_TIME_SCHEDULE, schedule_ns - p.kv_ns);
    metrics_add(e->metrics, METRIC_TIME_SAMPLE, sample_ns);
    metrics_add(e->metrics, METRIC_TIME_STEP, step_ns);
    metrics_observe_ns(e->metrics, METRIC_STEP_SECONDS, step_ns);
    tell_fallback(e, step, &t, &p);
    if (step->prefill)
        pace_note(&e->pace, step->n_tokens, t.total_ns);
    fill_facts(step, &t, &ps, &e->seen_pager, &p);
    e->seen_swap_ns = ks.swap_ns;
    e->seen_pager = ps;
    if (e->observe)
        e->observe(e->observe_user, step);
}

static void nothing_fits(engine *e)
{
    xd_err error = {0};
    sched_seq *q = sched_first_waiting(e->sched);
    xd_fail(&error, XD_NOMEM, 0, "the KV cache has no room for this request");
    if (q)
        engine_end_request(e, ((choice *)q->owner)->r, &error);
    else
        engine_fail_all(e, &error);
}

/* A page that cannot be read ends the requests whose tokens need it. Of the others nothing was committed: they run again in the
 * next step, and come to the same tokens. */
static bool fail_those_hurt(engine *e, const sched_entry *entries, uint32_t n, const xd_err *error)
{
    bool any = false;
    for (uint32_t i = 0; i < n; i++)
        if (exec_needs_lost_page(e->c.x, i)) {
            ((choice *)entries[i].seq->owner)->r->failed = *error;
            any = true;
        }
    return any;
}

/* The scheduler's choice as a batch: who is in it is noted in `step`. */
static exec_batch form_batch(engine *e, const sched_entry *entries, uint32_t n, engine_step_facts *step)
{
    exec_batch b = {.seqs = e->run,
                    .n_seqs = n,
                    .follows_ns = e->paused ? 0 : step->begin_ns,
                    .meanwhile = notify_meanwhile,
                    .meanwhile_user = e};
    for (engine_request *r = e->live; r; r = r->next)
        r->in_step = false;
    for (uint32_t i = 0; i < n; i++) {
        const sched_entry *en = &entries[i];
        choice *c = en->seq->owner;
        exec_run_seq *q = &e->run[i];
        *q = (exec_run_seq){.ids = en->seq->ids + en->pos,
                            .pos = en->pos,
                            .n_tokens = en->n_tokens,
                            .n_rows = en->n_rows,
                            .want = want_of(c),
                            .salt = c->salt};
        q->blocks = kv_seq_blocks(en->seq->kv, &q->n_blocks);
        q->stride = kv_seq_stride(en->seq->kv);
        q->state = kv_seq_state(en->seq->kv);
        for (uint32_t k = 0; k < en->n_keep; k++) {
            void *to = kv_seq_keep(e->c.kv, en->seq->kv, en->keep[k]);
            if (to)
                q->keep[q->n_keep++] = (exec_keep){.after = en->keep[k] - en->pos, .to = to};
        }
        b.prefill = b.prefill || en->pos < en->seq->n_prompt;
        step->n_tokens += en->n_tokens;
        step->kv_bytes += kv_seen_bytes(&e->c.kv_opt, en->pos, en->n_tokens);
        c->r->in_step = true;
        note_started(e, c->r, en->seq, step->begin_ns);
    }
    step->prefill = b.prefill;
    e->paused = false;
    return b;
}

static void step_failed(engine *e, const sched_entry *entries, uint32_t n, const xd_err *error)
{
    metrics_add(e->metrics, METRIC_STEPS_FAILED, 1);
    e->step_failed = true;
    sched_fail(e->sched);
    bool some = error->status == XD_UNAVAILABLE && fail_those_hurt(e, entries, n, error);
    end_requests(e, some ? NULL : error);
    engine_notify(e);
    if (exec_device_lost(e->c.x))
        engine_set_failed(e, error);
}

void engine_step(engine *e)
{
    uint64_t t0 = xd_now_ns();
    uint32_t n = 0, row = 0;
    const sched_entry *entries =
        sched_form(e->sched, pace_limit(&e->pace, atomic_load(&e->max_decode_stall_ms)), !e->step_failed, &n);
    if (!n) {
        engine_notify(e);
        nothing_fits(e);
        return;
    }
    engine_step_facts step = {.n_seqs = n, .begin_ns = t0};
    exec_batch b = form_batch(e, entries, n, &step);
    uint64_t t1 = xd_now_ns();
    exec_result res;
    xd_err error = {0};
    if (exec_run(e->c.x, &b, &res, &error)) {
        step_failed(e, entries, n, &error);
        return;
    }
    uint64_t t2 = xd_now_ns();
    e->step_failed = false;
    sched_commit(e->sched);
    for (uint32_t i = 0; i < n; i++) {
        sched_entry en = entries[i]; /* ending a choice takes it out of the scheduler's list */
        engine_request *r = ((choice *)en.seq->owner)->r;
        xd_err failed = {0};
        if (!r->failed.status && consume(e, &en, &res, row, t2, &failed))
            r->failed = failed;
        row += en.n_rows;
    }
    uint64_t t3 = xd_now_ns();
    step.end_ns = t3;
    note_step(e, &step, t1 - t0, t3 - t2, t3 - t0);
    end_requests(e, NULL);
}
