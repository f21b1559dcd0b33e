"""OpenAI's Responses API by the official client. The fake engine says its prompt again; what chat does with the same conversation is the
measure of what goes to the model, the client's own types that of what comes back."""
import json
import os
import re
import threading
import time

import openai
import pydantic
import pytest
from openai.types.responses import Response, ResponseStreamEvent

from conftest import ROOT, WAIT_S, Daemon, Server, http_post, in_time

ALL = ("{#<tool_call> </think>#}{% for m in messages %}[{{ m.role }}{% if m.reasoning_content %} thought:{{ m.reasoning_content }}{% endif %}"
       "{% if m.content is string %} said:{{ m.content }}{% else %}{% for p in m.content or [] %} part:{{ p.text }}{% endfor %}{% endif %}"
       "{% for c in m.tool_calls or [] %} call:{{ c.id }},{{ c.function.name }},{{ c.function.arguments | tojson }}{% endfor %}"
       "{% if m.tool_call_id %} of:{{ m.tool_call_id }}{% endif %}]\n{% endfor %}{% if tools %}{{ tools | tojson }}{% endif %}"
       "{% if reasoning_effort %}effort:{{ reasoning_effort }}{% endif %}")
LAST = "{#<tool_call> </think>#}{% if tools %}{% endif %}{{ messages[-1].content }}"
WEATHER = {"type": "function", "name": "weather", "description": "Weather of a town", "strict": True, "parameters": {
    "type": "object", "properties": {"town": {"enum": ["Emden", "Gent"]}}, "required": ["town"], "additionalProperties": False}}
NOW = {"type": "function", "name": "now"}
MAIL = {"type": "namespace", "name": "mail", "description": "Letters", "tools": [{"type": "function", "name": "send", "description": "Sends", "strict": False}, {"type": "function", "name": "now"}]}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"town": "Gent"}}\n</tool_call>'
EVENTS = pydantic.TypeAdapter(ResponseStreamEvent)
# Older clients have no types for the content parts of thoughts and for namespaces, and read them all the same.
HAS_THOUGHT_PARTS = hasattr(openai.types.responses.response_content_part_added_event, "PartReasoningText")
HAS_NAMESPACES = hasattr(openai.types.responses, "NamespaceTool")


def nested(tool):
    return {"type": "function", "function": {k: v for k, v in tool.items() if k != "type"}}


@pytest.fixture(scope="module")
def servers():
    made = {}

    def get(template):
        if template not in made:
            made[template] = Server("--model.chat_template=" + template, "--server.max_queue=4")
        return made[template]

    yield get
    for s in made.values():
        assert s.metric("fake_live") == 0
        assert s.stop() == 0, s.log


@pytest.fixture(scope="module")
def last(servers):
    return servers(LAST)


@pytest.fixture(scope="module")
def tools_daemon():
    d = Daemon("--model.chat_template=" + os.path.join(ROOT, "config", "demo", "tools.jinja"))
    yield d
    assert d.stop() == 0, d.log


def client(server):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="x", max_retries=0, timeout=WAIT_S)


def typed(response):
    return response if HAS_NAMESPACES else {**response, "tools": [t for t in response["tools"] if t["type"] != "namespace"]}


def create(server, input, **fields):
    body = {"input": input, **fields}
    a = server.post("/v1/responses", body)
    assert a.status == 200, a.body
    Response.model_validate(typed(a.json))  # the types, field by field: the client itself lets everything pass
    return a.json


def events_of(body):
    """The events of a stream: names, order and numbers are right, and each is of the client's types."""
    out = []
    for block in body.decode().split("\n\n"):
        if not block or block.startswith(":"):
            continue
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == "event: " + event["type"] and event["sequence_number"] == len(out), block
        if HAS_THOUGHT_PARTS or event.get("part", {}).get("type") != "reasoning_text":
            EVENTS.validate_python({**event, "response": typed(event["response"])} if "response" in event else event)
        out.append(event)
    assert [e["type"] for e in out[:2]] == ["response.created", "response.in_progress"]
    assert all(e["response"]["status"] == "in_progress" and e["response"]["output"] == [] for e in out[:2])
    return out


DELTAS = {"response.output_text.delta": "response.output_text.done", "response.reasoning_text.delta": "response.reasoning_text.done",
          "response.function_call_arguments.delta": "response.function_call_arguments.done"}


def assembled(events):
    """The items of a stream, put together from its deltas alone; every other event must agree."""
    items, text, logprobs, parts, phase = [], "", [], [], "between"
    for e in events[2:]:
        kind = e["type"]
        if kind == "response.output_item.added":
            assert phase == "between" and e["output_index"] == len(items)
            item, text, logprobs, parts, phase = dict(e["item"]), "", [], [], "open"
            assert item["status"] == "in_progress" and item.get("content", []) == [] and item.get("arguments", "") == ""
        elif kind == "response.output_item.done":
            assert phase == "whole" and e["output_index"] == len(items)
            item["status"] = e["item"]["status"]
            item.update({"arguments": text} if item["type"] == "function_call" else {"content": parts})
            assert e["item"] == item
            items.append(item)
            phase = "between"
        elif kind in ("response.completed", "response.incomplete", "response.failed"):
            assert phase == "between" and e is events[-1] and e["response"]["output"] == items
            assert kind == "response." + e["response"]["status"]
            return e["response"]
        elif kind != "error":
            assert e["item_id"] == item["id"] and e["output_index"] == len(items)
            assert "content_index" not in e or e["content_index"] == 0
            if kind in DELTAS:
                text += e["delta"]
                logprobs += e.get("logprobs", [])
                assert phase == "open" and (e["delta"] or e.get("logprobs"))
            elif kind in DELTAS.values():
                assert e.get("text", e.get("arguments")) == text and e.get("logprobs", []) == logprobs
                phase = "whole"
            elif kind == "response.content_part.added":
                assert e["part"]["text"] == "" and not e["part"].get("logprobs")
            else:
                assert kind == "response.content_part.done"
                parts = [{**e["part"], "text": text, **({"logprobs": logprobs} if item["type"] == "message" else {})}]
                assert parts == [e["part"]]
    raise AssertionError("the stream does not end")


