"""Thoughts before answers that are held to a form. The demo model knows no thoughts: here two of its tokens are called <think> and </think>, and
logit_bias makes it write them now and then."""
import json
import os
import re

import jsonschema
import openai
import pytest

from conftest import ROOT, Daemon

OPEN, CLOSE = "4095", "4094"  # its last tokens, which nothing else is made of
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1, "maximum": 99}, "w": {"enum": ["yes", "no"]}},
          "required": ["n", "w"], "additionalProperties": False}
FORM = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}
SAIL = {"type": "function", "function": {"name": "sail", "strict": True, "parameters": SCHEMA}}
REST = {"type": "function", "function": {"name": "rest", "parameters": {"type": "object", "properties": {}, "additionalProperties": False}}}
OPENS = "{% if tools %}{% endif %}{#</think>#}{{ messages[-1].content }}<think>\n"
QWEN3, DEEPSEEK, GPT_OSS = (os.path.join(ROOT, "tests", "data", "templates", name + ".jinja") for name in ("qwen3", "deepseek-v3.1", "gpt-oss"))
MARKS = {"ardon": "<think>", "\u0120mour": "</think>"}  # by the demo model's words
CHANNELS = {"\u0120Island": "<|channel|>", "\u0120mour": "<|end|>", "\u0120anxiously": "<|message|>", "\u0120comb": "<|start|>"}


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    made = {}

    def model(marks):
        path, demo = tmp_path_factory.mktemp("thinker"), os.path.join(ROOT, "config", "demo")
        for name in os.listdir(demo):
            if name != "tokenizer.json":
                os.symlink(os.path.join(os.path.abspath(demo), name), path / name)
        with open(os.path.join(demo, "tokenizer.json")) as f:
            tok = json.load(f)
        vocab = tok["model"]["vocab"]
        for word, mark in marks.items():
            vocab[mark] = vocab.pop(word)
            tok["model"]["merges"] = [m for m in tok["model"]["merges"] if "".join(m) != word]
            tok["added_tokens"].append({"id": vocab[mark], "content": mark, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": marks is CHANNELS})
        (path / "tokenizer.json").write_text(json.dumps(tok))
        return str(path)

    def get(template, marks=MARKS, kwargs=""):
        if (template, kwargs) not in made:
            made[template, kwargs] = Daemon("--server.max_n=8", "--model", model(marks), "--model.chat_template=" + template, "--chat-template-kwargs", kwargs)
        return made[template, kwargs]

    yield get
    for d in made.values():
        assert d.stop() == 0, d.log


def bias(think=5, close=8):
    return {OPEN: think, CLOSE: close}


def ask(server, seed, **fields):
    fields = {"logit_bias": bias(), "max_tokens": 200, "temperature": 1, **fields}
    extra = {k: fields.pop(k) for k in list(fields) if k in ("chat_template_kwargs", "reasoning_format", "return_token_ids", "continue_final_message", "ignore_eos", "grammar")}
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="x", max_retries=0, timeout=180)
    return client.chat.completions.create(model="demo", seed=seed, extra_body=extra, **{"messages": [{"role": "user", "content": "Tell me of a king."}], **fields})


def whole(server, seed, **fields):
    """(thought, content, [(name, arguments)], finish_reason), which the stream must have too."""
    c = ask(server, seed, **fields).choices[0]
    m = c.message
    got = (getattr(m, "reasoning_content", None), m.content, [(t.function.name, t.function.arguments) for t in m.tool_calls or []], c.finish_reason)
    thought, content, calls, finish = "", "", [], None
    for chunk in ask(server, seed, stream=True, **fields):
        for c in chunk.choices:
            thought += getattr(c.delta, "reasoning_content", None) or ""
            content += c.delta.content or ""
            for t in c.delta.tool_calls or []:
                if t.id:
                    calls.append([t.function.name, ""])
                calls[t.index][1] += t.function.arguments or ""
            finish = c.finish_reason or finish
    assert (thought or None, content, [tuple(c) for c in calls], finish) == (got[0], got[1] or "", got[2], got[3])
    return got


def valid(text):
    jsonschema.validate(json.loads(text), SCHEMA)
    return text[0] == "{"


@pytest.mark.parametrize("template,opens", [(QWEN3, False), (OPENS, True)])
def test_a_thought_comes_before_the_json(servers, template, opens):
    thoughts = plain = 0
    for seed in range(12):
        thought, content, calls, finish = whole(servers(template), seed, response_format=FORM, logit_bias=bias(think=2))
        assert not calls and finish in ("stop", "length")
        thoughts += thought is not None
        plain += thought is None
        if finish == "stop":
            assert valid(content)
        else:
            assert thought and not content or not valid_end(content)
    assert thoughts > 5 and (opens or plain), (thoughts, plain)


@pytest.mark.parametrize("template", [QWEN3, OPENS])
def test_a_thought_comes_before_the_text_of_a_grammar(servers, template):
    thoughts = 0
    for seed in range(8):
        thought, content, calls, finish = whole(servers(template), seed, grammar='root ::= "King " [A-D] [a-d]{2,4} "!"', logit_bias=bias(think=8))
        thoughts += thought is not None
        assert not calls and (re.fullmatch("King [A-D][a-d]{2,4}!", content) if finish == "stop" else finish == "length"), (content, finish)
    assert thoughts > 2


def valid_end(text):
    try:
        return valid(text)
    except ValueError:
        return False


def test_the_grammar_holds_from_the_start_where_nothing_is_thought(servers):
    for seed in range(4):
        assert valid(whole(servers(QWEN3), seed, response_format=FORM, logit_bias=bias(think=-100))[1])


@pytest.mark.parametrize("template,kwargs", [(QWEN3, {"enable_thinking": False}), (OPENS, {"enable_thinking": False}), (DEEPSEEK, {"thinking": False}), (DEEPSEEK, None)])
def test_who_wants_no_thoughts_gets_none(servers, template, kwargs):
    forms = [{"response_format": FORM}, {"response_format": {"type": "json_object"}}]
    if template != DEEPSEEK:  # takes no tools
        forms += [{"tools": [SAIL, REST], "tool_choice": "required"}, {"tools": [SAIL], "response_format": FORM}]
    for seed in range(3):
        for fields in forms:
            thought, content, calls, _ = whole(servers(template), seed, logit_bias=bias(think=20), chat_template_kwargs=kwargs, **fields)
            assert thought is None and (calls or content[0] == "{")


@pytest.mark.parametrize("template", [QWEN3, OPENS])
def test_a_server_on_which_thoughts_are_switched_off(servers, template):
    """... also where the template has no switch, as long as the answer has a form; a request that wants thoughts gets them."""
    server = servers(template, kwargs='{"enable_thinking": false}')
    thoughts = 0
    for seed in range(3):
        thought, content, _, _ = whole(server, seed, logit_bias=bias(think=20), response_format=FORM)
        assert thought is None and content[0] == "{"
        thought = whole(server, seed, logit_bias=bias(think=20), response_format=FORM, chat_template_kwargs={"enable_thinking": True})[0]
        effort = whole(server, seed, logit_bias=bias(think=20), response_format=FORM, reasoning_effort="high")[0]
        assert (effort is None) == (thought is None)
        thoughts += thought is not None
    assert thoughts


def test_templates_that_think_on_demand(servers):
    thoughts = [whole(servers(DEEPSEEK), seed, response_format=FORM, chat_template_kwargs={"thinking": True})[0] for seed in range(4)]
    assert any(thoughts)


@pytest.mark.parametrize("template,opens", [(QWEN3, False), (OPENS, True), ("{#[TOOL_CALLS]#}" + OPENS, True)])
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "sail"}}])
def test_a_thought_comes_before_a_forced_call(servers, template, opens, choice):
    thoughts = plain = done = 0
    for seed in range(8):
        thought, content, calls, finish = whole(servers(template), seed, tools=[SAIL, REST], tool_choice=choice)
        assert not content and finish in ("tool_calls", "length")
        thoughts += thought is not None
        plain += thought is None
        if finish == "tool_calls":
            (name, arguments), = calls
            assert name == "rest" if name == "rest" and choice == "required" else valid(arguments)
            done += 1
    assert thoughts > 2 and done > 4, (thoughts, plain, done)


