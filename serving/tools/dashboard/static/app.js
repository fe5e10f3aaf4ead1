// What the page knows, and its tables. Everything that comes from outside is set as text, never as markup.
import { Actions } from "./actions.js";
import { address, asked as inQuery } from "./address.js";
import { Charts, bytes, cells, clock, cores, make, moment, number } from "./charts.js";
import { ColdStarts } from "./coldstarts.js";
import { Compare } from "./compare.js";
import { Cost } from "./cost.js";
import { Logs } from "./logs.js";
import { TrafficMap } from "./map.js";
import { Nodes } from "./nodes.js";
import { Overview, grouped, problemOf, revisionState, share } from "./overview.js";
import { Policy } from "./policy.js";
import { Requests } from "./requests.js";
import { keyed, many, write } from "./rows.js";
import { streamed } from "./stream.js";
import "./tabs.js";
import { onThemeChange } from "./themebutton.js";

const by = (id) => document.getElementById(id);
const ROWS_MAX = 1800, LIVE_S = 3600, LEAST_SPAN_S = 30, REFRESH_S = 60;
const objects = { service: new Map(), revision: new Map() };
let columns = [], rows = {}, pods = [], nodes = null, decisions = [], present = null, history = null, selected = "", page = "", marks = [], span = null, readAt = 0, seconds = 300, mayAct = false, mayReadLogs = false, user = "", isLoaded = false;
const charts = new Charts(by("charts"), by("spoken"), (from, to) => choosePast(from, to));
const actions = new Actions();
const compare = new Compare(by("compare"), () => span && !span.isLast ? span : lastOf(seconds));
const logs = new Logs();
const nodeList = new Nodes(by("nodes-part"));
const policy = new Policy(by("policy-part"));
const coldStarts = new ColdStarts(by("cold-part"));
const requests = new Requests(by("requests-part"));
const overview = new Overview(by("overview"), show);
const map = new TrafficMap(by("map"));
const cost = new Cost(by("cost"));

// What comes in.

const watch = streamed({
  open() { link("live", "live"); },
  lost() { link("lost", "connection lost, trying again"); },
  all(all) {
    for (const kind of Object.values(objects)) kind.clear();
    ({ columns, rows, pods, nodes, may_act: mayAct, may_read_logs: mayReadLogs, user } = all);
    isLoaded = true;
    applyChanges(all.objects);
    overview.begin(all);
    if (!leaveDeleted() && selected) load();
    show();
  },
  tick(tick) {
    applyChanges(tick.objects);
    Object.assign(rows, tick.rows);
    pods = tick.pods;
    nodes = tick.nodes ?? nodes;
    present = tick.decision;
    marks.push(...tick.marks.filter((mark) => mark.kind !== "decision").map(asMark));
    append(tick.at_s);
    overview.add(tick.at_s, rows);
    leaveDeleted();
    show();
  },
  decision(decision) {
    overview.decided(decision);
    if (decision.key !== selected || decisions.some((earlier) => earlier.at_s === decision.at_s)) return;
    decisions.push(decision);
    if (decision.is_change) marks.push({ ...decision, kind: "decision" });
    showDecisions();
  },
});
const connect = () => watch(document.hidden ? null : selected);

function link(state, text) {
  by("link").dataset.state = state;
  if (by("link").textContent !== text) by("link").textContent = text;
}

function applyChanges(changes) {
  for (const { kind, key, view } of changes) {
    if (view) objects[kind].set(key, view);
    else { objects[kind].delete(key); if (kind === "revision") delete rows[key]; }
  }
}

