#!/usr/bin/env python3
"""Writes a Hugging Face model directory as one GGUF file with the `gguf` package: test data from somebody else's writer.

usage: make_gguf.py DIR OUT.gguf [bf16|f16|f32|q8_0|q4_0|...|mxfp4|q4_k|q4_k_m|q5_k_m|q2_k_m|q3_k_m|iq4_xs_m|iq]

Names come from the package's own map; experts are stacked and the llama family's Q and K rows are permuted, as llama.cpp's
converter does.
"""
import json
import pathlib
import re
import sys
import zlib

import gguf
import numpy as np


def read_safetensors(path):
    raw = path.read_bytes()
    n = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:8 + n])
    for name, t in header.items():
        if name == "__metadata__":
            continue
        begin, end = t["data_offsets"]
        data = raw[8 + n + begin:8 + n + end]
        if t["dtype"] == "BF16":
            data = (np.frombuffer(data, dtype=np.uint16).astype(np.uint32) << 16).view(np.float32)
        else:
            data = np.frombuffer(data, dtype={"F16": np.float16, "F32": np.float32}[t["dtype"]]).astype(np.float32)
        yield name, data.reshape(t["shape"])


def type_of(kind, name):
    """Of a tensor by its Hugging Face name. The mixtures are about llama.cpp's: more bits for V, down and the two ends."""
    layer = re.search(r"layers\.(\d+)\.", name)
    if kind == "iq":  # all of them
        kind = next((t for of, t in ((r"q_proj", "iq2_xs"), (r"k_proj", "iq2_s"), (r"v_proj|o_proj", "iq3_xxs"), (r"down_proj|\.w2\.", "iq2_xxs iq3_s"),
                                     (r"experts", "iq1_s iq1_m")) if re.search(of, name)), "q6_k").split()
        kind = kind[int(layer[1]) % 2 if len(kind) > 1 else 0]
    if kind.endswith("_m") and kind != "iq1_m":
        more = not layer or (int(layer[1]) % 2 == 0 and re.search(r"v_proj|down_proj|\.w2\.", name))
        kind = kind[:-2] if not more else {"q2_k_m": "q3_k", "q3_k_m": "q4_k"}.get(kind, "q6_k")
    return gguf.GGMLQuantizationType[kind.upper()]


def fitting(t, cols):
    """Rows that are no whole number of blocks get smaller ones."""
    return t if cols % gguf.GGML_QUANT_SIZES[t][0] == 0 else gguf.GGMLQuantizationType.Q8_0


def split_kv_b(w, c):
    """kv_b_proj as llama.cpp's converter stores it: K's part of each head transposed, V's part."""
    heads, nope, v = c["num_attention_heads"], c["qk_nope_head_dim"], c["v_head_dim"]
    w = w.reshape(heads, nope + v, -1)
    return np.ascontiguousarray(w[:, :nope].swapaxes(1, 2)), np.ascontiguousarray(w[:, nope:])


def join_kv_b(k, v):
    return np.concatenate([k.swapaxes(1, 2), v], axis=1).reshape(-1, v.shape[2])


def crumbs(n):
    """Numbers of two bits as Q2_K and Q3_K have them."""
    n = n.reshape(-1, 2, 4, 32)
    return (n[:, :, 0] | n[:, :, 1] << 2 | n[:, :, 2] << 4 | n[:, :, 3] << 6).reshape(-1, 64)


def any_blocks(w, t):
    """Blocks of bits that only their weights decide on, with their deviation: for random weights as good as any."""
    block, size = gguf.GGML_QUANT_SIZES[t]
    of = w.reshape(-1, block)
    raw = np.stack([np.random.default_rng(zlib.crc32(row.tobytes())).integers(0, 256, size, dtype=np.uint8) for row in of])

    def with_scale(d):
        bits = d.astype(np.float16).view(np.uint16)
        if t == gguf.GGMLQuantizationType.IQ1_M:
            for i in range(4):
                raw[:, 49 + 2 * i] = raw[:, 49 + 2 * i] & 15 | (bits >> 4 * i & 15) << 4
        else:
            raw[:, :2] = bits[:, None].view(np.uint8)
        return raw

    plain = gguf.quants.dequantize(with_scale(np.ones(len(of))), t)
    return with_scale(of.std(1) / plain.std(1)).reshape(*w.shape[:-1], -1)


