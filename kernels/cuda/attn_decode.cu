/* attn_decode.cu - attention of tokens that each see a context of their own.
 *
 * A block a (token, KV head), a warp a tile, from memory to registers. Few tokens: splits of the context go to blocks of their own and a
 * second launch merges them; many: a block walks the splits. The arithmetic is that of attn_tile.cuh.
 * Where each token is the only one of its sequence, the norms and rotation of its heads and the store of its K and V are done here too:
 * the block that sees the last position needs nothing from others.
 * All that does not depend on the kernels ahead (angles, addresses, older K and V) is fetched before waiting for them. The code
 * is kept short: a decode step runs it from cold instruction caches. */
#include "kernels/cuda/attn.h"
#include "kernels/cuda/attn_tile.cuh"
#include "kernels/cuda/frag.cuh"
#include "kernels/cuda/kv_q8_0.cuh"
#include "kernels/cuda/load.cuh"
#include "kernels/cuda/overlap.cuh"
#include "kernels/cuda/rope.cuh"

#include <cstring>
#include <type_traits>

/* Above this many (token, head) pairs a block walks all splits: there is enough to do without a second launch, and the scratch
 * stays small. */
#define DECODE_SPLIT_ROWS 1024
#define DECODE_TILES      (KERN_ATTN_SPLIT / ATTN_TILE)
#define DECODE_WARPS      (DECODE_TILES + 2) /* with eight heads a group, two are left for K and V */

/* A tile in shared memory: K, swizzled (attn_swizzle), and the dimensions of V from 64 on (decode_v_at); later, in place of K, the tile's
 * result. What is left of V waits in registers. */
template <int HD> struct decode_tile {
    uint4 k[ATTN_TILE * HD / 8], v[HD > 64 ? ATTN_TILE * 8 : 1];
};

/* Of each tile the result only. */
template <int HD> struct decode_result {
    float o[16][HD];
};

/* K of a tile as it is kept, then V; later the result. */
template <int HD> struct decode_raw {
    unsigned char rows[q8_raw_bytes(HD, ATTN_TILE)];
};

template <int HD, bool AHEAD, kern_fmt FMT> struct decode_smem {
    std::conditional_t<FMT == FMT_Q8_0, decode_raw<HD>, std::conditional_t<AHEAD, decode_tile<HD>, decode_result<HD>>>
        tile[DECODE_TILES];
    uint4 q_hi[16 * HD / 8], q_lo[16 * HD / 8];
    const unsigned char *row[DECODE_TILES][ATTN_TILE];
    float m[DECODE_TILES][16], l[DECODE_TILES][16]; /* of the tiles */
    float all_m[16], all_l[16];                     /* of the splits so far */
    float cs[HD / 2], sn[HD / 2];
    float4 all[16][HD / 4];       /* merged splits */
    float head[DECODE_WARPS][HD]; /* of each warp */
    uint4 fresh_v[8];             /* the first 64 dimensions of this token's V */
};

/* Piece c of 16 bytes of position r: the lanes of attn_values() use different banks. */
static __device__ __forceinline__ uint32_t decode_v_at(uint32_t r, uint32_t c)
{
    return r * 8 + (c ^ (r >> 1 & 3) << 1);
}

/* Position of entry i of the lane's 16 pieces of V. */
static __device__ __forceinline__ uint32_t decode_v_row(uint32_t i)
{
    return 16 * (i / 4) + 2 * (threadIdx.x % 4) + i % 2 + i / 2 % 2 * 8;
}

