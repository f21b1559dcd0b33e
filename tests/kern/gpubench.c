/* gpubench.c - the CUDA operations at the layer geometry of Qwen3-30B-A3B: bits first, then times.
 *
 *   gpubench [check|trunk|time|experts|misses [q8_0|bf16]]   nothing: check and time; trunk: the checks without experts; only times:
 *   gpubench linear FORMAT                                   experts (up to 32 tokens), misses (one token's, some on the host), linear
 *   gpubench attention f16|q8_0                              with such a KV cache: bits and times
 *   gpubench delta                                           Gated DeltaNet and attention of Qwen3-Next: bits and times
 *
 * Exit 77: no GPU. The checks compare what must be equal bit by bit: host against VRAM pages, streamed against tiled kernels, one token alone
 * against a batch, decode against prefill attention, and pages kept by fill-through. Times come from recorded graphs, with
 * weights of several layers in turn so that no cache holds them. */
#include "kernels/kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>

#define D_MODEL   2048u
#define D_FF      768u
#define N_EXPERTS 128u
#define TOP_K     8u
#define PAGE      (2u << 20)
#define MAX_TOK   16384u
#define LAYERS    2u

static kern_dev *dev;
static uint64_t rng = 88172645463325252ull;
static int failed;

static void ok(kern_status st, const char *what)
{
    if (st == KERN_OK)
        return;
    printf("FAILED %s: status %d, %s\n", what, (int)st, dev->ops->error(dev));
    fflush(stdout);
    exit(1);
}

static uint64_t next(void)
{
    rng ^= rng << 13;
    rng ^= rng >> 7;
    rng ^= rng << 17;
    return rng;
}

static void *room(uint64_t bytes)
{
    void *p = NULL;
    ok(dev->ops->alloc(dev, bytes, &p), "alloc");
    return p;
}

static void *put(const void *src, uint64_t bytes)
{
    void *p = room(bytes);
    ok(dev->ops->upload(dev, p, src, bytes), "upload");
    ok(dev->ops->sync(dev), "upload");
    return p;
}

static void get(void *dst, const void *src, uint64_t bytes)
{
    ok(dev->ops->download(dev, dst, src, bytes), "download");
    ok(dev->ops->sync(dev), "sync");
}

static void *big(uint64_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        exit(1);
    madvise(p, bytes, MADV_HUGEPAGE);
    return p;
}

static float *floats(size_t n, float scale)
{
    float *x = big((n * 4 + 4095) & ~4095ull);
    for (size_t i = 0; i < n; i++)
        x[i] = ((float)(next() >> 40) / 8388608.0f - 1.0f) * scale;
    return x;
}

static void weights(uint8_t *w, uint64_t bytes, kern_fmt fmt)
{
    if (fmt == FMT_Q8_0) {
        for (uint64_t at = 0; at + 34 <= bytes; at += 34) {
            uint64_t r[4] = {next(), next(), next(), next()};
            memcpy(w + at + 2, r, 32);
            w[at] = (uint8_t)(r[0] >> 3);
            w[at + 1] = 0x0c; /* about 2.5e-4 */
        }
    } else {
        for (uint64_t at = 0; at + 8 <= bytes; at += 8) {
            uint64_t r = (next() & 0x80ff80ff80ff80ffull) | 0x3c003c003c003c00ull; /* 0.008 .. 0.03 */
            memcpy(w + at, &r, 8);
        }
    }
}

/* What is recorded between the two runs `turns` times, the first not counted: seconds of one of its `reps` repetitions. */
static void record(void)
{
    ok(dev->ops->graph_begin(dev), "graph");
    ok(dev->ops->mark(dev, 0), "mark");
}

static double replay(uint32_t reps, uint32_t turns)
{
    kern_graph *g;
    uint64_t sum = 0, ns;
    ok(dev->ops->mark(dev, 1), "mark");
    ok(dev->ops->graph_end(dev, &g), "graph");
    for (uint32_t turn = 0; turn < turns; turn++) {
        ok(dev->ops->graph_launch(dev, g), "graph");
        ok(dev->ops->sync(dev), "sync");
        ok(dev->ops->mark_ns(dev, 0, 1, &ns), "mark");
        sum += turn ? ns : 0;
    }
    dev->ops->graph_free(dev, g);
    return (double)sum * 1e-9 / (reps * (turns - 1));
}

/* --- experts ------------------------------------------------------------------------------------------------------------ */

typedef struct experts {
    kern_expert_geom g;
    uint8_t *host, *vram;
    uint64_t layer_bytes, expert_bytes;
    uint64_t *addr_host[LAYERS], *addr_vram[LAYERS]; /* device tables */
} experts;

static experts load(kern_fmt fmt)
{
    experts e = {.g = {.fmt = {fmt, fmt, fmt}, .d_model = D_MODEL, .d_ff = D_FF}};
    for (int m = 0; m < 3; m++) {
        uint32_t rows = m == 2 ? D_MODEL : D_FF;
        e.g.row_bytes[m] = kern_row_bytes(fmt, m == 2 ? D_FF : D_MODEL);
        e.g.page_rows[m] = PAGE / (uint32_t)e.g.row_bytes[m];
        e.g.page_rows[m] = e.g.page_rows[m] > rows ? rows : e.g.page_rows[m] / 16 * 16;
        e.g.first_page[m] = e.g.pages;
        e.g.pages += (rows + e.g.page_rows[m] - 1) / e.g.page_rows[m];
        e.expert_bytes += rows * e.g.row_bytes[m];
    }
    e.layer_bytes = e.expert_bytes * N_EXPERTS;
    e.host = big(LAYERS * e.layer_bytes);
    /* one expert's bytes are random; the others are that, rotated by whole blocks, which fills gigabytes in time */
    weights(e.host, e.expert_bytes, fmt);
    uint64_t block = kern_fmt_get(fmt).block_bytes * 16;
    for (uint32_t i = 1; i < LAYERS * N_EXPERTS; i++) {
        uint64_t cut = (next() % (e.expert_bytes / block)) * block;
        memcpy(e.host + i * e.expert_bytes, e.host + cut, e.expert_bytes - cut);
        memcpy(e.host + (i + 1) * e.expert_bytes - cut, e.host, cut);
    }
    uint64_t addr;
    e.vram = put(e.host, LAYERS * e.layer_bytes); /* before it is registered in pieces, which no copy may span */
    ok(dev->ops->host_register(dev, e.host, LAYERS * e.layer_bytes, false, &addr), "host_register");
    uint64_t *t = malloc(N_EXPERTS * e.g.pages * 8);
    for (uint32_t side = 0; side < 2; side++)
        for (uint32_t l = 0; l < LAYERS; l++) {
            for (uint32_t x = 0; x < N_EXPERTS; x++) {
                uint64_t at = (side ? (uint64_t)(uintptr_t)e.vram : addr) + l * e.layer_bytes + x * e.expert_bytes;
                for (int m = 0; m < 3; m++)
                    for (uint32_t p = 0, rows = m == 2 ? D_MODEL : D_FF; p * e.g.page_rows[m] < rows; p++)
                        t[x * e.g.pages + e.g.first_page[m] + p] = at +
                                                                   (m ? D_FF * e.g.row_bytes[0] * (uint64_t)m : 0) +
                                                                   p * e.g.page_rows[m] * e.g.row_bytes[m];
            }
            *(side ? &e.addr_vram[l] : &e.addr_host[l]) = put(t, N_EXPERTS * e.g.pages * 8);
        }
    free(t);
    return e;
}

