/* cases.c - random cases of the operations, but for the experts (experts.c), Gated DeltaNet (delta.c) and what moves bytes (memory.c).
 * Shapes lean to odd tails, single tokens and buckets of all sizes. */
#include "tests/kern/kc.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

kern_fmt kc_any_fmt(kc *k)
{
    for (;;) {
        kern_fmt fmt = (kern_fmt)kc_below(k, FMT_COUNT);
        kern_mat m = {.row_bytes = kern_row_bytes(fmt, 256), .rows = 1, .cols = 256, .fmt = fmt};
        kern_shape shape = {.n_heads = 1, .n_kv_heads = 1, .head_dim = 64, .n_experts = 1, .mats = &m, .n_mats = 1};
        if (k->dev->ops->takes(k->dev, &shape) == KERN_OK)
            return fmt;
    }
}

uint32_t kc_any_tokens(kc *k)
{
    uint32_t kind = kc_below(k, 6);
    return kind == 0 ? 1 : kind == 1 ? kc_between(k, 50, 150) : kc_between(k, 2, 17);
}

uint32_t kc_block(const kc *k, kern_fmt fmt)
{
    if (fmt == FMT_FP8) /* the last block may be a part of one */
        return 4;
    return k->cuda && fmt == FMT_MXFP4 ? 64 : kern_fmt_get(fmt).block_len; /* rows of whole words */
}

static uint32_t any_cols(kc *k, kern_fmt fmt)
{
    uint32_t block = kc_block(k, fmt);
    return block > 1 ? block * kc_between(k, 1, block == 256 ? 4 : block == 4 ? 150 : 20) : kc_between(k, 1, 600);
}

bool kc_takes_all(const kc *k, uint32_t n_tokens)
{
    return k->cuda && n_tokens > 1;
}

void *kc_gather(kc *k, const void *table, size_t row_bytes, const uint32_t *tokens, uint32_t n)
{
    char *out = kc_alloc(k, n * row_bytes);
    for (uint32_t i = 0; i < n; i++)
        memcpy(out + i * row_bytes, (const char *)table + tokens[i] * row_bytes, row_bytes);
    return out;
}

float *kc_decoded(kc *k, kern_mat host)
{
    float *y = KC_NEW(k, (size_t)host.rows * host.cols, float);
    uint32_t *ids = KC_NEW(k, host.rows, uint32_t);
    for (uint32_t i = 0; i < host.rows; i++)
        ids[i] = i;
    kern_embed_args a = {.y = y, .table = host, .ids = ids, .n_tokens = host.rows, .scale = 1};
    kc_run r = kc_begin(k, k->ref);
    kc_status(&r, k->ref->ops->embed(k->ref, &a));
    kc_end(&r);
    return y;
}

static kern_mat any_mat(kc *k, kern_fmt fmt, uint32_t rows, uint32_t cols)
{
    return (kern_mat){.data = kc_weights(k, fmt, rows, cols),
                      .row_bytes = kern_row_bytes(fmt, cols),
                      .rows = rows,
                      .cols = cols,
                      .fmt = fmt};
}

static kern_mat put_mat(kc_run *r, kern_mat m)
{
    m.data = kc_put(r, m.data, m.rows * m.row_bytes);
    return m;
}

/* ---- embed ------------------------------------------------------------------------------------------------------------ */
typedef struct embed_case {
    kern_mat table;
    uint32_t *ids;
    float scale;
} embed_case;

static void run_embed(kc *k, kern_dev *d, const void *cv, const uint32_t *tokens, uint32_t n, float *out)
{
    const embed_case *c = cv;
    kc_run r = kc_begin(k, d);
    size_t bytes = (size_t)n * c->table.cols * sizeof *out;
    kern_embed_args a = {.y = kc_room(&r, bytes), .table = put_mat(&r, c->table), .n_tokens = n, .scale = c->scale};
    a.ids = kc_put(&r, kc_gather(k, c->ids, sizeof *c->ids, tokens, n), n * sizeof *c->ids);
    kc_status(&r, d->ops->embed(d, &a));
    kc_get(&r, out, a.y, bytes);
    kc_end(&r);
}

static void case_embed(kc *k)
{
    kern_fmt fmt = kc_any_fmt(k);
    uint32_t n = kc_any_tokens(k), rows = kc_between(k, 1, 9), cols = any_cols(k, fmt);
    kc_case(k, "embed %s rows %u cols %u tokens %u", kern_fmt_get(fmt).name, rows, cols, n);
    embed_case c = {
        .table = any_mat(k, fmt, rows, cols), .ids = KC_NEW(k, n, uint32_t), .scale = kc_below(k, 2) ? 1.0f : 11.3f};
    for (uint32_t t = 0; t < n; t++)
        c.ids[t] = kc_below(k, rows);
    kc_check_op(k, run_embed, &c, n, cols, NULL, kc_tol(k, "embed"));
}

/* ---- rmsnorm, swiglu, add ----------------------------------------------------------------------------------------------- */
typedef struct row_case {
    float *x, *weight; /* weight of swiglu: one of each token, or NULL */
    uint32_t dim;
    bool in_place;
} row_case;

