"""The two ways of asking that a lever has, and the requests of each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from llmtrace.bench.compare_settings.levers import Lever, Variant
from llmtrace.bench.trials import Trials

SideName = Literal["before", "after"]
KINDS = ("single", "batches")
TOOL = "compare-settings"


@dataclass(frozen=True, slots=True)
class PairPlan:
    """How a lever is tried."""

    trials: int
    """Pairs of requests, and pairs of batches where those are asked for."""
    warmup: int
    rows: int | None = None
    """Rows of a batch, for tokens per second at so many at once."""
    force: bool = False


@dataclass(slots=True)
class Side:
    """One of the two ways, and its requests."""

    name: SideName
    variant: Variant
    single: Trials = field(default_factory=Trials)
    batches: Trials = field(default_factory=Trials)
    peak_memory_bytes: int | None = None
    """Most that torch's allocator held during a request, in the model it ran on and for it."""
    kept: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The static cache that requests of each kind reuse, or its length."""

    def of(self, what: str) -> Trials:
        """Return its single requests, or its batches."""
        return self.single if what == "single" else self.batches


@dataclass(slots=True)
class Tried:
    """What a lever's requests gave."""

    lever: Lever
    before: Side
    after: Side
    interleaved: bool = True
    """False: one side after the other, as the two models do not fit into memory together."""
    interrupted: bool = False

    @property
    def sides(self) -> tuple[Side, Side]:
        """Both."""
        return self.before, self.after

    @property
    def has_both(self) -> bool:
        """Whether there is something to compare."""
        return all(side.single.records or side.batches.records for side in self.sides)


def kinds(plan: PairPlan) -> tuple[str, ...]:
    """Return the kinds of requests that are asked for."""
    return KINDS if plan.rows else KINDS[:1]


def trace_name(lever: Lever, side: Side) -> str:
    """Return the name of a side's trace file."""
    return f"{TOOL}-{lever.name}-{side.name}.jsonl"
