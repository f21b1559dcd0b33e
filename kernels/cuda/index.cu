/* index.cu - the choice of positions that attention sees (DeepSeek Sparse Attention): rotation and store of its keys, scores, the choice.
 *
 * Scores of as many tokens as INDEX_ROOM holds lie in scratch at a time. A position's score is computed by one warp, the heads in one order, and
 * depends on nothing but its token: so into how many blocks a context is divided changes no bits, and follows what keeps the chip busy.
 *  - The published indexers have keys of 128 columns: matrix units, 16 heads by 8 positions, Q in halves hi + lo in shared memory, keys
 *    from the cache to registers. All tokens of a prompt read them anew, from L2; 64 heads are 128 products for each byte.
 *  - Other sizes, and F32: products by lanes, one position a warp.
 * A row's choice is one block: the top_k-th largest score by its digits (radix select), then the positions in order. */
#include "kernels/cuda/attn_tile.cuh"
#include "kernels/cuda/cuda_priv.h"
#include "kernels/cuda/overlap.cuh"
#include "kernels/cuda/rope.cuh"

#define INDEX_DIM       128                /* columns that the matrix units take */
#define INDEX_WARPS     8                  /* of a block that scores */
#define INDEX_TILE      (INDEX_WARPS * 16) /* positions that it scores at a time */
#define INDEX_MAX_DIM   1024
#define INDEX_MAX_HEADS 128
#define INDEX_ROOM      (64ull << 20)
#define CHOOSE_BLOCK    1024

/* Where a key is kept. index_at: kern_kv_index_at(). */
static __device__ __forceinline__ unsigned char *key_of(const kern_kv &kv, uint32_t layer, uint64_t index_at,
                                                        uint32_t row_bytes, uint32_t seq, uint32_t pos)
{
    const uint32_t id = kv.block_table[(size_t)seq * kv.max_blocks + pos / kv.block_size];
    return reinterpret_cast<unsigned char *>(kv.block_addr[id] + layer * kv.layer_bytes + index_at) +
           (size_t)(pos % kv.block_size) * row_bytes;
}

/* A block a token, a warp a head of Q; the last one is K. */
template <bool Q8>
__global__ void index_rope_kernel(const __grid_constant__ kern_index_rope_args a, uint64_t index_at, uint32_t row_bytes)
{
    extern __shared__ float sh[]; /* cos and sin of this position, then a head for each warp */
    const uint32_t t = blockIdx.x, dim = a.kv.index_dim, half = a.rot_dim / 2, lane = threadIdx.x % 32;
    float *cs = sh, *sn = sh + half, *head = sh + a.rot_dim + threadIdx.x / 32 * dim;
    overlap_begin();
    const uint32_t seq = a.token_seq[t], pos = a.token_pos[t];
    if (seq == UINT32_MAX)
        return; /* padding of a recorded step */
    rope_angles(a, pos, 0, cs, sn);
    __syncthreads();
#pragma unroll 1
    for (uint32_t h = threadIdx.x / 32; h <= a.n_heads; h += blockDim.x / 32) {
        float *q = h < a.n_heads ? a.q + ((size_t)t * a.n_heads + h) * dim : nullptr;
        const float *src = q ? q : a.k + (size_t)t * dim;
        for (uint32_t i = lane; i < dim; i += 32)
            head[i] = src[i];
        __syncwarp();
        for (uint32_t i = lane; i < half; i += 32) {
            const uint32_t first = a.interleaved ? 2 * i : i, second = a.interleaved ? 2 * i + 1 : i + half;
            const float v = head[first], w = head[second];
            head[first] = v * cs[i] - w * sn[i];
            head[second] = w * cs[i] + v * sn[i];
        }
        __syncwarp();
        if (q)
            for (uint32_t i = lane; i < a.rot_dim; i += 32)
                q[i] = head[i];
        else
            rope_store<Q8>(a.kv.fmt, key_of(a.kv, a.layer, index_at, row_bytes, seq, pos), head, dim);
        __syncwarp();
    }
}

