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

/* Back from it; -0 comes as +0. */
static __device__ __forceinline__ float key_value(uint32_t k)
{
    return __uint_as_float(k == 0 ? 0x7fffffffu : k & 0x80000000u ? k & 0x7fffffffu : ~k);
}

/* This lane's keys of a row of logits. */
static __device__ __forceinline__ void pick_keys(const kern_router_args &a, uint32_t t, uint32_t *keys)
{
    const float *logits = a.logits + (size_t)t * a.n_experts;
#pragma unroll 4
    for (uint32_t e = threadIdx.x % 32; e < a.n_experts; e += 32)
        keys[e] = order_key(__ldcg(logits + e));
}

/* The weights of the chosen, from their keys, by a warp. */
static __device__ __forceinline__ void pick_scores(const kern_router_args &a, uint32_t t, bool live, float max,
                                                   float sum, uint32_t *best, const uint32_t *ids)
{
    const uint32_t lane = threadIdx.x % 32;
    float *scores = reinterpret_cast<float *>(best);
#pragma unroll 1
    for (uint32_t k = lane; k < a.top_k; k += 32) {
        const float score = expf((best[k] ? key_value(best[k]) : -INFINITY) - max);
        scores[k] = a.scoring == KERN_SOFTMAX_TOPK ? score / sum : score;
    }
    __syncwarp();
    float chosen_sum = 0;
#pragma unroll 4
    for (uint32_t k = 0; k < a.top_k; k++)
        chosen_sum += scores[k];
    const bool divide = a.scoring == KERN_TOPK_SOFTMAX || a.norm_topk;
#pragma unroll 1
    for (uint32_t k = lane; live && k < a.top_k; k += 32) {
        a.ids[(size_t)t * a.top_k + k] = ids[k];
        a.weights[(size_t)t * a.top_k + k] = divide ? scores[k] / chosen_sum : scores[k];
    }
}

/* The best of a lane's own keys; key 0: it has none. */
struct own_best {
    uint32_t key, id;
};

static __device__ __forceinline__ own_best look_own(const uint32_t *keys, uint32_t n)
{
    own_best b = {0, UINT32_MAX};
#pragma unroll 4
    for (uint32_t e = threadIdx.x % 32; e < n; e += 32) {
        const uint32_t k = keys[e];
        if (k > b.key) {
            b.key = k;
            b.id = e;
        }
    }
    return b;
}

/* The top_k largest keys, and whose they are, by a warp; `own` is look_own(). A barrier of the warp must follow. */
static __device__ __forceinline__ void pick_best(uint32_t *keys, uint32_t n, uint32_t top_k, own_best own,
                                                 uint32_t *best, uint32_t *ids)
{
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll 1
    for (uint32_t k = 0; k < top_k; k++) {
        const uint32_t top = __reduce_max_sync(~0u, own.key);
        uint32_t chosen = __reduce_min_sync(~0u, own.key == top ? own.id : UINT32_MAX);
        if (top == 0) /* only NaN left: any id within range will do */
            chosen = k;
        if (lane == 0) {
            best[k] = top;
            ids[k] = chosen;
        }
        if (lane == chosen % 32) { /* only the lane that lost its best looks again */
            keys[chosen] = 0;      /* taken: counts as NaN */
            own = look_own(keys, n);
        }
    }
}

/* A warp chooses the experts of token t: into `ids` and, where it is `live`, to device memory. `s` has n_experts keys (each lane needs its
 * own only) and room for top_k words. What is not needed for the next choice is done after all of them, by a lane each. */
static __device__ __forceinline__ void pick_experts(const kern_router_args &a, uint32_t t, bool live, uint32_t *s,
                                                    uint32_t *ids)
{
    const uint32_t lane = threadIdx.x % 32;
    uint32_t *keys = s, *best = s + a.n_experts;
    const own_best own = look_own(keys, a.n_experts);
    const uint32_t first = __reduce_max_sync(~0u, own.key);
    const float max = first ? key_value(first) : -INFINITY;
    float sum = 0;
    if (a.scoring == KERN_SOFTMAX_TOPK) {
#pragma unroll 1
        for (uint32_t e = lane; e < a.n_experts; e += 32)
            sum += expf(key_value(keys[e]) - max);
        sum = warp_sum(sum);
    }
    pick_best(keys, a.n_experts, a.top_k, own, best, ids);
    __syncwarp();
    pick_scores(a, t, live, max, sum, best, ids);
}

