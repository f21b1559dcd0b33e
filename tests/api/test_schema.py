"""Constrained answers: what a grammar allows is valid by Python's json and the jsonschema package, whatever tokens are chosen."""
import concurrent.futures
import datetime
import ipaddress
import json
import os
import random
import re
import subprocess
import time

import jsonschema
import openai
import pydantic
import pytest

import real_schemas
import schemas
from conftest import ROOT, Daemon, events
from schemas import ACCEPTED, HOSTILE, REFUSED

DEMO = os.path.join(ROOT, "config", "demo")


def generate(wanted, count, seed, tokenizer=DEMO):
    lines = "".join(("json_object" if s is None else json.dumps(s)) + "\n" for s in wanted)
    out = subprocess.run([os.environ["GRAMMAR_GEN"], tokenizer, str(count), str(seed)], input=lines, capture_output=True, text=True)
    assert out.returncode == 0, out.stderr
    return [json.loads(line) for line in out.stdout.split("\n") if line]


def check(schema, text):
    value = json.loads(text)
    jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)(schema).validate(value)
    return value


@pytest.mark.parametrize("seed", [1, 2])
def test_random_answers_match_their_schemas(seed):
    n = cut = 0
    for name, schema, out in zip(ACCEPTED, ACCEPTED.values(), generate(ACCEPTED.values(), 20, seed)):
        assert "error" not in out, (name, out)
        cut += out["cut"]
        for text in out["answers"]:
            n += 1
            assert text[0] not in " \n", (name, text)
            try:
                check(schema, text)
            except Exception as e:
                raise AssertionError(f"{name}: {text!r}: {e}")
    print(f"{n} answers to {len(ACCEPTED)} schemas valid, {cut} cut")
    assert n > 16 * len(ACCEPTED)


def test_every_schema_is_answered_in_different_ways():
    alike = {"null", "closed and empty", "no properties", "const", "const text", "const in enum", "const and length", "one integer", "empty string", "no items",
             "required unknown", "strange names", "names in order", "ref with escapes", "pattern ^$", "patterns and enum",
             "pattern ^[^\\s@]+@[^\\s@]+$", "zod email",  # an @ may be long in coming
             "pattern ^\\{\\}\\[\\]\\(\\)$", "pattern ^\"quoted\"$", "pattern ^back\\\\slash$", "pattern ^line\\nend\\t$"}
    for name, out in zip(ACCEPTED, generate(ACCEPTED.values(), 30, 9)):
        values = {json.dumps(json.loads(t), sort_keys=True) for t in out["answers"]}
        assert len(values) > 1 or name in alike, (name, values)


def test_patterns_are_what_python_takes_them_for():
    """Not only is what comes valid: all that is valid can come."""
    draw, lines, wanted = random.Random(1), [], []
    patterns = [s["pattern"] for s in ACCEPTED.values() if isinstance(s, dict) and isinstance(s.get("pattern"), str) and not {"format", "enum"} & set(s)] + ["abc", "abc$", "^(a|b)*a(a|b){5}$", "ab|cd|^e"]
    for p in patterns:
        letters = sorted(set(re.sub(r"\\[a-zA-Z]|[\\^$*+?(){}|\[\]]", "", p)) | set("aZ0 -é\"\\"))
        texts = {"".join(draw.choice(letters) for _ in range(draw.randrange(7))) for _ in range(150)}
        found = re.findall(r"[\w.@ -]+", p)
        texts |= {a + b for a in found for b in ["", "c", "12"]} | {"ab", "abc", "aab", "1.2.3.4", "#fff", "+123456", "AB1234", "v1.20", "me@example.com", "2024-05", "x,y", "äö"}
        lines.append({"schema": {"type": "string", "pattern": p}, "texts": [json.dumps(t, ensure_ascii=False) for t in sorted(texts)]})
        wanted.append([(t, re.search(p, t, re.ASCII) is not None) for t in sorted(texts)])
    for line, want, got in zip(lines, wanted, generate(lines, 0, 1)):
        assert [g for g in got] == [w for _, w in want], (line["schema"], [(t, w) for (t, w), g in zip(want, got) if w != g])
    print(f"{sum(map(len, wanted))} texts, {sum(w for ws in wanted for _, w in ws)} of them match")


