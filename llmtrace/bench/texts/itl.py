"""ITL over positions in the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from llmtrace.analysis.summary import DEVIATION, PERCENTILE_METHOD, Summary
from llmtrace.bench.floor import FORMULA
from llmtrace.bench.itl.evaluation import ItlResult
from llmtrace.bench.itl.output import line
from llmtrace.bench.result import conditions_of
from llmtrace.bench.texts.parts import cautions, findings, heading
from llmtrace.bench.texts.shifts import said
from llmtrace.reports.printing import printed
from llmtrace.reports.table_parts import make_table, numbers, pairs, small_print
from llmtrace.reports.wording import bounds, jump_words, plural, size, slope_words

NUMBERS = ("mean", "std", "p50", "p95", "p99", "max")
MS = 1e3
PART_NAMES = {
    "host_forward_s": "in the forward call",
    "between_s": "between the calls",
    "device_duration_s": "device, to forward's end",
    "launch_lead_s": "launch lead",
}


def render(
    found: ItlResult, header: Mapping[str, Any], *, width: int = 100, color: bool = False
) -> str:
    """Return the result as text."""
    sections: list[RenderableType] = [heading(header), Text(), _counts(found)]
    if found.itl_s is not None:
        sections += [Text(), _table(found), Text(), _course(found), Text(), _steps(found)]
    conditions = pairs(conditions_of(found.trials.records))
    sections += [Text(), Text("Conditions", style="bold"), Padding(conditions, (0, 0, 0, 3))]
    sections += [*findings(found.trials.records), Text(), cautions(found.cautions)]
    last = line(found)
    if last is not None:
        sections += [Text(), Text(last, style="bold")]
    return printed(sections, width, color)


def _counts(found: ItlResult) -> RenderableType:
    counted, run = len(found.trials.counted), len(found.trials.records)
    firsts = [max(r.itl_s) for r in found.trials.warmup if r.itl_s]
    apart = (
        f"; of {len(firsts)} that warmed up the first had gaps of up to {firsts[0] * MS:,.1f} ms"
        if firsts
        else ""
    )
    return Text(f"{counted} of {run} requests count{apart}")


def _table(found: ItlResult) -> RenderableType:
    table = make_table("ITL ms, by token", "count", *NUMBERS)
    table.add_row("all", *numbers(found.itl_s, MS, NUMBERS))
    for bucket in found.by_position:
        table.add_row(bounds(bucket), *numbers(bucket.summary, MS, NUMBERS))
    rows: list[tuple[str, Summary | None]] = []
    if found.on_device:
        rows.append(("on the host's clock", found.host_gap_s))
    rows += [(f"  {PART_NAMES[name]}", part) for name, part in found.parts.items() if part]
    for name, summary in rows:
        table.add_row(name, *numbers(summary, MS, NUMBERS))
    notes = [
        "t[i] - t[i-1] counts at i: the first gap is at 2. The last 10 tokens count twice.",
        f"Percentiles: {PERCENTILE_METHOD}; {DEVIATION}. Clock of ITL: {found.clock}.",
    ]
    if found.on_device:
        notes.append(
            "The host's gap is the forward call and what is between the calls, waiting for the "
            "device included. Launch lead: device end of the forward minus host return of its "
            "call; near 0 the device waits for Python."
        )
    return Group(table, *(small_print(note) for note in notes))


def _course(found: ItlResult) -> RenderableType:
    lines = []
    if found.trend is not None:
        lines += [
            ("ITL over context", slope_words(found.trend)),
            ("lasting jump", jump_words(found.trend)),
        ]
    lines.append(("memory-bandwidth floor", _floor(found)))
    lines.append(("garbage collector", _collector(found)))
    return Group(pairs(lines), small_print(f"Floor: {FORMULA}."))


def _floor(found: ItlResult) -> str:
    if found.floor is None:
        return "unknown: the bytes of a step cannot be told from this model and cache"
    held = sum(layers.bytes_per_token for layers in found.floor.kv)
    reads = f"weights {size(found.floor.weight_bytes)}, {size(held)} a token of context"
    least = found.usual_floor_s()
    if least is None or found.itl_s is None:
        return f"unknown: the device's peak is not known (setting peaks); a step reads {reads}"
    times = found.itl_s.p50 / least
    return f"{least * MS:,.3f} ms at the median context ({reads}); the median gap is {times:,.1f}x"


def _collector(found: ItlResult) -> str:
    gaps, time_s = found.paused("garbage_collection")
    state = "left on" if found.collector_on else "frozen while requests counted"
    return f"{state}; collections in {plural(gaps, 'gap')}, {time_s * MS:,.1f} ms in all"


def _steps(found: ItlResult) -> RenderableType:
    lines = said(found)
    if not lines:
        return Text("Steps found: none")
    return Group(
        Text("Steps found", style="bold"), *(Padding(Text(text), (0, 0, 0, 3)) for text in lines)
    )
