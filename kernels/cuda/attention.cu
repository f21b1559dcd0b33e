/* attention.cu - causal attention over the paged cache: decode and prefill.
 *
 * Both are built of attn_tile.cuh and give the same bits.
 * Decode: a block a (token, KV head), a warp a tile, straight from memory to registers. Few tokens: splits of the context go to
 * blocks of their own and a second launch merges them; many: a block walks the splits.
 * Prefill: a block takes 64 rows (tokens times the heads of a group) of neighbouring tokens and walks the context once for all of
 * them, tiles staged in shared memory; a tile of tokens of several sequences is walked once for each. */
#include "kernels/cuda/attn.h"
#include "kernels/cuda/attn_tile.cuh"
#include "kernels/cuda/frag.cuh"
#include "kernels/cuda/overlap.cuh"

/* Above this many (token, head) pairs a block walks all splits: there is enough to do without a second launch, and the scratch
 * stays small. */
#define DECODE_SPLIT_ROWS 1024
#define LOG2E             1.44269504088896340736f

static __device__ __forceinline__ const unsigned char *kv_row(const kern_attn_args &a, const uint32_t *table,
                                                              uint32_t kvh, uint32_t pos)
{
    const uint32_t id = table[pos / a.kv.block_size];
    return reinterpret_cast<const unsigned char *>(a.kv.block_addr[id] + a.layer * a.kv.layer_bytes) +
           ((size_t)kvh * a.kv.block_size + pos % a.kv.block_size) * a.kv.head_dim * 2;
}

/* Eight scaled values of Q as f16 hi and lo into the swizzled rows. */
template <int HD>
static __device__ __forceinline__ void put_q(uint4 *q_hi, uint4 *q_lo, uint32_t row, uint32_t c, const float *src,
                                             float scale)
{
    uint4 h = make_uint4(0, 0, 0, 0), l = h;
    if (src) {
        float v[8];
#pragma unroll
        for (int i = 0; i < 8; i++)
            v[i] = src[i] * scale;
        split_half(v[0], v[1], &h.x, &l.x);
        split_half(v[2], v[3], &h.y, &l.y);
        split_half(v[4], v[5], &h.z, &l.z);
        split_half(v[6], v[7], &h.w, &l.w);
    }
    q_hi[attn_swizzle<HD>(row, c)] = h;
    q_lo[attn_swizzle<HD>(row, c)] = l;
}

static __device__ __forceinline__ attn_span span_of(const kern_attn_args &a, uint32_t token)
{
    const int pos = (int)a.token_pos[token];
    return attn_span{a.window && pos + 1 > (int)a.window ? pos + 1 - (int)a.window : 0, pos};
}

/* --- decode ------------------------------------------------------------------------------------------------------------- */

#define DECODE_WARPS (KERN_ATTN_SPLIT / ATTN_TILE)

/* Partial results of a split: [(token * n_heads + head) * n_splits + split] of {m, l, o[head_dim]}. */
static __device__ __forceinline__ float *part_of(const kern_attn_args &a, uint32_t token, uint32_t head, uint32_t split,
                                                 uint32_t n_splits)
{
    return static_cast<float *>(a.scratch) +
           (((size_t)token * a.n_heads + head) * n_splits + split) * (a.kv.head_dim + 2);
}