static __device__ __forceinline__ uint4 eight_halves(const float *v)
{
    uint4 r;
    __half2 h[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        h[i] = __floats2half2_rn(v[2 * i], v[2 * i + 1]);
    memcpy(&r, h, sizeof r);
    return r;
}

/* attn_softmax() of rows that all see `span`, in small loops: `w`, [8][32], holds the lane's scores and then its probabilities. */
static __device__ __forceinline__ void decode_softmax(attn_probs &p, const float (&s)[8][4], int base, attn_span span,
                                                      uint4 *w)
{
    const int t = threadIdx.x % 4;
    float4 *own = reinterpret_cast<float4 *>(w) + threadIdx.x % 32;
    uint4 *probs = w + threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < 8; j++)
        own[32 * j] = make_float4(s[j][0], s[j][1], s[j][2], s[j][3]);
    auto masked = [&](int j) {
        const int pos = base + 8 * j + 2 * t;
        const bool a = pos >= span.first && pos <= span.last, b = pos + 1 >= span.first && pos + 1 <= span.last;
        const float4 v = own[32 * j];
        return make_float4(a ? v.x : -INFINITY, b ? v.y : -INFINITY, a ? v.z : -INFINITY, b ? v.w : -INFINITY);
    };
    float m[2] = {-INFINITY, -INFINITY}, l[2] = {0, 0}, off[2];
#pragma unroll 2
    for (int j = 0; j < 8; j++) {
        const float4 v = masked(j);
        m[0] = fmaxf(fmaxf(m[0], v.x), v.y);
        m[1] = fmaxf(fmaxf(m[1], v.z), v.w);
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        m[r] = fmaxf(m[r], __shfl_xor_sync(~0u, m[r], 1));
        m[r] = fmaxf(m[r], __shfl_xor_sync(~0u, m[r], 2));
        off[r] = m[r] == -INFINITY ? 0.0f : m[r];
    }
#pragma unroll 2
    for (int j = 0; j < 8; j++) {
        float4 v = masked(j);
        v = make_float4(attn_exp2(v.x - off[0]), attn_exp2(v.y - off[0]), attn_exp2(v.z - off[1]),
                        attn_exp2(v.w - off[1]));
        l[0] = l[0] + v.x + v.y;
        l[1] = l[1] + v.z + v.w;
        uint4 q;
        split_half(v.x, v.y, &q.x, &q.z);
        split_half(v.z, v.w, &q.y, &q.w);
        probs[32 * j] = q;
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        l[r] += __shfl_xor_sync(~0u, l[r], 1);
        l[r] += __shfl_xor_sync(~0u, l[r], 2);
        p.m[r] = m[r];
        p.l[r] = l[r];
    }
#pragma unroll
    for (int k = 0; k < 4; k++) {
        const uint4 a = probs[32 * (2 * k)], b = probs[32 * (2 * k + 1)];
        p.hi[k][0] = a.x, p.hi[k][1] = a.y, p.hi[k][2] = b.x, p.hi[k][3] = b.y;
        p.lo[k][0] = a.z, p.lo[k][1] = a.w, p.lo[k][2] = b.z, p.lo[k][3] = b.w;
    }
}

/* Four columns. */
static __device__ __forceinline__ float4 attn_mix4(float4 o, float4 o_new, attn_weight w)
{
    return make_float4(attn_mix(o.x, o_new.x, w), attn_mix(o.y, o_new.y, w), attn_mix(o.z, o_new.z, w),
                       attn_mix(o.w, o_new.w, w));
}

/* rope_too: a.token_seq is rope's. AHEAD (only with it): K and V of older positions are fetched before the kernels ahead are waited
 * for. */
