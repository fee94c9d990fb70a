// The table of requests: sorted, searched, walked through with the arrow keys.

const ROW = 34;
const PRINTED = 25;

const column = (name, kind) => ({ name: `${name} ms`, key: (row) => at(kind, row), text: (row) => inColumn[kind](at(kind, row)) });
const inColumn = Object.fromEntries(["ttft", "tpot", "itl_max", "e2e"].map((kind) => [kind, msOf(table[kind] || [])]));

const COLUMNS = [
  { name: "#", key: (row) => row, text: (row) => whole(row + 1) },
  { name: "start", title: "since the first request", key: (row) => at("start", row), text: (row) => (at("start", row) < 1000 ? "0 s" : `${trimmedSeconds(at("start", row))} s`), minor: true },
  { name: "prompt", title: "prompt tokens", key: (row) => at("prompt", row), text: (row) => whole(at("prompt", row)) },
  { name: "output", title: "output tokens, all rows", key: (row) => at("output", row), text: (row) => whole(at("output", row)) },
  column("TTFT", "ttft"),
  column("TPOT", "tpot"),
  { ...column("longest gap", "itl_max"), minor: true },
  { ...column("E2E", "e2e"), wide: true },
  { name: "TGS", title: "tokens per second", key: (row) => at("tgs", row), text: (row) => short(at("tgs", row)), minor: true },
];

function trimmedSeconds(micros) {
  return grouped(micros / 1e6, micros < 100e6 ? 2 : micros < 10e9 ? 1 : 0);
}

class RequestTable {
  constructor(open) {
    this.open = open;
    this.rows = Array.from({ length: table.count }, (_, row) => row);
    this.sorted = { column: 0, down: false };
    this.chosen = null;
    this.search = el("input", {
      type: "search", placeholder: "Filter: failed, cold, trace id, model ...", "aria-label": "Filter the requests",
      oninput: () => this.filter(),
    });
    this.rest = el("p", { class: "rest note" });
    this.said = el("p", { class: "said", "aria-live": "polite" });
    this.heads = COLUMNS.map((column, i) => el("th", { scope: "col", class: kindOf(column), title: column.title },
      el("button", { type: "button", onclick: () => this.sort(i) }, column.name)));
    this.body = el("tbody");
    this.grid = el("table", {
      class: "requests", role: "grid", tabindex: "0", "aria-rowcount": table.count + 1,
      "aria-label": "Requests. Arrow keys choose one, and its waterfall is shown.",
      onkeydown: (event) => this.key(event),
    }, el("thead", {}, el("tr", {}, ...this.heads, el("th", { scope: "col", class: "about" }, "about"))), this.body);
    this.box = el("div", { class: "rows", onscroll: () => this.draw() }, this.grid);
    this.body.addEventListener("click", (event) => {
      const line = event.target.closest("tr[data-row]");
      if (line) this.choose(Number(line.dataset.row));
    });
    this.node = el("div", { class: "list" }, el("div", { class: "toolbar" }, this.search, this.said), this.box, this.rest);
    this.words = this.rows.map((row) => wordsOf(row));
    addEventListener("beforeprint", () => this.draw(true));
    addEventListener("afterprint", () => this.draw());
    this.order();
  }

  sort(column) {
    this.sorted = { column, down: this.sorted.column === column ? !this.sorted.down : column > 1 };
    this.order();
  }

  // What a request does not have stands last, whichever way it is sorted.
  order() {
    const { key } = COLUMNS[this.sorted.column];
    const sign = this.sorted.down ? -1 : 1;
    this.rows.sort((a, b) => {
      const [x, y] = [key(a), key(b)];
      if (!known(x) || !known(y)) return known(x) ? -1 : known(y) ? 1 : a - b;
      return sign * (x - y) || a - b;
    });
    this.heads.forEach((head, i) => {
      const on = i === this.sorted.column;
      head.setAttribute("aria-sort", on ? (this.sorted.down ? "descending" : "ascending") : "none");
    });
    this.box.scrollTop = 0;
    this.draw();
  }

  filter() {
    const wanted = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    this.rows = this.words.map((_, row) => row).filter((row) => wanted.every((word) => this.words[row].includes(word)));
    this.order();
  }

  // Only the lines in sight are there: ten thousand would take seconds to lay out.
  draw(printing) {
    const high = this.box.clientHeight || 400;
    const first = printing ? 0 : Math.max(Math.floor(this.box.scrollTop / ROW) - 8, 0);
    const last = Math.min(printing ? PRINTED : first + Math.ceil(high / ROW) + 16, this.rows.length);
    const space = (count) => (count > 0 && !printing ? [el("tr", { class: "space", "aria-hidden": "true" }, spacer(count * ROW))] : []);
    this.body.replaceChildren(
      ...space(first),
      ...this.rows.slice(first, last).map((row, i) => this.line(row, first + i)),
      ...space(this.rows.length - last),
    );
    this.rest.textContent = this.rows.length > PRINTED ? `Printed: the first ${PRINTED} of ${plural(this.rows.length, "request")}.` : "";
    const shown = this.rows.length === table.count ? plural(table.count, "request") : `${whole(this.rows.length)} of ${plural(table.count, "request")}`;
    if (this.said.textContent !== shown) this.said.textContent = shown;
  }

  line(row, place) {
    const chosen = row === this.chosen;
    return el("tr", { id: `row-${row}`, "data-row": row, "aria-rowindex": place + 2, "aria-selected": String(chosen), class: `${chosen ? "chosen" : ""}${at("error", row) ? " failed" : ""}` },
      COLUMNS.map((column) => el("td", { class: kindOf(column) }, column.text(row))),
      el("td", { class: "about" }, badges(row)));
  }

