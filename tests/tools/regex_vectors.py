"""Texts that a regular expression matches and texts that it does not: regex_vectors.py > vectors.json, for tests/unit/test_regex.c.

Which is which is said by re.fullmatch of Python. Texts are made at random from what Python has read of the expression, and changed a little. Beside
them: what Python's classes have, as ranges of code points."""
import json
import random
import re
import signal
import sys
from re import _constants as code
from re import _parser

PATTERNS = [
    r"yes|no|maybe", r"(?:yes|yes please)", r"positive|negative|neutral", r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])", r"(?P<h>[01]\d|2[0-3]):(?P<m>[0-5]\d)",
    r"((25[0-5]|(2[0-4]|1\d|[1-9]|)\d)\.?){4}", r"\w+@\w+\.com\n", r"[A-Z][a-z]{2,10}( [A-Z][a-z]{2,10})*", r"^\+?\d{1,3}([ -]\d{2,4}){2,3}$",
    r"#[0-9a-fA-F]{6}", r"(\d+(\.\d+)?|\.\d+)([eE][+-]?\d+)?", r"[^\n]{0,12}", r".{3,5}", r"[\s\S]{2,4}", r"(a|ab)(c|bcd)(d*)", r"(a*)*", r"(a?b?)+c", r"(?:(?:a{2}){3}){1,2}",
    r"", r"^$", r"a||b", r"(|a)b", r"()a()", r"a{,2}b", r"a{0}b", r"a{2,}", r"a{,}c", r"x{", r"{a}", r"a{b}", r"a{1,2", r"a{ 1}", r"a{1,2}?b??c*?d+?", r"[]a]+", r"[^]a]+", r"[a\]b]+", r"[a-]+", r"[-a]+",
    r"[--/]+", r"[a^]+", r"[\w-]+", r"[\d.,]+", r"[^\d\s]{2}", r"[^\w]{2}", r"[^\W\d]{2}", r"[\D]{2}", r"\D\d\W\w\S\s", r"\.\*\+\?\(\)\[\]\{\}\|\^\$\\\/\-\"\'\ \#\&\~\_\<\>\=\!\@\%\:\,\;", "\\é\\\n\\漢",
    r"\n\r\t\f\v\a", r"\x41\u00e9\U0001F642", r"[\x41-\x43\u00e0-\u00ff\n\]]+", r"[\b\t]+", r"\Aab\Z", r"(^a|b)c$", r"a*^b", r"(a$|ab)", r"é+", r"[à-ü]{2,3}", r"[α-ω]+ [А-я]+", r"[一-龥]{2}さん?", r"🙂|🙃{2}", r"[🙀-🙃]+",
    r".🙂.", r"[^a]é", r"Ä\w+", r"(ä|ö|ü|ß)+", r"[^é漢🙂]+", r"\{\"name\": \"[^\"\\\n]{1,8}\", \"age\": \d{1,3}\}", r"(?P<a>x(?P<b>y(?P<c>z)))+", r"(\((\d,)*\d\))+", r"\s*\w+\s*=\s*(\w+|\"[^\"]*\")\s*;?",
    r"(ab|cd){2,3}(e|f)?", r"[ab]*a[ab]{5}", r"(0|1(01*0)*1)+", r"(a|b|c|d|e|f)*(fed|cba)", r"\t[ ]{2}\S.*", r"[\s]+|[\S]+", r"a.c", r"a\.c", r"(?:)", r"(?:)*a", r"(a|)+b",
]
POOL = "aabbccd01_ .-\n\t\"é漢🙂ÄZ@"
CLASSES = [r"\d", r"\D", r"\w", r"\W", r"\s", r"\S", r"[^\d]", r"[^\D]", r"[^\w]", r"[^\W]", r"[^\s]", r"[^\S]", r".", r"[^a]", r"[^\w\s]", r"[\W\d]"]


def random_pattern(rng, depth=0):
    def atom():
        kind = rng.randrange(10 if depth < 3 else 8)
        if kind < 3:
            return rng.choice(["a", "b", "c", "é", "漢", r"\.", r"\n", r"\x61", r"\u00e9", " ", "1"])
        if kind < 6:
            return rng.choice([".", "[ab]", "[^a]", "[a-c]", "[^a-c é]", "[é漢]", "[a\\d]", "[^\\w]", "[\\s\\S]", "[\\W_]"])
        if kind < 8:
            return rng.choice([r"\d", r"\w", r"\s", r"\D", r"\W", r"\S", "a", "b"])
        inner = random_pattern(rng, depth + 1)
        return rng.choice(["(%s)", "(?:%s)", "(?P<g%d>%%s)" % rng.randrange(10**9)]) % inner

    def repeated():
        return atom() + rng.choice(["", "", "", "*", "+", "?", "{2}", "{1,2}", "{2,}", "{,2}", "*?", "+?", "??", "{1,3}?"])

    ways = ["".join(repeated() for _ in range(rng.randrange(4 if depth else 1, 5) if not depth else rng.randrange(3))) for _ in range(rng.choice([1, 1, 2, 3]))]
    text = "|".join(ways)
    return rng.choice(["", "", "", "^"]) + text + rng.choice(["", "", "", "$"]) if not depth else text


