"""Answers held to a regular expression, to one of some texts or to a schema, under each of the names that clients have for them: what comes is what
Python's re.fullmatch and the jsonschema package take."""
import concurrent.futures
import gzip
import json
import os
import re
import subprocess

import jsonschema
import openai
import pytest
from pydantic import BaseModel, Field

from conftest import ROOT, Daemon, events, text_of
from schemas import ACCEPTED

DAEMON_OPTIONS = ["--server.max_n=8"]

TALK = r"(?P<who>Fox|Crow): [A-Z][\w ,]{3,40}[.!?]\n"
COLOURS = ["red", "red and green", "bleu d'été", "青い", "🙂 \"quoted\"\n"]
FORMS = {
    "guided_regex": lambda v: {"guided_regex": v},
    "regex": lambda v: {"regex": v},
    "structured_outputs.regex": lambda v: {"structured_outputs": {"regex": v, "json": None, "whitespace_pattern": None, "disable_any_whitespace": False}},
    "guided_choice": lambda v: {"guided_choice": v},
    "structured_outputs.choice": lambda v: {"structured_outputs": {"choice": v, "grammar": None}},
}
NAMES = {"regex": ["guided_regex", "regex", "structured_outputs.regex"], "choice": ["guided_choice", "structured_outputs.choice"]}


def ask(daemon, **fields):
    return daemon.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "What did they say?"}], "max_tokens": 200, **fields}, timeout=180)


@pytest.mark.parametrize("name", FORMS)
def test_every_name_of_the_field_holds_the_answer(daemon, name):
    value = TALK if name in NAMES["regex"] else COLOURS
    fields = {**FORMS[name](value), "max_tokens": 200, "seed": 3, "temperature": 1.2}
    answers = [text_of(ask(daemon, **fields)), text_of(daemon.post("/v1/completions", {"prompt": "The fox and the crow talk:\n", **fields}))]
    response = daemon.post("/v1/responses", {"input": "What did they say?", **{**fields, "max_tokens": None, "max_output_tokens": 200}}).json
    answers.append(response["output"][0]["content"][0]["text"])
    for text in answers:
        assert re.fullmatch(TALK, text) if value is TALK else text in COLOURS, text


def test_random_answers_match():
    """What may come next is never wrong, whatever of it is taken: over expressions that Python has read, too."""
    with gzip.open(os.path.join(ROOT, "tests", "data", "regex", "vectors.json.gz")) as f:
        patterns = [v["regex"] for v in json.load(f)["expressions"]]
    patterns += [TALK, r"\W{1,8}\D{1,8}\S{1,8}", r"[^\w\s]+[^\W\d]+[^\S\n]", r"(?:[\w-]+\.)+[a-z]{2,6}(/[^\s?#]*)?", r"\s*\{\s*\"name\"\s*:\s*\"[^\"\\\n]*\"\s*\}", r"\d{1,3}(,\d{3})*(\.\d\d)? (EUR|USD|¥)"]
    jobs = "".join(json.dumps({"regex": p}) + "\n" for p in patterns)
    run = subprocess.run([os.environ["GRAMMAR_GEN"], os.path.join(ROOT, "config", "demo"), "12", "5"], input=jobs, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    answers = cut = 0
    for pattern, line in zip(patterns, run.stdout.split("\n")):
        out = json.loads(line)
        assert "error" not in out, (pattern, out)
        cut += out["cut"]
        for text in out["answers"]:
            if len(text) < 100 or "*" not in pattern:  # Python goes back and forth in long ones
                answers += 1
                assert re.fullmatch(pattern, text), (pattern, text)
    print(f"{answers} answers to {len(patterns)} expressions match, {cut} cut")
    assert answers > 8 * len(patterns)


REGEXES = [TALK, r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])", r"(yes|no)( because [a-z ]{5,30}\.)?", r"[A-ZÄÖÜ][a-zäöüß]{2,8}( [A-ZÄÖÜ][a-zäöüß]{2,8}){1,3}",
           r"\w+@\w+\.com\n", r"(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(?:25[0-5]|2[0-4]\d|1?\d?\d)", r"[一-龥]{2,4}。", r".{1,40}\."]


