"""The tables of the Markdown report that go into detail."""

from __future__ import annotations

from collections.abc import Sequence

from llmtrace.analysis.groups import Grouping
from llmtrace.analysis.intervals import METHOD
from llmtrace.analysis.latency import Bucket
from llmtrace.analysis.report import Report
from llmtrace.analysis.summary import Summary
from llmtrace.reports.markdown_parts import COLUMNS, escaped, folded, make_table, numbers
from llmtrace.reports.wording import (
    ABSENT,
    GROUP_NAMES,
    MOST_GROUPS,
    SURE,
    SURE_COLUMNS,
    bounds,
    cells,
    jump_words,
    slope_words,
)


def details(report: Report) -> list[str]:
    """Return the tables that go into detail, each behind its title; empty for what is not."""
    return [
        folded(
            "TTFT by prompt length, ms",
            _buckets("prompt tokens", report.ttft_by_prompt_tokens),
        ),
        folded("ITL by token position, ms", _positions(report)),
        folded("Where the time goes", _phases(report)),
        folded("First visible text, ms", _first_text(report)),
        *(folded(GROUP_NAMES[found.by], _groups(found)) for found in report.groups),
        folded("TGS by concurrency", _by_concurrency(report)),
        folded("95 % intervals, ms", _intervals(report)),
        folded("Cold requests, ms", _cold(report)),
    ]


def _positions(report: Report) -> str:
    found = _buckets("token", report.itl_by_position)
    trend = report.itl_trend
    if not found or trend is None:
        return found
    return f"{found}\n\nITL over context: {slope_words(trend)}. Lasting jump: {jump_words(trend)}."


def _buckets(name: str, buckets: Sequence[Bucket]) -> str:
    lines = [[bounds(b), *numbers(b.summary, 1e3)] for b in buckets if b.summary is not None]
    return make_table([name, "count", *COLUMNS], lines) if lines else ""


def _phases(report: Report) -> str:
    found = report.phases
    if found is None:
        return ""
    lines = [
        [part.name, cells([part.mean_s], 1e3)[0], f"{part.share:.1%}", escaped(part.formula)]
        for part in found.parts
        if part.mean_s is not None and part.share is not None
    ]
    if found.delivery.mean_s is not None:
        late = cells([found.delivery.mean_s], 1e3)[0]
        lines.append(["delivery", late, "beside decoding", escaped(found.delivery.formula)])
    return make_table(["", "mean ms", "share", "what"], lines, left=(3,))


def _first_text(report: Report) -> str:
    found = report.first_text
    if found is None:
        return ""
    lines = [
        [name.replace("_", " "), *numbers(part, 1e3), f"{found.shares[name] or 0:.1%}"]
        for name, part in found.parts.items()
        if part is not None
    ]
    lines.append(["all", *numbers(found.total_s, 1e3), "100.0%"])
    return make_table(["", "count", *COLUMNS, "share"], lines)


def _groups(found: Grouping) -> str:
    if len(found.groups) <= 1:
        return ""
    head = ["", "requests", "TTFT p50 ms", "p95", "ITL p50 ms", "p95", "TGS", "system"]
    lines = [
        [
            escaped(group.value),
            f"{group.requests:,}",
            *_two(group.ttft_s),
            *_two(group.itl_s),
            ABSENT if group.tgs_request is None else f"{group.tgs_request.mean:,.2f}",
            ABSENT if group.tgs_system is None else f"{group.tgs_system:,.2f}",
        ]
        for group in found.groups[:MOST_GROUPS]
    ]
    more = len(found.groups) - MOST_GROUPS
    return make_table(head, lines) + (f"\n\nand {more} more" if more > 0 else "")


def _two(summary: Summary | None) -> list[str]:
    return [ABSENT, ABSENT] if summary is None else cells([summary.p50, summary.p95], 1e3)


def _by_concurrency(report: Report) -> str:
    levels = report.tgs.by_concurrency
    if len(levels) <= 1:
        return ""
    lines = [
        [str(at.running), f"{at.seconds:,.2f}", f"{at.output_tokens:,}", f"{at.tgs:,.2f}"]
        for at in levels
    ]
    return make_table(["requests at once", "seconds", "tokens", "tok/s"], lines)


def _intervals(report: Report) -> str:
    lines = []
    for key, name in SURE.items():
        found = report.intervals.get(key, {})
        if found:
            shown = [
                " to ".join(cells([found[column].low, found[column].high], 1e3))
                if column in found
                else ABSENT
                for column in SURE_COLUMNS
            ]
            lines.append([name, *shown])
    return f"{make_table(['', *SURE_COLUMNS], lines)}\n\n{METHOD}" if lines else ""


def _cold(report: Report) -> str:
    cold = report.cold_requests
    if cold is None:
        return ""
    rows = (("TTFT", cold.ttft_s), ("ITL", cold.itl_s), ("E2E", cold.e2e_s))
    lines = [[name, *numbers(summary, 1e3)] for name, summary in rows if summary is not None]
    reasons = ", ".join(f"{escaped(reason)} x{times}" for reason, times in cold.reasons)
    said = f"Left out of every other table. Reasons: {reasons or 'not recorded'}."
    return f"{make_table(['', 'count', *COLUMNS], lines)}\n\n{said}"
