"""Spans written when they are over: like the SDK's own, and only where nobody could tell."""

from __future__ import annotations

import json

import pytest
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk import trace as sdk
from opentelemetry.sdk.trace import SpanLimits, SpanProcessor, Tracer, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_OFF,
    ALWAYS_ON,
    Decision,
    ParentBasedTraceIdRatio,
    Sampler,
    SamplingResult,
    StaticSampler,
)

from llmtrace.seams.wrapping import MethodWrapper
from llmtrace.telemetry import direct_spans
from llmtrace.telemetry.finished_spans import past_processors, writer

pytestmark = pytest.mark.skipif(
    hasattr(sdk, "TracerMetrics"), reason="the SDK's 1.40 and 1.41 count every span: none is direct"
)

ATTRIBUTES = {"llmtrace.step.index": 3, "llmtrace.launch_lead": 0.25, "devices": ("cuda:0",)}


class Mapped(Sampler):
    """Samples, and says so in an attribute."""

    def should_sample(self, parent_context, trace_id, name, *args, attributes=None, **kwargs):
        return SamplingResult(Decision.RECORD_AND_SAMPLE, {**(args[1] or {}), "rule": "mine"})

    def get_description(self):
        return "mapped"


class Starting(SpanProcessor):
    """Adds an attribute to each span as it starts, as BaggageSpanProcessor does."""

    def on_start(self, span, parent_context=None):
        span.set_attribute("started", True)


class Ending(SpanProcessor):
    """Looks at finished spans only."""

    def __init__(self):
        self.names = []

    def on_end(self, span):
        self.names.append(span.name)

    def force_flush(self, timeout_millis=30_000):
        return True  # older releases' own says nothing, and those after it are not flushed


def written(provider, monkeypatch=None):
    """Write a span under a sampled one; return how, the parent's and the span."""
    exporter = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("test", "1.0")
    parent = tracer.start_span("parent", context=Context())
    write = writer(tracer, trace.set_span_in_context(parent, Context()))
    write("decode", 1_000, 3_000, dict(ATTRIBUTES))
    (span,) = (s for s in exporter.get_finished_spans() if s.name == "decode")
    return way_of(write), parent, span


def way_of(write):
    """Return which function made *write*."""
    (made,) = write.args
    return made.__qualname__.split(".")[0]


def as_the_sdk_tells_it(span, parent):
    """Return all of a span but for its own id."""
    told = json.loads(span.to_json())
    told["context"].pop("span_id")
    trace_id = int(told["context"]["trace_id"], 16)
    told["context"]["trace_id"] = trace_id == parent.context.trace_id
    told["parent_id"] = int(told["parent_id"], 16) == parent.context.span_id
    scope = span.instrumentation_scope
    dropped = (span.dropped_attributes, span.dropped_events, span.dropped_links)
    return {
        **told,
        "flags": span.context.trace_flags,
        "remote": span.context.is_remote,
        "state": span.context.trace_state,
        "scope": (scope.name, scope.version),
        "dropped": dropped,
        "kind": span.kind,
        "parent is remote": span.parent.is_remote,
    }


@pytest.mark.parametrize(
    "sampler", [None, ALWAYS_ON, ParentBasedTraceIdRatio(1.0)], ids=["default", "on", "ratio"]
)
def test_a_direct_span_is_the_one_the_sdk_makes(sampler, monkeypatch):
    given = {} if sampler is None else {"sampler": sampler}
    way, parent, direct = written(TracerProvider(**given))
    assert way == "direct"
    monkeypatch.setattr(direct_spans, "goes_unnoticed", lambda *_: False)
    way, its_parent, live = written(TracerProvider(**given))
    assert way == "writer"
    assert as_the_sdk_tells_it(direct, parent) == as_the_sdk_tells_it(live, its_parent)
    assert dict(direct.attributes) == ATTRIBUTES
    assert (direct.start_time, direct.end_time) == (1_000, 3_000)


