/* frag.cuh - the one arithmetic of all matrix products here: blocks of 32 along K.
 *
 * A warp multiplies 16 weight rows by 8 tokens. For every block of 32 along K a fresh accumulator takes mma.sync m16n8k16 steps in one
 * fixed order, and is then added (BF16, F16, F32) or multiplied by the block's scale and added (Q8_0) to the running sum in
 * float32, blocks in ascending order. Nothing else decides the bits of a result, so every kernel built of these parts agrees with
 * every other, whatever its tiling, its number of tokens, or the memory that a weight came from.
 *
 * Of the other quantised formats a block's product is finished at once, in block_products(), and then added as that of BF16: scale * c, or
 * scale * c + minimum * (sum of x), where the sum comes from the matrix units too, as a product with ones (Q2_K, whose sixteens have minima
 * of their own: with these).
 *
 * Operands are bf16: x is split in hi + lo (16 bits of mantissa together); int8 and smaller weights and BF16 are exact; F16 weights and
 * those of Q6_K times the scale of their 16 are hi + lo and F32 weights hi + mid + lo, exact too.
 *
 * Within a block, lane t of a quad (t = lane % 4) holds the 8 consecutive K positions 8t .. 8t+7 of its row or token. That is a
 * permutation of the K order of mma.sync, the same for both operands, and makes each operand one contiguous piece of memory a lane:
 * 16 bytes of BF16, 8 of Q8_0, 32 of float32. Step s = 0, 1 takes positions 8t + 4s .. 8t + 4s + 3.
 * Accumulator c0, c1: row g = lane / 4, tokens 2t, 2t + 1; c2, c3: row g + 8. */
#ifndef KERNELS_CUDA_FRAG_CUH
#define KERNELS_CUDA_FRAG_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/cuda/blocks.cuh"

/* Weights of one lane for one block: [part][4 pairs of positions], for row g and row g + 8. */
template <int FMT> struct a_frag {
    static constexpr int PARTS = fmt_block<FMT>::PARTS;
    uint32_t r0[PARTS][4], r1[PARTS][4];
    float d0, d1; /* scales of the quantised */
    fmt_min m0, m1;
};

struct b_frag {
    uint32_t hi[4], lo[4];
};

static __device__ __forceinline__ void mma_bf16(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                                uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* bf16 pair, p in the low half */
static __device__ __forceinline__ uint32_t pack_bf16(float p, float q)
{
    uint32_t r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(q), "f"(p));
    return r;
}
static __device__ __forceinline__ float low_bf16(uint32_t r)
{
    return __uint_as_float(r << 16);
}
static __device__ __forceinline__ float high_bf16(uint32_t r)
{
    return __uint_as_float(r & 0xffff0000u);
}

/* x = hi + lo + (what 16 bits of mantissa cannot hold) */
static __device__ __forceinline__ void split_pair(float p, float q, uint32_t *hi, uint32_t *lo)
{
    *hi = pack_bf16(p, q);
    *lo = pack_bf16(p - low_bf16(*hi), q - high_bf16(*hi));
}

static __device__ __forceinline__ b_frag split_x(float4 v0, float4 v1)
{
    b_frag b;
    split_pair(v0.x, v0.y, &b.hi[0], &b.lo[0]);
    split_pair(v0.z, v0.w, &b.hi[1], &b.lo[1]);
    split_pair(v1.x, v1.y, &b.hi[2], &b.lo[2]);
    split_pair(v1.z, v1.w, &b.hi[3], &b.lo[3]);
    return b;
}

