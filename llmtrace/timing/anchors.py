"""A device's clock on the host's: anchors, and the drift between the two.

An anchor is one instant read on both clocks: a mark on a stream of our own that is always idle,
between two looks at the host's clock. On an H200 the two looks are 6 us apart, whatever the other
streams are doing, and the clocks drift apart by 9 us a second
(docs/measurements.md). So a request's marks are placed between two anchors: one from before it
and one from after it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from llmtrace.timing.device import DeviceTimes

SPACING_NS = 1_000_000_000
"""Anchors nearer than this to the last one kept are used once and not kept."""

KEPT = 64

UNKNOWN_DRIFT = 100e-6
"""Largest drift of crystals: assumed where none could be measured more exactly."""


class Anchor(NamedTuple):
    """One instant on both clocks."""

    host_ns: int
    error_ns: int
    """The instant lies within this of ``host_ns``."""
    mark: Any
    """The same instant on the device."""


class DeviceClock:
    """The clock of one device, as its anchors tell it."""

    def __init__(self, take: Callable[[], Anchor], elapsed_ns: Callable[[Any, Any], int]) -> None:
        """Take the first anchor.

        Args:
            take: Returns an anchor of now.
            elapsed_ns: Returns the device time from one mark to another.
        """
        self._take = take
        self._elapsed_ns = elapsed_ns
        self._lock = threading.Lock()
        self._kept: deque[Anchor] = deque([take()], maxlen=KEPT)

    def place(self, asked_ns: Sequence[int], marks: Sequence[Any]) -> DeviceTimes:
        """Map marks that the device has passed onto the host clock.

        Args:
            asked_ns: A host time before each mark was asked for.
            marks: The marks, in the order in which the device passed them.

        Formula:
            ``host = anchor + t * (1 + drift)`` with *t* the device time since the anchor after
            the marks, and ``drift = (host time / device time between two anchors) - 1``.
        """
        with self._lock:
            after: Anchor = self._take()
            before = self._before(asked_ns[0])
            if after.host_ns - self._kept[-1].host_ns >= SPACING_NS:
                self._kept.append(after)
        drift, drift_error = self._drift(before, after)
        since = self._since(after, marks)
        times = [after.host_ns + t + round(t * drift) for t in since]
        error = after.error_ns + round(-since[0] * drift_error)
        # No mark can have happened before it was asked for.
        early = max(0, *(a - t for a, t in zip(asked_ns, times, strict=True)))
        return DeviceTimes([t + early for t in times], max(error, early))

    def _before(self, host_ns: int) -> Anchor:
        """Return the newest anchor from before *host_ns*, or the oldest one."""
        earlier = (anchor for anchor in reversed(self._kept) if anchor.host_ns <= host_ns)
        return next(earlier, self._kept[0])

    def _drift(self, before: Anchor, after: Anchor) -> tuple[float, float]:
        """Return by how much the host's clock runs faster than the device's, and the error."""
        device_ns = self._elapsed_ns(before.mark, after.mark)
        error = (before.error_ns + after.error_ns) / device_ns if device_ns > 0 else UNKNOWN_DRIFT
        if error >= UNKNOWN_DRIFT:
            return 0.0, UNKNOWN_DRIFT
        return (after.host_ns - before.host_ns - device_ns) / device_ns, error

    def _since(self, anchor: Anchor, marks: Sequence[Any]) -> list[int]:
        """Return the device times of *marks* since *anchor*: below 0.

        Each mark is read against the next: a device tells distances as 32-bit floats of
        milliseconds, exact enough for one step but not for a whole request.
        """
        since = [-self._elapsed_ns(marks[-1], anchor.mark)]
        for before, mark in reversed(list(pairwise(marks))):
            since.append(since[-1] - self._elapsed_ns(before, mark))
        since.reverse()
        return since
