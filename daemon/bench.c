/* bench.c - `expertd bench`: which measurements are made, with which settings, and how they are shown.
 *
 * One measurement is bench_run.c. Here every combination of prompt length and number of requests is measured, and that again for every
 * combination of swept settings (--sweep KEY=A,B,...), each with an engine of its own. A result is printed, never judged: a test must
 * not fail on a time. */
#include <ctype.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <string.h>
#include <sys/resource.h>

#include "daemon/bench.h"
#include "daemon/daemon_priv.h"
#include "daemon/facts.h"
#include "daemon/placement.h"
#include "engine/memory/trace.h"

enum { MAX_POINTS = 16, MAX_VALUES = 16, MAX_FLAGS = CLI_MAX_SWEEPS + 3, MAX_TEXT = 256, MAX_TOKENS = 1 << 20 };

static const double NS = 1e9;

typedef struct sweep { /* one axis */
    char key[64];
    char values[MAX_VALUES][64];
    size_t n;
} sweep;

typedef struct bench {
    const cli *c;
    sweep sweeps[CLI_MAX_SWEEPS];
    size_t n_sweeps;
    uint32_t lengths[MAX_POINTS], seqs[MAX_POINTS], tokens, hits;
    size_t n_lengths, n_seqs;
    double dram,
        first_s[MAX_POINTS][MAX_POINTS]; /* total_s by length and number, with the first value of the last axis */
    bool gpu, head_printed;
    uint64_t vram_first; /* VRAM in use, with the same value */
    json_t *list;
} bench;

/* "128,2048": at most `cap` numbers from 1 to `max`; 0 and a message otherwise. */
static size_t parse_list(const char *option, const char *text, uint32_t max, size_t cap, uint32_t *out)
{
    size_t n = 0;
    bool good = true;
    for (const char *p = text; good && (!n || *p);) {
        char *end;
        unsigned long v = strtoul(p, &end, 10);
        good = n < cap && isdigit((unsigned char)*p) && v && v <= max && (!*end || (*end == ',' && end[1]));
        if (good)
            out[n++] = (uint32_t)v;
        p = end + (*end == ',');
    }
    if (good)
        return n;
    fprintf(stderr,
            cap > 1 ? "expertd: %s takes numbers from 1 to %u with commas between them, at most %zu\n"
                    : "expertd: %s takes a number from 1 to %u\n",
            option, max, cap);
    return 0;
}

