/* attn_wgmma.cu - prefill attention by the matrix instructions of compute capability 9.0: the bits of attention.cu's kernel.
 *
 * Two warpgroups compute, 64 rows (tokens times the heads of a group) each, over the same context; the four warps of a third one fetch
 * tiles of 64 positions into a ring. A warpgroup asks for P V of a tile and for Q K of the next one together; while these run it merges
 * what has come, and while it computes exponentials the matrix units work for the other warpgroup.
 *
 * K and Q lie in shared memory in swizzled rows of 64 dimensions. Of each block of 32 attn_scores_block() multiplies {8t .. 8t + 3} first,
 * t = 0 .. 3, and then {8t + 4 .. 8t + 7}: these halves of every 16 bytes lie apart. V lies as it is kept. */
#include "kernels/cuda/attn.h"
#include "kernels/cuda/attn_tile.cuh"
#include "kernels/cuda/frag.cuh"
#include "kernels/cuda/kv_q8_0.cuh"
#include "kernels/cuda/load.cuh"
#include "kernels/cuda/overlap.cuh"
#include "kernels/cuda/wgmma.cuh"

#include <type_traits>

#define GROUPS       2 /* warpgroups that compute */
#define GROUP_ROWS   64
#define FETCHERS     4 /* warps */
#define FETCH_ROWS   (ATTN_TILE / FETCHERS)
#define PREFILL_SIZE (GROUPS * 128 + FETCHERS * 32) /* threads */
#define HALF_BYTES   (64 * 128)                     /* 64 rows of 64 dimensions */

/* Lanes of a warp that say that it has done with a tile: one, behind a barrier of all, which racecheck does not follow (STREAM_TELLERS). */
#ifdef XD_RACECHECK
#define TELLERS 32
#else
#define TELLERS 1
#endif

template <int HD> struct attn_stage {
    unsigned char k[HD / 64 * HALF_BYTES], v[HD / 64 * HALF_BYTES];
};

/* Rows of Q8_0 as they are kept, of two tiles; each warp unpacks what it has fetched. */
template <int HD> struct attn_raw {
    static constexpr uint32_t BYTES = q8_raw_bytes(HD, FETCH_ROWS);
    unsigned char k[FETCHERS][2][BYTES], v[FETCHERS][2][BYTES];
};

struct attn_no_raw {
};

template <int HD, kern_fmt FMT> struct attn_wgmma_smem {
    static constexpr uint32_t STAGES = FMT == FMT_Q8_0 ? 2 : 3;
    unsigned char q[GROUPS][2][HD / 64 * HALF_BYTES]; /* lo, hi */
    float all[GROUPS][GROUP_ROWS * HD];               /* merged splits, all_at() */
    attn_stage<HD> stage[STAGES];
    typename std::conditional<FMT == FMT_Q8_0, attn_raw<HD>, attn_no_raw>::type raw;
    uint64_t full[STAGES], empty[STAGES];
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* A place in the ring. */
struct ring_at {
    uint32_t slot, phase;
};

template <uint32_t STAGES> static __device__ __forceinline__ void ring_advance(ring_at &at)
{
    if (++at.slot == STAGES) {
        at.slot = 0;
        at.phase ^= 1;
    }
}

/* The block's tokens: per_group for each warpgroup in turn. */
struct attn_block {
    uint32_t kvh, heads, per_group, token0, n_tokens;
};

/* Where dimensions 8c + 4e .. of a row of Q or K are. */
static __device__ __forceinline__ uint32_t place_of(uint32_t row, uint32_t c, uint32_t e)
{
    const uint32_t b = c / 4, t = c % 4, piece = b % 2 * 4 + e * 2 + t / 2;
    return b / 2 * HALF_BYTES + row * 128 + (piece ^ (row & 7)) * 16 + t % 2 * 8;
}

static __device__ __forceinline__ void put_piece(unsigned char *rows, uint32_t row, uint32_t c, uint4 v)
{
    *reinterpret_cast<uint2 *>(rows + place_of(row, c, 0)) = make_uint2(v.x, v.y);
    *reinterpret_cast<uint2 *>(rows + place_of(row, c, 1)) = make_uint2(v.z, v.w);
}

/* --- fetching ------------------------------------------------------------------------------------------------------------ */

/* The first n of 8 bytes, zeros after them. */
static __device__ __forceinline__ void cp_async8_part(uint32_t dst, uint64_t src, uint32_t n)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(dst), "l"(src), "r"(n) : "memory");
}

