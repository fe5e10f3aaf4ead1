// Cold starts of the chosen revision: a bar each, cut into steps, with the median first. The same numbers stand in a table.
import { clock, duration, make } from "./charts.js";

const PERIOD_MS = 10000, SHOWN_MAX = 10;
export const STEPS = ["autoscaler decides", "pod is created", "pod is scheduled", "container starts", "app starts", "request is sent", "unknown"];

export class ColdStarts {
  constructor(part) {
    this.part = part;
    [this.advice, this.bars, this.table] = ["cold-advice", "cold-bars", "cold-table"].map((id) => part.querySelector(`#${id}`));
    this.revision = "";
    this.drawn = "";
    part.querySelector("#cold-keys").replaceChildren(...STEPS.map((step, place) => make("span", { className: `key step${place}`, textContent: step })));
    setInterval(() => { if (!document.hidden) this.#load(); }, PERIOD_MS);
  }

  show(revision) {
    if (revision === this.revision) return;
    Object.assign(this, { revision, drawn: "" });
    this.part.hidden = true;
    this.#load();
  }

  async #load() {
    const asked = this.revision;
    if (!asked) return;
    let report = null;
    try {
      const response = await fetch(`coldstarts?name=${encodeURIComponent(asked)}`);
      [report] = response.ok ? await response.json() : [];
    } catch { /* the dashboard is away; the page says so */ }
    const text = JSON.stringify(report);
    if (asked !== this.revision || text === this.drawn) return;
    this.drawn = text;
    this.part.hidden = !report?.starts.length;
    if (!this.part.hidden) this.#draw(report);
  }

  #draw({ starts, median }) {
    this.advice.textContent = median.advice;
    const lines = [{ name: `Median of ${starts.length}`, ...median }, ...starts.slice(0, SHOWN_MAX).map((start) => ({ name: clock(start.at_s), ...start }))];
    const longest = Math.max(...lines.map((line) => line.took_s));
    this.bars.replaceChildren(...lines.map((line) => bar(line, longest)));
    this.table.replaceChildren(...lines.map((line) => {
      const head = make("th", { scope: "row", textContent: line.name });
      return make("tr", {}, head, ...STEPS.map((step) => make("td", { className: "num", textContent: duration(line.steps[step]) })), make("td", { className: "num", textContent: duration(line.took_s) }));
    }));
  }
}

// For the eye alone: the table says the same.
function bar(line, longest) {
  const parts = STEPS.map((step, place) => [step, place, line.steps[step]]).filter(([, , took]) => took).map(([step, place, took]) => {
    const part = make("i", { className: `step${place}`, title: `${step}: ${duration(took)}` });
    part.style.width = `${100 * took / longest}%`;
    return part;
  });
  return make("div", { className: "cold" }, make("span", { textContent: line.name }), make("div", {}, ...parts), make("b", { textContent: duration(line.took_s) }));
}
