"""Before and after: how figures changed, and whether by more than chance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from llmtrace.analysis.gaps import gaps_of
from llmtrace.analysis.intervals import (
    DRAWS,
    FEWEST_REQUESTS,
    SEED,
    Draws,
    Interval,
    draw,
    draw_std,
    interval,
)
from llmtrace.analysis.latency import PROMPT_BUCKETS, prompt_tokens
from llmtrace.analysis.report import Report, build_report, counted_requests
from llmtrace.analysis.summary import Summary, Values, present, summarise
from llmtrace.analysis.timeline import AtConcurrency, Timeline, block_rates, timeline
from llmtrace.records import RequestRecord

Outcome = Literal["better", "worse", "within noise", "undecided"]

METHOD = (
    "change: (after - before) / before; interval: 95 %, of the changes between 1,000 draws of the "
    "requests of either side, with replacement, seed fixed; of TGS: draws of 20 equal parts of the "
    "time in which requests ran. A change whose interval does not hold 0 is larger than noise"
)

NOTHING = 1e-6
"""Changes of a millionth are those of rounding."""

LEAST = 1e-15
"""Changes are relative to more than this: what is less was not measured, and would overflow."""

LEAST_SHARE = 0.1
"""Throughput with k requests at once is compared where either side had k so much of its time."""


@dataclass(frozen=True, slots=True)
class Line:
    """One figure, before and after."""

    name: str
    unit: str
    """``s``, ``token/s``, ``1`` or ``By``."""
    before: float
    after: float
    change: float | None
    """Relative: -0.154 is 15.4 % less; None where it was 0 before."""
    interval: Interval | None
    """Of the change; None where there are too few requests."""
    samples: tuple[int, int]
    """Requests on either side."""
    more_is_better: bool
    exact: bool = False
    """A maximum, of which there is one: chance is no matter of it."""

    @property
    def outcome(self) -> Outcome:
        """What the change amounts to."""
        if self.change is None:
            return "undecided"
        bounds = Interval(self.change, self.change) if self.exact else self.interval
        if bounds is None:
            return "undecided"
        if bounds.low <= NOTHING and bounds.high >= -NOTHING:
            return "within noise"
        return self._direction

    @property
    def _direction(self) -> Outcome:
        return "better" if ((self.change or 0) > 0) == self.more_is_better else "worse"

    @property
    def worsening(self) -> float | None:
        """By how much it is worse, relative; negative where it is better."""
        if self.change is None:
            return None
        return -self.change if self.more_is_better else self.change


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two sets of requests, figure by figure."""

    before: Report
    after: Report
    lines: tuple[Line, ...]

    def verdict(self, percent: float | None) -> Literal["PASS", "FAIL", "UNDECIDED"]:
        """Return whether nothing has become worse by *percent* or more.

        FAIL: something has, by more than chance. UNDECIDED: something may have, but there are too
        few requests to tell it from chance; or there are too few to tell anything.
        """
        if all(line.outcome == "undecided" for line in self.lines if not line.exact):
            return "UNDECIDED"
        if percent is None:
            return "PASS"
        beyond = [line for line in self.lines if (line.worsening or 0.0) * 100 >= percent]
        if any(line.outcome == "worse" for line in beyond):
            return "FAIL"
        # Of 0 percent chance always makes more.
        return "UNDECIDED" if beyond and percent else "PASS"


def compare(
    before: Sequence[RequestRecord], after: Sequence[RequestRecord], *, include_cold: bool = False
) -> Comparison:
    """Compare two sets of requests; failed and cold ones are left out as in a report."""
    first, second = (
        Side(counted_requests(records, include_cold=include_cold), records, SEED + number)
        for number, records in enumerate((before, after))
    )
    old, new = (build_report(records, include_cold=include_cold) for records in (before, after))
    lines = [
        *_latencies(first, second),
        *_throughputs(first, second, old, new),
        *_memory(old, new),
    ]
    return Comparison(old, new, tuple(lines))


def itl_spread(before: Sequence[RequestRecord], after: Sequence[RequestRecord]) -> Line | None:
    """Return how the standard deviation of the gaps changed; None where a side has no gap."""
    sides = [gaps_of(records) for records in (before, after)]
    samples = [
        Sample(summarise(gaps.pooled()), draw_std(gaps.seconds, gaps.request, gaps.rows, seed=seed))
        for seed, gaps in enumerate(sides, SEED)
    ]
    return next(iter(_lines("ITL", ("std",), *samples)), None)


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two recordings."""

    counted: Sequence[RequestRecord]
    running: Sequence[RequestRecord]
    seed: int
    """The two sides are drawn independently."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A quantity on one side: its distribution, and that of its figures over draws."""

    summary: Summary | None
    draws: Draws


def _latencies(before: Side, after: Side) -> list[Line]:
    return [
        *_lines("TTFT", ("p50", "p95"), *(_per_request(s, "ttft_s") for s in (before, after))),
        *_ttft_by_prompt(before, after),
        *_lines("ITL", ("p50", "p95", "p99"), _gaps(before), _gaps(after)),
    ]


