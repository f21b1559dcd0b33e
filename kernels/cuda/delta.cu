/* delta.cu - Gated DeltaNet: convolution, delta rule and gated norm, between the products of a linear-attention layer.
 *
 * Tokens of one sequence follow one another, columns of S do not know each other. In general there are three kernels for every
 * DELTA_PIECE tokens: conv, parallel over tokens, makes q, k, v and gates; scan keeps S in registers, 32 columns of a head a block, and walks
 * through the tokens of a sequence; norm ends them. A step in which every sequence has one token is a single kernel, a block a head:
 * it reads and writes S in whole lines, and all else fits beside that.
 *
 * By channels (Kimi Delta Attention) conv leaves the decays of a head behind its q and k, and the general kernels do all.
 *
 * Bits: all kernels share the functions of the first part, and one order of additions over the rows of S. Row r belongs to octant
 * r / 4 % 8; the rows of an octant are added in ascending order, those of the first and of the second half of all blocks of 32 apart;
 * then half to half, octant to octant as a tree (sum_of_parts). S itself is only multiplied and added to. So a chunk, its tokens one
 * by one, and a piece's border give the same bits. */
#include "kernels/cuda/conv.cuh"
#include "kernels/cuda/cuda_priv.h"
#include "kernels/cuda/frag.cuh"
#include "kernels/cuda/load.cuh"
#include "kernels/cuda/overlap.cuh"
#include "kernels/cuda/reduce.cuh"

/* Tokens between two scans: what they take of scratch is 68 MB where q, k and v have 8192 channels. */
#define DELTA_PIECE 2048
#define DELTA_MAX   256 /* columns of a head */

/* kern_delta_channels() of kernels.h, which is the host's. */
static __host__ __device__ __forceinline__ uint32_t channels_of(const kern_delta_geom &g)
{
    return 2 * g.n_k_heads * g.k_dim + g.n_v_heads * g.v_dim;
}

/* kern_delta_k_head() */
static __device__ __forceinline__ uint32_t k_head_of(const kern_delta_geom &g, uint32_t v_head)
{
    return g.tiled ? v_head % g.n_k_heads : v_head / (g.n_v_heads / g.n_k_heads);
}

/* --- what a token needs of itself ------------------------------------------------------------------------------------- */

/* Where a head lies, among those of q, k and v. */
struct delta_head {
    uint32_t first, dim; /* channel */
    bool is_q, is_v;
};

static __device__ __forceinline__ delta_head head_of(const kern_delta_geom &g, uint32_t i)
{
    const uint32_t n_qk = 2 * g.n_k_heads;
    if (i < n_qk)
        return {i * g.k_dim, g.k_dim, i < g.n_k_heads, false};
    return {n_qk * g.k_dim + (i - n_qk) * g.v_dim, g.v_dim, false, true};
}

static __device__ __forceinline__ float conv_input(const kern_delta_args &a, uint32_t t, uint32_t channel)
{
    return a.x[(size_t)t * a.x_stride + channel];
}

static __device__ __forceinline__ float conv_silu(const kern_delta_args &a, const conv_taps &c, float x)
{
    return swiglu(conv_sum(a, c, x), 1.0f);
}

/* A head's values lie in a warp: lane + 32 i in register i, zeros behind the last one. */
template <int NB> static __device__ __forceinline__ void load_head(const float *from, uint32_t dim, float (&x)[NB])
{
#pragma unroll
    for (int i = 0; i < NB; i++) {
        const uint32_t c = threadIdx.x % 32 + 32 * i;
        x[i] = c < dim ? from[c] : 0.0f;
    }
}

template <int NB> static __device__ __forceinline__ float squares_of(const float (&x)[NB])
{
    float sum = 0;
#pragma unroll
    for (int i = 0; i < NB; i++)
        sum = __fmaf_rn(x[i], x[i], sum);
    return warp_sum(sum);
}

/* Brings q or k to length 1, q to 1 / sqrt(k_dim). */
template <int NB> static __device__ __forceinline__ void unit_head(const delta_head &h, float (&x)[NB])
{
    float by = 1.0f / sqrtf(squares_of<NB>(x) + 1e-6f);
    if (h.is_q)
        by /= sqrtf((float)h.dim);
#pragma unroll
    for (int i = 0; i < NB; i++)
        x[i] *= by;
}

static __device__ __forceinline__ float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

