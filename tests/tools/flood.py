#!/usr/bin/env python3
"""What a flood of connections on which nothing comes does to others: how long /health takes meanwhile.

    flood.py EXPERTD MODEL [--connections=10000] [--header] [--server.OPTION=VALUE ...]

Starts the daemon, opens the connections as fast as they are taken and keeps them (with --header each sends half a header), asks /health on
a fresh connection every 50 ms from the first to five seconds after the last, and prints what the answers took. Standard library only."""
import re
import resource
import selectors
import socket
import statistics
import subprocess
import sys
import threading
import time


def ask(port):
    """Seconds until /health was answered with 200; None: it was refused, or not answered in 30 s."""
    begun = time.monotonic()
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=30) as s:
            s.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            data = b""
            while more := s.recv(65536):
                data += more
    except OSError:
        return None
    return time.monotonic() - begun if b" 200 " in data[:20] else None


def flood(port, n, send):
    """n connections, some hundreds under way at a time."""
    ready, socks = selectors.DefaultSelector(), []
    while len(socks) < n or ready.get_map():
        while len(socks) < n and len(ready.get_map()) < 512:
            s = socket.socket()
            s.setblocking(False)
            s.connect_ex(("127.0.0.1", port))
            socks.append(s)
            ready.register(s, selectors.EVENT_WRITE)
        for key, _ in ready.select(1):
            ready.unregister(key.fileobj)
            try:
                key.fileobj.send(send)
            except OSError:
                pass
    return socks


def main():
    args = [a for a in sys.argv[1:] if not a.startswith("--")]
    options = [a for a in sys.argv[1:] if a.startswith("--")]
    if len(args) != 2:
        sys.exit(__doc__)
    n, send = 10000, b""
    for o in list(options):
        if m := re.fullmatch(r"--connections=(\d+)", o):
            n = int(m[1])
            options.remove(o)
        elif o == "--header":
            send = b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Half"
            options.remove(o)
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    server = subprocess.Popen([args[0], "serve", f"--model.path={args[1]}", "--server.port=0", "--log.format=plain", *options],
                              stderr=subprocess.PIPE, text=True)
    try:
        for line in server.stderr:
            if m := re.search(r"listening on port (\d+)", line):
                port = int(m[1])
            elif "ready:" in line:
                break
        threading.Thread(target=server.stderr.read, daemon=True).start()
        took, end = [], [float("inf")]

        def probe():
            while time.monotonic() < end[0]:
                took.append(ask(port))
                time.sleep(0.05)

        print(f"alone: {statistics.median(ask(port) for _ in range(20)) * 1e3:.1f} ms")
        prober = threading.Thread(target=probe)
        prober.start()
        begun = time.monotonic()
        socks = flood(port, n, send)
        print(f"{n} connections were opened in {time.monotonic() - begun:.1f} s")
        end[0] = time.monotonic() + 5
        prober.join()
        good = sorted(t for t in took if t is not None)
        print(f"/health: {len(took)} asked, {len(took) - len(good)} without an answer; median {statistics.median(good) * 1e3:.1f} ms, "
              f"longest {good[-1] * 1e3:.1f} ms")
        closed = 0
        for s in socks:
            try:
                closed += s.recv(4096) is not None
            except BlockingIOError:
                pass
            except OSError:
                closed += 1
        print(f"{closed} of the connections were closed by the server")
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
