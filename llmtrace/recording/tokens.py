"""Token counts and finish reasons, from ids and stop tokens alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet

STOP = "stop"
LENGTH = "length"
STOP_CRITERIA = "stop_criteria"
ERROR = "error"
CANCELLED = "cancelled"


def output_tokens(row: Sequence[int], eos: AbstractSet[int]) -> int:
    """Return how many of *row*'s tokens were generated.

    Args:
        row: Token ids after the prompt; padding may follow the stop token.
        eos: Ids that stop a row. The first one in *row* counts, nothing after it does, even
            where the padding id is a stop id too.
    """
    if eos:
        for count, token in enumerate(row, start=1):
            if token in eos:
                return count
    return len(row)


def finish_reason(
    row: Sequence[int], eos: AbstractSet[int], limit: int | None, *, stops: bool
) -> str:
    """Return why *row* ended.

    Args:
        row: The row's generated tokens, padding left out.
        eos: Ids that stop a row.
        limit: Most tokens a row may get.
        stops: Whether the request had stop strings.
    """
    if row and row[-1] in eos:
        return STOP
    if limit is not None and len(row) >= limit:
        return LENGTH
    return STOP if stops else STOP_CRITERIA


def unpadded(mask: Iterable[Iterable[int]]) -> tuple[int, ...]:
    """Return the tokens of each row that an attention mask ``[batch, length]`` lets through."""
    return tuple(sum(1 for bit in row if bit) for row in mask)


def without_left_padding(rows: Iterable[Sequence[int]], pad: int) -> tuple[int, ...]:
    """Return each row's length without the *pad* ids it begins with."""
    counts = []
    for row in rows:
        padding = 0
        while padding < len(row) and row[padding] == pad:
            padding += 1
        counts.append(len(row) - padding)
    return tuple(counts)
