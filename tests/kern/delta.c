/* delta.c - cases of layers that keep a state (Gated DeltaNet, Mamba2, short convolutions), and of gated attention.
 *
 * The former are compared with what is computed in double precision below, y and what the sequences keep; then the same tokens go through them
 * one by one, in chunks, and beside other ones, from other slots: the same bits. */
#include "tests/kern/kc.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct delta_case {
    kern_delta_geom g;
    kern_ssm_geom m;                                                    /* instead, unless n_heads is 0 */
    bool shortconv;                                                     /* instead, of `channels` and `conv` */
    uint32_t n_seqs, n_tokens, n_slots, width, channels, conv, y_width; /* channels and conv: of the convolution */
    uint32_t *first, *count, *pos; /* of each sequence: first token, number of them, position of the first one */
    uint64_t state_n;
    float *x, *conv_w, *conv_bias, *neg_exp_a, *dt_bias, *skip, *norm;
    float *state; /* [n_seqs][state_n] before; that of a sequence at position 0 is NaN */
} delta_case;

typedef struct delta_result {
    float *y, *state; /* [n_tokens][y_width], [n_seqs][state_n] */
} delta_result;

static double silu(double x)
{
    return x / (1 + exp(-x));
}

/* ---- what it should be ---------------------------------------------------------------------------------------------- */

typedef struct channel_value {
    double v, size; /* size: the sum of what was added, without signs */
} channel_value;

static channel_value conv_silu(const delta_case *c, uint32_t s, uint32_t i, uint32_t channel)
{
    channel_value r = {0, 0};
    for (uint32_t back = 0; back < c->g.conv; back++) {
        double in = 0;
        if (back <= i)
            in = c->x[(size_t)(c->first[s] + i - back) * c->width + channel];
        else if (back <= c->pos[s] + i)
            in = c->state[s * c->state_n + (size_t)(c->g.conv - 1 - (back - i)) * c->channels + channel];
        const double p = in * c->conv_w[(size_t)channel * c->g.conv + c->g.conv - 1 - back];
        r.v += p;
        r.size += fabs(p);
    }
    r.v = silu(r.v);
    return r;
}

static double norm_of(double *x, double *size, uint32_t n, double extra)
{
    double squares = 0, sizes = 0;
    for (uint32_t i = 0; i < n; i++)
        squares += x[i] * x[i];
    const double by = 1 / sqrt(squares + 1e-6) * extra;
    for (uint32_t i = 0; i < n; i++) {
        x[i] *= by;
        sizes += size[i] * by * (size[i] * by);
    }
    return sqrt(sizes);
}

/* One head of one sequence. The errors of S are bounded for each column: an update does not make those of the steps before larger, and adds
 * its own. *_size get what a relative rounding error is to be taken of. */
