/* matmul.h - the launchers of each weight format. cudaErrorInvalidValue: the shape does not fit. */
#ifndef KERNELS_CUDA_MATMUL_H
#define KERNELS_CUDA_MATMUL_H

#include "kernels/cuda/cuda_priv.h"

struct mm_params;

cudaError_t mm_launch_f32(cuda_dev *d, const mm_params &p);
cudaError_t mm_launch_f16(cuda_dev *d, const mm_params &p);
cudaError_t mm_launch_bf16(cuda_dev *d, const mm_params &p);
cudaError_t mm_launch_q8_0(cuda_dev *d, const mm_params &p);

#endif
