"""One request of a scheduler's batch, from its submission to its hand-over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from llmtrace.guard import guard
from llmtrace.known_findings import BATCH_STOPPED, PREEMPTED, REQUEST_ID_REUSED
from llmtrace.recording.pipeline import OpenSpan, Pipeline
from llmtrace.recording.recorder import Marks
from llmtrace.recording.request import RequestInfo
from llmtrace.recording.step_marks import SharedMarks, StepTimer
from llmtrace.recording.tokens import CANCELLED, ERROR, finish_reason
from llmtrace.timing.host import WallAnchor, now

if TYPE_CHECKING:
    from llmtrace.recording.batch import BatchStep

UNKNOWN_ERROR = "_OTHER"
"""What the conventions call an error whose type is not known."""


class States(Protocol):
    """Reads a scheduler's state of a request, whose prompt had *length* tokens."""

    def count(self, state: Any, length: int) -> int:
        """Return how many tokens have been generated."""

    def tokens(self, state: Any, length: int) -> list[int]:
        """Return them."""


class BatchedRequest:
    """A request whose forwards are shared with others.

    Its span is open while it runs, and is never the current one: who submits it goes on.
    """

    __slots__ = (
        "_done",
        "_last",
        "_length",
        "_limit",
        "_more_forwards",
        "_more_tokens",
        "_pipeline",
        "_states",
        "_token_forwards",
        "_tokens",
        "_unclaimed",
        "_wall",
        "context",
        "decode",
        "forwards",
        "info",
        "keeps_steps",
        "note_memory",
        "over",
        "position",
        "preemptions",
        "prefill_length",
        "shared",
        "span_id",
        "state",
        "stretch",
        "total",
        "trace_id",
    )

    def __init__(
        self,
        pipeline: Pipeline,
        info: RequestInfo,
        submitted: WallAnchor,
        context: Any,
        states: States,
        span: OpenSpan,
    ) -> None:
        self._pipeline = pipeline
        self.info = info
        self._wall = submitted
        self.context = context
        self._states = states
        self._length = info.input_length or 0
        self._limit = pipeline.config.max_step_spans
        self.trace_id, self.span_id = span.trace_id, span.span_id
        self._unclaimed = [span]
        self.forwards: list[BatchStep] = []
        self._tokens: list[BatchStep] = []
        self._token_forwards: list[int] = []
        self._done = 0
        """Forwards of which the tokens are out."""
        self._last: BatchStep | None = None
        self._more_forwards = self._more_tokens = 0
        self.state: Any = None
        """The scheduler's own state of it: another one after a preemption."""
        self.position = self.prefill_length = self.shared = self.total = self.preemptions = 0
        self.stretch: object = None
        """The stretch of steps that knows of it."""
        self.decode: Callable[[list[list[int]]], list[str]] | None = None
        """Makes text of ids, where that is to be recorded."""
        self.note_memory: Callable[[RequestInfo], None] | None = None
        """Notes the memory that is held when the request ends."""
        self.over = False
        self.keeps_steps = True
        """Whether single steps are kept, or only counted from now on."""
        self._adopt_server_span(span)
        pipeline.begin(self)

    def _adopt_server_span(self, span: OpenSpan) -> None:
        if self.info.queued_since_ns is None and span.queued_since_unix_ns is not None:
            waited = self._wall.wall_ns - span.queued_since_unix_ns
            self.info.queued_since_ns = self._wall.host_ns - waited

    def begin(self, state: Any, prefill_length: int, step: BatchStep) -> None:
        """The scheduler's *state* of this request is in a step for the first time."""
        if self.info.admitted_ns is None:
            self.info.admitted_ns = step.prepared_ns
        self.state = state
        self.prefill_length = prefill_length
        self.position, self.shared = self.shared, 0

    def fork(self, pipeline: Pipeline, shared: int) -> BatchedRequest | None:
        """Return a request of the same prompt, the first *shared* tokens of it in common."""
        info = replace(
            self.info,
            findings=list(self.info.findings),
            attributes=dict(self.info.attributes),
            stream=None,
            input_tokens_cached=shared or None,
        )
        child = start_batched(pipeline, info, self._wall, self.context, self._states)
        if child is not None:
            child.shared, child.decode = shared, self.decode
            child.note_memory = self.note_memory
            if shared:
                child._done = self._done  # noqa: SLF001 - one of its own
                child.forwards = self.forwards[: self._done]
        return child

    def advance(self, step: BatchStep) -> None:
        """*step* is over: count what it brought."""
        self._done += 1
        total = self._states.count(self.state, self._length)
        if total <= self.total:
            return
        if self.keeps_steps:
            self._tokens.append(step)
            self._token_forwards.append(self._done)
            self.keeps_steps = len(self._tokens) < self._limit
        else:
            self._more_tokens += total - self.total
            self._more_forwards += 1
            self._last = step
        self.total = total

    def finish(self, timer: StepTimer | None) -> None:
        """It has all its tokens."""
        info = self.info
        tokens = self._states.tokens(self.state, self._length)
        reason = finish_reason(tokens, info.eos_token_ids, info.parameters.max_tokens, stops=False)
        self._hand_over(reason, timer)

    def cancelled(self, timer: StepTimer | None) -> None:
        """It was given up by who made it: that is no error."""
        self._hand_over(CANCELLED, timer)

    def fail(self, error: str, timer: StepTimer | None) -> None:
        """It ends by an error, and keeps the tokens it got."""
        self.info.error = error
        self._hand_over(ERROR, timer)

    def left(self, error: str | None) -> None:
        """The loop ended without a word about it."""
        self.info.findings.append(BATCH_STOPPED)
        self.fail(error or UNKNOWN_ERROR, None)

    def replaced(self) -> None:
        """Another request came under the same id, so the scheduler forgot this one."""
        self.info.findings.append(REQUEST_ID_REUSED)
        self.fail(UNKNOWN_ERROR, None)

    def _hand_over(self, reason: str, timer: StepTimer | None) -> None:
        self.over = True
        try:
            span = self._unclaimed.pop()
        except IndexError:  # tracing was turned off meanwhile
            return
        try:
            info = self.info
            info.finish_reasons = (reason,)
            info.output_tokens_per_row = (self.total,)
            info.preemptions = self.preemptions
            if self.decode is not None and self.state is not None:
                tokens = self._states.tokens(self.state, self._length)
                info.output_text = guard.call("decoding", self.decode, [tokens])
            if self.note_memory is not None:
                guard.call("reading the device's memory", self.note_memory, info)
            if self.preemptions:
                info.findings.append(PREEMPTED)
            self._pipeline.submit(info, self._marks(timer), self._wall.wall_ns, span, self)
        finally:
            self._let_go()
            self._pipeline.leave(self)

    @property
    def in_prefill(self) -> bool:
        """Never: its prefill shares the scheduler's steps with others' decoding."""
        return False

    @property
    def awaits_device(self) -> bool:
        """Unknown: the scheduler prepares its next step meanwhile."""
        return False

    def abandon(self) -> None:
        """End without a record, from any thread: tracing is being turned off."""
        self.over = True
        try:
            span = self._unclaimed.pop()
        except IndexError:
            return
        span.abandon()
        self._pipeline.leave(self)

    def _let_go(self) -> None:
        self.forwards, self._tokens, self._last = [], [], None
        self.state = self.context = self.stretch = self.decode = None
        self.note_memory = None

    def _marks(self, timer: StepTimer | None) -> Marks:
        forwards = self.forwards[: self._done]
        tokens = self._tokens
        begun = [step.begun[0] if step.begun else step.prepared_ns for step in forwards]
        marks = Marks(
            start_ns=self._wall.host_ns,
            end_ns=now(),
            forward_starts=begun,
            forward_ends=[_ended(step, at) for step, at in zip(forwards, begun, strict=True)],
            tokens=[step.synced_ns or 0 for step in tokens],
            token_forwards=self._token_forwards,
            more_tokens=self._more_tokens,
            more_forwards=self._more_forwards,
            last_mark=self._last.synced_ns if self._last else None,
        )
        if timer is not None:
            marks.device = SharedMarks(timer, forwards, tokens, self._last)
        return marks


def _ended(step: BatchStep, begun: int) -> int:
    """Return when a forward ended; where only its tokens were seen, when they were there."""
    return step.ended[0] if step.ended else step.synced_ns or begun


def start_batched(
    pipeline: Pipeline,
    info: RequestInfo,
    submitted: WallAnchor,
    context: Any,
    states: States,
) -> BatchedRequest | None:
    """Start a request of a batch, or return None where it must not be traced.

    Args:
        pipeline: Takes the request when it has ended.
        info: What is known of it.
        submitted: When it was submitted.
        context: The telemetry context it belongs to; None for the current one.
        states: Reads the scheduler's state of the request.
    """
    span = pipeline.telemetry.open(info, submitted.wall_ns, context)
    if span is None:
        return None
    span.leave()
    return BatchedRequest(pipeline, info, submitted, context, states, span)
