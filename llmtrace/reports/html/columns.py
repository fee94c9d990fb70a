"""One row per request, column by column: a tenth of the size of a list of objects."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from llmtrace.analysis.latency import prompt_tokens
from llmtrace.records import RequestRecord

MICRO = 1e6

_DURATIONS: dict[str, Callable[[RequestRecord], float | None]] = {
    "duration": lambda r: r.duration_s,
    "ttft": lambda r: r.ttft_s,
    "e2e": lambda r: r.e2e_s,
    "tpot": lambda r: r.tpot_s,
    "itl_max": lambda r: max(r.itl_s, default=None),
    "queue": lambda r: r.queue_s,
    "tokenize": lambda r: r.tokenize_s,
    "prefill": lambda r: r.prefill_s,
    "prefill_start": lambda r: r.steps[0].forward_start_s if r.steps else None,
    "prefill_end": lambda r: r.steps[0].forward_end_s if r.steps else None,
    "delivery": lambda r: r.first_delivery_s,
    "prepare": lambda r: r.prepare_s,
    "hold_back": lambda r: r.hold_back_s,
    "visible": lambda r: r.first_visible_text_s,
    "handover": lambda r: r.handover_s,
}

_NUMBERS: dict[str, Callable[[RequestRecord], float | None]] = {
    "prompt": prompt_tokens,
    "input": lambda r: r.input_tokens,
    "cached": lambda r: r.input_tokens_cached,
    "output": lambda r: r.output_tokens,
    "rows": lambda r: r.batch_size,
    "steps_seen": lambda r: len(r.steps) or None,
    "kv_bytes": lambda r: r.kv_cache_bytes,
    "peak_bytes": lambda r: r.memory_peak_bytes,
    "growth_bytes": lambda r: r.memory_growth_bytes,
    "rank": lambda r: r.rank,
    "mbu": lambda r: _ratio(r.mbu),
    "mfu": lambda r: _ratio(r.mfu),
    "tgs": lambda r: None if r.tgs is None else round(r.tgs, 2),
    "host_bound": lambda r: _ratio(r.host_bound_ratio),
}

_WORDS: dict[str, Callable[[RequestRecord], str | None]] = {
    "model": lambda r: r.model,
    "strategy": lambda r: r.strategy,
    "device": lambda r: r.device if r.device_name is None else f"{r.device}, {r.device_name}",
    "clock": lambda r: r.clock,
    "devices": lambda r: ", ".join(r.devices) or None,
    "error": lambda r: r.error,
    "finish": lambda r: ", ".join(dict.fromkeys(r.finish_reasons)) or None,
    "cold": lambda r: (", ".join(r.cold_reasons) or "cold") if r.cold else None,
    "findings": lambda r: ", ".join(f.code for f in r.findings) or None,
}


def columns(records: Sequence[RequestRecord], counted: Iterable[RequestRecord]) -> dict[str, Any]:
    """Return the columns; one that holds nothing is left out.

    Durations are microseconds, ``start`` counts from the first request, and words stand once, as
    ``{"words": [...], "at": [index or null, ...]}``.
    """
    first = min((r.start_unix_ns for r in records), default=0)
    within = {id(record) for record in counted}
    found: dict[str, Any] = {
        "count": len(records),
        "first_unix_ms": first // 1_000_000 if records else None,
        "trace": [r.trace_id for r in records],
        "start": [(r.start_unix_ns - first) // 1000 for r in records],
        "counted": [int(id(r) in within) for r in records],
    }
    for name, duration in _DURATIONS.items():
        found[name] = [micros(duration(r)) for r in records]
    for name, number in _NUMBERS.items():
        found[name] = [number(r) for r in records]
    for name, word in _WORDS.items():
        found[name] = _words([word(r) for r in records])
    return {name: column for name, column in found.items() if _holds(column)}


def micros(duration_s: float | None) -> int | None:
    """Return a duration in whole microseconds."""
    return None if duration_s is None else round(duration_s * MICRO)


def _ratio(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _words(values: Sequence[str | None]) -> dict[str, Any]:
    words = list(dict.fromkeys(value for value in values if value is not None))
    place = {word: index for index, word in enumerate(words)}
    return {"words": words, "at": [None if v is None else place[v] for v in values]}


def _holds(column: Any) -> bool:
    if isinstance(column, dict):
        return bool(column["words"])
    if isinstance(column, list):
        return any(value is not None for value in column)
    return column is not None
