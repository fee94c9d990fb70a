"""Where the curve of gaps over positions leaves its course, and why as far as it can be told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from llmtrace.analysis.curve import JUMP_NOISES, JUMP_RATIO, WINDOW, Jump, Trend, trend
from llmtrace.analysis.gaps import FIRST_POSITION, Gaps
from llmtrace.analysis.summary import Values
from llmtrace.bench.itl.gap_table import GapTable, Mask, host_end
from llmtrace.bench.pauses import Pause, overlap
from llmtrace.records import RequestRecord

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

SINGLE_RATIO = 1.5
"""A gap of a single request stands out if it is so many times as long as those beside it ..."""
SINGLE_NOISES = 8.0
"""... and by so many times the usual difference from them."""
GROWTH_RATIO = 0.05
"""Growth over the contexts seen counts from this share of the median gap on."""
HALT_RATIO = 5.0
"""The spike before one is what it comes from if it is so many times as high."""
FEWEST_TRIALS = 3
"""With fewer requests, what is in each and what is in one cannot be told apart."""

_MAD_TO_STD = 1.4826


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
    spikes, singles = _spikes(table)
    return Shifts(
        lasting=(*([] if growth is None else [growth]), *lasting),
        spikes=tuple(spikes),
        singles=tuple(singles),
        compilations=compilations,
    )


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


def _jumped(table: GapTable, jump: Jump) -> Shift:
    after = table.counted & (table.position >= jump.position)
    before = table.counted & (table.position < jump.position)
    return Shift(
        "jump",
        jump.position,
        _trials(table, after),
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
        _trials(table, counted),
        table.median("itl_s", first),
        table.median("itl_s", last),
        "cache_growth" if why in {"device", "forward"} else why,
        slope,
    )


def _trials(table: GapTable, where: Mask) -> tuple[int, ...]:
    return tuple(np.unique(table.trial[where]).tolist())


def _spikes(table: GapTable) -> tuple[list[Shift], list[Shift]]:
    """Return single positions that stand out in most requests, and gaps that do in one."""
    trials = np.unique(table.trial[table.counted])
    if not trials.size:
        return [], []
    last = int(table.position[table.counted].max())
    grid = np.full((trials.size, last - FIRST_POSITION + 1), np.nan)
    rows = np.searchsorted(trials, table.trial[table.counted])
    grid[rows, table.position[table.counted] - FIRST_POSITION] = table.itl_s[table.counted]
    course = _course(grid)
    common = _common(grid, course)
    excess = grid - course
    noise = _noise(excess)[:, None]
    alone = (excess >= course * (SINGLE_RATIO - 1)) & (excess >= SINGLE_NOISES * noise) & ~common
    spikes = _after_halts([_spike(table, at, common) for at in np.flatnonzero(common).tolist()])
    singles = [
        _single(table, int(trials[row]), at, float(course[row, at]))
        for row, at in np.argwhere(alone).tolist()
    ]
    return spikes, sorted(singles, key=lambda s: -added_s(s))


def _course(grid: Values) -> Values:
    """Return the median of each gap and the 5 on either side of it, request by request."""
    padded = np.pad(grid, ((0, 0), (WINDOW, WINDOW)), constant_values=np.nan)
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * WINDOW + 1, axis=1)
    return _medians(windows, axis=2)


def _common(grid: Values, course: Values) -> Mask:
    """Return, by position, whether gaps stand out in most requests."""
    if len(grid) < FEWEST_TRIALS:
        return np.zeros(grid.shape[1], dtype=np.bool_)
    excess, level = _medians(grid - course, axis=0), _medians(course, axis=0)
    reached = np.count_nonzero(~np.isnan(grid), axis=0) * 2 >= len(grid)
    rises = excess >= level * (JUMP_RATIO - 1)
    high: Mask = rises & (excess >= JUMP_NOISES * _noise(excess[None])[0]) & reached
    return high


def _noise(excess: Values) -> Values:
    """Return the usual deviation of each row's values from 0."""
    return _MAD_TO_STD * _medians(np.abs(excess), axis=1)


def _medians(values: Values, axis: int) -> Values:
    """Return medians of what exists; NaN where nothing does, and without a warning."""
    nothing = np.isnan(values).all(axis=axis)
    filled = np.where(np.expand_dims(nothing, axis), 0.0, values)
    return np.where(nothing, np.nan, np.nanmedian(filled, axis=axis))


def _spike(table: GapTable, at: int, common: Mask) -> Shift:
    position = at + FIRST_POSITION
    there = table.counted & (table.position == position)
    near = np.abs(table.position - position) <= WINDOW
    beside = table.counted & near & ~common[np.minimum(table.position, common.size + 1) - 2]
    before = table.median("itl_s", beside)
    after = table.median("itl_s", there)
    # The requests in which it is nearer to what it is in most of them than to its neighbours.
    seen = there & (table.itl_s >= ((before or 0.0) + (after or 0.0)) / 2)
    return Shift("spike", position, _trials(table, seen), before, after, cause(table, seen, beside))


def _after_halts(spikes: Sequence[Shift]) -> list[Shift]:
    """Say of spikes right after a far higher one that they come from it."""
    found: list[Shift] = []
    for shift in spikes:
        last = found[-1] if found else None
        comes_of_it = (
            last is not None
            and last.position == (shift.position or 0) - 1
            and added_s(last) >= HALT_RATIO * added_s(shift)
        )
        found.append(replace(shift, cause="halt_before") if comes_of_it else shift)
    return found


def added_s(shift: Shift) -> float:
    """Return by how much gaps are longer there, seconds."""
    return (shift.after_s or 0.0) - (shift.before_s or 0.0)


def _single(table: GapTable, trial: int, at: int, course: float) -> Shift:
    position = at + FIRST_POSITION
    there = (table.trial == trial) & (table.position == position)
    near = np.abs(table.position - position) <= WINDOW
    beside = (table.trial == trial) & near & ~there
    after = table.median("itl_s", there)
    return Shift("single", position, (trial,), course, after, cause(table, there, beside))


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
