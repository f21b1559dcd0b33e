/* kernels.h - the math of expertd: one table of operations, filled by a backend (kernels/cpu, kernels/cuda).
 *
 * Rules that every backend keeps
 *  1. All operations are asynchronous in stream order and touch only device memory named in their arguments, except where a
 *     field says [host]. Sizes and pointers are fixed at the call; everything that changes between steps (ids, positions, block
 *     tables, page addresses, bucket sizes) is read from device memory when the operation runs. A backend that can record
 *     (`graph_begin`) may therefore replay a whole step.
 *  2. A result row depends on nothing but its own inputs: not on n_tokens, on its place in the batch, on its bucket's size, nor on
 *     the tier a page lies in. Sums over K are added in one fixed order. It is tested bit by bit.
 *  3. Activations are float32, row-major. Weights stay in their stored format.
 *  4. Nothing is allocated in an operation; scratch comes with the arguments.
 *
 * The CPU backend's device memory is ordinary memory: device pointers are then host pointers.
 * Thread: a kern_dev is used by one thread at a time, except where a function says otherwise. */
#ifndef KERNELS_KERNELS_H
#define KERNELS_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/quant.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum kern_status {
    KERN_OK,
    KERN_NOMEM,       /* memory of the device or the host */
    KERN_DEVICE,      /* a driver or device fault: kern_ops.error has the text */
    KERN_UNSUPPORTED, /* format, shape or machine */
    KERN_ARG,         /* a bug of the caller */
} kern_status;

typedef struct kern_dev kern_dev;     /* one opened device with its stream, pool and rows */
typedef struct kern_graph kern_graph; /* a recorded step */
typedef struct kern_ops kern_ops;

/* A weight matrix [rows][cols]; row r starts at data + r * row_bytes. `data` is a device-usable address. */
typedef struct kern_mat {
    const void *data;
    uint64_t row_bytes;
    uint32_t rows, cols;
    kern_fmt fmt;
} kern_mat;

/* y[t] = table[ids[t]] * scale */
typedef struct kern_embed_args {
    float *y; /* [n_tokens][cols] */
    kern_mat table;
    const uint32_t *ids; /* [n_tokens], each < rows (checked by the caller) */
    uint32_t n_tokens;
    float scale;
} kern_embed_args;

/* y = x / rms(x) * weight; the mean of squares is summed in float32. Where there is add_to, add_to = (add_to + y) * scale, too. */
typedef struct kern_rmsnorm_args {
    float *y; /* [n_tokens][dim], may be x */
    const float *x;
    const float *weight; /* [dim] */
    uint32_t n_tokens, dim;
    float eps;
    float *add_to; /* [n_tokens][dim], neither x nor y; or NULL */
    float scale;
} kern_rmsnorm_args;

/* y = (x - mean(x)) / sqrt(variance(x) + eps) * weight + bias, in float32. */
typedef struct kern_layernorm_args {
    float *y; /* [n_tokens][dim], not x */
    const float *x;
    const float *weight, *bias; /* [dim] */
    const uint32_t *row_idx;    /* [n_tokens] or NULL: x row of output t */
    uint32_t n_tokens, dim;
    float eps;
} kern_layernorm_args;

/* y[t][0..rows) (+)= W x[t] + bias. With `norm`, x is normalised first as by rmsnorm, and the rows so made are left in `normed`. */
typedef struct kern_linear_args {
    float *y;       /* [n_tokens] rows, y_stride floats apart */
    const float *x; /* [n_tokens] rows, x_stride floats apart */
    kern_mat w;
    const float *bias; /* [rows] or NULL */
    uint32_t n_tokens, x_stride, y_stride;
    bool accumulate;         /* add to y: the residual connection */
    const uint32_t *row_idx; /* [n_tokens] or NULL: x row of output t (last tokens before the LM head) */
    const float *norm;       /* [cols] or NULL */
    float *normed;           /* [n_tokens][cols] with norm; not x */
    float norm_eps;
    void *scratch; /* kern_ops.linear_scratch_bytes(), or NULL: many tokens take longer then */
} kern_linear_args;

/* A matrix for each head: y[t][h][0..rows) = W_h x[t][h][0..cols). The `tail` values that follow in x[t][h] are copied behind them. */
typedef struct kern_linear_heads_args {
    float *y;            /* not x */
    const float *x;      /* strides are in floats */
    kern_mat w;          /* of head 0 */
    uint64_t head_bytes; /* from one head's matrix to the next */
    uint32_t n_tokens, n_heads, tail;
    uint32_t x_stride, y_stride;           /* of a token */
    uint32_t x_head_stride, y_head_stride; /* of a head */
} kern_linear_heads_args;

/* What an FFN makes of g and u, its gate and up. */
typedef enum kern_act {
    KERN_SWIGLU,         /* silu(g) * u */
    KERN_SWIGLU_CLAMPED, /* g at most act_limit, u within +-act_limit: g * sigmoid(act_alpha * g) * (u + 1) (gpt-oss) */
    KERN_SWIGLU_LIMITED, /* silu(g) at most act_limit, times u within +-act_limit (Step-3.5) */
    KERN_GEGLU,          /* gelu(g) * u by tanh: g * (1 + tanh(sqrt(2 / pi) * (g + 0.044715 g^3))) / 2 * u (Gemma) */
    KERN_RELU2, /* there is no gate: what stand for gate and up are the two halves of up's rows; max(v, 0)^2 of each, one half behind the other */
} kern_act;

/* 1 + tanh(v) is twice the sigmoid of 2 v: gelu(g) by tanh is g * sigmoid(g * (KERN_GELU_A + KERN_GELU_B * g * g)). */
#define KERN_GELU_A 1.5957691216057308f   /* 2 sqrt(2 / pi) */
#define KERN_GELU_B 0.071354816272600806f /* that times 0.044715 */

