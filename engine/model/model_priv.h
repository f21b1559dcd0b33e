/* model_priv.h - the insides of a model, for the files of this folder. */
#ifndef ENGINE_MODEL_PRIV_H
#define ENGINE_MODEL_PRIV_H

#include <jansson.h>

#include "engine/model/gguf.h"
#include "engine/model/model.h"
#include "engine/model/safetensors.h"

#define MODEL_MAX_EXPERTS 4096
#define MODEL_MAX_TOP_K   64
#define MODEL_MAX_HEAD    512
#define MODEL_MAX_LATENT  512 /* kv_lora_rank, and the parts of a head */

/* What quantization_config says of a checkpoint in FP8. */
typedef struct model_fp8 {
    const char *suffix;              /* of the scales' tensor, in place of "weight"; NULL: not in FP8 */
    uint32_t block_rows, block_cols; /* that share a scale; 0: as the tensor's shape says, a matrix or a row */
} model_fp8;

/* What it says of one in INT4 or NVFP4. */
typedef struct model_four {
    model_four_order order;                   /* MODEL_FOUR_NONE: in neither */
    uint32_t group;                           /* columns; 0: all */
    bool zeros, zeros_less_1, zeros_may_wrap; /* matrices have zeros, and how: see model_tensor */
    bool needs_columns;                       /* the group of each column must be told */
} model_four;

/* What the contents of a tensor have that makes it unfit; says NULL: nothing. */
typedef struct model_fault {
    xd_status status;
    const void *at; /* where the tensor in the file begins */
    const char *says;
} model_fault;

struct model {
    model_params params;
    model_layer *layers;   /* [n_layers] */
    model_tensor *experts; /* all layers' expert tensors, layer by layer */
    model_tensor embed, final_norm, final_norm_bias, lm_head, lm_head_bias;
    bool attention_bias; /* those that the family has when asked for */
    bool head_bias;      /* the LM head has one */
    bool k_is_v;         /* in layers without a window */
    bool qk_norm;        /* Q and K have norms */
    bool head_gates;     /* a gate of attention's result is of a head, not of each of its values */
    bool choice_bias;    /* the choice of experts has a bias */
    bool conv_bias;      /* so have convolutions of Mamba2 */
    bool mxfp4;          /* so are gpt-oss's experts stored */
    model_fp8 fp8;
    model_four four;
    const char *prefix, *head; /* the family's, or of what is around it */
    const char *const (*names)[2];
    model_fault fault; /* the first that was found */
    model_file *files;
    uint32_t n_files;
    safetensors **shards; /* [n_shards], NULL for a synthetic model */
    uint32_t n_shards;
    gguf **ggufs; /* [n_ggufs], a model from GGUF files */
    uint32_t n_ggufs;
    tok_gguf vocabulary; /* of ggufs[0]; model NULL: none */
    const char *chat_template;
    char *dir;
    uint64_t expert_bytes, trunk_bytes, fingerprint;
    uint64_t format_bytes[2][FMT_COUNT]; /* of the trunk, of the experts */
};

/* One family of checkpoints: how its config.json is read and what its tensors are called. Names hold %u for the layer, and in
 * `experts` for layer, then expert. */
