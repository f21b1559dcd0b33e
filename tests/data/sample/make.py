#!/usr/bin/env python3
"""Writes vectors.json: for logits and sampling parameters, the exact distribution the next token must follow.

The definitions are transformers' (RepetitionPenaltyLogitsProcessor, TemperatureLogitsWarper, TopKLogitsWarper,
TopPLogitsWarper, MinPLogitsWarper, TypicalLogitsWarper) and OpenAI's presence and frequency penalties, written out in numpy
float64; top n sigma (arXiv:2411.07641), XTC (oobabooga/textgen#6335) and entropy-based dynamic temperature as described by their
authors; DRY by make_dry.py.
    python3 tests/data/sample/make.py > tests/data/sample/vectors.json
Where transformers and torch can be imported, typical_p is also compared with TypicalLogitsWarper itself.
"""
import json
import sys

import numpy as np

from make_dry import penalties

try:
    import torch
    from transformers import TypicalLogitsWarper
except ImportError:
    TypicalLogitsWarper = None

rng = np.random.default_rng(20240611)
compared = 0


def softmax(x):
    e = np.exp(x - np.max(x))
    return e / e.sum()


def typical(s, mass):
    """Locally typical sampling: by how far a token's surprise is from the entropy, as many as have the mass."""
    global compared
    with np.errstate(divide="ignore", invalid="ignore"):
        p = softmax(s)
        surprise = -np.log(p)
        entropy = np.nansum(p * surprise)
        shift = np.abs(surprise - entropy)
    order = np.argsort(shift, kind="stable")
    last = min(int((p[order].cumsum() < mass).sum()), len(s) - 1)
    out = np.where(shift > shift[order[last]], -np.inf, s)
    if TypicalLogitsWarper:
        theirs = TypicalLogitsWarper(mass=mass)(None, torch.tensor(s[None]))[0].numpy()
        assert (np.isinf(theirs) == np.isinf(out)).all()
        compared += 1
    return out


def xtc(s, threshold, temperature):
    """Of the tokens that have at least the threshold, all but the least likely go. Probabilities are those at temperature 1."""
    p = softmax(s * temperature)
    above = [t for t in sorted(range(len(s)), key=lambda t: (-s[t], t)) if s[t] > -np.inf and p[t] >= threshold]
    out = s.copy()
    out[above[:-1]] = -np.inf
    return out


def dynamic(s, temperature, extent, exponent):
    """s is at temperature 1."""
    left = s > -np.inf
    if left.sum() < 2:
        return s
    p = softmax(s)[left]
    p = p[p > 0]
    share = -(p * np.log(p)).sum() / np.log(left.sum())
    low, high = max(0, temperature - extent), temperature + extent
    t = low + (high - low) * share**exponent
    if t < 1e-5:
        return np.where(np.arange(len(s)) == np.argmax(s), 0, -np.inf)
    return s / t


def distribution(logits, p, prompt, output):
    s = logits.astype(np.float64).copy()
    seen = sorted(set(prompt) | set(output))
    r = p["repetition_penalty"]
    for t in seen:
        s[t] = s[t] * r if s[t] < 0 else s[t] / r
    for t in set(output):
        s[t] -= p["frequency_penalty"] * output.count(t) + p["presence_penalty"]
    if p.get("dry_multiplier"):
        found = penalties(prompt + output, None, [], p["dry_multiplier"], p["dry_base"], p["dry_allowed_length"], p["dry_last_n"])
        for t, v in found.items():
            s[t] -= v
    for t, b in p["bias"]:
        s[t] += b
    for t in p["banned"]:
        s[t] = -np.inf
    if p["temperature"] == 0:
        d = np.zeros(len(s))
        d[int(np.argmax(s))] = 1
        return d
    if p.get("top_n_sigma"):
        s[s < s.max() - p["top_n_sigma"] * logits.astype(np.float64).std()] = -np.inf
    first = 1 if p.get("dynatemp_range") else p["temperature"]
    s = s / first
    if p["top_k"]:
        kth = np.sort(s)[-min(p["top_k"], len(s))]
        s[s < kth] = -np.inf
    if p.get("typical_p", 1) < 1:
        s = typical(s, p["typical_p"])
    if p["top_p"] < 1:
        # The reference leaves the order of equal scores open (torch.sort): ours puts the lower id first.
        order = np.argsort(-s, kind="stable")[::-1]
        cum = softmax(s[order]).cumsum()
        remove = cum <= 1 - p["top_p"]
        remove[-1:] = False
        s[order[remove]] = -np.inf
    if p["min_p"] > 0:
        q = softmax(s)
        s[q < p["min_p"] * q.max()] = -np.inf
    chance, cut = p.get("xtc_probability", 0), s
    if chance:
        cut = xtc(s, p["xtc_threshold"], first)
    if p.get("dynatemp_range"):
        s, cut = (dynamic(x, p["temperature"], p["dynatemp_range"], p["dynatemp_exponent"]) for x in (s, cut))
    return (1 - chance) * softmax(s) + chance * softmax(cut)


base = dict(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, repetition_penalty=1.0, presence_penalty=0.0,
            frequency_penalty=0.0, bias=[], banned=[])
