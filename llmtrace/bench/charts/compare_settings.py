"""Levers as a picture: how much each figure changed, with its interval, on a scale of ratios."""

from __future__ import annotations

from typing import Any

from llmtrace.analysis.comparison import Line
from llmtrace.bench.charts.style import BLUE, GREY, ORANGE, RED, figure
from llmtrace.bench.compare_settings.evaluation import VERDICTS, Settings, verdict

COLOURS = dict(zip(VERDICTS.values(), (BLUE, RED, GREY, ORANGE), strict=True))
_LEAST = 0.02
"""Changes below this share have an axis of their own width, or noise would fill the picture."""
_ROW = 0.42
_HEAD = 2.0


def draw(found: Settings, subtitle: str) -> Any | None:
    """Return the figure; None where nothing was measured."""
    names = list(dict.fromkeys(line.name for o in found.outcomes for line in o.lines))
    if not names:
        return None
    title = "What each setting changes"
    with figure(f"{title}\n", ncols=len(names), sharey=True, squeeze=False) as (made, axes):
        made.text(0.01, 0.995, f"\n\n{subtitle}", va="top", fontsize=9, color=GREY)
        made.set_size_inches(3.0 + 1.9 * len(names), _HEAD + _ROW * len(found.outcomes))
        for name, panel in zip(names, axes[0], strict=True):
            _panel(found, name, panel)
        axes[0][0].set_yticks(
            range(len(found.outcomes)), [o.tried.lever.name for o in found.outcomes]
        )
        axes[0][0].invert_yaxis()
        _legend(made)
    return made


def _panel(found: Settings, name: str, axes: Any) -> None:
    axes.axvline(1, color=GREY, linewidth=1)
    reach = 1 + _LEAST
    for row, outcome in enumerate(found.outcomes):
        line = next((x for x in outcome.lines if x.name == name), None)
        if line is None or line.change is None or line.change <= -1:
            axes.text(1, row, "none", ha="center", va="center", fontsize=8, color=GREY)
            continue
        low, high = _bounds(line)
        colour = COLOURS[verdict(line)]
        axes.plot([low, high], [row, row], color=colour, linewidth=2.5, solid_capstyle="butt")
        axes.plot([1 + line.change], [row], "o", color=colour, markersize=6)
        reach = max(reach, high, 1 / low, 1 + line.change, 1 / (1 + line.change))
    axes.set_xscale("log")
    axes.set_xlim(reach**-1.15, reach**1.15)
    axes.set_title(f"{name.removesuffix(' request mean')}", fontsize=10)
    edge = reach**0.85
    axes.minorticks_off()
    axes.set_xticks([1 / edge, 1, edge], [f"{1 / edge - 1:+.1%}", "0", f"{edge - 1:+.1%}"])
    axes.tick_params(axis="x", labelsize=8)
    axes.tick_params(axis="y", length=0)


def _bounds(line: Line) -> tuple[float, float]:
    """Return the interval as ratios; of an exact figure, the figure."""
    if line.interval is None:
        return (1 + (line.change or 0),) * 2
    smallest = 1e-3
    return max(smallest, 1 + line.interval.low), max(smallest, 1 + line.interval.high)


def _legend(made: Any) -> None:
    from matplotlib.lines import Line2D

    marks = [
        Line2D([], [], color=colour, marker="o", linewidth=2.5, label=said)
        for said, colour in COLOURS.items()
    ]
    made.legend(
        handles=marks, loc="outside lower center", ncols=len(marks), fontsize=9,
        title="change, 95 % interval; conditions: report.tgs.conditions "
        "of each side in compare-settings.json", title_fontsize=8,
    )  # fmt: skip
