// The charts of one revision: five figures over shared columns, with panic shaded and decisions marked.

const NAME_END = 6, NAME_SHORT = 12;
const STEP = () => uPlot.paths.stepped({ align: 1 });
export const CHARTS = [
  { id: "concurrency", title: "Requests in flight", series: [
    ["running", "running", "--a", "fill"], ["observed", "average", "--c"], ["target", "target", "--b", "dash"]] },
  { id: "pods", title: "Pods", whole: true, note: "lines mark changes; point at one to read why", series: [
    ["desired", "desired", "--b", "step"], ["ready", "ready", "--a", "step"], ["starting", "starting", "--d", "step"], ["dormant", "dormant", "--sleep", "step"]] },
  { id: "queue", title: "Queue", whole: true, note: "requests that wait in the activator", series: [["held", "waiting", "--b", "fill"]] },
  { id: "requests", title: "Responses per second", from: "the activator", series: [
    ["rps_2xx", "2xx", "--a"], ["rps_3xx", "3xx", "--c"], ["rps_4xx", "4xx", "--d"], ["rps_5xx", "5xx", "--b"]] },
  { id: "latency", title: "Latency", unit: "ms", note: "logarithmic", log: true, from: "the activator", scale: 1000, text: (value) => duration(value == null ? null : value / 1000), series: [
    ["p50_s", "p50", "--a"], ["p95_s", "p95", "--d"], ["p99_s", "p99", "--b"]] },
  { id: "cpu", title: "CPU", unit: "cores", from: "the metrics API", series: [["cpu_cores", "all pods", "--a", "fill"]] },
  { id: "memory", title: "Memory", unit: "MiB", from: "the metrics API", scale: 2 ** -20, text: (value) => bytes(value == null ? null : value * 2 ** 20), series: [["memory_bytes", "all pods", "--c", "fill"]] },
];
// Steps between the lines of what is counted in whole numbers.
const WHOLE = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000];
const HEIGHT = 150, NEAR_PX = 9, TABLE_ROWS = 30, LEAST_S = 60, DAY_S = 86400;
// Marks: what the autoscaler decided, what was deployed, what failed.
const MARKS = { decision: "--mark", deploy: "--a", failure: "--b" };

export const clock = (at) => new Date(at * 1000).toLocaleTimeString([], { hour12: false });
// With the date, for times of other days than today.
export const date = (at) => new Date(at * 1000).toLocaleDateString([], { month: "short", day: "numeric" });
export const moment = (at) => Date.now() / 1000 - at < DAY_S / 2 ? clock(at) : `${date(at)} ${clock(at)}`;
export const number = (value) => value == null ? "–" : value >= 100 ? value.toFixed(0) : String(+value.toFixed(value < 10 ? 2 : 1));

// "0.4 ms", "35 ms", "5.1 s".
export const duration = (seconds) => seconds == null ? "–" : seconds < 1 ? `${+(1000 * seconds).toFixed(seconds < 0.01 ? 1 : 0)} ms` : `${seconds.toFixed(1)} s`;

// "0.25", "73 MiB", "1.5 GiB".
export const cores = (value) => value == null ? "–" : value < 0.01 ? "0" : number(value);
export const bytes = (value) => value == null ? "–" : value >= 2 ** 30 ? `${number(value / 2 ** 30)} GiB` : `${Math.round(value / 2 ** 20)} MiB`;

export function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

// A name that is cut in its middle where there is too little room: similar names differ at their end.
export function writeName(node, name) {
  if (node.textContent === name) return;
  const isLong = name.length > NAME_SHORT;
  node.classList.toggle("name", isLong);
  node.replaceChildren(...isLong ? [name.slice(0, -NAME_END), name.slice(-NAME_END)].map((textContent) => make("span", { textContent })) : [name]);
}

// The cells of a table's row.
export const cells = (node, ...contents) => node.replaceChildren(...contents.map((content) => make("td", {}, content)));

// Whole powers of ten, so that one cold start of seconds leaves responses of milliseconds readable.
function decades(plot, low, high) {
  const from = Math.floor(Math.log10(Math.max(low ?? 1, 0.1))), to = Math.ceil(Math.log10(Math.max(high ?? 10, 1)));
  return [10 ** from, 10 ** Math.max(to, from + 1)];
}
const decade = (value) => Number.isInteger(Math.round(Math.log10(value) * 1e6) / 1e6) ? number(value) : "";

// Where there is little room: minutes and seconds, or hours and minutes.
function tickText(plot, at, step) {
  if (step >= DAY_S) return date(at);
  if (step >= 3600) return new Date(at * 1000).getHours() ? clock(at).slice(0, 5) : date(at);
  if (plot.width >= 380) return clock(at);
  return step < 60 ? clock(at).slice(3) : clock(at).slice(0, 5);
}

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