static void reference_head(kc *k, const delta_case *c, uint32_t s, uint32_t h, delta_result want, delta_result sizes)
{
    const kern_delta_geom *g = &c->g;
    const uint32_t kd = g->k_dim, vd = g->v_dim;
    const uint32_t kh = g->tiled ? h % g->n_k_heads : h / (g->n_v_heads / g->n_k_heads);
    const uint64_t at = s * c->state_n + (uint64_t)(g->conv - 1) * c->channels + (uint64_t)h * kd * vd;
    double *state = KC_NEW(k, kd * vd, double), *bound = KC_NEW(k, vd, double), *o = KC_NEW(k, vd, double);
    double *o_bound = KC_NEW(k, vd, double), *q = KC_NEW(k, 4 * kd, double), *key = q + kd, *q_size = q + 2 * kd;
    double *key_size = q + 3 * kd, *decay = KC_NEW(k, kd, double);
    for (uint32_t i = 0; c->pos[s] && i < kd * vd; i++)
        state[i] = c->state[at + i];
    for (uint32_t i = 0; i < c->count[s]; i++) {
        const float *x = c->x + (size_t)(c->first[s] + i) * c->width;
        for (uint32_t r = 0; r < kd; r++) {
            const channel_value qv = conv_silu(c, s, i, kh * kd + r);
            const channel_value kv = conv_silu(c, s, i, (g->n_k_heads + kh) * kd + r);
            q[r] = qv.v, q_size[r] = qv.size;
            key[r] = kv.v, key_size[r] = kv.size;
        }
        const double q_scale = norm_of(q, q_size, kd, 1 / sqrt(kd)), key_scale = norm_of(key, key_size, kd, 1);
        const float *z = x + c->channels + h * vd, *b = x + c->channels + g->n_v_heads * vd;
        const double beta = 1 / (1 + exp(-b[h]));
        double slowest = 0;
        for (uint32_t r = 0; r < kd; r++) {
            const uint32_t which = g->by_channel ? h * kd + r : h;
            const double dt = (double)b[g->n_v_heads + which] + c->dt_bias[which];
            decay[r] = exp(c->neg_exp_a[h] * (dt > 30 ? dt : log1p(exp(dt))));
            slowest = fmax(slowest, decay[r]);
        }
        double squares = 0, bounds = 0;
        for (uint32_t j = 0; j < vd; j++) {
            const channel_value v = conv_silu(c, s, i, 2 * g->n_k_heads * kd + h * vd + j);
            double kv = 0, kv_size = 0, length = 0;
            for (uint32_t r = 0; r < kd; r++) {
                const double old = decay[r] * state[r * vd + j];
                kv += old * key[r];
                kv_size += fabs(old * key[r]);
                length += old * old;
            }
            const double d = beta * (v.v - kv);
            length = sqrt(length);
            bound[j] =
                slowest * bound[j] + beta * (v.size + kv_size + length * key_scale) + key_scale * fabs(d) + length;
            o[j] = o_bound[j] = 0;
            for (uint32_t r = 0; r < kd; r++) {
                state[r * vd + j] = decay[r] * state[r * vd + j] + key[r] * d;
                o[j] += state[r * vd + j] * q[r];
                o_bound[j] += fabs(state[r * vd + j] * q[r]);
            }
            o_bound[j] += (bound[j] + (length + fabs(d)) * sqrt(kd) * q_scale) / sqrt(kd);
            squares += o[j] * o[j];
            bounds += o_bound[j] * o_bound[j];
        }
        const double r = 1 / sqrt(squares / vd + 1e-6), rel = 1 + r * sqrt(bounds / vd);
        const size_t y = (size_t)(c->first[s] + i) * c->y_width + h * vd;
        for (uint32_t j = 0; j < vd; j++) {
            const double by = r * c->norm[j] * (g->by_channel ? 1 / (1 + exp(-z[j])) : silu(z[j]));
            want.y[y + j] = (float)(o[j] * by);
            sizes.y[y + j] = (float)fabs(by * (o_bound[j] + fabs(o[j]) * rel));
        }
    }
    for (uint32_t r = 0; r < kd; r++)
        for (uint32_t j = 0; j < vd; j++) {
            want.state[at + r * vd + j] = (float)state[r * vd + j];
            sizes.state[at + r * vd + j] = (float)bound[j];
        }
}

static delta_result new_result(kc *k, const delta_case *c)
{
    return (delta_result){KC_NEW(k, (size_t)c->n_tokens * c->y_width, float), KC_NEW(k, c->n_seqs * c->state_n, float)};
}

/* The last inputs of the convolution are kept as they are: columns of x from `at` on. */
static void keep_reference(const delta_case *c, uint32_t s, uint32_t at, delta_result want)
{
    for (uint32_t row = 0; row + 1 < c->conv; row++)
        for (uint32_t ch = 0; ch < c->channels; ch++) {
            const uint32_t back = c->conv - 1 - row; /* behind the last token */
            float *to = &want.state[s * c->state_n + (size_t)row * c->channels + ch];
            if (back <= c->count[s])
                *to = c->x[((size_t)c->first[s] + c->count[s] - back) * c->width + at + ch];
            else if (back <= c->pos[s] + c->count[s])
                *to = c->state[s * c->state_n + (size_t)(row + c->count[s]) * c->channels + ch];
        }
}

static void reference(kc *k, const delta_case *c, delta_result want, delta_result sizes)
{
    for (uint32_t s = 0; s < c->n_seqs; s++) {
        for (uint32_t h = 0; h < c->g.n_v_heads; h++)
            reference_head(k, c, s, h, want, sizes);
        keep_reference(c, s, 0, want);
    }
}

/* ---- what it is ------------------------------------------------------------------------------------------------------ */

/* How the tokens come: all at once; one of each sequence a call, without run_start; in pieces of any length. */
enum { AT_ONCE, ONE_BY_ONE, IN_CHUNKS };

typedef struct delta_batch {
    uint32_t n, n_seqs;
    uint32_t *token, *seq, *pos, *slot, *start; /* token: of the case, UINT32_MAX: padding */
} delta_batch;

static void add_row(const delta_case *c, delta_batch *b, uint32_t s, uint32_t i)
{
    b->token[b->n] = i == UINT32_MAX ? i : c->first[s] + i;
    b->seq[b->n] = i == UINT32_MAX ? i : b->n_seqs;
    b->pos[b->n++] = i == UINT32_MAX ? 0 : c->pos[s] + i;
}

