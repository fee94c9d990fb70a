// Puts the parts into the page.

const THEMES = ["auto", "light", "dark"];

function themeButton() {
  const button = byId("theme");
  let theme = "auto";
  try {
    theme = THEMES.includes(localStorage.getItem("llmtrace-theme")) ? localStorage.getItem("llmtrace-theme") : "auto";
  } catch {
    // Storage is refused to local files in some browsers; the choice then lasts as long as the page.
  }
  const apply = () => {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    button.textContent = { auto: "Auto", light: "Light", dark: "Dark" }[theme];
    button.setAttribute("aria-label", `Colours: ${theme}. Press to change.`);
  };
  button.addEventListener("click", () => {
    theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
    try {
      localStorage.setItem("llmtrace-theme", theme);
    } catch {
      // As above.
    }
    apply();
  });
  apply();
}

function requestsSection() {
  const host = byId("requests");
  const title = el("h3", { id: "shown" });
  const about = el("div");
  const fall = el("div", { class: "card waterfall-card", role: "group", "aria-labelledby": "shown" }, title);
  const waterfall = new Waterfall(fall);
  fall.append(about);
  const list = new RequestTable((row, first) => {
    title.textContent = `Request ${row + 1}`;
    about.replaceChildren(facts(row));
    waterfall.show(row);
    if (!first) history.replaceState(null, "", `#request=${row + 1}`);
  });
  host.append(el("h2", { id: "requests-title" }, "Requests"), el("div", { class: "card" }, list.node), fall);
  return list;
}

// The request that the page's address names.
function asked() {
  const row = Number((location.hash.match(/^#request=(\d+)$/) || [])[1]) - 1;
  return row >= 0 && row < table.count ? row : null;
}

function firstShown() {
  const rows = Array.from({ length: table.count }, (_, row) => row).filter((row) => table.counted[row]);
  const withSteps = rows.find((row) => data.steps.of[row]);
  return withSteps ?? rows[0] ?? 0;
}

function sectionLinks() {
  const names = [["overview", "Overview"], ["findings", "Findings"], ["requests", "Requests"], ["latency", "Latency"], ["throughput", "Throughput"], ["method", "Method"]];
  byId("nav").append(...names.map(([id, name]) => el("a", { href: `#${id}` }, name)));
}

function page() {
  themeButton();
  sectionLinks();
  header();
  partial();
  overview();
  const list = requestsSection();
  const open = (row) => {
    list.choose(row, { focus: true });
    byId("requests").scrollIntoView({ block: "start" });
  };
  findings(open);
  const [byPrompt, byPosition] = buckets();
  byId("latency").append(el("h2", { id: "latency-title" }, "Latency"), el("div", { class: "grid" },
    itlCurve(), ttftAgainstPrompt(open), histogramCard("TTFT", data.ttft_histogram, "request"),
    histogramCard("ITL", data.itl_histogram, "gap"), phaseShares(),
    ...[everyNumber(), intervals(), byPrompt, byPosition, firstText(), ...groups()].filter(Boolean)));
  byId("throughput").append(el("h2", { id: "throughput-title" }, "Throughput over time"), el("div", { class: "grid" },
    timelineCard("Tokens per second", [bins(), cutNote()], "tgs", "tok/s"),
    timelineCard("Requests running", "mean of each bin; all requests, cold and failed ones too", "running", "running"),
    ...[byConcurrency()].filter(Boolean)));
  cold(open);
  method();
  for (const work of waiting) work();
  list.choose(asked() ?? firstShown(), { first: true });
  if (asked() !== null) byId("requests").scrollIntoView();
  addEventListener("hashchange", () => {
    if (asked() !== null) open(asked());
  });
}

function bins() {
  return data.timeline ? `output tokens of all requests, in bins of ${time(data.timeline.width_ms * 1e3)}` : "";
}

function cutNote() {
  return data.timeline && data.timeline.stretches.length > 1 ? "; dashed: a stretch with nothing running is cut out" : "";
}

if (table.count) page();
