// What a waterfall draws: its lanes, and the length of each step.

const LANE = 26;
const PROFILE = 74;

// One lane of the waterfall; `right` is where the plot ends.
function drawLane(life, inside, lane, x, y, right) {
  const { steps, row } = life;
  if (lane.kind === "delivery") {
    const puts = (steps && steps.put) || [];
    inside.append(svg("path", { class: "put", d: puts.filter(known).map((p) => `M${x(p).toFixed(1)} ${y + 7}v10`).join("") }));
    const first = at("delivery", row);
    if (known(first)) inside.append(svg("path", { class: "delivered", d: `M${x(first).toFixed(1)} ${y + 4}l5 8l-5 8l-5 -8z` }));
    return;
  }
  if (lane.spans) {
    inside.append(svg("path", { class: `span ${lane.kind}`, d: bars(lane.spans, x, y + 6, LANE - 12) }));
    return;
  }
  const { phase } = lane;
  if (phase.kind === "decode" && steps && steps.count > 1) {
    const spans = (wanted) => bars(steps.length.map((_, i) => (i && wanted(i) ? [steps.starts[i], steps.starts[i + 1]] : null)), x, y + 3, LANE - 6);
    inside.append(
      svg("path", { class: "span decode", d: spans((i) => !steps.slow(i) && i % 2) }),
      svg("path", { class: "span decode even", d: spans((i) => !steps.slow(i) && i % 2 === 0) }),
      svg("path", { class: "span slow", d: spans((i) => steps.slow(i)) }),
    );
    return;
  }
  const width = Math.max(x(phase.to) - x(phase.from), 1);
  inside.append(svg("rect", { class: `span ${phase.kind}`, x: x(phase.from), y: y + 3, width, height: LANE - 6, rx: Math.min(3, width / 2) }));
  const label = time(phase.to - phase.from);
  const room = width > label.length * 7 + 12;
  const before = !room && x(phase.to) + label.length * 7 + 8 > right;
  inside.append(svg("text", {
    class: room ? `in ${phase.kind}` : "beside", y: y + 17,
    x: room ? x(phase.from) + 7 : before ? x(phase.from) - 6 : x(phase.to) + 6, "text-anchor": before ? "end" : "start",
  }, label));
}

// The length of each step as a bar over its own time: a stutter stands out.
function drawProfile(life, view, root, inside, x, y, left) {
  const { steps } = life;
  const [from, to] = view;
  let most = 0;
  for (let i = 1; i < steps.count; i += 1) {
    if (steps.starts[i + 1] >= from && steps.starts[i] <= to) most = Math.max(most, steps.length[i]);
  }
  const h = scale(0, most * 1.05 || 1, 0, PROFILE - 6);
  const base = y + PROFILE;
  const bar = (i) => [steps.starts[i], steps.starts[i + 1], h(steps.length[i])];
  const draw = (wanted) => steps.length.map((_, i) => {
    if (!i || !wanted(i)) return "";
    const [a, b, tall] = bar(i);
    const wide = Math.max(x(b) - x(a) - 0.6, 0.6);
    return x(b) < left || x(a) > x(to) ? "" : `M${x(a).toFixed(1)} ${base}v${(-tall).toFixed(1)}h${wide.toFixed(1)}V${base}z`;
  }).join("");
  root.append(
    svg("text", { class: "lane", x: 0, y: y + 16 }, "ITL"),
    svg("text", { class: "tick", x: 0, y: y + 32 }, `≤ ${time(most)}`),
    svg("line", { class: "axis", x1: left, x2: x(to), y1: base, y2: base }),
  );
  inside.append(
    svg("path", { class: "span decode", d: draw((i) => !steps.slow(i)) }),
    svg("path", { class: "span slow", d: draw((i) => steps.slow(i)) }),
    svg("line", { class: "median", x1: left, x2: x(to), y1: base - h(steps.median), y2: base - h(steps.median) }),
  );
}

// Many bars as one path; bars narrower than half a pixel are joined to their neighbours.
function bars(spans, x, y, height) {
  let path = "";
  let from = null;
  let to = null;
  const close = () => {
    if (from !== null) path += `M${from.toFixed(2)} ${y}h${Math.max(to - from, 0.5).toFixed(2)}v${height}h${-Math.max(to - from, 0.5).toFixed(2)}z`;
  };
  for (const span of spans) {
    if (!span) continue;
    const [a, b] = [x(span[0]), x(span[1])];
    if (from !== null && b - from < 0.5) to = Math.max(to, b);
    else {
      close();
      [from, to] = [a, b];
    }
  }
  close();
  return path;
}
