"""No setting is inert: for every key of --print-config there is a test in which it makes a visible difference, here or in the file that
ELSEWHERE names. argv[1] is the program, argv[2] the source root."""
import glob
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from daemon import Daemon, TestCase, wait_until

EXE, ROOT = sys.argv[1:3]
DEMO = os.path.join(ROOT, "config", "demo")
SMALL = ["--memory.page_size=64KiB", "--memory.vram_budget=4MiB", "--pager.warm_start=no"]
LONG = list(range(100, 612))
ELSEWHERE = {
    "tests/api/test_http.py": ["server.api_key", "server.api_key_file", "server.cors_origin", "server.allowed_hosts", "server.max_connections",
                               "server.request_timeout", "server.idle_timeout", "server.heartbeat"],
    "tests/api/test_fields.py": ["server.max_body", "model.chat_template_kwargs", "server.completions_parse_special"],
    "tests/api/test_metrics.py": ["server.status_page"],
    "tests/api/test_tools.py": ["server.reasoning_format"],
    "tests/ops/test_metrics.py": ["server.max_queue", "server.admin", "memory.host_budget", "memory.nvme_path", "kv.kv_budget", "kv.swap_space",
                                  "test.disk_error_rate", "memory.page_size", "memory.vram_budget"],
    "tests/daemon/test_check.py": ["model.tokenizer"],
    "tests/ops/daemon.py": ["server.port"],
    "tests/ops/test_chat.py": ["server.chat_page"],
    "tests/unit/test_controller.c": ["fallback.window", "fallback.cooldown", "fallback.max_token_latency_ms"],
    "tests/unit/test_fallback.c": ["test.link_profile"],
    "tests/unit/test_pager_spare.c": ["test.vram_free", "test.vram_piece"],
    "tests/unit/test_policy.c": ["pager.layer_floor"],
    "tests/golden/test_identity.c": ["engine.backend", "pager.read_ahead"],
}
NEEDS_A_GPU = ["memory.gpu_memory_utilization"]
PROVEN = {}


def proves(*keys):
    def wrap(f):
        PROVEN.update({k: f.__name__ for k in keys})
        return f
    return wrap


def trace_steps(path):
    """(flags, one bit for each expert) of each step in a trace: see engine/memory/trace.h."""
    with open(path, "rb") as f:
        data = f.read()
    layers = int.from_bytes(data[20:24], "little")
    counts = [int.from_bytes(data[24 + 4 * i:28 + 4 * i], "little") for i in range(layers)]
    record = 1 + (sum(counts) + 7) // 8
    at = 24 + 4 * layers
    return [(data[i], data[i + 1:i + record]) for i in range(at, len(data) - record + 1, record)]


def options():
    section, out = None, []
    for line in subprocess.run([EXE, "--print-config", "-c", "/dev/null"], capture_output=True, text=True, check=True).stdout.splitlines():
        if m := re.match(r"\[(\w+)\]", line):
            section = m[1]
        elif m := re.match(r"(\w+) =", line):
            out.append(f"{section}.{m[1]}")
    return out


