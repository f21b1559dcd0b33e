/* gemv_launch.cuh - shapes and starts the kernels of gemv_one.cuh and gemv.cuh of one format. */
#ifndef KERNELS_CUDA_GEMV_LAUNCH_CUH
#define KERNELS_CUDA_GEMV_LAUNCH_CUH

#include "kernels/cuda/gemv_one.cuh"
#include "kernels/cuda/matmul.h"

static inline uint32_t gemv_tail_bytes(const gemv_route *route)
{
    return route ? gemv_choose_bytes(route->pick) : 0;
}

/* The next routers' products go to blocks behind those of the own one. */
static inline uint32_t gemv_next_blocks(const gemv_route *route)
{
    return route ? route->ahead.n_next * route->ahead.grid : 0;
}

template <typename S>
static cudaError_t gemv_start(cuda_dev *d, void (*kernel)(mm_params, S, gemv_route), mm_params p, const S &s,
                              uint32_t threads, const gemv_route *route)
{
    cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)s.smem);
    if (e != cudaSuccess)
        return e;
    p.mark = cuda_take_mark(d);
    return cuda_start(d, kernel, s.grid + gemv_next_blocks(route), threads, s.smem, p, s,
                      route ? *route : gemv_route());
}

template <int FMT> static cudaError_t gemv_launch_format(cuda_dev *d, const mm_params &p, const gemv_route *route)
{
    one_shape one;
    gemv_shape few;
    if (one_fits(p, gemv_tail_bytes(route), d->smem_max, cuda_sms(d), &one)) {
#ifndef XD_RACECHECK /* the pass on nothing reads stages that are being filled; nothing comes of what it finds */
        /* What follows the experts, which fill every multiprocessor, comes to life late: QKV and the head. */
        one.warm = d->overlap && (route || !p.norm);
#endif
        auto kernel = one_kernel<FMT, false>;
        if constexpr (!fmt_block<FMT>::FINISHED)
            kernel = route ? one_kernel<FMT, true> : kernel;
        if constexpr (FMT == FMT_F32 || FMT == FMT_BF16) /* as gemv_takes() */
            kernel = route && !kern_router_is_plain(&route->pick) ? one_kernel<FMT, true, true> : kernel;
        return gemv_start(d, kernel, p, one, ONE_THREADS, route);
    }
    if (!gemv_fits(p, gemv_tail_bytes(route), d->smem_max, cuda_sms(d), &few))
        return cudaErrorInvalidValue;
    auto kernel = gemv_kernel<FMT, false>;
    if constexpr (!fmt_block<FMT>::FINISHED)
        kernel = route ? gemv_kernel<FMT, true> : kernel;
    return gemv_start(d, kernel, p, few, few.warps * 32, route);
}

#endif
