"""What compare_jinja.py renders: conversations as clients send them, and random templates."""
import json

TEXTS = ["", " ", "Hi", "Hello, world!", " leading and trailing \n", "line one\nline two\n\n", "caf\u00e9 \u4f60\u597d \U0001f600",
         "<|im_end|><|im_start|>system", "</s> [INST] x [/INST]", "{{ 7 * 7 }} {% if %}", "it's \"quoted\" \\ back", "tab\there\r\nCRLF",
         "<think>\nI think\n</think>\n\nSo it is.", "<think></think>answer", "answer only</think> more", "{\"a\": 1, \"b\": [true, null]}",
         "<tool_call>\n{\"name\": \"f\"}\n</tool_call>", "<tool_response>\nx\n</tool_response>", "\u00a0nbsp\u2003", "a" * 300,
         "x /no_think", "/think y", "<a href='b'>&amp;</a>", "1234.5", "# Title\n- item", "\x00\x01\x7f", "functions.get_weather:0",
         "[TOOL_CALLS][{\"name\": \"f\"}]", "<reasoning>r</reasoning>", "analysis<|channel|>final", "\u2028sep", "None", "  indented\n    more"]
NAMES = ["get_weather", "f", "search_web", "brave_search", "wolfram_alpha", "code_interpreter", "python", "a-b.c"]
ARGS = [{}, {"city": "Paris"}, {"city": "S\u00e3o Paulo", "days": 3, "units": None}, {"q": "a \"b\" <c> & 'd'", "n": 2.5, "ok": True},
        {"nested": {"list": [1, 2, {"x": "y"}], "empty": []}, "text": "multi\nline"}, {"code": "print('hi')\n"}, {"expr": "1e22", "v": 1e22, "w": 0.1}]


def text(r):
    return r.choice(TEXTS)


def parameters(r):
    props = {}
    for name in r.sample(["city", "days", "units", "query", "options", "when", "ids"], r.randint(0, 4)):
        p = {"type": r.choice(["string", "integer", "number", "boolean", "array", "object", ["string", "null"]])}
        if r.random() < 0.7:
            p["description"] = text(r)
        if r.random() < 0.3:
            p["enum"] = r.choice([["a", "b"], ["celsius", "fahrenheit"], [1, 2]])
        if p["type"] == "array":
            p["items"] = {"type": r.choice(["string", "object", "integer"])}
        if p["type"] == "object" and r.random() < 0.7:
            p["properties"] = {"k": {"type": "string", "description": "inner"}}
            p["required"] = ["k"]
        if r.random() < 0.2:
            p["default"] = r.choice(["x", 1, None, True, [1], 2.0])
        if r.random() < 0.1:
            p = {"anyOf": [{"type": "string"}, {"type": "null"}], "description": "either"}
        if r.random() < 0.1:
            p["nullable"] = True
        props[name] = p
    out = {"type": "object", "properties": props}
    if r.random() < 0.7:
        out["required"] = list(props)[: r.randint(0, 3)]
    if r.random() < 0.1:
        out["additionalProperties"] = False
    return out


def tool(r):
    f = {"name": r.choice(NAMES), "description": text(r), "parameters": parameters(r)}
    if r.random() < 0.1:
        del f["description"]
    if r.random() < 0.1:
        del f["parameters"]
    if r.random() < 0.15:
        f["return"] = {"type": "string", "description": "what comes back"}
    if r.random() < 0.1:
        f["strict"] = True
    return f if r.random() < 0.05 else {"type": "function", "function": f}


def call(r, n):
    args = r.choice(ARGS)
    if r.random() < 0.3 and WILD[0]:
        args = json.dumps(args)
    f = {"name": r.choice(NAMES), "arguments": args}
    c = {"id": r.choice([f"call_{n}", "abc123def", "functions.f:0", f"{n:09d}"]), "type": "function", "function": f}
    if r.random() < 0.1 and WILD[0]:
        del c["id"]
    if r.random() < 0.05 and WILD[0]:
        return f
    return c


WILD = [False]  # whether this conversation may hold what few templates take: null content, parts, text arguments, odd roles


def content(r):
    x = r.random()
    if x < 0.75 or not WILD[0]:
        return text(r)
    if x < 0.92:
        parts = [{"type": "text", "text": text(r)} for _ in range(r.randint(0, 3))]
        if r.random() < 0.15:
            parts.insert(r.randint(0, len(parts)), r.choice([{"type": "image"}, {"type": "image_url", "image_url": {"url": "u"}},
                                                              {"type": "audio"}, {"type": "video"}, "bare"]))
        return parts
    return None


