/* choose.cu - operations that pick and sort: the router's top-k, the plan of a MoE layer, argmax and the sampler's candidates.
 *
 * All are stable: ties go to the lower id, pairs of an expert keep the order of tokens, so that a replayed step and a fresh one
 * choose alike. */
#include "kernels/cuda/choose.cuh"
#include "kernels/cuda/cuda_priv.h"
#include "kernels/cuda/overlap.cuh"
#include "kernels/cuda/reduce.cuh"

/* --- router: a warp a token --------------------------------------------------------------------------------------------- */

/* The larger value, the lower id on ties, in every lane. */
static __device__ __forceinline__ void warp_best(float *v, uint32_t *id)
{
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) {
        const float ov = __shfl_xor_sync(~0u, *v, o);
        const uint32_t oi = __shfl_xor_sync(~0u, *id, o);
        if (ov > *v || (ov == *v && oi < *id)) {
            *v = ov;
            *id = oi;
        }
    }
}

__global__ void router_kernel(kern_router_args a)
{
    extern __shared__ uint32_t sh[];
    const uint32_t warp = threadIdx.x / 32, t = blockIdx.x * (blockDim.x / 32) + warp;
    uint32_t *s = sh + warp * (a.n_experts + 2 * a.top_k);
    overlap_begin();
    if (t < a.n_tokens) {
        pick_keys(a, t, s);
        pick_experts(a, t, true, s, s + a.n_experts + a.top_k);
    }
}

/* A router that is not plain. */
__global__ void router_scores_kernel(kern_router_args a)
{
    extern __shared__ uint32_t sh[];
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, t = blockIdx.x * (blockDim.x / 32) + warp;
    uint32_t *keys = sh + warp * (a.n_experts + 2 * a.top_k), *best = keys + a.n_experts, *ids = best + a.top_k;
    overlap_begin();
    if (t >= a.n_tokens)
        return;
    const float *logits = a.logits + (size_t)t * a.n_experts;
    auto logit = [&](uint32_t e) { return __ldcg(logits + e); };
    const score_scale scale = router_scale(a, logit);
#pragma unroll 1
    for (uint32_t e = lane; e < a.n_experts; e += 32)
        keys[e] = order_key(router_score(a, logit(e), scale) + (a.bias ? a.bias[e] : 0.0f));
    if (a.n_groups > 1)
        router_best_groups(a, keys);
    pick_best(keys, a.n_experts, a.top_k, look_own(keys, a.n_experts), best, ids);
    __syncwarp();
    router_weights(a, t, true, scale, logit, reinterpret_cast<float *>(best), ids);
}

/* KERN_SPARSEMIXER */
__global__ void router_mixer_kernel(kern_router_args a)
{
    extern __shared__ uint32_t sh[];
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, t = blockIdx.x * (blockDim.x / 32) + warp;
    uint32_t *keys = sh + warp * (a.n_experts + 2 * a.top_k), *best = keys + a.n_experts, *ids = best + a.top_k;
    overlap_begin();
    if (t >= a.n_tokens)
        return;
    const float *logits = a.logits + (size_t)t * a.n_experts;
    pick_keys(a, t, keys);
    pick_best(keys, a.n_experts, a.top_k, look_own(keys, a.n_experts), best, ids);
    __syncwarp();
#pragma unroll 1
    for (uint32_t k = 0; k < a.top_k; k++) {
        const float max = __ldcg(logits + ids[k]);
        float sum = 0;
#pragma unroll 1
        for (uint32_t e = lane; e < a.n_experts; e += 32) {
            const float v = __ldcg(logits + e);
            bool counts = !((max - v) / fmaxf(fabsf(v), max) > a.spread);
            for (uint32_t i = 0; i < k; i++)
                counts = counts && ids[i] != e;
            sum += counts ? expf(v - max) : 0.0f;
        }
        sum = warp_sum(sum);
        if (lane == 0) {
            a.ids[(size_t)t * a.top_k + k] = ids[k];
            a.weights[(size_t)t * a.top_k + k] = 1.0f / sum;
        }
    }
}

kern_status cuda_router(kern_dev *kd, const kern_router_args *a)
{
    cuda_dev *d = cuda_of(kd);
    const uint32_t warps = 4;
    const size_t smem = (size_t)warps * (a->n_experts + 2 * a->top_k) * sizeof(uint32_t);
    if (smem > 48 * 1024 || a->top_k > a->n_experts)
        return cuda_unsupported(d, "number of experts in the router");
    if (!kern_router_is_known(a))
        return cuda_unsupported(d, "scoring or groups of the router");
    if (a->n_tokens)
        (void)cuda_start(d,
                         kern_router_is_plain(a)          ? router_kernel
                         : a->scoring == KERN_SPARSEMIXER ? router_mixer_kernel
                                                          : router_scores_kernel,
                         (a->n_tokens + warps - 1) / warps, warps * 32, smem, *a);
    return cuda_launched(d, "router");
}

