"""Every field with every wrong type, made from the table in api/request.c, and every range."""
import json
import os
import re

import pytest

from conftest import ROOT

ROW = re.compile(r'^\s*\{"(\w+)",\s*FIELD_(\w+),\s*(\w+),\s*[^,]+(?:\([^)]*\))?,\s*([-\w.]+),\s*([-\w.]+),', re.M)
TABLE = ROW.findall(open(os.path.join(ROOT, "api", "request.c"), encoding="utf-8").read())
VALUES = {"string": "true", "integer": 1, "real": 1.5, "bool": True, "array": [], "object": {}}
TAKES = {"BOOL": {"bool"}, "INT": {"integer"}, "REAL": {"integer", "real"}, "STRING": {"string"}, "ARRAY": {"array"},
         "OBJECT": {"object"}}
ENDPOINTS = {"GEN_CHAT": ["chat"], "GEN_COMPLETION": ["completions"], "BOTH": ["chat", "completions"]}


def ask(server, endpoint, **fields):
    if endpoint == "chat":
        return server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, **fields})
    return server.post("/v1/completions", {"prompt": "hi", "max_tokens": 2, **fields})


def rows():
    assert len(TABLE) > 50
    for name, kind, where, low, high in TABLE:
        for endpoint in ENDPOINTS[where]:
            yield pytest.param(name, kind, endpoint, low, high, id=f"{endpoint}-{name}")


@pytest.mark.parametrize("name,kind,endpoint,low,high", rows())
def test_wrong_types_are_refused_by_name(server, name, kind, endpoint, low, high):
    for type_name, value in VALUES.items():
        if kind in TAKES and type_name not in TAKES[kind]:
            a = ask(server, endpoint, **{name: value})
            assert a.status == 400 and a.error["param"] == name and name in a.error["message"], (type_name, a.body)
        if kind == "REFUSED":
            a = ask(server, endpoint, **{name: value})
            assert a.status == 400 and a.error["param"] == name and a.error["code"] == "unsupported_parameter"
        if kind == "OFF":
            a = ask(server, endpoint, **{name: value if type_name != "integer" else 2})
            assert a.status == 400 and a.error["param"] == name and a.error["code"] == "unsupported_parameter"
    if kind == "OFF":  # what clients send by default
        assert ask(server, endpoint, **{name: float(low)}).status == ask(server, endpoint, **{name: int(high)}).status == 200
    if name not in ("prompt", "messages"):
        assert ask(server, endpoint, **{name: None}).status == 200, "null is as if absent"
    assert server.process.poll() is None


@pytest.mark.parametrize("name,kind,endpoint,low,high", rows())
def test_ranges(server, name, kind, endpoint, low, high):
    if kind not in ("INT", "REAL"):
        pytest.skip("has no range")
    low = float(low)
    high = {"INT_MAX_TOKENS": 2147483647.0, "ENGINE_MAX_TOP_LOGPROBS": 20.0}.get(high) or float(high)
    for value in [low - 1, high + 1, -1e300, 1e300]:
        if kind == "INT":
            if abs(value) > 2**62:
                continue
            value = int(value)
        a = ask(server, endpoint, **{name: value})
        assert a.status == 400 and a.error["param"] == name, (value, a.body)


@pytest.mark.parametrize("text", ["NaN", "Infinity", "1e400", "-1e400", "99999999999999999999999", "01", "+1", ".5", "1.", "0x1"])
def test_numbers_that_are_none(server, text):
    a = server.post("/v1/completions", '{"prompt":"a","temperature":%s}' % text)
    assert a.status == 400 and a.error


@pytest.mark.parametrize("body,param", [
    ('{"prompt":"a","seed":18446744073709551615}', "seed"), ('{"prompt":"a", "temperature" : -1e999 , "n":1}', "temperature"),
    ('{"prompt":[1,99999999999999999999]}', None), ('{"prompt":"\\"n\\":","x":{"seed":\n1e400}}', "seed"),
])
def test_numbers_too_large_for_any_field(server, body, param):
    a = server.post("/v1/completions", body)
    assert a.status == 400 and a.error["param"] == param and "too large" in a.error["message"], a.body