def test_the_models_own_marks_stand_around_the_call(servers):
    """What the model sees is what it was taught."""
    server = servers(QWEN3)
    for seed in range(8):
        a = ask(server, seed, tools=[SAIL], tool_choice="required", return_token_ids=True)
        text = server.post("/detokenize", {"tokens": a.choices[0].token_ids}).json["prompt"]
        thought = getattr(a.choices[0].message, "reasoning_content", None)
        assert text.startswith("<think>") == (thought is not None)
        if "</think>" in text:
            assert text.split("</think>", 1)[1].startswith('\n\n<tool_call>\n{')
        elif thought is None:
            assert text.startswith("<tool_call>\n{")
        if "{" in text:
            assert text.split("<tool_call>\n")[1].strip()[:1] == "{"


def test_tools_or_json_after_a_thought(servers):
    noble = {"type": "object", "properties": {"noble": {"type": "null"}}, "required": ["noble"], "additionalProperties": False}  # a word that the model likes
    form, seen = {"type": "json_schema", "json_schema": {"name": "x", "schema": noble}}, set()
    for seed in range(16):
        thought, content, calls, finish = whole(servers(QWEN3), seed, tools=[SAIL, REST], response_format=form, logit_bias=bias(think=-2))
        if finish == "length":
            continue
        seen.add((thought is not None, finish))
        assert json.loads(content) == {"noble": None} if finish == "stop" else not content and calls
    assert {(True, "stop"), (True, "tool_calls")} <= seen, seen


