"""HTTP itself: methods, limits, broken requests, time-outs, keep-alive, keys, CORS."""
import http.client
import json
import os
import re
import select
import signal
import socket
import threading
import time

import pytest

from conftest import WAIT_S, http_post, in_time, read_all


def status_of(raw):
    return int(raw.split(b" ", 2)[1]) if raw.startswith(b"HTTP/1.1 ") else None


def quickly(attempt):
    """For clients that a server with a time-out of a second must not find late: of one that had lost the processor meanwhile, and says so by None
    or an error of its socket, nothing is known. It tries again."""
    begin = time.monotonic()
    while True:
        try:
            if (answer := attempt()):
                return answer
        except (OSError, http.client.HTTPException):
            pass
        in_time(begin, "an answer to a client that is quick enough")


def late(server, data):
    """What a client gets of whose request no more comes. (Nothing, if none of it had come in time, or the server itself had lost the processor.)"""
    return quickly(lambda: server.raw(data))


def late_alone(start, data):
    """The same, and a server that has answered nobody else."""
    def attempt():
        server = start("--server.idle_timeout=1s", "--server.heartbeat=none")
        return (answer := server.raw(data)) and (server, answer)
    return quickly(attempt)


def read_answer(s):
    """One whole answer, and no byte of what follows."""
    answer = b""
    while b"\r\n\r\n" not in answer or len(answer.split(b"\r\n\r\n", 1)[1]) < int(re.search(rb"Content-Length: (\d+)", answer)[1]):
        piece = s.recv(65536)
        assert piece, answer
        answer += piece
    return answer


def test_every_endpoint_answers(server):
    for path in ["/", "/health", "/metrics", "/status.json", "/v1/models", "/v1/models/fake", "/version"]:
        assert server.get(path).status == 200, path
    assert server.post("/tokenize", {"prompt": "ab"}).json["tokens"] == [97, 98]
    assert server.post("/detokenize", {"tokens": [97, 98]}).json == {"prompt": "ab"}


def test_an_unknown_path_is_404(server):
    a = server.get("/v1/nothing")
    assert a.status == 404 and a.error["code"] == "unknown_url" and "did you mean" not in a.error["message"]


def test_what_users_of_other_servers_ask_for_is_answered_with_where_it_is(server):
    """And where the answer names an endpoint, it is there."""
    for paths, words in [("/v1 /v1/ //v1", "base URL"), ("/props /slots /server_info /v1/internal/model/info", "/v1/models"), ("/ping /readyz /livez", "/health"),
                         ("/infill /generate", "/v1/completions"), ("/apply-template", "/tokenize"), ("/v1/chat", "/v1/chat/completions"), ("/v1/complete", "/v1/messages"),
                         ("/api/chat /api/tags /api/generate /api/show", "no Ollama"), ("/v1/embeddings /embedding /v1/rerank /v1/audio/speech /v1/images/generations", "reads and writes text"),
                         ("/v1/files /v1/batches /v1/messages/batches", "nothing is stored"), ("/docs /openapi.json", "docs/api.md")]:
        for path in paths.split():
            for method in ("GET", "POST"):
                a = server.request(method, path)
                assert (a.status, a.error["code"]) == (404, "unknown_url") and words in a.error["message"], a.body
                for method, there in re.findall(r"\b(GET|POST) (/\S+)", a.error["message"]):
                    assert server.request(method, there, {} if method == "POST" else None).status in (200, 400), there
    for path in ("/v1/chatx", "/propsx", "/api/chats", "/v1x", "/"):
        a = server.post(path, {})
        assert a.status in (404, 405) and "here (POST): " not in a.error["message"], a.body


def test_a_base_url_without_v1_or_with_two_is_told_so(server):
    for method, path, meant in [("POST", "/chat/completions", "/v1/chat/completions"), ("GET", "/models", "/v1/models"),
                                ("POST", "/v1/v1/completions", "/v1/completions"), ("POST", "/v1/tokenize", "/tokenize"),
                                ("POST", "/v1/chat/completion", "/v1/chat/completions"), ("POST", "/completion", "/v1/completions"),
                                ("POST", "/api/v1/chat/completions", "/v1/chat/completions"), ("POST", "/v1/completion", "/v1/completions"),
                                ("GET", "/api/models", "/v1/models"), ("GET", "/helth", "/health"), ("GET", "//v1/models", "/v1/models"),
                                ("POST", "/v1//chat/completions", "/v1/chat/completions"), ("POST", "//chat//completions", "/v1/chat/completions"),
                                ("POST", "/anthropic/v1/messages", "/v1/messages")]:
        a = server.request(method, path)
        assert a.status == 404 and f"did you mean '{meant}'?" in a.error["message"], a.body
    a = server.request("POST", "/v1/admin/fallback")
    assert a.status == 404 and "did you mean" not in a.error["message"], a.body


