"""CUDA events from a pool, recorded on one stream, read once the request is over."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

from llmtrace.timing.anchors import Anchor, DeviceClock
from llmtrace.timing.device import DeviceTimes
from llmtrace.timing.host import now

# The C-level call: torch.cuda.Event.record looks up the current stream first, 4 us a time.
_record: Any = getattr(torch._C, "_CudaEventBase", torch.cuda.Event).record  # noqa: SLF001

_pools: dict[int, list[torch.cuda.Event]] = {}
"""Free events by device index. An event may only ever be recorded on streams of one device.
``list.pop`` and ``list.append`` are atomic, so no lock is needed on the hot path."""

_clocks: dict[int, DeviceClock] = {}
_clocks_lock = threading.Lock()

ANCHOR_TRIES = 5
GOOD_ANCHOR_NS = 20_000
"""Between an anchor's two looks at the host's clock; more means that the thread was held up."""
ANCHOR_LIMIT_NS = 50_000_000
RELAXED = 2
"""CU_STREAM_CAPTURE_MODE_RELAXED"""


class CudaTimer:
    """Marks instants on the stream that was current on *device* when the request began."""

    clock = "cuda"

    def __init__(self, device: torch.device) -> None:
        index = torch.cuda.current_device() if device.index is None else device.index
        self._stream = torch.cuda.current_stream(index)
        self._pool = _pools.setdefault(index, [])
        self._clock = _clock_of(index)
        self._failures: list[str] = []
        self.mark = _marker(self._stream, self._pool, self._failures)

    def remark(self, mark: torch.cuda.Event | None) -> None:
        """Record *mark* anew."""
        try:
            _record(mark, self._stream)
        except Exception as error:  # noqa: BLE001 - as in ``mark``
            self._failures.append(type(error).__name__)

    def capturing(self) -> bool:
        """Whether a CUDA graph is being captured: an event recorded now would be part of it."""
        return bool(torch.cuda.is_current_stream_capturing())

    def passed(self, mark: torch.cuda.Event | None) -> bool:
        """Whether there is nothing to wait for."""
        if self._failures or mark is None:
            return True
        with capture_relaxed():
            try:
                return bool(mark.query())
            except Exception as error:  # noqa: BLE001 - there is nothing to read any more
                self._failures.append(type(error).__name__)
                return True

    def resolve(self, marks: list[tuple[int, Any]]) -> DeviceTimes | None:
        """Map events onto the host clock; see :class:`~llmtrace.timing.device.DeviceTimer`."""
        if not self.passed(marks[-1][1]) or self._failures:
            return None
        with capture_relaxed():
            return self._clock.place([asked for asked, _ in marks], [event for _, event in marks])

    def release(self, marks: list[Any]) -> None:
        """Put events back into the pool."""
        self._pool.extend(mark for mark in marks if mark is not None)


def _marker(
    stream: torch.cuda.Stream, pool: list[torch.cuda.Event], failures: list[str]
) -> Callable[[], torch.cuda.Event | None]:
    """Return what marks instants on *stream*; a closure, as looking attributes up takes time."""
    record, make = _record, torch.cuda.Event

    def mark() -> torch.cuda.Event | None:
        """Record a pooled event on the stream; None if the device refuses.

        It does after an error that the application is about to see at its own next call: that
        one, not ours, is to raise it.
        """
        try:
            event = pool.pop() if pool else make(enable_timing=True)
            record(event, stream)
        except Exception as error:  # noqa: BLE001 - the request goes on, on the host's clock
            failures.append(type(error).__name__)
            return None
        return event

    return mark


def _clock_of(index: int) -> DeviceClock:
    """Return the clock of a device; the first request on it takes its first anchor."""
    clock = _clocks.get(index)
    if clock is None:
        with _clocks_lock, capture_relaxed():
            if index not in _clocks:
                # Of the high-priority pool, which applications hardly use: it has to be idle.
                stream = torch.cuda.Stream(index, priority=-1)
                _clocks[index] = DeviceClock(lambda: _anchor(stream), _elapsed_ns)
            clock = _clocks[index]
    return clock


def _elapsed_ns(before: torch.cuda.Event, after: torch.cuda.Event) -> int:
    elapsed: int = round(before.elapsed_time(after) * 1e6)
    return elapsed


def _anchor(stream: torch.cuda.Stream) -> Anchor:
    """Read both clocks at once; the best of a few tries, as the thread may be held up."""
    event = torch.cuda.Event(enable_timing=True)
    _record(event, stream)  # makes it, so that the next call only records
    _wait(event)
    best = _try_anchor(event, stream)
    for _ in range(ANCHOR_TRIES - 1):
        if 2 * best.error_ns <= GOOD_ANCHOR_NS:
            break
        event = torch.cuda.Event(enable_timing=True)
        _record(event, stream)
        _wait(event)
        best = min(best, _try_anchor(event, stream), key=lambda anchor: anchor.error_ns)
    return best


def _try_anchor(event: torch.cuda.Event, stream: torch.cuda.Stream) -> Anchor:
    begun = now()
    _record(event, stream)
    _wait(event)
    ended = now()
    return Anchor((begun + ended) // 2, (ended - begun + 1) // 2, event)


def _wait(event: torch.cuda.Event) -> None:
    """Look until *event* has passed: some microseconds on an idle stream."""
    limit = now() + ANCHOR_LIMIT_NS
    while not event.query():
        if now() > limit:
            raise TimeoutError("the device did not reach an event on an idle stream")


@contextmanager
def capture_relaxed() -> Iterator[None]:
    """Let this thread look at events while another thread captures a CUDA graph.

    Otherwise the driver refuses, and the other thread's capture fails
    (``benchmarks/gpu/modes.py`` captures meanwhile).
    Where the driver's library is not to be found, as with
    AMD's devices, nothing is changed.
    """
    exchange = _exchange_capture_mode()
    if exchange is None:
        yield
        return
    mode = ctypes.c_int(RELAXED)
    exchange(ctypes.byref(mode))
    try:
        yield
    finally:
        exchange(ctypes.byref(mode))


@cache
def _exchange_capture_mode() -> Any:
    """Return the driver's call that swaps the calling thread's capture mode, or None."""
    try:
        driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return None
    return getattr(driver, "cuThreadExchangeStreamCaptureMode", None)
