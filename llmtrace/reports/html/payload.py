"""Everything the page shows, as one object. Durations are whole microseconds unless said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from llmtrace.analysis import metrics
from llmtrace.analysis.first_text import FORMULAS
from llmtrace.analysis.gaps import gaps_of
from llmtrace.analysis.report import Report
from llmtrace.analysis.summary import DEVIATION, PERCENTILE_METHOD
from llmtrace.analysis.timeline import timeline
from llmtrace.records import Finding, RequestRecord
from llmtrace.reports import json_report
from llmtrace.reports.html.columns import columns
from llmtrace.reports.html.curves import histogram, packed
from llmtrace.reports.html.steps import choose, encoded_steps
from llmtrace.reports.html.timeline import binned
from llmtrace.reports.wording import conditions, partial
from llmtrace.sources.recording import Problems
from llmtrace.version import __version__

SHOWN_REQUESTS_OF_A_FINDING = 100
SHOWN_PROBLEMS = 5


def payload(
    report: Report,
    records: Sequence[RequestRecord],
    *,
    include_cold: bool,
    problems: Problems | None = None,
) -> dict[str, Any]:
    """Return what the page is made from."""
    numbers = report.cold or report
    counted = counted_records(records, include_cold=include_cold)
    chosen = choose(records)
    return {
        "version": __version__,
        "report": {**json_report.as_object(numbers), "findings": _findings(report, records)},
        "partial": "" if problems is None else partial(problems.count),
        "problems": [] if problems is None else problems.lines[:SHOWN_PROBLEMS],
        "all_cold": report.cold is not None,
        "counted": numbers.counted,
        "errors": report.errors,
        "conditions": conditions(numbers.tgs.conditions),
        "phases": None if numbers.phases is None else asdict(numbers.phases),
        "first_text": None if numbers.first_text is None else asdict(numbers.first_text),
        "first_text_formulas": FORMULAS,
        "formulas": [(spec.name, spec.formula) for spec in metrics.ALL],
        "methods": {"percentiles": PERCENTILE_METHOD, "deviation": DEVIATION},
        "requests": columns(records, counted),
        "steps": encoded_steps(records, chosen),
        "itl_curve": packed(numbers.itl_curve),
        "ttft_histogram": histogram([r.ttft_s for r in counted if r.ttft_s is not None]),
        "itl_histogram": histogram(gaps_of(counted).pooled()),
        "timeline": binned(timeline(records, records)),
    }


def counted_records(records: Sequence[RequestRecord], *, include_cold: bool) -> list[RequestRecord]:
    """Return the requests that the report's numbers are made from."""
    good = [record for record in records if record.error is None]
    warm = [record for record in good if include_cold or not record.cold]
    return warm or good


def _findings(report: Report, records: Sequence[RequestRecord]) -> list[dict[str, Any]]:
    """Return the findings, each with the rows of the table it is about."""
    rows: dict[str, list[int]] = {}
    for row, record in enumerate(records):
        if record.trace_id is not None:
            rows.setdefault(record.trace_id, []).append(row)
    return [_finding(finding, rows) for finding in report.findings]


def _finding(finding: Finding, rows: dict[str, list[int]]) -> dict[str, Any]:
    about = [row for trace in finding.trace_ids for row in rows.get(trace, ())]
    told = asdict(finding)
    del told["trace_ids"]
    return {**told, "rows": about[:SHOWN_REQUESTS_OF_A_FINDING], "requests": len(about)}
