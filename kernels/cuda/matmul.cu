/* matmul.cu - linear layers and the experts of a MoE layer: checks, choice of kernel, launches.
 *
 * A MoE layer is three launches: gate and up with SwiGLU, down, and the sum over picks in their order. Activations between them lie in
 * the caller's scratch: [pairs sorted by expert][d_ff], then [token * top_k + pick][d_model].
 * Each format's kernels are compiled in a file of their own (mm_*.cu), so that a build can use both cores. */
#include "kernels/cuda/cuda_priv.h"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/mm.cuh"

#define MAX_EXPERTS 1024 /* of a layer */

static uint64_t up256(uint64_t n)
{
    return (n + 255) & ~255ull;
}

static kern_status launch(cuda_dev *d, const mm_params &p)
{
    cudaError_t e;
    switch (p.fmt) {
    case FMT_F32: e = mm_launch_f32(d, p); break;
    case FMT_F16: e = mm_launch_f16(d, p); break;
    case FMT_BF16: e = mm_launch_bf16(d, p); break;
    case FMT_Q8_0: e = mm_launch_q8_0(d, p); break;
    default: return cuda_unsupported(d, "weight format");
    }
    if (e == cudaErrorInvalidValue)
        return cuda_unsupported(d, "shape of a matrix product: its rows do not fit in shared memory");
    return e == cudaSuccess ? KERN_OK : cuda_fail(d, e, "matrix product");
}

/* Lanes read 4 activations at once. */
static bool shape_ok(kern_fmt fmt, uint32_t cols, uint64_t row_bytes)
{
    return cols % (fmt == FMT_Q8_0 ? 32 : 4) == 0 && row_bytes % (fmt == FMT_F32 ? 4 : 2) == 0;
}

kern_status cuda_linear(kern_dev *kd, const kern_linear_args *a)
{
    cuda_dev *d = cuda_of(kd);
    if (!shape_ok(a->w.fmt, a->w.cols, a->w.row_bytes) || a->x_stride % 4 || (uintptr_t)a->x % 16)
        return cuda_unsupported(d, "linear: columns must be a multiple of 4 and activations aligned to 16 bytes");
    if (!a->n_tokens || !a->w.rows)
        return KERN_OK;
    mm_params p = {};
    p.mode = MM_LINEAR;
    p.fmt = a->w.fmt;
    p.x = a->x;
    p.y = a->y;
    p.w = static_cast<const unsigned char *>(a->w.data);
    p.row_bytes = a->w.row_bytes;
    p.cols = a->w.cols;
    p.rows = a->w.rows;
    p.x_stride = a->x_stride;
    p.y_stride = a->y_stride;
    p.bias = a->bias;
    p.row_idx = a->row_idx;
    p.n_tokens = a->n_tokens;
    p.accumulate = a->accumulate;
    return launch(d, p);
}