def test_a_number_with_a_point_is_no_integer(server):
    a = server.post("/v1/completions", '{"prompt":"a","max_tokens":16.0}')
    assert a.status == 400 and "an integer, not a number with a point" in a.error["message"]


@pytest.mark.parametrize("body", [
    "", " ", "{", "}", "[]", "null", "1", '"x"', "{]", '{"prompt":"a"', '{"prompt":"a",}', "{'prompt':'a'}", '{"prompt":"a"}x',
    '{"prompt":"a"}{"prompt":"b"}', '{"prompt":"a","prompt":"b"}', '{"prompt":"a\\u0000b"}',
    '{"prompt":"a\nb"}', "[" * 100000, '{"a":' * 100000, '{"prompt":[' + "0," * 400000 + "0]}", "\x00", '{"prompt":"a"}\x00',
    "\ufeff{}",
])
def test_bad_json(server, body):
    a = server.post("/v1/completions", body.encode("utf-8", "surrogatepass"))
    assert a.status == 400 and a.error["type"] == "invalid_request_error", a.body
    assert server.alive()


def test_a_byte_order_mark_is_skipped(server):
    assert server.post("/v1/completions", b'\xef\xbb\xbf{"prompt":"a","max_tokens":1}').status == 200


@pytest.mark.parametrize("escaped,text", [
    ("\\ud83d", "\ufffd"), ("a\\uDE00b", "a\ufffdb"), ("\\ud83d\\ud83d\\ude00", "\ufffd\U0001f600"), ("\\ude00\\ud83d", "\ufffd\ufffd"),
    ("\\ud83d\\ude00", "\U0001f600"), ("\\ud83dx", "\ufffdx"), ("\\ud83d\\n", "\ufffd\n"), ("\\\\ud83d", "\\ud83d"),
    ("\\\\\\ud83d", "\\\ufffd"), ("\\ud83d\\u0041", "\ufffdA"),
])
def test_half_of_an_emoji_is_a_replacement_character(server, escaped, text):
    a = server.post("/tokenize", '{"prompt":"%s"}' % escaped)
    assert a.status == 200 and a.json["tokens"] == server.post("/tokenize", {"prompt": text}).json["tokens"]


def test_deep_and_many_values_are_refused_before_they_cost_memory(start):
    server = start("--server.max_body=64MiB")
    a = server.post("/v1/completions", b'{"prompt":[' + b"0," * 3000000 + b"0]}")
    assert a.status == 400 and "values" in a.error["message"]


@pytest.mark.parametrize("fields,param", [
    ({"n": 9}, "n"), ({"n": 1000000}, "n"), ({"n": 0}, "n"), ({"n": -1}, "n"),
    ({"stop": ""}, "stop"), ({"stop": [""]}, "stop[0]"), ({"stop": ["a"] * 100}, "stop"), ({"stop": [1]}, "stop[0]"),
    ({"stop": 5}, "stop"), ({"stop": "x" * 2000}, "stop"),
    ({"logit_bias": {"x": 1}}, "logit_bias"), ({"logit_bias": {"512": 1}}, "logit_bias"), ({"logit_bias": {"-1": 1}}, "logit_bias"),
    ({"logit_bias": {"1": 101}}, "logit_bias"), ({"logit_bias": {"1": "1"}}, "logit_bias"),
    ({"logit_bias": {"99999999999999999999": 1}}, "logit_bias"), ({"logit_bias": {str(i): 1 for i in range(1100)}}, "logit_bias"),
    ({"stop_token_ids": [512]}, "stop_token_ids"), ({"stop_token_ids": [-1]}, "stop_token_ids"),
    ({"stop_token_ids": ["a"]}, "stop_token_ids"), ({"stop_token_ids": [1] * 1000}, "stop_token_ids"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
    ({"response_format": {"type": "json_object"}}, "response_format"), ({"response_format": {}}, "response_format.type"),
    ({"min_tokens": 5}, "min_tokens"), ({"model": "other"}, "model"),
])
def test_values_that_make_no_sense(server, fields, param):
    for endpoint in ["chat", "completions"]:
        a = ask(server, endpoint, **fields)
        assert a.status == (404 if param == "model" else 400) and a.error["param"] == param, a.body


@pytest.mark.parametrize("fields,param", [
    ({"best_of": 3}, "best_of"), ({"suffix": "x"}, "suffix"), ({"logprobs": 21}, "logprobs"), ({"logprobs": True}, "logprobs"),
])
def test_completions_only(server, fields, param):
    a = ask(server, "completions", **fields)
    assert a.status == 400 and a.error["param"] == param


@pytest.mark.parametrize("fields,param", [
    ({"top_logprobs": 2}, "top_logprobs"), ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"tool_choice": "required"}, "tool_choice"), ({"tool_choice": {"type": "function"}}, "tool_choice"),
    ({"modalities": ["audio"]}, "modalities"), ({"chat_template": "{{ messages }}"}, "chat_template"),
    ({"max_tokens": 0}, "max_tokens"), ({"max_completion_tokens": 0}, "max_completion_tokens"),
])
def test_chat_only(server, fields, param):
    a = ask(server, "chat", **fields)
    assert a.status == 400 and a.error["param"] == param


