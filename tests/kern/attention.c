/* attention.c - kerncheck's cases of the KV cache: rotation and store, attention, both also with latent heads. */
#include "tests/kern/kc.h"

#include <math.h>
#include <string.h>

typedef struct kv_case {
    uint32_t n_tokens, n_heads, n_kv_heads, hd, rot, layer, layers, block_size, max_blocks, n_seqs, n_blocks, longest;
    uint32_t window;
    uint32_t vd; /* V is K's first vd columns; 0: of its own */
    kern_fmt fmt;
    uint32_t *seq, *pos, *table;
    bool runs;      /* the backend is told where those of each sequence begin */
    uint8_t *cache; /* [n_blocks][block_bytes] */
    size_t block_bytes;
    float *qkv, *q_norm, *k_norm, *v_norm, *inv_freq, *sinks;
    bool padding;            /* a skipped row before every other one */
    uint32_t top_k, *chosen; /* [n_tokens][top_k]; top_k 0: all are seen */
    uint32_t index_dim, index_heads;
    float *index_q, *index_k, *index_weights; /* of an indexer */
    bool norm_last, chunked;
    float grow, grow_every;
} kv_case;

/* Heads of K and V that are stored. */
static uint32_t stored_heads(const kv_case *c)
{
    return (c->vd ? 1 : 2) * c->n_kv_heads;
}

static size_t index_at(const kv_case *c)
{
    return stored_heads(c) * c->block_size * kern_row_bytes(c->fmt, c->hd);
}

static size_t layer_bytes_of(const kv_case *c)
{
    return index_at(c) + c->block_size * kern_row_bytes(c->fmt, c->index_dim);
}

static uint32_t width_of(const kv_case *c)
{
    return (c->n_heads + stored_heads(c)) * c->hd;
}

static kv_case any_kv(kc *k, uint32_t longest, bool latent)
{
    static const uint32_t head_dims[] = {4, 8, 24, 32, 64, 80, 96, 128, 200, 256, 320, 512};
    static const uint32_t latent_dims[][2] = {{576, 512}, {576, 512}, {40, 24}, {8, 4}, {96, 64}, {328, 264}};
    kv_case c = {.n_tokens = kc_between(k, 1, 20),
                 .n_kv_heads = kc_between(k, 1, 3),
                 .hd = head_dims[kc_below(k, 12)],
                 .layers = 2};
    c.n_heads = c.n_kv_heads * (kc_below(k, 8) ? kc_between(k, 1, 5) : kc_between(k, 6, 40));
    c.runs = kc_below(k, 2);
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
    c.index_dim = latent && kc_below(k, 2) ? 32 * kc_between(k, 1, 4) : 0;
    c.block_bytes = layer_bytes_of(&c) * c.layers;
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
        .index_dim = c->index_dim,
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
    a.norm_last = c->norm_last;
    a.grow = c->grow;
    a.grow_every = c->grow_every;
    a.qkv = kc_put(&r, b.qkv, (size_t)b.n * width * sizeof *b.qkv);
    a.q_norm = c->q_norm ? kc_put(&r, c->q_norm, c->hd * sizeof(float)) : NULL;
    a.k_norm = c->k_norm ? kc_put(&r, c->k_norm, (c->vd ? c->vd : c->hd) * sizeof(float)) : NULL;
    a.v_norm = c->v_norm ? kc_put(&r, c->v_norm, c->hd * sizeof(float)) : NULL;
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
        if (!latent && kc_below(k, 2))
            kc_fill_scaled(k, c.v_norm = KC_NEW(k, c.hd, float), c.hd, 1);
        c.norm_last = !latent && kc_below(k, 2);
    }
    if (!latent && !as_is && kc_below(k, 3) == 0) {
        c.grow = 0.2f * kc_uniform(k); /* Q at most doubles */
        c.grow_every = (float)kc_between(k, 1, 100);
    }
    kc_check_op(k, run_rope, &c, c.n_tokens, width_of(&c), NULL,
                as_is               ? 0
                : c.fmt == FMT_Q8_0 ? 8.0f / 127
                                    : kc_tol(k, "rope_kv") + (c.fmt == FMT_F16 ? 0x1p-10f : 0));
}