static void call_delta(kc_run *r, const delta_case *c, const delta_batch *b, bool runs, uint8_t *state,
                       uint64_t slot_bytes, delta_result ret)
{
    kc *k = r->k;
    const size_t y_bytes = (size_t)b->n * c->y_width * sizeof(float);
    const uint32_t stride = c->width + 8;
    float *x = KC_NEW(k, (size_t)b->n * stride, float), *y = KC_NEW(k, (size_t)b->n * c->y_width, float);
    memset(x, 0xff, (size_t)b->n * stride * sizeof *x); /* between rows, and in those that are padding */
    for (uint32_t i = 0; i < b->n; i++)
        if (b->token[i] != UINT32_MAX)
            memcpy(x + (size_t)i * stride, c->x + (size_t)b->token[i] * c->width, c->width * sizeof *x);
    kern_delta_args a = {.n_tokens = b->n, .x_stride = stride, .geom = c->g, .norm_eps = 1e-6f, .n_seqs = b->n_seqs};
    kern_shortconv_args s = {.n_tokens = b->n, .x_stride = stride, .geom = {c->channels, c->conv}, .n_seqs = b->n_seqs};
    a.y = kc_room(r, y_bytes);
    a.x = kc_put(r, x, (size_t)b->n * stride * sizeof *x);
    a.conv_w = kc_put(r, c->conv_w, (size_t)c->channels * c->conv * sizeof(float));
    a.token_seq = kc_put(r, b->seq, b->n * sizeof *b->seq);
    a.token_pos = kc_put(r, b->pos, b->n * sizeof *b->pos);
    a.seq_slot = kc_put(r, b->slot, b->n_seqs * sizeof *b->slot);
    a.run_start = runs ? kc_put(r, b->start, (b->n_seqs + 1) * sizeof *b->start) : NULL;
    a.state = state;
    a.slot_bytes = slot_bytes;
    if (c->shortconv) {
        s.y = a.y, s.x = a.x, s.conv_w = a.conv_w, s.token_seq = a.token_seq, s.token_pos = a.token_pos;
        s.seq_slot = a.seq_slot, s.run_start = a.run_start, s.state = a.state, s.slot_bytes = a.slot_bytes;
        kc_status(r, r->d->ops->shortconv(r->d, &s));
    } else if (c->m.n_heads) {
        kern_ssm_args m = {.y = a.y, .x = a.x, .n_tokens = b->n, .x_stride = stride, .geom = c->m, .norm_eps = 1e-5f};
        m.conv_w = a.conv_w, m.token_seq = a.token_seq, m.token_pos = a.token_pos, m.seq_slot = a.seq_slot;
        m.run_start = a.run_start, m.n_seqs = a.n_seqs, m.state = a.state, m.slot_bytes = a.slot_bytes;
        m.conv_bias = c->conv_bias ? kc_put(r, c->conv_bias, c->channels * sizeof(float)) : NULL;
        m.neg_exp_a = kc_put(r, c->neg_exp_a, c->m.n_heads * sizeof(float));
        m.dt_bias = kc_put(r, c->dt_bias, c->m.n_heads * sizeof(float));
        m.skip = kc_put(r, c->skip, c->m.n_heads * sizeof(float));
        m.norm = kc_put(r, c->norm, c->y_width * sizeof(float));
        m.scratch = kc_room(r, r->d->ops->ssm_scratch_bytes(r->d, b->n, &c->m));
        kc_status(r, r->d->ops->ssm(r->d, &m));
    } else {
        a.neg_exp_a = kc_put(r, c->neg_exp_a, c->g.n_v_heads * sizeof(float));
        a.dt_bias = kc_put(r, c->dt_bias, kern_delta_decays(&c->g) * sizeof(float));
        a.norm = kc_put(r, c->norm, c->g.v_dim * sizeof(float));
        a.scratch = kc_room(r, r->d->ops->delta_scratch_bytes(r->d, b->n, &c->g));
        kc_status(r, r->d->ops->delta(r->d, &a));
    }
    kc_get(r, y, a.y, y_bytes);
    for (uint32_t i = 0; i < b->n && !k->case_unsupported; i++) {
        const float *row = y + (size_t)i * c->y_width;
        if (b->token[i] != UINT32_MAX)
            memcpy(ret.y + (size_t)b->token[i] * c->y_width, row, c->y_width * sizeof *row);
        for (uint32_t j = 0; b->token[i] == UINT32_MAX && j < c->y_width; j++)
            if (row[j] != 0)
                kc_fail(k, "padding row %u is %g", i, (double)row[j]);
    }
}

