"""The load of a level: which requests, how many at a time, and when each one arrives."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice, takewhile
from typing import Any

MECHANISMS = ("threads", "batch", "continuous")


@dataclass(frozen=True, slots=True)
class Level:
    """One setting of the load."""

    concurrency: int
    """Requests at work at the same time, at most."""
    mechanism: str
    requests: int
    rate: float | None = None
    """Requests that arrive per second; None: closed loop, the next one comes when one ends."""

    @property
    def name(self) -> str:
        """What the level is called in tables and charts."""
        if self.rate is None:
            return str(self.concurrency)
        return f"{self.rate:g}/s"


@dataclass(slots=True)
class Job:
    """One request of a level, and when it was where; nanoseconds of the monotonic clock."""

    index: int
    prompt: Any
    due_ns: int | None = None
    """When it was to arrive; None: in a closed loop, as soon as there is room."""
    submitted_ns: int | None = None
    """When it was handed over to be run."""
    begun_ns: int | None = None
    ended_ns: int | None = None
    output_tokens: int | None = None
    error: str | None = None


@dataclass(slots=True)
class Run:
    """What a level did."""

    level: Level
    jobs: list[Job] = field(default_factory=list)
    interrupted: bool = False
    failure: str | None = None


def arrivals_s(rate: float, requests: int, seed: int) -> list[float]:
    """Return when requests arrive, seconds from the start: a Poisson process, the same by seed.

    All are decided beforehand: a request that arrives while others are slow arrives all the same.
    """
    return list(islice(_arrivals_s(rate, seed), requests))


def arrive_within(rate: float, seconds: float, seed: int) -> int:
    """Return how many requests of that process arrive in its first *seconds*, at least one."""
    return sum(1 for _ in takewhile(lambda at: at < seconds, _arrivals_s(rate, seed))) or 1


def _arrivals_s(rate: float, seed: int) -> Iterator[float]:
    chance = random.Random(seed)  # noqa: S311 - no secret
    at = 0.0
    while True:
        yield at
        at += chance.expovariate(rate)
