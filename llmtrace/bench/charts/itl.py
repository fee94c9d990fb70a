"""ITL over positions as a picture: the curve, its floor, its steps, and what a gap is made of."""

from __future__ import annotations

from typing import Any

import numpy as np

from llmtrace.analysis.summary import Values
from llmtrace.bench.charts.style import BLUE, GREEN, GREY, ORANGE, RED, figure
from llmtrace.bench.itl.causes import Shift, added_s
from llmtrace.bench.itl.evaluation import ItlResult
from llmtrace.bench.result import conditions_in_two_lines
from llmtrace.bench.texts.shifts import in_short

MS = 1e3
ROOM = 1.25
"""Height of an axis over the highest usual value."""
USUAL = 0.98
"""One bad position of many is not to press all others flat."""
MOST_SPIKES = 6
"""So many are marked, the highest ones."""
HIGHEST = 0.94
"""Part of an axis' height up to which marks stand."""
LEAST_LIST, LINE = 0.95, 0.165
"""Inches that the list of steps takes at least, and each line of it."""


def draw(found: ItlResult, subtitle: str) -> Any | None:
    """Return the figure; None where nothing was measured."""
    if found.curve is None:
        return None
    marked = _marked(found)
    below = max(LEAST_LIST, 0.75 + LINE * len(marked))
    layout = {"nrows": 3, "height_ratios": (4.2, 1.6, below)}
    with figure("Inter-token latency over token position", subtitle, **layout) as (made, axes):
        made.set_size_inches(9.6, 6.6 + below)
        curve, parts, listed = axes
        parts.sharex(curve)
        _curve(found, curve)
        _mark(marked, curve)
        _parts(found, parts)
        _list(marked, found, listed)
        handles, labels = curve.get_legend_handles_labels()
        listed.legend(handles, labels, loc="upper right", fontsize=9)
    return made


def _marked(found: ItlResult) -> list[Shift]:
    """Return what is marked, by position."""
    spikes = sorted(found.shifts.spikes, key=added_s, reverse=True)[:MOST_SPIKES]
    return [*found.shifts.lasting, *sorted(spikes, key=lambda shift: shift.position or 0)]


def _curve(found: ItlResult, axes: Any) -> None:
    curve = found.curve
    if curve is None:
        return
    p5, p50, p95 = (np.array(values) * MS for values in (curve.p5, curve.p50, curve.p95))
    place = np.arange(p50.size) + curve.first
    clock = "device's" if found.on_device else "host's"
    axes.fill_between(place, p5, p95, color=BLUE, alpha=0.2, lw=0, label="P5 to P95")
    axes.plot(place, p50, color=BLUE, label=f"median, {clock} clock")
    if found.on_device:
        host = found.by_place(found.table.host_gap_s) * MS
        axes.plot(place, host, color=ORANGE, lw=1, ls="--", label="median, host's clock")
    floors = found.by_place(found.floors()) * MS
    if not np.isnan(floors).all():
        axes.plot(place, floors, color=GREEN, lw=1.5, ls=":", label="memory-bandwidth floor")
    # Spikes stand beyond it, or nothing else could be seen.
    spikes = {shift.position for shift in found.shifts.spikes}
    usual = np.array([position not in spikes for position in place.tolist()])
    values = p95[usual] if usual.any() else p95
    axes.set(ylabel="gap before the token, ms", ylim=(0, _height(values)))


def _height(values: Values) -> float:
    return float(np.quantile(values, USUAL)) * ROOM


def _mark(marked: list[Shift], axes: Any) -> None:
    """Number what was found where it is."""
    top = axes.get_ylim()[1]
    for number, shift in enumerate(marked, 1):
        height = (shift.after_s or 0) * MS
        at = min(height, top * HIGHEST)
        name = {"color": RED, "fontsize": 10, "fontweight": "bold", "ha": "center"}
        if shift.kind == "spike":
            marker = "^" if height > top else "o"
            axes.plot([shift.position], [at], color=RED, marker=marker, ms=6)
            place: tuple[float, float] = (shift.position or 0, at)
        elif shift.kind == "jump":
            axes.axvline(shift.position, color=RED, lw=1, ls="--")
            place = (shift.position or 0, top * HIGHEST)
        else:
            place = (shift.position or 0, (shift.before_s or 0) * MS)
        axes.annotate(str(number), place, xytext=(0, 5), textcoords="offset points", **name)


def _parts(found: ItlResult, axes: Any) -> None:
    """Draw what a gap is made of on the host, stacked."""
    table = found.table
    inside, between = (found.by_place(v) * MS for v in (table.host_forward_s, table.between_s))
    place = np.arange(inside.size) + (found.curve.first if found.curve else 0)
    known = ~(np.isnan(inside) | np.isnan(between))
    if known.any():
        axes.stackplot(
            place[known], inside[known], between[known], colors=(BLUE, ORANGE), alpha=0.6,
            labels=("in the forward call", "between the calls"),
        )  # fmt: skip
        axes.set(ylim=(0, _height((inside + between)[known]) * ROOM))
        axes.legend(loc="upper left", ncols=2, fontsize=9)
    axes.set(xlabel="position of the token that the gap ends with", ylabel="host, ms")


def _list(marked: list[Shift], found: ItlResult, axes: Any) -> None:
    """Say what the numbers stand for, and under which conditions all this was measured."""
    axes.axis("off")
    counted = len(found.trials.counted)
    lines = [f"{number}  {in_short(shift, counted)}" for number, shift in enumerate(marked, 1)]
    text = "\n".join(["Steps found", *lines]) if lines else "Steps found: none"
    axes.text(0, 1, text, va="top", fontsize=9, color=RED if lines else "black")
    told = conditions_in_two_lines(found.trials.records)
    axes.text(0, 0, told, va="bottom", fontsize=8, color=GREY)
