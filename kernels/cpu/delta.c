/* delta.c - Gated DeltaNet, and the gate of attention's result.
 *
 * Two loops over the threads: convolution, silu and norm of each head of q, k and v; then the recurrence of each value head. Within either
 * a task has all tokens that a sequence has in the call, one after another, and the part of the state that is its own, so neither the
 * threads nor what else is in the batch changes an order of additions. Long calls go through both loops in pieces, which bounds the scratch;
 * a chunk of a prompt that ends is the same thing. */
#include "kernels/cpu/cpu_priv.h"

#define PIECE_TOKENS 256

/* Tokens of one sequence in a piece. */
typedef struct run {
    uint32_t first, count;
    float *state;
    bool fresh; /* begins at position 0: the state is zeros, whatever lies there */
} run;

typedef struct delta_job {
    const kern_delta_args *a;
    const cpu_rows *rows;
    uint32_t channels, n_parts; /* heads of q, of k, and of v */
    const run *runs;
    uint32_t first_token; /* of the piece */
    float *conv;          /* [PIECE_TOKENS][channels] */
    float *workspace;     /* [workers][workspace_floats()] */
} delta_job;

/* A task's weights of the convolution, a row of ones, a row of zeros. */
static size_t workspace_floats(const kern_delta_geom *g)
{
    return (size_t)(g->conv + 2) * MAX(g->k_dim, g->v_dim);
}

static void conv_task(void *ctx, uint32_t task, uint32_t worker)
{
    const delta_job *j = ctx;
    const kern_delta_args *a = j->a;
    const kern_delta_geom *g = &a->geom;
    const uint32_t part = task % j->n_parts, n_qk = 2 * g->n_k_heads, taps = g->conv;
    const uint32_t channel = part < n_qk ? part * g->k_dim : n_qk * g->k_dim + (part - n_qk) * g->v_dim;
    const uint32_t dim = part < n_qk ? g->k_dim : g->v_dim;
    const run *r = &j->runs[task / j->n_parts];

    float *w = j->workspace + worker * workspace_floats(g), *ones = w + (size_t)taps * dim, *zeros = ones + dim;
    for (uint32_t i = 0; i < dim; i++) {
        for (uint32_t tap = 0; tap < taps; tap++)
            w[tap * dim + i] = a->conv_w[(size_t)(channel + i) * taps + tap];
        ones[i] = 1;
        zeros[i] = 0;
    }
    /* in[taps - 1 + t]: the channels' inputs of the run's token t; before those what the state keeps. */
    const float *in[PIECE_TOKENS + KERN_MAX_CONV];
    for (uint32_t i = 0; i + 1 < taps; i++)
        in[i] = r->fresh ? zeros : r->state + (size_t)i * j->channels + channel;
    for (uint32_t t = 0; t < r->count; t++)
        in[taps - 1 + t] = a->x + (size_t)(r->first + t) * a->x_stride + channel;

    for (uint32_t t = 0; t < r->count; t++) {
        float *y = j->conv + (size_t)(r->first - j->first_token + t) * j->channels + channel;
        for (uint32_t i = 0; i < dim; i++)
            y[i] = w[i] * in[t][i];
        for (uint32_t tap = 1; tap < taps; tap++)
            for (uint32_t i = 0; i < dim; i++)
                y[i] += w[tap * dim + i] * in[t + tap][i];
        j->rows->swiglu(y, y, ones, dim);
        if (part >= n_qk)
            continue;
        float squares;
        const float *rows[] = {y};
        j->rows->dot[FMT_F32](&squares, 1, (const uint8_t *)y, 0, 1, rows, 1, dim, NULL);
        float by = 1.0f / sqrtf(squares + 1e-6f);
        if (part < g->n_k_heads)
            by /= sqrtf((float)g->k_dim);
        for (uint32_t i = 0; i < dim; i++)
            y[i] *= by;
    }
    /* In ascending order: a row that is kept moves down, onto one that has been read. */
    for (uint32_t i = 0; i + 1 < taps; i++) {
        float *keep = r->state + (size_t)i * j->channels + channel;
        if (keep != in[r->count + i])
            memcpy(keep, in[r->count + i], dim * sizeof *keep);
    }
}

static float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

static float softplus(float x)
{
    return x > 20 ? x : log1pf(expf(x)); /* beyond 20 both are the same float */
}