template <int HD>
__global__ void __launch_bounds__(DECODE_WARPS * 32)
    attn_decode_kernel(const __grid_constant__ kern_attn_args a, uint32_t row_groups)
{
    extern __shared__ __align__(16) unsigned char smem[];
    uint4 *q_hi = reinterpret_cast<uint4 *>(smem), *q_lo = q_hi + 16 * HD / 8;
    const unsigned char **rows = reinterpret_cast<const unsigned char **>(q_lo + 16 * HD / 8); /* [DECODE_WARPS][64] */
    float *tile_m = reinterpret_cast<float *>(rows + DECODE_WARPS * ATTN_TILE);
    float *tile_l = tile_m + DECODE_WARPS * 16, *tile_o = tile_l + DECODE_WARPS * 16; /* [DECODE_WARPS][16][HD] */

    const uint32_t token = blockIdx.z, kvh = blockIdx.y / row_groups, heads = a.n_heads / a.kv.n_kv_heads,
                   hd = a.kv.head_dim;
    const uint32_t head0 = kvh * heads + blockIdx.y % row_groups * 16,
                   n_rows = min(16u, heads - blockIdx.y % row_groups * 16);
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    overlap_begin();
    if (a.token_seq[token] == UINT32_MAX)
        return;
    const attn_span span = span_of(a, token);
    const bool alone = gridDim.x == 1; /* this block walks all splits */
    const int first_split = span.first / KERN_ATTN_SPLIT, last_split = span.last / KERN_ATTN_SPLIT;
    const int begin = alone ? first_split : (int)blockIdx.x, end = alone ? last_split : (int)blockIdx.x;
    if (begin < first_split || end > last_split)
        return;

    for (uint32_t i = threadIdx.x; i < 16 * HD / 8; i += blockDim.x) {
        const uint32_t r = i / (HD / 8), c = i % (HD / 8);
        const bool on = r < n_rows && c * 8 < hd;
        put_q<HD>(q_hi, q_lo, r, c, on ? a.qkv + (size_t)token * a.qkv_stride + (head0 + r) * hd + c * 8 : nullptr,
                  a.scale * LOG2E);
    }
    const uint32_t *table = a.kv.block_table + (size_t)a.token_seq[token] * a.kv.max_blocks;
    const size_t v_off = (size_t)a.kv.n_kv_heads * a.kv.block_size * hd * 2;
    const attn_span spans[2] = {span, span};
    const unsigned char **row = rows + warp * ATTN_TILE;

    /* Elements of the merged result that this thread owns: index i * blockDim.x + threadIdx.x of [16][HD]. */
    constexpr int OWN = 16 * HD / (DECODE_WARPS * 32);
    float all_m[OWN], all_l[OWN], all_o[OWN];
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        all_m[i] = -INFINITY;
        all_l[i] = all_o[i] = 0;
    }
    for (int split = begin; split <= end; split++) {
        const int base = split * KERN_ATTN_SPLIT + (int)warp * ATTN_TILE;
        const bool on = base <= span.last && base + ATTN_TILE > span.first;
        if (on)
            for (int i = (int)lane; i < ATTN_TILE; i += 32) {
                const int pos = base + i;
                row[i] = pos >= span.first && pos <= span.last ? kv_row(a, table, kvh, (uint32_t)pos) : nullptr;
            }
        __syncthreads(); /* Q and the rows are there; the tiles of the split before have been merged */
        if (on) {
            const uint4 none = make_uint4(0, 0, 0, 0);
            float s[8][4];
            attn_scores<HD>(s, q_hi, q_lo, [&](int j, int b) {
                const unsigned char *p = row[8 * j + g];
                const uint32_t c = 32 * b + 8 * t;
                return p && c < hd ? *reinterpret_cast<const uint4 *>(p + c * 2) : none;
            });
            attn_probs p;
            attn_softmax(p, s, base, spans);
            if (t == 0) {
                tile_m[warp * 16 + g] = p.m[0];
                tile_m[warp * 16 + g + 8] = p.m[1];
                tile_l[warp * 16 + g] = p.l[0];
                tile_l[warp * 16 + g + 8] = p.l[1];
            }
#pragma unroll
            for (int h = 0; h < HD / 64; h++) {
                float o[8][4];
                const uint32_t c = 64 * h + 8 * g;
                attn_values(o, p, [&](uint32_t i) {
                    const unsigned char *r = row[i];
                    return r && c < hd ? *reinterpret_cast<const uint4 *>(r + v_off + c * 2) : none;
                });
#pragma unroll
                for (int i = 0; i < 8; i++)
#pragma unroll
                    for (int r = 0; r < 2; r++) {
                        float *dst = tile_o + ((size_t)warp * 16 + g + 8 * r) * HD + 64 * h + 16 * t + i;
                        dst[0] = o[i][2 * r];
                        dst[8] = o[i][2 * r + 1];
                    }
            }
        } else if (lane < 16) {
            tile_m[warp * 16 + lane] = -INFINITY;
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            const uint32_t at = i * blockDim.x + threadIdx.x, r = at / HD;
            float m = -INFINITY, l = 0, o = 0;
            for (uint32_t w = 0; w < DECODE_WARPS; w++) {
                if (tile_m[w * 16 + r] == -INFINITY)
                    continue;
                const attn_weight k = attn_merge(m, l, tile_m[w * 16 + r], tile_l[w * 16 + r]);
                o = attn_mix(o, tile_o[w * 16 * HD + at], k);
            }
            if (!alone) {
                all_m[i] = m;
                all_l[i] = l;
                all_o[i] = o;
            } else if (m != -INFINITY) {
                const attn_weight k = attn_merge(all_m[i], all_l[i], m, l);
                all_o[i] = attn_mix(all_o[i], o, k);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        const uint32_t at = i * blockDim.x + threadIdx.x, r = at / HD, c = at % HD;
        if (r >= n_rows || c >= hd)
            continue;
        if (!alone) {
            float *part = part_of(a, token, head0 + r, blockIdx.x, gridDim.x);
            part[2 + c] = all_o[i];
            if (c == 0) {
                part[0] = all_m[i];
                part[1] = all_l[i];
            }
            continue;
        }
        if (a.sinks) {
            const attn_weight k = attn_merge(all_m[i], all_l[i], a.sinks[head0 + r] * LOG2E, 1.0f);
            all_o[i] = attn_mix(all_o[i], 0.0f, k);
        }
        a.o[((size_t)token * a.n_heads + head0 + r) * hd + c] = all_o[i] / all_l[i];
    }
}

__global__ void attn_merge_kernel(const __grid_constant__ kern_attn_args a, uint32_t n_splits)
{
    const uint32_t token = blockIdx.x, head = blockIdx.y;
    overlap_begin();
    if (a.token_seq[token] == UINT32_MAX)
        return;
    const attn_span span = span_of(a, token);
    for (uint32_t c = threadIdx.x; c < a.kv.head_dim; c += blockDim.x) {
        float m = -INFINITY, l = 0, o = 0;
        for (int s = span.first / KERN_ATTN_SPLIT; s <= span.last / KERN_ATTN_SPLIT; s++) {
            const float *part = part_of(a, token, head, (uint32_t)s, n_splits);
            if (part[0] == -INFINITY)
                continue;
            const attn_weight k = attn_merge(m, l, part[0], part[1]);
            o = attn_mix(o, part[2 + c], k);
        }
        if (a.sinks) {
            const attn_weight k = attn_merge(m, l, a.sinks[head] * LOG2E, 1.0f);
            o = attn_mix(o, 0.0f, k);
        }
        a.o[((size_t)token * a.n_heads + head) * a.kv.head_dim + c] = o / l;
    }
}

/* --- prefill ------------------------------------------------------------------------------------------------------------ */

#define PREFILL_WARPS 4
#define PREFILL_ROWS  (PREFILL_WARPS * 16)

template <int HD> struct prefill_smem {
    static constexpr uint32_t V_PITCH = HD * 2 + 16; /* rows 2t apart use different banks */
    uint4 q_hi[PREFILL_ROWS * HD / 8], q_lo[PREFILL_ROWS * HD / 8];
    uint4 k[2][ATTN_TILE * HD / 8];
    unsigned char v[2][ATTN_TILE * V_PITCH];
    const unsigned char *row[2][ATTN_TILE];
};

/* The tile's K and V into buffer `buf`; rows of `row` that are NULL become zero, since 0 * garbage may be NaN. */
template <int HD>
static __device__ void prefill_load(const kern_attn_args &a, prefill_smem<HD> &sm, uint32_t buf, size_t v_off)
{
    const uint4 none = make_uint4(0, 0, 0, 0);
    for (uint32_t i = threadIdx.x; i < ATTN_TILE * HD / 8; i += PREFILL_WARPS * 32) {
        const uint32_t r = i / (HD / 8), c = i % (HD / 8);
        const unsigned char *src = sm.row[buf][r];
        uint4 *k = &sm.k[buf][attn_swizzle<HD>(r, c)];
        uint4 *v = reinterpret_cast<uint4 *>(sm.v[buf] + r * prefill_smem<HD>::V_PITCH + c * 16);
        if (src && c * 8 < a.kv.head_dim) {
            cp_async16(smem_of(k), (uint64_t)(uintptr_t)(src + c * 16));
            cp_async16(smem_of(v), (uint64_t)(uintptr_t)(src + v_off + c * 16));
        } else {
            *k = none;
            *v = none;
        }
    }
    cp_commit();
}

template <int HD>
__global__ void __launch_bounds__(PREFILL_WARPS * 32) attn_prefill_kernel(const __grid_constant__ kern_attn_args a)
{
    extern __shared__ __align__(16) unsigned char smem[];
    prefill_smem<HD> &sm = *reinterpret_cast<prefill_smem<HD> *>(smem);
    const uint32_t kvh = blockIdx.y, heads = a.n_heads / a.kv.n_kv_heads, hd = a.kv.head_dim;
    const uint32_t per_block = PREFILL_ROWS / heads;
    /* The last tokens have the longest context: they start first. */
    const uint32_t token0 = (gridDim.x - 1 - blockIdx.x) * per_block, n_tokens = min(per_block, a.n_tokens - token0);
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const size_t v_off = (size_t)a.kv.n_kv_heads * a.kv.block_size * hd * 2;
    overlap_begin();

    for (uint32_t i = threadIdx.x; i < PREFILL_ROWS * HD / 8; i += blockDim.x) {
        const uint32_t r = i / (HD / 8), c = i % (HD / 8);
        const bool on = r < n_tokens * heads && c * 8 < hd;
        const float *src = a.qkv + (size_t)(token0 + r / heads) * a.qkv_stride + (kvh * heads + r % heads) * hd + c * 8;
        put_q<HD>(sm.q_hi, sm.q_lo, r, c, on ? src : nullptr, a.scale * LOG2E);
    }
    const uint32_t my_row[2] = {warp * 16 + g, warp * 16 + g + 8};

    for (uint32_t run = 0; run < n_tokens;) { /* tokens of one sequence */
        const uint32_t seq = a.token_seq[token0 + run];
        uint32_t next = run;
        attn_span whole = {INT32_MAX, -1};
        for (; next < n_tokens && a.token_seq[token0 + next] == seq; next++) {
            const attn_span s = span_of(a, token0 + next);
            whole.first = min(whole.first, s.first);
            whole.last = max(whole.last, s.last);
        }
        if (seq == UINT32_MAX) {
            run = next;
            continue;
        }
        attn_span span[2], mine = {INT32_MAX, -1}; /* of the two rows of this lane; of all rows of the warp */
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const uint32_t token = my_row[r] / heads;
            const bool on = token >= run && token < next;
            span[r] = on ? span_of(a, token0 + token) : attn_span{0, -1};
            if (on) {
                mine.first = min(mine.first, span[r].first);
                mine.last = max(mine.last, span[r].last);
            }
        }
        mine.first = __reduce_min_sync(~0u, mine.first);
        mine.last = __reduce_max_sync(~0u, mine.last);

        const uint32_t *table = a.kv.block_table + (size_t)seq * a.kv.max_blocks;
        const int tile0 = whole.first / ATTN_TILE, tile1 = whole.last / ATTN_TILE;
        auto find_rows = [&](int tile) {
            if (threadIdx.x < ATTN_TILE) {
                const int pos = tile * ATTN_TILE + (int)threadIdx.x;
                const bool on = pos >= whole.first && pos <= whole.last;
                sm.row[tile & 1][threadIdx.x] = on ? kv_row(a, table, kvh, (uint32_t)pos) : nullptr;
            }
        };
        __syncthreads(); /* Q is there; the buffers of the run before are free */
        find_rows(tile0);
        __syncthreads();
        prefill_load<HD>(a, sm, (uint32_t)tile0 & 1, v_off);
        find_rows(tile0 + 1);

        float all_m[2] = {-INFINITY, -INFINITY}, all_l[2] = {0, 0};
        float m[2] = {-INFINITY, -INFINITY}, l[2] = {0, 0}, o[HD / 64][8][4];
#pragma unroll
        for (int h = 0; h < HD / 64; h++)
#pragma unroll
            for (int i = 0; i < 8; i++)
                o[h][i][0] = o[h][i][1] = o[h][i][2] = o[h][i][3] = 0;

        for (int tile = tile0; tile <= tile1; tile++) {
            const uint32_t buf = (uint32_t)tile & 1;
            cp_wait<0>();
            __syncthreads(); /* the tile and the next one's rows are there; all are done with the other buffer */
            if (tile < tile1)
                prefill_load<HD>(a, sm, buf ^ 1, v_off);
            const int base = tile * ATTN_TILE;
            if (base <= mine.last && base + ATTN_TILE > mine.first) {
                float s[8][4];
                attn_scores<HD>(s, sm.q_hi + warp * 16 * HD / 8, sm.q_lo + warp * 16 * HD / 8,
                                [&](int j, int b) { return sm.k[buf][attn_swizzle<HD>(8 * j + g, 4 * b + t)]; });
                attn_probs p;
                attn_softmax(p, s, base, span);
                attn_weight w[2];
#pragma unroll
                for (int r = 0; r < 2; r++)
                    w[r] = attn_merge(m[r], l[r], p.m[r], p.l[r]);
#pragma unroll
                for (int h = 0; h < HD / 64; h++) {
                    float fresh[8][4];
                    attn_values(fresh, p, [&](uint32_t i) {
                        return *reinterpret_cast<const uint4 *>(sm.v[buf] + i * prefill_smem<HD>::V_PITCH +
                                                                (64 * h + 8 * g) * 2);
                    });
#pragma unroll
                    for (int i = 0; i < 8; i++)
#pragma unroll
                        for (int c = 0; c < 4; c++)
                            o[h][i][c] =
                                p.m[c / 2] == -INFINITY ? o[h][i][c] : attn_mix(o[h][i][c], fresh[i][c], w[c / 2]);
                }
            }
            if (tile + 2 <= tile1) {
                /* Rows of the tile after next: their buffer's last reader was the load of this tile, before the barrier. */
                find_rows(tile + 2);
            }
            if (tile != tile1 && (tile + 1) % (KERN_ATTN_SPLIT / ATTN_TILE) != 0)
                continue;
                /* End of a split. What is merged so far waits in the result itself. */
#pragma unroll
            for (int r = 0; r < 2; r++) {
                if (span[r].last < 0)
                    continue;
                const bool had = all_m[r] != -INFINITY, has = m[r] != -INFINITY;
                const attn_weight w = attn_merge(all_m[r], all_l[r], m[r], l[r]);
                const uint32_t token = token0 + my_row[r] / heads, head = kvh * heads + my_row[r] % heads;
                float sink_l = all_l[r];
                attn_weight ws = {1.0f, 0.0f};
                if (tile == tile1 && a.sinks) {
                    float sink_m = all_m[r];
                    ws = attn_merge(sink_m, sink_l, a.sinks[head] * LOG2E, 1.0f);
                }
                float *out = a.o + ((size_t)token * a.n_heads + head) * hd;
#pragma unroll
                for (int h = 0; h < HD / 64; h++)
#pragma unroll
                    for (int i = 0; i < 8; i++)
#pragma unroll
                        for (int c = 0; c < 2; c++) {
                            const uint32_t at = 64 * h + 16 * t + 8 * c + i;
                            if (at >= hd)
                                continue;
                            float v = had ? out[at] : 0.0f;
                            if (has)
                                v = attn_mix(v, o[h][i][2 * r + c], w);
                            if (tile == tile1) {
                                if (a.sinks)
                                    v = attn_mix(v, 0.0f, ws);
                                v = v / sink_l;
                            }
                            out[at] = v;
                            o[h][i][2 * r + c] = 0;
                        }
                m[r] = -INFINITY;
                l[r] = 0;
            }
        }
        run = next;
    }
}

