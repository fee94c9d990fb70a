"""The hot path on a device: the same marks, and events on the device's stream beside them."""

from __future__ import annotations

from typing import Any

from llmtrace.recording.device_marks import DeviceMarks
from llmtrace.recording.recorder import FullRecorder, Marks, Recorder
from llmtrace.timing.device import DeviceTimer
from llmtrace.timing.host import now


class DeviceRecorder(Recorder):
    """A recorder that also marks the device's stream.

    Two events a step: the end of the forward, and the token. A decode step begins where the last
    token was; only the prefill needs an event of its own at its start.
    """

    __slots__ = (
        "forward_events",
        "last_event",
        "prefill_event",
        "timer",
        "token_events",
    )

    def __init__(self, model: Any, limit: int, start_ns: int, timer: DeviceTimer) -> None:
        super().__init__(model, limit, start_ns)
        self.timer = timer
        self.prefill_event: tuple[int, Any] | None = None
        self.forward_events: list[Any] = []
        self.token_events: list[Any] = []
        self.last_event: Any = None

    def capturing(self) -> bool:
        return self.timer.capturing()

    def encoder_started(self) -> None:
        if self.encoder_start is None:
            self.encoder_start = now()
            self.prefill_event = (self.encoder_start, self.timer.mark())

    def forward_started(self) -> None:
        instant = now()
        self.forward_starts.append(instant)
        if self.prefill_event is None:
            self.prefill_event = (instant, self.timer.mark())

    def forward_ended(self) -> None:
        if len(self.forward_ends) >= self.limit and self.limit_reached():
            self.overflow()
            return
        self.forward_ends.append(now())
        self.forward_events.append(self.timer.mark())

    def token(self) -> None:
        done = len(self.forward_ends)
        if done != self.marked:
            self.marked = done
            self.token_forwards.append(done)
            self.tokens.append(now())
            self.token_events.append(self.timer.mark())

    def close(self, end_ns: int) -> Marks:
        marks = super().close(end_ns)
        marks.device = DeviceMarks(
            self.timer,
            self.prefill_event,
            self.forward_events,
            self.token_events,
            self.last_event,
        )
        return marks

    def fill(self) -> None:
        self.__class__ = _FullDeviceRecorder


class _FullDeviceRecorder(DeviceRecorder):
    """A device recorder that has reached its limit."""

    __slots__ = ()

    forward_started = FullRecorder.forward_started
    forward_ended = FullRecorder.forward_ended
    forward_failed = FullRecorder.forward_failed
    forward_seen = FullRecorder.forward_seen
    token = FullRecorder.token
    select = FullRecorder.select
    put = FullRecorder.put
    length = FullRecorder.length

    def mark_last(self) -> None:
        self.last_mark = now()
        if self.last_event is None:
            self.last_event = self.timer.mark()
        else:
            self.timer.remark(self.last_event)
