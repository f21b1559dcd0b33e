/* stream.cuh - linear layers for few tokens: weights stream through, every byte read once for up to 32 tokens.
 *
 * A block takes 16 weight rows at a time. A producer warp runs ahead: it fetches rows into a ring of stages in shared memory. `full` and
 * `empty` barriers pass the stages back and forth; the ring runs across the ends of items.
 * The other 8 warps share the blocks of 32 along K. Each leaves its fresh products in shared memory, and they are added from there in
 * ascending order of K: the bits of one running sum, without its length in time. Where a matrix has few rows, this takes less
 * time than a warp for every 16 of them (warp.cuh). */
#ifndef KERNELS_CUDA_STREAM_CUH
#define KERNELS_CUDA_STREAM_CUH

#include "kernels/cuda/frag.cuh"
#include "kernels/cuda/load.cuh"
#include "kernels/cuda/mm.cuh"
#include "kernels/cuda/overlap.cuh"

#define STREAM_STAGES     4
#define STREAM_WARPS      8  /* computing; one warp more fetches */
#define STREAM_ROUND      32 /* products (block of K, group of 8 tokens) between two barriers */
#define STREAM_MAX_TOKENS MM_STREAM_TOKENS
/* Who tells the producer that a stage may be filled again: one thread, behind a barrier of all. compute-sanitizer's racecheck does not
 * follow reader -> barrier -> that thread -> producer and calls every second use of a stage a hazard; where it is to look on (build
 * option gpu_racecheck), all threads tell. */
#ifdef XD_RACECHECK
#define STREAM_TELLERS (STREAM_WARPS * 32)
#else
#define STREAM_TELLERS 1
#endif

struct stream_item {
    uint64_t base[2];  /* first byte of row 0 of each half */
    uint32_t valid[2]; /* rows of each half, 0..8 */
    uint32_t row0;     /* output row of half 0 */
};

static __device__ __forceinline__ stream_item stream_find(const mm_params &p, uint32_t i)
{
    const uint32_t r = i * 16, left = p.rows - r;
    stream_item it;
    it.base[0] = (uint64_t)(uintptr_t)p.w + r * p.row_bytes;
    it.base[1] = it.base[0] + 8 * p.row_bytes;
    it.valid[0] = min(left, 8u);
    it.valid[1] = left > 8 ? min(left - 8, 8u) : 0;
    it.row0 = r;
    return it;
}

static __device__ __forceinline__ uint32_t stream_groups(uint32_t n)
{
    return (n + STREAM_MAX_TOKENS - 1) / STREAM_MAX_TOKENS;
}

/* Where row r of a half lies in its part of the stage. */
static __device__ __forceinline__ uint32_t stream_row_at(const mm_params &p, const stream_item &it, int h, uint32_t r,
                                                         uint32_t chunk_off)
{
    if (p.n_chunks > 1)
        return r * (p.pitch + p.skew) + ((uint32_t)(it.base[h] + r * p.row_bytes + chunk_off) & 127);
    return ((uint32_t)it.base[h] & 127) + r * ((uint32_t)p.row_bytes + p.skew);
}

/* What a stage holds. */
struct stream_note {
    stream_item it;
    uint32_t group;     /* of up to 32 tokens */
    uint32_t x_row[32]; /* rows of p.x of these tokens */
    bool last;          /* nothing: the block's work has ended */
};

struct stream_bars {
    uint64_t full[STREAM_STAGES], empty[STREAM_STAGES];
};

/* The producer warp: one chunk of an item into a stage. Lane l asks for row l of the 16, or lanes 0 and 8 for all rows of a half. */
template <int FMT>
static __device__ void stream_issue(const mm_params &p, const stream_item &it, uint32_t chunk, uint32_t stage,
                                    uint64_t *full)
{
    const uint32_t lane = threadIdx.x % 32, off = fmt_bytes<FMT>(chunk * p.chunk_blocks);
    uint32_t len = min(fmt_bytes<FMT>(p.chunk_blocks), (uint32_t)p.row_bytes - off);
    const uint32_t h = lane / 8 & 1, r = lane % 8;
    const uint32_t valid = h ? it.valid[1] : it.valid[0];
    const uint64_t src = (h ? it.base[1] : it.base[0]) + r * p.row_bytes + off;
    bool on = lane < 16 && r < valid;
    uint32_t pitch = p.pitch + p.skew;
    if (p.n_chunks == 1) {
        pitch = (uint32_t)p.row_bytes + p.skew;
        if (p.skew == 0) {
            on = on && r == 0;
            len = valid * (uint32_t)p.row_bytes;
        }
    }
    const uint32_t dst = stage + h * p.half_bytes + r * pitch + ((uint32_t)src & 112);
    const uint32_t shift = (uint32_t)src & 15, bytes = on ? (shift + len + 15) & ~15u : 0;
#if __CUDA_ARCH__ >= 900
    const uint32_t all = __reduce_add_sync(~0u, bytes);
    if (lane == 0)
        bar_expect(full, all);
    else
        bar_arrive(full);
    __syncwarp();
    if (bytes)
        bulk_copy_once(dst, src - shift, bytes, full, once_policy());
#else
    for (uint32_t l = 0; l < 16; l++) { /* the whole warp copies what lane l would have asked for */
        const uint32_t n = __shfl_sync(~0u, bytes, l), to = __shfl_sync(~0u, dst, l);
        const uint64_t from = __shfl_sync(~0u, src - shift, l);
        for (uint32_t u = lane * 16; u < n; u += 512)
            cp_async16(to + u, from + u);
    }
    bar_arrive_copies(full);
    bar_arrive(full); /* for the note, an ordinary store */
#endif
}