void case_rope(kc *k)
{
    check_rope(k, "rope_kv", false);
}

void case_rope_latent(kc *k)
{
    check_rope(k, "rope_kv latent", true);
}

static float scale_of(const kv_case *c)
{
    return c->vd || c->hd > 128 ? 0.05f : 0.3f; /* wide heads have large scores */
}

static void run_attention(kc *k, kern_dev *d, const void *cv, const uint32_t *tokens, uint32_t n, float *out)
{
    const kv_case *c = cv;
    kc_run r = kc_begin(k, d);
    uint64_t *addr = KC_NEW(k, c->n_blocks, uint64_t);
    batch b = make_batch(k, c, tokens, n);
    size_t row = (size_t)c->n_heads * (c->vd ? c->vd : c->hd), o_bytes = b.n * row * sizeof(float);
    kern_attn_args a = {.n_tokens = b.n, .n_heads = c->n_heads, .layer = c->layer, .window = c->window};
    a.chunked = c->chunked;
    a.scale = scale_of(c);
    a.kv = put_kv(&r, c, addr);
    a.o = kc_room(&r, o_bytes);
    a.qkv = kc_put(&r, b.qkv, (size_t)b.n * width_of(c) * sizeof(float));
    a.qkv_stride = width_of(c);
    a.max_context = c->longest;
    a.token_seq = kc_put(&r, b.seq, b.n * sizeof *b.seq);
    a.token_pos = kc_put(&r, b.pos, b.n * sizeof *b.pos);
    if (c->top_k) {
        uint32_t *chosen = KC_NEW(k, (size_t)b.n * c->top_k, uint32_t);
        for (uint32_t i = 0; i < n; i++)
            memcpy(chosen + (size_t)b.row_of[i] * c->top_k, c->chosen + (size_t)tokens[i] * c->top_k,
                   c->top_k * sizeof *chosen);
        a.chosen = kc_put(&r, chosen, (size_t)b.n * c->top_k * sizeof *chosen);
        a.top_k = c->top_k;
    }
    a.sinks = c->sinks ? kc_put(&r, c->sinks, c->n_heads * sizeof(float)) : NULL;
    uint32_t *starts = KC_NEW(k, b.n + 1, uint32_t);
    for (uint32_t i = 0; i < b.n; i++)
        if (i == 0 || b.seq[i] != b.seq[i - 1])
            starts[a.n_seqs++] = i;
    starts[a.n_seqs] = b.n;
    a.seq_start = c->runs ? starts : NULL;
    a.scratch = kc_room(&r, d->ops->attn_scratch_bytes(d, b.n, c->n_heads, c->hd, a.max_context));
    kc_status(&r, d->ops->attention(d, &a));
    float *o = KC_NEW(k, b.n * row, float);
    kc_get(&r, o, a.o, o_bytes);
    for (uint32_t i = 0; i < n; i++)
        memcpy(out + i * row, o + b.row_of[i] * row, row * sizeof *o);
    kc_end(&r);
}

/* The error of a result, sum of p v, is that of its scores: p (v - result) for each one's, summed, which is at most the order of V times the
 * worst one's, and is that where two positions have half of the weight each. How many positions there are does not matter. A score that
 * adds up products q k in float32 is off by a part of scale * sum of |q k|, its `terms`. Lanes add one product after the other, so worst would be
 * as many roundings, 2^-24 each, as there are columns in a lane; but they are as often up as down, and the first sums are small, so that
 * the standard deviation is between 2^-26 (32 columns) and 2^-27 (512) of the terms. Of half the difference of two scores it is less, and
 * six times that is this part of the room. The table has what exp and the sums add to it, which 40 to 90 terms, as of heads of 96 columns and more,
 * exceed four to ten times. */
#define ROOM_OF_TERMS 0x1p-24f

