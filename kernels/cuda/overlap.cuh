/* overlap.cuh - how a kernel begins while the one before it in the stream still runs.
 *
 * From compute capability 9.0 on, cuda_start() lets the blocks of a kernel come to life as soon as all blocks of the one before run: what
 * costs time at the start of a kernel, and all it can do without its predecessors (barriers, weights), then lies behind them. Until it
 * has called overlap_begin() a thread may read nothing that a kernel of the same step writes, and may write nothing to device memory.
 * Every thread that does either calls it, before any return: the kernel after the next relies on this one not ending before its
 * predecessors. Several kernels may be waiting, in a row; each comes to life only when all blocks of the one before are on the chip,
 * so that none can keep out one that it waits for.
 * Read-only loads (__ldg, __restrict__) of what another kernel wrote are forbidden in such kernels: the compiler may move them up. */
#ifndef KERNELS_CUDA_OVERLAP_CUH
#define KERNELS_CUDA_OVERLAP_CUH

#include <cstdint>

static __device__ __forceinline__ uint64_t global_ns()
{
    uint64_t t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}

/* At the start of a kernel that has much to do before overlap_begin(): the next one need not wait for that. */
static __device__ __forceinline__ void overlap_allow()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* `mark`, which may be NULL, gets the time at which the work before was done (cuda_take_mark()). */
static __device__ __forceinline__ void overlap_begin(uint64_t *mark = nullptr)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;\n\tgriddepcontrol.wait;" ::: "memory");
#endif
    if (mark && threadIdx.x == 0 && blockIdx.x + blockIdx.y + blockIdx.z == 0)
        *reinterpret_cast<volatile uint64_t *>(mark) = global_ns();
}

#endif