/* Row of p.x of a lane's token of a group. Rows beyond the last token are read, never used. */
static __device__ __forceinline__ uint32_t stream_row(const mm_params &p, uint32_t group)
{
    const uint32_t k = min(group * STREAM_MAX_TOKENS + threadIdx.x % 32, p.n_tokens - 1);
    return p.row_idx ? p.row_idx[k] : k;
}

/* The producer warp's whole work. */
template <int FMT>
static __device__ void stream_produce(const mm_params &p, uint32_t ring, stream_note *notes, stream_bars &bars)
{
    const uint32_t lane = threadIdx.x % 32, n_items = (p.rows + 15) / 16;
    uint32_t step = 0;
    for (uint32_t i = blockIdx.x; i < n_items; i += gridDim.x) {
        const stream_item it = stream_find(p, i);
        for (uint32_t group = 0; group < stream_groups(p.n_tokens); group++) {
            const uint32_t row = stream_row(p, group);
            for (uint32_t chunk = 0; chunk < p.n_chunks; chunk++, step++) {
                const uint32_t slot = step % STREAM_STAGES;
                if (step >= STREAM_STAGES)
                    bar_wait(bars.empty + slot, (step / STREAM_STAGES - 1) & 1);
                stream_note &note = notes[slot];
                if (chunk == 0) {
                    note.x_row[lane] = row;
                    if (lane == 0) {
                        note.it = it;
                        note.group = group;
                        note.last = false;
                    }
                }
                stream_issue<FMT>(p, it, chunk, ring + slot * 2 * p.half_bytes, bars.full + slot);
            }
        }
    }
    const uint32_t slot = step % STREAM_STAGES;
    if (step >= STREAM_STAGES)
        bar_wait(bars.empty + slot, (step / STREAM_STAGES - 1) & 1);
    if (lane == 0)
        notes[slot].last = true;
    bar_arrive(bars.full + slot);
#if __CUDA_ARCH__ < 900
    bar_arrive(bars.full + slot);
#endif
}

/* Products of a round, [product][2 halves][8 rows][8 tokens], and the scales of its weight rows, [block][16]. Of half 1 the two
 * 16-word groups of every 32 are swapped: the adding warps read both halves at once, from different banks. */
struct stream_sums {
    float c[2][STREAM_ROUND * 128];
    float d[2][STREAM_ROUND * 16];
};

/* Adds the products of a round's blocks, in order. A warp has sets of 2 rows of each half by 8 tokens: lane = half, row, token. */
template <int FMT, int NT>
static __device__ __forceinline__ void stream_add(float (&acc)[2], const stream_sums &sums, uint32_t buf, uint32_t n)
{
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, half = lane / 16;
#pragma unroll
    for (int i = 0; i < (NT + 1) / 2; i++) {
        const uint32_t set = warp + i * STREAM_WARPS;
        if (set >= NT * 4)
            break;
        const uint32_t row = set % 4 * 2 + lane / 8 % 2;
        const float *c = sums.c[buf] + set / 4 * 128 + half * 64 + ((row * 8 + lane % 8) ^ half * 16);
        const float *d = sums.d[buf] + half * 8 + row;
#pragma unroll 8
        for (uint32_t b = 0; b < n; b++) {
            if (FMT == FMT_Q8_0)
                acc[i] = fmaf(d[b * 16], c[b * NT * 128], acc[i]);
            else
                acc[i] += c[b * NT * 128];
        }
    }
}

static __device__ __forceinline__ void stream_barrier()
{
    asm volatile("bar.sync 1, 256;" ::: "memory");
}
static_assert(STREAM_WARPS * 32 == 256, "stream_barrier");

