"""Anthropic's Messages API by the official client. The fake engine says its prompt again; what chat does with the same conversation is the
measure of what goes to the model, the client's own types and what it makes of a stream that of what comes back."""
import json
import os
import re
import subprocess
import sys
import textwrap
import threading
import time

import anthropic
import pydantic
import pytest
from anthropic.types import Message, RawMessageStreamEvent

from conftest import ROOT, WAIT_S, http_post, in_time
from test_responses import ALL, CALL, last, servers, tools_daemon  # the last three are fixtures

WEATHER = {"name": "weather", "description": "Weather of a town", "input_schema": {
    "type": "object", "properties": {"town": {"enum": ["Emden", "Gent"]}}, "required": ["town"], "additionalProperties": False}}
NOW = {"name": "now", "input_schema": {"type": "object"}}
EVENTS = pydantic.TypeAdapter(RawMessageStreamEvent)


def nested(tool):
    """A tool as chat has it."""
    return {"type": "function", "function": {"parameters" if k == "input_schema" else k: v for k, v in tool.items()}}


def client(server, **more):
    return anthropic.Anthropic(base_url=server.url, max_retries=0, timeout=WAIT_S, **(more or {"api_key": "x"}))


def asked(content, **fields):
    messages = content if isinstance(content, list) else [{"role": "user", "content": content}]
    return {"model": fields.pop("model", "fake"), "max_tokens": fields.pop("max_tokens", 1000), "messages": messages, **fields}


def create(server, content, **fields):
    a = server.post("/v1/messages", asked(content, **fields))
    assert a.status == 200, a.body
    Message.model_validate(a.json)  # the types, field by field: the client itself lets everything pass
    return a.json


def events_of(body):
    out = []
    for block in body.decode().split("\n\n"):
        if not block or block.startswith(":"):
            continue
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == "event: " + event["type"], block
        if event["type"] not in ("ping", "error"):
            EVENTS.validate_python(event)
        out.append(event)
    assert out[0]["type"] == "message_start" and out[0]["message"]["content"] == [] and out[0]["message"]["stop_reason"] is None
    return out


KEYS = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature", "input_json_delta": "partial_json"}


def assembled(events):
    """The message of a stream, put together from its deltas alone."""
    message, block, partial = dict(events[0]["message"]), None, ""
    blocks = []
    for e in events[1:]:
        kind = e["type"]
        if kind == "content_block_start":
            assert block is None and e["index"] == len(blocks)
            block, partial = dict(e["content_block"]), ""
            assert not any(block.get(k) for k in ("text", "thinking", "signature", "input"))
        elif kind == "content_block_delta":
            assert e["index"] == len(blocks)
            delta = e["delta"]
            key = KEYS[delta["type"]]
            assert delta[key] or key == "signature"
            if key == "partial_json":
                partial += delta[key]
            else:
                block[key] += delta[key]
        elif kind == "content_block_stop":
            assert e["index"] == len(blocks)
            if block["type"] == "tool_use":
                block["partial"] = partial
            blocks.append(block)
            block = None
        elif kind == "message_delta":
            assert block is None
            message.update(e["delta"], usage=e["usage"])
        elif kind != "ping":
            assert kind == "message_stop" and e is events[-1] and message["stop_reason"]
            return {**message, "content": blocks}
    raise AssertionError("the stream does not end")


def both(server, content, **fields):
    """The whole message, which the stream must have too."""
    whole = create(server, content, **fields)
    a = server.post("/v1/messages", asked(content, stream=True, **fields))
    assert a.status == 200 and a.headers["Content-Type"].startswith("text/event-stream"), a.body
    streamed = assembled(events_of(a.body))
    assert {k: v for k, v in streamed.items() if k not in ("id", "content", "usage")} == {k: v for k, v in whole.items() if k not in ("id", "content", "usage")}
    assert streamed["usage"]["output_tokens"] == whole["usage"]["output_tokens"] and streamed["id"] != whole["id"]
    assert len(streamed["content"]) == len(whole["content"])
    for s, w in zip(streamed["content"], whole["content"]):
        partial = s.pop("partial", "")
        if w["type"] == "tool_use":
            try:
                s["input"] = json.loads(partial)
            except ValueError:
                assert w is whole["content"][-1] and whole["stop_reason"] != "tool_use"
            assert s.pop("id") != w["id"]
        assert s == {k: v for k, v in w.items() if w["type"] != "tool_use" or k != "id"}
    return whole


def texts(message):
    return [(b["type"], b[{"text": "text", "thinking": "thinking", "tool_use": "input"}[b["type"]]]) for b in message["content"]]


# --- answers


def test_a_text(last):
    m = client(last).messages.create(model="fake", max_tokens=100, messages=[{"role": "user", "content": "Hello"}])
    assert m.content[0].text == "Hello" and (m.type, m.role, m.model, m.stop_reason, m.stop_sequence) == ("message", "assistant", "fake", "end_turn", None)
    u = m.usage
    assert (u.input_tokens, u.cache_read_input_tokens, u.cache_creation_input_tokens, u.output_tokens) == (3, 2, 0, 5)  # the fake engine says that it had half
    assert m.id.startswith("msg_") and m._request_id and m.id.endswith(m._request_id)
    assert texts(both(last, "Gr\u00fc\u00df \U0001f642\n\"\\")) == [("text", "Gr\u00fc\u00df \U0001f642\n\"\\")]


