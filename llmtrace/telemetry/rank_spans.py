"""One trace for one request on several ranks, without a word between them.

The first rank's request span is the root, with ids that every rank works out for itself; the
others' request spans are its children.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, Tracer

from llmtrace.recording.request import RequestInfo

_ids: ContextVar[tuple[int, int] | None] = ContextVar("llmtrace_rank_ids", default=None)


def rank_context(info: RequestInfo, context: Context | None) -> Context | None:
    """Return the context for a request's span: under the first rank's span, for other ranks."""
    if not _joins(info, context) or info.first_rank:
        return context
    trace_id, span_id = _common_ids(info)
    first = SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(1))
    return trace.set_span_in_context(NonRecordingSpan(first), context)


@contextmanager
def rank_ids(tracer: Tracer, info: RequestInfo, context: Context | None) -> Iterator[None]:
    """Give a span that is started inside the ids that all ranks expect of the first's."""
    if not _joins(info, context) or not info.first_rank or not _prepared(tracer):
        yield
        return
    token = _ids.set(_common_ids(info))
    try:
        yield
    finally:
        _ids.reset(token)


def _joins(info: RequestInfo, context: Context | None) -> bool:
    """Whether the request is one of several ranks' and has no parent of its own here."""
    if info.ranks_request is None:
        return False
    return not trace.get_current_span(context).get_span_context().is_valid


def _common_ids(info: RequestInfo) -> tuple[int, int]:
    name = info.ranks_request or ""
    return int(name[:32], 16), int(name[32:], 16)


def _prepared(tracer: Tracer) -> bool:
    """Have *tracer*, which is ours alone, ask for ids here first; False if it is not the SDK's."""
    generator: Any = getattr(tracer, "id_generator", None)
    if generator is None:
        return False
    if not isinstance(generator, _RankIds):
        tracer.id_generator = _RankIds(generator)  # type: ignore[attr-defined]
    return True


class _RankIds:
    """The SDK's ``IdGenerator``: ids that were asked for, else those of the generator before."""

    def __init__(self, before: Any) -> None:
        self._before = before

    def generate_trace_id(self) -> int:
        ids = _ids.get()
        return int(self._before.generate_trace_id() if ids is None else ids[0])

    def generate_span_id(self) -> int:
        ids = _ids.get()
        return int(self._before.generate_span_id() if ids is None else ids[1])

    def is_trace_id_random(self) -> bool:
        """Ids of ours are as evenly spread as random ones."""
        asked = getattr(self._before, "is_trace_id_random", None)
        return bool(asked()) if asked is not None else False
