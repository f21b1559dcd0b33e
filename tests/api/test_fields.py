"""Every field with every wrong type, made from the table in api/request.c, and every range."""
import json
import os
import re

import pytest

from conftest import ROOT, Server, events

ROW = re.compile(r'^\s*\{"(\w+)",\s*FIELD_(\w+),\s*(\w+),\s*[^,]+(?:\([^)]*\))?,\s*([-\w.]+),\s*([-\w.]+),\s*(?:NULL|"(.*)")\}', re.M)
ROWS = ROW.findall(open(os.path.join(ROOT, "api", "request.c"), encoding="utf-8").read())
TABLE = [row[:5] for row in ROWS]
VALUES = {"string": "true", "integer": 1, "real": 1.5, "bool": True, "array": [], "object": {}}
TAKES = {"BOOL": {"bool"}, "INT": {"integer"}, "REAL": {"integer", "real"}, "STRING": {"string"}, "ARRAY": {"array"},
         "OBJECT": {"object"}, "EXACT_ARRAY": {"array"}, "EXACT_OBJECT": {"object"}}
ONLY = {"GEN_CHAT": " (chat)", "GEN_COMPLETION": " (completions)"}
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
        if kind in ("REFUSED", "OFF", "OTHER"):
            a = ask(server, endpoint, **{name: 3 if type_name == "integer" else {"a": 1} if type_name == "object" else [1] if value == [] else value})
            assert a.status == 400 and a.error["param"] == name and a.error["code"] == "unsupported_parameter"
    if kind in ("OFF", "OTHER"):  # what clients send by default
        assert ask(server, endpoint, **{name: float(low)}).status == ask(server, endpoint, **{name: int(high)}).status == 200
    if kind in ("REFUSED", "OFF", "OTHER"):
        for off in [False, "", [], *([{}] if kind == "OFF" else [])]:
            assert ask(server, endpoint, **{name: off}).status == 200, (name, off)
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


UNHELD = ["18446744073709551615", "-9223372036854775809", "1" * 40, "1e999", "-1e400", '"\\u0000"', '"a\\u0000b\\\\"']


@pytest.mark.parametrize("value", UNHELD)
@pytest.mark.parametrize("inside", ["%s", "[0, %s]", '{"a":[{"b":\n%s}]}', '{"n":{"seed":%s,"prompt":1}}'])
def test_what_no_type_holds_is_an_error_of_its_field_or_without_effect(server, value, inside):
    value = inside % value
    for name in ["prompt", "seed", "temperature", "stop", "logit_bias", "guided_json"]:
        a = server.post("/v1/completions", '{"%s":%s%s}' % (name, value, "" if name == "prompt" else ',"prompt":"ab"'))
        assert a.status == 400 and a.error["param"] == name, a.body
        assert "out of range" in a.error["message"] or "NUL" in a.error["message"]
    for field in ["metadata", "p\\u0072ompt2", "a\\\"b"]:
        a = server.post("/v1/completions", '{"%s" : %s,"prompt":"ab","y":%s}' % (field, value, value))
        assert a.status == 200 and a.json["choices"][0]["text"] == "ab", a.body


@pytest.mark.parametrize("inside", ['{"a\\u0000":1}', '{"a\\u0000" :\n1,"a\\ufffd":2}', '[{"a":{"\\u0000":[]}}]'])
def test_a_nul_in_a_name_is_an_error_that_says_so(server, inside):
    for name in ["metadata", "logit_bias", "y"]:
        a = server.post("/v1/completions", '{"prompt":"ab",\n"%s":%s}' % (name, inside))
        assert a.status == 400 and a.error["code"] == "invalid_json" and "NUL" in a.error["message"] and "(line 2, column" in a.error["message"], a.body
    a = server.post("/v1/completions", '{"prompt":"ab","x\\u0000":1,"x\\ufffd":2}')
    assert a.status == 400 and "NUL" in a.error["message"] and "duplicate" not in a.error["message"]
    assert server.post("/v1/completions", '{"prompt":"ab","x":"\\u0000","x\\\\u0000":2}').status == 200


def test_integers_beyond_64_bits_reach_the_template_as_they_are(start, tmp_path):
    """A schema of an unsigned 64-bit number, as other languages' generators write it."""
    (tmp_path / "chat_template.jinja").write_text("{{ tools | tojson }}|{{ documents | tojson }}|{{ big + 1 }}|{{ messages[0].content }}")
    server = start(env={"FAKE_MODEL_DIR": str(tmp_path)})
    numbers = [2**64 - 1, 2**63, -2**63 - 1, 10**37, -10**36]
    tools = [{"type": "function", "function": {"name": "x", "parameters": {"maximum": numbers}}}]
    for path in ["/tokenize", "/v1/chat/completions"]:
        fields = {"messages": [{"role": "user", "content": "hi"}], "tools": tools, "chat_template_kwargs": {"big": 2**64}}
        docs = {"documents": [{"n": 2**65}]} if path != "/tokenize" else {}
        a = server.post(path, {**fields, **docs, "return_token_ids": True, "max_tokens": 1})
        assert a.status == 200, a.body
        text = bytes(a.json.get("tokens") or a.json["prompt_token_ids"]).decode()
        assert text == f"{json.dumps(tools)}|{json.dumps(docs.get('documents'))}|{2**64 + 1}|hi"
    for value, what in [(10**38, "out of range"), (10**400, "out of range"), ("a\0", "NUL")]:
        a = server.chat("hi", tools=[{"type": "function", "function": {"name": "x", "y": value}}])
        assert a.status == 400 and a.error["param"] == "tools" and what in a.error["message"]
    assert server.chat("hi", tools=[{"function": {"name": 2**64}}]).error["param"] == "tools[0].function.name"


