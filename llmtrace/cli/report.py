"""``llmtrace report``: what recorded traces say."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from llmtrace.cli.extras import require
from llmtrace.cli.reading import FILE_HELP, complain, read_files
from llmtrace.cli.writing import to_standard_output, write
from llmtrace.errors import SourceError

if TYPE_CHECKING:
    from llmtrace.analysis.report import Report
    from llmtrace.sources.recording import Recording


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "report",
        help="summarise recorded traces",
        description="Summarise recorded traces: TTFT, inter-token latency, tokens per second with "
        "the conditions they were taken under, where the time goes, and findings. Requests that "
        "failed are counted and left out of the numbers; so are cold ones (the first of a "
        "process, or with compilation).",
        epilog="Exit codes: 0 good, 1 a finding of severity error, 2 unreadable input.",
    )
    parser.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help=FILE_HELP,
    )
    parser.add_argument(
        "--format",
        choices=("text", "json", "markdown", "html"),
        default="text",
        help="default: %(default)s; html is one page for a browser, markdown for an issue or a "
        "pull request",
    )
    parser.add_argument(
        "--json",
        dest="format",
        action="store_const",
        const="json",
        help="the same as --format json",
    )
    parser.add_argument(
        "--include-cold", action="store_true", help="do not leave cold requests out of the numbers"
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="OUT",
        help="write the report to this file, not to standard output",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print or write the report; return the exit code."""
    require("numpy", "orjson", *(["rich"] if arguments.format == "text" else []))
    if arguments.format == "html" and to_standard_output(arguments.output) and _is_terminal():
        raise SourceError("html is a page for a browser: name a file for it, -o report.html")
    from llmtrace.analysis.report import build_report

    recording = read_files(arguments.files)
    report = build_report(recording.records, include_cold=arguments.include_cold)
    written = _render(report, recording, arguments)
    complain("report", recording)
    write("report", written + "\n", arguments.output, recording.files)
    return int(any(finding.severity == "error" for finding in report.findings))


def _is_terminal() -> bool:
    return sys.stdout.isatty()


def _render(report: Report, recording: Recording, arguments: argparse.Namespace) -> str:
    form: str = arguments.format
    if form == "json":
        from llmtrace.reports import json_report

        return json_report.render(report, recording)
    if form == "markdown":
        from llmtrace.reports import markdown

        return markdown.render(report, recording.problems)
    if form == "html":
        from llmtrace.reports import html

        return html.render(
            report,
            recording.records,
            include_cold=arguments.include_cold,
            problems=recording.problems,
        )
    from llmtrace.reports import text
    from llmtrace.reports.summary import MAX_WIDTH, fit

    here = to_standard_output(arguments.output)
    width, color = fit(sys.stdout) if here else (MAX_WIDTH, False)
    return text.render(report, width=width, color=color, problems=recording.problems.count)
