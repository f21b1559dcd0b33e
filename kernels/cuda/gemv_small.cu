/* gemv_small.cu - linear layers of up to 8 tokens with weights of formats whose blocks' products are finished (frag.cuh). */
#include "kernels/cuda/gemv_launch.cuh"

cudaError_t gemv_launch_small(cuda_dev *d, const mm_params &p)
{
    switch (p.fmt) {
    case FMT_MXFP4: return gemv_launch_format<FMT_MXFP4>(d, p, nullptr);
    case FMT_Q4_0: return gemv_launch_format<FMT_Q4_0>(d, p, nullptr);
    case FMT_Q4_1: return gemv_launch_format<FMT_Q4_1>(d, p, nullptr);
    case FMT_Q5_0: return gemv_launch_format<FMT_Q5_0>(d, p, nullptr);
    case FMT_Q5_1: return gemv_launch_format<FMT_Q5_1>(d, p, nullptr);
    case FMT_IQ4_NL: return gemv_launch_format<FMT_IQ4_NL>(d, p, nullptr);
    case FMT_Q4_K: return gemv_launch_format<FMT_Q4_K>(d, p, nullptr);
    case FMT_Q5_K: return gemv_launch_format<FMT_Q5_K>(d, p, nullptr);
    case FMT_Q6_K: return gemv_launch_format<FMT_Q6_K>(d, p, nullptr);
    case FMT_Q2_K: return gemv_launch_format<FMT_Q2_K>(d, p, nullptr);
    case FMT_Q3_K: return gemv_launch_format<FMT_Q3_K>(d, p, nullptr);
    case FMT_IQ4_XS: return gemv_launch_format<FMT_IQ4_XS>(d, p, nullptr);
    case FMT_FP8: return gemv_launch_format<FMT_FP8>(d, p, nullptr);
    case FMT_INT4_G32: return gemv_launch_format<FMT_INT4_G32>(d, p, nullptr);
    case FMT_NVFP4: return gemv_launch_format<FMT_NVFP4>(d, p, nullptr);
    case FMT_INT4_G128: return gemv_launch_format<FMT_INT4_G128>(d, p, nullptr);
    case FMT_IQ2_XXS: return gemv_launch_format<FMT_IQ2_XXS>(d, p, nullptr);
    case FMT_IQ2_XS: return gemv_launch_format<FMT_IQ2_XS>(d, p, nullptr);
    case FMT_IQ2_S: return gemv_launch_format<FMT_IQ2_S>(d, p, nullptr);
    case FMT_IQ3_XXS: return gemv_launch_format<FMT_IQ3_XXS>(d, p, nullptr);
    case FMT_IQ3_S: return gemv_launch_format<FMT_IQ3_S>(d, p, nullptr);
    case FMT_IQ1_S: return gemv_launch_format<FMT_IQ1_S>(d, p, nullptr);
    case FMT_IQ1_M: return gemv_launch_format<FMT_IQ1_M>(d, p, nullptr);
    default: return cudaErrorInvalidValue;
    }
}
