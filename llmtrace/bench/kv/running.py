"""The tool's run: a warm-up, one request that is watched, and those of the leak test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from llmtrace.bench.generation import ask
from llmtrace.bench.kv import holders, leaks, memory
from llmtrace.bench.kv.leaks import LEAK, LeakTest
from llmtrace.bench.kv.memory import Sample
from llmtrace.bench.kv.steps import Step, Watched
from llmtrace.bench.kv.watch import ending, watch
from llmtrace.bench.models import Subject
from llmtrace.bench.prompts import Prompts
from llmtrace.bench.settings import Generation
from llmtrace.bench.tracing import Trace
from llmtrace.bench.trials import WARMUP_IDS, Progress
from llmtrace.records import RequestRecord


@dataclass(slots=True)
class Run:
    """What has been seen so far."""

    watched: Watched | None = None
    samples: list[Sample] = field(default_factory=list)
    records: list[RequestRecord] = field(default_factory=list)
    """Of the leak test's requests."""
    interrupted: bool = False
    leaks: LeakTest | None = None


def warm_up(
    subject: Subject, prompts: Prompts, plan: Generation, stop_after: int | None, trace: Trace
) -> None:
    """Run one request of each kind of prompt: what is set up once is no leak."""
    for index in range(prompts.kinds):
        prompt = prompts.prompt(WARMUP_IDS * prompts.kinds + index)
        ask(subject, prompt, plan, **ending(prompt, stop_after))
    trace.warmed_up()


def watch_longest(
    run: Run,
    subject: Subject,
    prompts: Prompts,
    plan: Generation,
    stop_after: int | None,
    show: Callable[[Watched, Step], None],
) -> None:
    """Watch a request with the longest of the prompts."""
    longest = max(range(prompts.kinds), key=lambda index: prompts.lengths[index])
    run.watched = watch(subject, prompts.prompt(longest), plan, stop_after=stop_after, show=show)
    run.interrupted = run.watched.record is None


def leak_test(
    run: Run,
    subject: Subject,
    prompts: Prompts,
    plan: Generation,
    stop_after: int | None,
    *,
    requests: int,
    progress: Progress,
) -> None:
    """Run *requests* requests and judge the memory after each; Ctrl-C ends them early."""
    try:
        for index in range(requests):
            progress("looking for leaks", index, requests)
            prompt = prompts.prompt(prompts.kinds + index)
            beside = ending(prompt, stop_after)
            run.records.append(ask(subject, prompt, plan, seed=index, **beside))
            run.samples.append(memory.sample(index))
        progress("looking for leaks", requests, requests)
    except KeyboardInterrupt:
        run.interrupted = True
    run.leaks = leaks.judge(run.samples)
    if run.leaks.verdict == LEAK:
        run.leaks = leaks.judge(run.samples, holders.of(run.leaks.growing))
