"""How all charts look. Colours: Okabe and Ito's, which colour-blind readers tell apart."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

BLUE, ORANGE, GREEN, RED = "#0072B2", "#E69F00", "#009E73", "#D55E00"
PURPLE, GREY = "#CC79A7", "#666666"

_STYLE: Any = {
    "figure.figsize": (9.6, 5.4),
    "figure.dpi": 120,
    "figure.constrained_layout.use": True,
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "axes.axisbelow": True,
    "legend.frameon": False,
}


def at_foot(made: Any, told: str) -> None:
    """Write below a figure under which conditions all of it was measured."""
    made.supxlabel(told, fontsize=8, color=GREY, x=0.01, ha="left")


def plain_numbers(axis: Any) -> None:
    """Label a logarithmic axis with 300 rather than with 3 times a power of ten."""
    from matplotlib.ticker import LogFormatter

    axis.set_major_formatter(LogFormatter())
    axis.set_minor_formatter(LogFormatter(minor_thresholds=(2, 0.5)))


@contextmanager
def figure(title: str, subtitle: str = "", **layout: Any) -> Iterator[tuple[Any, Any]]:
    """Lend a figure and its axes, with nothing of a screen behind it.

    Args:
        title: What is seen.
        subtitle: Of what: model, machine, settings.
        layout: For ``Figure.subplots``.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(_STYLE):
        made = Figure()
        axes = made.subplots(**layout)
        made.suptitle(title, x=0.01, ha="left", fontweight="bold")
        if subtitle:
            first = axes.flat[0] if hasattr(axes, "flat") else axes
            first.set_title(subtitle, loc="left", fontsize=9, color=GREY)
        yield made, axes