variants = [
    {}, {"temperature": 0.0}, {"temperature": 0.5}, {"temperature": 1.7}, {"top_k": 1}, {"top_k": 5}, {"top_k": 1000},
    {"top_p": 0.1}, {"top_p": 0.75}, {"top_p": 0.97}, {"min_p": 0.1}, {"min_p": 0.5},
    {"top_k": 8, "top_p": 0.8}, {"temperature": 0.7, "top_k": 20, "top_p": 0.9, "min_p": 0.05},
    {"repetition_penalty": 1.5}, {"repetition_penalty": 0.7}, {"presence_penalty": 1.5}, {"frequency_penalty": 0.9},
    {"repetition_penalty": 1.2, "presence_penalty": -0.5, "frequency_penalty": 0.4, "temperature": 0.8, "top_p": 0.9},
    {"bias": [[3, 5.0], [7, -100.0]]}, {"banned": [0, 1, 2]},
    {"temperature": 0.0, "repetition_penalty": 2.0}, {"temperature": 0.0, "bias": [[11, 100.0]]},
    {"temperature": 0.0, "banned": list(range(40))},
]
cases = []


def add(vocab, v, spread, prompt, output):
    p = {**base, **v}
    # Multiples of 1/64: exact in float32, and with ties.
    logits = np.round(rng.normal(0, spread, vocab) * 64) / 64
    prompt, output = prompt(), output()
    d = distribution(logits, p, prompt, output)
    lp = np.log(softmax(logits))
    order = np.argsort(-logits, kind="stable")[:5]
    cases.append({"params": p, "prompt": prompt, "output": output, "logits": logits.tolist(),
                  "p": [round(float(x), 9) for x in d], "logprobs": [round(float(x), 7) for x in lp],
                  "top5": [int(x) for x in order]})


def ids(below, n):
    return lambda: [int(x) for x in rng.integers(0, below, n)]


for vocab in (50, 700):
    for v in variants:
        add(vocab, v, 2.5, ids(vocab, 12), ids(min(vocab, 30), 15))

# Values that are exact in float32, so that no bound depends on its rounding.
warm = {"dynatemp_range": 0.5, "dynatemp_exponent": 1.0}
dry = {"dry_multiplier": 0.75, "dry_base": 1.75, "dry_allowed_length": 1, "dry_last_n": -1}
more = [
    {"typical_p": 0.25}, {"typical_p": 0.75}, {"typical_p": 0.96875}, {"typical_p": 0.5, "temperature": 0.5}, {"typical_p": 1.0},
    {"typical_p": 0.9375, "temperature": 1.5, "top_k": 20}, {"typical_p": 0.875, "top_p": 0.75}, {"typical_p": 0.0009765625},
    {"typical_p": 0.75, "banned": [0, 1, 2, 3]},
    {"top_n_sigma": 1.0}, {"top_n_sigma": 0.5, "temperature": 2.0}, {"top_n_sigma": 1.5, "banned": [4, 5]}, {"top_n_sigma": 100.0},
    {"top_n_sigma": 1.25, "presence_penalty": 2.0, "top_p": 0.875}, {"top_n_sigma": 0.0078125},
    {"xtc_probability": 1.0, "xtc_threshold": 0.125}, {"xtc_probability": 0.5, "xtc_threshold": 0.0625},
    {"xtc_probability": 0.5, "xtc_threshold": 0.0625, "temperature": 1.75}, {"xtc_probability": 0.75, "xtc_threshold": 0.03125, "temperature": 0.5},
    {"xtc_probability": 1.0, "xtc_threshold": 0.75}, {"xtc_probability": 1.0, "xtc_threshold": 0.0},
    {"xtc_probability": 0.5, "xtc_threshold": 0.0625, "top_p": 0.5}, {"xtc_probability": 1.0, "xtc_threshold": 0.03125, "min_p": 0.25},
    {"xtc_probability": 1.0, "xtc_threshold": 0.03125, "top_k": 1}, {"xtc_probability": 0.5, "xtc_threshold": 0.015625, "top_k": 10, "temperature": 0.75},
    {**warm}, {**warm, "temperature": 0.75, "dynatemp_exponent": 2.0}, {**warm, "dynatemp_range": 4.0, "top_k": 12},
    {**warm, "top_p": 0.75}, {**warm, "min_p": 0.125, "dynatemp_exponent": 0.5}, {**warm, "top_k": 1},
    {**warm, "dynatemp_range": 1.0, "dynatemp_exponent": 10.0, "top_k": 4}, {**warm, "dynatemp_exponent": 0.0},
    {**warm, "temperature": 1.25, "typical_p": 0.75, "xtc_probability": 0.5, "xtc_threshold": 0.0625, "top_n_sigma": 2.0, "top_p": 0.96875, "min_p": 0.03125, "top_k": 30},
    {"temperature": 0.0, "typical_p": 0.25, "top_n_sigma": 0.5, "xtc_probability": 1.0, "xtc_threshold": 0.03125, **warm},
    {**dry}, {**dry, "temperature": 0.0}, {**dry, "dry_last_n": 10}, {**dry, "dry_allowed_length": 0, "repetition_penalty": 1.25},
    {**dry, "dry_multiplier": 2.0, "top_n_sigma": 1.0, "xtc_probability": 0.5, "xtc_threshold": 0.0625, "temperature": 0.75},
]
for vocab, spread in ((50, 2.5), (120, 1.25)):
    for v in more:
        add(vocab, v, spread, ids(6 if "dry_base" in v else vocab, 12), ids(6, 15))
if TypicalLogitsWarper:
    print(f"{compared} comparisons with TypicalLogitsWarper", file=sys.stderr)
print(json.dumps({"cases": cases}, separators=(",", ":")))
