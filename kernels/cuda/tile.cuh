/* tile.cuh - matrix products for many tokens: 128 weight rows by up to 128 tokens a block, the same additions as stream.cuh.
 *
 * Eight warps compute, from a ring of stages of 64 positions of K in shared memory. Weights are staged as stored and turned into bf16
 * when a warp picks them up. How activations come and who multiplies is in tile_wgmma.cuh (code for compute capability 9.0) and in
 * tile_mma.cuh (all others).
 * In the gate and up phase a block takes 64 rows of each, dealt in eights, so that SwiGLU happens in registers.
 *
 * MoE with pages on the host: a warp of every block fetches, all of them together each page once, in the order in which the
 * blocks will want them: into the page's fill slot where it has one, else into a ring of slots in the scratch. A page is
 * announced by a counter in device memory (`ready`), and a ring slot is refilled when the unit that used it has been computed
 * by all blocks (`done`). Nobody waits for anything later in the order than what he holds, so it cannot lock up while all
 * blocks of the grid are on the chip, one on each multiprocessor. */
#ifndef KERNELS_CUDA_TILE_CUH
#define KERNELS_CUDA_TILE_CUH

#include "kernels/cuda/frag.cuh"
#include "kernels/cuda/mm.cuh"
#include "kernels/cuda/overlap.cuh"
#include "kernels/cuda/panels.cuh"

#define TILE_ROWS    128
#define TILE_THREADS 256 /* computing */
#define TILE_BLOCK   384 /* and a warpgroup that fetches: registers are dealt by warpgroup */
#define TILE_STAGES  4   /* at most */
#define FETCH_PIECE  16384

/* Of a tile, at most: sums of x take registers too. */
template <int FMT> static constexpr __host__ __device__ uint32_t tile_tokens()
{
    return fmt_block<FMT>::MIN ? 64 : 128;
}

struct tile_item {
    uint32_t row0, n_rows; /* output rows; gate and up: of each */
    uint32_t first, n;     /* tokens; n may be 0 */
    uint32_t panel;        /* the first one's */
    uint32_t expert;
    uint64_t base[2];  /* the page of gate and that of up, or one page twice: where it is read */
    uint32_t page_row; /* of row0 in it */
    uint32_t unit;
    uint32_t host; /* number of the unit among those on the host, or UINT32_MAX */
};

/* The warps that compute. */
static __device__ __forceinline__ void tile_barrier()
{
    asm volatile("bar.sync 1, 256;" ::: "memory");
}

static __device__ __forceinline__ void wait_until(const uint32_t *p, uint32_t want)
{
    while (load_acquire(p) < want)
        __nanosleep(200);
}

/* Which row of which matrix (0: gate, or the only one) stands at place i < TILE_ROWS of a stage: always one of the page. */
static __device__ __forceinline__ uint64_t tile_row_addr(const mm_params &p, const tile_item &it, uint32_t i)
{
    const bool pairs = p.mode == MM_GATE_UP;
    const uint32_t r = pairs ? panel_row(i / 16, i % 8) : i;
    return (pairs && i / 8 % 2 ? it.base[1] : it.base[0]) + (it.page_row + min(r, it.n_rows - 1)) * p.row_bytes;
}

/* One result of row r. */
static __device__ __forceinline__ void tile_store(const mm_params &p, const tile_item &it, float *y, uint32_t r,
                                                  float v)
{
    if (p.bias)
        v += p.bias[it.row0 + r];
    if (p.accumulate)
        v += y[it.row0 + r];
    y[it.row0 + r] = v;
}

/* What few models have stays out of the loops over a tile's results. */
static __device__ __noinline__ float tile_activate(const mm_params &p, uint32_t expert, uint32_t row, float gate,
                                                   float up)
{
    return mm_activate<false>(p, expert, row, gate, up);
}

/* Activation f of the item's token k, as down wants it. */
static __device__ __forceinline__ void tile_store_activation(const mm_params &p, const tile_item &it, uint32_t k,
                                                             uint32_t f, float v)
{
    uint32_t hi, lo;
    split_pair(v, 0, &hi, &lo);
    unsigned char *to = p.act_panels + f / PANEL_COLS * p.act_step +
                        (size_t)(it.panel + k / PANEL_TOKENS) * PANEL_BYTES +
                        panel_at(k % PANEL_TOKENS, f % PANEL_COLS);
    *reinterpret_cast<uint16_t *>(to) = (uint16_t)hi;
    *reinterpret_cast<uint16_t *>(to + PANEL_LO) = (uint16_t)lo;
}

