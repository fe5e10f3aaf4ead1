// Before the first paint: the theme that was chosen, else the system's.
"use strict";
try {
  const chosen = localStorage.getItem("theme");
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
} catch { /* storage is not allowed: the system's theme it is */ }

// A browser drops what it is loading when networks of the machine change, as with each pod that has one of its own. Without a file
// the page would stay empty, so it is loaded again.
addEventListener("error", ({ target }) => {
  if (target instanceof HTMLScriptElement || target instanceof HTMLLinkElement) setTimeout(() => location.reload(), 1000);
}, true);