/* What remains of S, or of a row of it: number i of a and dt_bias. */
static __device__ __forceinline__ float decay_of(const kern_delta_args &a, const float *b, uint32_t head, uint32_t i)
{
    const float dt = b[a.geom.n_v_heads + i] + a.dt_bias[i];
    const float softplus = dt > 20.0f ? dt : log1pf(expf(dt)); /* beyond 20 both are the same float */
    return expf(__fmul_rn(a.neg_exp_a[head], softplus));
}

static __device__ __forceinline__ const float *b_of(const kern_delta_args &a, const float *x_row)
{
    return x_row + channels_of(a.geom) + a.geom.n_v_heads * a.geom.v_dim;
}

/* What remains of S (by channels: 1, since its rows differ), and beta. */
template <bool BY_CHANNEL>
static __device__ __forceinline__ float2 gates_of(const kern_delta_args &a, const float *x_row, uint32_t head)
{
    const float *b = b_of(a, x_row);
    return make_float2(BY_CHANNEL ? 1.0f : decay_of(a, b, head, head), sigmoid(b[head]));
}

/* rmsnorm(o) * norm * silu(z), or sigmoid(z), by a warp. */
template <int NB, bool BY_CHANNEL>
static __device__ __forceinline__ void norm_head(const kern_delta_args &a, uint32_t t, uint32_t head,
                                                 const float (&o)[NB])
{
    const uint32_t vd = a.geom.v_dim, lane = threadIdx.x % 32;
    const float *z = a.x + (size_t)t * a.x_stride + channels_of(a.geom) + (size_t)head * vd;
    const float r = 1.0f / sqrtf(squares_of<NB>(o) / (float)vd + a.norm_eps);
#pragma unroll
    for (int i = 0; i < NB; i++) {
        const uint32_t c = lane + 32 * i;
        if (c < vd)
            a.y[((size_t)t * a.geom.n_v_heads + head) * vd + c] =
                BY_CHANNEL ? o[i] * r * a.norm[c] * sigmoid(z[c]) : swiglu(z[c], o[i] * r * a.norm[c]);
    }
}

/* --- the recurrence of one element ------------------------------------------------------------------------------------- */

/* What is added to S, over k: beta (v - exp(g) S^T k). */
static __device__ __forceinline__ float delta_of(float2 gates, float v, float kv)
{
    return __fmul_rn(gates.y, __fmaf_rn(-gates.x, kv, v));
}

static __device__ __forceinline__ float next_s(float s, float decay, float k, float d)
{
    return __fmaf_rn(k, d, __fmul_rn(decay, s));
}

/* Lane l has octant l % 8. */
static __device__ __forceinline__ float sum_of_octants(float v)
{
    v += __shfl_xor_sync(~0u, v, 1);
    v += __shfl_xor_sync(~0u, v, 2);
    return v + __shfl_xor_sync(~0u, v, 4);
}

/* --- conv ---------------------------------------------------------------------------------------------------------------- */

/* What conv leaves for scan, of each token of a piece: for each key head q, then k, and by channels its decays; for each value head v, then
 * its gates. */
struct delta_scratch {
    float *qk, *v;
};

static __host__ __device__ __forceinline__ uint32_t qk_stride(const kern_delta_geom &g)
{
    return g.n_k_heads * (g.by_channel ? 3 : 2) * g.k_dim;
}

static __host__ __device__ __forceinline__ uint32_t v_stride(const kern_delta_geom &g)
{
    return g.n_v_heads * (g.v_dim + 4);
}

#define CONV_WARPS  4
#define CONV_TOKENS 8 /* of a warp, one after another: each input is fetched once, and three of them again */

