"""TTFT and ITL, as a whole and by prompt length or token position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from llmtrace.analysis.summary import Summary, Values, summarise
from llmtrace.records import RequestRecord, rows_per_gap

PROMPT_BUCKETS = ((1, 128), (129, 512), (513, 2048), (2049, None))
"""First and last prompt length, in tokens, of each bucket."""

POSITION_BUCKETS = ((1, 10), (11, 50), (51, 100))
"""First and last token position; the gap before token i counts at position i."""

LAST_TOKENS = 10


@dataclass(frozen=True, slots=True)
class Bucket:
    """A summary of what lies between two bounds, both included."""

    first: int
    last: int | None
    """None: no upper bound."""
    summary: Summary | None


def prompt_tokens(record: RequestRecord) -> int | None:
    """Return the prompt length that TTFT depends on: the longest row's, without padding."""
    if record.input_tokens_per_row:
        return max(record.input_tokens_per_row)
    return record.input_tokens


def ttft_by_prompt_tokens(records: Sequence[RequestRecord]) -> tuple[Bucket, ...]:
    """Return TTFT for each range of prompt lengths, empty ranges included."""
    known = [(tokens, r.ttft_s) for r in records if (tokens := prompt_tokens(r)) is not None]
    return tuple(
        Bucket(
            first,
            last,
            summarise(ttft for n, ttft in known if n >= first and (last is None or n <= last)),
        )
        for first, last in PROMPT_BUCKETS
    )


def pooled_itl(records: Sequence[RequestRecord]) -> Values:
    """Return every gap of every row, in seconds.

    Formula:
        ``t[i+1] - t[i]``, once for each row that got a token in the step; of beams, once.
    """
    return _join([np.repeat(_gaps(r), rows_per_gap(r)) for r in records if r.itl_s])


def itl_by_position(records: Sequence[RequestRecord]) -> tuple[Bucket, ...]:
    """Return ITL for each range of token positions, then for each row's last tokens.

    The gap that ends with token i has position i, so the first gap is at position 2. The last
    bucket has bounds -10 and -1, as Python counts from the end; it overlaps with the others.
    """
    pools: list[list[Values]] = [[] for _ in range(len(POSITION_BUCKETS) + 1)]
    for record in records:
        if not record.itl_s:
            continue
        gaps, rows = _gaps(record), np.array(rows_per_gap(record))
        for pool, (first, last) in zip(pools, POSITION_BUCKETS, strict=False):
            # gaps[0] ends with token 2.
            part = slice(max(first - 2, 0), last - 1)
            pool.append(np.repeat(gaps[part], rows[part]))
        if not record.steps_truncated:
            pools[-1].append(_last_gaps(record, gaps))
    bounds = (*POSITION_BUCKETS, (-LAST_TOKENS, -1))
    return tuple(
        Bucket(first, last, summarise(_join(pool)))
        for (first, last), pool in zip(bounds, pools, strict=True)
    )


def _last_gaps(record: RequestRecord, gaps: Values) -> Values:
    """Return the gaps before the last tokens of each row; rows may end at different steps."""
    rows = record.output_tokens_per_row
    if len(rows) <= 1 or record.parameters.num_beams:
        return gaps[-LAST_TOKENS:]
    return _join([gaps[: n - 1][-LAST_TOKENS:] for n in rows if n > 1])


def _gaps(record: RequestRecord) -> Values:
    return np.array(record.itl_s, dtype=np.float64)


def _join(parts: Sequence[Values]) -> Values:
    return np.concatenate(parts) if parts else np.empty(0)
