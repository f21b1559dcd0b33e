"""What a user may name as the model: GGUF files under any name, in parts, alone in a folder, of an older layout; and what is no model is told
as what it is. argv: PROGRAM SOURCE_ROOT."""
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

EXE, ROOT = sys.argv[1], sys.argv[2]
sys.path.insert(0, os.path.join(ROOT, "tests", "ops"))
from daemon import Daemon, TestCase  # noqa: E402

GOLDEN = os.path.join(ROOT, "tests", "data", "golden")
GGUF = os.path.join(GOLDEN, "mixtral-q4_k_m", "model.gguf")
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 4900000000\n"
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}


class Gguf:
    """A file in its parts, as ggml's docs/gguf.md describes them: keys as they stand, tensors as (name, dimensions, type, bytes)."""

    def __init__(self, path):
        with open(path, "rb") as f:
            d = f.read()
        version, n_tensors, self.n_keys = struct.unpack_from("<IQQ", d, 4)
        assert d[:4] == b"GGUF" and version == 3
        self.at, self.d = 24, d
        for _ in range(self.n_keys):
            self.string()
            self.value(self.number("<I"))
        self.keys = d[24:self.at]
        infos = []
        for _ in range(n_tensors):
            name = self.string()
            dims = [self.number("<Q") for _ in range(self.number("<I"))]
            infos.append((name, dims, self.number("<I"), self.number("<Q")))
        start = (self.at + 31) // 32 * 32
        ends = sorted(i[3] for i in infos) + [len(d) - start]
        self.tensors = [(n, dims, t, d[start + o:start + ends[ends.index(o) + 1]]) for n, dims, t, o in infos]

    def number(self, form):
        v = struct.unpack_from(form, self.d, self.at)[0]
        self.at += struct.calcsize(form)
        return v

    def string(self):
        n = self.number("<Q")
        self.at += n
        return self.d[self.at - n:self.at]

    def value(self, kind):
        if kind == 8:
            self.string()
        elif kind == 9:
            kind, n = self.number("<I"), self.number("<Q")
            for _ in range(n):
                self.value(kind)
        else:
            self.at += SIZES[kind]

    def write(self, path, tensors, more=b"", n_more=0):
        infos, data = b"", b""
        for name, dims, kind, body in tensors:
            infos += struct.pack("<Q", len(name)) + name + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, len(data))
            data += body + bytes(-len(body) % 32)
        head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), self.n_keys + n_more) + self.keys + more + infos
        with open(path, "wb") as f:
            f.write(head + bytes(-len(head) % 32) + data)


def key(name, kind, form, value):
    return struct.pack("<Q", len(name)) + name + struct.pack("<I" + form, kind, value)