def test_ids_are_the_providers_own():
    class Ids:
        def generate_trace_id(self):
            return 5

        def generate_span_id(self):
            return 7

        def is_trace_id_random(self):
            return False

    way, _, span = written(TracerProvider(id_generator=Ids()))
    assert (way, span.context.trace_id, span.context.span_id) == ("direct", 5, 7)


def test_every_processor_gets_it():
    provider, ending = TracerProvider(), Ending()
    provider.add_span_processor(ending)
    exporter = InMemorySpanExporter()
    provider.add_span_processor(BatchSpanProcessor(exporter))
    way, _, _ = written(provider)
    assert way == "direct"
    assert ending.names == ["decode"]
    provider.force_flush()
    assert [span.name for span in exporter.get_finished_spans()] == ["decode"]
    provider.shutdown()


def test_what_acts_on_a_start_or_decides_by_itself_is_asked():
    starting = TracerProvider()
    starting.add_span_processor(Starting())
    way, _, span = written(starting)
    assert (way, span.attributes["started"]) == ("writer", True)
    way, _, span = written(TracerProvider(sampler=Mapped()))
    assert (way, span.attributes["rule"]) == ("writer", "mine")
    way, _, span = written(TracerProvider(span_limits=SpanLimits(max_attributes=2)))
    assert (way, len(span.attributes), span.dropped_attributes) == ("writer", 2, 1)
    way, _, span = written(TracerProvider(span_limits=SpanLimits(max_attribute_length=3)))
    assert (way, span.attributes["devices"]) == ("writer", ("cud",))


@pytest.mark.parametrize("plain", [True, False], ids=["direct", "by the tracer"])
def test_a_processor_that_raises_stops_no_other_span(monkeypatch, plain):
    """Whose spans they are: a request's steps and a scheduler's are written by this."""

    class Raising(Ending):
        def on_end(self, span):
            super().on_end(span)
            raise ValueError(span.name)

    if not plain:
        monkeypatch.setattr(direct_spans, "goes_unnoticed", lambda *_: False)
    provider, raising = TracerProvider(), Raising()
    provider.add_span_processor(raising)
    tracer = provider.get_tracer("test")
    root = tracer.start_span("batch", context=Context())
    write = writer(tracer, trace.set_span_in_context(root, Context()))
    write("batch_step", 1, 2, {})
    write("batch_step", 2, 3, {})
    past_processors(root.end, 3)
    assert raising.names == ["batch_step", "batch_step", "batch"]


def test_what_was_put_on_a_single_processor_is_called():
    """Libraries replace a ready-made processor's ``on_start``, and not its class's."""
    own = SimpleSpanProcessor(InMemorySpanExporter())
    own.on_start = lambda span, parent_context=None: span.set_attribute("started", True)
    provider = TracerProvider()
    provider.add_span_processor(own)
    way, _, span = written(provider)
    assert (way, span.attributes["started"]) == ("writer", True)
    provider, seen = TracerProvider(), []
    provider._active_span_processor.on_start = lambda span, parent_context=None: seen.append(span)
    assert written(provider)[0] == "writer"
    assert len(seen) == 2
    sampler = ParentBasedTraceIdRatio(1.0)
    sampler.should_sample = Mapped().should_sample
    assert written(TracerProvider(sampler=sampler))[0] == "writer"


def test_what_was_put_on_a_processors_class_before_us_is_none_of_the_sdks(monkeypatch):
    monkeypatch.setattr(SimpleSpanProcessor, "on_start", lambda self, span, parent_context: None)
    assert SimpleSpanProcessor.on_start not in direct_spans._own_methods(SimpleSpanProcessor)
    assert SpanProcessor.on_start in direct_spans._own_methods(SpanProcessor)


def test_a_span_below_one_that_is_not_sampled_is_none():
    class Recording(StaticSampler):
        """Records, for span processors to look at, and exports nothing."""

        def __init__(self):
            super().__init__(Decision.RECORD_ONLY)

    for sampler in (ALWAYS_OFF, Recording()):
        provider, exporter = TracerProvider(sampler=sampler), InMemorySpanExporter()
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        tracer = provider.get_tracer("test")
        parent = tracer.start_span("parent", context=Context())
        write = writer(tracer, trace.set_span_in_context(parent, Context()))
        assert way_of(write) == "writer"
        write("decode", 1, 2, {})
        assert exporter.get_finished_spans() == ()


