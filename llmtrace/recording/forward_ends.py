"""When forwards ended on the device, also those whose end was not marked.

Two cases, told apart by the token's mark, which every step has. Where the device still had work
when the token was asked for, the forward's end and the token follow on each other on the device
alone, always at the same distance. Where it had none, it waits for Python: it is done with a
forward a little after the host has launched its last kernel, always by about the same time. Both
are measured in the steps that are marked. Where every marked step left the device with work, and
one that is not marked did not, Python halted after it: the device took as long as in the others.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from llmtrace.recording.recorder import Marks

BUSY_NS = 50_000
"""A token's mark that was passed later than this after it was asked for had to wait in line."""


class _Step(NamedTuple):
    """One forward whose token was selected."""

    forward: int
    host_end_ns: int
    token_ns: int
    busy: bool


def forward_ends(marks: Marks, tokens: Sequence[int], ends: Sequence[int | None]) -> list[int]:
    """Return the end of every forward on the device.

    Args:
        marks: The request's, with the host's times of what was marked on the device.
        tokens: The device's times of the tokens.
        ends: The device's times of the forwards' ends, None where not marked.
    """
    if None not in ends:
        return [end for end in ends if end is not None]
    steps = [
        _Step(done - 1, marks.forward_ends[done - 1], token, token - asked > BUSY_NS)
        for asked, token, done in zip(marks.tokens, tokens, marks.token_forwards, strict=False)
        if done
    ]
    marked = [(step, end) for step in steps if (end := ends[step.forward]) is not None]
    # The prefill's forward ends in another way: other kernels come after it.
    decode = [(s, end) for s, end in marked if s.forward >= marks.token_forwards[0]] or marked
    apart = [(s.busy, s.token_ns - end) for s, end in decode]
    before_token = _median([gap for busy, gap in apart if busy] or [gap for _, gap in apart])
    behind = [(s.busy, end - s.host_end_ns) for s, end in decode]
    after_host = _median([gap for busy, gap in behind if not busy] or [gap for _, gap in behind])
    by_forward = {step.forward: step for step in steps}
    return [
        _end(marks.forward_ends[forward], by_forward.get(forward), before_token, after_host)
        if end is None
        else end
        for forward, end in enumerate(ends)
    ]


def _end(
    host_end_ns: int, step: _Step | None, before_token: int | None, after_host: int | None
) -> int:
    """Return the end of a forward that was not marked."""
    if step is None:
        return host_end_ns + (after_host or 0)
    if step.busy or after_host is None:
        end = step.token_ns - (before_token or 0)
    else:
        end = host_end_ns + after_host
    return min(max(end, host_end_ns), step.token_ns)


def _median(values: list[int]) -> int | None:
    return round(statistics.median(values)) if values else None
