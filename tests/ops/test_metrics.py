"""Every metric is true: requests with known counts are driven, and what /metrics says is compared. argv[1] is the program."""
import http.client
import json
import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from daemon import WAIT_S, Daemon, TestCase, wait_until

EXE = sys.argv[1]
# The demo model: 6 layers of 16 experts, 4 a token; an expert has 3 matrices of 64 KiB, each one page.
PAGE = 65536
PAGES_A_TOKEN = 6 * 4 * 3
PAGES = 6 * 16 * 3
SMALL = ["--memory.page_size=64KiB", "--pager.warm_start=no"]


def disk(d):
    return ["--memory.host_budget=16MiB", "--memory.nvme_path=" + os.path.join(d, "pages")]


class Counts(TestCase):
    @classmethod
    def setUpClass(cls):
        cls.d = Daemon(EXE, *SMALL, "--memory.vram_budget=4MiB").wait_ready()

    @classmethod
    def tearDownClass(cls):
        assert cls.d.stop() == 0

    def settled(self):
        """An answer is counted just after its last byte went out: waits until only our own question is being answered."""
        return wait_until("the end of other requests", lambda: (m := self.d.metrics())["expertd_http_in_flight"] <= 1 and m)

    def change(self, what):
        before = self.settled()
        what()
        after = self.settled()
        return {k: v - before.get(k, 0) for k, v in after.items()}

    def test_requests_and_tokens(self):
        c = self.change(lambda: [self.d.complete(n) for n in (5, 7, 11)])
        self.assertEqual(c["expertd_generated_tokens_total"], 23)
        self.assertEqual(c["expertd_prompt_tokens_total"], 3 * 4)
        self.assertEqual(c["expertd_computed_tokens_total"], 3 * 4 + 23 - 3)  # the last token is not computed
        self.assertEqual(c["expertd_steps_total"], 23)
        self.assertEqual(c['expertd_requests_total{finish="length"}'], 3)
        self.assertEqual(c["expertd_requests_total"], 3)
        self.assertEqual(c["expertd_time_to_first_token_seconds_count"], 3)
        self.assertEqual(c["expertd_time_per_output_token_seconds_count"], 23 - 3)
        self.assertEqual(c["expertd_request_queue_seconds_count"], 3)
        self.assertEqual(c["expertd_request_duration_seconds_count"], 3)
        self.assertEqual(c["expertd_step_duration_seconds_count"], 23)
        self.assertEqual(c['expertd_http_requests_total{endpoint="/v1/completions",status="200"}'], 3)

    def test_the_prefix_cache(self):
        prompt = list(range(100, 180))  # 80 tokens: five blocks, of which the last token's is computed again
        first = self.change(lambda: self.d.complete(2, prompt))
        self.assertEqual(first["expertd_prompt_cached_tokens_total"], 0)
        second = self.change(lambda: self.d.complete(2, prompt))
        self.assertEqual(second["expertd_prompt_cached_tokens_total"], 64)
        self.assertEqual(second["expertd_prefix_cache_hits_tokens_total"], 64)
        self.assertEqual(second["expertd_prefix_cache_queries_tokens_total"], 80)
        self.assertEqual(second["expertd_computed_tokens_total"], 80 - 64 + 1)

    def test_pages_and_bytes(self):
        self.d.complete(20)
        short, long = (self.change(lambda n=n: self.d.complete(n)) for n in (10, 30))
        hits = {k: long[k] - short[k] for k in long}
        self.assertEqual(hits["expertd_expert_page_hits_total"], 20 * PAGES_A_TOKEN)
        self.assertEqual(hits["expertd_expert_read_bytes_total"], 20 * PAGES_A_TOKEN * PAGE)
        m = self.d.metrics()
        self.assertEqual(m["expertd_expert_pages"], PAGES)
        self.assertEqual(m["expertd_expert_resident_bytes"], PAGES * PAGE)
        self.assertEqual(m["expertd_arena_slots"], 4 * 2**20 / PAGE)
        self.assertEqual(m['expertd_expert_resident_bytes{tier="vram"}'], m["expertd_arena_slots_used"] * PAGE)
        self.assertEqual(m["expertd_expert_pages_filled_total"] + m["expertd_expert_pages_promoted_total"]
                         - m["expertd_expert_pages_evicted_total"], m["expertd_arena_slots_used"])
        self.assertGreater(m['expertd_expert_page_hits_total{tier="vram"}'], 0)
        self.assertEqual(m['expertd_expert_page_hits_total{tier="disk"}'], 0)

    def test_phases_add_up_to_the_steps(self):
        def most_of_the_time_has_a_name():
            c = self.change(lambda: self.d.complete(50))
            phases, busy = c["expertd_step_seconds_total"], c["expertd_step_busy_seconds_total"]
            self.assertLessEqual(phases, busy)
            self.assertAlmostEqual(c["expertd_step_duration_seconds_sum"], busy, places=6)
            self.assertGreater(c["expertd_http_outside_engine_seconds_total"], 0)
            return phases > 0.5 * busy
        wait_until("steps in which nobody else had the processor between two phases", most_of_the_time_has_a_name)

    def test_refusals_and_stops(self):
        def ask():
            self.assertEqual(self.d.ask("/v1/completions", {"prompt": "x", "max_tokens": 10**6})[0], 400)
            wait_until("a count of what is refused", lambda: 'expertd_http_requests_total{endpoint="/v1/completions",status="400"}' in self.d.metrics())
            self.d.complete(50, stop_token_ids=[self.d.complete(1, return_token_ids=True)["choices"][0]["token_ids"][0]])
        c = self.change(ask)
        self.assertEqual(c['expertd_http_requests_total{endpoint="/v1/completions",status="400"}'], 1)
        self.assertEqual(c['expertd_requests_total{finish="stop"}'], 1)
        self.assertEqual(c['expertd_requests_total{finish="length"}'], 1)

    def test_a_client_that_goes_away(self):
        def leave():
            c = http.client.HTTPConnection("127.0.0.1", self.d.port, timeout=WAIT_S)
            c.request("POST", "/v1/completions", json.dumps({"prompt": "x", "max_tokens": 1900, "stream": True, "ignore_eos": True}),
                      {"Content-Type": "application/json"})
            c.getresponse().read(10)
            c.close()
            wait_until("the end of a request", lambda: self.d.metrics()["expertd_requests_running"] == 0)

        def changes():
            """None when the answer was complete before this process, which had no processor, had left."""
            c = self.change(leave)
            return c if c['expertd_requests_total{finish="length"}'] == 0 else None
        c = wait_until("an answer that was left before its end", changes)
        self.assertEqual(c['expertd_requests_total{finish="abort"}'], 1)
        self.assertEqual(c["expertd_http_client_gone_total"], 1)
        m = self.d.metrics()
        self.assertEqual((m["expertd_kv_blocks_used"], m["expertd_http_streams"]), (0, 0))

    def test_the_plan(self):
        m = self.d.metrics()
        self.assertEqual(m['expertd_memory_planned_bytes{part="arena"}'], 4 * 2**20)
        kv = m['expertd_memory_planned_bytes{part="kv"}']
        self.assertEqual(kv / m["expertd_kv_blocks"], 16 * 2 * 6 * 2 * 32 * 4)  # tokens, K and V, layers, heads, dimension, float32


