/* cuda_priv.h - what the files of the CUDA backend share: the device struct, launch checks, and the entry points of each file.
 * Host side only; device helpers are in frag.cuh. */
#ifndef KERNELS_CUDA_PRIV_H
#define KERNELS_CUDA_PRIV_H

#include <cuda_runtime.h>
#include <pthread.h>

#include "kernels/kernels.h"

struct host_range; /* one registered chunk of host memory, dev.cu */

#define CUDA_FEW_ROWS      32
#define CUDA_ROUTE_LOGITS  1024
#define CUDA_DELTA_TICKETS 16384 /* of each token's key heads: 1024 tokens of 16 */

/* Shared memory that a block may have on the smallest of the supported chips (8.6, 8.9, 12.0). */
#define CUDA_LEAST_SMEM (99 * 1024)

/* What blocks of one launch leave for each other. Tickets count those that are done, and are zero between launches. */
struct cuda_small {
    uint64_t logits[CUDA_ROUTE_LOGITS]; /* each with the number of its launch, the last of which is n_routes */
    uint32_t n_routes;
    uint32_t ticket, row_tickets[CUDA_FEW_ROWS], result_ticket, n_done;
    float best[CUDA_FEW_ROWS * 32];
    uint32_t id[CUDA_FEW_ROWS * 32];
    unsigned long long probe_ns[2]; /* of the global timer: the first block began, the last one ended */
    uint32_t delta_tickets[CUDA_DELTA_TICKETS];
};

/* What a recording's last kernel brings to the host. */
#define CUDA_MAX_RESULTS 8
struct cuda_results {
    uint64_t *last; /* mark that waits for the end, or NULL */
    const uint64_t *marks;
    uint64_t *marks_host;
    uint32_t n_marks, n;
    struct {
        uint32_t *to;
        const uint32_t *from;
        uint32_t words;
    } copy[CUDA_MAX_RESULTS];
    uint32_t *ticket, *n_done; /* device memory: blocks that are done, zero between launches; replays so far */
    uint32_t *done;            /* host memory: the same, written when all the rest is there */
};

struct cuda_dev {
    kern_dev base;
    int gpu;
    int n_sm;
    int smem_max;              /* dynamic shared memory a block may ask for */
    bool no_tile, no_attn_mma; /* rows switched off by kern_options.disable */
    bool has_bulk;             /* compute capability 9.0 and code made for it: bulk copies */
    bool wgmma;                /* many tokens are multiplied by tile_wgmma.cuh */
    bool overlap;              /* kernels may begin before the one ahead of them has ended: overlap.cuh */
    cudaStream_t stream;       /* every operation */
    cudaStream_t copy;         /* background copies, low priority */
    cudaStream_t side;         /* KV blocks on their way from host memory, beside `stream` */
    cudaEvent_t stage_free[2]; /* a staging area has been read for the last time */
    cudaEvent_t stage_done[2]; /* it has been filled */
    cudaStream_t ahead;        /* the reader of a recorded step: ahead.cu */
    cudaEvent_t ahead_begun, ahead_done;
    bool reads_ahead;    /* the recording has a reader */
    int held_sms;        /* by it, from the operations that are being recorded */
    uint64_t *marks;     /* pinned, [KERN_MARKS] nanoseconds of the global timer */
    uint64_t *marks_dev; /* the same as kernels see it */
    uint64_t *marks_gpu; /* where a recording's kernels note times; its last one copies them to `marks` */
    uint64_t *mark;      /* to be noted by the next kernel, or NULL */
    uint32_t n_recorded_marks;
    bool recording;
    cuda_results results;        /* of this recording */
    uint32_t n_replays;          /* started; *results.done counts those that are done */
    uint32_t *done;              /* pinned */
    bool joined;                 /* the next kernel waits for another stream too: it must not begin early */
    struct cuda_small *small;    /* device memory */
    uint32_t *counters;          /* of warp.cuh: zero between launches */
    float *sink;                 /* where the probe stores what it must not drop */
    pthread_mutex_t ranges_lock; /* held for a walk, never over a call of CUDA */
    struct host_range *ranges;   /* under ranges_lock: any thread may copy while another registers */
    cudaDeviceProp prop;
    char err[256];
};

/* Multiprocessors that the next operation finds. */
static inline int cuda_sms(const cuda_dev *d)
{
    return d->n_sm - d->held_sms;
}

static inline cuda_dev *cuda_of(kern_dev *d)
{
    return reinterpret_cast<cuda_dev *>(d);
}

/* Notes what failed; KERN_NOMEM where memory ran out. Clears the sticky error so that unrelated calls do not report it. */
kern_status cuda_fail(cuda_dev *d, cudaError_t e, const char *what);
kern_status cuda_unsupported(cuda_dev *d, const char *what);

/* A mark costs nothing where the kernel that comes next notes it as it begins: it takes it from here before it is started. NULL: no
 * mark waits. Where none takes it, cuda_start() launches a kernel for it. */
static inline uint64_t *cuda_take_mark(cuda_dev *d)
{
    uint64_t *m = d->mark;
    d->mark = nullptr;
    return m;
}
void cuda_flush_mark(cuda_dev *d);

