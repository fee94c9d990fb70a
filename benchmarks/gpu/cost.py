"""What tracing costs on a GPU: llmtrace, and other ways of timing each token, side by side.

* ms per token with a static cache and compilation, each method over nothing at all, taking turns.
  A turn is a short request that is not timed, as tracing was just turned on or off, and two that
  are, one right after the other. llmtrace builds its spans and hands them to a null exporter.
  Nothing at all is compared with itself too: that tells how far such a ratio can be trusted. A
  clock of this script's own stamps each step of every turn: the ratio of the medians of each part
  leaves out what the machine did now and then, and tells where time goes;
* host time of llmtrace's hooks in the real loop, hook by hook: stamps of this script's own outside
  and inside of them, with and without llmtrace;
* time from the last token to the return of ``generate()``, for 512 tokens.

    python benchmarks/gpu/cost.py [--layers 32] [--tokens 64] [--pairs 40] [--rounds 8]
        [--only ratios hooks] [--json F]
"""

from __future__ import annotations

import gc
import itertools
import random
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch
from bench import (
    Result,
    arguments_of,
    counting_captures,
    make_model,
    null_provider,
    prompt_of,
)
from clock import one_event
from opentelemetry.sdk.trace import TracerProvider
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    StaticCache,
    StoppingCriteria,
    StoppingCriteriaList,
)
from transformers.generation.streamers import BaseStreamer
from transformers.modeling_utils import PreTrainedModel

import llmtrace
from llmtrace.recording.device_recorder import FORWARDS_MARKED, THEN_EVERY
from llmtrace.timing import cuda

BUDGET_US = 20.0
ALL = "all, one forward's end in eight marked"
NOTHING, TRACED = "nothing", "llmtrace"
REQUESTS = 2
SHORT = 8
DRAWS = 500
now = time.perf_counter_ns


class Synchronizing(LogitsProcessor):
    """The hand-made method: wait for the device at every step and read the clock."""

    def __init__(self):
        self.times = []

    def __call__(self, input_ids, scores):
        torch.cuda.synchronize()
        self.times.append(time.perf_counter())
        return scores


class EventEachStep(LogitsProcessor):
    """As optimum-benchmark's latency tracker does: a new event at every step."""

    def __init__(self):
        self.events = []

    def __call__(self, input_ids, scores):
        self.events.append(torch.cuda.Event(enable_timing=True))
        self.events[-1].record()
        return scores


class SpanEachStep(LogitsProcessor):
    """A span made and ended in the loop at every step."""

    tracer = null_provider().get_tracer("in line")

    def __call__(self, input_ids, scores):
        length = input_ids.shape[1]
        with self.tracer.start_as_current_span("decode") as span:
            span.set_attributes({"step": length, "rows": 1, "model": "llama", "device": "cuda:0"})
        return scores


class StampingStreamer(BaseStreamer):
    """As transformers' own benchmark does: the clock at every put."""

    def __init__(self):
        self.times = []

    def put(self, value):
        self.times.append(time.perf_counter())

    def end(self):
        self.times.append(time.perf_counter())


class StepClock(LogitsProcessor):
    """Stamps the clock at each step, in every turn alike."""

    def __init__(self):
        self.times = []

    def __call__(self, input_ids, scores):
        self.times.append(now())
        return scores


@contextmanager
def traced(provider: TracerProvider, **settings: object):
    llmtrace.instrument(tracer_provider=provider, **settings)
    try:
        yield {}
    finally:
        llmtrace.uninstrument()


@contextmanager
def given(*processors: LogitsProcessor, streamer: BaseStreamer | None = None):
    yield {"processors": processors, "streamer": streamer}


def methods(provider: TracerProvider):
    return {
        NOTHING: given,
        TRACED: lambda: traced(provider),
        "nothing again": given,
        "llmtrace, no spans of steps": lambda: traced(provider, steps="none"),
        "synchronize every step": lambda: given(Synchronizing()),
        "event every step": lambda: given(EventEachStep()),
        "span every step": lambda: given(SpanEachStep()),
        "streamer with a clock": lambda: given(streamer=StampingStreamer()),
    }


class Timed(NamedTuple):
    """One request, nanoseconds."""

    prefill: int
    """From the call to the first token's scores."""
    gaps: list[int]
    after: int
    """From the last token's scores to the return, the device being done."""


