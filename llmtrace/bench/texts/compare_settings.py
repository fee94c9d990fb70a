"""Levers in the terminal: a table for each, then what all of them come to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from llmtrace.analysis.comparison import METHOD, Line
from llmtrace.analysis.intervals import FEWEST_REQUESTS
from llmtrace.bench.compare_settings.evaluation import VERDICTS, Outcome, Settings, verdict
from llmtrace.bench.texts.parts import cautions, findings, heading
from llmtrace.reports.compare_text import percent
from llmtrace.reports.printing import printed
from llmtrace.reports.table_parts import make_table, pairs, small_print
from llmtrace.reports.wording import ABSENT, cells, clean, conditions, plural, size

STYLES = dict(zip(VERDICTS.values(), ("green", "bold red", "", "yellow"), strict=True))
MARKS = dict(zip(VERDICTS.values(), ("+", "!", "=", "?"), strict=True))
_UNITS = {"s": ("ms", 1e3), "token/s": ("tok/s", 1.0)}


def render(
    found: Settings, header: Mapping[str, Any], *, width: int = 100, color: bool = False
) -> str:
    """Return the result as text."""
    parts: list[RenderableType] = [heading(header)]
    for outcome in found.outcomes:
        parts += [Text(), _lever(outcome)]
    if found.outcomes:
        parts += [Text(), _all(found.outcomes)]
    if found.unavailable:
        named = [(one.name, clean(one.reason)) for one in found.unavailable]
        parts += [Text(), Text("Not measured", style="bold"), pairs(named)]
    sides = [side for outcome in found.outcomes for side in outcome.tried.sides]
    parts += findings(record for side in sides for record in side.single.records)
    parts += [Text(), cautions(found.cautions), Text(), small_print(_note())]
    return printed(parts, width, color)


def _lever(outcome: Outcome) -> RenderableType:
    tried = outcome.tried
    order = (
        "before and after turn about"
        if tried.interleaved
        else "all before, then all after: both models do not fit into memory at once"
    )
    table = make_table("", "before", "after", "change", "95 % interval", "")
    for line in outcome.lines:
        table.add_row(*_row(line))
    counted = plural(len(tried.before.single.counted), "request")
    others = len(tried.after.single.counted)
    settings = conditions(outcome.before.tgs.conditions)
    return Group(
        Text(f"{tried.lever.name}: {tried.lever.measure}", style="bold"),
        Text(f"before: {tried.before.variant.said}; after: {tried.after.variant.said}"),
        Text(f"{counted} before, {others} after; {order}"),
        table,
        small_print("before: " + "; ".join(f"{name} {said}" for name, said in settings)),
    )


def _row(line: Line) -> list[Any]:
    if line.unit == "By":
        unit, before, after = "", size(line.before), size(line.after)
    else:
        unit, scale = _UNITS[line.unit]
        before, after = cells([line.before, line.after], scale)
    bounds, said = line.interval, verdict(line)
    return [
        f"{line.name} {unit}".rstrip(),
        before,
        after,
        _change(line),
        ABSENT if bounds is None else f"{percent(bounds.low)} to {percent(bounds.high)}",
        Text(said, style=STYLES[said]),
    ]


def _change(line: Line) -> str:
    return ABSENT if line.change is None else percent(line.change)


def _all(outcomes: Sequence[Outcome]) -> RenderableType:
    """Return the change of each figure by each measure."""
    names = list(dict.fromkeys(line.name for o in outcomes for line in o.lines))
    table = make_table("Measure taken", *(name.removesuffix(" request mean") for name in names))
    for outcome in outcomes:
        lines = {line.name: line for line in outcome.lines}
        table.add_row(clean(outcome.tried.lever.measure), *(_mark(lines.get(n)) for n in names))
    marks = ", ".join(f"{mark} {said}" for said, mark in MARKS.items())
    return Group(table, small_print(f"Change with the measure taken: {marks}."))


def _mark(line: Line | None) -> Text:
    if line is None:
        return Text(ABSENT)
    said = verdict(line)
    return Text(f"{_change(line)} {MARKS[said]}", style=STYLES[said])


def _note() -> str:
    return (
        f"{METHOD[0].upper()}{METHOD[1:]}. None from fewer than {FEWEST_REQUESTS} requests. Both "
        "sides have the same prompts. Peak memory: the most that torch's allocator held during a "
        "request, without what belongs to another model."
    )
