"""The hot path on a device: the same marks, and events on the device's stream beside them."""

from __future__ import annotations

from typing import Any

from llmtrace.recording.device_marks import DeviceMarks
from llmtrace.recording.legs import LegMarks
from llmtrace.recording.recorder import FullRecorder, Marks, Recorder
from llmtrace.timing.device import DeviceTimer
from llmtrace.timing.host import now

FORWARDS_MARKED = 8
"""Decode steps, from the first, in which the end of the forward is marked too."""

THEN_EVERY = 8


class DeviceRecorder(Recorder):
    """A recorder that also marks the device's stream.

    An event for each token, as a decode step begins where the last token was; one at the prefill's
    start; and one at the end of a forward in the first steps and in every eighth later on: in a
    real loop an event costs 9 to 16 us of the host's time, most of it because nothing of it is
    in the processor's caches there. ``forward_ends`` works out the ends in between.
    """

    __slots__ = (
        "follows_devices",
        "forward_events",
        "last_event",
        "leg_begun",
        "legs",
        "mark",
        "place",
        "prefill_event",
        "timer",
        "timers",
        "token_events",
    )

    def __init__(self, model: Any, limit: int, start_ns: int, timer: DeviceTimer) -> None:
        super().__init__(model, limit, start_ns)
        self.timer = timer
        self.mark = timer.mark
        self.prefill_event: tuple[int, Any] | None = None
        self.forward_events: list[Any] = []
        self.token_events: list[Any] = []
        self.last_event: Any = None
        self.follows_devices = False
        self.timers: dict[int, DeviceTimer] = {}
        """Of every device, where the model's layers lie on several."""
        self.place: int | None = None
        """The device that the forward under way has come to."""
        self.leg_begun: tuple[int, Any] | None = None
        self.legs: list[LegMarks] = []

    def capturing(self) -> bool:
        return self.timer.capturing()

    def awaits_device(self) -> bool:
        # Any moment may change it, and a look at an event never waits.
        if self.in_forward or not self.token_events:
            return False
        return not self.timer.passed(self.token_events[-1])

    def encoder_started(self) -> None:
        if self.encoder_start is None:
            self.encoder_start = now()
            self.prefill_event = (self.encoder_start, self.mark())

    def forward_started(self) -> None:
        instant = now()
        self.forward_starts.append(instant)
        if self.prefill_event is None:
            self.prefill_event = (instant, self.mark())

    def forward_ended(self) -> None:
        if len(self.forward_ends) >= self.limit and self.limit_reached():
            self.overflow()
            return
        marked = self.marks_forward()
        self.forward_ends.append(now())
        self.forward_events.append(self.mark() if marked else None)

    def marks_forward(self) -> bool:
        """Whether the end of the forward under way is marked; of a prefill's chunks, each."""
        return len(self.tokens) <= FORWARDS_MARKED or not len(self.forward_ends) % THEN_EVERY

    def token(self) -> None:
        done = len(self.forward_ends)
        if done != self.marked:
            self.marked = done
            self.token_forwards.append(done)
            self.tokens.append(now())
            self.token_events.append(self.mark())

    def close(self, end_ns: int) -> Marks:
        marks = super().close(end_ns)
        marks.device = DeviceMarks(
            self.timer,
            self.prefill_event,
            self.forward_events[: len(marks.forward_ends)],
            self.token_events[: len(marks.tokens)],
            self.last_event,
            self.legs,
            self.timers,
        )
        return marks

    def fill(self) -> None:
        self.__class__ = _FullDeviceRecorder


class SeveralDevicesRecorder(DeviceRecorder):
    """A recorder that follows each forward over the devices that the model's layers lie on.

    Beside the marks of the device where the logits come back: on each device one where its inputs
    have come and one where it is done, in the steps in which the forward's end is marked.
    """

    __slots__ = ()

    def forward_started(self) -> None:
        super().forward_started()
        self.place = self.leg_begun = None
        self.follows_devices = self.marks_forward()

    def leaves(self) -> None:
        """The device that the forward has come to has got all its work."""
        if self.place is not None:
            ended = (now(), self.timers[self.place].mark())
            self.legs.append(LegMarks(len(self.forward_ends), self.place, self.leg_begun, ended))

    def comes_to(self, device: int) -> None:
        """The forward's data have been sent to *device*."""
        first = self.place is None
        self.place = device
        self.leg_begun = None if first else (now(), self.timers[device].mark())

    def forward_ended(self) -> None:
        if self.leg_begun is not None:
            self.leaves()
        self.follows_devices = False
        super().forward_ended()


class _FullDeviceRecorder(DeviceRecorder):
    """A device recorder that has reached its limit."""

    __slots__ = ()

    forward_started = FullRecorder.forward_started
    forward_ended = FullRecorder.forward_ended
    graph_replayed = FullRecorder.graph_replayed
    forward_failed = FullRecorder.forward_failed
    forward_seen = FullRecorder.forward_seen
    token = FullRecorder.token
    select = FullRecorder.select
    put = FullRecorder.put
    length = FullRecorder.length

    def mark_last(self) -> None:
        self.last_mark = now()
        if self.last_event is None:
            self.last_event = self.mark()
        else:
            self.timer.remark(self.last_event)
