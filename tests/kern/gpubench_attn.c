/* gpubench_attn.c - attention and Gated DeltaNet: tokens in chunks, one by one, and in a batch have the same bits. */
#include "gpubench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define KV_BLOCK 16u

typedef struct attn {
    kern_attn_args a;
    void *blocks;
    uint32_t *seq_start;
} attn;

/* n_seqs sequences of `context` cached positions; the last `each` of every one ask. */
static attn new_attn(const gb_heads *h, uint32_t n_seqs, uint32_t context, uint32_t each)
{
    attn t = {.a = {.qkv_stride = (h->heads + 2 * h->kv_heads) * h->dim,
                    .n_heads = h->heads,
                    .scale = 0.0884f,
                    .max_context = context}};
    uint32_t per_seq = (context + KV_BLOCK - 1) / KV_BLOCK, n = n_seqs * each;
    uint64_t block_bytes = 2ull * h->kv_heads * KV_BLOCK * kern_row_bytes(h->fmt, h->dim),
             blocks = (uint64_t)per_seq * n_seqs;
    uint8_t *kv = gb_big((blocks * block_bytes + 4095) & ~4095ull);
    if (h->fmt == FMT_Q8_0)
        gb_weights(kv, blocks * block_bytes, h->fmt);
    for (uint64_t i = 1; h->fmt == FMT_Q8_0 && i < blocks * block_bytes; i += sizeof(kern_q8_0_block))
        kv[i] = 0x20; /* scales of 0.008 */
    for (uint64_t i = 0; h->fmt == FMT_F16 && i < blocks * block_bytes / 8; i++) {
        uint64_t r = (gb_next() & 0x83ff83ff83ff83ffull) | 0x3800380038003800ull; /* halves of 0.5 .. 1 */
        memcpy(kv + i * 8, &r, 8);
    }
    t.blocks = gb_put(kv, blocks * block_bytes);
    munmap(kv, (blocks * block_bytes + 4095) & ~4095ull);
    uint64_t *addr = malloc(blocks * 8);
    uint32_t *table = malloc(blocks * 4), *seq = malloc(n * 4), *pos = malloc(n * 4);
    for (uint64_t i = 0; i < blocks; i++) {
        addr[i] = (uint64_t)(uintptr_t)t.blocks + i * block_bytes;
        table[i] = (uint32_t)i;
    }
    t.seq_start = malloc((n_seqs + 1) * 4);
    for (uint32_t s = 0; s <= n_seqs; s++)
        t.seq_start[s] = s * each;
    for (uint32_t i = 0; i < n; i++) {
        seq[i] = i / each;
        pos[i] = context - each + i % each;
    }
    float *q = gb_floats((size_t)n * t.a.qkv_stride, 2);
    t.a.qkv = gb_put(q, (uint64_t)n * t.a.qkv_stride * 4);
    munmap(q, ((uint64_t)n * t.a.qkv_stride * 4 + 4095) & ~4095ull);
    t.a.o = gb_room((uint64_t)n * h->heads * h->dim * 4);
    t.a.token_seq = gb_put(seq, n * 4);
    t.a.token_pos = gb_put(pos, n * 4);
    t.a.n_tokens = n;
    t.a.n_seqs = n_seqs;
    t.a.seq_start = t.seq_start;
    t.a.kv = (kern_kv){.block_addr = gb_put(addr, blocks * 8),
                       .block_table = gb_put(table, blocks * 4),
                       .max_blocks = per_seq,
                       .block_size = KV_BLOCK,
                       .layer_bytes = block_bytes,
                       .n_kv_heads = h->kv_heads,
                       .head_dim = h->dim,
                       .fmt = h->fmt};
    t.a.scratch = gb_room(gb_dev->ops->attn_scratch_bytes(gb_dev, n, h->heads, h->dim, context));
    free(addr), free(table), free(seq), free(pos);
    return t;
}

