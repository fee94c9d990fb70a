// One request's time, put together from what was recorded of it. All in microseconds from its start.

const SLOW = 1.5; // times the request's median gap

function lifeOf(row) {
  const ttft = at("ttft", row);
  const e2e = at("e2e", row);
  const duration = at("duration", row);
  const tokenize = at("tokenize", row) || 0;
  const phases = [];
  const phase = (name, kind, from, to) => {
    if (known(from) && known(to) && to >= from) phases.push({ name, kind, from, to });
  };
  // Both lie before generate(); in which order they took turns is not recorded.
  if (known(at("queue", row))) phase("queue", "queue", -tokenize - at("queue", row), -tokenize);
  if (known(at("tokenize", row))) phase("tokenize", "tokenize", -tokenize, 0);
  const from = at("prefill_start", row);
  if (known(from)) phase("prefill", "prefill", from, at("prefill_end", row));
  else if (known(at("prefill", row))) phase("prefill", "prefill", 0, at("prefill", row));
  phase("first token", "first", 0, ttft);
  if (at("output", row) > 1 || e2e > ttft) phase("decode", "decode", ttft, e2e);
  if (duration - e2e > 0) phase("return", "return", e2e, duration);
  const end = Math.max(duration || 0, e2e || 0, at("delivery", row) || 0, 1);
  return { row, phases, begin: Math.min(0, ...phases.map((p) => p.from)), end, steps: stepsOf(row) };
}

function stepsOf(row) {
  const told = data.steps.of[row];
  if (!told) return null;
  const starts = [0];
  for (const length of told.length) starts.push(starts.at(-1) + length);
  const count = told.length.length;
  const sorted = told.length.slice(1).sort((a, b) => a - b);
  const median = sorted.length ? sorted[sorted.length >> 1] : undefined;
  const device = told.device && told.device.map((length, i) => deviceSpan(row, i, starts, length));
  return {
    count, starts, median,
    length: told.length,
    tokens: told.tokens,
    lead: told.lead,
    device,
    host: told.host && told.host.map((length, i) => hostSpan(row, i, starts, length, told, device)),
    put: told.put && told.put.map((late, i) => (late === null ? null : starts[i + 1] + late)),
    legs: told.legs && Object.entries(told.legs).map(([name, parts]) => ({
      name,
      spans: parts.flatMap((part, i) => pairs(part).map(([from, to]) => [starts[i] + from, starts[i] + to])),
    })),
    placed: Boolean(told.forward || told.lead),
    slow: (i) => i > 0 && told.length[i] > SLOW * median,
  };
}

function pairs(list) {
  return Array.from({ length: list.length / 2 }, (_, i) => [list[2 * i], list[2 * i + 1]]);
}

// From the previous token on the device's stream to the end of this step's forward.
function deviceSpan(row, i, starts, length) {
  if (length === null) return null;
  const end = i === 0 ? at("prefill_end", row) : starts[i] + length;
  return known(end) ? [end - length, end] : null;
}

// The forward call on the host; without its place in the step it is drawn at the step's start.
function hostSpan(row, i, starts, length, told, device) {
  if (length === null) return null;
  if (told.lead && told.lead[i] !== null && device && device[i]) {
    const back = device[i][1] - told.lead[i];
    return [back - length, back];
  }
  if (told.forward && told.forward[i] !== null) return [starts[i] + told.forward[i], starts[i] + told.forward[i] + length];
  const from = i === 0 && known(at("prefill_start", row)) ? at("prefill_start", row) : starts[i];
  return [from, from + length];
}

function stepLines(life, i) {
  const { steps } = life;
  const span = (pair) => pair && time(pair[1] - pair[0]);
  return [
    [i ? `decode step ${i}` : "prefill step", i ? `token ${i + 1}` : "token 1"],
    [i ? "ITL" : "TTFT", time(steps.length[i])],
    steps.tokens && ["tokens in this step", whole(steps.tokens[i])],
    steps.host && steps.host[i] && ["host, in forward", span(steps.host[i])],
    steps.device && steps.device[i] && ["device", span(steps.device[i])],
    steps.lead && steps.lead[i] !== null && ["launch lead", time(steps.lead[i])],
    steps.put && steps.put[i] !== null && ["delivered", `${time(steps.put[i] - steps.starts[i + 1])} after`],
    ["ends at", time(steps.starts[i + 1])],
  ].filter(Boolean);
}
