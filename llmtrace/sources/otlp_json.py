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
from llmtrace.sources.attributes import raw_attributes, scalars, unix_ns
from llmtrace.sources.collection import MALFORMED, Collection, reason
from llmtrace.sources.documents import read_documents
from llmtrace.sources.files import OnBytes, find_files
from llmtrace.sources.recording import Recording

ERROR_STATUS = (2, "2", "STATUS_CODE_ERROR")


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
    """Decodes the spans of files."""

    def __init__(self) -> None:
        self._found = Collection()
        self.recording = self._found.recording

    def read_file(self, path: str, on_bytes: OnBytes | None) -> None:
        """Take in one file's spans."""
        found = self._found
        found.inputs.append(path)
        before, bad = found.spans, found.problems.count
        for where, resources in read_documents(path, found.problems, on_bytes):
            for resource in resources:
                self._guarded(where, self._read_resource, resource)
        if found.spans == before and found.problems.count == bad:
            found.problems.add(path, "holds no spans")

    def _guarded(self, where: str, read: Callable[[str, Any], bool], encoded: Any) -> bool:
        """Return ``read(where, encoded)``; a malformed part is noted, and the rest is read."""
        try:
            return read(where, encoded)
        except MALFORMED as error:
            self._found.problems.add(where, f"malformed {read.__name__[6:]}: {reason(error)}")
            return False

    def _read_resource(self, where: str, resource: Mapping[str, Any]) -> bool:
        scopes = resource.get("scopeSpans") or ()
        found = [self._guarded(where, self._read_scope, scope) for scope in scopes]
        if any(found):
            described = resource.get("resource") or {}
            key = orjson.dumps(described)
            if key not in self._found.resources:
                attributes = scalars(raw_attributes(described.get("attributes")))
                self._found.resources[key] = attributes
        return any(found)

    def _read_scope(self, where: str, scope: Mapping[str, Any]) -> bool:
        spans = scope.get("spans") or ()
        self._found.spans += len(spans)
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
            failed = (span.get("status") or {}).get("code") in ERROR_STATUS
            self._found.add_request(where, key, *_times(span), failed=failed, raws=raws)
            return True
        if names.STEP_INDEX in raws:
            self._found.add_step(
                (trace_id, span["parentSpanId"]), span["name"], *_times(span), raws
            )
        return False


def _times(span: Mapping[str, Any]) -> tuple[int, int]:
    return unix_ns(span["startTimeUnixNano"]), unix_ns(span["endTimeUnixNano"])