static void free_attn(attn *t)
{
    void *p[] = {t->blocks,
                 (void *)t->a.qkv,
                 t->a.o,
                 (void *)t->a.token_seq,
                 (void *)t->a.token_pos,
                 (void *)t->a.kv.block_addr,
                 (void *)t->a.kv.block_table,
                 t->a.scratch};
    for (size_t i = 0; i < sizeof p / sizeof *p; i++)
        gb_dev->ops->free(gb_dev, p[i]);
    free(t->seq_start);
}

/* n_seqs prompts' last `each` tokens, with a window and sinks or without. */
static void check_prompts(const gb_heads *h, uint32_t n_seqs, uint32_t each, uint32_t window)
{
    float *sinks = gb_floats(h->heads, 2), *sinks_dev = gb_put(sinks, h->heads * 4);
    munmap(sinks, (h->heads * 4 + 4095) & ~4095ull);
    for (uint32_t context = 70; context <= 1400; context = context * 2 + 13) {
        attn t = new_attn(h, n_seqs, context, each);
        t.a.window = window;
        t.a.sinks = window ? sinks_dev : NULL;
        size_t n = (size_t)t.a.n_tokens * h->heads * h->dim;
        float *prefill = malloc(n * 4), *decode = malloc(n * 4), *alone = malloc(n * 4);
        gb_ok(gb_dev->ops->attention(gb_dev, &t.a), "attention");
        gb_get(prefill, t.a.o, n * 4);
        t.a.n_seqs = t.a.n_tokens; /* looks like a batch of decoding sequences */
        gb_ok(gb_dev->ops->attention(gb_dev, &t.a), "attention");
        gb_get(decode, t.a.o, n * 4);
        kern_attn_args one = t.a;
        one.n_tokens = one.n_seqs = 1;
        for (uint32_t i = 0; i < t.a.n_tokens; i++) {
            one.qkv = t.a.qkv + (size_t)i * t.a.qkv_stride;
            one.o = t.a.o + (size_t)i * h->heads * h->dim;
            one.token_seq = t.a.token_seq + i;
            one.token_pos = t.a.token_pos + i;
            gb_ok(gb_dev->ops->attention(gb_dev, &one), "attention");
        }
        gb_get(alone, t.a.o, n * 4);
        char what[128], kind[96];
        snprintf(kind, sizeof kind, "attention of %u columns in %s, %u heads on %u, %u x context %u, window %u", h->dim,
                 kern_fmt_get(h->fmt).name, h->heads, h->kv_heads, n_seqs, context, window);
        snprintf(what, sizeof what, "%s, prefill and decode", kind);
        gb_same(what, prefill, decode, n);
        snprintf(what, sizeof what, "%s, alone and in a batch", kind);
        gb_same(what, decode, alone, n);
        free(prefill), free(decode), free(alone);
        free_attn(&t);
    }
    gb_dev->ops->free(gb_dev, sinks_dev);
}

static void check_prefill(const gb_heads *h)
{
    /* Also groups of heads that leave rows of a tile empty, and columns that a tile has more of. */
    const gb_heads others[] = {*h, {20, 4, 96, 96, h->fmt}, {6, 2, 64, 64, h->fmt}, {3, 3, 32, 32, h->fmt}};
    for (size_t i = 0; i < (h->dim == 128 ? 4 : 1); i++)
        for (uint32_t window = 0; window <= 150; window += 150) {
            check_prompts(&others[i], 2, 60, window);
            check_prompts(&others[i], 9, 5, window);
        }
}

