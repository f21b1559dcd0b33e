/* model.h - an opened checkpoint: hyper-parameters, tensors by role, where each expert's rows lie. Files are memory-mapped and
 * never copied; a model only points into them.
 *
 * A dense FFN is the degenerate case of one expert: n_experts 1, top_k 1, no router. A layer may have no FFN (n_experts 0), or nothing but one
 * (ffn_alone). Immutable once open: any thread may read. */
#ifndef ENGINE_MODEL_H
#define ENGINE_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "config/error.h"
#include "config/util.h"
#include "engine/text/tokenizer.h"
#include "kernels/kernels.h"

#define MODEL_MAX_LAYERS 1024

typedef struct model model;

/* How a matrix in four bits lies in the file. INT4: words of eight numbers, the first in the lowest bits. G: groups of columns with a scale and a zero. */
typedef enum model_four_order {
    MODEL_FOUR_NONE,
    MODEL_INT4_ROWS, /* compressed-tensors: [rows][cols / 8]; scales [rows][G]; zeros [rows / 8][G] */
    MODEL_INT4_GPTQ, /* [cols / 8][rows]; scales [G][rows]; zeros [G][rows / 8] */
    MODEL_INT4_AWQ, /* [cols][rows / 8] and scales and zeros as GPTQ's; rows of a word are in the order 0, 2, 4, 6, 1, 3, 5, 7 */
    /* NVFP4: bytes of two, [rows][cols / 2], the first in the low bits; scales in E4M3 [rows][cols / 16] */
    MODEL_NVFP4,         /* ModelOpt: times a factor */
    MODEL_NVFP4_DIVIDED, /* compressed-tensors: divided by it */
} model_four_order;

/* A tensor of the file: [rows][cols] (a vector has one row). data NULL: the model has none. Alignment is the file's. */
typedef struct model_tensor {
    const void *data;
    uint64_t bytes;
    uint32_t rows, cols;
    kern_fmt fmt;
    uint32_t first_row,
        stored_rows; /* of a matrix with scales that is some rows of what is stored: from which on, and how many that has */
    uint32_t step; /* of a bias: numbers from one of its values to the next; 0: 1 */
    const void
        *scales; /* elsewhere: of an expert in MODEL_PAIRED_MXFP4 its first row's; in FP8, INT4 and NVFP4 all of them */
    struct {     /* of these: each is for so many rows and columns (whole groups of what kernels read, or all) */
        uint32_t rows, cols;
        kern_fmt fmt; /* F32, F16 or BF16; not of NVFP4 */
    } scale;
    struct {                    /* of INT4 and NVFP4 */
        const void *factor;     /* of NVFP4: a float32 for all scales */
        const void *zeros;      /* four bits each; NULL: all are 8 */
        const int32_t *columns; /* [cols]: the group of each, as told by the file; NULL: it does not */
        model_four_order order;
        bool zeros_less_1;   /* that is how they are stored */
        bool zeros_may_wrap; /* and 15 may stand for 0 */
    } four;
} model_tensor;

enum { MODEL_GATE, MODEL_UP, MODEL_DOWN, MODEL_MATRICES };

/* How the matrices of a layer's experts lie in the file. What is not in rows as kernels read them is repacked on its way to the host tier
 * (model_copy_rows); its model_tensors have the shape and bytes that come of it, data being its first value in the file. */
typedef enum model_layout {
    MODEL_ROWS,   /* as kernels read them */
    MODEL_PAIRED, /* gpt-oss: [d_model][2 * d_ff] with gate in the even columns and up in the odd; down [d_ff][d_model] */
    MODEL_TURNED, /* Qwen3-VL: [d_model][2 * d_ff] with the columns of gate before those of up; down [d_ff][d_model] */
    /* gpt-oss' MXFP4: rows of gate and up in turn, [2 * d_ff][d_model / 32] blocks of 16 bytes, and as many scales elsewhere; down alike. */
    MODEL_PAIRED_MXFP4,
    MODEL_APART, /* FP8, INT4 and NVFP4: scales elsewhere; some matrices may be in rows as kernels read them */
} model_layout;

/* The matrices of a linear layer before its state: what a row of kern_delta_args.x is made of. Q, K, V and Z, or B and A, are either one tensor
 * with the rows of each key head together, in that order, or lie as the row does; Q may lie alone, with K and V in matrices of their own. With
 * Z_LOW and A_LOW Z and A come behind these. */
enum {
    MODEL_DELTA_QKVZ,
    MODEL_DELTA_BA,
    MODEL_DELTA_QKV,
    MODEL_DELTA_K,
    MODEL_DELTA_V,
    MODEL_DELTA_Z,
    MODEL_DELTA_B,
    MODEL_DELTA_A,
    MODEL_DELTA_Z_LOW,
    MODEL_DELTA_A_LOW,
    MODEL_DELTA_MATS,
};

