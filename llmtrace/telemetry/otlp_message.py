"""Recorded OTLP/JSON to the messages of OTLP/HTTP, in portions that backends take."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from google.protobuf.json_format import ParseDict, ParseError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span

MOST_SPANS = 1000
"""Spans in one message: less than 1 MB, and few enough for any backend's limit."""

_IDS = ("traceId", "spanId", "parentSpanId")

_MALFORMED = (ParseError, AttributeError, KeyError, TypeError, ValueError, OverflowError)

Refuse = Callable[[str, str], None]
"""Told the place and the reason of what is malformed and left out."""


def messages(
    documents: Iterable[tuple[str, list[Any]]], refuse: Refuse
) -> Iterator[tuple[ExportTraceServiceRequest, int]]:
    """Yield messages of up to :data:`MOST_SPANS` spans, each with its number of spans.

    Args:
        documents: Lists of ``resourceSpans`` as OTLP/JSON has them, each with its place.
        refuse: Called for each part that is malformed; the rest is sent.
    """
    message, held = ExportTraceServiceRequest(), 0
    for where, resources in documents:
        for part, spans in _parts(where, resources, refuse):
            if held + spans > MOST_SPANS:
                yield message, held
                message, held = ExportTraceServiceRequest(), 0
            message.resource_spans.append(part)
            held += spans
    if held:
        yield message, held


def _parts(
    where: str, resources: Iterable[Any], refuse: Refuse
) -> Iterator[tuple[ResourceSpans, int]]:
    """Yield each scope's spans, with resource and scope, cut where they are too many."""
    for resource in resources:
        try:
            described = _without(resource, "scopeSpans", ResourceSpans())
            scopes = list(resource.get("scopeSpans") or ())
        except _MALFORMED as error:
            refuse(where, f"malformed resource: {_said(error)}")
            continue
        for scope in scopes:
            try:
                named = _without(scope, "spans", ScopeSpans())
                spans = iter(scope.get("spans") or ())
            except _MALFORMED as error:
                refuse(where, f"malformed scope: {_said(error)}")
                continue
            while portion := list(islice(spans, MOST_SPANS)):
                found = (_span(where, span, refuse) for span in portion)
                encoded = [span for span in found if span is not None]
                part = ResourceSpans()
                part.CopyFrom(described)
                part.scope_spans.add().CopyFrom(named)
                part.scope_spans[0].spans.extend(encoded)
                if encoded:
                    yield part, len(encoded)


def _without(encoded: Mapping[str, Any], name: str, message: Any) -> Any:
    """Return *message* filled from *encoded*, all but the part called *name*."""
    rest = {key: value for key, value in encoded.items() if key != name}
    return ParseDict(rest, message, ignore_unknown_fields=True)


def _span(where: str, encoded: Any, refuse: Refuse) -> Span | None:
    try:
        span: Span = ParseDict(_with_ids(encoded), Span(), ignore_unknown_fields=True)
    except _MALFORMED as error:
        refuse(where, f"malformed span: {_said(error)}")
        return None
    return span


def _with_ids(span: Mapping[str, Any]) -> dict[str, Any]:
    """Return *span* with its ids as protobuf's own JSON has bytes: in base64, not hex."""
    found = {**span, **{name: _base64(span[name]) for name in _IDS if span.get(name)}}
    if span.get("links"):
        found["links"] = [
            {**link, **{name: _base64(link[name]) for name in _IDS[:2] if link.get(name)}}
            for link in span["links"]
        ]
    return found


def _base64(hexadecimal: str) -> str:
    return base64.b64encode(bytes.fromhex(hexadecimal)).decode()


def _said(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
