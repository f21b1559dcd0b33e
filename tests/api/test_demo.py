"""The whole daemon with the demo model: expected texts come from config/demo/golden.json (Hugging Face transformers)."""
import json
import os
import random
import re
import shutil
import socket
import subprocess
import threading
import time

import pytest

from conftest import ROOT, WAIT_S, Daemon, crowd, events, http_post, in_time

GOLDEN = json.load(open(os.path.join(ROOT, "config", "demo", "golden.json"), encoding="utf-8"))["cases"]


def idle(d):
    """No request runs, no KV block has an owner."""
    d.wait_metric("expertd_requests_running", 0)
    d.wait_metric("expertd_requests_waiting", 0)
    d.wait_metric("expertd_kv_blocks_used", 0)


@pytest.mark.parametrize("case", GOLDEN, ids=lambda c: c["prompt"][:20])
def test_greedy_text_is_the_references(daemon, case):
    n = len(case["greedy_ids"])
    fields = {"max_tokens": n, "temperature": 0, "return_token_ids": True, "ignore_eos": True, "parse_special": True}
    c = daemon.complete(case["prompt"], **fields).json["choices"][0]
    assert c["prompt_token_ids"] == case["prompt_ids"] and c["token_ids"] == case["greedy_ids"]
    chunks = [c["choices"][0] for c in events(daemon.complete(case["prompt"], stream=True, **fields).body)]
    assert sum((c["token_ids"] for c in chunks), []) == case["greedy_ids"]
    assert "".join(x["text"] for x in chunks) == c["text"] == case["greedy_text"]
    assert daemon.complete(case["prompt_ids"], **fields).json["choices"][0]["text"] == c["text"]


def test_chat(client):
    r = client.chat.completions.create(model="demo", messages=[{"role": "user", "content": "Tell me a story."}], max_tokens=20,
                                       temperature=0)
    assert r.choices[0].message.content and r.usage.completion_tokens <= 20
    stream = client.chat.completions.create(model="demo", messages=[{"role": "user", "content": "Tell me a story."}],
                                            max_tokens=20, temperature=0, stream=True)
    assert "".join(c.choices[0].delta.content or "" for c in stream) == r.choices[0].message.content


def test_a_seed_repeats_itself(daemon):
    def text(**fields):
        return daemon.complete("Once upon a time", max_tokens=24, temperature=1.0, **fields).json["choices"]
    assert text(seed=7)[0]["text"] == text(seed=7)[0]["text"]
    assert len({c["text"] for c in text(seed=7, n=4)}) > 1
    assert len({text(seed=-1)[0]["text"] for _ in range(4)}) > 1, "-1 is none"


def test_what_leaves_only_the_likeliest_token_is_greedy(daemon):
    want = daemon.complete("The fox", max_tokens=12, temperature=0).json["choices"][0]["text"]
    for narrow in [{"top_p": 0}, {"top_k": 1}, {"min_p": 1}, {"temperature": 1e-9}]:
        got = daemon.complete("The fox", max_tokens=12, **{"temperature": 1, "seed": 3, **narrow})
        assert got.json["choices"][0]["text"] == want, narrow


LOOP = "Yes, the wolf was a good fellow, and the wolf was a good friend, and the wolf, and the wolf"


def test_dry_ends_a_loop(daemon):
    """Breakers everywhere or a window that is too short let it go on."""
    def text(**fields):
        a = daemon.complete(LOOP, max_tokens=40, temperature=0, **fields)
        assert a.status == 200, a.body
        return a.json["choices"][0]["text"]
    loop = text()
    assert loop.count("the fox") > 5
    assert text(dry_multiplier=0.8).count("the fox") < 3
    for off in [{"dry_multiplier": 0}, {"dry_penalty_last_n": 0}, {"dry_penalty_last_n": 2}, {"dry_allowed_length": 100},
                {"dry_sequence_breakers": list("abcdefghijklmnopqrstuvwxyz,")}]:
        assert text(**{"dry_multiplier": 0.8, **off}) == loop, off
    assert text(dry_multiplier=5, dry_sequence_breakers='"|", "~"') == text(dry_multiplier=5, dry_sequence_breakers=["|", "~"])


