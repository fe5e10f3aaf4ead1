// The button that changes the theme; what was chosen is kept in this browser.
const button = document.getElementById("theme"), dark = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (document.documentElement.dataset.theme || (dark.matches ? "dark" : "light")) === "dark";
const name = () => { button.textContent = isDark() ? "Light" : "Dark"; };

export function onThemeChange(restyle) {
  button.addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    try { localStorage.setItem("theme", document.documentElement.dataset.theme); } catch { /* not kept then */ }
    name();
    restyle();
  });
  dark.addEventListener("change", () => { name(); restyle(); });
  name();
}