def test_answers_of_several_expressions(daemon):
    def one(i):
        a = ask(daemon, guided_regex=REGEXES[i % len(REGEXES)], seed=i, temperature=1.2, n=2)
        assert a.status == 200, a.body
        ended = [c["message"]["content"] for c in a.json["choices"] if c["finish_reason"] == "stop"]
        assert all(re.fullmatch(REGEXES[i % len(REGEXES)], t) for t in ended), (REGEXES[i % len(REGEXES)], ended)
        return len(ended)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        done = sum(pool.map(one, range(32)))
    print(f"{done} of 64 answers ended by themselves")
    assert done > 45


END = 2  # the end token of the demo model


def test_choices_of_which_one_begins_another(daemon):
    """The answer ends only where it is one of them, however much the model wants to end, and is free to go on there."""
    choices = ["Yes", "Yes please", "Yesterday", "No"]
    for bias, there, absent in [(100, "Yes", "Yes please"), (0, "No", None), (-100, "Yes please", "Yes")]:
        seen = set()
        for seed in range(8):
            a = ask(daemon, guided_choice=choices, seed=seed, temperature=2, n=8, logit_bias={str(END): bias})
            assert a.status == 200 and {c["finish_reason"] for c in a.json["choices"]} == {"stop"}, a.body
            seen.update(c["message"]["content"] for c in a.json["choices"])
        assert seen <= set(choices) and there in seen and absent not in seen, (bias, seen)
    a = ask(daemon, guided_regex="(ab){3,5}", logit_bias={str(END): 100}, n=4)
    assert {c["message"]["content"] for c in a.json["choices"]} == {"ababab"}
    for more in ({"ignore_eos": True}, {"min_tokens": 50}):
        assert text_of(ask(daemon, guided_choice=["ab", "c"], **more)) in ("ab", "c")
    assert text_of(ask(daemon, guided_choice=[""])) == "" and text_of(ask(daemon, guided_choice=["only"])) == "only"
    biased = ask(daemon, guided_choice=["", "a"], temperature=0, logprobs=True).json["choices"][0]
    assert biased["message"]["content"] in ("", "a")


def test_a_stream_is_the_whole_answer(daemon):
    for form in ({"guided_regex": TALK}, {"structured_outputs": {"choice": COLOURS}}):
        fields = {**form, "seed": 5, "temperature": 1.5, "n": 2}
        whole, text = [c["message"]["content"] for c in ask(daemon, **fields).json["choices"]], ["", ""]
        for e in events(ask(daemon, stream=True, **fields).body):
            for c in e["choices"]:
                text[c["index"]] += c["delta"].get("content") or ""
        assert text == whole


def test_the_end_of_the_match_is_the_end_of_the_answer(daemon):
    for more in [{"ignore_eos": True}, {"min_tokens": 100}, {"temperature": 0}]:
        assert text_of(ask(daemon, guided_regex="a[b-c]d", **more)) in ("abd", "acd")
    assert text_of(ask(daemon, guided_regex="(a|b){30}")).strip("ab") == ""
    c = ask(daemon, guided_regex=TALK, max_tokens=3).json["choices"][0]
    assert c["finish_reason"] == "length" and c["message"]["content"]
    c = ask(daemon, guided_regex=TALK, stop=[":"]).json["choices"][0]
    assert c["finish_reason"] == "stop" and c["stop_reason"] == ":" and c["message"]["content"] in ("Fox", "Crow")


def test_as_vllm_shows_it_with_the_openai_client(daemon):
    client = openai.OpenAI(base_url=daemon.url + "/v1", api_key="-", max_retries=0)
    ask_client = lambda **extra: client.chat.completions.create(model="demo", messages=[{"role": "user", "content": "Classify this sentiment: vLLM is wonderful!"}], max_tokens=100, extra_body=extra, seed=1)
    assert ask_client(structured_outputs={"choice": ["positive", "negative"]}).choices[0].message.content in ("positive", "negative")
    assert ask_client(guided_choice=["positive", "negative"]).choices[0].message.content in ("positive", "negative")
    assert re.fullmatch(r"[a-z]{3,9}@[a-z]{3,9}\.com", ask_client(structured_outputs={"regex": r"[a-z]{3,9}@[a-z]{3,9}\.com\n"}, stop=["\n"]).choices[0].message.content)
    with pytest.raises(openai.BadRequestError, match="looks ahead"):
        ask_client(structured_outputs={"regex": "(?=a)b"})


