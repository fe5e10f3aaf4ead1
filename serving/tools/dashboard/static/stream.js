// The event stream. All visible pages of a browser share one, because browsers allow six connections a host.
// Runs as a SharedWorker, or in the page of a browser that has none.
const RECONNECT_MS = 3000, SETTLE_MS = 20;
const pages = new Map();
let source = null, timer = 0;

// A page posts the revision that it shows ("" is none) to receive everything anew, and null while it is hidden.
function serve(port) {
  port.onmessage = ({ data: revision }) => {
    if (revision !== null) { pages.set(port, { revision }); reopen(SETTLE_MS); return; }
    pages.delete(port);
    if (!pages.size) { clearTimeout(timer); source?.close(); }
  };
}

// Pages that appear together cause one stream.
function reopen(delay) {
  clearTimeout(timer);
  timer = setTimeout(open, delay);
}

function open() {
  source?.close();
  const revisions = [...new Set([...pages.values()].map((page) => page.revision))];
  // The id of an event is the place of its revision. A page that changed its revision gets nothing until the next stream.
  for (const page of pages.values()) page.id = String(revisions.indexOf(page.revision));
  const send = (id, kind, data) => { for (const [port, page] of pages) if (page.id && (id === null || page.id === id)) port.postMessage([kind, data]); };
  source = new EventSource(`events?${new URLSearchParams(revisions.map((revision) => ["revision", revision]))}`);
  source.addEventListener("open", () => send(null, "open"));
  source.addEventListener("error", () => {
    send(null, "lost");
    // After a response other than 200, such as 503 while a server starts, a browser itself does not try again.
    if (source.readyState === EventSource.CLOSED) reopen(RECONNECT_MS);
  });
  for (const kind of ["all", "tick", "decision"]) source.addEventListener(kind, ({ data, lastEventId }) => send(lastEventId, kind, data));
}

if ("onconnect" in globalThis) globalThis.onconnect = (event) => serve(event.ports[0]);

function inPage() {
  const { port1, port2 } = new MessageChannel();
  serve(port1);
  return port2;
}

// The port of a page; `onEvent` gets the kind and the data of each event.
export function streamed(onEvent) {
  let port = null, shown = null;
  const use = (newPort) => { port = newPort; port.onmessage = ({ data: [kind, data] }) => onEvent[kind](data && JSON.parse(data)); };
  if (globalThis.SharedWorker) {
    const worker = new SharedWorker("stream.js", { type: "module" });
    worker.addEventListener("error", () => { use(inPage()); port.postMessage(shown); });
    use(worker.port);
  } else use(inPage());
  return (revision) => { shown = revision; port.postMessage(revision); };
}
