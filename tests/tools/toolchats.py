"""Makes tests/data/templates/toolchats.json: conversations with tool calls, rendered by Jinja2 in the environment of Hugging Face
transformers (utils/chat_template_utils.py), with the arguments as vLLM hands them to templates: parsed, not as text.

    .venv/bin/pip install jinja2 && .venv/bin/python tests/tools/toolchats.py
"""
import copy
import json
import os

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

HERE = os.path.join(os.path.dirname(__file__), "..", "data", "templates")
TOOLS = [{"type": "function", "function": {"name": "get_tide", "description": "Tide at a harbour.", "parameters": {
    "type": "object", "properties": {"harbour": {"type": "string"}, "hours": {"type": "integer"}, "now": {"type": "boolean"},
                                     "opts": {"type": "object"}}, "required": ["harbour"]}}}]


def call(n, **arguments):
    return {"id": f"call0000{n}", "type": "function", "function": {"name": "get_tide", "arguments": json.dumps(arguments, ensure_ascii=False)}}


ONE = [call(1, harbour="Den Helder", hours=3)]
TWO = [call(1, harbour="\u5b9d \"Q\" <b>\n2", hours=12), call(2, harbour="3", now=True, opts={"a": [1, 2.5, None], "b": "x"})]
# template: the variables that it needs, what ends an answer, text that may stand before calls
TEMPLATES = {
    "qwen2.5": ({}, "<|im_end|>", "Let me look."),
    "qwen3": ({}, "<|im_end|>", "Let me look."),
    "qwen3-coder": ({}, "<|im_end|>", "Let me look."),
    "glm-4.6": ({}, "<|observation|>", "Let me look."),
    "mistral-nemo": ({"bos_token": "<s>", "eos_token": "</s>"}, "</s>", None),
    "deepseek-v3": ({"bos_token": "<\uff5cbegin\u2581of\u2581sentence\uff5c>"}, "<\uff5cend\u2581of\u2581sentence\uff5c>", None),
    "deepseek-v3.1": ({"bos_token": "<\uff5cbegin\u2581of\u2581sentence\uff5c>"}, "<\uff5cend\u2581of\u2581sentence\uff5c>", None),
    "deepseek-r1-distill-qwen": ({"bos_token": "<\uff5cbegin\u2581of\u2581sentence\uff5c>"}, "<\uff5cend\u2581of\u2581sentence\uff5c>", None),
}
TEXT_ARGUMENTS = {"deepseek-v3"}  # it joins them to a string: an object is an error


def environment():
    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    return env


def parsed(messages, text_arguments):
    messages = copy.deepcopy(messages)
    for m in messages:
        for c in m.get("tool_calls") or []:
            if not text_arguments:
                c["function"]["arguments"] = json.loads(c["function"]["arguments"])
    return messages


def main():
    out = []
    for name, (more, stop, said) in TEMPLATES.items():
        template = environment().from_string(open(os.path.join(HERE, name + ".jinja"), encoding="utf-8").read())

        def render(messages, add_generation_prompt):
            return template.render(messages=parsed(messages, name in TEXT_ARGUMENTS), tools=TOOLS, documents=None,
                                   add_generation_prompt=add_generation_prompt, **more)

        for calls in [ONE, TWO]:
            for content in [None, said]:
                before = [{"role": "user", "content": "Tide?"}]
                answer = {"role": "assistant", "content": content, "tool_calls": calls}
                after = [{"role": "tool", "tool_call_id": c["id"], "content": '{"cm": 212}'} for c in calls]
                try:
                    answered = render(before + [answer] + after, True)
                except TypeError:
                    answered = "None"
                if "None" in answered:  # null is too much for this one
                    answered = render(before + [dict(answer, content="")] + after, True)
                case = {"template": name, "vars": more, "stop": stop, "tools": TOOLS, "messages": before + [answer] + after,
                        "asked": render(before, True), "answered": answered}
                out.append(case)
                if not said:
                    break
    with open(os.path.join(HERE, "toolchats.json"), "w", encoding="utf-8") as f:
        json.dump(out, f, ensure_ascii=False, indent=1)
        f.write("\n")


if __name__ == "__main__":
    main()
