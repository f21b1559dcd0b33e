/* bench_run.c - one measurement: requests that start together, timed through the engine's public interface, and the least time that the
 * machine would have needed for the same bytes and products.
 *
 * What is measured is what a client gets, less HTTP. Prompts are pseudo-random token ids (prefix caching finds nothing in common),
 * answers are greedy and never stop early. A first short request keeps the engine busy while the others queue up, so that these start in
 * one step and no kernel is met for the first time. Decoding is judged from the moment when every request has two tokens (the first
 * step of a batch size is recorded, later ones replayed) until the first one ends.
 *
 * The bound takes the bytes as they were read, by tier, from the engine's counters: it says how well the machine was used for them, not
 * whether other bytes would have been better. The link, the device's memory and its arithmetic work at the same time, so the longest of
 * the three is the bound. Attention's arithmetic is left out (few percent), its bytes are counted. */
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "config/util.h"
#include "daemon/bench.h"

enum { GATE_TOKENS = 64 };

/* --- DRAM --------------------------------------------------------------------------------------------------------------- */

typedef struct reader {
    pthread_t thread;
    const uint64_t *data;
    size_t words;
    uint64_t sum;
} reader;

static void *read_main(void *arg)
{
    reader *r = arg;
    uint64_t s[8] = {0};
    for (size_t i = 0; i + 8 <= r->words; i += 8)
        for (int k = 0; k < 8; k++)
            s[k] += r->data[i + k];
    for (int k = 0; k < 8; k++)
        r->sum += s[k];
    return NULL;
}

double bench_dram_rate(void)
{
    enum { MAX_THREADS = 256 };
    size_t bytes = (size_t)1 << 30;
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    size_t n = (size_t)XD_MIN(XD_MAX(cpus, 1), MAX_THREADS);
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return 0;
    madvise(p, bytes, MADV_HUGEPAGE);
    memset(p, 1, bytes);
    double best = 0;
    reader r[MAX_THREADS];
    for (int pass = 0; pass < 3; pass++) {
        uint64_t start = xd_now_ns();
        size_t started = 0;
        for (; started < n; started++) {
            r[started] = (reader){.data = (uint64_t *)p + started * (bytes / 8 / n), .words = bytes / 8 / n};
            if (pthread_create(&r[started].thread, NULL, read_main, &r[started]))
                break;
        }
        for (size_t i = 0; i < started; i++)
            pthread_join(r[i].thread, NULL);
        if (started == n)
            best = fmax(best, (double)bytes / ((double)(xd_now_ns() - start) / 1e9));
    }
    munmap(p, bytes);
    return best;
}

/* --- the engine's counters ---------------------------------------------------------------------------------------------- */

/* The sum of all samples in Prometheus text whose line begins with `name`: a whole metric ("x_total"), or those of its samples that
 * a label selects ("x_total{phase=\"a"). 0 when there is none. */
static double metric_sum(const char *text, const char *name)
{
    double sum = 0;
    size_t n = strlen(name);
    for (const char *l = text; l && *l; l = strchr(l, '\n') ? strchr(l, '\n') + 1 : NULL) {
        if (strncmp(l, name, n) || (!strchr(name, '{') && l[n] != '{' && l[n] != ' '))
            continue;
        const char *space = l[n] == ' ' ? l + n : strchr(l, '}');
        if (space)
            sum += strtod(space + (*space == '}'), NULL);
    }
    return sum;
}

typedef struct moment {
    uint64_t ns, tokens;
    double host, vram, kv_host, experts_s, steps;
} moment;

static moment look(engine *e, uint64_t tokens)
{
    XD_CLEANUP(xd_buf_free) xd_buf text = {0};
    moment m = {.ns = xd_now_ns(), .tokens = tokens};
    engine_metrics(e, &text);
    const char *t = text.data ? text.data : "";
    m.vram = metric_sum(t, "expertd_expert_read_bytes_total{tier=\"vram");
    m.host = metric_sum(t, "expertd_expert_read_bytes_total") - m.vram;
    m.kv_host = metric_sum(t, "expertd_kv_host_read_bytes_total");
    m.experts_s = metric_sum(t, "expertd_step_seconds_total{phase=\"experts");
    m.steps = metric_sum(t, "expertd_steps_total");
    return m;
}

