"""CUDA events from a pool, recorded on one stream, read once the request is over."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch

from llmtrace.timing.device import DeviceTimes
from llmtrace.timing.offset import offset_ns

# The C-level call: torch.cuda.Event.record looks up the current stream first, 9 us a time.
_record: Any = getattr(torch._C, "_CudaEventBase", torch.cuda.Event).record  # noqa: SLF001

_pools: dict[int, list[torch.cuda.Event]] = {}
"""Free events by device index. An event may only ever be recorded on streams of one device.
``list.pop`` and ``list.append`` are atomic, so no lock is needed on the hot path."""


class CudaTimer:
    """Marks instants on the stream that was current on *device* when the request began."""

    clock = "cuda"

    def __init__(self, device: torch.device) -> None:
        index = torch.cuda.current_device() if device.index is None else device.index
        self._stream = torch.cuda.current_stream(index)
        self._pool = _pools.setdefault(index, [])
        self._failed = False

    def mark(self) -> torch.cuda.Event | None:
        """Record a pooled event on the stream; None if the device refuses.

        It does after an error that the application is about to see at its own next call: that
        one, not ours, is to raise it.
        """
        try:
            event = self._pool.pop() if self._pool else torch.cuda.Event(enable_timing=True)
            _record(event, self._stream)
        except Exception:  # noqa: BLE001 - the request goes on, on the host's clock
            self._failed = True
            return None
        return event

    def remark(self, mark: torch.cuda.Event | None) -> None:
        """Record *mark* anew."""
        try:
            _record(mark, self._stream)
        except Exception:  # noqa: BLE001 - as above
            self._failed = True

    def passed(self, mark: torch.cuda.Event | None) -> bool:
        """Whether the stream has passed *mark*."""
        return mark is not None and not self._failed and bool(mark.query())

    def resolve(self, marks: list[tuple[int, Any]], done_ns: int) -> DeviceTimes | None:
        """Map events onto the host clock; see :class:`~llmtrace.timing.device.DeviceTimer`.

        Each event is read against the one before it: ``elapsed_time`` is a 32-bit float of
        milliseconds, which is exact enough for one step but not for a whole request.
        """
        if self._failed or not marks or not marks[-1][1].query():
            return None
        device_ns = [0]
        for (_, before), (_, event) in pairwise(marks):
            device_ns.append(device_ns[-1] + round(before.elapsed_time(event) * 1e6))
        offset, error = offset_ns([asked for asked, _ in marks], device_ns, done_ns)
        return DeviceTimes([offset + t for t in device_ns], error)

    def release(self, marks: list[Any]) -> None:
        """Put events back into the pool."""
        self._pool.extend(mark for mark in marks if mark is not None)

    def capturing(self) -> bool:
        """Whether a CUDA graph is being captured: an event recorded now would be part of it."""
        return bool(torch.cuda.is_current_stream_capturing())
