"""Where a request reached this process: the SERVER span above, however far above.

A span knows its parent's ids only, and apps have spans of their own between their server's and
``generate()``. So the starts of SERVER spans are noted as they begin, by trace.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from opentelemetry.trace import Span, SpanKind

from llmtrace.locks import ForkSafeLock

MAX_TRACES = 4096
"""Traces whose server span is remembered; beyond that the oldest is forgotten."""

_starts: OrderedDict[int, int] = OrderedDict()
_lock = ForkSafeLock()


def server_start(parent: Span) -> int | None:
    """Return the start of the nearest SERVER span of *parent*'s trace in this process.

    Returns:
        Nanoseconds since the epoch, or None if there is none.
    """
    identity = parent.get_span_context()
    return _starts.get(identity.trace_id) if identity.is_valid else None


def install(wrap: Callable[[type, str, Callable[..., Any]], Any]) -> None:
    """Note the SERVER spans that the SDK's tracers start.

    Args:
        wrap: Puts a wrapper on a class's method, and takes it off again later.
    """
    from opentelemetry.sdk.trace import Tracer

    wrap(Tracer, "start_span", _started)


def _started(
    wrapped: Any,
    instance: Any,  # noqa: ARG001 - wrapt's shape
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    span = wrapped(*args, **kwargs)
    if getattr(span, "kind", None) is SpanKind.SERVER:
        _note(span)
    return span


def _note(span: Any) -> None:
    start = span.start_time
    if not isinstance(start, int):
        return
    with _lock:
        trace_id = span.get_span_context().trace_id
        _starts[trace_id] = start
        _starts.move_to_end(trace_id)
        if len(_starts) > MAX_TRACES:
            _starts.popitem(last=False)
