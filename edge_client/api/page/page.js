// The page of the edge daemon: asks for texts, shows who wrote them, and draws the tree of guesses.
// No framework, no other host. What a model writes only ever becomes text nodes.
"use strict";

const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const calm = matchMedia("(prefers-reduced-motion: reduce)");
const KEY = "forerun-token", TALK = "forerun-talk"; // in the tab's own storage, which a reload keeps

function make(tag, className, text) {
  const found = document.createElement(tag);
  if (className) found.className = className;
  if (text !== undefined) found.textContent = text;
  return found;
}

function draw(tag, className, parent) {
  const found = document.createElementNS(SVG, tag);
  if (className) found.setAttribute("class", className);
  parent.append(found);
  return found;
}

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
const shown = (value, digits) => value.toLocaleString("en", {
  minimumFractionDigits: digits, maximumFractionDigits: digits,
});

// The daemon ------------------------------------------------------------------------------------------------

// The token comes behind the address's #, which browsers do not send, and leaves the address bar at once.
function takeToken() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) sessionStorage.setItem(KEY, given);
  if (location.hash) history.replaceState(null, "", location.pathname);
}

class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function ask(path, { body, signal } = {}) {
  const token = sessionStorage.getItem(KEY);
  const headers = token ? { authorization: `Bearer ${token}` } : {};
  if (body !== undefined) headers["content-type"] = "application/json";
  const response = await fetch(path, {
    method: body === undefined ? "GET" : "POST",
    body: body === undefined ? undefined : JSON.stringify(body),
    headers, signal, credentials: "omit", cache: "no-store", referrerPolicy: "no-referrer",
  });
  if (response.ok) return response;
  let message = `${response.status} ${response.statusText}`;
  try {
    message = (await response.json()).error.message;
  } catch { /* not the daemon's own words: the status must do */ }
  if (response.status === 401) askForToken(token ? message : "");
  throw new Refused(response.status, message);
}