typedef struct model_arch model_arch;
struct model_arch {
    const char *model_type, *class_name;
    const char *defaults; /* JSON: what config.json need not say */
    double default_theta;
    /* A language model behind one that sees or hears: its keys are in the object nested[0], or in nested[1] of that, its tensors have
     * `prefix` in place of "model.", and the head may have a name of its own. */
    const char *nested[2], *prefix, *head;
    /* What its tensors have in place of parts of the usual names: pairs of usual and own, first fit, NULL at the end. NULL: they have the usual. */
    const char *const (*names)[2];
    bool joined_qkv;                     /* Q, K and V are one matrix, "self_attn.query_key_value" */
    const char *experts[MODEL_MATRICES]; /* NULL: a dense family */
    const char *gate_up,
        *down; /* or all experts in two tensors: gate, then up; NULL: these never have other names than usual */
    enum {
        MODEL_STRAIGHT,
        MODEL_MAY_TURN, /* experts may be in two tensors with the usual names, transposed where they do not fit as they are */
        MODEL_TURNS, /* they are transposed there whatever their shape */
    } turned;
    bool stacked; /* `experts` are tensors of all experts */
    const char *router, *moe_size_key;
    const char *dense_size_key; /* NULL: intermediate_size */
    enum {
        MODEL_NORMS_BEFORE,  /* attention and FFN have norms before them */
        MODEL_NORMS_EXPERTS, /* and behind FFNs with experts (A.X-K1) */
        MODEL_NORMS_BEHIND,  /* behind them instead (OLMo 2) */
        MODEL_NORMS_AROUND,  /* before and behind them (Trinity) */
        MODEL_NORMS_OWN, /* the same, and layers a scale; with experts, what is beside a shared one has its own (Gemma) */
    } norms;
    const char *choice_bias; /* must exist, unless `read` finds that it does not */
    const char *shared,
        *shared_gate;            /* of the shared expert: what stands before ".gate_proj.weight"; its gate, or NULL */
    bool shared_joined;          /* it has ".input_linear.weight", gate over up, and ".output_linear.weight" instead */
    const char *shared_size_key; /* its size, times that of shared_count_key where there is one */
    const char *shared_count_key;
    enum {
        MODEL_MOE_STEP,   /* by decoder_sparse_step and mlp_only_layers */
        MODEL_MOE_ALL,    /* all layers */
        MODEL_MOE_FIRST,  /* but for the first first_k_dense_replace */
        MODEL_MOE_LISTED, /* by mlp_layer_types, or else as MODEL_MOE_FIRST */
        MODEL_MOE_RANGE,  /* from moe_layer_start_index to moe_layer_end_index, every moe_layer_interval */
        MODEL_MOE_ASKED,  /* all layers with enable_moe_block, else none */
        MODEL_MOE_NAMED,  /* those in moe_layers, else every interleave_moe_layer_step-th */
    } moe_layers;
    bool own_heads;        /* num_attention_heads_per_layer may list the heads of Q */
    bool lists;            /* numbers of experts and their sizes may be lists by layers, of the same value for all */
    bool norm_topk_always; /* else norm_topk_prob, default false */
    enum {
        MODEL_ROPE_ONE,     /* the same in all layers */
        MODEL_ROPE_SLIDING, /* with a sliding_window, in the layers that have it alone */
        MODEL_ROPE_BASES,   /* layer_rope_theta may list a base for each layer; 0: it is not rotated */
        MODEL_ROPE_TYPES,   /* rope_parameters have an object for layers with a window and one for others */
        MODEL_ROPE_LONG,    /* the same in all layers: the plain one, or longrope with scales of its own */
        MODEL_ROPE_NOPE, /* layers that no_rope_layers has 0 for, else every no_rope_layer_interval-th, are not rotated */
    } rope;
    bool partial_rotary; /* partial_rotary_factor, or rotary_dim, is known */
    bool
        gpt_oss; /* sinks and biases of router and experts must exist; experts are MODEL_PAIRED, their activation clamped */
    bool sinks;       /* of attention: must exist, as with gpt_oss */
    bool layer_norms; /* in place of RMS norms; biases of attention, where asked for, must exist */
    bool latent;      /* latent attention (DeepSeek) */
    enum {
        MODEL_INDEX_NONE,
        MODEL_INDEX_ALL,   /* an indexer in every layer, rotated by halves */
        MODEL_INDEX_TYPES, /* by indexer_types or what stands for it, rotated in pairs */
    } index;               /* with latent attention */
    enum {
        MODEL_DELTA_NONE,
        MODEL_DELTA_GROUPED, /* some layers are linear, as layer_types or full_attention_interval say; their matrices by key heads */
        MODEL_DELTA_FLAT, /* the same, each part of a row a matrix */
        MODEL_DELTA_KIMI, /* by channel, as linear_attn_config says: Q, K and V a matrix each, Z and A behind narrow ones */
    } delta;
    bool
        apart; /* a layer has one of attention, Mamba2 and FFN, as layer_types or hybrid_override_pattern says, and no gates in FFNs */
    bool shortconv;  /* some layers are short convolutions, as layer_types says */
    bool ssm;        /* the same of Mamba2 */
    bool full_heads; /* layers without a window may have other heads, and K for V (attention_k_eq_v) */
    bool v_normed;   /* heads of V are normed by no weights */
    /* Tokens that end an answer, of a GGUF file, beside its eos_token_id; NULL: those that it names. */
    const char *const *ends;
    bool geglu;   /* the FFN's activation is hidden_activation, GELU by tanh */
    bool gated;   /* attention's result is gated, by rows among Q's */
    bool gate;    /* the same by a matrix of its own */
    bool centred; /* norms are stored less 1 */
    enum {
        MODEL_NORM_NONE,
        MODEL_NORM_HEAD,  /* of each head of Q and K: must exist */
        MODEL_NORM_ASKED, /* the same, with use_qk_norm */
        MODEL_NORM_WIDE,  /* of Q and of K as a whole: must exist */
    } qk_norm;
    bool norm_last; /* those of heads are behind the rotation */
    enum {
        MODEL_BIAS_NONE,
        MODEL_BIAS_QKV,       /* must exist */
        MODEL_BIAS_QKV_ASKED, /* the same, with bias_key */
        MODEL_BIAS_ASKED,     /* of Q, K, V and O, with bias_key */
    } bias;
    const char *bias_key; /* NULL: attention_bias */
    /* Brings what only this family's config.json says under keys of others, defaults being in it. NULL: nothing. */
    xd_status (*spread)(json_t *config, const char *file, xd_err *err);
    enum {
        MODEL_WINDOW_NONE,
        MODEL_WINDOW_ALL,      /* sliding_window in every layer */
        MODEL_WINDOW_SWITCHED, /* the same, with use_sliding_window */
        MODEL_WINDOW_TYPES,    /* by layer_types, else none */
        MODEL_WINDOW_FOURTHS,  /* by layer_types, else but for every fourth from the first on */
        MODEL_WINDOW_PATTERN,  /* by layer_types, else but for every sliding_window_pattern-th */
        MODEL_WINDOW_SIXTHS,   /* by layer_types, else but for every sixth and the last */
        MODEL_WINDOW_FROM,     /* by layer_types or from max_window_layers on */
        MODEL_WINDOW_LISTED,   /* with use_sliding_window, by layer_types or from max_window_layers on */
        MODEL_WINDOW_EVEN,     /* by layer_types, else in every second layer from the first on */
        MODEL_WINDOW_TURNS,    /* as MODEL_WINDOW_LISTED, but else every other layer below max_window_layers */
        MODEL_WINDOW_CHUNKS,   /* chunks of attention_chunk_size, by layer_types, else in layers that are rotated */
    } window;
    /* What else the configuration says, when all that is common has been read: see families.c. NULL: nothing. */
    xd_status (*read)(model *m, const json_t *config, const char *file, xd_err *err);
};

