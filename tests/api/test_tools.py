"""Tool calls and thoughts in answers, by the official client. The fake engine says its prompt again, and the templates here show the
last message alone: so the answer is the text that the test sends."""
import json
import random
import re

import openai
import pytest

TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "Weather of a town", "parameters": {
        "type": "object", "properties": {"town": {"type": "string"}, "days": {"type": "integer"}}, "required": ["town"]}}},
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}},
]
LAST = "{% if tools %}{% endif %}{{ messages[-1].content }}"
HERMES = "{#<tool_call>#}" + LAST
CODER = "{#<tool_call><function=#}" + LAST
THINKS = "{#<tool_call> </think>#}" + LAST
OPENED = "{#<tool_call>#}{% if tools %}{% endif %}{{ messages[-1].content }}<think>\n"
MISTRAL = "{% if tools %}[TOOL_CALLS]{% endif %}{{ messages[-1].content }}"

CALL = '<tool_call>\n{"name": "weather", "arguments": {"town": "Gda\u0144sk \U0001f327", "days": 3}}\n</tool_call>'
NOW = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'


@pytest.fixture(scope="module")
def servers():
    from conftest import Server
    made = {}

    def get(template):
        if template not in made:
            made[template] = Server("--model.chat_template=" + template)
        return made[template]

    yield get
    for s in made.values():
        assert s.metric("fake_live") == 0
        assert s.stop() == 0, s.log


def test_the_log_says_what_the_template_makes_of_tools(start):
    for template, says in (("{{ messages }}", "takes no tools"), ("{{ messages }}{{ tools }}", "tool calls: stay text"),
                           ("{{ messages }}{{ tools }}<tool_call>", "tool calls: <tool_call>")):
        start("--model.chat_template=" + template, "--log.level=info").wait_log(re.escape(f" ({says})\n"))


def client(server):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="x", max_retries=0, timeout=180)


def ask(server, text, **fields):
    fields = {"tools": TOOLS, **fields}
    fields = {k: v for k, v in fields.items() if v is not None}
    extra = {k: fields.pop(k) for k in list(fields) if k in ("reasoning_format", "include_reasoning", "separate_reasoning", "return_token_ids")}
    return client(server).chat.completions.create(
        model="fake", messages=[{"role": "user", "content": text}], extra_body=extra, max_tokens=2000, **fields)


def assembled(stream):
    """As clients put a stream together."""
    content, thought, calls, finish, order = None, None, [], None, []
    for chunk in stream:
        for c in chunk.choices:
            d = c.delta
            if d.content:
                content = (content or "") + d.content
                order.append("content")
            if getattr(d, "reasoning_content", None):
                assert d.reasoning == d.reasoning_content
                thought = (thought or "") + d.reasoning_content
                order.append("thought")
            for t in d.tool_calls or []:
                order.append("call")
                if t.index == len(calls):
                    assert t.id and t.type == "function" and t.function.name and t.function.arguments == "", t
                    calls.append({"id": t.id, "name": t.function.name, "arguments": ""})
                else:
                    assert t.id is None and t.function.name is None and t.function.arguments
                    calls[t.index]["arguments"] += t.function.arguments
            finish = c.finish_reason or finish
    return content, thought, calls, finish, order


def both(server, text, **fields):
    """(content, thought, [(name, arguments text)], finish_reason) of the whole answer, which must be the stream's too."""
    whole = ask(server, text, **fields).choices[0]
    m = whole.message
    calls = [(c.function.name, c.function.arguments) for c in m.tool_calls or []]
    ids = [c.id for c in m.tool_calls or []]
    assert len(set(ids)) == len(ids) and all(c.type == "function" for c in m.tool_calls or [])
    thought = getattr(m, "reasoning_content", None)
    assert getattr(m, "reasoning", None) == thought
    content, streamed_thought, streamed, finish, _ = assembled(ask(server, text, stream=True, **fields))
    assert (content or "") == (m.content or "") and streamed_thought == thought
    assert [(c["name"], c["arguments"]) for c in streamed] == calls and finish == whole.finish_reason
    assert not set(ids) & {c["id"] for c in streamed}
    return m.content, thought, calls, whole.finish_reason


def test_a_call_is_a_tool_call(servers):
    content, thought, calls, finish = both(servers(HERMES), CALL)
    assert content is None and thought is None and finish == "tool_calls"
    assert [(n, json.loads(a)) for n, a in calls] == [("weather", {"town": "Gda\u0144sk \U0001f327", "days": 3})]
    m = ask(servers(HERMES), CALL).choices[0].message
    assert re.fullmatch(r"call_[0-9A-Za-z]{24}", m.tool_calls[0].id)


def test_several_calls_and_text(servers):
    text = "Let me look.\n\n" + CALL + "\n" + NOW + "\n"
    content, _, calls, finish = both(servers(HERMES), text)
    assert content == "Let me look." and [n for n, _ in calls] == ["weather", "now"] and finish == "tool_calls"
    _, _, calls, finish = both(servers(HERMES), text, parallel_tool_calls=False)
    assert [n for n, _ in calls] == ["weather"] and finish == "tool_calls"


