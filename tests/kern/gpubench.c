/* gpubench.c - the CUDA operations at the layer geometry of Qwen3-30B-A3B: bits first, then times.
 *
 *   gpubench [check|trunk|time|experts|misses [q8_0|bf16]]   nothing: check and time; trunk: the checks without experts; only times:
 *   gpubench linear FORMAT                                   experts (up to 32 tokens), misses (one token's, some on the host), linear
 *   gpubench attention f16|q8_0 [COLUMNS]                    with such a KV cache (and heads of so many columns): bits and times
 *   gpubench delta                                           Gated DeltaNet and attention of Qwen3-Next: bits and times
 *
 * Exit 77: no GPU. The checks compare what must be equal bit by bit: host against VRAM pages, streamed against tiled kernels, one token alone
 * against a batch, decode against prefill attention, and pages kept by fill-through. Times come from recorded graphs, with
 * weights of several layers in turn so that no cache holds them. */
#include "gpubench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>

static const gb_heads all_heads[] = {
    {32, 4, 128, 128, 0},
    {16, 2, 256, 64, 0},  /* of Qwen3-Next's attention, between layers of Gated DeltaNet */
    {16, 2, 512, 512, 0}, /* of Gemma 4's layers without a window */
};

kern_dev *gb_dev;
int gb_failed;
static uint64_t rng = 88172645463325252ull;

void gb_ok(kern_status st, const char *what)
{
    if (st == KERN_OK)
        return;
    printf("FAILED %s: status %d, %s\n", what, (int)st, gb_dev->ops->error(gb_dev));
    fflush(stdout);
    exit(1);
}

uint64_t gb_next(void)
{
    rng ^= rng << 13;
    rng ^= rng >> 7;
    rng ^= rng << 17;
    return rng;
}

void *gb_room(uint64_t bytes)
{
    void *p = NULL;
    gb_ok(gb_dev->ops->alloc(gb_dev, bytes, &p), "alloc");
    return p;
}

void *gb_put(const void *src, uint64_t bytes)
{
    void *p = gb_room(bytes);
    gb_ok(gb_dev->ops->upload(gb_dev, p, src, bytes), "upload");
    gb_ok(gb_dev->ops->sync(gb_dev), "upload");
    return p;
}

void gb_get(void *dst, const void *src, uint64_t bytes)
{
    gb_ok(gb_dev->ops->download(gb_dev, dst, src, bytes), "download");
    gb_ok(gb_dev->ops->sync(gb_dev), "sync");
}

void *gb_big(uint64_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        exit(1);
    madvise(p, bytes, MADV_HUGEPAGE);
    return p;
}

float *gb_floats(size_t n, float scale)
{
    float *x = gb_big((n * 4 + 4095) & ~4095ull);
    for (size_t i = 0; i < n; i++)
        x[i] = ((float)(gb_next() >> 40) / 8388608.0f - 1.0f) * scale;
    return x;
}

void gb_weights(uint8_t *w, uint64_t bytes, kern_fmt fmt)
{
    if (fmt == FMT_Q8_0) {
        for (uint64_t at = 0; at + 34 <= bytes; at += 34) {
            uint64_t r[4] = {gb_next(), gb_next(), gb_next(), gb_next()};
            memcpy(w + at + 2, r, 32);
            w[at] = (uint8_t)(r[0] >> 3);
            w[at + 1] = 0x0c; /* about 2.5e-4 */
        }
    } else {
        for (uint64_t at = 0; at + 8 <= bytes; at += 8) {
            uint64_t r = (gb_next() & 0x80ff80ff80ff80ffull) | 0x3c003c003c003c00ull; /* 0.008 .. 0.03 */
            memcpy(w + at, &r, 8);
        }
    }
}

void gb_record(void)
{
    gb_ok(gb_dev->ops->graph_begin(gb_dev), "graph");
    gb_ok(gb_dev->ops->mark(gb_dev, 0), "mark");
}

double gb_replay(uint32_t reps, uint32_t turns)
{
    kern_graph *g;
    uint64_t sum = 0, ns;
    gb_ok(gb_dev->ops->mark(gb_dev, 1), "mark");
    gb_ok(gb_dev->ops->graph_end(gb_dev, &g), "graph");
    for (uint32_t turn = 0; turn < turns; turn++) {
        gb_ok(gb_dev->ops->graph_launch(gb_dev, g), "graph");
        gb_ok(gb_dev->ops->sync(gb_dev), "sync");
        gb_ok(gb_dev->ops->mark_ns(gb_dev, 0, 1, &ns), "mark");
        sum += turn ? ns : 0;
    }
    gb_dev->ops->graph_free(gb_dev, g);
    return (double)sum * 1e-9 / (reps * (turns - 1));
}

