/* stream.cuh - matrix products for few tokens: weights stream through, every byte read once for up to 32 tokens.
 *
 * Each warp works alone: it has its own ring of shared memory, its own list of items (16 weight rows: 16 of one matrix, or 8 of gate
 * and the same 8 of up, so that SwiGLU happens in the registers of one thread), and no barrier with others. A stage of the ring holds
 * the 16 rows over one chunk of K; the ring runs across the ends of items, so that the link stays busy.
 * Copies ask for whole aligned 128-byte lines, a warp 512 bytes at a time: that is what the link serves at its full rate.
 * Pages of the host are dealt to one warp of each block and pages in VRAM to the others, where there are both: the link and HBM
 * then work at the same time.
 * Fill-through: what a stage holds of a missed page is also stored to the page's slot. */
#ifndef KERNELS_CUDA_STREAM_CUH
#define KERNELS_CUDA_STREAM_CUH

#include "kernels/cuda/frag.cuh"
#include "kernels/cuda/mm.cuh"

#define STREAM_STAGES     3
#define STREAM_MAX_TOKENS MM_STREAM_TOKENS

struct stream_item {
    uint64_t base[2], fill[2]; /* first byte of row 0 of each half; where the page is kept, or 0 */
    uint32_t valid[2];         /* rows of each half, 0..8 */
    uint32_t row0;             /* output row of half 0 */
    uint32_t first, n;         /* tokens: of the bucket, or all */
};

/* A warp's walk over its items; `i` runs over begin, begin + step, ... */
struct stream_walk {
    uint32_t i, step, end, tiles;
    const uint32_t *units; /* MoE: ascending or descending list */
    int dir;
};

static __device__ bool stream_find(const mm_params &p, stream_walk &w, stream_item &it)
{
    for (; w.i < w.end; w.i += w.step) {
        if (p.mode == MM_LINEAR) {
            const uint32_t r = w.i * 16, left = p.rows - r;
            it.base[0] = (uint64_t)(uintptr_t)p.w + r * p.row_bytes;
            it.base[1] = it.base[0] + 8 * p.row_bytes;
            it.fill[0] = it.fill[1] = 0;
            it.valid[0] = min(left, 8u);
            it.valid[1] = left > 8 ? min(left - 8, 8u) : 0;
            it.row0 = r;
            it.first = 0;
            it.n = p.n_tokens;
            return true;
        }
        const uint32_t unit = w.units[(int)(w.i / w.tiles) * w.dir], e = unit >> 12, page = unit & 4095;
        const uint32_t in_page = min(p.page_rows, p.rows - page * p.page_rows);
        const uint32_t r = (w.i % w.tiles) * (p.mode == MM_GATE_UP ? 8 : 16);
        if (r >= in_page)
            continue;
        const uint64_t *addr = p.page_addr + (size_t)e * p.pages;
        const uint64_t *fill = p.fill_addr ? p.fill_addr + (size_t)e * p.pages : nullptr;
        const uint64_t off = r * p.row_bytes, off1 = p.mode == MM_GATE_UP ? off : off + 8 * p.row_bytes;
        const uint64_t f0 = fill ? fill[p.first_page0 + page] : 0, f1 = fill ? fill[p.first_page1 + page] : 0;
        it.base[0] = addr[p.first_page0 + page] + off;
        it.base[1] = addr[p.first_page1 + page] + off1;
        it.fill[0] = f0 ? f0 + off : 0;
        it.fill[1] = f1 ? f1 + off1 : 0;
        const uint32_t left = in_page - r;
        it.valid[0] = min(left, 8u);
        it.valid[1] = p.mode == MM_GATE_UP ? it.valid[0] : left > 8 ? min(left - 8, 8u) : 0;
        it.row0 = page * p.page_rows + r;
        it.first = p.expert_start[e];
        it.n = p.expert_start[e + 1] - it.first;
        return true;
    }
    return false;
}

static __device__ __forceinline__ uint32_t stream_groups(uint32_t n)
{
    return (n + STREAM_MAX_TOKENS - 1) / STREAM_MAX_TOKENS;
}