static delta_result run_delta(kc *k, kern_dev *d, const delta_case *c, int how)
{
    delta_result ret = new_result(k, c);
    /* Slots of all layers: this one's state lies behind another one's, which stays as it is, as do slots of nobody. */
    const uint64_t before = 16, slot_n = before + c->state_n + 4;
    float *slots = KC_NEW(k, c->n_slots * slot_n, float), *after = KC_NEW(k, c->n_slots * slot_n, float);
    uint32_t *slot = KC_NEW(k, c->n_slots, uint32_t), *order = KC_NEW(k, c->n_seqs, uint32_t);
    uint32_t *done = KC_NEW(k, c->n_seqs, uint32_t);
    for (uint32_t i = 0; i < c->n_slots; i++) {
        const uint32_t j = kc_between(k, 0, i);
        slot[i] = slot[j];
        slot[j] = i;
    }
    memset(slots, 0xff, c->n_slots * slot_n * sizeof *slots);
    for (uint32_t s = 0; s < c->n_seqs; s++)
        memcpy(slots + slot[s] * slot_n + before, c->state + s * c->state_n, c->state_n * sizeof *slots);
    kc_run r = kc_begin(k, d);
    float *state = kc_put(&r, slots, c->n_slots * slot_n * sizeof *slots);

    uint32_t left = c->n_tokens;
    while (left && !k->case_failed && !k->case_unsupported) {
        const uint32_t rows = 2 * c->n_tokens + 2 * c->n_seqs;
        delta_batch b = {.token = KC_NEW(k, rows, uint32_t),
                         .seq = KC_NEW(k, rows, uint32_t),
                         .pos = KC_NEW(k, rows, uint32_t),
                         .slot = KC_NEW(k, c->n_seqs, uint32_t),
                         .start = KC_NEW(k, c->n_seqs + 1, uint32_t)};
        for (uint32_t s = 0; s < c->n_seqs; s++) {
            const uint32_t j = kc_between(k, 0, s);
            order[s] = order[j];
            order[j] = s;
        }
        for (uint32_t i = 0; i < c->n_seqs; i++) {
            const uint32_t s = order[i], rest = c->count[s] - done[s];
            uint32_t n = how == AT_ONCE ? rest : how == ONE_BY_ONE ? KC_MIN(rest, 1u) : kc_below(k, rest + 1);
            if (how == IN_CHUNKS && kc_below(k, 3) == 0)
                n = KC_MIN(n, 2u);
            if (!n && kc_below(k, 2))
                continue; /* not in this step; else it is, without a token */
            b.slot[b.n_seqs] = slot[s];
            b.start[b.n_seqs] = b.n;
            for (uint32_t t = 0; t < n; t++)
                add_row(c, &b, s, done[s] + t);
            if (kc_below(k, 4) == 0)
                add_row(c, &b, s, UINT32_MAX);
            b.start[++b.n_seqs] = b.n;
            done[s] += n;
            left -= n;
        }
        if (b.n)
            call_delta(&r, c, &b, how != ONE_BY_ONE, (uint8_t *)(state + before), slot_n * sizeof *state, ret);
    }
    kc_get(&r, after, state, c->n_slots * slot_n * sizeof *slots);
    kc_end(&r);
    for (uint32_t i = 0; i < c->n_slots && !k->case_unsupported; i++) {
        float *mine = after + slot[i] * slot_n, *was = slots + slot[i] * slot_n;
        if (i < c->n_seqs) {
            memcpy(ret.state + i * c->state_n, mine + before, c->state_n * sizeof *mine);
            memcpy(mine + before, was + before, c->state_n * sizeof *mine);
        }
        kc_same_bits(k, "what lies beside the state", mine, was, slot_n);
    }
    return ret;
}

static void same_results(kc *k, const char *name, const delta_case *c, delta_result got, delta_result want)
{
    char what[64];
    snprintf(what, sizeof what, "y, %s", name);
    kc_same_bits(k, what, got.y, want.y, (size_t)c->n_tokens * c->y_width);
    snprintf(what, sizeof what, "the state, %s", name);
    kc_same_bits(k, what, got.state, want.state, c->n_seqs * c->state_n);
}

/* Which tokens sequences have, their inputs, and what they know before. */
static void make_runs(kc *k, delta_case *c, bool long_runs)
{
    c->first = KC_NEW(k, c->n_seqs, uint32_t);
    c->count = KC_NEW(k, c->n_seqs, uint32_t);
    c->pos = KC_NEW(k, c->n_seqs, uint32_t);
    c->n_slots = c->n_seqs + kc_below(k, 3);
    for (uint32_t s = 0; s < c->n_seqs; s++) {
        c->first[s] = c->n_tokens;
        c->count[s] = long_runs && s == 0 ? kc_between(k, 2040, 2120)
                      : kc_below(k, 3)    ? kc_between(k, 1, 7)
                                          : kc_between(k, 1, 40);
        c->n_tokens += c->count[s];
        c->pos[s] = kc_below(k, 2) ? 0 : kc_between(k, 1, 6);
    }
    const size_t x_n = (size_t)c->n_tokens * c->width;
    kc_fill(k, c->x = KC_NEW(k, x_n, float), x_n);
    kc_fill_scaled(k, c->conv_w = KC_NEW(k, c->channels * c->conv, float), c->channels * c->conv, 0.5f);
    kc_fill_scaled(k, c->state = KC_NEW(k, c->n_seqs * c->state_n, float), c->n_seqs * c->state_n, 1);
    for (uint32_t s = 0; s < c->n_seqs; s++)
        if (!c->pos[s])
            memset(c->state + s * c->state_n, 0xff, c->state_n * sizeof(float));
        else /* of what lies before position 0, zeros are kept */
            for (uint32_t row = 0; row + 1 < c->conv; row++)
                if (c->conv - 1 - row > c->pos[s])
                    memset(c->state + s * c->state_n + (size_t)row * c->channels, 0, c->channels * sizeof(float));
}

