"""Many requests in one loop: what is kept of a scheduler's steps and of the requests in them.

A step is marked once, for all who take part in it; a request keeps which steps those were. So a
step costs two or three clock reads, and each request in it two appends. No lock, no OpenTelemetry
and no wait: a request is handed over once, when it ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from llmtrace.recording.batch_build import BatchStretch
from llmtrace.recording.batched_request import BatchedRequest
from llmtrace.recording.pipeline import Pipeline
from llmtrace.recording.step_marks import StepTimer, host_and_mark
from llmtrace.recording.stream import StreamTimes
from llmtrace.records import ModelFacts
from llmtrace.timing.host import anchor, now

MAX_STRETCH_STEPS = 256
"""Steps after which a stretch of them is handed over."""

MAX_STRETCH_NS = 5_000_000_000
"""The same, in time."""

MAX_DELIVERIES = 4096
"""Streaming requests whose first delivery is waited for; beyond that the oldest is forgotten."""


class BatchStep:
    """One step of a scheduler, host clock, and its marks on the device where there is one."""

    __slots__ = (
        "active",
        "begun",
        "cache_usage",
        "decode_tokens",
        "device",
        "ended",
        "items",
        "prefill_tokens",
        "prepared_ns",
        "requests",
        "size",
        "synced_ns",
        "waiting",
    )

    def __init__(self, prepared_ns: int, items: Sequence[Any]) -> None:
        self.prepared_ns = prepared_ns
        """The scheduler has chosen the step's requests."""
        self.items: Sequence[Any] | None = items
        """Its list of them, by which the step is known until it is over."""
        self.size = len(items)
        self.requests: list[BatchedRequest] = []
        """Those of them that are traced."""
        self.begun: tuple[int, Any] | None = None
        """The forward was called, and the mark on the device's stream."""
        self.ended: tuple[int, Any] | None = None
        """It returned."""
        self.synced_ns: int | None = None
        """The step's tokens were on the host."""
        self.device: tuple[int, int, int] | None = None
        """Begin and end on the device by the host's clock, and the error."""
        self.active = self.waiting = self.prefill_tokens = self.decode_tokens = 0
        self.cache_usage: float | None = None


