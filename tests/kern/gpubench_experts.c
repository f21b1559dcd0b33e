/* gpubench_experts.c - routed experts: host against VRAM pages, tiled against streamed kernels, pages kept by fill-through; times by where they lie. */
#include "gpubench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define D_FF   768u
#define PAGE   (2u << 20)
#define LAYERS 2u

struct gb_experts {
    kern_expert_geom g;
    uint8_t *host, *vram;
    uint64_t layer_bytes, expert_bytes;
    uint64_t *addr_host[LAYERS], *addr_vram[LAYERS]; /* device tables */
};

static void lay_out(gb_experts *e, kern_fmt fmt)
{
    *e = (gb_experts){.g = {.fmt = {fmt, fmt, fmt}, .d_model = D_MODEL, .d_ff = D_FF}};
    for (int m = 0; m < 3; m++) {
        uint32_t rows = m == 2 ? D_MODEL : D_FF;
        e->g.row_bytes[m] = kern_row_bytes(fmt, m == 2 ? D_FF : D_MODEL);
        e->g.page_rows[m] = PAGE / (uint32_t)e->g.row_bytes[m];
        e->g.page_rows[m] = e->g.page_rows[m] > rows ? rows : e->g.page_rows[m] / 16 * 16;
        e->g.first_page[m] = e->g.pages;
        e->g.pages += (rows + e->g.page_rows[m] - 1) / e->g.page_rows[m];
        e->expert_bytes += rows * e->g.row_bytes[m];
    }
    e->layer_bytes = e->expert_bytes * N_EXPERTS;
}

/* One expert's bytes are random; the others are that, rotated by whole blocks, which fills gigabytes in time. */
static void fill_host(gb_experts *e, kern_fmt fmt)
{
    e->host = gb_big(LAYERS * e->layer_bytes);
    gb_weights(e->host, e->expert_bytes, fmt);
    uint64_t block = kern_fmt_get(fmt).block_bytes * 16;
    for (uint32_t i = 1; i < LAYERS * N_EXPERTS; i++) {
        uint64_t cut = (gb_next() % (e->expert_bytes / block)) * block;
        memcpy(e->host + i * e->expert_bytes, e->host + cut, e->expert_bytes - cut);
        memcpy(e->host + (i + 1) * e->expert_bytes - cut, e->host, cut);
    }
}

/* The table of a layer's pages, on the device, where its experts lie from `base` on. */
static uint64_t *page_table(const gb_experts *e, uint64_t base)
{
    const kern_expert_geom *g = &e->g;
    uint64_t *t = malloc(N_EXPERTS * g->pages * 8);
    for (uint32_t x = 0; x < N_EXPERTS; x++)
        for (int m = 0; m < 3; m++)
            for (uint32_t p = 0, rows = m == 2 ? D_MODEL : D_FF; p * g->page_rows[m] < rows; p++)
                t[x * g->pages + g->first_page[m] + p] = base + x * e->expert_bytes +
                                                         (m ? D_FF * g->row_bytes[0] * (uint64_t)m : 0) +
                                                         p * g->page_rows[m] * g->row_bytes[m];
    uint64_t *ret = gb_put(t, N_EXPERTS * g->pages * 8);
    free(t);
    return ret;
}

gb_experts *gb_experts_load(kern_fmt fmt)
{
    gb_experts *e = malloc(sizeof *e);
    uint64_t addr;
    lay_out(e, fmt);
    fill_host(e, fmt);
    e->vram = gb_put(e->host, LAYERS * e->layer_bytes); /* before it is registered in pieces, which no copy may span */
    gb_ok(gb_dev->ops->host_register(gb_dev, e->host, LAYERS * e->layer_bytes, false, &addr), "host_register");
    for (uint32_t l = 0; l < LAYERS; l++) {
        e->addr_host[l] = page_table(e, addr + l * e->layer_bytes);
        e->addr_vram[l] = page_table(e, (uint64_t)(uintptr_t)e->vram + l * e->layer_bytes);
    }
    return e;
}

