"""One side of a lever with its model: requests that warm up, requests that count, memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from llmtrace.bench import generation
from llmtrace.bench.compare_settings import memory
from llmtrace.bench.compare_settings.sides import PairPlan, Side, kinds
from llmtrace.bench.generation import RequestFailedError
from llmtrace.bench.models import Subject
from llmtrace.bench.prompts import Prompt, Prompts, random_ids
from llmtrace.bench.tracing import WARMUP_TRACE, Trace
from llmtrace.bench.trials import WARMUP_IDS, Progress, longest_first
from llmtrace.records import RequestRecord

_KEPT = ("_cache", "_static_cache", "_previous_max_cache_length")
"""Where a model keeps its static cache, or the greatest length of one, for the next request."""


class Asker:
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
        self._kinds = kinds(plan)

    def ready(self, progress: Progress, beside: int = 0) -> None:
        """Warm up, and find out how much memory a request takes.

        Args:
            progress: Is told of it.
            beside: Bytes allocated that belong to another model.
        """
        plan, side = self._plan, self._side
        progress(f"{side.variant.said}: warming up", 0, 1)
        memory.tidy()
        rounds = max(plan.warmup, self._prompts.kinds if plan.warmup else 0)
        for what in self._kinds:
            for index in range(rounds):
                self._warm_up(what, index)
        peak = self._peak_memory()
        side.peak_memory_bytes = None if peak is None else peak - beside
        self._trace.keep(WARMUP_TRACE)

    def settle(self) -> None:
        """Run one more request that does not count: the other side may have moved things."""
        for what in self._kinds if self._plan.warmup else ():
            self._warm_up(what, 0)
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
        devices = memory.devices(self._subject)
        if not devices:
            return None
        import torch

        for device in devices:
            torch.cuda.reset_peak_memory_stats(device)
        self._warm_up("single", 0)
        return sum(int(torch.cuda.max_memory_allocated(d)) for d in devices)


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
