"""Dashboard, alert rules and the table of metrics against a running daemon. argv[1] is the program, argv[2] the source root; with
--write the table is written anew."""
import json
import os
import re
import shlex
import struct
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from daemon import NAME, Daemon, TestCase, families, labels

EXE, ROOT = os.path.abspath(sys.argv[1]), sys.argv[2]
DOCS = os.path.join(ROOT, "docs")
HEAD = """# Metrics

What `GET /metrics` tells. Times are in seconds, sizes in bytes. Counters only grow until the process ends.
[operating.md](operating.md#alerts) has the alerts, `docs/grafana/expertd.json` is a dashboard of all of them.

## Where to begin

| question | metrics |
| --- | --- |
| does it serve? | `expertd_phase`, `expertd_requests_running`, `expertd_requests_waiting` |
| how long do clients wait? | `expertd_request_queue_seconds`, `expertd_time_to_first_token_seconds`, `expertd_time_per_output_token_seconds` |
| how much does it generate? | `expertd_generated_tokens_total`, `expertd_prompt_tokens_total` |
| are experts found in VRAM? | `expertd_expert_page_hits_total` by `tier`, `expertd_expert_read_bytes_total` by `tier` |
| where does a step's time go? | `expertd_step_seconds_total` by `phase` ([what they are](operating.md#where-the-time-goes)) |
| is the link well? | `expertd_link_read_bytes_per_second` beside `expertd_link_healthy_bytes_per_second`, `expertd_fallback_state`, `expertd_expert_path` |
| is the KV cache large enough? | `expertd_preemptions_total`, `expertd_kv_blocks_used` beside `expertd_kv_blocks` |
| does the prefix cache help? | `expertd_prefix_cache_hits_tokens_total` beside `expertd_prefix_cache_queries_tokens_total` |
| is the disk well? | `expertd_disk_busy_seconds_total`, `expertd_expert_io_errors_total`, `expertd_expert_checksum_errors_total` |
| are requests refused? | `expertd_http_requests_total` by `status`, `expertd_requests_rejected_total`, `expertd_http_connections_refused_total` |

## All metrics

Made from the program itself (`tests/ops/test_docs.py PROGRAM SOURCE --write`); a test fails when this table and the program differ.

| metric | kind | labels | meaning |
| --- | --- | --- | --- |
"""


def live():
    with tempfile.TemporaryDirectory() as t:
        d = Daemon(EXE, "--memory.page_size=64KiB", "--memory.vram_budget=2MiB", "--memory.host_budget=16MiB",
                   "--memory.nvme_path=" + os.path.join(t, "pages"), "--test.allow=yes", "--test.link_gbps=50").wait_ready()
        try:
            d.complete(2)
            return d.text()
        finally:
            d.stop()


TEXT = live()
FAMILIES = families(TEXT)


def table():
    # Without a PCIe device these have no samples.
    by_name = dict({"expertd_pcie_lanes": {"when"}, "expertd_pcie_transfers_per_second": {"when"}, "expertd_pcie_errors_total": {"kind"}},
                   **labels(TEXT))
    rows = []
    for name in sorted(FAMILIES):
        kind, words = FAMILIES[name]
        shown = ", ".join(f"`{n}`" for n in sorted(by_name.get(name, set()) - {"le"}))
        rows.append(f"| `{name}` | {kind} | {shown} | {words} |\n")
    return HEAD + "".join(rows)


def used(expr):
    """Families that an expression names: a histogram is known by its _bucket, _sum and _count."""
    out = set()
    for name in NAME.findall(expr):
        base = re.sub(r"_(bucket|sum|count)$", "", name)
        out.add(base if FAMILIES.get(base, ("",))[0] == "histogram" else name)
    return out


