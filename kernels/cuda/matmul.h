/* matmul.h - the launchers of each weight format. cudaErrorInvalidValue: the shape does not fit.
 * `route` and mm_params.norm may only be set where gemv_fits(). */
#ifndef KERNELS_CUDA_MATMUL_H
#define KERNELS_CUDA_MATMUL_H

#include "kernels/cuda/cuda_priv.h"

struct gemv_route;
struct mm_params;
struct warp_params;

/* matmul.cu */
kern_status mm_launch(cuda_dev *d, const mm_params &p);
/* Lanes read 4 activations at once. */
bool mm_shape_ok(kern_fmt fmt, uint32_t cols, uint64_t row_bytes);

/* gemv.cu: is it a product of few tokens, which may have a norm before it and, unless `route` is NULL, the choice of experts behind it? */
bool gemv_takes(const cuda_dev *d, const mm_params &p, const gemv_route *route);
bool gemv_is_one(const cuda_dev *d, const mm_params &p, const gemv_route *route); /* by gemv_one.cuh */
cudaError_t gemv_launch(cuda_dev *d, const mm_params &p, const gemv_route *route);
cudaError_t gemv_launch_small(cuda_dev *d, const mm_params &p); /* gemv_small.cu */

/* mm_*.cu */
#define MM_DECLARE(id, name, ...)                                  \
    cudaError_t mm_launch_##name(cuda_dev *d, const mm_params &p); \
    cudaError_t warp_launch_##name(cuda_dev *d, const warp_params &p, uint32_t smem);
KERN_FORMATS(MM_DECLARE)

#endif
