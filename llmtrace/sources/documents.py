"""The OTLP/JSON documents in a file: one to a line, or a single one laid out over many."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

from llmtrace.sources.files import DamagedInputError, OnBytes, read_lines
from llmtrace.sources.recording import Problems

_CUT = "; the line has no end: it was cut off, or is still being written"

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
"""What some editors and shells put before UTF-8."""

_OTHER_SIGNALS = ("resourceMetrics", "resourceLogs", "resourceProfiles")


def read_documents(
    path: str, problems: Problems, on_bytes: OnBytes | None = None
) -> Iterator[tuple[str, list[Any]]]:
    """Yield the ``resourceSpans`` of each document, with the place it was read at.

    Lines of other signals are passed over. What cannot be read goes into *problems*.

    Raises:
        SourceError: The file cannot be opened.
        MissingExtraError: It is packed in a way that needs a package which is not there.
    """
    line = 0
    empty = True
    lines = read_lines(path, on_bytes)
    try:
        for line, text in enumerate(lines, start=1):
            where = f"{path}:{line}"
            found = _document(where, text, lines if empty else None, problems)
            empty = empty and not text.strip()
            if found is not None:
                yield where, found
    except DamagedInputError as error:
        problems.add(f"{path}:{line + 1}", str(error))
        return
    if line == 0:
        problems.add(path, "the file is empty")


def _document(
    where: str, text: bytes, rest: Iterator[bytes] | None, problems: Problems
) -> list[Any] | None:
    stripped = text.strip()
    if rest is not None:
        stripped = stripped.removeprefix(_BYTE_ORDER_MARK)
    if not stripped:
        return None
    if rest is not None and stripped in (b"{", b"["):
        # One object spread over many lines, for people to read.
        stripped = b"".join((stripped, *rest))
    try:
        document = orjson.loads(stripped)
    except orjson.JSONDecodeError as error:
        # Every writer ends a line when it is whole.
        cut = "" if text.endswith(b"\n") else _CUT
        problems.add(where, f"not JSON: {error.msg}{cut}")
        return None
    found = document.get("resourceSpans") if isinstance(document, dict) else None
    if isinstance(found, list):
        return found
    if not isinstance(document, dict) or not any(key in document for key in _OTHER_SIGNALS):
        problems.add(where, "not OTLP/JSON: it has no list of resourceSpans")
    return None