/* y = act(gate, up) for a dense FFN, but for KERN_SWIGLU_CLAMPED */
typedef struct kern_swiglu_args {
    float *y;             /* [n_tokens][dim]; KERN_RELU2: [n_tokens][2 * dim] */
    const float *gate_up; /* [n_tokens][2 * dim]: gate, then up */
    uint32_t n_tokens, dim;
    const float *row_gate; /* [n_tokens] or NULL: a row is multiplied by the sigmoid of its own */
    kern_act act;
    float act_limit; /* of KERN_SWIGLU_LIMITED */
} kern_swiglu_args;

/* Where Q and K are normed as a whole, not head by head: Q of a token is normalised as by rmsnorm, and so is K; then all values of Q, K and V
 * are brought to within -clip .. clip. */
typedef struct kern_qkv_norm_args {
    float *qkv;                   /* [n_tokens][q_width + 2 * kv_width], in place */
    const float *q_norm, *k_norm; /* [q_width], [kv_width]; both or neither */
    uint32_t n_tokens, q_width, kv_width;
    float eps, clip; /* 0: no clip */
} kern_qkv_norm_args;

/* A KV block holds block_size tokens of some layers. Its address is block_addr[id]; layer l begins at l * layer_bytes:
 * K [n_kv_heads][block_size][head_dim], then V the same, in fmt. A block may lie in VRAM or mapped host memory.
 * With v_dim (latent attention) only K is kept, and V is its first v_dim columns. With index_dim the keys of an indexer, [block_size][index_dim] in
 * fmt, come behind these.
 * Q8_0 is rounded in one way everywhere, in float32: d is the largest magnitude of the 32 values divided by 127, as a half; a quant is
 * v / d, to the nearest whole number (ties to even), within +-127, and 0 where d is 0. Where d would be infinite or NaN it is NaN
 * (0x7e00), and the quants are 0. */
typedef struct kern_kv {
    const uint64_t *block_addr;  /* [n_blocks] device */
    const uint32_t *block_table; /* [n_seqs][max_blocks] device: block ids in order of position */
    uint32_t max_blocks;         /* row length of block_table */
    uint32_t block_size;
    uint64_t layer_bytes;
    uint32_t n_kv_heads, head_dim;
    uint32_t v_dim;     /* 0: V is of its own and as wide as K */
    uint32_t index_dim; /* 0: there are no such keys */
    kern_fmt fmt;
} kern_kv;

/* Bytes of K and V in a layer of a block: where an indexer's keys begin. */
static inline uint64_t kern_kv_index_at(const kern_kv *kv)
{
    return (kv->v_dim ? 1ull : 2ull) * kv->n_kv_heads * kv->block_size * kern_row_bytes(kv->fmt, kv->head_dim);
}

/* Else every backend says KERN_UNSUPPORTED. */
static inline bool kern_kv_is_known(const kern_kv *kv)
{
    return kv->fmt == FMT_F16 || kv->fmt == FMT_F32 ||
           (kv->fmt == FMT_Q8_0 && kern_cols_fit(kv->fmt, kv->head_dim) && kern_cols_fit(kv->fmt, kv->v_dim) &&
            kern_cols_fit(kv->fmt, kv->index_dim));
}

/* Per-head RMS norm (optional), rotary embedding of Q and K, and the store of K and V into the cache.
 * With kv.v_dim the rows of qkv hold no V; q_norm and v_norm are NULL, k_norm is of K's first v_dim columns, and the rot_dim columns behind those
 * are rotated, in Q and K alike; norm_last is not known. */
typedef struct kern_rope_kv_args {
    float *qkv; /* [n_tokens][(n_heads + 2 * n_kv_heads) * head_dim]: Q in place, K and V stored to the cache */
    const float *q_norm, *k_norm, *v_norm; /* [head_dim] or NULL */
    float norm_eps;
    bool norm_last;        /* Q and K are normed behind the rotation (Hunyuan), not before it */
    const float *inv_freq; /* [rot_dim / 2] device */
    float rope_scale;      /* attention factor of YaRN, multiplies cos and sin */
    uint32_t rot_dim;      /* first rot_dim of each head are rotated, 0: none */
    bool interleaved;      /* pairs are (2i, 2i + 1) as in GPT-J, else halves (i, i + rot_dim / 2) as in NeoX */
    /* Not 0: Q is multiplied by 1 + grow log(1 + floor((position + 1) / grow_every)) in the end (Llama 4); not known with kv.v_dim. */
    float grow, grow_every;
    const uint32_t *token_seq; /* [n_tokens] row of block_table; UINT32_MAX: padding row, skipped */
    const uint32_t *token_pos; /* [n_tokens] */
    uint32_t n_tokens, n_heads, layer;
    kern_kv kv;
} kern_rope_kv_args;

/* Causal attention over the cache, the rows' own K and V included (stored before). Softmax is computed over fixed splits of
 * KERN_ATTN_SPLIT positions, each with its own running maximum, merged in order of position: so that one token alone, a chunk of a
 * prompt, and any split of the work give the same bits. */