static void check_runs(kc *k, const delta_case *c, delta_result want, delta_result sizes, bool long_runs)
{
    const delta_result got = run_delta(k, k->dev, c, AT_ONCE);
    if (k->case_unsupported)
        return;
    kc_compare(k, "y", got.y, want.y, sizes.y, (size_t)c->n_tokens * c->y_width, c->y_width, kc_tol(k, "delta"));
    kc_compare(k, "state", got.state, want.state, sizes.state, c->n_seqs * c->state_n, (uint32_t)c->state_n,
               kc_tol(k, "delta"));
    same_results(k, "another number of threads", c, run_delta(k, k->other, c, AT_ONCE), got);
    if (!long_runs)
        same_results(k, "token by token", c, run_delta(k, k->dev, c, ONE_BY_ONE), got);
    same_results(k, "in chunks", c, run_delta(k, k->dev, c, IN_CHUNKS), got);
}

static void check_delta(kc *k, delta_case *c, bool long_runs)
{
    kern_delta_geom *g = &c->g;
    c->width = kern_delta_width(g);
    c->channels = kern_delta_channels(g);
    c->conv = g->conv;
    c->y_width = g->n_v_heads * g->v_dim;
    c->state_n = kern_delta_state_floats(g);
    make_runs(k, c, long_runs);
    kc_fill_scaled(k, c->dt_bias = KC_NEW(k, kern_delta_decays(g), float), kern_delta_decays(g), 1);
    kc_fill_scaled(k, c->norm = KC_NEW(k, g->v_dim, float), g->v_dim, 1);
    c->neg_exp_a = KC_NEW(k, g->n_v_heads, float);
    for (uint32_t h = 0; h < g->n_v_heads; h++)
        c->neg_exp_a[h] = -expf(6 * kc_uniform(k) - 4);
    for (uint32_t t = 0; t < c->n_tokens; t++)
        kc_fill_scaled(k, c->x + (size_t)t * c->width + c->channels + c->y_width, g->n_v_heads + kern_delta_decays(g),
                       3); /* b and a */
    const delta_result want = new_result(k, c), sizes = new_result(k, c);
    reference(k, c, want, sizes);
    check_runs(k, c, want, sizes, long_runs);
}

static void delta_name(kc *k, const kern_delta_geom *g, const char *name)
{
    kc_case(k, "%s of %u and %u heads%s, %u x %u, %u taps", name, g->n_k_heads, g->n_v_heads,
            g->tiled        ? " in turn"
            : g->by_channel ? " by channel"
                            : "",
            g->k_dim, g->v_dim, g->conv);
}

/* Heads of 128 have a kernel of their own for one token. */
void case_delta(kc *k)
{
    static const uint32_t dims[] = {4, 12, 20, 32, 36, 64, 100, 128, 160, 256};
    delta_case c = {.n_seqs = kc_between(k, 1, 5)};
    c.g = (kern_delta_geom){.n_k_heads = kc_between(k, 1, 3), .conv = kc_below(k, 3) ? 4 : kc_between(k, 1, 4)};
    c.g.n_v_heads = c.g.n_k_heads * kc_between(k, 1, 3);
    c.g.tiled = kc_below(k, 3) == 0;
    c.g.by_channel = !c.g.tiled && kc_below(k, 2);
    if (c.g.by_channel)
        c.g.n_v_heads = c.g.n_k_heads;
    const bool published = kc_below(k, 2);
    c.g.k_dim = published ? 128 : dims[kc_below(k, 10)];
    c.g.v_dim = published ? 128 : dims[kc_below(k, 10)];
    delta_name(k, &c.g, "delta");
    check_delta(k, &c, false);
}

/* Prompts that are longer than what is computed in one go. */
void case_delta_long(kc *k)
{
    delta_case c = {.n_seqs = kc_between(k, 1, 3), .g = {.n_k_heads = 1, .n_v_heads = kc_between(k, 1, 2), .conv = 4}};
    c.g.k_dim = 4 * kc_between(k, 1, 12);
    c.g.v_dim = 4 * kc_between(k, 1, 12);
    c.g.by_channel = c.g.n_v_heads == 1 && kc_below(k, 2);
    delta_name(k, &c.g, "delta, long,");
    check_delta(k, &c, true);
}

