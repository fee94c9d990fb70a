"""Requests that several ranks served together: one each, and how far apart the ranks were."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llmtrace.analysis.summary import Summary, summarise
from llmtrace.records import RequestRecord

NANO = 1e-9


@dataclass(frozen=True, slots=True)
class Ranks:
    """Tensor-parallel requests, as their ranks' records tell them together."""

    requests: int
    ranks: int
    """Ranks that a request was recorded on, at most."""
    incomplete: int
    """Requests recorded on fewer ranks than that."""
    start_skew_s: Summary | None
    """First rank to last rank into ``generate()``; one value per request, of wall clocks."""
    first_token_skew_s: Summary | None


def one_per_request(records: Sequence[RequestRecord]) -> list[RequestRecord]:
    """Return a record of each request: of several ranks', one that failed, or the lowest's."""
    chosen: dict[str, RequestRecord] = {}
    for record in records:
        name = record.ranks_request
        if name is not None and (name not in chosen or _before(record, chosen[name])):
            chosen[name] = record
    return [r for r in records if r.ranks_request is None or chosen[r.ranks_request] is r]


def _before(record: RequestRecord, other: RequestRecord) -> bool:
    def key(of: RequestRecord) -> tuple[bool, int]:
        return of.error is None, of.rank or 0

    return key(record) < key(other)


def ranks_of(records: Sequence[RequestRecord]) -> Ranks | None:
    """Return what the ranks of tensor-parallel requests tell together; None without any."""
    together: dict[str, list[RequestRecord]] = {}
    for record in records:
        if record.ranks_request is not None:
            together.setdefault(record.ranks_request, []).append(record)
    if not together:
        return None
    most = max(map(len, together.values()))
    complete = [group for group in together.values() if len(group) == most > 1]
    return Ranks(
        requests=len(together),
        ranks=most,
        incomplete=sum(len(group) < most for group in together.values()),
        start_skew_s=summarise(_spread([r.start_unix_ns for r in group]) for group in complete),
        first_token_skew_s=summarise(_first_token_skew(group) for group in complete),
    )


def _first_token_skew(group: Sequence[RequestRecord]) -> float | None:
    if any(record.ttft_s is None for record in group):
        return None
    return _spread([r.start_unix_ns + round((r.ttft_s or 0) / NANO) for r in group])


def _spread(instants_ns: Sequence[int]) -> float:
    return (max(instants_ns) - min(instants_ns)) * NANO
