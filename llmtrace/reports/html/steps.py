"""The steps of the requests whose waterfall shows each of them.

A page of thousands of requests of hundreds of tokens would not open. So the page holds the steps
of as many requests as fit, those that someone will want to look at first, and says so; the other
requests' waterfalls show their phases only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from heapq import nlargest
from itertools import chain, zip_longest
from typing import Any

from llmtrace.records import RequestRecord, StepRecord
from llmtrace.reports.html.columns import MICRO, micros

MAX_VALUES = 400_000
"""Numbers in all of the page's steps: about 2 MB."""

SLOWEST = 40
"""Requests of each kind of slowness that come before those taken evenly."""

_COLUMNS: dict[str, Callable[[StepRecord], float | None]] = {
    "host": lambda s: s.host_duration_s,
    "device": lambda s: s.device_duration_s,
    "lead": lambda s: s.launch_lead_s,
    "put": lambda s: None if s.put_s is None else s.put_s - s.end_s,
    "forward": lambda s: None if s.forward_start_s is None else s.forward_start_s - s.start_s,
}


def choose(records: Sequence[RequestRecord], most: int = MAX_VALUES) -> list[int]:
    """Return the places in *records* of the requests whose steps the page holds.

    Failed ones first, then those with findings, the slowest by TTFT, by their longest gap and by
    E2E, and then evenly over time; until *most* numbers are reached.
    """
    sizes = [_size(record) for record in records]
    if sum(sizes) <= most:
        return [place for place, size in enumerate(sizes) if size]
    chosen: list[int] = []
    left = most
    seen: set[int] = set()
    for place in chain(_first(records), _evenly(len(records))):
        if place in seen:
            continue
        seen.add(place)
        if 0 < sizes[place] <= left:
            chosen.append(place)
            left -= sizes[place]
    return sorted(chosen)


def encoded_steps(records: Sequence[RequestRecord], chosen: Sequence[int]) -> dict[str, Any]:
    """Return the steps of the *chosen* requests, column by column, in microseconds.

    ``length`` is previous token to this one. ``put`` and ``forward`` count from the token and from
    the step's start; so do ``legs``, by device: begin and end of each of its parts of the step. A
    column that holds nothing is left out, and so is ``tokens`` where it is 1 throughout.
    """
    with_steps = sum(1 for record in records if record.steps)
    return {
        "of": {str(place): _encoded(records[place].steps) for place in chosen},
        "chosen": len(chosen),
        "all": with_steps,
        "slowest": SLOWEST,
    }


def _encoded(steps: Sequence[StepRecord]) -> dict[str, Any]:
    found: dict[str, Any] = {"length": [micros(s.end_s - s.start_s) for s in steps]}
    for name, value in _COLUMNS.items():
        column = [micros(value(step)) for step in steps]
        if any(number is not None for number in column):
            found[name] = column
    devices = dict.fromkeys(leg.device for step in steps for leg in step.legs)
    if devices:
        found["legs"] = {device: [_legs(step, device) for step in steps] for device in devices}
    if any(step.tokens != 1 for step in steps):
        found["tokens"] = [step.tokens for step in steps]
    return found


def _legs(step: StepRecord, device: str) -> list[int]:
    """Return when *device* began and ended each of its parts of the step, from its start."""
    own = [leg for leg in step.legs if leg.device == device]
    times = [at - step.start_s for leg in own for at in (leg.start_s, leg.end_s)]
    return [round(at * MICRO) for at in times]


def _size(record: RequestRecord) -> int:
    """Return how many numbers the steps of *record* take; its last step stands for all."""
    if not record.steps:
        return 0
    last = record.steps[-1]
    columns = 1 + sum(value(last) is not None for value in _COLUMNS.values())
    return (columns + 2 * len(last.legs)) * len(record.steps)


def _first(records: Sequence[RequestRecord]) -> Iterator[int]:
    places = range(len(records))
    yield from [place for place in places if records[place].error is not None][:SLOWEST]
    yield from [place for place in places if records[place].findings][:SLOWEST]
    slowest = (
        _ranked([record.ttft_s for record in records]),
        _ranked([max(record.itl_s, default=None) for record in records]),
        _ranked([record.e2e_s for record in records]),
    )
    for ranked in zip_longest(*slowest):
        yield from [place for place in ranked if place is not None]


def _ranked(values: Sequence[float | None]) -> list[int]:
    """Return the places of the largest of *values*, the very largest first."""
    known = [(value, -place) for place, value in enumerate(values) if value is not None]
    return [-place for _, place in nlargest(SLOWEST, known)]


def _evenly(count: int) -> Iterator[int]:
    """Yield all of ``range(count)``, every cut of it spread evenly: halves, quarters, eighths."""
    bits = max(count - 1, 0).bit_length()
    for number in range(1 << bits):
        mirrored = int(f"{number:0{bits}b}"[::-1], 2) if bits else 0
        if mirrored < count:
            yield mirrored
