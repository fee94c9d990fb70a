"""Continuous batching on a GPU, counted against the manager's own outputs.

For each way of running it (a step at a time, a step prepared while another runs, CUDA graphs):
the same ids with and without llmtrace, a record for each request with the tokens of its output,
the device's clock, and token times that fit transformers' own time stamps. Needs transformers 5.4
or newer. Exits with 1 when something is wrong.

    python benchmarks/gpu/batching.py
"""

from __future__ import annotations

import sys
import time
from typing import Any

import torch
from transformers import ContinuousBatchingConfig, GenerationConfig, LlamaConfig, LlamaForCausalLM

import llmtrace

REQUESTS = 24
TOKENS = 40
PAIRS = 3


def make_model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=1024,
        hidden_size=1024,
        intermediate_size=2048,
        num_hidden_layers=8,
        num_attention_heads=8,
        max_position_embeddings=2048,
    )
    # 32 bits: what shares a step depends on timing, and must not change which token is greatest.
    model = LlamaForCausalLM(config).eval().to("cuda")
    # Named outright: some releases switch to flash attention on their own, which has no 32 bits.
    model.set_attn_implementation("paged|sdpa")
    return model


def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    lengths = [3 + 37 * i % 400 for i in range(REQUESTS)]
    return [torch.randint(3, 1024, (n,), generator=generator).tolist() for n in lengths]


def run(model: LlamaForCausalLM, how: dict[str, Any]) -> tuple[dict[str, Any], float]:
    """Return the outputs by request id, and how long it took, seconds."""
    begun = time.perf_counter()
    outputs = model.generate_batch(
        prompts(),
        generation_config=GenerationConfig(
            max_new_tokens=TOKENS, do_sample=False, eos_token_id=-1, pad_token_id=0
        ),
        continuous_batching_config=ContinuousBatchingConfig(
            num_blocks=256, max_batch_tokens=256, **how
        ),
        record_timestamps=True,
    )
    return outputs, time.perf_counter() - begun


def wrong(outputs: dict[str, Any], records: list[llmtrace.RequestRecord]) -> list[str]:
    """Return what does not hold of *records*."""
    by_id = {record.attributes["llmtrace.batch.request_id"]: record for record in records}
    if by_id.keys() != outputs.keys():
        return ["requests"]
    found = set()
    for key, output in outputs.items():
        record, stamps = by_id[key], output.timestamps
        facts = {
            "tokens": record.output_tokens == len(output.generated_tokens) == len(record.steps),
            "input": record.input_tokens == len(output.prompt_ids),
            "clock": record.clock == "cuda" and (record.clock_error_s or 1) < 1e-3,
            "order": 0 < (record.queue_s or 0) < (record.ttft_s or 0),
            "sums": abs(record.e2e_s - record.ttft_s - sum(record.itl_s)) < 1e-9,
            "gaps": len(record.itl_s) == TOKENS - 1 and min(record.itl_s) > 0,
            "device": all(step.device_duration_s for step in record.steps),
            "findings": not record.findings,
            # The host has a token after the device made it, and the next one later still.
            "stamps": _fit(record, output.created_time, stamps),
        }
        found |= {name for name, good in facts.items() if not good}
    return sorted(found)


def _fit(record: llmtrace.RequestRecord, created: float, stamps: list[float]) -> bool:
    slack = (record.clock_error_s or 0) + 2e-3  # add_request to the state it makes
    made = [step.end_s for step in record.steps]
    seen = [stamp - created for stamp in stamps]
    return all(m <= s + slack for m, s in zip(made, seen, strict=True))


def check(model: LlamaForCausalLM, how: dict[str, Any]) -> str:
    """Return what is wrong, or ``right``, with the ratio of durations."""
    ratios, problems = [], set()
    llmtrace.uninstrument()
    run(model, how)  # captures graphs, fills caches
    for _ in range(PAIRS):
        llmtrace.uninstrument()
        without, plain_s = run(model, how)
        llmtrace.instrument(dir="/tmp/llmtrace-batching")  # noqa: S108 - thrown away
        with llmtrace.capture() as records:
            outputs, traced_s = run(model, how)
        ids = [output.generated_tokens for output in outputs.values()]
        if ids != [output.generated_tokens for output in without.values()]:
            problems.add("ids")
        problems |= set(wrong(outputs, records))
        ratios.append(traced_s / plain_s)
    ratio = sorted(ratios)[len(ratios) // 2]
    errors = max(record.clock_error_s or 0 for record in records)
    verdict = ", ".join(sorted(problems)) or "right"
    return f"{verdict}; {ratio:.3f} times as long as without, clock within {errors * 1e6:.0f} us"


def main() -> int:
    if not torch.cuda.is_available():
        print("benchmarks/gpu/batching.py needs a CUDA device", file=sys.stderr)
        return 2
    model = make_model()
    modes = {
        "a step at a time": {"use_async_batching": False, "use_cuda_graph": False},
        "a step ahead": {"use_async_batching": True, "use_cuda_graph": False},
        "CUDA graphs": {"use_async_batching": False, "use_cuda_graph": True},
        "CUDA graphs, a step ahead": {"use_async_batching": True, "use_cuda_graph": True},
    }
    failed = False
    for name, how in modes.items():
        try:
            verdict = check(model, how)
        except Exception as error:  # noqa: BLE001 - the other ways are looked at all the same
            verdict = f"{type(error).__name__}: {error}"
        failed |= not verdict.startswith("right")
        print(f"{name}: {verdict}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
