"""Requests before and after a measure, turn about, so that a change of the machine hits both."""

from __future__ import annotations

import gc
import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass, field
from typing import Any, Literal

import psutil

from llmtrace.bench import generation
from llmtrace.bench.generation import RequestFailedError
from llmtrace.bench.levers import Lever, Variant
from llmtrace.bench.models import Subject, load
from llmtrace.bench.prompts import Prompt, Prompts, random_ids
from llmtrace.bench.settings import ModelChoice
from llmtrace.bench.tracing import WARMUP_TRACE, Trace, collector_frozen
from llmtrace.bench.trials import WARMUP_IDS, Progress, Trials, longest_first
from llmtrace.records import RequestRecord

SideName = Literal["before", "after"]
KINDS = ("single", "batches")
TOOL = "compare-settings"
_KEPT = ("_cache", "_static_cache", "_previous_max_cache_length")
"""Where a model keeps its static cache, or the greatest length of one, for the next request."""
SPARE = 1.2
"""So much more than its weights a second model is expected to take."""


@dataclass(frozen=True, slots=True)
class PairPlan:
    """How a lever is tried."""

    trials: int
    """Pairs of requests, and pairs of batches where those are asked for."""
    warmup: int
    rows: int | None = None
    """Rows of a batch, for tokens per second at so many at once."""
    force: bool = False


@dataclass(slots=True)
class Side:
    """One of the two ways, and its requests."""

    name: SideName
    variant: Variant
    single: Trials = field(default_factory=Trials)
    batches: Trials = field(default_factory=Trials)
    peak_memory_bytes: int | None = None
    """Most that torch's allocator held during a request, in the model it ran on and for it."""
    kept: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The static cache that requests of each kind reuse, or its length."""

    def of(self, what: str) -> Trials:
        """Return its single requests, or its batches."""
        return self.single if what == "single" else self.batches


@dataclass(slots=True)
class Tried:
    """What a lever's requests gave."""

    lever: Lever
    before: Side
    after: Side
    interleaved: bool = True
    """False: one side after the other, as the two models do not fit into memory together."""
    interrupted: bool = False

    @property
    def sides(self) -> tuple[Side, Side]:
        """Both."""
        return self.before, self.after


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
            elif _fits_beside(self._present()):
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
                _forget_compiled(self._baseline)
            _tidy()
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
            _tidy()

    def _turn_about(self, found: Tried, first: Subject, second: Callable[[], Subject]) -> None:
        before = self._run(first, found, found.before)
        before.ready(self._progress)
        # Two static caches at once would count as the second one's memory.
        found.before.kept.clear()
        other = found.lever.after.choice != self._choice
        beside = _allocated(first) if other else 0
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
        _tidy()
        with self._another(found.lever.after.choice) as make:
            after = self._run(make(), found, found.after)
            after.ready(self._progress)
            self._ask(found.lever, after)
            del after

    def _run(self, subject: Subject, found: Tried, side: Side) -> _Run:
        return _Run(subject, side, self._plan, self._trace, trace_name(found.lever, side))

    def _ask(self, lever: Lever, *runs: _Run) -> None:
        """Run what counts, the order changing from pair to pair."""
        pairs = self._plan.trials
        for what in KINDS if self._plan.rows else KINDS[:1]:
            doing = lever.name if what == "single" else f"{lever.name}, batches"
            with collector_frozen():
                for index in range(pairs):
                    self._progress(doing, index, pairs)
                    for run in runs if index % 2 == 0 else runs[::-1]:
                        run.ask(what, index)
            self._progress(doing, pairs, pairs)


def trace_name(lever: Lever, side: Side) -> str:
    """Return the name of a side's trace file."""
    return f"{TOOL}-{lever.name}-{side.name}.jsonl"