typedef struct model_layer {
    model_tensor attn_norm, q, k, v, o, q_bias, k_bias, v_bias, o_bias, q_norm, k_norm, ffn_norm;
    model_tensor attn_norm_bias, ffn_norm_bias; /* with model_params.layer_norms */
    uint32_t n_heads, n_kv_heads, head_dim;
    model_tensor
        gate; /* [n_heads * head_dim][d_model], or [n_heads] of these: of attention's result, where it is not among Q's rows */
    model_tensor attn_post_norm, ffn_post_norm; /* of what attention and the FFN add; data NULL: it is added as it is */
    model_tensor out_scale;                     /* [1]: all that the layer leaves is multiplied by it */
    /* Where router and experts have norms of their own, each of what the layer's attention has left: ffn_norm is the shared expert's. The
     * router's is multiplied by router_scale of the model. What comes of shared and routed experts is normed before it is added up. */
    model_tensor router_norm, expert_norm, shared_post_norm, expert_post_norm;
    model_tensor expert_scale; /* [n_experts]: of the weights of picks */
    model_tensor sinks;        /* [n_heads]: attention logits beside those of the positions, with no value */
    struct {                   /* latent attention; then there are no k and v, and q comes behind q_a where that is */
        model_tensor q_a, q_a_bias, q_a_norm, kv_a, kv_a_bias, kv_a_norm;
        model_tensor kv_b;     /* [n_heads][nope_dim rows for K, v_dim rows for V][kv_rank], or instead of it: */
        model_tensor k_b, v_b; /* [n_heads][kv_rank][nope_dim]: K's, transposed; [n_heads][v_dim][kv_rank] */
    } latent;
    struct {      /* the indexer, where the model has one */
        bool own; /* false: this layer sees the positions that the layer before it does, and has no tensors of one */
        model_tensor q;                               /* [index.n_heads * index.dim][q_rank] */
        model_tensor k, k_norm, k_norm_bias, weights; /* [index.dim][d_model]; [index.dim]; [index.n_heads][d_model] */
    } index;
    bool linear; /* Gated DeltaNet, Mamba2, or a short convolution, in place of attention: no q, k, v; o is behind it */
    bool ffn_alone; /* neither attention nor anything in its place */
    uint32_t
        ordinal; /* among the layers that are linear, or those with attention: which of a sequence's states, or of a block's layers, is its own */
    struct {
        model_tensor in[MODEL_DELTA_MATS];
        model_tensor conv;             /* [channels][conv] */
        model_tensor conv_k, conv_v;   /* where they lie apart: then conv is Q's */
        model_tensor a_log, neg_exp_a; /* [n_v_heads]: one of the two */
        model_tensor dt_bias, norm;    /* [kern_delta_decays()]; [v_dim] */
    } delta;
    struct {
        model_tensor in, conv; /* [3 * d_model][d_model]: b, c and v of kern_shortconv_args.x; [d_model][conv] */
    } shortconv;
    struct {
        model_tensor in;                                               /* rows in the order of kern_ssm_args.x */
        model_tensor conv;                                             /* [channels][conv] */
        model_tensor conv_bias, a_log, neg_exp_a, dt_bias, skip, norm; /* a_log or neg_exp_a; norm: of all heads */
    } ssm;
    uint32_t window;                          /* sliding window in tokens, own included; 0: full attention */
    uint32_t rope;                            /* which of the model's ropes */
    model_tensor router;                      /* [n_experts][d_model]; data NULL in a dense layer */
    model_tensor router_bias, choice_bias;    /* [n_experts]: of its logits; on the choice alone */
    model_tensor expert_bias[MODEL_MATRICES]; /* [n_experts][d_ff], down: [n_experts][d_model] */
    model_layout layout;
    bool moe; /* false: a dense FFN, n_experts is 1; or none, and it is 0 */
    bool
        halves; /* there is no gate: those of experts, and of the shared one, are the first halves of up's rows (KERN_RELU2) */
    uint32_t n_experts, top_k, d_ff;
    uint32_t d_ff_shared;                /* 0: no shared expert */
    float act_limit, shared_limit;       /* of KERN_SWIGLU_LIMITED, of the FFN and of its shared expert; 0: none */
    model_tensor shared[MODEL_MATRICES]; /* of every token, beside the picks */
    model_tensor shared_gate;            /* [d_model]: its sigmoid weighs the shared expert */
    kern_fmt expert_fmt[MODEL_MATRICES]; /* of all experts of the layer */
    const model_tensor *experts;         /* [n_experts][MODEL_MATRICES] */
} model_layer;

