"""Spans that are over when they are written: those of a request's steps, one or two a token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Tracer

Write = Callable[[str, int, int, dict[str, Any]], None]
"""Name, start and end in nanoseconds since the epoch, attributes, which are the span's own then."""


def writer(tracer: Tracer, context: Context) -> Write:
    """Return what writes finished spans under the span of *context*."""
    if type(tracer).__module__ == "opentelemetry.sdk.trace":
        from llmtrace.telemetry.direct_spans import direct, goes_unnoticed

        parent = trace.get_current_span(context).get_span_context()
        if goes_unnoticed(tracer, parent):
            return direct(tracer, parent)

    def write(name: str, start_ns: int, end_ns: int, attributes: dict[str, Any]) -> None:
        span = tracer.start_span(name, context=context, attributes=attributes, start_time=start_ns)
        span.end(end_ns)

    return write
