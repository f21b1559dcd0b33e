/* gemv_one.cuh - linear layers of a single token, the bulk of a decode step's launches: their bytes at the memory's rate, and little else.
 *
 * The arithmetic is that of gemv.cuh. What differs serves the time from the end of the kernel ahead to the end of this one:
 *  - Weights come by bulk copies, as many items at once as there is room for. Loads queue up behind each other in a multiprocessor: x,
 *    asked for behind 200 KB of cp.async, came when these had come.
 *  - x is split once, by all lanes, into shared memory: a lane an octet of columns, as rms_group() wants it. (In the layout of
 *    the products only four lanes of a warp have anything of one token.)
 *  - Of two warps beside those that multiply, one asks for weights, and the other adds up the products of an item while the next are made.
 *    (The head of 151936 rows took 110 us where one warp did both, 94 with two.)
 *  - Code comes from device memory at little more than a line of 128 bytes in 50 ns, and every layer finds the caches cold. So where a
 *    block comes to life early, it runs through all of it once on nothing, without a store to device memory, before it waits.
 *  - The router's blocks hand over logits and the news that they are there in one word each: no fence, no ticket.
 *  - Few registers, and no more blocks than needed, so that the next kernel's blocks find room and can do the same meanwhile.
 * Beside a router's product, blocks from s.grid on make those of the next layers' routers of the same x, and the first of each writes
 * the list of what to read ahead (ahead.cuh). */
#ifndef KERNELS_CUDA_GEMV_ONE_CUH
#define KERNELS_CUDA_GEMV_ONE_CUH

#include "kernels/cuda/gemv.cuh"

#define ONE_WARPS      16 /* that multiply */
#define ONE_THREADS    ((ONE_WARPS + 2) * 32)
#define ONE_BLOCKS     4 /* of 32 columns, a warp and pass */
#define ONE_MAX_STAGES 6
static_assert(ONE_WARPS * 256 >= GEMV_MAX_COLS, "a lane takes one octet of x");

struct one_shape {
    uint32_t grid, smem;
    uint32_t rows; /* of an item: 16, or 8 where there are so few that more blocks help */
    uint32_t pitch, stages;
    bool warm; /* a pass on nothing comes first */
};

/* Floats of a block of K in the products: 16 rows, of Q8_0 their scales too. */
static constexpr __host__ __device__ uint32_t one_products(int fmt)
{
    return fmt == FMT_Q8_0 ? 32 : 16;
}

/* False where the product belongs to another kernel. tail_bytes as in gemv_fits(). */
static inline bool one_fits(const mm_params &p, uint32_t tail_bytes, int smem_max, int n_sm, one_shape *ret)
{
    if (p.n_tokens != 1 || !gemv_can(p))
        return false;
    one_shape s = {};
    const uint32_t blocks = p.cols / 32, n = (uint32_t)n_sm;
    s.rows = p.rows <= 4 * n ? 8 : 16;
    s.pitch = gemv_pitch((int)p.fmt, p.row_bytes);
    const uint32_t items = (p.rows + s.rows - 1) / s.rows, stage = s.rows * s.pitch;
    const uint32_t sums = one_products((int)p.fmt) * blocks * 4, x = blocks * 128 + rms_groups(GEMV_MAX_COLS) * 4;
    /* Best is room for all of a block's items from the start; else for as many bytes as can be. */
    uint32_t best = 0;
    for (uint32_t share = 2; share > 0; share--) {
        one_shape c = s;
        c.grid = items < share * n ? items : share * n;
        /* Where that costs no time, a few multiprocessors are left to the kernel that comes next. */
        const uint32_t fewer = share * (n > 64 ? n - 4 : n), most = (items + c.grid - 1) / c.grid;
        if (fewer < c.grid && (items + fewer - 1) / fewer == most)
            c.grid = fewer;
        const uint32_t room = ((uint32_t)smem_max - (share - 1) * 1024) / share;
        const uint32_t fixed = x + (most > 1 ? 2 : 1) * sums + tail_bytes;
        if (room < fixed + stage)
            continue;
        c.stages = (room - fixed) / stage;
        c.stages = c.stages > ONE_MAX_STAGES ? ONE_MAX_STAGES : c.stages;
        c.stages = c.stages > most ? most : c.stages;
        c.smem = fixed + c.stages * stage;
        const uint32_t worth = c.stages == most ? UINT32_MAX : share * c.stages;
        if (worth > best) {
            best = worth;
            *ret = c;
        }
    }
    return best > 0;
}

