"""The door between recording and OpenTelemetry."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace import SpanContext

from llmtrace import names
from llmtrace.config import Config
from llmtrace.guard import guard
from llmtrace.recording.pipeline import OpenSpan
from llmtrace.recording.request import RequestInfo
from llmtrace.records import BatchRecord, RequestRecord
from llmtrace.telemetry.batches import count_batch, write_batch
from llmtrace.telemetry.destination import Destination, Router
from llmtrace.telemetry.errands import Errands
from llmtrace.telemetry.metrics import labels_of
from llmtrace.telemetry.span_queues import most_unflushed
from llmtrace.telemetry.spans import LiveSpan, write_group, write_spans

SPANS_AT_ONCE = 16
"""Some 0.1 ms of work; then Python is left to the requests under way."""

_SUPPRESS_KEY = getattr(otel_context, "_SUPPRESS_INSTRUMENTATION_KEY", None)


class _Opened(LiveSpan):
    """A live span that knows where it was opened."""

    def __init__(
        self,
        where: Destination,
        info: RequestInfo,
        start_unix_ns: int,
        context: Any | None,
        *,
        here: bool,
    ) -> None:
        tracer = where.tracer or trace.NoOpTracer()
        super().__init__(tracer, info, start_unix_ns, context, here=here)
        self.where = where
        self.labels = labels_of(info.operation, info.model.name)
        if where.metrics is not None:
            guard.call("counting a request", where.metrics.started, self.labels)

    def abandon(self) -> None:
        """End without a record."""
        self.span.end()
        if self.where.metrics is not None:
            self.where.metrics.abandoned(self.labels)

    def end_as_group(self, name: str | None, end_unix_ns: int) -> None:
        """End as a plain span around the requests made inside it."""
        write_group(self, name, end_unix_ns)
        if self.where.metrics is not None:
            guard.call("uncounting a block", self.where.metrics.abandoned, self.labels)


class Emitter:
    """Opens spans in the request's thread; everything else happens in the background thread."""

    def __init__(self, router: Router, config: Config) -> None:
        self.router = router
        self.config = config
        self._unflushed: Counter[int] = Counter()
        """Spans written to each provider since it was last flushed."""
        self.errands = Errands()
        self.complaint: str | None = None
        """What is wrong with the environment's settings: said once there is a request."""
        self.pause: Callable[[], None] = lambda: None
        """Called between two pieces of work: Python is left to the requests under way."""
        self._dirty: dict[int, Any] = {}
        """Providers that were given spans since they were last flushed."""

    def active(self) -> bool:
        """Whether a record would go anywhere, and telemetry is not suppressed here."""
        return self.router.current().exists and not self._suppressed()

    def here(self) -> Any | None:
        """Return the current context if it holds a span, or the wish not to be traced."""
        context = otel_context.get_current()
        held = trace.get_current_span(context).get_span_context().is_valid
        return context if held or self._suppressed() else None

    def key(self, context: Any | None) -> object | None:
        """Return the identity of the span of *context*, or of the current one."""
        identity = trace.get_current_span(context).get_span_context()
        return (identity.trace_id, identity.span_id) if identity.is_valid else None

    def open(
        self, info: RequestInfo, start_unix_ns: int, context: Any | None, *, here: bool = True
    ) -> OpenSpan | None:
        """Start a request's span; None where instrumentation is suppressed."""
        if self._suppressed() or self._suppressed(context):
            return None
        if self.complaint is not None:
            guard.warn_once("environment", self.complaint)
        return _Opened(self.router.current(), info, start_unix_ns, context, here=here)

    def emit(self, record: RequestRecord, info: RequestInfo, span: OpenSpan) -> None:
        """Write the spans and metrics of *record*."""
        if not isinstance(span, _Opened):
            return
        where = span.where
        self.errands.start()
        if where.tracer is not None:
            self._dirty[id(where.tracer_provider)] = where.tracer_provider
            guard.call(
                "writing spans",
                write_spans,
                where.tracer,
                span,
                record,
                info,
                self.config.steps,
                self._rest(where.tracer_provider),
            )
        if where.metrics is not None:
            guard.call(
                "recording metrics", where.metrics.finished, record, span.labels, span.context
            )
        if where.file is not None:
            self._flush(where.tracer_provider)

    def emit_batch(self, record: BatchRecord) -> None:
        """Write the spans and metrics of a scheduler's steps."""
        where = self.router.current()
        if where.tracer is not None:
            self._dirty[id(where.tracer_provider)] = where.tracer_provider
            rest = self._rest(where.tracer_provider)
            guard.call(
                "writing a batch's spans",
                write_batch,
                where.tracer,
                record,
                self.config.steps,
                rest,
            )
        if where.metrics is not None:
            guard.call("counting a batch", count_batch, where.metrics, record)
        if where.file is not None:
            self._flush(where.tracer_provider)

    def tokenized(self, start_unix_ns: int, end_unix_ns: int) -> None:
        """Emit a ``tokenize`` span under the current span, if that is recorded."""
        tracer = self.router.current().tracer
        if tracer is None or not trace.get_current_span().is_recording() or self._suppressed():
            return
        tracer.start_span(names.SPAN_TOKENIZE, start_time=start_unix_ns).end(end_unix_ns)

    def postprocessed(
        self, start_unix_ns: int, end_unix_ns: int, request: SpanContext | None
    ) -> None:
        """Emit a ``postprocess`` span under the current span; else under *request*'s."""
        tracer = self.router.current().tracer
        parent = trace.get_current_span()
        if not parent.is_recording() and request is not None and request.is_valid:
            parent = trace.NonRecordingSpan(request)
        elif not parent.is_recording():
            return
        if tracer is None or self._suppressed():
            return
        context = trace.set_span_in_context(parent)
        span = tracer.start_span(names.SPAN_POSTPROCESS, context, start_time=start_unix_ns)
        span.end(end_unix_ns)

    def settle(self, deadline: float) -> None:
        """Export what was emitted, until *deadline*; an unreachable collector is given up."""
        providers = list(self._dirty.values())
        self._dirty.clear()
        metering = self.router.latest().meter_provider
        if metering is not None:
            providers.append(metering)
        if not providers:
            return

        def flush_all() -> None:
            for provider in providers:
                self._flush(provider)

        self.errands.run(flush_all, max(0.0, deadline - time.monotonic()))

    def _rest(self, provider: Any) -> Callable[[int], None]:
        most = most_unflushed(provider)

        def rest(count: int) -> None:
            if count % SPANS_AT_ONCE == 0:
                self.pause()
            # Counted over all requests: many short ones fill a queue as a long one does.
            self._unflushed[id(provider)] += 1
            if self._unflushed[id(provider)] >= most:
                self._flush(provider)

        return rest

    def _flush(self, provider: Any) -> None:
        self._unflushed.pop(id(provider), None)
        flush = getattr(provider, "force_flush", None)
        if flush is not None:
            guard.call("flushing telemetry", flush, 5_000)

    def _suppressed(self, context: Any | None = None) -> bool:
        if otel_context.get_value("suppress_instrumentation", context):
            return True
        return bool(_SUPPRESS_KEY and otel_context.get_value(_SUPPRESS_KEY, context))
