"""Where a request's time goes: shares that add up to the whole."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from llmtrace.analysis.summary import Values
from llmtrace.records import RequestRecord, StepRecord
from llmtrace.step_columns import StepColumns


@dataclass(frozen=True, slots=True)
class Phase:
    """One part of the time."""

    name: str
    formula: str
    mean_s: float | None
    """Mean over the requests counted, seconds; None where no request has it."""
    share: float | None
    """Of the whole time, 0 to 1."""


@dataclass(frozen=True, slots=True)
class Phases:
    """The parts of the requests' time."""

    requests: int
    """Requests of which every part is known."""
    parts: tuple[Phase, ...]
    """They tile the time, so shares add up to 1."""
    delivery: Phase
    """Runs beside decoding, so it is not one of the parts."""


@dataclass(frozen=True, slots=True)
class _Parts:
    """One request's parts, in seconds."""

    queue: float | None
    tokenize: float | None
    prefill: float
    sampling: float
    decode: float
    returning: float
    delivery: float | None

    @property
    def whole(self) -> float:
        return (
            (self.queue or 0)
            + (self.tokenize or 0)
            + self.prefill
            + self.sampling
            + self.decode
            + self.returning
        )


_FORMULAS = {
    "queue": "server span or request() to generate(), less tokenizing; of a batched request, "
    "submission to admission",
    "tokenize": "tokenizer calls before generate()",
    "prefill": "first forward's start to end of the one that yields token 1",
    "sampling": "rest of TTFT and of each gap: token selection, Python",
    "decode": "forwards of decode steps",
    "return": "last token to return of generate()",
}

_FIELDS = {"decode": "decode", "return": "returning"}

_DELIVERY = "token 1 selected to handed to the consumer; beside decoding"


def phases(records: Sequence[RequestRecord]) -> Phases | None:
    """Return where the time of *records* went; None where no request tells it all.

    Formula:
        Whole = queue + tokenize + duration of the request; of a batched request the queue is inside
        its duration, and counts once. A share is the sum of a part over the
        sum of the whole.
    """
    known = [parts for record in records if (parts := _parts(record)) is not None]
    whole = sum(parts.whole for parts in known)
    if not known or not whole:
        return None

    def phase(name: str, formula: str) -> Phase:
        values = [
            v for parts in known if (v := getattr(parts, _FIELDS.get(name, name))) is not None
        ]
        if not values:
            return Phase(name, formula, None, None)
        return Phase(name, formula, sum(values) / len(known), sum(values) / whole)

    return Phases(
        requests=len(known),
        parts=tuple(phase(name, formula) for name, formula in _FORMULAS.items()),
        delivery=phase("delivery", _DELIVERY),
    )


def _parts(record: RequestRecord) -> _Parts | None:
    if record.ttft_s is None or record.prefill_s is None or record.e2e_s is None:
        return None
    decode = None if record.steps_truncated else _decode_s(record.steps)
    if decode is None:
        return None
    delivered = record.first_delivery_s
    return _Parts(
        queue=record.queue_s,
        tokenize=record.tokenize_s,
        prefill=record.prefill_s,
        # Clocks of two kinds may disagree by microseconds, and time is not negative.
        sampling=max(record.e2e_s - _queue_inside(record) - record.prefill_s - decode, 0.0),
        decode=decode,
        returning=max(record.duration_s - record.e2e_s, 0.0),
        delivery=None if delivered is None else max(delivered - record.ttft_s, 0.0),
    )


def _decode_s(steps: Sequence[StepRecord]) -> float | None:
    """Return the decode steps' time in their forwards, on the clock that measured the tokens.

    None where a step does not tell, or there are no steps.
    """
    if isinstance(steps, StepColumns):
        host, device = (
            _column(c, len(steps)) for c in (steps.host_duration_s, steps.device_duration_s)
        )
        whole = float(np.where(np.isnan(device), host, device)[1:].sum())
        return None if np.isnan(whole) else whole
    forwards = [_forward_s(step) for step in steps if step.index]
    known = [duration for duration in forwards if duration is not None]
    return sum(known) if steps and len(known) == len(forwards) else None


def _column(column: array[float], length: int) -> Values:
    return np.frombuffer(column) if column else np.full(length, np.nan)


def _queue_inside(record: RequestRecord) -> float:
    """Return the part of a request's own time that it spent in a scheduler's queue."""
    return 0.0 if record.preemptions is None else record.queue_s or 0.0


def _forward_s(step: StepRecord) -> float | None:
    if step.device_duration_s is not None:
        return step.device_duration_s
    return step.host_duration_s