kern_status cuda_index_rope(kern_dev *kd, const kern_index_rope_args *a)
{
    cuda_dev *d = cuda_of(kd);
    const uint32_t warps = 4;
    const size_t smem = (a->rot_dim + warps * a->kv.index_dim) * sizeof(float);
    if (!a->kv.index_dim || a->kv.index_dim > INDEX_MAX_DIM || a->rot_dim > a->kv.index_dim || a->rot_dim % 2 ||
        !kern_kv_is_known(&a->kv))
        return cuda_unsupported(d, "an indexer of more than 1024 columns, or its KV format");
    if (a->n_tokens)
        (void)cuda_start(d, a->kv.fmt == FMT_Q8_0 ? index_rope_kernel<true> : index_rope_kernel<false>, a->n_tokens,
                         warps * 32, smem, *a, kern_kv_index_at(&a->kv),
                         (uint32_t)kern_row_bytes(a->kv.fmt, a->kv.index_dim));
    return cuda_launched(d, "index_rope");
}

/* --- scores -------------------------------------------------------------------------------------------------------------- */

typedef struct index_scores {
    kern_index_args a;
    float *scores;                  /* [n_tokens][stride] */
    uint32_t stride, row_bytes, span; /* span: positions of a block, whole tiles */
    uint64_t index_at;
} index_scores;

/* How many positions a token scores; 0: it may choose all, or is padding. */
static __device__ __forceinline__ uint32_t scored(const kern_index_args &a, uint32_t t)
{
    return a.token_seq[t] == UINT32_MAX || a.token_pos[t] < a.top_k ? 0 : a.token_pos[t] + 1;
}

/* What a head adds; NaN stays. */
static __device__ __forceinline__ float head_score(float sum, float product, float weight)
{
    return product < 0.0f ? sum : fmaf(product, weight, sum);
}

/* blockIdx: part of the context, token. A warp 16 positions of a tile of INDEX_TILE: lane 4g + t has the keys of position g of eight, and scores of heads g
 * and g + 8 at positions 2t and 2t + 1. */
template <kern_fmt FMT>
__global__ void __launch_bounds__(INDEX_WARPS * 32) index_score_kernel(const __grid_constant__ index_scores s)
{
    extern __shared__ __align__(16) unsigned char smem[];
    const kern_index_args &a = s.a;
    const uint32_t token = blockIdx.y, groups = (a.n_heads + 15) / 16, warp = threadIdx.x / 32, lane = threadIdx.x % 32,
                   g = lane / 4, t = lane % 4;
    uint4 *q_hi = reinterpret_cast<uint4 *>(smem), *q_lo = q_hi + groups * 16 * (INDEX_DIM / 8);
    float *weights = reinterpret_cast<float *>(q_lo + groups * 16 * (INDEX_DIM / 8));
    overlap_begin();
    const uint32_t n = scored(a, token), begin = blockIdx.x * s.span, end = min(begin + s.span, n);
    if (begin >= n)
        return;
    for (uint32_t i = threadIdx.x; i < groups * 16 * (INDEX_DIM / 8); i += blockDim.x) {
        const uint32_t h = i / (INDEX_DIM / 8), c = i % (INDEX_DIM / 8);
        const float *q = a.q + ((size_t)token * a.n_heads + h) * INDEX_DIM + c * 8;
        put_q<INDEX_DIM>(q_hi, q_lo, h, c, h < a.n_heads ? q : nullptr, 1.0f);
    }
    for (uint32_t h = threadIdx.x; h < groups * 16; h += blockDim.x)
        weights[h] = h < a.n_heads ? a.weights[(size_t)token * a.n_heads + h] : 0.0f;
    __syncthreads();
    const uint32_t seq = a.token_seq[token];
    float *to = s.scores + (size_t)token * s.stride;
#pragma unroll 1
    for (uint32_t base = begin + warp * 16; base < end; base += INDEX_TILE) {
        uint4 k[2][INDEX_DIM / 32];
#pragma unroll
        for (int p = 0; p < 2; p++) {
            const uint32_t pos = min(base + 8 * p + g, n - 1); /* beyond: the last one's again, not stored */
            const unsigned char *row = key_of(a.kv, a.layer, s.index_at, s.row_bytes, seq, pos);
#pragma unroll
            for (uint32_t b = 0; b < INDEX_DIM / 32; b++)
                k[p][b] = FMT == FMT_Q8_0 ? q8_eight_of(row + b * sizeof(kern_q8_0_block), t)
                                          : reinterpret_cast<const uint4 *>(row)[4 * b + t];
        }
        float sum[2][2] = {};
#pragma unroll 1
        for (uint32_t group = 0; group < groups; group++) {
            float c[2][4] = {};
#pragma unroll
            for (uint32_t b = 0; b < INDEX_DIM / 32; b++) {
                const uint32_t q0 = attn_swizzle<INDEX_DIM>(group * 16 + g, 4 * b + t),
                               q1 = attn_swizzle<INDEX_DIM>(group * 16 + g + 8, 4 * b + t);
                const uint4 h0 = q_hi[q0], h1 = q_hi[q1], l0 = q_lo[q0], l1 = q_lo[q1];
#pragma unroll
                for (int p = 0; p < 2; p++) {
                    const uint4 v = k[p][b];
                    mma_f16(c[p], l0.x, l1.x, l0.y, l1.y, v.x, v.y);
                    mma_f16(c[p], h0.x, h1.x, h0.y, h1.y, v.x, v.y);
                    mma_f16(c[p], l0.z, l1.z, l0.w, l1.w, v.z, v.w);
                    mma_f16(c[p], h0.z, h1.z, h0.w, h1.w, v.z, v.w);
                }
            }
            const float upper = weights[group * 16 + g], lower = weights[group * 16 + g + 8];
#pragma unroll
            for (int p = 0; p < 2; p++)
#pragma unroll
                for (int i = 0; i < 2; i++)
                    sum[p][i] = head_score(head_score(sum[p][i], c[p][i], upper), c[p][2 + i], lower);
        }
#pragma unroll
        for (int p = 0; p < 2; p++) {
#pragma unroll
            for (int o = 4; o < 32; o *= 2)
#pragma unroll
                for (int i = 0; i < 2; i++)
                    sum[p][i] += __shfl_xor_sync(~0u, sum[p][i], o);
            const uint32_t pos = base + 8 * p + 2 * t;
            if (g == 0 && pos < end)
                to[pos] = sum[p][0];
            if (g == 0 && pos + 1 < end)
                to[pos + 1] = sum[p][1];
        }
    }
}

