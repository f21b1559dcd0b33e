#!/usr/bin/env python3
"""Writes dry.json: sequences of tokens and what DRY takes off which token's logit.

The penalty is p-e-w's (oobabooga/textgen#5677): where the last tokens have stood before, the token that followed then would go on the
repetition, and loses multiplier * base^(length - allowed length). From llama.cpp come the window, the bound of the exponent, that the
longest repetition counts, and that a token in which a breaker stands is never penalised. Here without any cleverness: every position
is compared with the end, and breakers are looked for in the text.
    python3 tests/data/sample/make_dry.py > tests/data/sample/dry.json
"""
import json
import math
import random


def unbroken(ids, texts, breakers):
    """The number of tokens after the last one in which a breaker ends."""
    if not breakers:
        return len(ids)
    text, end_of = b"", []
    for i in ids:
        text += texts[i]
        end_of.append(len(text))
    ends = [at + len(b) for b in breakers for at in range(len(text)) if text.startswith(b, at)]
    if not ends:
        return len(ids)
    return len(ids) - 1 - next(k for k, end in enumerate(end_of) if end >= max(ends))


def penalties(ids, texts, breakers, multiplier, base, allowed, last_n):
    window = ids if last_n < 0 else ids[len(ids) - min(last_n, len(ids)):]
    n = len(window)
    most = min(n, unbroken(ids, texts, breakers))
    longest = {}
    for i in range(1, n):
        length = 0
        while length < min(most, i) and window[i - 1 - length] == window[n - 1 - length]:
            length += 1
        if length >= allowed and most >= allowed:
            longest[window[i]] = max(longest.get(window[i], 0), length)
    bound = int(88.7228391 / math.log(base)) if base > 1.000001 else math.inf
    return {t: multiplier * base ** min(length - allowed, bound) for t, length in longest.items()
            if not any(b in texts[t] for b in breakers)}


def byte_alphabet():
    """GPT-2's printable stand-ins for bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in plain]
    return {**{b: chr(b) for b in plain}, **{b: chr(256 + i) for i, b in enumerate(rest)}}


def main():
    rng = random.Random(20261130)
    texts = [w.encode() for w in ["a", "b", "c", "d", " ", "\n", ":", "ab", " a", "c:", ":\n", "User", "Us", "er", "\"", "*", "**", "d\n\n"]]
    texts += [b"\xe3", b"\x80", b"\x82", b"\xe3\x80", b"er:", b"s"]
    letters, all_ids = [0, 1, 2, 3], list(range(len(texts)))
    default = ["\n", ":", "\"", "*"]
    cases = []

    def add(ids, breakers, multiplier=0.75, base=1.75, allowed=2, last_n=-1):
        found = penalties(ids, texts, [b.encode() for b in breakers], multiplier, base, allowed, last_n)
        cases.append({"ids": ids, "breakers": breakers, "multiplier": multiplier, "base": base, "allowed_length": allowed,
                      "last_n": last_n, "want": sorted(found.items())})

    # a b c c b c d a b c: c follows three of the last tokens, b one, d two.
    example = [0, 1, 2, 2, 1, 2, 3, 0, 1, 2]
    for allowed in range(5):
        add(example, [], allowed=allowed)
    for last_n in range(12):
        add(example, [], allowed=1, last_n=last_n)
    for ids in ([], [0], [0, 0], [0, 1], [0] * 30, [0, 1] * 20, [0, 1, 2] * 20 + [0, 1], [0] * 200):
        for allowed in (0, 1, 2):
            add(ids, [], allowed=allowed)
    add([0] * 2000, [])
    add([0] * 300, [], base=1.0)
    add([0] * 300, [], base=100.0, multiplier=100.0)
    add([0, 1, 5, 0, 1, 5, 0, 1], default, allowed=1)
    add([0, 1, 2, 5, 0, 1, 2, 5], default, allowed=0)
    add([11, 6, 0, 1, 2, 11, 6, 0, 1], ["User:"], allowed=1)          # User :
    add([12, 13, 6, 0, 1, 2, 12, 13, 6, 0, 1], ["User:"], allowed=1)  # Us er :
    add([12, 22, 0, 1, 2, 12, 22, 0, 1], ["User:"], allowed=1)        # Us er:
    add([18, 19, 20, 0, 1, 18, 19, 20, 0], ["\u3002"], allowed=1)     # a character of three tokens
    add([21, 20, 0, 1, 21, 20, 0], ["\u3002"], allowed=1)
    add([17, 0, 1, 17, 0], ["\n\n"], allowed=1)
    add([5, 5, 0, 1, 5, 5, 0], ["\n\n", "ab"], allowed=1)
    add([0, 1, 0, 1, 0, 1], ["ab"], allowed=0)
    add([0, 1, 0, 1, 0, 1], ["x" * 64, "ab" * 32], allowed=0)
    add([0, 1] * 40, ["ab" * 32], allowed=0)
    add([0, 1] * 40, ["ba" * 32], allowed=0)
    for i in range(300):
        some = rng.choice([letters, letters, all_ids, [0, 5], [0, 1, 6, 7, 9], [11, 12, 13, 6, 22, 23, 0]])
        ids = [rng.choice(some) for _ in range(rng.randrange(0, 80))]
        if len(ids) > 8 and rng.random() < 0.5:
            ids += ids[rng.randrange(len(ids)):][:rng.randrange(1, 30)]
        breakers = rng.choice([[], default, ["User:"], ["User:", "\n"], ["ab", "ba"], ["\u3002"], ["s"], [": ", "c"]])
        add(ids, breakers, rng.choice([0.5, 0.75, 4.0]), rng.choice([1.0, 1.25, 1.75, 3.0]), rng.choice([0, 1, 1, 2, 3, 6]),
            rng.choice([-1, -1, -1, 5, 20, 1000]))
    alphabet = byte_alphabet()
    vocab = {"".join(alphabet[b] for b in t): i for i, t in enumerate(texts)}
    tokenizer = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
                 "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
                 "post_processor": None, "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
                 "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                           "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "vocab": vocab, "merges": []}}
    print(json.dumps({"tokenizer": tokenizer, "cases": cases}, separators=(",", ":")))


if __name__ == "__main__":
    main()
