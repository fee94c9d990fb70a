"""The KV cache as a picture: bytes over tokens, layers over tokens, memory over requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from llmtrace.bench.charts.style import BLUE, GREEN, GREY, ORANGE, RED, at_foot, figure
from llmtrace.bench.kv.findings import KvResult, unused
from llmtrace.bench.kv.leaks import LEAK, LeakTest
from llmtrace.bench.result import conditions_in_two_lines

MIB = 2**20
KIB = 2**10


def draw(found: KvResult, subtitle: str) -> Any:
    """Return the figure of one request: its cache against what is due, and each layer."""
    title = "KV cache while a prompt is generated"
    with figure(title, subtitle, ncols=2, width_ratios=(1, 1)) as (made, axes):
        _sizes(found, axes[0])
        _layers(found, axes[1], made)
        at_foot(made, conditions_in_two_lines(found.records))
    return made


def _sizes(found: KvResult, axes: Any) -> None:
    steps = found.watched.steps
    tokens = [step.tokens for step in steps]
    due = [(step.tokens, step.due / MIB) for step in steps if step.due is not None]
    axes.plot(tokens, [step.size / MIB for step in steps], color=BLUE, lw=2.5, label="cache")
    if any(step.held > step.size for step in steps):
        axes.plot(tokens, [step.held / MIB for step in steps], color=ORANGE, lw=1,
                  label="storages under it")  # fmt: skip
    if unused(steps[-1]) is not None:
        used = [(step.size - room.size) / MIB for step in steps if (room := unused(step))]
        axes.plot(tokens, used, color=GREEN, lw=1, label="of it, for tokens that were run")
    if due:
        axes.plot(*zip(*due, strict=True), color=RED, ls="--", lw=1.2, label="due")
    states = [(step.tokens, step.allocator.allocated) for step in steps if step.allocator]
    if states:
        # Of the allocator the growth is drawn: weights are a thousand times a cache.
        (_, first), base = states[0], steps[0].size / MIB
        grown = [(at, base + (allocated - first) / MIB) for at, allocated in states]
        axes.plot(*zip(*grown, strict=True), color=GREY, lw=1, ls=":",
                  label="allocated on the GPU, from the same start")  # fmt: skip
    axes.set(xlabel="tokens run", ylabel="MiB", ylim=(0, None))
    axes.legend()


def _layers(found: KvResult, axes: Any, made: Any) -> None:
    """Draw the length of each layer after each step, less what is due; or the bytes of each."""
    steps = found.watched.steps
    layers = max(len(step.layers) for step in steps)
    off = np.full((layers, len(steps)), np.nan)
    for column, step in enumerate(steps):
        for row, (layer, due) in enumerate(zip(step.layers, step.dues, strict=True)):
            if due.tokens is not None:
                off[row, column] = layer.tokens - due.tokens
    axes.grid(visible=False)
    if np.nanmax(np.abs(off), initial=0) > 0:
        most = float(np.nanmax(np.abs(off)))
        image = axes.imshow(
            off, aspect="auto", origin="lower", cmap="RdBu_r", vmin=-most, vmax=most,
            interpolation="nearest",
            extent=(steps[0].tokens - 0.5, steps[-1].tokens + 0.5, -0.5, layers - 0.5),
        )  # fmt: skip
        made.colorbar(image, ax=axes, label="tokens held beyond those due")
        axes.set(xlabel="tokens run", ylabel="layer")
        axes.yaxis.get_major_locator().set_params(integer=True)
        return
    last = steps[-1]
    sizes = [layer.size / KIB for layer in last.layers]
    axes.bar(range(layers), sizes, color=BLUE, label="held")
    due_sizes = [(i, due.size / KIB) for i, due in enumerate(last.dues) if due.size is not None]
    if due_sizes:
        axes.plot(
            *zip(*due_sizes, strict=True), color=RED, ls="none", marker="_", ms=10, label="due"
        )
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set(xlabel="layer", ylabel="KiB after the last step", ylim=(0, None))
    axes.legend(loc="lower right", frameon=True)


def draw_leaks(found: KvResult, leaks: LeakTest, subtitle: str) -> Any:
    """Return the figure of memory after each request, as growth since the first."""
    samples = leaks.samples
    reserved = [one.reserved for one in samples if one.reserved is not None]
    with figure(f"Memory after each request: {leaks.verdict}", subtitle) as (made, axes):
        # Beside a GPU's memory the host's is not the question.
        host = [one.rss for one in samples if one.allocated is None]
        _growth(axes, host, "resident memory of the process: no proof",
                color=ORANGE, lw=1, ls=":")  # fmt: skip
        _growth(axes, reserved, "reserved by the allocator: its growth is no leak",
                color=GREY, lw=1, ls="--")  # fmt: skip
        _growth(axes, [one.bytes for one in samples], leaks.measured, lw=2.5, marker="o", ms=3,
                color=RED if leaks.verdict == LEAK else GREEN)  # fmt: skip
        axes.set(xlabel="request", ylabel="growth since the first, MiB")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.legend()
        at_foot(made, conditions_in_two_lines(found.records))
    return made


def _growth(axes: Any, values: Sequence[int], label: str, **look: Any) -> None:
    """Draw by how much each value is above the first."""
    if values:
        grown = [(value - values[0]) / MIB for value in values]
        axes.plot(range(1, len(values) + 1), grown, label=label, **look)
