/* heads.cu - linear_heads: a small matrix for each head, as latent attention has them on both sides of its cache.
 *
 * A block takes 32 rows of one head for 8 tokens, a warp 4 of the rows: each lane multiplies quads of neighbouring columns, 128 columns
 * apart, so that a weight is read once and a value of x from shared memory once for four rows. The lanes' sums are added by one
 * tree, as warp_sum() does. Neither the other tokens nor the other rows decide a bit. */
#include "kernels/cuda/cuda_priv.h"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/overlap.cuh"
#include "kernels/cuda/weight.cuh"

#define HEADS_TOKENS 8
#define HEADS_ROWS   4 /* of a warp */
#define HEADS_WARPS  8
#define HEADS_BLOCK  (HEADS_ROWS * HEADS_WARPS)

/* Columns c .. c + 3 of a row; c is a multiple of 4. Rows begin at multiples of four weights, quants at even addresses. FMT_COUNT: of
 * `fmt`. */
template <int FMT>
static __device__ __forceinline__ float4 four_weights(const unsigned char *row, uint32_t c, kern_fmt fmt)
{
    if constexpr (FMT == FMT_F32) {
        const float *p = reinterpret_cast<const float *>(row) + c;
        return make_float4(p[0], p[1], p[2], p[3]);
    } else if constexpr (FMT == FMT_F16) {
        const __half2 *p = reinterpret_cast<const __half2 *>(row + 2 * c);
        const float2 a = __half22float2(p[0]), b = __half22float2(p[1]);
        return make_float4(a.x, a.y, b.x, b.y);
    } else if constexpr (FMT == FMT_BF16) {
        const __nv_bfloat162 *p = reinterpret_cast<const __nv_bfloat162 *>(row + 2 * c);
        const float2 a = __bfloat1622float2(p[0]), b = __bfloat1622float2(p[1]);
        return make_float4(a.x, a.y, b.x, b.y);
    } else if constexpr (FMT == FMT_COUNT) {
        return make_float4(weight_at(row, c, fmt), weight_at(row, c + 1, fmt), weight_at(row, c + 2, fmt),
                           weight_at(row, c + 3, fmt));
    } else {
        const unsigned char *block = row + c / 32 * sizeof(kern_q8_0_block);
        const float d = __half2float(__ushort_as_half(*reinterpret_cast<const uint16_t *>(block)));
        const signed char *q = reinterpret_cast<const signed char *>(block + 2 + c % 32);
        return make_float4(d * q[0], d * q[1], d * q[2], d * q[3]);
    }
}

/* v[i] summed over the lanes, for 32 values at once: lane i gets the sum of v[i]. Each is the tree of warp_sum(). */
static __device__ __forceinline__ float sums_of_lanes(float (&v)[32])
{
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) {
        const bool upper = lane & o;
#pragma unroll
        for (int i = 0; i < o; i++) {
            const float keep = upper ? v[i + o] : v[i], give = upper ? v[i] : v[i + o];
            v[i] = keep + __shfl_xor_sync(~0u, give, o);
        }
    }
    return v[0];
}

