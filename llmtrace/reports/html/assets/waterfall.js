// The waterfall of one request: phases, every step, host and device, and each step's length.

class Waterfall {
  constructor(host) {
    this.host = host;
    this.plot = el("div", {
      class: "plot fall", tabindex: "0", role: "application",
      "aria-label": "Waterfall. Left and right arrows go from step to step, plus and minus zoom, 0 shows everything.",
      onkeydown: (event) => this.key(event),
    });
    this.readout = el("p", { class: "readout", "aria-live": "polite" });
    const zoom = (text, name, action) => el("button", { type: "button", class: "quiet", "aria-label": name, title: name, onclick: action }, text);
    this.tools = el("div", { class: "tools" },
      zoom("First token", "Zoom to the first token", () => this.showFirstToken()),
      zoom("−", "Zoom out", () => this.zoom(2)),
      zoom("+", "Zoom in", () => this.zoom(0.5)),
      zoom("All", "Show the whole request", () => this.showAll()),
    );
    this.key_ = el("p", { class: "keys" });
    host.append(this.tools, this.plot, this.readout, this.key_);
    this.again = null;
  }

  show(row) {
    this.life = lifeOf(row);
    this.step = null;
    this.view = [this.life.begin, this.life.end];
    const { steps } = this.life;
    const parts = [];
    if (steps && steps.host && !steps.placed) parts.push("Where in its step a forward call lay was not recorded: it is drawn from the step's start.");
    if (!steps) parts.push(at("steps_seen", row) ? `The steps of this request are not on this page, which holds those of ${whole(data.steps.chosen)} of ${plural(data.steps.all, "request")}.` : "No steps of this request were recorded.");
    const slow = steps ? steps.length.filter((_, i) => steps.slow(i)).length : 0;
    if (slow) parts.push(`Amber: ${plural(slow, "step")} of more than ${SLOW} times the median gap.`);
    this.key_.replaceChildren(parts.join(" "));
    this.readout.textContent = steps ? "Drag to zoom. Arrow keys go through the steps." : "Drag to zoom.";
    if (this.again) this.again();
    else this.again = responsive(this.plot, () => this.height(), (width, height) => this.draw(width, height));
  }

  lanes() {
    const { life } = this;
    const { steps } = life;
    const lanes = life.phases.map((phase) => ({ name: phase.name, phase }));
    if (steps && steps.host) lanes.push({ name: "host", spans: steps.host, kind: "host" });
    if (steps && steps.legs) lanes.push(...steps.legs.map(({ name, spans }) => ({ name, spans, kind: "device" })));
    else if (steps && steps.device) lanes.push({ name: "device", spans: steps.device, kind: "device" });
    if (known(at("delivery", life.row)) || (steps && steps.put)) lanes.push({ name: "delivery", kind: "delivery" });
    return lanes;
  }

  height() {
    return 34 + this.lanes().length * LANE + (this.life.steps && this.life.steps.count > 1 ? PROFILE + 12 : 0) + 8;
  }

