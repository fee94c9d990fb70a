"""A scheduler's marks on its device: one pair a step, shared by all requests in it.

They are read in the background thread, by whichever comes first: a request that has ended, or the
steps themselves. Then they are given back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llmtrace.guard import guard
from llmtrace.recording.recorder import Marks
from llmtrace.timing.device import DeviceTimer

if TYPE_CHECKING:
    from llmtrace.recording.batch import BatchStep


class StepTimer:
    """Marks a scheduler's stream."""

    def __init__(self, timer: DeviceTimer) -> None:
        self.clock = timer.clock
        self.mark = timer.mark
        self._timer = timer

    def read(self, steps: Sequence[BatchStep]) -> None:
        """Give each of *steps* its times on the device, by the host's clock, if it has them."""
        unread = [s for s in steps if s.begun and s.ended and s.begun[1] is not None]
        marks = [mark for step in unread for mark in (step.begun, step.ended) if mark is not None]
        if not marks or any(mark is None for _, mark in marks):
            return
        read = guard.call("reading a batch's device times", self._timer.resolve, marks)
        if read is None:
            return
        for index, step in enumerate(unread):
            step.device = (read.times_ns[2 * index], read.times_ns[2 * index + 1], read.error_ns)
        self.release(unread)

    def release(self, steps: Sequence[BatchStep]) -> None:
        """Give the marks of *steps* back."""
        self._timer.release([m[1] for s in steps for m in (s.begun, s.ended) if m and m[1]])
        for step in steps:
            step.begun = step.begun and (step.begun[0], None)
            step.ended = step.ended and (step.ended[0], None)


@dataclass(frozen=True, slots=True)
class SharedMarks:
    """The device's marks of one request's steps, until they have been read."""

    timer: StepTimer
    forwards: list[BatchStep]
    tokens: list[BatchStep]
    last: BatchStep | None
    """The last step past the limit of single steps."""

    def passed(self, marks: Marks) -> bool:  # noqa: ARG002 - as a request's own marks have it
        """Whether there is nothing to wait for: the loop has waited for each of its steps."""
        return True

    def read(self, marks: Marks) -> None:
        """Replace host times by the device's, if it has those of every step."""
        steps = [*self.forwards, *([self.last] if self.last is not None else ())]
        self.timer.read(steps)
        known = [step.device for step in steps if step.device is not None]
        if not self.forwards or len(known) < len(steps):
            return
        marks.device_prefill_start = known[0][0]
        marks.device_forward_ends = [ended for _, ended, _ in known[: len(self.forwards)]]
        marks.host_tokens = marks.tokens
        marks.tokens = [step.device[1] for step in self.tokens if step.device is not None]
        if self.last is not None:
            marks.last_mark = known[-1][1]
        marks.clock = self.timer.clock
        marks.clock_error_ns = max(error for _, _, error in known)


def host_and_mark(timer: StepTimer | None, at_ns: int) -> tuple[int, Any]:
    """Mark the stream, if there is one; returns the host time before it, and the mark."""
    return at_ns, None if timer is None else timer.mark()