// The objects of a stream of server-sent events, to its [DONE] or its end.
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const parts = (rest + value).split("\n\n");
      rest = parts.pop();
      for (const part of parts) {
        const line = part.split("\n").find((each) => each.startsWith("data: "));
        if (line === undefined) continue; // a comment that keeps the connection alive
        if (line === "data: [DONE]") return;
        yield JSON.parse(line.slice(6));
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

function askForToken(problem) {
  $("desk").hidden = true;
  $("gate").hidden = false;
  $("gate-problem").textContent = problem;
  $("gate-token").value = "";
  $("gate-token").focus();
  showMode("locked", problem ? "the token is not this daemon's" : "the token is missing");
}

// Mode ------------------------------------------------------------------------------------------------------

const MODES = {
  ahead: ["Running ahead", "this device guesses, the server decides"],
  "server-only": ["Server only", "the server writes alone"],
  "device-only": ["Device only", "no server is there, this device writes alone"],
  waiting: ["Waiting", "no server is there"],
  away: ["No connection", ""],
  locked: ["Locked", ""],
};

function showMode(mode, why) {
  const place = $("mode"), [word, usual] = MODES[mode] ?? [mode, ""];
  if (place.dataset.mode !== mode) {
    place.dataset.mode = mode;
    $("mode-word").textContent = word;
    place.classList.remove("changed");
    void place.offsetWidth; // begins the animation anew
    place.classList.add("changed");
  }
  if ($("mode-why").textContent !== (why || usual)) $("mode-why").textContent = why || usual;
}

// Gauges ----------------------------------------------------------------------------------------------------

const GAUGES = [
  { name: "rtt", label: "Round trip", unit: "ms", digits: 0 },
  { name: "speed", label: "Speed", unit: "tokens/s", digits: 0 },
  { name: "speedup", label: "Estimated speed-up", unit: "×", digits: 2 },
  { name: "rate", label: "Guessed right", unit: "%", digits: 0 },
  { name: "length", label: "Tokens per server step", unit: "", digits: 2 },
  { name: "saved", label: "Server steps saved", unit: "%", digits: 0 },
];
const KEPT = 60; // values of a sparkline

class Gauge {
  constructor({ name, label, unit, digits }) {
    this.digits = digits;
    this.values = [];
    const box = make("div", "gauge");
    const number = make("dd", "number");
    this.number = make("span", "value", "–");
    this.number.id = `gauge-${name}`;
    number.append(this.number, make("span", "unit", unit));
    const picture = make("dd");
    const svg = draw("svg", "", picture);
    svg.setAttribute("viewBox", "0 0 72 26");
    svg.setAttribute("preserveAspectRatio", "xMaxYMid meet");
    svg.setAttribute("aria-hidden", "true");
    this.line = draw("polyline", "", svg);
    this.end = draw("circle", "", svg);
    this.end.setAttribute("r", "0");
    box.append(make("dt", "", label), number, picture);
    $("gauges").append(box);
  }

  show(value) {
    if (!isNumber(value)) return;
    this.number.textContent = shown(value, this.digits);
    this.values.push(value);
    if (this.values.length > KEPT) this.values.shift();
    const low = Math.min(...this.values), high = Math.max(...this.values);
    const span = Math.max(high - low, Math.abs(high) * 0.2, 1e-9), middle = (high + low) / 2;
    const points = this.values.map((each, at) => [
      this.values.length > 1 ? 70 * at / (this.values.length - 1) : 70, 13 - 20 * (each - middle) / span,
    ]);
    this.line.setAttribute("points", points.map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`).join(" "));
    const [x, y] = points.at(-1);
    this.end.setAttribute("cx", x);
    this.end.setAttribute("cy", y);
    this.end.setAttribute("r", "2.2");
  }

  clear() {
    this.values = [];
    this.number.textContent = "–";
    this.line.setAttribute("points", "");
    this.end.setAttribute("r", "0");
  }
}

const gauges = {};

// Tokens that the server decided. A guess was right if it was among them and had been sent in time.
const decided = (figures) => figures.tokens - figures.device_tokens;

function showFigures(figures, latestRtt) {
  const byTarget = decided(figures);
  gauges.rtt.show(latestRtt || figures.rtt_p50_ms || undefined);
  if (figures.target_steps) {
    gauges.length.show(figures.acceptance_length);
    if (byTarget > 0) gauges.saved.show(Math.max(0, 100 * (1 - figures.target_steps / byTarget)));
  }
  if (figures.proposed && byTarget > 0) gauges.rate.show(100 * figures.accepted / byTarget);
  if (figures.estimated_speedup) gauges.speedup.show(figures.estimated_speedup);
}

// The text --------------------------------------------------------------------------------------------------

// Finds the code in a text while it streams: blocks between fences of backticks, and inline code. Each piece stays
// a text node in the order of the text; the backticks themselves are hidden once their meaning is plain.
class Markup {
  constructor(cursor) {
    this.cursor = cursor; // an element; the next piece goes before it, and it moves into code and out again
    this.line = ""; // of the text, since the last line break
    this.nodes = []; // of that line
    this.ticks = null; // backticks in a row that may go on: {size, nodes}
    this.inline = null; // code that is not closed yet: {box, size, nodes, fence}
    this.block = null; // between fences: {box, size, text, tail}
  }

  put(text, origin) {
    for (const part of text.match(/`+|\n|[^`\n]+/g) ?? []) {
      if (part === "\n") this.breakLine();
      else if (this.block) this.putInBlock(part, origin);
      else if (part[0] === "`") this.tick(part, origin);
      else {
        this.settle();
        this.add(part, origin);
      }
    }
  }

  // Indents bear no marks.
  add(part, origin) {
    const nodes = part.split(/(\s{2,})/).filter(Boolean).map((piece) => (
      piece.length > 1 && !piece.trim() ? document.createTextNode(piece) : make("span", origin, piece)
    ));
    this.cursor.before(...nodes);
    this.line += part;
    this.nodes.push(...nodes);
    return nodes;
  }

  tick(part, origin) {
    this.ticks ??= { size: 0, nodes: [] };
    this.ticks.size += part.length;
    this.ticks.nodes.push(...this.add(part, origin));
  }

  // Backticks in a row have come to their end: they open code, close it, or stand for themselves.
  settle() {
    const { ticks, inline } = this;
    this.ticks = null;
    if (!ticks) return;
    if (!inline) {
      this.inline = { ...ticks, box: make("code"), fence: /^\s*`{3,}$/.test(this.line) };
      this.cursor.before(this.inline.box);
      this.inline.box.append(this.cursor);
    } else if (ticks.size === inline.size) {
      inline.box.after(this.cursor);
      this.inline = null;
    } else {
      inline.fence = false; // after a fence stands a language, which has no backtick
      return;
    }
    for (const each of ticks.nodes) each.classList.add("tick");
  }

  breakLine() {
    this.settle();
    if (this.block) this.breakCode();
    else if (this.inline?.fence) this.open(this.inline);
    else {
      this.undo();
      this.cursor.before("\n");
    }
    this.line = "";
    this.nodes = [];
  }

  // Inline code ends with its line. What is not closed by then was none.
  undo() {
    if (!this.inline) return;
    const { box, nodes } = this.inline;
    box.after(this.cursor);
    box.replaceWith(...box.childNodes);
    for (const each of nodes) each.classList.remove("tick");
    this.inline = null;
  }

  // The line was a fence: it becomes the head of a block.
  open({ box, size }) {
    const block = { box: make("div", "block"), size, text: "", tail: null };
    const head = make("div", "block-head"), language = make("span"), pre = make("pre"), code = make("code");
    box.replaceWith(block.box);
    language.append(...this.nodes, "\n");
    head.append(language, copyButton("code", () => block.text));
    pre.tabIndex = 0; // long lines are scrolled with the arrow keys
    pre.setAttribute("role", "group");
    pre.setAttribute("aria-label", "Code");
    code.append(this.cursor);
    pre.append(code);
    block.box.append(head, pre);
    this.block = block;
    this.inline = null;
  }

  putInBlock(part, origin) {
    const { block } = this;
    if (block.tail) block.tail.replaceWith(...block.tail.childNodes); // it may go on, and be no fence
    block.tail = null;
    this.add(part, origin);
    const fence = this.line.trim();
    if (fence.length < block.size || /[^`]/.test(fence)) return;
    block.tail = make("span", "tick");
    this.nodes[0].before(block.tail);
    block.tail.append(...this.nodes);
  }

  breakCode() {
    const { block } = this;
    if (block.tail) {
      block.tail.append("\n");
      block.box.after(this.cursor);
      this.block = null;
    } else {
      this.cursor.before("\n");
      block.text += `${this.line}\n`;
    }
  }

  end() {
    this.settle();
    this.undo();
    if (this.block && !this.block.tail) this.block.text += this.line;
  }
}

// All that a reload needs of an answer: `runs` are [text, origin], `notes` are [text, class].
const begin = (kind, asked) => ({ kind, asked, thought: "", runs: [], notes: [], ended: false });
const textOf = (entry) => entry.runs.map(([text]) => text).join("");

// One answer as it is written: what stays, then the draft's guess, which may be taken back.
class Answer {
  constructor(entry) {
    this.entry = entry;
    this.count = 0; // tokens that stay
    this.arrived = []; // [milliseconds, tokens], of the newest second
    this.guess = []; // an element for each guessed token
    this.caret = make("span", "caret");
    this.cursor = make("span");
    this.cursor.append(this.caret);
    this.box = make("div", entry.kind === "chat" ? "answer" : "answer raw");
    this.box.append(this.cursor);
    this.markup = new Markup(this.cursor);
    if (entry.kind === "chat") $("transcript").append(make("p", "asked", entry.asked));
    else this.markup.put(entry.asked, "given");
    $("transcript").append(this.box);
    follow(true);
  }

  // What a reload found.
  restore() {
    const { thought, runs, notes, ended } = this.entry;
    if (thought) this.think(thought, false);
    for (const [text, origin] of runs) this.markup.put(text, origin);
    for (const [text, className] of notes) this.showNote(text, className);
    if (!ended) this.note("The page was reloaded while this was written.");
    this.end();
  }

  // Reasoning stands before the answer, in a box that can be closed.
  think(text, isNew = true) {
    if (!this.thought) {
      const box = make("details", "thought");
      box.open = isNew;
      box.append(make("summary", "", "Reasoning"), this.thought = make("span"));
      this.box.prepend(box);
    }
    this.thought.append(text);
    if (isNew) this.entry.thought += text;
    follow();
  }

  write(runs) {
    for (const [text, origin, tokens] of runs) {
      for (const old of this.guess.splice(0, tokens)) old.remove();
      this.count += tokens;
      const last = this.entry.runs.at(-1);
      if (last?.[1] === origin) last[0] += text;
      else this.entry.runs.push([text, origin]);
      this.markup.put(text, origin);
    }
    const now = performance.now();
    this.arrived.push([now, runs.reduce((sum, run) => sum + run[2], 0)]);
    follow();
  }

  guessOn({ start, texts }) {
    this.retract(start);
    for (const text of texts) {
      const each = make("span", "guess", text);
      this.guess.push(each);
      this.caret.before(each);
    }
    follow();
  }

  retract(start) {
    for (const each of this.guess.splice(Math.max(0, start - this.count))) {
      each.classList.add("retracted");
      setTimeout(() => each.remove(), 1300);
    }
  }

  // Tokens a second over the newest second.
  speed() {
    const now = performance.now();
    while (this.arrived.length && now - this.arrived[0][0] > 1500) this.arrived.shift();
    if (this.arrived.length < 2) return this.count ? 0 : undefined;
    const span = Math.max(now - this.arrived[0][0], 200);
    return 1000 * this.arrived.reduce((sum, [, tokens]) => sum + tokens, 0) / span;
  }

  note(text, className = "note") {
    this.entry.notes.push([text, className]);
    if (this.box.isConnected) this.showNote(text, className); // else its talk was put away
  }

  showNote(text, className) {
    this.last = make("p", className, text);
    $("transcript").append(this.last);
    follow();
  }

  end() {
    this.entry.ended = true;
    this.markup.end();
    this.caret.remove();
    this.retract(this.count);
    if (textOf(this.entry)) (this.last ?? this.box).after(copyButton("text", () => textOf(this.entry)));
    follow();
  }
}

function copyButton(what, text) {
  const button = make("button", "copy", "Copy");
  button.type = "button";
  button.setAttribute("aria-label", `Copy this ${what}`);
  button.addEventListener("click", async () => {
    const done = await copy(text()).then(() => "Copied", () => "Not copied");
    button.textContent = done;
    $("said").textContent = `${done}.`;
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
  return button;
}

// A page that came over plain HTTP from another machine has no clipboard, only the command of old.
async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const put = (event) => {
    event.clipboardData.setData("text/plain", text);
    event.preventDefault();
  };
  document.addEventListener("copy", put, { once: true });
  if (!document.execCommand("copy")) throw new Error("the browser refused");
}

// Keeps the end in sight, unless its reader has scrolled up.
function follow(always = false) {
  const place = $("transcript");
  if (always || place.scrollHeight - place.scrollTop - place.clientHeight < 120) {
    place.scrollTop = place.scrollHeight;
  }
}

function summary(found, finish) {
  const parts = [`${found.tokens} tokens in ${shown(found.elapsed_ms / 1000, 1)} s`];
  const byServer = found.tokens - found.accepted - found.device_tokens;
  if (found.accepted) parts.push(`${found.accepted} drafted here`);
  if (byServer > 0) parts.push(`${byServer} by the server`);
  if (found.device_tokens) parts.push(`${found.device_tokens} by this device alone`);
  if (found.target_steps) parts.push(`${found.target_steps} server steps`);
  if (found.resumes) parts.push(`${found.resumes} reconnects`);
  if (finish === "length") parts.push("ended at its token limit");
  return parts.join(" · ");
}

// The tree --------------------------------------------------------------------------------------------------

const CHAR = 7.25, GAP = 20, DOT_GAP = 9, ROW = 26, DOT_ROW = 13, DOT = 9;
const TIGHT = 0.5; // how close dots may come before texts give way
const MOST_DRAWN = 100; // the likeliest; more cannot be told apart
const LABELLED = [Infinity, 64, 44, 30, 20, 12, 6]; // how many nodes have room for their text

class Tree {
  constructor(svg) {
    this.svg = svg;
    this.edges = draw("g", "", svg);
    this.layer = draw("g", "", svg);
    this.all = new Set(); // every node drawn, dying ones too
    this.nodes = new Map(); // live ones below the tip that are drawn, by id
    this.known = new Set(); // ids of all live ones
    this.trail = []; // committed ones, the tip last
    this.level = 0;
    this.crowdedAt = 0;
    this.flying = 0;
    this.frame = 0;
    this.onCommit = null; // where committed tokens fly to: a function that tells the screen place
    new ResizeObserver(() => this.place()).observe(svg);
    this.counts = { grown: 0, committed: 0, pruned: 0, most: 0 };
  }

  begin() {
    for (const node of [...this.all]) this.remove(node);
    this.nodes.clear();
    this.known.clear();
    this.trail = [];
    this.counts = { grown: 0, committed: 0, pruned: 0, most: 0 };
    this.tell();
  }

  end() {
    this.prune();
    this.tell();
    this.place();
  }

  // Everything that was guessed is void.
  prune() {
    for (const node of this.nodes.values()) this.kill(node);
    this.counts.pruned += this.known.size;
    this.nodes.clear();
    this.known.clear();
  }

  show(snapshot) {
    if (snapshot.begins) this.restart(snapshot);
    for (const [id, text] of snapshot.committed) this.commit(id, text);
    this.takeNodes(snapshot.nodes);
    const sent = snapshot.nodes.reduce((sum, node) => sum + (node[4] ? 1 : 0), 0);
    $("tree-count").textContent = `${snapshot.nodes.length} guesses now, ${sent} sent`;
    this.svg.setAttribute("aria-label", `Speculation tree: ${snapshot.nodes.length} guesses, ${sent} sent`);
    this.tip.id = snapshot.tip[0];
    this.counts.most = Math.max(this.counts.most, snapshot.nodes.length);
    this.tell();
    this.place();
  }

  get tip() { return this.trail.at(-1); }

  // A new session: what was guessed for the one before is void.
  restart(snapshot) {
    this.prune();
    if (!this.tip) {
      this.trail.push(this.add(snapshot.tip[0], null, snapshot.tip[1]));
      this.mark();
    }
  }

  commit(id, text) {
    const wasGuessed = this.known.delete(id);
    let node = this.nodes.get(id);
    if (node) {
      this.nodes.delete(id);
      this.fly(node);
    } else {
      node = this.add(0, this.tip, text);
      node.x = this.tip.x + this.tip.w / 2 + 30;
    }
    if (wasGuessed) this.counts.committed += 1;
    else node.group.classList.add("by-server");
    this.trail.push(node);
    this.mark();
  }

  takeNodes(nodes) {
    const ids = new Set(nodes.map((each) => each[0]));
    for (const id of ids) if (!this.known.has(id)) this.counts.grown += 1;
    for (const id of this.known) if (!ids.has(id)) this.counts.pruned += 1;
    this.known = ids;
    const live = new Map();
    for (const [id, parent, text, logprob, sent] of likeliest(nodes)) {
      const above = live.get(parent) ?? this.tip;
      const node = this.nodes.get(id) ?? this.add(id, above, text);
      node.logprob = logprob;
      if (node.sent !== sent) {
        node.sent = sent;
        node.group.classList.toggle("sent", sent);
        node.edge.classList.toggle("open", !sent);
      }
      live.set(id, node);
    }
    for (const [id, node] of this.nodes) {
      if (live.has(id)) continue;
      if (ids.has(id)) this.remove(node); // there, but no longer among the likeliest
      else this.kill(node);
    }
    this.nodes = live;
  }

  add(id, above, text) {
    const group = draw("g", "node", this.layer);
    const node = {
      id, above, group, label: spelled(text), logprob: 0, sent: null, x: above?.x ?? 0, y: above?.y ?? 0,
      tx: 0, ty: 0, opacity: 0, goal: 1, w: 0, labelled: null, dead: false, below: [],
      edge: draw("path", "edge open", this.edges), rect: draw("rect", "", group),
      words: draw("text", "", group), title: draw("title", "", group),
    };
    node.words.textContent = node.label;
    node.room = Math.max(20, CHAR * width(node.label) + 14);
    this.shape(node, true);
    if (!above) [node.x, node.y] = [this.tipX(), this.svg.clientHeight / 2];
    this.all.add(node);
    return node;
  }

  kill(node) {
    if (!node.labelled) {
      this.remove(node); // a dot that fades is but a flicker
      return;
    }
    node.dead = true;
    node.goal = 0;
    node.opacity = Math.min(node.opacity, 0.5);
    node.group.classList.add("dead");
  }

  remove(node) {
    this.all.delete(node);
    node.group.remove();
    node.edge.remove();
  }

  // Who is the tip, and what lies behind it.
  mark() {
    this.trail.forEach((node, at) => {
      const isTip = at === this.trail.length - 1;
      this.shape(node, true);
      node.group.classList.remove("sent");
      node.group.classList.toggle("tip", isTip);
      node.group.classList.toggle("past", !isTip);
    });
  }

  shape(node, labelled) {
    if (node.labelled === labelled) return;
    node.labelled = labelled;
    node.w = labelled ? node.room : DOT;
    const h = labelled ? 21 : DOT;
    for (const [name, value] of [["x", -node.w / 2], ["y", -h / 2], ["width", node.w], ["height", h], ["rx", h / 2]]) {
      node.rect.setAttribute(name, value);
    }
    node.words.setAttribute("display", labelled ? "inline" : "none");
  }

  tipX() {
    return Math.min(190, this.svg.clientWidth * 0.24);
  }

  // Where everything belongs: columns by depth, rows by branch, the likeliest branch straight ahead.
  place() {
    if (!this.tip) return;
    const order = this.walk();
    this.fit(order);
    this.placeTrail();
    this.wake();
  }

  // Live nodes, parents first, with depth, row and the chance of their path.
  walk() {
    const order = [...this.nodes.values()];
    for (const node of [this.tip, ...order]) node.below = [];
    this.tip.chance = 1;
    this.tip.depth = 0;
    for (const node of order) {
      const above = node.above === this.tip || this.nodes.has(node.above?.id) ? node.above : this.tip;
      node.above = above;
      node.chance = above.chance * Math.exp(Math.min(0, node.logprob));
      node.depth = above.depth + 1;
      above.below.push(node);
    }
    let row = 0;
    const visit = (node) => {
      if (!node.below.length) {
        node.row = row++;
        return;
      }
      node.below.sort((a, b) => b.logprob - a.logprob);
      const [best, ...others] = node.below;
      const upper = others.filter((_, at) => at % 2 === 1), lower = others.filter((_, at) => at % 2 === 0);
      for (const each of [...upper.reverse(), best, ...lower]) visit(each);
      node.row = best.row;
    };
    visit(this.tip);
    this.rows = row;
    return order;
  }

  // Shows as many texts as there is room for, and lets go of that number only when there has been room for a while.
  fit(order) {
    const room = this.svg.clientWidth - this.tipX() - this.tip.w / 2 - 14, height = this.svg.clientHeight - 16;
    const byChance = [...order].sort((a, b) => b.chance - a.chance);
    let level = 0, found;
    for (; level < LABELLED.length; level += 1) {
      found = this.measure(order, new Set(byChance.slice(0, LABELLED[level])));
      if (found.wide + found.narrow * TIGHT <= room && found.height <= height) break;
    }
    level = Math.min(level, LABELLED.length - 1);
    const now = performance.now();
    if (level >= this.level) {
      this.crowdedAt = now;
      this.level = level;
    } else if (now - this.crowdedAt > 1200) {
      this.level = level;
    }
    const chosen = new Set(byChance.slice(0, LABELLED[this.level]));
    found = this.measure(order, chosen);
    const dots = Math.min(1, Math.max(TIGHT, (room - found.wide) / Math.max(1, found.narrow)));
    const all = Math.min(1, room / (found.wide + found.narrow * dots));
    this.put(order, chosen, found, { dots, all, rows: Math.min(1, height / found.height) });
  }

  measure(order, chosen) {
    const columns = [0], rows = new Array(this.rows).fill(DOT_ROW);
    rows[this.tip.row] = ROW;
    for (const node of order) {
      const labelled = chosen.has(node);
      columns[node.depth] = Math.max(columns[node.depth] ?? 0, labelled ? node.room : DOT);
      if (labelled) rows[node.row] = ROW;
    }
    const sum = (values) => values.reduce((total, each) => total + each, 0);
    const [wide, narrow] = [false, true].map((dots) => (
      sum(columns.filter((each) => isDots(each) === dots).map((each) => each + gap(each)))
    ));
    return { columns, rows, wide, narrow, height: sum(rows) };
  }

  // `stretch`: by which columns of dots, then all columns, then rows are moved together.
  put(order, chosen, { columns, rows, height }, stretch) {
    const lefts = [], tops = [];
    let x = this.tipX() + this.tip.w / 2, y = 0;
    columns.forEach((each, depth) => {
      lefts[depth] = x;
      x += (each + gap(each)) * stretch.all * (isDots(each) ? stretch.dots : 1);
    });
    rows.forEach((each, row) => {
      tops[row] = (y + each / 2) * stretch.rows;
      y += each;
    });
    const total = height * stretch.rows, space = this.svg.clientHeight;
    const shift = Math.min(Math.max(space / 2 - tops[this.tip.row], 8 + ROW / 2 - tops[0] - 4), space - total - 8);
    const up = total >= space - 16 ? 8 : shift;
    for (const node of order) {
      this.shape(node, chosen.has(node));
      node.tx = lefts[node.depth] + node.w / 2;
      node.ty = tops[node.row] + up;
      node.goal = node.labelled ? 1 : 0.4 + 0.6 * Math.sqrt(node.chance); // a faint text could not be read
      node.edgeGoal = 0.25 + 0.6 * Math.sqrt(node.chance);
      node.edge.setAttribute("stroke-width", (0.8 + 3 * node.chance).toFixed(2));
      node.title.textContent = `“${node.label}”, ${shown(100 * node.chance, 0)} % likely, ${node.sent ? "sent" : "not sent yet"}`;
    }
    this.tip.ty = tops[this.tip.row] + up;
  }

  placeTrail() {
    let x = this.tipX() + this.tip.w / 2;
    const count = this.trail.length;
    for (let at = count - 1; at >= 0; at -= 1) {
      const node = this.trail[at];
      node.tx = x - node.w / 2;
      node.ty = this.tip.ty;
      x -= node.w + 6;
      node.goal = at === count - 1 ? 1 : x < -10 ? 0 : Math.max(0.7, 1 - 0.1 * (count - 1 - at));
      node.edgeGoal = 0;
    }
    while (this.trail.length > 9) this.trail.shift().goal = 0;
  }

  // A committed guess leaves for the text.
  fly(node) {
    const to = this.onCommit?.();
    if (!to || calm.matches || this.flying > 4 || document.hidden) return;
    const frame = this.svg.getBoundingClientRect();
    const from = { x: frame.left + node.x - node.w / 2, y: frame.top + node.y - 11 };
    if (from.y < 0 || from.y > innerHeight) return;
    const ghost = make("span", "ghost", node.label);
    document.body.append(ghost);
    this.flying += 1;
    const at = (place, scale) => `translate(${place.x.toFixed(1)}px, ${place.y.toFixed(1)}px) scale(${scale})`;
    ghost.animate(
      [{ transform: at(from, 1), opacity: 0.95 }, { transform: at(to, 0.9), opacity: 0.15 }],
      { duration: 460, easing: "cubic-bezier(.5,0,.3,1)" },
    ).finished.finally(() => {
      ghost.remove();
      this.flying -= 1;
    });
  }

  wake() {
    if (this.frame) return;
    this.before = performance.now();
    this.frame = requestAnimationFrame((now) => this.tick(now));
  }

  tick(now) {
    const share = calm.matches ? 1 : 1 - Math.exp(-Math.min(now - this.before, 300) / 70);
    this.before = now;
    let moving = false;
    for (const node of this.all) {
      if (!node.dead || node.above?.dead !== true) {
        node.x += (node.tx - node.x) * (node.dead ? 0 : share);
        node.y += (node.ty - node.y) * (node.dead ? 0 : share);
      }
      node.opacity += (node.goal - node.opacity) * share;
      node.edgeOpacity = (node.edgeOpacity ?? 0) + ((node.dead ? 0 : node.edgeGoal ?? 0) - (node.edgeOpacity ?? 0)) * share;
      if (node.goal === 0 && node.opacity < 0.02) {
        this.remove(node);
        continue;
      }
      moving ||= node.goal === 0 || Math.abs(node.goal - node.opacity) > 0.01 ||
        (!node.dead && Math.abs(node.tx - node.x) + Math.abs(node.ty - node.y) > 0.3);
    }
    for (const node of this.all) this.paint(node);
    this.frame = moving ? requestAnimationFrame((next) => this.tick(next)) : 0;
  }

  paint(node) {
    node.group.setAttribute("transform", `translate(${node.x.toFixed(1)},${node.y.toFixed(1)})`);
    node.group.setAttribute("opacity", node.opacity.toFixed(3));
    const above = node.above;
    if (!above || node.edgeOpacity < 0.01) {
      node.edge.setAttribute("opacity", "0");
      return;
    }
    const x1 = above.x + above.w / 2, x2 = node.x - node.w / 2, bend = Math.max(6, (x2 - x1) * 0.55);
    node.edge.setAttribute("opacity", node.edgeOpacity.toFixed(3));
    node.edge.setAttribute("d", `M${x1.toFixed(1)} ${above.y.toFixed(1)}C${(x1 + bend).toFixed(1)} ` +
      `${above.y.toFixed(1)} ${(x2 - bend).toFixed(1)} ${node.y.toFixed(1)} ${x2.toFixed(1)} ${node.y.toFixed(1)}`);
  }

  tell() {
    for (const [name, value] of Object.entries(this.counts)) this.svg.dataset[name] = value;
  }
}

// The likeliest nodes, parents before children, as they came: a child is never likelier than its parent.
function likeliest(nodes) {
  const worth = new Map();
  for (const [id, parent, , logprob] of nodes) worth.set(id, (worth.get(parent) ?? 0) + Math.min(0, logprob));
  if (nodes.length <= MOST_DRAWN) return nodes;
  const order = nodes.map((node, at) => [worth.get(node[0]), at]).sort((a, b) => b[0] - a[0] || a[1] - b[1]);
  return order.slice(0, MOST_DRAWN).map(([, at]) => at).sort((a, b) => a - b).map((at) => nodes[at]);
}

const isDots = (column) => column === DOT;
const gap = (column) => (isDots(column) ? DOT_GAP : GAP);

// A token as a label: blanks at its ends say nothing here, blanks alone do.
function spelled(text) {
  const plain = text.trim(), most = plain ? 12 : 4;
  const letters = [...(plain || text.replaceAll("\n", "↵").replaceAll(" ", "␣").replaceAll("\t", "⇥") || "∅")];
  return letters.length > most ? `${letters.slice(0, most - 1).join("")}…` : letters.join("");
}

const width = (text) => [...text].reduce((sum, each) => sum + (each.codePointAt(0) > 0x2e80 ? 1.7 : 1), 0);

// Writing ---------------------------------------------------------------------------------------------------

let tree;
let talk = []; // what `begin` made, the newest last
let isLeaving = false; // the page is saved and goes away
let writing = null; // {answer, stop} while a text is written
let latestRtt = 0; // milliseconds
const writers = new Map(); // model -> split, target or draft
const TREE_EMPTY = $("tree-empty").textContent;

function settings() {
  const value = (id) => ($(id).value === "" ? undefined : Number($(id).value));
  return { temperature: value("temperature"), seed: value("seed"), max_tokens: value("max-tokens") ?? -1 };
}

const kind = () => document.querySelector("input[name=kind]:checked").value;

function tellSettings() {
  const { temperature, seed, max_tokens: most } = settings();
  $("settings-summary").textContent = [
    temperature === undefined ? "the server's temperature" : `temperature ${temperature}`,
    seed === undefined ? "any seed" : `seed ${seed}`,
    most < 0 ? "as many tokens as fit" : `at most ${most} tokens`,
  ].join(", ");
  $("prompt").placeholder = kind() === "chat" ? "Message" : "The beginning of a text";
  $("empty").textContent = kind() === "chat" ? "Ask something, and watch who writes the answer." :
    "Begin a text, and watch who writes the rest.";
}

const messages = () => talk.filter((entry) => entry.kind === "chat" && textOf(entry)).flatMap((entry) => [
  { role: "user", content: entry.asked }, { role: "assistant", content: textOf(entry) },
]);

async function start() {
  const text = $("prompt").value;
  if (writing || !text.trim()) return;
  const chat = kind() === "chat";
  const what = { model: $("model").value, stream: true, ...settings(), forerun: { origins: true, revise: true } };
  const body = chat ? { ...what, messages: [...messages(), { role: "user", content: text }] } : { ...what, prompt: text };
  const entry = begin(kind(), text), answer = new Answer(entry), stop = new AbortController();
  talk.push(entry);
  $("empty").hidden = true;
  if (chat) $("prompt").value = "";
  writing = { answer, stop };
  begun();
  const path = chat ? "/v1/chat/completions" : "/v1/completions";
  try {
    await read(await ask(path, { body, signal: stop.signal }), answer, stop);
  } catch (error) {
    if (error.name === "AbortError") answer.note("Stopped.", "figures");
    else answer.note(error.message, "problem");
  }
  ended();
}

// A tab has room for some megabytes: the oldest entries go first.
function save() {
  if (isLeaving) return;
  for (let kept = talk; ; kept = kept.slice(1)) {
    try {
      return sessionStorage.setItem(TALK, JSON.stringify(kept));
    } catch (error) {
      if (!kept.length) return console.warn(error);
    }
  }
}

// The browser then ends the stream, which is no failure to be kept.
function leave() {
  save();
  isLeaving = true;
}

function restore() {
  try {
    talk = JSON.parse(sessionStorage.getItem(TALK)) ?? [];
  } catch { /* not of this page: begin anew */ }
  $("empty").hidden = talk.length > 0;
  for (const entry of talk) new Answer(entry).restore();
}

async function read(response, answer, stop) {
  for await (const chunk of events(response)) {
    if (chunk.error) throw new Error(chunk.error.message);
    const ours = chunk.forerun, choice = chunk.choices?.[0], finish = choice?.finish_reason;
    if (choice?.delta?.reasoning_content) answer.think(choice.delta.reasoning_content);
    const rest = ours?.origins ? "" : choice?.delta?.content ?? choice?.text; // held back: its token was counted
    if (rest) answer.write([[rest, answer.entry.runs.at(-1)?.[1] ?? "server", 0]]);
    if (!ours) continue;
    if (finish) {
      answer.note(summary(ours, finish), "figures");
      showFigures(ours, latestRtt);
      if (ours.proposed) {
        $("tree-count").textContent = `${shown(ours.accepted, 0)} of ${shown(decided(ours), 0)} tokens guessed right, ` +
          `with ${shown(ours.proposed, 0)} guesses`;
      }
      const written = ours.elapsed_ms - ours.waited_ms; // milliseconds
      if (ours.tokens && written > 0) gauges.speed.show(1000 * ours.tokens / written);
      $("said").textContent = `The text has ended. ${summary(ours, finish)}`;
      continue;
    }
    if (ours.notes) {
      for (const note of ours.notes) answer.note(note);
      watch(chunk.id, answer, stop.signal);
    }
    if (ours.mode) showMode(ours.mode, ours.why);
    if (ours.origins) answer.write(ours.origins);
    if (ours.guess) answer.guessOn(ours.guess);
    if (ours.retract !== undefined) answer.retract(ours.retract);
    if (ours.difference) tellDifference(answer, ours.difference);
  }
}

function tellDifference(answer, { place, device, target }) {
  answer.note(`From token ${place + 1} on the server would have gone another way. ` +
    `This device wrote “${device}”, the server writes “${target}”.`);
}

// The tree and the figures, beside the text. That they end early is no harm.
async function watch(id, answer, signal) {
  try {
    const response = await ask(`/v1/sessions/${encodeURIComponent(id)}/tree`, { signal });
    for await (const news of events(response)) {
      if (writing?.answer !== answer) return;
      if (news.tree) {
        $("tree-empty").classList.add("off");
        if (news.tree.rtt_ms) latestRtt = news.tree.rtt_ms;
        tree.show(news.tree);
      }
      if (news.figures) {
        showFigures(news.figures, latestRtt);
        gauges.speed.show(answer.speed());
      }
    }
  } catch { /* the text itself tells what went wrong */ }
}

function begun() {
  latestRtt = 0;
  swapButtons("start", "stop");
  $("tree-empty").classList.remove("off");
  for (const gauge of Object.values(gauges)) gauge.clear();
  tree.begin();
  $("tree-count").textContent = "";
  $("tree-empty").textContent = writers.get($("model").value) === "draft" ?
    "The draft model writes alone, so nobody decides between guesses." : TREE_EMPTY;
  tree.onCommit = () => {
    const place = $("transcript").getBoundingClientRect(), caret = writing?.answer.caret.getBoundingClientRect();
    if (!caret || caret.bottom > place.bottom + 4 || caret.top < place.top || caret.bottom > innerHeight) return null;
    return { x: caret.left - 12, y: caret.top };
  };
}

// The one takes the other's place, and the focus if that had it.
function swapButtons(old, fresh) {
  const hadFocus = document.activeElement === $(old);
  $(fresh).hidden = false;
  if (hadFocus) $(fresh).focus();
  $(old).hidden = true;
}

function ended() {
  writing.answer.end();
  writing = null;
  tree.end();
  swapButtons("stop", "start");
  save();
  look();
}

function clearAll() {
  writing?.stop.abort();
  talk = [];
  save();
  for (const each of [...$("transcript").children]) if (each.id !== "empty") each.remove();
  $("empty").hidden = false;
  $("prompt").focus();
}

// The daemon's state ----------------------------------------------------------------------------------------

const EVERY = 2000; // milliseconds

async function look() {
  if ($("desk").hidden) return;
  try {
    const status = await (await ask("/v1/status")).json();
    if (!writing) showMode(status.mode);
    showParts(status);
    if (status.demo_link && $("link").hidden) findLink();
  } catch (error) {
    if (!(error instanceof Refused)) showMode("away", "The daemon does not answer. Is it still running?");
  }
}

function showParts(status) {
  const parts = [];
  const pairs = Object.entries(status.pairs);
  for (const [name, { verifiers, draft }] of pairs.length ? pairs : [["", status]]) {
    parts.push(...verifiers.map((each) => verifierPart(name, each)));
    parts.push(part(`Draft ${name}`, draft.state, [draft.state, draft.error]));
  }
  $("version").textContent = status.version;
  const fresh = parts.map((each) => each.outerHTML).join("");
  if ($("parts").dataset.told === fresh) return; // nothing changed: what a reader selects stays
  $("parts").dataset.told = fresh;
  $("parts").replaceChildren(...parts);
}

function verifierPart(name, { address, health, rtt_ms: rtt, why }) {
  return part(`Verifier ${name}`, health, [address, health, rtt > 0 ? `${shown(rtt, 0)} ms` : "", why]);
}

function part(title, state, details) {
  const box = make("p", state === "failed" ? "bad" : "");
  box.append(make("strong", "", title.trim()), ` ${details.filter(Boolean).join(", ")}`);
  return box;
}

async function showModels() {
  const { data } = await (await ask("/v1/models")).json();
  const words = { split: "both together", target: "server alone", draft: "device alone" };
  const before = $("model").value;
  const named = data.filter((each) => each.id !== "default"); // it is the first of them
  $("model").replaceChildren(...named.map((each) => {
    const word = words[each.meta?.writer];
    writers.set(each.id, each.meta?.writer);
    const option = make("option", "", word ? `${each.id} (${word})` : each.id);
    option.value = each.id;
    return option;
  }));
  if (data.some((each) => each.id === before)) $("model").value = before;
}

// A target without a chat template only completes texts.
async function tryChat() {
  try {
    await ask("/v1/apply-template", { body: { messages: [{ role: "user", content: "?" }] } });
  } catch (error) {
    if (error.status !== 400) return;
    const [chat, completion] = document.querySelectorAll("input[name=kind]");
    chat.disabled = true;
    completion.checked = true;
    $("chat-hint").textContent = "This target has no chat template, so it completes texts.";
    $("chat-hint").hidden = false;
    tellSettings();
  }
}

// The demo's link -------------------------------------------------------------------------------------------

let wanted = null; // the newest wish that is not sent yet
let sending = false;

// The demonstration's model goes on with a small function.
const DEMO_REQUEST = "# Return the sum of the even numbers in a list.\n";

async function findLink() {
  try {
    showLink(await (await ask("/v1/demo/link")).json());
    if ($("link").hidden && !$("prompt").value && !talk.length) {
      $("prompt").value = DEMO_REQUEST;
      document.querySelector("input[value=completion]").checked = true;
      tellSettings();
    }
    $("link").hidden = false;
  } catch { /* the next look tries again */ }
}

function showLink(link) {
  if (isNumber(link.rtt_ms)) $("link-rtt").value = link.rtt_ms;
  if (isNumber(link.jitter_ms)) $("link-jitter").value = link.jitter_ms;
  $("link-down").checked = Boolean(link.down);
  tellLink();
}

function tellLink() {
  for (const name of ["link-rtt", "link-jitter"]) {
    $(`${name}-value`).textContent = `${$(name).value} ms`;
    $(name).setAttribute("aria-valuetext", `${$(name).value} milliseconds`);
  }
}

// One request at a time, the newest wish last: a slider is quicker than a connection.
async function changeLink() {
  tellLink();
  wanted = { rtt_ms: Number($("link-rtt").value), jitter_ms: Number($("link-jitter").value), down: $("link-down").checked };
  if (sending) return;
  sending = true;
  try {
    while (wanted) {
      const body = wanted;
      wanted = null;
      await ask("/v1/demo/link", { body });
    }
  } catch {
    findLink(); // shows what holds
  }
  sending = false;
}

// The beginning ---------------------------------------------------------------------------------------------

async function open() {
  try {
    await showModels();
  } catch (error) {
    if (error.status === 401) return;
    showMode("away", error.message);
    setTimeout(open, EVERY);
    return;
  }
  $("gate").hidden = true;
  $("desk").hidden = false;
  await Promise.all([tryChat(), look()]);
  if (matchMedia("(hover: hover)").matches) $("prompt").focus();
}

function wire() {
  for (const each of GAUGES) gauges[each.name] = new Gauge(each);
  tree = new Tree($("tree"));
  $("gate-form").addEventListener("submit", (event) => {
    event.preventDefault();
    sessionStorage.setItem(KEY, $("gate-token").value.trim());
    open();
  });
  $("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    start();
  });
  $("prompt").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      start();
    }
  });
  $("stop").addEventListener("click", () => writing?.stop.abort());
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !event.isComposing) writing?.stop.abort();
  });
  addEventListener("beforeunload", save); // a download begins so, too, and leaves nothing
  addEventListener("pagehide", leave);
  addEventListener("pageshow", () => { isLeaving = false; });
  $("clear").addEventListener("click", clearAll);
  for (const id of ["temperature", "seed", "max-tokens"]) $(id).addEventListener("input", tellSettings);
  for (const each of document.querySelectorAll("input[name=kind]")) each.addEventListener("change", tellSettings);
  for (const id of ["link-rtt", "link-jitter", "link-down"]) $(id).addEventListener("input", changeLink);
  setInterval(look, EVERY);
  restore();
  tellSettings();
}

takeToken();
wire();
open();
