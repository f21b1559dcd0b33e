"""Variants of the families in FAMILIES for variants.py."""
import random

from variants_files import rewrite

TINY = {"hidden_size": 48, "intermediate_size": 64, "vocab_size": 160, "moe_intermediate_size": 24}  # tests/data/golden's
DROP = object()  # a key that the file does not have
LATENT = {"num_attention_heads": 5, "num_key_value_heads": 5, "kv_lora_rank": 32, "q_lora_rank": 24, "qk_nope_head_dim": 12,
          "qk_rope_head_dim": 8, "v_head_dim": 20}
SHARING = {"n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 3, "moe_intermediate_size": 24}
INDEX = {"index_topk": 12, "index_head_dim": 16, "index_n_heads": 16}  # fewer positions than prompts have
DELTA = {"head_dim": 32, "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 40, "shared_expert_intermediate_size": 72,
         "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 24, "linear_value_head_dim": 32,
         "linear_conv_kernel_dim": 4, "layer_types": ["linear_attention", "full_attention", "linear_attention"], "partial_rotary_factor": 0.25}
GEMMA4 = {"head_dim": 32, "global_head_dim": 64, "num_key_value_heads": 2, "num_global_key_value_heads": 1, "attention_k_eq_v": True,
          "enable_moe_block": True, "num_experts": 8, "top_k_experts": 3, "moe_intermediate_size": 40, "hidden_size_per_layer_input": 0,
          "layer_types": ["sliding_attention", "sliding_attention", "full_attention"], "sliding_window": 24, "final_logit_softcapping": 30.0,
          "hidden_activation": "gelu_pytorch_tanh", "hidden_act": DROP, "rope_theta": DROP, "tie_word_embeddings": True}
PHI_ROPE = {"type": "longrope", "short_factor": [1.0, 1.02, 1.1, 1.3, 1.8, 2.2, 2.9, 3.4],
            "long_factor": [1.0, 1.1, 1.7, 3.2, 6.5, 11.0, 18.0, 24.0], "short_mscale": 1.2, "long_mscale": 1.3416407864998738}
STEP_ROPE = {"rope_type": "llama3", "factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 32.0, "original_max_position_embeddings": 64}
LAGUNA_ROPES = {"full_attention": {"rope_type": "yarn", "rope_theta": 50000.0, "factor": 4.0, "original_max_position_embeddings": 64,
                                   "beta_fast": 32.0, "beta_slow": 1.0, "attention_factor": 1.0, "partial_rotary_factor": 0.5},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0, "partial_rotary_factor": 1.0}}


def kda(linear, full, heads=4, dim=16, conv=4):
    return {"linear_attn_config": {"kda_layers": linear, "full_attn_layers": full, "num_heads": heads, "head_dim": dim, "short_conv_kernel_size": conv}}


FAMILIES = {
    "qwen2_moe": {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 40, "shared_expert_intermediate_size": 72,
                  "norm_topk_prob": False, "decoder_sparse_step": 1, "mlp_only_layers": [], "use_sliding_window": False},
    "olmoe": {"num_experts": 8, "num_experts_per_tok": 3, "norm_topk_prob": False, "clip_qkv": None},
    "flex_olmo": {"pad_token_id": 0, "num_experts": 8, "num_experts_per_tok": 3, "norm_topk_prob": False},
    "granitemoe": {"num_local_experts": 8, "num_experts_per_tok": 3, "embedding_multiplier": 3.0, "attention_multiplier": 0.2,
                   "residual_multiplier": 0.4, "logits_scaling": 4.0},
    "glm4_moe": {"head_dim": 32, "n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 3, "moe_intermediate_size": 40,
                 "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "routed_scaling_factor": 1.5, "norm_topk_prob": True,
                 "partial_rotary_factor": 0.5, "use_qk_norm": False, "attention_bias": True},
    "ernie4_5_moe": {"moe_num_experts": 8, "moe_k": 3, "moe_num_shared_experts": 2, "moe_intermediate_size": 40, "moe_layer_start_index": 1,
                     "moe_layer_end_index": -1, "moe_layer_interval": 1, "use_bias": False},
    "granitemoeshared": {"num_local_experts": 8, "num_experts_per_tok": 3, "embedding_multiplier": 3.0, "attention_multiplier": 0.2,
                         "residual_multiplier": 0.4, "logits_scaling": 4.0, "shared_intermediate_size": 72},
    "granitemoe_swa": {"num_local_experts": 8, "num_experts_per_tok": 3, "embedding_multiplier": 3.0, "attention_multiplier": 0.2,
                       "residual_multiplier": 0.4, "logits_scaling": 4.0, "shared_intermediate_size": 72, "sliding_window": 24},
    "dots1": {"n_routed_experts": 8, "n_shared_experts": 2, "num_experts_per_tok": 3, "moe_intermediate_size": 40,
              "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "routed_scaling_factor": 2.5, "norm_topk_prob": True,
              "scoring_func": "noaux_tc", "sliding_window": None, "max_window_layers": 3},
    "solar_open": {"head_dim": 32, "n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 3, "moe_intermediate_size": 40,
                   "n_group": 1, "topk_group": 1, "routed_scaling_factor": 1.5, "norm_topk_prob": True, "attention_bias": False},
    "hy_v3": {"head_dim": 32, "num_experts": 8, "num_shared_experts": 1, "num_experts_per_tok": 3, "moe_intermediate_size": 40,
              "router_scaling_factor": 2.826},
    "sarvam_moe": {"head_dim": 32, "num_experts": 8, "num_shared_experts": 1, "num_experts_per_tok": 3, "moe_intermediate_size": 40,
                   "moe_shared_expert_intermediate_size": 40, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1,
                   "routed_scaling_factor": 2.5, "norm_topk_prob": True, "use_qk_norm": True, "use_qkv_bias": False, "score_function": "sigmoid"},
    "sarvam_mla": {**LATENT, "moe_intermediate_size": 24, "num_experts_per_tok": 3, "q_lora_rank": None, "num_key_value_heads": None,
                   "num_experts": 8, "num_shared_experts": 1, "hidden_size": 48, "head_dim": 40, "q_head_dim": 20, "first_k_dense_replace": 1,
                   "routed_scaling_factor": 2.5, "norm_topk_prob": True, "rope_scaling": {
                       "type": "deepseek_yarn", "factor": 40, "original_max_position_embeddings": 64, "beta_fast": 32, "beta_slow": 1,
                       "mscale": 1.0, "mscale_all_dim": 1.0}},
    "axk1": {**LATENT, **SHARING, "hidden_size": 48, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "routed_scaling_factor": 2.5,
             "norm_topk_prob": True},
    "deepseek_v32": {**LATENT, **SHARING, **INDEX, "hidden_size": 48, "first_k_dense_replace": 1, "n_group": 2, "topk_group": 1,
                     "routed_scaling_factor": 2.5, "norm_topk_prob": True},
    "glm_moe_dsa": {**LATENT, **SHARING, **INDEX, "hidden_size": 48, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "topk_method": "noaux_tc",
                    "routed_scaling_factor": 2.5, "norm_topk_prob": True, "rms_norm_eps": 1e-5, "indexer_types": ["full", "shared", "full"]},
    "afmoe": {"head_dim": 32, "num_experts": 8, "num_shared_experts": 1, "num_experts_per_tok": 3, "moe_intermediate_size": 40,
              "num_dense_layers": 1, "route_scale": 2.826, "route_norm": True, "score_func": "sigmoid", "mup_enabled": True, "sliding_window": 24,
              "global_attn_every_n_layers": 2, "n_group": 1, "topk_group": 1, "num_expert_groups": 1, "num_limited_groups": 1},
    "hunyuan_v1_moe": {"head_dim": 32, "attention_head_dim": 32, "num_experts": 8, "moe_topk": 3, "moe_intermediate_size": [96] * 3,
                       "num_shared_expert": [1] * 3, "use_qk_norm": True, "use_mixed_mlp_moe": True, "use_cla": False, "norm_topk_prob": True,
                       "n_group": False, "routed_scaling_factor": False,
                       "rope_scaling": {"type": "dynamic", "alpha": 1000.0, "factor": 1.0, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0}},
    "exaone_moe": {"head_dim": 32, "num_experts": 8, "num_shared_experts": 1, "num_experts_per_tok": 3, "moe_intermediate_size": 40,
                   "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "routed_scaling_factor": 2.5, "norm_topk_prob": True,
                   "sliding_window": 24},
    "mellum": {"head_dim": 32, "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 40, "norm_topk_prob": True,
               "sliding_window": 24, "rope_theta": DROP, "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
               "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 50000.0},
                                   "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0}}},
    "qwen3_vl_moe": {"head_dim": 32, "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 40,
                     "rope_scaling": {"rope_type": "default", "mrope_interleaved": True, "mrope_section": [6, 5, 5]}},
    "qwen3_omni_moe": {"head_dim": 32, "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 40, "norm_topk_prob": True,
                       "rope_scaling": {"rope_type": "default", "mrope_interleaved": True, "mrope_section": [6, 5, 5]}},
    "glm4v_moe": {"head_dim": 32, "n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 3, "moe_intermediate_size": 40,
                  "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "routed_scaling_factor": 1.5, "norm_topk_prob": True,
                  "partial_rotary_factor": 0.5, "rope_scaling": {"rope_type": "default", "mrope_section": [4, 2, 2]}},
    "minimax_m2": {"head_dim": 32, "num_local_experts": 8, "num_experts_per_tok": 3, "rotary_dim": 16},
    "phimoe": {"num_local_experts": 6, "num_experts_per_tok": 2, "attention_bias": True, "lm_head_bias": True, "router_jitter_noise": 0.01,
               "sliding_window": None},
    "glm4_moe_lite": {**LATENT, **SHARING, "hidden_size": 48, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "topk_method": "noaux_tc",
                      "routed_scaling_factor": 1.8, "norm_topk_prob": True, "partial_rotary_factor": 1.0, "rope_theta": 1e6, "rms_norm_eps": 1e-5},
    "mistral4": {**LATENT, **SHARING, "hidden_size": 48, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "routed_scaling_factor": 1.0,
                 "norm_topk_prob": True, "rope_theta": DROP, "rope_parameters": {
                     "type": "yarn", "rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "original_max_position_embeddings": 128,
                     "max_position_embeddings": 512, "beta_fast": 32.0, "beta_slow": 1.0, "mscale_all_dim": 1.0, "mscale": 1.0,
                     "llama_4_scaling_beta": 0.1}},
    "qwen3_next": {**DELTA, "decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": True},
    "qwen3_5_moe": {**DELTA, "intermediate_size": DROP},
    "qwen3_5_moe_text": {**DELTA, "intermediate_size": DROP},
    "lfm2_moe": {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 40, "num_dense_layers": 1, "conv_L_cache": 3,
                 "conv_bias": False, "layer_types": ["conv", "full_attention", "conv"], "norm_eps": 1e-5, "rms_norm_eps": DROP, "hidden_act": DROP,
                 "norm_topk_prob": True, "use_expert_bias": True, "routed_scaling_factor": 1.0, "tie_word_embeddings": True},
    "granitemoehybrid": {"num_local_experts": 8, "num_experts_per_tok": 3, "embedding_multiplier": 3.0, "attention_multiplier": 0.2,
                         "residual_multiplier": 0.4, "logits_scaling": 4.0, "shared_intermediate_size": 72, "position_embedding_type": "nope",
                         "mamba_n_heads": 8, "mamba_n_groups": 1, "mamba_d_state": 20, "mamba_d_head": 16, "mamba_d_conv": 4, "mamba_expand": 2,
                         "mamba_chunk_size": 256, "mamba_conv_bias": True, "mamba_proj_bias": False, "layer_types": ["mamba", "attention", "mamba"]},
    "kimi_linear": {**LATENT, **kda([1, 3], [2]), "hidden_size": 48, "q_lora_rank": None, "head_dim": 72, "num_experts": 8, "num_experts_per_token": 3,
                    "num_shared_experts": 1, "moe_intermediate_size": 24, "moe_renormalize": True, "moe_router_activation_func": "sigmoid",
                    "num_expert_group": 1, "topk_group": 1, "use_grouped_topk": True, "first_k_dense_replace": 1, "moe_layer_freq": 1,
                    "mla_use_nope": True, "routed_scaling_factor": 2.446, "model_max_length": 512, "max_position_embeddings": DROP,
                    "rope_scaling": None, "num_nextn_predict_layers": 0, "rms_norm_eps": 1e-5, "pad_token_id": 0},
    # transformers holds time steps of a prompt, but not of single tokens, above time_step_min; the makers' own code does neither
    "nemotron_h": {"hybrid_override_pattern": "ME*M-E", "num_hidden_layers": 6, "head_dim": 32, "n_routed_experts": 8, "num_experts_per_tok": 3,
                   "moe_intermediate_size": 40, "moe_shared_expert_intermediate_size": 72, "n_shared_experts": 1, "n_group": 1, "topk_group": 1,
                   "routed_scaling_factor": 2.5, "norm_topk_prob": True, "mamba_num_heads": 8, "mamba_head_dim": 12, "n_groups": 2,
                   "ssm_state_size": 20, "conv_kernel": 4, "expand": 2, "chunk_size": 128, "use_conv_bias": True, "use_bias": False,
                   "mamba_proj_bias": False, "mamba_hidden_act": "silu", "mlp_hidden_act": "relu2", "layer_norm_epsilon": 1e-5, "norm_eps": 1e-5,
                   "time_step_min": 1e-30, "time_step_max": 0.1, "time_step_floor": 1e-4, "sliding_window": None, "partial_rotary_factor": 1.0,
                   "rms_norm_eps": DROP, "hidden_act": DROP},
    "llama4_text": {"head_dim": 32, "intermediate_size": 40, "intermediate_size_mlp": 96, "num_local_experts": 8, "num_experts_per_tok": 1,
                    "interleave_moe_layer_step": 1, "no_rope_layer_interval": 2, "attention_chunk_size": 24, "floor_scale": 8, "attn_scale": 0.5,
                    "use_qk_norm": True, "pad_token_id": 0},
    "gemma4_text": GEMMA4,
    "gemma4": GEMMA4,
    # as published, but for what transformers makes of it
    "step3p7": {"head_dim": 32, "num_key_value_heads": DROP, "num_attention_groups": 2, "moe_num_experts": 8, "moe_top_k": 3,
                "moe_intermediate_size": 40, "share_expert_dim": 72, "moe_layers_enum": "1,2", "moe_router_activation": "sigmoid",
                "moe_router_scaling_factor": 3.0, "use_moe_router_bias": True, "norm_expert_weight": True, "use_head_wise_attn_gate": True,
                "use_qk_norm": True, "att_impl_type": "GQA", "moe_layer_offset": 0, "moe_every_n_layer": 1, "use_rope_layers": [], "sink": False,
                "layer_types": ["full_attention", "sliding_attention", "full_attention"], "sliding_window": 24,
                "attention_other_setting": {"attention_type": "sliding_attention", "num_attention_heads": 6, "num_attention_groups": 2, "head_dim": 32},
                "rope_theta": [50000.0, 1000.0, 50000.0], "partial_rotary_factors": [0.5, 1.0, 0.5], "rope_scaling": STEP_ROPE,
                "yarn_only_types": ["full_attention"], "swiglu_limits": [0.0, 0.4, 0.0], "swiglu_limits_shared": [0.3, 0.0, 0.5]},
    "laguna": {"head_dim": 32, "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 40, "shared_expert_intermediate_size": 72,
               "moe_routed_scaling_factor": 2.5, "gating": "per-head", "num_attention_heads_per_layer": [4, 6, 6], "sliding_window": 24,
               "layer_types": ["full_attention", "sliding_attention", "sliding_attention"], "mlp_layer_types": ["dense", "sparse", "sparse"],
               "rope_theta": DROP, "rope_parameters": LAGUNA_ROPES},
    "youtu": {**LATENT, "hidden_size": 48, "tie_word_embeddings": True, "rope_theta": 1.6e6},
}
# what a GGUF file does not tell is as in the published models
LLAMA4_FILE = {"attention_chunk_size": DROP, "floor_scale": DROP, "attn_scale": DROP, "no_rope_layer_interval": DROP, "interleave_moe_layer_step": 2,
               "num_hidden_layers": 4}
CLASSES = dict(qwen2_moe="Qwen2Moe", olmoe="Olmoe", granitemoe="GraniteMoe", glm4_moe="Glm4Moe", ernie4_5_moe="Ernie4_5_Moe",
               minimax_m2="MiniMaxM2", phimoe="Phimoe", granitemoeshared="GraniteMoeShared", dots1="Dots1", solar_open="SolarOpen", hy_v3="HYV3",
               glm4_moe_lite="Glm4MoeLite", youtu="Youtu", mistral4="Mistral4", hunyuan_v1_moe="HunYuanMoEV1", afmoe="Afmoe", lfm2_moe="Lfm2Moe",
               llama4_text="Llama4", granitemoehybrid="GraniteMoeHybrid", nemotron_h="NemotronH", kimi_linear="KimiLinear")
CLASSES.update(deepseek_v32="DeepseekV32", glm_moe_dsa="GlmMoeDsa")
CLASSES.update(step3p7="Step3p7", laguna="Laguna", flex_olmo="FlexOlmo", axk1="AXK1", sarvam_moe="Glm4Moe", sarvam_mla="DeepseekV3", granitemoe_swa="GraniteMoeSWA", exaone_moe="ExaoneMoe", mellum="Mellum", qwen3_vl_moe="Qwen3VLMoe", glm4v_moe="Glm4vMoe",
               gemma4="Gemma4", gemma4_text="Gemma4", qwen3_omni_moe="Qwen3OmniMoeThinker", qwen3_next="Qwen3Next", qwen3_5_moe="Qwen3_5Moe", qwen3_5_moe_text="Qwen3_5Moe")
SEES = {  # the smallest that transformers makes
    "qwen3_vl_moe": {"depth": 1, "hidden_size": 8, "intermediate_size": 8, "num_heads": 2, "patch_size": 2, "spatial_merge_size": 1,
                     "num_position_embeddings": 4, "deepstack_visual_indexes": [0], "in_channels": 1},
    "glm4v_moe": {"depth": 1, "hidden_size": 8, "intermediate_size": 8, "num_heads": 2, "patch_size": 2, "spatial_merge_size": 1,
                  "image_size": 4, "in_channels": 1},
}
SEES["qwen3_5_moe"] = {k: x for k, x in SEES["qwen3_vl_moe"].items() if k != "deepstack_visual_indexes"}
SEES["qwen3_omni_moe"] = SEES["qwen3_vl_moe"]
SEES["step3p7"] = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "num_channels": 1, "image_size": 4, "patch_size": 2,
                   "mlp_ratio": 1.0, "max_position_embeddings": 4}
SEES["gemma4"] = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1,
                  "head_dim": 8, "patch_size": 2, "position_embedding_size": 4, "pooling_kernel_size": 1}