template <int HD, bool AHEAD, kern_fmt FMT>
__global__ void __launch_bounds__(DECODE_WARPS * 32, 1)
    attn_decode_kernel(const __grid_constant__ kern_attn_args a, const __grid_constant__ kern_rope_kv_args rope,
                       bool rope_too, uint32_t row_groups, uint64_t *mark)
{
    extern __shared__ __align__(16) unsigned char smem[];
    decode_smem<HD, AHEAD, FMT> &sm = *reinterpret_cast<decode_smem<HD, AHEAD, FMT> *>(smem);
    const uint32_t token = blockIdx.z, kvh = blockIdx.y / row_groups, heads = a.n_heads / a.kv.n_kv_heads,
                   hd = a.kv.head_dim;
    const uint32_t head0 = kvh * heads + blockIdx.y % row_groups * 16,
                   n_rows = min(16u, heads - blockIdx.y % row_groups * 16);
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    overlap_allow();
    const uint32_t seq = a.token_seq[token];
    const attn_span span = span_of(a, token);
    const bool alone = gridDim.x == 1; /* this block walks all splits */
    const int first_split = span.first / KERN_ATTN_SPLIT, last_split = span.last / KERN_ATTN_SPLIT;
    const int begin = alone ? first_split : (int)blockIdx.x, end = alone ? last_split : (int)blockIdx.x;
    float *out = a.o + ((size_t)token * a.n_heads + head0) * hd;
    if (seq == UINT32_MAX || begin < first_split || end > last_split) {
        overlap_begin(mark);
        for (uint32_t i = threadIdx.x; seq == UINT32_MAX && rope_too && blockIdx.x == 0 && i < n_rows * hd;
             i += blockDim.x)
            out[i] = 0;
        return;
    }
    const int fresh = rope_too && end == last_split ? span.last : -1; /* the position whose K and V this block makes */
    /* It is fetched as the others are where it lies in a later split than the first. */
    const int missing = begin == end ? fresh : -1;
    const uint32_t *table = a.kv.block_table + (size_t)seq * a.kv.max_blocks;
    const size_t v_off = kv_bytes<FMT>(a, (size_t)a.kv.n_kv_heads * a.kv.block_size);
    const uint32_t pieces = q8_group_pieces(hd); /* of Q8_0, as raw */
    unsigned char *const raw = reinterpret_cast<unsigned char *>(&sm.tile[warp % DECODE_TILES]);
    const uint4 none = make_uint4(0, 0, 0, 0);

    int base = 0;
    bool on = false;
    auto find_rows = [&](int split) {
        base = split * KERN_ATTN_SPLIT + (int)warp * ATTN_TILE;
        on = warp < DECODE_TILES && base <= span.last && base + ATTN_TILE > span.first;
        auto find = [&](int i) {
            const int pos = base + i;
            const unsigned char *row =
                pos >= span.first && pos <= span.last ? kv_row<FMT>(a, table, kvh, (uint32_t)pos) : nullptr;
            sm.row[warp][i] = row;
            for (uint32_t c = 0; !AHEAD && row && c < hd * 2; c += 128) { /* later loads find it in L2 */
                fetch_ahead(row + c);
                fetch_ahead(row + v_off + c);
            }
        };
        if constexpr (HD > 64) {
            for (int i = (int)lane; on && i < ATTN_TILE; i += 32) {
                find(i);
            }
        } else { /* what the compiler likes depends on what else is in this file */
#pragma unroll 1
            for (int i = (int)lane; on && i < ATTN_TILE; i += 32) {
                find(i);
            }
        }
        __syncwarp();
    };
    /* The same for Q8_0: the first row of each group, by four lanes. */
    auto find_groups = [&](int split) {
        base = split * KERN_ATTN_SPLIT + (int)warp * ATTN_TILE;
        on = warp < DECODE_TILES && base <= span.last && base + ATTN_TILE > span.first;
        const int i = (int)lane / 4, pos = base + i * Q8_GROUP;
        const bool in = on && pos <= span.last && pos + Q8_GROUP > span.first;
        const unsigned char *group = in ? kv_row<FMT>(a, table, kvh, (uint32_t)pos) : nullptr;
        if (lane % 4 == 0 && on)
            sm.row[warp][i] = group;
        for (uint32_t c = lane % 4 * 128; group && c < pieces * 16; c += 512) {
            fetch_ahead(group + c);
            fetch_ahead(group + v_off + c);
        }
        __syncwarp();
    };
    uint4 v[4][4]; /* 64 dimensions of the tile's V */
    auto load_v = [&](uint32_t h) {
#pragma unroll
        for (int i = 0; i < 16; i++) {
            const uint32_t r = decode_v_row(i);
            const unsigned char *row = sm.row[warp][r];
            v[i / 4][i % 4] = load16(row + v_off + 128 * h + 16 * g,
                                     row && (!AHEAD || base + (int)r != missing) && 64 * h + 8 * g < hd);
        }
    };
    /* K or V of the tile in Q8_0: group i where bit i is set. */
    auto load_raw = [&](size_t off, uint32_t groups) {
        q8_fetch_rows<ATTN_TILE>(raw, pieces, 0, 1, [&](uint32_t i) {
            const unsigned char *group = groups >> i & 1 ? sm.row[warp][i] : nullptr;
            return group ? group + off : nullptr;
        });
        cp_commit();
    };
    auto raw_eight = [&](uint32_t r, uint32_t block, uint32_t piece, bool seen) {
        return q8_eight(raw + r * (uint32_t)kv_bytes<FMT>(a, 1) + block * (uint32_t)sizeof(kern_q8_0_block), piece,
                        seen && block * 32 < hd);
    };
    /* All of the tile but the position that is not there yet. */
    auto fetch_tile = [&] {
        if constexpr (AHEAD) {
            if (!on)
                return;
            decode_tile<HD> &to = sm.tile[warp];
            const uint32_t k_piece = lane % (HD / 8), v_piece = lane % 8;
            auto fetch = [&](uint32_t r, uint4 *at, size_t off, bool in) {
                const unsigned char *row = sm.row[warp][r];
                if (base + (int)r == missing)
                    return;
                if (row && in)
                    cp_async16(smem_of(at), (uint64_t)(uintptr_t)(row + off));
                else
                    *at = none;
            };
#pragma unroll 2
            for (uint32_t r = lane / (HD / 8); r < ATTN_TILE; r += 32 / (HD / 8))
                fetch(r, &to.k[attn_swizzle<HD>(r, k_piece)], k_piece * 16, k_piece * 8 < hd);
#pragma unroll 2
            for (uint32_t r = lane / 8; HD > 64 && r < ATTN_TILE; r += 4)
                fetch(r, &to.v[decode_v_at(r, v_piece)], v_off + 128 + v_piece * 16, 64 + v_piece * 8 < hd);
            cp_commit();
            load_v(0);
        }
    };
#pragma unroll 1
    for (int split = begin; split <= end; split++) {
        uint32_t early =
            0; /* groups of K that are there before the kernels ahead are done: all but that of this token */
        if constexpr (FMT == FMT_Q8_0) {
            find_groups(split);
            if (on && rope_too && split == begin) {
                early = missing >= base && missing < base + ATTN_TILE ? ~(1u << (missing - base) / Q8_GROUP) : ~0u;
                load_raw(0, early);
            }
        } else {
            find_rows(split);
        }
        fetch_tile();
        if (split == begin) {
            unsigned char *const place =
                fresh >= 0 ? const_cast<unsigned char *>(kv_row<FMT>(a, table, kvh, (uint32_t)fresh)) : nullptr;
            if (rope_too && warp >= DECODE_TILES) /* which have no tile to fetch */
                rope_angles(rope, (uint32_t)span.last, DECODE_TILES * 32, sm.cs, sm.sn);
            for (uint32_t i = n_rows * (HD / 8) + threadIdx.x; i < 16 * HD / 8; i += blockDim.x)
                sm.q_hi[i] = sm.q_lo[i] = none;
            __syncthreads();

            overlap_begin(mark);
            const uint32_t n_heads = n_rows + (fresh >= 0 ? 2 : 0);
            float *head = sm.head[warp];
#pragma unroll 1
            for (uint32_t i = warp; i < n_heads; i += DECODE_WARPS) {
                const uint32_t h = i < n_rows ? head0 + i : a.n_heads + kvh + (i - n_rows) * a.kv.n_kv_heads;
                const float *src = a.qkv + (size_t)token * a.qkv_stride + h * hd;
                if (rope_too)
                    rope_head<HD / 32>(rope, h, src, head, sm.cs, sm.sn);
                const bool mine = lane < HD / 8 && lane * 8 < hd;
                if (i < n_rows) {
                    if (lane < HD / 8)
                        put_q<HD>(sm.q_hi, sm.q_lo, i, lane, mine ? (rope_too ? head : src) + lane * 8 : nullptr,
                                  a.scale * LOG2E);
                } else if (FMT == FMT_Q8_0) {
                    q8_store(place + (i > n_rows ? v_off : 0), head, hd);
                } else if (lane < HD / 8) {
                    const uint4 w = mine ? eight_halves(head + lane * 8) : none;
                    const bool is_v = i > n_rows;
                    if (mine)
                        *reinterpret_cast<uint4 *>(place + (is_v ? v_off : 0) + lane * 16) = w;
                    if constexpr (AHEAD) {
                        const uint32_t r = (uint32_t)fresh % ATTN_TILE;
                        decode_tile<HD> &to = sm.tile[(uint32_t)fresh / ATTN_TILE % DECODE_TILES];
                        if (missing >= 0)
                            (is_v ? lane < 8 ? sm.fresh_v[lane] : to.v[decode_v_at(r, lane % 8)]
                                  : to.k[attn_swizzle<HD>(r, lane)]) = w;
                    }
                }
                __syncwarp();
            }
            __syncthreads(); /* Q is there, and K and V of this token */
        }
        float(*const o_of)[HD] = reinterpret_cast<float(*)[HD]>(&sm.tile[warp % DECODE_TILES]);
        auto put_o = [&](const float(&o)[8][4], uint32_t h) {
#pragma unroll
            for (int i = 0; i < 8; i += 4)
#pragma unroll
                for (int c = 0; c < 4; c++) /* row g: 0, 1; row g + 8: 2, 3 */
                    *reinterpret_cast<float4 *>(&o_of[g + c / 2 * 8][64 * h + 16 * t + c % 2 * 8 + i]) =
                        make_float4(o[i][c], o[i + 1][c], o[i + 2][c], o[i + 3][c]);
        };
        auto put_sums = [&](const attn_probs &p) {
            if (t == 0) {
                sm.m[warp][g] = p.m[0];
                sm.m[warp][g + 8] = p.m[1];
                sm.l[warp][g] = p.l[0];
                sm.l[warp][g + 8] = p.l[1];
            }
        };
        if constexpr (FMT == FMT_Q8_0) {
            if (on) {
                load_raw(0, ~early);
                cp_wait<0>();
                __syncwarp();
                float s[8][4];
#pragma unroll
                for (int j = 0; j < 8; j++)
                    s[j][0] = s[j][1] = s[j][2] = s[j][3] = 0;
#pragma unroll 1
                for (uint32_t b = 0; b < HD / 32; b++)
                    attn_scores_block<HD>(s, sm.q_hi, sm.q_lo, (int)b,
                                          [&](int j) { return raw_eight(8 * j + g, b, t, true); });
                __syncwarp(); /* K has been read */
                load_raw(v_off, ~0u);
                attn_probs p;
                const attn_span both[2] = {span, span};
                attn_mask(s, base, both);
                attn_softmax(p, s);
                attn_split(p, s);
                put_sums(p);
                cp_wait<0>();
                __syncwarp();
                float o[HD / 64][8][4];
#pragma unroll
                for (uint32_t h = 0; h < HD / 64; h++)
                    attn_values(o[h], p, [&](int k, int i) {
                        const uint32_t r = decode_v_row(4 * k + i);
                        const int pos = base + (int)r; /* what is not seen has a weight of 0, and 0 * NaN is NaN */
                        return raw_eight(r, 2 * h + g / 4, g % 4, pos >= span.first && pos <= span.last);
                    });
                __syncwarp(); /* so has V */
#pragma unroll
                for (uint32_t h = 0; h < HD / 64; h++)
                    put_o(o[h], h);
            }
        } else if (on) {
            float s[8][4];
            if constexpr (AHEAD) {
                cp_wait<0>();
                __syncwarp();
            }
#pragma unroll
            for (int j = 0; j < 8; j++)
                s[j][0] = s[j][1] = s[j][2] = s[j][3] = 0;
            uint4 k[8], next[8]; /* from device memory: of this block of 32 dimensions, and of the next */
            auto load_k = [&](uint32_t b) {
#pragma unroll
                for (int j = 0; j < 8; j++) {
                    const unsigned char *r = sm.row[warp][8 * j + g];
                    next[j] = load16(r + 64 * b + 16 * t, r && 32 * b + 8 * t < hd);
                }
            };
            if constexpr (!AHEAD)
                load_k(0);
#pragma unroll 1
            for (uint32_t b = 0; b < HD / 32; b++) {
                if constexpr (AHEAD) {
                    attn_scores_block<HD>(s, sm.q_hi, sm.q_lo, (int)b, [&](int j) {
                        return sm.tile[warp].k[attn_swizzle<HD>(8 * j + g, 4 * b + t)];
                    });
                } else {
#pragma unroll
                    for (int j = 0; j < 8; j++)
                        k[j] = next[j];
                    if (b + 1 < HD / 32)
                        load_k(b + 1);
                    attn_scores_block<HD>(s, sm.q_hi, sm.q_lo, (int)b, [&](int j) { return k[j]; });
                }
            }
            if constexpr (!AHEAD) {
                load_v(0);
            } else {
#pragma unroll
                for (int i = 0; i < 16; i++)
                    if (base + (int)decode_v_row(i) == missing)
                        v[i / 4][i % 4] = sm.fresh_v[g];
            }
            attn_probs p;
            __syncwarp(); /* K has been read */
            decode_softmax(p, s, base, span, reinterpret_cast<uint4 *>(&sm.tile[warp]));
            put_sums(p);
            __syncwarp(); /* so have its scores */
#pragma unroll 1
            for (uint32_t h = 0; h < HD / 64; h++) {
                if constexpr (AHEAD) {
                    if (h)
#pragma unroll
                        for (int i = 0; i < 16; i++)
                            v[i / 4][i % 4] = sm.tile[warp].v[decode_v_at(decode_v_row(i), g)];
                } else if (h) {
                    load_v(h);
                }
                float o[8][4];
                attn_values(o, p, [&](int i, int which) { return v[i][which]; });
                put_o(o, h);
            }
        }
        __syncthreads();
        /* A warp a row, four columns a lane of each 128. */
        constexpr int QUADS = (HD + 127) / 128;
        const int first = max(span.first - split * KERN_ATTN_SPLIT, 0) / ATTN_TILE;
        const int last = min(span.last - split * KERN_ATTN_SPLIT, KERN_ATTN_SPLIT - 1) / ATTN_TILE;
#pragma unroll 1
        for (uint32_t r = warp; r < n_rows; r += DECODE_WARPS) {
            const float4 zero = make_float4(0, 0, 0, 0);
            float m = -INFINITY, l = 0;
            float4 o[QUADS];
#pragma unroll
            for (int i = 0; i < QUADS; i++)
                o[i] = zero;
#pragma unroll 1
            for (int w = first; w <= last; w++)
                if (sm.m[w][r] != -INFINITY) {
                    const attn_weight k = attn_merge(m, l, sm.m[w][r], sm.l[w][r]);
#pragma unroll
                    for (int i = 0; i < QUADS; i++)
                        if (lane + 32 * i < HD / 4)
                            o[i] = attn_mix4(
                                o[i], reinterpret_cast<const float4 *>(&sm.tile[w])[r * (HD / 4) + lane + 32 * i], k);
                }
            if (!alone) {
                float *part = part_of(a, hd, token, head0 + r, blockIdx.x, gridDim.x);
#pragma unroll
                for (int i = 0; i < QUADS; i++) {
                    const uint32_t c = (lane + 32 * i) * 4;
                    if (c < hd) { /* two floats ahead of them: not aligned to more */
                        *reinterpret_cast<float2 *>(part + 2 + c) = make_float2(o[i].x, o[i].y);
                        *reinterpret_cast<float2 *>(part + 4 + c) = make_float2(o[i].z, o[i].w);
                    }
                }
                if (lane == 0) {
                    part[0] = m;
                    part[1] = l;
                }
                continue;
            }
            float all_m = split > begin ? sm.all_m[r] : -INFINITY, all_l = split > begin ? sm.all_l[r] : 0;
            const bool some = m != -INFINITY;
            const attn_weight k = some ? attn_merge(all_m, all_l, m, l) : attn_weight{1.0f, 0.0f};
            attn_weight ws = {1.0f, 0.0f};
            if (split == end && a.sinks)
                ws = attn_merge(all_m, all_l, a.sinks[head0 + r] * LOG2E, 1.0f);
#pragma unroll
            for (int i = 0; i < QUADS; i++) {
                const uint32_t c = lane + 32 * i;
                float4 all = split > begin && c < HD / 4 ? sm.all[r][c] : zero;
                if (some)
                    all = attn_mix4(all, o[i], k);
                if (split < end) {
                    if (c < HD / 4)
                        sm.all[r][c] = all;
                    continue;
                }
                if (a.sinks)
                    all = attn_mix4(all, zero, ws);
                if (c * 4 < hd)
                    *reinterpret_cast<float4 *>(out + r * hd + c * 4) =
                        make_float4(all.x / all_l, all.y / all_l, all.z / all_l, all.w / all_l);
            }
            if (split < end) {
                sm.all_m[r] = all_m;
                sm.all_l[r] = all_l;
                __syncwarp();
            }
        }
        if (split < end)
            __syncthreads(); /* before the next tiles */
    }
}