/* Bytes [src, src + len) into shared memory so that byte src lands at dst + (src & 15), plus `pad` after every row. */
static __device__ __forceinline__ void stream_copy(uint32_t dst, uint64_t src, uint32_t len, uint32_t pad,
                                                   const mm_params &p)
{
    const uint32_t in_line = (uint32_t)src & 127, skip = in_line >> 4, n = (in_line + len + 15) >> 4;
    const uint64_t line = src - in_line;
    for (uint32_t u = threadIdx.x % 32; u < n; u += 32) {
        if (u < skip)
            continue;
        const uint32_t v = u - skip;
        const uint32_t at = v * 16 + (pad ? __umulhi(v, p.units_magic) * pad : 0);
        cp_async16(dst + at, line + u * 16);
    }
}

/* Where row r of a half lies in its part of the stage. */
static __device__ __forceinline__ uint32_t stream_row_at(const mm_params &p, uint64_t base, uint32_t r,
                                                         uint32_t chunk_off)
{
    const uint64_t src = base + r * p.row_bytes + chunk_off;
    if (p.n_chunks > 1)
        return r * p.pitch + ((uint32_t)src & 15);
    const uint32_t shift = (uint32_t)base & 15;
    return shift + r * (uint32_t)(p.row_bytes + (shift ? 0 : p.pad));
}

template <int FMT>
static __device__ void stream_issue(const mm_params &p, const stream_item &it, uint32_t chunk, uint32_t stage)
{
    const uint32_t off = chunk * p.chunk_blocks * fmt_block<FMT>::BYTES;
    const uint32_t len = min(p.chunk_blocks * fmt_block<FMT>::BYTES, (uint32_t)p.row_bytes - off);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const uint32_t dst = stage + h * p.half_bytes;
        if (p.n_chunks == 1) {
            stream_copy(dst, it.base[h], it.valid[h] * (uint32_t)p.row_bytes, ((uint32_t)it.base[h] & 15) ? 0 : p.pad,
                        p);
        } else {
            for (uint32_t r = 0; r < it.valid[h]; r++)
                stream_copy(dst + r * p.pitch, it.base[h] + r * p.row_bytes + off, len, 0, p);
        }
    }
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

/* The producer's place in the walk: it is up to STREAM_STAGES - 1 stages ahead of the consumer. */
struct stream_head {
    stream_walk walk;
    stream_item item;
    uint32_t at, count; /* chunk steps of the item done, in all (groups of tokens repeat the chunks) */
    bool live;
    uint32_t slot;
};

template <int FMT> static __device__ __forceinline__ void stream_push(const mm_params &p, stream_head &h, uint32_t ring)
{
    if (h.live) {
        stream_issue<FMT>(p, h.item, h.at % p.n_chunks, ring + h.slot * 2 * p.half_bytes);
        if (++h.at == h.count) {
            h.walk.i += h.walk.step;
            h.at = 0;
            h.live = stream_find(p, h.walk, h.item);
            if (h.live)
                h.count = p.n_chunks * stream_groups(h.item.n);
        }
    }
    cp_commit();
    h.slot = h.slot + 1 == STREAM_STAGES ? 0 : h.slot + 1;
}

