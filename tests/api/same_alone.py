#!/usr/bin/env python3
"""Requests answered among 31 others are the requests answered alone: a whole `expertd serve` with the demo model.

    same_alone.py EXPERTD DEMO_FOLDER [OPTION ...]

Options go to expertd (--engine.backend=cuda). Standard library only, so that it runs where there is nothing but Python. 32 requests over
the fields of both endpoints are sent one after the other, then all at once, several times, in another order each time; a request that
streams must say what it says when it does not. Everything but ids and times of creation is compared, log probabilities to the last
digit. Exit status 1 at the first difference."""
import concurrent.futures
import json
import random
import re
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

TALES = ["Once upon a time there was a king who", "The old woman said to the wolf:", "In the deep forest", "Her brother",
         "A fox came to the well and", "When the sun had gone down,", "The youngest of the three sons", "\"Little bird,\" said she,"]
SAMPLED = {"temperature": 0.9, "top_p": 0.9, "top_k": 50}
FRONT_END = {"dry_multiplier": 0.8, "dry_allowed_length": 1, "xtc_probability": 0.5, "xtc_threshold": 0.05, "typical_p": 0.95,
             "top_n_sigma": 2, "dynatemp_range": 0.4, "n": 3}


def requests():
    """Path and body of each; all ask for token ids."""
    def complete(i, **fields):
        return "/v1/completions", {"prompt": TALES[i % len(TALES)], "max_tokens": 40, "return_token_ids": True, **fields}

    def chat(i, **fields):
        return "/v1/chat/completions", {"messages": [{"role": "user", "content": TALES[i % len(TALES)]}], "max_tokens": 40,
                                        "return_token_ids": True, **fields}

    out = []
    for i, (make, stream) in enumerate([(complete, False), (complete, True), (chat, False), (chat, True)]):
        more = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
        lp = {"logprobs": 5} if make is complete else {"logprobs": True, "top_logprobs": 5}
        out += [
            make(i, temperature=0, **more),
            make(i + 1, temperature=0, **lp, **more),
            make(i + 2, seed=11 + i, **SAMPLED, **more),
            make(i + 3, seed=23 + i, temperature=1.2, min_p=0.02, repetition_penalty=1.2, presence_penalty=0.5,
                 frequency_penalty=0.3, **lp, **more),
            make(i + 4, temperature=0, stop=["the", ". "], **more),
            make(i + 5, seed=5, **(FRONT_END if i % 2 else {"n": 3}), **SAMPLED, **more),
            make(i + 6, temperature=0, logit_bias={"40": 5, "300": -100}, ignore_eos=True, min_tokens=12, **more),
            make(i + 7, temperature=0, max_tokens=64, stop="\n", include_stop_str_in_output=True, **more),
        ]
    long = " ".join(TALES) * 4
    out[0] = complete(0, prompt=long, temperature=0, echo=True, logprobs=2, max_tokens=8)
    out[8] = complete(0, prompt=[300 + i for i in range(120)], temperature=0, stream=True)
    return out


def send(port, path, body):
    data = json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as answer:
        text = answer.read().decode()
    return text


def join_stream(text):
    """Chunks put together as the whole answer would be."""
    assert text.rstrip().endswith("data: [DONE]"), text[-200:]
    choices, usage = {}, None
    for line in text.split("\n\n"):
        if not line.startswith("data: {"):
            continue
        chunk = json.loads(line[6:])
        usage = chunk.get("usage") or usage
        for c in chunk["choices"]:
            to = choices.setdefault(c["index"], {"text": "", "token_ids": [], "logprobs": [], "finish_reason": None,
                                                 "stop_reason": None})
            to["text"] += c.get("text") or (c.get("delta") or {}).get("content") or ""
            to["token_ids"] += c.get("token_ids") or []
            if c.get("logprobs"):
                to["logprobs"].append(c["logprobs"])
            to["finish_reason"] = c.get("finish_reason") or to["finish_reason"]
            to["stop_reason"] = c.get("stop_reason") or to["stop_reason"]
    return [choices[i] for i in sorted(choices)], usage


def answer(port, path, body):
    text = send(port, path, body)
    if body.get("stream"):
        choices, usage = join_stream(text)
    else:
        whole = json.loads(text)
        choices, usage = whole["choices"], whole["usage"]
    usage = dict(usage or {})
    usage.pop("prompt_tokens_details", None)  # what the prefix cache had differs from run to run
    return {"choices": choices, "usage": usage}


def same_without_stream(port, path, body, streamed):
    """The same request in one piece has the same words and tokens."""
    whole = answer(port, path, {k: v for k, v in body.items() if k not in ("stream", "stream_options")})
    for a, b in zip(streamed["choices"], whole["choices"], strict=True):
        text = b["text"] if "text" in b else b["message"]["content"]
        assert a["text"] == text and a["token_ids"] == b["token_ids"], (body, a, b)
        assert a["finish_reason"] == b["finish_reason"], (body, a, b)


def wait_ready(server, port):
    while True:
        if server.poll() is not None:
            sys.exit("expertd ended while loading")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=60) as r:
                if r.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            time.sleep(0.02)


def compare(port, rounds):
    todo = requests()
    assert len(todo) == 32
    alone = [answer(port, path, body) for path, body in todo]
    tokens = sum(len(c["token_ids"]) for a in alone for c in a["choices"])
    for (path, body), a in zip(todo, alone):
        if body.get("stream"):
            same_without_stream(port, path, body, a)
    order = list(range(len(todo)))
    for turn in range(rounds):
        random.Random(turn).shuffle(order)
        begun = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(len(todo)) as pool:
            waiting = {i: pool.submit(answer, port, *todo[i]) for i in order}
            together = {i: f.result() for i, f in waiting.items()}
        for i, (path, body) in enumerate(todo):
            if together[i] != alone[i]:
                print(f"DIFFERENT: {path} {json.dumps(body)}\nalone:    {alone[i]}\ntogether: {together[i]}")
                return 1
        print(f"round {turn + 1}: 32 requests at once equal to alone, {tokens} tokens, {time.monotonic() - begun:.2f} s")
    return 0


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    server = subprocess.Popen([sys.argv[1], "serve", f"--model.path={sys.argv[2]}", "--model.served_model_name=demo",
                               "--server.port=0", "--log.format=plain", "--log.requests=no", *sys.argv[3:]], stderr=subprocess.PIPE, text=True)
    port = None
    while port is None and (line := server.stderr.readline()):
        sys.stderr.write(line)
        if found := re.search(r"listening on port (\d+)", line):
            port = int(found[1])
    threading.Thread(target=lambda: sys.stderr.writelines(server.stderr), daemon=True).start()  # a pipe that nobody reads would fill up
    try:
        wait_ready(server, port)
        status = compare(port, rounds=3)
    finally:
        server.terminate()
        ended = server.wait(300)
    sys.exit(status or ended)


if __name__ == "__main__":
    main()
