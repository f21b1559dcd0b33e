/* bench.c - `expertd bench`: tokens a second, and the share of the memory's limit that expert reading reaches.
 *
 * Everything goes through the engine's public interface, so what is measured is what a client gets, less HTTP. Prompts are
 * pseudo-random token ids (prefix caching finds nothing in common), answers are greedy and never stop early. Expert bytes come
 * from the engine's own counters; the DRAM rate is measured by this process with as many threads as there are CPUs, reading
 * memory that no cache holds. A result is printed, never judged: a test must not fail on a time. */
#include <jansson.h>
#include <math.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "daemon/daemon_priv.h"
#include "engine/engine.h"
#include "engine/memory/trace.h"

#define MAX_POINTS 16
#define MAX_SEQS   256

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

/* ---- DRAM ---- */

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

/* GB/s at which all CPUs together read DRAM: the best of three passes; 0 when memory is short. */
static double dram_gbps(void)
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
            best = fmax(best, (double)bytes / (double)(xd_now_ns() - start));
    }
    munmap(p, bytes);
    return best;
}

/* ---- one measurement ---- */

typedef struct point {
    uint32_t prompt, seqs, tokens;
    double ttft_ms, prefill_tps, decode_tps, token_ms;
    double expert_gbps; /* bytes of experts over the time that steps spent in them, while all sequences decode */
    double expert_time; /* that time as a share of all */
    double host_bytes;  /* of experts read from host memory, a token */
    double bound_tps;   /* tokens a second if the link did nothing but read those bytes, NAN without a link */
} point;

/* The sum of all samples in Prometheus text whose line begins with `name`: a whole metric ("x_total"), or those of its samples that
 * a label selects ("x_total{phase=\"a"). NAN when there is none. */
static double metric_sum(engine *e, const char *name)
{
    XD_CLEANUP(xd_buf_free) xd_buf text = {0};
    engine_metrics(e, &text);
    double sum = NAN;
    size_t n = strlen(name);
    for (const char *l = text.data; l && *l; l = strchr(l, '\n') ? strchr(l, '\n') + 1 : NULL) {
        if (strncmp(l, name, n) || (!strchr(name, '{') && l[n] != '{' && l[n] != ' '))
            continue;
        const char *space = l[n] == ' ' ? l + n : strchr(l, '}');
        if (space)
            sum = (isnan(sum) ? 0 : sum) + strtod(space + (*space == '}'), NULL);
    }
    return sum;
}

static double expert_bytes(engine *e)
{
    return metric_sum(e, "expertd_expert_read_bytes_total");
}

/* Those that came from host memory: on a GPU, over the link. */
static double host_bytes(engine *e)
{
    return metric_sum(e, "expertd_expert_read_bytes_total{tier=\"host");
}

static double expert_seconds(engine *e)
{
    return metric_sum(e, "expertd_step_seconds_total{phase=\"experts");
}

static uint64_t next_random(uint64_t *state) /* splitmix64 (Steele, Lea, Flood 2014) */
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* Takes what has arrived; *first_ns is set at the first token. Returns tokens taken, or -1 with *err. */
static int take_events(engine_request *r, uint64_t *first_ns, xd_err *err)
{
    engine_event ev;
    int tokens = 0;
    while (engine_request_next(r, &ev)) {
        if (ev.kind == ENGINE_EV_ERROR) {
            *err = *ev.error;
            return -1;
        }
        if (ev.kind == ENGINE_EV_TOKEN) {
            tokens++;
            if (!*first_ns)
                *first_ns = xd_now_ns();
        }
    }
    return tokens;
}

