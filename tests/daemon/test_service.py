"""The daemon under a service manager that is played here: notifications, watchdog, signals, sockets. argv[1] is the program."""
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

EXE = sys.argv[1]
WAIT_S = 180  # for what comes at once unless something is wrong


class Service:
    """One run with a notify socket, which is read all the time: who notifies waits while it is full."""

    def __init__(self, model, *args, conf="", env=None, before=(), **kw):
        self.dir = tempfile.TemporaryDirectory()
        self.conf = os.path.join(self.dir.name, "e.conf")
        self.write(conf)
        path = os.path.join(self.dir.name, "notify")
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.sock.bind(path)
        self.inbox, self.seen = queue.Queue(), []
        self.receiver = threading.Thread(target=self.receive, daemon=True)
        self.receiver.start()
        self.err = tempfile.TemporaryFile()
        full = dict(os.environ, NOTIFY_SOCKET=path, **(env or {}))
        self.p = subprocess.Popen([*before, EXE, "-c", self.conf, "-m", "synthetic:" + model, *args], stderr=self.err, stdin=subprocess.DEVNULL, env=full,
                                  **kw)

    def write(self, conf):
        with open(self.conf, "w") as f:
            f.write(conf)

    def receive(self):
        with self.sock:
            while (text := self.sock.recv(65536)) != b"end":
                self.inbox.put(text.decode())

    def wait_for(self, pattern):
        while True:
            self.seen.append(self.inbox.get(timeout=WAIT_S))
            if re.search(pattern, self.seen[-1]):
                return self.seen[-1]

    @property
    def log(self):
        return os.pread(self.err.fileno(), os.fstat(self.err.fileno()).st_size, 0).decode()

    def wait_log(self, words):
        begin = time.monotonic()
        while words not in self.log:
            assert self.p.poll() is None and time.monotonic() < begin + WAIT_S, (words, self.log)
            time.sleep(0.01)

    def end(self, *signals):
        for s in signals:
            self.p.send_signal(s)
        try:
            self.p.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            self.p.kill()
            raise
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
            s.sendto(b"end", self.sock.getsockname())
        self.receiver.join()
        log = self.log
        self.err.close()
        self.dir.cleanup()
        return self.p.returncode, log


