/* shortconv.c - gated short convolutions (LFM2).
 *
 * A task has some channels of all tokens of the call, one token after another, with what their sequences keep. So neither the threads nor what else is
 * in the batch changes an order of additions, and the end of a chunk is nothing special. */
#include "kernels/cpu/cpu_priv.h"

#define CHANNELS 64 /* of a task */

typedef struct shortconv_job {
    const kern_shortconv_args *a;
} shortconv_job;

static void shortconv_task(void *ctx, uint32_t task, uint32_t worker)
{
    (void)worker;
    const kern_shortconv_args *a = ((const shortconv_job *)ctx)->a;
    const uint32_t channels = a->geom.channels, keep = a->geom.conv - 1, first = task * CHANNELS,
                   n = MIN(channels - first, (uint32_t)CHANNELS);
    float w[KERN_MAX_CONV][CHANNELS], in[KERN_MAX_CONV][CHANNELS]; /* oldest first; in[keep] is the token's own */
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t tap = 0; tap <= keep; tap++)
            w[tap][i] = a->conv_w[(size_t)(first + i) * a->geom.conv + tap];
    for (uint32_t t = 0; t < a->n_tokens; t++) {
        const uint32_t seq = a->token_seq[t];
        const float *b = a->x + (size_t)t * a->x_stride + first, *c = b + channels, *v = c + channels;
        float *y = a->y + (size_t)t * channels + first;
        if (seq == UINT32_MAX) {
            memset(y, 0, n * sizeof *y);
            continue;
        }
        float *state = (float *)(void *)((char *)a->state + a->seq_slot[seq] * a->slot_bytes) + first;
        for (uint32_t row = 0; row < keep && (!t || a->token_seq[t - 1] != seq); row++) {
            if (a->token_pos[t] == 0) /* whatever lies there */
                memset(in[row], 0, n * sizeof *y);
            else
                memcpy(in[row], state + (size_t)row * channels, n * sizeof *y);
        }
        for (uint32_t i = 0; i < n; i++)
            in[keep][i] = b[i] * v[i];
        for (uint32_t i = 0; i < n; i++)
            y[i] = w[0][i] * in[0][i];
        for (uint32_t tap = 1; tap <= keep; tap++)
            for (uint32_t i = 0; i < n; i++)
                y[i] += w[tap][i] * in[tap][i];
        for (uint32_t i = 0; i < n; i++)
            y[i] *= c[i];
        memmove(in[0], in[1], keep * sizeof in[0]);
        for (uint32_t row = 0; row < keep && (t + 1 == a->n_tokens || a->token_seq[t + 1] != seq); row++)
            memcpy(state + (size_t)row * channels, in[row], n * sizeof *y);
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
    shortconv_job j = {.a = a};
    pool_run(d->pool, (a->geom.channels + CHANNELS - 1) / CHANNELS, shortconv_task, &j);
    return KERN_OK;
}
