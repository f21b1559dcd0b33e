"""The real daemon while somebody changes its model's files: it says so, and dies telling why. argv: PROGRAM SOURCE_ROOT."""
import datetime
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import time
import unittest

EXE, ROOT = sys.argv[1], sys.argv[2]
sys.path.insert(0, os.path.join(ROOT, "tests", "ops"))
from daemon import WAIT_S, Daemon, DemoCopy, wait_until  # noqa: E402


class Files(DemoCopy):
    def start(self, *more):
        return Daemon(EXE, "--model.path=" + self.model, "--pager.warm_start=no", *more).wait_ready()

    def warned(self, d):
        """The warning that /health gives sooner or later: files are looked at every few seconds."""
        def warning():
            status, body = d.ask("/health")
            self.assertEqual(status, 200)
            w = json.loads(body)["engine"].get("warning", "")
            return w if "model file '" in w else None  # others may have their own
        return wait_until("a warning of a model file", warning)

    def test_changes_are_warned_of_by_kind_and_the_daemon_serves_on(self):
        d = self.start()
        self.assertNotIn("warning", json.loads(d.ask("/health")[1])["engine"])
        self.assertEqual(d.metrics()["expertd_model_files_changed"], 0)
        files = json.loads(d.ask("/health")[1])["engine"]["files"]
        self.assertEqual(files["changed"], 0)
        self.assertGreaterEqual(files["looked_s_ago"], 0)
        self.assertGreaterEqual(d.metrics()["expertd_model_files_look_age_seconds"], 0)
        want = d.complete(8)
        copy = self.weights + ".new"
        shutil.copyfile(self.weights, copy)
        os.rename(copy, self.weights)  # the mapping keeps the old file
        self.assertRegex(self.warned(d), r"model file '.*safetensors' was replaced by another file")
        self.assertEqual(d.metrics()["expertd_model_files_changed"], 1)
        self.assertEqual(d.complete(8)["choices"], want["choices"])
        os.unlink(self.weights)
        wait_until("a warning of what was removed", lambda: "removed" in self.warned(d))
        self.assertEqual(d.complete(8)["choices"], want["choices"])
        self.assertEqual(d.stop(), 0)
        self.assertEqual(sum("model file" in line for line in d.log), 2, d.log)  # once a change, however often one asks

    def test_a_file_written_while_it_is_loaded_ends_the_start(self):
        stats = os.path.join(self.dir.name, "fifo")  # is opened for reading after the weights are mapped, and holds the start up
        os.mkfifo(stats)
        p = subprocess.Popen([EXE, "-c", "/dev/null", "--port=0", "-m", self.model, "--pager.stats_file=" + stats],
                             stderr=subprocess.PIPE, text=True)
        with open(stats, "wb"), open(self.weights, "ab") as f:
            f.write(b"x")
        err = p.communicate(timeout=180)[1]
        self.assertEqual(p.returncode, 1, err)
        self.assertRegex(err, r"cannot serve: model file '.*\.safetensors' was written to while it was being loaded")

    def test_a_file_replaced_while_it_is_loaded_is_warned_of(self):
        stats = os.path.join(self.dir.name, "fifo")
        os.mkfifo(stats)
        d = Daemon(EXE, "--model.path=" + self.model, "--pager.stats_file=" + stats)
        with open(stats, "wb"):
            shutil.copyfile(self.weights, self.weights + ".new")
            os.rename(self.weights + ".new", self.weights)
        d.wait_ready()
        self.assertIn("was replaced by another file", self.warned(d))
        os.unlink(stats)
        self.assertEqual(d.stop(), 0)

    def test_a_file_written_in_place_is_warned_of(self):
        d = self.start()
        os.utime(self.weights, (time.time() + 1, time.time() + 1))
        self.assertIn("was written to, or touched, while it is in use: if its content changed, answers may be wrong", self.warned(d))
        self.assertEqual(d.stop(), 0)

    def last_words(self, *args):
        """Of a daemon whose model file is cut to half of its size; and that size."""
        d = self.start(*args)
        size = os.path.getsize(self.weights)
        os.truncate(self.weights, size // 2)
        self.assertIn("became shorter", self.warned(d))
        try:
            d.ask("/v1/completions", dict(prompt="Once upon a time", max_tokens=64))
        except OSError:
            pass  # the connection goes with the process
        rc = d.p.wait(WAIT_S)
        d.reader.join()
        d.p.stderr.close()
        d.dir.cleanup()
        self.assertEqual(rc, 1)
        return d.log[-1], size

    def test_a_file_cut_short_ends_the_daemon_with_its_name_and_place(self):
        last, size = self.last_words()
        when, at = re.fullmatch(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3})Z error cannot read '.*\.safetensors' at byte (\d+): "
                                "the file became shorter .*\n", last).groups()
        self.assertTrue(size // 2 <= int(at) < size, at)
        self.assertLess(abs(datetime.datetime.fromisoformat(when + "+00:00").timestamp() - time.time()), 3600)

    def test_last_words_have_the_form_of_the_log(self):
        odd = os.path.join(self.dir.name, 'a "model"')
        os.rename(self.model, odd)
        self.model, self.weights = odd, self.weights.replace(self.model, odd)
        last = json.loads(self.last_words("--log.format=json")[0])
        self.assertEqual(last["level"], "error")
        self.assertTrue(last["message"].startswith(f"cannot read '{self.weights}' at byte "), last)

    def test_a_model_is_named_after_its_place(self):
        hub = os.path.join(self.dir.name, "models--Org--A-Model--B", "snapshots", "ad44e777bcd18fa4")
        os.makedirs(hub)
        for name in os.listdir(self.model):  # as the cache does
            os.symlink(os.path.join(self.model, name), os.path.join(hub, name))
        plain = os.path.join(self.dir.name, "snapshots", "rev")
        os.makedirs(os.path.dirname(plain))
        os.symlink(self.model, plain)
        exe = os.path.abspath(EXE)
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.model)
        for path, name in ((self.model, "model"), (self.model + "//", "model"), (".", "model"), ("./", "model"), (hub, "Org/A-Model--B"),
                           (hub + "/", "Org/A-Model--B"), (plain, "rev")):
            d = Daemon(exe, "--model.path=" + path, "--pager.warm_start=no").wait_ready()
            self.assertEqual(json.loads(d.ask("/v1/models")[1])["data"][0]["id"], name, path)
            if "/" in name:
                self.assertEqual(d.ask("/v1/models/" + name)[0], 200)
            self.assertEqual(d.stop(), 0)
        old = os.path.join(self.dir.name, "models--gpt2")
        os.rename(os.path.join(self.dir.name, "models--Org--A-Model--B"), old)
        d = Daemon(exe, f"--model.path={old}/snapshots/ad44e777bcd18fa4", "--pager.warm_start=no").wait_ready()
        self.assertEqual(json.loads(d.ask("/v1/models")[1])["data"][0]["id"], "gpt2")
        self.assertEqual(d.stop(), 0)
        r = subprocess.run([exe, "inspect", "-c", "/dev/null", old], capture_output=True, text=True, timeout=180)
        self.assertIn("the models are the directories in its snapshots/", r.stderr)

    def refused(self, status, *args):
        """What a start says that ends with this status and never with READY."""
        r = subprocess.run([EXE, "-c", "/dev/null", "--port=0", "--no-warm-start", *args], capture_output=True, text=True, timeout=180)
        self.assertEqual(r.returncode, status, r.stderr)
        self.assertNotIn("ready:", r.stderr)
        return r.stderr

    def test_a_chat_template_that_cannot_be_used_ends_the_start(self):
        err = self.refused(78, "-m", self.model, "--model.chat_template=/nonexistent")
        self.assertIn("cannot serve: chat_template of the configuration: open '/nonexistent': No such file", err)
        self.assertIn("chat_template of the configuration", self.refused(78, "-m", self.model, "--model.chat_template={%if%}"))

    def test_a_quantisation_that_cannot_be_read_is_named(self):
        path = os.path.join(self.dir.name, "model.gguf")
        with open(os.path.join(ROOT, "tests", "data", "golden", "qwen3_moe-gguf", "model.gguf"), "rb") as f:
            data = bytearray(f.read())
        name = b"blk.0.attn_q.weight"
        at = data.index(struct.pack("<Q", len(name)) + name) + 8 + len(name)
        dims = struct.unpack_from("<I", data, at)[0]
        struct.pack_into("<I", data, at + 4 + 8 * dims, 34)
        with open(path, "wb") as f:
            f.write(data)
        self.assertRegex(self.refused(66, "-m", path), 
                         r"'blk.0.attn_q.weight' has ggml type 34 \(TQ1_0\); what can be read: F32, F16, Q4_0, Q4_1, .*, MXFP4")

    def test_layers_that_would_be_left_out_are_refused(self):
        path = os.path.join(self.model, "config.json")
        with open(path, encoding="utf-8") as f:
            config = json.load(f)
        config["num_hidden_layers"] -= 1
        with open(path, "w", encoding="utf-8") as f:
            json.dump(config, f)
        self.assertIn(" has layer 5 (from 0), config.json says num_hidden_layers = 5", self.refused(66, "-m", self.model))
        path = os.path.join(self.dir.name, "model.gguf")
        with open(os.path.join(ROOT, "tests", "data", "golden", "qwen3_moe-gguf", "model.gguf"), "rb") as f:
            data = bytearray(f.read())
        at = data.index(b"qwen3moe.block_count") + len(b"qwen3moe.block_count")
        kind, layers = struct.unpack_from("<II", data, at)
        self.assertEqual(kind, 4)  # u32
        struct.pack_into("<I", data, at + 4, layers - 1)
        with open(path, "wb") as f:
            f.write(data)
        self.assertIn(f" has layer {layers - 1} (from 0), its metadata say block_count = {layers - 1}", self.refused(66, "-m", path))

    def test_a_name_of_the_hub_is_answered_with_what_is_needed(self):
        for name in "Qwen/Qwen3-30B-A3B", "https://example.org/model.gguf":
            self.assertIn(f"model '{name}' (a path is needed, nothing is downloaded)", self.refused(66, "-m", name))
        self.assertNotIn("downloaded", self.refused(66, "-m", "/srv/nonexistent"))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
