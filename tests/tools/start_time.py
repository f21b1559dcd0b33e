#!/usr/bin/env python3
"""How long `expertd serve` takes until /health says 200, and how much memory it had taken by then.

    start_time.py EXPERTD MODEL [OPTION ...]

Prints the daemon's own log with the seconds since its start, the time to READY, the time of a first completion of 8 tokens, and the
peaks of resident memory (VmHWM, and what of the resident memory is anonymous, file or shared). Standard library only."""
import json
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    begun = time.monotonic()
    server = subprocess.Popen([sys.argv[1], "serve", f"--model.path={sys.argv[2]}", f"--server.port={port}", "--log.format=plain",
                               *sys.argv[3:]], stderr=subprocess.PIPE, text=True)

    def show():
        for line in server.stderr:
            if "GET /health" not in line:
                print(f"  {time.monotonic() - begun:6.2f} s  {line.rstrip()}")

    threading.Thread(target=show, daemon=True).start()

    def status(*names):
        with open(f"/proc/{server.pid}/status", encoding="ascii") as f:
            lines = dict(line.split(":", 1) for line in f)
        return {n: int(lines[n].split()[0]) / 1e6 * 1.024 for n in names}

    parts, peak = ("VmRSS", "RssAnon", "RssFile", "RssShmem"), {}
    while True:
        if server.poll() is not None:
            sys.exit("expertd ended while loading")
        now = status(*parts)
        if now["VmRSS"] > peak.get("VmRSS", 0):
            peak = now
        try:
            with urllib.request.urlopen(url + "/health", timeout=5) as r:
                if r.status == 200:
                    break
        except (urllib.error.URLError, OSError):
            time.sleep(0.02)
    ready = time.monotonic()
    request = urllib.request.Request(url + "/v1/completions", json.dumps({"prompt": [5, 6, 7, 8], "max_tokens": 8,
                                                                          "return_token_ids": True, "ignore_eos": True,
                                                                          "temperature": 0}).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as r:
        ids = json.load(r)["choices"][0]["token_ids"]
    print(f"ready after {ready - begun:.2f} s; 8 tokens in {time.monotonic() - ready:.2f} s: {ids}")
    print("peak of resident memory {:.1f} GB; at the highest moment seen: ".format(status("VmHWM")["VmHWM"]) +
          ", ".join(f"{k} {v:.1f}" for k, v in peak.items()))
    server.terminate()
    sys.exit(server.wait(60))


if __name__ == "__main__":
    main()
