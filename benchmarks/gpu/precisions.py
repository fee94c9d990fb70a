"""LLaMA-2-7B's shape in bf16, int8 and NF4: TTFT, ITL, TGS, MBU and host-bound ratio by llmtrace.

Random weights, greedy, unique random prompts, each cell the median of a few warm requests; TTFT
and ITL of each cell are also taken by a stopwatch of this script's own (a streamer's clock).
Compiled cells use one static cache per batch size, long enough for every prompt length.

    python benchmarks/gpu/precisions.py [--layers 32] [--tokens 32] [--trials 3] [--seconds N]
"""

from __future__ import annotations

import gc
import statistics
import sys
import time

import torch
from bench import (
    Result,
    arguments_of,
    load_quantized,
    make_model,
    null_provider,
    prompt_of,
    saved,
)
from transformers import StaticCache, StoppingCriteria, StoppingCriteriaList

import llmtrace

PROMPTS = (32, 128, 512, 2048)
BATCHES = (1, 4, 8)


class Stopwatch(StoppingCriteria):
    """Waits for each token and reads the host's clock; in runs of its own."""

    def __init__(self):
        self.times = []

    def __call__(self, input_ids, scores, **kwargs):
        torch.cuda.synchronize()
        self.times.append(time.perf_counter())
        return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)


def cell(model, batch: int, length: int, tokens: int, trials: int, how) -> dict[str, object]:
    """Return one cell of the table."""
    with llmtrace.capture() as records:
        for trial in range(trials + 1):
            prompt = prompt_of(length, batch, seed=trial)
            model.generate(prompt, max_new_tokens=tokens, do_sample=False, **how())
    warm = [record for record in records[1:] if not record.cold] or records[-1:]
    watch = Stopwatch()
    prompt = prompt_of(length, batch, seed=99)
    torch.cuda.synchronize()
    begun = time.perf_counter()
    model.generate(
        prompt,
        max_new_tokens=tokens,
        do_sample=False,
        stopping_criteria=StoppingCriteriaList([watch]),
        **how(),
    )
    gaps = [b - a for a, b in zip(watch.times, watch.times[1:], strict=False)]

    def median(name: str) -> float:
        return statistics.median(getattr(record, name) for record in warm)

    itl = [gap for record in warm for gap in record.itl_s]
    return {
        "batch": batch,
        "prompt": length,
        "cold": [list(record.cold_reasons) for record in records if record.cold],
        "ttft_ms": round(median("ttft_s") * 1e3, 2),
        "itl_p50_ms": round(statistics.median(itl) * 1e3, 3),
        "itl_p95_ms": round(statistics.quantiles(itl, n=20)[-1] * 1e3, 3),
        "tgs": round(median("tgs"), 1),
        "decode_tgs": round(median("decode_tgs"), 1),
        "mbu": round(median("mbu"), 4),
        "mfu": round(median("mfu"), 4),
        "host_bound_ratio": round(median("host_bound_ratio"), 3),
        "memory_gb": round(max(r.memory_allocated_bytes for r in warm) / 1e9, 2),
        "stopwatch_ttft_ms": round((watch.times[0] - begun) * 1e3, 2),
        "stopwatch_itl_p50_ms": round(statistics.median(gaps) * 1e3, 3),
    }


def table(result: Result, model, name: str, arguments, compiled) -> None:
    """Add every cell of one precision, eager or compiled."""
    for batch in BATCHES:
        cache = None
        if compiled:
            longest = max(PROMPTS) + arguments.tokens
            cache = StaticCache(config=model.config, max_cache_len=longest)

        def how(cache=cache):
            if cache is None:
                return {}
            cache.reset()
            return {"past_key_values": cache}

        for length in PROMPTS:
            if arguments.seconds and result.seconds > arguments.seconds:
                return
            part = cell(model, batch, length, arguments.tokens, arguments.trials, how)
            result.add(f"{name}, batch {batch}, prompt {length}", part, good=part["mbu"] <= 1)
        del cache
        gc.collect()
        torch.cuda.empty_cache()


def main() -> int:
    arguments = arguments_of(__doc__, layers=32, tokens=32, trials=3, seconds=0)
    result = Result(arguments)
    llmtrace.instrument(tracer_provider=null_provider())
    model = make_model(arguments.layers)
    table(result, model, "bf16, eager", arguments, compiled=False)
    with saved(model) as place:
        del model
        gc.collect()
        torch.cuda.empty_cache()
        for kind in ("nf4", "8bit"):
            quantized = load_quantized(place, kind)
            table(result, quantized, f"{kind}, eager", arguments, compiled=False)
            del quantized
            gc.collect()
            torch.cuda.empty_cache()
    model = make_model(arguments.layers)
    table(result, model, "bf16, compiled", arguments, compiled=True)
    return result.exit_code()


if __name__ == "__main__":
    sys.exit(main())