#define KERN_ATTN_SPLIT 512
typedef struct kern_attn_args {
    float *o;         /* [n_tokens][n_heads * head_dim]; with kv.v_dim [n_tokens][n_heads * v_dim] */
    const float *qkv; /* rows qkv_stride floats apart, Q first */
    uint32_t qkv_stride;
    const uint32_t *token_seq, *token_pos; /* [n_tokens] device; as in rope_kv */
    uint32_t n_tokens, n_heads, layer;
    uint32_t max_context; /* upper bound of token_pos + 1 in this call (of the bucket, when recorded) */
    uint32_t window;      /* 0: all; else the last `window` positions, own included */
    bool chunked;         /* or with this: those of the own chunk, which begin at multiples of `window` */
    float scale;
    const float *sinks; /* [n_heads] or NULL */
    /* [n_tokens][top_k] of kern_index_args, or NULL: a token sees these positions alone, and splits are of KERN_ATTN_SPLIT of them. So one that may
     * choose all has the bits of one that is not asked to choose. Only with kv.v_dim, and without a window. */
    const uint32_t *chosen;
    uint32_t top_k;
    kern_kv kv;
    void *scratch; /* kern_ops.attn_scratch_bytes() */
    /* [host], optional hints; a backend may ignore them: tokens of one sequence are adjacent, runs of queries begin at
     * seq_start[i] (n_seqs + 1 entries). NULL when recorded. */
    const uint32_t *seq_start;
    uint32_t n_seqs;
    /* Not NULL: rope_kv is done first, with these arguments, which belong to the same rows and layer. Q in qkv may then be left as it was. */
    const kern_rope_kv_args *rope;
    bool one_each; /* no two tokens are of one sequence, except those that rope skips as padding */
} kern_attn_args;

/* The indexer of DeepSeek Sparse Attention (arXiv 2512.02556), by which a token chooses the positions that attention sees.
 * Its rotation and store: the first rot_dim columns of K and of each of Q's heads are rotated, and K goes to the cache. */
typedef struct kern_index_rope_args {
    float *q;              /* [n_tokens][n_heads][kv.index_dim], in place */
    const float *k;        /* [n_tokens][kv.index_dim] */
    const float *inv_freq; /* this and what follows as in kern_rope_kv_args */
    float rope_scale;
    uint32_t rot_dim;
    bool interleaved;
    const uint32_t *token_seq, *token_pos;
    uint32_t n_tokens, n_heads, layer; /* n_heads 0: K alone */
    kern_kv kv;
} kern_index_rope_args;

/* The choice. The score of a position is the sum over the heads, in order, of weight * max(q k, 0). Chosen are the top_k positions of the highest score
 * among 0 .. token_pos, or all where there are no more: of equal scores the lower position, NaN last. In ascending order; the rest of a row is
 * not written. */
typedef struct kern_index_args {
    uint32_t *chosen;     /* [n_tokens][top_k] */
    const float *q;       /* [n_tokens][n_heads][kv.index_dim] */
    const float *weights; /* [n_tokens][n_heads] */
    const uint32_t *token_seq, *token_pos;
    uint32_t n_tokens, n_heads, top_k, layer;
    uint32_t max_context; /* as in kern_attn_args */
    kern_kv kv;
    void *scratch; /* kern_ops.index_scratch_bytes() */
} kern_index_args;

/* Positions that a token sees of those up to its own. */
static inline uint32_t kern_attn_seen(const kern_attn_args *a, uint32_t pos)
{
    return a->chosen && pos >= a->top_k ? a->top_k : pos + 1;
}

/* Tokens that a causal convolution over time sees at most. */
#define KERN_MAX_CONV 4

/* Gated DeltaNet (arXiv 2412.06464), the part between the products. Over each channel of q, k and v a causal convolution of its last `conv` inputs,
 * then silu; q and k of each head divided by sqrt(sum of squares + 1e-6), q also by sqrt(k_dim). Then for each value head and its
 * key head, token by token, with g = neg_exp_a * softplus(a + dt_bias) and beta = sigmoid(b):
 *   S = exp(g) S;  S += k (beta (v - S^T k))^T;  o = S^T q;  y = o / rms(o) * norm * silu(z)
 * by_channel is Kimi Delta Attention (arXiv 2510.26692): a, dt_bias and so g are of each channel of k, exp(g) multiplying the rows of S, and
 * y = o / rms(o) * norm * sigmoid(z). Its value heads are as many as its key heads. */
typedef struct kern_delta_geom {
    uint32_t n_k_heads, n_v_heads, k_dim, v_dim; /* n_v_heads is a multiple of n_k_heads */
    uint32_t conv;                               /* 1 .. KERN_MAX_CONV */
    bool tiled; /* value head h uses key head h % n_k_heads (Qwen3.5 in GGUF); else h / (n_v_heads / n_k_heads) */
    bool by_channel;
} kern_delta_geom;

static inline uint32_t kern_delta_k_head(const kern_delta_geom *g, uint32_t v_head)
{
    return g->tiled ? v_head % g->n_k_heads : v_head / (g->n_v_heads / g->n_k_heads);
}

/* Channels of the convolution. */
static inline uint32_t kern_delta_channels(const kern_delta_geom *g)
{
    return 2 * g->n_k_heads * g->k_dim + g->n_v_heads * g->v_dim;
}

/* Of a and dt_bias. */
static inline uint32_t kern_delta_decays(const kern_delta_geom *g)
{
    return g->n_v_heads * (g->by_channel ? g->k_dim : 1);
}

/* Floats of a row of x: q [n_k_heads][k_dim], k the same, v [n_v_heads][v_dim], z the same, b [n_v_heads], a [kern_delta_decays()]. */
static inline uint32_t kern_delta_width(const kern_delta_geom *g)
{
    return kern_delta_channels(g) + g->n_v_heads * (g->v_dim + 1) + kern_delta_decays(g);
}

/* Floats of what a sequence keeps of a layer: inputs of the convolution [conv - 1][channels], oldest first, then S [n_v_heads][k_dim][v_dim]. */
static inline uint64_t kern_delta_state_floats(const kern_delta_geom *g)
{
    return (uint64_t)(g->conv - 1) * kern_delta_channels(g) + (uint64_t)g->n_v_heads * g->k_dim * g->v_dim;
}