def test_filters_change_what_is_drawn_and_repeat_with_a_seed(daemon):
    def ids(**fields):
        a = daemon.complete("Once upon a time", **{"max_tokens": 24, "temperature": 1.0, "seed": 4, "return_token_ids": True, **fields})
        assert a.status == 200, a.body
        return a.json["choices"][0]["token_ids"]
    plain, greedy = ids(), ids(temperature=0)
    for off in [{"typical_p": 1}, {"top_n_sigma": -1}, {"top_n_sigma": 100}, {"xtc_probability": 0}, {"xtc_probability": 1, "xtc_threshold": 0.6},
                {"dynatemp_range": 0}, {"dynamic_temperature": False, "dynatemp_low": 0, "dynatemp_high": 2}]:
        assert ids(**off) == plain, off
    assert ids(dynatemp_range=0.5, dynatemp_exponent=0, temperature=0.5) == plain, "the hottest, 1.0"
    assert ids(dynamic_temperature=True, dynatemp_low=1, dynatemp_high=1) == plain
    assert ids(dynamic_temperature=True, dynatemp_low=0.25, dynatemp_high=1.75) == ids(dynatemp_range=0.75)
    assert ids(top_n_sigma=0.001) == greedy
    for on in [{"typical_p": 0.5}, {"top_n_sigma": 0.5}, {"xtc_probability": 0.9, "xtc_threshold": 0.05}, {"dynatemp_range": 1}]:
        one = ids(**on)
        assert one != plain and one == ids(**on), on
        assert ids(temperature=0, **on) == greedy, "0 is the likeliest token, whatever the filters"
    assert ids(typical=0.5) == ids(typ_p=0.5) == ids(typical_p=0.5) and ids(nsigma=0.5) == ids(top_n_sigma=0.5)


def test_as_many_stop_token_ids_as_the_reference_says(daemon):
    whole = daemon.complete("Once upon a time", max_tokens=8, temperature=0, return_token_ids=True).json["choices"][0]["token_ids"]
    others = [i for i in range(300, 700) if i not in whole][:127]
    c = daemon.complete("Once upon a time", max_tokens=8, temperature=0, stop_token_ids=[*others, whole[3]]).json["choices"][0]
    assert (c["finish_reason"], c["stop_reason"]) == ("stop", whole[3])
    assert daemon.complete("x", stop_token_ids=[*others, *others]).error["param"] == "stop_token_ids"


def test_stop_strings_are_not_shown(daemon):
    case = GOLDEN[0]
    whole = case["greedy_text"]
    for at, length in [(10, 3), (20, 9), (5, 1)]:
        stop = whole[at:at + length]
        want = whole[:whole.index(stop)]
        fields = {"max_tokens": 48, "temperature": 0, "stop": stop}
        c = daemon.complete(case["prompt"], **fields).json["choices"][0]
        assert (c["text"], c["finish_reason"], c["stop_reason"]) == (want, "stop", stop)
        chunks = events(daemon.complete(case["prompt"], stream=True, **fields).body)
        assert "".join(x["choices"][0]["text"] for x in chunks) == want


def test_logprobs(daemon):
    case = GOLDEN[0]
    lp = daemon.complete(case["prompt"], max_tokens=1, temperature=0, logprobs=5).json["choices"][0]["logprobs"]
    logits = case["last_logits_top20"]["values"]
    got = sorted(lp["top_logprobs"][0].values(), reverse=True)
    assert [g - got[0] for g in got] == pytest.approx([v - logits[0] for v in logits[:5]], abs=0.05)
    echo = daemon.complete(case["prompt"], max_tokens=0, echo=True, logprobs=1).json["choices"][0]
    assert echo["text"] == case["prompt"] and len(echo["logprobs"]["tokens"]) == len(case["prompt_ids"])
    assert echo["logprobs"]["token_logprobs"][0] is None and all(v < 0 for v in echo["logprobs"]["token_logprobs"][1:])


def test_offsets_behind_a_prompt_that_the_tokenizer_normalizes(daemon):
    c = daemon.complete("The cafe\u0301 ", echo=True, logprobs=0, max_tokens=5, temperature=0).json["choices"][0]
    answer = c["text"][len("The cafe\u0301 "):]
    tokens, offsets = c["logprobs"]["tokens"][-5:], c["logprobs"]["text_offset"][-5:]
    assert "".join(tokens) == answer and offsets[0] == len("The cafe\u0301 ")
    assert [c["text"][o:o + len(t)] for t, o in zip(tokens, offsets)] == tokens


def test_a_token_limit_inside_a_character(daemon):
    """Byte tokens of a character that is cut off become one U+FFFD; nothing breaks."""
    ids = daemon.post("/tokenize", {"prompt": "😀"}).json["tokens"]
    for bias in ids:
        a = daemon.complete("x", max_tokens=1, logit_bias={str(bias): 100}, temperature=0)
        assert a.status == 200
        a.body.decode("utf-8")


