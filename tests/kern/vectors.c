/* vectors.c - replays tests/data/kern/vectors.txt: inputs and outputs of every operation as numpy computed them. The one check in
 * which the scalar reference itself is judged by something else. */
#include "tests/kern/kc.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_ARRAYS 16

typedef struct array {
    char name[24], kind[8];
    size_t n, bytes;
    void *data;
} array;

typedef struct vectors {
    kc *k;
    FILE *f;
    char line[1024]; /* "case ..." of the case being read, then of the next one */
    char op[24], params[1000];
    array arrays[MAX_ARRAYS];
    uint32_t n_arrays;
} vectors;

static void bad(const vectors *v, const char *what)
{
    fprintf(stderr, "kerncheck: vectors: case '%s %s': %s\n", v->op, v->params, what);
    exit(1);
}

static void read_words(vectors *v, array *a)
{
    unsigned width = strcmp(a->kind, "u8") == 0 ? 1 : strcmp(a->kind, "u16") == 0 ? 2 : 4;
    a->bytes = a->n * width;
    a->data = kc_alloc(v->k, a->bytes);
    for (size_t i = 0; i < a->n; i++) {
        unsigned word;
        if (fscanf(v->f, width == 1 ? "%2x" : "%x", &word) != 1)
            bad(v, "short array");
        memcpy((char *)a->data + i * width, &word, width); /* little-endian, as the formats are */
    }
}

static bool read_case(vectors *v)
{
    char word[24];
    if (strncmp(v->line, "case ", 5) != 0)
        return false;
    sscanf(v->line, "case %23s %999[^\n]", v->op, v->params);
    kc_case(v->k, "vector %s %.200s", v->op, v->params);
    v->n_arrays = 0;
    v->line[0] = '\0';
    while (fscanf(v->f, " %23s", word) == 1) {
        if (strcmp(word, "case") == 0) {
            memcpy(v->line, "case", 4);
            if (!fgets(v->line + 4, sizeof v->line - 4, v->f))
                bad(v, "short line");
            return true;
        }
        if (v->n_arrays == MAX_ARRAYS)
            bad(v, "too many arrays");
        array *a = &v->arrays[v->n_arrays++];
        memcpy(a->name, word, sizeof word);
        if (fscanf(v->f, "%7s %zu", a->kind, &a->n) != 2)
            bad(v, "no type and count");
        read_words(v, a);
    }
    return true;
}

static const char *find_param(const vectors *v, const char *key)
{
    size_t len = strlen(key);
    for (const char *p = v->params; p; p = strchr(p, ' ')) {
        p += *p == ' ';
        if (strncmp(p, key, len) == 0 && p[len] == '=')
            return p + len + 1;
    }
    return NULL;
}

static double param(const vectors *v, const char *key)
{
    const char *text = find_param(v, key);
    if (!text)
        bad(v, key);
    return strtod(text, NULL);
}

static uint32_t num(const vectors *v, const char *key)
{
    return (uint32_t)param(v, key);
}

static kern_fmt fmt_of(const vectors *v)
{
    for (int f = 0; f < FMT_COUNT; f++) {
        char text[16];
        snprintf(text, sizeof text, "fmt=%s", kern_fmt_get((kern_fmt)f).name);
        if (strstr(v->params, text))
            return (kern_fmt)f;
    }
    bad(v, "format");
    return FMT_F32;
}

static const array *get(const vectors *v, const char *name)
{
    for (uint32_t i = 0; i < v->n_arrays; i++)
        if (strcmp(v->arrays[i].name, name) == 0)
            return &v->arrays[i];
    bad(v, name);
    return NULL;
}

static void *put(kc_run *r, const vectors *v, const char *name)
{
    const array *a = get(v, name);
    return kc_put(r, a->data, a->bytes);
}

/* Downloads and compares with the float array `name`. */
static void expect(kc_run *r, const vectors *v, const char *name, const void *device, uint32_t width, float tol)
{
    const array *a = get(v, name);
    float *got = kc_alloc(r->k, a->bytes);
    kc_get(r, got, device, a->bytes);
    if (!r->k->case_unsupported)
        kc_compare(r->k, name, got, a->data, NULL, a->n, width, tol);
}

static void expect_ids(kc_run *r, const vectors *v, const char *name, const void *device)
{
    const array *a = get(v, name);
    uint32_t *got = kc_alloc(r->k, a->bytes);
    const uint32_t *want = a->data;
    kc_get(r, got, device, a->bytes);
    for (size_t i = 0; i < a->n && !r->k->case_unsupported; i++)
        if (got[i] != want[i])
            kc_fail(r->k, "%s[%zu] is %u instead of %u", name, i, got[i], want[i]);
}

static kern_mat mat(kc_run *r, const vectors *v, const char *name)
{
    kern_fmt fmt = fmt_of(v);
    uint32_t cols = num(v, "cols");
    return (kern_mat){.data = put(r, v, name),
                      .row_bytes = kern_row_bytes(fmt, cols),
                      .rows = num(v, "rows"),
                      .cols = cols,
                      .fmt = fmt};
}