#define MERGE_BLOCK 128 /* columns of a block, and splits whose weights it finds at once */

/* attn_merge() of one split after the other: their weights are found by a thread each, so that only the sums wait for each other. */
__global__ void __launch_bounds__(MERGE_BLOCK)
    attn_merge_kernel(const __grid_constant__ kern_attn_args a, uint32_t dim, uint32_t n_splits)
{
    __shared__ float maxima[MERGE_BLOCK / 32];
    __shared__ float4 part[MERGE_BLOCK]; /* weights of what is summed and of what is added, sum, maximum */
    const uint32_t token = blockIdx.x, head = blockIdx.y, c = blockIdx.z * MERGE_BLOCK + threadIdx.x;
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    overlap_begin();
    if (a.token_seq[token] == UINT32_MAX)
        return;
    const attn_span span = latent_span_of(a, token);
    const uint32_t end = (uint32_t)span.last / KERN_ATTN_SPLIT + 1;
    float m = -INFINITY, l = 0, o = 0;
    for (uint32_t s = (uint32_t)span.first / KERN_ATTN_SPLIT; s < end; s += MERGE_BLOCK) {
        const uint32_t n = min(MERGE_BLOCK, end - s);
        const float *const from = part_of(a, dim, token, head, s, n_splits);
        const float *const mine = from + (size_t)threadIdx.x * (dim + 2);
        const float own_m = threadIdx.x < n ? mine[0] : -INFINITY, own_l = threadIdx.x < n ? mine[1] : 0.0f;
        float top = own_m; /* of the splits up to this one */
#pragma unroll
        for (int d = 1; d < 32; d *= 2) {
            const float before = __shfl_up_sync(~0u, top, d);
            top = lane >= d ? fmaxf(top, before) : top;
        }
        float before = __shfl_up_sync(~0u, top, 1);
        before = lane ? fmaxf(m, before) : m;
        __syncthreads(); /* the last ones have been read */
        if (lane == 31)
            maxima[warp] = top;
        __syncthreads();
#pragma unroll
        for (uint32_t w = 0; w < MERGE_BLOCK / 32; w++) {
            before = w < warp ? fmaxf(before, maxima[w]) : before;
            m = fmaxf(m, maxima[w]);
        }
        float unused = 0;
        const attn_weight k = attn_merge(before, unused, own_m, own_l);
        part[threadIdx.x] = make_float4(k.a, k.b, own_l, own_m);
        __syncthreads();
#pragma unroll 16
        for (uint32_t i = 0; i < n; i++) {
            const float4 p = part[i];
            const float fresh = c < dim ? from[(size_t)i * (dim + 2) + 2 + c] : 0.0f;
            if (p.w != -INFINITY) {
                l = fmaf(p.z, p.y, __fmul_rn(l, p.x));
                o = attn_mix(o, fresh, attn_weight{p.x, p.y});
            }
        }
    }
    if (c >= dim)
        return;
    if (a.sinks) {
        const attn_weight k = attn_merge(m, l, a.sinks[head] * LOG2E, 1.0f);
        o = attn_mix(o, 0.0f, k);
    }
    a.o[((size_t)token * a.n_heads + head) * dim + c] = o / l;
}

