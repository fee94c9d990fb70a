"""Host time that llmtrace adds to a continuous-batching scheduler's step.

Every method that llmtrace wraps on the step's path is timed twice at once, outside our wrapper and
inside it, around the library's own; the difference is what we add, whatever else the machine does.
The same two timers with nothing between them are run first, and taken off.

    python benchmarks/batching_overhead.py [--requests N ...] [--tokens N]
"""

from __future__ import annotations

import argparse
import functools
import importlib
import statistics
import sys
import time
from typing import Any

import torch
from opentelemetry.sdk.trace import TracerProvider
from transformers import ContinuousBatchingConfig, GenerationConfig, LlamaConfig, LlamaForCausalLM

import llmtrace

PACKAGE = "transformers.generation.continuous_batching"
PATH = (
    ("continuous_api", "ContinuousBatchProcessor", "prepare_next_batch"),
    ("continuous_api", "ContinuousBatchProcessor", "update_batch"),
    ("model_runner", "ModelRunner", "compute_batch"),
    ("input_outputs", "ContinuousBatchingIOs", "prepare_batch_update"),
    ("cache", "PagedAttentionCache", "search_prefix_match"),
    ("scheduler", "Scheduler", "clear_cancelled_requests"),
    ("scheduler", "Scheduler", "add_waiting_request"),
    ("scheduler", "Scheduler", "finish_request"),
)


class Timers:
    """Nanoseconds outside and inside, by step."""

    def __init__(self) -> None:
        self.places = [
            (getattr(importlib.import_module(f"{PACKAGE}.{module}"), kind), name)
            for module, kind, name in PATH
        ]
        self.added: list[int] = []
        self._step = 0

    def timed(self, function: Any, sign: int, *, closes: bool = False) -> Any:
        """Return *function*, its time counted outside (1) or inside (-1)."""

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            begun = time.perf_counter_ns()
            try:
                return function(*args, **kwargs)
            finally:
                self._step += sign * (time.perf_counter_ns() - begun)
                if closes:
                    self.added.append(self._step)
                    self._step = 0

        return call

    def put(self, sign: int) -> None:
        """Put timers over what is there."""
        for owner, name in self.places:
            closes = sign > 0 and name == "update_batch"
            setattr(owner, name, self.timed(getattr(owner, name), sign, closes=closes))


def make_model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=1,
        max_position_embeddings=1024,
    )
    model = LlamaForCausalLM(config).eval()
    model.set_attn_implementation("sdpa")
    return model


def run(model: LlamaForCausalLM, requests: int, tokens: int) -> None:
    model.generate_batch(
        [[5 + i % 40] * 4 for i in range(requests)],
        generation_config=GenerationConfig(
            max_new_tokens=tokens, do_sample=False, eos_token_id=-1, pad_token_id=0
        ),
        continuous_batching_config=ContinuousBatchingConfig(
            num_blocks=4 * requests, max_batch_tokens=max(64, requests)
        ),
        warmup=False,
    )


def median_us(timers: Timers) -> float:
    return statistics.median(timers.added) / 1e3


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--tokens", type=int, default=400)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model = make_model()
    timers = Timers()
    llmtrace.uninstrument()
    originals = [(owner, name, vars(owner)[name]) for owner, name in timers.places]
    for requests in arguments.requests:
        figures = []
        for traced in (False, True):
            timers.put(-1)
            if traced:
                llmtrace.instrument(tracer_provider=TracerProvider())
            timers.put(1)
            run(model, requests, arguments.tokens)
            timers.added.clear()
            run(model, requests, arguments.tokens)
            figures.append(median_us(timers))
            for owner, name, original in originals:
                setattr(owner, name, original)
            llmtrace.uninstrument()
            for owner, name, original in originals:
                setattr(owner, name, original)
        timer, added = figures[0], figures[1] - figures[0]
        print(
            f"{requests} requests: {added:.1f} us added to a step, "
            f"{added / requests:.1f} us for each (timers {timer:.1f} us taken off)"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
