/* blocks.cuh - stored weights from shared memory to the bf16 operands of frag.cuh: one lane's 8 weights of a block of 32.
 *
 * Quants are exact in bf16. In formats of super-blocks (256 weights; FP8, INT4, NVFP4: 128) a "block" is one of their groups of 32; rows are cut at
 * super-blocks only, which begin at multiples of 16 bytes in Q4_K and Q5_K, of 4 in these three, at even places in the others. Layouts: kernels/quant.h. */
#ifndef KERNELS_CUDA_BLOCKS_CUH
#define KERNELS_CUDA_BLOCKS_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/cuda/iq.cuh"
#include "kernels/quant.h"

#define BF16_ONES 0x3f803f80u

template <int FMT> struct fmt_stored;
#define FMT_STORED(id, name, len, bytes)         \
    template <> struct fmt_stored<id> {          \
        static constexpr uint32_t LEN = len;     \
        static constexpr uint32_t BYTES = bytes; \
    };
KERN_FORMATS(FMT_STORED)
#undef FMT_STORED

template <int FMT> struct fmt_block {
    static constexpr uint32_t LEN = fmt_stored<FMT>::LEN, SUPER = fmt_stored<FMT>::BYTES;
    static constexpr uint32_t BYTES = LEN > 32 ? 0 : 32 / LEN *SUPER; /* of 32 weights; 0: see SUPER */
    static constexpr uint32_t GRAIN = LEN > 32 ? LEN / 32 : 1;        /* blocks that cannot be parted */
    static constexpr int PARTS = FMT == FMT_F32                                                               ? 3
                                 : FMT == FMT_F16 || FMT == FMT_Q6_K || FMT == FMT_IQ2_XS || FMT == FMT_IQ2_S ? 2
                                                                                                              : 1;
    static constexpr bool FINISHED = FMT > FMT_Q8_0; /* see block_finish() */
    static constexpr bool WHOLE =
        FMT == FMT_Q2_K || FMT == FMT_Q3_K || iq<FMT>::IS; /* nothing of a super-block is left out */
    static constexpr bool MIN =
        FMT == FMT_Q4_1 || FMT == FMT_Q5_1 || FMT == FMT_Q4_K || FMT == FMT_Q5_K || FMT == FMT_Q2_K;
};

/* What a block of a format with MIN adds to each weight: `by`, in Q2_K times what the lane's sixteen weights have of their own, a pair. */
struct fmt_min {
    float by;
    uint32_t of;
};

/* Bytes of n blocks, a multiple of GRAIN. */
template <int FMT> static __device__ __forceinline__ uint32_t fmt_bytes(uint32_t n)
{
    return fmt_block<FMT>::GRAIN == 1 ? n * fmt_block<FMT>::BYTES : n / fmt_block<FMT>::GRAIN * fmt_block<FMT>::SUPER;
}

/* Four bytes at any even address of shared memory. `at`: its low bits, for where the compiler can work them out and the address is not
 * known to it. */
template <int N>
static __device__ __forceinline__ void load_words(const unsigned char *p, uint32_t (&w)[N], uint32_t at)
{
    const uint32_t odd = at & 2;
    const uint32_t *q = reinterpret_cast<const uint32_t *>(p - odd);
    uint32_t prev = q[0];
#pragma unroll
    for (int i = 0; i < N; i++) {
        /* The last half word lies in the next word only when the address is odd in this sense. */
        const uint32_t next = (i + 1 < N || odd) ? q[i + 1] : 0;
        w[i] = __funnelshift_r(prev, next, odd * 8);
        prev = next;
    }
}
template <int N> static __device__ __forceinline__ void load_words(const unsigned char *p, uint32_t (&w)[N])
{
    load_words(p, w, (uint32_t)(uintptr_t)p);
}

/* 4 * N bytes at an address that is at least even; whole 16-byte reads where it is aligned so. */
template <int N> static __device__ __forceinline__ void load_row(const unsigned char *p, uint32_t (&w)[N])
{
    if (((uintptr_t)p & 15) == 0) {
#pragma unroll
        for (int i = 0; i < N; i += 4) {
            const uint4 v = reinterpret_cast<const uint4 *>(p)[i / 4];
            w[i] = v.x, w[i + 1] = v.y, w[i + 2] = v.z, w[i + 3] = v.w;
        }
    } else {
        load_words(p, w);
    }
}