/* ---- short convolutions ---------------------------------------------------------------------------------------------- */

/* b v of a channel, `back` tokens before token i of sequence s. */
static double product_at(const delta_case *c, uint32_t s, uint32_t i, uint32_t back, uint32_t channel)
{
    const float *x = c->x + ((size_t)c->first[s] + i - back) * c->width + channel;
    if (back <= i)
        return (double)x[0] * x[2 * c->channels];
    return back <= c->pos[s] + i ? c->state[s * c->state_n + (size_t)(c->conv - 1 - (back - i)) * c->channels + channel]
                                 : 0;
}

static void shortconv_reference(const delta_case *c, delta_result want, delta_result sizes)
{
    for (uint32_t s = 0; s < c->n_seqs; s++)
        for (uint32_t ch = 0; ch < c->channels; ch++) {
            for (uint32_t i = 0; i < c->count[s]; i++) {
                const size_t row = (size_t)c->first[s] + i;
                const double by = c->x[row * c->width + c->channels + ch];
                double sum = 0, size = 0;
                for (uint32_t back = 0; back < c->conv; back++) {
                    const double p = product_at(c, s, i, back, ch) * c->conv_w[ch * c->conv + c->conv - 1 - back];
                    sum += p;
                    size += fabs(p);
                }
                want.y[row * c->channels + ch] = (float)(sum * by);
                sizes.y[row * c->channels + ch] = (float)(size * fabs(by));
            }
            for (uint32_t kept = 0; kept + 1 < c->conv; kept++) {
                const size_t at = s * c->state_n + (size_t)kept * c->channels + ch;
                want.state[at] = (float)product_at(c, s, c->count[s], c->conv - 1 - kept, ch);
                sizes.state[at] = fabsf(want.state[at]);
            }
        }
}

static void check_shortconv(kc *k, delta_case *c, bool long_runs)
{
    kc_case(k, "short convolution of %u channels, %u taps%s", c->channels, c->conv, long_runs ? ", long" : "");
    c->shortconv = true;
    c->width = 3 * c->channels;
    c->y_width = c->channels;
    c->state_n = (uint64_t)(c->conv - 1) * c->channels;
    make_runs(k, c, long_runs);
    const delta_result want = new_result(k, c), sizes = new_result(k, c);
    shortconv_reference(c, want, sizes);
    check_runs(k, c, want, sizes, long_runs);
}

void case_shortconv(kc *k)
{
    delta_case c = {.n_seqs = kc_between(k, 1, 5), .channels = kc_between(k, 1, 400), .conv = kc_between(k, 2, 4)};
    check_shortconv(k, &c, false);
}

void case_shortconv_long(kc *k)
{
    delta_case c = {.n_seqs = kc_between(k, 1, 3), .channels = kc_between(k, 1, 40), .conv = kc_between(k, 2, 4)};
    check_shortconv(k, &c, true);
}

/* ---- Mamba2 ----------------------------------------------------------------------------------------------------------- */

/* What the convolution and silu make of a channel; its size. */
static double ssm_channel(const delta_case *c, uint32_t s, uint32_t i, uint32_t channel, double *size)
{
    double sum = c->conv_bias ? c->conv_bias[channel] : 0;
    *size = fabs(sum);
    for (uint32_t back = 0; back < c->conv; back++) {
        double in = 0;
        if (back <= i)
            in = c->x[((size_t)c->first[s] + i - back) * c->width + c->y_width + channel];
        else if (back <= c->pos[s] + i)
            in = c->state[s * c->state_n + (size_t)(c->conv - 1 - (back - i)) * c->channels + channel];
        const double p = in * c->conv_w[channel * c->conv + c->conv - 1 - back];
        sum += p;
        *size += fabs(p);
    }
    return silu(sum);
}