template <int FMT, int NT>
static __device__ __forceinline__ void stream_item_run(const mm_params &p, const stream_item &it, uint32_t group,
                                                       stream_head &head, const unsigned char *ring, uint32_t &slot)
{
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const uint32_t ring_at = smem_of(ring);
    float acc[NT][4];
    const float *x[NT];
    bool on[NT];
#pragma unroll
    for (int j = 0; j < NT; j++) {
        const uint32_t k = group * STREAM_MAX_TOKENS + j * 8 + g;
        on[j] = k < it.n;
        uint32_t row = it.first + (on[j] ? k : 0);
        if (p.mode == MM_GATE_UP)
            row = p.pairs[row] / p.top_k;
        else if (p.mode == MM_LINEAR && p.row_idx)
            row = p.row_idx[row];
        x[j] = p.x + (size_t)row * p.x_stride + 8 * t;
        acc[j][0] = acc[j][1] = acc[j][2] = acc[j][3] = 0;
    }
    const uint32_t blocks = (p.cols + 31) / 32;
    for (uint32_t c = 0; c < p.n_chunks; c++) {
        cp_wait<STREAM_STAGES - 2>();
        __syncwarp(); /* this stage has arrived for all lanes, and all are done with the one before, which is refilled now */
        stream_push<FMT>(p, head, ring_at);
        const unsigned char *stage = ring + slot * 2 * p.half_bytes;
        slot = slot + 1 == STREAM_STAGES ? 0 : slot + 1;
        const uint32_t off = c * p.chunk_blocks * fmt_block<FMT>::BYTES;
        const unsigned char *a0 = stage + stream_row_at(p, it.base[0], g, off);
        const unsigned char *a1 = stage + p.half_bytes + stream_row_at(p, it.base[1], g, off);
        const uint32_t first = c * p.chunk_blocks, n = min(p.chunk_blocks, blocks - first);
#pragma unroll(NT == 1 ? 4 : NT == 2 ? 2 : 1)
        for (uint32_t b = 0; b < n; b++) {
            const uint32_t k = (first + b) * 32;
            const bool in0 = k + 8 * t < p.cols, in1 = k + 8 * t + 4 < p.cols; /* columns come in fours */
            a_frag<FMT> a;
            load_a_row<FMT>(a0 + b * fmt_block<FMT>::BYTES, t, a.r0, &a.d0);
            load_a_row<FMT>(a1 + b * fmt_block<FMT>::BYTES, t, a.r1, &a.d1);
            if (FMT != FMT_Q8_0 && !in1)
                zero_a<FMT>(a, in0 ? 2 : 0);
#pragma unroll
            for (int j = 0; j < NT; j++) {
                float4 v0 = make_float4(0, 0, 0, 0), v1 = v0;
                if (on[j] && in0)
                    v0 = *reinterpret_cast<const float4 *>(x[j] + k);
                if (on[j] && in1)
                    v1 = *reinterpret_cast<const float4 *>(x[j] + k + 4);
                block_mma<FMT>(acc[j], a, split_x(v0, v1));
            }
        }
        if (group == 0) {
            const uint32_t len = min(p.chunk_blocks * fmt_block<FMT>::BYTES, (uint32_t)p.row_bytes - off);
#pragma unroll
            for (int h = 0; h < 2; h++)
                if (it.fill[h])
                    for (uint32_t r = 0; r < it.valid[h]; r++)
                        stream_store(it.fill[h] + r * p.row_bytes + off,
                                     stage + h * p.half_bytes + stream_row_at(p, it.base[h], r, off), len);
        }
    }
#pragma unroll
    for (int j = 0; j < NT; j++)
#pragma unroll
        for (int c = 0; c < 2; c++) {
            const uint32_t k = group * STREAM_MAX_TOKENS + j * 8 + 2 * t + c;
            if (k >= it.n)
                continue;
            if (p.mode == MM_GATE_UP) {
                if (g < it.valid[0])
                    p.y[(size_t)(it.first + k) * p.y_stride + it.row0 + g] = swiglu_of(acc[j][c], acc[j][2 + c]);
                continue;
            }
            float *y = p.y + (size_t)(p.mode == MM_DOWN ? p.pairs[it.first + k] : k) * p.y_stride;
#pragma unroll
            for (int h = 0; h < 2; h++) {
                if (g >= it.valid[h])
                    continue;
                const uint32_t r = it.row0 + h * 8 + g;
                float v = acc[j][2 * h + c];
                if (p.bias)
                    v += p.bias[r];
                if (p.accumulate)
                    v += y[r];
                y[r] = v;
            }
        }
}

