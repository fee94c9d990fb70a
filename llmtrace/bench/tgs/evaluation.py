"""Figures of each level, from its records and from when its requests were due."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from llmtrace.analysis.report import Report, build_report
from llmtrace.analysis.summary import Summary, summarise
from llmtrace.analysis.timeline import by_concurrency, timeline
from llmtrace.bench.cautions import Caution, few
from llmtrace.bench.tgs import resources
from llmtrace.bench.tgs.load import Job, Level
from llmtrace.bench.tgs.losses import Loss, loss
from llmtrace.bench.tgs.running import Measured
from llmtrace.records import RequestRecord

SHORT_STEADY = 0.5
"""Share of a closed loop's time in which all requests were at work; below it, that is said."""
CLOCKS_APART_NS = 1_000_000
"""Wall clock and monotonic clock may part so far during a level."""
LATE_S = 0.01
"""A load generator later than this, in one of a hundred arrivals, did not keep up."""


@dataclass(frozen=True, slots=True)
class Steady:
    """The time in which as many requests were at work as the level asks for."""

    seconds: float
    share: float
    """Of the time in which any was at work."""
    tgs: float


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a level; a batch's rows are one each. Seconds."""

    job: Job
    record: RequestRecord
    waited_s: float
    """From when it was due, or submitted, to when it was run."""
    output_tokens: int

    @property
    def queue_s(self) -> float:
        """All that it waited, in the scheduler's queue too."""
        inside = self.record.queue_s if self.record.preemptions is not None else None
        return self.waited_s + (inside or 0.0)

    @property
    def ttft_s(self) -> float | None:
        """From when it was due, or submitted."""
        found = self.record.ttft_s
        return None if found is None else self.waited_s + found

    @property
    def e2e_s(self) -> float | None:
        """From when it was due, or submitted."""
        found = self.record.e2e_s
        return None if found is None else self.waited_s + found

    @property
    def tgs(self) -> float | None:
        """Its tokens over its time."""
        return self.output_tokens / self.e2e_s if self.e2e_s else None


@dataclass(frozen=True, slots=True)
class LevelResult:
    """What was found at one level."""

    level: Level
    requests: tuple[Request, ...]
    report: Report
    """Of the requests that count, each as long as its ``generate()``."""
    system: float | None
    """Output tokens per second while any request was at work."""
    steady: Steady | None
    tgs: Summary | None
    ttft_s: Summary | None
    queue_s: Summary | None
    lag_s: Summary | None
    """By how much the load generator was late; of an open loop."""
    padding: float | None
    """Share of a batch's prompt tokens that are padding."""
    loss: Loss | None
    use: Mapping[str, Summary | None]
    over_time: Mapping[str, list[float | None]]
    cautions: tuple[Caution, ...] = field(default=())

    @property
    def rate(self) -> float | None:
        """The system's rate in the steady time, or in all of it in an open loop."""
        return self.steady.tgs if self.steady is not None else self.system


def evaluate(
    measured: Sequence[Measured], samples: Sequence[Mapping[str, Any]]
) -> tuple[LevelResult, ...]:
    """Return the figures of each level; losses are against the one with a single request."""
    found = [_level(one, samples) for one in measured]
    alone = next((f for f in found if f.level.concurrency == 1 and f.level.rate is None), None)
    return tuple(
        replace(one, loss=loss(one, alone))
        if one.level.rate is None and one.level.concurrency > 1
        else one
        for one in found
    )


def _level(measured: Measured, samples: Sequence[Mapping[str, Any]]) -> LevelResult:
    level = measured.run.level
    requests = requests_of(measured)
    counted = [r for r in requests if r.record.error is None and not r.record.cold]
    records = list({id(r.record): r.record for r in counted}.values())
    report = build_report(measured.records)
    steady = steady_of(level, measured.records) if level.rate is None else None
    inside = resources.within(samples, measured.begun_unix_ns, measured.ended_unix_ns)
    tgs = summarise(r.tgs for r in counted)
    ttft = summarise(r.ttft_s for r in counted)
    found = LevelResult(
        level=level,
        requests=tuple(requests),
        report=report,
        system=report.tgs.system,
        steady=steady,
        tgs=tgs,
        ttft_s=ttft,
        queue_s=summarise(r.queue_s for r in counted),
        lag_s=summarise(_lag_s(job) for job in measured.run.jobs),
        padding=_padding(records),
        loss=None,
        use=resources.use(inside),
        over_time={
            name: resources.over_time(inside, name, measured.begun_unix_ns, measured.ended_unix_ns)
            for name in resources.use(inside)
        },
    )
    cautions = tuple(_cautions(measured, found, len(requests) - len(counted)))
    return replace(found, cautions=cautions)