SCHEMA = {"type": "object", "properties": {"zebra": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 1, "maximum": 99}, "kind": {"enum": ["fox", "crow"]}}, "required": ["zebra", "age", "kind"], "additionalProperties": False}
SCHEMA_FORMS = {
    "guided_json": lambda s: {"guided_json": s},
    "guided_json, text": lambda s: {"guided_json": json.dumps(s)},
    "json_schema": lambda s: {"json_schema": s},
    "json_schema, text": lambda s: {"json_schema": json.dumps(s, ensure_ascii=False, indent=2)},
    "structured_outputs.json": lambda s: {"structured_outputs": {"json": s, "regex": None, "disable_any_whitespace": False}},
    "structured_outputs.json, text": lambda s: {"structured_outputs": {"json": json.dumps(s), "json_object": False}},
    "response_format": lambda s: {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": s}}},
    "response_format.schema": lambda s: {"response_format": {"type": "json_schema", "schema": s}},
    "response_format.schema beside null": lambda s: {"response_format": {"type": "json_schema", "json_schema": None, "schema": s}},
    "several": lambda s: {"guided_json": s, "json_schema": s, "structured_outputs": {"json": s}, "response_format": {"type": "text"}},
}


def text_and_end(answer):
    c = answer.json["choices"][0]
    return c["message"]["content"], c["finish_reason"]


@pytest.mark.parametrize("name", SCHEMA_FORMS)
def test_every_name_of_a_schema_holds_the_answer(daemon, name):
    fields = {**SCHEMA_FORMS[name](SCHEMA), "seed": 4, "temperature": 1.2, "max_tokens": 200}
    answers = [text_of(ask(daemon, **fields)), text_of(daemon.post("/v1/completions", {"prompt": "A king, as JSON: ", **fields}))]
    if "response_format" not in fields:
        response = daemon.post("/v1/responses", {"input": "Tell me of a king.", **{**fields, "max_tokens": None, "max_output_tokens": 200}}).json
        answers.append(response["output"][0]["content"][0]["text"])
    for text in answers:
        jsonschema.validate(json.loads(text), SCHEMA)
        assert list(json.loads(text)) == ["zebra", "age", "kind"]  # in the schema's order, as text too
    assert answers[0] == text_of(ask(daemon, **{**fields, **dict.fromkeys(SCHEMA_FORMS[name](SCHEMA)), **SCHEMA_FORMS["response_format"](SCHEMA)}))


def test_answers_of_several_schemas(daemon):
    names = list(SCHEMA_FORMS)
    def one(item):
        i, (name, schema) = item
        if not isinstance(schema, dict) or not schema:
            return 0, 0
        a = ask(daemon, **SCHEMA_FORMS[names[i % len(names)]](schema), seed=i, temperature=1.2, n=2)
        assert a.status == 200, (name, a.body)
        ended = [c["message"]["content"] for c in a.json["choices"] if c["finish_reason"] == "stop"]
        for text in ended:
            jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)(schema).validate(json.loads(text))
        return len(ended), 2
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        done, of = map(sum, zip(*pool.map(one, enumerate(ACCEPTED.items()))))
    print(f"{done} of {of} answers ended by themselves, all valid")
    assert done > of / 2


def test_any_json(daemon):
    seen = set()
    for seed in range(6):
        fields = {"seed": seed, "temperature": 1.5}
        for form in ({"structured_outputs": {"json": {}}}, {"guided_json": "{}"}, {"json_schema": " {} "}, {"structured_outputs": {"json_object": True}},
                     {"response_format": {"type": "json_object", "schema": {}}}, {"response_format": {"type": "json_object", "json_schema": None}}):
            text, end = text_and_end(ask(daemon, **fields, **form))
            value = json.loads(text) if end == "stop" else None
            if "json_object" in str(form):  # llama.cpp's {} beside the type says no more
                assert text[0] == "{" and (end != "stop" or isinstance(value, dict))
            else:
                seen.add(text[0])
    assert seen - {"{"}, seen  # not only objects


class King(BaseModel):
    name: str = Field(max_length=20)
    age: int = Field(ge=1, le=99)


