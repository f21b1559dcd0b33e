"""A daemon under test: starts the real program with the demo model on a free port, asks it, reads its metrics.

No test counts on who is quicker: the machine may be busy, and each process may lose the processor for seconds at any moment. What is waited for
is an event, and how long is bounded only so that what never comes is told by its name."""
import faulthandler
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.request

NAME = re.compile(r"\bexpertd_[a-z0-9_]+")
PATIENCE = int(os.environ.get("EXPERTD_TEST_PATIENCE", "1"))  # sanitizers are slow
WAIT_S = 180 * PATIENCE  # for what comes at once unless something is wrong
TEST_S = 600 * PATIENCE  # a test takes some seconds


def wait_until(what, there):
    """What `there` returns when that is true."""
    begin = time.monotonic()
    while not (found := there()):
        assert time.monotonic() < begin + WAIT_S, f"{WAIT_S} s, and this has not come: {what}"
        time.sleep(0.005)
    return found


def hangs(name):
    print(f"\n{name} has not ended within {TEST_S} s; its threads are at", file=sys.stderr, flush=True)
    faulthandler.dump_traceback()
    for d in Daemon.all:
        d.p.kill()
    os._exit(1)


class TestCase(unittest.TestCase):
    def run(self, result=None):
        limit = threading.Timer(TEST_S, hangs, (self.id(),))
        limit.daemon = True
        limit.start()
        try:
            return super().run(result)
        finally:
            limit.cancel()


class Daemon:
    all = []

    def __init__(self, exe, *args, env=None):
        self.dir = tempfile.TemporaryDirectory()
        self.log = []
        self.p = subprocess.Popen([exe, "--server.port=0", "--log.format=plain", "--pager.stats_file=" + self.path("stats"), *args],
                                  stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, env=dict(os.environ, **(env or {})))
        self.all.append(self)
        self.port = None
        for line in self.p.stderr:
            self.log.append(line)
            m = re.search(r"listening on port (\d+)", line)
            if m:
                self.port = int(m[1])
                break
        assert self.port, "".join(self.log)
        self.reader = threading.Thread(target=lambda: self.log.extend(self.p.stderr), daemon=True)
        self.reader.start()

    def path(self, name):
        return os.path.join(self.dir.name, name)

    def ask(self, path, body=None):
        """(status, bytes)"""
        data = json.dumps(body).encode() if body is not None else None
        req = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(req, timeout=WAIT_S) as r:
                return r.status, r.read()
        except urllib.error.HTTPError as e:
            return e.code, e.read()

    def wait_ready(self):
        def ready():
            try:
                return self.p.poll() is not None or self.ask("/health")[0] == 200
            except OSError:  # it is ending: its log says why
                return False
        wait_until("readiness", ready)
        assert self.p.poll() is None, "".join(self.log)
        return self

    def wait_log(self, pattern, times=1):
        """The log comes through a pipe: what has been written may yet have to arrive."""
        def found():
            text = "".join(self.log)
            assert len(re.findall(pattern, text)) >= times or self.p.poll() is None, text
            return len(re.findall(pattern, text)) >= times
        wait_until(f"'{pattern}' in the log", found)
        return re.search(pattern, "".join(self.log))

    def text(self):
        return self.ask("/metrics")[1].decode()

    def metrics(self):
        """Samples by name with labels; the sum over labels by the bare name."""
        out = {}
        for line in self.text().splitlines():
            if line.startswith("#"):
                continue
            key, value = line.rsplit(" ", 1)
            out[key] = float(value)
            if "{" in key:
                bare = key.split("{")[0]
                out[bare] = out.get(bare, 0) + float(value)
        return out

    def complete(self, tokens, prompt="Once upon a time", **more):
        status, body = self.ask("/v1/completions", dict(prompt=prompt, max_tokens=tokens, temperature=0, ignore_eos=True, **more))
        assert status == 200, body
        return json.loads(body)

    def stop(self):
        self.p.terminate()
        rc = self.p.wait(WAIT_S)
        self.reader.join()
        self.p.stderr.close()
        self.dir.cleanup()
        return rc


def families(text):
    """{name: (type, help)} of Prometheus text."""
    helps, types = {}, {}
    for line in text.splitlines():
        if line.startswith("# HELP "):
            _, _, name, words = line.split(" ", 3)
            helps[name] = words
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ", 3)
            types[name] = kind
    assert helps.keys() == types.keys()
    return {n: (types[n], helps[n]) for n in helps}


def labels(text):
    """{name: set of label names} of the samples."""
    out = {}
    for line in text.splitlines():
        m = re.match(r"(\w+)\{(.*)\} ", line)
        if m:
            name = re.sub(r"_(bucket|sum|count)$", "", m[1]) if "le=" in m[2] or m[1].endswith(("_sum", "_count")) else m[1]
            out.setdefault(name, set()).update(re.findall(r'(\w+)="', m[2]))
    return out


class DemoCopy(TestCase):
    """A test with a copy of the demo model that it may spoil: its folder, and one file of its weights."""

    def setUp(self):
        self.dir = tempfile.TemporaryDirectory()
        self.addCleanup(self.dir.cleanup)
        self.model = os.path.join(self.dir.name, "model")
        shutil.copytree(os.path.join(os.path.dirname(__file__), "..", "..", "config", "demo"), self.model)
        self.weights = next(os.path.join(self.model, n) for n in os.listdir(self.model) if n.endswith(".safetensors"))