static void replay_embed(kc_run *r, const vectors *v)
{
    kern_embed_args a = {.table = mat(r, v, "w"), .ids = put(r, v, "ids"), .n_tokens = (uint32_t)get(v, "ids")->n};
    a.scale = (float)param(v, "scale");
    a.y = kc_room(r, get(v, "y")->bytes);
    kc_status(r, r->d->ops->embed(r->d, &a));
    expect(r, v, "y", a.y, a.table.cols, a.scale == 1 ? 0 : 1e-7f);
}

static void replay_rmsnorm(kc_run *r, const vectors *v)
{
    kern_rmsnorm_args a = {
        .x = put(r, v, "x"), .weight = put(r, v, "weight"), .dim = num(v, "dim"), .eps = (float)param(v, "eps")};
    a.n_tokens = (uint32_t)get(v, "x")->n / a.dim;
    a.y = kc_room(r, get(v, "y")->bytes);
    const bool adds = find_param(v, "add_scale");
    if (adds) {
        a.add_to = put(r, v, "to");
        a.scale = (float)param(v, "add_scale");
    }
    kc_status(r, r->d->ops->rmsnorm(r->d, &a));
    expect(r, v, "y", a.y, a.dim, kc_tol(r->k, "rmsnorm"));
    if (adds)
        expect(r, v, "sum", a.add_to, a.dim, kc_tol(r->k, "rmsnorm"));
}

static void replay_layernorm(kc_run *r, const vectors *v)
{
    kern_layernorm_args a = {.x = put(r, v, "x"),
                             .weight = put(r, v, "weight"),
                             .bias = put(r, v, "bias"),
                             .row_idx = put(r, v, "row_idx"),
                             .n_tokens = (uint32_t)get(v, "row_idx")->n,
                             .dim = num(v, "dim"),
                             .eps = (float)param(v, "eps")};
    a.y = kc_room(r, get(v, "y")->bytes);
    kc_status(r, r->d->ops->layernorm(r->d, &a));
    expect(r, v, "y", a.y, a.dim, kc_tol(r->k, "layernorm"));
}

static void replay_softcap(kc_run *r, const vectors *v)
{
    kern_softcap_args a = {.y = put(r, v, "x"), .n = get(v, "x")->n, .cap = (float)param(v, "cap")};
    kc_status(r, r->d->ops->softcap(r->d, &a));
    expect(r, v, "y", a.y, (uint32_t)a.n, kc_tol(r->k, "swiglu"));
}

static void replay_qkv_norm(kc_run *r, const vectors *v)
{
    kern_qkv_norm_args a = {.qkv = put(r, v, "qkv"), .q_width = num(v, "q_width"), .kv_width = num(v, "kv_width")};
    a.n_tokens = (uint32_t)get(v, "qkv")->n / (a.q_width + 2 * a.kv_width);
    if (num(v, "norms")) {
        a.q_norm = put(r, v, "q_norm");
        a.k_norm = put(r, v, "k_norm");
    }
    a.eps = (float)param(v, "eps");
    a.clip = (float)param(v, "clip");
    kc_status(r, r->d->ops->qkv_norm(r->d, &a));
    expect(r, v, "y", a.qkv, a.q_width + 2 * a.kv_width, kc_tol(r->k, "rmsnorm"));
}

static void replay_swiglu(kc_run *r, const vectors *v)
{
    kern_swiglu_args a = {.gate_up = put(r, v, "gate_up"), .dim = num(v, "dim"), .n_tokens = 2};
    a.row_gate = num(v, "gated") ? put(r, v, "row_gate") : NULL;
    a.act = find_param(v, "geglu")   ? KERN_GEGLU
            : find_param(v, "relu2") ? KERN_RELU2
            : find_param(v, "limit") ? KERN_SWIGLU_LIMITED
                                     : KERN_SWIGLU;
    if (a.act == KERN_SWIGLU_LIMITED)
        a.act_limit = (float)param(v, "limit");
    a.y = kc_room(r, get(v, "y")->bytes);
    kc_status(r, r->d->ops->swiglu(r->d, &a));
    expect(r, v, "y", a.y, a.act == KERN_RELU2 ? 2 * a.dim : a.dim, kc_tol(r->k, "swiglu"));
}

static void replay_linear(kc_run *r, const vectors *v)
{
    kern_linear_args a = {.w = mat(r, v, "w"), .x = put(r, v, "x"), .row_idx = put(r, v, "row_idx"), .n_tokens = 3};
    a.x_stride = a.w.cols;
    a.y_stride = a.w.rows;
    a.bias = num(v, "bias") ? put(r, v, "b") : NULL;
    a.accumulate = num(v, "accumulate");
    a.y = put(r, v, "y0");
    kc_status(r, r->d->ops->linear(r->d, &a));
    expect(r, v, "y", a.y, a.w.rows, 4 * kc_tol(r->k, "linear"));
}