class Docs(TestCase):
    maxDiff = None

    def test_the_table_of_metrics(self):
        with open(os.path.join(DOCS, "metrics.md")) as f:
            self.assertEqual(f.read(), table())

    def test_the_tables_of_models_name_what_the_program_knows(self):
        """By what it says to a model that it does not know."""
        with tempfile.TemporaryDirectory() as t:
            os.mkdir(t + "/hf")
            with open(t + "/hf/config.json", "w", encoding="utf-8") as f:
                f.write('{"model_type": "nobodys"}')
            key, value = b"general.architecture", b"nobodys"
            with open(t + "/x.gguf", "wb") as f:
                f.write(struct.pack("<4sIQQQ", b"GGUF", 3, 0, 1, len(key)) + key + struct.pack("<IQ", 8, len(value)) + value + bytes(64))
            said = [subprocess.run([EXE, "inspect", t + name, "-c", "/dev/null"], capture_output=True, text=True).stderr for name in ("/hf", "/x.gguf")]
        known = [set(re.search(r"known (?:in GGUF )?are (.*)", line)[1].split(", ")) for line in said]
        with open(os.path.join(DOCS, "models.md"), encoding="utf-8") as f:
            text = f.read()
        rows = [line.split("|") for line in text.split("## Files")[0].splitlines() if line.startswith("| ")][2:]
        self.assertEqual([set(re.findall(r"`([^`]+)`", " ".join(r[column] for r in rows))) for column in (2, 3)], known)

    def test_examples_that_any_machine_can_give_are_what_the_program_prints(self):
        """Line by line; "..." stands for lines that are left out."""
        seen = 0
        for page in ("desktop.md", "eviction.md", "operating.md"):
            with open(os.path.join(DOCS, page), encoding="utf-8") as f:
                text = f.read()
            for words, shown in re.findall(r"(?m)^    \$ (?:build/daemon/)?expertd ((?:inspect|bench --trace) .*)\n((?:    .*\n)+)", text):
                r = subprocess.run([EXE, *shlex.split(words), "-c", "/dev/null"], capture_output=True, text=True, cwd=ROOT)
                printed = [line.strip() for line in r.stdout.splitlines()]
                for line in shown.splitlines():
                    self.assertTrue(line.strip() == "..." or line.strip() in printed, (page, line, r.stdout))
                seen += 1
        self.assertGreaterEqual(seen, 3)

    def test_links_lead_somewhere(self):
        """Within the repository: to a file, and to a heading of it as GitHub names it."""
        def anchors(path, depth="+"):
            with open(path, encoding="utf-8") as f:
                heads = re.findall(rf"(?m)^#{depth} (.*)$", re.sub(r"(?ms)^```.*?^```", "", f.read()))
            names = [re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in heads]
            return {n if names[:i].count(n) == 0 else f"{n}-{names[:i].count(n)}" for i, n in enumerate(names)}
        pages = [os.path.join(ROOT, "README.md"), *(os.path.join(DOCS, n) for n in os.listdir(DOCS) if n.endswith(".md"))]
        links = 0
        for page in pages:
            with open(page, encoding="utf-8") as f:
                found = re.findall(r"\]\(([^)\s]+)\)", f.read())
            for target in found:
                if "://" in target:
                    continue
                links += 1
                name, _, heading = target.partition("#")
                path = os.path.join(os.path.dirname(page), name) if name else page
                self.assertTrue(os.path.exists(path), (page, target))
                if heading:
                    self.assertIn(heading, anchors(path), (page, target))
        self.assertGreater(links, 30)
        for page in ("api.md", "architecture.md", "benchmarks.md", "eviction.md", "kernels.md", "kernels-measured.md", "operating.md"):  # they begin with their contents
            with open(os.path.join(DOCS, page), encoding="utf-8") as f:
                contents = set(re.findall(r"\]\(#([^)]+)\)", f.read().split("\n## ")[0]))
            self.assertEqual(anchors(os.path.join(DOCS, page), "{2}") - contents, set(), page)

    def test_every_metric_is_explained_and_named_well(self):
        for name, (kind, words) in FAMILIES.items():
            self.assertRegex(words, r"[.:]$|\.$", name)
            self.assertNotRegex(words, r"^The same|^Those of", name)  # as if the one above it were read first
            self.assertEqual(name.endswith("_total"), kind == "counter", name)

    def test_the_dashboard_uses_what_exists_and_shows_all(self):
        with open(os.path.join(DOCS, "grafana", "expertd.json")) as f:
            dash = json.load(f)
        panels = [p for p in dash["panels"] if p["type"] != "row"]
        shown = set()
        for p in panels:
            self.assertTrue(p["title"] and p["targets"], p)
            for t in p["targets"]:
                self.assertTrue(used(t["expr"]), t["expr"])
                shown |= used(t["expr"])
        self.assertEqual(shown - FAMILIES.keys(), set())
        self.assertEqual(FAMILIES.keys() - shown, set())
        spots = [(p["gridPos"]["x"], p["gridPos"]["y"]) for p in dash["panels"]]
        self.assertEqual(len(spots), len(set(spots)))

    def test_the_guide_names_only_what_exists(self):
        for page in ["metrics.md", "operating.md"]:
            with open(os.path.join(DOCS, page)) as f:
                self.assertEqual(used(f.read()) - FAMILIES.keys(), set(), page)

    def test_every_phase_of_a_step_is_explained(self):
        with open(os.path.join(DOCS, "operating.md")) as f:
            rows = f.read().split("\n| phase | what |\n")[1].split("\n\n")[0]
        told = [name for row in rows.splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1])]
        self.assertCountEqual(told, re.findall(r'(?m)^expertd_step_seconds_total\{phase="(\w+)"', TEXT))

    def test_alerts_use_what_exists_and_are_documented(self):
        with open(os.path.join(DOCS, "prometheus", "alerts.yml")) as f:
            rules = f.read()
        self.assertEqual(used(rules) - FAMILIES.keys(), set())
        with open(os.path.join(DOCS, "operating.md")) as f:
            guide = f.read()
        for alert in re.findall(r"- alert: (\w+)", rules):
            self.assertIn(f"`{alert}`", guide)


if __name__ == "__main__":
    if "--write" in sys.argv:
        with open(os.path.join(DOCS, "metrics.md"), "w") as f:
            f.write(table())
        sys.exit()
    unittest.main(argv=[sys.argv[0]], verbosity=2)
