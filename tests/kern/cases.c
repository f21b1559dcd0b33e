/* cases.c - random cases of every operation. Shapes lean to odd tails, single tokens and buckets of all sizes. */
#include "tests/kern/kc.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define NEW(k, n, T) ((T *)kc_alloc(k, (size_t)(n) * sizeof(T)))

static kern_fmt any_fmt(kc *k)
{
    return (kern_fmt)kc_below(k, FMT_COUNT);
}

static uint32_t any_tokens(kc *k)
{
    uint32_t kind = kc_below(k, 6);
    return kind == 0 ? 1 : kind == 1 ? kc_between(k, 50, 150) : kc_between(k, 2, 17);
}

static uint32_t any_cols(kc *k, kern_fmt fmt)
{
    uint32_t block = kern_fmt_get(fmt).block_len;
    return block > 1 ? block * kc_between(k, 1, 20) : kc_between(k, 1, 600);
}

/* Rows of `table`, picked by tokens, as a packed host matrix. */
static void *gather(kc *k, const void *table, size_t row_bytes, const uint32_t *tokens, uint32_t n)
{
    char *out = kc_alloc(k, n * row_bytes);
    for (uint32_t i = 0; i < n; i++)
        memcpy(out + i * row_bytes, (const char *)table + tokens[i] * row_bytes, row_bytes);
    return out;
}

/* Values of encoded weights, by the reference's embedding (which the numpy vectors check). */
static float *decoded(kc *k, kern_mat host)
{
    float *y = NEW(k, (size_t)host.rows * host.cols, float);
    uint32_t *ids = NEW(k, host.rows, uint32_t);
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
    a.ids = kc_put(&r, gather(k, c->ids, sizeof *c->ids, tokens, n), n * sizeof *c->ids);
    kc_status(&r, d->ops->embed(d, &a));
    kc_get(&r, out, a.y, bytes);
    kc_end(&r);
}

static void case_embed(kc *k)
{
    kern_fmt fmt = any_fmt(k);
    uint32_t n = any_tokens(k), rows = kc_between(k, 1, 9), cols = any_cols(k, fmt);
    kc_case(k, "embed %s rows %u cols %u tokens %u", kern_fmt_get(fmt).name, rows, cols, n);
    embed_case c = {
        .table = any_mat(k, fmt, rows, cols), .ids = NEW(k, n, uint32_t), .scale = kc_below(k, 2) ? 1.0f : 11.3f};
    for (uint32_t t = 0; t < n; t++)
        c.ids[t] = kc_below(k, rows);
    kc_check_op(k, run_embed, &c, n, cols, NULL, kc_tol(k, "embed"));
}

/* ---- rmsnorm, swiglu, add ---------------------------------------------------------------------------------------------------- */
typedef struct row_case {
    float *x, *weight;
    uint32_t dim;
    bool in_place;
} row_case;

static void run_rmsnorm(kc *k, kern_dev *d, const void *cv, const uint32_t *tokens, uint32_t n, float *out)
{
    const row_case *c = cv;
    kc_run r = kc_begin(k, d);
    size_t row = c->dim * sizeof *out;
    float *x = kc_put(&r, gather(k, c->x, row, tokens, n), n * row);
    kern_rmsnorm_args a = {.x = x, .n_tokens = n, .dim = c->dim, .eps = 1e-6f};
    a.y = c->in_place ? x : kc_room(&r, n * row);
    a.weight = kc_put(&r, c->weight, row);
    kc_status(&r, d->ops->rmsnorm(d, &a));
    kc_get(&r, out, a.y, n * row);
    kc_end(&r);
}

static void case_rmsnorm(kc *k)
{
    uint32_t n = any_tokens(k), dim = kc_between(k, 1, 700);
    kc_case(k, "rmsnorm dim %u tokens %u", dim, n);
    row_case c = {.x = NEW(k, n * dim, float), .weight = NEW(k, dim, float), .dim = dim, .in_place = kc_below(k, 2)};
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
    a.gate_up = kc_put(&r, gather(k, c->x, 2 * row, tokens, n), 2 * n * row);
    kc_status(&r, d->ops->swiglu(d, &a));
    kc_get(&r, out, a.y, n * row);
    kc_end(&r);
}

static void case_swiglu(kc *k)
{
    uint32_t n = any_tokens(k), dim = kc_between(k, 1, 300);
    kc_case(k, "swiglu dim %u tokens %u", dim, n);
    row_case c = {.x = NEW(k, 2 * n * dim, float), .dim = dim};
    kc_fill(k, c.x, (size_t)2 * n * dim);
    for (uint32_t i = 0; i < n * dim; i++)
        if (kc_below(k, 8) == 0)
            c.x[i] *= 40; /* silu's flat ends */
    float *magnitude = NEW(k, n * dim, float);
    for (uint32_t t = 0; t < n; t++)
        for (uint32_t i = 0; i < dim; i++)
            magnitude[t * dim + i] = fabsf(c.x[2 * t * dim + i] * c.x[(2 * t + 1) * dim + i]);
    kc_check_op(k, run_swiglu, &c, n, dim, magnitude, kc_tol(k, "swiglu"));
}