/* The rows of an item into a stage, by one warp. */
template <bool KEEP_PLACE>
static __device__ __forceinline__ void one_fetch(const mm_params &p, const one_shape &s, const unsigned char *w,
                                                 uint32_t rows, uint32_t item, unsigned char *stage, uint64_t *full,
                                                 uint64_t policy)
{
    const uint32_t lane = threadIdx.x % 32, bytes = (uint32_t)p.row_bytes, pitch = s.pitch;
    const uint32_t valid = min(s.rows, rows - item * s.rows);
    const unsigned char *src = w + (size_t)item * s.rows * p.row_bytes;
#if __CUDA_ARCH__ >= 900
    if constexpr (KEEP_PLACE) {
        const uint32_t before = pair_row_at(p, lane), mine = lane < valid ? before + bytes + 15 & ~15u : 0;
        const uint32_t all = __reduce_add_sync(~0u, mine);
        if (lane == 0)
            bar_expect(full, all);
        __syncwarp();
        if (lane < valid)
            bulk_copy_once(smem_of(stage + lane * pitch), (uint64_t)(uintptr_t)(src + lane * p.row_bytes) - before,
                           mine, full, policy);
    } else {
        if (lane == 0)
            bar_expect(full, valid * bytes);
        __syncwarp();
        if (lane < valid)
            bulk_copy_once(smem_of(stage + lane * pitch), (uint64_t)(uintptr_t)(src + lane * p.row_bytes), bytes, full,
                           policy);
    }
#else
#pragma unroll 1
    for (uint32_t r = 0; r < valid; r++) {
        const uint32_t before = KEEP_PLACE ? pair_row_at(p, r) : 0, end = before + bytes;
#pragma unroll 2
        for (uint32_t u = lane * 16; u < end; u += 512)
            cp_async16_once(smem_of(stage + r * pitch + u), src + r * p.row_bytes - before + u, policy);
    }
    bar_arrive_copies(full);
#endif
}

#if __CUDA_ARCH__ >= 900
#define ONE_FULL_COUNT 1
#else
#define ONE_FULL_COUNT 32
#endif

/* x, normed and split, into `to`: [block]{hi, lo}. A barrier must follow. */
static __device__ __forceinline__ void one_take_x(const mm_params &p, const float *norm_at, bool live, float *part,
                                                  unsigned char *to)
{
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, col = warp * 256 + lane * 8;
    const bool in = col < p.cols;
    const float *x = p.x + (p.row_idx ? (size_t)p.row_idx[0] * p.x_stride : 0) + col;
    float4 v[2] = {load_floats(x, live && in), load_floats(x + 4, live && in)};
    if (p.norm) {
        const float4 norm[2] = {load_floats(norm_at + col, in), load_floats(norm_at + col + 4, in)};
        const float sum = rms_group(rms_octet(v[0], v[1]));
        if (lane == 0 && warp < ONE_WARPS)
            part[warp] = sum;
        __syncthreads();
        const float r = rms_factor(part, p.cols, p.eps);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float4 w = norm[i];
            v[i] = make_float4(v[i].x * r * w.x, v[i].y * r * w.y, v[i].z * r * w.z, v[i].w * r * w.w);
            if (blockIdx.x == 0 && live && in)
                *reinterpret_cast<float4 *>(p.normed + col + 4 * i) = v[i];
        }
    }
    if (!in)
        return;
    const b_frag f = split_x(v[0], v[1]);
    unsigned char *at = to + col / 32 * 128 + lane % 4 * 16;
    *reinterpret_cast<uint4 *>(at) = make_uint4(f.hi[0], f.hi[1], f.hi[2], f.hi[3]);
    *reinterpret_cast<uint4 *>(at + 64) = make_uint4(f.lo[0], f.lo[1], f.lo[2], f.lo[3]);
}

