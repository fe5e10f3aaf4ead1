// Two revisions of a service side by side, with the settings that differ, and traffic moved between them by one click.
import { act } from "./actions.js";
import { address, asked } from "./address.js";
import { cells, duration, make, number } from "./charts.js";
import { keyed, write } from "./rows.js";
import { share } from "./overview.js";

const PERIOD_MS = 5000, PARTS = 60, PERIOD_MAX_S = 60, ENOUGH = 20, NOTABLE = 0.1, STEPS = [10, 50, 100], LATEST = "@latest";
const by = (id) => document.getElementById(id);
const whole = (value) => Math.round(value).toLocaleString("en");
const percent = (part) => `${number(100 * part)} %`;
const errorsOf = (revision) => revision.requests ? revision.errors / revision.requests : null;
const podsPer = (revision) => revision.requests ? 1000 * revision.pod_seconds / revision.requests : null;

// Name, text of a revision's value, and the number that is better when it is less.
const ROWS = [
  ["Traffic now", (revision) => `${revision.traffic_percent} %`],
  ["Requests", (revision) => whole(revision.requests)],
  ["5xx", (revision) => revision.requests ? `${percent(errorsOf(revision))} (${whole(revision.errors)})` : "–", errorsOf, true],
  ["p50", (revision) => duration(revision.p50_s), (revision) => revision.p50_s],
  ["p95", (revision) => duration(revision.p95_s), (revision) => revision.p95_s],
  ["p99", (revision) => duration(revision.p99_s), (revision) => revision.p99_s],
  ["Pods, mean", (revision) => number(revision.pods_mean)],
  ["Pod-seconds", (revision) => whole(revision.pod_seconds)],
  ["GiB-seconds", (revision) => whole(revision.gib_seconds)],
  ["Cost", (revision) => revision.price == null ? null : revision.price.toFixed(4)],
  ["Pod-seconds per 1,000 requests", (revision) => podsPer(revision) == null ? "–" : whole(podsPer(revision)), podsPer],
];

export class Compare {
  // `range` returns the times shown.
  constructor(part, range) {
    Object.assign(this, { part, range, chosen: "", pair: [], wanted: "", report: null, isClosed: false, readAt: 0 });
    [this.old, this.new] = [by("compare-old"), by("compare-new")];
    for (const select of [this.old, this.new]) {
      select.addEventListener("change", () => { this.#keep([this.old.value, this.new.value]); this.#fill(); this.#load(); });
    }
    // A click of the user, not the page's own opening, goes to the address.
    part.querySelector("summary").addEventListener("click", () => {
      this.isClosed = part.open;
      this.#keep(part.open ? null : this.pair);
      setTimeout(() => this.#load());
    });
    by("token").addEventListener("input", () => this.#buttons());
    // Of a long time a few seconds change little, and cost the dashboard more.
    setInterval(() => {
      const { from, to } = range(), age = Date.now() / 1000 - this.readAt;
      if (!document.hidden && age >= Math.min(PERIOD_MAX_S, (to - from) / PARTS)) this.#load();
    }, PERIOD_MS);
  }

  // Called with each tick. `names` are the service's revisions, newest first.
  show({ service, names, selected, mayAct, user, shown }) {
    this.part.hidden = !service || names.length < 2;
    if (this.part.hidden) { this.chosen = ""; return; }
    Object.assign(this, { service, names, selected, mayAct, user });
    const chosen = `${service.namespace}/${service.name}`;
    if (chosen !== this.chosen) {
      Object.assign(this, { chosen, report: null, isClosed: false });
      this.part.open = false;
      this.#say("", "");
    }
    const served = names.filter((name) => share(service, name) > 0), chosenPair = this.#addressed();
    this.pair = chosenPair || this.#pair(served);
    write(by("compare-title"), served.length > 1 ? `Compare ${this.pair.join(" and ")}: both have traffic` : "Compare revisions");
    if (!this.isClosed && (chosenPair || served.length > 1)) this.part.open = true;
    this.#fill();
    this.#buttons();
    const wanted = `${chosen} ${this.pair} ${shown}`;
    if (wanted === this.wanted) return;
    this.wanted = wanted;
    this.report = null;
    this.#load();
  }

  // The pair in the address, if it is of this service.
  #addressed() {
    const pair = asked("compare").split(",");
    return pair.length === 2 && pair[0] !== pair[1] && pair.every((name) => this.names.includes(name)) ? pair : null;
  }

  #keep(pair) {
    if (pair) this.pair = pair;
    address({ compare: pair?.join(",") ?? null });
  }

  // Older first: those with the most traffic, or the chosen revision and the one that has it, or the one before.
  #pair(served) {
    const main = [...served].sort((a, b) => share(this.service, b) - share(this.service, a));
    const own = this.selected.split("/")[1], place = this.names.indexOf(own);
    const other = main[0] && main[0] !== own ? main[0] : this.names[place + 1] || this.names[place - 1];
    const pair = main.length > 1 ? main.slice(0, 2) : [own, other];
    return pair.sort((a, b) => this.names.indexOf(b) - this.names.indexOf(a));
  }

  #fill() {
    for (const [place, select] of [this.old, this.new].entries()) {
      const options = this.names.filter((name) => name !== this.pair[1 - place]);
      if (select.among !== options.join()) {
        select.among = options.join();
        select.replaceChildren(...options.map((name) => make("option", { value: name, textContent: name })));
      }
      if (select.value !== this.pair[place]) select.value = this.pair[place];
    }
  }

