/* panels.cuh - activations as tiles want them: split once into bf16 hi and lo, in the order in which the matrix units take them.
 *
 * A *panel* is 8 tokens by 64 positions of K, hi and lo: 2 KiB. Panels of neighbouring tokens lie side by side, so that a tile's share of a
 * step of K is one piece of memory: [step of 64 positions][panel]. The tokens of an expert begin a panel; what is behind its last token in
 * its last panel is never looked at. The order within a panel is that of the code that reads it:
 * - tile_wgmma.cuh: a token's 64 positions are a row of 128 bytes, whose 16-byte piece p of token r is at p ^ r: 1 KiB of hi, then lo. Of
 *   each block of 32 positions piece i has the pairs i of the four lanes (frag.cuh).
 * - tile_mma.cuh: a block of 32 positions is 512 bytes of hi, then lo, 16 of each lane of a warp. */
#ifndef KERNELS_CUDA_PANELS_CUH
#define KERNELS_CUDA_PANELS_CUH

#include <cstdint>

#define PANEL_TOKENS 8
#define PANEL_COLS   64
#define PANEL_BYTES  2048

struct cuda_dev;
struct mm_params;

/* Panels that hold `pairs` tokens of n_experts buckets, or of 1: see panel_of_expert(). */
static inline uint64_t panels_for(uint64_t pairs, uint32_t n_experts)
{
    return pairs / PANEL_TOKENS + n_experts;
}

static inline uint64_t panels_bytes(uint64_t n_panels, uint32_t cols)
{
    return n_panels * ((cols + PANEL_COLS - 1) / PANEL_COLS) * PANEL_BYTES;
}

/* panels.cu. Whether the code that runs on the device is tile_wgmma.cuh. */
cudaError_t panels_for_wgmma(bool *ret);
/* Makes n_panels of p.x, at p.panels: of the tokens of a linear, or of the buckets that the launch of p takes. */
cudaError_t panels_make(cuda_dev *d, const mm_params &p, uint32_t n_panels);

/* The first panel of expert e, whose pairs begin at `start`. Leaves room for every bucket to begin a new one, without a look at the others. */
static __device__ __forceinline__ uint32_t panel_of_expert(uint32_t start, uint32_t e)
{
    return start / PANEL_TOKENS + e;
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define PANELS_FOR_WGMMA true
#define PANEL_LO         1024 /* from hi to lo */

/* Where position k < 64 of token r < 8 lies. */
static __device__ __forceinline__ uint32_t panel_at(uint32_t r, uint32_t k)
{
    return r * 128 + ((k / 32 * 4 + k % 8 / 2) ^ r) * 16 + k % 32 / 8 * 4 + k % 2 * 2;
}

/* The 64 positions as eight warps make them, 8 each: row i of warp w. A warp's lie side by side in the panel. */
static __device__ __forceinline__ uint32_t panel_row(uint32_t w, uint32_t i)
{
    return w / 4 * 32 + i / 2 * 8 + w % 4 * 2 + i % 2;
}
#else
#define PANELS_FOR_WGMMA false
#define PANEL_LO         512

static __device__ __forceinline__ uint32_t panel_at(uint32_t r, uint32_t k)
{
    return k / 32 * 1024 + (r * 4 + k % 32 / 8) * 16 + k % 8 * 2;
}

static __device__ __forceinline__ uint32_t panel_row(uint32_t w, uint32_t i)
{
    return w * 8 + i;
}
#endif

#endif
