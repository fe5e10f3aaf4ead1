// Rows and texts that change in place.
import { make } from "./charts.js";

export const many = (count, word) => `${count} ${word}${Number(count) === 1 ? "" : "s"}`;

// Rows keep their elements, so that focus and what was marked stay.
export function keyed(root, items, update, tag = "tr") {
  const old = new Map([...root.children].map((node) => [node.dataset.key, node]));
  const wanted = new Set(items.map(([key]) => key));
  // Those that go go first: what is moved in the page loses the focus.
  for (const [key, node] of old) if (!wanted.has(key)) { node.remove(); old.delete(key); }
  let place = root.firstChild;
  for (const [key, item] of items) {
    const node = old.get(key) || make(tag);
    node.dataset.key = key;
    const text = JSON.stringify(item);
    if (node.drawn !== text) { node.drawn = text; update(node, item); }
    if (node === place) place = place.nextSibling;
    else root.insertBefore(node, place);
  }
}

export function write(node, text) {
  if (!node.firstChild) node.append(text);
  else if (node.firstChild.data !== text) node.firstChild.data = text;
}
