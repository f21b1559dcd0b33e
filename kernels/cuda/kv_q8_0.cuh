/* kv_q8_0.cuh - rows of a KV cache in Q8_0: stored by the rule of kern_kv, and read for the matrix units.
 *
 * A block has 34 bytes, so that in a row nothing is aligned to more than two. Eight rows are a whole number of 16-byte pieces, and lie side
 * by side where block_size is a multiple of eight: so they come to shared memory in groups, as they are, and are taken apart there. A
 * value is the half nearest to scale * quant. */
#ifndef KERNELS_CUDA_KV_Q8_0_CUH
#define KERNELS_CUDA_KV_Q8_0_CUH

#include "kernels/cuda/frag.cuh"
#include "kernels/kernels.h"

#include <cuda_fp16.h>

#define Q8_GROUP 8 /* rows */

/* Pieces of 16 bytes of a group. */
static __host__ __device__ constexpr uint32_t q8_group_pieces(uint32_t head_dim)
{
    return head_dim / 32 * sizeof(kern_q8_0_block) * Q8_GROUP / 16;
}

/* Bytes of `rows` rows in shared memory; a reader may look four bytes further. */
static __host__ __device__ constexpr uint32_t q8_raw_bytes(uint32_t head_dim, uint32_t rows)
{
    return q8_group_pieces(head_dim) * 16 * rows / Q8_GROUP + 16;
}

/* n values of `head`, which is whole and in shared memory, by a warp. */
static __device__ __forceinline__ void q8_store(unsigned char *dst, const float *head, uint32_t n)
{
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll 1
    for (uint32_t i = 0; i < n; i += 32, dst += sizeof(kern_q8_0_block)) {
        const float v = head[i + lane];
        const uint32_t most = __reduce_max_sync(~0u, __float_as_uint(v) & 0x7fffffffu); /* NaN is the largest */
        uint32_t d = __half_as_ushort(__float2half_rn(__fdiv_rn(__uint_as_float(most), 127.0f)));
        int q = 0;
        if ((d & 0x7c00u) == 0x7c00u)
            d = 0x7e00;
        else if (d)
            q = max(-127, min(127, __float2int_rn(__fdiv_rn(v, __half2float(__ushort_as_half((uint16_t)d))))));
        if (lane == 0)
            *reinterpret_cast<uint16_t *>(dst) = (uint16_t)d;
        dst[2 + lane] = (unsigned char)q;
    }
}

/* One group from memory to shared memory, by a warp; not waited for. */
static __device__ __forceinline__ void q8_fetch(unsigned char *to, const unsigned char *from, uint32_t pieces)
{
    for (uint32_t p = threadIdx.x % 32; p < pieces; p += 32)
        cp_async16(smem_of(to + p * 16), (uint64_t)(uintptr_t)(from + p * 16));
}

/* ROWS rows of K or V: row_of(i) is where group i begins, or NULL: what is in shared memory stays. By `warps` warps, of which this is number `warp`. */
template <uint32_t ROWS, typename R>
static __device__ __forceinline__ void q8_fetch_rows(unsigned char *to, uint32_t pieces, uint32_t warp, uint32_t warps,
                                                     R row_of)
{
#pragma unroll 1
    for (uint32_t i = warp; i < ROWS / Q8_GROUP; i += warps)
        if (const unsigned char *from = row_of(i))
            q8_fetch(to + i * pieces * 16, from, pieces);
}

/* Eight quants, four in each word, times d. */
static __device__ __forceinline__ uint4 q8_halves(uint32_t low, uint32_t high, __half d)
{
    const __half2 d2 = __half2half2(d);
    /* Of quant q, 0x6400 + q + 128 are the bits of 1152 + q. */
    auto two = [&](uint32_t bytes, uint32_t sel) {
        const uint32_t biased = __byte_perm(bytes ^ 0x80808080u, 0x64646464u, sel);
        const __half2 q = __hsub2(*reinterpret_cast<const __half2 *>(&biased), __float2half2_rn(1152.0f));
        const __half2 v = __hmul2_rn(q, d2);
        return *reinterpret_cast<const uint32_t *>(&v);
    };
    return make_uint4(two(low, 0x4140), two(low, 0x4342), two(high, 0x4140), two(high, 0x4342));
}

/* Values 8 * piece and on of a block in device memory. */
static __device__ __forceinline__ uint4 q8_eight_of(const unsigned char *block, uint32_t piece)
{
    const uint16_t *at = reinterpret_cast<const uint16_t *>(block + 2 + 8 * piece);
    return q8_halves(at[0] | (uint32_t)at[1] << 16, at[2] | (uint32_t)at[3] << 16,
                     *reinterpret_cast<const __half *>(block));
}

/* Values 8 * piece and on of a block in shared memory; zeros where it is not `on`, whatever lies there. */
static __device__ __forceinline__ uint4 q8_eight(const unsigned char *block, uint32_t piece, bool on)
{
    const uint32_t at = smem_of(block) + 2 + 8 * piece, shift = (at & 2) * 8;
    const uint32_t *words = reinterpret_cast<const uint32_t *>(block + 2 + 8 * piece - (at & 2));
    const uint32_t w0 = words[0], w1 = words[1], w2 = words[2];
    const __half d = on ? *reinterpret_cast<const __half *>(block) : __ushort_as_half(0);
    return q8_halves(__funnelshift_r(w0, w1, shift), __funnelshift_r(w1, w2, shift), d);
}

#endif