  choose(row, { focus = false, first = false } = {}) {
    this.chosen = row;
    let place = this.rows.indexOf(row);
    if (place < 0) {
      this.search.value = "";
      this.filter();
      place = this.rows.indexOf(row);
    }
    const top = place * ROW;
    const room = this.box.clientHeight - ROW * 2;
    if (top < this.box.scrollTop || top > this.box.scrollTop + room) this.box.scrollTop = Math.max(top - room / 2, 0);
    this.draw();
    this.grid.setAttribute("aria-activedescendant", `row-${row}`);
    if (focus) this.grid.focus({ preventScroll: true });
    this.open(row, first);
  }

  key(event) {
    const page = Math.max(Math.floor(this.box.clientHeight / ROW) - 2, 1);
    const go = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity }[event.key];
    if (event.target !== this.grid || !go || !this.rows.length || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const place = this.rows.indexOf(this.chosen);
    this.choose(this.rows[clamp(place < 0 ? 0 : place + go, 0, this.rows.length - 1)]);
  }
}

// Narrow screens leave out the minor ones, narrower ones those for wide screens too.
function kindOf({ minor, wide }) {
  return minor ? "minor" : wide ? "broad" : null;
}

function spacer(height) {
  const cell = el("td", { colspan: COLUMNS.length + 1 });
  cell.style.height = `${height}px`;
  return cell;
}

const onlySome = data.steps.chosen < data.steps.all;

function badges(row) {
  const found = [];
  const error = at("error", row);
  if (error) found.push(el("span", { class: "badge error", title: error }, error.split(".").at(-1)));
  if (at("cold", row)) found.push(el("span", { class: "badge", title: at("cold", row) }, "cold"));
  if (at("findings", row)) found.push(el("span", { class: "badge", title: at("findings", row) }, "finding"));
  if (at("rows", row) > 1) found.push(el("span", { class: "badge plain" }, `batch ${at("rows", row)}`));
  if (table.model.words.length > 1) found.push(el("span", { class: "badge plain" }, at("model", row)));
  if (table.strategy.words.length > 1) found.push(el("span", { class: "badge plain" }, at("strategy", row)));
  if (onlySome && data.steps.of[row]) found.push(el("span", { class: "badge plain", title: "each of its steps is on this page" }, "steps"));
  return found;
}

function wordsOf(row) {
  const error = at("error", row);
  return [
    at("trace", row), at("model", row), at("strategy", row), at("device", row), at("finish", row), at("findings", row),
    at("cold", row) && `cold ${at("cold", row)}`, error ? `failed error ${error}` : "ok", at("findings", row) && "finding",
    at("rows", row) > 1 && "batch", onlySome && data.steps.of[row] && "steps",
  ].filter(Boolean).join(" ").toLowerCase();
}

// What is known of one request, beside its waterfall.
function facts(row) {
  const list = [
    ["TTFT", time(at("ttft", row))],
    ["TPOT", time(at("tpot", row))],
    ["longest gap", known(at("itl_max", row)) && time(at("itl_max", row))],
    ["E2E", time(at("e2e", row))],
    ["TGS", known(at("tgs", row)) && `${short(at("tgs", row))} tok/s`],
    ["prefill", known(at("prefill", row)) && time(at("prefill", row))],
    ["queue", known(at("queue", row)) && time(at("queue", row))],
    ["tokenize", known(at("tokenize", row)) && time(at("tokenize", row))],
    ["prepare", known(at("prepare", row)) && time(at("prepare", row))],
    ["first delivery", known(at("delivery", row)) && time(at("delivery", row))],
    ["first visible text", known(at("visible", row)) && time(at("visible", row))],
    ["hold-back", known(at("hold_back", row)) && time(at("hold_back", row))],
    ["host-bound", known(at("host_bound", row)) && share(at("host_bound", row))],
    ["prompt", known(at("input", row)) && plural(at("input", row), "token") + (at("cached", row) ? `, ${whole(at("cached", row))} cached` : "")],
    ["output", known(at("output", row)) && plural(at("output", row), "token") + (at("rows", row) > 1 ? ` in ${at("rows", row)} rows` : "")],
    ["ended", at("finish", row)],
    ["strategy", at("strategy", row)],
    ["KV cache", known(at("kv_bytes", row)) && bytes(at("kv_bytes", row))],
    ["MBU", known(at("mbu", row)) && share(at("mbu", row))],
    ["MFU of prefill", known(at("mfu", row)) && share(at("mfu", row))],
    ["memory growth", at("growth_bytes", row) > 0 && bytes(at("growth_bytes", row))],
    ["device", at("device", row)],
    ["layers on", at("devices", row)],
    ["hand-over", known(at("handover", row)) && time(at("handover", row))],
    ["rank", known(at("rank", row)) && whole(at("rank", row))],
    ["peak memory", known(at("peak_bytes", row)) && bytes(at("peak_bytes", row))],
    ["clock", at("clock", row)],
    ["cold", at("cold", row)],
    ["failed with", at("error", row)],
    ["findings", at("findings", row)],
    ["trace", at("trace", row)],
  ];
  return el("dl", { class: "facts" }, list.filter(([, value]) => value && value !== ABSENT).map(([name, value]) => el("div", { class: name === "trace" || name === "findings" ? "long" : null }, el("dt", {}, name), el("dd", {}, value))));
}
