"""Is the device waiting for Python? llmtrace's answer against the profiler's idle share.

For decoding and for prefill, small and large: launch lead and host-bound ratio as llmtrace gives
them in a run without the profiler, and the share of the time in which the profiler saw the device
do nothing. Host-bound must mean idle, device-bound busy. MBU and MFU beside the same formulas over
the profiler's busy time. The lead is about the forward alone: where the device has enough to do in
it and is idle between forwards, llmtrace's spans say so by when each forward was launched.

    python benchmarks/gpu/bound.py [--layers 32] [--only NAME ...] [--json FILE]
"""

from __future__ import annotations

import statistics
import sys

from bench import (
    Result,
    TimeLine,
    annotated,
    arguments_of,
    make_model,
    null_provider,
    profiled,
    prompt_of,
)

import llmtrace

IDLE = 0.3
BUSY = 0.1
"""Idle for more than 30 % of the time is host-bound, for less than 10 % device-bound."""
LEAD_US = 200
STATIC = {"cache_implementation": "static"}
REQUESTS = {
    "short": ("one short prompt, eager", (128, 1), 16, {}),
    "compiled": ("one short prompt, static cache, compiled", (128, 1), 16, STATIC),
    "long": ("one long prompt, eager", (3000, 1), 8, {}),
    "batch": ("64 prompts of 1,024, eager", (1024, 64), 8, {}),
}


def run(model, prompt, tokens: int, **how: object) -> dict[str, object]:
    how = {"do_sample": False, "max_new_tokens": tokens, **how}
    for _ in range(3):
        model.generate(prompt, **how)
    with llmtrace.capture() as records:
        model.generate(prompt, **how)
    (record,) = records
    with annotated(model):
        model.generate(prompt, **how)
        with profiled() as profiler:
            model.generate(prompt, **how)
    line = TimeLine(profiler)
    forwards = line.ranges("a_forward")
    prefill = line.work_called_in(*forwards[0])
    begun, ended = prefill[0].start_ns(), max(e.end_ns() for e in prefill)
    found = {
        "rows, prompt": list(prompt.shape),
        "prefill": {
            "ms": round(record.prefill_s * 1e3, 2),
            "launch_lead_us": round(record.steps[0].launch_lead_s * 1e6),
            "idle_share": idle(line.busy_ns(begun, ended), record.prefill_s),
            "mfu": round(record.mfu, 3),
        },
    }
    if tokens > 1:
        first = line.work_called_in(*forwards[1])[0].start_ns()
        last = max(e.end_ns() for e in line.work_called_in(*forwards[-1]))
        leads = [step.launch_lead_s * 1e6 for step in record.steps[1:]]
        found["decode"] = {
            "ms": round(record.tpot_s * 1e3, 2),
            "launch_lead_us_p50": round(statistics.median(leads)),
            "host_bound_ratio": round(record.host_bound_ratio, 3),
            "idle_share": idle(line.busy_ns(first, last) / (tokens - 1), record.tpot_s),
            "between_forwards": round(between(record), 3),
            "mbu": round(record.mbu, 3),
            "read_gb_per_step": round(record.decode_bytes / 1e9, 3),
        }
    return found


def between(record: llmtrace.RequestRecord) -> float:
    """Return the share of decoding in which no forward had been launched since the last token."""
    steps = record.steps[1:]
    waited = sum(step.forward_start_s - step.start_s for step in steps)
    return waited / sum(step.end_s - step.start_s for step in steps)


def idle(busy_ns: float, time_s: float) -> float:
    """Return the share of a time in which the device did nothing.

    Its work is as the profiler saw it; the time is of a run without the profiler, which slows
    Python down and so makes the device idler than it is.
    """
    return round(1 - busy_ns / 1e9 / time_s, 3)


def agrees(part: dict[str, dict[str, float]]) -> bool:
    """Whether host-bound is idle and device-bound is busy; in between either may be said."""
    prefill = part["prefill"]
    verdicts = [(prefill["launch_lead_us"] < LEAD_US, prefill["idle_share"])]
    if "decode" in part:
        decode = part["decode"]
        host_bound = decode["host_bound_ratio"] > 0.5
        told = 0 if host_bound else decode["between_forwards"]
        verdicts.append((host_bound, decode["idle_share"] - told))
    return all(idle > BUSY if host_bound else idle < IDLE for host_bound, idle in verdicts)


def main() -> int:
    arguments = arguments_of(__doc__, layers=32, only=tuple(REQUESTS))
    result = Result(arguments)
    llmtrace.instrument(tracer_provider=null_provider())
    model = make_model(arguments.layers)
    for name in arguments.only:
        title, (tokens, rows), new_tokens, how = REQUESTS[name]
        part = run(model, prompt_of(tokens, rows), new_tokens, **how)
        result.add(title, part, good=agrees(part))
    return result.exit_code()


if __name__ == "__main__":
    sys.exit(main())