def test_the_clients_own_helper_assembles_the_stream(servers):
    with client(servers(HERMES)).chat.completions.stream(
            model="fake", messages=[{"role": "user", "content": "I see. " + CALL + NOW}], tools=TOOLS, max_tokens=2000) as stream:
        done = [e for e in stream if e.type == "tool_calls.function.arguments.done"]
        final = stream.get_final_completion().choices[0]
    assert [(e.name, json.loads(e.arguments)) for e in done] == [("weather", {"town": "Gda\u0144sk \U0001f327", "days": 3}), ("now", {})]
    assert final.message.content == "I see." and final.finish_reason == "tool_calls" and len(final.message.tool_calls) == 2


ARGUMENTS = '{"town": "Gda\u0144sk \U0001f327 \\"\\\\\\n\\u00e9\\ud83d\\ude42</tool_call>[TOOL_CALLS]", "days": -1.5e+3, "x": [true, null, {"y": []}]}'
DS = "<\uff5c{}\uff5c>".format
ARGUMENTS_AS_TEXT = "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ '<' + c.function.arguments + '>' }}{% endfor %}{{ m.content or '' }}{% endfor %}{% if tools %}{% endif %}"


@pytest.mark.parametrize("arguments", [
    {}, {"a": []}, {"a": {}}, {"a": 0.1, "b": -0.30000000000000004, "c": 2.0, "d": 1e22, "e": 1e-7, "f": 123456789.125, "g": 5e-324, "h": -0.0, "i": 1e16, "j": 12345678901234567.0},
    {"gr\u00fc\u00df": "\U0001f642 \"\\\n\t\u0001", "": None, "l": [True, False, None, [1, [2.5, {"x": "y"}]], -9007199254740993]}], ids=str)
def test_arguments_given_as_an_object_are_the_text_that_python_makes_of_them(servers, arguments):
    """For templates that need text; json.dumps() is what other servers, and tojson in other templates, show the model."""
    a = servers(ARGUMENTS_AS_TEXT).post("/v1/chat/completions", {"messages": [
        {"role": "user", "content": "u"}, {"role": "assistant", "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": arguments}}]},
        {"role": "tool", "tool_call_id": "a", "content": "r"}]})
    assert a.status == 200 and a.json["choices"][0]["message"]["content"] == "u<" + json.dumps(arguments, ensure_ascii=False) + ">r", a.body


FORMS = {  # template, what the model writes around the name and the arguments of a call, what stands around all of them, between two
    "hermes": (HERMES, '<tool_call>\n{"name": "%s", "arguments": %s}\n</tool_call>', "%s", "\n"),
    "hermes, one line": (HERMES, '<tool_call>{"name":"%s","arguments":%s}</tool_call>', "%s", ""),
    "hermes, a list": (HERMES, '{"name": "%s", "arguments": %s}', "<tool_call>[%s]</tool_call>", ", "),
    "mistral": ("{#[TOOL_CALLS]#}" + LAST, '{"name": "%s", "arguments": %s}', "[TOOL_CALLS][%s]", ", "),
    "mistral 11": ("{#[TOOL_CALLS]#}" + LAST, "[TOOL_CALLS]%s[ARGS]%s", "%s", ""),
    "granite": ("{#<|tool_call|>#}" + LAST, '{"name": "%s", "arguments": %s}', "<|tool_call|>[%s]", ", "),
    "llama": ('{#ipython "parameters"#}' + LAST, '{"name": "%s", "parameters": %s}', "%s", "; "),
    "deepseek": ("{#" + DS("tool\u2581calls\u2581begin") + "#}" + LAST, DS("tool\u2581call\u2581begin") + "function" + DS("tool\u2581sep") + "%s\n```json\n%s\n```" + DS("tool\u2581call\u2581end"),
                 DS("tool\u2581calls\u2581begin") + "%s" + DS("tool\u2581calls\u2581end"), "\n"),
    "deepseek 3.1": ("{#" + DS("tool\u2581calls\u2581begin") + "#}" + LAST, DS("tool\u2581call\u2581begin") + "%s" + DS("tool\u2581sep") + "%s" + DS("tool\u2581call\u2581end"),
                     DS("tool\u2581calls\u2581begin") + "%s" + DS("tool\u2581calls\u2581end"), ""),
}


@pytest.mark.parametrize("form", FORMS)
def test_arguments_come_while_they_are_written(servers, form):
    """A piece a token, each of them readable by what reads unfinished JSON."""
    import jiter
    template, one, around, between = FORMS[form]
    arguments = ARGUMENTS if form not in ("mistral", "mistral 11") else ARGUMENTS.replace("[TOOL_CALLS]", "")  # a token there
    if "deepseek" not in form:
        arguments = arguments.replace("\ud83d", "\uD83D")
    text = around % between.join([one % ("weather", ARGUMENTS), one % ("now", "{}"), one % ("weather", ARGUMENTS)])
    server = servers(template)
    whole = both(server, text)
    assert whole == (None, None, [("weather", ARGUMENTS), ("now", "{}"), ("weather", ARGUMENTS)], "tool_calls")
    pieces, last = [], {}
    for chunk in ask(server, text, stream=True):
        for t in chunk.choices[0].delta.tool_calls or []:
            if t.id:
                assert t.index == len(pieces)
                pieces.append([])
            elif t.function.arguments:
                pieces[t.index].append(t.function.arguments)
                so_far = jiter.from_json("".join(pieces[t.index]).encode(), partial_mode=True)
                assert {k: v for k, v in so_far.items() if k == "town"} or not last.get(t.index)
                last[t.index] = so_far
    assert len(pieces[0]) > 60 and len(pieces[2]) == len(pieces[0]) and last[0] == json.loads(ARGUMENTS)
    _, _, calls, finish = both(server, text, parallel_tool_calls=False)
    assert calls == [("weather", ARGUMENTS)] and finish == "tool_calls"