def quantise(w, t):
    """What the package cannot write: plain roundings, good enough for random weights."""
    q = gguf.GGMLQuantizationType
    w = np.ascontiguousarray(w, dtype=np.float32)
    if t in (q.IQ2_XXS, q.IQ2_XS, q.IQ2_S, q.IQ3_XXS, q.IQ3_S, q.IQ1_S, q.IQ1_M):
        return any_blocks(w, t)
    if t not in (q.IQ4_NL, q.IQ4_XS, q.Q2_K, q.Q3_K, q.Q4_K, q.Q5_K, q.Q6_K):
        return gguf.quants.quantize(w, t)
    half = lambda a: a.astype(np.float16).view(np.uint8)
    values = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113])
    if t == q.IQ4_NL:
        b = w.reshape(-1, 32)
        d = np.maximum(np.abs(b).max(1, keepdims=True) / 127, 1e-7)
        n = np.abs((b / d)[:, :, None] - values).argmin(2).astype(np.uint8)
        out = np.concatenate([half(d), n[:, :16] | n[:, 16:] << 4], 1)
    elif t == q.IQ4_XS:
        b = w.reshape(-1, 8, 32)
        scale = np.abs(b).max(2) / 127
        d = np.maximum(scale.max(1, keepdims=True) / 31, 1e-7).astype(np.float16).astype(np.float32)
        sc = np.rint(scale / d).clip(1, 31)
        n = np.abs((b / (d * sc)[:, :, None])[..., None] - values).argmin(3).astype(np.uint8)
        sc = sc.astype(np.uint16) + 32
        high = sum((sc[:, g] >> 4) << 2 * g for g in range(8)).astype(np.uint16)[:, None].view(np.uint8)
        low = (sc[:, 0::2] & 15 | (sc[:, 1::2] & 15) << 4).astype(np.uint8)
        out = np.concatenate([half(d), high, low, (n[:, :, :16] | n[:, :, 16:] << 4).reshape(-1, 128)], 1)
    elif t == q.Q2_K:
        b = w.reshape(-1, 16, 16)
        low, high = np.minimum(b.min(2), 0), b.max(2)
        scale = (high - low) / 3
        d, dmin = (np.maximum(a.max(1, keepdims=True) / 15, 1e-7).astype(np.float16).astype(np.float32) for a in (scale, -low))
        sc, m = (np.rint(a / by).clip(0, 15) for a, by in ((scale, d), (-low, dmin)))
        n = np.rint((b + (dmin * m)[:, :, None]) / np.maximum(d * sc, 1e-12)[:, :, None]).clip(0, 3).astype(np.uint8)
        out = np.concatenate([sc.astype(np.uint8) | m.astype(np.uint8) << 4, crumbs(n), half(d), half(dmin)], 1)
    elif t == q.Q3_K:
        b = w.reshape(-1, 16, 16)
        scale = np.abs(b).max(2) / 4
        d = np.maximum(scale.max(1, keepdims=True) / 31, 1e-7).astype(np.float16).astype(np.float32)
        sc = np.rint(scale / d).clip(1, 31)
        n = (np.rint(b / (d * sc)[:, :, None]).clip(-4, 3) + 4).astype(np.uint8)
        sc = sc.astype(np.uint8) + 32
        high = sc >> 4
        scales = [sc[:, :8] & 15 | (sc[:, 8:] & 15) << 4, high[:, :4] | high[:, 4:8] << 2 | high[:, 8:12] << 4 | high[:, 12:] << 6]
        hmask = sum((n.reshape(-1, 8, 32)[:, g] >> 2) << g for g in range(8)).astype(np.uint8)
        out = np.concatenate([hmask, crumbs(n & 3)] + scales + [half(d)], 1)
    elif t == q.Q6_K:
        b = w.reshape(-1, 16, 16)
        scale = np.abs(b).max(2) / 31
        d = np.maximum(scale.max(1, keepdims=True) / 127, 1e-7)
        sc = np.maximum(np.rint(scale / d), 1)
        n = (np.rint(b / (d * sc)[:, :, None]).clip(-32, 31) + 32).astype(np.uint8).reshape(-1, 2, 4, 32)
        low = np.concatenate([n[:, :, :2] & 15 | (n[:, :, 2:] & 15) << 4], 2).reshape(-1, 128)
        high = n >> 4
        high = (high[:, :, 0] | high[:, :, 1] << 2 | high[:, :, 2] << 4 | high[:, :, 3] << 6).reshape(-1, 64)
        out = np.concatenate([low, high, sc.astype(np.int8).view(np.uint8), half(d)], 1)
    else:
        most = 15 if t == q.Q4_K else 31
        b = w.reshape(-1, 8, 32)
        low, high = np.minimum(b.min(2), 0), b.max(2)
        scale = (high - low) / most
        d, dmin = (np.maximum(a.max(1, keepdims=True) / 63, 1e-7).astype(np.float16).astype(np.float32) for a in (scale, -low))
        sc, m = (np.rint(a / by).clip(0, 63) for a, by in ((scale, d), (-low, dmin)))
        n = np.rint((b + (dmin * m)[:, :, None]) / np.maximum(d * sc, 1e-12)[:, :, None]).clip(0, most).astype(np.uint8)
        sc, m = sc.astype(np.uint8), m.astype(np.uint8)
        scales = np.concatenate([sc[:, :4] | sc[:, 4:] >> 4 << 6, m[:, :4] | m[:, 4:] >> 4 << 6, sc[:, 4:] & 15 | (m[:, 4:] & 15) << 4], 1)
        pairs = (n & 15).reshape(-1, 4, 2, 32)
        parts = [half(d), half(dmin), scales]
        if t == q.Q5_K:
            parts.append(sum((n[:, g] >> 4) << g for g in range(8)).astype(np.uint8))
        out = np.concatenate(parts + [(pairs[:, :, 0] | pairs[:, :, 1] << 4).reshape(-1, 128)], 1)
    return out.reshape(*w.shape[:-1], -1)


def permute(w, heads):
    return w.reshape(heads, 2, w.shape[0] // heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def add_tokenizer(w, t, config, pre="qwen2"):
    """A byte-level BPE tokenizer.json as llama.cpp's converter stores it."""
    added = {a["content"]: a for a in t["added_tokens"]}
    vocab = {**t["model"]["vocab"], **{a["content"]: a["id"] for a in t["added_tokens"]}}
    tokens = [name for name, _ in sorted(vocab.items(), key=lambda item: item[1])]
    kinds = [gguf.TokenType.NORMAL if name not in added else
             gguf.TokenType.CONTROL if added[name]["special"] else gguf.TokenType.USER_DEFINED for name in tokens]
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre(pre)
    w.add_token_list(tokens)
    w.add_token_types(kinds)
    w.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in t["model"]["merges"]])
    if config.get("eos_token"):
        w.add_eos_token_id(vocab[config["eos_token"]])
    w.add_add_bos_token(bool(config.get("add_bos_token")))
    if config.get("chat_template"):
        w.add_chat_template(config["chat_template"])