def test_a_wrong_method_is_405_with_allow(server):
    a = server.request("PUT", "/v1/completions")
    assert a.status == 405 and a.headers["Allow"] == "POST, OPTIONS" and a.error
    a = server.post("/health", {})
    assert a.status == 405 and a.headers["Allow"] == "GET, HEAD, OPTIONS"
    assert server.request("BREW", "/health").status == 405


def test_head_is_get_without_a_body(server):
    a = server.request("HEAD", "/version")
    assert a.status == 200 and a.body == b"" and int(a.headers["Content-Length"]) > 0


def test_media_types(server):
    assert server.post("/v1/completions", "{}", headers={"Content-Type": "text/plain"}).status == 415
    assert server.post("/v1/completions", "{}", headers={"Content-Encoding": "gzip"}).status == 415
    ok = server.post("/v1/completions", '{"prompt":"a"}', headers={"Content-Type": "Application/JSON; charset=utf-8"})
    assert ok.status == 200


def test_a_large_body_is_413(server):
    a = server.post("/v1/completions", b"x" * (1 << 20) + b"y")
    assert a.status == 413 and a.error["type"] == "invalid_request_error"
    assert server.alive()


def test_a_large_chunked_body_is_413_while_it_is_being_sent(server):
    with server.socket(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                       b"Transfer-Encoding: chunked\r\n\r\n") as s:
        chunk = b"10000\r\n" + b" " * 65536 + b"\r\n"
        try:
            for _ in range(64):  # never ends by itself
                s.sendall(chunk)
        except (BrokenPipeError, ConnectionResetError):
            pass
        answer = s.recv(65536)
    assert status_of(answer) == 413 and b'"error"' in answer
    assert server.alive()


@pytest.mark.parametrize("head,status", [
    (b"POST /v1/completions HTTP/1.1\r\nContent-Length: 1000", 401),
    (b"POST /v1/completions HTTP/1.1\r\nAuthorization: Bearer key\r\nContent-Length: 99999999", 413),
    (b"POST /nope HTTP/1.1\r\nContent-Length: 1000", 404), (b"POST /v1/models HTTP/1.1\r\nContent-Length: 1000", 405),
    (b"POST /v1/completions HTTP/1.1\r\nAuthorization: Bearer key\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked", 415),
])
def test_what_the_header_decides_is_told_before_the_body(start, head, status):
    server = start("--server.api_key=key", "--server.idle_timeout=1h")
    with server.socket(head + b"\r\nHost: localhost\r\n\r\n2\r") as s:
        answer = read_all(s)
    head = answer.split(b"\r\n\r\n")[0]
    assert status_of(answer) == status and b"\r\nx-request-id: req-" in head and b"\r\nConnection: close" in head
    assert (b"\r\nWWW-Authenticate: Bearer" in head) == (status == 401)
    assert (b"\r\nAllow: GET, HEAD, OPTIONS" in head) == (status == 405)
    json.loads(answer.split(b"\r\n\r\n")[1])
    server.settle()
    server.wait_log(rf" {status} [0-9.]+ ms")


def test_who_sends_all_of_a_large_body_first_reads_the_error_too(start):
    import openai
    server = start("--server.api_key=key", "--server.max_body=64MiB")
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="wrong", max_retries=0)

    def attempt():
        with pytest.raises(openai.APIError) as e:
            client.completions.create(model="fake", prompt="x" * (30 << 20))
        return None if isinstance(e.value, openai.APIConnectionError) else e.value  # who sends nothing for seconds is hung up on
    error = quickly(attempt)
    assert isinstance(error, openai.AuthenticationError) and error.code == "invalid_api_key"


def test_a_missing_host_is_an_error_like_any_other(server):
    answer = server.raw(b"GET /health HTTP/1.1\r\n\r\n")
    assert status_of(answer) == 400 and answer.count(b"HTTP/1.1 400") == 1
    assert "Host" in json.loads(answer.split(b"\r\n\r\n")[1])["error"]["message"]
    assert status_of(server.raw(b"GET /health HTTP/1.0\r\n\r\n")) == 200