static void unload(experts *e)
{
    dev->ops->host_unregister(dev, e->host);
    munmap(e->host, LAYERS * e->layer_bytes);
    dev->ops->free(dev, e->vram);
}

typedef struct batch {
    uint32_t n, touched;
    kern_plan_args plan;
    kern_moe_args moe;
    float *y0;
} batch;

static batch new_batch(const experts *e, uint32_t n, const float *x)
{
    batch b = {.n = n};
    uint32_t *ids = malloc(n * TOP_K * 4);
    float *w = malloc(n * TOP_K * 4);
    bool seen[N_EXPERTS] = {false};
    for (uint32_t t = 0; t < n; t++)
        for (uint32_t k = 0; k < TOP_K; k++) {
            bool again = true;
            while (again) {
                ids[t * TOP_K + k] = (uint32_t)(next() % N_EXPERTS);
                again = false;
                for (uint32_t j = 0; j < k; j++)
                    again = again || ids[t * TOP_K + j] == ids[t * TOP_K + k];
            }
            w[t * TOP_K + k] = 0.125f + 0.01f * (float)k;
            b.touched += !seen[ids[t * TOP_K + k]];
            seen[ids[t * TOP_K + k]] = true;
        }
    b.plan = (kern_plan_args){.ids = put(ids, n * TOP_K * 4), .n_tokens = n, .top_k = TOP_K, .n_experts = N_EXPERTS};
    b.plan.expert_start = room((N_EXPERTS + 1) * 4);
    b.plan.expert_count = room(N_EXPERTS * 4);
    b.plan.pairs = room(n * TOP_K * 4);
    b.moe = (kern_moe_args){.x = put(x, (uint64_t)n * D_MODEL * 4), .ids = b.plan.ids, .geom = e->g, .n_tokens = n};
    b.moe.y = room((uint64_t)n * D_MODEL * 4);
    b.moe.weights = put(w, n * TOP_K * 4);
    b.moe.expert_start = b.plan.expert_start;
    b.moe.pairs = b.plan.pairs;
    b.moe.arena_begin = (uint64_t)(uintptr_t)e->vram;
    b.moe.arena_end = b.moe.arena_begin + LAYERS * e->layer_bytes;
    b.moe.top_k = TOP_K;
    b.moe.n_experts = N_EXPERTS;
    b.moe.scratch = room(dev->ops->moe_scratch_bytes(dev, n, TOP_K, &e->g));
    free(ids);
    free(w);
    ok(dev->ops->plan(dev, &b.plan), "plan");
    return b;
}

static void free_batch(batch *b)
{
    void *p[] = {(void *)b->plan.ids,    b->plan.expert_start, b->plan.expert_count,
                 b->plan.pairs,          (void *)b->moe.x,     b->moe.y,
                 (void *)b->moe.weights, b->moe.scratch};
    for (size_t i = 0; i < sizeof p / sizeof *p; i++)
        dev->ops->free(dev, p[i]);
}

static float *moe_result(kern_dev *d, batch *b, const uint64_t *addr, const uint64_t *fill)
{
    float *y = malloc((uint64_t)b->n * D_MODEL * 4);
    b->moe.page_addr = addr;
    b->moe.fill_addr = fill;
    ok(d->ops->clear(d, b->moe.y, (uint64_t)b->n * D_MODEL * 4), "clear");
    ok(d->ops->moe(d, &b->moe), "moe");
    ok(d->ops->sync(d), "moe");
    get(y, b->moe.y, (uint64_t)b->n * D_MODEL * 4);
    b->moe.fill_addr = NULL;
    return y;
}

static void same(const char *what, const float *p, const float *q, size_t n)
{
    size_t bad = 0, first = 0;
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        if (memcmp(p + i, q + i, 4) != 0 && bad++ == 0)
            first = i;
        sum += (double)p[i] * p[i];
    }
    if (bad) {
        failed++;
        printf("DIFFERENT %s: %zu of %zu, first at %zu: %g %g\n", what, bad, n, first, (double)p[first],
               (double)q[first]);
    } else {
        printf("same bits: %s (%zu values, rms %.3g)\n", what, n, n ? __builtin_sqrt(sum / (double)n) : 0);
    }
    fflush(stdout);
}

