// chat.js - the chat page: conversations, asking the server, and what is seen of both. Markdown: chat_markdown.js.

const $ = id => document.getElementById(id);

// --- conversations: kept in this browser, each under a key of its own ----------------------------------------------------------------------
const PREFIX = "expertd.chat.", KEY = "expertd.key", LAST = "expertd.last";
const FIELDS = [  // of docs/api.md: name, label, lowest and highest value; or a choice; or neither, for text
  ["temperature", "Temperature", 0, 2], ["top_p", "Top p", 0, 1], ["max_tokens", "Max tokens", -1], ["seed", "Seed", -1],
  ["enable_thinking", "Think first", ["", "yes", "no"]], ["reasoning_effort", "Reasoning effort", ["", "low", "medium", "high"]],
  ["top_k", "Top k", -1], ["min_p", "Min p", 0, 1], ["typical_p", "Typical p", 0, 1], ["top_n_sigma", "Top n sigma", -1, 100],
  ["repetition_penalty", "Repetition penalty", 0.01, 100], ["presence_penalty", "Presence penalty", -2, 2], ["frequency_penalty", "Frequency penalty", -2, 2],
  ["dry_multiplier", "DRY multiplier", 0, 100], ["xtc_probability", "XTC probability", 0, 1], ["stop", "Stop at (one a line)"],
];
const SHOWN_FIELDS = 6;  // the others are folded
const WHOLE = ["top_k", "max_tokens", "seed"];
const runs = new Map();  // conversation -> AbortController of the answer under way
let chats = new Map(), current = null, context = 0, noStorage = false, apiKey = "", pollTimer = 0;

const newId = () => Date.now().toString(36) + Math.random().toString(36).slice(2, 8);
const string = v => typeof v === "string" ? v : "";
function clean(c) {  // what is in a file or in the storage may be anything
  if (!Array.isArray(c?.messages)) throw new Error("this is no conversation");
  const settings = {};
  for (const [name] of FIELDS) if (["string", "number"].includes(typeof c.settings?.[name])) settings[name] = c.settings[name];
  return { id: /^\w{1,40}$/.test(string(c.id)) ? c.id : newId(), title: string(c.title) || "Untitled", time: +c.time || Date.now(), system: string(c.system), draft: string(c.draft), settings,
    messages: c.messages.filter(m => m?.role === "user" || m?.role === "assistant").map(m => ({ role: m.role, content: string(m.content),
      reasoning: string(m.reasoning), thought: +m.thought || 0, finish: string(m.finish), error: string(m.error), status: +m.status || 0, stats: string(m.stats) })) };
}
function keep(key, value) {
  try {
    if (value === null) localStorage.removeItem(key); else localStorage.setItem(key, value);
  } catch (e) {
    if (!noStorage) toast("The browser keeps no more: export or delete conversations.");
    noStorage = true;
  }
}
function stored(key) {
  try { return localStorage.getItem(key); } catch (e) { return null; }
}
function save(c) {
  if (c.messages.length && chats.has(c.id)) keep(PREFIX + c.id, JSON.stringify(c));
}
function loadAll() {
  let keys = [];
  try { keys = Object.keys(localStorage).filter(k => k.startsWith(PREFIX)); } catch (e) { /* not allowed here: nothing is kept */ }
  for (const k of keys)
    try { const c = clean(JSON.parse(stored(k))); chats.set(c.id, c); } catch (e) { /* not ours */ }
}
function fresh() {
  let last = {};
  try { last = JSON.parse(stored(LAST)) || {}; } catch (e) { /* none */ }
  return { ...clean({ ...last, messages: [] }), title: "New chat" };
}
function exportChats(list) {
  const url = URL.createObjectURL(new Blob([JSON.stringify({ format: "expertd-chat", version: 1, conversations: list }, null, 1)], { type: "application/json" }));
  el("a", { href: url, download: list.length === 1 ? list[0].title.replace(/[^\p{L}\p{N} _-]/gu, "").trim().slice(0, 60) + ".json" : "conversations.json" }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60000);
}
async function importChats(file) {
  try {
    const json = JSON.parse(await file.text()), added = (Array.isArray(json.conversations) ? json.conversations : [json]).map(clean);
    for (const c of added) {
      if (chats.has(c.id)) c.id = newId();
      chats.set(c.id, c);
      save(c);
    }
    drawList();
    if (added.length) open(added[0]);
    toast(added.length === 1 ? "1 conversation added" : `${added.length} conversations added`);
  } catch (e) {
    toast(`'${file.name}' cannot be read: ${e.message}`);
  }
}

