"""The chat page: what is served, its Markdown (with node), and all of it in a headless Chromium. argv[1] is the program, argv[2] the source
root, argv[3] the HTTP room around an engine that says what it was told (tests/api). What is missing on this machine is skipped."""
import base64
import hashlib
import http.client
import json
import os
import re
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from chromium import CHROMIUM, Tab, works
from daemon import WAIT_S, Daemon, TestCase, wait_until

EXE, ROOT, FAKE = sys.argv[1:4]
NODE = next((name for name in ("node", "nodejs") if works(name, "-e", "[].at(0), ''.replaceAll('', '')")), None)  # not older than the page's script


def ask(port, method, path, headers={}):
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
    c.request(method, path, headers=headers)
    r = c.getresponse()
    body = r.read()
    c.close()
    return r.status, r.headers, body.decode()


class Served(TestCase):
    def start(self, *args):
        d = Daemon(EXE, *args)
        self.addCleanup(d.stop)
        return d

    def test_pages_may_run_what_they_hold_and_nothing_else(self):
        d = self.start()
        for path in ["/", "/chat"]:
            status, headers, page = ask(d.port, "GET", path)
            self.assertEqual((status, headers["Content-Type"]), (200, "text/html; charset=utf-8"))
            self.assertEqual([headers[h] for h in ["X-Frame-Options", "X-Content-Type-Options", "Referrer-Policy"]], ["DENY", "nosniff", "no-referrer"])
            policy = dict(p.strip().split(" ", 1) for p in headers["Content-Security-Policy"].split(";"))
            for kind in ["script", "style"]:
                found = re.findall(f"<{kind}>(.*?)</{kind}>", page, re.S)
                self.assertEqual(len(found), 1)
                self.assertEqual(policy[kind + "-src"], "'sha256-" + base64.b64encode(hashlib.sha256(found[0].encode()).digest()).decode() + "'")
            self.assertEqual([policy[k] for k in ["default-src", "connect-src", "base-uri", "form-action", "frame-ancestors"]],
                             ["'none'", "'self'", "'none'", "'none'", "'none'"])
            # What the policy would refuse is not there, and nothing is loaded from anywhere.
            self.assertNotRegex(page, r"""<[^>]*\s(style|on\w+)=|\ssrc=|@import|url\(|innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(""")
            self.assertNotRegex(page, r"""["'(]https?://\w""")
            self.assertEqual(re.findall(r"<link[^>]*>", page), ['<link rel="icon" href="data:,">'])

    def test_methods_paths_and_metric(self):
        d = self.start("--server.api_key=secret")
        status, headers, page = ask(d.port, "GET", "/chat")  # the page itself holds no secrets
        self.assertEqual(status, 200)
        head = ask(d.port, "HEAD", "/chat")
        self.assertEqual((head[0], head[1]["Content-Length"], head[2]), (200, headers["Content-Length"], ""))
        self.assertEqual(head[1]["Content-Security-Policy"], headers["Content-Security-Policy"])
        status, headers, _ = ask(d.port, "OPTIONS", "/chat")
        self.assertEqual((status, headers["Allow"]), (204, "GET, HEAD, OPTIONS"))
        self.assertEqual(ask(d.port, "POST", "/chat")[0], 405)
        self.assertEqual(ask(d.port, "GET", "/chat/")[2], page)
        self.assertEqual(ask(d.port, "GET", "/chat/x")[0], 404)
        wait_until("a count of three pages", lambda: d.metrics().get('expertd_http_requests_total{endpoint="/chat",status="200"}') == 3)

    def test_settings_are_fields_of_the_api(self):
        with open(os.path.join(ROOT, "api", "chat.js"), encoding="utf-8") as page, open(os.path.join(ROOT, "docs", "api.md"), encoding="utf-8") as docs:
            names = re.findall(r'\["(\w+)", "', re.search(r"const FIELDS = \[(.*?)\n\];", page.read(), re.S)[1])
            known = re.search(r"\n## Fields of a request\n(.*?)\n### Fields that are refused", docs.read(), re.S)[1]
        self.assertGreater(len(names), 10)
        for name in names:
            self.assertRegex(known, rf"(?m)^\| [^|]*`{name}`", name)

    def test_each_page_has_its_switch(self):
        d = self.start("--server.chat_page=no")
        self.assertEqual([ask(d.port, "GET", p)[0] for p in ["/", "/chat", "/status.json"]], [200, 404, 200])
        self.assertEqual(ask(d.port, "HEAD", "/chat")[0], 404)
        d = self.start("--server.status_page=no")
        self.assertEqual([ask(d.port, "GET", p)[0] for p in ["/", "/chat", "/status.json"]], [404, 200, 404])