/* This warp's 16 rows of the tile at `base`, half a warp each; the address of row r is in lane r. Positions that are not in `seen`
 * become zero, since 0 * garbage may be NaN. */
template <int HD>
static __device__ __forceinline__ void fetch_tile(const kern_attn_args &a, attn_stage<HD> &to, uint64_t addr,
                                                  size_t v_off, int base, attn_span seen)
{
    const uint32_t warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, sub = lane / 16, u = lane % 16,
                   hd = a.kv.head_dim;
    const uint32_t k_to = smem_of(to.k) + u / 2 % 2 * 8, k_piece = u / 8 * 4 + u % 2 * 2 + u / 4 % 2;
    const uint32_t v_to = smem_of(to.v) + u / 8 * HALF_BYTES;
#pragma unroll
    for (uint32_t i = 0; i < FETCH_ROWS / 2; i++) {
        const uint64_t src = __shfl_sync(~0u, addr, 2 * i + sub);
        const uint32_t row = warp * FETCH_ROWS + 2 * i + sub;
        const bool on = base + (int)row >= seen.first && base + (int)row <= seen.last;
#pragma unroll
        for (uint32_t h = 0; h < HD / 64; h++)
            cp_async8_part(k_to + h * HALF_BYTES + row * 128 + (k_piece ^ (row & 7)) * 16, src + h * 128 + u * 8,
                           on && h * 64 + u / 2 * 8 < hd ? 8 : 0);
        if (u * 8 < HD)
            cp_async_part(v_to + row * 128 + (u % 8 ^ (row & 7)) * 16, src + v_off + u * 16, on && u * 8 < hd ? 16 : 0);
    }
}

/* This warp's 16 rows of a tile of Q8_0, which have come. */
template <int HD>
static __device__ __forceinline__ void unpack_tile(const kern_attn_args &a, attn_stage<HD> &to,
                                                   const unsigned char *raw_k, const unsigned char *raw_v, int base,
                                                   attn_span seen)
{
    const uint32_t warp = threadIdx.x / 32 % 4, row_bytes = (uint32_t)kv_bytes<FMT_Q8_0>(a, 1);
#pragma unroll 4
    for (uint32_t i = threadIdx.x % 32; i < FETCH_ROWS * HD / 8; i += 32) {
        const uint32_t r = i / (HD / 8), c = i % (HD / 8), row = warp * FETCH_ROWS + r;
        const uint32_t at = r * row_bytes + c / 4 * (uint32_t)sizeof(kern_q8_0_block);
        const bool on = base + (int)row >= seen.first && base + (int)row <= seen.last && c * 8 < a.kv.head_dim;
        put_piece(to.k, row, c, q8_eight(raw_k + at, c % 4, on));
        *reinterpret_cast<uint4 *>(to.v + c / 8 * HALF_BYTES + row * 128 + (c % 8 ^ (row & 7)) * 16) =
            q8_eight(raw_v + at, c % 4, on);
    }
}

