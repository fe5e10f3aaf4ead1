// The map: hosts, services, revisions, pods and nodes as one picture, and as a table. Services at rest fold into counted rows.
import { address, asked } from "./address.js";
import { cells, make, number, writeName } from "./charts.js";
import { HEIGHT, folded, path, placed } from "./maplayout.js";
import { STATES, grouped, problemOf, revisionState, share } from "./overview.js";
import { keyed, many } from "./rows.js";

const PERIOD_MS = 5000, WIDE = 700, DOTS_MAX = 6, SPARE_NODES_MAX = 8;
const TITLES = { host: "Hosts", service: "Services", revision: "Revisions", pods: "Pods", node: "Nodes" };
const POD_TONES = { ready: "good", dormant: "sleep", starting: "wait", failing: "bad", ending: "off" };
const READY_TONES = { True: "", False: "bad", Unknown: "wait" };
const sum = (values) => values.reduce((total, value) => total + value, 0);
const svg = (tag, attributes) => { const element = document.createElementNS("http://www.w3.org/2000/svg", tag); for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value); return element; };

export class TrafficMap {
  constructor(root) {
    Object.assign(this, { root, isShown: false, hosts: [], pods: new Map(), state: null, drawn: "", layout: null, current: "", pinned: "", stood: new Set() });
    this.words = make("p", { className: "note", id: "map-words" });
    this.words.setAttribute("role", "status");
    this.lines = svg("svg", { "aria-hidden": "true" });
    this.boxes = make("div");
    this.titles = make("div", { className: "map-titles" });
    this.titles.setAttribute("aria-hidden", "true");
    this.picture = make("div", { className: "map" }, this.titles, this.lines, this.boxes);
    this.picture.setAttribute("role", "group");
    this.picture.setAttribute("aria-label", "Picture of where requests go. Arrow keys move from box to box.");
    this.table = make("tbody");
    const heads = ["Service", "State", "Hosts", "Revisions", "Pods"].map((title) => make("th", { scope: "col", textContent: title }));
    const scroll = make("div", { className: "scroll wide", tabIndex: 0 }, make("table", {}, make("thead", {}, make("tr", {}, ...heads)), this.table));
    scroll.setAttribute("role", "region");
    scroll.setAttribute("aria-label", "Map as a table");
    this.details = make("details", {}, make("summary", { textContent: "Map as a table" }), scroll);
    root.append(make("h2", { id: "map-title", className: "hidden", textContent: "Map", tabIndex: -1 }), this.words, this.picture, this.details);
    this.details.addEventListener("toggle", () => this.#tabulate());
    const boxAt = (event) => event.target.closest?.("[data-key]")?.dataset.key;
    for (const [name, act] of [["mouseover", boxAt], ["focusin", boxAt], ["mouseleave", () => ""], ["focusout", () => ""]]) this.picture.addEventListener(name, (event) => this.#light(act(event) || this.pinned));
    this.boxes.addEventListener("focusin", (event) => this.#hold(boxAt(event)));
    this.boxes.addEventListener("click", (event) => this.#click(boxAt(event)));
    this.boxes.addEventListener("keydown", (event) => this.#move(event));
    new ResizeObserver(() => requestAnimationFrame(() => { if (this.isShown) this.#draw(); })).observe(this.picture);
    setInterval(() => { if (this.isShown && !document.hidden) this.#load(); }, PERIOD_MS);
  }

  show(isShown, state) {
    const isNew = isShown && !this.isShown;
    Object.assign(this, { isShown, state });
    this.root.hidden = !isShown;
    if (isNew) this.#load();
    if (isShown) this.#draw();
  }

  async #load() {
    try {
      const response = await fetch("map"), report = response.ok ? await response.json() : null;
      if (!report) return;
      this.hosts = report.hosts;
      this.pods = byKey(report.pods);
    } catch { return; /* the dashboard is away; the page says so */ }
    if (this.isShown) this.#draw();
  }

  #draw() {
    const width = this.picture.clientWidth, columns = width >= WIDE ? Object.keys(TITLES) : ["service", "revision", "node"];
    const model = this.#model(columns), text = JSON.stringify([model, width]);
    if (text === this.drawn) return;
    this.drawn = text;
    const gap = width >= 1000 ? 60 : width >= WIDE ? 40 : 34, wide = (width - gap * (columns.length - 1)) / columns.length;
    const left = (column) => columns.indexOf(column) * (wide + gap);
    this.layout = placed(model.blocks, model.nodes, columns);
    const { boxes, edges, height } = this.layout, at = new Map(boxes.map((box) => [box.id, box]));
    this.titles.replaceChildren(...columns.map((column) => { const title = make("span", { textContent: TITLES[column] }); title.style.left = `${left(column)}px`; return title; }));
    this.boxes.style.height = `${height}px`;
    keyed(this.boxes, boxes.map((box) => [box.id, { ...box, left: left(box.column), wide: box.isWide ? 2 * wide + gap : wide }]), drawBox, "div");
    for (const [name, value] of [["width", width], ["height", height]]) this.lines.setAttribute(name, value);
    this.lines.replaceChildren(...edges.flatMap((edge) => drawEdge(edge, at.get(edge.from), at.get(edge.to), { left, wide, isNarrow: width < WIDE })));
    if (!at.has(this.current)) this.current = boxes[0]?.id ?? "";
    this.#hold(this.current);
    this.#light(this.boxes.querySelector(":focus")?.closest("[data-key]").dataset.key || this.pinned);
    this.#tabulate();
  }

  // What there is to place: a block for each service, and the nodes.
  #model(columns) {
    const { objects, rows, overview, nodes } = this.state, groups = grouped(objects), { text, state } = overview.wanted;
    const load = (line) => sum((groups.get(line.key)?.revisions ?? []).map(([key]) => (rows[key]?.[0] || 0) + (rows[key]?.[1] || 0)));
    const { open, folds } = folded(overview.matching, { isFiltered: Boolean(text || state), load, opened: asked("open").split(","), stood: this.stood });
    this.stood = new Set(open.map((line) => line.key));
    const block = (line, isIndented) => this.#block(line, groups.get(line.key), columns, isIndented);
    const blocks = open.map((line) => block(line, false));
    for (const fold of folds) {
      blocks.push(this.#fold(fold, fold.lines.flatMap((line) => groups.get(line.key)?.revisions ?? []), columns));
      if (fold.isOpen) blocks.push(...fold.lines.map((line) => block(line, true)));
    }
    return { blocks, nodes: this.#nodes(nodes, columns) };
  }

  // A counted row, with the pods of all its services together.
  #fold({ key, namespace, state, lines, isOpen }, revisions, columns) {
    const [title, tone] = STATES[state], pods = revisions.flatMap(([revision]) => this.pods.get(revision) ?? []), count = sum(pods.map((pod) => pod.count)), fold = { fold: key, isOpen };
    const own = { key: `fold ${key}`, percent: 0, nodes: [...countByNode(pods)], box: { ...fold, text: many(revisions.length, "revision"), note: columns.length < 5 ? `×${count}` : "", tone: "" }, pods: { ...fold, count, text: many(count, "pod"), tone: "" } };
    return { key: `fold ${key}`, hosts: [], revisions: count && !isOpen ? [own] : [], box: { ...fold, text: `${isOpen ? "▾" : "▸"} ${lines.length} ${title.toLowerCase()}`, note: namespace, tone } };
  }

  #block(line, { view, revisions }, columns, isIndented) {
    const { rows } = this.state, tags = new Set(view.traffic.filter((target) => target.tag).map((target) => target.revision));
    const shown = revisions.filter(([key, revision], place) => place === 0 || share(view, revision.name) || tags.has(revision.name) || rows[key]?.[5] || rows[key]?.[6]);
    const own = new Set(shown.map(([key]) => key));
    const hosts = this.hosts.filter((host) => host.namespace === line.namespace && (host.service ? host.service === line.name : host.targets.some((target) => own.has(`${host.namespace}/${target.revision}`))));
    if (line.url && !hosts.some((host) => host.service)) hosts.unshift({ namespace: line.namespace, host: line.host, url: line.url, kind: "Route", service: line.name, tag: "", targets: [], ready: view.ready, reason: "" });
    return {
      key: line.key, isIndented, box: { text: line.name, note: columns.length < 5 ? "" : line.namespace, tone: STATES[line.state][1], href: line.revision && `#${line.revision}`, words: `${STATES[line.state][0]}${line.why ? `: ${line.why}` : ""}` },
      hosts: hosts.map((host) => ({
        id: `${host.namespace}/${host.kind} ${host.tag} ${host.host}`, text: host.host, note: host.tag || (host.kind === "Route" ? "" : "domain"), tone: READY_TONES[host.ready], href: host.url, isLink: true,
        words: [host.kind === "Route" ? (host.tag && `tag ${host.tag}`) : "DomainMapping", host.ready !== "True" && host.reason].filter(Boolean).join(", "), targets: host.targets.map((target) => [`${host.namespace}/${target.revision}`, target.percent]),
      })),
      revisions: shown.map(([key, revision]) => this.#revision(key, revision, view, columns, line)),
    };
  }

  #revision(key, revision, view, columns, line) {
    const [state, tone] = revisionState(revision, this.state.rows[key]), pods = this.pods.get(key) ?? [], count = sum(pods.map((pod) => pod.count));
    const failed = revision.ready === "False" || line.state === "failing" ? problemOf(revision) : null;
    const text = revision.name.startsWith(`${view.name}-`) && columns.length < 5 ? revision.name.slice(view.name.length + 1) : revision.name;
    return {
      key, percent: share(view, revision.name), nodes: [...countByNode(pods)],
      box: { text, note: columns.length < 5 && count ? `×${count}` : "", tone, href: `#${key}`, words: failed ? `${state}: ${failed.message.split("\n")[0]}` : state },
      pods: count || failed ? { count, text: failed ? failed.message.split("\n")[0] : many(count, "pod"), tone: failed ? "bad" : "", dots: pods.map((pod) => [POD_TONES[pod.state], pod.count]), href: `#${key}`, words: pods.map((pod) => `${pod.count} ${pod.state}${pod.node ? ` on ${pod.node}` : ""}`).join(", ") } : null,
    };
  }

  // All nodes with pods, and some of the others. Who sees some namespaces sees only the former, without their state.
  #nodes(nodes, columns) {
    const counts = countByNode([...this.pods.values()].flat());
    const known = new Map((nodes?.lines ?? []).map((node) => [node.name, node]));
    const spare = [...known.keys()].filter((name) => !counts.has(name)).slice(0, SPARE_NODES_MAX);
    return [...counts.keys(), ...spare].map((name) => {
      const ready = known.get(name)?.ready, count = counts.get(name) || 0;
      return { name, box: { text: name, note: columns.length < 5 ? `×${count}` : many(count, "pod"), tone: { True: "good", False: "bad", Unknown: "wait" }[ready] || "", isNode: true, words: ready === "False" ? "not ready" : "" } };
    });
  }

  // What is lit, and the words about it.
  #light(id) {
    const { boxes = [], edges = [] } = this.layout ?? {}, box = boxes.find((box) => box.id === id), lit = box ? path(edges, id) : new Set();
    this.picture.classList.toggle("lit", Boolean(box));
    for (const node of this.boxes.children) node.classList.toggle("on", lit.has(node.dataset.key));
    for (const line of this.lines.children) line.classList.toggle("on", lit.has(line.dataset.from) && lit.has(line.dataset.to));
    const { overview } = this.state, total = overview.lines.length, matching = overview.matching.length;
    const text = box ? wordsOf(box, boxes.filter((box) => lit.has(box.id) && box.id !== id)) : `${matching === total ? many(total, "service") : `${matching} of ${many(total, "service")}`}. Point at a box, or move there with the arrow keys, to see its path.`;
    if (this.words.textContent !== text) this.words.textContent = text;
  }

  // One box is reached by Tab; the arrow keys lead to the others.
  #hold(id) {
    if (!id) return;
    this.current = id;
    for (const node of this.boxes.children) node.firstChild.tabIndex = node.dataset.key === id ? 0 : -1;
  }

  #click(id) {
    const box = this.layout.boxes.find((box) => box.id === id);
    if (box?.isNode) { this.pinned = this.pinned === id ? "" : id; this.#light(id); }
    if (!box?.fold) return;
    const opened = new Set(asked("open").split(",").filter(Boolean));
    if (!opened.delete(box.fold)) opened.add(box.fold);
    address({ open: [...opened].join(",") });
    this.#draw();
  }

  #move(event) {
    const [side, step] = { ArrowUp: ["", -1], ArrowDown: ["", 1], ArrowLeft: ["to", "from"], ArrowRight: ["from", "to"] }[event.key] ?? [];
    if (!step) return;
    event.preventDefault();
    const { boxes, edges } = this.layout, own = boxes.find((box) => box.id === this.current);
    const column = boxes.filter((box) => box.column === own?.column).sort((a, b) => a.y - b.y);
    // The host of a tag leads past its service: the nearest column counts.
    const distance = (id) => Math.abs(Object.keys(TITLES).indexOf(id.split(" ")[0]) - Object.keys(TITLES).indexOf(own.column));
    const ends = edges.filter((edge) => edge[side] === this.current).map((edge) => edge[step]).sort((a, b) => distance(a) - distance(b));
    const next = side ? ends[0] : column[column.indexOf(own) + step]?.id;
    [...this.boxes.children].find((node) => node.dataset.key === next)?.firstChild.focus();
  }

  #tabulate() {
    if (!this.details.open || !this.state) return;
    const groups = grouped(this.state.objects), columns = Object.keys(TITLES);
    keyed(this.table, this.state.overview.matching.map((line) => [line.key, { line, block: this.#block(line, groups.get(line.key), columns, false) }]), (node, { line, block }) => {
      cells(node, line.key, STATES[line.state][0], block.hosts.map((host) => host.text).join(", ") || "–", block.revisions.map((revision) => `${revision.box.text} ${revision.percent} %`).join(", ") || "–", block.revisions.map((revision) => revision.pods?.words).filter(Boolean).join("; ") || "–");
      node.firstChild.replaceWith(make("th", { scope: "row", textContent: line.key }));
    });
  }
}

function countByNode(pods) {
  const counts = new Map();
  for (const pod of pods) if (pod.node) counts.set(pod.node, (counts.get(pod.node) || 0) + pod.count);
  return counts;
}

function byKey(pods) {
  const groups = new Map();
  for (const pod of pods) { if (!groups.has(pod.key)) groups.set(pod.key, []); groups.get(pod.key).push(pod); }
  return groups;
}

// "Service shop/cart, Failing: ...: 2 hosts, 1 revision, 3 pods on 2 nodes."
function wordsOf(box, others) {
  const count = (column) => others.filter((box) => box.column === column).length, pods = sum(others.map((box) => box.column === "pods" ? box.count : 0));
  const parts = [["host", "host"], ["service", "service"], ["revision", "revision"]].map(([column, word]) => count(column) && many(count(column), word));
  const rest = [...parts, pods && many(pods, "pod"), count("node") && many(count("node"), "node")].filter(Boolean).join(", ");
  return `${[box.text, box.note].filter(Boolean).join(", ")}${box.words ? `: ${box.words}` : ""}${rest ? `; on its paths ${rest}` : ""}`;
}

function drawBox(node, box) {
  const isLink = Boolean(box.href), tag = isLink ? "A" : "BUTTON";
  let inner = node.firstChild;
  if (inner?.tagName !== tag) {
    inner = make(tag.toLowerCase(), isLink ? {} : { type: "button" }, make("i"), make("b"), make("small"));
    inner.tabIndex = -1;
    node.replaceChildren(inner);
  }
  Object.assign(node.style, { left: `${box.left + (box.isIndented ? 12 : 0)}px`, top: `${box.y}px`, width: `${box.wide - (box.isIndented ? 12 : 0)}px`, height: `${HEIGHT}px` });
  node.className = `box in-${box.column} ${box.tone || "plain"}`;
  if (isLink) inner.href = box.href;
  if (box.isLink) inner.rel = "noreferrer";
  if (box.fold) inner.setAttribute("aria-expanded", String(box.isOpen));
  const [dots, text, small] = inner.children;
  const list = box.dots?.flatMap(([tone, count]) => Array(Math.min(count, DOTS_MAX)).fill(tone)) ?? (box.tone && box.column !== "pods" ? [box.tone] : []);
  dots.replaceChildren(...list.slice(0, DOTS_MAX).map((tone) => make("span", { className: tone, textContent: "●" })));
  dots.setAttribute("aria-hidden", "true");
  if (box.column === "service" && !box.fold) writeName(text, box.text);
  else {
    text.classList.remove("name");
    text.textContent = box.text;
  }
  inner.setAttribute("aria-label", [box.text, box.note].filter(Boolean).join(" "));
  small.textContent = box.note ? ` ${box.note}` : "";
  inner.title = [box.text, box.words].filter(Boolean).join(": ");
}

function drawEdge(edge, from, to, { left, wide, isNarrow }) {
  const x1 = left(from.column) + wide, y1 = from.y + HEIGHT / 2, x2 = left(to.column), y2 = to.y + HEIGHT / 2, middle = (x1 + x2) / 2;
  const weight = edge.percent ? 1 + 2.5 * edge.percent / 100 : edge.count ? Math.min(3.5, 1 + Math.log2(edge.count) / 3) : 1;
  const ends = { "data-from": edge.from, "data-to": edge.to };
  const line = svg("path", { ...ends, d: `M${x1} ${y1}C${middle} ${y1} ${middle} ${y2} ${x2} ${y2}`, "stroke-width": weight.toFixed(1), class: edge.isIdle ? "idle" : "" });
  // The line of a tag ends where the part of its service does.
  if (!edge.percent || (edge.percent === 100 && (isNarrow || from.column === "host"))) return [line];
  const label = svg("text", { ...ends, x: x2 - 4, y: y2 - 4, "text-anchor": "end" });
  label.textContent = `${number(edge.percent)} %`;
  return [line, label];
}
