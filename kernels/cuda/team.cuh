/* team.cuh - experts of few tokens whose weights lie in VRAM: the warps of a block share every item.
 *
 * An item (16 rows, see warp.cuh) is cut along K into units of 8 blocks of 32, and the units of all items of a block are dealt to its
 * warps in turn. A warp makes the fresh products of its unit, all independent of each other, then takes the sum so far from the warp
 * before it, adds its own blocks in ascending order, and hands the sum on: the arithmetic of frag.cuh, and so its bits. What memory
 * delivers is used at once by all warps, whole rows of one item are one stage of a ring of the block, and little work is left when the last
 * bytes have come.
 *
 * Two more warps serve: one finds items and asks for their rows, as far ahead as the ring allows; the other makes results
 * known to the other blocks, several items with one fence, and adds the picks where it ends the last one.
 * Nobody waits for an item that comes later in the order than his own. */
#ifndef KERNELS_CUDA_TEAM_CUH
#define KERNELS_CUDA_TEAM_CUH

#include "kernels/cuda/experts.h"
#include "kernels/cuda/frag.cuh"
#include "kernels/cuda/gemv.cuh"
#include "kernels/cuda/warp.cuh"

#if __CUDA_ARCH__ >= 900

static_assert(TEAM_BLOCKS == GEMV_BLOCKS, "gemv_row() knows where the blocks of a unit lie");

#define TEAM_ENDED 16 /* items whose results have not been made known */

struct alignas(16) team_note {
    uint32_t row0, valid; /* first row of the result; rows of each half, 8 bits each, and the expert */
    uint32_t first, n;    /* tokens of the bucket */
};

struct team_shared {
    uint64_t noted[TEAM_MAX_STAGES], full[TEAM_MAX_STAGES], empty[TEAM_MAX_STAGES];
    uint64_t summed[TEAM_SUMS][TEAM_UNITS]; /* a unit's sum can be taken */
    uint64_t ended[TEAM_ENDED];
    team_note notes[TEAM_MAX_STAGES];
    uint2 results[TEAM_ENDED]; /* row0; valid, and the phase in bit 16 */
    uint32_t known;            /* items that have left `results` */
};

/* An address in shared memory that the compiler keeps: to find it again costs more than many a wait. */
static __device__ __forceinline__ uint32_t team_base(const void *p)
{
    uint32_t at;
    asm volatile("mov.u32 %0, %1;" : "=r"(at) : "r"(smem_of(p)));
    return at;
}
#define TEAM_AT(field) (bars + (uint32_t)offsetof(team_shared, field))

/* The items of a block: w.i, w.i + w.step, ..., n0 of phase 0 and then the others. */
struct team_job {
    const warp_walk *w;
    uint32_t n, n0, n_summands;
    const unsigned char *x; /* of phase 0, in shared memory; or NULL */
    unsigned char *stages;
    float4 *sums;             /* [TEAM_SUMS][group of 8 tokens][lane] */
    uint16_t *tokens, *pairs; /* of each pair */
};

static __device__ __forceinline__ void team_arrive(uint32_t bar, uint32_t n = 1)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(n) : "memory");
}

/* Does not wait. */
static __device__ __forceinline__ bool team_test(uint32_t bar, uint32_t phase)
{
    uint32_t done;
    asm volatile(
        "{\n\t.reg .pred p;\n\tmbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n\tselp.u32 %0, 1, 0, p;\n\t}"
        : "=r"(done)
        : "r"(bar), "r"(phase)
        : "memory");
    return done;
}

static __device__ __forceinline__ void team_wait(uint32_t bar, uint32_t phase)
{
    uint32_t done;
    do {
        asm volatile(
            "{\n\t.reg .pred p;\n\tmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\tselp.u32 %0, 1, 0, p;\n\t}"
            : "=r"(done)
            : "r"(bar), "r"(phase)
            : "memory");
    } while (!done);
}

/* `known` is looked at without a barrier; racecheck takes that for what it is where both sides are atomic operations. */
static __device__ __forceinline__ uint32_t team_known(uint32_t at)
{
    uint32_t n;
#ifdef XD_RACECHECK
    asm volatile("atom.shared.or.b32 %0, [%1], 0;" : "=r"(n) : "r"(at) : "memory");
#else
    asm volatile("ld.volatile.shared.u32 %0, [%1];" : "=r"(n) : "r"(at) : "memory");
#endif
    return n;
}

