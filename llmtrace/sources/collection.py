"""The spans of an input, in whatever order they are met, to a recording.

Every source gives its spans to one of these; what they look like in the source, only it knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmtrace.errors import SourceError
from llmtrace.records import RequestRecord
from llmtrace.sources.attributes import Raw
from llmtrace.sources.recording import Problems, Recording
from llmtrace.sources.requests import RequestSpan, build_record, take_arrays
from llmtrace.sources.steps import StepSpans

MALFORMED = (KeyError, TypeError, ValueError, AttributeError, OverflowError)
"""What reading a value that is not of its type raises."""

Key = tuple[str, str]
"""Trace id and span id."""


class Collection:
    """Collects spans of ours; records are made when everything has been seen."""

    def __init__(self) -> None:
        self.problems = Problems()
        self.inputs: list[str] = []
        """What was read: files, or a backend's address."""
        self.spans = 0
        """Spans met, whoever made them."""
        self.resources: dict[bytes, dict[str, Any]] = {}
        """Attributes of the resources whose requests these are, by what identifies each."""
        self._requests: dict[Key, tuple[str, RequestSpan]] = {}
        """Each with the place it was read at."""
        self._steps: dict[Key, StepSpans] = {}
        self._repeated = 0
        """Spans of ours that were met before."""

    def add_request(
        self, where: str, key: Key, start: int, end: int, *, failed: bool, raws: dict[str, Raw]
    ) -> None:
        """Take in a request's span.

        Raises:
            ValueError: An array of it holds something that is no number.
        """
        if end < start:
            self.problems.add(where, f"request {key[1]} ends before it begins: no duration")
        if key in self._requests:
            self._repeated += 1
        else:
            request = RequestSpan(*key, start, end, failed, raws, take_arrays(raws))
            self._requests[key] = (where, request)

    def add_step(self, key: Key, name: str, start: int, end: int, raws: Mapping[str, Raw]) -> None:
        """Take in a step's span; *key* is its request's.

        Raises:
            ValueError: It ends before it begins.
        """
        if end < start:
            raise ValueError("it ends before it begins")
        steps = self._steps.get(key)
        if steps is None:
            steps = self._steps[key] = StepSpans()
        steps.add(name, start, end, raws)

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
            except MALFORMED as error:
                self.problems.add(where, f"malformed request {span.span_id}: {reason(error)}")
                continue
            incomplete += missing
            records.append(record)
        if not records:
            raise SourceError(self._nothing())
        self._note_gaps(incomplete)
        records.sort(key=lambda record: record.start_unix_ns)
        resources = tuple(self.resources.values())
        notes = (f"{self._repeated} span(s) met again count once",) if self._repeated else ()
        return Recording(records, self.problems, tuple(self.inputs), resources, notes)

    def _note_gaps(self, incomplete: int) -> None:
        everywhere = ", ".join(self.inputs[:3]) + (", ..." if len(self.inputs) > 3 else "")  # noqa: PLR2004
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
        if len(self.inputs) > 1:
            return (
                f"none of {len(self.inputs)} files holds a readable llmtrace request "
                f"(first: {self.problems.lines[0] if self.problems.lines else self.inputs[0]})"
            )
        if self.problems.lines:
            more = self.problems.count - 1
            return self.problems.lines[0] + (f" (and {more} more such lines)" if more else "")
        return f"{self.inputs[0]}: holds {self.spans} spans, none of them an llmtrace request"


def reason(error: Exception) -> str:
    """Return what was wrong with a malformed part, in words."""
    if isinstance(error, KeyError):
        return f"{error.args[0]} is missing"
    return str(error)
