"""From a scheduler's steps to a record of them: off its thread."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from llmtrace.records import BatchRecord, BatchStepRecord, ModelFacts
from llmtrace.timing.host import WallAnchor

if TYPE_CHECKING:
    from llmtrace.recording.batch import BatchStep
    from llmtrace.recording.step_marks import StepTimer

NANO = 1e-9


@dataclass(slots=True, eq=False)
class BatchStretch:
    """Some steps of a scheduler, one after the other, as the loop left them."""

    model: ModelFacts
    steps: list[BatchStep] = field(default_factory=list)
    spans: list[tuple[str | None, str | None]] = field(default_factory=list)
    """Trace and span id of each request that took part."""
    anchor: WallAnchor | None = None
    timer: StepTimer | None = None
    before: int = 0
    """Steps the scheduler had done before these."""


def build_batch(stretch: BatchStretch) -> BatchRecord:
    """Return the record of *stretch*, which has been handed over."""
    wall = stretch.anchor
    if wall is None:
        raise ValueError("a stretch that was not handed over")
    if stretch.timer is not None:
        stretch.timer.read(stretch.steps)
    on_device = stretch.timer is not None and all(step.device for step in stretch.steps)
    return BatchRecord(
        model=stretch.model.name,
        clock=stretch.timer.clock if stretch.timer is not None and on_device else "host",
        steps=[
            _step(step, stretch.before + index, wall, on_device=on_device)
            for index, step in enumerate(stretch.steps, start=1)
        ],
        requests=tuple(
            (trace, span) for trace, span in stretch.spans if trace is not None and span is not None
        ),
    )


def _step(step: BatchStep, index: int, wall: WallAnchor, *, on_device: bool) -> BatchStepRecord:
    begun = step.begun[0] if step.begun else step.prepared_ns
    ended = step.synced_ns or begun
    called = device = None
    if step.begun and step.ended:
        called = (step.ended[0] - step.begun[0]) * NANO
    if on_device and step.device is not None:
        begun, ended, _ = step.device
        device = (ended - begun) * NANO
    return BatchStepRecord(
        index=index,
        start_unix_ns=wall.wall(begun),
        end_unix_ns=wall.wall(ended),
        requests=step.size,
        active=step.active,
        waiting=step.waiting,
        prefill_tokens=step.prefill_tokens,
        decode_tokens=step.decode_tokens,
        cache_usage=step.cache_usage,
        host_duration_s=called,
        device_duration_s=device,
    )