static xd_status measure(engine *e, point *pt, uint64_t *seed, xd_err *err)
{
    uint32_t vocab = engine_get_info(e)->vocab;
    XD_CLEANUP(xd_freep) uint32_t *ids = malloc(pt->prompt * sizeof *ids);
    engine_request *requests[MAX_SEQS] = {NULL};
    uint64_t first[MAX_SEQS] = {0};
    waiter w = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0};
    if (!ids)
        return xd_fail(err, XD_NOMEM, 0, "prompt");
    xd_status st = XD_OK;
    uint64_t start = xd_now_ns(), total = 0, all_started = 0, after_start = 0;
    double bytes = 0, host = 0, seconds = 0;
    for (uint32_t i = 0; i < pt->seqs && !st; i++) {
        for (uint32_t k = 0; k < pt->prompt; k++)
            ids[k] = (uint32_t)(next_random(seed) % vocab);
        const engine_request_options opt = {
            .prompt_ids = ids,
            .n_prompt = pt->prompt,
            .n = 1,
            .max_tokens = pt->tokens,
            .sampling = {.temperature = 0, .top_p = NAN, .min_p = NAN, .top_k = -1, .repetition_penalty = NAN},
            .ignore_eos = true,
            .logprobs = -1,
            .prompt_logprobs = -1,
            .notify = wake,
            .user = &w};
        st = engine_submit(e, &opt, &requests[i], err);
    }
    for (uint32_t open = pt->seqs; open && !st;) {
        pthread_mutex_lock(&w.lock);
        while (!w.signals)
            pthread_cond_wait(&w.cond, &w.lock);
        w.signals = 0;
        pthread_mutex_unlock(&w.lock);
        open = 0;
        uint32_t begun = 0;
        for (uint32_t i = 0; i < pt->seqs && !st; i++) {
            int n = take_events(requests[i], &first[i], err);
            if (n < 0)
                st = err->status;
            else
                total += (uint64_t)n;
            begun += first[i] != 0;
            open += !engine_request_finished(requests[i]);
        }
        if (begun == pt->seqs && !all_started) {
            all_started = xd_now_ns();
            after_start = total;
            bytes = expert_bytes(e);
            host = host_bytes(e);
            seconds = expert_seconds(e);
        }
    }
    uint64_t end = xd_now_ns();
    bytes = expert_bytes(e) - bytes;
    host = host_bytes(e) - host;
    seconds = expert_seconds(e) - seconds;
    for (uint32_t i = 0; i < pt->seqs; i++)
        engine_request_free(requests[i]);
    if (st)
        return st;
    double decode_s = (double)(end - all_started) / 1e9, ttft = 0;
    for (uint32_t i = 0; i < pt->seqs; i++)
        ttft += (double)(first[i] - start) / 1e6 / pt->seqs;
    pt->ttft_ms = ttft;
    pt->prefill_tps = (double)pt->prompt * pt->seqs / ((double)(all_started - start) / 1e9);
    pt->decode_tps = total > after_start ? (double)(total - after_start) / decode_s : 0;
    pt->token_ms = pt->decode_tps > 0 ? 1e3 * pt->seqs / pt->decode_tps : 0;
    pt->expert_gbps = seconds > 0 ? bytes / seconds / 1e9 : NAN;
    pt->host_bytes = total > after_start ? host / (double)(total - after_start) : 0;
    double link = metric_sum(e, "expertd_link_healthy_bytes_per_second");
    pt->bound_tps = link > 0 && pt->host_bytes > 0 ? link / pt->host_bytes : NAN;
    pt->expert_time = decode_s > 0 ? seconds / decode_s : NAN;
    return XD_OK;
}

/* ---- the command ---- */

static size_t parse_list(const char *text, const char *fallback, uint32_t max, uint32_t *out)
{
    size_t n = 0;
    for (const char *p = text ? text : fallback; *p && n < MAX_POINTS;) {
        char *end;
        unsigned long v = strtoul(p, &end, 10);
        if (end == p || !v || v > max || (*end && *end != ','))
            return 0;
        out[n++] = (uint32_t)v;
        p = end + (*end == ',');
    }
    return n;
}

static void progress(void *user, double fraction, const char *what)
{
    (void)user;
    fprintf(stderr, "\rloading %3.0f %%  %-40.40s", fraction * 100, what);
}

static uint64_t peak_rss_bytes(void)
{
    struct rusage u;
    return getrusage(RUSAGE_SELF, &u) ? 0 : (uint64_t)u.ru_maxrss * 1024;
}

/* What each eviction policy would have hit on a recorded trace (pager.trace_file), beside Belady's optimum. */
static int replay(const char *path, const config *cfg)
{
    xd_err err;
    XD_CLEANUP(trace_freep) trace *t = NULL;
    XD_CLEANUP(xd_buf_free) xd_buf text = {0};
    /* The limit is in pages, a replay counts experts: the smallest expert has a page for each of its three matrices. */
    uint32_t inserts = XD_MAX(cfg->pager.max_inserts / 3, 1u);
    if (trace_load(path, &t, &err) || trace_report(t, inserts, cfg->pager.layer_floor, &text, &err)) {
        fprintf(stderr, "expertd: %s\n", err.msg);
        return 1;
    }
    fputs(text.data, stdout);
    return 0;
}

