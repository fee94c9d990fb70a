// A chart's frame: scales, grid, labels, and drawing again when its width changes.

const redraws = new Set();

function niceTicks(low, high, wanted) {
  const rough = (high - low) / Math.max(wanted, 1);
  if (!(rough > 0)) return [low];
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= rough * 0.999);
  const ticks = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k += 1) ticks.push(k * step + 0);
  return ticks;
}

function scale(from, to, start, end) {
  const ratio = to === from ? 0 : (end - start) / (to - from);
  const place = (value) => start + (value - from) * ratio;
  place.invert = (pixel) => (ratio === 0 ? from : from + (pixel - start) / ratio);
  return place;
}

// One unit for an axis of durations, chosen by its largest value.
function durationAxis(most) {
  const [unit, size] = most >= 10e6 ? ["s", 1e6] : most >= 1e3 ? ["ms", 1e3] : ["µs", 1];
  return { unit, size, label: (value) => trimmed(value / size) };
}

function trimmed(value) {
  return value.toLocaleString("en-US", { maximumSignificantDigits: 4, maximumFractionDigits: 3 });
}

// Draws into `host` at its present width, and again when that changes.
function responsive(host, height, draw) {
  let drawn = 0;
  const again = () => {
    const width = Math.floor(host.clientWidth);
    if (width < 40) return;
    drawn = width;
    host.replaceChildren(draw(width, typeof height === "function" ? height(width) : height));
  };
  redraws.add(again);
  again();
  new ResizeObserver(() => {
    if (Math.abs(host.clientWidth - drawn) > 1) again();
  }).observe(host);
  return again;
}

// `x` and `y`: {from, to, ticks?, label, title}. Returns the svg element, scales and plot bounds.
function frame({ width, height, x, y, name, left = 48, bottom = 38 }) {
  const box = { left, right: width - 10, top: 12, bottom: height - bottom };
  const sx = scale(x.from, x.to, box.left, box.right);
  const sy = scale(y.from, y.to, box.bottom, box.top);
  const root = svg("svg", {
    viewBox: `0 0 ${width} ${height}`,
    width: "100%",
    role: "img",
    "aria-label": name,
    class: "chart",
  });
  for (const tick of y.ticks || niceTicks(y.from, y.to, 4)) {
    root.append(
      svg("line", { class: "gridline", x1: box.left, x2: box.right, y1: sy(tick), y2: sy(tick) }),
      svg("text", { class: "tick", x: box.left - 8, y: sy(tick) + 4, "text-anchor": "end" }, y.label(tick)),
    );
  }
  for (const tick of x.ticks || niceTicks(x.from, x.to, clamp(Math.floor(width / 90), 3, 9))) {
    root.append(svg("text", { class: "tick", x: sx(tick), y: box.bottom + 18, "text-anchor": "middle" }, x.label(tick)));
  }
  root.append(
    svg("line", { class: "axis", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }),
    svg("text", { class: "tick unit", x: box.right, y: height - 4, "text-anchor": "end" }, x.title),
  );
  return { root, sx, sy, box };
}

// Calls `tell(pixel)` for lines of the tip, with `cursor` moved to where they belong.
function hover(root, box, tell) {
  const cursor = svg("line", { class: "cursor", y1: box.top, y2: box.bottom, visibility: "hidden" });
  root.append(cursor);
  root.addEventListener("pointermove", (event) => {
    const bounds = root.getBoundingClientRect();
    const pixel = ((event.clientX - bounds.left) / bounds.width) * root.viewBox.baseVal.width;
    const told = pixel < box.left - 2 || pixel > box.right + 2 ? null : tell(pixel);
    cursor.setAttribute("visibility", told ? "visible" : "hidden");
    if (!told) return hideTip();
    cursor.setAttribute("x1", told.x);
    cursor.setAttribute("x2", told.x);
    return showTip(event, told.lines);
  });
  root.addEventListener("pointerleave", () => {
    cursor.setAttribute("visibility", "hidden");
    hideTip();
  });
}

function linePath(points) {
  return points.map(([px, py], index) => `${index ? "L" : "M"}${px.toFixed(1)} ${py.toFixed(1)}`).join("");
}

// A card with a heading, a word on what is drawn, and the chart below.
function card(title, note, body, attributes) {
  return el("figure", { class: "card", ...attributes }, el("figcaption", {}, el("h3", {}, title), note && el("p", {}, note)), body);
}

function nothing(text) {
  return el("p", { class: "empty" }, text);
}