class _Run:
    """One side with its model."""

    def __init__(
        self, subject: Subject, side: Side, plan: PairPlan, trace: Trace, file: str
    ) -> None:
        """Check that it can be run.

        Args:
            subject: The model.
            side: Where requests go.
            plan: How many.
            trace: The trace files.
            file: The name of this side's.
        """
        variant = side.variant
        self._subject, self._side, self._plan, self._trace = subject, side, plan, trace
        self._file = file
        self._prompts = Prompts(subject, variant.prompts, variant.plan.seed)
        longest = max(self._prompts.lengths)
        generation.check(subject, variant.plan, longest, force=plan.force)
        generation.prepare(subject, variant.plan)

    def ready(self, progress: Progress, beside: int = 0) -> None:
        """Warm up, and find out how much memory a request takes.

        Args:
            progress: Is told of it.
            beside: Bytes allocated that belong to another model.
        """
        plan, side = self._plan, self._side
        progress(f"{side.variant.said}: warming up", 0, 1)
        _tidy()
        rounds = max(plan.warmup, self._prompts.kinds if plan.warmup else 0)
        for what in KINDS if plan.rows else KINDS[:1]:
            for index in range(rounds):
                self._warm_up(what, index)
        peak = self._peak_memory()
        side.peak_memory_bytes = None if peak is None else peak - beside
        self._trace.keep(WARMUP_TRACE)

    def settle(self) -> None:
        """Run one more request that does not count: the other side may have moved things."""
        if self._plan.warmup:
            self._warm_up("single", 0)
            self._trace.keep(WARMUP_TRACE)

    def ask(self, what: str, index: int) -> None:
        """Run request *index*, whose prompt is the same on both sides."""
        trials = self._side.of(what)
        try:
            trials.records.append(self._asked(what, index, index))
        except RequestFailedError as error:
            trials.failure = str(error)
            raise
        self._trace.keep(self._file)

    def _warm_up(self, what: str, index: int) -> None:
        order = longest_first(self._prompts)
        number = WARMUP_IDS * len(order) + order[index % len(order)]
        record = self._asked(what, number, index)
        self._side.of(what).warmup.append(record)

    def _asked(self, what: str, number: int, seed: int) -> RequestRecord:
        prompt = self._prompts.prompt(number) if what == "single" else self._batch(number)
        model = self._subject.model
        with _own_cache(model, self._side.kept.setdefault(what, {})):
            return generation.ask(self._subject, prompt, self._side.variant.plan, seed=seed)

    def _batch(self, number: int) -> Prompt:
        """Return ids ``[rows, tokens]``: a text's length, or the lengths in their order."""
        rows, lengths = self._plan.rows or 1, self._prompts.lengths
        tokens = lengths[number % len(lengths)]
        seed = self._side.variant.plan.seed + number
        return Prompt(tokens, ids=random_ids(self._subject, tokens, rows=rows, seed=seed))

    def _peak_memory(self) -> int | None:
        """Return the most that was allocated during a request; None where nothing counts it."""
        devices = _devices(self._subject)
        if not devices:
            return None
        import torch

        for device in devices:
            torch.cuda.reset_peak_memory_stats(device)
        self._warm_up("single", 0)
        return sum(int(torch.cuda.max_memory_allocated(d)) for d in devices)


def _load(choice: ModelChoice) -> Subject:
    """Load a model without the bars that libraries draw meanwhile."""
    with redirect_stderr(io.StringIO()):
        return load(choice)


@contextmanager
def _own_cache(model: Any, kept: dict[str, Any]) -> Iterator[None]:
    """Let a request find the static cache that its own side and kind left behind, and no other."""
    for name in _KEPT:
        vars(model).pop(name, None)
    vars(model).update(kept)
    try:
        yield
    finally:
        for name in _KEPT:
            if name in vars(model):
                kept[name] = vars(model).pop(name)
        if hasattr(model, "_reset_cache"):  # 4.38: each layer holds its part, for whoever comes
            model._reset_cache()  # noqa: SLF001


def _devices(subject: Subject) -> list[Any]:
    """Return the CUDA devices that a model lies on."""
    found = {p.device for p in subject.model.parameters()}
    return sorted((d for d in found if d.type == "cuda"), key=str)


def _allocated(subject: Subject) -> int:
    import torch

    return sum(torch.cuda.memory_allocated(d) for d in _devices(subject))


def _fits_beside(subject: Subject) -> bool:
    """Say whether a second model of this size fits into memory beside it."""
    weights = sum(p.numel() * p.element_size() for p in subject.model.parameters())
    devices = _devices(subject)
    if not devices:
        return bool(psutil.virtual_memory().available > SPARE * weights)
    import torch

    _tidy()
    free = sum(torch.cuda.mem_get_info(d)[0] for d in devices)
    return bool(free > SPARE * weights)


def _forget_compiled(subject: Subject) -> None:
    """Let go of compiled calls and their CUDA graphs."""
    import torch

    for name in ("_compiled_call", "_last_compile_config"):
        vars(subject.model).pop(name, None)
    torch.compiler.reset()


def _tidy() -> None:
    """Give back memory that nothing uses."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