static float weight(const uint8_t *row, uint32_t i, kern_fmt fmt)
{
    if (fmt == FMT_Q8_0) {
        const kern_q8_0_block *q = (const kern_q8_0_block *)row + i / 32;
        __extension__ _Float16 h;
        memcpy(&h, &q->d, 2);
        return (float)h * (float)q->qs[i % 32];
    }
    uint32_t u = (uint32_t)((const uint16_t *)row)[i] << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

/* Rows of one token in double precision. */
static void reference(const experts *e, const float *x, const uint32_t *ids, const float *w, double *y)
{
    memset(y, 0, D_MODEL * sizeof *y);
    for (uint32_t k = 0; k < TOP_K; k++) {
        const uint8_t *base = e->host + ids[k] * e->expert_bytes;
        double act[D_FF];
        for (uint32_t r = 0; r < D_FF; r++) {
            double s[2] = {0, 0};
            for (int m = 0; m < 2; m++) {
                const uint8_t *row = base + (m * D_FF + r) * e->g.row_bytes[0];
                for (uint32_t i = 0; i < D_MODEL; i++)
                    s[m] += (double)weight(row, i, e->g.fmt[0]) * (double)x[i];
            }
            act[r] = s[0] / (1 + __builtin_exp(-s[0])) * s[1];
        }
        for (uint32_t r = 0; r < D_MODEL; r++) {
            const uint8_t *row = base + 2 * D_FF * e->g.row_bytes[0] + r * e->g.row_bytes[2];
            double s = 0;
            for (uint32_t i = 0; i < D_FF; i++)
                s += (double)weight(row, i, e->g.fmt[0]) * act[i];
            y[r] += (double)w[k] * s;
        }
    }
}

static void check_moe(const experts *e, kern_dev *stream_only, const float *x)
{
    char what[128];
    for (uint32_t n = 1; n <= 2048; n = n == 1 ? 24 : n == 24 ? 300 : n == 300 ? 2048 : 9999) {
        batch b = new_batch(e, n, x);
        float *v = moe_result(dev, &b, e->addr_vram[0], NULL), *h = moe_result(dev, &b, e->addr_host[0], NULL);
        float *s = moe_result(stream_only, &b, e->addr_vram[0], NULL);
        const char *f = kern_fmt_get(e->g.fmt[0]).name;
        snprintf(what, sizeof what, "%s %u tokens, host and VRAM", f, n);
        same(what, v, h, (size_t)n * D_MODEL);
        snprintf(what, sizeof what, "%s %u tokens, tiled and streamed", f, n);
        same(what, v, s, (size_t)n * D_MODEL);
        /* mixed: every other expert in VRAM */
        uint64_t *a = malloc(N_EXPERTS * e->g.pages * 8), *c = malloc(N_EXPERTS * e->g.pages * 8);
        get(a, e->addr_vram[0], N_EXPERTS * e->g.pages * 8);
        get(c, e->addr_host[0], N_EXPERTS * e->g.pages * 8);
        for (uint32_t i = 0; i < N_EXPERTS * e->g.pages; i++)
            if (next() & 1)
                a[i] = c[i];
        uint64_t *mixed = put(a, N_EXPERTS * e->g.pages * 8);
        /* fill-through of all host pages of the touched experts into slots of their own */
        uint64_t slots = N_EXPERTS * e->g.pages, *fill = calloc(slots, 8);
        uint8_t *arena = room(slots * PAGE);
        uint32_t start[N_EXPERTS + 1];
        get(start, b.plan.expert_start, sizeof start);
        for (uint32_t i = 0; i < slots; i++)
            if (a[i] == c[i] && start[i / e->g.pages + 1] > start[i / e->g.pages])
                fill[i] = (uint64_t)(uintptr_t)arena + (uint64_t)i * PAGE;
        uint64_t *fill_dev = put(fill, slots * 8);
        float *m = moe_result(dev, &b, mixed, NULL), *m2 = moe_result(dev, &b, mixed, fill_dev);
        snprintf(what, sizeof what, "%s %u tokens, mixed tiers", f, n);
        same(what, v, m, (size_t)n * D_MODEL);
        snprintf(what, sizeof what, "%s %u tokens, with fill-through", f, n);
        same(what, v, m2, (size_t)n * D_MODEL);
        uint8_t *page = malloc(PAGE);
        uint32_t bad = 0, filled = 0;
        for (uint32_t i = 0; i < slots; i++) {
            if (!fill[i] || filled >= 200)
                continue;
            filled++;
            uint32_t pg = i % e->g.pages, mat = pg >= e->g.first_page[2] ? 2 : pg >= e->g.first_page[1] ? 1 : 0;
            uint32_t first = (pg - e->g.first_page[mat]) * e->g.page_rows[mat], rows = mat == 2 ? D_MODEL : D_FF;
            rows = rows - first < e->g.page_rows[mat] ? rows - first : e->g.page_rows[mat];
            get(page, (void *)(uintptr_t)fill[i], PAGE);
            bad += memcmp(page, (void *)(uintptr_t)c[i], rows * e->g.row_bytes[mat]) != 0;
        }
        printf("%s %u tokens: %u pages filled, %u wrong\n", f, n, filled, bad);
        failed += bad != 0;
        /* the first token alone */
        batch one = b;
        one.n = 1;
        one.plan.n_tokens = one.moe.n_tokens = 1;
        uint32_t ids[TOP_K];
        float w[TOP_K];
        get(ids, b.plan.ids, sizeof ids);
        get(w, b.moe.weights, sizeof w);
        ok(dev->ops->plan(dev, &one.plan), "plan");
        float *y = moe_result(dev, &one, e->addr_vram[0], NULL);
        snprintf(what, sizeof what, "%s %u tokens, the first alone", f, n);
        same(what, v, y, D_MODEL);
        double ref[D_MODEL], err = 0, norm = 0;
        reference(e, x, ids, w, ref);
        for (uint32_t i = 0; i < D_MODEL; i++) {
            err += (ref[i] - (double)y[i]) * (ref[i] - (double)y[i]);
            norm += ref[i] * ref[i];
        }
        err = __builtin_sqrt(err / norm);
        printf("%s relative error against double precision: %.2e\n", f, err);
        failed += !(err < 1e-4);
        dev->ops->free(dev, mixed);
        dev->ops->free(dev, fill_dev);
        dev->ops->free(dev, arena);
        free(a), free(c), free(fill), free(page), free(v), free(h), free(s), free(m), free(m2), free(y);
        free_batch(&b);
    }
}

/* Addresses of a layer's pages, those of some experts on the host. */
static uint64_t *mixed_pages(const experts *e, uint32_t layer, const bool *on_host)
{
    const uint64_t bytes = (uint64_t)N_EXPERTS * e->g.pages * 8;
    uint64_t *table = malloc(bytes), *host = malloc(bytes);
    get(table, e->addr_vram[layer], bytes);
    get(host, e->addr_host[layer], bytes);
    for (uint32_t i = 0; i < N_EXPERTS * e->g.pages; i++)
        if (on_host[i / e->g.pages])
            table[i] = host[i];
    uint64_t *ret = put(table, bytes);
    free(table), free(host);
    return ret;
}

static double layer_seconds(batch *b, uint64_t *const *pages, uint32_t reps, uint32_t turns)
{
    record();
    for (uint32_t r = 0; r < reps; r++) {
        b->moe.page_addr = pages[r % LAYERS];
        ok(dev->ops->moe(dev, &b->moe), "moe");
    }
    return replay(reps, turns);
}

static void time_moe(const experts *e, const float *x, uint32_t max_tokens)
{
    double host_gbps = 0, vram_gbps = 0;
    ok(dev->ops->probe_read(dev, (uint64_t)(uintptr_t)e->host, e->layer_bytes, &host_gbps), "probe");
    ok(dev->ops->probe_read(dev, (uint64_t)(uintptr_t)e->vram, LAYERS * e->layer_bytes, &vram_gbps), "probe");
    printf("%s: link %.1f GB/s, VRAM %.0f GB/s\n", kern_fmt_get(e->g.fmt[0]).name, host_gbps, vram_gbps);
    uint64_t *mixed[LAYERS];
    bool odd[N_EXPERTS];
    for (uint32_t i = 0; i < N_EXPERTS; i++)
        odd[i] = i % 2;
    for (uint32_t l = 0; l < LAYERS; l++)
        mixed[l] = mixed_pages(e, l, odd);
    static const char *const sides[] = {"host", "VRAM", "half"};
    static const uint32_t sizes[] = {1, 2, 4, 8, 32, 64, 256, 512, 2048, 16384};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes && sizes[i] <= max_tokens; i++)
        for (int side = 0; side < 3; side++) {
            batch b = new_batch(e, sizes[i], x);
            uint64_t *const *addr = side == 2 ? mixed : side ? e->addr_vram : e->addr_host;
            uint32_t start[N_EXPERTS + 1], n_host = side ? 0 : b.touched;
            get(start, b.plan.expert_start, sizeof start);
            for (uint32_t x1 = 1; side == 2 && x1 < N_EXPERTS; x1 += 2)
                n_host += start[x1 + 1] > start[x1];
            uint32_t reps = sizes[i] > 256 ? 2 : side == 1 ? 32 : 8;
            double s = layer_seconds(&b, addr, reps, 2);
            double bytes = (double)b.touched * (double)e->expert_bytes, host = n_host * (double)e->expert_bytes;
            double flop = 2.0 * 3 * D_MODEL * D_FF * TOP_K * b.n;
            double bound =
                host / host_gbps > (bytes - host) / vram_gbps ? host / host_gbps : (bytes - host) / vram_gbps;
            printf("moe %-5s %5u tokens %3u experts %s %9.1f us %7.1f GB/s, bound %8.1f us: %5.1f%%, %6.1f TFLOP/s\n",
                   kern_fmt_get(e->g.fmt[0]).name, b.n, b.touched, sides[side], s * 1e6, bytes / s * 1e-9, bound * 1e-3,
                   bound * 1e-7 / s, flop / s * 1e-12);
            fflush(stdout);
            free_batch(&b);
        }
    for (uint32_t l = 0; l < LAYERS; l++)
        dev->ops->free(dev, mixed[l]);
}

