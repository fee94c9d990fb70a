"""``llmtrace report``: what recorded traces say."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmtrace.cli.extras import require
from llmtrace.errors import SourceError

if TYPE_CHECKING:
    from llmtrace.analysis.report import Report
    from llmtrace.sources.recording import Problems, Recording

SHOWN_PROBLEMS = 5

LONG_WORK_BYTES = 50_000_000
"""From this much input on, progress is shown."""

STANDARD_STREAM = "-"


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
        help="OTLP/JSON lines, llmtrace's own or those of a collector's file exporter; plain, "
        "gzip or zstd; a folder of such files; or - for standard input",
    )
    parser.add_argument(
        "--format", choices=("text", "json"), default="text", help="default: %(default)s"
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
    from llmtrace.analysis.report import build_report

    recording = _read(arguments.files)
    report = build_report(recording.records, include_cold=arguments.include_cold)
    written = _render(report, arguments.format, arguments.output)
    _complain(recording.problems)
    _write(written + "\n", arguments.output, recording.files)
    return int(any(finding.severity == "error" for finding in report.findings))


def _read(files: Sequence[str]) -> Recording:
    from llmtrace.sources.otlp_json import read

    with _progress(files) as on_bytes:
        return read(files, on_bytes)


def _render(report: Report, form: str, output: str | None) -> str:
    if form == "json":
        from llmtrace.reports import json_report

        return json_report.render(report)
    from llmtrace.reports import text
    from llmtrace.reports.summary import MAX_WIDTH, fit

    width, color = fit(sys.stdout) if _to_standard_output(output) else (MAX_WIDTH, False)
    return text.render(report, width=width, color=color)


def _to_standard_output(output: str | None) -> bool:
    return output in {None, STANDARD_STREAM}


def _complain(problems: Problems) -> None:
    """Say what could not be read."""
    for line in problems.lines[:SHOWN_PROBLEMS]:
        print(f"llmtrace report: {line}", file=sys.stderr)
    more = problems.count - SHOWN_PROBLEMS
    if more > 0:
        print(f"llmtrace report: and {more} more problems in the input", file=sys.stderr)


def _write(text: str, output: str | None, files: Sequence[str]) -> None:
    if output is None or output == STANDARD_STREAM:
        _print(text)
        return
    place = Path(output)
    if place.exists() and not place.is_file():
        raise SourceError(f"{output}: is not a regular file, so it is not written over")
    if any(place.exists() and Path(name).exists() and place.samefile(name) for name in files):
        raise SourceError(f"{output}: is one of the files read, so it is not written over")
    try:
        place.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SourceError(f"{output}: cannot be written: {error.strerror or error}") from None
    print(f"llmtrace report: written to {output}", file=sys.stderr)


def _print(text: str) -> None:
    """Print *text*; what the terminal has no letters for becomes a question mark."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
    sys.stdout.flush()


@contextmanager
def _progress(files: Sequence[str]) -> Iterator[Callable[[int], None] | None]:
    """Show how far reading has come, where it takes long and someone is watching."""
    total = sum(Path(name).stat().st_size for name in files if Path(name).is_file())
    if total < LONG_WORK_BYTES or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

    columns = ("reading", BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("reading", total=total)
        done = before = 0

        def on_bytes(position: int) -> None:
            nonlocal done, before
            if position < before:  # the next file
                done += before
            before = position
            progress.update(task, completed=done + position)

        yield on_bytes
