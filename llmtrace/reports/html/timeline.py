"""Requests running and tokens per second over time, in bins, idle stretches cut out."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from llmtrace.analysis.summary import Values
from llmtrace.analysis.timeline import Timeline

BINS = 200
FEWEST_BINS = 12
TOKENS_PER_BIN = 8
"""At least, on average: bins that hold one token or none show nothing but the clock's beat."""

IDLE_SHARE = 0.1
"""Of the whole time: a longer stretch with nothing running is cut out."""


def binned(found: Timeline | None) -> dict[str, Any] | None:
    """Return what ran while, in bins of equal width; None where nothing took time.

    Per bin ``running``, the mean number of requests running, and ``tgs``, output tokens selected
    in it / its width.

    Returns:
        ``width_ms`` of a bin, and ``stretches`` between cuts, each with ``from_ms`` since the
        first request began.
    """
    if found is None:
        return None
    stretches = _stretches(found)
    bins = min(max(found.tokens_s.size // TOKENS_PER_BIN, FEWEST_BINS), BINS)
    width = sum(last - first for first, last in stretches) / bins
    return {
        "width_ms": width * 1e3,
        "tokens_known": bool(found.tokens_s.size),
        "stretches": [
            {
                "from_ms": round(first * 1e3, 3),
                "running": _running(found, edges),
                "tgs": _per_second(found, edges),
            }
            for first, last in stretches
            for edges in [_edges(first, last, width)]
        ],
    }


def _stretches(found: Timeline) -> list[tuple[float, float]]:
    """Return first and last instant of each stretch without a long idle time in it."""
    edges = found.edges_s
    idle = (found.running == 0) & (np.diff(edges) > (edges[-1] - edges[0]) * IDLE_SHARE)
    cuts = np.flatnonzero(idle)
    firsts = [edges[0], *edges[cuts + 1]]
    lasts = [*edges[cuts], edges[-1]]
    return [(float(first), float(last)) for first, last in zip(firsts, lasts, strict=True)]


def _edges(first: float, last: float, width: float) -> Values:
    """Return the edges of the bins that cover a stretch; rounding must not make it one more."""
    bins = max(math.ceil((last - first) / width - 1e-6), 1)
    return np.array([first + width * place for place in range(bins + 1)])


def _running(found: Timeline, edges: Values) -> list[float]:
    """Return the mean number of requests running between each two of *edges*."""
    busy = np.concatenate(([0.0], np.cumsum(found.running * np.diff(found.edges_s))))
    until = np.interp(edges, found.edges_s, busy)
    means: list[float] = np.round(np.diff(until) / np.diff(edges), 3).tolist()
    return means


def _per_second(found: Timeline, edges: Values) -> list[float]:
    counts, _ = np.histogram(found.tokens_s, bins=edges, weights=found.rows)
    rates: list[float] = np.round(counts / np.diff(edges), 2).tolist()
    return rates
