"""Does ``llmtrace bench`` agree with a stopwatch? Both, in turn, on one model in one process.

Two ways. *Same request*: stopwatch and llmtrace watch the very same requests, so that only clocks
and definitions can differ. *In turn*: a request measured as ``llmtrace bench`` does it, then one
timed by the stopwatch with llmtrace turned off, the order changing from pair to pair; what llmtrace
costs is in the difference, and so is the machine's noise, of which the interval tells.

Exit code 0: every median agrees within ``--within`` percent; 1: one does not, by more than chance;
3: of one it cannot be told.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import stopwatch

import llmtrace
from llmtrace.bench import environment, generation, outputs
from llmtrace.bench.models import Subject
from llmtrace.bench.prompts import Prompt, Prompts, random_ids
from llmtrace.bench.settings import Generation, ModelChoice, PromptChoice
from llmtrace.bench.tgs.evaluation import steady_of
from llmtrace.bench.tgs.load import Level
from llmtrace.bench.tgs.mechanisms import mechanism_for
from llmtrace.bench.tgs.running import run_levels
from llmtrace.bench.tracing import Trace, collector_frozen
from llmtrace.records import RequestRecord
from llmtrace.telemetry.exporters import file_provider

DRAWS = 1000
EACH = 4
"""Requests of a thread in one round."""


@dataclass(frozen=True)
class Figure:
    """What both say of one quantity."""

    name: str
    way: str
    llmtrace: float
    stopwatch: float
    off_percent: float
    """Difference of the medians, of the stopwatch's."""
    interval_percent: tuple[float, float]
    """Of it: pairs drawn anew, 95 %."""
    pairs: int

    def verdict(self, within: float) -> str:
        """Say whether they agree within so many percent."""
        if abs(self.off_percent) <= within:
            return "agrees"
        low, high = self.interval_percent
        return "DIFFERS" if low > within or high < -within else "cannot be told"


def figure(name: str, way: str, ours: list[float], theirs: list[float]) -> Figure:
    """Compare the medians of pairs."""
    a, b = np.array(ours), np.array(theirs)
    drawn = np.random.default_rng(0).integers(len(a), size=(DRAWS, len(a)))
    off = (np.median(a[drawn], axis=1) / np.median(b[drawn], axis=1) - 1) * 100
    low, high = np.percentile(off, (2.5, 97.5))
    return Figure(
        name,
        way,
        float(np.median(a)),
        float(np.median(b)),
        float((np.median(a) / np.median(b) - 1) * 100),
        (float(low), float(high)),
        len(a),
    )