class Tiers(TestCase):
    def run_with(self, *args):
        d = Daemon(EXE, *SMALL, *args).wait_ready()
        self.addCleanup(d.stop)
        return d

    def together(self, d, n, tokens):
        body = json.dumps({"prompt": "Once upon a time", "max_tokens": tokens, "n": n, "ignore_eos": True, "seed": 1})
        status, answer = d.ask("/v1/completions", json.loads(body))
        self.assertEqual(status, 200, answer)

    def test_disk_faults(self):
        with tempfile.TemporaryDirectory() as t:
            d = Daemon(EXE, *SMALL, *disk(t), "--memory.vram_budget=2MiB").wait_ready()
            try:
                d.complete(60)
                d.complete(60, "The dog")
                m = d.metrics()
            finally:
                d.stop()
        faults = m['expertd_expert_page_hits_total{tier="disk"}']
        self.assertGreater(faults, 0)
        self.assertGreaterEqual(m['expertd_expert_read_bytes_total{tier="disk"}'], faults * PAGE)
        self.assertEqual(m["expertd_expert_resident_bytes"], PAGES * PAGE)
        self.assertLessEqual(m['expertd_expert_resident_bytes{tier="host"}'], m["expertd_host_tier_bytes"])
        self.assertLessEqual(m["expertd_host_tier_bytes"], 16 * 2**20)
        self.assertGreater(m['expertd_step_seconds_total{phase="experts_disk"}'], 0)
        self.assertGreater(m["expertd_disk_busy_seconds_total"], 0)

    def test_disk_errors(self):
        with tempfile.TemporaryDirectory() as t:
            d = Daemon(EXE, *SMALL, *disk(t), "--test.allow=yes", "--test.disk_error_rate=0.2", "--engine.self_test=no").wait_ready()
            try:
                answers = [d.ask("/v1/completions", {"prompt": f"{i} dogs", "max_tokens": 40}) for i in range(20)]
                failed = [a for a in answers if a[0] != 200]
                m = d.metrics()
            finally:
                d.stop()
        self.assertTrue(all(s == 503 and b"page file" in b for s, b in failed), failed)
        self.assertEqual(m['expertd_requests_total{finish="error"}'], len(failed))
        self.assertEqual(m["expertd_steps_failed_total"], len(failed))
        self.assertEqual(m["expertd_requests_total"], 20)
        self.assertGreaterEqual(m["expertd_expert_io_errors_total"], len(failed))

    def test_preempted_blocks_are_swapped_or_computed_again(self):
        for swap in ("16MiB", "0"):
            d = self.run_with("--kv.kv_budget=1MiB", "--kv.swap_space=" + swap, "--model.max_model_len=256")
            before = d.metrics()
            self.together(d, 8, 120)
            m = d.metrics()
            computed = m["expertd_computed_tokens_total"] - before["expertd_computed_tokens_total"]
            self.assertGreater(m["expertd_preemptions_total"], 0)
            if swap == "0":
                self.assertEqual(m["expertd_kv_swapped_out_blocks_total"], 0)
                self.assertGreater(computed, 4 + 8 * 119)
            else:
                self.assertGreater(m["expertd_kv_swapped_out_blocks_total"], 0)
                self.assertGreater(m["expertd_kv_swapped_in_blocks_total"], 0)
                self.assertGreater(m['expertd_step_seconds_total{phase="kv"}'], 0)
                self.assertGreater(m["expertd_kv_swap_blocks"], 300)
            self.assertEqual(m["expertd_kv_blocks_used"], 0)

    def test_blocks_by_tier(self):
        block = 16 * 2 * 6 * 2 * 32 * 4
        d = self.run_with("--kv.kv_budget=1MiB", "--kv.swap_space=16MiB", "--model.max_model_len=256")
        m = d.metrics()
        vram = 2**20 // block
        self.assertEqual((m['expertd_kv_blocks{tier="vram"}'], m['expertd_kv_blocks{tier="host"}']), (vram, 0))
        d = self.run_with("--kv.kv_budget=1MiB", "--kv.swap_space=16MiB", "--model.max_model_len=1024", "--engine.max_num_seqs=1")
        d.complete(600)
        m = d.metrics()
        self.assertLessEqual(m['expertd_kv_blocks{tier="vram"}'], vram)
        self.assertGreater(m['expertd_kv_blocks{tier="host"}'], 300)
        self.assertGreater(m['expertd_kv_blocks_cached{tier="host"}'], 10)

    def test_the_queue_that_is_full(self):
        # A slow link: the first stream still runs when the last question is asked, however busy the machine is. The second comes when
        # the first has left the queue, which has room for one.
        d = self.run_with("--server.max_queue=1", "--engine.max_num_seqs=1", "--memory.vram_budget=2MiB", "--fallback.enabled=no",
                          "--test.allow=yes", "--test.link_gbps=0.02")
        streams = []
        for waiting in range(2):
            c = http.client.HTTPConnection("127.0.0.1", d.port, timeout=WAIT_S)
            c.request("POST", "/v1/completions", json.dumps({"prompt": "x", "max_tokens": 1900, "stream": True, "ignore_eos": True}),
                      {"Content-Type": "application/json"})
            streams.append(c)
            wait_until("a stream that runs or waits",
                       lambda: (m := d.metrics())["expertd_requests_running"] == 1 and m["expertd_requests_waiting"] == waiting)
        self.assertEqual(d.ask("/v1/completions", {"prompt": "x"})[0], 429)
        self.assertEqual(d.metrics()['expertd_requests_rejected_total{reason="queue_full"}'], 1)
        for c in streams:
            c.close()

    def test_link_and_states(self):
        d = self.run_with("--memory.vram_budget=2MiB", "--test.allow=yes", "--test.link_gbps=50", "--server.admin=yes",
                          "--fallback.cooldown=100ms", "--fallback.window=100ms", "--fallback.probe_interval=100ms")
        d.complete(20)
        # The next probe is due within 100 ms. A token that took seconds, since the machine had no time, is suspect for a moment.
        m = wait_until("a probe of a good link", lambda: (m := d.metrics())["expertd_link_probes_total"] > 0
                       and m['expertd_fallback_state{state="direct"}'] == 1 and m)
        self.assertEqual(m["expertd_link_healthy_bytes_per_second"], 50e9)
        self.assertEqual(m["expertd_link_suspect_below_bytes_per_second"], 20e9)
        self.assertEqual((m["expertd_fallback_watching"], m['expertd_fallback_state{state="direct"}'], m["expertd_fallback_state"]), (1, 1, 1))
        self.assertEqual(d.ask("/admin/fallback", {"state": "fallback"})[0], 200)
        d.complete(20)
        m = d.metrics()
        self.assertEqual(m['expertd_fallback_state{state="fallback"}'], 1)
        self.assertEqual(m['expertd_expert_path{mode="staged"}'], 1)
        self.assertEqual(m["expertd_fallback_entered_total"], m["expertd_fallback_transitions_total"])
        self.assertGreater(m['expertd_step_seconds_total{phase="experts_staged"}'], 0)
        self.assertEqual(d.ask("/admin/fallback", {"state": "direct"})[0], 200)
        d.complete(20)
        m = d.metrics()
        self.assertEqual((m['expertd_fallback_state{state="direct"}'], m['expertd_expert_path{mode="direct"}']), (1, 1))

    def test_free_memory_holds_a_part(self):
        d = self.run_with("--memory.vram_budget=2MiB", "--test.allow=yes", "--test.vram_free=3MiB", "--test.link_gbps=50",
                          "--server.admin=yes")
        before = d.metrics()
        self.assertEqual(before["expertd_arena_slots_spare"], 0)
        self.assertEqual(d.ask("/admin/fallback", {"state": "fallback"})[0], 200)
        wait_until("a part of the experts in free memory",
                   lambda: (p := json.loads(d.ask("/status.json")[1])["engine"]["pager"])["slots_spare"] > 0 and not p["filling"])
        m = d.metrics()
        self.assertEqual(m["expertd_arena_slots_spare"], 3 * 2**20 / PAGE)
        self.assertEqual(m["expertd_arena_slots"], before["expertd_arena_slots"] + 3 * 2**20 / PAGE)
        self.assertEqual(m['expertd_expert_path{mode="staged"}'], 1)
        self.assertGreater(m["expertd_arena_slots_used"], before["expertd_arena_slots_used"])
        d.wait_log(r"3\.00 MiB of free VRAM are taken: \d+ % of the expert pages have a place there")
        self.assertEqual(d.ask("/admin/fallback", {"state": "direct"})[0], 200)
        wait_until("memory that is given back", lambda: d.metrics()["expertd_arena_slots_spare"] == 0)
        self.assertEqual(d.metrics()["expertd_arena_slots"], before["expertd_arena_slots"])


class Exposition(TestCase):
    def test_readable_from_the_first_moment_and_only_growing(self):
        d = Daemon(EXE, *SMALL)
        self.addCleanup(d.stop)
        kinds, last, served = {}, {}, 0
        while served < 3:  # loading takes as long as it takes
            text = d.text()
            for line in text.splitlines():
                if line.startswith("# TYPE "):
                    kinds[line.split()[2]] = line.split()[3]
                elif not line.startswith("#"):
                    key, value = line.rsplit(" ", 1)
                    name = key.split("{")[0]
                    if kinds.get(name) == "counter" or name.endswith(("_bucket", "_count", "_sum")):
                        self.assertGreaterEqual(float(value), last.get(key, 0), key)
                        last[key] = float(value)
            if d.ask("/health")[0] == 200:
                d.complete(3)
                served += 1
        self.assertEqual(last['expertd_requests_total{finish="length"}'] + 1, 3)
        self.assertGreater(last['expertd_http_requests_total{endpoint="/metrics",status="200"}'], 0)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]], verbosity=2)