/* A tensor that a layer needs: what its name ends in, and where it goes. */
typedef struct model_part {
    const char *name; /* NULL: this model has none */
    uint32_t rows, cols;
    model_tensor *to;
} model_part;

/* Of a gate that is a matrix of its own. */
static inline uint32_t model_gate_rows(const model *m, const model_layer *l)
{
    return l->n_heads * (m->head_gates ? 1 : l->head_dim);
}

/* K's matrix is V's too. */
static inline bool model_k_is_v(const model *m, const model_layer *l)
{
    return m->k_is_v && !l->window;
}

const model_arch *model_arch_find(const char *model_type);
const model_arch *model_arch_of_class(const char *class_name); /* by what `architectures` names; NULL: none */
const char *model_known_archs(char *out, size_t cap);          /* their model_types, comma-separated; returns out */
/* A model that sees or hears around a language model of any family: the object `text` of its config.json has a model_type of its own, its
 * tensors stand below "language_model.". */
typedef struct model_wrapper {
    const char *model_type, *class_names[2], *text, *text_type; /* the last: of a text that names none; NULL: it must */
} model_wrapper;

const model_wrapper *model_wrapper_find(const char *model_type); /* NULL: none */
/* The family that config (of a config.json) names, and into config what it leaves to the family's defaults, into m what its tensors are
 * called; XD_UNSUPPORTED where it names another class of model, or a family that is not known. */
xd_status model_arch_of(model *m, json_t *config, const char *file, const model_arch **ret, xd_err *err) XD_MUST_CHECK;

/* Reads config.json's hyper-parameters into m->params and allocates m->layers and m->experts with n_experts, top_k, d_ff and window
 * of each layer. `file` is for messages. */
xd_status model_read_params(model *m, const model_arch *arch, const json_t *config, const char *file,
                            xd_err *err) XD_MUST_CHECK;

/* The part of it that differs between layers. */
xd_status model_read_layers(model *m, const model_arch *arch, const json_t *config, const char *file,
                            xd_err *err) XD_MUST_CHECK;

/* Heads of layers without a window: p->full_*, those of others being known. */
xd_status model_read_full_heads(const model_arch *arch, const json_t *config, const char *file, model_params *p,
                                xd_err *err) XD_MUST_CHECK;

/* Latent attention: reads p->latent, n_kv_heads and head_dim, n_heads being set; and attn_scale. */
xd_status model_read_latent(const json_t *config, const char *file, model_params *p, xd_err *err) XD_MUST_CHECK;
xd_status model_scale_latent(const json_t *config, const char *file, model_params *p, xd_err *err) XD_MUST_CHECK;
/* The indexer, and which layers have one: m's layers are there. */
xd_status model_read_index(model *m, const model_arch *arch, const json_t *config, const char *file,
                           xd_err *err) XD_MUST_CHECK;
