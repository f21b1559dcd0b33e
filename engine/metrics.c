/* metrics.c - slots and the text exposition (Prometheus text format 0.0.4). Names get the prefix expertd_. */
#include "engine/metrics.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* From one fast decode step to a very long request: each bound about 2.2 times the one before. */
static const double bounds_s[] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300};
enum { N_BOUNDS = XD_ARRAY_LEN(bounds_s) };

typedef struct histogram {
    atomic_uint_fast64_t buckets[N_BOUNDS + 1], sum_ns;
} histogram;

struct metrics {
    atomic_uint_fast64_t counters[METRIC_COUNTERS];
    histogram histograms[METRIC_HISTOGRAMS];
};

static const struct {
    const char *name, *label, *help;
} counter_rows[] = {
#define X(id, name, label, help) {name, label, help},
    METRICS_COUNTERS(X)
#undef X
};

static const struct {
    const char *name, *help;
} histogram_rows[] = {
#define X(id, name, help) {name, help},
    METRICS_HISTOGRAMS(X)
#undef X
};

metrics *metrics_new(void)
{
    return calloc(1, sizeof(metrics));
}

void metrics_free(metrics *m)
{
    free(m);
}

void metrics_add(metrics *m, metric_counter c, uint64_t n)
{
    atomic_fetch_add_explicit(&m->counters[c], n, memory_order_relaxed); /* stands alone: see the header */
}

uint64_t metrics_get(const metrics *m, metric_counter c)
{
    return atomic_load_explicit(&m->counters[c], memory_order_relaxed);
}

void metrics_observe_ns(metrics *m, metric_histogram h, uint64_t ns)
{
    double s = (double)ns * 1e-9;
    size_t i = 0;
    while (i < N_BOUNDS && s > bounds_s[i])
        i++;
    atomic_fetch_add_explicit(&m->histograms[h].buckets[i], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&m->histograms[h].sum_ns, ns, memory_order_relaxed);
}

void metrics_head(xd_buf *out, const char *name, const char *kind, const char *help)
{
    xd_buf_printf(out, "# HELP expertd_%s %s\n# TYPE expertd_%s %s\n", name, help, name, kind);
}

void metrics_sample(xd_buf *out, const char *name, const char *label, double value)
{
    xd_buf_printf(out, "expertd_%s%s%s%s %.17g\n", name, label[0] ? "{" : "", label, label[0] ? "}" : "", value);
}

static bool is_seconds(const char *name)
{
    return strstr(name, "_seconds_total") != NULL;
}

static void print_histogram(const histogram *h, const char *name, const char *help, xd_buf *out)
{
    uint64_t n = 0;
    metrics_head(out, name, "histogram", help);
    for (size_t i = 0; i <= N_BOUNDS; i++) {
        n += atomic_load_explicit(&h->buckets[i], memory_order_relaxed);
        if (i < N_BOUNDS)
            xd_buf_printf(out, "expertd_%s_bucket{le=\"%g\"} %llu\n", name, bounds_s[i], (unsigned long long)n);
        else
            xd_buf_printf(out, "expertd_%s_bucket{le=\"+Inf\"} %llu\n", name, (unsigned long long)n);
    }
    double sum = (double)atomic_load_explicit(&h->sum_ns, memory_order_relaxed) * 1e-9;
    xd_buf_printf(out, "expertd_%s_sum %.9g\nexpertd_%s_count %llu\n", name, sum, name, (unsigned long long)n);
}

void metrics_print(const metrics *m, xd_buf *out)
{
    for (size_t i = 0; i < METRIC_COUNTERS; i++) {
        if (i == 0 || strcmp(counter_rows[i].name, counter_rows[i - 1].name) != 0)
            metrics_head(out, counter_rows[i].name, "counter", counter_rows[i].help);
        double v = (double)metrics_get(m, (metric_counter)i);
        metrics_sample(out, counter_rows[i].name, counter_rows[i].label,
                       is_seconds(counter_rows[i].name) ? v * 1e-9 : v);
    }
    for (size_t i = 0; i < METRIC_HISTOGRAMS; i++)
        print_histogram(&m->histograms[i], histogram_rows[i].name, histogram_rows[i].help, out);
}
