#!/usr/bin/env python3
"""Makes tests/data/tokenizers/kimi: a small tokenizer in the form of Kimi's, and the ids that the PyPI package `tiktoken` gives.

usage: tiktoken_vectors.py OUT

The ranks are trained on the texts; some tokens are of a rank that no merge reaches, as real vocabularies have them."""
import base64, collections, json, os, sys

import regex, tiktoken


HERE = os.path.dirname(os.path.abspath(__file__))
source = open(os.path.join(HERE, "compare_tokenizers.py"), encoding="utf-8").read()
scope = {}
exec(source[source.index("KIMI ="):source.index("def opened")], scope)
KIMI, OUT = scope["KIMI"], sys.argv[1]

TEXTS = ["The tide at Den Helder is 212 cm, isn't it?", "It'S 1234567 o'clock.\n\n\tWE'LL see  ", "宝石と真珠、你好世界。中文ABC混合 한국어", "naïve Ärger ÉCOLE straße İstanbul",
         "def f(x):\r\n    return x + 1  # ok\n\n\n", "🎉🚀 e\u0301 \u200d \x00\x7f", "", " ", "a", "<|im_end|>[BOS]<think>Hm.</think> <|reserved_token_700|>", "[EOT] <|im_ end|>",
         "HTTPServer camelCase snake_case X9 \u00a0\u3000x", "tide tides tidal tidemark helder Helder HELDER", "....,,,;;; --- ''' 'tis", "0 00 000 0000 ½ ٣٤٥٦",
         "qzqz zqzq qz"]
UNREACHED = [b"qzqz", b" zqzq", "真珠".encode()]


def train(n):
    words = collections.Counter(tuple(bytes([b]) for b in m.encode()) for t in TEXTS * 3 for m in regex.findall(KIMI, t, flags=regex.V1))
    ranks = {bytes([b]): b for b in range(256)}
    while len(ranks) < n:
        pairs = collections.Counter()
        for w, k in words.items():
            for a, b in zip(w, w[1:]):
                pairs[a, b] += k
        if not pairs:
            break
        (a, b), _ = min(pairs.items(), key=lambda p: (-p[1], p[0]))
        ranks.setdefault(a + b, len(ranks))
        merged = collections.Counter()
        for w, k in words.items():
            out, i = [], 0
            while i < len(w):
                two = i + 1 < len(w) and (w[i], w[i + 1]) == (a, b)
                out.append(a + b if two else w[i])
                i += 1 + two
            merged[tuple(out)] += k
        words = merged
    for t in UNREACHED:
        ranks.setdefault(t, len(ranks))
    return ranks


def main():
    ranks = train(420)
    n = len(ranks)
    added = {n: ("[BOS]", True), n + 1: ("[EOS]", True), n + 2: ("<|im_end|>", True), n + 5: ("<think>", False), n + 6: ("</think>", False), n + 9: ("[EOT]", True)}
    reserved = {i: f"<|reserved_token_{i}|>" for i in range(n, n + 10)}
    ref = tiktoken.Encoding("kimi", pat_str=KIMI, mergeable_ranks=ranks, special_tokens={v: k for k, v in (reserved | {k: v[0] for k, v in added.items()}).items()})
    os.makedirs(OUT, exist_ok=True)
    with open(f"{OUT}/tiktoken.model", "w") as f:
        f.writelines(f"{base64.b64encode(t).decode()} {r}\n" for t, r in ranks.items())
    with open(f"{OUT}/tokenizer_config.json", "w") as f:
        json.dump({"tokenizer_class": "TikTokenTokenizer", "auto_map": {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]},
                   "added_tokens_decoder": {str(k): {"content": c, "special": s} for k, (c, s) in added.items()}}, f, indent=1)
    texts = TEXTS + ["".join(TEXTS), f"<|reserved_token_{n + 3}|>x"] + [t[i:] for t in TEXTS for i in (1, 3, 7) if t[i:]]
    cases = [{"text": t, "ids": ref.encode(t, allowed_special="all")} for t in texts]
    with open(f"{OUT}/vectors.json", "w", encoding="utf-8") as f:
        f.write("[\n" + ",\n".join(json.dumps(c, ensure_ascii=False) for c in cases) + "\n]\n")


main()
