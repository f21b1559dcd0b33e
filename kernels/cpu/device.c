/* device.c - the CPU backend as a kern_dev: open and close, memory, the stream that is none, time marks, the read probe.
 *
 * Operations run to their end before they return, so there is no stream to order: upload, download and the pager's copies are
 * plain copies, sync has nothing to wait for, and nothing can be recorded. Device memory is ordinary memory. */
#include "kernels/cpu/cpu_priv.h"

#include <numa.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

/* From here on huge pages are asked for: streaming weights through 4 KiB pages costs a TLB miss a row. */
#define HUGE_BYTES  ((uint64_t)2 << 20)
#define ALIGN_BYTES 256
/* Bytes a worker takes at a time in probe_read: some prefetch start-ups long, small enough to end together. */
#define PROBE_CHUNK_BYTES ((uint64_t)1 << 20)
/* A short range is read again until this much time has passed, or the clock and the start of threads would be measured. */
#define PROBE_MIN_NS 20000000u

kern_status cpu_fail(cpu_dev *d, kern_status status, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(d->error, sizeof d->error, fmt, ap);
    va_end(ap);
    return status;
}

uint64_t cpu_now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static void dev_close(kern_dev *dev)
{
    if (!dev)
        return;
    cpu_dev *d = cpu_of(dev);
    pool_free(d->pool);
    free(d);
}

static void processor_name(char *ret, size_t cap)
{
    snprintf(ret, cap, "CPU");
    FILE *f = fopen("/proc/cpuinfo", "re");
    if (!f)
        return;
    char line[256];
    while (fgets(line, sizeof line, f)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !colon)
            continue;
        colon += strspn(colon, ": \t");
        colon[strcspn(colon, "\n")] = '\0';
        snprintf(ret, cap, "%s", colon);
        break;
    }
    fclose(f);
}

static void dev_info(kern_dev *dev, kern_dev_info *ret)
{
    const cpu_dev *d = cpu_of(dev);
    *ret = (kern_dev_info){
        .unified = true,
        .can_register_readonly = true,
        .numa_node = d->numa_node,
        .n_units = pool_count(d->pool),
    };
    processor_name(ret->name, sizeof ret->name);
    memcpy(ret->rows, d->row_names, sizeof ret->rows);
}

static const char *dev_error(kern_dev *dev)
{
    return cpu_of(dev)->error;
}

static kern_status dev_alloc(kern_dev *dev, uint64_t bytes, void **ret)
{
    cpu_dev *d = cpu_of(dev);
    bool huge = bytes >= HUGE_BYTES;
    uint64_t align = huge ? HUGE_BYTES : ALIGN_BYTES;
    void *p = NULL;
    if (bytes > SIZE_MAX - align || posix_memalign(&p, align, bytes ? bytes : 1) != 0)
        return cpu_fail(d, KERN_NOMEM, "no memory for %llu bytes", (unsigned long long)bytes);
    if (huge) {
        /* Both are wishes: without them the memory is only slower. */
        (void)madvise(p, bytes, MADV_HUGEPAGE);
        if (d->numa_node >= 0)
            numa_tonode_memory(p, bytes, d->numa_node);
    }
    *ret = p;
    return KERN_OK;
}

static void dev_free(kern_dev *dev, void *p)
{
    (void)dev;
    free(p);
}

static kern_status dev_host_register(kern_dev *dev, void *p, uint64_t bytes, bool read_only, uint64_t *ret_addr)
{
    (void)dev;
    (void)bytes;
    (void)read_only;
    *ret_addr = (uint64_t)(uintptr_t)p;
    return KERN_OK;
}

static void dev_host_unregister(kern_dev *dev, void *p)
{
    (void)dev;
    (void)p;
}

static kern_status dev_copy(kern_dev *dev, void *dst, const void *src, uint64_t bytes)
{
    (void)dev;
    if (bytes)
        memcpy(dst, src, bytes);
    return KERN_OK;
}

static kern_status dev_clear(kern_dev *dev, void *dst, uint64_t bytes)
{
    (void)dev;
    if (bytes)
        memset(dst, 0, bytes);
    return KERN_OK;
}

static kern_status dev_sync(kern_dev *dev)
{
    (void)dev;
    return KERN_OK;
}

static kern_status dev_graph_begin(kern_dev *dev)
{
    return cpu_fail(cpu_of(dev), KERN_UNSUPPORTED, "the CPU backend cannot record");
}

static kern_status dev_graph_end(kern_dev *dev, kern_graph **ret)
{
    (void)ret;
    return dev_graph_begin(dev);
}