static uint32_t splits_of(uint32_t max_context)
{
    return (max_context + KERN_ATTN_SPLIT - 1) / KERN_ATTN_SPLIT;
}

uint64_t cuda_attn_scratch_bytes(kern_dev *, uint32_t max_tokens, uint32_t n_heads, uint32_t head_dim,
                                 uint32_t max_context)
{
    const uint64_t rows = (uint64_t)max_tokens * n_heads;
    return (rows < DECODE_SPLIT_ROWS ? rows : DECODE_SPLIT_ROWS) * splits_of(max_context) * (head_dim + 2) *
               sizeof(float) +
           256;
}

uint32_t attn_decode_splits(const kern_attn_args *a)
{
    const uint32_t splits = splits_of(a->max_context);
    return (uint64_t)a->n_tokens * a->n_heads > DECODE_SPLIT_ROWS || splits == 0 ? 1 : splits;
}

void attn_merge_launch(cuda_dev *d, const kern_attn_args *a, uint32_t dim, uint32_t n_splits)
{
    (void)cuda_start(d, attn_merge_kernel, dim3(a->n_tokens, a->n_heads, (dim + MERGE_BLOCK - 1) / MERGE_BLOCK),
                     MERGE_BLOCK, 0, *a, dim, n_splits);
}

bool attn_decode_ropes(const kern_attn_args *a)
{
    return a->one_each && a->n_heads / a->kv.n_kv_heads <= 16 && a->n_tokens <= 65535 &&
           a->rope->rot_dim <= a->kv.head_dim && !a->rope->norm_last && a->rope->grow == 0;
}