/* A token of position 0 finds a state of zeros, whatever lies there. Tokens of a sequence are adjacent and in order of position. Padding
 * rows change no state; their y is 0. */
typedef struct kern_delta_args {
    float *y;       /* [n_tokens][n_v_heads * v_dim] */
    const float *x; /* rows x_stride floats apart */
    uint32_t n_tokens, x_stride;
    kern_delta_geom geom;
    const float *conv_w;    /* [channels][conv]; the last one is of the token itself */
    const float *neg_exp_a; /* [n_v_heads]: -exp(A_log) */
    const float *dt_bias;   /* [kern_delta_decays()] */
    const float *norm;      /* [v_dim] */
    float norm_eps;
    const uint32_t *token_seq, *token_pos; /* [n_tokens]; UINT32_MAX in token_seq: padding */
    const uint32_t *seq_slot;              /* [n_seqs]: slot of the tokens with this token_seq */
    /* [n_seqs + 1]: first token of each sequence; a hint, since token_seq says the same. NULL: no two tokens are of one sequence (recorded
     * steps). */
    const uint32_t *run_start;
    uint32_t n_seqs;
    void *state; /* slot s: this layer's state lies at state + s * slot_bytes */
    uint64_t slot_bytes;
    void *scratch; /* kern_ops.delta_scratch_bytes() */
} kern_delta_args;

/* A gated short convolution (LFM2), the part between the products. A row of x is b, c and v, each [channels]. Over each channel a causal
 * convolution of the last `conv` values of b v; y is c times that. */
typedef struct kern_shortconv_geom {
    uint32_t channels, conv; /* conv: 2 .. KERN_MAX_CONV */
} kern_shortconv_geom;

/* Floats of a row of x. */
static inline uint32_t kern_shortconv_width(const kern_shortconv_geom *g)
{
    return 3 * g->channels;
}

/* Floats of what a sequence keeps of a layer: values of b v [conv - 1][channels], oldest first. */
static inline uint64_t kern_shortconv_state_floats(const kern_shortconv_geom *g)
{
    return g->conv ? (uint64_t)(g->conv - 1) * g->channels : 0;
}

/* Tokens, padding, slots and states as in kern_delta_args. */
typedef struct kern_shortconv_args {
    float *y;       /* [n_tokens][channels] */
    const float *x; /* rows x_stride floats apart */
    uint32_t n_tokens, x_stride;
    kern_shortconv_geom geom;
    const float *conv_w; /* [channels][conv]; the last one is of the token itself */
    const uint32_t *token_seq, *token_pos;
    const uint32_t *seq_slot;
    const uint32_t *run_start;
    uint32_t n_seqs;
    void *state;
    uint64_t slot_bytes;
} kern_shortconv_args;

/* Mamba2 (arXiv 2405.21060), the part between the products. A row of x is z [n_heads][head_dim]; u the same, B and C [n_groups][d_state]
 * each, these three being the channels of the convolution; dt [n_heads]. Over each channel a causal convolution of its last `conv` inputs, its
 * bias, silu. Then for each head and its group, head h / (n_heads / n_groups), token by token, with d = softplus(dt + dt_bias):
 *   S = exp(neg_exp_a d) S + B (d u)^T;  o = S^T C + skip u
 * and over the heads of each group y = v / rms(v) * norm, where v = o silu(z). */
typedef struct kern_ssm_geom {
    uint32_t n_heads, n_groups, head_dim, d_state; /* n_heads is a multiple of n_groups */
    uint32_t conv;                                 /* 2 .. KERN_MAX_CONV */
} kern_ssm_geom;

static inline uint32_t kern_ssm_inner(const kern_ssm_geom *g)
{
    return g->n_heads * g->head_dim;
}

static inline uint32_t kern_ssm_channels(const kern_ssm_geom *g)
{
    return kern_ssm_inner(g) + 2 * g->n_groups * g->d_state;
}

static inline uint32_t kern_ssm_width(const kern_ssm_geom *g)
{
    return kern_ssm_inner(g) + kern_ssm_channels(g) + g->n_heads;
}

/* Inputs of the convolution [conv - 1][channels], oldest first, then S [n_heads][d_state][head_dim]. */
static inline uint64_t kern_ssm_state_floats(const kern_ssm_geom *g)
{
    return g->conv ? (uint64_t)(g->conv - 1) * kern_ssm_channels(g) + (uint64_t)kern_ssm_inner(g) * g->d_state : 0;
}

/* Tokens, padding, slots and states as in kern_delta_args. */
typedef struct kern_ssm_args {
    float *y;       /* [n_tokens][n_heads * head_dim] */
    const float *x; /* rows x_stride floats apart */
    uint32_t n_tokens, x_stride;
    kern_ssm_geom geom;
    const float *conv_w, *conv_bias; /* [channels][conv], the last one is of the token itself; [channels] or NULL */
    const float *neg_exp_a;          /* [n_heads]: -exp(A_log) */
    const float *dt_bias, *skip;     /* [n_heads] */
    const float *norm;               /* [n_heads * head_dim] */
    float norm_eps;
    const uint32_t *token_seq, *token_pos;
    const uint32_t *seq_slot;
    const uint32_t *run_start;
    uint32_t n_seqs;
    void *state;
    uint64_t slot_bytes;
    void *scratch; /* kern_ops.ssm_scratch_bytes() */
} kern_ssm_args;

/* y[t][h][i] *= sigmoid(gate[t][h][i]), or softplus of that: attention whose result is gated. Strides are in floats. With `pick` all i of a head have
 * the one gate [t][h][pick[t]]: what a token gives its expert, by the logit that chose it (Llama 4). */
