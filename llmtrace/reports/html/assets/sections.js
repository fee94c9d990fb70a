// Cold requests, and how everything was measured.

const COLD = 20;

function cold(open) {
  const rows = Array.from({ length: table.count }, (_, row) => row).filter((row) => at("cold", row));
  if (!rows.length) return;
  byId("cold").append(el("h2", { id: "cold-title" }, "Cold requests"),
    el("p", { class: "lead" }, `They paid for something one-off${data.all_cold ? "" : table.counted[rows[0]] ? "; their numbers are included above, as was asked" : " and are left out of the numbers above"}.`),
    el("div", { class: "card" }, el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Cold requests" }, el("table", { class: "numbers" },
      el("thead", {}, el("tr", {}, ["request", "paid for", "prompt", "TTFT ms", "TPOT ms", "E2E ms"].map((name) => el("th", { scope: "col" }, name)))),
      el("tbody", {}, rows.slice(0, COLD).map((row) => el("tr", {},
        el("th", { scope: "row" }, el("button", { type: "button", class: "link", onclick: () => open(row) }, `#${row + 1}`)),
        el("td", {}, at("cold", row).replaceAll("_", " ")), el("td", {}, whole(at("prompt", row))),
        ["ttft", "tpot", "e2e"].map((kind) => el("td", {}, inColumn[kind](at(kind, row))))))))),
    rows.length > COLD && el("p", { class: "note" }, `and ${whole(rows.length - COLD)} more: filter the requests by “cold”.`)));
}

function method() {
  const held = data.steps.chosen < data.steps.all
    ? `The page holds the steps of ${whole(data.steps.chosen)} of ${plural(data.steps.all, "request")}, as many as keep it quick: failed ones, those with findings and the slowest by TTFT, longest gap and E2E first (up to ${data.steps.slowest} each), then evenly over time. All numbers and charts are of all requests.`
    : "The page holds every recorded step of every request.";
  byId("method").append(el("h2", { id: "method-title" }, "Formulas and clocks"),
    el("div", { class: "card" },
      el("dl", { class: "formulas" }, data.formulas.map(([name, formula]) => el("div", {}, el("dt", {}, name), el("dd", {}, formula)))),
      el("p", { class: "note" }, `${clock()} cuda: times of CUDA events, mapped onto the wall clock; host: the process's own clock. In a waterfall, device is the time on the device's stream from the previous token to the end of the forward, waiting for launches included; host is the time inside the forward call; queue and tokenizing lie before generate() and are drawn in that order.`),
      el("p", { class: "note" }, `A step is marked slow when its gap is longer than ${SLOW} times the request's median gap. ${held}`)));
  byId("foot").append(el("p", {}, `llmtrace ${data.version}. This page is one file and asks the network for nothing.`));
}
