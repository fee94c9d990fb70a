"""Every gap of a run and what it is made of, as columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from llmtrace.analysis.gaps import FIRST_POSITION, Counts
from llmtrace.analysis.latency import prompt_tokens
from llmtrace.analysis.summary import Values
from llmtrace.bench.pauses import Pause, overlap
from llmtrace.records import RequestRecord, StepRecord

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class GapTable:
    """One entry per gap, request by request; NaN stands for what a gap lacks.

    NaN does not leave the tool: ``known`` is without it, and in files it is empty or null.
    """

    trial: Counts
    position: Counts
    """Of the token that the gap ends with: the first gap is at 2."""
    context: Counts
    """Tokens that the forward of the gap looked back on; 0 where the prompt's are not known."""
    counted: Mask
    """Whether its request is one whose figures count."""
    itl_s: Values
    """On the device's clock where there is one."""
    host_gap_s: Values
    """Between the same two tokens on the host's clock; the same as ``itl_s`` on a CPU."""
    host_forward_s: Values
    """Of the host's gap, the time inside of the forward call."""
    between_s: Values
    """The rest of the host's gap: between the forward calls."""
    device_duration_s: Values
    """Previous token to the end of the forward on the device's stream."""
    launch_lead_s: Values
    """Device end of the forward minus host return of its call."""
    garbage_collection_s: Values
    """Of the host's gap, the time that collections took."""
    compilation_s: Values
    """Of the host's gap, the time that compiling took."""

    def known(self, column: str, where: Mask | None = None) -> Values:
        """Return the values of a column that exist."""
        values: Values = getattr(self, column)
        if where is not None:
            values = values[where]
        return values[~np.isnan(values)]

    def median(self, column: str, where: Mask) -> float | None:
        """Return the median of the values of a column that exist; None where none does."""
        values = self.known(column, where)
        return float(np.median(values)) if values.size else None


def gap_table(
    records: Sequence[RequestRecord], pauses: Sequence[Pause], counted: Sequence[bool]
) -> GapTable:
    """Return the gaps of *records*.

    Args:
        records: In the order in which they ran.
        pauses: What stopped Python meanwhile.
        counted: Of each record, whether its figures count.
    """
    parts = [
        _of(number, record, pauses, counted=counted[number])
        for number, record in enumerate(records)
    ]
    return GapTable(**{name: _joined(name, parts) for name in _NAMES})


_NAMES = tuple(field.name for field in fields(GapTable))
_TYPES = {"trial": np.int64, "position": np.int64, "context": np.int64, "counted": np.bool_}


def _joined(name: str, parts: Sequence[Mapping[str, Any]]) -> Any:
    nothing: Any = np.empty(0, dtype=_TYPES.get(name, np.float64))
    return np.concatenate([nothing, *(part[name] for part in parts)])


def _of(
    trial: int, record: RequestRecord, pauses: Sequence[Pause], *, counted: bool
) -> dict[str, Any]:
    gaps = len(record.itl_s)
    position = np.arange(gaps, dtype=np.int64) + FIRST_POSITION
    prompt = prompt_tokens(record)
    steps = list(record.steps)
    # One token a step, or a gap is a share of a step and has no parts of its own.
    whole = len(steps) == gaps + 1 and all(step.tokens == 1 for step in steps)
    ends = np.array([host_end(record, s) for s in steps] if whole else [np.nan] * (gaps + 1))
    host_gap = np.diff(ends)
    host_forward = _column(steps, "host_duration_s", gaps, whole=whole)
    return {
        "trial": np.full(gaps, trial, dtype=np.int64),
        "position": position,
        "context": np.zeros(gaps, dtype=np.int64) if prompt is None else prompt + position - 1,
        "counted": np.full(gaps, counted),
        "itl_s": np.array(record.itl_s, dtype=np.float64),
        "host_gap_s": host_gap,
        "host_forward_s": host_forward,
        "between_s": host_gap - host_forward,
        "device_duration_s": _column(steps, "device_duration_s", gaps, whole=whole),
        "launch_lead_s": _column(steps, "launch_lead_s", gaps, whole=whole),
        "garbage_collection_s": overlap(pauses, "garbage_collection", record.start_unix_ns, ends),
        "compilation_s": overlap(pauses, "compilation", record.start_unix_ns, ends),
    }


def host_end(record: RequestRecord, step: StepRecord) -> float:
    """Return when Python had the step's token, counted from the request's start; NaN if unknown."""
    if step.host_end_s is not None:
        return step.host_end_s
    return step.end_s if record.clock == "host" else np.nan


def _column(steps: Sequence[StepRecord], name: str, gaps: int, *, whole: bool) -> Values:
    """Return a value of each decode step."""
    if not whole:
        return np.full(gaps, np.nan)
    values = [getattr(step, name) for step in steps[1:]]
    return np.array([np.nan if v is None else v for v in values], dtype=np.float64)