template <int NB, bool BY_CHANNEL>
__global__ void __launch_bounds__(CONV_WARPS * 32)
    delta_conv_kernel(const __grid_constant__ kern_delta_args a, uint32_t first, uint32_t n, delta_scratch out,
                      uint64_t *mark)
{
    const uint32_t i_head = blockIdx.y * CONV_WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint32_t n_heads = 2 * a.geom.n_k_heads + a.geom.n_v_heads;
    const uint32_t begin = first + blockIdx.x * CONV_TOKENS, end = min(begin + CONV_TOKENS, first + n);
    constexpr uint32_t PARTS = BY_CHANNEL ? 3 : 2; /* of a key head */
    const delta_head h = head_of(a.geom, i_head);
    conv_taps taps[NB];
#pragma unroll
    for (int i = 0; i < NB; i++)
        if (i_head < n_heads && lane + 32 * i < h.dim)
            load_weights(a, h.first + lane + 32 * i, taps[i]);
    overlap_begin(mark);
    if (i_head > n_heads + (BY_CHANNEL ? a.geom.n_k_heads : 0))
        return;
    for (uint32_t t = begin; t < end; t++) {
        const uint32_t seq = a.token_seq[t];
        if (seq == UINT32_MAX)
            continue;
        const float *row = a.x + (size_t)t * a.x_stride;
        float *v_row = out.v + (size_t)(t - first) * v_stride(a.geom);
        if (i_head == n_heads) { /* a warp behind the heads' */
            for (uint32_t head = lane; head < a.geom.n_v_heads; head += 32)
                *reinterpret_cast<float2 *>(v_row + head * (a.geom.v_dim + 4) + a.geom.v_dim) =
                    gates_of<BY_CHANNEL>(a, row, head);
            continue;
        }
        if (BY_CHANNEL && i_head > n_heads) { /* and one for the decays of each */
            const uint32_t head = i_head - n_heads - 1, kd = a.geom.k_dim;
            float *to = out.qk + (size_t)(t - first) * qk_stride(a.geom) + (PARTS * head + 2) * kd;
            for (uint32_t c = lane; c < kd; c += 32)
                to[c] = decay_of(a, b_of(a, row), head, head * kd + c);
            continue;
        }
        const bool anew = t == begin || !a.run_start || a.token_seq[t - 1] != seq;
        const uint32_t before = anew ? tokens_before(a, t, seq) : 0;
        float y[NB];
#pragma unroll
        for (int i = 0; i < NB; i++) {
            const uint32_t c = lane + 32 * i;
            y[i] = 0;
            if (c >= h.dim)
                continue;
            if (anew)
                load_past(a, state_of(a, seq), t, a.token_pos[t], before, h.first + c, taps[i]);
            const float x = row[h.first + c];
            y[i] = conv_silu(a, taps[i], x);
            next_token(taps[i], x);
        }
        if (!h.is_v)
            unit_head<NB>(h, y);
        const uint32_t kh = h.is_q ? i_head : i_head - a.geom.n_k_heads;
        float *to = h.is_v ? v_row + (i_head - 2 * a.geom.n_k_heads) * (a.geom.v_dim + 4)
                           : out.qk + (size_t)(t - first) * qk_stride(a.geom) + (PARTS * kh + !h.is_q) * a.geom.k_dim;
#pragma unroll
        for (int i = 0; i < NB; i++)
            if (lane + 32 * i < h.dim)
                to[lane + 32 * i] = y[i];
    }
}

/* --- scan ---------------------------------------------------------------------------------------------------------------- */

#define SCAN_WARPS  4
#define SCAN_COLS   (SCAN_WARPS * 8) /* a lane has two columns of an octant */
#define SCAN_STAGES 3

/* Rings of tokens: one stage is read, the next one is there or on its way, the third is asked for. */
template <int NB, bool BY_CHANNEL> struct scan_smem {
    static constexpr int TOKENS = NB > 4 ? 4 : 8; /* of a stage */
    struct {
        float q[32 * NB], k[32 * NB], decay[BY_CHANNEL ? 32 * NB : 4], v[SCAN_COLS],
            gates[4]; /* gates right behind v */
    } token[SCAN_STAGES * TOKENS];
};

/* Rows of a lane that are multiplied by what remains of them. */
template <int NB, bool BY_CHANNEL>
static __device__ __forceinline__ void decay_rows(float4 (&x)[NB], const float4 (&by)[NB])
{
#pragma unroll
    for (int i = 0; BY_CHANNEL && i < NB; i++)
        x[i] = make_float4(__fmul_rn(x[i].x, by[i].x), __fmul_rn(x[i].y, by[i].y), __fmul_rn(x[i].z, by[i].z),
                           __fmul_rn(x[i].w, by[i].w));
}

/* One column of a lane: S += k d^T after its decay; then what the octant's rows give to o = S^T q, and to S^T k of the token that follows, whose
 * decays by channel k has by then. */