/* What was split of a block, as the operand of token 0, the only column that is not zero. */
static __device__ __forceinline__ b_frag one_operand(const unsigned char *x, uint32_t block)
{
    const uint32_t lane = threadIdx.x % 32;
    uint4 hi = make_uint4(0, 0, 0, 0), lo = hi;
    if (lane < 4) {
        hi = *reinterpret_cast<const uint4 *>(x + block * 128 + lane * 16);
        lo = *reinterpret_cast<const uint4 *>(x + block * 128 + 64 + lane * 16);
    }
    return {{hi.x, hi.y, hi.z, hi.w}, {lo.x, lo.y, lo.z, lo.w}};
}

/* Fresh products of block i of the warp's. r0, r1: rows g and g + 8. */
template <int FMT>
static __device__ __forceinline__ void one_block(const unsigned char *r0, const unsigned char *r1,
                                                 const unsigned char *x, int i, uint32_t block, float *products,
                                                 float *scales)
{
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const b_frag b = one_operand(x, block);
    a_frag<FMT> a;
    gemv_row<FMT>(r0, i, t, a.r0, &a.d0);
    gemv_row<FMT>(r1, i, t, a.r1, &a.d1);
    float out[4];
    block_product<FMT>(out, a, b);
    if (t == 0) {
        products[block * 16 + g] = out[0];
        products[block * 16 + 8 + g] = out[2];
        if (FMT == FMT_Q8_0) {
            scales[block * 16 + g] = a.d0;
            scales[block * 16 + 8 + g] = a.d1;
        }
    }
}

/* All products of an item, by a warp its blocks. */
template <int FMT>
static __device__ __forceinline__ void one_multiply(const mm_params &p, const one_shape &s, const unsigned char *stage,
                                                    const unsigned char *x, float *products)
{
    const uint32_t warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, blocks = p.cols / 32;
    float *scales = products + blocks * 16;
#pragma unroll 1
    for (uint32_t block0 = warp * ONE_BLOCKS; block0 < blocks; block0 += ONE_WARPS * ONE_BLOCKS) {
        const unsigned char *r0 = stage + g * s.pitch + block0 * fmt_block<FMT>::BYTES,
                            *r1 = r0 + (s.rows - 8) * s.pitch; /* of 8 rows: the same again */
        if (block0 + ONE_BLOCKS <= blocks) {                   /* without branches, so that they overlap */
#pragma unroll
            for (int i = 0; i < ONE_BLOCKS; i++)
                one_block<FMT>(r0, r1, x, i, block0 + i, products, scales);
        } else {
#pragma unroll 1
            for (int i = 0; block0 + i < blocks; i++)
                one_block<FMT>(r0, r1, x, i, block0 + i, products, scales);
        }
    }
}

/* The same of the formats of pair_load(). */
template <int FMT>
static __device__ __forceinline__ void one_multiply_pairs(const mm_params &p, const one_shape &s,
                                                          const unsigned char *stage, const unsigned char *x,
                                                          float *products)
{
    const uint32_t warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, pairs = p.cols / 64;
    const unsigned char *r0 = stage + g * s.pitch + pair_row_at(p, g), *r1 = r0 + (s.rows - 8) * s.pitch;
#pragma unroll 1
    for (uint32_t pair = warp; pair < pairs; pair += ONE_WARPS) {
        float out[2][4];
#pragma unroll
        for (int i = 0; i < 2; i++)
            pair_product<FMT>(out[i], r0, r1, pair, i, one_operand(x, pair_block<FMT>(pair, i)));
        if (threadIdx.x % 4 == 0) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                products[pair_block<FMT>(pair, i) * 16 + g] = out[i][0];
                products[pair_block<FMT>(pair, i) * 16 + 8 + g] = out[i][2];
            }
        }
    }
}