@pytest.mark.parametrize("template,around,one", [
    (CODER, "<tool_call>\n<function=weather>\n%s</function>\n</tool_call>", "<parameter=%s>\n%s\n</parameter>\n"), (CODER, "<function=weather>%s</function>", "<parameter=%s>%s</parameter>"),
    (HERMES, "<tool_call>weather\n%s</tool_call>", "<arg_key>%s</arg_key>\n<arg_value>%s</arg_value>\n")])
def test_arguments_between_tags_come_one_by_one(servers, template, around, one):
    town = "Gda\u0144sk \U0001f327\n<b>\"</param \\n"
    text = around % (one % ("town", town) + one % ("days", "3") + one % ("more", '{"x": [1]}'))
    wanted = {"town": town, "days": 3, "more": {"x": [1]}}
    _, _, ((name, arguments),), finish = both(servers(template), "So. " + text)
    assert (name, json.loads(arguments), finish) == ("weather", wanted, "tool_calls")
    pieces = [t.function.arguments for c in ask(servers(template), text, stream=True) for t in c.choices[0].delta.tool_calls or [] if not t.id]
    assert len(pieces) == 4 and "".join(pieces) == arguments and json.loads(pieces[0] + "}") == {"town": town}
    cut = client(servers(template)).chat.completions.create(model="fake", tools=TOOLS, max_tokens=len(text.encode()) - 25, messages=[{"role": "user", "content": text}]).choices[0]
    assert cut.finish_reason == "length" and arguments.startswith(cut.message.tool_calls[0].function.arguments) and cut.message.content is None


def test_what_cuts_a_call_leaves_the_beginning_of_its_arguments(servers):
    server, text = servers(HERMES), "Well. " + CALL + " Done."
    arguments = json.dumps(json.loads(CALL[11:-13])["arguments"], ensure_ascii=False)
    assert both(server, text, stop=[" 3"]) == ("Well.", None, [("weather", arguments[:-3])], "stop")
    assert both(server, text, stop=["</tool"]) == ("Well.", None, [("weather", arguments)], "tool_calls")
    broken = text.replace(" 3}", " three}")
    assert both(server, broken) == ("Well. Done.", None, [("weather", arguments[:-2] + "t")], "tool_calls")


def test_a_tool_of_the_clients_helper(servers):
    """Which reads the arguments again and again while they come."""
    import pydantic

    class weather(pydantic.BaseModel):
        town: str
        days: int

    tool = openai.pydantic_function_tool(weather)
    with client(servers(HERMES)).chat.completions.stream(
            model="fake", messages=[{"role": "user", "content": CALL}], tools=[tool], max_tokens=2000) as stream:
        seen = [e.parsed_arguments for e in stream if e.type == "tool_calls.function.arguments.delta"]
        call, = stream.get_final_completion().choices[0].message.tool_calls
    assert len(seen) > 20 and {} in seen and call.function.parsed_arguments == weather(town="Gda\u0144sk \U0001f327", days=3)
    a = client(servers(HERMES)).chat.completions.parse(model="fake", messages=[{"role": "user", "content": CALL}], tools=[tool], max_tokens=2000)
    assert a.choices[0].message.tool_calls[0].function.parsed_arguments.days == 3


def test_logprobs_beside_calls(servers):
    """Each token once, whether it is told or not."""
    text = "Hm. " + CALL + NOW
    chunks = list(ask(servers(HERMES), text, stream=True, logprobs=True, top_logprobs=2, return_token_ids=True, n=2))
    for n in range(2):
        mine = [c.choices[0] for c in chunks if c.choices[0].index == n]
        tokens = [bytes(lp.bytes) for c in mine if c.logprobs for lp in c.logprobs.content]
        assert b"".join(tokens).decode() == text and sum(len(c.token_ids) for c in mine) == len(tokens)


def test_who_leaves_within_arguments_stops_them(servers):
    server = servers(HERMES)
    before = server.metric("fake_cancelled_total")
    stream = ask(server, "[drip]" + CALL * 20, stream=True)
    for chunk in stream:
        if chunk.choices[0].delta.tool_calls and chunk.choices[0].delta.tool_calls[0].index == 3:
            break
    stream.close()
    server.wait_metric("fake_cancelled_total", before + 1)
    server.wait_metric("fake_live", 0)


@pytest.mark.parametrize("text", [
    "plain text", '<tool_call>{"name": "nobody", "arguments": {"town": "x"}', '<tool_call>{"name": "weather", "argu', "<tool_call>oh {no}</tool_call> and on",
    '<tool_call>{"name": "weather", "arguments": [1]}</tool_call>', "<tool_call><tool_call></tool_call>", "a < b <tool", "</tool_call>",
])
def test_what_is_no_call_is_content(servers, text):
    assert both(servers(HERMES), text) == (text, None, [], "stop")


def test_without_tools_there_are_no_calls(servers):
    assert both(servers(HERMES), CALL, tools=None) == (CALL, None, [], "stop")
    assert both(servers(HERMES), CALL, tool_choice="none") == (CALL, None, [], "stop")
    assert both(servers(HERMES), CALL, tool_choice="auto")[3] == "tool_calls"
    assert both(servers("{% if tools %}{% endif %}{{ messages[-1].content }}"), CALL) == (CALL, None, [], "stop")


