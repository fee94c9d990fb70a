"""What requests that follow on each other lose to the spans of the ones before them.

The background thread builds a finished request's spans while the next one runs, and both need
Python. The worst case for that: a tiny model on the CPU, which waits for no device, one request
directly after the other. Rounds with and without llmtrace take turns; this script's own clock, a
logits processor, stamps each step of all of them. The spans go to a batch processor with a null
exporter.

    python benchmarks/back_to_back.py [--rounds N] [--json]
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from overhead import NullExporter
from transformers import LlamaConfig, LlamaForCausalLM, LogitsProcessor, LogitsProcessorList

import llmtrace

TOKENS = 65
PIECE = 8
"""Steps over which positions are summed up."""
REQUESTS = 4
"""Of a round, after one that is not timed."""


class StepClock(LogitsProcessor):
    """Stamps the clock at each step."""

    def __init__(self):
        self.times = []

    def __call__(self, input_ids, scores):
        self.times.append(time.perf_counter_ns())
        return scores


def tiny_model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=320,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=512,
    )
    model = LlamaForCausalLM(config).eval()
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model


@contextmanager
def nothing() -> Iterator[None]:
    yield


@contextmanager
def traced(provider: TracerProvider, steps: str) -> Iterator[None]:
    llmtrace.instrument(tracer_provider=provider, steps=steps)
    try:
        yield
    finally:
        llmtrace.uninstrument()


def a_round(model, prompt, way) -> list[list[int]]:
    """Return the time to the first token, each gap, and the time after the last token, in ns."""

    def request() -> list[int]:
        clock = StepClock()
        begun = time.perf_counter_ns()
        model.generate(
            prompt,
            max_new_tokens=TOKENS,
            do_sample=False,
            logits_processor=LogitsProcessorList([clock]),
        )
        stamps = [begun, *clock.times, time.perf_counter_ns()]
        return [after - before for before, after in itertools.pairwise(stamps)]

    with way():
        request()
        return [request() for _ in range(REQUESTS)]


def added(off: np.ndarray, on: np.ndarray) -> dict[str, object]:
    """Return what each part takes longer, in us: medians over ``[requests, parts]``."""
    parts = (np.median(on, axis=0) - np.median(off, axis=0)) / 1e3
    gaps = parts[1:-1]
    pieces = [round(float(gaps[at : at + PIECE].mean()), 1) for at in range(0, len(gaps), PIECE)]
    # Means, in which delays that come now and then count in full.
    a_step = (on[:, 1:-1].mean() - off[:, 1:-1].mean()) / 1e3
    return {
        "first_token_us": round(float(parts[0]), 1),
        f"each_step_us_by_{PIECE}_steps": pieces,
        "each_step_us_mean": round(float(a_step), 1),
        "end_us": round(float(parts[-1]), 1),
        "ratio_of_whole_requests": round(float(on.sum(1).mean() / off.sum(1).mean()), 4),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(NullExporter()))
    model, prompt = tiny_model(), torch.randint(3, 300, (1, 16))
    ways = {
        "nothing": nothing,
        "nothing again": nothing,
        "llmtrace": lambda: traced(provider, "spans"),
        "llmtrace, no spans of steps": lambda: traced(provider, "none"),
    }
    for way in ways.values():
        a_round(model, prompt, way)
    gc.collect()
    gc.freeze()
    times: dict[str, list[list[int]]] = {name: [] for name in ways}
    for _ in range(arguments.rounds):
        for name, way in ways.items():
            times[name] += a_round(model, prompt, way)
    off = np.array(times.pop("nothing"))
    result = {name: added(off, np.array(on)) for name, on in times.items()}
    if arguments.json:
        print(json.dumps(result, indent=1))
        return 0
    print(f"a step without: {np.median(off[:, 1:-1]) / 1e3:.0f} us; added, us:")
    for name, parts in result.items():
        print(name)
        for part, value in parts.items():
            print(f"  {part:28} {value}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
