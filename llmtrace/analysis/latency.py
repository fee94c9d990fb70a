"""TTFT and ITL, as a whole and by prompt length or token position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from llmtrace.analysis.gaps import Gaps, gaps_of
from llmtrace.analysis.summary import Summary, Values, summarise
from llmtrace.records import RequestRecord

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
    return gaps_of(records).pooled()


def itl_by_position(records: Sequence[RequestRecord], gaps: Gaps) -> tuple[Bucket, ...]:
    """Return ITL for each range of token positions, then for each row's last tokens.

    The gap that ends with token i has position i, so the first gap is at position 2. The last
    bucket has bounds -10 and -1, as Python counts from the end; it overlaps with the others.
    """
    seconds, position = gaps.pooled(), np.repeat(gaps.position, gaps.rows)
    buckets = [
        Bucket(first, last, summarise(seconds[(position >= first) & (position <= last)]))
        for first, last in POSITION_BUCKETS
    ]
    ends = [_last_gaps(r) for r in records if r.itl_s and not r.steps_truncated]
    last = np.concatenate(ends) if ends else np.empty(0)
    return (*buckets, Bucket(-LAST_TOKENS, -1, summarise(last)))


def _last_gaps(record: RequestRecord) -> Values:
    """Return the gaps before the last tokens of each row; rows may end at different steps."""
    gaps = record.itl_s
    rows = record.output_tokens_per_row
    if len(rows) <= 1 or record.parameters.num_beams:
        return np.array(gaps[-LAST_TOKENS:])
    return np.concatenate([gaps[: n - 1][-LAST_TOKENS:] for n in rows])