// --- asking the server ---------------------------------------------------------------------------------------------------------------------
const BASE = location.pathname.replace(/chat\/?$/, "");  // also behind a proxy's prefix

function request(c, more) {
  const messages = c.messages.filter(m => m.role === "user" || m.content).map(m => ({ role: m.role, content: m.content }));
  if (c.system.trim()) messages.unshift({ role: "system", content: c.system });
  const body = { messages, stream: true, stream_options: { include_usage: true }, timings: true, ...more };
  for (const [name, value] of Object.entries(c.settings))
    body[name] = name === "stop" ? String(value).split("\n").filter(Boolean) : name === "enable_thinking" ? value === "yes" : value;
  return JSON.stringify(body);
}
function pause(seconds, signal) {
  return new Promise((done, fail) => {
    const timer = setTimeout(done, 1000 * seconds);
    signal.addEventListener("abort", () => { clearTimeout(timer); fail(new Error("stopped")); }, { once: true });
  });
}
function bearer(key) {  // a header holds bytes, which fetch takes one a character: UTF-8, as the server's own keys are
  return "Bearer " + Array.from(new TextEncoder().encode(key.replace(/[\0-\x08\n-\x1f\x7f]/g, "")), b => String.fromCharCode(b)).join("");
}
async function ask(body, m, signal, changed) {  // the answer's stream, after as many tries as the server asks for
  for (;;) {
    const key = stored(KEY) || apiKey, headers = { "Content-Type": "application/json" };
    if (key) headers.Authorization = bearer(key);
    let r;
    try {
      r = await fetch(BASE + "v1/chat/completions", { method: "POST", headers, body, signal, cache: "no-store" });
    } catch (e) {
      if (!signal.aborted) poll();
      throw new Error(`The server cannot be reached (${e.message}).`);
    }
    if (r.ok) return r;
    const json = await r.json().catch(() => null), words = string(json?.error?.message) || `The server answered ${r.status} ${r.statusText}.`;
    const after = r.headers.get("Retry-After");
    if (!after || r.status !== 429 && r.status !== 503) throw Object.assign(new Error(words), { status: r.status });
    for (let s = Math.min(+after || 5, 600); s > 0; s--) {
      m.waiting = `${words}. Trying again in ${s} s.`;
      changed();
      await pause(1, signal);
    }
    m.waiting = "";
    changed();
  }
}
async function read(response, m, changed) {
  const reader = response.body.getReader(), utf8 = new TextDecoder(), started = performance.now();
  let rest = "", usage, timings, rested = started;
  const summary = () => {
    if (!usage) return;
    const n = usage.completion_tokens, cached = usage.prompt_tokens_details?.cached_tokens, rate = timings?.predicted_per_second;
    m.stats = [`${n} token${n === 1 ? "" : "s"}`, n > 1 && rate && `${rate.toFixed(rate < 10 ? 1 : 0)} tokens/s`,
      `prompt ${usage.prompt_tokens}` + (cached ? ` (${cached} cached)` : ""), context && `context ${Math.round(100 * usage.total_tokens / context)} %`].filter(Boolean).join(" · ");
  };
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Error("The connection broke off before the answer was complete.");
    if (performance.now() - rested > 50 && !document.hidden) {  // reading what is there already leaves no time to draw and to press a button
      await new Promise(f => setTimeout(f));
      rested = performance.now();
    }
    const lines = (rest + utf8.decode(value, { stream: true })).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data:")) continue;  // heartbeats and blank lines
      const data = line.slice(5).trim();
      if (data === "[DONE]") return summary();
      const event = JSON.parse(data), choice = event.choices?.[0];
      if (event.error) throw Object.assign(new Error(string(event.error.message)), { status: 0 });
      usage = event.usage || usage;
      timings = event.timings || timings;
      m.reasoning += choice?.delta?.reasoning_content || "";
      if (m.reasoning && !m.content) m.thought = (performance.now() - started) / 1000;
      m.content += choice?.delta?.content || "";
      m.finish = choice?.finish_reason || m.finish;
    }
    changed();
  }
}
async function run(c, more) {  // lets the model write c's last message, or go on with it
  const m = c.messages.at(-1), stop = new AbortController(), changed = () => refresh(m);
  const body = request(c, more);  // before the message is marked as being written
  let saved = 0;
  Object.assign(m, { error: "", status: 0, finish: "", stats: "", waiting: "", running: true });
  runs.set(c, stop);
  save(c);
  drawList();
  drawButtons();
  changed();
  say("The model is answering.");
  try {
    const response = await ask(body, m, stop.signal, changed);
    await read(response, m, () => {
      changed();
      if (performance.now() - saved > 2000) { save(c); saved = performance.now(); }
    });
    say(`The answer: ${m.content.slice(0, 2000)}`);
  } catch (e) {
    if (stop.signal.aborted) m.finish = "stopped";
    else Object.assign(m, { error: e.message || "The answer failed.", status: e.status || 0 });
    say(m.error || "Stopped.");
  }
  stop.abort();  // what still comes is not read
  if (runs.get(c) === stop) runs.delete(c);  // a message that was edited has begun another
  Object.assign(m, { running: false, waiting: "" });
  save(c);
  drawList();
  drawButtons();
  changed();
}
function answer(c) {
  c.messages.push({ role: "assistant", content: "", reasoning: "" });
  c.time = Date.now();
  chats.set(c.id, c);
  run(c);
  if (c === current) showAll();
}
function again(c) {
  c.messages.pop();
  answer(c);
}
function send(c, text) {
  if (!c.messages.length) {
    c.title = text.trim().replace(/\s+/g, " ").slice(0, 60);
    history.replaceState(null, "", "#" + c.id);
  }
  c.messages.push({ role: "user", content: text });
  answer(c);
}
async function poll() {  // is the model there?
  let wait = 15000, words, state, h = {};
  try {
    const r = await fetch(BASE + "health", { cache: "no-store" });
    h = await r.json();
    state = h.status;
    words = state === "loading" ? `The model is loading${h.what ? ": " + h.what : ""}.` : state === "failed" ? `The model could not be loaded: ${h.reason}` : state === "draining" ? "The server is shutting down." : "";
    if (!r.ok) wait = 1000;
  } catch (e) {
    state = "not reachable";
    words = "The server does not answer.";
    wait = 3000;
  }
  if (h.model) $("model").textContent = h.model;
  context = h.engine?.model?.max_model_len || context;
  $("model").title = context ? `${context.toLocaleString("en")} tokens of context` : "";
  const known = typeof h.progress === "number";
  $("phase").textContent = state + (known ? ` ${Math.round(100 * h.progress)} %` : "");
  $("phase").style.color = `var(--${state === "ready" ? "ok" : state === "loading" ? "warn" : "bad"})`;
  $("notice").hidden = !words;
  $("what").textContent = words;
  $("progress").hidden = !known;
  if (known) $("progress").value = h.progress;
  const hello = $("log").querySelector(".hello b");
  if (hello) hello.textContent = $("model").textContent;
  clearTimeout(pollTimer);  // one at a time, though an answer that failed asks between
  pollTimer = setTimeout(poll, document.hidden ? 15000 : wait);
}