def test_many_values_that_no_type_holds_take_no_time(start):
    # No more of them: with strict_string_checks, ASan reads to the end of the body at each.
    server = start("--server.max_body=32MiB")
    a = server.post("/v1/completions", '{"prompt":"ab",%s}' % ",".join('"k%d":1%s' % (i, "0" * 30) for i in range(20_000)))
    assert a.status == 200
    a = server.post("/v1/completions", '{"prompt":"ab","x":[%s]}' % ",".join(['"\\u0000"', "1e999"] * 40_000))
    assert a.status == 200


@pytest.mark.parametrize("text,want", [("2.0", 200), ("2e0", 200), ("2.5", 400), ("1e300", 400), ("-1.0", 200), ("20.0e-1", 200)])
def test_a_whole_number_may_have_a_point(server, text, want):
    a = server.post("/v1/completions", '{"prompt":"abcd","max_tokens":%s}' % text)
    assert a.status == want, a.body
    if want == 400:
        assert a.error["param"] == "max_tokens" and "an integer, not a number with a fraction" in a.error["message"]


@pytest.mark.parametrize("name,other,value", [
    ("n_predict", "max_tokens", 3), ("max_new_tokens", "max_tokens", 3), ("repeat_penalty", "repetition_penalty", 1.5),
    ("stop_sequences", "stop", ["z"]), ("random_seed", "seed", 7), ("ban_eos_token", "ignore_eos", True), ("min_length", "min_tokens", 1),
])
def test_another_servers_name_is_refused_with_ours_unless_both_say_the_same(server, name, other, value):
    a = ask(server, "completions", **{name: value})
    assert a.status == 400 and a.error["message"] == f"'{name}' is not supported: use {other}"
    assert ask(server, "completions", **{name: value, other: value}).status == 200
    assert ask(server, "completions", **{name: value, other: None}).status == 400


# What SillyTavern's text completion sends with its default settings, for the server types that are not one program's own API: every
# name that any of them has, several for the same thing.
SILLY = {
    "prompt": "ab", "model": "fake", "max_new_tokens": 200, "max_tokens": 200, "n_predict": 200, "num_predict": 200, "temperature": 0.7, "top_p": 0.5,
    "typical_p": 1, "typical": 1, "sampler_seed": -1, "seed": -1, "min_p": 0, "repetition_penalty": 1.2, "rep_pen": 1.2, "repeat_penalty": 1.2,
    "frequency_penalty": 0, "presence_penalty": 0, "top_k": 40, "min_length": 0, "min_tokens": 0, "num_beams": 1, "length_penalty": 1,
    "early_stopping": False, "add_bos_token": True, "smoothing_factor": 0, "smoothing_curve": 1, "dry_allowed_length": 2, "dry_multiplier": 0,
    "dry_base": 1.75, "dry_sequence_breakers": "[\"\\n\", \":\"]", "dry_penalty_last_n": 0, "max_tokens_second": 0, "stopping_strings": ["\nUser:"],
    "stop": ["\nUser:"], "truncation_length": 4096, "ban_eos_token": False, "ignore_eos": False, "skip_special_tokens": True, "include_reasoning": True,
    "spaces_between_special_tokens": True, "top_a": 0, "tfs": 1, "tfs_z": 1, "mirostat_mode": 0, "mirostat": 0, "mirostat_tau": 5, "mirostat_eta": 0.1,
    "custom_token_bans": "", "banned_tokens": [], "banned_strings": [], "sampler_order": [6, 0, 1, 3, 4, 2, 5], "samplers": ["top_k", "min_p"],
    "sampler_priority": ["temperature", "top_p"], "temperature_last": True, "xtc_threshold": 0.1, "xtc_probability": 0, "nsigma": 0,
    "top_n_sigma": 0, "dynamic_temperature": False, "dynatemp_low": 0.7, "dynatemp_high": 0.7, "dynatemp_range": 0, "dynatemp_exponent": 1,
    "rep_pen_range": 0, "repeat_last_n": 0, "rep_pen_slope": 1, "repetition_penalty_range": 0, "encoder_repetition_penalty": 1,
    "no_repeat_ngram_size": 0, "penalty_alpha": 0, "speculative_ngram": False, "do_sample": True, "guidance_scale": 1, "negative_prompt": "",
    "grammar_string": "", "grammar": "", "guided_grammar": "", "json_schema": {}, "guided_json": {}, "logit_bias": {}, "epsilon_cutoff": 0,
    "eta_cutoff": 0, "legacy_api": False, "cache_prompt": True, "n_probs": 0, "trim_stop": True, "api_type": "generic", "stream": False,
}