/* Their sum, blocks of K in ascending order; a thread a row. words, y: where it goes, each may be NULL. */
template <int FMT, bool ROUTE>
static __device__ __forceinline__ void one_add(const mm_params &p, const one_shape &s, uint64_t *words, uint32_t launch,
                                               bool live, const float *bias_of, float *y, uint32_t rows, uint32_t item,
                                               const float *products)
{
    const uint32_t lane = threadIdx.x % 32, row = item * s.rows + lane, blocks = p.cols / 32;
    if (lane >= s.rows || row >= rows)
        return;
    const float before = live && p.accumulate ? y[row] : 0.0f, bias = live && bias_of ? bias_of[row] : 0.0f;
    const float *c = products + lane, *d = c + blocks * 16;
    float acc = 0;
#pragma unroll 16
    for (uint32_t j = 0; j < blocks; j++)
        acc = FMT == FMT_Q8_0 ? fmaf(d[j * 16], c[j * 16], acc) : acc + c[j * 16];
    if (bias_of)
        acc += bias;
    if (p.accumulate)
        acc += before;
    if (ROUTE && live && words)
        *reinterpret_cast<volatile uint64_t *>(words + row) = (uint64_t)launch << 32 | __float_as_uint(acc);
    if (live && y)
        y[row] = acc;
}

/* The top_k largest keys, and whose they are, by all warps at once: a thread a share of an expert's rank. A barrier comes before it, and
 * must follow. There is room for `keys` of n rounded up to fours, with zeros. */
static __device__ __forceinline__ void one_rank(const uint32_t *keys, uint32_t n, uint32_t top_k, uint32_t *best,
                                                uint32_t *ids)
{
    const uint32_t padded = (n + 3) & ~3u;
    /* Experts before this one: larger ones, and those of the same size with a lower id. Four threads share the work. */
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i / 4 < (n + 7 & ~7u); i += blockDim.x) {
        const uint32_t e = i / 4, key = keys[min(e, n - 1)];
        uint32_t rank = 0;
#pragma unroll 2
        for (uint32_t f = i % 4 * 4; f < padded; f += 16) {
            const uint4 q = *reinterpret_cast<const uint4 *>(keys + f);
            rank += (q.x > key || (q.x == key && f < e)) + (q.y > key || (q.y == key && f + 1 < e)) +
                    (q.z > key || (q.z == key && f + 2 < e)) + (q.w > key || (q.w == key && f + 3 < e));
        }
        rank += __shfl_xor_sync(~0u, rank, 1);
        rank += __shfl_xor_sync(~0u, rank, 2);
        if (i % 4 == 0 && e < n && rank < top_k) {
            best[rank] = key;
            ids[rank] = key ? e : rank; /* only NaN left: any id within range will do */
        }
    }
}

/* An expert's logit, which may come at any time: below the number of the launch. */
static __device__ __forceinline__ float one_logit(const uint64_t *words, bool wait, uint32_t launch, uint32_t e)
{
    uint64_t v = 0;
    if (wait)
        do
            v = *reinterpret_cast<const volatile uint64_t *>(words + e);
        while ((uint32_t)(v >> 32) != launch);
    return __uint_as_float((uint32_t)v);
}

/* The plan, after the choice; ids as in gemv_plan(). */
static __device__ __forceinline__ void one_plan(const gemv_route &route, bool live, const gemv_early &early,
                                                uint32_t *ids)
{
    if (!route.with_plan)
        return;
    if (route.plan.ids != route.pick.ids) { /* other experts than the router's */
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < early.pairs; i += blockDim.x)
            ids[i] = route.plan.ids[i];
        __syncthreads();
    }
    gemv_plan(route, live, early, ids);
}

/* Who is in shared memory where a block chooses; keys have room for n rounded up to fours. */
struct one_choice {
    uint32_t *keys, *best, *ids;
    float *logits; /* of a router that is not plain */
};

template <bool SCORES>
static __device__ __forceinline__ one_choice one_choice_of(uint32_t *s, uint32_t n, uint32_t top_k)
{
    const uint32_t padded = (n + 3) & ~3u;
    one_choice c;
    c.logits = reinterpret_cast<float *>(s);
    c.keys = SCORES ? s + padded : s;
    c.best = c.keys + padded;
    c.ids = c.best + top_k;
    return c;
}

/* The top_k best experts by their logits, which come in `words` below the number of the launch; by all threads, a barrier must follow. bias:
 * kern_router_args.bias of a router that is not plain, whose scale it returns: every warp's own. */
