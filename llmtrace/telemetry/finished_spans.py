"""Spans that are over when they are written: those of a request's steps, one or two a token."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Tracer

from llmtrace.guard import guard

Write = Callable[[str, int, int, dict[str, Any]], None]
"""Name, start and end in nanoseconds since the epoch, attributes, which are the span's own then."""


def writer(tracer: Tracer, context: Context) -> Write:
    """Return what writes finished spans under the span of *context*."""
    if type(tracer).__module__ == "opentelemetry.sdk.trace":
        from llmtrace.telemetry.direct_spans import direct, goes_unnoticed

        parent = trace.get_current_span(context).get_span_context()
        if goes_unnoticed(tracer, parent):
            return partial(past_processors, direct(tracer, parent))

    def live(name: str, start_ns: int, end_ns: int, attributes: dict[str, Any]) -> None:
        span = tracer.start_span(name, context=context, attributes=attributes, start_time=start_ns)
        span.end(end_ns)

    return partial(past_processors, live)


def past_processors(make: Callable[..., None], *args: Any) -> None:
    """Make or end a span; samplers and span processors are the application's, and may raise."""
    try:
        make(*args)
    except Exception as error:  # noqa: BLE001 - the other spans go on
        guard.warn_once(
            "span processors", "a sampler or span processor raised, so spans are missing", error
        )