MACHINE = socket.gethostname()
OUR_HOSTS = ["", "127.0.0.1", "127.0.0.1:8080", "127.1", "10.1.2.3:80", "0.0.0.0:8080", "[::1]:8080", "[::1]", "[fe80::1%25eth0]:8080",
             "[::ffff:127.0.0.1]", "localhost", "localhost:8080", "LocalHost", "localhost.:8080", "chat.localhost:8080", MACHINE,
             MACHINE.upper() + ":8080", MACHINE.split(".")[0] + ".local"]
OTHER_HOSTS = ["evil.example", "evil.example:8080", "localhost.evil.example", "notlocalhost", "127.0.0.1.evil.example", "1.2.3.4.5", "evil.local",
               "x" + MACHINE, MACHINE + ".evil.example", "host.docker.internal:8080", "some-service", "[evil.example]", "[::1", "[::1]evil.example:8080",
               ":8080", ".", "*", "127.0.0.1 evil.example", "a" * 5000, "\xe4.example"]


def test_a_page_whose_name_is_rebound_to_loopback_gets_nothing(server):
    """Its requests look like any others, but for the name in Host."""
    for host in OUR_HOSTS:
        assert server.get("/health", headers={"Host": host}).status == 200, host
    for host in OTHER_HOSTS:
        a = server.get("/health", headers={"Host": host})
        assert a.status == 403 and a.error["code"] == "host_not_allowed" and a.error["type"] == "permission_error", host
        assert "server.allowed_hosts" in a.error["message"] and (len(host) > 80 or "\xe4" in host or f"'{host}'" in a.error["message"])
    evil = {"Host": "evil.example:8080", "Origin": "http://evil.example:8080"}
    for path in ["/", "/chat", "/metrics", "/status.json", "/version", "/v1/models", "/v1/responses/x", "/nowhere"]:
        assert server.get(path, headers=evil).error["code"] == "host_not_allowed", path
    for path in ["/v1/completions", "/v1/chat/completions", "/v1/responses", "/tokenize", "/admin/fallback", "/health"]:
        assert server.post(path, {"prompt": "ab", "state": "none"}, headers=evil).error["code"] == "host_not_allowed", path
    assert server.request("OPTIONS", "/v1/completions", headers=evil).error["code"] == "host_not_allowed"
    assert server.post("/v1/messages", {}, headers=evil).json["type"] == "error"
    assert server.log.count("server.allowed_hosts") == 1 and "(said once)" in server.log


def test_names_that_are_allowed(start):
    def status(server, host, **headers):
        return server.get("/v1/models", headers={"Host": host, **headers}).status
    named = start("--server.allowed_hosts=LLM, gpu.example.com, dot.example.")
    assert [status(named, h) for h in ["llm", "llm:8080", "GPU.example.com.", "dot.example", "dot.example.", "localhost", "127.0.0.1", "evil.example", "x.gpu.example.com"]] \
        == [200] * 7 + [403] * 2
    anything = start("--server.allowed_hosts=*")
    assert all(status(anything, h) == 200 for h in OTHER_HOSTS)
    key = {"Authorization": "Bearer k"}
    assert status(start("--server.api_key=k"), "evil.example", **key) == 200  # the page does not know the key
    both = start("--server.api_key=k", "--server.allowed_hosts=llm")
    assert [status(both, h, **key) for h in ["llm", "evil.example"]] == [200, 403]


def test_a_web_page_says_application_json(start, server):
    page = {"Origin": "https://evil.example"}
    body = http_post("/v1/completions", {"prompt": "ab"}).split(b"\r\n\r\n")[1]

    def ask(s, extra):
        return status_of(s.raw(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" + extra +
                               b"Content-Length: %d\r\n\r\n" % len(body) + body))
    assert ask(server, b"") == 200
    assert ask(server, b"Origin: https://evil.example\r\n") == 415
    assert ask(server, b"Origin: null\r\n") == 415
    assert server.post("/v1/completions", {"prompt": "ab"}, headers=page).status == 200  # browsers ask by OPTIONS before
    cors = start("--server.cors_origin=https://chat.example")
    assert ask(cors, b"Origin: https://chat.example\r\n") == 200
    assert ask(cors, b"Origin: https://evil.example\r\n") == 415


