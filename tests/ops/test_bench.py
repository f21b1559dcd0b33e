"""`expertd bench` on a synthetic model whose geometry is known: what it counts, not how fast it is. argv[1] is the program."""
import json
import subprocess
import sys
import unittest

EXE = sys.argv[1]
# synthetic:tiny (engine/model/synthetic.c), BF16
LAYERS, D, D_FF, TOP_K, EXPERTS, VOCAB, HEADS, KV_HEADS, HEAD_DIM = 4, 256, 128, 4, 16, 4096, 8, 2, 32
TINY = ["bench", "synthetic:tiny", "-c", "/dev/null", "--engine.backend=cpu", "--memory.page_size=64KiB", "--log.level=error",
        "--pager.warm_start=no"]


def run(*args, status=0):
    r = subprocess.run([EXE, *TINY, *args], capture_output=True, text=True, timeout=400, stdin=subprocess.DEVNULL)
    assert r.returncode == status, r.stderr
    return r.stderr if status else r.stdout


class Bench(unittest.TestCase):
    def test_a_sweep_counts_bytes_and_bounds(self):
        doc = json.loads(run("--json", "--lengths", "24", "--concurrency", "1,3", "--tokens", "40", "--sweep",
                             "memory.expert_vram_share=50%,100%", "--sweep", "model.skew=balanced,zipf"))
        points = doc["points"]
        self.assertTrue(0 < doc["peak_rss_bytes"] < 1 << 30, "the buffer that measures the memory (1 GiB) is not in it")
        self.assertEqual([(p["settings"]["memory.expert_vram_share"], p["settings"]["model.skew"], p["sequences"]) for p in points],
                         [(s, k, n) for s in ("50%", "100%") for k in ("balanced", "zipf") for n in (1, 3)])
        per_token = LAYERS * TOP_K * 3 * D * D_FF * 2
        q, kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
        trunk = 2 * (VOCAB * D + D + LAYERS * (2 * q * D + 2 * kv * D + EXPERTS * D + 2 * D + 2 * HEAD_DIM))
        for p in points:
            got = p["host_bytes_per_step"] + p["vram_bytes_per_step"]
            self.assertEqual((p["decode_steps"], p["decode_not_measured"]), (38, None))  # from the third token on
            if p["sequences"] == 1:
                self.assertAlmostEqual(got, per_token)
                context = 24 + (2 + 39) / 2  # the step that gives token n + 1 reads the prompt and n tokens
                moved = per_token + trunk + context * LAYERS * 2 * kv * 4
                self.assertAlmostEqual(p["bound_tokens_per_s"] * moved / (p["memory_gbps"] * 1e9), 1)
            else:
                self.assertTrue(per_token < got <= min(3 * per_token, LAYERS * EXPERTS * 3 * D * D_FF * 2), got)
            self.assertEqual(p["bound_by"], "memory")
            self.assertAlmostEqual(p["hit_rate"], p["vram_bytes_per_step"] / got)
            self.assertAlmostEqual(p["reached"], p["decode_tokens_per_s"] / p["bound_tokens_per_s"])
            self.assertGreater(p["total_s"] * 1e3, p["ttft_ms"])
            self.assertGreater(p["ttft_ms"], 0)
            self.assertGreater(p["prefill_tokens_per_s"], 0)
            self.assertAlmostEqual(p["between_steps_us"], sum(p[f"between_steps_{part}_us"] for part in ("results", "pager", "form", "launch")))
            self.assertGreater(p["between_steps_pager_us"], 0)
            self.assertEqual(p["between_steps_launch_us"], 0)  # only recorded steps are one launch
        for i, p in enumerate(points):  # against the first value of the last axis, here balanced
            same = points[i - i % 4 + i % 2]
            self.assertAlmostEqual(p["times_first"], p["total_s"] / same["total_s"])
        half = [p for p in points if p["sequences"] == 1 and p["settings"]["memory.expert_vram_share"] == "50%"]
        self.assertTrue(all(p["hit_rate"] > 0 for p in half))

    def test_what_the_cpu_shares_is_told(self):
        """Over a link of 0.2 GB/s the CPU gets nearly all, from the first steps on."""
        args = ["--json", "--lengths", "24", "--concurrency", "1", "--tokens", "60", "--memory.vram_budget=1MiB", "--test.allow=yes",
                "--test.link_gbps=0.2", "--fallback.enabled=no"]
        for deterministic in ("no", "yes"):
            p = json.loads(run(*args, "--engine.deterministic=" + deterministic))["points"][0]
            got = p["host_bytes_per_step"] + p["vram_bytes_per_step"] + p["cpu_bytes_per_step"]
            self.assertAlmostEqual(got, LAYERS * TOP_K * 3 * D * D_FF * 2)
            self.assertEqual(p["cpu_bytes_per_step"] > 0, deterministic == "no")

    def test_the_table(self):
        out = run("--lengths", "8", "--concurrency", "2", "--tokens", "3", "--sweep", "model.seed=1,2").splitlines()
        self.assertTrue(out[0].startswith("synthetic:tiny (qwen3_moe) on cpu"))
        self.assertEqual(out[2].split()[:3], ["seed", "prompt", "seqs"])
        self.assertEqual([line.split()[:3] for line in out[3:5]], [["1", "8", "2"], ["2", "8", "2"]])

    def test_what_cannot_be_measured_is_said(self):
        for tokens, lengths, more, why in (("2", "8", [], "from the third token on"), ("4", "64", ["--engine.max_num_batched_tokens=32"],
                                                                                    "the first answer ended before")):
            args = ["--lengths", lengths, "--concurrency", "2", "--tokens", tokens, *more]
            p = json.loads(run("--json", *args))["points"][0]
            self.assertIn(why, p["decode_not_measured"])
            self.assertEqual(p["decode_steps"], 0)
            for name in ("decode_tokens_per_s", "ms_per_step", "between_steps_us", "host_bytes_per_step", "vram_bytes_per_step", "bound_tokens_per_s", "hit_rate"):
                self.assertIsNone(p[name], name)
            self.assertGreater(p["prefill_tokens_per_s"], 0)
            table = run(*args).splitlines()
            self.assertIn("decoding was not measured: ", table[4])
            self.assertIn(why, table[4])

    def test_what_is_swept_meets_the_same_prompts(self):
        doc = json.loads(run("--json", "--lengths", "24", "--concurrency", "1,3", "--tokens", "24", "--sweep",
                             "memory.expert_vram_share=0,25%,50%,100%"))
        answers = [p["answers"] for p in doc["points"]]
        self.assertEqual(answers, 4 * answers[:2])
        self.assertNotEqual(answers[0], answers[1])

    def test_more_requests_than_the_configuration_has_places_for(self):
        doc = json.loads(run("--json", "--lengths", "8", "--concurrency", "300", "--tokens", "10",
                             "--engine.max_num_batched_tokens=4096"))
        self.assertEqual([p["sequences"] for p in doc["points"]], [300])
        self.assertLessEqual(doc["points"][0]["host_bytes_per_step"], LAYERS * EXPERTS * 3 * D * D_FF * 2)

    def test_hits_are_one_table(self):
        for more in (["--json"], ["--sweep", "model.seed=1,2"]):
            self.assertIn("--hits prints one table", run("--hits", "8", *more, status=2))
        out = run("--lengths", "8", "--tokens", "240", "--hits", "8", "--memory.expert_vram_share=50%").splitlines()
        self.assertEqual(out[0].split(), ["tokens", "hit", "in", "%"])
        rows = [line.split() for line in out[1:out.index("")]]
        self.assertEqual([int(r[0]) for r in rows], list(range(8, 240, 8)))  # 239 steps after the prompt's
        self.assertTrue(all(0 <= float(r[1]) <= 100 for r in rows), out)

    def test_wrong_sweeps(self):
        for text in ("memory.expert_vram_share", "=1", "a=", "a=1,,2"):
            self.assertIn("--sweep takes a setting", run("--sweep", text, status=2))
        self.assertIn("unknown option '--no.such'", run("--sweep", "no.such=1", status=78))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
