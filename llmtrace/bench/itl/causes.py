"""A place where gaps are longer, and which of their parts makes them so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from llmtrace.bench.itl.gap_table import GapTable, Mask

Kind = Literal["growth", "jump", "spike", "single", "compilation"]
Cause = Literal[
    "cache_growth",
    "compilation",
    "garbage_collection",
    "device",
    "forward",
    "forward_on_host",
    "between_forwards",
    "halt_before",
    "unknown",
]


@dataclass(frozen=True, slots=True)
class Shift:
    """One place where gaps are longer than before or beside it."""

    kind: Kind
    position: int | None
    """The first token concerned; 1 is the prefill's. None: somewhere in the request."""
    trials: tuple[int, ...]
    """In which requests it was seen."""
    before_s: float | None
    """Median gap before it, or beside it."""
    after_s: float | None
    """Median gap from it on, or at it; of a compilation, the time that it took."""
    cause: Cause
    slope_s_per_token: float | None = None
    """Of growth: by context length."""


def added_s(shift: Shift) -> float:
    """Return by how much gaps are longer there, seconds."""
    return (shift.after_s or 0.0) - (shift.before_s or 0.0)


def cause(table: GapTable, there: Mask, beside: Mask) -> Cause:
    """Return what makes the gaps of *there* longer than those of *beside*.

    The part that gained at least half of what the gap gained, medians over medians. A device that
    takes longer is done later after the host has returned, whatever the host does, so that the
    launch lead gains; the time of a host that only waits does not count then.
    """
    excess = _gained(table, "itl_s", there, beside)
    if not excess or excess <= 0:
        return "unknown"
    launches = bool(table.known("launch_lead_s", there).size)
    parts: tuple[tuple[str, Cause], ...] = (
        ("compilation_s", "compilation"),
        ("garbage_collection_s", "garbage_collection"),
        ("launch_lead_s", "device"),
        ("host_forward_s", "forward_on_host" if launches else "forward"),
        ("between_s", "between_forwards"),
    )
    for column, name in parts:
        gained = _gained(table, column, there, beside)
        if gained is not None and gained >= excess / 2:
            return name
    return "unknown"


def _gained(table: GapTable, column: str, there: Mask, beside: Mask) -> float | None:
    after, before = table.median(column, there), table.median(column, beside)
    return None if after is None or before is None else after - before


def trials_of(table: GapTable, where: Mask) -> tuple[int, ...]:
    """Return the requests that have gaps of *where*."""
    return tuple(np.unique(table.trial[where]).tolist())
