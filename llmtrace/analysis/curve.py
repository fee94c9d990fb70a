"""ITL over token position: the curve, where it jumps, and its slope against context length."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from llmtrace.analysis.gaps import FIRST_POSITION, Counts, Gaps
from llmtrace.analysis.latency import prompt_tokens
from llmtrace.analysis.summary import Values
from llmtrace.records import RequestRecord

WINDOW = 5
"""Positions on either side of a jump; what is shorter does not last."""

JUMP_RATIO = 1.25
"""A jump raises the gap at least to so many times what it was ..."""

JUMP_NOISES = 5.0
"""... and by at least so many times the usual difference from one position to the next."""

BINS = 40
"""Context lengths are put into so many bins of equal count before the slope is taken."""

FEWEST_CONTEXTS = 10
"""Fewer distinct context lengths tell no slope."""

_MAD_TO_STD = 1.4826


@dataclass(frozen=True, slots=True)
class Curve:
    """ITL at each token position, seconds; position ``first`` + i at index i."""

    first: int
    counts: tuple[int, ...]
    """Gaps at the position, one for each row."""
    p5: tuple[float, ...]
    p50: tuple[float, ...]
    p95: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Jump:
    """The first position from which on gaps are longer, and stay so."""

    position: int
    before_s: float
    """Median over the positions before it."""
    after_s: float
    """Median over it and the positions after it."""


@dataclass(frozen=True, slots=True)
class Trend:
    """How ITL depends on context length and position."""

    requests: int
    """Requests looked at: those of the most frequent model and batch size."""
    slope_s_per_token: float | None
    """ITL gained per token of context."""
    context_from: int | None
    context_to: int | None
    """The context lengths that the slope was taken over."""
    jump: Jump | None


def itl_curve(gaps: Gaps) -> Curve | None:
    """Return ITL at each position; None where there are no gaps."""
    if not gaps.seconds.size:
        return None
    seconds, position = gaps.pooled(), np.repeat(gaps.position, gaps.rows)
    order = np.argsort(seconds)
    # Small integers are put in order by counting them, the quickest way there is.
    small = np.uint16 if int(position.max()) <= np.iinfo(np.uint16).max else np.int64
    order = order[np.argsort(position[order].astype(small), kind="stable")]
    seconds = seconds[order]
    # Whoever has a gap at a position has one at every position before it: none is missing.
    counts = np.bincount(position)[FIRST_POSITION:]
    starts = np.cumsum(counts) - counts
    p5, p50, p95 = (_percentiles(seconds, starts, counts, q) for q in (0.05, 0.5, 0.95))
    return Curve(FIRST_POSITION, tuple(counts.tolist()), p5, p50, p95)


def _percentiles(ordered: Values, starts: Counts, counts: Counts, q: float) -> tuple[float, ...]:
    """Return a percentile, by linear interpolation, of each run of *ordered*."""
    place = (counts - 1) * q
    below = place.astype(np.int64)
    above = np.minimum(below + 1, counts - 1)
    low, high = ordered[starts + below], ordered[starts + above]
    return tuple((low + (high - low) * (place - below)).tolist())


def trend(records: Sequence[RequestRecord], gaps: Gaps, curve: Curve | None = None) -> Trend | None:
    """Return slope and first lasting jump of ITL; None where there are no gaps.

    Only requests of the most frequent model and batch size are looked at: others have another ITL
    at the same place.

    Args:
        records: The requests.
        gaps: Their gaps.
        curve: That of all of *gaps*, where it is known already.

    Formula:
        Slope: context lengths in bins of equal count, medians of each bin, Theil-Sen (the median
        of the slopes of all pairs of bins). Jump: see :func:`first_jump`, over the median of each
        position.
    """
    kinds = Counter((r.model, r.batch_size) for r in records if r.itl_s)
    if not kinds:
        return None
    usual = kinds.most_common(1)[0][0]
    chosen = gaps.of([i for i, r in enumerate(records) if (r.model, r.batch_size) == usual])
    prompts = np.array([prompt_tokens(r) or 0 for r in records], dtype=np.int64)
    slope, bounds = _slope(chosen, prompts[chosen.request])
    if curve is None or chosen is not gaps:
        curve = itl_curve(chosen)
    return Trend(
        requests=kinds[usual],
        slope_s_per_token=slope,
        context_from=bounds[0],
        context_to=bounds[1],
        jump=None if curve is None else first_jump(curve),
    )


def _slope(gaps: Gaps, prompts: Counts) -> tuple[float | None, tuple[int | None, int | None]]:
    known = prompts > 0
    # The token that ends the gap was made from the prompt and all tokens before it.
    context = (prompts + gaps.position - 1)[known]
    if np.unique(context).size < FEWEST_CONTEXTS:
        return None, (None, None)
    order = np.argsort(context, kind="stable")
    context, seconds = context[order], gaps.seconds[known][order]
    bins = min(BINS, context.size)
    x = np.array([np.median(part) for part in np.array_split(context, bins)])
    y = np.array([np.median(part) for part in np.array_split(seconds, bins)])
    first, second = np.triu_indices(bins, 1)
    run = x[second] - x[first]
    slopes = (y[second] - y[first])[run > 0] / run[run > 0]
    return float(np.median(slopes)), (int(context[0]), int(context[-1]))


def first_jump(curve: Curve) -> Jump | None:
    """Return the first position from which on gaps are longer; None where there is none.

    A jump is where the median of the 5 positions from it on exceeds that of the 5 before it by a
    quarter, and by 5 times the usual difference between neighbours, and where most positions
    after it stay nearer to the higher level. Of neighbouring such positions it is the one that
    splits them best: with the least sum of distances from the medians of both sides.

    Positions that fewer than half of the requests reached are left out: those that did may be
    others.
    """
    counts = np.array(curve.counts)
    medians = np.array(curve.p50)[counts * 2 >= counts[0]]
    if medians.size < 2 * WINDOW:
        return None
    level = np.median(np.lib.stride_tricks.sliding_window_view(medians, WINDOW), axis=1)
    before, after = level[:-WINDOW], level[WINDOW:]
    rise = after - before
    high = (rise >= before * (JUMP_RATIO - 1)) & (rise >= JUMP_NOISES * _noise(medians))
    places = [
        int(i) + WINDOW
        for i in np.flatnonzero(high)
        if np.median(medians[i + WINDOW :]) >= before[i] + rise[i] / 2
    ]
    if not places:
        return None
    at = _best_split(medians, _first_run(places))
    if medians.size - at < WINDOW:
        return None
    return Jump(
        position=curve.first + at,
        before_s=float(np.median(medians[:at])),
        after_s=float(np.median(medians[at:])),
    )


def _noise(values: Values) -> float:
    """Return the usual deviation from one value to the next, whatever trend and jumps there are."""
    steps = np.diff(values)
    return float(_MAD_TO_STD * np.median(np.abs(steps - np.median(steps))) / np.sqrt(2))


def _first_run(places: Sequence[int]) -> list[int]:
    run = [places[0]]
    for place in places[1:]:
        if place - run[-1] > WINDOW:
            break
        run.append(place)
    return run


def _best_split(values: Values, places: Sequence[int]) -> int:
    low, high = places[0] - WINDOW, places[-1] + WINDOW

    def cost(at: int) -> float:
        sides = values[low:at], values[at:high]
        return sum(float(np.abs(side - np.median(side)).sum()) for side in sides)

    # A window's median is up as soon as three of its five values are.
    reach = WINDOW // 2
    return min(range(places[0] - reach, places[-1] + reach + 1), key=cost)