def test_pydantic_with_the_openai_client(daemon):
    client = openai.OpenAI(base_url=daemon.url + "/v1", api_key="-", max_retries=0)
    schema = King.model_json_schema()
    for extra in ({"guided_json": schema}, {"structured_outputs": {"json": schema}}, {"json_schema": json.dumps(schema)}):
        a = client.chat.completions.create(model="demo", messages=[{"role": "user", "content": "Tell me of a king."}], max_tokens=300, seed=2, extra_body=extra)
        King.model_validate_json(a.choices[0].message.content)
        a = client.completions.create(model="demo", prompt="A king: ", max_tokens=300, seed=2, stream=True, extra_body=extra)
        King.model_validate_json("".join(c.choices[0].text for c in a if c.choices))


FAULTS = [
    ({"guided_regex": "a(b"}, "guided_regex", "invalid_regex", "'guided_regex': character 2: the regular expression has a ( without its )"),
    ({"regex": r"(a)\1"}, "regex", "invalid_regex", "'regex': character 4: the regular expression refers back to a group, which is not supported"),
    ({"structured_outputs": {"regex": "(?<!a)b"}}, "structured_outputs.regex", "invalid_regex", "looks behind"),
    ({"guided_regex": "é{1000000}"}, "guided_regex", "invalid_regex", "character 2: the regular expression repeats a part more than 5000 times"),
    ({"guided_regex": "x" * 300000}, "guided_regex", "invalid_regex", "the regular expression has 300000 bytes: at most 262144 are allowed"),
    ({"guided_regex": "a\0b"}, "guided_regex", None, "NUL"),
    ({"guided_regex": 5}, "guided_regex", "invalid_type", "string"),
    ({"guided_regex": ["a"]}, "guided_regex", "invalid_type", "string"),
    ({"structured_outputs": {"regex": {}}}, "structured_outputs.regex", "invalid_type", "string"),
    ({"guided_choice": "yes"}, "guided_choice", "invalid_type", "array"),
    ({"guided_choice": ["a", 5]}, "guided_choice[1]", "invalid_type", "string"),
    ({"structured_outputs": {"choice": ["a", None]}}, "structured_outputs.choice[1]", "invalid_type", "string"),
    ({"structured_outputs": {"choice": "a"}}, "structured_outputs.choice", "invalid_type", "array"),
    ({"guided_choice": []}, "guided_choice", "invalid_value", "'guided_choice': 1 to 10000 strings are allowed, not 0"),
    ({"structured_outputs": {"choice": []}}, "structured_outputs.choice", "invalid_value", "not 0"),
    ({"guided_choice": ["a"] * 10001}, "guided_choice", "invalid_value", "not 10001"),
    ({"guided_choice": ["a" * 131073]}, "guided_choice", "invalid_value", "131073 bytes together: at most 131072"),
    ({"guided_choice": ["a\0"]}, "guided_choice", None, "NUL"),
    ({"guided_regex": "a", "regex": "b"}, "regex", "invalid_value", "'regex' and 'guided_regex' are not the same"),
    ({"guided_choice": ["a"], "structured_outputs": {"choice": ["b"]}}, "structured_outputs.choice", "invalid_value", "not the same"),
    ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice", "invalid_value", "'guided_choice' and 'guided_regex' both say what the answer is: send one of them"),
    ({"guided_regex": "a", "grammar": 'root ::= "a"'}, "guided_regex", "invalid_value", "'guided_regex' and 'grammar' both"),
    ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs.choice", "invalid_value", "both"),
    ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex", "invalid_value", "'response_format' both"),
    ({"guided_choice": ["a"], "response_format": {"type": "json_schema", "json_schema": {"schema": {}}}}, "guided_choice", "invalid_value", "both"),
    *[({name: v}, name, "invalid_type", f"'{name}' must be an object or a string, not {kind}") for name in ("guided_json", "json_schema") for v, kind in ((5, "an integer"), (True, "a boolean"), (False, "a boolean"), ([{}], "an array"))],
    ({"structured_outputs": {"json": [1]}}, "structured_outputs.json", "invalid_type", "an object or a string"),
    ({"structured_outputs": {"json": False}}, "structured_outputs.json", "invalid_type", "an object or a string"),
    ({"structured_outputs": {"json_object": "true"}}, "structured_outputs.json_object", "invalid_type", "a boolean"),
    ({"structured_outputs": {"json_object": {}}}, "structured_outputs.json_object", "invalid_type", "a boolean"),
    ({"guided_json": {"properties": {"a": {"not": {}}}}}, "guided_json.properties.a.not", "invalid_json_schema", "'guided_json': "),
    ({"guided_json": json.dumps({"items": {"if": {"type": "null"}}})}, "guided_json.items.if", "invalid_json_schema", "'guided_json': "),
    ({"json_schema": {"type": "strange"}}, "json_schema.type", "invalid_json_schema", "'json_schema': "),
    ({"structured_outputs": {"json": '{"$ref": "#/no"}'}}, "structured_outputs.json.$ref", "invalid_json_schema", "'structured_outputs.json': "),
    ({"response_format": {"type": "json_schema", "schema": {"not": {}}}}, "response_format.schema.not", "invalid_json_schema", "not"),
    ({"response_format": {"type": "json_schema", "schema": "{}"}}, "response_format.json_schema", "missing_required_parameter", "missing"),
    *[({"structured_outputs": v}, "structured_outputs", "invalid_value", "none of json, json_object, regex, choice and grammar") for v in ({"Json": {"type": "object"}}, {"schema": {}}, {"guided_json": {}}, {"disable_any_whitespace": True}, {"json": None, "choices": ["a"]})],
    ({"response_format": {"type": "json_object", "json_schema": {"name": "n", "schema": {"type": "object"}}}}, "response_format.json_schema", "invalid_value", "\"type\": \"json_schema\""),
    ({"extra_body": {"guided_json": {"type": "object"}}}, "extra_body", "unsupported_parameter", "at the top"),
    ({"guided_json": '{"type": '}, "guided_json", "invalid_json", "'guided_json' is not valid JSON: "),
    ({"guided_json": "{'type': 'object'}"}, "guided_json", "invalid_json", "(line 1, column 2)"),
    ({"guided_json": "true"}, "guided_json", "invalid_json", "'guided_json' must be a JSON object, not a boolean"),
    ({"json_schema": "[]"}, "json_schema", "invalid_json", "'json_schema' must be a JSON object, not an array"),
    ({"json_schema": '{"type":"object","type":"object"}'}, "json_schema", "invalid_json", "duplicate"),
    ({"json_schema": '{"const":"a\\u0000"}'}, "json_schema", "invalid_value", "'json_schema' holds a NUL"),
    ({"json_schema": '{"a\\u0000":1}'}, "json_schema", "invalid_json", "a name in 'json_schema' holds a NUL"),
    ({"json_schema": '{"const":1e999}'}, "json_schema", "invalid_value", "'json_schema' holds a number that is out of range"),
    ({"json_schema": '{"a":' * 101 + "1" + "}" * 101}, "json_schema", None, "'json_schema' is nested more than 100 levels deep"),
    ({"json_schema": '{"a":[' + "0," * 50001 + "0]}"}, "json_schema", "invalid_json_schema", "50000"),
    ({"json_schema": "\0{}"}, "json_schema", "invalid_value", "NUL"),
    ({"guided_json": {"type": "object"}, "json_schema": {"type": "array"}}, "json_schema", "invalid_value", "'json_schema' and 'guided_json' are not the same"),
    ({"guided_json": {"type": "object"}, "guided_regex": "a"}, "guided_json", "invalid_value", "'guided_json' and 'guided_regex' both"),
    ({"structured_outputs": {"json": {}, "json_object": True}}, "structured_outputs.json_object", "invalid_value", "both"),
    ({"json_schema": {"type": "object"}, "grammar": 'root ::= "a"'}, "json_schema", "invalid_value", "both"),
    ({"guided_json": {"type": "object"}, "response_format": {"type": "json_object"}}, "guided_json", "invalid_value", "'guided_json' and 'response_format' both"),
    ({"structured_outputs": {"json_object": True}, "response_format": {"type": "json_object"}}, "structured_outputs.json_object", "invalid_value", "both"),
    ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag", "unsupported_parameter", "use tools"),
]


