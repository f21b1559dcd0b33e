#!/usr/bin/env python3
"""Tiny random models of every architecture that expertd knows, in unusual but legal configurations, with the values that Hugging Face
transformers computes for them; and models that must be refused. Folders are as in tests/data/golden.

usage: variants.py make OUT [NAME ...]    NAME: a variant's name, or random:N or random:N-M for random configurations of every architecture
       variants.py run OUT TEST_GOLDEN    compares; lists every difference and every refusal with its reason

Needs torch, transformers, safetensors, gguf, accelerate, compressed-tensors (PyPI).
"""
import json
import os
import pathlib
import random
import re
import subprocess
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent), str(pathlib.Path(__file__).resolve().parent.parent / "golden")]
import variants_families # noqa: E402
from variants_families import FAMILIES # noqa: E402
from variants_files import ( # noqa: E402
    INT4, MATRICES, add_head, add_nextn, edit_config, mixed_dtypes, nest, odd_header, q_bias_alone, rewrite, router_f32, to_fp8,
    to_int4, to_mxfp4, to_nvfp4)

SMALL = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
         "vocab_size": 211, "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu",
         "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "bfloat16"}
ARCHS = {
    "llama": {},
    "mistral": {"sliding_window": None},
    "mixtral": {"head_dim": 16, "num_local_experts": 6, "num_experts_per_tok": 2, "sliding_window": None},
    "qwen2": {"use_sliding_window": False},
    "qwen3": {"head_dim": 32},
    "qwen3_moe": {"head_dim": 32, "num_experts": 9, "num_experts_per_tok": 3, "moe_intermediate_size": 40, "norm_topk_prob": True,
                  "decoder_sparse_step": 1, "mlp_only_layers": []},
    "gpt_oss": {"head_dim": 16, "num_local_experts": 6, "num_experts_per_tok": 2, "sliding_window": 24},
}
CLASSES = {"llama": "Llama", "mistral": "Mistral", "mixtral": "Mixtral", "qwen2": "Qwen2", "qwen3": "Qwen3", "qwen3_moe": "Qwen3Moe",
           "gpt_oss": "GptOss"}
LATENT = {"num_key_value_heads": 4, "kv_lora_rank": 32, "q_lora_rank": 24, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 12,
          "n_routed_experts": 8, "n_shared_experts": 2, "num_experts_per_tok": 3, "moe_intermediate_size": 20, "first_k_dense_replace": 1,
          "routed_scaling_factor": 1.7}
DEEPSEEK = {"deepseek_v2": {**LATENT, "q_lora_rank": None, "topk_method": "greedy", "norm_topk_prob": False},
            "deepseek_v3": {**LATENT, "n_group": 2, "topk_group": 1, "norm_topk_prob": True}}
CLASSES.update(deepseek_v2="DeepseekV2", deepseek_v3="DeepseekV3", **variants_families.CLASSES)
EAGER = {"attn_implementation": "eager", "experts_implementation": "eager"}
DROP = variants_families.DROP

VARIANTS = {}


def variant(name, arch, refuse=None, **kw):
    """kw: cfg (overrides), reference_cfg (of transformers alone), dtype, shards, gguf (type), gguf_edit, weights (function of the state), files (function of the folder after all is
    written), prompts (lengths), generation (dict)."""
    assert name not in VARIANTS, name
    VARIANTS[name] = dict(arch=arch, refuse=refuse, **kw)


def rope(**kw):
    return {"rope_scaling": kw}


