/* choose.cuh - the parts of the choice of experts and of the plan that more than one kernel uses. */
#ifndef KERNELS_CUDA_CHOOSE_CUH
#define KERNELS_CUDA_CHOOSE_CUH

#include "kernels/cuda/reduce.cuh"
#include "kernels/kernels.h"

#define PLAN_FEW   256 /* pairs that plan_few() takes */
#define SCAN_WORDS 32  /* scratch of block_scan() */

/* Unsigned order of floats; NaN counts as the smallest. */
static __device__ __forceinline__ uint32_t order_key(float v)
{
    const uint32_t u = __float_as_uint(v + 0.0f); /* -0 becomes +0 */
    if (v != v)
        return 0;
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

/* A warp chooses the experts of token t. `v` has room for n_experts floats. */
static __device__ __forceinline__ void pick_experts(const kern_router_args &a, uint32_t t, float *v)
{
    const uint32_t lane = threadIdx.x % 32;
    const float *logits = a.logits + (size_t)t * a.n_experts;
    float max = -INFINITY, sum = 0;
    for (uint32_t e = lane; e < a.n_experts; e += 32) {
        v[e] = __ldcg(logits + e);
        max = fmaxf(max, v[e]);
    }
    max = warp_max(max);
    for (uint32_t e = lane; e < a.n_experts; e += 32)
        sum += expf(v[e] - max);
    sum = warp_sum(sum);

    /* Each lane knows the best of its own; only the one that lost it looks again. */
    uint32_t key = 0, id = UINT32_MAX;
    auto look = [&] {
        key = 0;
        id = UINT32_MAX;
        for (uint32_t e = lane; e < a.n_experts; e += 32) {
            const uint32_t k = order_key(v[e]);
            if (k > key) {
                key = k;
                id = e;
            }
        }
    };
    look();
    __syncwarp();
    float chosen_sum = 0;
    float *w = a.weights + (size_t)t * a.top_k;
    for (uint32_t k = 0; k < a.top_k; k++) {
        const uint32_t top = __reduce_max_sync(~0u, key);
        uint32_t chosen = __reduce_min_sync(~0u, key == top ? id : UINT32_MAX);
        float best = -INFINITY;
        if (top == 0) /* only NaN left: any id within range will do */
            chosen = k;
        else
            best = v[chosen];
        const float score = a.scoring == KERN_SOFTMAX_TOPK ? expf(best - max) / sum : expf(best - max);
        chosen_sum += score;
        __syncwarp();
        if (lane == 0) {
            a.ids[(size_t)t * a.top_k + k] = chosen;
            w[k] = score;
        }
        if (lane == chosen % 32) {
            v[chosen] = __int_as_float(0x7fffffff); /* taken: counts as NaN */
            look();
        }
        __syncwarp();
    }
    if (a.scoring == KERN_TOPK_SOFTMAX || a.norm_topk)
        for (uint32_t k = lane; k < a.top_k; k += 32)
            w[k] /= chosen_sum;
}

/* Exclusive prefix of v over the block; *total gets the sum. `s` has room for SCAN_WORDS words. */
static __device__ uint32_t block_scan(uint32_t v, uint32_t *s, uint32_t *total)
{
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    uint32_t incl = v;
#pragma unroll
    for (int o = 1; o < 32; o <<= 1) {
        const uint32_t u = __shfl_up_sync(~0u, incl, o);
        if (lane >= (uint32_t)o)
            incl += u;
    }
    if (lane == 31)
        s[warp] = incl;
    __syncthreads();
    const uint32_t mine = lane < blockDim.x / 32 ? s[lane] : 0;
    uint32_t wi = mine;
#pragma unroll
    for (int o = 1; o < 32; o <<= 1) {
        const uint32_t u = __shfl_up_sync(~0u, wi, o);
        if (lane >= (uint32_t)o)
            wi += u;
    }
    *total = __shfl_sync(~0u, wi, 31);
    const uint32_t before = __shfl_sync(~0u, wi - mine, warp);
    __syncthreads();
    return before + incl - v;
}

/* Gives free slots to the missed pages of touched experts, in order; every thread of the block, after a barrier behind the stores to
 * expert_start. */
static __device__ __forceinline__ void plan_fill(const kern_plan_args &a, uint32_t *s)
{
    const uint32_t used0 = a.free_used ? *a.free_used : 0;
    const uint32_t room = a.n_free > used0 ? min(a.n_free - used0, a.max_inserts) : 0;
    uint32_t used = 0;
    const uint32_t entries = a.n_experts * a.pages;
    for (uint32_t at = 0; at < entries; at += blockDim.x) {
        const uint32_t i = at + threadIdx.x;
        uint32_t want = 0;
        if (i < entries && used < room) {
            const uint32_t e = i / a.pages;
            const uint64_t addr = a.page_addr[i];
            want = a.expert_start[e + 1] > a.expert_start[e] && !(addr >= a.arena_begin && addr < a.arena_end) &&
                   (!a.admit || a.admit[e]);
        }
        uint32_t total;
        const uint32_t slot = used + block_scan(want, s, &total);
        if (i < entries) {
            uint64_t fill = 0;
            if (want && slot < room) {
                fill = a.free_slots[used0 + slot];
                a.fill_log[used0 + slot] = a.fill_log_base + i;
            }
            a.fill_addr[i] = fill;
        }
        used += total;
    }
    __syncthreads();
    if (threadIdx.x == 0 && a.free_used)
        *a.free_used = used0 + min(used, room);
}

/* The plan of at most PLAN_FEW pairs by any block: each pair's place is the number of pairs that come before it. `s` has room for
 * PLAN_FEW + SCAN_WORDS words. */
static __device__ __forceinline__ void plan_few(const kern_plan_args &a, uint32_t *s)
{
    const uint32_t live = a.n_live ? min(*a.n_live, a.n_tokens) : a.n_tokens, n = live * a.top_k;
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x)
        s[i] = a.ids[i];
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x) {
        const uint32_t e = s[i];
        uint32_t before = 0;
        for (uint32_t j = 0; j < n; j++)
            before += s[j] < e || (s[j] == e && j < i);
        a.pairs[before] = i;
    }
    for (uint32_t e = threadIdx.x; e <= a.n_experts; e += blockDim.x) {
        uint32_t before = 0, own = 0;
        for (uint32_t j = 0; j < n; j++) {
            before += s[j] < e;
            own += s[j] == e;
        }
        a.expert_start[e] = before;
        if (e < a.n_experts)
            a.expert_count[e] = own;
    }
    if (!a.fill_addr)
        return;
    __syncthreads();
    plan_fill(a, s + PLAN_FEW);
}

#endif
