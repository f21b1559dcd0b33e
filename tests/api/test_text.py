"""What a chat becomes, through the whole daemon with the demo model: every prompt is compared with the ids of the text that the
demo's template must give (ChatML), as /tokenize makes them when it may read special tokens."""
import pytest

from conftest import Daemon

RAISES = "{% if messages[0].role == 'user' %}{{ raise_exception('no users, ' ~ messages[0].content) }}{% endif %}x"
THINKS = "{% if enable_thinking is defined and not enable_thinking %}<quiet>{% endif %}{{ messages[0].content }}"


def ids_of(d, text, **fields):
    return d.post("/tokenize", {"prompt": text, **fields}).json["tokens"]


def prompt_ids(d, messages, **fields):
    body = {"model": "demo", "messages": messages, "max_tokens": 1, "return_token_ids": True, **fields}
    answer = d.post("/v1/chat/completions", body)
    assert answer.status == 200, answer.json
    return answer.json.get("prompt_token_ids") or answer.json["choices"][0]["prompt_token_ids"]


def chatml(*turns, end="<|im_start|>assistant\n"):
    return "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in turns) + end


@pytest.mark.parametrize("messages, text", [
    ([{"role": "user", "content": "Hi"}], chatml(("user", "Hi"))),
    ([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}], chatml(("user", "a\nb"))),
    ([{"role": "system", "content": "S"}, {"role": "user", "content": "Hi"}], chatml(("system", "S"), ("user", "Hi"))),
    ([{"role": "developer", "content": "S"}, {"role": "user", "content": "Hi"}], chatml(("system", "S"), ("user", "Hi"))),
])
def test_a_chat_is_the_templates_text(daemon, messages, text):
    assert prompt_ids(daemon, messages) == ids_of(daemon, text, parse_special=True)


def test_a_special_token_of_the_user_stays_text(daemon):
    end = ids_of(daemon, "<|im_end|>", parse_special=True)
    assert len(end) == 1
    got = prompt_ids(daemon, [{"role": "user", "content": "x<|im_end|>y"}])
    assert got.count(end[0]) == 1, "only the template's own"
    assert len(ids_of(daemon, "<|im_end|>")) > 1
    assert daemon.post("/detokenize", {"tokens": got}).json["prompt"] == chatml(("user", "x<|im_end|>y"))


def test_the_final_message_is_continued(daemon):
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Once upon"}]
    text = chatml(("user", "Hi"), end="<|im_start|>assistant\nOnce upon")
    got = prompt_ids(daemon, messages, add_generation_prompt=False, continue_final_message=True)
    assert got == ids_of(daemon, text, parse_special=True)
    both = daemon.post("/v1/chat/completions", {"model": "demo", "messages": messages, "add_generation_prompt": True,
                                                "continue_final_message": True})
    assert both.status == 400 and both.error["param"] == "continue_final_message"


@pytest.mark.parametrize("text", ["plain", "a\nb\tc  d", "Größe \u4f60\u597d \U0001f600", " leading", ""])
def test_detokenize_gives_back_what_tokenize_took(daemon, text):
    if text:
        assert daemon.post("/detokenize", {"tokens": ids_of(daemon, text)}).json["prompt"] == text
    else:
        assert daemon.post("/tokenize", {"prompt": text}).json["tokens"] == []


def test_a_template_that_raises_is_a_400_with_its_words():
    d = Daemon("--model.chat_template=" + RAISES)
    try:
        answer = d.post("/v1/chat/completions", {"model": "demo", "messages": [{"role": "user", "content": "Bob"}]})
        assert answer.status == 400 and "no users, Bob" in answer.error["message"]
        assert prompt_ids(d, [{"role": "system", "content": "S"}]) == ids_of(d, "x")
    finally:
        assert d.stop() == 0


def test_template_kwargs_reach_the_template():
    d = Daemon("--model.chat_template=" + THINKS)
    try:
        ask = [{"role": "user", "content": "Hi"}]
        assert prompt_ids(d, ask) == ids_of(d, "Hi")
        assert prompt_ids(d, ask, chat_template_kwargs={"enable_thinking": False}) == ids_of(d, "<quiet>Hi")
    finally:
        assert d.stop() == 0
