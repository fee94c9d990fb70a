"""Reading the recordings that a command was given."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llmtrace.sources.recording import Problems, Recording

SHOWN_PROBLEMS = 5

LONG_WORK_BYTES = 50_000_000
"""From this much input on, progress is shown."""

FILE_HELP = (
    "OTLP/JSON lines, llmtrace's own or those of a collector's file exporter; plain, gzip or zstd; "
    "a folder of such files; or - for standard input"
)


def read_files(files: Sequence[str]) -> Recording:
    """Read *files*, with progress where it takes long and someone is watching."""
    from llmtrace.sources.otlp_json import read

    with progress(files, "reading") as on_bytes:
        return read(files, on_bytes)


def complain(command: str, recording: Recording) -> None:
    """Say what could not be read, and what was put right."""
    complain_of(command, recording.problems, recording.notes)


def complain_of(command: str, problems: Problems, notes: Iterable[str]) -> None:
    """Say what could not be read, and *notes*."""
    said = problems.lines[:SHOWN_PROBLEMS]
    more = problems.count - SHOWN_PROBLEMS
    if more > 0:
        said.append(f"and {more} more problems in the input")
    for line in (*said, *notes):
        print(f"llmtrace {command}: {line}", file=sys.stderr)


@contextmanager
def progress(
    files: Sequence[str], doing: str, least: int = LONG_WORK_BYTES
) -> Iterator[Callable[[int], None] | None]:
    """Show how far reading has come, where there are *least* bytes and someone is watching."""
    total = sum(Path(name).stat().st_size for name in files if Path(name).is_file())
    if total < least or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

    columns = (doing, BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(doing, total=total)
        done = before = 0

        def on_bytes(position: int) -> None:
            nonlocal done, before
            if position < before:  # the next file
                done += before
            before = position
            bar.update(task, completed=done + position)

        yield on_bytes