static inline bool model_keeps_kv(const model_layer *l)
{
    return !l->linear && !l->ffn_alone;
}

#define MODEL_MAX_ROT   512 /* largest rot_dim */
#define MODEL_MAX_ROPES 4
/* How Q and K are rotated by position. */
typedef struct model_rope {
    uint32_t rot_dim;       /* the first columns of a head, which are rotated */
    float scale;            /* of cos and sin */
    bool normed;            /* heads of Q and K are normed behind it, by no weights */
    float grow, grow_every; /* of kern_rope_kv_args */
    float inv_freq[MODEL_MAX_ROT / 2];
} model_rope;

typedef struct model_params {
    char arch[48]; /* model_type of config.json */
    uint32_t n_layers, d_model, n_heads, n_kv_heads, head_dim, vocab, max_positions;
    uint32_t full_kv_heads, full_head_dim; /* of layers without a window; the same but in few models */
    /* n_heads is the most that a layer has: model_layer */
    uint32_t n_experts_max, top_k_max, d_ff_max, d_ff_shared_max; /* over layers: sizes of buffers */
    uint32_t n_nextn; /* layers behind the last one, which guess further tokens: they are not used */
    /* Latent attention (DeepSeek), kv_rank 0: none. Kept are kv_rank numbers that K and V of all heads are made of, and rope_dim that
     * are rotated: one KV head of head_dim = kv_rank + rope_dim columns, the first kv_rank of which are V. q_rank 0: Q in one step. */
    struct {
        uint32_t q_rank, kv_rank, nope_dim, rope_dim, v_dim;
        float norm_eps;
    } latent;
    /* The indexer of DeepSeek Sparse Attention, n_heads 0: none. Of more than top_k positions attention sees those that it chooses. */
    struct {
        uint32_t n_heads, dim, top_k;
        bool interleaved; /* of its rotation, which is the model's in all else */
        float norm_eps;
    } index;
    /* Of linear layers; n_v_heads, channels or n_heads 0: they are others, or there are none. */
    kern_delta_geom delta;
    kern_shortconv_geom shortconv;
    kern_ssm_geom ssm;
    float ssm_eps;                  /* of its norm */
    uint32_t n_linear, n_attention; /* layers */
    bool gated;                     /* rows of Q are, for each head, Q and then the gate of attention's result */
    bool gate_softplus;             /* what gates is softplus, not the sigmoid */
    float rms_eps, attn_scale, embed_scale, logit_scale;
    float norm_offset;      /* added to the weights of all norms but those of linear layers' results */
    bool layer_norms;       /* those of the stream subtract the mean and have a bias */
    bool wide_qk_norm;      /* norms of whole Q and K, not of heads */
    bool v_normed;          /* heads of V, too, but by no weights */
    bool norm_last;         /* norms of Q's and K's heads are behind the rotation */
    float router_scale;     /* of model_layer.router_norm */
    float logit_softcap;    /* 0: none */
    float clip_qkv;         /* 0: none */
    bool chunked;           /* windows are chunks, whose tokens see those of their own */
    bool picks_scale_input; /* what experts are given, by the sigmoid of the logit; the pick weighs 1 */
    model_rope ropes[MODEL_MAX_ROPES];
    struct { /* in place of ropes[0] where sequences may be longer than `beyond` positions; 0: none */
        uint32_t beyond;
        model_rope rope;
    } long_rope;
    bool rope_grows;       /* beyond max_positions other frequencies ("dynamic"), or larger queries, would be needed */
    bool rope_interleaved; /* pairs are neighbours (2i, 2i + 1), not halves (i, i + rot_dim / 2) */
    kern_router_args router; /* scoring, norm_topk and what follows it */
    kern_act act;            /* of the FFN, with its constants */
    float act_alpha, act_limit;
    uint32_t eos_ids[16], n_eos; /* generation_config.json, else config.json */
    int64_t bos_id;              /* -1: none */
    struct {                     /* generation_config.json; NAN / -1 where it is silent */
        float temperature, top_p, min_p, typical_p, repetition_penalty;
        int32_t top_k;
        bool do_sample_off; /* "do_sample": false: greedy */
    } defaults;
} model_params;

/* Which rope stands for ropes[n] where sequences may have so many positions. By that, and not by their own length, so that what is cached
 * of one never has to be rotated anew, and no answer depends on who else is served. */
static inline const model_rope *model_rope_for(const model_params *p, uint32_t n, uint32_t positions)
{
    return n == 0 && p->long_rope.beyond && positions > p->long_rope.beyond ? &p->long_rope.rope : &p->ropes[n];
}