typedef struct kern_gate_args {
    float *y;
    const float *gate;
    uint32_t n_tokens, n_heads, head_dim;
    uint32_t y_stride, gate_stride; /* of a token; y's heads lie side by side */
    uint32_t gate_head_stride;
    bool per_head;        /* all of a head has the gate gate[t][h][0] */
    bool softplus;        /* log(1 + exp(v)) in place of the sigmoid (Laguna) */
    const uint32_t *pick; /* [n_tokens] or NULL */
} kern_gate_args;

/* Brings one layer of KV blocks from where they lie to device memory: block e.block of from_addr is copied to block to_first + i of
 * to_addr, for the entries i of a list. */
typedef struct kern_kv_stage_entry {
    uint32_t block;     /* index into from_addr */
    uint32_t first_pos; /* position of its first token */
    uint32_t query_pos; /* lowest position that asks: with a window, blocks that it no longer sees are left out */
} kern_kv_stage_entry;

typedef struct kern_kv_stage_args {
    const uint64_t *from_addr, *to_addr; /* device; as kern_kv.block_addr */
    uint32_t to_first;
    const kern_kv_stage_entry *list; /* device */
    const uint32_t *range;           /* device [2]: the first entry, and the one after the last */
    uint32_t layer, block_size, window;
    uint64_t layer_bytes; /* a multiple of 16 */
    /* Beside later operations, once all that were issued before are done; kv_stage_wait(slot) makes later ones wait for it. Else in
     * stream order. */
    bool background;
    uint32_t slot; /* 0 or 1 */
} kern_kv_stage_args;

typedef enum kern_scoring {
    KERN_SOFTMAX_TOPK, /* softmax over all experts, then the k largest (Qwen3-MoE) */
    KERN_TOPK_SOFTMAX, /* the k largest logits, softmax over them (Mixtral; equals the first with norm_topk) */
    KERN_SIGMOID,      /* sigmoid of each logit, then the k largest (DeepSeek-V3) */
    /* The k largest logits, one after another. A pick's weight is its share in a softmax over those that are left and come near it: by no more
     * than `spread` of its value or, if that is more, of their own magnitude (Phi-3.5-MoE, arXiv 2409.12136). */
    KERN_SPARSEMIXER,
} kern_scoring;

typedef enum kern_group_rank {
    KERN_GROUP_TOP2, /* the sum of the group's two best (DeepSeek-V3) */
    KERN_GROUP_MAX,  /* its best (DeepSeek-V2) */
} kern_group_rank;

#define KERN_MAX_GROUPS 32

/* Chooses experts from the router's logits. Ties go to the lower expert id. Picks are in descending order of what they were chosen by. */
typedef struct kern_router_args {
    const float *logits; /* [n_tokens][n_experts] */
    uint32_t *ids;       /* [n_tokens][top_k] */
    float *weights;      /* [n_tokens][top_k] */
    uint32_t n_tokens, n_experts, top_k;
    kern_scoring scoring;
    float spread;   /* of KERN_SPARSEMIXER */
    bool norm_topk; /* divide by the sum of the chosen; not known with KERN_SPARSEMIXER */
    /* What follows is 0 in a plain router, and not known with KERN_TOPK_SOFTMAX and KERN_SPARSEMIXER. */
    const float *bias; /* [n_experts] device, or NULL: added to the scores for the choice; the weights are without it */
    /* More than one: the experts lie in n_groups runs of the same size, at most KERN_MAX_GROUPS, and are chosen from the top_groups
     * best of them. By what they are chosen by, bias included; ties go to the lower group. */
    uint32_t n_groups, top_groups;
    kern_group_rank group_rank;
    float norm_min, norm_eps;  /* norm_topk divides by max(sum, norm_min) + norm_eps */
    float scale;               /* of the weights, at the end; 0: none */
    const float *expert_scale; /* [n_experts] device, or NULL: the same, for each expert */
} kern_router_args;

static inline bool kern_router_is_bare(const kern_router_args *a)
{
    return !a->bias && a->n_groups <= 1 && a->norm_min == 0 && a->norm_eps == 0 && (a->scale == 0 || a->scale == 1) &&
           !a->expert_scale;
}

static inline bool kern_router_is_plain(const kern_router_args *a)
{
    return (a->scoring == KERN_SOFTMAX_TOPK || a->scoring == KERN_TOPK_SOFTMAX) && kern_router_is_bare(a);
}

/* Else every backend says KERN_UNSUPPORTED. */
static inline bool kern_router_is_known(const kern_router_args *a)
{
    if (a->n_groups > 1 &&
        (a->n_groups > KERN_MAX_GROUPS || a->n_experts % a->n_groups || !a->top_groups || a->top_groups > a->n_groups))
        return false;
    if (a->scoring == KERN_SPARSEMIXER)
        return kern_router_is_bare(a) && !a->norm_topk;
    return kern_router_is_plain(a) || a->scoring != KERN_TOPK_SOFTMAX;
}

/* How one expert of a layer is cut into pages. Matrix m: 0 gate, 1 up, 2 down. Page p of a matrix holds rows
 * [p * page_rows, ...). Page index within the expert: first_page[m] + p. */
typedef struct kern_expert_geom {
    kern_fmt fmt[3];        /* of each matrix: files of mixed quantisation keep down in more bits than gate and up */
    uint32_t d_model, d_ff; /* gate, up: [d_ff][d_model]; down: [d_model][d_ff] */
    bool halves;            /* of KERN_RELU2: gate and up have d_ff / 2 rows */
    uint32_t page_rows[3];  /* rows a full page */
    uint32_t first_page[3];
    uint32_t pages; /* of the whole expert */
    uint64_t row_bytes[3];
} kern_expert_geom;

static inline uint32_t kern_expert_rows(const kern_expert_geom *g, int matrix)
{
    return matrix == 2 ? g->d_model : g->halves ? g->d_ff / 2 : g->d_ff;
}

