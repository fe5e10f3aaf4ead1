// Actions on the service of the chosen revision, for the holder of the token. The token stays in this tab.
import { make } from "./charts.js";

const KEPT = "serving-token", CARRIED = "#token=", LATEST = "@latest", ROWS_SHOWN = 3;
const by = (id) => document.getElementById(id);

// By whom a request is made: the token of this tab, or the user whom a proxy knows.
export function credentials(user) {
  const headers = { "Content-Type": "application/json" };
  return user ? { credentials: "same-origin", headers }
    : { credentials: "omit", headers: { ...headers, Authorization: `Bearer ${by("token").value.trim()}` } };
}

// Carries out an action; resolves to what was said, or to an error.
export async function act(name, body, user) {
  try {
    const response = await fetch(`actions/${name}`, { method: "POST", redirect: "error", ...credentials(user), body: JSON.stringify(body) });
    const result = await response.json().catch(() => ({ error: `the dashboard answered ${response.status}` }));
    return { ...result, status: response.status };
  } catch (error) {
    return { error: `the dashboard does not answer: ${error.message}`, status: 0 };
  }
}

export class Actions {
  constructor() {
    this.service = null;
    const keep = () => { try { sessionStorage.setItem(KEPT, by("token").value.trim()); } catch { /* no session storage: the field keeps it */ } };
    try { by("token").value = sessionStorage.getItem(KEPT) || ""; } catch { /* as above */ }
    by("token").addEventListener("input", keep);
    // A link may carry the token behind "#", which no server sees; it leaves the address at once.
    if (location.hash.startsWith(CARRIED)) {
      by("token").value = location.hash.slice(CARRIED.length);
      history.replaceState(null, "", location.pathname + location.search);
      keep();
    }
    for (const name of ["scale", "traffic", "wake"]) {
      by(name).addEventListener("submit", (event) => {
        event.preventDefault();
        this.#send(name);
      });
    }
    by("traffic").addEventListener("input", () => this.#sum());
  }

  // Another service or revision refills the fields, but never while the user types in one.
  // `names` are the service's revisions, newest first; `scaling` belongs to the newest.
  // A `user` whom a proxy names acts without a token, by the proxy's own credentials.
  show(mayAct, user, service, names, scaling) {
    by("act").hidden = !mayAct || !service;
    if (by("act").hidden) return;
    by("token-part").hidden = Boolean(this.user = user);
    const chosen = `${service.namespace}/${service.name}`, among = names.join(" ");
    if (chosen !== this.chosen) this.#say("", "");
    else if (among === this.among || by("act").contains(document.activeElement) && document.activeElement.type === "number") return;
    Object.assign(this, { chosen, among, service });
    by("act-title").textContent = `Act on ${service.name}`;
    by("min").value = scaling["min-scale"] || "0";
    by("max").value = scaling["max-scale"] || "0";
    const percent = (matches) => service.traffic.filter(matches).reduce((sum, target) => sum + target.percent, 0);
    const row = (name, label, value) => make("label", {}, make("span", { textContent: label }),
      make("input", { type: "number", min: 0, max: 100, step: 1, required: true, value, name }), " %");
    const rows = names.map((name) => {
      const value = percent((target) => target.revision === name && !target.is_latest);
      return { value, node: row(name, name, value) };
    });
    // The target that follows the latest ready revision comes first: without it a later deploy gets no traffic.
    const latest = row(LATEST, `latest ready${service.latest ? ` (now ${service.latest})` : ""}`, percent((target) => target.is_latest));
    const isNear = ({ value }, place) => value > 0 || place < ROWS_SHOWN;
    const folded = rows.filter((row, place) => !isNear(row, place));
    by("shares").replaceChildren(latest, ...rows.filter(isNear).map((row) => row.node));
    const [summary, more] = by("more-shares").children;
    by("more-shares").hidden = !folded.length;
    summary.textContent = `${folded.length} older revision${folded.length === 1 ? "" : "s"}`;
    more.replaceChildren(...folded.map((row) => row.node));
    this.#sum();
  }

  #shares() {
    const fields = [...by("traffic").querySelectorAll("input")].map((field) => [field.name, Number(field.value)]);
    return Object.fromEntries(fields.filter(([, value]) => value > 0));
  }

  #sum() {
    const total = Object.values(this.#shares()).reduce((sum, share) => sum + share, 0);
    by("sum").textContent = `${total} % of 100 %`;
    by("sum").className = total === 100 ? "good" : "bad";
    by("traffic").querySelector("button").disabled = total !== 100;
  }

  #body(name) {
    if (name === "scale") return { min: Number(by("min").value), max: Number(by("max").value) };
    return name === "traffic" ? { shares: this.#shares() } : {};
  }

  #say(text, tone) {
    by("done").textContent = text;
    by("done").className = tone;
  }

  async #send(name) {
    const button = by(name).querySelector("button");
    // A disabled button loses the focus, so aria-disabled keeps keyboard users in place.
    if (button.getAttribute("aria-disabled") === "true") return;
    button.setAttribute("aria-disabled", "true");
    this.#say(`${name} …`, "wait");
    const { said, error, status } = await act(name, { namespace: this.service.namespace, service: this.service.name, ...this.#body(name) }, this.user);
    this.#say(said || error, said ? "good" : "bad");
    if (status === 401) by("token").focus();
    button.removeAttribute("aria-disabled");
  }
}