  async #load() {
    const { chosen, pair } = this;
    if (!chosen || !this.part.open) return;
    this.readAt = Date.now() / 1000;
    const { from, to } = this.range(), [namespace] = chosen.split("/");
    const query = new URLSearchParams([["name", chosen], ...pair.map((name) => ["revision", `${namespace}/${name}`]), ["from", from], ["to", to]]);
    let problem = "the dashboard does not answer";
    try {
      const response = await fetch(`compare?${query}`);
      if (chosen !== this.chosen || pair.join() !== this.pair.join()) return;
      if (response.ok) this.report = await response.json();
      problem = response.ok ? "" : await response.text();
    } catch { /* reported below; what is known stays */ }
    if (problem) write(by("compare-note"), problem); else this.#draw();
  }

  #draw() {
    const [old, other] = this.report.revisions, settings = this.report.settings;
    write(by("compare-note"), verdict(old, other));
    for (const [id, revision] of [["first", old], ["second", other]]) for (const table of ["", "-set"]) write(by(`compare-${id}${table}`), revision.revision);
    const rows = ROWS.map(([name, text, value, isShare]) => ({ name, texts: [text(old), text(other)], than: value ? difference(value(old), value(other), isShare) : "", tone: value ? toneOf(old, other, value, isShare) : "" }));
    keyed(by("compare-rows"), rows.filter((row) => row.texts[0] != null).map((row) => [row.name, row]), (node, row) => {
      cells(node, row.name, ...row.texts, make("span", { className: row.tone, textContent: row.than }));
      head(node);
      for (const cell of [...node.children].slice(1)) cell.className = "num";
    });
    by("compare-settings").hidden = !settings.length;
    by("compare-same").hidden = Boolean(settings.length);
    keyed(by("compare-set"), settings.map((setting) => [setting.name, setting]), (node, setting) => {
      cells(node, setting.name, setting.older ?? "–", setting.newer ?? "–");
      head(node);
    });
  }

  // For those who may act: users whom a proxy knows, and the holder of a token.
  #buttons() {
    if (!this.service || this.part.hidden) return;
    const holds = this.mayAct && Boolean(this.user || by("token").value.trim()), { service, pair: [old, other] } = this;
    by("compare-token").hidden = !this.mayAct || holds;
    by("compare-act").hidden = !holds;
    const follows = service.traffic.some((target) => target.is_latest && target.percent);
    const moves = holds ? [
      ...(share(service, old) < 100 && this.names.indexOf(old) > this.names.indexOf(other) ? [["rollback", `Roll back to ${old}`, { revision: old }]] : []),
      ...STEPS.filter((step) => share(service, other) !== step).map((step) => ["traffic", `${step} % to ${other}`, { shares: { [other]: step, ...(step < 100 ? { [old]: 100 - step } : {}) } }]),
      ...(follows ? [] : [["traffic", "Follow the latest ready revision", { shares: { [LATEST]: 100 } }]]),
    ] : [];
    keyed(by("compare-act"), moves.map((move) => [move[1], move]), (node, [action, text, body]) => {
      node.type = "button";
      node.textContent = text;
      node.onclick = () => this.#move(action, body);
    }, "button");
  }

  #say(text, tone) {
    by("compare-done").textContent = text;
    by("compare-done").className = tone;
  }

  async #move(action, body) {
    if (this.isMoving) return;
    this.isMoving = true;
    for (const button of by("compare-act").children) button.setAttribute("aria-disabled", "true");
    this.#say("moving traffic …", "wait");
    const { said, error } = await act(action, { namespace: this.service.namespace, service: this.service.name, ...body }, this.user);
    this.#say(said || error, said ? "good" : "bad");
    this.isMoving = false;
    for (const button of by("compare-act").children) button.removeAttribute("aria-disabled");
    // A button that is gone took the focus with it.
    if (document.activeElement === document.body) this.part.querySelector("summary").focus();
    this.#load();
  }
}

function head(node) {
  const first = make("th", { scope: "row" }, ...node.firstChild.childNodes);
  node.firstChild.replaceWith(first);
}

function difference(before, after, isShare) {
  if (before == null || after == null) return "–";
  if (isShare) return `${after >= before ? "+" : "−"}${number(Math.abs(100 * (after - before)))} points`;
  if (!before) return "–";
  const ratio = after / before;
  return ratio >= 3 ? `${number(ratio)} times` : `${ratio >= 1 ? "+" : "−"}${Math.round(100 * Math.abs(ratio - 1))} %`;
}

// Whether the second is notably worse or better; with few requests neither.
function toneOf(old, other, value, isShare) {
  const before = value(old), after = value(other);
  if (before == null || after == null || Math.min(old.requests, other.requests) < ENOUGH) return "";
  const change = isShare ? 10 * (after - before) : before ? after / before - 1 : 0;
  return change >= NOTABLE ? "bad" : change <= -NOTABLE ? "good" : "";
}

function verdict(old, other) {
  const idle = [old, other].filter((revision) => !revision.requests).map((revision) => revision.revision);
  if (idle.length) return `${idle.join(" and ")} had no requests in this time.`;
  const few = [old, other].filter((revision) => revision.requests < ENOUGH).map((revision) => revision.revision);
  if (few.length) return `${few.join(" and ")} had fewer than ${ENOUGH} requests in this time: too few to judge.`;
  const findings = [];
  if (toneOf(old, other, errorsOf, true)) findings.push(`fails ${percent(errorsOf(other))} of its requests, ${old.revision} ${percent(errorsOf(old))}`);
  const p95 = toneOf(old, other, (revision) => revision.p95_s);
  if (p95) findings.push(`is ${p95 === "bad" ? "slower" : "faster"}: p95 ${duration(other.p95_s)}, ${old.revision} ${duration(old.p95_s)}`);
  return `${other.revision} ${findings.join("; it ") || `is as good as ${old.revision}: errors and p95 differ little`}.`;
}