/* Decoding tokens whose heads are made by attention itself, against the same by rope_kv before it. */
static void check_rope(const gb_heads *h)
{
    static const uint32_t shapes[][3] = {
        {1, 1, 0},   {1, 64, 0},     {1, 65, 0},   {1, 129, 0},    {1, 513, 0},
        {3, 700, 0}, {2, 1300, 100}, {40, 130, 0}, {40, 1300, 700}}; /* the last: window */
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        attn t = new_attn(h, shapes[i][0], shapes[i][1], 1);
        t.a.window = shapes[i][2];
        const size_t n = (size_t)t.a.n_tokens * h->heads * h->dim, qkv = (size_t)t.a.n_tokens * t.a.qkv_stride * 4,
                     kv = (size_t)t.a.kv.max_blocks * t.a.n_tokens * t.a.kv.layer_bytes;
        float *norm = gb_floats(2 * h->dim, 1), *alone = malloc(n * 4), *fused = malloc(n * 4);
        for (uint32_t j = h->dim; j < 2 * h->dim; j++)
            norm[j] = 1.0f / (float)(1 + j * j);
        float *norm_dev = gb_put(norm, 2 * h->dim * 4);
        void *qkv0 = malloc(qkv), *kv0 = malloc(kv), *kv_alone = malloc(kv), *kv_fused = malloc(kv);
        gb_get(qkv0, t.a.qkv, qkv);
        gb_get(kv0, t.blocks, kv);
        kern_rope_kv_args r = {.qkv = (float *)(uintptr_t)t.a.qkv,
                               .q_norm = norm_dev,
                               .k_norm = norm_dev,
                               .norm_eps = 1e-6f,
                               .inv_freq = norm_dev + h->dim,
                               .rope_scale = 1,
                               .rot_dim = h->rot,
                               .token_seq = t.a.token_seq,
                               .token_pos = t.a.token_pos,
                               .n_tokens = t.a.n_tokens,
                               .n_heads = h->heads,
                               .kv = t.a.kv};
        t.a.one_each = true;
        t.a.rope = &r;
        /* The second time behind a kernel that still runs; but wide heads are rotated in place. */
        for (int again = h->dim > 256; again < 2; again++)
            gb_ok(gb_dev->ops->attention(gb_dev, &t.a), "attention");
        gb_get(fused, t.a.o, n * 4);
        gb_get(kv_fused, t.blocks, kv);
        gb_ok(gb_dev->ops->upload(gb_dev, r.qkv, qkv0, qkv), "upload");
        gb_ok(gb_dev->ops->upload(gb_dev, t.blocks, kv0, kv), "upload");
        gb_ok(gb_dev->ops->rope_kv(gb_dev, &r), "rope_kv");
        t.a.rope = NULL;
        gb_ok(gb_dev->ops->attention(gb_dev, &t.a), "attention");
        gb_get(alone, t.a.o, n * 4);
        gb_get(kv_alone, t.blocks, kv);
        char what[96];
        snprintf(what, sizeof what, "attention of %u columns in %s with rotation, %u of context %u", h->dim,
                 kern_fmt_get(h->fmt).name, shapes[i][0], shapes[i][1]);
        gb_same(what, alone, fused, n);
        if (memcmp(kv_alone, kv_fused, kv)) {
            printf("DIFFERENT: K and V of %s\n", what);
            gb_failed++;
        }
        free(alone), free(fused), free(qkv0), free(kv0), free(kv_alone), free(kv_fused);
        gb_dev->ops->free(gb_dev, norm_dev);
        munmap(norm, 4096);
        free_attn(&t);
    }
}

void gb_check_attention(const gb_heads *h)
{
    check_prefill(h);
    check_rope(h);
}

void gb_time_attention(const gb_heads *h)
{
    static const uint32_t shapes[][3] = {{1, 128, 1},     {1, 600, 1},      {1, 4096, 1},    {1, 32768, 1},
                                         {1, 131072, 1},  {32, 600, 1},     {32, 2048, 1},   {256, 600, 1},
                                         {1, 2048, 2048}, {1, 18432, 2048}, {8, 2048, 2048}, {1, 32768, 16384}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        attn t = new_attn(h, shapes[i][0], shapes[i][1], shapes[i][2]);
        uint32_t reps = shapes[i][2] > 1 ? 2 : 16;
        gb_record();
        for (uint32_t r = 0; r < reps; r++)
            gb_ok(gb_dev->ops->attention(gb_dev, &t.a), "attention");
        double s = gb_replay(reps, 2);
        double pairs = (double)t.a.n_tokens * (shapes[i][1] - (shapes[i][2] - 1) / 2.0);
        double kv = (double)shapes[i][0] * shapes[i][1] * 2 * h->kv_heads * (double)kern_row_bytes(h->fmt, h->dim);
        printf("attention of %u columns in %s %3u x %6u, %4u asking each: %9.1f us %6.1f TFLOP/s, K and V %6.0f GB/s\n",
               h->dim, kern_fmt_get(h->fmt).name, shapes[i][0], shapes[i][1], shapes[i][2], s * 1e6,
               pairs * h->heads * h->dim * 4 / s * 1e-12, kv / s * 1e-9);
        fflush(stdout);
        free_attn(&t);
    }
}

