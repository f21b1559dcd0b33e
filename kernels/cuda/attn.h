/* attn.h - the kernels that attention.cu chooses from. */
#ifndef KERNELS_CUDA_ATTN_H
#define KERNELS_CUDA_ATTN_H

#include "kernels/cuda/cuda_priv.h"

void attn_simple_launch(cuda_dev *d, const kern_attn_args *a);

#endif
