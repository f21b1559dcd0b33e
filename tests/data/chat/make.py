"""Writes markdown.json: texts, and what markdown-it-py and linkify-it-py (PyPI) makes of them, in the words of tests/ops/markdown.js. The page's own
ways are put on top of it: headings two levels lower, line ends that stay, one element for a table. See README.md."""
import json
import os
import re

from markdown_it import MarkdownIt

TEXTS = [
    "plain", "two\nlines", "two\n\nparagraphs", "**bold** and *italic* and ***both***", "_italic_ and __bold__ and ___both___", "*a **b** c*", "**a *b* c**", "**a *b***", "*a **b***",
    "snake_case_word and __init__ x", "a * b * c", "** not bold **", "~~gone~~", "`code`", "`` a`b ``", "`a **b** c`", "` a `", "`unclosed", "**unclosed", "a\\*b\\*c", "\\# no heading", "\\\\",
    "[text](https://e.org)", "[**bold** text](https://e.org/a_b_c)", "[a](https://e.org/x_(y))", "[a](https://e.org \"title\")", "[a](<https://e.org>)", "[a [b] c](https://e.org)",
    "[a](mailto:a@e.org)", "<https://e.org/a?b=c&d>", "[a] (https", "[1] and [2]", "no [link](here", "https://e.org/a_b.", "see https://e.org/x, then", "(https://e.org/x)",
    "# One", "## Two *em*", "### Three ###", "#### Four", "##### Five", "###### Six", "#no heading", "####### seven", "# a # b", "para\n# head\npara",
    "---", "***", "- - -", "a\n\n---\n\nb", "```\ncode\n```", "```python\nx = 1\n\ny = *2*\n```", "~~~\n```\n~~~", "````\n```\n````", "```\nunclosed", "para\n```\ncode\n```\npara",
    "  ```\n  two\n    four\n  ```", "``` a b\nx\n```", "```\n<script>\n```",
    "- a\n- b", "* a\n* b", "+ a", "1. a\n2. b", "3. a\n4. b", "1) a\n2) b", "- a\n  - b\n    - c\n- d", "1. a\n   - b\n   - c\n2. d", "- a\n  second line\n- b", "- a\nlazy\n- b",
    "- **a**: b\n- `c`", "- a\n\n  para\n- b", "- a\n\n- b", "1. a\n\n   ```\n   code\n   ```\n2. b", "- a\n\npara", "para\n- a\n- b", "para\n2. no list", "para\n1. list", "- a\n1. b", "-", "- a\n-", "-no list", "1.no list", "1234567890. no",
    "- > quote\n- # head", "-   three spaces\n    more", "10. ten\n    more\n11. eleven",
    "> a", "> a\n> b", "> a\n\n> b", "> - a\n> - b", "> > a", "> # h\n> p", ">a", "> ```\n> x\n> ```\n\nb",
    "| a | b |\n|---|---|\n| c | d |", "a | b\n--|--\nc | d", "| a | b |\n|:--|--:|\n| c | d |", "| a |\n|:-:|\n| *c* |", "| a | b |\n|---|---|\n| c |", "| a | b |\n|---|---|\n| c | d | e |",
    "| a |\n|---|\n| x \\| y |", "| a | b |\n|---|---|\n\npara", "para\n\n| a | b |\n|---|---|\n| c | d |\npara | x", "| a | b |\n| c | d |", "a | b\n---", "| a | b |\n|---|---|\n| c | d |\n# head",
    "<b>html</b> & &amp", "a < b > c", "<script>alert(1)</script>", "[x](javascript:alert(1))", "## Steps\n\n1. **First**: do `x`.\n2. Then:\n   - a\n   - b\n\n> note\n\n| k | v |\n|---|---|\n| a | 1 |\n\nDone.",
    "你好，**世界**。", "emoji 😀 *x*", "a\r\nb\r\n\r\n- c\r\n- d\r\n", "\ttab", "- a\n\t- b",
]
TEXTS.remove("\ttab")  # indented code is text here: models do not mean it


def escape(s):
    return s.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")


def tag(t):
    if m := re.fullmatch(r"h([1-6])", t.tag):
        return f"h{min(6, int(m[1]) + 2)}"
    return {"s": "del"}.get(t.tag, t.tag)


def write(tokens):
    """The other renderer's tokens as markdown.js writes a tree."""
    out = ""
    for t in tokens:
        if t.type == "inline":
            out += write(t.children)
        elif t.type in ("text", "text_special"):
            out += escape(t.content)
        elif t.type in ("softbreak", "hardbreak"):
            out += "\n"
        elif t.type == "code_inline":
            out += f"<code>{escape(t.content)}</code>"
        elif t.type == "fence":
            out += f"<pre><code>{escape(t.content.removesuffix(chr(10)))}</code></pre>"
        elif t.nesting == 0:
            out += f"<{t.tag}>"
        elif t.nesting < 0:
            out += f"</{tag(t)}>"
        else:  # the paragraphs of tight lists, which are hidden, too
            extra = "".join(f' {k}="{escape(str(t.attrs[k]))}"' for k in ("href", "start") if k in t.attrs)
            align = re.search(r"text-align:(\w+)", str(t.attrs.get("style", "")))
            out += f"<{tag(t)}{extra}" + (f' align="{align[1]}"' if align and align[1] != "left" else "") + ">"
    return out


md = MarkdownIt("commonmark", {"html": False, "linkify": True}).enable(["table", "strikethrough", "linkify"]).disable(["code", "lheading", "entity", "image"])
md.linkify.set({"fuzzy_link": False, "fuzzy_email": False})  # only what says https://
cases = [{"text": t, "html": write(md.parse(t)).replace("</thead></table>", "</thead><tbody></tbody></table>")} for t in TEXTS]
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "markdown.json"), "w", encoding="utf-8") as f:
    f.write("[\n" + ",\n".join(json.dumps(c, ensure_ascii=False) for c in cases) + "\n]\n")
print(len(cases), "cases")
