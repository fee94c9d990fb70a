"""What is lost against a linear gain, and where, as far as that can be told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llmtrace.bench.tgs.evaluation import LevelResult


@dataclass(frozen=True, slots=True)
class Loss:
    """Shares of what so many requests alone would make: 0 to 1, negative where there is a gain."""

    total: float
    """``1 - TGS(N) / (N x TGS(1))``, both in the steady time."""
    parts: dict[str, float]
    """``queue``, ``prefill``, ``decode_host``, ``decode_device`` (or ``decode``, where the device
    has no clock of its own), ``unattributed``: they add up to the total."""


def loss(found: LevelResult, alone: LevelResult | None) -> Loss | None:
    """Return what *found* loses against *alone*, which had one request at a time.

    Formula:
        A request takes E(N) with N at a time. Each part is ``(part(N) - part(1)) / E(N)``: queue;
        prefill, TTFT without the queue; decode, ``(n - 1) x TPOT``. Decode is split by the share
        of decode steps in which the device waited for Python (``host_bound_ratio``): that share of
        the growth is the host's, the rest the device's. What remains - requests that begin and end
        at different times - is unattributed.

    Returns:
        None where there is nothing to compare with.
    """
    if alone is None or not found.rate or not alone.rate:
        return None
    mine, single = _times(found), _times(alone)
    if mine is None or single is None:
        return None
    total = 1 - found.rate / (found.level.concurrency * alone.rate)
    whole = sum(mine.values())
    parts = {name: (mine[name] - single[name]) / whole for name in mine}
    waiting = found.report.host_bound_ratio
    if waiting is not None:
        grown = parts.pop("decode")
        parts |= {"decode_host": grown * waiting.mean, "decode_device": grown * (1 - waiting.mean)}
    return Loss(total, {**parts, "unattributed": total - sum(parts.values())})


def _times(found: LevelResult) -> dict[str, float] | None:
    """Return the mean of each part of a request's time, seconds."""
    known = [
        (r.queue_s, r.ttft_s - r.queue_s, r.e2e_s - r.ttft_s)
        for r in found.requests
        if r.ttft_s is not None and r.e2e_s is not None and not r.record.cold
    ]
    if not known:
        return None
    names = ("queue", "prefill", "decode")
    return {n: sum(times[i] for times in known) / len(known) for i, n in enumerate(names)}
