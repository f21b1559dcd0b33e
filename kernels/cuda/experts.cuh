/* experts.cuh - the experts of a MoE layer in one launch: which blocks read what, and by which of the two ways.
 *
 * A layer that lies in VRAM goes through team.cuh. Where something has to come from the host, a few blocks read over the link and the
 * others what lies in VRAM, all by warp.cuh. */
#ifndef KERNELS_CUDA_EXPERTS_CUH
#define KERNELS_CUDA_EXPERTS_CUH

#include "kernels/cuda/team.cuh"
#include "kernels/cuda/warp.cuh"

/* TEAM: with the way of team.cuh, which has more warps, so fewer registers each. PLAIN: as mm_activate(), and both phases; else
 * whatever there is. */
template <int FMT, bool TEAM, bool PLAIN>
__global__ void __launch_bounds__(TEAM ? TEAM_THREADS : WARP_COUNT * 32, 1)
    warp_kernel(const __grid_constant__ warp_params P)
{
    extern __shared__ __align__(128) unsigned char smem[];
    __shared__ uint64_t full[WARP_COUNT][WARP_MAX_SLOTS], scratch[TEAM_THREADS / 32];
    __shared__ warp_note notes[WARP_COUNT][WARP_MAX_SLOTS];
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const mm_params &p = P.p[0];
    unsigned char *x = smem, *ring = smem + P.x_bytes;
    __shared__ warp_ahead ahead;
    __shared__ uint32_t in_flight;
    if (threadIdx.x == 0)
        in_flight = 0;
#if __CUDA_ARCH__ >= 900
    __shared__ team_shared shared;
    if (TEAM)
        team_init(shared);
    /* Addresses of pages are written between steps only. */
    for (uint32_t i = threadIdx.x * 16; i < p.n_experts * p.pages && blockIdx.x < 4; i += blockDim.x * 16)
        fetch_ahead(p.page_addr + i);
#endif
    if (warp < WARP_COUNT && lane < WARP_MAX_SLOTS)
        bar_init(&full[warp][lane], WARP_FULL_COUNT);
    bar_init_done();
    overlap_begin(p.mark);
    if (!TEAM && P.x_pitch)
        warp_split_x(p, x, P.x_pitch, blockDim.x);
    if (P.ahead_own)
        warp_load_ahead(P, ahead);

    uint32_t *units = reinterpret_cast<uint32_t *>(ring + P.ring_bytes), counts[4];
    warp_list(P, units, scratch, counts);
    if (P.ahead_own)
        warp_list_ahead(P, units, counts, ahead);
    const uint32_t cap0 = warp_cap0(p), cap1 = p.n_experts * P.p[1].unit_pages;
    const uint32_t n_summands = (counts[2] + counts[3]) / P.p[1].unit_pages;
    const bool any_host = counts[0] + counts[2] > 0, any_vram = counts[1] + counts[3] > 0;
    if (P.ahead.lists && !any_host && blockIdx.x + threadIdx.x == 0)
        store_relaxed(&ahead_list_of(P.ahead, P.layer + 1)->go, *P.ahead.step);
    const uint32_t readers = min(P.host_blocks, any_vram ? max(gridDim.x / 4, 1u) : gridDim.x);
    const bool host = any_host && blockIdx.x < readers;
    warp_walk w;
    w.tier = host ? WARP_HOST : WARP_VRAM;
    w.begun = false;
    w.ahead = &ahead;
#pragma unroll
    for (int ph = 0; ph < 2; ph++) {
        const uint32_t rows = ph ? 16 : 8, page_rows = min(P.p[ph].page_rows, P.p[ph].rows);
        w.tiles[ph] = (page_rows + rows - 1) / rows;
        w.end[ph] = counts[2 * ph + !host] * w.tiles[ph] + (ph ? w.end[0] : 0);
        if (!PLAIN && !(P.phases >> ph & 1))
            w.end[ph] = ph ? w.end[0] : 0;
    }
    w.units[0] = units + (host ? 0 : cap0 - counts[1]);
    w.units[1] = units + cap0 + (host ? 0 : cap1 - counts[3]);
    const bool team = TEAM && !any_host;
#if __CUDA_ARCH__ >= 900
    if constexpr (TEAM)
        if (team) {
            w.i = blockIdx.x;
            w.step = gridDim.x;
            team_run<FMT, PLAIN>(P, w, ring, x, n_summands, shared);
        }
#endif
    const uint32_t n_warps = host ? P.warps[WARP_HOST] : P.warps[WARP_VRAM];
    const uint32_t slots = host ? P.slots[WARP_HOST] : P.slots[WARP_VRAM];
    const uint32_t slot_bytes = host ? P.slot_bytes[WARP_HOST] : P.slot_bytes[WARP_VRAM];
    const uint32_t n_blocks = host ? readers : any_host ? gridDim.x - readers : gridDim.x;
    const uint32_t rank = host || !any_host ? blockIdx.x : blockIdx.x - readers;
    if (TEAM && !team && P.x_pitch) {
        warp_split_x(p, x, P.x_pitch, blockDim.x);
        __syncthreads();
    }
    if (!team && warp < n_warps) {
        w.i = warp * n_blocks + rank;
        w.step = n_blocks * n_warps;
        warp_work<FMT, PLAIN, TEAM ? 2 : WARP_AT_ONCE>(P, w, ring + warp * slots * slot_bytes, slots, slot_bytes,
                                                       notes[warp], full[warp], smem_of(x), n_summands, &in_flight);
    }

    if (P.ahead_own && any_host && !host && (PLAIN || P.phases & 1))
        warp_keep_ahead(P, ahead, warp * n_blocks + rank, n_blocks * WARP_COUNT);

    /* Whoever leaves last clears the counters for the next launch. */
    __syncthreads();
    const bool last = threadIdx.x == 0 && atomicAdd(P.counters + WARP_EXIT, 1u) + 1 == gridDim.x;
    if (!__syncthreads_or(last))
        return;
    for (uint32_t i = threadIdx.x; i < WARP_READY + p.n_experts; i += blockDim.x)
        P.counters[i] = 0;
    const uint32_t n_sums = P.y ? P.p[1].unit_pages * ((P.p[1].page_rows + 15) / 16) : 0;
    for (uint32_t i = threadIdx.x; i < n_sums; i += blockDim.x)
        P.counters[WARP_SUMS + i] = 0;
}

#endif