def test_what_sillytavern_sends_by_default_is_taken(server):
    a = server.post("/v1/completions", SILLY)
    assert a.status == 200 and a.json["choices"][0]["text"] == "ab", a.body
    for name, value in [("rep_pen", 1.3), ("guidance_scale", 1.5), ("banned_strings", ["x"]), ("json_schema", {"type": "strange"}), ("nsigma", 1), ("typical", 0.5)]:
        assert server.post("/v1/completions", {**SILLY, name: value}).error["param"].split(".")[0] == name


# What it sends beside that with every sampler in use that is here; the values of one thing are said in each of its names.
SILLY_USES = {
    "typical_p": 0.9, "typical": 0.9, "dry_multiplier": 0.8, "dry_penalty_last_n": -1, "xtc_probability": 0.5, "nsigma": 1.5, "top_n_sigma": 1.5,
    "dynamic_temperature": True, "dynatemp_low": 0.5, "dynatemp_high": 1.5, "dynatemp_range": 0.5, "dynatemp_exponent": 1.2, "temperature": 1.0,
}


def test_samplers_of_sillytavern_are_taken(server):
    assert server.post("/v1/completions", {**SILLY, **SILLY_USES}).status == 200
    assert ask(server, "chat", nsigma=0, top_n_sigma=-1).status == 200, "both are off"


@pytest.mark.parametrize("breakers", [
    [], ["\n", ":", "\"", "*"], ["x" * 64], ["a"] * 64, "", '["\\n", ":"]', ' ["a"]', '"\\n", ":", "\\"", "*"', "\u3002", ["\u3002"],
])
def test_dry_breakers_that_are_taken(server, breakers):
    want = 400 if breakers == "\u3002" else 200
    for endpoint in ["chat", "completions"]:
        assert ask(server, endpoint, dry_multiplier=0.8, dry_sequence_breakers=breakers).status == want


@pytest.mark.parametrize("fields,param,words", [
    ({"dry_sequence_breakers": 5}, "dry_sequence_breakers", "an array of strings"),
    ({"dry_sequence_breakers": {"a": 1}}, "dry_sequence_breakers", "an array of strings"),
    ({"dry_sequence_breakers": True}, "dry_sequence_breakers", "an array of strings"),
    ({"dry_sequence_breakers": "x"}, "dry_sequence_breakers", "the JSON of one"),
    ({"dry_sequence_breakers": '["a"'}, "dry_sequence_breakers", "the JSON of one"),
    ({"dry_sequence_breakers": "[" * 20000}, "dry_sequence_breakers", "the JSON of one"),
    ({"dry_sequence_breakers": "[" + "1," * 100000 + "1]"}, "dry_sequence_breakers", "bytes"),
    ({"dry_sequence_breakers": '["\\u0000"]'}, "dry_sequence_breakers", "the JSON of one"),
    ({"dry_sequence_breakers": ["a", 1]}, "dry_sequence_breakers[1]", "must be a string"),
    ({"dry_sequence_breakers": ["a", None]}, "dry_sequence_breakers[1]", "must be a string"),
    ({"dry_sequence_breakers": '["a", []]'}, "dry_sequence_breakers[1]", "must be a string"),
    ({"dry_sequence_breakers": [""]}, "dry_sequence_breakers[0]", "1 to 64 bytes, not 0"),
    ({"dry_sequence_breakers": ["x" * 65]}, "dry_sequence_breakers[0]", "1 to 64 bytes, not 65"),
    ({"dry_sequence_breakers": ["\u3002" * 22]}, "dry_sequence_breakers[0]", "1 to 64 bytes, not 66"),
    ({"dry_sequence_breakers": ["a"] * 65}, "dry_sequence_breakers", "at most 64"),
    ({"typical_p": 0.5, "typical": 0.6}, "typical", "must not differ"), ({"typical_p": 0.5, "typ_p": 0.6}, "typ_p", "must not differ"), ({"typical": 0.5, "typ_p": 0.6}, "typ_p", "must not differ"), ({"typ_p": 2}, "typ_p", "between 0 and 1"),
    ({"top_n_sigma": 1, "nsigma": 0}, "nsigma", "must not differ"),
    ({"dynamic_temperature": True}, "dynamic_temperature", "dynatemp_low"),
    ({"dynamic_temperature": True, "dynatemp_low": 0.5}, "dynamic_temperature", "dynatemp_high"),
    ({"dynamic_temperature": True, "dynatemp_low": 2, "dynatemp_high": 1}, "dynatemp_low", "above"),
    ({"dynamic_temperature": True, "dynatemp_low": 1, "dynatemp_high": 4}, "dynatemp_high", "at most 2, not 2.5"),
    ({"dry_base": 0.99}, "dry_base", "between 1 and 100"), ({"dry_penalty_last_n": -2}, "dry_penalty_last_n", "at least -1"),
    ({"xtc_threshold": "0.1"}, "xtc_threshold", "a number"),
])
def test_values_of_samplers_that_make_no_sense(server, fields, param, words):
    for endpoint in ["chat", "completions"]:
        for more in [{}, {"dry_multiplier": 1}]:
            a = ask(server, endpoint, **fields, **more)
            assert a.status == 400 and a.error["param"] == param and words in a.error["message"], a.body


def test_seed_minus_one_is_taken(server):
    """test_demo.py shows that the texts differ."""
    assert ask(server, "completions", seed=-1).status == 200


