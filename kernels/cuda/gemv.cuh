/* gemv.cuh - linear layers for 2 to 8 tokens: as many bytes in flight as the memory wants, and little code.
 *
 * A block takes items of 16 weight rows. Their bytes are asked for before the block waits for the kernel ahead of it (overlap.cuh), so
 * that in a decode step the memory works while small kernels run. A warp owns 256 columns: it keeps its share of x in registers, already
 * split, and leaves the fresh products of its 8 blocks of 32 in shared memory; a thread for each result then adds them in
 * ascending order of K. That is the arithmetic of frag.cuh, so the bits are those of the other kernels.
 * The RMS norm before a product is made here too, by every block for itself: cheaper than a kernel of its own. Its order of additions is
 * that of rms_group() for all kernels.
 * Straight-line code that runs once comes from device memory at little more than a line of 128 bytes in 50 ns: hence small loops. */
#ifndef KERNELS_CUDA_GEMV_CUH
#define KERNELS_CUDA_GEMV_CUH

#include "kernels/cuda/ahead.cuh"
#include "kernels/cuda/choose.cuh"
#include "kernels/cuda/cuda_priv.h"
#include "kernels/cuda/frag.cuh"
#include "kernels/cuda/load.cuh"
#include "kernels/cuda/mm.cuh"
#include "kernels/cuda/overlap.cuh"
#include "kernels/cuda/reduce.cuh"

#define GEMV_TOKENS    8
#define GEMV_BLOCKS    8 /* of 32 columns, a warp */
#define GEMV_MAX_WARPS 16
#define GEMV_MAX_COLS  (GEMV_MAX_WARPS * GEMV_BLOCKS * 32)
#define GEMV_PITCH     20 /* floats between tokens in the products: the writers' four tokens use different banks */

struct gemv_shape {
    uint32_t warps, grid, smem;
    uint32_t pitch;        /* bytes between rows of a stage */
    uint32_t stages, bufs; /* of weights; of products */
};

/* Rows so far apart that the four lanes of each of the eight rows spread over the banks. A lane reads 8 bytes at once of Q4_K and Q5_K; words,
 * two of which are the other half's of the quad, of the other small formats; of Q6_K words as well, at best two to a bank. */
static inline uint32_t gemv_pitch(int fmt, uint64_t row_bytes)
{
    const uint32_t want = fmt == FMT_Q8_0 || fmt == FMT_Q4_K || fmt == FMT_Q5_K ? 32
                          : fmt == FMT_F16 || fmt == FMT_BF16                   ? 64
                                                                                : 16;
    const uint32_t odd = (uint32_t)row_bytes % 16, bytes = (uint32_t)row_bytes + (odd ? 32 - odd : 0);
    return bytes + (want + 128 - bytes % 128) % 128;
}

/* What this kernel and that of gemv_one.cuh can do. */
static inline bool gemv_can(const mm_params &p)
{
    /* Rows of small formats keep their place in 16 bytes; but pairs of blocks of 32 begin at whole words (see pair_load()). */
    const bool rows_fit = p.fmt <= FMT_Q8_0                         ? p.row_bytes % 16 == 0
                          : p.fmt >= FMT_Q6_K || p.fmt == FMT_MXFP4 ? p.cols % 64 == 0
                                                                    : p.cols % 64 == 0 && p.row_bytes % 4 == 0;
    return p.mode == MM_LINEAR && p.n_tokens <= GEMV_TOKENS && p.cols <= GEMV_MAX_COLS && p.cols % 32 == 0 &&
           rows_fit && (uintptr_t)p.w % 16 == 0 && (!p.normed || (uintptr_t)p.normed % 16 == 0);
}