template <int HD, kern_fmt FMT>
static __device__ __forceinline__ void fetch_all(const kern_attn_args &a, attn_wgmma_smem<HD, FMT> &sm,
                                                 const attn_block &b)
{
    constexpr uint32_t STAGES = attn_wgmma_smem<HD, FMT>::STAGES;
    const size_t v_off = kv_bytes<FMT>(a, (size_t)a.kv.n_kv_heads * a.kv.block_size);
    const uint32_t warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    ring_at at = {0, 0};
    for (uint32_t run = 0; run < b.n_tokens;) {
        const uint32_t seq = a.token_seq[b.token0 + run],
                       next = end_of_run(a, b.token0 + run, b.token0 + b.n_tokens) - b.token0;
        const attn_span seen = span_of_all(a, b.token0 + run, b.token0 + next);
        run = next;
        if (seq == UINT32_MAX)
            continue;
        const uint32_t *table = a.kv.block_table + (size_t)seq * a.kv.max_blocks;
        const int tile0 = seen.first / ATTN_TILE, tile1 = seen.last / ATTN_TILE;
        /* The lane's position of a tile: a row of F16, a group of eight of Q8_0. What is not seen lies where something is. */
        auto pos_of = [&](int tile) {
            const int pos =
                tile * ATTN_TILE + (int)(warp * FETCH_ROWS) +
                (FMT == FMT_Q8_0 ? (int)(lane % (FETCH_ROWS / Q8_GROUP) * Q8_GROUP) : (int)(lane % FETCH_ROWS));
            return (uint32_t)max(min(pos, seen.last), seen.first) & (FMT == FMT_Q8_0 ? ~(Q8_GROUP - 1u) : ~0u);
        };
        auto block_of = [&](int tile) { return table[pos_of(tile) / a.kv.block_size]; };
        /* Addresses are known a tile ahead, blocks two. */
        uint64_t addr = (uint64_t)(uintptr_t)kv_row_in<FMT>(a, block_of(tile0), b.kvh, pos_of(tile0));
        uint32_t block = block_of(tile0 + 1);
        auto next_addr = [&](int tile) {
            addr = (uint64_t)(uintptr_t)kv_row_in<FMT>(a, block, b.kvh, pos_of(tile + 1));
            block = block_of(tile + 2);
        };
        if constexpr (FMT == FMT_Q8_0) {
            const uint32_t pieces = q8_group_pieces(a.kv.head_dim);
            auto ask = [&](int tile) {
                const uint64_t mine = addr;
                next_addr(tile);
#pragma unroll
                for (uint32_t i = 0; i < FETCH_ROWS / Q8_GROUP; i++) {
                    const unsigned char *from =
                        reinterpret_cast<const unsigned char *>((uintptr_t)__shfl_sync(~0u, mine, i));
                    const int pos = tile * ATTN_TILE + (int)(warp * FETCH_ROWS + i * Q8_GROUP);
                    if (pos + (Q8_GROUP - 1) < seen.first || pos > seen.last)
                        continue;
                    q8_fetch(sm.raw.k[warp][tile & 1] + i * pieces * 16, from, pieces);
                    q8_fetch(sm.raw.v[warp][tile & 1] + i * pieces * 16, from + v_off, pieces);
                }
                cp_commit();
            };
            ask(tile0);
#pragma unroll 1
            for (int tile = tile0; tile <= tile1; tile++) {
                if (tile < tile1) {
                    ask(tile + 1);
                    cp_wait<1>();
                } else {
                    cp_wait<0>();
                }
                __syncwarp();
                bar_wait(&sm.empty[at.slot], at.phase ^ 1);
                unpack_tile<HD>(a, sm.stage[at.slot], sm.raw.k[warp][tile & 1], sm.raw.v[warp][tile & 1],
                                tile * ATTN_TILE, seen);
                bar_arrive(&sm.full[at.slot]);
                __syncwarp(); /* all have read */
                ring_advance<STAGES>(at);
            }
        } else {
#pragma unroll 1
            for (int tile = tile0; tile <= tile1; tile++) {
                const uint64_t mine = addr;
                next_addr(tile);
                bar_wait(&sm.empty[at.slot], at.phase ^ 1);
                fetch_tile<HD>(a, sm.stage[at.slot], mine, v_off, tile * ATTN_TILE, seen);
                bar_arrive_copies(&sm.full[at.slot]);
                ring_advance<STAGES>(at);
            }
        }
    }
}

/* --- computing ----------------------------------------------------------------------------------------------------------- */

/* Begins s = Q K, as attn_scores(). */
template <int HD>
static __device__ __forceinline__ void begin_scores(float (&s)[8][4], const unsigned char *q_lo,
                                                    const unsigned char *q_hi, const unsigned char *k)
{
    const uint64_t lo = wgmma_swizzled(smem_of(q_lo)), hi = wgmma_swizzled(smem_of(q_hi)),
                   b = wgmma_swizzled(smem_of(k));
#pragma unroll
    for (uint32_t i = 0; i < HD / 16; i++) {
        const uint32_t off = (i / 4 * HALF_BYTES + i % 4 * 32) / 16;
        wgmma_rows(s, lo + off, b + off, i > 0);
        wgmma_rows(s, hi + off, b + off, 1);
    }
    wgmma_commit();
}

