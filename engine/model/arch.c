/* arch.c - the table of architectures; arch_read.c reads hyper-parameters by it. Adding a family of this shape is one row.
 *
 * Tensor names and defaults are those of Hugging Face transformers (modeling_*.py, configuration_*.py). */
#include <string.h>
#include <strings.h>

#include "engine/model/model_priv.h"

#define QWEN_EXPERT(m)    "model.layers.%u.mlp.experts.%u." m "_proj.weight"
#define MIXTRAL_EXPERT(m) "model.layers.%u.block_sparse_moe.experts.%u." m ".weight"
#define LFM2_EXPERT(m)    "model.layers.%u.feed_forward.experts.%u." m ".weight"

#define SHARED "model.layers.%u.mlp.shared_experts"

/* Qwen3.5, alone and behind what sees. */
#define QWEN3_5_MOE(type, class)                                                                                       \
    .model_type = type, .class_name = class,                                                                           \
    .defaults = "{\"vocab_size\":248320,\"hidden_size\":2048,\"num_hidden_layers\":40,\"num_attention_heads\":16,"     \
                "\"num_key_value_heads\":2,\"head_dim\":256,\"max_position_embeddings\":32768,"                        \
                "\"moe_intermediate_size\":512,\"shared_expert_intermediate_size\":512,\"num_experts_per_tok\":8,"     \
                "\"num_local_experts\":256,\"partial_rotary_factor\":0.25}",                                           \
    .default_theta = 10000, .experts = {QWEN_EXPERT("gate"), QWEN_EXPERT("up"), QWEN_EXPERT("down")},                  \
    .router = "model.layers.%u.mlp.gate.weight", .moe_size_key = "moe_intermediate_size", .moe_layers = MODEL_MOE_ALL, \
    .shared = "model.layers.%u.mlp.shared_expert", .shared_gate = "model.layers.%u.mlp.shared_expert_gate.weight",     \
    .shared_size_key = "shared_expert_intermediate_size", .norm_topk_always = true, .partial_rotary = true,            \
    .delta = MODEL_DELTA_FLAT, .gated = true, .centred = true, .qk_norm = MODEL_NORM_HEAD, .bias = MODEL_BIAS_ASKED,   \
    .read = model_read_qwen3_5

/* gpt-oss ends an answer with one token, a call of a tool with another, and each message with a third, behind which it goes on. Files name only
 * the first, and tools that write them may take the third for an end of the turn. Gemma's files name the end of a text; it ends a turn with
 * another token, and calls of tools with what begins their result. The ids are those of their generation_config.json. */
static const char *const gpt_oss_ends[] = {"<|return|>", "<|call|>", "<|endoftext|>", NULL};
static const char *const phimoe_ends[] = {"<|end|>", "<|assistant|>", "<|endoftext|>", NULL};
static const char *const llama4_ends[] = {"<|end_of_text|>", "<|eom|>", "<|eot|>", NULL};
static const char *const gemma4_ends[] = {"<turn|>", "<|tool_response>", "<eos>", NULL};

static const char *const step_names[][2] = {{".self_attn.gate_proj.", ".self_attn.g_proj."}, {NULL, NULL}};

/* Step-3.5, and Step-3.7's behind what sees. */
#define STEP(type, class)                                                                                              \
    .model_type = type, .class_name = class,                                                                           \
    .defaults = "{\"vocab_size\":128815,\"hidden_size\":4096,\"intermediate_size\":11264,\"num_hidden_layers\":45,"    \
                "\"num_attention_heads\":64,\"num_key_value_heads\":8,\"head_dim\":128,"                               \
                "\"max_position_embeddings\":128000,\"rms_norm_eps\":1e-5,\"moe_intermediate_size\":1280,"             \
                "\"share_expert_dim\":1280,\"num_experts_per_tok\":8,\"num_local_experts\":288,"                       \
                "\"first_k_dense_replace\":3}",                                                                        \
    .names = step_names,                                                                                               \
    .experts = {"model.layers.%u.moe.gate_proj.weight", "model.layers.%u.moe.up_proj.weight",                          \
                "model.layers.%u.moe.down_proj.weight"},                                                               \
    .stacked = true, .router = "model.layers.%u.moe.gate.weight", .choice_bias = "model.layers.%u.moe.router_bias",    \
    .moe_size_key = "moe_intermediate_size", .moe_layers = MODEL_MOE_LISTED, .shared = "model.layers.%u.share_expert", \
    .shared_size_key = "share_expert_dim", .norm_topk_always = true, .own_heads = true, .gate = true, .centred = true, \
    .partial_rotary = true, .qk_norm = MODEL_NORM_HEAD, .bias = MODEL_BIAS_ASKED, .window = MODEL_WINDOW_TYPES,        \
    .rope = MODEL_ROPE_TYPES, .spread = model_spread_step, .read = model_read_step

/* Gemma 4, alone and behind what sees and hears. */
#define GEMMA4(type, class)                                                                                        \
    .model_type = type, .class_name = class,                                                                       \
    .defaults = "{\"vocab_size\":262144,\"hidden_size\":2304,\"intermediate_size\":9216,\"num_hidden_layers\":30," \
                "\"num_attention_heads\":8,\"num_key_value_heads\":4,\"head_dim\":256,"                            \
                "\"max_position_embeddings\":131072,\"sliding_window\":512,\"hidden_size_per_layer_input\":256,"   \
                "\"tie_word_embeddings\":true,\"bos_token_id\":2,\"eos_token_id\":1,"                              \
                "\"rope_parameters\":{\"sliding_attention\":{\"rope_type\":\"default\",\"rope_theta\":10000.0},"   \
                "\"full_attention\":{\"rope_type\":\"proportional\",\"partial_rotary_factor\":0.25,"               \
                "\"rope_theta\":1000000.0}}}",                                                                     \
    .default_theta = 10000,                                                                                        \
    .experts = {"model.layers.%u.experts.gate_up_proj", "model.layers.%u.experts.gate_up_proj",                    \
                "model.layers.%u.experts.down_proj"},                                                              \
    .gate_up = "model.layers.%u.experts.gate_up_proj", .down = "model.layers.%u.experts.down_proj",                \
    .router = "model.layers.%u.router.proj.weight", .moe_size_key = "moe_intermediate_size",                       \
    .moe_layers = MODEL_MOE_ASKED, .shared = "model.layers.%u.mlp", .shared_size_key = "intermediate_size",        \
    .norm_topk_always = true, .norms = MODEL_NORMS_OWN, .full_heads = true, .v_normed = true, .geglu = true,       \
    .qk_norm = MODEL_NORM_HEAD, .bias = MODEL_BIAS_ASKED, .window = MODEL_WINDOW_SIXTHS, .rope = MODEL_ROPE_TYPES, \
    .ends = gemma4_ends, .read = model_read_gemma4

static const char *const hunyuan_names[][2] = {
    {".q_norm.", ".query_layernorm."}, {".k_norm.", ".key_layernorm."}, {NULL, NULL}};
static const char *const bailing_names[][2] = {{"model.embed_tokens.", "model.word_embeddings."},
                                               {".self_attn.q_norm.", ".attention.query_layernorm."},
                                               {".self_attn.k_norm.", ".attention.key_layernorm."},
                                               {".self_attn.o_proj.", ".attention.dense."},
                                               {".self_attn.", ".attention."},
                                               {NULL, NULL}};
static const char *const lfm2_names[][2] = {
    {"input_layernorm.", "operator_norm."},
    {"post_attention_layernorm.", "ffn_norm."},
    {"self_attn.o_proj.", "self_attn.out_proj."},
    {"self_attn.q_norm.", "self_attn.q_layernorm."},
    {"self_attn.k_norm.", "self_attn.k_layernorm."},
    {"mlp.gate_proj.", "feed_forward.w1."},
    {"mlp.up_proj.", "feed_forward.w3."},
    {"mlp.down_proj.", "feed_forward.w2."},
    {"mlp.", "feed_forward."},
    {"model.norm.", "model.embedding_norm."},
    {NULL, NULL},
};

static const char *const llama4_names[][2] = {{"mlp.", "feed_forward."}, {NULL, NULL}};

static const char *const nemotron_names[][2] = {
    {"input_layernorm.", "norm."},
    {"self_attn.", "mixer."},
    {"mamba.", "mixer."},
    {"mlp.", "mixer."},
    {"model.norm.", "model.norm_f."},
    {"model.embed_tokens.", "model.embeddings."},
    {NULL, NULL},
};

