"""A request span's attributes back to a record: what ``llmtrace.telemetry`` does, undone."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any, NamedTuple

from llmtrace import names
from llmtrace.records import Finding, GenerationParameters, RequestRecord
from llmtrace.sources.attributes import (
    Raw,
    amount,
    count,
    counts,
    flag,
    number,
    numbers,
    scalars,
    seconds,
    text,
    texts,
    whole,
)
from llmtrace.sources.steps import NANO, STEP_ARRAYS, StepSpans, from_arrays, from_spans

ARRAYS = (names.ITL, *STEP_ARRAYS)

_NOT_THE_CALLERS = ("gen_ai.", "llmtrace.", names.ERROR_TYPE)


class RequestSpan(NamedTuple):
    """One request's span as it stands in the file."""

    trace_id: str
    span_id: str
    start_unix_ns: int
    end_unix_ns: int
    failed: bool
    """The span's status is ERROR."""
    raws: Mapping[str, Raw]
    arrays: Mapping[str, array[float]]
    """The long arrays, decoded: as they stand in the file they take ten times the memory."""


def take_arrays(raws: dict[str, Raw]) -> dict[str, array[float]]:
    """Take the per-step arrays out of *raws* and return them decoded.

    Raises:
        ValueError: A value in an array is not a finite number.
    """
    return {
        # A launch that Python is behind with has a negative lead.
        name: array("d", numbers(raws.pop(name), signed=name == names.STEP_LAUNCH_LEADS))
        for name in ARRAYS
        if name in raws
    }


def build_record(span: RequestSpan, spans: StepSpans | None) -> tuple[RequestRecord, bool]:
    """Return the record of a request, and whether step spans of it are missing.

    A request recorded without step spans lacks none: its arrays are what was asked for.

    Raises:
        ValueError, TypeError, KeyError, AttributeError: An attribute is not what it must be.
    """
    raws = span.raws
    itl = list(span.arrays.get(names.ITL, ()))
    ttft = seconds(raws.get(names.TTFT))
    steps = None
    if spans is not None:
        puts = span.arrays.get(names.STEP_PUTS, ())
        steps = from_spans(spans, span.start_unix_ns, len(itl), puts)
    missing = spans is not None and steps is None
    record = RequestRecord(
        model=text(raws.get(names.REQUEST_MODEL)) or "unknown",
        strategy=text(raws.get(names.STRATEGY)) or "unknown",
        device=text(raws.get(names.DEVICE)) or "unknown",
        clock=text(raws.get(names.CLOCK)) or "unknown",
        start_unix_ns=span.start_unix_ns,
        duration_s=max(span.end_unix_ns - span.start_unix_ns, 0) * NANO,
        operation=text(raws.get(names.OPERATION_NAME)) or "text_completion",
        trace_id=span.trace_id,
        span_id=span.span_id,
        error=text(raws.get(names.ERROR_TYPE)) or ("_OTHER" if span.failed else None),
        itl_s=itl,
        steps=from_arrays(span.arrays, ttft, itl) if steps is None else steps,
        parameters=_parameters(raws),
        findings=_findings(raws),
        attributes=scalars(
            {key: raw for key, raw in raws.items() if not key.startswith(_NOT_THE_CALLERS)}
        ),
        **_counts(raws),
        **_latencies(raws),
        **_circumstances(raws),
    )
    return record, missing


def _durations(raw: Raw | None) -> tuple[float, ...]:
    try:
        return tuple(numbers(raw))
    except ValueError:
        return ()


def _findings(raws: Mapping[str, Raw]) -> tuple[Finding, ...]:
    """Return findings of which the span says code and evidence; analysis knows the rest."""
    codes = texts(raws.get(names.FINDINGS))
    evidence = texts(raws.get(names.FINDINGS_EVIDENCE))
    if len(evidence) != len(codes):
        evidence = ("",) * len(codes)
    return tuple(
        Finding(code, "info", "", said, "") for code, said in zip(codes, evidence, strict=True)
    )


def _parameters(raws: Mapping[str, Raw]) -> GenerationParameters:
    return GenerationParameters(
        max_tokens=count(raws.get(names.MAX_TOKENS)),
        temperature=number(raws.get(names.TEMPERATURE)),
        top_p=number(raws.get(names.TOP_P)),
        top_k=count(raws.get(names.TOP_K)),
        do_sample=flag(raws.get(names.DO_SAMPLE)),
        choice_count=count(raws.get(names.CHOICE_COUNT)),
        num_beams=count(raws.get(names.NUM_BEAMS)),
        stop_sequences=texts(raws.get(names.STOP_SEQUENCES)),
        stream=bool(flag(raws.get(names.STREAM))),
    )


