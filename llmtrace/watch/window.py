"""The latest requests of a trace that is being written."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from llmtrace import names
from llmtrace.records import RequestRecord
from llmtrace.sources.attributes import raw_attributes, unix_ns
from llmtrace.sources.collection import MALFORMED
from llmtrace.sources.otlp_json import ERROR_STATUS
from llmtrace.sources.requests import RequestSpan, build_record, take_arrays

LATEST = 500
"""Requests that the numbers are of."""


class Window:
    """The latest requests, and how many there were.

    Only request spans are looked at: each carries the times of all its steps, and comes last.
    """

    def __init__(self, latest: int = LATEST) -> None:
        self.records: deque[RequestRecord] = deque(maxlen=latest)
        self.total = 0
        self.failed = 0
        self.cold = 0
        self.unreadable = 0
        """Lines and spans that could not be read."""
        self._known: deque[tuple[str | None, str | None]] = deque(maxlen=latest * 2)

    def take(self, line: bytes) -> list[RequestRecord]:
        """Take in one line of OTLP/JSON; return the requests in it that are new."""
        if not line.strip():
            return []
        try:
            document = orjson.loads(line)
            spans = list(_request_spans(document))
        except MALFORMED:
            self.unreadable += 1
            return []
        return [record for span in spans if (record := self._record(span)) is not None]

    def _record(self, span: Mapping[str, Any]) -> RequestRecord | None:
        try:
            record = _built(span)
        except MALFORMED:
            self.unreadable += 1
            return None
        key = (record.trace_id, record.span_id)
        if key in self._known:
            return None
        self._known.append(key)
        self.records.append(record)
        self.total += 1
        self.failed += record.error is not None
        self.cold += record.cold
        return record


def _request_spans(document: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for resource in document.get("resourceSpans") or ():
        for scope in resource.get("scopeSpans") or ():
            if (scope.get("scope") or {}).get("name") == names.SCOPE:
                for span in scope.get("spans") or ():
                    if any(a["key"] == names.STRATEGY for a in span.get("attributes") or ()):
                        yield span


def _built(span: Mapping[str, Any]) -> RequestRecord:
    raws = raw_attributes(span.get("attributes"))
    arrays = take_arrays(raws)
    start, end = unix_ns(span["startTimeUnixNano"]), unix_ns(span["endTimeUnixNano"])
    failed = (span.get("status") or {}).get("code") in ERROR_STATUS
    found = RequestSpan(span["traceId"], span["spanId"], start, end, failed, raws, arrays)
    record, _ = build_record(found, None)
    return record