def test_a_tracer_of_another_kind_is_used_as_it_is():
    class Wrapping(trace.Tracer):
        """As libraries do that wrap a provider."""

        def __init__(self, inner):
            self.inner, self.started = inner, []

        def start_span(self, name, *args, **kwargs):
            self.started.append(name)
            return self.inner.start_span(name, *args, **kwargs)

        def start_as_current_span(self, *args, **kwargs):
            raise NotImplementedError

    tracer = Wrapping(TracerProvider().get_tracer("test"))
    parent = tracer.start_span("parent", context=Context())
    writer(tracer, trace.set_span_in_context(parent, Context()))("decode", 1, 2, {})
    assert tracer.started == ["parent", "decode"]


@pytest.mark.parametrize("how", ["closure", "wrapt"])
@pytest.mark.parametrize("ours", [False, True], ids=["alone", "around ours"])
def test_who_watches_the_start_of_spans_sees_them(monkeypatch, how, ours):
    started, inner = [], vars(Tracer)["start_span"]
    original = getattr(inner, "__wrapped__", inner)
    monkeypatch.setattr(Tracer, "start_span", original)
    if ours:
        seen = MethodWrapper(original, lambda call, _, args, kwargs: call(*args, **kwargs))
        monkeypatch.setattr(Tracer, "start_span", seen)
        assert written(TracerProvider())[0] == "direct"
    inner = vars(Tracer)["start_span"]

    def watching(call, instance, args, kwargs):
        started.append(args[0])
        return call(*args, **kwargs)

    def closure(self, name, *args, **kwargs):
        started.append(name)
        return inner.__get__(self, Tracer)(name, *args, **kwargs)

    outer = closure if how == "closure" else MethodWrapper(inner, watching)
    # Ours comes first wherever requests are traced; below it, another's is seen as well.
    monkeypatch.setattr(Tracer, "start_span", outer if ours else MethodWrapper(outer, watching))
    way, _, _ = written(TracerProvider())
    assert way == "writer"
    assert "decode" in started


@pytest.mark.parametrize(
    ("kind", "expected"), [("TracerMetrics", "writer"), ("NoOpTracerMetrics", "direct")]
)
def test_the_sdks_own_counts_of_spans_stay_right(kind, expected):
    """Some releases count always, others where the environment said so at the start."""

    def start_span(self, parent, decision):
        return lambda: None

    tracer = TracerProvider().get_tracer("test")
    tracer._tracer_metrics = type(kind, (), {"start_span": start_span})()
    parent = tracer.start_span("parent", context=Context())
    write = writer(tracer, trace.set_span_in_context(parent, Context()))
    write("decode", 1, 2, {})
    assert way_of(write) == expected


def test_the_sdk_counts_where_the_environment_says_so(monkeypatch):
    monkeypatch.setenv("OTEL_PYTHON_SDK_INTERNAL_METRICS_ENABLED", "true")
    provider = TracerProvider()
    if not hasattr(provider.get_tracer("test"), "_tracer_metrics"):
        pytest.skip("this release of the SDK does not count spans")
    assert written(provider)[0] == "writer"


def test_a_tracer_that_is_turned_off_meanwhile_writes_nothing(monkeypatch):
    """As the configurator of newer SDKs can."""
    if not hasattr(Tracer, "_is_enabled"):
        pytest.skip("this release of the SDK turns no tracers off")
    provider, ending = TracerProvider(), Ending()
    provider.add_span_processor(ending)
    tracer = provider.get_tracer("test")
    parent = tracer.start_span("parent", context=Context())
    monkeypatch.setattr(Tracer, "_is_enabled", lambda self: False)
    writer(tracer, trace.set_span_in_context(parent, Context()))("decode", 1, 2, {})
    assert ending.names == []
