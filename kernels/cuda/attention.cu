/* attention.cu - causal attention over the paged cache: the choice of kernel, and prefill by mma.sync.
 *
 * Prefill and decode (attn_decode.cu) are built of attn_tile.cuh and give the same bits; so does attn_wgmma.cu, which is chosen where it can be.
 * Here: a block takes 64 rows (tokens times the heads of a group) of neighbouring tokens and walks the context once for all of
 * them, tiles staged in shared memory; a tile of tokens of several sequences is walked once for each. */
#include "kernels/cuda/attn.h"
#include "kernels/cuda/attn_tile.cuh"
#include "kernels/cuda/frag.cuh"
#include "kernels/cuda/kv_q8_0.cuh"
#include "kernels/cuda/overlap.cuh"

/* --- prefill ------------------------------------------------------------------------------------------------------------ */

#define PREFILL_WARPS 4
#define PREFILL_ROWS  (PREFILL_WARPS * 16)

template <int HD, kern_fmt FMT> struct prefill_smem {
    static constexpr uint32_t V_PITCH = HD * 2 + 16; /* rows 2t apart use different banks */
    static constexpr uint32_t BUFFERS = 2;
    uint4 q_hi[PREFILL_ROWS * HD / 8], q_lo[PREFILL_ROWS * HD / 8];
    uint4 k[2][ATTN_TILE * HD / 8];
    unsigned char v[2][ATTN_TILE * V_PITCH];
    const unsigned char *row[2][ATTN_TILE];
};

/* The next tile comes as it is kept, while one is computed with that was taken apart. Of rows, only the first of each group. */
template <int HD> struct prefill_smem<HD, FMT_Q8_0> {
    static constexpr uint32_t V_PITCH = HD * 2 + 16;
    static constexpr uint32_t BUFFERS = 1;
    uint4 q_hi[PREFILL_ROWS * HD / 8], q_lo[PREFILL_ROWS * HD / 8];
    uint4 k[1][ATTN_TILE * HD / 8];
    unsigned char v[1][ATTN_TILE * V_PITCH];
    unsigned char raw_k[q8_raw_bytes(HD, ATTN_TILE)], raw_v[q8_raw_bytes(HD, ATTN_TILE)];
    const unsigned char *row[2][ATTN_TILE / Q8_GROUP];
};

