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
      const response = await fetch(`requests?revision=${encodeURIComponent(asked)}`);
      report = response.ok ? await response.json() : null;
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
    keyed(this.errors, report.errors.map((failure) => [`${failure.failed_by} ${failure.status} ${failure.why.replace(/\d+/g, "N")}`, failure]), (node, failure) => {
      cells(node, String(failure.count), failure.failed_by, failure.status ? String(failure.status) : "–", failure.why, clock(failure.first_wall_s), clock(failure.last_wall_s));
      for (const cell of [...node.children].slice(-2)) cell.className = "time";
    });
    this.rows.parentNode.parentNode.hidden = !chosen.length;
    const keys = new Map();
    keyed(this.rows, chosen.slice(0, SHOWN_MAX).map((request) => {
      const key = `${request.at_wall_s} ${request.duration_s} ${request.path}`, count = keys.get(key) || 0;
      keys.set(key, count + 1);
      return [`${key} ${count}`, request];
    }), (node, request) => this.#row(node, request));
  }

  #row(node, request) {
    const status = make("span", { className: `state ${TONES[request.failed_by] ?? "bad"}`, textContent: request.status ? String(request.status) : "none" });
    const parts = [["waited", request.waited_s], ["start", request.start_s], ["pod queue", request.queued_s], ["app", request.app_s]];
    const named = parts.filter(([, took]) => Math.round(1000 * took)).map(([name, took]) => `${name} ${duration(took)}`).join(", ");
    const took = make("span", {}, make("b", { textContent: duration(request.duration_s) }), `${request.is_cold ? " cold" : ""}${named ? `: ${named}` : ""}`);
    cells(node, clock(request.at_wall_s), status, `${request.method} ${request.path}`, took, this.#more(request));
    node.firstChild.className = "time";
  }

  #more(request) {
    const why = request.failed_by ? `${request.failed_by}: ${request.why}` : "answered";
    const facts = [request.pod && `pod ${request.pod}`, request.trace_id && `trace ${request.trace_id}`, request.request_id && `request ${request.request_id}`]
      .filter(Boolean)
      .join(", ");
    if (!facts) return why;
    const more = make("details", {}, make("summary", { textContent: why }), make("p", { className: "note", textContent: facts }));
    if (request.pod) more.append(make("code", { textContent: this.#logs(request) }));
    return more;
  }

  // The logs of that pod at that moment.
  #logs(request) {
    const [namespace] = this.revision.split("/"), at = (seconds) => local(new Date(1000 * seconds));
    return `serving logs ${request.service || request.revision} -n ${namespace} --pod ${request.pod} --since ${at(request.at_wall_s - request.duration_s - 1)} --until ${at(request.at_wall_s + 2)}`;
  }
}

function local(at) {
  const two = (value) => String(value).padStart(2, "0");
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}T${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}
