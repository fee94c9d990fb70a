"""A report for the terminal: the headline at one look, then where it comes from."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from llmtrace.analysis.report import Report
from llmtrace.records import Finding
from llmtrace.reports import detail_tables, tables, wording
from llmtrace.reports.printing import MIN_WIDTH, printed
from llmtrace.reports.wording import clean, counts_line, listed, scope, setup

_STYLES = {"error": "bold red", "warning": "bold yellow", "info": "bold blue"}


def render(
    report: Report,
    *,
    width: int = 100,
    color: bool = False,
    brief: bool = False,
    problems: int = 0,
) -> str:
    """Return *report* as text, without a line's end after it.

    Args:
        report: What to say.
        width: Columns of the terminal; below 76 it is taken as 76.
        color: Whether to use terminal colours; it reads as well without.
        brief: Leave out all tables but the first.
        problems: Places of the input that could not be read.
    """
    columns = tables.columns_for(max(width, MIN_WIDTH))
    return printed([*partial(problems), *_sections(report, columns, brief=brief)], width, color)


def partial(problems: int) -> list[RenderableType]:
    """Return the line that says that something could not be read, if so."""
    said = wording.partial(problems)
    return [Text(said, style="bold yellow")] if said else []


def _sections(report: Report, columns: Sequence[str], *, brief: bool) -> list[RenderableType]:
    numbers = report.cold or report
    sections: list[RenderableType] = [_header(report)]
    if numbers.counted:
        sections += [Text(), tables.headline(numbers, columns)]
        found = (
            []
            if brief
            else [
                tables.ttft_by_prompt(numbers, columns),
                tables.itl_by_position(numbers, columns),
                detail_tables.trend(numbers),
                tables.phase_shares(numbers),
                tables.first_text(numbers),
                detail_tables.groups(numbers),
                detail_tables.by_concurrency(numbers),
                detail_tables.confidence(numbers),
                detail_tables.cold_requests(report, columns),
                detail_tables.ranks(report, columns),
            ]
        )
        for section in found:
            if section is not None:
                sections += [Text(), section]
    return [*sections, Text(), findings(report.findings)]


def _header(report: Report) -> RenderableType:
    lines: list[RenderableType] = [Text(counts_line(report), style="bold")]
    numbers = report.cold or report
    if numbers.counted:
        lines.append(Text(setup(numbers.tgs.conditions)))
    lines.append(Text(scope(report), style="bold" if report.cold else ""))
    return Group(*lines)


def findings(found: Sequence[Finding]) -> RenderableType:
    """Return what is to be said of the requests, worst first."""
    if not found:
        return Text("Findings: none")
    lines: list[RenderableType] = [Text("Findings", style="bold")]
    for finding in found:
        title = Text(finding.severity, style=_STYLES[finding.severity])
        title.append(f"  {clean(finding.title)} [{clean(finding.code)}]", style="default")
        lines.append(title)
        details = [clean(finding.evidence)] if finding.evidence else []
        if finding.trace_ids:
            details.append(f"traces: {listed(finding.trace_ids[:1])}" + _further(finding))
        if details:
            lines.append(Padding(Text("; ".join(details)), (0, 0, 0, 3)))
        if finding.remedy:
            lines.append(Padding(Text(f"-> {clean(finding.remedy)}"), (0, 0, 0, 3)))
    return Group(*lines)


def _further(finding: Finding) -> str:
    more = len(finding.trace_ids) - 1
    return f" and {more} more" if more else ""
