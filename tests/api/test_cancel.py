"""Clients that go away, are slow or many. API_STRESS_SECONDS sets how long the storm lasts (default 5)."""
import os
import random
import socket
import threading
import time

import pytest

from conftest import crowd, events, http_post, read_all

ENDLESS = "[drip]" + "x" * 64


def vanish(s, how):
    if how == "reset":
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    elif how == "half":
        s.shutdown(socket.SHUT_WR)
        return
    s.close()


@pytest.mark.parametrize("how", ["close", "reset", "half"])
@pytest.mark.parametrize("prompt", [ENDLESS, "[never]"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_its_sequence(server, how, prompt, stream):
    """During decode and during prefill, streaming or not; the engine's own prefill would never end, the answer after 40 s."""
    before = server.metric("fake_cancelled_total")
    s = server.socket(http_post("/v1/completions", {"prompt": prompt, "stream": stream, "max_tokens": 4000}))
    server.wait_metric("fake_live", 1)
    vanish(s, how)
    server.wait_metric("fake_live", 0)
    assert server.metric("fake_cancelled_total") == before + 1, "it was cancelled, not finished"
    assert server.metric("expertd_http_streams") == 0
    s.close()


def test_leaving_before_the_body_is_complete(server):
    s = server.socket(http_post("/v1/completions", {"prompt": ENDLESS})[:-5])
    s.close()
    server.settle()
    assert server.alive()


def test_cancelling_one_leaves_the_others(server):
    results = {}

    def ask(i):
        results[i] = server.complete(f"{i:03d}" + "x" * 300, max_tokens=400).json["choices"][0]["text"]

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for how in ["close", "reset"] * 4:
        s = server.socket(http_post("/v1/completions", {"prompt": random.choice([ENDLESS, "[never]"]), "stream": True}))
        time.sleep(0.01)
        vanish(s, how)
    for t in threads:
        t.join()
    assert results == {i: f"{i:03d}" + "x" * 300 for i in range(8)}
    server.wait_metric("fake_live", 0)


def test_a_reader_that_is_stuck_blocks_nobody(start):
    """Its answer stays with the engine; the server keeps serving, and lets it go after the idle time-out."""
    server = start("--server.idle_timeout=5s", "--server.heartbeat=none")
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    s.connect(("127.0.0.1", server.port))
    s.sendall(http_post("/v1/completions", {"prompt": "[long]x", "stream": True, "n": 4, "max_tokens": 4000, "logprobs": 20}))
    server.wait_metric("fake_live", 1)
    for _ in range(20):
        assert server.complete("quick").json["choices"][0]["text"] == "quick"
    server.wait_metric("fake_live", 0)
    s.close()


def memory_kb(server):
    for line in open(f"/proc/{server.process.pid}/status"):
        if line.startswith("VmRSS"):
            return int(line.split()[1])


def test_a_storm_of_clients(start):
    """64 streaming clients, a third of which vanish at random: nothing is lost, doubled or left behind."""
    server = start("--server.max_queue=1000")
    end = time.monotonic() + float(os.environ.get("API_STRESS_SECONDS", "5"))
    faults, finished = [], [0]

    def client(seed):
        rng = random.Random(seed)
        while (time.monotonic() < end or finished[0] <= 64) and not faults:
            text = f"{seed}:" + "".join(rng.choices("abcdé€😀 ", k=rng.randint(20, 200)))
            body = {"prompt": text, "stream": True, "max_tokens": 4000, "n": rng.choice([1, 1, 2])}
            try:
                s = server.socket(http_post("/v1/completions", body, b"Connection: close\r\n"))
                if seed % 3 == 0:
                    s.settimeout(rng.random() * 0.2 + 0.001)
                    try:
                        while s.recv(1000):
                            pass
                    except (TimeoutError, socket.timeout):
                        pass
                    vanish(s, rng.choice(["close", "reset"]))
                    continue
                with s:
                    answer = read_all(s)
                head, _, rest = answer.partition(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 200"), head
                whole = b""
                while rest and (size := int(rest[:rest.index(b"\r\n")], 16)):
                    at = rest.index(b"\r\n") + 2
                    whole += rest[at:at + size]
                    rest = rest[at + size + 2:]
                got = [""] * body["n"]
                for c in events(whole):
                    got[c["choices"][0]["index"]] += c["choices"][0]["text"]
                assert got == [text] * body["n"]
                finished[0] += 1
            except Exception as e:  # a thread's assertion is the test's
                faults.append(f"{seed}: {e!r}")

    crowd(64, client)
    assert not faults, faults[0]
    assert finished[0] > 64
    server.wait_metric("fake_live", 0)
    server.wait_metric("expertd_http_streams", 0)
    server.wait_metric("expertd_http_connections", 1)
    print(f"{finished[0]} streams finished, {server.metric('fake_cancelled_total'):.0f} cancelled, {memory_kb(server)} kB")


def test_a_client_that_leaves_at_the_last_event_has_been_answered(server):
    """As OpenAI's Python client does: it closes at [DONE], which may be before the end of the chunked body has gone out."""
    gone = server.metric("expertd_http_client_gone_total")
    request = http_post("/v1/completions", {"prompt": "x" * 8, "stream": True})
    for _ in range(200):
        s = server.socket(request)
        got = b""
        while b"data: [DONE]\n\n" not in got:
            piece = s.recv(65536)
            assert piece, got
            got += piece
        s.close()
    server.settle()
    assert server.metric("expertd_http_client_gone_total") == gone