template <int FMT> __global__ void __launch_bounds__(128, 1) stream_kernel(const __grid_constant__ mm_params p)
{
    extern __shared__ __align__(128) unsigned char smem[];
    __shared__ uint32_t scratch[36];
    const uint32_t warp = threadIdx.x / 32, warps = blockDim.x / 32;
    unsigned char *ring = smem + warp * STREAM_STAGES * 2 * p.half_bytes;
    uint32_t *units = reinterpret_cast<uint32_t *>(smem + warps * STREAM_STAGES * 2 * p.half_bytes);

    stream_head head;
    stream_walk &w = head.walk;
    w.units = nullptr;
    w.dir = 1;
    w.tiles = 1;
    w.i = warp * gridDim.x + blockIdx.x; /* neighbours in the list go to different multiprocessors */
    w.step = warps * gridDim.x;
    if (p.mode == MM_LINEAR) {
        w.end = (p.rows + 15) / 16;
    } else {
        uint32_t n_host, n_vram;
        list_units(p, units, scratch, &n_host, &n_vram);
        const uint32_t rows = p.mode == MM_GATE_UP ? 8 : 16, page_rows = min(p.page_rows, p.rows);
        w.tiles = (page_rows + rows - 1) / rows;
        const bool both = n_host && n_vram && warps > 1;
        if (both) {
            w.i = (warp ? warp - 1 : 0) * gridDim.x + blockIdx.x;
            w.step = (warp ? warps - 1 : 1) * gridDim.x;
        }
        const bool host = both ? warp == 0 : n_host > 0;
        w.end = (host ? n_host : n_vram) * w.tiles;
        w.units = host ? units : units + p.n_experts * p.unit_pages - 1;
        w.dir = host ? 1 : -1;
    }
    stream_walk tail = w;
    head.at = head.slot = 0;
    head.live = stream_find(p, head.walk, head.item);
    head.count = head.live ? p.n_chunks * stream_groups(head.item.n) : 0;
    for (int s = 0; s < STREAM_STAGES - 1; s++)
        stream_push<FMT>(p, head, smem_of(ring));

    uint32_t slot = 0;
    stream_item it;
    for (; stream_find(p, tail, it); tail.i += tail.step) {
        for (uint32_t group = 0; group < stream_groups(it.n); group++) {
            const uint32_t n = it.n - group * STREAM_MAX_TOKENS;
            if (n <= 8)
                stream_item_run<FMT, 1>(p, it, group, head, ring, slot);
            else if (n <= 16)
                stream_item_run<FMT, 2>(p, it, group, head, ring, slot);
            else
                stream_item_run<FMT, 4>(p, it, group, head, ring, slot);
        }
    }
    cp_wait<0>();
}

/* Chooses the shape of the ring for `smem_max` bytes. False where no chunk fits. */
static inline bool stream_shape(mm_params *p, int smem_max, uint32_t *ret_warps, uint32_t *ret_smem)
{
    const bool q8 = p->fmt == FMT_Q8_0;
    const uint32_t block = q8 ? 34 : p->fmt == FMT_F32 ? 128 : 64, want = q8 ? 32 : 64;
    const uint32_t blocks = (p->cols + 31) / 32, list = p->mode == MM_LINEAR ? 0 : p->n_experts * p->unit_pages * 4;
    const uint32_t warps = smem_max > 160 * 1024 ? 4 : 2;
    if ((uint32_t)smem_max < list + 16 * 1024)
        return false;
    const uint32_t half = ((uint32_t)smem_max - 1024 - list) / (warps * STREAM_STAGES * 2) & ~127u;
    *ret_warps = warps;
    p->pad = 0;
    p->units_per_row = (uint32_t)(p->row_bytes / 16);
    p->units_magic = p->units_per_row > 1 ? (uint32_t)((0x100000000ull + p->units_per_row - 1) / p->units_per_row) : 0;
    if (p->row_bytes % 16 == 0 && p->units_per_row > 1)
        while ((p->row_bytes + p->pad) % 128 != want)
            p->pad += 16;
    if (8 * (p->row_bytes + p->pad) + 32 <= half) { /* whole rows: one run of memory for all 8 */
        p->n_chunks = 1;
        p->chunk_blocks = blocks;
        p->half_bytes = (uint32_t)(8 * (p->row_bytes + p->pad) + 32 + 127) & ~127u;
        p->pitch = 0;
    } else {
        uint32_t chunk = 64, pitch = 0;
        for (;; chunk /= 2) {
            if (chunk == 1)
                return false;
            pitch = (chunk * block + 30) & ~15u;
            while (pitch % 128 != want)
                pitch += 16;
            if (8 * pitch <= half)
                break;
        }
        p->chunk_blocks = chunk;
        p->n_chunks = (blocks + chunk - 1) / chunk;
        p->half_bytes = 8 * pitch;
        p->pitch = pitch;
    }
    *ret_smem = warps * STREAM_STAGES * 2 * p->half_bytes + list;
    return true;
}

#endif