/* Two int8 of w as bf16, 64 times smaller: bytes 0..255 by themselves are bf16 of that many times 2^-133 (subnormal up to 127, and normal
 * numbers go on where those end), so one multiply-add by 2^127 with -128/64 gives every value, exactly. The scale makes up for it. */
static __device__ __forceinline__ uint32_t int8_pair(uint32_t w, uint32_t selector)
{
    const uint32_t v = __byte_perm(w ^ 0x80808080u, 0, selector);
    uint32_t r;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(v), "r"(0x7f007f00u), "r"(0xc000c000u));
    return r;
}

/* The scale of a Q8_0 block for products of int8_pair(). */
static __device__ __forceinline__ float int8_scale(uint16_t half)
{
    return 64.0f * __half2float(__ushort_as_half(half));
}

/* Eight bytes at any address of shared memory. */
static __device__ __forceinline__ void load_any(const unsigned char *p, uint32_t (&w)[2])
{
    const uint32_t by = ((uint32_t)(uintptr_t)p & 3) * 8;
    const uint32_t *q = reinterpret_cast<const uint32_t *>(p - by / 8);
    const uint32_t v[3] = {q[0], q[1], by ? q[2] : 0};
    w[0] = __funnelshift_r(v[0], v[1], by);
    w[1] = __funnelshift_r(v[1], v[2], by);
}

static __device__ __forceinline__ float half_at(const unsigned char *p)
{
    return __half2float(__ushort_as_half(*reinterpret_cast<const uint16_t *>(p)));
}

static __device__ __forceinline__ uint32_t fma_bf16x2(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t r;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
    return r;
}

/* Bytes 0 .. 127 of w, less `off` (below 128), as bf16: behind 0x43 such a byte is 128 + itself. */
static __device__ __forceinline__ void quants_less(const uint32_t (&w)[2], uint32_t off, uint32_t (&r)[4])
{
    const uint32_t less = (0xc300u + off) * 0x10001u; /* -(128 + off) */
#pragma unroll
    for (int i = 0; i < 2; i++) {
        r[2 * i] = fma_bf16x2(__byte_perm(w[i], 0x43434343u, 0x4140), BF16_ONES, less);
        r[2 * i + 1] = fma_bf16x2(__byte_perm(w[i], 0x43434343u, 0x4342), BF16_ONES, less);
    }
}

template <uint32_t OFF> static __device__ __forceinline__ void quants_of(const uint32_t (&w)[2], uint32_t (&r)[4])
{
    static_assert(OFF < 128, "one exponent");
    quants_less(w, OFF, r);
}

/* Of 16 bytes that hold weights i and i + 16 each, the 8 quants of lane t. */
static __device__ __forceinline__ void nibbles_of(uint32_t (&w)[2], uint32_t t)
{
    const uint32_t by = t / 2 * 4;
    w[0] = w[0] >> by & 0x0f0f0f0fu;
    w[1] = w[1] >> by & 0x0f0f0f0fu;
}

/* Eight fifth bits, one to a byte. */
static __device__ __forceinline__ void add_fifth_bits(uint32_t (&w)[2], uint32_t bits)
{
    w[0] |= ((bits & 15) * 0x00204081u & 0x01010101u) << 4;
    w[1] |= ((bits >> 4 & 15) * 0x00204081u & 0x01010101u) << 4;
}

/* E2M1, doubled, of four low nibbles: sign, exponent and mantissa where bf16 has its own, times 2^127. */
static __device__ __forceinline__ void e2m1_of(uint32_t w, uint32_t *r)
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t v = __byte_perm(w, 0, i ? 0x4342 : 0x4140);
        r[i] = fma_bf16x2((v & 0x00080008u) << 12 | (v & 0x00070007u) << 6, 0x7f007f00u, 0);
    }
}

