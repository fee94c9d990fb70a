"""A forward's way over several devices: which did what, and the hand-overs between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from llmtrace.guard import guard
from llmtrace.recording.recorder import DeviceLeg, Marks
from llmtrace.records import Leg, StepRecord
from llmtrace.timing.device import DeviceTimer

NANO = 1e-9


class LegMarks(NamedTuple):
    """One device's part of a forward, marked on its stream; host times before each mark."""

    forward: int
    device: int
    begun: tuple[int, Any] | None
    """None where it began with the forward itself."""
    ended: tuple[int, Any]


def read_legs(legs: Sequence[LegMarks], timers: Mapping[int, DeviceTimer]) -> list[DeviceLeg]:
    """Return the legs' times, each device's marks read on its own clock, and give them back.

    None at all where one device has not passed its marks: half a way would mislead.
    """
    times: dict[tuple[int, int], int] = {}
    complete = True
    for device, timer in timers.items():
        marks = [
            (index, part, mark)
            for index, leg in enumerate(legs)
            if leg.device == device
            for part, mark in enumerate((leg.begun, leg.ended))
            if mark is not None
        ]
        if not marks:
            continue
        events = [mark for _, _, mark in marks]
        resolved = guard.call("reading another device's times", timer.resolve, events)
        timer.release([event for _, event in events])
        if resolved is None:
            complete = False
            continue
        for (index, part, _), at_ns in zip(marks, resolved.times_ns, strict=True):
            times[index, part] = at_ns
    if not complete:
        return []
    return [
        DeviceLeg(leg.forward, f"cuda:{leg.device}", times.get((index, 0)), times[index, 1])
        for index, leg in enumerate(legs)
    ]


def legs_by_forward(marks: Marks) -> dict[int, list[DeviceLeg]]:
    """Return the legs of each forward."""
    found: dict[int, list[DeviceLeg]] = {}
    for leg in marks.legs:
        found.setdefault(leg.forward, []).append(leg)
    return found


def leg_records(
    marks: Marks,
    legs: Mapping[int, Sequence[DeviceLeg]],
    forwards: range,
    forward_start_s: float | None,
) -> tuple[Leg, ...]:
    """Return the legs of a step's forwards.

    Args:
        marks: The request's.
        legs: The legs of each forward.
        forwards: The step's forwards.
        forward_start_s: The start of the first of them.
    """
    records = []
    for forward in forwards:
        for leg in legs.get(forward, ()):
            begun_ns = leg.begun_ns
            if begun_ns is None:
                begun_ns = marks.forward_starts[forward]
                if forward == forwards[0] and forward_start_s is not None:
                    begun_ns = marks.start_ns + round(forward_start_s / NANO)
            ends = (leg.ended_ns - marks.start_ns) * NANO
            records.append(Leg(leg.device, (begun_ns - marks.start_ns) * NANO, ends))
    return tuple(records)


class DeviceShares(NamedTuple):
    """Each device's time in a request whose model lies on several."""

    devices: tuple[str, ...] = ()
    prefill_s: tuple[float, ...] = ()
    decode_s: tuple[float, ...] = ()
    """Mean of a decode step's, empty without one."""
    handover_s: float | None = None
    """Mean time from one device's end to the next one's start."""


def device_shares(steps: Sequence[StepRecord]) -> DeviceShares:
    """Return what each device did, in the order in which the forward comes to them."""
    devices = tuple(dict.fromkeys(leg.device for step in steps for leg in step.legs))
    if not devices:
        return DeviceShares()

    def spent(device: str, some: Sequence[StepRecord]) -> float:
        return sum(leg.end_s - leg.start_s for s in some for leg in s.legs if leg.device == device)

    decode = [step for step in steps if step.index and step.legs]
    waits = [b.start_s - a.end_s for s in steps for a, b in zip(s.legs, s.legs[1:], strict=False)]
    return DeviceShares(
        devices,
        tuple(spent(device, [s for s in steps if not s.index]) for device in devices),
        tuple(spent(device, decode) / len(decode) for device in devices) if decode else (),
        sum(waits) / len(waits) if waits else None,
    )