static __device__ __forceinline__ void team_set_known(uint32_t at, uint32_t n)
{
#ifdef XD_RACECHECK
    asm volatile("{\n\t.reg .b32 was;\n\tatom.shared.exch.b32 was, [%0], %1;\n\t}" ::"r"(at), "r"(n) : "memory");
#else
    asm volatile("st.volatile.shared.u32 [%0], %1;" ::"r"(at), "r"(n) : "memory");
#endif
}

static __device__ __forceinline__ void team_put(uint32_t at, uint32_t x, uint32_t y)
{
    asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(at), "r"(x), "r"(y) : "memory");
}

/* Asks for the rows of all items. Lane l finds, and asks for, every 32nd item. */
template <int FMT> static __device__ void team_fetch(const warp_params &P, const team_job &job, team_shared &s)
{
    const uint32_t lane = threadIdx.x % 32, bars = team_base(&s), stages = team_base(job.stages);
    const uint64_t policy = once_policy();
    uint32_t slot = 0, parity = 1;
    for (uint32_t k0 = 0; k0 < job.n; k0 += 32) {
        warp_item it = {};
        const uint32_t mine = k0 + lane;
        if (mine >= job.n || !warp_find(P, *job.w, job.w->i + mine * job.w->step, it)) {
            it.valid[0] = it.valid[1] = it.first = 0; /* an empty place behind a short page */
            it.n = 1;
        }
        const team_cut cut = P.team.cut[mine >= job.n0];
        const uint32_t row_bytes = (uint32_t)P.p[mine >= job.n0].row_bytes;
        const bool run = cut.n_chunks == 1 && cut.pitch == row_bytes;
        const uint32_t most = cut.stage_units * TEAM_BLOCKS * fmt_block<FMT>::BYTES;
        for (uint32_t l = 0; l < min(job.n - k0, 32u); l++) {
            const uint32_t n_chunks = __shfl_sync(~0u, cut.n_chunks, l);
            for (uint32_t chunk = 0; chunk < n_chunks; chunk++) {
                if (lane == l) {
                    uint64_t *full = s.full + slot;
                    team_wait(TEAM_AT(empty) + slot * 8, parity);
                    s.notes[slot] = {it.row0, it.valid[0] | it.valid[1] << 8 | it.expert << 16, it.first, it.n};
                    team_arrive(TEAM_AT(noted) + slot * 8);
                    const uint32_t len = min(most, row_bytes - chunk * most);
                    bar_expect(full, (it.valid[0] + it.valid[1]) * len);
#pragma unroll 1
                    for (uint32_t h = 0; h < 2; h++) {
                        uint32_t n = h ? it.valid[1] : it.valid[0], bytes = len;
                        uint32_t to = stages + slot * P.team.slot_bytes + h * 8 * cut.pitch;
                        uint64_t from = (h ? it.base[1] : it.base[0]) + chunk * most;
                        if (run && n) {
                            bytes = n * len;
                            n = 1;
                        }
#pragma unroll 1
                        for (; n > 0; n--, to += cut.pitch, from += row_bytes)
                            bulk_copy_once(to, from, bytes, full, policy);
                    }
                }
                __syncwarp();
                if (++slot == P.team.stages) {
                    slot = 0;
                    parity ^= 1;
                }
            }
        }
    }
}