def test_an_answer_that_is_cut_says_so(servers):
    server = servers(HERMES)
    for n in range(1, len((NOW + "\n" + CALL).encode()), 3):
        c = client(server).chat.completions.create(model="fake", tools=TOOLS, max_tokens=n, stream=n % 2 == 0,
                                                   messages=[{"role": "user", "content": NOW + "\n" + CALL}])
        if n % 2:
            content, calls, finish = c.choices[0].message.content, c.choices[0].message.tool_calls or [], c.choices[0].finish_reason
        else:
            content, _, calls, finish, _ = assembled(c)
        assert finish == "length"
        text = (NOW + "\n" + CALL).encode()
        first, second = NOW.index("{}") + 1, text.index(b'{"town')
        assert len(calls) == (n >= first) + (n > second), n
        arguments = [c["arguments"] if isinstance(c, dict) else c.function.arguments for c in calls]
        if len(calls) == 2:
            whole = text[second:text.rindex(b"}")].decode()
            assert arguments[0] == "{}" and whole.startswith(arguments[1].rstrip("\ufffd")) and (arguments[1] == whole) == (n >= text.rindex(b"}")), n
            assert not content


def test_qwen_coder(servers):
    text = "<tool_call>\n<function=weather>\n<parameter=town>\n10\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>"
    content, _, calls, finish = both(servers(CODER), text)
    assert [(n, json.loads(a)) for n, a in calls] == [("weather", {"town": "10", "days": 3})] and finish == "tool_calls"


def test_a_mark_that_is_a_special_token_is_seen_but_not_shown(servers):
    server = servers(MISTRAL)
    content, _, calls, finish = both(server, '[{"name": "weather", "arguments": {"town": "x"}, "id": "abc123XYZ"}]')
    assert content is None and calls == [("weather", '{"town": "x"}')] and finish == "tool_calls"
    content, _, calls, _ = both(server, "now[ARGS]{}")
    assert calls == [("now", "{}")]
    assert re.fullmatch("[0-9A-Za-z]{9}", ask(server, "now[ARGS]{}").choices[0].message.tool_calls[0].id)
    # an answer that is text keeps its mark, and other special tokens are not shown
    assert both(server, "no call")[0] == "[TOOL_CALLS]no call"


def test_thoughts_are_beside_the_content(servers):
    server = servers(THINKS)
    text = "<think>\nTwo and two.\n</think>\n\nFour."
    assert both(server, text) == ("Four.", "Two and two.", [], "stop")
    assert both(server, text, tools=None) == ("Four.", "Two and two.", [], "stop")
    assert both(server, text + CALL)[3] == "tool_calls"
    assert both(server, "<think>\n" + NOW + "</think>" + CALL)[:2] == (None, NOW)
    assert both(server, "<think>\n\n</think>\n\nFour.") == ("Four.", None, [], "stop")
    assert both(server, "No thought.") == ("No thought.", None, [], "stop")
    assert both(server, "<think>It never ends") == ("", "It never ends", [], "stop")
    order = assembled(ask(server, text + CALL, stream=True))[4]
    assert "".join(dict.fromkeys(o[0] for o in order)) == "tcc"[:1] + "c" and order.index("content") > order.index("thought")
    # the prompt's own mark opens the thought; the fake engine then says it all again
    assert both(servers(OPENED), "Hm.</think>Yes.") == ("Yes.<think>", "Hm.", [], "stop")


@pytest.mark.parametrize("fields,expected", [
    ({}, ("Four.", "Hm.")), ({"reasoning_format": "auto"}, ("Four.", "Hm.")), ({"reasoning_format": "deepseek"}, ("Four.", "Hm.")),
    ({"reasoning_format": "none"}, ("<think>\nHm.\n</think>\n\nFour.", None)), ({"separate_reasoning": False}, ("<think>\nHm.\n</think>\n\nFour.", None)),
    ({"include_reasoning": False}, ("Four.", None)), ({"reasoning_format": "hidden"}, ("Four.", None)),
])
def test_what_becomes_of_thoughts(servers, start, fields, expected):
    text = "<think>\nHm.\n</think>\n\nFour."
    assert both(servers(THINKS), text, **fields)[:2] == expected
    assert both(servers(THINKS), text, tools=None, **fields)[:2] == expected


def test_the_configuration_says_what_becomes_of_thoughts(start):
    server = start("--model.chat_template=" + THINKS, "--server.reasoning_format=none")
    assert both(server, "<think>Hm.</think>Four.")[:2] == ("<think>Hm.</think>Four.", None)
    assert both(server, "<think>Hm.</think>Four.", reasoning_format="auto")[:2] == ("Four.", "Hm.")


def test_a_reasoning_format_that_is_not_known(servers):
    a = servers(THINKS).chat("x", reasoning_format="deepseek-legacy")
    assert a.status == 400 and a.error["param"] == "reasoning_format"