async function load() {
  const asked = selected;
  const wanted = span, range = span ? `&from=${span.from}&to=${span.to}` : "";
  const response = await fetch(`history?revision=${encodeURIComponent(asked)}${range}`);
  if (asked !== selected || wanted !== span) return;
  readAt = Date.now() / 1000;
  if (!response.ok) { write(by("span"), await response.text()); return; }
  const past = await response.json();
  if (asked !== selected || wanted !== span) return;
  // Decisions that arrived while the history was read are not part of it.
  const last = past.decisions.at(-1)?.at_s ?? 0;
  decisions = [...past.decisions, ...decisions.filter((decision) => decision.at_s > last)];
  const changes = decisions.filter((decision) => decision.is_change).map((decision) => ({ ...decision, kind: "decision" }));
  const known = new Set(changes.map((change) => change.at_s));
  marks = [...past.marks.filter((mark) => mark.kind !== "decision" || !known.has(mark.at_s)).map(asMark), ...changes];
  for (const name of ["decisions", "marks", "step_s"]) delete past[name];
  history = past;
  draw();
  showDecisions();
  showSpan();
}

const asMark = ({ at_s, kind, text }) => ({ at_s, kind, sentence: text, is_change: true });
const draw = () => charts.draw(history, marks, seconds, span);

function append(at) {
  if (span?.isLast && at - readAt >= REFRESH_S) { span = lastOf(seconds); load(); }
  if (!history || span) return;
  const row = rows[selected];
  if (!row || history.at_s.at(-1) >= at) return;
  history.at_s.push(at);
  columns.forEach((name, place) => history[name].push(row[place]));
  if (history.at_s.length > ROWS_MAX + 100) for (const column of Object.values(history)) column.splice(0, 100);
  if (!document.hidden) draw();
}

// What is chosen.

const loadOf = (key) => (rows[key]?.[0] || 0) + (rows[key]?.[1] || 0);

// "" is the overview.
function choose(key) {
  if (key === selected) return;
  const before = selected;
  selected = key;
  history = null;
  decisions = [];
  marks = [];
  pods = [];
  show();
  if (key) { by("detail").focus(); scrollTo(0, 0); } else focusRow(before);
  connect();
}

