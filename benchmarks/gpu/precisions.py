"""LLaMA-2-7B's shape in bf16, int8 and NF4: TTFT, ITL, TGS, MBU and host-bound ratio by llmtrace.

Random weights, greedy, unique random prompts, each cell the median of a few warm requests; TTFT
and ITL of each cell are also taken by a stopwatch of this script's own (a streamer's clock).
Compiled cells use one static cache per batch size, long enough for every prompt length.

    python benchmarks/gpu/precisions.py [--only bf16 nf4 8bit bf16-compiled] [--batches 1 4 8]
        [--prompts 32 128 512 2048] [--layers 32] [--tokens 32] [--trials 3] [--seconds N]
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

PARTS = ("bf16", "nf4", "8bit", "bf16-compiled")
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


def table(result: Result, model, name: str, arguments, *, compiled: bool = False) -> None:
    """Add every cell of one precision, eager or compiled."""
    for batch in arguments.batches:
        cache = None
        if compiled:
            torch.compiler.reset()  # or the next batch size is compiled for any size
            longest = max(arguments.prompts) + arguments.tokens
            cache = StaticCache(config=model.config, max_cache_len=longest)

        def how(cache=cache):
            if cache is None:
                return {}
            cache.reset()
            return {"past_key_values": cache}

        for length in arguments.prompts:
            if arguments.seconds and result.seconds > arguments.seconds:
                return
            part = cell(model, batch, length, arguments.tokens, arguments.trials, how)
            result.add(f"{name}, batch {batch}, prompt {length}", part, good=part["mbu"] <= 1)
        del cache
        give_memory_back()


def give_memory_back() -> None:
    gc.collect()
    torch.cuda.empty_cache()


def quantized(result: Result, kinds: list[str], arguments) -> None:
    """Add the cells of what bitsandbytes makes of a saved model."""
    with saved(make_model(arguments.layers)) as place:
        give_memory_back()
        for kind in kinds:
            model = load_quantized(place, kind)
            table(result, model, f"{kind}, eager", arguments)
            del model
            give_memory_back()


def main() -> int:
    arguments = arguments_of(
        __doc__,
        only=PARTS,
        batches=BATCHES,
        prompts=PROMPTS,
        layers=32,
        tokens=32,
        trials=3,
        seconds=0,
    )
    result = Result(arguments)
    llmtrace.instrument(tracer_provider=null_provider())
    for name, compiled in (("bf16", False), ("bf16-compiled", True)):
        if name in arguments.only:
            model = make_model(arguments.layers)
            way = "bf16, compiled" if compiled else "bf16, eager"
            table(result, model, way, arguments, compiled=compiled)
            del model
            give_memory_back()
    kinds = [kind for kind in ("nf4", "8bit") if kind in arguments.only]
    if kinds:
        quantized(result, kinds, arguments)
    return result.exit_code()


if __name__ == "__main__":
    sys.exit(main())
