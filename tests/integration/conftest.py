"""A tiny random Llama through real ``generate()``, and somewhere for its telemetry to go."""

import pytest
import torch
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from transformers import LlamaConfig, LlamaForCausalLM

import llmtrace
from llmtrace.session import session

PAD, EOS = 0, 2


@pytest.fixture(scope="session", autouse=True)
def one_torch_thread():
    """Threads of torch's own make tiny models slower, not faster."""
    torch.set_num_threads(1)


@pytest.fixture
def tiny():
    """A Llama of 2 layers, 64 words, random weights."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=256,
        eos_token_id=EOS,
        pad_token_id=PAD,
        bos_token_id=1,
    )
    model = LlamaForCausalLM(config).eval()
    # Random weights must not stop a row by chance.
    model.generation_config.eos_token_id = None
    return model


@pytest.fixture
def prompt():
    """Token ids ``[1, 5]``."""
    return torch.tensor([[5, 6, 7, 8, 9]])


class Telemetry:
    """What reached the app's own providers."""

    def __init__(self):
        self.exporter = InMemorySpanExporter()
        self.tracer_provider = TracerProvider()
        self.tracer_provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.reader = InMemoryMetricReader()
        self.meter_provider = MeterProvider([self.reader])
        self.handle = llmtrace.instrument(
            tracer_provider=self.tracer_provider, meter_provider=self.meter_provider
        )
        self.tracer = self.tracer_provider.get_tracer("app")

    def spans(self, name=None):
        """Return the finished spans, those named *name* only."""
        assert session().pipeline.drain(10)
        spans = self.exporter.get_finished_spans()
        return [s for s in spans if name is None or s.name == name]

    def requests(self):
        """Return the finished request spans, oldest first."""
        found = [s for s in self.spans() if "llmtrace.strategy" in s.attributes]
        return sorted(found, key=lambda s: s.start_time)

    def children(self, span, name=None):
        """Return the spans directly under *span*, by start."""
        found = [
            s for s in self.spans(name) if s.parent and s.parent.span_id == span.context.span_id
        ]
        return sorted(found, key=lambda s: s.start_time)

    def metrics(self):
        """Return the metrics by name."""
        # No flush: that would collect once, and each collection starts exemplars anew.
        assert session().pipeline.drain(10)
        data = self.reader.get_metrics_data()
        if data is None:
            return {}
        return {
            metric.name: metric
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            if scope.scope.name == "llmtrace"
            for metric in scope.metrics
        }


@pytest.fixture
def telemetry():
    """Providers as an app would set them up, with llmtrace turned on."""
    made = Telemetry()
    yield made
    llmtrace.uninstrument()
    made.tracer_provider.shutdown()
    made.meter_provider.shutdown()


@pytest.fixture(autouse=True)
def nothing_left_patched():
    """Each test begins as after a mere import: armed, with nowhere to send anything."""
    session().arm()
    yield
    llmtrace.uninstrument()
    assert session().pipeline.running == 0
    assert not session().pipeline._subscribers