template <int HD, bool AHEAD, kern_fmt FMT>
static cudaError_t launch_decode(cuda_dev *d, const kern_attn_args *a, bool rope_too)
{
    static_assert(HD > 128 || sizeof(decode_smem<HD, false, FMT>) <= CUDA_LEAST_SMEM, "for every chip");
    const size_t smem = sizeof(decode_smem<HD, AHEAD, FMT>);
    const uint32_t heads = a->n_heads / a->kv.n_kv_heads, row_groups = (heads + 15) / 16;
    const uint32_t splits = attn_decode_splits(a);
    cudaError_t e = cudaFuncSetAttribute(attn_decode_kernel<HD, AHEAD, FMT>,
                                         cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem);
    if (e != cudaSuccess)
        return e;
    kern_attn_args all = *a;
    if (rope_too)
        all.token_seq = a->rope->token_seq; /* tells padding apart */
    /* gridDim.z is at most 65535: longer batches go in pieces */
    for (uint32_t at = 0; at < a->n_tokens; at += 65535) {
        kern_attn_args b = all;
        b.n_tokens = a->n_tokens - at < 65535 ? a->n_tokens - at : 65535;
        b.qkv += (size_t)at * a->qkv_stride;
        b.o += (size_t)at * a->n_heads * a->kv.head_dim;
        b.token_seq += at;
        b.token_pos += at;
        (void)cuda_start(d, attn_decode_kernel<HD, AHEAD, FMT>, dim3(splits, a->kv.n_kv_heads * row_groups, b.n_tokens),
                         DECODE_WARPS * 32, smem, b, rope_too ? *a->rope : kern_rope_kv_args(), rope_too, row_groups,
                         cuda_take_mark(d));
    }
    if (splits > 1)
        attn_merge_launch(d, &all, a->kv.head_dim, splits);
    return cudaSuccess;
}