def char_of(items, rng):
    negate, ok = items[0][0] is code.NEGATE, []
    pattern = re.compile("[\\s\\S]")
    for _ in range(300):
        c = rng.choice(POOL) if rng.random() < 0.7 else chr(rng.choice([rng.randint(32, 126), rng.randint(0xE0, 0xFF), rng.randint(0x3B1, 0x3C9), rng.randint(0x4E00, 0x4F00), rng.randint(0x1F600, 0x1F643)]))
        if not negate and rng.random() < 0.6:
            op, arg = rng.choice(items)
            if op is code.LITERAL:
                c = chr(arg)
            elif op is code.RANGE:
                c = chr(rng.randint(*arg))
        if matches_class(items, c) and pattern.fullmatch(c):
            return c
    raise ValueError("no character")


def matches_class(items, c):
    tests = {code.CATEGORY_DIGIT: r"\d", code.CATEGORY_NOT_DIGIT: r"\D", code.CATEGORY_SPACE: r"\s", code.CATEGORY_NOT_SPACE: r"\S", code.CATEGORY_WORD: r"\w", code.CATEGORY_NOT_WORD: r"\W"}
    found = False
    for op, arg in items:
        if op is code.LITERAL:
            found |= ord(c) == arg
        elif op is code.RANGE:
            found |= arg[0] <= ord(c) <= arg[1]
        elif op is code.CATEGORY:
            found |= bool(re.fullmatch(tests[arg], c))
    return found != (items[0][0] is code.NEGATE)


def make(tree, rng):
    out = ""
    for op, arg in tree:
        if op is code.LITERAL:
            out += chr(arg)
        elif op is code.NOT_LITERAL:
            out += char_of([(code.NEGATE, None), (code.LITERAL, arg)], rng)
        elif op is code.ANY:
            out += char_of([(code.NEGATE, None), (code.LITERAL, 10)], rng)
        elif op is code.IN:
            out += char_of(arg, rng)
        elif op is code.BRANCH:
            out += make(rng.choice(arg[1]), rng)
        elif op is code.SUBPATTERN:
            out += make(arg[3], rng)
        elif op in (code.MAX_REPEAT, code.MIN_REPEAT):
            low, high, inner = arg
            out += "".join(make(inner, rng) for _ in range(min(low + rng.choice([0, 0, 1, 2, 3]), high)))
        else:
            assert op is code.AT, op
    return out


def change(text, rng):
    i, c = rng.randint(0, len(text)), rng.choice(POOL + text)
    return rng.choice([text[:i] + text[i + 1:], text[:i] + c + text[i:], text[:i] + c + text[i + 1:], text[:i], text + "\n", text + text[-1:]])


def vectors(pattern, rng, count):
    tree, texts = _parser.parse(pattern), {"", "a", "\n"}
    for _ in range(count):
        try:
            text = make(tree, rng)
        except ValueError:
            continue
        if len(text) < 60:
            texts.update([text, change(text, rng), change(change(text, rng), rng)])
    signal.alarm(2)  # Python goes back and forth: what it is not soon done with is left out
    return {"regex": pattern, "texts": [[t, bool(re.fullmatch(pattern, t))] for t in sorted(texts)]}


def too_long(*_):
    raise TimeoutError


def ranges_of(pattern):
    out, test = [], re.compile(pattern)
    for cp in range(0x110000):
        if test.fullmatch(chr(cp)):
            if out and out[-1][1] == cp - 1:
                out[-1][1] = cp
            else:
                out.append([cp, cp])
    return out


if __name__ == "__main__":
    rng = random.Random(21)
    patterns = dict.fromkeys(PATTERNS + [random_pattern(rng) for _ in range(250)])
    judged = []
    signal.signal(signal.SIGALRM, too_long)
    for p in patterns:
        try:
            judged.append(vectors(p, rng, 25 if p in PATTERNS else 12))
        except TimeoutError:
            print("left out:", p, file=sys.stderr)
        signal.alarm(0)
    taken = sum(ok for v in judged for _, ok in v["texts"])
    print(len(judged), "expressions,", sum(len(v["texts"]) for v in judged), "texts,", taken, "taken", file=sys.stderr)
    json.dump({"expressions": judged, "classes": [[c, ranges_of(c)] for c in CLASSES]}, sys.stdout, ensure_ascii=True, separators=(",", ":"))
