// The overview: one row a service, those in trouble first. What is chosen stands in the address, so that a view can be shared.
import { address, asked } from "./address.js";
import { bytes, cores, duration, make, number, writeName } from "./charts.js";
import { keyed } from "./rows.js";

export const STATES = {
  failing: ["Failing", "bad"], errors: ["Errors", "bad"], waking: ["Waking", "wait"], serving: ["Serving", "good"], dormant: ["Dormant", "sleep"], zero: ["At zero", "off"],
};
const ORDER = Object.keys(STATES);
const ROWS_FIRST = 100, ERRORS_FROM = 0.01, RECENT_STEPS = 2;
const NUMBERS = 3;
// What a column is sorted by; nothing known comes last of the largest first.
const SORTS = {
  state: (line) => ORDER.indexOf(line.state), service: (line) => line.key, rps: (line) => line.order.rps, p95: (line) => line.order.p95, errors: (line) => line.order.errors,
  pods: (line) => line.order.pods, cpu: (line) => line.order.cpu, memory: (line) => line.order.memory, age: (line) => line.order.age,
};
const SPARK = { width: 110, height: 16 };
const by = (id) => document.getElementById(id);

// The revisions of each service; one without a service, as a workload, is its own.
export function grouped(objects) {
  const groups = new Map([...objects.service].map(([key, view]) => [key, { view, revisions: [] }]));
  for (const [key, view] of objects.revision) {
    const service = `${view.namespace}/${view.service || view.name}`;
    if (!groups.has(service)) groups.set(service, { view: { name: view.service || view.name, namespace: view.namespace, url: view.url || "", ready: view.ready, conditions: view.conditions, traffic: view.url ? [{ revision: view.name, percent: 100 }] : [], created: view.created, kind: view.kind || "" }, revisions: [] });
    groups.get(service).revisions.push([key, view]);
  }
  for (const group of groups.values()) group.revisions.sort((a, b) => b[1].created.localeCompare(a[1].created) || b[0].localeCompare(a[0]));
  return groups;
}

// The condition that says why a revision does not serve; none while its pods just start.
export function problemOf(view) {
  const failing = (status, is) => view.conditions.find((condition) => condition.status === status && condition.message && is(condition.type));
  return failing("False", (type) => type !== "Active" && type !== "Ready") || failing("False", (type) => type === "Ready") || failing("Unknown", (type) => type === "ContainerHealthy");
}

// Without a ready pod: why a pod is not ready, where its pods are known.
export function revisionState(view, row, pods = []) {
  if (view.ready === "False") return ["Failed", "bad"];
  if (view.state !== "Active") return [view.state === "Reserve" ? "At zero" : view.state, "off"];
  if (row?.[5] && row[8] === row[5]) return ["Dormant", "sleep"];
  if (row?.[5]) return ["Active", "good"];
  return [pods.find((pod) => pod.reason)?.reason || (problemOf(view) ? "Not ready" : "Starting"), "wait"];
}

export const share = (service, name) => service.traffic.filter((target) => target.revision === name).reduce((sum, target) => sum + target.percent, 0);