static void state_task(void *ctx, uint32_t task, uint32_t worker)
{
    const delta_job *j = ctx;
    const kern_delta_args *a = j->a;
    const kern_delta_geom *g = &a->geom;
    const uint32_t head = task % g->n_v_heads, k_head = kern_delta_k_head(g, head);
    const size_t state_n = (size_t)g->k_dim * g->v_dim, width = (size_t)g->n_v_heads * g->v_dim;
    const run *r = &j->runs[task / g->n_v_heads];
    float *s = r->state + (size_t)(g->conv - 1) * j->channels + head * state_n;
    float *decay = j->workspace + worker * workspace_floats(g); /* of the rows of S */
    if (r->fresh)
        memset(s, 0, state_n * sizeof *s);
    for (uint32_t t = r->first; t < r->first + r->count; t++) {
        const float *z = a->x + (size_t)t * a->x_stride + j->channels, *b = z + width;
        const float *q = j->conv + (size_t)(t - j->first_token) * j->channels + (size_t)k_head * g->k_dim;
        const float *k = q + (size_t)g->n_k_heads * g->k_dim;
        const float *v = q + (size_t)(2 * g->n_k_heads - k_head) * g->k_dim + (size_t)head * g->v_dim;
        const float *dt = b + g->n_v_heads;
        for (uint32_t i = 0; i < g->k_dim; i++) {
            const uint32_t at = g->by_channel ? head * g->k_dim + i : head;
            decay[i] = i && !g->by_channel ? decay[0] : expf(a->neg_exp_a[head] * softplus(dt[at] + a->dt_bias[at]));
        }
        float *y = a->y + t * width + (size_t)head * g->v_dim;
        j->rows->delta(y, s, q, k, v, decay, sigmoid(b[head]), g->k_dim, g->v_dim);
        j->rows->rmsnorm(y, y, a->norm, g->v_dim, a->norm_eps);
        z += (size_t)head * g->v_dim;
        if (!g->by_channel)
            j->rows->swiglu(y, z, y, g->v_dim);
        for (uint32_t i = 0; g->by_channel && i < g->v_dim; i++)
            y[i] *= sigmoid(z[i]);
    }
}

uint64_t cpu_delta_scratch_bytes(kern_dev *dev, uint32_t max_tokens, const kern_delta_geom *g)
{
    uint64_t n = MIN(max_tokens, (uint32_t)PIECE_TOKENS);
    return n * sizeof(run) +
           (n * kern_delta_channels(g) + pool_count(cpu_of(dev)->pool) * workspace_floats(g)) * sizeof(float);
}

/* The runs among tokens [first, first + n); padding gets its zeros. */
static uint32_t make_runs(const kern_delta_args *a, uint32_t first, uint32_t n, run *runs)
{
    const size_t width = (size_t)a->geom.n_v_heads * a->geom.v_dim;
    uint32_t n_runs = 0;
    for (uint32_t t = first; t < first + n; t++) {
        const uint32_t seq = a->token_seq[t];
        if (seq == UINT32_MAX)
            memset(a->y + t * width, 0, width * sizeof *a->y);
        else if (t > first && seq == a->token_seq[t - 1])
            runs[n_runs - 1].count++;
        else
            runs[n_runs++] = (run){.first = t,
                                   .count = 1,
                                   .state = (float *)(void *)((char *)a->state + a->seq_slot[seq] * a->slot_bytes),
                                   .fresh = a->token_pos[t] == 0};
    }
    return n_runs;
}

bool cpu_delta_takes(const kern_delta_geom *g)
{
    return g->n_k_heads && g->n_v_heads % g->n_k_heads == 0 && g->conv && g->conv <= KERN_MAX_CONV && g->k_dim &&
           g->v_dim && !(g->by_channel && (g->tiled || g->n_k_heads != g->n_v_heads));
}

kern_status cpu_delta(kern_dev *dev, const kern_delta_args *a)
{
    cpu_dev *d = cpu_of(dev);
    const kern_delta_geom *g = &a->geom;
    if (!cpu_delta_takes(g))
        return cpu_fail(d, KERN_UNSUPPORTED, "delta: %u key heads, %u value heads, %u taps", g->n_k_heads, g->n_v_heads,
                        g->conv);
    const uint32_t piece = MIN(a->n_tokens, (uint32_t)PIECE_TOKENS);
    run *runs = a->scratch;
    delta_job j = {.a = a,
                   .rows = &d->rows,
                   .channels = kern_delta_channels(g),
                   .n_parts = 2 * g->n_k_heads + g->n_v_heads,
                   .runs = runs,
                   .conv = (float *)(void *)(runs + piece)};
    j.workspace = j.conv + (size_t)piece * j.channels;
    for (uint32_t n; j.first_token < a->n_tokens; j.first_token += n) {
        n = MIN(piece, a->n_tokens - j.first_token);
        const uint32_t n_runs = make_runs(a, j.first_token, n, runs);
        pool_run(d->pool, n_runs * j.n_parts, conv_task, &j);
        pool_run(d->pool, n_runs * g->n_v_heads, state_task, &j);
    }
    return KERN_OK;
}

typedef struct gate_job {
    const kern_gate_args *a;
} gate_job;

static float gate_of(const kern_gate_args *a, float v)
{
    return a->softplus ? softplus(v) : sigmoid(v);
}

static void gate_task(void *ctx, uint32_t t, uint32_t worker)
{
    (void)worker;
    const kern_gate_args *a = ((const gate_job *)ctx)->a;
    for (uint32_t h = 0; h < a->n_heads; h++) {
        float *y = a->y + (size_t)t * a->y_stride + (size_t)h * a->head_dim;
        const float *gate = a->gate + (size_t)t * a->gate_stride + (size_t)h * a->gate_head_stride;
        const bool single = a->pick || a->per_head;
        const float one = single ? gate_of(a, gate[a->pick ? a->pick[t] : 0]) : 0;
        for (uint32_t i = 0; i < a->head_dim; i++)
            y[i] *= single ? one : gate_of(a, gate[i]);
    }
}

kern_status cpu_gate(kern_dev *dev, const kern_gate_args *a)
{
    gate_job j = {.a = a};
    pool_run(cpu_of(dev)->pool, a->n_tokens, gate_task, &j);
    return KERN_OK;
}
