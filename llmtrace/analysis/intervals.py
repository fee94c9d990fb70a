"""How sure a figure is: bootstrap intervals, with requests drawn anew, seeded and bounded in cost.

Gaps of one request are alike, so what is drawn is requests, never single gaps: intervals from
single gaps would be far too narrow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from llmtrace.analysis.gaps import Counts
from llmtrace.analysis.summary import Values

LEVEL = 0.95
METHOD = (
    "percentile bootstrap: requests drawn anew 1,000 times, with replacement, seed fixed; a "
    "request's gaps stay together"
)

DRAWS = 1000
SEED = 20_240_229
FEWEST_REQUESTS = 8
"""From fewer requests nothing can be said about others."""

FEWEST_BEYOND = 4
"""So many values must lie beyond a percentile: of 20 values, p95 is one value, and draws of the
same 20 do not tell what another 20 would have been."""

MOST_GROUPS = 1000
"""Of more requests, some are drawn together: cost stays bounded, the width is the same."""

MOST_LEVELS = 1000
"""Of more distinct values, neighbours are taken together, finer towards the upper end."""

PERCENTILES = (50, 90, 95, 99)


@dataclass(frozen=True, slots=True)
class Interval:
    """Bounds of a figure, both included, at :data:`LEVEL`."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Draws:
    """A figure's values over all draws; what intervals are read from."""

    requests: int
    figures: Mapping[str, Values] = field(default_factory=dict)
    """``mean``, ``p50``, ``p90``, ``p95``, ``p99``, as far as there are enough values: one per
    draw."""

    def intervals(self) -> dict[str, Interval]:
        """Return the interval of each figure; none where there are too few requests."""
        return {name: interval(values) for name, values in self.figures.items()}


def interval(values: Values) -> Interval:
    """Return what holds the middle 95 % of *values*."""
    low, high = np.percentile(values, (100 * (1 - LEVEL) / 2, 100 * (1 + LEVEL) / 2))
    return Interval(float(low), float(high))


def draw(
    values: Values, request: Counts | None = None, rows: Counts | None = None, *, seed: int = SEED
) -> Draws:
    """Return mean and percentiles of *values* over draws of their requests.

    Args:
        values: One or more values per request.
        request: Index of the request each is of; None: each is of one of its own.
        rows: How often each counts; None: once.
        seed: Two sets of requests are drawn independently only with two seeds.
    """
    owner = np.arange(values.size) if request is None else _numbered(request)
    requests = int(owner.max()) + 1 if values.size else 0
    if requests < FEWEST_REQUESTS:
        return Draws(requests)
    random = np.random.default_rng(seed)
    groups = min(requests, MOST_GROUPS)
    if requests > groups:
        owner = (random.permutation(requests) % groups)[owner]
    weight = np.ones(values.size) if rows is None else rows.astype(np.float64)
    order = np.argsort(values, kind="stable")
    values, owner, weight = values[order], owner[order], weight[order]
    level, levels = _levels(values)
    # How much of each group lies at each level; a draw's distribution is a sum of its groups'.
    held = np.bincount(owner * len(levels) + level, weight, groups * len(levels))
    times = random.multinomial(groups, np.full(groups, 1 / groups), DRAWS).astype(np.float64)
    drawn = times @ held.reshape(groups, len(levels))
    sums = times @ np.bincount(owner, weight * values, groups)
    upto = np.cumsum(drawn, axis=1)
    figures = {"mean": sums / upto[:, -1]}
    figures |= {
        f"p{q}": _percentile(levels, upto, q / 100)
        for q in PERCENTILES
        if weight.sum() * (100 - q) >= FEWEST_BEYOND * 100
    }
    return Draws(requests, figures)


def draw_std(values: Values, request: Counts, rows: Counts, *, seed: int = SEED) -> Draws:
    """Return the standard deviation of *values*, as ``std``, over draws of their requests.

    Args:
        values: One or more values per request.
        request: Index of the request each is of.
        rows: How often each counts.
        seed: Two sets of requests are drawn independently only with two seeds.
    """
    owner = _numbered(request)
    requests = int(owner.max()) + 1 if values.size else 0
    if requests < FEWEST_REQUESTS:
        return Draws(requests)
    off = values - values.mean()
    sums = [np.bincount(owner, rows * off**power, requests) for power in range(3)]
    random = np.random.default_rng(seed)
    times = random.multinomial(requests, np.full(requests, 1 / requests), DRAWS)
    count, first, second = (times @ of for of in sums)
    return Draws(requests, {"std": np.sqrt(np.maximum(second / count - (first / count) ** 2, 0))})


def _numbered(request: Counts) -> Counts:
    """Return *request* with the requests that have no value left out of the count."""
    found: Counts = (np.cumsum(np.bincount(request) > 0) - 1)[request]
    return found


def _levels(ordered: Values) -> tuple[Counts, Values]:
    """Return the level of each of *ordered*, and what value each level stands for."""
    level = np.cumsum(np.diff(ordered, prepend=ordered[:1]) > 0, dtype=np.int64)
    if level[-1] >= MOST_LEVELS:
        half = MOST_LEVELS // 2
        shares = np.union1d(np.linspace(0, 1, half), np.linspace(0.9, 1, half))
        edges = np.unique((shares[1:] * ordered.size).astype(np.int64))
        level = np.searchsorted(edges, np.arange(ordered.size), side="right")
    return level, np.bincount(level, ordered) / np.bincount(level)


def _percentile(levels: Values, upto: npt.NDArray[np.float64], q: float) -> Values:
    """Return a percentile, by linear interpolation, of each draw.

    Args:
        levels: The values, ascending.
        upto: For each draw (a row), how many of its values are at each level or below.
        q: Between 0 and 1.
    """
    place = (upto[:, -1] - 1) * q
    below = np.floor(place)
    low = (upto <= below[:, None]).sum(axis=1)
    high = (upto <= np.minimum(below + 1, upto[:, -1] - 1)[:, None]).sum(axis=1)
    found: Values = levels[low] + (levels[high] - levels[low]) * (place - below)
    return found
