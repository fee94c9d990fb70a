"""Memory of a request, and what a cold request paid for.

* peak and growth against torch's own statistics around the same request in a run without llmtrace;
  the user's peak statistics are as they would be without it;
* first request, compilation, capture of CUDA graphs and bitsandbytes' set-up are told apart, and
  a warm request has none of them.

    python benchmarks/gpu/memory_and_cold.py [--layers 4] [--json FILE]
"""

from __future__ import annotations

import sys
from contextlib import contextmanager

import torch
from bench import (
    Result,
    arguments_of,
    counting_captures,
    load_quantized,
    make_model,
    null_provider,
    prompt_of,
    saved,
)

import llmtrace


def measured(model, prompt, **how: object) -> dict[str, int]:
    """Return torch's own numbers for one request, on a peak reset before it."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    out = model.generate(prompt, max_new_tokens=32, do_sample=False, **how)
    after = torch.cuda.memory_allocated()
    del out
    return {"peak": torch.cuda.max_memory_allocated(), "growth": after - before}


def memory(model, prompt, **how: object) -> dict[str, object]:
    llmtrace.uninstrument()
    measured(model, prompt, **how)
    without = measured(model, prompt, **how)
    llmtrace.instrument(tracer_provider=null_provider())
    with llmtrace.capture() as records:
        around = measured(model, prompt, **how)
        model.generate(prompt, max_new_tokens=2, do_sample=False, **how)  # below the peak
    first, second = records
    return {
        "peak_without": without["peak"],
        "peak_of_record": first.memory_peak_bytes,
        "peak_of_the_users_statistics": around["peak"],
        "growth_without": without["growth"],
        "growth_of_record": first.memory_growth_bytes,
        "reserved": first.memory_reserved_bytes,
        "allocated": first.memory_allocated_bytes,
        "inactive_split": first.memory_inactive_split_bytes,
        "peak_of_a_smaller_request": second.memory_peak_bytes,
    }


def is_right(part: dict[str, object]) -> bool:
    return (
        part["peak_of_record"] == part["peak_of_the_users_statistics"] == part["peak_without"]
        and part["growth_of_record"] == part["growth_without"]
        and part["peak_of_a_smaller_request"] is None
    )


def reasons(model, prompt, requests: int, **how: object) -> list[list[str]]:
    """Return what each of a few equal requests paid for, and its seconds."""
    with llmtrace.capture() as records:
        for _ in range(requests):
            model.generate(prompt, max_new_tokens=16, do_sample=False, **how)
    return [[*record.cold_reasons, f"{record.e2e_s:.3f} s"] for record in records]


@contextmanager
def captures_of_each_request(model):
    """Yield the captures of CUDA graphs in each request."""
    generate = model.generate
    with counting_captures() as counts:
        counts.clear()

        def generating(*args, **kwargs):
            counts.append(0)
            return generate(*args, **kwargs)

        model.generate = generating
        try:
            yield counts
        finally:
            del model.generate


def only(reasons_: list[list[str]], expected: list[set[str]]) -> bool:
    return [set(r[:-1]) for r in reasons_] == expected


def main() -> int:
    arguments = arguments_of(__doc__, layers=4)
    result = Result(arguments)
    llmtrace.instrument(tracer_provider=null_provider())
    model = make_model(arguments.layers)
    prompt = prompt_of(512)
    found = reasons(model, prompt, 3)
    result.add("cold, eager", found, good=only(found, [{"first_request"}, set(), set()]))
    part = memory(model, prompt)
    result.add("memory, dynamic cache", part, good=is_right(part))
    llmtrace.instrument(tracer_provider=null_provider())
    with captures_of_each_request(model) as captures:
        found = reasons(model, prompt, 8, cache_implementation="static")
    told = ["graph_capture" in each for each in found] == [n > 0 for n in captures]
    told = told and ["compilation" in each for each in found] == [True] + [False] * 7
    result.add("cold, static cache, compiled", [found, captures], good=told)
    with saved(model) as place:
        # Four bits are set up while the model is loaded, eight at the first call.
        for kind, set_up in (("8bit", {"quantization_setup"}), ("nf4", set())):
            quantized = load_quantized(place, kind)
            found = reasons(quantized, prompt, 3)
            first = {"first_request", *set_up}
            result.add(f"cold, {kind}", found, good=only(found, [first, set(), set()]))
            with llmtrace.capture() as records:
                quantized.generate(prompt, max_new_tokens=4, do_sample=False)
            result.add(
                f"quantization, {kind}",
                records[0].quantization,
                good=records[0].quantization == kind,
            )
            del quantized
    return result.exit_code()


if __name__ == "__main__":
    sys.exit(main())