HEARS = {"num_mel_bins": 8, "encoder_layers": 1, "encoder_attention_heads": 1, "encoder_ffn_dim": 4, "d_model": 4, "n_window": 4,
         "output_dim": 64, "downsample_hidden_size": 2, "max_source_positions": 8}


PUBLISHED_HEAD = {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
                  "v_head_dim": 128, "index_head_dim": 128, "index_n_heads": 20}
OF_ANOTHER = ("sarvam_moe", "sarvam_mla")  # whose class is another family's, their configuration not
DELTAS = ("qwen3_next", "qwen3_5_moe", "qwen3_5_moe_text")
NO_GGUF = ("step3p7", "laguna", "gemma4", "qwen3_5_moe", "granitemoe_swa", "glm4v_moe", "qwen3_omni_moe", "solar_open", "hy_v3", "exaone_moe", "mellum", "flex_olmo", "sarvam_moe", "sarvam_mla", "axk1")
NEWER = (*(a for a in NO_GGUF if a not in DELTAS), "qwen3_vl_moe", "granitemoeshared", "dots1")


def nested(c):
    """What is read is the language model behind one that sees, whose configuration is an object in the file's."""
    kind = c["model_type"]
    if kind not in SEES:
        return c
    top = {"architectures": [CLASSES[kind] + "ForConditionalGeneration"], "model_type": kind, "tie_word_embeddings": c.pop("tie_word_embeddings", False)}
    text = {k: v for k, v in c.items() if k != "architectures"}
    if kind == "qwen3_omni_moe":
        top.update(model_type=kind + "_thinker", audio_config={**HEARS, "output_dim": c["hidden_size"]})
    return {**top, "text_config": {**text, "model_type": "step3p5" if kind == "step3p7" else kind + "_text"},
            "vision_config": {**SEES[kind], "out_hidden_size": c["hidden_size"]}}


def publish_omni(d):
    """What transformers computes with is one of several models in the published file."""
    import json
    from safetensors.torch import load_file, save_file
    s = load_file(d / "model.safetensors")
    save_file({"thinker." + k: t for k, t in s.items()}, d / "model.safetensors", metadata={"format": "pt"})
    c = json.loads((d / "config.json").read_text())
    (d / "config.json").write_text(json.dumps({"architectures": ["Qwen3OmniMoeForConditionalGeneration"], "model_type": "qwen3_omni_moe",
                                               "thinker_config": c, "enable_audio_output": False}, indent=1))


def publish_ling(d):
    """Ling 2.0 has the layers of Sarvam's, under its own name; transformers knows Sarvam's alone."""
    import json
    c = json.loads((d / "config.json").read_text())
    (d / "config.json").write_text(json.dumps({**c, "model_type": "bailing_moe", "architectures": ["BailingMoeV2ForCausalLM"]}, indent=1))


def publish_step(d):
    """Step-3.5: the same without what sees."""
    import json
    from safetensors.torch import load_file, save_file
    for f in d.glob("*.safetensors"):
        save_file({k: t for k, t in load_file(f).items() if not k.startswith("vi")}, f, metadata={"format": "pt"})
    c = json.loads((d / "config.json").read_text())
    of_all = {k: x for k, x in c.items() if k in ("tie_word_embeddings", "quantization_config")}
    (d / "config.json").write_text(json.dumps({**c["text_config"], **of_all, "architectures": ["Step3p5ForCausalLM"]}, indent=1))


