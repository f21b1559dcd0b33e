"""A headless Chromium, driven by its DevTools protocol over two pipes, with nothing but Python's own library."""
import base64
import fcntl
import json
import os
import select
import subprocess
import tempfile
import time

from daemon import WAIT_S


def works(program, *args):
    """Is it there, and does it begin? Some systems have a script of that name that only says what to install."""
    try:
        return subprocess.run([program, *args], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=WAIT_S).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


CHROMIUM = next((name for name in ("chromium", "chromium-browser", "google-chrome") if works(name, "--version")), None)


class Tab:
    """One page in a browser of its own, with a profile that nobody has used."""

    def __init__(self, width=1280, height=900):
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        theirs_in, self.out = os.pipe()
        self.back, theirs_out = os.pipe()
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 20) for fd in (theirs_in, theirs_out)]  # 3 and 4 are where Chromium looks
        os.close(theirs_in), os.close(theirs_out)
        self.process = subprocess.Popen(
            ["bash", "-c", 'exec "${@:3}" 3<&$1 4>&$2', "bash", *map(str, high), CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu",
             "--disable-dev-shm-usage", "--remote-debugging-pipe", "--user-data-dir=" + self.profile.name, "about:blank"],
            pass_fds=high, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for fd in high:
            os.close(fd)
        self.rest, self.last_id, self.session = b"", 0, None
        self.faults = []  # what the console says of errors and refused loads
        try:
            self.begin(width, height)
        except BaseException:
            self.close()
            raise

    def begin(self, width, height):
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(domain + ".enable")
        self.size(width, height)

    def read(self):
        while b"\0" not in self.rest:
            if not select.select([self.back], [], [], WAIT_S)[0]:
                raise TimeoutError("Chromium does not answer")
            data = os.read(self.back, 1 << 20)
            if not data:
                raise EOFError("Chromium has gone")
            self.rest += data
        message, self.rest = self.rest.split(b"\0", 1)
        return json.loads(message)

    def call(self, method, **params):
        m = self.answer(method, **params)
        assert "error" not in m, (method, m["error"])
        return m["result"]

    def answer(self, method, **params):
        self.last_id += 1
        message = {"id": self.last_id, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        while True:
            m = self.read()
            if m.get("id") == self.last_id:
                return m
            if m.get("method") == "Runtime.exceptionThrown":
                self.faults.append(m["params"]["exceptionDetails"].get("exception", {}).get("description", "?"))
            elif m.get("method") == "Log.entryAdded" and m["params"]["entry"]["source"] != "network":
                self.faults.append(m["params"]["entry"]["text"])

    def go(self, url):
        self.leave("Page.navigate", url=url)

    def reload(self):
        self.leave("Page.reload")

    def leave(self, method, **params):
        """Until another page is there: the old one still answers for a while."""
        self.js("void (window.left = true)")
        self.call(method, **params)
        self.wait("document.readyState === 'complete' && !window.left")

    def js(self, expression):
        """The value of an expression, awaited where it is a promise."""
        r = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in r, (expression, r["exceptionDetails"])
        return r["result"].get("value")

    def wait(self, condition):
        """Until the page meets the condition; its value. What it names may not be there yet, and the page may be another meanwhile."""
        end = time.monotonic() + WAIT_S
        while True:
            r = self.answer("Runtime.evaluate", expression=f"(() => {{ try {{ const v = {condition}; return v instanceof Node || v; }} catch (e) {{ return null; }} }})()", returnByValue=True)
            value = r.get("result", {}).get("result", {}).get("value")
            if value:
                return value
            assert time.monotonic() < end, "never true: " + condition
            time.sleep(0.01)

    def key(self, name, shift=False):
        code = {"Enter": 13, "Escape": 27, "Tab": 9}.get(name, 0)
        common = dict(key=name, code=name, windowsVirtualKeyCode=code, modifiers=8 if shift else 0)
        self.call("Input.dispatchKeyEvent", type="keyDown", **common, **({"text": "\r"} if name == "Enter" else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def type(self, text):
        self.call("Input.insertText", text=text)

    def size(self, width, height, phone=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)

    def dark(self, on):
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if on else "light"}])

    def shot(self, path):
        with open(path, "wb") as f:
            f.write(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def close(self):
        """It ends when its pipe does."""
        os.close(self.out), os.close(self.back)
        try:
            self.process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.profile.cleanup()