/* --- plan: one block ---------------------------------------------------------------------------------------------------- */

#define PLAN_THREADS 1024
#define PLAN_WARPS   (PLAN_THREADS / 32)

__global__ void plan_few_kernel(kern_plan_args a)
{
    __shared__ uint32_t s[PLAN_FEW + SCAN_WORDS];
    overlap_begin();
    const uint32_t n = plan_pairs(a), used = plan_used(a);
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x)
        s[i] = a.ids[i];
    __syncthreads();
    plan_few(a, s, n, used, plan_missing(a, 0), true, s + PLAN_FEW);
}

/* Each warp owns a contiguous run of pairs and a histogram of it; after a scan over (expert, warp) it places its run in order. */
__global__ void __launch_bounds__(PLAN_THREADS) plan_kernel(kern_plan_args a, uint32_t hist_warps)
{
    extern __shared__ uint32_t hist[]; /* [n_experts][hist_warps] */
    __shared__ uint32_t s[PLAN_WARPS];
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    overlap_begin();
    const uint32_t n = plan_pairs(a), used = plan_used(a);
    const uint32_t run = (n + hist_warps - 1) / hist_warps;
    const uint32_t begin = min(n, warp * run), end = warp < hist_warps ? min(n, begin + run) : begin;

    for (uint32_t i = threadIdx.x; i < a.n_experts * hist_warps; i += blockDim.x)
        hist[i] = 0;
    __syncthreads();
    for (uint32_t i = begin + lane; i < end; i += 32)
        atomicAdd(&hist[a.ids[i] * hist_warps + warp], 1u);
    __syncthreads();

    uint32_t base = 0; /* the table is scanned in pieces of one entry a thread */
    for (uint32_t at = 0; at < a.n_experts * hist_warps; at += blockDim.x) {
        const uint32_t i = at + threadIdx.x;
        const uint32_t v = i < a.n_experts * hist_warps ? hist[i] : 0;
        uint32_t total;
        const uint32_t before = block_scan(v, s, &total);
        if (i < a.n_experts * hist_warps)
            hist[i] = base + before;
        base += total;
    }
    __syncthreads();
    for (uint32_t e = threadIdx.x; e <= a.n_experts; e += blockDim.x) {
        const uint32_t first = e < a.n_experts ? hist[e * hist_warps] : n;
        const uint32_t next = e + 1 < a.n_experts ? hist[(e + 1) * hist_warps] : n;
        a.expert_start[e] = first;
        if (e < a.n_experts)
            a.expert_count[e] = next - first;
    }
    __syncthreads();
    for (uint32_t i = begin; i < end; i += 32) {
        const bool on = i + lane < end;
        const uint32_t active = __ballot_sync(~0u, on);
        if (on) {
            const uint32_t e = a.ids[i + lane];
            const uint32_t same = __match_any_sync(active, e);
            const uint32_t rank = __popc(same & ((1u << lane) - 1));
            const uint32_t at = hist[e * hist_warps + warp];
            __syncwarp(active);
            if (rank == 0)
                hist[e * hist_warps + warp] = at + __popc(same);
            a.pairs[at + rank] = i + lane;
        }
        __syncwarp();
    }

    if (!a.fill_addr)
        return;
    __syncthreads();
    plan_fill(a, used, plan_missing(a, 0), true, s,
              [&](uint32_t e) { return a.expert_start[e + 1] > a.expert_start[e]; });
}

kern_status cuda_plan(kern_dev *kd, const kern_plan_args *a)
{
    cuda_dev *d = cuda_of(kd);
    uint32_t hist_warps = PLAN_WARPS;
    while (hist_warps > 1 && (size_t)hist_warps * a->n_experts * 4 > 48 * 1024)
        hist_warps /= 2;
    if ((size_t)hist_warps * a->n_experts * 4 > 48 * 1024)
        return cuda_unsupported(d, "number of experts in the plan");
    if ((uint64_t)a->n_tokens * a->top_k <= PLAN_FEW)
        (void)cuda_start(d, plan_few_kernel, 1, 256, 0, *a);
    else
        (void)cuda_start(d, plan_kernel, 1, PLAN_THREADS, (size_t)hist_warps * a->n_experts * 4, *a, hist_warps);
    return cuda_launched(d, "plan");
}