def test_logprobs_and_ids_cover_every_token(servers):
    server = servers(THINKS)
    text = "<think>Hm.</think>Ah.\n" + NOW
    n = len(text)
    whole = ask(server, text, logprobs=True, return_token_ids=True)
    assert len(whole.choices[0].logprobs.content) == n == whole.usage.completion_tokens
    chunks = list(ask(server, text, logprobs=True, return_token_ids=True, stream=True))
    got = [lp.token for c in chunks for lp in (c.choices[0].logprobs.content if c.choices[0].logprobs else [])]
    assert "".join(got) == text
    assert sum(len(c.choices[0].token_ids) for c in chunks) == n


def test_choices_have_their_own_calls(servers):
    a = ask(servers(HERMES), "x " + CALL, n=3)
    assert [c.message.content for c in a.choices] == ["x"] * 3
    assert len({c.message.tool_calls[0].id for c in a.choices}) == 3
    calls, content = {}, {}
    for chunk in ask(servers(HERMES), "x " + CALL, n=3, stream=True):
        for c in chunk.choices:
            content[c.index] = content.get(c.index, "") + (c.delta.content or "")
            for t in c.delta.tool_calls or []:
                calls[c.index] = calls.get(c.index, "") + t.function.arguments
    assert content == {0: "x", 1: "x", 2: "x"} and all(json.loads(calls[i])["days"] == 3 for i in range(3))


def test_stop_strings_and_calls(servers):
    assert both(servers(HERMES), "one STOP " + CALL, stop=["STOP"]) == ("one ", None, [], "stop")
    assert both(servers(HERMES), CALL + " STOP", stop=["STOP"])[0] is None


def test_hostile_markup_is_content_and_nothing_breaks(servers):
    rng = random.Random(7)
    parts = ["<tool_call>", "</tool_call>", '{"name": "now"', "}", '"', "\\", "<think>", "</think>", "{", "[", "\n", "x", "<function=f>", "\ufffd", "<tool_"]
    server = servers(THINKS)
    for _ in range(40):
        text = "".join(rng.choice(parts) for _ in range(rng.randrange(1, 40)))
        if text.strip():
            both(server, text)
    assert server.alive()


def test_invalid_utf8_in_a_call(servers):
    """The model's bytes: half a character inside of the markup becomes U+FFFD, and the call is one all the same."""
    server = servers(HERMES)
    ids = list(b'<tool_call>{"name": "now", "arguments": {"x": "\xff\xc3"}}</tool_call>')
    text = bytes(ids).decode(errors="replace")
    assert json.loads(both(server, text)[2][0][1]) == {"x": "\ufffd\ufffd"}


SHIP = {"type": "function", "function": {"name": "ship", "parameters": {
    "type": "object", "$defs": {"port": {"type": "object", "properties": {"name": {"enum": ["Emden", "Gent"]}, "next": {"$ref": "#/$defs/port"}},
                                         "required": ["name"], "additionalProperties": False}},
    "properties": {"from": {"$ref": "#/$defs/port"}, "crew": {"type": "integer", "minimum": 1, "maximum": 9}}, "required": ["from", "crew"],
    "additionalProperties": False}}}
LOOSE = {"type": "function", "function": {"name": "loose", "parameters": {"type": "object", "properties": {"x": {"not": {"type": "null"}}}}}}
OPENS = "{#<tool_call></think>#}{% if tools %}{% endif %}{{ messages[0].content }}{{ '<think>\\n' }}"
CHATML = ("{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
          "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")


@pytest.fixture(scope="module")
def daemons():
    """The daemon with the demo model: it knows nothing of tools, so all that is right comes of the grammar."""
    from conftest import Daemon
    made = {}

    def get(template):
        if template not in made:
            made[template] = Daemon("--model.chat_template=" + template)
        return made[template]

    yield get
    for d in made.values():
        assert d.stop() == 0, d.log


def force(server, choice, tools, seed=1, **fields):
    """Without thoughts, of which the demo model finds no end: test_think.py."""
    fields["extra_body"] = {"chat_template_kwargs": {"enable_thinking": False}, **fields.get("extra_body", {})}
    return client(server).chat.completions.create(model="demo", messages=[{"role": "user", "content": "Sail!"}], tools=tools,
                                                  tool_choice=choice, seed=seed, **{"max_tokens": 250, "temperature": 1, **fields})


@pytest.mark.parametrize("template", ["{#<tool_call>#}" + CHATML, OPENS, CHATML, "{#[TOOL_CALLS]#}" + CHATML])
def test_forced_calls_are_calls(daemons, template):
    jsonschema = pytest.importorskip("jsonschema")
    schemas = {t["function"]["name"]: t["function"]["parameters"] for t in [SHIP, LOOSE] + TOOLS}
    daemon = daemons(template)
    named, seen, whole = {"type": "function", "function": {"name": "ship"}}, set(), 0
    for seed in range(12):
        choice = named if seed % 2 else "required"
        a = force(daemon, choice, [SHIP] + TOOLS, seed).choices[0]
        if a.finish_reason == "length":
            assert len(a.message.tool_calls) == 1 and a.message.content is None
            continue
        assert a.finish_reason == "tool_calls" and a.message.content is None and len(a.message.tool_calls) == 1, a
        f = a.message.tool_calls[0].function
        assert f.name == "ship" or not seed % 2
        jsonschema.validate(json.loads(f.arguments), schemas[f.name])
        content, thought, calls, finish, _ = assembled(force(daemon, choice, [SHIP] + TOOLS, seed, stream=True))
        assert (content, thought, finish) == (None, None, "tool_calls") and [(c["name"], c["arguments"]) for c in calls] == [(f.name, f.arguments)]
        seen.add(f.name)
        whole += 1
    assert whole >= 3 and "ship" in seen