static kern_status dev_graph_launch(kern_dev *dev, kern_graph *g)
{
    (void)g;
    return dev_graph_begin(dev);
}

static kern_status dev_graph_wait(kern_dev *dev)
{
    return dev_graph_begin(dev);
}

static void dev_graph_free(kern_dev *dev, kern_graph *g)
{
    (void)dev;
    (void)g;
}

typedef struct probe {
    const cpu_dev *d;
    const uint8_t *begin;
    uint64_t bytes;
    _Atomic uint64_t sink;
} probe;

static void probe_task(void *ctx, uint32_t task, uint32_t worker)
{
    (void)worker;
    probe *p = ctx;
    uint64_t from = task * PROBE_CHUNK_BYTES;
    p->sink ^= p->d->rows.read(p->begin + from, MIN(PROBE_CHUNK_BYTES, p->bytes - from));
}

static kern_status dev_probe_read(kern_dev *dev, uint64_t addr, uint64_t bytes, double *ret_gbps)
{
    cpu_dev *d = cpu_of(dev);
    uint64_t n_tasks = (bytes + PROBE_CHUNK_BYTES - 1) / PROBE_CHUNK_BYTES;
    if (bytes == 0 || n_tasks > UINT32_MAX)
        return cpu_fail(d, KERN_ARG, "cannot probe %llu bytes", (unsigned long long)bytes);
    probe p = {.d = d, .begin = (const uint8_t *)(uintptr_t)addr, .bytes = bytes};
    uint64_t start_ns = cpu_now_ns(), spent_ns, passes = 0;
    do {
        pool_run(d->pool, (uint32_t)n_tasks, probe_task, &p);
        passes++;
        spent_ns = cpu_now_ns() - start_ns;
    } while (spent_ns < PROBE_MIN_NS);
    *ret_gbps = (double)bytes * (double)passes / (double)spent_ns;
    return KERN_OK;
}

static kern_status dev_mark(kern_dev *dev, uint32_t slot)
{
    if (slot >= KERN_MARKS)
        return cpu_fail(cpu_of(dev), KERN_ARG, "mark %u is beyond the last", slot);
    cpu_of(dev)->marks[slot] = cpu_now_ns();
    return KERN_OK;
}

static kern_status dev_mark_ns(kern_dev *dev, uint32_t a, uint32_t b, uint64_t *ret_ns)
{
    const cpu_dev *d = cpu_of(dev);
    if (a >= KERN_MARKS || b >= KERN_MARKS || d->marks[b] < d->marks[a])
        return cpu_fail(cpu_of(dev), KERN_ARG, "marks %u and %u are not a time", a, b);
    *ret_ns = d->marks[b] - d->marks[a];
    return KERN_OK;
}

static kern_status dev_kv_stage_wait(kern_dev *dev, uint32_t slot)
{
    (void)dev, (void)slot; /* nothing runs behind the caller's back */
    return KERN_OK;
}

static uint64_t dev_linear_scratch_bytes(kern_dev *dev, uint32_t max_tokens, uint32_t cols)
{
    (void)dev, (void)max_tokens, (void)cols;
    return 0;
}

static uint64_t dev_ahead_bytes(kern_dev *dev, uint32_t n_layers, const kern_expert_geom *geom)
{
    (void)dev, (void)n_layers, (void)geom; /* there is no link that could idle */
    return 0;
}

/* As many values as a token has, or some tokens': other threads could not be told of it in the time that it takes. */
static kern_status dev_add(kern_dev *dev, const kern_add_args *a)
{
    (void)dev;
    for (uint64_t i = 0; i < a->n; i++)
        a->y[i] += a->x[i];
    return KERN_OK;
}

