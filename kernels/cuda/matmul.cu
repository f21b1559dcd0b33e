/* matmul.cu - linear layers: checks, choice of format, launches. The experts of a MoE layer are in moe.cu.
 *
 * Each format's kernels are compiled in a file of their own (mm_*.cu), those for few tokens in gemv.cu, so that a build can use both
 * cores. */
#include "kernels/cuda/cuda_priv.h"
#include "kernels/cuda/gemv.cuh"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/mm.cuh"
#include "kernels/cuda/panels.cuh"

kern_status mm_launch(cuda_dev *d, const mm_params &p)
{
    if (gemv_takes(d, p, nullptr)) {
        const cudaError_t few = gemv_launch(d, p, nullptr);
        return few == cudaSuccess ? KERN_OK : cuda_fail(d, few, "matrix product");
    }
    cudaError_t e;
    switch (p.fmt) {
#define MM_LAUNCH(id, name, ...) \
    case id: e = mm_launch_##name(d, p); break;
        KERN_FORMATS(MM_LAUNCH)
    default: return cuda_unsupported(d, "weight format");
    }
    if (e == cudaErrorInvalidValue)
        return cuda_unsupported(d, "shape of a matrix product: its rows do not fit in shared memory");
    return e == cudaSuccess ? KERN_OK : cuda_fail(d, e, "matrix product");
}

bool mm_shape_ok(kern_fmt fmt, uint32_t cols, uint64_t row_bytes)
{
    const uint32_t block = kern_fmt_get(fmt).block_len;
    const bool fours = block == 1 || kern_cuts_blocks(fmt);
    return cols % (fmt == FMT_MXFP4 ? 64
                   : fours          ? 4
                                    : block) ==
               0 &&
           row_bytes % (fmt == FMT_F32 || kern_cuts_blocks(fmt) ? 4 : 2) == 0 &&
           (block < 256 || row_bytes == kern_row_bytes(fmt, cols));
}

static bool linear_ok(const kern_linear_args *a)
{
    return mm_shape_ok(a->w.fmt, a->w.cols, a->w.row_bytes) && a->x_stride % 4 == 0 && (uintptr_t)a->x % 16 == 0;
}

static mm_params params_of(const kern_linear_args *a)
{
    mm_params p = {};
    p.mode = MM_LINEAR;
    p.plain = 1;
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
    p.norm = a->norm;
    p.normed = a->normed;
    p.eps = a->norm_eps;
    p.row_idx = a->row_idx;
    p.n_tokens = a->n_tokens;
    p.accumulate = a->accumulate;
    return p;
}

kern_status cuda_linear(kern_dev *kd, const kern_linear_args *a)
{
    cuda_dev *d = cuda_of(kd);
    if (!linear_ok(a))
        return cuda_unsupported(
            d,
            "linear: columns must be a multiple of 4 (of a format's block; MXFP4: 64) and activations aligned to 16 bytes");
    if (!a->n_tokens || !a->w.rows)
        return KERN_OK;
    mm_params p = params_of(a);
    if (p.norm && !gemv_takes(d, p, nullptr)) {
        const kern_rmsnorm_args norm = {a->normed, a->x, a->norm, a->n_tokens, a->w.cols, a->norm_eps, nullptr, 1.0f};
        kern_status st = cuda_rmsnorm_rows(d, &norm, a->row_idx, a->x_stride);
        if (st)
            return st;
        p.x = a->normed;
        p.x_stride = a->w.cols;
        p.norm = nullptr;
        p.row_idx = nullptr;
    }
    if (a->scratch && !d->no_tile && p.n_tokens > MM_STREAM_TOKENS) {
        const uint32_t n_panels = (uint32_t)panels_for(p.n_tokens, 1);
        p.panels = static_cast<unsigned char *>(a->scratch);
        p.panel_step = (uint64_t)n_panels * PANEL_BYTES;
        const cudaError_t e = panels_make(d, p, n_panels);
        if (e != cudaSuccess)
            return cuda_fail(d, e, "matrix product");
    }
    return mm_launch(d, p);
}