def test_a_forced_call_that_is_cut_has_part_of_its_arguments(daemons):
    """As OpenAI's: a name that is whole, and as much of the arguments as there is; never the JSON around them."""
    daemon, seen = daemons("{#<tool_call>#}" + CHATML), set()
    whole = force(daemon, "required", [SHIP], seed=7, max_tokens=600).choices[0]
    assert whole.finish_reason == "tool_calls"
    arguments = whole.message.tool_calls[0].function.arguments
    for n in list(range(1, 30, 2)) + [40, 80, 150]:
        a = force(daemon, "required", [SHIP], seed=7, max_tokens=n).choices[0]
        content, _, calls, finish, _ = assembled(force(daemon, "required", [SHIP], seed=7, max_tokens=n, stream=True))
        got = [(c.function.name, c.function.arguments) for c in a.message.tool_calls or []]
        assert [(c["name"], c["arguments"]) for c in calls] == got and finish == a.finish_reason and not content and not a.message.content
        if a.finish_reason == "tool_calls":
            assert got == [("ship", arguments)]
            continue
        assert a.finish_reason == "length" and (not got or got[0][0] == "ship" and arguments.startswith(got[0][1])), (n, got)
        seen.add(0 if not got else 1 if not got[0][1] else 2)
    assert seen == {0, 1, 2}


@pytest.mark.parametrize("stop", [["\n"], ["}"], ["a"], ['"name"', "{"]])
def test_a_forced_call_has_no_stops(daemons, stop):
    """Nobody who sets `stop` can know what stands around the arguments."""
    daemon, whole = daemons("{#<tool_call>#}" + CHATML), 0
    for choice in ["required", {"type": "function", "function": {"name": "ship"}}]:
        plain = force(daemon, choice, [SHIP] + TOOLS, seed=7, max_tokens=600).choices[0]
        for stream in [False, True]:
            a = force(daemon, choice, [SHIP] + TOOLS, seed=7, max_tokens=600, stop=stop, stream=stream, extra_body={"stop_token_ids": list(range(3, 100))})
            if stream:
                _, _, calls, finish, _ = assembled(a)
                got = [(c["name"], c["arguments"]) for c in calls]
            else:
                got, finish = [(c.function.name, c.function.arguments) for c in a.choices[0].message.tool_calls], a.choices[0].finish_reason
                assert a.choices[0].stop_reason is None
            f = plain.message.tool_calls[0].function
            assert got == [(f.name, f.arguments)] and finish == plain.finish_reason
            whole += finish == "tool_calls"
    assert whole


REPLY = {"type": "json_schema", "json_schema": {"name": "reply", "strict": True, "schema": {
    "type": "object", "$defs": {"mood": {"enum": ["glad", "sad"]}}, "properties": {"name": {"type": "string", "maxLength": 4}, "mood": {"$ref": "#/$defs/mood"}},
    "required": ["name", "mood"], "additionalProperties": False}}}
ODD = {"type": "json_schema", "json_schema": {"name": "odd", "schema": {"type": "object", "properties": {"}{x\u0416": {"type": "null"}}, "required": ["}{x\u0416"]}}}


@pytest.mark.parametrize("template", ["{#<tool_call>#}" + CHATML, OPENS, CHATML, "{#[TOOL_CALLS]#}" + CHATML])
def test_tools_beside_a_response_format_an_answer_is_one_or_the_other(daemons, template):
    """As agents send both each turn."""
    jsonschema = pytest.importorskip("jsonschema")
    schemas = {t["function"]["name"]: t["function"]["parameters"] for t in [SHIP, LOOSE] + TOOLS}
    daemon, seen = daemons(template), set()
    for seed in range(10):
        form = ODD if seed % 2 else REPLY  # the demo model would rather say the usual words
        fields = dict(tools=[SHIP, LOOSE] + TOOLS, seed=seed, stop=["}"])
        fields |= {"extra_body": {"guided_json": form["json_schema"]["schema"]}} if seed % 3 == 2 else {"response_format": form}
        a = force(daemon, "auto", **fields).choices[0]
        content, thought, calls, finish, _ = assembled(force(daemon, "auto", stream=True, **fields))
        assert (content, finish, thought) == (a.message.content, a.finish_reason, None)
        assert [(c["name"], c["arguments"]) for c in calls] == [(c.function.name, c.function.arguments) for c in a.message.tool_calls or []]
        seen.add(a.finish_reason)
        if a.finish_reason == "tool_calls":
            call, = a.message.tool_calls
            assert a.message.content is None
            jsonschema.validate(json.loads(call.function.arguments), schemas[call.function.name])
        elif a.finish_reason == "stop":
            jsonschema.validate(json.loads(a.message.content), form["json_schema"]["schema"])
    assert {"tool_calls", "stop"} <= seen, seen
    a = force(daemon, "required", [SHIP] + TOOLS, seed=7, response_format=REPLY, max_tokens=600).choices[0]
    assert a.message.tool_calls and a.message.content is None  # a forced call has no text that could have a form
    none = force(daemon, "none", [SHIP] + TOOLS, response_format=REPLY).choices[0]
    jsonschema.validate(json.loads(none.message.content), REPLY["json_schema"]["schema"])


