/* reduce.cuh - sums and maxima over a warp or a block, in one fixed order whatever the data. */
#ifndef KERNELS_CUDA_REDUCE_CUH
#define KERNELS_CUDA_REDUCE_CUH

#include <cstdint>

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

/* silu(g) * u, as every FFN here computes it. */
static __device__ __forceinline__ float swiglu(float g, float u)
{
    return g / (1.0f + expf(-g)) * u;
}

#endif
