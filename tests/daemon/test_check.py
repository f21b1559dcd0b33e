"""`expertd check` as the answer to "will it serve?": it fails where serving refuses, for the same reason, and nowhere else. argv: PROGRAM
SOURCE_ROOT."""
import json
import os
import re
import shutil
import subprocess
import sys
import unittest

EXE, ROOT = sys.argv[1], sys.argv[2]
BASE = ["-c", "/dev/null", "--port=0", "--backend=cpu", "--no-warm-start"]
sys.path.insert(0, os.path.join(ROOT, "tests", "ops"))
from daemon import Daemon, DemoCopy  # noqa: E402

RAM = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def cut(path, n):
    with open(path, "r+b") as f:
        f.truncate(n)


def edit(path, **changes):
    with open(path, encoding="utf-8") as f:
        doc = json.load(f)
    doc.update(changes)
    with open(path, "w", encoding="utf-8") as f:
        json.dump({k: v for k, v in doc.items() if v is not None}, f)


def write(path, text):
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)


class Check(DemoCopy):
    def at(self, name):
        return os.path.join(self.model, name)

    def check(self, *args):
        """(exit status, {id: line}) of a check."""
        r = subprocess.run([EXE, "check", *BASE, "--json", *args], capture_output=True, text=True, timeout=180)
        doc = json.loads(r.stdout)
        self.assertEqual(r.returncode, 0 if doc["ok"] else 1)
        return r.returncode, {line["id"]: line for line in doc["checks"]}

    def both_refuse(self, line, *args, why=""):
        """The line fails, and a start ends with just its message."""
        rc, lines = self.check(*args)
        self.assertEqual((rc, lines.get(line, {}).get("status")), (1, "fail"), (args, lines))
        told = lines[line]["what"]
        self.assertIn(why, told)
        self.assertTrue(lines[line]["mend"])
        r = subprocess.run([EXE, *BASE, *args], capture_output=True, text=True, timeout=180)
        self.assertNotEqual(r.returncode, 0)
        self.assertIn(told, r.stderr)
        self.assertNotIn("ready:", r.stderr)
        return r.returncode

    def test_a_model_that_serves_passes_with_its_true_size(self):
        rc, lines = self.check("-m", self.model)
        self.assertEqual(rc, 0, lines)
        bytes_ = sum(os.path.getsize(self.at(n)) for n in os.listdir(self.model) if n.endswith(".safetensors"))
        told = float(re.search(r", ([\d.]+) MiB of weights", lines["model"]["what"])[1])
        self.assertAlmostEqual(told, bytes_ / 2**20, delta=0.1)  # a header and names come on top of the weights
        for bad in ("tokenizer", "template", "placement", "settings", "trace", "stats", "engine"):
            self.assertNotIn(bad, lines)

    def test_a_model_that_cannot_be_opened(self):
        damages = [
            ("config.json, none", lambda: os.remove(self.at("config.json")), "it has no config.json"),
            ("config.json, cut", lambda: cut(self.at("config.json"), 20), "config.json"),
            ("another family", lambda: edit(self.at("config.json"), model_type="nope", architectures=None), "'nope' is not known"),
            ("quantised", lambda: edit(self.at("config.json"), quantization_config={"quant_method": "bitsandbytes"}), "quant"),
            ("shard, cut", lambda: cut(self.weights, os.path.getsize(self.weights) - 4), "safetensors"),
            ("shard, none", lambda: os.remove(self.weights), "safetensors"),
            ("shard, empty", lambda: cut(self.weights, 0), "empty"),
            ("directory, empty", lambda: (shutil.rmtree(self.model), os.mkdir(self.model)), "it has no config.json"),
            ("nothing there", lambda: shutil.rmtree(self.model), "No such file"),
        ]
        for name, damage, why in damages:
            with self.subTest(name):
                shutil.rmtree(self.model, ignore_errors=True)
                shutil.copytree(os.path.join(ROOT, "config", "demo"), self.model)
                damage()
                self.assertEqual(self.both_refuse("model", "-m", self.model, why=why), 66)
        gguf = os.path.join(self.dir.name, "x.gguf")
        write(gguf, "GGUF")
        self.assertEqual(self.both_refuse("model", "-m", gguf, why="x.gguf"), 66)
        self.assertEqual(self.both_refuse("model", "-m", "/etc/passwd", why="neither a directory nor"), 66)
        self.assertEqual(self.both_refuse("model", "-m", "synthetic:nope", why="'nope'"), 66)

    @unittest.skipIf(os.getuid() and not shutil.which("setpriv"), "only root or setpriv can take rights away")
    def test_a_model_that_may_not_be_read(self):
        os.chmod(self.dir.name, 0o755)
        drop = ["setpriv", "--reuid=65534", "--clear-groups"] if not os.getuid() else []
        exe = shutil.copy(EXE, self.dir.name)
        for path in (self.model, self.weights, self.at("config.json")):
            mode = os.stat(path).st_mode
            os.chmod(path, 0)
            r = subprocess.run([*drop, exe, "check", *BASE, "--json", "-m", self.model], capture_output=True, text=True, timeout=180,
                               cwd=self.dir.name)
            os.chmod(path, mode)
            if "error while loading" in r.stderr or "failed to exec" in r.stderr:
                self.skipTest(r.stderr)
            line = next(x for x in json.loads(r.stdout)["checks"] if x["id"] == "model")
            self.assertEqual((r.returncode, line["status"]), (1, "fail"), path)
            self.assertIn("Permission denied", line["what"])

    def test_text_that_could_not_be_answered(self):
        path = self.at("tokenizer.json")
        with open(path, "rb") as f:
            good = f.read()
        for bad in (b"{", good[:1000], b"\0\1\2\xff" * 50, b"{}"):
            with self.subTest(bad=bad[:8]):
                with open(path, "wb") as f:
                    f.write(bad)
                self.both_refuse("tokenizer", "-m", self.model, why="tokenizer")
                self.assertEqual(self.check("-m", self.model, "--model.tokenizer=no")[0], 0)
        self.only_ids_are_answered("model.tokenizer = no", "--model.tokenizer=no")
        os.remove(path)
        rc, lines = self.check("-m", self.model)
        self.assertEqual((rc, lines["tokenizer"]["status"]), (0, "warn"))
        self.only_ids_are_answered("no tokenizer (the model carries none): text will be answered with 400")

    def test_the_log_says_where_experts_lie_and_of_what_they_are(self):
        pages = os.path.join(self.dir.name, "pages")

        def log_of(model, *options):
            d = Daemon(EXE, "-m", model, *options, "--no-warm-start").wait_ready()
            self.assertEqual(d.stop(), 0)
            return "".join(d.log)

        text = log_of(os.path.join(ROOT, "tests/data/golden/gpt_oss-mxfp4"))
        self.assertRegex(text, r"memory: experts on the host +[0-9.]+ KiB  mxfp4, a pool\n")
        self.assertIn("experts are not read in place: layer 0: the files hold the experts otherwise than kernels read them", text)
        self.assertRegex(log_of(self.model), r"memory: experts on the host +18.00 MiB  bf16, in place from the model\n")
        text = log_of(self.model, "--host_budget=6MiB", "--nvme_path=" + pages)
        self.assertRegex(text, r"memory: experts on the host +[0-9.]+ MiB  bf16, a pool over the page file\n")
        self.assertRegex(text, r"memory: experts on disk +[0-9.]+ MiB  " + re.escape(pages) + "\n")
        self.assertIn("memory.nvme_path is not used", log_of(self.model, "--host_budget=64MiB", "--nvme_path=" + pages))

    def test_what_is_not_supported_is_no_matter_of_rights(self):
        edit(self.at("config.json"), model_type="gpt9")
        line = self.check("-m", self.model)[1]["model"]
        self.assertEqual(line["status"], "fail")
        self.assertIn("of a kind and format that the message names", line["mend"])

    def only_ids_are_answered(self, said, *options):
        d = Daemon(EXE, "-m", self.model, *options, "--no-warm-start").wait_ready()
        self.assertEqual(d.ask("/v1/completions", dict(prompt=[5], max_tokens=1))[0], 200)
        status, body = d.ask("/v1/completions", dict(prompt="a", max_tokens=1))
        self.assertEqual((status, json.loads(body)["error"]["code"]), (400, "no_tokenizer"))
        self.assertEqual(d.stop(), 0)
        self.assertIn(said, "".join(d.log))

    def test_a_chat_that_could_not_be_answered(self):
        os.remove(self.at("tokenizer_config.json"))
        for name in ("chat_template.jinja", "chat_template.json"):
            if os.path.exists(self.at(name)):
                os.remove(self.at(name))
        rc, lines = self.check("-m", self.model)
        self.assertEqual((rc, lines["template"]["status"]), (0, "warn"))
        d = Daemon(EXE, "-m", self.model, "--no-warm-start").wait_ready()
        self.assertEqual(d.stop(), 0)
        self.assertRegex("".join(d.log), r"warn +no chat template")
        self.both_refuse("template", "-m", self.model, "--chat_template=/nope", why="/nope")
        self.both_refuse("template", "-m", self.model, "--chat_template={% if %}")

    def test_other_files_of_the_configuration(self):
        other = os.path.join(self.dir.name, "other")
        write(other, "something else, of nobody's business")
        empty = os.path.join(self.dir.name, "empty")
        write(empty, "\n")
        for key, value, why in (("api_key_file", "/nope", "/nope"), ("api_key_file", empty, "holds no key"),
                                ("api_key_file", self.dir.name, "api_key_file")):
            self.both_refuse("settings", "-m", self.model, f"--{key}={value}", why=why)
        for value, why in (('{"enable_thinking": False}', "'False'"), ("enable_thinking=false", "must be a JSON object"), ("[]", "must be a JSON object"),
                           ('{"a": 1, "a": 2}', "duplicate"), ("yes", "invalid token near 'yes'"), (r'{"a": "\u0000"}', "holds a NUL character"), ('{"tools": []}', "'tools' is what each request says")):
            self.assertEqual(self.both_refuse("settings", "-m", self.model, "--chat-template-kwargs=" + value, why=why), 78)
        for value in ("/nope/trace", other, self.dir.name):
            self.assertEqual(self.both_refuse("trace", "-m", self.model, "--trace_file=" + value), 78)
        self.assertEqual(self.both_refuse("engine", "-m", self.model, "--numa_node=77", why="numa_node"), 78)
        self.assertEqual(self.both_refuse("engine", "-m", self.model, "--kernels_disable=nope", why="nope"), 78)
        for value in ("/nope/stats", other, self.dir.name):
            rc, lines = self.check("-m", self.model, "--warm-start", "--stats_file=" + value)
            self.assertEqual((rc, lines["stats"]["status"]), (0, "warn"), value)
        with open(other, encoding="utf-8") as f:
            self.assertEqual(f.read(), "something else, of nobody's business")

    def test_the_configuration_alone(self):
        # What a reload would refuse; the model is not looked at.
        for args, why in ((["--api_key_file=/nope"], "/nope"), (["--numa_node=77"], "numa_node")):
            r = subprocess.run([EXE, "check", "--config-only", *BASE, "-m", "/nope-model", *args], capture_output=True, text=True, timeout=180)
            self.assertEqual(r.returncode, 78, (args, r.stderr))
            self.assertIn(why, r.stderr)
        r = subprocess.run([EXE, "check", "--config-only", *BASE, "-m", "/nope-model"], capture_output=True, text=True, timeout=180)
        self.assertEqual((r.returncode, r.stderr), (0, ""))

    def test_an_address_that_there_is_not(self):
        for host in ("300.1.1.1", "unix:/tmp/x"):
            r = subprocess.run([EXE, *BASE, "-m", self.model, "--host=" + host], capture_output=True, text=True, timeout=180)
            self.assertEqual(r.returncode, 1 if "Temporary failure" in r.stderr else 78, r.stderr)  # no name server answers here
            self.assertIn(f"server.host '{host}'", r.stderr)
            rc, lines = self.check("-m", self.model, "--host=" + host, "--port=8080")
            self.assertEqual((rc, lines["port"]["status"]), (1, "fail"))

    def test_the_places_of_its_bytes(self):
        self.assertEqual(self.both_refuse("placement", "-m", self.model, "--host_budget=4MiB", why="memory.nvme_path"), 78)
        self.assertEqual(self.both_refuse("placement", "-m", self.model, "--kv_budget=1MiB", "--max_model_len=1024", why="max_model_len"), 78)
        packed = os.path.join(ROOT, "tests/data/golden/gpt_oss-mxfp4")
        self.assertEqual(self.both_refuse("placement", "-m", packed, "--host_tier=in_place", why="they need a pool"), 66)
        heads_of_16 = os.path.join(ROOT, "tests/data/golden/mixtral")
        self.assertEqual(self.both_refuse("placement", "-m", heads_of_16, "--kv_dtype=q8_0", why="this model's heads have 16: f16 is possible"), 66)
        edit(self.at("config.json"), rope_scaling={"rope_type": "dynamic", "factor": 2.0})
        self.assertEqual(self.both_refuse("placement", "-m", self.model, "--max_model_len=4096", why="'dynamic'"), 66)
        pages = os.path.join(self.dir.name, "pages")
        self.both_refuse("placement", "-m", self.model, "--host_budget=1MiB", "--nvme_path=" + pages, why="one layer's 16")
        rc, lines = self.check("-m", self.model, "--host_budget=4MiB", "--nvme_path=" + pages)
        self.assertEqual(rc, 0, lines)
        self.assertFalse(os.path.exists(pages))
        rc, lines = self.check("-m", self.model, f"--host_budget={RAM * 2}", "--nvme_path=" + pages)
        self.assertEqual(lines["memory"]["status"], "ok")  # more than there are experts

    def test_a_synthetic_model_has_a_size(self):
        rc, lines = self.check("-m", "synthetic:tiny")
        self.assertEqual(rc, 0, lines)
        self.assertNotIn(" 0 B", lines["model"]["what"])
        rc, lines = self.check("-m", "synthetic:qwen3-235b-a22b")
        if RAM < 437 * 2**30:
            self.assertIn("a smaller model.dtype", lines["memory"]["mend"])  # a page file would not help
        self.assertIn("437.90 GiB of weights", lines["model"]["what"])  # 470 GB of BF16, as its publisher says
        if RAM < 430 * 2**30:
            self.assertEqual((rc, lines["memory"]["status"]), (1, "fail"))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
