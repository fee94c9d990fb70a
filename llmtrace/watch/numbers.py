"""The few figures of a frame: a whole report would take a tenth of a processor to follow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llmtrace.analysis.findings import merge_findings
from llmtrace.analysis.gaps import gaps_of
from llmtrace.analysis.summary import Summary, summarise
from llmtrace.analysis.throughput import Throughput, throughput
from llmtrace.records import Finding, RequestRecord


@dataclass(frozen=True, slots=True)
class Numbers:
    """What a frame says of the latest requests; as in a report, of good and warm ones."""

    ttft_s: Summary | None
    itl_s: Summary | None
    tpot_s: Summary | None
    tgs: Throughput
    findings: tuple[Finding, ...]
    only_cold: bool
    """There is no warm request yet, so the numbers are of cold ones."""


def numbers_of(records: Sequence[RequestRecord]) -> Numbers:
    """Return the figures of *records*."""
    good = [record for record in records if record.error is None]
    warm = [record for record in good if not record.cold]
    counted = warm or good
    return Numbers(
        ttft_s=summarise(r.ttft_s for r in counted),
        itl_s=summarise(gaps_of(counted).pooled()),
        tpot_s=summarise(r.tpot_s for r in counted),
        tgs=throughput(counted, records),
        findings=merge_findings(records),
        only_cold=bool(good) and not warm,
    )
