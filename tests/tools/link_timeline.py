#!/usr/bin/env python3
"""What a fallback looks like: requests run, the link is disturbed and left alone again, and all that changes is put in a table.

  link_timeline.py [--load "linkload copy" ...] [--healthy 4] [--disturb 10] EXPERTD [--section.key=value ...]

Starts the daemon, asks every prompt once alone, then lets clients ask them for ever and compares each answer's token ids. The
disturbance is the given processes (see linkload.c); without any, that of --test.link_profile, whose seconds count from the start of the
daemon. Every 100 ms /health is read. At the end: a table of each change and each second, and what became of the requests. The exit
status says whether an answer was lost or different; no time is judged."""
import argparse
import json
import random
import re
import subprocess
import sys
import threading
import time
import urllib.request

PATHS = ["direct", "staged", "full", "shared"]


class Daemon:
    def __init__(self, exe, args):
        self.p = subprocess.Popen([exe, "serve", "--server.port=0", "--log.format=plain", "--log.requests=no", *args],
                                  stderr=subprocess.PIPE, text=True)
        self.log, self.port = [], None
        for line in self.p.stderr:
            self.log.append(line.rstrip())
            m = re.search(r"listening on port (\d+)", line)
            if m:
                self.port = int(m[1])
                break
        if not self.port:
            sys.exit("\n".join(self.log))
        threading.Thread(target=self.drain, daemon=True).start()

    def drain(self):
        for line in self.p.stderr:
            self.log.append(line.rstrip())
            if "link:" in line:
                print("  " + line.rstrip(), flush=True)

    def get(self, path, body=None):
        data = json.dumps(body).encode() if body is not None else None
        req = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(req, timeout=120) as r:
            return json.loads(r.read())

    def wait_ready(self):
        while True:
            try:
                return self.get("/health")
            except urllib.error.HTTPError:
                if self.p.poll() is not None:
                    sys.exit("\n".join(self.log))
                time.sleep(0.2)

    def ask(self, ids, n):
        r = self.get("/v1/completions", dict(prompt=ids, max_tokens=n, temperature=0, ignore_eos=True, return_token_ids=True))
        return r["choices"][0]["token_ids"]