/* Linear layers: reads p->delta, p->shortconv or p->ssm, and which layers they are. */
xd_status model_read_delta(model *m, const model_arch *arch, const json_t *config, const char *file,
                           xd_err *err) XD_MUST_CHECK;
xd_status model_read_shortconv(model *m, const json_t *config, const char *file, xd_err *err) XD_MUST_CHECK;
xd_status model_read_ssm(model *m, const model_arch *arch, const json_t *config, const char *file,
                         xd_err *err) XD_MUST_CHECK;
xd_status model_read_qwen3_5(model *m, const json_t *config, const char *file, xd_err *err) XD_MUST_CHECK;
xd_status model_read_olmoe(model *m, const json_t *config, const char *file, xd_err *err) XD_MUST_CHECK;
xd_status model_read_granite(model *m, const json_t *config, const char *file, xd_err *err) XD_MUST_CHECK;
xd_status model_read_granite_hybrid(model *m, const json_t *config, const char *file, xd_err *err) XD_MUST_CHECK;
xd_status model_read_dots1(model *m, const json_t *config, const char *file, xd_err *err) XD_MUST_CHECK;
xd_status model_read_solar(model *m, const json_t *config, const char *file, xd_err *err) XD_MUST_CHECK;
xd_status model_read_glm4(model *m, const json_t *config, const char *file, xd_err *err) XD_MUST_CHECK;
xd_status model_read_deepseek_v2(model *m, const json_t *config, const char *file, xd_err *err) XD_MUST_CHECK;
xd_status model_read_deepseek_v3(model *m, const json_t *config, const char *file, xd_err *err) XD_MUST_CHECK;
xd_status model_read_mistral4(model *m, const json_t *config, const char *file, xd_err *err) XD_MUST_CHECK;
xd_status model_read_ernie(model *m, const json_t *config, const char *file, xd_err *err) XD_MUST_CHECK;
xd_status model_read_gemma4(model *m, const json_t *config, const char *file, xd_err *err) XD_MUST_CHECK;
xd_status model_read_bailing(model *m, const json_t *config, const char *file, xd_err *err) XD_MUST_CHECK;
xd_status model_read_afmoe(model *m, const json_t *config, const char *file, xd_err *err) XD_MUST_CHECK;
xd_status model_read_hunyuan(model *m, const json_t *config, const char *file, xd_err *err) XD_MUST_CHECK;
xd_status model_read_lfm2(model *m, const json_t *config, const char *file, xd_err *err) XD_MUST_CHECK;
xd_status model_read_minimax(model *m, const json_t *config, const char *file, xd_err *err) XD_MUST_CHECK;
xd_status model_read_phimoe(model *m, const json_t *config, const char *file, xd_err *err) XD_MUST_CHECK;
xd_status model_read_llama4(model *m, const json_t *config, const char *file, xd_err *err) XD_MUST_CHECK;
xd_status model_read_kimi_linear(model *m, const json_t *config, const char *file, xd_err *err) XD_MUST_CHECK;
xd_status model_read_nemotron_h(model *m, const json_t *config, const char *file, xd_err *err) XD_MUST_CHECK;

xd_status model_read_step(model *m, const json_t *config, const char *file, xd_err *err) XD_MUST_CHECK;
xd_status model_read_laguna(model *m, const json_t *config, const char *file, xd_err *err) XD_MUST_CHECK;
xd_status model_spread_step(json_t *config, const char *file, xd_err *err) XD_MUST_CHECK;
xd_status model_spread_laguna(json_t *config, const char *file, xd_err *err) XD_MUST_CHECK;

/* quantization_config of a checkpoint in FP8; XD_UNSUPPORTED where it is in something else. */
xd_status model_read_fp8(const json_t *q, const char *file, model_fp8 *ret, xd_err *err) XD_MUST_CHECK;
/* The scales of t, the tensor `name` of F8_E4M3 in file `path`. */
xd_status model_take_scales(const model *m, const char *name, const char *path, model_tensor *t,
                            xd_err *err) XD_MUST_CHECK;
/* Of n tensors, `stride` apart, which are one in the file: in blocks of each. */
xd_status model_take_stacked_scales(const model *m, const char *name, const char *path, uint32_t n, uint32_t stride,
                                    model_tensor *ret, xd_err *err) XD_MUST_CHECK;