static __device__ __noinline__ void tile_store_halves(const mm_params &p, const tile_item &it, uint32_t k, uint32_t f,
                                                      float gate, float up)
{
    tile_store_activation(p, it, k, f, relu2(gate));
    tile_store_activation(p, it, k, f + p.half, relu2(up));
}

/* Of row r of gate and up. */
static __device__ __forceinline__ void tile_store_pair(const mm_params &p, const tile_item &it, uint32_t k, uint32_t r,
                                                       float gate, float up)
{
    if (r >= it.n_rows)
        return;
    const uint32_t f = it.row0 + r;
    if (p.half)
        tile_store_halves(p, it, k, f, gate, up);
    else
        tile_store_activation(p, it, k, f, p.plain ? swiglu_of(gate, up) : tile_activate(p, it.expert, f, gate, up));
}

/* The same of down, or of a linear. */
static __device__ __forceinline__ void tile_store_one(const mm_params &p, const tile_item &it, float *y, uint32_t r,
                                                      float v)
{
    if (r < it.n_rows)
        tile_store(p, it, y, r, mm_result<false>(p, it.expert, it.row0 + r, v));
}

static __device__ __forceinline__ float *tile_y(const mm_params &p, const tile_item &it, uint32_t token)
{
    const uint32_t k = it.first + token;
    return p.y + (size_t)(p.mode == MM_DOWN ? p.pairs[k] : k) * p.y_stride;
}
/* --- fetching pages of the host ------------------------------------------------------------------------------------------ */

/* Unit number i of the order of work: host and VRAM units dealt evenly, so that the link and the matrix units are busy together. */
static __device__ __forceinline__ uint32_t tile_unit(const mm_params &p, const uint32_t *units, uint32_t n_host,
                                                     uint32_t n_vram, uint32_t i, bool *is_host, uint32_t *host_idx)
{
    const uint32_t n = n_host + n_vram;
    const uint32_t h0 = (uint32_t)((uint64_t)i * n_host / n), h1 = (uint32_t)((uint64_t)(i + 1) * n_host / n);
    *is_host = h1 > h0;
    *host_idx = h0;
    return h1 > h0 ? units[h0] : units[p.n_experts * p.unit_pages - 1 - (i - h0)];
}

/* Where the computing warps find matrix m of host unit `idx`. Ring slots keep the page's place in its 128-byte line. */
static __device__ uint64_t fetched_at(const mm_params &p, uint32_t unit, uint32_t idx, uint32_t m)
{
    const size_t entry = (size_t)(unit >> 12) * p.pages + (m ? p.first_page1 : p.first_page0) + (unit & 4095);
    const uint64_t addr = p.page_addr[entry];
    if (mm_in_arena(p, addr))
        return addr;
    if (p.fill_addr && p.fill_addr[entry])
        return p.fill_addr[entry];
    const uint32_t per_unit = p.mode == MM_GATE_UP ? 2 : 1;
    return p.ring_addr + (uint64_t)((idx * per_unit + m) % p.ring_slots) * p.slot_bytes + (addr & 127);
}

static __device__ __forceinline__ uint4 load_stream(uint64_t a)
{
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(a));
    return v;
}

/* One warp copies n bytes; whole lines where source and destination are 16-byte aligned alike. */
static __device__ void fetch_copy(uint64_t dst, uint64_t src, uint32_t n)
{
    const uint32_t lane = threadIdx.x % 32;
    if (((src ^ dst) & 15) == 0) { /* the covering units; what is copied before and after belongs to no one else */
        const uint32_t skip = (uint32_t)src & 15;
        src -= skip;
        dst -= skip;
        const uint32_t units = (n + skip + 15) / 16;
        for (uint32_t i = lane; i < units; i += 32 * 8) {
            uint4 v[8];
#pragma unroll
            for (int j = 0; j < 8; j++)
                if (i + j * 32 < units)
                    v[j] = load_stream(src + (i + j * 32) * 16);
#pragma unroll
            for (int j = 0; j < 8; j++)
                if (i + j * 32 < units)
                    *reinterpret_cast<uint4 *>(dst + (i + j * 32) * 16) = v[j];
        }
    } else if (((src | dst | n) & 7) == 0) {
#pragma unroll 8
        for (uint32_t i = lane; i < n / 8; i += 32)
            *reinterpret_cast<uint2 *>(dst + i * 8) = *reinterpret_cast<const uint2 *>(src + i * 8);
    } else {
#pragma unroll 8
        for (uint32_t i = lane; i < n / 2; i += 32)
            *reinterpret_cast<uint16_t *>(dst + i * 2) = *reinterpret_cast<const uint16_t *>(src + i * 2);
    }
}