def test_a_client_that_waits_for_100_continue_is_told_first(server):
    with server.socket(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                       b"Expect: 100-continue\r\nContent-Length: 99999999\r\n\r\n") as s:
        assert status_of(s.recv(65536)) == 413
    with server.socket(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                       b"Expect: 100-continue\r\nContent-Length: 14\r\n\r\n") as s:
        assert s.recv(65536).startswith(b"HTTP/1.1 100 ")
        s.sendall(b'{"prompt":"a"}')
        assert status_of(s.recv(65536)) == 200


@pytest.mark.parametrize("data", [
    b"\r\n\r\n\r\n",
    b"GET\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET /health HTTP/1.1\r\n\r\n",  # no Host
    b"\x00\x01\x02\xff\xfe\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: localhost\r\nbroken header\r\n\r\n",
    b"GET /" + b"a" * 100000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 100000 + b"\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999999999999999\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"ffffffffffffffffffff\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS to a plain port
])
def test_broken_requests_harm_nobody(server, data):
    with server.socket() as s:
        try:
            s.sendall(data)
            s.shutdown(socket.SHUT_WR)
        except (BrokenPipeError, ConnectionResetError, OSError):
            pass
        answer = read_all(s)
    assert answer == b"" or status_of(answer) in (400, 404, 413, 414, 431, 505), answer[:100]
    assert server.alive()


JSON = b"Content-Type: application/json\r\n"