/* One token, 0 to 8 of its experts on the host: what a layer takes beyond what the link needs for them. */
static void time_misses(const experts *e, const float *x)
{
    double host_gbps = 0;
    ok(dev->ops->probe_read(dev, (uint64_t)(uintptr_t)e->host, LAYERS * e->layer_bytes, &host_gbps), "probe");
    printf("%s: link %.1f GB/s\n", kern_fmt_get(e->g.fmt[0]).name, host_gbps);
    batch b = new_batch(e, 1, x);
    uint32_t ids[TOP_K];
    bool on_host[N_EXPERTS] = {false};
    get(ids, b.plan.ids, sizeof ids);
    for (uint32_t n = 0; n <= TOP_K; n++) {
        uint64_t *mixed[LAYERS];
        if (n)
            on_host[ids[n - 1]] = true;
        for (uint32_t l = 0; l < LAYERS; l++)
            mixed[l] = mixed_pages(e, l, on_host);
        double s = layer_seconds(&b, mixed, 32, 6), link = n * (double)e->expert_bytes / host_gbps * 1e-3;
        printf("misses %-5s %u of %u on the host: %7.1f us, the link's part %7.1f, more %5.1f, %5.1f%%\n",
               kern_fmt_get(e->g.fmt[0]).name, n, TOP_K, s * 1e6, link, s * 1e6 - link, link * 1e-4 / s);
        fflush(stdout);
        for (uint32_t l = 0; l < LAYERS; l++)
            dev->ops->free(dev, mixed[l]);
    }
    free_batch(&b);
}

/* --- linear ------------------------------------------------------------------------------------------------------------- */

static void time_linear(kern_fmt fmt, const float *x)
{
    static const struct {
        const char *name;
        uint32_t rows, cols, max_tokens;
    } shapes[] = {{"qkv", 5120, 2048, MAX_TOK},
                  {"out", 2048, 4096, MAX_TOK / 2},
                  {"router", 128, 2048, MAX_TOK},
                  {"head", 151936, 2048, 32}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const uint32_t copies = shapes[i].rows > 100000 ? 1 : 8;
        uint64_t one = shapes[i].rows * kern_row_bytes(fmt, shapes[i].cols);
        uint8_t *w = big((one + 4095) & ~4095ull);
        weights(w, one, fmt);
        uint8_t *dw = room(one * copies);
        for (uint32_t c = 0; c < copies; c++)
            ok(dev->ops->upload(dev, dw + c * one, w, one), "upload");
        float *dx = put(x, (uint64_t)MAX_TOK * D_MODEL * 4);
        for (uint32_t n = 1; n <= shapes[i].max_tokens; n *= n == 8 ? 4 : 8) {
            float *y = room((uint64_t)n * shapes[i].rows * 4);
            kern_linear_args a = {
                .y = y, .x = dx, .n_tokens = n, .x_stride = shapes[i].cols, .y_stride = shapes[i].rows};
            a.w = (kern_mat){dw, kern_row_bytes(fmt, shapes[i].cols), shapes[i].rows, shapes[i].cols, fmt};
            uint32_t reps = n > 256 ? 2 : 16;
            record();
            for (uint32_t r = 0; r < reps; r++) {
                a.w.data = dw + r % copies * one;
                ok(dev->ops->linear(dev, &a), "linear");
            }
            double s = replay(reps, 2);
            printf("linear %-5s %-6s %5u tokens %9.1f us %7.1f GB/s %6.1f TFLOP/s\n", kern_fmt_get(fmt).name,
                   shapes[i].name, n, s * 1e6, (double)one / s * 1e-9,
                   2.0 * shapes[i].rows * shapes[i].cols * n / s * 1e-12);
            fflush(stdout);
            dev->ops->free(dev, y);
        }
        dev->ops->free(dev, dw);
        dev->ops->free(dev, dx);
        munmap(w, (one + 4095) & ~4095ull);
    }
}

/* --- attention and the small ones ------------------------------------------------------------------------------------------ */

#define KV_BLOCK 16u

typedef struct head_shape {
    uint32_t heads, kv_heads, dim, rot;
} head_shape;
static const head_shape wide_heads = {16, 2, 256, 64}; /* of Qwen3-Next's attention, between layers of Gated DeltaNet */
static const head_shape narrow_heads = {32, 4, 128, 128};
static head_shape attn_heads;
static kern_fmt kv_fmt = FMT_F16;

typedef struct attn {
    kern_attn_args a;
    void *blocks;
    uint32_t *seq_start;
} attn;

