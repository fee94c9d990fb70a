"""Requests one after the other: those that warm up, and those that count."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field

from llmtrace.bench.generation import RequestFailedError, ask
from llmtrace.bench.models import Subject
from llmtrace.bench.prompts import Prompts
from llmtrace.bench.settings import Generation
from llmtrace.bench.tracing import Trace, collector_frozen
from llmtrace.records import RequestRecord

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is."""


@dataclass(slots=True)
class Trials:
    """The records of a run."""

    warmup: list[RequestRecord] = field(default_factory=list)
    """Requests that warmed up; in no figure but their own."""
    records: list[RequestRecord] = field(default_factory=list)
    interrupted: bool = False
    """Ctrl-C came before all had run: the figures are of those that had."""
    failure: str | None = None
    """Why a request failed; none was run after it."""

    @property
    def counted(self) -> list[RequestRecord]:
        """The requests whose figures count: good and warm."""
        return [r for r in self.records if r.error is None and not r.cold]

    @property
    def cold(self) -> list[RequestRecord]:
        """Requests that paid for something one-off although the run had been warmed up."""
        return [r for r in self.records if r.error is None and r.cold]


def run_trials(
    subject: Subject,
    prompts: Prompts,
    plan: Generation,
    *,
    trials: int,
    warmup: int,
    progress: Progress,
    trace: Trace,
    keep_gc: bool = False,
) -> Trials:
    """Run *warmup* requests, at least one of each kind of prompt, then *trials* that count.

    Ctrl-C ends it early and keeps what has been measured; so does a request that fails. The
    garbage collector is frozen while requests count, unless *keep_gc*.

    Raises:
        RequestFailedError: The first one did, or one that warmed up.
    """
    found = Trials()
    order = longest_first(prompts)
    rounds = max(warmup, min(prompts.kinds, trials)) if warmup else 0
    try:
        for index in range(rounds):
            progress("warming up", index, rounds)
            # Ids of its own: a request that counts must not find its prompt in a cache.
            prompt = prompts.prompt(WARMUP_IDS * prompts.kinds + order[index % prompts.kinds])
            found.warmup.append(ask(subject, prompt, plan, seed=index))
        trace.warmed_up()
        with nullcontext() if keep_gc else collector_frozen():
            for index in range(trials):
                progress("measuring", index, trials)
                found.records.append(ask(subject, prompts.prompt(index), plan, seed=index))
        progress("measuring", trials, trials)
    except RequestFailedError as error:
        if not found.records:
            raise
        found.failure = str(error)
    except KeyboardInterrupt:
        found.interrupted = True
    return found


def longest_first(prompts: Prompts) -> list[int]:
    """Return the kinds of prompts: a static cache is made for the longest one seen so far."""
    return sorted(range(prompts.kinds), key=lambda kind: -prompts.lengths[kind])


WARMUP_IDS = 1_000_000
"""So many rounds of prompts lie between the ids of a run and those that warm it up."""