def messages(r):
    out = []
    if r.random() < 0.5:
        out.append({"role": r.choice(["system"] * 5 + ["developer"] * WILD[0]), "content": content(r)})
    n = 0
    for _ in range(r.choice([0, 1, 1, 1, 2, 2, 3, 4])):
        if r.random() < 0.95 or not WILD[0]:
            out.append({"role": "user", "content": content(r)})
        if r.random() < 0.35:
            for _ in range(r.randint(1, 2)):
                calls = [call(r, n + i) for i in range(r.choice([1, 1, 1, 2, 3]))]
                m = {"role": "assistant", "content": r.choice([None if WILD[0] else "", "", text(r)]), "tool_calls": calls}
                if r.random() < 0.2 and WILD[0]:
                    del m["content"]
                if r.random() < 0.3:
                    m[r.choice(["reasoning_content", "reasoning", "thinking"])] = text(r)
                out.append(m)
                for c in calls:
                    t = {"role": r.choice(["tool"] * 6 + ["ipython", "function", "tool_response", "observation"] * WILD[0]), "content": content(r)}
                    if r.random() < 0.8:
                        t["tool_call_id"] = c.get("id", "x")
                    if r.random() < 0.6:
                        t["name"] = c.get("function", c).get("name")
                    if r.random() < 0.1 and WILD[0]:
                        t["content"] = r.choice([{"result": 1.5, "ok": True}, 42, [1, 2]])
                    out.append(t)
                n += len(calls)
        if r.random() < 0.8:
            m = {"role": r.choice(["assistant"] * 9 + ["model"] * WILD[0]), "content": content(r)}
            if r.random() < 0.25:
                m[r.choice(["reasoning_content", "reasoning_content", "reasoning", "thinking"])] = r.choice([text(r), text(r), None])
            if r.random() < 0.1:
                m["tool_calls"] = r.choice([[], None])
            if r.random() < 0.05:
                m["prefix"] = True
            out.append(m)
    if out and WILD[0] and r.random() < 0.05:
        r.shuffle(out)
    if out and WILD[0] and r.random() < 0.05:
        m = r.choice(out)
        m.pop(r.choice(list(m)))
    if WILD[0] and r.random() < 0.05:
        out.append({"role": r.choice(["unknown", "critic", "", "USER"]), "content": text(r)})
    return out


def conversation(r):
    """The variables of one rendering."""
    WILD[0] = r.random() < 0.4
    v = {"messages": messages(r), "add_generation_prompt": r.random() < 0.6}
    v["tools"] = [tool(r) for _ in range(r.randint(0, 3))] if r.random() < 0.4 else None
    v["documents"] = [{"title": text(r), "text": text(r)} for _ in range(r.randint(0, 2))] if r.random() < 0.15 else None
    if v["documents"] and r.random() < 0.3:
        v["documents"][0]["doc_id"] = 1
        v["documents"][0]["contents"] = text(r)
    for name, values in (("bos_token", ["<s>", "<|begin_of_text|>", ""]), ("eos_token", ["</s>", "<|im_end|>", "<|eot_id|>"]),
                         ("unk_token", ["<unk>"]), ("pad_token", ["<pad>"])):
        if r.random() < 0.8:
            v[name] = r.choice(values)
    for name, values in EXTRAS.items():
        if r.random() < 0.06:
            v[name] = r.choice(values)
    return v


