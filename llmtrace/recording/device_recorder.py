"""The hot path on a device: the same marks, and events on the device's stream beside them."""

from __future__ import annotations

from typing import Any

from llmtrace.guard import guard
from llmtrace.recording.recorder import FullRecorder, Marks, Recorder
from llmtrace.timing.device import DeviceTimer
from llmtrace.timing.host import now


class DeviceRecorder(Recorder):
    """A recorder that also marks the device's stream.

    Two events a step: the end of the forward, and the token. A decode step begins where the last
    token was; only the prefill needs an event of its own at its start.
    """

    __slots__ = (
        "done_ns",
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
        self.done_ns: int | None = None
        """A host time at which the stream had passed the last mark."""

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

    def ended(self) -> None:
        # The loop has waited for its last token, so this look costs nothing and is the tightest
        # bound on the device clock's offset that there is.
        newest = self._newest_event()
        if self.done_ns is None and newest is not None and self.timer.passed(newest):
            self.done_ns = now()

    def _newest_event(self) -> Any:
        """Return the event that the stream passes last, or None."""
        if self.last_event is not None:
            return self.last_event
        done = self.token_forwards[-1] if self.token_events else 0
        if len(self.forward_events) > done:
            return self.forward_events[-1]
        if self.token_events:
            return self.token_events[-1]
        return None if self.prefill_event is None else self.prefill_event[1]

    def close(self, end_ns: int) -> Marks:
        marks = super().close(end_ns)
        events = self._in_stream_order()
        if events:
            guard.call("reading the device's times", self._resolve, marks, events)
        self.timer.release([event for _, event in events])
        return marks

    def _resolve(self, marks: Marks, events: list[tuple[int, Any]]) -> None:
        """Replace host times by the device's, if the stream has passed them all."""
        self.ended()
        resolved = None if self.done_ns is None else self.timer.resolve(events, self.done_ns)
        if resolved is not None:
            self._adopt(marks, resolved.times_ns)
            marks.clock = self.timer.clock
            marks.clock_error_ns = resolved.error_ns

    def _in_stream_order(self) -> list[tuple[int, Any]]:
        """Return every event with the host time before it, in the order they were recorded."""
        events = [] if self.prefill_event is None else [self.prefill_event]
        forwards = list(zip(self.forward_ends, self.forward_events, strict=False))
        done = 0
        tokens = zip(self.tokens, self.token_events, self.token_forwards, strict=False)
        for asked, event, count in tokens:
            events += forwards[done:count]
            events.append((asked, event))
            done = count
        events += forwards[done:]
        if self.last_mark is not None:
            events.append((self.last_mark, self.last_event))
        return events

    def _adopt(self, marks: Marks, times_ns: list[int]) -> None:
        """Replace host times by the device's, undoing ``_in_stream_order``."""
        rest = iter(times_ns)
        if self.prefill_event is not None:
            marks.device_prefill_start = next(rest)
        ends: list[int] = []
        tokens: list[int] = []
        for count in self.token_forwards[: len(self.token_events)]:
            while len(ends) < count:
                ends.append(next(rest))
            tokens.append(next(rest))
        while len(ends) < len(self.forward_events):
            ends.append(next(rest))
        marks.device_forward_ends = ends
        marks.tokens = tokens
        if self.last_mark is not None:
            marks.last_mark = next(rest)

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
