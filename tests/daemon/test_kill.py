"""The real daemon with an NVMe tier against kill -9, a full disk and a page file that goes bad under it.

    test_kill.py PROGRAM SOURCE_ROOT [--rounds=N]      20 rounds in the normal run; 200 is the acceptance

Each round starts the daemon on what the last one left (page file, statistics) and kills it at a random moment: while it makes the page
file, while it loads, or while it answers. Whatever it answers in between must be what an undisturbed daemon answers, bit for bit."""
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import unittest

EXE, ROOT = sys.argv[1], sys.argv[2]
sys.path.insert(0, os.path.join(ROOT, "tests", "ops"))
from daemon import Daemon, TestCase, wait_until  # noqa: E402

ROUNDS = next((int(a[9:]) for a in sys.argv[3:] if a.startswith("--rounds=")), 20)
PROMPTS = ["Once upon a time", "The old king said", "In the forest"]
EXPERT_BYTES = 6 * 16 * 3 * 128 * 256 * 2  # layers, experts, matrices, rows, columns of the demo model in BF16
BUDGET = EXPERT_BYTES * 4 // 10


def options(folder):
    return [f"--memory.host_budget={BUDGET}", f"--memory.nvme_path={folder}/pages", f"--pager.stats_file={folder}/heat",
            "--memory.page_size=64KiB", "--pager.stats_interval=1s", f"--memory.vram_budget={EXPERT_BYTES // 10}",
            "--kv.kv_budget=1800KiB", "--max_num_seqs=2"]


def answer(d, prompt):
    c = d.complete(24, prompt, logprobs=3, return_token_ids=True)["choices"][0]
    return c["token_ids"], c["logprobs"]


def try_to_ask(d, body):
    try:
        d.ask("/v1/completions", body)
    except Exception:  # the server is killed in the middle: that is the point
        pass


