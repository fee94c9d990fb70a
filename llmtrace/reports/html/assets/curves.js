// ITL over token position.

function itlCurve() {
  const host = el("div", { class: "plot" });
  const curve = data.itl_curve;
  const drawn = card("ITL over token position", curve && [legend("line", "median"), legend("band", "P5 to P95"), trendWords()], host, { class: "card full" });
  if (!curve) {
    host.append(nothing("No gap between tokens was recorded."));
    return drawn;
  }
  const last = curve.first + curve.count.length - 1;
  const most = Math.max(...curve.p95) * 1.06;
  const unit = durationAxis(most);
  return withChart(drawn, host, 260, (width, height) => {
    const { root, sx, sy, box } = frame({
      width, height,
      name: `ITL over token position, ${unit.unit}: median ${time(curve.p50[0])} at token ${curve.first}, ${time(curve.p50.at(-1))} at token ${last}.`,
      x: { from: 1, to: Math.max(last, 3), label: whole, title: "token position" },
      y: { from: 0, to: most, ticks: niceTicks(0, most / unit.size, 4).map((v) => v * unit.size), label: (v) => `${unit.label(v)} ${unit.unit}` },
      left: 58,
    });
    const points = (values) => values.map((v, i) => [sx(curve.first + i), sy(v)]);
    const high = points(curve.p95);
    if (high.length > 1) {
      root.append(svg("path", { class: "band", d: `${linePath(high)}${linePath(points(curve.p5).reverse()).replace("M", "L")}Z` }));
    }
    root.append(svg("path", { class: "line", d: linePath(points(curve.p50)) }));
    if (high.length === 1) root.append(svg("circle", { class: "dot", cx: high[0][0], cy: points(curve.p50)[0][1], r: 3 }));
    const jump = report.itl_trend && report.itl_trend.jump;
    if (jump) {
      const x = sx(jump.position);
      root.append(
        svg("line", { class: "jump", x1: x, x2: x, y1: box.top, y2: box.bottom }),
        svg("text", { class: "tick", x: x + 6, y: box.top + 10 }, `jump at ${whole(jump.position)}`),
      );
    }
    hover(root, box, (pixel) => {
      const i = clamp(Math.round(sx.invert(pixel)) - curve.first, 0, curve.count.length - 1);
      return {
        x: high[i][0],
        lines: [
          [`token ${curve.first + i}`, plural(curve.count[i], "gap")],
          ["P95", time(curve.p95[i])], ["median", time(curve.p50[i])], ["P5", time(curve.p5[i])],
        ],
      };
    });
    return root;
  });
}

// How ITL goes with context length, and whether it jumps and stays up.
function trendWords() {
  const trend = report.itl_trend;
  if (!trend) return "";
  const parts = [];
  if (known(trend.slope_s_per_token)) parts.push(`${trend.slope_s_per_token < 0 ? "" : "+"}${trimmed(trend.slope_s_per_token * 1e6)} µs per token of context`);
  if (trend.jump) parts.push(`lasting jump at token ${whole(trend.jump.position)}: ${time(seconds(trend.jump.before_s))} to ${time(seconds(trend.jump.after_s))}`);
  else parts.push("no lasting jump");
  return parts.join(" · ");
}

function legend(kind, text) {
  return el("span", { class: `legend ${kind}` }, text);
}

function withChart(drawn, host, height, draw) {
  later(() => responsive(host, height, draw));
  return drawn;
}

const waiting = [];

// A chart is drawn once it stands in the page and so has a width.
function later(work) {
  waiting.push(work);
}