static __device__ __forceinline__ float key_value(const unsigned char *row, kern_fmt fmt, uint32_t i)
{
    if (fmt == FMT_Q8_0) {
        const kern_q8_0_block &b = reinterpret_cast<const kern_q8_0_block *>(row)[i / 32];
        return __half2float(__ushort_as_half(b.d)) * (float)b.qs[i % 32];
    }
    return fmt == FMT_F32 ? reinterpret_cast<const float *>(row)[i]
                          : __half2float(reinterpret_cast<const __half *>(row)[i]);
}

/* The same for any size and cache; values of Q8_0 are not rounded here. */
__global__ void __launch_bounds__(INDEX_WARPS * 32) index_simple_kernel(const __grid_constant__ index_scores s)
{
    extern __shared__ float keys[]; /* of the position of each warp */
    const kern_index_args &a = s.a;
    const uint32_t token = blockIdx.y, dim = a.kv.index_dim, lane = threadIdx.x % 32;
    float *key = keys + threadIdx.x / 32 * dim;
    overlap_begin();
    const uint32_t n = scored(a, token), begin = blockIdx.x * s.span, end = min(begin + s.span, n);
    for (uint32_t pos = begin + threadIdx.x / 32; pos < end; pos += INDEX_WARPS) {
        const unsigned char *row = key_of(a.kv, a.layer, s.index_at, s.row_bytes, a.token_seq[token], pos);
        for (uint32_t i = lane; i < dim; i += 32)
            key[i] = key_value(row, a.kv.fmt, i);
        __syncwarp();
        float score = 0;
        for (uint32_t h = 0; h < a.n_heads; h++) {
            const float *q = a.q + ((size_t)token * a.n_heads + h) * dim;
            float sum = 0;
            for (uint32_t i = lane; i < dim; i += 32)
                sum = fmaf(q[i], key[i], sum);
            score = head_score(score, warp_sum(sum), a.weights[(size_t)token * a.n_heads + h]);
        }
        if (lane == 0)
            s.scores[(size_t)token * s.stride + pos] = score;
        __syncwarp();
    }
}

/* --- choice -------------------------------------------------------------------------------------------------------------- */