class Tracing:
    """llmtrace as ``llmtrace bench`` turns it on: spans to a file."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._provider, _ = file_provider(folder, {"OTEL_SERVICE_NAME": "agreement"}, "trace.jsonl")

    @contextmanager
    def on(self) -> Iterator[Trace]:
        """Trace what runs in this block, and nothing after it."""
        handle = llmtrace.instrument(tracer_provider=self._provider)
        try:
            yield Trace(self._folder, handle)
        finally:
            handle.flush(30)
            handle.close()


class Comparison:
    """Pairs of requests on one model."""

    def __init__(self, model: Any, arguments: argparse.Namespace, tracing: Tracing) -> None:
        self._subject = Subject(model, None, ModelChoice(random_weights="in memory"))
        self._arguments, self._tracing = arguments, tracing
        self._plan = Generation(
            max_new_tokens=arguments.max_new_tokens,
            cache="static" if arguments.compile else arguments.cache,
            compile=arguments.compile,
        )
        self._how = generation.arguments(self._subject, self._plan)
        self._how.pop("max_new_tokens")

    def ids(self, number: int, rows: int) -> Any:
        """Return the prompt of a pair."""
        arguments = self._arguments
        seed = arguments.seed + number
        return random_ids(self._subject, arguments.prompt_tokens, rows=rows, seed=seed)

    def ours(self, ids: Any) -> RequestRecord:
        """Measure one request as ``llmtrace bench`` does."""
        with self._tracing.on():
            self._settle(ids)
            return generation.ask(self._subject, Prompt(ids.shape[1], ids=ids), self._plan)

    def theirs(self, ids: Any, *, every: bool = False) -> dict[str, Any]:
        """Time one with the stopwatch, llmtrace turned off."""
        self._settle(ids)
        return self._timed(ids, every=every)

    def _settle(self, ids: Any) -> None:
        """Run a request of one token: the first one after turning llmtrace on or off costs more."""
        stopwatch.request(self._subject.model, ids, 1, **self._how)

    def _timed(self, ids: Any, *, every: bool) -> dict[str, Any]:
        tokens = self._arguments.max_new_tokens
        return stopwatch.request(self._subject.model, ids, tokens, every=every, **self._how)

    def both(self, ids: Any, *, every: bool = False) -> tuple[RequestRecord, dict[str, Any]]:
        """Have both watch one request."""
        with llmtrace.capture() as records:
            timed = self._timed(ids, every=every)
        return records[0], timed

    @property
    def rounds(self) -> int:
        """How often threads are run: each time for some requests each."""
        return max(3, self._arguments.trials // 4)

    def threads(self, level: Level, turn: int) -> tuple[list[RequestRecord], dict[str, Any]]:
        """Have both watch the requests of threads."""
        with self._tracing.on():
            self._settle(self.ids(0, 1))
            with llmtrace.capture() as records:
                timed = self._timed_threads(level, turn)
        return records, timed

    def threads_in_turn(
        self, level: Level, turn: int
    ) -> tuple[list[RequestRecord], dict[str, Any]]:
        """Run threads as ``llmtrace bench tgs`` does, and those of the stopwatch."""
        if turn % 2:
            return self._our_threads(level), self._timed_threads(level, turn)
        timed = self._timed_threads(level, turn)
        return self._our_threads(level), timed

    def _timed_threads(self, level: Level, turn: int) -> dict[str, Any]:
        first = level.requests * turn

        def prompt(number: int) -> Any:
            return self.ids(first + number, 1)

        tokens = self._arguments.max_new_tokens
        return stopwatch.threads(self._subject.model, prompt, tokens, level.concurrency, EACH)

    def _our_threads(self, level: Level) -> list[RequestRecord]:
        choice = PromptChoice(lengths=(self._arguments.prompt_tokens,))
        prompts = Prompts(self._subject, choice, self._arguments.seed)
        with self._tracing.on() as trace:
            (measured,) = run_levels(
                mechanism_for("threads", self._subject, self._plan), prompts, [level],
                seed=0, progress=lambda *_: None, trace=trace,
            )  # fmt: skip
        return measured.records

    def warm_up(self, rows: int) -> None:
        """Run what is measured, before it is."""
        for number in range(self._arguments.warmup):
            self.ours(self.ids(1_000_000 + number, rows))
            self.theirs(self.ids(2_000_000 + number, rows))

    def in_turn(self, rows: int, *, every: bool) -> list[tuple[RequestRecord, dict[str, Any]]]:
        """Return pairs of a request of ours and one of theirs, with the same prompt."""
        self.warm_up(rows)
        pairs = []
        with collector_frozen():
            for number in range(self._arguments.trials):
                ids = self.ids(number, rows)
                if number % 2:
                    ours = self.ours(ids)
                    pairs.append((ours, self.theirs(ids, every=every)))
                else:
                    theirs = self.theirs(ids, every=every)
                    pairs.append((self.ours(ids), theirs))
        return pairs

    def same(self, rows: int, *, every: bool) -> list[tuple[RequestRecord, dict[str, Any]]]:
        """Return what both say of the same requests."""
        self.warm_up(rows)
        with collector_frozen(), self._tracing.on():
            self._settle(self.ids(0, rows))
            return [
                self.both(self.ids(number, rows), every=every)
                for number in range(self._arguments.trials)
            ]


Pairs = list[tuple[RequestRecord, dict[str, Any]]]


def warm(pairs: Pairs) -> Pairs:
    """Leave out what paid for something one-off."""
    return [pair for pair in pairs if not pair[0].cold]


def of(pairs: Pairs, name: str, way: str, ours: str, theirs: str) -> Figure:
    """Compare one quantity of each request."""
    pairs = warm(pairs)
    return figure(name, way, [getattr(o, ours) for o, _ in pairs], [t[theirs] for _, t in pairs])


def itl(pairs: Pairs, way: str) -> Figure:
    """Compare the median gap of each request."""
    pairs = warm(pairs)
    ours = [float(np.median(o.itl_s)) for o, _ in pairs]
    return figure("ITL", way, ours, [float(np.median(t["itl_s"])) for _, t in pairs])


def latencies(comparison: Comparison) -> Iterator[Figure]:
    """Compare TTFT, TPOT and ITL of one request at a time."""
    for way, run in (("same request", comparison.same), ("in turn", comparison.in_turn)):
        pairs = run(1, every=False)
        yield of(pairs, "TTFT", way, "ttft_s", "ttft_s")
        yield of(pairs, "TPOT", way, "tpot_s", "tpot_s")
        yield itl(run(1, every=True), f"{way}, waiting at every token")


def batches(comparison: Comparison, rows: int) -> Iterator[Figure]:
    """Compare the tokens per second of a batch."""
    for way, run in (("same request", comparison.same), ("in turn", comparison.in_turn)):
        yield of(run(rows, every=False), f"TGS, batch of {rows}", way, "tgs", "tgs")


def at_once(comparison: Comparison, count: int) -> Iterator[Figure]:
    """Compare the tokens per second of so many threads at a time, run again and again."""
    level = Level(count, "threads", EACH * count)
    for way, run in (("same request", comparison.threads), ("in turn", comparison.threads_in_turn)):
        ours, theirs = [], []
        for turn in range(comparison.rounds):
            records, timed = run(level, turn)
            steady = steady_of(level, records)
            if steady is not None:
                ours.append(steady.tgs)
                theirs.append(timed["tgs"])
        if ours:
            yield figure(f"TGS, {count} threads", way, ours, theirs)


def cache(comparison: Comparison, model: Any, tokens: int) -> Iterator[Figure]:
    """Compare the bytes of the KV cache; they are counted, so they must be the same."""
    ids = comparison.ids(0, 1)
    ours = comparison.ours(ids).kv_cache_bytes
    if ours is not None:
        theirs = stopwatch.kv_bytes(model, ids, tokens)
        yield figure("KV cache, bytes", "in turn", [float(ours)], [float(theirs)])


def all_figures(arguments: argparse.Namespace, show: Callable[[Figure], None]) -> list[Figure]:
    """Compare everything, showing each figure as it comes."""
    model = stopwatch.load(arguments)
    found = []
    with tempfile.TemporaryDirectory() as folder:
        comparison = Comparison(model, arguments, Tracing(folder))
        parts = [latencies(comparison)]
        parts += [batches(comparison, rows) for rows in arguments.batch]
        if not arguments.compile:
            parts += [at_once(comparison, count) for count in arguments.threads]
        if arguments.cache == "dynamic" and not arguments.compile:
            parts.append(cache(comparison, model, arguments.max_new_tokens))
        for part in parts:
            for one in part:
                show(one)
                found.append(one)
    return found


def main() -> int:
    """Compare, print, write."""
    parser = stopwatch.parser()
    parser.description = (__doc__ or "").splitlines()[0]
    parser.add_argument("--within", type=float, default=2.0, metavar="PERCENT")
    parser.add_argument("--cache", choices=("dynamic", "static"), default="dynamic")
    parser.add_argument("--compile", action="store_true", help="a static cache, compiled")
    parser.set_defaults(batch=[4], threads=[4])
    arguments = parser.parse_args()

    def show(one: Figure) -> None:
        low, high = one.interval_percent
        said = one.verdict(arguments.within)
        print(
            f"{one.name:16} {one.way:40} {one.llmtrace:14.6g} {one.stopwatch:14.6g} "
            f"{one.off_percent:+7.2f} % ({low:+.2f} to {high:+.2f})  {said}",
            flush=True,
        )

    print(f"{'':16} {'':40} {'llmtrace':>14} {'stopwatch':>14} {'off':>9}")
    found = all_figures(arguments, show)
    verdicts = {one.verdict(arguments.within) for one in found}
    if arguments.json:
        made = {
            "within_percent": arguments.within,
            "verdicts": sorted(verdicts),
            "prompt_tokens": arguments.prompt_tokens,
            "max_new_tokens": arguments.max_new_tokens,
            "cache": arguments.cache,
            "compile": arguments.compile,
            "figures": [{**asdict(one), "verdict": one.verdict(arguments.within)} for one in found],
            "environment": environment.environment(),
        }
        Path(arguments.json).write_text(outputs.to_json(made) + "\n")
    if "DIFFERS" in verdicts:
        return 1
    return 3 if "cannot be told" in verdicts else 0


if __name__ == "__main__":
    sys.exit(main())