def _counts(raws: Mapping[str, Raw]) -> dict[str, Any]:
    batch = count(raws.get(names.BATCH_SIZE))
    read = count(raws.get(names.INPUT_TOKENS))
    written = count(raws.get(names.OUTPUT_TOKENS))
    # Of a single row the total says it all, so no array was written.
    several = (batch or 1) > 1
    return {
        "batch_size": batch,
        "input_tokens": read,
        "output_tokens": written,
        "input_tokens_padded": count(raws.get(names.INPUT_TOKENS_PADDED)),
        "input_tokens_cached": count(raws.get(names.INPUT_TOKENS_CACHED)),
        "input_tokens_per_row": counts(raws.get(names.INPUT_TOKENS_PER_ROW))
        or (() if several or read is None else (read,)),
        "output_tokens_per_row": counts(raws.get(names.OUTPUT_TOKENS_PER_ROW))
        or (() if several or written is None else (written,)),
        "preemptions": count(raws.get(names.BATCH_PREEMPTIONS)),
        "assisted_drafted": count(raws.get(names.ASSISTED_DRAFTED)),
        "assisted_accepted": count(raws.get(names.ASSISTED_ACCEPTED)),
        "finish_reasons": texts(raws.get(names.FINISH_REASONS)),
    }


def _latencies(raws: Mapping[str, Raw]) -> dict[str, Any]:
    return {
        "ttft_s": seconds(raws.get(names.TTFT)),
        "ttft_from_request_s": seconds(raws.get(names.TTFT_FROM_REQUEST)),
        "ttft_from_admission_s": seconds(raws.get(names.TTFT_FROM_ADMISSION)),
        "tpot_s": seconds(raws.get(names.TPOT)),
        "e2e_s": seconds(raws.get(names.E2E)),
        "tgs": seconds(raws.get(names.TGS)),
        "decode_tgs": seconds(raws.get(names.DECODE_TGS)),
        "prefill_s": seconds(raws.get(names.PREFILL)),
        "queue_s": seconds(raws.get(names.QUEUE)),
        "tokenize_s": seconds(raws.get(names.TOKENIZE)),
        "prepare_s": seconds(raws.get(names.PREPARE)),
        "sampling_s": seconds(raws.get(names.SAMPLING)),
        "delivery_s": seconds(raws.get(names.DELIVERY)),
        "hold_back_s": seconds(raws.get(names.HOLD_BACK)),
        "first_delivery_s": seconds(raws.get(names.FIRST_DELIVERY)),
        "first_visible_text_s": seconds(raws.get(names.FIRST_VISIBLE_TEXT)),
    }


def _circumstances(raws: Mapping[str, Raw]) -> dict[str, Any]:
    return {
        "steps_truncated": bool(flag(raws.get(names.STEPS_TRUNCATED))),
        "cold": bool(flag(raws.get(names.COLD))),
        "cold_reasons": texts(raws.get(names.COLD_REASONS)),
        "compiled": bool(flag(raws.get(names.COMPILED))),
        "dtype": text(raws.get(names.DTYPE)),
        "quantization": text(raws.get(names.QUANTIZATION)),
        "attn_implementation": text(raws.get(names.ATTN_IMPLEMENTATION)),
        "cache_implementation": text(raws.get(names.CACHE_IMPLEMENTATION)),
        "host_bound_ratio": seconds(raws.get(names.HOST_BOUND_RATIO)),
        "clock_error_s": seconds(raws.get(names.CLOCK_ERROR)),
        "kv_cache_bytes": count(raws.get(names.KV_CACHE_BYTES)),
        "memory_allocated_bytes": count(raws.get(names.MEMORY_ALLOCATED)),
        "memory_reserved_bytes": count(raws.get(names.MEMORY_RESERVED)),
        "memory_peak_bytes": count(raws.get(names.MEMORY_PEAK)),
        "memory_growth_bytes": whole(raws.get(names.MEMORY_GROWTH)),
        "memory_inactive_split_bytes": count(raws.get(names.MEMORY_INACTIVE_SPLIT)),
        "device_name": text(raws.get(names.DEVICE_NAME)),
        "mbu": seconds(raws.get(names.MBU)),
        "mfu": seconds(raws.get(names.MFU)),
        "decode_bytes": amount(raws.get(names.DECODE_BYTES)),
        "prefill_flops": amount(raws.get(names.PREFILL_FLOPS)),
        "rank": count(raws.get(names.RANK)),
        "world_size": count(raws.get(names.WORLD_SIZE)),
        "ranks_request": text(raws.get(names.RANKS_REQUEST)),
        "devices": texts(raws.get(names.DEVICES)),
        "devices_prefill_s": _durations(raws.get(names.DEVICES_PREFILL)),
        "devices_decode_s": _durations(raws.get(names.DEVICES_DECODE)),
        "handover_s": number(raws.get(names.DEVICES_HANDOVER)),
    }
