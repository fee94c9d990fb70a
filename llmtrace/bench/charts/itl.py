"""ITL over positions as a picture: the curve, its floor, its steps, and what a gap is made of."""

from __future__ import annotations

from typing import Any

import numpy as np

from llmtrace.analysis.summary import Values
from llmtrace.bench.charts.style import BLUE, GREEN, ORANGE, RED, figure
from llmtrace.bench.itl import ItlResult
from llmtrace.bench.shifts import Shift
from llmtrace.bench.texts.shifts import SHORT

MS = 1e3
ROOM = 1.45
"""Height of the axis over the highest usual value: room for words."""
MOST_MARKED = 8
"""So many spikes are marked, the highest ones."""


def draw(found: ItlResult, subtitle: str) -> Any | None:
    """Return the figure; None where nothing was measured."""
    if found.curve is None:
        return None
    title = "Inter-token latency over token position"
    with figure(title, subtitle, nrows=2, height_ratios=(3, 1), sharex=True) as (made, axes):
        made.set_size_inches(9.6, 7.2)
        _curve(found, axes[0])
        _parts(found, axes[1])
    return made


def _curve(found: ItlResult, axes: Any) -> None:
    curve = found.curve
    if curve is None:
        return
    p5, p50, p95 = (np.array(values) * MS for values in (curve.p5, curve.p50, curve.p95))
    place = np.arange(p50.size) + curve.first
    clock = "device" if found.on_device else "host"
    axes.fill_between(place, p5, p95, color=BLUE, alpha=0.2, lw=0, label="P5 to P95")
    axes.plot(place, p50, color=BLUE, label=f"median, {clock} clock")
    if found.on_device:
        host = found.by_place(found.table.host_gap_s) * MS
        axes.plot(place, host, color=ORANGE, lw=1, ls="--", label="median, host clock")
    floors = found.by_place(found.floors()) * MS
    if not np.isnan(floors).all():
        axes.plot(place, floors, color=GREEN, lw=1.5, ls=":", label="memory-bandwidth floor")
    top = _top(found, p50, p95)
    axes.set(ylabel="gap before the token, ms", ylim=(0, top))
    _mark(found, axes, top)
    axes.legend(loc="lower right")


def _top(found: ItlResult, p50: Values, p95: Values) -> float:
    """Return how far up the axis goes: spikes stand beyond it, or nothing else could be seen."""
    spikes = [shift.position for shift in found.shifts.spikes]
    usual = np.array(
        [i + (found.curve.first if found.curve else 0) not in spikes for i in range(p50.size)]
    )
    if not usual.any():
        return float(p95.max()) * ROOM
    # One bad position of many is not to press all others flat.
    return max(float(np.quantile(p95[usual], 0.98)), float(p50[usual].max())) * ROOM


def _mark(found: ItlResult, axes: Any, top: float) -> None:
    """Name what was found where it is."""
    spikes = sorted(found.shifts.spikes, key=lambda s: -(s.after_s or 0))[:MOST_MARKED]
    for number, shift in enumerate(sorted(spikes, key=lambda s: s.position or 0)):
        _spike(shift, axes, top, number)
    for shift in found.shifts.lasting:
        if shift.kind == "jump":
            axes.axvline(shift.position, color=RED, lw=1, ls="--")
            text = f"jump at {shift.position}: {SHORT[shift.cause]}"
            axes.text(shift.position, top * 0.03, f" {text}", color=RED, fontsize=9)
        else:
            slope = (shift.slope_s_per_token or 0) * 1e6
            text = f"grows {slope:+,.2f} us per token of context: {SHORT[shift.cause]}"
            axes.text(0.01, 0.03, text, color=RED, fontsize=9, transform=axes.transAxes)


def _spike(shift: Shift, axes: Any, top: float, number: int) -> None:
    height = (shift.after_s or 0) * MS
    at = min(height, top * 0.99)
    axes.plot([shift.position], [at], color=RED, marker="^" if height > top else "o", ms=6)
    text = f"token {shift.position}: {height:,.1f} ms, {SHORT[shift.cause]}"
    axes.annotate(
        text,
        (shift.position, at),
        xytext=(8, -4 - 12 * (number % 4)),
        textcoords="offset points",
        color=RED,
        fontsize=9,
        va="top",
    )


def _parts(found: ItlResult, axes: Any) -> None:
    """Draw what a gap is made of on the host, stacked."""
    table = found.table
    inside, between = (found.by_place(v) * MS for v in (table.host_forward_s, table.between_s))
    place = np.arange(inside.size) + (found.curve.first if found.curve else 0)
    known = ~(np.isnan(inside) | np.isnan(between))
    if known.any():
        names = ("in the forward call", "between the calls")
        axes.stackplot(
            place[known], inside[known], between[known], colors=(BLUE, ORANGE), alpha=0.6,
            labels=names,
        )  # fmt: skip
        top = float(np.quantile((inside + between)[known], 0.98)) * 1.3
        axes.set(ylim=(0, top))
        axes.legend(loc="upper right", ncols=2, fontsize=9)
    axes.set(xlabel="position of the token that the gap ends with", ylabel="host, ms")
