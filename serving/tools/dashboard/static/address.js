// The query of the page's address: what is chosen stands there, so that a view can be shared.
export const asked = (name) => new URLSearchParams(location.search).get(name) || "";

// Values of "" and null go from the address; others stay.
export function address(values) {
  const query = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(values)) { if (value == null || value === "") query.delete(name); else query.set(name, value); }
  history.replaceState(null, "", `${location.pathname}${query.size ? `?${query}` : ""}${location.hash}`);
}