/* What is common to all that compressed-tensors writes. */
xd_status model_check_compressed(const json_t *q, const char *file, xd_err *err) XD_MUST_CHECK;
/* Is a checkpoint with the quantization_config q in INT4 or NVFP4, in as far as method and format tell? Then that can be read. */
bool model_is_four_bits(const json_t *q);
xd_status model_read_four_bits(const json_t *q, const char *file, model_four *ret, xd_err *err) XD_MUST_CHECK;
/* The matrix that would be the tensor `name`; *ret_found false: it is in neither. */
xd_status model_take_four_bits(const model *m, const char *name, uint32_t rows, uint32_t cols, model_tensor *ret,
                               bool *ret_found, xd_err *err) XD_MUST_CHECK;
/* Some writers of GPTQ give each matrix a bias, of zeros where the model has none; ModelOpt may tell scales for a KV cache in FP8. */
bool model_is_of_no_use(const model *m, const safetensors_entry *e);
/* What the file calls the tensor `name`: that, or as written to out. */
const char *model_stored_name(const model *m, const char *name, char *out, size_t cap);
/* Rows first .. first + n of a matrix as one of their own. */
model_tensor model_some_rows(const model_tensor *t, uint32_t first, uint32_t n);
/* up, of which gate becomes the first half of the rows and up the second. */
void model_halve(model_tensor *gate, model_tensor *up);
/* Q, K and V, or their biases, of the one tensor that all of them are. */
void model_cut_qkv(model_layer *y, const model_tensor *all, bool biases, uint32_t q, uint32_t kv);
/* The tensor of a directory, which counts as taken; NULL: none. */
const safetensors_entry *model_find_tensor(const model *m, const char *name, const char **ret_path);
uint64_t model_data_bytes(const model_tensor *t); /* that t->data points to */
uint64_t model_zero_bytes(const model_tensor *t); /* of INT4, that t->four.zeros points to */
model_fault model_find_fault(const model_tensor *t);

/* A file of the model as it was when it was mapped; path is borrowed. */
model_file model_file_of(const char *path, const mapped_file *map);

/* Opens path (the first of its parts) into m: everything but the sums. */
xd_status model_open_gguf(model *m, const char *path, xd_err *err) XD_MUST_CHECK;
const gguf_tensor *model_gguf_find(const model *m, const char *name); /* in any of its files; NULL: none */
/* The hyper-parameters in the metadata, under config.json's keys, into config; and the family. */
xd_status model_gguf_config(model *m, const model_arch **ret, json_t *config, xd_err *err) XD_MUST_CHECK;
/* XD_UNSUPPORTED: metadata that would change the result say what is not known. m's parameters are read by then. */
xd_status model_gguf_check_keys(const model *m, xd_err *err) XD_MUST_CHECK;
/* Of a `deepseek2` file: which family it is of, and the hyper-parameters of its attention, experts and rotation into config, which has
 * rope_parameters already. */
xd_status model_gguf_latent_type(const model *m, const char **ret, xd_err *err) XD_MUST_CHECK;
xd_status model_gguf_latent(const model *m, json_t *config, xd_err *err) XD_MUST_CHECK;
/* Layers by their kinds of heads, where layers without a window have others: into config, which has what is common. */
xd_status model_gguf_heads(const gguf *g, json_t *config, xd_err *err) XD_MUST_CHECK;
/* Step-3.5: what metadata list by layers, as config.json does once it has been spread. */
xd_status model_gguf_step(const gguf *g, json_t *config, xd_err *err) XD_MUST_CHECK;
/* The tokenizer in g's metadata; ret->model NULL: none. It borrows from g. */
xd_status model_gguf_vocabulary(const gguf *g, tok_gguf *ret, xd_err *err) XD_MUST_CHECK;
/* The vocabulary, the tokens that begin and end a text, and the chat template, into m, whose vocab is known. */
xd_status model_gguf_words(model *m, const model_arch *a, xd_err *err) XD_MUST_CHECK;

/* Opens the directory `path`, or a geometry by its name or its config.json, into m: everything but the sums. */
xd_status model_open_dir(model *m, const char *path, xd_err *err) XD_MUST_CHECK;
xd_status model_open_synthetic(model *m, const model_options *opt, xd_err *err) XD_MUST_CHECK;

/* Ends of an answer, and sampling defaults of the generation_config.json in m->dir. `file` is config's, for messages. */
xd_status model_read_defaults(model *m, const json_t *config, const char *file, xd_err *err) XD_MUST_CHECK;
void model_clear_defaults(model_params *p); /* says nothing of any */

#endif
