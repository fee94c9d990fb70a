"""How many spans are written before a provider is flushed."""

import pytest
from opentelemetry.sdk.trace import ConcurrentMultiSpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from llmtrace.telemetry.span_queues import most_unflushed


def holding(*sizes, provider=None):
    provider = provider or TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(InMemorySpanExporter()))
    for size in sizes:
        exporter = InMemorySpanExporter()
        batch = BatchSpanProcessor(exporter, max_queue_size=size, max_export_batch_size=1)
        provider.add_span_processor(batch)
    return provider


@pytest.mark.parametrize(
    ("sizes", "most"), [((), 1024), ((2048,), 1024), ((100_000,), 1024), ((512, 64), 32), ((1,), 1)]
)
def test_half_of_the_smallest_queue(sizes, most):
    provider = holding(*sizes)
    assert most_unflushed(provider) == most
    provider.shutdown()


def test_queues_within_a_processor_that_passes_on():
    provider = holding(
        128, provider=TracerProvider(active_span_processor=ConcurrentMultiSpanProcessor())
    )
    assert most_unflushed(provider) == 64
    provider.shutdown()


def test_the_environments_size(monkeypatch):
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "600")
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(InMemorySpanExporter()))
    assert most_unflushed(provider) == 300
    provider.shutdown()


def test_providers_of_another_kind():
    assert most_unflushed(object()) == 1024
    assert most_unflushed(None) == 1024