@pytest.mark.parametrize("body", [
    "", " ", "{", "}", "[]", "null", "1", '"x"', "{]", '{"prompt":"a"', '{"prompt":"a",}', "{'prompt':'a'}", '{"prompt":"a"}x',
    '{"prompt":"a"}{"prompt":"b"}', '{"prompt":"a","prompt":"b"}', '{"prompt":"a\\u0000b"}', '{"x":1e999,"prompt":"a","x":1}',
    '{"x":1e999', '{"x":1e999}', "1e999", '{"x":1e999,"prompt":"a","y":1.e999}', '{"prompt":"a","y":0' + "1" * 30 + "}",
    '{"prompt":"a","y":' + "1" * 30 + '-3}', '{"prompt":"a","y":-' + "1" * 30 + 'e}', '["\\u0000"]', '{"x":-}', '{"x":1e999,"y":01}', '{"x":"\\u0000}', '{"x":"\\u0000\\',
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
    ({"response_format": {"type": "json"}}, "response_format.type"), ({"response_format": {}}, "response_format.type"),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"not": {}}}}}, "response_format.json_schema.schema.not"),
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
    assert a.status == 400 and a.error["param"] == param and f"'{param}'" in a.error["message"], a.body


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


def test_an_unknown_field_is_named_once_in_the_log(start):
    server = start("--log.level=info")
    for _ in range(3):
        assert ask(server, "chat", max_token=5, zzz=None, frobnicate=1).status == 200
    for i in range(200):
        ask(server, "completions", **{f"made_up_{i}": 1, "x" * 100: 1})
    said = re.findall(r"a client's field .*", server.log)
    assert said[:2] == ["a client's field 'max_token' is not known and ignored; did you mean 'max_tokens'?",
                        "a client's field 'frobnicate' is not known and ignored"]
    assert len(said) == 64


def cpu_seconds(server):
    with open(f"/proc/{server.process.pid}/stat", encoding="ascii") as f:
        fields = f.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_very_many_unknown_fields_cost_little_more_than_reading_them(start):
    """A body of 16 MiB has room for a million of them."""
    server = start()
    many = {f"made_up_{i}": 1 for i in range(100000)}
    took = []
    for fields in ({"metadata": many}, many):
        before = cpu_seconds(server)
        assert ask(server, "chat", **fields).status == 200
        took.append(cpu_seconds(server) - before)
    assert took[1] < 5 * took[0] + 0.5, took


SWITCH = "{{ messages[0].content }}{% if enable_thinking is defined %}[{{ enable_thinking }}]{% endif %}"
DEEPSEEK = "{{ messages[0].content }}{% if thinking is defined and thinking %}<think>{% else %}</think>{% endif %}"
EFFORT = "{{ messages[0].content }}[{{ reasoning_effort }}]"
R1 = "{{ messages[0].content }}<think>"
PLAIN = "{{ messages[0].content }}"


@pytest.mark.parametrize("template,fields,want", [
    (SWITCH, {"enable_thinking": False}, "hi[False]"), (SWITCH, {"enable_thinking": True}, "hi[True]"), (SWITCH, {}, "hi"),
    (SWITCH, {"thinking": {"type": "disabled"}}, "hi[False]"), (SWITCH, {"thinking": {"type": "enabled"}}, "hi[True]"),
    (SWITCH, {"thinking": {"type": "auto"}}, "hi"), (SWITCH, {"thinking": False}, "hi[False]"),
    (SWITCH, {"reasoning": {"enabled": False}}, "hi[False]"), (SWITCH, {"reasoning": {"effort": "none"}}, "hi[False]"),
    (SWITCH, {"reasoning_effort": "none"}, "hi[False]"), (SWITCH, {"reasoning": {"effort": "high"}}, "hi"),
    (SWITCH, {"enable_thinking": False, "chat_template_kwargs": {"enable_thinking": True}}, "hi[True]"),
    (DEEPSEEK, {"enable_thinking": True}, "hi<think>"), (DEEPSEEK, {"enable_thinking": False}, "hi</think>"),
    (EFFORT, {"reasoning": {"effort": "low"}}, "hi[low]"), (EFFORT, {"reasoning_effort": "none"}, "hi[none]"),
    (PLAIN, {"enable_thinking": False}, "hi"), (PLAIN, {"reasoning_effort": "none"}, "hi"),
    (R1, {"enable_thinking": True}, "hi<think>"),
    (R1, {"enable_thinking": False}, "enable_thinking"), (R1, {"thinking": {"type": "disabled"}}, "thinking"),
    (R1, {"reasoning": {"enabled": False}}, "reasoning.enabled"), (R1, {"reasoning_effort": "none"}, "reasoning_effort"),
])
def test_thinking_is_switched_under_the_templates_own_name_or_refused(template_servers, template, fields, want):
    a = ask(template_servers(template), "chat", return_token_ids=True, **fields)
    if a.status == 200:
        assert bytes(a.json["prompt_token_ids"]).decode() == want
    else:
        assert a.error["param"] == want and a.error["code"] == "unsupported_parameter"


TWO = "{{ messages[0].content }}[{{ enable_thinking }}|{{ reasoning_effort }}|{{ extra }}]"
SERVERS_OWN = json.dumps({"enable_thinking": False, "reasoning_effort": "low", "extra": {"a": 1}})


