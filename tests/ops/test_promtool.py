"""Prometheus's own tool on metrics, alert rules and the dashboard's expressions. argv[1] is the program, argv[2] the source root."""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from daemon import Daemon, TestCase

EXE, ROOT = sys.argv[1:3]
DOCS = os.path.join(ROOT, "docs")


class Promtool(TestCase):
    def promtool(self, *args, text=None):
        out = subprocess.run(["promtool", *args], input=text, cwd=os.path.join(DOCS, "prometheus"), capture_output=True, text=True)
        self.assertEqual(out.returncode, 0, out.stdout + out.stderr)
        return out.stdout + out.stderr

    def test_metrics_are_clean(self):
        d = Daemon(EXE)
        self.addCleanup(d.stop)
        self.assertEqual(self.promtool("check", "metrics", text=d.text()), "")  # perhaps while loading
        d.wait_ready().complete(3)
        self.assertEqual(self.promtool("check", "metrics", text=d.text()), "")

    def test_rules_are_valid(self):
        self.promtool("check", "rules", "alerts.yml")

    def test_rules_fire_when_they_should(self):
        self.promtool("test", "rules", "alerts_test.yml")

    def test_every_expression_of_the_dashboard_is_valid(self):
        with open(os.path.join(DOCS, "grafana", "expertd.json")) as f:
            exprs = [t["expr"] for p in json.load(f)["panels"] for t in p.get("targets", [])]
        rules = [{"record": f"panel:{i}", "expr": e.replace("$__rate_interval", "1m")} for i, e in enumerate(exprs)]
        with tempfile.NamedTemporaryFile("w", suffix=".yml") as f:  # JSON is YAML
            json.dump({"groups": [{"name": "panels", "rules": rules}]}, f)
            f.flush()
            self.promtool("check", "rules", "--lint=none", f.name)


if __name__ == "__main__":
    if not shutil.which("promtool"):
        print("skipped: promtool is not installed (Debian: prometheus)")
        sys.exit(77)
    unittest.main(argv=[sys.argv[0]], verbosity=2)
