"""From rich's parts to plain text."""

from __future__ import annotations

import io
from collections.abc import Iterable

from rich.console import Console, RenderableType

MIN_WIDTH = 76


def printed(parts: Iterable[RenderableType], width: int, color: bool) -> str:  # noqa: FBT001
    """Return *parts* as text, without a line's end after it.

    Args:
        parts: What to say, one under the other.
        width: Columns of the terminal; below 76 it is taken as 76.
        color: Whether to use terminal colours; it reads as well without.
    """
    written = io.StringIO()
    console = Console(
        file=written,
        width=max(width, MIN_WIDTH),
        color_system="standard" if color else None,
        no_color=not color,
        force_terminal=color,
        force_jupyter=False,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )
    for part in parts:
        console.print(part)
    return "\n".join(line.rstrip() for line in written.getvalue().rstrip().splitlines())