@pytest.mark.parametrize("fields,want", [
    ({}, "[False|low|{'a': 1}]"), ({"chat_template_kwargs": {}}, "[False|low|{'a': 1}]"),
    ({"chat_template_kwargs": {"enable_thinking": True}}, "[True|low|{'a': 1}]"), ({"chat_template_kwargs": {"extra": "x"}}, "[False|low|x]"),
    ({"chat_template_kwargs": {"extra": None, "enable_thinking": None}}, "[False|low|{'a': 1}]"), ({"enable_thinking": True}, "[True|low|{'a': 1}]"),
    ({"thinking": {"type": "enabled"}}, "[True|low|{'a': 1}]"), ({"reasoning_effort": "high"}, "[True|high|{'a': 1}]"),
    ({"enable_thinking": True, "chat_template_kwargs": {"enable_thinking": None}}, "[True|low|{'a': 1}]"),
    ({"reasoning_effort": "none"}, "[False|none|{'a': 1}]"), ({"reasoning_effort": "minimal"}, "[False|minimal|{'a': 1}]"),
    ({"reasoning": {"effort": "medium"}}, "[True|medium|{'a': 1}]"), ({"reasoning_effort": "high", "enable_thinking": False}, "[False|high|{'a': 1}]"),
    ({"reasoning_effort": "high", "chat_template_kwargs": {"enable_thinking": False}}, "[False|high|{'a': 1}]"),
    ({"reasoning": {"effort": "high", "enabled": True}}, "[True|high|{'a': 1}]"),
])
def test_the_servers_own_template_variables_stand_where_a_request_says_none(template_servers, fields, want):
    server = template_servers(TWO, SERVERS_OWN)
    a = ask(server, "chat", return_token_ids=True, **fields)
    assert bytes(a.json["prompt_token_ids"]).decode() == "hi" + want, a.body
    if set(fields) <= {"chat_template_kwargs"}:
        turns = [{"role": "user", "content": "hi"}]
        assert bytes(server.post("/tokenize", {"messages": turns, **fields}).json["tokens"]).decode() == "hi" + want


def test_the_servers_own_template_variables_in_all_chats(template_servers):
    """How long the prompt is tells which branch the template took."""
    server = template_servers(TWO, SERVERS_OWN)
    tokens = len("hi[False|low|{'a': 1}]")
    assert ask(server, "chat").json["usage"]["prompt_tokens"] == tokens
    assert server.post("/v1/responses", {"input": "hi", "max_output_tokens": 1}).json["usage"]["input_tokens"] == tokens
    assert server.post("/v1/responses/input_tokens", {"input": "hi"}).json["input_tokens"] == tokens
    assert server.post("/v1/responses/input_tokens", {"input": "hi", "reasoning": {"effort": "medium"}}).json["input_tokens"] == tokens + 2  # and True
    claude = {"max_tokens": 1, "messages": [{"role": "user", "content": "hi"}]}
    assert server.post("/v1/messages/count_tokens", claude).json["input_tokens"] == tokens
    assert server.post("/v1/messages/count_tokens", {**claude, "thinking": {"type": "enabled", "budget_tokens": 9}}).json["input_tokens"] == tokens - 1
    usage = server.post("/v1/messages", claude).json["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == tokens


def test_a_template_variable_that_the_template_lacks_is_told(start):
    server = start(f"--model.chat_template={SWITCH}", '--model.chat_template_kwargs={"enable_thinking": false, "enable_thinkin": false}')
    assert server.log.count("has no variable") == 1 and "'enable_thinkin'" in server.log


@pytest.fixture(scope="module")
def template_servers():
    made = {}

    def get(template, kwargs=""):
        if (template, kwargs) not in made:
            made[template, kwargs] = Server(f"--model.chat_template={template}", f"--model.chat_template_kwargs={kwargs}")
        return made[template, kwargs]

    yield get
    assert all(s.stop() == 0 for s in made.values())


@pytest.mark.parametrize("fields,param", [
    ({"enable_thinking": "no"}, "enable_thinking"), ({"thinking": "off"}, "thinking"), ({"thinking": {"type": "off"}}, "thinking.type"),
    ({"thinking": {}}, "thinking.type"), ({"thinking": {"type": "enabled", "budget_tokens": 100}}, "thinking.budget_tokens"),
    ({"reasoning": {"effort": 3}}, "reasoning.effort"), ({"reasoning": {"max_tokens": 30}}, "reasoning.max_tokens"),
    ({"reasoning": {"enabled": 1}}, "reasoning.enabled"), ({"reasoning": {"exclude": "x"}}, "reasoning.exclude"),
    ({"enable_thinking": True, "thinking": {"type": "disabled"}}, "thinking"),
    ({"documents": [{"title": "a", "text": "b"}]}, "documents"),
])
def test_what_cannot_be_done_about_thoughts_and_documents_is_refused(template_servers, fields, param):
    a = ask(template_servers(SWITCH), "chat", **fields)
    assert a.status == 400 and a.error["param"] == param, a.body
    assert ask(template_servers(SWITCH), "chat", documents=[]).status == 200


@pytest.mark.parametrize("body,noun", [
    ("1e999", "a number that is out of range"), ("-1e999", "a number that is out of range"), ("9" * 19, "a number that is out of range"),
    ("9" * 400, "a number that is out of range"), ("9" * 18, "an integer"), ("1e-999", "a number"), ('"\\u0000a"', "a string"), ('"1e999"', "a string"),
    ("[1e999]", "an array"), ("true", "a boolean"), ("null", "null"),
])
def test_a_body_that_is_no_object_is_called_what_it_is(server, body, noun):
    a = server.post("/v1/completions", body)
    assert a.error["code"] == "invalid_json" and a.error["message"] == f"the body must be a JSON object, not {noun}"


def test_special_tokens_that_are_read_as_text_are_told_once(start):
    server = start("--log.level=info")
    ask(server, "completions")
    assert "plain text" not in server.log
    for _ in range(3):
        assert server.complete("<|im_start|>user").status == 200
    assert server.log.count("holds '<|im_start|>', which is read as plain text") == 1


def test_tokenize_in_the_form_of_llama_cpp(server):
    def ask(**fields):
        return server.post("/tokenize", fields)
    assert ask(content="a<s>é").json["tokens"] == ask(prompt="a<s>é", parse_special=True, add_special_tokens=False).json["tokens"]
    assert ask(content="<s>", parse_special=False).json["tokens"] == list(b"<s>")
    pieces = ask(content="aé<s>", with_pieces=True).json["tokens"]
    assert [p["piece"] for p in pieces] == ["a", [0xc3], [0xa9], "<s>"]
    assert [p["id"] for p in pieces] == ask(content="aé<s>").json["tokens"]
    assert ask(prompt="", with_pieces=True).json["tokens"] == []
    for fields in [{"prompt": "a", "messages": [{"role": "user", "content": "a"}]}, {"prompt": "a", "content": "a"}]:
        a = ask(**fields)
        assert a.status == 400 and a.error["code"] == "invalid_value" and "one of" in a.error["message"]
    assert ask().error["code"] == "missing_required_parameter"


@pytest.mark.parametrize("role,content,code", [("user", None, "missing_required_parameter"), ("user", 3, "invalid_type"), ("assistant", 3, "invalid_type")])
def test_content_that_is_none_is_told_what_its_role_may_have(server, role, content, code):
    a = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}, {"role": role, "content": content}]})
    assert a.status == 400 and a.error["code"] == code and a.error["param"] == "messages[1].content"
    assert ("or null" in a.error["message"]) == (role == "assistant")


