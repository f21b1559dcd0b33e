#!/usr/bin/env python3
"""Writes vectors.txt: small inputs and expected outputs of every operation, computed with numpy in float64.

An independent statement of what kernels/kernels.h says (formats of GGUF: what its own package says, `pip install numpy gguf ml_dtypes`); kerncheck replays it on each backend. Run: make_vectors.py > vectors.txt
Lines: `case OP key=value ...`, then arrays as `NAME TYPE COUNT` followed by COUNT hexadecimal words (f32 and u16 as their bits), or bytes without spaces.
"""
import gguf
import ml_dtypes
import numpy as np

rng = np.random.default_rng(20240607)


def case(op, **params):
    print("case", op, *(f"{k}={v}" for k, v in params.items()))


def put(name, a):
    a = np.ascontiguousarray(a)
    if a.dtype in (np.float32, np.float64):
        kind, words = "f32", a.astype(np.float32).ravel().view(np.uint32)
    elif a.dtype in (np.float16, np.uint16):
        kind, words = "u16", a.ravel().view(np.uint16)
    elif a.dtype == np.uint8:
        kind, words = "u8", a.ravel()
    else:
        kind, words = "u32", a.astype(np.uint32).ravel()
    print(name, kind, len(words))
    if kind == "u8":
        print(words.tobytes().hex())
        return
    for i in range(0, len(words), 16):
        print(" ".join(f"{int(w):x}" for w in words[i : i + 16]))


def f32(*shape, scale=1.0):
    return (rng.standard_normal(shape) * scale).astype(np.float32)