static uint16_t half_of_exact(float f)
{
    uint32_t bits, mag;
    memcpy(&bits, &f, 4);
    mag = bits & 0x7fffffffu;
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000u);
    if (mag >= 0x7f800000u)
        return sign | 0x7c00u;
    if (mag < 0x38800000u) {
        float abs_f;
        memcpy(&abs_f, &mag, 4);
        return (uint16_t)(sign | (uint16_t)(abs_f * 0x1p24f));
    }
    return (uint16_t)(sign | (uint16_t)((mag >> 13) - (112u << 10)));
}

static float float_of_half(uint16_t h)
{
    float mantissa = (float)(h & 0x3ff), out;
    uint32_t bits = (uint32_t)(h & 0x8000) << 16 | (((uint32_t)(h & 0x7fff) << 13) + (112u << 23));
    if ((h >> 10 & 31) == 0)
        return (h & 0x8000 ? -mantissa : mantissa) * 0x1p-24f;
    if ((h >> 10 & 31) == 31)
        bits = (uint32_t)(h & 0x8000) << 16 | 0x7f800000u | (uint32_t)(h & 0x3ff) << 13;
    memcpy(&out, &bits, 4);
    return out;
}

static void replay_linear_heads(kc_run *r, const vectors *v)
{
    kern_linear_heads_args a = {.n_heads = num(v, "heads"), .tail = num(v, "tail"), .n_tokens = num(v, "tokens")};
    a.w = (kern_mat){.rows = num(v, "rows"), .cols = num(v, "cols"), .fmt = fmt_of(v)};
    a.w.row_bytes = kern_row_bytes(a.w.fmt, a.w.cols);
    a.w.data = put(r, v, "w");
    /* Between two heads' matrices lie `skip` rows of another one. */
    a.head_bytes = (a.w.rows + num(v, "skip")) * a.w.row_bytes;
    a.x = put(r, v, "x");
    a.x_head_stride = a.w.cols + a.tail;
    a.x_stride = a.n_heads * a.x_head_stride;
    a.y_head_stride = a.w.rows + a.tail;
    a.y_stride = a.n_heads * a.y_head_stride;
    a.y = kc_room(r, get(v, "y")->bytes);
    kc_status(r, r->d->ops->linear_heads(r->d, &a));
    expect(r, v, "y", a.y, a.y_head_stride, 4 * kc_tol(r->k, "linear"));
}

/* Columns of V that are K's; 0: V is of its own. */
static uint32_t latent(const vectors *v)
{
    return find_param(v, "vd") ? num(v, "vd") : 0;
}

/* The cache of the file, floats [block][layer][K, V][head][slot][dim] or the rows of Q8_0, in the device's format. */
static kern_kv put_cache(kc_run *r, const vectors *v, const void *values, uint64_t *ret_base)
{
    kern_kv kv = {.max_blocks = num(v, "max_blocks"),
                  .block_size = num(v, "block_size"),
                  .n_kv_heads = num(v, "kv_heads"),
                  .head_dim = num(v, "hd"),
                  .v_dim = latent(v),
                  .index_dim = find_param(v, "dim") ? num(v, "dim") : 0,
                  .fmt = fmt_of(v)};
    uint32_t n_blocks = num(v, "blocks"), layers = num(v, "layers");
    size_t layer_n = kv.block_size * ((kv.v_dim ? 1ull : 2ull) * kv.n_kv_heads * kv.head_dim + kv.index_dim),
           n = layer_n * layers * n_blocks;
    kv.layer_bytes = kern_row_bytes(kv.fmt, (uint32_t)layer_n);
    uint16_t *halves = kc_alloc(r->k, n * sizeof *halves);
    for (size_t i = 0; kv.fmt == FMT_F16 && i < n; i++)
        halves[i] = half_of_exact(((const float *)values)[i]);
    uint8_t *device = kc_put(r, kv.fmt == FMT_F16 ? halves : values, n_blocks * layers * kv.layer_bytes);
    uint64_t *addr = kc_alloc(r->k, n_blocks * sizeof *addr);
    for (uint32_t b = 0; b < n_blocks; b++)
        addr[b] = (uint64_t)(uintptr_t)(device + b * layers * kv.layer_bytes);
    kv.block_addr = kc_put(r, addr, n_blocks * sizeof *addr);
    kv.block_table = put(r, v, "table");
    *ret_base = (uint64_t)(uintptr_t)device;
    return kv;
}

