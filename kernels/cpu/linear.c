/* linear.c - what treats rows of activations one by one: embedding, norm, matrix product, gated activation.
 *
 * A matrix product is cut into blocks of rows, each of which runs over all tokens, so a weight byte comes from memory once whatever
 * the number of tokens. The order of additions within a dot product is the row function's own (cpu_priv.h): blocks, threads and
 * token groups do not change a bit. */
#include "kernels/cpu/cpu_priv.h"

/* Tokens a dot call gets at most: their results fit a small buffer. */
#define TOKEN_GROUP 64
/* Elementwise work below this many floats a task is not worth a thread. */
#define GRAIN_FLOATS 16384

/* Rows of a task so that a task has GRAIN_FLOATS. */
static uint32_t rows_a_task(uint32_t dim)
{
    uint32_t rows = GRAIN_FLOATS / MAX(dim, 1u);
    return MAX(rows, 1u);
}

static uint32_t div_up(uint32_t a, uint32_t b)
{
    return a / b + (a % b != 0);
}

typedef struct embed_job {
    const kern_embed_args *a;
    cpu_decode_fn *decode;
    uint32_t rows_a_task;
} embed_job;

static void embed_task(void *ctx, uint32_t task, uint32_t worker)
{
    (void)worker;
    const embed_job *j = ctx;
    const kern_embed_args *a = j->a;
    uint32_t cols = a->table.cols, first = task * j->rows_a_task;
    for (uint32_t t = first; t < MIN(first + j->rows_a_task, a->n_tokens); t++) {
        float *y = a->y + (size_t)t * cols;
        j->decode(y, (const uint8_t *)a->table.data + a->ids[t] * a->table.row_bytes, cols);
        if (a->scale != 1.0f)
            for (uint32_t i = 0; i < cols; i++)
                y[i] *= a->scale;
    }
}

kern_status cpu_embed(kern_dev *dev, const kern_embed_args *a)
{
    cpu_dev *d = cpu_of(dev);
    if ((unsigned)a->table.fmt >= FMT_COUNT)
        return cpu_fail(d, KERN_UNSUPPORTED, "embedding: unknown format %d", (int)a->table.fmt);
    embed_job j = {.a = a, .decode = d->rows.decode[a->table.fmt], .rows_a_task = rows_a_task(a->table.cols)};
    pool_run(d->pool, div_up(a->n_tokens, j.rows_a_task), embed_task, &j);
    return KERN_OK;
}

typedef struct norm_job {
    const kern_rmsnorm_args *a;
    const kern_linear_args *linear;
    cpu_rmsnorm_fn *fn;
    uint32_t rows_a_task;
} norm_job;

static void norm_task(void *ctx, uint32_t task, uint32_t worker)
{
    (void)worker;
    const norm_job *j = ctx;
    const kern_rmsnorm_args *a = j->a;
    uint32_t first = task * j->rows_a_task;
    for (uint32_t t = first; t < MIN(first + j->rows_a_task, a->n_tokens); t++) {
        float *y = a->y + (size_t)t * a->dim;
        j->fn(y, a->x + (size_t)t * a->dim, a->weight, a->dim, a->eps);
        float *to = a->add_to ? a->add_to + (size_t)t * a->dim : NULL;
        for (uint32_t i = 0; to && i < a->dim; i++)
            to[i] = (to[i] + y[i]) * a->scale;
    }
}

kern_status cpu_rmsnorm(kern_dev *dev, const kern_rmsnorm_args *a)
{
    cpu_dev *d = cpu_of(dev);
    norm_job j = {.a = a, .fn = d->rows.rmsnorm, .rows_a_task = rows_a_task(a->dim)};
    pool_run(d->pool, div_up(a->n_tokens, j.rows_a_task), norm_task, &j);
    return KERN_OK;
}

/* In sixteen sums, so that one addition need not wait for another: the order is the same on every machine. */
static float mean_of(const float *x, uint32_t n)
{
    enum { SUMS = 16 };
    double part[SUMS] = {0}, sum = 0;
    uint32_t i = 0;
    for (; i + SUMS <= n; i += SUMS)
        for (uint32_t j = 0; j < SUMS; j++)
            part[j] += (double)x[i + j];
    for (uint32_t j = 0; j < SUMS; j++)
        sum += part[j];
    for (; i < n; i++)
        sum += (double)x[i];
    return (float)(sum / n);
}

typedef struct layernorm_job {
    const kern_layernorm_args *a;
    cpu_rmsnorm_fn *fn;
    uint32_t rows_a_task;
} layernorm_job;

/* The RMS norm of what differs from the mean. */
static void layernorm_task(void *ctx, uint32_t task, uint32_t worker)
{
    (void)worker;
    const layernorm_job *j = ctx;
    const kern_layernorm_args *a = j->a;
    uint32_t first = task * j->rows_a_task;
    for (uint32_t t = first; t < MIN(first + j->rows_a_task, a->n_tokens); t++) {
        const float *x = a->x + (size_t)(a->row_idx ? a->row_idx[t] : t) * a->dim;
        const float mean = mean_of(x, a->dim);
        float *y = a->y + (size_t)t * a->dim;
        for (uint32_t i = 0; i < a->dim; i++)
            y[i] = x[i] - mean;
        j->fn(y, y, a->weight, a->dim, a->eps);
        for (uint32_t i = 0; i < a->dim; i++)
            y[i] += a->bias[i];
    }
}