bench_limits bench_get_limits(engine *e, double dram)
{
    XD_CLEANUP(xd_buf_free) xd_buf text = {0};
    engine_metrics(e, &text);
    const engine_info *i = engine_get_info(e);
    bool cpu = !i->pci_bus_id[0];
    return (bench_limits){.link = metric_sum(text.data ? text.data : "", "expertd_link_healthy_bytes_per_second"),
                          .memory = cpu ? dram : i->memory_gbps * 1e9,
                          .flops = i->matrix_tflops * 1e12};
}

/* --- the bound ---------------------------------------------------------------------------------------------------------- */

static void consider(bench_bound *b, double work, double rate, const char *by)
{
    double s = rate > 0 ? work / rate : NAN;
    if (s > 0 && !(b->seconds >= s))
        *b = (bench_bound){s, by};
}

/* Least time for `steps` steps: expert bytes by tier, trunk once a step, `kv` bytes of cache, of which `kv_host` come over the link
 * first, `weights` products. */
static bench_bound bound_of(const engine_info *i, const bench_limits *lim, double host, double vram, double steps,
                            double kv, double kv_host, double weights)
{
    bench_bound b = {NAN, ""};
    /* Without a link, what lies "on the host" is read from the same memory. */
    double local = lim->link > 0 ? vram : vram + host;
    consider(&b, local + steps * (double)i->trunk_step_bytes + kv, lim->memory, "memory");
    consider(&b, host + kv_host, lim->link, "link");
    consider(&b, 2 * weights, lim->flops, "compute");
    return b;
}

static void judge(engine *e, const bench_limits *lim, bench_point *pt, const moment *start, const moment *begun,
                  const moment *begin, const moment *end)
{
    const engine_info *i = engine_get_info(e);
    double seqs = pt->seqs, prompts = seqs * pt->prompt;
    pt->prefill_tps = prompts / ((double)(begun->ns - start->ns) / 1e9);
    pt->prefill_bound =
        bound_of(i, lim, begun->host - start->host, begun->vram - start->vram, begun->steps - start->steps, 0,
                 begun->kv_host - start->kv_host, prompts * (double)i->token_weights + seqs * (double)i->head_weights);
    double steps = end->steps - begin->steps, s = (double)(end->ns - begin->ns) / 1e9;
    pt->decode_tps = pt->step_ms = pt->experts_ms = pt->host_bytes = pt->vram_bytes = pt->kv_host_bytes = NAN;
    pt->step_bound = (bench_bound){NAN, ""};
    if (!begin->ns || steps < 1 || end->tokens <= begin->tokens)
        return;
    pt->decode_tps = (double)(end->tokens - begin->tokens) / s;
    pt->step_ms = s * 1e3 / steps;
    pt->experts_ms = (end->experts_s - begin->experts_s) * 1e3 / steps;
    pt->host_bytes = (end->host - begin->host) / steps;
    pt->vram_bytes = (end->vram - begin->vram) / steps;
    pt->kv_host_bytes = (end->kv_host - begin->kv_host) / steps;
    double context = pt->prompt + (double)(begin->tokens + end->tokens) / 2 / seqs;
    pt->step_bound = bound_of(i, lim, pt->host_bytes, pt->vram_bytes, 1, seqs * context * (double)i->kv_token_bytes,
                              pt->kv_host_bytes, seqs * (double)(i->token_weights + i->head_weights));
}

/* --- requests ----------------------------------------------------------------------------------------------------------- */

typedef struct waiter {
    pthread_mutex_t lock;
    pthread_cond_t cond;
    uint64_t signals, last_ns;
} waiter;

