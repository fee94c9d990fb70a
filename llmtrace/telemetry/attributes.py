"""A record's values as span attributes: names and types, nothing that does not exist."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from typing import Any

from llmtrace import names
from llmtrace.recording.request import RequestInfo
from llmtrace.records import RequestRecord, StepRecord
from llmtrace.telemetry.metrics import labels_of
from llmtrace.telemetry.sound_text import sound

Attributes = dict[str, Any]


def start_attributes(info: RequestInfo) -> Attributes:
    """Return what samplers see: known when the request begins."""
    return dict(labels_of(info.operation, info.model.name))


def request_attributes(record: RequestRecord) -> Attributes:
    """Return the attributes of a finished request's span."""
    found = _present(
        {
            **record.attributes,
            **_parameters(record),
            **_counts(record),
            **_latencies(record),
            **_circumstances(record),
            **_arrays(record),
        }
    )
    return {name: _sound(value) for name, value in found.items()}


def _parameters(record: RequestRecord) -> Attributes:
    asked = record.parameters
    return {
        names.MAX_TOKENS: asked.max_tokens,
        names.TEMPERATURE: asked.temperature,
        names.TOP_P: asked.top_p,
        names.TOP_K: asked.top_k,
        names.DO_SAMPLE: asked.do_sample,
        names.STREAM: asked.stream or None,
        names.CHOICE_COUNT: asked.choice_count,
        names.STOP_SEQUENCES: asked.stop_sequences or None,
        names.NUM_BEAMS: asked.num_beams,
        names.STRATEGY: record.strategy,
        names.BATCH_PREEMPTIONS: record.preemptions,
    }


def _counts(record: RequestRecord) -> Attributes:
    several = (record.batch_size or 1) > 1 or len(record.output_tokens_per_row) > 1
    return {
        names.BATCH_SIZE: record.batch_size,
        names.INPUT_TOKENS: record.input_tokens,
        names.OUTPUT_TOKENS: record.output_tokens,
        names.INPUT_TOKENS_PADDED: record.input_tokens_padded,
        names.INPUT_TOKENS_CACHED: record.input_tokens_cached,
        names.INPUT_TOKENS_PER_ROW: record.input_tokens_per_row if several else None,
        names.OUTPUT_TOKENS_PER_ROW: record.output_tokens_per_row if several else None,
        names.ASSISTED_DRAFTED: record.assisted_drafted,
        names.ASSISTED_ACCEPTED: record.assisted_accepted,
        names.FINISH_REASONS: record.finish_reasons or None,
    }


def _latencies(record: RequestRecord) -> Attributes:
    streaming = record.parameters.stream
    return {
        names.TTFT: record.ttft_s,
        names.TTFT_FROM_REQUEST: record.ttft_from_request_s,
        names.TTFT_FROM_ADMISSION: record.ttft_from_admission_s,
        names.FIRST_DELIVERY: record.first_delivery_s,
        names.FIRST_VISIBLE_TEXT: record.first_visible_text_s,
        names.TIME_TO_FIRST_CHUNK: record.first_delivery_s if streaming else None,
        names.QUEUE: record.queue_s,
        names.TOKENIZE: record.tokenize_s,
        names.PREPARE: record.prepare_s,
        names.PREFILL: record.prefill_s,
        names.SAMPLING: record.sampling_s,
        names.DELIVERY: record.delivery_s,
        names.HOLD_BACK: record.hold_back_s,
        names.TPOT: record.tpot_s,
        names.E2E: record.e2e_s,
        names.TGS: record.tgs,
        names.DECODE_TGS: record.decode_tgs,
        **_itl_percentiles(record.itl_s),
    }