@pytest.mark.parametrize("fields,param,code,words", FAULTS, ids=[str(i) for i in range(len(FAULTS))])
def test_what_is_wrong_is_said(daemon, fields, param, code, words):
    for a in (ask(daemon, **fields), daemon.post("/v1/completions", {"prompt": "x", **fields})):
        assert a.status == 400 and a.error["param"] == param and a.error["type"] == "invalid_request_error", a.body
        assert words in a.error["message"] and (code is None or a.error["code"] == code), a.body


def test_what_switches_it_off_and_what_goes_together(daemon):
    free = text_and_end(ask(daemon, max_tokens=9, seed=1))
    for fields in [{"guided_regex": ""}, {"guided_regex": None}, {"guided_choice": None}, {"structured_outputs": {"regex": None, "choice": None}}, {"structured_outputs": {"regex": ""}},
                   {"guided_json": None}, {"guided_json": ""}, {"guided_json": {}}, {"json_schema": {}}, {"json_schema": ""}, {"structured_outputs": {"json": None, "json_object": None}},
                   {"structured_outputs": {"json": "", "json_object": False}}, {"structured_outputs": {}}, {"structured_outputs": {"disable_any_whitespace": False, "whitespace_pattern": None}}, {"extra_body": {}}]:
        assert text_and_end(ask(daemon, max_tokens=9, seed=1, **fields)) == free, fields
    assert text_of(ask(daemon, guided_regex="ab", regex="ab", structured_outputs={"regex": "ab"}, response_format={"type": "text"})) == "ab"
    assert text_of(ask(daemon, guided_choice=["ab"], structured_outputs={"choice": ["ab"]}, grammar="")) == "ab"


