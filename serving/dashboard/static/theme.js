// Before the first paint: the theme that was chosen, else the system's.
"use strict";
try {
  const chosen = localStorage.getItem("theme");
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
} catch { /* storage is not allowed: the system's theme it is */ }
