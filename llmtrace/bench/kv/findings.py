"""The whole result of the tool: what is wrong, what is in vain, what casts doubt."""

from __future__ import annotations

from dataclasses import dataclass

from llmtrace.bench.cautions import Caution
from llmtrace.bench.kv.anomalies import FIXED, Anomaly, find
from llmtrace.bench.kv.leaks import LEAK, UNDECIDED, LeakTest
from llmtrace.bench.kv.running import Run
from llmtrace.bench.kv.steps import Step, Watched
from llmtrace.records import RequestRecord

TOOL = "kv"
LARGER = 1.25
"""Storages of so many times what the tensors take hold memory that no one can use."""
RSS_GROWTH = 0.1
"""A process that has grown by such a share of itself is worth a look."""


@dataclass(frozen=True, slots=True)
class Unused:
    """Room of a cache of fixed size that no token came into."""

    capacity: int
    """Tokens."""
    used: int
    """Tokens that were run: the last one is selected, but never run."""
    size: int
    """Bytes of the room that stayed empty."""


@dataclass(frozen=True, slots=True)
class KvResult:
    """What was found."""

    watched: Watched
    anomalies: tuple[Anomaly, ...]
    unused: Unused | None
    """None: nothing in the cache is of fixed size."""
    leaks: LeakTest | None
    """None: none was asked for."""
    records: tuple[RequestRecord, ...]
    cautions: tuple[Caution, ...]
    interrupted: bool = False
    failure: str | None = None

    @property
    def bad(self) -> bool:
        """Whether there is an anomaly or a leak."""
        return bool(self.anomalies) or (self.leaks is not None and self.leaks.verdict == LEAK)

    @property
    def undecided(self) -> bool:
        """Whether nothing bad was found, but the leak test could not tell."""
        return not self.bad and self.leaks is not None and self.leaks.verdict == UNDECIDED


def evaluate(run: Run) -> KvResult:
    """Return what is wrong with the cache of the request that was watched, and what is in vain."""
    watched = run.watched
    if watched is None:
        raise ValueError("no request was watched")
    own = () if watched.record is None else (watched.record,)
    return KvResult(
        watched=watched,
        anomalies=tuple(find(watched)),
        unused=unused(watched.steps[-1]),
        leaks=run.leaks,
        records=(*own, *run.records),
        cautions=(*_cut_short(run), *_doubts(watched, run.leaks)),
        interrupted=run.interrupted,
        failure=run.failure,
    )


def _cut_short(run: Run) -> list[Caution]:
    found = []
    if run.interrupted:
        found.append(Caution("interrupted", "Ctrl-C ended the run before all requests had run."))
    if run.failure:
        text = f"A request failed, and none was run after it: {run.failure}"
        found.append(Caution("failed", text))
    return found


def unused(step: Step) -> Unused | None:
    """Return the room of fixed size that is empty after *step*."""
    full = [layer for layer in step.layers if layer.kind in FIXED and layer.tokens]
    if not full:
        return None
    capacity = max(layer.tokens for layer in full)
    empty = sum(layer.size * max(0, layer.tokens - step.tokens) // layer.tokens for layer in full)
    return Unused(capacity, min(step.tokens, capacity), empty)


def _doubts(watched: Watched, leaks: LeakTest | None) -> list[Caution]:
    found, last = [], watched.steps[-1]
    types = {layer.dtype for layer in last.layers if layer.dtype} - {watched.needs.dtype}
    if types:
        text = f"The model's numbers are {watched.needs.dtype}, the cache's {', '.join(types)}."
        found.append(Caution("other_dtype", text))
    if last.size and last.held > LARGER * last.size:
        text = (
            f"The cache's tensors are parts of larger ones: {last.held:,} bytes are held for "
            f"{last.size:,}."
        )
        found.append(Caution("larger_storage", text))
    if last.due is None:
        text = "What this cache is due to hold in bytes is not known: lengths are compared only."
        found.append(Caution("due_unknown", text))
    if leaks is not None and leaks.verdict != LEAK and leaks.rss_per_request is not None:
        grown = leaks.rss_per_request * (len(leaks.samples) - 1)
        if grown > RSS_GROWTH * leaks.samples[0].rss:
            text = (
                f"The process grew by {grown:,.0f} bytes while no tensor stayed: no proof of a "
                "leak, since freed memory need not go back, but look at it over more requests."
            )
            found.append(Caution("rss_grew", text))
    return found
