"""Findings of all requests, each once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from llmtrace.known_findings import KNOWN
from llmtrace.records import Finding, RequestRecord, Severity

_RANK: dict[Severity, int] = {"error": 0, "warning": 1, "info": 2}


def merge_findings(records: Sequence[RequestRecord]) -> tuple[Finding, ...]:
    """Return the findings of *records*, worst first; equal ones once, with all their traces."""
    merged: dict[tuple[str, str, str, str], Finding] = {}
    for record in records:
        for found in record.findings:
            finding = _described(found)
            key = (finding.code, finding.severity, finding.title, finding.remedy)
            traces = _traces(record, finding)
            if key in merged:
                first = merged[key]
                traces = (*first.trace_ids, *traces)
                finding = replace(first, evidence=_either(first.evidence, finding.evidence))
            merged[key] = replace(finding, trace_ids=tuple(dict.fromkeys(traces)))
    return tuple(sorted(merged.values(), key=lambda finding: _RANK[finding.severity]))


def only_cold_requests(records: Sequence[RequestRecord]) -> Finding:
    """Return the finding that no warm request was recorded."""
    reasons = sorted({reason for record in records for reason in record.cold_reasons})
    return Finding(
        code="only_cold_requests",
        severity="warning",
        title="Every request was cold, so no latency is summarised",
        evidence=f"cold requests: {len(records)}" + (f" ({', '.join(reasons)})" if reasons else ""),
        remedy="Send at least one more request in the same process, or use --include-cold.",
        trace_ids=tuple(dict.fromkeys(r.trace_id for r in records if r.trace_id is not None)),
    )


def _described(finding: Finding) -> Finding:
    """Return *finding* with the title and remedy that its code stands for, where it has none."""
    if finding.title:
        return finding
    known = KNOWN.get(finding.code)
    if known is None:
        return replace(finding, title=finding.code.replace("_", " "))
    return replace(known, evidence=finding.evidence)


def _traces(record: RequestRecord, finding: Finding) -> Iterable[str]:
    if finding.trace_ids:
        return finding.trace_ids
    return () if record.trace_id is None else (record.trace_id,)


def _either(first: str, second: str) -> str:
    """Return the evidence of the first request; that others differ is said once."""
    if not second or second == first or first.endswith(_OTHERS):
        return first
    return first + _OTHERS if first else second


_OTHERS = "; other requests differ"
