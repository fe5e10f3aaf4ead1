// The tabs of a revision's page. The chosen one is in the address.
import { address, asked } from "./address.js";

const list = document.getElementById("tabs"), tabs = [...list.children];
const nameOf = (tab) => tab.id.replace("tab-", "");

function show(chosen) {
  for (const tab of tabs) {
    tab.setAttribute("aria-selected", tab === chosen);
    tab.tabIndex = tab === chosen ? 0 : -1;
    document.getElementById(tab.getAttribute("aria-controls")).hidden = tab !== chosen;
  }
  reveal();
}

// On a phone the last ones are out of sight.
function reveal() {
  const chosen = tabs.find((tab) => tab.tabIndex === 0);
  if (chosen) list.scrollLeft = chosen.offsetLeft - tabs[0].offsetLeft - (list.clientWidth - chosen.offsetWidth) / 2;
}

export function chooseTab(name) {
  const tab = tabs.find((tab) => nameOf(tab) === name) || tabs[0];
  address({ tab: tab === tabs[0] ? null : nameOf(tab) });
  show(tab);
  return tab;
}

list.addEventListener("click", (event) => { if (event.target !== list) chooseTab(nameOf(event.target)); });
list.addEventListener("keydown", (event) => {
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!step) return;
  event.preventDefault();
  chooseTab(nameOf(tabs.at((tabs.indexOf(event.target) + step) % tabs.length))).focus();
});
show(tabs.find((tab) => nameOf(tab) === asked("tab")) || tabs[0]);
// The list has no width before a revision is chosen.
new ResizeObserver(reveal).observe(list);
