"""The same figures for each model, prompt length, batch size and strategy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from llmtrace.analysis.gaps import Gaps
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


def groupings(records: Sequence[RequestRecord], gaps: Gaps) -> tuple[Grouping, ...]:
    """Return *records*, whose gaps are *gaps*, in groups, by each of the four things."""

    def by_size(value: Callable[[RequestRecord], str]) -> tuple[Group, ...]:
        found = _members(records, value)
        ordered = sorted(found, key=lambda name: (-len(found[name]), name))
        return tuple(_group(name, records, found[name], gaps) for name in ordered)

    def ascending(
        value: Callable[[RequestRecord], int | None], name: Callable[[int], str]
    ) -> tuple[Group, ...]:
        found = _members(records, value)
        return tuple(_group(name(n), records, found[n], gaps) for n in sorted(found))

    return (
        Grouping("model", by_size(lambda r: r.model)),
        Grouping("prompt_tokens", ascending(_prompt_bucket, _bucket_name)),
        Grouping("batch_size", ascending(lambda r: r.batch_size, str)),
        Grouping("strategy", by_size(lambda r: r.strategy)),
    )


def _prompt_bucket(record: RequestRecord) -> int | None:
    """Return the first prompt length of the request's bucket."""
    tokens = prompt_tokens(record)
    firsts = [first for first, _ in PROMPT_BUCKETS if tokens is not None and first <= tokens]
    return firsts[-1] if firsts else None


def _bucket_name(first: int) -> str:
    last = dict(PROMPT_BUCKETS)[first]
    return f"{first}+" if last is None else f"{first}-{last}"


def _members(
    records: Sequence[RequestRecord], value: Callable[[RequestRecord], _Value | None]
) -> dict[_Value, list[int]]:
    """Return the places of the records of each value."""
    members: dict[_Value, list[int]] = {}
    for place, record in enumerate(records):
        if (found := value(record)) is not None:
            members.setdefault(found, []).append(place)
    return members


def _group(
    value: str, records: Sequence[RequestRecord], places: Sequence[int], gaps: Gaps
) -> Group:
    members = [records[place] for place in places]
    return Group(
        value=value,
        requests=len(members),
        ttft_s=summarise(r.ttft_s for r in members),
        itl_s=summarise(gaps.of(places).pooled()),
        tpot_s=summarise(r.tpot_s for r in members),
        tgs_request=summarise(r.tgs for r in members),
        tgs_system=system_tgs(members),
    )