kern_status cpu_layernorm(kern_dev *dev, const kern_layernorm_args *a)
{
    cpu_dev *d = cpu_of(dev);
    layernorm_job j = {.a = a, .fn = d->rows.rmsnorm, .rows_a_task = rows_a_task(a->dim)};
    pool_run(d->pool, div_up(a->n_tokens, j.rows_a_task), layernorm_task, &j);
    return KERN_OK;
}

typedef struct qkv_norm_job {
    const kern_qkv_norm_args *a;
    cpu_rmsnorm_fn *fn;
} qkv_norm_job;

static void qkv_norm_task(void *ctx, uint32_t t, uint32_t worker)
{
    (void)worker;
    const qkv_norm_job *j = ctx;
    const kern_qkv_norm_args *a = j->a;
    const uint32_t width = a->q_width + 2 * a->kv_width;
    float *q = a->qkv + (size_t)t * width, *k = q + a->q_width;
    if (a->q_norm) {
        j->fn(q, q, a->q_norm, a->q_width, a->eps);
        j->fn(k, k, a->k_norm, a->kv_width, a->eps);
    }
    for (uint32_t i = 0; a->clip > 0 && i < width; i++)
        q[i] = q[i] < -a->clip ? -a->clip : q[i] > a->clip ? a->clip : q[i]; /* NaN stays */
}

kern_status cpu_qkv_norm(kern_dev *dev, const kern_qkv_norm_args *a)
{
    cpu_dev *d = cpu_of(dev);
    qkv_norm_job j = {.a = a, .fn = d->rows.rmsnorm};
    pool_run(d->pool, a->n_tokens, qkv_norm_task, &j);
    return KERN_OK;
}

typedef struct swiglu_job {
    const kern_swiglu_args *a;
    const cpu_rows *rows;
    uint32_t rows_a_task;
} swiglu_job;

static void swiglu_task(void *ctx, uint32_t task, uint32_t worker)
{
    (void)worker;
    const swiglu_job *j = ctx;
    const kern_swiglu_args *a = j->a;
    uint32_t first = task * j->rows_a_task;
    for (uint32_t t = first; t < MIN(first + j->rows_a_task, a->n_tokens); t++) {
        const float *gate = a->gate_up + (size_t)t * 2 * a->dim;
        const bool halves = a->act == KERN_RELU2;
        const uint32_t n = halves ? 2 * a->dim : a->dim;
        float *y = a->y + (size_t)t * n;
        if (halves)
            cpu_relu2(y, gate, n);
        else if (a->act == KERN_SWIGLU_LIMITED)
            j->rows->limited(y, gate, gate + a->dim, n, a->act_limit);
        else
            (a->act == KERN_GEGLU ? j->rows->geglu : j->rows->swiglu)(y, gate, gate + a->dim, n);
        const float by = a->row_gate ? 1.0f / (1.0f + expf(-a->row_gate[t])) : 1.0f;
        for (uint32_t i = 0; a->row_gate && i < n; i++)
            y[i] *= by;
    }
}

kern_status cpu_swiglu(kern_dev *dev, const kern_swiglu_args *a)
{
    cpu_dev *d = cpu_of(dev);
    if ((unsigned)a->act > KERN_RELU2 || a->act == KERN_SWIGLU_CLAMPED)
        return cpu_fail(d, KERN_UNSUPPORTED, "dense FFN: activation %d", (int)a->act);
    swiglu_job j = {.a = a, .rows = &d->rows, .rows_a_task = rows_a_task(a->dim)};
    pool_run(d->pool, div_up(a->n_tokens, j.rows_a_task), swiglu_task, &j);
    return KERN_OK;
}

/* The rows of a linear layer's x, normalised. */
static void linear_norm_task(void *ctx, uint32_t task, uint32_t worker)
{
    (void)worker;
    const norm_job *j = ctx;
    const kern_linear_args *a = j->linear;
    uint32_t first = task * j->rows_a_task;
    for (uint32_t t = first; t < MIN(first + j->rows_a_task, a->n_tokens); t++)
        j->fn(a->normed + (size_t)t * a->w.cols, a->x + (size_t)(a->row_idx ? a->row_idx[t] : t) * a->x_stride, a->norm,
              a->w.cols, a->norm_eps);
}

typedef struct linear_job {
    const kern_linear_args *a;
    cpu_dot_fn *dot;
} linear_job;

