/* conv.cuh - causal convolutions over time, a channel a thread, of layers that keep a state.
 *
 * A: the arguments of an operation, whose geom.conv is how many tokens are seen, and whose state begins with the last inputs of all channels
 * [conv - 1][channels], oldest first. For it there are channels_of(geom), kernels.h's number, and conv_input(a, t, channel). */
#ifndef KERNELS_CUDA_CONV_CUH
#define KERNELS_CUDA_CONV_CUH

#include "kernels/cuda/overlap.cuh"
#include "kernels/kernels.h"

#define CONV_TAPS KERN_MAX_CONV

template <typename A> static __device__ __forceinline__ float *state_of(const A &a, uint32_t seq)
{
    return reinterpret_cast<float *>(static_cast<unsigned char *>(a.state) + a.seq_slot[seq] * a.slot_bytes);
}

/* Tokens right before t that belong to its sequence, as far as the convolution looks. */
template <typename A> static __device__ __forceinline__ uint32_t tokens_before(const A &a, uint32_t t, uint32_t seq)
{
    uint32_t n = 0;
    while (a.run_start && n + 1 < a.geom.conv && n < t && a.token_seq[t - 1 - n] == seq)
        n++;
    return n;
}

/* The input of a channel that lies `back` tokens before token t of position pos, whose sequence has `before` tokens right before it here. */
template <typename A>
static __device__ __forceinline__ float past_input(const A &a, const float *state, uint32_t t, uint32_t pos,
                                                   uint32_t before, uint32_t back, uint32_t channel)
{
    if (back <= before)
        return conv_input(a, t - back, channel);
    if (back >= a.geom.conv || back > pos)
        return 0.0f;
    return state[(size_t)(a.geom.conv - 1 - (back - before)) * channels_of(a.geom) + channel];
}

/* The convolution of a channel: weights and inputs, oldest first; those of shorter convolutions are the last ones. */
struct conv_taps {
    float w[CONV_TAPS], past[CONV_TAPS - 1];
};

template <typename A>
static __device__ __forceinline__ void load_weights(const A &a, uint32_t channel, conv_taps &c)
{
#pragma unroll
    for (int m = 0; m < CONV_TAPS; m++) {
        const int tap = m + (int)a.geom.conv - CONV_TAPS;
        c.w[m] = tap >= 0 ? a.conv_w[(size_t)channel * a.geom.conv + tap] : 0.0f;
    }
}

template <typename A>
static __device__ __forceinline__ void load_past(const A &a, const float *state, uint32_t t, uint32_t pos,
                                                 uint32_t before, uint32_t channel, conv_taps &c)
{
#pragma unroll
    for (int m = 0; m < CONV_TAPS - 1; m++)
        c.past[m] = past_input(a, state, t, pos, before, CONV_TAPS - 1 - m, channel);
}

template <typename A> static __device__ __forceinline__ float conv_sum(const A &a, const conv_taps &c, float x)
{
    float sum = 0;
#pragma unroll
    for (int m = 0; m < CONV_TAPS - 1; m++)
        sum = m + a.geom.conv >= CONV_TAPS ? __fmaf_rn(c.w[m], c.past[m], sum) : sum;
    return __fmaf_rn(c.w[CONV_TAPS - 1], x, sum);
}

/* x was the token's. */
static __device__ __forceinline__ void next_token(conv_taps &c, float x)
{
#pragma unroll
    for (int m = 0; m < CONV_TAPS - 2; m++)
        c.past[m] = c.past[m + 1];
    c.past[CONV_TAPS - 2] = x;
}

/* The last inputs of a channel, behind tokens [first, end) of one sequence: nobody else reads the old ones any more. */
template <typename A>
static __device__ __forceinline__ void keep_inputs(const A &a, float *state, uint32_t first, uint32_t end,
                                                   uint32_t channel)
{
    float last[CONV_TAPS - 1];
#pragma unroll
    for (uint32_t back = 1; back < CONV_TAPS; back++)
        last[back - 1] =
            back < a.geom.conv ? past_input(a, state, end, a.token_pos[end - 1] + 1, end - first, back, channel) : 0.0f;
#pragma unroll
    for (uint32_t back = 1; back < CONV_TAPS; back++)
        if (back < a.geom.conv)
            state[(size_t)(a.geom.conv - 1 - back) * channels_of(a.geom) + channel] = last[back - 1];
}