template <int NB, bool BY_CHANNEL>
static __device__ __forceinline__ void scan_column(float (&s)[NB][4], const float4 (&k)[NB], const float4 (&q)[NB],
                                                   const float4 (&next)[NB], const float4 (&decays)[NB], float decay,
                                                   float d, float &o, float &kv)
{
    float o_half[2] = {}, kv_half[2] = {};
#pragma unroll
    for (int i = 0; i < NB; i++) {
        const int half = i < (NB + 1) / 2 ? 0 : 1;
        const float x[4] = {k[i].x, k[i].y, k[i].z, k[i].w}, y[4] = {q[i].x, q[i].y, q[i].z, q[i].w},
                    z[4] = {next[i].x, next[i].y, next[i].z, next[i].w},
                    by[4] = {decays[i].x, decays[i].y, decays[i].z, decays[i].w};
#pragma unroll
        for (int e = 0; e < 4; e++) {
            s[i][e] = next_s(s[i][e], BY_CHANNEL ? by[e] : decay, x[e], d);
            o_half[half] = __fmaf_rn(s[i][e], y[e], o_half[half]);
            kv_half[half] = __fmaf_rn(s[i][e], z[e], kv_half[half]);
        }
    }
    o = o_half[0] + o_half[1];
    kv = kv_half[0] + kv_half[1];
}

/* S^T k of a column alone. */
template <int NB> static __device__ __forceinline__ float scan_first(const float (&s)[NB][4], const float4 (&k)[NB])
{
    float half[2] = {};
#pragma unroll
    for (int i = 0; i < NB; i++) {
        const float x[4] = {k[i].x, k[i].y, k[i].z, k[i].w};
#pragma unroll
        for (int e = 0; e < 4; e++)
            half[i < (NB + 1) / 2 ? 0 : 1] = __fmaf_rn(s[i][e], x[e], half[i < (NB + 1) / 2 ? 0 : 1]);
    }
    return half[0] + half[1];
}

