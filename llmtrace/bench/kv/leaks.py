"""Whether memory that should come back after each request does not."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from llmtrace.bench.kv.memory import Sample

FEWEST = 9
"""Requests that a verdict needs: three in each third."""
SLOWING = 0.5
"""A last third that grows by less than this share of the first fills something up, it may be."""
OFTEN = 0.5
"""So many more objects per request make a class one that grows."""
MOST = 10
"""Of the classes that grow, so many are told."""
_OWN = frozenset({"llmtrace", "opentelemetry", "rich"})
LEAK, CLEAN, UNDECIDED = "LEAK", "no leak", "undecided"


@dataclass(frozen=True, slots=True)
class LeakTest:
    """The verdict on memory after each of some requests."""

    verdict: str
    reason: str
    samples: tuple[Sample, ...]
    bytes_per_request: float | None
    """Growth from the first requests to the last, over those between; None: too few."""
    growing: tuple[tuple[str, float], ...] = ()
    """Classes of which more are alive, and how many more per request."""
    holders: tuple[str, ...] = ()
    """How objects that stayed are held, from the object outwards."""
    rss_per_request: float | None = None

    @property
    def measured(self) -> str:
        """Which bytes the verdict is made of."""
        on_gpu = bool(self.samples) and self.samples[0].allocated is not None
        return "torch.cuda.memory_allocated" if on_gpu else "storages of live tensors"


def judge(samples: Sequence[Sample], holders: Sequence[str] = ()) -> LeakTest:
    """Return the verdict on the bytes in tensors after each request.

    They leak if they have grown in each third of the requests and never fell, or are in the last
    third all above those of the first. What fills up, such as a store of the last ten, stops
    growing. Where the last third grows much less than the first, more requests have to tell.
    """
    if len(samples) < FEWEST:
        reason = f"{len(samples)} requests are too few: {FEWEST} are the least"
        return LeakTest(UNDECIDED, reason, tuple(samples), None)
    values = _steadied([one.bytes for one in samples])
    per_request = (values[-1] - values[0]) / (len(values) - 1)
    between = len(samples) - 1
    verdict, reason = _verdict(values)
    return LeakTest(
        verdict,
        reason,
        tuple(samples),
        per_request,
        growing=_growing(samples),
        holders=tuple(holders),
        rss_per_request=(samples[-1].rss - samples[0].rss) / between,
    )


def _steadied(values: Sequence[int]) -> list[int]:
    """Return the middle one of each three neighbours: what stayed for one request is no growth."""
    return [sorted(values[i : i + 3])[1] for i in range(len(values) - 2)]


def _verdict(values: Sequence[int]) -> tuple[str, str]:
    """Return the verdict on bytes after each request, and why."""
    last = len(values) - 1
    cuts = [0, last // 3, 2 * last // 3, last]
    grown = [values[b] - values[a] for a, b in pairwise(cuts)]
    falls = sum(b < a for a, b in pairwise(values))
    apart = min(values[cuts[2] :]) > max(values[: cuts[1] + 1])
    if grown[-1] <= 0 and not (falls and apart):
        return CLEAN, "memory after a request does not keep growing"
    if min(grown) <= 0 or (falls and not apart):
        return UNDECIDED, (
            f"memory is {values[-1] - values[0]:,} bytes up, but did not grow all the time: more "
            "requests have to tell"
        )
    if grown[-1] < SLOWING * grown[0]:
        return UNDECIDED, "growth slows down: a store may be filling up; more requests have to tell"
    how = "never falls and grows" if not falls else "grows on the whole"
    return LEAK, f"memory after a request {how} from the first to the last"


def _growing(samples: Sequence[Sample]) -> tuple[tuple[str, float], ...]:
    """Return the classes of which at least every other request leaves one more; caches first.

    Not those of the standard library, nor of this tool's own telemetry and display.
    """
    first, last = samples[0].classes, samples[-1].classes
    between = len(samples) - 1
    grown = {name: (n - first.get(name, 0)) / between for name, n in last.items()}
    grown["torch.Tensor"] = (samples[-1].tensors - samples[0].tensors) / between
    found = [(name, per) for name, per in grown.items() if per >= OFTEN and not _beside(name)]
    return tuple(sorted(found, key=lambda pair: (not is_cache(pair[0]), -pair[1], pair[0])))[:MOST]


def is_cache(name: str) -> bool:
    """Return whether a class of this name is a KV cache."""
    return name.endswith("Cache")


def _beside(name: str) -> bool:
    package = name.partition(".")[0]
    storages = name.startswith("torch.storage.")  # the sample itself makes them
    return package in sys.stdlib_module_names or package in _OWN or storages
