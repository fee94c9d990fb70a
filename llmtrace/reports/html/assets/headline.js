// Headline, tiles, findings.

const report = data.report;

function header() {
  const { conditions } = report.tgs;
  byId("model").textContent = listed(conditions.models) || listed((table.model || { words: [] }).words) || "No requests";
  const setup = [
    conditions.devices.length && `on ${listed(conditions.devices)}`,
    listed(conditions.dtypes), listed(conditions.quantizations), listed(conditions.attn_implementations),
    listed(conditions.cache_implementations) && `${listed(conditions.cache_implementations)} cache`,
    conditions.clocks.length && `${listed(conditions.clocks)} clock`,
  ];
  byId("setup").textContent = setup.filter(Boolean).join(" · ");
  const began = new Date(table.first_unix_ms);
  byId("scope").replaceChildren(
    el("time", { datetime: began.toISOString() }, began.toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "medium" })),
    ` · ${scope()}`,
  );
}

function partial() {
  if (!data.partial) return;
  byId("notice").append(el("div", { class: "notice" }, el("p", {}, data.partial), el("ul", {}, data.problems.map((line) => el("li", {}, line)))));
}

function listed(values) {
  return values.slice(0, 4).join(", ") + (values.length > 4 ? ` and ${values.length - 4} more` : "");
}

function scope() {
  const { requests } = report;
  if (data.all_cold) return "every request was cold: the numbers include one-off costs";
  if (!data.counted) return "no request succeeded, so there is nothing to summarise";
  const left = [];
  if (requests.error) left.push(`${whole(requests.error)} failed`);
  if (requests.ok > data.counted) left.push(`${whole(requests.ok - data.counted)} cold`);
  const said = `numbers of ${plural(data.counted, "request")}`;
  return left.length ? `${said}; left out: ${left.join(" and ")}` : said;
}

function tile(name, [value, unit], lines, attributes) {
  return el("div", { class: "tile", ...attributes },
    el("h2", {}, name),
    el("p", { class: "value" }, value, unit && el("small", {}, ` ${unit}`)),
    lines && el("dl", {}, lines.map(([label, said]) => el("div", {}, el("dt", {}, label), el("dd", {}, said)))));
}

function latencyTile(name, summary, percentiles) {
  if (!summary) return tile(name, [ABSENT, ""], [["", "nothing recorded"]]);
  return tile([name, el("span", {}, " p50")], measured(seconds(summary.p50)), [...percentiles.map((p) => [p, time(seconds(summary[p]))])]);
}

function overview() {
  const { requests, tgs } = report;
  const system = known(tgs.system) ? [short(tgs.system), "tok/s"] : [ABSENT, ""];
  byId("overview").append(el("div", { class: "tiles" },
    tile("Requests", [whole(requests.total), ""], [["ok", whole(requests.ok)], ["failed", whole(requests.error)], ["cold", whole(requests.cold)]], requests.error ? { class: "tile bad" } : {}),
    latencyTile("TTFT", report.ttft_s, ["p95", "p99"]),
    latencyTile("ITL", report.itl_s, ["p95", "p99"]),
    latencyTile("TPOT", report.tpot_s, ["p95", "p99"]),
    latencyTile("E2E", report.e2e_s, ["p95", "p99"]),
    el("div", { class: "tile system" },
      el("h2", {}, "TGS, system"),
      el("p", { class: "value" }, system[0], el("small", {}, ` ${system[1]}`)),
      el("dl", { class: "conditions" }, data.conditions.map(([name, said]) => el("div", {}, el("dt", {}, name), el("dd", {}, said)))),
    )));
}

function findings(open) {
  const host = byId("findings");
  if (!report.findings.length) {
    host.append(el("h2", { id: "findings-title" }, "Findings"), nothing("None: nothing that llmtrace looks for stands out."));
    return;
  }
  host.append(el("h2", { id: "findings-title" }, "Findings"), el("ul", { class: "findings" }, report.findings.map((found) => el("li", { class: `finding ${found.severity}` },
    el("h3", {}, el("span", { class: "severity" }, found.severity), found.title),
    found.evidence && el("p", {}, found.evidence),
    found.remedy && el("p", { class: "remedy" }, found.remedy),
    el("p", { class: "where" }, el("code", {}, found.code), ...links(found, open)),
  ))));
}

const LINKS = 6;

function links(found, open) {
  const shown = found.rows.slice(0, LINKS);
  const more = found.requests - shown.length;
  return [
    shown.length ? ` ${plural(found.requests, "request")}: ` : "",
    ...shown.map((row) => el("button", { type: "button", class: "link", onclick: () => open(row) }, `#${row + 1}`)),
    more > 0 ? ` and ${whole(more)} more` : "",
  ];
}