export class Overview {
  constructor(root, onChange) {
    this.root = root;
    this.columns = [];
    this.isAll = false;
    this.sparklines = null;
    this.changes = {};
    this.lines = this.matching = [];
    this.wanted = read();
    by("filter").value = this.wanted.text;
    const changed = () => {
      this.wanted = { text: by("filter").value, namespace: by("namespace").value, state: by("states").querySelector(":checked")?.value || "" };
      const { text: q, namespace, state } = this.wanted;
      address({ q, namespace, state });
      onChange();
    };
    for (const id of ["filter", "namespace", "states"]) by(id).addEventListener("input", changed);
    this.heads = [...root.querySelectorAll("th[data-sort]")];
    for (const head of this.heads) {
      const button = make("button", { type: "button", textContent: head.textContent, title: head.title });
      button.addEventListener("click", () => { const { column, isUp } = this.#order(); address({ sort: `${head.dataset.sort}${(column === head.dataset.sort ? !isUp : isUpAtFirst(head)) ? "" : "-"}` }); onChange(); });
      head.replaceChildren(button);
      head.removeAttribute("title");
    }
    by("all-rows").addEventListener("click", () => { this.isAll = true; onChange(); });
    document.querySelector("main").addEventListener("keydown", (event) => this.#move(event));
    addEventListener("popstate", () => {
      this.wanted = read();
      by("filter").value = this.wanted.text;
      onChange();
    });
  }

  // What the page gets when it connects.
  begin({ columns, sparklines, changed_s: changes }) {
    this.columns = columns;
    if (sparklines) Object.assign(this, { sparklines, changes });
  }

  // One more tick, added up as the server does it.
  add(at, rows) {
    const all = this.sparklines;
    if (!all) return;
    const step = Math.floor(at / all.step_s), move = Math.min(all.ticks.length, step - all.step);
    if (move > 0) {
      all.step = step;
      for (const column of [all.ticks, ...Object.values(all.sums).flat()]) column.splice(0, move), column.push(...Array(move).fill(0));
    }
    all.ticks[all.ticks.length - 1] += 1;
    const [first, last] = [this.columns.indexOf("rps_2xx"), this.columns.indexOf("rps_5xx")];
    for (const [key, row] of Object.entries(rows)) {
      const total = sum(row.slice(first, last + 1));
      if (!total && !all.sums[key]) continue;
      const sums = all.sums[key] ??= [all.ticks.map(() => 0), all.ticks.map(() => 0)];
      sums[0][sums[0].length - 1] += total;
      sums[1][sums[1].length - 1] += row[last] || 0;
    }
  }

  decided(decision) {
    if (decision.is_change) this.changes[decision.key] = Math.max(this.changes[decision.key] || 0, decision.at_s);
  }

  // `view` is "overview", or that of another page; their services are filtered alike. Returns how many fail.
  show(objects, rows, view) {
    const { column, isUp } = this.#order(), value = SORTS[column];
    const lines = [...grouped(objects)].map(([key, group]) => this.#line(key, group, rows)).sort((a, b) => (isUp ? 1 : -1) * compare(value(a), value(b)) || compare(a.key, b.key));
    const failing = lines.filter((line) => line.state === "failing").length;
    if (view === "revision") return failing;
    const { text, namespace, state } = this.wanted, part = text.trim().toLowerCase();
    const filtered = lines.filter((line) => (!namespace || line.namespace === namespace) && (!part || `${line.key} ${line.host} ${line.names}`.toLowerCase().includes(part)));
    this.#choices(lines, filtered);
    const matching = filtered.filter((line) => !state || line.state === state);
    Object.assign(this, { lines, matching });
    by("states").hidden = view === "cost";
    if (view !== "overview") { set(by("found"), ""); return failing; }
    const shown = this.isAll ? matching : matching.slice(0, ROWS_FIRST);
    for (const head of this.heads) {
      if (head.dataset.sort === column) head.setAttribute("aria-sort", isUp ? "ascending" : "descending");
      else head.removeAttribute("aria-sort");
    }
    keyed(by("rows"), shown.map(({ names, order, ...line }) => [line.key, line]), draw);
    by("all-rows").hidden = shown.length === matching.length;
    set(by("all-rows"), `Show all ${matching.length}`);
    by("none").hidden = matching.length > 0;
    set(by("found"), matching.length === lines.length ? "" : `${matching.length} of ${lines.length} shown`);
    return failing;
  }

  // The column to sort by, as in the address: "service" or "rps-", the largest first. Those in trouble come first otherwise.
  #order() {
    const text = asked("sort"), column = text.replace(/-$/, "");
    return SORTS[column] ? { column, isUp: column === text } : { column: "state", isUp: true };
  }

  #line(key, { view, revisions }, rows) {
    const at = (revision, name) => rows[revision]?.[this.columns.indexOf(name)] ?? null;
    const total = (name) => sum(revisions.map(([revision]) => at(revision, name)));
    const newest = revisions[0];
    const live = revisions.filter(([, revision]) => share(view, revision.name) > 0);
    const [ready, starting, dormant, held] = ["ready", "starting", "dormant", "held"].map(total);
    const desired = sum(revisions.map(([revision]) => at(revision, "desired") ?? at(revision, "ready")));
    const recent = this.#recent(revisions);
    const failed = [newest, ...live].find((entry) => entry && (entry[1].ready === "False" || view.ready !== "True") && problemOf(entry[1]));
    let state = "zero", why = "";
    if (failed || view.ready === "False") {
      state = "failing";
      why = failed ? problemOf(failed[1]).message : (view.conditions.find((condition) => condition.type === "Ready") || {}).message || "not ready";
    } else if (recent.errors / recent.requests >= ERRORS_FROM) [state, why] = ["errors", `${percent(recent.errors / recent.requests)} of the last responses were 5xx`];
    else if (!ready && (held || starting || desired)) [state, why] = ["waking", [held ? `${number(held)} request${held === 1 ? " waits" : "s wait"}` : "", starting ? `${number(starting)} pod${starting === 1 ? " is" : "s are"} not ready` : ""].filter(Boolean).join(", ")];
    else if (ready && dormant === ready) state = "dormant";
    else if (ready) state = "serving";
    else if (view.ready !== "True" && revisions.length) [state, why] = ["waking", (view.conditions.find((condition) => condition.type === "Ready") || {}).message || "not ready yet"];
    const latencies = revisions.map(([revision]) => at(revision, "p95_s")).filter((latency) => latency != null);
    const main = failed || live[0] || newest;
    const changed = Math.max(...revisions.flatMap(([revision, its]) => [this.changes[revision] || 0, Date.parse(its.created) / 1000 || 0]), Date.parse(view.created) / 1000 || 0);
    const rps = revisions.some(([revision]) => at(revision, "rps_2xx") != null) ? sum(["rps_2xx", "rps_3xx", "rps_4xx", "rps_5xx"].map(total)) : null;
    const p95 = latencies.length ? Math.max(...latencies) : null, errors = recent.requests ? recent.errors / recent.requests : null;
    const [cpu, memory] = ["cpu_cores", "memory_bytes"].map((name) => revisions.some(([revision]) => at(revision, name) != null) ? total(name) : null);
    return {
      key, state, why: brief(why), name: view.name, kind: view.kind || "", namespace: view.namespace, url: view.url, host: view.url.replace(/^https?:\/\//, ""), revision: main?.[0] || "", names: revisions.map(([revision]) => revision).join(" "),
      order: Object.fromEntries(Object.entries({ rps, p95, errors, pods: ready, cpu, memory, age: changed ? 1e10 - changed : null }).map(([name, its]) => [name, its ?? -1])),
      rps: number(rps), p95: duration(p95), errors: errors == null ? "–" : percent(errors), cpu: cores(cpu), memory: bytes(memory), pods: desired === ready ? number(ready) : `${number(ready)} → ${number(desired)}`,
      spark: this.#spark(revisions), age: changed ? age(Date.now() / 1000 - changed) : "–",
    };
  }

  // Requests and errors of the last steps together.
  #recent(revisions) {
    const of = (place) => sum(revisions.flatMap(([revision]) => this.sparklines?.sums[revision]?.[place].slice(-RECENT_STEPS) || []));
    return { requests: of(0), errors: of(1) };
  }

  #spark(revisions) {
    const columns = revisions.map(([revision]) => this.sparklines?.sums[revision]?.[0]).filter(Boolean);
    if (!columns.length) return "";
    const values = this.sparklines.ticks.map((ticks, place) => ticks ? sum(columns.map((column) => column[place])) / ticks : 0);
    const most = Math.max(...values);
    if (!most) return "";
    const x = (place) => (SPARK.width * place / (values.length - 1)).toFixed(0), y = (value) => (SPARK.height - 1 - (SPARK.height - 2) * value / most).toFixed(1);
    return values.map((value, place) => `${x(place)},${y(value)}`).join(" ");
  }

  // The choices with counts; a namespace or state that is asked for stays, though nothing has it now.
  #choices(lines, matching) {
    const names = [...new Set([...lines.map((line) => line.namespace), this.wanted.namespace])].filter(Boolean).sort();
    keyed(by("namespace"), [["", "All namespaces"], ...names.map((name) => [name, name])], (node, text) => Object.assign(node, { value: node.dataset.key, textContent: text }), "option");
    by("namespace").value = this.wanted.namespace;
    by("namespace").parentNode.hidden = names.length < 2;
    const count = (state) => matching.filter((line) => line.state === state).length;
    keyed(by("states-list"), [["", ["All", "", matching.length]], ...ORDER.map((state) => [state, [...STATES[state], count(state)]])], (node, [text, tone, its]) => {
      if (!node.firstChild) node.append(make("input", { type: "radio", name: "state", value: node.dataset.key }), make("span"), make("b"));
      node.className = its ? tone : "";
      set(node.children[1], text);
      set(node.children[2], String(its));
    }, "label");
    const chosen = by("states").querySelector(`input[value="${this.wanted.state}"]`);
    if (chosen && !chosen.checked) chosen.checked = true;
  }