/* One head of one sequence, o silu(z) into y; sizes as in reference_head(): an error of S decays as S does, and each step adds its own. */
static void ssm_reference_head(kc *k, const delta_case *c, uint32_t s, uint32_t h, double *v, double *v_size,
                               delta_result want, delta_result sizes)
{
    const kern_ssm_geom *g = &c->m;
    const uint32_t hd = g->head_dim, ds = g->d_state, b_at = c->y_width + h / (g->n_heads / g->n_groups) * ds,
                   c_at = b_at + g->n_groups * ds;
    const uint64_t at = s * c->state_n + (uint64_t)(c->conv - 1) * c->channels + (uint64_t)h * ds * hd;
    double *state = KC_NEW(k, ds * hd, double), *bound = KC_NEW(k, ds * hd, double), *bc = KC_NEW(k, 4 * ds, double);
    for (uint32_t i = 0; c->pos[s] && i < ds * hd; i++)
        state[i] = c->state[at + i];
    for (uint32_t i = 0; i < c->count[s]; i++) {
        const size_t t = (size_t)c->first[s] + i;
        const float *x = c->x + t * c->width;
        const double dt = (double)x[c->y_width + c->channels + h] + c->dt_bias[h], d = dt > 30 ? dt : log1p(exp(dt));
        const double decay = exp(c->neg_exp_a[h] * d), decays = 1 + fabs(c->neg_exp_a[h] * d); /* its relative error */
        for (uint32_t r = 0; r < ds; r++) {
            bc[r] = ssm_channel(c, s, i, b_at + r, &bc[2 * ds + r]);
            bc[ds + r] = ssm_channel(c, s, i, c_at + r, &bc[3 * ds + r]);
        }
        for (uint32_t p = 0; p < hd; p++) {
            double u_size, o, o_size;
            const double u = ssm_channel(c, s, i, h * hd + p, &u_size), gate = silu(x[h * hd + p]);
            o = c->skip[h] * u;
            o_size = fabs(c->skip[h]) * u_size + fabs(o);
            for (uint32_t r = 0; r < ds; r++) {
                double *S = &state[r * hd + p], *e = &bound[r * hd + p];
                const double old = decay * *S;
                *S = old + bc[r] * d * u;
                *e = decay * *e + decays * fabs(old) + d * (bc[2 * ds + r] * u_size + fabs(bc[r] * u)) + fabs(*S);
                o += bc[ds + r] * *S;
                o_size += fabs(bc[ds + r]) * *e + (bc[3 * ds + r] + fabs(bc[ds + r])) * fabs(*S);
            }
            v[t * c->y_width + h * hd + p] = o * gate;
            v_size[t * c->y_width + h * hd + p] = o_size * fabs(gate) + fabs(o * gate);
        }
    }
    for (uint32_t i = 0; i < ds * hd; i++) {
        want.state[at + i] = (float)state[i];
        sizes.state[at + i] = (float)bound[i];
    }
}

static void ssm_reference(kc *k, const delta_case *c, delta_result want, delta_result sizes)
{
    const size_t n = (size_t)c->n_tokens * c->y_width;
    const uint32_t group = c->y_width / c->m.n_groups;
    double *v = KC_NEW(k, n, double), *v_size = KC_NEW(k, n, double);
    for (uint32_t s = 0; s < c->n_seqs; s++) {
        for (uint32_t h = 0; h < c->m.n_heads; h++)
            ssm_reference_head(k, c, s, h, v, v_size, want, sizes);
        keep_reference(c, s, c->y_width, want);
    }
    for (size_t at = 0; at < n; at += group) {
        double squares = 0, bounds = 0;
        for (uint32_t i = 0; i < group; i++) {
            squares += v[at + i] * v[at + i];
            bounds += v_size[at + i] * v_size[at + i];
        }
        const double r = 1 / sqrt(squares / group + 1e-5), rel = 1 + r * sqrt(bounds / group);
        for (uint32_t i = 0; i < group; i++) {
            const double by = r * c->norm[(at + i) % c->y_width];
            want.y[at + i] = (float)(v[at + i] * by);
            sizes.y[at + i] = (float)(fabs(by) * (v_size[at + i] + fabs(v[at + i]) * rel));
        }
    }
}

static void check_ssm(kc *k, delta_case *c, bool long_runs)
{
    const kern_ssm_geom *g = &c->m;
    kc_case(k, "Mamba2 of %u heads of %u in %u groups, states of %u, %u taps%s", g->n_heads, g->head_dim, g->n_groups,
            g->d_state, g->conv, long_runs ? ", long" : "");
    c->width = kern_ssm_width(g);
    c->channels = kern_ssm_channels(g);
    c->conv = g->conv;
    c->y_width = kern_ssm_inner(g);
    c->state_n = kern_ssm_state_floats(g);
    make_runs(k, c, long_runs);
    for (size_t i = 0; i < (size_t)c->n_tokens * c->width; i++) /* the square of a product of four is a number */
        c->x[i] = fminf(fmaxf(c->x[i], -1e3f), 1e3f);
    if (kc_below(k, 3))
        kc_fill_scaled(k, c->conv_bias = KC_NEW(k, c->channels, float), c->channels, 0.5f);
    kc_fill_scaled(k, c->dt_bias = KC_NEW(k, g->n_heads, float), g->n_heads, 1);
    kc_fill_scaled(k, c->skip = KC_NEW(k, g->n_heads, float), g->n_heads, 1);
    kc_fill_scaled(k, c->norm = KC_NEW(k, c->y_width, float), c->y_width, 1);
    c->neg_exp_a = KC_NEW(k, g->n_heads, float);
    for (uint32_t h = 0; h < g->n_heads; h++)
        c->neg_exp_a[h] = -expf(6 * kc_uniform(k) - 4);
    for (uint32_t t = 0; t < c->n_tokens; t++)
        kc_fill_scaled(k, c->x + (size_t)t * c->width + c->channels + c->y_width, g->n_heads, 3);
    const delta_result want = new_result(k, c), sizes = new_result(k, c);
    ssm_reference(k, c, want, sizes);
    check_runs(k, c, want, sizes, long_runs);
}