/* --- choice ------------------------------------------------------------------------------------------------------------- */

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

template <int HD> static cudaError_t launch_decode(cuda_dev *d, const kern_attn_args *a)
{
    const uint32_t heads = a->n_heads / a->kv.n_kv_heads, row_groups = (heads + 15) / 16;
    uint32_t splits = splits_of(a->max_context);
    if ((uint64_t)a->n_tokens * a->n_heads > DECODE_SPLIT_ROWS || splits == 0)
        splits = 1;
    const size_t smem = 2 * 16 * HD * 2 + DECODE_WARPS * (ATTN_TILE * 8 + 2 * 16 * 4 + 16 * HD * 4);
    cudaError_t e =
        cudaFuncSetAttribute(attn_decode_kernel<HD>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem);
    if (e != cudaSuccess)
        return e;
    /* gridDim.z is at most 65535: longer batches go in pieces */
    for (uint32_t at = 0; at < a->n_tokens; at += 65535) {
        kern_attn_args b = *a;
        b.n_tokens = a->n_tokens - at < 65535 ? a->n_tokens - at : 65535;
        b.qkv += (size_t)at * a->qkv_stride;
        b.o += (size_t)at * a->n_heads * a->kv.head_dim;
        b.token_seq += at;
        b.token_pos += at;
        (void)cuda_start(d, attn_decode_kernel<HD>, dim3(splits, a->kv.n_kv_heads * row_groups, b.n_tokens),
                         DECODE_WARPS * 32, smem, b, row_groups);
    }
    if (splits > 1)
        (void)cuda_start(d, attn_merge_kernel, dim3(a->n_tokens, a->n_heads), 128, 0, *a, splits);
    return cudaSuccess;
}

