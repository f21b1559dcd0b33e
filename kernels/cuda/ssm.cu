/* ssm.cu - Mamba2: convolution, recurrence and gated norm, between the products of a layer.
 *
 * Tokens of one sequence follow one another, columns of S do not know each other. For every SSM_PIECE tokens there are three kernels: conv.cuh's,
 * parallel over tokens; scan, which keeps S in registers, 64 columns of a head a block, and walks through the tokens of a sequence; norm,
 * a block a token and group. Where every sequence has one token they are the same.
 *
 * Bits: row r of S belongs to lane part r % 4; a part's rows are added in ascending order, then the parts as a tree. S itself is only
 * multiplied and added to. So a chunk, its tokens one by one, and a piece's border give the same bits. */
#include "kernels/cuda/conv.cuh"
#include "kernels/cuda/cuda_priv.h"
#include "kernels/cuda/reduce.cuh"

#define SSM_PIECE  2048
#define SSM_COLS   64 /* of a block: eight in a warp, each by four lanes */
#define SSM_STATE  256
#define SSM_STAGED 8 /* tokens whose B, C and u are in shared memory at a time */
#define SSM_NORM   256

static __host__ __device__ __forceinline__ uint32_t inner_of(const kern_ssm_geom &g)
{
    return g.n_heads * g.head_dim;
}

static __host__ __device__ __forceinline__ uint32_t channels_of(const kern_ssm_geom &g)
{
    return inner_of(g) + 2 * g.n_groups * g.d_state;
}

static __device__ __forceinline__ float conv_input(const kern_ssm_args &a, uint32_t t, uint32_t channel)
{
    return a.x[(size_t)t * a.x_stride + inner_of(a.geom) + channel];
}

static __device__ __forceinline__ void conv_store(const kern_ssm_args &a, uint32_t first, uint32_t t, uint32_t channel,
                                                  float sum)
{
    if (a.conv_bias)
        sum += a.conv_bias[channel];
    static_cast<float *>(a.scratch)[(size_t)(t - first) * channels_of(a.geom) + channel] = swiglu(sum, 1.0f);
}

static __device__ __forceinline__ void conv_pad(const kern_ssm_args &, uint32_t, uint32_t)
{
}

struct ssm_smem {
    struct {
        float b[SSM_STATE], c[SSM_STATE], u[SSM_COLS], d, decay;
    } token[SSM_STAGED];
};

/* ROWS of S for each lane: d_state is at most four times that. */
template <int ROWS>
__global__ void __launch_bounds__(SSM_COLS * 4)
    ssm_scan_kernel(const __grid_constant__ kern_ssm_args a, uint32_t first, uint32_t n)
{
    __shared__ ssm_smem sm;
    const kern_ssm_geom &g = a.geom;
    const uint32_t part = threadIdx.x / 8 % 4, in_block = threadIdx.x / 32 * 8 + threadIdx.x % 8;
    const uint32_t head = blockIdx.y, col = blockIdx.x * SSM_COLS + in_block, hd = g.head_dim, ds = g.d_state;
    const uint32_t inner = inner_of(g), channels = channels_of(g), group = head / (g.n_heads / g.n_groups);
    const bool on = col < hd;
    overlap_begin();
    uint32_t begin, end;
    const uint32_t seq = run_of(a, a.run_start ? blockIdx.z : first + blockIdx.z, &begin, &end);
    begin = max(begin, first);
    end = min(end, first + n);
    if (seq == UINT32_MAX || begin >= end)
        return;

    float *const s0 = state_of(a, seq) + (size_t)(g.conv - 1) * channels + (size_t)head * ds * hd + col;
    const bool fresh = a.token_pos[begin] == 0;
    float s[ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        const uint32_t row = part + 4 * i;
        s[i] = !fresh && on && row < ds ? s0[(size_t)row * hd] : 0.0f;
    }
    const float *conv = static_cast<const float *>(a.scratch);
    for (uint32_t t0 = begin; t0 < end; t0 += SSM_STAGED) {
        const uint32_t count = min(end - t0, (uint32_t)SSM_STAGED);
        __syncthreads(); /* nobody reads the tokens before */
        for (uint32_t i = 0; i < count; i++) {
            const float *row = conv + (size_t)(t0 + i - first) * channels, *b = row + inner + group * ds;
            auto &token = sm.token[i];
            /* Rows that are not there are zero, here and in S. */
            for (uint32_t r = threadIdx.x; r < 4 * ROWS; r += SSM_COLS * 4) {
                token.b[r] = r < ds ? b[r] : 0.0f;
                token.c[r] = r < ds ? b[g.n_groups * ds + r] : 0.0f;
            }
            const uint32_t c = blockIdx.x * SSM_COLS + threadIdx.x;
            if (threadIdx.x < SSM_COLS)
                token.u[threadIdx.x] = c < hd ? row[head * hd + c] : 0.0f;
            if (threadIdx.x == SSM_COLS) {
                const float dt =
                    a.x[(size_t)(t0 + i) * a.x_stride + inner + channels + head] + a.dt_bias[head];
                token.d = dt > 20.0f ? dt : log1pf(expf(dt)); /* softplus: beyond 20 both are the same float */
                token.decay = expf(__fmul_rn(a.neg_exp_a[head], token.d));
            }
        }
        __syncthreads();
        for (uint32_t k = 0; k < count; k++) {
            const auto &token = sm.token[k];
            const float decay = token.decay, u = token.u[in_block], du = __fmul_rn(token.d, u);
            float o = 0;
#pragma unroll
            for (int i = 0; i < ROWS; i++) {
                s[i] = __fmaf_rn(token.b[part + 4 * i], du, __fmul_rn(decay, s[i]));
                o = __fmaf_rn(token.c[part + 4 * i], s[i], o);
            }
            o += __shfl_xor_sync(~0u, o, 8);
            o += __shfl_xor_sync(~0u, o, 16);
            if (on && part == 0)
                a.y[(size_t)(t0 + k) * inner + head * hd + col] = __fmaf_rn(a.skip[head], u, o);
        }
    }
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        const uint32_t row = part + 4 * i;
        if (on && row < ds)
            s0[(size_t)row * hd] = s[i];
    }
}