def test_what_people_write_by_hand_is_accepted():
    """Compact and pretty JSON in the schema's order."""
    person = {"name": "Zoë \"Z\" O'Neil\n", "age": 41, "height_m": 1.72, "address": {"street": "5 Rue é", "zip_code": "75001", "country": None}, "emails": ["a@b.c", ""], "favourite": "deep blue", "nick": None}
    for schema, values in [
            (ACCEPTED["Person"], [person, {k: person[k] for k in ["name", "age", "height_m", "address"]}]),
            (ACCEPTED["Node"], [{"value": -3, "children": [{"value": 10 ** 15, "children": []}, {"value": 0}]}]),
            (ACCEPTED["Owner"], [{"pet": {"kind": "cat", "lives": 9}}, {"pet": {"kind": "dog", "good": False}}]),
            (ACCEPTED["Scores"], [{"by_name": {"a": 1.5, "b": -2e-7, "": 0}, "pair": [1, "x"], "top": [3, 2, 1]}]),
            (ACCEPTED["Extra"], [{"id": 1, "more": [1, {"x": None}], "and more": True}]),
            (ACCEPTED["Dated"], [{"id": "123e4567-e89b-12d3-a456-426614174000", "day": "2024-02-28", "at": "2024-12-31T23:59:59.5+01:00", "code": "ABC-1234", "home": "https://x.org"}]),
            (ACCEPTED["openai ui"], [{"type": "div", "label": "", "children": [{"type": "button", "label": "B", "children": [], "attributes": []}], "attributes": [{"name": "n", "value": "v"}]}]),
            (ACCEPTED["enum of all"], ACCEPTED["enum of all"]["enum"][:6] + ["a\"b\\c\n", "größe 🙂", 1.5, 123]),
            (ACCEPTED["json"], [{"a": [1, 2.25, -3, "x", None, {"b": {}}]}, [], "t"]), (None, [{}, {"a": {"b": [[]]}}, {"größe": "ä\u0001 \ud83d\ude42 /"}])]:
        texts = []
        for v in values:
            enum = isinstance(v, list) and schema is ACCEPTED["enum of all"]
            texts += [json.dumps(v, ensure_ascii=False), json.dumps(v, separators=(",", ":"), ensure_ascii=False)] + ([] if enum else [json.dumps(v, indent=2, ensure_ascii=False), json.dumps(v, indent=4, ensure_ascii=False)])
            if schema is ACCEPTED["Person"]:
                texts.append(json.dumps(v))  # \\uXXXX
        got, = generate([{"schema": schema, "texts": texts}], 0, 1)
        assert all(got), [t for t, g in zip(texts, got) if not g]


def test_json_object_is_an_object():
    out, = generate([None], 300, 5)
    assert len(out["answers"]) > 250
    for text in out["answers"]:
        assert isinstance(json.loads(text), dict)


def test_properties_come_in_the_schemas_order():
    out, = generate([ACCEPTED["names in order"]], 5, 1)
    for text in out["answers"]:
        assert list(json.loads(text)) == list("zyxabc")


def test_formats_are_what_others_read():
    label = r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)"
    readers = {"duration": pydantic.TypeAdapter(datetime.timedelta).validate_strings, "ipv6": ipaddress.IPv6Address,
               "hostname": lambda t: len(t) <= 253 and re.fullmatch(rf"{label}(\.{label})*", t) or 1 / 0}
    for name, out in zip(readers, generate([ACCEPTED[f"format {name}"] for name in readers], 500, 6)):
        texts = {json.loads(t) for t in out["answers"]}
        assert len(texts) > 100
        for text in texts:
            readers[name](text)
    given = {"duration": ["P1D", "PT0S", "P3W", "P1Y2M3DT4H5M6S", "PT36H"], "ipv6": ["::", "::1", "2001:db8::8a2e:370:7334", "1:2:3:4:5:6:7:8", "fe80::", "1::8", "1:2:3:4:5:6::8"],
             "hostname": ["localhost", "www.example.com", "a-b.example.org"]}
    for name, texts in given.items():
        got, = generate([{"schema": ACCEPTED[f"format {name}"], "texts": [json.dumps(t) for t in texts]}], 0, 1)
        assert all(got), (name, texts, got)
    wrong = [{"schema": ACCEPTED["zod email"], "texts": ['"a@b.com"', '".a@b.com"', '"a..b@c.com"']}, {"schema": ACCEPTED["enum and length"], "texts": ['"ab"', '7', '"a"', '"größe"']},
             {"schema": ACCEPTED["draft 4 bounds"], "texts": ["4", "6", "3", "7"]}, {"schema": ACCEPTED["oneOf null and enum"], "texts": ["null", '"x"', "5", "true", "4"]}]
    assert generate(wrong, 0, 1) == [[True, False, False], [True, True, False, False], [True, True, False, False], [True, True, True, True, False]]