def a_turn(model, prompt, tokens: int, method, how) -> list[Timed]:
    """Return the requests of a turn, but for the first, short one."""

    def request(length: int, processors=(), streamer=None) -> Timed:
        clock = StepClock()
        begun = now()
        model.generate(
            prompt,
            max_new_tokens=length,
            do_sample=False,
            logits_processor=LogitsProcessorList([clock, *processors]),
            streamer=streamer,
            **how(),
        )
        torch.cuda.synchronize()
        times = clock.times
        gaps = [after - before for before, after in itertools.pairwise(times)]
        return Timed(times[0] - begun, gaps, now() - times[-1])

    with method() as more:
        request(SHORT, **more)
        return [request(tokens, **more) for _ in range(REQUESTS)]


def side_by_side(model, prompt, tokens: int, how, ways, rounds: dict[str, int]) -> dict[str, list]:
    """Return each method's turns, all methods taking turns, in another order in each round."""
    turns: dict[str, list[list[Timed]]] = {name: [] for name in ways}
    order = random.Random(0)  # noqa: S311
    gc.collect()
    gc.freeze()
    for round_ in range(max(rounds.values())):
        names = [name for name in ways if round_ < rounds[name]]
        for name in order.sample(names, len(names)):
            turns[name].append(a_turn(model, prompt, tokens, ways[name], how))
    gc.unfreeze()
    return turns


def ms_per_token(turn: list[Timed]) -> float:
    total = sum(timed.prefill + sum(timed.gaps) + timed.after for timed in turn)
    return total / sum(len(timed.gaps) + 1 for timed in turn) / 1e6


def parts_of(turns: np.ndarray) -> np.ndarray:
    """Return what a part takes as a rule: medians over turns ``[turns, requests, parts]``."""
    return np.median(turns.reshape(-1, turns.shape[-1]), axis=0)


def compared(without: list[list[Timed]], with_it: list[list[Timed]]) -> dict[str, object]:
    """Return what a method takes beside nothing: turns of the same rounds."""
    off, on = ([ms_per_token(turn) for turn in turns] for turns in (without, with_it))
    ratios = [b / a for a, b in zip(off, on, strict=True)]
    # The median of what was drawn from lies between these two in 95 % of such samples.
    reach = 0.98 * len(ratios) ** 0.5
    in_order = sorted(ratios)
    low, high = round(len(ratios) / 2 - reach), round(len(ratios) / 2 + reach)
    apart_off, apart_on = (
        np.array([[(t.prefill, *t.gaps, t.after) for t in turn] for turn in turns])
        for turns in (without, with_it)
    )
    drawn = np.random.default_rng(0).integers(len(off), size=(DRAWS, len(off)))
    draws = [parts_of(apart_on[d]).sum() / parts_of(apart_off[d]).sum() for d in drawn]
    added = (parts_of(apart_on) - parts_of(apart_off)) / 1e3
    tokens = apart_on.shape[-1] - 1
    means = (apart_on - apart_off).mean(axis=(0, 1)) / 1e3
    return {
        "pairs": len(ratios),
        "ms_per_token_without": round(statistics.median(off), 4),
        "ms_per_token_with": round(statistics.median(on), 4),
        "ratio_median": round(statistics.median(ratios), 4),
        "ratio_median_between": [
            round(in_order[max(low - 1, 0)], 4),
            round(in_order[min(high, len(ratios) - 1)], 4),
        ],
        "ratio_of_medians": round(parts_of(apart_on).sum() / parts_of(apart_off).sum(), 4),
        "ratio_of_medians_between": np.quantile(draws, [0.025, 0.975]).round(4).tolist(),
        "added_us_per_token": {
            "in all": round(added.sum() / tokens, 1),
            "to the first token": round(added[0] / tokens, 1),
            "in the steps": round(added[1:-1].sum() / tokens, 1),
            "at the end": round(added[-1] / tokens, 1),
            "in all, means": round(means.sum() / tokens, 1),
            "in the steps, means": round(means[1:-1].sum() / tokens, 1),
        },
        "ratios": [round(ratio, 4) for ratio in ratios],
    }


