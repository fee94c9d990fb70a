"""Every gap between tokens of a set of requests, as columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from llmtrace.analysis.summary import Values
from llmtrace.records import RequestRecord

Counts = npt.NDArray[np.int64]

FIRST_POSITION = 2
"""The first gap ends with token 2."""


@dataclass(frozen=True, slots=True)
class Gaps:
    """One entry per gap of a request; of a batch, each step's gap once."""

    seconds: Values
    rows: Counts
    """Rows that got a token in the step: how often the gap counts."""
    position: Counts
    """Of the token that the gap ends with, from 2 on."""
    request: Counts
    """Index of its request among those given."""

    def pooled(self) -> Values:
        """Return every gap once for each of its rows."""
        return np.repeat(self.seconds, self.rows)

    def of(self, requests: Sequence[int]) -> Gaps:
        """Return the gaps of *requests*, indexes in ascending order; those of all are this."""
        first, last = (np.searchsorted(self.request, requests, s) for s in ("left", "right"))
        if (last - first).sum() == self.request.size:
            return self
        # Slices: of many groups, each costs what its own gaps cost.
        held = np.concatenate([_NO_COUNTS, *map(np.arange, first, last)])
        return Gaps(self.seconds[held], self.rows[held], self.position[held], self.request[held])


def gaps_of(records: Sequence[RequestRecord]) -> Gaps:
    """Return the gaps of *records*, request by request."""
    lengths = [len(record.itl_s) for record in records]
    return Gaps(
        seconds=np.concatenate([_NO_GAPS, *(r.itl_s for r in records if r.itl_s)]),
        rows=np.concatenate([_NO_COUNTS, *map(rows_of, records)]),
        position=np.concatenate([_NO_COUNTS, *(np.arange(n) + FIRST_POSITION for n in lengths)]),
        request=np.repeat(np.arange(len(records), dtype=np.int64), lengths),
    )


def rows_of(record: RequestRecord) -> Counts:
    """Return, for each gap, how many rows got a token in it; of beams, one."""
    gaps = len(record.itl_s)
    lengths = record.output_tokens_per_row
    if len(lengths) <= 1 or record.parameters.num_beams:
        return np.ones(gaps, dtype=np.int64)
    # A row of n tokens is in every gap that ends with its n-th token or an earlier one.
    positions = np.arange(gaps) + FIRST_POSITION
    return np.maximum(len(lengths) - np.searchsorted(np.sort(lengths), positions), 1)


_NO_GAPS: Values = np.empty(0)
_NO_COUNTS: Counts = np.empty(0, dtype=np.int64)
