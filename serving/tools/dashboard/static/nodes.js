// Nodes: what pods ask for and what is in use, as bars and in words; and how each scores for the next pod, with reasons to open.
import { bytes, make, number } from "./charts.js";
import { keyed, many } from "./rows.js";

const GIB = 2 ** 30, MIB = 2 ** 20;
const TONES = { True: "good", False: "bad", Unknown: "wait" };
const share = (part, whole) => whole ? Math.min(100, 100 * part / whole) : 0;

export class Nodes {
  constructor(root) {
    this.root = root;
    this.list = root.querySelector("#nodes");
    this.groups = root.querySelector("#groups");
    this.note = root.querySelector("#nodes-note");
    this.shown = null;
  }

  // `nodes` is another object when, and only when, it says something else.
  show(nodes) {
    if (!nodes || nodes === this.shown) return;
    this.shown = nodes;
    const { lines, count, groups, next_pod: pod } = nodes;
    // A node without a size and without requests has nothing to show.
    const sized = lines.filter((line) => line.cpu_millicores || line.memory_bytes || line.requested_millicores || line.requested_bytes);
    this.root.hidden = !sized.length && !groups.length;
    this.groups.hidden = !groups.length;
    keyed(this.groups, groups.map((group) => [group.name, group]), drawGroup, "li");
    // A scheduler leaves out nodes that are not ready, and most pods tainted ones, before it looks at scores.
    const isOpen = (line) => line.score != null && line.ready === "True" && !line.taints.length && !line.removal;
    const best = Math.max(...sized.filter(isOpen).map((line) => line.score));
    const asked = pod.cpu_millicores || pod.memory_bytes ? `requests ${many(number(pod.cpu_millicores / 1000), "core")} and ${bytes(pod.memory_bytes)}` : "requests nothing";
    this.note.textContent = [
      count > lines.length ? `${lines.length} of ${count}.` : "",
      sized.some((line) => line.score != null) ? `Scores, of 10, are for the next pod of this revision, which ${asked}; more is better.` : "",
    ].filter(Boolean).join(" ");
    keyed(this.list, sized.map((line) => [line.name, { ...line, isBest: isOpen(line) && line.score === best }]), draw, "li");
  }
}

// Their meaning is said in words.
const REMOVAL = ["atlassian.com/escalator", "atlassian.com/escalator-force", "node.kubernetes.io/unschedulable"];
const RULES = {
  "taint-lower": "far too many nodes", "taint-upper": "too many nodes", "scale-up": "too full", "from-zero": "pods wait and there is no node",
  "starve": "a pod fits on no node", "steady": "as it should be", "lock": "waits for nodes that were asked for", "below-min": "below the minimum",
  "above-max": "above the maximum", "max-node-age": "a node is too old", "replace-unhealthy": "a node is not healthy",
  "health-gate": "too many new nodes are not healthy", "no-capacity": "its nodes offer nothing", "empty": "no nodes and no pods",
};

function drawGroup(node, group) {
  const { nodes } = group;
  const going = nodes.tainted + nodes.forceTainted;
  const counts = [
    many(nodes.total, "node"), going ? `${going} to go` : "", nodes.cordoned ? `${nodes.cordoned} cordoned` : "",
    nodes.coming ? `${nodes.coming} on the way` : "", group.max == null ? "" : `from ${group.min} to ${group.max}`,
  ].filter(Boolean).join(", ");
  const full = group.cpu_percent == null ? "" : `${number(group.cpu_percent)} % of CPU and ${number(group.memory_percent)} % of memory requested by ${many(group.pod_count, "pod")}`;
  const ahead = group.anticipated_count ? ` and ${group.anticipated_count} to come` : "";
  const wants = group.rule ? `${RULES[group.rule] || group.rule}${group.delta && group.rule !== "lock" ? `: ${group.delta > 0 ? "+" : ""}${group.delta}` : ""}` : "no pass yet";
  const limits = group.limits.length ? ` (held by ${group.limits.join(", ")})` : "";
  const did = group.did.what.length ? `Last: ${group.did.what.join("; ")}, because ${RULES[group.did.rule] || group.did.rule}, at ${new Date(group.did.at).toLocaleTimeString()}` : "";
  node.replaceChildren(
    make("div", {}, make("b", { textContent: group.name }), ` ${counts}${group.is_dry ? " (dry run)" : ""}`),
    make("small", { textContent: [`${full}${ahead}`, `Now: ${wants}${limits}`, did].filter(Boolean).join(" · ") }),
    ...group.problems.map((problem) => make("small", { className: "problem", textContent: `${problem.type} is false: ${problem.message || problem.reason}` })),
  );
}

