/* iq.cuh - IQ1, IQ2 and IQ3: which eights, and their bytes, for blocks.cuh and weight.cuh. What a block holds: kernels/quant_iq.h. */
#ifndef KERNELS_CUDA_IQ_CUH
#define KERNELS_CUDA_IQ_CUH

#include "kernels/quant_iq.h"

template <int FMT> struct iq {
    static constexpr bool IS = FMT >= FMT_IQ2_XXS && FMT <= FMT_IQ1_M;
    static constexpr bool SHIFTED = FMT == FMT_IQ1_S || FMT == FMT_IQ1_M;
    static constexpr bool THREE = FMT == FMT_IQ3_XXS || FMT == FMT_IQ3_S;                       /* bits a code */
    static constexpr bool SIXTEENS = FMT == FMT_IQ2_XS || FMT == FMT_IQ2_S || FMT == FMT_IQ1_M; /* have a scale each */
    static constexpr uint32_t BYTES = FMT == FMT_IQ2_XXS   ? 66
                                      : FMT == FMT_IQ2_XS  ? 74
                                      : FMT == FMT_IQ2_S   ? 82
                                      : FMT == FMT_IQ3_XXS ? 98
                                      : FMT == FMT_IQ3_S   ? 110
                                      : FMT == FMT_IQ1_S   ? 50
                                                           : 56;
    static constexpr float BY = FMT == FMT_IQ3_S ? 1 : FMT == FMT_IQ3_XXS ? 0.25f : 0.125f;
};

template <int FMT> static __device__ __forceinline__ kern_iq iq_eight(const unsigned char *block, uint32_t e)
{
    return FMT == FMT_IQ2_XXS   ? kern_iq2_xxs(block, e)
           : FMT == FMT_IQ2_XS  ? kern_iq2_xs(block, e)
           : FMT == FMT_IQ2_S   ? kern_iq2_s(block, e)
           : FMT == FMT_IQ3_XXS ? kern_iq3_xxs(block, e)
           : FMT == FMT_IQ3_S   ? kern_iq3_s(block, e)
           : FMT == FMT_IQ1_S   ? kern_iq1_s(block, e)
                                : kern_iq1_m(block, e);
}

template <int FMT> static __device__ __forceinline__ uint16_t iq_d(const unsigned char *block)
{
    return FMT == FMT_IQ1_M ? kern_iq1_m_d(block) : *reinterpret_cast<const uint16_t *>(block);
}

/* The bytes of four codes: |q|, of IQ1 8 * (code + 1). */
template <int FMT> static __device__ __forceinline__ uint32_t iq_bytes(uint32_t codes)
{
    if constexpr (iq<FMT>::THREE) {
        uint32_t at = (codes & 0x3f) | (codes & 0xfc0) << 2;
        at = (at & 0x0707) | (at & 0x3838) << 1;
        return FMT == FMT_IQ3_S ? __byte_perm(0x07050301u, 0x0f0d0b09u, at) : __byte_perm(0x1c140c04u, 0x3e342c24u, at);
    } else {
        uint32_t at = ((codes & 0xff) | codes << 4) & 0x0f0f;
        at = (at | at << 2) & 0x3333;
        return __byte_perm(iq<FMT>::SHIFTED ? 0x00181008u : 0x002b1908u, 0, at);
    }
}

#endif
