/* linear.c - kerncheck's cases of products with matrices: many tokens and few, with a norm before and a bias behind, the smallest numbers, heads. */
#include "tests/kern/kc.h"

#include <math.h>
#include <string.h>

typedef struct linear_case {
    kern_mat w;
    float *x, *bias, *y0, *norm;
    bool accumulate, indexed, no_scratch;
    uint32_t x_pad, y_pad;
} linear_case;

static void run_linear(kc *k, kern_dev *d, const void *cv, const uint32_t *tokens, uint32_t n, float *out)
{
    const linear_case *c = cv;
    kc_run r = kc_begin(k, d);
    uint32_t rows = c->w.rows, cols = c->w.cols;
    kern_linear_args a = {
        .w = kc_put_mat(&r, c->w), .n_tokens = n, .x_stride = cols + c->x_pad, .y_stride = rows + c->y_pad};
    a.accumulate = c->accumulate;
    /* The last row is not padded: nothing may be touched behind it. */
    float *y = KC_NEW(k, (size_t)n * a.y_stride, float), *x = KC_NEW(k, (size_t)(n + 1) * a.x_stride, float);
    uint32_t *idx = KC_NEW(k, n, uint32_t);
    for (uint32_t t = 0; t < n; t++) {
        memcpy(y + (size_t)t * a.y_stride, c->y0 + (size_t)tokens[t] * rows, rows * sizeof *y);
        idx[t] = c->indexed ? n - 1 - t : t;
        memcpy(x + (size_t)idx[t] * a.x_stride, c->x + (size_t)tokens[t] * cols, cols * sizeof *x);
    }
    size_t y_bytes = ((size_t)n * a.y_stride - c->y_pad) * sizeof *y;
    a.y = kc_put(&r, y, y_bytes);
    a.x = kc_put(&r, x, ((size_t)n * a.x_stride - c->x_pad) * sizeof *x);
    a.row_idx = c->indexed ? kc_put(&r, idx, n * sizeof *idx) : NULL;
    a.bias = c->bias ? kc_put(&r, c->bias, rows * sizeof *c->bias) : NULL;
    if (c->norm) {
        a.norm = kc_put(&r, c->norm, cols * sizeof *c->norm);
        a.normed = kc_room(&r, (size_t)n * cols * sizeof *c->norm);
        a.norm_eps = 1e-6f;
    }
    const uint64_t scratch = d->ops->linear_scratch_bytes(d, n, cols);
    a.scratch = scratch && !c->no_scratch ? kc_room(&r, scratch) : NULL;
    kc_status(&r, d->ops->linear(d, &a));
    kc_get(&r, y, a.y, y_bytes);
    for (uint32_t t = 0; t < n; t++)
        memcpy(out + (size_t)t * rows, y + (size_t)t * a.y_stride, rows * sizeof *y);
    kc_end(&r);
}

double kc_lost_when_split(const kc *k, const char *op)
{
    return k->cuda ? 0x1p-134 / (double)kc_tol(k, op) : 0;
}

/* Weights of F32 with a scale of their own; 0: kc_any_mat() of any temper. */
static void check_linear(kc *k, kern_fmt fmt, uint32_t n, uint32_t rows, uint32_t cols, float x_scale, float w_scale)
{
    bool norm = kc_below(k, 3) == 0, fours = kc_takes_all(k, n);
    if (fours)
        cols = (cols + 3) & ~3u;
    kc_case(k, "linear %s rows %u cols %u tokens %u scales %g %g%s", kern_fmt_get(fmt).name, rows, cols, n,
            (double)x_scale, (double)w_scale, norm ? " norm" : "");
    linear_case c = {
        .w = kc_any_mat(k, fmt, rows, cols), .x = KC_NEW(k, n * cols, float), .y0 = KC_NEW(k, n * rows, float)};
    if (w_scale > 0) {
        float *values = KC_NEW(k, (size_t)rows * cols, float);
        kc_fill_scaled(k, values, (size_t)rows * cols, w_scale);
        c.w.data = values;
    }
    if (x_scale > 0)
        kc_fill_scaled(k, c.x, (size_t)n * cols, x_scale);
    else
        kc_fill(k, c.x, (size_t)n * cols);
    kc_fill_scaled(k, c.y0, (size_t)n * rows, 1);
    if (kc_below(k, 2))
        kc_fill_scaled(k, c.bias = KC_NEW(k, rows, float), rows, 1);
    c.accumulate = kc_below(k, 2);
    c.indexed = kc_below(k, 2);
    c.x_pad = kc_below(k, 3) * (fours ? 4 : 5);
    c.y_pad = kc_below(k, 3) * 3;
    c.no_scratch = kc_below(k, 4) == 0;

    const float *w = kc_decoded(k, c.w);
    const double lost = kc_lost_when_split(k, "linear");
    float *magnitude = KC_NEW(k, n * rows, float), *x = c.x;
    if (norm) {
        kc_fill_scaled(k, c.norm = KC_NEW(k, cols, float), cols, 1);
        x = KC_NEW(k, n * cols, float);
        for (uint32_t t = 0; t < n; t++) {
            double squares = 0;
            for (uint32_t j = 0; j < cols; j++)
                squares += (double)c.x[t * cols + j] * (double)c.x[t * cols + j];
            for (uint32_t j = 0; j < cols; j++)
                x[t * cols + j] = (float)(c.x[t * cols + j] / sqrt(squares / cols + 1e-6) * (double)c.norm[j]);
        }
    }
    for (uint32_t t = 0; t < n; t++)
        for (uint32_t i = 0; i < rows; i++) {
            double sum = (c.bias ? fabs((double)c.bias[i]) : 0) + fabs((double)c.y0[t * rows + i]);
            for (uint32_t j = 0; j < cols; j++) {
                double p = (double)w[(size_t)i * cols + j], q = (double)x[(size_t)t * cols + j];
                sum += fabs(p * q) + lost * (fabs(p) + fabs(q));
            }
            magnitude[t * rows + i] = (float)sum;
        }
    kc_check_op(k, run_linear, &c, n, rows, magnitude, kc_tol(k, "linear"));
}