/* n_seqs sequences of `context` cached positions; the last `each` of every one ask. */
static attn new_attn(uint32_t n_seqs, uint32_t context, uint32_t each)
{
    attn t = {.a = {.qkv_stride = (attn_heads.heads + 2 * attn_heads.kv_heads) * attn_heads.dim,
                    .n_heads = attn_heads.heads,
                    .scale = 0.0884f,
                    .max_context = context}};
    uint32_t per_seq = (context + KV_BLOCK - 1) / KV_BLOCK, n = n_seqs * each;
    uint64_t block_bytes = 2ull * attn_heads.kv_heads * KV_BLOCK * kern_row_bytes(kv_fmt, attn_heads.dim),
             blocks = (uint64_t)per_seq * n_seqs;
    uint8_t *kv = big((blocks * block_bytes + 4095) & ~4095ull);
    if (kv_fmt == FMT_Q8_0)
        weights(kv, blocks * block_bytes, kv_fmt);
    for (uint64_t i = 1; kv_fmt == FMT_Q8_0 && i < blocks * block_bytes; i += sizeof(kern_q8_0_block))
        kv[i] = 0x20; /* scales of 0.008 */
    for (uint64_t i = 0; kv_fmt == FMT_F16 && i < blocks * block_bytes / 8; i++) {
        uint64_t r = (next() & 0x83ff83ff83ff83ffull) | 0x3800380038003800ull; /* halves of 0.5 .. 1 */
        memcpy(kv + i * 8, &r, 8);
    }
    t.blocks = put(kv, blocks * block_bytes);
    munmap(kv, (blocks * block_bytes + 4095) & ~4095ull);
    uint64_t *addr = malloc(blocks * 8);
    uint32_t *table = malloc(blocks * 4), *seq = malloc(n * 4), *pos = malloc(n * 4);
    for (uint64_t i = 0; i < blocks; i++) {
        addr[i] = (uint64_t)(uintptr_t)t.blocks + i * block_bytes;
        table[i] = (uint32_t)i;
    }
    t.seq_start = malloc((n_seqs + 1) * 4);
    for (uint32_t s = 0; s <= n_seqs; s++)
        t.seq_start[s] = s * each;
    for (uint32_t i = 0; i < n; i++) {
        seq[i] = i / each;
        pos[i] = context - each + i % each;
    }
    float *q = floats((size_t)n * t.a.qkv_stride, 2);
    t.a.qkv = put(q, (uint64_t)n * t.a.qkv_stride * 4);
    munmap(q, ((uint64_t)n * t.a.qkv_stride * 4 + 4095) & ~4095ull);
    t.a.o = room((uint64_t)n * attn_heads.heads * attn_heads.dim * 4);
    t.a.token_seq = put(seq, n * 4);
    t.a.token_pos = put(pos, n * 4);
    t.a.n_tokens = n;
    t.a.n_seqs = n_seqs;
    t.a.seq_start = t.seq_start;
    t.a.kv = (kern_kv){.block_addr = put(addr, blocks * 8),
                       .block_table = put(table, blocks * 4),
                       .max_blocks = per_seq,
                       .block_size = KV_BLOCK,
                       .layer_bytes = block_bytes,
                       .n_kv_heads = attn_heads.kv_heads,
                       .head_dim = attn_heads.dim,
                       .fmt = kv_fmt};
    t.a.scratch = room(dev->ops->attn_scratch_bytes(dev, n, attn_heads.heads, attn_heads.dim, context));
    free(addr), free(table), free(seq), free(pos);
    return t;
}

static void free_attn(attn *t)
{
    void *p[] = {t->blocks,
                 (void *)t->a.qkv,
                 t->a.o,
                 (void *)t->a.token_seq,
                 (void *)t->a.token_pos,
                 (void *)t->a.kv.block_addr,
                 (void *)t->a.kv.block_table,
                 t->a.scratch};
    for (size_t i = 0; i < sizeof p / sizeof *p; i++)
        dev->ops->free(dev, p[i]);
    free(t->seq_start);
}

static void check_attention(void)
{
    for (uint32_t context = 70; context <= 1400; context = context * 2 + 13) {
        attn t = new_attn(2, context, 60);
        size_t n = (size_t)t.a.n_tokens * attn_heads.heads * attn_heads.dim;
        float *prefill = malloc(n * 4), *decode = malloc(n * 4), *alone = malloc(n * 4);
        ok(dev->ops->attention(dev, &t.a), "attention");
        get(prefill, t.a.o, n * 4);
        t.a.n_seqs = t.a.n_tokens; /* looks like a batch of decoding sequences */
        ok(dev->ops->attention(dev, &t.a), "attention");
        get(decode, t.a.o, n * 4);
        kern_attn_args one = t.a;
        one.n_tokens = one.n_seqs = 1;
        for (uint32_t i = 0; i < t.a.n_tokens; i++) {
            one.qkv = t.a.qkv + (size_t)i * t.a.qkv_stride;
            one.o = t.a.o + (size_t)i * attn_heads.heads * attn_heads.dim;
            one.token_seq = t.a.token_seq + i;
            one.token_pos = t.a.token_pos + i;
            ok(dev->ops->attention(dev, &one), "attention");
        }
        get(alone, t.a.o, n * 4);
        char what[96];
        snprintf(what, sizeof what, "attention of %u columns in %s, context %u, prefill and decode", attn_heads.dim,
                 kern_fmt_get(kv_fmt).name, context);
        same(what, prefill, decode, n);
        snprintf(what, sizeof what, "attention of %u columns in %s, context %u, alone and in a batch", attn_heads.dim,
                 kern_fmt_get(kv_fmt).name, context);
        same(what, decode, alone, n);
        free(prefill), free(decode), free(alone);
        free_attn(&t);
    }
}

/* Decoding tokens whose heads are made by attention itself, against the same by rope_kv before it. */
static void check_rope_attention(void)
{
    static const uint32_t shapes[][3] = {
        {1, 1, 0},   {1, 64, 0},     {1, 65, 0},   {1, 129, 0},    {1, 513, 0},
        {3, 700, 0}, {2, 1300, 100}, {40, 130, 0}, {40, 1300, 700}}; /* the last: window */
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        attn t = new_attn(shapes[i][0], shapes[i][1], 1);
        t.a.window = shapes[i][2];
        const size_t n = (size_t)t.a.n_tokens * attn_heads.heads * attn_heads.dim,
                     qkv = (size_t)t.a.n_tokens * t.a.qkv_stride * 4,
                     kv = (size_t)t.a.kv.max_blocks * t.a.n_tokens * t.a.kv.layer_bytes;
        float *norm = floats(2 * attn_heads.dim, 1), *alone = malloc(n * 4), *fused = malloc(n * 4);
        for (uint32_t j = attn_heads.dim; j < 2 * attn_heads.dim; j++)
            norm[j] = 1.0f / (float)(1 + j * j);
        float *norm_dev = put(norm, 2 * attn_heads.dim * 4);
        void *qkv0 = malloc(qkv), *kv0 = malloc(kv), *kv_alone = malloc(kv), *kv_fused = malloc(kv);
        get(qkv0, t.a.qkv, qkv);
        get(kv0, t.blocks, kv);
        kern_rope_kv_args r = {.qkv = (float *)(uintptr_t)t.a.qkv,
                               .q_norm = norm_dev,
                               .k_norm = norm_dev,
                               .norm_eps = 1e-6f,
                               .inv_freq = norm_dev + attn_heads.dim,
                               .rope_scale = 1,
                               .rot_dim = attn_heads.rot,
                               .token_seq = t.a.token_seq,
                               .token_pos = t.a.token_pos,
                               .n_tokens = t.a.n_tokens,
                               .n_heads = attn_heads.heads,
                               .kv = t.a.kv};
        t.a.one_each = true;
        t.a.rope = &r;
        for (int again = 0; again < 2; again++) /* the second time behind a kernel that still runs */
            ok(dev->ops->attention(dev, &t.a), "attention");
        get(fused, t.a.o, n * 4);
        get(kv_fused, t.blocks, kv);
        ok(dev->ops->upload(dev, r.qkv, qkv0, qkv), "upload");
        ok(dev->ops->upload(dev, t.blocks, kv0, kv), "upload");
        ok(dev->ops->rope_kv(dev, &r), "rope_kv");
        t.a.rope = NULL;
        ok(dev->ops->attention(dev, &t.a), "attention");
        get(alone, t.a.o, n * 4);
        get(kv_alone, t.blocks, kv);
        char what[96];
        snprintf(what, sizeof what, "attention of %u columns in %s with rotation, %u of context %u", attn_heads.dim,
                 kern_fmt_get(kv_fmt).name, shapes[i][0], shapes[i][1]);
        same(what, alone, fused, n);
        if (memcmp(kv_alone, kv_fused, kv)) {
            printf("DIFFERENT: K and V of %s\n", what);
            failed++;
        }
        free(alone), free(fused), free(qkv0), free(kv0), free(kv_alone), free(kv_fused);
        dev->ops->free(dev, norm_dev);
        munmap(norm, 4096);
        free_attn(&t);
    }
}

