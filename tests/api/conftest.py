"""Servers for the API tests: the HTTP room around the fake engine (fake_engine.c says what it answers).

No test counts on who is quicker: the machine may be busy, and each process may lose the processor for seconds at any moment. What is waited for
is an event, and how long is bounded only so that what never comes is told by its name."""
import faulthandler
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import threading
import time

import openai
import pytest

ROOT = os.environ.get("EXPERTD_SOURCE_ROOT", os.path.join(os.path.dirname(__file__), "..", ".."))
TEMPLATES = os.path.join(ROOT, "tests", "data", "api")
PATIENCE = int(os.environ.get("EXPERTD_TEST_PATIENCE", "1"))  # sanitizers are slow
WAIT_S = 180 * PATIENCE  # for what comes at once unless something is wrong
TEST_S = 600 * PATIENCE  # a test takes some seconds


def in_time(begin, what, seconds=WAIT_S):
    assert time.monotonic() < begin + seconds, f"{seconds} s, and this has not come: {what}"


def pytest_configure(config):
    config.real_stderr = os.fdopen(os.dup(2), "w")  # not yet captured


def hangs(name, out):
    print(f"\n{name} has not ended within {TEST_S} s; its threads are at", file=out, flush=True)
    faulthandler.dump_traceback(out)
    for server in Server.all:
        server.process.kill()
    os._exit(1)


@pytest.fixture(autouse=True)
def ends(request):
    limit = threading.Timer(TEST_S, hangs, (request.node.nodeid, request.config.real_stderr))
    limit.daemon = True
    limit.start()
    yield
    limit.cancel()


with open(os.path.join(ROOT, "docs", "api.md"), encoding="utf-8") as doc:
    CODES = set(re.findall(r"`(\w+)`", doc.read().split("\n## Errors\n")[1].split("\n## ")[0]))


class Answer:
    def __init__(self, response):
        self.status = response.status
        self.headers = response.headers
        self.body = response.read()

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def error(self):
        error = self.json["error"]
        assert set(error) == {"message", "type", "param", "code"} | ({"details"} if error["code"] == "thread_unsupported_request" else set())
        assert error["message"] and error["code"] in CODES, error  # whatever is met, the reference has it
        return error