class Keys(TestCase):
    def start(self, *args, **kw):
        d = Daemon(EXE, *args, **kw).wait_ready()
        self.addCleanup(d.stop)
        return d

    def engine(self, d):
        return json.loads(d.ask("/status.json")[1])["engine"]

    def refused(self, words, *args):
        out = subprocess.run([EXE, "--server.port=0", *args], capture_output=True, text=True, timeout=180)
        self.assertNotEqual(out.returncode, 0)
        self.assertIn(words, out.stderr)

    def test_every_key_is_proven(self):
        named = [k for keys in ELSEWHERE.values() for k in keys]
        self.assertEqual(sorted(options()), sorted(set(named) | PROVEN.keys() | set(NEEDS_A_GPU)))
        for path, keys in ELSEWHERE.items():
            with open(os.path.join(ROOT, path)) as f:
                text = f.read()
            for k in keys:
                self.assertIn(k.split(".")[1], text, path)

    @proves("test.allow")
    def test_faults_are_refused_unless_allowed(self):
        for fault in ["link_gbps=5", "link_latency_us=5", "link_profile=0:5", "disk_gbps=1", "disk_error_rate=0.1", "alloc_error_rate=0.1",
                      "page_loss_rate=0.1"]:
            self.refused("test.allow", "--test." + fault)

    @proves("engine.deterministic")
    def test_experts_on_the_cpu(self):
        """Over a link of 20 MB/s the CPU is the quicker way by far, and taken unless that is forbidden. Without a fallback it has no effect."""
        link = SMALL + ["--test.allow=yes", "--test.link_gbps=0.02", "--fallback.force=fallback"]

        def chosen():
            """None when the machine had no time for a moment, and that made the CPU look slow."""
            free = self.start(*link, "--engine.deterministic=no")
            self.assertEqual(free.complete(60)["usage"]["completion_tokens"], 60)
            return free if free.metrics()['expertd_expert_path{mode="shared"}'] == 1 else None
        free = wait_until("experts that the CPU computes", chosen)
        m = free.metrics()
        self.assertEqual((m['expertd_expert_path{mode="shared"}'], m['expertd_expert_path{mode="staged"}']), (1, 0))
        self.assertGreater(m["expertd_expert_cpu_bytes_total"], 0)
        self.assertGreater(m['expertd_step_seconds_total{phase="experts_cpu"}'], 0)
        staged, cpu = (m[f'expertd_fallback_token_seconds{{path="{p}"}}'] for p in ("staged", "shared"))
        self.assertLess(1.1 * cpu, staged)
        f = self.engine(free)["fallback"]
        self.assertEqual((f["state"], f["path"]), ("fallback", "shared"))
        self.assertAlmostEqual(f["token_ms"]["staged"], 1000 * staged, delta=staged)
        free.wait_log("missing experts are shared by link and CPU: a token took")
        for strict in (self.start(*link), self.start(*SMALL, "--engine.deterministic=no")):
            strict.complete(20)
            m = strict.metrics()
            self.assertEqual((m['expertd_expert_path{mode="shared"}'], m["expertd_expert_cpu_bytes_total"]), (0, 0))

    @proves("engine.numa_node", "engine.kernels_disable", "engine.gpu", "kv.block_size")
    def test_names_that_match_nothing_stop_the_start(self):
        self.refused("no such node", "--engine.numa_node=900")
        self.refused("avx_512", "--engine.kernels_disable=avx_512")
        self.refused("power of two", "--kv.block_size=17")
        gpus = glob.glob("/proc/driver/nvidia/gpus/*")
        self.refused("engine.backend = cuda", "--engine.backend=cuda", f"--engine.gpu={len(gpus)}")

    @proves("engine.threads", "server.threads")
    def test_threads(self):
        d = self.start("--engine.threads=3", "--server.threads=7", "--engine.kernels_disable=avx512,avx2", "--kv.block_size=32",
                       "--engine.numa_node=0" if os.path.exists("/sys/devices/system/node/node0") else "--engine.numa_node=auto")
        names = []
        for path in glob.glob(f"/proc/{d.p.pid}/task/*/comm"):
            with open(path) as f:
                names.append(f.read().strip())
        self.assertEqual(sum(n.startswith("MHD-worker") for n in names), 7, names)
        e = self.engine(d)
        self.assertNotRegex(e["backend"]["kernels"], "avx")
        self.assertEqual(e["kv"]["block_size"], 32)
        more = self.start("--engine.threads=5", "--server.threads=7")
        others = len(glob.glob(f"/proc/{more.p.pid}/task/*"))
        self.assertEqual(others - len(names), 2)

    @proves("model.path", "model.served_model_name", "model.max_model_len", "model.chat_template", "server.host", "engine.self_test", "kv.kv_dtype",
            "server.max_n", "server.max_logprobs", "server.max_stop", "log.format", "engine.max_num_seqs")
    def test_what_is_served(self):
        with tempfile.NamedTemporaryFile("w", suffix=".jinja") as t:
            t.write("Once upon a time")
            t.flush()
            d = self.start("-m", DEMO, "--served-model-name=tales, stories", "--model.max_model_len=64", "--model.chat_template=" + t.name,
                           "--server.host=127.0.0.1", "--engine.self_test=no", "--kv.kv_dtype=f16", "--server.max_n=2", "--server.max_logprobs=1",
                           "--server.max_stop=1", "--engine.max_num_seqs=1")
        self.assertEqual(d.metrics()["expertd_expert_page_hits_total"], 0)  # no self-test has run
        m = json.loads(d.ask("/v1/models")[1])["data"]
        self.assertEqual([(x["id"], x["root"], x["max_model_len"]) for x in m], [("tales", "tales", 64), ("stories", "tales", 64)])
        self.assertEqual(json.loads(d.ask("/v1/models/stories")[1])["id"], "stories")
        for name in ("tales", "stories"):
            a = json.loads(d.ask("/v1/completions", {"model": name, "prompt": "x", "max_tokens": 1})[1])
            self.assertEqual(a["model"], "tales")
        self.assertEqual(d.ask("/v1/completions", {"model": "tales, stories", "prompt": "x", "max_tokens": 1})[0], 404)
        chat = json.loads(d.ask("/tokenize", {"messages": [{"role": "user", "content": "x"}]})[1])
        plain = json.loads(d.ask("/tokenize", {"prompt": "Once upon a time"})[1])
        self.assertEqual(chat["tokens"], plain["tokens"])
        info = d.metrics()
        self.assertEqual(info['expertd_memory_planned_bytes{part="kv"}'] / info["expertd_kv_blocks"], 16 * 2 * 6 * 2 * 32 * 2)
        self.assertEqual(self.engine(d)["limits"]["max_num_seqs"], 1)
        for body in [{"n": 3}, {"logprobs": 2}, {"stop": ["a", "b"]}]:
            self.assertEqual(d.ask("/v1/completions", dict(prompt="x", max_tokens=1, **body))[0], 400, body)
        self.assertEqual(d.ask("/v1/completions", dict(prompt="x", max_tokens=1, n=2, logprobs=1, stop=["a"]))[0], 200)

    @proves("kv.state_space")
    def test_prompts_begin_where_a_state_was_kept(self):
        """With room for one copy the other prompt's is gone; without any the log says so. `inspect` counts the same bytes."""
        prompts = [[p + i for i in range(90)] for p in (3, 60)]
        model = os.path.join(ROOT, "tests", "data", "golden", "qwen3_next")
        for space, copies, size, cached in (("1MiB", 85, "1020.00 KiB", [64, 64]), ("1GiB", 4096, "48.00 MiB", [64, 64]), ("12KiB", 1, "12.00 KiB", [0, 64]),
                                            ("0", 0, None, [0, 0])):
            d = self.start("-m", model, "--model.tokenizer=no", "--kv.state_space=" + space)
            seen = []
            for p in (prompts[0], prompts[1], prompts[1], prompts[0]):
                a = json.loads(d.ask("/v1/completions", {"prompt": p, "max_tokens": 2, "temperature": 0})[1])
                seen.append(a["usage"]["prompt_tokens_details"]["cached_tokens"])
            self.assertEqual((seen[3], seen[2]), tuple(cached), space)
            m, kv = d.metrics(), self.engine(d)["kv"]
            self.assertEqual((m["expertd_state_copies"], kv["state_copies_total"]), (copies, copies))
            self.assertEqual(m["expertd_state_copies_found_total"], sum(c > 0 for c in cached))
            self.assertEqual(m['expertd_memory_planned_bytes{part="state_copies"}'], 12288 * copies)
            planned = subprocess.run([EXE, "inspect", model, "--kv.state_space=" + space], capture_output=True, text=True, check=True).stdout
            self.assertEqual(re.findall(r"copies of states +(\d.*?B) ", planned), [size] if size else [], space)
            self.assertEqual((m["expertd_state_slots"], m["expertd_state_slots_used"]), (32, 0))
            self.assertEqual(bool([x for x in d.log if "kv.state_space holds no copy" in x]), not copies)

    @proves("model.sampling_defaults")
    def test_defaults_of_the_model(self):
        with open(os.path.join(DEMO, "generation_config.json")) as f:
            self.assertTrue(json.load(f).keys() & {"temperature", "top_p", "top_k"})
        def text(mode):
            d = self.start("--model.sampling_defaults=" + mode)
            return json.loads(d.ask("/v1/completions", {"prompt": "Once", "max_tokens": 40, "seed": 5})[1])["choices"][0]["text"]
        self.assertNotEqual(text("model"), text("none"))

    def test_every_default_of_the_model_is_what_a_request_may_say(self):
        """What generation_config.json says and what a request says in a field is the same, and a request has the last word."""
        def text(d, **fields):
            return json.loads(d.ask("/v1/completions", {"prompt": "Once upon", "max_tokens": 40, "seed": 5, **fields})[1])["choices"][0]["text"]
        plain = self.start("--model.sampling_defaults=none")
        for name, value, off in [("temperature", 1.7, 1), ("top_p", 0.3, 1), ("top_k", 2, 0), ("min_p", 0.4, 0), ("typical_p", 0.1, 1), ("typical_p", 0, 1), ("repetition_penalty", 1.8, 1)]:
            with self.subTest(name, value=value), tempfile.TemporaryDirectory() as model:
                for file in os.listdir(DEMO):
                    os.symlink(os.path.join(DEMO, file), os.path.join(model, file))
                os.remove(os.path.join(model, "generation_config.json"))
                with open(os.path.join(model, "generation_config.json"), "w") as f:
                    json.dump({name: value}, f)
                d = self.start("-m", model)
                self.assertEqual(text(d), text(plain, **{name: value}))
                self.assertNotEqual(text(d), text(plain))
                self.assertEqual(text(d, **{name: off}), text(plain))
                d.stop()

    @proves("model.dtype", "model.seed", "model.skew")
    def test_synthetic_models(self):
        def run(*args):
            d = self.start("-m", "synthetic:tiny", "--memory.page_size=64KiB", *args)
            ids = json.loads(d.ask("/v1/completions", {"prompt": [1, 2, 3], "max_tokens": 8, "temperature": 0, "return_token_ids": True})[1])
            return ids["choices"][0]["token_ids"], d.metrics()["expertd_expert_resident_bytes"]
        base, size = run()
        self.assertEqual(run("--model.seed=0"), (base, size))
        self.assertNotEqual(run("--model.seed=7")[0], base)
        self.assertNotEqual(run("--model.skew=zipf")[0], base)
        self.assertEqual(run("--model.dtype=q8_0")[1] / size, 34 / 64)
        self.assertEqual(run("--model.dtype=mxfp4")[1] / size, 17 / 64)
        self.assertEqual(run("--model.dtype=int4_g32")[1] / size, 76 / 256)
        self.assertEqual(run("--model.dtype=nvfp4")[1] / size, 76 / 256)
        self.assertEqual(run("--model.dtype=int4_g128")[1] / size, 68 / 256)

    @proves("model.skew_trace")
    def test_a_recorded_trace_routes_a_synthetic_model(self):
        """What is recorded while a trace is replayed is a run of that trace."""
        def record(path, *args):
            d = self.start("-m", "synthetic:tiny", "--engine.self_test=no", "--pager.trace_file=" + path, *args)
            self.assertEqual(d.ask("/v1/completions", {"prompt": [1, 2, 3], "max_tokens": 30, "temperature": 0, "ignore_eos": True})[0], 200)
            d.stop()
            return [touched for flags, touched in trace_steps(path) if not flags & 1]
        with tempfile.TemporaryDirectory() as t:
            first, second = os.path.join(t, "first"), os.path.join(t, "second")
            source = record(first, "--model.skew=zipf")
            self.assertEqual(len(source), 29)
            again = record(second, "--model.skew=trace", "--model.skew_trace=" + first, "--model.seed=3")
            begin = source.index(again[0])
            self.assertEqual(again, [source[(begin + i) % len(source)] for i in range(len(again))])
            self.assertNotEqual(record(second, "--model.seed=3"), again)

    @proves("engine.max_num_batched_tokens", "engine.enable_prefix_caching", "memory.host_tier", "memory.huge_pages")
    def test_batches_prefixes_and_the_pool(self):
        d = self.start("--engine.max_num_batched_tokens=32", "--engine.enable_prefix_caching=no", "--memory.host_tier=pool")
        before = d.metrics()
        for _ in range(2):
            d.complete(1, LONG)
        after = d.metrics()
        self.assertEqual(after["expertd_steps_total"] - before["expertd_steps_total"], 2 * 512 / 32)
        self.assertEqual(after["expertd_prompt_cached_tokens_total"], 0)
        self.assertFalse(self.engine(d)["pager"]["in_place"])
        other = self.start("--memory.host_tier=in_place")
        for _ in range(2):
            other.complete(1, LONG)
        m = other.metrics()
        self.assertGreater(m["expertd_prompt_cached_tokens_total"], 0)
        self.assertTrue(self.engine(other)["pager"]["in_place"])
        def huge(process):
            with open(f"/proc/{process.p.pid}/smaps") as f:
                return len(re.findall(r"^VmFlags:.* hg\b", f.read(), re.M))
        small = self.start("--memory.host_tier=pool", "--memory.huge_pages=no")
        if os.path.exists("/sys/kernel/mm/transparent_hugepage"):
            self.assertGreater(huge(d), huge(small))

    @proves("engine.max_decode_stall_ms")
    def test_a_prompt_does_not_hold_up_who_generates(self):
        def pieces_of_a_prompt(stall, *more, decoded=1500):
            """Steps in which a prompt took part while somebody else generated; the recorded trace has every step. None: the other had ended before."""
            with tempfile.TemporaryDirectory() as t:
                trace = os.path.join(t, "trace")
                d = self.start("--engine.max_decode_stall_ms=" + stall, "--engine.enable_prefix_caching=no", "--engine.self_test=no",
                               "--engine.max_num_batched_tokens=1024", "--pager.trace_file=" + trace, *more)
                d.complete(1, LONG)  # in one step, from which the rate of prompts is learnt
                other = threading.Thread(target=d.complete, args=(decoded,))
                other.start()
                wait_until("a request that runs", lambda: d.metrics()["expertd_requests_running"] >= 1 or not other.is_alive())
                d.complete(1, LONG)
                still = d.metrics()["expertd_requests_running"]
                other.join()
                d.stop()
                return sum(flags & 1 for flags, _ in trace_steps(trace)) - 2 if still else None  # less the other two prompts

        def until(right, *args, **more):
            """The rate of prompts is what it was measured to be: while the machine has no time for a moment, that is another one."""
            wait_until("pieces of a prompt, as many as there should be", lambda: (n := pieces_of_a_prompt(*args, **more)) is not None and right(n))
        until(lambda n: n == 1, "none")
        until(lambda n: n > 1, "1")
        # Reading the experts takes 0.4 s however short the piece is: pieces of the least length (16) would only read them more often.
        slow_link = ["--test.allow=yes", "--test.link_gbps=0.05", "--fallback.force=direct"]
        until(lambda n: n < len(LONG) / 16, "50", *slow_link, decoded=40)

    @proves("memory.expert_vram_share", "pager.max_inserts", "pager.eviction")
    def test_the_cache(self):
        d = self.start("--memory.page_size=64KiB", "--memory.vram_budget=32MiB", "--memory.expert_vram_share=0.25", "--pager.warm_start=no",
                       "--pager.max_inserts=0", "--pager.eviction=lru")
        d.complete(30)
        m = d.metrics()
        self.assertLessEqual(m["expertd_arena_slots"], 288 / 4)
        self.assertEqual((m["expertd_expert_pages_filled_total"], m["expertd_arena_slots_used"]), (0, 0))
        self.assertEqual(self.engine(d)["pager"]["policy"], "lru")
        static = self.start(*SMALL, "--pager.eviction=static")
        static.complete(60)
        m = static.metrics()
        self.assertEqual((m["expertd_expert_pages_evicted_total"], m["expertd_arena_slots_used"]), (0, 64))

    @proves("pager.warm_start", "pager.stats_file", "pager.stats_interval", "pager.trace_file")
    def test_statistics_and_traces(self):
        with tempfile.TemporaryDirectory() as t:
            stats, trace = os.path.join(t, "stats"), os.path.join(t, "trace")
            args = ["--memory.page_size=64KiB", "--memory.vram_budget=4MiB", "--pager.stats_file=" + stats]
            d = self.start(*args, "--pager.stats_interval=1s", "--pager.trace_file=" + trace)
            d.complete(50)
            wait_until("statistics that are saved while it runs", lambda: os.path.exists(stats))
            d.stop()
            self.doCleanups()
            out = subprocess.run([EXE, "bench", "--trace", trace], capture_output=True, text=True, check=True).stdout
            for word in ["lru", "lfu", "lfru", "static", "optimum"]:
                self.assertIn(word, out.lower())
            warm, cold = Daemon(EXE, *args).wait_ready(), None
            try:
                wait_until("a warm start", lambda: warm.metrics()["expertd_arena_slots_used"] > 0)
                self.assertGreater(warm.metrics()["expertd_expert_pages_promoted_total"], 0)
            finally:
                warm.stop()
            cold = self.start(*args, "--pager.warm_start=no", "--engine.self_test=no")
            self.assertEqual(cold.metrics()["expertd_arena_slots_used"], 0)

    @proves("fallback.enabled", "fallback.force", "fallback.min_link_gbps", "fallback.min_link_ratio", "fallback.probe_interval", "test.link_gbps",
            "test.link_latency_us")
    def test_the_link(self):
        link = SMALL + ["--test.allow=yes", "--test.link_gbps=50"]
        d = self.start(*link, "--fallback.min_link_gbps=none", "--fallback.min_link_ratio=60%", "--fallback.probe_interval=100ms")
        self.assertEqual(d.metrics()["expertd_link_suspect_below_bytes_per_second"], 30e9)
        first = d.metrics()["expertd_link_probes_total"]
        wait_until("another probe", lambda: d.metrics()["expertd_link_probes_total"] > first)
        off = self.start(*link, "--fallback.enabled=no")
        self.assertEqual(off.metrics()["expertd_fallback_watching"], 0)
        forced = self.start(*link, "--fallback.force=fallback", "--fallback.min_link_gbps=10")
        m = forced.metrics()
        self.assertEqual((m['expertd_fallback_state{state="fallback"}'], m["expertd_link_suspect_below_bytes_per_second"]), (1, 10e9))
        slow = self.start(*SMALL, "--test.allow=yes", "--test.link_latency_us=5000")
        slow.complete(10)
        self.assertGreaterEqual(slow.metrics()["expertd_step_busy_seconds_total"], 10 * 0.005)

    @proves("memory.nvme_checksums", "memory.nvme_prefetch", "test.disk_gbps", "test.page_loss_rate", "test.seed")
    def test_the_disk(self):
        def run(*args):
            with tempfile.TemporaryDirectory() as t:
                d = Daemon(EXE, "--memory.page_size=64KiB", "--memory.host_budget=16MiB", "--memory.nvme_path=" + os.path.join(t, "p"),
                           "--pager.warm_start=no", "--engine.self_test=no", "--test.allow=yes", *args).wait_ready()
                try:
                    status = [d.ask("/v1/completions", {"prompt": p, "max_tokens": 20, "seed": 1, "ignore_eos": True})[0] for p in ["The king", "A dog"]]
                    return status, d.metrics()
                finally:
                    d.stop()
        status, m = run("--test.page_loss_rate=1")
        self.assertEqual(status, [200, 200])  # the model still has what is lost
        self.assertGreater(m["expertd_expert_checksum_errors_total"], 0)
        self.assertGreater(m["expertd_expert_loads_repaired_total"], 0)
        status, m = run("--test.page_loss_rate=1", "--memory.nvme_checksums=no", "--memory.nvme_prefetch=no")
        self.assertEqual(m["expertd_expert_checksum_errors_total"], 0)
        self.assertEqual(m["expertd_prefetch_predictions_total"], 0)
        status, m = run("--test.disk_gbps=0.1")
        self.assertGreaterEqual(m["expertd_disk_busy_seconds_total"], m['expertd_expert_read_bytes_total{tier="disk"}'] / 0.1e9 / 8)
        self.assertGreater(m["expertd_prefetch_predictions_total"], 0)
        runs = [run("--test.disk_error_rate=0.3", "--memory.nvme_prefetch=no", "--test.seed=" + s)[1]["expertd_expert_io_errors_total"]
                for s in "123"]
        self.assertGreater(len(set(runs)), 1, runs)

    @proves("test.alloc_error_rate")
    def test_failed_allocations_fail_requests_only(self):
        d = self.start("--test.allow=yes", "--test.alloc_error_rate=0.02")
        status = [d.ask("/v1/completions", {"prompt": "x", "max_tokens": 10, "ignore_eos": True})[0] for _ in range(60)]
        self.assertEqual(set(status), {200, 503}, status)
        self.assertEqual(d.metrics()["expertd_kv_blocks_used"], 0)

    @proves("log.level", "log.requests", "log.prompts", "server.drain_timeout")
    def test_the_log_and_the_end(self):
        def log(*args):
            d = Daemon(EXE, *args).wait_ready()
            d.complete(3, "A secret prompt")
            d.stop()
            return "".join(d.log)
        said = log("--log.requests=no", "--log.prompts=yes", "--server.drain_timeout=7s")
        self.assertIn("A secret prompt", said)
        self.assertNotIn("POST /v1/completions 200", said)
        self.assertIn("at most 7 s", said)
        said = log("--log.level=info")
        self.assertNotIn("secret", said)
        self.assertIn("POST /v1/completions 200", said)
        self.assertRegex(said, r"client=127\.0\.0\.1 prompt_tokens=\d+ cached_tokens=0 completion_tokens=3 first_token_ms=[\d.]+ prompt_tokens_per_second=[\d.]+ completion_tokens_per_second=[\d.]+ finish_reason=length\n")
        lines = log("--log.format=json")
        self.assertNotRegex(lines, r"\d\.\d{2,}[,}]", "one decimal was meant")
        said = [json.loads(line) for line in lines.splitlines() if line.startswith("{")]
        line, = [x for x in said if x["message"].startswith("POST /v1/completions 200")]
        self.assertEqual((line["CLIENT"], line["CACHED_TOKENS"], line["COMPLETION_TOKENS"]), ("127.0.0.1", 0, 3))
        self.assertEqual((line["METHOD"], line["PATH"], line["STATUS"], line["FINISH_REASON"]), ("POST", "/v1/completions", 200, "length"))
        self.assertTrue(0 < line["FIRST_TOKEN_MS"] <= line["MS"] and line["PROMPT_TOKENS_PER_SECOND"] > 0 and line["COMPLETION_TOKENS_PER_SECOND"] > 0)
        d = subprocess.run([EXE, "--log.level=error", "--engine.numa_node=900", "--server.port=0", "--log.format=json"], capture_output=True, text=True)
        lines = [json.loads(line) for line in d.stderr.splitlines()]
        self.assertEqual({line["level"] for line in lines}, {"error"})


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