/* Begins o = P V, as attn_values(). */
template <int HD>
static __device__ __forceinline__ void begin_values(float (&o)[HD / 8][4], const attn_probs &p, const unsigned char *v)
{
    const uint64_t b = wgmma_swizzled(smem_of(v), HALF_BYTES);
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        wgmma_columns(o, p.lo[i], b + i * (16 * 128 / 16), i > 0);
        wgmma_columns(o, p.hi[i], b + i * (16 * 128 / 16), 1);
    }
    wgmma_commit();
}

/* Of the lane's rows g and g + 8: what is merged of this split, and of all before. */
template <int HD> struct attn_sums {
    float o[HD / 8][4], m[2], l[2], all_m[2], all_l[2];
};

template <int HD> static __device__ __forceinline__ void clear(attn_sums<HD> &x)
{
    float zero; /* by a name that the compiler cannot see through: else it keeps two homes for o and spills one */
    asm volatile("mov.f32 %0, 0f00000000;" : "=f"(zero));
#pragma unroll
    for (int i = 0; i < HD / 8; i++)
        x.o[i][0] = x.o[i][1] = x.o[i][2] = x.o[i][3] = zero;
    x.m[0] = x.m[1] = -INFINITY;
    x.l[0] = x.l[1] = 0;
}

/* v / l to the last bit, all at once: a division on its own is some ten instructions that wait for each other, and a branch. False: the
 * numbers are too small or too large for that. */
template <int N> static __device__ __forceinline__ bool divide(float (&v)[N], float l)
{
    float least = INFINITY, most = 0;
#pragma unroll
    for (int i = 0; i < N; i++) {
        least = fminf(least, __float_as_uint(v[i]) ? fabsf(v[i]) : INFINITY);
        most = fmaxf(most, fabsf(v[i]));
    }
    if (!(least > 0x1p-90f && most < 0x1p90f && l > 0x1p-20f && l < 0x1p30f)) /* also where l is NaN */
        return false;
    const float y = __frcp_rn(l);
#pragma unroll
    for (int i = 0; i < N; i++) { /* a quotient, corrected twice */
        float q = __fmul_rn(v[i], y);
        q = fmaf(fmaf(-q, l, v[i]), y, q);
        v[i] = fmaf(fmaf(-q, l, v[i]), y, q);
    }
    return true;
}

/* A column of a row in sm.all: eight lanes' rows use different banks. */
template <int HD> static __device__ __forceinline__ uint32_t all_at(uint32_t row, uint32_t col)
{
    return row * HD + (col ^ (row & 3) * 8);
}

/* End of a split: merges it into what was before. Of the last one: by the sum, and to `out`, [2], where rows row0 and row0 + 8 go; NULL:
 * nowhere. */
template <bool LAST, int HD>
static __device__ __forceinline__ void end_split(attn_sums<HD> &x, float *all, uint32_t row0, float *const *out,
                                                 uint32_t hd, const float *const *sinks)
{
    const uint32_t lane = threadIdx.x % 32, t = lane % 4;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const bool had = x.all_m[r] != -INFINITY, has = x.m[r] != -INFINITY;
        const attn_weight w = attn_merge(x.all_m[r], x.all_l[r], x.m[r], x.l[r]);
        float v[HD / 4];
#pragma unroll
        for (int i = 0; i < HD / 8; i++) {
            const float2 y = *reinterpret_cast<const float2 *>(all + all_at<HD>(row0 + 8 * r, 8 * i + 2 * t));
#pragma unroll
            for (int c = 0; c < 2; c++) {
                v[2 * i + c] = had ? c ? y.y : y.x : 0.0f;
                v[2 * i + c] = has ? attn_mix(v[2 * i + c], x.o[i][2 * r + c], w) : v[2 * i + c];
            }
        }
        float l = x.all_l[r];
        bool done = true;
        if (LAST) {
            if (sinks[r]) {
                float m = x.all_m[r];
                const attn_weight ws = attn_merge(m, l, *sinks[r] * LOG2E, 1.0f);
#pragma unroll
                for (int i = 0; i < HD / 4; i++)
                    v[i] = attn_mix(v[i], 0.0f, ws);
            }
            done = divide(v, l) || !out[r];
        }
#pragma unroll
        for (int i = 0; i < HD / 8; i++)
            *reinterpret_cast<float2 *>(all + all_at<HD>(row0 + 8 * r, 8 * i + 2 * t)) =
                make_float2(v[2 * i], v[2 * i + 1]);
        if (!done)
#pragma unroll 1
            for (uint32_t c = 2 * t; c < HD; c += c % 2 ? 7 : 1)
                all[all_at<HD>(row0 + 8 * r, c)] = all[all_at<HD>(row0 + 8 * r, c)] / l;
    }
    if (!LAST)
        return;
    __syncwarp();
    constexpr uint32_t AT_ONCE = 128 / HD; /* rows of the warp, four columns a lane */
    const uint32_t sub = lane / (HD / 4), col = lane % (HD / 4) * 4;
