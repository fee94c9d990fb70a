"""From the end of a request to everyone who wants its record, on one background thread."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from llmtrace.config import Config
from llmtrace.guard import guard
from llmtrace.hardware import Peaks, parse_peaks
from llmtrace.recording.batch_build import BatchStretch, build_batch
from llmtrace.recording.build import build_record
from llmtrace.recording.giving_way import GRACE_S, GivingWay, Needing
from llmtrace.recording.recorder import Marks
from llmtrace.recording.request import FinishedRequest, RequestInfo
from llmtrace.records import BatchRecord, RequestRecord
from llmtrace.timing.host import now

MAX_WAITING = 1024
"""Finished requests waiting for the background thread; beyond that the oldest is dropped."""

MAX_STRETCHES = 64
"""Stretches of a scheduler's steps that wait; beyond that the oldest is dropped."""

CONSUMER_WAIT_S = 1.0
"""How long a finished request waits for its streamer's consumer to take the rest of the text."""

DEVICE_WAIT_S = 10.0
"""How long a finished request waits for its device, where the app has not waited for it."""

CONSUMER_POLL_S = 0.05
DEVICE_POLL_S = 0.002

Subscriber = Callable[[RequestRecord], None]


class OpenSpan(Protocol):
    """A request's span, open while the request runs."""

    trace_id: str | None
    span_id: str | None
    link: Any
    """What other telemetry can refer to the span by, when it has ended too."""
    queued_since_unix_ns: int | None
    """Start of the enclosing server span, if there is one."""

    def enter(self) -> Callable[[], None]:
        """Make the span the current one here; returns what undoes it."""

    def leave(self) -> None:
        """Stop being the current span; called where the request was started."""

    def abandon(self) -> None:
        """End without a record, which could not be made or kept."""

    def end_as_group(self, name: str | None, end_unix_ns: int) -> None:
        """End as a plain span around the requests made inside it."""


class Running(Needing, Protocol):
    """A request under way."""

    info: RequestInfo

    def abandon(self) -> None:
        """End without a record."""


class Telemetry(Protocol):
    """What recording needs of ``llmtrace.telemetry``; the only door to OpenTelemetry."""

    def active(self) -> bool:
        """Whether a record would go anywhere."""

    def here(self) -> Any | None:
        """Return the current telemetry context if it holds a span or forbids them, else None."""

    def key(self, context: Any | None) -> object | None:
        """Return what identifies the span of *context* (None: the current one), if any."""

    def open(
        self, info: RequestInfo, start_unix_ns: int, context: Any | None, *, here: bool = True
    ) -> OpenSpan | None:
        """Start a request's span, the current one if *here*; None when it must not be traced."""

    def emit(self, record: RequestRecord, info: RequestInfo, span: OpenSpan) -> None:
        """Turn a record into spans and metrics; background thread."""

    def emit_batch(self, record: BatchRecord) -> None:
        """Turn a scheduler's steps into spans and metrics; background thread."""

    def tokenized(self, start_unix_ns: int, end_unix_ns: int) -> None:
        """Emit a ``tokenize`` span under the current span, if it is recorded."""

    def postprocessed(self, start_unix_ns: int, end_unix_ns: int, request: Any | None) -> None:
        """Emit a ``postprocess`` span under the current span, or under *request*'s (its link)."""

    def settle(self, deadline: float) -> None:
        """Export what was emitted, until *deadline* (``time.monotonic``)."""


@dataclass(slots=True)
class _Job:
    info: RequestInfo
    marks: Marks
    start_unix_ns: int
    span: OpenSpan
    ended: float
    """When it was handed over (``time.monotonic``)."""

    def waits(self, hurrying: bool, makes_room: Callable[[float], bool]) -> float | None:  # noqa: FBT001
        """Return after how long to look again, or None if there is nothing to wait for.

        Args:
            hurrying: Give up waiting for the streamer's consumer.
            makes_room: Whether a request of that age is to give way to those under way.
        """
        age = time.monotonic() - self.ended
        device, stream = self.marks.device, self.info.stream
        if device is not None and age < DEVICE_WAIT_S and not device.passed(self.marks):
            return DEVICE_POLL_S
        if makes_room(age):
            return GRACE_S
        if hurrying or stream is None or stream.settled or age >= CONSUMER_WAIT_S:
            return None
        return CONSUMER_POLL_S


