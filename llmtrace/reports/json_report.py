"""A report as strict JSON: docs/glossary.md's numbers, nulls for what does not exist."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from llmtrace.analysis.intervals import LEVEL, METHOD
from llmtrace.analysis.latency import Bucket
from llmtrace.analysis.report import ColdRequests, Report
from llmtrace.analysis.summary import Summary
from llmtrace.analysis.throughput import Throughput
from llmtrace.sources.recording import Recording

SCHEMA = "llmtrace.report/1"


def render(report: Report, recording: Recording | None = None) -> str:
    """Return *report* as one JSON object, without a line's end after it.

    Args:
        report: What to say.
        recording: What its requests were read from, if they were.
    """
    found = as_object(report)
    if recording is not None:
        found["input"] = input_object(recording)
    return json.dumps(found, indent=2, allow_nan=False)


def input_object(recording: Recording) -> dict[str, Any]:
    """Return what was read, and whether all of it could be."""
    problems = recording.problems
    return {
        "partial": recording.partial,
        "files": len(recording.files),
        "problems": {"count": problems.count, "first": problems.lines},
        "notes": list(recording.notes),
    }


def as_object(report: Report) -> dict[str, Any]:
    """Return *report* as the JSON object it is written as."""
    return {
        "schema": SCHEMA,
        "requests": asdict(report.requests),
        "ttft_s": _summary(report.ttft_s),
        "ttft_by_prompt_tokens": _buckets(report.ttft_by_prompt_tokens, "ttft_s"),
        "itl_s": _summary(report.itl_s),
        "itl_by_position": _buckets(report.itl_by_position, "itl_s"),
        "tpot_s": _summary(report.tpot_s),
        "e2e_s": _summary(report.e2e_s),
        "prefill_s": _summary(report.prefill_s),
        "tgs": _tgs(report.tgs),
        "output_tokens": _summary(report.output_tokens),
        "input_tokens": _summary(report.input_tokens),
        "host_bound_ratio": _summary(report.host_bound_ratio),
        "findings": [asdict(finding) for finding in report.findings],
        "mbu": _summary(report.mbu),
        "mfu": _summary(report.mfu),
        "itl_trend": None if report.itl_trend is None else asdict(report.itl_trend),
        "groups": {grouping.by: [asdict(g) for g in grouping.groups] for grouping in report.groups},
        "ranks": None if report.ranks is None else asdict(report.ranks),
        "confidence": _confidence(report),
        "cold": None if report.cold_requests is None else _cold(report.cold_requests),
    }


def _confidence(report: Report) -> dict[str, Any]:
    intervals: dict[str, Any] = {
        metric: {name: [bounds.low, bounds.high] for name, bounds in found.items()}
        for metric, found in report.intervals.items()
    }
    return {"level": LEVEL, "method": METHOD, **intervals}


def _cold(cold: ColdRequests) -> dict[str, Any]:
    return {**asdict(cold), "reasons": dict(cold.reasons)}


def _tgs(tgs: Throughput) -> dict[str, Any]:
    return {
        "request": _summary(tgs.request),
        "decode": _summary(tgs.decode),
        "system": tgs.system,
        "conditions": asdict(tgs.conditions),
        "by_concurrency": [asdict(level) for level in tgs.by_concurrency],
    }


def _summary(summary: Summary | None) -> dict[str, Any] | None:
    return None if summary is None else asdict(summary)


def _buckets(buckets: Iterable[Bucket], name: str) -> list[dict[str, Any]]:
    return [{"from": b.first, "to": b.last, name: _summary(b.summary)} for b in buckets]