class Life(unittest.TestCase):
    def test_ready_then_term_ends_well(self):
        s = Service("fine")
        text = s.wait_for("READY=1")
        self.assertIn("STATUS=Serving fake on http://127.0.0.1:4242", text)
        rc, err = s.end(signal.SIGTERM)
        self.assertEqual(rc, 0, err)
        self.assertIn("stopped", err)

    def test_progress_is_shown_and_extends_the_start_timeout(self):
        s = Service("slow")
        s.wait_for("READY=1")
        before = "\n".join(s.seen)
        self.assertRegex(before, r"STATUS=Loading \d+ %: experts")
        self.assertIn("EXTEND_TIMEOUT_USEC=", before)
        self.assertEqual(s.end(signal.SIGINT)[0], 0)

    def test_term_while_loading_ends_at_once(self):
        s = Service("slow")
        s.wait_for("STATUS=Loading")
        self.assertEqual(s.end(signal.SIGTERM)[0], 0)

    def test_a_model_that_cannot_be_served_is_said_and_ends_with_status_66(self):
        s = Service("fail")
        s.wait_for("STATUS=Cannot serve: tensor 'x' is cut off")
        rc, err = s.end()
        self.assertEqual(rc, 66)
        self.assertIn("cannot serve: tensor 'x' is cut off", err)
        self.assertFalse(any("READY=1" in m for m in s.seen))

    def test_the_watchdog_is_fed_while_the_engine_moves(self):
        s = Service("fine", env={"WATCHDOG_USEC": "400000"})
        s.wait_for("READY=1")
        for _ in range(4):
            s.wait_for("WATCHDOG=1")
        self.assertEqual(s.end(signal.SIGTERM)[0], 0)

    def test_the_watchdog_is_not_fed_when_the_engine_hangs(self):
        s = Service("hang", env={"WATCHDOG_USEC": "400000"})
        s.wait_for("READY=1")
        s.wait_for("WATCHDOG=1")  # the one that starts it
        s.wait_log("has not finished a step")
        self.assertTrue(s.inbox.empty())
        self.assertEqual(s.end(signal.SIGTERM)[0], 0)
        self.assertFalse(any("WATCHDOG=1" in text for text in list(s.inbox.queue)))

    def test_drain_waits_for_requests_to_the_deadline(self):
        s = Service("busy", "--drain_timeout=1s")
        s.wait_for("READY=1")
        s.p.send_signal(signal.SIGTERM)
        self.assertIn("EXTEND_TIMEOUT_USEC=26000000", s.wait_for("STOPPING=1"))
        rc, err = s.end()
        self.assertEqual(rc, 0, err)
        self.assertIn("finishing running requests, at most 1 s", err)

    def test_a_second_signal_stops_at_once(self):
        s = Service("busy", "--drain_timeout=1h")
        s.wait_for("READY=1")
        s.p.send_signal(signal.SIGTERM)
        s.wait_for("STOPPING=1")
        begin = time.monotonic()
        while s.p.poll() is None:  # one that comes at once counts as the same: a terminal and timeout(1) send two
            self.assertLess(time.monotonic() - begin, WAIT_S)
            s.p.send_signal(signal.SIGTERM)
            time.sleep(0.05)
        rc, err = s.end()
        self.assertEqual(rc, 1)
        self.assertIn("stopping at once", err)

    def test_hup_applies_what_can_change_and_names_what_cannot(self):
        s = Service("fine", conf="[log]\nlevel = info\n")
        s.wait_for("READY=1")
        s.write("[log]\nlevel = debug\n[server]\nport = 99\n")
        s.p.send_signal(signal.SIGHUP)
        s.wait_for("RELOADING=1\nMONOTONIC_USEC=\\d+")
        s.wait_for("READY=1")
        rc, err = s.end(signal.SIGTERM)
        self.assertEqual(rc, 0)
        self.assertIn("reload: log.level: info -> debug", err)
        self.assertIn("reload: server.port: 8080 -> 99 needs a restart", err)
        self.assertIn("engine reloaded, level 3", err)

    def test_hup_with_a_broken_file_changes_nothing(self):
        s = Service("fine")
        s.wait_for("READY=1")
        s.write("[log]\nlevl = debug\n")
        s.p.send_signal(signal.SIGHUP)
        s.wait_for("RELOADING=1")
        s.wait_for("READY=1")
        rc, err = s.end(signal.SIGTERM)
        self.assertEqual(rc, 0)
        self.assertIn("nothing is changed", err)
        self.assertIn("did you mean 'level'?", err)
        self.assertNotIn("engine reloaded", err)

    def test_usr_signals_force_a_path(self):
        s = Service("fine")
        s.wait_for("READY=1")
        s.p.send_signal(signal.SIGUSR1)
        rc, err = s.end(signal.SIGUSR2, signal.SIGTERM)
        self.assertEqual(rc, 0)
        self.assertIn("forced 2", err)
        self.assertIn("forced 1", err)

    def test_a_socket_of_the_service_manager_is_taken_over(self):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            fd = listener.fileno()
            # LISTEN_PID must be the pid of the program itself, which only the shell that becomes it knows.
            s = Service("fine", before=["sh", "-c", f'exec 3<&{fd}; export LISTEN_FDS=1 LISTEN_PID=$$; exec "$@"', "sh"],
                        pass_fds=[fd])
            s.wait_for("READY=1")
            rc, err = s.end(signal.SIGTERM)
        self.assertEqual(rc, 0, err)
        self.assertIn("listen_fd 3", err)

    def test_the_address_that_is_told_is_that_of_the_socket(self):
        with tempfile.TemporaryDirectory() as d, socket.create_server(("127.0.0.2", 0)) as tcp, socket.socket(socket.AF_UNIX) as unix:
            unix.bind(d + "/sock")
            unix.listen()
            for listener, address in ((tcp, "http://127.0.0.2:"), (unix, f"the socket {d}/sock")):
                fd = listener.fileno()
                s = Service("fine", before=["sh", "-c", f'exec 3<&{fd}; export LISTEN_FDS=1 LISTEN_PID=$$; exec "$@"', "sh"],
                            pass_fds=[fd])
                s.wait_for("READY=1")
                self.assertIn(f" on {address}", s.end(signal.SIGTERM)[1])

    def test_json_log_lines_are_json(self):
        import json
        s = Service("fine", "--log.format=json")
        s.wait_for("READY=1")
        rc, err = s.end(signal.SIGTERM)
        lines = [json.loads(l) for l in err.splitlines() if l.startswith("{")]
        self.assertTrue(any(l.get("MODEL") == "fake" and l["level"] == "info" for l in lines), err)

    def test_a_key_that_everybody_can_read_is_warned_of(self):
        with tempfile.TemporaryDirectory() as d:
            for name, text in (("conf", "[server]\nport = 0\napi_key = k\n"), ("keys", "k\n"), ("none", "[server]\nport = 0\n")):
                with open(f"{d}/{name}", "w", encoding="utf-8") as f:
                    f.write(text)
            for mode, told in ((0o644, True), (0o640, False)):
                os.chmod(d + "/conf", mode)
                os.chmod(d + "/keys", mode)
                for args in (["-c", d + "/conf"], ["--api_key_file", d + "/keys"], ["-c", d + "/none", "--api_key=k"]):
                    s = Service("fine", *args)
                    s.wait_for("READY=1")
                    err = s.end(signal.SIGTERM)[1]
                    self.assertEqual("chmod o-r" in err, told and args[-1] != "--api_key=k", err)
            self.assertEqual("stands on the command line" in err, args[-1] == "--api_key=k", err)

    @unittest.skipIf(os.path.exists("/run/systemd/journal/socket"), "there is a journal")
    def test_without_a_journal_nothing_is_lost(self):
        s = Service("fine", "--log.format=journal")
        s.wait_for("READY=1")
        err = s.end(signal.SIGTERM)[1]
        self.assertRegex(err, "warn +log.format = journal, and there is no journal here")
        self.assertRegex(err, "info +ready: fake")

    def test_an_open_port_without_a_key_is_warned_of(self):
        s = Service("fine", "--host=0.0.0.0")
        s.wait_for("READY=1")
        self.assertIn("no API key is set", s.end(signal.SIGTERM)[1])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