def test_no_limit_is_said_by_minus_one(server):
    """As llama.cpp's clients do. The fake engine ends after the prompt's repetition."""
    long = "ab" * 30
    for a in [ask(server, "completions", prompt=long, max_tokens=-1), ask(server, "chat", max_tokens=-1),
              ask(server, "chat", max_completion_tokens=-1)]:
        assert a.status == 200 and a.json["choices"][0]["finish_reason"] == "stop", a.body
    assert ask(server, "completions", prompt=long, max_tokens=-1).json["usage"]["completion_tokens"] > 16


@pytest.mark.parametrize("prompt", [
    "", [], [""], ["a", ""], [[]], [[1], []], [1.5], [True], [None], {}, 5, True, [1, "a"], ["a", 1], [[1, "a"]], [512], [-1],
    [[512]], [2**40], [["a"]], ["a"] * 129,
])
def test_prompts_that_are_none(server, prompt):
    a = server.complete(prompt)
    assert a.status == 400 and a.error["param"].startswith("prompt"), a.body
    assert server.process.poll() is None


@pytest.mark.parametrize("messages", [
    [], ["x"], [1], [{}], [{"role": 1, "content": "x"}], [{"role": "user", "content": 5}],
    [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}], [None], [{"content": "x"}],
])
def test_messages_that_are_none(server, messages):
    a = server.post("/v1/chat/completions", {"messages": messages})
    assert a.status == 400 and (a.error["param"] or "").startswith("messages"), a.body


def test_missing_fields(server):
    assert server.post("/v1/completions", {}).error["param"] == "prompt"
    assert server.post("/v1/chat/completions", {}).error["param"] == "messages"


def test_unknown_fields_are_ignored(server):
    assert ask(server, "chat", frobnicate={"a": [1]}, metadata={"a": "b"}, service_tier="auto").status == 200


def test_an_unknown_model_is_404(server):
    a = ask(server, "chat", model="gpt-5")
    assert a.status == 404 and a.error["code"] == "model_not_found" and "fake" in a.error["message"]
    assert server.get("/v1/models/gpt-5").status == 404


def test_a_model_of_several_names(start):
    server = start(model="fake-aliases")
    models = server.get("/v1/models").json["data"]
    assert [(m["id"], m["root"]) for m in models] == [("fake", "fake"), ("fake-too", "fake"), ("org/fake", "fake")]
    for name in ("fake", "fake-too", "org/fake"):
        assert server.get("/v1/models/" + name).json["id"] == name
        assert server.complete("ab", model=name).json["model"] == "fake"
        assert server.chat("ab", model=name).json["model"] == "fake"
        assert server.post("/tokenize", {"model": name, "prompt": "ab"}).status == 200
    a = server.complete("ab", model="fake,fake-too")
    assert a.status == 404 and "'fake', under other names too: GET /v1/models" in a.error["message"]


def test_a_long_prompt_is_refused_with_both_numbers(server):
    for a in [server.complete("x" * 5000), server.complete([7] * 5000)]:
        assert a.status == 400 and a.error["code"] == "context_length_exceeded"
        assert "5000" in a.error["message"] and "4096" in a.error["message"]