def test_every_value_of_an_enum_can_come():
    out, = generate([ACCEPTED["enum of all"]], 6000, 3)
    seen = {json.dumps(json.loads(t)) for t in out["answers"]}
    assert seen == {json.dumps(v) for v in ACCEPTED["enum of all"]["enum"]}


@pytest.mark.parametrize("name", ["range 0 100", "range -7 -3", "range -12 34", "multiples"])
def test_every_integer_of_a_range_can_come(name):
    schema = ACCEPTED[name]
    out, = generate([schema], 12000, 4)
    low, high = schema.get("minimum", schema.get("exclusiveMinimum", 0) + 1), schema.get("maximum", schema.get("exclusiveMaximum", 0) - 1)
    can = {v for v in range(low, high + 1) if v % schema.get("multipleOf", 1) == 0}
    came = {json.loads(t) for t in out["answers"]}
    assert came == can, (came - can, can - came)


def test_what_cannot_be_had_is_refused_by_name():
    for (schema, place, word), out in zip(REFUSED, generate([s for s, _, _ in REFUSED], 1, 1)):
        assert out.get("param") == place[:63] and word in out["error"], (schema, out)


def real_ones():
    """Also as the client sends models in strict mode, and what models are written as."""
    from openai.lib._pydantic import to_strict_json_schema
    rows = list(real_schemas.GIVEN.items())
    for name, model in real_schemas.MODELS.items():
        forms = [model.model_json_schema(), to_strict_json_schema(model)]
        try:
            forms.append(model.model_json_schema(mode="serialization"))
        except pydantic.errors.PydanticInvalidForJsonSchema:
            pass  # a computed type has none
        rows += [(name, form) for i, form in enumerate(forms) if form not in forms[:i]]
    return rows


@pytest.mark.filterwarnings("ignore")
def test_schemas_of_real_life_are_answered_or_refused_by_name():
    rows, refused, n = real_ones(), set(), 0
    for (name, schema), out in zip(rows, generate([s for _, s in rows], 20, 7)):
        if name in real_schemas.REFUSED:
            assert out["param"].split(".")[-1] == real_schemas.REFUSED[name] in out["error"] + out["param"], (name, out)
            refused.add(name)
            continue
        assert "error" not in out and (out["answers"] or out["cut"]), (name, out)
        for text in out["answers"]:
            n += 1
            try:
                check(schema, text)
            except Exception as e:
                raise AssertionError(f"{name}: {text!r}: {e}")
    assert refused == set(real_schemas.REFUSED)
    print(f"{n} answers to {len(rows)} schemas valid, {len(refused)} kinds refused")


def test_what_pydantic_reads():
    """Formats too, which jsonschema takes for annotations: the models themselves are the judges."""
    kinds = ["date", "datetime", "time", "timedelta", "aware", "uuid", "ip", "ip6", "url", "dict uuid keys", "dict date keys", "dict constrained keys", "dict key length", "tuple", "constr", "regex phone", "literal mixed"]
    for name, out in zip(kinds, generate([real_schemas.MODELS[k].model_json_schema() for k in kinds], 60, 8)):
        for text in out["answers"]:
            real_schemas.MODELS[name].model_validate_json(text)


def test_hostile_schemas_are_answered_soon():
    for name, schema in HOSTILE.items():
        begun = time.monotonic()
        out, = generate([schema], 1, 1)
        print(f"{name}: {out.get('error', 'answered')}, compiled in {out['compile_ms']:.2f} ms, slowest mask {out.get('ms', 0):.2f} ms, {time.monotonic() - begun:.2f} s in all")
        for text in out.get("answers", []):
            check(schema, text) if "ring" not in name and "doubling" not in name else json.loads(text)  # jsonschema takes for ever


# --- the whole daemon with the demo model, whose own idea of an answer is a story ---

DAEMON_OPTIONS = ["--server.max_n=8"]


def form(schema):
    if schema is None:
        return {"type": "json_object"}
    return {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}


def ask(daemon, schema, **fields):
    body = {"messages": [{"role": "user", "content": "Tell me of a king."}], "response_format": form(schema), "max_tokens": 300, **fields}
    return daemon.post("/v1/chat/completions", body, timeout=400)  # under sanitizers


