/* bench_run.c - one measurement: requests that start together, timed through the engine's public interface, and the least time that the
 * machine would have needed for the same bytes and products.
 *
 * What is measured is what a client gets, less HTTP. Prompts are pseudo-random token ids (prefix caching finds nothing in common),
 * answers are greedy and never stop early. A first short request goes alone, so that no kernel is met for the first time; the others are
 * held until all are queued, and start in one step. What is read and how long it takes is counted by the engine thread, step by step:
 * decoding is judged by the steps in which all requests got a token and nothing else was done, the first of them left out (the first step
 * of a batch size is recorded, later ones replayed). So no number depends on when the threads of a busy machine wake up, but for the
 * time to the first token, which is a client's.
 *
 * The bound takes the bytes as they were read, by tier, from the engine's counters: it says how well the machine was used for them, not
 * whether other bytes would have been better. The link, the device's memory and its arithmetic work at the same time, so the longest of
 * the three is the bound. Attention's arithmetic is left out (few percent), its bytes are counted. What the CPU reads beside a GPU is no
 * part of it: the bound is then that of the GPU's part alone, as it was divided. */
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "config/util.h"
#include "daemon/bench.h"

enum { WARM_TOKENS = 64 };

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

bench_limits bench_get_limits(engine *e, double dram)
{
    const engine_info *i = engine_get_info(e);
    bool cpu = !i->pci_bus_id[0];
    return (bench_limits){.link = engine_get_link_gbps(e) * 1e9,
                          .memory = cpu ? dram : i->memory_gbps * 1e9,
                          .flops = i->matrix_tflops * 1e12};
}

/* --- steps -------------------------------------------------------------------------------------------------------------- */

/* Steps of one kind, summed. */
typedef struct tally {
    double steps, tokens, kv_bytes, seconds, experts_s, vram_bytes, host_bytes, cpu_bytes, kv_host_bytes, cpu_s,
        device_s;
    double early_bytes, wasted_bytes, predictions, right;
    double borders, border_ns[BENCH_BORDERS];
} tally;

enum { WITH_PROMPTS, FIRST, DECODE, REST, KINDS };

/* What the engine thread writes while it runs the requests of one measurement: each step is counted where it belongs, whenever this
 * process's other threads get to run. */
typedef struct counter {
    uint32_t seqs;
    uint64_t last_ns; /* end of the step before; 0: none yet */
    tally t[KINDS];
} counter;