void gb_experts_free(gb_experts *e)
{
    gb_dev->ops->host_unregister(gb_dev, e->host);
    munmap(e->host, LAYERS * e->layer_bytes);
    gb_dev->ops->free(gb_dev, e->vram);
    for (uint32_t l = 0; l < LAYERS; l++) {
        gb_dev->ops->free(gb_dev, e->addr_host[l]);
        gb_dev->ops->free(gb_dev, e->addr_vram[l]);
    }
    free(e);
}

typedef struct batch {
    uint32_t n, touched;
    kern_plan_args plan;
    kern_moe_args moe;
} batch;

static batch new_batch(const gb_experts *e, uint32_t n, const float *x)
{
    batch b = {.n = n};
    uint32_t *ids = malloc(n * TOP_K * 4);
    float *w = malloc(n * TOP_K * 4);
    bool seen[N_EXPERTS] = {false};
    for (uint32_t t = 0; t < n; t++)
        for (uint32_t k = 0; k < TOP_K; k++) {
            bool again = true;
            while (again) {
                ids[t * TOP_K + k] = (uint32_t)(gb_next() % N_EXPERTS);
                again = false;
                for (uint32_t j = 0; j < k; j++)
                    again = again || ids[t * TOP_K + j] == ids[t * TOP_K + k];
            }
            w[t * TOP_K + k] = 0.125f + 0.01f * (float)k;
            b.touched += !seen[ids[t * TOP_K + k]];
            seen[ids[t * TOP_K + k]] = true;
        }
    b.plan = (kern_plan_args){.ids = gb_put(ids, n * TOP_K * 4), .n_tokens = n, .top_k = TOP_K, .n_experts = N_EXPERTS};
    b.plan.expert_start = gb_room((N_EXPERTS + 1) * 4);
    b.plan.expert_count = gb_room(N_EXPERTS * 4);
    b.plan.pairs = gb_room(n * TOP_K * 4);
    b.moe = (kern_moe_args){.x = gb_put(x, (uint64_t)n * D_MODEL * 4), .ids = b.plan.ids, .geom = e->g, .n_tokens = n};
    b.moe.y = gb_room((uint64_t)n * D_MODEL * 4);
    b.moe.weights = gb_put(w, n * TOP_K * 4);
    b.moe.expert_start = b.plan.expert_start;
    b.moe.pairs = b.plan.pairs;
    b.moe.arena_begin = (uint64_t)(uintptr_t)e->vram;
    b.moe.arena_end = b.moe.arena_begin + LAYERS * e->layer_bytes;
    b.moe.top_k = TOP_K;
    b.moe.n_experts = N_EXPERTS;
    b.moe.scratch = gb_room(gb_dev->ops->moe_scratch_bytes(gb_dev, n, TOP_K, N_EXPERTS, &e->g));
    free(ids);
    free(w);
    gb_ok(gb_dev->ops->plan(gb_dev, &b.plan), "plan");
    return b;
}

static void free_batch(batch *b)
{
    void *p[] = {(void *)b->plan.ids,    b->plan.expert_start, b->plan.expert_count,
                 b->plan.pairs,          (void *)b->moe.x,     b->moe.y,
                 (void *)b->moe.weights, b->moe.scratch};
    for (size_t i = 0; i < sizeof p / sizeof *p; i++)
        gb_dev->ops->free(gb_dev, p[i]);
}