/* The bytes of IQ4_NL's table that four low nibbles mean. */
static __device__ __forceinline__ uint32_t iq4_nl_of(uint32_t w)
{
    const uint32_t low = w & 0x07070707u, each = low | low >> 4;
    const uint32_t at = (each & 0xff) | (each >> 8 & 0xff00); /* four selectors of three bits */
    const uint32_t negative = __byte_perm(0xbfad9881u, 0xf6eaddcfu, at),
                   positive = __byte_perm(0x26190d01u, 0x71594535u, at);
    const uint32_t upper = (w >> 3 & 0x01010101u) * 0xff;
    return (negative & ~upper) | (positive & upper);
}

/* 64 times smaller, as int8_pair() makes them. */
static __device__ __forceinline__ void iq4_nl_pairs(const uint32_t (&w)[2], uint32_t (&r)[4])
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t v = iq4_nl_of(w[i]);
        r[2 * i] = int8_pair(v, 0x4140);
        r[2 * i + 1] = int8_pair(v, 0x4342);
    }
}

/* One row's share of lane t of a block of 32 that begins at p, at an even place (MXFP4: at any). `at` as in load_words(); not of
 * MXFP4. */
template <int FMT>
static __device__ __forceinline__ void load_lane(const unsigned char *p, uint32_t t, uint32_t (&r)[4], float *d,
                                                 fmt_min *m, uint32_t at)
{
    uint32_t w[2];
    if constexpr (FMT == FMT_MXFP4) {
        load_any(p + 1 + t % 2 * 8, w);
        nibbles_of(w, t);
        e2m1_of(w[0], r);
        e2m1_of(w[1], r + 2);
        const uint32_t e = p[0];
        *d = __uint_as_float(e < 2 ? 0x00200000u << e : (e - 1) << 23); /* half of the scale */
        return;
    }
    constexpr uint32_t HEAD = FMT == FMT_Q4_1 || FMT == FMT_Q5_1 ? 4 : 2;
    constexpr uint32_t BITS = FMT == FMT_Q5_0 || FMT == FMT_Q5_1 ? 4 : 0;
    load_words(p + HEAD + BITS + t % 2 * 8, w, at + HEAD + BITS);
    nibbles_of(w, t);
    *d = half_at(p);
    if constexpr (fmt_block<FMT>::MIN)
        m->by = half_at(p + 2);
    if constexpr (BITS > 0)
        add_fifth_bits(w, p[HEAD + t]);
    if constexpr (FMT == FMT_IQ4_NL) {
        iq4_nl_pairs(w, r);
        *d *= 64;
    } else {
        quants_of<FMT == FMT_Q4_0 ? 8 : FMT == FMT_Q5_0 ? 16 : 0>(w, r);
    }
}

/* A whole number of up to 8 bits as two bf16. */
static __device__ __forceinline__ uint32_t bf16_twice(int n)
{
    return (uint32_t)__bfloat16_as_ushort(__float2bfloat16_rn((float)n)) * 0x10001u;
}

/* E4M3 of eight bytes: sign, exponent and mantissa where bf16 has its own, times 2^120. */
static __device__ __forceinline__ void e4m3_of(const uint32_t (&w)[2], uint32_t (&r)[4])
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t v = __byte_perm(w[i / 2], 0, i % 2 ? 0x4342 : 0x4140);
        r[i] = fma_bf16x2((v & 0x00800080u) << 8 | (v & 0x007f007fu) << 4, 0x7b807b80u, 0);
    }
}

/* The parts of a super-block that one of its groups of 32 needs. */
struct k_parts {
    const unsigned char *head; /* d, (dmin,) scales; Q3_K, Q6_K: scales, d; Q2_K, IQ1, IQ2, IQ3: all of it */
    const unsigned char *high; /* upper bits: 32 bytes */
    const unsigned char *low;  /* 32 bytes, of Q6_K and FP8 64 */
};

template <int FMT> static __device__ __forceinline__ k_parts k_pieces(const unsigned char *p, uint32_t group)
{
    if (FMT == FMT_Q6_K)
        return {p + 192, p + 128 + group / 4 * 32, p + group / 4 * 64};
    if (iq<FMT>::IS)
        return {p, p, p};
    if (FMT == FMT_Q2_K)
        return {p, p, p + 16 + group / 4 * 32};
    if (FMT == FMT_Q3_K)
        return {p + 96, p, p + 32 + group / 4 * 32};
    if (FMT == FMT_IQ4_XS)
        return {p, p, p + 8 + group / 2 * 32};
    if (FMT == FMT_FP8)
        return {p, p, p + 4 + group / 2 * 64};
    if (FMT == FMT_INT4_G32 || FMT == FMT_INT4_G128 || FMT == FMT_NVFP4)
        return {p, p, p + (FMT == FMT_INT4_G128 ? 4 : 12) + group / 2 * 32};
    return {p, p + 16, p + (FMT == FMT_Q4_K ? 16 : 48) + group / 2 * 32};
}