/* The rows of a cache of Q8_0: without rotation the bytes; else a quant may be the next one, which is a 127th of the largest value. */
static void kept_q8_0(kc *k, const kern_rope_kv_args *a, const uint8_t *raw, const array *want)
{
    const uint32_t hd = a->kv.head_dim;
    kern_mat m = {.row_bytes = kern_row_bytes(FMT_Q8_0, hd), .cols = hd, .fmt = FMT_Q8_0};
    m.rows = (uint32_t)(want->bytes / m.row_bytes);
    for (size_t i = 0; !a->rot_dim && i < want->bytes; i++)
        if (raw[i] != ((const uint8_t *)want->data)[i]) {
            kc_fail(k, "kv: byte %zu of row %zu is %02x instead of %02x", i % m.row_bytes, i / m.row_bytes, raw[i],
                    ((const uint8_t *)want->data)[i]);
            return;
        }
    m.data = want->data;
    const float *values = kc_decoded(k, m);
    m.data = raw;
    kc_compare(k, "kv", kc_decoded(k, m), values, NULL, (size_t)m.rows * hd, hd, 4.0f / 127);
}

static const uint8_t *get_kv(kc_run *r, const vectors *v, const kern_kv *kv, uint64_t base)
{
    const size_t bytes = num(v, "blocks") * num(v, "layers") * kv->layer_bytes;
    uint8_t *raw = kc_alloc(r->k, bytes);
    kc_get(r, raw, (const void *)(uintptr_t)base, bytes);
    return raw;
}

/* A cache of float32 or halves, in rows of `width`. */
static void kept(kc *k, const kern_kv *kv, const uint8_t *raw, const array *want, uint32_t width, bool exact)
{
    float *got = kc_alloc(k, want->bytes);
    for (size_t i = 0; i < want->n; i++) {
        uint16_t h;
        memcpy(&h, raw + i * 2, 2);
        got[i] = float_of_half(h);
    }
    const float tol = kc_tol(k, "rope_kv") + (kv->fmt == FMT_F16 ? 0x1p-10f : 0);
    kc_compare(k, "kv", kv->fmt == FMT_F32 ? (const float *)(const void *)raw : got, want->data, NULL, want->n, width,
               exact ? 0 : tol);
}

static void replay_rope_kv(kc_run *r, const vectors *v)
{
    const array *want = get(v, "kv"), *want_q = get(v, "q");
    void *empty = kc_alloc(r->k, want->bytes);
    uint64_t base;
    kern_rope_kv_args a = {.kv = put_cache(r, v, empty, &base), .n_heads = num(v, "heads"), .layer = num(v, "layer")};
    a.qkv = put(r, v, "qkv");
    a.interleaved = find_param(v, "interleaved");
    if (num(v, "norms")) {
        a.q_norm = a.kv.v_dim ? NULL : put(r, v, "q_norm");
        a.k_norm = put(r, v, "k_norm");
    }
    a.v_norm = find_param(v, "v_normed") ? put(r, v, "v_norm") : NULL;
    a.norm_last = find_param(v, "norm_last");
    a.norm_eps = (float)param(v, "eps");
    a.inv_freq = put(r, v, "inv_freq");
    a.rope_scale = (float)param(v, "scale");
    a.rot_dim = num(v, "rot");
    a.token_seq = put(r, v, "seq");
    a.token_pos = put(r, v, "pos");
    a.n_tokens = (uint32_t)get(v, "seq")->n;
    kc_status(r, r->d->ops->rope_kv(r->d, &a));

    float *qkv = kc_alloc(r->k, get(v, "qkv")->bytes), *q = kc_alloc(r->k, want_q->bytes);
    kc_get(r, qkv, a.qkv, get(v, "qkv")->bytes);
    size_t q_n = (size_t)a.n_heads * a.kv.head_dim;
    size_t row_n = q_n + (a.kv.v_dim ? 1ull : 2ull) * a.kv.n_kv_heads * a.kv.head_dim;
    for (uint32_t t = 0; t < a.n_tokens; t++)
        memcpy(q + t * q_n, qkv + t * row_n, q_n * sizeof *q);
    const uint8_t *raw = get_kv(r, v, &a.kv, base);
    if (r->k->case_unsupported)
        return;
    kc_compare(r->k, "q", q, want_q->data, NULL, want_q->n, a.kv.head_dim, kc_tol(r->k, "rope_kv"));
    if (a.kv.fmt == FMT_Q8_0) {
        kept_q8_0(r->k, &a, raw, want);
        return;
    }
    /* Without rotation nothing but the rounding to half remains: exact. */
    kept(r->k, &a.kv, raw, want, a.kv.head_dim, !a.rot_dim && !a.v_norm);
}