static uint8_t *cell_of(const kv_case *c, uint32_t s, uint32_t h, uint32_t pos)
{
    return c->cache + c->table[s * c->max_blocks + pos / c->block_size] * c->block_bytes +
           c->layer * c->block_bytes / c->layers +
           (h * c->block_size + pos % c->block_size) * kern_row_bytes(c->fmt, c->hd);
}

/* The most terms of a score of each token's heads, among the first n positions of its sequence. */
static void count_terms(kc *k, const kv_case *c, uint32_t s, uint32_t n, float *terms)
{
    const uint32_t group = c->n_heads / c->n_kv_heads;
    kern_mat m = {.row_bytes = kern_row_bytes(c->fmt, c->hd), .rows = n, .cols = c->hd, .fmt = c->fmt};
    uint8_t *rows = KC_NEW(k, n * m.row_bytes, uint8_t);
    m.data = rows;
    for (uint32_t h = 0; h < c->n_kv_heads; h++) {
        for (uint32_t pos = 0; pos < n; pos++)
            memcpy(rows + pos * m.row_bytes, cell_of(c, s, h, pos), m.row_bytes);
        const float *keys = kc_decoded(k, m);
        for (uint32_t t = 0; t < c->n_tokens; t++)
            for (uint32_t i = h * group; c->seq[t] == s && i < (h + 1) * group; i++) {
                const float *q = c->qkv + (size_t)t * width_of(c) + (size_t)i * c->hd;
                for (uint32_t pos = 0; pos < n; pos++) {
                    float sum = 0;
                    for (uint32_t d = 0; d < c->hd; d++)
                        sum += fabsf(q[d] * keys[(size_t)pos * c->hd + d]);
                    terms[t * c->n_heads + i] = KC_MAX(terms[t * c->n_heads + i], scale_of(c) * sum);
                }
            }
    }
}

/* As many positions as each token may have, in order. */
static void choose_any(kc *k, kv_case *c)
{
    c->top_k = kc_below(k, 4) ? kc_between(k, 1, c->longest) : c->longest;
    c->chosen = KC_NEW(k, (size_t)c->n_tokens * c->top_k, uint32_t);
    memset(c->chosen, 0xff, (size_t)c->n_tokens * c->top_k * sizeof *c->chosen);
    for (uint32_t t = 0; t < c->n_tokens; t++) {
        const uint32_t seen = c->pos[t] + 1;
        for (uint32_t i = 0, n = 0, left = KC_MIN(c->top_k, seen); left; i++)
            if (kc_below(k, seen - i) < left) {
                c->chosen[(size_t)t * c->top_k + n++] = i;
                left--;
            }
    }
}

