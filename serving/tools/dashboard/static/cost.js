// What services cost: pods and memory over a range, with the operator's prices, beside those always on and under Knative's policy.
import { address, asked } from "./address.js";
import { clock, date, make, number } from "./charts.js";
import { keyed } from "./rows.js";

const LASTS = [[3600, "1h"], [21600, "6h"], [86400, "1d"], [604800, "7d"], [1209600, "14d"]];
const PERIOD_MS = 60000, DEFAULT_S = 86400, ROWS_FIRST = 100, HOUR_S = 3600, KNOWN_MIN = 0.98;
// The name of a column, its title, its meaning, and whether it is a price.
const COLUMNS = [
  ["service", "Service", ""], ["known_hours", "Hours known", "hours of the range of which the dashboard has history of the service"],
  ["pod_hours", "Pod-hours", "ready pods, times hours"], ["gib_hours", "GiB-hours", "memory that these pods request, times hours"],
  ["price", "Cost", "at the operator's prices", true],
  ["always_on_pod_hours", "Always on", "pod-hours with at least one pod at each moment"], ["always_on_price", "Cost always on", "with at least one pod at each moment", true],
  ["knative_pod_hours", "Knative", "pod-hours under Knative's policy, by the estimate of the last day"], ["knative_price", "Cost under Knative", "by the same estimate", true],
];
const hours = (value) => value == null ? "–" : value === 0 ? "0" : value < 1 ? String(+value.toPrecision(2)) : value.toFixed(value < 100 ? 2 : 0);
const money = (value) => value == null ? "–" : value === 0 ? "0" : value < 0.01 ? String(+value.toPrecision(1)) : value.toFixed(value < 1000 ? 2 : 0);
const isAll = (service, { from_s: from, to_s: to }) => service.known_hours * HOUR_S >= (to - from) * KNOWN_MIN;