/* --- Gated DeltaNet ------------------------------------------------------------------------------------------------------ */

static const kern_delta_geom delta_geom = {.n_k_heads = 16, .n_v_heads = 32, .k_dim = 128, .v_dim = 128, .conv = 4};

typedef struct delta {
    kern_delta_args a;
    uint32_t n_layers, *seq, *pos, *start;
    uint64_t state_bytes; /* of a layer */
    void *memory[10];
} delta;

/* n_seqs runs of `each` tokens, behind position 0; single tokens without runs. */
static delta new_delta(uint32_t n_seqs, uint32_t each, uint32_t n_layers)
{
    const kern_delta_geom *g = &delta_geom;
    const uint32_t n = n_seqs * each, width = kern_delta_width(g), y_width = g->n_v_heads * g->v_dim;
    delta t = {.a = {.n_tokens = n, .x_stride = width, .geom = *g, .norm_eps = 1e-6f, .n_seqs = n_seqs}};
    t.n_layers = n_layers;
    t.seq = malloc(n * 4), t.pos = malloc(n * 4), t.start = malloc((n_seqs + 1) * 4);
    uint32_t *slot = malloc(n_seqs * 4);
    for (uint32_t s = 0; s <= n_seqs; s++)
        t.start[s] = s * each;
    for (uint32_t s = 0; s < n_seqs; s++)
        slot[s] = n_seqs - 1 - s;
    for (uint32_t i = 0; i < n; i++) {
        t.seq[i] = i / each;
        t.pos[i] = 1000 + i % each;
    }
    float *x = gb_floats((size_t)n * width, 1), *w = gb_floats(kern_delta_channels(g) * g->conv, 1);
    for (uint32_t h = 0; h < g->n_v_heads; h++)
        w[h] = -0.1f - w[h] * w[h];
    t.a.slot_bytes = kern_delta_state_floats(g) * 4;
    t.state_bytes = n_seqs * t.a.slot_bytes;
    t.memory[0] = t.a.y = gb_room((uint64_t)n * y_width * 4);
    t.memory[1] = gb_put(x, (uint64_t)n * width * 4);
    t.memory[2] = gb_put(w, (uint64_t)kern_delta_channels(g) * g->conv * 4);
    t.memory[3] = gb_put(t.seq, n * 4);
    t.memory[4] = gb_put(t.pos, n * 4);
    t.memory[5] = gb_put(slot, n_seqs * 4);
    t.memory[6] = gb_put(t.start, (n_seqs + 1) * 4);
    t.memory[7] = t.a.state = gb_room(n_layers * t.state_bytes);
    t.memory[8] = t.a.scratch = gb_room(gb_dev->ops->delta_scratch_bytes(gb_dev, n, g));
    t.a.x = t.memory[1];
    t.a.conv_w = t.a.dt_bias = t.a.norm = t.a.neg_exp_a = t.memory[2];
    t.a.token_seq = t.memory[3];
    t.a.token_pos = t.memory[4];
    t.a.seq_slot = t.memory[5];
    t.a.run_start = each > 1 ? t.memory[6] : NULL;
    gb_ok(gb_dev->ops->clear(gb_dev, t.a.state, n_layers * t.state_bytes), "clear");
    munmap(x, ((uint64_t)n * width * 4 + 4095) & ~4095ull);
    free(slot);
    return t;
}

static void free_delta(delta *t)
{
    for (size_t i = 0; i < sizeof t->memory / sizeof *t->memory; i++)
        gb_dev->ops->free(gb_dev, t->memory[i]);
    free(t->seq), free(t->pos), free(t->start);
}