typedef struct model_file { /* one mapping, MAP_SHARED PROT_READ (synthetic: anonymous memory) */
    const char *path;
    void *base;
    uint64_t bytes;
    bool anonymous;
    uint64_t device, inode; /* of the file that was mapped, and when it had last been written by then */
    int64_t mtime_ns;
} model_file;

/* What became of the file since; the larger, the worse. Any thread; may wait for a disk. */
enum { MODEL_FILE_SAME, MODEL_FILE_GONE, MODEL_FILE_REPLACED, MODEL_FILE_WRITTEN, MODEL_FILE_CUT };
int model_file_look(const model_file *f);

typedef struct model_options {
    const char *path;  /* directory, GGUF file, or "synthetic:NAME" */
    const char *dtype; /* synthetic only */
    int skew;          /* synthetic only: CONF_SKEW_* */
    uint32_t seed;
    uint64_t
        max_bytes; /* synthetic only: a larger one is refused, for the kernel would end whoever touched it; 0: no limit */
    bool geometry_only; /* synthetic only: shapes and sizes, all weights zero; takes no memory */
    void (*progress)(void *user, double fraction); /* may be NULL; any thread */
    void *progress_user;
} model_options;

/* What a path stands for: *ret_file (owned) is the GGUF file that it names or, as the only one, holds; NULL: a directory of another kind.
 * XD_NOT_FOUND; XD_UNSUPPORTED says what else it is, or names the files where there are several. */
xd_status model_find(const char *path, char **ret_file, xd_err *err) XD_MUST_CHECK;
/* Opens and checks everything: every tensor's type, shape and range in its file. XD_BAD_MODEL names file and tensor; an unknown
 * architecture is XD_UNSUPPORTED with the list of known ones. */
xd_status model_open(const model_options *opt, model **ret, xd_err *err) XD_MUST_CHECK;
void model_free(model *m);
XD_DEFINE_CLEANUP(model, model_free)

/* What these return is borrowed from m. */
const model_params *model_get_params(const model *m);
const model_layer *model_get_layer(const model *m, uint32_t layer);
uint64_t model_state_floats(const model_params *p); /* what a sequence keeps of a linear layer; 0: there are none */
/* The windows of the layers that have K and V, by their ordinals. Returns how many these are. */
uint32_t model_get_windows(const model *m, uint32_t ret[MODEL_MAX_LAYERS]);
/* Value i of F32, F16 or BF16, at any alignment. */
float model_number(const void *values, kern_fmt fmt, size_t i);
bool model_repacks(const model *m); /* some layer is not MODEL_ROWS: it goes through the host pool or the page file */
/* Rows [first, first + n) of a matrix (MODEL_GATE, ...) of an expert, one behind the other as kernels read them. Any thread. */
void model_copy_rows(const model_layer *l, uint32_t expert, uint32_t matrix, uint32_t first, uint32_t n, void *to);
/* The same of a matrix of the trunk: other than in FP8, INT4 and NVFP4 they are what `data` points to. */
void model_copy_matrix(const model_tensor *t, uint32_t first, uint32_t n, void *to);
/* What the matrix is made of in the file, to be read no more when the expert has been copied. */
uint64_t model_stored_bytes(const model_layer *l, uint32_t matrix);
uint64_t model_scale_bytes(const model_tensor *t);              /* of these, that t->scales points to; else 0 */
const model_tensor *model_embed(const model *m);                /* [vocab][d_model] */
const model_tensor *model_final_norm(const model *m);           /* [d_model] */
const model_tensor *model_final_norm_bias(const model *m);      /* with layer_norms */
const model_tensor *model_lm_head(const model *m);              /* the embedding when tied */
const model_tensor *model_lm_head_bias(const model *m);         /* [vocab]; data NULL: none */
const model_file *model_files(const model *m, uint32_t *ret_n); /* [*ret_n] */
const char *model_dir(const model *m);       /* directory with tokenizer files; "" for a synthetic model */
uint64_t model_expert_bytes(const model *m); /* all routed FFN weights */
uint64_t model_trunk_bytes(const model *m);  /* all other weights */
/* The formats of the experts' or the trunk's weights by their share of the bytes, those above 0.5 %: "q4_k 71 %, q6_k 29 %", "bf16". */
const char *model_formats(const model *m, bool experts, char *out, size_t cap);
/* Identity of the weights for saved statistics and page files: a hash over names, shapes, sizes and samples of the data. */
uint64_t model_fingerprint(const model *m);
/* A GGUF file carries its tokenizer and chat template. False / NULL: the model has none, or is a directory. Borrowed from m. */
bool model_get_vocabulary(const model *m, tok_gguf *ret);
const char *model_chat_template(const model *m);

#endif
