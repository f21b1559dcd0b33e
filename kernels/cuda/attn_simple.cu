/* attn_simple.cu - attention without matrix units, for what the fast kernels leave out: F32 caches, unusual head dimensions and blocks. */
#include "kernels/cuda/attn.h"
#include "kernels/cuda/overlap.cuh"
#include "kernels/cuda/reduce.cuh"

#include <cuda_fp16.h>

#define SIMPLE_BLOCK 128

static __device__ __forceinline__ float q8_value(const unsigned char *row, uint32_t j)
{
    const kern_q8_0_block &b = reinterpret_cast<const kern_q8_0_block *>(row)[j / 32];
    return __half2float(__ushort_as_half(b.d)) * (float)b.qs[j % 32];
}

/* A block a (token, head): scores of a split in shared memory, then the sums, splits merged in order of position. Any head_dim, F16 and
 * F32 caches; Q8: those of Q8_0, whose values are not rounded here. N: columns of V a thread. LATENT: with kv.v_dim. */
template <int N, bool LATENT, bool Q8>
__global__ void __launch_bounds__(SIMPLE_BLOCK) attn_simple_kernel(kern_attn_args a)
{
    extern __shared__ float sh[]; /* q [head_dim], scores [KERN_ATTN_SPLIT] */
    __shared__ float red[32];
    const uint32_t t = blockIdx.x, h = blockIdx.y, hd = a.kv.head_dim, vd = LATENT ? a.kv.v_dim : hd,
                   group = a.n_heads / a.kv.n_kv_heads, kvh = h / group;
    overlap_begin();
    if (a.token_seq[t] == UINT32_MAX)
        return;
    float *q = sh, *sc = sh + hd;
    const uint32_t pos = a.token_pos[t], warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint32_t *table = a.kv.block_table + (size_t)a.token_seq[t] * a.kv.max_blocks;
    const uint32_t first = (uint32_t)attn_first(a, pos);
    const bool f32 = a.kv.fmt == FMT_F32;
    const uint32_t row_bytes = Q8 ? hd / 32 * (uint32_t)sizeof(kern_q8_0_block) : hd * (f32 ? 4 : 2);
    const size_t v_off = LATENT ? 0 : (size_t)a.kv.n_kv_heads * a.kv.block_size * row_bytes;
    const uint32_t *chosen = LATENT && a.chosen ? a.chosen + (size_t)t * a.top_k : nullptr;
    const uint32_t seen = chosen ? min(pos + 1, a.top_k) : pos + 1; /* of the chosen ones, where there are */
    auto row_of = [&](uint32_t i) {
        const uint32_t p = chosen ? chosen[i] : i;
        return reinterpret_cast<const unsigned char *>(a.kv.block_addr[table[p / a.kv.block_size]] +
                                                       a.layer * a.kv.layer_bytes) +
               row_bytes * ((size_t)kvh * a.kv.block_size + p % a.kv.block_size);
    };
    for (uint32_t i = threadIdx.x; i < hd; i += blockDim.x)
        q[i] = a.qkv[(size_t)t * a.qkv_stride + h * hd + i] * a.scale;
    __syncthreads();

    float m = -INFINITY, l = 0, o[N] = {};
    for (uint32_t s = first / KERN_ATTN_SPLIT * KERN_ATTN_SPLIT; s < seen; s += KERN_ATTN_SPLIT) {
        const uint32_t begin = max(s, first), end = min(s + KERN_ATTN_SPLIT, seen);
        float max_s = -INFINITY;
        for (uint32_t i = begin + warp; i < end; i += blockDim.x / 32) {
            const unsigned char *k = row_of(i);
            float sum = 0;
            for (uint32_t j = lane; j < hd; j += 32)
                sum = fmaf(q[j],
                           Q8    ? q8_value(k, j)
                           : f32 ? reinterpret_cast<const float *>(k)[j]
                                 : __half2float(reinterpret_cast<const __half *>(k)[j]),
                           sum);
            sum = warp_sum(sum);
            if (lane == 0)
                sc[i - s] = sum;
            max_s = fmaxf(max_s, sum);
        }
        max_s = block_max(max_s, red);
        float sum_s = 0;
        for (uint32_t i = begin + threadIdx.x; i < end; i += blockDim.x) {
            const float p = expf(sc[i - s] - max_s);
            sc[i - s] = p;
            sum_s += p;
        }
        sum_s = block_sum(sum_s, red);
        const float m2 = fmaxf(m, max_s), fa = expf(m - m2), fb = expf(max_s - m2);
#pragma unroll
        for (uint32_t c = 0; c < N; c++) {
            const uint32_t j = threadIdx.x + c * SIMPLE_BLOCK;
            if (j >= vd)
                continue;
            float v_sum = 0;
            for (uint32_t i = begin; i < end; i++) {
                const unsigned char *v = row_of(i) + v_off;
                v_sum = fmaf(sc[i - s],
                             Q8    ? q8_value(v, j)
                             : f32 ? reinterpret_cast<const float *>(v)[j]
                                   : __half2float(reinterpret_cast<const __half *>(v)[j]),
                             v_sum);
            }
            o[c] = o[c] * fa + v_sum * fb;
        }
        l = l * fa + sum_s * fb;
        m = m2;
        __syncthreads();
    }
    if (a.sinks) {
        const float m2 = fmaxf(m, a.sinks[h]);
        const float fa = expf(m - m2);
        l = l * fa + expf(a.sinks[h] - m2);
#pragma unroll
        for (uint32_t c = 0; c < N; c++)
            o[c] *= fa;
    }
#pragma unroll
    for (uint32_t c = 0; c < N; c++) {
        const uint32_t j = threadIdx.x + c * SIMPLE_BLOCK;
        if (j < vd)
            a.o[((size_t)t * a.n_heads + h) * vd + j] = o[c] / l;
    }
}

void attn_simple_launch(cuda_dev *d, const kern_attn_args *a)
{
    const size_t smem = (a->kv.head_dim + KERN_ATTN_SPLIT) * sizeof(float);
    constexpr int MOST = ATTN_MAX_LATENT / SIMPLE_BLOCK, WIDE = ATTN_MAX_HEAD / SIMPLE_BLOCK, HEAD = 2;
    const bool q8 = a->kv.fmt == FMT_Q8_0, wide = a->kv.head_dim > HEAD * SIMPLE_BLOCK;
    void (*kernel)(kern_attn_args) =
        a->kv.v_dim ? q8 ? attn_simple_kernel<MOST, true, true> : attn_simple_kernel<MOST, true, false>
        : wide      ? q8 ? attn_simple_kernel<WIDE, false, true> : attn_simple_kernel<WIDE, false, false>
        : q8        ? attn_simple_kernel<HEAD, false, true>
                    : attn_simple_kernel<HEAD, false, false>;
    (void)cuda_start(d, kernel, dim3(a->n_tokens, a->n_heads), SIMPLE_BLOCK, smem, *a);
}
