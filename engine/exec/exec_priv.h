/* exec_priv.h - what the files of engine/exec share. */
#ifndef ENGINE_EXEC_PRIV_H
#define ENGINE_EXEC_PRIV_H

#include "engine/exec/exec.h"
#include "engine/memory/share.h"

/* A layer's trunk as the kernels take it. */
typedef struct exec_layer {
    kv_layer kv;                                   /* where its K and V lie; not of a linear layer */
    float *attn_norm, *ffn_norm, *q_norm, *k_norm; /* device vectors; each may be NULL */
    float *attn_norm_bias, *ffn_norm_bias;         /* with model_params.layer_norms */
    kern_mat qkv[3];                               /* one or three matrices */
    float *qkv_bias[3];
    uint32_t n_qkv;
    kern_mat gate; /* of attention's result; data NULL: it has none */
    float *gate_bias;
    kern_mat o;
    float *o_bias;
    float *sinks;
    kern_mat router; /* data NULL: one expert */
    float *router_bias, *choice_bias, *expert_bias[MODEL_MATRICES];
    float *router_norm; /* ffn_norm, unless it has its own */
    float *expert_scale;
    float *attn_post_norm, *ffn_post_norm;                    /* of what is added to x->x; NULL: none */
    float *expert_norm, *expert_post_norm, *shared_post_norm; /* NULL: the shared expert's input is the experts' */
    float out_scale;
    struct { /* latent attention; then qkv[0] is Q's, behind q_a where that is. k_b and v_b: of head 0 */
        kern_mat q_a, kv_a, k_b, v_b;
        uint64_t k_head_bytes, v_head_bytes;
        float *q_a_norm, *q_a_bias, *kv_a_norm, *kv_a_bias;
    } latent;
    struct { /* its indexer; q.data NULL: it sees what the layer before it has chosen, or the model has none */
        kern_mat q, k, weights;
        float *k_norm, *k_norm_bias;
    } index;
    struct
    { /* a linear layer; n_in 0: it is another. One row below another the matrices of a row of x of its operation */
        kern_mat in[6], low[6]; /* what comes before them; data NULL: nothing */
        uint32_t n_in;
        float *conv, *neg_exp_a, *dt_bias, *norm; /* a short convolution has the first alone */
        float *conv_bias, *skip;                  /* of Mamba2; the first may be NULL */
    } state;
    /* The shared expert: gate and up as one or two matrices; n_shared 0: there is none. */
    kern_mat shared[2], shared_down, shared_gate;
    uint32_t n_shared;
} exec_layer;

/* What decides the shape of the recorded or launched work. All else is read from device memory. */
typedef struct exec_shape {
    uint32_t n_tokens, n_seqs, n_rows; /* padded sizes */
    uint32_t max_blocks;               /* row length of the block table */
    uint32_t max_context;
    bool recorded;
    bool fill;            /* missed pages are kept */
    uint32_t token_picks; /* words of a token's picks in the inputs, all layers; 0: the router picks */
    uint32_t run_words;   /* words of the segments' runs in the inputs (state.c) */
    bool staged;          /* some KV blocks come from host memory by way of the staging areas */
    exec_want want;
    bool ahead;   /* a reader runs beside it */
    bool shared;  /* the CPU may compute a part of it: recorded in segments, between which the host has its say */
    bool predict; /* the next layer's experts are predicted, where that can be done */
} exec_shape;

/* stage.c: the step's cold KV blocks. Device buffer: for each group begin and end of the old ones, and of the fresh ones | block tables in which
 * staged blocks have their staged ids | entries. */
typedef struct exec_stage {
    uint32_t slots, cold_begin; /* slots 0: nothing is staged */
    uint32_t *dev, *host;
    void *host_owned;
    uint32_t *seen_step, *seen_slot; /* by cold block: the step that listed it, and where */
    uint32_t step, n_all, n_direct;  /* of this step; direct: read in place */
} exec_stage;

/* split.c */
typedef struct exec_side { /* a plan that leaves out the picks of the other side */
    uint32_t *start, *pairs;
} exec_side;