uint64_t cuda_linear_scratch_bytes(kern_dev *kd, uint32_t max_tokens, uint32_t cols)
{
    const cuda_dev *d = cuda_of(kd);
    return d->no_tile || max_tokens <= MM_STREAM_TOKENS ? 0 : panels_bytes(panels_for(max_tokens, 1), cols);
}

static gemv_route route_of(cuda_dev *d, const kern_router_args *pick, const kern_plan_args *plan)
{
    gemv_route r = {*pick, {}, &d->small->ticket, d->small->logits, &d->small->n_routes, plan != nullptr, {}, {}};
    if (plan)
        r.plan = *plan;
    return r;
}

static bool route_fits(const cuda_dev *d, const kern_linear_args *logits, const gemv_route *r)
{
    return logits->n_tokens && logits->w.rows && linear_ok(logits) && gemv_takes(d, params_of(logits), r);
}

bool cuda_ahead_fits(kern_dev *kd, const kern_linear_args *logits, const kern_router_args *pick)
{
    cuda_dev *d = cuda_of(kd);
    const gemv_route r = route_of(d, pick, nullptr);
    return pick->n_experts <= MM_MAX_EXPERTS && route_fits(d, logits, &r) && gemv_is_one(d, params_of(logits), &r);
}

static bool ahead_of(cuda_dev *d, const kern_route_ahead *a, const kern_plan_args *plan, ahead_route *ret)
{
    ahead_route r = {};
    if (!plan || !cuda_ahead_mem(d, a->ahead, &r.m))
        return false;
    const kern_expert_geom *g = &a->ahead->geom;
    r.layer = a->layer;
    r.own = a->layer >= a->ahead->first;
    for (; r.n_next < AHEAD_LAYERS && a->next[r.n_next].w.data; r.n_next++)
        r.next[r.n_next] = {static_cast<const unsigned char *>(a->next[r.n_next].w.data), a->next[r.n_next].norm,
                            a->next[r.n_next].bias, a->next[r.n_next].page_addr, a->next[r.n_next].top_k};
    if (r.n_next) {
        r.arena_begin = plan->arena_begin;
        r.arena_end = plan->arena_end;
        r.n_experts = a->next[0].w.rows;
        r.pages = g->pages;
        r.first_page0 = g->first_page[0];
        r.first_page1 = g->first_page[1];
        r.page_rows = g->page_rows[0];
        r.rows = kern_expert_rows(g, 0);
        r.unit_pages = (r.rows + g->page_rows[0] - 1) / g->page_rows[0];
        r.grid = (r.n_experts + 7) / 8; /* a block an item: there is room for no second one */
    }
    *ret = r;
    return true;
}

/* Few tokens: one launch, whose last block chooses and plans. */
kern_status cuda_route(kern_dev *kd, const kern_linear_args *logits, const kern_router_args *pick,
                       const kern_plan_args *plan, const kern_route_ahead *ahead)
{
    cuda_dev *d = cuda_of(kd);
    gemv_route r = route_of(d, pick, plan);
    const mm_params p = params_of(logits);
    if (ahead && (!cuda_ahead_fits(kd, logits, pick) || !ahead_of(d, ahead, plan, &r.ahead)))
        return cuda_unsupported(d, "reading ahead with such a router");
    for (uint32_t i = 0; i < r.ahead.n_next; i++)
        r.next_bias[i] = ahead->next[i].choice_bias;
    if (route_fits(d, logits, &r)) {
        const cudaError_t e = gemv_launch(d, p, &r);
        return e == cudaSuccess ? KERN_OK : cuda_fail(d, e, "router");
    }
    kern_status st = cuda_linear(kd, logits);
    if (!st)
        st = cuda_router(kd, pick);
    return st || !plan ? st : cuda_plan(kd, plan);
}
