"""The summary printed at the end of a traced program."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from llmtrace.analysis.report import build_report
from llmtrace.records import RequestRecord
from llmtrace.reports import html, json_report, text

MAX_WIDTH = 100
"""Wider lines are harder to read."""


def summary_text(
    records: Sequence[RequestRecord], path: str | None, stream: TextIO, page: str | None = None
) -> str:
    """Return the text report of *records*, fit for *stream*.

    Args:
        records: The finished requests.
        path: The trace file they were written to, if there is one.
        stream: Where the text will be printed.
        page: The report as a page, if it has been written.
    """
    width, color = fit(stream)
    said = text.render(build_report(records), width=width, color=color, brief=True)
    if path is None:
        return said
    if not os.path.exists(path):  # noqa: PTH110 - a path as it will be shown
        return f"{said}\n\nNo trace file could be written at {path}."
    path = _shown(path)
    lines = [said, "", f"Trace file: {path}", f"The whole report: llmtrace report {path}"]
    if page is None:
        lines.append(f"As a page: llmtrace report {path} --format html -o report.html")
    else:
        lines.append(f"HTML report: {_shown(page)}")
    return "\n".join(lines)


def write_page(records: Sequence[RequestRecord], path: str | None) -> str | None:
    """Write the report of *records* as a page beside the trace file *path*; return where it lies.

    None where there is no trace file, or nothing can be written beside it.
    """
    if path is None or not Path(path).exists():
        return None
    page = Path(path).with_suffix(".html")
    try:
        page.write_text(html.render(build_report(records), records), encoding="utf-8")
    except OSError:
        return None
    return str(page)


def json_text(records: Sequence[RequestRecord]) -> str:
    """Return the JSON report of *records*."""
    return json_report.render(build_report(records))


def _shown(path: str) -> str:
    """Return *path* as short as it can be typed here."""
    relative = os.path.relpath(path)
    return path if relative.startswith(os.pardir) else relative


def fit(stream: TextIO) -> tuple[int, bool]:
    """Return the width to write to *stream* with, and whether to use colours."""
    if not stream.isatty():
        return MAX_WIDTH, False
    columns = shutil.get_terminal_size((MAX_WIDTH, 24)).columns
    # https://no-color.org
    return min(columns, MAX_WIDTH), not os.environ.get("NO_COLOR")