/* "section.key=a,b,c" */
static bool parse_sweep(const char *text, sweep *s)
{
    const char *equals = strchr(text, '=');
    if (!equals || equals == text || (size_t)(equals - text) >= sizeof s->key)
        return false;
    snprintf(s->key, sizeof s->key, "%.*s", (int)(equals - text), text);
    for (const char *p = equals + 1; s->n < MAX_VALUES;) {
        size_t n = strcspn(p, ",");
        if (!n || n >= sizeof s->values[0])
            return false;
        snprintf(s->values[s->n++], sizeof s->values[0], "%.*s", (int)n, p);
        if (!p[n])
            return true;
        p += n + 1;
    }
    return false;
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

/* The next peak_rss_bytes() is that of what comes (proc(5), clear_refs); where that is not allowed, it is that of all. */
static void forget_peak(void)
{
    XD_CLEANUP(xd_closep) int fd = open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);
    if (fd >= 0)
        (void)!write(fd, "5", 1);
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

/* --- what is shown ------------------------------------------------------------------------------------------------------ */

static const char *last_part(const char *key)
{
    const char *dot = strrchr(key, '.');
    return dot ? dot + 1 : key;
}

static int sweep_width(const sweep *s)
{
    size_t w = strlen(last_part(s->key));
    for (size_t i = 0; i < s->n; i++)
        w = XD_MAX(w, strlen(s->values[i]));
    return (int)w;
}

static void print_head(const bench *b)
{
    for (size_t i = 0; i < b->n_sweeps; i++)
        printf("%-*s ", sweep_width(&b->sweeps[i]), last_part(b->sweeps[i].key));
    printf("%7s %5s %9s %11s %7s %10s %9s %10s %9s %8s %6s %8s %8s %8s %10s %7s %8s %6s", "prompt", "seqs", "TTFT ms",
           "prefill t/s", "reached", "decode t/s", "ms/step", "experts ms", "read GB/s", "of limit", "hit", "host GB",
           "vram GB", "cpu GB", "bound t/s", "reached", "total s", "x");
    if (b->gpu)
        printf(" %9s %6s %8s %7s %6s", "VRAM MiB", "x", "ahead GB", "wasted", "right");
    printf(" %9s\n", "answers");
}

/* A number, or "-" where there is none. */
static void cell(int width, int digits, double v, const char *unit)
{
    char text[64];
    snprintf(text, sizeof text, "%.*f%s", digits, v, unit);
    printf(" %*s", width, isnan(v) ? "-" : text);
}

/* What a measurement says beside its own numbers. */
typedef struct verdict {
    double prefill_reached, hit, read_bps, read_limit, bound_tps, reached, times_first;
} verdict;

static verdict judge(const bench *b, const bench_limits *lim, const bench_point *pt, double first_s)
{
    double bytes = pt->host_bytes + pt->vram_bytes + pt->cpu_bytes;
    verdict v = {.times_first = pt->total_s / first_s};
    v.prefill_reached = pt->prefill_bound.seconds * pt->prefill_tps / ((double)pt->prompt * pt->seqs);
    v.hit = bytes > 0 ? pt->vram_bytes / bytes : NAN;
    v.read_limit = b->gpu ? lim->link : lim->memory;
    v.read_bps = pt->experts_ms > 0 ? (b->gpu ? pt->host_bytes - pt->early_bytes : bytes) / pt->experts_ms * 1e3 : NAN;
    v.bound_tps = pt->seqs / pt->step_bound.seconds;
    v.reached = pt->decode_tps / v.bound_tps;
    return v;
}

static void print_point(const bench *b, const bench_point *pt, const verdict *v, const size_t *at, uint64_t vram)
{
    for (size_t i = 0; i < b->n_sweeps; i++)
        printf("%-*s ", sweep_width(&b->sweeps[i]), b->sweeps[i].values[at[i]]);
    printf("%7u %5u", pt->prompt, pt->seqs);
    cell(9, 1, pt->ttft_ms, "");
    cell(11, 1, pt->prefill_tps, "");
    cell(7, 0, 100 * v->prefill_reached, "%");
    cell(10, 2, pt->decode_tps, "");
    cell(9, 2, pt->step_ms, "");
    cell(10, 2, pt->experts_ms, "");
    cell(9, 2, v->read_bps / 1e9, "");
    cell(8, 0, v->read_limit > 0 ? 100 * v->read_bps / v->read_limit : NAN, "%");
    cell(6, 0, 100 * v->hit, "%");
    cell(8, 3, pt->host_bytes / 1e9, "");
    cell(8, 3, pt->vram_bytes / 1e9, "");
    cell(8, 3, pt->cpu_bytes / 1e9, "");
    cell(10, 2, v->bound_tps, "");
    cell(7, 0, 100 * v->reached, "%");
    cell(8, 3, pt->total_s, "");
    cell(6, 2, v->times_first, "");
    if (b->gpu) {
        cell(9, 0, vram ? (double)vram / 1048576 : NAN, "");
        cell(6, 2, vram && b->vram_first ? (double)vram / (double)b->vram_first : NAN, "");
        cell(8, 3, pt->early_bytes / 1e9, "");
        cell(7, 3, pt->wasted_bytes / 1e9, "");
        cell(6, 0, 100 * pt->right, "%");
    }
    printf("  %08x\n", (uint32_t)(pt->answers >> 32));
    if (*pt->not_measured)
        printf("  - decoding was not measured: %s\n", pt->not_measured);
    fflush(stdout);
}

static json_t *number(double v)
{
    return isnan(v) || isinf(v) ? json_null() : json_real(v);
}

/* Rates that nobody knows are 0. */
static json_t *rate(double v)
{
    return number(v > 0 ? v : NAN);
}

static const char *rate_text(char out[48], double v, const char *unit)
{
    if (v > 0)
        snprintf(out, 48, "at %.*f %s", v < 1000 ? 1 : 0, v, unit);
    else
        snprintf(out, 48, "at an unknown rate");
    return out;
}

static void note_point(const bench *b, const bench_limits *lim, const bench_point *pt, const verdict *v,
                       const size_t *at, double load_s, uint64_t vram)
{
    json_t *settings = json_object();
    for (size_t i = 0; i < b->n_sweeps; i++)
        json_object_set_new(settings, b->sweeps[i].key, json_string(b->sweeps[i].values[at[i]]));
    json_t *o = json_pack("{s:o, s:i, s:i, s:i}", "settings", settings, "prompt_tokens", (int)pt->prompt, "sequences",
                          (int)pt->seqs, "tokens", (int)pt->tokens);
    const struct {
        const char *name;
        double value;
    } rows[] = {
        {"ttft_ms", pt->ttft_ms},
        {"total_s", pt->total_s},
        {"times_first", v->times_first},
        {"prefill_tokens_per_s", pt->prefill_tps},
        {"prefill_reached", v->prefill_reached},
        {"decode_tokens_per_s", pt->decode_tps},
        {"ms_per_step", pt->step_ms},
        {"experts_ms_per_step", pt->experts_ms},
        {"host_bytes_per_step", pt->host_bytes},
        {"vram_bytes_per_step", pt->vram_bytes},
        {"cpu_bytes_per_step", pt->cpu_bytes},
        {"shared_cpu_ms_per_step", pt->cpu_ms},
        {"shared_gpu_ms_per_step", pt->gpu_ms},
        {"read_ahead_useful_bytes_per_step", pt->early_bytes},
        {"read_ahead_wasted_bytes_per_step", pt->wasted_bytes},
        {"read_ahead_right", pt->right},
        {"kv_host_bytes_per_step", pt->kv_host_bytes},
        {"between_steps_us", pt->border_ns[BENCH_BORDER] / 1e3},
        {"between_steps_results_us", pt->border_ns[BENCH_BORDER_RESULTS] / 1e3},
        {"between_steps_pager_us", pt->border_ns[BENCH_BORDER_PAGER] / 1e3},
        {"between_steps_form_us", pt->border_ns[BENCH_BORDER_FORM] / 1e3},
        {"between_steps_launch_us", pt->border_ns[BENCH_BORDER_LAUNCH] / 1e3},
        {"hit_rate", v->hit},
        {"expert_read_gbps", v->read_bps / 1e9},
        {"bound_tokens_per_s", v->bound_tps},
        {"reached", v->reached},
        {"load_s", load_s},
        {"vram_used_bytes", vram ? (double)vram : NAN},
    };
    for (size_t i = 0; i < XD_ARRAY_LEN(rows); i++)
        json_object_set_new(o, rows[i].name, number(rows[i].value));
    json_object_set_new(o, "expert_read_limit_gbps", rate(v->read_limit / 1e9));
    json_object_set_new(o, "link_gbps", rate(lim->link / 1e9));
    json_object_set_new(o, "memory_gbps", rate(lim->memory / 1e9));
    json_object_set_new(o, "matrix_tflops", rate(lim->flops / 1e12));
    json_object_set_new(o, "decode_steps", json_integer((json_int_t)pt->decode_steps));
    json_object_set_new(o, "decode_not_measured", *pt->not_measured ? json_string(pt->not_measured) : json_null());
    json_object_set_new(o, "answers", json_sprintf("%08x", (uint32_t)(pt->answers >> 32)));
    json_object_set_new(o, "prefill_bound_by", json_string(pt->prefill_bound.by));
    json_object_set_new(o, "bound_by", json_string(pt->step_bound.by));
    json_array_append_new(b->list, o);
}

/* --- one combination of settings ---------------------------------------------------------------------------------------- */

/* The settings of this combination, and room for what is measured where the configuration leaves it open. */
static xd_status load_settings(const bench *b, const size_t *at, config **ret, xd_err *err)
{
    char texts[MAX_FLAGS][MAX_TEXT];
    int n = 0;
    bool demo;
    uint32_t most = 0, longest = 0;
    XD_CLEANUP(xd_freep) const char **flags = calloc((size_t)b->c->flags_count + MAX_FLAGS, sizeof *flags);
    if (!flags)
        return xd_fail(err, XD_NOMEM, 0, "settings");
    memcpy(flags, b->c->flags, (size_t)b->c->flags_count * sizeof *flags);
    cli with = *b->c;
    with.flags = flags;
    for (size_t i = 0; i < b->n_sweeps; i++)
        snprintf(texts[n++], MAX_TEXT, "--%s=%s", b->sweeps[i].key, b->sweeps[i].values[at[i]]);
    for (int i = 0; i < n; i++)
        flags[with.flags_count++] = texts[i];
    XD_CLEANUP(conf_freep) config *cfg = NULL;
    xd_status st = cli_load_config(&with, &cfg, &demo, err);
    if (st)
        return st;
    for (size_t i = 0; i < b->n_seqs; i++)
        most = XD_MAX(most, b->seqs[i]);
    for (size_t i = 0; i < b->n_lengths; i++)
        longest = XD_MAX(longest, b->lengths[i]);
    int first = n;
    if (cfg->engine.max_num_seqs < most)
        snprintf(texts[n++], MAX_TEXT, "--engine.max_num_seqs=%u", most);
    if (cfg->server.max_queue <= most)
        snprintf(texts[n++], MAX_TEXT, "--server.max_queue=%u", most + 1);
    if (!cfg->model.max_model_len)
        snprintf(texts[n++], MAX_TEXT, "--model.max_model_len=%u", XD_MAX((longest + b->tokens + 63) / 64 * 64, 128u));
    for (int i = first; i < n; i++)
        flags[with.flags_count++] = texts[i];
    st = cli_load_config(&with, ret, &demo, err);
    return st ? st : conf_set(*ret, "model.tokenizer", "no", err); /* prompts are ids, and weights alone will do */
}

static xd_status measure_all(bench *b, engine *e, const size_t *at, bool first, double load_s, xd_err *err)
{
    bench_limits lim = bench_get_limits(e, b->dram);
    const engine_info *info = engine_get_info(e);
    b->gpu = info->pci_bus_id[0];
    if (!b->c->json && !b->head_printed) {
        char dram[48], link[48], memory[48], flops[48];
        printf("%s (%s) on %s; loaded in %.2f s; DRAM reads %s", info->model_id, info->arch, info->backend, load_s,
               rate_text(dram, b->dram / NS, "GB/s"));
        if (b->gpu)
            printf(", the link %s, device memory %s; 16-bit products %s", rate_text(link, lim.link / NS, "GB/s"),
                   rate_text(memory, lim.memory / NS, "GB/s"), rate_text(flops, lim.flops / 1e12, "TFLOPS"));
        printf("\n\n");
        print_head(b);
        b->head_printed = true;
    }
    uint64_t seed = 1; /* the same prompts for each swept value: then answers and hit rates can be compared */
    for (size_t i = 0; i < b->n_lengths; i++)
        for (size_t k = 0; k < b->n_seqs; k++) {
            bench_point pt = {.prompt = b->lengths[i], .seqs = b->seqs[k], .tokens = b->tokens};
            xd_status st = bench_measure(e, &lim, &pt, &seed, err);
            if (st)
                return st;
            uint64_t vram = b->gpu ? gpu_used_bytes(info->pci_bus_id) : 0;
            if (first) {
                b->first_s[i][k] = pt.total_s;
                b->vram_first = vram;
            }
            verdict v = judge(b, &lim, &pt, b->first_s[i][k]);
            if (b->c->json)
                note_point(b, &lim, &pt, &v, at, load_s, vram);
            else
                print_point(b, &pt, &v, at, vram);
        }
    return XD_OK;
}

/* After how many tokens the cache hits nearly as often as it will: with the same pager.stats_file, a second run shows a warm start. */
static xd_status measure_hits(const bench *b, engine *e, xd_err *err)
{
    const double near_enough = 0.02;
    XD_CLEANUP(xd_freep) double *rates = calloc(b->tokens / b->hits + 1, sizeof *rates);
    uint32_t n = 0, first = 0, last;
    uint64_t answers = 0;
    if (!rates)
        return xd_fail(err, XD_NOMEM, 0, "hit rates");
    xd_status st = bench_hits(e, b->lengths[0], b->tokens, b->hits, rates, &n, &answers, err);
    if (st)
        return st;
    double plateau = 0;
    last = XD_MAX(n / 4, 1u);
    for (uint32_t i = n - XD_MIN(last, n); i < n; i++)
        plateau += rates[i] / last;
    while (first < n && rates[first] < plateau - near_enough)
        first++;
    printf("%8s %8s\n", "tokens", "hit in %");
    for (uint32_t i = 0; i < n; i++)
        printf("%8u %8.1f\n", (i + 1) * b->hits, 100 * rates[i]);
    printf("\nlast quarter %.1f %%, within %.0f points of it from token %u on; answers %08x\n", 100 * plateau,
           100 * near_enough, first * b->hits, (uint32_t)(answers >> 32));
    return XD_OK;
}

static xd_status run_settings(bench *b, const size_t *at, bool first, xd_err *err)
{
    XD_CLEANUP(conf_freep) config *cfg = NULL;
    XD_CLEANUP(engine_freep) engine *e = NULL; /* before cfg, which it borrows */
    xd_status st = load_settings(b, at, &cfg, err);
    if (st)
        return st;
    uint64_t start = xd_now_ns();
    if (!(st = engine_start(cfg, &e, err)))
        st = engine_wait_ready(e, isatty(STDERR_FILENO) ? progress : NULL, NULL, err);
    if (isatty(STDERR_FILENO))
        fputs("\r\033[K", stderr);
    if (!st && b->hits)
        return measure_hits(b, e, err);
    return st ? st : measure_all(b, e, at, first, (double)(xd_now_ns() - start) / NS, err);
}

static xd_status run_sweeps(bench *b, xd_err *err)
{
    size_t at[CLI_MAX_SWEEPS] = {0};
    for (;;) {
        bool first = !b->n_sweeps || !at[b->n_sweeps - 1];
        xd_status st = run_settings(b, at, first, err);
        if (st)
            return st;
        size_t i = b->n_sweeps; /* the last axis turns fastest */
        while (i > 0 && ++at[i - 1] == b->sweeps[i - 1].n)
            at[--i] = 0;
        if (!i)
            return XD_OK;
    }
}

static void print_end(const bench *b)
{
    char rss[32];
    printf(
        "\npeak resident memory %s. reached: of the bound, the least time for the bytes as they were read by tier (link and\n"
        "memory work together) and for the products. read GB/s, of limit: %s while experts are computed.\n"
        "hit, host and vram GB: expert bytes of a decode step. x: times the same\n"
        "with the first value of the last swept setting. answers: a hash of all tokens. A share above 100 %% is one of weights that\n"
        "lie in the CPU's caches, or of a rate that was measured while others used the machine.\n%s",
        xd_format_bytes(rss, sizeof rss, peak_rss_bytes()),
        b->gpu ? "the link's rate, of the probed rate," : "the rate of reading experts, of the DRAM rate,",
        b->gpu
            ? "ahead GB: the part of host GB that was read before its layer came, and not counted in read GB/s; wasted: GB read\n"
              "so for nothing; right: experts outside of VRAM that were predicted, and then picked.\n"
            : "");
}

static int wrong(const char *text)
{
    fprintf(stderr, "expertd: %s\n", text);
    return EXIT_USAGE;
}

/* What would end it after minutes is said at once: a model that cannot be opened, prompts that it has no context for. */
static xd_status check_bench(const bench *b, const config *cfg, xd_err *err)
{
    XD_CLEANUP(model_freep) model *m = NULL;
    xd_status st = placement_open_model(cfg, &m, err);
    if (st || b->n_sweeps) /* which may be of the context */
        return st;
    uint32_t given = cfg->model.max_model_len, context = given ? given : model_get_params(m)->max_positions;
    for (size_t i = 0; i < b->n_lengths; i++)
        if (b->lengths[i] + b->tokens > context)
            return xd_fail(err, XD_BAD_CONFIG, 0,
                           "--lengths %u and --tokens %u: %s is %u tokens, for prompt and answer together",
                           b->lengths[i], b->tokens, given ? "model.max_model_len" : "the model's context", context);
    return XD_OK;
}

int bench_main(const cli *c, const config *cfg)
{
    if (c->trace)
        return replay(c->trace, cfg);
    bench b = {.c = c};
    b.n_lengths = parse_list("--lengths", c->lengths ? c->lengths : "128,1024", MAX_TOKENS, MAX_POINTS, b.lengths);
    b.n_seqs = parse_list("--concurrency", c->concurrency ? c->concurrency : "1,8", BENCH_MAX_SEQS, MAX_POINTS, b.seqs);
    bool good =
        b.n_lengths && b.n_seqs && parse_list("--tokens", c->tokens ? c->tokens : "64", MAX_TOKENS, 1, &b.tokens);
    if (good && c->hits)
        good = parse_list("--hits", c->hits, b.tokens, 1, &b.hits);
    if (!good)
        return EXIT_USAGE;
    if (b.hits && (c->json || c->n_sweeps))
        return wrong("--hits prints one table: it goes without --json and --sweep");
    for (; b.n_sweeps < (size_t)c->n_sweeps; b.n_sweeps++)
        if (!parse_sweep(c->sweeps[b.n_sweeps], &b.sweeps[b.n_sweeps]))
            return wrong("--sweep takes a setting and up to 16 values: --sweep memory.expert_vram_share=25%,50%");
    xd_err err;
    xd_status st = check_bench(&b, cfg, &err);
    if (st)
        return cli_fail(st, &err);
    b.dram = bench_dram_rate();
    forget_peak(); /* that buffer is no part of what serving takes */
    b.list = json_array();
    st = run_sweeps(&b, &err);
    if (st)
        cli_fail(st, &err);
    else if (c->json) {
        json_t *o = json_pack("{s:s, s:o, s:I, s:O}", "model", cfg->model.path, "dram_read_gbps", rate(b.dram / NS),
                              "peak_rss_bytes", (json_int_t)peak_rss_bytes(), "points", b.list);
        json_dumpf(o, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(15));
        putchar('\n');
        json_decref(o);
    } else if (!b.hits)
        print_end(&b);
    json_decref(b.list);
    return cli_status(st);
}
