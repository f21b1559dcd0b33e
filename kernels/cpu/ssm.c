/* ssm.c - Mamba2.
 *
 * Three loops over the threads for every PIECE_TOKENS: convolution and silu of some channels; the recurrence of a head; gate and norm of a token. In
 * the first two a task has all tokens, one after another, and the part of the states that is its own, so neither the threads nor what else is in the
 * batch changes an order of additions; a piece that ends is a chunk of a prompt that ends. */
#include "kernels/cpu/cpu_priv.h"

#define PIECE_TOKENS 256 /* bounds the scratch */

typedef struct ssm_job {
    const kern_ssm_args *a;
    const cpu_rows *rows;
    cpu_conv conv; /* of this piece: token t is token first + t of the call */
    uint32_t first;
} ssm_job;

static void conv_task(void *ctx, uint32_t task, uint32_t worker)
{
    (void)worker;
    const ssm_job *j = ctx;
    const uint32_t first = task * CPU_CONV_CHANNELS, n = MIN(j->conv.channels - first, (uint32_t)CPU_CONV_CHANNELS);
    float ones[CPU_CONV_CHANNELS];
    for (uint32_t i = 0; i < n; i++)
        ones[i] = 1;
    cpu_conv_channels(&j->conv, first, n);
    for (uint32_t t = 0; t < j->conv.n_tokens; t++) {
        float *y = j->conv.y + (size_t)t * j->conv.channels + first;
        j->rows->swiglu(y, y, ones, n);
    }
}

/* S of a head: [d_state][head_dim]. */
static void step(float *o, float *s, const float *b, const float *c, const float *du, float decay, uint32_t d_state,
                 uint32_t head_dim)
{
    for (uint32_t p = 0; p < head_dim; p++)
        o[p] = 0;
    for (uint32_t i = 0; i < d_state; i++, s += head_dim)
        for (uint32_t p = 0; p < head_dim; p++) {
            s[p] = decay * s[p] + b[i] * du[p];
            o[p] += c[i] * s[p];
        }
}

static void state_task(void *ctx, uint32_t head, uint32_t worker)
{
    (void)worker;
    const ssm_job *j = ctx;
    const kern_ssm_args *a = j->a;
    const kern_ssm_geom *g = &a->geom;
    const uint32_t hd = g->head_dim, ds = g->d_state, inner = kern_ssm_inner(g), channels = kern_ssm_channels(g),
                   group = head / (g->n_heads / g->n_groups);
    const size_t state_n = (size_t)ds * hd;
    float du[CPU_SSM_MAX_HEAD];
    for (uint32_t t = 0; t < j->conv.n_tokens; t++) {
        const uint32_t seq = j->conv.token_seq[t];
        if (seq == UINT32_MAX)
            continue;
        float *s = (float *)(void *)((char *)a->state + a->seq_slot[seq] * a->slot_bytes) +
                   (size_t)(g->conv - 1) * channels + head * state_n;
        if (j->conv.token_pos[t] == 0) /* whatever lies there */
            memset(s, 0, state_n * sizeof *s);
        const float *row = j->conv.y + (size_t)t * channels, *u = row + (size_t)head * hd,
                    *b = row + inner + (size_t)group * ds, *c = b + (size_t)g->n_groups * ds;
        const float dt = a->x[(size_t)(j->first + t) * a->x_stride + inner + channels + head] + a->dt_bias[head];
        const float d = dt > 20 ? dt : log1pf(expf(dt)); /* softplus: beyond 20 both are the same float */
        float *o = a->y + (size_t)(j->first + t) * inner + (size_t)head * hd;
        for (uint32_t p = 0; p < hd; p++)
            du[p] = d * u[p];
        step(o, s, b, c, du, expf(a->neg_exp_a[head] * d), ds, hd);
        for (uint32_t p = 0; p < hd; p++)
            o[p] += a->skip[head] * u[p];
    }
}

static void norm_task(void *ctx, uint32_t t, uint32_t worker)
{
    (void)worker;
    const ssm_job *j = ctx;
    const kern_ssm_args *a = j->a;
    const uint32_t inner = kern_ssm_inner(&a->geom), n = inner / a->geom.n_groups;
    const float *z = a->x + (size_t)(j->first + t) * a->x_stride;
    float *y = a->y + (size_t)(j->first + t) * inner;
    if (j->conv.token_seq[t] == UINT32_MAX) {
        memset(y, 0, inner * sizeof *y);
        return;
    }
    j->rows->swiglu(y, z, y, inner);
    for (uint32_t group = 0; group < a->geom.n_groups; group++)
        j->rows->rmsnorm(y + group * n, y + group * n, a->norm + group * n, n, a->norm_eps);
}

uint64_t cpu_ssm_scratch_bytes(kern_dev *dev, uint32_t max_tokens, const kern_ssm_geom *g)
{
    (void)dev;
    return (uint64_t)MIN(max_tokens, (uint32_t)PIECE_TOKENS) * kern_ssm_channels(g) * sizeof(float);
}

bool cpu_ssm_takes(const kern_ssm_geom *g)
{
    return g->n_groups && g->n_heads && g->n_heads % g->n_groups == 0 && g->head_dim && g->d_state && g->conv >= 2 &&
           g->conv <= KERN_MAX_CONV && g->head_dim <= CPU_SSM_MAX_HEAD;
}

kern_status cpu_ssm(kern_dev *dev, const kern_ssm_args *a)
{
    cpu_dev *d = cpu_of(dev);
    const kern_ssm_geom *g = &a->geom;
    if (!cpu_ssm_takes(g))
        return cpu_fail(d, KERN_UNSUPPORTED, "ssm: %u heads in %u groups, %u taps", g->n_heads, g->n_groups, g->conv);
    ssm_job j = {.a = a,
                 .rows = &d->rows,
                 .conv = {.w = a->conv_w,
                          .bias = a->conv_bias,
                          .y = a->scratch,
                          .x_stride = a->x_stride,
                          .channels = kern_ssm_channels(g),
                          .conv = g->conv,
                          .seq_slot = a->seq_slot,
                          .state = a->state,
                          .slot_bytes = a->slot_bytes}};
    for (; j.first < a->n_tokens; j.first += j.conv.n_tokens) {
        j.conv.n_tokens = MIN(a->n_tokens - j.first, (uint32_t)PIECE_TOKENS);
        j.conv.x = a->x + (size_t)j.first * a->x_stride + kern_ssm_inner(g);
        j.conv.token_seq = a->token_seq + j.first;
        j.conv.token_pos = a->token_pos + j.first;
        pool_run(d->pool, (j.conv.channels + CPU_CONV_CHANNELS - 1) / CPU_CONV_CHANNELS, conv_task, &j);
        pool_run(d->pool, g->n_heads, state_task, &j);
        pool_run(d->pool, j.conv.n_tokens, norm_task, &j);
    }
    return KERN_OK;
}
