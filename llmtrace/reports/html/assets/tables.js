// Tables of numbers.

const SPREAD = ["count", "mean", "std", "p50", "p90", "p95", "p99", "max"];

function numbersTable(title, head, lines, note, attributes) {
  return card(title, null, [
    el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": title }, el("table", { class: "numbers" },
      el("thead", {}, el("tr", {}, el("th", { scope: "col" }, head), SPREAD.map((name) => el("th", { scope: "col" }, name)))),
      el("tbody", {}, lines.map(([name, summary, number]) => el("tr", {}, el("th", { scope: "row" }, name),
        SPREAD.map((key) => el("td", {}, summary ? (key === "count" ? whole(summary.count) : number(summary)(summary[key])) : ABSENT))))))),
    note && el("p", { class: "note" }, note),
  ].filter(Boolean), attributes);
}

const inMs = (summary) => {
  const shown = msOf([seconds(summary.max)]);
  return (value) => shown(seconds(value));
};
const plain = (decimals, factor = 1) => () => (value) => grouped(value * factor, decimals);
const clock = () => `Clock: ${listed(report.tgs.conditions.clocks) || "unknown"}.`;

function everyNumber() {
  const lines = [
    ["TTFT, ms", report.ttft_s, inMs], ["ITL, ms", report.itl_s, inMs], ["TPOT, ms", report.tpot_s, inMs], ["E2E, ms", report.e2e_s, inMs],
    ["prefill, ms", report.prefill_s, inMs], ["TGS request, tok/s", report.tgs.request, plain(2)],
    ["TGS decode, tok/s", report.tgs.decode, plain(2)],
    report.host_bound_ratio && ["host-bound, %", report.host_bound_ratio, plain(1, 100)],
    report.mbu && ["MBU, %", report.mbu, plain(1, 100)], report.mfu && ["MFU, %", report.mfu, plain(1, 100)],
    ["input tokens", report.input_tokens, plain(1)], ["output tokens", report.output_tokens, plain(1)],
  ].filter(Boolean);
  return numbersTable("All numbers", "", lines,
    `One value per request; but ITL: one per gap and row, requests pooled, so weighted by tokens. Percentiles: ${data.methods.percentiles}; ${data.methods.deviation}. ${clock()}`, { class: "card full" });
}

function bounds({ from, to }) {
  if (from < 0) return `last ${-from}`;
  return to === null ? `${whole(from)} and more` : `${whole(from)} to ${whole(to)}`;
}

function buckets() {
  const lines = (found, name) => {
    const present = found.filter((bucket) => bucket[name]);
    const widest = { max: Math.max(...present.map((bucket) => bucket[name].max)) };
    return present.map((bucket) => [bounds(bucket), bucket[name], () => inMs(widest)]);
  };
  const prompt = lines(report.ttft_by_prompt_tokens, "ttft_s");
  const position = lines(report.itl_by_position, "itl_s");
  return [
    prompt.length ? numbersTable("TTFT by prompt length, ms", "prompt tokens", prompt, "Of the request's longest prompt, without padding.", { class: "card full" }) : null,
    position.length ? numbersTable("ITL by token position, ms", "token", position, "t[i] - t[i-1] counts at i, so the first gap is at 2; the last 10 tokens of a row also count where they stand.", { class: "card full" }) : null,
  ];
}

const GROUPS = { model: "By model", prompt_tokens: "By prompt tokens", batch_size: "By batch size", strategy: "By strategy" };
const MOST_GROUPS = 12;