static float *moe_result(kern_dev *d, batch *b, const uint64_t *addr, const uint64_t *fill)
{
    float *y = malloc((uint64_t)b->n * D_MODEL * 4);
    b->moe.page_addr = addr;
    b->moe.fill_addr = fill;
    gb_ok(d->ops->clear(d, b->moe.y, (uint64_t)b->n * D_MODEL * 4), "clear");
    gb_ok(d->ops->moe(d, &b->moe), "moe");
    gb_ok(d->ops->sync(d), "moe");
    gb_get(y, b->moe.y, (uint64_t)b->n * D_MODEL * 4);
    b->moe.fill_addr = NULL;
    return y;
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
static void reference(const gb_experts *e, const float *x, const uint32_t *ids, const float *w, double *y)
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

static void same_moe(const gb_experts *e, const batch *b, const char *what, const float *p, const float *q, uint32_t n)
{
    char text[128];
    snprintf(text, sizeof text, "%s %u tokens, %s", kern_fmt_get(e->g.fmt[0]).name, b->n, what);
    gb_same(text, p, q, (size_t)n * D_MODEL);
}

/* The pages that fill[] names (0: none) are those of the host. */
static void check_filled(const gb_experts *e, const batch *b, const uint64_t *fill, const uint64_t *host)
{
    uint8_t *page = malloc(PAGE);
    uint32_t bad = 0, filled = 0;
    for (uint32_t i = 0; i < N_EXPERTS * e->g.pages; i++) {
        if (!fill[i] || filled >= 200)
            continue;
        filled++;
        uint32_t pg = i % e->g.pages, mat = pg >= e->g.first_page[2] ? 2 : pg >= e->g.first_page[1] ? 1 : 0;
        uint32_t first = (pg - e->g.first_page[mat]) * e->g.page_rows[mat], rows = mat == 2 ? D_MODEL : D_FF;
        rows = rows - first < e->g.page_rows[mat] ? rows - first : e->g.page_rows[mat];
        gb_get(page, (void *)(uintptr_t)fill[i], PAGE);
        bad += memcmp(page, (void *)(uintptr_t)host[i], rows * e->g.row_bytes[mat]) != 0;
    }
    printf("%s %u tokens: %u pages filled, %u wrong\n", kern_fmt_get(e->g.fmt[0]).name, b->n, filled, bad);
    gb_failed += bad != 0;
    free(page);
}

/* Half of the pages in VRAM, then the same with fill-through of all host pages of the touched experts into slots of their own. */
static void check_mixed(const gb_experts *e, batch *b, const float *right)
{
    const uint64_t slots = N_EXPERTS * e->g.pages;
    uint64_t *mixed = malloc(slots * 8), *host = malloc(slots * 8), *fill = calloc(slots, 8);
    gb_get(mixed, e->addr_vram[0], slots * 8);
    gb_get(host, e->addr_host[0], slots * 8);
    for (uint32_t i = 0; i < slots; i++)
        if (gb_next() & 1)
            mixed[i] = host[i];
    uint64_t *mixed_dev = gb_put(mixed, slots * 8);
    uint8_t *arena = gb_room(slots * PAGE);
    uint32_t start[N_EXPERTS + 1];
    gb_get(start, b->plan.expert_start, sizeof start);
    for (uint32_t i = 0; i < slots; i++)
        if (mixed[i] == host[i] && start[i / e->g.pages + 1] > start[i / e->g.pages])
            fill[i] = (uint64_t)(uintptr_t)arena + (uint64_t)i * PAGE;
    uint64_t *fill_dev = gb_put(fill, slots * 8);
    float *y = moe_result(gb_dev, b, mixed_dev, NULL), *y_fill = moe_result(gb_dev, b, mixed_dev, fill_dev);
    same_moe(e, b, "mixed tiers", right, y, b->n);
    same_moe(e, b, "with fill-through", right, y_fill, b->n);
    check_filled(e, b, fill, host);
    gb_dev->ops->free(gb_dev, mixed_dev);
    gb_dev->ops->free(gb_dev, fill_dev);
    gb_dev->ops->free(gb_dev, arena);
    free(mixed), free(host), free(fill), free(y), free(y_fill);
}

/* The first token alone, and against double precision. */
static void check_first(const gb_experts *e, const batch *b, const float *x, const float *right)
{
    batch one = *b;
    one.n = 1;
    one.plan.n_tokens = one.moe.n_tokens = 1;
    uint32_t ids[TOP_K];
    float w[TOP_K];
    gb_get(ids, b->plan.ids, sizeof ids);
    gb_get(w, b->moe.weights, sizeof w);
    gb_ok(gb_dev->ops->plan(gb_dev, &one.plan), "plan");
    float *y = moe_result(gb_dev, &one, e->addr_vram[0], NULL);
    same_moe(e, b, "the first alone", right, y, 1);
    double ref[D_MODEL], err = 0, norm = 0;
    reference(e, x, ids, w, ref);
    for (uint32_t i = 0; i < D_MODEL; i++) {
        err += (ref[i] - (double)y[i]) * (ref[i] - (double)y[i]);
        norm += ref[i] * ref[i];
    }
    err = __builtin_sqrt(err / norm);
    printf("%s relative error against double precision: %.2e\n", kern_fmt_get(e->g.fmt[0]).name, err);
    gb_failed += !(err < 1e-4);
    free(y);
}

void gb_check_moe(const gb_experts *e, kern_dev *stream_only, const float *x)
{
    static const uint32_t sizes[] = {1, 24, 300, 2048};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        batch b = new_batch(e, sizes[i], x);
        float *v = moe_result(gb_dev, &b, e->addr_vram[0], NULL), *h = moe_result(gb_dev, &b, e->addr_host[0], NULL);
        float *s = moe_result(stream_only, &b, e->addr_vram[0], NULL);
        same_moe(e, &b, "host and VRAM", v, h, b.n);
        same_moe(e, &b, "tiled and streamed", v, s, b.n);
        check_mixed(e, &b, v);
        check_first(e, &b, x, v);
        free(v), free(h), free(s);
        free_batch(&b);
    }
}

