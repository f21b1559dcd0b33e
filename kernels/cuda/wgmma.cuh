/* wgmma.cuh - the matrix instructions of compute capability 9.0: 64 weight rows by N tokens by 16 positions of K, a warpgroup each.
 *
 * Weights come from registers, laid out as for mma.sync m16n8k16, 16 rows a warp; tokens from shared memory, in rows of 64 positions
 * (128 bytes) with the 16-byte pieces of row r at piece ^ (r & 7). Compared with mma.sync bit by bit, over bf16 numbers of every
 * size: both add alike, so tile.cuh may use these and warp.cuh the others. */
#ifndef KERNELS_CUDA_WGMMA_CUH
#define KERNELS_CUDA_WGMMA_CUH

#include <cstdint>

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

#define W8(i)                                                                                                   \
    "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3]), "+f"(c[i + 4]), "+f"(c[i + 5]), "+f"(c[i + 6]), \
        "+f"(c[i + 7])

/* c = (keep ? c : 0) + A B. Runs on: see wgmma_wait. */
template <int N> struct wgmma;

template <> struct wgmma<32> {
    static __device__ __forceinline__ void run(float (&c)[16], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                               uint64_t b, int keep)
    {
        asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %21, 0;\n\t"
                     "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {"
                     "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
                     "{%16, %17, %18, %19}, %20, p, 1, 1, 0;\n\t}"
                     : W8(0), W8(8)
                     : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(keep));
    }
};

template <> struct wgmma<64> {
    static __device__ __forceinline__ void run(float (&c)[32], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                               uint64_t b, int keep)
    {
        asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %37, 0;\n\t"
                     "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
                     "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                     "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
                     "{%32, %33, %34, %35}, %36, p, 1, 1, 0;\n\t}"
                     : W8(0), W8(8), W8(16), W8(24)
                     : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(keep));
    }
};

template <> struct wgmma<80> {
    static __device__ __forceinline__ void run(float (&c)[40], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                               uint64_t b, int keep)
    {
        asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %45, 0;\n\t"
                     "wgmma.mma_async.sync.aligned.m64n80k16.f32.bf16.bf16 {"
                     "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                     "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                     "%32, %33, %34, %35, %36, %37, %38, %39}, "
                     "{%40, %41, %42, %43}, %44, p, 1, 1, 0;\n\t}"
                     : W8(0), W8(8), W8(16), W8(24), W8(32)
                     : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(keep));
    }
};

template <> struct wgmma<96> {
    static __device__ __forceinline__ void run(float (&c)[48], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                               uint64_t b, int keep)
    {
        asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %53, 0;\n\t"
                     "wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 {"
                     "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                     "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                     "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47}, "
                     "{%48, %49, %50, %51}, %52, p, 1, 1, 0;\n\t}"
                     : W8(0), W8(8), W8(16), W8(24), W8(32), W8(40)
                     : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(keep));
    }
};

template <> struct wgmma<112> {
    static __device__ __forceinline__ void run(float (&c)[56], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                               uint64_t b, int keep)
    {
        asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %61, 0;\n\t"
                     "wgmma.mma_async.sync.aligned.m64n112k16.f32.bf16.bf16 {"
                     "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                     "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                     "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                     "%48, %49, %50, %51, %52, %53, %54, %55}, "
                     "{%56, %57, %58, %59}, %60, p, 1, 1, 0;\n\t}"
                     : W8(0), W8(8), W8(16), W8(24), W8(32), W8(40), W8(48)
                     : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(keep));
    }
};

template <> struct wgmma<128> {
    static __device__ __forceinline__ void run(float (&c)[64], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                               uint64_t b, int keep)
    {
        asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %69, 0;\n\t"
                     "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
                     "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                     "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                     "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                     "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
                     "{%64, %65, %66, %67}, %68, p, 1, 1, 0;\n\t}"
                     : W8(0), W8(8), W8(16), W8(24), W8(32), W8(40), W8(48), W8(56)
                     : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(keep));
    }
};

#undef W8

/* The same of f16, for attention, with columns in eights: c[j] are columns 8j + 2t, + 1 of row g and of row g + 8 of the warp's 16. */
#define W2(i)                                                                                         \
    "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3]), "+f"(c[i + 1][0]), "+f"(c[i + 1][1]), \
        "+f"(c[i + 1][2]), "+f"(c[i + 1][3])

/* A and B from shared memory, K in rows of both. */
static __device__ __forceinline__ void wgmma_rows(float (&c)[8][4], uint64_t a, uint64_t b, int keep)
{
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %34, 0;\n\t"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
                 "%32, %33, p, 1, 1, 0, 0;\n\t}"
                 : W2(0), W2(2), W2(4), W2(6)
                 : "l"(a), "l"(b), "r"(keep));
}

/* A from registers; B from shared memory with its columns in rows. */
static __device__ __forceinline__ void wgmma_columns(float (&c)[8][4], const uint32_t (&a)[4], uint64_t b, int keep)
{
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %37, 0;\n\t"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
                 "{%32, %33, %34, %35}, %36, p, 1, 1, 1;\n\t}"
                 : W2(0), W2(2), W2(4), W2(6)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep));
}

static __device__ __forceinline__ void wgmma_columns(float (&c)[16][4], const uint32_t (&a)[4], uint64_t b, int keep)
{
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %69, 0;\n\t"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
                 "{%64, %65, %66, %67}, %68, p, 1, 1, 1;\n\t}"
                 : W2(0), W2(2), W2(4), W2(6), W2(8), W2(10), W2(12), W2(14)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep));
}

#undef W2

/* Registers that the next products use have been written. */
static __device__ __forceinline__ void wgmma_begin()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

static __device__ __forceinline__ void wgmma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* All products are in c; nothing that reads c may be moved before this. */
template <int R> static __device__ __forceinline__ void wgmma_wait(float (&c)[R])
{
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
    for (int i = 0; i < R; i++)
        asm volatile("" : "+f"(c[i])::"memory");
}

/* The same of all products but the last LEFT groups of them. */
template <int LEFT, int R> static __device__ __forceinline__ void wgmma_wait(float (&c)[R][4])
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
#pragma unroll
    for (int i = 0; i < R; i++)
        asm volatile("" : "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3])::"memory");
}

/* Rows of tokens from shared address `at`, a multiple of 1024 plus 32 bytes for every 16 positions of K. */
static __device__ __forceinline__ uint64_t wgmma_tokens(uint32_t at)
{
    return (uint64_t)((at & 0x3ffff) >> 4) | 1ull << 16 | 128ull << 32 |
           1ull << 62; /* from 8 rows to the next 2048 bytes (a panel); 128-byte swizzle */
}

/* Rows of 128 bytes, swizzled likewise, from shared address `at`: a multiple of 1024, plus 32 for every 16 columns where these are K; else
 * the next 64 columns are `next` bytes further. */
static __device__ __forceinline__ uint64_t wgmma_swizzled(uint32_t at, uint32_t next = 16)
{
    return (uint64_t)((at & 0x3ffff) >> 4) | (uint64_t)(next >> 4) << 16 | 64ull << 32 | 1ull << 62;
}

/* What stores and cp.async brought to shared memory, of this thread or known to it, is there for the matrix units. */
static __device__ __forceinline__ void wgmma_see_stores()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* This warpgroup will use N registers a thread, more or fewer than it was started with. */
template <int N, bool MORE> static __device__ __forceinline__ void wgmma_registers()
{
    if (MORE)
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
    else
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

#else
template <int N, bool MORE> static __device__ __forceinline__ void wgmma_registers() {}
#endif
#endif