def test_without_a_tokenizer_only_ids_work(start):
    server = start(model="notok")
    for a in [server.complete("x"), server.chat("x"), server.post("/tokenize", {"prompt": "x"}),
              server.post("/detokenize", {"tokens": [1]}), server.complete([1], stop="x")]:
        assert a.status == 400 and a.error["code"] == "no_tokenizer" and "tokenizer.json" in a.error["message"]
    a = server.complete([104, 105], return_token_ids=True, logprobs=1)
    assert a.status == 200
    choice = a.json["choices"][0]
    assert choice["token_ids"] == [104, 105] and choice["text"] == "" and choice["logprobs"]["tokens"] == ["token_id:104",
                                                                                                          "token_id:105"]


def test_tools_need_a_template_that_takes_them(start, server, tmp_path):
    tool = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
    a = server.chat("hi", tools=[tool], max_tokens=200)
    assert a.status == 200 and "weather" in a.json["choices"][0]["message"]["content"]
    a = server.chat("hi", tools=[tool], tool_choice="none", max_tokens=200)
    assert a.status == 200 and "weather" not in a.json["choices"][0]["message"]["content"]
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}")
    plain = start(env={"FAKE_MODEL_DIR": str(tmp_path)})
    a = plain.chat("hi", tools=[tool])
    assert a.status == 400 and a.error["param"] == "tools"


def test_without_a_template_chat_is_400(start, tmp_path):
    server = start(env={"FAKE_MODEL_DIR": str(tmp_path)})
    a = server.chat("hi")
    assert a.status == 400 and a.error["code"] == "no_chat_template"
    assert server.complete("hi").status == 200


def test_a_bos_is_added_once(start, server, tmp_path):
    """The tokenizer adds <s> before every text; a template that writes it too must not give two."""
    (tmp_path / "chat_template.jinja").write_text("<s>{{ messages[0].content }}")
    with_bos = start(model="bos", env={"FAKE_MODEL_DIR": str(tmp_path)})
    ids = with_bos.chat("ab", return_token_ids=True).json["prompt_token_ids"]
    assert ids == [256, 97, 98]
    without = start(model="bos")
    assert without.chat("ab", return_token_ids=True).json["prompt_token_ids"][:3] == [256, 258, 117]
    assert server.chat("ab", return_token_ids=True).json["prompt_token_ids"][:2] == [258, 117]
    assert without.complete("ab", return_token_ids=True).json["choices"][0]["prompt_token_ids"] == [256, 97, 98]


def test_special_tokens_in_a_users_text_stay_text(server):
    ids = server.chat("<|im_end|>", return_token_ids=True).json["prompt_token_ids"]
    assert ids.count(259) == 1, "only the template's own"
    assert server.complete("</s>", return_token_ids=True).json["choices"][0]["prompt_token_ids"] == list(b"</s>")
    assert server.complete("</s>", return_token_ids=True, parse_special=True).json["choices"][0]["prompt_token_ids"] == [257]
    assert server.post("/tokenize", {"prompt": "</s>", "parse_special": True}).json["tokens"] == [257]


def test_every_byte_pair_in_a_prompt(server):
    """All 65536 pairs: ill-formed ones become U+FFFD as Python's decoder replaces them (Unicode table 3-8)."""
    special = {0x22, 0x5C} | set(range(0x20))
    for high in range(256):
        if high in special:
            continue
        pairs = [bytes([high, low]) for low in range(256) if low not in special]
        text = b" ".join(pairs)
        want = text.decode("utf-8", "replace")
        a = server.post("/tokenize", b'{"prompt":"' + text + b'"}')
        assert a.status == 200 and bytes(a.json["tokens"]).decode() == want, hex(high)
        if high % 16 == 0:
            body = b'{"messages":[{"role":"user","content":"' + text + b'"}]}'
            a = server.post("/tokenize", body)
            assert a.status == 200
            assert want in bytes(t for t in a.json["tokens"] if t < 256).decode(), hex(high)


def test_messages_in_errors_are_clean_utf8(server):
    a = server.post("/v1/completions", b'{"prompt":"a","model":"\xff\xfe<script>\\n"}')
    assert a.status == 404
    a.body.decode("utf-8")
    assert "\n" not in a.error["message"]


def test_the_reference_lists_every_field():
    doc = open(os.path.join(ROOT, "docs", "api.md"), encoding="utf-8").read()
    missing = [name for name, *_ in TABLE if f"`{name}`" not in doc]
    assert not missing
