/* experts.h - what the host side tells warp.cuh: how rows are cut into chunks, the shared memory, and the counters. */
#ifndef KERNELS_CUDA_EXPERTS_H
#define KERNELS_CUDA_EXPERTS_H

#include "kernels/cuda/ahead.cuh"
#include "kernels/cuda/mm.cuh"

#define WARP_COUNT     8 /* in a block */
#define WARP_MAX_SLOTS 4 /* stages of one warp */

enum warp_tier { WARP_VRAM, WARP_HOST };

/* Words of device memory that are zero between launches: the next item over the link, blocks that have left, warps that read the host and
 * have left, items of gate and up that are done of each expert, experts that are done of each 16 rows of the result. */
#define WARP_QUEUE      0
#define WARP_EXIT       1
#define WARP_LEFT       2
#define WARP_READY      3
#define WARP_SUMS       (WARP_READY + MM_MAX_EXPERTS)
#define WARP_MAX_SUMS   4096
#define WARP_N_COUNTERS (WARP_SUMS + WARP_MAX_SUMS)

/* How rows of one matrix are brought into a stage. */
struct warp_cut {
    uint32_t chunk_blocks, n_chunks; /* blocks of 32 a chunk of K */
    uint32_t pitch;                  /* between rows; 0: rows are one run of memory */
    uint32_t half_bytes;             /* of 8 rows */
    uint32_t mask;                   /* bits of its address that a row keeps */
};

struct warp_params {
    mm_params p[2];                             /* gate and up, down */
    warp_cut cut[2][2];                         /* [gate and up, down][tier] */
    uint32_t slot_bytes[2], slots[2], warps[2]; /* of each tier: a stage, stages a warp, warps at work */
    uint32_t x_pitch, x_bytes, ring_bytes;      /* shared memory: rows of split x (0: in device memory), the stages */
    uint32_t host_blocks;                       /* that read over the link where there are others */
    float *y;                                   /* gets the sum over picks; NULL: left to a later launch */
    const float *weights;
    const uint32_t *n_live;
    uint32_t *counters; /* [WARP_N_COUNTERS] */
    ahead_mem ahead;    /* lists NULL: off */
    uint32_t layer;     /* with ahead */
    bool ahead_own;     /* the layer has a list */
};

#endif