def whole(choice, schema):
    """A choice that has ended by itself is valid; one that was cut is told so."""
    text = choice["message"]["content"] if "message" in choice else choice["text"]
    if choice["finish_reason"] == "length":
        return 0
    assert choice["finish_reason"] == "stop", choice
    try:
        check(schema, text)
    except Exception as e:
        raise AssertionError(f"{text!r}: {e}")
    return 1


def test_the_daemons_answers_match_their_schemas(daemon):
    def one(item):
        name, schema = item
        a = ask(daemon, schema, temperature=1.3, seed=len(name), n=2)
        assert a.status == 200, (name, a.body)
        return sum(whole(c, schema) for c in a.json["choices"])

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        done = sum(pool.map(one, ACCEPTED.items()))
    print(f"{done} of {2 * len(ACCEPTED)} answers ended by themselves, all valid")
    assert done > len(ACCEPTED)


def test_greedy_answers_match_too(daemon):
    for name in ["Person", "MathReasoning", "openai weather", "oneOf tags", "tuple", "range 0 100", "enum of all"]:
        for c in ask(daemon, ACCEPTED[name], temperature=0).json["choices"]:
            whole(c, ACCEPTED[name])


def test_json_object(daemon):
    for seed in range(5):
        c = ask(daemon, None, seed=seed, temperature=1.5).json["choices"][0]
        if c["finish_reason"] == "stop":
            assert isinstance(json.loads(c["message"]["content"]), dict)
    c = daemon.chat("Hi", response_format={"type": "json_object", "schema": ACCEPTED["range 0 100"]}).json["choices"][0]
    assert 0 <= json.loads(c["message"]["content"]) <= 100


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_stream_is_the_whole_answer(daemon, seed):
    fields = {"seed": seed, "temperature": 1, "n": 2}
    a = ask(daemon, ACCEPTED["Address"], **fields).json["choices"]
    text, finish = ["", ""], [None, None]
    for e in events(ask(daemon, ACCEPTED["Address"], stream=True, **fields).body):
        for c in e["choices"]:
            text[c["index"]] += c["delta"].get("content") or ""
            finish[c["index"]] = c["finish_reason"] or finish[c["index"]]
    assert text == [c["message"]["content"] for c in a] and finish == [c["finish_reason"] for c in a]


def test_the_same_alone_and_among_others(daemon):
    wanted = [ACCEPTED[k] for k in ["Person", "Node", "openai ui", "map", "matrix", "json"]]
    fields = {"temperature": 1.1, "max_tokens": 120, "logprobs": True, "top_logprobs": 2, "return_token_ids": True}

    def one(i):
        a = ask(daemon, wanted[i % len(wanted)], seed=i, **fields).json
        return a["choices"]

    alone = [one(i) for i in range(12)]
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        assert list(pool.map(one, range(12))) == alone


def test_preempted_answers_are_the_same():
    fields = {"temperature": 1.1, "max_tokens": 150}
    wanted = [ACCEPTED[k] for k in ["Person", "MathReasoning", "openai ui", "json"]]
    small = Daemon("--kv.kv_budget=1MiB", "--kv.swap_space=0")
    try:
        def one(i):
            return ask(small, wanted[i % 4], seed=i, **fields).json["choices"][0]["message"]["content"]
        alone = [one(i) for i in range(16)]
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            assert list(pool.map(one, range(16))) == alone
        print("preempted:", small.metric("expertd_preemptions_total"))
    finally:
        assert small.stop() == 0, small.log


def test_completions_take_it_too(daemon):
    schema = ACCEPTED["Dog"] if "Dog" in ACCEPTED else ACCEPTED["optional"]
    fields = {"response_format": form(schema), "seed": 3, "max_tokens": 200, "temperature": 1}
    c = daemon.complete("Once upon a time", **fields).json["choices"][0]
    assert whole(c, schema)
    e = daemon.complete("Once upon a time", echo=True, **fields).json["choices"][0]
    assert e["text"] == "Once upon a time" + c["text"]


def test_max_tokens_cuts(daemon):
    c = ask(daemon, ACCEPTED["Person"], max_tokens=3).json["choices"][0]
    assert c["finish_reason"] == "length" and c["message"]["content"]


def test_stop_strings_stop(daemon):
    schema = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 5}, "age": {"type": "integer"}}, "required": ["name", "age"]}
    c = ask(daemon, schema, stop=['"age"']).json["choices"][0]
    assert c["finish_reason"] == "stop" and c["stop_reason"] == '"age"' and '"age"' not in c["message"]["content"]


