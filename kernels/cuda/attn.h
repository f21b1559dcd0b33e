/* attn.h - the kernels that attention.cu chooses from. */
#ifndef KERNELS_CUDA_ATTN_H
#define KERNELS_CUDA_ATTN_H

#include "kernels/cuda/cuda_priv.h"

/* Columns of a head; of a head of latent attention. */
#define ATTN_MAX_HEAD   512
#define ATTN_MAX_LATENT 1024

void attn_simple_launch(cuda_dev *d, const kern_attn_args *a);

/* Can K and V be fetched in pieces of 16 bytes? Those of Q8_0 eight rows at a time. */
static inline bool attn_kv_in_pieces(const kern_attn_args *a)
{
    return a->kv.layer_bytes % 16 == 0 &&
           ((a->kv.fmt == FMT_F16 && a->kv.head_dim % 8 == 0) || (a->kv.fmt == FMT_Q8_0 && a->kv.block_size % 8 == 0));
}

/* attn_decode.cu; heads of more than 128 columns need more shared memory than every chip has, and are attn_wide.cu's where
 * there is less. rope_too: a->rope is done by the same launch, which must be able to. */
bool attn_decode_takes(const cuda_dev *d, kern_fmt fmt, uint32_t head_dim);
bool attn_decode_ropes(const kern_attn_args *a);
cudaError_t attn_decode_launch(cuda_dev *d, const kern_attn_args *a, bool rope_too);
/* Merges the parts of n_splits splits, in a->scratch, into o; `dim` columns each. */
void attn_merge_launch(cuda_dev *d, const kern_attn_args *a, uint32_t dim, uint32_t n_splits);
/* Into how many parts of the context the blocks of few tokens are divided; 1: each walks all of it. */
uint32_t attn_decode_splits(const kern_attn_args *a);

/* attn_wgmma.cu: prefill. */
bool attn_wgmma_takes(const cuda_dev *d, const kern_attn_args *a);
cudaError_t attn_wgmma_launch(cuda_dev *d, const kern_attn_args *a);

/* attn_wide.cu. many: several tokens of each sequence, or most. */
bool attn_wide_takes(const cuda_dev *d, const kern_attn_args *a);
cudaError_t attn_wide_launch(cuda_dev *d, const kern_attn_args *a, bool many);

/* attn_latent.cu */
bool attn_latent_takes(const cuda_dev *d, const kern_attn_args *a);
cudaError_t attn_latent_launch(cuda_dev *d, const kern_attn_args *a);

/* The first position that one sees. */
static __device__ __forceinline__ int attn_first(const kern_attn_args &a, uint32_t pos)
{
    const uint32_t sees = a.chunked && a.window ? pos % a.window + 1 : a.window;
    return (int)(sees && pos + 1 > sees ? pos + 1 - sees : 0);
}

#endif