template <bool SCORES>
static __device__ __forceinline__ score_scale one_best(const kern_router_args &a, const one_choice &c,
                                                       const uint64_t *words, const float *bias_of, uint32_t top_k,
                                                       bool live, uint32_t launch)
{
    const uint32_t n = a.n_experts, padded = (n + 3) & ~3u;
    score_scale scale = {};
#pragma unroll 1
    for (uint32_t e = threadIdx.x; e < padded; e += blockDim.x) {
        /* Of the model: there before the logits. It waits where the key will be. */
        const float bias = SCORES && bias_of && e < n ? bias_of[e] : 0.0f;
        const float logit = one_logit(words, live && e < n, launch, e);
        if (SCORES)
            c.logits[e] = logit;
        c.keys[e] = SCORES ? __float_as_uint(bias) : e < n ? order_key(logit) : 0;
    }
    __syncthreads();
    if (SCORES) {
        scale = router_scale(a, [&](uint32_t e) { return c.logits[e]; });
#pragma unroll 1
        for (uint32_t e = threadIdx.x; e < padded; e += blockDim.x)
            c.keys[e] = e < n ? order_key(router_score(a, c.logits[e], scale) + __uint_as_float(c.keys[e])) : 0;
        __syncthreads();
        if (a.n_groups > 1) {
            if (threadIdx.x < 32)
                router_best_groups(a, c.keys);
            __syncthreads();
        }
    }
    one_rank(c.keys, n, top_k, c.best, c.ids);
    return scale;
}

/* What pick_experts(), or router_scores_kernel(), and gemv_choose() do, for one token. */
template <bool SCORES>
static __device__ __forceinline__ void one_choose(const gemv_route &route, bool live, uint32_t launch,
                                                  const gemv_early &early, uint32_t *s)
{
    const kern_router_args &a = route.pick;
    const one_choice c = one_choice_of<SCORES>(s, a.n_experts, a.top_k);
    const score_scale scale = one_best<SCORES>(a, c, route.logits, a.bias, a.top_k, live, launch);
    __syncthreads();
    if (threadIdx.x < 32) {
        if constexpr (SCORES) {
            router_weights(
                a, 0, live, scale, [&](uint32_t e) { return c.logits[e]; }, reinterpret_cast<float *>(c.best), c.ids);
        } else {
            const float max = c.best[0] ? key_value(c.best[0]) : -INFINITY;
            float sum = 0;
            if (a.scoring == KERN_SOFTMAX_TOPK) {
#pragma unroll 2
                for (uint32_t e = threadIdx.x; e < a.n_experts; e += 32)
                    sum += expf(key_value(c.keys[e]) - max);
                sum = warp_sum(sum);
            }
            __syncwarp(); /* all know the largest */
            pick_scores(a, 0, live, max, sum, c.best, c.ids);
        }
    }
    one_plan(route, live, early, c.ids);
}

/* The list of a layer to come, by the first block of its router's product; `missing`: of ahead_missing(), the first warp's. */
template <bool SCORES>
static __device__ __forceinline__ void one_list(const gemv_route &route, uint32_t which, bool live, uint32_t launch,
                                                uint32_t missing, uint32_t *s)
{
    const uint32_t top_k = route.ahead.next[which].top_k;
    const one_choice c = one_choice_of<SCORES>(s, route.pick.n_experts, top_k);
    (void)one_best<SCORES>(route.pick, c, ahead_logits(route.ahead, which), route.next_bias[which], top_k, live,
                           launch);
    __syncthreads();
    if (threadIdx.x < 32)
        ahead_write_list(route.ahead, which, live, missing, c.ids);
}

