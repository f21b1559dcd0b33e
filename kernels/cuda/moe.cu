/* moe.cu - the experts of a MoE layer: scratch, shapes, launches.
 *
 * Up to 32 tokens are one launch of warp.cuh: gate and up, down, and the sum over picks. With more, buckets of up to 32 go through
 * warp.cuh, larger ones (in long prompts all) through two launches of tile.cuh, and the sum over picks is the last. The picks'
 * results, [token * top_k + pick][d_model], lie in the caller's scratch, as do activations between gate/up and down: rows of
 * [pairs sorted by expert] of warp.cuh, panels of tile.cuh. */
#include "kernels/cuda/cuda_priv.h"
#include "kernels/cuda/experts.h"
#include "kernels/cuda/frag.cuh"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/overlap.cuh"
#include "kernels/cuda/panels.cuh"

static uint64_t up256(uint64_t n)
{
    return (n + 255) & ~255ull;
}

/* y[t] += sum over picks, in their order */
__global__ void combine_kernel(const float *out, const float *weights, float *y, uint32_t dim, uint32_t top_k,
                               const uint32_t *n_live)
{
    const uint32_t t = blockIdx.y;
    overlap_begin();
    if (n_live && t >= *n_live)
        return;
    const uint32_t i = (blockIdx.x * blockDim.x + threadIdx.x) * 4;
    if (i >= dim)
        return;
    float4 *at = reinterpret_cast<float4 *>(y + (size_t)t * dim + i);
    float4 v = *at;
    for (uint32_t k = 0; k < top_k; k++) {
        const float w = weights[(size_t)t * top_k + k];
        const float4 o = *reinterpret_cast<const float4 *>(out + ((size_t)t * top_k + k) * dim + i);
        v.x = fmaf(w, o.x, v.x);
        v.y = fmaf(w, o.y, v.y);
        v.z = fmaf(w, o.z, v.z);
        v.w = fmaf(w, o.w, v.w);
    }
    *at = v;
}

/* With more tokens than this few buckets are so small that warp.cuh would take them, and all are tiled. */
#define SPLIT_TOKENS 2048

/* x as warp.cuh wants it: each block of 32 as hi and lo. A thread takes 8 positions. */
__global__ void split_kernel(const float *x, uint32_t cols, uint32_t n_tokens, unsigned char *out, uint64_t *mark)
{
    overlap_begin(mark);
    const uint32_t units = (cols + 31) / 32 * 4, i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n_tokens * units)
        return;
    const uint32_t row = i / units, u = i % units, k = u * 8;
    const float4 *src = reinterpret_cast<const float4 *>(x + (size_t)row * cols + k);
    const float4 zero = make_float4(0, 0, 0, 0);
    const b_frag f = split_x(k < cols ? src[0] : zero, k + 4 < cols ? src[1] : zero);
    unsigned char *to = out + ((size_t)row * units + u / 4 * 4) * 32 + u % 4 * 16;
    *reinterpret_cast<uint4 *>(to) = make_uint4(f.hi[0], f.hi[1], f.hi[2], f.hi[3]);
    *reinterpret_cast<uint4 *>(to + 64) = make_uint4(f.lo[0], f.lo[1], f.lo[2], f.lo[3]);
}

/* How the caller's scratch is divided. The panels of x are read before the first result is stored, so they take the results' place. */
struct moe_scratch {
    uint64_t act_panels, out, split, counters, counter_bytes, ring, slot_bytes, bytes;
    uint32_t n_panels, ring_slots;
};

/* Floats of a row of activations: whole blocks of 32. */
static uint32_t act_stride(const kern_expert_geom *g)
{
    return (g->d_ff + 31) & ~31u;
}

static uint32_t x_stride(const kern_expert_geom *g)
{
    return (g->d_model + 31) & ~31u;
}

/* Pages fetched ahead of their use when buckets are large: enough for the link to run on while a unit is computed. */
static const uint64_t RING_BYTES = 48ull << 20;