/* Tokens [from, to) of each of two sequences, whose rows lie where they lie in t. */
static void delta_part(const delta *t, uint32_t each, uint32_t from, uint32_t to)
{
    for (uint32_t s = 0; s < 2; s++) {
        kern_delta_args a = t->a;
        const uint32_t at = s * each + from, start[2] = {0, to - from};
        a.n_tokens = to - from;
        a.x += (uint64_t)at * a.x_stride;
        a.y += (uint64_t)at * a.geom.n_v_heads * a.geom.v_dim;
        a.token_seq += at;
        a.token_pos += at;
        a.n_seqs = 1;
        if (a.n_tokens > 1)
            gb_ok(gb_dev->ops->upload(gb_dev, (void *)(uintptr_t)a.run_start, start, sizeof start), "upload");
        else
            a.run_start = NULL;
        gb_ok(gb_dev->ops->delta(gb_dev, &a), "delta");
    }
}

void gb_check_delta(void)
{
    static const uint32_t parts[] = {1100, 1, 2, 1000, 7, 190}; /* of 2300 tokens */
    const uint32_t each = 2300;
    const size_t n = 2ull * each * delta_geom.n_v_heads * delta_geom.v_dim,
                 state = 2 * kern_delta_state_floats(&delta_geom);
    float *y[3], *s[3];
    delta t = new_delta(2, each, 1);
    for (int how = 0; how < 3; how++) {
        gb_ok(gb_dev->ops->clear(gb_dev, t.a.state, t.state_bytes), "clear");
        if (how == 0)
            gb_ok(gb_dev->ops->delta(gb_dev, &t.a), "delta");
        for (uint32_t at = 0, i = 0; how && at < each; i++) {
            const uint32_t count = how == 1 ? parts[i] : 1;
            delta_part(&t, each, at, at + count);
            at += count;
        }
        gb_get(y[how] = malloc(n * 4), t.a.y, n * 4);
        gb_get(s[how] = malloc(state * 4), t.a.state, state * 4);
    }
    gb_same("delta, in parts", y[0], y[1], n);
    gb_same("delta, its state in parts", s[0], s[1], state);
    gb_same("delta, token by token", y[0], y[2], n);
    gb_same("delta, its state token by token", s[0], s[2], state);
    for (int how = 0; how < 3; how++)
        free(y[how]), free(s[how]);
    free_delta(&t);
}

/* The floor: each state read and written once, x read and y written once, at VRAM's rate. */
void gb_time_delta(void)
{
    static const uint32_t shapes[][2] = {{1, 1}, {8, 1}, {32, 1}, {256, 1}, {1, 512}, {1, 2048}, {8, 2048}, {1, 16384}};
    const uint64_t probed = 1ull << 30;
    void *p = gb_room(probed);
    double gbps = 0;
    gb_ok(gb_dev->ops->probe_read(gb_dev, (uint64_t)(uintptr_t)p, probed, &gbps), "probe");
    gb_dev->ops->free(gb_dev, p);
    printf("delta: VRAM %.0f GB/s\n", gbps);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const uint32_t n_seqs = shapes[i][0], each = shapes[i][1], reps = each > 1 ? 2 : 64;
        delta t = new_delta(n_seqs, each, each > 1 ? 1 : n_seqs < 64 ? 64 / n_seqs : 1); /* L2 holds 50 MB */
        void *const state = t.a.state;
        gb_record();
        for (uint32_t r = 0; r < reps; r++) {
            t.a.state = (char *)state + r % t.n_layers * t.state_bytes;
            gb_ok(gb_dev->ops->delta(gb_dev, &t.a), "delta");
        }
        const double s = gb_replay(reps, 4), moved = 2.0 * (double)t.state_bytes;
        const double rows = (double)t.a.n_tokens * (t.a.x_stride + t.a.geom.n_v_heads * t.a.geom.v_dim) * 4;
        printf("delta %3u x %5u tokens: %9.1f us, %7.1f ns a token, floor of the state %5.1f%%, with x and y %5.1f%%\n",
               n_seqs, each, s * 1e6, s * 1e9 / t.a.n_tokens, moved / gbps * 1e-7 / s,
               (moved + rows) / gbps * 1e-7 / s);
        fflush(stdout);
        free_delta(&t);
    }
}