static void wake(void *user)
{
    waiter *w = user;
    pthread_mutex_lock(&w->lock);
    w->signals++;
    w->last_ns = xd_now_ns();
    pthread_cond_signal(&w->cond);
    pthread_mutex_unlock(&w->lock);
}

static void sleep_on(waiter *w)
{
    pthread_mutex_lock(&w->lock);
    while (!w->signals)
        pthread_cond_wait(&w->cond, &w->lock);
    w->signals = 0;
    pthread_mutex_unlock(&w->lock);
}

static uint64_t next_random(uint64_t *state)
{
    return xd_mix64(*state += XD_MIX64_STEP);
}

typedef struct job {
    engine_request *r;
    uint64_t first_ns, hash; /* of all tokens */
    uint32_t tokens;
} job;

static xd_status submit(engine *e, const uint32_t *ids, uint32_t n, uint32_t tokens, waiter *w, job *j, xd_err *err)
{
    const engine_request_options opt = {
        .prompt_ids = ids,
        .n_prompt = n,
        .n = 1,
        .max_tokens = tokens,
        .sampling = {.temperature = 0, .top_p = NAN, .min_p = NAN, .top_k = -1, .repetition_penalty = NAN},
        .ignore_eos = true,
        .logprobs = -1,
        .prompt_logprobs = -1,
        .notify = wake,
        .user = w};
    return engine_submit(e, &opt, &j->r, err);
}

static xd_status take_events(job *j, xd_err *err)
{
    engine_event ev;
    while (engine_request_next(j->r, &ev)) {
        if (ev.kind == ENGINE_EV_ERROR) {
            *err = *ev.error;
            return err->status;
        }
        if (ev.kind != ENGINE_EV_TOKEN)
            continue;
        j->hash += ev.token_id;
        j->hash = next_random(&j->hash);
        if (!j->tokens++)
            j->first_ns = xd_now_ns();
    }
    return XD_OK;
}

/* Until the engine has begun the step that all who are submitted from now on will have missed. */
static void wait_started(engine *e)
{
    for (double waiting = 1; waiting > 0; sched_yield()) {
        XD_CLEANUP(xd_buf_free) xd_buf text = {0};
        engine_metrics(e, &text);
        waiting = metric_sum(text.data ? text.data : "", "expertd_requests_waiting");
    }
}

static xd_status finish_gate(job *gate, waiter *w, xd_err *err)
{
    for (;;) {
        xd_status st = take_events(gate, err);
        if (st || engine_request_finished(gate->r))
            return st;
        sleep_on(w);
    }
}

typedef struct run {
    job jobs[BENCH_MAX_SEQS], gate;
    waiter w, gate_w;
} run;

/* Takes what comes until all are done, noting the moments between which all decode. */
static xd_status watch(engine *e, run *u, bench_point *pt, const moment *start, const bench_limits *lim, xd_err *err)
{
    moment begun = {0}, begin = {0}, end = {0};
    uint32_t warm = pt->tokens > 8 ? 2 : 1;
    for (bool open = true; open;) {
        sleep_on(&u->w);
        uint64_t total = 0;
        uint32_t least = UINT32_MAX;
        bool one_ended = false;
        open = false;
        for (uint32_t i = 0; i < pt->seqs; i++) {
            xd_status st = take_events(&u->jobs[i], err);
            if (st)
                return st;
            total += u->jobs[i].tokens;
            least = XD_MIN(least, u->jobs[i].tokens);
            one_ended = one_ended || u->jobs[i].tokens == pt->tokens;
            open = open || !engine_request_finished(u->jobs[i].r);
        }
        if (least && !begun.ns)
            begun = look(e, total);
        if (least >= warm && !begin.ns && !one_ended)
            begin = look(e, total);
        else if (one_ended && !end.ns)
            end = look(e, total);
    }
    pt->total_s = (double)(xd_now_ns() - start->ns) / 1e9;
    pt->ttft_ms = 0;
    pt->answers = 0;
    for (uint32_t i = 0; i < pt->seqs; i++) {
        pt->ttft_ms += (double)(u->jobs[i].first_ns - start->ns) / 1e6 / pt->seqs;
        pt->answers = (pt->answers ^ u->jobs[i].hash) * XD_MIX64_STEP;
    }
    judge(e, lim, pt, start, &begun, &begin, &end);
    return XD_OK;
}