static void check_attention(kc *k, const char *name, bool latent, bool chosen)
{
    kc_case(k, "%s", name);
    kv_case c = any_kv(k, kc_below(k, 3) ? kc_between(k, 20, 300) : kc_between(k, 400, 1600), latent);
    c.window = chosen || kc_below(k, 3) ? 0 : kc_between(k, 1, c.longest);
    if (chosen)
        choose_any(k, &c);
    c.chunked = kc_below(k, 2);
    if (kc_below(k, 2))
        kc_fill_scaled(k, c.sinks = KC_NEW(k, c.n_heads, float), c.n_heads, 3);
    /* Cells behind a token's position hold NaN: nothing may look at them. */
    memset(c.cache, 0xff, c.n_blocks * c.block_bytes);
    size_t row_bytes = kern_row_bytes(c.fmt, c.hd);
    float *terms = KC_NEW(k, c.n_tokens * c.n_heads, float);
    const bool halves = kc_below(k, 2); /* values of Q8_0 that are halves, as the matrix units take them */
    for (uint32_t s = 0; s < c.n_seqs; s++) {
        uint32_t end = 0;
        for (uint32_t t = 0; t < c.n_tokens; t++)
            if (c.seq[t] == s)
                end = KC_MAX(end, c.pos[t] + 1);
        for (uint32_t pos = 0; pos < end; pos++)
            for (uint32_t h = 0; h < stored_heads(&c); h++) {
                uint8_t *cell = cell_of(&c, s, h, pos);
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
        count_terms(k, &c, s, end, terms);
    }
    const uint32_t vd = c.vd ? c.vd : c.hd, width = c.n_heads * vd;
    const float tol = kc_tol(k, c.fmt == FMT_Q8_0 && !halves ? "attention of rounded values" : "attention");
    float *room = KC_NEW(k, c.n_tokens * width, float);
    for (size_t i = 0; i < (size_t)c.n_tokens * width; i++)
        room[i] = 2 * (tol + ROOM_OF_TERMS * terms[i / vd]); /* 2: the order of V; an average may cancel */
    kc_check_op(k, run_attention, &c, c.n_tokens, width, room, 1);
    if (c.top_k != c.longest || k->case_unsupported)
        return;
    uint32_t *tokens = KC_NEW(k, c.n_tokens, uint32_t);
    for (uint32_t t = 0; t < c.n_tokens; t++)
        tokens[t] = t;
    float *of_list = KC_NEW(k, c.n_tokens * width, float), *of_all = KC_NEW(k, c.n_tokens * width, float);
    run_attention(k, k->dev, &c, tokens, c.n_tokens, of_list);
    c.top_k = 0;
    run_attention(k, k->dev, &c, tokens, c.n_tokens, of_all);
    kc_same_bits(k, "all chosen", of_list, of_all, c.n_tokens * width);
}

void case_attention(kc *k)
{
    check_attention(k, "attention", false, false);
}

void case_attention_latent(kc *k)
{
    check_attention(k, "attention latent", true, false);
}

void case_attention_chosen(kc *k)
{
    check_attention(k, "attention of chosen positions", true, true);
}

/* --- the indexer ---------------------------------------------------------------------------------------------------- */

static kv_case any_index(kc *k, uint32_t longest)
{
    static const uint32_t dims[] = {128, 128, 128, 64, 32, 16, 20, 192};
    static const uint32_t heads[] = {64, 32, 20, 1, 16, 5, 17, 100};
    kv_case c = any_kv(k, longest, true);
    c.index_dim = dims[kc_below(k, 8)];
    c.index_heads = heads[kc_below(k, 8)];
    if (c.fmt == FMT_Q8_0 && c.index_dim % 32)
        c.index_dim = 128;
    c.block_bytes = layer_bytes_of(&c) * c.layers;
    c.cache = KC_NEW(k, c.n_blocks * c.block_bytes, uint8_t);
    c.index_q = KC_NEW(k, (size_t)c.n_tokens * c.index_heads * c.index_dim, float);
    c.index_weights = KC_NEW(k, (size_t)c.n_tokens * c.index_heads, float);
    c.index_k = KC_NEW(k, (size_t)c.n_tokens * c.index_dim, float);
    return c;
}

static uint8_t *key_of(const kv_case *c, uint32_t s, uint32_t pos)
{
    return c->cache + c->table[s * c->max_blocks + pos / c->block_size] * c->block_bytes +
           c->layer * layer_bytes_of(c) + index_at(c) + pos % c->block_size * kern_row_bytes(c->fmt, c->index_dim);
}

/* Rows of the batch that make_batch() would have, of the indexer: Q, or what else has `width` numbers a token. */
static float *batch_rows(kc *k, const batch *b, const float *from, const uint32_t *tokens, uint32_t n, uint32_t width)
{
    float *rows = KC_NEW(k, (size_t)b->n * width, float);
    for (uint32_t i = 0; i < n; i++)
        memcpy(rows + (size_t)b->row_of[i] * width, from + (size_t)tokens[i] * width, width * sizeof *rows);
    return rows;
}

/* out: Q heads, then the stored key */
static void run_index_rope(kc *k, kern_dev *d, const void *cv, const uint32_t *tokens, uint32_t n, float *out)
{
    const kv_case *c = cv;
    kc_run r = kc_begin(k, d);
    uint64_t *addr = KC_NEW(k, c->n_blocks, uint64_t);
    const uint32_t q_width = c->index_heads * c->index_dim;
    batch b = make_batch(k, c, tokens, n);
    float *q = batch_rows(k, &b, c->index_q, tokens, n, q_width),
          *key = batch_rows(k, &b, c->index_k, tokens, n, c->index_dim);
    kern_index_rope_args a = {.n_tokens = b.n,
                              .n_heads = c->index_heads,
                              .layer = c->layer,
                              .rot_dim = c->rot,
                              .rope_scale = 1.1f,
                              .interleaved = c->norm_last};
    a.kv = put_kv(&r, c, addr);
    a.q = kc_put(&r, q, (size_t)b.n * q_width * sizeof *q);
    a.k = kc_put(&r, key, (size_t)b.n * c->index_dim * sizeof *key);
    a.inv_freq = kc_put(&r, c->inv_freq, c->rot / 2 * sizeof(float));
    a.token_seq = kc_put(&r, b.seq, b.n * sizeof *b.seq);
    a.token_pos = kc_put(&r, b.pos, b.n * sizeof *b.pos);
    kc_status(&r, d->ops->index_rope(d, &a));
    kc_get(&r, q, a.q, (size_t)b.n * q_width * sizeof *q);
    uint8_t *block = KC_NEW(k, c->block_bytes, uint8_t);
    const size_t row_bytes = kern_row_bytes(c->fmt, c->index_dim);
    for (uint32_t i = 0; i < n; i++) {
        float *o = out + (size_t)i * (q_width + c->index_dim);
        memcpy(o, q + (size_t)b.row_of[i] * q_width, q_width * sizeof *o);
        const uint32_t pos = c->pos[tokens[i]], id = c->table[c->seq[tokens[i]] * c->max_blocks + pos / c->block_size];
        kc_get(&r, block, (const void *)(uintptr_t)addr[id], c->block_bytes);
        const kern_mat kept = {.data =
                                   block + c->layer * layer_bytes_of(c) + index_at(c) + pos % c->block_size * row_bytes,
                               .row_bytes = row_bytes,
                               .rows = 1,
                               .cols = c->index_dim,
                               .fmt = c->fmt};
        memcpy(o + q_width, kc_decoded(k, kept), c->index_dim * sizeof *o);
    }
    kc_end(&r);
}

void case_index_rope(kc *k)
{
    kc_case(k, "index_rope");
    kv_case c = any_index(k, kc_between(k, 20, 200));
    const uint32_t width = (c.index_heads + 1) * c.index_dim;
    c.rot = 2 * kc_below(k, c.index_dim / 2 + 1);
    c.norm_last = kc_below(k, 2);
    kc_fill_scaled(k, c.inv_freq = KC_NEW(k, c.index_dim, float), c.index_dim, 1);
    kc_fill_scaled(k, c.index_q, (size_t)c.n_tokens * c.index_heads * c.index_dim, 2);
    kc_fill_scaled(k, c.index_k, (size_t)c.n_tokens * c.index_dim, 2);
    kc_check_op(k, run_index_rope, &c, c.n_tokens, width, NULL,
                c.fmt == FMT_Q8_0 ? 8.0f / 127 : kc_tol(k, "rope_kv") + (c.fmt == FMT_F16 ? 0x1p-10f : 0));
}

/* out: the chosen positions, -1 behind them */
static void run_index(kc *k, kern_dev *d, const void *cv, const uint32_t *tokens, uint32_t n, float *out)
{
    const kv_case *c = cv;
    kc_run r = kc_begin(k, d);
    uint64_t *addr = KC_NEW(k, c->n_blocks, uint64_t);
    const uint32_t q_width = c->index_heads * c->index_dim;
    batch b = make_batch(k, c, tokens, n);
    const float *q = batch_rows(k, &b, c->index_q, tokens, n, q_width);
    const float *weights = batch_rows(k, &b, c->index_weights, tokens, n, c->index_heads);
    kern_index_args a = {
        .n_tokens = b.n, .n_heads = c->index_heads, .top_k = c->top_k, .layer = c->layer, .max_context = c->longest};
    a.kv = put_kv(&r, c, addr);
    a.q = kc_put(&r, q, (size_t)b.n * q_width * sizeof *q);
    a.weights = kc_put(&r, weights, (size_t)b.n * c->index_heads * sizeof *weights);
    a.token_seq = kc_put(&r, b.seq, b.n * sizeof *b.seq);
    a.token_pos = kc_put(&r, b.pos, b.n * sizeof *b.pos);
    a.chosen = kc_room(&r, (size_t)b.n * c->top_k * sizeof *a.chosen);
    a.scratch = kc_room(&r, d->ops->index_scratch_bytes(d, b.n, c->index_heads, a.max_context));
    kc_status(&r, d->ops->index(d, &a));
    uint32_t *chosen = KC_NEW(k, (size_t)b.n * c->top_k, uint32_t);
    kc_get(&r, chosen, a.chosen, (size_t)b.n * c->top_k * sizeof *chosen);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < c->top_k; j++) {
            const uint32_t pos = chosen[(size_t)b.row_of[i] * c->top_k + j];
            out[(size_t)i * c->top_k + j] = pos == UINT32_MAX ? -1 : (float)pos;
        }
    kc_end(&r);
}