class Pipeline:
    """Takes finished requests, gives records to subscribers and to telemetry."""

    def __init__(self, config: Config, telemetry: Telemetry) -> None:
        self.config = config
        self.telemetry = telemetry
        self._subscribers: tuple[tuple[Subscriber], ...] = ()
        self._renew()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        """Start anew: a forked child has none of the parent's threads or requests."""
        self._jobs: deque[_Job] = deque()
        self._stretches: deque[BatchStretch] = deque(maxlen=MAX_STRETCHES)
        self._changed = threading.Condition()
        self._busy = False
        self._hurrying = 0
        self._awaited = 0
        """Those who wait for every finished request to be dealt with."""
        self._thread: threading.Thread | None = None
        self._under_way: dict[int, Running] = {}
        self._giving_way = GivingWay(lambda: list(self._under_way.values()))
        self._orphans: deque[Callable[[], None]] = deque()

    @property
    def running(self) -> int:
        """Requests under way."""
        return len(self._under_way)

    def pause(self) -> None:
        """Between two pieces of the background thread's work: Python is left to requests."""
        if not self._awaited:
            self._giving_way.pause()

    def peaks(self) -> Peaks | None:
        """Return the user's own peaks of the device, if there are any."""
        given = self.config.peaks
        return parse_peaks(given) if given else None

    def begin(self, request: Running) -> None:
        """A request has started."""
        self._end_orphans()
        self._under_way[id(request)] = request

    def leave(self, request: Running) -> None:
        """A request has been handed over, or turned out to be none."""
        if id(request) not in self._under_way:
            return
        with self._changed:
            self._under_way.pop(id(request), None)
            self._changed.notify_all()

    def orphaned(self, end: Callable[[], None], *requests: Running) -> None:
        """*end* is to be called for *requests*, as nobody can end them any more.

        Called wherever objects die, perhaps inside this very class: so not now, but at the next
        request or flush. In a forked child, the parent's requests are not ours to end.
        """
        if any(id(request) in self._under_way for request in requests):
            self._orphans.append(end)

    def _end_orphans(self) -> None:
        while self._orphans:
            try:
                end = self._orphans.popleft()
            except IndexError:  # another thread was faster
                return
            guard.call("ending a request that was dropped", end)

    def abandon_running(self) -> None:
        """End the requests under way without records."""
        for request in list(self._under_way.values()):
            guard.call("abandoning a request", request.abandon)

    def _returning(self) -> bool:
        """Whether a request is about to be handed over: its streamer has been told the end.

        The streamer's consumer may get here before the thread that generates has returned.
        """
        streams = [request.info.stream for request in list(self._under_way.values())]
        return any(stream is not None and stream.closed for stream in streams)

    def _makes_room(self, age_s: float) -> bool:
        """Whether a request that ended so long ago is to give way to those under way."""
        return not self._awaited and self._giving_way.makes_room(age_s)

    def listening(self) -> bool:
        """Whether anyone would see a record made now."""
        if guard.tripped:
            return False
        if self._subscribers:
            return True
        return bool(guard.call("looking where telemetry goes", self.telemetry.active))

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Call *subscriber* with each record from now on; returns what ends it."""
        entry = (subscriber,)
        with self._changed:
            self._subscribers = (*self._subscribers, entry)

        def unsubscribe() -> None:
            with self._changed:
                self._subscribers = tuple(s for s in self._subscribers if s is not entry)

        return unsubscribe

    def submit(
        self,
        info: RequestInfo,
        marks: Marks,
        start_unix_ns: int,
        span: OpenSpan,
        request: Running | None = None,
    ) -> None:
        """Hand over a finished request, which is no longer under way; returns at once.

        Whoever takes the lock again after this waits for Python until the background thread lets
        go of it: up to 5 ms.
        """
        dropped = None
        with self._changed:
            self._under_way.pop(id(request), None)
            if len(self._jobs) >= MAX_WAITING:
                dropped = self._jobs.popleft()
            self._jobs.append(_Job(info, marks, start_unix_ns, span, time.monotonic()))
            self._wake()
        if dropped is not None:
            guard.call("dropping a request", dropped.span.abandon)
            guard.warn_once(
                "overflow",
                f"more than {MAX_WAITING} finished requests wait for export; "
                "the oldest are dropped. Is the collector reachable?",
            )

    def submit_steps(self, stretch: BatchStretch) -> None:
        """Hand over some steps of a scheduler; returns at once."""
        with self._changed:
            self._stretches.append(stretch)
            self._wake()

    def _wake(self) -> None:
        """Have the background thread look for work; the lock is held."""
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._work, name="llmtrace-pipeline", daemon=True
            )
            self._thread.start()
        self._changed.notify_all()

    def drain(self, timeout_s: float, *, hurry: bool = True) -> bool:
        """Wait until every finished request has been dealt with.

        Args:
            timeout_s: Longest wait, seconds.
            hurry: Give up waiting for streamers' consumers.

        Returns:
            False if time ran out.
        """
        if threading.current_thread() is self._thread:
            return True
        deadline = time.monotonic() + timeout_s
        self._end_orphans()
        with self._changed:
            self._hurrying += hurry
            self._awaited += 1
            self._changed.notify_all()
            try:
                while self._jobs or self._stretches or self._busy or self._returning():
                    left = deadline - time.monotonic()
                    if left <= 0 or (self._thread is not None and not self._thread.is_alive()):
                        return False
                    self._changed.wait(left)
            finally:
                self._hurrying -= hurry
                self._awaited -= 1
        return True

    def flush(self, timeout_s: float) -> bool:
        """Drain, then have telemetry exported; False if time ran out."""
        deadline = time.monotonic() + timeout_s
        drained = self.drain(timeout_s)
        self.telemetry.settle(deadline)
        return drained and time.monotonic() <= deadline

    def _work(self) -> None:
        while True:
            # In one expression: no name here keeps a finished request until the next one.
            guard.call("delivering a record", self._deliver, self._next())
            self._giving_way.done()
            with self._changed:
                self._busy = False
                self._changed.notify_all()

    def _next(self) -> _Job | BatchStretch:
        """Wait for a scheduler's steps, or for a request that nothing is to be waited for with.

        That is one that its device and its streamer's consumer are done with.
        """
        with self._changed:
            while True:
                look_again = []
                for index, job in enumerate(list(self._jobs)):  # a dying generator may add one
                    hurrying = bool(self._hurrying)
                    wait = guard.call(
                        "waiting for a request", job.waits, hurrying, self._makes_room
                    )
                    if wait is None:
                        del self._jobs[index]
                        self._busy = True
                        return job
                    look_again.append(wait)
                if self._stretches:
                    self._busy = True
                    return self._stretches.popleft()
                self._changed.wait(min(look_again, default=None))

    def _deliver(self, job: _Job | BatchStretch) -> None:
        if isinstance(job, BatchStretch):
            if self.listening():
                self.telemetry.emit_batch(build_batch(job))
            return
        if job.marks.device is not None:
            job.marks.device.read(job.marks)
        if job.info.stream is not None:
            job.info.stream.seen_ns = now()
        request = FinishedRequest(
            job.info, job.marks, job.start_unix_ns, job.span.trace_id, job.span.span_id
        )
        record = guard.call("building the record of a request", build_record, request)
        if record is None:
            guard.call("dropping a request", job.span.abandon)
            return
        for (subscriber,) in self._subscribers:
            guard.call_users("taking a record", subscriber, record)
        guard.call("emitting telemetry", self.telemetry.emit, record, job.info, job.span)
