"""Long requests: prepared by threads of their own (api/work.c), and refused when they are longer than the context."""
import re
import threading
import time

import pytest
from conftest import crowd, http_post, in_time


def quick_ones_beside_a_long_one(server):
    slow, ended = [], threading.Event()

    def ask():
        # 4 million ids each become a JSON value and text again: seconds on one core
        slow.append(server.post("/tokenize", {"prompt": "a" * 4_000_000}))
        ended.set()
    thread = threading.Thread(target=ask)
    thread.start()
    quick = 0
    while not ended.is_set():
        assert server.complete("quick", stream=True).status == 200
        quick += 1
    thread.join()
    assert slow[0].status == 200 and slow[0].json["count"] == 4_000_000
    return quick


def test_long_requests_are_prepared_beside_the_streams(start):
    """There is one HTTP thread: what took seconds on it would stop every stream. They are counted while another thread prepares."""
    server = start("--server.threads=1", "--server.max_body=32MiB")
    begin = time.monotonic()
    while quick_ones_beside_a_long_one(server) <= 5:  # this process may have lost the processor meanwhile
        in_time(begin, "more than five answers while one was prepared")


def test_a_long_body_takes_the_same_way_to_the_same_answers(server):
    """More than 16 KiB are prepared by another thread: errors, streams, plain answers, with and without their client."""
    pad = {"metadata": {"x": "y" * 20000}}
    for fields in [{}, {"stream": True}, {"n": 2}, {"temperature": 9}, {"stop": "l"}, {"model": "nope"}]:
        small, large = server.complete("hello", **fields), server.complete("hello", **pad, **fields)
        assert small.status == large.status
        if small.status == 200 and not fields.get("stream"):
            assert [c["text"] for c in small.json["choices"]] == [c["text"] for c in large.json["choices"]]
        elif small.status != 200:
            assert small.error == large.error
    assert server.chat("x" * 20000).error["code"] == "context_length_exceeded"
    assert server.post("/v1/completions", "{" * 20000).status == 400
    tokens = server.post("/tokenize", {"prompt": "ab" * 10000}).json["tokens"]
    assert server.post("/detokenize", {"tokens": tokens}).json["prompt"] == "ab" * 10000
    for how in range(40):
        s = server.socket(http_post("/tokenize", {"prompt": "a" * 300000}))
        s.close()
    server.settle()
    assert server.alive()


def test_a_server_that_is_stopped_while_it_prepares_ends(start):
    server = start("--server.threads=2", "--server.max_body=32MiB")
    open_, begin = [], time.monotonic()
    while server.metric("expertd_http_in_flight") < 3:  # of so many some are being prepared, unless this process was away for seconds
        in_time(begin, "requests that are being prepared")
        if len(open_) < 6 or server.metric("expertd_http_in_flight") == 1:
            open_ += [server.socket(http_post("/tokenize", {"prompt": "a" * 3_000_000})) for _ in range(6)]
    assert server.stop() == 0
    for s in open_:
        s.close()


def test_who_is_far_too_long_is_told_so_before_the_end(server):
    a = server.complete("x" * 900_000)
    assert a.status == 400 and a.error["code"] == "context_length_exceeded" and a.error["param"] == "prompt"
    assert "maximum context length is 4096 tokens" in a.error["message"] and "more than" in a.error["message"]
    a = server.chat("x" * 900_000)
    assert a.error["code"] == "context_length_exceeded" and a.error["param"] == "messages"
    assert a.error["message"].endswith("tokens in the messages and tools. Please reduce the length of the messages and tools.")
    a = server.post("/v1/responses", {"input": "x", "instructions": "x" * 900_000})
    assert a.error["code"] == "context_length_exceeded" and a.error["param"] == "input"
    assert a.error["message"].endswith("tokens in the input, instructions and tools. Please reduce the length of the input, instructions and tools.")


def test_what_is_too_much_for_the_template_is_too_long(start):
    """The template gives up before there is a prompt, whose length would be told."""
    server = start("--model.chat_template={% for m in messages %}{% for i in range(1000) %}{% set x = m.content ~ i %}{% endfor %}{{ m.content }}{% endfor %}", "--server.max_body=64MiB")
    many = [{"role": "user", "content": "x" * 10}] * 100_000
    a = server.post("/v1/chat/completions", {"messages": many})
    assert (a.status, a.error["code"], a.error["param"]) == (400, "context_length_exceeded", "messages"), a.body
    assert "maximum context length is 4096 tokens" in a.error["message"] and "more than 4096 tokens in the messages and tools" in a.error["message"]
    a = server.post("/v1/responses", {"input": many})
    assert (a.status, a.error["code"], a.error["param"]) == (400, "context_length_exceeded", "input"), a.body
    few = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "ab"}]})
    assert few.status == 200, few.body
    # What fits is the template's fault.
    server = start("--model.chat_template={% for m in messages * 1000000 %}{{ m.content ~ loop.index }}{% endfor %}")
    a = server.chat("ab")
    assert (a.status, a.error["code"]) == (400, "template_error"), a.body