#pragma unroll
    for (uint32_t i = 0; i < 16; i += AT_ONCE) {
        const uint32_t row = i + sub;
        float *const to =
            reinterpret_cast<float *>(__shfl_sync(~0u, reinterpret_cast<uint64_t>(out[i / 8]), row % 8 * 4));
        if (to && col < hd)
            *reinterpret_cast<float4 *>(to + col) =
                *reinterpret_cast<const float4 *>(all + all_at<HD>(row0 - lane / 4 + row, col));
    }
    __syncwarp();
}

template <int HD, kern_fmt FMT>
static __device__ __forceinline__ void compute_all(const kern_attn_args &a, attn_wgmma_smem<HD, FMT> &sm,
                                                   const attn_block &b)
{
    constexpr uint32_t STAGES = attn_wgmma_smem<HD, FMT>::STAGES;
    const uint32_t group = __shfl_sync(~0u, threadIdx.x / 128, 0), lane = threadIdx.x % 32, hd = a.kv.head_dim;
    const uint32_t row0 = threadIdx.x % 128 / 32 * 16 + lane / 4; /* of the group; and 8 more */
    const uint32_t first = min(group * b.per_group, b.n_tokens), end = min(first + b.per_group, b.n_tokens);
    unsigned char *const q_lo = sm.q[group][0], *const q_hi = sm.q[group][1];
    float *const all = sm.all[group];
#pragma unroll
    for (uint32_t i = threadIdx.x % 128; i < GROUP_ROWS * HD / 8; i += 128) {
        const uint32_t r = i / (HD / 8), c = i % (HD / 8), token = first + r / b.heads;
        const float *src =
            a.qkv + (size_t)(b.token0 + token) * a.qkv_stride + (b.kvh * b.heads + r % b.heads) * hd + c * 8;
        const bool on = token < end && c * 8 < hd;
        uint4 h, l;
        split_q(load_floats(src, on), load_floats(src + 4, on), a.scale * LOG2E, &h, &l);
        put_piece(q_hi, r, c, h);
        put_piece(q_lo, r, c, l);
    }
    wgmma_see_stores();
    asm volatile("bar.sync %0, 128;" ::"r"(1 + group) : "memory");

    ring_at at = {0, 0};
    auto wait_tile = [&](ring_at i) { bar_wait(&sm.full[i.slot], i.phase); };
    auto leave_tile = [&](ring_at i) {
        __syncwarp();
        if (lane < TELLERS)
            bar_arrive(&sm.empty[i.slot]);
    };
    auto skip_tile = [&] {
        wait_tile(at);
        leave_tile(at);
        ring_advance<STAGES>(at);
    };
    for (uint32_t run = 0; run < b.n_tokens;) { /* tokens of one sequence */
        const uint32_t seq = a.token_seq[b.token0 + run],
                       next = end_of_run(a, b.token0 + run, b.token0 + b.n_tokens) - b.token0;
        const attn_span whole = span_of_all(a, b.token0 + run, b.token0 + next);
        const attn_span mine = span_of_all(a, b.token0 + max(run, first), b.token0 + min(next, end));
        const attn_span theirs = group ? span_of_all(a, b.token0 + run, b.token0 + min(next, first))
                                       : span_of_all(a, b.token0 + max(run, end), b.token0 + next);
        attn_span span[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const uint32_t token = first + (row0 + 8 * r) / b.heads;
            span[r] = token >= run && token < min(next, end) ? span_of(a, b.token0 + token) : attn_span{0, -1};
        }
        run = next;
        if (seq == UINT32_MAX)
            continue;
        const int tile0 = whole.first / ATTN_TILE, tile1 = whole.last / ATTN_TILE;
        const bool any = mine.last >= 0;
        const int my0 = any ? mine.first / ATTN_TILE : tile1 + 1, my1 = any ? mine.last / ATTN_TILE : tile1;
#pragma unroll 1
        for (int tile = tile0; tile < my0; tile++)
            skip_tile();
        if (any) {
            float *out[2];
            const float *sinks[2];
            attn_span inner = {0, INT32_MAX}; /* what all of the lane's rows see */
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const uint32_t row = row0 + 8 * r, head = b.kvh * b.heads + row % b.heads;
                const bool on = span[r].last >= 0;
                out[r] = on ? a.o + ((size_t)(b.token0 + first + row / b.heads) * a.n_heads + head) * hd : nullptr;
                sinks[r] = a.sinks ? a.sinks + head : nullptr;
                if (on)
                    inner = attn_span{max(inner.first, span[r].first), min(inner.last, span[r].last)};
            }
            inner = attn_span{__reduce_max_sync(~0u, inner.first), __reduce_min_sync(~0u, inner.last)};
            attn_sums<HD> x;
            clear(x);
            x.all_m[0] = x.all_m[1] = -INFINITY;
            x.all_l[0] = x.all_l[1] = 0;
            float s[8][4], fresh[HD / 8][4];
#pragma unroll
            for (int i = 0; i < 8; i++)
                s[i][0] = s[i][1] = s[i][2] = s[i][3] = 0;
#pragma unroll
            for (int i = 0; i < HD / 8; i++)
                fresh[i][0] = fresh[i][1] = fresh[i][2] = fresh[i][3] = 0;
            attn_probs p;
            attn_weight w[2];
            bool edge;
            /* Of a tile's scores: operand and weights. */
            auto softmax = [&](int tile) {
                edge = tile * ATTN_TILE < inner.first || tile * ATTN_TILE + ATTN_TILE - 1 > inner.last;
                if (__builtin_expect(edge, 0))
                    attn_mask(s, tile * ATTN_TILE, span);
                attn_softmax(p, s);
#pragma unroll
                for (int r = 0; r < 2; r++)
                    w[r] = attn_merge(x.m[r], x.l[r], p.m[r], p.l[r]);
                attn_split(p, s);
            };
            auto mix = [&] {
                if (__builtin_expect(edge, 0))
#pragma unroll
                    for (int i = 0; i < HD / 8; i++)
#pragma unroll
                        for (int c = 0; c < 4; c++) /* what a row does not see may be NaN */
                            fresh[i][c] = p.m[c / 2] == -INFINITY ? 0.0f : fresh[i][c];
#pragma unroll
                for (int i = 0; i < HD / 8; i++)
#pragma unroll
                    for (int c = 0; c < 4; c++)
                        x.o[i][c] = attn_mix(x.o[i][c], fresh[i][c], w[c / 2]);
            };
            /* Where both warpgroups have the same tiles they ask for products in turns. */
            const bool paced =
                my0 < my1 && theirs.last >= 0 && my0 == theirs.first / ATTN_TILE && my1 == theirs.last / ATTN_TILE;
            if (paced && group == 1) /* the other one begins */
                asm volatile("bar.arrive %0, 256;" ::"r"(3) : "memory");
            ring_at ahead = at; /* the tile whose scores are next */
            wait_tile(ahead);
            wgmma_see_stores();
            wgmma_begin();
            begin_scores<HD>(s, q_lo, q_hi, sm.stage[ahead.slot].k);
            ring_advance<STAGES>(ahead);
            wgmma_wait<0>(s);
            softmax(my0);
#pragma unroll 1
            for (int tile = my0; tile < my1; tile++) {
                wait_tile(ahead);
                wgmma_see_stores();
                if (paced)
                    asm volatile("bar.sync %0, 256;" ::"r"(3 + group) : "memory");
                wgmma_begin();
                begin_values<HD>(fresh, p, sm.stage[at.slot].v);
                begin_scores<HD>(s, q_lo, q_hi, sm.stage[ahead.slot].k);
                if (paced && (group == 0 || tile + 1 < my1))
                    asm volatile("bar.arrive %0, 256;" ::"r"(4 - group) : "memory");
                wgmma_wait<1>(fresh);
                leave_tile(at);
                mix();
                if (__builtin_expect((tile + 1) % (KERN_ATTN_SPLIT / ATTN_TILE) == 0, 0)) {
                    end_split<false>(x, all, row0, out, hd, sinks);
                    clear(x);
                }
                at = ahead;
                ring_advance<STAGES>(ahead);
                wgmma_wait<0>(s);
                softmax(tile + 1);
            }
            wgmma_begin();
            begin_values<HD>(fresh, p, sm.stage[at.slot].v);
            wgmma_wait<0>(fresh);
            leave_tile(at);
            at = ahead;
            mix();
            end_split<true>(x, all, row0, out, hd, sinks);
        }
#pragma unroll 1
        for (int tile = my1 + 1; tile <= tile1; tile++)
            skip_tile();
    }
}