NEW = ("id", "call_id", "created_at", "completed_at", "cached_tokens")


def same(a, b):
    """Equal but for what is new each time."""
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for k in a:
            if k not in NEW:
                same(a[k], b[k])
    elif isinstance(a, list) and isinstance(b, list):
        assert len(a) == len(b)
        for x, y in zip(a, b):
            same(x, y)
    else:
        assert a == b


def both(server, input, **fields):
    """The whole response, which the stream must have too."""
    whole = create(server, input, **fields)
    a = server.post("/v1/responses", {"input": input, "stream": True, **fields})
    assert a.status == 200 and a.headers["Content-Type"].startswith("text/event-stream")
    streamed = assembled(events_of(a.body))
    same(whole, streamed)
    ids = [i["id"] for r in (whole, streamed) for i in r["output"]]
    assert len(set(ids)) == len(ids) and all(re.fullmatch("(msg|rs|fc)_[0-9a-f]{16}", i) for i in ids)
    return whole


def texts(response):
    return [(i["type"], i["arguments"] if i["type"] == "function_call" else "".join(p["text"] for p in i["content"])) for i in response["output"]]


# --- answers


def test_a_text(last):
    r = client(last).responses.create(model="fake", input="Hello")
    assert r.output_text == "Hello" and r.status == "completed" and r.object == "response" and r.id.startswith("resp_")
    assert r.error is None and r.incomplete_details is None and r.created_at > 1.7e9 and r.model == "fake"
    assert (r.usage.input_tokens, r.usage.output_tokens, r.usage.total_tokens) == (5, 5, 10)
    assert r.usage.input_tokens_details.cached_tokens == 2 and r.usage.output_tokens_details.reasoning_tokens == 0
    assert r.output[0].role == "assistant" and r.output[0].content[0].annotations == []
    assert texts(both(last, "Gr\u00fc\u00df \U0001f642\n\"\\")) == [("message", "Gr\u00fc\u00df \U0001f642\n\"\\")]


def test_what_was_asked_is_said_again(last):
    asked = {"instructions": "be kind", "max_output_tokens": 50, "metadata": {"a": "b"}, "parallel_tool_calls": False, "temperature": 0.7,
             "top_p": 0.9, "tools": [WEATHER, NOW], "tool_choice": "none", "user": "me", "prompt_cache_key": "k", "safety_identifier": "s",
             "max_tool_calls": 3, "truncation": "disabled"}
    r = both(last, "Hi", reasoning={"effort": "low", "summary": "auto"}, text={"format": {"type": "text"}, "verbosity": "medium"}, store=True,
             background=False, previous_response_id=None, service_tier="auto", seed=5, min_p=0.1, stop=["zz"], **asked)
    assert {k: r[k] for k in asked} == asked
    assert r["store"] is False and r["background"] is False and r["previous_response_id"] is None and r["service_tier"] == "default"
    assert r["reasoning"] == {"effort": "low", "summary": None} and r["text"] == {"format": {"type": "text"}, "verbosity": "medium"}
    r = create(last, "Hi")
    assert (r["tools"], r["tool_choice"], r["metadata"], r["parallel_tool_calls"], r["top_logprobs"]) == ([], "auto", {}, True, 0)
    big = {**NOW, "parameters": {"type": "object", "properties": {"n": {"maximum": 18446744073709551615, "minimum": 9007199254740993}}}}
    shown = create(last, "Hi", tools=[big])["tools"][0]["parameters"]["properties"]["n"]
    assert shown == {"maximum": pytest.approx(18446744073709551615), "minimum": 9007199254740993}


def test_a_limit_makes_it_incomplete(last):
    r = both(last, "Hello", max_output_tokens=3)
    assert r["status"] == "incomplete" and r["incomplete_details"] == {"reason": "max_output_tokens"} and r["completed_at"] is None
    assert texts(r) == [("message", "Hel")] and r["output"][0]["status"] == "incomplete"
    assert create(last, "Hello", max_output_tokens=5)["output"][0]["content"][0]["text"] == "Hello"
    assert create(last, "Hello", max_output_tokens=-1)["status"] == "completed"
    r = both(last, "<think>I wonder", max_output_tokens=9)
    assert texts(r) == [("reasoning", "I")] and r["status"] == "incomplete"


def test_an_empty_answer_has_a_message(last):
    r = both(last, "Hello", stop="H")
    assert texts(r) == [("message", "")] and r["status"] == "completed"


def test_thoughts_text_and_calls_are_items(last):
    text = "<think>\nwhich town?\n</think>\n\nLet me look." + CALL + "\n" + CALL.replace("Gent", "Emden")
    r = both(last, text, tools=[WEATHER])
    assert texts(r) == [("reasoning", "which town?"), ("message", "Let me look."), ("function_call", '{"town": "Gent"}'), ("function_call", '{"town": "Emden"}')]
    assert r["output"][0]["summary"] == [] and r["status"] == "completed" and {i["status"] for i in r["output"]} == {"completed"}
    assert re.fullmatch("call_[0-9A-Za-z]{24}", r["output"][2]["call_id"]) and r["output"][2]["name"] == "weather"
    assert 10 < r["usage"]["output_tokens_details"]["reasoning_tokens"] < len(text) - len(CALL) * 2
    assert [k for k, _ in texts(both(last, text, tools=[WEATHER], parallel_tool_calls=False))] == ["reasoning", "message", "function_call"]
    assert texts(both(last, text, tools=[WEATHER], tool_choice="none")) == [("reasoning", "which town?"), ("message", text[text.index("Let"):])]
    hidden = both(last, text, tools=[WEATHER], reasoning={"exclude": True})
    assert [k for k, _ in texts(hidden)] == ["message", "function_call", "function_call"]
    assert hidden["usage"]["output_tokens_details"] == r["usage"]["output_tokens_details"]