template <int HD> static cudaError_t choose_decode(cuda_dev *d, const kern_attn_args *a, bool rope_too)
{
    if (a->kv.fmt == FMT_Q8_0)
        return launch_decode<HD, false, FMT_Q8_0>(d, a, rope_too);
    if constexpr (HD <= 128) {
        /* Whoever stored K and V of this step may still run; only where this kernel does so itself are all others there. */
        if (rope_too && d->overlap && sizeof(decode_smem<HD, true, FMT_F16>) <= (size_t)d->smem_max)
            return launch_decode<HD, true, FMT_F16>(d, a, rope_too);
    }
    return launch_decode<HD, false, FMT_F16>(d, a, rope_too);
}

bool attn_decode_takes(const cuda_dev *d, kern_fmt fmt, uint32_t head_dim)
{
    const size_t wide =
        fmt == FMT_Q8_0 ? sizeof(decode_smem<256, false, FMT_Q8_0>) : sizeof(decode_smem<256, false, FMT_F16>);
    return head_dim <= 128 || (head_dim <= 256 && wide <= (size_t)d->smem_max);
}

cudaError_t attn_decode_launch(cuda_dev *d, const kern_attn_args *a, bool rope_too)
{
    const uint32_t hd = a->kv.head_dim;
    return hd <= 64    ? choose_decode<64>(d, a, rope_too)
           : hd <= 128 ? choose_decode<128>(d, a, rope_too)
                       : choose_decode<256>(d, a, rope_too);
}