# What is around a language model of another family: its class in transformers (None: it has none), the key of the language model, and of what sees.
AROUND = {
    "kimi_k25": ("Kimi_K25ForConditionalGeneration", "text_config", {
        "num_attention_heads": 1, "num_hidden_layers": 1, "hidden_size": 8, "intermediate_size": 8, "pos_emb_height": 2, "pos_emb_width": 2}),
    "mistral3": ("Mistral3ForConditionalGeneration", "text_config", {
        "model_type": "pixtral", "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "head_dim": 8,
        "image_size": 4, "patch_size": 2}),
    "internvl": ("InternVLForConditionalGeneration", "text_config", {
        "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "image_size": [4, 4], "patch_size": [2, 2]}),
    "internvl_chat": (None, "llm_config", {}),
    "kimi_vl": (None, "text_config", {}),
    "llama4": ("Llama4ForConditionalGeneration", "text_config", {
        "hidden_size": 8, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 1, "image_size": 4, "patch_size": 2,
        "vision_output_dim": 8, "projector_input_dim": 8, "projector_output_dim": 8}),
}


def behind(kind, own_class=None):
    """Publishes a model as what `kind` is around; where transformers knows that, it must then compute the same."""
    def publish(d):
        import json
        import torch
        import transformers
        from safetensors.torch import load_file, save_file
        cls, key, sees = AROUND[kind]
        c = json.loads((d / "config.json").read_text())
        plain = getattr(transformers, c["architectures"][0]).from_pretrained(d, dtype=torch.float32, attn_implementation="eager")
        s = load_file(d / "model.safetensors")
        save_file({"language_model." + k: t for k, t in s.items()}, d / "model.safetensors", metadata={"format": "pt"})
        (d / "config.json").write_text(json.dumps({
            "architectures": [own_class or cls], "model_type": kind, key: c, "vision_config": sees, "tie_word_embeddings": False}, indent=1))
        if cls:
            model, loading = getattr(transformers, cls).from_pretrained(d, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
            missing = [k for k in loading["missing_keys"] if "vision" not in k and "projector" not in k]
            assert not missing and not loading["unexpected_keys"], (missing, loading["unexpected_keys"])
            ids = torch.tensor([[5, 3, 9, 27, 4, 1, 0, 33]])
            with torch.no_grad():
                # Llama 4's class does not come through without pictures (transformers 5.24): its language model is asked
                whole = model.language_model if kind == "llama4" else model
                assert torch.equal(whole.eval()(ids, use_cache=False).logits, plain.eval()(ids, use_cache=False).logits)
    return publish


def as_published_axk1(d):
    """No bias on the choice, and a norm of which dense layers make no use."""
    import torch
    from safetensors.torch import load_file, save_file
    s = {k: t for k, t in load_file(d / "model.safetensors").items() if "e_score_correction_bias" not in k}
    save_file({**s, "model.layers.0.post_mlp_layernorm.weight": torch.ones(48)}, d / "model.safetensors", metadata={"format": "pt"})


def as_published_kimi(d):
    """Transformers calls the FFN of a dense layer as those with experts when it saves."""
    import re
    from safetensors.torch import load_file, save_file
    own = lambda name: re.sub(r"block_sparse_moe\.((gate|up|down)_proj)", r"mlp.\1", name)
    for f in d.glob("*.safetensors"):
        save_file({own(k): t for k, t in load_file(f).items()}, f, metadata={"format": "pt"})
    for f in d.glob("*.index.json"):
        f.write_text(own(f.read_text()))


def add_mtp(d):
    """What guesses further tokens is left alone."""
    import torch
    from safetensors.torch import load_file, save_file
    s = load_file(d / "model.safetensors")
    s.update({"mtp.fc.weight": torch.ones(8, 16), "mtp.layers.0.self_attn.q_proj.weight": torch.ones(8, 8), "mtp.norm.weight": torch.ones(8)})
    save_file(s, d / "model.safetensors", metadata={"format": "pt"})


def add_tensor(d, name, n):
    import torch
    from safetensors.torch import load_file, save_file
    save_file({**load_file(d / "model.safetensors"), name: torch.ones(n)}, d / "model.safetensors", metadata={"format": "pt"})


def turn(d):
    """Experts as Qwen3-VL's files have them."""
    from safetensors.torch import load_file, save_file
    s = load_file(d / "model.safetensors")
    s = {k: t.transpose(1, 2) if k.endswith(("experts.gate_up_proj", "experts.down_proj")) else t for k, t in s.items()}
    save_file({k: t.contiguous() for k, t in s.items()}, d / "model.safetensors", metadata={"format": "pt"})


def unfuse(d):
    """Llama 4's experts as quantised files have them: a matrix of rows each."""
    from safetensors.torch import load_file, save_file
    out = {}
    for k, t in load_file(d / "model.safetensors").items():
        stem, _, last = k.rpartition(".")
        parts = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}[last] if stem.endswith("experts") else ()
        for part, all_of in zip(parts, t.chunk(max(len(parts), 1), dim=2) if parts else ()):
            out.update({f"{stem}.{e}.{part}.weight": m.T.contiguous() for e, m in enumerate(all_of)})
        out.update({} if parts else {k: t})
    save_file(out, d / "model.safetensors", metadata={"format": "pt"})


def fuse(d):
    """Back, as transformers reads them."""
    import re
    import torch
    from safetensors.torch import load_file, save_file
    s = load_file(d / "model.safetensors")
    for stem in {m[1] for m in (re.fullmatch(r"(.*\.experts)\.0\.gate_proj\.weight", k) for k in s) if m}:
        n = sum(k.startswith(stem) and k.endswith("gate_proj.weight") for k in s)
        take = lambda part: torch.stack([s.pop(f"{stem}.{e}.{part}.weight").T for e in range(n)])
        s[f"{stem}.gate_up_proj"] = torch.cat([take("gate_proj"), take("up_proj")], 2)
        s[f"{stem}.down_proj"] = take("down_proj").contiguous()
    save_file(s, d / "model.safetensors", metadata={"format": "pt"})


def fill(variant, add_nextn):
    for a, c in FAMILIES.items():
        if a == "qwen3_omni_moe": # which is published otherwise than transformers writes it
            continue
        v = lambda n, refuse=None, a=a, **kw: variant(f"{a}-{n}", a, refuse, **kw)
        experts = next((k for k in c if k.endswith("experts") and "shared" not in k), None)
        v("base")
        renamed = a in ("granitemoe", "exaone_moe", "granitemoeshared", "granitemoehybrid", "hy_v3", "ernie4_5_moe", "minimax_m2", "phimoe", "sarvam_moe", "axk1", "nemotron_h", "kimi_linear", "step3p7", "laguna") # by transformers: only the published names are read
        v("packed", "is missing" if renamed else None, packed=True)
        v("f32-shards", dtype="float32", shards="90KB")
        if experts and a not in ("kimi_linear", "deepseek_v32"):
            v("one-of-one", "num_experts_per_tok = 1" if a == "phimoe" else None, cfg={experts: 2, next((k for k in ("moe_k", "top_k_experts", "moe_top_k") if k in c), "num_experts_per_tok"): 1})
        v("long-prompt", prompts=[1, 450])
        whole = {"moe_intermediate_size": 32, "shared_expert_intermediate_size": 64, "shared_intermediate_size": 64, "moe_shared_expert_intermediate_size": 64, "q_lora_rank": 32, "qk_nope_head_dim": 32, "v_head_dim": 32,
                 "hidden_size": 64}
        if a not in NO_GGUF and a != "kimi_linear":
            v("gguf-q8_0", gguf="q8_0", cfg={k: x for k, x in whole.items() if k in c} | ({"global_attn_every_n_layers": 4} if a == "afmoe" else {**LLAMA4_FILE, "intermediate_size": 32} if a == "llama4_text" else {}))
        act = "hidden_activation" if "hidden_activation" in c else "hidden_act"
        v("gelu", f"{act} 'gelu'", cfg={act: "gelu"})
        if a != "minimax_m2": # whose transformers write other names in this case
            v("minimal", cfg={k: DROP for k in ("rms_norm_eps", "rope_theta", act, "tie_word_embeddings", "torch_dtype")})
    v = variant
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
    v("granitemoeshared", "granitemoeshared", cfg={**TINY, "intermediate_size": 24, "shared_intermediate_size": 40})
    v("dots1", "dots1", cfg={**TINY, "head_dim": 16, "n_group": 4, "topk_group": 2, "sliding_window": 24, "max_window_layers": 2})
    v("solar_open", "solar_open", cfg={**TINY, "attention_bias": True, "rope_scaling": yarn})
    v("hy_v3", "hy_v3", cfg=TINY)
    hunyuan = lambda n, refuse=None, **kw: v(f"hunyuan_v1_moe{n}", "hunyuan_v1_moe", refuse, **kw)
    alpha = lambda **kw: {"rope_scaling": {"type": "dynamic", "factor": 1.0, **kw}}
    few = {**TINY, "head_dim": 16, "attention_head_dim": 16, "intermediate_size": 24, "moe_intermediate_size": [24] * 3}
    hunyuan("", cfg=few)
    hunyuan("-gguf", gguf="bf16", cfg=few)
    hunyuan("-alpha-1", cfg=alpha(alpha=1.0))
    hunyuan("-no-alpha", cfg=alpha(factor=4.0))
    hunyuan("-alpha-0", cfg=alpha(factor=4.0, alpha=0))
    hunyuan("-alpha-theta", cfg=alpha(alpha=50.0, rope_theta=500.0))
    hunyuan("-alpha-yarn", cfg={"rope_scaling": {**yarn, "alpha": 50.0}})
    hunyuan("-rope-parameters", cfg={"rope_theta": DROP, "rope_scaling": DROP, "rope_parameters": {
        "rope_type": "dynamic", "factor": 1.0, "alpha": 7.0, "rope_theta": 1234.0}})
    hunyuan("-head-dim-2", "heads of more than two", cfg={"head_dim": 2, "attention_head_dim": 2}, no_reference=True)
    hunyuan("-biases", cfg={"attention_bias": True, "tie_word_embeddings": True})
    hunyuan("-one-expert", cfg={"num_experts": 1, "moe_topk": [1, 1, 1]})
    hunyuan("-loud", weights=lambda s: {k: t * (5 if "self_attn" in k and "_layernorm" in k else 1) for k, t in s.items()})
    hunyuan("-some-top-k", "'moe_topk' is not the same", cfg={"moe_topk": [2, 3, 3]}, no_reference=True)
    hunyuan("-two-shared", "num_shared_expert = 2", cfg={"num_shared_expert": [2] * 3}, no_reference=True)
    hunyuan("-own-size", "moe_intermediate_size = 40", cfg={"moe_intermediate_size": [40] * 3}, no_reference=True)
    hunyuan("-skipped", "moe_layer_num_skipped = 1", cfg={"moe_layer_num_skipped": 1}, no_reference=True)
    for key, says in (("use_cla", True), ("use_mla", True), ("use_qk_norm", False), ("use_mixed_mlp_moe", False), ("use_rotary_pos_emb", False)):
        hunyuan(f"-{key}", f"{key} {str(says).lower()} is not known", cfg={key: says}, no_reference=True)
    types = ["sliding_attention", "full_attention", "sliding_attention"]
    v("flex_olmo", "flex_olmo", cfg={**TINY, "head_dim": 32, "intermediate_size": 24})
    v("flex_olmo-normed", "flex_olmo", cfg={"norm_topk_prob": True, "tie_word_embeddings": True, "rope_theta": DROP})
    v("flex_olmo-biases", "flex_olmo", cfg={"attention_bias": True, "num_key_value_heads": 4, "num_experts": 7, "num_experts_per_tok": 7})
    v("flex_olmo-one-kv-head", "flex_olmo", cfg={"num_key_value_heads": 1, "head_dim": 24, "rope_scaling": yarn})
    v("flex_olmo-loud", "flex_olmo", weights=lambda s: {k: t * (8 if "post_" in k else 1) for k, t in s.items()})
    v("flex_olmo-long", "flex_olmo", cfg={"max_position_embeddings": 4096, "num_hidden_layers": 2}, prompts=[530, 1500], greedy=4)
    v("flex_olmo-norm-before", "flex_olmo", "model.layers.0.input_layernorm.weight", files=lambda d: add_tensor(d, "model.layers.0.input_layernorm.weight", 64))
    v("sarvam_moe", "sarvam_moe", cfg={**TINY, "head_dim": 16, "use_qkv_bias": True, "moe_shared_expert_intermediate_size": 24})
    v("sarvam_moe-biases", "sarvam_moe", cfg={"use_qkv_bias": True, "num_key_value_heads": 4, "num_shared_experts": 2,
                                              "moe_shared_expert_intermediate_size": DROP, "tie_word_embeddings": True})
    v("sarvam_moe-groups", "sarvam_moe", cfg={"n_group": 4, "topk_group": 2, "partial_rotary_factor": 0.5, "first_k_dense_replace": 0})
    v("sarvam_moe-no-norms", "sarvam_moe", cfg={"use_qk_norm": False, "norm_topk_prob": False, "routed_scaling_factor": 1.0})
    v("sarvam_moe-yarn", "sarvam_moe", cfg={"rope_scaling": yarn})
    v("sarvam_moe-softmax", "sarvam_moe", "'score_function' is 'softmax'", cfg={"score_function": "softmax"})
    v("sarvam_moe-shared-size", "sarvam_moe", "moe_shared_expert_intermediate_size = 24", cfg={"moe_shared_expert_intermediate_size": 24})
    v("sarvam_moe-fp8", "sarvam_moe", fp8="block", cfg={"hidden_size": 160})
    # parts of a matrix: Q, K and V, or gate and up
    for how, kind in (("fp8", "channel"), ("fp8", "modelopt"), ("int4", "ct-zeros"), ("int4", "gptq-zeros"), ("int4", "awq-64"), ("nvfp4", "modelopt"), ("nvfp4", "ct")):
        v(f"sarvam_moe-{how}-{kind}", "sarvam_moe", **{how: kind}, cfg={
            "hidden_size": 192, "intermediate_size": 192, "moe_intermediate_size": 64, "moe_shared_expert_intermediate_size": 64})
        v(f"granitemoeshared-{how}-{kind}", "granitemoeshared", **{how: kind}, cfg={"hidden_size": 192, "intermediate_size": 64, "shared_intermediate_size": 128})
    ling = {"n_group": 4, "topk_group": 2, "partial_rotary_factor": 0.5, "moe_shared_expert_intermediate_size": 24}
    v("bailing_moe", "sarvam_moe", cfg={**TINY, **ling, "head_dim": 16}, publish=publish_ling)
    v("bailing_moe-gguf", "sarvam_moe", gguf="bf16", cfg={**TINY, **ling, "head_dim": 16}, publish=publish_ling)
    v("bailing_moe-gguf-f32", "sarvam_moe", gguf="f32", publish=publish_ling, cfg={
        **ling, "num_shared_experts": 2, "moe_shared_expert_intermediate_size": DROP, "norm_topk_prob": False, "n_group": 1, "topk_group": 1})
    v("bailing_moe-gguf-q8_0", "sarvam_moe", gguf="q8_0", publish=publish_ling, cfg={
        **ling, "moe_intermediate_size": 32, "moe_shared_expert_intermediate_size": 32})
    v("sarvam_mla", "sarvam_mla")
    v("sarvam_mla-low", "sarvam_mla", cfg={"q_lora_rank": 24, "n_group": 2, "topk_group": 1, "rope_scaling": {**yarn, "mscale_all_dim": 1.0}})
    v("axk1", "axk1", cfg={"n_group": 4, "topk_group": 2}, files=as_published_axk1)
    v("axk1-biased", "axk1", cfg={"n_group": 4, "topk_group": 2})
    v("axk1-listed", "axk1", cfg={"mlp_layer_types": ["sparse", "dense", "sparse"], "attention_bias": True})
    v("axk1-dense-last", "axk1", cfg={"mlp_layer_types": ["sparse", "sparse", "dense"]})
    v("axk1-loud", "axk1", weights=lambda s: {k: t * (8 if "post_mlp" in k else 1) for k, t in s.items()})
    llama4 = lambda n, refuse=None, **kw: v(f"llama4_text{n}", "llama4_text", refuse, **kw)
    scout = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 1.0, "original_max_position_embeddings": 64}
    llama4("", cfg={**TINY, "moe_intermediate_size": DROP, "intermediate_size": 24, "head_dim": 16})
    v("llama4", "llama4_text", publish=behind("llama4"), cfg={
        **TINY, "moe_intermediate_size": DROP, "intermediate_size": 24, "head_dim": 16, "use_qk_norm": False, "interleave_moe_layer_step": 2,
        "num_hidden_layers": 4, "no_rope_layer_interval": 4, "rope_scaling": scout})
    llama4("-gguf", gguf="bf16", cfg={**TINY, **LLAMA4_FILE, "moe_intermediate_size": DROP, "intermediate_size": 24, "head_dim": 16, "rope_scaling": scout})
    llama4("-gguf-128", gguf="f32", cfg={**LLAMA4_FILE, "num_local_experts": 128, "use_qk_norm": False})
    llama4("-gguf-window", "llama4.attention.sliding_window", gguf="bf16", gguf_keys={"attention.sliding_window": 0}, cfg=LLAMA4_FILE)
    llama4("-unfused", publish=unfuse)
    llama4("-fp8", fp8="channel", files=unfuse, cfg={"hidden_size": 160})
    llama4("-int4", int4="gptq-zeros", files=unfuse, cfg={"hidden_size": 192, "intermediate_size": 64, "intermediate_size_mlp": 128})
    llama4("-square", cfg={"intermediate_size": 32})
    llama4("-lists", cfg={"no_rope_layers": [0, 1, 1], "moe_layers": [2, 0]})
    llama4("-empty-lists", cfg={"no_rope_layers": [], "moe_layers": []})
    llama4("-types", cfg={"layer_types": ["full_attention", "chunked_attention", "chunked_attention"]})
    llama4("-no-chunks", cfg={"attention_chunk_size": None})
    llama4("-chunk-1", cfg={"attention_chunk_size": 1})
    llama4("-not-tuned", cfg={"attn_temperature_tuning": False})
    llama4("-no-norm", cfg={"use_qk_norm": False, "attention_bias": True, "num_key_value_heads": 4, "tie_word_embeddings": True})
    llama4("-defaults", cfg={k: DROP for k in ("use_qk_norm", "floor_scale", "attn_scale", "attention_chunk_size", "interleave_moe_layer_step",
                                               "no_rope_layer_interval", "num_experts_per_tok")} | {"num_hidden_layers": 5})
    llama4("-long", cfg={"max_position_embeddings": 4096, "attention_chunk_size": 600, "floor_scale": 100}, prompts=[590, 1500], greedy=14)
    llama4("-two-picks", "num_experts_per_tok = 2", cfg={"num_experts_per_tok": 2})
    llama4("-short-list", "no_rope_layers must list", cfg={"no_rope_layers": [1, 0]}, no_reference=True)
    llama4("-sliding", "'sliding_attention' for layer 0", cfg={"layer_types": ["sliding_attention"] * 3}, no_reference=True)
    trinity = lambda n, refuse=None, **kw: v(f"afmoe{n}", "afmoe", refuse, **kw)
    trinity("", cfg={**TINY, "head_dim": 16})
    trinity("-gguf", gguf="bf16", cfg={**TINY, "head_dim": 16, "global_attn_every_n_layers": 4, "num_hidden_layers": 4})
    trinity("-usual-pattern", cfg={"global_attn_every_n_layers": DROP, "num_hidden_layers": 5})
    trinity("-types", cfg={"layer_types": types, "num_dense_layers": 0})
    trinity("-full", cfg={"layer_types": ["full_attention"] * 3})
    trinity("-windows", cfg={"layer_types": ["sliding_attention"] * 3, "rope_scaling": yarn})
    trinity("-narrow", cfg={"sliding_window": 1})
    trinity("-plain", cfg={"mup_enabled": False, "route_scale": 1.0, "num_shared_experts": 3, "tie_word_embeddings": True})
    trinity("-dense", cfg={"num_dense_layers": 3})
    trinity("-biases", cfg={"attention_bias": True, "num_key_value_heads": 1})
    trinity("-defaults", cfg={k: DROP for k in ("num_dense_layers", "num_shared_experts", "route_scale", "mup_enabled", "sliding_window", "head_dim")})
    trinity("-loud-gate", weights=lambda s: {k: t * (8 if "self_attn.gate_proj" in k else 1) for k, t in s.items()})
    trinity("-fp8", fp8="block-bf16", cfg={"hidden_size": 160})
    trinity("-gguf-pattern", gguf="bf16", gguf_keys={"attention.sliding_window_pattern": 2})
    trinity("-gguf-not-normed", "expert_weights_norm false", gguf="bf16", gguf_keys={"expert_weights_norm": False})
    trinity("-gguf-softmax", "expert_gating_func", gguf="bf16", gguf_keys={"expert_gating_func": 1})
    trinity("-no-window", "sliding_window is needed", cfg={"sliding_window": None}, no_reference=True)
    trinity("-softmax", "'score_func' is 'softmax'", cfg={"score_func": "softmax"})
    trinity("-not-normed", "route_norm false is not known", cfg={"route_norm": False})
    trinity("-groups", "num_expert_groups = 2", cfg={"num_expert_groups": 2})
    step = lambda n, refuse=None, **kw: v(f"step3p{n}", "step3p7", refuse, **kw)
    two = {"num_attention_heads": 5, "num_key_value_heads": 1, "num_attention_groups": DROP, "attention_other_setting": DROP, "per_layer_config": {"1": {"num_attention_heads": 3}}}
    small = {**TINY, "head_dim": 16, "share_expert_dim": 20, "attention_other_setting": {
        "attention_type": "sliding_attention", "num_attention_heads": 6, "num_attention_groups": 2, "head_dim": 16}}
    step("7", cfg=small)
    step("5", publish=publish_step, cfg={**small, "head_dim": 128, "num_hidden_layers": 2, "vocab_size": 96, **{k: FAMILIES["step3p7"][k][:2] for k in (
        "layer_types", "rope_theta", "partial_rotary_factors", "swiglu_limits")}, "swiglu_limits_shared": [0.0, 0.5], "attention_other_setting": {
            **small["attention_other_setting"], "head_dim": 128}, "moe_layers_enum": "1"})
    step("5-gguf", gguf="bf16", publish=publish_step, cfg=small)
    step("5-gguf-f32-plain", gguf="f32", publish=publish_step, cfg={"rope_scaling": None, "swiglu_limits": [0, None, 0.2], "moe_layers_enum": "0,1,2"})
    step("5-gguf-q8_0", gguf="q8_0", publish=publish_step, cfg={"moe_intermediate_size": 32, "share_expert_dim": 64})
    step("5-gguf-rotated", gguf="bf16", publish=publish_step, gguf_keys={"rope.dimension_count": 16, "rope.dimension_count_swa": 32})
    step("5-gguf-heads", "must list", gguf="bf16", publish=publish_step, gguf_keys={"swiglu_clamp_exp": [0.5]})
    step("5-gguf-no-lists", "lists of 3 layers", gguf="bf16", publish=publish_step, gguf_keys={"attention.sliding_window_pattern": 4})
    step("5-gguf-kv-heads", "has layers of 2 and of 1 heads", gguf="bf16", publish=publish_step, gguf_keys={"attention.head_count_kv": [2, 1, 2]})
    step("5-gguf-softmax", "expert_gating_func", gguf="bf16", publish=publish_step, gguf_keys={"expert_gating_func": 1})
    step("5-gguf-not-normed", "expert_weights_norm = false", gguf="bf16", publish=publish_step, gguf_keys={"expert_weights_norm": False})
    step("5-fp8-block", fp8="block", publish=publish_step, cfg={**small, "hidden_size": 136, "moe_intermediate_size": 40, "vocab_size": 61, "moe_num_experts": 4})
    step("5-fp8-wide", fp8="block", publish=publish_step, cfg={"hidden_size": 160, "moe_intermediate_size": 136})
    step("7-fp8-channel", "scales for blocks of", fp8="channel", cfg={"moe_intermediate_size": 72})
    step("7-fp8-bf16", fp8="block-bf16", cfg={"moe_intermediate_size": 72})
    step("7-no-limits", cfg={"swiglu_limits": DROP, "swiglu_limits_shared": None})
    step("7-null-limits", cfg={"swiglu_limits": [None, None, 0.2], "swiglu_limits_shared": [0, None, 0.1]})
    step("7-loud", weights=lambda s: {k: t * (8 if "_proj" in k else 1) for k, t in s.items()})
    step("7-loud-gate", weights=lambda s: {k: t * (8 if "g_proj" in k else 1) for k, t in s.items()})
    step("7-listed", cfg={"moe_layers_enum": [0, 2]})
    step("7-types", cfg={"moe_layers_enum": DROP, "mlp_layer_types": ["sparse", "dense", "sparse"]})
    step("7-usual-moe", cfg={"moe_layers_enum": DROP, "num_hidden_layers": 4, **{k: x[:1] + x for k, x in FAMILIES["step3p7"].items() if k in (
        "layer_types", "rope_theta", "partial_rotary_factors", "swiglu_limits", "swiglu_limits_shared")}})
    step("7-one-kind", cfg={"layer_types": DROP, "rope_theta": 777.0, "partial_rotary_factors": DROP})
    step("7-windows", cfg={"layer_types": ["sliding_attention"] * 3, "rope_theta": 777, "partial_rotary_factors": [0.25] * 3})
    step("7-same-heads", cfg={"attention_other_setting": DROP})
    step("7-sliding-heads", cfg={"attention_other_setting": DROP, "num_sliding_attention_heads": 8})
    step("7-per-layer", cfg=two)
    step("7-scalar", cfg={"query_pre_attn_scalar": 20.0, "attention_bias": True, "tie_word_embeddings": True})
    step("7-saved-ropes", cfg={"rope_theta": DROP, "rope_scaling": DROP, "partial_rotary_factors": DROP, "rope_parameters": LAGUNA_ROPES})
    step("7-nextn", files=add_nextn, cfg={"num_nextn_predict_layers": 1, **{k: x + x[-1:] for k, x in FAMILIES["step3p7"].items() if k in (
        "layer_types", "rope_theta", "partial_rotary_factors", "swiglu_limits", "swiglu_limits_shared")}})
    step("7-long", cfg={"max_position_embeddings": 4096}, prompts=[530, 1500], greedy=4)
    step("7-other-ropes", "rope_theta is not the same in all layers of full_attention", no_reference=True, cfg={"rope_theta": [1e4, 1e3, 2e4]})
    step("7-other-kv-heads", "has another num_attention_groups", no_reference=True, cfg={"attention_other_setting": {"num_attention_groups": 1}})
    step("7-few-limits", "swiglu_limits must list", no_reference=True, cfg={"swiglu_limits": [1.0]})
    step("7-limit", "must hold numbers from 0.001", no_reference=True, cfg={"swiglu_limits": [0, 0, -1.0]})
    step("7-layer-x", "must hold numbers of layers", no_reference=True, cfg={"moe_layers_enum": "1,x"})
    step("7-softmax", "moe_router_activation", no_reference=True, cfg={"moe_router_activation": "softmax"})
    step("7-rope-layers", "use_rope_layers", no_reference=True, cfg={"use_rope_layers": [1, 0, 1]})
    step("7-all-yarn", "yarn_only_types", no_reference=True, cfg={"yarn_only_types": ["full_attention", "sliding_attention"]})
    step("7-elements", "gating is per-element", no_reference=True, cfg={"gating": "per-element"})
    laguna = lambda n, refuse=None, **kw: v(f"laguna{n}", "laguna", refuse, **kw)
    laguna("", cfg={**TINY, "head_dim": 16, "shared_expert_intermediate_size": 20})
    laguna("-elements", cfg={"gating": "per-element"})
    laguna("-true", cfg={"gating": True, "num_attention_heads_per_layer": DROP, "partial_rotary_factor": 0.25})
    laguna("-defaults", cfg={k: DROP for k in ("gating", "rope_parameters", "mlp_layer_types", "layer_types", "moe_routed_scaling_factor")})
    laguna("-listed", cfg={"mlp_layer_types": ["sparse", "dense", "sparse"], "num_attention_heads_per_layer": [6, 2, 8], "attention_bias": True})
    laguna("-loud-gate", weights=lambda s: {k: t * (8 if "g_proj" in k else 1) for k, t in s.items()})
    laguna("-fp8", fp8="block-bf16", cfg={"hidden_size": 160})
    laguna("-ungated", "gating is", no_reference=True, cfg={"gating": False})
    laguna("-softcap", "moe_router_logit_softcapping", no_reference=True, cfg={"moe_router_logit_softcapping": 5.0})
    laguna("-on-input", "moe_apply_router_weight_on_input", no_reference=True, cfg={"moe_apply_router_weight_on_input": True})
    laguna("-heads", "has 5 heads for layer 1", no_reference=True, cfg={"num_attention_heads_per_layer": [4, 5, 6]})
    laguna("-few-heads", "num_attention_heads_per_layer must list", no_reference=True, cfg={"num_attention_heads_per_layer": [4, 6]})
    v("exaone_moe", "exaone_moe", cfg={**TINY, "sliding_window_pattern": "LLG", "layer_types": types, "rope_scaling": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}})
    v("mellum", "mellum", cfg={**TINY, "rope_parameters": {"full_attention": {"rope_theta": 50000.0, **yarn}, "sliding_attention": {
        "rope_type": "default", "rope_theta": 1000.0}}})
    v("exaone_moe-pattern", "exaone_moe", cfg={"num_hidden_layers": 5, "sliding_window_pattern": 2})
    v("exaone_moe-usual-pattern", "exaone_moe", cfg={"num_hidden_layers": 5, "sliding_window": 9})
    v("exaone_moe-letters", "exaone_moe", "'sliding_window_pattern' must be a number", cfg={"sliding_window_pattern": "LLG"}, no_reference=True)
    v("exaone_moe-full", "exaone_moe", cfg={"layer_types": ["full_attention"] * 3})
    v("exaone_moe-listed", "exaone_moe", cfg={"mlp_layer_types": ["sparse", "dense", "sparse"]})
    v("mellum-usual-ropes", "mellum", cfg={"rope_parameters": DROP})
    v("mellum-full", "mellum", cfg={"layer_types": DROP, "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 777.0}}})
    v("mellum-listed", "mellum", cfg={"mlp_layer_types": ["sparse", "dense", "sparse"], "attention_bias": True})
    v("mellum-one-rope", "mellum", "rope_parameters need 'sliding_attention'", no_reference=True,
      cfg={"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 777.0}}})
    v("mellum-top-theta", "mellum", "'full_attention' of the rotary embedding needs a rope_theta", no_reference=True,
      cfg={"rope_theta": 4321.0, "rope_parameters": {"full_attention": {"rope_type": "default"}, "sliding_attention": {"rope_theta": 99.0}}})
    v("qwen3_vl_moe", "qwen3_vl_moe", cfg={**TINY, "moe_intermediate_size": 20}, files=turn)
    v("glm4v_moe", "glm4v_moe", cfg=TINY)
    v("qwen3_omni_moe", "qwen3_omni_moe", cfg=TINY, publish=publish_omni)
    v("qwen3_omni_moe-tied", "qwen3_omni_moe", publish=publish_omni, cfg={"tie_word_embeddings": True, "norm_topk_prob": False})
    v("granitemoe_swa", "granitemoe_swa", cfg={**TINY, "intermediate_size": 24, "shared_intermediate_size": 24, "num_hidden_layers": 4, "vocab_size": 96,
                                               "layer_rope_theta": [0, 10000.0, 500.0, 0]})
    v("granitemoe_swa-types", "granitemoe_swa", cfg={"layer_types": types, "shared_intermediate_size": 0, "rope_theta": 777.0})
    v("granitemoe_swa-yarn", "granitemoe_swa", cfg={"rope_parameters": {**yarn, "rope_theta": 1e4}, "layer_rope_theta": [1e4, 3e3, 0]})
    v("granitemoe_swa-many", "granitemoe_swa", "layer_rope_theta has more than 4 different bases", no_reference=True,
      cfg={"num_hidden_layers": 5, "layer_rope_theta": [1e4, 2e4, 3e4, 4e4, 0]})
    small = {**TINY, "head_dim": 16, "global_head_dim": 32}
    v("gemma4", "gemma4", cfg=small)
    v("gemma4-gguf", "gemma4_text", gguf="bf16", cfg=small)
    two = {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"], "global_head_dim": 512}
    # K of the layer without a window is half as wide as the other's, as in the published ones; then much wider.
    v("gemma4_text", "gemma4_text", cfg={**small, **two, "hidden_size": 32, "head_dim": 256, "num_attention_heads": 4, "num_key_value_heads": 4})
    v("gemma4_text-wide", "gemma4_text", cfg={**small, **two, "num_attention_heads": 2, "num_key_value_heads": 1})
    g = lambda n, refuse=None, text=None, **kw: v(f"gemma4_text-{n}", "gemma4_text", refuse, cfg=text or {}, **kw)
    dense = {"enable_moe_block": False, "num_experts": None, "top_k_experts": None, "moe_intermediate_size": None}
    g("dense", text=dense)
    g("dense-gguf", text=dense, gguf="bf16")
    g("pattern", text={"layer_types": DROP, "num_hidden_layers": 7})
    g("pattern-last", text={"layer_types": DROP, "num_hidden_layers": 3})
    g("v", text={"attention_k_eq_v": False})
    g("v-gguf", gguf="bf16", text={"attention_k_eq_v": False, "num_global_key_value_heads": None})
    g("no-cap", text={"final_logit_softcapping": None})
    g("biases", text={"attention_bias": True})
    g("wide-full", text={"global_head_dim": 96, "num_global_key_value_heads": 2})
    g("ropes", text={"rope_parameters": {"sliding_attention": {"rope_type": "default", "rope_theta": 500.0}, "full_attention": {
        "rope_type": "proportional", "rope_theta": 77777.0, "partial_rotary_factor": 0.6, "factor": 3.0}}})
    g("ropes-plain", text={"rope_parameters": {k: {"rope_type": "default", "rope_theta": x} for k, x in (("sliding_attention", 500.0),
                                                                                                       ("full_attention", 7e5))}})
    g("listed", text={"global_head_dim": DROP, "num_global_key_value_heads": DROP, "per_layer_config": {"2": {
        "head_dim": 48, "num_key_value_heads": 1}}})
    g("listed-otherwise", "per_layer_config gives layer 1", no_reference=True, text={
        "per_layer_config": {"1": {"head_dim": 48}, "2": {"head_dim": 48, "num_key_value_heads": 1}}})
    g("listed-windows", "'sliding_window' for layer 2", no_reference=True, text={"per_layer_config": {"2": {"sliding_window": 8}}})
    g("sees-pictures", text={"use_bidirectional_attention": "vision"})
    g("sees-all", "'use_bidirectional_attention' is 'all'", text={"use_bidirectional_attention": "all"})
    g("per-layer", "hidden_size_per_layer_input = 8", text={"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 211})
    g("per-layer-default", "hidden_size_per_layer_input = 256", no_reference=True, text={"hidden_size_per_layer_input": DROP})
    g("shared-kv", "num_kv_shared_layers = 1", no_reference=True, text={"num_kv_shared_layers": 1})
    g("gguf-per-layer", "embedding_length_per_layer_input = 8", gguf="bf16", gguf_keys={"embedding_length_per_layer_input": 8})
    g("gguf-shared-kv", "shared_kv_layers = 1", gguf="bf16", gguf_keys={"attention.shared_kv_layers": 1})
    g("gguf-value-length", "attention.value_length_swa", gguf="bf16", gguf_keys={"attention.value_length_swa": 16})
    g("gguf-scaled", "rope.scaling.factor", gguf="bf16", gguf_keys={"rope.scaling.factor": 8.0})
    g("gguf-period", "sliding_window_pattern", gguf="bf16", gguf_keys={"attention.sliding_window_pattern": 6})
    for a in DELTAS:
        linear = lambda n, a=a, refuse=None, types=None, **cfg: v(f"{a}-{n}", a, refuse, cfg={**{f"linear_{k}": x for k, x in cfg.items()}, **(types or {})})
        linear("one-key-head", num_key_heads=1, num_value_heads=5)
        linear("as-many-values", num_key_heads=3, num_value_heads=3)
        linear("narrow-keys", key_head_dim=8, value_head_dim=40)
        linear("narrow-values", key_head_dim=48, value_head_dim=12)
        linear("conv-2", conv_kernel_dim=2)
        linear("conv-3", conv_kernel_dim=3)
        linear("conv-5", refuse="convolution of 5 tokens", conv_kernel_dim=5)
        linear("published-heads", num_key_heads=2, num_value_heads=4, key_head_dim=128, value_head_dim=128, types={"head_dim": 256})
        linear("odd-groups", refuse="must be a multiple of linear_num_key_heads", num_key_heads=4, num_value_heads=6, types={})
        linear("interval", types={"layer_types": DROP, "full_attention_interval": 2, "num_hidden_layers": 4})
        linear("usual-interval", types={"layer_types": DROP, "num_hidden_layers": 4})
        linear("full", types={"layer_types": ["full_attention"] * 3})
        linear("all", refuse="all layers have linear attention", types={"layer_types": ["linear_attention"] * 3})
        linear("whole-rotary", types={"partial_rotary_factor": 1.0})
        linear("usual-rotary", types={"partial_rotary_factor": DROP, "rope_theta": DROP, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}})
        linear("biases", types={"attention_bias": True, "num_key_value_heads": 1, "tie_word_embeddings": True})
        linear("yarn", types={"rope_scaling": yarn})
        v(f"{a}-sliding", a, "layer_types has 'sliding_attention'", cfg={"layer_types": types}, no_reference=True)
        v(f"{a}-f16", a, dtype="float16")
        v(f"{a}-loud", a, weights=lambda s: {k: t * (30 if "proj" in k else 1) for k, t in s.items()})
        v(f"{a}-slow", a, weights=lambda s: {k: t - 6 if k.endswith("A_log") else t for k, t in s.items()}, prompts=[1, 17, 400])
        v(f"{a}-fast", a, weights=lambda s: {k: t + 8 if k.endswith("A_log") else t for k, t in s.items()})
        v(f"{a}-small", a, cfg={**TINY, "head_dim": 128, "linear_key_head_dim": 12, "linear_value_head_dim": 16, "shared_expert_intermediate_size": 20})
        v(f"{a}-mtp", a, files=add_mtp)
        v(f"{a}-long", a, cfg={"max_position_embeddings": 4096, "num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]},
          prompts=[530, 1500], greedy=4)
    for a in ("qwen3_next", "qwen3_5_moe_text"):
        gguf = {"linear_key_head_dim": 32, "layer_types": DROP, "full_attention_interval": 2, "intermediate_size": 96, "num_hidden_layers": 4}
        v(f"{a}-gguf", a, gguf="bf16", cfg=gguf)
        v(f"{a}-gguf-small", a, gguf="bf16", cfg={**gguf, **TINY, "head_dim": 16, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
                                                 "shared_expert_intermediate_size": 20, "num_hidden_layers": 3})
        v(f"{a}-gguf-f32-one-key-head", a, gguf="f32", cfg={**gguf, "linear_num_key_heads": 1, "linear_num_value_heads": 3})
        v(f"{a}-gguf-q8", a, gguf="q8_0", cfg={**gguf, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 64})
        v(f"{a}-gguf-listed", a, "attention.recurrent_layers", gguf="bf16", cfg=gguf, gguf_keys={"attention.recurrent_layers": [True, False, True, False]})
    v("qwen3_next-gguf-joined", "qwen3_next", gguf="bf16", gguf_joined=True, cfg=gguf)
    v("qwen3_next-dense", "qwen3_next", cfg={"mlp_only_layers": [0], "norm_topk_prob": False})
    v("qwen3_next-steps", "qwen3_next", cfg={"decoder_sparse_step": 2})
    v("qwen3_next-fp8", "qwen3_next", fp8="block", cfg={"hidden_size": 160, "linear_key_head_dim": 40, "linear_value_head_dim": 56})
    v("qwen3_5_moe-fp8", "qwen3_5_moe_text", fp8="block-bf16", cfg={"hidden_size": 160, "linear_key_head_dim": 40, "linear_value_head_dim": 56})
    v("qwen3_5_moe-ungated", "qwen3_5_moe", "attn_output_gate false", cfg={"attn_output_gate": False}, no_reference=True)
    mamba = lambda n, refuse=None, **kw: v(f"granitemoehybrid-{n}", "granitemoehybrid", refuse, **kw)
    mamba("small", cfg={**TINY, "head_dim": 128, "intermediate_size": 24, "shared_intermediate_size": 40, "mamba_n_heads": 6, "mamba_d_state": 8})
    mamba("gguf", gguf="bf16", cfg={**TINY, "intermediate_size": 24, "shared_intermediate_size": 40, "mamba_n_heads": 6, "mamba_d_state": 8, "mamba_n_groups": 2})
    mamba("gguf-f32-rope", gguf="f32", cfg={"position_embedding_type": "rope", "mamba_n_groups": 4, "attention_bias": True})
    mamba("gguf-no-conv-bias", gguf="f16", cfg={"mamba_conv_bias": False})
    mamba("gguf-inner", "'granitehybrid.ssm.inner_size' = 100", gguf="bf16", gguf_keys={"ssm.inner_size": 100})
    mamba("gguf-conv", "convolution of 5 tokens", gguf="bf16", cfg={"mamba_d_conv": 5})
    mamba("groups", cfg={"mamba_n_groups": 4})
    mamba("one-head", cfg={"mamba_n_heads": 1, "mamba_d_head": "auto"})
    mamba("narrow", cfg={"mamba_n_heads": 32, "mamba_d_head": 4, "mamba_d_state": 128})
    mamba("published-heads", cfg={"mamba_n_heads": 2, "mamba_d_head": 64, "mamba_d_state": 128})
    mamba("wide-state", cfg={"mamba_d_state": 256})
    mamba("2-taps", cfg={"mamba_d_conv": 2, "mamba_conv_bias": False})
    mamba("5-taps", "convolution of 5 tokens", cfg={"mamba_d_conv": 5})
    mamba("expand", cfg={"mamba_expand": 3, "mamba_n_heads": 12})
    mamba("expand-wrong", "must be mamba_expand times hidden_size", cfg={"mamba_expand": 3}, no_reference=True)
    mamba("usual", cfg={**{k: DROP for k in ("mamba_n_groups", "mamba_d_state", "mamba_d_conv", "mamba_expand", "mamba_conv_bias", "mamba_proj_bias",
                                             "mamba_chunk_size", "position_embedding_type")}, "mamba_n_heads": 128, "mamba_d_head": DROP})
    mamba("rope", cfg={"position_embedding_type": "rope"})
    mamba("unsaid", cfg={"position_embedding_type": None})
    mamba("newer-names", cfg={"layer_types": DROP, "layers_block_type": ["linear_attention", "full_attention", "linear_attention"]})
    mamba("chunks", cfg={"mamba_chunk_size": 16}, prompts=[1, 17, 200])
    mamba("full", cfg={"layer_types": ["attention"] * 3})
    mamba("all", "all layers have linear attention", cfg={"layer_types": ["mamba"] * 3})
    mamba("unlisted", "layer_types is needed", cfg={"layer_types": DROP}, no_reference=True)
    mamba("dense", "'num_local_experts'", cfg={"num_local_experts": 0}, no_reference=True)
    mamba("proj-bias", "mamba_proj_bias true", cfg={"mamba_proj_bias": True})
    mamba("limit", "time_step_limit other than", cfg={"time_step_limit": [0.001, 0.1]})
    mamba("no-limit", cfg={"time_step_limit": [0.0, {"__float__": "Infinity"}]})
    mamba("biases", cfg={"attention_bias": True, "tie_word_embeddings": True, "num_key_value_heads": 1})
    mamba("f16", dtype="float16")
    mamba("loud", weights=lambda s: {k: t * (10 if "proj" in k else 1) for k, t in s.items()})
    mamba("slow", weights=lambda s: {k: t - 6 if k.endswith("A_log") else t for k, t in s.items()}, prompts=[1, 17, 400])
    mamba("fast", weights=lambda s: {k: t + 8 if k.endswith("A_log") else t for k, t in s.items()})
    mamba("fp8", fp8="block", cfg={"hidden_size": 160, "mamba_d_head": 40})
    mamba("long", cfg={"max_position_embeddings": 4096, "num_hidden_layers": 2, "layer_types": ["mamba", "attention"]}, prompts=[530, 1500], greedy=4)
    kimi = lambda n, refuse=None, **kw: v(f"kimi_linear-{n}", "kimi_linear", refuse, **kw)
    kimi("small", cfg={**TINY, **kda([1, 3], [2], 2, 32), "num_attention_heads": 2, "num_key_value_heads": 2,
                       "kv_lora_rank": 256, "qk_rope_head_dim": 64})
    kimi("gguf", gguf="bf16", cfg={**TINY, **kda([1, 3], [2], 5, 12, 3), "num_expert_group": 2})
    kimi("gguf-q8_0", gguf="q8_0", cfg={**kda([1, 3], [2], 5, 32), "hidden_size": 64, "moe_intermediate_size": 32, "qk_nope_head_dim": 32, "v_head_dim": 32})
    kimi("gguf-f16-first", gguf="f16", cfg={**kda([2, 3], [1], 5), "q_lora_rank": 24})
    kimi("low", cfg={"q_lora_rank": 24, "num_expert_group": 4, "topk_group": 2, "moe_renormalize": False})
    kimi("published-heads", cfg=kda([1, 3], [2], 2, 128))
    kimi("one-head", cfg=kda([1, 3], [2], 1, 20, 2))
    kimi("listed", cfg={"linear_attn_config": DROP, "linear_num_heads": 3, "linear_head_dim": 12, "linear_conv_kernel_dim": 4,
                        "layer_types": ["linear_attention", "full_attention", "linear_attention"], "mlp_layer_types": ["sparse", "dense", "sparse"],
                        "first_k_dense_replace": DROP})
    kimi("full", cfg=kda([], [1, 2, 3]))
    kimi("all", "one with full attention is needed", cfg=kda([1, 2, 3], []))
    kimi("half-listed", "'(no text)' for layer 2", cfg=kda([1], [2]), no_reference=True)
    kimi("beyond", "beyond num_hidden_layers", cfg=kda([1, 3, 4], [2]), no_reference=True)
    kimi("rotated", "mla_use_nope false", cfg={"mla_use_nope": False})
    kimi("softmax", "'moe_router_activation_func' is 'softmax'", cfg={"moe_router_activation_func": "softmax"})
    kimi("5-taps", "convolution of 5 tokens", cfg=kda([1, 3], [2], conv=5))
    kimi("slow", weights=lambda s: {k: t - 6 if k.endswith("A_log") else t for k, t in s.items()}, prompts=[1, 17, 400])
    kimi("fast", weights=lambda s: {k: t + 4 if k.endswith("A_log") else t for k, t in s.items()})
    kimi("loud", weights=lambda s: {k: t * (5 if "proj" in k else 1) for k, t in s.items()})
    kimi("long", cfg={"model_max_length": 4096}, prompts=[530, 1500], greedy=4)
    apart = lambda n, refuse=None, **kw: v(f"nemotron_h-{n}", "nemotron_h", refuse, **kw)
    small = {**TINY, "hybrid_override_pattern": "MEM*E-ME", "num_hidden_layers": 8, "head_dim": 128, "mamba_num_heads": 6, "mamba_head_dim": 16,
             "ssm_state_size": 8, "n_groups": 2, "moe_shared_expert_intermediate_size": 40, "intermediate_size": 40, "num_attention_heads": 2, "num_key_value_heads": 1}
    apart("small", cfg=small)
    for how, kind in (("fp8", "modelopt"), ("fp8", "block"), ("int4", "ct"), ("int4", "gptq-zeros"), ("int4", "awq"), ("nvfp4", "modelopt"), ("nvfp4", "ct")):
        apart(f"{how}-{kind}", **{how: kind}, cfg={"hidden_size": 192, "mamba_num_heads": 8, "mamba_head_dim": 24, "moe_intermediate_size": 96, "intermediate_size": 96, "moe_shared_expert_intermediate_size": 96})
    apart("gguf", gguf="bf16", cfg={**small, "hybrid_override_pattern": "MEM*EEME", "n_group": 2, "topk_group": 1})
    apart("gguf-dense", gguf="f16", cfg={"hybrid_override_pattern": "M-*M-", "num_hidden_layers": 5})
    apart("dense", cfg={"hybrid_override_pattern": "M-*M-", "num_hidden_layers": 5})
    apart("listed", cfg={"hybrid_override_pattern": DROP, "num_hidden_layers": DROP,
                         "layers_block_type": ["mamba", "moe", "attention", "linear_attention", "mlp", "full_attention"]})
    apart("ffn-first", cfg={"hybrid_override_pattern": "EM*-", "num_hidden_layers": 4})
    apart("no-ffn-last", cfg={"hybrid_override_pattern": "EEM*M", "num_hidden_layers": 5})
    apart("no-mamba", cfg={"hybrid_override_pattern": "*E*-", "num_hidden_layers": 4})
    apart("no-attention", "one with full attention is needed", cfg={"hybrid_override_pattern": "MEM", "num_hidden_layers": 3})
    apart("letter", "hybrid_override_pattern has 'X'", cfg={"hybrid_override_pattern": "MX*", "num_hidden_layers": 3}, no_reference=True)
    apart("length", "must list num_hidden_layers", cfg={"num_hidden_layers": 5}, no_reference=True)
    apart("odd", "of an odd size", cfg={"moe_intermediate_size": 41}, no_reference=True)
    apart("latent", "moe_latent_size = 24", cfg={"moe_latent_size": 24})
    apart("bias", "use_bias true", cfg={"use_bias": True})
    apart("mlp-bias", "mlp_bias", cfg={"mlp_bias": True})
    apart("limit", "time_step_limit other than", cfg={"time_step_limit": [0.001, 0.1]})
    apart("no-limit", cfg={"time_step_limit": [0.0, {"__float__": "Infinity"}]})
    apart("groups", cfg={"n_group": 4, "topk_group": 2, "norm_topk_prob": False})
    apart("one-group-of-heads", cfg={"n_groups": 1, "use_conv_bias": False, "attention_bias": True})
    apart("published-heads", cfg={"mamba_num_heads": 4, "mamba_head_dim": 64, "ssm_state_size": 128, "head_dim": 128})
    apart("fp8", "without a gate", fp8="block", cfg={"hidden_size": 160, "mamba_head_dim": 40})
    apart("loud", weights=lambda s: {k: t * (5 if "proj" in k else 1) for k, t in s.items()})
    apart("long", cfg={"max_position_embeddings": 4096}, prompts=[530, 1500], greedy=4)
    conv = lambda n, refuse=None, **kw: v(f"lfm2_moe-{n}", "lfm2_moe", refuse, **kw)
    conv("small", cfg={**TINY, "head_dim": 128, "routed_scaling_factor": 1.5})
    conv("gguf", gguf="bf16", cfg={**TINY, "num_attention_heads": 4})
    conv("gguf-f32", gguf="f32", cfg={**TINY, "num_dense_layers": 0, "conv_L_cache": 4, "routed_scaling_factor": 2.5})
    conv("gguf-heads", "'lfm2moe.attention.head_count_kv' has layers of 2 and of 1 heads", gguf="bf16", gguf_keys={"attention.head_count_kv": [0, 2, 1]})
    conv("gguf-no-list", "'lfm2moe.attention.head_count_kv' must list 3 layers", gguf="bf16", gguf_keys={"attention.head_count_kv": 2})
    conv("gguf-softmax", "expert_gating_func", gguf="bf16", gguf_keys={"expert_gating_func": 1})
    conv("2-taps", cfg={"conv_L_cache": 2})
    conv("4-taps", cfg={"conv_L_cache": 4, "num_dense_layers": 0})
    conv("5-taps", "a short convolution of 5 tokens", cfg={"conv_L_cache": 5})
    conv("1-tap", "'conv_L_cache'", cfg={"conv_L_cache": 1})
    conv("usual", cfg={k: DROP for k in ("conv_L_cache", "norm_eps", "norm_topk_prob", "use_expert_bias", "conv_bias", "routed_scaling_factor")})
    conv("no-bias", cfg={"use_expert_bias": False, "norm_topk_prob": False})
    conv("bias-unasked", "expert_bias", cfg={"use_expert_bias": False}, files=lambda d: add_tensor(d, "model.layers.1.feed_forward.expert_bias", 8))
    conv("dense", cfg={"num_dense_layers": 3})
    conv("untied", cfg={"tie_word_embeddings": False})
    conv("tied-by-its-name", cfg={"tie_word_embeddings": DROP, "tie_embedding": True})
    conv("tied-twice", "tie_embedding and tie_word_embeddings differ", cfg={"tie_word_embeddings": True, "tie_embedding": False})
    conv("full", cfg={"layer_types": ["full_attention"] * 3})
    conv("all", "all layers have a convolution", cfg={"layer_types": ["conv"] * 3})
    conv("unlisted", "layer_types is needed", cfg={"layer_types": DROP}, no_reference=True)
    conv("sliding", "layer_types has 'sliding_attention'", cfg={"layer_types": types}, no_reference=True)
    conv("conv-bias", "conv_bias true", cfg={"conv_bias": True})
    conv("partial", "partial_rotary_factor", cfg={"partial_rotary_factor": 0.5})
    conv("yarn", cfg={"rope_scaling": yarn})
    conv("f16", dtype="float16")
    conv("loud", weights=lambda s: {k: t * (30 if "proj" in k else 1) for k, t in s.items()})
    conv("fp8", fp8="block", cfg={"hidden_size": 160, "moe_intermediate_size": 136})
    conv("long", cfg={"max_position_embeddings": 4096}, prompts=[530, 1500], greedy=4)
    v("dots1-gguf", "dots1", gguf="bf16", cfg={**TINY, "head_dim": 16, "hidden_size": 40})
    v("granitemoeshared-gguf", "granitemoeshared", gguf="bf16", cfg={**TINY, "intermediate_size": 24, "shared_intermediate_size": 40})
    v("qwen3_vl_moe-gguf", "qwen3_vl_moe", gguf="bf16", cfg={**TINY, "moe_intermediate_size": 20})
    v("qwen3_vl_moe-turned-f32", "qwen3_vl_moe", dtype="float32", files=turn, cfg={"mlp_only_layers": [1], "attention_bias": True})
    v("qwen3_vl_moe-turned-f16", "qwen3_vl_moe", dtype="float16", files=turn)
    v("qwen3_vl_moe-square", "qwen3_vl_moe", cfg={"moe_intermediate_size": 32})
    v("glm4v_moe-whole", "glm4v_moe", cfg={"partial_rotary_factor": 1.0, "attention_bias": False,
                                           "rope_scaling": {"rope_type": "default", "mrope_section": [8, 4, 4]}})
    v("glm4v_moe-tied", "glm4v_moe", cfg={"tie_word_embeddings": True})
    v("dots1-biases", "dots1", cfg={"attention_bias": True, "norm_topk_prob": False, "tie_word_embeddings": True})
    v("dots1-types", "dots1", cfg={"sliding_window": 9, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]})
    v("dots1-softmax", "dots1", "'scoring_func' is 'softmax'", cfg={"scoring_func": "softmax"})
    v("solar_open-dense", "solar_open", "first_k_dense_replace above 0", cfg={"first_k_dense_replace": 1})
    v("solar_open-groups", "solar_open", cfg={"n_group": 2, "topk_group": 1, "norm_topk_prob": False, "head_dim": 16})
    v("hy_v3-listed", "hy_v3", cfg={"mlp_layer_types": ["sparse", "dense", "sparse"], "attention_bias": True})
    v("hy_v3-nextn", "hy_v3", files=add_nextn)
    v("granitemoeshared-none", "granitemoeshared", cfg={"shared_intermediate_size": 0})
    v("qwen2_moe-windows", "qwen2_moe", cfg={"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 2})
    v("qwen2_moe-no-bias", "qwen2_moe", cfg={"qkv_bias": False})
    v("qwen2_moe-normed", "qwen2_moe", cfg={"norm_topk_prob": True, "mlp_only_layers": [1]})
    v("olmoe-clip", "olmoe", cfg={"clip_qkv": 0.7, "attention_bias": True})
    v("granitemoe-biases", "granitemoe", cfg={"attention_bias": True, "logits_scaling": 0.25})
    v("glm4_moe-groups", "glm4_moe", cfg={"n_group": 4, "topk_group": 2, "use_qk_norm": True, "attention_bias": False})
    v("glm4_moe-few-left", "glm4_moe", "do not give the 5 that a token picks", cfg={"n_group": 4, "topk_group": 2, "num_experts_per_tok": 5})
    v("glm4_moe-softmax", "glm4_moe", "'scoring_func' is 'softmax'", cfg={"scoring_func": "softmax"})
    v("glm4_moe_lite-nextn", "glm4_moe_lite", cfg={"num_nextn_predict_layers": 1}, files=add_nextn)
    v("glm4_moe_lite-gguf-nextn", "glm4_moe_lite", gguf="bf16", cfg={"num_nextn_predict_layers": 1}, files=add_nextn)
    v("glm4_moe_lite-gguf-told", "glm4_moe_lite", gguf="bf16", gguf_keys={"expert_gating_func": 2})
    v("glm4_moe_lite-listed", "glm4_moe_lite", cfg={"mlp_layer_types": ["sparse", "dense", "sparse"]})
    v("glm4_moe_lite-listed-badly", "glm4_moe_lite", "mlp_layer_types has 'moe' for layer 1",
      cfg={"mlp_layer_types": ["dense", "moe", "sparse"]}, no_reference=True)
    v("glm4_moe_lite-groups", "glm4_moe_lite", cfg={"n_group": 4, "topk_group": 2, "norm_topk_prob": False})
    v("glm4_moe_lite-halves", "glm4_moe_lite", cfg={"rope_interleave": False, "q_lora_rank": None, "attention_bias": True})
    v("glm4_moe_lite-partial", "glm4_moe_lite", "partial_rotary_factor 0.5", cfg={"partial_rotary_factor": 0.5}, no_reference=True)
    v("glm4_moe_lite-published-head", "glm4_moe_lite", cfg={"num_attention_heads": 20, "num_key_value_heads": 20, "kv_lora_rank": 512,
      "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "v_head_dim": 256, "num_hidden_layers": 2}, prompts=[1, 17, 300])
    long = lambda **kw: {"rope_parameters": {**FAMILIES["mistral4"]["rope_parameters"], **kw}}
    v("mistral4-groups", "mistral4", cfg={"n_group": 4, "topk_group": 2, "norm_topk_prob": False, "routed_scaling_factor": 1.7,
                                          "first_k_dense_replace": 0, **long(partial_rotary_factor=0.4)})
    v("mistral4-no-growth", "mistral4", cfg=long(llama_4_scaling_beta=0.0), prompts=[1, 300])
    v("mistral4-mscales", "mistral4", cfg=long(mscale=0.7, mscale_all_dim=0.4))
    v("mistral4-gguf", "mistral4", gguf="bf16")
    v("mistral4-gguf-told", "mistral4", gguf="bf16", gguf_keys={"attention.temperature_scale": 0.1, "attention.temperature_length": 128,
                                                               "expert_gating_func": 1})
    v("mistral4-gguf-length", "mistral4", "attention.temperature_length", gguf="bf16", gguf_keys={"attention.temperature_length": 64})
    v("mistral4-gguf-sigmoid", "mistral4", "'mistral4.expert_gating_func' = 2", gguf="bf16", gguf_keys={"expert_gating_func": 2})
    v("mistral4-partial", "mistral4", "partial_rotary_factor 0.5", cfg=long(partial_rotary_factor=0.5), no_reference=True)
    v("mistral4-no-beta", "mistral4", "llama_4_scaling_beta", cfg=long(llama_4_scaling_beta=None), no_reference=True)
    # with all keys that Kimi-K2's config.json has, whose model_type kimi_k2 the library does not know
    v("deepseek_v3-kimi_k2", "deepseek_v3", cfg={
        **LATENT, **SHARING, "hidden_size": 48, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "routed_scaling_factor": 2.827,
        "norm_topk_prob": True, "scoring_func": "sigmoid", "topk_method": "noaux_tc", "moe_layer_freq": 1, "seq_aux": True, "ep_size": 1,
        "aux_loss_alpha": 0.001, "num_nextn_predict_layers": 0, "rope_theta": 50000.0, "rope_scaling": {
            "beta_fast": 1.0, "beta_slow": 1.0, "factor": 32.0, "mscale": 1.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096,
            "type": "yarn"}})
    # behind models that see: named by their own family, or not at all
    v("kimi_k25", "deepseek_v3", cfg={**LATENT, **SHARING, "hidden_size": 48, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1},
      publish=behind("kimi_k25", "KimiK25ForConditionalGeneration"))
    v("kimi_vl-deepseek_v3", "deepseek_v3", cfg={**LATENT, **SHARING, "hidden_size": 48, "first_k_dense_replace": 1, "q_lora_rank": None},
      publish=behind("kimi_vl", "KimiVLForConditionalGeneration"))
    v("mistral3-mistral4", "mistral4", publish=behind("mistral3"))
    v("mistral3-mistral", "mistral", publish=behind("mistral3"))
    v("internvl-qwen3_moe", "qwen3_moe", publish=behind("internvl"))
    v("internvl-gpt_oss", "gpt_oss", publish=behind("internvl"))
    v("internvl_chat-qwen3_moe", "qwen3_moe", publish=behind("internvl_chat", "InternVLChatModel"))
    v("deepseek_v32-published-head", "deepseek_v32", cfg={**PUBLISHED_HEAD, "index_topk": 24})
    v("deepseek_v32-all", "deepseek_v32", cfg={"index_topk": DROP, "index_head_dim": 24, "index_n_heads": 3, "layer_types": ["indexed_attention"] * 3})
    v("deepseek_v32-one", "deepseek_v32", cfg={"index_topk": 1, "index_head_dim": 8})
    v("deepseek_v32-yarn", "deepseek_v32", cfg={"rope_scaling": {
        "type": "yarn", "factor": 40, "original_max_position_embeddings": 64, "mscale": 1.0, "mscale_all_dim": 0.7}})
    v("deepseek_v32-biases", "deepseek_v32", cfg={"attention_bias": True, "mlp_layer_types": ["sparse", "dense", "sparse"]})
    v("deepseek_v32-fp8-block", "deepseek_v32", fp8="block", cfg={"hidden_size": 160, "index_head_dim": 32})
    v("deepseek_v32-long", "deepseek_v32", cfg={"max_position_embeddings": 4096, "num_hidden_layers": 2, "index_topk": 600, "index_n_heads": 16}, prompts=[530, 1500], greedy=4)
    v("deepseek_v32-halves", "deepseek_v32", "rope_interleave", cfg={"rope_interleave": False}, no_reference=True)
    v("deepseek_v32-indexer-pairs", "deepseek_v32", "indexer_rope_interleave true", cfg={"indexer_rope_interleave": True}, no_reference=True)
    v("deepseek_v32-narrow", "deepseek_v32", "no fewer columns", cfg={"index_head_dim": 6}, no_reference=True)
    v("deepseek_v32-no-rank", "deepseek_v32", "q_lora_rank", cfg={"q_lora_rank": None}, no_reference=True)
    v("deepseek_v32-full-attention", "deepseek_v32", "layer_types has 'full_attention'", cfg={"layer_types": ["full_attention"] * 3}, no_reference=True)
    v("deepseek_v32-gguf", "deepseek_v32", gguf="bf16", cfg={"n_group": 4, "topk_group": 2})
    v("deepseek_v32-gguf-softmax", "deepseek_v32", "expert_gating_func' = 1", gguf="bf16", gguf_keys={"expert_gating_func": 1})
    v("glm_moe_dsa-gguf", "glm_moe_dsa", gguf="bf16")
    v("glm_moe_dsa-gguf-numbers", "glm_moe_dsa", gguf="bf16", gguf_keys={"attention.indexer.types": [1, 0, 1]})
    v("glm_moe_dsa-gguf-older", "glm_moe_dsa", gguf="bf16", cfg={"indexer_types": DROP})
    v("glm_moe_dsa-gguf-5.2", "glm_moe_dsa", gguf="bf16", cfg={"indexer_types": DROP, "index_topk_freq": 4, "index_skip_topk_offset": 3, "num_hidden_layers": 8}, gguf_keys={"context_length": 1048576})
    v("glm_moe_dsa-gguf-nextn", "glm_moe_dsa", gguf="bf16", cfg={"indexer_types": ["full", "full", "shared"], "num_nextn_predict_layers": 1}, files=add_nextn,
      gguf_keys={"attention.indexer.types": [1, 1, 0, 1]})
    v("glm_moe_dsa-gguf-few-types", "glm_moe_dsa", "must list, as I32 or BOOL, all of 3 layers", gguf="bf16", gguf_keys={"attention.indexer.types": [1, 0]})
    v("glm_moe_dsa-published-head", "glm_moe_dsa", cfg={**PUBLISHED_HEAD, "index_topk": 24, "v_head_dim": 256, "qk_nope_head_dim": 192})
    v("glm_moe_dsa-types", "glm_moe_dsa", cfg={"indexer_types": ["full", "shared", "shared"], "num_nextn_predict_layers": 1}, files=add_nextn)
    v("glm_moe_dsa-pattern", "glm_moe_dsa", cfg={"indexer_types": DROP, "index_topk_pattern": "FFS"})
    v("glm_moe_dsa-pattern-listed", "glm_moe_dsa", cfg={"indexer_types": DROP, "index_topk_pattern": ["full", "shared", "full"]})
    v("glm_moe_dsa-freq-default", "glm_moe_dsa", cfg={"indexer_types": DROP})
    v("glm_moe_dsa-freq", "glm_moe_dsa", cfg={"indexer_types": DROP, "index_topk_freq": 3, "num_hidden_layers": 6})
    v("glm_moe_dsa-freq-offset", "glm_moe_dsa", cfg={"indexer_types": DROP, "index_topk_freq": 2, "index_skip_topk_offset": 1})
    v("glm_moe_dsa-shared-first", "glm_moe_dsa", "layer 0 must have an indexer", cfg={"indexer_types": ["shared", "full", "full"]}, no_reference=True)
    v("glm_moe_dsa-unknown-type", "glm_moe_dsa", "indexer_types has 'none' for layer 1", cfg={"indexer_types": ["full", "none", "full"]}, no_reference=True)
    v("glm_moe_dsa-few-types", "glm_moe_dsa", "indexer_types must list", cfg={"indexer_types": ["full"]}, no_reference=True)
    v("glm_moe_dsa-indexer-missing", "glm_moe_dsa", "indexer.wq_b.weight' is missing", cfg={"indexer_types": ["full"] * 3}, files=lambda d: rewrite(d, drop_re=r"layers\.1\.self_attn\.indexer"))
    v("youtu-biases", "youtu", cfg={"attention_bias": True, "q_lora_rank": None, "tie_word_embeddings": False, "rope_interleave": False})
    v("youtu-gguf", "youtu", gguf="bf16")
    v("ernie4_5_moe-biases", "ernie4_5_moe", "use_bias", cfg={"use_bias": True})
    v("ernie4_5_moe-range", "ernie4_5_moe", cfg={"num_hidden_layers": 5, "moe_layer_end_index": 3, "moe_layer_interval": 2})
    v("minimax_m2-whole", "minimax_m2", cfg={"rotary_dim": DROP})
    v("minimax_m2-shared", "minimax_m2", "shared_intermediate_size", cfg={"shared_intermediate_size": 40})
    fill_phimoe(v)


def longrope(original, **kw):
    """The configuration, and what gives transformers the frequencies of a server that takes more positions: its PhimoeRotaryEmbedding has the
    short factors at every length, and by the sequence's own one of the scales."""
    told = {**PHI_ROPE, "original_max_position_embeddings": original, **kw}
    longer = {**LLAMA4_FILE, "short_factor": told["long_factor"], "short_mscale": told["long_mscale"]}
    return {"cfg": {"rope_scaling": told}, "reference_cfg": {"rope_scaling": longer}} if original < 512 else {"cfg": {"rope_scaling": told}}


def fill_phimoe(v):
    tiny = {k: x for k, x in TINY.items() if k != "moe_intermediate_size"}
    def with_rope(name, refuse=None, original=32, cfg=(), rope=(), **kw):
        told = longrope(original, **dict(rope))
        v(name, "phimoe", refuse, **{**LLAMA4_FILE, "cfg": {**told["cfg"], "head_dim": 16, **dict(cfg)}}, **kw)
    # the ones in tests/data/golden
    with_rope("phimoe-long", cfg={**tiny, "num_hidden_layers": 2, "router_jitter_noise": 0.01, "sliding_window": 40})
    with_rope("phimoe-short", original=512, cfg={**tiny, "num_hidden_layers": 2, "router_jitter_noise": 0.2})
    with_rope("phimoe-long-prompt-of-steps", prompts=[1, 450])
    with_rope("phimoe-gguf-long", gguf="bf16", rope={"short_mscale": 1.3416407864998738})
    v("phimoe-gguf-plain", "phimoe", gguf="bf16")
    v("phimoe-gguf-attn-factor", "phimoe", "without rope_factors_short.weight", gguf="bf16", gguf_keys={"rope.scaling.attn_factor": 1.3}, no_reference=True)
    v("phimoe-gguf-linear", "phimoe", "rope type 'linear'", gguf="bf16", gguf_keys={"rope.scaling.factor": 4.0}, no_reference=True)
    v("phimoe-no-bias", "phimoe", cfg={"attention_bias": False, "lm_head_bias": False})
    v("phimoe-tied", "phimoe", cfg={"tie_word_embeddings": True})
    v("phimoe-no-jitter", "phimoe", cfg={"router_jitter_noise": 0.0})
    v("phimoe-jitter", "phimoe", cfg={"router_jitter_noise": 0.5, "num_local_experts": 17})
    v("phimoe-jitter-default", "phimoe", cfg={"router_jitter_noise": DROP})
    v("phimoe-two", "phimoe", cfg={"num_local_experts": 2})
    v("phimoe-window", "phimoe", cfg={"sliding_window": 9})
    v("phimoe-eps", "phimoe", cfg={"rms_norm_eps": 0.1, "hidden_size": 52, "num_attention_heads": 2, "num_key_value_heads": 1})
    v("phimoe-top-3", "phimoe", "num_experts_per_tok = 3", cfg={"num_experts_per_tok": 3}, no_reference=True)
    v("phimoe-mlp-bias", "phimoe", "mlp_bias", cfg={"mlp_bias": True}, no_reference=True)
    v("phimoe-yarn", "phimoe", "rope type 'yarn'", cfg={"rope_scaling": {"type": "yarn", "factor": 4.0}}, no_reference=True)
    with_rope("phimoe-no-mscale", "long_mscale", rope={"long_mscale": None}, no_reference=True)
    with_rope("phimoe-few-factors", "'long_factor' must list 8 numbers", rope={"long_factor": [1.0] * 7}, no_reference=True)
    with_rope("phimoe-zero-factor", "'short_factor' must hold numbers", rope={"short_factor": [1.0] * 7 + [0]}, no_reference=True)


def random_deepseek(variant, arch, seed):
    r = random.Random(f"{arch}{seed}")
    heads, groups = r.randint(1, 12), r.choice([1, 2, 4])
    n = groups * r.randint(2, 6)
    c = {"num_attention_heads": heads, "num_key_value_heads": heads, "hidden_size": heads * r.randint(max(1, 24 // heads), max(2, 120 // heads)),
         "kv_lora_rank": r.randint(4, 90), "q_lora_rank": r.choice([None, r.randint(4, 60)]), "qk_nope_head_dim": r.randint(1, 40),
         "qk_rope_head_dim": 2 * r.randint(1, 20), "v_head_dim": r.randint(1, 50), "intermediate_size": r.randint(5, 150),
         "moe_intermediate_size": r.randint(3, 70), "n_routed_experts": n, "n_shared_experts": r.randint(1, 3), "n_group": groups,
         "topk_group": r.randint(1, groups), "num_hidden_layers": r.randint(1, 4), "first_k_dense_replace": r.randint(0, 3),
         "vocab_size": r.randint(20, 400), "rms_norm_eps": r.choice([1e-5, 1e-6, 1e-3]), "rope_theta": r.choice([100.0, 10000.0, 123456.7]),
         "routed_scaling_factor": r.choice([1.0, 2.5, 16.0]), "tie_word_embeddings": r.random() < 0.3, "attention_bias": r.random() < 0.3}
    c["num_experts_per_tok"] = r.randint(1, n // groups * c["topk_group"])
    if arch == "deepseek_v2":
        c.update(kv_lora_rank=c["kv_lora_rank"] + c["kv_lora_rank"] % 2, qk_nope_head_dim=c["qk_nope_head_dim"] + c["qk_nope_head_dim"] % 2)
        c["topk_method"] = r.choice(["greedy", "group_limited_greedy"])
    else:
        c.update(norm_topk_prob=r.random() < 0.7, rope_interleave=r.random() < 0.8)
    if r.random() < 0.5:
        c["rope_scaling"] = {"type": "yarn", "factor": r.choice([2.0, 40]), "original_max_position_embeddings": r.choice([16, 64])}
        for key in ("mscale", "mscale_all_dim"):
            if r.random() < 0.7:
                c["rope_scaling"][key] = r.choice([1.0, 0.707])
    variant(f"random-{arch}-{seed}", arch, cfg=c, dtype=r.choice(["bfloat16", "float16", "float32"]),
            prompts=[1, r.randint(2, 17), r.randint(18, 160)])


def fill_random_latent(variant, arch, seed):
    r = random.Random(f"{arch}{seed}")
    heads, groups = r.randint(1, 12), r.choice([1, 2, 4])
    n = groups * r.randint(2, 6)
    left = r.randint(1, groups)
    c = {"num_attention_heads": heads, "num_key_value_heads": heads, "hidden_size": r.randint(24, 120), "kv_lora_rank": r.randint(4, 90),
         "q_lora_rank": r.choice([None, r.randint(4, 60)]), "qk_nope_head_dim": r.randint(1, 40), "qk_rope_head_dim": 2 * r.randint(1, 20),
         "v_head_dim": r.randint(1, 50), "intermediate_size": r.randint(5, 150), "num_hidden_layers": r.randint(1, 4),
         "vocab_size": r.randint(20, 400), "rms_norm_eps": r.choice([1e-5, 1e-6, 1e-3]), "rope_theta": r.choice([100.0, 10000.0, 123456.7]),
         "tie_word_embeddings": r.random() < 0.3, "attention_bias": r.random() < 0.3, "rope_interleave": r.random() < 0.8}
    if "n_routed_experts" in FAMILIES[arch]:
        c.update(n_routed_experts=n, n_shared_experts=r.randint(1, 3), n_group=groups, topk_group=left, moe_intermediate_size=r.randint(3, 70),
                 num_experts_per_tok=r.randint(1, n // groups * left), norm_topk_prob=r.random() < 0.7,
                 routed_scaling_factor=r.choice([1.0, 2.5, 16.0]))
    if arch == "kimi_linear":
        layers = c["num_hidden_layers"]
        full = {i + 1 for i in range(layers) if r.random() < 0.4} | {r.randrange(layers) + 1}
        n = groups * r.randint(4, 7)
        c.update(**kda([i + 1 for i in range(layers) if i + 1 not in full], sorted(full), r.randint(1, 6), r.randint(1, 70), r.randint(1, 4)),
                 num_experts=n, num_experts_per_token=r.randint(1, n // groups), num_expert_group=groups, topk_group=left,
                 first_k_dense_replace=r.randint(0, layers), num_shared_experts=r.randint(1, 2), moe_renormalize=r.random() < 0.7)
    if arch == "axk1":
        c["q_lora_rank"] = c["q_lora_rank"] or 24
    if "index_topk" in FAMILIES[arch]:
        c.update(q_lora_rank=c["q_lora_rank"] or 24, rope_interleave=DROP, index_topk=r.choice([1, 5, 13, 40, 200]), index_n_heads=r.randint(5, 20),
                 index_head_dim=c["qk_rope_head_dim"] + r.randint(0, 30))
    if arch == "glm_moe_dsa":
        c.update(indexer_types=DROP, index_topk_freq=r.randint(0, 3), index_skip_topk_offset=r.randint(1, 3))
    if arch in ("glm4_moe_lite", "axk1"):
        c["mlp_layer_types"] = [r.choice(["dense", "sparse"]) for _ in range(c["num_hidden_layers"])]
    variant(f"random-{arch}-{seed}", arch, cfg=c, dtype=r.choice(["bfloat16", "float16", "float32"]),
            prompts=[1, r.randint(2, 17), r.randint(18, 100)])  # mistral4's contexts end at 128


def fill_random(variant, arch, seed):
    if "kv_lora_rank" in FAMILIES[arch]:
        return fill_random_latent(variant, arch, seed)
    r = random.Random(f"{arch}{seed}")
    kv = r.choice([1, 2, 3, 4])
    heads = kv * r.randint(1, 6)
    n = r.choice([2, 4, 8, 12, 60])
    k = r.randint(1, min(n, 8))
    c = {"num_key_value_heads": kv, "num_attention_heads": heads, "hidden_size": heads * 2 * r.randint(max(1, 12 // heads), max(2, 60 // heads)),
         "intermediate_size": r.randint(5, 150), "num_hidden_layers": r.randint(1, 4), "vocab_size": r.randint(20, 400),
         "rms_norm_eps": r.choice([1e-5, 1e-6, 1e-3]), "rope_theta": r.choice([100.0, 10000.0, 123456.7]),
         "tie_word_embeddings": r.random() < 0.4}
    reference = None
    if r.random() < 0.4:
        c["rope_scaling"] = {"rope_type": "yarn", "factor": r.choice([2.0, 40.0]), "original_max_position_embeddings": r.choice([16, 64])}
    if arch == "qwen2_moe":
        c.update(num_experts=n, num_experts_per_tok=k, moe_intermediate_size=r.randint(3, 70), shared_expert_intermediate_size=r.randint(3, 90),
                 norm_topk_prob=r.random() < 0.5, decoder_sparse_step=r.choice([1, 1, 2]), qkv_bias=r.random() < 0.7,
                 use_sliding_window=r.random() < 0.4, sliding_window=r.choice([3, 20]), max_window_layers=r.randint(0, 4))
    elif arch == "olmoe":
        c.update(num_experts=n, num_experts_per_tok=k, norm_topk_prob=r.random() < 0.5, clip_qkv=r.choice([None, 0.5, 3.0]),
                 attention_bias=r.random() < 0.3)
    elif arch == "flex_olmo":
        c.update(num_experts=n, num_experts_per_tok=k, norm_topk_prob=r.random() < 0.5, attention_bias=r.random() < 0.3,
                 head_dim=r.choice([DROP, 8 * r.randint(1, 12)]))
    elif arch == "granitemoe":
        c.update(num_local_experts=n, num_experts_per_tok=k, attention_bias=r.random() < 0.3, embedding_multiplier=r.choice([1.0, 12.0]),
                 attention_multiplier=r.choice([0.05, 0.3]), residual_multiplier=r.choice([1.0, 0.22]), logits_scaling=r.choice([1.0, 6.0]))
    elif arch == "glm4_moe":
        groups = r.choice([g for g in (1, 2, 4) if n // g >= 2])
        left = r.randint(1, groups)
        c.update(n_routed_experts=n, n_group=groups, topk_group=left, num_experts_per_tok=min(k, n // groups * left), head_dim=8 * r.randint(1, 12),
                 moe_intermediate_size=r.randint(3, 70), n_shared_experts=r.randint(1, 3), first_k_dense_replace=r.randint(0, 2),
                 routed_scaling_factor=r.choice([1.0, 2.5]), norm_topk_prob=r.random() < 0.7, partial_rotary_factor=r.choice([0.25, 0.5, 1.0]),
                 use_qk_norm=r.random() < 0.5, attention_bias=r.random() < 0.5)
    elif arch == "ernie4_5_moe":
        c.update(moe_num_experts=n, moe_k=k, moe_intermediate_size=r.randint(3, 70), moe_num_shared_experts=r.randint(0, 3),
                 moe_layer_start_index=r.randint(0, 2), moe_layer_end_index=r.choice([-1, 1, 2]), moe_layer_interval=r.choice([1, 1, 2]))
    elif arch == "sarvam_moe":
        groups = r.choice([g for g in (1, 2, 4) if n // g >= 2])
        left = r.randint(1, groups)
        c.update(num_experts=n, n_group=groups, topk_group=left, num_experts_per_tok=min(k, n // groups * left), head_dim=8 * r.randint(1, 12),
                 moe_intermediate_size=r.randint(3, 70), moe_shared_expert_intermediate_size=DROP, num_shared_experts=r.randint(1, 3),
                 first_k_dense_replace=r.randint(0, 2), norm_topk_prob=r.random() < 0.7, partial_rotary_factor=r.choice([0.25, 0.5, 1.0, DROP]),
                 use_qk_norm=r.random() < 0.7, use_qkv_bias=r.random() < 0.5)
    elif arch == "afmoe":
        c.update(num_experts=n, num_experts_per_tok=k, head_dim=8 * r.randint(1, 12), moe_intermediate_size=r.randint(3, 70),
                 num_shared_experts=r.randint(1, 3), num_dense_layers=r.randint(0, 3), route_scale=r.choice([1.0, 2.826]),
                 mup_enabled=r.random() < 0.6, sliding_window=r.choice([3, 20, 90]), global_attn_every_n_layers=r.randint(1, 4),
                 attention_bias=r.random() < 0.3)
    elif arch == "hunyuan_v1_moe":
        c.update(num_experts=n, moe_topk=r.choice([k, [k] * c["num_hidden_layers"]]), head_dim=8 * r.randint(1, 12), attention_head_dim=DROP,
                 num_shared_expert=1, moe_intermediate_size=c["intermediate_size"], attention_bias=r.random() < 0.3)
        if "rope_scaling" not in c and r.random() < 0.6:
            c["rope_scaling"] = {r.choice(["type", "rope_type"]): "dynamic", "factor": 1.0, "alpha": r.choice([2.0, 1000.0])}
    elif arch == "nemotron_h":
        layers, groups = c["num_hidden_layers"] + 3, r.choice([1, 1, 2, 3])
        types = [r.choice("MME*-") for _ in range(layers)]
        types[r.randrange(layers)] = "*"
        c.update(num_hidden_layers=layers, hybrid_override_pattern="".join(types), num_local_experts=DROP, n_routed_experts=n, num_experts_per_tok=k,
                 intermediate_size=2 * r.randint(1, 50), moe_intermediate_size=2 * r.randint(1, 40), moe_shared_expert_intermediate_size=2 * r.randint(1, 40),
                 attention_bias=r.random() < 0.3, head_dim=8 * r.randint(1, 12), mamba_num_heads=groups * r.randint(1, 6), mamba_head_dim=r.randint(1, 40),
                 n_groups=groups, ssm_state_size=r.randint(1, 70), conv_kernel=r.randint(2, 4), use_conv_bias=r.random() < 0.7,
                 chunk_size=r.choice([8, 64]), norm_topk_prob=r.random() < 0.7, routed_scaling_factor=r.choice([1.0, 2.5]))
    elif arch == "granitemoehybrid":
        layers, groups, hd, expand = c["num_hidden_layers"] + 1, r.choice([1, 1, 2, 3]), 2 * r.randint(1, 20), r.choice([1, 2])
        types = [r.choice(["mamba", "mamba", "attention"]) for _ in range(layers)]
        types[r.randrange(layers)] = "attention"
        mamba_heads = groups * r.randint(1, 6)
        c.update(num_hidden_layers=layers, layer_types=types, num_local_experts=n, num_experts_per_tok=k, attention_bias=r.random() < 0.3,
                 hidden_size=mamba_heads * hd // expand, head_dim=8 * r.randint(1, 12), mamba_n_heads=mamba_heads, mamba_d_head=hd, mamba_n_groups=groups,
                 mamba_expand=expand, mamba_d_state=r.randint(1, 70), mamba_d_conv=r.randint(2, 4), mamba_conv_bias=r.random() < 0.7,
                 mamba_chunk_size=r.choice([8, 64]), shared_intermediate_size=r.randint(3, 90), position_embedding_type=r.choice(["nope", None, "rope"]),
                 embedding_multiplier=r.choice([1.0, 12.0]), attention_multiplier=r.choice([0.05, 0.3]), residual_multiplier=r.choice([1.0, 0.22]),
                 logits_scaling=r.choice([1.0, 6.0]))
    elif arch == "lfm2_moe":
        layers = c["num_hidden_layers"] + 1
        types = [r.choice(["conv", "conv", "full_attention"]) for _ in range(layers)]
        types[r.randrange(layers)] = "full_attention"
        c.update(num_hidden_layers=layers, layer_types=types, num_experts=n, num_experts_per_tok=k, moe_intermediate_size=r.randint(3, 70),
                 num_dense_layers=r.randint(0, 3), conv_L_cache=r.randint(2, 4), norm_eps=c.pop("rms_norm_eps"),
                 routed_scaling_factor=r.choice([1.0, 2.5]), norm_topk_prob=r.random() < 0.7, use_expert_bias=r.random() < 0.7)
    elif arch == "phimoe":
        c.pop("rope_scaling", None)
        hd = 8 * r.randint(1, 12)
        c.update(num_local_experts=n, head_dim=hd, router_jitter_noise=r.choice([0.0, 0.01, 0.2, 1.0]), attention_bias=r.random() < 0.6,
                 lm_head_bias=r.random() < 0.6, sliding_window=r.choice([None, None, 3, 50]))
        if r.random() < 0.6:
            factors = lambda most: [round(r.uniform(1, most), 3) for _ in range(hd // 2)]
            told = longrope(r.choice([16, 64, 512]), short_factor=factors(2), long_factor=factors(40), short_mscale=r.choice([1.0, 1.24]),
                            long_mscale=r.choice([1.0, 1.3]))
            c.update(told["cfg"])
            reference = told.get("reference_cfg")
    elif arch in ("step3p7", "laguna"):
        layers, moe = c["num_hidden_layers"], r.random() < 0.8
        sliding = [r.random() < 0.6 for _ in range(layers)]
        other = kv * r.randint(1, 6)
        parts = [r.choice([0.25, 0.5, 1.0]) for _ in range(2)]
        scaling = c.pop("rope_scaling", None)
        c.update(head_dim=8 * r.randint(1, 12), sliding_window=r.choice([3, 20, 90]), moe_intermediate_size=r.randint(3, 70), attention_bias=r.random() < 0.3,
                 layer_types=["sliding_attention" if s else "full_attention" for s in sliding])
        mlp = ["sparse" if moe and r.random() < 0.7 else "dense" for _ in range(layers)]
        if arch == "laguna":
            rope = {k: {"rope_type": "default", "rope_theta": r.choice([100.0, 50000.0]), "partial_rotary_factor": p}
                    for k, p in zip(("full_attention", "sliding_attention"), parts)}
            rope["full_attention"].update(scaling or {})
            c.update(rope_theta=DROP, rope_parameters=rope, num_experts=n, num_experts_per_tok=k, shared_expert_intermediate_size=r.randint(3, 90),
                     num_attention_heads_per_layer=[kv * r.randint(1, 6) for _ in range(layers)], mlp_layer_types=mlp,
                     gating=r.choice([True, "per-head", "per-element"]), moe_routed_scaling_factor=r.choice([1.0, 2.5]))
        else:
            limits = lambda: [r.choice([None, 0, 0.3, 1.5]) for _ in range(layers)]
            c.update(num_key_value_heads=DROP, num_attention_groups=kv, moe_num_experts=n, moe_top_k=k, share_expert_dim=r.randint(3, 90),
                     moe_layers_enum=",".join(str(i) for i, x in enumerate(mlp) if x == "sparse"), moe_router_scaling_factor=r.choice([1.0, 3.0]),
                     rope_theta=[[50000.0, 1000.0][s] for s in sliding], partial_rotary_factors=[parts[s] for s in sliding], rope_scaling=scaling,
                     swiglu_limits=limits(), swiglu_limits_shared=limits(),
                     attention_other_setting={"attention_type": "sliding_attention", "num_attention_heads": other, "num_attention_groups": kv})
    elif arch in NEWER:
        own = FAMILIES[arch]
        c.update(num_hidden_layers=3, num_experts_per_tok=k, **{key: n for key in ("num_local_experts", "num_experts", "n_routed_experts") if key in own})
        c.update({key: r.randint(3, 70) for key in ("moe_intermediate_size", "shared_intermediate_size") if key in own})
        c.update({key: r.randint(1, 3) for key in ("n_shared_experts", "num_shared_experts") if key in own})
        c.update({key: r.randint(2, 90) for key in ("sliding_window",) if key in own}, attention_bias=r.random() < 0.3)
        if "head_dim" in own and arch not in SEES:
            c.update(head_dim=8 * r.randint(1, 12))
        if arch in SEES or arch == "mellum":
            c.pop("rope_scaling", None)
        if arch == "mellum":
            c.update(rope_theta=DROP)
    else:
        hd = 8 * r.randint(1, 12)
        c.update(num_local_experts=n, num_experts_per_tok=k, head_dim=hd, rotary_dim=r.choice([hd, hd // 2]))
    gguf = r.choice(["bf16", "f16", "f32"]) if r.random() < 0.35 and arch not in (*NO_GGUF, "phimoe") else None
    if gguf: # what such a file can say
        c.pop("rope_scaling", None)
        usual = {"use_sliding_window": False, "decoder_sparse_step": 1, "moe_layer_end_index": -1}
        c.update({key: x for key, x in usual.items() if key in c})
        if arch in ("qwen2_moe", "olmoe"):
            c["norm_topk_prob"] = False
        if arch == "afmoe":
            c.update(mup_enabled=True, global_attn_every_n_layers=4)
        if arch == "lfm2_moe":
            c.update(norm_topk_prob=True, use_expert_bias=True, tie_word_embeddings=True)
        if arch == "dots1":
            c["sliding_window"] = None
    variant(f"random-{arch}-{seed}", arch, cfg=c, gguf=gguf, reference_cfg=reference, publish=publish_omni if arch == "qwen3_omni_moe" else None,
            dtype=r.choice(["bfloat16", "float16", "float32"]),
            prompts=[1, r.randint(2, 17), r.randint(18, 160)])
