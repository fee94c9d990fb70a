"""OTLP/JSON lines to records: our own files, and those of the collector's file exporter.

Spans come in any order, in any file, more than once; lines may be cut off or foreign. What can be
read is read, and what cannot is reported with file and line.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import orjson

from llmtrace import names
from llmtrace.errors import SourceError
from llmtrace.records import RequestRecord
from llmtrace.sources.attributes import raw_attributes, scalars, unix_ns
from llmtrace.sources.documents import read_documents
from llmtrace.sources.files import OnBytes, find_files
from llmtrace.sources.recording import Problems, Recording
from llmtrace.sources.requests import RequestSpan, build_record, take_arrays
from llmtrace.sources.steps import StepSpans

_MALFORMED = (KeyError, TypeError, ValueError, AttributeError, OverflowError)
"""What reading a value that is not of its type raises."""

_ERROR_STATUS = (2, "2", "STATUS_CODE_ERROR")

Key = tuple[str, str]
"""Trace id and span id."""


def read(paths: Iterable[str], on_bytes: OnBytes | None = None) -> Recording:
    """Read trace files.

    Args:
        paths: Files, folders, or ``-`` for standard input.
        on_bytes: Called now and then with how many bytes of the present file have been read.

    Raises:
        SourceError: A path cannot be opened, or nothing in the input is a request of ours.
        MissingExtraError: A file is packed in a way that needs a package which is not there.
    """
    reader = _Reader()
    with _no_collection():
        for path in dict.fromkeys(paths):
            for file in find_files(path):
                reader.read_file(file, on_bytes)
        return reader.recording()


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keep the garbage collector from walking millions of objects, all in use, again and again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class _Reader:
    """Collects the spans of all files; records are made when everything has been seen."""

    def __init__(self) -> None:
        self.problems = Problems()
        self._requests: dict[Key, tuple[str, RequestSpan]] = {}
        """Each with the place it was read at."""
        self._steps: dict[Key, StepSpans] = {}
        self._resources: dict[bytes, dict[str, Any]] = {}
        self._spans = 0
        """Spans met, whoever made them."""
        self._files: list[str] = []
        self._repeated = 0
        """Spans of ours that were met before."""

    def read_file(self, path: str, on_bytes: OnBytes | None) -> None:
        """Take in one file's spans."""
        self._files.append(path)
        before, bad = self._spans, self.problems.count
        for where, resources in read_documents(path, self.problems, on_bytes):
            for resource in resources:
                self._guarded(where, self._read_resource, resource)
        if self._spans == before and self.problems.count == bad:
            self.problems.add(path, "holds no spans")

    def _guarded(self, where: str, read: Callable[[str, Any], bool], encoded: Any) -> bool:
        """Return ``read(where, encoded)``; a malformed part is noted, and the rest is read."""
        try:
            return read(where, encoded)
        except _MALFORMED as error:
            self.problems.add(where, f"malformed {read.__name__[6:]}: {_reason(error)}")
            return False

    def _read_resource(self, where: str, resource: Mapping[str, Any]) -> bool:
        scopes = resource.get("scopeSpans") or ()
        found = [self._guarded(where, self._read_scope, scope) for scope in scopes]
        if any(found):
            described = resource.get("resource") or {}
            key = orjson.dumps(described)
            if key not in self._resources:
                self._resources[key] = scalars(raw_attributes(described.get("attributes")))
        return any(found)

    def _read_scope(self, where: str, scope: Mapping[str, Any]) -> bool:
        spans = scope.get("spans") or ()
        self._spans += len(spans)
        if (scope.get("scope") or {}).get("name") != names.SCOPE:
            return False
        found = [self._guarded(where, self._read_span, span) for span in spans]
        return any(found)

    def _read_span(self, where: str, span: Mapping[str, Any]) -> bool:
        """Take in one span of ours; return whether it is a request."""
        raws = raw_attributes(span.get("attributes"))
        trace_id = span["traceId"]
        if names.STRATEGY in raws:
            key = (trace_id, span["spanId"])
            start, end = _times(span)
            if end < start:
                self.problems.add(where, f"request {key[1]} ends before it begins: no duration")
            failed = (span.get("status") or {}).get("code") in _ERROR_STATUS
            if key in self._requests:
                self._repeated += 1
            else:
                request = RequestSpan(*key, start, end, failed, raws, take_arrays(raws))
                self._requests[key] = (where, request)
            return True
        if names.STEP_INDEX in raws:
            key = (trace_id, span["parentSpanId"])
            steps = self._steps.get(key)
            if steps is None:
                steps = self._steps[key] = StepSpans()
            start, end = _times(span)
            if end < start:
                raise ValueError("it ends before it begins")
            steps.add(span["name"], start, end, raws)
        return False

    def recording(self) -> Recording:
        """Return everything that was found.

        Raises:
            SourceError: No request of ours was found.
        """
        records: list[RequestRecord] = []
        incomplete = 0
        for key, (where, span) in self._requests.items():
            try:
                steps = self._steps.pop(key, None)
                record, missing = build_record(span, steps)
                self._repeated += 0 if steps is None else steps.repeated
            except _MALFORMED as error:
                self.problems.add(where, f"malformed request {span.span_id}: {_reason(error)}")
                continue
            incomplete += missing
            records.append(record)
        if not records:
            raise SourceError(self._nothing())
        self._note_gaps(incomplete)
        records.sort(key=lambda record: record.start_unix_ns)
        resources = tuple(self._resources.values())
        notes = (f"{self._repeated} span(s) met again count once",) if self._repeated else ()
        return Recording(records, self.problems, tuple(self._files), resources, notes)

    def _note_gaps(self, incomplete: int) -> None:
        everywhere = ", ".join(self._files[:3]) + (", ..." if len(self._files) > 3 else "")  # noqa: PLR2004
        if incomplete:
            self.problems.add(
                everywhere,
                f"{incomplete} request(s) lack some of their step spans; "
                "their arrays are used instead",
            )
        if self._steps:
            spans = sum(steps.count for steps in self._steps.values())
            self.problems.add(
                everywhere,
                f"{spans} step span(s) belong to {len(self._steps)} request(s) that are not in the "
                "input: cut off, or in another file",
            )

    def _nothing(self) -> str:
        """Say why there is no request, in one line."""
        if len(self._files) > 1:
            return (
                f"none of {len(self._files)} files holds a readable llmtrace request "
                f"(first: {self.problems.lines[0] if self.problems.lines else self._files[0]})"
            )
        if self.problems.lines:
            more = self.problems.count - 1
            return self.problems.lines[0] + (f" (and {more} more such lines)" if more else "")
        return f"{self._files[0]}: holds {self._spans} spans, none of them an llmtrace request"


def _times(span: Mapping[str, Any]) -> tuple[int, int]:
    return unix_ns(span["startTimeUnixNano"]), unix_ns(span["endTimeUnixNano"])


def _reason(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"{error.args[0]} is missing"
    return str(error)