def test_the_end_needs_no_end_token(daemon):
    """min_tokens and ignore_eos forbid the end token; the JSON is whole all the same, and nothing follows it."""
    for more in [{"ignore_eos": True}, {"min_tokens": 200}, {"ignore_eos": True, "temperature": 0}]:
        c = ask(daemon, ACCEPTED["openai weather"], **more).json["choices"][0]
        assert whole(c, ACCEPTED["openai weather"]) or c["finish_reason"] == "length"
    assert whole(ask(daemon, {"type": "integer"}, ignore_eos=True).json["choices"][0], {"type": "integer"})


def test_logit_bias_and_penalties_choose_among_what_is_allowed(daemon):
    quote = daemon.post("/tokenize", {"prompt": '"', "add_special_tokens": False}).json["tokens"][0]
    for bias in [{str(quote): 100}, {str(quote): -100}, {"5": 100}]:
        c = ask(daemon, ACCEPTED["Address"], logit_bias=bias, repetition_penalty=1.3, frequency_penalty=1).json["choices"][0]
        whole(c, ACCEPTED["Address"])


def test_logprobs_are_of_the_models_own_distribution(daemon):
    """A forced token may be an unlikely one, and the alternatives need not be allowed."""
    c = ask(daemon, {"const": "zzzzqqqq"}, logprobs=True, top_logprobs=3, temperature=0).json["choices"][0]
    assert c["message"]["content"].strip() == '"zzzzqqqq"'
    entries = c["logprobs"]["content"]
    assert "".join(e["token"] for e in entries) == c["message"]["content"]
    assert min(e["logprob"] for e in entries) < -5 and any(e["token"] not in [t["token"] for t in e["top_logprobs"]] for e in entries)


def test_what_is_refused_has_its_name(daemon):
    for schema, place, word in REFUSED:
        a = ask(daemon, schema)
        assert a.status == 400 and word in a.error["message"], (schema, a.body)
        name = "response_format.json_schema.schema"
        full = name + ("" if not place else place if place[0] == "[" else "." + place)
        assert a.error["param"] == full[:63] if schema != 5 else a.error["param"] == name
    for bad, param in [({"type": "json_schema"}, ".json_schema"), ({"type": "json_schema", "json_schema": {"name": "x"}}, ".json_schema.schema"),
                       ({"type": "json_schema", "json_schema": {"name": 5, "schema": {}}}, ".json_schema.name"),
                       ({"type": "json_schema", "json_schema": {"name": "a", "strict": "yes", "schema": {}}}, ".json_schema.strict"),
                       ({"type": "grammar"}, ".type"), ({"type": None}, ".type"), ({}, ".type"), ({"type": "json_object", "schema": 5}, ".schema")]:
        a = daemon.chat("Hi", response_format=bad)
        assert a.status == 400 and a.error["param"] == "response_format" + param, (bad, a.body)


def test_hostile_schemas_do_not_hold_the_server_up(daemon):
    for name, schema in HOSTILE.items():
        a = ask(daemon, schema, max_tokens=20)
        assert a.status in (200, 400), name
    assert daemon.alive()


ASKED = {"model": "demo", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 400, "temperature": 1}


def parsed(model, ask_once):
    """The model of the first answer that ended by itself."""
    for seed in range(10):
        try:
            message = ask_once({**ASKED, "seed": seed, "response_format": model}).choices[0].message
        except openai.LengthFinishReasonError:
            continue
        assert isinstance(message.parsed, model)
        return
    raise AssertionError("no answer ended")


@pytest.mark.parametrize("model", [schemas.MathReasoning, schemas.CalendarEvent])
def test_pydantic_models_by_the_client(client, model):
    parsed(model, lambda asked: client.beta.chat.completions.parse(**asked))


def test_pydantic_models_streamed_by_the_client(client):
    def ask_once(asked):
        with client.beta.chat.completions.stream(**asked) as stream:
            for _ in stream:
                pass
            return stream.get_final_completion()

    parsed(schemas.CalendarEvent, ask_once)


def test_a_model_without_a_tokenizer_says_so():
    d = Daemon("--model.tokenizer=no")
    try:
        a = d.post("/v1/completions", {"prompt": [5, 6], "max_tokens": 2, "response_format": {"type": "json_object"}})
        assert a.status == 400 and a.error["param"] == "response_format" and a.error["code"] == "no_tokenizer"
    finally:
        assert d.stop() == 0, d.log
