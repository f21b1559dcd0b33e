#!/usr/bin/env python3
"""Makes tokenizers with the pipelines of many models, and vectors for them by the PyPI package `tokenizers`.

usage: tokenizer_vectors.py FOLDER [TEXTS] [SEED] [NAME...|random=COUNT]

Real tokenizer.json files are large and often not free to copy; what can go wrong is their pipeline. Each is built here around a
small vocabulary trained on the spot. Compare with EXPERTD_FIXTURES_DIR=FOLDER build/tests/unit/test_tok_vectors."""
import gzip, json, os, random, sys

os.environ["TOKENIZERS_PARALLELISM"] = "false"
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

N, P, D, R = normalizers, pre_tokenizers, decoders, Regex
MS = "\u2581"

# ---- patterns as the models' files have them ----
CONTR = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = CONTR + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|" + TAIL
QWEN2 = CONTR + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|" + TAIL
QWEN35 = CONTR + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
UP, LOW = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
HEAD = r"[^\r\n\p{L}\p{N}]?"
O200K = f"{HEAD}{UP}*{LOW}+{CONTR}?|{HEAD}{UP}+{LOW}*{CONTR}?" + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TEKKEN = f"{HEAD}{UP}*{LOW}+|{HEAD}{UP}+{LOW}*" + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
KUP, KLOW = UP[:-1] + r"&&[^\p{Han}]]", LOW[:-1] + r"&&[^\p{Han}]]"
KIMI = r"[\p{Han}]+|" + f"{HEAD}{KUP}*{KLOW}+{CONTR}?|{HEAD}{KUP}+{KLOW}*{CONTR}?" + r"|\p{N}{1,3}|" + TAIL
DSV3 = (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^" + "\r\n" + r"\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[" + "\r\n" + r"]*|\s*["
        + "\r\n" + r"]+|\s+(?!\S)|\s+")
KANA = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
BAILING = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
BLOOM = " ?[^(\\s|[.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c])]+"
AYA_DIGITS = r"\d{1,3}(?=(?:\d{3})*\b)"
CLIP = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
OLMO2 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
GROK = QWEN2
YOUTU0 = "[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f]+|[\u3105-\u312f]+|[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
AFMOE_DIGITS = r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))"
AFMOE_CJK = ("[\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf\u0e00-\u0e7f\u0e80-\u0eff\u1780-\u17ff\u1000-\u109f"
             "\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+")
JAIS2 = (CONTR + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)"
         r"|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}")
K2HORIZON = CONTR + "|[^\\r\\n\\p{L}\\p{N}]?(?:\\p{L}|\\p{M}|\u200c|\u200d)+|\\p{N}{1,3}|" + TAIL
SUPERBPE = [(r"\p{N}+", "isolated"), (r"(?=(\d{3})+(?!\d))", "isolated")]
EXAONE_MOE = CONTR + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
SEED = CONTR + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"


def split(pattern, behavior="isolated", invert=False):
    return P.Split(R(pattern), behavior, invert)


def bytes_(**kw):
    return P.ByteLevel(**{"add_prefix_space": False, "use_regex": False, **kw})


def splits(*patterns):
    return P.Sequence([split(p) for p in patterns] + [bytes_()])


CASED_FILE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../engine/text/tok_gguf.c")


def deepseek_llm_letters():
    """The class of cased letters that DeepSeek-LLM's file spells out."""
    import re
    src = open(CASED_FILE, encoding="utf-8").read()
    body = src[src.index("#define CASED"):]
    body = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', body[:body.index("\n\n")]))
    return body.replace("\\\\", "\\")


SPM_DEC = lambda: D.Sequence([D.Replace(MS, " "), D.ByteFallback(), D.Fuse(), D.Strip(" ", 1, 0)])
SPM_DEC_KEEP = lambda: D.Sequence([D.Replace(MS, " "), D.ByteFallback(), D.Fuse()])
LEGACY = lambda: N.Sequence([N.Prepend(MS), N.Replace(" ", MS)])


def template(t, before=("<s>",), after=()):
    ids = [(x, t.token_to_id(x)) for x in dict.fromkeys(before + after)]
    return processors.TemplateProcessing(single=" ".join(before + ("$A",) + after), pair=" ".join(before + ("$A", "$B")), special_tokens=ids)