  // Arrows go from row to row, "/" to the filter.
  #move(event) {
    const isText = event.target.matches("input:not([type=radio]), select"), find = () => { by("filter").focus(); by("filter").select(); };
    if (event.key === "/" && !isText && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      if (!by("choices").hidden) find();
      else { addEventListener("hashchange", find, { once: true }); location.hash = ""; }
      return;
    }
    if (event.key === "Enter" && event.target === by("filter")) by("rows").querySelector("th a")?.click();
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step || this.root.hidden || event.target.matches("select, input[type=radio]")) return;
    const links = [...by("rows").querySelectorAll("th a")], place = links.indexOf(event.target.closest("tr")?.querySelector("th a"));
    if (place < 0 && step < 0) return;
    event.preventDefault();
    const next = place + step;
    if (next < 0) by("filter").focus();
    else links[Math.min(links.length - 1, next)]?.focus();
  }
}

// The first and the last line: of a traceback the last one says what happened.
function brief(text) {
  const lines = text.split("\n").map((line) => line.trim()).filter(Boolean);
  const first = (lines[0] || "").replace(/ *Traceback \(most recent call last\):$/, "");
  return lines.length > 1 ? `${first} ${lines.at(-1)}`.trim() : lines[0] || "";
}

const sum = (values) => values.reduce((total, value) => total + (value || 0), 0);
const inNumbers = new Intl.Collator("en", { numeric: true });
const compare = (a, b) => typeof a === "string" ? inNumbers.compare(a, b) : a < b ? -1 : a > b ? 1 : 0;
const isUpAtFirst = (head) => ["state", "service"].includes(head.dataset.sort);
const percent = (ratio) => ratio === 0 ? "0 %" : ratio < 0.01 ? "< 1 %" : `${(100 * ratio).toFixed(0)} %`;
function set(node, text) { if (node.textContent !== text) node.textContent = text; }

