"""A scheduler's steps as spans and metrics.

They are nobody's children: a step serves many requests. A stretch of steps is a trace of its own,
linked to the requests that took part; a stretch is bounded, so such a trace is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, SpanContext, TraceFlags, Tracer

from llmtrace import names
from llmtrace.config import Steps
from llmtrace.records import BatchRecord, BatchStepRecord
from llmtrace.telemetry.finished_spans import past_processors, writer
from llmtrace.telemetry.metrics import Metrics

MAX_LINKS = 128
"""Links of one span; the SDK's default keeps no more."""


def write_batch(
    tracer: Tracer, record: BatchRecord, steps: Steps, rest: Callable[[int], None]
) -> None:
    """Emit a ``batch`` span over the steps of *record*, and a ``batch_step`` under it for each."""
    first, last = record.steps[0], record.steps[-1]
    root = tracer.start_span(
        names.SPAN_BATCH,
        context=Context(),
        attributes={**batch_labels(record), **_totals(record)},
        links=[_link(*ids) for ids in record.requests[:MAX_LINKS]],
        start_time=first.start_unix_ns,
    )
    if steps == "spans":
        write = writer(tracer, trace.set_span_in_context(root, Context()))
        for count, step in enumerate(record.steps, start=1):
            write(names.SPAN_BATCH_STEP, step.start_unix_ns, step.end_unix_ns, _attributes(step))
            rest(count)
    rest(0)
    past_processors(root.end, last.end_unix_ns)


def count_batch(metrics: Metrics, record: BatchRecord) -> None:
    """Record the metrics of a scheduler's steps."""
    labels = batch_labels(record)
    for step in record.steps:
        metrics.batch_step(step, labels)
    metrics.batch_state(record.steps[-1], labels)


def batch_labels(record: BatchRecord) -> dict[str, Any]:
    """Return what tells this scheduler from others in metrics."""
    return {names.PROVIDER_NAME: names.PROVIDER, names.REQUEST_MODEL: record.model}


def _totals(record: BatchRecord) -> dict[str, Any]:
    steps = record.steps
    usage = [step.cache_usage for step in steps if step.cache_usage is not None]
    totals = {
        names.BATCH_STEPS: len(steps),
        names.BATCH_REQUESTS: len(record.requests),
        names.BATCH_ACTIVE: max(step.active for step in steps),
        names.BATCH_WAITING: max(step.waiting for step in steps),
        names.BATCH_PREFILL_TOKENS: sum(step.prefill_tokens for step in steps),
        names.BATCH_DECODE_TOKENS: sum(step.decode_tokens for step in steps),
        names.CLOCK: record.clock,
    }
    return {**totals, names.BATCH_CACHE_USAGE: max(usage)} if usage else totals


def _attributes(step: BatchStepRecord) -> dict[str, Any]:
    attributes = {
        names.BATCH_STEP: step.index,
        names.BATCH_REQUESTS: step.requests,
        names.BATCH_ACTIVE: step.active,
        names.BATCH_WAITING: step.waiting,
        names.BATCH_PREFILL_TOKENS: step.prefill_tokens,
        names.BATCH_DECODE_TOKENS: step.decode_tokens,
        names.BATCH_CACHE_USAGE: step.cache_usage,
        names.HOST_DURATION: step.host_duration_s,
        names.DEVICE_DURATION: step.device_duration_s,
    }
    return {name: value for name, value in attributes.items() if value is not None}


def _link(trace_id: str, span_id: str) -> Link:
    return Link(SpanContext(int(trace_id, 16), int(span_id, 16), False, TraceFlags(1)))  # noqa: FBT003