template <int FMT, int NT>
static __device__ __forceinline__ void stream_item_run(const mm_params &p, const stream_note &note,
                                                       const unsigned char *ring, stream_sums &sums, stream_bars &bars,
                                                       uint32_t &step, uint32_t &buf)
{
    constexpr uint32_t ROUND = STREAM_ROUND / NT, MINE = ROUND / STREAM_WARPS; /* blocks of K of a round; of a warp */
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const stream_item it = note.it;
    const uint32_t first_token = note.group * STREAM_MAX_TOKENS, n_tokens = p.n_tokens - first_token;
    const float *x[NT];
#pragma unroll
    for (int j = 0; j < NT; j++)
        x[j] = p.x + (size_t)note.x_row[j * 8 + g] * p.x_stride;
    float acc[2] = {0, 0};
    uint32_t pending = 0; /* blocks of the round before, not yet added */
    const uint32_t blocks = (p.cols + 31) / 32;
    for (uint32_t c = 0; c < p.n_chunks; c++, step++) {
        const uint32_t slot = step % STREAM_STAGES;
        const unsigned char *stage = ring + slot * 2 * p.half_bytes;
        const uint32_t off = fmt_bytes<FMT>(c * p.chunk_blocks);
        const unsigned char *a0 = stage + stream_row_at(p, it, 0, g, off);
        const unsigned char *a1 = stage + p.half_bytes + stream_row_at(p, it, 1, g, off);
        const uint32_t first = c * p.chunk_blocks, n = min(p.chunk_blocks, blocks - first);
        for (uint32_t at = 0; at < n; at += ROUND) {
            float4 v[MINE][NT][2];
#pragma unroll
            for (int i = 0; i < (int)MINE; i++) {
                const uint32_t k = (first + min(at + warp + i * STREAM_WARPS, n - 1)) * 32 + 8 * t;
                const uint32_t k0 = k < p.cols ? k : 0, k1 = k + 4 < p.cols ? k + 4 : 0; /* columns come in fours */
#pragma unroll
                for (int j = 0; j < NT; j++) {
                    v[i][j][0] = *reinterpret_cast<const float4 *>(x[j] + k0);
                    v[i][j][1] = *reinterpret_cast<const float4 *>(x[j] + k1);
                }
            }
            if (at == 0)
                bar_wait(bars.full + slot, step / STREAM_STAGES & 1);
            stream_barrier(); /* all have left their products of the round before, and are done with the stage before */
            if (at == 0 && step > 0 && threadIdx.x < STREAM_TELLERS)
                bar_arrive(bars.empty + (step - 1) % STREAM_STAGES);
            if (pending)
                stream_add<FMT, NT>(acc, sums, buf ^ 1, pending);
            float products[MINE][NT][4], d0[MINE], d1[MINE];
#pragma unroll
            for (int i = 0; i < (int)MINE; i++) {
                const uint32_t b = min(at + warp + i * STREAM_WARPS, n - 1), k = (first + b) * 32 + 8 * t;
                const bool in0 = k < p.cols, in1 = k + 4 < p.cols;
                const uint32_t ta =
                    FMT == FMT_Q8_0 || in0 ? t : 0; /* beyond the row's end may be beyond shared memory */
                a_frag<FMT> a;
                load_a_block<FMT>(a0, b, ta, a.r0, &a.d0, &a.m0);
                load_a_block<FMT>(a1, b, ta, a.r1, &a.d1, &a.m1);
                if (FMT != FMT_Q8_0 && !in1)
                    zero_a<FMT>(a, in0 ? 2 : 0);
                if (FMT == FMT_Q8_0) {
                    d0[i] = a.d0;
                    d1[i] = a.d1;
                }
                const float4 zero = make_float4(0, 0, 0, 0);
#pragma unroll
                for (int j = 0; j < NT; j++)
                    block_product<FMT>(products[i][j], a,
                                       FMT == FMT_Q8_0 ? split_x(v[i][j][0], v[i][j][1])
                                                       : split_x(in0 ? v[i][j][0] : zero, in1 ? v[i][j][1] : zero));
            }
#pragma unroll
            for (int i = 0; i < (int)MINE; i++) {
                const uint32_t b = warp + i * STREAM_WARPS;
                if (at + b >= n)
                    break;
#pragma unroll
                for (int j = 0; j < NT; j++) {
                    float *dst = sums.c[buf] + (b * NT + j) * 128;
                    *reinterpret_cast<float2 *>(dst + g * 8 + 2 * t) =
                        make_float2(products[i][j][0], products[i][j][1]);
                    *reinterpret_cast<float2 *>(dst + 64 + ((g * 8 + 2 * t) ^ 16)) =
                        make_float2(products[i][j][2], products[i][j][3]);
                }
                if (FMT == FMT_Q8_0 && t == 0) {
                    sums.d[buf][b * 16 + g] = d0[i];
                    sums.d[buf][b * 16 + 8 + g] = d1[i];
                }
            }
            pending = min(n - at, ROUND);
            buf ^= 1;
        }
    }
    stream_barrier();
    stream_add<FMT, NT>(acc, sums, buf ^ 1, pending);

#pragma unroll
    for (int i = 0; i < (NT + 1) / 2; i++) {
        const uint32_t set = warp + i * STREAM_WARPS, half = lane / 16;
        if (set >= NT * 4)
            break;
        const uint32_t row = set % 4 * 2 + lane / 8 % 2;
        const uint32_t token = set / 4 * 8 + lane % 8;
        if (token >= n_tokens || row >= it.valid[half])
            continue;
        float *y = p.y + (size_t)(first_token + token) * p.y_stride + it.row0 + row;
        float sum = acc[i];
        if (p.bias)
            sum += p.bias[it.row0 + half * 8 + row];
        if (p.accumulate)
            sum += y[half * 8];
        y[half * 8] = sum;
    }
}