static moe_scratch scratch_of(const cuda_dev *d, uint64_t tokens, uint32_t top_k, uint32_t n_experts,
                              const kern_expert_geom *g)
{
    moe_scratch s = {};
    const uint64_t pairs = tokens * top_k, rows = up256(pairs * act_stride(g) * sizeof(float)),
                   out = pairs * g->d_model * sizeof(float);
    const bool tile = !d->no_tile && tokens > MM_STREAM_TOKENS;
    s.n_panels = tile ? (uint32_t)panels_for(pairs, n_experts) : 0;
    const uint64_t act_panels = panels_bytes(s.n_panels, g->d_ff), x_panels = panels_bytes(s.n_panels, g->d_model);
    s.act_panels = tile && tokens > SPLIT_TOKENS ? 0 : rows;
    s.out = s.act_panels + up256(act_panels);
    s.split = s.out + up256(out > x_panels ? out : x_panels);
    /* and 1 KiB: team.cuh reads whole units of 256 positions */
    s.counters = s.split + 1024 +
                 up256((d->no_tile || tokens < SPLIT_TOKENS ? tokens : SPLIT_TOKENS) * x_stride(g) * sizeof(float));
    if (tokens <= MM_STREAM_TOKENS) {
        s.bytes = s.counters;
        return s;
    }
    for (int m = 0; m < 3; m++) {
        const uint64_t rows = kern_expert_rows(g, m),
                       page = (g->page_rows[m] < rows ? g->page_rows[m] : rows) * g->row_bytes[m];
        if (page > s.slot_bytes)
            s.slot_bytes = page;
    }
    s.slot_bytes = up256(s.slot_bytes + 256); /* and the page's place in its line */
    s.counter_bytes =
        up256((uint64_t)n_experts * g->pages * 2 * sizeof(uint32_t)); /* ready of each page, done of each unit */
    s.ring = s.counters + s.counter_bytes;
    const uint64_t slots = RING_BYTES / s.slot_bytes;
    s.ring_slots = (uint32_t)(slots < 8 ? 8 : slots > 256 ? 256 : slots);
    s.bytes = s.ring + s.ring_slots * s.slot_bytes;
    return s;
}

/* Fewer tokens may need more. */
uint64_t cuda_moe_scratch_bytes(kern_dev *kd, uint32_t max_tokens, uint32_t top_k, uint32_t n_experts,
                                const kern_expert_geom *g)
{
    const uint32_t fewer = max_tokens < SPLIT_TOKENS ? max_tokens : SPLIT_TOKENS;
    const uint64_t most = scratch_of(cuda_of(kd), max_tokens, top_k, n_experts, g).bytes,
                   of_fewer = scratch_of(cuda_of(kd), fewer, top_k, n_experts, g).bytes;
    return most > of_fewer ? most : of_fewer;
}

/* Gate and up, then down, of the buckets from min to max. */
static bool phases_of(const kern_moe_args *a, float *act, float *out, mm_params (&p)[2])
{
    const kern_expert_geom *g = &a->geom;
    p[0] = {};
    p[0].fmt = g->fmt[0];
    p[0].page_addr = a->page_addr;
    p[0].fill_addr = a->fill_addr;
    p[0].expert_start = a->expert_start;
    p[0].pairs = a->pairs;
    p[0].arena_begin = a->arena_begin;
    p[0].arena_end = a->arena_end;
    p[0].pages = g->pages;
    p[0].n_experts = a->n_experts;
    p[0].top_k = a->top_k;
    p[0].n_tokens = a->n_tokens;
    p[0].min_bucket = 1;
    p[0].max_bucket = UINT32_MAX;
    p[0].plain = a->act == KERN_SWIGLU && !a->gate_bias && !a->up_bias && !a->down_bias;
    p[1] = p[0];

    p[0].mode = MM_GATE_UP;
    p[0].x = a->x;
    p[0].y = act;
    p[0].row_bytes = g->row_bytes[0];
    p[0].cols = g->d_model;
    p[0].rows = kern_expert_rows(g, 0);
    p[0].half = g->halves ? p[0].rows : 0;
    p[0].x_stride = g->d_model;
    p[0].y_stride = act_stride(g);
    p[0].first_page0 = g->first_page[0];
    p[0].first_page1 = g->first_page[1];
    p[0].page_rows = g->page_rows[0];
    p[0].act = a->act;
    p[0].act_alpha = a->act_alpha;
    p[0].act_limit = a->act_limit;
    p[0].bias0 = a->gate_bias;
    p[0].bias1 = a->up_bias;

    p[1].fmt = g->fmt[2];
    p[1].mode = MM_DOWN;
    p[1].x = act;
    p[1].y = out;
    p[1].row_bytes = g->row_bytes[2];
    p[1].cols = g->d_ff;
    p[1].rows = g->d_model;
    p[1].x_stride = act_stride(g);
    p[1].y_stride = g->d_model;
    p[1].first_page0 = p[1].first_page1 = g->first_page[2];
    p[1].page_rows = g->page_rows[2];
    p[1].bias0 = p[1].bias1 = a->down_bias;
    for (int ph = 0; ph < 2; ph++) {
        p[ph].unit_pages = (p[ph].rows + p[ph].page_rows - 1) / p[ph].page_rows;
        if (p[ph].unit_pages > 4095)
            return false;
    }
    return true;
}