class Kill(TestCase):
    @classmethod
    def setUpClass(cls):
        d = Daemon(EXE).wait_ready()  # everything in memory, undisturbed
        cls.want = [answer(d, p) for p in PROMPTS]
        assert d.stop() == 0

    def setUp(self):
        self.dir = tempfile.TemporaryDirectory()
        self.addCleanup(self.dir.cleanup)

    def start(self, *more):
        return Daemon(EXE, *options(self.dir.name), *more)

    def check(self, d):
        self.assertEqual([answer(d, p) for p in PROMPTS], self.want)

    def kill(self, d):
        d.p.kill()
        d.p.wait()
        d.reader.join()
        d.p.stderr.close()
        d.dir.cleanup()

    def test_killed_at_random_moments_it_leaves_no_bad_state(self):
        rng = random.Random(5)
        load_s, seen = 1.0, {"making": 0, "loading": 0, "answering": 0}
        for i in range(ROUNDS):
            if i % 3 == 0:  # made anew, or from where the last round was killed
                for name in ("pages", "heat"):
                    if os.path.exists(f"{self.dir.name}/{name}") and rng.random() < 0.7:
                        os.unlink(f"{self.dir.name}/{name}")
            fresh, begin = not os.path.exists(f"{self.dir.name}/pages"), time.monotonic()
            d = self.start()
            if rng.random() < (0.8 if fresh else 0.4):
                time.sleep(rng.random() * load_s)
                seen["making" if fresh else "loading"] += 1
            else:
                d.wait_ready()
                load_s = time.monotonic() - begin
                self.check(d)
                body = dict(prompt=rng.choice(PROMPTS), max_tokens=200, ignore_eos=True)
                asking = threading.Thread(target=try_to_ask, args=(d, body))
                asking.start()
                time.sleep(rng.random() * 0.5)
                seen["answering"] += 1
                self.kill(d)
                asking.join()
                continue
            self.kill(d)
        d = self.start().wait_ready()
        self.check(d)
        m = d.metrics()
        self.assertGreater(m['expertd_expert_page_hits_total{tier="disk"}'], 0)
        self.assertEqual(m["expertd_expert_io_errors_total"] + m["expertd_expert_checksum_errors_total"], 0)
        self.assertEqual(d.stop(), 0)
        print(f"{ROUNDS} rounds: killed {seen}; the last start answered as the first", file=sys.stderr)

    def test_damage_to_the_page_file_fails_requests_not_the_daemon(self):
        d = self.start().wait_ready()
        self.check(d)
        pages, copy = f"{self.dir.name}/pages", f"{self.dir.name}/copy"
        shutil.copyfile(pages, copy)
        size = os.path.getsize(pages)
        os.truncate(pages, size // 2)  # reads beyond the end fail
        status = self.ask_until(d, 503, "page file")
        self.assertEqual(d.ask("/health")[0], 200)
        with open(copy, "rb") as good, open(pages, "r+b") as f:  # the same inode: the daemon has it open
            shutil.copyfileobj(good, f)
        self.check(d)
        self.assertGreater(d.metrics()["expertd_expert_io_errors_total"], 0)
        self.assertEqual(d.stop(), 0)
        self.assertEqual(status, 503)

    def flip(self, pages, places):
        with open(pages, "r+b") as f:
            for at in places:
                f.seek(at)
                byte = f.read(1)[0]
                f.seek(at)
                f.write(bytes([byte ^ 1 << at % 8]))

    def test_wrong_bytes_in_the_page_file_are_made_good_from_the_model(self):
        """Answers are those without damage, whether it came while nobody looked or while the daemon serves, and it ends: every expert is
        written anew once. So is the whole file when its own table is damaged."""
        pages, copy = f"{self.dir.name}/pages", f"{self.dir.name}/copy"
        d = self.start().wait_ready()
        self.check(d)
        self.assertEqual(d.stop(), 0)
        shutil.copyfile(pages, copy)
        size, unit = os.path.getsize(pages), EXPERT_BYTES // 96
        first = size - 96 * unit
        everywhere = [first + x * unit + x * 1777 % unit for x in range(96)] + [first, size - 1]
        for places, when in ((everywhere, "before"), (everywhere, "while"), ([4100], "before"), ([40], "before")):
            if when == "before":
                self.flip(pages, places)
            d = self.start().wait_ready()
            if when == "while":
                self.check(d)
                self.flip(pages, places)
            for _ in range(3):
                self.check(d)
            m = d.metrics()
            if places is everywhere:
                self.assertGreater(m["expertd_expert_loads_repaired_total"], 0)
                self.assertLessEqual(m["expertd_expert_loads_repaired_total"], 96)
                wait_until("a line for each", lambda: sum("read from the model again, and written anew" in line for line in d.log)
                           == m["expertd_expert_loads_repaired_total"])
                self.assertEqual(m["expertd_expert_loads_failed_total"], 0)
            self.assertNotIn("page file", json.loads(d.ask("/health")[1])["engine"].get("warning", ""))
            self.assertEqual(d.stop(), 0)
            if places is everywhere:  # what was read is right now, and nothing else was touched
                with open(pages, "rb") as a, open(copy, "rb") as b:
                    a, b = a.read(), b.read()
                self.assertTrue(a[:first] == b[:first])
                wrong = [x for x in range(96) if a[first + x * unit:first + (x + 1) * unit] != b[first + x * unit:first + (x + 1) * unit]]
                self.assertLessEqual(len(wrong), 96 - m["expertd_expert_loads_repaired_total"])
            else:
                with open(pages, "rb") as a, open(copy, "rb") as b:
                    self.assertTrue(a.read() == b.read())
            shutil.copyfile(copy, pages)

    def test_a_page_that_cannot_be_read_fails_only_who_needs_it(self):
        """One expert's bytes are wrong in the file, and the model was written to since the start, so that nobody ever gets them. Alone, some prompts need it and some do not; all at
        once, in the same steps, the same ones fail, and the others answer as an undisturbed daemon does."""
        bodies = [dict(prompt=[3 + 37 * i, 5 + 11 * i], max_tokens=5, temperature=0, ignore_eos=True, logprobs=2, return_token_ids=True)
                  for i in range(8)]
        model = os.path.join(self.dir.name, "model")
        shutil.copytree(os.path.join(ROOT, "config", "demo"), model)
        d = self.start("-m", model, "--max_num_seqs=8").wait_ready()
        want = [self.outcome(d, b) for b in bodies]
        self.assertEqual([w[0] for w in want], [200] * len(bodies))
        self.assertEqual(d.stop(), 0)
        pages = f"{self.dir.name}/pages"
        size, unit = os.path.getsize(pages), EXPERT_BYTES // 96
        first = size - 96 * unit
        for x in range(95, -1, -7):  # until one is found that some need and some do not
            os.unlink(f"{self.dir.name}/heat")  # what is hot is read at the start
            with open(pages, "r+b") as f:
                f.seek(first + x * unit + 1000)
                good = f.read(100)
                f.seek(first + x * unit + 1000)
                f.write(bytes(b ^ 0x55 for b in good))
            d = self.start("-m", model, "--max_num_seqs=8", "--engine.self_test=no").wait_ready()
            for name in os.listdir(model):
                os.utime(os.path.join(model, name))
            alone = [self.outcome(d, b) for b in bodies]
            hurt = sum(a[0] == 503 for a in alone)
            found = 2 <= hurt <= len(bodies) - 2
            if found:
                failed = d.metrics()["expertd_steps_failed_total"]
                for _ in range(3):
                    self.assertEqual(self.all_at_once(d, bodies), alone)
                self.assertGreater(d.metrics()["expertd_steps_failed_total"], failed)
            self.assertEqual(d.stop(), 0)
            with open(pages, "r+b") as f:
                f.seek(first + x * unit + 1000)
                f.write(good)
            for a, w in zip(alone, want):
                if a[0] == 503:
                    self.assertRegex(a[1], r"wrong bytes \(checksum\) .*: delete the page file '.*/pages'; it is made anew")
                else:
                    self.assertEqual(a, w)
            if found:
                return
        self.fail("no expert is needed by some and not by others")

    def outcome(self, d, body):
        status, answer = d.ask("/v1/completions", body)
        answer = json.loads(answer)
        if status != 200:
            return status, answer["error"]["message"]
        c = answer["choices"][0]
        return status, c["token_ids"], c["logprobs"]

    def all_at_once(self, d, bodies):
        out = [None] * len(bodies)

        def one(i):
            out[i] = self.outcome(d, bodies[i])
        threads = [threading.Thread(target=one, args=(i,)) for i in range(len(bodies))]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        return out

    def ask_until(self, d, status, words):
        """Experts in memory still answer: asks until one is needed that is not there. Never a wrong answer."""
        def met():
            for p in PROMPTS:
                got, body = d.ask("/v1/completions", dict(prompt=p, max_tokens=24, temperature=0, ignore_eos=True))
                if got == status:
                    self.assertIn(words, body.decode())
                    return got
                self.assertEqual(got, 200, body)
            return None
        return wait_until(f"an answer with status {status}", met)

    def test_a_full_disk_is_said_and_the_next_start_goes_on(self):
        size = 4 << 20  # of any file; the page file needs 19 MB
        p = subprocess.run([EXE, *options(self.dir.name), "--server.port=0", "--log.format=plain"], stderr=subprocess.PIPE, text=True, timeout=180,
                           preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)))
        self.assertGreater(p.returncode, 0, p.stderr)
        self.assertRegex(p.stderr, r"page file '.*/pages' needs 18\.01 MiB and its disk has .* left: File too large")
        d = self.start().wait_ready()
        self.check(d)
        self.assertEqual(d.stop(), 0)

    def test_statistics_that_cannot_be_saved_harm_nobody(self):
        d = self.start(f"--pager.stats_file={self.dir.name}/no/such/folder/heat").wait_ready()
        wait_until("a save that fails", lambda: d.metrics()["expertd_stats_save_errors_total"] > 0)
        self.check(d)
        self.assertEqual(d.stop(), 0)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