/* Makes results known: counts the items of gate and up, and sums the picks of finished rows. */
static __device__ void team_publish(const warp_params &P, const team_job &job, team_shared &s)
{
    const uint32_t lane = threadIdx.x % 32, bars = team_base(&s);
    const mm_params &p = P.p[1];
    for (uint32_t k = 0; k < job.n;) {
        team_wait(TEAM_AT(ended) + k % TEAM_ENDED * 8, k / TEAM_ENDED & 1);
        uint32_t m = 1;
        while (m < TEAM_ENDED && k + m < job.n &&
               __all_sync(~0u, team_test(TEAM_AT(ended) + (k + m) % TEAM_ENDED * 8, (k + m) / TEAM_ENDED & 1)))
            m++;
        uint2 r = make_uint2(0, 0);
        if (lane < m)
            r = s.results[(k + lane) % TEAM_ENDED];
        __syncwarp();
        k += m;
        if (lane == 0)
            team_set_known(TEAM_AT(known), k);
        const bool there = (r.y & 0xffff) != 0, down = r.y >> 16;
        const uint32_t n_gate_up = __popc(__ballot_sync(~0u, there && !down));
        __threadfence();
        if (lane == 0 && n_gate_up)
            atomicAdd(P.counters + WARP_QUEUE, n_gate_up);
        bool last = false;
        if (there && down && P.y)
            last = atomicAdd(P.counters + WARP_SUMS + warp_sum_tile(p, r.x), 1u) + 1 == job.n_summands;
        uint32_t todo = __ballot_sync(~0u, last);
        if (todo)
            __threadfence();
        for (; todo; todo &= todo - 1) {
            const uint32_t l = __ffs(todo) - 1, valid = __shfl_sync(~0u, r.y, l);
            warp_sum_picks(P, __shfl_sync(~0u, r.x, l), valid & 0xff, valid >> 8 & 0xff);
        }
    }
}

/* Results of 8 tokens, from token k0 of the bucket on. */
template <bool PLAIN>
static __device__ __forceinline__ void team_store(const warp_params &P, const team_job &job, const team_note &note,
                                                  uint32_t phase, uint32_t k0, const float (&acc)[4])
{
    const mm_params &p = P.p[phase];
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int c = 0; c < 2; c++) {
        const uint32_t k = k0 + 2 * t + c, pair = note.first + k;
        if (k >= note.n)
            continue;
        if (phase == 0) {
            if (g < (note.valid & 0xff))
                store_activation<PLAIN>(p, note.valid >> 16, pair, note.row0 + g, acc[c], acc[2 + c]);
            continue;
        }
        float *y = p.y + (size_t)job.pairs[pair] * p.y_stride + note.row0 + g;
        if (g < (note.valid & 0xff))
            y[0] = mm_result<PLAIN>(p, note.valid >> 16, note.row0 + g, acc[c]);
        if (g < (note.valid >> 8 & 0xff))
            y[8] = mm_result<PLAIN>(p, note.valid >> 16, note.row0 + 8 + g, acc[2 + c]);
    }
}