// The same figures for each kind of request, where there are several kinds.
function groups() {
  return Object.entries(report.groups).filter(([, found]) => found.length > 1).map(([by, found]) => {
    const two = (summary) => (summary ? [ms_(summary.p50), ms_(summary.p95)] : [ABSENT, ABSENT]);
    return plainTable(GROUPS[by], ["", "requests", "TTFT p50 ms", "p95", "ITL p50 ms", "p95", "TGS", "system"],
      found.slice(0, MOST_GROUPS).map((group) => [
        group.value, whole(group.requests), ...two(group.ttft_s), ...two(group.itl_s),
        group.tgs_request ? grouped(group.tgs_request.mean, 2) : ABSENT, known(group.tgs_system) ? grouped(group.tgs_system, 2) : ABSENT,
      ]), found.length > MOST_GROUPS ? `and ${found.length - MOST_GROUPS} more` : "");
  });
}

const ms_ = (value) => grouped(value * 1e3, 2);

function plainTable(title, head, lines, note) {
  return card(title, null, [
    el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": title }, el("table", { class: "numbers" },
      el("thead", {}, el("tr", {}, head.map((name) => el("th", { scope: "col" }, name)))),
      el("tbody", {}, lines.map(([name, ...cells]) => el("tr", {}, el("th", { scope: "row" }, name), cells.map((cell) => el("td", {}, cell))))))),
    note && el("p", { class: "note" }, note),
  ].filter(Boolean), { class: "card full" });
}

const SURE = [["TTFT", "ttft_s"], ["ITL", "itl_s"], ["TPOT", "tpot_s"], ["E2E", "e2e_s"]];

// How sure the figures are.
function intervals() {
  const { confidence } = report;
  const names = ["mean", "p50", "p90", "p95", "p99"];
  const lines = SURE.filter(([, key]) => confidence[key] && Object.keys(confidence[key]).length).map(([name, key]) => [
    name, ...names.map((column) => (confidence[key][column] ? confidence[key][column].map(ms_).join(" – ") : ABSENT)),
  ]);
  if (!lines.length) return null;
  return plainTable(`${trimmed(confidence.level * 100)} % intervals, ms`, ["", ...names], lines, `${confidence.method}.`);
}

function byConcurrency() {
  const levels = report.tgs.by_concurrency;
  if (levels.length < 2) return null;
  return plainTable("TGS by concurrency", ["requests at once", "seconds", "tokens", "tok/s"],
    levels.map((level) => [whole(level.running), grouped(level.seconds, 2), whole(level.output_tokens), grouped(level.tgs, 2)]),
    "Tokens selected while so many requests ran / time in which so many ran.");
}

// What readers of streams waited for.
function firstText() {
  const found = data.first_text;
  if (!found) return null;
  const names = ["count", "mean", "p50", "p95", "max"];
  const numbers = (summary) => names.map((name) => (name === "count" ? whole(summary.count) : ms_(summary[name])));
  const parts = Object.entries(found.parts).filter(([, part]) => part);
  return plainTable("First visible text, ms", ["", ...names, "share", "what"], [
    ...parts.map(([name, part]) => [name.replace("_", " "), ...numbers(part), share(found.shares[name] || 0), data.first_text_formulas[name]]),
    ["all", ...numbers(found.total_s), share(1), ""],
  ], "Of streams that were read: from the server span, request() block or generate() to text that is more than white space. The parts of a request add up to it.");
}

function phaseShares() {
  const { phases } = data;
  if (!phases) return card("Where the time goes", null, nothing("No request tells all of its parts."));
  const parts = phases.parts.filter((part) => known(part.share));
  return card("Where the time goes", `mean of ${plural(phases.requests, "request")}`, [
    el("div", { class: "stack", "aria-hidden": "true" }, parts.map((part) => {
      const piece = el("span", { class: part.name });
      piece.style.flexGrow = part.share;
      return piece;
    })),
    el("table", { class: "phases" }, el("tbody", {}, [...parts, phases.delivery].filter((part) => known(part.mean_s)).map((part) => el("tr", { title: part.formula },
      el("th", { scope: "row" }, el("span", { class: `swatch ${part.name}` }), part.name),
      el("td", {}, time(seconds(part.mean_s))),
      el("td", {}, part === phases.delivery ? "beside decoding" : share(part.share)))))),
  ]);
}
