#!/usr/bin/env python3
"""Writes a Hugging Face checkpoint of random weights with a known geometry, for measuring how a model of that size starts.

    make_model.py FOLDER [--geometry qwen3-30b-a3b] [--layers N] [--shard-gb 4] [--jobs N] [--sparse]

The folder gets config.json and safetensors shards (BF16) as Qwen3-MoE checkpoints have them; no tokenizer, so that serving it (of token
ids) takes model.tokenizer = no. Weights are runs of one random buffer with magnitudes between 2^-7 and 2^-5, norms are ones: every row differs, all is finite,
and writing runs at the speed of the memory or disk. --sparse: all zeros, in files that take no space. Standard library only."""
import argparse
import json
import multiprocessing
import os
import struct
import time

GEOMETRIES = {
    "qwen3-30b-a3b": dict(hidden_size=2048, num_hidden_layers=48, num_attention_heads=32, num_key_value_heads=4, head_dim=128,
                          num_experts=128, num_experts_per_tok=8, moe_intermediate_size=768, intermediate_size=6144,
                          vocab_size=151936, max_position_embeddings=262144, rope_theta=10000000.0),
    "tiny": dict(hidden_size=256, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=2, head_dim=32,
                 num_experts=16, num_experts_per_tok=4, moe_intermediate_size=128, intermediate_size=512,
                 vocab_size=4096, max_position_embeddings=4096, rope_theta=10000.0),
}
BUFFER_BYTES = 16 << 20


def tensors(c):
    """Names and shapes in the order in which transformers saves them."""
    d, q, kv = c["hidden_size"], c["num_attention_heads"] * c["head_dim"], c["num_key_value_heads"] * c["head_dim"]
    f = c["moe_intermediate_size"]
    yield "model.embed_tokens.weight", [c["vocab_size"], d]
    for l in range(c["num_hidden_layers"]):
        p = f"model.layers.{l}."
        for name, shape in [("self_attn.q_proj", [q, d]), ("self_attn.k_proj", [kv, d]), ("self_attn.v_proj", [kv, d]),
                            ("self_attn.o_proj", [d, q]), ("self_attn.q_norm", [c["head_dim"]]),
                            ("self_attn.k_norm", [c["head_dim"]]), ("mlp.gate", [c["num_experts"], d])]:
            yield f"{p}{name}.weight", shape
        for e in range(c["num_experts"]):
            for name, shape in [("gate_proj", [f, d]), ("up_proj", [f, d]), ("down_proj", [d, f])]:
                yield f"{p}mlp.experts.{e}.{name}.weight", shape
        yield p + "input_layernorm.weight", [d]
        yield p + "post_attention_layernorm.weight", [d]
    yield "model.norm.weight", [c["hidden_size"]]
    yield "lm_head.weight", [c["vocab_size"], d]


def size_of(shape):
    n = 2
    for dim in shape:
        n *= dim
    return n


def write_shard(path, part, sparse=False):
    """One shard; runs in a process of its own."""
    high = os.urandom(BUFFER_BYTES // 2).translate(bytes(0x3c | (b & 0x80) for b in range(256)))
    buffer = bytearray(os.urandom(BUFFER_BYTES))
    buffer[1::2] = high
    view = memoryview(buffer)
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in part:
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size_of(shape)]}
        at += size_of(shape)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb", buffering=0) as f:
        f.write(struct.pack("<Q", len(text)) + text)
        if sparse:
            f.truncate(8 + len(text) + at)
            return 8 + len(text) + at
        begin = 0
        for name, shape in part:
            left = size_of(shape)
            if "norm" in name:
                f.write(b"\x80\x3f" * (left // 2))
                continue
            while left:
                begin = (begin + 4098) % (BUFFER_BYTES // 2)
                left -= f.write(view[begin:begin + min(left, BUFFER_BYTES - begin)])
    return 8 + len(text) + at


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("folder")
    p.add_argument("--geometry", choices=GEOMETRIES, default="qwen3-30b-a3b")
    p.add_argument("--layers", type=int)
    p.add_argument("--shard-gb", type=float, default=4)
    p.add_argument("--jobs", type=int, default=os.cpu_count())
    p.add_argument("--sparse", action="store_true")
    a = p.parse_args()
    c = dict(GEOMETRIES[a.geometry])
    c["num_hidden_layers"] = a.layers or c["num_hidden_layers"]
    shards, room = [[]], a.shard_gb * 1e9
    for name, shape in tensors(c):
        if shards[-1] and room < size_of(shape):
            shards.append([])
            room = a.shard_gb * 1e9
        shards[-1].append((name, shape))
        room -= size_of(shape)
    os.makedirs(a.folder, exist_ok=True)
    config = dict(model_type="qwen3_moe", architectures=["Qwen3MoeForCausalLM"], hidden_act="silu", rms_norm_eps=1e-6,
                  norm_topk_prob=True, tie_word_embeddings=False, torch_dtype="bfloat16", **c)
    with open(os.path.join(a.folder, "config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f, indent=1)
    names = [f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors" for i in range(len(shards))]
    weight_map = {tensor: name for name, part in zip(names, shards) for tensor, _ in part}
    begun = time.monotonic()
    with multiprocessing.Pool(a.jobs) as pool:
        sizes = pool.starmap(write_shard, [(os.path.join(a.folder, n), s, a.sparse) for n, s in zip(names, shards)], chunksize=1)
    with open(os.path.join(a.folder, "model.safetensors.index.json"), "w", encoding="utf-8") as f:
        json.dump({"metadata": {"total_size": sum(sizes)}, "weight_map": weight_map}, f)
    print(f"{sum(sizes) / 1e9:.1f} GB in {len(shards)} files, {time.monotonic() - begun:.1f} s")


if __name__ == "__main__":
    main()