static void check_any_linear(kc *k, kern_fmt fmt, float x_scale, float w_scale)
{
    const uint32_t n = kc_any_tokens(k), rows = kc_between(k, 1, 100);
    check_linear(k, fmt, n, rows, kc_any_cols(k, fmt), x_scale, w_scale);
}

void case_linear(kc *k)
{
    check_any_linear(k, kc_any_fmt(k), 0, 0);
}

/* Rows as long as those of models, for a few tokens or one: their kernels cut K in pieces and keep several items under way. */
void case_linear_few(kc *k)
{
    const kern_fmt fmt = kc_any_fmt(k);
    const uint32_t block = kc_block(k, fmt), unit = block > 32 ? block : kc_below(k, 3) ? 64 : 32;
    const uint32_t kind = kc_below(k, 5), n = kind < 2 ? 1 : kind < 4 ? kc_between(k, 2, 8) : kc_between(k, 9, 36);
    const uint32_t rows = kc_between(k, 1, kind < 2 ? 1200 : kind < 4 ? 300 : 80);
    check_linear(k, fmt, n, rows, unit * kc_between(k, 1, (kc_below(k, 2) ? 2048 : 4352) / unit), 0, 0);
}

/* Products of the smallest numbers with large ones are ordinary numbers. */
void case_linear_tiny(kc *k)
{
    bool tiny_x = kc_below(k, 2);
    if (kc_below(k, 3))
        check_any_linear(k, FMT_F32, tiny_x ? 1e-38f : 1e14f, tiny_x ? 1e14f : 1e-38f);
    else
        check_any_linear(k, kc_any_fmt(k), 1e-37f, 0);
}

typedef struct heads_case {
    kern_mat w; /* host, of all heads below one another */
    uint32_t n_heads, tail, x_head, y_head;
    float *x;
} heads_case;

static void run_linear_heads(kc *k, kern_dev *d, const void *cv, const uint32_t *tokens, uint32_t n, float *out)
{
    const heads_case *c = cv;
    kc_run r = kc_begin(k, d);
    const uint32_t x_stride = c->n_heads * c->x_head, y_stride = c->n_heads * c->y_head;
    const size_t y_bytes = (size_t)n * y_stride * sizeof(float), head_bytes = c->w.rows * c->w.row_bytes;
    kern_linear_heads_args a = {.w = c->w,
                                .head_bytes = head_bytes,
                                .n_tokens = n,
                                .n_heads = c->n_heads,
                                .tail = c->tail,
                                .x_stride = x_stride,
                                .y_stride = y_stride,
                                .x_head_stride = c->x_head,
                                .y_head_stride = c->y_head};
    a.w.data = kc_put(&r, c->w.data, c->n_heads * head_bytes);
    a.x = kc_put(&r, kc_gather(k, c->x, x_stride * sizeof(float), tokens, n), (size_t)n * x_stride * sizeof(float));
    float *zeros = KC_NEW(k, (size_t)n * y_stride, float); /* what lies between two heads' results stays as it is */
    a.y = kc_put(&r, zeros, y_bytes);
    kc_status(&r, d->ops->linear_heads(d, &a));
    kc_get(&r, out, a.y, y_bytes);
    kc_end(&r);
}

void case_linear_heads(kc *k)
{
    const kern_fmt fmt = kc_any_fmt(k);
    const uint32_t block = kern_fmt_get(fmt).block_len, quads = block > 1 ? block : 4;
    heads_case c = {.n_heads = kc_between(k, 1, 9), .tail = kc_below(k, 2) ? 0 : kc_between(k, 1, 70)};
    const uint32_t n = kc_any_tokens(k), rows = kc_between(k, 1, 80);
    const uint32_t cols = quads * kc_between(k, 1, KC_MAX(544 / quads, 2u));
    c.x_head = cols + c.tail;
    c.y_head = rows + c.tail + kc_below(k, 3);
    kc_case(k, "linear_heads %s %u heads of [%u][%u], tail %u, %u tokens", kern_fmt_get(fmt).name, c.n_heads, rows,
            cols, c.tail, n);
    c.w = (kern_mat){.data = kc_weights(k, fmt, c.n_heads * rows, cols),
                     .row_bytes = kern_row_bytes(fmt, cols),
                     .rows = rows,
                     .cols = cols,
                     .fmt = fmt};
    kc_fill_scaled(k, c.x = KC_NEW(k, (size_t)n * c.n_heads * c.x_head, float), (size_t)n * c.n_heads * c.x_head, 1);
    kern_mat all = c.w;
    all.rows *= c.n_heads;
    const float *w = kc_decoded(k, all);
    const uint32_t width = c.n_heads * c.y_head;
    float *magnitude = KC_NEW(k, (size_t)n * width, float);
    for (uint32_t t = 0; t < n; t++)
        for (uint32_t h = 0; h < c.n_heads; h++)
            for (uint32_t i = 0; i < rows; i++)
                for (uint32_t j = 0; j < cols; j++)
                    magnitude[(size_t)t * width + h * c.y_head + i] +=
                        fabsf(w[((size_t)h * rows + i) * cols + j] * c.x[((size_t)t * c.n_heads + h) * c.x_head + j]);
    kc_check_op(k, run_linear_heads, &c, n, width, magnitude, kc_tol(k, "linear"));
}