/* Sorts (token, pick) pairs by expert, and hands free VRAM slots to missed pages of touched experts (fill-through).
 * Pairs within an expert keep the order of tokens. */
typedef struct kern_plan_args {
    const uint32_t *ids;    /* [n_tokens][top_k]; rows at and beyond *n_live are skipped */
    const uint32_t *n_live; /* device scalar: real rows of a padded (recorded) step; NULL: n_tokens */
    uint32_t n_tokens, top_k, n_experts;
    uint32_t *expert_start; /* out [n_experts + 1]: first pair of each expert in `pairs` */
    uint32_t *pairs;        /* out [n_tokens * top_k]: token * top_k + pick */
    uint32_t *expert_count; /* out [n_experts]: pairs of each expert, for the statistics of the step */
    /* Fill-through, all NULL/0 when off. */
    const uint64_t *page_addr;       /* [n_experts][pages] of this layer */
    uint64_t arena_begin, arena_end; /* addresses inside are VRAM: no fill wanted */
    uint32_t pages;                  /* pages an expert */
    const uint64_t *free_slots;      /* [n_free] slot addresses handed to the step */
    uint32_t n_free, max_inserts;    /* at most max_inserts pages of this layer in this step */
    uint32_t *free_used;             /* in/out device scalar: slots taken so far in the step, all layers */
    const uint8_t *admit;            /* [n_experts]: 0: pages of this expert are not worth a slot; NULL: all are */
    uint64_t *fill_addr;             /* out [n_experts][pages]: slot to fill, or 0 */
    uint32_t *fill_log;     /* out [n_free]: what free_slots[i] will hold: fill_log_base + expert * pages + page */
    uint32_t fill_log_base; /* entry = fill_log_base + expert * pages + page */
} kern_plan_args;

/* Reading ahead. Between two layers' experts a step reads nothing from the host. A reader beside it uses that time: it brings rows of gate and
 * up of the experts that the next layer will probably pick, and that are not in VRAM, to device memory. What has arrived when the layer
 * makes its plan is read there, all else where it lies. Results do not depend on it, nor does a step wait for a reader that does not
 * run. Only in recorded steps. */
typedef struct kern_ahead {
    void *memory; /* device [kern_ops.ahead_bytes()], zero before the first step; begins with kern_ahead_counts */
    const uint32_t *step; /* device scalar: not 0, and another one in every step */
    kern_expert_geom geom;
    uint32_t first,
        n_layers; /* layers [first, n_layers) are read ahead for: they and the one before have this geometry */
} kern_ahead;

/* Totals. */
typedef struct kern_ahead_counts {
    uint64_t useful_bytes, wasted_bytes; /* of experts that were then picked; of others */
    uint64_t predictions, right; /* experts outside of VRAM that were predicted for a layer; those that it picked */
    uint64_t given_up;           /* steps in which the reader did not find the others running beside it */
} kern_ahead_counts;

/* What the router of a layer has to do with it: of one token, with a plan. */
#define KERN_AHEAD_LAYERS 3 /* that are looked ahead for at a time */
typedef struct kern_route_ahead {
    const kern_ahead *ahead;
    uint32_t layer; /* the router's own */
    /* The next layers, as linear and router take them; data NULL: it is not read ahead for. They have as many rows and columns as this
     * one. */
    struct {
        kern_mat w;
        const float *norm, *bias; /* bias may be NULL */
        const float *choice_bias; /* kern_router_args.bias; the rest of these is as this router's */
        uint32_t top_k;
        const uint64_t *page_addr;
    } next[KERN_AHEAD_LAYERS];
} kern_route_ahead;

/* y[t] += sum over picks k of weights[t][k] * FFN_{ids[t][k]}(x[t]), picks added in order k = 0, 1, ...
 * FFN_e(x) = down act(gate x + gate_bias, up x + up_bias) + down_bias; with KERN_RELU2, which geom.halves goes with, there are no biases. Every page of a touched expert is read exactly once; where fill_addr is not 0 the page
 * is also stored there, whole.
 * With `partial` expert_start and pairs may leave picks out (those that somebody else computes): they add nothing. */
typedef struct kern_moe_args {
    const float *x; /* [n_tokens][d_model] */
    float *y;       /* [n_tokens][d_model] */
    const uint32_t *ids;
    const float *weights;         /* [n_tokens][top_k] */
    const uint32_t *expert_start; /* [n_experts + 1], from plan */
    const uint32_t *pairs;        /* [n_tokens * top_k] */
    const uint64_t *page_addr;    /* [n_experts][geom.pages]: VRAM or mapped host, the kernel cannot tell */
    const uint64_t *fill_addr;    /* or NULL */
    /* Hint for the order of work: pages outside are slow. Those inside begin at multiples of 16 bytes. */
    uint64_t arena_begin, arena_end;
    kern_expert_geom geom;
    uint32_t n_tokens, top_k, n_experts;
    bool partial;
    const uint32_t *n_live;  /* as in plan */
    void *scratch;           /* kern_ops.moe_scratch_bytes() */
    const kern_ahead *ahead; /* or NULL; then route was given the same */
    uint32_t layer;          /* with ahead */
    /* Of all experts, in device memory; each may be NULL. */
    const float *gate_bias, *up_bias; /* [n_experts][d_ff] */
    const float *down_bias;           /* [n_experts][d_model] */
    kern_act act;
    float act_alpha, act_limit; /* of KERN_SWIGLU_CLAMPED; the limit of KERN_SWIGLU_LIMITED, too */
} kern_moe_args;

/* Else every backend says KERN_UNSUPPORTED. */
static inline bool kern_moe_act_is_known(const kern_moe_args *a)
{
    const bool halves = a->act == KERN_RELU2, biased = a->gate_bias || a->up_bias || a->down_bias;
    return (unsigned)a->act <= KERN_RELU2 && a->geom.halves == halves && !(halves && (biased || a->geom.d_ff % 2));
}

