"""A report for an issue or a pull request: tables that GitHub and others render."""

from __future__ import annotations

from collections.abc import Iterable

from llmtrace.analysis import metrics
from llmtrace.analysis.report import Report
from llmtrace.analysis.summary import DEVIATION, PERCENTILE_METHOD
from llmtrace.records import Finding
from llmtrace.reports.markdown_details import details
from llmtrace.reports.markdown_parts import COLUMNS, code, escaped, folded, make_table, numbers
from llmtrace.reports.wording import (
    ABSENT,
    cells,
    conditions,
    counts_line,
    listed,
    metric_rows,
    partial,
    scope,
    setup,
    shown_unit,
)
from llmtrace.sources.recording import Problems

SHOWN_TRACES = 3
SHOWN_PROBLEMS = 3


def render(report: Report, problems: Problems | None = None) -> str:
    """Return *report* as Markdown (GitHub's), without a line's end after it.

    Args:
        report: What to say.
        problems: What of the input could not be read.
    """
    numbers = report.cold or report
    blocks = [f"### llmtrace: {escaped(counts_line(report))}", _partial(problems)]
    blocks.append(_about(report, numbers))
    if numbers.counted:
        blocks += [
            _headline(numbers),
            _conditions(numbers),
            *details(numbers),
        ]
    blocks.append(_findings(report.findings))
    if numbers.counted:
        blocks.append(_method(numbers))
    return "\n\n".join(block for block in blocks if block)


def _partial(problems: Problems | None) -> str:
    if problems is None or not problems.count:
        return ""
    lines = "\n".join(f"> - {escaped(line)}" for line in problems.lines[:SHOWN_PROBLEMS])
    return f"> **{partial(problems.count)}**\n{lines}"


def _about(report: Report, numbers: Report) -> str:
    said = scope(report)
    if not numbers.counted:
        return said
    return f"{escaped(setup(numbers.tgs.conditions))}  \n{said}"


def _headline(report: Report) -> str:
    lines = []
    for spec, summary in metric_rows(report):
        unit, scale = shown_unit(spec)
        lines.append([f"**{spec.name}**, {unit}", *numbers(summary, scale)])
    system = ABSENT if report.tgs.system is None else cells([report.tgs.system], 1)[0]
    blank = [""] * (len(COLUMNS) - 1)
    lines.append([f"**{metrics.TGS_SYSTEM.name}**, tok/s", "", system, *blank])
    return make_table(["", "count", *COLUMNS], lines)


def _conditions(report: Report) -> str:
    said = [f"- {name}: {escaped(value)}" for name, value in conditions(report.tgs.conditions)]
    return "TGS was measured under\n\n" + "\n".join(said)


def _findings(findings: Iterable[Finding]) -> str:
    said = [_finding(finding) for finding in findings]
    return "#### Findings\n\n" + "\n".join(said) if said else "Findings: none"


def _finding(finding: Finding) -> str:
    lines = [f"- {finding.severity}: **{escaped(finding.title)}** ({code(finding.code)})"]
    if finding.evidence:
        lines.append(f"  {escaped(finding.evidence)}")
    if finding.remedy:
        lines.append(f"  → {escaped(finding.remedy)}")
    if finding.trace_ids:
        shown = ", ".join(map(code, finding.trace_ids[:SHOWN_TRACES]))
        more = len(finding.trace_ids) - SHOWN_TRACES
        lines.append(f"  traces: {shown}" + (f" and {more:,} more" if more > 0 else ""))
    return "  \n".join(lines)


def _method(report: Report) -> str:
    formulas = "\n".join(f"- {spec.name}: `{spec.formula}`" for spec in metrics.ALL)
    clocks = escaped(listed(report.tgs.conditions.clocks))
    note = (
        "One value per request; but ITL: one per gap and row, requests pooled, so weighted by "
        f"tokens. Percentiles: {PERCENTILE_METHOD}; {DEVIATION}. Clock: {clocks}."
    )
    return folded("Formulas and clock", f"{formulas}\n\n{note}")