/* The units of one warp. */
template <int FMT, bool PLAIN>
static __device__ void team_work(const warp_params &P, const team_job &job, team_shared &s)
{
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, bars = team_base(&s);
    const uint32_t n_stages = P.team.stages, slot_bytes = P.team.slot_bytes, groups = P.team.groups;
    uint32_t k0 = 0, stage0 = 0;       /* items and stages of the phase before */
    uint32_t ahead = threadIdx.x / 32; /* units from the beginning of the phase to this warp's next */
#pragma unroll 1
    for (uint32_t ph = 0; ph < 2; ph++) {
        const team_cut cut = P.team.cut[ph];
        const mm_params &p = P.p[ph];
        const uint32_t n_items = ph ? job.n - job.n0 : job.n0, n = n_items * cut.n_chunks, blocks = p.cols / 32;
        const bool in_shared = ph == 0 && job.x, alone = ph == 0 && p.n_tokens == 1;
        const unsigned char *x_base = in_shared ? job.x : reinterpret_cast<const unsigned char *>(p.x);
        const uint32_t x_pitch = in_shared ? P.x_pitch : p.x_stride * 4;
        uint32_t q = ahead / cut.stage_units, v = ahead % cut.stage_units; /* stage of the phase, unit of the stage */
        uint32_t slot = (stage0 + q) % n_stages, parity = (stage0 + q) / n_stages & 1;
        if (ph && q < n) {
            /* All activations of the layer. */
            if (lane == 0)
                while (load_acquire(P.counters + WARP_QUEUE) < job.n_summands * warp_ready_count(P.p[0])) {
                }
            __syncwarp();
        }
#pragma unroll 1
        while (q < n) {
            team_wait(TEAM_AT(noted) + slot * 8, parity);
            const uint4 words = load_shared16(TEAM_AT(notes) + slot * 16);
            const team_note note = {words.x, words.y, words.z, words.w};
            const uint32_t k = cut.n_chunks == 1 ? q : q / cut.n_chunks, chunk = q - k * cut.n_chunks;
            const uint32_t unit = chunk * cut.stage_units + v;
            const bool last = v + 1 == cut.stage_units, ends = unit + 1 == cut.units;
            const uint32_t stage = stage0 + q, before = v ? stage : stage - 1; /* of this unit and of the one before */
            const unsigned char *r0 =
                job.stages + slot * slot_bytes + g * cut.pitch + v * TEAM_BLOCKS * fmt_block<FMT>::BYTES;
            const unsigned char *r1 = r0 + 8 * cut.pitch;
            const uint32_t from = before % TEAM_SUMS, to = stage % TEAM_SUMS;
            const uint32_t bar_from = TEAM_AT(summed) + (from * TEAM_UNITS + (v ? v : cut.stage_units) - 1) * 8;
            const uint32_t bar_to = TEAM_AT(summed) + (to * TEAM_UNITS + v) * 8;
            const uint32_t sum_from = from * groups * 32 + lane, sum_to = to * groups * 32 + lane;
            const bool whole = (unit + 1) * TEAM_BLOCKS <= blocks;
#pragma unroll 1
            for (uint32_t j = 0; j * 8 < note.n; j++) {
                uint32_t row = note.first + min(j * 8 + g, note.n - 1);
                if (ph == 0)
                    row = alone ? 0 : job.tokens[row];
                const uint4 *x =
                    reinterpret_cast<const uint4 *>(x_base + (size_t)row * x_pitch) + unit * TEAM_BLOCKS * 8 + t;
                uint4 hi[TEAM_BLOCKS], lo[TEAM_BLOCKS];
#pragma unroll
                for (int i = 0; i < TEAM_BLOCKS; i++)
                    hi[i] = x[8 * i], lo[i] = x[8 * i + 4];
                if (j == 0)
                    team_wait(TEAM_AT(full) + slot * 8, parity);
                float c[TEAM_BLOCKS][4], d0[TEAM_BLOCKS], d1[TEAM_BLOCKS];
#pragma unroll
                for (int i = 0; i < TEAM_BLOCKS; i++) {
                    a_frag<FMT> a;
                    gemv_row<FMT>(r0, i, t, a.r0, &a.d0);
                    gemv_row<FMT>(r1, i, t, a.r1, &a.d1);
                    const b_frag b = {{hi[i].x, hi[i].y, hi[i].z, hi[i].w}, {lo[i].x, lo[i].y, lo[i].z, lo[i].w}};
                    block_product<FMT>(c[i], a, b);
                    d0[i] = a.d0, d1[i] = a.d1;
                    if (FMT == FMT_Q8_0)
                        asm volatile("" : "+f"(d0[i]), "+f"(d1[i])); /* before the wait, which the others wait for */
                }
                float acc[4] = {};
                if ((j + 1) * 8 >= note.n) {
                    /* The stage is free when all its units have left it: TEAM_UNITS arrivals. */
                    __syncwarp();
                    if (lane == 0)
                        team_arrive(TEAM_AT(empty) + slot * 8, last ? TEAM_UNITS + 1 - cut.stage_units : 1);
                }
                if (unit) {
                    if (j == 0)
                        team_wait(bar_from, before / TEAM_SUMS & 1);
                    const float4 sum = job.sums[sum_from + j * 32];
                    acc[0] = sum.x, acc[1] = sum.y, acc[2] = sum.z, acc[3] = sum.w;
                }
                if (whole) {
#pragma unroll
                    for (int i = 0; i < TEAM_BLOCKS; i++)
                        block_add<FMT>(acc, c[i], d0[i], d1[i]);
                } else {
#pragma unroll
                    for (uint32_t i = 0; i < TEAM_BLOCKS; i++)
                        if (i < blocks - unit * TEAM_BLOCKS)
                            block_add<FMT>(acc, c[i], d0[i], d1[i]);
                }
                if (!ends) {
                    job.sums[sum_to + j * 32] = make_float4(acc[0], acc[1], acc[2], acc[3]);
                    if ((j + 1) * 8 >= note.n) {
                        __syncwarp();
                        if (lane == v)
                            team_arrive(bar_to);
                    }
                } else {
                    team_store<PLAIN>(P, job, note, ph, j * 8, acc);
                }
            }
            __syncwarp();
            /* Each barrier of a stage is passed once in every round, those of units that it has not, too. Nobody can be TEAM_SUMS stages
             * ahead of another: what that one has not left is not filled again. */
            if (last && (lane > v || (lane == v && ends)) && lane < TEAM_UNITS)
                team_arrive(bar_to + (lane - v) * 8);
            if (ends && lane == 0) {
                const uint32_t item = k0 + k;
                while (item - team_known(TEAM_AT(known)) >= TEAM_ENDED) {
                }
                team_put(TEAM_AT(results) + item % TEAM_ENDED * 8, note.row0, (note.valid & 0xffff) | ph << 16);
                team_arrive(TEAM_AT(ended) + item % TEAM_ENDED * 8);
            }
            q += cut.step_stages;
            slot += cut.step_stages;
            v += cut.step_units;
            if (v >= cut.stage_units) {
                v -= cut.stage_units;
                q++;
                slot++;
            }
            while (slot >= n_stages) {
                slot -= n_stages;
                parity ^= 1;
            }
        }
        ahead = (q - n) * cut.stage_units + v;
        k0 = n_items;
        stage0 = n;
    }
}