/* Quants of sixteen weights that share a scale, times the scale: up to 13 bits, so two numbers, as the matrix units cannot wait for it. */
static __device__ __forceinline__ void scale_quants(const uint32_t (&q)[4], uint32_t scale, uint32_t (&r)[2][4])
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        r[0][i] = fma_bf16x2(q[i], scale, 0x80008000u);
        r[1][i] = fma_bf16x2(q[i], scale, r[0][i] ^ 0x80008000u);
    }
}

/* The same of products of no more than 8 bits, which are exact. */
static __device__ __forceinline__ void scale_quants(const uint32_t (&q)[4], uint32_t scale, uint32_t (&r)[1][4])
{
#pragma unroll
    for (int i = 0; i < 4; i++)
        r[0][i] = fma_bf16x2(q[i], scale, 0x80008000u);
}

/* Share of lane t of group g of an IQ1, IQ2 or IQ3 block. */
template <int FMT>
static __device__ __forceinline__ void load_iq_lane(const unsigned char *block, uint32_t g, uint32_t t,
                                                    uint32_t (&r)[fmt_block<FMT>::PARTS][4], float *d)
{
    const kern_iq v = iq_eight<FMT>(block, 4 * g + t);
    const uint32_t w[2] = {iq_bytes<FMT>(v.codes), iq_bytes<FMT>(v.codes >> (iq<FMT>::THREE ? 12 : 8))};
    uint32_t q[4];
    if constexpr (iq<FMT>::SHIFTED) {
        quants_less(w, v.negatives ? 17 : 15, q);
    } else {
        quants_of<0>(w, q);
#pragma unroll
        for (int i = 0; i < 4; i++)
            q[i] ^= (v.negatives << (15 - 2 * i) & 0x8000u) | (v.negatives << (30 - 2 * i) & 0x80000000u);
    }
    *d = __half2float(__ushort_as_half(iq_d<FMT>(block))) * iq<FMT>::BY;
    if constexpr (iq<FMT>::SIXTEENS) {
        scale_quants(q, bf16_twice((int)v.scale), r);
    } else {
        *d *= (float)v.scale;
#pragma unroll
        for (int i = 0; i < 4; i++)
            r[0][i] = q[i];
    }
}

