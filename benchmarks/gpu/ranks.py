"""Ranks on GPUs of their own: one tensor-parallel model, or a replica on each.

Run it by torchrun. On each rank: ids with and without llmtrace, calls into CUDA and NCCL's work
with and without, ms per token in runs that take turns. On the first rank: what the ranks' trace
files say of each request together, and how far apart the ranks were.

    torchrun --nproc-per-node 2 benchmarks/gpu/ranks.py tensor-parallel MODEL_FOLDER OUT_FOLDER
    torchrun --nproc-per-node 2 benchmarks/gpu/ranks.py replicas MODEL_FOLDER OUT_FOLDER
"""

from __future__ import annotations

import collections
import gc
import json
import os
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from bench import TimeLine, never_stopping, null_provider, profiled
from transformers import LlamaForCausalLM

import llmtrace

TOKENS = 16
PAIRS = 24


def counted(model, prompt) -> collections.Counter:
    with profiled() as profiler:
        model.generate(prompt, max_new_tokens=TOKENS, do_sample=False)
    line = TimeLine(profiler)
    found = collections.Counter(e.name() for e in line.calls if e.name().startswith("cuda"))
    found["NCCL work"] = sum("nccl" in e.name().lower() for e in line.work)
    found["work"] = len(line.work)
    return found


def paired(model, prompt, provider) -> dict[str, float]:
    gc.collect()
    gc.freeze()
    times = {False: [], True: []}
    for pair in range(PAIRS + 1):
        for on in (False, True) if pair % 2 else (True, False):
            llmtrace.uninstrument()
            if on:
                llmtrace.instrument(tracer_provider=provider)
            dist.barrier()
            torch.cuda.synchronize()
            begun = time.perf_counter()
            model.generate(prompt, max_new_tokens=TOKENS, do_sample=False)
            torch.cuda.synchronize()
            if pair:
                times[on].append((time.perf_counter() - begun) / TOKENS * 1e3)
    ratios = [b / a for a, b in zip(times[False], times[True], strict=True)]
    return {
        "ms_per_token_without": round(statistics.median(times[False]), 3),
        "ms_per_token_with": round(statistics.median(times[True]), 3),
        "ratio_median": round(statistics.median(ratios), 4),
        "ratios": [round(r, 3) for r in ratios],
    }


def first_token_us(span: dict) -> float:
    values = {a["key"]: a["value"] for a in span["attributes"]}
    return int(span["startTimeUnixNano"]) / 1e3 + values["llmtrace.ttft"]["doubleValue"] * 1e6


def joined(folder: Path) -> dict[str, object]:
    """Return how the ranks' request spans hang together, and how far apart their tokens were."""
    spans = collections.defaultdict(dict)
    for file in sorted(folder.iterdir()):
        for line in file.read_text().splitlines():
            for resource in json.loads(line).get("resourceSpans", ()):
                identity = {a["key"]: a["value"] for a in resource["resource"]["attributes"]}
                rank = int(identity["llmtrace.rank"]["intValue"])
                for scope in resource["scopeSpans"]:
                    for span in scope["spans"]:
                        if span["name"].startswith("text_completion"):
                            spans[span["traceId"]][rank] = span
    first_tokens = []
    for ranks in spans.values():
        at = [first_token_us(span) for span in ranks.values()]
        first_tokens.append(max(at) - min(at))
    return {
        "traces": len(spans),
        "ranks_in_each": sorted({len(ranks) for ranks in spans.values()}),
        "first_token_skew_us": [round(f(first_tokens), 1) for f in (min, statistics.median, max)],
    }


def main() -> int:
    kind, folder, out = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    rank = int(os.environ["RANK"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    how = {"tp_plan": "auto"} if kind == "tensor-parallel" else {"device_map": str(device)}
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, **how)
    model = never_stopping(model.eval())
    if not dist.is_initialized():
        dist.init_process_group("nccl", device_id=device)
    seed = 0 if kind == "tensor-parallel" else rank
    generator = torch.Generator(device=device).manual_seed(seed)
    prompt = torch.randint(3, 32_000, (1, 128), device=device, generator=generator)
    for _ in range(2):
        model.generate(prompt, max_new_tokens=TOKENS, do_sample=False)
    ids, calls = [], []
    provider = null_provider()
    for on in (False, True):
        llmtrace.uninstrument()
        if on:
            llmtrace.instrument(tracer_provider=provider)
        ids.append(model.generate(prompt, max_new_tokens=TOKENS, do_sample=False))
        dist.barrier()
        calls.append(counted(model, prompt))
    added = {k: calls[1][k] - calls[0][k] for k in calls[1] if calls[1][k] != calls[0][k]}
    found = {
        "kind": kind,
        "rank": rank,
        "same_ids": torch.equal(*ids),
        "nccl_work": calls[0]["NCCL work"],
        "calls_added_by_16_tokens": added,
        **paired(model, prompt, provider),
    }
    llmtrace.uninstrument()
    with llmtrace.instrument(dir=str(out)), llmtrace.capture() as records:
        for _ in range(5):
            dist.barrier()
            model.generate(prompt, max_new_tokens=TOKENS, do_sample=False)
    found["clock"], found["device"] = records[-1].clock, records[-1].device
    found["stated_error_us"] = round(records[-1].clock_error_s * 1e6, 1)
    found["mbu"], found["mfu"] = records[-1].mbu, records[-1].mfu
    dist.barrier()
    if rank == 0:
        found["joined"] = joined(out)
    print(json.dumps(found), flush=True)
    (out.parent / f"{kind}-{rank}.json").write_text(json.dumps(found, indent=1) + "\n")
    dist.destroy_process_group()
    bad = not found["same_ids"] or "NCCL work" in added or found["clock"] != "cuda"
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