def requests_of(measured: Measured) -> list[Request]:
    """Return the requests that ended well, by when they were run.

    A record belongs to the job that was run last before it began; the rows of a batch were run at
    one time and share a record. Requests that were under way when the level was cut short have
    jobs and records too: they are matched like the others, and then left out.
    """
    begun: dict[int, list[Job]] = {}
    for job in sorted(measured.run.jobs, key=lambda j: (j.begun_ns or 0, j.index)):
        if job.begun_ns is not None:
            begun.setdefault(job.begun_ns, []).append(job)
    records = sorted(measured.records, key=lambda r: r.start_unix_ns)
    found, place = [], 0
    times = [at + measured.unix_offset_ns for at in begun]
    after = [*times[1:], None]
    for at, next_at, jobs in zip(times, after, begun.values(), strict=False):
        while place < len(records) and records[place].start_unix_ns < at - CLOCKS_APART_NS:
            place += 1
        if place == len(records):
            break
        record = records[place]
        if next_at is not None and record.start_unix_ns > next_at + CLOCKS_APART_NS:
            continue  # it was cut short before it had one
        place += 1
        if record.error is None and all(job.ended_ns is not None for job in jobs):
            found += [
                Request(job, record, _waited_s(job), _tokens(record, row))
                for row, job in enumerate(jobs)
            ]
    return found


def _waited_s(job: Job) -> float:
    since = job.due_ns if job.due_ns is not None else job.submitted_ns
    return max(0, (job.begun_ns or 0) - (since or 0)) / 1e9


def _lag_s(job: Job) -> float | None:
    if job.due_ns is None or job.submitted_ns is None:
        return None
    return max(0, job.submitted_ns - job.due_ns) / 1e9


def _tokens(record: RequestRecord, row: int) -> int:
    rows = record.output_tokens_per_row
    return rows[row] if row < len(rows) else (record.output_tokens or 0)


def steady_of(level: Level, records: Sequence[RequestRecord]) -> Steady | None:
    """Return the time in which the level's number of requests were at work, and its rate.

    Of batches: the time of those that have all rows.
    """
    good = [r for r in records if r.error is None]
    if level.mechanism == "batch":
        good = [r for r in good if r.batch_size == level.concurrency]
    everything = timeline(records, records)
    found = timeline(good, good)
    if found is None or everything is None:
        return None
    at_once = 1 if level.mechanism == "batch" else level.concurrency
    at_work = (
        everything.running > 0
    )  # with or without a token: all are reading their prompts at first
    whole = float(np.diff(everything.edges_s)[at_work].sum())
    for at in by_concurrency(found):
        if at.running == at_once:
            return Steady(at.seconds, at.seconds / whole, at.tgs)
    return None


def _padding(records: Sequence[RequestRecord]) -> float | None:
    batches = [r for r in records if r.batch_size and r.batch_size > 1 and r.input_tokens_padded]
    real = sum(r.input_tokens or 0 for r in batches)
    held = sum(r.input_tokens_padded or 0 for r in batches)
    return 1 - real / held if held else None


def _cautions(measured: Measured, found: LevelResult, left_out: int) -> list[Caution]:
    at = f"At {found.level.name}: "
    said = []
    if measured.run.interrupted:
        said.append(Caution("interrupted", f"{at}Ctrl-C ended it before all requests had run."))
    if measured.run.failure:
        text = f"{at}a request failed, and none was run after it: {measured.run.failure}"
        said.append(Caution("failed", text))
    if left_out:
        said.append(Caution("cold", f"{at}{left_out} requests were cold and are left out."))
    if found.level.rate is None and (found.steady is None or found.steady.share < SHORT_STEADY):
        share = f"{found.steady.share:.0%}" if found.steady is not None else "nothing"
        text = f"{at}all requests were at work in {share} of the time: run more of them."
        said.append(Caution("steady_short", text))
    if found.lag_s is not None and found.lag_s.p99 > LATE_S:
        text = f"{at}the load generator was late by up to {found.lag_s.max * 1e3:.0f} ms."
        said.append(Caution("generator_late", text))
    return said + [Caution(c.code, at + c.text) for c in few(found.ttft_s, "TTFT")]
