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
#define MM_FORMATS(X)     \
    X(FMT_F32, f32)       \
    X(FMT_F16, f16)       \
    X(FMT_BF16, bf16)     \
    X(FMT_Q8_0, q8_0)     \
    X(FMT_MXFP4, mxfp4)   \
    X(FMT_Q4_0, q4_0)     \
    X(FMT_Q4_1, q4_1)     \
    X(FMT_Q5_0, q5_0)     \
    X(FMT_Q5_1, q5_1)     \
    X(FMT_IQ4_NL, iq4_nl) \
    X(FMT_Q4_K, q4_k)     \
    X(FMT_Q5_K, q5_k)     \
    X(FMT_Q6_K, q6_k)

#define MM_DECLARE(id, name)                                       \
    cudaError_t mm_launch_##name(cuda_dev *d, const mm_params &p); \
    cudaError_t warp_launch_##name(cuda_dev *d, const warp_params &p, uint32_t smem);
MM_FORMATS(MM_DECLARE)

#endif