def fill_variants():
    for a in ARCHS:
        v = lambda n, refuse=None, a=a, **kw: variant(f"{a}-{n}", a, refuse, **kw)
        v("base")
        v("f16", dtype="float16")
        v("f32", dtype="float32")
        v("shards", shards="60KB")
        v("tied", cfg={"tie_word_embeddings": True})
        v("tied-and-head", cfg={"tie_word_embeddings": True}, files=add_head)
        v("untied-no-head", "lm_head.weight' is missing", files=lambda d: rewrite(d, drop=["lm_head.weight"]))
        v("mha", cfg={"num_key_value_heads": 4})
        v("mqa8", cfg={"num_attention_heads": 8, "num_key_value_heads": 1})
        v("gqa3", cfg={"num_attention_heads": 6, "num_key_value_heads": 2, "hidden_size": 60})
        v("gqa5", cfg={"num_attention_heads": 5, "num_key_value_heads": 1, "hidden_size": 80})
        v("gqa7", cfg={"num_attention_heads": 14, "num_key_value_heads": 2, "hidden_size": 56})
        v("odd-sizes", cfg={"hidden_size": 52, "intermediate_size": 37, "moe_intermediate_size": 23, "num_attention_heads": 2,
                            "num_key_value_heads": 1, "vocab_size": 97})
        v("odd-f32", cfg={"hidden_size": 50, "intermediate_size": 33, "moe_intermediate_size": 21, "num_attention_heads": 2, "head_dim": 10,
                          "num_key_value_heads": 2, "vocab_size": 103}, dtype="float32")
        v("one-layer", cfg={"num_hidden_layers": 1})
        v("head-dim-2", cfg={"head_dim": 2})
        v("head-dim-6", cfg={"head_dim": 6})
        v("head-dim-80", cfg={"head_dim": 80})
        v("head-dim-256", cfg={"head_dim": 256})
        v("eps-large", cfg={"rms_norm_eps": 0.1})
        v("eps-tiny", cfg={"rms_norm_eps": 1e-12})
        v("theta-1e7", cfg={"rope_theta": 1e7})
        v("theta-int", cfg={"rope_theta": 500000})
        v("theta-small", cfg={"rope_theta": 100.0})
        v("swish", cfg={"hidden_act": "swish"})
        v("gelu", "hidden_act 'gelu'", cfg={"hidden_act": "gelu"})
        v("long-prompt", prompts=[1, 450])
        v("short-context", cfg={"max_position_embeddings": 40})
        v("minimal", cfg={k: DROP for k in ("rms_norm_eps", "rope_theta", "hidden_act", "tie_word_embeddings", "torch_dtype",
                                           "bos_token_id", "eos_token_id")}, no_generation=True)
        v("nulls", cfg={"rope_scaling": None, "head_dim": DROP if a == "qwen3" else None if a in ("llama", "mistral", "mixtral") else 16,
                        "num_key_value_heads": None if a in ("llama", "qwen2", "qwen3") else 2, "pad_token_id": None, "bos_token_id": None,
                        "eos_token_id": None, "quantization_config": None, "num_attention_heads": 4})
        v("dtype-key", cfg={"torch_dtype": DROP, "dtype": "float32"}, dtype="bfloat16")
        v("eos-list", cfg={"eos_token_id": [2, 5, 7]}, generation={"eos_token_id": [2, 9]})
        v("eos-outside", cfg={"eos_token_id": 99999, "bos_token_id": 88888}, generation={"eos_token_id": [3, 77777]})
        v("strange-keys", cfg={"use_cache": False, "transformers_version": "4.31.0.dev0", "pretraining_tp": 2, "attention_dropout": 0.1,
                               "initializer_range": 0.5, "output_attentions": True, "auto_map": {}, "_name_or_path": "x/y"})
        # rope
        v("linear", cfg=rope(type="linear", factor=4.0))
        v("linear-new", cfg=rope(rope_type="linear", factor=2.5))
        v("dynamic", cfg=rope(type="dynamic", factor=2.0))
        v("dynamic-beyond", "dynamic", cfg={**rope(type="dynamic", factor=2.0), "max_position_embeddings": 64})
        v("yarn", cfg=rope(type="yarn", factor=4.0, original_max_position_embeddings=32))
        v("yarn-all", cfg=rope(rope_type="yarn", factor=8.0, original_max_position_embeddings=48, beta_fast=24, beta_slow=2,
                               mscale=0.8, mscale_all_dim=0.5, truncate=False), prompts=[1, 17, 200])
        v("yarn-attn", cfg=rope(rope_type="yarn", factor=8.0, original_max_position_embeddings=64, attention_factor=0.7))
        v("yarn-mscale-one", cfg=rope(rope_type="yarn", factor=8.0, original_max_position_embeddings=64, mscale=0.7))
        v("yarn-factor-null", cfg=rope(rope_type="yarn", factor=None, original_max_position_embeddings=64))
        v("yarn-top-original", cfg={**rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=256),
                                    "original_max_position_embeddings": 32})
        v("yarn-no-original", cfg=rope(rope_type="yarn", factor=4.0))
        v("yarn-factor-1", cfg=rope(rope_type="yarn", factor=1.0, original_max_position_embeddings=64))
        v("yarn-betas-null", cfg=rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=64, beta_fast=None, beta_slow=None,
                                      attention_factor=None, mscale=None, mscale_all_dim=0))
        v("llama3", cfg=rope(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                             original_max_position_embeddings=64), prompts=[1, 17, 200])
        v("llama3-top-original", cfg={**rope(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                             original_max_position_embeddings=256), "original_max_position_embeddings": 32})
        v("longrope", "longrope", cfg=rope(rope_type="longrope", factor=4.0, original_max_position_embeddings=64,
                                           short_factor=[1.0] * (16 if a.startswith("qwen3") else 8),
                                           long_factor=[2.0] * (16 if a.startswith("qwen3") else 8)))
        v("su", "rope type 'su'", cfg=rope(type="su", factor=4.0), no_reference=True)
        v("proportional", "proportional", cfg=rope(rope_type="proportional", factor=2.0, partial_rotary_factor=0.5))
        v("rope-parameters", cfg={"rope_theta": DROP, "rope_parameters": {"rope_type": "default", "rope_theta": 123456.0}})
        v("rope-parameters-no-theta", cfg={"rope_theta": 5000.0, "rope_parameters": {"rope_type": "linear", "factor": 2.0}})
        v("rope-parameters-linear", cfg={"rope_theta": DROP, "rope_parameters": {"rope_type": "linear", "rope_theta": 7777.0, "factor": 3.0}})
        v("rope-both", cfg={"rope_theta": 3000.0, "rope_parameters": {"rope_type": "linear", "rope_theta": 7777.0, "factor": 3.0},
                            "rope_scaling": {"type": "linear", "factor": 2.0}})
        v("rope-empty", cfg={"rope_scaling": {}, "rope_theta": 4321.0})
        v("rope-theta-both", cfg={"rope_theta": 4321.0, "rope_scaling": {"rope_type": "default", "rope_theta": 555.0}})
        v("rope-nested", "layer types", cfg={"rope_theta": DROP, "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 5e5}, "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}},
          no_reference=True)
        v("partial", "partial_rotary_factor", cfg={"partial_rotary_factor": 0.5})
        v("partial-in-rope", "partial_rotary_factor", cfg=rope(rope_type="default", partial_rotary_factor=0.5))
        v("mrope", cfg=rope(type="default", mrope_section=[2, 3, 3], rope_type="default"))
        # weights
        v("loud", weights=lambda s: {k: t * (30 if "proj" in k else 1) for k, t in s.items()})
        v("loud-embedding", weights=lambda s: {k: t * (1000 if "embed" in k else 1) for k, t in s.items()})
        v("sharp-attention", weights=lambda s: {k: t * (40 if "q_proj" in k or "k_proj" in k or "q_norm" in k else 1) for k, t in s.items()})
        v("zero-rows", weights=zero_rows)
        v("subnormal", weights=lambda s: {k: t * (1e-38 if "up_proj" in k or ".w3." in k or "v_proj" in k else 1) for k, t in s.items()})
        v("subnormal-f16", weights=lambda s: {k: t * (1e-6 if "down_proj" in k or ".w2." in k or "o_proj" in k else 1) for k, t in s.items()},
          dtype="float16")
        v("negative-zero", weights=lambda s: {k: (t * 0 * -1 if "up_proj" in k else t) for k, t in s.items()})
        # files
        v("inv-freq-tensor", files=lambda d: rewrite(d, add={"model.layers.0.self_attn.rotary_emb.inv_freq": ("float32", [8])}))
        v("unknown-layer-tensor", "model.layers.0.mlp.shared_expert.gate_proj.weight",
          files=lambda d: rewrite(d, add={"model.layers.0.mlp.shared_expert.gate_proj.weight": ("bfloat16", [96, 64])}))
        v("odd-header", files=odd_header)
        v("f64", "F64", dtype="float64")
        v("mixed-dtypes", files=mixed_dtypes)
        v("q-bias-alone", "bias" if a != "qwen2" else "k_proj.bias' is missing", files=q_bias_alone)
        v("o-bias-unasked", None if a == "gpt_oss" else "o_proj.bias", files=lambda d: rewrite(d, add={"model.layers.1.self_attn.o_proj.bias": ("bfloat16", [64])}))
        v("gguf-bf16", gguf="bf16")
        v("gguf-f16", gguf="f16")
        v("gguf-f32", gguf="f32")
        v("gguf-q8_0", gguf="q8_0", cfg={"intermediate_size": 128} | ({"moe_intermediate_size": 32} if a == "qwen3_moe" else {}))
        v("gguf-tied", gguf="bf16", cfg={"tie_word_embeddings": True})
        v("gguf-head-dim-80", gguf="bf16", cfg={"head_dim": 80})
        v("gguf-gqa7", gguf="bf16", cfg={"num_attention_heads": 14, "num_key_value_heads": 2, "hidden_size": 56})
        v("gguf-linear", gguf="bf16", cfg=rope(type="linear", factor=4.0))
        v("gguf-yarn", gguf="bf16", cfg=rope(type="yarn", factor=4.0, original_max_position_embeddings=64,
                                             **({"truncate": False} if a == "gpt_oss" else {})))
        v("gguf-eps", gguf="bf16", cfg={"rms_norm_eps": 0.01})
        v("gguf-theta", gguf="bf16", cfg={"rope_theta": 1e6})
    # contexts of several steps and several splits of the attention
    for a, cfg in (("llama", {}), ("llama", {"num_attention_heads": 8, "num_key_value_heads": 1}), ("mistral", {"sliding_window": 700}),
                   ("mistral", {"sliding_window": 513}), ("mixtral", {"sliding_window": 512}),
                   ("qwen3_moe", {"use_sliding_window": True, "sliding_window": 300}),
                   ("qwen2", {"use_sliding_window": True, "sliding_window": 1024, "max_window_layers": 1}),
                   ("qwen3", rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=512))):
        variant(f"long-{a}-{next(iter(cfg.values()), 'plain')}" if a != "qwen3" else "long-qwen3-yarn", a,
                cfg={"max_position_embeddings": 4096, "num_hidden_layers": 2, **cfg}, prompts=[530, 1500, 1024], greedy=4)
    # attention bias
    for a in ("llama", "qwen3", "qwen3_moe"):
        variant(f"{a}-bias", a, cfg={"attention_bias": True})
        variant(f"{a}-bias-unset", a, "bias", cfg={"attention_bias": True}, files=lambda d: edit_config(d, attention_bias=False))
        variant(f"{a}-bias-f16", a, cfg={"attention_bias": True}, dtype="float16")
        variant(f"{a}-gguf-bias", a, cfg={"attention_bias": True}, gguf="bf16")
        variant(f"{a}-bias-missing", a, cfg={"attention_bias": True}, files=lambda d: rewrite(d, drop_re=r"o_proj\.bias"),
                )
    variant("llama-mlp-bias", "llama", "mlp_bias", cfg={"mlp_bias": True})
    variant("llama-qk-norm-tensors", "llama", "k_norm", files=lambda d: rewrite(d, add={
        f"model.layers.{i}.self_attn.{x}_norm.weight": ("bfloat16", [16]) for i in range(3) for x in "qk"}))
    # windows
    for a in ("mistral", "mixtral"):
        for w in (1, 2, 16, 31):
            variant(f"{a}-window-{w}", a, cfg={"sliding_window": w}, prompts=[1, 17, 120])
        variant(f"{a}-window-absent", a, cfg={"sliding_window": DROP})
        variant(f"{a}-window-large", a, cfg={"sliding_window": 5000})
        variant(f"{a}-window-string", a, "sliding_window", cfg={"sliding_window": "16"}, no_reference=True)
        variant(f"{a}-layer-types", a, "layer_types", cfg={"sliding_window": 16, "layer_types":
                                                          ["full_attention", "sliding_attention", "sliding_attention"]}, no_reference=True)
        variant(f"{a}-gguf-window", a, cfg={"sliding_window": 16}, gguf="bf16")
    for a in ("qwen2", "qwen3"):
        variant(f"{a}-window", a, cfg={"use_sliding_window": True, "sliding_window": 12, "max_window_layers": 1})
        variant(f"{a}-window-all", a, cfg={"use_sliding_window": True, "sliding_window": 12, "max_window_layers": 0})
        variant(f"{a}-window-none", a, cfg={"use_sliding_window": True, "sliding_window": 12, "max_window_layers": 3})
        variant(f"{a}-window-default-layers", a, cfg={"use_sliding_window": True, "sliding_window": 12})
        variant(f"{a}-window-off", a, cfg={"use_sliding_window": False, "sliding_window": 12, "max_window_layers": 0})
        variant(f"{a}-window-unsaid", a, cfg={"use_sliding_window": DROP, "sliding_window": 12, "max_window_layers": 0})
        variant(f"{a}-layer-types", a, cfg={"use_sliding_window": True, "sliding_window": 12, "max_window_layers": 3, "layer_types":
                                            ["sliding_attention", "full_attention", "sliding_attention"]})
        variant(f"{a}-layer-types-off", a, "layer_types", cfg={"use_sliding_window": False, "sliding_window": 12, "layer_types":
                                            ["sliding_attention", "full_attention", "full_attention"]}, no_reference=True)
        variant(f"{a}-layer-types-chunked", a, "layer_types", cfg={"layer_types":
                                            ["chunked_attention", "full_attention", "full_attention"]}, no_reference=True)
        variant(f"{a}-layer-types-short", a, "layer_types", cfg={"layer_types": ["full_attention"]}, no_reference=True)
        variant(f"{a}-layer-types-null", a, cfg={"use_sliding_window": True, "sliding_window": 12, "max_window_layers": 2, "layer_types": None})
    variant("qwen3_moe-window", "qwen3_moe", cfg={"use_sliding_window": True, "sliding_window": 12, "max_window_layers": 28})
    variant("qwen3_moe-window-off", "qwen3_moe", cfg={"use_sliding_window": False, "sliding_window": 12})
    # heads by default
    variant("qwen3-head-dim-default", "qwen3", cfg={"head_dim": DROP})
    variant("qwen3_moe-head-dim-default", "qwen3_moe", cfg={"head_dim": DROP})
    for a in ARCHS:
        variant(f"{a}-kv-heads-default", a, cfg={"num_key_value_heads": DROP, "num_attention_heads": 32, "hidden_size": 64,
                                                  "head_dim": 4})
        variant(f"{a}-context-default", a, cfg={"max_position_embeddings": DROP})
        variant(f"{a}-only-sizes", a, cfg={k: DROP for k in ("num_key_value_heads", "max_position_embeddings", "rms_norm_eps", "rope_theta",
                "hidden_act", "tie_word_embeddings", "norm_topk_prob", "decoder_sparse_step", "mlp_only_layers", "use_sliding_window",
                "sliding_window")} | {"num_attention_heads": 32, "head_dim": 4})
        # every size by default but those that would make a large model
        variant(f"{a}-architectures-other", a, "architectures", cfg={"architectures": ["FooForCausalLM"]}, no_reference=True)
    # experts
    for n, k in ((2, 1), (2, 2), (3, 1), (3, 3), (5, 2), (5, 5), (7, 4), (7, 7), (8, 8), (60, 4), (128, 8), (256, 8), (33, 1), (16, 6)):
        for norm in (True, False):
            variant(f"qwen3_moe-{n}x{k}-{'norm' if norm else 'raw'}", "qwen3_moe", cfg={
                "num_experts": n, "num_experts_per_tok": k, "norm_topk_prob": norm, "moe_intermediate_size": 16, "hidden_size": 32,
                "num_hidden_layers": 2})
        variant(f"mixtral-{n}x{k}", "mixtral", cfg={"num_local_experts": n, "num_experts_per_tok": k, "intermediate_size": 16,
                                                    "hidden_size": 32, "num_hidden_layers": 2})
        variant(f"mixtral-gguf-{n}x{k}", "mixtral", gguf="q8_0", cfg={
            "num_local_experts": n, "num_experts_per_tok": k, "intermediate_size": 32, "hidden_size": 32, "num_hidden_layers": 2})
    q = lambda n, refuse=None, **kw: variant(f"qwen3_moe-{n}", "qwen3_moe", refuse, **kw)
    q("num-local-experts", cfg={"num_experts": DROP, "num_local_experts": 9})
    q("no-norm-key", cfg={"norm_topk_prob": DROP})
    q("norm-null", cfg={"norm_topk_prob": DROP, "mlp_only_layers": None})
    q("sparse-step-2", cfg={"decoder_sparse_step": 2, "num_hidden_layers": 5})
    q("sparse-step-3", cfg={"decoder_sparse_step": 3, "num_hidden_layers": 4})
    q("mlp-only", cfg={"mlp_only_layers": [0, 2], "num_hidden_layers": 4})
    q("mlp-only-and-step", cfg={"mlp_only_layers": [1], "decoder_sparse_step": 2, "num_hidden_layers": 5})
    q("mlp-only-all", cfg={"mlp_only_layers": [0, 1, 2]})
    q("top-k-too-many", "at most as many", cfg={"num_experts_per_tok": 10}, no_reference=True)
    q("router-f32", files=router_f32)
    q("router-zero", weights=lambda s: {k: (t * 0 if "mlp.gate.weight" in k else t) for k, t in s.items()},
      cfg={"num_experts": 4, "num_experts_per_tok": 4})
    q("router-loud", weights=lambda s: {k: (t * 50 if "mlp.gate.weight" in k else t) for k, t in s.items()})
    q("router-loud-raw", cfg={"norm_topk_prob": False}, weights=lambda s: {k: (t * 50 if "mlp.gate.weight" in k else t) for k, t in s.items()})
    q("router-flat-raw", cfg={"norm_topk_prob": False}, weights=lambda s: {k: (t * 1e-2 if "mlp.gate.weight" in k else t) for k, t in s.items()})
    q("router-ties", cfg={"num_experts": 8, "num_experts_per_tok": 3, "num_hidden_layers": 1}, weights=twin_experts)
    variant("mixtral-router-ties", "mixtral", cfg={"num_local_experts": 8, "num_experts_per_tok": 3, "num_hidden_layers": 1},
            weights=twin_experts)
    q("packed-experts", packed=True)
    variant("mixtral-packed-experts", "mixtral", packed=True)
    # gpt-oss
    g = lambda n, refuse=None, **kw: variant(f"gpt_oss-{n}", "gpt_oss", refuse, **kw)
    for n, k in ((1, 1), (3, 3), (8, 4), (33, 1), (128, 4)):
        g(f"{n}x{k}", cfg={"num_local_experts": n, "num_experts_per_tok": k, "intermediate_size": 16, "hidden_size": 32})
    g("swiglu", cfg={"swiglu_alpha": 1.3, "swiglu_limit": 0.7})
    g("swiglu-limit", weights=lambda s: {k: (t * 8 if "gate_up" in k else t) for k, t in s.items()})
    g("sinks-loud", weights=lambda s: {k: (t * 30 if "sinks" in k else t) for k, t in s.items()})
    g("sinks-quiet", weights=lambda s: {k: (t * -300 if "sinks" in k else t) for k, t in s.items()})
    g("no-attention-bias", cfg={"attention_bias": False})
    g("bias-missing", "self_attn.o_proj.bias' is missing", files=lambda d: rewrite(d, drop_re=r"o_proj\.bias"))
    g("sinks-missing", "self_attn.sinks' is missing", files=lambda d: rewrite(d, drop_re=r"layers\.1\.self_attn\.sinks"))
    g("router-bias-missing", "mlp.router.bias' is missing", files=lambda d: rewrite(d, drop_re=r"router\.bias"))
    g("expert-bias-missing", "down_proj_bias' is missing", files=lambda d: rewrite(d, drop_re=r"down_proj_bias"))
    for w in (1, 2, 16):
        g(f"window-{w}", cfg={"sliding_window": w}, prompts=[1, 17, 120])
    g("window-null", "sliding_window", cfg={"sliding_window": None}, no_reference=True)
    g("layer-types", cfg={"layer_types": ["full_attention", "full_attention", "sliding_attention"]})
    g("layer-types-all", cfg={"layer_types": ["full_attention"] * 3})
    g("layer-types-null", cfg={"layer_types": None, "num_hidden_layers": 4})
    g("layer-types-chunked", "layer_types", cfg={"layer_types": ["chunked_attention", "full_attention", "full_attention"]}, no_reference=True)
    g("yarn-default", cfg={"rope_theta": 150000.0, "max_position_embeddings": 131072}, prompts=[1, 17, 200])
    # as published: MXFP4, its blocks made here and read by transformers
    for n, cfg in (("-wide", {"hidden_size": 96, "intermediate_size": 32, "num_local_experts": 3}), ("-swiglu", {"swiglu_limit": 1.5})):
        g(f"mxfp4{n}", cfg=cfg, files=to_mxfp4)
    g("mxfp4-shards", shards="60KB", files=lambda d: to_mxfp4(d, shards=True))
    g("mxfp4-sizes", "multiples of 32", cfg={"intermediate_size": 48, "quantization_config": {"quant_method": "mxfp4"}}, no_reference=True)
    g("mxfp4-in-bf16", "gate_up_proj_blocks' is missing", cfg={"quantization_config": {"quant_method": "mxfp4"}}, no_reference=True)
    g("bf16-in-mxfp4", "gate_up_proj' is missing", files=lambda d: (to_mxfp4(d), edit_config(d, quantization_config=None)))
    for kind in ("mxfp4", "q8_0", "q5_1", "q4_k_m"):
        g(f"gguf-{kind}-mixed" if kind == "q8_0" else f"gguf-{kind}", gguf=kind, dtype="float32", cfg={"head_dim": 64, "num_hidden_layers": 2} |
          ({"hidden_size": 256, "intermediate_size": 256} if kind == "q4_k_m" else {}))
    g("gguf-window", gguf="bf16", cfg={"sliding_window": 5, "num_hidden_layers": 4})
    g("gguf-yarn-real", gguf="bf16", cfg={"rope_theta": 150000.0, **rope(rope_type="yarn", factor=32.0, original_max_position_embeddings=64,
                                                                     truncate=False)}, prompts=[1, 17, 200])
    g("fp8", "quant_method 'fp8'", cfg={"quantization_config": {"quant_method": "fp8"}}, no_reference=True)
    # other models' files
    for t in ("qwen2_moe", "qwen3_next", "olmoe", "deepseek_v3", "glm4_moe", "phi3", "llama4", "gemma3", "granitemoe", "ministral"):
        variant(f"other-{t}", "llama", f"model_type '{t}'", files=lambda d, t=t: edit_config(d, model_type=t))
    variant("other-nested", "llama", "model_type 'llava'", files=lambda d: nest(d))
    for key, value in (("quantization_config", {"quant_method": "awq"}), ("mlp_bias", True)):
        variant(f"other-{key}", "llama", key, files=lambda d, k=key, x=value: edit_config(d, **{k: x}))
    # gguf
    variant("gguf-rope-freqs", "llama", gguf="bf16", cfg=rope(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                                             original_max_position_embeddings=64), prompts=[1, 17, 200])
    for key, value in (("attention.value_length", 24), ("rope.dimension_count", 8), ("logit_scale", 0.5), ("attention.scale", 0.3),
                       ("embedding_scale", 2.0), ("residual_scale", 0.5), ("expert_shared_count", 1),
                       ("attn_logit_softcapping", 30.0), ("rope.scaling.attn_factor", 0.8), ("attention.clamp_kqv", 8.0),
                       ("expert_weights_scale", 2.5), ("expert_gating_func", 2), ("attention.causal", False),
                       ("rope.scaling.yarn_beta_fast", 8.0), ("feed_forward_length", [96, 96, 96]), ("attention.head_count_kv", [2, 1, 2]),
                       ("final_logit_softcapping", 30.0), ("leading_dense_block_count", 1), ("rope.scale_linear", 4.0)):
        variant(f"gguf-key-{key}", "mixtral" if "expert" in key else "llama", key, gguf="bf16", gguf_keys={key: value}, no_reference=True)
    variant("gguf-key-harmless", "llama", gguf="bf16", gguf_keys={"attention.value_length": 16, "rope.dimension_count": 16, "vocab_size": 211,
                                                                  "attention.causal": True, "rope.scaling.finetuned": True})
    variant("gguf-head-counts", "llama", "head_count_kv", gguf="bf16", no_reference=True, gguf_keys={"attention.head_count_kv": [2, 2, 2], "feed_forward_length": [96, 96, 96]})
    variant("gguf-norm-off", "qwen3_moe", gguf="bf16", cfg={"norm_topk_prob": False}, gguf_keys={"expert_weights_norm": False})
    variant("gguf-unknown-tensor", "llama", "blk.0.attn_sinks.weight", gguf="bf16", gguf_tensors=["blk.0.attn_sinks.weight"], no_reference=True)
    variant("gguf-llama-qk-norm", "llama", "blk.0.attn_q_norm.weight", gguf="bf16", gguf_tensors=["blk.0.attn_q_norm.weight"],
            no_reference=True)


    for a in ARCHS:
        variant(f"{a}-smallest", a, cfg={"hidden_size": 2, "intermediate_size": 1, "moe_intermediate_size": 1, "num_attention_heads": 1,
                "num_key_value_heads": 1, "head_dim": 2, "vocab_size": 3, "num_hidden_layers": 1})
        variant(f"{a}-deep", a, cfg={"num_hidden_layers": 20, "hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1})
    for a in ("mixtral", "qwen3_moe"):
        variant(f"{a}-one-expert", a, cfg={"num_local_experts": 1, "num_experts": 1, "num_experts_per_tok": 1})
    # quantised: rows of whole blocks
    fours = {"head_dim": 64, "num_local_experts": 3, "num_hidden_layers": 2, "vocab_size": 61}
    for kind in ("mxfp4", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl"):
        variant(f"mixtral-{kind}", "mixtral", gguf=kind, dtype="float32", cfg={**fours, "head_dim": 16, "intermediate_size": 128})
    for kind in ("q4_k_m", "q5_k_m", "q2_k_m", "q3_k_m", "iq4_xs_m", "iq"):
        variant(f"mixtral-{kind}", "mixtral", gguf=kind, dtype="float32", cfg={**fours, "hidden_size": 256, "intermediate_size": 256})
    # FP8; sizes that are no whole number of blocks
    wide = {"hidden_size": 192, "intermediate_size": 200, "moe_intermediate_size": 136, "num_hidden_layers": 2, "vocab_size": 61}
    for kind in ("block", "block-bf16", "channel", "tensor", "ct-block", "modelopt"):
        for a in ("qwen3_moe", "mixtral", "qwen3"):
            variant(f"{a}-fp8-{kind}", a, fp8=kind, cfg={**wide, "num_local_experts" if a == "mixtral" else "num_experts": 4})
        variant(f"deepseek_v3-fp8-{kind}", "deepseek_v3", fp8=kind, cfg={
            **wide, "q_lora_rank": 136, "kv_lora_rank": 160, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 24,
            "n_routed_experts": 4, "n_shared_experts": 1, "n_group": 1, "topk_group": 1})
    # INT4: as Kimi-K2's experts are published, as GPTQ and AWQ write them; groups that are no whole number of blocks, or all of a row
    for kind in INT4:
        ct = {"intermediate_size": 192, "moe_intermediate_size": 64} if kind.startswith("ct") else {}  # which has whole groups alone
        for a in ("qwen3_moe", "mixtral", "qwen3"):
            variant(f"{a}-int4-{kind}", a, int4=kind, cfg={**wide, **ct, "num_local_experts" if a == "mixtral" else "num_experts": 4})
        variant(f"deepseek_v3-int4-{kind}", "deepseek_v3", int4=kind, cfg={
            **wide, **ct, "q_lora_rank": 192 if ct else 136, "kv_lora_rank": 192 if ct else 160, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16,
            "v_head_dim": 32 if ct else 24, "n_routed_experts": 4, "n_shared_experts": 1, "n_group": 1, "topk_group": 1})
    for kind in ("modelopt", "modelopt-file", "ct"):
        for a in ("qwen3_moe", "qwen3"):
            variant(f"{a}-nvfp4-{kind}", a, nvfp4=kind, cfg={**wide, "intermediate_size": 208, "moe_intermediate_size": 112, "num_experts": 3})
    few = {"num_hidden_layers": 2, "vocab_size": 61}
    variant("deepseek_v3-int4-kimi_k2", "deepseek_v3", int4="ct", int4_only=r"\.experts\.", cfg={
        **few, "hidden_size": 96, "n_routed_experts": 4, "n_shared_experts": 1, "moe_intermediate_size": 160, "n_group": 1, "topk_group": 1})
    whole = {**few, "hidden_size": 256, "moe_intermediate_size": 128, "intermediate_size": 128, "num_experts": 3, "num_experts_per_tok": 2,
             "mlp_only_layers": [0]}
    for kind in ("gptq", "awq"):
        variant(f"qwen3_moe-int4-{kind}-128", "qwen3_moe", int4=kind, cfg=whole)
    variant("qwen3-int4-gptq-sorted", "qwen3", "another order than that of their groups", int4="gptq-sorted", cfg={**wide, **few})
    # the ones in tests/data/golden
    oss = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 61, "sliding_window": 12,
           **rope(rope_type="yarn", factor=32.0, original_max_position_embeddings=64, truncate=False)}
    variant("gpt_oss-mxfp4", "gpt_oss", files=to_mxfp4, cfg=oss)
    variant("gpt_oss-gguf", "gpt_oss", gguf="mxfp4", dtype="float32", cfg=oss)
    tiny = {"hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2, "vocab_size": 61}
    variant("llama3-gguf", "llama", gguf="bf16", cfg={**tiny, "tie_word_embeddings": True, **rope(
        rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64)}, prompts=[1, 17, 120])
    variant("qwen3-layers", "qwen3", cfg={**tiny, "num_hidden_layers": 3, "head_dim": 10, "attention_bias": True, "tie_word_embeddings": True,
            "use_sliding_window": True, "sliding_window": 12, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]})
    variant("qwen3_moe-odd", "qwen3_moe", dtype="float16", cfg={**tiny, "hidden_size": 30, "num_attention_heads": 3, "num_key_value_heads": 1,
            "head_dim": 6, "num_experts": 7, "num_experts_per_tok": 5, "moe_intermediate_size": 11, "norm_topk_prob": False,
            "num_hidden_layers": 3, "decoder_sparse_step": 2})
    variant("mixtral-packed", "mixtral", packed=True, shards="8KB", cfg={**tiny, "num_local_experts": 3, "num_experts_per_tok": 3})
    variant("mistral-long", "mistral", cfg={**tiny, "head_dim": 4, "sliding_window": 513, "max_position_embeddings": 1024}, prompts=[530, 1100],
            greedy=8)


def fill_deepseek():
    for a in DEEPSEEK:
        v = lambda n, refuse=None, a=a, **kw: variant(f"{a}-{n}", a, refuse, **kw)
        v("base")
        v("f16", dtype="float16")
        v("f32", dtype="float32")
        v("shards", shards="30KB")
        v("tied", cfg={"tie_word_embeddings": True})
        v("q-rank", cfg={"q_lora_rank": 20})
        v("q-whole", cfg={"q_lora_rank": None})
        v("bias", cfg={"attention_bias": True, "q_lora_rank": 20})
        v("bias-q-whole", cfg={"attention_bias": True, "q_lora_rank": None})
        v("one-head", cfg={"num_attention_heads": 1, "num_key_value_heads": 1})
        v("heads-20", cfg={"num_attention_heads": 20, "num_key_value_heads": 20, "hidden_size": 40})
        v("no-kv-heads", cfg={"num_key_value_heads": None, "num_attention_heads": 4})
        v("kv-heads", "num_key_value_heads = 2", cfg={"num_key_value_heads": 2})
        even = a == "deepseek_v2"  # transformers rotates pairs as complex numbers, which must be aligned
        v("odd-sizes", cfg={"kv_lora_rank": 25 + even, "qk_nope_head_dim": 7 + even, "qk_rope_head_dim": 6, "v_head_dim": 5, "q_lora_rank": 11,
                            "vocab_size": 97, "hidden_size": 52, "intermediate_size": 37, "moe_intermediate_size": 23})
        v("published-head", cfg={"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
                                 "num_attention_heads": 2, "num_key_value_heads": 2})
        v("eps-large", cfg={"rms_norm_eps": 0.1})
        v("long-prompt", prompts=[1, 450])
        v("dense", cfg={"first_k_dense_replace": 3})
        v("sparse", cfg={"first_k_dense_replace": 0})
        v("one-shared", cfg={"n_shared_experts": 1})
        v("all-experts", cfg={"num_experts_per_tok": 4, "n_routed_experts": 4, "n_group": 1, "topk_group": 1})
        v("no-scale", cfg={"routed_scaling_factor": 1.0})
        v("packed", packed=True)
        v("nextn", cfg={"num_nextn_predict_layers": 1}, files=add_nextn)
        v("layer-beyond", "num_hidden_layers", cfg={"num_nextn_predict_layers": 0}, files=add_nextn)
        v("linear", cfg=rope(type="linear", factor=4.0))
        v("linear-mscale", cfg=rope(type="linear", factor=4.0, mscale_all_dim=0.7))
        v("yarn", cfg=rope(type="yarn", factor=40, original_max_position_embeddings=64, beta_fast=32, beta_slow=1, mscale=0.707,
                           mscale_all_dim=0.707), prompts=[1, 17, 200])
        v("yarn-mscales-differ", cfg=rope(type="yarn", factor=8.0, original_max_position_embeddings=64, mscale=1.0, mscale_all_dim=0.4))
        v("yarn-no-mscale", cfg=rope(rope_type="yarn", factor=8.0, original_max_position_embeddings=64))
        v("yarn-all-dim-alone", cfg=rope(rope_type="yarn", factor=8.0, original_max_position_embeddings=64, mscale_all_dim=0.9))
        v("dynamic", cfg=rope(type="dynamic", factor=2.0))
        v("no-rank", "kv_lora_rank", cfg={"kv_lora_rank": None}, no_reference=True)
        v("odd-rope", "qk_rope_head_dim", cfg={"qk_rope_head_dim": 7}, no_reference=True)
        v("layer-freq", "moe_layer_freq", cfg={"moe_layer_freq": 2}, no_reference=True)
        v("wrong-scoring", "scoring_func", cfg={"scoring_func": "sigmoid" if a == "deepseek_v2" else "softmax"}, no_reference=True)
        v("right-scoring", cfg={"scoring_func": "softmax" if a == "deepseek_v2" else "sigmoid", "moe_layer_freq": 1, "seq_aux": True,
                                "ep_size": 1, "aux_loss_alpha": 0.001})
    v = lambda n, refuse=None, **kw: variant(f"deepseek_v2-{n}", "deepseek_v2", refuse, **kw)
    v("groups", cfg={"topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2})
    v("groups-all", cfg={"topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 4})
    v("groups-not-used", cfg={"topk_method": "greedy", "n_group": 4, "topk_group": 2})
    v("norm", "norm_topk_prob", cfg={"norm_topk_prob": True}, no_reference=True)
    v("noaux", "topk_method", cfg={"topk_method": "noaux_tc"}, no_reference=True)
    v("mlp-bias", "mlp_bias", cfg={"mlp_bias": True}, no_reference=True)
    v("minimal", cfg={k: DROP for k in ("rope_theta", "hidden_act", "tie_word_embeddings", "torch_dtype", "topk_method", "norm_topk_prob",
                                       "first_k_dense_replace", "n_shared_experts", "rms_norm_eps", "routed_scaling_factor")})
    v = lambda n, refuse=None, **kw: variant(f"deepseek_v3-{n}", "deepseek_v3", refuse, **kw)
    v("one-group", cfg={"n_group": 1, "topk_group": 1})
    v("groups-4", cfg={"n_group": 4, "topk_group": 2, "n_routed_experts": 16})
    v("groups-uneven", "n_group", cfg={"n_group": 3}, no_reference=True)
    v("not-normed", cfg={"norm_topk_prob": False})
    v("halves", cfg={"rope_interleave": False})
    v("noaux", cfg={"topk_method": "noaux_tc"})
    v("greedy", "topk_method", cfg={"topk_method": "greedy"}, no_reference=True)
    for kind in ("bf16", "q8_0", "q4_k_m"):
        wide = {"hidden_size": 256, "intermediate_size": 256, "moe_intermediate_size": 256, "kv_lora_rank": 256, "q_lora_rank": 256,
                "qk_nope_head_dim": 32, "qk_rope_head_dim": 32, "v_head_dim": 64, "num_hidden_layers": 2} if kind != "bf16" else {}
        for a in DEEPSEEK:
            c = {**wide, "q_lora_rank": None} if a == "deepseek_v2" else {**wide, "n_group": 1, "topk_group": 1}
            variant(f"{a}-gguf-{kind}", a, gguf=kind, cfg=c)
            variant(f"{a}-gguf-{kind}-joined", a, gguf=kind, gguf_joined=True, cfg=c)
    yarn = rope(type="yarn", factor=40, original_max_position_embeddings=64, mscale=0.707, mscale_all_dim=0.707)
    variant("deepseek_v2-gguf-groups", "deepseek_v2", gguf="bf16", cfg={"topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2, **yarn})
    variant("deepseek_v3-gguf-groups", "deepseek_v3", gguf="bf16", cfg={"n_group": 4, "topk_group": 2, "n_routed_experts": 16, **yarn})


# ---- making -------------------------------------------------------------------------------------------------------------------

def zero_rows(s):
    for k, t in s.items():
        if t.ndim == 2 and "mlp.gate.weight" not in k:
            t[::3] = 0
        if "embed" in k:
            t[5] = 0
    return s


def twin_experts(s):
    """Experts in pairs of twins, routers too: which twin is chosen makes no difference."""
    for k in list(s):
        if k.endswith("gate.weight") and s[k].ndim == 2 and ("mlp.gate" in k or "block_sparse_moe.gate" in k):
            s[k][1::2] = s[k][0::2]
        if "experts" in k and s[k].ndim == 3:
            s[k][1::2] = s[k][0::2]
    return s


def make_config(arch, cfg):
    c = {"model_type": arch, "architectures": [CLASSES[arch] + "ForCausalLM"], **SMALL, **{**ARCHS, **DEEPSEEK, **FAMILIES}[arch]}
    if arch == "mixtral" and ("hidden_size" in cfg or "num_attention_heads" in cfg):
        del c["head_dim"]
    c.update(cfg)
    return variants_families.nested({k: v for k, v in c.items() if v is not DROP})


def randomise(model, seed):
    """Weights that keep the signal alive through the layers and make logits differ."""
    import torch
    g = torch.Generator().manual_seed(seed)
    names = [n for n, _ in model.named_parameters()]
    with torch.no_grad():
        for name, p in [*model.named_parameters(), *((n, b) for n, b in model.named_buffers()
                                                        if "e_score_correction_bias" in n or n.endswith(("layer_scalar", "expert_bias")))]:
            r = torch.randn(p.shape, generator=g)
            if name.endswith(("e_score_correction_bias", "expert_bias")):
                p.copy_(r * 0.1)
                continue
            if name.endswith("layer_scalar"):
                p.copy_(0.7 + 0.2 * r)
                continue
            if name.endswith("router.proj.weight"): # its input is divided by the square root of the size
                p.copy_(r * 2.5)
                continue
            if name.endswith("A_log"): # what a head knows lasts for tens of tokens
                p.copy_(r - 3)
            elif name.endswith("bias"):
                p.copy_(r * 0.5)
            elif p.ndim == 1:
                p.copy_(1 + 0.2 * r)
            elif "embed" in name:
                p.copy_(r)
            elif name.endswith(("mlp.gate.weight", "mlp.router.weight", "moe.gate.weight", "moe.router.weight",
                                 "mlp.gate.wg.weight", "mlp.router.gate.weight", "feed_forward.gate.weight", "feed_forward.router.weight")):
                p.copy_(r * 2.5 / p.shape[-1] ** 0.5)
            elif name.endswith(("experts.gate_up_proj", "experts.down_proj")) and ("sinks" in "".join(names) or "feed_forward" in name):
                p.copy_(r * 1.3 / p.shape[-2] ** 0.5) # transposed
            else:
                p.copy_(r * (2.0 if "lm_head" in name else 1.3) / p.shape[-1] ** 0.5)


def numbers(t):
    return [float(f"{x:.6g}") for x in t.tolist()]


def reference(model, prompts, vocab, n_greedy):
    import torch
    rng = random.Random(5)
    cases, largest = [], 0.0
    for n in prompts:
        ids = [rng.randrange(vocab) for _ in range(n)]
        ids[-1] = vocab - 1
        if n > 1:
            ids[0] = 0
        routers, hooks = {}, []
        for name, m in model.named_modules():
            if type(m).__name__.lower().endswith(("topkrouter", "textrouter", "moev1gate", "tokenchoicerouter")):
                def hook(_m, _i, out, name=name):
                    ids = next(x for x in out if not x.is_floating_point())  # the order differs between families
                    logits = max((x for x in out if x.is_floating_point()), key=lambda x: x.shape[-1])
                    routers[name] = {"ids": ids.tolist(), "float": [[numbers(r) for r in logits]]}
                hooks.append(m.register_forward_hook(hook))
        with torch.no_grad():
            whole = model(torch.tensor([ids]), use_cache=False).logits[0]
        for h in hooks:
            h.remove()
        positions = list(range(n)) if n <= 17 else [n - 1]
        logits = [numbers(whole[i]) for i in positions]
        largest = max(largest, max(abs(x) for row in logits for x in row))
        out, margins, seq = [], [], list(ids)
        last = whole[-1]
        for _ in range(n_greedy):
            top = torch.topk(last, 2).values
            out.append(int(torch.argmax(last)))
            margins.append(float(top[0] - top[1]))
            seq.append(out[-1])
            with torch.no_grad():
                last = model(torch.tensor([seq]), use_cache=False).logits[0, -1]
        cases.append({"prompt_ids": ids, "logit_positions": positions, "logits": logits, "greedy_ids": out,
                      "greedy_top2_margin": margins, "router": routers})
    return {"max_abs_logit": largest, "cases": cases}


def make(root, name, v):
    import shutil
    import torch
    import transformers
    cls = getattr(transformers, CLASSES[v["arch"]] + ("ForConditionalGeneration" if v["arch"] in variants_families.SEES else "ForCausalLM"))
    d = root / name
    shutil.rmtree(d, ignore_errors=True)
    d.mkdir(parents=True)
    c = make_config(v["arch"], v.get("cfg", {}))
    (d / "config.json").write_text(json.dumps(c, indent=1))
    loadable = json.loads((d / "config.json").read_text())
    if v.get("no_reference"):  # a configuration that transformers refuses too: the weights of the plain one
        loadable = {**make_config(v["arch"], {})}
    config_dir = d / "tmp"
    config_dir.mkdir()
    (config_dir / "config.json").write_text(json.dumps({k: x for k, x in loadable.items() if k not in ("quantization_config", "auto_map")}))
    config = transformers.AutoConfig.from_pretrained(config_dir)
    dtype = getattr(torch, v.get("dtype", "bfloat16"))
    model = cls._from_config(config, **EAGER, dtype=torch.float32).eval()
    randomise(model, sum(map(ord, name)))
    state = {k: t.clone() for k, t in model.state_dict().items()}
    if v.get("weights"):
        state = v["weights"](state)
    model.load_state_dict(state)
    model.to(dtype).save_pretrained(d, max_shard_size=v.get("shards", "1GB"), save_original_format=not v.get("packed"))
    (d / "config.json").write_text(json.dumps(c, indent=1))
    if v["arch"] == "kimi_linear" and not v.get("packed"):
        variants_families.as_published_kimi(d)
    (d / "generation_config.json").unlink(missing_ok=True)
    if not v.get("no_generation"):
        (d / "generation_config.json").write_text(json.dumps(v.get("generation", {"_from_model_config": True, "eos_token_id": 2})))
    if v.get("files"):
        v["files"](d)
    source = config_dir / "plain" if v.get("fp8") or v.get("int4") or v.get("nvfp4") else d
    if v.get("fp8"):
        to_fp8(d, source, v["fp8"])
    if v.get("nvfp4"):
        to_nvfp4(d, source, v["nvfp4"])
    if v.get("int4"):
        to_int4(d, source, v["int4"], v.get("int4_only", MATRICES))
    if source != d and v["arch"] == "llama4_text":
        variants_families.fuse(source)
    gold = {"architecture": name, "refuse": v["refuse"], "max_abs_logit": 0, "cases": []}
    if not v.get("no_reference") and not v["refuse"]:
        if v.get("reference_cfg"):
            edit_config(source, **v["reference_cfg"])
        own = {"config": config} if v["arch"] in variants_families.OF_ANOTHER else {}
        ref, loading = cls.from_pretrained(source, dtype=torch.float32, **own, **EAGER, output_loading_info=True)
        (source / "config.json").write_text(json.dumps(c, indent=1))
        ref.eval()
        if v.get("gguf"):
            round_trip(ref, v["gguf"], c, v.get("gguf_joined", False))
        gold.update(reference(ref, v.get("prompts", [1, 17, 70]), {**c, **c.get("text_config", {})}["vocab_size"], v.get("greedy", 24 if max(v.get("prompts", [1])) < 400 else 8)))
        gold["loading"] = {k: sorted(map(str, x)) for k, x in loading.items() if x}
    gold["reference"] = f"transformers {transformers.__version__}, torch {torch.__version__}"
    shutil.rmtree(config_dir)
    if v.get("publish"):
        v["publish"](d)
    if v.get("gguf"):
        write_gguf(d, c, v)
    (d / "golden.json").write_text(json.dumps(gold))


# ---- gguf ---------------------------------------------------------------------------------------------------------------------

def quantized(name, ndim):
    return ndim > 1 and not name.endswith(("gate.weight", "gate.wg.weight", "router.weight", "router.proj.weight", "bias",
                                             "conv1d.weight", "conv.conv.weight", "A_log"))


def round_trip(model, kind, c, joined):
    """The weights as the GGUF file holds them."""
    import gguf
    import make_gguf
    import torch
    with torch.no_grad():
        for name, p in model.named_parameters():
            if kind != "f32" and quantized(name, p.ndim) and ".visual." not in name and ".vision_model." not in name:
                def there_and_back(w):
                    t = make_gguf.fitting(make_gguf.type_of(kind, name), w.shape[-1])
                    return gguf.quants.dequantize(make_gguf.quantise(w, t), t)

                turned = name.endswith(("experts.gate_up_proj", "experts.down_proj")) and model.config.model_type == "gpt_oss"
                if name.endswith("kv_b_proj.weight") and not joined:
                    w = make_gguf.join_kv_b(*(there_and_back(x) for x in make_gguf.split_kv_b(p.numpy(), c)))
                else:
                    w = there_and_back((p.transpose(1, 2) if turned else p).numpy())
                w = torch.from_numpy(w)
                p.copy_(w.transpose(1, 2) if turned else w)


def write_gguf(d, c, v):
    import make_gguf
    make_gguf.main(d, d / "model.gguf", v["gguf"], v.get("gguf_keys"), v.get("gguf_tensors"), v.get("gguf_joined", False))
    for f in d.glob("*.safetensors*"):
        f.unlink()


# ---- random -------------------------------------------------------------------------------------------------------------------

def random_variant(arch, seed):
    r = random.Random(f"{arch}{seed}")
    kv = r.choice([1, 1, 2, 2, 3, 4])
    heads = kv * r.randint(1, 8)
    c = {"num_key_value_heads": kv, "num_attention_heads": heads, "head_dim": 2 * r.randint(1, 40),
         "hidden_size": heads * r.randint(max(1, 24 // heads), max(2, 120 // heads)), "intermediate_size": r.randint(5, 150),
         "num_hidden_layers": r.randint(1, 4), "vocab_size": r.randint(20, 400), "rms_norm_eps": r.choice([1e-5, 1e-6, 1e-3]),
         "rope_theta": r.choice([100.0, 10000.0, 1e6, 123456.7]), "tie_word_embeddings": r.random() < 0.4}
    kind = r.choice(["none", "none", "linear", "yarn", "llama3"])
    original = r.choice([16, 32, 64, 256])
    if kind == "linear":
        c["rope_scaling"] = {r.choice(["type", "rope_type"]): kind, "factor": r.choice([1.0, 2.0, 3.7])}
    elif kind == "yarn":
        c["rope_scaling"] = {r.choice(["type", "rope_type"]): kind, "factor": r.choice([2.0, 4.0, 40.0]),
                             "original_max_position_embeddings": original}
        for key, values in {"beta_fast": [16, 32.0], "beta_slow": [1, 2.5], "mscale": [1.0, 0.7], "mscale_all_dim": [1.0, 0.4],
                            "attention_factor": [1.0, 0.6], "truncate": [True, False]}.items():
            if r.random() < 0.4:
                c["rope_scaling"][key] = r.choice(values)
    elif kind == "llama3":
        c["rope_scaling"] = {"rope_type": kind, "factor": r.choice([2.0, 8.0]), "low_freq_factor": r.choice([1.0, 0.5]),
                             "high_freq_factor": r.choice([4.0, 2.0]), "original_max_position_embeddings": original}
    if arch in ("mistral", "mixtral"):
        c["sliding_window"] = r.choice([None, 3, 20, 64])
    if arch in ("qwen2", "qwen3", "qwen3_moe"):
        c.update(use_sliding_window=r.random() < 0.5, sliding_window=r.choice([3, 20, 64]), max_window_layers=r.randint(0, 4))
    if arch in ("llama", "qwen3", "qwen3_moe"):
        c["attention_bias"] = r.random() < 0.3
    if arch == "gpt_oss":
        c["sliding_window"] = r.choice([3, 20, 64])
        c["attention_bias"] = r.random() < 0.7
        if r.random() < 0.5:
            c["swiglu_limit"] = r.choice([0.5, 2.0, 7.0])
        if r.random() < 0.5:
            c["layer_types"] = [r.choice(["sliding_attention", "full_attention"]) for _ in range(c["num_hidden_layers"])]
    if arch in ("mixtral", "gpt_oss"):
        n = r.choice([2, 3, 5, 8, 17])
        c.update(num_local_experts=n, num_experts_per_tok=r.randint(1, min(n, 8)))
    if arch == "qwen3_moe":
        n = r.choice([2, 3, 5, 8, 17, 60])
        c.update(num_experts=n, num_experts_per_tok=r.randint(1, min(n, 8)), moe_intermediate_size=r.randint(3, 70),
                 norm_topk_prob=r.random() < 0.5, decoder_sparse_step=r.choice([1, 1, 2]),
                 mlp_only_layers=sorted(r.sample(range(4), r.choice([0, 0, 1]))))
    gguf = r.choice(["bf16", "f16", "f32", "q8_0"]) if r.random() < 0.3 else None
    if gguf:  # what such a file can say
        c["rope_scaling"] = {k: x for k, x in c.get("rope_scaling", {}).items() if not k.startswith(("mscale", "attention", "truncate", "beta"))}
        usual = {"norm_topk_prob": True, "use_sliding_window": False, "decoder_sparse_step": 1, "mlp_only_layers": []}
        c.update({k: x for k, x in usual.items() if k in c})
        if arch == "gpt_oss":
            c = {k: x for k, x in c.items() if k not in ("swiglu_limit", "layer_types")} | {"attention_bias": True}
            if c["rope_scaling"].get("rope_type", c["rope_scaling"].get("type")) == "yarn":
                c["rope_scaling"]["truncate"] = False
        if gguf == "q8_0":
            c.update({k: 32 * (c[k] // 32 + 1) for k in ("hidden_size", "intermediate_size", "moe_intermediate_size") if k in c})
            c.update(num_attention_heads=4, num_key_value_heads=r.choice([1, 2, 4]), head_dim=r.choice([8, 16, 24, 40]))
    variant(f"random-{arch}-{seed}", arch, cfg=c, gguf=gguf, dtype=r.choice(["bfloat16", "bfloat16", "float16", "float32"]),
            prompts=[1, r.randint(2, 17), r.randint(18, 160)])


# ---- comparing ----------------------------------------------------------------------------------------------------------------

def run(root, test_golden):
    """One process a model: one that dies does not hide the others."""
    good = refused = 0
    bad = []
    for d in sorted(p for p in root.iterdir() if (p / "golden.json").exists()):
        refuse = json.loads((d / "golden.json").read_text())["refuse"]
        p = subprocess.run([test_golden, str(d)], capture_output=True, text=True, timeout=120)
        line = p.stdout.strip().splitlines()[0] if p.stdout.strip() else f"exit {p.returncode}"
        extra = next((x for x in p.stdout.splitlines() if "error:" in x), "")
        ok = " ok: " in line
        if refuse is None and ok:
            worst = float(re.search(r"largest error ([0-9.e+-]+)", line).group(1))
            good += 1
            if worst > 1e-4 or " 0 ties" not in line:
                print("note", line)
        elif refuse is not None and not ok and ("left out:" in line or "FAIL:" in line) and refuse in line and p.returncode == 1:
            refused += 1
        else:
            bad.append(f"{d.name}: {'should be refused (' + refuse + ')' if refuse else ''} {line} {extra}")
    print("\n".join(bad))
    print(f"{good} equal, {refused} refused by name, {len(bad)} not as expected")
    return bool(bad)


def main():
    mode, root = sys.argv[1], pathlib.Path(sys.argv[2])
    if mode == "run":
        sys.exit(run(root, sys.argv[3]))
    fill_variants()
    fill_deepseek()
    variants_families.fill(variant, add_nextn)
    import torch
    torch.set_num_threads(1)  # tiny products: threads only wait for one another
    names = sys.argv[3:] or list(VARIANTS)
    for n in [n for n in names if n.startswith("random:")]:
        names.remove(n)
        for a in (*ARCHS, *DEEPSEEK, *FAMILIES):
            for seed in range(*map(int, n[7:].split("-"))):
                if a in FAMILIES:
                    variants_families.fill_random(variant, a, seed)
                elif a in DEEPSEEK:
                    variants_families.random_deepseek(variant, a, seed)
                else:
                    random_variant(a, seed)
                names.append(f"random-{a}-{seed}")
    for n in names:
        try:
            make(root, n, VARIANTS[n])
        except Exception as e:  # noqa: the others are still wanted
            print(f"{n}: not made: {type(e).__name__}: {str(e)[:300]}", flush=True)


if __name__ == "__main__":
    os.environ["TRANSFORMERS_VERBOSITY"] = os.environ.get("TRANSFORMERS_VERBOSITY", "error")
    main()
