/* gpubench_trunk.c - products with the trunk's matrices, the router, and the small operations. */
#include "gpubench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

void gb_time_linear(kern_fmt fmt, const float *x)
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
        uint8_t *w = gb_big((one + 4095) & ~4095ull);
        gb_weights(w, one, fmt);
        uint8_t *dw = gb_room(one * copies);
        for (uint32_t c = 0; c < copies; c++)
            gb_ok(gb_dev->ops->upload(gb_dev, dw + c * one, w, one), "upload");
        float *dx = gb_put(x, (uint64_t)MAX_TOK * D_MODEL * 4);
        for (uint32_t n = 1; n <= shapes[i].max_tokens; n *= n == 8 ? 4 : 8) {
            const uint64_t scratch = gb_dev->ops->linear_scratch_bytes(gb_dev, n, shapes[i].cols);
            float *y = gb_room((uint64_t)n * shapes[i].rows * 4);
            kern_linear_args a = {
                .y = y, .x = dx, .n_tokens = n, .x_stride = shapes[i].cols, .y_stride = shapes[i].rows};
            a.w = (kern_mat){dw, kern_row_bytes(fmt, shapes[i].cols), shapes[i].rows, shapes[i].cols, fmt};
            a.scratch = scratch ? gb_room(scratch) : NULL;
            uint32_t reps = n > 256 ? 2 : 16;
            gb_record();
            for (uint32_t r = 0; r < reps; r++) {
                a.w.data = dw + r % copies * one;
                gb_ok(gb_dev->ops->linear(gb_dev, &a), "linear");
            }
            double s = gb_replay(reps, 2);
            printf("linear %-5s %-6s %5u tokens %9.1f us %7.1f GB/s %6.1f TFLOP/s\n", kern_fmt_get(fmt).name,
                   shapes[i].name, n, s * 1e6, (double)one / s * 1e-9,
                   2.0 * shapes[i].rows * shapes[i].cols * n / s * 1e-12);
            fflush(stdout);
            gb_dev->ops->free(gb_dev, y);
            if (a.scratch)
                gb_dev->ops->free(gb_dev, a.scratch);
        }
        gb_dev->ops->free(gb_dev, dw);
        gb_dev->ops->free(gb_dev, dx);
        munmap(w, (one + 4095) & ~4095ull);
    }
}

static float *linear_rows(kern_linear_args a, uint32_t n, const float *y0)
{
    float *y = malloc((uint64_t)n * a.w.rows * 4);
    a.n_tokens = n;
    gb_ok(gb_dev->ops->upload(gb_dev, a.y, y0, (uint64_t)n * a.w.rows * 4), "upload");
    gb_ok(gb_dev->ops->linear(gb_dev, &a), "linear");
    gb_get(y, a.y, (uint64_t)n * a.w.rows * 4);
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
            uint8_t *w = gb_big((bytes + 4095) & ~4095ull);
            gb_weights(w, bytes, fmts[f] == FMT_F32 ? FMT_BF16 : fmts[f]);
            kern_linear_args a = {.w = {gb_put(w, bytes), row_bytes, rows, cols, fmts[f]},
                                  .x = gb_put(x, (uint64_t)many * cols * 4),
                                  .y = gb_room((uint64_t)many * rows * 4),
                                  .x_stride = cols,
                                  .y_stride = rows,
                                  .accumulate = true,
                                  .bias = gb_put(x, rows * 4),
                                  .normed = gb_room((uint64_t)many * cols * 4),
                                  .norm_eps = 1e-6f,
                                  .scratch = gb_room(gb_dev->ops->linear_scratch_bytes(gb_dev, many, cols))};
            for (int norm = 0; norm < 2; norm++) {
                a.norm = norm ? gb_put(x + 7, cols * 4) : NULL;
                float *all = linear_rows(a, many, x);
                for (uint32_t n = 1; n <= 32; n = n < 3 ? n + 1 : n == 3 ? 8 : n == 8 ? 20 : n + 12) {
                    float *few = linear_rows(a, n, x);
                    char what[96];
                    snprintf(what, sizeof what, "linear %s %u x %u%s, %u tokens alone", kern_fmt_get(fmts[f]).name,
                             rows, cols, norm ? " with norm" : "", n);
                    gb_same(what, all, few, (size_t)n * rows);
                    free(few);
                }
                free(all);
            }
            void *p[] = {(void *)a.w.data, (void *)a.x, a.y, (void *)a.bias, (void *)a.norm, a.normed, a.scratch};
            for (size_t j = 0; j < sizeof p / sizeof *p; j++)
                gb_dev->ops->free(gb_dev, p[j]);
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
    uint8_t *w = gb_big(bytes);
    gb_weights(w, bytes, FMT_BF16);
    routed *dr = gb_room(sizeof(routed));
    uint32_t live = 0, *n_live = gb_room(4);
    kern_linear_args logits = {.w = {gb_put(w, bytes), row_bytes, N_EXPERTS, D_MODEL, FMT_BF16},
                               .x = gb_put(x, 32ull * D_MODEL * 4),
                               .y = gb_room(32ull * N_EXPERTS * 4),
                               .x_stride = D_MODEL,
                               .y_stride = N_EXPERTS,
                               .norm = gb_put(x, D_MODEL * 4),
                               .normed = gb_room(32ull * D_MODEL * 4),
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
        gb_ok(gb_dev->ops->upload(gb_dev, n_live, &live, 4), "upload");
        gb_ok(gb_dev->ops->clear(gb_dev, dr, sizeof *dr), "clear");
        gb_ok(gb_dev->ops->route(gb_dev, &logits, &pick, &plan, NULL), "route");
        gb_get(&one, dr, sizeof one);
        gb_ok(gb_dev->ops->clear(gb_dev, dr, sizeof *dr), "clear");
        gb_ok(gb_dev->ops->linear(gb_dev, &logits), "linear");
        gb_ok(gb_dev->ops->router(gb_dev, &pick), "router");
        gb_ok(gb_dev->ops->plan(gb_dev, &plan), "plan");
        gb_get(&parts, dr, sizeof parts);
        uint32_t bad = memcmp(&one, &parts, sizeof one) != 0, sum = 0;
        for (uint32_t e = 0; e < N_EXPERTS; e++)
            sum += one.count[e];
        printf("route of %u tokens: %s\n", n, bad || sum != live * TOP_K ? "DIFFERENT" : "as by its parts");
        gb_failed += bad || sum != live * TOP_K;
    }
}

