"""/metrics, /health and the status page."""
import shutil
import subprocess

import pytest

from conftest import http_post


def test_promtool_finds_nothing(server):
    server.complete("hello")
    text = server.get("/metrics").body
    if not shutil.which("promtool"):
        pytest.skip("promtool is not installed")
    out = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True)
    assert out.returncode == 0, out.stdout + out.stderr


def test_counters_only_grow_whoever_reads_them(server):
    before = server.metric("expertd_http_requests_total")
    for _ in range(3):
        server.get("/health")
        server.get("/metrics")
    server.settle()
    assert server.metric("expertd_http_requests_total") >= before + 6


def test_requests_are_counted_by_endpoint_and_status(server):
    def count(status):
        text = server.get("/metrics").body.decode()
        for line in text.splitlines():
            if line.startswith(f'expertd_http_requests_total{{endpoint="/v1/completions",status="{status}"}}'):
                return int(line.split()[-1])
        return 0
    ok, bad = count(200), count(400)
    server.complete("x")
    server.complete("")
    server.settle()
    assert (count(200), count(400)) == (ok + 1, bad + 1)


def test_metrics_are_readable_while_busy(server):
    with server.socket(http_post("/v1/completions", {"prompt": "[never]"})):
        server.wait_metric("fake_live", 1)
        assert server.get("/metrics").headers["Content-Type"].startswith("text/plain; version=0.0.4")


def test_the_page_loads_nothing_from_elsewhere(server):
    a = server.get("/")
    page = a.body.decode()
    assert a.headers["Content-Type"].startswith("text/html") and "default-src 'none'" in a.headers["Content-Security-Policy"]
    for outside in ["http://", "https://", "src=", "@import", "url("]:
        assert outside not in page, outside
    assert "status.json" in page


def test_the_page_can_be_switched_off(start):
    server = start("--server.status_page=no")
    assert server.get("/").status == 404 and server.get("/status.json").status == 404
    assert server.get("/health").status == 200
