"""A row of numbers as a row of bars."""

from __future__ import annotations

from collections.abc import Sequence

BARS = "▁▂▃▄▅▆▇█"
ASCII_BARS = "_.-=+*%#"


def sparkline(
    values: Sequence[float], width: int, *, top: float | None = None, ascii_only: bool = False
) -> str:
    """Return *values* as at most *width* bars over zero, each as high as the largest of its share.

    Where there are more values than bars, neighbours share one: a stutter is a single value, and
    a mean would hide it.

    Args:
        values: None of them negative.
        width: Characters.
        top: The value of a full bar; the largest of *values* if not given.
        ascii_only: For terminals that know no other letters.
    """
    bars = ASCII_BARS if ascii_only else BARS
    if not values or width < 1:
        return ""
    each = -(-len(values) // width)
    largest = [max(values[at : at + each]) for at in range(0, len(values), each)]
    top = max(largest) if top is None else top
    if top <= 0:
        return bars[0] * len(largest)
    return "".join(bars[min(int(value / top * len(bars)), len(bars) - 1)] for value in largest)
