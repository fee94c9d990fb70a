"""The tables of the text report, each with the notes that belong under it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from llmtrace.analysis import metrics
from llmtrace.analysis.first_text import FORMULAS
from llmtrace.analysis.latency import Bucket
from llmtrace.analysis.metrics import MetricSpec
from llmtrace.analysis.phases import Phases
from llmtrace.analysis.report import Report
from llmtrace.analysis.summary import DEVIATION, PERCENTILE_METHOD
from llmtrace.reports.table_parts import (
    TITLE_WIDTH,
    clock_of,
    make_table,
    numbers,
    pairs,
    small_print,
)
from llmtrace.reports.wording import (
    ABSENT,
    bounds,
    cells,
    conditions,
    metric_rows,
    plural,
    shown_unit,
)

COLUMNS = ("mean", "p50", "p95", "p99", "max")
WIDE_COLUMNS = ("mean", "std", "p50", "p95", "p99", "max")
WIDE = 84
"""From this width on there is room for the standard deviation."""

FEW = 20
"""Below this many requests the 95th percentile is hardly anything but the maximum."""

BAR_WIDTH = 20


def columns_for(width: int) -> tuple[str, ...]:
    """Return the numbers of each distribution that a terminal has room for."""
    return WIDE_COLUMNS if width >= WIDE else COLUMNS


def headline(report: Report, columns: Sequence[str]) -> RenderableType:
    """Return every metric in one table, the conditions of throughput directly below it."""
    shown = metric_rows(report)
    table = make_table("", "count", *columns)
    for spec, summary in shown:
        unit, scale = shown_unit(spec)
        table.add_row(_label(spec.name, unit), *numbers(summary, scale, columns))
    system = ABSENT if report.tgs.system is None else cells([report.tgs.system], 1)[0]
    table.add_row(_label(metrics.TGS_SYSTEM.name, "tok/s"), "", system)
    specs = [spec for spec, _ in shown] + [metrics.TGS_SYSTEM]
    return Group(table, _conditions(report), Text(), _headline_notes(report, specs))


def _label(name: str, unit: str) -> str:
    return f"{name:{TITLE_WIDTH - 6}} {unit}"


def _conditions(report: Report) -> RenderableType:
    return Padding(pairs(conditions(report.tgs.conditions)), (0, 0, 0, 3))


_WEIGHTING = (
    "One value per request; but ITL: one per gap and row, requests pooled, so weighted by tokens; "
    "TGS system: one for all requests."
)


def _headline_notes(report: Report, specs: Iterable[MetricSpec]) -> RenderableType:
    formulas = pairs([(spec.name, spec.formula) for spec in specs], style="dim")
    general = [
        f"{_WEIGHTING} Percentiles: {PERCENTILE_METHOD}; {DEVIATION}. {clock_of(report)}",
    ]
    if report.counted < FEW:
        general.append(f"Fewer than {FEW} requests: p95 and p99 are close to the maximum.")
    return Group(formulas, *(small_print(line) for line in general))


def ttft_by_prompt(report: Report, columns: Sequence[str]) -> RenderableType | None:
    """Return TTFT by prompt length; None where no prompt length is known."""
    return _buckets(
        "TTFT ms, by prompt",
        report.ttft_by_prompt_tokens,
        columns,
        "By prompt tokens: of the request's longest prompt, without padding. t1 - t0; one value "
        "per request. "
        f"Percentiles: {PERCENTILE_METHOD}. {clock_of(report)}",
    )


def itl_by_position(report: Report, columns: Sequence[str]) -> RenderableType | None:
    """Return ITL by token position; None where there are no gaps."""
    return _buckets(
        "ITL ms, by token",
        report.itl_by_position,
        columns,
        "By token position: t[i] - t[i-1] counts at i, so the first gap is at 2. One value per "
        "gap and row; the last 10 tokens of a row also count where they stand. "
        f"Percentiles: {PERCENTILE_METHOD}. {clock_of(report)}",
    )


def _buckets(
    title: str, buckets: Sequence[Bucket], columns: Sequence[str], note: str
) -> RenderableType | None:
    table = make_table(title, "count", *columns)
    for bucket in buckets:
        if bucket.summary is not None:
            table.add_row(bounds(bucket), *numbers(bucket.summary, 1e3, columns))
    return Group(table, small_print(note)) if table.row_count else None


def phase_shares(report: Report) -> RenderableType | None:
    """Return where the time went; None where no request tells."""
    found: Phases | None = report.phases
    if found is None:
        return None
    table = make_table("Where the time goes", "mean ms", "share", "")
    for part in (*found.parts, found.delivery):
        if part.mean_s is None or part.share is None:
            table.add_row(part.name, ABSENT, ABSENT, "")
            continue
        mean = cells([part.mean_s], 1e3)[0]
        if part is found.delivery:
            table.add_row(part.name, mean, ABSENT, "beside decoding")
        else:
            table.add_row(part.name, mean, f"{part.share:.1%}", "#" * round(part.share * BAR_WIDTH))
    formulas = pairs(
        [(part.name, part.formula) for part in (*found.parts, found.delivery)], style="dim"
    )
    note = (
        f"Of {plural(found.requests, 'request')}. Mean per request; share: sum / sum of queue + "
        f"tokenize + duration. {clock_of(report)}"
    )
    return Group(table, formulas, small_print(note))


def first_text(report: Report) -> RenderableType | None:
    """Return what readers of streams waited for; None where there are none."""
    found = report.first_text
    if found is None:
        return None
    columns = ("mean", "p50", "p95", "max")
    table = make_table("First text ms", "count", *columns, "share")
    for name, part in found.parts.items():
        if part is not None:
            share = found.shares[name] or 0.0
            table.add_row(name.replace("_", " "), *numbers(part, 1e3, columns), f"{share:.1%}")
    table.add_row("all", *numbers(found.total_s, 1e3, columns), "100.0%")
    shown = [
        (name.replace("_", " "), formula)
        for name, formula in FORMULAS.items()
        if found.parts[name] is not None
    ]
    note = (
        "Of streams that were read: from the server span, request() block or generate() to text "
        "that is more than white space; the parts of each request add up to it. Share: sum / sum. "
        f"Percentiles: {PERCENTILE_METHOD}. {clock_of(report)}"
    )
    return Group(table, pairs(shown, style="dim"), small_print(note))