static void run_rmsnorm(kc *k, kern_dev *d, const void *cv, const uint32_t *tokens, uint32_t n, float *out)
{
    const row_case *c = cv;
    kc_run r = kc_begin(k, d);
    size_t row = c->dim * sizeof *out;
    float *x = kc_put(&r, kc_gather(k, c->x, row, tokens, n), n * row);
    kern_rmsnorm_args a = {.x = x, .n_tokens = n, .dim = c->dim, .eps = 1e-6f};
    a.y = c->in_place ? x : kc_room(&r, n * row);
    a.weight = kc_put(&r, c->weight, row);
    kc_status(&r, d->ops->rmsnorm(d, &a));
    kc_get(&r, out, a.y, n * row);
    kc_end(&r);
}

static void case_rmsnorm(kc *k)
{
    uint32_t n = kc_any_tokens(k), dim = kc_between(k, 1, 700);
    kc_case(k, "rmsnorm dim %u tokens %u", dim, n);
    row_case c = {
        .x = KC_NEW(k, n * dim, float), .weight = KC_NEW(k, dim, float), .dim = dim, .in_place = kc_below(k, 2)};
    kc_fill(k, c.x, (size_t)n * dim);
    kc_fill_scaled(k, c.weight, dim, 1);
    kc_check_op(k, run_rmsnorm, &c, n, dim, NULL, kc_tol(k, "rmsnorm"));
}

static void run_swiglu(kc *k, kern_dev *d, const void *cv, const uint32_t *tokens, uint32_t n, float *out)
{
    const row_case *c = cv;
    kc_run r = kc_begin(k, d);
    size_t row = c->dim * sizeof *out;
    kern_swiglu_args a = {.y = kc_room(&r, n * row), .n_tokens = n, .dim = c->dim};
    a.gate_up = kc_put(&r, kc_gather(k, c->x, 2 * row, tokens, n), 2 * n * row);
    a.row_gate = c->weight ? kc_put(&r, kc_gather(k, c->weight, sizeof *out, tokens, n), n * sizeof *out) : NULL;
    kc_status(&r, d->ops->swiglu(d, &a));
    kc_get(&r, out, a.y, n * row);
    kc_end(&r);
}

static void case_swiglu(kc *k)
{
    uint32_t n = kc_any_tokens(k), dim = kc_between(k, 1, 300);
    kc_case(k, "swiglu dim %u tokens %u", dim, n);
    row_case c = {.x = KC_NEW(k, 2 * n * dim, float), .dim = dim};
    kc_fill(k, c.x, (size_t)2 * n * dim);
    if (kc_below(k, 2))
        kc_fill_scaled(k, c.weight = KC_NEW(k, n, float), n, 4);
    for (uint32_t i = 0; i < n * dim; i++)
        if (kc_below(k, 8) == 0)
            c.x[i] *= 40; /* silu's flat ends */
    float *magnitude = KC_NEW(k, n * dim, float);
    for (uint32_t t = 0; t < n; t++)
        for (uint32_t i = 0; i < dim; i++)
            magnitude[t * dim + i] = fabsf(c.x[2 * t * dim + i] * c.x[(2 * t + 1) * dim + i]);
    kc_check_op(k, run_swiglu, &c, n, dim, magnitude, kc_tol(k, "swiglu"));
}

/* Norms of whole Q and K, clip */
typedef struct qkv_norm_case {
    float *x, *q_norm, *k_norm;
    uint32_t q_width, kv_width;
    float clip;
} qkv_norm_case;

static void run_qkv_norm(kc *k, kern_dev *d, const void *cv, const uint32_t *tokens, uint32_t n, float *out)
{
    const qkv_norm_case *c = cv;
    kc_run r = kc_begin(k, d);
    size_t row = (c->q_width + 2 * c->kv_width) * sizeof *out;
    kern_qkv_norm_args a = {
        .n_tokens = n, .q_width = c->q_width, .kv_width = c->kv_width, .eps = 1e-6f, .clip = c->clip};
    a.qkv = kc_put(&r, kc_gather(k, c->x, row, tokens, n), n * row);
    a.q_norm = c->q_norm ? kc_put(&r, c->q_norm, c->q_width * sizeof *out) : NULL;
    a.k_norm = c->q_norm ? kc_put(&r, c->k_norm, c->kv_width * sizeof *out) : NULL;
    kc_status(&r, d->ops->qkv_norm(d, &a));
    kc_get(&r, out, a.qkv, n * row);
    kc_end(&r);
}

static void case_qkv_norm(kc *k)
{
    qkv_norm_case c = {.q_width = kc_between(k, 1, 700), .kv_width = kc_between(k, 1, 300)};
    bool norms = kc_below(k, 4);
    c.clip = norms && kc_below(k, 2) ? 0 : 0.5f;
    uint32_t n = kc_any_tokens(k), width = c.q_width + 2 * c.kv_width;
    kc_case(k, "qkv_norm of %u and %u norms %d clip %g tokens %u", c.q_width, c.kv_width, norms, (double)c.clip, n);
    c.x = KC_NEW(k, n * width, float);
    kc_fill(k, c.x, (size_t)n * width);
    if (norms) {
        kc_fill_scaled(k, c.q_norm = KC_NEW(k, c.q_width, float), c.q_width, 1);
        kc_fill_scaled(k, c.k_norm = KC_NEW(k, c.kv_width, float), c.kv_width, 1);
    }
    kc_check_op(k, run_qkv_norm, &c, n, width, NULL, kc_tol(k, "rmsnorm"));
}