static uint32_t align_to(uint32_t n, uint32_t to)
{
    return (n + to - 1) / to * to;
}

/* Distance between rows of len bytes that lie at any place of a 16-byte unit, so that the lanes of a warp, which read the same place of 8
 * rows, meet different banks: an odd number of units for quants, which are read by words, half a line off for the others. */
static uint32_t bank_pitch(uint32_t fmt, uint32_t len)
{
    const uint32_t n = align_to(len + 15, 16);
    if (fmt >= FMT_Q8_0)
        return n / 16 % 2 ? n : n + 16;
    return align_to(n + 64, 128) - 64;
}

/* How team.cuh fetches a layer of few tokens that lies in VRAM into the room that the stages have: rows of 16 bytes' multiples, far enough
 * apart for the banks. No stages where it does not fit. */
static void team_shape_of(warp_params *P, uint32_t room)
{
    const mm_params *p = P->p;
    const uint32_t fmt = p[0].fmt, block = fmt == FMT_Q8_0 ? 34 : fmt == FMT_F32 ? 128 : 64;
    const uint32_t pairs = align_to(p[0].n_tokens * p[0].top_k * 4, 128), apart = fmt == FMT_Q8_0  ? 32
                                                                                  : fmt == FMT_F32 ? 16
                                                                                                   : 64;
    team_shape t = {};
    t.groups = (p[0].n_tokens + 7) / 8;
    const uint32_t fixed = pairs + TEAM_SUMS * t.groups * 512;
    if (p[0].n_tokens > MM_STREAM_TOKENS || room < fixed || fmt > FMT_Q8_0 || p[1].fmt != fmt)
        return;
    if (p[0].n_tokens == 1 && fmt == FMT_Q8_0) /* the hand-over from warp to warp costs what the fetching saves */
        return;
    room -= fixed;
    uint32_t few = 4; /* stages */
    for (int ph = 0; ph < 2; ph++) {
        if (p[ph].cols % 32 || p[ph].row_bytes % 16)
            return;
        const uint32_t units = t.cut[ph].units = (p[ph].cols / 32 + TEAM_BLOCKS - 1) / TEAM_BLOCKS;
        few = few * units < TEAM_WORKERS ? (TEAM_WORKERS + units - 1) / units : few;
    }
    for (int ph = 0; ph < 2; ph++) {
        team_cut &cut = t.cut[ph];
        for (cut.stage_units = cut.units < TEAM_UNITS ? cut.units : TEAM_UNITS;; cut.stage_units--) {
            if (!cut.stage_units)
                return;
            cut.n_chunks = cut.units / cut.stage_units;
            const uint32_t len = cut.stage_units * TEAM_BLOCKS * block;
            cut.pitch = len + (apart + 128 - len % 128) % 128;
            if (cut.n_chunks == 1 && fmt == FMT_Q8_0 && p[ph].row_bytes % 32 == 16)
                cut.pitch = (uint32_t)p[ph].row_bytes;
            if (cut.units % cut.stage_units == 0 && 16 * cut.pitch * few <= room)
                break;
        }
        cut.step_stages = TEAM_WORKERS / cut.stage_units;
        cut.step_units = TEAM_WORKERS % cut.stage_units;
        t.slot_bytes = 16 * cut.pitch > t.slot_bytes ? 16 * cut.pitch : t.slot_bytes;
    }
    t.stages = room / t.slot_bytes;
    /* Sums are kept for longer than any warp can be ahead of another. */
    const uint32_t step = t.cut[0].step_stages > t.cut[1].step_stages ? t.cut[0].step_stages : t.cut[1].step_stages;
    const uint32_t most = step + 2 + TEAM_MAX_STAGES > TEAM_SUMS ? TEAM_SUMS - 2 - step : TEAM_MAX_STAGES;
    t.stages = t.stages > most ? most : t.stages;
    /* A warp knows the round of the ring by parity: from one of its units to the next, and to the first, it may not go further than once
     * around. (Short rows, as of 512 columns, have few units.) */
    if (t.stages * t.cut[0].stage_units < TEAM_WORKERS || t.stages * t.cut[1].stage_units < TEAM_WORKERS)
        return;
    P->team = t;
}

