"""The steps of a request as columns: a file may hold a million of them."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import overload

from llmtrace.records import Leg, StepRecord


@dataclass(slots=True, eq=False)
class StepColumns(Sequence[StepRecord]):
    """A sequence of steps, whose records are made when they are asked for.

    Arrays are as long as there are steps, the prefill step first, or empty where no step has the
    value. NaN stands for what a single step lacks; it does not leave this class.
    """

    start_s: array[float]
    end_s: array[float]
    tokens: array[int]
    forwards: array[int]
    host_duration_s: array[float]
    device_duration_s: array[float]
    launch_lead_s: array[float]
    put_s: array[float]
    forward_offset_s: array[float]
    """From a decode step's start to its forward call."""
    legs: Mapping[int, tuple[Leg, ...]]
    """By step: what each device did of it, where the model's layers lie on several."""
    forward_start_s: float | None = None
    """Of the prefill step; so is the next."""
    forward_end_s: float | None = None

    def __len__(self) -> int:
        return len(self.end_s)

    @overload
    def __getitem__(self, index: int) -> StepRecord: ...

    @overload
    def __getitem__(self, index: slice) -> list[StepRecord]: ...

    def __getitem__(self, index: int | slice) -> StepRecord | list[StepRecord]:
        if isinstance(index, slice):
            return [self._step(i) for i in range(*index.indices(len(self)))]
        return self._step(range(len(self))[index])

    def __iter__(self) -> Iterator[StepRecord]:
        return map(self._step, range(len(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def _step(self, index: int) -> StepRecord:
        return StepRecord(
            index=index,
            phase="decode" if index else "prefill",
            start_s=self.start_s[index],
            end_s=self.end_s[index],
            tokens=self.tokens[index],
            forwards=self.forwards[index],
            forward_start_s=self._forward_start(index),
            forward_end_s=None if index else self.forward_end_s,
            host_duration_s=_at(self.host_duration_s, index),
            device_duration_s=_at(self.device_duration_s, index),
            launch_lead_s=_at(self.launch_lead_s, index),
            put_s=_at(self.put_s, index),
            legs=self.legs.get(index, ()),
        )

    def _forward_start(self, index: int) -> float | None:
        if not index:
            return self.forward_start_s
        offset = _at(self.forward_offset_s, index)
        return None if offset is None else self.start_s[index] + offset


def _at(column: array[float], index: int) -> float | None:
    if not column:
        return None
    value = column[index]
    return None if math.isnan(value) else value
