#!/usr/bin/env python3
"""Writes vectors.json: for logits and sampling parameters, the exact distribution the next token must follow.

The definitions are transformers' (RepetitionPenaltyLogitsProcessor, TemperatureLogitsWarper, TopKLogitsWarper,
TopPLogitsWarper, MinPLogitsWarper) and OpenAI's presence and frequency penalties, written out in numpy float64.
    python3 tests/data/sample/make.py > tests/data/sample/vectors.json
"""
import json
import numpy as np

rng = np.random.default_rng(20240611)


def softmax(x):
    e = np.exp(x - np.max(x))
    return e / e.sum()


def distribution(logits, p, prompt, output):
    s = logits.astype(np.float64).copy()
    seen = sorted(set(prompt) | set(output))
    r = p["repetition_penalty"]
    for t in seen:
        s[t] = s[t] * r if s[t] < 0 else s[t] / r
    for t in set(output):
        s[t] -= p["frequency_penalty"] * output.count(t) + p["presence_penalty"]
    for t, b in p["bias"]:
        s[t] += b
    for t in p["banned"]:
        s[t] = -np.inf
    if p["temperature"] == 0:
        d = np.zeros(len(s))
        d[int(np.argmax(s))] = 1
        return d
    s = s / p["temperature"]
    if p["top_k"]:
        kth = np.sort(s)[-min(p["top_k"], len(s))]
        s[s < kth] = -np.inf
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
    return softmax(s)


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
for vocab in (50, 700):
    for v in variants:
        p = {**base, **v}
        # Multiples of 1/64: exact in float32, and with ties.
        logits = np.round(rng.normal(0, 2.5, vocab) * 64) / 64
        prompt = [int(x) for x in rng.integers(0, vocab, 12)]
        output = [int(x) for x in rng.integers(0, min(vocab, 30), 15)]
        d = distribution(logits, p, prompt, output)
        lp = np.log(softmax(logits))
        order = np.argsort(-logits, kind="stable")[:5]
        cases.append({"params": p, "prompt": prompt, "output": output, "logits": logits.tolist(),
                      "p": [round(float(x), 9) for x in d], "logprobs": [round(float(x), 7) for x in lp],
                      "top5": [int(x) for x in order]})
print(json.dumps({"cases": cases}, separators=(",", ":")))
