"""The device of a request: its name, and torch's allocator around the request.

The allocator's statistics are read, never reset: they are the user's.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

from llmtrace.recording.request import RequestInfo


class MemoryBefore(NamedTuple):
    """torch's allocator when a request began, in bytes."""

    allocated: int
    peak: int


def memory_before(device: Any) -> MemoryBefore | None:
    """Return the allocator's state, or None without an allocator to ask."""
    statistics = _statistics(device)
    if not statistics:
        return None
    allocated = statistics["allocated_bytes"]["all"]
    return MemoryBefore(allocated["current"], allocated["peak"])


def memory_after(info: RequestInfo, device: Any, before: MemoryBefore | None) -> None:
    """Note the allocator's state; the peak only where this request raised it."""
    statistics = _statistics(device)
    if not statistics or before is None:
        return
    allocated = statistics["allocated_bytes"]["all"]
    info.memory_allocated_bytes = allocated["current"]
    info.memory_growth_bytes = allocated["current"] - before.allocated
    info.memory_reserved_bytes = statistics["reserved_bytes"]["all"]["current"]
    info.memory_inactive_split_bytes = statistics["inactive_split_bytes"]["all"]["current"]
    if allocated["peak"] > before.peak:
        info.memory_peak_bytes = allocated["peak"]


def device_name(device: Any) -> str | None:
    """Return an accelerator's name as its vendor gives it, or None for a CPU."""
    if device is None or device.type != "cuda":
        return None
    import torch

    return _name(torch.cuda.current_device() if device.index is None else device.index)


@lru_cache(maxsize=64)
def _name(index: int) -> str:
    import torch

    return str(torch.cuda.get_device_name(index))


def _statistics(device: Any) -> dict[str, Any]:
    """Return the nested form, which costs a tenth of the flat one's time."""
    if device is None or device.type != "cuda":
        return {}
    import torch

    return dict(torch.cuda.memory_stats_as_nested_dict(device))