@pytest.mark.parametrize("message,place,code,words", [
    ("x", "", "invalid_type", "an object, not a string"), (None, "", "invalid_type", "an object, not null"), ({"content": "x"}, ".role", "missing_required_parameter", "is missing"),
    ({"role": 3, "content": "x"}, ".role", "invalid_type", "a string, not an integer"), ({"role": "", "content": "x"}, ".role", "invalid_value", "is empty"),
    ({"role": "user", "content": {}}, ".content", "invalid_type", "a list of parts, not an object"), ({"role": "user", "content": True}, ".content", "invalid_type", "not a boolean"),
    ({"role": "user", "content": ["x"]}, ".content[0]", "invalid_type", "an object, not a string"),
    ({"role": "user", "content": [{"text": "x"}]}, ".content[0].type", "missing_required_parameter", "is missing"),
    ({"role": "user", "content": [{"type": 3}]}, ".content[0].type", "invalid_type", "not an integer"),
    ({"role": "user", "content": [{"type": "text"}]}, ".content[0].text", "missing_required_parameter", "is missing"),
    ({"role": "user", "content": [{"type": "text", "text": ["x"]}]}, ".content[0].text", "invalid_type", "not an array"),
    ({"role": "user", "content": [{"type": "image_url"}]}, ".content[0].type", "unsupported_content", "image_url"),
    ({"role": "assistant", "tool_calls": {}}, ".tool_calls", "invalid_type", "an array, not an object"),
    ({"role": "assistant", "tool_calls": ["x"]}, ".tool_calls[0]", "invalid_type", "an object, not a string"),
    ({"role": "assistant", "tool_calls": [{"id": "1"}]}, ".tool_calls[0].function", "missing_required_parameter", "is missing"),
    ({"role": "assistant", "tool_calls": [{"function": "f"}]}, ".tool_calls[0].function", "invalid_type", "an object, not a string"),
    ({"role": "assistant", "tool_calls": [{"function": {}}]}, ".tool_calls[0].function.name", "missing_required_parameter", "is missing"),
    ({"role": "assistant", "tool_calls": [{"function": {"name": ""}}]}, ".tool_calls[0].function.name", "invalid_value", "is empty"),
])
def test_what_is_wrong_in_a_message_is_named_with_its_place(server, message, place, code, words):
    for path in ("/v1/chat/completions", "/tokenize"):
        a = server.post(path, {"messages": [{"role": "user", "content": "x"}, message]})
        assert a.status == 400 and (a.error["param"], a.error["code"]) == ("messages[1]" + place, code), a.body
        assert f"messages[1]{place}" in a.error["message"] and words in a.error["message"]


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


