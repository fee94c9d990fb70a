"""Where the curve of gaps over positions leaves its course, and why as far as it can be told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from llmtrace.analysis.curve import Jump, Trend, trend
from llmtrace.analysis.gaps import FIRST_POSITION, Gaps
from llmtrace.bench.itl.causes import Shift, cause, trials_of
from llmtrace.bench.itl.gap_table import GapTable, host_end
from llmtrace.bench.itl.spikes import find_spikes
from llmtrace.bench.pauses import Pause, overlap
from llmtrace.records import RequestRecord

GROWTH_RATIO = 0.05
"""Growth over the contexts seen counts from this share of the median gap on."""


@dataclass(frozen=True, slots=True)
class Shifts:
    """All that was found, in the order of positions."""

    lasting: tuple[Shift, ...]
    """Growth with the context, and the jump."""
    spikes: tuple[Shift, ...]
    """Single positions that are longer in most requests."""
    singles: tuple[Shift, ...]
    """Single gaps of single requests, the longest first."""
    compilations: tuple[Shift, ...]

    @property
    def each(self) -> tuple[Shift, ...]:
        """Return what holds for the run as a whole."""
        return (*self.lasting, *self.spikes, *self.compilations)


def find_shifts(
    table: GapTable,
    gaps: Gaps,
    records: Sequence[RequestRecord],
    found: Trend | None,
    compilations: tuple[Shift, ...] = (),
) -> Shifts:
    """Return where gaps are longer than before or beside.

    Args:
        table: Of all requests.
        gaps: Of *records*.
        records: The requests whose figures count.
        found: Their trend.
        compilations: As :func:`compiled` gives them.
    """
    jump = None if found is None else found.jump
    lasting = [] if jump is None else [_jumped(table, jump)]
    growth = _grown(table, gaps, records, found)
    spikes, singles = find_spikes(table)
    return Shifts(
        lasting=(*([] if growth is None else [growth]), *lasting),
        spikes=tuple(spikes),
        singles=tuple(singles),
        compilations=compilations,
    )


def _jumped(table: GapTable, jump: Jump) -> Shift:
    after = table.counted & (table.position >= jump.position)
    before = table.counted & (table.position < jump.position)
    return Shift(
        "jump",
        jump.position,
        trials_of(table, after),
        jump.before_s,
        jump.after_s,
        cause(table, after, before),
    )


def _grown(
    table: GapTable, gaps: Gaps, records: Sequence[RequestRecord], found: Trend | None
) -> Shift | None:
    """Return growth with the context; where gaps jump, of the positions before."""
    if found is None:
        return None
    counted, whole = table.counted, found
    if found.jump is not None:
        before = gaps.position < found.jump.position
        earlier = trend(
            records,
            Gaps(
                gaps.seconds[before], gaps.rows[before], gaps.position[before], gaps.request[before]
            ),
        )
        if earlier is None:
            return None
        counted, whole = counted & (table.position < found.jump.position), earlier
    slope = whole.slope_s_per_token
    if slope is None or whole.context_from is None or whole.context_to is None:
        return None
    usual = table.median("itl_s", counted)
    gained = slope * (whole.context_to - whole.context_from)
    if usual is None or gained < GROWTH_RATIO * usual:
        return None
    counted = counted & (table.context > 0)
    low, high = np.quantile(table.context[counted], (0.25, 0.75))
    first, last = counted & (table.context <= low), counted & (table.context >= high)
    why = cause(table, last, first)
    return Shift(
        "growth",
        FIRST_POSITION,
        trials_of(table, counted),
        table.median("itl_s", first),
        table.median("itl_s", last),
        "cache_growth" if why in {"device", "forward"} else why,
        slope,
    )


def compiled(records: Sequence[RequestRecord], pauses: Sequence[Pause]) -> tuple[Shift, ...]:
    """Return the compilations inside of requests, of those too that count as cold for it."""
    found = []
    for trial, record in enumerate(records):
        ends = np.array([0.0, *(host_end(record, step) for step in record.steps)])
        taken = overlap(pauses, "compilation", record.start_unix_ns, ends)
        places = np.flatnonzero(taken > 0).tolist()
        found += [
            Shift("compilation", at + 1, (trial,), None, float(taken[at]), "compilation")
            for at in places
        ]
        if not places and "compilation" in record.cold_reasons:
            found.append(Shift("compilation", None, (trial,), None, None, "compilation"))
    return tuple(found)
