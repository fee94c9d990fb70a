"""What tracing costs on a GPU: llmtrace, and other ways of timing each token, side by side.

* ms per token with a static cache and compilation, each method over nothing at all, in runs that
  take turns; llmtrace builds its spans and hands them to a null exporter;
* host time of llmtrace's hooks in the real loop of an eager model, hook by hook: stamps of this
  script's own outside and inside of them, with and without llmtrace;
* time from the last token to the return of ``generate()``, for 512 tokens.

    python benchmarks/gpu/cost.py [--layers 32] [--tokens 64] [--pairs 60] [--rounds 12] [--json F]
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from contextlib import contextmanager

import torch
from bench import Result, arguments_of, make_model, null_provider, prompt_of
from opentelemetry.sdk.trace import TracerProvider
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    StoppingCriteria,
    StoppingCriteriaList,
)
from transformers.generation.streamers import BaseStreamer
from transformers.modeling_utils import PreTrainedModel

import llmtrace

BUDGET_US = 20.0
MEAN = "all, mean of the middle 90 %"
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


@contextmanager
def traced(provider: TracerProvider):
    llmtrace.instrument(tracer_provider=provider)
    try:
        yield {}
    finally:
        llmtrace.uninstrument()


@contextmanager
def given(**how: object):
    yield how


def methods(provider: TracerProvider):
    return {
        "nothing": given,
        "llmtrace": lambda: traced(provider),
        "synchronize every step": lambda: given(
            logits_processor=LogitsProcessorList([Synchronizing()])
        ),
        "event every step": lambda: given(logits_processor=LogitsProcessorList([EventEachStep()])),
        "span every step": lambda: given(logits_processor=LogitsProcessorList([SpanEachStep()])),
        "streamer with a clock": lambda: given(streamer=StampingStreamer()),
    }


def once(model, prompt, tokens: int, method, **how: object) -> float:
    """Return ms per token of one request."""
    with method() as more:
        torch.cuda.synchronize()
        begun = now()
        model.generate(prompt, max_new_tokens=tokens, do_sample=False, **how, **more)
        torch.cuda.synchronize()
        return (now() - begun) / tokens / 1e6


def side_by_side(model, prompt, tokens: int, pairs: int, rounds: int, **how) -> dict[str, object]:
    """Return each method's ms per token and its ratio to doing nothing."""
    all_methods = methods(null_provider())
    nothing = all_methods.pop("nothing")
    result = {}
    for name, method in all_methods.items():
        for _ in range(2):
            once(model, prompt, tokens, nothing, **how)
            once(model, prompt, tokens, method, **how)
        off, on = [], []
        gc.collect()
        gc.freeze()
        for pair in range(pairs if name == "llmtrace" else rounds):
            order = ((nothing, off), (method, on)) if pair % 2 else ((method, on), (nothing, off))
            for which, times in order:
                times.append(once(model, prompt, tokens, which, **how))
        gc.unfreeze()
        ratios = [b / a for a, b in zip(off, on, strict=True)]
        result[name] = {
            "pairs": len(ratios),
            "ms_per_token_without": round(statistics.median(off), 4),
            "ms_per_token_with": round(statistics.median(on), 4),
            "ratio_median": round(statistics.median(ratios), 4),
            "ratio_quartiles": [round(q, 4) for q in statistics.quantiles(ratios, n=4)],
            "added_us_per_token": round((statistics.median(on) - statistics.median(off)) * 1e3, 1),
        }
    return result


