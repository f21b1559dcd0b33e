/* kv_stage.cu - brings KV blocks that lie in host memory to VRAM, a layer at a time, beside the work of the layers before.
 *
 * Attention could read them where they lie, and does so for the last block of a sequence. But it reads a block again for every few
 * queries of a prompt, and it leaves the link idle while anything else runs. Here each block crosses the link once a layer and step, and
 * the next layer's blocks cross while this one computes.
 * The blocks are scattered pieces of some 32 KiB, for which the copy engine is slow (17 GB/s at 64 KiB): a kernel reads them at the
 * link's rate. It takes few registers, and neither shared memory nor barriers, so that it fits on the multiprocessors beside any other
 * kernel. */
#include "kernels/cuda/cuda_priv.h"

#define STAGE_BLOCKS  32
#define STAGE_THREADS 128
#define STAGE_WORDS \
    8 /* of 16 bytes in flight a thread: 512 KiB in all, several times what the link's latency asks for */

__global__ void __launch_bounds__(STAGE_THREADS) kv_stage_kernel(const __grid_constant__ kern_kv_stage_args a)
{
    const uint32_t begin = a.range[0], n = a.range[1] - begin;
    const uint32_t words = (uint32_t)(a.layer_bytes / 16), piece = STAGE_THREADS * STAGE_WORDS;
    const uint32_t pieces = (words + piece - 1) / piece;
    const uint64_t off = a.layer * a.layer_bytes;
    for (uint64_t w = blockIdx.x; w < (uint64_t)n * pieces; w += gridDim.x) {
        const uint32_t i = begin + (uint32_t)(w / pieces);
        const kern_kv_stage_entry e = a.list[i];
        if (a.window && (uint64_t)e.first_pos + a.block_size + a.window <= (uint64_t)e.query_pos + 1)
            continue;
        const uint4 *from = reinterpret_cast<const uint4 *>(a.from_addr[e.block] + off);
        uint4 *to = reinterpret_cast<uint4 *>(a.to_addr[a.to_first + i] + off);
        const uint32_t at = (uint32_t)(w % pieces) * piece + threadIdx.x;
        uint4 v[STAGE_WORDS];
#pragma unroll
        for (int j = 0; j < STAGE_WORDS; j++)
            if (at + j * STAGE_THREADS < words)
                v[j] = __ldcs(from + at + j * STAGE_THREADS);
#pragma unroll
        for (int j = 0; j < STAGE_WORDS; j++)
            if (at + j * STAGE_THREADS < words)
                to[at + j * STAGE_THREADS] = v[j];
    }
}

kern_status cuda_kv_stage(kern_dev *kd, const kern_kv_stage_args *a)
{
    cuda_dev *d = cuda_of(kd);
    if (a->slot > 1 || a->layer_bytes % 16)
        return KERN_ARG;
    cuda_flush_mark(d);
    if (!a->background) {
        kv_stage_kernel<<<STAGE_BLOCKS, STAGE_THREADS, 0, d->stream>>>(*a);
        return cuda_launched(d, "staging of KV blocks");
    }
    cudaError_t e = cudaEventRecord(d->stage_free[a->slot], d->stream);
    if (e == cudaSuccess)
        e = cudaStreamWaitEvent(d->side, d->stage_free[a->slot], 0);
    if (e == cudaSuccess) {
        kv_stage_kernel<<<STAGE_BLOCKS, STAGE_THREADS, 0, d->side>>>(*a);
        e = cudaEventRecord(d->stage_done[a->slot], d->side);
    }
    return e == cudaSuccess ? cuda_launched(d, "staging of KV blocks") : cuda_fail(d, e, "staging of KV blocks");
}

kern_status cuda_kv_stage_wait(kern_dev *kd, uint32_t slot)
{
    cuda_dev *d = cuda_of(kd);
    cudaError_t e = slot > 1 ? cudaErrorInvalidValue : cudaStreamWaitEvent(d->stream, d->stage_done[slot], 0);
    d->joined = true;
    return e == cudaSuccess ? KERN_OK : cuda_fail(d, e, "waiting for KV blocks");
}
