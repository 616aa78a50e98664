// Small helpers for building the page. Text is only ever set as text, never as markup.

/** An element with these properties and children; `class`, `data-*`, `aria-*` and `role` are attributes. */
export function el(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined) continue;
    if (name === "class" || name === "role" || name === "for" || name.includes("-")) {
      node.setAttribute(name, value);
    } else {
      node[name] = value;
    }
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

export function byId(id) {
  const node = document.getElementById(id);
  if (!node) throw new Error(`the page has no element #${id}`);
  return node;
}

/** Place `node` between two fractions of its parent's width; styles in markup are forbidden here. */
export function span(node, from, to) {
  node.style.left = `${(from * 100).toFixed(3)}%`;
  node.style.width = `${(Math.max(0, to - from) * 100).toFixed(3)}%`;
  return node;
}

/** Tell screen readers, and nobody else. */
export function announce(text) {
  byId("announcer").textContent = text;
}
