"""Levers as JSON, and as lines of CSV."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from llmtrace.analysis.comparison import METHOD, Line
from llmtrace.analysis.latency import prompt_tokens
from llmtrace.analysis.report import Report
from llmtrace.bench import result
from llmtrace.bench.compare_settings.evaluation import Outcome, Settings, verdict
from llmtrace.bench.compare_settings.sides import KINDS, Side, Tried, trace_name
from llmtrace.records import RequestRecord
from llmtrace.reports.json_report import as_object as report_object

COLUMNS = (
    "lever", "side", "kind", "trial", "rows", "prompt_tokens", "output_tokens", "ttft_s", "tpot_s",
    "tgs", "kv_cache_bytes", "counted", "cold_reasons", "clock", "trace_id",
)  # fmt: skip


def as_object(found: Settings, header: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result for JSON."""
    return {
        **header,
        "interrupted": found.interrupted,
        "method": METHOD,
        "levers": [_lever(outcome) for outcome in found.outcomes],
        "unavailable": [{"lever": one.name, "reason": one.reason} for one in found.unavailable],
        "cautions": result.cautions_of(found.cautions),
    }


def _lever(outcome: Outcome) -> dict[str, Any]:
    tried = outcome.tried
    return {
        "lever": tried.lever.name,
        "measure": tried.lever.measure,
        "interleaved": tried.interleaved,
        "interrupted": tried.interrupted,
        "lines": [_line(line) for line in outcome.lines],
        "before": _side(tried, tried.before, outcome.before),
        "after": _side(tried, tried.after, outcome.after),
    }


def _line(line: Line) -> dict[str, Any]:
    return {
        "name": line.name,
        "unit": line.unit,
        "before": line.before,
        "after": line.after,
        "change": line.change,
        "interval": None if line.interval is None else [line.interval.low, line.interval.high],
        "samples": list(line.samples),
        "verdict": verdict(line),
    }


def _side(tried: Tried, side: Side, report: Report) -> dict[str, Any]:
    return {
        "settings": side.variant.said,
        "generation": asdict(side.variant.plan),
        "trace": trace_name(tried.lever, side),
        "warmup": result.warmup_of(side.single),
        "peak_memory_bytes": side.peak_memory_bytes,
        "report": report_object(report),
    }


def rows(found: Settings) -> list[dict[str, Any]]:
    """Return one line of CSV for each request."""
    return [
        _row(outcome.tried, side, kind, trial, record)
        for outcome in found.outcomes
        for side in outcome.tried.sides
        for kind in KINDS
        for trial, record in enumerate(side.of(kind).records)
    ]


def _row(tried: Tried, side: Side, kind: str, trial: int, r: RequestRecord) -> dict[str, Any]:
    return {
        "lever": tried.lever.name,
        "side": side.name,
        "kind": kind,
        "trial": trial,
        "rows": r.batch_size,
        "prompt_tokens": prompt_tokens(r),
        "output_tokens": r.output_tokens,
        "ttft_s": r.ttft_s,
        "tpot_s": r.tpot_s,
        "tgs": r.tgs,
        "kv_cache_bytes": r.kv_cache_bytes,
        "counted": int(r.error is None and not r.cold),
        "cold_reasons": " ".join(r.cold_reasons),
        "clock": r.clock,
        "trace_id": r.trace_id,
    }