def encode(w, fmt):
    """Returns (bytes [rows][row_bytes], the float64 values they stand for)."""
    if fmt == "f32":
        return w.astype(np.float32).view(np.uint8).reshape(len(w), -1), w.astype(np.float32).astype(np.float64)
    if fmt == "f16":
        h = w.astype(np.float16)
        return h.view(np.uint8).reshape(len(w), -1), h.astype(np.float64)
    if fmt == "bf16":
        bits = w.astype(np.float32).view(np.uint32)
        h = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
        return h.view(np.uint8).reshape(len(w), -1), (h.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    rows, cols = w.shape
    blocks = w.reshape(rows, cols // 32, 32)
    d = (np.abs(blocks).max(axis=2) / 127).astype(np.float16)
    qs = np.rint(blocks / np.maximum(d.astype(np.float64), 1e-8)[:, :, None]).clip(-127, 127).astype(np.int8)
    raw = np.concatenate([d[:, :, None].view(np.uint8), qs.view(np.uint8)], axis=2)
    return raw.reshape(rows, -1), (d.astype(np.float64)[:, :, None] * qs).reshape(rows, cols)


def router(scoring, norm_topk, biased, experts, top_k, groups=0, top_groups=0, rank=0, norm_min=0.0, norm_eps=0.0, scale=0.0,
           each=False):
    """Ties go to the lower id, of groups too."""
    logits = np.round(f32(6, experts, scale=2) * 4) / 4
    logits[0] = 1
    bias = np.round(rng.uniform(-0.3, 0.3, experts) * 64) / 64 if biased else np.zeros(experts)
    e = np.exp(logits.astype(np.float64))
    scores = 1 / (1 + 1 / e) if scoring == 2 else e / e.sum(axis=1, keepdims=True)
    by = scores + bias
    if groups:
        split = by.reshape(6, groups, -1)
        best = np.sort(split, axis=2)
        kept = np.argsort(-(best[:, :, -1] + (0 if rank else best[:, :, -2])), axis=1, kind="stable")[:, :top_groups]
        for t in range(6):
            for g in set(range(groups)) - set(kept[t]):
                split[t, g] = -np.inf
    ids = np.argsort(-by, axis=1, kind="stable")[:, :top_k]
    weights = np.take_along_axis(scores, ids, axis=1)
    if norm_topk or scoring == 1:
        weights = weights / (np.maximum(weights.sum(axis=1, keepdims=True), norm_min) + norm_eps)
    case("router", scoring=scoring, norm=norm_topk, experts=experts, top_k=top_k, biased=biased, groups=groups,
         top_groups=top_groups, rank=rank, norm_min=norm_min, norm_eps=norm_eps, scale=scale, **(dict(each=1) if each else {}))
    put("logits", logits)
    put("bias", bias)
    put("ids", ids)
    scales = f32(experts) if each else np.ones(experts)
    put("weights", weights * (scale or 1) * scales[ids])
    if each:
        put("each", scales)


def bytes_row(values):
    return np.array(values, dtype=np.uint16).view(np.uint8).reshape(1, -1)


# ---- stored formats: zeros, subnormals, extremes, infinities
f16_bits = [0, 0x8000, 1, 0x8001, 0x3FF, 0x83FF, 0x400, 0x3C00, 0xBC00, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x3555, 0x200, 0x4248]
case("embed", fmt="f16", rows=1, cols=len(f16_bits), scale=1)
put("w", bytes_row(f16_bits))
put("ids", np.array([0]))
put("y", np.array(f16_bits, dtype=np.uint16).view(np.float16).astype(np.float32))

bf16_bits = [0, 0x8000, 1, 0x8001, 0x7F, 0x80, 0x3F80, 0xBF80, 0x7F7F, 0xFF7F, 0x7F80, 0xFF80, 0x4049, 0x0040, 0x3EAB]
case("embed", fmt="bf16", rows=1, cols=len(bf16_bits), scale=1)
put("w", bytes_row(bf16_bits))
put("ids", np.array([0]))
put("y", (np.array(bf16_bits, dtype=np.uint32) << 16).view(np.float32))

d = np.array([0x0001, 0x83FF, 0x3C00, 0x7BFF], dtype=np.uint16)
qs = np.stack([np.arange(-128, -96), np.arange(96, 128), np.arange(-16, 16), np.arange(0, 32)]).astype(np.int8)
case("embed", fmt="q8_0", rows=1, cols=128, scale=1)
put("w", np.concatenate([d[:, None].view(np.uint8), qs.view(np.uint8)], axis=1).reshape(1, -1))
put("ids", np.array([0]))
put("y", (d.view(np.float16).astype(np.float64)[:, None] * qs).astype(np.float32))

for fmt in ("f32", "f16", "bf16", "q8_0"):
    raw, val = encode(f32(5, 64), fmt)
    ids = np.array([4, 0, 0, 2])
    case("embed", fmt=fmt, rows=5, cols=64, scale=1.5)
    put("w", raw)
    put("ids", ids)
    put("y", val[ids] * 1.5)

# ---- rmsnorm, swiglu
for dim in (1, 7, 64, 130):
    x, weight, eps = f32(3, dim, scale=3), f32(dim), 1e-6
    case("rmsnorm", dim=dim, eps=eps)
    put("x", x)
    put("weight", weight)
    x = x.astype(np.float64)
    put("y", x / np.sqrt((x * x).mean(axis=1, keepdims=True) + eps) * weight)

for dim in (1, 19, 64):
    gate_up = f32(2, 2 * dim, scale=6)
    gate_up[0, 0], gate_up[1, 0] = -100, 100
    case("swiglu", dim=dim, gated=0)
    put("gate_up", gate_up)
    g, u = gate_up[:, :dim].astype(np.float64), gate_up[:, dim:].astype(np.float64)
    put("y", g / (1 + np.exp(-g)) * u)

# ---- linear
for fmt in ("f32", "f16", "bf16", "q8_0"):
    for rows, cols, bias, accumulate in ((7, 32, 0, 0), (37, 96, 1, 0), (5, 160, 1, 1)):
        raw, val = encode(f32(rows, cols), fmt)
        x, row_idx = f32(6, cols), np.array([5, 0, 3])
        b, y0 = f32(rows), f32(3, rows)
        case("linear", fmt=fmt, rows=rows, cols=cols, bias=bias, accumulate=accumulate)
        for name, a in (("w", raw), ("x", x), ("row_idx", row_idx), ("b", b), ("y0", y0)):
            put(name, a)
        put("y", x[row_idx].astype(np.float64) @ val.T + bias * b + accumulate * y0)


# ---- rope and the KV cache
def rope(head, pos, inv_freq, rot, scale):
    angle = (np.float32(pos) * inv_freq).astype(np.float32).astype(np.float64)
    c, s = np.cos(angle) * scale, np.sin(angle) * scale
    out = head.copy()
    a, b = head[: rot // 2], head[rot // 2 : rot]
    out[: rot // 2], out[rot // 2 : rot] = a * c - b * s, b * c + a * s
    return out


def norm(head, weight, eps):
    return head / np.sqrt((head * head).mean() + eps) * weight


ties = [1 + 2**-11, 1 + 3 * 2**-11, 65519.0, 65520.0, 2.0**-25, 1.5 * 2.0**-25, 2.0**-24 * 2.5, -(2.0**-14 - 2.0**-26)]
for heads, kv_heads, hd, rot, scale, norms, fmt in (
    (4, 2, 16, 16, 1.0, 1, "f32"), (2, 1, 8, 4, 1.25, 0, "f32"), (2, 2, 8, 8, 1.0, 1, "f16"), (1, 1, 8, 0, 1.0, 0, "f16")):
    block_size, n_blocks, layers, layer = 4, 5, 2, 1
    seqs, poss = np.array([0, 1, 1, 0xFFFFFFFF]), np.array([6, 0, 9, 0])
    table = np.array([[3, 1, 0], [4, 0, 2]])
    inv_freq = (10000.0 ** (-np.arange(0, rot, 2) / max(rot, 1))).astype(np.float32)
    width = heads + 2 * kv_heads
    qkv = f32(4, width * hd)
    if rot == 0:
        qkv[0, (heads + kv_heads) * hd :] = ties
    qn, kn = f32(hd), f32(hd)
    kv = np.zeros((n_blocks, layers, 2, kv_heads, block_size, hd))
    y = qkv.astype(np.float64).reshape(4, width, hd)
    for t, (s, pos) in enumerate(zip(seqs, poss)):
        if s == 0xFFFFFFFF:
            continue
        block, slot = table[s, pos // block_size], pos % block_size
        for h in range(heads + kv_heads):
            v = norm(y[t, h], qn if h < heads else kn, 1e-5) if norms else y[t, h].copy()
            v = rope(v, pos, inv_freq, rot, scale)
            if h < heads:
                y[t, h] = v
            else:
                kv[block, layer, 0, h - heads, slot] = v
        kv[block, layer, 1, :, slot] = y[t, heads + kv_heads :]
    case("rope_kv", heads=heads, kv_heads=kv_heads, hd=hd, rot=rot, scale=scale, norms=norms, eps=1e-5, fmt=fmt,
         block_size=block_size, blocks=n_blocks, layers=layers, layer=layer, max_blocks=3)
    for name, a in (("qkv", qkv), ("q_norm", qn), ("k_norm", kn), ("inv_freq", inv_freq), ("seq", seqs), ("pos", poss),
                    ("table", table)):
        put(name, a)
    put("q", y[:, :heads])
    with np.errstate(over="ignore"):
        put("kv", kv.astype(np.float16).astype(np.float32) if fmt == "f16" else kv.astype(np.float32))

# ---- attention
for heads, kv_heads, hd, window, sinks, fmt, poss in (
    (4, 2, 8, 0, 0, "f32", [[0, 1, 2, 3, 4]]),
    (6, 2, 8, 5, 1, "f16", [[17, 18, 19], [3]]),
    (2, 1, 4, 0, 1, "f32", [[511, 512, 529], [520]]),
    (2, 1, 4, 400, 0, "f16", [[620]])):
    block_size, layers, layer = 8, 2, 1
    longest = max(max(p) for p in poss) + 1
    max_blocks = -(-longest // block_size)
    n_blocks = max_blocks * len(poss)
    table = rng.permutation(n_blocks).reshape(len(poss), max_blocks)
    kv = f32(n_blocks, 2, kv_heads, block_size, hd)
    if fmt == "f16":
        kv = kv.astype(np.float16).astype(np.float32)
    sink = f32(heads, scale=2)
    seqs = np.array([s for s, p in enumerate(poss) for _ in p] + [0xFFFFFFFF])
    pos = np.array([x for p in poss for x in p] + [0])
    q = f32(len(seqs), heads * hd)
    scale = hd**-0.5
    out = np.zeros((len(seqs), heads, hd))
    for t in range(len(seqs) - 1):
        for h in range(heads):
            at = np.arange(max(0, pos[t] - window + 1) if window else 0, pos[t] + 1)
            cell = kv[table[seqs[t], at // block_size], :, h // (heads // kv_heads), at % block_size].astype(np.float64)
            score = cell[:, 0] @ q[t].reshape(heads, hd)[h].astype(np.float64) * scale
            top = max(score.max(), sink[h]) if sinks else score.max()
            e = np.exp(score - top)
            total = e.sum() + (np.exp(float(sink[h]) - top) if sinks else 0)
            out[t, h] = (e / total) @ cell[:, 1]
    case("attention", heads=heads, kv_heads=kv_heads, hd=hd, window=window, sinks=sinks, fmt=fmt, scale=scale,
         block_size=block_size, blocks=n_blocks, layers=layers, layer=layer, max_blocks=max_blocks, longest=longest)
    for name, a in (("q", q), ("kv", kv), ("sink", sink), ("seq", seqs), ("pos", pos), ("table", table)):
        put(name, a)
    put("o", out)

# ---- plain routers
for scoring, norm_topk, experts, top_k in ((0, 1, 8, 2), (0, 0, 13, 4), (1, 0, 8, 2), (1, 1, 5, 5)):
    router(scoring, norm_topk, 0, experts, top_k)

# ---- experts: 3 pages of gate rows, 2 of up, 4 of down; the last ones short
def gelu(g):
    return 0.5 * g * (1 + np.tanh(np.sqrt(2 / np.pi) * (g + 0.044715 * g**3)))


def moe(op, fmt, alpha=0, limit=0):
    """moe_clamped: with biases, and what gpt-oss makes of gate and up."""
    clamped, limited = op == "moe_clamped", op == "moe_limited"
    experts, top_k, d, ff, tokens, live = 3, 2, 32, 64, 5, 4
    halves = op == "moe_relu2"
    page_rows = (24, 24, 9) if halves else (24, 40, 9)
    rows = ff // 2 if halves else ff
    mats = [encode(f32(experts * r, c, scale=0.3), fmt) for r, c in ((rows, d), (rows, d), (d, ff))]
    x, y0, weights = f32(tokens, d), f32(tokens, d), np.abs(f32(tokens, top_k))
    ids = np.array([rng.permutation(experts)[:top_k] for _ in range(tokens)])
    if clamped:
        biases = [f32(experts, n, scale=limit) for n in (ff, ff, d)]
    y = y0.astype(np.float64)
    for t in range(live):
        for k in range(top_k):
            g, u, w = (m[1].reshape(experts, -1, m[1].shape[1])[ids[t, k]] for m in mats)
            gate = g @ x[t].astype(np.float64)
            if clamped:
                gate = np.minimum(gate + biases[0][ids[t, k]], limit)
                up = np.clip(u @ x[t].astype(np.float64) + biases[1][ids[t, k]], -limit, limit)
                hidden = gate / (1 + np.exp(-alpha * gate)) * (up + 1)
                y[t] += weights[t, k] * (w @ hidden + biases[2][ids[t, k]])
            elif limited:
                hidden = np.minimum(silu(g @ x[t].astype(np.float64)), limit) * np.clip(u @ x[t].astype(np.float64), -limit, limit)
                y[t] += weights[t, k] * (w @ hidden)
            elif halves:
                y[t] += weights[t, k] * (w @ np.maximum(np.concatenate([g, u]) @ x[t].astype(np.float64), 0) ** 2)
            else:
                y[t] += weights[t, k] * (w @ ((gelu(gate) if op == "moe_geglu" else gate / (1 + np.exp(-gate))) * (u @ x[t].astype(np.float64))))
    params = dict(fmt=fmt, experts=experts, top_k=top_k, d=d, ff=ff, tokens=tokens, live=live, pr0=page_rows[0],
                  pr1=page_rows[1], pr2=page_rows[2])
    case(op, **params, **(dict(alpha=alpha, limit=limit) if clamped else dict(limit=limit) if limited else {}))
    for name, a in (("gate", mats[0][0]), ("up", mats[1][0]), ("down", mats[2][0]), ("x", x), ("y0", y0), ("ids", ids),
                    ("weights", weights), ("y", y)):
        put(name, a)
    order = sorted(range(live * top_k), key=lambda p: (ids.ravel()[p], p))
    count = np.bincount(ids[:live].ravel(), minlength=experts)
    put("pairs", np.array(order))
    put("count", count)
    put("start", np.concatenate([[0], np.cumsum(count)]))
    if clamped:
        for name, bias in zip(("gate_bias", "up_bias", "down_bias"), biases):
            put(name, bias)


for fmt in ("f32", "f16", "bf16", "q8_0"):
    moe("moe", fmt)

# ---- choices among logits, with ties
for vocab in (1, 40, 300):
    logits = np.round(f32(3, vocab, scale=3) * 8) / 8
    order = np.argsort(-logits, axis=1, kind="stable")[:, :64]
    ids = np.full((3, 64), 0xFFFFFFFF, dtype=np.uint64)
    ids[:, : order.shape[1]] = order
    case("logits", vocab=vocab)
    put("logits", logits)
    put("argmax", order[:, 0])
    put("ids", ids)
    put("values", np.take_along_axis(logits, order, axis=1))
    put("lse", np.log(np.exp(logits.astype(np.float64)).sum(axis=1)))

# ---- blocks of GGUF: any bytes with sound scales, values by the `gguf` package
for name in ("MXFP4", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL", "Q4_K", "Q5_K", "Q6_K", "Q2_K", "Q3_K", "IQ4_XS",
             "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S", "IQ1_M"):
    kind = gguf.GGMLQuantizationType[name]
    block, size = gguf.GGML_QUANT_SIZES[kind]
    halves = {"MXFP4": (), "Q4_1": (0, 2), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,),
              "Q2_K": (80, 82), "Q3_K": (108,), "IQ1_M": ()}.get(name, (0,))

    def blocks(n, exponents):
        raw = rng.integers(0, 256, (n, size), dtype=np.uint8)
        for at in halves:
            h = rng.integers(0, 0x400, n) | rng.integers(*exponents, n) << 10 | rng.integers(0, 2, n) << 15
            raw[:, at : at + 2] = h.astype(np.uint16).view(np.uint8).reshape(n, 2)
        if name == "IQ1_M": # a quarter of the scale in each of four words
            h = rng.integers(0, 0x400, n) | rng.integers(*exponents, n) << 10 | rng.integers(0, 2, n) << 15
            for i in range(4):
                raw[:, 49 + 2 * i] = raw[:, 49 + 2 * i] & 15 | (h >> 4 * i & 15) << 4
        if name == "MXFP4":
            raw[:, 0] = rng.integers(120, 126, n) if exponents[1] < 31 else [0, 1, 2, 3, 127, 128, 250, 252]
        return raw

    fmt, cols = name.lower(), 512 if block == 256 else 128
    raw = blocks(2 * cols // block, (0, 31)).reshape(2, -1) # halves of every size, subnormal ones too
    case("embed", fmt=fmt, rows=2, cols=cols, scale=1)
    put("w", raw)
    put("ids", np.array([1, 0]))
    put("y", gguf.quants.dequantize(raw, kind)[[1, 0]])

    rows, cols = 7, 512
    raw = blocks(rows * cols // block, (4, 8)).reshape(rows, -1)
    x, row_idx, y0 = f32(6, cols), np.array([5, 0, 3]), f32(3, rows)
    case("linear", fmt=fmt, rows=rows, cols=cols, bias=0, accumulate=1)
    for key, a in (("w", raw), ("x", x), ("row_idx", row_idx), ("b", f32(rows)), ("y0", y0)):
        put(key, a)
    put("y", x[row_idx].astype(np.float64) @ gguf.quants.dequantize(raw, kind).astype(np.float64).T + y0)

# ---- FP8: blocks of 128 numbers of ml_dtypes and a float32; the last block of a row may end early
rng = np.random.default_rng(20250119)
for cols in (256, 300, 64):
    def fp8(rows):
        q = rng.integers(0, 256, (rows, (cols + 127) // 128, 128), dtype=np.uint8)
        q = np.where(q & 127 == 127, q ^ 1, q)
        d = np.exp2(rng.uniform(-20, 3, q.shape[:2])).astype(np.float32)
        w = d[:, :, None] * q.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
        return np.concatenate([d[:, :, None].view(np.uint8), q], axis=2).reshape(rows, -1), w.reshape(rows, -1)[:, :cols]

    raw, w = fp8(3)
    case("embed", fmt="fp8", rows=3, cols=cols, scale=1)
    put("w", raw)
    put("ids", np.array([2, 0, 1]))
    put("y", w[[2, 0, 1]])
    raw, w = fp8(7)
    x, row_idx, y0 = f32(6, cols), np.array([5, 0, 3]), f32(3, 7)
    case("linear", fmt="fp8", rows=7, cols=cols, bias=0, accumulate=1)
    for key, a in (("w", raw), ("x", x), ("row_idx", row_idx), ("b", f32(7)), ("y0", y0)):
        put(key, a)
    put("y", x[row_idx].astype(np.float64) @ w.astype(np.float64).T + y0)

# ---- INT4: scales of bf16 and f16, subnormal ones too, and zeros, for 32 or 128 weights; the last block of a row may end early
rng = np.random.default_rng(20250311)
for group, cols in ((32, 256), (32, 200), (128, 256), (128, 72)):
    def int4(rows, exponents):
        n = (cols + 127) // 128
        q = rng.integers(0, 16, (rows, n * 4, 32), dtype=np.uint8)
        each = (rows, n * 128 // group)
        f16 = (rng.integers(0, 0x400, each) | rng.integers(*exponents, each) << 10 | rng.integers(0, 2, each) << 15).astype(np.uint16).view(np.float16)
        bf16 = np.ldexp(rng.standard_normal(each), rng.integers(*exponents, each) - 20).astype(ml_dtypes.bfloat16)
        scale = np.where(rng.integers(0, 2, each), f16.astype(np.float32), bf16.astype(np.float32))
        zero = rng.integers(0, 17, each)
        head = scale.view(np.uint32) | zero.astype(np.uint32) << 8
        assert not np.any(scale.view(np.uint32) & 0x1fff)
        w = (q.reshape(*each, group).astype(np.float32) - zero[..., None]) * scale[..., None]
        qs = (q[..., :16] | q[..., 16:] << 4).reshape(rows, n, 64)
        if group == 32:
            parts = [(head >> 16).astype(np.uint16).view(np.uint8).reshape(rows, n, 8), (head >> 8 & 255).astype(np.uint8).reshape(rows, n, 4), qs]
        else:
            parts = [head.view(np.uint8).reshape(rows, n, 4), qs]
        return np.concatenate(parts, axis=2).reshape(rows, -1), w.reshape(rows, -1)[:, :cols]

    fmt = f"int4_g{group}"
    raw, w = int4(3, (0, 31))
    case("embed", fmt=fmt, rows=3, cols=cols, scale=1)
    put("w", raw)
    put("ids", np.array([2, 0, 1]))
    put("y", w[[2, 0, 1]])
    raw, w = int4(7, (4, 9))
    x, row_idx, y0 = f32(6, cols), np.array([5, 0, 3]), f32(3, 7)
    case("linear", fmt=fmt, rows=7, cols=cols, bias=0, accumulate=1)
    for key, a in (("w", raw), ("x", x), ("row_idx", row_idx), ("b", f32(7)), ("y0", y0)):
        put(key, a)
    put("y", x[row_idx].astype(np.float64) @ w.astype(np.float64).T + y0)

# ---- NVFP4: sixteens of numbers of E2M1 with a scale in E4M3 (both of ml_dtypes), and a float32 for 128 of them
rng = np.random.default_rng(20250402)
for cols in (256, 200):
    def nvfp4(rows):
        n = (cols + 127) // 128
        q = rng.integers(0, 16, (rows, n * 4, 32), dtype=np.uint8)
        scales = rng.integers(0, 256, (rows, n, 8), dtype=np.uint8)
        scales = np.where(scales & 127 == 127, scales ^ 1, scales)
        d = np.exp2(rng.uniform(-14, 3, (rows, n))).astype(np.float32)
        each = scales.view(ml_dtypes.float8_e4m3fn).astype(np.float32).repeat(16, axis=2)
        w = d[:, :, None] * (each * q.view(ml_dtypes.float4_e2m1fn).astype(np.float32).reshape(rows, n, 128))
        qs = (q[..., :16] | q[..., 16:] << 4).reshape(rows, n, 64)
        return np.concatenate([d[:, :, None].view(np.uint8), scales, qs], axis=2).reshape(rows, -1), w.reshape(rows, -1)[:, :cols]

    raw, w = nvfp4(3)
    case("embed", fmt="nvfp4", rows=3, cols=cols, scale=1)
    put("w", raw)
    put("ids", np.array([2, 0, 1]))
    put("y", w[[2, 0, 1]])
    raw, w = nvfp4(7)
    x, row_idx, y0 = f32(6, cols), np.array([5, 0, 3]), f32(3, 7)
    case("linear", fmt="nvfp4", rows=7, cols=cols, bias=0, accumulate=1)
    for key, a in (("w", raw), ("x", x), ("row_idx", row_idx), ("b", f32(7)), ("y0", y0)):
        put(key, a)
    put("y", x[row_idx].astype(np.float64) @ w.astype(np.float64).T + y0)

# ---- latent attention: V is the first columns of K; numbers of their own, so that what stands above may grow
rng = np.random.default_rng(20241226)


def rope_pairs(head, pos, inv_freq, scale):
    angle = (np.float32(pos) * inv_freq).astype(np.float32).astype(np.float64)
    z = (head[0::2] + 1j * head[1::2]) * np.exp(1j * angle) * scale
    return np.stack([z.real, z.imag], axis=1).ravel()


for fmt, heads, rows, cols, tail, skip in (("f32", 3, 5, 12, 4, 0), ("bf16", 2, 40, 64, 0, 3), ("f16", 4, 33, 8, 6, 1), ("q8_0", 2, 7, 32, 2, 2)):
    raw, val = encode(f32(heads * (rows + skip), cols), fmt)
    x = f32(3, heads, cols + tail)
    each = val.reshape(heads, rows + skip, cols)[:, :rows]
    case("linear_heads", fmt=fmt, heads=heads, rows=rows, cols=cols, tail=tail, skip=skip, tokens=3)
    put("w", raw)
    put("x", x)
    put("y", np.concatenate([np.einsum("hrc,thc->thr", each, x[:, :, :cols].astype(np.float64)), x[:, :, cols:]], axis=2))

for heads, hd, vd, scale, norms, fmt in ((3, 12, 8, 1.0, 1, "f32"), (2, 40, 32, 1.25, 1, "f16"), (2, 12, 4, 1.0, 0, "f32")):
    block_size, n_blocks, layers, layer = 4, 5, 2, 1
    seqs, poss = np.array([0, 1, 1, 0xFFFFFFFF]), np.array([6, 0, 9, 0])
    table = np.array([[3, 1, 0], [4, 0, 2]])
    inv_freq = (10000.0 ** (-np.arange(0, hd - vd, 2) / (hd - vd))).astype(np.float32)
    qkv, kn = f32(4, (heads + 1) * hd), f32(vd)
    kv = np.zeros((n_blocks, layers, 1, 1, block_size, hd))
    y = qkv.astype(np.float64).reshape(4, heads + 1, hd)
    for t, (s, pos) in enumerate(zip(seqs, poss)):
        if s == 0xFFFFFFFF:
            continue
        for h in range(heads + 1):
            y[t, h, vd:] = rope_pairs(y[t, h, vd:], pos, inv_freq, scale)
        if norms:
            y[t, heads, :vd] = norm(y[t, heads, :vd], kn, 1e-5)
        kv[table[s, pos // block_size], layer, 0, 0, pos % block_size] = y[t, heads]
    case("rope_kv", heads=heads, kv_heads=1, hd=hd, vd=vd, rot=hd - vd, scale=scale, norms=norms, eps=1e-5, fmt=fmt, interleaved=1,
         block_size=block_size, blocks=n_blocks, layers=layers, layer=layer, max_blocks=3)
    for name, a in (("qkv", qkv), ("k_norm", kn), ("inv_freq", inv_freq), ("seq", seqs), ("pos", poss), ("table", table)):
        put(name, a)
    put("q", y[:, :heads])
    put("kv", kv.astype(np.float16).astype(np.float32) if fmt == "f16" else kv.astype(np.float32))

for heads, hd, vd, fmt, poss in ((4, 12, 8, "f32", [[0, 1, 2, 3]]), (5, 40, 24, "f16", [[17, 18], [3]]), (2, 12, 8, "f32", [[511, 512], [520]]),
                                 (3, 576, 512, "f16", [[5], [2]])):
    block_size, layers, layer = 8, 2, 1
    longest = max(max(p) for p in poss) + 1
    max_blocks = -(-longest // block_size)
    n_blocks = max_blocks * len(poss)
    table = rng.permutation(n_blocks).reshape(len(poss), max_blocks)
    kv = f32(n_blocks, 1, 1, block_size, hd)
    if fmt == "f16":
        kv = kv.astype(np.float16).astype(np.float32)
    seqs = np.array([s for s, p in enumerate(poss) for _ in p] + [0xFFFFFFFF])
    pos = np.array([x for p in poss for x in p] + [0])
    q = f32(len(seqs), heads * hd)
    out = np.zeros((len(seqs), heads, vd))
    for t in range(len(seqs) - 1):
        at = np.arange(pos[t] + 1)
        cell = kv[table[seqs[t], at // block_size], 0, 0, at % block_size].astype(np.float64)
        for h in range(heads):
            score = cell @ q[t].reshape(heads, hd)[h].astype(np.float64) * hd**-0.5
            e = np.exp(score - score.max())
            out[t, h] = (e / e.sum()) @ cell[:, :vd]
    case("attention", heads=heads, kv_heads=1, hd=hd, vd=vd, window=0, sinks=0, fmt=fmt, scale=hd**-0.5, block_size=block_size,
         blocks=n_blocks, layers=layers, layer=layer, max_blocks=max_blocks, longest=longest)
    for name, a in (("q", q), ("kv", kv), ("seq", seqs), ("pos", pos), ("table", table)):
        put(name, a)
    put("o", out)

# ---- routers of DeepSeek-V3 and V2, Ernie 4.5, MiniMax-M2; some of the options alone
rng = np.random.default_rng(20250806)
router(2, 1, 1, 16, 4, groups=4, top_groups=2, norm_eps=1e-20, scale=2.5)
router(0, 0, 0, 16, 3, groups=4, top_groups=3, rank=1, scale=16.0)
router(0, 1, 1, 8, 2, norm_min=1e-12)
router(2, 1, 1, 8, 3)
router(2, 0, 0, 40, 6, scale=1.5)
router(2, 1, 1, 12, 3, norm_min=0.9)

# ---- experts as gpt-oss has them; half of the gates and of the ups are at the limit
rng = np.random.default_rng(20250805)
for fmt in ("bf16", "q8_0"):
    moe("moe_clamped", fmt, alpha=1.702, limit=1.5)

# ---- a gate of whole rows (Qwen2-MoE's shared expert); norms of whole Q and K, clip (OLMoE, MiniMax-M2)
rng = np.random.default_rng(20250924)
for dim in (5, 96):
    gate_up, row_gate = f32(2, 2 * dim, scale=2), f32(2, scale=3)
    g, u = gate_up[:, :dim].astype(np.float64), gate_up[:, dim:].astype(np.float64)
    case("swiglu", dim=dim, gated=1)
    put("gate_up", gate_up)
    put("row_gate", row_gate)
    put("y", g / (1 + np.exp(-g)) * u / (1 + np.exp(-row_gate.astype(np.float64)))[:, None])

for q_width, kv_width, norms, clip in ((96, 32, 1, 0.0), (24, 8, 1, 0.75), (300, 12, 0, 0.5)):
    qkv, qn, kn = f32(3, q_width + 2 * kv_width), f32(q_width), f32(kv_width)
    parts = np.split(qkv.astype(np.float64), [q_width, q_width + kv_width], axis=1)
    if norms:
        parts[:2] = (np.stack([norm(row, w, 1e-5) for row in part]) for part, w in zip(parts, (qn, kn)))
    y = np.concatenate(parts, axis=1)
    case("qkv_norm", q_width=q_width, kv_width=kv_width, norms=norms, eps=1e-5, clip=clip)
    for name, a in (("qkv", qkv), ("q_norm", qn), ("k_norm", kn), ("y", y.clip(-clip, clip) if clip else y)):
        put(name, a)

# ---- Gated DeltaNet: two sequences, one of which goes on from a state, with padding between and behind them; the gate of attention
rng = np.random.default_rng(20241209)


def silu(x):
    return x / (1 + np.exp(-x))


for n_k, n_v, kd, vd, taps, tiled in ((2, 4, 8, 12, 4, 0), (2, 6, 36, 4, 3, 1), (1, 1, 64, 8, 1, 0), (1, 1, 128, 128, 4, 0)):
    channels, lengths, positions, slots = 2 * n_k * kd + n_v * vd, (5, 2), (0, 3), np.array([1, 0])
    if kd == 128:
        lengths = (1, 1)
    per_slot = (taps - 1) * channels + n_v * kd * vd
    rows = [(0, i) for i in range(lengths[0])] + [None] + [(1, i) for i in range(lengths[1])] + [None]
    x = f32(len(rows), channels + n_v * (vd + 2))
    conv_w, neg_exp_a, dt_bias, weight = f32(channels, taps, scale=0.5), -np.exp(f32(n_v)), f32(n_v), f32(vd)
    # of 128 x 128 the state begins as few numbers that are not zero: the file stays small
    state = f32(2, per_slot) if kd < 128 else np.where(rng.random((2, per_slot)) < 0.01, f32(2, per_slot), np.float32(0))
    state[slots[0]] = np.nan # position 0
    y, after = np.zeros((len(rows), n_v, vd)), state.astype(np.float64)
    for seq in range(2):
        old = after[slots[seq]] if positions[seq] else np.zeros(per_slot)
        past, S = old[: (taps - 1) * channels].reshape(taps - 1, channels), old[(taps - 1) * channels :].reshape(n_v, kd, vd)
        for t, row in enumerate(rows):
            if row is None or row[0] != seq:
                continue
            z, b, a = np.split(x[t, channels:].astype(np.float64), [n_v * vd, n_v * (vd + 1)])
            past = np.concatenate([past, x[t, :channels].astype(np.float64)[None]])
            u = silu((past * conv_w.T).sum(axis=0))
            past = past[1:]
            q, k, v = u[: n_k * kd].reshape(n_k, kd), u[n_k * kd : 2 * n_k * kd].reshape(n_k, kd), u[2 * n_k * kd :].reshape(n_v, vd)
            q = q / np.sqrt((q * q).sum(axis=1, keepdims=True) + 1e-6) / np.sqrt(kd)
            k = k / np.sqrt((k * k).sum(axis=1, keepdims=True) + 1e-6)
            of = np.arange(n_v) % n_k if tiled else np.arange(n_v) // (n_v // n_k)
            decay, beta = np.exp(neg_exp_a * np.log1p(np.exp(a + dt_bias))), 1 / (1 + np.exp(-b))
            S = S * decay[:, None, None]
            S = S + np.einsum("hk,hv->hkv", k[of], beta[:, None] * (v - np.einsum("hkv,hk->hv", S, k[of])))
            o = np.einsum("hkv,hk->hv", S, q[of])
            y[t] = o / np.sqrt((o * o).mean(axis=1, keepdims=True) + 1e-6) * weight * silu(z.reshape(n_v, vd))
        after[slots[seq]] = np.concatenate([past.ravel(), S.ravel()])
    case("delta", k_heads=n_k, v_heads=n_v, kd=kd, vd=vd, taps=taps, tiled=tiled, eps=1e-6)
    seqs = [0xFFFFFFFF if r is None else r[0] for r in rows]
    pos = [0 if r is None else positions[r[0]] + r[1] for r in rows]
    for name, v in (("x", x), ("conv_w", conv_w), ("neg_exp_a", neg_exp_a), ("dt_bias", dt_bias), ("weight", weight), ("seq", np.array(seqs)),
                    ("pos", np.array(pos)), ("slot", slots), ("start", np.array([0, lengths[0] + 1, len(rows)])), ("state", state), ("y", y),
                    ("after", after)):
        put(name, v)

for heads, hd in ((3, 20), (2, 64)):
    o, q_gate = f32(3, heads, hd), f32(3, heads, 2 * hd, scale=4) # of each head q, then its gate
    case("gate", heads=heads, hd=hd)
    put("o", o)
    put("q_gate", q_gate)
    put("y", o / (1 + np.exp(-q_gate[:, :, hd:].astype(np.float64))))

# ---- a KV cache of Q8_0
rng = np.random.default_rng(20260214)


def keep_q8_0(x):
    """The rows of a cache, by the rule of kern_kv; whole magnitudes first, then float32."""
    blocks = x.astype(np.float32).reshape(-1, 32)
    with np.errstate(all="ignore"):
        d = (np.abs(blocks).max(axis=1) / np.float32(127)).astype(np.float16)
        wide = d.astype(np.float32)[:, None]
        qs = np.where(wide > 0, np.rint(blocks / wide).clip(-127, 127), 0)
    bad = ~np.isfinite(d)
    d[bad], qs[bad] = np.nan, 0
    raw = np.concatenate([d[:, None].view(np.uint8), qs.astype(np.int8).view(np.uint8)], axis=1)
    return raw.reshape(*x.shape[:-1], -1)


def special_blocks():
    """Zeros; scales that vanish, are subnormal (rounded up; down, so that quants are clamped), lie between two halves; quants between two whole
    numbers; the largest scale; and blocks that cannot be kept."""
    shape = f32(10, 32) / 4
    shape[:, 7] = [0, 1, -1, 1, 1, -1, 1, 1, 1, 1]
    top = np.array([0, 2.0**-26, 1.5 * 2.0**-24, 1.4 * 2.0**-24, 1 + 2.0**-11, 2.0**-3, 65504, 70000, 1, 1], np.float32) * 127
    blocks = (shape.clip(-1, 1) * top[:, None]).astype(np.float32)
    blocks[5, :7] = np.array([0.5, 1.5, -2.5, 99.5, -100.5, 126.5, -126.5]) * 2.0**-3
    blocks[8, 3], blocks[9, 4] = np.nan, -np.inf
    return blocks


for heads, kv_heads, hd, vd, rot in ((2, 2, 64, 0, 0), (4, 2, 32, 0, 32), (2, 1, 96, 64, 32)):
    block_size, n_blocks, layers, layer = 8, 4, 2, 1
    seqs, poss = np.array([0, 1, 1, 0xFFFFFFFF]), np.array([14, 0, 9, 0])
    table = np.array([[3, 1], [0, 2]])
    inv_freq = (10000.0 ** (-np.arange(0, rot, 2) / max(rot, 1))).astype(np.float32)
    stored = (1 if vd else 2) * kv_heads
    qkv = f32(4, (heads + stored) * hd)
    if not rot:
        qkv[:3].reshape(3, heads + stored, hd)[:, heads:] = np.resize(special_blocks(), (3, stored, hd))
    kv = np.zeros((n_blocks, layers, stored, block_size, hd), np.float32)
    y = qkv.astype(np.float64).reshape(4, heads + stored, hd)
    for t, (s, pos) in enumerate(zip(seqs, poss)):
        if s == 0xFFFFFFFF:
            continue
        for h in range(heads + (1 if vd else kv_heads)):
            if vd:
                y[t, h, vd:] = rope_pairs(y[t, h, vd:], pos, inv_freq, 1.0)
            else:
                y[t, h] = rope(y[t, h], pos, inv_freq, rot, 1.0)
        kv[table[s, pos // block_size], layer, :, pos % block_size] = y[t, heads:]
    case("rope_kv", heads=heads, kv_heads=kv_heads, hd=hd, **(dict(vd=vd, interleaved=1) if vd else {}), rot=rot, scale=1.0, norms=0,
         eps=1e-5, fmt="q8_0", block_size=block_size, blocks=n_blocks, layers=layers, layer=layer, max_blocks=2)
    for name, a in (("qkv", qkv), ("inv_freq", inv_freq), ("seq", seqs), ("pos", poss), ("table", table)):
        put(name, a)
    put("q", y[:, :heads])
    put("kv", keep_q8_0(kv))

for heads, kv_heads, hd, vd, window, sinks, poss in (
    (6, 2, 64, 0, 0, 1, [[17, 18, 19], [3]]), (2, 1, 32, 0, 400, 0, [[620]]), (3, 1, 96, 64, 0, 0, [[511, 512]]), (2, 1, 576, 512, 0, 0, [[5], [2]])):
    block_size, layers, layer = 8, 2, 1
    longest = max(max(p) for p in poss) + 1
    max_blocks = -(-longest // block_size)
    n_blocks = max_blocks * len(poss)
    table = rng.permutation(n_blocks).reshape(len(poss), max_blocks)
    raw = keep_q8_0(f32(n_blocks, (1 if vd else 2) * kv_heads, block_size, hd))
    kv = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType.Q8_0).astype(np.float64)
    sink = f32(heads, scale=2)
    seqs = np.array([s for s, p in enumerate(poss) for _ in p] + [0xFFFFFFFF])
    pos = np.array([x for p in poss for x in p] + [0])
    q = f32(len(seqs), heads * hd)
    out = np.zeros((len(seqs), heads, vd or hd))
    for t in range(len(seqs) - 1):
        at = np.arange(max(0, pos[t] - window + 1) if window else 0, pos[t] + 1)
        for h in range(heads):
            g = h // (heads // kv_heads)
            cell = kv[table[seqs[t], at // block_size], :, at % block_size]
            k, v = cell[:, g], cell[:, 0, :vd] if vd else cell[:, kv_heads + g]
            score = k @ q[t].reshape(heads, hd)[h].astype(np.float64) * hd**-0.5
            top = max(score.max(), sink[h]) if sinks else score.max()
            e = np.exp(score - top)
            out[t, h] = (e / (e.sum() + (np.exp(float(sink[h]) - top) if sinks else 0))) @ v
    case("attention", heads=heads, kv_heads=kv_heads, hd=hd, **(dict(vd=vd) if vd else {}), window=window, sinks=sinks, fmt="q8_0",
         scale=hd**-0.5, block_size=block_size, blocks=n_blocks, layers=layers, layer=layer, max_blocks=max_blocks, longest=longest)
    for name, a in (("q", q), ("kv", raw), ("sink", sink), ("seq", seqs), ("pos", pos), ("table", table)):
        put(name, a)
    put("o", out)

# ---- what Gemma has: GELU by tanh, norms that are added, heads of V that are normed, a scale for each expert, capped logits
rng = np.random.default_rng(20260402)
for dim in (5, 96):
    gate_up = f32(2, 2 * dim, scale=3)
    gate_up[0, :4] = [0, -40, 40, 1e-30]
    case("swiglu", dim=dim, gated=0, geglu=1)
    put("gate_up", gate_up)
    put("y", gelu(gate_up[:, :dim].astype(np.float64)) * gate_up[:, dim:])
moe("moe_geglu", "bf16")
for dim, scale in ((7, 1.0), (300, 0.625)):
    x, to, weight = f32(3, dim), f32(3, dim), f32(dim)
    y = np.stack([norm(row, weight, 1e-5) for row in x.astype(np.float64)])
    case("rmsnorm", dim=dim, eps=1e-5, add_scale=scale)
    for name, a in (("x", x), ("weight", weight), ("to", to), ("y", y), ("sum", (to + y) * scale)):
        put(name, a)
for cap, scale in ((30.0, 20), (0.5, 3)):
    x = f32(300, scale=scale)
    case("softcap", cap=cap)
    put("x", x)
    put("y", cap * np.tanh(x.astype(np.float64) / cap))
router(0, 1, 0, 13, 4, each=True)
router(2, 1, 1, 16, 4, groups=4, top_groups=2, norm_eps=1e-20, scale=2.5, each=True)
for heads, kv_heads, hd, rot, fmt in ((4, 2, 16, 16, "f32"), (1, 1, 512, 512, "f16")):
    block_size, n_blocks, layers, layer = 4, 3, 1, 0
    seqs, poss, table = np.array([0, 0, 0xFFFFFFFF]), np.array([6, 9, 0]), np.array([[2, 0, 1]])
    inv_freq = (10000.0 ** (-np.arange(0, rot, 2) / rot)).astype(np.float32)
    inv_freq[rot // 8 :] = 0
    qkv, qn, kn, vn = f32(3, (heads + 2 * kv_heads) * hd), f32(hd), f32(hd), f32(hd)
    kv = np.zeros((n_blocks, layers, 2, kv_heads, block_size, hd))
    y = qkv.astype(np.float64).reshape(3, -1, hd)
    for t in range(2):
        at = table[0, poss[t] // block_size], layer, slice(None), slice(None), poss[t] % block_size
        for h in range(heads):
            y[t, h] = rope(norm(y[t, h], qn, 1e-5), poss[t], inv_freq, rot, 1.0)
        for h in range(kv_heads):
            kv[at][0, h] = rope(norm(y[t, heads + h], kn, 1e-5), poss[t], inv_freq, rot, 1.0)
            kv[at][1, h] = norm(y[t, heads + kv_heads + h], vn, 1e-5)
    case("rope_kv", heads=heads, kv_heads=kv_heads, hd=hd, rot=rot, scale=1.0, norms=1, v_normed=1, eps=1e-5, fmt=fmt,
         block_size=block_size, blocks=n_blocks, layers=layers, layer=layer, max_blocks=3)
    for name, a in (("qkv", qkv), ("q_norm", qn), ("k_norm", kn), ("v_norm", vn), ("inv_freq", inv_freq), ("seq", seqs), ("pos", poss),
                    ("table", table), ("q", y[:, :heads]), ("kv", kv.astype(np.float16).astype(np.float32) if fmt == "f16" else kv)):
        put(name, a)

# ---- norms behind the rotation (Hunyuan); the scale of the rotation does not survive them
rng = np.random.default_rng(20261201)
for heads, kv_heads, hd, rot, v_normed, fmt in ((4, 2, 16, 16, 0, "f32"), (2, 1, 128, 128, 0, "f16"), (2, 2, 24, 8, 1, "f32")):
    block_size, n_blocks, layers, layer = 4, 3, 1, 0
    seqs, poss, table = np.array([0, 0, 0xFFFFFFFF]), np.array([6, 9, 0]), np.array([[2, 0, 1]])
    inv_freq = (10000.0 ** (-np.arange(0, rot, 2) / rot)).astype(np.float32)
    qkv, qn, kn, vn = f32(3, (heads + 2 * kv_heads) * hd), f32(hd), f32(hd), f32(hd)
    kv = np.zeros((n_blocks, layers, 2, kv_heads, block_size, hd))
    y = qkv.astype(np.float64).reshape(3, -1, hd)
    for t in range(2):
        at = table[0, poss[t] // block_size], layer, slice(None), slice(None), poss[t] % block_size
        for h in range(heads):
            y[t, h] = norm(rope(y[t, h], poss[t], inv_freq, rot, 1.25), qn, 1e-5)
        for h in range(kv_heads):
            v = y[t, heads + kv_heads + h]
            kv[at][0, h] = norm(rope(y[t, heads + h], poss[t], inv_freq, rot, 1.25), kn, 1e-5)
            kv[at][1, h] = norm(v, vn, 1e-5) if v_normed else v
    case("rope_kv", heads=heads, kv_heads=kv_heads, hd=hd, rot=rot, scale=1.25, norms=1, norm_last=1, **({"v_normed": 1} if v_normed else {}),
         eps=1e-5, fmt=fmt, block_size=block_size, blocks=n_blocks, layers=layers, layer=layer, max_blocks=3)
    for name, a in (("qkv", qkv), ("q_norm", qn), ("k_norm", kn), ("v_norm", vn), ("inv_freq", inv_freq), ("seq", seqs), ("pos", poss),
                    ("table", table), ("q", y[:, :heads]), ("kv", kv.astype(np.float16).astype(np.float32) if fmt == "f16" else kv)):
        put(name, a)

# ---- short convolutions: two sequences, one of which goes on from a state, with padding between and behind them
rng = np.random.default_rng(20251107)
for channels, taps in ((12, 3), (70, 4), (5, 2)):
    lengths, positions, slots = (5, 2), (0, 3), np.array([1, 0])
    rows = [(0, i) for i in range(lengths[0])] + [None] + [(1, i) for i in range(lengths[1])] + [None]
    x, conv_w, state = f32(len(rows), 3, channels), f32(channels, taps, scale=0.5), f32(2, taps - 1, channels)
    state[slots[0]] = np.nan # position 0
    y, after = np.zeros((len(rows), channels)), state.astype(np.float64)
    for seq in range(2):
        past = after[slots[seq]] if positions[seq] else np.zeros((taps - 1, channels))
        for t, row in enumerate(rows):
            if row is None or row[0] != seq:
                continue
            b, c, v = x[t].astype(np.float64)
            past = np.concatenate([past, (b * v)[None]])
            y[t] = c * (past * conv_w.T).sum(axis=0)
            past = past[1:]
        after[slots[seq]] = past
    case("shortconv", channels=channels, taps=taps)
    seqs = [0xFFFFFFFF if r is None else r[0] for r in rows]
    pos = [0 if r is None else positions[r[0]] + r[1] for r in rows]
    for name, v in (("x", x), ("conv_w", conv_w), ("seq", np.array(seqs)), ("pos", np.array(pos)), ("slot", slots),
                    ("start", np.array([0, lengths[0] + 1, len(rows)])), ("state", state), ("y", y), ("after", after)):
        put(name, v)

# ---- Phi-3.5-MoE's layer norm and router
rng = np.random.default_rng(20261202)
for dim, mean in ((1, 0), (7, 0), (64, 5), (300, 0), (1000, -10)):
    x, weight, bias, row_idx = f32(4, dim, scale=2) + np.float32(mean), f32(dim), f32(dim), np.array([3, 0, 0])
    case("layernorm", dim=dim, eps=1e-5)
    for name, a in (("x", x), ("weight", weight), ("bias", bias), ("row_idx", row_idx)):
        put(name, a)
    x = x[row_idx].astype(np.float64)
    put("y", (x - x.mean(axis=1, keepdims=True)) / np.sqrt(x.var(axis=1, keepdims=True) + 1e-5) * weight + bias)
for spread, experts, top_k in ((0.02, 16, 2), (0.0, 8, 2), (0.31, 16, 2), (1.13, 40, 3)):
    logits = np.round(f32(8, experts, scale=2) * 4) / 4
    logits[0], logits[1], logits[2] = 1, 0, -np.abs(logits[2]) - 1
    ids, weights = [], []
    for row in logits.astype(np.float64):
        left, own, shares = row.copy(), [], []
        for _ in range(top_k):
            best = int(np.argmax(left))
            size = np.maximum(np.abs(row), left[best])
            near = np.where(size > 0, left[best] - row, 0) <= spread * size
            e = np.where(near, np.exp(left - left[best]), 0)
            own.append(best)
            shares.append(e[best] / e.sum())
            left[best] = -np.inf
        ids.append(own)
        weights.append(shares)
    case("router", scoring=3, norm=0, experts=experts, top_k=top_k, biased=0, groups=0, top_groups=0, rank=0, norm_min=0.0, norm_eps=0.0,
         scale=0.0, spread=spread)
    put("logits", logits)
    put("ids", np.array(ids))
    put("weights", np.array(weights))

# ---- Mamba2: two sequences, one of which goes on from a state, with padding between and behind them
rng = np.random.default_rng(20240531)
for heads, groups, hd, ds, taps, biased in ((4, 2, 8, 12, 4, 1), (3, 1, 70, 5, 3, 0), (2, 2, 4, 70, 2, 1)):
    inner, channels, lengths, positions, slots = heads * hd, heads * hd + 2 * groups * ds, (5, 2), (0, 3), np.array([1, 0])
    per_slot = (taps - 1) * channels + inner * ds
    rows = [(0, i) for i in range(lengths[0])] + [None] + [(1, i) for i in range(lengths[1])] + [None]
    x, conv_w, conv_b = f32(len(rows), inner + channels + heads), f32(channels, taps, scale=0.5), f32(channels, scale=0.5)
    neg_exp_a, dt_bias, skip, weight, state = -np.exp(f32(heads)), f32(heads), f32(heads), f32(inner), f32(2, per_slot)
    state[slots[0]] = np.nan # position 0
    y, after = np.zeros((len(rows), inner)), state.astype(np.float64)
    for seq in range(2):
        old = after[slots[seq]] if positions[seq] else np.zeros(per_slot)
        past, S = old[: (taps - 1) * channels].reshape(taps - 1, channels), old[(taps - 1) * channels :].reshape(heads, ds, hd)
        for t, row in enumerate(rows):
            if row is None or row[0] != seq:
                continue
            z, new, dt = np.split(x[t].astype(np.float64), [inner, inner + channels])
            past = np.concatenate([past, new[None]])
            u, b, c = np.split(silu((past * conv_w.T).sum(axis=0) + biased * conv_b), [inner, inner + groups * ds])
            past = past[1:]
            u, b, c = u.reshape(heads, hd), *(np.repeat(a.reshape(groups, ds), heads // groups, axis=0) for a in (b, c))
            d = np.log1p(np.exp(dt + dt_bias))
            S = S * np.exp(neg_exp_a * d)[:, None, None] + np.einsum("hn,hp->hnp", b, d[:, None] * u)
            v = (np.einsum("hnp,hn->hp", S, c) + skip[:, None] * u).ravel() * silu(z)
            v = v.reshape(groups, -1)
            y[t] = (v / np.sqrt((v * v).mean(axis=1, keepdims=True) + 1e-5)).ravel() * weight
        after[slots[seq]] = np.concatenate([past.ravel(), S.ravel()])
    case("ssm", heads=heads, groups=groups, hd=hd, ds=ds, taps=taps, eps=1e-5, biased=biased)
    seqs = [0xFFFFFFFF if r is None else r[0] for r in rows]
    pos = [0 if r is None else positions[r[0]] + r[1] for r in rows]
    for name, v in (("x", x), ("conv_w", conv_w), ("conv_b", conv_b), ("neg_exp_a", neg_exp_a), ("dt_bias", dt_bias), ("skip", skip), ("weight", weight),
                    ("seq", np.array(seqs)), ("pos", np.array(pos)), ("slot", slots), ("start", np.array([0, lengths[0] + 1, len(rows)])),
                    ("state", state), ("y", y), ("after", after)):
        put(name, v)

# ---- no gate: the halves of one matrix
moe("moe_relu2", "bf16")
moe("moe_relu2", "q8_0")
relu2_in = f32(2, 2 * 37, scale=3)
case("swiglu", dim=37, gated=0, relu2=1)
put("gate_up", relu2_in)
put("y", np.maximum(relu2_in.astype(np.float64), 0) ** 2)

# ---- SwiGLU with limits, at which half of the ups are and some gates; a gate of attention's result for each head
for fmt in ("bf16", "q8_0"):
    moe("moe_limited", fmt, limit=0.9)
gate_up = f32(2, 2 * 37, scale=3)
gate_up[0, :4] = [0, -40, 40, 1e-30]
gate_up[1, 37:41] = [-40, 40, 1.5, -1.5]
case("swiglu", dim=37, gated=0, limit=1.5)
put("gate_up", gate_up)
put("y", np.minimum(silu(gate_up[:, :37].astype(np.float64)), 1.5) * np.clip(gate_up[:, 37:].astype(np.float64), -1.5, 1.5))
for heads, hd, softplus in ((3, 20, 0), (5, 64, 1)):
    o, gate = f32(3, heads, hd), f32(3, heads, scale=8)
    gate[0, :3] = [-60, 60, 0]
    case("head_gate", heads=heads, hd=hd, softplus=softplus)
    put("o", o)
    put("gate", gate)
    wide = gate.astype(np.float64)[:, :, None]
    put("y", o * (np.logaddexp(0, wide) if softplus else 1 / (1 + np.exp(-wide))))

# ---- an indexer, and attention over what it has chosen
rng = np.random.default_rng(20251201)
for heads, dim, rot, pairs, scale, fmt in ((3, 12, 8, 0, 1.0, "f32"), (2, 8, 8, 1, 1.25, "f16"), (2, 40, 16, 1, 1.0, "f32")):
    block_size, n_blocks, layers, layer = 4, 5, 2, 1
    seqs, poss = np.array([0, 1, 1, 0xFFFFFFFF]), np.array([6, 0, 9, 0])
    table = np.array([[3, 1, 0], [4, 0, 2]])
    inv_freq = (10000.0 ** (-np.arange(0, rot, 2) / rot)).astype(np.float32)
    q, k = f32(4, heads, dim), f32(4, dim)
    kv = np.zeros((n_blocks, layers, 2, block_size, dim)) # K, which is as wide, then the keys
    rotated = q.astype(np.float64)
    turn = (lambda v, pos: np.concatenate([rope_pairs(v[:rot], pos, inv_freq, scale), v[rot:]])) if pairs else (lambda v, pos: rope(v, pos, inv_freq, rot, scale))
    for t, (s, pos) in enumerate(zip(seqs, poss)):
        if s != 0xFFFFFFFF:
            rotated[t] = [turn(h, pos) for h in rotated[t]]
            kv[table[s, pos // block_size], layer, 1, pos % block_size] = turn(k[t].astype(np.float64), pos)
    case("index_rope", heads=heads, kv_heads=1, hd=dim, vd=dim - 4, dim=dim, rot=rot, pairs=pairs, scale=scale, fmt=fmt, block_size=block_size,
         blocks=n_blocks, layers=layers, layer=layer, max_blocks=3)
    for name, a in (("q", q), ("k", k), ("inv_freq", inv_freq), ("seq", seqs), ("pos", poss), ("table", table), ("rotated", rotated)):
        put(name, a)
    put("kv", kv.astype(np.float16).astype(np.float32) if fmt == "f16" else kv.astype(np.float32))

for heads, dim, top_k, fmt, whole, poss in ((3, 12, 4, "f32", 0, [[2, 3, 4, 5, 17]]), (20, 128, 7, "f16", 0, [[30], [6]]), (5, 24, 3, "f16", 1, [[30, 31], [29]]),
                                            (33, 128, 9, "f16", 1, [[70], [8, 9]]), (4, 12, 600, "f16", 1, [[599, 600, 640]])):
    block_size, layers, layer, hd = 8, 2, 1, 8
    longest = max(max(p) for p in poss) + 1
    max_blocks = -(-longest // block_size)
    n_blocks = max_blocks * len(poss)
    table = rng.permutation(n_blocks).reshape(len(poss), max_blocks)
    seqs = np.array([s for s, p in enumerate(poss) for _ in p] + [0xFFFFFFFF])
    pos = np.array([x for p in poss for x in p] + [0])
    n = len(seqs)
    if whole: # numbers that add up without rounding: scores are equal where they are, and the lower position is chosen
        keys, q, weights = (rng.integers(-m, m + 1, s).astype(np.float32) for m, s in ((2, (n_blocks, block_size, dim)), (3, (n, heads, dim)), (4, (n, heads))))
        keys[:, :, 3:] = q[:, :, 3:] = 0
        weights[:] = np.abs(weights)
    else:
        keys, q, weights = f32(n_blocks, block_size, dim).astype(np.float16).astype(np.float32), f32(n, heads, dim), f32(n, heads)
    chosen = np.full((n, top_k), 0xFFFFFFFF)
    for t in range(n - 1):
        at = np.arange(pos[t] + 1)
        key = keys[table[seqs[t], at // block_size], at % block_size].astype(np.float64)
        score = np.maximum(key @ q[t].T.astype(np.float64), 0) @ weights[t].astype(np.float64)
        best = np.argsort(-score, kind="stable")
        if len(at) > top_k:
            gap = score[best[top_k - 1]] - score[best[top_k]]
            assert gap > 1e-2 if not whole else gap >= 0, gap
        chosen[t, : min(top_k, len(at))] = np.sort(best[:top_k])
    case("index", heads=heads, kv_heads=1, hd=hd, vd=4, dim=dim, top_k=top_k, fmt=fmt, block_size=block_size, blocks=n_blocks, layers=layers,
         layer=layer, max_blocks=max_blocks, longest=longest)
    kv = np.concatenate([np.full((n_blocks, block_size * hd), 7.0), keys.reshape(n_blocks, -1)], axis=1)
    for name, a in (("q", q), ("weights", weights), ("kv", kv), ("seq", seqs), ("pos", pos), ("table", table), ("chosen", chosen)):
        put(name, a)

for heads, hd, vd, dim, top_k, fmt, poss in ((4, 12, 8, 0, 3, "f32", [[0, 1, 2, 3, 9]]), (5, 40, 24, 16, 6, "f16", [[17, 18], [3]]),
                                             (3, 576, 512, 128, 4, "f16", [[9]]), (2, 8, 4, 0, 530, "f32", [[560]])):
    block_size, layers, layer = 8, 2, 1
    longest = max(max(p) for p in poss) + 1
    max_blocks = -(-longest // block_size)
    n_blocks = max_blocks * len(poss)
    table = rng.permutation(n_blocks).reshape(len(poss), max_blocks)
    kv = f32(n_blocks, block_size, hd)
    if fmt == "f16":
        kv = kv.astype(np.float16).astype(np.float32)
    seqs = np.array([s for s, p in enumerate(poss) for _ in p] + [0xFFFFFFFF])
    pos = np.array([x for p in poss for x in p] + [0])
    q = f32(len(seqs), heads * hd)
    out, chosen = np.zeros((len(seqs), heads, vd)), np.full((len(seqs), top_k), 0xFFFFFFFF)
    for t in range(len(seqs) - 1):
        at = np.sort(rng.permutation(pos[t] + 1)[:top_k])
        chosen[t, : len(at)] = at
        cell = kv[table[seqs[t], at // block_size], at % block_size].astype(np.float64)
        for h in range(heads):
            score = cell @ q[t].reshape(heads, hd)[h].astype(np.float64) * hd**-0.5
            e = np.exp(score - score.max())
            out[t, h] = (e / e.sum()) @ cell[:, :vd]
    case("attention", heads=heads, kv_heads=1, hd=hd, vd=vd, dim=dim, window=0, sinks=0, fmt=fmt, scale=hd**-0.5, block_size=block_size,
         blocks=n_blocks, layers=layers, layer=layer, max_blocks=max_blocks, longest=longest, top_k=top_k)
    kv = np.concatenate([kv.reshape(n_blocks, -1), np.full((n_blocks, block_size * dim), np.nan)], axis=1)
    for name, a in (("q", q), ("kv", kv), ("seq", seqs), ("pos", pos), ("table", table), ("chosen", chosen)):
        put(name, a)
    put("o", out)
