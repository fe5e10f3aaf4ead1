// What the holder of the token may do with the service of the chosen revision. The token stays in this tab.
import { make } from "./charts.js";

const KEPT = "serving-token";
const by = (id) => document.getElementById(id);

export class Actions {
  constructor() {
    this.service = null;
    try { by("token").value = sessionStorage.getItem(KEPT) || ""; } catch { /* kept in the field alone */ }
    by("token").addEventListener("input", () => {
      try { sessionStorage.setItem(KEPT, by("token").value.trim()); } catch { /* as above */ }
    });
    for (const name of ["scale", "traffic", "wake"]) {
      by(name).addEventListener("submit", (event) => {
        event.preventDefault();
        this.#send(name);
      });
    }
    by("shares").addEventListener("input", () => this.#sum());
  }

  // Fields are filled anew for another service, or another revision of it, but not under the hands of who writes in one.
  // `scaling` is the newest revision's.
  show(mayAct, service, names, scaling) {
    by("act").hidden = !mayAct || !service;
    if (by("act").hidden) return;
    const chosen = `${service.namespace}/${service.name}`, among = names.join(" ");
    if (chosen !== this.chosen) this.#say("", "");
    else if (among === this.among || by("act").contains(document.activeElement) && document.activeElement.type === "number") return;
    Object.assign(this, { chosen, among, service });
    by("act-title").textContent = `Act on ${service.name}`;
    by("min").value = scaling["min-scale"] || "0";
    by("max").value = scaling["max-scale"] || "0";
    by("shares").replaceChildren(...names.map((name) => {
      const share = service.traffic.filter((one) => one.revision === name).reduce((sum, one) => sum + one.percent, 0);
      const field = make("input", { type: "number", min: 0, max: 100, step: 1, required: true, value: share, name });
      return make("label", {}, make("span", { textContent: name }), field, " %");
    }));
    this.#sum();
  }

  #shares() {
    return Object.fromEntries([...by("shares").querySelectorAll("input")].map((one) => [one.name, Number(one.value)]));
  }

  #sum() {
    const total = Object.values(this.#shares()).reduce((sum, one) => sum + one, 0);
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
    // A button that is disabled loses the focus, and who works by keyboard the place.
    if (button.getAttribute("aria-disabled") === "true") return;
    button.setAttribute("aria-disabled", "true");
    this.#say(`${name} …`, "wait");
    try {
      const answer = await fetch(`actions/${name}`, {
        method: "POST", credentials: "omit", redirect: "error",
        headers: { "Content-Type": "application/json", Authorization: `Bearer ${by("token").value.trim()}` },
        body: JSON.stringify({ namespace: this.service.namespace, service: this.service.name, ...this.#body(name) }),
      });
      const { said, error } = await answer.json().catch(() => ({ error: `the dashboard answered ${answer.status}` }));
      this.#say(said || error, said ? "good" : "bad");
      if (answer.status === 401) by("token").focus();
    } catch (error) {
      this.#say(`the dashboard does not answer: ${error.message}`, "bad");
    } finally {
      button.removeAttribute("aria-disabled");
    }
  }
}