void gb_check_trunk(const float *x)
{
    check_linear(x);
    check_route(x);
}

#define TIME(name, call)                                                        \
    do {                                                                        \
        gb_record();                                                            \
        for (int r_ = 0; r_ < 32; r_++)                                         \
            gb_ok(call, name);                                                  \
        printf("%-12s %5u tokens %7.2f us\n", name, n, gb_replay(32, 2) * 1e6); \
    } while (0)

void gb_time_small(const float *x)
{
    float *dx = gb_put(x, (uint64_t)2048 * D_MODEL * 4), *y = gb_room(2048ull * D_MODEL * 8),
          *logits = gb_put(x, 32ull * 151936 * 4);
    uint32_t *ids = gb_room(2048 * 64 * 4), *start = gb_room(4096), *count = gb_room(4096),
             *pairs = gb_room(2048 * 64 * 4);
    float *w = gb_room(2048 * 64 * 4), *lse = gb_room(4096);
    for (uint32_t n = 1; n <= 2048; n = n == 1 ? 32 : n == 32 ? 2048 : 9999) {
        kern_rmsnorm_args rn = {.y = y, .x = dx, .weight = dx, .n_tokens = n, .dim = D_MODEL, .eps = 1e-6f};
        TIME("rmsnorm", gb_dev->ops->rmsnorm(gb_dev, &rn));
        kern_router_args ro = {
            .logits = dx, .ids = ids, .weights = w, .n_tokens = n, .n_experts = N_EXPERTS, .top_k = TOP_K};
        TIME("router", gb_dev->ops->router(gb_dev, &ro));
        kern_plan_args pl = {.ids = ids,
                             .n_tokens = n,
                             .top_k = TOP_K,
                             .n_experts = N_EXPERTS,
                             .expert_start = start,
                             .pairs = pairs,
                             .expert_count = count};
        TIME("plan", gb_dev->ops->plan(gb_dev, &pl));
        if (n <= 32) {
            kern_argmax_args am = {.logits = logits, .ids = ids, .n_tokens = n, .vocab = 151936};
            TIME("argmax", gb_dev->ops->argmax(gb_dev, &am));
            kern_top_logits_args tl = {
                .logits = logits, .ids = ids, .values = w, .logsumexp = lse, .n_tokens = n, .vocab = 151936};
            TIME("top_logits", gb_dev->ops->top_logits(gb_dev, &tl));
        }
    }
}
