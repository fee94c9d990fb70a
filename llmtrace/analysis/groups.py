"""The same figures for each model, prompt length, batch size and strategy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from llmtrace.analysis.gaps import gaps_of
from llmtrace.analysis.latency import PROMPT_BUCKETS, prompt_tokens
from llmtrace.analysis.summary import Summary, summarise
from llmtrace.analysis.throughput import system_tgs
from llmtrace.records import RequestRecord

_Value = TypeVar("_Value", int, str)


@dataclass(frozen=True, slots=True)
class Group:
    """The figures of the requests that have one thing in common."""

    value: str
    """What they have in common, as text."""
    requests: int
    ttft_s: Summary | None
    itl_s: Summary | None
    tpot_s: Summary | None
    tgs_request: Summary | None
    tgs_system: float | None
    """Their tokens over the time in which at least one of them was running."""


@dataclass(frozen=True, slots=True)
class Grouping:
    """Requests told apart by one thing; every request with that known is in one group."""

    by: str
    """``model``, ``prompt_tokens``, ``batch_size`` or ``strategy``."""
    groups: tuple[Group, ...]
    """The most requests first; prompt lengths and batch sizes ascending."""


def groupings(records: Sequence[RequestRecord]) -> tuple[Grouping, ...]:
    """Return *records* in groups, by each of the four things."""
    return (
        Grouping("model", _by_size(records, lambda r: r.model)),
        Grouping("prompt_tokens", _ascending(records, _prompt_bucket, _bucket_name)),
        Grouping("batch_size", _ascending(records, lambda r: r.batch_size, str)),
        Grouping("strategy", _by_size(records, lambda r: r.strategy)),
    )


def _prompt_bucket(record: RequestRecord) -> int | None:
    """Return the first prompt length of the request's bucket."""
    tokens = prompt_tokens(record)
    firsts = [first for first, _ in PROMPT_BUCKETS if tokens is not None and first <= tokens]
    return firsts[-1] if firsts else None


def _bucket_name(first: int) -> str:
    last = dict(PROMPT_BUCKETS)[first]
    return f"{first}+" if last is None else f"{first}-{last}"


def _by_size(
    records: Sequence[RequestRecord], value: Callable[[RequestRecord], str]
) -> tuple[Group, ...]:
    found = _members(records, value)
    ordered = sorted(found, key=lambda name: (-len(found[name]), name))
    return tuple(_group(name, found[name]) for name in ordered)


def _ascending(
    records: Sequence[RequestRecord],
    value: Callable[[RequestRecord], int | None],
    name: Callable[[int], str],
) -> tuple[Group, ...]:
    found = _members(records, value)
    return tuple(_group(name(number), found[number]) for number in sorted(found))


def _members(
    records: Sequence[RequestRecord], value: Callable[[RequestRecord], _Value | None]
) -> dict[_Value, list[RequestRecord]]:
    members: dict[_Value, list[RequestRecord]] = {}
    for record in records:
        if (found := value(record)) is not None:
            members.setdefault(found, []).append(record)
    return members


def _group(value: str, members: Sequence[RequestRecord]) -> Group:
    return Group(
        value=value,
        requests=len(members),
        ttft_s=summarise(r.ttft_s for r in members),
        itl_s=summarise(gaps_of(members).pooled()),
        tpot_s=summarise(r.tpot_s for r in members),
        tgs_request=summarise(r.tgs for r in members),
        tgs_system=system_tgs(members),
    )