def test_a_thought_ends_only_by_its_mark(servers):
    """Neither the end token nor ignore_eos or min_tokens changes that the JSON is whole."""
    end = {"2": 100}
    for fields in [{"logit_bias": {**bias(), **end}}, {"ignore_eos": True}]:
        for seed in range(3):
            thought, content, _, finish = whole(servers(OPENS), seed, response_format=FORM, **fields)
            assert finish == "length" or valid(content)


def test_gpt_oss_thinks_in_its_channel(servers):
    server = servers(GPT_OSS, CHANNELS)
    thinks = {str(t): 8 for t in server.post("/tokenize", {"prompt": "analysis", "add_special_tokens": False}).json["tokens"][:1]}
    seen = set()
    for n, fields in enumerate([{"response_format": FORM}, {"tools": [SAIL, REST], "tool_choice": "required"}, {"tools": [SAIL], "response_format": FORM}]):
        for seed in range(8):
            thought, content, calls, finish = whole(server, seed, logit_bias={CLOSE: 8, **(thinks if seed % 2 else {})}, **fields)
            if finish != "length":
                assert valid(content) if finish == "stop" else not content and (calls[0][0] == "rest" or valid(calls[0][1]))
                seen.add((n, thought is not None))
    assert {n for n, _ in seen} == {0, 1, 2} and {t for _, t in seen} == {True, False}, seen
    a = ask(server, 1, response_format=FORM, logit_bias={CLOSE: 8, **thinks}, return_token_ids=True)
    text = server.post("/detokenize", {"tokens": a.choices[0].token_ids}).json["prompt"]
    assert text.startswith("<|channel|>analysis<|message|>") and "<|end|><|start|>assistant<|channel|>final<|message|>{" in text
    none = whole(server, 1, response_format=FORM, logit_bias={CLOSE: 8, **thinks}, chat_template_kwargs={"enable_thinking": False})
    assert none[0] is None and valid(none[1])


def test_what_becomes_of_the_thought(servers):
    server = servers(OPENS)
    seed = next(s for s in range(20) if whole(server, s, response_format=FORM)[3] == "stop" and whole(server, s, response_format=FORM)[0])
    _, content, _, _ = whole(server, seed, response_format=FORM)
    assert whole(server, seed, response_format=FORM, reasoning_format="hidden") == (None, content, [], "stop")
    # Who wants thoughts within the content wants JSON more.
    thought, content, _, finish = whole(server, seed, response_format=FORM, reasoning_format="none")
    assert thought is None and (finish == "length" or valid(content))


def test_the_limit_may_cut_the_thought(servers):
    thought, content, calls, finish = whole(servers(OPENS), 1, response_format=FORM, max_tokens=5, logit_bias={CLOSE: -100})
    assert thought and not content and not calls and finish == "length"


def test_choices_think_for_themselves(servers):
    a = ask(servers(QWEN3), 3, n=8, response_format=FORM, logit_bias=bias(think=-10))
    kinds = {getattr(c.message, "reasoning_content", None) is not None for c in a.choices}
    assert kinds == {True, False}
    for c in a.choices:
        assert c.finish_reason == "length" or valid(c.message.content)


def test_pydantic_models_of_a_thinking_model(servers):
    import pydantic

    class Answer(pydantic.BaseModel):
        n: int
        ok: bool

    client = openai.OpenAI(base_url=servers(OPENS).url + "/v1", api_key="x", max_retries=0, timeout=180)
    for seed in range(20):
        try:
            m = client.chat.completions.parse(model="demo", seed=seed, temperature=1, max_tokens=200, logit_bias=bias(), response_format=Answer,
                                              messages=[{"role": "user", "content": "x"}]).choices[0].message
        except openai.LengthFinishReasonError:
            continue
        assert isinstance(m.parsed, Answer)
        if getattr(m, "reasoning_content", None):
            return
    raise AssertionError("nothing was thought")