def _itl_percentiles(gaps: Sequence[float]) -> Attributes:
    if not gaps:
        return {}
    ordered = sorted(gaps)
    return {
        names.ITL_P50: statistics.median(ordered),
        names.ITL_P95: percentile(ordered, 95),
        names.ITL_P99: percentile(ordered, 99),
        names.ITL_MAX: ordered[-1],
    }


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return a percentile of sorted values by linear interpolation (numpy's default)."""
    position = (len(ordered) - 1) * percent / 100
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def _circumstances(record: RequestRecord) -> Attributes:
    return {
        names.CLOCK: record.clock,
        names.CLOCK_ERROR: record.clock_error_s,
        names.COLD: record.cold,
        names.COLD_REASONS: record.cold_reasons or None,
        names.DEVICE: record.device,
        names.DTYPE: record.dtype,
        names.QUANTIZATION: record.quantization,
        names.ATTN_IMPLEMENTATION: record.attn_implementation,
        names.CACHE_IMPLEMENTATION: record.cache_implementation,
        names.COMPILED: record.compiled,
        names.HOST_BOUND_RATIO: record.host_bound_ratio,
        names.KV_CACHE_BYTES: record.kv_cache_bytes,
        names.MEMORY_ALLOCATED: record.memory_allocated_bytes,
        names.MEMORY_RESERVED: record.memory_reserved_bytes,
        names.MEMORY_PEAK: record.memory_peak_bytes,
        names.MEMORY_GROWTH: record.memory_growth_bytes,
        names.MEMORY_INACTIVE_SPLIT: record.memory_inactive_split_bytes,
        names.DEVICE_NAME: record.device_name,
        names.MBU: record.mbu,
        names.MFU: record.mfu,
        names.DECODE_BYTES: record.decode_bytes,
        names.PREFILL_FLOPS: record.prefill_flops,
        names.RANK: record.rank,
        names.WORLD_SIZE: record.world_size,
        names.RANKS_REQUEST: record.ranks_request,
        names.DEVICES: record.devices or None,
        names.DEVICES_PREFILL: record.devices_prefill_s or None,
        names.DEVICES_DECODE: record.devices_decode_s or None,
        names.DEVICES_HANDOVER: record.handover_s,
        names.FINDINGS: tuple(finding.code for finding in record.findings) or None,
        names.FINDINGS_EVIDENCE: tuple(finding.evidence for finding in record.findings) or None,
        names.STEPS_TRUNCATED: record.steps_truncated or None,
        names.ERROR_TYPE: record.error,
    }


def _arrays(record: RequestRecord) -> Attributes:
    """Return the arrays a report is made from, also where no step has a span."""
    steps = record.steps
    return {
        names.ITL: record.itl_s or None,
        names.STEP_DEVICE_DURATIONS: _column(steps, "device_duration_s"),
        names.STEP_HOST_DURATIONS: _column(steps, "host_duration_s"),
        names.STEP_LAUNCH_LEADS: _column(steps, "launch_lead_s"),
        names.STEP_PUTS: _column(steps, "put_s"),
    }


def _column(steps: Sequence[StepRecord], name: str) -> list[float] | None:
    """Return one value per step, or None unless every step has it."""
    values = [getattr(step, name) for step in steps]
    return values if values and None not in values else None


def step_attributes(step: StepRecord) -> Attributes:
    """Return the attributes of a step's span."""
    return _present(
        {
            names.STEP_INDEX: step.index,
            names.STEP_TOKENS: step.tokens if step.tokens != 1 else None,
            names.STEP_FORWARDS: step.forwards if step.forwards != 1 else None,
            names.HOST_DURATION: step.host_duration_s,
            names.DEVICE_DURATION: step.device_duration_s,
            names.LAUNCH_LEAD: step.launch_lead_s,
            names.FORWARD_OFFSET: _offset(step) if step.index else None,
            names.LEG_DEVICES: tuple(leg.device for leg in step.legs) or None,
            names.LEG_OFFSETS: tuple(leg.start_s - step.start_s for leg in step.legs) or None,
            names.LEG_DURATIONS: tuple(leg.end_s - leg.start_s for leg in step.legs) or None,
        }
    )


def _offset(step: StepRecord) -> float | None:
    return None if step.forward_start_s is None else step.forward_start_s - step.start_s


def first_token_attributes(step: StepRecord) -> Attributes:
    """Return the attributes of the first token's span; durations are the prefill's."""
    return _present(
        {
            names.STEP_INDEX: step.index,
            names.STEP_TOKENS: step.tokens if step.tokens != 1 else None,
        }
    )


def content_attributes(info: RequestInfo) -> Attributes:
    """Return prompt and output text, if they were asked for."""
    return _present(
        {
            names.INPUT_MESSAGES: _messages("user", info.input_text),
            names.OUTPUT_MESSAGES: _messages("assistant", info.output_text, info.finish_reasons),
        }
    )


def _messages(role: str, texts: list[str] | None, finish_reasons: Sequence[str] = ()) -> str | None:
    if not texts:
        return None
    messages: list[Attributes] = [
        {"role": role, "parts": [{"type": "text", "content": text}]} for text in texts
    ]
    for message, reason in zip(messages, finish_reasons, strict=False):
        message["finish_reason"] = reason
    return sound(json.dumps(messages, ensure_ascii=False))


def _present(attributes: Attributes) -> Attributes:
    return {name: value for name, value in attributes.items() if value is not None}


def _sound(value: Any) -> Any:
    """Return text, or texts, that every backend can take; of other values, the same."""
    if isinstance(value, str):
        return sound(value)
    if isinstance(value, (tuple, list)) and value and isinstance(value[0], str):
        return tuple(sound(one) if isinstance(one, str) else one for one in value)
    return value