static void replay_index_rope(kc_run *r, const vectors *v)
{
    const array *want = get(v, "kv"), *want_q = get(v, "rotated");
    uint64_t base;
    kern_index_rope_args a = {.kv = put_cache(r, v, kc_alloc(r->k, want->bytes), &base),
                              .n_heads = num(v, "heads"),
                              .layer = num(v, "layer"),
                              .rot_dim = num(v, "rot"),
                              .rope_scale = (float)param(v, "scale"),
                              .interleaved = num(v, "pairs")};
    a.q = put(r, v, "q");
    a.k = put(r, v, "k");
    a.inv_freq = put(r, v, "inv_freq");
    a.token_seq = put(r, v, "seq");
    a.token_pos = put(r, v, "pos");
    a.n_tokens = (uint32_t)get(v, "seq")->n;
    kc_status(r, r->d->ops->index_rope(r->d, &a));
    float *q = kc_alloc(r->k, want_q->bytes);
    kc_get(r, q, a.q, want_q->bytes);
    const uint8_t *raw = get_kv(r, v, &a.kv, base);
    if (r->k->case_unsupported)
        return;
    kc_compare(r->k, "q", q, want_q->data, NULL, want_q->n, a.kv.index_dim, kc_tol(r->k, "rope_kv"));
    kept(r->k, &a.kv, raw, want, a.kv.index_dim, false);
}

/* Only the layer under test is in the file: the other one is NaN. */
static kern_kv put_layer(kc_run *r, const vectors *v)
{
    const array *kv = get(v, "kv");
    uint32_t n_blocks = num(v, "blocks"), layer = num(v, "layer"), layers = num(v, "layers");
    size_t layer_bytes = kv->bytes / n_blocks;
    uint8_t *all = kc_alloc(r->k, kv->bytes * layers);
    memset(all, 0xff, kv->bytes * layers);
    for (uint32_t b = 0; b < n_blocks; b++)
        memcpy(all + (b * layers + layer) * layer_bytes, (const uint8_t *)kv->data + b * layer_bytes, layer_bytes);
    uint64_t base;
    return put_cache(r, v, all, &base);
}

static void replay_index(kc_run *r, const vectors *v)
{
    const array *want = get(v, "chosen");
    kern_index_args a = {.kv = put_layer(r, v), .n_heads = num(v, "heads"), .layer = num(v, "layer")};
    a.q = put(r, v, "q");
    a.weights = put(r, v, "weights");
    a.token_seq = put(r, v, "seq");
    a.token_pos = put(r, v, "pos");
    a.n_tokens = (uint32_t)get(v, "seq")->n;
    a.top_k = num(v, "top_k");
    a.max_context = num(v, "longest");
    a.chosen = kc_room(r, want->bytes); /* what is not written stays UINT32_MAX */
    a.scratch = kc_room(r, r->d->ops->index_scratch_bytes(r->d, a.n_tokens, a.n_heads, a.max_context));
    kc_status(r, r->d->ops->index(r->d, &a));
    uint32_t *got = kc_alloc(r->k, want->bytes);
    kc_get(r, got, a.chosen, want->bytes);
    for (size_t i = 0; i < want->n && !r->k->case_unsupported; i++)
        if (got[i] != ((const uint32_t *)want->data)[i]) {
            kc_fail(r->k, "chosen[%zu][%zu] is %u instead of %u", i / a.top_k, i % a.top_k, got[i],
                    ((const uint32_t *)want->data)[i]);
            return;
        }
}

static void replay_attention(kc_run *r, const vectors *v)
{
    kern_attn_args a = {.kv = put_layer(r, v), .n_heads = num(v, "heads"), .layer = num(v, "layer")};
    if (find_param(v, "top_k")) {
        a.top_k = num(v, "top_k");
        a.chosen = put(r, v, "chosen");
    }
    a.qkv = put(r, v, "q");
    a.qkv_stride = a.n_heads * a.kv.head_dim;
    a.token_seq = put(r, v, "seq");
    a.token_pos = put(r, v, "pos");
    a.n_tokens = (uint32_t)get(v, "seq")->n;
    a.max_context = num(v, "longest");
    a.window = num(v, "window");
    a.scale = (float)param(v, "scale");
    a.sinks = num(v, "sinks") ? put(r, v, "sink") : NULL;
    size_t o_bytes = get(v, "o")->bytes;
    a.o = kc_room(r, o_bytes);
    if (r->d->ops->clear(r->d, a.o, o_bytes) != KERN_OK) /* the skipped row stays as it is */
        kc_fail(r->k, "clear");
    a.scratch = kc_room(r, r->d->ops->attn_scratch_bytes(r->d, a.n_tokens, a.n_heads, a.kv.head_dim, a.max_context));
    kc_status(r, r->d->ops->attention(r->d, &a));
    expect(r, v, "o", a.o, a.n_heads * (a.kv.v_dim ? a.kv.v_dim : a.kv.head_dim), 4 * kc_tol(r->k, "attention"));
}

