"""Requests before and after a measure, turn about, so that a change of the machine hits both."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr

from llmtrace.bench.compare_settings import memory
from llmtrace.bench.compare_settings.asking import Asker
from llmtrace.bench.compare_settings.levers import Lever
from llmtrace.bench.compare_settings.sides import PairPlan, Side, Tried, kinds, trace_name
from llmtrace.bench.generation import RequestFailedError
from llmtrace.bench.models import Subject, load
from llmtrace.bench.settings import ModelChoice
from llmtrace.bench.tracing import Trace, collector_frozen
from llmtrace.bench.trials import Progress


class Bench:
    """Tries levers, one after the other, on a model that stays and others that do not."""

    def __init__(self, baseline: Subject, plan: PairPlan, trace: Trace, progress: Progress) -> None:
        self._baseline: Subject | None = baseline
        self._choice = baseline.choice
        self._plan = plan
        self._trace = trace
        self._progress = progress

    def tried(self, lever: Lever) -> Tried:
        """Try *lever*; Ctrl-C ends it and keeps what has been measured, and so does a failure.

        Raises:
            LlmtraceError: It cannot be done here; the message says why.
        """
        found = Tried(lever, Side("before", lever.before), Side("after", lever.after))
        try:
            if lever.after.choice == self._choice:
                subject = self._present()
                self._turn_about(found, subject, lambda: subject)
            elif memory.fits_beside(self._present()):
                with self._another(lever.after.choice) as make:
                    self._turn_about(found, self._present(), make)
            else:
                found.interleaved = False
                self._in_turn(found)
        except RequestFailedError:
            if not all(side.single.records for side in found.sides):
                raise
        except KeyboardInterrupt:
            found.interrupted = True
        finally:
            for side in found.sides:
                side.kept.clear()
            if self._baseline is not None:
                memory.forget_compiled(self._baseline)
            memory.tidy()
        return found

    def _present(self) -> Subject:
        """Return the baseline's model, loaded anew where it had to make room."""
        if self._baseline is None:
            self._baseline = _load(self._choice)
        return self._baseline

    @contextmanager
    def _another(self, choice: ModelChoice) -> Iterator[Callable[[], Subject]]:
        """Lend a function that loads another model, which is let go at the end."""
        held: list[Subject] = []

        def make() -> Subject:
            held.append(_load(choice))
            return held[0]

        try:
            yield make
        finally:
            held.clear()
            memory.tidy()

    def _turn_about(self, found: Tried, first: Subject, second: Callable[[], Subject]) -> None:
        before = self._run(first, found, found.before)
        before.ready(self._progress)
        # Two static caches at once would count as the second one's memory.
        found.before.kept.clear()
        other = found.lever.after.choice != self._choice
        beside = memory.allocated(first) if other else 0
        after = self._run(second(), found, found.after)
        after.ready(self._progress, beside)
        before.settle()
        after.settle()
        self._ask(found.lever, before, after)

    def _in_turn(self, found: Tried) -> None:
        """Run all of one side, make room, and run all of the other."""
        before = self._run(self._present(), found, found.before)
        before.ready(self._progress)
        self._ask(found.lever, before)
        del before
        self._baseline = None
        memory.tidy()
        with self._another(found.lever.after.choice) as make:
            after = self._run(make(), found, found.after)
            after.ready(self._progress)
            self._ask(found.lever, after)
            del after

    def _run(self, subject: Subject, found: Tried, side: Side) -> Asker:
        return Asker(subject, side, self._plan, self._trace, trace_name(found.lever, side))

    def _ask(self, lever: Lever, *runs: Asker) -> None:
        """Run what counts, the order changing from pair to pair."""
        pairs = self._plan.trials
        for what in kinds(self._plan):
            doing = lever.name if what == "single" else f"{lever.name}, batches"
            with collector_frozen():
                for index in range(pairs):
                    self._progress(doing, index, pairs)
                    for run in runs if index % 2 == 0 else runs[::-1]:
                        run.ask(what, index)
            self._progress(doing, pairs, pairs)


def _load(choice: ModelChoice) -> Subject:
    """Load a model without the bars that libraries draw meanwhile."""
    with redirect_stderr(io.StringIO()):
        return load(choice)