/* A number for each score, in their order; NaN is the least, and both zeros are one. */
static __device__ __forceinline__ uint32_t rank_of(float score)
{
    const uint32_t bits = __float_as_uint(score + 0.0f);
    return score != score ? 0 : bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

/* The sum of the values of the threads before this one; *ret_all: of all. `s` has room for 32. Barriers at both ends. */
static __device__ __forceinline__ uint32_t sum_before(uint32_t v, uint32_t *s, uint32_t *ret_all)
{
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    uint32_t sum = v;
#pragma unroll
    for (int o = 1; o < 32; o *= 2) {
        const uint32_t before = __shfl_up_sync(~0u, sum, o);
        sum += lane >= (uint32_t)o ? before : 0;
    }
    if (lane == 31)
        s[warp] = sum;
    __syncthreads();
    uint32_t of_warps = s[lane];
#pragma unroll
    for (int o = 1; o < 32; o *= 2) {
        const uint32_t before = __shfl_up_sync(~0u, of_warps, o);
        of_warps += lane >= (uint32_t)o ? before : 0;
    }
    *ret_all = __shfl_sync(~0u, of_warps, 31);
    const uint32_t before = __shfl_sync(~0u, of_warps, warp ? warp - 1 : 0);
    __syncthreads();
    return (warp ? before : 0) + sum - v;
}

#define DIGIT_BITS 11 /* two bins for each thread */
static_assert(1 << DIGIT_BITS == 2 * CHOOSE_BLOCK, "two bins a thread");

/* A block a token. */
__global__ void __launch_bounds__(CHOOSE_BLOCK) index_choose_kernel(const __grid_constant__ index_scores s)
{
    __shared__ uint32_t bins[2 * CHOOSE_BLOCK], sums[32], found[2];
    const kern_index_args &a = s.a;
    const uint32_t token = blockIdx.x, me = threadIdx.x;
    overlap_begin();
    if (a.token_seq[token] == UINT32_MAX)
        return;
    uint32_t *to = a.chosen + (size_t)token * a.top_k;
    const uint32_t n = scored(a, token);
    if (!n) {
        for (uint32_t i = me; i <= a.token_pos[token]; i += CHOOSE_BLOCK)
            to[i] = i;
        return;
    }
    const float *scores = s.scores + (size_t)token * s.stride;
    /* The top_k-th largest rank: its digits above `shift` are `known`, and `left` of those that share them are chosen. */
    uint32_t known = 0, left = a.top_k, all;
#pragma unroll 1
    for (int shift = 32 - DIGIT_BITS; shift > -DIGIT_BITS; shift -= DIGIT_BITS) {
        const uint32_t low = shift > 0 ? shift : 0, bits = shift > 0 ? DIGIT_BITS : DIGIT_BITS + shift;
        bins[me] = bins[me + CHOOSE_BLOCK] = 0;
        __syncthreads();
        for (uint32_t i = me; i < n; i += CHOOSE_BLOCK) {
            const uint32_t rank = rank_of(scores[i]);
            if (low + bits == 32 || rank >> (low + bits) == known)
                atomicAdd(&bins[rank >> low & ((1u << bits) - 1)], 1);
        }
        __syncthreads();
        /* From the highest digit down. */
        const uint32_t top = 2 * CHOOSE_BLOCK - 1 - 2 * me, first = bins[top], second = bins[top - 1];
        const uint32_t before = sum_before(first + second, sums, &all);
        if (before < left && left <= before + first + second) {
            const bool upper = left <= before + first;
            found[0] = upper ? top : top - 1;
            found[1] = left - before - (upper ? 0 : first);
        }
        __syncthreads();
        known = known << bits | found[0];
        left = found[1];
    }
    /* Ranks above it, and the first `left` equal ones, by their positions: counts of both in halves of a word. */
    uint32_t above = 0, equal = 0;
#pragma unroll 1
    for (uint32_t base = 0; base < n; base += CHOOSE_BLOCK) {
        const uint32_t rank = base + me < n ? rank_of(scores[base + me]) : 0;
        const bool is_above = rank > known, is_equal = base + me < n && rank == known;
        const uint32_t before = sum_before(is_above | (uint32_t)is_equal << 16, sums, &all);
        const uint32_t equal_before = equal + (before >> 16);
        if (is_above || (is_equal && equal_before < left))
            to[above + (before & 0xffffu) + min(equal_before, left)] = base + me;
        above += all & 0xffffu;
        equal += all >> 16;
    }
}

static uint32_t stride_of(uint32_t max_context)
{
    return (max_context + 3) & ~3u;
}

uint64_t cuda_index_scratch_bytes(kern_dev *, uint32_t max_tokens, uint32_t, uint32_t max_context)
{
    const uint64_t row = stride_of(max_context) * sizeof(float), all = row * max_tokens;
    return all < INDEX_ROOM ? all : row < INDEX_ROOM ? INDEX_ROOM : row;
}

const char *cuda_index_refuses(uint32_t n_heads, uint32_t dim)
{
    return !n_heads || n_heads > INDEX_MAX_HEADS || !dim || dim > INDEX_MAX_DIM
               ? "an indexer of more than 128 heads, or of more than 1024 columns"
               : nullptr;
}

/* Positions of a block: as few as give each multiprocessor some, whole tiles, and not so many that Q is read for little. */
static uint32_t span_for(const cuda_dev *d, uint32_t context, uint32_t n_tokens)
{
    const uint64_t tiles = ((uint64_t)context + INDEX_TILE - 1) / INDEX_TILE * n_tokens, wanted = 4ull * d->n_sm;
    const uint64_t each = (tiles + wanted - 1) / wanted;
    return INDEX_TILE * (uint32_t)(each < 8 ? each : 8);
}

kern_status cuda_index(kern_dev *kd, const kern_index_args *a)
{
    cuda_dev *d = cuda_of(kd);
    const char *why = cuda_index_refuses(a->n_heads, a->kv.index_dim);
    if (why || !kern_kv_is_known(&a->kv))
        return cuda_unsupported(d, why ? why : "the indexer's KV format");
    if (!a->top_k)
        return KERN_ARG;
    index_scores s = {};
    s.stride = stride_of(a->max_context);
    s.row_bytes = (uint32_t)kern_row_bytes(a->kv.fmt, a->kv.index_dim);
    s.index_at = kern_kv_index_at(&a->kv);
    s.scores = static_cast<float *>(a->scratch);
    const bool fast = a->kv.index_dim == INDEX_DIM && a->kv.fmt != FMT_F32 && !d->no_attn_mma &&
                      (a->kv.fmt == FMT_Q8_0 || (a->kv.layer_bytes % 16 == 0 && s.index_at % 16 == 0));
    const uint32_t q_rows = (a->n_heads + 15) / 16 * 16;
    const size_t smem = fast ? q_rows * (2 * INDEX_DIM * 2 + sizeof(float))
                             : INDEX_WARPS * a->kv.index_dim * sizeof(float);
    void (*const score)(index_scores) = !fast                     ? index_simple_kernel
                                        : a->kv.fmt == FMT_Q8_0 ? index_score_kernel<FMT_Q8_0>
                                                                : index_score_kernel<FMT_F16>;
    cudaError_t e = cudaFuncSetAttribute(score, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem);
    if (e != cudaSuccess)
        return cuda_fail(d, e, "index");
    const uint64_t room = INDEX_ROOM / (s.stride * sizeof(float));
    const uint32_t most = room < 1 ? 1 : room < 65535 ? (uint32_t)room : 65535;
    for (uint32_t at = 0; at < a->n_tokens; at += most) {
        s.a = *a;
        s.a.n_tokens = a->n_tokens - at < most ? a->n_tokens - at : most;
        s.a.chosen += (size_t)at * a->top_k;
        s.a.q += (size_t)at * a->n_heads * a->kv.index_dim;
        s.a.weights += (size_t)at * a->n_heads;
        s.a.token_seq += at;
        s.a.token_pos += at;
        s.span = span_for(d, a->max_context, s.a.n_tokens);
        if (a->max_context > a->top_k)
            (void)cuda_start(d, score, dim3((a->max_context + s.span - 1) / s.span, s.a.n_tokens), INDEX_WARPS * 32,
                             smem, s);
        (void)cuda_start(d, index_choose_kernel, s.a.n_tokens, CHOOSE_BLOCK, 0, s);
    }
    return cuda_launched(d, "index");
}
