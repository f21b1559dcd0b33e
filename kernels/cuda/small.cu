/* small.cu - operations that only pass over activations: embedding rows, norms, SwiGLU, gates, sums, rotary embedding with the
 * store of K and V.
 *
 * One block a token; nothing here depends on the number of tokens. */
#include "kernels/cuda/cuda_priv.h"
#include "kernels/cuda/overlap.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/rope.cuh"
#include "kernels/cuda/weight.cuh"

__global__ void embed_kernel(kern_embed_args a, uint64_t *mark)
{
    overlap_begin(mark);
    const uint32_t t = blockIdx.x;
    const unsigned char *row = static_cast<const unsigned char *>(a.table.data) + a.ids[t] * a.table.row_bytes;
    for (uint32_t i = threadIdx.x; i < a.table.cols; i += blockDim.x)
        a.y[(size_t)t * a.table.cols + i] = weight_at(row, i, a.table.fmt) * a.scale;
}

kern_status cuda_embed(kern_dev *kd, const kern_embed_args *a)
{
    cuda_dev *d = cuda_of(kd);
    if (a->n_tokens)
        (void)cuda_start(d, embed_kernel, a->n_tokens, 256, 0, *a, cuda_take_mark(d));
    return cuda_launched(d, "embed");
}

/* 1 / rms of a row by a block, a warp a group of 256 values. `groups` has room for rms_groups(dim). */
static __device__ __forceinline__ float rms_of_row(const float *x, uint32_t dim, float eps, float *groups)
{
    const uint32_t n = (dim + 255) / 256, lane = threadIdx.x % 32;
    if (threadIdx.x < rms_groups(dim) - n)
        groups[n + threadIdx.x] = 0;
    for (uint32_t q = threadIdx.x / 32; q < n; q += blockDim.x / 32) {
        float v[8];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const uint32_t at = q * 256 + lane * 8 + i;
            v[i] = at < dim ? x[at] : 0.0f;
        }
        const float sum =
            rms_group(rms_octet(make_float4(v[0], v[1], v[2], v[3]), make_float4(v[4], v[5], v[6], v[7])));
        if (lane == 0)
            groups[q] = sum;
    }
    __syncthreads();
    return rms_factor(groups, dim, eps);
}

/* A block a row. row_idx: rows of x, or NULL. */
__global__ void rmsnorm_kernel(kern_rmsnorm_args a, const uint32_t *row_idx, uint32_t x_stride, uint64_t *mark)
{
    extern __shared__ __align__(16) float groups[];
    overlap_begin(mark);
    const float *x = a.x + (size_t)(row_idx ? row_idx[blockIdx.x] : blockIdx.x) * x_stride;
    float *y = a.y + (size_t)blockIdx.x * a.dim;
    const float r = rms_of_row(x, a.dim, a.eps, groups);
    float *to = a.add_to ? a.add_to + (size_t)blockIdx.x * a.dim : nullptr;
    for (uint32_t i = threadIdx.x; i < a.dim; i += blockDim.x) {
        const float v = x[i] * r * a.weight[i];
        y[i] = v;
        if (to)
            to[i] = (to[i] + v) * a.scale;
    }
}

kern_status cuda_rmsnorm_rows(cuda_dev *d, const kern_rmsnorm_args *a, const uint32_t *row_idx, uint32_t x_stride)
{
    const size_t smem = rms_groups(a->dim) * sizeof(float);
    if (smem > 48 * 1024)
        return cuda_unsupported(d, "dimension of a norm");
    if (a->n_tokens)
        (void)cuda_start(d, rmsnorm_kernel, a->n_tokens, a->dim > 1024 ? 256 : 128, smem, *a, row_idx, x_stride,
                         cuda_take_mark(d));
    return cuda_launched(d, "rmsnorm");
}

kern_status cuda_rmsnorm(kern_dev *kd, const kern_rmsnorm_args *a)
{
    return cuda_rmsnorm_rows(cuda_of(kd), a, nullptr, a->dim);
}