template <int FMT>
__global__ void __launch_bounds__(STREAM_WARPS * 32 + 32, 1) stream_kernel(const __grid_constant__ mm_params p)
{
    extern __shared__ __align__(128) unsigned char smem[];
    __shared__ stream_bars bars;
    __shared__ stream_note notes[STREAM_STAGES];
    stream_sums &sums = *reinterpret_cast<stream_sums *>(smem);
    unsigned char *ring = smem + sizeof(stream_sums);
    if (threadIdx.x == 0) {
        for (int s = 0; s < STREAM_STAGES; s++) {
            bar_init(bars.full + s, BAR_FULL_COUNT);
            bar_init(bars.empty + s, STREAM_TELLERS);
        }
        bar_init_done();
    }
    overlap_begin(p.mark);
    __syncthreads();

    if (threadIdx.x >= STREAM_WARPS * 32) {
        stream_produce<FMT>(p, smem_of(ring), notes, bars);
        return;
    }
    uint32_t step = 0, buf = 0;
    for (;;) {
        const stream_note &note = notes[step % STREAM_STAGES];
        bar_wait(bars.full + step % STREAM_STAGES, step / STREAM_STAGES & 1);
        if (note.last)
            break;
        const uint32_t left = p.n_tokens - note.group * STREAM_MAX_TOKENS;
        if (left <= 8)
            stream_item_run<FMT, 1>(p, note, ring, sums, bars, step, buf);
        else if (left <= 16)
            stream_item_run<FMT, 2>(p, note, ring, sums, bars, step, buf);
        else
            stream_item_run<FMT, 4>(p, note, ring, sums, bars, step, buf);
    }
}

/* Chooses the shape of the ring for `smem_max` bytes. False where no chunk fits. */
static inline bool stream_shape(mm_params *p, int smem_max, uint32_t *ret_smem)
{
    const kern_fmt fmt = (kern_fmt)p->fmt;
    const uint32_t grain = mm_grain(fmt), blocks = mm_blocks(fmt, p->cols);
    const uint32_t fixed = sizeof(stream_sums) + 4096; /* notes and barriers are static */
    if ((uint32_t)smem_max < fixed + 16 * 1024)
        return false;
    const uint32_t half = ((uint32_t)smem_max - fixed) / (STREAM_STAGES * 2) & ~127u;
    const uint32_t skew = fmt >= FMT_Q8_0 ? 32 : 64; /* against rows a whole number of lines apart */
    const uint64_t whole = (8 * (p->row_bytes + skew) + 128 + 32 + 127) & ~127ull;
    p->pitch = 0;
    if (whole <= half) { /* whole rows: one run of memory for all 8 */
        p->n_chunks = 1;
        p->chunk_blocks = blocks;
        p->half_bytes = (uint32_t)whole;
        p->skew = p->row_bytes % 128 == 0 ? skew : 0;
    } else {
        uint32_t chunk = 64;
        for (; 8 * (((mm_bytes(fmt, chunk) + 128 + 127) & ~127u) + skew) > half; chunk /= 2)
            if (chunk == grain)
                return false;
        p->pitch = (mm_bytes(fmt, chunk) + 128 + 127) & ~127u;
        p->chunk_blocks = chunk;
        p->n_chunks = (blocks + chunk - 1) / chunk;
        p->half_bytes = (8 * (p->pitch + skew) + 127) & ~127u;
        p->skew = skew;
    }
    *ret_smem = (uint32_t)sizeof(stream_sums) + STREAM_STAGES * 2 * p->half_bytes;
    return true;
}

#endif
