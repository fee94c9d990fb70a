"""The device of a request: its name, and torch's allocator around the request.

The allocator's statistics are read, never reset: they are the user's.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

from llmtrace.recording.request import RequestInfo


class MemoryBefore(NamedTuple):
    """torch's allocators when a request began."""

    indices: tuple[int | None, ...]
    allocated: tuple[int, ...]
    """Bytes, on each device."""
    peaks: tuple[int, ...]


def memory_before(device: Any, devices: tuple[int, ...] = ()) -> MemoryBefore | None:
    """Return the allocators' state, or None without one to ask.

    Args:
        device: The request's device.
        devices: Indices of all the devices that its model lies on, if there are several.
    """
    if device is None or device.type != "cuda":
        return None
    indices = devices or (device.index,)
    held = [_statistics(index)["allocated_bytes"]["all"] for index in indices]
    return MemoryBefore(indices, tuple(h["current"] for h in held), tuple(h["peak"] for h in held))


def memory_after(info: RequestInfo, before: MemoryBefore | None) -> None:
    """Note the allocators' state, summed; the peak only where this request raised it."""
    if before is None:
        return
    found = [_statistics(index) for index in before.indices]
    _note_held(info, found)
    info.memory_growth_bytes = _current(found, "allocated_bytes") - sum(before.allocated)
    held = [statistics["allocated_bytes"]["all"] for statistics in found]
    if all(h["peak"] > peak for h, peak in zip(held, before.peaks, strict=True)):
        info.memory_peak_bytes = sum(h["peak"] for h in held)


def memory_held(device: Any, devices: tuple[int, ...], info: RequestInfo) -> None:
    """Note the allocators' state alone, summed, where a request shares its steps with others."""
    if device is not None and device.type == "cuda":
        _note_held(info, [_statistics(index) for index in devices or (device.index,)])


def _note_held(info: RequestInfo, found: list[dict[str, Any]]) -> None:
    info.memory_allocated_bytes = _current(found, "allocated_bytes")
    info.memory_reserved_bytes = _current(found, "reserved_bytes")
    info.memory_inactive_split_bytes = _current(found, "inactive_split_bytes")


def _current(found: list[dict[str, Any]], what: str) -> int:
    return sum(statistics[what]["all"]["current"] for statistics in found)


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


def _statistics(index: int | None) -> dict[str, Any]:
    """Return the nested form, which costs a tenth of the flat one's time."""
    import torch

    return dict(torch.cuda.memory_stats_as_nested_dict(index))