def test_a_long_prompt(daemon):
    limit = daemon.get("/v1/models").json["data"][0]["max_model_len"]
    a = daemon.complete([5] * (limit + 1))
    assert a.status == 400 and a.error["code"] == "context_length_exceeded"
    assert str(limit) in a.error["message"] and str(limit + 1) in a.error["message"]
    assert a.error["message"].endswith("reduce the length of the prompt or of the completion.")
    # The field is the one that every request has; any of them may be what is long.
    for a, param, words in [(daemon.chat("a " * limit), "messages", "messages and tools"),
                            (daemon.post("/v1/responses", {"input": "x", "instructions": "a " * limit}), "input", "input, instructions and tools")]:
        assert a.status == 400 and a.error["code"] == "context_length_exceeded" and a.error["param"] == param, a.body
        assert a.error["message"].endswith(f"reduce the length of the {words} or of the completion."), a.body


def test_a_long_run_of_spaces_is_too_long_not_too_hard(daemon):
    a = daemon.complete(" " * (15 << 20))
    assert a.status == 400 and a.error["code"] == "context_length_exceeded", a.body


def test_a_text_that_takes_too_long_to_tokenize_is_told_so(daemon):
    """Where no length of context says that it is too long anyway."""
    a = daemon.post("/tokenize", {"prompt": " " * 15_000_000})
    assert a.status == 400 and a.error["code"] == "text_too_costly" and "too long" in a.error["message"]


def test_who_asks_for_no_number_of_tokens_gets_what_is_left_of_the_context():
    limit = 64
    d = Daemon(f"--model.max_model_len={limit}")
    a = d.complete([[5] * (limit - 3), [5] * 4], ignore_eos=True)
    assert a.json["usage"]["completion_tokens"] == 3 + 16
    assert d.complete([5] * (limit - 3), max_tokens=16).error["param"] == "max_tokens"
    assert d.complete([5] * limit).error["param"] == "prompt"
    assert d.complete([5] * (limit - 3), min_tokens=8).error["code"] == "context_length_exceeded"
    assert d.complete([5] * 40, max_tokens=-1, ignore_eos=True).json["usage"]["completion_tokens"] == limit - 40
    assert d.complete([5] * 4, min_tokens=20, ignore_eos=True).json["usage"]["completion_tokens"] == 20
    assert d.stop() == 0, d.log


def test_prefix_hits_are_reported(daemon):
    prompt = "The king and the queen went to the great forest, " * 8
    daemon.complete(prompt, max_tokens=1)
    usage = daemon.complete(prompt, max_tokens=1).json["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] >= 16


@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_its_blocks(daemon, how, stream):
    def aborted():
        return daemon.metric('expertd_requests_total{finish="abort"}')
    before, begin = aborted(), time.monotonic()
    while aborted() == before:  # an answer may be complete when this process has been away for seconds
        in_time(begin, "an answer that was given up")
        s = daemon.socket(http_post("/v1/completions", {"prompt": "Once upon a time", "max_tokens": 1500, "ignore_eos": True,
                                                        "stream": stream, "n": 4}))
        started = daemon.metric("expertd_prompt_tokens_total")
        while daemon.metric("expertd_requests_running") < 1 and daemon.metric("expertd_prompt_tokens_total") == started:
            in_time(begin, "a request that runs")
        if how == "reset":
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        s.close()
        idle(daemon)


def test_metrics_prove_that_it_lives(daemon):
    before = daemon.metric("expertd_generated_tokens_total")
    daemon.complete("Once", max_tokens=5, ignore_eos=True)
    assert daemon.metric("expertd_generated_tokens_total") == before + 5


@pytest.mark.parametrize("field", ["timings", "timings_per_token"])
def test_timings_in_the_form_of_llama_cpp(client, field):
    def check(t, usage):
        assert (t["prompt_n"] + t["cache_n"], t["predicted_n"]) == (usage.prompt_tokens, usage.completion_tokens)
        assert t["cache_n"] == usage.prompt_tokens_details.cached_tokens
        for kind in "prompt", "predicted":
            n, ms = t[f"{kind}_n"], t[f"{kind}_ms"]
            assert ms > 0 and t[f"{kind}_per_second"] == pytest.approx(n * 1e3 / ms) and t[f"{kind}_per_token_ms"] == pytest.approx(ms / n)
    ask = dict(model="demo", messages=[{"role": "user", "content": "Tell me of a king."}], max_tokens=8)
    a = client.chat.completions.create(**ask, extra_body={field: True})
    check(a.timings, a.usage)
    *_, last = client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}, extra_body={field: True})
    check(last.timings, last.usage)
    *_, last = client.chat.completions.create(**ask, stream=True, extra_body={field: True})
    assert last.timings["predicted_n"] == 8 and last.choices == [] and last.usage is None
    assert not hasattr(client.chat.completions.create(**ask), "timings")


