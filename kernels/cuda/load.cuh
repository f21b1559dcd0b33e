/* load.cuh - ways to read global memory that plain C++ does not offer. */
#ifndef KERNELS_CUDA_LOAD_CUH
#define KERNELS_CUDA_LOAD_CUH

#include <cstdint>

/* For what is read once a step: what else lies in L2 stays there. */
static __device__ __forceinline__ uint64_t once_policy()
{
    uint64_t p;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(p));
    return p;
}

static __device__ __forceinline__ void cp_async16_once(uint32_t dst, const void *src, uint64_t policy)
{
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(dst), "l"(src), "l"(policy)
                 : "memory");
}

#endif