static void linear_block(const kern_linear_args *a, cpu_dot_fn *dot_rows, uint32_t block)
{
    uint32_t first = block * CPU_ROW_BLOCK, n_rows = MIN(CPU_ROW_BLOCK, a->w.rows - first);
    const uint8_t *w = (const uint8_t *)a->w.data + first * a->w.row_bytes;
    const uint8_t *next = first + n_rows < a->w.rows ? w + n_rows * a->w.row_bytes : NULL;
    const float *x[TOKEN_GROUP];
    float dots[TOKEN_GROUP * CPU_ROW_BLOCK];
    for (uint32_t t0 = 0; t0 < a->n_tokens; t0 += TOKEN_GROUP) {
        uint32_t n = MIN(TOKEN_GROUP, a->n_tokens - t0);
        for (uint32_t t = 0; t < n; t++)
            x[t] = a->x + (size_t)(a->row_idx ? a->row_idx[t0 + t] : t0 + t) * a->x_stride;
        dot_rows(dots, CPU_ROW_BLOCK, w, a->w.row_bytes, n_rows, x, n, a->w.cols, next);
        for (uint32_t t = 0; t < n; t++) {
            float *y = a->y + (size_t)(t0 + t) * a->y_stride + first;
            const float *dot = dots + (size_t)t * CPU_ROW_BLOCK;
            for (uint32_t r = 0; r < n_rows; r++) {
                float v = a->bias ? dot[r] + a->bias[first + r] : dot[r];
                y[r] = a->accumulate ? y[r] + v : v;
            }
        }
    }
}

static void linear_task(void *ctx, uint32_t task, uint32_t worker)
{
    (void)worker;
    const linear_job *j = ctx;
    linear_block(j->a, j->dot, task);
}

kern_status cpu_linear(kern_dev *dev, const kern_linear_args *a)
{
    cpu_dev *d = cpu_of(dev);
    if ((unsigned)a->w.fmt >= FMT_COUNT || !kern_cols_fit(a->w.fmt, a->w.cols))
        return cpu_fail(d, KERN_UNSUPPORTED, "linear: %u columns in format %d", a->w.cols, (int)a->w.fmt);
    if (a->n_tokens == 0)
        return KERN_OK;
    kern_linear_args normed = *a;
    if (a->norm) {
        norm_job n = {.linear = a, .fn = d->rows.rmsnorm, .rows_a_task = rows_a_task(a->w.cols)};
        pool_run(d->pool, div_up(a->n_tokens, n.rows_a_task), linear_norm_task, &n);
        normed.x = a->normed;
        normed.x_stride = a->w.cols;
        normed.row_idx = NULL;
    }
    linear_job j = {.a = &normed, .dot = d->rows.dot[a->w.fmt]};
    pool_run(d->pool, div_up(a->w.rows, CPU_ROW_BLOCK), linear_task, &j);
    return KERN_OK;
}

typedef struct heads_job {
    const kern_linear_heads_args *a;
    cpu_dot_fn *dot;
} heads_job;

/* A block of rows of one head; the head's first block brings its tail too. */
static void heads_task(void *ctx, uint32_t task, uint32_t worker)
{
    (void)worker;
    const heads_job *j = ctx;
    const kern_linear_heads_args *a = j->a;
    const uint32_t blocks = div_up(a->w.rows, CPU_ROW_BLOCK), head = task / blocks, block = task % blocks;
    kern_linear_args one = {.y = a->y + (size_t)head * a->y_head_stride,
                            .x = a->x + (size_t)head * a->x_head_stride,
                            .w = a->w,
                            .n_tokens = a->n_tokens,
                            .x_stride = a->x_stride,
                            .y_stride = a->y_stride};
    one.w.data = (const uint8_t *)a->w.data + head * a->head_bytes;
    linear_block(&one, j->dot, block);
    for (uint32_t t = 0; block == 0 && t < a->n_tokens; t++)
        memcpy(one.y + (size_t)t * a->y_stride + a->w.rows, one.x + (size_t)t * a->x_stride + a->w.cols,
               a->tail * sizeof *one.y);
}

kern_status cpu_linear_heads(kern_dev *dev, const kern_linear_heads_args *a)
{
    cpu_dev *d = cpu_of(dev);
    if ((unsigned)a->w.fmt >= FMT_COUNT || !kern_cols_fit(a->w.fmt, a->w.cols))
        return cpu_fail(d, KERN_UNSUPPORTED, "linear_heads: %u columns in format %d", a->w.cols, (int)a->w.fmt);
    heads_job j = {.a = a, .dot = d->rows.dot[a->w.fmt]};
    if (a->n_tokens)
        pool_run(d->pool, a->n_heads * div_up(a->w.rows, CPU_ROW_BLOCK), heads_task, &j);
    return KERN_OK;
}

enum { SOFTCAP_PIECE = 4096 };

static void softcap_task(void *ctx, uint32_t task, uint32_t worker)
{
    (void)worker;
    const kern_softcap_args *a = *(const kern_softcap_args **)ctx;
    const uint64_t first = (uint64_t)task * SOFTCAP_PIECE;
    for (uint64_t i = first; i < MIN(first + SOFTCAP_PIECE, a->n); i++)
        a->y[i] = a->cap * tanhf(a->y[i] / a->cap);
}

kern_status cpu_softcap(kern_dev *dev, const kern_softcap_args *a)
{
    pool_run(cpu_of(dev)->pool, (uint32_t)((a->n + SOFTCAP_PIECE - 1) / SOFTCAP_PIECE), softcap_task, &a);
    return KERN_OK;
}
