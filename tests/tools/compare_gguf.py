#!/usr/bin/env python3
"""Compares tokenizers read from GGUF with the libraries that the models came from.

usage: compare_gguf.py TOKBENCH FIXTURES [TEXTS]

FIXTURES is a folder that tokenizer_vectors.py made: each of its pipelines that has a name in tokenizer.ggml.pre is written to a
GGUF file (PyPI `gguf`) and must give the ids of `tokenizers`. SentencePiece models are trained here, with several
settings, and must give the ids and texts of `sentencepiece`. Exits 1 on any difference."""
import io, json, os, random, struct, subprocess, sys, tempfile

os.environ["TOKENIZERS_PARALLELISM"] = "false"
import gguf, sentencepiece
from sentencepiece import sentencepiece_model_pb2 as pb
from tokenizers import Tokenizer

import tokenizer_vectors as vectors

PRE = {"gpt2": "gpt-2", "neox_olmoe": "olmo", "mpt": "mpt", "llama3": "llama-bpe", "llama4": None, "qwen2": "qwen2", "qwen35": "qwen35", "o200k": "gpt-4o", "tekken": "tekken",
       "deepseek_v3": "deepseek-v3", "deepseek_v2": "deepseek-llm", "deepseek_coder": "deepseek-coder", "glm45": "glm4", "kimi": "kimi-k2", "minimax_m2": "minimax-m2",
       "granite": "refact", "starcoder2": "starcoder", "command_r": "command-r", "dbrx": "dbrx", "hunyuan": "hunyuan", "hunyuan_v3": "hunyuan-dense", "grok2": "grok-2",
       "seed": "seed-coder", "youtu": "youtu", "afmoe": "afmoe", "jais2": "jais-2", "k2_horizon": "k2-horizon", "laguna": "laguna", "minicpm5": "minicpm5", "superbpe": "superbpe",
       "bloom": "bloom", "smollm": "smollm", "chameleon": "chameleon", "olmo2": "dbrx", "phi2_codegen": "phi-2"}
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


def write(path, model, pre, tokens, types, scores=None, merges=None, **kv):
    w = gguf.GGUFWriter(path, "llama")
    w.add_tokenizer_model(model)
    if pre:
        w.add_tokenizer_pre(pre)
    w.add_token_list(tokens)
    w.add_token_types(types)
    if scores:
        w.add_token_scores(scores)
    if merges:
        w.add_token_merges(merges)
    for k, v in kv.items():
        getattr(w, k)(v)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def run(tool, path, texts, tmp):
    """The ids of each text, or an error."""
    with open(f"{tmp}/text", "wb") as f:
        f.write(b"\0".join(s.encode() for s in texts))
    done = subprocess.run([tool, path, f"{tmp}/text", f"{tmp}/ids"], capture_output=True, text=True)
    if done.returncode:
        return done.stderr.strip()
    data, at, out = open(f"{tmp}/ids", "rb").read(), 0, []
    while at < len(data):
        n = struct.unpack_from("=I", data, at)[0]
        out.append(list(struct.unpack_from(f"={n}I", data, at + 4)))
        at += 4 + 4 * n
    return out


def report(name, texts, got, want):
    if isinstance(got, str):
        print(f"{name}: {got}")
        return 1
    wrong = [i for i in range(len(texts)) if got[i] != want[i]]
    for i in wrong[:2]:
        k = next((k for k, (a, b) in enumerate(zip(got[i], want[i])) if a != b), min(len(got[i]), len(want[i])))
        print(f"  {texts[i][:80]!r}: at {k} got {got[i][k:k+6]} want {want[i][k:k+6]}")
    print(f"{name}: {len(texts)} texts, {len(wrong)} differ", flush=True)
    return len(wrong)


def from_hugging_face(tool, folder, texts, tmp):
    bad = 0
    for name, pre in PRE.items():
        path = f"{folder}/tokenizers/{name}.tokenizer.json"
        if not pre or not os.path.exists(path):
            continue
        j = json.load(open(path, encoding="utf-8"))
        j["added_tokens"] = [dict(a, normalized=False, lstrip=False, rstrip=False, single_word=False) for a in j["added_tokens"]]
        vocab = {i: t for t, i in j["model"]["vocab"].items()} | {a["id"]: a["content"] for a in j["added_tokens"]}
        types = {a["id"]: CONTROL if a["special"] else USER for a in j["added_tokens"]}
        n = max(vocab) + 1
        write(f"{tmp}/t.gguf", "gpt2", pre, [vocab.get(i, f"[PAD{i}]") for i in range(n)], [types.get(i, NORMAL if i in vocab else UNUSED) for i in range(n)],
              merges=[m if isinstance(m, str) else " ".join(m) for m in j["model"]["merges"]])
        t = Tokenizer.from_str(json.dumps(j))
        bad += report(f"{pre} ({name})", texts, run(tool, f"{tmp}/t.gguf", texts, tmp), [t.encode(s, add_special_tokens=False).ids for s in texts])
    return bad


def from_sentencepiece(tool, corpus, texts, tmp):
    bad = 0
    for name, kw in {"llama2": dict(), "no_prefix": dict(add_dummy_prefix=False), "no_bytes": dict(byte_fallback=False)}.items():
        out = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(corpus), model_writer=out, vocab_size=1500, model_type="bpe", minloglevel=2, hard_vocab_limit=False,
                                                 **{**dict(byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False, split_digits=True, character_coverage=0.995,
                                                           allow_whitespace_only_pieces=True), **kw})
        sp, m = sentencepiece.SentencePieceProcessor(model_proto=out.getvalue()), pb.ModelProto()
        m.ParseFromString(out.getvalue())
        write(f"{tmp}/t.gguf", "llama", "default", [p.piece for p in m.pieces], [p.type for p in m.pieces], scores=[p.score for p in m.pieces],
              add_bos_token_id=1, add_eos_token_id=2, add_unk_token_id=0, add_add_space_prefix=kw.get("add_dummy_prefix", True))
        # SentencePiece never parses control tokens in text, and these texts have none
        plain = [s for s in texts if s and not any(x in s for x in ("<s>", "</s>", "<unk>", "<|im_start|>", "<pad>"))]
        bad += report(f"sentencepiece {name}", plain, run(tool, f"{tmp}/t.gguf", plain, tmp), [sp.encode(s) for s in plain])
    return bad


def main():
    tool, folder, n = sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 1000
    rng = random.Random(11)
    texts = [s.replace("\0", "") for s in vectors.SENTENCES + [vectors.make_text(rng) for _ in range(n)]]
    texts = [s for s in texts if s]
    corpus = [line for s in vectors.SENTENCES * 20 for line in s.replace("\0", "").splitlines() if line.strip()]
    with tempfile.TemporaryDirectory() as tmp:
        bad = from_hugging_face(tool, folder, texts, tmp) + from_sentencepiece(tool, corpus, texts, tmp)
    sys.exit(bad != 0)


main()
