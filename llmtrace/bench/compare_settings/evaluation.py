"""What levers do: figures before and after each, and whether they differ by more than chance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from llmtrace.analysis.comparison import Line, compare, itl_spread
from llmtrace.analysis.report import Report, build_report
from llmtrace.bench import cautions
from llmtrace.bench.cautions import FEWEST_FOR_P95, Caution
from llmtrace.bench.compare_settings.levers import Unavailable
from llmtrace.bench.compare_settings.sides import KINDS, Tried

FIGURES = ("TTFT p50", "ITL p95", "TGS request mean")
"""Of those that a comparison has."""
LEAST_EXACT = 0.005
"""A maximum that changes by less makes no difference."""
VERDICTS = {
    "better": "better",
    "worse": "worse",
    "within noise": "no difference to be seen",
    "undecided": "too few requests to tell",
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one lever."""

    tried: Tried
    lines: tuple[Line, ...]
    """Figures before and after; those that do not exist here are left out."""
    before: Report
    after: Report
    """Of the single requests; the conditions of every rate are in them."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What was found about all levers."""

    outcomes: tuple[Outcome, ...]
    unavailable: tuple[Unavailable, ...]
    cautions: tuple[Caution, ...]
    interrupted: bool = False


def evaluate(
    tried: Sequence[Tried],
    unavailable: Sequence[Unavailable],
    rows: int | None,
    about_machine: Sequence[Caution] = (),
    *,
    interrupted: bool = False,
) -> Settings:
    """Return the figures of all levers.

    Args:
        tried: What was measured.
        unavailable: What could not be.
        rows: Of the batches; None where there were none.
        about_machine: Why the machine makes the figures doubtful.
        interrupted: Ctrl-C ended it.
    """
    outcomes = tuple(_outcome(one, rows) for one in tried)
    doubts = (*_doubts(tried), *about_machine)
    return Settings(outcomes, tuple(unavailable), doubts, interrupted)


def _outcome(tried: Tried, rows: int | None) -> Outcome:
    before, after = (side.single.records for side in tried.sides)
    found = compare(before, after)
    lines = [line for name in FIGURES for line in found.lines if line.name == name]
    lines[2:2] = filter(None, [itl_spread(*(side.single.counted for side in tried.sides))])
    if rows:
        batches = compare(*(side.batches.records for side in tried.sides))
        lines += [
            replace(line, name=f"TGS at {rows} concurrent")
            for line in batches.lines
            if line.name == "TGS request mean"
        ]
    lines += filter(None, [_peak(tried), _kv_cache(tried)])
    return Outcome(tried, tuple(lines), build_report(before), build_report(after))


def _peak(tried: Tried) -> Line | None:
    return _most("peak memory", *([side.peak_memory_bytes] for side in tried.sides))


def _kv_cache(tried: Tried) -> Line | None:
    return _most("KV cache", *([r.kv_cache_bytes for r in s.single.counted] for s in tried.sides))


def _most(name: str, before: Sequence[int | None], after: Sequence[int | None]) -> Line | None:
    """Return the change of a maximum; None where a side has none."""
    known = [[n for n in side if n is not None] for side in (before, after)]
    if not all(known):
        return None
    old, new = (max(side) for side in known)
    return Line(
        name=name,
        unit="By",
        before=float(old),
        after=float(new),
        change=(new - old) / old if old else None,
        interval=None,
        samples=(len(known[0]), len(known[1])),
        more_is_better=False,
        exact=True,
    )


def verdict(line: Line) -> str:
    """Return what a change amounts to: better, worse, no difference to be seen, or untold."""
    if line.exact and line.change is not None and abs(line.change) < LEAST_EXACT:
        return VERDICTS["within noise"]
    return VERDICTS[line.outcome]


def _doubts(tried: Sequence[Tried]) -> list[Caution]:
    """Return the cautions of each side's requests, and one against few of them."""
    found = [
        replace(caution, text=f"{one.lever.name}, {side.name}: {caution.text}")
        for one in tried
        for side in one.sides
        for kind in KINDS
        for caution in cautions.of_trials(side.of(kind))
    ]
    least = min((len(side.single.counted) for one in tried for side in one.sides), default=None)
    if least is not None and least < FEWEST_FOR_P95:
        text = f"Only {least} requests count on one side: small differences cannot be seen."
        found.append(Caution("few_trials", text))
    return found