// A page of a revision that was deleted shows its service's newest one, else the overview. Whether it did.
function leaveDeleted() {
  // A dashboard that has just started does not know the revisions yet.
  if (!selected || objects.revision.has(selected) || !objects.revision.size) return false;
  const service = selected.replace(/-[^-]+$/, ""), next = grouped(objects).get(service)?.revisions[0]?.[0] || "";
  window.history.replaceState(null, "", `${location.pathname}${location.search}${next && `#${next}`}`);
  choose(next);
  return true;
}

// Back from a revision the focus is where it was.
function focusRow(revision) {
  const link = [...by("rows").querySelectorAll("th a")].find((link) => link.hash === `#${revision}`);
  (link || by("overview-title")).focus();
}

// The revision in the address.
function asked() {
  try { return decodeURIComponent(location.hash.slice(1)); } catch { return ""; }
}

// A page beside the overview and the revisions.
const pageOf = (key) => ["map", "cost"].includes(key) ? key : "";

// On a narrow screen the list folds away, so that the charts of the chosen revision are on the first screen.
const narrow = matchMedia("(max-width: 900px)");
function foldList() { by("list").open = !narrow.matches; }
narrow.addEventListener("change", foldList);

addEventListener("hashchange", () => {
  const key = asked();
  if (narrow.matches) by("list").open = false;
  const before = page;
  page = pageOf(key);
  if (!key || page || objects.revision.has(key)) choose(page ? "" : key);
  if (page !== before) { show(); if (page) by(`${page}-title`).focus(); }
});

// What is shown.

const TONES = { True: "good", False: "bad", Unknown: "wait" };
const badge = (text, tone) => make("span", { className: `state ${tone}`, textContent: text });

function show() {
  if (document.hidden) return;
  const view = selected ? "revision" : page || "overview", count = objects.service.size + objects.revision.size;
  const failing = overview.show(objects, rows, view);
  by("overview").hidden = view !== "overview" || !count;
  by("choices").hidden = view === "revision" || !count;
  by("empty").hidden = Boolean(count) || !isLoaded || view === "cost";
  by("revisions").hidden = !selected || !count;
  document.body.dataset.view = view;
  for (const link of by("views").children) { if ((link.hash.slice(1) || "overview") === view) link.setAttribute("aria-current", "page"); else link.removeAttribute("aria-current"); }
  map.show(view === "map" && count > 0, { objects, rows, overview, nodes });
  cost.show(view === "cost", overview.wanted, new Set(grouped(objects).keys()));
  showServices();
  showDetail();
  showPods();
  nodeList.show(nodes);
  coldStarts.show(objects.revision.has(selected) ? selected : "");
  requests.show(objects.revision.has(selected) ? selected : "");
  policy.show(objects.revision.has(selected) ? selected : "", loadOf(selected) > 0);
  const ready = Object.values(rows).reduce((sum, row) => sum + (row[5] || 0), 0);
  by("failing").hidden = !failing;
  write(by("failing"), `${failing} failing`);
  const workloads = [...objects.revision.values()].filter((revision) => revision.kind).length;
  write(by("totals"), [many(objects.service.size, "service"), workloads && many(workloads, "workload"), many(objects.revision.size - workloads, "revision"), `${many(ready, "pod")} ready`].filter(Boolean).join(" · "));
  const title = `${failing ? `(${failing} failing) ` : ""}${selected ? `${selected.split("/")[1]} - ` : page ? `${page} - ` : ""}serving`;
  if (document.title !== title) document.title = title;
}

function showServices() {
  const own = [...grouped(objects)].filter(([, group]) => group.revisions.some(([key]) => key === selected));
  write(by("list-title"), `Revisions (${own[0]?.[1].revisions.length ?? 0})`);
  keyed(by("services"), own.map(([key, group]) => [key, { ...group, revisions: group.revisions.map(([name, view]) => [name, view, rows[name]]), selected }]), drawService, "section");
}

function drawService(node, { view, revisions }) {
  // Numbers change with each tick, names hardly ever.
  const text = JSON.stringify([view.name, view.ready, view.url]);
  if (node.headText !== text) {
    node.headText = text;
    node.className = "service";
    const title = make("h2", {}, make("b", { textContent: view.name }), make("span", {}, badge(view.ready === "True" ? "Ready" : view.ready === "False" ? "Not ready" : "Pending", TONES[view.ready])));
    const where = make("p");
    if (view.url) where.append(make("a", { href: view.url, textContent: view.url.replace("http://", ""), rel: "noreferrer" }));
    node.replaceChildren(title, where, node.children[2] || make("div"), node.children[3] || make("details", { className: "older" }, make("summary"), make("div")));
  }
  const items = revisions.map(([key, revision, row]) => [key, { key, revision, row, share: share(view, revision.name), isChosen: key === selected }]);
  const isLive = ([, item], place) => place === 0 || item.share > 0 || item.isChosen || isTagged(view, item.revision.name) || item.row?.[5] || item.row?.[6];
  const older = items.filter((item, place) => !isLive(item, place));
  const [, , live, fold] = node.children;
  keyed(live, items.filter(isLive), drawRevision, "a");
  keyed(fold.lastChild, older, drawRevision, "a");
  fold.hidden = !older.length;
  write(fold.firstChild, `${older.length} older revision${older.length === 1 ? "" : "s"} without traffic`);
}

const isTagged = (service, name) => service.traffic.some((target) => target.revision === name && target.tag);

function drawRevision(node, { key, revision, row, share: percent, isChosen }) {
  const [text, tone] = revisionState(revision, row, isChosen ? pods : []);
  if (!node.firstChild) {
    node.className = "revision";
    node.href = `#${key}`;
    node.append(make("b", { textContent: revision.name }), make("span"), make("small"), make("small"));
  }
  if (isChosen) node.setAttribute("aria-current", "true");
  else node.removeAttribute("aria-current");
  const count = row ? `${number(row[5])}${row[4] != null && row[4] !== row[5] ? ` → ${number(row[4])}` : ""} pod${row[5] === 1 && (row[4] ?? 1) === 1 ? "" : "s"}` : "–";
  const [, state, traffic, load] = node.children;
  if (state.className !== `state ${tone}`) state.className = `state ${tone}`;
  write(state, text);
  write(traffic, percent ? `${percent} % of traffic` : "no traffic");
  write(load, `${count} · ${number(row ? (row[0] || 0) + (row[1] || 0) : 0)} in flight`);
}

function showDetail() {
  const view = objects.revision.get(selected);
  by("detail").hidden = !view;
  if (!view) return;
  by("name").textContent = view.kind ? `${view.name} (${view.kind} ${view.target})` : view.name;
  const row = rows[selected] || [];
  const at = Object.fromEntries(columns.map((name, place) => [name, row[place]]));
  const [text, tone] = revisionState(view, row, pods);
  // Ten tiles, so that no row of them has a gap at any width.
  showFacts(by("facts"), [["State", text, tone], ["Pods ready", number(at.ready)], ["Desired", number(at.desired)], ["Starting", number(at.starting)],
    ["Running", number(at.running)], ["Waiting", number(at.held)], ["Pod target", at.ready ? number(at.target / at.ready) : "–"],
    ["Mode", at.is_panic == null ? "–" : at.is_panic ? "panic" : "stable", at.is_panic ? "bad" : ""],
    ["CPU", cores(at.cpu_cores)], ["Memory", bytes(at.memory_bytes)]]);
  showWhy();
  showFacts(by("scaling"), [["requests a pod", view.concurrency || "no limit"], ...Object.entries(view.scaling)]);
  by("scaling-part").hidden = false;
  showProblem(view);
  const service = objects.service.get(`${view.namespace}/${view.service}`);
  const siblings = [...objects.revision.values()].filter((sibling) => sibling.namespace === view.namespace && sibling.service === view.service);
  siblings.sort((a, b) => b.name.localeCompare(a.name));
  const names = siblings.map((sibling) => sibling.name), shown = span && !span.isLast ? span.from : seconds;
  actions.show(mayAct, user, service, names, siblings[0].scaling);
  compare.show({ service, names, selected, mayAct, user, shown });
  logs.show(mayReadLogs, user, view.namespace, view.service || view.name);
  const conditions = [...view.conditions.map((condition) => [view.kind ? "workload" : "revision", condition]), ...(service?.conditions || []).map((condition) => ["service", condition])];
  keyed(by("conditions"), conditions.map(([of, condition]) => [`${of} ${condition.type}`, { of, ...condition }]), (node, condition) =>
    cells(node, condition.of, condition.type, badge(condition.status, condition.type === "Active" && condition.status === "False" ? "off" : TONES[condition.status] || "wait"), [condition.reason, condition.message].filter(Boolean).join(": ") || "–"));
}

function showFacts(root, facts) {
  keyed(root, facts.map((fact) => [fact[0], fact]), (node, [name, value, kind]) =>
    node.replaceChildren(make("dt", { textContent: name }), make("dd", { textContent: value, className: kind || "" })), "div");
}

// A revision that fails, or does not get ready, says why before anything else; the message ends with the last lines of the app's log.
function showProblem(view) {
  const failed = problemOf(view);
  by("problem").hidden = !failed;
  if (!failed) return;
  const [title, message, hint] = by("problem").children;
  write(title, failed.status === "Unknown" ? "Not ready yet" : failed.reason || failed.type);
  write(message, failed.message);
  write(hint, `The whole log: serving logs ${view.service || view.name}${view.namespace === "default" ? "" : ` -n ${view.namespace}`}`);
}

function showDecisions() {
  const newest = decisions.slice(-60).reverse();
  showWhy();
  keyed(by("decisions"), newest.map((decision) => [String(decision.at_s), decision]), (node, decision) => {
    node.className = decision.is_change ? "change" : "";
    cells(node, clock(decision.at_s), decision.sentence);
    node.firstChild.className = "time";
    node.lastChild.replaceChildren(...headed(decision.sentence));
  });
}

// The sentence of the decision that the tiles and the mode are of; before the first tick the last one that is known.
function showWhy() {
  const now = present?.key === selected ? present : decisions.at(-1);
  const [head, rest] = now ? headed(now.sentence) : [make("b"), "No decision yet."];
  // The nodes stay, so that what is marked does.
  if (by("why").childNodes.length !== 3) by("why").replaceChildren(" ", make("b"), " ");
  [now ? `${clock(now.at_s)} ` : "", head.textContent, rest].forEach((text, place) => {
    const node = by("why").childNodes[place];
    if (node.textContent !== text) node.textContent = text;
  });
}

// What is to be done stands out from why.
function headed(sentence) {
  const end = sentence.indexOf(": ");
  return [make("b", { textContent: sentence.slice(0, end) }), sentence.slice(end)];
}

function restarts({ restarts: count, oom_kills: killed }) {
  const memory = killed ? `, ${killed} out of memory` : "";
  return count ? ` (${count} restart${count > 1 ? "s" : ""}${memory})` : "";
}

function showPods() {
  const limit = objects.revision.get(selected)?.concurrency || 0;
  keyed(by("pods"), pods.map((pod) => [pod.name, pod]), (node, pod) => {
    const [text, tone] = pod.ending ? ["Ending", "off"] : pod.dormant ? ["Dormant", "sleep"] : pod.ready ? ["Ready", "good"] : [pod.reason || pod.phase, "wait"];
    const slots = make("span", { className: "slots", textContent: `${number(pod.running)}${limit ? ` of ${limit}` : ""}` });
    if (limit && pod.running != null) {
      const meter = make("meter", { min: 0, max: limit, value: pod.running });
      meter.setAttribute("aria-label", `slots in use of ${pod.name}`);
      slots.prepend(meter);
    }
    cells(node, pod.name.replace(`${pod.revision}-deployment-`, "") + restarts(pod), badge(text, tone), slots, cores(pod.cpu_cores), `${bytes(pod.memory_bytes)}${pod.memory_limit_bytes ? ` of ${bytes(pod.memory_limit_bytes)}` : ""}`, pod.node);
  });
}

// What can be set.

onThemeChange(() => charts.restyle());
by("range").addEventListener("change", (event) => chooseLast(Number(event.target.value)));
by("earlier").addEventListener("click", () => pan(-0.5));
by("later").addEventListener("click", () => pan(0.5));
by("live").addEventListener("click", () => chooseLast(LIVE_S));
document.addEventListener("visibilitychange", () => { connect(); if (!document.hidden) { show(); if (history) draw(); } });

// The time shown. What is older than an hour comes from the disk; the range is in the address, to be shared.

const lastOf = (length) => { const to = Math.floor(Date.now() / 1000); return { from: to - length, to, isLast: true }; };

function chooseLast(length) {
  const wasPast = span;
  seconds = length;
  span = length > LIVE_S ? lastOf(length) : null;
  address({ from: null, to: null, last: span ? length : null });
  if (span || wasPast) load(); else if (history) draw();
  showSpan();
}

function choosePast(from, to) {
  const now = Math.floor(Date.now() / 1000);
  const length = Math.max(LEAST_SPAN_S, Math.round(to - from)), end = Math.min(now, Math.round((from + to + length) / 2));
  span = { from: end - length, to: end };
  address({ from: span.from, to: span.to, last: null });
  load();
  showSpan();
}

function pan(part) {
  const length = span.to - span.from;
  choosePast(span.from + part * length, span.to + part * length);
}

function showSpan() {
  by("past").hidden = !span;
  if (span) write(by("span"), `${moment(span.from)} to ${moment(span.to)}; mark a part of a chart to zoom`);
  for (const choice of by("range").elements) if (choice.name === "range") choice.checked = (!span || span.isLast) && Number(choice.value) === seconds;
}

function askedRange() {
  const [from, to, last] = ["from", "to", "last"].map((name) => Number(inQuery(name)));
  if (last > 0) { seconds = last; if (last > LIVE_S) span = lastOf(last); }
  else if (from > 0 && to > from) span = { from, to };
}

foldList();
askedRange();
showSpan();
page = pageOf(asked());
selected = page ? "" : asked();
connect();