class Stamps:
    """Stamps outside and inside of the hooks, taken by nobody but this script."""

    def __init__(self, model) -> None:
        self.model = model
        self.forward: list[tuple[int, int, int, int]] = []
        self.processors: list[int] = []
        self.criteria: list[int] = []

    @contextmanager
    def around_everything(self):
        with self.around_forwards(), self.around_lists():
            yield

    @contextmanager
    def around_forwards(self):
        inside = [0, 0]
        before = self.model.register_forward_pre_hook(lambda *_: inside.__setitem__(0, now()))
        after = self.model.register_forward_hook(lambda *_: inside.__setitem__(1, now()))
        ours = PreTrainedModel.__dict__.get("__call__")

        def call(model, *args, **kwargs):
            if model is not self.model:
                inner = ours or torch.nn.Module.__call__
                return inner(model, *args, **kwargs)
            begun = now()
            result = (ours or torch.nn.Module.__call__)(model, *args, **kwargs)
            self.forward.append((begun, inside[0], inside[1], now()))
            return result

        PreTrainedModel.__call__ = call
        try:
            yield
        finally:
            if ours is None:
                del PreTrainedModel.__call__
            else:
                PreTrainedModel.__call__ = ours
            before.remove()
            after.remove()

    @contextmanager
    def around_lists(self):
        lists = (LogitsProcessorList, StoppingCriteriaList)
        originals = [vars(cls)["__call__"] for cls in lists]

        def stamping(original, times):
            def call_list(self_, *args, **kwargs):
                bound = original.__get__(self_, type(self_))
                begun = now()
                result = bound(*args, **kwargs)
                times.append(now() - begun)
                return result

            return call_list

        for cls, original, times in zip(
            lists, originals, (self.processors, self.criteria), strict=True
        ):
            cls.__call__ = stamping(original, times)
        try:
            yield
        finally:
            for cls, original in zip(lists, originals, strict=True):
                cls.__call__ = original


class CompiledStamps(Stamps):
    """The same around a compiled call; a hook on the model would be compiled into it."""

    @contextmanager
    def around_forwards(self):
        model, inside = self.model, [0, 0]
        compiled = model._compiled_call  # noqa: SLF001 - what get_compiled_call() returns

        def within(*args, **kwargs):
            inside[0] = now()
            result = compiled(*args, **kwargs)
            inside[1] = now()
            return result

        def get_compiled_call(config):
            seen = type(model).get_compiled_call(model, config)

            def call(*args, **kwargs):
                begun = now()
                result = seen(*args, **kwargs)
                self.forward.append((begun, *inside, now()))
                return result

            return call

        model._compiled_call = within  # noqa: SLF001
        model.get_compiled_call = get_compiled_call
        self.forward.append((0, 0, 0, 0))  # the prefill's, which is not compiled
        try:
            yield
        finally:
            del model.get_compiled_call
            model._compiled_call = compiled  # noqa: SLF001


@contextmanager
def no_events():
    """Let the device's marks fail at once, so that only the rest of the hooks is left."""

    def never(stream, pool, failures):
        failures.append("not tried")
        return lambda: None

    marker, cuda._marker = cuda._marker, never  # noqa: SLF001
    try:
        yield
    finally:
        cuda._marker = marker  # noqa: SLF001


def hooks(model, prompt, tokens: int, rounds: int, how=dict, stamps_of=Stamps) -> dict[str, object]:
    """Return the host time that each hook adds to a decode step, in microseconds."""
    provider = null_provider()
    found: dict[bool, dict[str, list[float]]] = {False: {}, True: {}}
    for turn in range(2 * rounds + 2):
        on = bool(turn % 2)
        with traced(provider) if on else given():
            stamps = stamps_of(model)
            with stamps.around_everything():
                model.generate(prompt, max_new_tokens=tokens, do_sample=False, **how())
        if turn < 2:
            continue
        into = found[on]
        decode = stamps.forward[1:]
        into.setdefault("before the forward", []).extend(b - a for a, b, _, _ in decode)
        for forward, (_, _, c, d) in enumerate(decode, 1):
            marked = forward <= FORWARDS_MARKED or not forward % THEN_EVERY
            name = "after a forward whose end is marked" if marked else "after the forward"
            into.setdefault(name, []).append(d - c)
        into.setdefault("logits processors", []).extend(stamps.processors[1:])
        into.setdefault("stopping criteria", []).extend(stamps.criteria[1:])

    def added(average) -> dict[str, float]:
        parts = {
            name: round((average(found[True][name]) - average(times)) / 1e3, 2)
            for name, times in found[False].items()
        }
        marked = parts["after a forward whose end is marked"] - parts["after the forward"]
        every = sum(parts.values()) - parts["after a forward whose end is marked"]
        return {**parts, ALL: round(every + marked / THEN_EVERY, 2)}

    return {
        "medians": added(statistics.median),
        "means of the middle 90 %": added(middle_mean),
        "steps": len(found[True]["stopping criteria"]),
    }