export function age(seconds) {
  if (seconds < 60) return `${Math.max(0, Math.floor(seconds / 10)) * 10} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  return seconds < 172800 ? `${Math.floor(seconds / 3600)} h` : `${Math.floor(seconds / 86400)} d`;
}

function read() {
  const state = asked("state");
  return { text: asked("q"), namespace: asked("namespace"), state: ORDER.includes(state) ? state : "" };
}

function draw(node, service) {
  if (!node.firstChild) build(node);
  const { state, link, where, why, host, rps, p95, errors, pods, cpu, memory, spark, line, age } = node.parts;
  const [text, tone] = STATES[service.state];
  state.className = `state ${tone}`;
  set(state, text);
  writeName(link, service.name);
  link.setAttribute("aria-label", service.name);
  if (service.revision) link.setAttribute("href", `#${service.revision}`);
  else link.removeAttribute("href");
  set(where, [service.kind, service.namespace].filter(Boolean).join(" · "));
  link.title = service.name;
  set(why, service.why);
  why.title = service.why;
  why.dataset.state = service.state;
  set(host, service.host);
  host.href = service.url;
  host.title = service.url;
  for (const [cell, value] of [[rps, service.rps], [p95, service.p95], [errors, service.errors], [pods, service.pods], [cpu, service.cpu], [memory, service.memory], [age, service.age]]) { set(cell, value); cell.classList.toggle("none", value === "–"); }
  pods.dataset.label = service.pods.split(" ").at(-1) === "1" ? "pod" : "pods";
  errors.classList.toggle("bad", service.state === "errors");
  // A reason takes the room of numbers that there are none of.
  const isQuiet = Boolean(service.why) && service.p95 === "–" && service.errors === "–";
  why.colSpan = isQuiet ? 1 + NUMBERS : 1;
  for (const cell of [rps, p95, errors]) cell.hidden = isQuiet;
  spark.toggleAttribute("hidden", !service.spark);
  line.setAttribute("points", service.spark);
}

// Roles are set, because a narrow screen shows rows as blocks, which are no rows to a reader otherwise.
function build(node) {
  const cell = (className, ...children) => { const element = make("td", { className }, ...children); element.setAttribute("role", "cell"); return element; };
  const link = make("a"), where = make("small"), head = make("th", { className: "who", scope: "row" }, make("div", {}, link, " ", where));
  const [state, host, why] = [make("span"), make("a", { rel: "noreferrer" }), cell("because")];
  const spark = document.createElementNS("http://www.w3.org/2000/svg", "svg"), line = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
  spark.setAttribute("viewBox", `0 0 ${SPARK.width} ${SPARK.height}`);
  spark.setAttribute("preserveAspectRatio", "none");
  spark.setAttribute("aria-hidden", "true");
  spark.append(line);
  head.setAttribute("role", "rowheader");
  node.setAttribute("role", "row");
  const [rps, p95, errors, pods, cpu, memory, age] = ["rps", "p95", "errors", "pods", "cpu", "memory", "age"].map((name) => cell(`num ${name}`));
  for (const [cell, label] of [[rps, "/s"], [p95, "p95"], [errors, "5xx"], [pods, "pods"], [cpu, "CPU"], [memory, ""]]) cell.dataset.label = label;
  node.parts = { state, link, where, why, host, rps, p95, errors, pods, cpu, memory, spark, line, age };
  node.append(cell("what", state), head, cell("host", host), why, rps, p95, errors, pods, cpu, memory, cell("spark", spark), age);
}