typedef struct exec_split_graphs { /* a step's segments as recordings: two of each layer, and the end */
    exec_shape shape;
    kern_graph **g;
} exec_split_graphs;

enum { EXEC_SPLIT_SHAPES = 8 };

typedef struct exec_split {
    kern_dev *cpu;          /* NULL: no experts on the CPU */
    void *host_owned;       /* pinned: what goes over the link, for max_seqs tokens */
    float *x, *y, *weights; /* input of the experts, the CPU's results, weights of the picks */
    uint32_t *ids;
    uint32_t *plan, *plan_dev; /* the device's: start, pairs, slots to fill */
    exec_side host;            /* the CPU's */
    void *scratch;             /* of its experts */
    uint32_t n_live;           /* tokens of this step */
    share_rates rates;
    share_costs costs;          /* that this step goes by */
    uint64_t cpu_ns, cpu_bytes; /* of this step */
    struct exec_split_layer {
        uint64_t link_bytes;         /* that the device read in place */
        bool device;                 /* it had a part */
        float *bias[MODEL_MATRICES]; /* of the experts; NULL: none */
    } * layers;
    exec_split_graphs graphs[EXEC_SPLIT_SHAPES];
    uint32_t n_graphs;
} exec_split;

/* ahead.c */
typedef struct exec_ahead {
    bool on, pays;
    kern_ahead k;
    kern_ahead_counts *counts, seen; /* pinned: as of the last recorded step; as of the last look */
    uint32_t given_up;               /* steps in a row */
    uint32_t step;                   /* number of the last step */
} exec_ahead;

/* state.c: tokens of a step that the state takes in one call. */
typedef struct exec_segment {
    uint32_t first, n;
    uint32_t runs;     /* offset of run_start in the inputs; recorded: unused */
    const void *state; /* of the sequence whose state is kept behind it, at `keep`; NULL: of none. Their first layer */
    void *keep;
} exec_segment;

typedef struct exec_state {
    exec_segment *segments;
    uint32_t n, cap;
    void *scratch;
    void *base; /* of the slots */
    uint64_t slot_bytes, layer_bytes;
} exec_state;

/* Offsets, in words, of the step's inputs within the one packed buffer. Word EXEC_STEP_WORD is the step's number. */
typedef struct exec_layout {
    uint32_t n_live, ids, token_seq, attn_seq, token_pos, row_idx, picks, block_table, seq_slot, runs, words;
} exec_layout;

typedef struct exec_graph {
    exec_shape shape;
    kern_graph *g;
} exec_graph;

/* Steps of more tokens touch nearly every expert anyway: nothing is left to predict. */
enum { EXEC_MAX_GRAPHS = 512, EXEC_MAX_OWNED = 48, EXEC_PREDICT_TOKENS = 64 };
/* A long prompt's shared experts go in pieces: their activations take no more memory than that. */
enum { EXEC_SHARED_TOKENS = 2048 };
enum { EXEC_STEP_WORD = 1, EXEC_AHEAD_TOKENS = 1 };

struct exec {
    exec_options opt;
    kern_dev *dev;
    const model *m;
    const model_params *hp;
    kern_dev_info info;
    const kv_cache *kv;
    pager *pg;
    bool lost;
    bool prefill, recording; /* of this step; it made a recording */

    exec_layer *layers;
    kern_mat embed, head;
    float *final_norm, *final_norm_bias, *head_bias; /* the biases may be NULL */
    float *ones;                                     /* weights of norms that have none, or NULL */
    uint64_t trunk_bytes, workspace_bytes;
    void *owned[EXEC_MAX_OWNED]; /* device allocations, freed at the end */
    uint32_t n_owned;
    uint8_t *trunk; /* one allocation that trunk tensors are cut from */
    uint64_t trunk_used, trunk_cap;

