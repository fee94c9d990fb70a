"""Spans as OTLP/JSON: the types of the specification's JSON encoding."""

import json

import orjson
import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context

from llmtrace.telemetry.otlp_json import encode


@pytest.fixture
def spans():
    """A tracer and what it has finished."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(resource=Resource({"service.name": "app"}))
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("llmtrace", "1.2")

    def finished(attributes=None, **more):
        tracer.start_span("name", attributes=attributes, **more).end()
        return exporter.get_finished_spans()

    finished.tracer = tracer
    finished.exporter = exporter
    return finished


def only_span(line):
    (resource,) = json.loads(line)["resourceSpans"]
    (scope,) = resource["scopeSpans"]
    (span,) = scope["spans"]
    return span


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (True, {"boolValue": True}),
        (False, {"boolValue": False}),
        (1, {"intValue": "1"}),
        (2**53 + 1, {"intValue": "9007199254740993"}),
        (1.0, {"doubleValue": 1.0}),
        (0.1, {"doubleValue": 0.1}),
        (float("nan"), {"doubleValue": "NaN"}),
        (float("inf"), {"doubleValue": "Infinity"}),
        (float("-inf"), {"doubleValue": "-Infinity"}),
        ("", {"stringValue": ""}),
        ("é 猫 \U0001f600 \n", {"stringValue": "é 猫 \U0001f600 \n"}),
        ([1, 2], {"arrayValue": {"values": [{"intValue": "1"}, {"intValue": "2"}]}}),
        ([True], {"arrayValue": {"values": [{"boolValue": True}]}}),
        (
            [0.5, float("nan")],
            {"arrayValue": {"values": [{"doubleValue": 0.5}, {"doubleValue": "NaN"}]}},
        ),
        (("a", "b"), {"arrayValue": {"values": [{"stringValue": "a"}, {"stringValue": "b"}]}}),
        ([], {"arrayValue": {"values": []}}),
    ],
)
def test_a_value_has_its_type(spans, value, encoded):
    """Booleans are not integers, integers are strings, what is not finite has a name."""
    line = encode(spans({"key": value}))
    assert only_span(line)["attributes"] == [{"key": "key", "value": encoded}]


def test_a_line_is_strict_json_in_one_line(spans):
    """No NaN, no line break, nothing but ASCII: any reader can take it."""
    line = encode(spans({"text": "a\nb\u2028c", "number": float("nan")}))
    assert line.isascii()
    assert "\n" not in line

    def refuse(constant):
        raise AssertionError(constant)

    json.loads(line, parse_constant=refuse)


def test_half_a_character_spoils_no_line(spans):
    """A lone surrogate, as in a file name that is no UTF-8: strict readers refuse it."""
    line = encode(spans({"a\udce9": "b\ud800c", "more": ["\udfff", "d\U0001f600"]}))
    orjson.loads(line)
    assert only_span(line)["attributes"] == [
        {"key": "a?", "value": {"stringValue": "b?c"}},
        {
            "key": "more",
            "value": {
                "arrayValue": {"values": [{"stringValue": "?"}, {"stringValue": "d\U0001f600"}]}
            },
        },
    ]


def test_ids_times_and_kind_are_as_the_specification_says(spans):
    """Ids are lower-case hex, times strings of nanoseconds, kinds the protocol's numbers."""
    tracer = spans.tracer
    parent = tracer.start_span("parent", kind=SpanKind.SERVER, start_time=1_000)
    child = tracer.start_span("child", context=set_span_in_context(parent), start_time=2_000)
    child.end(3_000)
    parent.end(2**62)
    (resource,) = json.loads(encode(spans.exporter.get_finished_spans()))["resourceSpans"]
    assert resource["resource"]["attributes"] == [
        {"key": "service.name", "value": {"stringValue": "app"}}
    ]
    (scope,) = resource["scopeSpans"]
    assert scope["scope"] == {"name": "llmtrace", "version": "1.2"}
    first, second = scope["spans"]
    assert first["kind"] == 1
    assert second["kind"] == 2
    assert (first["startTimeUnixNano"], first["endTimeUnixNano"]) == ("2000", "3000")
    assert second["endTimeUnixNano"] == str(2**62)
    assert first["traceId"] == second["traceId"] == f"{parent.context.trace_id:032x}"
    assert first["spanId"] == f"{child.context.span_id:016x}"
    assert first["parentSpanId"] == second["spanId"]
    assert "parentSpanId" not in second


@pytest.mark.parametrize(
    ("status", "encoded"),
    [(StatusCode.UNSET, {}), (StatusCode.OK, {"code": 1}), (StatusCode.ERROR, {"code": 2})],
)
def test_a_status_has_the_protocol_s_number(spans, status, encoded):
    """An unset status says nothing."""
    span = spans.tracer.start_span("name")
    span.set_status(Status(status))
    span.end()
    assert only_span(encode(spans.exporter.get_finished_spans()))["status"] == encoded