def _ttft_by_prompt(before: Side, after: Side) -> list[Line]:
    """Return TTFT of each range of prompt lengths that is on both sides, if there are several."""
    lines = [
        line
        for first, last in PROMPT_BUCKETS
        for line in _lines(
            f"TTFT, prompts {first}+" if last is None else f"TTFT, prompts {first}-{last}",
            ("p50",),
            *(_per_request(_of_prompts(s, first, last), "ttft_s") for s in (before, after)),
        )
    ]
    return lines if len(lines) > 1 else []


def _of_prompts(side: Side, first: int, last: int | None) -> Side:
    held = [
        record
        for record in side.counted
        if (n := prompt_tokens(record)) is not None and first <= n and (last is None or n <= last)
    ]
    return replace(side, counted=held)


def _per_request(side: Side, name: str) -> Sample:
    values = present(getattr(record, name) for record in side.counted)
    return Sample(summarise(values), draw(values, seed=side.seed))


def _gaps(side: Side) -> Sample:
    gaps = gaps_of(side.counted)
    drawn = draw(gaps.seconds, gaps.request, gaps.rows, seed=side.seed)
    return Sample(summarise(gaps.pooled()), drawn)


def _lines(
    name: str,
    statistics: Sequence[str],
    before: Sample,
    after: Sample,
    *,
    unit: str = "s",
    more_is_better: bool = False,
) -> list[Line]:
    """Return a line for each statistic; none where a side has no such quantity."""
    if before.summary is None or after.summary is None:
        return []
    lines = []
    for statistic in statistics:
        old = float(getattr(before.summary, statistic))
        new = float(getattr(after.summary, statistic))
        drawn = (side.draws.figures.get(statistic) for side in (before, after))
        lines.append(
            Line(
                name=f"{name} {statistic}",
                unit=unit,
                before=old,
                after=new,
                change=_change(old, new),
                interval=_interval(*drawn),
                samples=(before.draws.requests, after.draws.requests),
                more_is_better=more_is_better,
            )
        )
    return lines


def _change(before: float, after: float) -> float | None:
    return (after - before) / before if before > LEAST else None


def _interval(before: Values | None, after: Values | None) -> Interval | None:
    """Return the interval of the change between two independent sets of draws."""
    if before is None or after is None or not (before > LEAST).all():
        return None
    return interval((after - before) / before)


def _throughputs(before: Side, after: Side, first: Report, second: Report) -> list[Line]:
    per_request = (_per_request(side, "tgs") for side in (before, after))
    lines = _lines("TGS request", ("mean",), *per_request, unit="token/s", more_is_better=True)
    times = [timeline(side.counted, side.running) for side in (before, after)]
    levels = [{x.running: x for x in report.tgs.by_concurrency} for report in (first, second)]
    values = [report.tgs.system for report in (first, second)]
    rates = [_rates(side, found, None) for side, found in zip((before, after), times, strict=True)]
    lines += _rate_line("TGS system", values, rates, (before, after))
    for k in sorted(set(levels[0]) & set(levels[1])):
        if len(levels[0]) == len(levels[1]) == 1 or not all(_usual(level, k) for level in levels):
            continue
        rates = [_rates(side, found, k) for side, found in zip((before, after), times, strict=True)]
        values = [level[k].tgs for level in levels]
        lines += _rate_line(f"TGS, {k} at once", values, rates, (before, after))
    return lines


def _usual(levels: Mapping[int, AtConcurrency], k: int) -> bool:
    return levels[k].seconds >= LEAST_SHARE * sum(level.seconds for level in levels.values())


def _rates(side: Side, found: Timeline | None, running: int | None) -> Values | None:
    """Return the mean rate of draws of equal parts of the time; None from too few requests."""
    if found is None or len(side.counted) < FEWEST_REQUESTS:
        return None
    rates = block_rates(found, running)
    random = np.random.default_rng(side.seed)
    drawn: Values = random.choice(rates, (DRAWS, rates.size)).mean(axis=1)
    return drawn


def _rate_line(
    name: str,
    values: Sequence[float | None],
    rates: Sequence[Values | None],
    sides: tuple[Side, Side],
) -> list[Line]:
    before, after = values
    if before is None or after is None:
        return []
    return [
        Line(
            name=name,
            unit="token/s",
            before=before,
            after=after,
            change=_change(before, after),
            interval=_interval(*rates),
            samples=(len(sides[0].counted), len(sides[1].counted)),
            more_is_better=True,
        )
    ]


def _memory(before: Report, after: Report) -> list[Line]:
    held = [report.tgs.conditions.gpu_memory_bytes for report in (before, after)]
    if held[0] is None or held[1] is None:
        return []
    old, new = held[0].max, held[1].max
    return [
        Line(
            name="peak memory",
            unit="By",
            before=old,
            after=new,
            change=_change(old, new),
            interval=None,
            samples=(held[0].count, held[1].count),
            more_is_better=False,
            exact=True,
        )
    ]