template <int HD> static cudaError_t launch_prefill(cuda_dev *d, const kern_attn_args *a)
{
    const uint32_t per_block = PREFILL_ROWS / (a->n_heads / a->kv.n_kv_heads);
    const size_t smem = sizeof(prefill_smem<HD>);
    cudaError_t e =
        cudaFuncSetAttribute(attn_prefill_kernel<HD>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem);
    if (e != cudaSuccess)
        return e;
    return cuda_start(d, attn_prefill_kernel<HD>, dim3((a->n_tokens + per_block - 1) / per_block, a->kv.n_kv_heads),
                      PREFILL_WARPS * 32, smem, *a);
}

kern_status cuda_attention(kern_dev *kd, const kern_attn_args *a)
{
    cuda_dev *d = cuda_of(kd);
    const uint32_t hd = a->kv.head_dim;
    if ((a->kv.fmt != FMT_F16 && a->kv.fmt != FMT_F32) || hd > 256 || a->n_heads % a->kv.n_kv_heads)
        return cuda_unsupported(d, "attention: KV must be F16 or F32, head dimension at most 256");
    if (!a->n_tokens)
        return KERN_OK;
    kern_status st = a->rope ? cuda_rope_kv(kd, a->rope) : KERN_OK;
    if (st)
        return st;
    const uint32_t heads = a->n_heads / a->kv.n_kv_heads;
    const bool fast =
        a->kv.fmt == FMT_F16 && hd % 8 == 0 && hd <= 128 && a->kv.layer_bytes % 16 == 0 && !d->no_attn_mma;
    /* Decode reads the context once a token, prefill once for up to 64 / heads tokens of a sequence. */
    const bool many = a->seq_start ? a->n_tokens >= 4 * a->n_seqs : a->n_tokens > 256;
    cudaError_t e = cudaSuccess;
    if (!fast)
        attn_simple_launch(d, a);
    else if (many && heads <= PREFILL_ROWS)
        e = hd <= 64 ? launch_prefill<64>(d, a) : launch_prefill<128>(d, a);
    else
        e = hd <= 64 ? launch_decode<64>(d, a) : launch_decode<128>(d, a);
    return e == cudaSuccess ? cuda_launched(d, "attention") : cuda_fail(d, e, "attention");
}