static void count_step(void *user, const engine_step_facts *f)
{
    counter *c = user;
    bool all = !f->prefill && f->n_seqs == c->seqs && f->n_tokens == c->seqs;
    tally *t = &c->t[f->prefill ? WITH_PROMPTS : !all ? REST : c->t[FIRST].steps > 0 ? DECODE : FIRST];
    t->steps++;
    t->tokens += f->n_tokens;
    t->kv_bytes += (double)f->kv_bytes;
    t->seconds += (double)(f->end_ns - (c->last_ns ? c->last_ns : f->begin_ns)) / 1e9;
    t->experts_s += (double)f->experts_ns / 1e9;
    t->vram_bytes += (double)f->vram_bytes;
    t->host_bytes += (double)f->host_bytes;
    t->cpu_bytes += (double)f->cpu_bytes;
    t->cpu_s += (double)f->cpu_ns / 1e9;
    t->device_s += (double)f->device_ns / 1e9;
    t->kv_host_bytes += (double)f->kv_host_bytes;
    t->early_bytes += (double)f->early_bytes;
    t->wasted_bytes += (double)f->wasted_bytes;
    t->predictions += (double)f->predictions;
    t->right += (double)f->predictions_right;
    const uint64_t border[BENCH_BORDERS] = {[BENCH_BORDER] = f->border_ns,
                                            [BENCH_BORDER_RESULTS] = f->border_results_ns,
                                            [BENCH_BORDER_PAGER] = f->border_pager_ns,
                                            [BENCH_BORDER_FORM] = f->border_form_ns,
                                            [BENCH_BORDER_LAUNCH] = f->border_launch_ns};
    t->borders += f->border_ns > 0;
    for (int i = 0; i < BENCH_BORDERS; i++)
        t->border_ns[i] += (double)border[i];
    c->last_ns = f->end_ns;
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

static void judge(const engine_info *i, const bench_limits *lim, bench_point *pt, const counter *c)
{
    double seqs = pt->seqs, prompts = seqs * pt->prompt;
    const tally *p = &c->t[WITH_PROMPTS], *d = &c->t[DECODE];
    pt->prefill_tps = prompts / p->seconds;
    pt->prefill_bound = bound_of(i, lim, p->host_bytes, p->vram_bytes, p->steps, 0, p->kv_host_bytes,
                                 prompts * (double)i->token_weights + seqs * (double)i->head_weights);
    pt->decode_tps = pt->step_ms = pt->experts_ms = pt->host_bytes = pt->vram_bytes = pt->cpu_bytes =
        pt->kv_host_bytes = NAN;
    pt->early_bytes = pt->wasted_bytes = pt->right = NAN;
    for (int k = 0; k < BENCH_BORDERS; k++)
        pt->border_ns[k] = d->borders > 0 ? d->border_ns[k] / d->borders : NAN;
    pt->step_bound = (bench_bound){NAN, ""};
    pt->not_measured = "";
    if (!d->steps) {
        pt->not_measured = pt->tokens < 3
                               ? "it is measured from the third token on: ask for more with --tokens"
                               : "the first answer ended before all requests had decoded together for two steps: "
                                 "ask for more with --tokens, or raise engine.max_num_batched_tokens or kv.kv_budget";
        return;
    }
    pt->decode_steps = (uint64_t)d->steps;
    pt->decode_tps = d->tokens / d->seconds;
    pt->step_ms = d->seconds * 1e3 / d->steps;
    pt->experts_ms = d->experts_s * 1e3 / d->steps;
    pt->host_bytes = d->host_bytes / d->steps;
    pt->vram_bytes = d->vram_bytes / d->steps;
    pt->cpu_bytes = d->cpu_bytes / d->steps;
    pt->cpu_ms = d->cpu_s * 1e3 / d->steps;
    pt->gpu_ms = d->device_s * 1e3 / d->steps;
    pt->kv_host_bytes = d->kv_host_bytes / d->steps;
    pt->early_bytes = d->early_bytes / d->steps;
    pt->wasted_bytes = d->wasted_bytes / d->steps;
    pt->right = d->predictions > 0 ? d->right / d->predictions : NAN;
    pt->step_bound = bound_of(i, lim, pt->host_bytes, pt->vram_bytes, 1, d->kv_bytes / d->steps, pt->kv_host_bytes,
                              seqs * (double)(i->token_weights + i->head_weights));
}

/* --- requests ----------------------------------------------------------------------------------------------------------- */

typedef struct waiter {
    pthread_mutex_t lock;
    pthread_cond_t cond;
    uint64_t signals;
} waiter;

static void wake(void *user)
{
    waiter *w = user;
    pthread_mutex_lock(&w->lock);
    w->signals++;
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
    uint64_t hash; /* of all tokens */
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
    }
    return XD_OK;
}

/* Takes what comes until the n jobs are done. */
static xd_status finish(job *jobs, uint32_t n, waiter *w, xd_err *err)
{
    for (bool open = true; open;) {
        open = false;
        for (uint32_t i = 0; i < n; i++) {
            xd_status st = take_events(&jobs[i], err);
            if (st)
                return st;
            open = open || !engine_request_finished(jobs[i].r);
        }
        if (open)
            sleep_on(w);
    }
    return XD_OK;
}

typedef struct run {
    job jobs[BENCH_MAX_SEQS], first;
    waiter w;
    counter count;
} run;