/* y[t] += sum over picks, in their order */
__global__ void combine_kernel(const float *out, const float *weights, float *y, uint32_t dim, uint32_t top_k,
                               const uint32_t *n_live)
{
    const uint32_t t = blockIdx.y;
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

/* How the caller's scratch is divided. */
struct moe_scratch {
    uint64_t act, out, counters, counter_bytes, ring, slot_bytes, bytes;
    uint32_t ring_slots;
};

/* Pages fetched ahead of their use when buckets are large: enough for the link to run on while a unit is computed. */
static const uint64_t RING_BYTES = 48ull << 20;

static moe_scratch scratch_of(uint64_t tokens, uint32_t top_k, uint32_t n_experts, const kern_expert_geom *g)
{
    moe_scratch s = {};
    s.out = up256(tokens * top_k * g->d_ff * sizeof(float));
    s.counters = s.out + up256(tokens * top_k * g->d_model * sizeof(float));
    if (tokens <= MM_STREAM_TOKENS) {
        s.bytes = s.counters;
        return s;
    }
    for (int m = 0; m < 3; m++) {
        const uint64_t rows = m < 2 ? g->d_ff : g->d_model,
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

/* The number of experts is not known here: no more than pairs can be touched, and no model has more than MAX_EXPERTS. */
uint64_t cuda_moe_scratch_bytes(kern_dev *, uint32_t max_tokens, uint32_t top_k, const kern_expert_geom *g)
{
    return scratch_of(max_tokens, top_k, MAX_EXPERTS, g).bytes;
}

kern_status cuda_moe(kern_dev *kd, const kern_moe_args *a)
{
    cuda_dev *d = cuda_of(kd);
    const kern_expert_geom *g = &a->geom;
    if (!shape_ok(g->fmt, g->d_model, g->row_bytes[0]) || !shape_ok(g->fmt, g->d_ff, g->row_bytes[2]))
        return cuda_unsupported(d, "experts: dimensions must be multiples of 4 (Q8_0: 32)");
    if (g->page_rows[0] != g->page_rows[1] || g->row_bytes[0] != g->row_bytes[1] || !g->page_rows[0] ||
        !g->page_rows[2])
        return cuda_unsupported(d, "experts: gate and up must be cut into pages alike");
    if (!a->n_tokens)
        return KERN_OK;
    if (a->n_experts > MAX_EXPERTS)
        return cuda_unsupported(d, "experts: more than 1024 in a layer");
    const moe_scratch s = scratch_of(a->n_tokens, a->top_k, MAX_EXPERTS, g);
    unsigned char *scratch = static_cast<unsigned char *>(a->scratch);
    float *act = reinterpret_cast<float *>(scratch), *out = reinterpret_cast<float *>(scratch + s.out);
    mm_params p = {};
    p.ring_addr = (uint64_t)(uintptr_t)(scratch + s.ring);
    p.slot_bytes = s.slot_bytes;
    p.ring_slots = s.ring_slots;
    if (s.counter_bytes) {
        cudaError_t e = cudaMemsetAsync(scratch + s.counters, 0, s.counter_bytes, d->stream);
        if (e != cudaSuccess)
            return cuda_fail(d, e, "experts");
    }
    p.fmt = g->fmt;
    p.page_addr = a->page_addr;
    p.fill_addr = a->fill_addr;
    p.expert_start = a->expert_start;
    p.pairs = a->pairs;
    p.arena_begin = a->arena_begin;
    p.arena_end = a->arena_end;
    p.pages = g->pages;
    p.n_experts = a->n_experts;
    p.top_k = a->top_k;
    p.n_tokens = a->n_tokens;

    uint32_t *counters = reinterpret_cast<uint32_t *>(scratch + s.counters);
    p.mode = MM_GATE_UP;
    p.ready = counters;
    p.x = a->x;
    p.y = act;
    p.row_bytes = g->row_bytes[0];
    p.cols = g->d_model;
    p.rows = g->d_ff;
    p.x_stride = g->d_model;
    p.y_stride = g->d_ff;
    p.first_page0 = g->first_page[0];
    p.first_page1 = g->first_page[1];
    p.page_rows = g->page_rows[0];
    p.unit_pages = (g->d_ff + g->page_rows[0] - 1) / g->page_rows[0];
    if (p.unit_pages > 4095)
        return cuda_unsupported(d, "experts: more than 4095 pages in a matrix");
    p.done = p.ready + 2 * a->n_experts * p.unit_pages;
    kern_status st = launch(d, p);
    if (st)
        return st;

    p.mode = MM_DOWN;
    p.ready = p.done + a->n_experts * p.unit_pages;
    p.x = act;
    p.y = out;
    p.row_bytes = g->row_bytes[2];
    p.cols = g->d_ff;
    p.rows = g->d_model;
    p.x_stride = g->d_ff;
    p.y_stride = g->d_model;
    p.first_page0 = p.first_page1 = g->first_page[2];
    p.page_rows = g->page_rows[2];
    p.unit_pages = (g->d_model + g->page_rows[2] - 1) / g->page_rows[2];
    if (p.unit_pages > 4095)
        return cuda_unsupported(d, "experts: more than 4095 pages in a matrix");
    p.done = p.ready + a->n_experts * p.unit_pages;
    st = launch(d, p);
    if (st)
        return st;

    combine_kernel<<<dim3((g->d_model + 511) / 512, a->n_tokens), 128, 0, d->stream>>>(out, a->weights, a->y,
                                                                                       g->d_model, a->top_k, a->n_live);
    return cuda_launched(d, "sum over experts");
}
