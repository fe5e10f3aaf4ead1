// Where the boxes of the map are: columns from hosts to nodes, a block of rows for each service. Pure: no element is touched.
const OPEN_ALL = 15, OPEN_MAX = 40, ROW = 26, GAP = 8, NODES_MAX = 60;
// Nodes stand on the first screen where they can: each path leads to them.
const SCREEN = 600;
const TROUBLE = ["failing", "errors", "waking"];
export const HEIGHT = 22;

// Which services stand by themselves, and which are a counted row of their namespace and state: those in trouble never fold, of
// the others the busiest do not while there is room. Those that `stood` before stay, so that boxes do not come and go with the load.
export function folded(lines, { isFiltered, load, opened, stood }) {
  if (lines.length <= (isFiltered ? OPEN_MAX : OPEN_ALL)) return { open: lines, folds: [] };
  const isOpen = new Set(lines.filter((one) => TROUBLE.includes(one.state)));
  const busy = lines.filter((one) => !isOpen.has(one) && one.state !== "zero").sort((a, b) => stood.has(b.key) - stood.has(a.key) || load(b) - load(a));
  for (const one of busy.slice(0, Math.max(0, OPEN_MAX - isOpen.size))) isOpen.add(one);
  const groups = new Map();
  for (const one of lines) {
    if (isOpen.has(one)) continue;
    const key = `${one.namespace}:${one.state}`;
    if (!groups.has(key)) groups.set(key, { key, namespace: one.namespace, state: one.state, lines: [] });
    groups.get(key).lines.push(one);
  }
  const folds = [];
  for (const one of groups.values()) {
    if (one.lines.length === 1) isOpen.add(one.lines[0]);
    else folds.push({ ...one, isOpen: opened.includes(one.key) });
  }
  return { open: lines.filter((one) => isOpen.has(one)), folds };
}

// Boxes with a column and a row, and edges between their ids. `services` are blocks in order; a fold has its services as blocks behind it.
export function placed(blocks, nodes, columns) {
  const boxes = [], edges = [], at = new Map(), use = new Map();
  const has = (name) => columns.includes(name);
  const put = (id, column, y, box) => { boxes.push({ ...box, id, column, y }); at.set(id, y); };
  let y = 0;
  for (const block of blocks) {
    const id = `service ${block.key}`, hosts = has("host") ? block.hosts : [], rows = Math.max(1, hosts.length, block.revisions.length);
    put(id, "service", y, { ...block.box, isIndented: block.isIndented });
    hosts.forEach((one, place) => {
      put(`host ${one.id}`, "host", y + place * ROW, one);
      if (one.targets.length) for (const [revision, percent] of one.targets) edges.push({ from: `host ${one.id}`, to: `revision ${revision}`, percent });
      else edges.push({ from: `host ${one.id}`, to: id });
    });
    block.revisions.forEach((one, place) => {
      const own = `revision ${one.key}`, top = y + place * ROW;
      put(own, "revision", top, one.box);
      edges.push({ from: id, to: own, percent: one.percent, isIdle: !one.percent });
      const last = has("pods") && one.pods ? `pods ${one.key}` : own;
      if (last !== own) { put(last, "pods", top, { ...one.pods, isReason: !one.pods.count }); edges.push({ from: own, to: last, isIdle: !one.pods.count }); }
      for (const [node, count] of one.nodes) { edges.push({ from: last, to: `node ${node}`, count }); note(use, node, top, count); }
    });
    y += rows * ROW + (rows > 1 ? GAP : 2);
  }
  const first = Math.min(y, ...[...use.values()].map((one) => one.first)), bottom = placeNodes(nodes, use, { first, last: y }, put);
  // Above the nodes a reason has the room of two columns.
  for (const one of boxes) one.isWide = Boolean(one.isReason) && one.y < first;
  const known = edges.filter((one) => at.has(one.from) && at.has(one.to));
  return { boxes, edges: known, height: Math.max(y, bottom) };
}

function note(use, node, y, count) {
  const one = use.get(node) ?? { weight: 0, sum: 0, first: y };
  use.set(node, { ...one, weight: one.weight + count, sum: one.sum + count * y });
}

// Each node stands where the middle of its pods is, in as much height as nodes need; those without pods stand at the end.
function placeNodes(nodes, use, { first, last }, put) {
  const middle = (one) => use.has(one.name) ? use.get(one.name).sum / use.get(one.name).weight - first : last - first;
  const ordered = [...nodes].sort((a, b) => middle(a) - middle(b) || (a.name < b.name ? -1 : 1)).slice(0, NODES_MAX);
  const room = Math.max(ordered.length * ROW, Math.min(last - first, SCREEN)), scale = last > first ? Math.min(1, room / (last - first)) : 0;
  let y = 0;
  ordered.forEach((one, place) => {
    const top = Math.max(y, Math.min(scale * middle(one), room - (ordered.length - place) * ROW));
    put(`node ${one.name}`, "node", first + top, one.box);
    y = top + ROW;
  });
  return first + y;
}

// All ids on paths through one: what leads to it, and where it leads.
export function path(edges, id) {
  const found = new Set([id]);
  for (const [from, to] of [["from", "to"], ["to", "from"]]) {
    let reached = [id];
    while (reached.length) reached = edges.filter((one) => reached.includes(one[from]) && !found.has(one[to])).map((one) => { found.add(one[to]); return one[to]; });
  }
  return found;
}
