"""What variants.py changes in a checkpoint that transformers wrote: single tensors, and the format of all of them."""
import json
import re


def edit_config(d, **kw):
    c = json.loads((d / "config.json").read_text())
    c.update(kw)
    (d / "config.json").write_text(json.dumps(c, indent=1))


def nest(d):
    c = json.loads((d / "config.json").read_text())
    (d / "config.json").write_text(json.dumps({"model_type": "llava", "text_config": c}, indent=1))


def load_file(d):
    from safetensors.torch import load_file as load
    return load(d / "model.safetensors")


def save_file(d, state):
    from safetensors.torch import save_file as save
    save({k: t.contiguous().clone() for k, t in state.items()}, d / "model.safetensors", metadata={"format": "pt"})


def rewrite(d, add=(), drop=(), drop_re=None):
    import torch
    s = load_file(d)
    for name, (dtype, shape) in dict(add).items():
        s[name] = torch.ones(shape, dtype=getattr(torch, dtype))
    save_file(d, {k: t for k, t in s.items() if k not in drop and not (drop_re and re.search(drop_re, k))})


def add_nextn(d):
    """The layer behind the last one that DeepSeek-V3's files have."""
    s = load_file(d)
    n = 1 + max(int(m[1]) for m in (re.match(r"model\.layers\.(\d+)\.", k) for k in s) if m)
    last = {k.replace(f"layers.{n - 1}.", f"layers.{n}."): t for k, t in s.items() if f"layers.{n - 1}." in k}
    save_file(d, {**s, **last, f"model.layers.{n}.enorm.weight": s["model.norm.weight"], f"model.layers.{n}.eh_proj.weight": s["lm_head.weight"]})


def add_head(d):
    s = load_file(d)
    s["lm_head.weight"] = s["model.embed_tokens.weight"].flip(0)
    save_file(d, s)


def q_bias_alone(d):
    import torch
    s = load_file(d)
    n = s["model.layers.0.self_attn.q_proj.weight"].shape[0]
    s.pop("model.layers.0.self_attn.k_proj.bias", None)
    s["model.layers.0.self_attn.q_proj.bias"] = torch.ones(n, dtype=torch.bfloat16)
    save_file(d, s)


def odd_header(d):
    raw = (d / "model.safetensors").read_bytes()
    n = int.from_bytes(raw[:8], "little")
    header = raw[8:8 + n].rstrip() + b" "
    while len(header) % 4 != 1:
        header += b" "
    (d / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + raw[8 + n:])


def mixed_dtypes(d):
    import torch
    s = load_file(d)
    for k in s:
        if "norm" in k or "k_proj" in k:
            s[k] = s[k].float()
        elif "o_proj" in k or "embed" in k:
            s[k] = s[k].half()
    save_file(d, s)


def router_f32(d):
    s = load_file(d)
    save_file(d, {k: t.float() if "mlp.gate.weight" in k else t for k, t in s.items()})


