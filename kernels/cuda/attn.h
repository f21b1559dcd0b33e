/* attn.h - the kernels that attention.cu chooses from. */
#ifndef KERNELS_CUDA_ATTN_H
#define KERNELS_CUDA_ATTN_H

#include "kernels/cuda/cuda_priv.h"

void attn_simple_launch(cuda_dev *d, const kern_attn_args *a);

/* attn_decode.cu; rope_too: a->rope is done by the same launch, which must be able to. */
bool attn_decode_ropes(const kern_attn_args *a);
cudaError_t attn_decode_launch(cuda_dev *d, const kern_attn_args *a, bool rope_too);

#endif