/* Numbers of few bits, whose scores every order of additions and every format gives exactly: many are equal. */
void case_index(kc *k)
{
    kc_case(k, "index");
    /* Not more than kc.c has buffers: each block is one. */
    kv_case c = any_index(k, kc_below(k, 3) ? kc_between(k, 20, 300) : kc_between(k, 400, 3500));
    c.top_k = kc_below(k, 4) ? kc_between(k, 1, c.longest) : kc_between(k, 1, 2 * c.longest);
    const uint32_t dense = kc_below(k, 2) ? c.index_dim : KC_MIN(c.index_dim, 3u); /* columns that are not 0 */
    const bool negative = kc_below(k, 2);
    for (size_t i = 0; i < (size_t)c.n_tokens * c.index_heads * c.index_dim; i++)
        c.index_q[i] = (float)((int)kc_below(k, 7) - 3);
    for (size_t i = 0; i < (size_t)c.n_tokens * c.index_heads; i++)
        c.index_weights[i] = (float)((int)kc_below(k, 9) - (negative ? 4 : 0)) / 4;
    memset(c.cache, 0xff, c.n_blocks * c.block_bytes); /* NaN, which nobody may look at */
    for (uint32_t s = 0; s < c.n_seqs; s++)
        for (uint32_t t = 0, end = 0; t < c.n_tokens; t++)
            for (; c.seq[t] == s && end <= c.pos[t]; end++) {
                uint8_t *key = key_of(&c, s, end);
                const bool nan = kc_below(k, 50) == 0;
                memset(key, 0, kern_row_bytes(c.fmt, c.index_dim));
                for (uint32_t i = 0; i < c.index_dim; i++) {
                    const int v = i < dense ? (int)kc_below(k, 5) - 2 : 0;
                    static const uint16_t halves[] = {0xc000, 0xbc00, 0, 0x3c00, 0x4000}; /* -2 .. 2 */
                    const uint16_t half = nan && i == 0 ? 0x7e00 : halves[v + 2];
                    const float f = nan && i == 0 ? NAN : (float)v;
                    if (c.fmt == FMT_F32) {
                        memcpy(key + 4 * i, &f, 4);
                    } else if (c.fmt == FMT_F16) {
                        memcpy(key + 2 * i, &half, 2);
                    } else {
                        kern_q8_0_block *block = (kern_q8_0_block *)(void *)(key + i / 32 * sizeof *block);
                        const uint16_t one = nan && i < 32 ? 0x7e00 : 0x3c00;
                        memcpy(&block->d, &one, sizeof one);
                        block->qs[i % 32] = (int8_t)v;
                    }
                }
            }
    kc_check_op(k, run_index, &c, c.n_tokens, c.top_k, NULL, 0);
}
