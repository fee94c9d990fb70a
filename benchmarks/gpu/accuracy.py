"""Times of llmtrace against torch.profiler's time line of the same run.

For each way of generating: the prefill's and every decode step's forward, first kernel start to
last kernel end, within 1 % or 100 us, whichever is more (ends that are marked and ends that are
worked out told apart); every token's time within 100 us of the end of the kernel that chose it;
the spans' sum equal to the request.

    python benchmarks/gpu/accuracy.py [--layers 32] [--tokens 24] [--json FILE]
"""

from __future__ import annotations

import statistics
import sys
from contextlib import nullcontext

import torch
from bench import (
    Result,
    TimeLine,
    annotated,
    arguments_of,
    make_model,
    null_provider,
    profiled,
    prompt_of,
)

import llmtrace
from llmtrace.recording.device_recorder import FORWARDS_MARKED, THEN_EVERY

TOLERANCE_US = 100.0
SHARE = 0.01


def tolerance_us(reference_us: float) -> float:
    return max(TOLERANCE_US, SHARE * reference_us)


def compare(model, record, line: TimeLine) -> dict[str, object]:
    """Compare one record with the profiler's time line."""
    origin = record.start_unix_ns
    forwards = line.ranges("a_forward")
    ends = [begun for begun, _ in forwards[1:]] + [max(e.end_ns() for e in line.calls)]
    durations, starts, last_ends, tokens = [], [], [], []
    worked_out = [
        forward > FORWARDS_MARKED and forward % THEN_EVERY > 0 for forward in range(len(forwards))
    ]
    for (begun, ended), until, step in zip(forwards, ends, record.steps, strict=True):
        work = line.work_called_in(begun, ended)
        first, last = work[0].start_ns(), max(e.end_ns() for e in work)
        reference = (last - first) / 1e3
        ours = (step.forward_end_s - step.forward_start_s) * 1e6
        durations.append((ours - reference, reference))
        starts.append((origin + step.forward_start_s * 1e9 - first) / 1e3)
        last_ends.append((origin + step.forward_end_s * 1e9 - last) / 1e3)
        chosen = [e for e in line.work_called_in(ended, until) if "ArgMax" in e.name()]
        tokens.append((origin + step.end_s * 1e9 - chosen[0].end_ns()) / 1e3)
    total = abs(record.e2e_s - record.ttft_s - sum(record.itl_s)) * 1e6
    good = {
        "prefill": abs(durations[0][0]) <= tolerance_us(durations[0][1]),
        "decode": all(abs(off) <= tolerance_us(whole) for off, whole in durations[1:]),
        "tokens": max(map(abs, tokens)) <= TOLERANCE_US,
        "sum": total < 0.001,
        "clock": record.clock == "cuda",
    }
    return {
        "prefill_us": [round(durations[0][1] + durations[0][0], 1), round(durations[0][1], 1)],
        "decode_profiler_us": round(statistics.median(w for _, w in durations[1:]), 1),
        "decode_off_us": spread([off for off, _ in durations[1:]]),
        "decode_beyond": sum(abs(off) > tolerance_us(whole) for off, whole in durations[1:]),
        "forward_start_off_us": spread(starts),
        "forward_end_off_us": spread(
            [off for off, out in zip(last_ends, worked_out, strict=True) if not out]
        ),
        "forward_end_worked_out_off_us": spread(
            [off for off, out in zip(last_ends, worked_out, strict=True) if out]
        ),
        "token_off_us": spread(tokens),
        "stated_error_us": round(record.clock_error_s * 1e6, 1),
        "sum_off_us": round(total, 4),
        "wrong": [name for name, fine in good.items() if not fine],
    }


def spread(values: list[float]) -> list[float] | None:
    """Return the least, the median and the most, if there are any."""
    return [round(f(values), 1) for f in (min, statistics.median, max)] if values else None


def run(model, prompt, tokens: int, around, **how: object) -> dict[str, object]:
    how = {"do_sample": False, **how}
    with annotated(model):
        for _ in range(3):
            with around():
                model.generate(prompt, max_new_tokens=tokens, **how)
        with llmtrace.capture() as records, profiled() as profiler, around():
            model.generate(prompt, max_new_tokens=tokens, **how)
    (record,) = records
    return compare(model, record, TimeLine(profiler))


def main() -> int:
    arguments = arguments_of(__doc__, layers=32, tokens=24)
    result = Result(arguments)
    llmtrace.instrument(tracer_provider=null_provider())
    model = make_model(arguments.layers)
    side = torch.cuda.Stream()
    ways = {
        "eager": (prompt_of(128), nullcontext, {}),
        "eager, batch 8, 512 tokens": (prompt_of(512, 8), nullcontext, {}),
        "eager, 3,000 tokens": (prompt_of(3000), nullcontext, {}),
        "on another stream": (prompt_of(128), lambda: torch.cuda.stream(side), {}),
        "inference mode": (prompt_of(128), torch.inference_mode, {}),
        "autocast": (prompt_of(128), lambda: torch.autocast("cuda", torch.float16), {}),
        "static cache, eager": (
            prompt_of(128),
            nullcontext,
            {"cache_implementation": "static", "disable_compile": True},
        ),
        "static cache, compiled": (prompt_of(128), nullcontext, {"cache_implementation": "static"}),
    }
    for name, (prompt, around, how) in ways.items():
        part = run(model, prompt, arguments.tokens, around, **how)
        result.add(name, part, good=not part["wrong"])
    return result.exit_code()


if __name__ == "__main__":
    sys.exit(main())
