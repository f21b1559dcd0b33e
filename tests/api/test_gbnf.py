"""Answers held to rules in GBNF, under each of the names that clients have for them: what comes is what Python's re or json takes."""
import concurrent.futures
import json
import os
import re

import pytest

from conftest import ROOT, Daemon, events, text_of

DAEMON_OPTIONS = ["--server.max_n=8"]

TALK = 'root ::= line{2}\nline ::= ("Fox" | "Crow") ": " [A-Z] [a-z ,]{3,20} [.!?] "\\n"'
TALK_RE = r"(?:(?:Fox|Crow): [A-Z][a-z ,]{3,20}[.!?]\n){2}"
NESTED = 'root ::= "(" root ")" | "[" root "]" | [a-f]{1,3}'
FORMS = {
    "grammar": lambda g: {"grammar": g},
    "guided_grammar": lambda g: {"guided_grammar": g},
    "structured_outputs.grammar": lambda g: {"structured_outputs": {"grammar": g, "json": None, "disable_any_whitespace": False}},
    "ebnf": lambda g: {"ebnf": g},
    "grammar_string": lambda g: {"grammar_string": g},
}


def read(name):
    with open(os.path.join(ROOT, "tests", "data", "gbnf", name + ".gbnf"), encoding="utf-8", newline="") as f:
        return f.read()


def ask(daemon, rules, **fields):
    body = {"messages": [{"role": "user", "content": "What did they say?"}], "max_tokens": 200, "grammar": rules, **fields}
    return daemon.post("/v1/chat/completions", body, timeout=180)


@pytest.mark.parametrize("name", FORMS)
def test_every_name_of_the_field_holds_the_answer(daemon, name):
    fields = {**FORMS[name](TALK), "max_tokens": 200, "seed": 3, "temperature": 1.2}
    a = daemon.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "What did they say?"}], **fields})
    assert re.fullmatch(TALK_RE, text_of(a)), a.body
    c = daemon.post("/v1/completions", {"prompt": "The fox and the crow talk:\n", **fields})
    assert re.fullmatch(TALK_RE, text_of(c)), c.body
    broken = daemon.post("/v1/completions", {"prompt": "x", **FORMS[name]('root ::= "a"\nroot ::= (b')})
    assert broken.status == 400 and broken.error["param"] == name and broken.error["code"] == "invalid_grammar"
    assert broken.error["message"] == f"'{name}': line 2, column 1: the rule 'root' is there already"


def test_answers_of_several_grammars(daemon):
    def one(i):
        rules, check = [(TALK, lambda t: re.fullmatch(TALK_RE, t)), (NESTED, lambda t: re.fullmatch(r"[(\[]*[a-f]{1,3}[)\]]*", t) and t.count("(") == t.count(")")),
                        (read("chess"), lambda t: re.match(r"1\. \S+ \S+\n\d", t)), (read("json"), json.loads)][i % 4]
        a = ask(daemon, rules, seed=i, temperature=1.2, n=2)
        assert a.status == 200, a.body
        done = 0
        for c in a.json["choices"]:
            if c["finish_reason"] == "stop":
                done += 1
                check(c["message"]["content"])
                assert i % 4 == 3 or check(c["message"]["content"]), c
        return done
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        done = sum(pool.map(one, range(24)))
    print(f"{done} of 48 answers ended by themselves")
    assert done > 20


def test_a_stream_is_the_whole_answer_with_several_choices(daemon):
    fields = {"seed": 5, "temperature": 1, "n": 2}
    whole = [c["message"]["content"] for c in ask(daemon, TALK, **fields).json["choices"]]
    text = ["", ""]
    for e in events(ask(daemon, TALK, stream=True, **fields).body):
        for c in e["choices"]:
            text[c["index"]] += c["delta"].get("content") or ""
    assert text == whole and all(re.fullmatch(TALK_RE, t) for t in text)


def test_the_same_alone_among_others_and_preempted():
    small = Daemon("--kv.kv_budget=1MiB", "--kv.swap_space=0")
    fields = {"temperature": 1.1, "max_tokens": 120, "logprobs": True, "top_logprobs": 2}
    rules = [TALK, NESTED, read("json"), read("english")]
    try:
        def one(i):
            return ask(small, rules[i % 4], seed=i, **fields).json["choices"]
        alone = [one(i) for i in range(16)]
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            assert list(pool.map(one, range(16))) == alone
        print("preempted:", small.metric("expertd_preemptions_total"))
    finally:
        assert small.stop() == 0, small.log