static void time_attention(void)
{
    static const uint32_t shapes[][3] = {{1, 128, 1},   {1, 600, 1},   {1, 4096, 1},    {1, 32768, 1},  {32, 600, 1},
                                         {32, 2048, 1}, {256, 600, 1}, {1, 2048, 2048}, {8, 2048, 2048}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        attn t = new_attn(shapes[i][0], shapes[i][1], shapes[i][2]);
        uint32_t reps = shapes[i][2] > 1 ? 2 : 16;
        record();
        for (uint32_t r = 0; r < reps; r++)
            ok(dev->ops->attention(dev, &t.a), "attention");
        double s = replay(reps, 2);
        double pairs = (double)t.a.n_tokens * (shapes[i][2] > 1 ? shapes[i][1] / 2.0 : shapes[i][1]);
        printf("attention of %u columns in %s %3u x %5u, %4u asking each: %9.1f us %6.1f TFLOP/s\n", attn_heads.dim,
               kern_fmt_get(kv_fmt).name, shapes[i][0], shapes[i][1], shapes[i][2], s * 1e6,
               pairs * attn_heads.heads * attn_heads.dim * 4 / s * 1e-12);
        fflush(stdout);
        free_attn(&t);
    }
}

/* --- Gated DeltaNet ------------------------------------------------------------------------------------------------------ */

static const kern_delta_geom delta_geom = {.n_k_heads = 16, .n_v_heads = 32, .k_dim = 128, .v_dim = 128, .conv = 4};

typedef struct delta {
    kern_delta_args a;
    uint32_t n_layers, *seq, *pos, *start;
    uint64_t state_bytes; /* of a layer */
    void *memory[10];
} delta;

/* n_seqs runs of `each` tokens, behind position 0; single tokens without runs. */
static delta new_delta(uint32_t n_seqs, uint32_t each, uint32_t n_layers)
{
    const kern_delta_geom *g = &delta_geom;
    const uint32_t n = n_seqs * each, width = kern_delta_width(g), y_width = g->n_v_heads * g->v_dim;
    delta t = {.a = {.n_tokens = n, .x_stride = width, .geom = *g, .norm_eps = 1e-6f, .n_seqs = n_seqs}};
    t.n_layers = n_layers;
    t.seq = malloc(n * 4), t.pos = malloc(n * 4), t.start = malloc((n_seqs + 1) * 4);
    uint32_t *slot = malloc(n_seqs * 4);
    for (uint32_t s = 0; s <= n_seqs; s++)
        t.start[s] = s * each;
    for (uint32_t s = 0; s < n_seqs; s++)
        slot[s] = n_seqs - 1 - s;
    for (uint32_t i = 0; i < n; i++) {
        t.seq[i] = i / each;
        t.pos[i] = 1000 + i % each;
    }
    float *x = floats((size_t)n * width, 1), *w = floats(kern_delta_channels(g) * g->conv, 1);
    for (uint32_t h = 0; h < g->n_v_heads; h++)
        w[h] = -0.1f - w[h] * w[h];
    t.a.slot_bytes = kern_delta_state_floats(g) * 4;
    t.state_bytes = n_seqs * t.a.slot_bytes;
    t.memory[0] = t.a.y = room((uint64_t)n * y_width * 4);
    t.memory[1] = put(x, (uint64_t)n * width * 4);
    t.memory[2] = put(w, (uint64_t)kern_delta_channels(g) * g->conv * 4);
    t.memory[3] = put(t.seq, n * 4);
    t.memory[4] = put(t.pos, n * 4);
    t.memory[5] = put(slot, n_seqs * 4);
    t.memory[6] = put(t.start, (n_seqs + 1) * 4);
    t.memory[7] = t.a.state = room(n_layers * t.state_bytes);
    t.memory[8] = t.a.scratch = room(dev->ops->delta_scratch_bytes(dev, n, g));
    t.a.x = t.memory[1];
    t.a.conv_w = t.a.dt_bias = t.a.norm = t.a.neg_exp_a = t.memory[2];
    t.a.token_seq = t.memory[3];
    t.a.token_pos = t.memory[4];
    t.a.seq_slot = t.memory[5];
    t.a.run_start = each > 1 ? t.memory[6] : NULL;
    ok(dev->ops->clear(dev, t.a.state, n_layers * t.state_bytes), "clear");
    munmap(x, ((uint64_t)n * width * 4 + 4095) & ~4095ull);
    free(slot);
    return t;
}

static void free_delta(delta *t)
{
    for (size_t i = 0; i < sizeof t->memory / sizeof *t->memory; i++)
        dev->ops->free(dev, t->memory[i]);
    free(t->seq), free(t->pos), free(t->start);
}

/* Tokens [from, to) of each of two sequences, whose rows lie where they lie in t. */
static void delta_part(const delta *t, uint32_t each, uint32_t from, uint32_t to)
{
    for (uint32_t s = 0; s < 2; s++) {
        kern_delta_args a = t->a;
        const uint32_t at = s * each + from, start[2] = {0, to - from};
        a.n_tokens = to - from;
        a.x += (uint64_t)at * a.x_stride;
        a.y += (uint64_t)at * a.geom.n_v_heads * a.geom.v_dim;
        a.token_seq += at;
        a.token_pos += at;
        a.n_seqs = 1;
        if (a.n_tokens > 1)
            ok(dev->ops->upload(dev, (void *)(uintptr_t)a.run_start, start, sizeof start), "upload");
        else
            a.run_start = NULL;
        ok(dev->ops->delta(dev, &a), "delta");
    }
}