/* A block a row. */
__global__ void layernorm_kernel(kern_layernorm_args a, uint64_t *mark)
{
    __shared__ float s[32];
    overlap_begin(mark);
    const float *x = a.x + (size_t)(a.row_idx ? a.row_idx[blockIdx.x] : blockIdx.x) * a.dim;
    float *y = a.y + (size_t)blockIdx.x * a.dim, sum = 0, squares = 0;
    for (uint32_t i = threadIdx.x; i < a.dim; i += blockDim.x)
        sum += x[i];
    const float mean = block_sum(sum, s) / (float)a.dim;
    for (uint32_t i = threadIdx.x; i < a.dim; i += blockDim.x)
        squares = fmaf(x[i] - mean, x[i] - mean, squares);
    const float r = 1.0f / sqrtf(block_sum(squares, s) / (float)a.dim + a.eps);
    for (uint32_t i = threadIdx.x; i < a.dim; i += blockDim.x)
        y[i] = (x[i] - mean) * r * a.weight[i] + a.bias[i];
}

kern_status cuda_layernorm(kern_dev *kd, const kern_layernorm_args *a)
{
    cuda_dev *d = cuda_of(kd);
    if (a->n_tokens)
        (void)cuda_start(d, layernorm_kernel, a->n_tokens, 256, 0, *a, cuda_take_mark(d));
    return cuda_launched(d, "layernorm");
}

/* A block a token and part: Q, K, and V where there is a clip. */
__global__ void qkv_norm_kernel(kern_qkv_norm_args a)
{
    extern __shared__ __align__(16) float groups[];
    overlap_begin();
    const uint32_t part = blockIdx.y, dim = part == 0 ? a.q_width : a.kv_width;
    float *x = a.qkv + (size_t)blockIdx.x * (a.q_width + 2 * a.kv_width) + (part > 0 ? a.q_width : 0) +
               (part > 1 ? a.kv_width : 0);
    const float *weight = part == 0 ? a.q_norm : part == 1 ? a.k_norm : nullptr;
    const float r = weight ? rms_of_row(x, dim, a.eps, groups) : 1.0f;
    for (uint32_t i = threadIdx.x; i < dim; i += blockDim.x) {
        const float v = weight ? x[i] * r * weight[i] : x[i];
        x[i] = a.clip > 0 && v < -a.clip ? -a.clip : a.clip > 0 && v > a.clip ? a.clip : v; /* NaN stays */
    }
}

kern_status cuda_qkv_norm(kern_dev *kd, const kern_qkv_norm_args *a)
{
    cuda_dev *d = cuda_of(kd);
    const size_t smem = rms_groups(a->q_width > a->kv_width ? a->q_width : a->kv_width) * sizeof(float);
    if (smem > 48 * 1024)
        return cuda_unsupported(d, "dimension of a norm");
    if (a->n_tokens)
        (void)cuda_start(d, qkv_norm_kernel, dim3(a->n_tokens, a->clip > 0 ? 3 : 2), 256, smem, *a);
    return cuda_launched(d, "qkv_norm");
}

__global__ void swiglu_kernel(kern_swiglu_args a)
{
    overlap_begin();
    const size_t t = blockIdx.x;
    const float *g = a.gate_up + t * 2 * a.dim;
    const float by = a.row_gate ? 1.0f / (1.0f + expf(-a.row_gate[t])) : 1.0f;
    if (a.act == KERN_RELU2) {
        for (uint32_t i = threadIdx.x; i < 2 * a.dim; i += blockDim.x)
            a.y[t * 2 * a.dim + i] = relu2(g[i]) * by;
        return;
    }
    for (uint32_t i = threadIdx.x; i < a.dim; i += blockDim.x)
        a.y[t * a.dim + i] = (a.act == KERN_GEGLU            ? geglu(g[i], g[a.dim + i])
                              : a.act == KERN_SWIGLU_LIMITED ? swiglu_limited(g[i], g[a.dim + i], a.act_limit)
                                                             : swiglu(g[i], g[a.dim + i])) *
                             by;
}

kern_status cuda_swiglu(kern_dev *kd, const kern_swiglu_args *a)
{
    cuda_dev *d = cuda_of(kd);
    if ((unsigned)a->act > KERN_RELU2 || a->act == KERN_SWIGLU_CLAMPED)
        return cuda_unsupported(d, "activation of a dense FFN");
    if (a->n_tokens)
        (void)cuda_start(d, swiglu_kernel, a->n_tokens, 256, 0, *a);
    return cuda_launched(d, "swiglu");
}