/* --- routers that are not plain: experts are chosen by their scores. Parts of it, each by a warp ------------------------- */

/* Of softmax; sigmoid does without. */
struct score_scale {
    float max, sum;
};

/* logit(e) gives that of an expert; a lane asks for those of its own: every 32nd. */
template <typename L> static __device__ __forceinline__ score_scale router_scale(const kern_router_args &a, L logit)
{
    const uint32_t lane = threadIdx.x % 32;
    score_scale s = {-INFINITY, 0};
    if (a.scoring != KERN_SOFTMAX_TOPK)
        return s;
#pragma unroll 1
    for (uint32_t e = lane; e < a.n_experts; e += 32)
        s.max = fmaxf(s.max, logit(e));
    s.max = warp_max(s.max);
#pragma unroll 1
    for (uint32_t e = lane; e < a.n_experts; e += 32)
        s.sum += expf(logit(e) - s.max);
    s.sum = warp_sum(s.sum);
    return s;
}

static __device__ __forceinline__ float router_score(const kern_router_args &a, float logit, score_scale s)
{
    return a.scoring == KERN_SIGMOID ? 1.0f / (1.0f + expf(-logit)) : expf(logit - s.max) / s.sum;
}

/* Takes the experts of all but the best groups out of the keys. A lane ranks a group. */
static __device__ __forceinline__ void router_best_groups(const kern_router_args &a, uint32_t *keys)
{
    static_assert(KERN_MAX_GROUPS == 32, "a lane a group");
    const uint32_t lane = threadIdx.x % 32, size = a.n_experts / a.n_groups;
    uint32_t best = 0, second = 0;
    __syncwarp();
#pragma unroll 1
    for (uint32_t e = lane * size; lane < a.n_groups && e < (lane + 1) * size; e++) {
        const uint32_t k = keys[e];
        second = max(second, min(best, k));
        best = max(best, k);
    }
    float of = best ? key_value(best) : -INFINITY;
    if (a.group_rank == KERN_GROUP_TOP2)
        of += second ? key_value(second) : -INFINITY;
    uint32_t before = 0;
#pragma unroll 1
    for (uint32_t g = 0; g < a.n_groups; g++) {
        const float other = __shfl_sync(~0u, of, (int)g);
        before += other > of || (other == of && g < lane);
    }
    const uint32_t kept = __ballot_sync(~0u, before < a.top_groups);
    __syncwarp(); /* all have read */
#pragma unroll 1
    for (uint32_t e = lane; e < a.n_experts; e += 32)
        if (!(kept >> e / size & 1))
            keys[e] = 0;
}

