"""A request's steps, from their spans or, where those are missing, from the request's arrays."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from llmtrace import names
from llmtrace.records import Leg, StepRecord
from llmtrace.sources.attributes import Raw, count, number, numbers, seconds, texts
from llmtrace.step_columns import StepColumns

NANO = 1e-9

STEP_ARRAYS = (
    names.STEP_HOST_DURATIONS,
    names.STEP_DEVICE_DURATIONS,
    names.STEP_LAUNCH_LEADS,
    names.STEP_PUTS,
)
"""The request span's arrays of one value per step."""


Legs = tuple[tuple[str, float, float], ...]
"""Of each device's part of a step: the device, seconds from the step's start, seconds in it."""


class StepSpan(NamedTuple):
    """What one step's span tells."""

    start_unix_ns: int
    end_unix_ns: int
    tokens: int
    forwards: int
    host_duration_s: float
    """NaN where it is not there; so for the next three."""
    device_duration_s: float
    launch_lead_s: float
    forward_offset_s: float


WHOLE = 4
"""So many of a step's values are whole numbers; those after them are durations."""

DURATIONS = 4


class StepSpans:
    """The step spans under one request span, met in any order; decode steps as columns."""

    __slots__ = ("_durations", "_whole", "first_token", "legs", "prefill", "repeated")

    def __init__(self) -> None:
        self.prefill: StepSpan | None = None
        self.first_token: StepSpan | None = None
        self.repeated = 0
        """Spans that were met before."""
        self.legs: dict[int, Legs] = {}
        """By step index, of steps that ran on several devices."""
        # Decode steps one after the other: index and whole numbers; durations. Of a million spans,
        # two calls for each are felt.
        self._whole = array("q")
        self._durations = array("d")

    def add(self, name: str, start: int, end: int, raws: Mapping[str, Raw]) -> None:
        """Take in one step's span; a name that is no step's is passed over."""
        get = raws.get
        tokens, forwards = _or_one(get(names.STEP_TOKENS)), _or_one(get(names.STEP_FORWARDS))
        durations = (
            _or_nan(seconds(get(names.HOST_DURATION))),
            _or_nan(seconds(get(names.DEVICE_DURATION))),
            _or_nan(number(get(names.LAUNCH_LEAD))),
            _or_nan(seconds(get(names.FORWARD_OFFSET))),
        )
        index = count(get(names.STEP_INDEX))
        if index is not None and names.LEG_DEVICES in raws:
            self.legs[index] = _legs(raws)
        if name == names.SPAN_DECODE:
            if index is not None:
                self._whole.extend((index, start, end, tokens, forwards))
                self._durations.extend(durations)
        elif name == names.SPAN_FIRST_TOKEN:
            self.repeated += self.first_token is not None
            self.first_token = StepSpan(start, end, tokens, forwards, *durations)
        elif name == names.SPAN_PREFILL:
            self.repeated += self.prefill is not None
            self.prefill = StepSpan(start, end, tokens, forwards, *durations)

    @property
    def count(self) -> int:
        """Steps that have a span."""
        return len(set(self._indexes())) + (self.first_token is not None)

    def decode_columns(self) -> list[array[Any]] | None:
        """Return the decode steps' columns in order, each step once; None if one is missing.

        Columns are in the order of StepSpan.
        """
        columns: list[array[Any]] = [
            *(self._whole[place :: WHOLE + 1] for place in range(1, WHOLE + 1)),
            *(self._durations[place::DURATIONS] for place in range(DURATIONS)),
        ]
        indexes = self._indexes()
        if indexes == array("q", range(1, len(indexes) + 1)):
            return columns
        places = {index: place for place, index in enumerate(indexes)}
        self.repeated += len(indexes) - len(places)
        if sorted(places) != list(range(1, len(places) + 1)):
            return None
        order = [places[index] for index in range(1, len(places) + 1)]
        return [array(column.typecode, [column[p] for p in order]) for column in columns]

    def _indexes(self) -> array[int]:
        return self._whole[:: WHOLE + 1]


def _legs(raws: Mapping[str, Raw]) -> Legs:
    return tuple(
        zip(
            texts(raws.get(names.LEG_DEVICES)),
            numbers(raws.get(names.LEG_OFFSETS), signed=True),
            numbers(raws.get(names.LEG_DURATIONS)),
            strict=True,
        )
    )


def _or_one(raw: Raw | None) -> int:
    value = None if raw is None else count(raw)
    return 1 if value is None else value


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


def from_spans(
    spans: StepSpans, origin_unix_ns: int, gaps: int, puts: Sequence[float]
) -> Sequence[StepRecord] | None:
    """Return the steps, or None if spans of some of them are missing.

    Args:
        spans: The step spans of one request.
        origin_unix_ns: Start of the request.
        gaps: How many inter-token gaps the request has.
        puts: When each step's token was put into the streamer, if known.
    """
    first = spans.first_token
    decode = spans.decode_columns()
    if first is None or decode is None:
        return None
    prefill = spans.prefill
    about = prefill or first
    zeroth = (first.start_unix_ns, first.end_unix_ns, *about[2:])
    start, end, tokens, forwards, *durations = (
        array(column.typecode, [value, *column])
        for value, column in zip(zeroth, decode, strict=True)
    )
    if sum(tokens) != gaps + 1:
        return None
    host, device, lead, offset = durations
    padding = [math.nan] * max(len(start) - len(puts), 0)
    return StepColumns(
        start_s=array("d", [(at - origin_unix_ns) * NANO for at in start]),
        end_s=array("d", [(at - origin_unix_ns) * NANO for at in end]),
        tokens=tokens,
        forwards=forwards,
        host_duration_s=host,
        device_duration_s=device,
        launch_lead_s=lead,
        put_s=array("d", [*puts, *padding] if puts else ()),
        forward_offset_s=offset,
        legs={
            index: tuple(
                Leg(device, begun + after, begun + after + lasted)
                for device, after, lasted in legs
                for begun in [(start[index] - origin_unix_ns) * NANO]
            )
            for index, legs in spans.legs.items()
            if index < len(start)
        },
        forward_start_s=(prefill.start_unix_ns - origin_unix_ns) * NANO if prefill else None,
        forward_end_s=(prefill.end_unix_ns - origin_unix_ns) * NANO if prefill else None,
    )


def from_arrays(
    arrays: Mapping[str, array[float]], ttft_s: float | None, itl_s: Sequence[float]
) -> Sequence[StepRecord]:
    """Return the steps as the request span's arrays tell them.

    Steps of several tokens cannot be told apart in the array of gaps, so there the arrays are of
    another length, and no steps are made up.
    """
    if ttft_s is None:
        return []
    length = len(itl_s) + 1
    columns = [arrays.get(name, array("d")) for name in STEP_ARRAYS]
    if any(column and len(column) != length for column in columns):
        return []
    host, device, leads, puts = columns
    ends = array("d", accumulate(itl_s, initial=ttft_s))
    ones = array("q", [1]) * length
    return StepColumns(
        start_s=array("d", [0.0, *ends[:-1]]),
        end_s=ends,
        tokens=ones,
        forwards=ones,
        host_duration_s=host,
        device_duration_s=device,
        launch_lead_s=leads,
        put_s=puts,
        forward_offset_s=array("d"),
        legs={},
    )
