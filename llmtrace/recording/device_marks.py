"""A request's marks on a device, from its end until they have been read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from llmtrace.guard import guard
from llmtrace.recording.forward_ends import forward_ends
from llmtrace.recording.legs import LegMarks, read_legs
from llmtrace.recording.recorder import Marks
from llmtrace.timing.device import DeviceTimer


@dataclass(frozen=True, slots=True)
class DeviceMarks:
    """What was marked on the device's stream, beside the host's marks of the same instants."""

    timer: DeviceTimer
    prefill: tuple[int, Any] | None
    """The start of the first forward, or of an encoder's before it."""
    forwards: list[Any]
    tokens: list[Any]
    last: Any
    """The last mark past the limit of single steps."""
    legs: list[LegMarks] = field(default_factory=list)
    timers: dict[int, DeviceTimer] = field(default_factory=dict)

    def passed(self, marks: Marks) -> bool:
        """Whether there is nothing to wait for before the times can be read."""
        events = self._in_stream_order(marks)
        # Logits come back from the last device, so the others have passed theirs then.
        return not events or self.timer.passed(events[-1][1])

    def read(self, marks: Marks) -> None:
        """Replace host times by the device's, if it has passed them all; give the marks back."""
        events = self._in_stream_order(marks)
        resolved = (
            guard.call("reading the device's times", self.timer.resolve, events) if events else None
        )
        if resolved is not None:
            self._adopt(marks, resolved.times_ns)
            marks.clock = self.timer.clock
            marks.clock_error_ns = resolved.error_ns
        self.timer.release([event for _, event in events])
        marks.legs = read_legs(self.legs, self.timers)

    def _in_stream_order(self, marks: Marks) -> list[tuple[int, Any]]:
        """Return every event with the host time before it, in the order they were recorded."""
        events = [] if self.prefill is None else [self.prefill]
        forwards = list(zip(marks.forward_ends, self.forwards, strict=False))
        done = 0
        tokens = zip(marks.tokens, self.tokens, marks.token_forwards, strict=False)
        for asked, event, count in tokens:
            events += [pair for pair in forwards[done:count] if pair[1] is not None]
            events.append((asked, event))
            done = count
        events += [pair for pair in forwards[done:] if pair[1] is not None]
        if marks.last_mark is not None:
            events.append((marks.last_mark, self.last))
        return events

    def _adopt(self, marks: Marks, times_ns: list[int]) -> None:
        """Replace host times by the device's, undoing ``_in_stream_order``."""
        rest = iter(times_ns)
        if self.prefill is not None:
            marks.device_prefill_start = next(rest)
        ends: list[int | None] = []
        tokens: list[int] = []
        for count in marks.token_forwards[: len(self.tokens)]:
            ends += [None if f is None else next(rest) for f in self.forwards[len(ends) : count]]
            tokens.append(next(rest))
        ends += [None if f is None else next(rest) for f in self.forwards[len(ends) :]]
        marks.device_forward_ends = forward_ends(marks, tokens, ends)
        marks.host_tokens, marks.tokens = marks.tokens, tokens
        if marks.last_mark is not None:
            marks.last_mark = next(rest)