def test_tools_are_not_taken_with_it(start):
    server = start("--model.chat_template={#<tool_call>#}{{ tools }}{{ messages[-1].content }}")
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    for fields in ({"guided_regex": "a"}, {"guided_choice": ["a"]}):
        a = server.chat("x", tools=tools, **fields)
        assert a.status == 400 and a.error["param"] == next(iter(fields)) and "tools" in a.error["message"], a.body
        assert server.chat("x", tools=tools, tool_choice="none", **fields).status == 200
    assert 'expertd_constrained_requests_total{form="grammar"} 2' in server.get("/metrics").body.decode().splitlines()


def test_a_form_that_the_tokenizer_cannot_spell_names_its_field(tmp_path):
    demo = os.path.join(ROOT, "config", "demo")
    for file in os.listdir(demo):
        if file != "tokenizer.json":
            os.symlink(os.path.join(demo, file), tmp_path / file)
    with open(os.path.join(demo, "tokenizer.json"), encoding="utf-8") as f:
        tokenizer = json.load(f)
    (tmp_path / "tokenizer.json").write_text(json.dumps({**tokenizer, "decoder": None}))
    own = Daemon("--model", str(tmp_path), "--model.chat_template=" + os.path.join(demo, "tools.jinja"))
    try:
        tools = [{"type": "function", "function": {"name": "f"}}]
        for field, fields in {"guided_regex": {"guided_regex": "a"}, "guided_json": {"guided_json": SCHEMA}, "response_format": {"response_format": {"type": "json_object"}, "tools": tools},
                              "tool_choice": {"tools": tools, "tool_choice": "required", "response_format": {"type": "json_object"}}}.items():
            a = ask(own, **fields)
            assert a.status == 400 and a.error["param"] == field and "the tokenizer's decoder does more than join its tokens" in a.error["message"], a.body
    finally:
        own.stop()


HOSTILE = {
    "deep": "(" * 5000 + ")" * 5000, "open": "(" * 100000, "counts": "((((a{5000}){5000}){5000}){5000})", "states": "(a|b)*a(a|b){30}", "both": "(.*a){15}", "empty": "((a*)*)*{2}", "nested": "(((a?){50}){50}){4}",
    "class": "[" + "a-z" * 60000 + "]", "words": r"(\w+\s){300}", "alternatives": "|".join(f"{i}x" for i in range(30000)), "unicode": r"[^\d]{4000}", "many": r"\D" * 20000, "stars": "a*" * 4000 + "b",
    "letters": "[" + "a" * 250000 + "]", "ranges": "(?:[" + "".join(map(chr, range(0x1000, 0xD000, 2))) + "]?){4900}",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_expressions_do_not_hold_the_server_up(daemon, name):
    a = ask(daemon, guided_regex=HOSTILE[name], max_tokens=20)
    assert a.status in (200, 400), a.body
    print(name, a.status, a.error["message"][:120] if a.status == 400 else "")
    assert daemon.alive()
