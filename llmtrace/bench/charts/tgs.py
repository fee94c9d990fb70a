"""TGS as pictures: rates over the number of requests at a time, and what the machine did."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llmtrace.bench.charts.style import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    RED,
    at_foot,
    figure,
    plain_numbers,
)
from llmtrace.bench.result import conditions_in_two_lines
from llmtrace.bench.tgs.evaluation import LevelResult
from llmtrace.bench.tgs.resources import RESOURCES

MS = 1e3


def draw_rates(levels: Sequence[LevelResult], subtitle: str) -> Any | None:
    """Return the decay curve: rates and latencies over the levels."""
    known = sorted(
        (level for level in levels if level.rate is not None),
        key=lambda found: (found.level.concurrency, found.level.rate or 0),
    )
    if not known:
        return None
    with figure("Tokens per second, several requests at a time", subtitle, ncols=2) as (made, axes):
        _rates(known, axes[0])
        _latencies(known, axes[1])
        _conditions(levels, made)
    return made


def _conditions(levels: Sequence[LevelResult], made: Any) -> None:
    records = {id(r.record): r.record for level in levels for r in level.requests}
    at_foot(made, conditions_in_two_lines(list(records.values())))


def _rates(levels: Sequence[LevelResult], axes: Any) -> None:
    places = range(len(levels))
    names = [level.level.name for level in levels]
    system = "system" if levels[0].steady is None else "system, steady"
    axes.plot(places, [lv.rate for lv in levels], "o-", color=BLUE, label=system)
    of_requests = [lv.tgs.mean if lv.tgs else None for lv in levels]
    axes.plot(places, of_requests, "s-", color=ORANGE, label="each request, mean")
    first = levels[0]
    if first.level.concurrency == 1 and first.level.rate is None and first.rate:
        ideal = [first.rate * lv.level.concurrency for lv in levels]
        axes.plot(places, ideal, ":", color=GREY, label="linear")
    axes.set_xticks(list(places), names)
    axes.set(xlabel=_xlabel(levels), ylabel="tokens per second", ylim=(0, None))
    axes.legend()


def _latencies(levels: Sequence[LevelResult], axes: Any) -> None:
    places, names = range(len(levels)), [level.level.name for level in levels]
    for label, colour, summaries in (
        ("TTFT", RED, [lv.ttft_s for lv in levels]),
        ("ITL", GREEN, [lv.report.itl_s for lv in levels]),
    ):
        for quantile, style in (("p50", "o-"), ("p95", "o:")):
            values = [getattr(s, quantile) * MS if s else None for s in summaries]
            axes.plot(places, values, style, color=colour, label=f"{label} {quantile.upper()}")
    axes.set_xticks(list(places), names)
    axes.set(xlabel=_xlabel(levels), ylabel="ms", yscale="log")
    plain_numbers(axes.yaxis)
    axes.legend()


def _xlabel(levels: Sequence[LevelResult]) -> str:
    if levels[0].level.rate is not None:
        return f"arrivals per second ({levels[0].level.mechanism})"
    return f"requests at a time ({levels[0].level.mechanism})"


def draw_resources(levels: Sequence[LevelResult], subtitle: str) -> Any | None:
    """Return the heat map: each resource's use over time and level."""
    names = [name for name in RESOURCES if any(name in level.over_time for level in levels)]
    if not names:
        return None
    import numpy as np

    with figure("What the machine did", subtitle, nrows=len(names), squeeze=False) as (made, axes):
        made.set_size_inches(9.6, 1.2 + 1.1 * len(names))
        for name, row in zip(names, axes[:, 0], strict=True):
            scale = 1e-9 if name.endswith("bytes") else 1.0
            grid = np.array(
                [
                    [np.nan if v is None else v * scale for v in lv.over_time.get(name, ())]
                    for lv in levels
                    if lv.over_time.get(name)
                ]
            )
            shown = [lv.level.name for lv in levels if lv.over_time.get(name)]
            top = 100 if name in {"cpu_percent", "gpu_percent"} else None
            image = row.imshow(grid, aspect="auto", cmap="viridis", vmin=0, vmax=top)
            row.set_yticks(range(len(shown)), shown, fontsize=8)
            row.set_ylabel(RESOURCES[name], rotation=0, ha="right", va="center", fontsize=8)
            row.set_xticks([])
            row.grid(visible=False)
            made.colorbar(image, ax=row, pad=0.01)
        over = "time of the level, from its begin to its end"
        axes[-1, 0].set_xlabel(f"{over}; rows: {_xlabel(levels)}")
        _conditions(levels, made)
    return made
