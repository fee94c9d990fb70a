"""Host time that llmtrace adds to one decode step, before span building.

A decode loop of our own runs inside real ``generate()`` (``custom_generate=``), with a model
whose forward does almost nothing, so that what is added can be seen. It calls what
transformers' own loops call each step: the model, the logits processors, the stopping criteria.
Runs with and without llmtrace alternate; the figure is the median of the paired differences,
taken inside the loop by this script's own clock.

The second figure is the processor time of the whole process per step, the background thread's
included: spans built and handed to a batch processor with a null exporter.

    python benchmarks/overhead.py [--steps N] [--pairs N] [--json]
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time

import torch
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from transformers import LlamaConfig, LlamaForCausalLM, LlamaModel
from transformers.modeling_outputs import CausalLMOutputWithPast

import llmtrace

BUDGET_US = 4.0


class IdleInner(LlamaModel):
    """The inner model, whose call passes our seam too."""

    def forward(self, input_ids=None):
        return None


class Idle(LlamaForCausalLM):
    """A Llama whose forward hands back the same logits at once."""

    def forward(self, input_ids=None, **kwargs):
        self.model(input_ids)
        return self.answer


class NullExporter(SpanExporter):
    """Takes every span and does nothing with it."""

    def export(self, spans):
        return SpanExportResult.SUCCESS


def make_model() -> Idle:
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=100_000,
    )
    model = Idle(config).eval()
    model.model = IdleInner(config).eval()
    model.answer = CausalLMOutputWithPast(logits=torch.zeros(1, 1, 64))
    return model


def timed_loop(steps: int, elapsed: list[int]):
    """Return a decoding method of *steps* steps that notes how long it took."""

    def loop(
        model,
        input_ids,
        logits_processor,
        stopping_criteria,
        generation_config,
        **kwargs,
    ):
        logits = model.answer.logits[:, -1]
        begun = time.perf_counter_ns()
        for _ in range(steps):
            model(input_ids=input_ids)
            logits_processor(input_ids, logits)
            stopping_criteria(input_ids, None)
        elapsed.append(time.perf_counter_ns() - begun)
        return input_ids

    return loop


def run(model: Idle, steps: int) -> float:
    """Return the time of one step in the loop, microseconds."""
    elapsed: list[int] = []
    ids = torch.ones(1, 4, dtype=torch.long)
    gc.collect()
    gc.disable()
    model.generate(ids, custom_generate=timed_loop(steps, elapsed), max_new_tokens=steps)
    gc.enable()
    return elapsed[0] / steps / 1000


def measure(steps: int, pairs: int) -> dict[str, object]:
    model = make_model()
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(NullExporter()))
    off, on, background = [], [], []
    for pair in range(pairs + 1):
        llmtrace.uninstrument()
        begun = time.process_time()
        without = run(model, steps)
        cpu = begun - time.process_time()
        with llmtrace.instrument(tracer_provider=provider, max_step_spans=steps + 1) as handle:
            begun = time.process_time()
            traced = run(model, steps)
            handle.flush()
            cpu += time.process_time() - begun
        if pair:  # the first pair warms up
            off.append(without)
            on.append(traced)
            background.append(cpu / steps * 1e6)
    added = [b - a for a, b in zip(off, on, strict=True)]
    return {
        "steps": steps,
        "pairs": pairs,
        "step_without_us": round(statistics.median(off), 2),
        "step_with_us": round(statistics.median(on), 2),
        "added_us_median": round(statistics.median(added), 2),
        "added_us_quartiles": [round(q, 2) for q in statistics.quantiles(added, n=4)],
        "budget_us": BUDGET_US,
        "process_cpu_added_us_median": round(statistics.median(background), 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    result = measure(arguments.steps, arguments.pairs)
    if arguments.json:
        print(json.dumps(result))
    else:
        print(f"one step: {result['step_without_us']} us without, {result['step_with_us']} us with")
        print(
            f"llmtrace adds {result['added_us_median']} us per decode step "
            f"(quartiles {result['added_us_quartiles']}, {result['pairs']} pairs of "
            f"{result['steps']} steps; budget {BUDGET_US} us)"
        )
        print(
            f"processor time of the whole process, background thread included: "
            f"{result['process_cpu_added_us_median']} us per step"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
