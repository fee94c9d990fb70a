"""Everything a report says, as data. Durations are seconds, sizes bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from llmtrace.analysis.findings import merge_findings, only_cold_requests
from llmtrace.analysis.first_text import FirstText, first_text
from llmtrace.analysis.latency import Bucket, itl_by_position, pooled_itl, ttft_by_prompt_tokens
from llmtrace.analysis.phases import Phases, phases
from llmtrace.analysis.summary import Summary, summarise
from llmtrace.analysis.throughput import Throughput, throughput
from llmtrace.records import Finding, RequestRecord


@dataclass(frozen=True, slots=True)
class Requests:
    """How many requests there were."""

    total: int
    """All of them: ``ok + error``."""
    ok: int
    error: int
    cold: int
    """Requests, good or failed, that paid for something one-off."""


@dataclass(frozen=True, slots=True)
class Report:
    """The numbers of a set of requests; None is what does not exist."""

    requests: Requests
    counted: int
    """Requests that the numbers below are made from: good ones, and warm unless asked for."""
    errors: tuple[tuple[str, int], ...]
    """Exception types of the failed requests, the most frequent first."""
    ttft_s: Summary | None
    ttft_by_prompt_tokens: tuple[Bucket, ...]
    itl_s: Summary | None
    itl_by_position: tuple[Bucket, ...]
    tpot_s: Summary | None
    e2e_s: Summary | None
    prefill_s: Summary | None
    tgs: Throughput
    output_tokens: Summary | None
    """One value per request, over all its rows."""
    input_tokens: Summary | None
    """One value per request, over all its prompts."""
    host_bound_ratio: Summary | None
    phases: Phases | None
    first_text: FirstText | None
    findings: tuple[Finding, ...]
    cold: Report | None = None
    """The cold requests' numbers, where there is no warm request to report."""


def build_report(records: Sequence[RequestRecord], *, include_cold: bool = False) -> Report:
    """Return the report of *records*.

    Failed requests are counted and left out of every number. So are cold ones, unless
    *include_cold*.
    """
    good = [record for record in records if record.error is None]
    counted = good if include_cold else [record for record in good if not record.cold]
    found = merge_findings(records)
    cold = None
    if good and not counted:
        found = (only_cold_requests(good), *found)
        cold = _report(records, good, found, None)
    return _report(records, counted, found, cold)


def _report(
    records: Sequence[RequestRecord],
    counted: Sequence[RequestRecord],
    findings: tuple[Finding, ...],
    cold: Report | None,
) -> Report:
    errors = Counter(record.error for record in records if record.error is not None)
    failed = errors.total()
    return Report(
        requests=Requests(
            total=len(records),
            ok=len(records) - failed,
            error=failed,
            cold=sum(record.cold for record in records),
        ),
        counted=len(counted),
        errors=tuple(errors.most_common()),
        ttft_s=summarise(r.ttft_s for r in counted),
        ttft_by_prompt_tokens=ttft_by_prompt_tokens(counted),
        itl_s=summarise(pooled_itl(counted)),
        itl_by_position=itl_by_position(counted),
        tpot_s=summarise(r.tpot_s for r in counted),
        e2e_s=summarise(r.e2e_s for r in counted),
        prefill_s=summarise(r.prefill_s for r in counted),
        tgs=throughput(counted, records),
        output_tokens=summarise(r.output_tokens for r in counted),
        input_tokens=summarise(r.input_tokens for r in counted),
        host_bound_ratio=summarise(r.host_bound_ratio for r in counted),
        phases=phases(counted),
        first_text=first_text(counted),
        findings=findings,
        cold=cold,
    )
