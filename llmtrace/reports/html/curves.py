"""The ITL curve, packed, and histograms: what the charts draw."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from llmtrace.analysis.curve import Curve
from llmtrace.analysis.summary import Values
from llmtrace.reports.html.columns import MICRO

BINS = 40
TAIL = 99.0
"""Percentile beyond which values share the last bar: one outlier would flatten all the others."""

MIN_FOR_TAIL = 200
NO_SPREAD = 1e-3
"""Values whose range is a smaller share of them than this are all the same."""


def packed(curve: Curve | None) -> dict[str, Any] | None:
    """Return the ITL curve in whole microseconds; position ``first`` + i at index i."""
    if curve is None:
        return None
    found: dict[str, Any] = {"first": curve.first, "count": curve.counts}
    for name in ("p5", "p50", "p95"):
        found[name] = [round(value * MICRO) for value in getattr(curve, name)]
    return found


def histogram(values: Sequence[float] | Values) -> dict[str, Any] | None:
    """Return counts of *values* (seconds) in bins of equal width; None where there are none.

    Of many values the largest hundredth is counted as ``over``, beyond the last bin.
    """
    array = np.asarray(values, dtype=np.float64)
    if not array.size:
        return None
    low, high = float(array.min()), float(array.max())
    if array.size >= MIN_FOR_TAIL:
        high = float(np.percentile(array, TAIL))
    bins = int(np.clip(np.sqrt(array.size) * 2, 8, BINS))
    if high - low <= high * NO_SPREAD:  # one bar, not many of which each is noise
        bins, low, high = 1, low * 0.95, high * 1.05 or 1 / MICRO
    counts, edges = np.histogram(array[array <= high], bins=bins, range=(low, high))
    return {
        "from": low * MICRO,
        "width": float(edges[1] - edges[0]) * MICRO,
        "counts": counts.tolist(),
        "over": int((array > high).sum()),
        "max": float(array.max()) * MICRO,
    }