/* Shared memory of warp.cuh: split x, the stages of all warps, the lists of units. False where nothing fits. */
static bool shape_of(warp_params *P, uint32_t smem_max, uint32_t *ret_smem)
{
    const mm_params *p = P->p;
    const uint32_t lists = (p[0].n_experts * (p[0].unit_pages + p[1].unit_pages) + AHEAD_UNITS) * 4,
                   fixed = lists + 6144;
    if (smem_max < fixed + 32 * 1024)
        return false;
    uint32_t room = (smem_max - fixed) & ~127u;
    /* Only the few tokens whose buckets all have at most 8: splitting more would cost more than it saves. */
    const uint32_t x_pitch = (p[0].cols + 31) / 32 * 128 + 64;
    const uint64_t x_bytes = align_to(x_pitch * p[0].n_tokens, 128);
    P->x_pitch = P->x_bytes = 0;
    if (p[0].n_tokens <= 8 && x_bytes <= room * 2 / 5) {
        P->x_pitch = x_pitch;
        P->x_bytes = (uint32_t)x_bytes;
        room -= P->x_bytes;
    }
    /* Two stages a warp, as long as they fit: asking for a row costs a warp about as much as 0.5 KiB of computing. Rows that lie well
     * apart for the banks as they are, are asked for all at once. */
    const uint32_t stage = room / WARP_COUNT / 2;
    P->warps[WARP_VRAM] = WARP_COUNT;
    P->slots[WARP_VRAM] = 2;
    P->slot_bytes[WARP_VRAM] = 0;
    for (int ph = 0; ph < 2; ph++) {
        const kern_fmt fmt = (kern_fmt)p[ph].fmt;
        const uint32_t blocks = mm_blocks(fmt, p[ph].cols), grain = mm_grain(fmt);
        const uint64_t half = (8 * p[ph].row_bytes + 15 + 15) & ~15ull;
        warp_cut &cut = P->cut[ph][WARP_VRAM];
        cut = {blocks, 1, 0, (uint32_t)half, 15};
        if (fmt < FMT_Q8_0 || p[ph].row_bytes % 32 != 16 || 2 * half > stage) {
            uint32_t chunk = blocks;
            while (chunk && 16ull * bank_pitch(fmt, mm_bytes(fmt, chunk)) > stage)
                chunk -= grain;
            if (!chunk)
                return false;
            const uint32_t n_chunks = (blocks + chunk - 1) / chunk, even = (blocks + n_chunks - 1) / n_chunks;
            const uint32_t whole = WARP_AT_ONCE % grain ? grain : WARP_AT_ONCE; /* those that are made side by side */
            const uint32_t n = align_to(even, whole) <= chunk ? align_to(even, whole) : align_to(even, grain);
            const uint32_t pitch = bank_pitch(fmt, mm_bytes(fmt, n));
            cut = {n, (blocks + n - 1) / n, pitch, 8 * pitch, 15};
        }
        const uint32_t slot = 2 * cut.half_bytes;
        P->slot_bytes[WARP_VRAM] = slot > P->slot_bytes[WARP_VRAM] ? slot : P->slot_bytes[WARP_VRAM];
    }
    /* Whole rows where three items fit; 64 blocks of any format end where a line does. */
    uint32_t slot = 0;
    for (int ph = 0; ph < 2; ph++) {
        const kern_fmt fmt = (kern_fmt)p[ph].fmt;
        const uint32_t blocks = mm_blocks(fmt, p[ph].cols), grain = mm_grain(fmt);
        const uint64_t half = (8 * p[ph].row_bytes + 128 + 16 + 127) & ~127ull;
        warp_cut &cut = P->cut[ph][WARP_HOST];
        cut = {blocks, 1, 0, (uint32_t)half, 127};
        if (6 * half > room)
            for (uint32_t chunk = blocks < 64 ? blocks : 64;; chunk = chunk / 2 / grain * grain) {
                if (!chunk)
                    return false;
                const uint32_t pitch = align_to(mm_bytes(fmt, chunk) + 127 + 16, 128);
                cut = {chunk, (blocks + chunk - 1) / chunk, pitch, 8 * pitch, 127};
                if (2 * cut.half_bytes <= room && (6 * cut.half_bytes <= room || chunk <= 8))
                    break;
            }
        slot = 2 * cut.half_bytes > slot ? 2 * cut.half_bytes : slot;
    }
    const uint32_t slots = room / slot, each = slots / WARP_COUNT;
    P->slot_bytes[WARP_HOST] = slot;
    P->warps[WARP_HOST] = slots < WARP_COUNT ? slots : WARP_COUNT;
    P->slots[WARP_HOST] = each < 1 ? 1 : each < WARP_MAX_SLOTS ? each : WARP_MAX_SLOTS;
    /* More under way than the link needs fills the queues that reads of VRAM wait in as well; less leaves warps without work. */
    P->host_in_flight = P->warps[WARP_HOST] * P->slots[WARP_HOST] * slot / 2;
    P->ring_bytes = 0;
    for (int tier = 0; tier < 2; tier++) {
        const uint32_t n = P->warps[tier] * P->slots[tier] * P->slot_bytes[tier];
        P->ring_bytes = n > P->ring_bytes ? align_to(n, 128) : P->ring_bytes;
    }
    team_shape_of(P, room);
    if (P->team.stages)
        P->ring_bytes = room;
    *ret_smem = P->x_bytes + P->ring_bytes + lists;
    return true;
}