#endif

template <int HD, kern_fmt FMT>
__global__ void __launch_bounds__(PREFILL_SIZE, 1) attn_wgmma_kernel(const __grid_constant__ kern_attn_args a)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ __align__(1024) unsigned char smem[];
    attn_wgmma_smem<HD, FMT> &sm = *reinterpret_cast<attn_wgmma_smem<HD, FMT> *>(smem);
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < attn_wgmma_smem<HD, FMT>::STAGES; i++) {
            bar_init(&sm.full[i], FETCHERS * 32);
            bar_init(&sm.empty[i], GROUPS * 4 * TELLERS);
        }
        bar_init_done();
    }
    overlap_begin();
    __syncthreads();
    attn_block b = {blockIdx.y, a.n_heads / a.kv.n_kv_heads};
    b.per_group = GROUP_ROWS / b.heads;
    /* The last tokens have the longest context: they start first. */
    b.token0 = (gridDim.x - 1 - blockIdx.x) * (GROUPS * b.per_group);
    b.n_tokens = min(GROUPS * b.per_group, a.n_tokens - b.token0);
    if (threadIdx.x < GROUPS * 128) {
        wgmma_registers<224, true>(); /* of 168 each: 2 * 224 + 56 */
        compute_all<HD, FMT>(a, sm, b);
    } else {
        wgmma_registers<56, false>();
        fetch_all<HD, FMT>(a, sm, b);
    }