/* One row's share of lane t: `p` is the row's first byte of this block in shared memory. */
template <int FMT>
static __device__ __forceinline__ void load_a_row(const unsigned char *p, uint32_t t,
                                                  uint32_t (&r)[a_frag<FMT>::PARTS][4], float *d)
{
    if constexpr (FMT == FMT_Q8_0) {
        uint32_t w[2];
        load_words(p + 2 + 8 * t, w);
        *d = int8_scale(*reinterpret_cast<const uint16_t *>(p));
#pragma unroll
        for (int i = 0; i < 2; i++) {
            r[0][2 * i] = int8_pair(w[i], 0x4140);
            r[0][2 * i + 1] = int8_pair(w[i], 0x4342);
        }
    } else if constexpr (FMT == FMT_BF16) {
        load_row(p + 16 * t, r[0]);
    } else if constexpr (FMT == FMT_F16) {
        uint32_t w[4];
        load_row(p + 16 * t, w);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float2 f = __half22float2(*reinterpret_cast<const __half2 *>(&w[i]));
            split_pair(f.x, f.y, &r[0][i], &r[1][i]);
        }
    } else {
        uint32_t w[8];
        load_row(p + 32 * t, w);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float f = __uint_as_float(w[2 * i]), h = __uint_as_float(w[2 * i + 1]);
            split_pair(f, h, &r[0][i], &r[1][i]);
            r[2][i] = pack_bf16(f - low_bf16(r[0][i]) - low_bf16(r[1][i]), h - high_bf16(r[0][i]) - high_bf16(r[1][i]));
        }
    }
}

/* Share of lane t of block b of a row that begins at `row`, in shared memory. */
template <int FMT>
static __device__ __forceinline__ void load_a_block(const unsigned char *row, uint32_t b, uint32_t t,
                                                    uint32_t (&r)[a_frag<FMT>::PARTS][4], float *d, fmt_min *m)
{
    constexpr uint32_t GRAIN = fmt_block<FMT>::GRAIN;
    const unsigned char *p = row + b * fmt_block<FMT>::BYTES; /* of formats of blocks of 32 */
    if constexpr (GRAIN > 1)
        load_k_lane<FMT>(k_pieces<FMT>(row + b / GRAIN * fmt_block<FMT>::SUPER, b % GRAIN), b % GRAIN, t, r, d, m);
    else if constexpr (fmt_block<FMT>::FINISHED)
        load_lane<FMT>(p, t, r[0], d, m, (uint32_t)(uintptr_t)p);
    else
        load_a_row<FMT>(p, t, r, d);
}

/* One lane's walk along a row in shared memory that begins at any place its format allows. Blocks are read in pairs (`odd`: the second
 * of a pair), so that what depends on the alignment is worked out once. Q8_0: one word beyond the row may be read. */
template <int FMT> struct row_reader {
    const unsigned char *p;
    __device__ __forceinline__ row_reader(const unsigned char *row, uint32_t) : p(row) {}
    __device__ __forceinline__ void load(uint32_t b, bool, uint32_t t, uint32_t (&r)[a_frag<FMT>::PARTS][4], float *d,
                                         fmt_min *m) const
    {
        load_a_block<FMT>(p, b, t, r, d, m);
    }
};

template <> struct row_reader<FMT_Q8_0> {
    const unsigned char *p;
    const uint32_t *first[2]; /* word of this lane's first weight, in even and odd blocks */
    uint32_t shift;
    __device__ __forceinline__ row_reader(const unsigned char *row, uint32_t t) : p(row)
    {
        const unsigned char *at = row + 2 + 8 * t;
        shift = ((uint32_t)(uintptr_t)at & 2) * 8;
        first[0] = reinterpret_cast<const uint32_t *>(at - ((uintptr_t)at & 2));
        first[1] = reinterpret_cast<const uint32_t *>(at + 34 - ((uintptr_t)(at + 34) & 2));
    }
    __device__ __forceinline__ void load(uint32_t b, bool odd, uint32_t, uint32_t (&r)[1][4], float *d, fmt_min *) const
    {
        const uint32_t *q = (odd ? first[1] : first[0]) + b / 2 * 17, by = odd ? 16 - shift : shift;
        const uint32_t w[3] = {q[0], q[1], q[2]};
        *d = int8_scale(*reinterpret_cast<const uint16_t *>(p + b * 34));
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t v = __funnelshift_r(w[i], w[i + 1], by);
            r[0][2 * i] = int8_pair(v, 0x4140);
            r[0][2 * i + 1] = int8_pair(v, 0x4342);
        }
    }
};

