"""TTFT in the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from llmtrace.analysis.first_text import FORMULAS
from llmtrace.analysis.summary import DEVIATION, PERCENTILE_METHOD, Summary, present
from llmtrace.bench.texts.parts import cautions, findings, heading, histogram
from llmtrace.bench.ttft import TtftResult, line, span
from llmtrace.reports.printing import printed
from llmtrace.reports.table_parts import make_table, numbers, small_print

NUMBERS = ("mean", "std", "p50", "p95", "p99", "max")
MS = 1e3


def render(
    found: TtftResult, header: Mapping[str, Any], *, width: int = 100, color: bool = False
) -> str:
    """Return the result as text."""
    sections: list[RenderableType] = [heading(header), Text(), _counts(found)]
    if found.ttft_s is not None:
        values = present(r.ttft_s for r in found.trials.counted)
        sections += [Text(), _table(found), Text(), histogram(values, "ms", MS)]
    sections += [*findings(found.trials.records), Text(), cautions(found.cautions)]
    said = line(found)
    if said is not None:
        sections += [Text(), Text(said, style="bold")]
    return printed(sections, width, color)


def _counts(found: TtftResult) -> RenderableType:
    warmup = [r.ttft_s for r in found.trials.warmup if r.ttft_s is not None]
    apart = (
        f"; the first of {len(warmup)} that warmed up took {warmup[0] * MS:,.1f} ms"
        if warmup
        else ""
    )
    return Text(f"{len(found.trials.counted)} of {len(found.trials.records)} requests count{apart}")


def _table(found: TtftResult) -> RenderableType:
    table = make_table("ms", "count", *NUMBERS)
    for name, summary in _rows(found):
        table.add_row(name, *numbers(summary, MS, NUMBERS))
    parts = "".join(f"; {name}: {FORMULAS[name]}" for name, part in found.parts.items() if part)
    clocks = ", ".join(sorted({r.clock for r in found.trials.counted}))
    notes = [
        f"TTFT: t1 - t0, entry of generate() to the first token{parts}",
        f"One value per request. Percentiles: {PERCENTILE_METHOD}; {DEVIATION}. Clock: {clocks}.",
    ]
    if found.intervals:
        told = ", ".join(
            f"{name} {i.low * MS:,.1f} to {i.high * MS:,.1f}" for name, i in found.intervals.items()
        )
        notes.append(f"TTFT holds in 95 % of draws: {told} ms.")
    return Group(table, *(small_print(note) for note in notes))


def _rows(found: TtftResult) -> list[tuple[str, Summary | None]]:
    rows: list[tuple[str, Summary | None]] = [("TTFT", found.ttft_s)]
    shown = dict(found.parts)
    if found.parts["tokenize"] is None:
        del shown["queue"]  # next to nothing: ids lie ready on the device
    else:
        rows.append(("TTFT from request", found.ttft_from_request_s))
    rows += [(f"  {name}", part) for name, part in shown.items() if part is not None]
    if len(found.by_prompt) > 1:
        rows += [(f"prompt {span(bucket)}", bucket.summary) for bucket in found.by_prompt]
    return rows
