// Requests of a revision: errors by cause, and one of three lists. All texts come from outside and are set as text.
import { cells, clock, duration, make } from "./charts.js";
import { keyed } from "./rows.js";

const PERIOD_MS = 5000, SHOWN_MAX = 50;
const TONES = { client: "wait", "": "good" };

export class Requests {
  constructor(part) {
    Object.assign(this, { part, revision: "", report: null });
    [this.state, this.errors, this.rows] = ["requests-state", "requests-errors", "requests-rows"].map((id) => part.querySelector(`#${id}`));
    part.addEventListener("change", () => this.draw());
    setInterval(() => { if (!document.hidden) this.#load(); }, PERIOD_MS);
  }

  // Called with each tick.
  show(revision) {
    if (revision === this.revision) return;
    Object.assign(this, { revision, report: null });
    this.part.hidden = true;
    if (revision) this.#load();
  }

  async #load() {
    const asked = this.revision;
    if (!asked) return;
    let report = null;
    try {
      const answer = await fetch(`requests?revision=${encodeURIComponent(asked)}`);
      report = answer.ok ? await answer.json() : null;
    } catch { /* the dashboard is away; the page says so */ }
    // What is known stays while no activator answers.
    if (asked !== this.revision || !report) return;
    this.report = report;
    this.part.hidden = false;
    this.draw();
  }

  draw() {
    const { report } = this;
    if (!report) return;
    const list = this.part.querySelector("input:checked").value;
    const chosen = list === "slow" ? report.slow : [...report[list]].reverse();
    const text = chosen.length ? "" : { failed: "No request has failed.", slow: "No request ended in the last 15 minutes.", sampled: "No request is recorded." }[list];
    if (this.state.textContent !== text) this.state.textContent = text;
    this.errors.parentNode.parentNode.hidden = !report.errors.length;
    keyed(this.errors, report.errors.map((one) => [`${one.failed_by} ${one.status} ${one.why.replace(/\d+/g, "N")}`, one]), (node, one) => {
      cells(node, String(one.count), one.failed_by, one.status ? String(one.status) : "–", one.why, clock(one.first_wall_s), clock(one.last_wall_s));
      for (const cell of [...node.children].slice(-2)) cell.className = "time";
    });
    this.rows.parentNode.parentNode.hidden = !chosen.length;
    const keys = new Map();
    keyed(this.rows, chosen.slice(0, SHOWN_MAX).map((one) => {
      const key = `${one.at_wall_s} ${one.duration_s} ${one.path}`, count = keys.get(key) || 0;
      keys.set(key, count + 1);
      return [`${key} ${count}`, one];
    }), (node, one) => this.#row(node, one));
  }

  #row(node, one) {
    const status = make("span", { className: `state ${TONES[one.failed_by] ?? "bad"}`, textContent: one.status ? String(one.status) : "none" });
    const parts = [["waited", one.waited_s], ["start", one.start_s], ["pod queue", one.queued_s], ["app", one.app_s]];
    const named = parts.filter(([, took]) => Math.round(1000 * took)).map(([name, took]) => `${name} ${duration(took)}`).join(", ");
    const took = make("span", {}, make("b", { textContent: duration(one.duration_s) }), `${one.is_cold ? " cold" : ""}${named ? `: ${named}` : ""}`);
    cells(node, clock(one.at_wall_s), status, `${one.method} ${one.path}`, took, this.#more(one));
    node.firstChild.className = "time";
  }

  #more(one) {
    const why = one.failed_by ? `${one.failed_by}: ${one.why}` : "answered";
    const facts = [one.pod && `pod ${one.pod}`, one.trace_id && `trace ${one.trace_id}`, one.request_id && `request ${one.request_id}`]
      .filter(Boolean)
      .join(", ");
    if (!facts) return why;
    const more = make("details", {}, make("summary", { textContent: why }), make("p", { className: "note", textContent: facts }));
    if (one.pod) more.append(make("code", { textContent: this.#logs(one) }));
    return more;
  }

  // The logs of that pod at that moment.
  #logs(one) {
    const [namespace] = this.revision.split("/"), at = (seconds) => local(new Date(1000 * seconds));
    return `serving logs ${one.service || one.revision} -n ${namespace} --pod ${one.pod} --since ${at(one.at_wall_s - one.duration_s - 1)} --until ${at(one.at_wall_s + 2)}`;
  }
}

function local(at) {
  const two = (value) => String(value).padStart(2, "0");
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}T${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}
