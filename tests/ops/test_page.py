"""The status page in a headless Chromium: what it shows is what the daemon did. argv[1] is the program. Exit 77 without Chromium."""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from daemon import WAIT_S, Daemon, TestCase

EXE = sys.argv[1]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def show(d):
    """Text of the elements with an id, after the page has polled for some seconds of its own time."""
    with tempfile.TemporaryDirectory() as profile:
        out = subprocess.run([CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--user-data-dir=" + profile, "--window-size=1280,1100",
                              "--virtual-time-budget=5000", "--dump-dom", f"http://127.0.0.1:{d.port}/"], capture_output=True, text=True, timeout=WAIT_S)
    words = {}
    for tag, name, rest in re.findall(r'<(\w+)[^>]*\bid="(\w+)"([^>]*)>', out.stdout):
        m = re.search(rf'<{tag}[^>]*\bid="{name}"[^>]*>(.*?)</{tag}>', out.stdout, re.S)
        words[name] = re.sub(r"\s+", " ", re.sub("<[^>]*>", " ", m[1])).strip() if m else ""
        if "hidden" in rest:
            words[name] = None
    return words


class Page(TestCase):
    def test_tiers_link_and_map_are_shown(self):
        d = Daemon(EXE, "--memory.page_size=64KiB", "--memory.vram_budget=4MiB", "--pager.warm_start=no", "--test.allow=yes",
                   "--test.link_gbps=30").wait_ready()
        self.addCleanup(d.stop)
        d.complete(40)
        words, m = show(d), d.metrics()
        self.assertEqual(words["phase"], "ready")
        self.assertIn("6 layers × 16 experts", words["model"])
        self.assertIn("generated 40", words["load"])
        self.assertIn("of 64", words["tiers"])
        hits = m['expertd_expert_page_hits_total{tier="vram"}'] / m["expertd_expert_page_hits_total"]
        self.assertIn(f"VRAM {100 * hits:.1f} %", words["readkey"])
        self.assertEqual((words["link"], words["state"]), ("30.0", "direct"))
        self.assertIn("healthy 30.0", words["linkunit"])
        self.assertIn("engine", words["reqkey"])
        for phase in ["attention", "experts vram", "experts host", "head"]:
            self.assertIn(phase, words["stepkey"])
        self.assertIsNotNone(words["mapbox"])
        self.assertIn("host memory", words["mapkey"])

    def test_without_a_link_it_says_so(self):
        d = Daemon(EXE).wait_ready()
        self.addCleanup(d.stop)
        words = show(d)
        self.assertEqual(words["link"], "–")
        self.assertIn("no link to watch", words["linkunit"])


if __name__ == "__main__":
    if not CHROMIUM:
        print("skipped: no Chromium (Debian: chromium)")
        sys.exit(77)
    unittest.main(argv=[sys.argv[0]], verbosity=2)