void case_ssm(kc *k)
{
    static const uint32_t dims[] = {1, 4, 12, 16, 40, 64, 80}, states[] = {1, 8, 20, 64, 65, 128, 200, 256};
    delta_case c = {.n_seqs = kc_between(k, 1, 5)};
    c.m = (kern_ssm_geom){.n_groups = kc_between(k, 1, 3), .conv = kc_between(k, 2, 4)};
    c.m.n_heads = c.m.n_groups * kc_between(k, 1, 3);
    const bool published = kc_below(k, 3) == 0;
    c.m.head_dim = published ? 64 : dims[kc_below(k, 7)];
    c.m.d_state = published ? 128 : states[kc_below(k, 8)];
    check_ssm(k, &c, false);
}

void case_ssm_long(kc *k)
{
    delta_case c = {.n_seqs = kc_between(k, 1, 3), .m = {.n_groups = 1, .n_heads = kc_between(k, 1, 2), .conv = 4}};
    c.m.head_dim = kc_between(k, 1, 40);
    c.m.d_state = kc_between(k, 1, 40);
    check_ssm(k, &c, true);
}

/* ---- gate ------------------------------------------------------------------------------------------------------------ */

typedef struct gate_case {
    uint32_t n_heads, head_dim, head_stride;
    bool per_head, softplus;
    float *y, *gate;
    uint32_t *pick; /* or NULL */
} gate_case;

static void run_gate(kc *k, kern_dev *d, const void *cv, const uint32_t *tokens, uint32_t n, float *out)
{
    const gate_case *c = cv;
    kc_run r = kc_begin(k, d);
    const uint32_t width = c->n_heads * c->head_dim, gates = c->n_heads * c->head_stride, y_stride = width + 3;
    float *y = KC_NEW(k, (size_t)n * y_stride, float);
    for (uint32_t t = 0; t < n; t++)
        memcpy(y + (size_t)t * y_stride, c->y + (size_t)tokens[t] * width, width * sizeof *y);
    kern_gate_args a = {.n_tokens = n, .n_heads = c->n_heads, .head_dim = c->head_dim, .y_stride = y_stride};
    a.y = kc_put(&r, y, (size_t)n * y_stride * sizeof *y);
    a.gate = kc_put(&r, kc_gather(k, c->gate, gates * sizeof *y, tokens, n), (size_t)n * gates * sizeof *y);
    a.gate_stride = gates;
    a.gate_head_stride = c->head_stride;
    a.per_head = c->per_head;
    a.softplus = c->softplus;
    a.pick = c->pick ? kc_put(&r, kc_gather(k, c->pick, sizeof *a.pick, tokens, n), n * sizeof *a.pick) : NULL;
    kc_status(&r, d->ops->gate(d, &a));
    kc_get(&r, y, a.y, (size_t)n * y_stride * sizeof *y);
    for (uint32_t t = 0; t < n; t++)
        memcpy(out + (size_t)t * width, y + (size_t)t * y_stride, width * sizeof *y);
    kc_end(&r);
}

void case_gate(kc *k)
{
    gate_case c = {.n_heads = kc_between(k, 1, 9), .head_dim = kc_between(k, 1, 100)};
    c.per_head = kc_below(k, 2);
    c.softplus = kc_below(k, 2);
    c.head_stride = (c.per_head ? 1 : c.head_dim) * kc_between(k, 1, 2);
    const uint32_t n = kc_any_tokens(k), width = c.n_heads * c.head_dim, gates = c.n_heads * c.head_stride;
    kc_case(k, "gate%s%s of %u heads of %u, %u tokens", c.per_head ? " a head" : "", c.softplus ? " by softplus" : "",
            c.n_heads, c.head_dim, n);
    kc_fill(k, c.y = KC_NEW(k, (size_t)n * width, float), (size_t)n * width);
    kc_fill_scaled(k, c.gate = KC_NEW(k, (size_t)n * gates, float), (size_t)n * gates, 8);
    if (kc_below(k, 2))
        c.pick = KC_NEW(k, n, uint32_t);
    for (uint32_t t = 0; c.pick && t < n; t++)
        c.pick[t] = kc_below(k, c.head_stride);
    float *sizes = KC_NEW(k, (size_t)n * width, float);
    for (size_t i = 0; i < (size_t)n * width; i++)
        sizes[i] = fabsf(c.y[i]) * (c.softplus ? 9 : 1); /* softplus(8) */
    kc_check_op(k, run_gate, &c, n, width, sizes, kc_tol(k, "swiglu"));
}
