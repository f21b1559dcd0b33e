/* shortconv.c - convolutions over time, and the gated short ones of LFM2.
 *
 * A task has some channels of all tokens of the call, one token after another, with what their sequences keep. So neither the threads nor what else is
 * in the batch changes an order of additions, and the end of a chunk is nothing special. */
#include "kernels/cpu/cpu_priv.h"

void cpu_conv_channels(const cpu_conv *c, uint32_t first, uint32_t n)
{
    const uint32_t channels = c->channels, keep = c->conv - 1;
    /* Oldest first; in[keep] is the token's own. */
    float w[KERN_MAX_CONV][CPU_CONV_CHANNELS], in[KERN_MAX_CONV][CPU_CONV_CHANNELS], bias[CPU_CONV_CHANNELS];
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t tap = 0; tap <= keep; tap++)
            w[tap][i] = c->w[(size_t)(first + i) * c->conv + tap];
        bias[i] = c->bias ? c->bias[first + i] : 0;
    }
    for (uint32_t t = 0; t < c->n_tokens; t++) {
        const uint32_t seq = c->token_seq[t];
        const size_t at = (size_t)t * c->x_stride + first;
        float *y = c->y + (size_t)t * channels + first;
        if (seq == UINT32_MAX) {
            memset(y, 0, n * sizeof *y);
            continue;
        }
        float *state = (float *)(void *)((char *)c->state + c->seq_slot[seq] * c->slot_bytes) + first;
        for (uint32_t row = 0; row < keep && (!t || c->token_seq[t - 1] != seq); row++) {
            if (c->token_pos[t] == 0) /* whatever lies there */
                memset(in[row], 0, n * sizeof *y);
            else
                memcpy(in[row], state + (size_t)row * channels, n * sizeof *y);
        }
        for (uint32_t i = 0; i < n; i++)
            in[keep][i] = c->factor ? c->x[at + i] * c->factor[at + i] : c->x[at + i];
        for (uint32_t i = 0; i < n; i++)
            y[i] = w[0][i] * in[0][i];
        for (uint32_t tap = 1; tap <= keep; tap++)
            for (uint32_t i = 0; i < n; i++)
                y[i] += w[tap][i] * in[tap][i];
        for (uint32_t i = 0; c->bias && i < n; i++)
            y[i] += bias[i];
        memmove(in[0], in[1], keep * sizeof in[0]);
        for (uint32_t row = 0; row < keep && (t + 1 == c->n_tokens || c->token_seq[t + 1] != seq); row++)
            memcpy(state + (size_t)row * channels, in[row], n * sizeof *y);
    }
}

typedef struct shortconv_job {
    const kern_shortconv_args *a;
    cpu_conv conv;
} shortconv_job;

static void shortconv_task(void *ctx, uint32_t task, uint32_t worker)
{
    (void)worker;
    const shortconv_job *j = ctx;
    const kern_shortconv_args *a = j->a;
    const uint32_t channels = a->geom.channels, first = task * CPU_CONV_CHANNELS,
                   n = MIN(channels - first, (uint32_t)CPU_CONV_CHANNELS);
    cpu_conv_channels(&j->conv, first, n);
    for (uint32_t t = 0; t < a->n_tokens; t++) {
        const float *c = a->x + (size_t)t * a->x_stride + channels + first;
        float *y = a->y + (size_t)t * channels + first;
        for (uint32_t i = 0; a->token_seq[t] != UINT32_MAX && i < n; i++)
            y[i] *= c[i];
    }
}

bool cpu_shortconv_takes(const kern_shortconv_geom *g)
{
    return g->channels && g->conv >= 2 && g->conv <= KERN_MAX_CONV;
}

kern_status cpu_shortconv(kern_dev *dev, const kern_shortconv_args *a)
{
    cpu_dev *d = cpu_of(dev);
    if (!cpu_shortconv_takes(&a->geom))
        return cpu_fail(d, KERN_UNSUPPORTED, "shortconv: %u channels, %u taps", a->geom.channels, a->geom.conv);
    shortconv_job j = {.a = a,
                       .conv = {.x = a->x,
                                .factor = a->x + 2 * a->geom.channels,
                                .w = a->conv_w,
                                .y = a->y,
                                .n_tokens = a->n_tokens,
                                .x_stride = a->x_stride,
                                .channels = a->geom.channels,
                                .conv = a->geom.conv,
                                .token_seq = a->token_seq,
                                .token_pos = a->token_pos,
                                .seq_slot = a->seq_slot,
                                .state = a->state,
                                .slot_bytes = a->slot_bytes}};
    pool_run(d->pool, (a->geom.channels + CPU_CONV_CHANNELS - 1) / CPU_CONV_CHANNELS, shortconv_task, &j);
    return KERN_OK;
}