static void replay_router(kc_run *r, const vectors *v)
{
    kern_router_args a = {.logits = put(r, v, "logits"), .n_experts = num(v, "experts"), .top_k = num(v, "top_k")};
    a.scoring = (kern_scoring)num(v, "scoring");
    a.norm_topk = num(v, "norm");
    a.bias = num(v, "biased") ? put(r, v, "bias") : NULL;
    a.expert_scale = find_param(v, "each") ? put(r, v, "each") : NULL;
    a.n_groups = num(v, "groups");
    a.top_groups = num(v, "top_groups");
    a.group_rank = (kern_group_rank)num(v, "rank");
    a.norm_min = (float)param(v, "norm_min");
    a.norm_eps = (float)param(v, "norm_eps");
    a.scale = (float)param(v, "scale");
    a.spread = find_param(v, "spread") ? (float)param(v, "spread") : 0;
    a.n_tokens = (uint32_t)get(v, "logits")->n / a.n_experts;
    a.ids = kc_room(r, get(v, "ids")->bytes);
    a.weights = kc_room(r, get(v, "weights")->bytes);
    kc_status(r, r->d->ops->router(r->d, &a));
    expect_ids(r, v, "ids", a.ids);
    expect(r, v, "weights", a.weights, a.top_k, kc_tol(r->k, "router"));
}

static void experts(kc_run *r, const vectors *v, kern_act act)
{
    static const char *names[] = {"gate", "up", "down"}, *page_rows[] = {"pr0", "pr1", "pr2"};
    kern_expert_geom g = {.d_model = num(v, "d"), .d_ff = num(v, "ff"), .halves = act == KERN_RELU2};
    uint32_t n_experts = num(v, "experts"), live = num(v, "live");
    for (uint32_t m = 0; m < 3; m++) {
        g.fmt[m] = fmt_of(v);
        g.row_bytes[m] = kern_row_bytes(g.fmt[m], m == 2 ? g.d_ff : g.d_model);
        g.page_rows[m] = num(v, page_rows[m]);
        g.first_page[m] = g.pages;
        g.pages += (kern_expert_rows(&g, (int)m) + g.page_rows[m] - 1) / g.page_rows[m];
    }
    uint64_t *addr = kc_alloc(r->k, n_experts * g.pages * sizeof *addr);
    for (uint32_t e = 0; e < n_experts; e++)
        for (uint32_t m = 0; m < 3; m++) {
            const uint8_t *w = get(v, names[m])->data;
            uint32_t rows = kern_expert_rows(&g, (int)m);
            for (uint32_t at = 0, p = g.first_page[m]; at < rows; at += g.page_rows[m], p++)
                addr[e * g.pages + p] = (uint64_t)(uintptr_t)kc_put(r, w + (e * rows + at) * g.row_bytes[m],
                                                                    KC_MIN(g.page_rows[m], rows - at) * g.row_bytes[m]);
        }
    kern_moe_args a = {.geom = g, .n_experts = n_experts, .n_tokens = num(v, "tokens"), .top_k = num(v, "top_k")};
    a.x = put(r, v, "x");
    a.y = put(r, v, "y0");
    a.ids = put(r, v, "ids");
    a.weights = put(r, v, "weights");
    a.page_addr = kc_put(r, addr, n_experts * g.pages * sizeof *addr);
    a.n_live = kc_put(r, &live, sizeof live);
    a.scratch = kc_room(r, r->d->ops->moe_scratch_bytes(r->d, a.n_tokens, a.top_k, a.n_experts, &g));
    a.act = act;
    if (act == KERN_SWIGLU_CLAMPED) {
        a.gate_bias = put(r, v, "gate_bias");
        a.up_bias = put(r, v, "up_bias");
        a.down_bias = put(r, v, "down_bias");
        a.act_alpha = (float)param(v, "alpha");
        a.act_limit = (float)param(v, "limit");
    }
    if (act == KERN_SWIGLU_LIMITED)
        a.act_limit = (float)param(v, "limit");
    kern_plan_args p = {
        .ids = a.ids, .n_live = a.n_live, .n_tokens = a.n_tokens, .top_k = a.top_k, .n_experts = n_experts};
    p.expert_start = kc_room(r, (n_experts + 1) * 4);
    p.pairs = kc_room(r, a.n_tokens * a.top_k * 4);
    p.expert_count = kc_room(r, n_experts * 4);
    a.expert_start = p.expert_start;
    a.pairs = p.pairs;
    kc_status(r, r->d->ops->plan(r->d, &p));
    kc_status(r, r->d->ops->moe(r->d, &a));
    expect_ids(r, v, "start", p.expert_start);
    expect_ids(r, v, "count", p.expert_count);
    expect_ids(r, v, "pairs", p.pairs);
    expect(r, v, "y", a.y, g.d_model, 4 * kc_tol(r->k, "moe"));
}

static void replay_moe(kc_run *r, const vectors *v)
{
    experts(r, v, KERN_SWIGLU);
}

static void replay_moe_clamped(kc_run *r, const vectors *v)
{
    experts(r, v, KERN_SWIGLU_CLAMPED);
}

static void replay_moe_limited(kc_run *r, const vectors *v)
{
    experts(r, v, KERN_SWIGLU_LIMITED);
}