def test_tools_in_namespaces(last, servers):
    """Codex' agents and MCP servers: the client has its functions by both names, the model by one."""
    tools = [NOW, MAIL]
    flat = [nested(NOW), nested({"type": "function", "name": "mail__send", "description": "Sends", "strict": False}), nested({"type": "function", "name": "mail__now"})]
    text = "".join('<tool_call>{"name": "%s", "arguments": {}}</tool_call>' % name for name in ("mail__send", "now", "mail__now", "mail__other"))
    r = both(last, text, tools=tools)
    assert [(i.get("namespace"), i["name"]) for i in r["output"]] == [("mail", "send"), (None, "now"), ("mail", "now"), (None, "mail__other")] and r["tools"] == tools
    alike = [{**MAIL, "name": a, "tools": [{"type": "function", "name": b}]} for a, b in (("a", "b__c"), ("a__b", "c"))]
    assert last.post("/v1/responses", {"input": "x", "tools": alike}).error["param"] == "tools[1].tools[0].name"
    input = [{"role": "user", "content": "u"}, *r["output"][:2], {"type": "function_call_output", "call_id": r["output"][0]["call_id"], "output": "sent"}]
    calls = [{"id": i["call_id"], "type": "function", "function": {"name": name, "arguments": "{}"}} for i, name in zip(r["output"], ("mail__send", "now"))]
    messages = [{"role": "user", "content": "u"}, {"role": "assistant", "tool_calls": calls}, {"role": "tool", "tool_call_id": calls[0]["id"], "content": "sent"}]
    wanted = servers(ALL).post("/v1/chat/completions", {"messages": messages, "tools": flat}).json["choices"][0]["message"]["content"]
    assert texts(create(servers(ALL), input, tools=tools)) == [("message", wanted)] and "mail__send" in wanted


def test_a_call_that_is_cut(last):
    for n, status in [(CALL.index("Gent"), "incomplete"), (CALL.index("}}") + 1, "completed")]:
        r = both(last, CALL, tools=[WEATHER], max_output_tokens=n)
        assert r["status"] == "incomplete" and r["output"][0]["status"] == status and CALL[:n].endswith(texts(r)[0][1])
    r = both(last, CALL, tools=[WEATHER], stop="Gent")
    assert r["status"] == "completed" and r["output"][0]["status"] == "incomplete"


def test_logprobs(last):
    fields = {"include": ["message.output_text.logprobs"], "top_logprobs": 2, "tools": [WEATHER]}
    text = "<think>a</think>S\u00fc\u00df" + CALL
    r = both(last, text, **fields)
    part = r["output"][1]["content"][0]
    assert part["text"] == "S\u00fc\u00df" and b"".join(bytes(t["bytes"]) for t in part["logprobs"]).decode() == part["text"]
    assert all(len(t["top_logprobs"]) == 2 and t["logprob"] == -0.25 for t in part["logprobs"])
    a = client(last).responses.create(model="fake", input="ab", include=["message.output_text.logprobs"])
    assert [(t.token, t.top_logprobs) for t in a.output[0].content[0].logprobs] == [("a", []), ("b", [])]
    assert create(last, "ab")["output"][0]["content"][0]["logprobs"] == []
    chat = last.chat("ab", logprobs=True, top_logprobs=3).json["choices"][0]["logprobs"]["content"]
    assert create(last, "ab", include=["message.output_text.logprobs"], top_logprobs=3)["output"][0]["content"][0]["logprobs"] == chat


def test_timings(last):
    assert both_timings(last)["prompt_n"] == 3


def both_timings(server):
    a = server.post("/v1/responses", {"input": "Hello", "timings": True, "stream": True})
    return assembled(events_of(a.body))["timings"]


def test_the_clients_own_stream(last):
    text = "<think>hm</think>So." + CALL
    with client(last).responses.stream(model="fake", input=text, tools=[WEATHER]) as stream:
        deltas = [e for e in stream if e.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert "".join(e.delta for e in deltas) == deltas[-1].snapshot == final.output_text == "So."
    assert [i.type for i in final.output] == ["reasoning", "message", "function_call"]
    assert final.output[2].parsed_arguments == {"town": "Gent"}


# --- what the model is given: what chat gives it


CALLED = [{"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "weather", "arguments": '{"town": "Gent"}', "status": "completed"},
          {"type": "function_call", "call_id": "call_2", "name": "now", "arguments": "{}"}]
CALLS = [{"id": c["call_id"], "type": "function", "function": {"name": c["name"], "arguments": c["arguments"]}} for c in CALLED]
THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}], "encrypted_content": None}


def said(text, *more, **fields):
    return {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", **fields,
            "content": [{"type": "output_text", "text": t, "annotations": [], "logprobs": []} for t in (text, *more)]}


