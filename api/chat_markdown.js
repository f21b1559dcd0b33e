// chat_markdown.js - the Markdown of the chat page: DOM nodes of model text, also of text that still grows.
//
// Text only ever becomes text nodes and links that a click follows, so it can neither run nor load anything. No pattern looks further than some
// thousand characters from where it starts, and nesting is bounded: hostile text costs no more than long text.
"use strict";

const el = (tag, props, ...kids) => { const e = Object.assign(document.createElement(tag), props); e.append(...kids); return e; };

const DEEP = 12;
const WIDE = 200;  // columns of a table; each cell is an element, and tens of thousands of them hold the browser up
const PADDED = 10000;  // cells that a table's short rows lack
const SAFE_URL = /^(https?:\/\/|mailto:)/i;
const LINK = /!?\[((?:[^[\]\\]|\\.|\[[^[\]]{0,200}\]){0,500})\]\(\s{0,9}<?((?:[^\s()<>]|\([^\s()<>]{0,200}\)){0,2000})>?(?:\s{1,9}"[^"]{0,200}"|\s{1,9}'[^']{0,200}')?\s{0,9}\)/y;
const INLINE = /(\$\$[^]{1,2000}?\$\$|\\\([^]{1,2000}?\\\)|\\\[[^]{1,2000}?\\\])|\\([!-/:-@[-`{-~])|(`+)|(\*+|_+|~~)|(!?\[)|<((?:https?:\/\/|mailto:)[^\s<>]{1,2000})>|(https?:\/\/[^\s<>"`]{1,2000})|<br ?\/?>/g;

function link(url, ...label) {
  return el("a", { href: url, target: "_blank", rel: "noopener noreferrer" }, ...label);
}
function inline(text, parent, depth = 0, inLink = false) {
  const items = [], missing = new Set(), scan = new RegExp(INLINE);
  let from = 0;
  for (let m; (m = scan.exec(text));) {
    let node = m[0], end = scan.lastIndex;  // what is nothing special stays text
    const [, math, escaped, ticks, marks, bracket, url, bare] = m;
    if (escaped) node = escaped;
    else if (math) node = el("code", {}, math);  // as it is: no underscore in it means anything here
    else if (ticks && !missing.has(ticks.length)) {
      const runs = /`+/g;
      runs.lastIndex = end;
      let close;
      do close = runs.exec(text); while (close && close[0].length !== ticks.length);
      if (close) {
        const inside = text.slice(end, close.index).replaceAll("\n", " ");
        node = el("code", {}, /^ .*[^ ].* $/.test(inside) ? inside.slice(1, -1) : inside);
        end = runs.lastIndex;
      } else missing.add(ticks.length);
    } else if (marks) {
      const before = text[m.index - 1] || " ", after = text[end] || " ", word = marks[0] === "_" ? /[\p{L}\p{N}]/u : /\d/;  // 2*3*4 is a product
      node = { mark: marks[0], n: marks.length, open: /\S/.test(after) && !word.test(before), close: /\S/.test(before) && !word.test(after) };
    } else if (bracket && !inLink && depth < DEEP) {
      LINK.lastIndex = m.index;
      const l = LINK.exec(text);
      if (l && SAFE_URL.test(l[2])) {
        node = link(l[2]);
        inline(l[1] || l[2], node, depth + 1, true);
        end = LINK.lastIndex;
      }
    } else if (url && !inLink) node = link(url, url);
    else if (bare && !inLink) {
      const trimmed = bare.replace(bare.includes("(") ? /[.,:;!?'*_~\]]+$/ : /[.,:;!?'*_~\])]+$/, "");
      node = link(trimmed, trimmed);
      end = m.index + trimmed.length;
    } else if (m[0].startsWith("<br")) node = el("br");
    if (m.index > from) items.push(text.slice(from, m.index));
    items.push(node);
    from = scan.lastIndex = end;
  }
  items.push(text.slice(from));
  emphasis(items, parent, depth);
}
function emphasis(items, parent, depth) {
  const missing = new Set();  // marks that nothing ends from here on
  for (let i = 0; i < items.length; i++) {
    const t = items[i];
    let j = -1, n = 0;
    for (n of t.mark && t.open && depth < DEEP ? t.n === 3 ? [3, 1, 2] : t.n < 3 ? [t.n] : [] : []) {
      if (missing.has(t.mark + n)) continue;
      for (j = i + 1; j < items.length; j++) {
        const u = items[j];
        if (u.mark === t.mark && u.close && (u.n === n || u.n === 3) && (j > i + 1 || u.n + t.n > 2 * n)) break;
      }
      if (j < items.length) break;
      missing.add(t.mark + n);
      j = -1;
    }
    if (j < 0) {
      parent.append(t.mark ? t.mark.repeat(t.n) : t);
      continue;
    }
    const inner = items.slice(i + 1, j), rest = items[j].n - n;
    if (t.n > n) inner.unshift({ ...t, n: t.n - n });
    if (rest) inner.push({ ...items[j], n: rest });
    const box = el(t.mark === "~" ? "del" : n === 1 ? "em" : "strong");
    parent.append(n === 3 ? el("em", {}, box) : box);
    emphasis(inner, box, depth + 1);
    i = j;
  }
}

const FENCE = /^( {0,3})(`{3,}|~{3,})[ \t]*([^`\s]*)[^`]*$/;
const FENCE_END = /^ {0,3}(`{3,}|~{3,})[ \t]*$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+(.*))?$/;
const RULE = /^ {0,3}([-*_])(?:[ \t]*\1){2,}[ \t]*$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?:( +)(.*))?$/;

const interrupts = line => FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line) || /^ {0,3}([-*+]|1[.)]) +\S/.test(line);
function cells(line) {
  const parts = line.trim().replace(/^\|/, "").split("|"), out = [], last = parts.pop();
  let cell = "";
  for (const part of parts)
    if (part.endsWith("\\")) cell += part.slice(0, -1) + "|";  // \| is no border
    else { out.push(cell + part); cell = ""; }
  out.push(cell + last);
  if (out.length > 1 && !out.at(-1).trim()) out.pop();
  return out.map(c => c.trim());
}
function tableHead(line, next) {  // the columns' alignments, or null
  if (!line.includes("|") || !next || !/^[ |:-]+$/.test(next) || !next.includes("-")) return null;
  const marks = cells(next);
  return marks.length <= WIDE && marks.every(c => /^:?-+:?$/.test(c)) && marks.length === cells(line).length
    ? marks.map(c => c.endsWith(":") ? c[0] === ":" ? "center" : "right" : "") : null;
}
function codeBlock(language, text) {
  const pre = el("pre", { tabIndex: 0 }, el("code", {}, text));
  return el("div", { className: "code" }, el("div", {}, el("span", {}, language || "text"), el("button", { type: "button", className: "copy" }, "Copy")), pre);
}
function headingText(s) {
  const t = s.trimEnd();
  let n = t.length;
  while (t[n - 1] === "#") n--;
  return n < t.length && /^$|[ \t]/.test(t[n - 1] || "") ? t.slice(0, n).trimEnd() : t;
}
function list(lines, at, node, depth) {  // the line behind it
  const first = ITEM.exec(lines[at]), ordered = first[2].length > 1;
  if (ordered && parseInt(first[2], 10) !== 1) node.start = parseInt(first[2], 10);
  for (let m; at < lines.length && (m = ITEM.exec(lines[at])) && m[2].length > 1 === ordered && m[1].length < first[1].length + 2 && !RULE.test(lines[at]);) {
    const own = m[1].length, space = (m[3] || " ").length, inner = own + m[2].length + (space > 4 ? 1 : space), body = [m[4] || ""];
    let blank = false;
    for (at++; at < lines.length; at++) {
      const line = lines[at], indent = line.search(/\S/);
      if (indent >= 0 && indent < Math.min(inner, own + 2) && (blank || ITEM.test(line) || interrupts(line))) break;
      blank = indent < 0;
      body.push(line.slice(Math.min(Math.max(indent, 0), inner)));
    }
    const task = /^\[([ xX])\] /.exec(body[0]), li = el("li", { className: task ? "task" : "" });
    if (task) body[0] = (task[1] === " " ? "☐ " : "☑ ") + body[0].slice(4);
    li.append(...blocks(body.join("\n"), depth + 1).map(b => b.node));
    node.append(li);
  }
  return at;
}
function blocks(text, depth = 0) {  // [{ at: where it begins, node, code: of a code block its text }]
  const raw = text.split("\n"), out = [];
  const lines = raw.map(l => l.replace(/\r$/, "").replace(/^[ \t]+/, s => s.replaceAll("\t", "    ")));
  let offset = 0, i = 0;
  while (i < lines.length) {
    const start = i, line = lines[i], nests = depth < DEEP;
    let m, node, code;
    if (!line.trim()) i++;
    else if ((m = FENCE.exec(line))) {
      const rows = [], indent = m[1].length;
      for (i++; i < lines.length; i++) {
        const end = FENCE_END.exec(lines[i]);
        if (end && end[1][0] === m[2][0] && end[1].length >= m[2].length) break;
        rows.push(indent ? raw[i].replace(/^ {1,3}/, s => s.slice(indent)) : raw[i]);
      }
      i++;
      code = rows.join("\n");
      node = codeBlock(m[3], code);
    } else if ((m = HEADING.exec(line))) {
      i++;
      inline(headingText(m[2] || ""), node = el("h" + Math.min(6, m[1].length + 2)));
    } else if (RULE.test(line)) {
      i++;
      node = el("hr");
    } else if (nests && QUOTE.test(line)) {
      const inner = [];
      for (; i < lines.length && QUOTE.test(lines[i]); i++) inner.push(lines[i].replace(QUOTE, ""));
      node = el("blockquote", {}, ...blocks(inner.join("\n"), depth + 1).map(b => b.node));
    } else if (nests && (m = ITEM.exec(line))) {
      node = el(m[2].length > 1 ? "ol" : "ul");
      i = list(lines, i, node, depth);
    } else if ((m = tableHead(line, lines[i + 1]))) {
      let padding = PADDED;
      const row = (line, tag) => {
        const parts = cells(line), tr = el("tr");
        m.forEach((align, k) => {
          if (k >= parts.length && padding-- <= 0) return;
          const c = el(tag);
          c.style.textAlign = align;
          inline(parts[k] || "", c);
          tr.append(c);
        });
        return tr;
      };
      const table = el("table", {}, el("thead", {}, row(line, "th"))), body = el("tbody");
      for (i += 2; i < lines.length && lines[i].trim() && !interrupts(lines[i]); i++) body.append(row(lines[i], "td"));
      table.append(body);
      node = el("div", { className: "table" }, table);
    } else {
      do i++; while (i < lines.length && lines[i].trim() && !interrupts(lines[i]) && !tableHead(lines[i], lines[i + 1]));
      inline(lines.slice(start, i).map(l => l.trim()).join("\n"), node = el("p"));
    }
    if (node) out.push({ at: offset, node, code });
    for (let k = start; k < i && k < raw.length; k++) offset += raw[k].length + 1;
  }
  return out;
}
// Shows text that grows. Only the last block can still change, so all before it stays as it is; of a code block only what is new is added.
class Markdown {
  constructor(box) { this.box = box; this.at = 0; this.tail = []; }
  update(text) {
    const parts = blocks(text.slice(this.at)), old = this.tail[0], first = parts[0];
    if (old?.code !== undefined && first?.code?.startsWith(old.code) && this.tail.length === 1) {
      old.node.querySelector("code").firstChild.appendData(first.code.slice(old.code.length));
      first.node = old.node;
    } else this.tail.forEach(b => b.node.remove());
    for (const b of parts) if (b.node !== old?.node) this.box.append(b.node);
    let last = parts.length - 1;
    // What half a line begins may yet go on with what is before it; of a table the second line decides.
    while (last > 0 && text.indexOf("\n", text.indexOf("\n", this.at + parts[last].at) + 1 || text.length) < 0) last--;
    this.tail = parts.slice(Math.max(last, 0));
    if (last > 0) this.at += parts[last].at;
  }
}