/* A warp a head: blockIdx.x the token, warps over the Q, K and V heads. N: values a lane, which head_dim is at most 32 times of. LAST: of
 * its own, since both orders in one kernel take 61 registers in place of 48. */
template <bool Q8, int N, bool LAST> __global__ void rope_kv_kernel(kern_rope_kv_args a)
{
    extern __shared__ float sh[]; /* cos and sin of this position, then a head for each warp */
    const uint32_t t = blockIdx.x, hd = a.kv.head_dim, warp = threadIdx.x / 32, n_warps = blockDim.x / 32;
    float *cs = sh, *sn = sh + a.rot_dim / 2, *head = sh + a.rot_dim + warp * hd;
    const uint32_t seq = a.token_seq[t], pos = a.token_pos[t], heads = a.n_heads + 2 * a.kv.n_kv_heads;
    const float grown = a.grow != 0 ? 1.0f + a.grow * log1pf(floorf(((float)pos + 1.0f) / a.grow_every)) : 1.0f;
    if (seq != UINT32_MAX)
        rope_angles(a, pos, 0, cs, sn);
    __syncthreads();
    overlap_begin();
    if (seq == UINT32_MAX)
        return; /* padding of a recorded step */
#pragma unroll 1
    for (uint32_t h = warp; h < heads; h += n_warps) {
        float *src = a.qkv + ((size_t)t * heads + h) * hd;
        rope_head<N, LAST>(a, h, src, head, cs, sn);
        if (h >= a.n_heads)
            rope_store<Q8>(a.kv.fmt, rope_place<Q8>(a, h, seq, pos), head, a.kv.head_dim);
        else
            for (uint32_t i = threadIdx.x % 32; i < hd; i += 32)
                src[i] = head[i] * grown;
        __syncwarp();
    }
}

/* The same for latent attention, where V is K's first v_dim columns: those of K are normed, and what lies behind them is rotated. */
template <bool Q8> __global__ void rope_latent_kernel(kern_rope_kv_args a)
{
    extern __shared__ float sh[]; /* cos and sin of this position, then a K head for each warp */
    const uint32_t t = blockIdx.x, hd = a.kv.head_dim, vd = a.kv.v_dim, half = a.rot_dim / 2;
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, n_warps = blockDim.x / 32;
    float *cs = sh, *sn = sh + half, *k_head = sh + a.rot_dim + warp * hd;
    const uint32_t seq = a.token_seq[t], pos = a.token_pos[t], heads = a.n_heads + a.kv.n_kv_heads;
    if (seq != UINT32_MAX)
        rope_angles(a, pos, 0, cs, sn);
    __syncthreads();
    overlap_begin();
    if (seq == UINT32_MAX)
        return; /* padding of a recorded step */
#pragma unroll 1
    for (uint32_t h = warp; h < heads; h += n_warps) {
        float *head = a.qkv + ((size_t)t * heads + h) * hd;
        if (h >= a.n_heads) {
            float sum = 0;
            for (uint32_t i = lane; i < hd; i += 32) {
                k_head[i] = head[i];
                sum = i < vd ? fmaf(k_head[i], k_head[i], sum) : sum;
            }
            sum = warp_sum(sum);
            const float r = 1.0f / sqrtf(sum / (float)vd + a.norm_eps);
            for (uint32_t i = lane; a.k_norm && i < vd; i += 32)
                k_head[i] = k_head[i] * r * a.k_norm[i];
            head = k_head;
            __syncwarp();
        }
        for (uint32_t i = lane; i < half; i += 32) {
            const uint32_t first = vd + (a.interleaved ? 2 * i : i), second = first + (a.interleaved ? 1 : half);
            const float p = head[first], q = head[second];
            head[first] = p * cs[i] - q * sn[i];
            head[second] = q * cs[i] + p * sn[i];
        }
        __syncwarp();
        if (h >= a.n_heads)
            rope_store<Q8>(a.kv.fmt, rope_place<Q8>(a, h, seq, pos), head, a.kv.head_dim);
        __syncwarp();
    }
}

