"""Gaps longer than those beside them: of one position in most requests, or of one request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from llmtrace.analysis.curve import JUMP_NOISES, JUMP_RATIO, WINDOW
from llmtrace.analysis.gaps import FIRST_POSITION
from llmtrace.analysis.summary import Values
from llmtrace.bench.itl.causes import Shift, added_s, cause, trials_of
from llmtrace.bench.itl.gap_table import GapTable, Mask

SINGLE_RATIO = 1.5
"""A gap of a single request stands out if it is so many times as long as those beside it ..."""
SINGLE_NOISES = 8.0
"""... and by so many times the usual difference from them."""
HALT_RATIO = 5.0
"""The spike before one is what it comes from if it is so many times as high."""
FEWEST_TRIALS = 3
"""With fewer requests, what is in each and what is in one cannot be told apart."""

_MAD_TO_STD = 1.4826


def find_spikes(table: GapTable) -> tuple[list[Shift], list[Shift]]:
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
    return Shift(
        "spike", position, trials_of(table, seen), before, after, cause(table, seen, beside)
    )


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


def _single(table: GapTable, trial: int, at: int, course: float) -> Shift:
    position = at + FIRST_POSITION
    there = (table.trial == trial) & (table.position == position)
    near = np.abs(table.position - position) <= WINDOW
    beside = (table.trial == trial) & near & ~there
    after = table.median("itl_s", there)
    return Shift("single", position, (trial,), course, after, cause(table, there, beside))