class Stamps:
    """Stamps outside and inside of the hooks, taken by nobody but this script."""

    def __init__(self, model) -> None:
        self.model = model
        self.forward: list[tuple[int, int, int, int]] = []
        self.processors: list[int] = []
        self.criteria: list[int] = []

    @contextmanager
    def around_everything(self):
        inside = [0, 0]
        before = self.model.register_forward_pre_hook(lambda *_: inside.__setitem__(0, now()))
        after = self.model.register_forward_hook(lambda *_: inside.__setitem__(1, now()))
        ours = PreTrainedModel.__dict__.get("__call__")
        lists = (LogitsProcessorList, StoppingCriteriaList)
        originals = [vars(cls)["__call__"] for cls in lists]

        def call(model, *args, **kwargs):
            if model is not self.model:
                inner = ours or torch.nn.Module.__call__
                return inner(model, *args, **kwargs)
            begun = now()
            result = (ours or torch.nn.Module.__call__)(model, *args, **kwargs)
            self.forward.append((begun, inside[0], inside[1], now()))
            return result

        def stamping(original, times):
            def call_list(self_, *args, **kwargs):
                bound = original.__get__(self_, type(self_))
                begun = now()
                result = bound(*args, **kwargs)
                times.append(now() - begun)
                return result

            return call_list

        PreTrainedModel.__call__ = call
        for cls, original, times in zip(
            lists, originals, (self.processors, self.criteria), strict=True
        ):
            cls.__call__ = stamping(original, times)
        try:
            yield
        finally:
            for cls, original in zip(lists, originals, strict=True):
                cls.__call__ = original
            if ours is None:
                del PreTrainedModel.__call__
            else:
                PreTrainedModel.__call__ = ours
            before.remove()
            after.remove()


def hooks(model, prompt, tokens: int, rounds: int) -> dict[str, object]:
    """Return the host time that each hook adds to a decode step, in microseconds."""
    provider = null_provider()
    found: dict[bool, dict[str, list[float]]] = {False: {}, True: {}}
    for turn in range(2 * rounds + 2):
        on = bool(turn % 2)
        with traced(provider) if on else given():
            stamps = Stamps(model)
            with stamps.around_everything():
                model.generate(prompt, max_new_tokens=tokens, do_sample=False)
        if turn < 2:
            continue
        into = found[on]
        decode = stamps.forward[1:]
        into.setdefault("before the forward", []).extend(b - a for a, b, _, _ in decode)
        into.setdefault("after the forward", []).extend(d - c for _, _, c, d in decode)
        into.setdefault("logits processors", []).extend(stamps.processors[1:])
        into.setdefault("stopping criteria", []).extend(stamps.criteria[1:])

    def added(average) -> dict[str, float]:
        return {
            name: round((average(found[True][name]) - average(times)) / 1e3, 2)
            for name, times in found[False].items()
        }

    medians, means = added(statistics.median), added(middle_mean)
    return {
        **medians,
        "all": round(sum(medians.values()), 2),
        # The end of one forward in eight is marked too: a median does not see it.
        MEAN: round(sum(means.values()), 2),
        "means": means,
        "steps": len(found[True]["stopping criteria"]),
    }


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


def main() -> int:
    arguments = arguments_of(__doc__, layers=32, tokens=64, pairs=60, rounds=12)
    result = Result(arguments)
    model = make_model(arguments.layers)
    prompt = prompt_of(128)
    part = hooks(model, prompt, arguments.tokens, 2)
    result.add(
        "host time of each hook, us per step", part, good=max(part["all"], part[MEAN]) <= BUDGET_US
    )
    small = make_model(2)
    part = hooks(small, prompt, 256, 3)
    result.add("the same, two layers", part, good=max(part["all"], part[MEAN]) <= BUDGET_US)
    part = after_the_last_token(small, prompt, 512, arguments.rounds)
    result.add("after the last token", part, good=part["ms_added"] < 2)
    del small
    part = side_by_side(
        model,
        prompt,
        arguments.tokens,
        arguments.pairs,
        arguments.rounds,
        cache_implementation="static",
    )
    good = abs(part["llmtrace"]["ratio_median"] - 1) <= 0.005
    result.add("static cache, compiled", part, good=good)
    part = side_by_side(model, prompt, 32, arguments.rounds, arguments.rounds)
    result.add("eager", part)
    return result.exit_code()


if __name__ == "__main__":
    sys.exit(main())