class Load:
    def __init__(self, command):
        self.p = subprocess.Popen(command.split(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.command = command

    def wait(self):
        if self.p.stdout.readline().strip() != "ready":
            sys.exit(f"{self.command}: did not start")

    def toggle(self):
        self.p.stdin.write("\n")
        self.p.stdin.flush()

    def result(self):
        return self.p.stdout.readline().strip()

    def end(self):
        self.p.stdin.close()
        self.p.wait(30)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--load", action="append", default=[])
    ap.add_argument("--healthy", type=float, default=4, help="seconds before the disturbance")
    ap.add_argument("--disturb", type=float, default=10, help="seconds of it")
    ap.add_argument("--settle", type=float, default=60, help="most seconds to wait for the way back")
    ap.add_argument("--clients", type=int, default=4)
    ap.add_argument("--prompts", type=int, default=8)
    ap.add_argument("--length", type=int, default=64)
    ap.add_argument("--tokens", type=int, default=64)
    ap.add_argument("exe")
    o, rest = ap.parse_known_args()

    loads = [Load(c) for c in o.load]
    d = Daemon(o.exe, rest)
    h = d.wait_ready()
    for l in loads:
        l.wait()
    vocab, f = h["engine"]["model"]["vocab"], h["engine"]["fallback"]
    plan = {r["what"]: r["bytes"] for r in h["engine"]["plan"]}
    print(f"healthy link {f['healthy_gbps']:.1f} GB/s, bad below {f['bad_below_gbps']:.1f}; experts {plan['host_experts'] / 1e9:.1f} GB, "
          f"{h['engine']['pager']['slots_total']} of {h['engine']['pager']['pages_total']} pages have a slot in VRAM", flush=True)
    rng = random.Random(1)
    prompts = [[rng.randrange(vocab) for _ in range(o.length)] for _ in range(o.prompts)]
    want = [d.ask(p, o.tokens) for p in prompts]

    samples, stop = [], threading.Event()
    done, different, failed = [0], [0], []
    lock = threading.Lock()

    def client(k):
        i = k
        while not stop.is_set():
            try:
                same = d.ask(prompts[i % len(prompts)], o.tokens) == want[i % len(prompts)]
                with lock:
                    done[0] += 1
                    different[0] += not same
            except Exception as e:
                body = e.read().decode() if hasattr(e, "read") else ""
                with lock:
                    failed.append(repr(e) + body)
                if d.p.poll() is not None:
                    return
            i += o.clients

    def sample():
        while not stop.is_set():
            t = time.monotonic()
            try:
                e = d.get("/health")["engine"]
                samples.append((t, e["fallback"], e["pager"], e["generated_tokens"]))
            except Exception as e:
                failed.append("health: " + repr(e))
            time.sleep(max(0, 0.1 - (time.monotonic() - t)))

    threads = [threading.Thread(target=client, args=(k,)) for k in range(o.clients)] + [threading.Thread(target=sample)]
    begin = time.monotonic()
    for t in threads:
        t.start()
    time.sleep(o.healthy)
    marks = [(time.monotonic(), "the disturbance begins" if loads else "")]
    for l in loads:
        l.toggle()
    time.sleep(o.disturb)
    marks.append((time.monotonic(), "the disturbance ends" if loads else ""))
    for l in loads:
        l.toggle()
    rates = [l.result() for l in loads]
    end = time.monotonic() + o.settle
    quiet = 0
    while time.monotonic() < end and quiet < 20 and d.p.poll() is None:
        quiet = quiet + 1 if samples and samples[-1][1]["state"] == "direct" else 0
        time.sleep(0.1)
    stop.set()
    for t in threads:
        t.join()

    def rate(i, get, scale):
        """Over the last half second."""
        j = i
        while j > 0 and samples[i][0] - samples[j][0] < 0.5:
            j -= 1
        dt = samples[i][0] - samples[j][0]
        return (get(samples[i]) - get(samples[j])) / dt / scale if dt > 0 else 0

    zero = marks[0][0]
    print("\n| t, s | what happens | state | path | link GB/s | tokens/s | GB/s from the host | pages in VRAM |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    last, next_row, full_at = None, begin, None
    for i, (t, f, p, tokens) in enumerate(samples):
        what = [w for at, w in marks if w and samples[max(i - 1, 0)][0] < at <= t]
        key = (f["state"], f["pager_mode"])
        if key != last and last:
            what.append(f["reason"] if key[0] != last[0] else "")
        all_in = p["slots_used"] == p["pages_total"]
        if all_in and not full_at:
            what.append("all experts lie in VRAM")
        full_at = t if all_in else None
        if what or t >= next_row:
            next_row = max(next_row, t) + 1
            print(f"| {t - zero:+.1f} | {'; '.join(w for w in what if w)} | {f['state']} | {PATHS[f['pager_mode']]} | {f['link_gbps']:.1f} | "
                  f"{rate(i, lambda s: s[3], 1):.0f} | {rate(i, lambda s: s[2]['bytes_host'], 1e9):.1f} | {p['slots_used']} |")
        last = key
    for at, f0 in (("suspect", "direct"), ("fallback", "suspect")):
        hit = next((t for t, f, p, n in samples if t > zero and f["state"] == at), None)
        if hit:
            print(f"{at} {hit - zero:.2f} s after the disturbance began")
    low = []
    for t, f, p, n in samples:
        if t >= marks[-1][0] and f["link_gbps"] < 0.8 * f["healthy_gbps"] and (not low or low[-1][1] != f["link_gbps"]):
            low.append((t, f["link_gbps"], f["state"]))
    print("rates below 80 % of the healthy one since its end: " + (", ".join(f"{t - zero:+.1f} s {g:.1f} GB/s ({s})" for t, g, s in low) or "none"))
    if rates:
        print("the neighbours got: " + ", ".join(rates))
    bad = different[0] or failed or d.p.poll() is not None
    print(f"{done[0]} answers of {o.tokens} tokens, {different[0]} different from those before, {len(failed)} lost {failed[:3]}")
    for l in loads:
        l.end()
    d.p.terminate()
    d.p.wait(60)
    if bad:
        print("\n".join(d.log[-30:]))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