def add_rope_scaling(w, c, head_dim, more=0):
    """What llama.cpp's converter writes of rope_scaling; Llama 3's bands become a tensor of divisors, with `more` that divide nothing."""
    r = c.get("rope_scaling") or c.get("rope_parameters") or {}
    if not r and c["model_type"] == "gpt_oss":  # as GptOssConfig
        r = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096}
    kind = r.get("rope_type", r.get("type"))
    if kind == "dynamic" and r.get("alpha"):  # the base is the larger one
        w.add_rope_scaling_type(gguf.RopeScalingType.NONE)
        w.add_rope_scaling_factor(1)
    elif kind == "linear":
        w.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        w.add_rope_scaling_factor(r["factor"])
    elif kind == "yarn":
        w.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        w.add_rope_scaling_factor(r["factor"])
        w.add_rope_scaling_orig_ctx_len(r["original_max_position_embeddings"])
    elif kind == "longrope":
        original, ratio = r["original_max_position_embeddings"], c["max_position_embeddings"] / r["original_max_position_embeddings"]
        w.add_rope_scaling_orig_ctx_len(original)
        w.add_rope_scaling_attn_factors((1 + np.log(ratio) / np.log(original)) ** 0.5 if ratio > 1 else 1.0)
        for length in ("long", "short"):
            w.add_tensor(f"rope_factors_{length}.weight", np.array(r[f"{length}_factor"], dtype=np.float32))
    elif kind == "llama3":
        original, low, high = r["original_max_position_embeddings"], r["low_freq_factor"], r["high_freq_factor"]
        divisors = []
        for freq in 1.0 / (c["rope_theta"] ** (np.arange(0, head_dim, 2, dtype=np.float32) / head_dim)):
            turns = original * freq / (2 * np.pi)
            smooth = min(max((turns - low) / (high - low), 0), 1) if high > low else float(turns >= low)
            divisors.append(1 / ((1 - smooth) / r["factor"] + smooth))
        w.add_tensor("rope_freqs.weight", np.array(divisors + [1.0] * more, dtype=np.float32))


def untangle(name, data):
    """gpt-oss's experts: rows again, gate and up apart."""
    kind = ".bias" if name.endswith("_bias") else ".weight"
    stem, data = name.removesuffix("_bias"), data if kind == ".bias" else data.transpose(0, 2, 1)
    if "gate_up" not in stem:
        return [(stem + kind, data)]
    return [(stem.replace("gate_up", part) + kind, data[:, i::2]) for i, part in enumerate(("gate", "up"))]


NEXTN = ("glm4_moe_lite", "glm_moe_dsa", "step3p5")  # converters keep the layers behind the last one


def add_latent_router(w, c):
    w.add_expert_weights_scale(c["routed_scaling_factor"])
    if "norm_topk_prob" in c or "moe_renormalize" in c:
        w.add_expert_weights_norm(bool(c.get("norm_topk_prob", c.get("moe_renormalize"))))
    sigmoid = c["model_type"] in ("deepseek_v3", "kimi_linear", "deepseek_v32", "glm_moe_dsa")
    if c["model_type"] in NEXTN and c.get("num_nextn_predict_layers"):
        w.add_nextn_predict_layers(c["num_nextn_predict_layers"])
    if c["model_type"] not in ("glm4_moe_lite", "mistral4"):  # whose config.json does not name it, and so the converter does not either
        w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID if sigmoid else gguf.ExpertGatingFuncType.SOFTMAX)
    groups = c.get("n_group") or c.get("num_expert_group") or 1
    if groups > 1:
        w.add_expert_group_count(groups)
        w.add_expert_group_used_count(c["topk_group"])


def add_latent(w, c, joined):
    """Keys of deepseek2. Joined: as files were before K's and V's parts were stored apart."""
    nope, rope, v, rank = (c[k] for k in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "kv_lora_rank"))
    w.add_head_count_kv(c["num_attention_heads"] if joined else 1)
    w.add_key_length(nope + rope if joined else rank + rope)
    w.add_value_length(v if joined else rank)
    if not joined:
        w.add_key_length_mla(nope + rope)
        w.add_value_length_mla(v)
    w.add_kv_lora_rank(rank)
    if c.get("q_lora_rank"):
        w.add_q_lora_rank(c["q_lora_rank"])
    w.add_rope_dimension_count(rope)
    w.add_leading_dense_block_count(c.get("first_k_dense_replace", c["num_hidden_layers"]))
    w.add_expert_shared_count(c.get("n_shared_experts", c.get("num_shared_experts", 0)))
    if "n_routed_experts" not in c and "num_experts" not in c:  # dense
        w.add_expert_feed_forward_length(c["intermediate_size"])
    else:
        add_latent_router(w, c)
    r = c.get("rope_scaling") or c.get("rope_parameters") or {}
    if r.get("mscale_all_dim") is not None:
        w.add_rope_scaling_yarn_log_mul(0.1 * r["mscale_all_dim"])


def add_index(w, c):
    """Keys of an indexer, `types` but for files that were made before there were such."""
    w.add_uint32(gguf.Keys.Attention.Indexer.HEAD_COUNT.format(arch=w.arch), c["index_n_heads"])
    w.add_uint32(gguf.Keys.Attention.Indexer.KEY_LENGTH.format(arch=w.arch), c["index_head_dim"])
    w.add_uint32(gguf.Keys.Attention.Indexer.TOP_K.format(arch=w.arch), c["index_topk"])
    if c.get("indexer_types"):
        w.add_array(f"{w.arch}.attention.indexer.types", [t == "full" for t in c["indexer_types"]])


def add_kda(w, c):
    """Keys of Kimi-Linear beyond those of latent attention."""
    linear = c["linear_attn_config"]
    w.add_head_count_kv([c["num_key_value_heads"] if i + 1 in linear["full_attn_layers"] else 0 for i in range(c["num_hidden_layers"])])
    w.add_ssm_conv_kernel(linear["short_conv_kernel_size"])
    w.add_kda_head_dim(linear["head_dim"])


