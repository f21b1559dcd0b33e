/* gemv.cu - linear layers of up to 8 tokens: choice between gemv_one.cuh and gemv.cuh, launches. */
#include "kernels/cuda/gemv_one.cuh"
#include "kernels/cuda/matmul.h"

static_assert(MM_MAX_EXPERTS == CUDA_ROUTE_LOGITS, "a logit of each expert of a layer");

static uint32_t tail_bytes(const gemv_route *route)
{
    return route ? gemv_choose_bytes(route->pick) : 0;
}

bool gemv_takes(const cuda_dev *d, const mm_params &p, const gemv_route *route)
{
    one_shape one;
    gemv_shape few;
    if (p.fmt != FMT_F32 && p.fmt != FMT_F16 && p.fmt != FMT_BF16 && p.fmt != FMT_Q8_0)
        return false;
    if (route && (route->pick.n_tokens > GEMV_TOKENS || route->pick.n_tokens * route->pick.top_k > PLAN_FEW ||
                  route->pick.n_experts > MM_MAX_EXPERTS || route->pick.top_k > route->pick.n_experts ||
                  !kern_router_is_plain(&route->pick)))
        return false;
    return one_fits(p, tail_bytes(route), d->smem_max, cuda_sms(d), &one) ||
           gemv_fits(p, tail_bytes(route), d->smem_max, cuda_sms(d), &few);
}

bool gemv_is_one(const cuda_dev *d, const mm_params &p, const gemv_route *route)
{
    one_shape one;
    return one_fits(p, tail_bytes(route), d->smem_max, cuda_sms(d), &one);
}

/* The next routers' products go to blocks behind those of the own one. */
static uint32_t next_blocks(const gemv_route *route)
{
    return route ? route->ahead.n_next * route->ahead.grid : 0;
}

template <typename S>
static cudaError_t launch(cuda_dev *d, void (*kernel)(mm_params, S, gemv_route), mm_params p, const S &s,
                          uint32_t threads, const gemv_route *route)
{
    cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)s.smem);
    if (e != cudaSuccess)
        return e;
    p.mark = cuda_take_mark(d);
    return cuda_start(d, kernel, s.grid + next_blocks(route), threads, s.smem, p, s, route ? *route : gemv_route());
}

template <int FMT> static cudaError_t launch_format(cuda_dev *d, const mm_params &p, const gemv_route *route)
{
    one_shape one;
    gemv_shape few;
    if (one_fits(p, tail_bytes(route), d->smem_max, cuda_sms(d), &one)) {
#ifndef XD_RACECHECK /* the pass on nothing reads stages that are being filled; nothing comes of what it finds */
        /* What follows the experts, which fill every multiprocessor, comes to life late: QKV and the head. */
        one.warm = d->overlap && (route || !p.norm);
#endif
        return launch(d, route ? one_kernel<FMT, true> : one_kernel<FMT, false>, p, one, ONE_THREADS, route);
    }
    if (!gemv_fits(p, tail_bytes(route), d->smem_max, cuda_sms(d), &few))
        return cudaErrorInvalidValue;
    return launch(d, route ? gemv_kernel<FMT, true> : gemv_kernel<FMT, false>, p, few, few.warps * 32, route);
}

cudaError_t gemv_launch(cuda_dev *d, const mm_params &p, const gemv_route *route)
{
    switch (p.fmt) {
    case FMT_F32: return launch_format<FMT_F32>(d, p, route);
    case FMT_F16: return launch_format<FMT_F16>(d, p, route);
    case FMT_BF16: return launch_format<FMT_BF16>(d, p, route);
    default: return launch_format<FMT_Q8_0>(d, p, route);
    }
}
