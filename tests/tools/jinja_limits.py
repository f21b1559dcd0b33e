#!/usr/bin/env python3
"""Looks for templates and variables of about 1 MB that take too long or too much memory under the default limits.

usage: jinja_limits.py JINJARUN [PART_OF_NAME]
Every filter, method and operator on large values, once and in a loop until a limit ends it; blow-ups; hostile template texts. Prints the
slowest, the largest, and the worst nanoseconds a step (what a step may cost is what the limit of steps is worth). Exits 1 if a case
takes more than 1 s of CPU time or 256 MiB."""
import json, os, signal, subprocess, sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import jinja_gen as g

MB = 1_000_000
CONTEXTS = {
    "text": {"x": "word " * (MB // 5), "y": "a" * 1000},
    "letter": {"x": "a" * MB, "y": "a" * 1000},
    "unicode": {"x": "\u4f60\u00df" * (MB // 5), "y": "\u4f60" * 300},
    "lines": {"x": "\n" * MB, "y": "\n" * 1000},
    "html": {"x": "<a'&\"" * (MB // 5), "y": "<"},
    "brackets": {"x": "(<&gt;" * (MB // 6), "y": ")"},
    "dots": {"x": "a." * (MB // 2), "y": "."},
    "mail": {"x": "a@a.a" * (MB // 5), "y": "@"},
    "hyphens": {"x": "ab-cd-" * (MB // 6), "y": "-"},
    "percent": {"x": "%s" * (MB // 2), "y": "%d"},
    "braces": {"x": "{}" * (MB // 2), "y": "{"},
    "ints": {"x": list(range(150_000)), "y": [1]},
    "strings": {"x": ["b", "A"] * 100_000, "y": "b"},
    "floats": {"x": [0.1, 1e300] * 70_000, "y": 0.5},
    "dicts": {"x": [{"a": i % 7, "b": "t"} for i in range(40_000)], "y": {"a": 1}},
    "dict": {"x": {f"k{i}": i for i in range(70_000)}, "y": "k1"},
    "lists": {"x": [[]] * 300_000, "y": []},
    "wide": {"x": {"a": ["y" * 100] * 9_000}, "y": "a"},
}
sys.setrecursionlimit(10_000)
deep = "x"
for _ in range(1000):
    deep = [deep]
CONTEXTS["deep"] = {"x": deep, "y": deep}
FORMS = ["x|tojson", "x|tojson(indent=2)", "x|tojson(indent=1000)", "x|string", "x ~ x", "x == x", "x + x", "x * 3", "x * 100000000", "x < x", "x in x", "y in x", "x[::-1]", "x[1:]",
         "x[::2]", "x|list", "x|length", "(x, x)|string", "x is lower", "x is upper", "x % x", "x % y", "x.format(y)", "x.replace(y, x)", "x.replace('', x)", "x.replace('a', y)", "x.join(x)", "y.join(x)",
         "x.split(y)", "x.rsplit(y)", "x.count(y)", "x.find(y ~ 'z')", "x.rfind('z' ~ y)", "x.strip(x)", "x.strip(y)", "x.center(10000000)", "x.zfill(16000000)", "x.expandtabs(100000)", "x.translate({97: x})",
         "x|center(10000000)", "x|indent(y)", "x|indent(x)", "x|indent(100000, true)", "x|wordwrap(1)", "x|wordwrap(1, false)", "x|wordwrap(1000000)", "x|urlize", "x|pprint", "[x, [x, [x, [x]]]]|pprint", "x|sort", "x|sort(attribute='a')",
         "x|sort(attribute='a,b')", "x|groupby('a')|list", "x|unique|list", "x|map('upper')|list", "x|map(attribute='a')|list", "x|select('odd')|list", "x|selectattr('a')|list", "x|batch(1)|list", "x|batch(3, x)|list",
         "x|slice(100000)|list", "x|slice(3, x)|list", "x|slice(1000000000)|list", "x|batch(1000000000, 0)|list", "x|sum", "x|sum(start=[])", "x|join", "x|join(x)", "x|join(y)", "x|max", "x|min", "x|reverse|list", "x|dictsort", "x|items|list", "x|first", "x|last",
         "x|random", "x|title", "x|wordcount", "x|striptags", "x|urlencode", "x|escape", "x|forceescape", "x|xmlattr", "x|truncate(999999)", "x|replace(y, x)", "x|trim(y)", "x|int", "x|float", "x|upper", "x|capitalize", "x|filesizeformat",
         "x.keys()|list", "x.items()|list", "x.keys() - x.keys()", "x.keys() == x.keys()", "x.index(y)", "x.count(x)", "x.title()", "x.swapcase()", "x.casefold()", "x.splitlines()", "x.partition(y)", "x.isalpha()", "x.istitle()", "x.maketrans(x, x)",
         "dict(x)", "namespace(**x)", "range(100000)|list", "range(100000)|map('string')|join", "'%1000000000d' % 1", "'%*d' % (16000000, 1)", "'{:16000000}'.format(1)", "'{:>16000000}'.format(x)", "'{:,}'.format(10 ** 37)",
         "'x' * 10 ** 9", "[0] * 10 ** 9", "10 ** 127", "2 ** 126 * 2", "x|list|string", "x|list|tojson", "[x] * 1000", "([x] * 1000)|join", "([x] * 1000)|tojson", "([x] * 1000)|string", "([x] * 50)|sort|length", "x|map('replace', 'a', y)|join",
         "cycler(x).next()", "x|attr(x)", "x[x]", "x is filter", "x|default(x)", "{x: x}", "strftime_now(x)", "strftime_now('%c' * 400)", "'%r' % (x,)", "'%s' % (x,)", "x|format(x)", "x|round", "lipsum(x)"]


def cases():
    for name, context in CONTEXTS.items():
        for form in FORMS:
            yield f"{name}: once {form}", "{{ " + form + " }}", context
            yield f"{name}: loop {form}", "{% for i in range(100000) %}{% set z = " + form + " %}{% endfor %}", context
    text = {"x": "a" * MB, "y": "b", "l": list(range(100_000))}
    for name, t in {
        "nested loops": "{% for a in l %}{% for b in l %}{% for c in l %}{% endfor %}{% endfor %}{% endfor %}",
        "output in loops": "{% for a in l %}{% for b in l %}{{ x }}{% endfor %}{% endfor %}",
        "small output in loops": "{% for a in l %}{% for b in l %}ab{% endfor %}{% endfor %}",
        "namespace concatenation": "{% set ns = namespace(s='') %}{% for a in l %}{% for b in l %}{% set ns.s = ns.s ~ 'ab' %}{% endfor %}{% endfor %}",
        "namespace concatenation in front": "{% set ns = namespace(s='') %}{% for a in l %}{% set ns.s = 'ab' ~ ns.s %}{% endfor %}",
        "namespace concatenation of client text": "{% set ns = namespace(s='') %}{% for a in l %}{% set ns.s = ns.s ~ y ~ 'a' %}{% endfor %}{{ ns.s }}",
        "namespace list": "{% set ns = namespace(s=[]) %}{% for a in l %}{% set ns.s = ns.s + [a] %}{% endfor %}",
        "doubling": "{% set ns = namespace(s='ab') %}{% for a in l %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
        "doubling list": "{% set ns = namespace(s=[1]) %}{% for a in l %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        "nested list": "{% set ns = namespace(s=[1]) %}{% for a in l %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s == ns.s }}",
        "nested list printed": "{% set ns = namespace(s=[1]) %}{% for a in range(40) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s }}",
        "nested list compared": "{% set ns = namespace(s=[1], t=[1]) %}{% for a in range(40) %}{% set ns.s = [ns.s, ns.s] %}{% set ns.t = [ns.t, ns.t] %}{% endfor %}{{ ns.s == ns.t }}",
        "nested list to JSON": "{% set ns = namespace(s=[1]) %}{% for a in range(40) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s|tojson }}",
        "nested list pprint": "{% set ns = namespace(s=[1]) %}{% for a in range(14) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s|pprint }}",
        "deep list pprint": "{% set ns = namespace(s=['a' * 100]) %}{% for a in range(900) %}{% set ns.s = [ns.s] %}{% endfor %}{{ ns.s|pprint }}",
        "recursion": "{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}",
        "recursive macro tree": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
        "recursive loop": "{% for a in [l] recursive %}{{ loop([l]) }}{% endfor %}",
        "macro copies": "{% macro m(a) %}{{ a }}{{ a }}{% endmacro %}{{ m(m(m(m(m(m(m(m(x)))))))) }}",
        "caller copies": "{% macro m() %}{{ caller() }}{{ caller() }}{% endmacro %}" + "{% call m() %}" * 60 + "{{ x }}" + "{% endcall %}" * 60,
        "set block copies": "{% set v %}{{ x }}{% endset %}" * 1000,
        "filter block copies": "{% filter upper %}" * 50 + "{{ x }}" + "{% endfilter %}" * 50,
        "loop.changed": "{% for a in l %}{{ loop.changed(x, l) }}{% endfor %}", "loop.length": "{% for a in l|select %}{{ loop.length }}{% endfor %}", "loop printed": "{% for a in l %}{{ loop }}{% endfor %}",
        "generators in generators": "{% set ns = namespace(s=l) %}{% for a in range(2000) %}{% set ns.s = ns.s|map('string') %}{% endfor %}{{ ns.s|list|length }}",
        "tilde chain": "{{ " + " ~ ".join(["x"] * 300) + " }}", "replace chain": "{{ x" + "|replace('a', 'ab')" * 60 + " }}", "sort in loop": "{% for a in l %}{% set z = l|sort(reverse=true) %}{% endfor %}",
        "index of characters": "{% for a in l %}{{ x[a] }}{% endfor %}", "slices": "{% for a in l %}{% set z = x[a:] %}{% endfor %}", "kwargs": "{% macro m() %}{{ kwargs }}{% endmacro %}{% for a in l %}{{ m(**dict(a=1)) }}{% endfor %}",
        "star of list": "{% macro m() %}{{ varargs|length }}{% endmacro %}{% for a in l %}{{ m(*l) }}{% endfor %}", "dict of everything": "{% for a in l %}{% set d = dict(l|batch(2)) %}{% endfor %}", "unpack": "{% for a in l %}{% for b, c in l|batch(2) %}{% endfor %}{% endfor %}",
        "spaces": "{% for a in l %}{{ '%16000000s' % '' }}{% endfor %}", "long tuple keys": "{% set d = {(l|list,)|string: 1} %}{% for a in l %}{% set z = d[(x, x)] %}{% endfor %}",
    }.items():
        yield name, t, text
        mixed = dict(text, x="\u00e9a" * (MB // 3))
        yield name + " (unicode)", t, mixed
    for name, t in {
        "many prints": "{{a}}" * (MB // 5), "many texts": "a{#" + "#}b{#" * (MB // 5) + "#}", "many numbers": "{{" + "1," * (MB // 2) + "1}}", "many additions": "{{" + "1+" * (MB // 2) + "1}}", "many brackets": "{{" + "(" * (MB // 2) + ")" * (MB // 2) + "}}",
        "many lists": "{{" + "[" * (MB // 2), "many blocks": "{% if a %}" * (MB // 10), "many closed blocks": "{% if a %}{% endif %}" * (MB // 20), "many sets": "".join(f"{{% set v{i}=1 %}}" for i in range(MB // 18)), "many loops": "{% for a in b %}{% endfor %}" * (MB // 28),
        "many names": "{{" + "+".join(f"v{i}" for i in range(MB // 8)) + "}}", "many names printed": "".join(f"{{{{v{i}}}}}" for i in range(MB // 10)), "many attributes": "{{a" + ".b" * (MB // 2) + "}}", "many filters": "{{a" + "|e" * (MB // 2) + "}}", "many calls": "{{a" + "()" * (MB // 2) + "}}",
        "many macros": "".join(f"{{% macro m{i}() %}}{{% endmacro %}}" for i in range(MB // 32)), "many arguments": "{{f(" + "a," * (MB // 2) + ")}}", "many keyword arguments": "{{f(" + ",".join(f"a{i}=1" for i in range(MB // 9)) + ")}}", "long string": "{{'" + "a" * MB + "'}}", "many escapes": "{{'" + "\\n" * (MB // 2) + "'}}",
        "many strings": "{{" + "'a'" * (MB // 3) + "}}", "many comments": "{##}" * (MB // 4), "open comments": "{#" * (MB // 2), "open raws": "{% raw %}" + "{% " * (MB // 3), "open prints": "{{ " * (MB // 3), "spaces": " " * MB + "{%- if a %}", "lines": "\n" * MB + "{%- if a %}", "spaces before blocks": "      {% if 1 %}{% endif %}" * (MB // 27),
        "many minus": "{{" + "-" * MB + "1}}", "many nots": "{{" + "not " * (MB // 4) + "1}}", "many ifs": "{{" + "1 if " * (MB // 5) + "1}}", "elifs": "{% if a %}" + "{% elif a %}" * (MB // 11) + "{% endif %}", "compare chain": "{{1" + "<1" * (MB // 2) + "}}", "nested with": "{% with a=1 %}" * 90 + "{{a}}" * 100_000 + "{% endwith %}" * 90,
        "digits": "{{" + "1" * MB + "}}", "name": "{{" + "a" * MB + "}}", "many blocks named": "".join(f"{{% block b{i} %}}{{% endblock %}}" for i in range(MB // 34)), "nested scopes names": "".join(f"{{% for a{i} in b %}}" for i in range(95)) + "".join(f"{{{{n{i}}}}}" for i in range(90_000)), "many tests": "{{a" + " is b" * (MB // 5) + "}}",
        "many raws": "{% raw %}{% endraw %}" * (MB // 21), "dict": "{{ {" + "1:1," * (MB // 4) + "} }}", "many dots": "{{" + "." * MB + "}}", "tags without end": "{%" * (MB // 2), "unicode names": "{{" + "\u00e9" * (MB // 2) + "}}", "targets": "{% set " + "a," * (MB // 2) + "b = 1 %}", "many tildes": "{{1" + "~1" * (MB // 2) + "}}", "many ands": "{{1" + " and 1" * (MB // 6) + "}}", "subscripts": "{{a" + "[0]" * (MB // 3) + "}}",
    }.items():
        yield "source: " + name, t, {"a": 1, "b": [1]}


def stop(signum, frame):
    raise KeyboardInterrupt


def main():
    signal.signal(signal.SIGTERM, stop)
    p = subprocess.Popen([sys.argv[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    part = sys.argv[2] if len(sys.argv) > 2 else ""
    results = []
    try:
        run(p, part, results)
    except KeyboardInterrupt:
        pass
    return report(results)


def run(p, part, results):
    last = None
    for name, template, variables in cases():
        if part not in name:
            continue
        request = {"template": template, "cost": True}
        if variables is not last:
            request["vars"] = variables
            last = variables
        p.stdin.write(json.dumps(request).encode() + b"\n")
        p.stdin.flush()
        line = p.stdout.readline()
        if not line:
            raise SystemExit(f"jinjarun died with {p.wait()} on {name}: {template[:200]}")
        results.append((name, json.loads(line)))
        r = results[-1][1]
        if r["compile_ms"] + r["render_ms"] > 1000 or r["peak_mib"] > 256:
            print(f"  BAD {r['compile_ms']:.0f} + {r['render_ms']:.0f} ms {r['peak_mib']:.0f} MiB {r['steps']} steps  {name}  {r['error']}", flush=True)


def report(results):
    def show(title, key, n=14):
        print(title)
        for name, r in sorted(results, key=lambda x: -key(x[1]))[:n]:
            print(f"  {r['compile_ms']:7.0f} + {r['render_ms']:6.0f} ms {r['peak_mib']:6.0f} MiB {r['steps']:10d} steps  {name[:90]}  {r['error'][:60]}")

    show("slowest", lambda r: r["compile_ms"] + r["render_ms"], 30)
    show("largest", lambda r: r["peak_mib"])
    show("nanoseconds a step", lambda r: r["render_ms"] / max(r["steps"], 20_000), 30)
    bad = [r for _, r in results if r["compile_ms"] + r["render_ms"] > 1000 or r["peak_mib"] > 256]
    print(f"{len(results)} cases, {len(bad)} beyond 1 s or 256 MiB; {sum(1 for _, r in results if r['error'])} end in an error")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
