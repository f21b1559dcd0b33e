"""The command line as a user meets it: help, errors, --print-config. argv[1] is the program."""
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

EXE = sys.argv[1]
NO_FILE = ["-c", "/dev/null"]


def run(*args, **kw):
    return subprocess.run([EXE, *args], capture_output=True, text=True, timeout=180, stdin=subprocess.DEVNULL, **kw)


class Cli(unittest.TestCase):
    def refused(self, status, text, *args):
        r = run(*args)
        self.assertEqual((r.returncode, r.stderr.strip()), (status, "expertd: " + text))
        self.assertEqual(r.stdout, "")

    def test_help_and_version_go_to_stdout(self):
        r = run("--help")
        self.assertEqual((r.returncode, r.stderr), (0, ""))
        for word in ("serve", "check", "inspect", "bench", "tokenize", "Examples:", "--print-config"):
            self.assertIn(word, r.stdout)
        self.assertRegex(run("--version").stdout, r"^expertd \d+\.\d+\.\d+\n$")
        self.assertEqual(run("-V").returncode, 0)
        self.assertEqual(run("help").stdout, r.stdout)
        self.assertEqual(run("help", "server").stdout, run("--help", "server").stdout)

    def test_what_is_often_set_can_be_set(self):
        often = run("--help").stdout.split("Often set:\n")[1].split("\n\n")[0]
        flags = re.findall(r"(?m)^ +(--\S+) (\S+) ", often)
        self.assertEqual(len(flags), len(often.splitlines()))
        for flag, value in flags:
            self.assertIn(f"= {value}\n", run("--print-config", *NO_FILE, flag, value).stdout, flag)

    def test_help_on_a_section_lists_its_settings(self):
        r = run("--help", "fallback")
        self.assertEqual(r.returncode, 0)
        self.assertIn("--fallback.min_link_gbps", r.stdout)
        self.assertNotIn("--server.port", r.stdout)
        self.assertEqual(run("--help", "nonsense").returncode, 2)
        self.assertIn("--kv.block_size", run("--help", "all").stdout)

    def test_a_wrong_command_line_ends_with_status_2(self):
        self.refused(2, "unknown command 'srve'; commands are serve, check, inspect, bench, tokenize", "srve")
        self.refused(2, "unknown option '-x'; see expertd --help", "-x")
        self.refused(2, "'--config' needs a value", "--config")
        self.refused(2, "unexpected argument 'b'; see expertd --help", "inspect", "a", "b")

    def test_flags_of_other_servers_are_answered_with_what_to_do(self):
        """Each one that docs/desktop.md names, and the answer has the setting that stands beside it there."""
        with open(os.environ["EXPERTD_SOURCE_ROOT"] + "/docs/desktop.md", encoding="utf-8") as f:
            rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in f if line.startswith("| ")]
        rows = [r for r in rows if len(r) == 3 and r[0] != "llama.cpp" and not r[0].startswith("---")]
        self.assertGreater(len(rows), 15)
        seen = 0
        for theirs, also_theirs, ours in rows:
            for given in re.findall(r"`(-[^`]*)`", theirs + also_theirs):
                flags = re.findall(r"(?<!\S)--?[\w-]+", given)
                for flag in flags:
                    value = re.findall(r" ([^- ]\S*)", given)[:1] or ["x"]
                    r = run("--print-config", *NO_FILE, flag) if flag != "-c" else run("--print-config", flag, "4096")
                    known = run("--print-config", *NO_FILE, flag, *value)
                    if r.returncode == 0 or known.returncode == 0 or f"'--{flag.strip('-')}' needs a value" in r.stderr or flag == "-m":
                        continue  # it is one of ours, too
                    seen += 1
                    self.assertEqual((r.returncode, r.stdout), (2, ""), flag)
                    self.assertRegex(r.stderr, rf"^expertd: (there is no '{flag}' here: |'{flag} 4096': )", flag)
                    settings = re.findall(r"--([\w.-]+)", ours)
                    self.assertTrue(not settings or any("--" + s in r.stderr for s in settings), (flag, ours, r.stderr))
        self.assertGreater(seen, 20)
        self.assertEqual(run(*NO_FILE, "--tensor_parallel_size=2").stderr, run(*NO_FILE, "--tensor-parallel-size", "2").stderr.replace("-parallel-", "_parallel_"))
        for flag in ("-ngl", "--enable-auto-tool-choice", "--ssl-keyfile=x", "-hf"):
            self.assertIn("there is no", run(*NO_FILE, flag, "x").stderr)

    def test_what_is_said_instead_is_there(self):
        """Whatever setting an answer names, this program takes; and no flag of its own is taken for another server's."""
        with open(os.environ["EXPERTD_SOURCE_ROOT"] + "/daemon/foreign.c", encoding="utf-8") as f:
            source = f.read()
        names = [n for line in re.findall(r'"([^"]*)"', source[source.index("flags[] = {"):]) if line.startswith("-") for n in line.split()]
        self.assertGreater(len(names), 80)
        self.assertEqual(len(names), len(set(names)))
        for setting in set(re.findall(r"--([a-z_.-]+)(?==| [A-Z])|--(no-[a-z-]+);", source)):
            name = "".join(setting)
            self.assertNotIn("unknown", run("--print-config", *NO_FILE, "--" + name, "x").stderr, name)
        formats = re.search(r"--kv.kv_dtype(?:.*\n)+?.*one of auto, (.*)", run("--help", "kv").stdout)[1].split(", ")
        for flag in ("-ctk", "--kv-cache-dtype"):
            self.assertEqual([f for f in formats if f not in run(*NO_FILE, flag, "x").stderr], [], flag)
        for name in names:
            self.assertRegex(run("--print-config", *NO_FILE, name).stderr, f"^expertd: there is no '{name}' here: ")
        help_text = run("--help", "all").stdout + run("--help").stdout + run("--help", "test").stdout
        ours = {o for o in re.findall(r"(?m)^ +(?:--\w+\.)?-*([\w.]+)", help_text)}
        self.assertFalse([n for n in names if n.startswith("--") and n.strip("-").replace("-", "_") in ours])

    def test_numbers_in_json_have_the_digits_that_they_need(self):
        for args in (["inspect"], ["check"], ["bench", "synthetic:tiny", "--lengths=16", "--tokens=2"]):
            numbers = re.findall(r"(?m): (-?\d+\.\d+)", run(*args, "--json", *NO_FILE).stdout)
            self.assertTrue(numbers or args != ["bench"], args)
            self.assertFalse([n for n in numbers if len(n.lstrip("-0.")) > 16], numbers)

    def test_a_model_may_stand_behind_every_command(self):
        for command in ("serve", "check", "inspect", "bench"):
            self.assertIn("path = /nowhere/m", run(command, "/nowhere/m", "--print-config", *NO_FILE).stdout, command)
        self.refused(2, "unknown command './m.gguf'; a model is named by -m", "./m.gguf")

    def test_a_command_may_stand_behind_flags(self):
        self.assertEqual(run(*NO_FILE, "check", "--config-only").stdout, run("check", *NO_FILE, "--config-only").stdout)
        self.assertEqual(run("--port", "7", *NO_FILE, "tokenize", "serve check").stdout, run("tokenize", "serve check").stdout)
        self.assertIn("path = /nowhere/m", run(*NO_FILE, "inspect", "/nowhere/m", "--print-config").stdout)
        self.assertIn("path = check", run(*NO_FILE, "serve", "check", "--print-config").stdout)  # one command; then a model
        self.assertIn("path = check", run(*NO_FILE, "--print-config", "--", "check").stdout)
        self.assertIn("path = check", run("-m", "check", *NO_FILE, "--print-config").stdout)

    def test_options_that_a_command_does_not_look_at_are_refused(self):
        self.refused(2, "'--json' is for check, inspect, bench and tokenize", "--json")
        self.refused(2, "'--json' is for check, inspect, bench and tokenize", "serve", "--json")
        for option in ("--trace", "--lengths", "--concurrency", "--tokens", "--hits", "--sweep"):
            for command in ("serve", "check", "inspect", "tokenize"):
                self.refused(2, f"'{option}' is for bench", command, option, "x")

    def test_bench_says_what_its_options_take(self):
        for option in ("--lengths", "--concurrency"):
            most = {"--lengths": 1048576, "--concurrency": 1024}[option]
            for value in ("0", "-1", "x", "", "1,,2", "1,", ",1", "1 2", str(most + 1), ",".join(["1"] * 17), "9" * 30):
                self.refused(2, f"{option} takes numbers from 1 to {most} with commas between them, at most 16",
                             "bench", "synthetic:tiny", *NO_FILE, f"{option}={value}")
        for value in ("0", "1,2", "x", "1048577", ",".join(["7"] * 30)):
            self.refused(2, "--tokens takes a number from 1 to 1048576", "bench", "synthetic:tiny", *NO_FILE, f"--tokens={value}")
        self.refused(2, "--hits takes a number from 1 to 8", "bench", "synthetic:tiny", *NO_FILE, "--tokens=8", "--hits=9")

    def test_an_unknown_model_has_the_exit_status_that_serving_has(self):
        for args in (["inspect", "/nope"], ["bench", "/nope"], ["tokenize", "/nope", "a"]):
            r = run(*args, *NO_FILE)
            self.assertEqual(r.returncode, 66, args)
            self.assertIn("/nope", r.stderr)

    def test_bench_says_at_once_what_cannot_be_measured(self):
        self.refused(66, "model '/nope': No such file or directory", "bench", *NO_FILE, "/nope")
        demo = os.environ["EXPERTD_SOURCE_ROOT"] + "/config/demo"
        self.refused(78, "--lengths 2041 and --tokens 8: the model's context is 2048 tokens, for prompt and answer together",
                     "bench", *NO_FILE, demo, "--lengths=64,2041", "--tokens=8")

    def test_check_of_the_configuration_alone(self):
        with tempfile.TemporaryDirectory() as t:
            conf = os.path.join(t, "conf")
            for text, rc in (("[server]\nport = 1\n", 0), ("[server]\nprot = 1\n", 78), ("[kv]\nblock_size = 7\n", 78)):
                with open(conf, "w", encoding="utf-8") as f:
                    f.write(text)
                r = run("check", "--config-only", "-c", conf)
                self.assertEqual((r.returncode, r.stderr == ""), (rc, rc == 0), text + r.stderr)
        self.refused(2, "'--config-only' is for check", "--config-only")

    def test_a_key_of_the_environment(self):
        env = dict(os.environ, EXPERTD_API_KEY="of-env")
        self.assertEqual(run("check", "--config-only", *NO_FILE, env=env).returncode, 0)
        self.assertIn("EXPERTD_API_KEY", run("--help").stdout)
        self.assertNotIn("--api-key k", run("--help").stdout)
        self.assertNotIn("of-env", run("--print-config", *NO_FILE, env=env).stdout)

    def test_each_command_has_a_help_of_its_own(self):
        for name, words in (("serve", "until SIGTERM"), ("check", "exit status is 1"), ("inspect", "No device"), ("bench", "--concurrency"),
                            ("tokenize", "the demo")):
            r = run(name, "--help")
            self.assertEqual((r.returncode, r.stderr), (0, ""))
            self.assertTrue(r.stdout.startswith(f"Usage: expertd {name} "), r.stdout)
            self.assertIn(words, r.stdout)
        self.assertEqual(run("bench", "--help", "kv").stdout, run("--help", "kv").stdout)
        self.assertIn("--concurrency", run("--help").stdout)

    def test_numbers_in_help_end(self):
        self.assertNotRegex(run("--help", "all").stdout + run("--help", "test").stdout, r"(from|to) [\d.]*\.\d*0\b")

    def test_a_model_that_is_an_empty_word_is_refused(self):
        self.refused(2, "'-m' needs a model, and the word behind it is empty", *NO_FILE, "-m", "")

    def test_one_argument_of_tokenize_is_the_text(self):
        demo = os.environ["EXPERTD_SOURCE_ROOT"] + "/config/demo"
        r = run("tokenize", *NO_FILE, "-m", demo, demo)
        self.assertIn(f"'{demo}' is taken as the text", r.stderr)
        self.assertEqual(run("tokenize", *NO_FILE, demo, "a").stderr, "")

    def test_a_pipe_is_no_configuration_file_unless_it_is_ones_own(self):
        with tempfile.TemporaryDirectory() as d:
            os.mkfifo(d + "/pipe")
            self.refused(78, f"configuration file '{d}/pipe' is a pipe", "-c", d + "/pipe", "--print-config")
        r = subprocess.run([EXE, "-c", "/dev/stdin", "--print-config"], input="[server]\nport = 7\n", capture_output=True, text=True, timeout=180)
        self.assertIn("\nport = 7\n", r.stdout)

    def test_an_indented_key_is_named_as_what_it_is(self):
        with tempfile.NamedTemporaryFile("w") as f:
            f.write("[server]\nhost = 127.0.0.1\n  port = 18000\n")
            f.flush()
            self.refused(78, f"{f.name}:3: the line is indented, and so continues the value of 'host' in line 2, which takes one line: begin it "
                         "at the margin", "-c", f.name, "--print-config")

    def test_an_address_may_stand_in_brackets(self):
        self.assertIn("\nhost = ::1\n", run(*NO_FILE, "--print-config", "--host=[::1]").stdout)

    def test_output_that_cannot_be_written_is_a_failure(self):
        demo = os.environ["EXPERTD_SOURCE_ROOT"] + "/config/demo"
        for args in (["--help"], ["--help", "all"], ["--version"], [*NO_FILE, "--print-config"], ["check", *NO_FILE, "--port=0"],
                     ["check", *NO_FILE, "--port=0", "--json"], ["inspect", demo, *NO_FILE], ["inspect", demo, *NO_FILE, "--json"],
                     ["tokenize", demo, "a", *NO_FILE], ["tokenize", demo, "a", *NO_FILE, "--json"]):
            with open("/dev/full", "w", encoding="utf-8") as full:
                r = subprocess.run([EXE, *args], stdout=full, stderr=subprocess.PIPE, text=True, timeout=180, check=False)
            self.assertEqual(r.returncode, 1, args)
            self.assertEqual(r.stderr, "expertd: the output could not be written: No space left on device\n", args)

    def test_dev_refuses_arguments_that_it_would_ignore(self):
        dev = os.environ["EXPERTD_SOURCE_ROOT"] + "/dev"
        for command in ("demo", "setup", "kern", "fuzz", "fmt", "lint"):
            r = subprocess.run([dev, command, "--port=1"], capture_output=True, text=True, timeout=180, check=False)
            self.assertEqual((r.returncode, r.stdout), (1, ""))
            self.assertIn(f"dev: {command} takes no arguments", r.stderr)

    def test_dev_adds_cuda_once_there_is_an_nvcc(self):
        """With stand-ins for meson and ninja that write down how they are called; meson's setup makes build.ninja."""
        with tempfile.TemporaryDirectory() as d, open(os.environ["EXPERTD_SOURCE_ROOT"] + "/dev", encoding="utf-8") as dev:
            def program(name, text):
                with open(f"{d}/{name}", "w", encoding="utf-8") as f:
                    f.write(text)
                os.chmod(f"{d}/{name}", 0o755)

            program("dev", dev.read().replace("/usr/local/cuda", "/nowhere"))
            for name in ("bash", "cat", "dirname", "mkdir", "nproc", "rm", "touch"):
                os.symlink(shutil.which(name), f"{d}/{name}")
            note = f'#!{d}/bash\necho "${{0##*/}} $*" >>calls\n'
            program("meson", note + "[ $1 != setup ] || { mkdir build; touch build/build.ninja; }\n")
            program("ninja", note)

            def calls(command, lines):
                subprocess.run([f"{d}/bash", "-c", f"source ./dev help >&2; {command}"], env={"PATH": d}, cwd=d, stderr=subprocess.DEVNULL, timeout=180, check=True)
                with open(d + "/calls", encoding="utf-8") as f:
                    self.assertEqual(re.sub(r" -j \d+", "", f.read()).splitlines(), lines)
                os.remove(d + "/calls")

            calls("build_demo", ["meson setup build -Dcuda=disabled", "ninja -C build --quiet daemon/expertd"])
            calls("build", ["ninja -C build build.ninja", "ninja -C build --quiet"])
            program("nvcc", "")
            with_cuda = ["meson configure build -Dcuda=enabled -Dgpu_archs=90 -Dwerror=true", "ninja -C build build.ninja", "ninja -C build --quiet"]
            calls("build -Dwerror=true", with_cuda)
            calls("build", ["ninja -C build build.ninja", "ninja -C build --quiet"])
            calls("build_demo", ["ninja -C build build.ninja", "ninja -C build --quiet"])

    def test_a_synthetic_model_has_no_tokenizer(self):
        self.refused(66, "a synthetic model has no tokenizer", "tokenize", *NO_FILE, "synthetic:tiny", "a")

    def test_a_wrong_setting_ends_with_a_hint_and_with_2_on_the_command_line_or_78_elsewhere(self):
        self.refused(2, "unknown option '--prot'; did you mean '--server.port'?", *NO_FILE, "--prot=1")
        self.refused(2, "--server.port=70000: must be a whole number from 0 to 65535", *NO_FILE, "--port", "70000")
        self.refused(2, "--server.max_logprobs=21: must be a whole number from 0 to 20", *NO_FILE, "--max_logprobs=21")
        self.refused(2, "'--port' needs a value: --port=...", *NO_FILE, "--port")
        self.refused(2, "'--threads' could be --server.threads or --engine.threads", *NO_FILE, "--threads=3")
        with tempfile.NamedTemporaryFile("w") as f:
            f.write("[server]\nport = 70000\n")
            f.flush()
            self.refused(78, f"{f.name}:2: [server] port = 70000: must be a whole number from 0 to 65535", "-c", f.name)
        self.refused(78, "open configuration file '/nonexistent': No such file or directory", "-c", "/nonexistent")

    def test_print_config_reads_back(self):
        first = run(*NO_FILE, "--print-config", "--port=1234", "-m", "/m", "--no-status-page", "--kv.swap_space=2GiB")
        self.assertEqual((first.returncode, first.stderr), (0, ""))
        self.assertIn("\nport = 1234\n", first.stdout)
        self.assertIn("\nstatus_page = no\n", first.stdout)
        with tempfile.NamedTemporaryFile("w", suffix=".conf") as f:
            f.write(first.stdout)
            f.flush()
            second = run("-c", f.name, "--print-config")
        self.assertEqual(second.stdout, first.stdout)

    def test_flags_may_stand_before_or_behind_their_value(self):
        for args in (["--server.port=7"], ["--port", "7"], ["--server.port", "7", "--admin"]):
            self.assertIn("\nport = 7\n", run(*NO_FILE, "--print-config", *args).stdout)

    def test_check_gives_lines_or_json_and_a_status(self):
        r = run("check", *NO_FILE, "--json", "--port=0")
        doc = json.loads(r.stdout)
        self.assertEqual(r.returncode, 0 if doc["ok"] else 1)
        self.assertEqual(len(doc["checks"]), doc["passed"] + doc["warnings"] + doc["failures"])
        for line in doc["checks"]:
            self.assertIn(line["status"], ("ok", "warn", "fail"))
            if line["status"] == "fail":
                self.assertTrue(line["mend"], line)
        r = run("check", *NO_FILE, "-m", "/nonexistent/model")
        self.assertEqual(r.returncode, 1)
        self.assertIn("model '/nonexistent/model': No such file", r.stdout)

    def test_inspect_says_what_is_wrong_with_a_model(self):
        r = run("inspect", *NO_FILE, "/nonexistent/model")
        self.assertEqual(r.returncode, 66)
        self.assertIn("/nonexistent/model", r.stderr)

    def test_inspect_of_the_demo_model(self):
        root = os.environ["EXPERTD_SOURCE_ROOT"]
        r = run("inspect", *NO_FILE, root + "/config/demo", "--json", "--backend=cuda")
        self.assertEqual(r.returncode, 0, r.stderr)
        doc = json.loads(r.stdout)
        # config/demo/config.json
        self.assertEqual((doc["layers"], doc["experts_per_layer"], doc["experts_per_token"]), (6, 16, 4))
        self.assertEqual(doc["expert_bytes"], 6 * 16 * 3 * 256 * 128 * 2)
        self.assertEqual(doc["expert_bytes_per_token"], 6 * 4 * 3 * 256 * 128 * 2)
        self.assertEqual(doc["kv_bytes_per_token"], 6 * 2 * 2 * 32 * 2)

    def test_inspect_names_formats(self):
        golden = os.environ["EXPERTD_SOURCE_ROOT"] + "/tests/data/golden/"

        def of(model, *more):
            doc = json.loads(run("inspect", *NO_FILE, golden + model, "--json", *more).stdout)
            return doc["expert_formats"], doc["trunk_formats"], doc["placement"]["problem"]

        self.assertEqual(of("gpt_oss-mxfp4"), ("mxfp4", "bf16", ""))
        # The file's experts, as the gguf package lists them: 5 of 6 matrices of 256 x 256 in Q4_K (144 bytes for 256), one in Q6_K (210).
        self.assertEqual(of("mixtral-q4_k_m/model.gguf")[0], "q4_k 77 %, q6_k 23 %")
        # Embedding, head, norms and routers stay in bf16.
        self.assertEqual(of("qwen3_moe-fp8-block")[0], "fp8")
        self.assertRegex(of("qwen3_moe-fp8-block")[1], r"^fp8 \d+ %, bf16 \d+ %$")
        self.assertIn("memory.host_tier = in_place: layer 0", of("qwen3_moe-fp8-block", "--memory.host_tier=in_place")[2])
        # All experts of the one, in groups of 128: (3 + 1 dense) * 3 matrices of 256 x 128 weights, 68 bytes for 128.
        for kind in ("gptq", "awq"):
            self.assertEqual(of(f"qwen3_moe-int4-{kind}-128")[0], "int4_g128")
            self.assertRegex(of(f"qwen3_moe-int4-{kind}-128")[1], r"^int4_g128 \d+ %, bf16 \d+ %$")
            doc = json.loads(run("inspect", *NO_FILE, golden + f"qwen3_moe-int4-{kind}-128", "--json").stdout)
            self.assertEqual(doc["expert_bytes"], 4 * 3 * 256 * 128 // 128 * 68)
        self.assertEqual(of("qwen3_moe-nvfp4-modelopt-file")[0], "nvfp4")
        # Kimi's experts alone are quantised, not the dense layer's FFN.
        self.assertEqual(of("deepseek_v3-int4-kimi_k2")[:2], ("int4_g32 74 %, bf16 26 %", "bf16"))
        # What the start would refuse: experts that are repacked cannot be read in place.
        self.assertIn("memory.host_tier = in_place: layer 0", of("gpt_oss-mxfp4", "--memory.host_tier=in_place")[2])
        self.assertEqual(of("gpt_oss-gguf/model.gguf", "--memory.host_tier=in_place")[2], "")
        text = run("inspect", *NO_FILE, golden + "deepseek_v3").stdout
        self.assertIn("experts: 32 in all, 16 a layer, 4 a token", text)
        self.assertIn("the FFN of 1 dense layer counts as one expert", text)

    def test_inspect_says_what_it_assumes(self):
        moe = ["inspect", *NO_FILE, "synthetic:qwen3-30b-a3b"]

        def placement(*more):
            return json.loads(run(*moe, "--json", *more).stdout)["placement"], run(*moe, *more).stdout

        at, text = placement("--backend=cuda")  # how much memory it has is not known, so nothing that depends on it is
        self.assertEqual((at["device"], at["kv_bytes"], at["context"], at["vram_expert_bytes"]), ("gpu", None, None, None))
        self.assertIn("on a GPU of unknown memory", text)
        self.assertNotIn("tokens, context", text)
        at, text = placement("--backend=cuda", "--kv-budget=6GiB")
        self.assertEqual((at["kv_bytes"], at["vram_expert_bytes"]), (6 * 2**30, None))
        at, text = placement("--vram-budget=12GiB")
        self.assertEqual(at["device"], "gpu")
        self.assertIn("on a GPU of whose memory expertd may use 12.00 GiB", text)
        self.assertIn("51 GB/s (PCIe 5.0 x16)", text)
        longer, text = placement("--vram-budget=12GiB", "--kv_dtype=q8_0")
        self.assertRegex(text, r"KV cache a token +51.00 KiB +q8_0\n")
        self.assertGreater(longer["context"], at["context"])
        ram = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        self.assertEqual(at["ram_bytes"], ram)
        self.assertEqual("too little" in text, 128 * 48 * 3 * 2048 * 768 * 2 > ram)  # the experts in BF16
        at, text = placement("--backend=cpu")
        self.assertEqual((at["device"], at["vram_expert_bytes"]), ("cpu", 0))
        self.assertIn("on the CPU of this machine", text)
        for word in ("device memory", "link", "PCIe", "cached experts"):
            self.assertNotIn(word, text)
        at, text = placement()
        gpu = any(open(p).read().strip() == "0x10de" for p in glob.glob("/sys/bus/pci/devices/*/vendor"))
        if not gpu:
            self.assertEqual(at["device"], "cpu")
            self.assertIn("which shows no GPU; --memory.vram_budget=12GiB", text)

    def test_inspect_shows_where_the_bytes_would_go(self):
        GIB = 2**30
        args = ["inspect", *NO_FILE, "synthetic:qwen3-235b-a22b", "--json", "--vram-budget=24GiB", "--memory.host_budget=64GiB"]
        with subprocess.Popen([EXE, *args, "--nvme-path=/mnt/pages"], stdout=subprocess.PIPE) as p:
            doc = json.load(p.stdout)
            _, status, usage = os.wait4(p.pid, 0)
            p.returncode = status
        self.assertEqual(status, 0)
        self.assertLess(usage.ru_maxrss, 2**20)  # KiB; the weights would be 438 GiB
        at = doc["placement"]
        self.assertEqual((at["problem"], at["host_bytes"]), ("", 64 * GIB))
        self.assertEqual(at["host_bytes"] + at["disk_bytes"], doc["expert_bytes"])
        self.assertEqual(doc["expert_bytes"], 94 * 128 * 3 * 4096 * 1536 * 2)  # the published geometry in BF16
        filled = at["trunk_bytes"] + at["kv_bytes"] + at["vram_expert_bytes"]
        self.assertTrue(23.9 * GIB < filled <= 24 * GIB, filled)
        self.assertIn("memory.nvme_path", json.loads(run(*args).stdout)["placement"]["problem"])

    def test_inspect_shows_no_sizes_of_what_cannot_work(self):
        for args, why in ((["--vram-budget=100MiB"], "the KV cache needs"), (["--backend=cpu", "--kv-budget=1MiB"], "kv.block_size")):
            args = ["inspect", *NO_FILE, "synthetic:qwen3-30b-a3b", *args]
            at, text = json.loads(run(*args, "--json").stdout)["placement"], run(*args).stdout
            self.assertIn(why, at["problem"])
            self.assertEqual((at["kv_bytes"], at["context"], at["vram_expert_bytes"]), (None, None, None))
            self.assertIn("cannot work: ", text)
            self.assertNotRegex(text, r"KV cache  |blocks of|cached experts|  0 B  ")

    def test_inspect_of_a_model_without_any_ffn(self):
        config = {"model_type": "nemotron_h", "hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "mamba_num_heads": 4,
                  "mamba_head_dim": 16, "n_groups": 2, "ssm_state_size": 16, "vocab_size": 256, "max_position_embeddings": 512}
        for pattern in "M*M", "**":
            with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
                json.dump(dict(config, hybrid_override_pattern=pattern, num_hidden_layers=len(pattern)), f)
                f.flush()
                r = run("inspect", *NO_FILE, "synthetic:" + f.name)
                self.assertEqual(r.returncode, 0, r.stderr)
                self.assertNotRegex(r.stdout, r"\b(inf|nan)\b")

    def test_inspect_shows_the_kv_cache_of_the_context_that_is_set(self):
        for tokens, args in ((131072, []), (4096, ["--max-model-len=4096"])):
            args = ["inspect", *NO_FILE, "synthetic:gpt-oss-20b", "--model.dtype=mxfp4", "--kv_dtype=f16", *args]
            self.assertRegex(run(*args).stdout, rf"KV cache of a context .* {tokens} tokens: 12 of 24 layers")
            full = 12 * 2 * 8 * 64 * 2 * tokens  # layers without a window, K and V, heads, numbers, bytes
            self.assertTrue(full <= json.loads(run(*args, "--json").stdout)["kv_bytes_of_context"] < 2 * full)

    def test_a_synthetic_model_has_columns_for_its_format(self):
        for model, why in (("gpt-oss-20b", "hidden_size that is a multiple of 256, not 2880; q8_0"),
                           ("gemma-4-26b-a4b", "intermediate sizes that are multiples of 256, not 704")):
            r = run("inspect", *NO_FILE, "synthetic:" + model, "--model.dtype=q4_k")
            self.assertEqual(r.returncode, 78)
            self.assertIn(why, r.stderr)
            for other in ("q8_0", "mxfp4"):
                self.assertEqual(run("inspect", *NO_FILE, "synthetic:" + model, "--model.dtype=" + other).returncode, 0)

    def test_tokenize_gives_the_ids_of_the_reference(self):
        demo = os.environ["EXPERTD_SOURCE_ROOT"] + "/config/demo"
        with open(demo + "/golden.json", encoding="utf-8") as f:
            cases = json.load(f)["cases"]
        for case in cases:
            r = run("tokenize", *NO_FILE, "--json", demo, case["prompt"])
            self.assertEqual((r.returncode, json.loads(r.stdout)), (0, case["prompt_ids"]), r.stderr)
        r = run("tokenize", *NO_FILE, demo, "Once upon a time")
        self.assertRegex(r.stdout, r"\n4 tokens \(")
        self.assertEqual(run("tokenize", *NO_FILE, "-m", demo).returncode, 2)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