/* False where the product belongs to another kernel. tail_bytes: shared memory for what follows the product. */
static inline bool gemv_fits(const mm_params &p, uint32_t tail_bytes, int smem_max, int n_sm, gemv_shape *ret)
{
    if (!gemv_can(p))
        return false;
    gemv_shape s = {};
    const uint32_t blocks = p.cols / 32, items = (p.rows + 15) / 16;
    s.warps = (blocks + GEMV_BLOCKS - 1) / GEMV_BLOCKS;
    s.warps = s.warps < 4 ? 4 : s.warps; /* a thread for each result of an item */
    s.pitch = gemv_pitch((int)p.fmt, p.row_bytes);
    s.bufs = p.n_tokens <= 2 ? 2 : 1;
    /* 128 registers a thread */
    const uint32_t a_sm = GEMV_MAX_WARPS / s.warps < 4 ? GEMV_MAX_WARPS / s.warps : 4;
    const uint32_t fixed = s.bufs * blocks * (p.n_tokens * GEMV_PITCH + 16) * 4 + (p.norm ? p.cols * 4 : 0) +
                           GEMV_TOKENS * GEMV_MAX_WARPS * 4 + tail_bytes;
    for (uint32_t share = a_sm; share > 0; share--) {
        s.grid = items < share * (uint32_t)n_sm ? items : share * (uint32_t)n_sm;
        const uint32_t room = ((uint32_t)smem_max - (share - 1) * 1024) / share, stage = 16 * s.pitch;
        if (room < fixed + stage)
            continue;
        const uint32_t most = (items + s.grid - 1) / s.grid;
        s.stages = (room - fixed) / stage;
        s.stages = s.stages > most ? most : s.stages;
        s.stages = s.stages > 3 ? 3 : s.stages;
        s.smem = fixed + s.stages * stage;
        *ret = s;
        return true;
    }
    return false;
}

/* What a block does after its product when it is the last one: the router's choice and the plan. */
struct gemv_route {
    kern_router_args pick;
    kern_plan_args plan;
    uint32_t *ticket; /* blocks that are done; zero between launches */
    uint64_t *logits; /* gemv_one.cuh: [MM_MAX_EXPERTS] a logit below the number of the launch that made it */
    uint32_t *launch; /* that number, of the last launch */
    bool with_plan;
    ahead_route ahead; /* for gemv_one.cuh */
    const float
        *next_bias[AHEAD_LAYERS]; /* kern_router_args.bias of those layers' routers, which score as `pick` does */
};

/* Shared memory that gemv_choose() takes, or gemv_one.cuh for the same: where the router is not plain, logits and scores. */
static inline uint32_t gemv_choose_bytes(const kern_router_args &a)
{
    const uint32_t lists = kern_router_is_plain(&a) ? 1 : 2;
    return (a.n_tokens * (lists * (a.n_experts + 3) + a.top_k) + PLAN_FEW + SCAN_WORDS) * sizeof(uint32_t);
}

/* What the plan needs and is there before the choice. */
struct gemv_early {
    uint32_t pairs, missing; /* before the kernels ahead are waited for */
    uint32_t used;           /* after that */
};

static __device__ __forceinline__ gemv_early gemv_look_early(const gemv_route &r)
{
    gemv_early e = {};
    if (r.with_plan) {
        e.pairs = plan_pairs(r.plan);
        e.missing = plan_missing(r.plan, 0);
    }
    return e;
}

/* The plan, by all threads of the block, behind a barrier. ids: the experts of all pairs, in shared memory, and PLAN_FEW words on the
 * memory of plan_few(). */
static __device__ __forceinline__ void gemv_plan(const gemv_route &r, bool live, const gemv_early &early, uint32_t *ids)
{
    ahead_end end = {};
    if (r.ahead.own)
        end = ahead_close(r.ahead, live);
    plan_few(r.plan, ids, early.pairs, early.used, early.missing, live, ids + PLAN_FEW);
    if (r.ahead.own && threadIdx.x < 32)
        ahead_settle(r.ahead, live, end, ids, early.pairs);
}

/* The choice of all tokens' experts and the plan, by one block. keys(token, its keys) is called by a warp. Stores to device memory only
 * where it is `live`. */
