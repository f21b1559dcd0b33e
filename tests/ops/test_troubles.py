"""What goes wrong while the daemon goes on serving is counted, logged and shown in /health. argv[1] is the program, argv[2] the source
root."""
import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from daemon import WAIT_S, Daemon, TestCase, wait_until

EXE, ROOT = sys.argv[1:3]
DEMO = os.path.join(ROOT, "config", "demo")
PAGED = ["--memory.host_budget=4MiB", "--memory.page_size=64KiB", "--engine.self_test=no", "--pager.warm_start=no"]
FAULTS = "--test.allow=yes"


class Troubles(TestCase):
    def setUp(self):
        self.dir = tempfile.TemporaryDirectory()
        self.addCleanup(self.dir.cleanup)

    def at(self, name):
        return os.path.join(self.dir.name, name)

    def start(self, *args, env=None):
        d = Daemon(EXE, "-c", "/dev/null", "-m", DEMO, *args, env=env).wait_ready()
        self.addCleanup(lambda: d.p.poll() is None and d.stop())
        return d

    def health(self, d):
        status, body = d.ask("/health")
        self.assertEqual(status, 200)
        return json.loads(body)["engine"]

    def load(self, d, n):
        return [d.ask("/v1/completions", dict(prompt=f"{i} dogs", max_tokens=40, ignore_eos=True)) for i in range(n)]

    def test_a_read_that_fails_once_is_counted_and_told(self):
        d = self.start(*PAGED, "--memory.nvme_path=" + self.at("pages"), "--memory.nvme_prefetch=no", FAULTS, "--test.disk_error_rate=0.02",
                       "--test.seed=3")
        begin = time.monotonic()
        answers = self.load(d, 12)
        m = d.metrics()
        errors, lost = m["expertd_expert_io_errors_total"], m["expertd_expert_loads_failed_total"]
        # Every second failure in a row is a lost load: at 2 % each, 1 in 50 of the failures.
        self.assertGreater(errors, 10)
        self.assertLess(lost, errors / 5)
        loads = m['expertd_expert_read_bytes_total{tier="disk"}'] / (3 * 256 * 128 * 2)
        self.assertAlmostEqual(errors / (loads + errors), 0.02, delta=0.015)
        self.assertEqual(sum(s != 200 for s, _ in answers) > 0, lost > 0)
        d.wait_log(r"warn +page file '.*pages': \d+ reads failed and went well when tried again, the last with: Input/output error")
        self.assertLessEqual(sum("went well when tried again" in line for line in d.log), 1 + (time.monotonic() - begin) // 60)  # one a minute

    def test_a_damaged_page_file_shows_until_it_is_mended(self):
        pages = self.at("pages")
        d = self.start(*PAGED, "--memory.nvme_path=" + pages)
        self.assertNotIn("warning", self.health(d))
        with open(pages, "rb") as f:
            good = f.read()
        os.truncate(pages, 1000000)
        lost = [b for s, b in self.load(d, 4) if s == 503]
        self.assertTrue(lost and all(b"page file" in b for b in lost), lost)
        warning = self.health(d)["warning"]
        self.assertRegex(warning, r"page file '.*pages': \d+ experts could not be read when they were last wanted")
        d.wait_log(r"warn +page file '.*pages': \d+ experts could not be read")
        self.assertGreater(d.metrics()["expertd_expert_loads_failed_total"], 0)
        with open(pages, "r+b") as f:
            f.write(good)
        for i in range(200):  # until each lost expert has been wanted again
            self.assertEqual(self.load(d, 1)[0][0], 200)
            if "warning" not in self.health(d):
                break
        self.assertNotIn("warning", self.health(d))
        d.wait_log("info +page file: every expert that could not be read has been read since")

    def test_files_that_cannot_be_written(self):
        old = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, old[1]))  # as a full disk: the heads fit
        try:
            d = self.start("--pager.stats_file=" + self.at("heat"), "--pager.stats_interval=1s", "--pager.trace_file=" + self.at("trace"))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, old)
        self.load(d, 1)
        d.wait_log(r"warn +pager.stats_file: .*heat.*File too large; the next start will be cold")
        self.assertIn("heat", self.health(d)["warning"])
        m = d.metrics()
        self.assertGreater(m["expertd_stats_save_errors_total"], 0)
        self.assertEqual(m["expertd_trace_cut"], 0)  # nothing of it was written yet
        self.assertEqual(d.stop(), 0)
        log = "".join(d.log)
        self.assertRegex(log, r"warn +the trace '.*trace' ends before this: File too large; \d+ steps had been recorded until then")
        self.assertEqual(log.count("the next start will be cold"), 1)

    def test_files_that_are_written(self):
        d = self.start("--pager.stats_file=" + self.at("heat"), "--pager.trace_file=" + self.at("trace"))
        self.load(d, 1)
        self.assertNotIn("warning", self.health(d))
        self.assertEqual(d.stop(), 0)
        log = "".join(d.log)
        self.assertRegex(log, r"info +the trace '.*trace' holds \d+ steps")
        self.assertNotIn("warn ", log)

    def test_a_place_that_cannot_be_written_shows_from_the_start(self):
        d = self.start("--pager.stats_file=/nope/heat")
        self.assertRegex(self.health(d)["warning"], "^pager.stats_file: '/nope/heat' cannot be written: No such file")

    def test_out_of_memory_is_said_and_counted_as_such(self):
        d = self.start("--pager.warm_start=no", "--engine.self_test=no", FAULTS, "--test.alloc_error_rate=0.3")
        bad = [b for s, b in self.load(d, 60) if s != 200]
        self.assertTrue(bad)
        for b in bad:
            self.assertIn("out of memory", json.loads(b)["error"]["message"])
        m = d.metrics()
        self.assertGreater(m['expertd_requests_rejected_total{reason="out_of_memory"}'], 0)
        self.assertEqual(m['expertd_requests_rejected_total{reason="invalid"}'], 0)
        self.assertEqual(d.ask("/v1/completions", dict(prompt=[1] * 5000, max_tokens=1))[0], 400)

    def test_a_forced_state_shows_and_its_end_is_told(self):
        link = [FAULTS, "--test.link_gbps=50", "--memory.expert_vram_share=40%"]
        d = self.start(*link)
        self.assertEqual((self.health(d)["fallback"]["forced"], d.metrics()["expertd_fallback_forced"]), ("none", 0))
        for signo, name in ((signal.SIGUSR1, "fallback"), (signal.SIGUSR2, "direct")):
            d.p.send_signal(signo)
            wait_until(f"a state that is forced: {name}", lambda: self.health(d)["fallback"]["forced"] == name)
            self.assertEqual(d.metrics()["expertd_fallback_forced"], 1)
        d.p.send_signal(signal.SIGHUP)
        d.wait_log("warn +reload: fallback.force = none takes the place of 'direct', which was forced")
        wait_until("a state that is not forced", lambda: self.health(d)["fallback"]["forced"] == "none")

    def test_without_a_link_no_rate_is_suspect(self):
        m = self.start().metrics()
        self.assertEqual((m["expertd_fallback_watching"], m["expertd_link_suspect_below_bytes_per_second"]), (0, 0))

    def test_the_same_name_has_the_same_number(self):
        """Log, /health, metrics and inspect about where memory goes."""
        for args, host in ((PAGED + ["--memory.nvme_path=" + self.at("pages")], None), (["--pager.warm_start=no"], 6 * 16 * 3 * 256 * 128 * 2)):
            d = self.start(*args, "--memory.vram_budget=1GiB")
            plan = {row["what"]: row["bytes"] for row in self.health(d)["plan"]}
            m = d.metrics()
            out = subprocess.run([EXE, "inspect", "-c", "/dev/null", "-m", DEMO, "--json", *args], capture_output=True, text=True, check=True)
            inspect = json.loads(out.stdout)
            self.assertEqual(plan["trunk"], inspect["trunk_bytes"])
            self.assertEqual(plan["trunk"], m['expertd_memory_planned_bytes{part="trunk"}'])
            self.assertEqual(plan["host_experts"], m["expertd_host_tier_bytes"])
            self.assertEqual(plan["arena"], m['expertd_memory_planned_bytes{part="arena"}'])
            self.assertLess(plan["arena"], 1.1 * inspect["expert_bytes"])  # slots for every page, and no more
            if host:
                self.assertEqual(plan["host_experts"], host)
            else:
                self.assertLessEqual(plan["host_experts"], 4 << 20)
                self.assertAlmostEqual(plan["host_experts"], inspect["placement"]["host_bytes"], delta=3 * 256 * 128 * 2 + 4096)

    def test_a_context_cut_by_the_kv_cache_is_warned_of(self):
        self.start("--kv.kv_budget=1MiB").wait_log(r"warn +the KV cache holds \d+ tokens: longer prompts are refused, though this model takes 2048")

    def test_a_reload_is_whole_or_nothing(self):
        conf, keys = self.at("conf"), self.at("keys")
        with open(keys, "w", encoding="utf-8") as f:
            f.write("old\n")
        text = f"[server]\nport = 0\napi_key_file = {keys}\nmax_queue = %d\n[pager]\nwarm_start = no\n[model]\npath = {DEMO}\n"
        with open(conf, "w", encoding="utf-8") as f:
            f.write(text % 10)
        d = Daemon(EXE, "-c", conf)
        self.addCleanup(lambda: d.p.poll() is None and d.stop())
        d.wait_ready()
        for damage in (lambda: os.truncate(keys, 0), lambda: os.remove(keys)):
            damage()
            with open(conf, "w", encoding="utf-8") as f:
                f.write(text % 20)
            before = "".join(d.log).count("nothing is changed: server.api_key_file")
            d.p.send_signal(signal.SIGHUP)
            d.wait_log("nothing is changed: server.api_key_file", before + 1)
        self.assertNotIn("configuration reloaded", "".join(d.log))
        self.assertNotIn("max_queue: 10 -> 20", "".join(d.log))
        with open(keys, "w", encoding="utf-8") as f:
            f.write("\ufeffnew\n")  # with the mark that some editors begin a file with
        d.p.send_signal(signal.SIGHUP)
        d.wait_log("server.max_queue: 10 -> 20(.|\n)*configuration reloaded")
        with urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{d.port}/v1/models", headers={"Authorization": "Bearer new"}),
                                    timeout=WAIT_S) as r:
            self.assertEqual(r.status, 200)

    def test_where_a_key_comes_from(self):
        # Over the file, under the command line, which is warned of.
        conf = self.at("conf")
        with open(conf, "w", encoding="utf-8") as f:
            f.write(f"[server]\nport = 0\napi_key = file\n[pager]\nwarm_start = no\n[model]\npath = {DEMO}\n")
        os.chmod(conf, 0o600)
        env = {"EXPERTD_API_KEY": "env"}
        for args, env, key in (([], None, "file"), ([], env, "env"), (["--api-key", "flag"], env, "flag"), (["--server.api_key=flag"], None, "flag")):
            d = Daemon(EXE, "-c", conf, *args, env=env).wait_ready()
            for other in ("file", "env", "flag"):
                try:
                    with urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{d.port}/v1/models",
                                                                       headers={"Authorization": "Bearer " + other}), timeout=WAIT_S) as r:
                        status = r.status
                except urllib.error.HTTPError as e:
                    status = e.code
                self.assertEqual(status, 200 if other == key else 401, (args, env, other))
            self.assertEqual(d.stop(), 0)
            self.assertEqual("stands on the command line" in "".join(d.log), bool(args), d.log)

    def test_a_reload_names_only_what_was_changed(self):
        conf = self.at("conf")
        with open(conf, "w", encoding="utf-8") as f:
            f.write("[server]\nport = 0\n[pager]\nwarm_start = no\n")
        d = Daemon(EXE, "-c", conf).wait_ready()
        self.addCleanup(lambda: d.p.poll() is None and d.stop())
        self.assertEqual(json.loads(d.ask("/v1/models")[1])["data"][0]["id"], "demo")
        with open(conf, "a", encoding="utf-8") as f:
            f.write("[model]\npath = /srv/other\n")
        d.p.send_signal(signal.SIGHUP)
        d.wait_log("configuration reloaded")
        told = [line for line in d.log if "needs a restart" in line]
        self.assertEqual(len(told), 1, told)
        self.assertRegex(told[0], r"reload: model\.path: .*demo -> /srv/other needs a restart")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
