"""Does llmtrace wait, copy, allocate or launch anything on the device? Counted by torch.profiler.

Every call into CUDA and every piece of the device's work, with and without llmtrace, for requests
of two lengths: the difference between the two lengths is what the steps between them did.

    python benchmarks/gpu/counts.py [--only eager compiled] [--layers 32] [--json FILE]
"""

from __future__ import annotations

import collections
import sys

from bench import Result, TimeLine, arguments_of, make_model, null_provider, profiled, prompt_of

import llmtrace

SHORT, LONG = 16, 48
ANCHORS = 0.2
EVENTS = frozenset({"cudaEventRecordWithFlags", "cudaStreamIsCapturing"})
"""What torch calls to record an event: it looks whether the stream is being captured."""


def counted(model, prompt, tokens: int, **how: object) -> collections.Counter:
    with profiled() as profiler:
        model.generate(prompt, max_new_tokens=tokens, do_sample=False, **how)
    line = TimeLine(profiler)
    calls = collections.Counter(
        e.name()
        for e in line.calls
        if e.name().startswith(("cuda", "cu")) and e.name()[2].islower()
    )
    calls["work on the device"] = len(line.work)
    calls["copies"] = sum(e.name().startswith("Memcpy") for e in line.work)
    return calls


def differences(model, prompt, **how: object) -> dict[str, object]:
    per_step, per_request = {}, {}
    found = {}
    for on in (False, True):
        llmtrace.uninstrument()
        handle = llmtrace.instrument(tracer_provider=null_provider()) if on else None
        for tokens in (SHORT, LONG, SHORT, LONG):
            model.generate(prompt, max_new_tokens=tokens, do_sample=False, **how)
        if handle is not None:
            handle.flush()
        found[on] = {n: counted(model, prompt, n, **how) for n in (SHORT, LONG)}
    for name in set(found[False][LONG]) | set(found[True][LONG]):
        added = {n: found[True][n][name] - found[False][n][name] for n in (SHORT, LONG)}
        if added[LONG] != added[SHORT]:
            per_step[name] = round((added[LONG] - added[SHORT]) / (LONG - SHORT), 3)
        if added[SHORT]:
            per_request[name] = added[SHORT]
    without = found[False][LONG]
    return {
        "added_per_step": per_step,
        "added_per_request_of_16": per_request,
        "without": {
            name: without[name]
            for name in ("cudaStreamSynchronize", "copies", "work on the device", "cudaMalloc")
        },
    }


def main() -> int:
    arguments = arguments_of(__doc__, only=("eager", "compiled"), layers=32)
    result = Result(arguments)
    model = make_model(arguments.layers)
    prompt = prompt_of(128)
    ways = {
        "eager": ("eager", {}),
        "compiled": ("static cache, compiled", {"cache_implementation": "static"}),
    }
    for name, how in (ways[way] for way in arguments.only):
        part = differences(model, prompt, **how)
        added = dict(part["added_per_step"])
        # One a step, the end of one forward in eight, and the clock's anchors now and then.
        looked = added.pop("cudaEventQuery", 0)
        good = set(added) == EVENTS and all(1 <= n < 1.125 + ANCHORS for n in added.values())
        good = good and abs(looked) < ANCHORS
        result.add(name, part, good=good)
    return result.exit_code()


if __name__ == "__main__":
    sys.exit(main())
