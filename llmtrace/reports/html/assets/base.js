// Data, formats, and making elements. All text goes in as text: a trace may hold anything.

const data = JSON.parse(document.getElementById("data").textContent);
const table = data.requests;
const ABSENT = "–";

function el(name, attributes, ...children) {
  return fill(document.createElement(name), attributes, children);
}

function svg(name, attributes, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

function fill(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.flat(2).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

function byId(id) {
  return document.getElementById(id);
}

// A column's value for one request; undefined where there is no such column.
function at(name, row) {
  const column = table[name];
  if (column === undefined) return undefined;
  if (column.words) return column.at[row] === null ? undefined : column.words[column.at[row]];
  const value = column[row];
  return value === null ? undefined : value;
}

const known = (value) => value !== undefined && value !== null;

function grouped(value, decimals) {
  return value.toLocaleString("en-US", { minimumFractionDigits: decimals, maximumFractionDigits: decimals });
}

function whole(value) {
  return known(value) ? grouped(value, 0) : ABSENT;
}

// Three digits that matter, and no more decimals than the number bears.
function short(value) {
  if (!known(value)) return ABSENT;
  const size = Math.abs(value);
  return grouped(value, size >= 100 || size === 0 ? 0 : size >= 10 ? 1 : 2);
}

// Microseconds as [number, unit].
function measured(micros) {
  if (!known(micros)) return [ABSENT, ""];
  const size = Math.abs(micros);
  if (size >= 60e6) return [short(micros / 60e6), "min"];
  if (size >= 10e6) return [short(micros / 1e6), "s"];
  if (size >= 1e3 || size === 0) return [short(micros / 1e3), "ms"];
  return [grouped(micros, 0), "µs"];
}

function time(micros) {
  return measured(micros).filter(Boolean).join(" ");
}

// Milliseconds for a column or line of a table: all of them with the decimals its largest leaves room for.
function msOf(values) {
  const most = values.reduce((found, value) => (value > found ? value : found), 0);
  const decimals = most < 1e6 ? 2 : most < 1e7 ? 1 : 0;
  return (micros) => (known(micros) ? grouped(micros / 1e3, decimals) : ABSENT);
}

function seconds(value) {
  return known(value) ? value * 1e6 : undefined;
}

function bytes(count) {
  if (!known(count)) return ABSENT;
  for (const [unit, size] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) {
    if (count >= size) return `${grouped(count / size, 2)} ${unit}`;
  }
  return `${count} B`;
}

function share(part) {
  return known(part) ? `${grouped(part * 100, 1)} %` : ABSENT;
}

function plural(count, noun) {
  return `${whole(count)} ${noun}${count === 1 ? "" : "s"}`;
}

function clamp(value, low, high) {
  return Math.min(Math.max(value, low), high);
}

// Place in ascending `edges` of the interval that holds `value`.
function placeOf(edges, value) {
  let low = 0;
  let high = edges.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (edges[middle] <= value) low = middle;
    else high = middle - 1;
  }
  return low;
}

const tip = byId("tip");

function showTip(event, lines) {
  tip.replaceChildren(...lines.map(([name, value]) => el("div", {}, el("span", {}, name), el("b", {}, value))));
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const left = clamp(event.clientX + 14, 8, document.documentElement.clientWidth - box.width - 8);
  const above = event.clientY - box.height - 14;
  tip.style.left = `${left}px`;
  tip.style.top = `${above > 8 ? above : event.clientY + 18}px`;
}

function hideTip() {
  tip.hidden = true;
}
