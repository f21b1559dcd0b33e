"""Texts that a GBNF grammar takes and texts that it does not: gbnf_vectors.py GRAMMAR.gbnf... > vectors.json; with --judge GEN TOKENIZER it
checks instead that what GEN (grammar-gen) makes with a grammar's masks is taken.

Which is which is said by the Earley parser of lark (PyPI), which knows nothing of expertd: the notation is read here and written in lark's,
every character a terminal of its own. Texts are made at random from the rules, and changed a little."""
import json
import random
import re
import string
import subprocess
import sys

from lark import Lark
from lark.exceptions import LarkError

ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "a": "\a", "b": "\b", "f": "\f", "v": "\v", "e": "\x1b", "0": "\0"}
TOKEN = re.compile(r'\s+|#[^\n]*|(?P<name>[\w-]+)(?P<rule>\s*::=)?|(?P<text>"(?:\\.|[^"\\])*")|(?P<cls>\[\^?(?:\\.|[^\]\\])*\])|(?P<count>\{[\d, ]+\})|(?P<op>[()|*+?.])',
                   re.S | re.A)


def characters(body):
    """Each character, and whether it was written as an escape."""
    out, i = [], 0
    while i < len(body):
        if body[i] != "\\":
            out.append((body[i], False))
            i += 1
            continue
        digits = {"x": 2, "u": 4, "U": 8}.get(body[i + 1], 0)
        out.append((chr(int(body[i + 2:i + 2 + digits], 16)) if digits else ESCAPES.get(body[i + 1], body[i + 1]), True))
        i += 2 + digits
    return out


def class_of(token):
    negate = token[1] == "^"
    chars, ranges, i = characters(token[2 if negate else 1:-1]), [], 0
    while i < len(chars):
        if i + 2 < len(chars) and chars[i + 1] == ("-", False):
            ranges.append((ord(chars[i][0]), ord(chars[i + 2][0])))
            i += 3
        else:
            ranges.append((ord(chars[i][0]),) * 2)
            i += 1
    return ("class", negate, ranges)


def read(text):
    tokens, at = [], 0
    while at < len(text):
        m = TOKEN.match(text, at)
        assert m, text[at:at + 30]
        at = m.end()
        if m.lastgroup:
            tokens.append((("rule", m["name"]) if m["rule"] else (m.lastgroup, m[m.lastgroup])))
    tokens.append(("end", ""))
    pos = 0

    def either():
        nonlocal pos
        ways = [[]]
        while tokens[pos][0] not in ("rule", "end") and tokens[pos] != ("op", ")"):
            kind, word = tokens[pos]
            pos += 1
            if (kind, word) == ("op", "|"):
                ways.append([])
                continue
            if kind == "count" or word in ("*", "+", "?"):
                low, _, high = word[1:-1].partition(",")
                low, high = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(word) or (
                    int(low), (int(high) if high.strip() else None) if "," in word else int(low))
                ways[-1][-1] = ("repeat", ways[-1][-1], low, high)
            elif kind == "op" and word == "(":
                ways[-1].append(either())
                pos += 1
            elif kind == "op":
                ways[-1].append(("class", True, []))
            elif kind == "name":
                ways[-1].append(("name", word))
            else:
                ways[-1].append(class_of(word) if kind == "cls" else ("text", "".join(c for c, _ in characters(word[1:-1]))))
        return ("either", ways)

    rules = {}
    while tokens[pos][0] != "end":
        name = tokens[pos][1]
        pos += 1
        rules[name] = either()
    return rules


def in_class(node, c):
    return (c != "\0") and any(lo <= ord(c) <= hi for lo, hi in node[2]) != node[1]


def lark_of(rules):
    names = {name: f"r{i}" for i, name in enumerate(rules)}

    def code(c): # lark reads \\U itself, before the regular expression is read
        return "\\" + chr(c) if chr(c) in string.punctuation else f"\\U{c:08x}"

    def write(node):
        kind = node[0]
        if kind == "either":
            return "(" + " | ".join(" ".join(map(write, way)) for way in node[1]) + ")"
        if kind == "name":
            return names[node[1]]
        if kind == "text":
            return "(" + " ".join(f"/[{code(ord(c))}]/" for c in node[1]) + ")"
        if kind == "class":
            return "/[" + ("^\\x00" if node[1] else "") + "".join(f"{code(lo)}-{code(hi)}" for lo, hi in node[2]) + "]/s"
        _, inner, low, high = node
        return f"{write(inner)}~{low}..{high}" if high is not None else f"({write(inner)}~{low} {write(inner)}*)" if low else f"{write(inner)}*"

    return Lark("\n".join(f"{names[n]}: {write(body)}" for n, body in rules.items()), start=names["root"], parser="earley",
                lexer="dynamic", regex=False)


