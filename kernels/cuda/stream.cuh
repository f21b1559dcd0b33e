/* stream.cuh - matrix products for few tokens: weights stream through, every byte read once for up to 32 tokens.
 *
 * A block takes one item at a time: 16 weight rows, that is 16 of one matrix, or 8 of gate and the same 8 of up, so that SwiGLU needs no
 * memory. A producer warp runs ahead: it finds the items, fetches their rows into a ring of stages in shared memory and notes
 * beside each stage whose rows they are and which tokens they meet, so that nobody else waits for device memory on that
 * account. `full` and `empty` barriers pass the stages back and forth; the ring runs across the ends of items, so that the link
 * stays busy.
 * Whole rows are fetched as one run of memory that lands at the same place of a 128-byte line as it came from: a line that crosses a
 * line of shared memory becomes two requests on the link (rows padded against bank conflicts got 36 of 51 GB/s with cp.async, 46
 * with bulk copies).
 * The other 8 warps share the blocks of 32 along K. Each leaves its fresh products in shared memory, and they are added from there in
 * ascending order of K: the bits of one running sum, without its length in time.
 * Pages of the host are dealt to a quarter of the blocks and pages in VRAM to the others, where there are both: the link and
 * HBM then work at the same time.
 * Fill-through: what a stage holds of a missed page is also stored to the page's slot. */
#ifndef KERNELS_CUDA_STREAM_CUH
#define KERNELS_CUDA_STREAM_CUH

#include "kernels/cuda/frag.cuh"
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
    uint64_t base[2], fill[2]; /* first byte of row 0 of each half; where the page is kept, or 0 */
    uint32_t valid[2];         /* rows of each half, 0..8 */
    uint32_t row0;             /* output row of half 0 */
    uint32_t first, n;         /* tokens: of the bucket, or all */
    uint32_t skew; /* bytes between rows in the stage that keep their banks apart; 0: they come over the link */
};

/* A block's walk over its items; `i` runs over begin, begin + step, ... */
struct stream_walk {
    uint32_t i, step, end, tiles;
    const uint32_t *units; /* MoE: ascending or descending list */
    int dir;
};

/* Item number i of the walk; false for the empty places behind a short last page. */
static __device__ bool stream_find(const mm_params &p, const stream_walk &w, uint32_t i, stream_item &it)
{
    it.fill[0] = it.fill[1] = 0;
    it.skew = p.skew;
    if (p.mode == MM_LINEAR) {
        const uint32_t r = i * 16, left = p.rows - r;
        it.base[0] = (uint64_t)(uintptr_t)p.w + r * p.row_bytes;
        it.base[1] = it.base[0] + 8 * p.row_bytes;
        it.valid[0] = min(left, 8u);
        it.valid[1] = left > 8 ? min(left - 8, 8u) : 0;
        it.row0 = r;
        it.first = 0;
        it.n = p.n_tokens;
        return true;
    }
    const uint32_t unit = w.units[(int)(i / w.tiles) * w.dir], e = unit >> 12, page = unit & 4095;
    const uint32_t in_page = min(p.page_rows, p.rows - page * p.page_rows);
    const uint32_t r = (i % w.tiles) * (p.mode == MM_GATE_UP ? 8 : 16);
    it.n = 0;
    if (r >= in_page)
        return false;
    const uint64_t *addr = p.page_addr + (size_t)e * p.pages;
    const uint64_t off = r * p.row_bytes, off1 = p.mode == MM_GATE_UP ? off : off + 8 * p.row_bytes;
    it.base[0] = addr[p.first_page0 + page] + off;
    it.base[1] = addr[p.first_page1 + page] + off1;
    if (p.fill_addr) {
        const uint64_t *fill = p.fill_addr + (size_t)e * p.pages;
        const uint64_t f0 = fill[p.first_page0 + page], f1 = fill[p.first_page1 + page];
        it.fill[0] = f0 ? f0 + off : 0;
        it.fill[1] = f1 ? f1 + off1 : 0;
    }
    if (w.dir > 0) /* pages of the host */
        it.skew = 0;
    const uint32_t left = in_page - r;
    it.valid[0] = min(left, 8u);
    it.valid[1] = p.mode == MM_GATE_UP ? it.valid[0] : left > 8 ? min(left - 8, 8u) : 0;
    it.row0 = page * p.page_rows + r;
    it.first = p.expert_start[e];
    it.n = p.expert_start[e + 1] - it.first;
    return true;
}