template <int NB, bool BY_CHANNEL>
__global__ void __launch_bounds__(SCAN_WARPS * 32)
    delta_scan_kernel(const __grid_constant__ kern_delta_args a, uint32_t first, uint32_t n, delta_scratch in)
{
    constexpr int TOKENS = scan_smem<NB, BY_CHANNEL>::TOKENS, RING = SCAN_STAGES * TOKENS, PARTS = BY_CHANNEL ? 3 : 2;
    __shared__ __align__(16) scan_smem<NB, BY_CHANNEL> sm;
    const kern_delta_geom &g = a.geom;
    const uint32_t lane = threadIdx.x % 32, octant = lane % 8, head = blockIdx.y, kd = g.k_dim, vd = g.v_dim;
    const uint32_t col0 = blockIdx.x * SCAN_COLS, in_block = threadIdx.x / 32 * 8 + lane / 8 * 2, col = col0 + in_block;
    const bool on = col < vd;
    overlap_begin();

    /* The run's tokens in this piece; padding may lie behind them. */
    uint32_t begin = a.run_start ? a.run_start[blockIdx.z] : first + blockIdx.z;
    uint32_t end = a.run_start ? a.run_start[blockIdx.z + 1] : begin + 1;
    if (begin >= end)
        return;
    const uint32_t seq = a.token_seq[begin];
    while (end > begin && a.token_seq[end - 1] != seq)
        end--;
    const uint32_t run_first = begin, run_end = end;
    begin = max(begin, first);
    end = min(end, first + n);
    if (seq == UINT32_MAX || begin >= end)
        return;
    const uint32_t count = end - begin;

    /* Columns of 32 blocks of rows that are not there are zero, here and in S. */
    for (uint32_t i = threadIdx.x; i < RING * (32 * NB - kd); i += blockDim.x) {
        auto &token = sm.token[i / (32 * NB - kd)];
        token.q[kd + i % (32 * NB - kd)] = token.k[kd + i % (32 * NB - kd)] = 0;
        if (BY_CHANNEL)
            token.decay[kd + i % (32 * NB - kd)] = 0;
    }
    /* A warp fetches a token: its q and k, then its columns of v and the gates, which lie side by side here. */
    const float *from_qk = in.qk + (size_t)(begin - first + threadIdx.x / 32) * qk_stride(g) +
                           (size_t)k_head_of(g, head) * PARTS * kd + lane * 4;
    const float *from_v = in.v + (size_t)(begin - first + threadIdx.x / 32) * v_stride(g) + (size_t)head * (vd + 4) +
                          (lane == SCAN_COLS / 4 ? vd : col0 + lane * 4);
    const bool fetches_v = lane == SCAN_COLS / 4 || (lane < SCAN_COLS / 4 && col0 + lane * 4 < vd);
    uint32_t fetched = threadIdx.x / 32, fetch_slot = fetched; /* this warp's next token, and its place */
    auto load_stage = [&] {
#pragma unroll
        for (int n = 0; n < TOKENS / SCAN_WARPS; n++) {
            if (fetched < count) {
                auto &to = sm.token[fetch_slot];
#pragma unroll
                for (uint32_t c = 0; c < 8 * NB; c += 32)
                    if (lane + c < 8 * NB && (lane + c) * 4 < kd) {
                        cp_async16(smem_of(to.q + (lane + c) * 4), (uint64_t)(uintptr_t)(from_qk + c * 4));
                        cp_async16(smem_of(to.k + (lane + c) * 4), (uint64_t)(uintptr_t)(from_qk + kd + c * 4));
                        if (BY_CHANNEL)
                            cp_async16(smem_of(to.decay + (lane + c) * 4),
                                       (uint64_t)(uintptr_t)(from_qk + 2 * kd + c * 4));
                    }
                if (fetches_v)
                    cp_async16(smem_of(to.v + lane * 4), (uint64_t)(uintptr_t)from_v);
            }
            fetched += SCAN_WARPS;
            fetch_slot = fetch_slot + SCAN_WARPS < RING ? fetch_slot + SCAN_WARPS : fetch_slot + SCAN_WARPS - RING;
            from_qk += SCAN_WARPS * qk_stride(g);
            from_v += SCAN_WARPS * v_stride(g);
        }
        cp_commit();
    };
    load_stage();
    load_stage();

    float *const state = state_of(a, seq), *const s0 = state + (size_t)(g.conv - 1) * channels_of(g) +
                                                       (size_t)head * kd * vd + col;
    const bool fresh = a.token_pos[begin] == 0;
    float s[2][NB][4]; /* of the two columns */
#pragma unroll
    for (int i = 0; i < NB; i++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const uint32_t row = 4 * (octant + 8 * i) + e;
            const float2 v =
                !fresh && on && row < kd ? *reinterpret_cast<const float2 *>(s0 + (size_t)row * vd) : make_float2(0, 0);
            s[0][i][e] = v.x;
            s[1][i][e] = v.y;
        }
    cp_wait<1>();
    __syncthreads();

    /* Sums cross the lanes of a column while the other one's rows are gone through: those of column 0 within a token, those of
     * column 1 in the next. */
    auto load_rows = [&](const float *from, float4(&to)[NB]) {
#pragma unroll
        for (int i = 0; i < NB; i++)
            to[i] = *reinterpret_cast<const float4 *>(from + 4 * (octant + 8 * i));
    };
    float4 k[NB], decays[NB] = {}, next_decays[NB] = {}, first_k[NB];
    load_rows(sm.token[0].k, k);
#pragma unroll
    for (int i = 0; i < NB; i++)
        first_k[i] = k[i];
    if (BY_CHANNEL)
        load_rows(sm.token[0].decay, decays);
    decay_rows<NB, BY_CHANNEL>(first_k, decays);
    float kv0 = sum_of_octants(scan_first<NB>(s[0], first_k)), kv1 = scan_first<NB>(s[1], first_k), o0 = 0, o1 = 0;
    float *out = a.y + ((size_t)begin * g.n_v_heads + head) * vd + col;
    const size_t out_stride = (size_t)g.n_v_heads * vd;
    uint32_t slot = 0;
#pragma unroll 1
    for (uint32_t u = 0; u < count; u++) {
        if ((u + 1) % TOKENS == 0 && u + 1 < count) {
            cp_wait<0>();
            __syncthreads(); /* the next stage is there, and nobody reads the one before this */
            load_stage();
        }
        const auto &token = sm.token[slot];
        slot = slot + 1 < RING ? slot + 1 : 0;
        float4 q[NB], next[NB], known[NB]; /* known: k of the next token as S before its decay sees it */
        load_rows(token.q, q);
        load_rows(sm.token[slot].k, next);
#pragma unroll
        for (int i = 0; i < NB; i++)
            known[i] = next[i];
        if (BY_CHANNEL)
            load_rows(sm.token[slot].decay, next_decays);
        decay_rows<NB, BY_CHANNEL>(known, next_decays);
        const float2 gates = *reinterpret_cast<const float2 *>(token.gates);
        const float2 v = *reinterpret_cast<const float2 *>(token.v + in_block);
        float o0_part, o1_part, kv0_part, kv1_part;
        scan_column<NB, BY_CHANNEL>(s[0], k, q, known, decays, gates.x, delta_of(gates, v.x, kv0), o0_part, kv0_part);
        kv1 = sum_of_octants(kv1);
        o1 = sum_of_octants(o1);
        if (u && octant == 0 && on)
            *reinterpret_cast<float2 *>(out - out_stride) = make_float2(o0, o1);
        out += out_stride;
        scan_column<NB, BY_CHANNEL>(s[1], k, q, known, decays, gates.x, delta_of(gates, v.y, kv1), o1_part, kv1_part);
        kv0 = sum_of_octants(kv0_part);
        o0 = sum_of_octants(o0_part);
        kv1 = kv1_part;
        o1 = o1_part;
#pragma unroll
        for (int i = 0; i < NB; i++) {
            k[i] = next[i];
            decays[i] = next_decays[i];
        }
    }
    o1 = sum_of_octants(o1);
    if (octant == 0 && on)
        *reinterpret_cast<float2 *>(out - out_stride) = make_float2(o0, o1);
#pragma unroll
    for (int i = 0; i < NB; i++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const uint32_t row = 4 * (octant + 8 * i) + e;
            if (on && row < kd)
                *reinterpret_cast<float2 *>(s0 + (size_t)row * vd) = make_float2(s[0][i][e], s[1][i][e]);
        }

    /* The last inputs of the convolution: conv of the run's first tokens, which read them, is done. Each channel is one thread's. */
    if (end < run_end)
        return;
    const uint32_t step = gridDim.x * gridDim.y * SCAN_WARPS * 32;
    for (uint32_t c = (blockIdx.y * gridDim.x + blockIdx.x) * SCAN_WARPS * 32 + threadIdx.x; c < channels_of(g);
         c += step)
        keep_inputs(a, state, run_first, run_end, c);
}