template <typename K>
static __device__ __forceinline__ void gemv_choose(const gemv_route &r, uint32_t n, bool live, const gemv_early &early,
                                                   uint32_t *s, K keys)
{
    const uint32_t words = r.pick.n_experts + r.pick.top_k;
    uint32_t *ids = s + n * words;
    for (uint32_t k = threadIdx.x / 32; k < n; k += blockDim.x / 32) {
        keys(k, s + k * words);
        pick_experts(r.pick, k, live, s + k * words, ids + k * r.pick.top_k);
    }
    if (!r.with_plan)
        return;
    if (r.plan.ids != r.pick.ids) { /* other experts than the router's */
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < early.pairs; i += blockDim.x)
            ids[i] = r.plan.ids[i];
    }
    __syncthreads();
    gemv_plan(r, live, early, ids);
}

/* After a block's last store of a product: true in the block that comes last of n. Every thread calls it. */
static __device__ __forceinline__ bool gemv_is_last(uint32_t *ticket, uint32_t n)
{
    __shared__ bool last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        last = atomicAdd(ticket, 1u) == n - 1;
        if (last)
            *ticket = 0;
    }
    __syncthreads();
    __threadfence();
    return last;
}

/* One row's share of lane t of block i of the warp's 8: the warp's columns begin at a multiple of 256, so at a multiple of 16 bytes. */
template <int FMT>
static __device__ __forceinline__ void gemv_row(const unsigned char *row, int i, uint32_t t,
                                                uint32_t (&r)[a_frag<FMT>::PARTS][4], float *d)
{
    if constexpr (FMT == FMT_Q8_0) {
        /* Two blocks are 17 words; the first one's bytes begin in the middle of a word. */
        const uint32_t *w = reinterpret_cast<const uint32_t *>(row) + i / 2 * 17;
        uint32_t q[2];
        uint16_t scale;
        if (i % 2 == 0) {
            const uint32_t a = w[2 * t], b = w[2 * t + 1], c = w[2 * t + 2];
            q[0] = __funnelshift_r(a, b, 16);
            q[1] = __funnelshift_r(b, c, 16);
            scale = (uint16_t)w[0];
        } else {
            q[0] = w[9 + 2 * t];
            q[1] = w[10 + 2 * t];
            scale = (uint16_t)(w[8] >> 16);
        }
        *d = int8_scale(scale);
#pragma unroll
        for (int k = 0; k < 2; k++) {
            r[0][2 * k] = int8_pair(q[k], 0x4140);
            r[0][2 * k + 1] = int8_pair(q[k], 0x4342);
        }
    } else if constexpr (FMT == FMT_BF16) {
        const uint4 v = *reinterpret_cast<const uint4 *>(row + i * 64 + t * 16);
        r[0][0] = v.x, r[0][1] = v.y, r[0][2] = v.z, r[0][3] = v.w;
    } else {
        load_a_row<FMT>(row + (uint32_t)i * fmt_block<FMT>::BYTES, t, r, d);
    }
}

/* Formats whose blocks' products are finished are multiplied two blocks at a time: the two share bytes in super-blocks, and elsewhere begin at
 * a whole word (but of MXFP4). Block i of a pair: */
template <int FMT> static constexpr __device__ __forceinline__ uint32_t pair_block(uint32_t pair, uint32_t i)
{
    return FMT == FMT_Q6_K ? pair / 2 * 4 + pair % 2 + 2 * i : 2 * pair + i;
}

/* Where row r of an item begins in its part of the stage: at the place in 16 bytes that it has in memory. */
static __device__ __forceinline__ uint32_t pair_row_at(const mm_params &p, uint32_t r)
{
    return r * (uint32_t)p.row_bytes & 15;
}