/* The same behind one token, x, whose taps c has. */
template <typename A>
static __device__ __forceinline__ void keep_inputs(const A &a, float *state, const conv_taps &c, float x,
                                                   uint32_t channel)
{
#pragma unroll
    for (int m = 0; m < CONV_TAPS - 1; m++) {
        const int to = m + (int)a.geom.conv - CONV_TAPS; /* a row of the state: what was one token later */
        if (to >= 0)
            state[(size_t)to * channels_of(a.geom) + channel] = m + 1 < CONV_TAPS - 1 ? c.past[m + 1] : x;
    }
}

/* --- kernels of their own --------------------------------------------------------------------------------------------------
 *
 * A thread has a channel of some tokens, one after another. Where every sequence has one token it keeps the new inputs, too; else another
 * kernel does so when all tokens are done, since the first ones of a sequence need the old inputs. One order of additions, so that a chunk
 * has the bits of its tokens alone. What becomes of a sum conv_store(a, first, t, channel, sum) says; conv_pad() of a token that is padding. */

#define CONV_THREADS      128
#define CONV_THREAD_TOKENS 8 /* each input is fetched once, and those before the first again */

/* Tokens [first, first + n) of the call. */
template <typename A>
__global__ void __launch_bounds__(CONV_THREADS)
    conv_kernel(const __grid_constant__ A a, uint32_t first, uint32_t n, uint64_t *mark)
{
    const uint32_t channel = blockIdx.x * CONV_THREADS + threadIdx.x;
    const uint32_t begin = first + blockIdx.y * CONV_THREAD_TOKENS, end = min(begin + CONV_THREAD_TOKENS, first + n);
    conv_taps taps;
    if (channel < channels_of(a.geom))
        load_weights(a, channel, taps);
    overlap_begin(mark);
    if (channel >= channels_of(a.geom))
        return;
    for (uint32_t t = begin; t < end; t++) {
        const uint32_t seq = a.token_seq[t];
        if (seq == UINT32_MAX) {
            conv_pad(a, t, channel);
            continue;
        }
        if (t == begin || !a.run_start || a.token_seq[t - 1] != seq)
            load_past(a, state_of(a, seq), t, a.token_pos[t], tokens_before(a, t, seq), channel, taps);
        const float x = conv_input(a, t, channel);
        conv_store(a, first, t, channel, conv_sum(a, taps, x));
        if (!a.run_start)
            keep_inputs(a, state_of(a, seq), taps, x, channel);
        next_token(taps, x);
    }
}

/* The run of a sequence: tokens [*first, *end); padding may lie behind them. UINT32_MAX: it has none. */
template <typename A>
static __device__ __forceinline__ uint32_t run_of(const A &a, uint32_t run, uint32_t *first, uint32_t *end)
{
    *first = a.run_start ? a.run_start[run] : run;
    *end = a.run_start ? a.run_start[run + 1] : run + 1;
    if (*first >= *end)
        return UINT32_MAX;
    const uint32_t seq = a.token_seq[*first];
    while (*end > *first && a.token_seq[*end - 1] != seq)
        --*end;
    return seq;
}

template <typename A>
__global__ void __launch_bounds__(CONV_THREADS) conv_keep_kernel(const __grid_constant__ A a)
{
    const uint32_t channel = blockIdx.x * CONV_THREADS + threadIdx.x;
    uint32_t first, end;
    overlap_begin();
    const uint32_t seq = run_of(a, blockIdx.y, &first, &end);
    if (channel < channels_of(a.geom) && seq != UINT32_MAX)
        keep_inputs(a, state_of(a, seq), first, end, channel);
}

#endif
