"""What ran when: tokens and requests over time, and throughput by how many ran at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from llmtrace.analysis.gaps import Counts, rows_of
from llmtrace.analysis.summary import Values
from llmtrace.records import RequestRecord

NANO = 1e-9

BLOCKS = 20

MOST_POINTS = 4096
"""Tokens of which only the number is known are put at so many points in time, or fewer."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """Seconds since the first request began; between two edges, the same requests ran."""

    edges_s: Values
    """Where a request began or ended, ascending."""
    running: Counts
    """Requests at work between each edge and the next."""
    own: Counts
    """Those of them that count."""
    tokens_s: Values
    """When output tokens of the requests that count were selected, ascending."""
    rows: Counts
    """Rows that got a token then."""


@dataclass(frozen=True, slots=True)
class AtConcurrency:
    """Throughput while a certain number of requests ran."""

    running: int
    seconds: float
    output_tokens: int
    tgs: float


def timeline(records: Sequence[RequestRecord], running: Sequence[RequestRecord]) -> Timeline | None:
    """Return when *records* made their tokens, and what of *running* ran meanwhile.

    None where none of *records* took any time.
    """
    counted = {id(record) for record in records}
    origin = min((r.start_unix_ns for r in running), default=0)
    starts = np.array([r.start_unix_ns - origin for r in running], dtype=np.int64)
    ends = starts + np.array([round(r.duration_s / NANO) for r in running], dtype=np.int64)
    own = np.array([id(r) in counted for r in running], dtype=np.int64)
    took = ends > starts
    if not own[took].any():
        return None
    at = np.concatenate([starts[took], ends[took]])
    change = np.concatenate([np.ones(took.sum()), -np.ones(took.sum())]).astype(np.int64)
    edges, place = np.unique(at, return_inverse=True)
    owns = np.concatenate([own[took], own[took]]) * change
    times, rows = _tokens(records, origin)
    return Timeline(
        edges_s=edges * NANO,
        running=np.cumsum(np.bincount(place, change))[:-1].astype(np.int64),
        own=np.cumsum(np.bincount(place, owns))[:-1].astype(np.int64),
        tokens_s=times,
        rows=rows,
    )


def by_concurrency(found: Timeline) -> tuple[AtConcurrency, ...]:
    """Return throughput for each number of requests that ran at once.

    Formula:
        Tokens of all rows selected while k requests ran / time in which k ran, at least one of
        which counts. A token selected the moment a request begins or ends belongs to what was
        before.
    """
    lasted = np.diff(found.edges_s)
    selected = np.bincount(_place(found), found.rows, lasted.size)
    busy = found.own > 0
    running = found.running[busy]
    seconds, tokens = np.bincount(running, lasted[busy]), np.bincount(running, selected[busy])
    return tuple(
        AtConcurrency(int(k), float(seconds[k]), int(tokens[k]), float(tokens[k] / seconds[k]))
        for k in np.flatnonzero((seconds > 0) & (tokens > 0))
    )


def block_rates(found: Timeline, running: int | None, blocks: int = BLOCKS) -> Values:
    """Return tokens per second in each of *blocks* equal parts of the time in which requests ran.

    Args:
        found: What ran when.
        running: Only the time in which so many ran at once; None: all time in which any ran.
        blocks: Into how many parts to cut it.
    """
    chosen = (found.own > 0) & (True if running is None else found.running == running)
    lasted = np.where(chosen, np.diff(found.edges_s), 0.0)
    before = np.cumsum(lasted) - lasted
    place = _place(found)
    since = found.tokens_s - found.edges_s[place]
    held = chosen[place]
    at = (before[place] + since)[held] / lasted.sum() * blocks
    # What is selected at the very end of a part belongs to it.
    part = np.clip(np.ceil(at).astype(np.int64) - 1, 0, blocks - 1)
    rates: Values = np.bincount(part, found.rows[held], blocks) / (lasted.sum() / blocks)
    return rates


def _place(found: Timeline) -> Counts:
    """Return, for each token, between which edge and the next it was selected."""
    # A request may end with its last token, and rounding must not carry that past the end.
    place = np.searchsorted(found.edges_s, found.tokens_s - NANO / 2, side="left") - 1
    return np.clip(place, 0, found.edges_s.size - 2)


def _tokens(records: Sequence[RequestRecord], origin: int) -> tuple[Values, Counts]:
    """Return when tokens of *records* were selected, and in how many rows."""
    found = [_of(record, origin) for record in records if record.ttft_s is not None]
    if not found:
        return np.empty(0), np.empty(0, dtype=np.int64)
    times = np.concatenate([times for times, _ in found])
    rows = np.concatenate([rows for _, rows in found])
    order = np.argsort(times, kind="stable")
    return times[order], rows[order]


def _of(record: RequestRecord, origin: int) -> tuple[Values, Counts]:
    """Return when tokens were selected, from *origin*, and in how many rows."""
    first = record.ttft_s or 0.0
    if record.parameters.num_beams:
        # Which steps made the tokens of the beams that were returned, nobody knows.
        times, rows = np.array([first]), np.zeros(1, dtype=np.int64)
    else:
        times = first + np.concatenate([[0.0], np.cumsum(record.itl_s)])
        at_first = max(len(record.output_tokens_per_row), 1)
        rows = np.concatenate([[at_first], rows_of(record)])
    # Of steps beyond the first ones recorded, only the tokens' number is known.
    rest = max((record.output_tokens or 0) - int(rows.sum()), 0)
    points = min(rest, MOST_POINTS)
    last = float(times[-1])
    further = np.linspace(last, max(record.e2e_s or last, last), points + 1)[1:]
    start = (record.start_unix_ns - origin) * NANO
    joined = start + np.concatenate([times, further])
    # At the i-th point, as many as there are by then, less those that there were before.
    spread = np.diff([rest * i // max(points, 1) for i in range(points + 1)])
    return joined, np.concatenate([rows, spread.astype(np.int64)])