/* A lane whose positions, from pair `from` on, lie beyond the end of K: what is in memory there must not be read as a number. */
template <int FMT> static __device__ __forceinline__ void zero_a(a_frag<FMT> &a, int from)
{
#pragma unroll
    for (int p = 0; p < a_frag<FMT>::PARTS; p++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (i >= from)
                a.r0[p][i] = a.r1[p][i] = 0;
}

/* What x is multiplied by for the minimum: one, but for Q2_K. */
template <int FMT> static __device__ __forceinline__ uint32_t min_operand(const fmt_min &m)
{
    return FMT == FMT_Q2_K ? m.of : BF16_ONES;
}

/* The product of a block from that of its quants, and the sum of x. Written out, so that no compiler makes one rounding of two in one
 * kernel and not in another. */
template <int FMT> static __device__ __forceinline__ float block_finish(float c, float x, float d, float m)
{
    return fmt_block<FMT>::MIN ? __fmaf_rn(d, c, __fmul_rn(m, x)) : __fmul_rn(d, c);
}

/* c[i] = A[i] B[i] for N blocks side by side, whose products do not wait for each other; with tile_multiply() the only place where products
 * within a block are added. */
template <int FMT, int N>
static __device__ __forceinline__ void block_products(float (&c)[N][4], const a_frag<FMT> (&a)[N], const b_frag (&b)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        c[i][0] = c[i][1] = c[i][2] = c[i][3] = 0;
#pragma unroll
    for (int s = 0; s < 2; s++)
#pragma unroll
        for (int p = a_frag<FMT>::PARTS - 1; p >= 0; p--) {
            const uint32_t k = 2 * s;
#pragma unroll
            for (int i = 0; i < N; i++)
                mma_bf16(c[i], a[i].r0[p][k], a[i].r1[p][k], a[i].r0[p][k + 1], a[i].r1[p][k + 1], b[i].lo[k],
                         b[i].lo[k + 1]);
#pragma unroll
            for (int i = 0; i < N; i++)
                mma_bf16(c[i], a[i].r0[p][k], a[i].r1[p][k], a[i].r0[p][k + 1], a[i].r1[p][k + 1], b[i].hi[k],
                         b[i].hi[k + 1]);
        }
    if constexpr (fmt_block<FMT>::FINISHED) {
        float x[N][4] = {};
        if constexpr (fmt_block<FMT>::
                          MIN) { /* in braces: of a bare loop with a pragma nvcc 13 leaves out the next loop too */
#pragma unroll
            for (int s = 0; s < 2; s++) {
#pragma unroll
                for (int i = 0; i < N; i++) {
                    const uint32_t m0 = min_operand<FMT>(a[i].m0), m1 = min_operand<FMT>(a[i].m1);
                    mma_bf16(x[i], m0, m1, m0, m1, b[i].lo[2 * s], b[i].lo[2 * s + 1]);
                    mma_bf16(x[i], m0, m1, m0, m1, b[i].hi[2 * s], b[i].hi[2 * s + 1]);
                }
            }
        }
#pragma unroll
        for (int i = 0; i < N; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                c[i][j] =
                    block_finish<FMT>(c[i][j], x[i][j], j < 2 ? a[i].d0 : a[i].d1, j < 2 ? a[i].m0.by : a[i].m1.by);
    }
}

/* The same for one block. */
template <int FMT>
static __device__ __forceinline__ void block_product(float (&c)[4], const a_frag<FMT> &a, const b_frag &b)
{
    float cs[1][4];
    const a_frag<FMT> as[1] = {a};
    const b_frag bs[1] = {b};
    block_products<FMT, 1>(cs, as, bs);
#pragma unroll
    for (int i = 0; i < 4; i++)
        c[i] = cs[0][i];
}

/* acc += (scale *) c for one block. stream_add() does the same with products from memory. */
template <int FMT>
static __device__ __forceinline__ void block_add(float (&acc)[4], const float (&c)[4], float d0, float d1)
{
    if constexpr (FMT == FMT_Q8_0) {
        acc[0] = fmaf(d0, c[0], acc[0]);
        acc[1] = fmaf(d0, c[1], acc[1]);
        acc[2] = fmaf(d1, c[2], acc[2]);
        acc[3] = fmaf(d1, c[3], acc[3]);
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++)
            acc[i] += c[i];
    }
}

template <int FMT>
static __device__ __forceinline__ void block_mma(float (&acc)[4], const a_frag<FMT> &a, const b_frag &b)
{
    float c[4];
    block_product<FMT>(c, a, b);
    block_add<FMT>(acc, c, a.d0, a.d1);
}

/* --- asynchronous copies into shared memory ------------------------------------------------------------------------------ */

static __device__ __forceinline__ uint32_t smem_of(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

static __device__ __forceinline__ void cp_async16(uint32_t dst, uint64_t src)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(dst), "l"(src) : "memory");
}
static __device__ __forceinline__ void cp_async4(uint32_t dst, uint64_t src)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(dst), "l"(src) : "memory");
}
/* The first n of 16 bytes, zeros after them. */
static __device__ __forceinline__ void cp_async_part(uint32_t dst, uint64_t src, uint32_t n)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dst), "l"(src), "r"(n) : "memory");
}
static __device__ __forceinline__ void cp_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int N> static __device__ __forceinline__ void cp_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/* Barriers in shared memory that count arrivals and, from compute capability 9.0 on, the bytes of bulk copies: one lane asks, an engine
 * fetches, and the load and store units are left to the arithmetic. */
