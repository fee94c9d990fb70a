"""llmtrace on one GPU: does the device clock run, is it right, and does it wait for nothing?

A model of LLaMA-2-7B's shape with random weights in bf16. What is checked, each by something
that is not llmtrace:

* token times against a streamer's own host clock (the loop waits for each token, so a token is
  on the host some tens of microseconds after the device selected it);
* calls that wait, copy or allocate, counted by torch.profiler with and without llmtrace;
* the prefill's duration against the profiler's first kernel start to last kernel end;
* the generated ids, with and without;
* time per token, with and without, in alternating runs.

    python benchmarks/gpu/smoke.py [--layers 32] [--tokens 64] [--json FILE]
"""

from __future__ import annotations

import argparse
import collections
import json
import statistics
import sys
import time

import torch
import transformers
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from torch.profiler import ProfilerActivity, profile
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.generation.streamers import BaseStreamer

import llmtrace

COUNTED = (
    "cudaStreamSynchronize",
    "cudaDeviceSynchronize",
    "cudaEventSynchronize",
    "cudaMemcpyAsync",
    "cudaMalloc",
    "cudaLaunchKernel",
    "cudaGraphLaunch",
    "cudaEventRecord",
    "cudaEventRecordWithFlags",
    "cudaEventQuery",
)


class NullExporter(SpanExporter):
    """Takes every span and does nothing with it."""

    def export(self, spans):
        return SpanExportResult.SUCCESS


class Stopwatch(BaseStreamer):
    """Host times at which tokens were handed over."""

    def __init__(self) -> None:
        self.puts: list[float] = []

    def put(self, value) -> None:
        self.puts.append(time.perf_counter())

    def end(self) -> None:
        pass


def make_model(layers: int) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=32_000,
        hidden_size=4096,
        intermediate_size=11_008,
        num_hidden_layers=layers,
        num_attention_heads=32,
        num_key_value_heads=32,
        max_position_embeddings=4096,
    )
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = LlamaForCausalLM(config).eval()
    torch.set_default_dtype(torch.float32)
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model


class Bench:
    """The model, its prompt, and llmtrace turned on or off around a call."""

    def __init__(self, layers: int, tokens: int) -> None:
        self.model = make_model(layers)
        self.tokens = tokens
        self.prompt = torch.randint(3, 32_000, (1, 128), device="cuda")
        self.provider = TracerProvider()
        self.provider.add_span_processor(BatchSpanProcessor(NullExporter()))

    def generate(self, prompt: torch.Tensor | None = None, **kwargs: object) -> torch.Tensor:
        arguments = {"max_new_tokens": self.tokens, "do_sample": False, **kwargs}
        return self.model.generate(self.prompt if prompt is None else prompt, **arguments)

    def traced(self, *, on: bool) -> None:
        if on:
            llmtrace.instrument(tracer_provider=self.provider)
        else:
            llmtrace.uninstrument()


def truth(bench: Bench) -> dict[str, object]:
    """Compare token times with a streamer's."""
    bench.traced(on=True)
    bench.generate()
    watch = Stopwatch()
    with llmtrace.capture() as records:
        begun = time.perf_counter()
        bench.generate(streamer=watch)
    (record,) = records
    late = [
        put - begun - step.end_s for put, step in zip(watch.puts[1:], record.steps, strict=True)
    ]
    gaps = [b - a for a, b in zip(watch.puts[1:], watch.puts[2:], strict=False)]
    return {
        "clock": record.clock,
        "device": record.device,
        "clock_error_us": round(record.clock_error_s * 1e6, 1),
        "steps": len(record.steps),
        "ttft_ms": round(record.ttft_s * 1e3, 3),
        "ttft_ms_stopwatch": round((watch.puts[1] - begun) * 1e3, 3),
        "itl_p50_ms": round(statistics.median(record.itl_s) * 1e3, 3),
        "itl_p50_ms_stopwatch": round(statistics.median(gaps) * 1e3, 3),
        "put_after_token_us": [round(f(late) * 1e6, 1) for f in (min, statistics.median, max)],
        "e2e_minus_sum_us": round(abs(record.e2e_s - record.ttft_s - sum(record.itl_s)) * 1e6, 3),
        "host_bound_ratio": record.host_bound_ratio,
        "memory_allocated_gb": round(record.memory_allocated_bytes / 1e9, 2),
        "kv_cache_mb": round(record.kv_cache_bytes / 1e6, 2),
    }


