"""torch's allocator around a request, read without resetting the user's statistics."""

from __future__ import annotations

from typing import Any

from llmtrace.recording.request import RequestInfo

_ALLOCATED = "allocated_bytes.all.current"
_RESERVED = "reserved_bytes.all.current"
_PEAK = "allocated_bytes.all.peak"


def before(device: Any) -> int | None:
    """Return the process's peak so far, or None without an allocator to ask."""
    return _statistics(device).get(_PEAK)


def after(info: RequestInfo, device: Any, peak_before: int | None) -> None:
    """Note the allocator's state; the peak only where this request raised it."""
    statistics = _statistics(device)
    if not statistics:
        return
    info.memory_allocated_bytes = statistics.get(_ALLOCATED)
    info.memory_reserved_bytes = statistics.get(_RESERVED)
    peak = statistics.get(_PEAK)
    if peak is not None and peak_before is not None and peak > peak_before:
        info.memory_peak_bytes = peak


def _statistics(device: Any) -> dict[str, int]:
    if device is None or device.type != "cuda":
        return {}
    import torch

    return dict(torch.cuda.memory_stats(device))