static void replay_moe_geglu(kc_run *r, const vectors *v)
{
    experts(r, v, KERN_GEGLU);
}

static void replay_moe_relu2(kc_run *r, const vectors *v)
{
    experts(r, v, KERN_RELU2);
}

static void replay_logits(kc_run *r, const vectors *v)
{
    uint32_t vocab = num(v, "vocab"), n = 3, n_values = KC_MIN(vocab, (uint32_t)KERN_TOP_LOGITS);
    kern_argmax_args m = {.logits = put(r, v, "logits"), .ids = kc_room(r, n * 4), .n_tokens = n, .vocab = vocab};
    kern_top_logits_args t = {.logits = m.logits, .n_tokens = n, .vocab = vocab};
    t.ids = kc_room(r, n * KERN_TOP_LOGITS * 4);
    t.values = kc_room(r, n * KERN_TOP_LOGITS * 4);
    t.logsumexp = kc_room(r, n * 4);
    kc_status(r, r->d->ops->argmax(r->d, &m));
    kc_status(r, r->d->ops->top_logits(r->d, &t));
    expect_ids(r, v, "argmax", m.ids);
    expect_ids(r, v, "ids", t.ids);
    expect(r, v, "lse", t.logsumexp, 1, kc_tol(r->k, "logsumexp"));
    float values[3 * KERN_TOP_LOGITS];
    kc_get(r, values, t.values, sizeof values);
    for (uint32_t i = 0; i < n && !r->k->case_unsupported; i++)
        kc_compare(r->k, "values", values + i * KERN_TOP_LOGITS, (const float *)get(v, "values")->data + i * n_values,
                   NULL, n_values, n_values, 0);
}

/* The arrays are of whole slots. Where every sequence has one token, as in a recorded step, runs are not told. */
static void replay_delta(kc_run *r, const vectors *v)
{
    kern_delta_args a = {.n_tokens = (uint32_t)get(v, "seq")->n, .n_seqs = (uint32_t)get(v, "slot")->n};
    a.geom = (kern_delta_geom){.n_k_heads = num(v, "k_heads"),
                               .n_v_heads = num(v, "v_heads"),
                               .k_dim = num(v, "kd"),
                               .v_dim = num(v, "vd"),
                               .conv = num(v, "taps"),
                               .tiled = num(v, "tiled")};
    a.x_stride = (uint32_t)get(v, "x")->n / a.n_tokens;
    a.x = put(r, v, "x");
    a.conv_w = put(r, v, "conv_w");
    a.neg_exp_a = put(r, v, "neg_exp_a");
    a.dt_bias = put(r, v, "dt_bias");
    a.norm = put(r, v, "weight");
    a.norm_eps = (float)param(v, "eps");
    a.token_seq = put(r, v, "seq");
    a.token_pos = put(r, v, "pos");
    a.seq_slot = put(r, v, "slot");
    a.run_start = a.n_tokens > 2 * a.n_seqs ? put(r, v, "start") : NULL;
    a.state = put(r, v, "state");
    a.slot_bytes = get(v, "state")->bytes / a.n_seqs;
    a.y = kc_room(r, get(v, "y")->bytes);
    a.scratch = kc_room(r, r->d->ops->delta_scratch_bytes(r->d, a.n_tokens, &a.geom));
    kc_status(r, r->d->ops->delta(r->d, &a));
    expect(r, v, "y", a.y, a.geom.v_dim, 16 * kc_tol(r->k, "delta"));
    expect(r, v, "after", a.state, a.geom.v_dim, 16 * kc_tol(r->k, "delta"));
}

static void replay_shortconv(kc_run *r, const vectors *v)
{
    kern_shortconv_args a = {.n_tokens = (uint32_t)get(v, "seq")->n, .n_seqs = (uint32_t)get(v, "slot")->n};
    a.geom = (kern_shortconv_geom){.channels = num(v, "channels"), .conv = num(v, "taps")};
    a.x_stride = 3 * a.geom.channels;
    a.x = put(r, v, "x");
    a.conv_w = put(r, v, "conv_w");
    a.token_seq = put(r, v, "seq");
    a.token_pos = put(r, v, "pos");
    a.seq_slot = put(r, v, "slot");
    a.run_start = put(r, v, "start");
    a.state = put(r, v, "state");
    a.slot_bytes = get(v, "state")->bytes / a.n_seqs;
    a.y = kc_room(r, get(v, "y")->bytes);
    kc_status(r, r->d->ops->shortconv(r->d, &a));
    expect(r, v, "y", a.y, a.geom.channels, kc_tol(r->k, "linear"));
    expect(r, v, "after", a.state, a.geom.channels, kc_tol(r->k, "linear"));
}

