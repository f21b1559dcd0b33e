/* rope.cuh - norm and rotary embedding of one head, by one warp; the same bits in every kernel. */
#ifndef KERNELS_CUDA_ROPE_CUH
#define KERNELS_CUDA_ROPE_CUH

#include "kernels/cuda/kv_q8_0.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/kernels.h"

#include <cuda_fp16.h>

/* cos and sin of the rot_dim / 2 angles of a position, by all threads of the block from `first` on; a barrier must follow. */
template <typename A> /* kern_rope_kv_args, kern_index_rope_args */
static __device__ __forceinline__ void rope_angles(const A &a, uint32_t pos, uint32_t first, float *cs,
                                                   float *sn)
{
#pragma unroll 1
    for (uint32_t i = threadIdx.x - first; i < a.rot_dim / 2; i += blockDim.x - first) {
        float s, c;
        sincosf((float)pos * a.inv_freq[i], &s, &c);
        cs[i] = c * a.rope_scale;
        sn[i] = s * a.rope_scale;
    }
}

enum rope_kind { ROPE_Q, ROPE_K, ROPE_V };

static __device__ __forceinline__ rope_kind rope_kind_of(const kern_rope_kv_args &a, uint32_t h)
{
    return h < a.n_heads ? ROPE_Q : h < a.n_heads + a.kv.n_kv_heads ? ROPE_K : ROPE_V;
}

/* N values a lane, of a head of hd, normed with weights w. */
template <int N>
static __device__ __forceinline__ void norm_of_head(const kern_rope_kv_args &a, uint32_t hd, float (&v)[N],
                                                    const float (&w)[N])
{
    float sum = 0;
#pragma unroll
    for (int j = 0; j < N; j++)
        sum = fmaf(v[j], v[j], sum);
    sum = warp_sum(sum);
    const float r = 1.0f / sqrtf(sum / (float)hd + a.norm_eps);
#pragma unroll
    for (int j = 0; j < N; j++)
        v[j] = v[j] * r * w[j];
}

/* Head h, `src`, normed and rotated into `head` (shared memory). N: values a lane. LAST: a.norm_last. */
template <int N, bool LAST = false>
static __device__ __forceinline__ void rope_head(const kern_rope_kv_args &a, uint32_t h, const float *src, float *head,
                                                 const float *cs, const float *sn)
{
    const uint32_t lane = threadIdx.x % 32, hd = a.kv.head_dim, half = a.rot_dim / 2;
    const rope_kind kind = rope_kind_of(a, h);
    const float *norm = kind == ROPE_Q ? a.q_norm : kind == ROPE_K ? a.k_norm : a.v_norm;
    float v[N], w[N];
#pragma unroll
    for (int j = 0; j < N; j++) {
        const uint32_t i = lane + 32 * j;
        v[j] = i < hd ? src[i] : 0.0f;
        w[j] = norm && i < hd ? norm[i] : 1.0f;
    }
    if (norm && (!LAST || kind == ROPE_V))
        norm_of_head<N>(a, hd, v, w);
#pragma unroll
    for (int j = 0; j < N; j++)
        if (lane + 32 * j < hd)
            head[lane + 32 * j] = v[j];
    __syncwarp();
    if (kind == ROPE_V)
        return;
#pragma unroll 2
    for (uint32_t i = lane; i < half; i += 32) {
        const uint32_t first = a.interleaved ? 2 * i : i, second = a.interleaved ? 2 * i + 1 : i + half;
        const float p = head[first], q = head[second];
        head[first] = p * cs[i] - q * sn[i];
        head[second] = q * cs[i] + p * sn[i];
    }
    __syncwarp();
    if (LAST && norm) {
#pragma unroll
        for (int j = 0; j < N; j++)
            v[j] = lane + 32 * j < hd ? head[lane + 32 * j] : 0.0f;
        norm_of_head<N>(a, hd, v, w);
#pragma unroll
        for (int j = 0; j < N; j++)
            if (lane + 32 * j < hd)
                head[lane + 32 * j] = v[j];
        __syncwarp();
    }
}

/* Where K or V head h of a position is kept. Q8: the cache is of Q8_0. */
template <bool Q8>
static __device__ __forceinline__ unsigned char *rope_place(const kern_rope_kv_args &a, uint32_t h, uint32_t seq,
                                                            uint32_t pos)
{
    const uint32_t id = a.kv.block_table[(size_t)seq * a.kv.max_blocks + pos / a.kv.block_size];
    const uint32_t elem = a.kv.fmt == FMT_F32 ? 4 : 2;
    const uint32_t row = Q8 ? a.kv.head_dim / 32 * (uint32_t)sizeof(kern_q8_0_block) : a.kv.head_dim * elem;
    return reinterpret_cast<unsigned char *>(a.kv.block_addr[id] + a.layer * a.kv.layer_bytes) +
           ((size_t)(h - a.n_heads) * a.kv.block_size + pos % a.kv.block_size) * row;
}

/* n values that a warp has in shared memory. */
template <bool Q8>
static __device__ __forceinline__ void rope_store(kern_fmt fmt, unsigned char *dst, const float *head, uint32_t n)
{
    if constexpr (Q8) {
        q8_store(dst, head, n);
    } else {
        for (uint32_t i = threadIdx.x % 32; i < n; i += 32) {
            if (fmt == FMT_F32)
                reinterpret_cast<float *>(dst)[i] = head[i];
            else
                reinterpret_cast<__half *>(dst)[i] = __float2half_rn(head[i]);
        }
    }
}

#endif
