"""Running the levels, one after the other."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from llmtrace import api
from llmtrace.bench.generation import RequestFailedError
from llmtrace.bench.prompts import Prompts
from llmtrace.bench.tgs.load import Job, Level, Run, arrivals_s
from llmtrace.bench.tgs.mechanisms import Mechanism, now
from llmtrace.bench.tracing import Trace, collector_frozen
from llmtrace.bench.trials import WARMUP_IDS, Progress
from llmtrace.records import RequestRecord

LEAD_NS = 50_000_000
"""An open loop's first request arrives so long after its threads have been started."""


@dataclass(slots=True)
class Measured:
    """A level's requests, as they were seen from outside and by llmtrace."""

    run: Run
    records: list[RequestRecord] = field(default_factory=list)
    begun_unix_ns: int = 0
    ended_unix_ns: int = 0
    unix_offset_ns: int = 0
    """Wall clock less the jobs' clock."""


def run_levels(
    mechanism: Mechanism,
    prompts: Prompts,
    levels: Sequence[Level],
    *,
    seed: int,
    progress: Progress,
    trace: Trace,
) -> list[Measured]:
    """Warm up every level, then measure each; Ctrl-C and a failed request keep what there is.

    Raises:
        RequestFailedError: One failed while warming up.
    """
    found: list[Measured] = []
    try:
        for index, level in enumerate(levels):
            progress("warming up", index, len(levels))
            # Every kind of prompt, and as many at a time as later: shapes are compiled for both.
            jobs = [
                Job(i, prompts.prompt(WARMUP_IDS * prompts.kinds + i))
                for i in range(max(level.concurrency, prompts.kinds))
            ]
            closed = Level(level.concurrency, level.mechanism, len(jobs))
            mechanism.run(closed, jobs, lambda _: None)
        with api.capture():
            pass  # until the last of them has been recorded
        trace.warmed_up()
        with collector_frozen():
            for level in levels:
                measured = Measured(Run(level))
                found.append(measured)
                _run_level(mechanism, prompts, measured, seed, progress)
                if measured.run.failure:
                    break
    except KeyboardInterrupt:
        if not found:
            found.append(Measured(Run(levels[0])))
        found[-1].run.interrupted = True
    return found


def _run_level(
    mechanism: Mechanism, prompts: Prompts, measured: Measured, seed: int, progress: Progress
) -> None:
    import torch

    run, level = measured.run, measured.run.level
    # Every level begins with the same prompts and random state: what differs is the load alone.
    torch.manual_seed(seed)
    run.jobs = [Job(i, prompts.prompt(i)) for i in range(level.requests)]
    done = []

    def ended(job: Job) -> None:
        done.append(job)
        progress(f"{level.mechanism}, {level.name}", len(done), level.requests)

    progress(f"{level.mechanism}, {level.name}", 0, level.requests)
    measured.unix_offset_ns = time.time_ns() - now()
    measured.begun_unix_ns = time.time_ns()
    if level.rate is not None:
        begin = now() + LEAD_NS
        for job, at in zip(run.jobs, arrivals_s(level.rate, level.requests, seed), strict=True):
            job.due_ns = begin + round(at * 1e9)
    try:
        with api.capture() as measured.records:  # complete when the block has ended
            mechanism.run(level, run.jobs, ended)
    except RequestFailedError as error:
        run.failure = str(error)
    finally:
        measured.ended_unix_ns = time.time_ns()
