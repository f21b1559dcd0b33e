"""Bodies and event streams, checked through the official client and by hand. The fake engine repeats the prompt."""
import re
import threading
import time

import openai
import pytest

from conftest import events, http_post, in_time


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)


USER = [{"role": "user", "content": "Hi"}]
RENDERED = "user\nHi\nassistant\n"  # the template's special tokens are not shown


def test_models(client):
    assert [m.id for m in client.models.list()] == ["fake"]
    assert client.models.retrieve("fake").owned_by == "expertd"


def test_chat(client):
    r = client.chat.completions.create(model="fake", messages=USER)
    assert r.object == "chat.completion" and r.id.startswith("chatcmpl-") and r.created > 1.7e9 and r.model == "fake"
    assert r.system_fingerprint.startswith("fp_")
    c = r.choices[0]
    assert (c.index, c.finish_reason, c.message.role, c.message.content) == (0, "stop", "assistant", RENDERED)
    assert r.usage.total_tokens == r.usage.prompt_tokens + r.usage.completion_tokens
    assert r.usage.prompt_tokens_details.cached_tokens == r.usage.prompt_tokens // 2


def test_chat_stream(client):
    chunks = list(client.chat.completions.create(model="fake", messages=USER, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant" and chunks[0].choices[0].delta.content == ""
    assert "".join(c.choices[0].delta.content or "" for c in chunks[:-1]) == RENDERED
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert all(c.choices[0].finish_reason is None for c in chunks[:-2])
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens > 0
    assert all(c.usage is None for c in chunks[:-1])
    assert len({c.id for c in chunks}) == 1 and all(c.object == "chat.completion.chunk" for c in chunks)


def test_completion(client):
    r = client.completions.create(model="fake", prompt="hello", max_tokens=3)
    assert (r.object, r.choices[0].text, r.choices[0].finish_reason) == ("text_completion", "hel", "length")
    assert r.usage.completion_tokens == 3


def test_max_completion_tokens_wins(client):
    r = client.chat.completions.create(model="fake", messages=USER, max_tokens=50, max_completion_tokens=2)
    assert r.usage.completion_tokens == 2 and r.choices[0].finish_reason == "length"


def test_default_max_tokens_of_completions_is_openais(server):
    assert server.complete("x" * 40).json["usage"]["completion_tokens"] == 16


@pytest.mark.parametrize("stop,text", [("l", "he"), (["zz", "lo"], "hel"), ("hello", ""), ("nope", "hello")])
def test_stop(client, stop, text):
    r = client.completions.create(model="fake", prompt="hello", stop=stop)
    assert r.choices[0].text == text and r.choices[0].finish_reason == "stop"
    stream = client.completions.create(model="fake", prompt="hello", stop=stop, stream=True)
    assert "".join(c.choices[0].text for c in stream) == text


def test_include_stop_str(server):
    assert server.complete("hello", stop="ll", include_stop_str_in_output=True).json["choices"][0]["text"] == "hell"


def test_several_prompts_and_choices(server):
    prompts = ["ab", "cde", [102, 103]]
    r = server.complete(prompts, n=2).json
    assert [(c["index"], c["text"]) for c in r["choices"]] == list(enumerate(["ab", "ab", "cde", "cde", "fg", "fg"]))
    assert r["usage"]["prompt_tokens"] == 7 and r["usage"]["completion_tokens"] == 14
    chunks = events(server.complete(prompts, n=2, stream=True).body)
    texts = [""] * 6
    for c in chunks:
        texts[c["choices"][0]["index"]] += c["choices"][0]["text"]
    assert texts == ["ab", "ab", "cde", "cde", "fg", "fg"]
    order = [c["choices"][0]["index"] for c in chunks]
    assert order[:6] != sorted(order)[:6], "choices are interleaved"
    assert sum(c["choices"][0]["finish_reason"] is not None for c in chunks) == 6


TEXTS = ["hello world", "é€😀 done", "a\ud7ff\U0010ffff", "日本語のテキスト", "x" * 500, 'quote " back \\ slash', "tab\tnl\n"]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("limit", [1, 2, 3, 5, 600])
def test_a_stream_is_the_whole_answer(server, text, limit):
    """Also with a token limit inside a character: the rest is one U+FFFD, in both forms."""
    fields = {"max_tokens": limit, "logprobs": 1}
    whole = server.complete(text, **fields).json["choices"][0]
    chunks = [c["choices"][0] for c in events(server.complete(text, stream=True, **fields).body)]
    assert "".join(c["text"] for c in chunks) == whole["text"] == text.encode()[:limit].decode("utf-8", "replace")
    assert chunks[-1]["finish_reason"] == whole["finish_reason"]
    for key in ["tokens", "token_logprobs", "top_logprobs", "text_offset"]:
        assert sum((c["logprobs"][key] for c in chunks if c["logprobs"]), []) == whole["logprobs"][key]


def test_completion_logprobs(server):
    lp = server.complete("hé", logprobs=2).json["choices"][0]["logprobs"]
    assert lp["tokens"] == ["h", "bytes:\\xc3", "bytes:\\xa9"] and lp["text_offset"] == [0, 1, 2]
    assert lp["token_logprobs"] == [-0.25] * 3
    assert lp["top_logprobs"][0] == {"h": -0.25, "i": -3.0}


@pytest.mark.parametrize("prompt,fields,text,offsets", [
    ([97, 256, 98], {}, "ab", [0, 1, 1]), ([97, 256, 98], {"skip_special_tokens": False}, "a<s>b", [0, 1, 4]),
    ([258, 97, 259, 98], {}, "ab", [0, 0, 1, 1]), ("a<s>b", {"parse_special": True}, "a<s>b", [0, 1, 4]),
    ("<|im_start|>éx", {"parse_special": True}, "<|im_start|>éx", [0, 12, 13, 13]), ("<s>a", {}, "<s>a", [0, 1, 2, 3]),
])
def test_offsets_are_places_in_the_text_that_is_shown(server, prompt, fields, text, offsets):
    """The engine repeats the prompt's tokens, so the answer shows special tokens only where skip_special_tokens is false."""
    fields = {"echo": True, "logprobs": 0, "max_tokens": 16, **fields}
    answer = text if "skip_special_tokens" in fields or "parse_special" not in fields else text.replace("<s>", "").replace("<|im_start|>", "")
    c = server.complete(prompt, **fields).json["choices"][0]
    assert c["text"] == text + answer
    got = c["logprobs"]["text_offset"]
    assert got[:len(offsets)] == offsets
    shown = [(t, o) for t, o in zip(c["logprobs"]["tokens"][len(offsets):], got[len(offsets):]) if not t.startswith(("<s", "<|", "bytes:"))]
    assert shown and all(c["text"][o:].startswith(t) for t, o in shown), shown
    chunks = [e["choices"][0] for e in events(server.complete(prompt, stream=True, **fields).body)]
    assert sum((e["logprobs"]["text_offset"] for e in chunks if e["logprobs"]), []) == got
    assert server.complete(prompt, **{**fields, "echo": False}).json["choices"][0]["logprobs"]["text_offset"] == [o - len(text) for o in got[len(offsets):]]


def test_echo_with_logprobs(server):
    r = server.complete("abc", echo=True, logprobs=0, max_tokens=0).json
    c = r["choices"][0]
    assert c["text"] == "abc" and c["finish_reason"] == "length" and r["usage"]["completion_tokens"] == 0
    assert c["logprobs"]["tokens"] == ["a", "b", "c"] and c["logprobs"]["token_logprobs"] == [None, -0.25, -0.25]
    assert c["logprobs"]["top_logprobs"][0] is None and c["logprobs"]["text_offset"] == [0, 1, 2]
    c = server.complete("abc", echo=True, logprobs=1, n=2).json["choices"][1]
    assert c["text"] == "abcabc" and len(c["logprobs"]["tokens"]) == 6
    chunks = [c["choices"][0] for c in events(server.complete("abc", echo=True, logprobs=1, stream=True).body)]
    assert "".join(c["text"] for c in chunks) == "abcabc"
    assert sum((c["logprobs"]["tokens"] for c in chunks if c["logprobs"]), []) == list("abcabc")
    assert server.complete([97, 98], echo=True).json["choices"][0]["text"] == "abab"


def test_chat_logprobs(client):
    r = client.chat.completions.create(model="fake", messages=[{"role": "user", "content": "é"}], logprobs=True, top_logprobs=2)
    content = r.choices[0].logprobs.content
    assert content[0].token == "<|im_start|>" and bytes(content[0].bytes) == b"<|im_start|>"
    split = next(c for c in content if c.bytes == [0xC3])
    assert split.token == "\\xc3" and len(split.top_logprobs) == 2 and split.logprob == -0.25
    assert r.choices[0].logprobs.refusal is None
    r = client.chat.completions.create(model="fake", messages=USER, logprobs=True)
    assert r.choices[0].logprobs.content[0].top_logprobs == []


def test_return_token_ids(server):
    c = server.complete("abc", return_token_ids=True).json["choices"][0]
    assert c["prompt_token_ids"] == c["token_ids"] == [97, 98, 99]
    chunks = [c["choices"][0] for c in events(server.complete("a€", return_token_ids=True, stream=True).body)]
    assert chunks[0]["prompt_token_ids"] == list("a€".encode())
    assert sum((c["token_ids"] for c in chunks), []) == list("a€".encode())
    chunks = events(server.chat("a", return_token_ids=True, stream=True).body)
    assert chunks[0]["prompt_token_ids"][0] == 258 and sum((c["choices"][0]["token_ids"] for c in chunks), [])[0] == 258


def test_errors_are_the_clients_exceptions(client):
    with pytest.raises(openai.BadRequestError) as e:
        client.completions.create(model="fake", prompt="x", temperature=9)
    assert e.value.param == "temperature"
    with pytest.raises(openai.NotFoundError) as e:
        client.completions.create(model="nope", prompt="x")
    assert e.value.code == "model_not_found"
    with pytest.raises(openai.InternalServerError):
        client.completions.create(model="fake", prompt="[error]")
    with pytest.raises(openai.BadRequestError):
        client.completions.create(model="fake", prompt="x" * 9000)


def test_an_error_before_the_first_token_keeps_its_status(server):
    assert server.complete("[error]", stream=True).status == 500


def test_an_error_inside_a_stream_is_an_event(server, client):
    prompt = "[midway]" + "x" * 400
    a = server.complete(prompt, stream=True, max_tokens=900)
    assert a.status == 200
    chunks = events(a.body)
    assert chunks[-1]["error"]["message"] == "the device is on fire"
    assert "".join(c["choices"][0]["text"] for c in chunks[:-1]) == prompt[:204]
    with pytest.raises(openai.APIError, match="on fire"):
        list(client.completions.create(model="fake", prompt=prompt, max_tokens=900, stream=True))


def test_the_log_says_why_an_answer_failed(start):
    server = start("--log.requests=no", "--log.level=error")
    assert server.complete("[error]").status == 500 and server.complete("x" * 9000).status == 400
    server.complete("[midway]" + "x" * 400, stream=True, max_tokens=900)
    server.stop()  # the line of a stream comes after its last byte
    assert len(re.findall(r"POST /v1/completions (?:500|200) [0-9.]+ ms: the device is on fire", server.log)) == 2, server.log
    assert server.log.count("POST") == 2, "what a client did wrong is not told"


def test_an_answer_that_the_engine_gave_up_is_an_error(server):
    assert server.complete("[abort]").status == 503
    assert events(server.complete("[abort]" + "x" * 400, max_tokens=900, stream=True).body)[-1]["error"]["code"] == "aborted"


def test_heartbeats_during_a_long_prefill(start):
    server = start("--server.heartbeat=1s", "--server.admin=yes")
    answers = []
    asking = threading.Thread(target=lambda: answers.append(server.complete("[held]", stream=True)))
    asking.start()
    begin = time.monotonic()
    while server.metric("expertd_http_heartbeats_total") < 1:
        in_time(begin, "a heartbeat")
        time.sleep(0.01)
    assert server.post("/admin/fallback", {"state": "direct"}).status == 200  # the prefill is through
    asking.join()
    assert answers[0].status == 200 and answers[0].body.startswith(b": ping\n\n")
    assert "".join(c["choices"][0]["text"] for c in events(answers[0].body)) == "[held]"


def test_no_heartbeat_in_a_plain_answer(start):
    server = start("--server.heartbeat=1s")
    assert server.complete("[slow]").json["choices"][0]["text"] == "[slow]"


def test_stream_headers(server):
    a = server.complete("a", stream=True)
    assert a.headers["Content-Type"].startswith("text/event-stream") and a.headers["Cache-Control"] == "no-cache"


def test_tokenize(server):
    a = server.post("/tokenize", {"prompt": "ab", "return_token_strs": True}).json
    assert a == {"count": 2, "max_model_len": 4096, "tokens": [97, 98], "token_strs": [None, None]}
    a = server.post("/tokenize", {"messages": USER}).json
    assert a["tokens"][0] == 258 and a["count"] == len(a["tokens"])
    assert server.post("/tokenize", {"prompt": "a", "messages": USER}).error["param"] == "messages"
    assert server.post("/detokenize", {"tokens": [258, 97]}).json["prompt"] == "<|im_start|>a"
    assert server.post("/detokenize", {"tokens": [258, 97], "skip_special_tokens": True}).json["prompt"] == "a"
    assert server.post("/detokenize", {"tokens": [99999]}).status == 400


def test_keep_alive_after_a_stream(server):
    data = http_post("/v1/completions", {"prompt": "one", "stream": True})
    answers = server.raw(data + http_post("/v1/completions", {"prompt": "two"}, b"Connection: close\r\n"))
    assert answers.count(b"HTTP/1.1 200 OK") == 2 and b'"text":"two"' in answers
