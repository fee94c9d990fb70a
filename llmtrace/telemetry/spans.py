"""A record's spans: the request's, the prefill's, the first token's, each decode step's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer

from llmtrace import names
from llmtrace.config import Steps
from llmtrace.recording.request import RequestInfo
from llmtrace.records import RequestRecord
from llmtrace.telemetry.attributes import (
    content_attributes,
    first_token_attributes,
    request_attributes,
    start_attributes,
    step_attributes,
)
from llmtrace.telemetry.finished_spans import past_processors, writer
from llmtrace.telemetry.rank_spans import rank_context, rank_ids
from llmtrace.telemetry.server_spans import server_start
from llmtrace.telemetry.sound_text import sound

Rest = Callable[[int], None]
"""Called with the number of spans built so far; may wait."""


_PLACE = otel_context.create_key("llmtrace-request")


@dataclass(slots=True)
class _Place:
    """Stands in the contexts of a request's span; refers to none of them, so it makes no cycle."""

    span: Span
    outer: Context
    left: bool = False

    def left_behind(self, context: Context) -> bool:
        """Whether *context* is no more than the one of a request that has ended."""
        return self.left and trace.get_current_span(context) is self.span


class LiveSpan:
    """A request's span, current while the request runs *here*, or where it is entered."""

    def __init__(
        self,
        tracer: Tracer,
        info: RequestInfo,
        start_unix_ns: int,
        context: Any | None,
        *,
        here: bool = True,
    ) -> None:
        parent = trace.get_current_span(context)
        self.queued_since_unix_ns = server_start(parent)
        context = rank_context(info, context)
        with rank_ids(tracer, info, context):
            self.span = tracer.start_span(
                span_name(info.operation, sound(info.model.name)),
                context=context,
                kind=SpanKind.INTERNAL,
                attributes={} if info.own_loop else start_attributes(info),
                start_time=start_unix_ns,
            )
        self._place = _Place(self.span, otel_context.get_current())
        marked = otel_context.set_value(_PLACE, self._place, context)
        self.context = trace.set_span_in_context(self.span, marked)
        self._here = here
        if here:
            otel_context.attach(self.context)
        self.link = identity = self.span.get_span_context()
        self.trace_id = f"{identity.trace_id:032x}" if identity.is_valid else None
        self.span_id = f"{identity.span_id:016x}" if identity.is_valid else None

    def enter(self) -> Callable[[], None]:
        """Make this the current span here; returns what undoes it."""
        outer = otel_context.get_current()
        otel_context.attach(self.context)

        def leave() -> None:
            if otel_context.get_current() is self.context:
                otel_context.attach(outer)

        return leave

    def leave(self) -> None:
        """Stop being the current span.

        What takes over is the context around it; not one that another request has left behind
        since, as requests need not end in the order in which they began.
        """
        if self._place.left:
            return
        self._place.left = True
        if self._here and otel_context.get_current() is self.context:
            outer = self._place.outer
            while isinstance(place := outer.get(_PLACE), _Place) and place.left_behind(outer):
                outer = place.outer
            # Attached, not detached by token: that would be refused in another context.
            otel_context.attach(outer)


def span_name(operation: str, model: str) -> str:
    """Return the request span's name."""
    return f"{operation} {model}"


def write_spans(
    tracer: Tracer,
    live: LiveSpan,
    record: RequestRecord,
    info: RequestInfo,
    steps: Steps,
    rest: Rest,
) -> None:
    """Emit the steps of *record* and end its request span.

    The request's span ends last: whatever a full queue drops, it drops before it.
    """
    span = live.span
    if not span.is_recording():
        return
    # An own loop's model is known only once it has been called.
    span.update_name(info.span_name or span_name(record.operation, record.model))
    span.set_attributes(start_attributes(info))
    span.set_attributes(request_attributes(record))
    span.set_attributes(content_attributes(info))
    if record.error is not None:
        span.set_status(Status(StatusCode.ERROR))
    if steps == "spans":
        _write_steps(tracer, live, record, rest)
    rest(0)
    past_processors(span.end, record.start_unix_ns + round(record.duration_s * 1e9))


def write_group(live: LiveSpan, name: str | None, end_unix_ns: int) -> None:
    """End the span of a ``request()`` block whose requests are the ``generate()`` calls in it."""
    live.span.update_name(name or names.SPAN_GROUP)
    live.span.end(end_unix_ns)


def _write_steps(tracer: Tracer, live: LiveSpan, record: RequestRecord, rest: Rest) -> None:
    origin = record.start_unix_ns
    write_span = writer(tracer, live.context)
    written = count(1)

    def write(name: str, start_s: float, end_s: float, attributes: dict[str, Any]) -> None:
        start_ns, end_ns = origin + round(start_s * 1e9), origin + round(end_s * 1e9)
        write_span(name, start_ns, end_ns, attributes)
        rest(next(written))

    for step in record.steps:
        attributes = step_attributes(step)
        if step.index:
            write(names.SPAN_DECODE, step.start_s, step.end_s, attributes)
        else:
            if step.forward_start_s is not None and step.forward_end_s is not None:
                write(names.SPAN_PREFILL, step.forward_start_s, step.forward_end_s, attributes)
            write(names.SPAN_FIRST_TOKEN, step.start_s, step.end_s, first_token_attributes(step))