    /* workspaces [max_tokens][...] */
    float *add,
        *add_shared; /* what goes through a norm before it is added to x: attention's or the experts', and the shared one's */
    float *x, *h, *qkv, *attn, *router_logits, *router_weights, *logits, *one_weights;
    float *shared_gate_up, *shared_act, *shared_gate; /* [EXEC_SHARED_TOKENS] or fewer */
    uint32_t *router_ids, *one_ids, *expert_start, *pairs;
    float *inv_freq[MODEL_MAX_ROPES]; /* of the model's ropes */
    void *attn_scratch;
    void *scratch; /* of experts and of products, one after another */
    uint32_t qkv_width;
    float *index_q, *index_k, *index_k_normed, *index_weights; /* of an indexer */
    uint32_t *chosen; /* [max_tokens][index.top_k]: of the last layer that has one */
    void *index_scratch;
    float *q_low, *q_low_normed, *heads; /* latent attention: Q behind q_a; Q's heads, and later those of the result */

    uint32_t *in_dev, *in_host; /* packed inputs */
    uint32_t in_cap_words;
    uint32_t *argmax_dev, *top_ids_dev;
    float *top_values_dev, *top_lse_dev;
    uint32_t *argmax_host, *top_ids_host;
    float *top_values_host, *top_lse_host;
    void *host_owned;  /* the pinned block that the *_host pointers lie in */
    float *fetch_host; /* [fetch_max][vocab]; NULL where device memory is host memory */
    uint32_t fetch_max;
    uint32_t *counts_host;
    bool *needs_lost; /* [max_seqs] */
    uint32_t *likely_ids,
        *likely_host; /* prediction: [EXEC_PREDICT_TOKENS][top_k_max] picks, then [n_experts_max] flags */

    exec_stage stage;
    exec_state state;
    exec_split split;
    exec_ahead ahead;
    exec_graph graphs[EXEC_MAX_GRAPHS];
    uint32_t n_graphs;
    pager_view graphs_view; /* that they were recorded with */
    uint32_t n_marks;
    bool marks_on;
    exec_times times;
    uint64_t launch_at_ns, launch_ns; /* of this step: its first launch; how long it took, 0: there were others */
    uint64_t ended_at_ns, end_ns;     /* of the last: when the pager had ended it, which took so long; 0: it failed */

    exec_router_observer *observer;
    void *observer_user;
    uint32_t *observed_ids;
    float *observed_weights;
};

static inline bool exec_has_ffn(const exec *x, uint32_t layer)
{
    return model_get_layer(x->m, layer)->n_experts;
}

/* Of an FFN whose gate and up have a limit of their own; 0: they have not. */
static inline kern_act exec_act(const exec *x, float limit)
{
    return limit > 0 ? KERN_SWIGLU_LIMITED : x->hp->act;
}

