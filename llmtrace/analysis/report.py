"""Everything a report says, as data. Durations are seconds, sizes bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from llmtrace.analysis.curve import Curve, Trend, itl_curve, trend
from llmtrace.analysis.findings import merge_findings, only_cold_requests
from llmtrace.analysis.first_text import FirstText, first_text
from llmtrace.analysis.gaps import Gaps, gaps_of
from llmtrace.analysis.groups import Grouping, groupings
from llmtrace.analysis.intervals import Interval, draw
from llmtrace.analysis.latency import Bucket, itl_by_position, ttft_by_prompt_tokens
from llmtrace.analysis.phases import Phases, phases
from llmtrace.analysis.ranks import Ranks, one_per_request, ranks_of
from llmtrace.analysis.summary import Summary, present, summarise
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
class ColdRequests:
    """What one-off costs made of the requests that paid for them."""

    requests: int
    reasons: tuple[tuple[str, int], ...]
    """What they paid for, the most frequent first."""
    ttft_s: Summary | None
    itl_s: Summary | None
    e2e_s: Summary | None


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
    cold_requests: ColdRequests | None = None
    """Good ones that were left out for being cold."""
    itl_curve: Curve | None = None
    itl_trend: Trend | None = None
    groups: tuple[Grouping, ...] = ()
    """The same figures by model, prompt length, batch size and strategy."""
    mbu: Summary | None = None
    """Where the device's peaks are known; so is the next."""
    mfu: Summary | None = None
    ranks: Ranks | None = None
    """Of tensor-parallel requests, which several ranks record."""
    intervals: Mapping[str, Mapping[str, Interval]] = field(default_factory=dict)
    """For ``ttft_s``, ``itl_s``, ``tpot_s`` and ``e2e_s``: the interval of ``mean``, ``p50``,
    ``p90``, ``p95`` and ``p99``, as far as there are enough requests for one."""


def build_report(records: Sequence[RequestRecord], *, include_cold: bool = False) -> Report:
    """Return the report of *records*.

    Failed requests are counted and left out of every number. So are cold ones, unless
    *include_cold*. What several ranks served together is one request.
    """
    found, ranks = merge_findings(records), ranks_of(records)
    records = one_per_request(records)
    good = [record for record in records if record.error is None]
    counted = counted_requests(records, include_cold=include_cold)
    cold = None
    if good and not counted:
        found = (only_cold_requests(good), *found)
        cold = _report(records, good, found, None)
    return replace(_report(records, counted, found, cold), ranks=ranks)


def counted_requests(
    records: Sequence[RequestRecord], *, include_cold: bool = False
) -> list[RequestRecord]:
    """Return the requests whose numbers count: good ones, and warm unless *include_cold*."""
    good = [record for record in one_per_request(records) if record.error is None]
    return good if include_cold else [record for record in good if not record.cold]


def cold_apart(records: Sequence[RequestRecord]) -> ColdRequests | None:
    """Return the numbers of *records*, which are cold; None where there are none."""
    if not records:
        return None
    reasons = Counter(reason for record in records for reason in record.cold_reasons)
    return ColdRequests(
        requests=len(records),
        reasons=tuple(reasons.most_common()),
        ttft_s=summarise(r.ttft_s for r in records),
        itl_s=summarise(gaps_of(records).pooled()),
        e2e_s=summarise(r.e2e_s for r in records),
    )


def _report(
    records: Sequence[RequestRecord],
    counted: Sequence[RequestRecord],
    findings: tuple[Finding, ...],
    cold: Report | None,
) -> Report:
    errors = Counter(record.error for record in records if record.error is not None)
    failed = errors.total()
    gaps = gaps_of(counted)
    curve = itl_curve(gaps)
    kept = {id(record) for record in counted}
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
        itl_s=summarise(gaps.pooled()),
        itl_by_position=itl_by_position(counted, gaps),
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
        cold_requests=cold_apart(
            [r for r in records if r.cold and r.error is None and id(r) not in kept]
        ),
        itl_curve=curve,
        itl_trend=trend(counted, gaps, curve),
        groups=groupings(counted, gaps),
        mbu=summarise(r.mbu for r in counted),
        mfu=summarise(r.mfu for r in counted),
        intervals=_intervals(counted, gaps),
    )


def _intervals(records: Sequence[RequestRecord], gaps: Gaps) -> dict[str, dict[str, Interval]]:
    drawn = {
        "ttft_s": draw(present(r.ttft_s for r in records)),
        "itl_s": draw(gaps.seconds, gaps.request, gaps.rows),
        "tpot_s": draw(present(r.tpot_s for r in records)),
        "e2e_s": draw(present(r.e2e_s for r in records)),
    }
    return {name: draws.intervals() for name, draws in drawn.items()}