def test_how_it_ended(last):
    m = both(last, "Hello", max_tokens=3)
    assert (m["stop_reason"], texts(m)) == ("max_tokens", [("text", "Hel")])
    assert create(last, "Hello", max_tokens=6)["stop_reason"] == "end_turn"
    m = both(last, "Hello", stop_sequences=["xx", "lo"])
    assert (m["stop_reason"], m["stop_sequence"], texts(m)) == ("stop_sequence", "lo", [("text", "Hel")])
    m = both(last, "Hello", stop_sequences=["H"])
    assert (m["stop_reason"], texts(m)) == ("stop_sequence", [])
    m = both(last, "[long]x", max_tokens=100_000)  # more than the context holds: max_tokens must be said, so it is often the most there is
    assert m["stop_reason"] == "model_context_window_exceeded" and m["usage"]["output_tokens"] == 4096 - len("[long]x")


def test_thoughts_text_and_calls_are_blocks(last):
    text = "<think>\nwhich town?\n</think>\n\nLet me look." + CALL + "\n" + CALL.replace("Gent", "Emden")
    m = both(last, text, tools=[WEATHER])
    assert texts(m) == [("thinking", "which town?"), ("text", "Let me look."), ("tool_use", {"town": "Gent"}), ("tool_use", {"town": "Emden"})]
    assert m["stop_reason"] == "tool_use" and m["content"][2]["name"] == "weather" and m["content"][0]["signature"] == ""
    assert re.fullmatch("[a-zA-Z0-9_-]+", m["content"][2]["id"]) and m["content"][2]["id"] != m["content"][3]["id"]
    assert 10 < m["usage"]["output_tokens_details"]["thinking_tokens"] < len(text) - len(CALL) * 2
    one = both(last, text, tools=[WEATHER], tool_choice={"type": "auto", "disable_parallel_tool_use": True})
    assert [k for k, _ in texts(one)] == ["thinking", "text", "tool_use"]
    assert texts(both(last, text, tools=[WEATHER], tool_choice={"type": "none"})) == [("thinking", "which town?"), ("text", text[text.index("Let"):])]
    assert [k for k, _ in texts(both(last, text, tools=[WEATHER], thinking={"type": "adaptive", "display": "omitted"}))] == ["text", "tool_use", "tool_use"]


def test_the_numbers_of_a_call_are_the_models(last):
    numbers = '{"a": 0.1, "b": 52.123456789012345, "c": 9007199254740993, "d": 18446744073709551616, "e": "\\u0000"}'
    m = both(last, '<tool_call>{"name": "now", "arguments": %s}</tool_call>' % numbers, tools=[NOW])
    got = m["content"][0]["input"]
    assert got == json.loads(numbers) and (got["c"], got["d"]) == (9007199254740993, 18446744073709551616)


def test_a_call_that_is_cut(last):
    n = CALL.index("Gent")
    m = both(last, CALL, tools=[WEATHER], max_tokens=n)
    assert m["stop_reason"] == "max_tokens" and texts(m) == [("tool_use", {})]
    m = both(last, CALL, tools=[WEATHER], stop_sequences=["Gent"])
    assert m["stop_reason"] == "stop_sequence" and texts(m) == [("tool_use", {})]
    partial = [e["delta"]["partial_json"] for e in events_of(last.post("/v1/messages", asked(CALL, tools=[WEATHER], max_tokens=n, stream=True)).body)
               if e["type"] == "content_block_delta"]
    assert '{"town": "'.startswith("".join(partial)) and partial


def test_the_clients_own_stream(last):
    text = "<think>hm</think>So." + CALL
    with client(last).messages.stream(**asked(text, tools=[WEATHER])) as stream:
        said = "".join(stream.text_stream)
        final = stream.get_final_message()
    whole = client(last).messages.create(**asked(text, tools=[WEATHER]))
    assert said == "So." and final.stop_reason == whole.stop_reason == "tool_use"
    assert [b.model_dump(exclude={"id", "parsed_output"}) for b in final.content] == [b.model_dump(exclude={"id"}) for b in whole.content]
    assert final.usage.output_tokens == whole.usage.output_tokens and final.usage.input_tokens + final.usage.cache_read_input_tokens == len(text)
    assert final.content[2].input == {"town": "Gent"} and final.content[0].thinking == "hm"


# --- what the model is given: what chat gives it