/* Ling 2.0, and Sarvam's small one, which comes of it: GLM-4.5's layers by other names. */
#define BAILING(type, class)                                                                                    \
    .model_type = type, .class_name = class, .names = bailing_names, .joined_qkv = true,                        \
    .experts = {QWEN_EXPERT("gate"), QWEN_EXPERT("up"), QWEN_EXPERT("down")},                                   \
    .router = "model.layers.%u.mlp.gate.weight", .choice_bias = "model.layers.%u.mlp.gate.expert_bias",         \
    .moe_size_key = "moe_intermediate_size", .moe_layers = MODEL_MOE_FIRST, .shared = SHARED,                   \
    .shared_size_key = "moe_intermediate_size", .shared_count_key = "n_shared_experts", .partial_rotary = true, \
    .qk_norm = MODEL_NORM_ASKED, .bias = MODEL_BIAS_QKV_ASKED, .read = model_read_bailing

static const model_arch archs[] = {
    {.model_type = "llama",
     .class_name = "LlamaForCausalLM",
     .defaults = "{\"vocab_size\":32000,\"hidden_size\":4096,\"intermediate_size\":11008,\"num_hidden_layers\":32,"
                 "\"num_attention_heads\":32,\"max_position_embeddings\":2048}",
     .default_theta = 10000,
     .bias = MODEL_BIAS_ASKED},
    {.model_type = "mistral",
     .class_name = "MistralForCausalLM",
     .defaults = "{\"vocab_size\":32000,\"hidden_size\":4096,\"intermediate_size\":14336,\"num_hidden_layers\":32,"
                 "\"num_attention_heads\":32,\"num_key_value_heads\":8,\"max_position_embeddings\":131072,"
                 "\"sliding_window\":4096}",
     .default_theta = 10000,
     .window = MODEL_WINDOW_ALL},
    {.model_type = "mixtral",
     .class_name = "MixtralForCausalLM",
     .defaults = "{\"vocab_size\":32000,\"hidden_size\":4096,\"intermediate_size\":14336,\"num_hidden_layers\":32,"
                 "\"num_attention_heads\":32,\"num_key_value_heads\":8,\"max_position_embeddings\":131072,"
                 "\"rms_norm_eps\":1e-5,\"num_local_experts\":8,\"num_experts_per_tok\":2}",
     .default_theta = 1e6,
     .experts = {MIXTRAL_EXPERT("w1"), MIXTRAL_EXPERT("w3"), MIXTRAL_EXPERT("w2")},
     .router = "model.layers.%u.block_sparse_moe.gate.weight",
     .moe_size_key = "intermediate_size",
     .norm_topk_always = true,
     .window = MODEL_WINDOW_ALL},
    {.model_type = "qwen2",
     .class_name = "Qwen2ForCausalLM",
     .defaults = "{\"vocab_size\":151936,\"hidden_size\":4096,\"intermediate_size\":22016,\"num_hidden_layers\":32,"
                 "\"num_attention_heads\":32,\"num_key_value_heads\":32,\"max_position_embeddings\":32768,"
                 "\"sliding_window\":4096,\"max_window_layers\":28}",
     .default_theta = 10000,
     .bias = MODEL_BIAS_QKV,
     .window = MODEL_WINDOW_LISTED},
    {.model_type = "qwen3",
     .class_name = "Qwen3ForCausalLM",
     .defaults = "{\"vocab_size\":151936,\"hidden_size\":4096,\"intermediate_size\":22016,\"num_hidden_layers\":32,"
                 "\"num_attention_heads\":32,\"num_key_value_heads\":32,\"head_dim\":128,"
                 "\"max_position_embeddings\":32768,\"sliding_window\":4096,\"max_window_layers\":28}",
     .default_theta = 10000,
     .qk_norm = MODEL_NORM_HEAD,
     .bias = MODEL_BIAS_ASKED,
     .window = MODEL_WINDOW_LISTED},
    {.model_type = "qwen3_moe",
     .class_name = "Qwen3MoeForCausalLM",
     .defaults = "{\"vocab_size\":151936,\"hidden_size\":2048,\"intermediate_size\":6144,\"num_hidden_layers\":24,"
                 "\"num_attention_heads\":32,\"num_key_value_heads\":4,\"max_position_embeddings\":32768,"
                 "\"sliding_window\":4096,\"moe_intermediate_size\":768,\"num_experts_per_tok\":8,"
                 "\"num_local_experts\":128}",
     .default_theta = 10000,
     .experts = {QWEN_EXPERT("gate"), QWEN_EXPERT("up"), QWEN_EXPERT("down")},
     .router = "model.layers.%u.mlp.gate.weight",
     .moe_size_key = "moe_intermediate_size",
     .qk_norm = MODEL_NORM_HEAD,
     .bias = MODEL_BIAS_ASKED,
     .window = MODEL_WINDOW_SWITCHED},
    {.model_type = "gpt_oss",
     .class_name = "GptOssForCausalLM",
     .defaults = "{\"vocab_size\":201088,\"hidden_size\":2880,\"intermediate_size\":2880,\"num_hidden_layers\":36,"
                 "\"num_attention_heads\":64,\"num_key_value_heads\":8,\"head_dim\":64,"
                 "\"max_position_embeddings\":131072,\"rms_norm_eps\":1e-5,\"sliding_window\":128,"
                 "\"num_local_experts\":128,\"num_experts_per_tok\":4,\"attention_bias\":true,"
                 "\"rope_parameters\":{\"rope_type\":\"yarn\",\"factor\":32.0,\"beta_fast\":32.0,\"beta_slow\":1.0,"
                 "\"truncate\":false,\"original_max_position_embeddings\":4096}}",
     .default_theta = 150000,
     .experts = {"model.layers.%u.mlp.experts.gate_up_proj", "model.layers.%u.mlp.experts.gate_up_proj",
                 "model.layers.%u.mlp.experts.down_proj"},
     .router = "model.layers.%u.mlp.router.weight",
     .moe_size_key = "intermediate_size",
     .norm_topk_always = true,
     .gpt_oss = true,
     .ends = gpt_oss_ends,
     .bias = MODEL_BIAS_ASKED,
     .window = MODEL_WINDOW_EVEN},
    {.model_type = "qwen2_moe",
     .class_name = "Qwen2MoeForCausalLM",
     .defaults = "{\"vocab_size\":151936,\"hidden_size\":2048,\"intermediate_size\":5632,\"num_hidden_layers\":24,"
                 "\"num_attention_heads\":16,\"num_key_value_heads\":16,\"max_position_embeddings\":32768,"
                 "\"sliding_window\":4096,\"max_window_layers\":28,\"moe_intermediate_size\":1408,"
                 "\"shared_expert_intermediate_size\":5632,\"num_experts_per_tok\":4,\"num_local_experts\":60,"
                 "\"qkv_bias\":true}",
     .default_theta = 10000,
     .experts = {QWEN_EXPERT("gate"), QWEN_EXPERT("up"), QWEN_EXPERT("down")},
     .router = "model.layers.%u.mlp.gate.weight",
     .moe_size_key = "moe_intermediate_size",
     .shared = "model.layers.%u.mlp.shared_expert",
     .shared_gate = "model.layers.%u.mlp.shared_expert_gate.weight",
     .shared_size_key = "shared_expert_intermediate_size",
     .bias = MODEL_BIAS_QKV_ASKED,
     .bias_key = "qkv_bias",
     .window = MODEL_WINDOW_TURNS},
    {.model_type = "olmoe",
     .class_name = "OlmoeForCausalLM",
     .defaults = "{\"vocab_size\":50304,\"hidden_size\":2048,\"intermediate_size\":2048,\"num_hidden_layers\":16,"
                 "\"num_attention_heads\":16,\"max_position_embeddings\":4096,\"rms_norm_eps\":1e-5,"
                 "\"num_experts_per_tok\":8,\"num_local_experts\":64,\"eos_token_id\":50279}",
     .default_theta = 10000,
     .experts = {QWEN_EXPERT("gate"), QWEN_EXPERT("up"), QWEN_EXPERT("down")},
     .router = "model.layers.%u.mlp.gate.weight",
     .moe_size_key = "intermediate_size",
     .moe_layers = MODEL_MOE_ALL,
     .qk_norm = MODEL_NORM_WIDE,
     .bias = MODEL_BIAS_ASKED,
     .read = model_read_olmoe},
    {.model_type = "flex_olmo",
     .class_name = "FlexOlmoForCausalLM",
     .defaults = "{\"vocab_size\":100352,\"hidden_size\":4096,\"intermediate_size\":11008,\"num_hidden_layers\":32,"
                 "\"num_attention_heads\":32,\"max_position_embeddings\":4096,\"num_experts_per_tok\":5,"
                 "\"num_local_experts\":7,\"eos_token_id\":100257}",
     .default_theta = 500000,
     .experts = {QWEN_EXPERT("gate"), QWEN_EXPERT("up"), QWEN_EXPERT("down")},
     .router = "model.layers.%u.mlp.gate.weight",
     .moe_size_key = "intermediate_size",
     .moe_layers = MODEL_MOE_ALL,
     .norms = MODEL_NORMS_BEHIND,
     .qk_norm = MODEL_NORM_WIDE,
     .bias = MODEL_BIAS_ASKED},
    {.model_type = "granitemoe",
     .class_name = "GraniteMoeForCausalLM",
     .defaults = "{\"vocab_size\":32000,\"hidden_size\":4096,\"intermediate_size\":11008,\"num_hidden_layers\":32,"
                 "\"num_attention_heads\":32,\"max_position_embeddings\":2048,\"num_experts_per_tok\":2,"
                 "\"num_local_experts\":8,\"bos_token_id\":1,\"eos_token_id\":2}",
     .default_theta = 10000,
     .experts = {QWEN_EXPERT("gate"), QWEN_EXPERT("up"), QWEN_EXPERT("down")},
     .gate_up = "model.layers.%u.block_sparse_moe.input_linear.weight",
     .down = "model.layers.%u.block_sparse_moe.output_linear.weight",
     .router = "model.layers.%u.block_sparse_moe.router.layer.weight",
     .moe_size_key = "intermediate_size",
     .moe_layers = MODEL_MOE_ALL,
     .bias = MODEL_BIAS_ASKED,
     .read = model_read_granite},
    {.model_type = "granitemoeshared",
     .class_name = "GraniteMoeSharedForCausalLM",
     .defaults = "{\"vocab_size\":32000,\"hidden_size\":4096,\"intermediate_size\":11008,\"num_hidden_layers\":32,"
                 "\"num_attention_heads\":32,\"max_position_embeddings\":2048,\"num_experts_per_tok\":2,"
                 "\"num_local_experts\":8,\"bos_token_id\":1,\"eos_token_id\":2}",
     .default_theta = 10000,
     .experts = {QWEN_EXPERT("gate"), QWEN_EXPERT("up"), QWEN_EXPERT("down")},
     .gate_up = "model.layers.%u.block_sparse_moe.input_linear.weight",
     .down = "model.layers.%u.block_sparse_moe.output_linear.weight",
     .router = "model.layers.%u.block_sparse_moe.router.layer.weight",
     .moe_size_key = "intermediate_size",
     .moe_layers = MODEL_MOE_ALL,
     .shared = "model.layers.%u.shared_mlp",
     .shared_joined = true,
     .shared_size_key = "shared_intermediate_size",
     .bias = MODEL_BIAS_ASKED,
     .read = model_read_granite},
    {.model_type = "granitemoe_swa",
     .class_name = "GraniteMoeSWAForCausalLM",
     .defaults = "{\"vocab_size\":32000,\"hidden_size\":4096,\"intermediate_size\":11008,\"num_hidden_layers\":32,"
                 "\"num_attention_heads\":32,\"max_position_embeddings\":2048,\"num_experts_per_tok\":2,"
                 "\"num_local_experts\":8,\"sliding_window\":128,\"bos_token_id\":1,\"eos_token_id\":2}",
     .default_theta = 10000,
     .experts = {QWEN_EXPERT("gate"), QWEN_EXPERT("up"), QWEN_EXPERT("down")},
     .gate_up = "model.layers.%u.block_sparse_moe.experts.gate_up_proj",
     .down = "model.layers.%u.block_sparse_moe.experts.down_proj",
     .router = "model.layers.%u.block_sparse_moe.router.weight",
     .moe_size_key = "intermediate_size",
     .moe_layers = MODEL_MOE_ALL,
     .shared = "model.layers.%u.shared_mlp",
     .shared_joined = true,
     .shared_size_key = "shared_intermediate_size",
     .sinks = true,
     .bias = MODEL_BIAS_ASKED,
     .window = MODEL_WINDOW_FOURTHS,
     .rope = MODEL_ROPE_BASES,
     .read = model_read_granite},
    {.model_type = "granitemoehybrid",
     .class_name = "GraniteMoeHybridForCausalLM",
     .defaults = "{\"vocab_size\":32000,\"hidden_size\":4096,\"intermediate_size\":11008,\"num_hidden_layers\":32,"
                 "\"num_attention_heads\":32,\"max_position_embeddings\":2048,\"num_experts_per_tok\":2,"
                 "\"num_local_experts\":8,\"shared_intermediate_size\":1024,\"bos_token_id\":1,\"eos_token_id\":2}",
     .default_theta = 10000,
     .experts = {QWEN_EXPERT("gate"), QWEN_EXPERT("up"), QWEN_EXPERT("down")},
     .gate_up = "model.layers.%u.block_sparse_moe.input_linear.weight",
     .down = "model.layers.%u.block_sparse_moe.output_linear.weight",
     .router = "model.layers.%u.block_sparse_moe.router.layer.weight",
     .moe_size_key = "intermediate_size",
     .moe_layers = MODEL_MOE_ALL,
     .shared = "model.layers.%u.shared_mlp",
     .shared_joined = true,
     .shared_size_key = "shared_intermediate_size",
     .ssm = true,
     .bias = MODEL_BIAS_ASKED,
     .read = model_read_granite_hybrid},
    {.model_type = "nemotron_h",
     .class_name = "NemotronHForCausalLM",
     .defaults = "{\"vocab_size\":131072,\"hidden_size\":4096,\"intermediate_size\":21504,\"num_attention_heads\":32,"
                 "\"num_key_value_heads\":8,\"head_dim\":128,\"max_position_embeddings\":4096,"
                 "\"mamba_n_heads\":128,\"mamba_d_head\":64,\"mamba_n_groups\":8,"
                 "\"mamba_d_state\":128,\"num_local_experts\":8,\"num_experts_per_tok\":2,"
                 "\"moe_intermediate_size\":7688,\"moe_shared_expert_intermediate_size\":7688,"
                 "\"norm_topk_prob\":true,\"bos_token_id\":1,\"eos_token_id\":2}",
     .default_theta = 10000,
     .prefix = "backbone.",
     .names = nemotron_names,
     .experts = {QWEN_EXPERT("up"), QWEN_EXPERT("up"), QWEN_EXPERT("down")},
     .router = "model.layers.%u.mlp.gate.weight",
     .choice_bias = "model.layers.%u.mlp.gate.e_score_correction_bias",
     .moe_size_key = "moe_intermediate_size",
     .shared = SHARED,
     .shared_size_key = "moe_shared_expert_intermediate_size",
     .apart = true,
     .ssm = true,
     .bias = MODEL_BIAS_ASKED,
     .read = model_read_nemotron_h},
    {.model_type = "glm4_moe",
     .class_name = "Glm4MoeForCausalLM",
     .defaults = "{\"vocab_size\":151552,\"hidden_size\":4096,\"intermediate_size\":10944,\"num_hidden_layers\":46,"
                 "\"num_attention_heads\":96,\"num_key_value_heads\":8,\"max_position_embeddings\":131072,"
                 "\"rms_norm_eps\":1e-5,\"moe_intermediate_size\":1408,\"num_experts_per_tok\":8,"
                 "\"num_local_experts\":128,\"n_shared_experts\":1,\"first_k_dense_replace\":1,"
                 "\"norm_topk_prob\":true,\"partial_rotary_factor\":0.5,\"num_nextn_predict_layers\":1}",
     .default_theta = 10000,
     .experts = {QWEN_EXPERT("gate"), QWEN_EXPERT("up"), QWEN_EXPERT("down")},
     .router = "model.layers.%u.mlp.gate.weight",
     .choice_bias = "model.layers.%u.mlp.gate.e_score_correction_bias",
     .moe_size_key = "moe_intermediate_size",
     .moe_layers = MODEL_MOE_FIRST,
     .shared = SHARED,
     .shared_size_key = "moe_intermediate_size",
     .shared_count_key = "n_shared_experts",
     .partial_rotary = true,
     .qk_norm = MODEL_NORM_ASKED,
     .bias = MODEL_BIAS_QKV_ASKED,
     .read = model_read_glm4},
    {.model_type = "ernie4_5_moe",
     .class_name = "Ernie4_5_MoeForCausalLM",
     .defaults = "{\"vocab_size\":103424,\"hidden_size\":2560,\"intermediate_size\":12288,\"num_hidden_layers\":28,"
                 "\"num_attention_heads\":20,\"num_key_value_heads\":4,\"max_position_embeddings\":131072,"
                 "\"rms_norm_eps\":1e-5,\"moe_intermediate_size\":1536,\"num_experts_per_tok\":6,"
                 "\"num_local_experts\":64,\"moe_num_shared_experts\":2,\"moe_layer_start_index\":1,"
                 "\"tie_word_embeddings\":true,\"bos_token_id\":1,\"eos_token_id\":2}",
     .default_theta = 500000,
     .experts = {QWEN_EXPERT("gate"), QWEN_EXPERT("up"), QWEN_EXPERT("down")},
     .router = "model.layers.%u.mlp.gate.weight",
     .choice_bias = "model.layers.%u.mlp.moe_statics.e_score_correction_bias",
     .moe_size_key = "moe_intermediate_size",
     .moe_layers = MODEL_MOE_RANGE,
     .shared = SHARED,
     .shared_size_key = "moe_intermediate_size",
     .shared_count_key = "moe_num_shared_experts",
     .norm_topk_always = true,
     .read = model_read_ernie},
    {.model_type = "minimax_m2",
     .class_name = "MiniMaxM2ForCausalLM",
     .defaults = "{\"vocab_size\":200064,\"hidden_size\":3072,\"intermediate_size\":1536,\"num_hidden_layers\":62,"
                 "\"num_attention_heads\":48,\"num_key_value_heads\":8,\"head_dim\":128,"
                 "\"max_position_embeddings\":196608,\"num_experts_per_tok\":8,\"num_local_experts\":256,"
                 "\"bos_token_id\":200034,\"eos_token_id\":200020}",
     .default_theta = 5e6,
     .experts = {MIXTRAL_EXPERT("w1"), MIXTRAL_EXPERT("w3"), MIXTRAL_EXPERT("w2")},
     .router = "model.layers.%u.block_sparse_moe.gate.weight",
     .choice_bias = "model.layers.%u.block_sparse_moe.e_score_correction_bias",
     .moe_size_key = "intermediate_size",
     .moe_layers = MODEL_MOE_ALL,
     .norm_topk_always = true,
     .partial_rotary = true,
     .qk_norm = MODEL_NORM_WIDE,
     .read = model_read_minimax},
    {.model_type = "phimoe",
     .class_name = "PhimoeForCausalLM",
     .defaults = "{\"vocab_size\":32064,\"hidden_size\":4096,\"intermediate_size\":6400,\"num_hidden_layers\":32,"
                 "\"num_attention_heads\":32,\"num_key_value_heads\":8,\"max_position_embeddings\":131072,"
                 "\"rms_norm_eps\":1e-5,\"num_local_experts\":16,\"num_experts_per_tok\":2,\"bos_token_id\":1,"
                 "\"eos_token_id\":2}",
     .default_theta = 1e6,
     .experts = {MIXTRAL_EXPERT("w1"), MIXTRAL_EXPERT("w3"), MIXTRAL_EXPERT("w2")},
     .router = "model.layers.%u.block_sparse_moe.gate.weight",
     .moe_size_key = "intermediate_size",
     .moe_layers = MODEL_MOE_ALL,
     .layer_norms = true,
     .ends = phimoe_ends,
     .bias = MODEL_BIAS_ASKED,
     .window = MODEL_WINDOW_ALL,
     .rope = MODEL_ROPE_LONG,
     .read = model_read_phimoe},
    {.model_type = "dots1",
     .class_name = "Dots1ForCausalLM",
     .defaults = "{\"vocab_size\":152064,\"hidden_size\":4608,\"intermediate_size\":10944,\"num_hidden_layers\":62,"
                 "\"num_attention_heads\":32,\"num_key_value_heads\":32,\"max_position_embeddings\":2048,"
                 "\"moe_intermediate_size\":1408,\"sliding_window\":4096,\"max_window_layers\":62}",
     .default_theta = 10000,
     .experts = {QWEN_EXPERT("gate"), QWEN_EXPERT("up"), QWEN_EXPERT("down")},
     .router = "model.layers.%u.mlp.gate.weight",
     .choice_bias = "model.layers.%u.mlp.gate.e_score_correction_bias",
     .moe_size_key = "moe_intermediate_size",
     .moe_layers = MODEL_MOE_FIRST,
     .shared = SHARED,
     .shared_size_key = "moe_intermediate_size",
     .shared_count_key = "n_shared_experts",
     .qk_norm = MODEL_NORM_HEAD,
     .bias = MODEL_BIAS_ASKED,
     .window = MODEL_WINDOW_FROM,
     .read = model_read_dots1},
    {.model_type = "solar_open",
     .class_name = "SolarOpenForCausalLM",
     .defaults = "{\"vocab_size\":196608,\"hidden_size\":4096,\"num_hidden_layers\":48,\"num_attention_heads\":64,"
                 "\"num_key_value_heads\":8,\"head_dim\":128,\"max_position_embeddings\":131072,"
                 "\"rms_norm_eps\":1e-5,\"moe_intermediate_size\":1280,\"num_experts_per_tok\":8,"
                 "\"num_local_experts\":128,\"n_shared_experts\":1,\"norm_topk_prob\":true}",
     .default_theta = 1e6,
     .experts = {QWEN_EXPERT("gate"), QWEN_EXPERT("up"), QWEN_EXPERT("down")},
     .router = "model.layers.%u.mlp.gate.weight",
     .choice_bias = "model.layers.%u.mlp.gate.e_score_correction_bias",
     .moe_size_key = "moe_intermediate_size",
     .moe_layers = MODEL_MOE_ALL,
     .shared = SHARED,
     .shared_size_key = "moe_intermediate_size",
     .shared_count_key = "n_shared_experts",
     .bias = MODEL_BIAS_QKV_ASKED,
     .read = model_read_solar},
    {.model_type = "hy_v3",
     .class_name = "HYV3ForCausalLM",
     .defaults = "{\"vocab_size\":120832,\"hidden_size\":4096,\"intermediate_size\":13312,\"num_hidden_layers\":80,"
                 "\"num_attention_heads\":64,\"num_key_value_heads\":8,\"head_dim\":128,"
                 "\"max_position_embeddings\":131072,\"rms_norm_eps\":1e-5,\"moe_intermediate_size\":1536,"
                 "\"num_experts_per_tok\":8,\"num_local_experts\":192,\"num_shared_experts\":1,"
                 "\"first_k_dense_replace\":1,\"routed_scaling_factor\":2.826,\"num_nextn_predict_layers\":1}",
     .default_theta = 11158840,
     .experts = {QWEN_EXPERT("gate"), QWEN_EXPERT("up"), QWEN_EXPERT("down")},
     .router = "model.layers.%u.mlp.router.gate.weight",
     .choice_bias = "model.layers.%u.mlp.expert_bias",
     .moe_size_key = "moe_intermediate_size",
     .moe_layers = MODEL_MOE_LISTED,
     .shared = "model.layers.%u.mlp.shared_mlp",
     .shared_size_key = "moe_intermediate_size",
     .shared_count_key = "num_shared_experts",
     .norm_topk_always = true,
     .qk_norm = MODEL_NORM_HEAD,
     .bias = MODEL_BIAS_ASKED,
     .read = model_read_glm4},
    {.model_type = "hunyuan_v1_moe",
     .class_name = "HunYuanMoEV1ForCausalLM",
     .defaults = "{\"vocab_size\":290943,\"hidden_size\":4096,\"intermediate_size\":11008,\"num_hidden_layers\":32,"
                 "\"num_attention_heads\":32,\"max_position_embeddings\":2048,\"rms_norm_eps\":1e-5,"
                 "\"num_experts_per_tok\":1,\"num_local_experts\":1,\"bos_token_id\":1,\"eos_token_id\":2}",
     .default_theta = 10000,
     .experts = {QWEN_EXPERT("gate"), QWEN_EXPERT("up"), QWEN_EXPERT("down")},
     .router = "model.layers.%u.mlp.gate.wg.weight",
     .moe_size_key = "intermediate_size",
     .moe_layers = MODEL_MOE_ALL,
     .shared = "model.layers.%u.mlp.shared_mlp",
     .shared_size_key = "intermediate_size",
     .norm_topk_always = true,
     .names = hunyuan_names,
     .lists = true,
     .norm_last = true,
     .qk_norm = MODEL_NORM_HEAD,
     .bias = MODEL_BIAS_ASKED,
     .read = model_read_hunyuan},
    {.model_type = "afmoe",
     .class_name = "AfmoeForCausalLM",
     .defaults = "{\"vocab_size\":200192,\"hidden_size\":2048,\"intermediate_size\":6144,\"num_hidden_layers\":32,"
                 "\"num_attention_heads\":16,\"head_dim\":128,\"max_position_embeddings\":16384,\"rms_norm_eps\":1e-5,"
                 "\"sliding_window\":1024,\"sliding_window_pattern\":4,\"moe_intermediate_size\":1408,"
                 "\"num_experts_per_tok\":6,\"num_local_experts\":64,\"num_shared_experts\":2,"
                 "\"first_k_dense_replace\":1}",
     .default_theta = 10000,
     .experts = {QWEN_EXPERT("gate"), QWEN_EXPERT("up"), QWEN_EXPERT("down")},
     .router = "model.layers.%u.mlp.router.gate.weight",
     .choice_bias = "model.layers.%u.mlp.expert_bias",
     .moe_size_key = "moe_intermediate_size",
     .moe_layers = MODEL_MOE_FIRST,
     .shared = SHARED,
     .shared_size_key = "moe_intermediate_size",
     .shared_count_key = "num_shared_experts",
     .norm_topk_always = true,
     .norms = MODEL_NORMS_AROUND,
     .gate = true,
     .qk_norm = MODEL_NORM_HEAD,
     .bias = MODEL_BIAS_ASKED,
     .window = MODEL_WINDOW_PATTERN,
     .rope = MODEL_ROPE_SLIDING,
     .read = model_read_afmoe},
    {.model_type = "exaone_moe",
     .class_name = "ExaoneMoeForCausalLM",
     .defaults = "{\"vocab_size\":102400,\"hidden_size\":4096,\"intermediate_size\":16384,\"num_hidden_layers\":32,"
                 "\"num_attention_heads\":32,\"num_key_value_heads\":32,\"max_position_embeddings\":2048,"
                 "\"rms_norm_eps\":1e-5,\"sliding_window\":4096,\"sliding_window_pattern\":4,"
                 "\"moe_intermediate_size\":1024,\"num_experts_per_tok\":8,\"num_local_experts\":64,"
                 "\"num_shared_experts\":1,\"first_k_dense_replace\":1,\"norm_topk_prob\":true,"
                 "\"routed_scaling_factor\":2.5,\"bos_token_id\":1,\"eos_token_id\":53}",
     .default_theta = 10000,
     .experts = {QWEN_EXPERT("gate"), QWEN_EXPERT("up"), QWEN_EXPERT("down")},
     .router = "model.layers.%u.mlp.gate.weight",
     .choice_bias = "model.layers.%u.mlp.e_score_correction_bias",
     .moe_size_key = "moe_intermediate_size",
     .moe_layers = MODEL_MOE_LISTED,
     .shared = SHARED,
     .shared_size_key = "moe_intermediate_size",
     .shared_count_key = "num_shared_experts",
     .qk_norm = MODEL_NORM_HEAD,
     .window = MODEL_WINDOW_PATTERN,
     .rope = MODEL_ROPE_SLIDING,
     .read = model_read_glm4},
    {.model_type = "mellum",
     .class_name = "MellumForCausalLM",
     .defaults = "{\"vocab_size\":98304,\"hidden_size\":2304,\"intermediate_size\":7168,\"num_hidden_layers\":28,"
                 "\"num_attention_heads\":32,\"num_key_value_heads\":4,\"head_dim\":128,"
                 "\"max_position_embeddings\":131072,\"sliding_window\":1024,\"moe_intermediate_size\":896,"
                 "\"num_experts_per_tok\":8,\"num_local_experts\":64,\"norm_topk_prob\":true,\"rope_parameters\":"
                 "{\"full_attention\":{\"rope_theta\":500000.0},\"sliding_attention\":{\"rope_theta\":10000.0}}}",
     .experts = {QWEN_EXPERT("gate"), QWEN_EXPERT("up"), QWEN_EXPERT("down")},
     .router = "model.layers.%u.mlp.gate.weight",
     .moe_size_key = "moe_intermediate_size",
     .moe_layers = MODEL_MOE_LISTED,
     .qk_norm = MODEL_NORM_HEAD,
     .bias = MODEL_BIAS_ASKED,
     .window = MODEL_WINDOW_TYPES,
     .rope = MODEL_ROPE_TYPES},
    {.model_type = "qwen3_next",
     .class_name = "Qwen3NextForCausalLM",
     .defaults = "{\"vocab_size\":151936,\"hidden_size\":2048,\"intermediate_size\":5632,\"num_hidden_layers\":48,"
                 "\"num_attention_heads\":16,\"num_key_value_heads\":2,\"head_dim\":256,"
                 "\"max_position_embeddings\":32768,\"moe_intermediate_size\":512,"
                 "\"shared_expert_intermediate_size\":512,\"num_experts_per_tok\":10,\"num_local_experts\":512,"
                 "\"norm_topk_prob\":true,\"partial_rotary_factor\":0.25}",
     .default_theta = 10000,
     .experts = {QWEN_EXPERT("gate"), QWEN_EXPERT("up"), QWEN_EXPERT("down")},
     .router = "model.layers.%u.mlp.gate.weight",
     .moe_size_key = "moe_intermediate_size",
     .shared = "model.layers.%u.mlp.shared_expert",
     .shared_gate = "model.layers.%u.mlp.shared_expert_gate.weight",
     .shared_size_key = "shared_expert_intermediate_size",
     .partial_rotary = true,
     .delta = MODEL_DELTA_GROUPED,
     .gated = true,
     .centred = true,
     .qk_norm = MODEL_NORM_HEAD,
     .bias = MODEL_BIAS_ASKED},
    {QWEN3_5_MOE("qwen3_5_moe_text", "Qwen3_5MoeForCausalLM")},
    {QWEN3_5_MOE("qwen3_5_moe", "Qwen3_5MoeForConditionalGeneration"), .nested = {"text_config"},
     .prefix = "model.language_model."},
    {.model_type = "qwen3_vl_moe",
     .class_name = "Qwen3VLMoeForConditionalGeneration",
     .defaults = "{\"vocab_size\":151936,\"hidden_size\":2048,\"intermediate_size\":5632,\"num_hidden_layers\":24,"
                 "\"num_attention_heads\":16,\"num_key_value_heads\":16,\"max_position_embeddings\":128000,"
                 "\"moe_intermediate_size\":1408,\"num_experts_per_tok\":4,\"num_local_experts\":60}",
     .default_theta = 500000,
     .nested = {"text_config"},
     .prefix = "model.language_model.",
     .experts = {QWEN_EXPERT("gate"), QWEN_EXPERT("up"), QWEN_EXPERT("down")},
     .turned = MODEL_MAY_TURN,
     .router = "model.layers.%u.mlp.gate.weight",
     .moe_size_key = "moe_intermediate_size",
     .norm_topk_always = true,
     .qk_norm = MODEL_NORM_HEAD,
     .bias = MODEL_BIAS_ASKED},
    {.model_type = "qwen3_omni_moe",
     .class_name = "Qwen3OmniMoeForConditionalGeneration",
     .defaults = "{\"vocab_size\":3584,\"hidden_size\":2048,\"intermediate_size\":18944,\"num_hidden_layers\":28,"
                 "\"num_attention_heads\":28,\"num_key_value_heads\":4,\"max_position_embeddings\":32768,"
                 "\"moe_intermediate_size\":768,\"num_experts_per_tok\":8,\"num_local_experts\":128,"
                 "\"norm_topk_prob\":true}",
     .default_theta = 1e6,
     .nested = {"thinker_config", "text_config"},
     .prefix = "thinker.model.",
     .head = "thinker.lm_head.weight",
     .experts = {QWEN_EXPERT("gate"), QWEN_EXPERT("up"), QWEN_EXPERT("down")},
     .router = "model.layers.%u.mlp.gate.weight",
     .moe_size_key = "moe_intermediate_size",
     .qk_norm = MODEL_NORM_HEAD,
     .bias = MODEL_BIAS_ASKED},
    {.model_type = "glm4v_moe",
     .class_name = "Glm4vMoeForConditionalGeneration",
     .defaults = "{\"vocab_size\":151424,\"hidden_size\":4096,\"intermediate_size\":10944,\"num_hidden_layers\":46,"
                 "\"num_attention_heads\":96,\"num_key_value_heads\":8,\"max_position_embeddings\":65536,"
                 "\"rms_norm_eps\":1e-5,\"attention_bias\":true,\"moe_intermediate_size\":1408,"
                 "\"num_experts_per_tok\":8,\"num_local_experts\":128,\"n_shared_experts\":1,"
                 "\"first_k_dense_replace\":1,\"norm_topk_prob\":true,\"partial_rotary_factor\":0.5,"
                 "\"num_nextn_predict_layers\":1}",
     .default_theta = 10000,
     .nested = {"text_config"},
     .prefix = "model.language_model.",
     .experts = {QWEN_EXPERT("gate"), QWEN_EXPERT("up"), QWEN_EXPERT("down")},
     .router = "model.layers.%u.mlp.gate.weight",
     .choice_bias = "model.layers.%u.mlp.gate.e_score_correction_bias",
     .moe_size_key = "moe_intermediate_size",
     .moe_layers = MODEL_MOE_FIRST,
     .shared = SHARED,
     .shared_size_key = "moe_intermediate_size",
     .shared_count_key = "n_shared_experts",
     .partial_rotary = true,
     .bias = MODEL_BIAS_QKV_ASKED,
     .read = model_read_glm4},
    {.model_type = "deepseek_v2",
     .class_name = "DeepseekV2ForCausalLM",
     .defaults = "{\"vocab_size\":102400,\"hidden_size\":4096,\"intermediate_size\":11008,\"num_hidden_layers\":32,"
                 "\"num_attention_heads\":32,\"max_position_embeddings\":2048,\"first_k_dense_replace\":0,"
                 "\"kv_lora_rank\":512,\"q_lora_rank\":1536,\"qk_nope_head_dim\":128,\"qk_rope_head_dim\":64,"
                 "\"v_head_dim\":128,\"num_local_experts\":64,\"n_shared_experts\":2,\"moe_intermediate_size\":1407,"
                 "\"topk_method\":\"greedy\",\"bos_token_id\":1,\"eos_token_id\":2}",
     .default_theta = 10000,
     .experts = {QWEN_EXPERT("gate"), QWEN_EXPERT("up"), QWEN_EXPERT("down")},
     .router = "model.layers.%u.mlp.gate.weight",
     .moe_size_key = "moe_intermediate_size",
     .moe_layers = MODEL_MOE_FIRST,
     .shared = SHARED,
     .shared_size_key = "moe_intermediate_size",
     .shared_count_key = "n_shared_experts",
     .bias = MODEL_BIAS_ASKED,
     .latent = true,
     .read = model_read_deepseek_v2},
    {.model_type = "deepseek_v3",
     .class_name = "DeepseekV3ForCausalLM",
     .defaults = "{\"vocab_size\":129280,\"hidden_size\":7168,\"intermediate_size\":18432,\"num_hidden_layers\":61,"
                 "\"num_attention_heads\":128,\"max_position_embeddings\":4096,\"first_k_dense_replace\":3,"
                 "\"kv_lora_rank\":512,\"q_lora_rank\":1536,\"qk_nope_head_dim\":128,\"qk_rope_head_dim\":64,"
                 "\"v_head_dim\":128,\"num_local_experts\":256,\"n_shared_experts\":1,\"moe_intermediate_size\":2048,"
                 "\"num_experts_per_tok\":8,\"n_group\":8,\"topk_group\":4,\"norm_topk_prob\":true,"
                 "\"routed_scaling_factor\":2.5,\"num_nextn_predict_layers\":1,\"bos_token_id\":0,\"eos_token_id\":1}",
     .default_theta = 10000,
     .experts = {QWEN_EXPERT("gate"), QWEN_EXPERT("up"), QWEN_EXPERT("down")},
     .router = "model.layers.%u.mlp.gate.weight",
     .choice_bias = "model.layers.%u.mlp.gate.e_score_correction_bias",
     .moe_size_key = "moe_intermediate_size",
     .moe_layers = MODEL_MOE_FIRST,
     .shared = SHARED,
     .shared_size_key = "moe_intermediate_size",
     .shared_count_key = "n_shared_experts",
     .bias = MODEL_BIAS_ASKED,
     .latent = true,
     .read = model_read_deepseek_v3},
    {.model_type = "axk1",
     .class_name = "AXK1ForCausalLM",
     .defaults = "{\"vocab_size\":163840,\"hidden_size\":7168,\"intermediate_size\":18432,\"num_hidden_layers\":61,"
                 "\"num_attention_heads\":64,\"max_position_embeddings\":32768,\"first_k_dense_replace\":1,"
                 "\"kv_lora_rank\":512,\"q_lora_rank\":1536,\"qk_nope_head_dim\":128,\"qk_rope_head_dim\":64,"
                 "\"v_head_dim\":128,\"num_local_experts\":192,\"n_shared_experts\":1,\"moe_intermediate_size\":2048,"
                 "\"num_experts_per_tok\":8,\"n_group\":8,\"topk_group\":4,\"norm_topk_prob\":true,"
                 "\"routed_scaling_factor\":2.5,\"bos_token_id\":163691,\"eos_token_id\":163691}",
     .default_theta = 10000,
     .experts = {QWEN_EXPERT("gate"), QWEN_EXPERT("up"), QWEN_EXPERT("down")},
     .router = "model.layers.%u.mlp.gate.weight",
     .choice_bias = "model.layers.%u.mlp.gate.e_score_correction_bias",
     .moe_size_key = "moe_intermediate_size",
     .moe_layers = MODEL_MOE_LISTED,
     .shared = SHARED,
     .shared_size_key = "moe_intermediate_size",
     .shared_count_key = "n_shared_experts",
     .norms = MODEL_NORMS_EXPERTS,
     .bias = MODEL_BIAS_ASKED,
     .latent = true,
     .read = model_read_deepseek_v3},
    {.model_type = "deepseek_v32",
     .class_name = "DeepseekV32ForCausalLM",
     .defaults = "{\"vocab_size\":129280,\"hidden_size\":7168,\"intermediate_size\":18432,\"num_hidden_layers\":61,"
                 "\"num_attention_heads\":128,\"max_position_embeddings\":163840,\"first_k_dense_replace\":3,"
                 "\"kv_lora_rank\":512,\"q_lora_rank\":1536,\"qk_nope_head_dim\":128,\"qk_rope_head_dim\":64,"
                 "\"v_head_dim\":128,\"num_local_experts\":256,\"n_shared_experts\":1,\"moe_intermediate_size\":2048,"
                 "\"num_experts_per_tok\":8,\"n_group\":8,\"topk_group\":4,\"norm_topk_prob\":true,"
                 "\"routed_scaling_factor\":2.5,\"index_topk\":2048,\"index_head_dim\":128,\"index_n_heads\":64,"
                 "\"num_nextn_predict_layers\":1,\"bos_token_id\":0,\"eos_token_id\":1}",
     .default_theta = 10000,
     .experts = {QWEN_EXPERT("gate"), QWEN_EXPERT("up"), QWEN_EXPERT("down")},
     .router = "model.layers.%u.mlp.gate.weight",
     .choice_bias = "model.layers.%u.mlp.gate.e_score_correction_bias",
     .moe_size_key = "moe_intermediate_size",
     .moe_layers = MODEL_MOE_LISTED,
     .shared = SHARED,
     .shared_size_key = "moe_intermediate_size",
     .shared_count_key = "n_shared_experts",
     .bias = MODEL_BIAS_ASKED,
     .latent = true,
     .index = MODEL_INDEX_ALL,
     .read = model_read_deepseek_v3},
    {.model_type = "glm_moe_dsa",
     .class_name = "GlmMoeDsaForCausalLM",
     .defaults = "{\"vocab_size\":154880,\"hidden_size\":6144,\"intermediate_size\":12288,\"num_hidden_layers\":78,"
                 "\"num_attention_heads\":64,\"max_position_embeddings\":202752,\"rms_norm_eps\":1e-5,"
                 "\"first_k_dense_replace\":3,\"kv_lora_rank\":512,\"q_lora_rank\":2048,\"qk_nope_head_dim\":192,"
                 "\"qk_rope_head_dim\":64,\"v_head_dim\":256,\"num_local_experts\":256,\"n_shared_experts\":1,"
                 "\"moe_intermediate_size\":2048,\"num_experts_per_tok\":8,\"norm_topk_prob\":true,"
                 "\"routed_scaling_factor\":2.5,\"index_topk\":2048,\"index_head_dim\":128,\"index_n_heads\":32,"
                 "\"num_nextn_predict_layers\":1,\"bos_token_id\":0,\"eos_token_id\":1}",
     .default_theta = 10000,
     .experts = {QWEN_EXPERT("gate"), QWEN_EXPERT("up"), QWEN_EXPERT("down")},
     .router = "model.layers.%u.mlp.gate.weight",
     .choice_bias = "model.layers.%u.mlp.gate.e_score_correction_bias",
     .moe_size_key = "moe_intermediate_size",
     .moe_layers = MODEL_MOE_LISTED,
     .shared = SHARED,
     .shared_size_key = "moe_intermediate_size",
     .shared_count_key = "n_shared_experts",
     .bias = MODEL_BIAS_ASKED,
     .latent = true,
     .index = MODEL_INDEX_TYPES,
     .read = model_read_deepseek_v3},
    {.model_type = "kimi_linear",
     .class_name = "KimiLinearForCausalLM",
     .defaults = "{\"vocab_size\":163840,\"hidden_size\":2304,\"intermediate_size\":9216,\"num_hidden_layers\":27,"
                 "\"num_attention_heads\":32,\"max_position_embeddings\":1048576,\"rms_norm_eps\":1e-5,"
                 "\"first_k_dense_replace\":1,\"kv_lora_rank\":512,\"qk_nope_head_dim\":128,\"qk_rope_head_dim\":64,"
                 "\"v_head_dim\":128,\"num_local_experts\":256,\"n_shared_experts\":1,\"moe_intermediate_size\":1024,"
                 "\"num_experts_per_tok\":8,\"norm_topk_prob\":true,\"routed_scaling_factor\":2.446,"
                 "\"bos_token_id\":163584,\"eos_token_id\":163586}",
     .default_theta = 10000,
     .experts = {MIXTRAL_EXPERT("w1"), MIXTRAL_EXPERT("w3"), MIXTRAL_EXPERT("w2")},
     .router = "model.layers.%u.block_sparse_moe.gate.weight",
     .choice_bias = "model.layers.%u.block_sparse_moe.gate.e_score_correction_bias",
     .moe_size_key = "moe_intermediate_size",
     .moe_layers = MODEL_MOE_LISTED,
     .shared = "model.layers.%u.block_sparse_moe.shared_experts",
     .shared_size_key = "moe_intermediate_size",
     .shared_count_key = "n_shared_experts",
     .bias = MODEL_BIAS_ASKED,
     .latent = true,
     .delta = MODEL_DELTA_KIMI,
     .read = model_read_kimi_linear},
    {BAILING("bailing_moe", "BailingMoeV2ForCausalLM"),
     .defaults = "{\"vocab_size\":157184,\"hidden_size\":2048,\"intermediate_size\":5120,\"num_hidden_layers\":20,"
                 "\"num_attention_heads\":16,\"num_key_value_heads\":4,\"head_dim\":128,"
                 "\"max_position_embeddings\":32768,\"moe_intermediate_size\":512,\"num_experts_per_tok\":8,"
                 "\"num_local_experts\":256,\"n_shared_experts\":1,\"first_k_dense_replace\":1,\"n_group\":8,"
                 "\"topk_group\":4,\"norm_topk_prob\":true,\"use_qk_norm\":true,\"partial_rotary_factor\":0.5,"
                 "\"eos_token_id\":156892}",
     .default_theta = 600000},
    {BAILING("sarvam_moe", "SarvamMoEForCausalLM"),
     .defaults = "{\"vocab_size\":262144,\"hidden_size\":4096,\"intermediate_size\":8192,\"num_hidden_layers\":19,"
                 "\"num_attention_heads\":64,\"num_key_value_heads\":4,\"head_dim\":64,"
                 "\"max_position_embeddings\":131072,\"moe_intermediate_size\":1024,\"num_experts_per_tok\":6,"
                 "\"num_local_experts\":128,\"n_shared_experts\":1,\"first_k_dense_replace\":1,"
                 "\"norm_topk_prob\":true,\"routed_scaling_factor\":2.5,\"use_qk_norm\":true,\"eos_token_id\":1}",
     .default_theta = 8e6},
    {.model_type = "sarvam_mla",
     .class_name = "SarvamMLAForCausalLM",
     .defaults = "{\"vocab_size\":262144,\"hidden_size\":4096,\"intermediate_size\":16384,\"num_hidden_layers\":32,"
                 "\"num_attention_heads\":64,\"max_position_embeddings\":4096,\"first_k_dense_replace\":1,"
                 "\"kv_lora_rank\":512,\"qk_nope_head_dim\":128,\"qk_rope_head_dim\":64,\"v_head_dim\":128,"
                 "\"num_local_experts\":128,\"n_shared_experts\":1,\"moe_intermediate_size\":2048,"
                 "\"num_experts_per_tok\":8,\"norm_topk_prob\":true,\"routed_scaling_factor\":2.5,"
                 "\"bos_token_id\":0,\"eos_token_id\":1}",
     .default_theta = 10000,
     .experts = {QWEN_EXPERT("gate"), QWEN_EXPERT("up"), QWEN_EXPERT("down")},
     .router = "model.layers.%u.mlp.gate.weight",
     .choice_bias = "model.layers.%u.mlp.gate.e_score_correction_bias",
     .moe_size_key = "moe_intermediate_size",
     .moe_layers = MODEL_MOE_FIRST,
     .shared = SHARED,
     .shared_size_key = "moe_intermediate_size",
     .shared_count_key = "n_shared_experts",
     .bias = MODEL_BIAS_ASKED,
     .latent = true,
     .read = model_read_deepseek_v3},
    {.model_type = "glm4_moe_lite",
     .class_name = "Glm4MoeLiteForCausalLM",
     .defaults = "{\"vocab_size\":154880,\"hidden_size\":2048,\"intermediate_size\":10240,\"num_hidden_layers\":47,"
                 "\"num_attention_heads\":20,\"max_position_embeddings\":202752,\"rms_norm_eps\":1e-5,"
                 "\"kv_lora_rank\":512,\"q_lora_rank\":768,\"qk_nope_head_dim\":192,\"qk_rope_head_dim\":64,"
                 "\"v_head_dim\":256,\"num_local_experts\":64,\"n_shared_experts\":1,\"moe_intermediate_size\":1536,"
                 "\"num_experts_per_tok\":4,\"first_k_dense_replace\":1,\"norm_topk_prob\":true,"
                 "\"routed_scaling_factor\":1.8,\"num_nextn_predict_layers\":1,\"bos_token_id\":0,\"eos_token_id\":1}",
     .default_theta = 10000,
     .experts = {QWEN_EXPERT("gate"), QWEN_EXPERT("up"), QWEN_EXPERT("down")},
     .router = "model.layers.%u.mlp.gate.weight",
     .choice_bias = "model.layers.%u.mlp.gate.e_score_correction_bias",
     .moe_size_key = "moe_intermediate_size",
     .moe_layers = MODEL_MOE_LISTED,
     .shared = SHARED,
     .shared_size_key = "moe_intermediate_size",
     .shared_count_key = "n_shared_experts",
     .bias = MODEL_BIAS_ASKED,
     .latent = true,
     .read = model_read_deepseek_v3},
    {.model_type = "youtu",
     .class_name = "YoutuForCausalLM",
     .defaults = "{\"vocab_size\":128256,\"hidden_size\":2048,\"intermediate_size\":6144,\"num_hidden_layers\":32,"
                 "\"num_attention_heads\":16,\"max_position_embeddings\":131072,\"kv_lora_rank\":512,"
                 "\"q_lora_rank\":1536,\"qk_nope_head_dim\":128,\"qk_rope_head_dim\":64,\"v_head_dim\":128,"
                 "\"tie_word_embeddings\":true,\"bos_token_id\":128000,\"eos_token_id\":128001}",
     .default_theta = 10000,
     .bias = MODEL_BIAS_ASKED,
     .latent = true},
    {.model_type = "mistral4",
     .class_name = "Mistral4ForCausalLM",
     .defaults = "{\"vocab_size\":131072,\"hidden_size\":4096,\"intermediate_size\":12288,\"num_hidden_layers\":36,"
                 "\"num_attention_heads\":32,\"max_position_embeddings\":1048576,\"first_k_dense_replace\":0,"
                 "\"kv_lora_rank\":256,\"q_lora_rank\":1024,\"qk_nope_head_dim\":64,\"qk_rope_head_dim\":64,"
                 "\"v_head_dim\":128,\"num_local_experts\":128,\"n_shared_experts\":1,\"moe_intermediate_size\":2048,"
                 "\"num_experts_per_tok\":4,\"norm_topk_prob\":true,\"bos_token_id\":1,\"eos_token_id\":2,"
                 "\"rope_parameters\":{\"rope_type\":\"yarn\",\"factor\":128.0,\"mscale\":1.0,\"mscale_all_dim\":1.0,"
                 "\"original_max_position_embeddings\":8192,\"llama_4_scaling_beta\":0.1}}",
     .default_theta = 10000,
     .experts = {QWEN_EXPERT("gate"), QWEN_EXPERT("up"), QWEN_EXPERT("down")},
     .router = "model.layers.%u.mlp.gate.weight",
     .moe_size_key = "moe_intermediate_size",
     .moe_layers = MODEL_MOE_FIRST,
     .shared = SHARED,
     .shared_size_key = "moe_intermediate_size",
     .shared_count_key = "n_shared_experts",
     .partial_rotary = true,
     .bias = MODEL_BIAS_ASKED,
     .latent = true,
     .read = model_read_mistral4},
    {.model_type = "lfm2_moe",
     .class_name = "Lfm2MoeForCausalLM",
     .defaults = "{\"vocab_size\":65536,\"hidden_size\":2048,\"intermediate_size\":7168,\"num_hidden_layers\":32,"
                 "\"num_attention_heads\":32,\"num_key_value_heads\":8,\"max_position_embeddings\":128000,"
                 "\"moe_intermediate_size\":1792,\"num_local_experts\":32,\"num_experts_per_tok\":4,"
                 "\"first_k_dense_replace\":2,\"norm_topk_prob\":true,\"tie_word_embeddings\":true,"
                 "\"bos_token_id\":1,\"eos_token_id\":2}",
     .default_theta = 1e6,
     .names = lfm2_names,
     .experts = {LFM2_EXPERT("w1"), LFM2_EXPERT("w3"), LFM2_EXPERT("w2")},
     .router = "model.layers.%u.feed_forward.gate.weight",
     .choice_bias = "model.layers.%u.feed_forward.expert_bias",
     .moe_size_key = "moe_intermediate_size",
     .moe_layers = MODEL_MOE_FIRST,
     .shortconv = true,
     .qk_norm = MODEL_NORM_HEAD,
     .read = model_read_lfm2},
    {.model_type = "laguna",
     .class_name = "LagunaForCausalLM",
     .defaults = "{\"vocab_size\":100352,\"hidden_size\":2048,\"intermediate_size\":8192,\"num_hidden_layers\":40,"
                 "\"num_attention_heads\":48,\"num_key_value_heads\":8,\"head_dim\":128,"
                 "\"max_position_embeddings\":131072,\"sliding_window\":512,\"moe_intermediate_size\":512,"
                 "\"shared_expert_intermediate_size\":512,\"num_experts_per_tok\":8,\"num_local_experts\":256,"
                 "\"first_k_dense_replace\":1,\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"default\","
                 "\"rope_theta\":500000.0,\"partial_rotary_factor\":0.5},\"sliding_attention\":"
                 "{\"rope_type\":\"default\",\"rope_theta\":10000.0,\"partial_rotary_factor\":1.0}}}",
     .names = step_names,
     .experts = {QWEN_EXPERT("gate"), QWEN_EXPERT("up"), QWEN_EXPERT("down")},
     .router = "model.layers.%u.mlp.gate.weight",
     .choice_bias = "model.layers.%u.mlp.experts.e_score_correction_bias",
     .moe_size_key = "moe_intermediate_size",
     .moe_layers = MODEL_MOE_LISTED,
     .shared = "model.layers.%u.mlp.shared_expert",
     .shared_size_key = "shared_expert_intermediate_size",
     .norm_topk_always = true,
     .own_heads = true,
     .gate = true,
     .partial_rotary = true,
     .qk_norm = MODEL_NORM_HEAD,
     .bias = MODEL_BIAS_ASKED,
     .window = MODEL_WINDOW_TYPES,
     .rope = MODEL_ROPE_TYPES,
     .spread = model_spread_laguna,
     .read = model_read_laguna},
    {STEP("step3p5", "Step3p5ForCausalLM")},
    {STEP("step3p7", "Step3p7ForConditionalGeneration"), .nested = {"text_config"}},
    {.model_type = "llama4_text",
     .class_name = "Llama4ForCausalLM",
     .defaults =
         "{\"vocab_size\":202048,\"hidden_size\":5120,\"intermediate_size\":8192,\"intermediate_size_mlp\":16384,"
         "\"num_hidden_layers\":48,\"num_attention_heads\":40,\"num_key_value_heads\":8,\"head_dim\":128,"
         "\"max_position_embeddings\":131072,\"rms_norm_eps\":1e-5,\"num_local_experts\":16,"
         "\"num_experts_per_tok\":1,\"attention_chunk_size\":8192,\"bos_token_id\":1,\"eos_token_id\":2}",
     .default_theta = 500000,
     .names = llama4_names,
     .experts = {QWEN_EXPERT("gate"), QWEN_EXPERT("up"), QWEN_EXPERT("down")},
     .turned = MODEL_TURNS,
     .router = "model.layers.%u.mlp.router.weight",
     .moe_size_key = "intermediate_size",
     .dense_size_key = "intermediate_size_mlp",
     .moe_layers = MODEL_MOE_NAMED,
     .shared = "model.layers.%u.mlp.shared_expert",
     .shared_size_key = "intermediate_size",
     .bias = MODEL_BIAS_ASKED,
     .window = MODEL_WINDOW_CHUNKS,
     .rope = MODEL_ROPE_NOPE,
     .ends = llama4_ends,
     .read = model_read_llama4},
    {GEMMA4("gemma4_text", "Gemma4ForCausalLM")},
    {GEMMA4("gemma4", "Gemma4ForConditionalGeneration"), .nested = {"text_config"}, .prefix = "model.language_model."},
};