def test_what_a_shell_made_of_json_is_named(server):
    """Windows' cmd.exe passes single quotes on; its PowerShell writes files in UTF-16."""
    body = json.dumps({"prompt": "gr\u00fc\u00df", "max_tokens": 2}, ensure_ascii=False)
    for sent in (body.encode("utf-16"), body.encode("utf-16-le"), body.encode("utf-16-be"), b"\xfe\xff" + body.encode("utf-16-be")):
        for path in ("/v1/completions", "/v1/messages", "/tokenize"):
            a = server.post(path, sent)
            assert (a.status, a.error["code"]) == (400, "invalid_json") and "UTF-16" in a.error["message"], a.body
    for sent in ("'" + body + "'", "'{prompt:x}'", "'"):
        a = server.post("/v1/completions", sent.encode())
        assert (a.status, a.error["code"]) == (400, "invalid_json") and "single quote" in a.error["message"], a.body
    for sent in (b"{", b"\xff", b"{\x01", b" \x00", b"\x00", b"["):
        a = server.post("/v1/completions", sent)
        assert (a.status, a.error["code"]) == (400, "invalid_json") and "single quote" not in a.error["message"], a.body


def test_a_long_prompt_is_refused_with_both_numbers(server):
    for a in [server.complete("x" * 5000), server.complete([7] * 5000)]:
        assert a.status == 400 and a.error["code"] == "context_length_exceeded"
        assert "5000" in a.error["message"] and "4096" in a.error["message"]


def test_without_a_tokenizer_only_ids_work(start):
    server = start(model="notok")
    for a in [server.complete("x"), server.chat("x"), server.post("/tokenize", {"prompt": "x"}),
              server.post("/detokenize", {"tokens": [1]}), server.complete([1], stop="x"),
              server.complete([1], dry_multiplier=1, dry_sequence_breakers=["x"])]:
        assert a.status == 400 and a.error["code"] == "no_tokenizer" and "tokenizer.json" in a.error["message"]
    a = server.complete([104, 105], return_token_ids=True, logprobs=1, dry_multiplier=1)
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
    assert a.status == 400 and a.error["param"] == "tools" and "send none, or set model.chat_template" in a.error["message"]


@pytest.mark.parametrize("tools,param", [
    (["x"], "tools[0]"), ([[]], "tools[0]"), ([{"type": "web_search"}], "tools[0].type"), ([{"name": "x"}], "tools[0].function"),
    ([{"type": "function"}], "tools[0].function"), ([{"type": 1, "function": {"name": "x"}}], "tools[0].type"),
    ([{"function": {"name": "a"}}, {"function": {}}], "tools[1].function.name"), ([{"function": {"name": ""}}], "tools[0].function.name"),
    ([{"type": "function", "function": {"name": 5}}], "tools[0].function.name"), ([{"type": "function", "function": "x"}], "tools[0].function"),
    ([{"function": {"name": "a b"}}], "tools[0].function.name"), ([{"function": {"name": "\u00e9"}}], "tools[0].function.name"),
    ([{"function": {"name": "a" * 65}}], "tools[0].function.name"), ([{"function": {"name": "a\n"}}], "tools[0].function.name"),
    ([{"function": {"name": "a"}}, {"function": {"name": "b"}}, {"function": {"name": "a"}}], "tools[2].function.name"),
    ([{"function": {"name": "a", "parameters": []}}], "tools[0].function.parameters"), ([{"function": {"name": "a", "parameters": "{}"}}], "tools[0].function.parameters"),
    ([{"function": {"name": "a", "parameters": True}}], "tools[0].function.parameters"), ([{"function": {"name": "a", "strict": 1}}], "tools[0].function.strict"),
    ([{"function": {"name": "a", "strict": "true"}}], "tools[0].function.strict"), ([{"function": {"name": "a", "description": {}}}], "tools[0].function.description"),
    ([{"type": "custom", "custom": {"name": "a"}}], "tools[0].type"),
])
def test_tools_that_are_none(server, tools, param):
    messages = [{"role": "user", "content": "hi"}]
    for a in [ask(server, "chat", tools=tools), ask(server, "chat", tools=tools, tool_choice="none"),
              server.post("/tokenize", {"messages": messages, "tools": tools})]:
        assert a.status == 400 and a.error["param"] == param, a.body


def test_tools_with_names_that_are_in_use_and_nulls(server):
    names = ["a.b", "get_weather", "mcp-x_1", "A" * 64]
    tools = [{"type": "function", "function": {"name": n, "parameters": None, "strict": None, "description": None}} for n in names]
    assert server.chat("hi", tools=tools, max_tokens=200).status == 200


@pytest.mark.parametrize("format,param", [
    ({}, "response_format.type"), ({"type": "json_schema"}, "response_format.json_schema"),
    ({"type": "json_schema", "json_schema": {"name": "x"}}, "response_format.json_schema.schema"),
])
def test_what_is_missing_of_a_response_format_is_called_missing(server, format, param):
    for endpoint in ["chat", "completions"]:
        a = ask(server, endpoint, response_format=format)
        assert (a.status, a.error["param"], a.error["code"]) == (400, param, "missing_required_parameter"), a.body


def test_a_call_without_arguments_in_the_history_has_empty_ones(start):
    server = start("--model.chat_template={% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}{{ m.content or '' }}{% endfor %}")
    for function in [{"name": "f"}, {"name": "f", "arguments": None}, {"name": "f", "arguments": ""}, {"name": "f", "arguments": "{}"}]:
        messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": function}]}]
        a = server.post("/tokenize", {"messages": messages})
        assert a.status == 200 and bytes(a.json["tokens"]).decode() == "hif{}", a.body
    messages[1]["tool_calls"][0]["function"] = {"arguments": "{}"}
    a = server.post("/tokenize", {"messages": messages})
    assert a.status == 400 and a.error["param"] == "messages[1].tool_calls[0].function.name"