def to_mxfp4(d, shards=False):
    """Experts as openai/gpt-oss-20b has them: each block of 32 rounded to a power of two times e2m1."""
    import torch
    values = torch.tensor([0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6])
    if shards:
        index = json.loads((d / "model.safetensors.index.json").read_text())["weight_map"]
        files = sorted(set(index.values()))
    else:
        files = ["model.safetensors"]
    from safetensors.torch import load_file as load, save_file as save
    weight_map = {}
    for f in files:
        s = load(d / f)
        for k in [k for k in s if k.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
            w = s.pop(k).float().transpose(1, 2)
            b = w.reshape(*w.shape[:2], -1, 32)
            e = (torch.floor(torch.log2(b.abs().amax(-1).clamp(min=1e-30) / 6)) + 1).clamp(-127, 127)
            q = (b[..., None] / torch.exp2(e)[..., None, None] - values).abs().argmin(-1).to(torch.uint8)
            s[k + "_blocks"] = q[..., 0::2] | q[..., 1::2] << 4
            s[k + "_scales"] = (e + 127).to(torch.uint8)
        save({k: t.contiguous().clone() for k, t in s.items()}, d / f, metadata={"format": "pt"})
        weight_map.update({k: f for k in s})
    if shards:
        (d / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    edit_config(d, quantization_config={"quant_method": "mxfp4", "modules_to_not_convert": [
        "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]})


MATRICES = r"((?<!weights)_proj|_mqa|indexer\.w(q_b|k)|query_key_value|shared_mlp\.(input|output)_linear|\.w[123])\.weight$"
def to_nvfp4(d, plain, kind):
    """Matrices in NVFP4; `plain` gets what they stand for, in float32. kind: modelopt, modelopt-file (told in a file of its own), ct."""
    import torch
    from compressed_tensors.compressors.nvfp4.helpers import pack_fp4_to_uint8, unpack_fp4_from_uint8
    from compressed_tensors.quantization import QuantizationArgs
    from compressed_tensors.quantization.lifecycle.forward import dequantize
    from safetensors.torch import save_file as save
    numbers = torch.tensor([0, .5, 1, 1.5, 2, 3, 4, 6, 0, -.5, -1, -1.5, -2, -3, -4, -6])
    args = {"num_bits": 4, "type": "float", "symmetric": True, "strategy": "tensor_group", "group_size": 16, "dynamic": False}
    stored, values = {}, {}
    for name, w in load_file(d).items():
        values[name] = w.float()
        if w.ndim != 2 or w.shape[1] % 16 or not re.search(MATRICES, name):
            stored[name] = w
            continue
        most = w.float().reshape(w.shape[0], -1, 16).abs().amax(2)
        divisor = (448 * 6 / most.max()).reshape(1)
        scale = (most / 6 * divisor).clamp(min=2 ** -9).to(torch.float8_e4m3fn)
        q = numbers[(w.float() / (scale.float() / divisor).repeat_interleave(16, 1).clamp(min=1e-12))[..., None].sub(numbers).abs().argmin(-1)]
        parts = {"weight_packed": pack_fp4_to_uint8(q), "weight_scale": scale, "weight_global_scale": divisor, "input_global_scale": torch.ones(1)}
        if kind == "ct":
            values[name] = dequantize(unpack_fp4_from_uint8(parts["weight_packed"], *w.shape, torch.float32), scale.float(),
                                      args=QuantizationArgs(**args), dtype=torch.float32, global_scale=divisor)
        else:
            factor = 1 / divisor[0]
            parts = {"weight": parts["weight_packed"], "weight_scale": scale, "weight_scale_2": factor, "input_scale": torch.tensor(1.0)}
            values[name] = q * (scale.float() * factor).repeat_interleave(16, 1)
            for of in ("k", "v"):
                if name.endswith(f"{of}_proj.weight"):
                    parts[of + "_scale"] = torch.tensor(1.0)
        stored.update({name.replace("weight", k): t for k, t in parts.items()})
    save({k: t.contiguous().clone() for k, t in stored.items()}, d / "model.safetensors", metadata={"format": "pt"})
    plain.mkdir()
    save(values, plain / "model.safetensors", metadata={"format": "pt"})
    (plain / "config.json").write_text((d / "config.json").read_text())
    told = {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "group_size": 16, "exclude_modules": ["lm_head"]}
    if kind == "modelopt-file":
        (d / "hf_quant_config.json").write_text(json.dumps({"producer": {"name": "modelopt"}, "quantization": told}))
    else:
        edit_config(d, quantization_config={"quant_method": "modelopt", **told} if kind == "modelopt" else {
            "quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized", "quantization_status": "compressed", "ignore": ["lm_head"],
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": args, "input_activations": {**args, "dynamic": "local"}}}})


# kind: how it is stored, columns of a group (0: all), zeros other than 8, and of what type scales are
INT4 = {"ct": ("ct", 32, False, "bfloat16"), "ct-zeros": ("ct", 64, True, "bfloat16"), "ct-channel": ("ct", 0, False, "float16"),
        "gptq": ("gptq", 128, False, "float16"), "gptq-zeros": ("gptq", 32, True, "float16"), "gptq_v2": ("gptq_v2", 96, True, "bfloat16"),
        "awq": ("awq", 128, True, "float16"), "awq-64": ("awq", 64, True, "bfloat16")}


def int4_words(q):
    """[n][8] numbers to [n] words, the first in the lowest bits."""
    import torch
    return sum(q[..., i].long() << 4 * i for i in range(8)).to(torch.int64).to(torch.uint32).view(torch.int32)


def int4_ct(q, scale, zero, by):
    """As compressed-tensors itself packs them, and takes them apart again."""
    import torch
    from compressed_tensors.compressors.pack_quantized.base import PackedQuantizationCompressor
    from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    parts = {"weight_packed": pack_to_int32((q - 8).to(torch.int8), 4), "weight_scale": scale, "weight_shape": torch.tensor(q.shape)}
    if zero is not None:
        parts["weight_zero_point"] = pack_to_int32((zero - 8).to(torch.int8), 4, packed_dim=0)
    args = QuantizationArgs(num_bits=4, type="int", symmetric=zero is None, strategy="group" if by else "channel", group_size=by or None)
    whole = PackedQuantizationCompressor.decompress({**parts, "weight_scale": scale.float()}, QuantizationScheme(targets=["Linear"], weights=args))
    return parts, whole["weight"].float()


def int4_gptq(q, scale, zero, by, less):
    """As AutoGPTQ does: words along the columns of the transposed matrix, zeros less 1 along its rows."""
    import torch
    rows, cols = q.shape
    z = torch.full(scale.shape, 8) if zero is None else zero
    g_idx = torch.arange(cols) // by
    parts = {"qweight": int4_words(q.T.reshape(cols // 8, 8, rows).transpose(1, 2)), "scales": scale.T,
             "qzeros": int4_words((z - less).T.reshape(-1, rows // 8, 8)), "g_idx": g_idx.int(), "bias": torch.zeros(rows, dtype=torch.float16)}
    return parts, (q - z[:, g_idx]).float() * scale.float()[:, g_idx]


def int4_awq(q, scale, zero, by):
    """As AutoAWQ's gemm has them: words along the rows of the transposed matrix, in an order of their own."""
    import torch
    rows, cols = q.shape
    order, group = [0, 2, 4, 6, 1, 3, 5, 7], torch.arange(cols) // by
    parts = {"qweight": int4_words(q.T.reshape(cols, rows // 8, 8)[..., order]), "scales": scale.T,
             "qzeros": int4_words(zero.T.reshape(-1, rows // 8, 8)[..., order])}
    return parts, (q - zero[:, group]).float() * scale.float()[:, group]


def to_int4(d, plain, kind, only):
    """Matrices in four bits; `plain` gets what they stand for, in float32."""
    import torch
    from safetensors.torch import save_file as save
    form, size, zeros, dtype = INT4[kind.replace("-sorted", "")]
    stored, values = {}, {}
    for name, w in load_file(d).items():
        values[name] = w.float()
        rows, cols = w.shape if w.ndim == 2 else (0, 0)
        by = size or cols
        if not rows or rows % 8 or cols % 8 or not re.search(only, name) or not name.endswith("weight"):
            stored[name] = w
            continue
        groups = -(-cols // by)
        padded = torch.nn.functional.pad(w.float(), (0, groups * by - cols)).reshape(rows, groups, by)
        low, high = padded.amin(2).clamp(max=0), padded.amax(2).clamp(min=0)
        scale = ((high - low) / 15 if zeros else padded.abs().amax(2) / 7.5).clamp(min=1e-6).to(getattr(torch, dtype))
        zero = (-low / scale.float()).round().clamp(1 if form == "gptq" else 0, 15).int() if zeros else None
        each = scale.float().repeat_interleave(by, 1)[:, :cols]
        q = (w.float() / each + (8 if zero is None else zero.repeat_interleave(by, 1)[:, :cols])).round().clamp(0, 15).int()
        if form == "ct":
            parts, values[name] = int4_ct(q, scale, zero, size)
        elif form == "awq":
            parts, values[name] = int4_awq(q, scale, zero, by)
        else:
            parts, values[name] = int4_gptq(q, scale, zero, by, int(form == "gptq"))
            if kind.endswith("-sorted"):
                parts["g_idx"] = parts["g_idx"].flip(0)
        if name.replace("weight", "bias") in values:
            parts.pop("bias", None)
        stored.update({name.replace("weight", k): t for k, t in parts.items()})
    save({k: t.contiguous() for k, t in stored.items()}, d / "model.safetensors", metadata={"format": "pt"})
    plain.mkdir()
    save(values, plain / "model.safetensors", metadata={"format": "pt"})
    (plain / "config.json").write_text((d / "config.json").read_text())
    weights = {"num_bits": 4, "type": "int", "symmetric": not zeros, "dynamic": False, "strategy": "group" if size else "channel",
               "group_size": size or None, "actorder": None, "observer": "minmax"}
    edit_config(d, quantization_config={
        "ct": {"quant_method": "compressed-tensors", "format": "pack-quantized", "quantization_status": "compressed", "ignore": ["lm_head", "re:.*self_attn.*"],
               "kv_cache_scheme": None, "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}}},
        "awq": {"quant_method": "awq", "bits": 4, "group_size": size, "version": "gemm", "zero_point": True, "modules_to_not_convert": ["mlp.gate"]},
        "gptq": {"quant_method": "gptq", "bits": 4, "group_size": size or -1, "sym": not zeros, "desc_act": kind.endswith("-sorted"), "true_sequential": True,
                 "checkpoint_format": form, "damp_percent": 0.01}}[form.replace("_v2", "")])


def to_fp8(d, plain, kind):
    """Matrices as published in FP8 (E4M3); `plain` gets what they stand for, in float32. kind: block (DeepSeek), block-bf16 (Qwen), or of
    compressed-tensors: channel, tensor, ct-block; or modelopt, as tensor."""
    import torch
    from safetensors.torch import save_file as save
    stored, values, stacks = {}, {}, {}
    apart = {}
    for name, w in load_file(d).items():
        if w.ndim == 3 and re.search(MATRICES, name):  # experts in one tensor: each has blocks of its own
            stacks[name] = len(w)
            apart.update({f"{i}.{name}": x for i, x in enumerate(w)})
        else:
            apart[name] = w
    for name, w in apart.items():
        values[name] = w.float()
        if w.ndim != 2 or not re.search(MATRICES, name):
            stored[name] = w
            continue
        rows, cols = w.shape
        br, bc = {"channel": (1, cols), "tensor": (rows, cols), "modelopt": (rows, cols)}.get(kind, (128, 128))
        grid = -(-rows // br), -(-cols // bc)
        padded = torch.zeros(grid[0] * br, grid[1] * bc)
        padded[:rows, :cols] = w.float()
        most = padded.reshape(grid[0], br, grid[1], bc).abs().amax((1, 3))
        scale = (most / 448).clamp(min=1e-12)
        if kind in ("block-bf16", "channel"):
            scale = scale.bfloat16()
        each = scale.float().repeat_interleave(br, 0).repeat_interleave(bc, 1)[:rows, :cols]
        q = (w.float() / each).to(torch.float8_e4m3fn)
        stored[name] = q
        stored[name.replace("weight", "weight_scale_inv" if kind.startswith("block") else "weight_scale")] = \
            scale.reshape(1) if kind == "tensor" else scale.reshape(()) if kind == "modelopt" else scale
        if kind in ("tensor", "modelopt"):
            stored[name.replace("weight", "input_scale")] = torch.ones(1)
        if kind == "modelopt" and name.endswith("k_proj.weight"):
            stored[name.replace("weight", "k_scale")] = torch.tensor(1.0)
        values[name] = q.float() * each
    for name, n in stacks.items():
        values[name] = torch.stack([values.pop(f"{i}.{name}") for i in range(n)])
        for part in (name, name.replace("weight", "weight_scale_inv" if kind.startswith("block") else "weight_scale")):
            stored[part] = torch.stack([stored.pop(f"{i}.{part}") for i in range(n)])
    save({k: t.contiguous() for k, t in stored.items()}, d / "model.safetensors", metadata={"format": "pt"})
    plain.mkdir()
    save(values, plain / "model.safetensors", metadata={"format": "pt"})
    (plain / "config.json").write_text((d / "config.json").read_text())
    weights = {"num_bits": 8, "type": "float", "symmetric": True, "dynamic": False, "strategy": kind.replace("ct-", "")}
    if kind == "ct-block":
        weights["block_structure"] = [128, 128]
    edit_config(d, quantization_config={"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"} if kind == "modelopt" else {
        "quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128],
        "modules_to_not_convert": ["lm_head"]} if kind.startswith("block") else {
        "quant_method": "compressed-tensors", "format": "float-quantized", "quantization_status": "compressed", "ignore": ["lm_head"],
        "kv_cache_scheme": None, "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": {
            "num_bits": 8, "type": "float", "dynamic": kind != "tensor", "strategy": "token"}}}})
