// Small helpers: change only what differs, so that nothing flickers and focus stays where it is.

export const ENOUGH = 20; // samples or labels needed before a share of them is shown

export const $ = (id) => document.getElementById(id);

export function text(node, value) {
  if (node.textContent !== value) node.textContent = value;
  return node;
}

export function attributes(node, values) {
  for (const [name, value] of Object.entries(values)) {
    if (value === null || value === undefined || value === false) node.removeAttribute(name);
    else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, String(value));
  }
  return node;
}

export function visible(node, yes) {
  if (node.hidden === yes) node.hidden = !yes;
}

function made(node, values, children) {
  attributes(node, values);
  node.append(...children.filter((child) => child !== null));
  return node;
}

export const el = (tag, values = {}, ...children) => made(document.createElement(tag), values, children);

export const svg = (tag, values = {}, ...children) =>
  made(document.createElementNS("http://www.w3.org/2000/svg", tag), values, children);

// Children of `parent` follow `items`: known keys keep their node, others come and go.
export function keyed(parent, items, key, make, update) {
  const known = new Map([...parent.children].map((node) => [node.dataset.key, node]));
  items.forEach((item, index) => {
    const name = String(key(item));
    let node = known.get(name);
    if (node === undefined) {
      node = make(item);
      node.dataset.key = name;
    }
    known.delete(name);
    if (parent.children[index] !== node) parent.insertBefore(node, parent.children[index] ?? null);
    update(node, item);
  });
  for (const node of known.values()) node.remove();
}

// ---- numbers as people read them ---------------------------------------------------------------

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

export const percent = (share, digits = 1) => (isNumber(share) ? `${(100 * share).toFixed(digits)} %` : "–");

export const short = (share) => (isNumber(share) ? `${Number((100 * share).toFixed(1))} %` : "–");

export function points(value) {
  if (value === "inf" || value === Infinity) return "never";
  if (value === "-inf" || value === -Infinity) return "always";
  if (!isNumber(value)) return "–";
  const shown = (100 * value).toFixed(1);
  return `${Number(shown) === 0 ? "0.0" : value > 0 ? `+${shown}` : shown.replace("-", "−")} pts`;
}

export const count = (value) => (isNumber(value) ? value.toLocaleString("en") : "–");

export const many = (number, what) => `${count(number)} ${what}${number === 1 ? "" : "s"}`;

export function bytes(value) {
  if (!isNumber(value)) return "–";
  const units = ["B", "kB", "MB", "GB", "TB"];
  const power = Math.min(units.length - 1, value < 1000 ? 0 : Math.floor(Math.log10(value) / 3));
  const scaled = value / 1000 ** power;
  return `${power === 0 ? scaled : scaled.toFixed(scaled < 100 ? 1 : 0)} ${units[power]}`;
}

export const milliseconds = (value) =>
  isNumber(value) ? (value < 10 ? value.toFixed(1) : value < 1000 ? value.toFixed(0) : `${(value / 1000).toFixed(1)} s`) : "–";

export const withUnit = (value) => (isNumber(value) && value < 1000 ? `${milliseconds(value)} ms` : milliseconds(value));

export function duration(seconds) {
  if (seconds < 90) return `${Math.max(0, Math.round(seconds))} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  if (seconds < 129600) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} days`;
}

export const clock = (seconds) => new Date(1000 * seconds).toLocaleTimeString("en-GB");