EXTRAS = {
    "enable_thinking": [True, False, None], "thinking": [True, False, "on"], "reasoning_effort": ["low", "medium", "high", "none", None],
    "thinking_budget": [0, 512, 100, -1], "thinking_mode": ["chat", "thinking"], "date_string": ["26 Jul 2026", ""],
    "builtin_tools": [["brave_search", "code_interpreter"], ["wolfram_alpha", "python"], []], "custom_tools": [[], None],
    "tools_in_user_message": [True, False], "model_identity": ["I am a test."], "controls": [{"length": "short", "originality": "none"}, {}],
    "system_message": ["You help."], "system_prompt": ["You help."], "today": ["2026-03-09"], "current_date": ["2026-03-09"], "date": ["x"],
    "preserve_thinking": [True, False], "clear_thinking": [True, False], "keep_past_thinking": [True], "add_vision_id": [True, False],
    "image_count": [1], "safety_mode": ["contextual", "STRICT", "NONE"], "citation_options": ["ENABLED", "off"], "safety_config": [{}],
    "xml_tools": [["a"], []], "python_tools": [["b"]], "available_tools": [None, [{"name": "t"}]], "functions": ["[]", None], "style": ["x"],
    "truncate_history_thinking": [True, False], "reasoning": ["on", "off"], "add_default_system_prompt": [True], "is_agent": [True],
    "enable_citation": [True], "language": ["en"], "instruction": ["do"], "query": ["q"], "document": ["d"], "think": [True, False],
    "drop_thinking": [True, False], "response_format": [{"type": "json"}, "text"], "force_reasoning": [True], "skip_think": [True, False],
    "user_system_prompt": ["s"], "custom_system_prompt": ["c"], "low_effort": [True], "force_nonempty_content": [True], "tool_choice": ["auto"],
    "platform_settings": [{"has_vision": True}], "knowledge_cutoff": ["2024"], "source_lang_code": ["en"], "target_lang_code": ["de"],
}


# ---- random templates ----

VARIABLES = {
    "s": "Hello World", "t": "  padded\ttext \n", "u": "\u00dfe\u0130\u03a3 \u01c5\u4f60\U0001f600 na\u00efve", "empty": "", "num": "42", "fl": "-3.25e2",
    "html": "<b class=\"x\">&amp; 'q'</b>", "multi": "one\ntwo\r\nthree\n\nfour", "csv": "a,b,,c,", "long": "word " * 30, "z": "-0042", "x1": "a1b2",
    "i": 7, "n": -3, "zero": 0, "big": 9223372036854775807, "one": 1, "f": 2.5, "g": -0.0, "h": 1e22, "k": 0.1, "yes": True, "no": False, "none": None,
    "l": [3, 1, 2], "m": ["b", "A", "c", "B"], "e": [], "mix": [1, "1", None, True, 2.0, [1], {"a": 1}], "deep": [[1, [2, [3]]], [4]],
    "d": {"a": 1, "b": "two", "c": [1, 2], "items": 5}, "ed": {}, "nd": {"x": {"y": {"z": "deep"}}, "1": "one", "key with space": None},
    "users": [{"name": "Zed", "age": 30, "tags": ["x"]}, {"name": "amy", "age": 25}, {"name": "Bob", "age": 30, "tags": []}],
    "messages": [{"role": "system", "content": "S"}, {"role": "user", "content": " hi <|x|> "}, {"role": "assistant", "content": None}],
    "url": "see http://example.com/a?b=1, (www.x.org) or me@mail.org.", "fmt": "%s-%d", "braces": "{} {0} {a}",
}
STRINGS = ["''", "'a'", "'abc'", "' '", "'x, y'", "\"it's\"", "'\\n'", "'\\t\\\\'", "'\u00e9\\u00e9'", "'aXbX'", "'l'", "'o'", "'%'", "'0'", "'-1.5'",
           "'A b-c D_e'", "'\\x41\\101'", "'ab' 'cd'", "'\\N{BULLET}'", "'true'", "'name'", "'1_000'", "' 12 '", "'0x1F'", "'1e3'", "'\u0663'",
           "'<'", "'role'", "'\U0001f600'", "'\\''", "'a\\\nb'"]
NUMBERS = ["0", "1", "2", "3", "-1", "-2", "10", "7", "100", "1_000", "0x10", "0b11", "0o17", "1.0", "2.5", "-0.5", "1e3", "1e-7", "1.5e300", "0.1", "3.14159",
           "1e16", "123456789.123", "9007199254740993", "9223372036854775807", "9223372036854775808", "1_0.5e1", "5e-324", "1e15", "00", "65", "255"]
SPECS = ["", "5", "<8", ">8", "^9", "*^9", "+", "+d", "05", "08.2f", ".3f", ".0f", ".2e", "g", ".3g", "x", "#x", "X", "#o", "b", "#b", "c", ",", ",.2f", "_", "_x",
         "%", ".1%", "s", ".2s", "10s", "=+6", "n", "e", "E", "F", "G", "0<5", " ", "-", "#", "06", "\u4f60<4", "d", "z.1f", "5d", "1000", "{", "}", "<", "_b", "#010x", ",d", "#.3g", "a", "?"]