void gb_same(const char *what, const float *p, const float *q, size_t n)
{
    size_t bad = 0, first = 0;
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        if (memcmp(p + i, q + i, 4) != 0 && bad++ == 0)
            first = i;
        sum += (double)p[i] * p[i];
    }
    if (bad) {
        gb_failed++;
        printf("DIFFERENT %s: %zu of %zu, first at %zu: %g %g\n", what, bad, n, first, (double)p[first],
               (double)q[first]);
    } else {
        printf("same bits: %s (%zu values, rms %.3g)\n", what, n, n ? __builtin_sqrt(sum / (double)n) : 0);
    }
    fflush(stdout);
}

static bool is_named(const char *arg, kern_fmt f)
{
    return arg && strcasecmp(arg, kern_fmt_get(f).name) == 0;
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "", *format = argc > 2 ? argv[2] : NULL;
    bool check = argc < 2 || strcmp(mode, "check") == 0, times = argc < 2 || strcmp(mode, "time") == 0;
    bool trunk = strcmp(mode, "trunk") == 0, few = strcmp(mode, "experts") == 0, misses = strcmp(mode, "misses") == 0;
    bool linear = strcmp(mode, "linear") == 0, delta_only = strcmp(mode, "delta") == 0;
    const bool attention_only = strcmp(mode, "attention") == 0;
    const uint32_t columns = argc > 3 ? (uint32_t)atoi(argv[3]) : 0;
    kern_options opt = {.numa_node = -1}, no_tile = {.numa_node = -1, .disable = "cuda_tile"};
    char why[512];
    kern_dev *stream_only;
    if (kern_cuda_open(&opt, &gb_dev, why, sizeof why) != KERN_OK ||
        kern_cuda_open(&no_tile, &stream_only, why, sizeof why) != KERN_OK) {
        printf("skipped: %s\n", why);
        return 77;
    }
    kern_dev_info info;
    gb_dev->ops->info(gb_dev, &info);
    printf("%s (%s), %u units, NUMA node %d, %s\n", info.name, info.rows, info.n_units, info.numa_node,
           info.pci_bus_id);
    float *x = gb_floats((size_t)MAX_TOK * D_MODEL, 1);
    static const kern_fmt kv_fmts[] = {FMT_Q8_0, FMT_F16};
    for (int i = 0; i < 2; i++) {
        for (size_t j = 0; j < sizeof all_heads / sizeof *all_heads; j++) {
            gb_heads h = all_heads[j];
            h.fmt = kv_fmts[i];
            const bool asked = attention_only && is_named(format, h.fmt) && (!columns || columns == h.dim);
            const bool of_delta = delta_only && j == 1;
            if (check || trunk || asked || of_delta)
                gb_check_attention(&h);
            if (times || asked || of_delta)
                gb_time_attention(&h);
        }
    }
    if (check || trunk)
        gb_check_trunk(x);
    if (times)
        gb_time_small(x);
    if (check || trunk || delta_only)
        gb_check_delta();
    if (times || delta_only)
        gb_time_delta();
    for (kern_fmt f = FMT_F32; linear && f < FMT_COUNT; f++)
        if (is_named(format, f))
            gb_time_linear(f, x);
    static const kern_fmt fmts[] = {FMT_Q8_0, FMT_BF16};
    for (int i = 0; i < 2 && !trunk && !linear && !delta_only && !attention_only; i++) {
        if (format && !is_named(format, fmts[i]))
            continue;
        gb_experts *e = gb_experts_load(fmts[i]);
        if (check)
            gb_check_moe(e, stream_only, x);
        if (few || times)
            gb_time_moe(e, x, few ? 32 : MAX_TOK);
        if (misses)
            gb_time_misses(e, x);
        if (times)
            gb_time_linear(fmts[i], x);
        gb_experts_free(e);
    }
    stream_only->ops->close(stream_only);
    gb_dev->ops->close(gb_dev);
    if (check || trunk || delta_only || attention_only)
        printf("%d failed\n", gb_failed);
    return gb_failed ? 1 : 0;
}