# name: dict(kind, norm, pre, dec, post, model options, added flags)
def pipelines():
    bl, out = dict(kind="bytes", dec=D.ByteLevel), {}
    def add(name, **kw):
        out[name] = kw
    def byte(name, pre, **kw):
        add(name, **{**bl, "pre": pre, **kw})
    byte("gpt2", lambda: P.ByteLevel(add_prefix_space=False))
    byte("gpt2_prefix", lambda: P.ByteLevel(add_prefix_space=True), post="bytes_offsets")
    byte("roberta", lambda: P.ByteLevel(add_prefix_space=False), post="roberta")
    byte("neox_olmoe", lambda: P.ByteLevel(add_prefix_space=False, trim_offsets=True), norm=N.NFC)
    byte("llama3", lambda: splits(LLAMA3), model=dict(ignore_merges=True), post="bos_seq")
    byte("llama4", lambda: splits(O200K), post="bos_seq")
    byte("qwen2", lambda: splits(QWEN2), norm=N.NFC)
    byte("qwen35", lambda: splits(QWEN35), norm=N.NFC)
    byte("o200k", lambda: splits(O200K), model=dict(ignore_merges=True))
    byte("tekken", lambda: splits(TEKKEN), model=dict(ignore_merges=True), post="bos")
    byte("deepseek_v3", lambda: splits(r"\p{N}{1,3}", KANA, DSV3), norm=lambda: N.Sequence([]))
    byte("deepseek_v2", lambda: P.Sequence([split("[\r\n]"), split(r"\s?" + deepseek_llm_letters()[3:]), split("\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"),
                                            split(r"\s+$"), split("[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"), P.Digits(individual_digits=True), bytes_()]))
    byte("deepseek_coder", lambda: P.Sequence([split("[\r\n]"), split(r"\s?\p{L}+"), split(r"\s?\p{P}+"), split("[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"),
                                               P.Digits(individual_digits=True), bytes_()]))
    byte("glm45", lambda: splits(LLAMA3), model=dict(ignore_merges=True), post="bytes_offsets")
    byte("kimi", lambda: splits(KIMI), model=dict(ignore_merges=True))
    byte("minimax_m2", lambda: splits(O200K.replace("[\\r\\n/]*", "[\\r\\n/]*")))
    byte("granite", lambda: P.Sequence([P.Digits(individual_digits=True), P.ByteLevel(add_prefix_space=False)]))
    byte("starcoder2", lambda: P.Sequence([P.Digits(individual_digits=True), P.ByteLevel(add_prefix_space=False, use_regex=True)]))
    byte("command_r", lambda: P.Sequence([P.Digits(individual_digits=True), P.ByteLevel(add_prefix_space=False)]), norm=N.NFC, post="bos")
    byte("aya_command_a", lambda: splits(AYA_DIGITS, O200K), norm=N.NFC, post="bos_seq")
    byte("olmo2", lambda: splits(OLMO2))
    byte("dbrx", lambda: splits(LLAMA3))
    byte("hunyuan", lambda: splits(QWEN2))
    byte("hunyuan_v3", lambda: splits(r"\p{N}{1,3}", KANA, DSV3))
    byte("ernie45_byte", lambda: splits(QWEN2))
    byte("grok2", lambda: splits(GROK))
    byte("bailing", lambda: splits(BAILING), norm=N.NFC)
    byte("seed", lambda: splits(SEED))
    byte("exaone_moe", lambda: splits(EXAONE_MOE), norm=N.NFC)
    byte("youtu", lambda: splits(YOUTU0, O200K.replace(r"\p{N}{1,3}", r"\p{N}")), model=dict(ignore_merges=True))
    byte("afmoe", lambda: splits(AFMOE_DIGITS, AFMOE_CJK, DSV3))
    byte("jais2", lambda: splits(JAIS2))
    byte("k2_horizon", lambda: splits(K2HORIZON))
    byte("laguna", lambda: splits(r"[^\n]+|[\n]+", QWEN2))
    byte("minicpm5", lambda: splits(r"\p{N}{1,3}", QWEN2.replace(r"\p{N}|", r"\p{N}+|")), model=dict(ignore_merges=True))
    byte("superbpe", lambda: P.Sequence([split(p, b) for p, b in SUPERBPE] + [bytes_()]))
    byte("falcon", lambda: P.Sequence([P.Punctuation("contiguous"), P.ByteLevel(add_prefix_space=False), P.Digits(individual_digits=False), split("[0-9][0-9][0-9]")]))
    byte("bloom", lambda: P.Sequence([split(BLOOM), bytes_()]), post="bytes_offsets")
    byte("phi2_codegen", lambda: P.ByteLevel(add_prefix_space=False), added="flags")
    byte("mpt", lambda: P.ByteLevel(add_prefix_space=False), norm=N.NFC, added="flags")
    byte("stablelm2", lambda: splits(QWEN2), norm=N.NFC, added="flags")
    byte("smollm", lambda: P.Sequence([P.Digits(individual_digits=True), P.ByteLevel(add_prefix_space=False)]))
    byte("chameleon", lambda: P.Sequence([split("<sentinel:[0-9]+>"), split("(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z"), split("([\\t\\n]|    |  )"), P.Digits(True), P.Punctuation("isolated"),
                                          P.ByteLevel(add_prefix_space=False)]))
    byte("norm_byte_level", lambda: P.Whitespace(), norm=lambda: N.Sequence([N.NFD(), N.ByteLevel()]))
    byte("norm_lower_strip", lambda: splits(LLAMA3), norm=lambda: N.Sequence([N.NFKC(), N.Strip(), N.Lowercase(), N.StripAccents()]), added="flags")
    byte("norm_replace_regex", lambda: P.ByteLevel(), norm=lambda: N.Sequence([N.Replace(R(r"\s+"), " "), N.Replace(R("[\u2018\u2019]"), "'"), N.NFKD()]), added="flags")
    byte("norm_nmt", lambda: P.ByteLevel(), norm=lambda: N.Sequence([N.Nmt(), N.NFKC()]))
    for b in ("removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"):
        for inv in (False, True):
            byte(f"split_{b}_{int(inv)}", lambda b=b, inv=inv: P.Sequence([split(r"\p{L}+|\d", b, inv), bytes_()]))
        byte(f"punct_{b}", lambda b=b: P.Sequence([P.Punctuation(b), bytes_()]))
        byte(f"split_string_{b}", lambda b=b: P.Sequence([P.Split(" ", b), bytes_()]))
    byte("whitespace_split", lambda: P.Sequence([P.WhitespaceSplit(), bytes_(add_prefix_space=True)]))
    byte("char_delimiter", lambda: P.Sequence([P.CharDelimiterSplit("e"), P.CharDelimiterSplit("\u3002"), bytes_()]))
    byte("bert_pretokenizer", lambda: P.Sequence([P.BertPreTokenizer(), bytes_(add_prefix_space=True)]))
    byte("claude", lambda: P.ByteLevel(add_prefix_space=False), norm=N.NFKC, added="flags")
    byte("whitespace", lambda: P.Sequence([P.Whitespace(), P.ByteLevel(add_prefix_space=True)]))
    byte("dec_strip_bytes", lambda: P.ByteLevel(add_prefix_space=True), dec=lambda: D.Sequence([D.ByteLevel(), D.Strip(" ", 1, 2)]))
    byte("dec_replace_bytes", lambda: P.ByteLevel(), dec=lambda: D.Sequence([D.ByteLevel(), D.Replace("th", "TH"), D.Replace(R("[0-9]+"), "#")]))
    # SentencePiece-like BPE
    spm = dict(kind="spm", dec=SPM_DEC, model=dict(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    def sp(name, **kw):
        add(name, **{**spm, **kw})
    sp("llama2_mixtral_legacy", norm=LEGACY, post="bos", added="flags")
    sp("mistral_metaspace_first", pre=lambda: P.Metaspace(prepend_scheme="first", split=False), post="bos", added="flags")
    sp("metaspace_always", pre=lambda: P.Metaspace(prepend_scheme="always", split=True), dec=lambda: D.Metaspace(prepend_scheme="always"), added="flags")
    sp("metaspace_always_nosplit", pre=lambda: P.Metaspace(prepend_scheme="always", split=False), added="flags")
    sp("metaspace_first_split", pre=lambda: P.Metaspace(prepend_scheme="first", split=True), dec=lambda: D.Metaspace(prepend_scheme="first"), added="flags")
    sp("metaspace_never", pre=lambda: P.Metaspace(prepend_scheme="never", split=True), dec=lambda: D.Metaspace(prepend_scheme="never"), added="flags")
    sp("gemma2", norm=lambda: N.Replace(" ", MS), dec=SPM_DEC_KEEP, post="bos", added="flags")
    sp("gemma3_split", norm=lambda: N.Replace(" ", MS), pre=lambda: P.Split(" ", "merged_with_previous"), dec=SPM_DEC_KEEP, post="bos", added="flags")
    sp("gemma4_newlines", norm=lambda: N.Replace(" ", MS), pre=lambda: split(r"[^\n]+|[\n]+"), dec=SPM_DEC_KEEP, post="bos", added="flags")
    sp("phi35_moe", norm=LEGACY, post="bos", added="rstrip", model=dict(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    sp("jamba", norm=LEGACY, post="bos", added="flags")
    sp("ernie45", norm=lambda: N.Sequence([N.Replace(" ", MS)]), dec=SPM_DEC_KEEP, added="flags")
    sp("minicpm_nfkc", norm=lambda: N.Sequence([N.NFKC(), N.Prepend(MS), N.Replace(" ", MS)]), post="bos_eos", added="flags")
    sp("plain_unk", norm=LEGACY, model=dict(byte_fallback=False, fuse_unk=True, unk_token="<unk>"), post="bos_eos", added="flags")
    sp("plain_unk_unfused", norm=LEGACY, model=dict(byte_fallback=False, fuse_unk=False, unk_token="<unk>"), added="flags")
    sp("no_unk", norm=LEGACY, model=dict(byte_fallback=False, fuse_unk=False), added="flags")
    sp("bytes_partly", norm=LEGACY, model=dict(byte_fallback=True, fuse_unk=False, unk_token="<unk>"), few_bytes=True, added="flags")
    sp("no_decoder", pre=lambda: P.Metaspace(), dec=None)
    sp("digits_metaspace", pre=lambda: P.Sequence([P.Digits(True), P.Punctuation(), P.Metaspace(prepend_scheme="first")]), dec=lambda: D.Sequence([D.Metaspace(), D.ByteFallback(), D.Fuse()]))
    add("clip", kind="suffix", norm=lambda: N.Sequence([N.NFC(), N.Replace(R(r"\s+"), " "), N.Lowercase()]), pre=lambda: P.Sequence([split(CLIP, "removed", True), bytes_()]),
        dec=lambda: D.BPEDecoder("</w>"), model=dict(unk_token="<unk>", end_of_word_suffix="</w>"), post="bos_eos")
    add("subword_prefix", kind="suffix", pre=P.Whitespace, dec=lambda: D.BPEDecoder("</w>"), model=dict(unk_token="<unk>", continuing_subword_prefix="##"))
    # Unigram
    uni = dict(kind="unigram", dec=lambda: D.Metaspace())
    def ug(name, **kw):
        add(name, **{**uni, **kw})
    ug("t5_like", norm=lambda: N.Sequence([N.Nmt(), N.NFKC(), N.Replace(R(" {2,}"), " ")]), pre=lambda: P.Sequence([P.WhitespaceSplit(), P.Metaspace()]), post="eos", added="flags")
    ug("xlnet_like", norm=lambda: N.Sequence([N.Replace("``", '"'), N.Replace("''", '"'), N.NFKD(), N.StripAccents(), N.Lowercase(), N.Replace(R(" {2,}"), " ")]), pre=lambda: P.Metaspace())
    ug("unigram_bytes", norm=LEGACY, dec=SPM_DEC, bytes=True, added="flags")
    ug("unigram_first", pre=lambda: P.Metaspace(prepend_scheme="first", split=False), dec=SPM_DEC, bytes=True, post="bos")
    ug("charsmap", charsmap="nmt_nfkc", pre=lambda: P.Metaspace(), post="eos", added="flags")
    ug("charsmap_cf", charsmap="nmt_nfkc_cf", pre=lambda: P.Metaspace(), added="flags")
    sp("charsmap_bpe", charsmap="nfkc", norm=LEGACY, added="flags")
    return out


def random_pipeline(rng):
    """Steps that no model would put together."""
    norms = [N.NFC, N.NFD, N.NFKC, N.NFKD, N.Lowercase, N.StripAccents, N.Nmt, lambda: N.Strip(rng.random() < 0.7, rng.random() < 0.7), lambda: N.Prepend(rng.choice((MS, "x", "e\u0301"))),
             lambda: N.Replace(" ", MS), lambda: N.Replace(rng.choice(("a", "e\u0301", "  ", "th", MS)), rng.choice(("", "b", "xyz", " "))),
             lambda: N.Replace(R(rng.choice((r"\s+", r"[aeiou]+", r"\p{M}", r"(?<=a)b?", r"^.", r"\n$", r"\d{2,3}", "a*"))), rng.choice(("", "-", " ", "ab")))]
    pats = [LLAMA3, QWEN2, O200K, KIMI, BAILING, DSV3, r"\p{N}{1,3}", r"\s+", r"[^\n]+|\n+", r"\b", r"\w+|\W", r"(?=\p{Lu})", r"a*", KANA, r"\p{Han}|\p{Hiragana}+", r"[[:punct:]]+", r"\S{1,5}", AYA_DIGITS]
    behaviors = ("removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous")
    scheme = lambda: rng.choice(("always", "never", "first"))
    pres = [lambda: split(rng.choice(pats), rng.choice(behaviors), rng.random() < 0.3), lambda: P.Split(rng.choice((" ", "a", ".", "\n")), rng.choice(behaviors), rng.random() < 0.2),
            lambda: P.Digits(rng.random() < 0.5), lambda: P.Punctuation(rng.choice(behaviors)), P.Whitespace, P.WhitespaceSplit, P.BertPreTokenizer,
            lambda: P.Metaspace(prepend_scheme=scheme(), split=rng.random() < 0.5), lambda: P.ByteLevel(add_prefix_space=rng.random() < 0.5, use_regex=rng.random() < 0.5)]
    decs = [D.ByteLevel, D.ByteFallback, D.Fuse, lambda: D.Metaspace(prepend_scheme=scheme()), lambda: D.Strip(rng.choice((" ", "a", MS)), rng.randint(0, 3), rng.randint(0, 3)),
            lambda: D.Replace(rng.choice((MS, " ", "th", "ab", "\u0120")), rng.choice((" ", "", "xyz"))), lambda: D.Replace(R(rng.choice((r"\s+", "[0-9]+", "a*", r"^."))), rng.choice(("", "#", " "))),
            lambda: D.BPEDecoder("</w>")]
    # Metaspace's "first" after ByteLevel goes by the bytes of the first character: no model does that, nor does expertd.
    last = lambda steps: sorted(steps, key=lambda x: isinstance(x, P.ByteLevel))
    some = lambda kind, cls, n: (lambda: cls(last([rng.choice(kind)() for _ in range(rng.randint(0, n))]))) if rng.random() < 0.9 else None
    kind = rng.choice(("bytes", "spm", "spm", "unigram"))
    model = dict(byte_fallback=rng.random() < 0.6, fuse_unk=rng.random() < 0.5, unk_token="<unk>") if kind == "spm" else dict(ignore_merges=rng.random() < 0.5) if kind == "bytes" else {}
    pre = some(pres, P.Sequence, 3)
    if kind == "bytes" and rng.random() < 0.7:
        inner = pre
        pre = lambda: P.Sequence(([inner()] if inner else []) + [bytes_()])
    return dict(kind=kind, norm=some(norms, N.Sequence, 4), pre=pre, dec=some(decs, D.Sequence, 4), model=model, added=rng.choice((None, "flags")), bytes=rng.random() < 0.5,
                post=rng.choice((None, "bos", "bos_eos", "eos", "bos_seq", "roberta")))


# ---- texts ----
SENTENCES = ["The quick brown fox jumps over the lazy dog's back, and then it doesn't stop.", "def f(x):\n\treturn x ** 2  # comment\n", "I'LL we'Ve they\u017fS I'\u017f 'S 'T's",
             "\u00c9t\u00e9 na\u00efve \u0130stanbul stra\u00dfe \u01c5 \u1e9e", "\u4f60\u597d\u4e16\u754c\uff0c\u4eca\u5929\u5929\u6c14\u771f\u597d\u3002", "\u3053\u3093\u306b\u3061\u306f\u30ab\u30bf\u30ab\u30ca \u6f22\u5b57",
             "\uc548\ub155\ud558\uc138\uc694 \u1112\u1161\u11ab\u1100\u116e\u11a8", "\u0645\u0631\u062d\u0628\u0627 \u0628\u0643 \u060c \u06d4", "\u0928\u092e\u0938\u094d\u0924\u0947 \u0915\u094d\u0937", "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35",
             "1234567890 3.14159 1,000,000 \u0661\u0662\u0663 \u00b2\u00b3\u00bd \u2167 \u0be7", "\U0001F469\u200D\U0001F469\u200D\U0001F467\u200D\U0001F466 \U0001F1E9\U0001F1EA \u2764\ufe0f \U0001F44D\U0001F3FD",
             "e\u0301a\u0327\u0301 q\u0307\u0323 \u0344 \ufdfa \ufb01 \u212b \u1e9b\u0323", "   leading,\u00a0nbsp\u3000wide\u2003em\u200bzero\u2028line\u2029para\u0085nel  ", "\r\n\r\n\n\n \n \t\n\r x \r\n", "a\u0000b\u0001\u001f\u007f\u0080\u009f",
             "<s>hi</s> <mask> <|im_start|>user", "https://example.com/a_b?c=d&e=%20#f", "x=1;y=2;//z\n{\"a\": [1, 2.5e-3]}", MS + "a" + MS * 3 + "b " + MS, "\u0120\u010a\u00c3\u00a9", "``quoted'' \u2018x\u2019 \u201cy\u201d \u2026", "\ufeffbom \ufffd \ufffe",
             "\U0010FFFF\U000E0001\U00020000\U0001D400", "<0x41><0xE2><0x96>", "CamelCaseHTTPServer snake_case SCREAMING_CASE iPhone", "((()))[[{{<<>>}}]]!!!???...---___===", "\u0f71\u0f72\u0f74\u0f80", "don't\u2019t \u02bcs 'd've", "0000000000000000000000012"]
RANGES = [(0x20, 0x7E), (0x20, 0x7E), (0x20, 0x7E), (0, 0x1F), (0x7F, 0xFF), (0x100, 0x24F), (0x250, 0x36F), (0x300, 0x36F), (0x370, 0x52F), (0x530, 0x6FF), (0x700, 0x8FF), (0x900, 0xDFF), (0xE00, 0xEFF), (0xF00, 0x10FF), (0x1100, 0x11FF),
          (0x1200, 0x1CFF), (0x1D00, 0x1DFF), (0x1E00, 0x1FFF), (0x2000, 0x206F), (0x2070, 0x2BFF), (0x2C00, 0x2FFF), (0x3000, 0x30FF), (0x3100, 0x33FF), (0x4E00, 0x9FFF), (0xA000, 0xABFF), (0xAC00, 0xD7FF), (0xE000, 0xF8FF), (0xF900, 0xFFFF),
          (0x10000, 0x10FFF), (0x11000, 0x13FFF), (0x16000, 0x18FFF), (0x1B000, 0x1DFFF), (0x1E000, 0x1EFFF), (0x1F000, 0x1FAFF), (0x1FB00, 0x1FFFF), (0x20000, 0x32FFF), (0xE0000, 0xE01FF), (0, 0x10FFFF)]
SPACES = [" ", " ", " ", "\n", "\t", "\r\n", "\r", "  ", "\n\n", "\u00a0", "\u3000", "\u2003", "\u2028", "\u0085", "\u200b", "\u1680", "\x0b", "\x0c", "\u202f", "\u205f", "\u180e", "   \n", " \t "]
CONTRACTIONS = ["'s", "'S", "'\u017f", "'t", "'T", "'re", "'RE", "'Re", "'rE", "'ve", "'VE", "'m", "'M", "'ll", "'LL", "'lL", "'d", "'D", "'x", "\u2019s"]
SPECIALS = ["<s>", "</s>", "<mask>", "<|im_start|>", "<unk>", "[W]", "<w>", "aBc", "<sp ace>", "<nrm>", "\u00c9X", "<l>", "<r>", "Lower", "x y"]


def make_text(rng):
    parts = []
    for _ in range(rng.randint(1, rng.choice((3, 8, 30)))):
        k = rng.random()
        if k < 0.30:
            parts.append(rng.choice(SENTENCES))
        elif k < 0.45:
            parts.append(rng.choice(SPACES) * rng.choice((1, 1, 2, 3, 17)))
        elif k < 0.55:
            parts.append(rng.choice("abIyouthey") + rng.choice(CONTRACTIONS))
        elif k < 0.62:
            parts.append("".join(rng.choice("0123456789" if rng.random() < 0.9 else "\u0661\u00b2\u2167\uff11") for _ in range(rng.choice((1, 2, 3, 4, 7, 12, 40)))))
        elif k < 0.72:
            parts.append(rng.choice(SPECIALS))
        elif k < 0.76:
            parts.append(rng.choice("aA'\u00e9\u4f60.!\u0301 \U0001F600") * rng.randint(2, 60))
        else:
            lo, hi = rng.choice(RANGES)
            parts.append("".join(chr(c) for c in (rng.randint(lo, hi) for _ in range(rng.randint(1, 12))) if not 0xD800 <= c <= 0xDFFF))
    return "".join(parts)


def words(rng, n):
    """What vocabularies are trained on. No NUL: jansson takes none in an object's key."""
    return [s.replace("\0", "") for s in [make_text(rng) for _ in range(n)] + SENTENCES * 3]


def make_charsmap(name):
    """SentencePiece's own table of a normalization rule, taken from a model that it trains."""
    import io, sentencepiece as spm
    from sentencepiece import sentencepiece_model_pb2 as pb
    out = io.BytesIO()
    spm.SentencePieceTrainer.train(sentence_iterator=iter(["hello world this is a test of pieces"] * 20), model_writer=out, vocab_size=30, model_type="unigram",
                                   hard_vocab_limit=False, normalization_rule_name=name, minloglevel=2)
    m = pb.ModelProto()
    m.ParseFromString(out.getvalue())
    return m.normalizer_spec.precompiled_charsmap


def build(name, spec, rng, corpus):
    kind, special = spec["kind"], ["<unk>", "<s>", "</s>"]
    norm, pre, dec = (spec[k]() if spec.get(k) else None for k in ("norm", "pre", "dec"))
    opts = dict(spec.get("model", {}))
    if spec.get("charsmap"):
        pc = N.Precompiled(make_charsmap(spec["charsmap"]))
        norm = N.Sequence([pc, norm]) if norm else pc
    if kind == "unigram":
        t = Tokenizer(models.Unigram())
        if norm: t.normalizer = norm
        if pre: t.pre_tokenizer = pre
        t.train_from_iterator(corpus[-3 * len(SENTENCES):], trainers.UnigramTrainer(vocab_size=900, special_tokens=special, unk_token="<unk>", show_progress=False))
        j = json.loads(t.to_str())
        if spec.get("bytes"):
            j["model"]["vocab"] = j["model"]["vocab"][:3] + [["<0x%02X>" % b, -20.0] for b in range(256)] + j["model"]["vocab"][3:]
            j["model"]["byte_fallback"] = True
        j["added_tokens"] = []
        t = Tokenizer.from_str(json.dumps(j))
        t.add_special_tokens(special)
    else:
        t = Tokenizer(models.BPE(**opts))
        if norm: t.normalizer = norm
        if pre: t.pre_tokenizer = pre
        alphabet = P.ByteLevel.alphabet() if kind == "bytes" else []
        kw = {k: opts[k] for k in ("end_of_word_suffix", "continuing_subword_prefix") if k in opts}
        if kind == "spm":
            special = special + ["<0x%02X>" % b for b in range(256) if not spec.get("few_bytes") or b % 3]
        t.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=1400, special_tokens=special, initial_alphabet=alphabet, show_progress=False, limit_alphabet=400, **kw))
        j = json.loads(t.to_str())
        j["added_tokens"] = [a for a in j["added_tokens"] if not a["content"].startswith("<0x")]
        for k, v in opts.items():
            j["model"][k] = v
        t = Tokenizer.from_str(json.dumps(j))
    if dec: t.decoder = dec
    flags = spec.get("added")
    if flags:
        rs = flags == "rstrip"
        t.add_special_tokens([AddedToken("<|im_start|>", special=True, rstrip=rs, normalized=False), AddedToken("<mask>", special=True, lstrip=True, rstrip=rs, normalized=False)])
        t.add_tokens([AddedToken("[W]", single_word=True), AddedToken("<w>", single_word=True, normalized=False), AddedToken("aBc", normalized=True), AddedToken("<sp ace>", normalized=True),
                      AddedToken("<nrm>", normalized=True, lstrip=True, rstrip=True), AddedToken("\u00c9X", normalized=True), AddedToken("<l>", lstrip=True, normalized=False),
                      AddedToken("<r>", rstrip=True, normalized=False), AddedToken("Lower", normalized=True), AddedToken("x y", normalized=False, single_word=True)])
    else:
        t.add_special_tokens(["<|im_start|>"])
        t.add_tokens([AddedToken("<mask>", normalized=False)])
    post = spec.get("post")
    if post == "bos": t.post_processor = template(t)
    elif post == "bos_eos": t.post_processor = template(t, ("<s>",), ("</s>",))
    elif post == "eos": t.post_processor = template(t, (), ("</s>",))
    elif post == "bos_seq": t.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template(t)])
    elif post == "bytes_offsets": t.post_processor = processors.ByteLevel(trim_offsets=True)
    elif post == "roberta": t.post_processor = processors.RobertaProcessing(("</s>", t.token_to_id("</s>")), ("<s>", t.token_to_id("<s>")), add_prefix_space=False)
    return t


