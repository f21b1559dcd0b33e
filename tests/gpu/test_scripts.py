"""check.sh and tables.sh where there is no GPU: programs that end in every way they may, and measurements on the CPU. argv[1] is expertd."""
import glob
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

EXE = os.path.abspath(sys.argv[1])
HERE = os.path.dirname(os.path.abspath(__file__))
GOLDEN = """case "$*" in
*golden/qwen2) echo "what went wrong"; echo "qwen2 FAIL: largest error 4.60e-02 of the largest logit (7 logits), router 3 of 264 tokens wrong, greedy 72 tokens, 1 wrong, 0 ties [cuda]"
    exit 1 ;;
*golden/llama) echo "llama left out: no such heads"; echo "0 models, FAIL"; exit 1 ;;
*golden/mixtral) echo "mixtral left out: engine.backend = cuda"; exit 77 ;;
*golden/olmoe) kill -SEGV $$ ;;
esac
echo "x ok: largest error 1.60e-06 of the largest logit (7 logits), router 0 of 264 tokens wrong, greedy 72 tokens, 0 wrong, 0 ties [cuda]"
echo "1 models, all within 2e-2"
"""
# Runs what it is given, where that is, beside the library that it is to have.
SANITIZER = """tool=$2; shift 4; cat "$(dirname "$1")/../lib/expertd/libexpertd_cuda.so" && "$@" || exit 1
if [ $tool = memcheck ]; then echo "========= ERROR SUMMARY: $ERRORS errors"
else echo "========= RACECHECK SUMMARY: $ERRORS hazards displayed (0 errors, $ERRORS warnings)"; fi
"""
MODELS = len(glob.glob(HERE + "/../data/golden/*/")) + 1


class Scripts(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.dir)
        os.mkdir(self.dir + "/out")
        for name, text in {"tests/test_golden": GOLDEN, "tests/test_identity": "echo begun; exec sleep 600", "tests/test_tiers": "exit 77",
                           "tests/kerncheck": "echo 'cuda: 87 vectors and 100 random cases, 0 failed'", "bin/expertd": "echo a table",
                           "path/compute-sanitizer": SANITIZER}.items():
            self.write(name, "#!/bin/bash\n" + text)
        self.write("lib/expertd/libexpertd_cuda.so", "the library")
        self.write("race.so", "another library")

    def write(self, name, text):
        path = f"{self.dir}/{name}"
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
        os.chmod(path, 0o755)

    def run_script(self, name, *args, **env):
        env = dict(os.environ, PATH=f"{self.dir}/path:{os.environ['PATH']}", OUT=self.dir + "/out", **env)
        r = subprocess.run([f"{HERE}/{name}", *args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env, timeout=1400)
        return r.returncode, r.stdout.splitlines(), r.stdout

    def test_what_failed_is_named(self):
        status, lines, text = self.run_script("check.sh", self.dir, "golden", "kerncheck", "tiers")
        self.assertEqual((status, lines[-1]), (1, f"{MODELS - 2} passed, 4 failed, 1 skipped"), text)
        rows = {tuple(line.split()[:2]): line for line in lines if line.startswith(("golden ", "kerncheck ", "tiers "))}
        self.assertEqual(rows["golden", "qwen2"].split("FAILED")[1].strip(), "error 4.60e-02, router 3 of 264, greedy 1 of 72, 0 ties")
        self.assertIn("what went wrong", lines)
        self.assertIn("skipped  llama left out: no such heads", rows["golden", "llama"])
        self.assertIn("FAILED   exit status 77", rows["golden", "mixtral"])
        self.assertIn("FAILED   exit status 139", rows["golden", "olmoe"])
        self.assertIn("FAILED   exit status 77", rows["tiers", "demo"])
        self.assertIn("passed   error 1.60e-06, router 0 of 264, greedy 0 of 72, 0 ties", rows["golden", "demo"])
        table = [line.split() for line in lines[lines.index("") + 1:]]
        self.assertEqual([row[2:] for row in table[1:4]], [[str(MODELS - 3), "3", "1", str(MODELS - 1)], ["1", "0", "0", "187"], ["0", "1", "0", "0"]])

    def test_a_hang_is_named(self):
        status, lines, text = self.run_script("check.sh", self.dir, "identity", LIMIT="1")
        self.assertEqual((status, lines[-1]), (1, "0 passed, 18 failed, 0 skipped"), text)
        self.assertEqual(sum("no end within 1 s; last: begun" in line for line in lines), 36)

    def test_the_tools_summary_decides(self):
        for errors, end in ("0", "14 passed, 0 failed, 0 skipped"), ("2", "0 passed, 14 failed, 0 skipped"):
            status, lines, text = self.run_script("check.sh", self.dir, "memcheck", "racecheck", RACECHECK_LIB=self.dir + "/race.so", ERRORS=errors)
            self.assertEqual((status, lines[-1]), (int(errors != "0"), end), text)
            for log in glob.glob(self.dir + "/out/*check.*.log"):
                with open(log, encoding="utf-8") as f:
                    self.assertTrue(f.read().startswith("another" if "racecheck" in log else "the library"), log)
        status, lines, text = self.run_script("check.sh", self.dir, "racecheck")
        self.assertEqual((status, lines[-1]), (1, "0 passed, 0 failed, 1 skipped"), text)
        self.assertIn("RACECHECK_LIB is not given", text)

    def test_what_is_not_there_is_said(self):
        os.remove(self.dir + "/lib/expertd/libexpertd_cuda.so")
        for args, why in (([self.dir], "built without CUDA"), ([self.dir, "kernel"], "no part 'kernel'"), ([], "usage")):
            status, _, text = self.run_script("check.sh", *args)
            self.assertEqual(status, 1)
            self.assertIn(why, text)

    def test_a_table_has_what_bench_measured(self):
        os.remove(self.dir + "/bin/expertd")
        os.symlink(EXE, self.dir + "/bin/expertd")
        status, lines, text = self.run_script("tables.sh", self.dir, "vram", "start", BACKEND="cpu", MODEL="synthetic:tiny", LIMIT="1200")
        self.assertEqual((status, lines[-1]), (0, "0 commands failed"), text)
        self.assertIn("START_FOLDER is not given", text)
        with open(self.dir + "/out/vram.1.json", encoding="utf-8") as f:
            points = json.load(f)["points"]
        rows = [line.split() for line in lines[-4:-1]]
        self.assertEqual([row[:4] for row in rows], [["vram.1", n, "x", "128"] for n in ("1", "8", "32")])
        for row, p in zip(rows, points):
            self.assertEqual(row[4:7], [f"{p['decode_tokens_per_s']:.2f}", f"{p['bound_tokens_per_s']:.2f}", f"{100 * p['reached']:.0f}"])
            self.assertEqual(row[-1], p["answers"])

    def test_a_table_that_cannot_be_measured(self):
        self.write("bin/expertd", "#!/bin/bash\necho why >&2; exit 3")
        status, lines, text = self.run_script("tables.sh", self.dir, "vram", "prefill_vram")
        self.assertEqual((status, lines[-1]), (1, "2 commands failed: vram.1 prefill_vram.1"), text)
        self.assertIn("why", lines)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