export class Charts {
  // ``onZoom`` gets the range that the reader marks in a chart.
  constructor(root, spoken, onZoom) {
    this.root = root;
    this.onZoom = onZoom;
    this.spoken = spoken;
    this.decisions = [];
    this.times = [];
    this.panic = [];
    this.figures = CHARTS.map((chart) => this.#figure(chart));
    root.replaceChildren(...this.figures.map((panel) => panel.node));
    new ResizeObserver(() => this.#resize()).observe(root);
  }

  // New colours need new plots.
  restyle() {
    for (const panel of this.figures) { panel.plot?.destroy(); panel.plot = null; }
    if (this.columns) this.draw(this.columns, this.decisions, this.seconds, this.span);
  }

  // The last ``seconds``, or a ``span`` with from and to.
  draw(columns, decisions, seconds, span) {
    Object.assign(this, { columns, decisions, span, seconds: span ? span.to - span.from : seconds });
    const all = columns.at_s, last = span ? span.to : all.length ? all[all.length - 1] : Date.now() / 1000;
    let begin = all.length;
    while (begin > 0 && all[begin - 1] >= last - this.seconds) begin -= 1;
    this.times = all.slice(begin);
    this.panic = columns.is_panic.slice(begin);
    for (const panel of this.figures) this.#drawOne(panel, begin, last);
  }

  #figure(chart) {
    const holder = make("div", { className: "plot", tabIndex: 0 });
    holder.setAttribute("role", "group");
    holder.setAttribute("aria-label", `${chart.title}: chart; arrow keys move through time, the table below has the numbers`);
    const empty = make("p", { className: "empty", hidden: true, textContent: chart.from ? `No numbers from ${chart.from} yet.` : "No data yet." });
    const body = make("tbody");
    const head = make("tr", {}, ...["time", ...chart.series.map((line) => line[1])].map((text) => {
      const cell = make("th", { textContent: text });
      cell.scope = "col";
      return cell;
    }));
    const details = make("details", {}, make("summary", {}, "Table", make("span", { className: "hidden", textContent: ` of ${chart.title}` })), make("table", {}, make("thead", {}, head), body));
    const caption = make("figcaption", { textContent: chart.title });
    if (chart.unit || chart.note) caption.append(" ", make("small", { textContent: [chart.unit, chart.note].filter(Boolean).join(", ") }));
    const panel = { chart, holder, empty, body, details, plot: null, data: null, node: make("figure", {}, caption, holder, empty, details) };
    details.addEventListener("toggle", () => this.#table(panel));
    holder.addEventListener("keydown", (event) => this.#key(panel, event));
    if (chart.id === "pods") {
      panel.tip = make("div", { className: "tip", hidden: true });
      panel.node.append(panel.tip);
    }
    return panel;
  }

  #drawOne(panel, begin, last) {
    const scale = panel.chart.scale || 1;
    panel.data = [this.times, ...panel.chart.series.map(([name]) =>
      this.columns[name].slice(begin).map((value) => value == null ? null : value * scale))];
    const hasData = panel.data.slice(1).some((column) => column.some((value) => value != null));
    panel.holder.hidden = !hasData;
    panel.empty.hidden = hasData;
    // A page that is young shows what there is, not an empty hour.
    panel.range = this.span ? [this.span.from, last] : [Math.max(last - this.seconds, Math.min(this.times[0] ?? last, last - LEAST_S)), last];
    if (!hasData) return;
    if (panel.plot) panel.plot.setData(panel.data);
    else panel.plot = new uPlot(this.#options(panel), panel.data, panel.holder);
    // Where nobody points, the legend says what is now.
    if (panel.plot.cursor.idx == null) panel.plot.setLegend({ idx: this.times.length - 1 });
    this.#table(panel);
  }

  #options(panel) {
    const axis = { stroke: colour("--dim"), grid: { stroke: colour("--grid"), width: 1 }, ticks: { stroke: colour("--grid"), size: 4 }, font: "11px system-ui, sans-serif" };
    return {
      width: Math.max(200, panel.holder.clientWidth), height: HEIGHT, padding: [10, 24, 0, 0],
      cursor: { y: false, sync: { key: "revision" }, drag: { x: true, y: false, setScale: false }, points: { size: 6 } },
      legend: { live: true },
      scales: { x: { range: () => panel.range }, y: panel.chart.log ? { distr: 3, range: decades } : { range: (plot, low, high) => [0, Math.max(panel.chart.id === "cpu" ? 0.1 : 1, (high ?? 1) * 1.1)] } },
      axes: [
        { ...axis, space: 76, size: 26, values: (plot, ticks) => ticks.map((at) => tickText(plot, at, ticks[1] - ticks[0])) },
        { ...axis, size: 44, space: 22, ...(panel.chart.whole && { incrs: WHOLE }), values: (plot, ticks) => ticks.map(panel.chart.log ? decade : number) },
      ],
      series: [
        { label: "time", value: (plot, at) => at == null ? "–" : moment(at) },
        ...panel.chart.series.map(([, label, name, style]) => ({
          label, stroke: colour(name), width: 1.75, points: { show: false }, value: (plot, value) => (panel.chart.text || number)(value),
          ...(style === "dash" && { dash: [6, 4] }),
          ...(style === "fill" && { fill: colour(name) + "26" }),
          ...(style === "step" && { paths: STEP() }),
        })),
      ],
      hooks: { drawClear: [(plot) => this.#shade(plot)], draw: [(plot) => this.#mark(panel, plot)], setCursor: [(plot) => this.#point(panel, plot)], setSelect: [(plot) => this.#select(plot)] },
    };
  }

  #select(plot) {
    const { left, width } = plot.select;
    if (width < NEAR_PX) return;
    const [from, to] = [left, left + width].map((at) => plot.posToVal(at, "x"));
    plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    this.onZoom(from, to);
  }

  #shade(plot) {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.fillStyle = colour("--panic");
    for (let at = 0; at < this.panic.length; at += 1) {
      if (!this.panic[at]) continue;
      let end = at;
      while (end + 1 < this.panic.length && this.panic[end + 1]) end += 1;
      const left = Math.max(bbox.left, plot.valToPos(this.times[at], "x", true));
      const right = plot.valToPos(this.times[Math.min(end + 1, this.times.length - 1)], "x", true);
      ctx.fillRect(left, bbox.top, Math.max(2, right - left), bbox.height);
      at = end;
    }
    ctx.restore();
  }

  #marks(plot) {
    return this.decisions.filter((decision) => decision.is_change && decision.at_s >= plot.scales.x.min && decision.at_s <= plot.scales.x.max);
  }

  #mark(panel, plot) {
    if (panel.chart.id !== "pods") return;
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.lineWidth = devicePixelRatio;
    ctx.setLineDash([2 * devicePixelRatio, 3 * devicePixelRatio]);
    for (const decision of this.#marks(plot)) {
      ctx.strokeStyle = ctx.fillStyle = colour(MARKS[decision.kind] || "--mark");
      const x = Math.round(plot.valToPos(decision.at_s, "x", true));
      const size = 4 * devicePixelRatio;
      ctx.beginPath(); ctx.moveTo(x, bbox.top); ctx.lineTo(x, bbox.top + bbox.height); ctx.stroke();
      ctx.beginPath(); ctx.moveTo(x - size, bbox.top); ctx.lineTo(x + size, bbox.top); ctx.lineTo(x, bbox.top + size * 1.6); ctx.fill();
    }
    ctx.restore();
  }