/* Starts a kernel of an operation. It must call overlap_begin(). */
template <typename... P, typename... A>
static inline cudaError_t cuda_start(cuda_dev *d, void (*kernel)(P...), dim3 grid, dim3 block, size_t smem, A... args)
{
    cuda_flush_mark(d);
    cudaLaunchAttribute overlap = {};
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t c = {};
    c.gridDim = grid;
    c.blockDim = block;
    c.dynamicSmemBytes = smem;
    c.stream = d->stream;
    c.attrs = &overlap;
    c.numAttrs = d->overlap && !d->joined ? 1 : 0;
    d->joined = false;
    return cudaLaunchKernelEx(&c, kernel, static_cast<P>(args)...);
}

/* To be called after the launches of an operation. */
static inline kern_status cuda_launched(cuda_dev *d, const char *what)
{
    cudaError_t e = cudaGetLastError();
    return e == cudaSuccess ? KERN_OK : cuda_fail(d, e, what);
}

/* small.cu */
kern_status cuda_embed(kern_dev *d, const kern_embed_args *a);
kern_status cuda_rmsnorm(kern_dev *d, const kern_rmsnorm_args *a);
kern_status cuda_layernorm(kern_dev *d, const kern_layernorm_args *a);
/* The same for rows of x that row_idx names (NULL: all), x_stride floats apart. */
kern_status cuda_rmsnorm_rows(cuda_dev *d, const kern_rmsnorm_args *a, const uint32_t *row_idx, uint32_t x_stride);
kern_status cuda_qkv_norm(kern_dev *d, const kern_qkv_norm_args *a);
kern_status cuda_swiglu(kern_dev *d, const kern_swiglu_args *a);
kern_status cuda_rope_kv(kern_dev *d, const kern_rope_kv_args *a);
kern_status cuda_add(kern_dev *d, const kern_add_args *a);
kern_status cuda_gate(kern_dev *d, const kern_gate_args *a);
kern_status cuda_softcap(kern_dev *d, const kern_softcap_args *a);

/* choose.cu */
kern_status cuda_router(kern_dev *d, const kern_router_args *a);
kern_status cuda_plan(kern_dev *d, const kern_plan_args *a);
kern_status cuda_argmax(kern_dev *d, const kern_argmax_args *a);
kern_status cuda_top_logits(kern_dev *d, const kern_top_logits_args *a);

/* attention.cu */
kern_status cuda_attention(kern_dev *d, const kern_attn_args *a);
uint64_t cuda_attn_scratch_bytes(kern_dev *d, uint32_t max_tokens, uint32_t n_heads, uint32_t head_dim,
                                 uint32_t max_context);

/* index.cu */
kern_status cuda_index_rope(kern_dev *d, const kern_index_rope_args *a);
kern_status cuda_index(kern_dev *d, const kern_index_args *a);
uint64_t cuda_index_scratch_bytes(kern_dev *d, uint32_t max_tokens, uint32_t n_heads, uint32_t max_context);
const char *cuda_index_refuses(uint32_t n_heads, uint32_t dim); /* what it does not take, in words, or NULL */

/* delta.cu */
kern_status cuda_delta(kern_dev *d, const kern_delta_args *a);
uint64_t cuda_delta_scratch_bytes(kern_dev *d, uint32_t max_tokens, const kern_delta_geom *geom);
const char *cuda_delta_refuses(const kern_delta_geom *geom); /* what it does not take, in words, or NULL */

/* shortconv.cu */
kern_status cuda_shortconv(kern_dev *d, const kern_shortconv_args *a);
const char *cuda_shortconv_refuses(const kern_shortconv_geom *geom);

/* ssm.cu */
kern_status cuda_ssm(kern_dev *d, const kern_ssm_args *a);
uint64_t cuda_ssm_scratch_bytes(kern_dev *d, uint32_t max_tokens, const kern_ssm_geom *geom);
const char *cuda_ssm_refuses(const kern_ssm_geom *geom);

/* kv_stage.cu */
kern_status cuda_kv_stage(kern_dev *d, const kern_kv_stage_args *a);
kern_status cuda_kv_stage_wait(kern_dev *d, uint32_t slot);

/* ahead.cu */
struct ahead_mem;
uint64_t cuda_ahead_bytes(kern_dev *d, uint32_t n_layers, const kern_expert_geom *geom);
kern_status cuda_ahead_begin(kern_dev *d, const kern_ahead *a);
void cuda_ahead_end(kern_dev *d);
bool cuda_ahead_mem(const cuda_dev *d, const kern_ahead *a, ahead_mem *ret);

/* matmul.cu */
kern_status cuda_linear(kern_dev *d, const kern_linear_args *a);
uint64_t cuda_linear_scratch_bytes(kern_dev *d, uint32_t max_tokens, uint32_t cols);
kern_status cuda_route(kern_dev *d, const kern_linear_args *logits, const kern_router_args *pick,
                       const kern_plan_args *plan, const kern_route_ahead *ahead);
bool cuda_ahead_fits(kern_dev *d, const kern_linear_args *logits, const kern_router_args *pick);

/* heads.cu */
kern_status cuda_linear_heads(kern_dev *d, const kern_linear_heads_args *a);

/* moe.cu */
kern_status cuda_moe(kern_dev *d, const kern_moe_args *a);
uint64_t cuda_moe_scratch_bytes(kern_dev *d, uint32_t max_tokens, uint32_t top_k, uint32_t n_experts,
                                const kern_expert_geom *geom);

#endif