/* f(i, x[i]) for this thread's share of values begin .. end of a row, in ascending order, with eight loads in flight. */
template <typename F>
static __device__ __forceinline__ void for_each_value(const float *x, uint32_t begin, uint32_t end, F f)
{
    for (uint32_t at = begin + threadIdx.x; at < end; at += blockDim.x * 8) {
        float v[8];
#pragma unroll
        for (int j = 0; j < 8; j++)
            v[j] = at + j * blockDim.x < end ? __ldcg(x + at + j * blockDim.x) : 0.0f;
#pragma unroll
        for (int j = 0; j < 8; j++)
            if (at + j * blockDim.x < end)
                f(at + j * blockDim.x, v[j]);
    }
}

/* --- argmax ------------------------------------------------------------------------------------------------------------- */

#define ARGMAX_PARTS 32

/* A row is cut into parts, one a block; the last block of a row to end looks at all of them. */
__global__ void __launch_bounds__(256)
    argmax_kernel(kern_argmax_args a, float *part_best, uint32_t *part_id, uint32_t *tickets, uint64_t *mark)
{
    __shared__ float sv[8];
    __shared__ uint32_t si[8];
    const uint32_t t = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32,
                   size = (a.vocab + gridDim.y - 1) / gridDim.y;
    overlap_begin(mark);
    float best = -INFINITY;
    uint32_t id = UINT32_MAX;
    auto take = [&](uint32_t i, float v) {
        if (v > best || (id == UINT32_MAX && v == best)) {
            best = v;
            id = i;
        }
    };
    for_each_value(a.logits + (size_t)t * a.vocab, blockIdx.y * size, min(a.vocab, (blockIdx.y + 1) * size), take);
    warp_best(&best, &id);
    if (lane == 0) {
        sv[warp] = best;
        si[warp] = id;
    }
    __syncthreads();
    if (warp > 0)
        return;
    best = lane < 8 ? sv[lane] : -INFINITY;
    id = lane < 8 ? si[lane] : UINT32_MAX;
    warp_best(&best, &id);
    if (gridDim.y > 1) {
        bool last = false;
        if (lane == 0) {
            part_best[t * ARGMAX_PARTS + blockIdx.y] = best;
            part_id[t * ARGMAX_PARTS + blockIdx.y] = id;
            __threadfence();
            last = atomicAdd(tickets + t, 1u) == gridDim.y - 1;
            if (last)
                tickets[t] = 0;
            __threadfence();
        }
        if (!__shfl_sync(~0u, last, 0))
            return;
        best = lane < gridDim.y ? __ldcg(part_best + t * ARGMAX_PARTS + lane) : -INFINITY;
        id = lane < gridDim.y ? __ldcg(part_id + t * ARGMAX_PARTS + lane) : UINT32_MAX;
        warp_best(&best, &id);
    }
    if (lane == 0)
        a.ids[t] = isfinite(best) ? id : UINT32_MAX;
}

kern_status cuda_argmax(kern_dev *kd, const kern_argmax_args *a)
{
    cuda_dev *d = cuda_of(kd);
    /* Many rows are work enough without cutting them. */
    const uint32_t parts = a->n_tokens <= CUDA_FEW_ROWS && a->vocab >= 8192 ? ARGMAX_PARTS : 1;
    static_assert(sizeof(cuda_small::best) / sizeof(float) == CUDA_FEW_ROWS * ARGMAX_PARTS, "parts of few rows");
    if (a->n_tokens)
        (void)cuda_start(d, argmax_kernel, dim3(a->n_tokens, parts), 256, 0, *a, d->small->best, d->small->id,
                         d->small->row_tickets, cuda_take_mark(d));
    return cuda_launched(d, "argmax");
}

/* --- the sampler's candidates --------------------------------------------------------------------------------------------- */

/* The `want`-th largest of the keys that `each` shows to its argument, found from the highest byte down; *ret_left: how many of the keys
 * equal to it belong to the `want` largest. */
template <typename E> static __device__ uint32_t nth_key(E each, uint32_t want, uint32_t *ret_left)
{
    __shared__ uint32_t hist[256], found[2];
    uint32_t prefix = 0, mask = 0, left = want;
    for (int shift = 24; shift >= 0; shift -= 8) {
        for (uint32_t i = threadIdx.x; i < 256; i += blockDim.x)
            hist[i] = 0;
        __syncthreads();
        each([&](uint32_t k) {
            if ((k & mask) == prefix)
                atomicAdd(&hist[k >> shift & 255], 1u);
        });
        __syncthreads();
        if (threadIdx.x == 0) {
            uint32_t rest = left, b = 255;
            while (b > 0 && hist[b] < rest)
                rest -= hist[b--];
            found[0] = b;
            found[1] = rest;
        }
        __syncthreads();
        prefix |= found[0] << shift;
        mask |= 255u << shift;
        left = found[1];
        __syncthreads();
    }
    *ret_left = left;
    return prefix;
}