/* Other names of the same: model_types of published files whose class, keys and defaults are those of a row. */
static const struct {
    const char *model_type, *of;
} aliases[] = {
    {"joyai_llm_flash", "deepseek_v3"}, /* comes with DeepSeek's configuration and code; its further layer is dense */
    {"kimi_k2", "deepseek_v3"},         /* Kimi-K2's own configuration class; its tensors and code are DeepSeek-V3's */
};

static const model_wrapper wrappers[] = {
    {"internvl", {"InternVLForConditionalGeneration"}, "text_config", "qwen2"},
    {"internvl_chat", {"InternVLChatModel"}, "llm_config", NULL},
    {"kimi_k25", {"KimiK25ForConditionalGeneration", "Kimi_K25ForConditionalGeneration"}, "text_config", "deepseek_v3"},
    {"kimi_vl", {"KimiVLForConditionalGeneration"}, "text_config", "deepseek_v3"},
    {"llama4", {"Llama4ForConditionalGeneration"}, "text_config", "llama4_text"},
    {"mistral3", {"Mistral3ForConditionalGeneration"}, "text_config", "mistral"},
};

const model_wrapper *model_wrapper_find(const char *model_type)
{
    for (size_t i = 0; i < XD_ARRAY_LEN(wrappers); i++)
        if (!strcmp(wrappers[i].model_type, model_type))
            return &wrappers[i];
    return NULL;
}