static kern_status dev_takes(kern_dev *dev, const kern_shape *s)
{
    cpu_dev *d = cpu_of(dev);
    if (!s->n_kv_heads || s->n_heads % s->n_kv_heads || s->n_heads / s->n_kv_heads > CPU_MAX_GROUP)
        return cpu_fail(d, KERN_UNSUPPORTED, "%u heads over %u KV heads; at most %d can share one", s->n_heads,
                        s->n_kv_heads, CPU_MAX_GROUP);
    if (s->head_dim > CPU_MAX_HEAD_DIM)
        return cpu_fail(d, KERN_UNSUPPORTED, "heads of %u dimensions; at most %d are possible", s->head_dim,
                        CPU_MAX_HEAD_DIM);
    for (uint32_t i = 0; i < s->n_mats; i++)
        if (!kern_cols_fit(s->mats[i].fmt, s->mats[i].cols))
            return cpu_fail(d, KERN_UNSUPPORTED, "a matrix of %u columns in blocks of %u", s->mats[i].cols,
                            kern_fmt_get(s->mats[i].fmt).block_len);
    if (s->delta.n_v_heads && !cpu_delta_takes(&s->delta))
        return cpu_fail(d, KERN_UNSUPPORTED,
                        "linear attention of %u key heads and %u value heads, convolution of %u tokens",
                        s->delta.n_k_heads, s->delta.n_v_heads, s->delta.conv);
    if (s->shortconv.channels && !cpu_shortconv_takes(&s->shortconv))
        return cpu_fail(d, KERN_UNSUPPORTED, "a short convolution of %u tokens", s->shortconv.conv);
    if (s->ssm.n_heads && !cpu_ssm_takes(&s->ssm))
        return cpu_fail(d, KERN_UNSUPPORTED, "Mamba2 of %u heads in %u groups, convolution of %u tokens",
                        s->ssm.n_heads, s->ssm.n_groups, s->ssm.conv);
    if (s->index_heads && !cpu_index_takes(s->index_heads, s->index_dim))
        return cpu_fail(d, KERN_UNSUPPORTED, "an indexer of %u heads of %u columns; at most %d of %d are possible",
                        s->index_heads, s->index_dim, CPU_MAX_GROUP, CPU_MAX_HEAD_DIM);
    return KERN_OK;
}

static const kern_ops cpu_ops = {
    .close = dev_close,
    .info = dev_info,
    .error = dev_error,
    .takes = dev_takes,
    .alloc = dev_alloc,
    .free = dev_free,
    .alloc_host = dev_alloc,
    .free_host = dev_free,
    .host_register = dev_host_register,
    .host_unregister = dev_host_unregister,
    .upload = dev_copy,
    .download = dev_copy,
    .clear = dev_clear,
    .sync = dev_sync,
    .copy_async = dev_copy,
    .copy_wait = dev_sync,
    .graph_begin = dev_graph_begin,
    .graph_end = dev_graph_end,
    .graph_launch = dev_graph_launch,
    .graph_wait = dev_graph_wait,
    .graph_free = dev_graph_free,
    .embed = cpu_embed,
    .rmsnorm = cpu_rmsnorm,
    .layernorm = cpu_layernorm,
    .linear = cpu_linear,
    .linear_heads = cpu_linear_heads,
    .swiglu = cpu_swiglu,
    .qkv_norm = cpu_qkv_norm,
    .rope_kv = cpu_rope_kv,
    .attention = cpu_attention,
    .router = cpu_router,
    .plan = cpu_plan,
    .route = cpu_route,
    .moe = cpu_moe,
    .argmax = cpu_argmax,
    .top_logits = cpu_top_logits,
    .attn_scratch_bytes = cpu_attn_scratch_bytes,
    .moe_scratch_bytes = cpu_moe_scratch_bytes,
    .linear_scratch_bytes = dev_linear_scratch_bytes,
    .delta = cpu_delta,
    .delta_scratch_bytes = cpu_delta_scratch_bytes,
    .shortconv = cpu_shortconv,
    .ssm = cpu_ssm,
    .ssm_scratch_bytes = cpu_ssm_scratch_bytes,
    .gate = cpu_gate,
    .softcap = cpu_softcap,
    .index_rope = cpu_index_rope,
    .index = cpu_index,
    .index_scratch_bytes = cpu_index_scratch_bytes,
    .probe_read = dev_probe_read,
    .mark = dev_mark,
    .mark_ns = dev_mark_ns,
    .kv_stage = cpu_kv_stage,
    .kv_stage_wait = dev_kv_stage_wait,
    .ahead_bytes = dev_ahead_bytes,
    .add = dev_add,
};

kern_status kern_cpu_open(const kern_options *opt, kern_dev **ret)
{
    static const kern_options defaults = {.numa_node = -1};
    if (!opt)
        opt = &defaults;
    cpu_dev *d = calloc(1, sizeof *d);
    if (!d)
        return KERN_NOMEM;
    d->base.ops = &cpu_ops;
    d->numa_node =
        opt->numa_node >= 0 && numa_available() >= 0 && opt->numa_node <= numa_max_node() ? opt->numa_node : -1;
    rows_choose(&d->rows, opt->disable, d->row_names, sizeof d->row_names);
    d->pool = pool_open(opt->n_threads, d->numa_node, opt->helper);
    if (!d->pool) {
        dev_close(&d->base);
        return KERN_NOMEM;
    }
    *ret = &d->base;
    return KERN_OK;
}