template <int FMT>
static __device__ __forceinline__ void pair_load(const unsigned char *row, uint32_t pair, int i, uint32_t t,
                                                 uint32_t (&r)[a_frag<FMT>::PARTS][4], float *d, fmt_min *m)
{
    constexpr uint32_t PAIRS = fmt_block<FMT>::GRAIN / 2; /* of a super-block */
    if constexpr (PAIRS > 0) {
        load_a_block<FMT>(row + pair / PAIRS * fmt_block<FMT>::SUPER, pair_block<FMT>(pair % PAIRS, i), t, r, d, m);
    } else {
        const uint32_t from = i * fmt_block<FMT>::BYTES;
        load_lane<FMT>(row + pair * 2 * fmt_block<FMT>::BYTES + from, t, r[0], d, m, from);
    }
}

/* Fresh products of rows that begin at r0 and r1 in shared memory. */
template <int FMT>
static __device__ __forceinline__ void pair_product(float (&c)[4], const unsigned char *r0, const unsigned char *r1,
                                                    uint32_t pair, int i, const b_frag &b)
{
    const uint32_t t = threadIdx.x % 4;
    a_frag<FMT> a;
    pair_load<FMT>(r0, pair, i, t, a.r0, &a.d0, &a.m0);
    pair_load<FMT>(r1, pair, i, t, a.r1, &a.d1, &a.m1);
    block_product<FMT>(c, a, b);
}

/* The 16 rows of an item into a stage; every thread of the block. */
template <bool KEEP_PLACE>
static __device__ __noinline__ void gemv_fetch(const mm_params &p, uint32_t item, uint32_t stage, uint32_t pitch,
                                               uint64_t policy)
{
    const uint32_t n_warps = blockDim.x / 32, valid = min(16u, p.rows - item * 16), units = (uint32_t)p.row_bytes / 16;
    const unsigned char *src = p.w + (size_t)item * 16 * p.row_bytes;
    for (uint32_t r = threadIdx.x / 32; r < valid; r += n_warps) {
        const uint32_t before = KEEP_PLACE ? pair_row_at(p, r) : 0;
        const uint32_t n = KEEP_PLACE ? (before + (uint32_t)p.row_bytes + 15) / 16 : units;
#pragma unroll 1
        for (uint32_t u = threadIdx.x % 32; u < n; u += 32)
            cp_async16_once(stage + r * pitch + u * 16, src + r * p.row_bytes - before + u * 16, policy);
    }
}

static __device__ __forceinline__ void gemv_wait(uint32_t stages)
{
    if (stages == 1)
        cp_wait<0>();
    else if (stages == 2)
        cp_wait<1>();
    else
        cp_wait<2>();
}

/* The warp's 8 blocks of an item; b in the order of pairs. Unpacking small formats takes many instructions, which are cold in every layer:
 * so it is a loop, in which the operands move up, not 8 times the same. */
template <int FMT>
static __device__ __forceinline__ void gemv_pairs(const unsigned char *r0, const unsigned char *r1,
                                                  b_frag (&b)[GEMV_BLOCKS], uint32_t block0, uint32_t blocks,
                                                  uint32_t n, float *c)
{
    const uint32_t g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll 1
    for (uint32_t pair = 0; pair < GEMV_BLOCKS / 2; pair++) {
        if (block0 + 2 * pair < blocks) {
            float out[2][4];
#pragma unroll
            for (int i = 0; i < 2; i++)
                pair_product<FMT>(out[i], r0, r1, pair, i, b[i]);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float *to = c + ((block0 + pair_block<FMT>(pair, i)) * n + 2 * t) * GEMV_PITCH + g;
#pragma unroll
                for (uint32_t k = 0; k < 2; k++)
                    if (2 * t + k < n) {
                        to[k * GEMV_PITCH] = out[i][k];
                        to[k * GEMV_PITCH + 8] = out[i][2 + k];
                    }
            }
        }
        const b_frag first[2] = {b[0], b[1]};
#pragma unroll
        for (int i = 0; i < GEMV_BLOCKS - 2; i++)
            b[i] = b[i + 2];
        b[GEMV_BLOCKS - 2] = first[0];
        b[GEMV_BLOCKS - 1] = first[1];
    }
}

