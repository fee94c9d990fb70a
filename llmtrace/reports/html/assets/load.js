// What ran when.

// Round instants of each stretch, as places on an axis of bins with their labels.
function timeTicks(told, field, all, wanted, unit) {
  const ticks = new Map();
  let before = 0;
  for (const stretch of told.stretches) {
    const count = stretch[field].length;
    const from = (stretch.from_ms * 1e3) / unit.size;
    const width = (told.width_ms * 1e3) / unit.size;
    const found = niceTicks(from, from + count * width, Math.round((wanted * count) / all));
    for (const tick of found) ticks.set(before + (tick - from) / width, trimmed(tick));
    before += count;
  }
  return ticks;
}

function timelineCard(title, note, field, label) {
  const host = el("div", { class: "plot" });
  const drawn = card(title, note, host, { class: "card full" });
  const told = data.timeline;
  if (!told || (field === "tgs" && !told.tokens_known)) {
    host.append(nothing("Nothing was recorded."));
    return drawn;
  }
  const bins = told.stretches.flatMap((s) => s[field].map((value, i) => ({ value, at: s.from_ms + i * told.width_ms })));
  const cuts = told.stretches.slice(0, -1).map((s, i) => told.stretches.slice(0, i + 1).reduce((sum, t) => sum + t[field].length, 0));
  const most = Math.max(...bins.map((bin) => bin.value)) * 1.08 || 1;
  const unit = durationAxis(bins.at(-1).at * 1e3);
  return withChart(drawn, host, 170, (width, height) => {
    const ticks = timeTicks(told, field, bins.length, clamp(Math.floor(width / 110), 2, 8), unit);
    const { root, sx, sy, box } = frame({
      width, height,
      name: `${title}: at most ${short(most / 1.08)}.`,
      x: { from: 0, to: bins.length, ticks: [...ticks.keys()], label: (v) => ticks.get(v), title: `${unit.unit} since the first request` },
      y: { from: 0, to: most, label: trimmed, ticks: niceTicks(0, most, 3) },
    });
    const top = bins.map((bin, i) => `L${sx(i).toFixed(1)} ${sy(bin.value).toFixed(1)}L${sx(i + 1).toFixed(1)} ${sy(bin.value).toFixed(1)}`).join("");
    root.append(
      svg("path", { class: "area", d: `M${box.left} ${box.bottom}${top}L${box.right} ${box.bottom}Z` }),
      svg("path", { class: "line thin", d: `M${box.left} ${sy(bins[0].value)}${top}` }),
    );
    for (const cut of cuts) root.append(svg("line", { class: "cut", x1: sx(cut), x2: sx(cut), y1: box.top, y2: box.bottom }));
    hover(root, box, (pixel) => {
      const i = clamp(Math.floor(sx.invert(pixel)), 0, bins.length - 1);
      return { x: sx(i + 0.5), lines: [["at", time(bins[i].at * 1e3)], [label, short(bins[i].value)]] };
    });
    return root;
  });
}