static void run_add(kc *k, kern_dev *d, const void *cv, const uint32_t *tokens, uint32_t n, float *out)
{
    const row_case *c = cv;
    kc_run r = kc_begin(k, d);
    size_t row = c->dim * sizeof *out;
    kern_add_args a = {.y = kc_put(&r, kc_gather(k, c->x, row, tokens, n), n * row), .n = (uint64_t)n * c->dim};
    a.x = kc_put(&r, kc_gather(k, c->weight, row, tokens, n), n * row);
    kc_status(&r, d->ops->add(d, &a));
    kc_get(&r, out, a.y, n * row);
    kc_end(&r);
}

static void case_add(kc *k)
{
    uint32_t n = kc_any_tokens(k), dim = kc_between(k, 1, 700);
    kc_case(k, "add dim %u tokens %u", dim, n);
    row_case c = {.x = KC_NEW(k, n * dim, float), .weight = KC_NEW(k, n * dim, float), .dim = dim};
    kc_fill(k, c.x, (size_t)n * dim);
    kc_fill(k, c.weight, (size_t)n * dim);
    kc_check_op(k, run_add, &c, n, dim, NULL, 0);
}

/* ---- linear -------------------------------------------------------------------------------------------------------------- */
typedef struct linear_case {
    kern_mat w;
    float *x, *bias, *y0, *norm;
    bool accumulate, indexed;
    uint32_t x_pad, y_pad;
} linear_case;