def vectors(name, t, rng, n):
    """Where the reference panics there is nothing to compare with."""
    encode, decode, stream = [], [], []
    size = max(t.get_vocab(with_added_tokens=True).values()) + 1
    for i in range(n):
        s = SENTENCES[i] if i < len(SENTENCES) else make_text(rng)
        r = [rng.randrange(size) if rng.random() < 0.7 else rng.randrange(min(size, 300)) for _ in range(rng.randint(1, 14))]
        both = lambda ids: dict(decode=t.decode(ids, skip_special_tokens=True), decode_all=t.decode(ids, skip_special_tokens=False))
        try:
            ids = t.encode(s, add_special_tokens=False).ids
            encode.append(dict(cat="text", text=s, ids=ids, ids_special=t.encode(s, add_special_tokens=True).ids, **both(ids)))
            if i % 3 == 0:
                stream.append(dict(cat="text", ids=ids, skip_special_tokens=bool(i % 2), full=t.decode(ids, skip_special_tokens=bool(i % 2))))
            if i % 2 == 0:
                decode.append(dict(cat="random", ids=r, **both(r)))
                stream.append(dict(cat="random", ids=r, skip_special_tokens=False, full=t.decode(r, skip_special_tokens=False)))
        except BaseException as e:
            if type(e).__name__ != "PanicException":
                raise
    return dict(tokenizer=name, library="tokenizers", encode=encode, decode=decode, stream=stream)


def main():
    folder, n = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 400
    seed, only = int(sys.argv[3]) if len(sys.argv) > 3 else 1, sys.argv[4:]
    os.makedirs(f"{folder}/tokenizers", exist_ok=True)
    corpus = words(random.Random(5), 1200)
    todo = {name: spec for name, spec in pipelines().items() if not only or name in only}
    if only and only[0].startswith("random="):
        todo = {f"random{seed}_{i}": random_pipeline(random.Random(f"{seed} {i}")) for i in range(int(only[0][7:]))}
    for name, spec in todo.items():
        rng = random.Random(f"{seed} {name}")
        try:
            t = build(name, spec, rng, corpus)
        except BaseException as e:  # a panic of the trainer is not an Exception
            if isinstance(e, KeyboardInterrupt):
                raise
            print(f"{name}: {e}")
            continue
        with open(f"{folder}/tokenizers/{name}.tokenizer.json", "w", encoding="utf-8") as f:
            f.write(t.to_str())
        with gzip.open(f"{folder}/tokenizers/{name}.vectors.json.gz", "wt", encoding="utf-8") as f:
            json.dump(vectors(name, t, rng, n), f)
    print(len(todo), "pipelines")


if __name__ == "__main__":
    main()
