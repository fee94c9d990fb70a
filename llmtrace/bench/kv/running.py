"""The tool's run: a warm-up, one request that is watched, and those of the leak test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from llmtrace.bench.generation import RequestFailedError, ask
from llmtrace.bench.kv import holders, leaks, memory
from llmtrace.bench.kv.geometry import geometry
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
    failure: str | None = None
    """Why a request of the leak test failed; none was run after it."""
    leaks: LeakTest | None = None


def warm_up(
    subject: Subject, prompts: Prompts, plan: Generation, stop_after: int | None, trace: Trace
) -> None:
    """Run one request of each kind of prompt: what is set up once is no leak.

    Raises:
        ConfigError: The model has no attention.
    """
    geometry(subject.model)
    for index in range(prompts.kinds):
        _asked(subject, prompts, plan, stop_after, WARMUP_IDS * prompts.kinds + index)
    trace.warmed_up()


def _asked(
    subject: Subject, prompts: Prompts, plan: Generation, stop_after: int | None, index: int
) -> RequestRecord:
    """Run a request and return its record; when it returns, its prompt's ids are gone too."""
    prompt = prompts.prompt(index)
    return ask(subject, prompt, plan, seed=index, **ending(prompt, stop_after))


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
    """Run *requests* requests and judge the memory after each.

    Ctrl-C, or a request that fails, ends them early and keeps what was measured.
    """
    try:
        for index in range(requests):
            progress("looking for leaks", index, requests)
            run.records.append(_asked(subject, prompts, plan, stop_after, prompts.kinds + index))
            run.samples.append(memory.sample(index))
        progress("looking for leaks", requests, requests)
    except KeyboardInterrupt:
        run.interrupted = True
    except RequestFailedError as error:
        run.failure = str(error)
    run.leaks = leaks.judge(run.samples)
    if run.leaks.verdict == LEAK:
        run.leaks = leaks.judge(run.samples, holders.of(run.leaks.growing))