@unittest.skipUnless(NODE, "no node 16.6 or newer (Debian: nodejs)")
class Markdown(TestCase):
    def test_as_another_renderer_and_as_if_at_once_and_harmless(self):
        out = subprocess.run([NODE, os.path.join(ROOT, "tests", "ops", "markdown.js"), os.path.join(ROOT, "api", "chat_markdown.js"),
                              os.path.join(ROOT, "tests", "data", "chat", "markdown.json")], capture_output=True, text=True, timeout=3 * WAIT_S)
        print(out.stdout)
        self.assertEqual(out.returncode, 0, out.stdout + out.stderr)


class Parrot:
    """The HTTP room around the fake engine: the answer is the last message. "[drip]" takes 40 s, "[midway]" fails halfway."""

    def __init__(self, *args, model="fake", template="{{ messages[-1].content }}"):
        self.p = subprocess.Popen([FAKE, "--server.port=0", "--log.requests=no", "--model.path=" + model, "--model.chat_template=" + template, *args],
                                  stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=dict(os.environ, FAKE_MODEL_DIR=os.path.join(ROOT, "tests", "data", "api")))
        self.port = int(self.p.stdout.readline().split()[1])
        wait_until("readiness", lambda: ask(self.port, "GET", "/health")[0] == 200)

    def metric(self, name):
        return float(re.search(rf"^{name} (\S+)$", ask(self.port, "GET", "/metrics")[2], re.M)[1])

    def stop(self):
        self.p.terminate()
        self.p.stdout.close()
        self.p.wait(WAIT_S)


IDLE = "document.querySelector('#log article.answer:last-child .tools')"  # the last answer is through
ANSWER = "document.querySelector('#log article.answer:last-child .text:not(details *)')"