/* y = cap * tanh(y / cap) */
typedef struct kern_softcap_args {
    float *y;
    uint64_t n;
    float cap;
} kern_softcap_args;

/* Greedy choice: ids[t] = index of the largest logit, the lower id on ties; UINT32_MAX where the row holds no finite largest. */
typedef struct kern_argmax_args {
    const float *logits; /* [n_tokens][vocab] */
    uint32_t *ids;       /* [n_tokens] */
    uint32_t n_tokens, vocab;
} kern_argmax_args;

/* The candidates a sampler needs: the KERN_TOP_LOGITS largest logits of each row in descending order (ties: lower id first), and
 * the log of the sum of exponentials of the whole row. */
#define KERN_TOP_LOGITS 64
typedef struct kern_top_logits_args {
    const float *logits; /* [n_tokens][vocab] */
    uint32_t *ids;       /* [n_tokens][KERN_TOP_LOGITS]; UINT32_MAX beyond vocab */
    float *values;       /* [n_tokens][KERN_TOP_LOGITS] */
    float *logsumexp;    /* [n_tokens] */
    uint32_t n_tokens, vocab;
} kern_top_logits_args;

/* y += x */
typedef struct kern_add_args {
    float *y;
    const float *x; /* device memory, or alloc_host() memory: a replay reads what lies there then */
    uint64_t n;
} kern_add_args;

/* Sizes of a model's layer. */
typedef struct kern_shape {
    uint32_t n_heads, n_kv_heads, head_dim, n_experts;
    const kern_mat *mats; /* [n_mats] all matrices that are multiplied with; data is not looked at */
    uint32_t n_mats;
    uint32_t v_dim;                  /* as in kern_kv */
    kern_fmt expert_fmt[3];          /* of gate, up and down */
    kern_delta_geom delta;           /* of other layers that have one; n_v_heads 0: none */
    kern_shortconv_geom shortconv;   /* the same; channels 0: none */
    kern_ssm_geom ssm;               /* the same; n_heads 0: none */
    bool gated;                      /* attention's result is */
    uint32_t index_heads, index_dim; /* of an indexer; 0: none */
} kern_shape;

typedef struct kern_dev_info {
    char name[64];                            /* "NVIDIA H200", "AMD EPYC (avx512)" */
    char rows[512];                           /* rows chosen, for the log */
    uint64_t memory_bytes, memory_free_bytes; /* of the device; 0 on the CPU */
    bool unified;                             /* device memory is host memory: no VRAM but a simulated one */
    bool can_record;                          /* graph_* work */
    bool can_register_readonly;               /* a read-only file mapping can be registered */
    int numa_node;                            /* nearest node, -1 unknown */
    char pci_bus_id[32];                      /* "0000:1a:00.0" or "" */
    uint32_t n_units;                         /* multiprocessors or worker threads */
    double matrix_tflops;                     /* dense 16-bit matrix products by the data sheet; 0: unknown */
} kern_dev_info;

struct kern_ops {
    /* --- device ---------------------------------------------------------------------------------------------- */
    void (*close)(kern_dev *d);
    void (*info)(kern_dev *d, kern_dev_info *ret);
    const char *(*error)(kern_dev *d); /* text of the last KERN_DEVICE / KERN_NOMEM / KERN_UNSUPPORTED; owned by d */
    /* [host] KERN_UNSUPPORTED where the operations would refuse such a layer: asked before a model is loaded. */
    kern_status (*takes)(kern_dev *d, const kern_shape *s);

    /* --- memory ---------------------------------------------------------------------------------------------- */
    kern_status (*alloc)(kern_dev *d, uint64_t bytes, void **ret); /* device memory, 256-byte aligned, not cleared */
    void (*free)(kern_dev *d, void *p);
    kern_status (*alloc_host)(kern_dev *d, uint64_t bytes,
                              void **ret); /* pinned host memory for small, hot exchanges */
    void (*free_host)(kern_dev *d, void *p);
    /* Makes [p, p + bytes) readable by kernels and yields the address they use. read_only: a file mapping (MAP_SHARED). */
    kern_status (*host_register)(kern_dev *d, void *p, uint64_t bytes, bool read_only, uint64_t *ret_addr);
    void (*host_unregister)(kern_dev *d, void *p);

    /* --- stream ---------------------------------------------------------------------------------------------- */
    kern_status (*upload)(kern_dev *d, void *dst, const void *src_host, uint64_t bytes);   /* in stream order */
    kern_status (*download)(kern_dev *d, void *dst_host, const void *src, uint64_t bytes); /* valid after sync() */
    kern_status (*clear)(kern_dev *d, void *dst, uint64_t bytes);
    kern_status (*sync)(kern_dev *d); /* waits for the stream; reports faults of everything before */
    /* Background copy engine, a second low-priority stream: copies for the pager. Callable from the pager's thread. */
    kern_status (*copy_async)(kern_dev *d, void *dst, const void *src, uint64_t bytes);
    kern_status (*copy_wait)(kern_dev *d); /* until all copy_async() are done */
    /* Between begin and end operations are noted, not run. So are upload() and download(), of whole words from and to alloc_host()
     * memory: a replay finds what lies there then, and downloads when all else is done. */
    kern_status (*graph_begin)(kern_dev *d);
    kern_status (*graph_end)(kern_dev *d, kern_graph **ret);
    kern_status (*graph_launch)(kern_dev *d, kern_graph *g);
    kern_status (*graph_wait)(kern_dev *d); /* until the last replay is done: as sync(), and sooner */
    void (*graph_free)(kern_dev *d, kern_graph *g);