const model_arch *model_arch_find(const char *model_type)
{
    for (size_t i = 0; i < XD_ARRAY_LEN(aliases); i++)
        if (!strcmp(aliases[i].model_type, model_type))
            model_type = aliases[i].of;
    for (size_t i = 0; i < XD_ARRAY_LEN(archs); i++)
        if (!strcmp(archs[i].model_type, model_type))
            return &archs[i];
    return NULL;
}

const model_arch *model_arch_of_class(const char *class_name)
{
    for (size_t i = 0; i < XD_ARRAY_LEN(archs); i++)
        if (!strcasecmp(class_name, archs[i].class_name)) /* early checkpoints say LLaMAForCausalLM */
            return &archs[i];
    return NULL;
}

const char *model_known_archs(char *out, size_t cap)
{
    size_t n = 0;
    for (size_t i = 0; i < XD_ARRAY_LEN(archs) && n < cap; i++)
        n += (size_t)snprintf(out + n, cap - n, "%s%s", i ? ", " : "", archs[i].model_type);
    for (size_t i = 0; i < XD_ARRAY_LEN(aliases) && n < cap; i++)
        n += (size_t)snprintf(out + n, cap - n, ", %s", aliases[i].model_type);
    for (size_t i = 0; i < XD_ARRAY_LEN(wrappers) && n < cap; i++)
        n += (size_t)snprintf(out + n, cap - n, ", %s", wrappers[i].model_type);
    return out;
}