// --- what is seen --------------------------------------------------------------------------------------------------------------------------
const views = new Map();  // message -> what draws it
const due = new Set();
let atEnd = true, toastTimer = 0, frame = 0;

const icon = name => $("icons").content.querySelector(`[data-name=${name}]`).cloneNode(true);
const say = text => { $("say").textContent = text; };
function tool(name, label, onclick, className = "") {
  const b = el("button", { type: "button", className: "icon " + className, title: label, onclick }, icon(name));
  b.setAttribute("aria-label", label);
  return b;
}
function toast(text, label, action) {
  clearTimeout(toastTimer);
  $("toast").replaceChildren(text, ...(label ? [el("button", { onclick: () => { $("toast").replaceChildren(); action(); } }, label)] : []));
  toastTimer = setTimeout(() => $("toast").replaceChildren(), 8000);
}
async function copy(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch (e) {  // over plain HTTP browsers have no clipboard for pages, but this
    const area = el("textarea", { value: text, className: "unseen" });
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
    button.focus();
  }
  const before = [...button.childNodes];
  button.replaceChildren(button.classList.contains("icon") ? icon("done") : "Copied");
  say("Copied.");
  setTimeout(() => button.replaceChildren(...before), 1200);
}
function refresh(m) {  // at the next frame, however many tokens come until then
  due.add(m);
  if (!frame) frame = requestAnimationFrame(() => {
    frame = 0;
    due.forEach(x => views.get(x)?.());
    due.clear();
    toEnd();
  });
}
function toEnd() {
  if (atEnd) $("log").scrollTop = $("log").scrollHeight;
  $("down").hidden = atEnd;
}
function viewUser(c, m) {
  const article = el("article", { className: "user" }), bubble = el("div", { className: "bubble" }, m.content);
  article.setAttribute("aria-label", "You");
  const tools = el("div", { className: "tools" }, tool("copy", "Copy", e => copy(m.content, e.currentTarget)), tool("edit", "Edit and send again", () => {
    const area = el("textarea", { value: m.content, rows: Math.min(12, m.content.split("\n").length + 1) });
    area.setAttribute("aria-label", "Edit the message");
    const back = () => { article.replaceChildren(bubble, tools); tools.lastChild.focus(); };
    const resend = () => {
      if (!area.value.trim()) return;
      runs.get(c)?.abort();
      c.messages.length = c.messages.indexOf(m);
      send(c, area.value);
      $("input").focus();
    };
    area.onkeydown = e => {
      if (e.key === "Escape") back();
      else if (isEnter(e)) resend();
      else return;
      e.preventDefault();
      e.stopPropagation();
    };
    article.replaceChildren(el("div", { className: "editor" }, area,
      el("div", { className: "row" }, el("button", { type: "button", onclick: back }, "Cancel"), el("button", { type: "button", className: "main", onclick: resend }, "Send"))));
    area.focus();
  }));
  article.append(bubble, tools);
  return article;
}
function viewFault(c, m) {
  const box = el("div", { className: "fault" }, el("b", {}, m.status ? `Error ${m.status} ` : "Error "), m.error);
  box.setAttribute("role", "alert");
  if (c.messages.at(-1) !== m) return box;
  if (m.status !== 401) {
    box.append(el("div", { className: "row" }, el("button", { type: "button", onclick: () => again(c) }, "Try again")));
    return box;
  }
  const input = el("input", { type: "password", autocomplete: "off", required: true, maxLength: 512 }), form = el("form", { className: "row" },
    el("label", {}, "API key", input), el("button", { className: "main" }, "Save and try again"));
  form.onsubmit = e => {
    e.preventDefault();
    keep(KEY, apiKey = input.value.trim());
    again(c);
    $("input").focus();
  };
  box.append(form);
  if (!touch()) requestAnimationFrame(() => input.focus());
  return box;
}
function viewAnswer(c, m) {
  const article = el("article", { className: "answer" }), thoughts = el("div", { className: "text" }), text = el("div", { className: "text" });
  const summary = el("summary"), details = el("details", { hidden: true }, summary, thoughts), foot = el("div");
  const shownThoughts = new Markdown(thoughts), shownText = new Markdown(text);
  article.setAttribute("aria-label", "Answer");
  article.append(details, text, foot);
  let drawn = "";
  const draw = () => {
    article.setAttribute("aria-busy", String(!!m.running));
    details.hidden = !m.reasoning;
    summary.textContent = m.running && !m.content ? "Thinking…" : m.thought >= 1 ? `Thought for ${Math.round(m.thought)} s` : "Thoughts";
    if (m.reasoning && details.open) shownThoughts.update(m.reasoning);
    shownText.update(m.content);
    const state = JSON.stringify([m.running, m.waiting, m.error, m.finish, m.stats, !m.content, !m.reasoning]);
    if (state === drawn) return;  // the buttons stay while text comes, so that they can be pressed
    drawn = state;
    foot.replaceChildren();
    if (m.running) {
      if (m.waiting || !m.content && !m.reasoning) foot.append(el("div", { className: "wait" }, m.waiting || "Reading the prompt…"));
      return;
    }
    if (m.error) foot.append(viewFault(c, m));
    const ended = { length: "cut at the token limit", stopped: "stopped" }[m.finish], tools = el("div", { className: "tools" });
    if (m.content) tools.append(tool("copy", "Copy", e => copy(m.content, e.currentTarget)));
    if (!m.error) tools.append(tool("again", "Answer again", () => again(c), "last"));
    if (m.content && (ended || m.error)) tools.append(tool("more", "Go on writing", () => run(c, { add_generation_prompt: false, continue_final_message: true }), "last"));
    const parts = [...(m.stats || "").split(" · "), ended].filter(Boolean);
    tools.append(el("span", {}, ...parts.flatMap((part, i) => [i ? " · " : "", el("i", {}, part)])));
    foot.append(tools);
  };
  details.ontoggle = draw;
  views.set(m, draw);
  draw();
  return article;
}
function showAll() {
  views.clear();
  $("log").replaceChildren(...current.messages.map(m => m.role === "user" ? viewUser(current, m) : viewAnswer(current, m)));
  if (current.system.trim()) $("log").prepend(el("button", { className: "system", onclick: openSettings }, "System: " + current.system));
  if (!current.messages.length) $("log").append(el("div", { className: "hello" }, el("b", {}, $("model").textContent), "Conversations stay in this browser."));
  document.title = current.title + " · expertd";
  if (document.activeElement === document.body && !touch()) $("input").focus();  // what had the focus has gone
  atEnd = true;
  toEnd();
  drawList();
  drawButtons();
}
function keepDraft() {
  if (!current || current.draft === $("input").value) return;
  current.draft = $("input").value;
  save(current);
}
function drawButtons() {
  const running = runs.has(current), b = $("send"), label = running ? "Stop" : "Send";
  b.disabled = !running && !$("input").value.trim();
  if (b.getAttribute("aria-label") === label && b.firstChild) return;
  b.setAttribute("aria-label", label);
  b.title = running ? "Stop (Esc)" : "Send (Enter)";
  b.replaceChildren(icon(running ? "stop" : "send"));
}
function grow() {
  const t = $("input");
  t.style.height = "auto";
  t.style.height = t.scrollHeight + "px";
  drawButtons();
}
function open(c) {
  keepDraft();
  current = c;
  const hash = chats.has(c.id) ? "#" + c.id : "";
  if (location.hash !== hash) history.pushState(null, "", hash || location.pathname);
  $("input").value = c.draft;
  drawer(false);
  showAll();
  grow();
}
function remove(c) {
  runs.get(c)?.abort();
  chats.delete(c.id);
  keep(PREFIX + c.id, null);
  if (c === current) { history.replaceState(null, "", location.pathname); current = null; open(fresh()); } else drawList();
  toast(`'${c.title}' is deleted`, "Undo", () => { chats.set(c.id, c); save(c); open(c); });
}
function rename(c, li) {
  const input = el("input", { value: c.title, maxLength: 200 });
  input.setAttribute("aria-label", "Title");
  input.onkeydown = e => {
    if (e.key === "Escape") input.value = c.title;
    if (e.key !== "Escape" && e.key !== "Enter") return;
    e.stopPropagation();
    input.blur();
  };
  input.onblur = () => {
    input.onblur = null;
    input.remove();
    c.title = input.value.trim() || c.title;
    save(c);
    drawList();
    document.title = current.title + " · expertd";
  };
  li.replaceChildren(input);
  input.select();
}
function drawList() {
  if ($("list").querySelector("input")) return;  // a title is being typed
  $("list").replaceChildren(...[...chats.values()].sort((a, b) => b.time - a.time).map(c => {
    const title = el("button", { className: "open", title: c.title, onclick: () => open(c) }, c.title);
    const li = el("li", { className: (c === current ? "current " : "") + (runs.has(c) ? "busy" : "") }, title);
    if (c === current) title.setAttribute("aria-current", "page");
    li.append(tool("edit", "Rename", () => rename(c, li)), tool("save", "Export", () => exportChats([c])), tool("delete", "Delete", () => remove(c)));
    return li;
  }));
}
function drawer(shown) {
  document.body.classList.toggle("drawer", shown);
  $("menu").setAttribute("aria-expanded", String(shown));
}
const touch = () => matchMedia("(pointer: coarse)").matches;
// On a touch screen's keyboard Enter is the only way to a new line; 229 is a key of an input method.
const isEnter = e => e.key === "Enter" && !e.shiftKey && !e.isComposing && e.keyCode !== 229 && !touch();

