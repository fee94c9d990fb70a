"""Records to metrics: all instruments made once per meter provider."""

from __future__ import annotations

import threading
from typing import Any

from opentelemetry.metrics import MeterProvider

from llmtrace import names
from llmtrace.names import Instrument
from llmtrace.records import BatchStepRecord, RequestRecord, first_text_phases, rows_per_gap
from llmtrace.telemetry.sound_text import sound

Attributes = dict[str, Any]


def labels_of(operation: str, model: str) -> Attributes:
    """Return the labels of every metric: a fixed, short list."""
    return {
        names.OPERATION_NAME: operation,
        names.PROVIDER_NAME: names.PROVIDER,
        names.REQUEST_MODEL: sound(model),
    }


class Metrics:
    """The instruments of one meter provider."""

    def __init__(self, provider: MeterProvider, version: str) -> None:
        self._meter = provider.get_meter(names.SCOPE, version)
        self._made: dict[str, Any] = {}
        self._lock = threading.Lock()

    def started(self, labels: Attributes) -> None:
        """A request has begun."""
        self._instrument(names.REQUESTS_ACTIVE).add(1, labels)

    def abandoned(self, labels: Attributes) -> None:
        """What had begun turned out to be no request of its own."""
        self._instrument(names.REQUESTS_ACTIVE).add(-1, labels)

    def finished(self, record: RequestRecord, begun: Attributes, context: Any) -> None:
        """Record a finished request.

        Args:
            record: The request.
            begun: The labels given to :meth:`started`.
            context: Holds the request's span, so that histogram points link to its trace.
        """
        self._instrument(names.REQUESTS_ACTIVE).add(-1, begun)
        labels = labels_of(record.operation, record.model)
        outcome = {**labels, names.ERROR_TYPE: record.error} if record.error else labels
        self._instrument(names.REQUESTS).add(1, outcome)
        if record.output_tokens:
            self._instrument(names.TOKENS_GENERATED).add(record.output_tokens, labels)
        self._histogram(names.REQUEST_DURATION, record.duration_s, outcome, context)
        self._histogram(names.QUEUE_DURATION, record.queue_s, labels, context)
        for kind, count in (("input", record.input_tokens), ("output", record.output_tokens)):
            self._histogram(names.TOKEN_USAGE, count, {**labels, names.TOKEN_TYPE: kind}, context)
        if record.error is None:
            self._latencies(record, labels, context)
        self._memory(record, labels)

    def _latencies(self, record: RequestRecord, labels: Attributes, context: Any) -> None:
        self._histogram(names.TIME_TO_FIRST_TOKEN, record.ttft_s, labels, context)
        self._histogram(names.TIME_PER_OUTPUT_TOKEN, record.tpot_s, labels, context)
        self._histogram(
            names.TTFT_FROM_REQUEST_DURATION, record.ttft_from_request_s, labels, context
        )
        self._histogram(names.PREFILL_DURATION, record.prefill_s, labels, context)
        for phase, duration in first_text_phases(record).items():
            phase_labels = {**labels, names.PHASE: phase}
            self._histogram(names.FIRST_TEXT_PHASE, duration, phase_labels, context)
        self._histogram(names.TOKENS_PER_SECOND, record.tgs, labels, context)
        self._histogram(names.HOST_BOUND, record.host_bound_ratio, labels, context)
        for gap, rows in zip(record.itl_s, rows_per_gap(record), strict=True):
            for _ in range(rows):
                self._histogram(names.INTER_TOKEN_LATENCY, gap, labels, context)

    def _memory(self, record: RequestRecord, labels: Attributes) -> None:
        for instrument, value in (
            (names.KV_CACHE_USAGE, record.kv_cache_bytes),
            (names.CUDA_ALLOCATED, record.memory_allocated_bytes),
            (names.CUDA_RESERVED, record.memory_reserved_bytes),
            (names.CUDA_PEAK, record.memory_peak_bytes),
        ):
            if value is not None:
                self._instrument(instrument).set(value, labels)

    def batch_step(self, record: BatchStepRecord, labels: Attributes) -> None:
        """Record one step of a scheduler."""
        duration = (record.end_unix_ns - record.start_unix_ns) * 1e-9
        self._histogram(names.BATCH_STEP_DURATION, max(duration, 0.0), labels, None)
        for phase, tokens in (("prefill", record.prefill_tokens), ("decode", record.decode_tokens)):
            if tokens:
                self._instrument(names.BATCH_TOKENS).add(
                    tokens, {**labels, names.BATCH_PHASE: phase}
                )

    def batch_state(self, record: BatchStepRecord, labels: Attributes) -> None:
        """Record what a scheduler's latest step says of its state."""
        self._instrument(names.ACTIVE_IN_BATCH).set(record.active, labels)
        self._instrument(names.WAITING_FOR_BATCH).set(record.waiting, labels)
        if record.cache_usage is not None:
            self._instrument(names.CACHE_IN_USE).set(record.cache_usage, labels)

    def _histogram(
        self, instrument: Instrument, value: float | None, labels: Attributes, context: Any
    ) -> None:
        if value is not None:
            self._instrument(instrument).record(value, labels, context=context)

    def _instrument(self, instrument: Instrument) -> Any:
        made = self._made.get(instrument.name)
        if made is None:
            with self._lock:  # two of one name, and the SDK warns
                made = self._made.get(instrument.name) or self._make(instrument)
                self._made[instrument.name] = made
        return made

    def _make(self, instrument: Instrument) -> Any:
        described = (instrument.name, instrument.unit, instrument.description)
        if instrument.kind == "histogram":
            return self._meter.create_histogram(
                *described, explicit_bucket_boundaries_advisory=instrument.bounds
            )
        return getattr(self._meter, f"create_{instrument.kind}")(*described)