def test_a_storm_of_clients(daemon):
    """64 streaming clients, a third of which vanish: the rest get exactly what they get alone; all KV blocks come back."""
    end = time.monotonic() + float(os.environ.get("API_STRESS_SECONDS", "10"))
    words = ["king", "queen", "forest", "wolf", "castle", "river", "bird", "mother"]
    bodies = [{"prompt": f"Once upon a time a {w} ", "max_tokens": 24, "temperature": 0, "ignore_eos": True, "stream": True,
               "return_token_ids": True} for w in words]
    alone = [events(daemon.post("/v1/completions", b).body) for b in bodies]
    ids = [sum((c["choices"][0]["token_ids"] for c in a), []) for a in alone]
    faults, finished, left = [], [0], [0]

    def one(seed):
        rng = random.Random(seed)
        while time.monotonic() < end and not faults:
            k = rng.randrange(len(words))
            try:
                if seed % 3 == 0:
                    s = daemon.socket(http_post("/v1/completions", {**bodies[k], "max_tokens": 400}))
                    s.settimeout(rng.random() * 0.5 + 0.001)
                    try:
                        while s.recv(1000):
                            pass
                    except (TimeoutError, socket.timeout):
                        pass
                    s.close()
                    left[0] += 1
                    continue
                a = daemon.post("/v1/completions", bodies[k])
                assert a.status == 200, a.body
                got = sum((c["choices"][0]["token_ids"] for c in events(a.body)), [])
                assert got == ids[k], (k, got)
                finished[0] += 1
            except Exception as e:  # a thread's assertion is the test's
                faults.append(f"{seed}: {e!r}")

    crowd(64, one)
    assert not faults, faults[0]
    idle(daemon)
    print(f"{finished[0]} streams finished, {left[0]} clients vanished")
    assert finished[0] > 0


def test_one_client_does_not_take_the_whole_queue(daemon):
    many = {"prompt": [f"Once upon a time number {i}" for i in range(128)], "max_tokens": 60, "ignore_eos": True, "temperature": 0}

    def attempt():
        """None when nothing was seen, since the queue was gone before it was looked at."""
        ended = []

        def ask(name, **fields):
            ended.append((name, daemon.post("/v1/completions", fields)))
        big = [threading.Thread(target=ask, args=("many",), kwargs=many) for _ in range(3)]  # more prompts than max_queue
        for t in big:
            t.start()
        while not (long := daemon.metric("expertd_requests_waiting") > 256) and any(t.is_alive() for t in big):
            pass
        ask("one", prompt="A king", max_tokens=5)
        for t in big:
            t.join()
        assert [a.status for _, a in ended] == [200] * 4
        texts = [[c["text"] for c in a.json["choices"]] for name, a in ended if name == "many"]
        assert texts[0] == texts[1] == texts[2]  # whoever gave way
        return long and ended[0][0] == "one"
    begin = time.monotonic()
    while not attempt():
        in_time(begin, "an answer before those of a queue of hundreds")


def commands_of(text):
    """Each curl command, over as many lines as its quotes span, with the JSON in the block behind it or None."""
    lines = re.sub(r"\\\n", " ", text).splitlines()
    while lines:
        line = lines.pop(0)
        if not line.strip().startswith("curl "):
            continue
        while line.count("'") % 2:
            line += "\n" + lines.pop(0)
        rest = "\n".join(lines)
        answer = re.match(r"```\n```json\n(.*?)\n```", rest, re.S)
        yield line.strip(), answer and json.loads(answer[1])


def has_shape(got, shown, path="answer"):
    """All that is shown is there, of the same kind: the page may leave things out, ids and times are new, the last digits depend on the machine."""
    assert isinstance(got, (int, float) if isinstance(shown, (int, float)) else type(shown)), (path, got, shown)
    if isinstance(shown, dict):
        assert set(shown) <= set(got) or path.endswith("top_logprobs[]"), (path, set(shown) - set(got))
        for k in set(shown) & set(got):
            has_shape(got[k], shown[k], f"{path}.{k}")
    if isinstance(shown, list):
        assert bool(got) == bool(shown), (path, got)
        for g, s in zip(got, shown):
            has_shape(g, s, path + "[]")


