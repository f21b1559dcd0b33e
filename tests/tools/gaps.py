#!/usr/bin/env python3
"""How long streams are silent while others send long requests: gaps.py PORT [STREAMS].

The server must be running, and idle otherwise (build/daemon/expertd --engine.threads=2 --server.port=PORT). Each row: what was sent beside
the streams (12 unless said), its size, the answers' statuses, how long they took, and the longest silence of any stream and of the
median one. Standard library only."""
import http.client
import json
import multiprocessing
import sys
import threading
import time

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
USER = [{"role": "user", "content": "Hi"}]
ROWS = [
    ("nothing", None, {}, 0),
    ("tokenize 15 MB", "/tokenize", {"prompt": "a" * 15_000_000}, 1),
    ("tokenize 15 MB x 4", "/tokenize", {"prompt": "a" * 15_000_000}, 4),
    ("completion 15 MB of words", COMPLETIONS, {"prompt": "the king " * 1_600_000}, 1),
    ("completion 15 MB", COMPLETIONS, {"prompt": "a" * 15_000_000}, 1),
    ("completion 1 MB x 4", COMPLETIONS, {"prompt": "the king " * 110_000}, 4),
    ("chat 2 MB x 4", CHAT, {"messages": [{"role": "user", "content": "a" * 2_000_000}]}, 4),
    ("1.9 million ids", COMPLETIONS, {"prompt": [5] * 1_900_000}, 1),
    ("5000 messages", CHAT, {"messages": [{"role": "user", "content": "a" * 100}] * 5000}, 1),
    ("16 x 600 x 20 logprobs", COMPLETIONS, {"prompt": "Once", "max_tokens": 600, "n": 16, "logprobs": 20, "ignore_eos": True}, 1),
]


def post(port, path, body):
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    c.request("POST", path, body, {"Content-Type": "application/json"})
    return c, c.getresponse()


def ask(port, path, body, begin, statuses):
    """In a process of its own, so that reading a large answer does not hold up the streams' readers."""
    begin.wait()
    c, r = post(port, path, body)
    r.read()
    c.close()
    statuses.put(r.status)


class Row:
    def __init__(self, port, streams):
        self.port, self.counting, self.stop, self.gaps = port, False, False, []
        self.threads = [threading.Thread(target=self.stream, args=(i,)) for i in range(streams)]

    def stream(self, seed):
        fields = {"messages": USER, "max_tokens": 1900, "stream": True, "ignore_eos": True, "seed": seed}
        c, r = post(self.port, CHAT, json.dumps(fields))
        last, gap = None, 0.0
        while not self.stop and (line := r.readline()):
            if line.startswith(b"data"):
                now = time.monotonic()
                gap = max(gap, now - last) if last and self.counting else gap
                last = now
        self.gaps.append(gap)
        c.close()

    def run(self, name, path, fields, times):
        body = json.dumps(fields)
        go, answers = multiprocessing.Event(), multiprocessing.Queue()
        others = [multiprocessing.Process(target=ask, args=(self.port, path, body, go, answers)) for _ in range(times)]
        for t in others + self.threads:
            t.start()
        time.sleep(0.7)
        self.counting = True
        begin = time.monotonic()
        go.set()
        statuses = [answers.get() for _ in others]
        took = time.monotonic() - begin
        for t in others:
            t.join()
        time.sleep(0.3 if times else 2)
        self.stop = True
        for t in self.threads:
            t.join()
        self.gaps.sort()
        print(f"{name:26s} {len(body):9d} {str(statuses):22s} {took:6.2f} s; silence {self.gaps[-1]:.3f} s, median "
              f"{self.gaps[len(self.gaps) // 2]:.3f} s", flush=True)


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    for row in ROWS:
        Row(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 12).run(*row)


main()
