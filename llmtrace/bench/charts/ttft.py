"""TTFT as a picture: the histogram, and where the time of each length of prompt went."""

from __future__ import annotations

from typing import Any

from llmtrace.analysis.latency import prompt_tokens
from llmtrace.analysis.summary import present
from llmtrace.bench.charts.style import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, at_foot, figure
from llmtrace.bench.result import conditions_in_two_lines
from llmtrace.bench.ttft import PARTS, TtftResult, span
from llmtrace.records import RequestRecord

COLOURS = dict(zip(PARTS, (GREY, PURPLE, ORANGE, BLUE, GREEN), strict=True))
MS = 1e3
FEW = 10
"""Up to so many values, a bar for each."""
UPRIGHT = 4
"""Up to so many names stand upright below an axis."""


def draw(found: TtftResult, subtitle: str) -> Any | None:
    """Return the figure; None where nothing was measured."""
    if found.ttft_s is None:
        return None
    with figure("Time to first token", subtitle, ncols=2, width_ratios=(3, 2)) as (made, axes):
        _histogram(found, axes[0])
        _parts(found, axes[1])
        at_foot(made, conditions_in_two_lines(found.trials.records))
    return made


def _histogram(found: TtftResult, axes: Any) -> None:
    """Draw all requests, each length of prompt in a shade of its own."""
    groups = [present(r.ttft_s for r in group) * MS for group in _by_prompt(found)]
    size = sum(group.size for group in groups)
    names = [f"{span(bucket)} prompt tokens" for bucket in found.by_prompt]
    shades = [(*_rgb(BLUE), 1 - 0.75 * i / len(groups)) for i in range(len(groups))]
    bins = "auto" if size > FEW else max(size, 1)
    axes.hist(groups, bins=bins, stacked=True, color=shades, label=names)
    summary = found.ttft_s
    if summary is not None:
        for name, value, colour in (("mean", summary.mean, GREEN), ("P95", summary.p95, RED)):
            axes.axvline(value * MS, color=colour, label=f"{name} {value * MS:,.1f} ms")
    axes.set(xlabel="TTFT, ms", ylabel="requests", xlim=(0, None))
    axes.legend(frameon=True)  # lines may pass behind it


def _rgb(colour: str) -> tuple[float, float, float]:
    from matplotlib.colors import to_rgb

    return to_rgb(colour)


def _by_prompt(found: TtftResult) -> list[list[RequestRecord]]:
    """Return the requests of each bucket."""
    return [
        [r for r in found.trials.counted if b.first <= (prompt_tokens(r) or 0) <= (b.last or 0)]
        for b in found.by_prompt
    ]


def _parts(found: TtftResult, axes: Any) -> None:
    """Draw the mean of each part, stacked, for each length of prompt."""
    groups = _by_prompt(found)
    labels = [span(bucket) for bucket in found.by_prompt]
    bottom = [0.0] * len(groups)
    for part in PARTS:
        means = []
        for group in groups:
            known = [v for r in group if (v := getattr(r, f"{part}_s")) is not None]
            means.append(sum(known) / len(known) * MS if known else 0.0)
        if any(means):
            axes.bar(labels, means, bottom=bottom, color=COLOURS[part], label=part)
            bottom = [a + b for a, b in zip(bottom, means, strict=True)]
    axes.set(
        xlabel="prompt tokens",
        ylabel="from the request, mean, ms",
        ylim=(0, 1.35 * max(bottom, default=1)),
    )
    axes.tick_params(axis="x", labelrotation=45 if len(labels) > UPRIGHT else 0)
    axes.legend(loc="upper left", ncols=2)