/* y has o. */
__global__ void __launch_bounds__(SSM_NORM)
    ssm_norm_kernel(const __grid_constant__ kern_ssm_args a, uint32_t first)
{
    __shared__ float sums[32];
    const uint32_t t = first + blockIdx.x, n = inner_of(a.geom) / a.geom.n_groups, at = blockIdx.y * n;
    overlap_begin();
    float *y = a.y + (size_t)t * inner_of(a.geom) + at;
    const float *z = a.x + (size_t)t * a.x_stride + at;
    const bool padding = a.token_seq[t] == UINT32_MAX;
    float squares = 0;
    for (uint32_t i = threadIdx.x; i < n; i += SSM_NORM) {
        y[i] = padding ? 0.0f : swiglu(z[i], y[i]);
        squares = __fmaf_rn(y[i], y[i], squares);
    }
    if (padding)
        return;
    const float r = 1.0f / sqrtf(block_sum(squares, sums) / (float)n + a.norm_eps);
    for (uint32_t i = threadIdx.x; i < n; i += SSM_NORM)
        y[i] = y[i] * r * a.norm[at + i];
}

/* --- choice -------------------------------------------------------------------------------------------------------------- */

const char *cuda_ssm_refuses(const kern_ssm_geom *g)
{
    if (!g->n_groups || !g->n_heads || g->n_heads % g->n_groups || !g->head_dim || g->conv < 2 || g->conv > KERN_MAX_CONV)
        return "Mamba2 of such a number of heads, or a convolution of more than 4 tokens, or of one";
    return !g->d_state || g->d_state > SSM_STATE ? "Mamba2 whose states are of more than 256" : nullptr;
}

uint64_t cuda_ssm_scratch_bytes(kern_dev *, uint32_t max_tokens, const kern_ssm_geom *g)
{
    const uint64_t n = max_tokens < SSM_PIECE ? max_tokens : SSM_PIECE;
    return n * channels_of(*g) * sizeof(float);
}

static void launch_piece(cuda_dev *d, const kern_ssm_args *a, uint32_t first, uint32_t n)
{
    const kern_ssm_geom &g = a->geom;
    const uint32_t runs = a->run_start ? a->n_seqs : n, blocks = (channels_of(g) + CONV_THREADS - 1) / CONV_THREADS;
    (void)cuda_start(d, conv_kernel<kern_ssm_args>, dim3(blocks, (n + CONV_THREAD_TOKENS - 1) / CONV_THREAD_TOKENS),
                     CONV_THREADS, 0, *a, first, n, cuda_take_mark(d));
    void (*scan)(kern_ssm_args, uint32_t, uint32_t) = g.d_state <= 64    ? ssm_scan_kernel<16>
                                                      : g.d_state <= 128 ? ssm_scan_kernel<32>
                                                                         : ssm_scan_kernel<64>;
    if (runs)
        (void)cuda_start(d, scan, dim3((g.head_dim + SSM_COLS - 1) / SSM_COLS, g.n_heads, runs), SSM_COLS * 4, 0, *a,
                         first, n);
    (void)cuda_start(d, ssm_norm_kernel, dim3(n, g.n_groups), SSM_NORM, 0, *a, first);
}

kern_status cuda_ssm(kern_dev *kd, const kern_ssm_args *a)
{
    cuda_dev *d = cuda_of(kd);
    const char *why = cuda_ssm_refuses(&a->geom);
    if (why)
        return cuda_unsupported(d, why);
    if (!a->n_tokens)
        return KERN_OK;
    for (uint32_t first = 0; first < a->n_tokens; first += SSM_PIECE)
        launch_piece(d, a, first, a->n_tokens - first < SSM_PIECE ? a->n_tokens - first : SSM_PIECE);
    if (a->run_start && a->n_seqs)
        (void)cuda_start(d, conv_keep_kernel<kern_ssm_args>,
                         dim3((channels_of(a->geom) + CONV_THREADS - 1) / CONV_THREADS, a->n_seqs), CONV_THREADS, 0, *a);
    return cuda_launched(d, "ssm");
}