static cudaError_t warp_launch_phases(cuda_dev *d, const warp_params &P, uint32_t smem, uint32_t fmt)
{
    switch (fmt) {
#define WARP_LAUNCH(id, name, ...) \
    case id: return warp_launch_##name(d, P, smem);
        KERN_FORMATS(WARP_LAUNCH)
    default: return cudaErrorInvalidValue;
    }
}

/* One launch, or one each of gate and up and of down where their formats are not the same. */
static cudaError_t warp_launch(cuda_dev *d, warp_params P, uint32_t smem)
{
    P.phases = 3;
    if (P.p[0].fmt == P.p[1].fmt)
        return warp_launch_phases(d, P, smem, P.p[0].fmt);
    P.phases = 1;
    const cudaError_t e = warp_launch_phases(d, P, smem, P.p[0].fmt);
    P.phases = 2;
    return e == cudaSuccess ? warp_launch_phases(d, P, smem, P.p[1].fmt) : e;
}

/* What the two launches of tile.cuh want: counters of pages, panels of x and room for those of activations. `warp`: small buckets are not theirs. */
static cudaError_t tile_prepare(cuda_dev *d, const kern_moe_args *a, const moe_scratch &s, unsigned char *scratch,
                                bool warp, mm_params (&p)[2])
{
    cudaError_t e = cudaMemsetAsync(scratch + s.counters, 0, s.counter_bytes, d->stream);
    uint32_t *counters = reinterpret_cast<uint32_t *>(scratch + s.counters);
    for (int ph = 0; ph < 2; ph++) {
        const uint32_t n_units = a->n_experts * p[ph].unit_pages;
        p[ph].min_bucket = warp ? MM_STREAM_TOKENS + 1 : 1;
        p[ph].panels = scratch + (ph ? s.act_panels : s.out);
        p[ph].panel_step = (uint64_t)s.n_panels * PANEL_BYTES;
        p[ph].ring_addr = (uint64_t)(uintptr_t)(scratch + s.ring);
        p[ph].slot_bytes = s.slot_bytes;
        p[ph].ring_slots = s.ring_slots;
        p[ph].ready = counters;
        p[ph].done = p[ph].ready + (ph ? 1 : 2) * n_units;
        counters = p[ph].done + n_units;
    }
    p[0].act_panels = p[1].panels;
    p[0].act_step = p[1].panel_step;
    /* Where K does not end with a block of 32 the rest of its last one must be numbers. */
    const uint32_t d_ff = a->geom.d_ff;
    if (e == cudaSuccess && d_ff % 32)
        e = cudaMemsetAsync(p[1].panels + d_ff / PANEL_COLS * p[1].panel_step, 0, p[1].panel_step, d->stream);
    return e == cudaSuccess ? panels_make(d, p[0], s.n_panels) : e;
}