/* SCORES: the router is not plain. */
template <int FMT, bool ROUTE, bool SCORES = false>
__global__ void __launch_bounds__(ONE_THREADS, 2)
    one_kernel(const __grid_constant__ mm_params p, const __grid_constant__ one_shape s,
               const __grid_constant__ gemv_route route)
{
    constexpr bool SMALL = fmt_block<FMT>::FINISHED;
    extern __shared__ __align__(128) unsigned char smem[];
    __shared__ uint64_t full[ONE_MAX_STAGES];
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, blocks = p.cols / 32;
    const bool next = ROUTE && blockIdx.x >= s.grid; /* works for one of the next layers: this one */
    const uint32_t which = next ? (blockIdx.x - s.grid) / route.ahead.grid : 0;
    const uint32_t first = next ? (blockIdx.x - s.grid) % route.ahead.grid : blockIdx.x;
    const uint32_t n_blocks = next ? route.ahead.grid : s.grid;
    const ahead_next &to = route.ahead.next[which];
    const unsigned char *w = next ? to.w : p.w;
    const uint32_t rows = next ? route.ahead.n_experts : p.rows;
    const uint32_t stage = s.rows * s.pitch, items = (rows + s.rows - 1) / s.rows, buf = one_products(FMT) * blocks;
    const uint32_t n = (items - first + n_blocks - 1) / n_blocks; /* items of this block */
    unsigned char *x = smem + s.stages * stage;                   /* [block]{hi, lo} */
    float *part = reinterpret_cast<float *>(x + blocks * 128);    /* sums of squares */
    float *products = part + rms_groups(GEMV_MAX_COLS);           /* two of {[block][16] rows, [block][16] scales} */
    uint32_t *tail = reinterpret_cast<uint32_t *>(products + (items > n_blocks ? 2 : 1) * buf);

    overlap_allow();
    const uint64_t policy = once_policy();
    const float *norm = next ? to.norm : p.norm;
    if (p.norm && warp * 256 + lane * 8 < p.cols)
        fetch_ahead(norm + warp * 256 + lane * 8);
    if (threadIdx.x < rms_groups(GEMV_MAX_COLS))
        part[threadIdx.x] = 0;
    if (warp == ONE_WARPS) {
        if (lane < s.stages)
            bar_init(full + lane, ONE_FULL_COUNT);
        bar_init_done();
        __syncwarp();
#pragma unroll 1
        for (uint32_t k = 0; k < min(n, s.stages); k++)
            one_fetch<SMALL>(p, s, w, rows, first + k * n_blocks, smem + k * stage, full + k, policy);
    }
    __shared__ uint32_t missing[32];
    if (ROUTE && next && warp == 0)
        missing[lane] = ahead_missing(route.ahead, to);
    __syncthreads();

    gemv_early early = {};
    const bool chooses = ROUTE && blockIdx.x == 0;
    if (chooses)
        early = gemv_look_early(route);

        /* Twice, the first time on nothing. */
#pragma unroll 1
    for (int live = s.warm ? 0 : 1; live < 2; live++) {
        uint32_t launch = 0;
        if (live) {
            overlap_begin(p.mark);
            if (ROUTE)
                launch = next ? ahead_tag(route.ahead) : __ldcg(route.launch) + 1;
            if (chooses && route.with_plan)
                early.used = plan_used(route.plan);
        }
        one_take_x(p, norm, live, part, x);
        __syncthreads();
        const uint32_t turns = live ? n : 1;
        uint32_t slot = 0, phase = 0;
#pragma unroll 1
        for (uint32_t k = 0; k <= turns; k++) {
            if (warp == ONE_WARPS) {
                const uint32_t ahead = k - 1 + s.stages, from = slot == 0 ? s.stages - 1 : slot - 1;
                if (live && k > 0 && ahead < n) /* the stage has been read */
                    one_fetch<SMALL>(p, s, w, rows, first + ahead * n_blocks, smem + from * stage, full + from, policy);
            } else if (warp > ONE_WARPS) {
                if (k > 0)
                    one_add<FMT, ROUTE>(p, s, next ? ahead_logits(route.ahead, which) : route.logits, launch, live,
                                        next ? to.bias : p.bias, next ? nullptr : p.y, rows, first + (k - 1) * n_blocks,
                                        products + (k - 1 & 1) * buf);
            } else if (k < turns) {
                if (live)
                    bar_wait(full + slot, phase);
                if constexpr (SMALL)
                    one_multiply_pairs<FMT>(p, s, smem + slot * stage, x, products + (k & 1) * buf);
                else
                    one_multiply<FMT>(p, s, smem + slot * stage, x, products + (k & 1) * buf);
            }
            if (k < turns)
                __syncthreads();
            if (++slot == s.stages) {
                slot = 0;
                phase ^= 1;
            }
        }
        if (chooses)
            one_choose<SCORES>(route, live, launch, early, tail);
        if (chooses && live && threadIdx.x == 0)
            *route.launch = launch;
        if (ROUTE && next && first == 0)
            one_list<SCORES>(route, which, live, launch, missing[lane], tail);
        if (!live)
            __syncthreads();
    }
}

#endif