PERCENT = ["%s", "%d", "%5.1f", "%r", "%x", "%05d", "%-6s|", "%+d", "% d", "%e", "%g", "%c", "%%", "%i", "%o", "%#x", "%.2s", "%X", "%s %s", "%(a)s", "%(b)r %(a)d",
           "%5%", "%*d", "%.*f", "%u", "%G", "%F", "%-5d|", "%a", "%ld", "%", "%y", "%(a", "%#o", "%.3d", "%+.2e", "%08.3f", "%.0f", "%#.0f", "%E"]
FILTERS = {
    "abs": [], "attr": ["'upper'", "'a'", "name"], "batch": ["2", "3, '-'", "0", "2.5"], "capitalize": [], "center": ["20", "3", ""], "default": ["'D'", "'D', true", ""],
    "dictsort": ["", "true", "false, 'value'", "reverse=true", "by='x'"], "e": [], "escape": [], "filesizeformat": ["", "true"], "first": [], "float": ["", "'x'", "1"],
    "forceescape": [], "format": ["1", "'a', 2", "a=1", "b='x', a=2", ""], "groupby": ["'age'", "'name', case_sensitive=true", "0", "'tags', default=[]", "'role'"],
    "indent": ["", "2", "'> '", "4, true", "2, first=true, blank=true", "width=1", "0"], "int": ["", "5", "0, 16", "base=2", "'x'"], "items": [],
    "join": ["", "', '", "'-', attribute='name'", "1", "d='|'"], "last": [], "length": [], "count": [], "list": [], "lower": [],
    "map": ["'upper'", "attribute='name'", "attribute='age', default='?'", "'int'", "'default', 'x'", "'length'", "attribute=0", "", "'nofilter'", "attribute='tags.0'", "'replace', 'a', 'b'"],
    "max": ["", "true", "attribute='age'"], "min": ["", "attribute='name'", "case_sensitive=true"], "pprint": [], "reject": ["'odd'", "", "'string'", "'equalto', 1"],
    "rejectattr": ["'tags'", "'name', 'equalto', 'Zed'", "'age', 'gt', 26", ""], "replace": ["'a', 'b'", "'l', 'L', 1", "'', '-'", "'o', ''", "1, 2", "'o'"], "reverse": [],
    "round": ["", "1", "2", "-1", "0, 'ceil'", "1, 'floor'", "precision=2", "0, 'x'"], "safe": [], "select": ["", "'odd'", "'defined'", "'in', [1, 2]", "'string'", "'none'"],
    "selectattr": ["'age'", "'role', 'equalto', 'user'", "'age', '>', 26", "'name', 'in', ['amy']", "'tags', 'defined'", "'content'"],
    "slice": ["2", "3, 'x'"], "sort": ["", "true", "case_sensitive=true", "attribute='age'", "attribute='age,name'", "reverse=true", "attribute=0"], "string": [], "striptags": [],
    "sum": ["", "'age'", "start=10", "attribute='age', start=1.5", "start=[]"], "title": [], "tojson": ["", "indent=2", "separators=(',', ':')", "sort_keys=true", "ensure_ascii=true",
    "indent='\\t'", "indent=0", "indent=2, sort_keys=true", "true"], "trim": ["", "'a'", "'Hd'", "chars=none"], "truncate": ["5", "8, true", "10, false, '~'", "9, leeway=0", "3, true, '', 0", ""],
    "unique": ["", "true", "attribute='age'"], "upper": [], "urlencode": [], "urlize": ["", "10", "20, true", "target='_blank'", "rel='x'", "extra_schemes=['ftp:']"], "wordcount": [],
    "wordwrap": ["10", "5, false", "8, true, '|'", "", "7, wrapstring='~'", "4, break_on_hyphens=false"], "xmlattr": ["", "false"], "d": ["1"],
}
TESTS = ["defined", "undefined", "none", "string", "number", "mapping", "sequence", "iterable", "callable", "boolean", "integer", "float", "odd", "even", "true", "false",
         "lower", "upper", "sameas none", "sameas(1)", "equalto 1", "eq('a')", "== 2", "ne 3", "gt 1", "ge(2)", "lt 'b'", "le 2.5", "greaterthan 0", "lessthan(1)", "divisibleby 2",
         "divisibleby(0)", "in [1, 'a']", "in 'abc'", "in d", "escaped", "filter", "test", "not defined", "not in l", "not none", "sameas true", "!= 1", "notest"]