/* --- norm ---------------------------------------------------------------------------------------------------------------- */

/* y has o. A warp a head. */
template <int NB, bool BY_CHANNEL>
__global__ void __launch_bounds__(128) delta_norm_kernel(const __grid_constant__ kern_delta_args a, uint32_t first)
{
    const uint32_t t = first + blockIdx.x, head = blockIdx.y * 4 + threadIdx.x / 32, vd = a.geom.v_dim;
    overlap_begin();
    if (head >= a.geom.n_v_heads)
        return;
    float *y = a.y + ((size_t)t * a.geom.n_v_heads + head) * vd;
    if (a.token_seq[t] == UINT32_MAX) {
        for (uint32_t c = threadIdx.x % 32; c < vd; c += 32)
            y[c] = 0;
        return;
    }
    float o[NB];
    load_head<NB>(y, vd, o);
    norm_head<NB, BY_CHANNEL>(a, t, head, o);
}

/* --- one token of each sequence ------------------------------------------------------------------------------------------ */

/* A block a value head of 128 rows and columns. A warp has the rows of an octant and a half, a lane four columns. Beside the loads of S a
 * thread makes a channel of q, k or v. Blocks that share a key head all make its q and k; the last of them to have read the inputs
 * that the state keeps stores the new ones (tickets). */
#define STEP_DIM   128
#define STEP_PARTS 16

/* One column's sum, of what the parts are: part 8 half + octant. */
static __device__ __forceinline__ float sum_of_parts(const float (*part)[STEP_DIM], uint32_t col)
{
    float v[8];
#pragma unroll
    for (int i = 0; i < 8; i++)
        v[i] = part[i][col] + part[8 + i][col];
    return (v[0] + v[1] + (v[2] + v[3])) + (v[4] + v[5] + (v[6] + v[7]));
}

