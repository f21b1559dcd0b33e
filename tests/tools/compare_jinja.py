#!/usr/bin/env python3
"""Compares jinjarun with Python's jinja2 in the environment of Hugging Face transformers, byte for byte.

usage: compare_jinja.py JINJARUN templates CASES_EACH [--transformers] FILE.jinja...
       compare_jinja.py JINJARUN random CASES [SEED]
       compare_jinja.py JINJARUN broken CASES_EACH FILE.jinja...
       compare_jinja.py JINJARUN write FILE.json     (tests/data/jinja/generated.json; no comparison)
templates: each file is rendered with so many generated conversations. With --transformers the environment is the installed
package's own, else the same made here. random: generated expressions and templates (jinja_gen.py).
broken: each file with some characters changed, so that most have a syntax error somewhere; their lines are compared too.
An error of the reference must be an error here, and raise_exception's message must be the same. Exits 1 on any difference."""
import collections, datetime, json, os, random, re, signal, subprocess, sys, time, warnings

import jinja2, jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import jinja_gen

NOW = datetime.datetime(2026, 3, 9, 14, 5, 7)


class Raised(jinja2.exceptions.TemplateError):
    pass


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_support"), [], [], body).set_lineno(line)

    def _support(self, caller):
        return caller()


def raise_exception(message):
    raise Raised(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda format: NOW.strftime(format)
    return env


ENV = environment()


def compiler(use_transformers):
    if not use_transformers:
        return ENV.from_string
    from transformers.utils import chat_template_utils as u

    class Clock(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return NOW

    u.datetime = Clock

    def compile_template(text):
        t = u._compile_jinja_template(text)
        t.environment.globals["raise_exception"] = t.globals["raise_exception"] = raise_exception
        return t

    return compile_template


class Tool:
    def __init__(self, path):
        self.p = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def render(self, template, variables):
        request = {"vars": variables}
        if template is not None:
            request["template"] = template
        self.p.stdin.write(json.dumps(request).encode() + b"\n")
        self.p.stdin.flush()
        line = self.p.stdout.readline()
        if not line:
            raise SystemExit(f"jinjarun died with {self.p.wait()} on {request!r}")
        return json.loads(line)


def reference(compiled, variables):
    """("text", s), ("raise", message) or ("error", description)."""
    if isinstance(compiled, Exception):
        return "error", f"compile: {type(compiled).__name__}: {compiled}"
    try:
        signal.setitimer(signal.ITIMER_REAL, 2)
        text = compiled.render(**variables)
        text.encode()
        return ("unknown" if re.search(" .. ?0x[0-9a-f]{8}", text.lower()) else "text"), text
    except Raised as e:
        return "raise", str(e)
    except (TimeoutError, MemoryError) as e:
        return "unknown", repr(e)
    except Exception as e:  # whatever Python raises is the client's 400
        return "error", f"{type(e).__name__}: {e}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def same(expected, answer):
    kind, value = expected
    if kind == "unknown":  # it shows an address, or takes for ever
        return answer.get("stage") != "bug"
    if kind == "text":
        return answer.get("text") == value
    if "error" not in answer or answer["stage"] == "bug":
        return False
    if kind == "raise":
        return answer["code"] == "template_raise" and answer["error"].split() == value.split()[:len(answer["error"].split())]
    return True


# Answers that say clearly what is not done here: integers beyond 127 bits, \\N{NAME}, autoescaping, scoped blocks through self
REFUSED = ("too large", "not supported")


def compile_all(compile_template, text):
    try:
        return compile_template(text)
    except Exception as e:
        return e


class Report:
    def __init__(self, shown=3):
        self.shown = shown
        self.n, self.kinds, self.bad, self.by = 0, collections.Counter(), 0, collections.Counter()

    def add(self, where, template, variables, expected, answer):
        self.n += 1
        self.kinds[expected[0]] += 1
        if same(expected, answer):
            return
        if expected[0] in ("text", "raise") and any(w in answer.get("error", "") for w in REFUSED):
            self.kinds["refused"] += 1
            return
        self.bad += 1
        self.by[where] += 1
        if self.by[where] <= self.shown:
            print(f"DIFFERS {where}\n  template: {template!r}\n  vars: {json.dumps(variables)[:1500]}\n"
                  f"  reference: {expected}\n  here: {answer}", flush=True)

    def done(self, what, seconds):
        print(f"{what}: {self.n} renderings ({dict(self.kinds)}), {self.bad} differ, {seconds:.0f} s")
        for where, n in self.by.most_common(40):
            print(f"  {n:5d} {where}")
        return 1 if self.bad else 0


def run_templates(tool, each, files, use_transformers):
    report, start = Report(), time.time()
    compile_template = compiler(use_transformers)
    for path in files:
        text = open(path, encoding="utf-8", newline="").read()
        compiled = compile_all(compile_template, text)
        rng = random.Random(os.path.basename(path))
        name = os.path.basename(path)
        for i in range(each):
            variables = jinja_gen.conversation(rng)
            variables = json.loads(json.dumps(variables))
            expected = reference(compiled, variables)
            report.add(name, name, variables, expected, tool.render(text if i == 0 else None, variables))
    return report.done(f"{len(files)} templates", time.time() - start)


def run_random(tool, cases, seed):
    report, start = Report(400), time.time()
    rng, variables = random.Random(seed), json.dumps(jinja_gen.VARIABLES)
    warnings.simplefilter("ignore")
    pool = jinja_gen.POOL
    for i in range(cases):
        single = rng.random() < 0.6
        text = jinja_gen.expression(rng) if single else jinja_gen.template(rng)
        source = "{{ " + text + " }}" if single else text
        expected = reference(compile_all(ENV.from_string, source), json.loads(variables))  # indent() changes lists
        if single and expected[0] == "text" and len(text) < 120:
            if len(pool) < 5000:
                pool.append(text)
            else:
                pool[rng.randrange(5000)] = text
        report.add("expression" if single else "template", source, {}, expected, tool.render(source, jinja_gen.VARIABLES))
    return report.done("random templates", time.time() - start)


def write_cases(path):
    """One line a case: [expression, result], or [expression, null] where the reference fails."""
    warnings.simplefilter("ignore")
    variables, cases = json.dumps(jinja_gen.VARIABLES), {}
    for e in list(jinja_gen.systematic()):
        kind, value = reference(compile_all(ENV.from_string, "{{ " + e + " }}"), json.loads(variables))
        if kind == "text" and len(value) < 400 and not value.endswith("j)"):  # no complex numbers here
            cases[e] = value
        elif kind == "error":
            cases[e] = None
    with open(path, "w", encoding="utf-8") as f:
        f.write('{"vars": ' + variables + ',\n"cases": [\n')
        f.write(",\n".join(json.dumps([e, v], ensure_ascii=False) for e, v in cases.items()) + "\n]}\n")
    print(f"{len(cases)} cases, {sum(v is None for v in cases.values())} of them errors")
    return 0


PIECES = ["{{", "}}", "{%", "%}", "{#", "#}", "-", "+", "'", '"', "(", ")", "[", "]", ",", ".", "|", "=", " ", "\n", "if ", "else", "endif", "endfor", "{% endif %}",
          "{% endfor %}", "{% else %}", "not ", "in ", "is ", "0", "x", ":", "~", "*", "**", "loop.", "{", "}", "%", "\\", "{%- ", " -%}", "{{- ", " -}}"]


def broken(rng, text):
    for _ in range(rng.choice([1, 1, 2, 3])):
        i = rng.randrange(len(text) + 1)
        x = rng.random()
        if x < 0.4:
            text = text[:i] + text[i + rng.choice([1, 1, 2, 5, 20]):]
        elif x < 0.8:
            text = text[:i] + rng.choice(PIECES) + text[i:]
        else:
            j = rng.randrange(len(text) + 1)
            text = text[:i] + text[j:j + rng.choice([1, 3, 10])] + text[i:]
    return text


def run_broken(tool, each, files):
    report, start, lines = Report(30), time.time(), collections.Counter()
    warnings.simplefilter("ignore")
    for path in files:
        whole = open(path, encoding="utf-8", newline="").read()
        name = os.path.basename(path)
        rng = random.Random(name)
        for _ in range(each):
            text = broken(rng, whole)
            compiled = compile_all(ENV.from_string, text)
            variables = jinja_gen.conversation(rng)
            answer = tool.render(text, variables)
            report.add("broken", text, variables, reference(compiled, variables), answer)
            if isinstance(compiled, jinja2.TemplateSyntaxError) and answer.get("stage") == "compile":
                lines[f"line {compiled.lineno}:" in answer["error"]] += 1
    print(f"syntax errors: line as the reference's {lines[True]}, another line {lines[False]}")
    return report.done("changed templates", time.time() - start)


def too_long(signum, frame):
    raise TimeoutError


def main():
    signal.signal(signal.SIGALRM, too_long)
    tool, mode, args = Tool(sys.argv[1]), sys.argv[2], sys.argv[3:]
    if mode == "write":
        return write_cases(args[0])
    if mode == "templates":
        flag = "--transformers" in args
        args = [a for a in args if a != "--transformers"]
        return run_templates(tool, int(args[0]), args[1:], flag)
    if mode == "broken":
        return run_broken(tool, int(args[0]), args[1:])
    return run_random(tool, int(args[0]), int(args[1]) if len(args) > 1 else 1)


if __name__ == "__main__":
    sys.exit(main())