class Models(TestCase):
    def setUp(self):
        self.dir = tempfile.TemporaryDirectory()
        self.addCleanup(self.dir.cleanup)

    def at(self, *names):
        return os.path.join(self.dir.name, *names)

    def copy(self, name, of=GGUF):
        os.makedirs(os.path.dirname(self.at(name)), exist_ok=True)
        return shutil.copy(of, self.at(name))

    def inspect(self, path):
        r = subprocess.run([EXE, "inspect", "-c", "/dev/null", path, "--json"], capture_output=True, text=True, timeout=180)
        self.assertEqual(r.returncode, 0, r.stderr)
        return json.loads(r.stdout)

    def refused(self, path, *words):
        """By inspect, check and serving; in a time, whatever lies there."""
        for args in (["inspect", path], ["check", "-m", path], ["-m", path, "--port=0", "--no-warm-start"], ["tokenize", path, "a"]):
            r = subprocess.run([EXE, *args, "-c", "/dev/null"], capture_output=True, text=True, timeout=180)
            self.assertEqual(r.returncode, 1 if args[0] == "check" else 66, (args, r.stderr))
            for w in words:
                self.assertIn(w, r.stderr + r.stdout, args)

    def served(self, path, *args):
        """Its name, and an answer."""
        d = Daemon(EXE, "-c", "/dev/null", "-m", path, "--pager.warm_start=no", *args).wait_ready()
        try:
            name = json.loads(d.ask("/v1/models")[1])["data"][0]["id"]
            status, body = d.ask("/v1/completions", dict(prompt=[3, 5, 7, 11], max_tokens=24, temperature=0, logprobs=3, ignore_eos=True,
                                                         return_token_ids=True))
            self.assertEqual(status, 200, body)
            c = json.loads(body)["choices"][0]
            return name, (c["token_ids"], c["logprobs"])
        finally:
            self.assertEqual(d.stop(), 0)

    def split(self, stem, first_gguf=GGUF):
        g = Gguf(first_gguf)
        half = len(g.tensors) // 2
        for no, part in enumerate((g.tensors[:half], g.tensors[half:])):
            g.write(f"{stem}-{no + 1:05}-of-00002.gguf", part, key(b"split.no", 2, "H", no) + key(b"split.count", 2, "H", 2) +
                    key(b"split.tensors.count", 5, "i", len(g.tensors)), 3)

    def test_a_file_is_told_by_its_content(self):
        want = self.inspect(GGUF)["expert_bytes"]
        for name in ("UPPER.GGUF", "sha256-0123", "models--x/blobs/0123", "model.bin"):
            self.assertEqual(self.inspect(self.copy(name))["expert_bytes"], want, name)

    def test_a_folder_with_one_file(self):
        self.copy("repo/Mix-Q4_K_M.gguf")
        self.copy("repo/mmproj-F16.gguf")
        with open(self.at("repo", "config.json"), "w", encoding="utf-8") as f:
            f.write("{}")  # repositories of GGUF files have the original's
        want = self.served(GGUF)
        self.assertEqual(self.served(self.at("repo")), ("repo", want[1]))
        self.split(self.at("repo", "Two"))
        self.refused(self.at("repo"), "holds 2 GGUF files, name one of them: Mix-Q4_K_M.gguf, Two-00001-of-00002.gguf")

    def test_a_folder_with_one_file_in_parts(self):
        os.mkdir(self.at("parts"))
        self.split(self.at("parts", "mix-Q4_K_M"))
        want = self.served(GGUF)
        self.assertEqual(want[0], "model")
        self.assertEqual(self.served(self.at("parts")), ("parts", want[1]))
        self.assertEqual(self.served(self.at("parts", "mix-Q4_K_M-00001-of-00002.gguf")), ("mix-Q4_K_M", want[1]))

    def test_one_tensor_for_each_expert(self):
        """As conversions of Mixtral older than April 2024 are."""
        g = Gguf(GGUF)
        old = []
        for name, dims, kind, body in g.tensors:
            if b"_exps.weight" not in name:
                old.append((name, dims, kind, body))
                continue
            n = len(body) // dims[2]
            old += [(name.replace(b"_exps", b".%d" % e), dims[:2], kind, body[e * n:(e + 1) * n]) for e in range(dims[2])]
        g.write(self.at("old.gguf"), old)
        self.assertGreater(len(old), len(g.tensors))
        self.assertEqual(self.served(self.at("old.gguf"))[1], self.served(GGUF)[1])
        pages = ["--memory.host_budget=4MiB", "--memory.nvme_path=" + self.at("pages")]
        if self.inspect(GGUF)["expert_bytes"] > 4 << 20:
            self.assertEqual(self.served(self.at("old.gguf"), *pages)[1], self.served(GGUF)[1])
        g.write(self.at("short.gguf"), [t for t in old if t[0] != b"blk.1.ffn_up.2.weight"])
        r = subprocess.run([EXE, "inspect", "-c", "/dev/null", self.at("short.gguf")], capture_output=True, text=True, timeout=180)
        self.assertIn("'blk.1.ffn_up.2.weight' is missing", r.stderr)

    def test_what_git_left_in_place_of_a_file(self):
        demo = os.path.join(ROOT, "config", "demo")
        for name in ("x.gguf", "no-extension"):
            with open(self.at(name), "w", encoding="utf-8") as f:
                f.write(POINTER)
            self.refused(self.at(name), "is a Git LFS pointer, not the file itself: run 'git lfs pull'")
        for name in ("model-00001-of-00002.safetensors", "tokenizer.json"):
            shutil.copytree(demo, self.at("demo"))
            with open(self.at("demo", name), "w", encoding="utf-8") as f:
                f.write(POINTER)
            r = subprocess.run([EXE, "-c", "/dev/null", "-m", self.at("demo"), "--port=0"], capture_output=True, text=True, timeout=180)
            self.assertEqual(r.returncode, 66, r.stderr)
            self.assertRegex(r.stderr, f"{name}' is a Git LFS pointer, .*'git lfs pull'")
            shutil.rmtree(self.at("demo"))

    def test_what_is_no_file_is_not_waited_for(self):
        for name in ("pipe", "pipe.gguf"):
            os.mkfifo(self.at(name))
            self.refused(self.at(name), "is neither a directory nor a regular file")
        self.refused("/dev/null", "is neither a directory nor a regular file")
        for name in ("model-00001-of-00002.safetensors", "tokenizer.json"):
            shutil.rmtree(self.at("demo"), ignore_errors=True)
            shutil.copytree(os.path.join(ROOT, "config", "demo"), self.at("demo"))
            os.remove(self.at("demo", name))
            os.mkfifo(self.at("demo", name))
            r = subprocess.run([EXE, "-c", "/dev/null", "-m", self.at("demo"), "--port=0"], capture_output=True, text=True, timeout=180)
            self.assertEqual(r.returncode, 66, r.stderr)
            self.assertIn(name, r.stderr)

    def test_a_page_file_in_no_place(self):
        demo = os.path.join(ROOT, "config", "demo")
        for place in (self.at("none", "pages"), self.dir.name, "/dev/null"):
            r = subprocess.run([EXE, "-c", "/dev/null", "-m", demo, "--port=0", "--memory.host_budget=4MiB", "--memory.nvme_path=" + place],
                               capture_output=True, text=True, timeout=180)
            self.assertEqual(r.returncode, 78, r.stderr)
            self.assertIn("memory.nvme_path", r.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