__global__ void __launch_bounds__(STEP_PARTS * 32, 2)
    delta_step_kernel(const __grid_constant__ kern_delta_args a, uint32_t *tickets, uint64_t *mark)
{
    constexpr int NB = STEP_DIM / 32;
    __shared__ __align__(16) float qkv[3][STEP_DIM], part[STEP_PARTS][STEP_DIM], col_values[STEP_DIM];
    __shared__ float2 gates;
    __shared__ bool last;
    const kern_delta_geom &g = a.geom;
    const uint32_t head = blockIdx.x, t = blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint32_t sharers = g.n_v_heads / g.n_k_heads, k_head = k_head_of(g, head), channels = channels_of(g);
    const uint32_t seq = a.token_seq[t];
    if (seq == UINT32_MAX) {
        overlap_begin(mark);
        if (threadIdx.x < STEP_DIM)
            a.y[((size_t)t * g.n_v_heads + head) * STEP_DIM + threadIdx.x] = 0;
        return;
    }
    float *const state = state_of(a, seq), *const s0 = state + (size_t)(g.conv - 1) * channels +
                                                       (size_t)head * STEP_DIM * STEP_DIM + lane * 4;
    const uint32_t pos = a.token_pos[t], octant = warp % 8, half = warp / 8;
    auto row_of = [&](int r) { return (size_t)(4 * (octant + 8 * (2 * half + r / 4)) + r % 4); };
    if (pos) /* a line of 128 bytes for each thread; S may still be written by the step before */
        fetch_ahead(s0 - lane * 4 + (size_t)threadIdx.x * 32);
    /* This thread's channel: of q, k or v; the last warps have none. */
    const uint32_t which = threadIdx.x / STEP_DIM, i = threadIdx.x % STEP_DIM;
    const delta_head h = head_of(g, which == 0 ? k_head : which == 1 ? g.n_k_heads + k_head : 2 * g.n_k_heads + head);
    conv_taps taps;
    if (which < 3)
        load_weights(a, h.first + i, taps);
    overlap_begin(mark);

    float4 s[8];
#pragma unroll
    for (int r = 0; r < 8; r++)
        s[r] = load_floats(s0 + row_of(r) * STEP_DIM, pos != 0);
    const float *row = a.x + (size_t)t * a.x_stride;
    float x = 0;
    if (which < 3) {
        load_past(a, state, t, pos, 0, h.first + i, taps);
        x = row[h.first + i];
        qkv[which][i] = conv_silu(a, taps, x);
    } else if (i == 0) {
        gates = gates_of<false>(a, row, head);
    }
    __syncthreads(); /* the block has read the inputs that the state keeps */
    if (warp < 2) {
        float y[NB];
        load_head<NB>(qkv[warp], STEP_DIM, y);
        unit_head<NB>(head_of(g, warp * g.n_k_heads), y);
#pragma unroll
        for (int b = 0; b < NB; b++)
            qkv[warp][lane + 32 * b] = y[b];
    } else if (threadIdx.x == 2 * 32) {
        /* No fence, which would wait for what others of this multiprocessor fetch: convolutions have used those inputs. */
        uint32_t *ticket = tickets + (size_t)t * g.n_k_heads + k_head;
        last = atomicAdd(ticket, 1u) == sharers - 1;
        if (last)
            *ticket = 0;
    }
    __syncthreads();
    if (which == 2 || (which < 2 && last))
        keep_inputs(a, state, taps, x, h.first + i);

    float4 sum = make_float4(0, 0, 0, 0);
    auto add = [&](float4 v, float x) {
        sum.x = __fmaf_rn(v.x, x, sum.x);
        sum.y = __fmaf_rn(v.y, x, sum.y);
        sum.z = __fmaf_rn(v.z, x, sum.z);
        sum.w = __fmaf_rn(v.w, x, sum.w);
    };
#pragma unroll
    for (int r = 0; r < 8; r++)
        add(s[r], qkv[1][row_of(r)]);
    *reinterpret_cast<float4 *>(&part[warp][lane * 4]) = sum;
    __syncthreads();
    if (threadIdx.x < STEP_DIM)
        col_values[threadIdx.x] = delta_of(gates, qkv[2][threadIdx.x], sum_of_parts(part, threadIdx.x));
    __syncthreads();
    const float4 d = *reinterpret_cast<const float4 *>(&col_values[lane * 4]);
    const float decay = gates.x;
    sum = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int r = 0; r < 8; r++) {
        const float k = qkv[1][row_of(r)];
        s[r] = make_float4(next_s(s[r].x, decay, k, d.x), next_s(s[r].y, decay, k, d.y), next_s(s[r].z, decay, k, d.z),
                           next_s(s[r].w, decay, k, d.w));
        add(s[r], qkv[0][row_of(r)]);
        *reinterpret_cast<float4 *>(s0 + row_of(r) * STEP_DIM) = s[r];
    }
    *reinterpret_cast<float4 *>(&part[warp][lane * 4]) = sum;
    __syncthreads();
    if (threadIdx.x < STEP_DIM)
        col_values[threadIdx.x] = sum_of_parts(part, threadIdx.x);
    __syncthreads();
    if (warp > 0)
        return;
    float o[NB];
    load_head<NB>(col_values, STEP_DIM, o);
    norm_head<NB, false>(a, t, head, o);
}

/* --- choice -------------------------------------------------------------------------------------------------------------- */

const char *cuda_delta_refuses(const kern_delta_geom *g)
{
    if (!g->n_k_heads || !g->n_v_heads || g->n_v_heads % g->n_k_heads || !g->conv || g->conv > KERN_MAX_CONV)
        return "linear attention with such a number of heads, or a convolution of more than 4 tokens";
    if (!g->k_dim || g->k_dim % 4 || g->k_dim > DELTA_MAX || !g->v_dim || g->v_dim % 4 || g->v_dim > DELTA_MAX)
        return "linear attention whose heads are no multiple of 4 columns, or more than 256";
    if (g->by_channel && (g->tiled || g->n_k_heads != g->n_v_heads))
        return "decay by channels with other value heads than key heads";
    return nullptr;
}

