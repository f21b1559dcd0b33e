"""Makes a C file of a web page: embed.py IN OUT NAME. A line "//= FILE" of the page becomes that file, which lies beside it. The C file has two
string constants, NAME_html and NAME_csp: the page, and the Content-Security-Policy that goes with it. What is in the page's script and style elements may run, known by their hashes; nothing else may,
nothing is loaded (but icons that are written out), and data is asked of this server alone."""
import base64
import hashlib
import os
import re
import sys


def content(path):
    with open(path, "rb") as f:
        return f.read()


page = re.sub(rb"(?m)^//= (.+)\n", lambda m: content(os.path.join(os.path.dirname(sys.argv[1]), m[1].decode())), content(sys.argv[1]))


def hashes(tag):
    found = re.findall(b"<%b>(.*?)</%b>" % (tag, tag), page, re.S)
    return " ".join("'sha256-" + base64.b64encode(hashlib.sha256(text).digest()).decode() + "'" for text in found)


policy = (f"default-src 'none'; script-src {hashes(b'script')}; style-src {hashes(b'style')}; connect-src 'self'; img-src data:; base-uri 'none'; "
          "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'")
with open(sys.argv[2], "w", encoding="ascii") as out:
    for name, text in [("html", page), ("csp", policy.encode())]:
        out.write(f"extern const char {sys.argv[3]}_{name}[];\nconst char {sys.argv[3]}_{name}[] = {{\n")
        for i in range(0, len(text), 24):
            out.write("".join(f"{b if b < 128 else b - 256}," for b in text[i : i + 24]) + "\n")
        out.write("0};\n")