#if __CUDA_ARCH__ >= 900
#define BAR_FULL_COUNT 32
#else
#define BAR_FULL_COUNT 64 /* every lane of a warp, and its copies */
#endif

static __device__ __forceinline__ void bar_init(uint64_t *bar, uint32_t count)
{
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(smem_of(bar)), "r"(count) : "memory");
}

static __device__ __forceinline__ void bar_arrive(uint64_t *bar)
{
    asm volatile("{\n\t.reg .b64 s;\n\tmbarrier.arrive.shared.b64 s, [%0];\n\t}" ::"r"(smem_of(bar)) : "memory");
}

static __device__ __forceinline__ void bar_wait(uint64_t *bar, uint32_t phase)
{
#if __CUDA_ARCH__ >= 900
#define BAR_TRY "mbarrier.try_wait.parity.shared::cta.b64"
#else
#define BAR_TRY "mbarrier.test_wait.parity.shared.b64"
#endif
    uint32_t done;
    do {
        asm volatile("{\n\t.reg .pred p;\n\t" BAR_TRY " p, [%1], %2;\n\tselp.u32 %0, 1, 0, p;\n\t}"
                     : "=r"(done)
                     : "r"(smem_of(bar)), "r"(phase)
                     : "memory");
    } while (!done);
}

/* Arrives once the copies that this thread has asked for are there. */
static __device__ __forceinline__ void bar_arrive_copies(uint64_t *bar)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(smem_of(bar)) : "memory");
}

#if __CUDA_ARCH__ >= 900
static __device__ __forceinline__ void bar_init_done()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

static __device__ __forceinline__ void bar_expect(uint64_t *bar, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(smem_of(bar)), "r"(bytes) : "memory");
}

static __device__ __forceinline__ void bulk_copy(uint32_t dst, uint64_t src, uint32_t bytes, uint64_t *bar)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(dst),
                 "l"(src), "r"(bytes), "r"(smem_of(bar))
                 : "memory");
}

#else
static __device__ __forceinline__ void bar_init_done() {}
#endif

#endif