def kda_tensor(name, w):
    """(Hugging Face's name, values) of one of its tensors as llama.cpp's converter stores it."""
    if name.endswith("_conv1d.weight"):
        return name, w.reshape(1, w.shape[0], 1, w.shape[-1])
    if name.endswith(".A_log"):
        return name, -np.exp(w.reshape(-1, 1))
    return name.replace(".dt_bias", ".dt_proj.bias"), w


NEMOTRON = ("nemotron_h", "nemotron_h_moe")


def add_nemotron(w, c, arch):
    """Layers have one part each: which, lists tell."""
    kinds = c.get("hybrid_override_pattern")
    w.add_head_count_kv([c["num_key_value_heads"] if k == "*" else 0 for k in kinds])
    w.add_key_length(c["head_dim"])
    w.add_value_length(c["head_dim"])
    w.add_feed_forward_length([{"E": c["moe_intermediate_size"], "-": c["intermediate_size"]}.get(k, 0) for k in kinds])
    w.add_ssm_conv_kernel(c["conv_kernel"])
    w.add_ssm_state_size(c["ssm_state_size"])
    w.add_ssm_group_count(c["n_groups"])
    w.add_ssm_inner_size(c["mamba_num_heads"] * c["mamba_head_dim"])
    w.add_ssm_time_step_rank(c["mamba_num_heads"])
    w.add_rope_dimension_count(c["head_dim"])
    w.add_rope_scaling_finetuned(False)
    if arch == "nemotron_h_moe":
        w.add_expert_shared_feed_forward_length(c["moe_shared_expert_intermediate_size"])
        w.add_expert_shared_count(c["n_shared_experts"])
        w.add_expert_weights_norm(c["norm_topk_prob"])
        w.add_expert_weights_scale(c["routed_scaling_factor"])
        w.add_expert_group_count(c["n_group"])
        w.add_expert_group_used_count(c["topk_group"])


def add_ssm(w, c):
    """Keys of Mamba2."""
    w.add_ssm_conv_kernel(c["mamba_d_conv"])
    w.add_ssm_state_size(c["mamba_d_state"])
    w.add_ssm_group_count(c["mamba_n_groups"])
    w.add_ssm_inner_size(c["mamba_expand"] * c["hidden_size"])
    w.add_ssm_time_step_rank(c["mamba_n_heads"])
    w.add_rope_scaling_finetuned(c.get("position_embedding_type") == "rope")


def ssm_tensor(name, w, c):
    """(Hugging Face's name, values) of one of Mamba2's tensors as llama.cpp's converter stores it."""
    part = name.split(".mamba." if ".mamba." in name else ".mixer.")[1]
    if part == "conv1d.weight":
        return name, w[:, 0]
    if part in ("A_log", "D"):
        return name, (-np.exp(w) if part == "A_log" else w).reshape(-1, 1)
    if part == "norm.weight":
        return name, w.reshape(c.get("mamba_n_groups") or c["n_groups"], -1)
    return name.replace("dt_bias", "dt_proj.bias" if ".mamba." in name else "dt.bias"), w


def add_family(w, arch, c, head_dim):
    """What llama.cpp's converters write for single families."""
    if arch == "qwen2moe":
        w.add_expert_shared_feed_forward_length(c["shared_expert_intermediate_size"])
    elif arch == "olmoe" and c.get("clip_qkv"):
        w.add_clamp_kqv(c["clip_qkv"])
    elif arch in ("granitemoe", "granitehybrid"):
        if arch == "granitehybrid":
            add_ssm(w, c)
        w.add_attention_scale(c["attention_multiplier"])
        w.add_embedding_scale(c["embedding_multiplier"])
        w.add_residual_scale(c["residual_multiplier"])
        w.add_logit_scale(c["logits_scaling"])
        if c.get("shared_intermediate_size"):
            w.add_expert_shared_feed_forward_length(c["shared_intermediate_size"])
    elif arch == "glm4moe":
        w.add_rope_dimension_count(int(head_dim * c["partial_rotary_factor"]))
        w.add_expert_shared_count(c["n_shared_experts"])
        w.add_leading_dense_block_count(c["first_k_dense_replace"])
        w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
        w.add_expert_weights_scale(c["routed_scaling_factor"])
        w.add_expert_weights_norm(c["norm_topk_prob"])
        w.add_expert_group_count(c["n_group"])
        w.add_expert_group_used_count(c["topk_group"])
    elif arch == "dots1":
        w.add_expert_shared_count(c["n_shared_experts"])
        w.add_leading_dense_block_count(c["first_k_dense_replace"])
        w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
        w.add_expert_weights_scale(c["routed_scaling_factor"])
        w.add_expert_weights_norm(c["norm_topk_prob"])
    elif arch == "bailingmoe2":
        w.add_rope_dimension_count(int(head_dim * c["partial_rotary_factor"]))
        w.add_leading_dense_block_count(c["first_k_dense_replace"])
        w.add_expert_shared_feed_forward_length(c["moe_intermediate_size"] * c["num_shared_experts"])
        w.add_expert_weights_scale(c["routed_scaling_factor"])
        w.add_expert_shared_count(c["num_shared_experts"])
        w.add_expert_weights_norm(c["norm_topk_prob"])
        w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
        w.add_expert_group_count(c["n_group"])
        w.add_expert_group_used_count(c["topk_group"])
    elif arch == "afmoe":
        w.add_expert_shared_count(c["num_shared_experts"])
        w.add_leading_dense_block_count(c["num_dense_layers"])
        w.add_expert_weights_norm(True)
        w.add_expert_weights_scale(c["route_scale"])
    elif arch == "hunyuan-moe":
        w.add_expert_shared_feed_forward_length(c["intermediate_size"])
        w.add_expert_feed_forward_length(c["intermediate_size"])
        w.add_expert_shared_count(1)
    elif arch == "qwen3vlmoe":
        w.add_rope_dimension_sections([*(c.get("rope_scaling") or {}).get("mrope_section", [6, 5, 5]), 0])
        w.add_num_deepstack_layers(1)
    elif arch == "ernie4_5-moe":
        w.add_interleave_moe_layer_step(c["moe_layer_interval"])
        w.add_leading_dense_block_count(c["moe_layer_start_index"])
        w.add_expert_shared_count(c["moe_num_shared_experts"])
        w.add_expert_shared_feed_forward_length(c["intermediate_size"] // c["num_key_value_heads"])
    elif arch == "llama4":
        w.add_interleave_moe_layer_step(c["interleave_moe_layer_step"])
        w.add_expert_feed_forward_length(c["intermediate_size"])
        w.add_rope_dimension_count(head_dim)
    elif arch == "lfm2moe":
        w.add_leading_dense_block_count(c["num_dense_layers"])
        w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
        w.add_expert_weights_scale(c["routed_scaling_factor"])
        w.add_shortconv_l_cache(c["conv_L_cache"])
    elif arch == "phimoe":
        w.add_rope_dimension_count(head_dim)
    elif arch == "minimax-m2":
        w.add_expert_feed_forward_length(c["intermediate_size"])
        told = c.get("rope_parameters")  # as engine/model/rope.c has it
        w.add_rope_dimension_count(int(head_dim * told.get("partial_rotary_factor", 1)) if told else c.get("rotary_dim", head_dim))
        w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)


