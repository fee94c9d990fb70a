"""A report for the terminal: the headline at one look, then where it comes from."""

from __future__ import annotations

import io
from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from llmtrace.analysis.report import Report
from llmtrace.records import Finding
from llmtrace.reports import tables
from llmtrace.reports.wording import clean, listed, plural

MIN_WIDTH = 76

_STYLES = {"error": "bold red", "warning": "bold yellow", "info": "bold blue"}


def render(report: Report, *, width: int = 100, color: bool = False, brief: bool = False) -> str:
    """Return *report* as text, without a line's end after it.

    Args:
        report: What to say.
        width: Columns of the terminal; below 76 it is taken as 76.
        color: Whether to use terminal colours; it reads as well without.
        brief: Leave out all tables but the first.
    """
    written = io.StringIO()
    console = Console(
        file=written,
        width=max(width, MIN_WIDTH),
        color_system="standard" if color else None,
        no_color=not color,
        force_terminal=color,
        force_jupyter=False,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )
    for section in _sections(report, tables.columns_for(console.width), brief=brief):
        console.print(section)
    return "\n".join(line.rstrip() for line in written.getvalue().rstrip().splitlines())


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
                tables.phase_shares(numbers),
                tables.first_text(numbers),
            ]
        )
        for section in found:
            if section is not None:
                sections += [Text(), section]
    return [*sections, Text(), _findings(report.findings)]


def _header(report: Report) -> RenderableType:
    requests = report.requests
    said = [
        plural(requests.total, "request"),
        f"{requests.ok} ok",
        f"{requests.error} failed" + _error_types(report),
        f"{requests.cold} cold",
    ]
    lines: list[RenderableType] = [Text(", ".join(said), style="bold")]
    of = (report.cold or report).tgs.conditions
    if (report.cold or report).counted:
        details = (of.dtypes, of.quantizations, of.attn_implementations, of.cache_implementations)
        setup = "; ".join(listed(values) for values in details if values)
        where = f"{listed(of.models)} on {listed(of.devices)}"
        lines.append(Text(where + (f" ({setup})" if setup else "")))
    lines.append(Text(_scope(report), style="bold" if report.cold else ""))
    return Group(*lines)


def _error_types(report: Report) -> str:
    named = [f"{kind} x{times}" if times > 1 else kind for kind, times in report.errors]
    return f" ({listed(named)})" if named else ""


def _scope(report: Report) -> str:
    """Say which requests the numbers are of."""
    if report.cold is not None:
        return (
            "EVERY REQUEST WAS COLD: the numbers below are those of the cold requests and include "
            "one-off costs."
        )
    if not report.counted:
        return "No request succeeded, so there is nothing to summarise."
    left_out = []
    if report.requests.error:
        left_out.append(f"{report.requests.error} failed")
    if report.requests.ok > report.counted:
        left_out.append(f"{report.requests.ok - report.counted} cold")
    said = f"The numbers below are of {plural(report.counted, 'request')}"
    return f"{said}; left out: {' and '.join(left_out)}." if left_out else f"{said}."


def _findings(findings: tuple[Finding, ...]) -> RenderableType:
    if not findings:
        return Text("Findings: none")
    lines: list[RenderableType] = [Text("Findings", style="bold")]
    for finding in findings:
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