/* All begin in one step: none is taken before the last is there. */
static xd_status measure_together(engine *e, run *u, const uint32_t *ids, const bench_limits *lim, bench_point *pt,
                                  xd_err *err)
{
    xd_status st = XD_OK;
    u->count = (counter){.seqs = pt->seqs};
    engine_observe(e, count_step, &u->count);
    engine_hold(e, true);
    for (uint32_t i = 0; i < pt->seqs && !st; i++)
        st = submit(e, ids + (uint64_t)i * pt->prompt, pt->prompt, pt->tokens, &u->w, &u->jobs[i], err);
    uint64_t start_ns = xd_now_ns();
    engine_hold(e, false);
    if (!st)
        st = finish(u->jobs, pt->seqs, &u->w, err);
    engine_observe(e, NULL, NULL);
    if (st)
        return st;
    pt->total_s = (double)(u->count.last_ns - start_ns) / 1e9;
    pt->ttft_ms = 0;
    pt->answers = 0;
    for (uint32_t i = 0; i < pt->seqs; i++) {
        engine_usage of; /* by the engine's clock: whoever reads tokens may wake late */
        engine_request_usage(u->jobs[i].r, &of);
        pt->ttft_ms += (double)(of.submitted_ns + of.first_token_ns - start_ns) / 1e6 / pt->seqs;
        pt->answers = (pt->answers ^ u->jobs[i].hash) * XD_MIX64_STEP;
    }
    judge(engine_get_info(e), lim, pt, &u->count);
    return XD_OK;
}

xd_status bench_measure(engine *e, const bench_limits *lim, bench_point *pt, uint64_t *seed, xd_err *err)
{
    uint32_t vocab = engine_get_info(e)->vocab, n_first = XD_MIN((uint32_t)WARM_TOKENS, pt->prompt);
    XD_CLEANUP(xd_freep) uint32_t *ids = malloc(((uint64_t)pt->prompt * pt->seqs + n_first) * sizeof *ids);
    XD_CLEANUP(xd_freep) run *u = calloc(1, sizeof *u);
    if (!ids || !u)
        return xd_fail(err, XD_NOMEM, 0, "prompts");
    u->w = (waiter){PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0};
    for (uint64_t k = 0; k < (uint64_t)pt->prompt * pt->seqs + n_first; k++)
        ids[k] = (uint32_t)(next_random(seed) % vocab);
    xd_status st = submit(e, ids + (uint64_t)pt->prompt * pt->seqs, n_first, 1, &u->w, &u->first, err);
    if (!st)
        st = finish(&u->first, 1, &u->w, err);
    if (!st)
        st = measure_together(e, u, ids, lim, pt, err);
    engine_request_free(u->first.r);
    for (uint32_t i = 0; i < pt->seqs; i++)
        engine_request_free(u->jobs[i].r);
    return st;
}

/* --- the hit rate over time --------------------------------------------------------------------------------------------- */

typedef struct hits {
    uint32_t every, in_window, n;
    double vram, all, *rates;
} hits;

/* What the prompt touched is left out. */
static void count_hits(void *user, const engine_step_facts *f)
{
    hits *h = user;
    if (f->prefill)
        return;
    h->vram += (double)f->vram_pages;
    h->all += (double)(f->vram_pages + f->host_pages);
    if (++h->in_window < h->every)
        return;
    h->rates[h->n++] = h->all > 0 ? h->vram / h->all : 0;
    h->in_window = 0;
    h->vram = h->all = 0;
}

xd_status bench_hits(engine *e, uint32_t prompt, uint32_t tokens, uint32_t every, double *rates, uint32_t *ret_n,
                     uint64_t *ret_answers, xd_err *err)
{
    uint32_t vocab = engine_get_info(e)->vocab;
    uint64_t seed = 1;
    XD_CLEANUP(xd_freep) uint32_t *ids = malloc(prompt * sizeof *ids);
    if (!ids)
        return xd_fail(err, XD_NOMEM, 0, "prompt");
    for (uint32_t k = 0; k < prompt; k++)
        ids[k] = (uint32_t)(next_random(&seed) % vocab);
    waiter w = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0};
    hits h = {.every = every, .rates = rates};
    job j = {0};
    engine_observe(e, count_hits, &h);
    xd_status st = submit(e, ids, prompt, tokens, &w, &j, err);
    if (!st)
        st = finish(&j, 1, &w, err);
    engine_observe(e, NULL, NULL);
    engine_request_free(j.r);
    *ret_n = h.n;
    *ret_answers = j.hash;
    return st;
}