static __device__ __forceinline__ uint32_t unit_rows(const mm_params &p, uint32_t unit)
{
    return min(p.page_rows, p.rows - (unit & 4095) * p.page_rows);
}
static __device__ __forceinline__ uint32_t tile_rows_per_item(const mm_params &p)
{
    return p.mode == MM_GATE_UP ? TILE_ROWS / 2 : TILE_ROWS;
}

/* Items (row tiles times token tiles) of a unit: what `done` counts up to. */
static __device__ __forceinline__ uint32_t unit_items(const mm_params &p, uint32_t unit)
{
    const uint32_t e = unit >> 12, n = p.expert_start[e + 1] - p.expert_start[e], per = tile_rows_per_item(p);
    return (unit_rows(p, unit) + per - 1) / per * ((n + p.tile_tokens - 1) / p.tile_tokens);
}

static __device__ __forceinline__ uint32_t pieces_of(uint64_t src, uint64_t bytes)
{
    return (uint32_t)(((src & 127) + bytes + FETCH_PIECE - 1) / FETCH_PIECE);
}

/* A warp. Pieces are dealt to the blocks in turn; `ready` of a page counts pieces. */
static __device__ void fetch_all(const mm_params &p, const uint32_t *units, uint32_t n_host)
{
    const uint32_t lane = threadIdx.x % 32, per_unit = p.mode == MM_GATE_UP ? 2 : 1;
    uint32_t turn = 0;
    for (uint32_t idx = 0; idx < n_host; idx++) {
        const uint32_t unit = units[idx];
        const uint64_t bytes = unit_rows(p, unit) * p.row_bytes;
        for (uint32_t m = 0; m < per_unit; m++) {
            const size_t entry = (size_t)(unit >> 12) * p.pages + (m ? p.first_page1 : p.first_page0) + (unit & 4095);
            const uint64_t src = p.page_addr[entry];
            if (mm_in_arena(p, src))
                continue;
            const uint64_t dst = fetched_at(p, unit, idx, m);
            const uint32_t seq = idx * per_unit + m;
            bool waited = false;
            /* Pieces end where a line of the source ends. */
            const uint64_t head = src & 127;
            const uint32_t n = pieces_of(src, bytes);
            for (uint32_t q = (blockIdx.x + gridDim.x - turn % gridDim.x) % gridDim.x; q < n; q += gridDim.x) {
                const uint64_t at = (uint64_t)q * FETCH_PIECE;
                if (!waited && seq >= p.ring_slots) {
                    const uint32_t before = (seq - p.ring_slots) / per_unit;
                    if (lane == 0)
                        wait_until(p.done + before, unit_items(p, units[before]));
                    __syncwarp();
                }
                waited = true;
                const uint64_t from = at > head ? at - head : 0;
                const uint64_t to = min(at + FETCH_PIECE - head, bytes);
                fetch_copy(dst + from, src + from, (uint32_t)(to - from));
                __threadfence();
                __syncwarp();
                if (lane == 0)
                    atomicAdd(p.ready + seq, 1u);
            }
            turn += n;
        }
    }
}

/* --- the kernel ---------------------------------------------------------------------------------------------------------- */
/* --- the order of work --------------------------------------------------------------------------------------------------- */

/* Of `work`: products of the matrix units do not run on across calls. */
#define TILE_INLINE __attribute__((always_inline))

/* Calls `work` with each item of this block, in an order that all warps of it follow. A linear is one unit, neither on the host nor cut into
 * pages. */
template <typename F>
static __device__ __forceinline__ void tile_each(const mm_params &p, const uint32_t *units, uint32_t n_host,
                                                 uint32_t n_vram, F work)
{
    const uint32_t per = tile_rows_per_item(p), per_unit = p.mode == MM_GATE_UP ? 2 : 1;
    const bool linear = p.mode == MM_LINEAR;
    const uint32_t n_units = linear ? 1 : n_host + n_vram;
    uint32_t before = 0; /* items of the units before unit i */
    for (uint32_t i = 0; i < n_units; i++) {
        tile_item it = {};
        bool is_host = false;
        uint32_t idx = 0, page = 0, in_page = p.rows, start = 0, n = p.n_tokens, panel = 0;
        if (!linear) {
            it.unit = tile_unit(p, units, n_host, n_vram, i, &is_host, &idx);
            it.expert = it.unit >> 12, page = it.unit & 4095;
            in_page = unit_rows(p, it.unit);
            start = p.expert_start[it.expert];
            n = p.expert_start[it.expert + 1] - start;
            panel = panel_of_expert(start, it.expert);
        }
        it.host = is_host ? idx : UINT32_MAX;
#pragma unroll
        for (uint32_t m = 0; m < 2; m++)
            it.base[m] = linear ? (uint64_t)(uintptr_t)p.w
                         : is_host
                             ? fetched_at(p, it.unit, idx, m % per_unit)
                             : p.page_addr[(size_t)it.expert * p.pages + (m ? p.first_page1 : p.first_page0) + page];
        const uint32_t token_tiles = (n + p.tile_tokens - 1) / p.tile_tokens;
        const uint32_t width = ((n + token_tiles - 1) / token_tiles + 7) & ~7u; /* even tiles */
        const uint32_t row_tiles = (in_page + per - 1) / per, items = row_tiles * token_tiles;
        for (uint32_t k = (blockIdx.x + gridDim.x - before % gridDim.x) % gridDim.x; k < items; k += gridDim.x) {
            const uint32_t first = k / row_tiles * width;
            it.page_row = k % row_tiles * per;
            it.row0 = page * p.page_rows + it.page_row;
            it.n_rows = min(in_page - it.page_row, per);
            it.first = start + first;
            it.n = first < n ? min(n - first, width) : 0; /* rounding up to eights may leave the last tile empty */
            it.panel = panel + first / PANEL_TOKENS;
            work(it);
        }
        before += items;
    }
}