class Batch:
    """The requests and steps of one scheduler.

    Requests are added by any thread; everything else happens in the scheduler's own.
    """

    def __init__(self, pipeline: Pipeline, model: ModelFacts, cold: tuple[str, ...]) -> None:
        self._pipeline = pipeline
        self.model = model
        self.cold = cold
        """What requests pay for that are submitted before the first step is done."""
        self.requests: dict[str, BatchedRequest] = {}
        """Requests that have not ended, by the scheduler's id of them."""
        self.timer: StepTimer | None = None
        self.last: Sequence[Any] | None = None
        """The scheduler's list of what is in the latest step."""
        self._under_way: deque[BatchStep] = deque()
        """Steps that were prepared and are not over, oldest first."""
        self.current: BatchStep | None = None
        """The step whose tokens are being given out."""
        self.giving = False
        """Whether tokens are being given out."""
        self.steps = 0
        self.fatal: str | None = None
        """Type of the error that ended the loop."""
        self._stretch = BatchStretch(model)
        self._deliveries: dict[str, StreamTimes] = {}

    def add(self, key: str, request: BatchedRequest) -> None:
        """A request was submitted."""
        before = self.requests.pop(key, None)
        if before is not None:
            before.replaced()
        self.requests[key] = request
        if request.info.stream is not None:
            if len(self._deliveries) >= MAX_DELIVERIES:
                self._deliveries.pop(next(iter(self._deliveries)), None)
            self._deliveries[key] = request.info.stream

    def delivered(self, key: str) -> None:
        """Somebody took an output of a request."""
        times = self._deliveries.pop(key, None)
        if times is not None:
            times.delivered_ns = now()
            times.ended = True

    def found(self, key: str, tokens: int) -> None:
        """The first *tokens* of a request that is about to be prefilled are in the cache."""
        request = self.requests.get(key)
        if request is not None:
            request.shared = tokens

    def prepared(self, items: Sequence[Any]) -> BatchStep:
        """The scheduler has chosen the requests of its next step."""
        self.last = items
        step = BatchStep(now(), items)
        self._under_way.append(step)
        return step

    def take_part(self, request: BatchedRequest, step: BatchStep, position: int) -> None:
        """*request* is in *step*, which brings it to *position* in its sequence."""
        tokens = position - request.position
        if request.position < request.prefill_length:
            step.prefill_tokens += tokens
        else:
            step.decode_tokens += tokens
        request.position = position
        step.requests.append(request)
        if request.keeps_steps:
            request.forwards.append(step)
        if request.stretch is not self._stretch:
            request.stretch = self._stretch
            self._stretch.spans.append((request.trace_id, request.span_id))

    def forward_started(self) -> None:
        """The model is about to be called for the step prepared last."""
        step = self._under_way[-1] if self._under_way else None
        if step is not None and step.begun is None:
            step.begun = host_and_mark(self.timer, now())

    def forward_ended(self) -> None:
        """It has returned."""
        step = self._under_way[-1] if self._under_way else None
        if step is not None and step.begun is not None and step.ended is None:
            step.ended = host_and_mark(self.timer, now())

    def fetched(self, items: Sequence[Any]) -> None:
        """A step's tokens are on the host."""
        while self._under_way and self.current is None:
            oldest = self._under_way.popleft()
            if oldest.items is items:
                self.current = oldest
            elif self.timer is not None:  # it was never given out: we were off meanwhile
                self.timer.release([oldest])
        if self.current is not None and self.current.synced_ns is None:
            self.current.synced_ns = now()

    def given_out(self) -> None:
        """Every request has its token of the step."""
        step, self.current = self.current, None
        self.giving = False
        if step is None:
            return
        self.cold = ()
        self.steps += 1
        for request in step.requests:
            if not request.over:
                request.advance(step)
        step.requests, step.items = [], None
        stretch = self._stretch
        stretch.steps.append(step)
        first = stretch.steps[0].prepared_ns
        if (
            len(stretch.steps) >= MAX_STRETCH_STEPS
            or step.prepared_ns - first >= MAX_STRETCH_NS
            or not self.requests
        ):
            self.hand_over_steps()

    def hand_over_steps(self) -> None:
        """Give the finished steps to the background thread."""
        stretch = self._stretch
        if not stretch.steps:
            return
        stretch.anchor = anchor()
        stretch.timer = self.timer
        stretch.before = self.steps - len(stretch.steps)
        self._stretch = BatchStretch(self.model)
        self._pipeline.submit_steps(stretch)

    def finish(self, key: str) -> None:
        """The scheduler says that a request has all its tokens."""
        request = self.requests.pop(key, None)
        if request is not None:
            if self.current is not None and request in self.current.requests:
                request.advance(self.current)
            request.finish(self.timer)

    def cancel(self, key: str) -> None:
        """A request was given up by who made it."""
        request = self.requests.pop(key, None)
        if request is not None:
            request.cancelled(self.timer)

    def fail(self, key: str, error: str) -> None:
        """A request ends by an error, of type *error*."""
        request = self.requests.pop(key, None)
        if request is not None:
            request.fail(error, self.timer)

    def stopped(self) -> None:
        """The loop has ended: whoever is left gets nothing more."""
        self.hand_over_steps()
        if self.timer is not None:
            self.timer.release(self._under_way)
        self._under_way.clear()
        self.current = self.last = self.timer = None
        self.giving = False
        fatal, self.fatal = self.fatal, None  # it may be started again
        for key in list(self.requests):
            request = self.requests.pop(key, None)
            if request is not None:
                request.left(fatal)
