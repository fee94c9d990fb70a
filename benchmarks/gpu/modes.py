"""Modes on a GPU, counted: caches, offloaded ones among them, and prefill in chunks.

Not the offloaded static cache: transformers 5.17 with torch 2.11 crashes on it, without llmtrace
too. For each: the record's steps and tokens against a counter of this script's own on the model's
``forward``, the device's clock, and the same ids with and without llmtrace.

    python benchmarks/gpu/modes.py
"""

from __future__ import annotations

import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import llmtrace

TOKENS = 8


def make_model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=4,
        num_attention_heads=2,
        max_position_embeddings=512,
    )
    model = LlamaForCausalLM(config).eval().cuda()
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model


def check(model: LlamaForCausalLM, ids: torch.Tensor, **how: object) -> str:
    """Return what is wrong, or ``right``."""
    calls = []
    hook = model.register_forward_pre_hook(lambda *_: calls.append(1))
    results = []
    for on in (False, True):
        llmtrace.uninstrument()
        if on:
            llmtrace.instrument(dir="/tmp/llmtrace-modes")  # noqa: S108 - thrown away
        calls.clear()
        with llmtrace.capture() as records:
            results.append(model.generate(ids, max_new_tokens=TOKENS, do_sample=False, **how))
    hook.remove()
    (record,) = records
    facts = {
        "ids": torch.equal(*results),
        "clock": record.clock == "cuda",
        "steps": len(record.steps) == TOKENS,
        "forwards": sum(step.forwards for step in record.steps) == len(calls),
        "tokens": record.output_tokens_per_row == (TOKENS,) * len(ids),
        "times": abs(record.e2e_s - record.ttft_s - sum(record.itl_s)) < 1e-9,
        "findings": not record.findings,
    }
    return ", ".join(name for name, good in facts.items() if not good) or "right"


def main() -> int:
    if not torch.cuda.is_available():
        print("benchmarks/gpu/modes.py needs a CUDA device", file=sys.stderr)
        return 2
    model = make_model()
    ids = torch.randint(3, 64, (2, 7), device="cuda")
    modes = {
        "dynamic": {},
        "offloaded": {"cache_implementation": "offloaded"},
        "static": {"cache_implementation": "static"},
        "no cache": {"use_cache": False},
        "chunked prefill": {"prefill_chunk_size": 3},
    }
    failed = False
    for name, how in modes.items():
        verdict = check(model, ids, **how)
        failed |= verdict != "right"
        print(f"{name}: {verdict}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