def test_a_length_error_names_the_field_that_was_sent(server):
    assert server.chat("x" * 5000).error["param"] == "messages"
    assert server.complete("x" * 5000).error["param"] == "prompt"
    assert server.chat("x", max_tokens=5000).error["param"] == "max_tokens"
    assert server.chat("x", max_completion_tokens=5000).error["param"] == "max_completion_tokens"
    assert server.complete("x", max_tokens=5000).error["param"] == "max_tokens"


def test_a_long_answer_is_written_by_another_thread_and_is_the_same(server):
    """21 log-probabilities for each of 4 x 900 tokens: pieces of the answer are those of short ones."""
    text = "0123456789" * 90
    c = server.complete(text, max_tokens=900, n=4, logprobs=20, echo=True, return_token_ids=True).json["choices"]
    assert [x["text"] for x in c] == [text * 2] * 4
    lp = c[3]["logprobs"]
    assert lp["tokens"] == list(text * 2) and lp["token_logprobs"] == [None] + [-0.25] * 1799 and len(lp["top_logprobs"][-1]) == 20
    chat = server.chat(text, max_tokens=900, logprobs=True, top_logprobs=20).json["choices"][0]
    assert len(chat["logprobs"]["content"]) == 900
    for _ in range(20):  # who leaves then is noticed, and nothing is lost
        before = server.metric("fake_submitted_total")
        s = server.socket(http_post("/v1/completions", {"prompt": text, "max_tokens": 900, "n": 4, "logprobs": 20}))
        server.wait_metric("fake_submitted_total", before + 1)
        server.wait_metric("fake_live", 0)
        s.close()
    server.settle()


def rss_kib(server, name="VmRSS"):
    text = open(f"/proc/{server.process.pid}/status").read()
    return int(re.search(rf"{name}:\s+(\d+) kB", text)[1])


def test_the_memory_of_a_large_answer_is_given_back(start):
    server = start("--server.threads=2")
    program = open(f"/proc/{server.process.pid}/exe", "rb").read()
    if b"__asan_init" in program or b"__tsan_init" in program:
        pytest.skip("sanitizers keep what is freed")
    before = rss_kib(server)
    a = server.complete(["abcdefghijklmnopqrstuvwxyz" * 32] * 100, echo=True, logprobs=5, max_tokens=1)
    assert a.status == 200 and len(a.body) > 4 << 20
    most = rss_kib(server, "VmHWM")
    assert most > before + (30 << 10)
    begin = time.monotonic()
    while (now := rss_kib(server)) > before + (most - before) / 4:
        in_time(begin, f"memory: {before}, then {most}, now {now} KiB")
        time.sleep(0.1)


def test_the_memory_of_many_log_probabilities_is_given_back(start):
    """No one of these answers is large as text; what they took is."""
    server = start("--server.threads=2", "--server.max_queue=100", "--model.chat_template={{ messages[-1].content }}")
    program = open(f"/proc/{server.process.pid}/exe", "rb").read()
    if b"__asan_init" in program or b"__tsan_init" in program:
        pytest.skip("sanitizers keep what is freed")
    before = rss_kib(server)
    body = {"input": "abcdefghij" * 100, "stream": True, "top_logprobs": 20, "include": ["message.output_text.logprobs"]}
    crowd(16, lambda i: server.post("/v1/responses", body))
    most = rss_kib(server, "VmHWM")
    assert most > before + (50 << 10)
    begin = time.monotonic()
    while (now := rss_kib(server)) > before + (most - before) / 4:
        in_time(begin, f"memory: {before}, then {most}, now {now} KiB")
        time.sleep(0.1)


def test_what_a_response_may_hold_is_bounded(start):
    server = start("--server.max_n=8")
    prompts = ["x" * 1000] * 16
    a = server.complete(prompts, echo=True, logprobs=20, n=2, max_tokens=1)
    assert a.status == 400 and a.error["param"] == "logprobs" and "524288" in a.error["message"]
    assert server.complete(prompts, echo=True, logprobs=20, max_tokens=1).status == 200
    assert server.metric("fake_submitted_total") == 16, "told before anything was computed"
    # of answers it is known only when they are there
    answers = server.complete(["x" * 500] * 128, logprobs=20, max_tokens=250)
    assert answers.status == 400 and answers.error["param"] == "logprobs", answers.body[:200]
    streamed = server.complete(["x" * 500] * 128, logprobs=20, max_tokens=250, stream=True)
    assert streamed.body.endswith(b"data: [DONE]\n\n") and b'"error"' not in streamed.body[-1000:]