static void run_add(kc *k, kern_dev *d, const void *cv, const uint32_t *tokens, uint32_t n, float *out)
{
    const row_case *c = cv;
    kc_run r = kc_begin(k, d);
    size_t row = c->dim * sizeof *out;
    kern_add_args a = {.y = kc_put(&r, gather(k, c->x, row, tokens, n), n * row), .n = (uint64_t)n * c->dim};
    a.x = kc_put(&r, gather(k, c->weight, row, tokens, n), n * row);
    kc_status(&r, d->ops->add(d, &a));
    kc_get(&r, out, a.y, n * row);
    kc_end(&r);
}

static void case_add(kc *k)
{
    uint32_t n = any_tokens(k), dim = kc_between(k, 1, 700);
    kc_case(k, "add dim %u tokens %u", dim, n);
    row_case c = {.x = NEW(k, n * dim, float), .weight = NEW(k, n * dim, float), .dim = dim};
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
    float *y = NEW(k, (size_t)n * a.y_stride, float), *x = NEW(k, (size_t)(n + 1) * a.x_stride, float);
    uint32_t *idx = NEW(k, n, uint32_t);
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

/* The matrix units take both operands in parts of BF16, whose smallest number is 2^-133: where an operand is not much larger than that,
 * what its last part cannot hold is up to half of it, times the other operand. As a magnitude: divided by the tolerance. */
static double lost_when_split(const kc *k, const char *op, double p, double q)
{
    return k->cuda ? (fabs(p) + fabs(q)) * 0x1p-134 / (double)kc_tol(k, op) : 0;
}

/* Weights of F32 with a scale of their own; 0: any_mat() of any temper. */
static void check_linear(kc *k, kern_fmt fmt, float x_scale, float w_scale)
{
    uint32_t n = any_tokens(k), rows = kc_between(k, 1, 100), cols = any_cols(k, fmt);
    bool norm = kc_below(k, 3) == 0;
    kc_case(k, "linear %s rows %u cols %u tokens %u scales %g %g%s", kern_fmt_get(fmt).name, rows, cols, n,
            (double)x_scale, (double)w_scale, norm ? " norm" : "");
    linear_case c = {.w = any_mat(k, fmt, rows, cols), .x = NEW(k, n * cols, float), .y0 = NEW(k, n * rows, float)};
    if (w_scale > 0) {
        float *values = NEW(k, (size_t)rows * cols, float);
        kc_fill_scaled(k, values, (size_t)rows * cols, w_scale);
        c.w.data = values;
    }
    if (x_scale > 0)
        kc_fill_scaled(k, c.x, (size_t)n * cols, x_scale);
    else
        kc_fill(k, c.x, (size_t)n * cols);
    kc_fill_scaled(k, c.y0, (size_t)n * rows, 1);
    if (kc_below(k, 2))
        kc_fill_scaled(k, c.bias = NEW(k, rows, float), rows, 1);
    c.accumulate = kc_below(k, 2);
    c.indexed = kc_below(k, 2);
    c.x_pad = kc_below(k, 3) * 5;
    c.y_pad = kc_below(k, 3) * 3;

    const float *w = decoded(k, c.w);
    float *magnitude = NEW(k, n * rows, float), *x = c.x;
    if (norm) {
        kc_fill_scaled(k, c.norm = NEW(k, cols, float), cols, 1);
        x = NEW(k, n * cols, float);
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
                sum += fabs(p * q) + lost_when_split(k, "linear", p, q);
            }
            magnitude[t * rows + i] = (float)sum;
        }
    kc_check_op(k, run_linear, &c, n, rows, magnitude, kc_tol(k, "linear"));
}

static void case_linear(kc *k)
{
    check_linear(k, any_fmt(k), 0, 0);
}

/* Products of the smallest numbers with large ones are ordinary numbers. */
static void case_linear_tiny(kc *k)
{
    bool tiny_x = kc_below(k, 2);
    if (kc_below(k, 3))
        check_linear(k, FMT_F32, tiny_x ? 1e-38f : 1e14f, tiny_x ? 1e14f : 1e-38f);
    else
        check_linear(k, any_fmt(k), 1e-37f, 0);
}

/* ---- the KV cache ---------------------------------------------------------------------------------------------------------- */
typedef struct kv_case {
    uint32_t n_tokens, n_heads, n_kv_heads, hd, rot, layer, layers, block_size, max_blocks, n_seqs, n_blocks, longest;
    uint32_t window;
    kern_fmt fmt;
    uint32_t *seq, *pos, *table;
    uint8_t *cache; /* [n_blocks][block_bytes] */
    size_t block_bytes;
    float *qkv, *q_norm, *k_norm, *inv_freq, *sinks;
    bool padding; /* a skipped row before every other one */
} kv_case;