def add_gemma4(w, c):
    """Keys by kinds of layers; the frequencies of what layers without a window do not rotate are divided by much."""
    sliding = [t == "sliding_attention" for t in c["layer_types"]]
    full, ropes = c["global_head_dim"], c.get("rope_parameters") or {}
    w.add_shared_kv_layers(c.get("num_kv_shared_layers", 0))
    w.add_embedding_length_per_layer_input(c["hidden_size_per_layer_input"])
    w.add_sliding_window_pattern(sliding)
    w.add_key_length(full)
    w.add_value_length(full)
    w.add_key_length_swa(c["head_dim"])
    w.add_value_length_swa(c["head_dim"])
    if c.get("num_global_key_value_heads") is None:
        w.add_head_count_kv(c["num_key_value_heads"])
    else:
        w.add_head_count_kv([c["num_key_value_heads"] if s else c["num_global_key_value_heads"] for s in sliding])
    w.add_rope_dimension_count(full)
    w.add_rope_dimension_count_swa(c["head_dim"])
    w.add_rope_freq_base(ropes.get("full_attention", {}).get("rope_theta", 1e6))
    w.add_rope_freq_base_swa(ropes.get("sliding_attention", {}).get("rope_theta", 1e4))
    if c.get("final_logit_softcapping"):
        w.add_final_logit_softcapping(c["final_logit_softcapping"])
    rotated = int(full * ropes.get("full_attention", {}).get("partial_rotary_factor", 0.25) / 2)
    w.add_tensor("rope_freqs.weight", np.array([1.0] * rotated + [1e30] * (full // 2 - rotated), dtype=np.float32))


def add_step(w, c):
    """Keys of Step-3.5: what its config.json says by kinds of layers, lists by layers; divisors of whole heads."""
    sliding = [t == "sliding_attention" for t in c["layer_types"]]
    other, head_dim = c["attention_other_setting"], c["head_dim"]
    assert c["partial_rotary_factors"] == [1.0 if s else 0.5 for s in sliding]
    w.kv_data[0].pop("step35.attention.head_count")
    w.add_head_count([other["num_attention_heads"] if s else c["num_attention_heads"] for s in sliding])
    w.add_head_count_kv([c["num_attention_groups"]] * len(sliding))
    w.add_sliding_window_pattern(sliding)
    w.add_key_length(head_dim)
    w.add_value_length(head_dim)
    w.add_rope_freq_base(c["rope_theta"][sliding.index(False)])
    w.add_rope_freq_base_swa(c["rope_theta"][sliding.index(True)])
    w.add_expert_shared_feed_forward_length(c["share_expert_dim"])
    w.add_expert_weights_scale(c["moe_router_scaling_factor"])
    w.add_expert_weights_norm(c["norm_expert_weight"])
    w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    w.add_leading_dense_block_count(int(c["moe_layers_enum"].split(",")[0]))
    w.add_moe_every_n_layers(c["moe_every_n_layer"])
    w.add_swiglu_clamp_exp([float(x or 0) for x in c["swiglu_limits"]])
    w.add_swiglu_clamp_shexp([float(x or 0) for x in c["swiglu_limits_shared"]])
    if c.get("num_nextn_predict_layers"):
        w.add_nextn_predict_layers(c["num_nextn_predict_layers"])
    if c.get("rope_scaling"):
        rotated = {**c, "rope_theta": c["rope_theta"][sliding.index(False)]}
        add_rope_scaling(w, rotated, head_dim // 2, head_dim // 4)


def add_gemma4_tokenizer(w, n):
    """Names of n tokens, as many of them as in a published file as matter to who reads it."""
    control = ["<pad>", "<eos>", "<bos>", "<unk>", "<|turn>", "<turn|>", "<|tool_response>"]
    tokens = control + ["\u2581", "a", "b", "ab"]
    tokens += [f"t{i}" for i in range(len(tokens), n)]
    w.add_tokenizer_model("gemma4")
    w.add_token_list(tokens)
    w.add_token_types([gguf.TokenType.CONTROL if t in control[:-1] else gguf.TokenType.USER_DEFINED if t in control else
                       gguf.TokenType.NORMAL for t in tokens])
    w.add_token_merges(["a b"])
    w.add_eos_token_id(1)
    w.add_bos_token_id(2)
    w.add_add_space_prefix(False)
    w.add_add_bos_token(True)


def add_phi_tokenizer(w, n):
    """The same for Phi-3.5-MoE, whose files name <|endoftext|> as the end."""
    control = ["<unk>", "<s>", "</s>", "<|endoftext|>", "<|assistant|>", "<|end|>", "<|user|>"]
    tokens = control + ["\u2581", "a", "b"]
    tokens += [f"t{i}" for i in range(len(tokens), n)]
    w.add_tokenizer_model("llama")
    w.add_tokenizer_pre("default")
    w.add_token_list(tokens)
    w.add_token_scores([-float(i) for i in range(n)])
    w.add_token_types([gguf.TokenType.CONTROL if t in control else gguf.TokenType.NORMAL for t in tokens])
    w.add_bos_token_id(1)
    w.add_eos_token_id(3)


def add_delta(w, arch, c):
    """Keys of linear attention."""
    w.add_ssm_conv_kernel(c["linear_conv_kernel_dim"])
    w.add_ssm_state_size(c["linear_key_head_dim"])
    w.add_ssm_group_count(c["linear_num_key_heads"])
    w.add_ssm_time_step_rank(c["linear_num_value_heads"])
    w.add_ssm_inner_size(c["linear_value_head_dim"] * c["linear_num_value_heads"])
    types = c.get("layer_types")
    interval = types.index("full_attention") + 1 if types else c.get("full_attention_interval", 4)
    w.add_key_value(f"{arch}.full_attention_interval", interval, gguf.GGUFValueType.UINT32)
    w.add_rope_dimension_count(int(c["head_dim"] * c.get("partial_rotary_factor", 0.25)))
    w.add_expert_shared_feed_forward_length(c["shared_expert_intermediate_size"])
    if arch == "qwen35moe":
        w.add_rope_dimension_sections([11, 11, 10, 0])


def in_turn(w, axis, c, width):
    """Value heads of `width` along an axis, so that they go through the key heads in turn (llama.cpp's order for Qwen3.5)."""
    nk, nv = c["linear_num_key_heads"], c["linear_num_value_heads"]
    shape = w.shape
    w = w.reshape(*shape[:axis], nk, nv // nk, width, *shape[axis + 1:])
    return np.ascontiguousarray(w.swapaxes(axis, axis + 1)).reshape(shape)


def delta_tensor(name, w, arch, c, joined):
    """[(Hugging Face's name, values)] of one of these models' tensors as llama.cpp's converter stores it."""
    nk, nv, kd, vd = (c["linear_" + k] for k in ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim"))
    part = name.split(".linear_attn.")[-1] if ".linear_attn." in name else None
    if part is None:
        return [(name, w + 1 if name.endswith("norm.weight") else w)]
    if part == "conv1d.weight":
        w = w[:, 0]
    if arch == "qwen35moe":
        qk = 2 * nk * kd
        if part in ("in_proj_qkv.weight", "conv1d.weight"):
            w = np.concatenate([w[:qk], in_turn(w[qk:], 0, c, vd)])
        elif part == "in_proj_z.weight":
            w = in_turn(w, 0, c, vd)
        elif part in ("in_proj_a.weight", "in_proj_b.weight", "A_log", "dt_bias"):
            w = in_turn(w, 0, c, 1)
        elif part == "out_proj.weight":
            w = in_turn(w, 1, c, vd)
    if part == "A_log":
        w = -np.exp(w)
    elif part == "dt_bias":
        name = name.replace("dt_bias", "dt_proj.bias")
    elif part == "in_proj_qkvz.weight" and not joined:
        v = nv // nk * vd
        rows = np.split(w.reshape(nk, -1, w.shape[1]), np.cumsum([kd, kd, v]), axis=1)
        q, k, v, z = (x.reshape(-1, w.shape[1]) for x in rows)
        return [(name.replace("qkvz", "qkv"), np.concatenate([q, k, v])), (name.replace("qkvz", "z"), z)]
    return [(name, w)]


def add_keys(w, arch, keys):
    for key, value in keys.items():
        w.kv_data[0].pop(f"{arch}.{key}", None)
        if isinstance(value, list):
            w.add_array(f"{arch}.{key}", value)
        else:
            kind = {bool: gguf.GGUFValueType.BOOL, int: gguf.GGUFValueType.UINT32, float: gguf.GGUFValueType.FLOAT32}[type(value)]
            w.add_key_value(f"{arch}.{key}", value, kind)


def main(src, out, kind="bf16", keys=None, tensors=None, joined=False):
    """keys: of the architecture, set or replaced; tensors: names of further ones; joined: see add_latent."""
    src = pathlib.Path(src)
    c = json.loads((src / "config.json").read_text())
    c = {**c.get("text_config", {}), **c}
    arch = {"qwen3_moe": "qwen3moe", "mixtral": "llama", "mistral": "llama", "gpt_oss": "gpt-oss", "deepseek_v2": "deepseek2",
            "deepseek_v3": "deepseek2", "qwen2_moe": "qwen2moe", "glm4_moe": "glm4moe", "ernie4_5_moe": "ernie4_5-moe",
            "minimax_m2": "minimax-m2", "glm4_moe_lite": "deepseek2", "youtu": "deepseek2", "mistral4": "mistral4",
            "granitemoeshared": "granitemoe", "qwen3_vl_moe": "qwen3vlmoe", "qwen3_next": "qwen3next", "qwen3_5_moe_text": "qwen35moe",
            "gemma4_text": "gemma4", "hunyuan_v1_moe": "hunyuan-moe", "bailing_moe": "bailingmoe2", "lfm2_moe": "lfm2moe",
            "granitemoehybrid": "granitehybrid", "kimi_linear": "kimi-linear", "deepseek_v32": "deepseek32", "glm_moe_dsa": "glm-dsa",
            "step3p5": "step35", "step3p7": "step35", "llama4_text": "llama4"}.get(c["model_type"], c["model_type"])
    if arch == "nemotron_h" and "E" in c["hybrid_override_pattern"]:
        arch = "nemotron_h_moe"
    heads, kv_heads = c["num_attention_heads"], c["num_key_value_heads"] if arch != "step35" else c["num_attention_groups"]
    head_dim = c.get("head_dim") or c["hidden_size"] // heads
    kv_heads = kv_heads or heads
    experts = 0 if arch == "nemotron_h" else c.get("num_experts") or c.get("num_local_experts") or c.get("n_routed_experts") or c.get("moe_num_experts") or 0
    latent = "kv_lora_rank" in c

    w = gguf.GGUFWriter(out, arch)
    blocks = c["num_hidden_layers"] + (c.get("num_nextn_predict_layers") or 0 if c["model_type"] in NEXTN else 0)
    w.add_block_count(blocks)
    w.add_context_length(c.get("max_position_embeddings") or c["model_max_length"])
    w.add_embedding_length(c["hidden_size"])
    if "intermediate_size" in c and arch not in NEMOTRON:
        w.add_feed_forward_length(c.get("intermediate_size_mlp") or c["intermediate_size"])
    w.add_head_count(heads)
    if latent:
        add_latent(w, c, joined)
        if "index_topk" in c:
            add_index(w, c)
        if arch == "kimi-linear":
            w.kv_data[0].pop("kimi-linear.attention.head_count_kv")
            add_kda(w, c)
    elif arch == "gemma4":
        add_gemma4(w, c)
    elif arch in NEMOTRON:
        add_nemotron(w, c, arch)
    elif arch == "step35":
        add_step(w, c)
    elif arch == "granitehybrid":
        w.add_head_count_kv([kv_heads if t in ("attention", "full_attention") else 0 for t in c["layer_types"]])
        w.add_key_length(head_dim)
    elif arch == "lfm2moe":
        w.add_head_count_kv([kv_heads if t == "full_attention" else 0 for t in c["layer_types"]])
    else:
        w.add_head_count_kv(kv_heads)
        w.add_key_length(head_dim)
    w.add_layer_norm_rms_eps(c["norm_eps"] if arch in ("lfm2moe", *NEMOTRON) else c["rms_norm_eps"])
    if arch not in ("gemma4", "step35"):
        scaled = c.get("rope_scaling") or {}
        stretch = (scaled.get("alpha") or 1) ** (head_dim / (head_dim - 2)) if arch == "hunyuan-moe" and head_dim > 2 else 1
        w.add_rope_freq_base((c.get("rope_parameters") or c)["rope_theta"] * stretch)
    if experts:
        w.add_expert_count(experts)
        picks = c.get("num_experts_per_tok") or c.get("num_experts_per_token") or c.get("top_k_experts") or c.get("moe_topk") or c.get("moe_top_k") or c["moe_k"]
        w.add_expert_used_count(picks[0] if isinstance(picks, list) else picks)
        if ("moe_intermediate_size" in c or arch == "gpt-oss") and arch != "hunyuan-moe":
            w.add_expert_feed_forward_length(c.get("moe_intermediate_size") or c["intermediate_size"])
    add_family(w, arch, c, head_dim)
    delta = arch in ("qwen3next", "qwen35moe")
    if delta:
        add_delta(w, arch, c)
    if c.get("sliding_window") and c.get("use_sliding_window", True):
        w.add_sliding_window(c["sliding_window"])
    if arch == "gemma4":
        add_gemma4_tokenizer(w, c["vocab_size"])
    elif arch != "step35":
        add_rope_scaling(w, c, head_dim)
    if arch == "phimoe":
        add_phi_tokenizer(w, c["vocab_size"])
    add_keys(w, arch, keys or {})
    for name in tensors or ():
        w.add_tensor(name, np.ones(head_dim, dtype=np.float32))

    if (src / "tokenizer.json").exists():
        add_tokenizer(w, json.loads((src / "tokenizer.json").read_text()), json.loads((src / "tokenizer_config.json").read_text()))

    names = gguf.get_tensor_name_map(
        {v: k for k, v in gguf.MODEL_ARCH_NAMES.items()}[{"deepseek32": "glm-dsa"}.get(arch, arch)], blocks)  # which the package does not know

    def put(name, data, source):
        matrix = data.ndim > 1 and "ffn_gate_inp" not in name and "ssm_conv1d" not in name and "shortconv.conv" not in name and not name.endswith(("ssm_a", "ssm_d", "ssm_norm.weight")) and not name.endswith("bias")
        t = type_of(kind, source) if matrix else gguf.GGMLQuantizationType.F32
        t = fitting(t, data.shape[-1])
        w.add_tensor(name, quantise(data, t), raw_dtype=t)

    stacks = {}
    for path in sorted(src.glob("*.safetensors")):
        for name, data in read_safetensors(path):
            layer = name.split("layers.")[1].split(".")[0] if "layers." in name else None
            name = name.replace("model.language_model.", "model.")
            if name.startswith("model.visual."):
                continue
            if name.endswith(".shared_mlp.input_linear.weight"):
                half = data.shape[0] // 2
                put(f"blk.{layer}.ffn_gate_shexp.weight", data[:half], name)
                put(f"blk.{layer}.ffn_up_shexp.weight", data[half:], name)
                continue
            if name.endswith(".shared_mlp.output_linear.weight"):
                put(f"blk.{layer}.ffn_down_shexp.weight", data, name)
                continue
            if delta and (".linear_attn." in name or name.endswith("norm.weight")):
                fixed = {"in_proj_qkv.": "attn_qkv.weight", "in_proj_z.": "attn_gate.weight", "A_log": "ssm_a"}
                for name, data in delta_tensor(name, data, arch, c, joined):
                    own = next((x for k, x in fixed.items() if k in name), None)
                    put(f"blk.{layer}.{own}" if own else names.get_name(name, try_suffixes=(".weight", ".bias")), data, name)
                continue
            if name.endswith(".mlp.experts.gate_up_proj") and arch in ("qwen3vlmoe", "qwen35moe"):
                half = data.shape[1] // 2
                put(f"blk.{layer}.ffn_gate_exps.weight", data[:, :half], name)
                put(f"blk.{layer}.ffn_up_exps.weight", data[:, half:], name)
                continue
            if name.endswith(".mlp.experts.down_proj") and arch in ("qwen3vlmoe", "qwen35moe"):
                put(f"blk.{layer}.ffn_down_exps.weight", data, name)
                continue
            if arch == "llama4" and name.endswith((".experts.gate_up_proj", ".experts.down_proj")):  # rows again, gate and up apart
                data = data.transpose(0, 2, 1)
                parts = {"down": data} if "down" in name else dict(zip(("gate", "up"), np.split(data, 2, axis=1)))
                for part, x in parts.items():
                    put(names.get_name(f"{name.rsplit('.', 1)[0]}.{part}_proj") + ".weight", np.ascontiguousarray(x), name)
                continue
            if name.endswith(".block_sparse_moe.input_linear.weight"):
                half = data.shape[1] // 2
                put(f"blk.{layer}.ffn_gate_exps.weight", data[:, :half], name)
                put(f"blk.{layer}.ffn_up_exps.weight", data[:, half:], name)
                continue
            if name.endswith((".router.scale", ".router.per_expert_scale")):
                put(f"blk.{layer}.{'ffn_gate_inp' if name.endswith('router.scale') else 'ffn_down_exps'}.scale", data, name)
                continue
            if name.endswith(".layer_scalar"):
                put(f"blk.{layer}.layer_output_scale.weight", data, name)
                continue
            if arch == "step35":
                data = data + 1 if name.endswith("norm.weight") else data
                if name.endswith(".moe.router_bias"):
                    put(f"blk.{layer}.exp_probs_b.bias", data, name)
                    continue
            if name.endswith("shared_expert_gate.weight"):
                data = data[0]
            if arch == "granitehybrid" and ".mamba." in name:
                name, data = ssm_tensor(name, data, c)
                own = next((x for k, x in {"A_log": "ssm_a", ".mamba.D": "ssm_d"}.items() if name.endswith(k)), None)
                put(f"blk.{layer}.{own}" if own else names.get_name(name, try_suffixes=(".weight", ".bias")), data, name)
                continue
            if arch == "kimi-linear":
                name, data = kda_tensor(name, data)
                if name.endswith(".A_log"):
                    put(f"blk.{layer}.ssm_a", data, name)
                    continue
            if arch in NEMOTRON:
                if name.endswith(("A_log", ".D", "dt_bias", "conv1d.weight", "mixer.norm.weight")):
                    name, data = ssm_tensor(name, data, c)
                own = next((x for k, x in {"A_log": "ssm_a", "mixer.D": "ssm_d"}.items() if name.endswith(k)), None)
                if own:
                    put(f"blk.{layer}.{own}", data, name)
                    continue
                if ".experts." in name:
                    name = name.replace("backbone.", "model.").replace(".mixer.", ".mlp.")
            if arch == "lfm2moe":  # as its converter calls them
                name = name.removeprefix("model.") if ".experts." in name else name
                name += ".bias" if name.endswith("expert_bias") else ""
                data = data[:, 0] if name.endswith("conv.conv.weight") else data
            if name.endswith(("e_score_correction_bias", ".expert_bias")):
                put(f"blk.{layer}.exp_probs_b.bias", data.reshape(-1), name)
                continue
            if arch in ("llama", "granitemoe", "granitehybrid") and name.endswith(("q_proj.weight", "k_proj.weight", "q_proj.bias", "k_proj.bias")):
                data = permute(data, heads if "q_proj" in name else kv_heads)
            if arch == "gpt-oss" and ".experts." in name:
                for name, data in untangle(name, data):
                    put(names.get_name(name, try_suffixes=(".weight", ".bias")), data, name)
            elif name.endswith(".sinks"):
                put(names.get_name(name) + ".weight", data, name)
            elif name.endswith("kv_b_proj.weight") and not joined:
                for part, x in zip(("k", "v"), split_kv_b(data, c)):
                    put(names.get_name(name.replace("kv_b_proj", f"{part}_b_proj"), try_suffixes=(".weight",)), x, name)
            elif name.endswith((".experts.gate_up_proj", ".experts.down_proj")):
                put(names.get_name(name) + ".weight", data, name)
            elif ".experts." in name:
                before, after = name.split(".experts.")
                e, matrix = after.split(".", 1)
                stacks.setdefault(f"{before}.experts.{matrix}", {})[int(e)] = data
            elif layer and int(layer) >= c["num_hidden_layers"] and (part := re.search(r"(eh_proj|enorm|hnorm)", name)):
                put(f"blk.{layer}.nextn.{part[1]}.weight", data, name)
            else:
                put(names.get_name(name, try_suffixes=(".weight", ".bias")), data, name)
    for name, parts in stacks.items():
        put(names.get_name(name, try_suffixes=(".weight",)), np.stack([parts[e] for e in range(experts)]), name)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