kern_status cuda_moe(kern_dev *kd, const kern_moe_args *a)
{
    cuda_dev *d = cuda_of(kd);
    const kern_expert_geom *g = &a->geom;
    if (!mm_shape_ok(g->fmt[0], g->d_model, g->row_bytes[0]) || !mm_shape_ok(g->fmt[2], g->d_ff, g->row_bytes[2]))
        return cuda_unsupported(d, "experts: dimensions must be multiples of 4 (of a format's block; MXFP4: 64)");
    if (g->fmt[0] != g->fmt[1] || g->page_rows[0] != g->page_rows[1] || g->row_bytes[0] != g->row_bytes[1] ||
        !g->page_rows[0] || !g->page_rows[2])
        return cuda_unsupported(d, "experts: gate and up must be of one format and cut into pages alike");
    if (!kern_moe_act_is_known(a))
        return cuda_unsupported(d, "experts: activation");
    if (!a->n_tokens)
        return KERN_OK;
    if (a->n_experts > MM_MAX_EXPERTS)
        return cuda_unsupported(d, "experts: more than 1024 in a layer");
    const moe_scratch s = scratch_of(d, a->n_tokens, a->top_k, a->n_experts, g);
    unsigned char *scratch = static_cast<unsigned char *>(a->scratch);
    float *act = reinterpret_cast<float *>(scratch), *out = reinterpret_cast<float *>(scratch + s.out);

    warp_params P = {};
    if (!phases_of(a, act, out, P.p))
        return cuda_unsupported(d, "experts: more than 4095 pages in a matrix");
    const bool tile = !d->no_tile && a->n_tokens > MM_STREAM_TOKENS, warp = !tile || a->n_tokens <= SPLIT_TOKENS;
    cudaError_t e = cudaSuccess;
    mm_params phase[2] = {P.p[0], P.p[1]};
    if (tile) {
        e = tile_prepare(d, a, s, scratch, warp, phase);
        if (e != cudaSuccess)
            return cuda_fail(d, e, "experts");
        const kern_status st = mm_launch(d, phase[0]);
        if (st)
            return st;
    }
    if (a->partial &&
        (e = cudaMemsetAsync(out, 0, (size_t)a->n_tokens * a->top_k * g->d_model * sizeof *out, d->stream)))
        return cuda_fail(d, e, "experts");
    if (warp) {
        P.p[0].max_bucket = P.p[1].max_bucket = tile ? MM_STREAM_TOKENS : UINT32_MAX;
        uint32_t smem = 0;
        if (!shape_of(&P, (uint32_t)d->smem_max, &smem))
            return cuda_unsupported(d, "experts: their rows do not fit in shared memory");
        const uint32_t n_sums = P.p[1].unit_pages * ((P.p[1].page_rows + 15) / 16);
        if (a->n_tokens <= MM_STREAM_TOKENS && n_sums <= WARP_MAX_SUMS)
            P.y = a->y;
        P.weights = a->weights;
        P.n_live = a->n_live;
        P.counters = d->counters;
        if (a->ahead) {
            if (!cuda_ahead_mem(d, a->ahead, &P.ahead))
                return cuda_unsupported(d, "reading ahead");
            P.layer = a->layer;
            P.ahead_own = a->layer >= a->ahead->first;
        }
        /* Enough stages in flight to fill the link, and warps to keep up with it. */
        P.host_blocks = 16;
        if (!P.x_pitch) {
            const uint32_t n = a->n_tokens * (x_stride(g) / 8);
            e = cuda_start(d, split_kernel, (n + 255) / 256, 256, 0, a->x, g->d_model, a->n_tokens, scratch + s.split,
                           cuda_take_mark(d));
            P.p[0].x = reinterpret_cast<const float *>(scratch + s.split);
            P.p[0].x_stride = x_stride(g);
        }
        if (e == cudaSuccess)
            e = warp_launch(d, P, smem);
        if (e != cudaSuccess)
            return cuda_fail(d, e, "experts");
        if (P.y)
            return KERN_OK;
    }

    if (tile) {
        const kern_status st = mm_launch(d, phase[1]);
        if (st)
            return st;
    }
    (void)cuda_start(d, combine_kernel, dim3((g->d_model + 511) / 512, a->n_tokens), 128, 0, out, a->weights, a->y,
                     g->d_model, a->top_k, a->n_live);
    return cuda_launched(d, "sum over experts");
}