@pytest.mark.parametrize("text,is_call", [
    ('{"name": "now", "arguments": {}}', True), ('{\n  "name": "weather",\n  "arguments": {\n    "town": "}"\n  }\n}', True),
    ('{"name": "now"}', False), ('{"name": "nobody", "arguments": {}}', False), ('{"name": "now", "arguments": {}, "x": 1}', False),
    ('{"arguments": {}, "name": "now"}', False), ('{"name": "now", "arguments": "{}"}', False), ('{"a": "<tool_call>{\\"name\\": \\"now\\", \\"arguments\\": {}}</tool_call>"}', False),
    ("{}", False), ('{"name": "now", "arguments": {}', "cut"), ('{"name": "' + "x" * 600 + '", "arguments": {}}', False),
])
def test_which_json_is_a_call_beside_a_response_format(servers, text, is_call):
    """The fake engine says what it is told to, whatever the form."""
    content, _, calls, finish = both(servers(HERMES), text, response_format={"type": "json_object"})
    if is_call:
        assert content is None and finish == "tool_calls" and json.loads(calls[0][1]) == json.loads(text + "}" * (is_call == "cut"))["arguments"]
    else:
        assert (content, calls, finish) == (text, [], "stop")


def test_an_answer_of_a_given_form_is_streamed_once_it_is_no_call(servers):
    text = '{"town": "' + "x" * 50 + '"}'
    order = assembled(ask(servers(HERMES), text, response_format={"type": "json_object"}, stream=True))[4]
    assert len(order) > 40


def test_a_schema_that_cannot_be_kept_is_loosened_unless_strict(daemons):
    daemon = daemons(CHATML)
    a = force(daemon, "required", [LOOSE], logit_bias={}).choices[0]
    assert a.finish_reason == "length" or isinstance(json.loads(a.message.tool_calls[0].function.arguments), dict)
    strict = {"type": "function", "function": {**LOOSE["function"], "strict": True}}
    with pytest.raises(openai.BadRequestError) as e:
        force(daemon, "required", [SHIP, strict])
    assert e.value.param == "tools[1].function.parameters.properties.x.not" and e.value.code == "invalid_json_schema"
    with pytest.raises(openai.BadRequestError) as e:  # which of so many can be kept is not tried
        force(daemon, "required", [{"type": "function", "function": {**LOOSE["function"], "name": f"loose{i}"}} for i in range(64)] + [{"type": "function", "function": {**SHIP["function"], "strict": True}}])
    assert e.value.param == "tools[64].function.parameters"
    none = force(daemon, "required", [{"type": "function", "function": {"name": "none"}}]).choices[0].message.tool_calls[0].function
    assert none.name == "none" and json.loads(none.arguments) == {}


@pytest.mark.parametrize("parameters,place,words", [
    ({"type": "string"}, ".type", 'must be "object"'), ({"type": ["array", "null"]}, ".type", 'must be "object"'), ({"type": 3}, ".type", 'must be "object"'),
    ({"type": "object", "properties": {"n": {"$ref": "#/nope"}}}, ".properties.n.$ref", "nothing at '#/nope'"), ({"$ref": "#/nope"}, ".$ref", "nothing at '#/nope'"),
])
def test_what_strict_arguments_cannot_be_is_told_in_the_clients_words(daemons, parameters, place, words):
    tools = [SHIP, {"type": "function", "function": {"name": "odd", "strict": True, "parameters": parameters}}]
    with pytest.raises(openai.BadRequestError) as e:
        force(daemons(CHATML), "required", tools)
    assert e.value.param == "tools[1].function.parameters" + place and e.value.code == "invalid_json_schema" and words in e.value.message
    tools[1]["function"]["strict"] = False
    a = force(daemons(CHATML), {"type": "function", "function": {"name": "odd"}}, tools).choices[0]
    assert a.finish_reason == "length" or isinstance(json.loads(a.message.tool_calls[0].function.arguments), dict)


def test_arguments_that_may_be_null_are_an_object(daemons):
    tool = {"type": "function", "function": {"name": "odd", "strict": True, "parameters": {
        "type": ["object", "null"], "properties": {"n": {"const": 7}}, "required": ["n"], "additionalProperties": False}}}
    assert json.loads(force(daemons(CHATML), "required", [tool]).choices[0].message.tool_calls[0].function.arguments) == {"n": 7}


def test_references_are_followed_from_properties_that_are_called_as_keywords_are(daemons):
    names = ["default", "enum", "const", "examples", "properties", "$defs", "$ref"]
    tool = {"type": "function", "function": {"name": "odd", "strict": True, "parameters": {
        "type": "object", "$defs": {"enum": {"$ref": "#/$defs/n"}, "n": {"const": 7}}, "required": names, "additionalProperties": False,
        "properties": {name: {"$ref": "#/$defs/" + ("enum" if name == "default" else "n")} for name in names}}}}
    a = force(daemons(CHATML), "required", [tool]).choices[0]
    assert json.loads(a.message.tool_calls[0].function.arguments) == {name: 7 for name in names}