METHODS = {
    "str": ["capitalize()", "casefold()", "center(9)", "center(9, '*')", "count('l')", "count('')", "count('o', 3)", "endswith('d')", "endswith(('x', 'd'))", "expandtabs(4)", "find('o')",
            "find('o', 5, -1)", "find('zz')", "format(1, 'b', a=2)", "format(l, d)", "index('o')", "isalnum()", "isalpha()", "isascii()", "isdecimal()", "isdigit()", "isidentifier()", "islower()",
            "isnumeric()", "isprintable()", "isspace()", "istitle()", "isupper()", "join(['a', 'b'])", "join(m)", "join('xyz')", "join(l)", "ljust(8)", "ljust(8, '.')", "lower()", "lstrip()", "lstrip('H')",
            "partition('o')", "partition('zz')", "removeprefix('He')", "removesuffix('ld')", "replace('l', 'L')", "replace('l', 'L', 1)", "replace('', '.')", "rfind('o')", "rindex('o')",
            "rjust(8, '0')", "rpartition('o')", "rsplit()", "rsplit(' ', 1)", "rsplit(none, 1)", "rsplit('o')", "rstrip()", "rstrip('d\\n')", "split()", "split('l')", "split(' ', 1)", "split(none, 2)",
            "split(sep=',', maxsplit=1)", "split('')", "splitlines()", "splitlines(true)", "startswith('He')", "startswith('o', 4)", "startswith(('a', 'H'))", "strip()", "strip(' d')", "swapcase()", "title()",
            "upper()", "zfill(8)", "zfill(2)", "format_map({})", "translate({})", "isprintable", "maketrans('a', 'b')", "nomethod()", "__len__()", "upper", "translate({97: 'x', 98: none})"],
    "list": ["count(1)", "index(2)", "index(9)", "copy()", "append(1)", "pop()", "sort()", "__getitem__(0)", "reverse()", "extend([1])", "index(1, 0, 1)", "insert(0, 1)", "clear()", "remove(1)"],
    "dict": ["get('a')", "get('zz')", "get('zz', 'D')", "keys()", "values()", "items()", "copy()", "pop('a')", "update({})", "setdefault('a', 1)", "popitem()", "fromkeys(['a'])", "a", "items", "get(l)", "fromkeys('ab', 1)"],
    "int": ["bit_length()", "real", "imag", "numerator", "conjugate()", "is_integer()", "__add__(1)", "denominator", "bit_count()", "as_integer_ratio()"],
    "float": ["is_integer()", "real", "imag", "as_integer_ratio()", "conjugate()"],
}
NAMES_V = list(VARIABLES)
POOL = []  # expressions that the reference evaluates


