"""What a reader waits for: the parts of the time to the first visible text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llmtrace.analysis.summary import Summary, summarise
from llmtrace.records import RequestRecord, first_text_phases

FORMULAS = {
    "queue": "server span or request() to generate(), less tokenizing",
    "tokenize": "tokenizer calls before generate()",
    "prepare": "generate() to the first forward",
    "prefill": "first forward's start to end of the one that yields token 1",
    "sampling": "end of the prefill to token 1 selected",
    "delivery": "token 1 selected to taken by the streamer's consumer",
    "hold_back": "token 1 taken to text that is more than white space",
}


@dataclass(frozen=True, slots=True)
class FirstText:
    """The time to the first visible text and its parts, of the same requests."""

    total_s: Summary
    parts: dict[str, Summary | None]
    """By name, in order. Their means add up to the total's where each request has them all; a
    part that a request does not have counts as 0 in ``shares``."""
    shares: dict[str, float | None]
    """Sum of a part over the sum of the total, 0 to 1."""


def first_text(records: Sequence[RequestRecord]) -> FirstText | None:
    """Return what readers of *records*' streams waited for; None where there are no readers."""
    read = [first_text_phases(r) for r in records if r.first_visible_text_s is not None]
    read = [parts for parts in read if parts["prefill"] is not None]
    totals = [sum(value for value in parts.values() if value is not None) for parts in read]
    total = summarise(totals)
    if total is None:
        return None
    parts = {name: summarise(one[name] for one in read) for name in FORMULAS}
    whole = sum(totals)
    shares = {
        name: None if part is None or not whole else part.mean * part.count / whole
        for name, part in parts.items()
    }
    return FirstText(total, parts, shares)
