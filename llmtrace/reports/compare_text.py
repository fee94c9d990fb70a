"""A comparison for the terminal: the table of before and after, then a sentence for each line."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from llmtrace.analysis.comparison import METHOD, Comparison, Line
from llmtrace.analysis.differences import CAVEATS, Difference
from llmtrace.analysis.intervals import FEWEST_BEYOND, FEWEST_REQUESTS
from llmtrace.analysis.report import Report
from llmtrace.analysis.summary import PERCENTILE_METHOD
from llmtrace.reports.printing import printed
from llmtrace.reports.table_parts import make_table, pairs, small_print
from llmtrace.reports.wording import ABSENT, cells, clean, plural, size

STYLES = {"better": "green", "worse": "bold red", "within noise": "", "undecided": "yellow"}

_UNITS = {"s": ("ms", 1e3), "token/s": ("tok/s", 1.0)}

_NAME_WIDTH = 26
_ROOMY = 96
"""Columns from which on units stand under each other; else names take as few as they can."""

_MOST_SHOWN = 60
"""Characters of a setting."""


def render(
    found: Comparison, changed: Sequence[Difference], *, width: int = 100, color: bool = False
) -> str:
    """Return *found* as text, without a line's end after it."""
    parts = [
        _side("before", found.before),
        _side("after", found.after),
        Text(),
        _table(found.lines, width)
        if found.lines
        else Text("There is nothing that both sides have."),
        Text(),
        _sentences(found.lines),
        Text(),
        _changed(changed),
        Text(),
        small_print(_note()),
    ]
    return printed(parts, width, color)


def sentence(line: Line) -> str:
    """Return the line in words: ``TTFT p50 -15.4 %, larger than noise: better``."""
    if line.change is None:
        return f"{line.name}: was 0 before, so there is no relative change"
    said = f"{line.name} {percent(line.change)}"
    if line.exact:
        return f"{said}: a maximum, of which there is one on either side"
    if line.interval is None:
        fewest = plural(min(line.samples), "request")
        return f"{said}, but {fewest} on one side cannot tell it from noise"
    if line.outcome == "within noise":
        return f"{said}, within noise"
    return f"{said}, larger than noise: {line.outcome}"


def percent(change: float) -> str:
    """Return a relative change in percent, signed unless it is none."""
    rounded = round(change * 100, 1)
    return f"{rounded:+.1f} %" if rounded else "0.0 %"


def _side(name: str, report: Report) -> Text:
    said = f"{name:7} {plural(report.counted, 'request')} of {report.requests.total:,}"
    left_out = [
        f"{count} {what}"
        for count, what in (
            (report.requests.error, "failed"),
            (report.requests.ok - report.counted, "cold"),
        )
        if count
    ]
    return Text(f"{said}; left out: {' and '.join(left_out)}" if left_out else said)


def _table(lines: Sequence[Line], width: int) -> RenderableType:
    beside = _NAME_WIDTH if width >= _ROOMY else 0
    table = make_table("", "before", "after", "change", "95 % interval", "")
    for line in lines:
        unit, before, after = _amounts(line)
        bounds = line.interval
        table.add_row(
            f"{line.name:{beside}} {unit}",
            before,
            after,
            ABSENT if line.change is None else percent(line.change),
            ABSENT if bounds is None else f"{percent(bounds.low)} to {percent(bounds.high)}",
            Text(line.outcome, style=STYLES[line.outcome]),
        )
    return table


def _amounts(line: Line) -> tuple[str, str, str]:
    if line.unit == "By":
        return "", size(line.before), size(line.after)
    unit, scale = _UNITS[line.unit]
    before, after = cells([line.before, line.after], scale)
    return unit, before, after


def _sentences(lines: Sequence[Line]) -> RenderableType:
    return Group(*[Text(f"{sentence(line)}.") for line in lines])


def _changed(changed: Sequence[Difference]) -> RenderableType:
    if not changed:
        return Text("The recordings tell of no other difference.")
    shown = [(clean(d.name), f"{_short(d.before)} -> {_short(d.after)}") for d in changed]
    caveats = [Text(CAVEATS[d.name]) for d in changed if d.name in CAVEATS]
    return Group(Text("What else differs", style="bold"), pairs(shown), *caveats)


def _short(value: str) -> str:
    value = clean(value) or "not recorded"
    return value if len(value) <= _MOST_SHOWN else value[: _MOST_SHOWN - 3] + "..."


def _note() -> str:
    return (
        f"{METHOD[0].upper()}{METHOD[1:]}. None from fewer than {FEWEST_REQUESTS} requests, nor "
        f"where fewer than {FEWEST_BEYOND} values lie beyond the percentile. Percentiles: "
        f"{PERCENTILE_METHOD}."
    )
