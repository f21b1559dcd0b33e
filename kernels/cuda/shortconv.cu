/* shortconv.cu - gated short convolutions (LFM2), between the products of a layer.
 *
 * A thread has a channel of some tokens, one after another. Where every sequence has one token it keeps the new inputs, too; else another
 * kernel does so when all tokens are done, since the first ones of a sequence need the old inputs. The sums of both are conv.cuh's, in one
 * order, so that a chunk has the bits of its tokens alone. */
#include "kernels/cuda/conv.cuh"
#include "kernels/cuda/cuda_priv.h"
#include "kernels/cuda/overlap.cuh"

#define SHORTCONV_THREADS 128
#define SHORTCONV_TOKENS  8 /* of a thread: each input is fetched once, and those before the first again */

static __host__ __device__ __forceinline__ uint32_t channels_of(const kern_shortconv_geom &g)
{
    return g.channels;
}

static __device__ __forceinline__ float conv_input(const kern_shortconv_args &a, uint32_t t, uint32_t channel)
{
    const float *row = a.x + (size_t)t * a.x_stride + channel;
    return __fmul_rn(row[0], row[2 * a.geom.channels]);
}

__global__ void __launch_bounds__(SHORTCONV_THREADS)
    shortconv_kernel(const __grid_constant__ kern_shortconv_args a, uint64_t *mark)
{
    const uint32_t channel = blockIdx.x * SHORTCONV_THREADS + threadIdx.x, channels = a.geom.channels;
    const uint32_t begin = blockIdx.y * SHORTCONV_TOKENS, end = min(begin + SHORTCONV_TOKENS, a.n_tokens);
    conv_taps taps;
    if (channel < channels)
        load_weights(a, channel, taps);
    overlap_begin(mark);
    if (channel >= channels)
        return;
    for (uint32_t t = begin; t < end; t++) {
        const uint32_t seq = a.token_seq[t];
        float *y = a.y + (size_t)t * channels + channel;
        if (seq == UINT32_MAX) {
            *y = 0;
            continue;
        }
        if (t == begin || !a.run_start || a.token_seq[t - 1] != seq)
            load_past(a, state_of(a, seq), t, a.token_pos[t], tokens_before(a, t, seq), channel, taps);
        const float x = conv_input(a, t, channel);
        *y = a.x[(size_t)t * a.x_stride + channels + channel] * conv_sum(a, taps, x);
        if (!a.run_start)
            keep_inputs(a, state_of(a, seq), taps, x, channel);
        next_token(taps, x);
    }
}

/* A sequence's run; padding may lie behind it. */
__global__ void __launch_bounds__(SHORTCONV_THREADS)
    shortconv_keep_kernel(const __grid_constant__ kern_shortconv_args a)
{
    const uint32_t channel = blockIdx.x * SHORTCONV_THREADS + threadIdx.x;
    overlap_begin();
    const uint32_t first = a.run_start[blockIdx.y];
    uint32_t end = a.run_start[blockIdx.y + 1];
    if (channel >= a.geom.channels || first >= end)
        return;
    const uint32_t seq = a.token_seq[first];
    while (end > first && a.token_seq[end - 1] != seq)
        end--;
    if (seq != UINT32_MAX)
        keep_inputs(a, state_of(a, seq), first, end, channel);
}

const char *cuda_shortconv_refuses(const kern_shortconv_geom *g)
{
    return !g->channels || g->conv < 2 || g->conv > KERN_MAX_CONV ? "a short convolution of more than 4 tokens, or of one"
                                                                  : nullptr;
}

kern_status cuda_shortconv(kern_dev *kd, const kern_shortconv_args *a)
{
    cuda_dev *d = cuda_of(kd);
    const char *why = cuda_shortconv_refuses(&a->geom);
    if (why)
        return cuda_unsupported(d, why);
    if (!a->n_tokens)
        return KERN_OK;
    const uint32_t blocks = (a->geom.channels + SHORTCONV_THREADS - 1) / SHORTCONV_THREADS;
    (void)cuda_start(d, shortconv_kernel,
                     dim3(blocks, (a->n_tokens + SHORTCONV_TOKENS - 1) / SHORTCONV_TOKENS), SHORTCONV_THREADS, 0, *a,
                     cuda_take_mark(d));
    if (a->run_start && a->n_seqs)
        (void)cuda_start(d, shortconv_keep_kernel, dim3(blocks, a->n_seqs), SHORTCONV_THREADS, 0, *a);
    return cuda_launched(d, "shortconv");
}
