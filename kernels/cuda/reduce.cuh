/* reduce.cuh - sums and maxima over a warp or a block, in one fixed order whatever the data. */
#ifndef KERNELS_CUDA_REDUCE_CUH
#define KERNELS_CUDA_REDUCE_CUH

#include <cstdint>

#include "kernels/kernels.h"

static __device__ __forceinline__ float warp_sum(float v)
{
#pragma unroll
    for (int o = 16; o > 0; o >>= 1)
        v += __shfl_xor_sync(~0u, v, o);
    return v;
}

static __device__ __forceinline__ float warp_max(float v)
{
#pragma unroll
    for (int o = 16; o > 0; o >>= 1)
        v = fmaxf(v, __shfl_xor_sync(~0u, v, o));
    return v;
}

/* All threads get the result; `s` has room for 32 floats. Barriers at both ends, so that `s` may be used again at once. */
static __device__ __forceinline__ float block_sum(float v, float *s)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, n = (blockDim.x + 31) / 32;
    v = warp_sum(v);
    if (lane == 0)
        s[warp] = v;
    __syncthreads();
    v = warp_sum(lane < n ? s[lane] : 0.0f);
    __syncthreads();
    return v;
}

static __device__ __forceinline__ float block_max(float v, float *s)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, n = (blockDim.x + 31) / 32;
    v = warp_max(v);
    if (lane == 0)
        s[warp] = v;
    __syncthreads();
    v = warp_max(lane < n ? s[lane] : -INFINITY);
    __syncthreads();
    return v;
}

/* The sum of squares of a row has one order in every kernel: octets of neighbouring values; the octets of a group of 256, blocks of 32
 * first; the groups in ascending order. */
static __device__ __forceinline__ float rms_octet(float4 a, float4 b)
{
    float s = a.x * a.x;
    s = fmaf(a.y, a.y, s);
    s = fmaf(a.z, a.z, s);
    s = fmaf(a.w, a.w, s);
    s = fmaf(b.x, b.x, s);
    s = fmaf(b.y, b.y, s);
    s = fmaf(b.z, b.z, s);
    return fmaf(b.w, b.w, s);
}

/* Over the four lanes of a quad. */
static __device__ __forceinline__ float quad_sum(float v)
{
    v += __shfl_xor_sync(~0u, v, 1);
    return v + __shfl_xor_sync(~0u, v, 2);
}

/* Lane l has octet l of a group. */
static __device__ __forceinline__ float rms_group(float octet)
{
#pragma unroll
    for (int o = 4; o < 32; o *= 2)
        octet += __shfl_xor_sync(~0u, octet, o);
    return quad_sum(octet);
}

/* Floats that the sums of a row's groups take, with zeros behind them: no such sum is below zero, so they change nothing. */
static __host__ __device__ __forceinline__ uint32_t rms_groups(uint32_t dim)
{
    return ((dim + 255) / 256 + 3) & ~3u;
}

/* 1 / rms from the groups' sums, aligned to 16 bytes. */
static __device__ __forceinline__ float rms_factor(const float *groups, uint32_t dim, float eps)
{
    float sum = 0;
#pragma unroll 1
    for (uint32_t i = 0; i < rms_groups(dim); i += 4) {
        const float4 q = *reinterpret_cast<const float4 *>(groups + i);
        sum = sum + q.x + q.y + q.z + q.w;
    }
    return 1.0f / sqrtf(sum / (float)dim + eps);
}

/* silu(g) * u, as every FFN here computes it. */
static __device__ __forceinline__ float swiglu(float g, float u)
{
    return g / (1.0f + expf(-g)) * u;
}

/* fminf and fmaxf would make a number of NaN */
static __device__ __forceinline__ float swiglu_limited(float g, float u, float limit)
{
    g = swiglu(g, 1.0f);
    u = u > limit ? limit : u < -limit ? -limit : u;
    return (g > limit ? limit : g) * u;
}

static __device__ __forceinline__ float geglu(float g, float u)
{
    return g / (1.0f + expf(-g * (KERN_GELU_A + KERN_GELU_B * g * g))) * u;
}

static __device__ __forceinline__ float relu2(float v)
{
    return v < 0.0f ? 0.0f : v * v; /* NaN stays */
}

#endif