xd_status bench_measure(engine *e, const bench_limits *lim, bench_point *pt, uint64_t *seed, xd_err *err)
{
    uint32_t vocab = engine_get_info(e)->vocab, n_gate = XD_MIN((uint32_t)GATE_TOKENS, pt->prompt);
    XD_CLEANUP(xd_freep) uint32_t *ids = malloc(((uint64_t)pt->prompt * pt->seqs + n_gate) * sizeof *ids);
    XD_CLEANUP(xd_freep) run *u = calloc(1, sizeof *u);
    if (!ids || !u)
        return xd_fail(err, XD_NOMEM, 0, "prompts");
    u->w = (waiter){PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0};
    u->gate_w = (waiter){PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0};
    for (uint64_t k = 0; k < (uint64_t)pt->prompt * pt->seqs + n_gate; k++)
        ids[k] = (uint32_t)(next_random(seed) % vocab);
    xd_status st = submit(e, ids + (uint64_t)pt->prompt * pt->seqs, n_gate, 1, &u->gate_w, &u->gate, err);
    if (!st)
        wait_started(e);
    for (uint32_t i = 0; i < pt->seqs && !st; i++)
        st = submit(e, ids + (uint64_t)i * pt->prompt, pt->prompt, pt->tokens, &u->w, &u->jobs[i], err);
    if (!st)
        st = finish_gate(&u->gate, &u->gate_w, err);
    moment start = look(e, 0);
    start.ns = u->gate_w.last_ns; /* the next step began then, whenever this thread woke up */
    if (!st)
        st = watch(e, u, pt, &start, lim, err);
    engine_request_free(u->gate.r);
    for (uint32_t i = 0; i < pt->seqs; i++)
        engine_request_free(u->jobs[i].r);
    return st;
}

/* --- the hit rate over time --------------------------------------------------------------------------------------------- */

static void look_at_hits(engine *e, double *ret_vram, double *ret_all)
{
    XD_CLEANUP(xd_buf_free) xd_buf text = {0};
    engine_metrics(e, &text);
    const char *t = text.data ? text.data : "";
    *ret_vram = metric_sum(t, "expertd_expert_page_hits_total{tier=\"vram");
    *ret_all = metric_sum(t, "expertd_expert_page_hits_total");
}

xd_status bench_hits(engine *e, uint32_t prompt, uint32_t tokens, uint32_t every, double *rates, uint32_t *ret_n,
                     uint64_t *ret_answers, xd_err *err)
{
    uint32_t vocab = engine_get_info(e)->vocab, n = 0, seen = 0;
    uint64_t seed = 1;
    XD_CLEANUP(xd_freep) uint32_t *ids = malloc(prompt * sizeof *ids);
    if (!ids)
        return xd_fail(err, XD_NOMEM, 0, "prompt");
    for (uint32_t k = 0; k < prompt; k++)
        ids[k] = (uint32_t)(next_random(&seed) % vocab);
    waiter w = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0};
    job j = {0};
    double vram = 0, all = 0;
    xd_status st = submit(e, ids, prompt, tokens, &w, &j, err);
    if (st)
        return st;
    while (!st && !engine_request_finished(j.r)) {
        sleep_on(&w);
        st = take_events(&j, err);
        if (st || (seen ? j.tokens - seen < every : !j.tokens)) /* what the prompt touched is left out */
            continue;
        double v, a;
        look_at_hits(e, &v, &a);
        if (seen && a > all)
            rates[n++] = (v - vram) / (a - all);
        vram = v;
        all = a;
        seen = j.tokens;
    }
    engine_request_free(j.r);
    *ret_n = n;
    *ret_answers = j.hash;
    return st;
}
