/* experts.h - what the host side tells warp.cuh and team.cuh: how rows are cut into chunks, the shared memory, and the counters. */
#ifndef KERNELS_CUDA_EXPERTS_H
#define KERNELS_CUDA_EXPERTS_H

#include "kernels/cuda/ahead.cuh"
#include "kernels/cuda/mm.cuh"

#define WARP_COUNT     8 /* in a block */
#define WARP_MAX_SLOTS 4 /* stages of one warp */
#define WARP_AT_ONCE \
    4 /* blocks of 32 along K whose products a warp makes side by side, where there are registers for it */

enum warp_tier { WARP_VRAM, WARP_HOST };

/* Words of device memory that are zero between launches: the next item over the link (in a layer that lies in VRAM: items of gate and
 * up that are done), blocks that have left, items over the link that have been asked for, items of gate and up that are done of each expert,
 * experts that are done of each 16 rows of the result. */
#define WARP_QUEUE      0
#define WARP_EXIT       1
#define WARP_ASKED      2
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

/* What team.cuh makes of a matrix: units of blocks of 32 along K, and how many of them a stage holds. */
#define TEAM_BLOCKS     8 /* of a unit */
#define TEAM_UNITS      8 /* of a stage, at most */
#define TEAM_MAX_STAGES 8
#ifndef TEAM_WORKERS
#define TEAM_WORKERS 10 /* warps that multiply; two more serve them */
#endif
#define TEAM_THREADS ((TEAM_WORKERS + 2) * 32)
#define TEAM_SUMS    16 /* stages whose sums are kept */

struct team_cut {
    uint32_t units, stage_units, n_chunks;
    uint32_t step_stages, step_units; /* from a warp's unit to its next */
    uint32_t pitch;                   /* between rows; row_bytes: they are one run of memory */
};

struct team_shape {
    team_cut cut[2];
    uint32_t stages, slot_bytes; /* stages 0: not to be used */
    uint32_t groups;             /* of 8 tokens, at most */
};

struct warp_params {
    mm_params p[2];                             /* gate and up, down */
    warp_cut cut[2][2];                         /* [gate and up, down][tier] */
    uint32_t slot_bytes[2], slots[2], warps[2]; /* of each tier: a stage, stages a warp, warps at work */
    uint32_t x_pitch, x_bytes, ring_bytes;      /* shared memory: rows of split x (0: in device memory), the stages */
    uint32_t host_blocks;                       /* that read over the link where there are others */
    uint32_t host_in_flight;                    /* bytes that each of them asks for at a time, at most */
    team_shape team;                            /* where the layer lies in VRAM */
    float *y;                                   /* gets the sum over picks; NULL: left to a later launch */
    const float *weights;
    const uint32_t *n_live;
    uint32_t *counters; /* [WARP_N_COUNTERS] */
    ahead_mem ahead;    /* lists NULL: off */
    uint32_t layer;     /* with ahead */
    bool ahead_own;     /* the layer has a list */
    /* Of a split kernel: bit 0 gate and up, bit 1 down. Where their formats differ each has a launch. */
    uint32_t phases;
};

#endif