uint64_t cuda_delta_scratch_bytes(kern_dev *, uint32_t max_tokens, const kern_delta_geom *g)
{
    const uint64_t n = max_tokens < DELTA_PIECE ? max_tokens : DELTA_PIECE;
    return n * (qk_stride(*g) + v_stride(*g)) * sizeof(float);
}

template <int NB, bool BY_CHANNEL>
static void launch_scan(cuda_dev *d, const kern_delta_args *a, uint32_t first, uint32_t n, delta_scratch s)
{
    const uint32_t runs = a->run_start ? a->n_seqs : n;
    if (runs)
        (void)cuda_start(d, delta_scan_kernel<NB, BY_CHANNEL>,
                         dim3((a->geom.v_dim + SCAN_COLS - 1) / SCAN_COLS, a->geom.n_v_heads, runs), SCAN_WARPS * 32, 0,
                         *a, first, n, s);
}

/* Which of the kernels for 32, 64, 128 and 256 columns or channels. */
static int row_for(uint32_t dim)
{
    return dim <= 32 ? 0 : dim <= 64 ? 1 : dim <= 128 ? 2 : 3;
}

template <bool BY> static void launch_piece(cuda_dev *d, const kern_delta_args *a, uint32_t first, uint32_t n)
{
    static void (*const convs[])(kern_delta_args, uint32_t, uint32_t, delta_scratch, uint64_t *) = {
        delta_conv_kernel<1, BY>, delta_conv_kernel<2, BY>, delta_conv_kernel<4, BY>, delta_conv_kernel<8, BY>};
    static void (*const norms[])(kern_delta_args, uint32_t) = {delta_norm_kernel<1, BY>, delta_norm_kernel<2, BY>,
                                                               delta_norm_kernel<4, BY>, delta_norm_kernel<8, BY>};
    const kern_delta_geom &g = a->geom;
    const delta_scratch s = {static_cast<float *>(a->scratch),
                             static_cast<float *>(a->scratch) + (size_t)n * qk_stride(g)};
    const uint32_t heads =
        2 * g.n_k_heads + g.n_v_heads + 1 + (BY ? g.n_k_heads : 0); /* the last are the gates, and decays */
    (void)cuda_start(d, convs[row_for(g.k_dim > g.v_dim ? g.k_dim : g.v_dim)],
                     dim3((n + CONV_TOKENS - 1) / CONV_TOKENS, (heads + CONV_WARPS - 1) / CONV_WARPS), CONV_WARPS * 32,
                     0, *a, first, n, s, cuda_take_mark(d));
    switch (row_for(g.k_dim)) {
    case 0: launch_scan<1, BY>(d, a, first, n, s); break;
    case 1: launch_scan<2, BY>(d, a, first, n, s); break;
    case 2: launch_scan<4, BY>(d, a, first, n, s); break;
    default: launch_scan<8, BY>(d, a, first, n, s); break;
    }
    (void)cuda_start(d, norms[row_for(g.v_dim)], dim3(n, (g.n_v_heads + 3) / 4), 128, 0, *a, first);
}

kern_status cuda_delta(kern_dev *kd, const kern_delta_args *a)
{
    cuda_dev *d = cuda_of(kd);
    const kern_delta_geom &g = a->geom;
    const char *why = cuda_delta_refuses(&g);
    if (why)
        return cuda_unsupported(d, why);
    if (!a->n_tokens)
        return KERN_OK;
    if (!a->run_start && !g.by_channel && g.k_dim == STEP_DIM && g.v_dim == STEP_DIM &&
        (uint64_t)a->n_tokens * g.n_k_heads <= CUDA_DELTA_TICKETS) {
        (void)cuda_start(d, delta_step_kernel, dim3(g.n_v_heads, a->n_tokens), STEP_PARTS * 32, 0, *a,
                         d->small->delta_tickets, cuda_take_mark(d));
        return cuda_launched(d, "delta");
    }
    for (uint32_t first = 0; first < a->n_tokens; first += DELTA_PIECE)
        (g.by_channel
             ? launch_piece<true>
             : launch_piece<false>)(d, a, first, a->n_tokens - first < DELTA_PIECE ? a->n_tokens - first : DELTA_PIECE);
    return cuda_launched(d, "delta");
}
