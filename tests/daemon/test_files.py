"""The real daemon while somebody changes its model's files: it says so, and dies telling why. argv: PROGRAM SOURCE_ROOT."""
import json
import os
import shutil
import sys
import tempfile
import time
import unittest

EXE, ROOT = sys.argv[1], sys.argv[2]
sys.path.insert(0, os.path.join(ROOT, "tests", "ops"))
from daemon import Daemon  # noqa: E402


class Files(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.TemporaryDirectory()
        self.addCleanup(self.dir.cleanup)
        self.model = os.path.join(self.dir.name, "model")
        shutil.copytree(os.path.join(ROOT, "config", "demo"), self.model)
        self.weights = next(os.path.join(self.model, n) for n in os.listdir(self.model) if n.endswith(".safetensors"))

    def start(self, *more):
        return Daemon(EXE, "--model.path=" + self.model, "--pager.warm_start=no", *more).wait_ready()

    def warned(self, d):
        """The warning that /health gives sooner or later: files are looked at every few seconds."""
        while True:
            status, body = d.ask("/health")
            self.assertEqual(status, 200)
            if w := json.loads(body)["engine"].get("warning"):
                return w

    def test_changes_are_warned_of_by_kind_and_the_daemon_serves_on(self):
        d = self.start()
        self.assertNotIn("warning", json.loads(d.ask("/health")[1])["engine"])
        self.assertEqual(d.metrics()["expertd_model_files_changed"], 0)
        want = d.complete(8)
        copy = self.weights + ".new"
        shutil.copyfile(self.weights, copy)
        os.rename(copy, self.weights)  # the mapping keeps the old file
        self.assertRegex(self.warned(d), r"model file '.*safetensors' was replaced by another file")
        self.assertEqual(d.metrics()["expertd_model_files_changed"], 1)
        self.assertEqual(d.complete(8)["choices"], want["choices"])
        os.unlink(self.weights)
        while "removed" not in self.warned(d):
            pass
        self.assertEqual(d.complete(8)["choices"], want["choices"])
        self.assertEqual(d.stop(), 0)
        self.assertEqual(sum("model file" in line for line in d.log), 2, d.log)  # once a change, however often one asks

    def test_a_file_written_in_place_is_warned_of(self):
        d = self.start()
        os.utime(self.weights, (time.time() + 1, time.time() + 1))
        self.assertIn("was written to while it is in use: answers may be wrong", self.warned(d))
        self.assertEqual(d.stop(), 0)

    def test_a_file_cut_short_ends_the_daemon_with_its_name_and_place(self):
        d = self.start()
        size = os.path.getsize(self.weights)
        os.truncate(self.weights, size // 2)
        self.assertIn("became shorter", self.warned(d))
        try:
            d.ask("/v1/completions", dict(prompt="Once upon a time", max_tokens=64))
        except OSError:
            pass  # the connection goes with the process
        rc = d.p.wait(60)
        d.reader.join()
        d.p.stderr.close()
        d.dir.cleanup()
        self.assertEqual(rc, 1)
        last = "".join(d.log)
        self.assertRegex(last, r"expertd: cannot read '.*\.safetensors' at byte \d+: the file became shorter")
        at = int(last.split("at byte ")[1].split(":")[0])
        self.assertTrue(size // 2 <= at < size, at)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
