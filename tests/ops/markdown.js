// The Markdown of the chat page on a document that is nothing but a tree. Expected trees come from another renderer:
// tests/data/chat/README.md. Usage: markdown.js CHAT_MARKDOWN_JS CASES_JSON
"use strict";
const fs = require("fs"), vm = require("vm"), assert = require("assert");

class Text {
  constructor(data) { this.data = data; }
  appendData(more) { this.data += more; }
  remove() { this.parent.kids.splice(this.parent.kids.indexOf(this), 1); }
}
class Element {
  constructor(tag) { this.tag = tag; this.kids = []; this.style = {}; }
  append(...kids) { for (const k of kids) { const n = typeof k === "string" ? new Text(k) : k; n.parent = this; this.kids.push(n); } }
  remove() { this.parent.kids.splice(this.parent.kids.indexOf(this), 1); }
  querySelector(tag) { for (const k of this.kids) { const hit = k.tag === tag ? k : k.tag && k.querySelector(tag); if (hit) return hit; } return null; }
  get firstChild() { return this.kids[0]; }
}
const escape = s => s.replace(/[&<>"]/g, c => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c]);
const SHOWN = ["href", "start"];
// What the page puts around code and tables is left out, and so is what only looks: the other renderer has none.
function html(n) {
  if (n instanceof Text) return escape(n.data);
  if (n.tag === "div" && n.className === "code") return `<pre>${html(n.querySelector("code"))}</pre>`;
  const inner = n.kids.map(html).join("");
  if (n.tag === "div") return inner;
  const attributes = SHOWN.filter(a => n[a] !== undefined).map(a => ` ${a}="${escape(String(n[a]))}"`).join("") + (n.style.textAlign ? ` align="${n.style.textAlign}"` : "");
  return ["hr", "br"].includes(n.tag) ? `<${n.tag}>` : `<${n.tag}${attributes}>${inner}</${n.tag}>`;
}

const context = vm.createContext({ document: { createElement: tag => new Element(tag) } });
vm.runInContext(fs.readFileSync(process.argv[2], "utf8") + "\n;globalThis.Markdown = Markdown;", context);
function render(text, pieces = [text]) {
  const box = new Element("div"), md = new context.Markdown(box);
  let shown = "";
  for (const p of pieces) md.update(shown += p);
  return html(box);
}

let checks = 0, failed = 0;
const cases = JSON.parse(fs.readFileSync(process.argv[3], "utf8"));
for (const c of cases) {
  checks++;
  if (render(c.text) === c.html) continue;
  failed++;
  console.log(`${JSON.stringify(c.text)}\n  is        ${render(c.text)}\n  should be ${c.html}`);
}

// A text that grows looks in the end, and at each step, as if it had come at once.
let seed = 12345;
const random = n => (seed = (seed * 1103515245 + 12345) % 2147483648) % n;
const all = cases.map(c => c.text);
for (let i = 0; i < 400; i++) all.push(Array.from({ length: 1 + random(5) }, () => cases[random(cases.length)].text).join(["\n", "\n\n", ""][random(3)]));
const BITS = ["- ", "1. ", "2) ", "> ", "```", "```py\n", "~~~", "# ", "|", "|-|-|\n", "---", "\n", "\n\n", "  ", "    ", "\t", "a", "b c", "**", "*", "_", "`", "[x](", "https://e.org/", ")", "~~", "\\", "$$", "é", "5", "\r\n"];
for (let i = 0; i < 1500; i++) all.push(Array.from({ length: 1 + random(40) }, () => BITS[random(BITS.length)]).join(""));
for (const text of all) {
  const box = new Element("div"), md = new context.Markdown(box);
  for (let at = 0; at < text.length;) {
    at = Math.min(text.length, at + 1 + random(4));
    md.update(text.slice(0, at));
    assert.strictEqual(html(box), render(text.slice(0, at)), JSON.stringify(text.slice(0, at)));
    checks++;
  }
}

// Whatever the text, only these elements come, none with more than it needs, and links lead nowhere but to the web.
const TAGS = "a blockquote br button code del div em h3 h4 h5 h6 hr li ol p pre span strong table tbody td th thead tr ul".split(" ");
const PROPERTIES = "tag kids style parent className href target rel type tabIndex start".split(" ");
function harmless(n) {
  if (n instanceof Text) return;
  assert(TAGS.includes(n.tag), n.tag);
  for (const k of Object.keys(n)) assert(PROPERTIES.includes(k), k);
  assert(Object.keys(n.style).every(k => k === "textAlign"));
  if (n.tag === "a") assert(/^(https?:\/\/|mailto:)/i.test(n.href) && n.rel === "noopener noreferrer", n.href);
  n.kids.forEach(harmless);
}
const HOSTILE = ["<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "[x](javascript:alert(1))", "[x]( javascript:alert(1))", "[x](JaVaScRiPt:alert(1))",
  "[x](java\tscript:alert(1))", "![x](javascript:alert(1))", "[x](data:text/html,<script>alert(1)</script>)", "<javascript:alert(1)>", "[x](//evil.example)", "[x](/v1/models)",
  "[x](vbscript:x)", "[x](\u0001javascript:alert(1))", "[a](https://e.org/\"onmouseover=alert(1))", "```\"><script>\nx\n```", "| <script> |\n|-|\n| <img src=x onerror=a> |", "https://e.org/\"><script>"];
for (const text of HOSTILE.concat(HOSTILE.flatMap(a => HOSTILE.map(b => a + b)))) {
  const box = new Element("div");
  new context.Markdown(box).update(text);
  box.kids.forEach(harmless);
  checks++;
}
for (const text of HOSTILE.slice(0, 13)) {
  const box = new Element("div");
  new context.Markdown(box).update(text);
  assert(!box.querySelector("a"), text);
}

// A table may be 200 columns wide, and short rows are filled up with so many cells and no more.
const table = (columns, rows) => "|a".repeat(columns) + "\n" + "|-".repeat(columns) + "\n" + "|b\n".repeat(rows);
const count = (shown, tag) => shown.split(`<${tag}>`).length - 1;
assert.deepStrictEqual([count(render(table(200, 3)), "th"), count(render(table(200, 3)), "td")], [200, 600]);
assert.strictEqual(render(table(201, 1)), `<p>${table(201, 1).trim()}</p>`);
assert.strictEqual(count(render(table(200, 20000)), "td"), 20000 + 10000);
assert.strictEqual(render(`|a${"\\|".repeat(50000)}|b|\n|-|-|\n`), `<table><thead><tr><th>a${"|".repeat(50000)}</th><th>b</th></tr></thead><tbody></tbody></table>`);
checks += 5;

// 100 KB of what makes a careless parser slow. The work is bounded where the patterns are; here only that it ends within the test's own limit.
for (const bit of ["*", "**a ", "_a_ ", "`", "` `` ", "[", "[a](", "![", "](", "((((", "<", "<https://", "\\(", "$$ ", "~~a ", "> ", "- ", "  - ", "#", "# ", "|", "| ", "|-", "\\|", " ", "\n ", "https://a)", "1. ", "***a* "]) {
  const text = bit.repeat(Math.ceil(100000 / bit.length)), t = process.hrtime.bigint();
  render(text);
  render("x" + text + "x");
  const ms = Number(process.hrtime.bigint() - t) / 1e6;
  if (process.env.VERBOSE || ms > 1000) console.log(JSON.stringify(bit), ms.toFixed(0) + " ms");
  checks++;
}
console.log(`${checks} checks, ${failed} failed`);
process.exitCode = failed ? 1 : 0;