/* blockIdx: rows, head, tokens. */
template <int FMT>
__global__ void __launch_bounds__(HEADS_WARPS * 32)
    linear_heads_kernel(const __grid_constant__ kern_linear_heads_args a)
{
    extern __shared__ __align__(16) float x_of[]; /* [HEADS_TOKENS][cols] */
    const uint32_t head = blockIdx.y, token0 = blockIdx.z * HEADS_TOKENS,
                   n_tokens = min(HEADS_TOKENS, a.n_tokens - token0);
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, cols = a.w.cols, rows = a.w.rows;
    const uint32_t row0 = blockIdx.x * HEADS_BLOCK + warp * HEADS_ROWS;
    const float *x = a.x + (size_t)token0 * a.x_stride + (size_t)head * a.x_head_stride;
    float *y = a.y + (size_t)token0 * a.y_stride + (size_t)head * a.y_head_stride;
    const unsigned char *w = static_cast<const unsigned char *>(a.w.data) + head * a.head_bytes;
    overlap_begin();

    for (uint32_t i = threadIdx.x; i < HEADS_TOKENS * cols; i += blockDim.x) {
        const uint32_t t = i / cols, c = i % cols;
        x_of[i] = t < n_tokens ? x[(size_t)t * a.x_stride + c] : 0.0f;
    }
    if (blockIdx.x == 0)
        for (uint32_t i = threadIdx.x; i < n_tokens * a.tail; i += blockDim.x) {
            const uint32_t t = i / a.tail, c = i % a.tail;
            y[(size_t)t * a.y_stride + rows + c] = x[(size_t)t * a.x_stride + cols + c];
        }
    __syncthreads();

    float sum[HEADS_ROWS * HEADS_TOKENS] = {};
    for (uint32_t c = lane * 4; c < cols; c += 128) {
        float4 weight[HEADS_ROWS];
#pragma unroll
        for (int r = 0; r < HEADS_ROWS; r++)
            weight[r] = row0 + r < rows ? four_weights<FMT>(w + (row0 + r) * a.w.row_bytes, c, a.w.fmt)
                                        : make_float4(0, 0, 0, 0);
#pragma unroll
        for (int t = 0; t < HEADS_TOKENS; t++) {
            const float4 v = *reinterpret_cast<const float4 *>(x_of + t * cols + c);
#pragma unroll
            for (int r = 0; r < HEADS_ROWS; r++) {
                float &s = sum[t * HEADS_ROWS + r];
                s = fmaf(weight[r].x, v.x, s);
                s = fmaf(weight[r].y, v.y, s);
                s = fmaf(weight[r].z, v.z, s);
                s = fmaf(weight[r].w, v.w, s);
            }
        }
    }
    const float all = sums_of_lanes(sum);
    const uint32_t t = lane / HEADS_ROWS, row = row0 + lane % HEADS_ROWS;
    if (t < n_tokens && row < rows)
        y[(size_t)t * a.y_stride + row] = all;
}

kern_status cuda_linear_heads(kern_dev *kd, const kern_linear_heads_args *a)
{
    static_assert(HEADS_ROWS * HEADS_TOKENS == 32, "a sum a lane");
    cuda_dev *d = cuda_of(kd);
    const uint64_t row = a->w.row_bytes, by = a->w.fmt == FMT_F32 || kern_cuts_blocks(a->w.fmt) ? 4
                                              : a->w.fmt >= FMT_Q8_0                            ? 2
                                                                                                : 8;
    const size_t smem = (size_t)HEADS_TOKENS * a->w.cols * sizeof(float);
    if (!mm_shape_ok(a->w.fmt, a->w.cols, row) || row % by || a->head_bytes % by || (uintptr_t)a->w.data % by ||
        smem > 48 * 1024)
        return cuda_unsupported(d, "linear_heads: columns must be a multiple of 4 and at most 1536");
    if (!a->n_tokens || !a->w.rows)
        return KERN_OK;
    void (*kernel)(kern_linear_heads_args);
    switch (a->w.fmt) {
    case FMT_F32: kernel = linear_heads_kernel<FMT_F32>; break;
    case FMT_F16: kernel = linear_heads_kernel<FMT_F16>; break;
    case FMT_BF16: kernel = linear_heads_kernel<FMT_BF16>; break;
    case FMT_Q8_0: kernel = linear_heads_kernel<FMT_Q8_0>; break;
    default: kernel = linear_heads_kernel<FMT_COUNT>; break;
    }
    /* gridDim.z is at most 65535: longer batches go in pieces. */
    const uint32_t piece = 65535 * HEADS_TOKENS;
    for (uint32_t at = 0; at < a->n_tokens; at += piece) {
        kern_linear_heads_args b = *a;
        b.n_tokens = a->n_tokens - at < piece ? a->n_tokens - at : piece;
        b.x += (size_t)at * a->x_stride;
        b.y += (size_t)at * a->y_stride;
        (void)cuda_start(d, kernel,
                         dim3((a->w.rows + HEADS_BLOCK - 1) / HEADS_BLOCK, a->n_heads,
                              (b.n_tokens + HEADS_TOKENS - 1) / HEADS_TOKENS),
                         HEADS_WARPS * 32, smem, b);
    }
    return cuda_launched(d, "linear_heads");
}