function openSettings() {
  const inputs = FIELDS.map(([name, label, low, high]) => {
    const value = current.settings[name] ?? "", input = Array.isArray(low) ? el("select", {}, ...low.map(v => el("option", { value: v, selected: v === value }, v || "default")))
      : low === undefined ? el("textarea", { value, placeholder: "none", rows: 1 })
      : el("input", { type: "number", min: low, max: high ?? "", step: WHOLE.includes(name) ? 1 : "any", value, placeholder: "default" });
    input.name = name;
    return el("label", {}, label, input);
  });
  $("system").value = current.system;
  $("fields").replaceChildren(...inputs.splice(0, SHOWN_FIELDS));
  $("more").open = FIELDS.slice(SHOWN_FIELDS).some(([name]) => name in current.settings);
  $("more").lastChild.replaceChildren(...inputs);
  $("forget").hidden = !stored(KEY);
  $("settings").showModal();
}
function takeSettings() {
  current.system = $("system").value;
  current.settings = {};
  for (const input of $("settings").querySelectorAll(".fields [name]"))
    if (input.value.trim()) current.settings[input.name] = input.type === "number" ? input.valueAsNumber : input.value;
  keep(LAST, JSON.stringify({ system: current.system, settings: current.settings }));
  save(current);
  showAll();
}

