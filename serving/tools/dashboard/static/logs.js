// The logs of a service's pods, as the dashboard streams them to the holder of the token. Lines are text, never markup.
import { credentials } from "./actions.js";
import { make } from "./charts.js";
import { chooseTab } from "./tabs.js";

const ROWS_MAX = 2000, TONES = 4, RETRY_MS_MAX = 30_000;
const by = (id) => document.getElementById(id);
// Colours and cursor movements of a terminal.
const ESCAPES = /\x1b\[[0-9;?]*[A-Za-z]/g;

export class Logs {
  #service = "";
  #user = "";
  #namespace = "";
  #name = "";
  #reading = null;
  #isPaused = false;
  #isAtEnd = true;
  #waiting = [];
  #tones = new Map();

  constructor() {
    by("logs-read").addEventListener("click", () => (this.#reading ? this.#pause(!this.#isPaused) : this.#start()));
    by("logs-stop").addEventListener("click", () => this.#stop("Stopped."));
    // Who scrolls up reads on there; a wider or narrower page stays at the end.
    by("logs-scroll").addEventListener("scroll", ({ target }) => {
      this.#isAtEnd = target.scrollHeight - target.scrollTop - target.clientHeight < 40;
    });
    addEventListener("resize", () => this.#isAtEnd && this.#toEnd());
    by("logs-filter").addEventListener("input", () => {
      for (const row of by("logs").children) row.hidden = !this.#isWanted(row.textContent);
      this.#toEnd();
    });
    this.#nameButtons();
  }

  // `mayRead` is false for a dashboard without a token.
  show(mayRead, user, namespace, name) {
    by("logs-part").hidden = !name;
    by("logs-bar").hidden = by("logs-scroll").hidden = !mayRead;
    if (!mayRead) {
      const command = `serving logs -f ${name}${namespace === "default" ? "" : ` -n ${namespace}`}`;
      this.#say(`Logs may contain secrets, and this page has no token for them. In a terminal: ${command}`);
    }
    this.#user = user;
    const service = `${namespace}/${name}`;
    if (service === this.#service) return;
    const isReading = Boolean(this.#reading);
    this.#stop(mayRead ? user ? "" : "Read with the token of Settings." : by("logs-state").textContent);
    this.#service = service;
    this.#namespace = namespace;
    this.#name = name;
    this.#clear();
    if (isReading) this.#start();
  }

  async #start() {
    const token = by("token").value.trim();
    if (!token && !this.#user) {
      this.#say("The token is missing: paste it under Settings, then read the logs.", "bad");
      chooseTab("settings");
      by("act").open = true;
      by("token").focus();
      return;
    }
    const reading = this.#reading = new AbortController();
    this.#isPaused = false;
    this.#nameButtons();
    for (let delay = 1000; reading === this.#reading; delay = Math.min(2 * delay, RETRY_MS_MAX)) {
      this.#say("connecting …", "wait");
      let why = "the connection was lost";
      try {
        const response = await fetch("logs", {
          method: "POST", redirect: "error", signal: reading.signal, ...credentials(this.#user),
          body: JSON.stringify({ namespace: this.#namespace, service: this.#name }),
        });
        if (!response.ok) {
          const { error } = await response.json().catch(() => ({}));
          if (reading === this.#reading) this.#stop(error || `the dashboard answered ${response.status}`, "bad");
          return;
        }
        delay = 1000;
        // The last lines come again.
        this.#clear();
        this.#say("following", "good");
        await this.#read(response.body, reading);
      } catch (error) {
        why = error.message;
      }
      if (reading !== this.#reading) return;
      this.#say(`${why}; trying again`, "bad");
      await new Promise((done) => setTimeout(done, delay));
    }
  }

  async #read(body, reading) {
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done || reading !== this.#reading) return;
      const texts = (rest + value).split("\n");
      rest = texts.pop();
      for (const text of texts) this.#take(JSON.parse(text));
    }
  }

  #take({ lines, dropped }) {
    if (dropped) this.#waiting.push(["", `${dropped} line${dropped === 1 ? "" : "s"} left out here: this page reads more slowly than the pods write`]);
    for (const line of lines) this.#waiting.push(line);
    if (this.#waiting.length > ROWS_MAX) this.#waiting.splice(0, this.#waiting.length - ROWS_MAX);
    if (!this.#isPaused) this.#draw();
    else this.#nameButtons();
  }

  #draw() {
    const rows = this.#waiting.map(([pod, text]) => this.#row(pod, text));
    this.#waiting = [];
    by("logs").append(...rows);
    while (by("logs").childElementCount > ROWS_MAX) by("logs").firstChild.remove();
    if (this.#isAtEnd) this.#toEnd();
  }

  #row(pod, text) {
    const row = make("li", {}, make("b", { textContent: pod ? this.#short(pod) : "dashboard" }), " ", make("span", { textContent: text.replace(ESCAPES, "") }));
    if (pod && !this.#tones.has(pod)) this.#tones.set(pod, this.#tones.size % TONES);
    row.className = pod ? `tone${this.#tones.get(pod)}` : "remark";
    row.title = pod;
    row.hidden = !this.#isWanted(row.textContent);
    return row;
  }

  // "hello-00001-deployment-abcde" of hello by its revision and its own letters.
  #short(pod) {
    return (pod.startsWith(`${this.#name}-`) ? pod.slice(this.#name.length + 1) : pod).replace("-deployment-", "-");
  }

  #isWanted(text) {
    return text.toLowerCase().includes(by("logs-filter").value.trim().toLowerCase());
  }

  #toEnd() { by("logs-scroll").scrollTop = by("logs-scroll").scrollHeight; }

  #clear() {
    this.#waiting = [];
    this.#tones.clear();
    by("logs").replaceChildren();
  }

  #pause(isPaused) {
    this.#isPaused = isPaused;
    if (!isPaused) {
      this.#draw();
      this.#toEnd();
    }
    this.#say(isPaused ? "paused" : "following", isPaused ? "wait" : "good");
    this.#nameButtons();
  }

  #stop(text, tone) {
    this.#reading?.abort();
    this.#reading = null;
    this.#isPaused = false;
    this.#say(text, tone);
    this.#nameButtons();
  }

  #nameButtons() {
    const count = this.#waiting.length;
    by("logs-read").textContent = !this.#reading ? "Read logs" : this.#isPaused ? `Resume${count ? ` (${count} new)` : ""}` : "Pause";
    by("logs-stop").hidden = !this.#reading;
  }

  #say(text, tone = "") {
    const state = by("logs-state");
    if (state.textContent !== text) state.textContent = text;
    state.className = `note ${tone}`;
  }
}