static uint32_t width_of(const kv_case *c)
{
    return (c->n_heads + 2 * c->n_kv_heads) * c->hd;
}

static kv_case any_kv(kc *k, uint32_t longest)
{
    static const uint32_t head_dims[] = {4, 8, 24, 32, 64, 80, 128};
    kv_case c = {.n_tokens = kc_between(k, 1, 20),
                 .n_kv_heads = kc_between(k, 1, 3),
                 .hd = head_dims[kc_below(k, 7)],
                 .layers = 2};
    c.n_heads = c.n_kv_heads * kc_between(k, 1, 5);
    c.layer = kc_below(k, c.layers);
    c.block_size = 1u << kc_between(k, 2, 5);
    c.n_seqs = kc_between(k, 1, 4);
    c.fmt = kc_below(k, 2) ? FMT_F16 : FMT_F32;
    c.longest = longest;
    c.max_blocks = (longest + c.block_size - 1) / c.block_size;
    c.n_blocks = c.n_seqs * c.max_blocks;
    c.padding = kc_below(k, 3) == 0;
    c.block_bytes = c.layers * 2 * c.n_kv_heads * c.block_size * kern_row_bytes(c.fmt, c.hd);
    c.seq = NEW(k, c.n_tokens, uint32_t);
    c.pos = NEW(k, c.n_tokens, uint32_t);
    c.table = NEW(k, c.n_blocks, uint32_t);
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
    c.qkv = NEW(k, c.n_tokens * width_of(&c), float);
    kc_fill_scaled(k, c.qkv, (size_t)c.n_tokens * width_of(&c), 2);
    c.cache = NEW(k, c.n_blocks * c.block_bytes, uint8_t);
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
    batch b = {.row_of = NEW(k, n, uint32_t), .seq = NEW(k, 2 * n, uint32_t), .pos = NEW(k, 2 * n, uint32_t)};
    b.qkv = NEW(k, (size_t)2 * n * width, float);
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

static void read_heads(const kv_case *c, const uint8_t *at, float *out)
{
    for (uint32_t i = 0; i < c->hd; i++) {
        if (c->fmt == FMT_F32) {
            memcpy(&out[i], at + i * 4, 4);
        } else {
            uint16_t h;
            memcpy(&h, at + i * 2, 2);
            /* finite halves only */
            float m = (float)(h & 0x3ff), e = (float)(h >> 10 & 31);
            out[i] = (h & 0x8000 ? -1.0f : 1.0f) * (e == 0 ? ldexpf(m, -24) : ldexpf(1024 + m, (int)e - 25));
        }
    }
}

/* out: Q heads, then the stored K heads, then the stored V heads */
static void run_rope(kc *k, kern_dev *d, const void *cv, const uint32_t *tokens, uint32_t n, float *out)
{
    const kv_case *c = cv;
    kc_run r = kc_begin(k, d);
    uint64_t *addr = NEW(k, c->n_blocks, uint64_t);
    uint32_t width = width_of(c);
    batch b = make_batch(k, c, tokens, n);
    kern_rope_kv_args a = {
        .n_tokens = b.n, .n_heads = c->n_heads, .layer = c->layer, .rot_dim = c->rot, .rope_scale = 1.1f};
    a.kv = put_kv(&r, c, addr);
    a.norm_eps = 1e-6f;
    a.qkv = kc_put(&r, b.qkv, (size_t)b.n * width * sizeof *b.qkv);
    a.q_norm = c->q_norm ? kc_put(&r, c->q_norm, c->hd * sizeof(float)) : NULL;
    a.k_norm = c->k_norm ? kc_put(&r, c->k_norm, c->hd * sizeof(float)) : NULL;
    a.inv_freq = kc_put(&r, c->inv_freq, c->rot / 2 * sizeof(float));
    a.token_seq = kc_put(&r, b.seq, b.n * sizeof *b.seq);
    a.token_pos = kc_put(&r, b.pos, b.n * sizeof *b.pos);
    kc_status(&r, d->ops->rope_kv(d, &a));
    kc_get(&r, b.qkv, a.qkv, (size_t)b.n * width * sizeof *b.qkv);

    uint8_t *block = NEW(k, c->block_bytes, uint8_t);
    size_t row_bytes = kern_row_bytes(c->fmt, c->hd), heads_bytes = row_bytes * c->block_size;
    for (uint32_t i = 0; i < n; i++) {
        float *o = out + (size_t)i * width;
        memcpy(o, b.qkv + (size_t)b.row_of[i] * width, (size_t)c->n_heads * c->hd * sizeof *o);
        uint32_t pos = c->pos[tokens[i]], id = c->table[c->seq[tokens[i]] * c->max_blocks + pos / c->block_size];
        kc_get(&r, block, (const void *)(uintptr_t)addr[id], c->block_bytes);
        for (uint32_t h = 0; h < 2 * c->n_kv_heads; h++)
            read_heads(
                c, block + c->layer * c->block_bytes / c->layers + h * heads_bytes + pos % c->block_size * row_bytes,
                o + (size_t)(c->n_heads + h) * c->hd);
    }
    kc_end(&r);
}

static void case_rope(kc *k)
{
    kc_case(k, "rope_kv"); /* owns the memory from here on */
    kv_case c = any_kv(k, kc_between(k, 20, 200));
    c.rot = kc_below(k, 3) ? c.hd : kc_below(k, c.hd / 2) * 2;
    bool norms = kc_below(k, 2);
    kc_fill_scaled(k, c.inv_freq = NEW(k, c.hd, float), c.hd, 1);
    if (norms) {
        kc_fill_scaled(k, c.q_norm = NEW(k, c.hd, float), c.hd, 1);
        kc_fill_scaled(k, c.k_norm = NEW(k, c.hd, float), c.hd, 1);
    }
    kc_check_op(k, run_rope, &c, c.n_tokens, width_of(&c), NULL,
                kc_tol(k, "rope_kv") + (c.fmt == FMT_F16 ? 0x1p-10f : 0));
}

static void run_attention(kc *k, kern_dev *d, const void *cv, const uint32_t *tokens, uint32_t n, float *out)
{
    const kv_case *c = cv;
    kc_run r = kc_begin(k, d);
    uint64_t *addr = NEW(k, c->n_blocks, uint64_t);
    batch b = make_batch(k, c, tokens, n);
    size_t row = (size_t)c->n_heads * c->hd, o_bytes = b.n * row * sizeof(float);
    kern_attn_args a = {.n_tokens = b.n, .n_heads = c->n_heads, .layer = c->layer, .window = c->window, .scale = 0.3f};
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
    float *o = NEW(k, b.n * row, float);
    kc_get(&r, o, a.o, o_bytes);
    for (uint32_t i = 0; i < n; i++)
        memcpy(out + i * row, o + b.row_of[i] * row, row * sizeof *o);
    kc_end(&r);
}

static void case_attention(kc *k)
{
    kc_case(k, "attention");
    kv_case c = any_kv(k, kc_below(k, 3) ? kc_between(k, 20, 300) : kc_between(k, 400, 1600));
    c.window = kc_below(k, 3) ? 0 : kc_between(k, 1, c.longest);
    if (kc_below(k, 2))
        kc_fill_scaled(k, c.sinks = NEW(k, c.n_heads, float), c.n_heads, 3);
    /* Cells behind a token's position hold NaN: nothing may look at them. */
    memset(c.cache, 0xff, c.n_blocks * c.block_bytes);
    size_t row_bytes = kern_row_bytes(c.fmt, c.hd);
    for (uint32_t s = 0; s < c.n_seqs; s++) {
        uint32_t end = 0;
        for (uint32_t t = 0; t < c.n_tokens; t++)
            if (c.seq[t] == s)
                end = KC_MAX(end, c.pos[t] + 1);
        for (uint32_t pos = 0; pos < end; pos++)
            for (uint32_t h = 0; h < 2 * c.n_kv_heads; h++) {
                uint8_t *cell = c.cache + c.table[s * c.max_blocks + pos / c.block_size] * c.block_bytes +
                                c.layer * c.block_bytes / c.layers +
                                (h * c.block_size + pos % c.block_size) * row_bytes;
                for (uint32_t i = 0; i < c.hd; i++) {
                    float v = kc_uniform(k) * 4 - 2;
                    uint16_t half = (uint16_t)(kc_below(k, 0x400) | kc_between(k, 10, 15) << 10 | kc_below(k, 2) << 15);
                    memcpy(cell + i * row_bytes / c.hd, c.fmt == FMT_F32 ? (void *)&v : (void *)&half,
                           row_bytes / c.hd);
                }
            }
    }
    uint32_t width = c.n_heads * c.hd;
    float *ones = NEW(k, c.n_tokens * width, float);
    for (size_t i = 0; i < (size_t)c.n_tokens * width; i++)
        ones[i] = 2; /* of the order of V: an average may cancel */
    kc_check_op(k, run_attention, &c, c.n_tokens, width, ones, kc_tol(k, "attention"));
}

/* ---- router ------------------------------------------------------------------------------------------------------------------ */
typedef struct router_case {
    float *logits;
    uint32_t n_experts, top_k;
    kern_scoring scoring;
    bool norm;
} router_case;

static void run_router(kc *k, kern_dev *d, const void *cv, const uint32_t *tokens, uint32_t n, float *out)
{
    const router_case *c = cv;
    kc_run r = kc_begin(k, d);
    uint32_t *ids = NEW(k, n * c->top_k, uint32_t);
    float *weights = NEW(k, n * c->top_k, float);
    kern_router_args a = {
        .n_tokens = n, .n_experts = c->n_experts, .top_k = c->top_k, .scoring = c->scoring, .norm_topk = c->norm};
    size_t row = c->n_experts * sizeof(float), bytes = (size_t)n * c->top_k * 4;
    a.logits = kc_put(&r, gather(k, c->logits, row, tokens, n), n * row);
    a.ids = kc_room(&r, bytes);
    a.weights = kc_room(&r, bytes);
    kc_status(&r, d->ops->router(d, &a));
    kc_get(&r, ids, a.ids, bytes);
    kc_get(&r, weights, a.weights, bytes);
    for (uint32_t t = 0; t < n; t++)
        for (uint32_t i = 0; i < c->top_k; i++) {
            out[t * 2 * c->top_k + i] = weights[t * c->top_k + i];
            /* a wrong id is worth a thousand: beyond any tolerance */
            out[(t * 2 + 1) * c->top_k + i] = 1000.0f * (float)ids[t * c->top_k + i];
        }
    kc_end(&r);
}

static void case_router(kc *k)
{
    static const uint32_t sizes[] = {2, 8, 60, 64, 128, 256, 512};
    router_case c = {
        .n_experts = sizes[kc_below(k, 7)], .scoring = (kern_scoring)kc_below(k, 2), .norm = kc_below(k, 2)};
    c.top_k = kc_between(k, 1, KC_MIN(c.n_experts, 10u));
    uint32_t n = any_tokens(k);
    kc_case(k, "router %u of %u scoring %d norm %d tokens %u", c.top_k, c.n_experts, (int)c.scoring, c.norm, n);
    c.logits = NEW(k, n * c.n_experts, float);
    kc_fill_scaled(k, c.logits, (size_t)n * c.n_experts, 3);
    if (kc_below(k, 2)) /* ties */
        for (uint32_t i = 0; i < n * c.n_experts; i++)
            c.logits[i] = roundf(c.logits[i]);
    float *magnitude = NEW(k, n * 2 * c.top_k, float);
    for (uint32_t i = 0; i < n * 2 * c.top_k; i++)
        magnitude[i] = 1;
    kc_check_op(k, run_router, &c, n, 2 * c.top_k, magnitude, kc_tol(k, "router"));
}

/* ---- plan and experts ---------------------------------------------------------------------------------------------------------- */
typedef struct moe_case {
    kern_expert_geom g;
    uint32_t n_experts, top_k, n_tokens;
    uint8_t **pages; /* [n_experts * pages] */
    size_t *page_bytes;
    float *x, *y0, *weights;
    uint32_t *ids;
    bool fill;
    uint32_t padded; /* rows beyond n_live */
    uint32_t split;  /* not 0: every so many-th expert is computed by a call of its own */
} moe_case;

/* The pairs of the experts that are every split-th, or of all others, as a plan of their own. */
static void plan_part(kc *k, kc_run *r, const moe_case *c, kern_moe_args *a, bool every)
{
    uint32_t n_picks = a->n_tokens * c->top_k, n = 0;
    uint32_t *start = NEW(k, c->n_experts + 1, uint32_t), *pairs = NEW(k, n_picks, uint32_t);
    uint32_t *all_start = NEW(k, c->n_experts + 1, uint32_t), *all = NEW(k, n_picks, uint32_t);
    kc_get(r, all_start, a->expert_start, (c->n_experts + 1) * 4);
    kc_get(r, all, a->pairs, all_start[c->n_experts] * 4);
    for (uint32_t e = 0; e < c->n_experts; e++) {
        for (uint32_t i = all_start[e]; i < all_start[e + 1] && (e % c->split == 0) == every; i++)
            pairs[n++] = all[i];
        start[e + 1] = n;
    }
    a->expert_start = kc_put(r, start, (c->n_experts + 1) * 4);
    a->pairs = kc_put(r, pairs, n_picks * 4);
}

static void run_moe(kc *k, kern_dev *d, const void *cv, const uint32_t *tokens, uint32_t n, float *out)
{
    const moe_case *c = cv;
    kc_run r = kc_begin(k, d);
    uint32_t rows = n + c->padded, n_pages = c->n_experts * c->g.pages, dm = c->g.d_model, top_k = c->top_k;
    uint32_t *padded_tokens = NEW(k, rows, uint32_t);
    memcpy(padded_tokens, tokens, n * sizeof *tokens);

    kern_moe_args a = {.geom = c->g, .n_tokens = rows, .top_k = top_k, .n_experts = c->n_experts};
    uint64_t *page_addr = NEW(k, n_pages, uint64_t);
    for (uint32_t p = 0; p < n_pages; p++)
        page_addr[p] = (uint64_t)(uintptr_t)kc_put(&r, c->pages[p], c->page_bytes[p]);
    a.page_addr = kc_put(&r, page_addr, n_pages * sizeof *page_addr);
    a.x = kc_put(&r, gather(k, c->x, dm * 4, padded_tokens, rows), (size_t)rows * dm * 4);
    a.y = kc_put(&r, gather(k, c->y0, dm * 4, padded_tokens, rows), (size_t)rows * dm * 4);
    a.ids = kc_put(&r, gather(k, c->ids, top_k * 4, padded_tokens, rows), (size_t)rows * top_k * 4);
    a.weights = kc_put(&r, gather(k, c->weights, top_k * 4, padded_tokens, rows), (size_t)rows * top_k * 4);
    a.n_live = c->padded ? kc_put(&r, &n, sizeof n) : NULL;
    a.scratch = kc_room(&r, d->ops->moe_scratch_bytes(d, rows, top_k, &c->g));

    kern_plan_args p = {.ids = a.ids,
                        .n_live = a.n_live,
                        .n_tokens = rows,
                        .top_k = top_k,
                        .n_experts = c->n_experts,
                        .pages = c->g.pages};
    p.expert_start = kc_room(&r, (c->n_experts + 1) * 4);
    p.pairs = kc_room(&r, (size_t)rows * top_k * 4);
    p.expert_count = kc_room(&r, c->n_experts * 4);
    uint32_t n_free = c->fill ? 4 : 0, used = 1; /* one slot was taken by an earlier layer */
    uint64_t slots[4] = {0};
    uint8_t *admit = NULL;
    size_t slot_bytes = 0;
    for (uint32_t i = 0; i < n_pages; i++)
        slot_bytes = KC_MAX(slot_bytes, c->page_bytes[i]);
    if (c->fill) {
        for (uint32_t i = 0; i < n_free; i++)
            slots[i] = (uint64_t)(uintptr_t)kc_room(&r, slot_bytes);
        p.free_slots = kc_put(&r, slots, sizeof slots);
        p.free_used = kc_put(&r, &used, sizeof used);
        p.fill_addr = kc_room(&r, n_pages * 8);
        p.fill_log = kc_room(&r, n_free * 4);
        p.page_addr = a.page_addr;
        p.fill_log_base = 1000;
        p.n_free = n_free;
        p.max_inserts = 2;
        /* every third expert is not worth a slot */
        admit = NEW(k, c->n_experts, uint8_t);
        for (uint32_t e = 0; e < c->n_experts; e++)
            admit[e] = e % 3 != 2;
        p.admit = kc_put(&r, admit, c->n_experts);
        /* page 0 of expert 0 counts as VRAM */
        p.arena_begin = page_addr[0];
        p.arena_end = page_addr[0] + 1;
        a.fill_addr = p.fill_addr;
        a.arena_begin = p.arena_begin;
        a.arena_end = p.arena_end;
    } else if (c->n_experts % 2) {
        a.arena_end = UINT64_MAX; /* all of it is VRAM */
    }
    a.expert_start = p.expert_start;
    a.pairs = p.pairs;
    kc_status(&r, d->ops->plan(d, &p));
    for (int part = 0; part < 2 && c->split && d != k->ref; part++) {
        kern_moe_args half = a;
        plan_part(k, &r, c, &half, part);
        kc_status(&r, d->ops->clear(d, a.scratch, d->ops->moe_scratch_bytes(d, rows, top_k, &c->g)));
        kc_status(&r, d->ops->moe(d, &half));
    }
    if (!c->split || d == k->ref)
        kc_status(&r, d->ops->moe(d, &a));
    kc_get(&r, out, a.y, (size_t)n * dm * 4);

    uint32_t *start = NEW(k, c->n_experts + 1, uint32_t), *pairs = NEW(k, rows * top_k, uint32_t);
    uint32_t *count = NEW(k, c->n_experts, uint32_t);
    kc_get(&r, start, p.expert_start, (c->n_experts + 1) * 4);
    kc_get(&r, pairs, p.pairs, (size_t)n * top_k * 4);
    kc_get(&r, count, p.expert_count, c->n_experts * 4);
    if (!k->case_unsupported) {
        if (start[0] != 0 || start[c->n_experts] != n * top_k)
            kc_fail(k, "plan: %u pairs instead of %u", start[c->n_experts], n * top_k);
        for (uint32_t e = 0; e < c->n_experts && !k->case_failed; e++) {
            if (count[e] != start[e + 1] - start[e])
                kc_fail(k, "plan: expert %u counted %u, holds %u", e, count[e], start[e + 1] - start[e]);
            for (uint32_t i = start[e]; i < start[e + 1]; i++)
                if (pairs[i] >= n * top_k || c->ids[tokens[pairs[i] / top_k] * top_k + pairs[i] % top_k] != e ||
                    (i > start[e] && pairs[i] <= pairs[i - 1]))
                    kc_fail(k, "plan: pair %u of expert %u is %u", i, e, pairs[i]);
        }
    }
    if (c->fill && !k->case_unsupported) {
        uint32_t now, log[4], expect[4], n_expect = 0;
        uint8_t *page = NEW(k, slot_bytes, uint8_t);
        kc_get(&r, &now, p.free_used, 4);
        kc_get(&r, log, p.fill_log, sizeof log);
        for (uint32_t i = 1; i < n_pages && n_expect < 2; i++)
            if (count[i / c->g.pages] && admit[i / c->g.pages])
                expect[n_expect++] = i;
        if (now != used + n_expect)
            kc_fail(k, "fill: %u slots used instead of %u", now - used, n_expect);
        for (uint32_t i = 0; i < n_expect && !k->case_failed; i++) {
            if (log[used + i] != 1000 + expect[i])
                kc_fail(k, "fill: slot %u logged as %u instead of %u", i, log[used + i], 1000 + expect[i]);
            kc_get(&r, page, (const void *)(uintptr_t)slots[used + i], c->page_bytes[expect[i]]);
            if (memcmp(page, c->pages[expect[i]], c->page_bytes[expect[i]]) != 0)
                kc_fail(k, "fill: page %u did not arrive whole", expect[i]);
        }
    }
    kc_end(&r);
}

/* What an error of 1 in each product (relative to its sum of magnitudes) does to y: the products of gate and up enter hidden by
 * silu' <= 1.1 and by each other's value, and hidden enters down. */
static float *moe_magnitude(kc *k, const moe_case *c, uint8_t *const *matrices)
{
    const uint32_t dm = c->g.d_model, ff = c->g.d_ff;
    float *out = NEW(k, c->n_tokens * dm, float), **w = NEW(k, c->n_experts * 3, float *);
    for (uint32_t i = 0; i < c->n_experts * 3; i++) {
        uint32_t cols = i % 3 == 2 ? ff : dm;
        w[i] = decoded(k, (kern_mat){.data = matrices[i],
                                     .row_bytes = kern_row_bytes(c->g.fmt, cols),
                                     .rows = i % 3 == 2 ? dm : ff,
                                     .cols = cols,
                                     .fmt = c->g.fmt});
    }
    double *hidden = NEW(k, ff, double), *value = NEW(k, ff, double);
    for (uint32_t t = 0; t < c->n_tokens; t++) {
        const float *x = c->x + (size_t)t * dm;
        for (uint32_t i = 0; i < dm; i++)
            out[(size_t)t * dm + i] = fabsf(c->y0[(size_t)t * dm + i]);
        for (uint32_t p = 0; p < c->top_k; p++) {
            float *const *m = w + (size_t)c->ids[t * c->top_k + p] * 3;
            for (uint32_t f = 0; f < ff; f++) {
                double g = 0, u = 0, g_mag = 0, u_mag = 0;
                for (uint32_t i = 0; i < dm; i++) {
                    double gx = (double)m[0][(size_t)f * dm + i] * (double)x[i];
                    double ux = (double)m[1][(size_t)f * dm + i] * (double)x[i];
                    g += gx;
                    u += ux;
                    g_mag += fabs(gx) + lost_when_split(k, "moe", (double)m[0][(size_t)f * dm + i], (double)x[i]);
                    u_mag += fabs(ux) + lost_when_split(k, "moe", (double)m[1][(size_t)f * dm + i], (double)x[i]);
                }
                double silu = fabs(g / (1 + exp(-g)));
                value[f] = silu * fabs(u);
                hidden[f] = 1.1 * g_mag * fabs(u) + silu * u_mag + value[f];
            }
            double weight = fabs((double)c->weights[t * c->top_k + p]);
            for (uint32_t i = 0; i < dm; i++) {
                double sum = 0;
                for (uint32_t f = 0; f < ff; f++) {
                    double q = (double)m[2][(size_t)i * ff + f];
                    sum += fabs(q) * hidden[f] + lost_when_split(k, "moe", q, value[f]);
                }
                out[(size_t)t * dm + i] += (float)(weight * sum);
            }
        }
    }
    return out;
}

/* Weights of F32 with scales of their own for gate, up and down; NULL: any temper. */
static void check_moe(kc *k, kern_fmt fmt, const float *scales)
{
    uint32_t block = kern_fmt_get(fmt).block_len > 1 ? 32 : 4;
    kern_expert_geom g = {.fmt = fmt, .d_model = block * kc_between(k, 1, 12), .d_ff = block * kc_between(k, 1, 9)};
    moe_case c = {.n_experts = kc_between(k, 2, 12), .n_tokens = any_tokens(k)};
    c.top_k = kc_between(k, 1, KC_MIN(c.n_experts, 5u));
    c.fill = kc_below(k, 2);
    c.padded = kc_below(k, 2) ? 0 : kc_between(k, 1, 5);
    c.split = c.fill || scales ? 0 : kc_below(k, 4);
    kc_case(k, "moe %s d_model %u d_ff %u experts %u top_k %u tokens %u fill %d padded %u split %u%s",
            kern_fmt_get(fmt).name, g.d_model, g.d_ff, c.n_experts, c.top_k, c.n_tokens, c.fill, c.padded, c.split,
            scales ? " scaled" : "");

    for (uint32_t m = 0; m < 3; m++) {
        uint32_t rows = m == 2 ? g.d_model : g.d_ff;
        g.row_bytes[m] = kern_row_bytes(fmt, m == 2 ? g.d_ff : g.d_model);
        g.page_rows[m] = kc_below(k, 2) ? rows : kc_between(k, 1 + rows / 5, rows);
        g.first_page[m] = g.pages;
        g.pages += (rows + g.page_rows[m] - 1) / g.page_rows[m];
    }
    c.g = g;
    c.pages = NEW(k, c.n_experts * g.pages, uint8_t *);
    c.page_bytes = NEW(k, c.n_experts * g.pages, size_t);
    uint8_t **matrices = NEW(k, c.n_experts * 3, uint8_t *);
    for (uint32_t e = 0; e < c.n_experts; e++)
        for (uint32_t m = 0; m < 3; m++) {
            uint32_t rows = m == 2 ? g.d_model : g.d_ff, cols = m == 2 ? g.d_ff : g.d_model;
            uint8_t *w = matrices[e * 3 + m] = kc_weights(k, fmt, rows, cols);
            if (scales)
                kc_fill_scaled(k, (float *)(void *)w, (size_t)rows * cols, scales[m]);
            for (uint32_t at = 0, p = e * g.pages + g.first_page[m]; at < rows; at += g.page_rows[m], p++) {
                c.pages[p] = w + at * g.row_bytes[m];
                c.page_bytes[p] = KC_MIN(rows - at, g.page_rows[m]) * g.row_bytes[m];
            }
        }
    c.x = NEW(k, c.n_tokens * g.d_model, float);
    c.y0 = NEW(k, c.n_tokens * g.d_model, float);
    c.weights = NEW(k, c.n_tokens * c.top_k, float);
    c.ids = NEW(k, c.n_tokens * c.top_k, uint32_t);
    kc_fill_scaled(k, c.x, (size_t)c.n_tokens * g.d_model, 0.2f);
    kc_fill_scaled(k, c.weights, (size_t)c.n_tokens * c.top_k, 1);
    for (uint32_t t = 0; t < c.n_tokens; t++)
        for (uint32_t i = 0; i < c.top_k; i++) {
            uint32_t e, j;
            do {
                /* lopsided, so that some buckets are large and some experts untouched */
                e = kc_below(k, 1 + kc_below(k, c.n_experts));
                for (j = 0; j < i && c.ids[t * c.top_k + j] != e; j++)
                    ;
            } while (j < i);
            c.ids[t * c.top_k + i] = e;
        }
    kc_check_op(k, run_moe, &c, c.n_tokens, g.d_model, moe_magnitude(k, &c, matrices), kc_tol(k, "moe"));
}

static void case_moe(kc *k)
{
    check_moe(k, any_fmt(k), NULL);
}

static void case_moe_tiny(kc *k)
{
    static const float scales[][3] = {{1, 1e-37f, 1e14f}, {1, 1e14f, 1e-37f}, {1e-37f, 1e14f, 1e20f}};
    check_moe(k, FMT_F32, scales[kc_below(k, 3)]);
}

/* ---- choices among logits ------------------------------------------------------------------------------------------------------- */
static void run_logits(kc *k, kern_dev *d, const void *cv, const uint32_t *tokens, uint32_t n, float *out)
{
    const row_case *c = cv;
    kc_run r = kc_begin(k, d);
    size_t row = c->dim * sizeof(float), ids_bytes = (size_t)n * KERN_TOP_LOGITS * 4;
    const float *logits = kc_put(&r, gather(k, c->x, row, tokens, n), n * row);
    kern_argmax_args m = {.logits = logits, .ids = kc_room(&r, n * 4), .n_tokens = n, .vocab = c->dim};
    kern_top_logits_args t = {.logits = logits, .n_tokens = n, .vocab = c->dim};
    t.ids = kc_room(&r, ids_bytes);
    t.values = kc_room(&r, ids_bytes);
    t.logsumexp = kc_room(&r, n * 4);
    kc_status(&r, d->ops->argmax(d, &m));
    kc_status(&r, d->ops->top_logits(d, &t));
    uint32_t *best = NEW(k, n, uint32_t), *ids = NEW(k, n * KERN_TOP_LOGITS, uint32_t);
    float *values = NEW(k, n * KERN_TOP_LOGITS, float), *lse = NEW(k, n, float);
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
    row_case c = {.x = NEW(k, n * vocab, float), .dim = vocab};
    kc_fill_scaled(k, c.x, (size_t)n * vocab, 5);
    if (kc_below(k, 2))
        for (size_t i = 0; i < (size_t)n * vocab; i++)
            c.x[i] = roundf(c.x[i] * 4) / 4; /* many ties */
    uint32_t width = 2 * KERN_TOP_LOGITS + 2;
    float *magnitude = NEW(k, n * width, float); /* zero but for logsumexp: the choices are exact */
    for (uint32_t t = 0; t < n; t++)
        magnitude[t * width] = 10;
    kc_check_op(k, run_logits, &c, n, width, magnitude, kc_tol(k, "logsumexp"));
}

const kc_case_row kc_cases[] = {
    {"embed", case_embed},
    {"rmsnorm", case_rmsnorm},
    {"swiglu", case_swiglu},
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
    {"add", case_add},
    {0},
};
