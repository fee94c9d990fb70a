"""Finished spans handed to the SDK's span processors, without a tracer.

A live span costs 12 us of Python, most of it for what a finished one never needs: a lock, a
sampler's question that its parent has answered, a start apart from its end. While other requests
run, that is their time. So where nobody could tell the difference, the processors are given the
finished span at once, for 2 to 3 us.
"""

from __future__ import annotations

from pathlib import Path
from types import FunctionType
from typing import Any

from opentelemetry.sdk import trace as sdk
from opentelemetry.sdk.trace import (
    ReadableSpan,
    SpanProcessor,
    SynchronousMultiSpanProcessor,
    Tracer,
)
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased
from opentelemetry.trace import SpanContext

from llmtrace.telemetry.finished_spans import Write

MOST_ATTRIBUTES = 32
"""Of a span written here; a limit below that has to be applied by the SDK."""

_SDK = str(Path(sdk.__file__).parent)
_BEFORE_THE_END = ("on_start", "_on_ending")


def _own_methods(*processors: type) -> set[Any]:
    """Return what the SDK itself has them do before a span's end, None where that is nothing."""
    methods = {getattr(kind, name, None) for kind in processors for name in _BEFORE_THE_END}
    return {method for method in methods if method is None or _is_of_the_sdk(method)}


def _is_of_the_sdk(method: Any) -> bool:
    """Whether nobody has put another function in its place."""
    return type(method) is FunctionType and method.__code__.co_filename.startswith(_SDK)


_NOTHING_DONE = _own_methods(SpanProcessor, BatchSpanProcessor, SimpleSpanProcessor)
"""What span processors have that wait for a span's end."""
_PASSED_ON = _own_methods(SynchronousMultiSpanProcessor)


def direct(tracer: Any, parent: SpanContext) -> Write:
    """Return what gives finished spans to the span processors of *tracer*."""
    span_id = tracer.id_generator.generate_span_id
    of_all: dict[str, Any] = {
        "parent": parent,
        "resource": tracer.resource,
        "instrumentation_info": tracer.instrumentation_info,
        "instrumentation_scope": tracer._instrumentation_scope,  # noqa: SLF001
    }
    on_end = tracer.span_processor.on_end
    trace_id, flags, state = parent.trace_id, parent.trace_flags, parent.trace_state

    def write(name: str, start_ns: int, end_ns: int, attributes: dict[str, Any]) -> None:
        identity = SpanContext(trace_id, span_id(), False, flags, state)  # noqa: FBT003
        on_end(
            ReadableSpan(
                name,
                identity,
                attributes=attributes,
                start_time=start_ns,
                end_time=end_ns,
                **of_all,
            )
        )

    return write


def goes_unnoticed(tracer: Any, parent: SpanContext) -> bool:
    """Whether nobody could tell a span under *parent* from one that *tracer* makes."""
    try:
        return (
            type(tracer) is Tracer
            and _starts_spans_itself()
            and parent.trace_flags.sampled
            and _samples_children(tracer.sampler)
            and _only_looks_at_ends(tracer.span_processor)
            and _limits_nothing(tracer._span_limits)  # noqa: SLF001
            and _counts_nothing(tracer)
            and _is_enabled(tracer)
        )
    except AttributeError:  # another release of the SDK
        return False


def _starts_spans_itself() -> bool:
    """Whether nobody but us is around the SDK's way of starting a span."""
    start = vars(Tracer)["start_span"]
    within = getattr(start, "__wrapped__", start)
    return _is_of_the_sdk(within)


def _counts_nothing(tracer: Any) -> bool:
    """Whether the SDK does not count spans: 1.40 and 1.41 always do, later ones where asked to."""
    counts = getattr(tracer, "_tracer_metrics", None)
    return counts is None or type(counts).__name__ == "NoOpTracerMetrics"


def _is_enabled(tracer: Any) -> bool:
    """Whether the tracer has not been turned off, which newer releases can at any time."""
    asked = getattr(tracer, "_is_enabled", None)
    return asked is None or bool(asked())


def _samples_children(sampler: Any) -> bool:
    """Whether every child of a sampled span is sampled, and nothing is added to it."""
    if _function(sampler.should_sample) is ParentBased.should_sample:
        sampler = sampler._local_parent_sampled  # noqa: SLF001
    return sampler is ALWAYS_ON


def _only_looks_at_ends(processor: Any) -> bool:
    # Of the instance: libraries give a processor an ``on_start`` of their own.
    does = {_function(getattr(processor, name, None)) for name in _BEFORE_THE_END}
    if type(processor) is SynchronousMultiSpanProcessor:
        inner = processor._span_processors  # noqa: SLF001
        return does <= _PASSED_ON and all(map(_only_looks_at_ends, inner))
    return does <= _NOTHING_DONE


def _function(method: Any) -> Any:
    return getattr(method, "__func__", method)


def _limits_nothing(limits: Any) -> bool:
    most = limits.max_span_attributes
    return limits.max_span_attribute_length is None and (most is None or most >= MOST_ATTRIBUTES)
