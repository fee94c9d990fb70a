// Histograms, and TTFT against prompt length.

function histogramCard(title, histogram, counted) {
  const host = el("div", { class: "plot" });
  if (!histogram) return card(title, null, nothing("Nothing was recorded."));
  const shown = histogram.over ? [...histogram.counts, histogram.over] : histogram.counts;
  const total = shown.reduce((sum, count) => sum + count, 0);
  const drawn = card(title, plural(total, counted), host);
  const bins = histogram.counts.length;
  const end = histogram.from + histogram.width * bins;
  const to = histogram.from + histogram.width * (histogram.over ? bins + 1.6 : bins);
  const unit = durationAxis(end);
  const most = Math.max(...shown);
  return withChart(drawn, host, 220, (width, height) => {
    const { root, sx, sy, box } = frame({
      width, height,
      name: `${title}: ${plural(total, counted)} from ${time(histogram.from)} to ${time(histogram.max)}.`,
      x: {
        from: histogram.from, to,
        ticks: niceTicks(histogram.from / unit.size, end / unit.size, clamp(Math.floor(width / 90), 3, 7)).map((v) => v * unit.size).filter((v) => !histogram.over || v < end - (to - histogram.from) * 0.05),
        label: unit.label, title: unit.unit,
      },
      y: { from: 0, to: most * 1.05, label: whole, ticks: niceTicks(0, most, 3).filter(Number.isInteger) },
    });
    shown.forEach((count, i) => {
      if (!count) return;
      const over = i >= bins;
      const start = sx(histogram.from + histogram.width * (over ? bins + 0.6 : i));
      const bar = Math.max(sx(histogram.from + histogram.width * 1) - sx(histogram.from) - 1, 1);
      root.append(svg("rect", { class: over ? "column over" : "column", x: start, y: sy(count), width: bar, height: box.bottom - sy(count), rx: 1 }));
    });
    if (histogram.over) root.append(svg("text", { class: "tick", x: box.right, y: box.bottom + 18, "text-anchor": "end" }, `> ${unit.label(end)}`));
    hover(root, box, (pixel) => {
      const i = Math.floor((sx.invert(pixel) - histogram.from) / histogram.width);
      if (i >= bins && !histogram.over) return null;
      const place = clamp(i, 0, shown.length - 1);
      const low = histogram.from + histogram.width * Math.min(place, bins);
      const range = place >= bins ? `${time(low)} to ${time(histogram.max)}` : `${time(low)} to ${time(low + histogram.width)}`;
      return { x: clamp(pixel, box.left, box.right), lines: [[range, plural(shown[place], counted)], ["share", share(shown[place] / total)]] };
    });
    return root;
  });
}

const MOST_DOTS = 2500;

function ttftAgainstPrompt(open) {
  const all = [];
  for (let row = 0; row < table.count; row += 1) {
    if (table.counted[row] && known(at("prompt", row)) && known(at("ttft", row))) all.push(row);
  }
  const every = Math.max(all.length / MOST_DOTS, 1);
  const shown = every === 1 ? all : all.filter((_, i) => Math.floor(i / every) !== Math.floor((i - 1) / every));
  const host = el("div", { class: "plot" });
  const said = shown.length < all.length ? `${whole(shown.length)} of ${plural(all.length, "request")}, evenly taken` : plural(all.length, "request");
  const drawn = card("TTFT against prompt length", all.length ? said : null, host);
  if (!all.length) {
    host.append(nothing("No prompt length was recorded."));
    return drawn;
  }
  const longest = Math.max(...shown.map((row) => at("prompt", row))) * 1.04;
  const most = Math.max(...shown.map((row) => at("ttft", row))) * 1.06;
  const unit = durationAxis(most);
  return withChart(drawn, host, 220, (width, height) => {
    const { root, sx, sy } = frame({
      width, height,
      name: `TTFT against prompt length: ${said}.`,
      x: { from: 0, to: longest, label: whole, title: "prompt tokens" },
      y: { from: 0, to: most, ticks: niceTicks(0, most / unit.size, 4).map((v) => v * unit.size), label: (v) => `${unit.label(v)} ${unit.unit}` },
      left: 58,
    });
    const dots = svg("g", { class: shown.length > 400 ? "dots many" : "dots" });
    for (const row of shown) {
      dots.append(svg("circle", { cx: sx(at("prompt", row)).toFixed(1), cy: sy(at("ttft", row)).toFixed(1), r: shown.length > 400 ? 2 : 3.5, "data-row": row }));
    }
    dots.addEventListener("pointerover", (event) => {
      const row = Number(event.target.dataset.row);
      showTip(event, [[`request ${row + 1}`, ""], ["TTFT", time(at("ttft", row))], ["prompt", plural(at("prompt", row), "token")]]);
    });
    dots.addEventListener("pointerout", hideTip);
    dots.addEventListener("click", (event) => open(Number(event.target.dataset.row)));
    root.append(dots);
    return root;
  });
}