class Sampler:
    def __init__(self, rules, rng):
        self.rules, self.rng = rules, rng
        self.least = {name: 10**6 for name in rules}
        for _ in rules:
            for name, body in rules.items():
                self.least[name] = min(self.least[name], 1 + self.depth(body))

    def depth(self, node):
        if node[0] == "either":
            return min(max([self.depth(x) for x in way], default=0) for way in node[1])
        if node[0] == "repeat":
            return self.depth(node[1]) if node[2] else 0
        return self.least[node[1]] if node[0] == "name" else 0

    def make(self, node, room):
        kind, rng = node[0], self.rng
        if kind == "either":
            fits = [w for w in node[1] if max([self.depth(x) for x in w], default=0) <= room]
            way = rng.choice(fits) if fits else min(node[1], key=lambda w: max([self.depth(x) for x in w], default=0))
            return "".join(self.make(x, room) for x in way)
        if kind == "name":
            return self.make(self.rules[node[1]], room - 1)
        if kind == "text":
            return node[1]
        if kind == "class":
            while True:
                lo, hi = rng.choice(node[2] if node[2] and not node[1] else [(32, 126), (32, 126), (9, 10), (0xA0, 0x17F), (0x3041, 0x30FF), (0x1F600, 0x1F640)])
                c = chr(rng.randint(lo, hi))
                if in_class(node, c):
                    return c
        _, inner, low, high = node
        more = 0 if self.depth(inner) > room else rng.choice([0, 0, 1, 2, 4])
        return "".join(self.make(inner, room) for _ in range(min(low + more, high if high is not None else 10**6)))


def takes(parser, text):
    try:
        parser.parse(text)
        return True
    except LarkError:
        return False


def change(text, rng, pool):
    for _ in range(rng.choice([1, 1, 2])):
        i = rng.randint(0, len(text))
        text = rng.choice([text[:i] + text[i + 1:], text[:i] + rng.choice(pool) + text[i:], text[:i] + rng.choice(pool) + text[i + 1:], text[:i], text[:i] + text[i - 1:]])
    return text


def vectors(path, rng):
    grammar = open(path, encoding="utf-8", newline="").read()
    rules = read(grammar)
    parser, sampler = lark_of(rules), Sampler(rules, rng)
    texts = {""} if "ambiguous" not in path else set()
    while len(texts) < 160:
        text = sampler.make(rules["root"], rng.randint(2, 9))
        if len(text) > 150:
            texts.add(text[:rng.randint(1, 60)])
            continue
        texts.add(text)
        pool = (text + '(){}[],:"x1- \n\t\\é漢🙂') or "x"
        texts.update(change(text, rng, pool) for _ in range(3))
    texts = sorted(t for t in texts if "\0" not in t)
    judged = [[t, takes(parser, t)] for t in texts]
    print(path, sum(ok for _, ok in judged), "taken,", sum(not ok for _, ok in judged), "not", file=sys.stderr)
    return {"name": path.rsplit("/", 1)[-1], "grammar": grammar, "texts": judged}


def judge(gen, tokenizer, paths):
    wrong = 0
    for path in paths:
        grammar = open(path, encoding="utf-8", newline="").read()
        parser = lark_of(read(grammar))
        out = json.loads(subprocess.run([gen, tokenizer, "60", "7"], input=json.dumps({"gbnf": grammar}) + "\n", capture_output=True, text=True, check=True).stdout)
        bad = [t for t in out["answers"] if len(t) < 400 and not takes(parser, t)]
        wrong += len(bad)
        print(f"{path}: {len(out['answers'])} answers ({out['cut']} cut), {len(bad)} wrong, slowest mask {out['ms']:.2f} ms, made in {out['compile_ms']:.2f} ms")
        for t in bad[:3]:
            print("   ", repr(t))
    return wrong


if __name__ == "__main__":
    if sys.argv[1] == "--judge":
        sys.exit(judge(sys.argv[2], sys.argv[3], sys.argv[4:]) > 0)
    rng = random.Random(20)
    json.dump([vectors(p, rng) for p in sys.argv[1:]], sys.stdout, ensure_ascii=True, separators=(",", ":"))