static void check_delta(void)
{
    static const uint32_t parts[] = {1100, 1, 2, 1000, 7, 190}; /* of 2300 tokens */
    const uint32_t each = 2300;
    const size_t n = 2ull * each * delta_geom.n_v_heads * delta_geom.v_dim,
                 state = 2 * kern_delta_state_floats(&delta_geom);
    float *y[3], *s[3];
    delta t = new_delta(2, each, 1);
    for (int how = 0; how < 3; how++) {
        ok(dev->ops->clear(dev, t.a.state, t.state_bytes), "clear");
        if (how == 0)
            ok(dev->ops->delta(dev, &t.a), "delta");
        for (uint32_t at = 0, i = 0; how && at < each; i++) {
            const uint32_t count = how == 1 ? parts[i] : 1;
            delta_part(&t, each, at, at + count);
            at += count;
        }
        get(y[how] = malloc(n * 4), t.a.y, n * 4);
        get(s[how] = malloc(state * 4), t.a.state, state * 4);
    }
    same("delta, in parts", y[0], y[1], n);
    same("delta, its state in parts", s[0], s[1], state);
    same("delta, token by token", y[0], y[2], n);
    same("delta, its state token by token", s[0], s[2], state);
    for (int how = 0; how < 3; how++)
        free(y[how]), free(s[how]);
    free_delta(&t);
}

/* The floor: each state read and written once, x read and y written once, at VRAM's rate. */
static void time_delta(void)
{
    static const uint32_t shapes[][2] = {{1, 1}, {8, 1}, {32, 1}, {256, 1}, {1, 512}, {1, 2048}, {8, 2048}, {1, 16384}};
    const uint64_t probed = 1ull << 30;
    void *p = room(probed);
    double gbps = 0;
    ok(dev->ops->probe_read(dev, (uint64_t)(uintptr_t)p, probed, &gbps), "probe");
    dev->ops->free(dev, p);
    printf("delta: VRAM %.0f GB/s\n", gbps);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const uint32_t n_seqs = shapes[i][0], each = shapes[i][1], reps = each > 1 ? 2 : 64;
        delta t = new_delta(n_seqs, each, each > 1 ? 1 : n_seqs < 64 ? 64 / n_seqs : 1); /* L2 holds 50 MB */
        void *const state = t.a.state;
        record();
        for (uint32_t r = 0; r < reps; r++) {
            t.a.state = (char *)state + r % t.n_layers * t.state_bytes;
            ok(dev->ops->delta(dev, &t.a), "delta");
        }
        const double s = replay(reps, 4), moved = 2.0 * (double)t.state_bytes;
        const double rows = (double)t.a.n_tokens * (t.a.x_stride + t.a.geom.n_v_heads * t.a.geom.v_dim) * 4;
        printf("delta %3u x %5u tokens: %9.1f us, %7.1f ns a token, floor of the state %5.1f%%, with x and y %5.1f%%\n",
               n_seqs, each, s * 1e6, s * 1e9 / t.a.n_tokens, moved / gbps * 1e-7 / s,
               (moved + rows) / gbps * 1e-7 / s);
        fflush(stdout);
        free_delta(&t);
    }
}

/* --- linear and route ----------------------------------------------------------------------------------------------------- */

static float *linear_rows(kern_linear_args a, uint32_t n, const float *y0)
{
    float *y = malloc((uint64_t)n * a.w.rows * 4);
    a.n_tokens = n;
    ok(dev->ops->upload(dev, a.y, y0, (uint64_t)n * a.w.rows * 4), "upload");
    ok(dev->ops->linear(dev, &a), "linear");
    get(y, a.y, (uint64_t)n * a.w.rows * 4);
    return y;
}

static void check_linear(const float *x)
{
    static const uint32_t shapes[][2] = {{5120, 2048}, {2048, 4096}, {130, 2048}, {4096, 2880}, {200, 96}};
    static const kern_fmt fmts[] = {FMT_Q8_0, FMT_BF16, FMT_F16, FMT_F32};
    for (size_t f = 0; f < 4; f++)
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
            const uint32_t rows = shapes[i][0], cols = shapes[i][1], many = 300;
            uint64_t row_bytes = kern_row_bytes(fmts[f], cols), bytes = rows * row_bytes;
            uint8_t *w = big((bytes + 4095) & ~4095ull);
            weights(w, bytes, fmts[f] == FMT_F32 ? FMT_BF16 : fmts[f]);
            kern_linear_args a = {.w = {put(w, bytes), row_bytes, rows, cols, fmts[f]},
                                  .x = put(x, (uint64_t)many * cols * 4),
                                  .y = room((uint64_t)many * rows * 4),
                                  .x_stride = cols,
                                  .y_stride = rows,
                                  .accumulate = true,
                                  .bias = put(x, rows * 4),
                                  .normed = room((uint64_t)many * cols * 4),
                                  .norm_eps = 1e-6f};
            for (int norm = 0; norm < 2; norm++) {
                a.norm = norm ? put(x + 7, cols * 4) : NULL;
                float *all = linear_rows(a, many, x);
                for (uint32_t n = 1; n <= 32; n = n < 3 ? n + 1 : n == 3 ? 8 : n == 8 ? 20 : n + 12) {
                    float *few = linear_rows(a, n, x);
                    char what[96];
                    snprintf(what, sizeof what, "linear %s %u x %u%s, %u tokens alone", kern_fmt_get(fmts[f]).name,
                             rows, cols, norm ? " with norm" : "", n);
                    same(what, all, few, (size_t)n * rows);
                    free(few);
                }
                free(all);
            }
            void *p[] = {(void *)a.w.data, (void *)a.x, a.y, (void *)a.bias, (void *)a.norm, a.normed};
            for (size_t j = 0; j < sizeof p / sizeof *p; j++)
                dev->ops->free(dev, p[j]);
            munmap(w, (bytes + 4095) & ~4095ull);
        }
}

typedef struct routed {
    uint32_t ids[32 * TOP_K], start[N_EXPERTS + 1], count[N_EXPERTS], pairs[32 * TOP_K];
    float weights[32 * TOP_K];
} routed;