def long_prefill(bench: Bench) -> dict[str, object]:
    """Compare a 3,000-token prefill with the profiler's time line of its kernels."""
    prompt = torch.randint(3, 32_000, (1, 3000), device="cuda")
    bench.traced(on=True)
    bench.generate(prompt, max_new_tokens=4)
    with (
        llmtrace.capture() as records,
        profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as profiler,
    ):
        bench.generate(prompt, max_new_tokens=1)
        torch.cuda.synchronize()
    kernels = [e for e in profiler.events() if e.device_type.name == "CUDA"]
    matrix = [e for e in kernels if e.time_range.elapsed_us() > 5]
    span = max(e.time_range.end for e in matrix) - min(e.time_range.start for e in matrix)
    (record,) = records
    return {
        "prefill_ms": round(record.prefill_s * 1e3, 3),
        "profiler_ms": round(span / 1e3, 3),
        "launch_lead_ms": round(record.steps[0].launch_lead_s * 1e3, 3),
    }


def counts(bench: Bench) -> dict[str, object]:
    """Count calls that wait, copy or allocate, with and without llmtrace."""
    found = {}
    for on in (False, True):
        bench.traced(on=on)
        bench.generate()
        with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as profiler:
            bench.generate()
        calls = collections.Counter(e.name for e in profiler.events())
        found["with" if on else "without"] = {name: calls[name] for name in COUNTED}
    return found


def same_ids(bench: Bench) -> bool:
    """Whether the ids are the same, greedy and sampled."""
    results = []
    for on in (False, True):
        bench.traced(on=on)
        torch.manual_seed(5)
        results.append((bench.generate(), bench.generate(do_sample=True)))
    return all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def paired(bench: Bench, pairs: int, **kwargs: object) -> dict[str, object]:
    """Return ms per token without and with, and their ratio, in alternating runs."""
    times: dict[bool, list[float]] = {False: [], True: []}
    for pair in range(pairs + 1):
        for on in (False, True):
            bench.traced(on=on)
            torch.cuda.synchronize()
            begun = time.perf_counter()
            bench.generate(**kwargs)
            torch.cuda.synchronize()
            if pair:
                times[on].append((time.perf_counter() - begun) / bench.tokens * 1e3)
    ratios = [b / a for a, b in zip(times[False], times[True], strict=True)]
    return {
        "ms_per_token_without": round(statistics.median(times[False]), 3),
        "ms_per_token_with": round(statistics.median(times[True]), 3),
        "ratio_median": round(statistics.median(ratios), 4),
        "ratios": [round(r, 4) for r in ratios],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("benchmarks/gpu/smoke.py needs a CUDA device", file=sys.stderr)
        return 2
    bench = Bench(arguments.layers, arguments.tokens)
    static = {"cache_implementation": "static"}
    result = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "llmtrace": llmtrace.__version__,
    }
    for name, part in (
        ("truth", lambda: truth(bench)),
        ("long_prefill", lambda: long_prefill(bench)),
        ("same_ids", lambda: same_ids(bench)),
        ("calls", lambda: counts(bench)),
        ("eager", lambda: paired(bench, arguments.pairs)),
        ("static_compiled", lambda: paired(bench, arguments.pairs, **static)),
    ):
        result[name] = part()
        print(name, json.dumps(result[name]), flush=True)
    if arguments.json:
        with open(arguments.json, "w") as file:  # noqa: PTH123
            json.dump(result, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