/* At least as many values of a row as are wanted reach the wanted-th largest of the threads' own maxima. Nearly always few more do:
 * they are collected and sorted. Where ties make them too many (a flat row), the exact bound is searched over the whole row
 * and its ties are taken in order of id. */
__global__ void __launch_bounds__(1024) top_logits_kernel(kern_top_logits_args a, uint64_t *mark)
{
    constexpr uint32_t ROOM = 1024;
    __shared__ uint32_t s[32], count, ids[ROOM], keys[ROOM];
    __shared__ float sf[32];
    const float *x = a.logits + (size_t)blockIdx.x * a.vocab;
    const uint32_t want = min(a.vocab, (uint32_t)KERN_TOP_LOGITS);
    overlap_begin(mark);

    float max = -INFINITY, sum = 0;
    uint32_t top = 0, left;
    for_each_value(x, 0, a.vocab, [&](uint32_t, float v) {
        max = fmaxf(max, v);
        const uint32_t k = order_key(v);
        top = top > k ? top : k;
    });
    max = block_max(max, sf);
    const uint32_t bound = a.vocab >= blockDim.x ? nth_key([&](auto show) { show(top); }, want, &left) : 0;
    if (threadIdx.x == 0)
        count = 0;
    __syncthreads();
    const float zero = max == -INFINITY ? 0.0f : max;
    for_each_value(x, 0, a.vocab, [&](uint32_t i, float v) {
        sum += expf(v - zero);
        const uint32_t k = order_key(v);
        if (k >= bound) {
            const uint32_t at = atomicAdd(&count, 1u);
            if (at < ROOM) {
                ids[at] = i;
                keys[at] = k;
            }
        }
    });
    sum = block_sum(sum, sf);
    if (threadIdx.x == 0)
        a.logsumexp[blockIdx.x] = zero + logf(sum);

    uint32_t n = count;
    if (n > ROOM) {
        const uint32_t last =
            nth_key([&](auto show) { for_each_value(x, 0, a.vocab, [&](uint32_t, float v) { show(order_key(v)); }); },
                    want, &left);
        uint32_t n_greater = 0, n_equal = 0;
        for (uint32_t at = 0; at < a.vocab && (n_greater < want - left || n_equal < left); at += blockDim.x) {
            const uint32_t i = at + threadIdx.x;
            const uint32_t k = i < a.vocab ? order_key(x[i]) : 0;
            const bool greater = i < a.vocab && k > last, equal = i < a.vocab && k == last;
            uint32_t total;
            const uint32_t slot = block_scan((greater ? 1u : 0u) | (equal ? 1u << 16 : 0u), s, &total);
            if (greater) {
                ids[n_greater + (slot & 0xffff)] = i;
                keys[n_greater + (slot & 0xffff)] = k;
            }
            if (equal && n_equal + (slot >> 16) < left) {
                ids[want - left + n_equal + (slot >> 16)] = i;
                keys[want - left + n_equal + (slot >> 16)] = k;
            }
            n_greater += total & 0xffff;
            n_equal += total >> 16;
        }
        n = want;
        __syncthreads();
    }
    uint32_t *out_ids = a.ids + (size_t)blockIdx.x * KERN_TOP_LOGITS;
    float *out = a.values + (size_t)blockIdx.x * KERN_TOP_LOGITS;
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x) {
        uint32_t rank = 0;
        for (uint32_t j = 0; j < n; j++)
            rank += keys[j] > keys[i] || (keys[j] == keys[i] && ids[j] < ids[i]);
        if (rank < want) {
            out_ids[rank] = ids[i];
            out[rank] = x[ids[i]];
        }
    }
    if (threadIdx.x >= want && threadIdx.x < KERN_TOP_LOGITS) {
        out_ids[threadIdx.x] = UINT32_MAX;
        out[threadIdx.x] = -INFINITY;
    }
}

kern_status cuda_top_logits(kern_dev *kd, const kern_top_logits_args *a)
{
    cuda_dev *d = cuda_of(kd);
    if (a->n_tokens)
        (void)cuda_start(d, top_logits_kernel, a->n_tokens, 1024, 0, *a, cuda_take_mark(d));
    return cuda_launched(d, "top_logits");
}
