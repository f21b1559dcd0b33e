/* bench.c - kerncheck --bench: rates of a backend's operations beside the rate at which it reads memory. */
#include "tests/kern/kc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The geometry of Qwen3-30B-A3B: 128 experts of 768 x 2048, 8 a token. */
#define D_MODEL   2048
#define D_FF      768
#define N_EXPERTS 128
#define TOP_K     8

static void *room(kern_dev *d, uint64_t bytes, bool pattern)
{
    void *p = NULL;
    if (d->ops->alloc(d, bytes, &p) != KERN_OK) {
        fprintf(stderr, "kerncheck: %s\n", d->ops->error(d));
        exit(1);
    }
    /* Touch it all; 0x11 bytes are small finite numbers in every format. */
    if (pattern) {
        uint64_t chunk = (uint64_t)16 << 20;
        char *host = malloc(chunk);
        if (!host)
            exit(1);
        memset(host, 0x11, chunk);
        for (uint64_t at = 0; at < bytes; at += chunk)
            (void)!d->ops->upload(d, (char *)p + at, host, KC_MIN(chunk, bytes - at));
        (void)!d->ops->sync(d);
        free(host);
    } else {
        (void)!d->ops->clear(d, p, bytes);
    }
    return p;
}

static uint64_t elapsed_ns(kern_dev *d)
{
    uint64_t ns = 1;
    if (d->ops->mark(d, 1) != KERN_OK || d->ops->sync(d) != KERN_OK || d->ops->mark_ns(d, 0, 1, &ns) != KERN_OK)
        return 1;
    return ns ? ns : 1;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double probe(kern_dev *d)
{
    uint64_t bytes = (uint64_t)1 << 30;
    void *p = room(d, bytes, true);
    double best = 0, gbps = 0;
    for (int i = 0; i < 5; i++)
        if (d->ops->probe_read(d, (uint64_t)(uintptr_t)p, bytes, &gbps) == KERN_OK && gbps > best)
            best = gbps;
    d->ops->free(d, p);
    return best;
}

static void bench_linear(kern_dev *d, kern_fmt fmt, uint32_t n_tokens, double read_gbps)
{
    uint32_t rows = 65536, cols = D_MODEL;
    if (n_tokens > 1)
        rows = 8192;
    kern_mat w = {.row_bytes = kern_row_bytes(fmt, cols), .rows = rows, .cols = cols, .fmt = fmt};
    uint64_t bytes = rows * w.row_bytes;
    void *data = room(d, bytes, true);
    w.data = data;
    kern_linear_args a = {.w = w, .n_tokens = n_tokens, .x_stride = cols, .y_stride = rows};
    a.x = room(d, (uint64_t)n_tokens * cols * 4, true);
    a.y = room(d, (uint64_t)n_tokens * rows * 4, false);
    const uint64_t scratch = d->ops->linear_scratch_bytes(d, n_tokens, cols);
    a.scratch = scratch ? room(d, scratch, false) : NULL;
    uint64_t best = UINT64_MAX;
    for (int i = 0; i < (n_tokens == 1 ? 6 : 2); i++) {
        if (d->ops->mark(d, 0) != KERN_OK || d->ops->linear(d, &a) != KERN_OK)
            return;
        uint64_t ns = elapsed_ns(d);
        best = KC_MIN(best, ns);
    }
    double gbps = (double)bytes / (double)best, gflops = 2.0 * rows * cols * n_tokens / (double)best;
    printf("  linear %-5s %4u tokens: %7.2f GB/s of weights (%3.0f %% of the probe), %7.1f GFLOP/s\n",
           kern_fmt_get(fmt).name, n_tokens, gbps, 100 * gbps / read_gbps, gflops);
    d->ops->free(d, data);
    d->ops->free(d, (void *)(uintptr_t)a.x);
    d->ops->free(d, a.y);
    if (a.scratch)
        d->ops->free(d, a.scratch);
}

static void bench_moe(kern_dev *d, kern_fmt fmt, uint32_t n_tokens)
{
    kern_expert_geom g = {.fmt = {fmt, fmt, fmt}, .d_model = D_MODEL, .d_ff = D_FF};
    uint64_t expert_bytes = 0, at[3];
    for (uint32_t m = 0; m < 3; m++) {
        g.row_bytes[m] = kern_row_bytes(fmt, m == 2 ? D_FF : D_MODEL);
        g.page_rows[m] = (uint32_t)KC_MIN((2u << 20) / g.row_bytes[m], (uint64_t)(m == 2 ? D_MODEL : D_FF));
        g.first_page[m] = g.pages;
        g.pages += ((m == 2 ? D_MODEL : D_FF) + g.page_rows[m] - 1) / g.page_rows[m];
        at[m] = expert_bytes;
        expert_bytes += g.row_bytes[m] * (m == 2 ? D_MODEL : D_FF);
    }
    uint8_t *weights = room(d, expert_bytes * N_EXPERTS, true);
    uint64_t *addr = calloc((size_t)N_EXPERTS * g.pages, sizeof *addr);
    uint32_t *ids = malloc((size_t)n_tokens * TOP_K * sizeof *ids);
    if (!addr || !ids)
        exit(1);
    for (uint32_t e = 0; e < N_EXPERTS; e++)
        for (uint32_t m = 0; m < 3; m++)
            for (uint32_t r = 0, p = g.first_page[m]; r < (m == 2 ? D_MODEL : D_FF); r += g.page_rows[m], p++)
                addr[e * g.pages + p] = (uint64_t)(uintptr_t)(weights + e * expert_bytes + at[m] + r * g.row_bytes[m]);

    kern_moe_args a = {.geom = g, .n_tokens = n_tokens, .top_k = TOP_K, .n_experts = N_EXPERTS};
    kern_plan_args p = {.n_tokens = n_tokens, .top_k = TOP_K, .n_experts = N_EXPERTS};
    void *page_addr = room(d, (uint64_t)N_EXPERTS * g.pages * 8, false);
    void *dev_ids = room(d, (uint64_t)n_tokens * TOP_K * 4, false);
    (void)!d->ops->upload(d, page_addr, addr, (uint64_t)N_EXPERTS * g.pages * 8);
    a.page_addr = page_addr;
    a.ids = p.ids = dev_ids;
    a.x = room(d, (uint64_t)n_tokens * D_MODEL * 4, true);
    a.y = room(d, (uint64_t)n_tokens * D_MODEL * 4, false);
    a.weights = room(d, (uint64_t)n_tokens * TOP_K * 4, true);
    a.scratch = room(d, d->ops->moe_scratch_bytes(d, n_tokens, TOP_K, N_EXPERTS, &g), false);
    a.expert_start = p.expert_start = room(d, (N_EXPERTS + 1) * 4, false);
    a.pairs = p.pairs = room(d, (uint64_t)n_tokens * TOP_K * 4, false);
    p.expert_count = room(d, N_EXPERTS * 4, false);

    enum { MAX_STEPS = 64 };
    double rate[MAX_STEPS], share[MAX_STEPS];
    uint32_t n_touched = 0, steps = n_tokens < 16 ? MAX_STEPS : 3;
    for (uint32_t step = 0; step < steps; step++) {
        bool touched[N_EXPERTS] = {0};
        for (uint32_t i = 0; i < n_tokens * TOP_K; i++) { /* a token's are distinct: 11 is odd */
            ids[i] = (step * TOP_K * 5 + i / TOP_K * 37 + i % TOP_K * 11) % N_EXPERTS;
            touched[ids[i]] = true;
        }
        n_touched = 0;
        for (uint32_t e = 0; e < N_EXPERTS; e++)
            n_touched += touched[e];
        (void)!d->ops->upload(d, dev_ids, ids, (uint64_t)n_tokens * TOP_K * 4);
        if (d->ops->plan(d, &p) != KERN_OK || d->ops->mark(d, 0) != KERN_OK || d->ops->moe(d, &a) != KERN_OK)
            return;
        rate[step] = (double)(n_touched * expert_bytes) / (double)elapsed_ns(d);
        /* The limit beside each step: on a shared machine it moves. */
        double limit;
        if (d->ops->probe_read(d, (uint64_t)(uintptr_t)weights, expert_bytes * (N_EXPERTS / 4), &limit) != KERN_OK)
            return;
        share[step] = rate[step] / limit;
    }
    qsort(rate, steps, sizeof *rate, by_value);
    qsort(share, steps, sizeof *share, by_value);
    double gflops = 6.0 * D_MODEL * D_FF * TOP_K * n_tokens * rate[steps / 2] / (double)(n_touched * expert_bytes);
    printf(
        "  experts %-4s %4u tokens: %6.2f GB/s of weights (median step; best %.2f; %3.0f %% of probe_read), %7.1f GFLOP/s\n",
        kern_fmt_get(fmt).name, n_tokens, rate[steps / 2], rate[steps - 1], 100 * share[steps / 2], gflops);
    void *all[] = {weights,   page_addr,      dev_ids, (void *)(uintptr_t)a.x, a.y, (void *)(uintptr_t)a.weights,
                   a.scratch, p.expert_start, p.pairs, p.expert_count};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        d->ops->free(d, all[i]);
    free(addr);
    free(ids);
}

static void bench_attention(kern_dev *d, kern_fmt fmt, uint32_t context, uint32_t n_tokens)
{
    enum { HEADS = 32, KV_HEADS = 4, HD = 128, BLOCK = 32 };
    uint32_t n_blocks = (context + BLOCK - 1) / BLOCK;
    kern_kv kv = {.max_blocks = n_blocks, .block_size = BLOCK, .n_kv_heads = KV_HEADS, .head_dim = HD, .fmt = fmt};
    kv.layer_bytes = 2ull * KV_HEADS * BLOCK * kern_row_bytes(fmt, HD);
    uint8_t *cache = room(d, n_blocks * kv.layer_bytes, true);
    uint64_t *addr = malloc(n_blocks * sizeof *addr);
    uint32_t *table = malloc(n_blocks * sizeof *table), *pos = malloc(n_tokens * sizeof *pos);
    if (!addr || !table || !pos)
        exit(1);
    for (uint32_t i = 0; i < n_blocks; i++) {
        addr[i] = (uint64_t)(uintptr_t)(cache + i * kv.layer_bytes);
        table[i] = i;
    }
    for (uint32_t t = 0; t < n_tokens; t++)
        pos[t] = context - n_tokens + t;
    void *dev_addr = room(d, n_blocks * 8, false), *dev_table = room(d, n_blocks * 4, false),
         *dev_pos = room(d, n_tokens * 4, false);
    (void)!d->ops->upload(d, dev_addr, addr, n_blocks * 8);
    (void)!d->ops->upload(d, dev_table, table, n_blocks * 4);
    (void)!d->ops->upload(d, dev_pos, pos, n_tokens * 4);
    kv.block_addr = dev_addr;
    kv.block_table = dev_table;
    kern_attn_args a = {.qkv_stride = (HEADS + 2 * KV_HEADS) * HD,
                        .n_tokens = n_tokens,
                        .n_heads = HEADS,
                        .max_context = context,
                        .scale = 0.088f,
                        .kv = kv};
    a.token_seq = room(d, n_tokens * 4, false);
    a.token_pos = dev_pos;
    a.qkv = room(d, (uint64_t)n_tokens * a.qkv_stride * 4, true);
    a.o = room(d, (uint64_t)n_tokens * HEADS * HD * 4, false);
    a.scratch = room(d, d->ops->attn_scratch_bytes(d, n_tokens, HEADS, HD, context), false);
    uint64_t best = UINT64_MAX;
    for (int i = 0; i < 3; i++) {
        if (d->ops->mark(d, 0) != KERN_OK || d->ops->attention(d, &a) != KERN_OK)
            return;
        uint64_t ns = elapsed_ns(d);
        best = KC_MIN(best, ns);
    }
    double gflops = 4.0 * HEADS * HD * n_tokens * (context - n_tokens / 2.0) / (double)best;
    printf("  attention %-4s %4u tokens, context %6u: %9.1f us, %6.2f GB/s of KV, %7.1f GFLOP/s\n",
           kern_fmt_get(fmt).name, n_tokens, context, (double)best / 1e3,
           (double)(n_blocks * kv.layer_bytes) / (double)best, gflops);
    void *all[] = {cache, dev_addr, dev_table, dev_pos, (void *)(uintptr_t)a.token_seq, (void *)(uintptr_t)a.qkv,
                   a.o,   a.scratch};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        d->ops->free(d, all[i]);
    free(addr);
    free(table);
    free(pos);
}

void kc_bench(kern_dev *d, const char *only)
{
    kern_dev_info info;
    d->ops->info(d, &info);
    double gbps = probe(d);
    printf("%s, %u workers\n  rows: %s\n  probe_read: %.2f GB/s over 1 GiB\n", info.name, info.n_units, info.rows,
           gbps);
    static const kern_fmt formats[] = {FMT_BF16, FMT_Q8_0, FMT_MXFP4, FMT_Q4_K, FMT_Q6_K, FMT_F16, FMT_F32};
    static const uint32_t tokens[] = {1, 8, 512};
    bool scalar = strstr(info.rows, "dot_bf16_ref");
    for (size_t f = 0; f < sizeof formats / sizeof *formats; f++)
        for (size_t t = 0; t < 3; t++) {
            if (scalar && (tokens[t] > 1 || f > 1))
                continue; /* it would take minutes */
            if (!only || strcmp(only, "linear") == 0)
                bench_linear(d, formats[f], tokens[t], gbps);
            if (formats[f] != FMT_F16 && formats[f] != FMT_F32 && (!only || strcmp(only, "moe") == 0))
                bench_moe(d, formats[f], tokens[t]);
        }
    static const kern_fmt kv_formats[] = {FMT_F32, FMT_F16, FMT_Q8_0};
    for (size_t f = 0; f < sizeof kv_formats / sizeof *kv_formats && (!only || strcmp(only, "attention") == 0); f++) {
        bench_attention(d, kv_formats[f], 4096, 1);
        bench_attention(d, kv_formats[f], 32768, 1);
        if (!scalar)
            bench_attention(d, kv_formats[f], 2048, 512);
    }
    fflush(stdout);
}
