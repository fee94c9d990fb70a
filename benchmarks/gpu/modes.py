"""Modes on a GPU, counted: caches, chunks, streams, threads, offloaded weights, captures.

For each way of generating: the record's steps and tokens against a counter of this script's own on
the model's ``forward``, the device's clock, and the same ids with and without llmtrace. Not the
offloaded static cache: transformers 5.17 with torch 2.11 crashes on it, without llmtrace too.

Then: requests of several threads, each on a stream of its own; and CUDA graphs captured while
finished requests are being read in the background, none of which may fail or go unread.

    python benchmarks/gpu/modes.py
"""

from __future__ import annotations

import sys
import threading
import time

import torch
from accelerate import dispatch_model
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


def threads(model: LlamaForCausalLM) -> str:
    """Return what is wrong with requests of several threads, each on its own stream."""

    def work(tokens: int) -> None:
        ids = torch.randint(3, 64, (1, 5), device="cuda")
        with torch.cuda.stream(torch.cuda.Stream()):
            model.generate(ids, max_new_tokens=tokens, do_sample=False)

    with llmtrace.capture() as records:
        workers = [threading.Thread(target=work, args=(n,)) for n in range(3, 11)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    good = sorted(r.output_tokens for r in records) == list(range(3, 11))
    good = good and all(len(r.steps) == r.output_tokens and r.clock == "cuda" for r in records)
    return "right" if good else repr([(r.output_tokens, len(r.steps), r.clock) for r in records])


def captures(model: LlamaForCausalLM) -> str:
    """Return what is wrong when graphs are captured while records are made of requests."""
    ids = torch.randint(3, 64, (1, 5), device="cuda")
    value = torch.ones(64, device="cuda")
    with llmtrace.capture() as records:
        for _ in range(30):
            model.generate(ids, max_new_tokens=64, do_sample=False)
            with torch.cuda.graph(torch.cuda.CUDAGraph()):
                value = value + 1
                time.sleep(0.005)  # the background thread reads the request's events meanwhile
                value = value * 2
    clocks = {record.clock for record in records}
    return "right" if len(records) == 30 and clocks == {"cuda"} else f"{len(records)}, {clocks}"


def offloaded(model: LlamaForCausalLM) -> LlamaForCausalLM:
    """Put half of the layers' weights into the host's memory."""
    places = {"model.embed_tokens": 0, "model.norm": 0, "model.rotary_emb": 0, "lm_head": 0}
    places |= {f"model.layers.{i}": 0 if i < 2 else "cpu" for i in range(4)}
    return dispatch_model(model, places)


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
    for name, verdict in (
        ("eight threads, eight streams", threads(model)),
        ("captures beside finished requests", captures(model)),
        ("offloaded weights", check(offloaded(model), ids)),
        ("offloaded weights, ids on the host", check(model, ids.cpu())),
    ):
        failed |= verdict != "right"
        print(f"{name}: {verdict}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