/* Until the pages of an item are there. One thread; the others wait for it. */
static __device__ __forceinline__ void tile_wait_pages(const mm_params &p, const tile_item &it)
{
    const uint32_t per_unit = p.mode == MM_GATE_UP ? 2 : 1;
    for (uint32_t m = 0; m < per_unit && it.host != UINT32_MAX; m++) {
        const uint64_t src =
            p.page_addr[(size_t)it.expert * p.pages + (m ? p.first_page1 : p.first_page0) + (it.unit & 4095)];
        if (!mm_in_arena(p, src))
            wait_until(p.ready + it.host * per_unit + m, pieces_of(src, unit_rows(p, it.unit) * p.row_bytes));
    }
}

/* All warps that compute have read the item's pages: their places may be used anew. */
static __device__ __forceinline__ void tile_item_done(const mm_params &p, const tile_item &it)
{
    if (it.host == UINT32_MAX)
        return;
    tile_barrier();
    if (threadIdx.x == 0) {
        __threadfence();
        atomicAdd(p.done + it.host, 1u);
    }
}

#include "kernels/cuda/tile_mma.cuh"
#include "kernels/cuda/tile_wgmma.cuh"

/* --- the kernel ---------------------------------------------------------------------------------------------------------- */

/* Shared memory of either way, without units. */
template <int FMT>
static constexpr __host__ __device__ uint32_t tile_bytes(bool by_wgmma, uint32_t tokens, uint32_t stages)
{
    return by_wgmma ? tile_wgmma_bytes<FMT>(tokens, stages) : tile_mma_bytes<FMT>(tokens, stages);
}

template <int FMT> __global__ void __launch_bounds__(TILE_BLOCK, 1) tile_kernel(const __grid_constant__ mm_params p)
{
    extern __shared__ __align__(128) unsigned char smem[];
    __shared__ uint32_t scratch[36];
    unsigned char *rings = smem + (-smem_of(smem) & 1023);
    uint32_t *units = reinterpret_cast<uint32_t *>(rings + tile_bytes<FMT>(PANELS_FOR_WGMMA, p.tile_tokens, p.stages));
    uint32_t n_host = 0, n_vram = 0;
    tile_begin(p);
    overlap_begin(p.mark);
    if (p.mode != MM_LINEAR)
        list_units(p, units, scratch, &n_host, &n_vram);
    __syncthreads();
    tile_work<FMT>(p, rings, units, n_host, n_vram);
}

#define TILE_STATIC \
    2048 /* shared memory for what aligning the rings costs, and for what is not asked for at the launch */

/* Stages and tokens a tile for `smem_max` bytes of shared memory. */
template <int FMT> static inline bool tile_shape(mm_params *p, bool by_wgmma, int smem_max, uint32_t *ret_smem)
{
    static_assert(tile_bytes<FMT>(false, 32, 2) + TILE_STATIC <= CUDA_LEAST_SMEM, "for every chip");
    const uint32_t fixed = TILE_STATIC + (p->mode == MM_LINEAR ? 0 : p->n_experts * p->unit_pages * 4);
    for (uint32_t tokens = tile_tokens<FMT>(); tokens >= 32; tokens /= 2)
        for (uint32_t stages = TILE_STAGES; stages >= (tokens == 128 ? 3 : 2); stages--) {
            const uint32_t need = tile_bytes<FMT>(by_wgmma, tokens, stages) + fixed;
            if (need > (uint32_t)smem_max)
                continue;
            p->tile_tokens = tokens;
            p->stages = stages;
            *ret_smem = need - TILE_STATIC + 1024;
            return true;
        }
    return false;
}

#endif