def test_the_end_of_the_rules_is_the_end_of_the_answer(daemon):
    for more in [{"ignore_eos": True}, {"min_tokens": 100}, {"temperature": 0}]:
        assert text_of(ask(daemon, 'root ::= "a" [b-c] "d"', **more)) in ("abd", "acd")
    assert text_of(ask(daemon, 'root ::= ""')) == ""
    c = ask(daemon, TALK, max_tokens=3).json["choices"][0]
    assert c["finish_reason"] == "length" and c["message"]["content"]
    c = ask(daemon, TALK, stop=[":"]).json["choices"][0]
    assert c["finish_reason"] == "stop" and c["stop_reason"] == ":" and c["message"]["content"] in ("Fox", "Crow")


def test_logprobs_are_of_the_models_own_distribution(daemon):
    c = ask(daemon, 'root ::= "zzzzqqqq"', logprobs=True, top_logprobs=2, temperature=0).json["choices"][0]
    assert c["message"]["content"] == "zzzzqqqq"
    assert "".join(e["token"] for e in c["logprobs"]["content"]) == "zzzzqqqq" and min(e["logprob"] for e in c["logprobs"]["content"]) < -5


def test_what_does_not_go_together_is_refused(daemon):
    for fields, param, word in [({"response_format": {"type": "json_object"}}, "grammar", "response_format"), ({"ebnf": TALK + " "}, "ebnf", "not the same"),
                                ({"grammar_lazy": True}, "grammar_lazy", "start"), ({"grammar": 5}, "grammar", "string"),
                                ({"structured_outputs": {"regex": "a"}}, "structured_outputs.regex", "both"),
                                ({"structured_outputs": {"grammar": 5}}, "structured_outputs.grammar", "string"), ({"structured_outputs": "x"}, "structured_outputs", "object"),
                                ({"grammar": "root ::= <think>"}, "grammar", "tokens"), ({"grammar": "root ::= x"}, "grammar", "line 1, column 10: there is no rule 'x'")]:
        a = ask(daemon, **{"rules": TALK, **fields})
        assert a.status == 400 and a.error["param"] == param and word in a.error["message"], (fields, a.body)
    for off in [{"grammar": ""}, {"grammar": None}, {"structured_outputs": {}}, {"structured_outputs": None}, {"response_format": {"type": "text"}}, {"ebnf": TALK},
                {"grammar_lazy": False, "grammar_triggers": []}]:
        assert ask(daemon, **{"rules": TALK, "max_tokens": 2, **off}).status == 200, off


def test_tools_are_not_taken_with_it(start):
    server = start("--model.chat_template={#<tool_call>#}{{ tools }}{{ messages[-1].content }}")
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    a = server.chat("x", tools=tools, grammar=TALK)
    assert a.status == 400 and a.error["param"] == "grammar" and "tools" in a.error["message"], a.body
    assert server.chat("x", tools=tools, grammar=TALK, tool_choice="none").status == 200
    lines = server.get("/metrics").body.decode().splitlines()
    assert 'expertd_constrained_requests_total{form="grammar"} 1' in lines


HOSTILE = {
    "deep": "root ::= " + "(" * 5000, "copies": "root ::= r0\n" + "".join(f"r{i} ::= r{i + 1} r{i + 1} r{i + 1}\n" for i in range(300)) + 'r300 ::= "x"',
    "counts": 'root ::= (((("a" | "b"){5000}){5000}){5000} "c"){5000}', "ambiguous": 'root ::= root root root | . root . | . | ""',
    "states": 'root ::= ("a" | "b")* "a" ("a" | "b"){30}', "long": 'root ::= "' + "x" * 300000 + '"', "pops": 'root ::= x\nx ::= [^q] x [^r]? | "q"',
    "rings": "root ::= r0\n" + "".join(f'r{i} ::= [a-z] r{i * 7 % 900} r{i * 3 % 900} | "x" r{(i + 1) % 900}? | . root\n' for i in range(900)),
}


def test_hostile_grammars_do_not_hold_the_server_up(daemon):
    for name, rules in HOSTILE.items():
        a = ask(daemon, rules, max_tokens=20)
        assert a.status in (200, 400), (name, a.body)
        print(name, a.status, a.error["message"][:100] if a.status == 400 else "")
    assert daemon.alive()
