/* shortconv.cu - gated short convolutions (LFM2), between the products of a layer: the kernels of conv.cuh. */
#include "kernels/cuda/conv.cuh"
#include "kernels/cuda/cuda_priv.h"

static __host__ __device__ __forceinline__ uint32_t channels_of(const kern_shortconv_geom &g)
{
    return g.channels;
}

static __device__ __forceinline__ float conv_input(const kern_shortconv_args &a, uint32_t t, uint32_t channel)
{
    const float *row = a.x + (size_t)t * a.x_stride + channel;
    return __fmul_rn(row[0], row[2 * a.geom.channels]);
}

static __device__ __forceinline__ void conv_store(const kern_shortconv_args &a, uint32_t, uint32_t t, uint32_t channel,
                                                  float sum)
{
    a.y[(size_t)t * a.geom.channels + channel] = a.x[(size_t)t * a.x_stride + a.geom.channels + channel] * sum;
}

static __device__ __forceinline__ void conv_pad(const kern_shortconv_args &a, uint32_t t, uint32_t channel)
{
    a.y[(size_t)t * a.geom.channels + channel] = 0;
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
    const uint32_t blocks = (a->geom.channels + CONV_THREADS - 1) / CONV_THREADS;
    (void)cuda_start(d, conv_kernel<kern_shortconv_args>,
                     dim3(blocks, (a->n_tokens + CONV_THREAD_TOKENS - 1) / CONV_THREAD_TOKENS), CONV_THREADS, 0, *a, 0u,
                     a->n_tokens, cuda_take_mark(d));
    if (a->run_start && a->n_seqs)
        (void)cuda_start(d, conv_keep_kernel<kern_shortconv_args>, dim3(blocks, a->n_seqs), CONV_THREADS, 0, *a);
    return cuda_launched(d, "shortconv");
}
