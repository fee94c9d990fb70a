"""What held text up between the model and its reader: findings, pure arithmetic."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace

from llmtrace.known_findings import EVENT_LOOP_BLOCKED, SLOW_CONSUMER
from llmtrace.recording.request import RequestInfo
from llmtrace.recording.stream import LATE_NS, LateItem, StreamTimes
from llmtrace.records import Finding

BACKLOG = 2
"""Text is late when the model has made this many more tokens meanwhile."""

PUT_SHARE = 0.25
"""A streamer is slow whose ``put`` takes this share of the request's time."""

NANO = 1e-9


def delivery_findings(info: RequestInfo, gaps: Sequence[float], duration_s: float) -> list[Finding]:
    """Return what is to be said of a request's delivery.

    Args:
        info: The request.
        gaps: Its inter-token latencies, seconds: late is what is late beside them.
        duration_s: Its duration.
    """
    found = _on_the_loop(info, duration_s)
    stream = info.stream
    if stream is None:
        return found
    usual_ns = statistics.median(gaps) / NANO if gaps else 0
    limit_ns = max(LATE_NS, BACKLOG * usual_ns)
    if stream.pull:
        return found + _queued_late(stream, limit_ns)
    return found + _slow_put(stream, limit_ns, duration_s)


def _on_the_loop(info: RequestInfo, duration_s: float) -> list[Finding]:
    if not info.loop_tasks or duration_s < LATE_NS * NANO:
        return []
    evidence = (
        f"generate() ran in the event loop's thread for {duration_s:.2f} s; other tasks that "
        f"waited: {info.loop_tasks}"
    )
    return [replace(EVENT_LOOP_BLOCKED, evidence=evidence)]


def _queued_late(stream: StreamTimes, limit_ns: float) -> list[Finding]:
    if stream.unmatched:
        return []
    late = [item for item in stream.late if item.late_ns >= limit_ns]
    away_ns = sum(item.away_ns for item in late)
    loop_ns = sum(item.loop_ns for item in late)
    found = []
    if loop_ns >= limit_ns:
        worst = max(late, key=lambda item: item.loop_ns)
        said = f"the loop did not run for {worst.loop_ns * NANO:.2f} s at text item {worst.item}"
        found.append(replace(EVENT_LOOP_BLOCKED, evidence=f"{said}; {_extent(late, loop_ns)}"))
    left = _never_taken(stream, limit_ns)
    if away_ns >= limit_ns:
        worst = max(late, key=lambda item: item.away_ns)
        said = (
            f"the consumer was away for {worst.away_ns * NANO:.2f} s while text item {worst.item} "
            f"lay ready; {_extent(late, away_ns)}"
        )
        found.append(replace(SLOW_CONSUMER, evidence=f"{said}; {left}" if left else said))
    elif left:
        found.append(replace(SLOW_CONSUMER, evidence=left))
    return found


def _extent(late: Sequence[LateItem], total_ns: int) -> str:
    longest = max(item.late_ns for item in late) * NANO
    most = max(item.waiting for item in late)
    return (
        f"{total_ns * NANO:.2f} s in all, {len(late)} items late by up to {longest:.2f} s, at most "
        f"{most} ready at once"
    )


def _never_taken(stream: StreamTimes, limit_ns: float) -> str:
    """Say what a consumer that had begun to read has left."""
    ready = stream.ready.copy()
    if stream.ended or not ready or stream.delivered_ns is None or stream.seen_ns is None:
        return ""
    # From when it took the last one: until then what is left could not be taken.
    waited_ns = stream.seen_ns - max(ready[0], stream.taken_ns)
    if waited_ns < limit_ns:
        return ""
    return (
        f"{len(ready)} of {stream.items + len(ready)} items were not taken within "
        f"{waited_ns * NANO:.2f} s"
    )


def _slow_put(stream: StreamTimes, limit_ns: float, duration_s: float) -> list[Finding]:
    slow = stream.put_ns >= max(LATE_NS, PUT_SHARE * duration_s / NANO)
    if stream.longest_put_ns < limit_ns and not slow:
        return []
    evidence = (
        f"the streamer's put() held the model up: {stream.longest_put_ns * NANO:.2f} s at token "
        f"{stream.longest_put}, {stream.put_ns * NANO:.2f} s in all of {duration_s:.2f} s"
    )
    return [replace(SLOW_CONSUMER, evidence=evidence)]
