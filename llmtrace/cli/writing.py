"""Writing what a command has to say."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from llmtrace.errors import SourceError

STANDARD_STREAM = "-"


def to_standard_output(output: str | None) -> bool:
    """Whether *output* names no file."""
    return output in {None, STANDARD_STREAM}


def write(command: str, text: str, output: str | None, files: Sequence[str]) -> None:
    """Write *text* to the file *output*, or to standard output.

    Raises:
        SourceError: The file cannot be written, is no regular file, or is one of *files*, the
            recordings read.
    """
    if output is None or to_standard_output(output):
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
    print(f"llmtrace {command}: written to {output}", file=sys.stderr)


def _print(text: str) -> None:
    """Print *text*; what the terminal has no letters for becomes a question mark.

    Whoever reads it may have seen enough and gone: the answer, an exit code, is the same.
    """
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
        sys.stdout.flush()
    except BrokenPipeError:
        give_up_output()


def give_up_output() -> None:
    """Whoever read our output has gone, or it is full: Python must not complain again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