@unittest.skipUnless(CHROMIUM, "no Chromium (Debian: chromium)")
class InABrowser(TestCase):
    def open(self, server, before="", **size):
        self.addCleanup(server.stop)
        tab = Tab(**size)
        self.addCleanup(tab.close)
        tab.call("Page.addScriptToEvaluateOnNewDocument", source=before)
        tab.go(f"http://127.0.0.1:{server.port}/chat")
        tab.wait("document.querySelector('#phase').textContent !== 'connecting'")
        # What is sent is kept for the test to read.
        tab.js("void (window.sent = [], window.real = fetch, window.fetch = (url, o) => { if (o?.body) sent.push(JSON.parse(o.body)); return real(url, o); })")
        return tab

    def say(self, tab, text):
        tab.js("document.getElementById('input').focus()")
        tab.type(text)
        tab.key("Enter")

    def press(self, tab, label, where="document"):
        tab.wait(f"{where}.querySelector('[aria-label=\"{label}\"]')")
        tab.js(f"void {where}.querySelector('[aria-label=\"{label}\"]').click()")

    def ends(self, tab):
        tab.wait(IDLE)
        return tab.js(ANSWER + ".innerText")

    def texts(self, tab):
        return tab.js("[...document.querySelectorAll('#log article')].map(a => a.querySelector('.bubble, .answer > .text').textContent)")

    def titles(self, tab):
        return tab.js("[...document.querySelectorAll('#list .open')].map(b => b.textContent)")

    def test_a_conversation_with_the_demo_model(self):
        d = Daemon(EXE).wait_ready()
        tab = self.open(d)
        self.assertEqual(tab.js("[document.querySelector('#model').textContent, document.querySelector('#phase').textContent]"), ["demo", "ready"])
        tab.js("document.getElementById('options').click()")
        tab.js("document.getElementById('system').value = 'You tell stories.'")
        for name, value in [("temperature", "0"), ("max_tokens", "30"), ("stop", "zzz\\nqqq")]:
            tab.js(f"document.querySelector('.fields [name={name}]').value = '{value}'")
        tab.js("document.querySelector('#settings button[value=save]').click()")
        self.say(tab, "Tell me of a king.")
        first = self.ends(tab)
        self.assertTrue(first.strip())
        self.assertEqual(tab.js("sent[0]"), {"messages": [{"role": "system", "content": "You tell stories."}, {"role": "user", "content": "Tell me of a king."}], "stream": True,
                                             "stream_options": {"include_usage": True}, "timings": True, "temperature": 0, "max_tokens": 30, "stop": ["zzz", "qqq"]})
        self.assertRegex(tab.js(IDLE + ".textContent"), r"^30 tokens · [\d.]+ tokens/s · prompt \d+.* · context \d+ % · cut at the token limit$")
        status, body = d.ask("/v1/chat/completions", dict(tab.js("sent[0]"), stream=False, stream_options=None))
        self.assertEqual(self.texts(tab)[-1].strip(), json.loads(body)["choices"][0]["message"]["content"].strip())

        self.press(tab, "Go on writing")
        tab.wait(f"({ANSWER}).innerText.length > {len(first)} && {IDLE}")
        self.assertTrue(self.texts(tab)[1].startswith(first.strip()))
        self.assertEqual(tab.js("[sent[1].continue_final_message, sent[1].messages.at(-1).role]"), [True, "assistant"])
        self.press(tab, "Answer again")
        tab.wait(f"sent.length === 3 && {IDLE}")
        self.assertEqual(self.texts(tab)[1].strip(), first.strip())  # greedy: the same again

        self.say(tab, "And of a queen.")
        tab.wait(f"sent.length === 4 && {IDLE}")
        before = self.texts(tab)
        self.assertEqual((len(before), before[2]), (4, "And of a queen."))
        tab.reload()
        tab.wait("document.querySelectorAll('#log article').length === 4")
        self.assertEqual(self.texts(tab), before)
        self.assertEqual(self.titles(tab), ["Tell me of a king."])
        self.assertEqual(tab.faults, [])

    def test_list_edit_rename_delete_export_import(self):
        server = Parrot()
        tab = self.open(server)
        for text in ["first", "second"]:
            self.say(tab, text)
            self.assertEqual(self.ends(tab), text)
        self.press(tab, "Edit and send again")
        tab.wait("document.activeElement.getAttribute('aria-label') === 'Edit the message'")
        tab.key("Escape")
        self.assertEqual(self.texts(tab), ["first", "first", "second", "second"])
        self.press(tab, "Edit and send again")
        tab.wait("document.activeElement.getAttribute('aria-label') === 'Edit the message'")
        tab.js("document.activeElement.select()")
        tab.type("other")
        tab.key("Enter")
        tab.wait(f"document.querySelectorAll('#log article').length === 2 && {IDLE}")
        self.assertEqual(self.texts(tab), ["other", "other"])

        tab.js("document.getElementById('new').click()")
        self.say(tab, "a line")  # Shift+Enter goes on
        self.assertEqual(self.ends(tab), "a line")
        tab.js("document.getElementById('new').click()")
        tab.type("one")
        tab.key("Enter", shift=True)
        tab.type("two")
        tab.key("Enter")
        self.ends(tab)
        self.assertEqual(self.texts(tab), ["one\ntwo"] * 2)
        self.assertEqual(self.titles(tab), ["one two", "a line", "other"])
        tab.js("document.querySelectorAll('#list .open')[2].click()")
        self.assertEqual(self.texts(tab), ["other", "other"])
        self.press(tab, "Rename", "document.querySelector('#list .current')")
        tab.type("Renamed")
        tab.key("Enter")
        self.assertEqual(self.titles(tab), ["one two", "a line", "Renamed"])
        self.press(tab, "Delete", "document.querySelector('#list .current')")
        self.assertEqual(self.titles(tab), ["one two", "a line"])
        self.assertEqual(self.texts(tab), [])
        tab.js("document.querySelector('#toast button').click()")
        self.assertEqual((self.titles(tab), self.texts(tab)), (["one two", "a line", "Renamed"], ["other", "other"]))

        # What an export holds, into a browser that has nothing; and what no export would hold.
        tab.js("void (window.real_url = URL.createObjectURL, URL.createObjectURL = b => { window.blob = b; return real_url.call(URL, b); })")
        tab.js("document.getElementById('export').click()")
        text = tab.js("blob.text()")
        self.assertEqual(sorted(c["title"] for c in json.loads(text)["conversations"]), ["Renamed", "a line", "one two"])
        tab.go(f"http://127.0.0.1:{server.port}/")
        tab.js("localStorage.clear()")
        tab.go(f"http://127.0.0.1:{server.port}/chat")
        self.assertEqual(self.titles(tab), [])

        def give(text):
            tab.js(f"void (() => {{ const t = new DataTransfer(); t.items.add(new File([{json.dumps(text)}], 'x.json')); "
                   "const f = document.getElementById('file'); f.files = t.files; f.dispatchEvent(new Event('change')); })()")
        give(text)
        tab.wait("document.querySelectorAll('#list .open').length === 3")
        self.assertEqual(self.titles(tab), ["one two", "a line", "Renamed"])
        give("not JSON")
        tab.wait("document.querySelector('#toast').textContent.includes('cannot be read')")
        give(json.dumps({"conversations": [{"id": "<b>", "title": 5, "settings": {"evil": 1, "stop": 7}, "messages": [{"role": "assistant", "content": {"a": 1}}, {"role": "x"}, None]}]}))
        tab.wait("document.querySelectorAll('#list .open').length === 4")
        self.assertEqual(self.titles(tab)[0], "Untitled")
        self.assertEqual(tab.faults, [])

    def test_a_stopped_answer_stops_at_the_server(self):
        server = Parrot()
        tab = self.open(server)
        self.say(tab, "[drip] story")
        tab.wait(f"{ANSWER}?.textContent.length > 20")
        self.assertEqual(tab.js("document.querySelector('#send').getAttribute('aria-label')"), "Stop")
        self.assertEqual(server.metric("fake_live"), 1)
        tab.key("Escape")
        self.ends(tab)
        wait_until("the end of what was stopped", lambda: server.metric("fake_live") == 0)
        self.assertEqual(server.metric("fake_cancelled_total"), 1)
        self.assertRegex(tab.js(IDLE + ".textContent"), "stopped$")
        self.assertGreater(len(self.texts(tab)[1]), 20)
        tab.js("document.getElementById('new').click()")
        self.say(tab, "[drip] again")
        tab.wait(f"{ANSWER}?.textContent.length > 20")
        self.press(tab, "Stop")
        self.ends(tab)
        self.assertEqual(tab.faults, [])

    def test_hostile_text_runs_and_loads_nothing(self):
        server = Parrot()
        tab = self.open(server)
        hostile = ("<script>window.hacked = 1</script> <img src=x onerror='window.hacked = 1'> <svg onload=window.hacked=1>\n\n[x](javascript:window.hacked=1) "
                   "![pic](https://evil.example/x.png) [ok](https://example.org)\n\n```<script>\n<style>body{display:none}</style>\n```\n\n| <iframe src=/> |\n|---|\n| <a href=javascript:window.hacked=1>x</a> |\n")
        self.say(tab, hostile)
        self.ends(tab)
        self.assertEqual(tab.js("document.querySelectorAll('#log :is(script, img, iframe, style, svg[onload], object, embed, form)').length"), 0)
        self.assertEqual(tab.js("[...document.querySelectorAll('#log a')].map(a => [a.href, a.rel])"),
                         [["https://evil.example/x.png", "noopener noreferrer"], ["https://example.org/", "noopener noreferrer"]])
        self.assertIn("<img src=x onerror='window.hacked = 1'>", self.texts(tab)[1])
        self.assertFalse(tab.js("'hacked' in window"))
        self.assertEqual([u for u in tab.js("performance.getEntriesByType('resource').map(e => e.name)") if not u.startswith(f"http://127.0.0.1:{server.port}/")], [])
        self.assertEqual(tab.faults, [])
        # Were there a hole in the page, the browser would still refuse.
        self.assertTrue(tab.js("(() => { try { document.body.innerHTML = '<b>'; } catch (e) { return e instanceof TypeError; } })()"))

    def test_a_key_is_asked_for_once(self):
        server = Parrot("--server.api_key=secret,gehe\u20acm \u00fc")
        tab = self.open(server)
        self.assertFalse(tab.js("!!document.querySelector('input[type=password]')"))
        self.say(tab, "hello")
        for tries, (words, key) in enumerate([("an API key is needed", "wrong"), ("the API key is not valid", "wrong\u20ac"), ("the API key is not valid", "\u201csecret\u201d"),
                                              ("the API key is not valid", "x" * 100000), ("the API key is not valid", " gehe\u20acm \u00fc\t ")], 1):
            tab.wait(f"sent.length === {tries} && document.querySelector('.fault input[type=password]')")
            self.assertIn("Error 401 " + words, tab.js("document.querySelector('.fault').textContent"))
            tab.js("document.querySelector('.fault input').focus()")
            tab.type(key)
            tab.key("Enter")
        tab.wait("sent.length === 6")
        self.assertEqual(self.ends(tab), "hello")
        self.assertEqual(tab.js("localStorage.getItem('expertd.key')"), "gehe\u20acm \u00fc")
        tab.js("localStorage.setItem('expertd.key', 'of another\\r\\nversion\\0')")
        self.press(tab, "Answer again")
        tab.wait("sent.length === 7 && document.querySelector('.fault input[type=password]')")
        tab.js("document.querySelector('.fault input').focus()")
        tab.type("secret")
        tab.key("Enter")
        tab.wait("sent.length === 8")
        self.assertEqual(self.ends(tab), "hello")
        tab.reload()
        tab.wait("document.querySelectorAll('#log article').length === 2")
        self.say(tab, "more")
        tab.wait("document.querySelectorAll('#log article').length === 4")
        self.assertEqual(self.ends(tab), "more")
        tab.js("document.getElementById('options').click()")
        tab.js("document.getElementById('forget').click()")
        self.assertIsNone(tab.js("localStorage.getItem('expertd.key')"))
        self.assertEqual(tab.faults, [])

    def test_errors_are_shown_where_they_happen(self):
        server = Parrot()  # the page asks for its state at the beginning, and then only when an answer fails
        tab = self.open(server, before="const later = window.setTimeout; window.setTimeout = (f, ms) => f.name === 'poll' ? 0 : later(f, ms);")
        self.say(tab, "[midway] the text that comes")
        tab.wait("document.querySelector('.fault')")
        self.assertTrue(self.texts(tab)[1].startswith("[midway]"))
        self.assertIn("Try again", tab.js("document.querySelector('.fault').textContent"))
        self.say(tab, "x" * 5000)  # more than the model takes
        tab.wait("document.querySelector('article:last-child .fault')")
        self.assertRegex(tab.js("document.querySelector('article:last-child .fault').textContent"), "^Error 400 the prompt has 5000 tokens")
        server.stop()
        tab.js("document.querySelector('article:last-child .fault button').click()")
        tab.wait("document.querySelector('article:last-child .fault')?.textContent.includes('cannot be reached')")
        tab.wait("document.querySelector('#phase').textContent === 'not reachable'")
        self.assertEqual(tab.faults, [])

    def test_it_waits_as_long_as_the_server_asks_for(self):
        # What a server says that loads, then one with too much to do. A second of waiting ends when the test says so.
        server = Parrot()
        tab = self.open(server, before="""const first = window.fetch; window.busy = [[429, "too many requests wait", "queue_full"], [503, "the model is loading (41 %)", "loading"]];
            window.fetch = (url, o) => !busy.length || o?.method === "HEAD" ? first(url, o) : Promise.resolve(url.endsWith("health")
              ? new Response(JSON.stringify({status: "loading", progress: 0.41, what: "weights"}), {status: 503})
              : new Response(JSON.stringify({error: {message: busy.at(-1)[1]}}), {status: busy.pop()[0], headers: {"Retry-After": "2"}}));
            const later = window.setTimeout; window.held = [];
            window.setTimeout = (f, ms) => ms === 1000 && f.name !== "poll" ? held.push(f) && 0 : later(f, ms);""")
        self.assertEqual(tab.js("['#phase', '#what'].map(s => document.querySelector(s).textContent)"), ["loading 41 %", "The model is loading: weights."])
        self.assertEqual(tab.js("document.querySelector('#progress').value"), 0.41)
        self.say(tab, "hello")
        for words in ["the model is loading (41 %)", "too many requests wait"]:
            for seconds in [2, 1]:
                tab.wait(f"document.querySelector('.wait').textContent === {json.dumps(f'{words}. Trying again in {seconds} s.')}")
                tab.js("void held.shift()()")
        self.assertEqual(self.ends(tab), "hello")
        tab.wait("document.querySelector('#notice').hidden")
        self.assertEqual(tab.faults, [])

    def test_many_pieces_at_once_are_drawn_at_once(self):
        # What a server says after a pause of the network: 20000 pieces in one read, the last with half a character at its end.
        server = Parrot()
        tab = self.open(server, before="""const first = window.fetch; window.drawn = 0;
            window.fetch = (url, o) => !o?.body ? first(url, o) : Promise.resolve(new Response(new ReadableStream({start(c) {
              const bytes = new TextEncoder().encode('data: {"choices":[{"delta":{"content":"word "}}]}\\n\\n'.repeat(20000) + 'data: {"choices":[{"delta":{"content":"\\u20ac"}}]}\\n\\ndata: [DONE]\\n\\n');
              const cut = bytes.indexOf(0xe2) + 1;
              c.enqueue(bytes.slice(0, cut));
              c.enqueue(bytes.slice(cut));
              c.close();
            }})));""")
        tab.js("void (update => { Markdown.prototype.update = function (text) { drawn++; update.call(this, text); }; })(Markdown.prototype.update)")
        self.say(tab, "hello")
        self.ends(tab)
        self.assertEqual(self.texts(tab)[1], "word " * 20000 + "\u20ac")
        self.assertLess(tab.js("drawn"), 6)  # empty, after each of two reads, complete
        self.assertEqual(tab.faults, [])

    def test_thoughts_are_folded(self):
        server = Parrot(template="{{ messages[-1].content }}{# <think> </think> #}")
        tab = self.open(server)
        self.say(tab, "<think>a **deep** thought</think>The answer.")
        self.assertEqual(self.ends(tab), "The answer.")
        self.assertEqual(tab.js("[document.querySelector('details').open, document.querySelector('details').hidden]"), [False, False])
        tab.js("document.querySelector('summary').click()")
        self.assertEqual(tab.wait("document.querySelector('details strong')?.textContent"), "deep")
        self.assertEqual(tab.faults, [])

    def test_a_phone(self):
        server = Parrot()
        tab = self.open(server, width=360, height=700)
        self.say(tab, "# Head\n\n" + "word " * 60 + "\n\n| " + " | ".join(["wide column"] * 8) + " |\n" + "|---" * 8 + "|\n\n```\n" + "x" * 200 + "\n```\n\n" + "y" * 200)
        self.ends(tab)
        self.assertEqual(tab.js("[document.documentElement.scrollWidth, document.querySelector('#log').scrollWidth <= 360]"), [360, True])
        parts = tab.js("[...document.querySelectorAll('.answer .tools i')].map(i => [i.textContent, i.getClientRects().length])")
        self.assertEqual(parts[0][0].split()[1:], ["tokens"])
        self.assertEqual({lines for _, lines in parts}, {1}, parts)  # a line ends between two of them
        self.assertEqual(tab.js("getComputedStyle(document.querySelector('#side')).visibility"), "hidden")
        self.press(tab, "Show the list")
        tab.wait("getComputedStyle(document.querySelector('#side')).visibility === 'visible'")
        tab.key("Escape")
        tab.wait("getComputedStyle(document.querySelector('#side')).visibility === 'hidden'")
        self.assertEqual(tab.faults, [])

    def test_names_of_any_length_on_a_phone(self):
        name = "Some-Model-30B-A3B-Instruct-" + "x" * 120
        d = Daemon(EXE, "--alias=" + name, "--memory.page_size=64KiB", "--memory.vram_budget=4MiB", "--test.allow=yes", "--test.link_gbps=30").wait_ready()
        d.complete(20)
        tab = self.open(d, width=360, height=700)
        beyond = """[...document.querySelectorAll('body *')].filter(e => { const r = e.getBoundingClientRect();
            return r.width && (r.right > 361 || r.left < -1) && getComputedStyle(e).visibility !== 'hidden'; }).map(e => e.outerHTML.slice(0, 80))"""
        tab.wait(f"document.querySelector('#model').textContent === '{name}'")
        self.assertEqual(tab.js(beyond), [])
        self.assertGreater(tab.js("document.querySelector('#model').clientHeight"), 30)  # two lines of it
        self.press(tab, "Settings")
        self.assertEqual(tab.js(beyond), [])
        tab.size(360, 700, phone=True)  # whose scroll bars take no room
        tab.go(f"http://127.0.0.1:{d.port}/")
        tab.wait("document.querySelector('#link').textContent === '30.0'")
        self.assertEqual(tab.js("[document.documentElement.scrollWidth, " + beyond + "]"), [360, []])
        self.assertEqual(tab.js("[...document.querySelectorAll('dd')].filter(e => e.clientHeight > 30).map(e => e.textContent)"), [])
        self.assertLess(tab.js("document.querySelector('#chat').getBoundingClientRect().top - document.querySelector('h1').getBoundingClientRect().top"), 20)
        self.assertEqual(tab.faults, [])

    def test_the_pages_lead_to_each_other(self):
        d = Daemon(EXE).wait_ready()
        tab = self.open(d)
        tab.wait("!document.querySelector('#status').hidden")
        tab.js("document.querySelector('#status').click()")
        tab.wait("document.querySelector('#chat') && !document.querySelector('#chat').hidden && location.pathname === '/'")
        tab.wait("document.querySelector('#rate').textContent !== '–'")
        self.assertEqual(tab.faults, [])  # its own policy lets the status page draw all it wants


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[4:]], verbosity=2)