/* Another lane's item. */
static __device__ __forceinline__ stream_item stream_shfl(const stream_item &it, uint32_t lane)
{
    stream_item o;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        o.base[h] = __shfl_sync(~0u, it.base[h], lane);
        o.fill[h] = __shfl_sync(~0u, it.fill[h], lane);
        o.valid[h] = __shfl_sync(~0u, it.valid[h], lane);
    }
    o.row0 = __shfl_sync(~0u, it.row0, lane);
    o.first = __shfl_sync(~0u, it.first, lane);
    o.n = __shfl_sync(~0u, it.n, lane);
    o.skew = __shfl_sync(~0u, it.skew, lane);
    return o;
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
        return r * (p.pitch + it.skew) + ((uint32_t)(it.base[h] + r * p.row_bytes + chunk_off) & 127);
    return ((uint32_t)it.base[h] & 127) + r * ((uint32_t)p.row_bytes + it.skew);
}

/* What a stage holds. */
struct stream_note {
    stream_item it;
    uint32_t group;                /* of up to 32 tokens */
    uint32_t x_row[32], y_row[32]; /* rows of p.x and p.y of these tokens */
};

struct stream_bars {
    uint64_t full[STREAM_STAGES], empty[STREAM_STAGES];
};

/* The producer warp: one chunk of an item into a stage. Lane l asks for row l of the 16, or lanes 0 and 8 for all rows of a half. */
template <int FMT>
static __device__ void stream_issue(const mm_params &p, const stream_item &it, uint32_t chunk, uint32_t stage,
                                    uint64_t *full)
{
    const uint32_t lane = threadIdx.x % 32, off = chunk * p.chunk_blocks * fmt_block<FMT>::BYTES;
    uint32_t len = min(p.chunk_blocks * fmt_block<FMT>::BYTES, (uint32_t)p.row_bytes - off);
    const uint32_t h = lane / 8 & 1, r = lane % 8;
    const uint32_t valid = h ? it.valid[1] : it.valid[0];
    const uint64_t src = (h ? it.base[1] : it.base[0]) + r * p.row_bytes + off;
    bool on = lane < 16 && r < valid;
    uint32_t pitch = p.pitch + it.skew;
    if (p.n_chunks == 1) {
        pitch = (uint32_t)p.row_bytes + it.skew;
        if (it.skew == 0) {
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
        bulk_copy(dst, src - shift, bytes, full);
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

/* n bytes from shared memory to the slot, in the widest pieces that both sides allow. */
static __device__ void stream_store(uint64_t dst, const unsigned char *src, uint32_t n)
{
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t low = (uint32_t)dst | (uint32_t)(uintptr_t)src | n;
    if ((low & 15) == 0) {
        for (uint32_t i = lane; i < n / 16; i += 32)
            reinterpret_cast<uint4 *>(dst)[i] = reinterpret_cast<const uint4 *>(src)[i];
    } else if ((low & 7) == 0) {
        for (uint32_t i = lane; i < n / 8; i += 32)
            reinterpret_cast<uint2 *>(dst)[i] = reinterpret_cast<const uint2 *>(src)[i];
    } else {
        for (uint32_t i = lane; i < n / 2; i += 32)
            reinterpret_cast<uint16_t *>(dst)[i] = reinterpret_cast<const uint16_t *>(src)[i];
    }
}

/* Rows of p.x and p.y of a lane's token of a group. Rows beyond the last token are read, never used. */
struct stream_pair {
    uint32_t x, y;
};

static __device__ __forceinline__ stream_pair stream_rows(const mm_params &p, const stream_item &it, uint32_t group)
{
    const uint32_t k = min(group * STREAM_MAX_TOKENS + threadIdx.x % 32, it.n - 1);
    stream_pair r = {it.first + k, it.first + k};
    if (p.mode == MM_GATE_UP)
        r.x = p.pairs[r.x] / p.top_k;
    else if (p.mode == MM_DOWN)
        r.y = p.pairs[r.y];
    else if (p.row_idx)
        r.x = p.row_idx[r.x];
    return r;
}

/* The producer warp's whole work. Each lane finds an item, so that 32 of them cost one latency of device memory; the tokens of an
 * item are looked up while the one before is being fetched. A note with no tokens ends the block's work. */
template <int FMT>
static __device__ void stream_produce(const mm_params &p, const stream_walk &w, uint32_t ring, stream_note *notes,
                                      stream_bars &bars)
{
    const uint32_t lane = threadIdx.x % 32;
    uint32_t step = 0;
    for (uint32_t at = w.i; at < w.end; at += w.step * 32) {
        stream_item found = {};
        const uint32_t i = at + lane * w.step;
        const bool live = i < w.end && stream_find(p, w, i, found);
        uint32_t todo = __ballot_sync(~0u, live);
        if (!todo)
            continue;
        stream_item it = stream_shfl(found, __ffs((int)todo) - 1);
        stream_pair rows = stream_rows(p, it, 0);
        while (todo) {
            todo &= todo - 1;
            const stream_item next = stream_shfl(found, todo ? __ffs((int)todo) - 1 : 0);
            const stream_pair next_rows = todo ? stream_rows(p, next, 0) : rows;
            for (uint32_t group = 0; group < stream_groups(it.n); group++) {
                if (group)
                    rows = stream_rows(p, it, group);
                for (uint32_t chunk = 0; chunk < p.n_chunks; chunk++, step++) {
                    const uint32_t slot = step % STREAM_STAGES;
                    if (step >= STREAM_STAGES)
                        bar_wait(bars.empty + slot, (step / STREAM_STAGES - 1) & 1);
                    stream_note &note = notes[slot];
                    if (chunk == 0) {
                        note.x_row[lane] = rows.x;
                        note.y_row[lane] = rows.y;
                        if (lane == 0) {
                            note.it = it;
                            note.group = group;
                        }
                    }
                    stream_issue<FMT>(p, it, chunk, ring + slot * 2 * p.half_bytes, bars.full + slot);
                }
            }
            it = next;
            rows = next_rows;
        }
    }
    const uint32_t slot = step % STREAM_STAGES;
    if (step >= STREAM_STAGES)
        bar_wait(bars.empty + slot, (step / STREAM_STAGES - 1) & 1);
    if (lane == 0)
        notes[slot].it.n = 0;
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
    const uint32_t group = note.group, n_tokens = it.n - group * STREAM_MAX_TOKENS;
    const float *x[NT];
#pragma unroll
    for (int j = 0; j < NT; j++)
        x[j] = p.x + (size_t)note.x_row[j * 8 + g] * p.x_stride;
    uint32_t y_row[2];
#pragma unroll
    for (int i = 0; i < 2; i++)
        y_row[i] = note.y_row[(warp + i * STREAM_WARPS) / 4 % 4 * 8 + lane % 8];

    float acc[2] = {0, 0};
    uint32_t pending = 0; /* blocks of the round before, not yet added */
    const uint32_t blocks = (p.cols + 31) / 32;
    for (uint32_t c = 0; c < p.n_chunks; c++, step++) {
        const uint32_t slot = step % STREAM_STAGES;
        const unsigned char *stage = ring + slot * 2 * p.half_bytes;
        const uint32_t off = c * p.chunk_blocks * fmt_block<FMT>::BYTES;
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
                load_a_row<FMT>(a0 + b * fmt_block<FMT>::BYTES, ta, a.r0, &a.d0);
                load_a_row<FMT>(a1 + b * fmt_block<FMT>::BYTES, ta, a.r1, &a.d1);
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
        if (group == 0) {
            const uint32_t len = min(p.chunk_blocks * fmt_block<FMT>::BYTES, (uint32_t)p.row_bytes - off);
#pragma unroll
            for (int h = 0; h < 2; h++)
                if (it.fill[h] && warp < it.valid[h])
                    stream_store(it.fill[h] + warp * p.row_bytes + off,
                                 stage + h * p.half_bytes + stream_row_at(p, it, h, warp, off), len);
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
        const float up = __shfl_down_sync(~0u, acc[i], 16);
        if (set / 4 * 8 + lane % 8 >= n_tokens || row >= it.valid[half])
            continue;
        float *y = p.y + (size_t)y_row[i] * p.y_stride + it.row0 + row;
        if (p.mode == MM_GATE_UP) {
            if (half == 0)
                *y = swiglu_of(acc[i], up);
            continue;
        }
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
    __shared__ uint32_t scratch[36];
    __shared__ stream_bars bars;
    __shared__ stream_note notes[STREAM_STAGES];
    stream_sums &sums = *reinterpret_cast<stream_sums *>(smem);
    unsigned char *ring = smem + sizeof(stream_sums);
    uint32_t *units = reinterpret_cast<uint32_t *>(ring + STREAM_STAGES * 2 * p.half_bytes);
    if (threadIdx.x == 0) {
        for (int s = 0; s < STREAM_STAGES; s++) {
            bar_init(bars.full + s, BAR_FULL_COUNT);
            bar_init(bars.empty + s, STREAM_TELLERS);
        }
        bar_init_done();
    }
    overlap_begin(p.mark);
    __syncthreads();

    stream_walk w = {blockIdx.x, gridDim.x, (p.rows + 15) / 16, 1, nullptr, 1};
    if (p.mode != MM_LINEAR) {
        uint32_t n_host, n_vram;
        list_units(p, units, scratch, &n_host, &n_vram);
        const uint32_t rows = p.mode == MM_GATE_UP ? 8 : 16, page_rows = min(p.page_rows, p.rows);
        w.tiles = (page_rows + rows - 1) / rows;
        const bool both = n_host && n_vram && gridDim.x >= 4;
        const uint32_t n_readers = (gridDim.x + 3) / 4; /* blocks 0, 4, 8, ... */
        const bool host = both ? blockIdx.x % 4 == 0 : n_host > 0;
        if (both) {
            w.i = host ? blockIdx.x / 4 : blockIdx.x - blockIdx.x / 4 - 1;
            w.step = host ? n_readers : gridDim.x - n_readers;
        }
        w.end = (host ? n_host : n_vram) * w.tiles;
        w.units = host ? units : units + p.n_experts * p.unit_pages - 1;
        w.dir = host ? 1 : -1;
    }
    if (threadIdx.x >= STREAM_WARPS * 32) {
        stream_produce<FMT>(p, w, smem_of(ring), notes, bars);
        return;
    }
    uint32_t step = 0, buf = 0;
    for (;;) {
        const stream_note &note = notes[step % STREAM_STAGES];
        bar_wait(bars.full + step % STREAM_STAGES, step / STREAM_STAGES & 1);
        const uint32_t n = note.it.n;
        if (n == 0)
            break;
        const uint32_t left = n - note.group * STREAM_MAX_TOKENS;
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
    const uint32_t block = p->fmt == FMT_Q8_0 ? 34 : p->fmt == FMT_F32 ? 128 : 64;
    const uint32_t blocks = (p->cols + 31) / 32, list = p->mode == MM_LINEAR ? 0 : p->n_experts * p->unit_pages * 4;
    const uint32_t fixed = sizeof(stream_sums) + list + 4096; /* notes and barriers are static */
    if ((uint32_t)smem_max < fixed + 16 * 1024)
        return false;
    const uint32_t half = ((uint32_t)smem_max - fixed) / (STREAM_STAGES * 2) & ~127u;
    const uint32_t skew = p->fmt == FMT_Q8_0 ? 32 : 64; /* against rows a whole number of lines apart */
    const uint64_t whole = (8 * (p->row_bytes + skew) + 128 + 32 + 127) & ~127ull;
    p->pitch = 0;
    if (whole <= half) { /* whole rows: one run of memory for all 8 */
        p->n_chunks = 1;
        p->chunk_blocks = blocks;
        p->half_bytes = (uint32_t)whole;
        p->skew = p->row_bytes % 128 == 0 ? skew : 0;
    } else {
        uint32_t chunk = 64;
        for (; 8 * (((chunk * block + 128 + 127) & ~127u) + skew) > half; chunk /= 2)
            if (chunk == 1)
                return false;
        p->pitch = (chunk * block + 128 + 127) & ~127u;
        p->chunk_blocks = chunk;
        p->n_chunks = (blocks + chunk - 1) / chunk;
        p->half_bytes = (8 * (p->pitch + skew) + 127) & ~127u;
        p->skew = skew;
    }
    *ret_smem = (uint32_t)sizeof(stream_sums) + STREAM_STAGES * 2 * p->half_bytes + list;
    return true;
}

#endif