  #near(plot) {
    const left = plot.cursor.left;
    if (left == null || left < 0) return null;
    const far = (decision) => Math.abs(plot.valToPos(decision.at_s, "x") - left);
    return this.#marks(plot).filter((decision) => far(decision) <= NEAR_PX).sort((a, b) => far(a) - far(b))[0] || null;
  }

  #point(panel, plot) {
    if (plot.cursor.idx == null && this.times.length) plot.setLegend({ idx: this.times.length - 1 }, false);
    if (!panel.tip) return;
    const decision = this.#near(plot);
    panel.tip.hidden = !decision;
    if (!decision) return;
    panel.tip.textContent = `${moment(decision.at_s)}  ${decision.sentence}`;
    const x = plot.valToPos(decision.at_s, "x") + plot.over.offsetLeft + 14;
    const room = panel.node.clientWidth - panel.tip.offsetWidth - 10;
    panel.tip.style.left = `${Math.max(8, Math.min(x, room))}px`;
    panel.tip.style.top = `${panel.holder.offsetTop + HEIGHT - 34}px`;
  }

  #key(panel, event) {
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    if (step === undefined || !panel.plot || !this.times.length) return;
    event.preventDefault();
    const last = this.times.length - 1;
    const from = panel.plot.cursor.idx ?? last;
    const at = Math.max(0, Math.min(last, from + step));
    panel.plot.setCursor({ left: panel.plot.valToPos(this.times[at], "x"), top: HEIGHT / 3 });
    const values = panel.chart.series.map(([, label], place) => `${label} ${(panel.chart.text || number)(panel.data[place + 1][at])}`);
    const decision = panel.chart.id === "pods" ? this.#near(panel.plot) : null;
    this.spoken.textContent = `${moment(this.times[at])}: ${values.join(", ")}${decision ? `; ${decision.sentence}` : ""}`;
  }

  #table(panel) {
    if (!panel.details.open || !panel.data) return;
    const rows = [];
    for (let at = this.times.length - 1; at >= 0 && rows.length < TABLE_ROWS; at -= 1) {
      rows.push(make("tr", {}, make("td", { className: "time", textContent: moment(this.times[at]) }),
        ...panel.data.slice(1).map((column) => make("td", { textContent: (panel.chart.text || number)(column[at]) }))));
    }
    panel.body.replaceChildren(...rows);
  }

  #resize() {
    for (const panel of this.figures) {
      const width = panel.holder.clientWidth;
      if (panel.plot && width && width !== panel.plot.width) panel.plot.setSize({ width, height: HEIGHT });
    }
  }
}