/* The weights of the chosen: `ids`, which all lanes see. `scores` has room for top_k floats. */
template <typename L>
static __device__ __forceinline__ void router_weights(const kern_router_args &a, uint32_t t, bool live, score_scale s,
                                                      L logit, float *scores, const uint32_t *ids)
{
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll 1
    for (uint32_t k = lane; k < a.top_k; k += 32)
        scores[k] = router_score(a, logit(ids[k]), s);
    __syncwarp();
    float by = 0;
#pragma unroll 1
    for (uint32_t k = 0; k < a.top_k; k++)
        by += scores[k];
    by = a.norm_topk ? (by < a.norm_min ? a.norm_min : by) + a.norm_eps : 1.0f;
#pragma unroll 1
    for (uint32_t k = lane; live && k < a.top_k; k += 32) {
        a.ids[(size_t)t * a.top_k + k] = ids[k];
        a.weights[(size_t)t * a.top_k + k] =
            scores[k] / by * (a.scale != 0 ? a.scale : 1.0f) * (a.expert_scale ? a.expert_scale[ids[k]] : 1.0f);
    }
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

/* A turn of plan_fill() from entry `at` on: a thread takes neighbouring entries, so that one scan does for all of them. */
static __device__ __forceinline__ uint32_t plan_each(const kern_plan_args &a, uint32_t at)
{
    return min((a.n_experts * a.pages - at + blockDim.x - 1) / blockDim.x, 32u);
}

/* Which of this thread's entries are missed pages worth a slot. What a step finds in the page table is there before it begins. */
static __device__ __forceinline__ uint32_t plan_missing(const kern_plan_args &a, uint32_t at)
{
    if (!a.fill_addr)
        return 0;
    const uint32_t each = plan_each(a, at), begin = at + threadIdx.x * each,
                   end = min(begin + each, a.n_experts * a.pages);
    uint32_t missing = 0;
#pragma unroll 2
    for (uint32_t i = begin; i < end; i++) {
        const uint64_t addr = a.page_addr[i];
        if (!(addr >= a.arena_begin && addr < a.arena_end) && (!a.admit || a.admit[i / a.pages]))
            missing |= 1u << (i - begin);
    }
    return missing;
}

/* Gives free slots to the missed pages of touched experts, in order; every thread of the block. used0: slots taken before; missing0:
 * plan_missing(a, 0). Stores only where it is `live`. */
template <typename T>
static __device__ __forceinline__ void plan_fill(const kern_plan_args &a, uint32_t used0, uint32_t missing0, bool live,
                                                 uint32_t *s, T touched)
{
    const uint32_t room = a.n_free > used0 ? min(a.n_free - used0, a.max_inserts) : 0;
    const uint32_t entries = a.n_experts * a.pages;
    uint32_t used = 0;
#pragma unroll 1
    for (uint32_t at = 0; at < entries; at += blockDim.x * 32) {
        const uint32_t each = plan_each(a, at), begin = at + threadIdx.x * each, end = min(begin + each, entries);
        const uint32_t missing = used >= room ? 0 : at ? plan_missing(a, at) : missing0;
        uint32_t want = 0;
#pragma unroll 1
        for (uint32_t m = missing; m; m &= m - 1)
            if (touched((begin + __ffs(m) - 1) / a.pages))
                want |= m & -m;
        uint32_t total = 0, slot = used;
        if (__syncthreads_or(want != 0))
            slot += block_scan(__popc(want), s, &total);
#pragma unroll 1
        for (uint32_t i = begin; i < end && live; i++, want >>= 1) {
            uint64_t fill = 0;
            if (want & 1 && slot < room) {
                fill = a.free_slots[used0 + slot];
                a.fill_log[used0 + slot] = a.fill_log_base + i;
            }
            slot += want & 1;
            a.fill_addr[i] = fill;
        }
        used += total;
    }
    if (threadIdx.x == 0 && a.free_used && live)
        *a.free_used = used0 + min(used, room);
}

/* The plan of n <= PLAN_FEW pairs by any block: each pair's place is the number of pairs that come before it. `ids` are in shared
 * memory, a barrier behind their stores; `s` has room for SCAN_WORDS words. */
static __device__ __forceinline__ void plan_few(const kern_plan_args &a, const uint32_t *ids, uint32_t n,
                                                uint32_t used0, uint32_t missing0, bool live, uint32_t *s)
{
    /* From the last thread on: the first warp may have something else to do. */
    const uint32_t from_last = blockDim.x - 1 - threadIdx.x;
#pragma unroll 1
    for (uint32_t i = from_last; i < n; i += blockDim.x) {
        const uint32_t e = ids[i];
        uint32_t before = 0;
#pragma unroll 4
        for (uint32_t j = 0; j < n; j++)
            before += ids[j] < e || (ids[j] == e && j < i);
        if (live)
            a.pairs[before] = i;
    }
#pragma unroll 1
    for (uint32_t e = from_last; e <= a.n_experts; e += blockDim.x) {
        uint32_t before = 0, own = 0;
#pragma unroll 4
        for (uint32_t j = 0; j < n; j++) {
            before += ids[j] < e;
            own += ids[j] == e;
        }
        if (live) {
            a.expert_start[e] = before;
            if (e < a.n_experts)
                a.expert_count[e] = own;
        }
    }
    if (a.fill_addr)
        plan_fill(a, used0, missing0, live, s, [&](uint32_t e) {
            bool any = false;
#pragma unroll 4
            for (uint32_t j = 0; j < n; j++)
                any = any || ids[j] == e;
            return any;
        });
}

/* Slots that the layers before took. */
static __device__ __forceinline__ uint32_t plan_used(const kern_plan_args &a)
{
    return a.fill_addr && a.free_used ? __ldcg(a.free_used) : 0;
}

static __device__ __forceinline__ uint32_t plan_pairs(const kern_plan_args &a)
{
    return (a.n_live ? min(*a.n_live, a.n_tokens) : a.n_tokens) * a.top_k;
}

#endif
