#!/usr/bin/env python3
"""Compares tokbench with the PyPI package `tokenizers`: ids, round trip and single-threaded speed.

usage: compare_tokenizers.py TOKBENCH MEGABYTES TOKENIZER.json[.gz]|DIR...
DIR has Kimi's tiktoken.model and tokenizer_config.json; its reference is the PyPI package `tiktoken`.
The text is made of what is on this machine (/usr/share, Python's sources, locale texts) and of noise; it is the same for the
same machine. Exits 1 on any difference."""
import glob, gzip, os, random, struct, subprocess, sys, tempfile, time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
from tokenizers import Tokenizer

random.seed(7)


def texts(limit):
    files = []
    for pattern in ("/usr/lib/python3*/**/*.py", "/usr/share/doc/**/*", "/usr/share/perl*/**/*.p[ml]",
                    "/usr/share/i18n/locales/*", "/usr/share/man/**/*.gz", "/usr/include/**/*.h", "/usr/share/common-licenses/*"):
        files += [f for f in sorted(glob.glob(pattern, recursive=True)) if os.path.isfile(f)]
    random.shuffle(files)
    total = 0
    for f in files:
        if total > limit * 0.75:
            break
        try:
            data = (gzip.open if f.endswith(".gz") else open)(f, "rb").read(200000)
        except OSError:
            continue
        s = data.decode("utf-8", "replace").replace("\0", "")
        if s:
            total += len(s.encode())
            yield s
    ranges = [(0x20, 0x7E), (0xA0, 0x24F), (0x370, 0x52F), (0x5D0, 0x6FF), (0x900, 0xDFF), (0xE01, 0xE5B), (0x1100, 0x11FF),
              (0x1E00, 0x1FFF), (0x2000, 0x2BFF), (0x3040, 0x30FF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0xF900, 0xFFEF),
              (0x1F300, 0x1FAFF), (0x10000, 0x1FFFF), (1, 0x10FFFF)]
    while total < limit:
        lo, hi = random.choice(ranges)
        spaces = random.choice((0.0, 0.1, 0.3))
        s = "".join(random.choice(" \n\t\r  ") if random.random() < spaces else
                    chr(c) for c in (random.randint(lo, hi) for _ in range(random.randint(1, 3000))) if not 0xD800 <= c <= 0xDFFF)
        if random.random() < 0.2:
            s += random.choice(("<|im_end|>", "<|endoftext|>", "<think>", " 's 'LL I'm", "a" * 500, " " * 500, "\n" * 99))
        if s:
            total += len(s.encode())
            yield s


KIMI = "|".join([r"[\p{Han}]+", r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
                 r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
                 r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])


def opened(path, tmp):
    """What tokbench opens, the reference's encode and decode, and whether its text comes back."""
    if os.path.isdir(path):
        import base64, json, tiktoken
        lines = open(f"{path}/tiktoken.model").read().splitlines()
        ranks = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in lines)}
        added = json.load(open(f"{path}/tokenizer_config.json"))["added_tokens_decoder"]
        ref = tiktoken.Encoding("kimi", pat_str=KIMI, mergeable_ranks=ranks, special_tokens={v["content"]: int(k) for k, v in added.items()})
        return path, lambda s: ref.encode(s, allowed_special="all"), ref.decode, True
    data = (gzip.open if path.endswith(".gz") else open)(path, "rb").read()
    with open(f"{tmp}/tok.json", "wb") as f:
        f.write(data)
    ref = Tokenizer.from_str(data.decode())
    return f"{tmp}/tok.json", lambda s: ref.encode(s, add_special_tokens=False).ids, ref.decode, b'"NFC"' not in data


def main():
    tool, mb, files = sys.argv[1], float(sys.argv[2]), sys.argv[3:]
    sample = list(texts(mb * 1e6))
    size = sum(len(s.encode()) for s in sample)
    bad = 0
    with tempfile.TemporaryDirectory() as tmp:
        with open(f"{tmp}/text", "wb") as f:
            f.write(b"\0".join(s.encode() for s in sample))
        for path in files:
            file, encode, decode, comes_back = opened(path, tmp)
            done = subprocess.run([tool, file, f"{tmp}/text", f"{tmp}/ids"] + (["roundtrip"] if comes_back else []),
                                  capture_output=True, text=True)
            ids, at = open(f"{tmp}/ids", "rb").read(), 0
            wrong, spent = 0, 0.0
            for s in sample:
                start = time.perf_counter()
                want = encode(s)
                spent += time.perf_counter() - start
                n = struct.unpack_from("=I", ids, at)[0] if at + 4 <= len(ids) else -1
                got = list(struct.unpack_from(f"={n}I", ids, at + 4)) if n >= 0 else None
                at += 4 + 4 * max(n, 0)
                if got != want:
                    wrong += 1
                    if wrong <= 3 and got is not None:
                        k = next((i for i, (a, b) in enumerate(zip(got, want)) if a != b), min(len(got), len(want)))
                        print(f"  differs: got {got[k:k+6]} want {want[k:k+6]} {decode(want[max(k-3,0):k+6])!r}")
            bad += wrong + (done.returncode != 0)
            print(f"{os.path.basename(path)}: {len(sample)} texts, {wrong} differ; expertd: {done.stdout.strip()} {done.stderr.strip()}; "
                  f"reference: {size / 1e6 / spent:.2f} MB/s", flush=True)
    sys.exit(bad != 0)


main()
