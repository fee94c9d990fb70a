"""One distribution in nine numbers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]

PERCENTILE_METHOD = "linear interpolation (numpy's default)"
DEVIATION = "std: of the values at hand (divided by count)"


@dataclass(frozen=True, slots=True)
class Summary:
    """A distribution, in the unit of its values.

    The standard deviation is that of the values at hand, divided by their count: it exists for a
    single value too, where it is 0.
    """

    count: int
    mean: float
    std: float
    min: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float


def summarise(values: Iterable[float | None] | Values) -> Summary | None:
    """Return the summary of what exists in *values*; None where nothing does."""
    array = present(values)
    if not array.size:
        return None
    p50, p90, p95, p99 = np.percentile(array, (50, 90, 95, 99))
    low, high = float(array.min()), float(array.max())
    return Summary(
        count=int(array.size),
        # Rounding must not carry the mean of equal values past them.
        mean=min(max(float(array.mean()), low), high),
        std=float(array.std()),
        min=low,
        p50=float(p50),
        p90=float(p90),
        p95=float(p95),
        p99=float(p99),
        max=high,
    )


def present(values: Iterable[float | None] | Values) -> Values:
    """Return *values* as an array, without what does not exist."""
    if isinstance(values, np.ndarray):
        return values
    return np.array([value for value in values if value is not None], dtype=np.float64)