// What node groups say of a node, in words.
function going(line) {
  const state = { forced: "removal forced", tainted: "to be removed", cordoned: "cordoned" }[line.removal];
  return [line.group ? `in ${line.group}` : "", state ? `${state}${line.kept_for ? `: ${line.kept_for}` : ""}` : ""].filter(Boolean).join(" · ");
}

function draw(node, line) {
  if (!node.firstChild) build(node);
  const { name, state, more, cpu, memory, why } = node.parts;
  name.textContent = line.name;
  state.className = `state ${TONES[line.ready] || "wait"}`;
  state.textContent = { True: "Ready", False: "Not ready" }[line.ready] || "Unknown";
  const own = line.taints.filter((key) => !REMOVAL.includes(key));
  more.textContent = [many(line.pod_count, "pod"), going(line), own.length ? `tainted ${own.join(", ")}` : ""].filter(Boolean).join(" · ");
  fill(cpu, line.requested_millicores, line.used?.cpu_millicores, line.cpu_millicores, (value) => number(value / 1000), line.cpu_millicores === 1000 ? "core" : "cores");
  const unit = (line.memory_bytes || line.requested_bytes) >= GIB ? GIB : MIB;
  fill(memory, line.requested_bytes, line.used?.memory_bytes, line.memory_bytes, (value) => number(value / unit), unit === GIB ? "GiB" : "MiB");
  reasons(why, line);
}

function build(node) {
  const name = make("b"), state = make("span"), more = make("small");
  const why = make("details", { hidden: true }, make("summary"), make("table", {}, make("thead", {}, heads("Score", "Points", "Weight", "Reason")), make("tbody")));
  node.parts = { name, state, more, cpu: amount("CPU"), memory: amount("Memory"), why };
  node.append(make("div", { className: "who" }, make("span", {}, name, " ", state), more), node.parts.cpu.root, node.parts.memory.root, why);
}

function heads(...names) {
  return make("tr", {}, ...names.map((text) => make("th", { textContent: text, scope: "col" })));
}

// The words below say the same as the bar, which is for the eye alone.
function amount(title) {
  const asked = make("i", { className: "asked" }), used = make("i", { className: "used" }), words = make("small");
  const bar = make("div", { className: "bar" }, asked, used);
  bar.setAttribute("aria-hidden", "true");
  return { root: make("div", { className: "amount" }, make("span", { textContent: title }), bar, words), asked, used, words };
}

function fill(part, asked, used, whole, text, unit) {
  part.asked.style.width = `${share(asked, whole)}%`;
  part.used.style.width = `${share(used ?? 0, whole)}%`;
  const parts = [`${text(asked)} requested`, used == null ? "" : `${text(used)} in use`].filter(Boolean).join(", ");
  part.words.textContent = `${parts}${whole ? `, of ${text(whole)}` : ""} ${unit}`;
}

function reasons(why, line) {
  why.hidden = line.score == null;
  if (why.hidden) return;
  why.firstChild.replaceChildren("Score ", make("b", { textContent: number(line.score) }), make("span", { className: "hidden", textContent: ` of 10 for ${line.name}` }), line.isBest ? ", the best" : "");
  why.querySelector("tbody").replaceChildren(...line.scores.map((score) => make("tr", {}, ...[
    score.name, `${score.score} of ${score.score_max}`, score.weight ? `× ${score.weight}` : "no", score.why,
  ].map((text) => make("td", { textContent: text })))));
}