static void check_route(const float *x)
{
    uint64_t row_bytes = kern_row_bytes(FMT_BF16, D_MODEL), bytes = N_EXPERTS * row_bytes;
    uint8_t *w = big(bytes);
    weights(w, bytes, FMT_BF16);
    routed *dr = room(sizeof(routed));
    uint32_t live = 0, *n_live = room(4);
    kern_linear_args logits = {.w = {put(w, bytes), row_bytes, N_EXPERTS, D_MODEL, FMT_BF16},
                               .x = put(x, 32ull * D_MODEL * 4),
                               .y = room(32ull * N_EXPERTS * 4),
                               .x_stride = D_MODEL,
                               .y_stride = N_EXPERTS,
                               .norm = put(x, D_MODEL * 4),
                               .normed = room(32ull * D_MODEL * 4),
                               .norm_eps = 1e-6f};
    kern_router_args pick = {.logits = logits.y,
                             .ids = dr->ids,
                             .weights = dr->weights,
                             .n_experts = N_EXPERTS,
                             .top_k = TOP_K,
                             .norm_topk = true};
    kern_plan_args plan = {.ids = dr->ids,
                           .n_live = n_live,
                           .top_k = TOP_K,
                           .n_experts = N_EXPERTS,
                           .expert_start = dr->start,
                           .pairs = dr->pairs,
                           .expert_count = dr->count};
    for (uint32_t n = 1; n <= 32; n = n == 1 ? 5 : n == 5 ? 8 : n * 2) {
        routed one = {0}, parts = {0};
        logits.n_tokens = pick.n_tokens = plan.n_tokens = n;
        live = n > 1 ? n - 1 : 1;
        ok(dev->ops->upload(dev, n_live, &live, 4), "upload");
        ok(dev->ops->clear(dev, dr, sizeof *dr), "clear");
        ok(dev->ops->route(dev, &logits, &pick, &plan, NULL), "route");
        get(&one, dr, sizeof one);
        ok(dev->ops->clear(dev, dr, sizeof *dr), "clear");
        ok(dev->ops->linear(dev, &logits), "linear");
        ok(dev->ops->router(dev, &pick), "router");
        ok(dev->ops->plan(dev, &plan), "plan");
        get(&parts, dr, sizeof parts);
        uint32_t bad = memcmp(&one, &parts, sizeof one) != 0, sum = 0;
        for (uint32_t e = 0; e < N_EXPERTS; e++)
            sum += one.count[e];
        printf("route of %u tokens: %s\n", n, bad || sum != live * TOP_K ? "DIFFERENT" : "as by its parts");
        failed += bad || sum != live * TOP_K;
    }
}

#define TIME(name, call)                                                     \
    do {                                                                     \
        record();                                                            \
        for (int r_ = 0; r_ < 32; r_++)                                      \
            ok(call, name);                                                  \
        printf("%-12s %5u tokens %7.2f us\n", name, n, replay(32, 2) * 1e6); \
    } while (0)

static void time_small(const float *x)
{
    float *dx = put(x, (uint64_t)2048 * D_MODEL * 4), *y = room(2048ull * D_MODEL * 8),
          *logits = put(x, 32ull * 151936 * 4);
    uint32_t *ids = room(2048 * 64 * 4), *start = room(4096), *count = room(4096), *pairs = room(2048 * 64 * 4);
    float *w = room(2048 * 64 * 4), *lse = room(4096);
    for (uint32_t n = 1; n <= 2048; n = n == 1 ? 32 : n == 32 ? 2048 : 9999) {
        kern_rmsnorm_args rn = {.y = y, .x = dx, .weight = dx, .n_tokens = n, .dim = D_MODEL, .eps = 1e-6f};
        TIME("rmsnorm", dev->ops->rmsnorm(dev, &rn));
        kern_router_args ro = {
            .logits = dx, .ids = ids, .weights = w, .n_tokens = n, .n_experts = N_EXPERTS, .top_k = TOP_K};
        TIME("router", dev->ops->router(dev, &ro));
        kern_plan_args pl = {.ids = ids,
                             .n_tokens = n,
                             .top_k = TOP_K,
                             .n_experts = N_EXPERTS,
                             .expert_start = start,
                             .pairs = pairs,
                             .expert_count = count};
        TIME("plan", dev->ops->plan(dev, &pl));
        if (n <= 32) {
            kern_argmax_args am = {.logits = logits, .ids = ids, .n_tokens = n, .vocab = 151936};
            TIME("argmax", dev->ops->argmax(dev, &am));
            kern_top_logits_args tl = {
                .logits = logits, .ids = ids, .values = w, .logsumexp = lse, .n_tokens = n, .vocab = 151936};
            TIME("top_logits", dev->ops->top_logits(dev, &tl));
        }
    }
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    bool check = argc < 2 || strcmp(mode, "check") == 0, times = argc < 2 || strcmp(mode, "time") == 0;
    bool trunk = strcmp(mode, "trunk") == 0, few = strcmp(mode, "experts") == 0, misses = strcmp(mode, "misses") == 0;
    bool linear = strcmp(mode, "linear") == 0, delta_only = strcmp(mode, "delta") == 0;
    const bool attention_only = strcmp(mode, "attention") == 0;
    kern_options opt = {.numa_node = -1}, no_tile = {.numa_node = -1, .disable = "cuda_tile"};
    char why[512];
    kern_dev *stream_only;
    if (kern_cuda_open(&opt, &dev, why, sizeof why) != KERN_OK ||
        kern_cuda_open(&no_tile, &stream_only, why, sizeof why) != KERN_OK) {
        printf("skipped: %s\n", why);
        return 77;
    }
    kern_dev_info info;
    dev->ops->info(dev, &info);
    printf("%s (%s), %u units, NUMA node %d, %s\n", info.name, info.rows, info.n_units, info.numa_node,
           info.pci_bus_id);
    float *x = floats((size_t)MAX_TOK * D_MODEL, 1);
    static const kern_fmt kv_fmts[] = {FMT_Q8_0, FMT_F16}; /* which it stays */
    for (int i = 0; i < 2; i++) {
        kv_fmt = kv_fmts[i];
        const bool asked = attention_only && argc > 2 && strcasecmp(argv[2], kern_fmt_get(kv_fmt).name) == 0;
        for (int wide = 0; wide < 2; wide++) {
            attn_heads = wide ? wide_heads : narrow_heads;
            const bool of_delta = wide && delta_only;
            if (check || trunk || asked || of_delta) {
                check_attention();
                check_rope_attention();
            }
            if (times || asked || of_delta)
                time_attention();
        }
    }
    if (check || trunk) {
        check_linear(x);
        check_route(x);
    }
    if (times)
        time_small(x);
    if (check || trunk || delta_only)
        check_delta();
    if (times || delta_only)
        time_delta();
    for (kern_fmt f = FMT_F32; argc > 2 && linear && f < FMT_COUNT; f++)
        if (strcasecmp(argv[2], kern_fmt_get(f).name) == 0)
            time_linear(f, x);
    static const kern_fmt fmts[] = {FMT_Q8_0, FMT_BF16};
    for (int i = 0; i < 2 && !trunk && !linear && !delta_only && !attention_only; i++) {
        if (argc > 2 && strcasecmp(argv[2], kern_fmt_get(fmts[i]).name) != 0)
            continue;
        experts e = load(fmts[i]);
        if (check)
            check_moe(&e, stream_only, x);
        if (few || times)
            time_moe(&e, x, few ? 32 : MAX_TOK);
        if (misses)
            time_misses(&e, x);
        if (times)
            time_linear(fmts[i], x);
        unload(&e);
    }
    stream_only->ops->close(stream_only);
    dev->ops->close(dev);
    if (check || trunk || delta_only || attention_only)
        printf("%d failed\n", failed);
    return failed ? 1 : 0;
}
