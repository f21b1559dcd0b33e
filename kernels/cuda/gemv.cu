/* gemv.cu - linear layers of up to 8 tokens: choice between gemv_one.cuh and gemv.cuh, launches. Of the formats whose blocks' products are
 * finished the kernels are compiled in gemv_small.cu; they are not made with a router behind them: no file has routers in these. */
#include "kernels/cuda/gemv_launch.cuh"

static_assert(MM_MAX_EXPERTS == CUDA_ROUTE_LOGITS, "a logit of each expert of a layer");

bool gemv_takes(const cuda_dev *d, const mm_params &p, const gemv_route *route)
{
    one_shape one;
    gemv_shape few;
    if (route && (p.fmt > FMT_Q8_0 || route->pick.n_tokens > GEMV_TOKENS ||
                  route->pick.n_tokens * route->pick.top_k > PLAN_FEW || route->pick.n_experts > MM_MAX_EXPERTS ||
                  route->pick.top_k > route->pick.n_experts || !kern_router_is_known(&route->pick) ||
                  route->pick.scoring == KERN_SPARSEMIXER))
        return false;
    /* Of scores there are kernels for one token, of the formats in which models have such routers. */
    if (route && !kern_router_is_plain(&route->pick))
        return (p.fmt == FMT_F32 || p.fmt == FMT_BF16) && gemv_is_one(d, p, route);
    return one_fits(p, gemv_tail_bytes(route), d->smem_max, cuda_sms(d), &one) ||
           gemv_fits(p, gemv_tail_bytes(route), d->smem_max, cuda_sms(d), &few);
}

bool gemv_is_one(const cuda_dev *d, const mm_params &p, const gemv_route *route)
{
    one_shape one;
    return one_fits(p, gemv_tail_bytes(route), d->smem_max, cuda_sms(d), &one);
}

cudaError_t gemv_launch(cuda_dev *d, const mm_params &p, const gemv_route *route)
{
    switch (p.fmt) {
    case FMT_F32: return gemv_launch_format<FMT_F32>(d, p, route);
    case FMT_F16: return gemv_launch_format<FMT_F16>(d, p, route);
    case FMT_BF16: return gemv_launch_format<FMT_BF16>(d, p, route);
    case FMT_Q8_0: return gemv_launch_format<FMT_Q8_0>(d, p, route);
    default: return gemv_launch_small(d, p);
    }
}