static void run_linear(kc *k, kern_dev *d, const void *cv, const uint32_t *tokens, uint32_t n, float *out)
{
    const linear_case *c = cv;
    kc_run r = kc_begin(k, d);
    uint32_t rows = c->w.rows, cols = c->w.cols;
    kern_linear_args a = {
        .w = put_mat(&r, c->w), .n_tokens = n, .x_stride = cols + c->x_pad, .y_stride = rows + c->y_pad};
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

/* Weights of F32 with a scale of their own; 0: any_mat() of any temper. */
static void check_linear(kc *k, kern_fmt fmt, uint32_t n, uint32_t rows, uint32_t cols, float x_scale, float w_scale)
{
    bool norm = kc_below(k, 3) == 0, fours = kc_takes_all(k, n);
    if (fours)
        cols = (cols + 3) & ~3u;
    kc_case(k, "linear %s rows %u cols %u tokens %u scales %g %g%s", kern_fmt_get(fmt).name, rows, cols, n,
            (double)x_scale, (double)w_scale, norm ? " norm" : "");
    linear_case c = {
        .w = any_mat(k, fmt, rows, cols), .x = KC_NEW(k, n * cols, float), .y0 = KC_NEW(k, n * rows, float)};
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
    check_linear(k, fmt, n, rows, any_cols(k, fmt), x_scale, w_scale);
}

static void case_linear(kc *k)
{
    check_any_linear(k, kc_any_fmt(k), 0, 0);
}

/* Rows as long as those of models, for a few tokens or one: their kernels cut K in pieces and keep several items under way. */
static void case_linear_few(kc *k)
{
    const kern_fmt fmt = kc_any_fmt(k);
    const uint32_t block = kc_block(k, fmt), unit = block > 32 ? block : kc_below(k, 3) ? 64 : 32;
    const uint32_t kind = kc_below(k, 5), n = kind < 2 ? 1 : kind < 4 ? kc_between(k, 2, 8) : kc_between(k, 9, 36);
    const uint32_t rows = kc_between(k, 1, kind < 2 ? 1200 : kind < 4 ? 300 : 80);
    check_linear(k, fmt, n, rows, unit * kc_between(k, 1, (kc_below(k, 2) ? 2048 : 4352) / unit), 0, 0);
}

/* Products of the smallest numbers with large ones are ordinary numbers. */
static void case_linear_tiny(kc *k)
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

static void case_linear_heads(kc *k)
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

/* ---- the KV cache ---------------------------------------------------------------------------------------------------------- */
typedef struct kv_case {
    uint32_t n_tokens, n_heads, n_kv_heads, hd, rot, layer, layers, block_size, max_blocks, n_seqs, n_blocks, longest;
    uint32_t window;
    uint32_t vd; /* V is K's first vd columns; 0: of its own */
    kern_fmt fmt;
    uint32_t *seq, *pos, *table;
    uint8_t *cache; /* [n_blocks][block_bytes] */
    size_t block_bytes;
    float *qkv, *q_norm, *k_norm, *inv_freq, *sinks;
    bool padding; /* a skipped row before every other one */
} kv_case;

/* Heads of K and V that are stored. */
static uint32_t stored_heads(const kv_case *c)
{
    return (c->vd ? 1 : 2) * c->n_kv_heads;
}

static uint32_t width_of(const kv_case *c)
{
    return (c->n_heads + stored_heads(c)) * c->hd;
}

static kv_case any_kv(kc *k, uint32_t longest, bool latent)
{
    static const uint32_t head_dims[] = {4, 8, 24, 32, 64, 80, 96, 128, 200, 256};
    static const uint32_t latent_dims[][2] = {{576, 512}, {576, 512}, {40, 24}, {8, 4}, {96, 64}, {328, 264}};
    kv_case c = {.n_tokens = kc_between(k, 1, 20),
                 .n_kv_heads = kc_between(k, 1, 3),
                 .hd = head_dims[kc_below(k, 10)],
                 .layers = 2};
    c.n_heads = c.n_kv_heads * kc_between(k, 1, 5);
    if (latent) {
        const uint32_t *dims = latent_dims[kc_below(k, 6)];
        c.hd = dims[0];
        c.vd = dims[1];
        c.n_kv_heads = kc_below(k, 4) ? 1 : 2;
        c.n_heads = c.n_kv_heads * (kc_below(k, 2) ? 16 : kc_between(k, 1, 35));
    }
    c.layer = kc_below(k, c.layers);
    c.block_size = 1u << kc_between(k, 2, 5);
    c.n_seqs = kc_between(k, 1, 4);
    static const kern_fmt fmts[] = {FMT_F16, FMT_F32, FMT_Q8_0};
    c.fmt = fmts[kc_below(k, c.hd % 32 || c.vd % 32 ? 2 : 3)];
    c.longest = longest;
    c.max_blocks = (longest + c.block_size - 1) / c.block_size;
    c.n_blocks = c.n_seqs * c.max_blocks;
    c.padding = kc_below(k, 3) == 0;
    c.block_bytes = c.layers * stored_heads(&c) * c.block_size * kern_row_bytes(c.fmt, c.hd);
    c.seq = KC_NEW(k, c.n_tokens, uint32_t);
    c.pos = KC_NEW(k, c.n_tokens, uint32_t);
    c.table = KC_NEW(k, c.n_blocks, uint32_t);
    for (uint32_t i = 0; i < c.n_blocks; i++) { /* a shuffled order of blocks */
        uint32_t j = kc_between(k, 0, i);
        c.table[i] = c.table[j];
        c.table[j] = i;
    }
    /* Runs of neighbours of a sequence, as a step has them: chunks of prompts and single tokens. Every (seq, pos) once. */
    for (uint32_t t = 0, s = 0; t < c.n_tokens; s++) {
        uint32_t run = s + 1 < c.n_seqs ? kc_between(k, 1, c.n_tokens - t) : c.n_tokens - t;
        run = KC_MIN(run, longest);
        uint32_t first = kc_below(k, 4) ? longest - run - kc_below(k, KC_MIN(longest - run + 1, 4u)) : 0;
        for (uint32_t i = 0; i < run; i++, t++) {
            c.seq[t] = s;
            c.pos[t] = first + i;
        }
    }
    c.qkv = KC_NEW(k, c.n_tokens * width_of(&c), float);
    kc_fill_scaled(k, c.qkv, (size_t)c.n_tokens * width_of(&c), 2);
    c.cache = KC_NEW(k, c.n_blocks * c.block_bytes, uint8_t);
    return c;
}

/* The cache on a device, each block in a buffer of its own. */
static kern_kv put_kv(kc_run *r, const kv_case *c, uint64_t *block_addr)
{
    for (uint32_t b = 0; b < c->n_blocks; b++)
        block_addr[b] = (uint64_t)(uintptr_t)kc_put(r, c->cache + b * c->block_bytes, c->block_bytes);
    return (kern_kv){
        .block_addr = kc_put(r, block_addr, c->n_blocks * sizeof *block_addr),
        .block_table = kc_put(r, c->table, c->n_blocks * sizeof *c->table),
        .max_blocks = c->max_blocks,
        .block_size = c->block_size,
        .layer_bytes = c->block_bytes / c->layers,
        .n_kv_heads = c->n_kv_heads,
        .head_dim = c->hd,
        .v_dim = c->vd,
        .fmt = c->fmt,
    };
}

/* Rows of the batch: the chosen tokens, with skipped ones between them when the case says so. */
typedef struct batch {
    uint32_t n, *row_of, *seq, *pos; /* row_of[i]: batch row of tokens[i] */
    float *qkv;
} batch;

static batch make_batch(kc *k, const kv_case *c, const uint32_t *tokens, uint32_t n)
{
    uint32_t width = width_of(c);
    batch b = {.row_of = KC_NEW(k, n, uint32_t), .seq = KC_NEW(k, 2 * n, uint32_t), .pos = KC_NEW(k, 2 * n, uint32_t)};
    b.qkv = KC_NEW(k, (size_t)2 * n * width, float);
    for (uint32_t i = 0; i < n; i++) {
        if (c->padding && i % 2 == 0) {
            b.seq[b.n] = UINT32_MAX;
            b.pos[b.n++] = 0;
        }
        b.seq[b.n] = c->seq[tokens[i]];
        b.pos[b.n] = c->pos[tokens[i]];
        memcpy(b.qkv + (size_t)b.n * width, c->qkv + (size_t)tokens[i] * width, width * sizeof *b.qkv);
        b.row_of[i] = b.n++;
    }
    return b;
}

/* out: Q heads, then the stored K heads, then the stored V heads, where there are any */
static void run_rope(kc *k, kern_dev *d, const void *cv, const uint32_t *tokens, uint32_t n, float *out)
{
    const kv_case *c = cv;
    kc_run r = kc_begin(k, d);
    uint64_t *addr = KC_NEW(k, c->n_blocks, uint64_t);
    uint32_t width = width_of(c);
    batch b = make_batch(k, c, tokens, n);
    kern_rope_kv_args a = {
        .n_tokens = b.n, .n_heads = c->n_heads, .layer = c->layer, .rot_dim = c->rot, .rope_scale = 1.1f};
    a.kv = put_kv(&r, c, addr);
    a.norm_eps = 1e-6f;
    a.qkv = kc_put(&r, b.qkv, (size_t)b.n * width * sizeof *b.qkv);
    a.q_norm = c->q_norm ? kc_put(&r, c->q_norm, c->hd * sizeof(float)) : NULL;
    a.k_norm = c->k_norm ? kc_put(&r, c->k_norm, (c->vd ? c->vd : c->hd) * sizeof(float)) : NULL;
    a.inv_freq = kc_put(&r, c->inv_freq, c->rot / 2 * sizeof(float));
    a.token_seq = kc_put(&r, b.seq, b.n * sizeof *b.seq);
    a.token_pos = kc_put(&r, b.pos, b.n * sizeof *b.pos);
    kc_status(&r, d->ops->rope_kv(d, &a));
    kc_get(&r, b.qkv, a.qkv, (size_t)b.n * width * sizeof *b.qkv);

    uint8_t *block = KC_NEW(k, c->block_bytes, uint8_t);
    size_t row_bytes = kern_row_bytes(c->fmt, c->hd), heads_bytes = row_bytes * c->block_size;
    for (uint32_t i = 0; i < n; i++) {
        float *o = out + (size_t)i * width;
        memcpy(o, b.qkv + (size_t)b.row_of[i] * width, (size_t)c->n_heads * c->hd * sizeof *o);
        uint32_t pos = c->pos[tokens[i]], id = c->table[c->seq[tokens[i]] * c->max_blocks + pos / c->block_size];
        kc_get(&r, block, (const void *)(uintptr_t)addr[id], c->block_bytes);
        for (uint32_t h = 0; h < stored_heads(c); h++) {
            const kern_mat kept = {.data = block + c->layer * c->block_bytes / c->layers + h * heads_bytes +
                                           pos % c->block_size * row_bytes,
                                   .row_bytes = row_bytes,
                                   .rows = 1,
                                   .cols = c->hd,
                                   .fmt = c->fmt};
            memcpy(o + (size_t)(c->n_heads + h) * c->hd, kc_decoded(k, kept), c->hd * sizeof *o);
        }
    }
    kc_end(&r);
}

static void check_rope(kc *k, const char *name, bool latent)
{
    kc_case(k, "%s", name); /* owns the memory from here on */
    kv_case c = any_kv(k, kc_between(k, 20, 200), latent);
    const uint32_t rotatable = c.hd - c.vd;
    /* What is neither normed nor rotated is kept by an exact rule; else a quant of Q8_0 may be the next one. */
    const bool as_is = c.fmt == FMT_Q8_0 && kc_below(k, 2), norms = !as_is && kc_below(k, 2);
    c.rot = as_is ? 0 : kc_below(k, 3) ? rotatable : kc_below(k, rotatable / 2) * 2;
    for (uint32_t t = 0; as_is && t < c.n_tokens; t++)
        kc_fill(k, c.qkv + (size_t)t * width_of(&c), width_of(&c));
    kc_fill_scaled(k, c.inv_freq = KC_NEW(k, c.hd, float), c.hd, 1);
    if (norms) {
        if (!latent)
            kc_fill_scaled(k, c.q_norm = KC_NEW(k, c.hd, float), c.hd, 1);
        kc_fill_scaled(k, c.k_norm = KC_NEW(k, c.hd, float), c.hd, 1);
    }
    kc_check_op(k, run_rope, &c, c.n_tokens, width_of(&c), NULL,
                as_is               ? 0
                : c.fmt == FMT_Q8_0 ? 8.0f / 127
                                    : kc_tol(k, "rope_kv") + (c.fmt == FMT_F16 ? 0x1p-10f : 0));
}

static void case_rope(kc *k)
{
    check_rope(k, "rope_kv", false);
}

static void case_rope_latent(kc *k)
{
    check_rope(k, "rope_kv latent", true);
}

static void run_attention(kc *k, kern_dev *d, const void *cv, const uint32_t *tokens, uint32_t n, float *out)
{
    const kv_case *c = cv;
    kc_run r = kc_begin(k, d);
    uint64_t *addr = KC_NEW(k, c->n_blocks, uint64_t);
    batch b = make_batch(k, c, tokens, n);
    size_t row = (size_t)c->n_heads * (c->vd ? c->vd : c->hd), o_bytes = b.n * row * sizeof(float);
    kern_attn_args a = {.n_tokens = b.n, .n_heads = c->n_heads, .layer = c->layer, .window = c->window};
    a.scale = c->vd || c->hd > 128 ? 0.05f : 0.3f; /* wide heads have large scores */
    a.kv = put_kv(&r, c, addr);
    a.o = kc_room(&r, o_bytes);
    a.qkv = kc_put(&r, b.qkv, (size_t)b.n * width_of(c) * sizeof(float));
    a.qkv_stride = width_of(c);
    a.max_context = c->longest;
    a.token_seq = kc_put(&r, b.seq, b.n * sizeof *b.seq);
    a.token_pos = kc_put(&r, b.pos, b.n * sizeof *b.pos);
    a.sinks = c->sinks ? kc_put(&r, c->sinks, c->n_heads * sizeof(float)) : NULL;
    a.scratch = kc_room(&r, d->ops->attn_scratch_bytes(d, b.n, c->n_heads, c->hd, a.max_context));
    kc_status(&r, d->ops->attention(d, &a));
    float *o = KC_NEW(k, b.n * row, float);
    kc_get(&r, o, a.o, o_bytes);
    for (uint32_t i = 0; i < n; i++)
        memcpy(out + i * row, o + b.row_of[i] * row, row * sizeof *o);
    kc_end(&r);
}

static void check_attention(kc *k, const char *name, bool latent)
{
    kc_case(k, "%s", name);
    kv_case c = any_kv(k, kc_below(k, 3) ? kc_between(k, 20, 300) : kc_between(k, 400, 1600), latent);
    c.window = kc_below(k, 3) ? 0 : kc_between(k, 1, c.longest);
    if (kc_below(k, 2))
        kc_fill_scaled(k, c.sinks = KC_NEW(k, c.n_heads, float), c.n_heads, 3);
    /* Cells behind a token's position hold NaN: nothing may look at them. */
    memset(c.cache, 0xff, c.n_blocks * c.block_bytes);
    size_t row_bytes = kern_row_bytes(c.fmt, c.hd);
    const bool halves = kc_below(k, 2); /* values of Q8_0 that are halves, as the matrix units take them */
    for (uint32_t s = 0; s < c.n_seqs; s++) {
        uint32_t end = 0;
        for (uint32_t t = 0; t < c.n_tokens; t++)
            if (c.seq[t] == s)
                end = KC_MAX(end, c.pos[t] + 1);
        for (uint32_t pos = 0; pos < end; pos++)
            for (uint32_t h = 0; h < stored_heads(&c); h++) {
                uint8_t *cell = c.cache + c.table[s * c.max_blocks + pos / c.block_size] * c.block_bytes +
                                c.layer * c.block_bytes / c.layers +
                                (h * c.block_size + pos % c.block_size) * row_bytes;
                for (uint32_t i = 0; c.fmt == FMT_Q8_0 && i < row_bytes; i += sizeof(kern_q8_0_block)) {
                    kern_q8_0_block block = {.d = (uint16_t)(kc_between(k, 6, 8) << 10)};
                    block.d |= halves ? 0 : (uint16_t)kc_below(k, 0x400);
                    for (uint32_t j = 0; j < 32; j++)
                        block.qs[j] = (int8_t)((int)kc_below(k, 255) - 127);
                    memcpy(cell + i, &block, sizeof block);
                }
                for (uint32_t i = 0; c.fmt != FMT_Q8_0 && i < c.hd; i++) {
                    float v = kc_uniform(k) * 4 - 2;
                    uint16_t half = (uint16_t)(kc_below(k, 0x400) | kc_between(k, 10, 15) << 10 | kc_below(k, 2) << 15);
                    memcpy(cell + i * row_bytes / c.hd, c.fmt == FMT_F32 ? (void *)&v : (void *)&half,
                           row_bytes / c.hd);
                }
            }
    }
    uint32_t width = c.n_heads * (c.vd ? c.vd : c.hd);
    float *ones = KC_NEW(k, c.n_tokens * width, float);
    for (size_t i = 0; i < (size_t)c.n_tokens * width; i++)
        ones[i] = 2; /* of the order of V: an average may cancel */
    kc_check_op(k, run_attention, &c, c.n_tokens, width, ones,
                kc_tol(k, c.fmt == FMT_Q8_0 && !halves ? "attention of rounded values" : "attention"));
}

static void case_attention(kc *k)
{
    check_attention(k, "attention", false);
}

static void case_attention_latent(kc *k)
{
    check_attention(k, "attention latent", true);
}

/* ---- router ------------------------------------------------------------------------------------------------------------------ */
typedef struct router_case {
    float *logits;
    kern_router_args a; /* pointers are the host's */
} router_case;

static void run_router(kc *k, kern_dev *d, const void *cv, const uint32_t *tokens, uint32_t n, float *out)
{
    const router_case *c = cv;
    kc_run r = kc_begin(k, d);
    kern_router_args a = c->a;
    uint32_t *ids = KC_NEW(k, n * a.top_k, uint32_t);
    float *weights = KC_NEW(k, n * a.top_k, float);
    size_t row = a.n_experts * sizeof(float), bytes = (size_t)n * a.top_k * 4;
    a.n_tokens = n;
    a.logits = kc_put(&r, kc_gather(k, c->logits, row, tokens, n), n * row);
    a.bias = a.bias ? kc_put(&r, a.bias, row) : NULL;
    a.ids = kc_room(&r, bytes);
    a.weights = kc_room(&r, bytes);
    kc_status(&r, d->ops->router(d, &a));
    kc_get(&r, ids, a.ids, bytes);
    kc_get(&r, weights, a.weights, bytes);
    for (uint32_t t = 0; t < n; t++)
        for (uint32_t i = 0; i < a.top_k; i++) {
            out[t * 2 * a.top_k + i] = weights[t * a.top_k + i];
            /* a wrong id is worth a thousand: beyond any tolerance */
            out[(t * 2 + 1) * a.top_k + i] = 1000.0f * (float)ids[t * a.top_k + i];
        }
    kc_end(&r);
}

static int descending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

/* Sorted values of which the first n are taken: two that differ by no more than rounding, so that either may be. Not ties, whose inputs are
 * the same. */
static bool is_close(double *by, uint32_t n, uint32_t of)
{
    qsort(by, of, sizeof *by, descending);
    for (uint32_t i = 1; i < of && i <= n; i++)
        if (by[i - 1] - by[i] < 2e-6 && by[i - 1] != by[i])
            return true;
    return false;
}

static bool router_is_close(kc *k, const kern_router_args *a, const float *logits)
{
    double *by = KC_NEW(k, a->n_experts, double), sum = 0, of[KERN_MAX_GROUPS], sorted[KERN_MAX_GROUPS];
    for (uint32_t e = 0; e < a->n_experts; e++)
        sum += exp(logits[e]);
    for (uint32_t e = 0; e < a->n_experts; e++)
        by[e] = (a->scoring == KERN_SIGMOID ? 1 / (1 + exp(-logits[e])) : exp(logits[e]) / sum) +
                (a->bias ? a->bias[e] : 0);
    if (!a->n_groups)
        return is_close(by, a->top_k, a->n_experts);
    uint32_t size = a->n_experts / a->n_groups, n = 0;
    for (uint32_t g = 0; g < a->n_groups; g++) {
        double best = -INFINITY, second = -INFINITY;
        for (uint32_t e = g * size; e < (g + 1) * size; e++) {
            second = fmax(second, fmin(best, by[e]));
            best = fmax(best, by[e]);
        }
        of[g] = sorted[g] = a->group_rank == KERN_GROUP_MAX ? best : best + second;
    }
    if (is_close(sorted, a->top_groups, a->n_groups))
        return true;
    for (uint32_t g = 0; g < a->n_groups; g++) {
        bool kept = of[g] >= sorted[a->top_groups - 1]; /* of tied groups it does not matter here which */
        for (uint32_t e = g * size; kept && e < (g + 1) * size; e++)
            by[n++] = by[e];
    }
    return is_close(by, a->top_k, n);
}

void kc_router_not_plain(kc *k, kern_router_args *a)
{
    a->scoring = kc_below(k, 2) ? KERN_SIGMOID : KERN_SOFTMAX_TOPK;
    if (kc_below(k, 2) && a->n_experts >= 8) {
        a->n_groups = 2u << kc_below(k, 2);
        a->top_groups = kc_between(k, 1, a->n_groups);
        a->group_rank = (kern_group_rank)kc_below(k, 2);
        a->top_k = KC_MIN(a->top_k, a->n_experts / a->n_groups * a->top_groups);
    }
    a->norm_min = kc_below(k, 2) ? 0.5f : 0;
    a->norm_eps = kc_below(k, 2) ? 1e-20f : 0;
    a->scale = kc_below(k, 2) ? 2.5f : 0;
}

static void case_router(kc *k)
{
    static const uint32_t sizes[] = {2, 8, 60, 64, 128, 256, 512};
    router_case c = {.a = {.n_experts = sizes[kc_below(k, 7)],
                           .scoring = (kern_scoring)kc_below(k, 2),
                           .norm_topk = kc_below(k, 2)}};
    kern_router_args *a = &c.a;
    a->top_k = kc_between(k, 1, KC_MIN(a->n_experts, 10u));
    const bool plain = kc_below(k, 2), biased = !plain && kc_below(k, 2);
    if (!plain)
        kc_router_not_plain(k, a);
    uint32_t n = kc_any_tokens(k);
    kc_case(k, "router %u of %u scoring %d norm %d (%g %g) bias %d groups %u of %u by %d scale %g tokens %u", a->top_k,
            a->n_experts, (int)a->scoring, a->norm_topk, (double)a->norm_min, (double)a->norm_eps, biased,
            a->top_groups, a->n_groups, (int)a->group_rank, (double)a->scale, n);
    c.logits = KC_NEW(k, n * a->n_experts, float);
    float *bias = KC_NEW(k, a->n_experts, float);
    for (uint32_t e = 0; e < a->n_experts; e++)
        bias[e] = ((float)kc_below(k, 41) - 20) / 64;
    a->bias = biased ? bias : NULL;
    bool ties = kc_below(k, 2);
    for (uint32_t t = 0; t < n; t++) {
        float *row = c.logits + (size_t)t * a->n_experts;
        do {
            kc_fill_scaled(k, row, a->n_experts, 3);
            for (uint32_t i = 0; ties && i < a->n_experts; i++)
                row[i] = roundf(row[i]);
        } while (!kern_router_is_plain(a) && router_is_close(k, a, row));
    }
    float *magnitude = KC_NEW(k, n * 2 * a->top_k, float);
    for (uint32_t i = 0; i < n * 2 * a->top_k; i++)
        magnitude[i] = 1;
    kc_check_op(k, run_router, &c, n, 2 * a->top_k, magnitude, kc_tol(k, "router"));
}

/* ---- choices among logits ------------------------------------------------------------------------------------------------------- */
static void run_logits(kc *k, kern_dev *d, const void *cv, const uint32_t *tokens, uint32_t n, float *out)
{
    const row_case *c = cv;
    kc_run r = kc_begin(k, d);
    size_t row = c->dim * sizeof(float), ids_bytes = (size_t)n * KERN_TOP_LOGITS * 4;
    const float *logits = kc_put(&r, kc_gather(k, c->x, row, tokens, n), n * row);
    kern_argmax_args m = {.logits = logits, .ids = kc_room(&r, n * 4), .n_tokens = n, .vocab = c->dim};
    kern_top_logits_args t = {.logits = logits, .n_tokens = n, .vocab = c->dim};
    t.ids = kc_room(&r, ids_bytes);
    t.values = kc_room(&r, ids_bytes);
    t.logsumexp = kc_room(&r, n * 4);
    kc_status(&r, d->ops->argmax(d, &m));
    kc_status(&r, d->ops->top_logits(d, &t));
    uint32_t *best = KC_NEW(k, n, uint32_t), *ids = KC_NEW(k, n * KERN_TOP_LOGITS, uint32_t);
    float *values = KC_NEW(k, n * KERN_TOP_LOGITS, float), *lse = KC_NEW(k, n, float);
    kc_get(&r, best, m.ids, n * 4);
    kc_get(&r, ids, t.ids, ids_bytes);
    kc_get(&r, values, t.values, ids_bytes);
    kc_get(&r, lse, t.logsumexp, n * 4);
    for (uint32_t i = 0; i < n; i++) {
        float *o = out + (size_t)i * (2 * KERN_TOP_LOGITS + 2);
        *o++ = lse[i];
        *o++ = (float)best[i];
        for (uint32_t j = 0; j < KERN_TOP_LOGITS; j++) {
            bool none = j >= c->dim; /* the value of no token is not defined */
            *o++ = (float)ids[i * KERN_TOP_LOGITS + j];
            *o++ = none ? 0 : values[i * KERN_TOP_LOGITS + j];
        }
    }
    kc_end(&r);
}

static void case_logits(kc *k)
{
    uint32_t n = kc_between(k, 1, 6), vocab = kc_below(k, 3) ? kc_between(k, 100, 9000) : kc_between(k, 1, 130);
    kc_case(k, "logits vocab %u tokens %u", vocab, n);
    row_case c = {.x = KC_NEW(k, n * vocab, float), .dim = vocab};
    kc_fill_scaled(k, c.x, (size_t)n * vocab, 5);
    if (kc_below(k, 2))
        for (size_t i = 0; i < (size_t)n * vocab; i++)
            c.x[i] = roundf(c.x[i] * 4) / 4; /* many ties */
    uint32_t width = 2 * KERN_TOP_LOGITS + 2;
    float *magnitude = KC_NEW(k, n * width, float); /* zero but for logsumexp: the choices are exact */
    for (uint32_t t = 0; t < n; t++)
        magnitude[t * width] = 10;
    kc_check_op(k, run_logits, &c, n, width, magnitude, kc_tol(k, "logsumexp"));
}

const kc_case_row kc_cases[] = {
    {"embed", case_embed},
    {"rmsnorm", case_rmsnorm},
    {"swiglu", case_swiglu},
    {"qkv_norm", case_qkv_norm},
    {"linear", case_linear},
    {"rope_kv", case_rope},
    {"attention", case_attention},
    {"router", case_router},
    {"moe", case_moe},
    {"logits", case_logits},
    {"linear_tiny", case_linear_tiny},
    {"moe_tiny", case_moe_tiny},
    {"copies", case_copies},
    {"kv_stage", case_kv_stage},
    {"moe_groups", case_moe_groups},
    {"moe_many", case_moe_many},
    {"add", case_add},
    {"linear_heads", case_linear_heads},
    {"rope_latent", case_rope_latent},
    {"attention_latent", case_attention_latent},
    {"linear_few", case_linear_few},
    {"route", case_route},
    {"delta", case_delta},
    {"delta_long", case_delta_long},
    {"gate", case_gate},
    {0},
};