class Gen:
    def __init__(self, r, pooled=0.0):
        self.pooled = pooled
        self.r, self.names, self.macros, self.in_loop, self.fn = r, [], [], 0, 0

    def one(self, *xs):
        return self.r.choice(xs)

    def atom(self):
        x = self.r.random()
        if x < 0.5:
            return self.r.choice(NAMES_V + self.names * 6)
        if x < 0.68:
            return self.r.choice(STRINGS)
        if x < 0.86:
            return self.r.choice(NUMBERS)
        return self.one("true", "false", "none", "None", "True", "[]", "{}", "()", "undef", "undef.x", "[1, 2, 3]", "('a', 1)", "{'a': 1, 'b': [2]}", "range(5)", "range(5, 0, -2)", "{1: 'x', 2.0: 'y'}", "('x',)")

    def args(self, depth):
        return ", ".join(self.expr(depth - 1) for _ in range(self.r.choice([0, 1, 1, 1, 2])))

    def filter(self, depth):
        name = self.r.choice(list(FILTERS))
        options = FILTERS[name]
        if self.r.random() < 0.06:
            return f"{name}({self.args(depth)})"
        a = self.r.choice(options) if options else ""
        return f"{name}({a})" if a or self.r.random() < 0.2 else name

    def method(self):
        return self.r.choice(METHODS[self.one("str", "str", "str", "list", "dict", "dict", "int", "float")])

    def subscript(self, depth):
        p = lambda: self.one("", "", "0", "1", "2", "-1", "-2", "5", "-9", "n", "none", "i", self.r.choice(NAMES_V) if self.r.random() < 0.2 else "3")
        x = self.r.random()
        if x < 0.45:
            return f"[{self.one('0', '1', '-1', 'i', 'n', self.r.choice(STRINGS), self.expr(depth - 1))}]"
        if x < 0.7:
            return f"[{p()}:{p()}]"
        return f"[{p()}:{p()}:{p()}]"

    def expr(self, depth=3):
        if depth <= 0:
            return self.atom()
        if POOL and self.r.random() < self.pooled:
            return self.r.choice(POOL)
        e, r = lambda: self.expr(depth - 1), self.r
        x = r.random()
        if x < 0.12:
            return self.atom()
        if x < 0.36:
            return f"({e()})|{self.filter(depth)}" if r.random() < 0.3 else f"{self.atom()}|{self.filter(depth)}"
        if x < 0.52:
            a = self.atom()
            return f"{'(' + a + ')' if a[0].isdigit() or a[0] == '-' else a}.{self.method()}"
        if x < 0.6:
            a = self.atom()
            if a[0] in "-0123456789{" or a.lower() in ("true", "false", "none"):  # folded by jinja2's optimizer, with other errors
                return a
            return f"{a}{self.subscript(depth)}"
        if x < 0.72:
            op = self.one("+", "-", "*", "/", "//", "%", "~", "+", "~", "**")
            if op == "**":
                return f"({self.r.choice(NAMES_V)}) ** {self.one('2', '3', '0', '-1', '0.5', 'n', '10', 'i', 'no')}"
            if op == "*" and r.random() < 0.8:
                return f"({e()}) * {self.one('2', '3', '0', '-1', 'i', 'f', 'yes')}"
            return f"({e()}) {op} ({e()})"
        if x < 0.8:
            ops = " ".join(f"{self.one('==', '!=', '<', '<=', '>', '>=', 'in', 'not in')} {self.atom()}" for _ in range(self.one(1, 1, 1, 2)))
            return f"({self.atom()} {ops})"
        if x < 0.85:
            return f"({e()} is {r.choice(TESTS)})"
        if x < 0.89:
            return self.one(f"({e()} and {e()})", f"({e()} or {e()})", f"(not {e()})", f"(-{self.atom()})", f"(+{self.atom()})", f"({e()} if {e()} else {e()})", f"({e()} if {e()})")
        if x < 0.92:
            return self.one(f"[{e()}, {e()}]", f"{{'k': {e()}, {self.atom()}: {e()}}}", f"({e()}, {e()})", f"[{e()}]")
        if x < 0.95:
            return self.one(f"'{r.choice(PERCENT)}' % ({e()}, {e()})", f"'{r.choice(PERCENT)}' % {self.atom()}", f"'{r.choice(PERCENT)}' % ({self.atom()},)",
                            f"'{{:{r.choice(SPECS)}}}'.format({self.atom()})", f"'{{0!r:{r.choice(SPECS)}}}'.format({self.atom()})", f"'{r.choice(PERCENT)}'|format({self.atom()})",
                            f"'{{a[0]}} {{b.x}}'.format(a={self.atom()}, b={self.atom()})", f"'{{:{{}}}}'.format({self.atom()}, '>5')", f"'{{!s:.3}}'.format({self.atom()})", f"'{{0:{r.choice(SPECS)}}}'.format({r.choice(NUMBERS)})")
        if x < 0.97 and self.macros:
            return f"{r.choice(self.macros)}({self.one('', self.atom(), self.atom() + ', b=' + self.atom(), 'a=1', '*l', '**d', 'x=1, y=2', '1, 2, 3, 4')})"
        return self.one("range(3)|list", "dict(a=1, b=2)", "dict([('x', 1)])", "namespace(a=1).a", "dict(d, z=1)", "cycler('a', 'b').next()", "joiner(', ')()", "lipsum is defined", f"range({self.atom()})|list",
                        "(range(10)|list)[::3]", "dict()", "joiner() is callable", "range(3)", "cycler(1,2).current", "strftime_now('%Y-%m-%d %H:%M %A %j')", "d.keys() | list", "(d.keys() & ['a'])|list", "(d.items() - [('a', 1)])|length", "d.keys() == ['a']", "d.keys() == ed.keys()", "d.items()|list", "d.values()|list", "{'a': 1}.keys() == {'a': 2}.keys()", "(d.keys() | ['a', 'q'])|sort", "d.keys()|first", "self is defined", "raise_exception(s)", "raise_exception('x' ~ i)", "caller is defined", "varargs", "kwargs")

    def signs(self):
        return self.one("", "", "", "-", "+"), self.one("", "", "", "-", "")

    def tag(self, body):
        a, b = self.signs()
        return f"{{%{a} {body} {b}%}}"

    def data(self):
        return self.one("", " ", "\n", "text", "  \n  ", "a\n", "\n\n", " x ", "\t", "<|im_start|>", "}", "{", "\r\n", "# ", "\u00e9\n  ")

    def body(self, depth):
        return "".join(self.statement(depth) for _ in range(self.one(1, 1, 2, 3)))

    def statement(self, depth):
        r, x = self.r, self.r.random()
        if x < 0.4 or depth <= 0:
            a, b = self.signs()
            return self.data() + f"{{{{{a} {self.expr(self.one(1, 2, 2, 3))} {b}}}}}" + self.data()
        inner = lambda: self.data() + self.body(depth - 1) + self.data()
        if x < 0.52:
            extra = (self.tag(f"elif {self.expr(2)}") + inner() if r.random() < 0.3 else "") + (self.tag("else") + inner() if r.random() < 0.5 else "")
            return self.tag(f"if {self.expr(2)}") + inner() + extra + self.tag("endif")
        if x < 0.68:
            target = self.one("v", "v", "v, w", "k, v", "(a, b)")
            names = [n for n in "vwkab" if n in target]
            over = self.one("l", "m", "users", "messages", "d.items()", "d", "s", "range(4)", "mix", "e", "deep", "d|dictsort", "l|batch(2)", "users|groupby('age')", "m|map('upper')", self.expr(2), self.expr(1), "undef", "nd.items()")
            cond = f" if {self.one('v', 'v is defined', 'loop.index > 1', self.expr(1))}" if r.random() < 0.2 else ""
            rec = " recursive" if r.random() < 0.12 else ""
            self.names += names + ["loop.index", "loop.index0", "loop.last", "loop.first", "loop.length", "loop.revindex", "loop.previtem", "loop.nextitem", "loop.depth", "loop.cycle('a', 'b')", "loop.changed(v)", "loop.revindex0", "loop", "loop.depth0"]
            self.in_loop += 1
            text = inner()
            if rec and r.random() < 0.7:
                text += "{{ loop(" + self.one("v", "e", "[]", "deep[0]") + ") if loop.depth < 3 }}"
            if r.random() < 0.25:
                text += self.tag(f"if {self.one('loop.index == 2', 'v', 'loop.last', self.expr(1))}") + self.tag(self.one("break", "continue")) + self.tag("endif") + inner()
            self.in_loop -= 1
            other = self.tag("else") + inner() if r.random() < 0.2 else ""
            for n in names + ["x"] * 14:
                self.names.pop()
            return self.tag(f"for {target} in {over}{cond}{rec}") + text + other + self.tag("endfor")
        if x < 0.8:
            name = self.one("v", "w", "y", "s", "l", "q")
            if r.random() < 0.2:
                f = self.one("", "", " | upper", " | trim", " | replace('a', 'b') | length")
                out = self.tag(f"set {name}{f}") + inner() + self.tag("endset")
            elif r.random() < 0.2:
                out = self.tag(f"set {name}, {self.one('w', 'y')} = {self.one('1, 2', 'm', 'l', self.expr(1) + ', ' + self.expr(1))}")
            elif r.random() < 0.3:
                out = self.tag(f"set ns = namespace(a={self.expr(1)}, c=0)") + self.tag(f"set ns.{self.one('a', 'c', 'new')} = {self.expr(2)}")
                self.names.append("ns.a")
                self.names.append("ns.c")
                if r.random() < 0.3:
                    out += self.tag("for v in l") + self.tag(f"set ns.c = ns.c + {self.one('v', '1', 'loop.index')}") + self.tag("endfor")
            else:
                out = self.tag(f"set {name} = {self.expr(2)}")
            self.names.append(name)
            return out
        if x < 0.87:
            name = self.one("mac", "f2")
            sig = self.one("", "a", "a, b=1", "a, b='x', c=none", "a=l")
            self.names += ["a", "varargs", "kwargs", "caller"] if r.random() < 0.3 else ["a"]
            text = inner() + (self.one("{{ caller() }}", "{{ varargs }}{{ kwargs }}", "{{ caller(1) }}") if r.random() < 0.3 else "")
            self.macros.append(name)
            return self.tag(f"macro {name}({sig})") + text + self.tag("endmacro")
        if x < 0.9 and self.macros:
            return self.tag(f"call{self.one('', '(z)', '(z=2)')} {r.choice(self.macros)}({self.one('', '1', 'l')})") + inner() + self.tag("endcall")
        if x < 0.93:
            f = self.one("upper", "trim", "replace('a', 'b')", "indent(2)", "length", "title", "wordcount", "escape", self.filter(1))
            return self.tag(f"filter {f}") + inner() + self.tag("endfilter")
        if x < 0.955:
            return self.tag(f"with {self.one('', 'v = 1', 'v = l, w = v', 'q = ' + self.expr(1))}") + inner() + self.tag("endwith")
        if x < 0.97:
            return self.one("{# note #}", "{#- a -#}", "{# {{ x }} #}\n", "{%- raw %}{{ x }}{% endraw -%}", "{% raw -%} {% if %} {%- endraw %}\n", "{% generation %}g{% endgeneration %}")
        if x < 0.985:
            return self.tag(f"block b{r.randint(0, 99999)}") + inner() + self.tag("endblock")
        return self.one("{% include 'x' %}", "{% if no %}{% include s ignore missing with context %}{% import 'x' as y %}{% from 'x' import a, b as c without context %}{% endif %}", "{% do 1 %}", "{{ self.b() }}", "{% print s, l %}", "{% autoescape false %}" + self.data() + "{{ html }}{% endautoescape %}", "{% import 'x' as y %}", "{% extends 'b' %}", "{{ 1 +}}", "{{ s|nofilter }}", "{% if no %}{{ s|nofilter }}{% endif %}", "{% if %}", "{% endfor %}", "{{ 'a' }", "{% autoescape true %}{{ html }}{% endautoescape %}")


