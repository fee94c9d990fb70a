"""TGS in the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from llmtrace.bench.cautions import Caution
from llmtrace.bench.texts import parts
from llmtrace.bench.tgs.evaluation import LevelResult
from llmtrace.bench.tgs.resources import RESOURCES
from llmtrace.reports.printing import printed
from llmtrace.reports.table_parts import make_table, pairs, small_print
from llmtrace.reports.wording import ABSENT, conditions

MS = 1e3
WAITED_S = 1e-3
"""Less is no waiting worth a table."""
COLUMNS = ("TGS system", "steady", "of time", "TGS req.", "TTFT p50", "p95", "ITL p50", "p95")


def render(
    levels: Sequence[LevelResult],
    correlations: Mapping[str, float | None],
    cautions: Sequence[Caution],
    header: Mapping[str, Any],
    *,
    width: int = 100,
    color: bool = False,
) -> str:
    """Return the result as text."""
    sections: list[RenderableType] = [parts.heading(header), Text(), _table(levels)]
    if any(level.queue_s is not None and level.queue_s.max > WAITED_S for level in levels):
        sections += [Text(), _queues(levels)]
    if any(level.loss is not None for level in levels):
        sections += [Text(), _losses(levels)]
    sections += [Text(), _use(levels, correlations), Text(), _conditions(levels)]
    sections += [*parts.findings(r.record for lv in levels for r in lv.requests), Text()]
    said = [*(c for level in levels for c in level.cautions), *cautions]
    return printed([*sections, parts.cautions(said)], width, color)


def _number(value: float | None, scale: float = 1.0, digits: int = 1) -> str:
    return ABSENT if value is None else f"{value * scale:,.{digits}f}"


def _table(levels: Sequence[LevelResult]) -> RenderableType:
    table = make_table("at a time", *COLUMNS)
    for found in levels:
        steady, itl = found.steady, found.report.itl_s
        table.add_row(
            f"{found.level.name} ({found.level.mechanism})",
            _number(found.system),
            _number(steady.tgs if steady else None),
            ABSENT if steady is None else f"{steady.share:.0%}",
            _number(found.tgs.mean if found.tgs else None),
            _number(found.ttft_s.p50 if found.ttft_s else None, MS),
            _number(found.ttft_s.p95 if found.ttft_s else None, MS),
            _number(itl.p50 if itl else None, MS),
            _number(itl.p95 if itl else None, MS),
        )
    note = (
        "TGS, tokens per second. System: output tokens of all requests over the time in which any "
        "was at work; steady: over the time in which as many were at work as the level says. "
        "TGS req.: tokens of a request over its time, mean. TTFT (ms) and time count from when a "
        "request was due or submitted. ITL (ms): pooled gaps."
    )
    return Group(table, small_print(note))


def _queues(levels: Sequence[LevelResult]) -> RenderableType:
    table = make_table("waiting, ms", "mean", "p95", "max", "late")
    for found in levels:
        q, lag = found.queue_s, found.lag_s
        table.add_row(
            found.level.name,
            *(_number(getattr(q, name) if q else None, MS) for name in ("mean", "p95", "max")),
            _number(lag.max if lag else None, MS),
        )
    return Group(
        table, small_print("From due or submitted to run. Late: the load generator's own lag.")
    )


def _losses(levels: Sequence[LevelResult]) -> RenderableType:
    names = list(dict.fromkeys(n for lv in levels if lv.loss for n in lv.loss.parts))
    table = make_table("lost, %", "in all", *(name.replace("_", " ") for name in names))
    for found in levels:
        if found.loss is not None:
            table.add_row(
                found.level.name,
                _number(found.loss.total, 100),
                *(_number(found.loss.parts.get(name), 100) for name in names),
            )
    return Group(
        table, small_print("Of N times what one request at a time makes; see docs/bench.md.")
    )


def _use(levels: Sequence[LevelResult], correlations: Mapping[str, float | None]) -> RenderableType:
    table = make_table("mean use", *(level.level.name for level in levels), "r with ITL")
    for name, title in RESOURCES.items():
        if not any(name in level.use for level in levels):
            continue
        scale = 1e-9 if name.endswith("bytes") else 1.0
        means = [summary.mean if (summary := level.use.get(name)) else None for level in levels]
        table.add_row(
            title, *(_number(m, scale) for m in means), _number(correlations.get(name), 1, 2)
        )
    return table


def _conditions(levels: Sequence[LevelResult]) -> RenderableType:
    """Return the four conditions of every rate, for each level."""
    lines: list[RenderableType] = [Text("Conditions", style="bold")]
    for found in levels:
        lines.append(Text(f"at {found.level.name}, by {found.level.mechanism}"))
        lines.append(Padding(pairs(conditions(found.report.tgs.conditions)), (0, 0, 0, 3)))
    return Group(*lines)