@pytest.mark.parametrize("headers", [
    b"Content-Length: 5\r\nContent-Length: 14\r\n", b"Content-Length: 14\r\nContent-Length: 14\r\n",
    b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
    b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", b"Transfer-Encoding: gzip, chunked\r\n",
    b"Transfer-Encoding: xchunked\r\n", b"Transfer-Encoding: identity\r\n", b"Content-Length: 14\r\nHost: y\r\n",
    b"Content-Length : 14\r\n", b"Content-Length\t: 14\r\n", b"Transfer-Encoding : chunked\r\nContent-Length: 14\r\n",
])
def test_a_request_whose_end_is_doubtful_is_refused_and_nothing_behind_it_is_read(server, headers):
    """What follows it could be another client's request on a connection of a proxy."""
    behind = r'expertd_http_requests_total\{endpoint="/version",status="200"\} (\S+)'

    def answered():
        return re.findall(behind, server.get("/metrics").body.decode())
    before = answered()
    a = server.raw(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n" + JSON + headers + b"\r\n" + b'{"prompt":"a"}' +
                   b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert status_of(a) == 400 and a.count(b"HTTP/1.1") == 1 and b'"version"' not in a, a
    server.settle()
    assert answered() == before


def test_one_length_of_either_kind_is_fine(server):
    body = b'{"prompt":"ab","max_tokens":2}'
    chunks = b"".join(b"1;x=y\r\n%c\r\n" % c for c in body) + b"0\r\nTrailer: z\r\n\r\n"
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" + JSON
    for rest in [b"Content-Length: %d\r\n\r\n" % len(body) + body, b"Transfer-Encoding: chunked\r\n\r\n" + chunks,
                 b"transfer-encoding: Chunked\r\n\r\n" + chunks]:
        assert b'"text":"ab"' in server.raw(head + rest)


@pytest.mark.parametrize("url,status", [
    (b"http://somewhere/version", 200), (b"HTTP://x:8080/version?a=b", 200), (b"https://x/version", 200), (b"http://x", 200),
    (b"http://x/nope", 404), (b"/version%00", 404), (b"/%00/version", 404), (b"/version%00x?y=%00", 404), (b"/v1/../version", 404),
    (b"//version", 404), (b"/version/", 200), (b"/version//", 404), (b"/%76ersion", 200), (b"*", 404),
])
def test_forms_of_urls(server, url, status):
    a = server.raw(b"GET " + url + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert status_of(a) == status, a


def test_who_is_quick_is_never_late(start):
    """The clocks of all connections are looked at once a second, the oldest last: a request that begins meanwhile is not late by
    600 years."""
    server = start("--server.idle_timeout=1h", "--server.max_connections=2000")
    busy = [server.socket() for _ in range(8)]
    server.wait_metric("expertd_http_connections", 9)
    idle = [server.socket() for _ in range(900)]
    codes, end = [], time.monotonic() + 6

    def ask(s):
        while time.monotonic() < end:
            s.sendall(http_post("/detokenize", {"tokens": [65]}))
            codes.append(status_of(read_answer(s)))
    threads = [threading.Thread(target=ask, args=(s,)) for s in busy]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert set(codes) == {200} and server.metric("expertd_http_timeouts_total") == 0
    for s in busy + idle:
        s.close()


def test_connections_that_are_merely_open_give_way(start):
    server = start("--server.max_connections=64", "--server.threads=2", "--server.idle_timeout=1h")
    idle = [server.socket() for _ in range(400)]
    for _ in range(20):
        assert server.get("/health").status == 200  # a probe has not an hour
    assert read_all(idle[0]) == b""  # who has been idle longest goes first
    assert server.metric("expertd_http_connections_evicted_total") >= 336
    assert server.metric("expertd_http_connections_refused_total") == 0
    used = server.socket(http_post("/v1/completions", {"prompt": "[never]"}))
    server.wait_metric("fake_live", 1)
    more = [server.socket() for _ in range(80)]
    assert server.get("/health").status == 200
    assert server.metric("fake_live") == 1  # who is being answered stays
    for s in [*idle, *more, used]:
        s.close()


def test_half_headers_give_way_after_a_second(start):
    server = start("--server.max_connections=16", "--server.threads=2", "--server.idle_timeout=1h")
    half = [server.socket(b"GET /health HT") for _ in range(60)]
    quickly(lambda: server.get("/health").status == 200)
    told = []
    while not told:  # a second after they came one of them had to go; which came first is up to two threads
        readable, _, _ = select.select(half, [], [], WAIT_S)
        assert readable, "nobody was hung up on"
        told = [s for s in readable if b"408" in read_all(s)]
        half = [s for s in half if s not in readable] + told
    for s in half:
        s.close()


def test_beyond_the_limit_of_busy_connections_the_answer_is_503(start):
    server = start("--server.max_connections=8", "--server.threads=2")
    never = http_post("/v1/completions", {"prompt": "[never]"})
    busy = []
    for i in range(8):
        busy.append(server.socket(never))
        server.wait_metric("fake_live", i + 1)
    while True:  # from this machine a few more are taken
        a = server.raw(http_post("/v1/completions", {"prompt": "x"}, b"Connection: close\r\n"))
        if status_of(a) == 503:
            break
        assert status_of(a) == 200
        busy.append(server.socket(never))
    head, body = a.split(b"\r\n\r\n", 1)
    assert b"\r\nRetry-After: 1" in head and b"\r\nConnection: close" in head
    error = json.loads(body)["error"]
    assert error["type"] == "service_unavailable" and "busy" in error["message"]
    for s in busy:
        s.close()
    quickly(lambda: status_of(server.raw(http_post("/v1/completions", {"prompt": "x"}, b"Connection: close\r\n"))) == 200)


def test_few_open_files_mean_few_connections_not_a_deaf_server(start):
    command = ["sh", "-c", 'ulimit -n 160; exec "$@"', "sh", os.environ["API_FAKE"], "--server.port=0", "--model.path=fake"]
    server = start("--server.threads=2", "--server.idle_timeout=1h", command=command)
    assert "160 open files are allowed: at most 24 connections" in server.log
    idle = [server.socket() for _ in range(200)]
    assert server.get("/health").status == 200
    for s in idle:
        s.close()


def test_a_strange_url_is_never_echoed_raw(server):
    a = server.raw(b"GET /%ff%00%0d%0aX:y HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    head, _, body = a.partition(b"\r\n\r\n")
    assert status_of(a) == 404 and b"\r\nX:y" not in head
    body.decode("utf-8")
    assert json.loads(body)["error"]


def test_keep_alive_and_pipelining(server):
    one = http_post("/v1/completions", {"prompt": "ab"})
    answers = server.raw(one * 3 + http_post("/v1/completions", {"prompt": "last"}, b"Connection: close\r\n"))
    assert answers.count(b"HTTP/1.1 200 OK") == 4
    assert answers.count(b'"text":"ab"') == 3 and answers.rstrip().count(b'"text":"last"') == 1


def test_http_1_0_streams_until_close(server):
    a = server.raw(http_post("/v1/completions", {"prompt": "ab", "stream": True}, version=b"1.0"))
    assert b"chunked" not in a.lower() and a.endswith(b"data: [DONE]\n\n")


def test_request_ids(server):
    assert server.get("/version", headers={"x-request-id": "my-id.1"}).headers["x-request-id"] == "my-id.1"
    for bad in ["a b", "a" * 65, "<script>", ""]:
        assert server.get("/version", headers={"x-request-id": bad}).headers["x-request-id"].startswith("req-")
    assert len({server.get("/version").headers["x-request-id"] for _ in range(20)}) == 20


def test_half_a_header_is_408(start):
    server, answer = late_alone(start, b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
    assert status_of(answer) == 408
    assert server.metric("expertd_http_timeouts_total") == 1


def test_a_header_that_drips_in_is_408(start):
    server = start("--server.idle_timeout=1s", "--server.heartbeat=none")

    def drip():
        with server.socket(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Slow: ") as s:
            s.settimeout(0.2)
            while True:
                try:
                    s.sendall(b"a")
                    return s.recv(4096)
                except TimeoutError:
                    continue
    assert status_of(quickly(drip)) == 408


def test_a_body_that_goes_on_is_not_idle_but_may_be_too_slow(start):
    """Longer than the idle time-out it may take while something comes; not for ever, or who drips would hold connections."""
    server = start("--server.idle_timeout=1s", "--server.heartbeat=none")
    data = http_post("/v1/completions", {"prompt": "abcdefgh", "max_tokens": 8})

    def slowly():
        """In 2.4 s or so; None when a byte came too late."""
        with server.socket(data[:-8]) as s:
            s.settimeout(0.3)
            begin = moved = time.monotonic()
            for i in range(8):
                try:
                    early = s.recv(4096)
                    assert time.monotonic() - moved > 0.9, f"answered before the end: {early}"
                    return None
                except TimeoutError:
                    s.sendall(data[len(data) - 8 + i:][:1])
                    moved, before = time.monotonic(), moved
                    if moved - before > 0.9:
                        return None
            s.settimeout(WAIT_S)
            return s.recv(4096), time.monotonic() - begin
    answer, seconds = quickly(slowly)
    assert status_of(answer) == 200 and seconds > 2

    def drip():
        with server.socket(http_post("/v1/completions", {"prompt": "x" * 200})[:-200]) as s:
            s.settimeout(0.2)
            while True:
                try:
                    return s.recv(4096)
                except TimeoutError:
                    s.sendall(b"x")
    answer = quickly(drip)
    assert status_of(answer) == 408 and b'"incomplete_request"' in answer


def test_who_waits_for_a_server_that_has_no_time_is_not_late(start):
    """What has arrived was in time, whenever the server comes to read it: headers on connections that had been idle, and the rest of bodies."""
    server = start("--server.idle_timeout=1s", "--server.heartbeat=none")
    version, body = b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n", http_post("/v1/completions", {"prompt": "ab"})

    def answer_of(s):
        with s:
            return s.recv(65536)

    def attempt():
        idle = [server.socket(version) for _ in range(16)]
        for s in idle:
            s.recv(65536)
        begin = time.monotonic()
        half = [server.socket(body[:-8]) for _ in range(16)]
        server.process.send_signal(signal.SIGSTOP)
        in_good_time = time.monotonic() - begin < 0.9
        try:
            for s, rest in [*((s, version) for s in idle), *((s, body[-8:]) for s in half)]:
                s.sendall(rest)
            time.sleep(1.5)
        finally:
            server.process.send_signal(signal.SIGCONT)
        return in_good_time and [status_of(answer_of(s)) for s in [*idle, *half]]

    for _ in range(3):
        answers = quickly(attempt)
        assert set(answers) <= {200, None} and 200 in answers, answers  # None: after four seconds it is hung up on as merely open


def test_half_a_body_is_408(start):
    server, answer = late_alone(start, http_post("/v1/completions", {"prompt": "ab"})[:-4])
    assert status_of(answer) == 408 and b"\r\nx-request-id: req-" in answer
    server.settle()
    name = 'expertd_http_requests_total{endpoint="/v1/completions",status='
    assert server.metric(name + '"408"}') == 1, "counted as what was sent"
    assert name + '"499"}' not in server.metrics()
    server.wait_log(r"POST /v1/completions 408 [0-9.]+ ms")


def test_an_idle_connection_is_closed_without_a_word(start):
    server = start("--server.idle_timeout=1s", "--server.heartbeat=none")
    with server.socket() as s:
        assert read_all(s) == b""
    assert late(server, b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n").count(b"HTTP/1.1") == 1


def test_keys(start, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("# of the tests\nthird-key\n\n")
    server = start("--server.api_key=first-key, second-key", f"--server.api_key_file={keys}")
    for key in ["first-key", "second-key", "third-key"]:
        assert server.get("/v1/models", headers={"Authorization": f"Bearer {key}"}).status == 200
    for value in ["Bearer first-ke", "Bearer first-keyy", "Bearer ", "Basic first-key", "first-key", "Bearer # of the tests"]:
        a = server.get("/v1/models", headers={"Authorization": value})
        assert a.status == 401 and a.error["code"] == "invalid_api_key", value
        assert a.headers["WWW-Authenticate"].startswith("Bearer")
    a = server.complete("x")
    assert a.status == 401 and a.error["type"] == "authentication_error"
    for path in ["/health", "/metrics", "/version"]:
        assert server.get(path).status == 200, path


def test_keys_that_are_none_let_nobody_in(start, tmp_path):
    from conftest import Server
    empty = tmp_path / "keys"
    empty.write_text("# nothing\n")
    for path in [empty, tmp_path / "absent"]:
        with pytest.raises(RuntimeError, match="api_key_file"):
            Server(f"--server.api_key_file={path}")
    for none in [",", " , ,", " "]:
        with pytest.raises(RuntimeError, match="server.api_key holds no key"):
            Server(f"--server.api_key={none}")
    assert start("--server.api_key=#1").get("/v1/models").status == 401, "only a file has comments"


def test_cors(start):
    server = start("--server.cors_origin=https://example.org")
    a = server.request("OPTIONS", "/v1/chat/completions", headers={"Origin": "https://example.org"})
    assert a.status == 204 and a.body == b""
    assert a.headers["Access-Control-Allow-Origin"] == "https://example.org" and a.headers["Vary"] == "Origin"
    assert "POST" in a.headers["Access-Control-Allow-Methods"] and "Authorization" in a.headers["Access-Control-Allow-Headers"]
    assert server.get("/v1/models").headers["Access-Control-Allow-Origin"] == "https://example.org"

    def allowed(asked):
        return server.request("OPTIONS", "/v1/chat/completions", headers={
            "Origin": "https://example.org", "Access-Control-Request-Headers": asked}).headers["Access-Control-Allow-Headers"]

    stainless = "authorization,content-type,x-stainless-arch,x-stainless-os"  # OpenAI's JavaScript client in a browser
    assert allowed(stainless) == stainless
    for strange in ["", "a;b", "a: b", "x" * 3000]:
        assert allowed(strange) == "Authorization, Content-Type, x-request-id"


def test_an_answer_to_half_a_body_has_the_cors_headers(start):
    server = start("--server.cors_origin=https://example.org", "--server.max_body=4KiB", "--server.idle_timeout=1s",
                   "--server.heartbeat=none")
    too_large = late(server, http_post("/v1/completions", {"prompt": "x" * 5000})[:-4])
    too_late = late(server, http_post("/v1/completions", {"prompt": "x"})[:-4])
    for answer, status in ((too_large, 413), (too_late, 408)):
        assert status_of(answer) == status and b"\r\nAccess-Control-Allow-Origin: https://example.org\r\n" in answer


def test_a_page_may_read_what_the_clients_look_at(start):
    """The request's id under both names, and when to try again: whether the answer goes past the HTTP library or through it."""
    server = start("--server.cors_origin=https://example.org", "--server.max_body=4KiB")
    for a in (server.post("/v1/messages", {"x": 1}), server.post("/v1/messages", {"x": "x" * 5000}), server.complete("[abort]"), server.get("/v1/messages")):
        exposed = {h.strip().lower() for h in a.headers["Access-Control-Expose-Headers"].split(",")}
        said = {h.lower() for h in a.headers} & {"x-request-id", "request-id", "x-should-retry", "retry-after"}
        assert "x-request-id" in said and said <= exposed, (a.status, said, exposed)


def test_without_cors_there_are_no_cors_headers(server):
    assert "Access-Control-Allow-Origin" not in server.request("OPTIONS", "/v1/models").headers


def test_admin_is_off_unless_configured(start, server):
    assert start().post("/admin/fallback", {"state": "fallback"}).status == 404
    assert server.post("/admin/fallback", {"state": "fallback"}).json == {"state": "fallback"}
    assert server.get("/status.json").json["engine"]["fallback"]["forced"] == 2
    assert server.post("/admin/fallback", {"state": "none"}).status == 200
    a = server.post("/admin/fallback", {"state": "sideways"})
    assert a.status == 400 and a.error["param"] == "state"


def test_loading(start):
    server = start(model="loading", ready=False)
    a = server.get("/health")
    assert a.status == 503 and a.json["status"] == "loading" and 0 <= a.json["progress"] <= 1
    a = server.complete("x")
    assert a.status == 503 and a.error["code"] == "loading" and int(a.headers["Retry-After"]) > 0
    assert server.get("/metrics").status == 200 and server.get("/status.json").status == 200
    server.process.send_signal(signal.SIGHUP)  # it is loaded
    begin = time.monotonic()
    while not server.is_ready():
        in_time(begin, "readiness")


def test_loading_says_what_is_missing(start, tmp_path):
    """The engine is ready, and the template cannot be read to its end yet."""
    pipe = str(tmp_path / "template")
    os.mkfifo(pipe)
    server = start("--model.chat_template=" + pipe, ready=False)
    with open(pipe, "w") as f:  # it has begun to read
        a = server.get("/health")
        assert (a.status, a.json["status"], a.json["what"]) == (503, "loading", "chat template"), a.body
        f.write("{{ messages[0].content }}")
    begin = time.monotonic()
    while not server.is_ready():
        in_time(begin, "readiness")


def test_busy_is_429_with_retry_after(start):
    server = start("--server.max_queue=1")
    with server.socket(http_post("/v1/completions", {"prompt": "[never]"})):
        server.wait_metric("fake_live", 1)
        a = server.complete("x")
        assert a.status == 429 and a.error["type"] == "rate_limit_error" and int(a.headers["Retry-After"]) > 0


def test_a_request_has_a_deadline(start):
    server = start("--server.request_timeout=1s")
    a = server.complete("[never]")
    assert a.status == 408 and a.error["type"] == "timeout_error" and a.error["code"] == "request_timeout"
    assert a.headers["x-should-retry"] == "false", "the client would compute it three times"


def test_openais_client_asks_once_for_what_takes_too_long(start):
    import openai
    server = start("--server.request_timeout=1s")
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=2)
    with pytest.raises(openai.APIStatusError) as e:
        client.completions.create(model="fake", prompt="[never]")
    assert e.value.status_code == 408
    assert server.metric("fake_submitted_total") == 1


def test_each_error_has_a_code(start, server):
    small = start("--server.max_body=4KiB", "--server.max_queue=1")
    got = {
        "request_too_large": small.complete("x" * 5000),
        "unsupported_media_type": server.post("/v1/completions", "{}", headers={"Content-Type": "text/plain"}),
        "invalid_json": server.post("/v1/completions", "{"),
        "unknown_url": server.get("/nope"),
        "method_not_allowed": server.get("/v1/completions"),
        "internal_error": server.complete("[error]"),
        "invalid_request": server.post("/v1/completions", "[" * 200),
    }
    with small.socket(http_post("/v1/completions", {"prompt": "[never]"})):
        small.wait_metric("fake_live", 1)
        got["queue_full"] = small.complete("x")
    for code, a in got.items():
        assert a.error["code"] == code, (code, a.body)
        assert "x-should-retry" not in a.headers


def test_more_connections_than_the_limit_are_served_or_told_to_come_again(start):
    server = start("--server.max_connections=8")
    codes = []

    def ask():
        status = 503
        while status == 503:
            try:
                status = server.complete("x" * 20).status
            except (OSError, http.client.HTTPException):  # of very many that are refused some are closed while they still send
                pass
        codes.append(status)
    threads = [threading.Thread(target=ask) for _ in range(40)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert codes == [200] * 40


def test_sigterm_finishes_what_runs(start):
    server = start()
    with server.socket(http_post("/v1/completions", {"prompt": "[drain]" + "x" * 600, "max_tokens": 600}, b"Connection: close\r\n")) as s:
        server.wait_metric("fake_live", 1)
        server.process.terminate()
        assert status_of(read_all(s)) == 200


def test_sigterm_ends_idle_connections_and_endless_streams(start):
    server = start("--server.drain_timeout=1s")
    idle = server.socket(b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n")
    with server.socket(http_post("/v1/completions", {"prompt": "[drip]" + "x" * 50, "stream": True, "max_tokens": 4000})) as s, \
            server.socket(http_post("/v1/completions", {"prompt": "[never]"})) as silent:
        server.wait_metric("fake_live", 2)
        assert server.stop() == 0
        read_all(s), read_all(silent), read_all(idle)
    idle.close()