@pytest.mark.parametrize("message,param", [
    ({"role": "function", "name": "f", "content": "1"}, "messages[1].role"),
    ({"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}, "messages[1].function_call"),
])
def test_the_older_form_of_tool_calls_is_refused_not_left_out(server, message, param):
    a = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}, message]})
    assert a.status == 400 and a.error["param"] == param and "tool_calls" in a.error["message"]
    assert ask(server, "chat", function_call="none", functions=[]).status == 200
    assert ask(server, "chat", function_call="auto").error["param"] == "function_call"


@pytest.mark.parametrize("message", [
    {"content": [{"type": "refusal", "refusal": "No."}]}, {"content": None, "refusal": "No."},
    {"content": [{"type": "output_text", "text": "No."}]}, {"content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "No."}]},
])
def test_what_an_assistant_said_in_other_forms_is_text(server, message):
    def ids(m):
        a = server.post("/tokenize", {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", **m}]})
        assert a.status == 200, a.body
        return a.json["tokens"]
    assert ids(message) == ids({"content": "No."})
    a = server.post("/tokenize", {"messages": [{"role": "user", "content": [{"type": "refusal", "refusal": "x"}]}]})
    assert a.status == 400 and a.error["code"] == "unsupported_content"


def test_a_thought_in_a_part_is_the_templates_reasoning_content(start, tmp_path):
    (tmp_path / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}[{{ m.reasoning_content }}]{% endfor %}")
    server = start(env={"FAKE_MODEL_DIR": str(tmp_path)})
    parts = [{"type": "thinking", "thinking": "one"}, {"type": "text", "text": "said"}, {"type": "thinking", "thinking": "two"}]
    a = server.post("/tokenize", {"messages": [{"role": "assistant", "content": parts}]})
    assert bytes(a.json["tokens"]).decode() == "said[one\ntwo]"


def test_special_tokens_of_a_prompt_by_setting_and_by_request(start, server):
    def ids(s, text="</s>a", **fields):
        return s.complete(text, return_token_ids=True, max_tokens=1, **fields).json["choices"][0]["prompt_token_ids"]
    reads = start("--server.completions_parse_special=yes")
    assert ids(server) == list(b"</s>a") and ids(reads) == [257, 97] and ids(reads, parse_special=False) == list(b"</s>a")
    assert reads.post("/tokenize", {"prompt": "</s>"}).json["tokens"] == list(b"</s>"), "only completions"
    assert reads.chat("</s>", return_token_ids=True).json["prompt_token_ids"].count(257) == 0, "never a message"


def test_the_start_token_can_be_left_out_and_is_never_there_twice(start):
    server = start("--server.completions_parse_special=yes", model="bos")

    def ids(text, **fields):
        return server.complete(text, return_token_ids=True, max_tokens=1, **fields).json["choices"][0]["prompt_token_ids"]
    assert ids("ab") == [256, 97, 98] and ids("ab", add_special_tokens=False) == ids("ab", add_bos_token=False) == [97, 98]
    assert ids("<s>ab") == [256, 97, 98] and ids("<s>ab", add_special_tokens=False) == [256, 97, 98]
    assert ids("<s>ab", parse_special=False) == [256, *b"<s>ab"]
    chat = {"messages": [{"role": "user", "content": "a"}]}
    for fields, first in [({}, 256), ({"add_special_tokens": False}, 258)]:
        assert server.post("/tokenize", {**chat, **fields}).json["tokens"][0] == first
        assert server.chat("a", return_token_ids=True, **fields).json["prompt_token_ids"][0] == first


def test_stop_reason_is_what_the_client_asked_for(server):
    c = server.complete("abc").json["choices"][0]
    assert (c["finish_reason"], c["stop_reason"]) == ("stop", None), "the model's own end"
    c = server.complete("abc", stop_token_ids=[257]).json["choices"][0]
    assert (c["finish_reason"], c["stop_reason"]) == ("stop", 257)
    assert server.complete("abc", stop="c").json["choices"][0]["stop_reason"] == "c"
    last = [c["choices"][0] for c in events(server.complete("abc", stream=True).body)][-1]
    assert (last["finish_reason"], last["stop_reason"]) == ("stop", None)


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


def test_the_reference_has_the_table_of_refused_fields():
    doc = open(os.path.join(ROOT, "docs", "api.md"), encoding="utf-8").read()
    lines = []
    for name, kind, where, low, high, why in ROWS:
        if kind in ("REFUSED", "OFF", "OTHER"):
            off = {"REFUSED": "", "OFF": low if low == high else f"{low} to {high}", "OTHER": f"{low}, or as `{why}`"}[kind]
            lines.append(f"| `{name}`{ONLY.get(where, '')} | {off} | {f'use `{why}`' if kind == 'OTHER' else why} |\n")
    assert len(lines) > 40 and "".join(lines) in doc


def test_the_reference_lists_every_field():
    doc = open(os.path.join(ROOT, "docs", "api.md"), encoding="utf-8").read()
    missing = [name for name, *_ in TABLE if f"`{name}`" not in doc]
    assert not missing
