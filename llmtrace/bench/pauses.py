"""What stopped the program meanwhile, and when: garbage collections and compilations."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from llmtrace.analysis.summary import Values
from llmtrace.seams import compilations
from llmtrace.timing.host import anchor, now

Kind = Literal["garbage_collection", "compilation"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True, slots=True)
class Pause:
    """A time in which Python did something else."""

    kind: Kind
    start_unix_ns: int
    duration_s: float


class _Stopwatch:
    """Notes the pauses of one kind."""

    def __init__(self, kind: Kind, found: list[Pause]) -> None:
        self._kind = kind
        self._found = found
        self._begun: int | None = None

    def start(self) -> None:
        self._begun = now()

    def stop(self) -> None:
        if self._begun is not None:
            # An anchor for each: the wall clock may be set while a run goes on.
            wall = anchor().wall(self._begun)
            self._found.append(Pause(self._kind, wall, (now() - self._begun) * 1e-9))
            self._begun = None

    def collected(self, phase: str, _info: dict[str, int]) -> None:
        """Be one of ``gc.callbacks``."""
        (self.start if phase == "start" else self.stop)()


@contextmanager
def watched(*, compiles: bool) -> Iterator[list[Pause]]:
    """Lend a list that all pauses of this block are appended to.

    Args:
        compiles: Whether compilations are to be expected: dynamo is imported for them.
    """
    if compiles:
        import torch._dynamo  # noqa: F401
    found: list[Pause] = []
    collector = _Stopwatch("garbage_collection", found)
    compiler = _Stopwatch("compilation", found)
    gc.callbacks.append(collector.collected)
    undo = compilations.watch(compiler.start, compiler.stop)
    try:
        yield found
    finally:
        gc.callbacks.remove(collector.collected)
        if undo is not None:
            undo()


def overlap(pauses: Sequence[Pause], kind: Kind, start_unix_ns: int, edges_s: Values) -> Values:
    """Return the time that pauses took out of each interval, seconds.

    Args:
        pauses: All of them.
        kind: Which count.
        start_unix_ns: What the edges count from.
        edges_s: Bounds of the intervals, ascending; one more than there are intervals.
    """
    taken = np.zeros(edges_s.size - 1)
    for pause in pauses:
        if pause.kind != kind:
            continue
        begun = (pause.start_unix_ns - start_unix_ns) * 1e-9
        inside = np.minimum(edges_s[1:], begun + pause.duration_s) - np.maximum(edges_s[:-1], begun)
        taken += np.maximum(inside, 0)
    return taken