int bench_main(const cli *c, const config *cfg)
{
    uint32_t lengths[MAX_POINTS], seqs[MAX_POINTS], tokens[MAX_POINTS];
    size_t n_lengths = parse_list(c->lengths, "128,1024", 1 << 20, lengths);
    size_t n_seqs = parse_list(c->concurrency, "1,8", MAX_SEQS, seqs);
    if (!n_lengths || !n_seqs || parse_list(c->tokens, "64", 1 << 20, tokens) != 1) {
        fputs("expertd: --lengths and --concurrency take numbers and commas, --tokens a number\n", stderr);
        return EXIT_USAGE;
    }
    if (c->trace)
        return replay(c->trace, cfg);
    xd_err err;
    double dram = dram_gbps();
    uint64_t start = xd_now_ns(), seed = 1;
    XD_CLEANUP(engine_freep) engine *e = NULL;
    xd_status st = engine_start(cfg, &e, &err);
    if (!st)
        st = engine_wait_ready(e, isatty(STDERR_FILENO) ? progress : NULL, NULL, &err);
    if (isatty(STDERR_FILENO))
        fputs("\r\033[K", stderr);
    if (st) {
        fprintf(stderr, "expertd: %s\n", err.msg);
        return 1;
    }
    const engine_info *info = engine_get_info(e);
    double load_s = (double)(xd_now_ns() - start) / 1e9;
    json_t *list = json_array();
    if (!c->json) {
        printf("%s (%s) on %s; loaded in %.2f s; DRAM reads at %.1f GB/s\n\n", info->model_id, info->arch,
               info->backend, load_s, dram);
        printf("%8s %6s %8s %12s %12s %10s %12s %8s %8s %8s %10s %8s\n", "prompt", "seqs", "TTFT ms", "prefill t/s",
               "decode t/s", "ms/token", "experts GB/s", "of DRAM", "of time", "host GB", "bound t/s", "reached");
    }
    for (size_t i = 0; i < n_lengths && !st; i++)
        for (size_t k = 0; k < n_seqs && !st; k++) {
            point pt = {.prompt = lengths[i], .seqs = seqs[k], .tokens = tokens[0]};
            st = measure(e, &pt, &seed, &err);
            if (st)
                break;
            bool known = !isnan(pt.expert_gbps) && dram > 0;
            double ratio = known ? pt.expert_gbps / dram : 0;
            if (c->json) {
                json_t *o =
                    json_pack("{s:i, s:i, s:i, s:f, s:f, s:f, s:f}", "prompt_tokens", (int)pt.prompt, "sequences",
                              (int)pt.seqs, "tokens", (int)pt.tokens, "ttft_ms", pt.ttft_ms, "prefill_tokens_per_s",
                              pt.prefill_tps, "decode_tokens_per_s", pt.decode_tps, "ms_per_token", pt.token_ms);
                json_object_set_new(o, "expert_read_gbps", known ? json_real(pt.expert_gbps) : json_null());
                json_object_set_new(o, "expert_time_share", known ? json_real(pt.expert_time) : json_null());
                json_object_set_new(o, "host_bytes_per_token", json_real(pt.host_bytes));
                json_object_set_new(o, "link_bound_tokens_per_s",
                                    isnan(pt.bound_tps) ? json_null() : json_real(pt.bound_tps));
                json_object_set_new(o, "share_of_dram", known ? json_real(ratio) : json_null());
                json_array_append_new(list, o);
            } else {
                printf("%8u %6u %8.1f %12.1f %12.2f %10.2f", pt.prompt, pt.seqs, pt.ttft_ms, pt.prefill_tps,
                       pt.decode_tps, pt.token_ms);
                if (known)
                    printf(" %12.2f %7.0f%% %7.0f%%", pt.expert_gbps, 100 * ratio, 100 * pt.expert_time);
                else
                    printf(" %12s %8s %8s", "-", "-", "-");
                printf(" %8.3f", pt.host_bytes / 1e9);
                if (!isnan(pt.bound_tps))
                    printf(" %10.2f %7.0f%%\n", pt.bound_tps, 100 * pt.decode_tps / pt.bound_tps);
                else
                    printf(" %10s %8s\n", "-", "-");
            }
            fflush(stdout);
        }
    char rss[32];
    xd_format_bytes(rss, sizeof rss, peak_rss_bytes());
    if (c->json) {
        json_t *o = json_pack("{s:s, s:s, s:s, s:f, s:f, s:I, s:O}", "model", info->model_id, "architecture",
                              info->arch, "backend", info->backend, "load_s", load_s, "dram_read_gbps", dram,
                              "peak_rss_bytes", (json_int_t)peak_rss_bytes(), "points", list);
        json_dumpf(o, stdout, JSON_INDENT(2));
        putchar('\n');
        json_decref(o);
    } else if (!st)
        printf(
            "\npeak resident memory %s. \"host GB\": expert bytes read from host memory, a token; \"bound\": what the link's "
            "probed rate allows for them.\n",
            rss);
    json_decref(list);
    if (st)
        fprintf(stderr, "expertd: %s\n", err.msg);
    return st ? 1 : 0;
}