/* The tile's K and V into buffer `buf`; rows of `row` that are NULL become zero, since 0 * garbage may be NaN. */
template <int HD>
static __device__ void prefill_load(const kern_attn_args &a, prefill_smem<HD, FMT_F16> &sm, uint32_t buf, size_t v_off)
{
    const uint4 none = make_uint4(0, 0, 0, 0);
    for (uint32_t i = threadIdx.x; i < ATTN_TILE * HD / 8; i += PREFILL_WARPS * 32) {
        const uint32_t r = i / (HD / 8), c = i % (HD / 8);
        const unsigned char *src = sm.row[buf][r];
        uint4 *k = &sm.k[buf][attn_swizzle<HD>(r, c)];
        uint4 *v = reinterpret_cast<uint4 *>(sm.v[buf] + r * prefill_smem<HD, FMT_F16>::V_PITCH + c * 16);
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
static __device__ void prefill_load(const kern_attn_args &a, prefill_smem<HD, FMT_Q8_0> &sm, uint32_t buf, size_t v_off)
{
    const uint32_t pieces = q8_group_pieces(a.kv.head_dim), warp = threadIdx.x / 32;
    q8_fetch_rows<ATTN_TILE>(sm.raw_k, pieces, warp, PREFILL_WARPS, [&](uint32_t i) { return sm.row[buf][i]; });
    q8_fetch_rows<ATTN_TILE>(sm.raw_v, pieces, warp, PREFILL_WARPS, [&](uint32_t i) {
        const unsigned char *row = sm.row[buf][i];
        return row ? row + v_off : nullptr;
    });
    cp_commit();
}

/* The tile that has come; positions that are not in `seen` become zero. */
template <int HD>
static __device__ void prefill_unpack(const kern_attn_args &a, prefill_smem<HD, FMT_Q8_0> &sm, int base, attn_span seen)
{
    const uint32_t row_bytes = (uint32_t)kv_bytes<FMT_Q8_0>(a, 1);
#pragma unroll 2
    for (uint32_t i = threadIdx.x; i < ATTN_TILE * HD / 8; i += PREFILL_WARPS * 32) {
        const uint32_t r = i / (HD / 8), c = i % (HD / 8);
        const uint32_t at = r * row_bytes + c / 4 * (uint32_t)sizeof(kern_q8_0_block);
        const bool on = base + (int)r >= seen.first && base + (int)r <= seen.last && c * 8 < a.kv.head_dim;
        sm.k[0][attn_swizzle<HD>(r, c)] = q8_eight(sm.raw_k + at, c % 4, on);
        *reinterpret_cast<uint4 *>(sm.v[0] + r * prefill_smem<HD, FMT_Q8_0>::V_PITCH + c * 16) =
            q8_eight(sm.raw_v + at, c % 4, on);
    }
}

template <int HD, kern_fmt FMT>
__global__ void __launch_bounds__(PREFILL_WARPS * 32) attn_prefill_kernel(const __grid_constant__ kern_attn_args a)
{
    extern __shared__ __align__(16) unsigned char smem[];
    prefill_smem<HD, FMT> &sm = *reinterpret_cast<prefill_smem<HD, FMT> *>(smem);
    const uint32_t kvh = blockIdx.y, heads = a.n_heads / a.kv.n_kv_heads, hd = a.kv.head_dim;
    const uint32_t per_block = PREFILL_ROWS / heads;
    /* The last tokens have the longest context: they start first. */
    const uint32_t token0 = (gridDim.x - 1 - blockIdx.x) * per_block, n_tokens = min(per_block, a.n_tokens - token0);
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const size_t v_off = kv_bytes<FMT>(a, (size_t)a.kv.n_kv_heads * a.kv.block_size);
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
        const uint32_t next = end_of_run(a, token0 + run, token0 + n_tokens) - token0;
        const attn_span whole = span_of_all(a, token0 + run, token0 + next);
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
            constexpr uint32_t STEP = FMT == FMT_Q8_0 ? Q8_GROUP : 1;
            if (threadIdx.x < ATTN_TILE / STEP) {
                const int pos = tile * ATTN_TILE + (int)(threadIdx.x * STEP);
                const bool on = pos + (int)(STEP - 1) >= whole.first && pos <= whole.last;
                sm.row[tile & 1][threadIdx.x] = on ? kv_row<FMT>(a, table, kvh, (uint32_t)pos) : nullptr;
            }
        };
        __syncthreads(); /* Q is there; the buffers of the run before are free */
        find_rows(tile0);
        __syncthreads();
        prefill_load(a, sm, (uint32_t)tile0 & 1, v_off);
        find_rows(tile0 + 1);

        float all_m[2] = {-INFINITY, -INFINITY}, all_l[2] = {0, 0};
        float m[2] = {-INFINITY, -INFINITY}, l[2] = {0, 0}, o[HD / 64][8][4];
#pragma unroll
        for (int h = 0; h < HD / 64; h++)
#pragma unroll
            for (int i = 0; i < 8; i++)
                o[h][i][0] = o[h][i][1] = o[h][i][2] = o[h][i][3] = 0;

        for (int tile = tile0; tile <= tile1; tile++) {
            const uint32_t buf = (uint32_t)tile & 1, at = buf % prefill_smem<HD, FMT>::BUFFERS;
            cp_wait<0>();
            __syncthreads(); /* the tile and the next one's rows are there; all are done with the other buffer */
            if constexpr (FMT == FMT_Q8_0) { /* with the only one */
                prefill_unpack(a, sm, tile * ATTN_TILE, whole);
                __syncthreads();
            }
            if (tile < tile1)
                prefill_load(a, sm, buf ^ 1, v_off);
            const int base = tile * ATTN_TILE;
            if (base <= mine.last && base + ATTN_TILE > mine.first) {
                float s[8][4];
                attn_scores<HD>(s, sm.q_hi + warp * 16 * HD / 8, sm.q_lo + warp * 16 * HD / 8,
                                [&](int j, int b) { return sm.k[at][attn_swizzle<HD>(8 * j + g, 4 * b + t)]; });
                attn_probs p;
                attn_mask(s, base, span);
                attn_softmax(p, s);
                attn_split(p, s);
                attn_weight w[2];
#pragma unroll
                for (int r = 0; r < 2; r++)
                    w[r] = attn_merge(m[r], l[r], p.m[r], p.l[r]);
#pragma unroll
                for (int h = 0; h < HD / 64; h++) {
                    float fresh[8][4];
                    attn_values(fresh, p, [&](int step, int which) {
                        const uint32_t i = 16 * step + 2 * t + which % 2 + which / 2 * 8;
                        return *reinterpret_cast<const uint4 *>(sm.v[at] + i * prefill_smem<HD, FMT>::V_PITCH +
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

/* --- choice ------------------------------------------------------------------------------------------------------------ */

template <int HD, kern_fmt FMT> static cudaError_t launch_prefill(cuda_dev *d, const kern_attn_args *a)
{
    const uint32_t per_block = PREFILL_ROWS / (a->n_heads / a->kv.n_kv_heads);
    const size_t smem = sizeof(prefill_smem<HD, FMT>);
    static_assert(HD > 128 || sizeof(prefill_smem<HD, FMT>) <= CUDA_LEAST_SMEM, "for every chip");
    cudaError_t e =
        cudaFuncSetAttribute(attn_prefill_kernel<HD, FMT>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem);
    if (e != cudaSuccess)
        return e;
    return cuda_start(d, attn_prefill_kernel<HD, FMT>,
                      dim3((a->n_tokens + per_block - 1) / per_block, a->kv.n_kv_heads), PREFILL_WARPS * 32, smem, *a);
}

template <int HD> static cudaError_t choose_prefill(cuda_dev *d, const kern_attn_args *a)
{
    return a->kv.fmt == FMT_Q8_0 ? launch_prefill<HD, FMT_Q8_0>(d, a) : launch_prefill<HD, FMT_F16>(d, a);
}

/* Both or none: their bits are the same, and those of attn_simple.cu are others. */
static bool mma_takes(const cuda_dev *d, const kern_attn_args *a)
{
    const uint32_t hd = a->kv.head_dim;
    return !d->no_attn_mma && attn_kv_in_pieces(a) && attn_decode_takes(d, a->kv.fmt, hd) &&
           (hd <= 128 || (a->kv.fmt == FMT_Q8_0 ? sizeof(prefill_smem<256, FMT_Q8_0>)
                                                : sizeof(prefill_smem<256, FMT_F16>)) <= (size_t)d->smem_max);
}

static kern_status attend_latent(cuda_dev *d, const kern_attn_args *a)
{
    kern_status st = a->rope ? cuda_rope_kv(&d->base, a->rope) : KERN_OK;
    if (st)
        return st;
    if (a->chosen && (a->window || !a->top_k))
        return KERN_ARG;
    kern_attn_args b = *a;
    if (a->chosen && a->top_k < a->max_context) /* splits are of what is chosen */
        b.max_context = a->top_k;
    cudaError_t e = cudaSuccess;
    if (attn_latent_takes(d, &b))
        e = attn_latent_launch(d, &b);
    else
        attn_simple_launch(d, &b);
    return e == cudaSuccess ? cuda_launched(d, "attention") : cuda_fail(d, e, "attention");
}

kern_status cuda_attention(kern_dev *kd, const kern_attn_args *a)
{
    cuda_dev *d = cuda_of(kd);
    const uint32_t hd = a->kv.head_dim;
    if (!kern_kv_is_known(&a->kv) || hd > (a->kv.v_dim ? ATTN_MAX_LATENT : ATTN_MAX_HEAD) || a->kv.v_dim > hd ||
        a->n_heads % a->kv.n_kv_heads)
        return cuda_unsupported(d, "attention: KV must be F16, F32 or Q8_0, head dimension at most 512 (latent: 1024)");
    if (!a->n_tokens)
        return KERN_OK;
    if (a->kv.v_dim)
        return attend_latent(d, a);
    if (a->chosen)
        return KERN_ARG;
    const uint32_t heads = a->n_heads / a->kv.n_kv_heads;
    const bool fast = mma_takes(d, a), wide = !fast && attn_wide_takes(d, a);
    /* Decode reads the context once a token, prefill once for up to 64 / heads tokens of a sequence. */
    const bool many = a->seq_start ? a->n_tokens >= 4 * a->n_seqs : a->n_tokens > 256;
    const bool decode = fast && !(many && heads <= PREFILL_ROWS);
    const bool rope_too = a->rope && decode && attn_decode_ropes(a);
    kern_status st = a->rope && !rope_too ? cuda_rope_kv(kd, a->rope) : KERN_OK;
    if (st)
        return st;
    cudaError_t e = cudaSuccess;
    if (wide)
        e = attn_wide_launch(d, a, many);
    else if (!fast)
        attn_simple_launch(d, a);
    else if (decode)
        e = attn_decode_launch(d, a, rope_too);
    else if (attn_wgmma_takes(d, a))
        e = attn_wgmma_launch(d, a);
    else
        e = hd <= 64 ? choose_prefill<64>(d, a) : hd <= 128 ? choose_prefill<128>(d, a) : choose_prefill<256>(d, a);
    return e == cudaSuccess ? cuda_launched(d, "attention") : cuda_fail(d, e, "attention");
}