def within_budget(part) -> bool:
    return max(part["medians"][ALL], part["means of the middle 90 %"][ALL]) <= BUDGET_US


def middle_mean(values: list[float]) -> float:
    """Return the mean without the least and the greatest 5 %."""
    cut = len(values) // 20
    return statistics.fmean(sorted(values)[cut : len(values) - cut])


class LastToken(StoppingCriteria):
    """Stamps the clock at each token."""

    at = 0

    def __call__(self, input_ids, scores, **kwargs):
        LastToken.at = now()
        return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)


def after_the_last_token(model, prompt, tokens: int, rounds: int) -> dict[str, object]:
    """Return the time from the last token to the return, with and without, in milliseconds."""
    provider = null_provider()
    took: dict[bool, list[float]] = {False: [], True: []}
    for turn in range(2 * rounds + 2):
        on = bool(turn % 2)
        with traced(provider) if on else given():
            model.generate(
                prompt,
                max_new_tokens=tokens,
                do_sample=False,
                stopping_criteria=StoppingCriteriaList([LastToken()]),
            )
            took[on].append((now() - LastToken.at) / 1e6)
            provider.force_flush()
    without, with_it = (statistics.median(took[on][1:]) for on in (False, True))
    return {
        "tokens": tokens,
        "ms_without": round(without, 3),
        "ms_with": round(with_it, 3),
        "ms_with_most": round(max(took[True][1:]), 3),
        "ms_added": round(with_it - without, 3),
    }


def ratios(result: Result, model, prompt, arguments) -> None:
    tokens = arguments.tokens
    how = one_static_cache(model, prompt.shape[1] + tokens)
    ways = methods(null_provider())
    for method in ways.values():
        a_turn(model, prompt, tokens, method, how)
    rounds = dict.fromkeys(ways, arguments.rounds)
    rounds.update(dict.fromkeys((NOTHING, TRACED, "nothing again"), arguments.pairs))
    with counting_captures() as captures:
        turns = side_by_side(model, prompt, tokens, how, ways, rounds)
    for name, own in turns.items():
        if name == NOTHING or not own:
            continue
        part = compared(turns[NOTHING][: len(own)], own)
        good = name != TRACED or abs(part["ratio_median"] - 1) <= 0.005
        result.add(f"static cache, compiled: {name}", part, good=good)
    result.add("graphs captured meanwhile", captures[-1])


def one_static_cache(model, length: int) -> Callable[[], dict[str, object]]:
    """Return the arguments with a cache: one for all, as a new one is captured anew for."""
    cache = StaticCache(config=model.config, max_cache_len=length)

    def emptied():
        cache.reset()
        return {"past_key_values": cache}

    return emptied


def host_times(result: Result, model, prompt, tokens: int) -> None:
    hooks_of = "host time of each hook, us per step: "
    static = one_static_cache(model, prompt.shape[1] + tokens)
    part = hooks(model, prompt, tokens, 2, static, CompiledStamps)
    result.add(hooks_of + "static cache, compiled", part, good=within_budget(part))
    part = hooks(model, prompt, tokens, 1)
    result.add(hooks_of + "eager", part, good=within_budget(part))
    small = make_model(2)
    part = hooks(small, prompt, 256, 2)
    result.add(hooks_of + "eager, two layers", part, good=within_budget(part))
    with no_events():
        result.add(hooks_of + "eager, two layers, no events", hooks(small, prompt, 256, 2))
    result.add("one event in a tight loop", one_event())
    part = after_the_last_token(small, prompt, 512, 8)
    result.add("after the last token", part, good=part["ms_added"] < 2)


def main() -> int:
    arguments = arguments_of(
        __doc__, layers=32, tokens=64, pairs=40, rounds=8, only=("ratios", "hooks")
    )
    result = Result(arguments)
    model = make_model(arguments.layers)
    prompt = prompt_of(128)
    if "ratios" in arguments.only:
        ratios(result, model, prompt, arguments)
    if "hooks" in arguments.only:
        host_times(result, model, prompt, arguments.tokens)
    return result.exit_code()


if __name__ == "__main__":
    sys.exit(main())