/* Addresses of a layer's pages, those of some experts on the host. */
static uint64_t *mixed_pages(const gb_experts *e, uint32_t layer, const bool *on_host)
{
    const uint64_t bytes = (uint64_t)N_EXPERTS * e->g.pages * 8;
    uint64_t *table = malloc(bytes), *host = malloc(bytes);
    gb_get(table, e->addr_vram[layer], bytes);
    gb_get(host, e->addr_host[layer], bytes);
    for (uint32_t i = 0; i < N_EXPERTS * e->g.pages; i++)
        if (on_host[i / e->g.pages])
            table[i] = host[i];
    uint64_t *ret = gb_put(table, bytes);
    free(table), free(host);
    return ret;
}

static double layer_seconds(batch *b, uint64_t *const *pages, uint32_t reps, uint32_t turns)
{
    gb_record();
    for (uint32_t r = 0; r < reps; r++) {
        b->moe.page_addr = pages[r % LAYERS];
        gb_ok(gb_dev->ops->moe(gb_dev, &b->moe), "moe");
    }
    return gb_replay(reps, turns);
}

void gb_time_moe(const gb_experts *e, const float *x, uint32_t max_tokens)
{
    double host_gbps = 0, vram_gbps = 0;
    gb_ok(gb_dev->ops->probe_read(gb_dev, (uint64_t)(uintptr_t)e->host, e->layer_bytes, &host_gbps), "probe");
    gb_ok(gb_dev->ops->probe_read(gb_dev, (uint64_t)(uintptr_t)e->vram, LAYERS * e->layer_bytes, &vram_gbps), "probe");
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
            gb_get(start, b.plan.expert_start, sizeof start);
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
        gb_dev->ops->free(gb_dev, mixed[l]);
}

/* One token, 0 to 8 of its experts on the host: what a layer takes beyond what the link needs for them. */
void gb_time_misses(const gb_experts *e, const float *x)
{
    double host_gbps = 0;
    gb_ok(gb_dev->ops->probe_read(gb_dev, (uint64_t)(uintptr_t)e->host, LAYERS * e->layer_bytes, &host_gbps), "probe");
    printf("%s: link %.1f GB/s\n", kern_fmt_get(e->g.fmt[0]).name, host_gbps);
    batch b = new_batch(e, 1, x);
    uint32_t ids[TOP_K];
    bool on_host[N_EXPERTS] = {false};
    gb_get(ids, b.plan.ids, sizeof ids);
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
            gb_dev->ops->free(gb_dev, mixed[l]);
    }
    free_batch(&b);
}