def expression(r):
    return Gen(r, 0.15).expr(r.choice([1, 1, 2, 2, 3]))


def template(r):
    """Mostly of expressions that are known to work: else nearly every template would fail early."""
    return Gen(r, 0.85).body(r.choice([0, 1, 1, 2, 3]))


def systematic():
    """Each filter, test, method and format on values of several types."""
    values = ["s", "t", "u", "num", "fl", "multi", "csv", "html", "l", "m", "mix", "users", "d", "i", "n", "f", "g", "h", "k", "yes", "none", "undef", "empty", "e"]
    few = lambda i, n: [values[(i * 7 + j * 5) % len(values)] for j in range(n)]
    i = 0
    for name, options in FILTERS.items():
        if name == "random":
            continue
        for a in options or [""]:
            i += 1
            for v in few(i, 7) + (["long", "url"] if name in ("urlize", "wordwrap", "truncate") else []):
                yield f"{v}|{name}({a})" if a else f"{v}|{name}"
                yield f"{v}|{name}({a})|list" if name in ("batch", "items", "map", "reject", "rejectattr", "reverse", "select", "selectattr", "slice", "unique") else f"({v}|{name}({a}))|string"
    for t in TESTS:
        i += 1
        for v in few(i, 6):
            yield f"{v} is {t}"
    for kind, names in (("str", ["s", "t", "u", "csv", "multi", "num"]), ("list", ["l", "m", "mix"]), ("dict", ["d", "nd", "ed"]), ("int", ["i", "n", "big"]), ("float", ["f", "g", "h"])):
        for m in METHODS[kind]:
            for v in names:
                yield f"{v}.{m}"
    for x in SPECS:
        for v in ["s", "i", "n", "f", "g", "h", "k", "big"]:
            yield f"'{{:{x}}}'.format({v})"
    yield from ("'%a' % u", "'%9.5a|' % u", "'{!a}'.format(u)", "'{0!a:>30}'.format([u, nd])", "'{!r}'.format(u)")
    for x in PERCENT:
        for v in ["s", "i", "f", "(n, 2)", "d", "h", "l"]:
            yield f"'{x}' % {v}"
    for op in ("+", "-", "*", "/", "//", "%", "**", "~", "==", "<", "<=", "in", "and", "or"):
        for a in ("i", "n", "f", "g", "s", "l", "yes", "none", "d", "big"):
            for b in ("zero", "n", "f", "s", "m", "no", "undef"):
                if op != "**" or b in ("zero", "n", "f", "no"):
                    yield f"{a} {op} {b}"
    for v in ("s", "u", "l", "range(7)", "('a', 1, 2)"):
        for a in ("", "0", "2", "-2", "9", "-9"):
            for b in ("", "1", "-1", "9"):
                for c in ("", ":2", ":-1", ":-3"):
                    yield f"{v}[{a}:{b}{c}]"
