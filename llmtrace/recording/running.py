"""A request from its start to its hand-over: what ``generate()`` and ``request()`` share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llmtrace.guard import guard
from llmtrace.recording.active import active, latest
from llmtrace.recording.device_recorder import DeviceRecorder, SeveralDevicesRecorder
from llmtrace.recording.pipeline import OpenSpan, Pipeline
from llmtrace.recording.recorder import OVER, Recorder
from llmtrace.recording.request import RequestInfo
from llmtrace.recording.tokens import CANCELLED, ERROR
from llmtrace.timing.device import cuda_timers, timer_for
from llmtrace.timing.host import WallAnchor, anchor, now

_NOT_FAILURES = (GeneratorExit,)
"""Ways of leaving that are not errors of the request."""

_CANCELLATIONS = frozenset({"_GenerationCancelled"})
"""What ``transformers serve`` raises, by its name, out of a streamer whose reader has left."""


def error_type(error: BaseException) -> str | None:
    """Return ``module.Name`` of an error, or None if leaving this way is no failure."""
    if isinstance(error, _NOT_FAILURES) or _cancels(error):
        return None
    if isinstance(error, SystemExit) and not error.code:
        return None
    kind = type(error)
    if kind.__module__ == "builtins":
        return kind.__qualname__
    return f"{kind.__module__}.{kind.__qualname__}"


def _cancels(error: BaseException) -> bool:
    """Whether *error* says that nobody wants the rest."""
    return type(error).__name__ in _CANCELLATIONS


class RunningRequest:
    """One request under way. Starts on construction; ``close`` hands it over, once."""

    def __init__(
        self,
        pipeline: Pipeline,
        info: RequestInfo,
        model: Any,
        device: Any,
        context: Any | None = None,
        entered: WallAnchor | None = None,
        *,
        here: bool = True,
    ) -> None:
        self.pipeline = pipeline
        self.info = info
        info.peaks = pipeline.peaks()
        self._end_ns: int | None = None
        self._wall = entered or anchor()
        self.recorder = self._recorder(model, device)
        span = pipeline.telemetry.open(info, self._wall.wall_ns, context, here=here)
        if span is None:
            raise _NotTraced
        self._span = span
        self._unclaimed = [span]
        """The span, until somebody ends it; ``pop`` is atomic, so only one does."""
        self._adopt_server_span(span)
        self._here = here
        if here:
            self.recorder.outer = active.get()
            active.set(self.recorder)
        pipeline.begin(self)

    def _recorder(self, model: Any, device: Any) -> Recorder:
        limit = self.pipeline.config.max_step_spans
        timer = guard.call("setting up the device clock", timer_for, device)
        if timer is None:
            return Recorder(model, limit, self._wall.host_ns)
        devices = self.info.devices
        others = guard.call("setting up the devices' clocks", cuda_timers, devices)
        if not others:
            return DeviceRecorder(model, limit, self._wall.host_ns, timer)
        recorder = SeveralDevicesRecorder(model, limit, self._wall.host_ns, timer)
        recorder.timers = others
        return recorder

    def _adopt_server_span(self, span: OpenSpan) -> None:
        if self.info.queued_since_ns is None and span.queued_since_unix_ns is not None:
            waited = self._wall.wall_ns - span.queued_since_unix_ns
            self.info.queued_since_ns = self._wall.host_ns - waited

    def adopt(self, model: Any) -> Recorder:
        """Record *model*, the first one that an own loop has called, with its device's clock."""
        recorder = self.recorder
        recorder.model = model
        timer = timer_for(getattr(model, "device", None))
        if timer is not None and not recorder.tokens:
            recorder = DeviceRecorder(model, recorder.limit, recorder.start_ns, timer)
            recorder.own_loop = True
            recorder.outer = self.recorder.outer
            if self.innermost:
                active.set(recorder)
            self.recorder = recorder
        return recorder

    def ended(self) -> None:
        """The request has returned: what follows is our own reading of it."""
        if self._end_ns is None:
            self._end_ns = now()

    @property
    def innermost(self) -> bool:
        """Whether this is the request that runs here."""
        return active.get() is self.recorder

    @property
    def in_prefill(self) -> bool:
        """Whether its first forward has begun and no token has been selected."""
        return bool(self.recorder.forward_starts) and not self.recorder.tokens

    @property
    def awaits_device(self) -> bool:
        """Whether all it does is wait for its device."""
        return self.recorder.awaits_device()

    def enter_span(self) -> Callable[[], None]:
        """Make the request's span the current one here; returns what undoes it."""
        return self._span.enter()

    def leave(self) -> None:
        """Stop being the request that runs here.

        Blocks need not end in the order in which they began, nor where they began: what takes
        over is the nearest one around this that has not ended.
        """
        if self._here and self.innermost:
            outer = self.recorder.outer
            while outer is not None and outer.over:
                outer = outer.outer
            active.set(outer)
            latest.set(self._span.link)
        self._span.leave()

    def close(self, error: BaseException | None = None) -> None:
        """Hand the request over; later calls do nothing."""
        self.ended()
        self.leave()
        span = self._claim()
        if span is None:
            return
        try:
            self._hand_over(span, error)
        finally:
            self.pipeline.leave(self)

    def _hand_over(self, span: OpenSpan, error: BaseException | None) -> None:
        info = self.info
        if error is not None:
            info.error = error_type(error)
            reason = CANCELLED if _cancels(error) else ERROR
            info.finish_reasons = (reason,) * max(len(info.finish_reasons), info.batch_size or 1)
        if self.recorder.captured:
            info.cold_reasons = (*info.cold_reasons, "graph_capture")
        marks = self.recorder.close(self._end_ns or now())
        self._let_go()
        self.pipeline.submit(info, marks, self._wall.wall_ns, span, self)

    def close_as_group(self, name: str | None) -> None:
        """End a block that only groups the requests made inside it."""
        self.ended()
        self.leave()
        span = self._claim()
        if span is not None:
            span.end_as_group(name, self._wall.wall(self._end_ns or now()))
        self._let_go()
        self.pipeline.leave(self)

    def abandon(self) -> None:
        """End without a record, from any thread: tracing is being turned off meanwhile."""
        span = self._claim()
        if span is not None:
            self._let_go()
            span.abandon()
            self.pipeline.leave(self)

    def _claim(self) -> OpenSpan | None:
        """Return the span to end, to the first who asks."""
        try:
            return self._unclaimed.pop()
        except IndexError:
            return None

    def _let_go(self) -> None:
        """Keep no tensor alive, and no cycle that only Python's collector would end."""
        recorder = self.recorder
        recorder.model = OVER
        recorder.cache = recorder.ids = recorder.first_call = recorder.adopt = None


class _NotTraced(Exception):  # noqa: N818 - no error: it says that a request is not wanted
    """Telemetry is suppressed here, so the request is not recorded."""


def start_request(
    pipeline: Pipeline,
    info: RequestInfo,
    model: Any,
    device: Any,
    context: Any | None = None,
    entered: WallAnchor | None = None,
    *,
    here: bool = True,
) -> RunningRequest | None:
    """Start a request, or return None where it must not be traced.

    Args:
        pipeline: Takes the request when it has ended.
        info: What is known of it.
        model: The model whose calls are its forwards; None for the first one called.
        device: The device whose clock is used.
        context: The telemetry context it belongs to; None for the current one.
        entered: When it began; None for now.
        here: Whether it is what runs here from now on; else only where it is made active.
    """
    try:
        return RunningRequest(pipeline, info, model, device, context, entered, here=here)
    except _NotTraced:
        return None