CONVERSATIONS = {
    "text": ("Hi", [{"role": "user", "content": "Hi"}]),
    "roles": ([{"role": "system", "content": "s"}, {"role": "developer", "content": "d"}, {"role": "user", "content": "u"},
               {"role": "assistant", "content": "a"}, {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "v"}]}],
              [{"role": "system", "content": "s"}, {"role": "developer", "content": "d"}, {"role": "user", "content": "u"},
               {"role": "assistant", "content": "a"}, {"role": "user", "content": "v"}]),
    "parts": ([{"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]}, {"role": "user", "content": []}],
              [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, {"role": "user", "content": ""}]),
    "an answer": ([{"role": "user", "content": "u"}, THOUGHT, said("a"), {"role": "user", "content": "v"}],
                  [{"role": "user", "content": "u"}, {"role": "assistant", "reasoning_content": "hm", "content": "a"}, {"role": "user", "content": "v"}]),
    "a refusal": ([{"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}], [{"role": "assistant", "content": "no"}]),
    "calls": ([{"role": "user", "content": "u"}, THOUGHT, said("wait"), *CALLED, {"type": "function_call_output", "call_id": "call_1", "output": "18"},
               {"type": "function_call_output", "call_id": "call_2", "output": [{"type": "input_text", "text": "noon"}]}],
              [{"role": "user", "content": "u"}, {"role": "assistant", "reasoning_content": "hm", "content": "wait", "tool_calls": CALLS},
               {"role": "tool", "tool_call_id": "call_1", "content": "18"}, {"role": "tool", "tool_call_id": "call_2", "content": "noon"}]),
    "a call alone": ([{"role": "user", "content": "u"}, CALLED[0]], [{"role": "user", "content": "u"}, {"role": "assistant", "tool_calls": CALLS[:1]}]),
    "a thought alone": ([THOUGHT, {"role": "user", "content": "u"}], [{"role": "assistant", "reasoning_content": "hm", "content": ""}, {"role": "user", "content": "u"}]),
    "only its summary": ([{"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}, {"type": "summary_text", "text": "mm"}]}, said("a")],
                         [{"role": "assistant", "reasoning_content": "hm\nmm", "content": "a"}]),
    "an empty thought": ([{"type": "reasoning", "id": "rs_1", "summary": []}, said("a")], [{"role": "assistant", "content": "a"}]),
    "an answer in pieces": ([said("a"), THOUGHT, said("\nb"), THOUGHT, CALLED[0], said("c")],
                            [{"role": "assistant", "reasoning_content": "hm\nhm", "content": "a\nbc", "tool_calls": CALLS[:1]}]),
    "two answers": ([said("a"), said("b", "c")], [{"role": "assistant", "content": "a"}, {"role": "assistant", "content": [{"type": "text", "text": "b"}, {"type": "text", "text": "c"}]}]),
}


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_the_model_is_given_what_chat_gives_it(servers, name):
    input, messages = CONVERSATIONS[name]
    server = servers(ALL)
    for fields, chat in [({}, {}), ({"tools": [WEATHER, NOW]}, {"tools": [nested(WEATHER), nested(NOW)]}), ({"reasoning": {"effort": "high"}}, {"reasoning_effort": "high"})]:
        wanted = server.post("/v1/chat/completions", {"messages": messages, "skip_special_tokens": False, **chat}).json
        r = create(server, input, skip_special_tokens=False, **fields)
        assert texts(r) == [("message", wanted["choices"][0]["message"]["content"])]
        assert r["usage"]["input_tokens"] == wanted["usage"]["prompt_tokens"]
    if name == "calls":
        assert 'call:call_1,weather,{"town": "Gent"} call:call_2,now,{}]\n[tool said:18 of:call_1]' in texts(r)[0][1]


def test_many_items_of_one_message_take_no_time(servers):
    """As many as the body has room for: were each joined to all before, the client would give up first."""
    body = '{"input":[%s]}' % ",".join(['{"type":"reasoning","content":"a"}'] * 470_000)
    a = servers(ALL).post("/v1/responses", body)
    assert a.status == 400 and a.error["code"] == "context_length_exceeded", a.body
    items = [{"type": "reasoning", "content": "a"}, said("b"), CALLED[1]] * 3
    assert texts(create(servers(ALL), items))[0][1].startswith("[assistant thought:a\na\na said:bbb call:")


def test_instructions_come_first(servers):
    def prompt(input, instructions="be kind"):
        return texts(create(servers(ALL), input, instructions=instructions))[0][1].splitlines()
    assert prompt("Hi") == ["[system said:be kind]", "[user said:Hi]"]
    assert prompt("Hi", "") == prompt("Hi", None) == ["[user said:Hi]"]
    # Templates have one place for them.
    leading = [{"role": "developer", "content": "d"}, {"role": "system", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]}]
    assert prompt([*leading, {"role": "user", "content": "u"}, leading[0]])[:2] == ["[system said:be kind", ""]
    assert prompt([*leading, {"role": "user", "content": "u"}, {"role": "system", "content": "s"}]) == [
        "[system said:be kind", "", "d", "", "a", "b]", "[user said:u]", "[system said:s]"]


def test_what_came_back_can_be_sent_as_it_is(last, servers):
    r = client(last).responses.create(model="fake", input="<think>hm</think>I look." + CALL, tools=[WEATHER])
    history = [{"role": "user", "content": "u"}, *[i.model_dump() for i in r.output], {"type": "function_call_output", "call_id": r.output[2].call_id, "output": "18"}]
    again = client(servers(ALL)).responses.create(model="fake", input=history, tools=[WEATHER])
    assert f'[assistant thought:hm said:I look. call:{r.output[2].call_id},weather,{{"town": "Gent"}}]\n[tool said:18 of:{r.output[2].call_id}]' in again.output_text


# --- errors


FAULTS = [
    ({}, "input", "missing_required_parameter"), ({"input": None}, "input", "missing_required_parameter"), ({"input": 5}, "input", "invalid_type"),
    ({"input": []}, "input", "invalid_value"), ({"input": {"role": "user"}}, "input", "invalid_type"), ({"input": ["x"]}, "input[0]", "invalid_type"),
    ({"input": [{"role": "user"}]}, "input[0].content", "missing_required_parameter"), ({"input": [{"content": "x"}]}, "input[0].role", "missing_required_parameter"),
    ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role", "invalid_value"), ({"input": [{"role": "user", "content": 5}]}, "input[0].content", "invalid_type"),
    ({"input": [{"role": "user", "content": ["x"]}]}, "input[0].content[0]", "invalid_type"),
    ({"input": [{"role": "user", "content": [{"text": "x"}]}]}, "input[0].content[0].type", "missing_required_parameter"),
    ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text", "missing_required_parameter"),
    *[({"input": [{"role": "user", "content": [{"type": "input_text", "text": "x"}, {"type": kind}]}]}, "input[0].content[1].type", "unsupported_content")
      for kind in ("input_image", "input_file", "input_audio")],
    *[({"input": [{"type": kind, "id": "x"}]}, "input[0].type", "unsupported_value")
      for kind in ("item_reference", "web_search_call", "computer_call", "custom_tool_call", "local_shell_call", "mcp_call", "compaction")],
    ({"input": [{"type": 5}]}, "input[0].type", "invalid_type"),
    ({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, "input[0].call_id", "missing_required_parameter"),
    ({"input": [{"type": "function_call", "call_id": "1", "name": "", "arguments": "{}"}]}, "input[0].name", "invalid_value"),
    ({"input": [{"type": "function_call", "call_id": "1", "name": "f", "arguments": {}}]}, "input[0].arguments", "invalid_type"),
    ({"input": [{"type": "function_call_output", "call_id": "1"}]}, "input[0].output", "missing_required_parameter"),
    ({"input": [{"type": "function_call_output", "call_id": "1", "output": [{"type": "input_image"}]}]}, "input[0].output[0].type", "unsupported_content"),
    ({"input": [{"type": "reasoning", "summary": [], "encrypted_content": "gAAA"}]}, "input[0].encrypted_content", "unsupported_content"),
    ({"input": "\0x"}, "input", "invalid_value"),
    *[({"input": "x", "tools": [{"type": kind, "name": "x"}]}, "tools[0].type", "unsupported_value")
      for kind in ("web_search", "web_search_preview", "file_search", "code_interpreter", "computer_use_preview", "image_generation", "mcp", "local_shell", "custom", "tool_search")],
    ({"input": "x", "tools": [NOW, {"name": "f"}]}, "tools[1].type", "missing_required_parameter"), ({"input": "x", "tools": ["f"]}, "tools[0]", "invalid_type"),
    ({"input": "x", "tools": [{"type": "function"}]}, "tools[0].name", "missing_required_parameter"), ({"input": "x", "tools": [nested(NOW)]}, "tools[0]", "invalid_value"),
    ({"input": "x", "tools": [{"type": "function", "name": "a b"}]}, "tools[0].name", "invalid_value"), ({"input": "x", "tools": [NOW, NOW]}, "tools[1].name", "invalid_value"),
    ({"input": "x", "tools": [{**NOW, "parameters": []}]}, "tools[0].parameters", "invalid_type"),
    ({"input": "x", "tools": [{**NOW, "strict": True, "parameters": {"type": "object", "properties": {"a": {"not": {}}}}}], "tool_choice": "required"},
     "tools[0].parameters.properties.a.not", "invalid_json_schema"),
    ({"input": "x", "tools": [{**MAIL, "name": ""}]}, "tools[0].name", "invalid_value"), ({"input": "x", "tools": [{"type": "namespace", "name": "a"}]}, "tools[0].tools", "missing_required_parameter"),
    ({"input": "x", "tools": [NOW, {**MAIL, "tools": [NOW, {"type": "custom", "name": "x"}]}]}, "tools[1].tools[1].type", "unsupported_value"),
    ({"input": "x", "tools": [{**MAIL, "tools": [MAIL]}]}, "tools[0].tools[0].type", "unsupported_value"), ({"input": "x", "tools": [{**MAIL, "name": "n" * 60}]}, "tools[0].tools[0]", "invalid_value"),
    ({"input": "x", "tools": [NOW, MAIL, {**MAIL, "name": "a b"}]}, "tools[2].tools[0].name", "invalid_value"), ({"input": "x", "tools": [MAIL, {**NOW, "name": "mail__send"}]}, "tools[1].name", "invalid_value"),
    ({"input": "x", "tools": [NOW, {**MAIL, "tools": [NOW, {**NOW, "name": "f", "strict": True, "parameters": {"type": "object", "properties": {"a": {"not": {}}}}}]}], "tool_choice": "required"},
     "tools[1].tools[1].parameters.properties.a.not", "invalid_json_schema"),
    ({"input": "x", "tools": [NOW], "tool_choice": "always"}, "tool_choice", "invalid_value"), ({"input": "x", "tool_choice": "required"}, "tool_choice", "invalid_value"),
    ({"input": "x", "tools": [NOW], "tool_choice": {"type": "function", "name": "g"}}, "tool_choice", "invalid_value"),
    ({"input": "x", "tools": [NOW], "tool_choice": {"type": "function", "function": {"name": "now"}}}, "tool_choice.name", "missing_required_parameter"),
    ({"input": "x", "tools": [NOW], "tool_choice": {"type": "web_search"}}, "tool_choice.type", "unsupported_value"), ({"input": "x", "tool_choice": 5}, "tool_choice", "invalid_type"),
    ({"input": "x", "text": {"format": {"type": "yaml"}}}, "text.format.type", "invalid_value"), ({"input": "x", "text": {"format": {}}}, "text.format.type", "missing_required_parameter"),
    ({"input": "x", "text": {"format": "json"}}, "text.format", "invalid_type"), ({"input": "x", "text": "json"}, "text", "invalid_type"),
    ({"input": "x", "text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema", "missing_required_parameter"),
    ({"input": "x", "text": {"format": {"type": "json_schema", "name": 5, "schema": {}}}}, "text.format.name", "invalid_type"),
    ({"input": "x", "text": {"format": {"type": "json_schema", "name": "n", "schema": {"properties": {"a": {"if": {"type": "null"}}}}}}}, "text.format.schema.properties.a.if", "invalid_json_schema"),
    *[({"input": "x", "text": {"verbosity": v}}, "text.verbosity", "unsupported_value") for v in ("low", "high", 5)],
    ({"input": "x", "truncation": "auto"}, "truncation", "unsupported_value"), ({"input": "x", "reasoning": {"effort": 5}}, "reasoning.effort", "invalid_type"),
    ({"input": "x", "reasoning": {"summary": "long"}}, "reasoning.summary", "invalid_value"), ({"input": "x", "reasoning": "high"}, "reasoning", "invalid_type"),
    ({"input": "x", "reasoning": {"effort": "none"}}, "reasoning.effort", "unsupported_parameter"), ({"input": "x", "metadata": {"a": 1}}, "metadata", "invalid_type"),
    ({"input": "x", "include": ["file_search_call.results"]}, "include[0]", "unsupported_value"), ({"input": "x", "include": [5]}, "include[0]", "invalid_type"),
    ({"input": "x", "top_logprobs": 2}, "top_logprobs", "invalid_value"), ({"input": "x", "top_logprobs": 21}, "top_logprobs", "invalid_value"),
    ({"input": "x", "stream_options": {"include_obfuscation": True}, "stream": True}, "stream_options.include_obfuscation", "unsupported_value"),
    ({"input": "x", "max_output_tokens": 0}, "max_output_tokens", "invalid_value"), ({"input": "x", "max_output_tokens": "9"}, "max_output_tokens", "invalid_type"),
    ({"input": "x", "max_output_tokens": 5, "min_tokens": 6}, "min_tokens", "invalid_value"), ({"input": "x", "temperature": 3}, "temperature", "invalid_value"),
    ({"input": "x", "max_output_tokens": 100000}, "max_output_tokens", "context_length_exceeded"), ({"input": "x" * 5000}, "input", "context_length_exceeded"),
    ({"input": "x", "stream": "true"}, "stream", "invalid_type"), ({"input": "x", "instructions": 5}, "instructions", "invalid_type"), ({"input": "x", "stop": 5}, "stop", "invalid_type"),
    *[({"input": "x", name: value}, name, "unsupported_parameter") for name, value in {
        "previous_response_id": "resp_1", "conversation": "conv_1", "background": True, "prompt": {"id": "pmpt_1"}, "messages": [{}], "max_tokens": 5, "response_format": {"type": "json_object"},
        "reasoning_effort": "low", "logprobs": True, "n": 2, "return_token_ids": True, "functions": [{}], "function_call": "auto", "context_management": [{}], "structural_tag": "x"}.items()],
    ({"input": "x", "guided_json": {"not": {}}}, "guided_json.not", "invalid_json_schema"), ({"input": "x", "text": {"format": {"type": "json_object", "schema": {"not": {}}}}}, "text.format.schema.not", "invalid_json_schema"),
    ({"input": "x", "guided_json": {"type": "null"}, "text": {"format": {"type": "json_object"}}}, "guided_json", "invalid_value"),
]


def test_a_result_needs_its_call(servers):
    result = {"type": "function_call_output", "call_id": "call_9", "output": "18"}
    call = {**CALLED[0], "call_id": "call_9"}
    for input in ([result], [*CALLED, result], [result, call]):
        a = servers(ALL).post("/v1/responses", {"input": input})
        assert (a.status, a.error["param"], a.error["code"]) == (400, "input", "invalid_value"), a.body
        assert a.error["message"] == "No tool call found for function call output with call_id call_9."
    create(servers(ALL), [*CALLED, call, {"role": "user", "content": "u"}, result, result])


@pytest.mark.parametrize("body,param,code", FAULTS, ids=lambda v: v if isinstance(v, str) else None)
def test_faults_are_told_in_the_clients_words(last, body, param, code):
    a = last.post("/v1/responses", body)
    assert (a.status, a.error["param"], a.error["code"], a.error["type"]) == (400, param, code, "invalid_request_error"), a.body
    message = a.error["message"]
    assert not re.search(r"response_format|max_completion|'messages|\.function\b|'prompt", message) or code == "unsupported_parameter", message
    assert f"'{param}'" in message or code in ("context_length_exceeded", "invalid_value", "unsupported_parameter", "invalid_json_schema"), message
    assert code != "invalid_json_schema" or re.match(r"'(tools\[[01]\](\.tools\[1\])?\.parameters|text\.format\.schema|guided_json)'", message), message
    assert last.post("/v1/responses", {**body, "stream": body.get("stream", True)}).status == 400


@pytest.mark.parametrize("fields", [{"previous_response_id": "r"}, {"conversation": {"id": "c"}}, {"prompt": {"id": "p"}}, {"background": True}, {"tools": [{"type": "web_search"}]},
                                    {"truncation": "auto"}])
def test_what_needs_another_server_says_what_to_do(last, fields):
    with pytest.raises(openai.BadRequestError) as e:
        client(last).responses.create(model="fake", input="x", extra_body=fields)
    assert re.search("send the whole conversation in input|use instructions and input|use stream|a function that your program runs|leave out its oldest", e.value.message)


def test_fields_that_are_off_and_those_that_only_inform(last):
    r = create(last, "x", previous_response_id=None, conversation=None, background=False, prompt=None, n=1, max_tokens=5, max_output_tokens=5, logprobs=False, include=["reasoning.encrypted_content"],
               stream_options={"include_obfuscation": False}, client_metadata={"a": 1}, store=None, text={"format": None}, reasoning={"effort": "high", "summary": "detailed"}, nothing_known=1)
    assert texts(r) == [("message", "x")]


def test_the_reference_names_every_field():
    source = open(os.path.join(ROOT, "api", "responses_request.c"), encoding="utf-8").read()
    doc = open(os.path.join(ROOT, "docs", "api.md"), encoding="utf-8").read()
    doc = doc[doc.index("## Responses"):doc.index("## Request ids")]
    names = re.findall(r'^    \{"(\w+)", +FIELD_', source, re.M)
    assert len(names) > 30 and not [n for n in names if f"`{n}`" not in doc]


def test_a_template_that_raises(servers):
    a = servers("{% if messages|length > 1 %}{{ raise_exception('messages must be one') }}{% endif %}x").post("/v1/responses", {"input": [{"role": "user", "content": "a"}] * 2})
    assert (a.status, a.error["code"], a.error["param"]) == (400, "template_raise", "input") and "messages must be one" in a.error["message"]


@pytest.mark.parametrize("method,path", [("GET", "x/other"), ("GET", "x/input_items/other"), ("POST", "x/cancel/other"), ("POST", "compact"), ("GET", "/input_items")])
def test_paths_below_responses_that_are_not_there(last, method, path):
    a = last.request(method, "/v1/responses/" + path)
    assert (a.status, a.error["code"]) == (404, "unknown_url"), a.body


def test_input_tokens_are_those_of_the_response(servers):
    s = servers(ALL)
    for body in ({"input": "a king"}, {"input": [{"role": "user", "content": "u"}, *CALLED], "instructions": "be kind", "tools": [WEATHER, NOW], "model": "fake"}):
        before = s.metric("fake_submitted_total")
        a = s.post("/v1/responses/input_tokens", body)
        assert a.status == 200 and a.headers["Content-Type"] == "application/json", a.body
        assert s.metric("fake_submitted_total") == before, "nothing is generated"
        assert a.json == {"object": "response.input_tokens", "input_tokens": create(s, **body)["usage"]["input_tokens"]}
    a = s.post("/v1/responses/input_tokens", {"input": "x" * 5000})
    assert a.status == 200 and a.json["input_tokens"] > 5000, "longer than the context"
    for body, param in (({"input": 5}, "input"), ({}, "input"), ({"input": "x", "previous_response_id": "r"}, "previous_response_id")):
        a = s.post("/v1/responses/input_tokens", body)
        assert a.status == 400 and a.error["param"] == param, a.body


def test_nothing_is_stored(last):
    r = create(last, "x", store=True)
    for call in (lambda c: c.responses.retrieve(r["id"]), lambda c: c.responses.delete(r["id"]), lambda c: c.responses.input_items.list(r["id"])):
        with pytest.raises(openai.NotFoundError, match="nothing is stored"):
            call(client(last))
    with pytest.raises(openai.NotFoundError, match="nothing is stored"):
        client(last).responses.cancel(r["id"])
    for method, path, id in (("POST", r["id"] + "/cancel", r["id"]), ("GET", "x/input_items/", "x"), ("DELETE", "x", "x")):
        a = last.request(method, "/v1/responses/" + path)
        assert (a.status, a.error["code"]) == (404, "response_not_found") and f"no response '{id}':" in a.error["message"], a.body
    assert last.get("/v1/responses").status == 405
    rows = re.findall(r'^expertd_http_requests_total\{endpoint="/v1/responses/\{id\}",status="404"\} (\d+)$', last.get("/metrics").body.decode(), re.M)
    assert len(rows) == 1 and int(rows[0]) >= 3


def test_other_statuses(start, last):
    assert last.post("/v1/responses", {"input": "x", "model": "gpt-9"}).error["code"] == "model_not_found"
    assert last.post("/v1/responses", "[").error["code"] == "invalid_json"
    assert last.post("/v1/responses", {"input": "[error]"}).status == 500
    assert last.post("/v1/responses", {"input": "[error]", "stream": True}).status == 500
    keyed = start("--server.api_key=key")
    assert keyed.post("/v1/responses", {"input": "x"}).status == 401 and keyed.get("/v1/responses/x").status == 401
    assert keyed.post("/v1/responses", {"input": "x"}, headers={"Authorization": "Bearer key"}).status == 200
    socks = [last.socket(http_post("/v1/responses", {"input": "[never]"})) for _ in range(4)]
    last.wait_metric("fake_live", 4)
    a = last.post("/v1/responses", {"input": "x"})
    assert a.status == 429 and a.error["code"] == "queue_full" and a.headers["Retry-After"]
    for s in socks:
        s.close()
    last.wait_metric("fake_live", 0)


@pytest.mark.parametrize("word,code", [("[midway]", "internal_error"), ("[abort]", "aborted")])
def test_an_error_in_the_middle_of_a_stream(last, word, code):
    got = events_of(last.post("/v1/responses", {"input": word + "x" * 20, "stream": True}).body)
    r = assembled(got)
    assert r["status"] == "failed" and r["error"]["code"] == "server_error" and r["error"]["message"] and r["output"][0]["status"] == "incomplete"
    assert got[-2]["type"] == "error" and got[-2]["code"] == code and got[-2]["message"] == r["error"]["message"]
    typed = list(client(last).responses.create(model="fake", input=word + "x" * 20, stream=True))
    assert typed[-1].type == "response.failed" and typed[-1].response.error.message == r["error"]["message"]


# --- the connection


def test_a_client_that_leaves_stops_its_request(last):
    for stream in (False, True):
        s = last.socket(http_post("/v1/responses", {"input": "[drip]x", "stream": stream, "max_output_tokens": 4000}))
        last.wait_metric("fake_live", 1)
        s.close()
        last.wait_metric("fake_live", 0)
    last.settle()
    gone = last.metric("expertd_http_client_gone_total")
    with client(last).responses.create(model="fake", input="[drip]x", stream=True) as stream:
        for event in stream:
            if event.type == "response.output_text.delta":
                break
    last.wait_metric("fake_live", 0)
    last.wait_metric("expertd_http_client_gone_total", gone + 1)


def test_a_client_that_leaves_at_the_last_event_has_been_answered(last):
    gone = last.metric("expertd_http_client_gone_total")
    for _ in range(100):
        s = last.socket(http_post("/v1/responses", {"input": "x" * 8, "stream": True}))
        got = b""
        while b"event: response.completed" not in got or not got.endswith((b"}\n\n", b"}\n\n\r\n", b"0\r\n\r\n")):
            piece = s.recv(65536)
            assert piece, got
            got += piece
        s.close()
    last.settle()
    assert last.metric("expertd_http_client_gone_total") == gone


def test_a_reader_that_is_stuck_blocks_nobody(start):
    import socket
    server = start("--server.idle_timeout=5s", "--server.heartbeat=none")
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    s.connect(("127.0.0.1", server.port))
    s.sendall(http_post("/v1/responses", {"input": "[long]x", "stream": True, "max_output_tokens": 4000, "include": ["message.output_text.logprobs"], "top_logprobs": 20}))
    server.wait_metric("fake_live", 1)
    for _ in range(20):
        assert texts(create(server, "quick"))[0][1]
    server.wait_metric("fake_live", 0)
    s.close()


def test_a_stream_shows_life_while_nothing_is_generated(start):
    server = start("--server.heartbeat=1s", "--server.admin=yes")
    answers = []
    asking = threading.Thread(target=lambda: answers.append(server.post("/v1/responses", {"input": "[held]", "stream": True}).body))
    asking.start()
    begin = time.monotonic()
    while server.metric("expertd_http_heartbeats_total") < 2:
        in_time(begin, "two heartbeats")
        time.sleep(0.01)
    assert server.post("/admin/fallback", {"state": "direct"}).status == 200  # something is generated from now on
    asking.join()
    got = answers[0]
    r = assembled(events_of(got))
    assert r["status"] == "completed" and got.startswith(b"event: response.created\n")
    assert server.metric("expertd_http_heartbeats_total") == 1 + got.count(b"\n\n: ping\n\n")


def test_a_large_end_is_written_by_another_thread(last):
    """The last events hold the whole answer with its log-probabilities; streams go on meanwhile, and who leaves then is let go."""
    fields = {"include": ["message.output_text.logprobs"], "top_logprobs": 20, "max_output_tokens": 2000}
    r = both(last, "x" * 1800, **fields)
    assert len(r["output"][0]["content"][0]["logprobs"]) == 1800

    def leave(i):
        s = last.socket(http_post("/v1/responses", {"input": "x" * 1000, "stream": True, **fields}))
        got = 0
        while got < 1_500_000 + i * 100_000 and (piece := s.recv(65536)):
            got += len(piece)
        s.close()

    threads = [threading.Thread(target=leave, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    last.wait_metric("fake_live", 0)
    last.wait_metric("expertd_http_streams", 0)


# --- the demo model


def test_the_same_text_as_chat(daemon):
    messages = [{"role": "system", "content": "You tell tales."}, {"role": "user", "content": "Tell me of a king."}]
    for fields in [{"temperature": 0}, {"seed": 7, "temperature": 1, "top_p": 0.9}]:
        chat = daemon.post("/v1/chat/completions", {"messages": messages, "max_tokens": 40, **fields}).json
        r = create(daemon, "Tell me of a king.", instructions="You tell tales.", max_output_tokens=40, **fields)
        assert texts(r) == [("message", chat["choices"][0]["message"]["content"])]
        assert r["usage"]["input_tokens"] == chat["usage"]["prompt_tokens"] and r["usage"]["output_tokens"] == chat["usage"]["completion_tokens"]
    assert both(daemon, "Tell me of a king.", max_output_tokens=40, temperature=0, instructions="You tell tales.")["status"] == "incomplete"


def test_structured_output(daemon):
    class Person(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(extra="forbid")
        name: str = pydantic.Field(max_length=20)
        age: int = pydantic.Field(ge=1, le=99)

    r = client(daemon).responses.parse(model="demo", input="A person?", text_format=Person, max_output_tokens=200, extra_body={"seed": 3})
    assert isinstance(r.output_parsed, Person) and 1 <= r.output_parsed.age <= 99
    schema = {"type": "json_schema", "name": "person", "schema": Person.model_json_schema(), "strict": True}
    whole = both(daemon, "A person?", text={"format": schema}, max_output_tokens=200, seed=3)
    assert Person.model_validate_json(texts(whole)[0][1]) == r.output_parsed and whole["text"]["format"] == schema
    whole = both(daemon, "A person?", text={"format": {"type": "json_object"}}, max_output_tokens=60, seed=4)
    assert texts(whole)[0][1].startswith("{")


def test_calls_with_the_demo_model(tools_daemon):
    c = client(tools_daemon)
    for choice in ("required", {"type": "function", "name": "weather"}):
        r = c.responses.create(model="demo", input="Is it warm?", tools=[WEATHER], tool_choice=choice, max_output_tokens=100, temperature=0)
        assert [i.type for i in r.output] == ["function_call"] and json.loads(r.output[0].arguments)["town"] in ("Emden", "Gent")
        whole = both(tools_daemon, "Is it warm?", tools=[WEATHER], tool_choice=choice, max_output_tokens=100, temperature=0)
        assert texts(whole) == [("function_call", r.output[0].arguments)] and whole["tool_choice"] == choice
    grouped = both(tools_daemon, "Is it warm?", tools=[NOW, {**MAIL, "tools": [WEATHER]}], tool_choice={"type": "function", "name": "weather", "namespace": "mail"}, max_output_tokens=100, temperature=0)
    assert [(i["namespace"], i["name"]) for i in grouped["output"]] == [("mail", "weather")]
    history = [{"role": "user", "content": "Is it warm?"}, *[i.model_dump(exclude_none=True) for i in r.output], {"type": "function_call_output", "call_id": r.output[0].call_id, "output": "18"}]
    r = c.responses.create(model="demo", input=history, tools=[WEATHER], tool_choice="none", max_output_tokens=10)
    assert r.output_text
    form = {"format": {"type": "json_schema", "name": "x", "schema": {"type": "object", "properties": {"warm": {"type": "boolean"}}, "required": ["warm"], "additionalProperties": False}}}
    for seed in range(3):  # a call or JSON
        kind, text = texts(both(tools_daemon, "Is it warm?", tools=[WEATHER], text=form, seed=seed, max_output_tokens=100))[0]
        assert list(json.loads(text)) == (["town"] if kind == "function_call" else ["warm"])