static void replay_ssm(kc_run *r, const vectors *v)
{
    kern_ssm_args a = {.n_tokens = (uint32_t)get(v, "seq")->n, .n_seqs = (uint32_t)get(v, "slot")->n};
    a.geom = (kern_ssm_geom){.n_heads = num(v, "heads"),
                             .n_groups = num(v, "groups"),
                             .head_dim = num(v, "hd"),
                             .d_state = num(v, "ds"),
                             .conv = num(v, "taps")};
    a.x_stride = (uint32_t)get(v, "x")->n / a.n_tokens;
    a.x = put(r, v, "x");
    a.conv_w = put(r, v, "conv_w");
    a.conv_bias = num(v, "biased") ? put(r, v, "conv_b") : NULL;
    a.neg_exp_a = put(r, v, "neg_exp_a");
    a.dt_bias = put(r, v, "dt_bias");
    a.skip = put(r, v, "skip");
    a.norm = put(r, v, "weight");
    a.norm_eps = (float)param(v, "eps");
    a.token_seq = put(r, v, "seq");
    a.token_pos = put(r, v, "pos");
    a.seq_slot = put(r, v, "slot");
    a.run_start = put(r, v, "start");
    a.state = put(r, v, "state");
    a.slot_bytes = get(v, "state")->bytes / a.n_seqs;
    a.y = kc_room(r, get(v, "y")->bytes);
    a.scratch = kc_room(r, r->d->ops->ssm_scratch_bytes(r->d, a.n_tokens, &a.geom));
    kc_status(r, r->d->ops->ssm(r->d, &a));
    expect(r, v, "y", a.y, a.geom.head_dim, 16 * kc_tol(r->k, "delta"));
    expect(r, v, "after", a.state, a.geom.head_dim, 16 * kc_tol(r->k, "delta"));
}

static void replay_gate(kc_run *r, const vectors *v)
{
    kern_gate_args a = {.n_tokens = 3, .n_heads = num(v, "heads"), .head_dim = num(v, "hd")};
    a.y = put(r, v, "o");
    a.gate = (const float *)put(r, v, "q_gate") + a.head_dim;
    a.y_stride = a.n_heads * a.head_dim;
    a.gate_head_stride = 2 * a.head_dim;
    a.gate_stride = 2 * a.y_stride;
    kc_status(r, r->d->ops->gate(r->d, &a));
    expect(r, v, "y", a.y, a.head_dim, kc_tol(r->k, "swiglu"));
}

/* One for each head, as Step-3.5 has them, and Laguna. */
static void replay_head_gate(kc_run *r, const vectors *v)
{
    kern_gate_args a = {.n_tokens = 3, .n_heads = num(v, "heads"), .head_dim = num(v, "hd"), .per_head = true};
    a.softplus = num(v, "softplus");
    a.y = put(r, v, "o");
    a.gate = put(r, v, "gate");
    a.y_stride = a.n_heads * a.head_dim;
    a.gate_head_stride = 1;
    a.gate_stride = a.n_heads;
    kc_status(r, r->d->ops->gate(r->d, &a));
    expect(r, v, "y", a.y, a.head_dim, kc_tol(r->k, "swiglu"));
}

static const struct {
    const char *op;
    void (*fn)(kc_run *r, const vectors *v);
} replays[] = {
    {"embed", replay_embed},
    {"rmsnorm", replay_rmsnorm},
    {"swiglu", replay_swiglu},
    {"qkv_norm", replay_qkv_norm},
    {"linear", replay_linear},
    {"rope_kv", replay_rope_kv},
    {"attention", replay_attention},
    {"router", replay_router},
    {"moe", replay_moe},
    {"logits", replay_logits},
    {"linear_heads", replay_linear_heads},
    {"moe_clamped", replay_moe_clamped},
    {"moe_limited", replay_moe_limited},
    {"delta", replay_delta},
    {"shortconv", replay_shortconv},
    {"ssm", replay_ssm},
    {"gate", replay_gate},
    {"head_gate", replay_head_gate},
    {"moe_geglu", replay_moe_geglu},
    {"moe_relu2", replay_moe_relu2},
    {"softcap", replay_softcap},
    {"layernorm", replay_layernorm},
    {"index_rope", replay_index_rope},
    {"index", replay_index},
};

bool kc_vectors(kc *k, const char *path)
{
    vectors v = {.k = k, .f = fopen(path, "re")};
    if (!v.f || !fgets(v.line, sizeof v.line, v.f)) {
        fprintf(stderr, "kerncheck: %s: %s\n", path, strerror(errno));
        if (v.f)
            fclose(v.f);
        return false;
    }
    while (read_case(&v)) {
        size_t i = 0;
        while (i < sizeof replays / sizeof *replays && strcmp(replays[i].op, v.op) != 0)
            i++;
        if (i == sizeof replays / sizeof *replays)
            bad(&v, "unknown operation");
        kc_run r = kc_begin(k, k->dev);
        replays[i].fn(&r, &v);
        kc_end(&r);
    }
    fclose(v.f);
    return true;
}