template <int FMT, bool ROUTE>
__global__ void __launch_bounds__(GEMV_MAX_WARPS * 32, 1)
    gemv_kernel(const __grid_constant__ mm_params p, const __grid_constant__ gemv_shape s,
                const __grid_constant__ gemv_route route)
{
    constexpr bool SMALL = fmt_block<FMT>::FINISHED;
    extern __shared__ __align__(128) unsigned char smem[];
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, n = p.n_tokens;
    const uint32_t items = (p.rows + 15) / 16, blocks = p.cols / 32, block0 = warp * GEMV_BLOCKS;
    unsigned char *ring = smem;
    float *norm = reinterpret_cast<float *>(ring + s.stages * 16 * s.pitch); /* [cols] where there is a norm */
    float *part = norm + (p.norm ? p.cols : 0);                              /* [token][warp] sums of squares */
    if (threadIdx.x < GEMV_TOKENS * GEMV_MAX_WARPS && threadIdx.x % GEMV_MAX_WARPS >= blockDim.x / 32)
        part[threadIdx.x] = 0;
    float *sums = part + GEMV_TOKENS * GEMV_MAX_WARPS; /* [buf]{[block][token] rows, [block][16] scales} */
    const uint32_t buf_floats = blocks * (n * GEMV_PITCH + 16);

    overlap_allow();
    /* Weights of the model, which no kernel writes. */
    const uint64_t policy = once_policy();
    if (p.norm)
        for (uint32_t i = threadIdx.x; i < p.cols / 4; i += blockDim.x)
            cp_async16(smem_of(norm + 4 * i), (uint64_t)(uintptr_t)(p.norm + 4 * i));
    for (uint32_t k = 0; k < s.stages; k++) {
        const uint32_t item = blockIdx.x + k * gridDim.x;
        if (item < items)
            gemv_fetch<SMALL>(p, item, smem_of(ring) + k * 16 * s.pitch, s.pitch, policy);
        cp_commit();
    }
    gemv_early early = {};
    if constexpr (ROUTE)
        early = gemv_look_early(route);
    overlap_begin(p.mark);
    if (ROUTE && route.with_plan)
        early.used = plan_used(route.plan);

    b_frag b[GEMV_BLOCKS];
    {
        const bool on = g < n;
        const uint32_t x_row = on && p.row_idx ? p.row_idx[g] : g;
        const float *x = p.x + (on ? (size_t)x_row * p.x_stride : 0) + block0 * 32 + 8 * t;
        float4 v[GEMV_BLOCKS][2];
#pragma unroll
        for (int i = 0; i < GEMV_BLOCKS; i++) {
            const bool in = on && block0 + i < blocks;
            v[i][0] = load_floats(x + 32 * i, in);
            v[i][1] = load_floats(x + 32 * i + 4, in);
        }
        if (p.norm) {
            float q[GEMV_BLOCKS];
#pragma unroll
            for (int i = 0; i < GEMV_BLOCKS; i++)
                q[i] = rms_octet(v[i][0], v[i][1]);
            const float sum = quad_sum(((q[0] + q[1]) + (q[2] + q[3])) + ((q[4] + q[5]) + (q[6] + q[7])));
            if (t == 0)
                part[g * GEMV_MAX_WARPS + warp] = sum;
            gemv_wait(s.stages); /* the norm's weights are of the first group */
            __syncthreads();
            const float r = rms_factor(part + g * GEMV_MAX_WARPS, p.cols, p.eps);
            float *normed = p.normed + (size_t)g * p.cols + block0 * 32 + 8 * t;
#pragma unroll
            for (int i = 0; i < GEMV_BLOCKS; i++) {
                if (block0 + i >= blocks)
                    break;
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    const float4 w = *reinterpret_cast<const float4 *>(norm + (block0 + i) * 32 + 8 * t + 4 * h);
                    float4 &u = v[i][h];
                    u = make_float4(u.x * r * w.x, u.y * r * w.y, u.z * r * w.z, u.w * r * w.w);
                    if (blockIdx.x == 0 && on)
                        *reinterpret_cast<float4 *>(normed + 32 * i + 4 * h) = u;
                }
            }
        }
#pragma unroll
        for (int i = 0; i < GEMV_BLOCKS; i++) {
            const int j = SMALL ? (int)pair_block<FMT>(i / 2, i % 2) : i;
            b[i] = split_x(v[j][0], v[j][1]);
        }
    }

    uint32_t k = 0;
    for (uint32_t item = blockIdx.x; item < items; item += gridDim.x, k++) {
        const uint32_t slot = k % s.stages;
        const uint32_t row = threadIdx.x % 16, tok = threadIdx.x / 16; /* of the result this thread adds up */
        const bool adds = tok < n && item * 16 + row < p.rows;
        float *y = p.y + (size_t)tok * p.y_stride + item * 16 + row;
        const float before = adds && p.accumulate ? *y : 0.0f, bias = adds && p.bias ? p.bias[item * 16 + row] : 0.0f;
        float *c = sums + (s.bufs == 2 ? k & 1 : 0) * buf_floats, *d = c + blocks * n * GEMV_PITCH;
        gemv_wait(s.stages);
        __syncthreads(); /* the stage is there; where there is one buffer of products, it has been read */
        const unsigned char *r0 =
            ring + slot * 16 * s.pitch + g * s.pitch + (SMALL ? pair_row_at(p, g) : 0) + fmt_bytes<FMT>(block0);
        const unsigned char *r1 = r0 + 8 * s.pitch;
        if constexpr (SMALL) {
            gemv_pairs<FMT>(r0, r1, b, block0, blocks, n, c);
        } else {
#pragma unroll
            for (int i = 0; i < GEMV_BLOCKS; i++) {
                const uint32_t block = block0 + i;
                if (block >= blocks)
                    break;
                a_frag<FMT> a;
                gemv_row<FMT>(r0, i, t, a.r0, &a.d0);
                gemv_row<FMT>(r1, i, t, a.r1, &a.d1);
                float out[4];
                block_product<FMT>(out, a, b[i]);
                float *to = c + (block * n + 2 * t) * GEMV_PITCH + g;
                if (2 * t < n) {
                    to[0] = out[0];
                    to[8] = out[2];
                }
                if (2 * t + 1 < n) {
                    to[GEMV_PITCH] = out[1];
                    to[GEMV_PITCH + 8] = out[3];
                }
                if (FMT == FMT_Q8_0 && t == 0) {
                    d[block * 16 + g] = a.d0;
                    d[block * 16 + 8 + g] = a.d1;
                }
            }
        }
        __syncthreads(); /* the products are there, the stage is free */
        const uint32_t ahead = item + s.stages * gridDim.x;
        if (ahead < items)
            gemv_fetch<SMALL>(p, ahead, smem_of(ring) + slot * 16 * s.pitch, s.pitch, policy);
        cp_commit();
        if (adds) {
            float acc = 0;
            const float *cs = c + tok * GEMV_PITCH + row, *ds = d + row;
#pragma unroll 8
            for (uint32_t j = 0; j < blocks; j++) {
                if (FMT == FMT_Q8_0)
                    acc = fmaf(ds[j * 16], cs[j * n * GEMV_PITCH], acc);
                else
                    acc += cs[j * n * GEMV_PITCH];
            }
            if (p.bias)
                acc += bias;
            if (p.accumulate)
                acc += before;
            *y = acc;
        }
    }

    if constexpr (ROUTE)
        if (gemv_is_last(route.ticket, gridDim.x))
            gemv_choose(route, n, true, early, reinterpret_cast<uint32_t *>(sums + s.bufs * buf_floats),
                        [&](uint32_t k, uint32_t *keys) { pick_keys(route.pick, k, keys); });
}

#endif