USES = [{"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"town": "Gent"}}, {"type": "tool_use", "id": "toolu_2", "name": "now", "input": {}}]



def chat_call(use):
    return {"id": use["id"], "type": "function", "function": {"name": use["name"], "arguments": json.dumps(use["input"])}}


CALLS = [chat_call(u) for u in USES]
THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "x"}


def t(text, **more):
    return {"type": "text", "text": text, **more}


def result(id, **more):
    return {"type": "tool_result", "tool_use_id": id, **more}


FAILED = [({"type": "tool_use", "id": f"toolu_{i}", "name": "now", "input": {}}, result(f"toolu_{i}", **given), seen) for i, (given, seen) in enumerate([
    ({"content": "no such town", "is_error": True}, "Error: no such town"), ({"content": [t("late"), t("off")], "is_error": True}, [t("Error: late"), t("off")]),
    ({"is_error": True}, "Error"), ({"content": [], "is_error": True}, "Error"), ({"content": "error: 5", "is_error": True}, "error: 5"),
    ({"content": "late", "is_error": False}, "late"), ({"content": "late", "is_error": None}, "late")])]
U, A = {"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}
CONVERSATIONS = {
    "text": ([U], {}, [U]),
    "a system message": ([U], {"system": "s"}, [{"role": "system", "content": "s"}, U]),
    "its blocks": ([U], {"system": [t("s", cache_control={"type": "ephemeral"}), t("r")]}, [{"role": "system", "content": [t("s"), t("r")]}, U]),
    "none": ([U], {"system": []}, [U]),
    "what agents say to the server": ([U], {"system": [t("x-anthropic-billing-header: cc_version=2.1.177; cch=36ee5;"), t("s")]}, [{"role": "system", "content": "s"}, U]),
    "that alone": ([U], {"system": [t("x-anthropic-billing-header: cch=36ee5;")]}, [U]),
    "an empty one": ([U], {"system": None}, [U]),
    "one in between": ([U, A, {"role": "system", "content": "s"}, U], {}, [U, A, {"role": "system", "content": "s"}, U]),
    "turns": ([U, A, {"role": "user", "content": [t("v")]}], {}, [U, A, {"role": "user", "content": "v"}]),
    "turns of one role": ([U, {"role": "user", "content": [t("v"), t("w")]}, A, {"role": "assistant", "content": [t("b")]}, U], {},
                          [{"role": "user", "content": [t("u"), t("v"), t("w")]}, {"role": "assistant", "content": [t("a"), t("b")]}, U]),
    "calls": ([U, {"role": "assistant", "content": [THOUGHT, t("wait"), *USES]},
               {"role": "user", "content": [result("toolu_1", content="18", is_error=False), result("toolu_2", content=[t("noon"), t("sharp")]), t("so?")]}], {},
              [U, {"role": "assistant", "reasoning_content": "hm", "content": "wait", "tool_calls": CALLS}, {"role": "tool", "tool_call_id": "toolu_1", "content": "18"},
               {"role": "tool", "tool_call_id": "toolu_2", "content": [t("noon"), t("sharp")]}, {"role": "user", "content": "so?"}]),
    "calls alone": ([U, {"role": "assistant", "content": USES[:1]}, {"role": "user", "content": [result("toolu_1")]}], {},
                    [U, {"role": "assistant", "tool_calls": CALLS[:1]}, {"role": "tool", "tool_call_id": "toolu_1", "content": ""}]),
    "calls that failed": ([U, {"role": "assistant", "content": [use for use, _, _ in FAILED]}, {"role": "user", "content": [given for _, given, _ in FAILED]}], {},
                          [U, {"role": "assistant", "tool_calls": [chat_call(use) for use, _, _ in FAILED]},
                           *[{"role": "tool", "tool_call_id": use["id"], "content": seen} for use, _, seen in FAILED]]),
    "thoughts": ([U, {"role": "assistant", "content": [THOUGHT, THOUGHT, t("a")]}, U], {}, [U, {"role": "assistant", "reasoning_content": "hm\nhm", "content": "a"}, U]),
    "no text": ([U, {"role": "assistant", "content": []}, {"role": "user", "content": []}], {}, [U, {"role": "assistant", "content": ""}, {"role": "user", "content": ""}]),
    "a call last": ([U, {"role": "assistant", "content": [t("a"), USES[1]]}], {}, [U, {"role": "assistant", "content": "a", "tool_calls": CALLS[1:]}]),
}


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_the_model_is_given_what_chat_gives_it(servers, name):
    content, own, messages = CONVERSATIONS[name]
    server = servers(ALL)
    for fields, chat in [({}, {}), ({"tools": [WEATHER, NOW]}, {"tools": [nested(WEATHER), nested(NOW)]}), ({"output_config": {"effort": "high"}}, {"reasoning_effort": "high"})]:
        wanted = server.post("/v1/chat/completions", {"messages": messages, "skip_special_tokens": False, **chat}).json
        m = create(server, content, skip_special_tokens=False, **own, **fields)
        assert texts(m) == [("text", wanted["choices"][0]["message"]["content"])]
        assert m["usage"]["input_tokens"] + m["usage"]["cache_read_input_tokens"] == wanted["usage"]["prompt_tokens"]
    if name == "calls":
        assert 'call:toolu_1,weather,{"town": "Gent"} call:toolu_2,now,{}]\n[tool said:18 of:toolu_1]' in texts(m)[0][1]


def test_an_answer_goes_on_with_the_assistants_last_words(servers):
    """As chat does where it is told to; what was there is not said again."""
    server = servers("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}")
    for content in ("Once upon", [t("Once upon")]):
        m = both(server, [U, {"role": "assistant", "content": content}])
        assert texts(m) == [("text", "<user>u<assistant>Once upon")]
    a = servers("{% for m in messages %}{{ m.content | upper }}{% endfor %}").post("/v1/messages", asked([U, A]))
    assert (a.status, a.error["param"]) == (400, "messages") and "does not show the last message" in a.error["message"] and "continue_final" not in a.error["message"], a.body
    assert texts(create(server, [U])) == [("text", "<user>u<assistant>")]
    assert texts(create(server, [U, A], add_generation_prompt=True)) == [("text", "<user>u<assistant>a<assistant>")]


def test_what_came_back_can_be_sent_as_it_is(last, servers):
    m = client(last).messages.create(**asked("<think>hm</think>I look." + CALL, tools=[WEATHER]))
    history = [U, {"role": "assistant", "content": m.content}, {"role": "user", "content": [result(m.content[2].id, content="18")]}]
    again = client(servers(ALL)).messages.create(**asked(history, tools=[WEATHER]))
    assert f'[assistant thought:hm said:I look. call:{m.content[2].id},weather,{{"town": "Gent"}}]\n[tool said:18 of:{m.content[2].id}]' in again.content[0].text


def test_many_blocks_of_one_message_take_no_time(servers):
    """As many as the body has room for: were each joined to all before, the client would give up first."""
    body = '{"max_tokens":5,"messages":[%s]}' % ",".join(['{"role":"assistant","content":[{"type":"thinking","thinking":"a"}]}'] * 230_000)
    a = servers(ALL).post("/v1/messages", body)
    assert a.status == 400 and a.error["code"] == "context_length_exceeded", a.body


def test_fields_that_inform_and_those_that_are_off(last):
    m = create(last, "x", metadata={"user_id": "me"}, service_tier="auto", container=None, mcp_servers=[], n=1, stop=None, stream_options=None, thinking=None, cache_control={"type": "ephemeral"},
               context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}, top_k=5, top_p=0.9, temperature=1, seed=3, min_p=0.1, inference_geo="us", speed="fast", nothing_known=1)
    assert texts(m) == [("text", "x")]


# --- errors


def with_block(block, role="user"):
    return {"messages": [{"role": role, "content": [t("x"), block]}]}


AT = "messages[0].content[1]"
FAULTS = [
    ({"messages": None}, "messages", "missing_required_parameter"), ({"messages": 5}, "messages", "invalid_type"), ({"messages": "x"}, "messages", "invalid_type"),
    ({"messages": []}, "messages", "invalid_value"), ({"messages": ["x"]}, "messages[0]", "invalid_type"), ({"messages": [{"content": "x"}]}, "messages[0].role", "missing_required_parameter"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role", "invalid_value"), ({"messages": [{"role": 5, "content": "x"}]}, "messages[0].role", "invalid_type"),
    ({"messages": [{"role": "user"}]}, "messages[0].content", "missing_required_parameter"), ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content", "invalid_type"),
    ({"messages": [{"role": "user", "content": {"type": "text"}}]}, "messages[0].content", "invalid_type"), ({"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content[0]", "invalid_type"),
    (with_block({"text": "x"}), AT + ".type", "missing_required_parameter"), (with_block({"type": 5}), AT + ".type", "invalid_type"), (with_block({"type": "text"}), AT + ".text", "missing_required_parameter"),
    (with_block({"type": "text", "text": ["x"]}), AT + ".text", "invalid_type"),
    *[(with_block({"type": kind}), AT + ".type", "unsupported_content") for kind in ("image", "document", "search_result", "tool_use", "thinking", "container_upload", "redacted_thinking", "x" * 100)],
    *[(with_block({"type": kind}, "assistant"), AT + ".type", "unsupported_content") for kind in ("image", "tool_result", "server_tool_use", "web_search_tool_result", "redacted_thinking")],
    (with_block({"type": "tool_use", "id": "1", "name": "f"}, "system"), AT + ".type", "unsupported_content"),
    (with_block({"type": "thinking"}, "assistant"), AT + ".thinking", "missing_required_parameter"), (with_block({"type": "thinking", "thinking": 5}, "assistant"), AT + ".thinking", "invalid_type"),
    (with_block({"type": "tool_use", "name": "f", "input": {}}, "assistant"), AT + ".id", "missing_required_parameter"),
    (with_block({"type": "tool_use", "id": "1", "input": {}}, "assistant"), AT + ".name", "missing_required_parameter"),
    (with_block({"type": "tool_use", "id": "1", "name": "", "input": {}}, "assistant"), AT + ".name", "invalid_value"),
    (with_block({"type": "tool_use", "id": "1", "name": "f"}, "assistant"), AT + ".input", "missing_required_parameter"),
    (with_block({"type": "tool_use", "id": "1", "name": "f", "input": "{}"}, "assistant"), AT + ".input", "invalid_type"),
    (with_block({"type": "tool_result"}), AT + ".tool_use_id", "missing_required_parameter"), (with_block(result("9")), AT + ".tool_use_id", "invalid_value"),
    (with_block(result(9)), AT + ".tool_use_id", "invalid_type"),
    ({"messages": [{"role": "assistant", "content": USES}, {"role": "user", "content": [result("toolu_1", is_error="no")]}]}, "messages[1].content[0].is_error", "invalid_type"),
    ({"messages": [{"role": "assistant", "content": USES}, {"role": "user", "content": [result("toolu_1", content=5)]}]}, "messages[1].content[0].content", "invalid_type"),
    ({"messages": [{"role": "assistant", "content": USES}, {"role": "user", "content": [result("toolu_1", content=[t("x"), {"type": "image"}])]}]}, "messages[1].content[0].content[1].type", "unsupported_content"),
    ({"messages": [U, {"role": "user", "content": "\0x"}]}, "messages", "invalid_value"),
    ({"system": 5}, "system", "invalid_type"), ({"system": {"type": "text"}}, "system", "invalid_type"), ({"system": [5]}, "system[0]", "invalid_type"),
    ({"system": [{"type": "image"}]}, "system[0].type", "unsupported_content"), ({"system": [{"type": "text", "text": 5}]}, "system[0].text", "invalid_type"),
    ({"max_tokens": None}, "max_tokens", "missing_required_parameter"), *[({"max_tokens": v}, "max_tokens", "invalid_value") for v in (0, -1, 1e12)],
    *[({"max_tokens": v}, "max_tokens", "invalid_type") for v in ("9", 1.5, [], True)], ({"model": 5}, "model", "invalid_type"), ({"max_tokens": 5, "min_tokens": 6}, "min_tokens", "invalid_value"),
    ({"stop_sequences": "x"}, "stop_sequences", "invalid_type"), ({"stop_sequences": [5]}, "stop_sequences[0]", "invalid_type"), ({"stop_sequences": [""]}, "stop_sequences[0]", "invalid_value"),
    ({"stop_sequences": ["x"] * 1000}, "stop_sequences", "invalid_value"), ({"stream": "true"}, "stream", "invalid_type"), ({"temperature": "hot"}, "temperature", "invalid_type"),
    ({"temperature": 3}, "temperature", "invalid_value"), ({"top_k": 1.5}, "top_k", "invalid_type"), ({"top_p": 2}, "top_p", "invalid_value"), ({"top_p": []}, "top_p", "invalid_type"),
    ({"metadata": "me"}, "metadata", "invalid_type"), ({"service_tier": 5}, "service_tier", "invalid_type"), ({"context_management": []}, "context_management", "invalid_type"),
    ({"tools": {}}, "tools", "invalid_type"), ({"tools": ["f"]}, "tools[0]", "invalid_type"), ({"tools": [{"name": "f"}]}, "tools[0].input_schema", "missing_required_parameter"),
    ({"tools": [NOW, {**NOW, "name": "f", "input_schema": []}]}, "tools[1].input_schema", "invalid_type"), ({"tools": [{"input_schema": {}}]}, "tools[0].name", "missing_required_parameter"),
    ({"tools": [{**NOW, "name": "a b"}]}, "tools[0].name", "invalid_value"), ({"tools": [NOW, NOW]}, "tools[1].name", "invalid_value"), ({"tools": [{**NOW, "type": 5}]}, "tools[0].type", "invalid_type"),
    ({"tools": [{**NOW, "description": 5}]}, "tools[0].description", "invalid_type"),
    *[({"tools": [NOW, {"type": kind, "name": "f"}]}, "tools[1].type", "unsupported_value") for kind in ("web_search_20250305", "bash_20250124", "text_editor_20250728", "computer_20250124", "code_execution_20250825", "mcp_toolset")],
    ({"tools": [{**WEATHER, "strict": True, "input_schema": {"type": "object", "properties": {"a": {"not": {}}}}}], "tool_choice": {"type": "any"}}, "tools[0].input_schema.properties.a.not", "invalid_json_schema"),
    ({"tools": [NOW], "tool_choice": "auto"}, "tool_choice", "invalid_type"), ({"tools": [NOW], "tool_choice": {}}, "tool_choice.type", "missing_required_parameter"),
    ({"tools": [NOW], "tool_choice": {"type": "required"}}, "tool_choice.type", "invalid_value"), ({"tools": [NOW], "tool_choice": {"type": "tool"}}, "tool_choice.name", "missing_required_parameter"),
    ({"tools": [NOW], "tool_choice": {"type": "tool", "name": "g"}}, "tool_choice", "invalid_value"), ({"tool_choice": {"type": "any"}}, "tool_choice", "invalid_value"),
    ({"tools": [NOW], "tool_choice": {"type": "auto", "disable_parallel_tool_use": 1}}, "tool_choice.disable_parallel_tool_use", "invalid_type"),
    ({"thinking": "yes"}, "thinking", "invalid_type"), ({"thinking": {}}, "thinking.type", "missing_required_parameter"), ({"thinking": {"type": "deep"}}, "thinking.type", "invalid_value"),
    ({"thinking": {"type": "enabled", "budget_tokens": "9"}}, "thinking.budget_tokens", "invalid_type"), ({"thinking": {"type": "enabled", "display": "all"}}, "thinking.display", "invalid_value"),
    ({"output_config": "low"}, "output_config", "invalid_type"), ({"output_config": {"effort": 5}}, "output_config.effort", "invalid_type"), ({"output_config": {"format": 5}}, "output_config.format", "invalid_type"),
    ({"output_config": {"format": {"type": "json"}}}, "output_config.format.type", "invalid_value"),
    ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema", "missing_required_parameter"),
    ({"output_config": {"format": {"type": "json_schema", "schema": {"properties": {"a": {"if": {"type": "null"}}}}}}}, "output_config.format.schema.properties.a.if", "invalid_json_schema"),
    ({"messages": [{"role": "user", "content": "x" * 5000}]}, "messages", "context_length_exceeded"),
    *[({name: value}, name, "unsupported_parameter") for name, value in {
        "compaction": {"type": "summarize"}, "container": {"id": "c"}, "mcp_servers": [{}], "stop": ["x"], "n": 2, "logprobs": True, "top_logprobs": 2, "max_completion_tokens": 5, "response_format": {"type": "json_object"}, "reasoning_effort": "low",
        "parallel_tool_calls": True, "functions": [{}], "function_call": "auto", "echo": True, "return_token_ids": True, "timings": True, "stream_options": {"include_usage": True}}.items()],
]


@pytest.mark.parametrize("fields,param,code", FAULTS, ids=lambda v: v if isinstance(v, str) else None)
def test_faults_are_told_in_the_clients_words(last, fields, param, code):
    body = {**asked("x"), **fields}
    a = last.post("/v1/messages", body)
    assert (a.status, a.json["type"], a.error["param"], a.error["code"], a.error["type"]) == (400, "error", param, code, "invalid_request_error"), a.body
    message = a.error["message"]
    assert not re.search(r"response_format|'prompt'|\.function\b|'stop'|\bparameters\b", message) or code == "unsupported_parameter", message
    assert f"'{param}'" in message or code in ("context_length_exceeded", "invalid_value", "unsupported_parameter", "invalid_json_schema"), message
    assert code != "context_length_exceeded" or message.startswith("prompt is too long: ")
    assert last.post("/v1/messages", {**body, "stream": body.get("stream", True)}).status == 400
    if param not in ("max_tokens", "min_tokens") and code != "context_length_exceeded":
        counted = last.post("/v1/messages/count_tokens", body)
        assert (counted.status, counted.error) == (400, a.error), counted.body


def test_what_is_too_long_has_one_name_however_it_is_found_out(daemon, servers):
    """By the engine, by the tokenizer before it has all tokens, and before there are any."""
    for path, body, words in [("/v1/messages", lambda text: {"max_tokens": 1, "messages": [{"role": "user", "content": text}]}, "system, messages and tools"), ("/v1/responses", lambda text: {"input": text}, "input, instructions and tools"),
                              ("/v1/chat/completions", lambda text: {"messages": [{"role": "user", "content": text}]}, "messages and tools")]:
        for server, text in [(daemon, "a " * 5000), (daemon, "a " * 50000), (servers("{% for i in range(10000) %}{% for j in range(10000) %}{% endfor %}{% endfor %}"), "x" * 100000)]:
            a = server.post(path, body(text))
            assert (a.status, a.error["code"]) == (400, "context_length_exceeded"), a.body
            named = re.findall(r"(?:tokens in|length of) the ([\w, ]+?)(?: or of the completion)?\.", a.error["message"])
            assert named and set(named) <= {words, "prompt"} and named[-1] == words, a.error["message"]


@pytest.mark.parametrize("value", [None, True, 5, -1.5, "x", "\0", [], [5], {}, {"type": 5}, [{"type": "text"}], 10**30], ids=repr)
def test_any_value_in_any_field(last, value):
    source = open(os.path.join(ROOT, "api", "messages_request.c"), encoding="utf-8").read()
    for name in re.findall(r'^    \{"(\w+)", +FIELD_', source, re.M):
        for body in ({**asked("x"), name: value}, {**asked("x", tools=[{**NOW, name: value}])}, asked([{"role": "user", "content": [{"type": "text", "text": "x", name: value}]}])):
            a = last.post("/v1/messages", body)
            assert a.status in (200, 400), (name, a.body)
            assert a.status == 200 or (a.json["type"] == "error" and a.error["param"]), (name, a.body)
    assert last.alive()


def test_the_reference_names_every_field():
    source = open(os.path.join(ROOT, "api", "messages_request.c"), encoding="utf-8").read()
    doc = open(os.path.join(ROOT, "docs", "api.md"), encoding="utf-8").read()
    doc = doc[doc.index("## Messages"):doc.index("## Request ids")]
    names = re.findall(r'^    \{"(\w+)", +FIELD_', source, re.M)
    assert len(names) > 25 and not [n for n in names if f"`{n}`" not in doc]


def test_every_field_that_the_official_clients_have_is_known():
    """Taken, refused, or said to have no effect: a field of a newer client that changes what is asked for is not lost in silence."""
    from anthropic.types.beta.message_create_params import MessageCreateParamsBase as Messages
    from openai.types.chat.completion_create_params import CompletionCreateParamsBase as Chat
    from openai.types.completion_create_params import CompletionCreateParamsBase as Completions
    from openai.types.responses.response_create_params import ResponseCreateParamsBase as Responses
    with open(os.path.join(ROOT, "docs", "api.md"), encoding="utf-8") as f:
        doc = f.read()
    for kind, title in [(Messages, "Messages"), (Responses, "Responses"), (Chat, "Fields of a request"), (Completions, "Fields of a request")]:
        section = doc.split(f"\n## {title}\n")[1].split("\n## ")[0]
        if kind is not Chat and kind is not Completions:  # "the other fields are chat's"
            section += doc.split("\n## Fields of a request\n")[1].split("\n## ")[0]
        missing = [name for name in kind.__annotations__ if f"`{name}`" not in section and name != "betas"]  # a header
        assert len(kind.__annotations__) > 10 and not missing, (kind, missing)


def test_statuses_as_the_client_knows_them(start, last):
    for fields, error, kind in [({"model": "claude-x"}, anthropic.NotFoundError, "not_found_error"), ({"temperature": 3}, anthropic.BadRequestError, "invalid_request_error"),
                                ({"messages": [{"role": "user", "content": "[error]"}]}, anthropic.InternalServerError, "api_error")]:
        for stream in (False, True):
            with pytest.raises(error) as e:
                client(last).messages.create(**asked("x"), extra_body=fields, stream=stream)
            assert e.value.body["type"] == "error" and e.value.body["error"]["type"] == kind and e.value.request_id
    assert last.post("/v1/messages", "[").error["code"] == "invalid_json"
    small = start("--server.max_body=4KiB")
    a = small.post("/v1/messages", asked("x" * 5000))
    assert (a.status, a.json["type"], a.error["type"]) == (413, "error", "request_too_large")
    socks = [last.socket(http_post("/v1/messages", asked("[never]"))) for _ in range(4)]
    last.wait_metric("fake_live", 4)
    with pytest.raises(anthropic.RateLimitError) as e:
        client(last).messages.create(**asked("x"))
    assert e.value.body["error"]["type"] == "rate_limit_error" and e.value.response.headers["Retry-After"]
    for s in socks:
        s.close()
    last.wait_metric("fake_live", 0)


def test_whatever_an_anthropic_client_asks_is_answered_in_its_words(last):
    """Below its own path, and anywhere else where it says the version that it speaks."""
    for method, path, status, kind in [("GET", "/v1/messages", 405, "invalid_request_error"), ("DELETE", "/v1/messages/count_tokens", 405, "invalid_request_error"),
                                       ("GET", "/v1/messages/batches", 404, "not_found_error"), ("POST", "/v1/messages/batches", 404, "not_found_error"), ("POST", "/v1/messages/", 400, "invalid_request_error")]:
        a = last.request(method, path, {} if method == "POST" else None)
        assert (a.status, a.json["type"], a.error["type"], a.headers["request-id"]) == (status, "error", kind, a.headers["x-request-id"]), a.body
    for path in ("/v1/messagesx", "/v1/models/x", "/v1/files"):
        a, b = last.get(path), last.get(path, headers={"anthropic-version": "2023-06-01"})
        assert (a.status, a.json) == (404, {"error": a.error}) and not a.headers["request-id"], path
        assert (b.status, b.json) == (404, {"type": "error", "error": a.error}) and b.headers["request-id"], path
    for call in (lambda c: c.messages.batches.list(), lambda c: c.beta.files.list(), lambda c: c.models.retrieve("x")):
        with pytest.raises(anthropic.NotFoundError) as e:
            call(client(last))
        assert e.value.body["error"]["type"] == "not_found_error" and e.value.request_id


def test_models(start):
    server = start(model="fake-aliases")
    names = ["fake", "fake-too", "org/fake"]
    page = client(server).models.list(limit=1)
    assert [m.id for m in page] == names and (page.has_more, page.first_id, page.last_id) == (False, names[0], names[-1])
    for m in (*page.data, client(server).models.retrieve("org/fake")):
        there = server.get("/v1/models/" + m.id).json
        assert (m.type, m.display_name, m.created_at.timestamp(), m.max_input_tokens) == ("model", m.id, there["created"], there["max_model_len"])


def test_keys(start):
    server = start("--server.api_key=key, other")
    for more in ({"api_key": "key"}, {"api_key": "other"}, {"auth_token": "key"}):
        assert client(server, **more).messages.create(**asked("x")).stop_reason == "end_turn", more
    for more in ({"api_key": "ke"}, {"api_key": "keyy"}, {"api_key": "key, other"}, {"auth_token": "wrong"}):
        with pytest.raises(anthropic.AuthenticationError) as e:
            client(server, **more).messages.create(**asked("x"))
        assert e.value.request_id and e.value.body["error"]["type"] == "authentication_error" and e.value.body["error"]["code"] == "invalid_api_key"
    for headers in ({"x-api-key": "key", "Authorization": "Bearer wrong"}, {"x-api-key": "wrong", "Authorization": "Bearer other"}):
        assert server.post("/v1/messages", asked("x"), headers=headers).status == 200, headers
    for headers in ({}, {"x-api-key": "wrong", "Authorization": "Bearer wrong"}, {"x-api-key": ""}, {"x-api-key": "Bearer key"}, {"Authorization": "key"}):
        for path in ("/v1/messages", "/v1/messages/count_tokens"):
            a = server.post(path, asked("x"), headers=headers)
            assert a.status == 401 and a.json["type"] == "error", headers
    assert server.get("/v1/models", headers={"x-api-key": "key"}).status == 200


@pytest.mark.parametrize("word,kind", [("[midway]", "api_error"), ("[abort]", "overloaded_error")])
def test_an_error_in_the_middle_of_a_stream(last, word, kind):
    got = events_of(last.post("/v1/messages", asked(word + "x" * 20, stream=True)).body)
    assert got[-1]["type"] == "error" and got[-1]["error"]["type"] == kind and got[-1]["error"]["message"]
    assert "message_stop" not in [e["type"] for e in got]
    with pytest.raises(anthropic.APIStatusError) as e:
        list(client(last).messages.create(**asked(word + "x" * 20), stream=True))
    assert e.value.body["error"]["type"] == kind


def test_a_template_that_raises(servers):
    a = servers("{% if messages|length > 1 %}{{ raise_exception('messages must be one') }}{% endif %}x").post("/v1/messages", asked([U, A, U]))
    assert (a.status, a.error["code"], a.error["param"]) == (400, "template_raise", "messages") and "messages must be one" in a.error["message"]


# --- the connection


def test_a_client_that_leaves_stops_its_request(last):
    for stream in (False, True):
        s = last.socket(http_post("/v1/messages", asked("[drip]x", stream=stream, max_tokens=4000)))
        last.wait_metric("fake_live", 1)
        s.close()
        last.wait_metric("fake_live", 0)
    last.settle()
    gone = last.metric("expertd_http_client_gone_total")
    with client(last).messages.create(**asked("[drip]x"), stream=True) as stream:
        for event in stream:
            if event.type == "content_block_delta":
                break
    last.wait_metric("fake_live", 0)
    last.wait_metric("expertd_http_client_gone_total", gone + 1)


def test_a_stream_shows_life_while_nothing_is_generated(start):
    server = start("--server.heartbeat=1s", "--server.admin=yes")
    answers = []
    asking = threading.Thread(target=lambda: answers.append(server.post("/v1/messages", asked("[held]", stream=True)).body))
    asking.start()
    begin = time.monotonic()
    while server.metric("expertd_http_heartbeats_total") < 2:
        in_time(begin, "two heartbeats")
        time.sleep(0.01)
    assert server.post("/admin/fallback", {"state": "direct"}).status == 200  # something is generated from now on
    asking.join()
    got = events_of(answers[0])
    assert assembled(got)["stop_reason"] == "end_turn"
    assert server.metric("expertd_http_heartbeats_total") == 1 + [e["type"] for e in got].count("ping")


def test_metrics_and_the_log(start):
    server = start()
    create(server, "Hello")
    server.settle()
    assert re.search(r'^expertd_http_requests_total\{endpoint="/v1/messages",status="200"\} 1$', server.metrics(), re.M)
    assert "POST /v1/messages 200" in server.log


def test_count_tokens(servers):
    s = servers(ALL)
    for fields in ({"messages": [U]}, {"messages": CONVERSATIONS["calls"][0], "system": "be kind", "tools": [WEATHER, NOW]}):
        before = s.metric("fake_submitted_total")
        counted = client(s).messages.count_tokens(model="fake", **fields)
        assert s.metric("fake_submitted_total") == before, "nothing is generated"
        usage = create(s, fields["messages"], **{k: v for k, v in fields.items() if k != "messages"})["usage"]
        assert counted.input_tokens == usage["input_tokens"] + usage["cache_read_input_tokens"]
    assert client(s).messages.count_tokens(model="fake", messages=[{"role": "user", "content": "x" * 5000}]).input_tokens > 5000, "longer than the context"


# --- the demo model


def test_the_clients_in_the_documentation(daemon):
    with open(os.path.join(ROOT, "docs", "clients.md"), encoding="utf-8") as f:
        text = f.read().split("## In Python")[1].split("\n## ")[0]
    blocks = re.findall(r"(?m)(?:^    .*\n)+", text)
    assert len(blocks) == 2
    for block, answers in zip(blocks, (3, 1)):
        code = textwrap.dedent(block).replace("http://127.0.0.1:8080", daemon.url)
        r = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=WAIT_S)
        assert r.returncode == 0 and code.count("model=") >= answers and len(r.stdout) > 10 * answers, r.stderr


def test_the_same_text_as_chat(daemon):
    messages = [{"role": "user", "content": "Tell me of a king."}]
    for fields in [{"temperature": 0}, {"seed": 7, "temperature": 1, "top_p": 0.9, "top_k": 50}]:
        chat = daemon.post("/v1/chat/completions", {"messages": [{"role": "system", "content": "You tell tales."}, *messages], "max_tokens": 40, **fields}).json
        m = create(daemon, messages, model="demo", system="You tell tales.", max_tokens=40, **fields)
        assert texts(m) == [("text", chat["choices"][0]["message"]["content"])]
        u = m["usage"]
        assert (u["input_tokens"] + u["cache_read_input_tokens"], u["output_tokens"]) == (chat["usage"]["prompt_tokens"], chat["usage"]["completion_tokens"])
    m = both(daemon, messages, model="demo", system="You tell tales.", max_tokens=40, temperature=0)
    assert m["stop_reason"] == "max_tokens"
    assert client(daemon).messages.count_tokens(model="demo", system="You tell tales.", messages=messages).input_tokens == chat["usage"]["prompt_tokens"]


def test_an_answer_of_the_demo_model_goes_on(daemon):
    begin = {"role": "assistant", "content": "Once upon a time there was"}
    m = both(daemon, [U, begin], model="demo", max_tokens=12, temperature=0)
    chat = daemon.post("/v1/chat/completions", {"messages": [U, begin], "max_tokens": 12, "temperature": 0, "continue_final_message": True}).json
    assert texts(m) == [("text", chat["choices"][0]["message"]["content"])]


def test_the_clients_tool_runner_sends_the_whole_conversation(tools_daemon):
    """It asks the server to keep the conversation, and goes on without once it is told that this one cannot; else its second
    request would be answered without what was said before."""
    for thread in ({"type": "create"}, {"type": "continue", "previous_message_id": "msg_1"}, "x"):
        a = tools_daemon.post("/v1/messages", {"max_tokens": 5, "messages": [U], "thread": thread})
        assert (a.status, a.json["error"]["code"], a.json["error"]["param"]) == (400, "thread_unsupported_request", "thread")
        assert a.json["error"]["details"] == {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
    assert tools_daemon.post("/v1/messages", {"max_tokens": 5, "messages": [U], "thread": None}).status == 200
    if not hasattr(anthropic, "beta_tool"):
        return
    called = []

    @anthropic.beta_tool
    def double(number: int) -> str:
        """Doubles a number."""
        called.append(number)
        return str(2 * number)
    before = tools_daemon.metric("expertd_prompt_tokens_total")
    runner = client(tools_daemon).beta.messages.tool_runner(model="demo", max_tokens=100, tools=[double], messages=[U], tool_choice={"type": "any"}, max_iterations=3)
    replies = list(runner)
    assert len(replies) == 3 and len(called) >= 2 and all(r.stop_reason == "tool_use" for r in replies)
    asked_for = [r.usage.input_tokens + r.usage.cache_read_input_tokens for r in replies]
    assert asked_for == sorted(set(asked_for)), asked_for  # each has all that was said before
    assert tools_daemon.metric("expertd_prompt_tokens_total") - before == sum(asked_for)


def test_structured_output(daemon):
    schema = {"type": "object", "properties": {"age": {"type": "integer", "minimum": 1, "maximum": 99}}, "required": ["age"], "additionalProperties": False}
    m = both(daemon, "A person?", model="demo", output_config={"format": {"type": "json_schema", "schema": schema}}, max_tokens=100, seed=3)
    assert 1 <= json.loads(texts(m)[0][1])["age"] <= 99


def test_calls_with_the_demo_model(tools_daemon):
    c = client(tools_daemon)
    for choice in ({"type": "any"}, {"type": "tool", "name": "weather"}):
        m = both(tools_daemon, "Is it warm?", model="demo", tools=[WEATHER], tool_choice=choice, max_tokens=100, temperature=0)
        assert m["stop_reason"] == "tool_use" and [k for k, _ in texts(m)] == ["tool_use"] and m["content"][0]["input"]["town"] in ("Emden", "Gent")
    history = [U, {"role": "assistant", "content": m["content"]}, {"role": "user", "content": [result(m["content"][0]["id"], content="18")]}]
    again = c.messages.create(model="demo", max_tokens=10, messages=history, tools=[WEATHER], tool_choice={"type": "none"})
    assert again.content[0].text