@pytest.mark.parametrize("fields,param", [
    ({"tool_choice": "required"}, "tool_choice"), ({"tool_choice": "any", "tools": TOOLS}, "tool_choice"), ({"tool_choice": 1, "tools": TOOLS}, "tool_choice"),
    ({"tool_choice": {"type": "function", "function": {"name": "no"}}, "tools": TOOLS}, "tool_choice"),
    ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}, "tools": TOOLS}, "tool_choice.type"),
    ({"tool_choice": {"type": "custom", "custom": {"name": "now"}}, "tools": TOOLS}, "tool_choice.type"), ({"tool_choice": {"type": "function"}, "tools": TOOLS}, "tool_choice"),
    ({"tools": [{"type": "function", "function": {"name": f"f{i}"}} for i in range(129)], "response_format": {"type": "json_object"}}, "tools"),
    ({"tools": [{"type": "function", "function": {"name": f"f{i}"}} for i in range(129)], "guided_json": {"type": "object"}}, "tools"),
    ({"parallel_tool_calls": "no", "tools": TOOLS}, "parallel_tool_calls"), ({"function_call": "auto", "tools": TOOLS}, "function_call"),
])
def test_choices_that_cannot_be_had(servers, fields, param):
    a = servers(HERMES).chat("x", **fields)
    assert a.status == 400 and a.error["param"] == param


def test_a_thought_that_the_template_opens_is_closed_for_who_wants_none(daemons):
    daemon = daemons(OPENS)
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
    a = client(daemon).chat.completions.create(model="demo", messages=[{"role": "user", "content": "x"}], max_tokens=60, extra_body={"return_token_ids": True, "chat_template_kwargs": {"enable_thinking": False}},
                                               response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": schema}})
    assert json.loads(a.choices[0].message.content)["n"] in (1, 2) and not hasattr(a.choices[0].message, "reasoning_content")
    prompt = daemon.post("/detokenize", {"tokens": a.prompt_token_ids}).json["prompt"]
    assert prompt.endswith("x<think>\n\n</think>\n\n")


def test_the_log_names_client_and_tokens(start):
    server = start("--model.chat_template=" + HERMES)
    server.chat("abcd")
    server.chat("abcd", stream=True)
    assert server.stop() == 0
    lines = [line for line in server.log.splitlines() if line.startswith("POST /v1/chat")]
    assert len(lines) == 2
    for line in lines:
        assert "CLIENT=127.0.0.1 PROMPT_TOKENS=4 CACHED_TOKENS=2 COMPLETION_TOKENS=4" in line and "FORM" not in line


def test_forms_and_calls_are_counted_and_logged(start):
    server = start("--model.chat_template=" + HERMES)
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
    forms = [("json_object", {"response_format": {"type": "json_object"}}), ("json_schema", {"response_format": schema}),
             ("tool", {"tools": TOOLS, "tool_choice": "required"}), ("tool_or_json", {"tools": TOOLS, "response_format": schema}),
             ("json_object", {"structured_outputs": {"json_object": True}}), ("json_schema", {"guided_json": '{"type":"object"}'}), ("tool_or_json", {"tools": TOOLS, "json_schema": {"type": "object"}})]

    def counts():
        lines = server.get("/metrics").body.decode().splitlines()
        return {name: float(line.split()[-1]) for line in lines for name in [f[0] for f in forms] if f'requests_total{{form="{name}"}}' in line}
    assert counts() == {name: 0 for name, _ in forms} and server.metric("expertd_grammar_build_seconds_total") == 0
    for n, (_, fields) in enumerate(forms):
        assert server.chat('{"name": "now", "arguments": {}}', **fields).status == 200
        assert server.chat(CALL + NOW, tools=TOOLS, stream=n % 2 == 0).status == 200
    assert server.chat("x", response_format={"type": "json"}).status == 400
    assert counts() == {name: sum(name == f[0] for f in forms) for name, _ in forms}
    assert server.metric("expertd_tool_calls_total") == 2 * 7 + 3 and server.metric("expertd_grammar_build_seconds_total") > 0
    assert server.stop() == 0
    logged = [re.findall(r"FORM=(\w+)", line) for line in server.log.splitlines() if line.startswith("POST /v1/chat")]
    assert [f[0] for f in logged if f] == [name for name, _ in forms] and len(logged) == 2 * 7 + 1


CHANNELS = "{#<|channel|><|message|>#}" + LAST
ANALYSIS = "<|channel|>analysis<|message|>It is %s.<|end|><|start|>assistant"


def test_channels_are_thoughts_answers_and_calls(servers):
    """As gpt-oss writes them."""
    server = servers(CHANNELS)
    call = "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>" + ARGUMENTS + "<|call|>"
    thought = ANALYSIS % "Gda\u0144sk \U0001f327"
    assert both(server, thought + "<|channel|>final<|message|>It rains.<|return|>", tools=None) == (
        "It rains.", "It is Gda\u0144sk \U0001f327.", [], "stop")
    assert both(server, thought + call) == (None, "It is Gda\u0144sk \U0001f327.", [("weather", ARGUMENTS)], "tool_calls")
    assert both(server, "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant" + call)[:3] == ("I look.", None, [("weather", ARGUMENTS)])
    # no tools were asked for: what the model does with some is no answer
    assert both(server, thought + "<|channel|>final<|message|>Yes.<|end|><|start|>assistant" + call, tools=None)[0] == "Yes."
    assert both(server, thought + call, stop=["1.5"])[3] == "stop"
    text = thought + "<|channel|>final<|message|>It rains."
    assert both(server, text, reasoning_format="none")[:2] == (text, None)
    assert both(server, text, include_reasoning=False)[:2] == ("It rains.", None)
    assert both(server, "Without heads.")[:2] == ("Without heads.", None)