function listen() {
  for (const b of document.querySelectorAll("[data-icon]")) b.prepend(icon(b.dataset.icon));
  $("input").oninput = grow;
  $("input").onkeydown = e => { if (isEnter(e)) { e.preventDefault(); if (!runs.has(current)) $("composer").requestSubmit(); } };
  $("composer").onsubmit = e => {
    e.preventDefault();
    const text = $("input").value;
    if (runs.has(current)) { runs.get(current).abort(); return; }
    if (!text.trim()) return;
    $("input").value = current.draft = "";
    grow();
    send(current, text);
  };
  document.onkeydown = e => {
    if (e.key !== "Escape" || $("settings").open) return;
    if (document.body.classList.contains("drawer")) { drawer(false); $("menu").focus(); } else runs.get(current)?.abort();
  };
  $("log").onscroll = () => {
    atEnd = $("log").scrollHeight - $("log").scrollTop - $("log").clientHeight < 60;
    $("down").hidden = atEnd;
  };
  $("log").onclick = e => {
    const b = e.target.closest(".copy");
    if (b) copy(b.closest(".code").querySelector("code").textContent, b);
  };
  $("down").onclick = () => { atEnd = true; toEnd(); };
  $("new").onclick = () => { open(fresh()); if (!touch()) $("input").focus(); };
  $("menu").onclick = () => { drawer(true); $("hide").focus(); };
  $("hide").onclick = $("shade").onclick = () => drawer(false);
  $("options").onclick = openSettings;
  $("settings").onsubmit = e => { if (e.submitter?.value === "save") takeSettings(); };
  $("forget").onclick = () => { keep(KEY, null); apiKey = ""; $("forget").hidden = true; toast("The API key is forgotten"); };
  $("export").onclick = () => exportChats([...chats.values()]);
  $("import").onclick = () => $("file").click();
  $("file").onchange = () => { if ($("file").files[0]) importChats($("file").files[0]); $("file").value = ""; };
  addEventListener("popstate", () => open(chats.get(location.hash.slice(1)) || fresh()));
  addEventListener("resize", toEnd);
  addEventListener("pagehide", () => { keepDraft(); runs.forEach((_, c) => save(c)); });
  addEventListener("storage", e => {  // another tab's doing
    if (!e.key?.startsWith(PREFIX)) return;
    const id = e.key.slice(PREFIX.length), old = chats.get(id);
    if (old && runs.has(old)) return;
    chats.delete(id);
    try { if (e.newValue) chats.set(id, clean(JSON.parse(e.newValue))); } catch (x) { /* not ours */ }
    if (old && old === current && chats.has(id)) { current = chats.get(id); showAll(); } else drawList();
  });
}

loadAll();
listen();
$("status").href = BASE;
fetch(BASE, { method: "HEAD" }).then(r => { $("status").hidden = !r.ok; }, () => {});
open(chats.get(location.hash.slice(1)) || fresh());
poll();
