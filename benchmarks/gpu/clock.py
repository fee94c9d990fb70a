"""The device's clock: how near an anchor is, how the clocks drift, what one event costs.

* anchors on an idle stream, with and without work on another one: half of the time between the two
  looks at the host's clock;
* drift: device time against host time over some seconds, and how straight the line is;
* placing: an event that the host waits for lies between the host's times around it, for events up
  to a second before the anchor that places them;
* one event: made and recorded, recorded from a pool, recorded by torch's C-level call.

    python benchmarks/gpu/clock.py [--json FILE]
"""

from __future__ import annotations

import statistics
import sys
import time
from itertools import pairwise

import torch
from bench import Result, arguments_of

from llmtrace.timing import cuda

now = time.perf_counter_ns


def anchors(stream: torch.cuda.Stream, *, busy: bool) -> dict[str, float]:
    """Return the stated errors of anchors, in microseconds."""
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    errors = []
    for _ in range(50):
        if busy:
            for _ in range(10):
                a @ a
        errors.append(cuda._anchor(stream).error_ns / 1e3)  # noqa: SLF001 - what is measured
        torch.cuda.synchronize()
    return {"median_us": round(statistics.median(errors), 2), "most_us": round(max(errors), 2)}


def drift(stream: torch.cuda.Stream, seconds: int = 5) -> dict[str, float]:
    """Return the drift in us a second, and how far single anchors are off its line."""
    taken = []
    for _ in range(seconds * 4 + 1):
        taken.append(cuda._anchor(stream))  # noqa: SLF001
        time.sleep(0.25)
    host = [anchor.host_ns - taken[0].host_ns for anchor in taken]
    device = [0]
    for before, after in pairwise(taken):
        device.append(device[-1] + round(before.mark.elapsed_time(after.mark) * 1e6))
    ahead = [h - d for h, d in zip(host, device, strict=True)]
    slope, cut = statistics.linear_regression(host, ahead)
    off = [abs(y - slope * x - cut) / 1e3 for x, y in zip(host, ahead, strict=True)]
    return {"us_per_second": round(slope * 1e6, 2), "off_the_line_us_most": round(max(off), 2)}


def placing() -> dict[str, float]:
    """Place events whose true time the host brackets; return how far outside any lies."""
    clock = cuda._clock_of(0)  # noqa: SLF001
    stream = torch.cuda.current_stream()
    outside, widths, errors = [], [], []
    for _ in range(20):
        brackets = []
        for _ in range(20):
            event = torch.cuda.Event(enable_timing=True)
            begun = now()
            event.record(stream)
            event.synchronize()
            brackets.append((begun, event, now()))
            time.sleep(0.02)
        placed = clock.place([b for b, _, _ in brackets], [event for _, event, _ in brackets])
        errors.append(placed.error_ns / 1e3)
        for (begun, _, ended), at in zip(brackets, placed.times_ns, strict=True):
            outside.append(max(begun - at, at - ended, 0) / 1e3)
            widths.append((ended - begun) / 1e3)
    return {
        "events": len(outside),
        "bracket_us_median": round(statistics.median(widths), 1),
        "outside_us_most": round(max(outside), 2),
        "stated_error_us_median": round(statistics.median(errors), 1),
        "stated_error_us_most": round(max(errors), 1),
    }


def one_event() -> dict[str, float]:
    """Return what recording costs in a tight loop, in microseconds."""
    stream = torch.cuda.current_stream()
    pool = [torch.cuda.Event(enable_timing=True) for _ in range(2000)]
    for event in pool:
        event.record(stream)
    torch.cuda.synchronize()

    def each(call) -> float:
        begun = now()
        for event in pool:
            call(event)
        took = (now() - begun) / len(pool) / 1e3
        torch.cuda.synchronize()
        return round(took, 2)

    return {
        "made_and_recorded_us": each(lambda _: torch.cuda.Event(enable_timing=True).record(stream)),
        "stream_looked_up_us": each(lambda event: event.record()),
        "recorded_us": each(lambda event: event.record(stream)),
        "c_level_us": each(lambda event: cuda._record(event, stream)),  # noqa: SLF001
    }


def main() -> int:
    result = Result(arguments_of(__doc__))
    stream = torch.cuda.Stream(priority=-1)
    for name, busy in (("anchors, idle", False), ("anchors, another stream busy", True)):
        part = anchors(stream, busy=busy)
        result.add(name, part, good=part["median_us"] <= cuda.GOOD_ANCHOR_NS / 1e3)
    result.add("drift", drift(stream))
    part = placing()
    result.add("placing", part, good=part["outside_us_most"] <= part["stated_error_us_most"])
    result.add("one event", one_event())
    return result.exit_code()


if __name__ == "__main__":
    sys.exit(main())
