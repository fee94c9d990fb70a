"""LLaMA-2-7B's shape over two GPUs by accelerate's device map, against torch.profiler.

Each device's part of every forward, first kernel start to last kernel end on that device, within
1 % or 100 us; the hand-over between them; ids, calls into CUDA and ms per token with and without.

    python benchmarks/gpu/device_map.py [--layers 32] [--tokens 16] [--pairs 24] [--json FILE]
"""

from __future__ import annotations

import collections
import gc
import itertools
import statistics
import sys
import time

import torch
from bench import (
    Result,
    TimeLine,
    annotated,
    arguments_of,
    make_model,
    never_stopping,
    null_provider,
    profiled,
    prompt_of,
    saved,
)
from transformers import LlamaForCausalLM

import llmtrace

TOLERANCE_US = 100.0
SHARE = 0.01


def against_the_profiler(model, prompt, tokens: int) -> dict[str, object]:
    with annotated(model):
        for _ in range(2):
            model.generate(prompt, max_new_tokens=tokens, do_sample=False)
        with llmtrace.capture() as records, profiled() as profiler:
            model.generate(prompt, max_new_tokens=tokens, do_sample=False)
    (record,) = records
    line = TimeLine(profiler)
    off, handovers, wrong = collections.defaultdict(list), [], []
    origin = record.start_unix_ns
    for (begun, ended), step in zip(line.ranges("a_forward"), record.steps, strict=True):
        work = [e for e in line.work_called_in(begun, ended) if "Memcpy" not in e.name()]
        for leg in step.legs:
            mine = of_leg(work, leg, origin)
            reference = (max(e.end_ns() for e in mine) - mine[0].start_ns()) / 1e3
            ours = (leg.end_s - leg.start_s) * 1e6
            off[leg.device].append(ours - reference)
            if abs(ours - reference) > max(TOLERANCE_US, SHARE * reference):
                wrong.append((step.index, leg.device, round(ours), round(reference)))
        handovers += [(b.start_s - a.end_s) * 1e6 for a, b in itertools.pairwise(step.legs)]
    return {
        "devices": record.devices,
        "prefill_ms": [round(s * 1e3, 3) for s in record.devices_prefill_s],
        "decode_ms": [round(s * 1e3, 3) for s in record.devices_decode_s],
        "legs_per_forward": len(record.steps[-1].legs),
        "handover_us": spread(handovers),
        "off_us": {device: spread(values) for device, values in off.items()},
        "stated_error_us": round(record.clock_error_s * 1e6, 1),
        "sum_off_us": abs(record.e2e_s - record.ttft_s - sum(record.itl_s)) * 1e6,
        "memory_allocated_gb": round(record.memory_allocated_bytes / 1e9, 2),
        "mbu": record.mbu,
        "wrong": wrong,
    }


def spread(values: list[float]) -> list[float]:
    """Return the least, the median and the most."""
    return [round(f(values), 1) for f in (min, statistics.median, max)]


def of_leg(work: list, leg, origin: int) -> list:
    """Return the kernels that ran on a leg's device in its time."""
    index = int(leg.device.removeprefix("cuda:"))
    begun, ended = origin + leg.start_s * 1e9, origin + leg.end_s * 1e9
    there = [e for e in work if e.device_index() == index]
    return [e for e in there if begun < (e.start_ns() + e.end_ns()) / 2 < ended]


def calls(model, prompt, tokens: int) -> collections.Counter:
    with profiled() as profiler:
        model.generate(prompt, max_new_tokens=tokens, do_sample=False)
    line = TimeLine(profiler)
    found = collections.Counter(e.name() for e in line.calls if e.name().startswith("cuda"))
    found["work on the devices"] = len(line.work)
    return found


def main() -> int:
    arguments = arguments_of(__doc__, layers=32, tokens=16, pairs=24)
    result = Result(arguments)
    if torch.cuda.device_count() < 2:
        print("benchmarks/gpu/device_map.py needs two CUDA devices", file=sys.stderr)
        return 2
    with saved(make_model(arguments.layers)) as place:
        torch.cuda.empty_cache()
        model = LlamaForCausalLM.from_pretrained(place, dtype=torch.bfloat16, device_map="balanced")
    model = never_stopping(model.eval())
    prompt, tokens = prompt_of(128), arguments.tokens
    places = collections.Counter(str(place) for place in model.hf_device_map.values())
    result.add("modules on each device", places)
    provider = null_provider()
    llmtrace.instrument(tracer_provider=provider)
    part = against_the_profiler(model, prompt, tokens)
    result.add("against the profiler", part, good=not part["wrong"])
    part = against_the_profiler(model, prompt_of(2048), tokens)
    result.add("2,048 tokens", part, good=not part["wrong"])
    ids, counted = [], []
    for on in (False, True):
        llmtrace.uninstrument()
        if on:
            llmtrace.instrument(tracer_provider=provider)
        ids.append(model.generate(prompt, max_new_tokens=tokens, do_sample=False))
        counted.append(calls(model, prompt, tokens))
    result.add("the same ids", torch.equal(*ids), good=torch.equal(*ids))
    added = {k: counted[1][k] - counted[0][k] for k in counted[1] if counted[1][k] != counted[0][k]}
    allowed = {"cudaEventRecordWithFlags", "cudaStreamIsCapturing", "cudaEventQuery"}
    once = {"cudaMemcpyAsync": 1, "cudaStreamSynchronize": 1, "work on the devices": 1}
    good = all(name in allowed or once.get(name) == n for name, n in added.items())
    result.add("calls added by a request", {"tokens": tokens, **added}, good=good)
    gc.collect()
    gc.freeze()
    times = {False: [], True: []}
    for pair in range(arguments.pairs + 1):
        for on in (False, True) if pair % 2 else (True, False):
            llmtrace.uninstrument()
            if on:
                llmtrace.instrument(tracer_provider=provider)
            torch.cuda.synchronize()
            begun = time.perf_counter()
            model.generate(prompt, max_new_tokens=tokens, do_sample=False)
            torch.cuda.synchronize()
            if pair:
                times[on].append((time.perf_counter() - begun) / tokens * 1e3)
    ratios = [b / a for a, b in zip(times[False], times[True], strict=True)]
    result.add(
        "ms per token",
        {
            "without": round(statistics.median(times[False]), 3),
            "with": round(statistics.median(times[True]), 3),
            "ratio_median": round(statistics.median(ratios), 4),
            "ratios": [round(r, 3) for r in ratios],
        },
    )
    return result.exit_code()


if __name__ == "__main__":
    sys.exit(main())