export class Cost {
  constructor(root) {
    Object.assign(this, { root, report: null, problem: "", isShown: false, isAll: false, readAt: 0, wanted: null });
    const range = make("fieldset", { id: "cost-range" }, make("legend", { className: "hidden", textContent: "Time shown" }),
      ...LASTS.map(([length, text]) => make("label", {}, make("input", { type: "radio", name: "cost-range", value: length }), ` ${text}`)));
    range.addEventListener("change", (event) => { address({ from: null, to: null, last: Number(event.target.value) === DEFAULT_S ? null : event.target.value }); this.#load(); });
    this.state = make("p", { className: "note", id: "cost-state" });
    this.state.setAttribute("role", "status");
    this.heads = COLUMNS.map(([name, title, meaning]) => this.#head(name, title, meaning));
    this.body = make("tbody");
    this.sums = make("tr");
    const table = make("table", { className: "cost" }, make("thead", {}, make("tr", {}, ...this.heads)), this.body, make("tfoot", {}, this.sums));
    this.scroll = make("div", { className: "scroll wide", tabIndex: 0 }, table);
    for (const [name, value] of [["role", "region"], ["aria-label", "Cost of each service"]]) this.scroll.setAttribute(name, value);
    this.more = make("button", { type: "button", hidden: true });
    this.more.addEventListener("click", () => { this.isAll = true; this.#draw(); });
    root.append(make("div", { className: "head" }, make("h2", { id: "cost-title", textContent: "Cost", tabIndex: -1 }), range), this.state, this.scroll, this.more,
      make("p", { className: "note" }, make("span", { className: "key used", textContent: "pod-hours" }), make("span", { className: "key asked", textContent: "always on" })),
      make("p", { className: "note", textContent: "Deleted revisions count as long as their history is kept. Memory is what a pod requests, else its limit, else 200 MiB." }));
    setInterval(() => { if (this.isShown && !document.hidden && Date.now() - this.readAt >= PERIOD_MS) this.#load(); }, PERIOD_MS / 10);
  }

  // `names` are the services that there are, as "namespace/name".
  show(isShown, wanted, names) {
    const isNew = isShown && !this.isShown, isOther = JSON.stringify(wanted) !== JSON.stringify(this.wanted);
    Object.assign(this, { isShown, wanted, names });
    this.root.hidden = !isShown;
    if (isNew) this.#load();
    else if (isShown && isOther) this.#draw();
  }

  #range() {
    const [from, to, last] = ["from", "to", "last"].map((name) => Number(asked(name))), now = Math.floor(Date.now() / 1000);
    if (!(last > 0) && from > 0 && to > from) return { from, to, name: `${from} ${to}` };
    const length = last > 0 ? last : DEFAULT_S;
    return { from: now - length, to: now, name: String(length) };
  }

  async #load() {
    const range = this.#range();
    this.readAt = Date.now();
    for (const choice of this.root.querySelectorAll("input[name=cost-range]")) choice.checked = choice.value === range.name;
    let [report, problem] = [null, ""];
    try {
      const response = await fetch(`cost?from=${range.from}&to=${range.to}`);
      if (response.ok) report = await response.json();
      else problem = (await response.text()).trim();
    } catch { problem = "The dashboard does not answer."; }
    if (this.#range().name !== range.name) return;
    Object.assign(this, { report: report ?? this.report, problem });
    this.#draw();
  }

  #head(name, title, meaning) {
    const button = make("button", { type: "button", textContent: title, title: meaning });
    if (meaning) button.setAttribute("aria-description", meaning);
    button.addEventListener("click", () => {
      const { column, isUp } = this.#order();
      address({ sort: `${name}${(column === name ? !isUp : name === "service") ? "" : "-"}` });
      this.#draw();
    });
    const head = make("th", { scope: "col", className: name === "service" ? "" : `num ${name}` }, button);
    head.dataset.name = name;
    return head;
  }

  // The column to sort by, as in the address: "service" or "price-", the largest first.
  #order() {
    const text = asked("sort"), column = text.replace(/-$/, "");
    if (COLUMNS.some(([name]) => name === column)) return { column, isUp: column === text };
    return { column: this.#hasPrice() ? "price" : "pod_hours", isUp: false };
  }

  #hasPrice() { return Object.values(this.report?.prices ?? {}).some(Boolean); }

  #draw() {
    this.state.className = `note${this.problem ? " bad" : ""}`;
    if (this.problem || !this.report) { this.state.textContent = this.problem; this.scroll.hidden = !this.report; if (!this.report) return; }
    const { text, namespace } = this.wanted, part = text.trim().toLowerCase();
    const matching = this.report.services.filter((service) => (!namespace || service.namespace === namespace) && `${service.namespace}/${service.service}`.toLowerCase().includes(part));
    const { column, isUp } = this.#order(), value = (service) => column === "service" ? `${service.service} ${service.namespace}` : service[column] ?? -1;
    matching.sort((a, b) => (value(a) < value(b) ? -1 : value(a) > value(b) ? 1 : 0) * (isUp ? 1 : -1) || (a.service < b.service ? -1 : 1));
    const columns = COLUMNS.filter(([name, , , isPrice]) => (!isPrice || this.#hasPrice()) && (name !== "known_hours" || !matching.every((service) => isAll(service, this.report))));
    for (const head of this.heads) {
      head.hidden = !columns.some(([name]) => name === head.dataset.name);
      if (head.dataset.name === column) head.setAttribute("aria-sort", isUp ? "ascending" : "descending");
      else head.removeAttribute("aria-sort");
    }
    const shown = this.isAll ? matching : matching.slice(0, ROWS_FIRST), most = Math.max(...matching.map((service) => service.always_on_pod_hours), 0);
    keyed(this.body, shown.map((service) => [`${service.namespace}/${service.service}`, { service, most, names: columns.map(([name]) => name), isGone: !this.names.has(`${service.namespace}/${service.service}`) }]), drawRow);
    this.sums.replaceChildren(make("th", { scope: "row", textContent: "Total" }), ...columns.slice(1).map(([name, , , isPrice]) =>
      make("td", { className: `num ${name}`, textContent: name === "known_hours" ? "" : (isPrice ? money : hours)(sum(matching, name)) })));
    this.more.hidden = shown.length === matching.length;
    this.more.textContent = `Show all ${matching.length}`;
    this.scroll.hidden = !matching.length;
    if (!this.problem) this.state.textContent = this.#sentence(matching);
  }

  #sentence(matching) {
    const { from_s: from, to_s: to } = this.report, length = (to - from) / HOUR_S, known = Math.max(...matching.map((service) => service.known_hours), 0);
    const span = `${date(from)} ${clock(from)} to ${date(to)} ${clock(to)}.`;
    if (!matching.length) return `${span} ${this.report.services.length ? "No service matches." : "The dashboard has no history of these hours."}`;
    const missing = known < length * KNOWN_MIN ? ` The dashboard has history of ${number(known)} of these ${number(length)} hours; the rest is not counted.` : "";
    const partly = matching.filter((service) => service.known_hours < known * KNOWN_MIN).length;
    const younger = partly ? ` ${partly} of ${matching.length} services have less, because they are younger, or were deleted.` : "";
    const free = this.#hasPrice() ? "" : " Set price-pod-hour and price-gib-hour in config-dashboard to see prices.";
    const [used, always, under] = ["pod_hours", "always_on_pod_hours", "knative_pod_hours"].map((name) => sum(matching, name));
    const than = (other, name) => other > 0 && Math.abs(1 - used / other) >= 0.01 ? `${number(Math.abs(100 * (1 - used / other)))} % ${used < other ? "less" : "more"} than ${name}` : "";
    const estimated = matching.every((service) => service.knative_pod_hours != null) ? than(under, "under Knative's policy, estimated") : "";
    const saved = [than(always, "always on"), estimated].filter(Boolean).join(", ");
    return `${span}${saved ? ` ${saved}.` : ""}${missing}${younger}${free}`;
  }
}

// A total of what is not all known would be of fewer services.
const sum = (services, name) => services.some((service) => service[name] == null) ? null : services.reduce((total, service) => total + service[name], 0);

function drawRow(node, { service, most, names, isGone }) {
  const bar = make("span", { className: "bar" });
  for (const [className, value] of [["asked", service.always_on_pod_hours], ["used", service.pod_hours]]) {
    const part = make("i", { className });
    part.style.width = `${most ? 100 * value / most : 0}%`;
    bar.append(part);
  }
  bar.setAttribute("aria-hidden", "true");
  node.replaceChildren(make("th", { scope: "row" }, service.service, " ", make("small", { textContent: `${service.kind === "Service" ? "" : `${service.kind} · `}${service.namespace}${isGone ? ", deleted" : ""}` }), bar), ...names.slice(1).map((name) =>
    make("td", { className: `num ${name}`, textContent: (name.endsWith("price") ? money : hours)(service[name]) })));
}