/* Share of lane t of group g of a super-block. */
template <int FMT>
static __device__ __forceinline__ void load_k_lane(k_parts p, uint32_t g, uint32_t t,
                                                   uint32_t (&r)[fmt_block<FMT>::PARTS][4], float *d, fmt_min *m)
{
    uint32_t w[2];
    if constexpr (iq<FMT>::IS) {
        load_iq_lane<FMT>(p.head, g, t, r, d);
    } else if constexpr (FMT == FMT_FP8) {
        load_words(p.low + g % 2 * 32 + 8 * t, w);
        e4m3_of(w, r[0]);
        *d = *reinterpret_cast<const float *>(p.head);
    } else if constexpr (FMT == FMT_NVFP4) {
        /* Sixteen weights share a scale, which times a quant has no more than 8 bits: the products are exact. */
        const uint32_t s = p.head[4 + 2 * g + t / 2];
        const uint32_t scale = fma_bf16x2(((s & 0x80) << 8 | (s & 0x7f) << 4) * 0x10001u, 0x7b807b80u, 0);
        uint32_t q[4];
        load_words(p.low + g % 2 * 16 + t % 2 * 8, w);
        nibbles_of(w, t);
        e2m1_of(w[0], q);
        e2m1_of(w[1], q + 2);
        scale_quants(q, scale, r);
        *d = 0.5f * *reinterpret_cast<const float *>(p.head);
    } else if constexpr (FMT == FMT_INT4_G32 || FMT == FMT_INT4_G128) {
        load_words(p.low + g % 2 * 16 + t % 2 * 8, w);
        nibbles_of(w, t);
        const uint32_t head = FMT == FMT_INT4_G128
                                  ? *reinterpret_cast<const uint32_t *>(p.head)
                                  : (uint32_t) reinterpret_cast<const uint16_t *>(p.head)[g] << 16 | p.head[8 + g] << 8;
        quants_less(w, head >> 8 & 31, r[0]);
        *d = __uint_as_float(head & 0xffffe000u);
    } else if constexpr (FMT == FMT_IQ4_XS) {
        load_words(p.low + g % 2 * 16 + t % 2 * 8, w);
        nibbles_of(w, t);
        iq4_nl_pairs(w, r[0]);
        const uint32_t high = *reinterpret_cast<const uint16_t *>(p.head + 2);
        const int scale = (p.head[4 + g / 2] >> g % 2 * 4 & 15) | (high >> 2 * g & 3) << 4;
        *d = half_at(p.head) * (float)(64 * (scale - 32));
    } else if constexpr (FMT == FMT_Q2_K || FMT == FMT_Q3_K) {
        /* Sixteen weights share a scale, which times a quant has no more than 8 bits: the products are exact. */
        const uint32_t s = 2 * g + t / 2;
        uint32_t q[4], scale;
        load_words(p.low + 8 * t, w);
        w[0] = w[0] >> g % 4 * 2 & 0x03030303u;
        w[1] = w[1] >> g % 4 * 2 & 0x03030303u;
        if constexpr (FMT == FMT_Q3_K) {
            uint32_t h[2];
            load_words(p.high + 8 * t, h);
            w[0] |= (h[0] >> g & 0x01010101u) << 2;
            w[1] |= (h[1] >> g & 0x01010101u) << 2;
            scale = bf16_twice(((p.head[s % 8] >> s / 8 * 4 & 15) | (p.head[8 + s % 4] >> s / 4 * 2 & 3) << 4) - 32);
            *d = half_at(p.head + 12);
        } else {
            scale = bf16_twice(p.head[s] & 15);
            *d = half_at(p.head + 80);
            m->by = -half_at(p.head + 82);
            m->of = bf16_twice(p.head[s] >> 4);
        }
        quants_of<FMT == FMT_Q3_K ? 4 : 0>(w, q);
        scale_quants(q, scale, r);
    } else if constexpr (FMT == FMT_Q6_K) {
        const uint32_t quarter = g % 4;
        uint32_t h[2], q[4];
        load_words(p.low + quarter % 2 * 32 + 8 * t, w);
        load_words(p.high + 8 * t, h);
#pragma unroll
        for (int i = 0; i < 2; i++)
            w[i] = (w[i] >> quarter / 2 * 4 & 0x0f0f0f0fu) | (h[i] >> quarter * 2 & 0x03030303u) << 4;
        quants_of<32>(w, q);
        scale_quants(q, bf16_twice((int8_t)p.head[2 * g + t / 2]), r);
        *d = half_at(p.head + 16);
    } else {
        const uint2 v = *reinterpret_cast<const uint2 *>(p.low + 8 * t);
        w[0] = v.x >> g % 2 * 4 & 0x0f0f0f0fu;
        w[1] = v.y >> g % 2 * 4 & 0x0f0f0f0fu;
        if constexpr (FMT == FMT_Q5_K) {
            const uint2 h = *reinterpret_cast<const uint2 *>(p.high + 8 * t);
            w[0] |= (h.x >> g & 0x01010101u) << 4;
            w[1] |= (h.y >> g & 0x01010101u) << 4;
        }
        quants_of<0>(w, r[0]);
        const uint4 head = *reinterpret_cast<const uint4 *>(p.head);
        const uint32_t by = g % 4 * 8, sc = head.y >> by & 255, mn = head.z >> by & 255, more = head.w >> by & 255;
        const uint32_t scale = g < 4 ? sc & 63 : (more & 15) | sc >> 6 << 4;
        const uint32_t minimum = g < 4 ? mn & 63 : more >> 4 | mn >> 6 << 4;
        const float2 dm = __half22float2(*reinterpret_cast<const __half2 *>(&head.x));
        *d = dm.x * (float)scale;
        m->by = dm.y * -(float)minimum;
    }
}

#endif