    /* --- math ------------------------------------------------------------------------------------------------ */
    kern_status (*embed)(kern_dev *d, const kern_embed_args *a);
    kern_status (*rmsnorm)(kern_dev *d, const kern_rmsnorm_args *a);
    kern_status (*layernorm)(kern_dev *d, const kern_layernorm_args *a);
    kern_status (*linear)(kern_dev *d, const kern_linear_args *a);
    kern_status (*linear_heads)(kern_dev *d, const kern_linear_heads_args *a);
    kern_status (*swiglu)(kern_dev *d, const kern_swiglu_args *a);
    kern_status (*qkv_norm)(kern_dev *d, const kern_qkv_norm_args *a);
    kern_status (*rope_kv)(kern_dev *d, const kern_rope_kv_args *a);
    kern_status (*attention)(kern_dev *d, const kern_attn_args *a);
    kern_status (*router)(kern_dev *d, const kern_router_args *a);
    kern_status (*plan)(kern_dev *d, const kern_plan_args *a);
    /* linear, router and, unless it is NULL, plan: one after another, or in one launch where the backend can. pick->logits is
     * logits->y. ahead, which needs a plan, may be NULL. */
    kern_status (*route)(kern_dev *d, const kern_linear_args *logits, const kern_router_args *pick,
                         const kern_plan_args *plan, const kern_route_ahead *ahead);
    kern_status (*moe)(kern_dev *d, const kern_moe_args *a);
    kern_status (*argmax)(kern_dev *d, const kern_argmax_args *a);
    kern_status (*top_logits)(kern_dev *d, const kern_top_logits_args *a);
    uint64_t (*attn_scratch_bytes)(kern_dev *d, uint32_t max_tokens, uint32_t n_heads, uint32_t head_dim,
                                   uint32_t max_context);
    uint64_t (*moe_scratch_bytes)(kern_dev *d, uint32_t max_tokens, uint32_t top_k, uint32_t n_experts,
                                  const kern_expert_geom *geom);
    uint64_t (*linear_scratch_bytes)(kern_dev *d, uint32_t max_tokens, uint32_t cols);
    kern_status (*delta)(kern_dev *d, const kern_delta_args *a);
    uint64_t (*delta_scratch_bytes)(kern_dev *d, uint32_t max_tokens, const kern_delta_geom *geom);
    kern_status (*shortconv)(kern_dev *d, const kern_shortconv_args *a);
    kern_status (*ssm)(kern_dev *d, const kern_ssm_args *a);
    uint64_t (*ssm_scratch_bytes)(kern_dev *d, uint32_t max_tokens, const kern_ssm_geom *geom);
    kern_status (*gate)(kern_dev *d, const kern_gate_args *a);
    kern_status (*softcap)(kern_dev *d, const kern_softcap_args *a);
    kern_status (*index_rope)(kern_dev *d, const kern_index_rope_args *a);
    kern_status (*index)(kern_dev *d, const kern_index_args *a);
    uint64_t (*index_scratch_bytes)(kern_dev *d, uint32_t max_tokens, uint32_t n_heads, uint32_t max_context);

    /* --- measurement ----------------------------------------------------------------------------------------- */
    /* Rate at which kernels read [addr, addr + bytes) (host tier or VRAM), GB/s; runs alone. */
    kern_status (*probe_read)(kern_dev *d, uint64_t addr, uint64_t bytes, double *ret_gbps);
    /* Time marks in stream order: mark(i) notes "now" in slot i < KERN_MARKS; after sync(), mark_ns gives slot b - slot a. */
    kern_status (*mark)(kern_dev *d, uint32_t slot);
    kern_status (*mark_ns)(kern_dev *d, uint32_t a, uint32_t b, uint64_t *ret_ns);

    /* --- staging of KV blocks that lie in host memory ----------------------------------------------------------- */
    kern_status (*kv_stage)(kern_dev *d, const kern_kv_stage_args *a);
    kern_status (*kv_stage_wait)(kern_dev *d, uint32_t slot);

    /* --- reading ahead ------------------------------------------------------------------------------------------ */
    /* 0: the device cannot, and the others are not called. */
    uint64_t (*ahead_bytes)(kern_dev *d, uint32_t n_layers, const kern_expert_geom *geom);
    bool (*ahead_fits)(kern_dev *d, const kern_linear_args *logits, const kern_router_args *pick); /* such a router */
    /* While recording: starts the reader beside the operations that follow; none after this one has to do with it. */
    kern_status (*ahead_begin)(kern_dev *d, const kern_ahead *a);
    void (*ahead_end)(kern_dev *d);

    /* --- two devices at one layer ------------------------------------------------------------------------------- */
    kern_status (*add)(kern_dev *d, const kern_add_args *a);
};
#define KERN_MARKS 1024

/* First member of every backend's device struct; callers write d->ops->linear(d, &args). */
struct kern_dev {
    const kern_ops *ops;
};

typedef struct kern_options {
    uint32_t n_threads; /* CPU workers, 0: all cores allowed to the process */
    uint32_t gpu;       /* device index */
    int32_t numa_node;  /* bind workers, -1: no */
    bool
        helper; /* CPU workers serve another device's layers: they stay awake for its part of a layer, about a millisecond */
    const char *disable; /* comma-separated caps ("avx512", "avx2", "sm90") or row names never to be used; NULL */
} kern_options;

/* The CPU backend. */
kern_status kern_cpu_open(const kern_options *opt, kern_dev **ret);
/* The CUDA backend, loaded at run time. On failure `why` (cap bytes) says in words what is missing: library, driver, device,
 * architecture (with the list of those supported). */
kern_status kern_cuda_open(const kern_options *opt, kern_dev **ret, char *why, size_t cap);

#ifdef __cplusplus
}
#endif

#endif
