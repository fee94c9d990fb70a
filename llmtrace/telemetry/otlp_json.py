"""Spans as OTLP/JSON: hex ids, integers as strings, enums as numbers.

Source:
    opentelemetry-proto, docs/specification.md, "JSON Protobuf Encoding".
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import INVALID_SPAN_CONTEXT

from llmtrace.telemetry.sound_text import sound

_KINDS = {"INTERNAL": 1, "SERVER": 2, "CLIENT": 3, "PRODUCER": 4, "CONSUMER": 5}


def encode(spans: Sequence[ReadableSpan]) -> str:
    """Return *spans* as one line: a ``TracesData`` object, without the line's end."""
    resources = [
        {
            "resource": {"attributes": _attributes(resource.attributes)},
            "scopeSpans": _scopes(list(group)),
        }
        for resource, group in groupby(spans, key=lambda span: span.resource)
    ]
    return json.dumps({"resourceSpans": resources}, separators=(",", ":"), allow_nan=False)


def _scopes(spans: list[ReadableSpan]) -> list[dict[str, Any]]:
    scopes = []
    for scope, group in groupby(spans, key=lambda span: span.instrumentation_scope):
        named = {"name": sound(scope.name), "version": sound(scope.version or "")} if scope else {}
        scopes.append({"scope": named, "spans": [_span(span) for span in group]})
    return scopes


def _span(span: ReadableSpan) -> dict[str, Any]:
    identity = span.get_span_context() or INVALID_SPAN_CONTEXT
    encoded: dict[str, Any] = {
        "traceId": f"{identity.trace_id:032x}",
        "spanId": f"{identity.span_id:016x}",
        "name": sound(span.name),
        "kind": _KINDS[span.kind.name],
        "startTimeUnixNano": str(span.start_time),
        "endTimeUnixNano": str(span.end_time),
        "attributes": _attributes(span.attributes or {}),
        "status": {} if span.status.is_unset else {"code": span.status.status_code.value},
    }
    if span.parent is not None:
        encoded["parentSpanId"] = f"{span.parent.span_id:016x}"
    return encoded


def _attributes(attributes: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"key": sound(key), "value": _value(value)} for key, value in attributes.items()]


def _value(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value if math.isfinite(value) else _not_finite(value)}
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return {"arrayValue": {"values": [_value(item) for item in value]}}
    return {"stringValue": sound(str(value))}


def _not_finite(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"