/* Before overlap_begin(), by all threads; a barrier of the block follows before the first use. */
static __device__ __forceinline__ void team_init(team_shared &s)
{
    for (uint32_t i = threadIdx.x / 4; threadIdx.x % 4 == 0 && i < TEAM_SUMS * TEAM_UNITS; i += TEAM_THREADS / 4)
        bar_init(&s.summed[0][0] + i, 1);
    if (threadIdx.x < TEAM_ENDED)
        bar_init(s.ended + threadIdx.x, 1);
    if (threadIdx.x < TEAM_MAX_STAGES) {
        bar_init(s.noted + threadIdx.x, 1);
        bar_init(s.full + threadIdx.x, 1);
        bar_init(s.empty + threadIdx.x, TEAM_UNITS);
    }
    if (threadIdx.x == 0)
        s.known = 0;
    bar_init_done();
}

/* All threads of a block whose items lie in VRAM. */
template <int FMT, bool PLAIN>
static __device__ void team_run(const warp_params &P, const warp_walk &w, unsigned char *ring, unsigned char *x,
                                uint32_t n_summands, team_shared &s)
{
    const uint32_t warp = threadIdx.x / 32;
    team_job job;
    job.w = &w;
    job.n = w.end[1] > w.i ? (w.end[1] - w.i + w.step - 1) / w.step : 0;
    job.n0 = w.end[0] > w.i ? (w.end[0] - w.i + w.step - 1) / w.step : 0;
    job.n_summands = n_summands;
    job.x = P.x_pitch ? x : nullptr;
    job.stages = ring;
    job.sums = reinterpret_cast<float4 *>(ring + P.team.stages * P.team.slot_bytes);
    job.tokens = reinterpret_cast<uint16_t *>(job.sums + TEAM_SUMS * P.team.groups * 32);
    job.pairs = job.tokens + P.p[0].n_tokens * P.p[0].top_k;
    if (warp == TEAM_WORKERS) {
        team_fetch<FMT>(P, job, s);
    } else if (warp > TEAM_WORKERS) {
        team_publish(P, job, s);
    } else {
        const uint32_t n = P.p[0].n_tokens * P.p[0].top_k;
        if (P.x_pitch)
            warp_split_x(P.p[0], x, P.x_pitch, TEAM_WORKERS * 32);
        for (uint32_t i = threadIdx.x; i < n; i += TEAM_WORKERS * 32) {
            const uint32_t pair = P.p[0].pairs[i];
            job.pairs[i] = (uint16_t)pair;
            job.tokens[i] = (uint16_t)(pair / P.p[0].top_k);
        }
        asm volatile("bar.sync 1, %0;" ::"n"(TEAM_WORKERS * 32) : "memory");
        team_work<FMT, PLAIN>(P, job, s);
    }
}

#endif
#endif