#endif
}

/* --- choice ------------------------------------------------------------------------------------------------------------ */

template <int HD, kern_fmt FMT> static cudaError_t launch(cuda_dev *d, const kern_attn_args *a)
{
    const uint32_t per_block = GROUPS * (GROUP_ROWS / (a->n_heads / a->kv.n_kv_heads));
    const size_t smem = sizeof(attn_wgmma_smem<HD, FMT>);
    static_assert(sizeof(attn_wgmma_smem<HD, FMT>) <= 227 * 1024, "of 9.0");
    cudaError_t e =
        cudaFuncSetAttribute(attn_wgmma_kernel<HD, FMT>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem);
    if (e != cudaSuccess)
        return e;
    return cuda_start(d, attn_wgmma_kernel<HD, FMT>, dim3((a->n_tokens + per_block - 1) / per_block, a->kv.n_kv_heads),
                      PREFILL_SIZE, smem, *a);
}

bool attn_wgmma_takes(const cuda_dev *d, const kern_attn_args *a)
{
    return d->wgmma && a->kv.head_dim <= 128 && (uintptr_t)a->qkv % 16 == 0 && a->qkv_stride % 4 == 0 &&
           a->n_heads / a->kv.n_kv_heads <= GROUP_ROWS &&
           sizeof(attn_wgmma_smem<128, FMT_Q8_0>) <= (size_t)d->smem_max &&
           sizeof(attn_wgmma_smem<128, FMT_F16>) <= (size_t)d->smem_max;
}

cudaError_t attn_wgmma_launch(cuda_dev *d, const kern_attn_args *a)
{
    const bool narrow = a->kv.head_dim <= 64;
    if (a->kv.fmt == FMT_Q8_0)
        return narrow ? launch<64, FMT_Q8_0>(d, a) : launch<128, FMT_Q8_0>(d, a);
    return narrow ? launch<64, FMT_F16>(d, a) : launch<128, FMT_F16>(d, a);
}
