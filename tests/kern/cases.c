/* cases.c - the table of kerncheck's random cases, what they share, and those of operations on rows: embed, norms, swiglu, add, choices among logits.
 * Others: linear.c, attention.c, delta.c, route.c, experts.c, memory.c. Shapes lean to odd tails, single tokens and buckets of all sizes. */
#include "tests/kern/kc.h"

#include <math.h>
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
    if (kern_cuts_blocks(fmt))
        return 4;
    return k->cuda && fmt == FMT_MXFP4 ? 64 : kern_fmt_get(fmt).block_len; /* rows of whole words */
}

uint32_t kc_any_cols(kc *k, kern_fmt fmt)
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

kern_mat kc_any_mat(kc *k, kern_fmt fmt, uint32_t rows, uint32_t cols)
{
    return (kern_mat){.data = kc_weights(k, fmt, rows, cols),
                      .row_bytes = kern_row_bytes(fmt, cols),
                      .rows = rows,
                      .cols = cols,
                      .fmt = fmt};
}

kern_mat kc_put_mat(kc_run *r, kern_mat m)
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
    kern_embed_args a = {.y = kc_room(&r, bytes), .table = kc_put_mat(&r, c->table), .n_tokens = n, .scale = c->scale};
    a.ids = kc_put(&r, kc_gather(k, c->ids, sizeof *c->ids, tokens, n), n * sizeof *c->ids);
    kc_status(&r, d->ops->embed(d, &a));
    kc_get(&r, out, a.y, bytes);
    kc_end(&r);
}

static void case_embed(kc *k)
{
    kern_fmt fmt = kc_any_fmt(k);
    uint32_t n = kc_any_tokens(k), rows = kc_between(k, 1, 9), cols = kc_any_cols(k, fmt);
    kc_case(k, "embed %s rows %u cols %u tokens %u", kern_fmt_get(fmt).name, rows, cols, n);
    embed_case c = {
        .table = kc_any_mat(k, fmt, rows, cols), .ids = KC_NEW(k, n, uint32_t), .scale = kc_below(k, 2) ? 1.0f : 11.3f};
    for (uint32_t t = 0; t < n; t++)
        c.ids[t] = kc_below(k, rows);
    kc_check_op(k, run_embed, &c, n, cols, NULL, kc_tol(k, "embed"));
}

/* ---- rmsnorm, swiglu, add ----------------------------------------------------------------------------------------------- */
typedef struct row_case {
    float *x, *weight; /* weight of swiglu: one of each token, or NULL */
    float *to;         /* what a norm is added to, or NULL; a layer norm's bias */
    uint32_t dim;
    bool in_place;
    uint32_t n_indexed; /* of a layer norm: rows of x, which are taken by their index; 0: all in order */
    kern_act act;
    float scale;
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
    a.add_to = c->to ? kc_put(&r, kc_gather(k, c->to, row, tokens, n), n * row) : NULL;
    a.scale = c->scale;
    kc_status(&r, d->ops->rmsnorm(d, &a));
    float *y = KC_NEW(k, n * c->dim, float), *to = KC_NEW(k, n * c->dim, float);
    kc_get(&r, y, a.y, n * row);
    if (c->to)
        kc_get(&r, to, a.add_to, n * row);
    for (uint32_t t = 0; t < n; t++) {
        memcpy(out + 2 * t * c->dim, y + t * c->dim, row);
        memcpy(out + (2 * t + 1) * c->dim, to + t * c->dim, row);
    }
    kc_end(&r);
}

static void case_rmsnorm(kc *k)
{
    uint32_t n = kc_any_tokens(k), dim = kc_between(k, 1, 700);
    const bool adds = kc_below(k, 2);
    kc_case(k, "rmsnorm dim %u tokens %u%s", dim, n, adds ? " added" : "");
    row_case c = {
        .x = KC_NEW(k, n * dim, float), .weight = KC_NEW(k, dim, float), .dim = dim, .in_place = kc_below(k, 2)};
    kc_fill(k, c.x, (size_t)n * dim);
    kc_fill_scaled(k, c.weight, dim, 1);
    if (adds) {
        kc_fill_scaled(k, c.to = KC_NEW(k, n * dim, float), (size_t)n * dim, 1);
        c.scale = kc_below(k, 2) ? 1 : kc_uniform(k);
    }
    kc_check_op(k, run_rmsnorm, &c, n, 2 * dim, NULL, kc_tol(k, "rmsnorm"));
}

static void run_layernorm(kc *k, kern_dev *d, const void *cv, const uint32_t *tokens, uint32_t n, float *out)
{
    const row_case *c = cv;
    kc_run r = kc_begin(k, d);
    size_t row = c->dim * sizeof *out;
    kern_layernorm_args a = {.y = kc_room(&r, n * row), .n_tokens = n, .dim = c->dim, .eps = 1e-5f};
    a.x = c->n_indexed ? kc_put(&r, c->x, c->n_indexed * row) : kc_put(&r, kc_gather(k, c->x, row, tokens, n), n * row);
    a.row_idx = c->n_indexed ? kc_put(&r, tokens, n * sizeof *tokens) : NULL;
    a.weight = kc_put(&r, c->weight, row);
    a.bias = kc_put(&r, c->to, row);
    kc_status(&r, d->ops->layernorm(d, &a));
    kc_get(&r, out, a.y, n * row);
    kc_end(&r);
}