def test_the_readmes_commands_work(daemon):
    """Each curl command of README.md and docs/api.md, as printed, on this server's port; where the page shows the answer, it is one like that."""
    commands = []
    for name in ["README.md", os.path.join("docs", "api.md")]:
        commands += commands_of(open(os.path.join(ROOT, name), encoding="utf-8").read())
    assert len(commands) > 20 and sum(shown is not None for _, shown in commands) > 15
    takes_tools = Daemon("--model.chat_template=" + os.path.join(ROOT, "config", "demo", "tools.jinja"))
    assert sum('"tools"' in command for command, _ in commands) >= 2
    for command, shown in commands:
        port = (takes_tools if '"tools"' in command else daemon).port
        command = command.replace("127.0.0.1:8080", f"127.0.0.1:{port}").replace("curl ", "curl -sS --fail-with-body ", 1)
        out = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=WAIT_S)
        assert out.returncode == 0 and out.stdout, (command, out.stdout, out.stderr)
        if shown is not None:
            has_shape(json.loads(out.stdout), shown)
            assert '"max_' not in command or '"temperature": 0' in command or '"seed"' in command, "not an answer to get again: " + command
        answer = json.loads(out.stdout)["choices"][0] if '"tools"' in command or "response_format" in command else None
        if answer and "tool_choice" in command:
            assert answer["finish_reason"] == "tool_calls" and json.loads(answer["message"]["tool_calls"][0]["function"]["arguments"])
        elif answer and "response_format" in command:
            assert json.loads(answer["message"]["content"])
    assert takes_tools.stop() == 0


def test_the_demos_template_for_tools_shows_calls_and_results():
    d = Daemon("--model.chat_template=" + os.path.join(ROOT, "config", "demo", "tools.jinja"))
    tools = [{"type": "function", "function": {"name": "now"}}]
    call = {"id": "1", "type": "function", "function": {"name": "now", "arguments": "{\"zone\": \"UTC\"}"}}
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "tool", "tool_call_id": "1", "content": "noon"}]
    ids = d.post("/tokenize", {"messages": messages, "tools": tools}).json["tokens"]
    assert d.post("/detokenize", {"tokens": ids}).json["prompt"] == (
        "<|im_start|>system\nYou may call these functions:\n<tools>\n" + json.dumps(tools[0]) + "\n</tools>\nA call is written <tool_call>\n"
        '{"name": NAME, "arguments": OBJECT}\n</tool_call><|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n\n<tool_call>\n'
        '{"name": "now", "arguments": {"zone": "UTC"}}\n</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\nnoon\n</tool_response><|im_end|>\n'
        "<|im_start|>assistant\n")
    own = Daemon()
    assert own.post("/tokenize", {"messages": messages[:1]}).json == d.post("/tokenize", {"messages": messages[:1]}).json
    assert own.stop() == 0 and d.stop() == 0


def run(*options):
    """expertd until it ends by itself: exit status and log."""
    p = subprocess.run([os.environ["EXPERTD"], *options], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=WAIT_S)
    return p.returncode, p.stderr


def test_a_port_in_use_ends_with_a_failure(daemon):
    status, log = run("--model", os.path.join(ROOT, "config", "demo"), "--server.port", str(daemon.port))
    assert status == 1 and "Address already in use" in log and "stopped" not in log


def test_an_address_that_cannot_be_had_says_what_could(tmp_path):
    status, log = run("--model", os.path.join(ROOT, "config", "demo"), "--server.host=192.0.2.1", "--server.port=0")  # an address of examples
    assert status == 1 and "no address of this machine" in log
    with open("/proc/sys/net/ipv4/ip_unprivileged_port_start", encoding="utf-8") as f:
        if int(f.read()) < 2:
            return  # everybody may have every port
    program = shutil.copy(os.environ["EXPERTD"], "/tmp/expertd-" + os.path.basename(tmp_path))  # where everybody may run it
    try:
        nobody = {"user": 65534, "group": 65534, "extra_groups": []} if not os.geteuid() else {}
        r = subprocess.run([program, "-m", "synthetic:tiny", "-c", "/dev/null", "--port=1"], capture_output=True, text=True, timeout=WAIT_S, **nobody)
    finally:
        os.unlink(program)
    assert r.returncode == 1 and "port 1 (below 1024 are root's" in r.stderr, r.stderr


def test_a_model_that_is_not_there_is_named(tmp_path):
    (tmp_path / "model.bin").write_text("")
    for path, why in [("none", "No such file"), ("model.bin", "neither a directory nor"), ("", "has no config.json")]:
        status, log = run("--server.port=0", "--model", str(tmp_path / path))
        assert status == 66 and str(tmp_path / path) in log and why in log