  draw(width, height) {
    const left = width < 520 ? 74 : 96;
    const [from, to] = this.view;
    hideTip();
    const x = scale(from, to, left, width - 10);
    this.x = x;
    const unit = durationAxis(Math.max(Math.abs(from), Math.abs(to)));
    const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, width: "100%", class: "chart waterfall", "aria-hidden": "true" });
    const clip = svg("clipPath", { id: "fall-clip" }, svg("rect", { x: left, y: 0, width: width - 10 - left, height }));
    root.append(clip);
    for (const tick of niceTicks(from / unit.size, to / unit.size, clamp(Math.floor(width / 110), 3, 9)).map((v) => v * unit.size)) {
      root.append(
        svg("line", { class: "gridline", x1: x(tick), x2: x(tick), y1: 24, y2: height - 4 }),
        svg("text", { class: "tick", x: x(tick), y: 15, "text-anchor": "middle" }, `${unit.label(tick)} ${unit.unit}`),
      );
    }
    const inside = svg("g", { "clip-path": "url(#fall-clip)" });
    let y = 30;
    for (const lane of this.lanes()) {
      root.append(svg("text", { class: "lane", x: 0, y: y + 16 }, lane.name));
      drawLane(this.life, inside, lane, x, y, width - 10);
      y += LANE;
    }
    if (this.life.steps && this.life.steps.count > 1) drawProfile(this.life, this.view, root, inside, x, y + 8, left);
    root.append(inside);
    this.drawCursor(root, x, height);
    this.listen(root, left, width - 10);
    return root;
  }

  drawCursor(root, x, height) {
    this.cursor = svg("rect", { class: "here", y: 24, height: height - 28, visibility: "hidden" });
    root.append(this.cursor);
    this.moveCursor();
  }

  moveCursor() {
    const { steps } = this.life;
    if (this.step === null || !steps) return;
    this.cursor.setAttribute("x", this.x(steps.starts[this.step]));
    this.cursor.setAttribute("width", Math.max(this.x(steps.starts[this.step + 1]) - this.x(steps.starts[this.step]), 1.5));
    this.cursor.setAttribute("visibility", "visible");
  }

  listen(root, left, right) {
    const pixelOf = (event) => {
      const bounds = root.getBoundingClientRect();
      return ((event.clientX - bounds.left) / bounds.width) * root.viewBox.baseVal.width;
    };
    const drag = svg("rect", { class: "drag", y: 24, height: root.viewBox.baseVal.height - 28, visibility: "hidden" });
    root.append(drag);
    let start = null;
    root.addEventListener("pointerdown", (event) => {
      if (event.button !== 0 || event.pointerType === "touch" || pixelOf(event) < left) return;
      start = pixelOf(event);
      root.setPointerCapture(event.pointerId);
    });
    root.addEventListener("pointermove", (event) => {
      const pixel = clamp(pixelOf(event), left, right);
      if (start !== null && Math.abs(pixel - start) > 4) {
        drag.setAttribute("x", Math.min(start, pixel));
        drag.setAttribute("width", Math.abs(pixel - start));
        drag.setAttribute("visibility", "visible");
        hideTip();
      } else if (pixelOf(event) >= left) this.point(event, this.x.invert(pixel));
    });
    root.addEventListener("pointerup", (event) => {
      const pixel = clamp(pixelOf(event), left, right);
      const begun = start;
      start = null;
      if (begun !== null && Math.abs(pixel - begun) > 4) this.look(this.x.invert(Math.min(begun, pixel)), this.x.invert(Math.max(begun, pixel)));
    });
    root.addEventListener("pointerleave", hideTip);
    root.addEventListener("dblclick", () => this.showAll());
  }

  point(event, instant) {
    const { steps, phases } = this.life;
    if (steps && instant >= 0 && instant <= steps.starts.at(-1)) {
      const i = clamp(placeOf(steps.starts, instant), 0, steps.count - 1);
      showTip(event, stepLines(this.life, i));
      return;
    }
    const over = phases.filter((phase) => phase.from <= instant && instant <= phase.to);
    if (over.length) showTip(event, over.map((phase) => [phase.name, time(phase.to - phase.from)]));
    else hideTip();
  }

  look(from, to) {
    const { begin, end } = this.life;
    const width = clamp(to - from, 20, end - begin);
    const first = clamp(from, begin, end - width);
    this.view = [first, first + width];
    this.again();
  }

  zoom(factor) {
    const [from, to] = this.view;
    const { steps } = this.life;
    const middle = this.step !== null && steps ? (steps.starts[this.step] + steps.starts[this.step + 1]) / 2 : (from + to) / 2;
    const half = ((to - from) * factor) / 2;
    this.look(middle - half, middle + half);
  }

  showAll() {
    this.look(this.life.begin, this.life.end);
  }

  showFirstToken() {
    const ttft = at("ttft", this.life.row);
    if (known(ttft)) this.look(this.life.begin, ttft * 1.15);
  }

  key(event) {
    const { steps } = this.life;
    const actions = { "+": () => this.zoom(0.5), "=": () => this.zoom(0.5), "-": () => this.zoom(2), 0: () => this.showAll() };
    const go = { ArrowRight: 1, ArrowLeft: -1, PageDown: 10, PageUp: -10, Home: -Infinity, End: Infinity }[event.key];
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (go && steps) {
      this.step = this.step === null ? 0 : clamp(this.step + go, 0, steps.count - 1);
      const [from, to] = this.view;
      const [a, b] = [steps.starts[this.step], steps.starts[this.step + 1]];
      if (a < from || b > to) this.look((a + b) / 2 - (to - from) / 2, (a + b) / 2 + (to - from) / 2);
      this.moveCursor();
      this.readout.textContent = stepLines(this.life, this.step).map((line) => line.join(" ")).join(" · ");
    } else if (actions[event.key]) actions[event.key]();
    else return;
    event.preventDefault();
  }
}
