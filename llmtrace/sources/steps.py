"""A request's steps, from their spans or, where those are missing, from the request's arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from llmtrace import names
from llmtrace.records import StepRecord
from llmtrace.sources.attributes import Raw, count, number, seconds

NANO = 1e-9


class StepSpan(NamedTuple):
    """What one step's span tells; a tuple, because a file may hold a million of them."""

    start_unix_ns: int
    end_unix_ns: int
    tokens: int
    forwards: int
    host_duration_s: float | None
    device_duration_s: float | None
    launch_lead_s: float | None


@dataclass(slots=True)
class StepSpans:
    """The step spans under one request span, met in any order."""

    prefill: StepSpan | None = None
    first_token: StepSpan | None = None
    decode: dict[int, StepSpan] = field(default_factory=dict)
    """By step index: a span met twice is the same step."""

    def add(self, name: str, start: int, end: int, raws: Mapping[str, Raw]) -> None:
        """Take in one step's span; a name that is no step's is passed over."""
        span = StepSpan(
            start,
            end,
            _or_one(count(raws.get(names.STEP_TOKENS))),
            _or_one(count(raws.get(names.STEP_FORWARDS))),
            seconds(raws.get(names.HOST_DURATION)),
            seconds(raws.get(names.DEVICE_DURATION)),
            number(raws.get(names.LAUNCH_LEAD)),
        )
        if name == names.SPAN_DECODE:
            index = count(raws.get(names.STEP_INDEX))
            if index is not None:
                self.decode[index] = span
        elif name == names.SPAN_FIRST_TOKEN:
            self.first_token = span
        elif name == names.SPAN_PREFILL:
            self.prefill = span

    @property
    def count(self) -> int:
        """Steps that have a span."""
        return len(self.decode) + (self.first_token is not None)


def _or_one(value: int | None) -> int:
    return 1 if value is None else value


def from_spans(
    spans: StepSpans, origin_unix_ns: int, gaps: int, puts: Sequence[float]
) -> list[StepRecord] | None:
    """Return the steps, or None if spans of some of them are missing.

    Args:
        spans: The step spans of one request.
        origin_unix_ns: Start of the request.
        gaps: How many inter-token gaps the request has.
        puts: When each step's token was put into the streamer, if known.
    """
    first = spans.first_token
    if first is None or sorted(spans.decode) != list(range(1, len(spans.decode) + 1)):
        return None
    steps = [_prefill_step(first, spans.prefill, origin_unix_ns, puts)]
    for index in range(1, len(spans.decode) + 1):
        span = spans.decode[index]
        steps.append(
            StepRecord(
                index=index,
                phase="decode",
                start_s=(span.start_unix_ns - origin_unix_ns) * NANO,
                end_s=(span.end_unix_ns - origin_unix_ns) * NANO,
                tokens=span.tokens,
                forwards=span.forwards,
                host_duration_s=span.host_duration_s,
                device_duration_s=span.device_duration_s,
                launch_lead_s=span.launch_lead_s,
                put_s=puts[index] if index < len(puts) else None,
            )
        )
    return steps if sum(step.tokens for step in steps) == gaps + 1 else None


def _prefill_step(
    first: StepSpan, prefill: StepSpan | None, origin: int, puts: Sequence[float]
) -> StepRecord:
    about = prefill or first
    return StepRecord(
        index=0,
        phase="prefill",
        start_s=(first.start_unix_ns - origin) * NANO,
        end_s=(first.end_unix_ns - origin) * NANO,
        tokens=about.tokens,
        forwards=about.forwards,
        forward_start_s=(prefill.start_unix_ns - origin) * NANO if prefill else None,
        forward_end_s=(prefill.end_unix_ns - origin) * NANO if prefill else None,
        host_duration_s=about.host_duration_s,
        device_duration_s=about.device_duration_s,
        launch_lead_s=about.launch_lead_s,
        put_s=puts[0] if puts else None,
    )


def from_arrays(
    arrays: Mapping[str, Sequence[float]], ttft_s: float | None, itl_s: Sequence[float]
) -> list[StepRecord]:
    """Return the steps as the request span's arrays tell them.

    Steps of several tokens cannot be told apart in the array of gaps, so there the arrays are of
    another length, and no steps are made up.
    """
    if ttft_s is None:
        return []
    length = len(itl_s) + 1
    host = arrays.get(names.STEP_HOST_DURATIONS, ())
    device = arrays.get(names.STEP_DEVICE_DURATIONS, ())
    leads = arrays.get(names.STEP_LAUNCH_LEADS, ())
    puts = arrays.get(names.STEP_PUTS, ())
    if any(column and len(column) != length for column in (host, device, leads, puts)):
        return []
    steps = []
    start, end = 0.0, ttft_s
    for index in range(length):
        if index:
            start, end = end, end + itl_s[index - 1]
        steps.append(
            StepRecord(
                index=index,
                phase="decode" if index else "prefill",
                start_s=start,
                end_s=end,
                tokens=1,
                forwards=1,
                host_duration_s=host[index] if host else None,
                device_duration_s=device[index] if device else None,
                launch_lead_s=leads[index] if leads else None,
                put_s=puts[index] if puts else None,
            )
        )
    return steps