xd_status exec_kern_fail(exec *x, kern_status ks, xd_err *err, const char *what);
/* In a function that has x and err: an operation, whose failure ends it. */
#define RUN(call)                                                 \
    do {                                                          \
        kern_status ks_ = (call);                                 \
        if (ks_)                                                  \
            return exec_kern_fail(x, ks_, err, "running " #call); \
    } while (0)
xd_status exec_alloc(exec *x, uint64_t bytes, void *ret_pointer, const char *what, xd_err *err);
xd_status exec_load_trunk(exec *x, xd_err *err);
/* The n values of a vector (f32, f16 or bf16). */
void exec_to_float(float *out, const model_tensor *t, uint32_t n);
/* In exec_load_trunk(): device memory of the trunk; a matrix; a vector, by way of tmp. What the model has not becomes NULL. */
uint8_t *exec_trunk_take(exec *x, uint64_t bytes);
/* Is a matrix copied to the trunk, or used where it is? */
bool exec_copies(const exec *x, const model_tensor *t);
xd_status exec_load_matrix(exec *x, const model_tensor *t, kern_mat *ret, const char *what, xd_err *err);
/* Rows of a matrix, or values of a vector. */
typedef struct exec_rows {
    const model_tensor *t;
    uint32_t first, n;
} exec_rows;
/* All of one format and width, copied one below another. */
xd_status exec_load_rows(exec *x, const exec_rows *rows, uint32_t n, kern_mat *ret, const char *what, xd_err *err);
/* Vectors one behind another. */
xd_status exec_load_values(exec *x, const exec_rows *values, uint32_t n, float *tmp, uint32_t tmp_cap, float **ret,
                           const char *what, xd_err *err);
xd_status exec_upload_values(exec *x, const float *values, uint64_t n, float **ret, const char *what, xd_err *err);
bool exec_same_kind(const model_tensor *a, const model_tensor *b); /* they could lie below one another */
xd_status exec_load_vector(exec *x, const model_tensor *t, float *tmp, uint32_t tmp_cap, float **ret, const char *what,
                           xd_err *err);
/* Scratch of a device's expert kernels: the largest over the distinct cuts of the layers. */
xd_status exec_moe_scratch_bytes(exec *x, kern_dev *dev, uint32_t n_tokens, uint64_t *ret, xd_err *err);
exec_layout exec_layout_of(const exec *x, const exec_shape *s);
uint32_t exec_kv_groups(const exec *x);
/* Where the block table of a group [n_seqs][max_blocks] begins in those of all groups. */
static inline size_t exec_table_of(const exec_shape *s, uint32_t group)
{
    return (size_t)group * s->n_seqs * s->max_blocks;
}
/* Writes row `row` of a group's block table [][max_blocks], as long as blocks of the smallest number of tokens need it and filled up with zeros. Blocks that were given back get the id of the first one that is
 * there: nobody sees them but padding rows, which want finite numbers. */
void exec_put_blocks(const exec *x, uint32_t *table, uint32_t row, const exec_run_seq *q, uint32_t group,
                     uint32_t max_blocks);
uint32_t exec_n_blocks(const exec *x, const exec_run_seq *q, uint32_t group); /* of the sequence in that group */

xd_status exec_stage_open(exec *x, xd_err *err);
void exec_stage_close(exec *x);
/* Lists the step's cold blocks and uploads list and tables; sets s->staged. */
xd_status exec_stage_step(exec *x, const exec_batch *b, exec_shape *s, xd_err *err);
/* Layers are counted here by their KV (model_layer.ordinal). At the begin of a step and after a layer's attention: what comes next is under
 * way. */
xd_status exec_stage_ahead(exec *x, uint32_t layer, const exec_shape *s, xd_err *err);
/* Before a layer's attention, behind the store of K and V: its blocks are there; *ret is where attention finds them. */
xd_status exec_stage_ready(exec *x, uint32_t layer, const exec_shape *s, kern_kv *ret, xd_err *err);
uint64_t exec_stage_host_bytes(const exec *x);

/* latent.c. Bytes of the trunk beyond those of the tensors that are loaded as they are. */
uint64_t exec_latent_trunk_bytes(const exec *x, const model_layer *ml);
xd_status exec_latent_load(exec *x, const model_layer *ml, exec_layer *l, float *tmp, uint32_t tmp_cap, xd_err *err);
/* Shapes that will be multiplied with, but for Q's and O's: at most EXEC_LATENT_MATS. */
enum { EXEC_LATENT_MATS = 7 };
uint32_t exec_latent_mats(const exec *x, const model_layer *ml, kern_mat *ret);
/* Takes the place of exec_build_attention(). Its workspaces have room for EXEC_LATENT_TOKENS. */
enum { EXEC_LATENT_TOKENS = 2048 };
xd_status exec_latent_attention(exec *x, uint32_t layer, const exec_shape *s, const uint32_t *seq_start, xd_err *err);

/* state.c. Of the trunk; mats: at most EXEC_STATE_MATS. */
uint64_t exec_state_trunk_bytes(const exec *x, const model_layer *ml);
xd_status exec_state_load(exec *x, const model_layer *ml, exec_layer *l, float *tmp, uint32_t tmp_cap, xd_err *err);
enum { EXEC_STATE_MATS = MODEL_DELTA_MATS + 2 };
uint32_t exec_state_mats(const model_layer *ml, kern_mat *ret);
/* Floats of a token's row of what the state's operation takes, and of what it leaves. */
uint32_t exec_state_width(const model_params *hp);
uint32_t exec_state_out_width(const model_params *hp);
uint64_t exec_state_scratch_bytes(const exec *x, uint32_t n_tokens);
/* Workspaces have room for so many tokens. */
enum { EXEC_STATE_TOKENS = 2048 };
xd_status exec_state_open(exec *x, xd_err *err);
void exec_state_close(exec *x);
uint64_t exec_state_words(const exec *x); /* of a step's inputs, at most */
/* Cuts the step into segments; sets s->run_words. Then packs their runs and the sequences' slots. */
void exec_state_step(exec *x, const exec_batch *b, exec_shape *s);
void exec_state_pack(const exec *x, const exec_batch *b, const exec_shape *s, const exec_layout *in);
/* Takes the place of exec_build_attention(). */
xd_status exec_state_layer(exec *x, uint32_t layer, const exec_shape *s, xd_err *err);

xd_status exec_split_open(exec *x, xd_err *err);
void exec_split_close(exec *x);
/* The step's experts may be divided between device and CPU. */
bool exec_split_wanted(const exec *x, const exec_shape *s, bool prefill);
xd_status exec_split_step(exec *x, const exec_shape *s, const uint32_t *seq_start, const pager_view *view,
                          xd_err *err) XD_MUST_CHECK;
void exec_split_forget(exec *x); /* its recordings */
/* Behind pager_step_end(): the times of the step, and what both sides' say for the next. */
void exec_split_take(exec *x, const exec_shape *s, exec_times *t);

xd_status exec_ahead_open(exec *x, xd_err *err);
bool exec_ahead_wanted(exec *x, const exec_shape *s);
/* What the layer's router and experts are told; NULL: nothing. */
const kern_ahead *exec_ahead_of(const exec *x, uint32_t layer, const exec_shape *s);
/* After the step has been waited for. */
void exec_ahead_take(exec *x, const exec_shape *s, exec_times *t);

/* A layer's router for n_tokens rows of x->x; pick->ids is left to the caller. */
void exec_router_args(const exec *x, uint32_t layer, uint32_t n_tokens, kern_linear_args *logits,
                      kern_router_args *pick);

/* The parts of a step. All but the experts of a layer, and what they need: */
xd_status exec_build_begin(exec *x, const exec_shape *s, xd_err *err);
xd_status exec_build_attention(exec *x, uint32_t layer, const exec_shape *s, const uint32_t *seq_start, xd_err *err);
xd_status exec_build_router(exec *x, uint32_t layer, const exec_shape *s, const pager_view *view, xd_err *err);
/* Adds a layer's shared expert to what its experts add up to, or leaves it in x->add_shared; behind its router. */
xd_status exec_build_shared(exec *x, uint32_t layer, const exec_shape *s, xd_err *err);
/* What a layer's FFN is given, behind its router. */
const float *exec_ffn_input(const exec *x, uint32_t layer);
/* Where a layer's experts add up; and behind them: x->x gets that, if it is elsewhere. */
float *exec_ffn_sum(const exec *x, uint32_t layer);
xd_status exec_build_ffn_end(exec *x, uint32_t layer, const exec_shape *s, xd_err *err);
xd_status exec_build_head(exec *x, const exec_shape *s, xd_err *err);
xd_status exec_build_results(exec *x, const exec_shape *s, xd_err *err);
/* The experts, by the device's own plan. */
kern_moe_args exec_moe_args(const exec *x, uint32_t layer, const exec_shape *s, const pager_view *view);
/* Between router and experts, x->counts_host having been waited for: brings the pages. */
xd_status exec_require(exec *x, uint32_t layer, const exec_shape *s, xd_err *err);
bool exec_same_shape(const exec_shape *a, const exec_shape *b);
void exec_mark(exec *x, uint32_t slot);

/* Launches (or records) every operation of a step: from the upload of its packed inputs to the download of its results. */
xd_status exec_build(exec *x, const exec_shape *s, const uint32_t *seq_start, const pager_view *view, xd_err *err);

#endif