static kern_status rope_latent(cuda_dev *d, const kern_rope_kv_args *a)
{
    const uint32_t warps = 4;
    const size_t smem = (a->rot_dim + warps * a->kv.head_dim) * sizeof(float);
    if (a->kv.v_dim > a->kv.head_dim || a->rot_dim > a->kv.head_dim - a->kv.v_dim || a->q_norm || a->v_norm ||
        a->norm_last || a->grow != 0)
        return KERN_ARG;
    if (smem > 48 * 1024)
        return cuda_unsupported(d, "head dimension of the rotary embedding");
    if (a->n_tokens)
        (void)cuda_start(d, a->kv.fmt == FMT_Q8_0 ? rope_latent_kernel<true> : rope_latent_kernel<false>, a->n_tokens,
                         warps * 32, smem, *a);
    return cuda_launched(d, "rope_kv");
}

template <bool LAST> static auto choose_rope_kv(const kern_kv *kv) -> void (*)(kern_rope_kv_args)
{
    if (kv->head_dim > 256)
        return kv->fmt == FMT_Q8_0 ? rope_kv_kernel<true, 16, LAST> : rope_kv_kernel<false, 16, LAST>;
    return kv->fmt == FMT_Q8_0 ? rope_kv_kernel<true, 8, LAST> : rope_kv_kernel<false, 8, LAST>;
}

kern_status cuda_rope_kv(kern_dev *kd, const kern_rope_kv_args *a)
{
    cuda_dev *d = cuda_of(kd);
    if (!kern_kv_is_known(&a->kv))
        return cuda_unsupported(d, "KV format");
    if (a->kv.v_dim)
        return rope_latent(d, a);
    if (a->rot_dim > a->kv.head_dim)
        return KERN_ARG;
    if (a->kv.head_dim > 512)
        return cuda_unsupported(d, "head dimension of the rotary embedding");
    const uint32_t warps = 8;
    const size_t smem = (a->rot_dim + warps * a->kv.head_dim) * sizeof(float);
    if (smem > 48 * 1024)
        return cuda_unsupported(d, "head dimension of the rotary embedding");
    void (*kernel)(kern_rope_kv_args) = a->norm_last ? choose_rope_kv<true>(&a->kv) : choose_rope_kv<false>(&a->kv);
    if (a->n_tokens)
        (void)cuda_start(d, kernel, a->n_tokens, warps * 32, smem, *a);
    return cuda_launched(d, "rope_kv");
}

__global__ void gate_kernel(kern_gate_args a)
{
    overlap_begin();
    const size_t t = blockIdx.x;
    float *y = a.y + t * a.y_stride;
    const float *gate = a.gate + t * a.gate_stride;
    const bool single = a.pick || a.per_head;
    const uint32_t pick = a.pick ? a.pick[t] : 0;
    for (uint32_t i = threadIdx.x; i < a.n_heads * a.head_dim; i += blockDim.x) {
        const float v = gate[(size_t)(i / a.head_dim) * a.gate_head_stride + (single ? pick : i % a.head_dim)];
        y[i] *= !a.softplus ? 1.0f / (1.0f + expf(-v)) : v > 20.0f ? v : log1pf(expf(v)); /* beyond 20 both are v */
    }
}

kern_status cuda_gate(kern_dev *kd, const kern_gate_args *a)
{
    cuda_dev *d = cuda_of(kd);
    if (a->n_tokens)
        (void)cuda_start(d, gate_kernel, a->n_tokens, 256, 0, *a);
    return cuda_launched(d, "gate");
}

__global__ void softcap_kernel(kern_softcap_args a)
{
    overlap_begin();
    const uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x;
    if (i < a.n)
        a.y[i] = a.cap * tanhf(a.y[i] / a.cap);
}

kern_status cuda_softcap(kern_dev *kd, const kern_softcap_args *a)
{
    cuda_dev *d = cuda_of(kd);
    if (a->n)
        (void)cuda_start(d, softcap_kernel, (uint32_t)((a->n + 255) / 256), 256, 0, *a);
    return cuda_launched(d, "softcap");
}

/* Host memory is read past the caches, which may hold what lay there before. */
__global__ void add_kernel(kern_add_args a, uint64_t *mark)
{
    overlap_begin(mark);
    const uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x;
    if (i < a.n)
        a.y[i] += __ldcv(a.x + i);
}

kern_status cuda_add(kern_dev *kd, const kern_add_args *a)
{
    cuda_dev *d = cuda_of(kd);
    if (a->n)
        (void)cuda_start(d, add_kernel, (uint32_t)((a->n + 255) / 256), 256, 0, *a, cuda_take_mark(d));
    return cuda_launched(d, "add");
}
