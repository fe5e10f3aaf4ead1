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
  const isOpen = new Set(lines.filter((line) => TROUBLE.includes(line.state)));
  const busy = lines.filter((line) => !isOpen.has(line) && line.state !== "zero").sort((a, b) => stood.has(b.key) - stood.has(a.key) || load(b) - load(a));
  for (const line of busy.slice(0, Math.max(0, OPEN_MAX - isOpen.size))) isOpen.add(line);
  const groups = new Map();
  for (const line of lines) {
    if (isOpen.has(line)) continue;
    const key = `${line.namespace}:${line.state}`;
    if (!groups.has(key)) groups.set(key, { key, namespace: line.namespace, state: line.state, lines: [] });
    groups.get(key).lines.push(line);
  }
  const folds = [];
  for (const group of groups.values()) {
    if (group.lines.length === 1) isOpen.add(group.lines[0]);
    else folds.push({ ...group, isOpen: opened.includes(group.key) });
  }
  return { open: lines.filter((line) => isOpen.has(line)), folds };
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
    hosts.forEach((host, place) => {
      put(`host ${host.id}`, "host", y + place * ROW, host);
      if (host.targets.length) for (const [revision, percent] of host.targets) edges.push({ from: `host ${host.id}`, to: `revision ${revision}`, percent });
      else edges.push({ from: `host ${host.id}`, to: id });
    });
    block.revisions.forEach((revision, place) => {
      const own = `revision ${revision.key}`, top = y + place * ROW;
      put(own, "revision", top, revision.box);
      edges.push({ from: id, to: own, percent: revision.percent, isIdle: !revision.percent });
      const last = has("pods") && revision.pods ? `pods ${revision.key}` : own;
      if (last !== own) { put(last, "pods", top, { ...revision.pods, isReason: !revision.pods.count }); edges.push({ from: own, to: last, isIdle: !revision.pods.count }); }
      for (const [node, count] of revision.nodes) { edges.push({ from: last, to: `node ${node}`, count }); recordUse(use, node, top, count); }
    });
    y += rows * ROW + (rows > 1 ? GAP : 2);
  }
  const first = Math.min(y, ...[...use.values()].map((usage) => usage.first)), bottom = placeNodes(nodes, use, { first, last: y }, put);
  // Above the nodes a reason has the room of two columns.
  for (const box of boxes) box.isWide = Boolean(box.isReason) && box.y < first;
  const known = edges.filter((edge) => at.has(edge.from) && at.has(edge.to));
  return { boxes, edges: known, height: Math.max(y, bottom) };
}

function recordUse(use, node, y, count) {
  const usage = use.get(node) ?? { weight: 0, sum: 0, first: y };
  use.set(node, { ...usage, weight: usage.weight + count, sum: usage.sum + count * y });
}

// Each node stands where the middle of its pods is, in as much height as nodes need; those without pods stand at the end.
function placeNodes(nodes, use, { first, last }, put) {
  const middle = (node) => use.has(node.name) ? use.get(node.name).sum / use.get(node.name).weight - first : last - first;
  const ordered = [...nodes].sort((a, b) => middle(a) - middle(b) || (a.name < b.name ? -1 : 1)).slice(0, NODES_MAX);
  const room = Math.max(ordered.length * ROW, Math.min(last - first, SCREEN)), scale = last > first ? Math.min(1, room / (last - first)) : 0;
  let y = 0;
  ordered.forEach((node, place) => {
    const top = Math.max(y, Math.min(scale * middle(node), room - (ordered.length - place) * ROW));
    put(`node ${node.name}`, "node", first + top, node.box);
    y = top + ROW;
  });
  return first + y;
}

// All ids on paths through one: what leads to it, and where it leads.
export function path(edges, id) {
  const visited = new Set([id]);
  for (const [from, to] of [["from", "to"], ["to", "from"]]) {
    let reached = [id];
    while (reached.length) reached = edges.filter((edge) => reached.includes(edge[from]) && !visited.has(edge[to])).map((edge) => { visited.add(edge[to]); return edge[to]; });
  }
  return visited;
}
