/* load.cuh - ways to read global memory that plain C++ does not offer. */
#ifndef KERNELS_CUDA_LOAD_CUH
#define KERNELS_CUDA_LOAD_CUH

#include <cstdint>

/* Sixteen bytes, or zeros where it is not `on`: without a branch. */
static __device__ __forceinline__ uint4 load16(const void *p, bool on)
{
    uint4 v = make_uint4(0, 0, 0, 0);
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.u32 p, %5, 0;\n\t@p ld.global.v4.u32 {%0,%1,%2,%3}, [%4];\n\t}"
                 : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)
                 : "l"(p), "r"((uint32_t)on)
                 : "memory");
    return v;
}

static __device__ __forceinline__ float4 load_floats(const float *p, bool on)
{
    const uint4 v = load16(p, on);
    return make_float4(__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z), __uint_as_float(v.w));
}

/* A later load finds the line in L2. */
static __device__ __forceinline__ void fetch_ahead(const void *p)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

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

#if __CUDA_ARCH__ >= 900
static __device__ __forceinline__ void bulk_copy_once(uint32_t dst, uint64_t src, uint32_t bytes, uint64_t *bar,
                                                      uint64_t policy)
{
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], "
        "%4;" ::"r"(dst),
        "l"(src), "r"(bytes), "r"((uint32_t)__cvta_generic_to_shared(bar)), "l"(policy)
        : "memory");
}
#endif

#endif