class Server:
    all = []

    def __init__(self, *options, model="fake", command=None, env=None, ready=True, port=None):
        command = command or [os.environ["API_FAKE"], "--server.port=0", f"--model.path={model}"]
        self.log_file = tempfile.TemporaryFile()  # a pipe that nobody reads would fill up
        self.process = subprocess.Popen(
            [*command, *options], stdout=subprocess.PIPE, stderr=self.log_file, text=True,
            env={**os.environ, "FAKE_MODEL_DIR": TEMPLATES, **(env or {})})
        self.all.append(self)
        self.port = port(self) if port else self.printed_port()
        self.url = f"http://127.0.0.1:{self.port}"
        begin = time.monotonic()
        while ready and not self.is_ready():
            in_time(begin, "readiness")
            time.sleep(0.005)

    def printed_port(self):
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            raise RuntimeError(self.log)
        return int(line.split()[1])

    def is_ready(self):
        if self.process.poll() is not None:
            raise RuntimeError(self.log)
        try:
            return self.get("/health").status == 200
        except OSError:
            return False

    def request(self, method, path, body=None, headers=None, timeout=WAIT_S):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        if isinstance(body, (dict, list)):
            body = json.dumps(body)
        if body is not None:
            headers = {"Content-Type": "application/json", **(headers or {})}
        try:
            connection.request(method, path, body=body, headers=headers or {})
            return Answer(connection.getresponse())
        finally:
            connection.close()

    def post(self, path, body, **more):
        return self.request("POST", path, body, **more)

    def get(self, path, **more):
        return self.request("GET", path, **more)

    def complete(self, prompt, **fields):
        return self.post("/v1/completions", {"prompt": prompt, **fields})

    def chat(self, content, **fields):
        return self.post("/v1/chat/completions", {"messages": [{"role": "user", "content": content}], **fields})

    def metrics(self):
        """Where the idle time-out is short, who loses the processor between connecting and asking is hung up on: asks again."""
        begin = time.monotonic()
        while True:
            try:
                if (a := self.get("/metrics")).status == 200:
                    return a.body.decode()
            except (OSError, http.client.HTTPException):
                if self.process.poll() is not None:
                    raise
            in_time(begin, "/metrics")

    def metric(self, name):
        return sum(float(v) for v in re.findall(rf"^{name}(?:\{{[^}}]*\}})? (\S+)$", self.metrics(), re.M))

    def wait_metric(self, name, value, seconds=WAIT_S):
        """Waits for an event that shows in a metric; never for a time."""
        begin = time.monotonic()
        while (now := self.metric(name)) != value:
            in_time(begin, f"{name} is {now}, not {value}", seconds)
            time.sleep(0.01)

    def wait_log(self, pattern):
        begin = time.monotonic()
        while not (found := re.search(pattern, self.log)):
            in_time(begin, f"'{pattern}' in the log:\n{self.log}")
            time.sleep(0.01)
        return found

    def settle(self):
        """Requests are counted, and told in the log, just after their last byte went out."""
        self.wait_metric("expertd_http_in_flight", 1)  # the one that reads the metrics

    def socket(self, data=b""):
        s = socket.create_connection(("127.0.0.1", self.port), timeout=WAIT_S)
        s.sendall(data)
        return s

    def raw(self, data):
        """Everything that the server sends back before it closes."""
        with self.socket(data) as s:
            return read_all(s)

    def alive(self):
        return self.process.poll() is None and self.get("/health").status == 200

    @property
    def log(self):
        fd = self.log_file.fileno()  # its offset is where the server writes
        return os.pread(fd, os.fstat(fd).st_size, 0).decode(errors="replace")

    def stop(self):
        """Ends the server as systemd does and says how it ended."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.communicate(timeout=WAIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
            raise
        return self.process.returncode


class Daemon(Server):
    """expertd itself; its port is in the log, and READY is when /health says so."""

    def __init__(self, *options):
        demo = os.path.join(ROOT, "config", "demo")
        super().__init__("--model", demo, "--server.port=0", "--model.served_model_name=demo", *options,
                         command=[os.environ["EXPERTD"], "-c", os.path.join(demo, "expertd.conf")], port=Daemon.port_in_log)

    def port_in_log(self):
        begin = time.monotonic()
        while not (found := re.search(r"listening on port (\d+)", self.log)):
            if self.process.poll() is not None:
                raise RuntimeError(self.log)
            in_time(begin, "a port")
            time.sleep(0.005)
        return int(found[1])


def crowd(n, client):
    """Runs client(0), client(1), ... client(n - 1) at once."""
    threads = [threading.Thread(target=client, args=(i,)) for i in range(n)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()


def read_all(s):
    out = b""
    try:
        while piece := s.recv(65536):
            out += piece
    except ConnectionResetError:
        pass
    return out


def events(body):
    """The JSON of an event stream's chunks; checks its form and its end."""
    if isinstance(body, bytes):
        body = body.decode()
    lines = [line for line in body.split("\n\n") if line]
    assert lines[-1] == "data: [DONE]", lines[-1:]
    return [json.loads(line[6:]) for line in lines[:-1] if not line.startswith(":")]


def text_of(answer):
    """Of an answer that ended by itself."""
    assert answer.status == 200, answer.body
    c = answer.json["choices"][0]
    assert c["finish_reason"] == "stop", c
    return c["message"]["content"] if "message" in c else c["text"]


def http_post(path, body, extra=b"", version=b"1.1"):
    if isinstance(body, (dict, list)):
        body = json.dumps(body).encode()
    return (b"POST " + path.encode() + b" HTTP/" + version + b"\r\nHost: localhost\r\nContent-Type: application/json\r\n" + extra +
            b"Content-Length: %d\r\n\r\n" % len(body) + body)


@pytest.fixture
def start():
    """Starts servers with options of a test's own; each must end cleanly."""
    servers = []

    def start_one(*options, **more):
        servers.append(Server(*options, **more))
        return servers[-1]

    yield start_one
    for server in servers:
        assert server.stop() == 0, server.log


@pytest.fixture(scope="module")
def server():
    s = Server("--server.max_body=1MiB", "--server.admin=yes", "--server.max_n=8")
    yield s
    assert s.metric("fake_live") == 0, "a request was left behind"
    assert s.stop() == 0, s.log


@pytest.fixture(scope="module")
def daemon(request):
    """The whole daemon with the demo model, and with the options in the module's DAEMON_OPTIONS."""
    d = Daemon(*getattr(request.module, "DAEMON_OPTIONS", ()))
    yield d
    assert d.stop() == 0, d.log


@pytest.fixture(scope="module")
def client(daemon):
    return openai.OpenAI(base_url=daemon.url + "/v1", api_key="none", max_retries=0)
