// By which rates the last pod of a revision is kept, and what that saves: a curve over the age of a gap, both axes logarithmic.
import { number } from "./charts.js";

const PERIOD_MS = 10000;
const HEIGHT = 170, LEFT = 44, RIGHT = 12, TOP = 10, BOTTOM = 24;
const FROM_S = 1, DECADES_MIN = 1e-3;
const AGES_S = [1, 10, 60, 600, 3600, 21600];

const svg = (tag, properties, ...children) => {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(properties)) node.setAttribute(name, value);
  node.append(...children);
  return node;
};

function span(seconds) {
  if (seconds < 120) return `${seconds.toFixed(0)} s`;
  return seconds < 7200 ? `${+(seconds / 60).toFixed(1)} min` : `${(seconds / 3600).toFixed(1)} h`;
}

export class Policy {
  constructor(part) {
    this.part = part;
    [this.saved, this.kept, this.drawing] = ["saved", "kept", "curve"].map((id) => part.querySelector(`#${id}`));
    this.revision = "";
    this.story = null;
    setInterval(() => { if (!document.hidden) this.#load(); }, PERIOD_MS);
    new ResizeObserver(() => this.draw()).observe(part);
  }

  // Called with each tick: the age of the gap grows.
  show(revision, inFlight) {
    this.inFlight = inFlight;
    if (revision !== this.revision) {
      Object.assign(this, { revision, story: null });
      this.part.hidden = true;
      if (revision) this.#load();
    }
    this.draw();
  }

  async #load() {
    const asked = this.revision;
    if (!asked) return;
    let story = null;
    try {
      const response = await fetch(`policy?revision=${encodeURIComponent(asked)}`);
      story = response.ok ? await response.json() : null;
    } catch { /* the dashboard is away; the page says so */ }
    if (asked !== this.revision) return;
    this.story = story;
    this.part.hidden = !story;
    this.draw();
  }

  #age() {
    const since = this.story.idle_since_wall_s;
    return since == null || this.inFlight ? null : Math.max(0, Date.now() / 1000 - since);
  }

  draw() {
    const { story } = this;
    if (!story || this.part.hidden) return;
    const other = story.policy === "adaptive" ? "knative" : "adaptive", pods = `${story.shadow_scale} pod${story.shadow_scale === 1 ? "" : "s"}`;
    const saved = story.sentence ? `${story.sentence[0].toUpperCase()}${story.sentence.slice(1)}.` : "Nothing to compare yet.";
    this.#write(this.saved, `Policy ${story.policy}; ${other} in shadow has ${pods} now. ${saved}`);
    const { curve } = story, age = this.#age();
    this.drawing.parentNode.hidden = !curve;
    if (!curve) return;
    this.#write(this.kept, this.#text(curve, age));
    this.#plot(curve, age);
  }

  #write(node, text) { if (node.textContent !== text) node.textContent = text; }

  #text(curve, age) {
    const isShadow = this.story.policy !== "adaptive";
    const kept = `${isShadow ? "Under the adaptive policy the last pod would stay" : "The last pod stays"} for ${span(curve.windows[0][1])} after a request`;
    const ahead = curve.windows.slice(1, 4).map(([from, to]) => `${span(from)} to ${span(to)}`);
    const warmed = ahead.length ? `, and ${isShadow ? "be" : "is"} started ahead of one expected after ${ahead.join(", ")}` : "";
    const now = age == null ? "requests are in flight" : `idle for ${span(age)}`;
    const learnt = `Learnt from ${curve.gap_count} gap${curve.gap_count === 1 ? "" : "s"}`;
    const least = number(curve.threshold * 60);
    return `${kept}${warmed}. ${learnt}; a pod is kept from ${least} request${least === "1" ? "" : "s"} a minute on. Now ${now}.`;
  }

  #plot(curve, age) {
    const width = Math.max(260, this.drawing.clientWidth || 640);
    this.drawing.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    const last = curve.ages_s.at(-1), rates = curve.rates.map((rate) => rate * 60), threshold = curve.threshold * 60;
    const high = 10 ** Math.ceil(Math.log10(Math.max(threshold, ...rates) * 1.2));
    const low = Math.max(DECADES_MIN, 10 ** Math.floor(Math.log10(Math.min(threshold, ...rates.filter((rate) => rate > 0)))));
    const x = (at) => LEFT + (width - LEFT - RIGHT) * Math.log(Math.max(FROM_S, at) / FROM_S) / Math.log(last / FROM_S);
    const y = (rate) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - Math.log(Math.min(high, Math.max(low, rate)) / low) / Math.log(high / low));
    const floor = HEIGHT - BOTTOM, nodes = [];
    for (const [from, to] of curve.windows) {
      nodes.push(svg("rect", { class: "band", x: x(from), y: TOP, width: Math.max(1, x(Math.min(to, last)) - x(from)), height: floor - TOP }));
    }
    for (let rate = low; rate <= high * 1.001; rate *= 10) {
      nodes.push(svg("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(rate), y2: y(rate) }));
      nodes.push(svg("text", { x: LEFT - 6, y: y(rate) + 4, "text-anchor": "end" }, String(Number(rate.toPrecision(1)))));
    }
    for (const at of AGES_S.filter((age) => age <= last)) {
      nodes.push(svg("line", { class: "grid", x1: x(at), x2: x(at), y1: TOP, y2: floor }));
      nodes.push(svg("text", { x: x(at), y: HEIGHT - 8, "text-anchor": "middle" }, at < 60 ? `${at} s` : at < 3600 ? `${at / 60} min` : `${at / 3600} h`));
    }
    const points = curve.ages_s.flatMap((at, place) => at < FROM_S ? [] : [`${x(at).toFixed(1)},${y(rates[place]).toFixed(1)}`]);
    nodes.push(svg("polyline", { class: "line", points: points.join(" ") }));
    nodes.push(svg("line", { class: "dash", x1: LEFT, x2: width - RIGHT, y1: y(threshold), y2: y(threshold) }));
    if (age != null) nodes.push(svg("line", { class: "now", x1: x(Math.min(age, last)), x2: x(Math.min(age, last)), y1: TOP, y2: floor }));
    this.drawing.replaceChildren(...nodes);
    this.drawing.setAttribute("aria-label", this.kept.textContent);
  }
}