static void case_layernorm(kc *k)
{
    uint32_t n = kc_any_tokens(k), dim = kc_below(k, 4) ? kc_between(k, 1, 700) : kc_between(k, 3000, 5000);
    const float mean = dim < 64 || kc_below(k, 2) ? 0 : 8; /* few values may lie close together, far from 0 */
    row_case c = {.dim = dim, .n_indexed = kc_below(k, 2) ? n : 0};
    kc_case(k, "layernorm dim %u around %g tokens %u%s", dim, (double)mean, n, c.n_indexed ? " by index" : "");
    c.x = KC_NEW(k, n * dim, float);
    c.weight = KC_NEW(k, dim, float);
    c.to = KC_NEW(k, dim, float);
    kc_fill_scaled(k, c.x, (size_t)n * dim, 1);
    for (size_t i = 0; i < (size_t)n * dim; i++)
        c.x[i] += mean;
    kc_fill_scaled(k, c.weight, dim, 1);
    kc_fill_scaled(k, c.to, dim, 1);
    kc_check_op(k, run_layernorm, &c, n, dim, NULL, kc_tol(k, "layernorm") * (1 + mean));
}

static void run_swiglu(kc *k, kern_dev *d, const void *cv, const uint32_t *tokens, uint32_t n, float *out)
{
    const row_case *c = cv;
    kc_run r = kc_begin(k, d);
    size_t row = c->dim * sizeof *out, y_row = c->act == KERN_RELU2 ? 2 * row : row;
    kern_swiglu_args a = {.y = kc_room(&r, n * y_row), .n_tokens = n, .dim = c->dim, .act = c->act};
    a.act_limit = c->scale;
    a.gate_up = kc_put(&r, kc_gather(k, c->x, 2 * row, tokens, n), 2 * n * row);
    a.row_gate = c->weight ? kc_put(&r, kc_gather(k, c->weight, sizeof *out, tokens, n), n * sizeof *out) : NULL;
    kc_status(&r, d->ops->swiglu(d, &a));
    kc_get(&r, out, a.y, n * y_row);
    kc_end(&r);
}

static void case_swiglu(kc *k)
{
    uint32_t n = kc_any_tokens(k), dim = kc_between(k, 1, 300);
    static const struct {
        kern_act act;
        const char *name;
    } acts[] = {
        {KERN_SWIGLU, "swiglu"}, {KERN_GEGLU, "geglu"}, {KERN_RELU2, "relu2"}, {KERN_SWIGLU_LIMITED, "limited"}};
    const uint32_t which = kc_below(k, 4);
    row_case c = {.dim = dim, .act = acts[which].act, .scale = (float)kc_between(k, 1, 9)};
    const uint32_t y_dim = c.act == KERN_RELU2 ? 2 * dim : dim;
    kc_case(k, "%s dim %u tokens %u", acts[which].name, dim, n);
    c.x = KC_NEW(k, 2 * n * dim, float);
    kc_fill(k, c.x, (size_t)2 * n * dim);
    if (kc_below(k, 2))
        kc_fill_scaled(k, c.weight = KC_NEW(k, n, float), n, 4);
    for (uint32_t i = 0; i < n * dim; i++)
        if (kc_below(k, 8) == 0)
            c.x[i] *= 40; /* the flat ends of silu and gelu */
    float *magnitude = KC_NEW(k, n * y_dim, float);
    for (uint32_t t = 0; t < n; t++)
        for (uint32_t i = 0; i < y_dim; i++)
            magnitude[t * y_dim + i] =
                fabsf(c.x[2 * t * dim + i] * c.x[2 * t * dim + (c.act == KERN_RELU2 ? i : dim + i)]);
    kc_check_op(k, run_swiglu, &c, n, y_dim, magnitude, kc_tol(k, "swiglu"));
}

static void run_softcap(kc *k, kern_dev *d, const void *cv, const uint32_t *tokens, uint32_t n, float *out)
{
    const row_case *c = cv;
    kc_run r = kc_begin(k, d);
    size_t row = c->dim * sizeof *out;
    kern_softcap_args a = {.y = kc_put(&r, kc_gather(k, c->x, row, tokens, n), n * row), .cap = c->scale};
    a.n = (uint64_t)n * c->dim;
    kc_status(&r, d->ops->softcap(d, &a));
    kc_get(&r, out, a.y, n * row);
    kc_end(&r);
}

static void case_softcap(kc *k)
{
    uint32_t n = kc_any_tokens(k), dim = kc_below(k, 3) ? kc_between(k, 1, 700) : kc_between(k, 4000, 9000);
    row_case c = {.dim = dim, .scale = kc_below(k, 2) ? 30 : 0.7f};
    kc_case(k, "softcap %g dim %u tokens %u", (double)c.scale, dim, n);
    kc_fill_scaled(k, c.x = KC_NEW(k, n * dim, float), (size_t)n * dim, kc_below(k, 2) ? 1.0f : 60.0f);
    kc_check_op(k, run_softcap, &c, n, dim, NULL, kc_tol(k, "swiglu"));
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
    {"layernorm", case_layernorm},
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
    {"shortconv", case_shortconv},
    {"shortconv_long", case_shortconv_long},
    {"ssm", case_ssm},
    {"ssm_long", case_ssm_long},
    {"gate", case_gate},
    {"softcap", case_softcap},
    {"attention_chosen", case_attention_chosen},
    {"index_rope", case_index_rope},
    {"index", case_index},
    {0},
};
